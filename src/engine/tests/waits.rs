//! Requests that wait for the end of an attempt that does not end delay no other request.
//!
//! Judges promise 6.

use super::world::*;
use tidegate_types::event::*;
use tidegate_types::*;

fn request(id: &str, customer: &str, payload: &str) -> NewItem {
    with_id(id, DuplicateRule::Replace, at(T0, item("a", customer, payload)))
}

fn of(customer: &str) -> CustomerOf {
    CustomerOf { application: "a".into(), customer: customer.into() }
}

fn returned() -> Outcome {
    Outcome::Returned("312 NO_ROUTE".into())
}

/// Lets the store and the engine do all their present work.
fn rest(w: &mut World) {
    w.drain_jobs();
    while w.engine.is_behind() {
        w.input(Input::Tick);
        w.drain_jobs();
    }
}

/// Delivers as many messages as the prefetch allows, until nothing moves any more.
fn feed(w: &mut World, prefetch: usize) {
    loop {
        let waits = |w: &World| w.queue.iter().filter(|pending| pending.tag.is_none()).count();
        let before = waits(w);
        let unacked = w.queue.len() - before;
        w.deliver(prefetch.saturating_sub(unacked));
        rest(w);
        if waits(w) == before {
            // Safe requests behind one that waits are acked a tenth of a second later.
            w.advance(101);
            rest(w);
            if w.queue.len() - before == unacked {
                return;
            }
        }
    }
}

/// An engine whose consumer has this prefetch, and an application `a` with a fresh confirm.
fn world(prefetch: u16) -> World {
    let mut w = World::new(settings());
    w.input(Input::Prefetch(prefetch));
    w.send(vec![item("a", "", "proof")]);
    w.run(100);
    w
}

/// A request of another application is published and acked without any other event.
fn others_go_on(w: &mut World, prefetch: usize) {
    w.enqueue(RequestBody::Items(vec![at(T0, item("b", "ben", "other"))]));
    feed(w, prefetch);
    let other = |(_, batch): &(u64, Batch)| *batch.application == *"b";
    assert!(w.out.iter().any(other), "{prefetch}: it is published");
    let is_it = |pending: &Pending| matches!(&pending.body, RequestBody::Items(items) if &*items[0].application == "b");
    assert!(!w.queue.iter().any(is_it), "{prefetch}: it is acked");
}

/// Lets all items end: these have been sent, and nothing is left.
fn ends_with(w: &mut World, sent: &[&str]) {
    w.run(60_000);
    assert_eq!(ends(w).0, sent);
    assert!(w.queue.is_empty());
    check_sums(w);
    w.store.check_empty();
}

fn settle_of(w: &mut World, application: &str, outcome: &Outcome) {
    while let Some(nth) = w.out.iter().position(|(_, batch)| *batch.application == *application) {
        w.settle(nth, outcome.clone());
    }
}

/// Every request that was accepted has one end.
fn check_sums(w: &World) {
    let c = w.engine.counters();
    let dead: u64 = c.dead.iter().sum::<u64>() - c.rejected;
    let over = c.confirmed + c.replaced + c.cancelled + c.given_back + dead;
    assert_eq!(c.accepted, over + w.engine.sums().0, "{c:?}");
}

#[test]
fn what_replaces_one_item_in_flight_again_and_again_holds_no_prefetch() {
    for (prefetch, count) in [(1, 50), (2, 50), (10, 300), (500, 1_500), (10_000, 10_500)] {
        for outcome in [CONFIRMED, returned()] {
            let mut w = world(prefetch);
            w.send(vec![request("x", "ann", "0")]);
            w.drain_jobs();
            assert_eq!(w.out.len(), 1, "it is in flight, and stays there");
            for n in 1..=count {
                w.enqueue(RequestBody::Items(vec![request("x", "ann", &n.to_string())]));
            }
            feed(&mut w, prefetch.into());
            others_go_on(&mut w, prefetch.into());
            check_sums(&w);
            let sent = w.delivered.len();
            settle_of(&mut w, "a", &outcome);
            w.run(60_000);
            assert!(w.queue.is_empty(), "{prefetch}: {} are not acked", w.queue.len());
            let story: Vec<String> =
                ends(&w).0.into_iter().skip(sent).filter(|name| name != "other").collect();
            assert_eq!(story.last(), Some(&count.to_string()), "{prefetch}: the last one is sent");
            if outcome != CONFIRMED {
                assert_eq!(story.len(), 1, "{prefetch}: and those before it are replaced: {story:?}");
            }
            check_sums(&w);
            let c = w.engine.counters();
            let verdicts = c.duplicates[DuplicateRule::Replace as usize];
            let all = verdicts.accepted + verdicts.replaced + verdicts.dropped + verdicts.dead;
            assert_eq!((all, verdicts.replaced), (count, c.replaced), "{prefetch}: {verdicts:?}");
            w.store.check_empty();
        }
    }
}

/// Excluded: a wait that lasts until the broker takes back all that is unacked; one that begins anew with a later
/// request or command; a request that is decided at once.
/// Judges promise 12.
#[test]
fn a_request_waits_for_an_outcome_for_five_minutes_at_most() {
    for outcome in [CONFIRMED, returned()] {
        let mut w = world(10_000);
        w.send(vec![request("x", "ann", "0")]);
        w.drain_jobs();
        w.enqueue(RequestBody::Items(vec![request("x", "ann", "1")]));
        feed(&mut w, 10_000);
        w.advance(200_000);
        rest(&mut w);
        w.enqueue(RequestBody::Items(vec![request("x", "ann", "2")]));
        let later = Command::Reschedule(target("a", "x"), Moment::At(T0 + 900_000));
        w.input(Input::Commands(vec![(Asker::Local(1), later)]));
        feed(&mut w, 10_000);
        w.advance(99_000);
        rest(&mut w);
        assert_eq!((w.out.len(), w.queue.len()), (1, 2), "the outcome may still come");
        assert_eq!(w.answer_to(1), Some(Answer::InFlight), "a command waits for less long");
        w.advance(1_000);
        rest(&mut w);
        assert!(w.queue.is_empty(), "both are safe in the store");
        check_sums(&w);
        let sent = w.delivered.len();
        settle_of(&mut w, "a", &outcome);
        w.run(60_000);
        let story: Vec<String> = ends(&w).0.into_iter().skip(sent).collect();
        assert_eq!(story.last().map(String::as_str), Some("2"), "{story:?}");
        check_sums(&w);
        w.store.check_empty();
    }
}

#[test]
fn what_replaces_many_items_in_flight_holds_no_prefetch() {
    for (prefetch, count) in [(10, 300), (500, 700)] {
        for outcome in [CONFIRMED, returned(), Outcome::Overdue, Outcome::Unknown] {
            let mut w = world(prefetch);
            let batch = |which: &str| -> Vec<NewItem> {
                (0..count).map(|n| request(&n.to_string(), "ann", &format!("{which}{n}"))).collect()
            };
            batch("old").into_iter().for_each(|item| {
                w.enqueue(RequestBody::Items(vec![item]));
            });
            w.deliver(usize::MAX);
            w.drain_jobs();
            let flying: usize = w.out.iter().map(|(_, batch)| batch.items.len()).sum();
            assert_eq!(flying, count, "all are in flight");
            batch("new").into_iter().for_each(|item| {
                w.enqueue(RequestBody::Items(vec![item]));
            });
            feed(&mut w, prefetch.into());
            others_go_on(&mut w, prefetch.into());
            check_sums(&w);
            let sent = w.delivered.len();
            settle_of(&mut w, "a", &outcome);
            w.run(400_000);
            assert!(w.queue.is_empty(), "{prefetch}: {} are not acked", w.queue.len());
            let story: Vec<String> =
                ends(&w).0.into_iter().skip(sent).filter(|name| name != "other").collect();
            let new = story.iter().filter(|name| name.starts_with("new")).count();
            let old = story.len() - new;
            assert_eq!(new, count, "{prefetch} {outcome:?}");
            assert_eq!(old, if outcome == CONFIRMED { count } else { 0 }, "{prefetch} {outcome:?}");
            check_sums(&w);
            w.store.check_empty();
        }
    }
}

#[test]
fn commands_about_what_is_in_flight_hold_no_prefetch() {
    for (prefetch, within) in [(10, 1), (500, 31), (10_000, 625)] {
        let mut w = world(prefetch);
        w.send(vec![request("x", "ann", "old")]);
        w.drain_jobs();
        for _ in 0..2_500 {
            w.enqueue(RequestBody::Command(Command::Cancel(target("a", "x")), None));
        }
        feed(&mut w, prefetch.into());
        others_go_on(&mut w, prefetch.into());
        assert_eq!(
            w.queue.len(),
            within,
            "{prefetch}: so many wait for the outcome, and the others are answered"
        );
        w.advance(5_000);
        rest(&mut w);
        assert!(w.queue.is_empty(), "{prefetch}: and no longer than five seconds");
        for _ in 0..200 {
            w.enqueue(RequestBody::Command(Command::CancelAll(of("ann")), None));
        }
        feed(&mut w, prefetch.into());
        others_go_on(&mut w, prefetch.into());
        assert!(w.queue.len() <= within, "{prefetch}: {} cancels of the customer wait", w.queue.len());
    }
}

#[test]
fn commands_of_this_process_hold_a_few_places_of_an_application() {
    let mut w = world(10_000);
    w.send(vec![request("x", "ann", "old")]);
    w.drain_jobs();
    let commands = (0..20).map(|n| (Asker::Local(n), Command::Cancel(target("a", "x")))).collect();
    w.input(Input::Commands(commands));
    rest(&mut w);
    let answered = (0..20).filter(|n| w.answer_to(*n) == Some(Answer::InFlight)).count();
    assert_eq!(answered, 12, "eight wait");
    w.settle(0, returned());
    rest(&mut w);
    assert_eq!(w.answer_to(0), Some(Answer::Cancelled { count: 1, in_flight: 0 }));
}

/// Many requests wait, and then the prefetch becomes lower than their number.
#[test]
fn what_waits_is_decided_when_the_prefetch_shrinks() {
    let mut w = world(10_000);
    w.send(vec![request("x", "ann", "0")]);
    w.drain_jobs();
    w.send((1..=100).map(|n| request("x", "ann", &n.to_string())).collect());
    w.drain_jobs();
    assert_eq!(w.queue.len(), 100, "they wait");
    w.input(Input::Prefetch(100));
    w.run(100);
    assert!(w.queue.len() <= 6, "{} wait", w.queue.len());
}

/// After a crash the item that replaced one in flight exists, and the replaced one does not.
#[test]
fn who_replaced_one_in_flight_survives_a_crash_alone() {
    let mut w = world(1);
    w.send(vec![request("x", "ann", "old")]);
    w.drain_jobs();
    w.send(vec![at(T0 + 400_000, request("x", "ann", "new"))]);
    rest(&mut w);
    assert!(w.queue.is_empty(), "it is written");
    w.crash();
    w.run(500_000);
    assert_eq!(ends(&w).0, ["proof", "new"]);
    w.store.check_empty();
}

/// The same without a store: the old request is acked, and the new one when it is sent.
#[test]
fn with_nothing_stored_what_replaces_one_in_flight_takes_its_place_too() {
    for outcome in [CONFIRMED, returned()] {
        let mut w = World::new(Settings { hold_max: Some(100_000), ..settings() });
        w.input(Input::Prefetch(4));
        w.send(vec![item("a", "", "proof")]);
        w.run(100);
        w.send(vec![request("x", "ann", "0")]);
        for n in 1..=20 {
            w.enqueue(RequestBody::Items(vec![request("x", "ann", &n.to_string())]));
        }
        feed(&mut w, 4);
        assert!(w.queue.iter().all(|pending| pending.tag.is_some()), "all have been taken");
        settle_of(&mut w, "a", &outcome);
        w.run(60_000);
        assert_eq!(ends(&w).0.last().map(String::as_str), Some("20"), "{outcome:?}");
        assert!(w.queue.is_empty());
        check_sums(&w);
    }
}

#[test]
fn a_cancel_takes_what_waits_for_the_end_of_what_it_replaces() {
    for (by_message, of_all) in [(true, true), (false, true), (true, false), (false, false)] {
        for outcome in [CONFIRMED, returned()] {
            let mut w = world(10_000);
            w.send(vec![request("x", "ann", "old")]);
            w.drain_jobs();
            w.send(vec![request("x", "ann", "new"), request("x", "ann", "newer")]);
            w.drain_jobs();
            assert_eq!(w.queue.len(), 2, "they wait");
            let cancel =
                if of_all { Command::CancelAll(of("ann")) } else { Command::Cancel(target("a", "x")) };
            if by_message {
                w.enqueue(RequestBody::Command(cancel, None));
                w.deliver(usize::MAX);
            } else {
                w.input(Input::Commands(vec![(Asker::Local(1), cancel)]));
            }
            rest(&mut w);
            settle_of(&mut w, "a", &outcome);
            let expected: &[&str] = if outcome == CONFIRMED { &["proof", "old"] } else { &["proof"] };
            ends_with(&mut w, expected);
            if !by_message {
                assert_eq!(w.answer_to(1), Some(Answer::Cancelled { count: 1, in_flight: 0 }));
            }
        }
    }
}

/// A cancel before a request does not cancel its item, although a cancel behind it makes the engine decide at once.
#[test]
fn a_cancel_before_a_request_that_waits_does_not_take_it() {
    let mut w = world(10_000);
    w.send(vec![request("x", "ann", "old")]);
    w.drain_jobs();
    w.enqueue(RequestBody::Command(Command::Cancel(target("a", "x")), None));
    w.deliver(usize::MAX);
    w.send(vec![request("x", "bob", "new")]);
    w.enqueue(RequestBody::Command(Command::CancelAll(of("bob")), None));
    w.send(vec![request("x", "bob", "newest")]);
    rest(&mut w);
    w.advance(6_000);
    settle_of(&mut w, "a", &returned());
    ends_with(&mut w, &["proof", "newest"]);
}

/// An item in the store alone is looked up there once, and not again for each request that replaces it.
#[test]
fn requests_that_replace_one_far_item_share_a_look() {
    let mut w = world(10_000);
    let far = |n: u64| {
        let content = item("a", "ann", &n.to_string());
        vec![with_id("x", DuplicateRule::Replace, at(T0 + 400_000 + n % 7, content))]
    };
    w.send(far(0));
    rest(&mut w);
    let count = 3_000;
    for n in 1..=count {
        w.enqueue(RequestBody::Items(far(n)));
    }
    w.deliver(usize::MAX);
    let mut looks = 0;
    while w.engine.is_behind() || !w.jobs.is_empty() {
        looks += usize::from(matches!(w.jobs.front(), Some(Job::Load(Load::Find(_), _))));
        if !w.do_job() {
            w.input(Input::Tick);
        }
    }
    assert!(w.queue.is_empty(), "{} are not acked", w.queue.len());
    assert!(looks <= 8, "{looks} looks for {count} requests");
    assert_eq!(w.engine.counters().replaced, count);
    w.run(500_000);
    assert_eq!(ends(&w).0, ["proof", "3000"]);
    check_sums(&w);
    w.store.check_empty();
}

/// Only the broker keeps an item that is published at once. If its confirm does not come and the broker redelivers the
/// request, that is the item in flight: it is written, acked, and not sent a second time.
#[test]
fn what_is_in_flight_and_comes_again_is_written_and_not_sent_twice() {
    for outcome in [CONFIRMED, returned()] {
        let mut w = world(1);
        w.send(vec![request("x", "", "x")]);
        assert_eq!((w.out.len(), w.store.items.len()), (1, 0), "it is out, and not written");
        w.lose_ingest();
        feed(&mut w, 1);
        assert!(w.queue.is_empty(), "it is acked");
        assert_eq!((w.out.len(), w.store.items.len()), (1, 1), "and out once");
        settle_of(&mut w, "a", &outcome);
        ends_with(&mut w, &["proof", "x"]);
    }
}
