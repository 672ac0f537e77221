//! The state that is reported for an application counts each of its items once.

use super::world::*;
use tidegate_types::*;

/// Due items of an application that cannot be delivered to are parked, and all others wait.
#[test]
fn what_is_parked_is_neither_due_nor_waits() {
    let mut w = World::new(with(|app| app.window = 5_000));
    let due = (0..3).map(|n| at(T0, item("a", "", &n.to_string())));
    let later = (0..4).map(|n| item("a", &format!("c{n}"), "later"));
    w.send(due.chain(later).collect());
    w.drain_jobs();
    let told = |w: &World| {
        let state = w.engine.snapshot(w.now);
        let app = state.applications.into_iter().next().expect("one application");
        (app.waiting, app.due, app.in_flight, app.parked, app.total)
    };
    assert_eq!(told(&w), (4, 2, 1, 0, 7), "one is out, alone, the others wait for it");
    w.settle(0, Outcome::Returned("312 NO_ROUTE".into()));
    w.drain_jobs();
    assert_eq!(told(&w), (4, 0, 0, 3, 7));
    w.advance(5_000);
    w.drain_jobs();
    let (waiting, due, in_flight, parked, total) = told(&w);
    assert_eq!((waiting + due, in_flight + parked, total), (0, 7, 7));
}
