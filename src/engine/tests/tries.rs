//! Another try: requests that name the batch in which the item with their id was sent, as stories.
//!
//! Judges promise 14.

use super::world::*;
use std::sync::Arc;
use tidegate_types::*;
use DuplicateRule::{Earliest, Keep, Latest, Reject, Replace};

const RULES: [DuplicateRule; 5] = [Keep, Replace, Earliest, Latest, Reject];
/// The batch of every confirm in these worlds.
const SENT_IN: BatchId = BatchId([7; 16]);
const ANOTHER: BatchId = BatchId([8; 16]);

fn first(rule: DuplicateRule) -> NewItem {
    with_id("x", rule, at(T0, item("a", "", "first")))
}

fn again(rule: DuplicateRule, batch: BatchId, payload: &str) -> NewItem {
    let tried = Tried { batch: Some(batch), sent_back: true, ..Tried::default() };
    NewItem { tried, ..with_id("x", rule, item("a", "", payload)) }
}

/// The first item has been sent, and another try that names this batch has been decided on.
fn tried(rule: DuplicateRule, batch: BatchId) -> World {
    let mut w = World::new(settings());
    w.send(vec![first(rule)]);
    w.run(100);
    w.send(vec![again(rule, batch, "again")]);
    w.run(100);
    w
}

#[test]
fn what_names_its_batch_is_new_under_every_rule() {
    for rule in RULES {
        let w = tried(rule, SENT_IN);
        assert_eq!(ends(&w), (names(&["first", "again"]), vec![]), "{rule:?}");
        let counters = w.engine.counters();
        assert_eq!((counters.duplicates[rule as usize].accepted, counters.tries_dropped), (1, 0));
        assert!(w.queue.is_empty());
    }
}

#[test]
fn what_names_another_batch_is_judged_by_the_table_and_counted() {
    for rule in RULES {
        let w = tried(rule, ANOTHER);
        let (sent, dead) = ends(&w);
        let anew = matches!(rule, Replace | Latest);
        assert_eq!(sent.len(), 1 + usize::from(anew), "{rule:?}");
        assert_eq!(dead.len(), usize::from(rule == Reject), "{rule:?}");
        assert_eq!(w.engine.counters().tries_dropped, u64::from(matches!(rule, Keep | Earliest)), "{rule:?}");
    }
}

#[test]
fn the_same_try_while_the_first_waits_is_taken_once() {
    let mut w = World::new(settings());
    w.send(vec![first(Keep)]);
    w.run(100);
    let later = || NewItem { at: Some(T0 + 5_000), ..again(Keep, SENT_IN, "again") };
    w.send(vec![later()]);
    w.send(vec![later()]);
    w.run(10_000);
    assert_eq!(ends(&w).0, names(&["first", "again"]));
    assert_eq!(w.engine.counters().tries_dropped, 1);
}

/// The consumer may be quicker than the confirm.
#[test]
fn one_that_comes_before_the_confirm_waits_for_it() {
    for rule in RULES {
        for (outcome, taken) in [(CONFIRMED, true), (Outcome::Returned("NO_ROUTE".into()), false)] {
            let mut w = World::new(settings());
            w.send(vec![first(rule)]);
            w.drain_jobs();
            assert_eq!(w.out.len(), 1);
            w.send(vec![again(rule, SENT_IN, "again")]);
            w.drain_jobs();
            let is_again = |body: &RequestBody| matches!(body, RequestBody::Items(items) if text(&items[0].content) == "again");
            assert!(w.queue.iter().any(|p| is_again(&p.body)), "{rule:?}: it is not judged yet");
            w.settle(0, outcome.clone());
            w.run(10_000);
            let sent = ends(&w).0;
            if taken {
                assert_eq!(sent, names(&["first", "again"]), "{rule:?}");
            } else {
                // The item was certainly not delivered, and leaves once, in the form that the rule decides.
                assert_eq!(sent.len(), 1, "{rule:?}: {sent:?}");
            }
            assert!(w.queue.is_empty(), "{rule:?}");
        }
    }
}

#[test]
fn the_batch_is_remembered_over_a_restart() {
    for rule in RULES {
        let mut w = World::new(settings());
        w.send(vec![first(rule)]);
        w.run(100);
        w.crash();
        w.drain_jobs();
        w.send(vec![again(rule, ANOTHER, "other")]);
        w.run(100);
        w.send(vec![again(rule, SENT_IN, "again")]);
        w.run(100);
        assert_eq!(ends(&w).0.last().map(String::as_str), Some("again"), "{rule:?}");
    }
}

/// A try that is delivered again after it was sent: it names the batch before.
#[test]
fn a_try_that_comes_back_is_the_one_that_was_taken() {
    for rule in RULES {
        let mut w = World::new(settings());
        w.send(vec![again(rule, ANOTHER, "try")]);
        w.acks_out = Some(Default::default());
        w.run(100);
        assert_eq!(ends(&w).0, names(&["try"]));
        // The ack of the try is lost.
        w.lose_ingest();
        w.connect();
        w.run(100);
        assert_eq!(ends(&w), (names(&["try"]), vec![]), "{rule:?}");
        assert_eq!(w.engine.counters().tries_dropped, 0, "{rule:?}: that is no loss");
    }
}

/// Two items of a customer, one of them without its own id, are sent back before the confirm. Each waits for it, and they
/// are admitted in the order in which they were sent back, whatever the order of the batch was.
/// Judges promise 5.
#[test]
fn what_waits_is_taken_in_the_order_in_which_it_came() {
    for order in [["given", "assigned"], ["assigned", "given"]] {
        let mut w = World::new(settings());
        w.send(vec![with_id("given", Keep, item("a", "c", "given")), item("a", "c", "assigned")]);
        w.drain_jobs();
        w.advance(w.settings.defaults.window);
        let batch = w.first_out().expect("its window is over");
        let seqs: Vec<u64> = batch.items.iter().map(|item| item.seq).collect();
        assert_eq!(seqs.len(), 2);
        for name in order {
            let first = (name == "assigned").then(|| Identity::assigned(seqs[1]));
            let tried = Tried { batch: Some(SENT_IN), sent_back: true, first, retry: 0 };
            let again = || NewItem { tried, fingerprint: 1, ..with_id(name, Keep, item("a", "c", name)) };
            w.send(vec![again()]);
            w.send(vec![again()]);
            w.drain_jobs();
        }
        assert_eq!(w.queue.len(), 4, "each waits");
        w.settle(0, CONFIRMED);
        w.run(10_000);
        let last = w.delivered.last().map(|(_, batch)| batch.items.iter().map(name).collect::<Vec<_>>());
        assert_eq!(last, Some(names(&order)));
        assert_eq!((w.engine.counters().tries_dropped, w.queue.len()), (2, 0));
    }
}

/// An item of a customer that its consumer has sent back `retry` times, due with others.
fn counted(retry: u32, payload: &str) -> NewItem {
    let tried = Tried { batch: Some(SENT_IN), sent_back: true, retry, ..Tried::default() };
    NewItem { tried, ..with_id("x", Keep, at(T0 + 600_000, item("a", "c", payload))) }
}

#[test]
fn what_was_sent_back_leaves_alone_and_says_how_often_over_a_restart_too() {
    for restart in [false, true] {
        let mut w = World::new(settings());
        let other = |id: &str| with_id(id, Keep, at(T0 + 600_000, item("a", "c", id)));
        w.send(vec![other("1"), other("2"), counted(3, "again"), other("4"), other("5")]);
        w.drain_jobs();
        if restart {
            w.crash();
            w.drain_jobs();
        }
        let lookup = w.ask(Command::Lookup(target("a", "x")));
        assert!(matches!(&lookup, Answer::Found(listed) if listed.retry == 3), "{lookup:?}");
        w.run(700_000);
        let told =
            |batch: &Batch| batch.items.iter().map(|item| (name(item), item.retry)).collect::<Vec<_>>();
        let of =
            |names: &[(&str, u32)]| names.iter().map(|(id, n)| ((*id).to_owned(), *n)).collect::<Vec<_>>();
        let batches: Vec<_> = w.delivered.iter().map(|(_, batch)| told(batch)).collect();
        assert_eq!(
            batches,
            [of(&[("1", 0), ("2", 0)]), of(&[("again", 3)]), of(&[("4", 0), ("5", 0)])],
            "restart: {restart}"
        );
        assert_eq!(w.engine.counters().tries_taken, u64::from(!restart));
    }
}

/// A try that is sent under the former batch id is told apart from the last try by its fingerprint.
#[test]
fn a_try_that_was_sent_under_its_old_batch_is_not_taken_twice() {
    let mut w = World::new(settings());
    w.send(vec![with_id("x", Keep, item("a", "", "first"))]);
    w.run(100);
    for (round, want) in [("one", 2), ("one", 2), ("two", 3), ("two", 3)] {
        w.send(vec![again(Keep, SENT_IN, round)]);
        w.run(100);
        assert_eq!(ends(&w).0.len(), want, "{round}");
    }
    assert_eq!(w.engine.counters().tries_dropped, 2);
}

#[test]
fn who_has_had_the_last_try_is_dead_and_that_is_remembered() {
    for waits in [false, true] {
        let mut w = World::new(settings());
        w.send(vec![first(Keep)]);
        w.run(100);
        if waits {
            w.send(vec![NewItem { at: Some(T0 + 60_000), ..again(Keep, SENT_IN, "again") }]);
        }
        let over = Dead { reason: Reason::Attempts, error: "no more".into() };
        for rule in [Replace, Keep] {
            let over = Some(Box::new(over.clone()));
            w.send(vec![NewItem { over, ..again(rule, SENT_IN, "last") }]);
            w.run(100);
        }
        let lookup = w.ask(Command::Lookup(target("a", "x")));
        if waits {
            assert!(matches!(lookup, Answer::Found(_)), "another of its id waits: {lookup:?}");
            assert_eq!((ends(&w).1, w.engine.counters().tries_dropped), (vec![], 2));
        } else {
            // The second request names the batch of a dead item: it is another item with that id.
            let letter = || ("last".to_owned(), Reason::Attempts);
            assert_eq!(ends(&w).1, [letter(), letter()]);
            let Answer::Ended(ended) = lookup else { panic!("{lookup:?}") };
            assert_eq!(ended.end, End::Dead(Arc::new(over)));
        }
    }
}

/// The consumer sends the last try back before its confirm has come, and so many wait for the application that the
/// request is decided at once.
/// Excluded: one more try than there may be.
#[test]
fn who_sends_the_last_try_back_before_its_confirm_has_no_other() {
    for rule in RULES {
        let mut w = World::new(settings());
        w.tell_prefetch(Some(16));
        w.send(vec![first(rule)]);
        w.drain_jobs();
        assert_eq!(w.out.len(), 1, "it is in flight");
        // It takes the only place of those that may wait.
        w.enqueue(RequestBody::Command(Command::Cancel(target("a", "x")), None));
        let over = Some(Box::new(Dead { reason: Reason::Attempts, error: "no more".into() }));
        w.send(vec![NewItem { over, ..again(rule, SENT_IN, "last") }]);
        w.drain_jobs();
        // It is decided in the next turn, before the confirm.
        w.advance(0);
        w.run(400_000);
        let (sent, dead) = ends(&w);
        assert_eq!(sent, names(&["first"]), "{rule:?}");
        assert_eq!(dead, [("last".to_owned(), Reason::Attempts)], "{rule:?}");
        assert!(w.queue.is_empty(), "{rule:?}");
    }
}
