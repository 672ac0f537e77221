//! Windows stay whole: their members lie together, and nothing of another gets in between.

use super::world::*;
use crate::engine::types::*;
use crate::engine::Input;

/// A window longer than memory looks ahead, reads of one row, and memory for two.
fn far_windows(span: u64) -> World {
    let thresholds = Thresholds { chunk: 1, read: 1, span, ..Thresholds::default() };
    let budget = Budget { rows: 2, contents: 1 << 20, filters: 1 << 16 };
    World::new(Settings { thresholds, budget, ..with(|app| app.window = 60_000) })
}

fn left(w: &World) -> Vec<u64> {
    w.delivered.iter().flat_map(|(_, batch)| batch.items.iter().map(|item| item.seq)).collect()
}

#[test]
fn what_is_due_when_its_window_ends_leaves_amid_the_members() {
    let mut w = far_windows(u64::MAX);
    let member = |body| item("a", "ann", body);
    w.send(vec![member("1"), at(T0 + 60_000, member("2")), member("3"), item("a", "bob", "4"), member("5")]);
    w.drain_jobs();
    assert_eq!(w.engine.memory_bytes().0, 0, "all are far");
    w.run(61_000);
    let anns = w.delivered.iter().filter(|(_, batch)| batch.customer.as_deref() == Some("ann"));
    let anns: Vec<u64> = anns.flat_map(|(_, batch)| batch.items.iter().map(|item| item.seq)).collect();
    assert_eq!(anns, [1, 2, 3, 5]);
}

#[test]
fn a_window_closes_before_its_numbers_are_too_far_apart() {
    let mut w = far_windows(3);
    w.send((0..6).map(|n| item("a", if n == 1 { "bob" } else { "ann" }, "x")).collect());
    w.drain_jobs();
    w.run(1);
    assert_eq!(left(&w), [1, 3, 4]);
    assert!(w.delivered.iter().all(|(_, batch)| batch.closed_by == ClosedBy::Count));
    w.run(60_000);
    assert_eq!(left(&w), [1, 3, 4, 2, 5, 6]);
}

/// A window closed by count, and the next one of its customer has the same planned end: a restart keeps them apart.
#[test]
fn two_windows_of_one_customer_and_end_stay_two_over_a_restart() {
    let mut w = World::new(with(|app| (app.window, app.align, app.max_items) = (60_000, true, 2)));
    w.input(Input::EgressBlocked(true));
    w.send((0..3).map(|_| item("a", "ann", "x")).collect());
    w.drain_jobs();
    w.crash();
    w.run(1_000);
    assert_eq!(left(&w), [1, 2]);
    w.run(60_000);
    assert_eq!(left(&w), [1, 2, 3]);
}
