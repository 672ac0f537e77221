//! What is safe only with commands that came before it.
//!
//! Judges promise 3.

use super::world::*;
use crate::repeats::Repeats;
use tidegate_types::*;
use DuplicateRule::Keep;

/// Excluded: a request that is freed while an earlier command could still take it, or held by a later one; one that
/// has nothing to do with the command; a cancel that is held by another one.
#[test]
fn what_comes_behind_commands_is_freed_by_the_last_of_them() {
    let of = |customer: &str| CustomerOf { application: "a".into(), customer: customer.into() };
    let mut repeats = Repeats::default();
    assert_eq!(repeats.requests(1, &[item("a", "ann", "")]), 0, "there is no command");
    assert_eq!(repeats.command(2, &Command::CancelAll(of("ann"))), 0);
    assert_eq!(repeats.command(3, &Command::Cancel(target("a", "x"))), 0);
    assert_eq!(repeats.command(4, &Command::CancelAll(of("ann"))), 0, "no order among cancels");
    assert_eq!(repeats.requests(5, &[item("a", "ann", ""), item("a", "ann", "")]), 1);
    assert_eq!(repeats.requests(6, &[with_id("x", Keep, item("a", "ann", ""))]), 2);
    assert_eq!(repeats.requests(7, &[with_id("y", Keep, item("a", "ben", "")), item("b", "ann", "")]), 0);
    assert_eq!(repeats.command(8, &Command::CancelAll(of("ann"))), 0);
    assert_eq!(repeats.requests(9, &[item("a", "ann", "")]), 1);
    assert_eq!(repeats.ended(7), [0; 0], "no command");
    assert_eq!(repeats.ended(4), [0; 0], "the first may still come again");
    assert_eq!(repeats.ended(3), [6]);
    assert_eq!(repeats.ended(2), [5, 6], "what came before the last");
    assert_eq!(repeats.ended(8), [9]);
    assert_eq!(repeats.requests(10, &[with_id("x", Keep, item("a", "ann", ""))]), 0, "none is left");
}

#[test]
fn what_undoes_a_command_comes_after_it() {
    let mut repeats = Repeats::default();
    assert_eq!(repeats.command(1, &Command::Pause("a".into(), None)), 0);
    assert_eq!(repeats.command(2, &Command::Resume("a".into())), 1);
    assert_eq!(repeats.command(3, &Command::Resume("b".into())), 0);
    assert_eq!(repeats.command(4, &Command::Pause("a".into(), None)), 1);
    assert_eq!(repeats.requests(5, &[item("a", "ann", "")]), 0);
    assert_eq!(repeats.ended(1), [2]);
    assert_eq!(repeats.ended(2), [4]);
    assert_eq!((repeats.ended(3), repeats.ended(4)), (vec![], vec![]));
    assert_eq!(repeats.command(6, &Command::Resume("a".into())), 0, "none is left");
}
