//! A graceful stop: what it waits for, and what it does not.

use super::world::*;
use tidegate_types::event::*;
use tidegate_types::*;

/// A channel was closed because of batches of an application that has been paused since. They wait for the resume; a
/// graceful stop does not.
#[test]
fn a_stop_does_not_wait_for_what_a_paused_application_may_send_alone() {
    let mut w = World::new(settings());
    let each = |names: [&str; 2]| names.map(|name| item(name, "", "1")).to_vec();
    w.send(each(["a", "b"]));
    w.run(100);
    w.send([each(["a", "b"]), each(["a", "b"])].concat());
    w.drain_jobs();
    w.ask(Command::Pause("a".into(), None));
    assert_eq!(w.out.len(), 4);
    while let Some(nth) = w.out.iter().position(|(_, batch)| !batch.alone) {
        w.settle(nth, Outcome::Refused("406 PRECONDITION_FAILED".into()));
    }
    w.input(Input::Drain);
    w.drain_jobs();
    assert!(!w.engine.is_idle(), "those of the other go out");
    w.run(1_000);
    assert!(w.engine.is_idle(), "{}", w.engine.describe());
    assert_eq!(w.delivered.len(), 2 + 2);
    w.ask(Command::Resume("a".into()));
    w.run(1_000);
    assert_eq!(w.delivered.len(), 2 + 4);
}

/// A safe request waits for the ack of an earlier one that is not, since one ack covers many. Without its own ack it
/// would come again after the next start, as another item.
#[test]
fn a_stop_waits_for_acks_that_wait_for_others() {
    let mut w = World::new(settings());
    w.acks_out = Some(Default::default());
    let named = |at| with_id("x", DuplicateRule::Replace, NewItem { at: Some(at), ..item("a", "", "x") });
    w.send(vec![named(T0)]);
    w.drain_jobs();
    assert_eq!(w.out.len(), 1);
    // The end of the attempt decides on it.
    w.send(vec![named(T0 + 90_000), at(T0 + 60_000, item("a", "", "behind it"))]);
    w.drain_jobs();
    w.input(Input::EgressLost);
    w.input(Input::Drain);
    w.drain_jobs();
    let acked = |w: &World| w.acks.iter().any(|ack| ack.delivery.tag == 3 && !ack.multiple);
    assert!(!w.engine.is_idle() && !acked(&w), "{:?}", w.acks);
    w.advance(100);
    w.drain_jobs();
    assert!(acked(&w), "{:?}", w.acks);
}

/// The broker takes no more messages, and confirms those that it has.
#[test]
fn a_stop_waits_for_confirms_while_the_connection_is_blocked() {
    let mut w = World::new(settings());
    w.send(vec![at(T0, item("a", "", "x"))]);
    w.drain_jobs();
    w.input(Input::EgressBlocked(true));
    w.input(Input::Drain);
    w.drain_jobs();
    assert!(!w.engine.is_idle(), "one is in flight");
    w.confirm_all();
    w.drain_jobs();
    assert!(w.engine.is_idle(), "{}", w.engine.describe());
}

/// Due items may be in the store alone.
#[test]
fn a_stop_waits_for_what_is_being_read() {
    let mut w = World::new(settings());
    w.send(vec![at(T0 + 90_000, item("a", "", "x"))]);
    w.drain_jobs();
    w.now = Now { wall: w.now.wall + 90_000, mono: w.now.mono + 90_000 };
    w.input(Input::Drain);
    assert!(w.jobs.iter().any(|job| matches!(job, Job::Load(..))) && !w.engine.is_idle());
    w.run(10);
    assert_eq!(w.story(), [(90_000, names(&["x"]))]);
    assert!(w.engine.is_idle(), "{}", w.engine.describe());
}
