//! When outcomes and requests may come somewhat later: nothing waits for them.

use super::world::*;
use tidegate_types::event::*;
use tidegate_types::*;

/// Excluded: patience at each of the things that wait for an outcome or for room; none while items are in flight that
/// nothing waits for.
#[test]
fn whoever_waits_for_an_outcome_is_impatient() {
    let mut w = World::new(Settings { max_in_flight: 4, ..settings() });
    for name in ["it may have one batch", "it may have two"] {
        w.send(vec![item("a", "", name)]);
        w.run(100);
    }
    assert!(!w.engine.waits_for_events(), "nothing is there");
    w.send(vec![at(T0 + 60_000, item("a", "", "far"))]);
    w.drain_jobs();
    assert!(!w.engine.waits_for_events(), "something is far");
    w.send(["1", "2", "3"].map(|name| item("a", "", name)).to_vec());
    w.drain_jobs();
    assert_eq!((w.out.len(), w.engine.waits_for_events()), (3, false), "all are in flight");
    w.send(vec![item("a", "", "4")]);
    w.drain_jobs();
    assert_eq!((w.out.len(), w.engine.waits_for_events()), (3, true), "its share of the slots is taken");
    w.run(100);
    assert!(!w.engine.waits_for_events());
    let named = |at| with_id("x", DuplicateRule::Replace, NewItem { at: Some(at), ..item("a", "", "x") });
    w.send(vec![named(T0)]);
    w.drain_jobs();
    assert!(!w.engine.waits_for_events());
    w.send(vec![named(T0 + 90_000)]);
    w.drain_jobs();
    assert!(w.engine.waits_for_events(), "the outcome of the first one decides on the second");
    w.run(100);
    assert!(!w.engine.waits_for_events());
    w.input(Input::Drain);
    assert!(w.engine.waits_for_events(), "a stop waits for all");
}

/// Excluded: a consumer that waits for acks, which come with an outcome that may wait.
#[test]
fn where_half_of_the_prefetch_is_unacked_outcomes_are_awaited() {
    let mut w = World::new(settings());
    w.send(vec![item("a", "", "proves the queue")]);
    w.run(100);
    w.tell_prefetch(Some(4));
    w.send(vec![item("a", "", "1")]);
    assert!(!w.engine.waits_for_events(), "one of four is not safe yet");
    w.send(vec![item("a", "", "2")]);
    assert!(w.engine.waits_for_events(), "two of four are not");
    w.run(100);
    assert!(!w.engine.waits_for_events(), "all are acked");
    w.tell_prefetch(Some(1));
    assert!(w.engine.waits_for_events(), "each counts");
}

/// Each line: what waits for its next try, or for memory, because of what is at the broker.
/// Excluded: patience while suspects are tried one after the other, each of them behind the outcome of another; or while
/// memory is full of what is in flight.
#[test]
fn what_waits_for_another_outcome_is_impatient() {
    let mut w = World::new(settings());
    for count in [1, 2, 4] {
        w.send((0..count).map(|_| item("a", "", "x")).collect());
        w.run(100);
    }
    w.send((0..4).map(|_| item("a", "", "x")).collect());
    w.drain_jobs();
    assert_eq!((w.out.len(), w.engine.waits_for_events()), (4, false));
    while let Some(nth) = w.out.iter().position(|(_, batch)| !batch.alone) {
        w.settle(nth, Outcome::Refused("406 PRECONDITION_FAILED".into()));
    }
    w.drain_jobs();
    assert_eq!((w.out.len(), w.engine.waits_for_events()), (1, true), "three wait for the first");
    w.run(1_000);
    assert!(!w.engine.waits_for_events());

    let budget = Budget { rows: 2, contents: 1 << 20, filters: 1 << 16 };
    let mut w = World::new(Settings { budget, ..settings() });
    for count in [1, 2, 2] {
        w.send((0..count).map(|_| item("a", "", "x")).collect());
        w.drain_jobs();
        assert_eq!((w.out.len(), w.engine.waits_for_events()), (count, count == 2), "{count} of two rows");
        w.run(100);
    }
}
