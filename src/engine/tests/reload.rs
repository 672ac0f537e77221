//! Items and windows that exist when the settings are reloaded, or when a life begins, follow the new settings.

use super::world::*;
use tidegate_types::event::*;
use tidegate_types::*;

fn reload(w: &mut World, settings: Settings) {
    w.settings = settings.clone();
    w.input(Input::Configure(Box::new(settings)));
}

fn out(w: &World) -> Vec<(ClosedBy, usize)> {
    w.out.iter().map(|(_, batch)| (batch.closed_by, batch.items.len())).collect()
}

/// Without the new setting the window is not visited before its end.
#[test]
fn a_shorter_quiet_time_holds_for_windows_that_are_open() {
    let mut w = World::new(with(|app| app.window = 15_000));
    w.send(vec![item("a", "ann", "1")]);
    w.advance(1_000);
    reload(&mut w, with(|app| (app.window, app.quiet) = (15_000, 2_000)));
    w.advance(999);
    assert_eq!(out(&w), []);
    w.advance(1);
    assert_eq!(out(&w), [(ClosedBy::Quiet, 1)]);
}

/// Excluded: an application that stays parked for as long as the former settings said.
#[test]
fn a_shorter_pause_between_tries_holds_for_who_is_parked() {
    let retry = |max| with(|app| app.retry = Retry { min: max, max, attempts: 0 });
    let mut w = World::new(retry(12 * 3_600_000));
    w.send(vec![item("a", "", "1")]);
    w.drain_jobs();
    w.settle(0, Outcome::Returned("312 NO_ROUTE".into()));
    w.drain_jobs();
    w.run(60_000);
    assert_eq!(w.out.len(), 0, "it is parked");
    reload(&mut w, retry(60_000));
    assert!(w.wait().is_some_and(|ms| ms <= 60_000), "{:?}", w.wait());
    w.run(60_000);
    assert_eq!(ends(&w).0, ["1"]);
}

/// Two items fit as JSON, and one as CloudEvents.
#[test]
fn a_batch_is_bounded_by_its_format_of_now() {
    let json = tidegate_types::size::overhead(Format::Json, "a", Some("ann"));
    let max_bytes = json.batch + 2 * (json.item + 100) + 8;
    let settings = |format| with(|app| (app.format, app.max_bytes) = (format, max_bytes));
    let mut w = World::new(settings(Format::Json));
    w.send((0..2).map(|n| at(T0 + 5_000, item("a", "ann", &n.to_string()))).collect());
    w.drain_jobs();
    reload(&mut w, settings(Format::CloudEvents));
    w.advance(5_000);
    w.confirm_all();
    let sizes: Vec<usize> = w.delivered.iter().map(|(_, batch)| batch.items.len()).collect();
    assert_eq!(sizes, [1, 1]);
}

#[test]
fn what_closed_a_window_is_told_after_a_restart() {
    let mut w = World::new(with(|app| (app.window, app.max_items) = (15_000, 2)));
    w.input(Input::EgressLost);
    w.send((0..2).map(|n| item("a", "ann", &n.to_string())).collect());
    w.drain_jobs();
    w.crash();
    w.drain_jobs();
    assert_eq!(out(&w), [(ClosedBy::Count, 2)]);
}

/// A third item would exceed the limit of bytes.
#[test]
fn a_long_window_has_its_bytes_after_a_restart() {
    let json = tidegate_types::size::overhead(Format::Json, "a", Some("ann"));
    let max_bytes = json.batch + 2 * (json.item + 100) + 8;
    let mut w = World::new(with(|app| (app.window, app.max_bytes) = (60_000, max_bytes)));
    w.send((0..2).map(|n| item("a", "ann", &n.to_string())).collect());
    w.drain_jobs();
    w.crash();
    w.send(vec![item("a", "ann", "2")]);
    w.drain_jobs();
    assert_eq!(out(&w), [(ClosedBy::Bytes, 2)]);
}

/// The row of the window keeps it open, although its members are due later than the clock that was set back.
#[test]
fn a_long_window_goes_on_after_a_restart_with_the_clock_set_back() {
    let mut w = World::new(with(|app| app.window = 60_000));
    w.send(vec![item("a", "ann", "1")]);
    w.advance(45_000);
    // The last write carries this later time.
    w.send(vec![at(T0 + 900_000, item("b", "", "later"))]);
    w.drain_jobs();
    w.now.wall -= 30_000;
    w.crash();
    w.advance(44_000);
    w.drain_jobs();
    assert_eq!(out(&w), []);
    w.run(2_000);
    assert_eq!(ends(&w).0, ["1"]);
}

/// Items of a window that closed early count as parked from then on.
#[test]
fn what_a_flush_makes_due_of_a_parked_application_is_parked() {
    let mut w = World::new(with(|app| app.window = 60_000));
    w.send(vec![at(T0, item("a", "", "fails"))]);
    w.drain_jobs();
    w.settle(0, Outcome::Returned("312 NO_ROUTE".into()));
    w.send((0..3).map(|n| item("a", "ann", &n.to_string())).collect());
    w.drain_jobs();
    let told = |w: &World| {
        let state = w.engine.snapshot(w.now);
        let app = state.applications.into_iter().next().expect("one application");
        (app.waiting, app.parked, app.total)
    };
    assert_eq!(told(&w), (3, 1, 4));
    let ann = CustomerOf { application: "a".into(), customer: "ann".into() };
    assert_eq!(w.ask(Command::Flush(ann)), Answer::Flushed(3));
    assert_eq!(told(&w), (0, 4, 4));
}

/// A customer without items in memory and without an open window leaves no state.
#[test]
fn a_customer_without_items_is_forgotten() {
    let mut w = World::new(with(|app| app.window = 1_000));
    for n in 0..50 {
        w.send(vec![item("a", &format!("c{n}"), "1"), at(T0 + 900_000, item("a", &format!("f{n}"), "far"))]);
    }
    w.run(5_000);
    assert_eq!(ends(&w).0.len(), 50);
    assert_eq!(w.engine.customers_in_memory(), 0);
}
