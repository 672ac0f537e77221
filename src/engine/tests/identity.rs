//! Identity of items: the contract's table of duplicates, and the commands, as transcripts.

use super::world::*;
use tidegate_types::event::*;
use tidegate_types::*;
use DuplicateRule::{Earliest, Keep, Latest, Reject, Replace};

const RULES: [DuplicateRule; 5] = [Keep, Replace, Earliest, Latest, Reject];

fn named(rule: DuplicateRule, due: u64, payload: &str) -> NewItem {
    with_id("x", rule, at(due, item("a", "", payload)))
}

fn cancel(w: &mut World, id: &str) -> Answer {
    w.ask(Command::Cancel(target("a", id)))
}

fn stage(w: &mut World, id: &str) -> Option<ListedStage> {
    let Answer::Found(listed) = w.ask(Command::Lookup(target("a", id))) else { return None };
    Some(listed.stage)
}

fn of(customer: &str) -> CustomerOf {
    CustomerOf { application: "a".into(), customer: customer.into() }
}

const TAKEN: Answer = Answer::Cancelled { count: 1, in_flight: 0 };

/// One item due after `first` ms, then another due after `second` ms, each in memory (near) or in the store alone
/// (far).
fn while_waiting(rule: DuplicateRule, first: u64, second: u64) -> (Vec<String>, Vec<(String, Reason)>) {
    let mut w = World::new(settings());
    w.send(vec![named(rule, T0 + first, "old")]);
    w.drain_jobs();
    w.send(vec![named(rule, T0 + second, "new")]);
    w.run(500_000);
    w.store.check_empty();
    assert!(w.queue.is_empty());
    ends(&w)
}

#[test]
fn the_table_of_duplicates_while_the_first_waits() {
    // Near and far: the engine's horizon is 20 s.
    for (soon, late) in [(1_000, 2_000), (1_000, 300_000), (200_000, 300_000)] {
        let sent = |rule, first, second| {
            let (sent, dead) = while_waiting(rule, first, second);
            assert_eq!(sent.len(), 1, "{rule:?}");
            assert_eq!(dead.len(), usize::from(rule == Reject), "{rule:?}");
            sent[0].clone()
        };
        for (first, second) in [(soon, late), (late, soon), (soon, soon)] {
            assert_eq!(sent(Keep, first, second), "old");
            assert_eq!(sent(Replace, first, second), "new");
            assert_eq!(sent(Earliest, first, second), if second < first { "new" } else { "old" });
            assert_eq!(sent(Latest, first, second), if second > first { "new" } else { "old" });
            assert_eq!(sent(Reject, first, second), "old");
        }
    }
}

#[test]
fn the_table_of_duplicates_after_it_was_sent() {
    for rule in RULES {
        let mut w = World::new(settings());
        w.send(vec![named(rule, T0, "1")]);
        w.run(100);
        w.send(vec![named(rule, T0, "2")]);
        w.run(100);
        let (sent, dead) = ends(&w);
        let anew = matches!(rule, Replace | Latest);
        assert_eq!(sent, if anew { vec!["1", "2"] } else { vec!["1"] }, "{rule:?}");
        assert_eq!(dead.len(), usize::from(rule == Reject), "{rule:?}");
        // The id is forgotten after the tail.
        w.advance(600_000);
        w.send(vec![named(rule, T0, "3")]);
        w.run(100);
        assert_eq!(ends(&w).0.last().map(String::as_str), Some("3"), "{rule:?}");
        let counters = w.engine.counters();
        let of_rule = counters.duplicates[rule as usize];
        let all = of_rule.dropped + of_rule.replaced + of_rule.accepted + of_rule.dead;
        assert_eq!(all, 1, "{rule:?} {counters:?}");
    }
}

#[test]
fn the_table_of_duplicates_while_it_is_in_flight() {
    for (outcome, again) in [(CONFIRMED, true), (Outcome::Returned("NO_ROUTE".into()), false)] {
        for rule in RULES {
            let mut w = World::new(settings());
            w.send(vec![named(rule, T0, "old")]);
            w.send(vec![named(rule, T0 + 10, "new")]);
            w.drain_jobs();
            let undecided = matches!(rule, Replace | Earliest | Latest);
            let open =
                w.queue.iter().any(|p| matches!(&p.body, RequestBody::Items(i) if name_of(&i[0]) == "new"));
            assert_eq!(open, undecided, "{rule:?}: judged when the attempt ends");
            w.settle(0, outcome.clone());
            w.run(10_000);
            let expected: &[&str] = match (rule, again) {
                (Replace | Latest, true) => &["old", "new"],
                (Replace | Latest, false) => &["new"],
                (Keep | Reject | Earliest, _) => &["old"],
            };
            assert_eq!(ends(&w).0, expected, "{rule:?} {outcome:?}");
            assert!(w.queue.is_empty(), "{rule:?} {outcome:?}");
        }
    }
}

fn name_of(new: &NewItem) -> String {
    String::from_utf8_lossy(&new.content.body).into_owned()
}

#[test]
fn what_comes_back_redelivered_is_known_for_the_old_one() {
    for rule in RULES {
        let mut w = World::new(settings());
        w.send(vec![named(rule, T0, "1")]);
        w.run(100);
        // The ack was lost with the connection.
        w.enqueue(RequestBody::Items(vec![named(rule, T0, "1")]));
        w.queue.iter_mut().for_each(|pending| pending.seen = true);
        w.deliver(1);
        w.run(100);
        assert_eq!(ends(&w), (vec!["1".to_owned()], vec![]), "{rule:?}");
        assert!(w.queue.is_empty());
    }
}

/// Judges promise 14.
#[test]
fn what_comes_back_keeps_its_place_where_there_is_no_room_for_its_window() {
    for rule in [Replace, Earliest, Latest] {
        let mut w = World::new(Settings { customers: 1, ..with(|app| app.on_full = OnFull::DropNewest) });
        w.ask(Command::Pause("a".into(), None));
        let first = || with_id("x", rule, item("a", "c", "1"));
        w.send(vec![first()]);
        w.drain_jobs();
        w.ask(Command::Flush(of("c")));
        w.send(vec![item("a", "d", "2")]);
        w.drain_jobs();
        // The ack was lost with the connection.
        w.enqueue(RequestBody::Items(vec![first()]));
        w.queue.iter_mut().for_each(|pending| pending.seen = true);
        w.deliver(1);
        w.drain_jobs();
        // A request with this id and another content is another request.
        w.send(vec![with_id("x", Replace, item("a", "c", "3"))]);
        w.ask(Command::Resume("a".into()));
        w.run(10_000);
        assert_eq!(ends(&w), (names(&["1", "2"]), vec![("3".into(), Reason::Full)]), "{rule:?}");
        assert!(w.queue.is_empty());
    }
}

#[test]
fn who_waits_for_an_attempt_is_judged_before_who_comes_behind_its_end() {
    for outcome in [Outcome::Overdue, Outcome::Refused("406 PRECONDITION_FAILED".into())] {
        let mut w = World::new(settings());
        w.send(vec![item("a", "", "proof")]);
        w.run(10);
        w.send(vec![named(Replace, T0, "1")]);
        w.send(vec![named(Replace, T0, "2")]);
        w.input(Input::EgressBlocked(true));
        w.settle(0, outcome.clone());
        w.drain_jobs();
        w.send(vec![named(Replace, T0, "3")]);
        w.drain_jobs();
        w.input(Input::EgressBlocked(false));
        w.run(1_000);
        assert_eq!(ends(&w), (names(&["proof", "3"]), vec![]), "{outcome:?}");
    }
}

/// Judges promise 14.
#[test]
fn a_sent_id_is_known_over_a_crash_and_so_is_a_waiting_one() {
    let mut w = World::new(settings());
    w.send(vec![named(Keep, T0, "sent"), with_id("y", Keep, at(T0 + 60_000, item("a", "", "waits")))]);
    w.run(100);
    w.crash();
    w.send(vec![named(Keep, T0, "again"), with_id("y", Keep, item("a", "", "too soon"))]);
    w.run(100_000);
    assert_eq!(ends(&w).0, ["sent", "waits"]);
}

#[test]
fn two_of_one_id_in_one_read_meet_and_two_ids_do_not() {
    for first in [0, 300_000] {
        let mut w = World::new(settings());
        w.send(vec![at(T0 + 400_000, item("a", "", "far"))]);
        w.drain_jobs();
        w.send(vec![
            named(Keep, T0 + first, "1"),
            named(Keep, T0 + first, "2"),
            named(Replace, T0 + first, "3"),
        ]);
        w.send(vec![with_id("other", Keep, at(T0 + first, item("a", "", "other")))]);
        w.run(350_000);
        let mut sent = ends(&w).0;
        sent.sort();
        assert_eq!(sent, ["3", "other"], "{first}");
    }
}

#[test]
fn a_replaced_item_changes_its_customer_and_begins_with_no_attempts() {
    let mut w = World::new(with(|app| app.window = 3_000));
    w.send(vec![with_id("x", Replace, item("a", "ann", "1")), item("a", "bob", "other")]);
    w.advance(1_000);
    w.send(vec![with_id("x", Replace, item("a", "bob", "2"))]);
    w.run(10_000);
    let story = w.story();
    assert_eq!(story, [(3_000, vec!["other".to_owned(), "2".to_owned()])]);
    let counters = w.engine.counters();
    assert_eq!((counters.accepted, counters.replaced, counters.confirmed), (3, 1, 2));
}

#[test]
fn a_window_does_not_stay_open_because_its_only_item_is_replaced() {
    let mut w = World::new(with(|app| app.window = 3_000));
    for n in 0..5 {
        w.send(vec![with_id("x", Replace, item("a", "ann", &n.to_string()))]);
        w.run(1_000);
    }
    assert_eq!(w.story(), [(3_000, vec!["2".to_owned()])], "three seconds from its first item");
}

#[test]
fn a_cancelled_item_is_gone_wherever_it_was_and_stays_gone() {
    let mut w = World::new(with(|app| app.window = 3_000));
    let far = with_id("far", Keep, at(T0 + 300_000, item("a", "ann", "far")));
    let near = with_id("near", Keep, at(T0 + 2_000, item("a", "ann", "near")));
    let windowed = with_id("window", Keep, item("a", "ann", "window"));
    w.send(vec![far, near, windowed, item("a", "ann", "stays")]);
    w.drain_jobs();
    for id in ["far", "near", "window"] {
        assert_eq!(stage(&mut w, id), Some(ListedStage::Waiting), "{id}");
        assert_eq!(cancel(&mut w, id), TAKEN, "{id}");
        assert!(matches!(cancel(&mut w, id), Answer::Ended(e) if e.end == End::Cancelled), "{id}");
    }
    assert_eq!(cancel(&mut w, "nobody"), Answer::Unknown);
    w.crash();
    w.run(400_000);
    assert_eq!(ends(&w).0, ["stays"]);
    w.store.check_empty();
}

/// Judges promise 15.
#[test]
fn a_cancel_is_answered_when_it_is_durable_and_not_sooner() {
    let mut w = World::new(settings());
    w.send(vec![named(Keep, T0 + 5_000, "1")]);
    w.drain_jobs();
    w.input(Input::Commands(vec![(Asker::Local(7), Command::Cancel(target("a", "x")))]));
    assert_eq!(w.answer_to(7), None);
    let kept = w.store.clone();
    w.drain_jobs();
    assert_eq!(w.answer_to(7), Some(TAKEN));
    assert!(w.store.items.is_empty());
    // kill -9 in between: no answer was sent, and the item still exists.
    let mut w = World { store: kept, ..w };
    w.crash();
    assert_eq!(stage(&mut w, "x"), Some(ListedStage::Waiting));
}

/// Judges promise 15.
#[test]
fn a_cancel_that_races_with_the_publish_gets_the_truth() {
    for (outcome, answer) in
        [(CONFIRMED, None), (Outcome::Nacked, Some(TAKEN)), (Outcome::Unknown, Some(Answer::InFlight))]
    {
        let mut w = World::new(settings());
        w.send(vec![named(Keep, T0, "1")]);
        assert_eq!(w.out.len(), 1);
        w.input(Input::Commands(vec![(Asker::Local(7), Command::Cancel(target("a", "x")))]));
        w.drain_jobs();
        assert_eq!(w.answer_to(7), None, "its outcome is waited for");
        w.input(Input::EgressBlocked(true));
        w.settle(0, outcome.clone());
        w.drain_jobs();
        w.input(Input::Tick);
        w.drain_jobs();
        if outcome == Outcome::Unknown {
            w.advance(4_900);
            assert_eq!(w.answer_to(7), None);
            w.advance(100);
            w.drain_jobs();
        }
        let got =
            w.answer_to(7).unwrap_or_else(|| panic!("no answer after {outcome:?}: {}", w.engine.describe()));
        match (&got, answer) {
            (Answer::Ended(ended), None) => assert_eq!(ended.end, End::Sent(BatchId([7; 16]))),
            (got, Some(answer)) => assert_eq!(*got, answer),
            (got, None) => panic!("{got:?}"),
        }
        w.input(Input::EgressBlocked(false));
        w.run(10_000);
        let left = usize::from(outcome != Outcome::Nacked);
        assert_eq!(ends(&w).0.len(), left, "{outcome:?}");
        assert!(w.engine.is_idle());
    }
}

#[test]
fn parked_sent_expired_and_dead_items_are_told_apart() {
    let mut w = World::new(with(|app| app.retry = Retry { min: 10_000, max: 10_000, attempts: 2 }));
    w.send(vec![named(Keep, T0, "1")]);
    w.settle(0, Outcome::Returned("NO_ROUTE".into()));
    w.drain_jobs();
    let Answer::Found(found) = w.ask(Command::Lookup(target("a", "x"))) else { panic!("it waits") };
    assert_eq!((found.stage, found.attempts), (ListedStage::Parked, 1));
    assert!(found.last_error.is_some_and(|text| text.contains("NO_ROUTE")));
    w.advance(10_000);
    w.drain_jobs();
    w.settle(0, Outcome::Returned("NO_ROUTE".into()));
    w.run(10);
    let end = |w: &mut World, id| {
        let Answer::Ended(ended) = w.ask(Command::Lookup(target("a", id))) else { panic!("it has ended") };
        ended.end
    };
    assert!(matches!(end(&mut w, "x"), End::Dead(dead) if dead.reason == Reason::Attempts));
    let late = NewItem { expiry: Some(T0 + 1), ..with_id("late", Keep, item("a", "", "late")) };
    w.send(vec![late]);
    w.run(20_000);
    assert!(matches!(end(&mut w, "late"), End::Dead(dead) if dead.reason == Reason::Expired));
    w.send(vec![with_id("b", Keep, at(T0, item("b", "", "sent")))]);
    w.run(10);
    let Answer::Ended(ended) = w.ask(Command::Lookup(target("b", "b"))) else { panic!("sent") };
    assert_eq!(ended.end, End::Sent(BatchId([7; 16])));
    // The id of a dead item may be used again at once.
    w.send(vec![named(Keep, T0 + 60_000, "again")]);
    assert_eq!(stage(&mut w, "x"), Some(ListedStage::Waiting));
}

#[test]
fn an_item_without_an_id_is_known_by_the_assigned_one() {
    let mut w = World::new(settings());
    w.send(vec![at(T0 + 300_000, item("a", "", "far")), at(T0 + 5_000, item("a", "", "near"))]);
    w.drain_jobs();
    let keys: Vec<Key> = w.store.items.keys().map(|(_, key)| *key).collect();
    for key in keys {
        let seq = key.seq;
        let target = assigned("a", key, key.due);
        assert!(matches!(w.ask(Command::Lookup(target.clone())), Answer::Found(_)), "{seq}");
        let elsewhere = Target { application: "b".into(), ..target.clone() };
        assert_eq!(w.ask(Command::Cancel(elsewhere)), Answer::Unknown);
        assert_eq!(w.ask(Command::Cancel(target)), TAKEN, "{seq}");
    }
    w.run(400_000);
    assert_eq!(w.story(), []);
}

#[test]
fn a_message_whose_ids_are_asked_for_is_written_in_one_commit() {
    let mut w = World::new(settings());
    w.send(vec![at(T0 + 3_600_000, item("a", "ann", "far"))]);
    w.drain_jobs();
    let entry = |id: &str| at(T0 + 60_000, item("a", "ann", id));
    w.enqueue(RequestBody::Items(vec![entry("1"), with_id("2", Keep, entry("2")), entry("3")]));
    w.deliver(1);
    w.do_job();
    assert_eq!(w.store.items.len(), 1, "the store has been asked, and nothing is written");
    w.do_job();
    assert_eq!(w.store.items.len(), 4);
}

#[test]
fn a_window_that_a_former_life_left_closes_with_all_of_its_members() {
    let mut w = World::new(with(|app| app.window = 30_000));
    w.send(vec![item("a", "ann", "far")]);
    w.run(15_000);
    w.send(vec![item("a", "ann", "near")]);
    w.drain_jobs();
    w.crash();
    assert_eq!(w.ask(Command::Flush(of("ann"))), Answer::Flushed(2));
    w.run(10);
    assert_eq!(ends(&w).0, ["far", "near"]);
}

#[test]
fn flush_closes_the_open_window_now() {
    let mut w = World::new(with(|app| app.window = 60_000));
    w.send(vec![item("a", "ann", "1"), item("a", "ann", "2"), item("a", "bob", "3")]);
    w.drain_jobs();
    assert_eq!(w.ask(Command::Flush(of("ann"))), Answer::Flushed(2));
    w.run(10);
    assert_eq!(w.story(), [(0, vec!["1".to_owned(), "2".to_owned()])]);
    assert_eq!(w.delivered[0].1.closed_by, ClosedBy::Flush);
    assert_eq!(w.ask(Command::Flush(of("ann"))), Answer::Flushed(0));
}

/// Judges promise 15.
#[test]
fn a_paused_application_waits_over_a_restart_and_nothing_else_is_touched() {
    let mut w = World::new(settings());
    assert_eq!(w.ask(Command::Pause("a".into(), None)), Answer::Until { until: None, changed: true });
    assert_eq!(w.ask(Command::Pause("a".into(), None)), Answer::Until { until: None, changed: false });
    let due = |n: u64| with_id(&n.to_string(), Keep, at(T0 + n, item("a", "", &n.to_string())));
    w.send(vec![due(0), due(50), due(30_000), at(T0, item("b", "", "b"))]);
    w.run(60_000);
    assert_eq!(ends(&w).0, ["b"]);
    w.crash();
    w.run(1_000);
    assert_eq!(ends(&w).0, ["b"]);
    assert_eq!(stage(&mut w, "50"), Some(ListedStage::Waiting));
    assert_eq!(cancel(&mut w, "50"), TAKEN);
    assert_eq!(w.ask(Command::Resume("a".into())), Answer::Done { changed: true });
    w.run(1_000);
    assert_eq!(ends(&w).0, ["b", "0", "30000"]);
    w.store.check_empty();
}

/// More windows than one call closes, and one of another application.
#[test]
fn all_windows_of_an_application_are_flushed_and_told_as_one_number() {
    let thresholds = Thresholds { flushed_windows: 2, ..Thresholds::default() };
    let mut w = World::new(Settings { thresholds, ..with(|app| app.window = 600_000) });
    w.send((0..10).map(|n| item("a", &format!("c{}", n % 5), &n.to_string())).collect());
    w.send(vec![item("b", "c0", "other"), at(T0 + 900_000, item("a", "c0", "own time"))]);
    w.run(1_000);
    assert_eq!(w.delivered.len(), 0);
    assert_eq!(w.ask(Command::FlushAll("a".into())), Answer::Flushed(10));
    w.run(1_000);
    let told = |(_, batch): &(Now, Batch)| (batch.items.len(), batch.closed_by);
    assert_eq!(w.delivered.iter().map(told).collect::<Vec<_>>(), [(2, ClosedBy::Flush); 5]);
    assert_eq!(w.ask(Command::FlushAll("a".into())), Answer::Flushed(0));
    assert_eq!(w.ask(Command::FlushAll("nobody".into())), Answer::Flushed(0));
    w.run(1_000_000);
    assert_eq!(w.delivered.len(), 7);
    w.store.check_empty();
}

/// A pause ends at its time or earlier by a command, and its end may be changed.
#[test]
fn a_pause_ends_by_itself_over_a_restart_too() {
    for restart in [false, true] {
        let mut w = World::new(settings());
        let paused = |until, changed| Answer::Until { until: Some(until), changed };
        let until = |at| Command::Pause("a".into(), Some(Moment::At(at)));
        assert_eq!(w.ask(until(T0 + 9_000_000)), paused(T0 + 9_000_000, true));
        let soon = Command::Pause("a".into(), Some(Moment::After(59_999)));
        let Answer::Until { until: Some(end), changed: true } = w.ask(soon.clone()) else { panic!("paused") };
        assert_eq!(end, w.now.wall + 60_000, "from the next whole millisecond on");
        assert_eq!(w.ask(until(end)), paused(end, false));
        assert!(matches!(w.ask(until(w.now.wall)), Answer::Rejected(_)), "that is over");
        w.send(vec![at(T0, item("a", "", "1")), at(T0 + 900_000, item("a", "", "far"))]);
        w.run(1_000);
        if restart {
            w.crash();
        }
        let now = w.now.wall;
        w.run(end - now - 1);
        assert_eq!((w.delivered.len(), w.wait()), (0, Some(1)), "restart: {restart}");
        w.run(1);
        assert_eq!(ends(&w).0, ["1"]);
        assert_eq!(w.ask(Command::Resume("a".into())), Answer::Done { changed: false });
        w.run(1_000_000);
        assert_eq!(ends(&w).0, ["1", "far"]);
        w.store.check_empty();
    }
}

#[test]
fn a_parked_application_is_tried_now_or_its_items_are_dropped() {
    let mut w = World::new(with(|app| app.retry = Retry { min: 60_000, max: 60_000, attempts: 0 }));
    w.send((0..1_500).map(|n| at(T0 + 100, item("a", "", &n.to_string()))).collect());
    w.drain_jobs();
    w.advance(100);
    w.drain_jobs();
    w.settle(0, Outcome::Returned("NO_ROUTE".into()));
    w.drain_jobs();
    for _ in 0..5 {
        w.advance(10);
        w.drain_jobs();
    }
    assert_eq!(w.ask(Command::Retry("a".into())), Answer::Done { changed: true });
    w.advance(0);
    w.drain_jobs();
    assert_eq!(w.out.len(), 1, "the probe goes at once");
    w.settle(0, Outcome::Returned("NO_ROUTE".into()));
    w.drain_jobs();
    assert_eq!(w.ask(Command::DropParked("a".into())), Answer::Cancelled { count: 1_500, in_flight: 0 });
    w.run(200_000);
    assert_eq!(w.story(), []);
    w.store.check_empty();
}

/// Excluded: a next try that is promised and does not come.
#[test]
fn a_next_try_is_ordered_only_where_it_can_come() {
    let mut w = World::new(with(|app| app.retry = Retry { min: 60_000, max: 60_000, attempts: 0 }));
    w.send(vec![item("a", "", "1")]);
    w.drain_jobs();
    w.settle(0, Outcome::Returned("NO_ROUTE".into()));
    w.drain_jobs();
    w.ask(Command::Pause("a".into(), None));
    assert_eq!(w.ask(Command::Retry("a".into())), Answer::Done { changed: false }, "it is paused");
    w.ask(Command::Resume("a".into()));
    assert_eq!(w.ask(Command::Retry("a".into())), Answer::Done { changed: true });
    w.drain_jobs();
    w.settle(0, Outcome::Returned("NO_ROUTE".into()));
    w.drain_jobs();
    w.ask(Command::DropParked("a".into()));
    w.drain_jobs();
    assert_eq!(w.ask(Command::Retry("a".into())), Answer::Done { changed: false }, "nothing is left");
}

#[test]
fn a_list_comes_in_order_and_page_by_page() {
    let mut w = World::new(settings());
    let items = (0..250u64).map(|n| {
        let due = T0 + 1_000 + (n * 7_919) % 400_000;
        at(due, item("a", if n % 2 == 0 { "ann" } else { "bob" }, &n.to_string()))
    });
    w.send(items.collect());
    w.drain_jobs();
    let mut pages = |filter: Filter| {
        let (mut all, mut filter) = (vec![], filter);
        for _ in 0..100 {
            let Answer::Listed { items, next } = w.ask(Command::List(filter.clone())) else {
                panic!("a page")
            };
            assert!(items.len() <= filter.limit);
            all.extend(items.iter().map(|item| item.key));
            match next {
                Some(next) => filter.from = next,
                None => return all,
            }
        }
        panic!("no end")
    };
    let all = pages(Filter { limit: 40, ..Filter::default() });
    assert_eq!(all.len(), 250);
    assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
    let of = |filter: Filter| Filter { application: Some("a".into()), limit: 30, ..filter };
    assert_eq!(pages(of(Filter { customer: Some("ann".into()), ..Filter::default() })).len(), 125);
    let (from, until) = (T0 + 100_000, T0 + 200_000);
    let range = pages(of(Filter { from: Key::at(from), until: Some(until), ..Filter::default() }));
    let expected = all.iter().filter(|key| (from..until).contains(&key.due)).count();
    assert_eq!((range.len(), expected > 20), (expected, true));
    let none = pages(Filter { application: Some("b".into()), limit: 5, ..Filter::default() });
    assert_eq!(none.len(), 0);
    assert_eq!(pages(of(Filter { state: Some(ListedStage::Waiting), ..Filter::default() })).len(), 250);
    assert_eq!(pages(of(Filter { state: Some(ListedStage::InFlight), ..Filter::default() })).len(), 0);
}

/// The item in question is in the last application.
#[test]
fn a_list_leaves_out_no_application_however_many_there_are() {
    const APPLICATIONS: u64 = 2_500;
    let mut w = World::new(Settings { max_applications: APPLICATIONS, ..settings() });
    for first in (0..APPLICATIONS).step_by(500) {
        let of = |n: u64| {
            let customer = if n == APPLICATIONS - 1 { "wanted" } else { "other" };
            at(T0 + 1_000_000 + n, item(&format!("app-{n}"), customer, &n.to_string()))
        };
        w.send((first..first + 500).map(of).collect());
    }
    w.drain_jobs();
    let filter = Filter { customer: Some("wanted".into()), limit: 10, ..Filter::default() };
    let Answer::Listed { items, next } = w.ask(Command::List(filter)) else { panic!("a page") };
    assert_eq!((items.len(), next), (1, None));
    assert_eq!(&*items[0].application, "app-2499");
}

#[test]
fn with_nothing_stored_the_rules_hold_too() {
    let mut w = World::new(Settings { hold_max: Some(3_600_000), ..settings() });
    w.send(vec![named(Keep, T0 + 1_000, "1"), named(Keep, T0 + 1_000, "2")]);
    w.send(vec![with_id("y", Keep, at(T0 + 1_000, item("a", "", "y")))]);
    assert_eq!(w.queue.len(), 2, "the duplicate is acked, the others are held");
    assert_eq!(cancel(&mut w, "y"), TAKEN);
    w.run(2_000);
    assert_eq!(ends(&w).0, ["1"]);
    w.send(vec![named(Keep, T0, "3")]);
    w.run(100);
    assert_eq!(ends(&w).0, ["1"], "it was sent within the tail");
    assert!(w.queue.is_empty());
}

/// The payload of the first item comes too late, in the call that decides on another request with its id.
#[test]
fn who_waits_for_an_attempt_that_ends_in_the_same_call_is_told() {
    let mut settings = settings();
    settings.budget.contents = 0;
    settings.thresholds.arrivals = 1;
    let mut w = World::new(settings);
    let old = NewItem { expiry: Some(T0 + 500), ..at(T0 + 400, item("a", "", "old")) };
    w.send(vec![with_id("x", Replace, old)]);
    w.drain_jobs();
    w.beside = true;
    w.advance(400);
    while w.do_job() {}
    assert_eq!(w.out.len(), 0, "its payload is read");
    w.pass(200);
    w.send(vec![item("b", "", "beside"), with_id("x", Replace, at(T0 + 2_000, item("a", "", "new")))]);
    assert!(w.do_late());
    w.run(60_000);
    assert!(w.queue.is_empty(), "{} are not acked", w.queue.len());
    assert_eq!(ends(&w), (names(&["beside", "new"]), vec![("old".into(), Reason::Expired)]));
}
