//! Answers that come too late, and limits at which no item can be given up.

use super::world::*;
use tidegate_types::event::*;
use tidegate_types::*;

/// The store is slow during a whole reconnect, and the ingest queue is purged in that time. The answer about the lost
/// request must not be used for the request that has taken its place.
#[test]
fn an_answer_from_before_a_lost_connection_is_nobody_elses() {
    let mut w = World::new(settings());
    w.send(vec![item("a", "", "proof")]);
    w.run(100);
    let old = |id: &str| with_id(id, DuplicateRule::Keep, item("a", "", id));
    w.send(vec![old("x"), old("z")]);
    w.advance(30);
    w.drain_jobs();
    assert_eq!(w.out.len(), 2, "both are in flight, and written");
    let heir = |id: &str| {
        with_id(id, DuplicateRule::Replace, at(T0 + 400_000, item("a", "", &format!("{id} anew"))))
    };
    w.send(vec![heir("x")]);
    w.drain_jobs();
    // A full store stops all decisions: the waiting requests stay queued while the item that they waited for leaves
    // memory.
    w.input(Input::StoreFull(true));
    w.settle(0, Outcome::Returned("312 NO_ROUTE".into()));
    let asks = |w: &World| w.jobs.iter().filter(|job| matches!(job, Job::Load(Load::Find(_), _))).count();
    assert_eq!(asks(&w), 1, "the store is asked for x, and takes its time");
    w.lose_ingest();
    w.queue.clear();
    w.input(Input::StoreFull(false));
    w.send(vec![heir("z")]);
    w.input(Input::StoreFull(true));
    w.settle(0, Outcome::Returned("312 NO_ROUTE".into()));
    assert_eq!(asks(&w), 2, "and for z");
    w.input(Input::StoreFull(false));
    w.drain_jobs();
    w.run(500_000);
    assert_eq!(ends(&w).0, ["proof", "x", "z anew"]);
    assert!(w.queue.is_empty());
    w.store.check_empty();
}

/// All items are in flight: none can be given up for a new request, and other requests do not wait for that.
#[test]
fn where_all_is_in_flight_the_newest_is_given_up_for_the_oldest() {
    let mut settings = with(|app| (app.max_waiting, app.on_full) = (10, OnFull::DropOldest));
    settings.max_in_flight = 1_000;
    let mut w = World::new(settings);
    for _ in 0..6 {
        w.send(vec![item("a", "", "proof")]);
        w.run(10);
    }
    for _ in 0..5 {
        w.send((0..1_000).map(|n| at(T0, item("a", "ann", &n.to_string()))).collect());
        w.drain_jobs();
    }
    let flying: usize = w.out.iter().map(|(_, batch)| batch.items.len()).sum();
    assert!(flying > 10 + 4_096, "{flying} in flight");
    w.send((0..78).map(|n| at(T0 + 5_000, item("a", "ann", &format!("late{n}")))).collect());
    w.send(vec![at(T0, item("b", "", "other"))]);
    w.drain_jobs();
    assert!(w.queue.is_empty(), "{} are not acked", w.queue.len());
    w.run(60_000);
    let (sent, dead) = ends(&w);
    let late = dead.iter().filter(|(name, _)| name.starts_with("late")).count();
    assert_eq!(late, 78, "those that came last");
    assert!(dead.iter().all(|(_, reason)| *reason == Reason::Full));
    assert!(sent.contains(&"other".to_owned()));
    w.store.check_empty();
}
