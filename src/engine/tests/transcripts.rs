//! Transcripts: each input with exactly its effects.

use super::check::Script;
use super::world::*;
use tidegate_types::event::*;
use tidegate_types::*;

fn of(customer: &str) -> CustomerOf {
    CustomerOf { application: "a".into(), customer: customer.into() }
}

/// Judges promise 1.
#[test]
fn a_request_is_written_then_acked_then_published_when_its_window_ends_then_deleted() {
    let mut s = Script::new(settings());
    s.requests(vec![item("a", "ann", "1")], &["put 1 due 3000"]);
    s.stored(&["ack up to 1"]);
    s.after(2_999, &[]);
    s.after(1, &["publish a/ann [1] due 3000 by time attempt 1 alone"]);
    s.stored(&[]);
    s.settled(0, CONFIRMED, &[]);
    s.after(99, &[]);
    s.after(1, &["delete 1"]);
    s.stored(&[]);
    assert!(s.w.engine.is_idle());
}

/// Judges promise 4.
#[test]
fn an_own_time_is_kept_to_the_millisecond() {
    let mut s = Script::new(settings());
    s.requests(vec![at(T0 + 500, item("a", "", "1"))], &["put 1 due 500"]);
    s.stored(&["ack up to 1"]);
    s.after(499, &[]);
    s.after(1, &["publish a [1] due 500 by time attempt 1 alone"]);
}

/// Judges promise 14.
#[test]
fn a_given_id_is_remembered_in_the_commit_that_deletes_it() {
    let mut s = Script::new(settings());
    let new = with_id("x", DuplicateRule::Keep, at(T0 + 10, item("a", "", "1")));
    s.requests(vec![new], &["put 1 due 10"]);
    s.stored(&["ack up to 1"]);
    s.after(10, &["publish a [1] due 10 by time attempt 1 alone"]);
    s.settled(0, CONFIRMED, &[]);
    s.after(100, &["remember sent", "delete 1"]);
}

#[test]
fn a_dead_item_moves_to_the_dead_letters_and_its_letter_follows() {
    let mut s = Script::new(settings());
    let new = NewItem { expiry: Some(T0 + 50), ..at(T0 + 100, item("a", "", "1")) };
    s.requests(vec![new], &["put 1 due 100"]);
    s.stored(&["ack up to 1"]);
    s.after(
        100,
        &["move 1 due 100 attempts 0 dead expired", "letter expired [1] due 100 by time attempt 1 alone"],
    );
    s.stored(&[]);
    s.settled(0, CONFIRMED, &[]);
    s.after(100, &["delete 1"]);
}

/// Judges promise 14.
#[test]
fn a_replacement_and_the_end_of_what_it_replaces_are_one_commit() {
    let mut s = Script::new(settings());
    let new = |payload, due| with_id("x", DuplicateRule::Replace, at(T0 + due, item("a", "", payload)));
    s.requests(vec![new("1", 5_000)], &["put 1 due 5000"]);
    s.stored(&["ack up to 1"]);
    s.requests(vec![new("2", 6_000)], &["delete 1", "put 2 due 6000"]);
    s.stored(&["ack up to 2"]);
}

/// Judges promise 14.
#[test]
fn a_dropped_duplicate_is_acked_and_leaves_no_other_trace() {
    let mut s = Script::new(settings());
    let new = |payload| with_id("x", DuplicateRule::Keep, at(T0 + 5_000, item("a", "", payload)));
    s.requests(vec![new("1")], &["put 1 due 5000"]);
    s.stored(&["ack up to 1"]);
    s.requests(vec![new("2")], &["ack up to 2"]);
    s.stored(&[]);
}

/// Judges promise 15.
#[test]
fn a_cancel_is_answered_once_it_is_durable() {
    let mut s = Script::new(settings());
    let new = with_id("x", DuplicateRule::Keep, at(T0 + 5_000, item("a", "", "1")));
    s.requests(vec![new], &["put 1 due 5000"]);
    s.stored(&["ack up to 1"]);
    s.command(7, Command::Cancel(target("a", "x")), &["remember cancelled", "delete 1"]);
    s.stored(&["answer 7: cancelled 1"]);
    s.command(8, Command::Lookup(target("a", "x")), &[]);
    s.stored(&["answer 8: cancelled"]);
}

/// Judges promise 10.
#[test]
fn a_flush_closes_the_window_and_what_is_far_is_due() {
    let mut s = Script::new(with(|app| app.window = 3_600_000));
    s.requests(
        vec![item("a", "ann", "1"), item("a", "ann", "2")],
        &["put 1 due 3600000", "put 2 due 3600000", "window ann of 2 until 3600000"],
    );
    s.stored(&["ack up to 2"]);
    s.w.now.wall += 1_000;
    s.w.now.mono += 1_000;
    s.command(7, Command::Flush(of("ann")), &["no window ann", "closed 1's at 1000 by flush"]);
    s.stored(&["answer 7: flushed 2", "publish a/ann [1 2] due 1000 by flush attempt 1 alone"]);
}

/// Judges promise 6.
#[test]
fn a_returned_batch_parks_its_application_and_is_tried_again_with_its_attempts() {
    let mut s = Script::new(with(|app| app.retry = Retry { min: 1_000, max: 1_000, attempts: 2 }));
    s.requests(vec![at(T0 + 10, item("a", "", "1"))], &["put 1 due 10"]);
    s.stored(&["ack up to 1"]);
    s.after(10, &["publish a [1] due 10 by time attempt 1 alone"]);
    s.w.settle(0, Outcome::Returned("NO_ROUTE".into()));
    s.w.drain_jobs();
    s.w.log = Some(vec![]);
    s.w.advance(1_000);
    s.w.drain_jobs();
    let batch = s.w.first_out().expect("the next probe");
    assert_eq!((batch.items[0].attempts, batch.alone, batch.attempt), (1, true, 2));
    s.w.log = Some(vec![]);
    s.w.settle(0, Outcome::Returned("NO_ROUTE".into()));
    s.w.drain_jobs();
    let letter = s.w.first_out().expect("the dead letter");
    assert_eq!(letter.dead.as_ref().map(|dead| dead.reason), Some(Reason::Attempts));
}

/// Judges promise 13.
#[test]
fn nothing_waits_for_an_unsafe_delivery_before_it_longer_than_100_ms() {
    let mut s = Script::new(settings());
    let new = |payload| with_id("x", DuplicateRule::Replace, item("a", "", payload));
    s.requests(vec![new("1")], &["put 1 due 0", "publish a [1] due 0 by time attempt 1 alone"]);
    s.stored(&["ack up to 1"]);
    // It waits for the outcome of the item in flight.
    s.requests(vec![new("2")], &[]);
    s.requests(vec![at(T0 + 9_000, item("b", "", "3"))], &["put 3 due 9000"]);
    s.stored(&[]);
    s.w.now.wall += 100;
    s.w.now.mono += 100;
    s.check(Input::Tick, &["ack 3 alone"]);
}

/// Judges promise 15.
#[test]
fn a_pause_is_durable_before_it_is_answered_and_holds_everything_back() {
    let mut s = Script::new(settings());
    s.command(7, Command::Pause("a".into(), None), &[]);
    s.stored(&["answer 7: paused, changed true"]);
    s.requests(vec![at(T0 + 10, item("a", "", "1"))], &["put 1 due 10"]);
    s.stored(&["ack up to 1"]);
    s.w.advance(10);
    s.stored(&[]);
    s.command(8, Command::Resume("a".into()), &[]);
    s.w.drain_jobs();
    assert_eq!(s.w.first_out().map(|batch| name(&batch.items[0])), Some("1".into()));
}
