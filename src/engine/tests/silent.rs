//! Many queues that accept batches and confirm none: no other application is late because of them, each is tried
//! again seldom, and what is in flight to them is bounded. Nor does a paused queue delay others.
//!
//! Judges promise 6.

use super::world::*;
use tidegate_types::event::*;
use tidegate_types::*;

/// Bound on the lateness of every other application, ms.
const LATE_MS: u64 = 1_000;

fn many(max_in_flight: usize) -> Settings {
    Settings { max_in_flight, max_in_flight_bytes: 32 << 20, max_applications: 10_000, ..settings() }
}

fn is_silent(batch: &Batch) -> bool {
    batch.application.starts_with("mute")
}

/// Runs the world for `ms`, in which silent applications confirm nothing.
fn play(w: &mut World, ms: u64) {
    let end = w.now.mono + ms;
    for _ in 0..200_000 {
        w.drain_jobs();
        while let Some(nth) = w.out.iter().position(|(_, batch)| !is_silent(batch)) {
            w.settle(nth, CONFIRMED);
        }
        w.settle_given_up();
        w.drain_jobs();
        if w.out.iter().any(|(_, batch)| !is_silent(batch)) || !w.given_up.is_empty() {
            continue;
        }
        let left = end - w.now.mono;
        match w.wait() {
            Some(wait) if wait <= left => w.advance(wait),
            _ => return w.advance(left),
        }
    }
    panic!("the engine does not come to rest: {:?}", w.engine.next_deadline());
}

fn mute(numbers: std::ops::Range<usize>) -> impl Iterator<Item = NewItem> {
    numbers.map(|n| item(&format!("mute{n}"), "", "1"))
}

/// Sends one item to each of some applications. Returns how late the last of them arrives, ms.
fn lateness(w: &mut World, names: &[&str], wait: u64) -> u64 {
    let (before, sent) = (w.delivered.len(), w.now.wall);
    w.send(names.iter().map(|name| item(name, "", "1")).collect());
    play(w, wait);
    let arrived = &w.delivered[before..];
    for name in names {
        assert!(arrived.iter().any(|(_, batch)| &*batch.application == *name), "{name} waits for {wait} ms");
    }
    arrived.iter().map(|(now, _)| now.wall - sent).max().unwrap_or(0)
}

/// The first items of many silent queues arrive together with that of a healthy one. Then one application is busy,
/// one rests for longer than a confirm counts, and others are new.
#[test]
fn nobody_is_late_for_any_number_of_silent_queues() {
    for count in [8, 16, 40, 200, 1_000] {
        let mut w = World::new(many(1_000));
        assert!(lateness(&mut w, &["busy", "rests"], 100) <= 1);
        let began = w.now.wall;
        w.send(mute(0..count).chain([item("first", "", "1")]).collect());
        let late = lateness(&mut w, &["busy"], 2_000);
        assert!(late <= LATE_MS, "{late} ms with {count} at once");
        if count > 250 {
            // That many are tried one after another, once.
            play(&mut w, 5_000);
        }
        let first = w.delivered.iter().find(|(_, batch)| &*batch.application == "first");
        let late = first.map(|(now, _)| now.wall - began).expect("the new one beside them");
        assert!(
            late <= if count > 250 { 5_000 } else { LATE_MS },
            "{late} ms for one new beside {count} new"
        );
        for round in 0..40 {
            let new = format!("new{round}");
            let late = lateness(&mut w, &["rests", &new, "busy"], 100);
            assert!(late <= LATE_MS, "{late} ms beside {count} silent ones, in round {round}");
            for _ in 0..59 {
                let late = lateness(&mut w, &["busy"], 100);
                assert!(late <= LATE_MS, "{late} ms for a busy one beside {count}");
            }
        }
        let out = w.out.len();
        assert!(
            out <= ALONE_CHANNELS && out >= count.min(ALONE_CHANNELS * 3 / 4),
            "{out} of {count} are out"
        );
    }
}

/// Where all of them have room, none is sent its batch twice.
#[test]
fn what_is_silent_is_not_sent_again_without_need() {
    let mut w = World::new(many(1_000));
    w.send(mute(0..90).collect());
    play(&mut w, 600_000);
    assert_eq!(w.out.len(), 90);
    assert!(w.out.iter().all(|(_, batch)| batch.attempt == 1 && batch.alone));
}

/// The publisher has few slots, and the silent queues have large batches: they keep neither slots nor bytes for long.
#[test]
fn neither_slots_nor_bytes_are_theirs_for_long() {
    for max_in_flight in [1, 2, 3, 10] {
        let mut w = World::new(many(max_in_flight));
        w.send(mute(0..40).collect());
        play(&mut w, 60_000);
        // With one slot, one at a time.
        let most = if max_in_flight < 4 { 60_000 } else { LATE_MS };
        for _ in 0..20 {
            let late = lateness(&mut w, &["rests"], 7_000.max(most));
            assert!(late <= most, "{late} ms with {max_in_flight} slots");
        }
    }
    let large = |n: usize| {
        let body = vec![b'x'; 1_000_000];
        let content = std::sync::Arc::new(Content { properties: vec![], body, json: false });
        NewItem { content, weight: 1_000_000, ..item(&format!("mute{n}"), "", "1") }
    };
    let mut w = World::new(many(1_000));
    w.send((0..40).map(large).collect());
    play(&mut w, 60_000);
    for _ in 0..20 {
        let late = lateness(&mut w, &["rests"], 7_000);
        assert!(late <= LATE_MS, "{late} ms beside large batches");
    }
}

/// A queue has confirmed all so far, and falls silent with few large batches in flight.
/// Excluded: one that takes all the bytes that may be in flight.
#[test]
fn one_that_falls_silent_leaves_room_for_others_however_large_its_batches_are() {
    let body = |size: usize| NewItem {
        content: std::sync::Arc::new(Content { properties: vec![], body: vec![b'x'; size], json: false }),
        weight: size as u32,
        ..item("mute", "", "1")
    };
    for size in [2_000_000, 8_000_000, 20_000_000, 40_000_000] {
        let mut w = World::new(many(1_000));
        assert!(lateness(&mut w, &["rests", "busy"], 100) <= 1);
        for _ in 0..6 {
            w.send((0..20).map(|_| body(100)).collect());
            w.run(10);
        }
        w.send((0..30).map(|_| body(size)).collect());
        for round in 0..20 {
            let new = format!("new{round}");
            let late = lateness(&mut w, &["rests", "busy", &new], 6_000);
            assert!(late <= LATE_MS, "{late} ms beside batches of {size} bytes");
        }
        assert!(w.out.iter().all(|(_, batch)| is_silent(batch)) && !w.out.is_empty());
    }
}

/// The channel that all share is closed because of one message: each batch in flight is tried alone, and the silent
/// queues among them delay no other.
#[test]
fn suspects_that_are_silent_keep_no_other_waiting() {
    for (outcome, silent) in [
        (Outcome::Overdue, 40),
        (Outcome::Overdue, 120),
        (Outcome::Refused("406 PRECONDITION_FAILED".into()), 40),
        (Outcome::Refused("406 PRECONDITION_FAILED".into()), 120),
    ] {
        let mut w = World::new(many(1_000));
        let all = || mute(0..silent).chain((0..20).map(|n| item(&format!("good{n}"), "", "1")));
        // First, all of them confirm.
        for _ in 0..3 {
            w.send(all().collect());
            w.run(10);
        }
        let delivered = w.delivered.len();
        w.send(all().chain(all()).collect());
        w.drain_jobs();
        while let Some(nth) = w.out.iter().position(|(_, batch)| !batch.alone) {
            w.settle(nth, outcome.clone());
        }
        let since = w.now.wall;
        play(&mut w, 20_000);
        let good = &w.delivered[delivered..];
        assert_eq!(good.len(), 40, "{outcome:?} with {silent}");
        let late = good.iter().map(|(now, _)| now.wall - since).max().unwrap_or(0);
        assert!(late <= LATE_MS, "{late} ms: {outcome:?} with {silent}");
    }
}

/// Queues without any earlier result hold all channels: a queue that has failed before is tried all the same.
#[test]
fn one_that_has_failed_finds_a_channel_behind_those_that_are_silent() {
    let mut w = World::new(many(1_000));
    w.send(vec![item("back", "", "1")]);
    w.drain_jobs();
    w.settle(0, Outcome::Returned("312 NO_ROUTE".into()));
    w.send(mute(0..ALONE_CHANNELS).collect());
    play(&mut w, 10_000);
    assert!(w.delivered.iter().any(|(_, batch)| &*batch.application == "back"));
}

/// Where the broker is slow for all queues, no queue counts as silent, though confirms take longer than half a
/// second.
#[test]
fn a_slow_broker_is_not_a_silent_one() {
    let mut w = World::new(many(1_000));
    let settle_old = |w: &mut World| {
        while w.out.first().is_some_and(|(since, _)| since + 700 <= w.now.mono) {
            w.settle(0, CONFIRMED);
        }
        w.settle_given_up();
        w.drain_jobs();
    };
    for round in 0..30 {
        let count = if round < 10 { 20 } else { 400 };
        w.send((0..count).map(|n| item(&format!("a{n}"), "", "1")).collect());
        let unknown = w.engine.counters().unknown;
        for _ in 0..1_000 {
            settle_old(&mut w);
            w.advance(10);
        }
        assert_eq!(w.engine.counters().unknown, unknown, "in round {round}");
    }
}

/// Time during which the broker took nothing counts as silence of no queue.
#[test]
fn a_blocked_connection_makes_nobody_late() {
    let mut w = World::new(many(1_000));
    w.send(mute(0..ALONE_CHANNELS + 10).collect());
    w.drain_jobs();
    w.input(Input::EgressBlocked(true));
    w.advance(60_000);
    w.drain_jobs();
    assert!(w.given_up.is_empty());
    w.input(Input::EgressBlocked(false));
    assert!(w.given_up.is_empty(), "their confirms are on their way");
    w.advance(400);
    assert!(w.given_up.is_empty());
    w.advance(200);
    assert_eq!(w.given_up.len(), 10, "as many as others need");
}

/// An application whose batches were in flight when the connection was lost has to send all of them again, one by
/// one, and hangs.
#[test]
fn what_is_to_be_sent_again_keeps_nobody_else_out_of_memory() {
    let thresholds = Thresholds { few: 1, ..Thresholds::default() };
    let mut w =
        World::new(Settings { budget: Budget { rows: 10, ..settings().budget }, thresholds, ..settings() });
    // Each confirm allows more batches in flight.
    w.send((0..60).map(|_| item("hangs", "", "first")).collect());
    w.run(100);
    w.delivered.clear();
    for n in 0..40 {
        w.send(vec![item("hangs", "", &n.to_string())]);
        w.drain_jobs();
    }
    w.send((0..3).map(|n| at(T0 + 60_000, item("sound", "", &format!("sound {n}")))).collect());
    w.drain_jobs();
    // More than the bound of memory, and more than reads may add to it.
    assert!(w.out.len() > 14, "{} are out", w.out.len());
    lose_egress(&mut w);
    // Its last confirm is too old to count.
    w.advance(30_000);
    w.input(Input::EgressReady);
    w.drain_jobs();
    assert_eq!(w.out.len(), 1, "one is tried alone, and never confirmed");
    w.advance(T0 + 60_000 - w.now.wall);
    for _ in 0..10 {
        w.drain_jobs();
        while let Some(nth) = w.out.iter().position(|(_, batch)| &*batch.application == "sound") {
            w.settle(nth, CONFIRMED);
        }
    }
    assert_eq!(ends(&w).0, ["sound 0", "sound 1", "sound 2"]);
    assert_eq!(w.now.wall, T0 + 60_000);
}

/// The publisher cannot give up a batch that it does not have: the channel would stay taken as long as no confirm
/// comes.
#[test]
fn the_channel_of_a_batch_that_is_still_fetched_is_given_up_once_the_publisher_has_it() {
    let budget = Budget { contents: 0, ..settings().budget };
    let mut w = World::new(Settings { budget, max_in_flight: 2, ..settings() });
    w.send(vec![at(T0 + 1_000, item("silent", "", "s"))]);
    w.drain_jobs();
    w.advance(1_000);
    assert_eq!((w.out.len(), w.jobs.len()), (0, 1), "its payload is fetched");
    w.send(vec![item("other", "", "o")]);
    w.advance(600);
    assert!(w.given_up.is_empty());
    w.drain_jobs();
    assert_eq!(w.out.iter().map(|(_, batch)| &*batch.application).collect::<Vec<_>>(), ["silent"]);
    w.advance(600);
    assert_eq!(w.given_up, [w.out[0].1.number]);
    w.settle_given_up();
    w.run(100);
    assert!(ends(&w).0.contains(&"o".to_string()), "{:?}", ends(&w));
}

/// Silent queues hold all channels. For each queue that waits one of them gives its channel up, failing ones first,
/// and the next only after the publisher has settled it.
#[test]
fn as_many_channels_are_given_up_as_are_wanted_and_first_of_those_that_fail() {
    let mut w = World::new(Settings { max_in_flight: 4, ..settings() });
    w.send(vec![item("mute new", "", "1")]);
    w.drain_jobs();
    w.send(vec![item("mute failing", "", "1")]);
    w.drain_jobs();
    let failing = |w: &World| w.out.iter().position(|(_, batch)| &*batch.application == "mute failing");
    let nth = failing(&w).expect("it is out");
    w.settle(nth, Outcome::Returned("312 NO_ROUTE".into()));
    w.drain_jobs();
    w.ask(Command::Retry("mute failing".into()));
    w.drain_jobs();
    let number = w.out[failing(&w).expect("it is tried again")].1.number;
    w.send(vec![item("other", "", "1")]);
    w.drain_jobs();
    w.advance(3_000);
    assert_eq!(w.given_up, [number], "that of the one that has failed");
    w.advance(3_000);
    assert_eq!(w.given_up, [number], "one is wanted");
}
