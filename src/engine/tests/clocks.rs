//! Clocks that step, and windows over a restart.

use super::world::*;
use std::collections::VecDeque;
use tidegate_types::event::*;
use tidegate_types::*;

/// Judges promise 4.
#[test]
fn wall_clock_steps_neither_release_early_nor_oversleep() {
    let mut w = World::new(settings());
    w.send(vec![at(T0 + 10_000, item("a", "", "own")), item("a", "c", "windowed")]);
    w.drain_jobs();
    w.now.wall -= 3_600_000;
    w.advance(3_000);
    w.drain_jobs();
    assert_eq!(w.out.len(), 1, "the window runs on the other clock");
    w.confirm_all();
    w.advance(7_000);
    assert_eq!(w.out.len(), 0, "never early by the wall clock");
    w.now.wall += 3_600_000;
    w.advance(0);
    assert_eq!(w.out.len(), 1, "due by the wall clock");
    let counters = w.engine.counters();
    assert_eq!((counters.clock_backward, counters.clock_forward), (1, 1));
}

/// Judges promise 10.
#[test]
fn a_closed_window_stays_closed_when_the_clock_is_set_back() {
    let mut w = World::new(with(|app| app.quiet = 1_000));
    w.ask(Command::Pause("a".into(), None));
    w.send(vec![item("a", "c", "1")]);
    w.drain_jobs();
    w.advance(500);
    let of = CustomerOf { application: "a".into(), customer: "c".into() };
    assert_eq!(w.ask(Command::Flush(of)), Answer::Flushed(1));
    w.run(1);
    w.now.wall -= 5_000;
    w.ask(Command::Resume("a".into()));
    w.run(10_000);
    let (now, batch) = &w.delivered[0];
    assert_eq!((now.wall, batch.due, batch.closed_by), (T0 + 500, T0 + 500, ClosedBy::Flush));
}

/// A window has closed, its item has not left, and the clock is set back: items in the store alone are due before it.
fn stalled_by_a_step_back() -> World {
    let mut w = World::new(settings());
    w.input(Input::EgressBlocked(true));
    w.send(vec![item("a", "c", "closed")]);
    w.run(3_000);
    w.now.wall -= 50_000;
    let later = at(w.now.wall + 30_000, item("a", "", "later"));
    w.send(vec![with_id("later", DuplicateRule::Keep, later)]);
    w.drain_jobs();
    w.input(Input::EgressBlocked(false));
    w.run(1);
    assert!(w.delivered.is_empty(), "the other may have to go first");
    w
}

#[test]
fn what_is_due_first_does_not_wait_with_its_customers_other_items() {
    let mut w = stalled_by_a_step_back();
    let due = w.now.wall + 1_000;
    w.send(vec![at(due, item("a", "c", "first"))]);
    w.run(2_000);
    assert_eq!(ends(&w).0, ["first"]);
    assert_eq!(w.delivered[0].0.wall, due);
}

#[test]
fn what_waits_for_others_leaves_when_these_are_taken_back() {
    let mut w = stalled_by_a_step_back();
    assert_eq!(w.ask(Command::Cancel(target("a", "later"))), Answer::Cancelled { count: 1, in_flight: 0 });
    w.run(1_000);
    assert_eq!(ends(&w).0, ["closed"]);
}

/// Judges promise 10.
#[test]
fn after_a_restart_a_window_has_at_most_its_length_left() {
    let mut w = World::new(settings());
    w.send(vec![item("a", "c", "1")]);
    w.run(2_000);
    w.crash();
    w.send(vec![item("a", "c", "2")]);
    w.run(10_000);
    assert_eq!(w.story(), [(3_000, names(&["1", "2"]))]);
}

/// Judges promise 10.
#[test]
fn after_a_restart_with_the_clock_set_back_a_window_has_at_most_its_length_left() {
    let mut w = World::new(settings());
    w.send(vec![item("a", "c", "1")]);
    w.run(1_000);
    w.now.wall -= 1_000_000;
    w.crash();
    let back = w.now.wall;
    w.run(10_000);
    assert_eq!(w.delivered[0].0.wall, back + 3_000);
}

#[test]
fn after_a_restart_with_the_clock_set_back_what_had_closed_is_due() {
    let mut w = World::new(with(|app| app.quiet = 1_000));
    w.input(Input::EgressBlocked(true));
    w.send(vec![item("a", "c", "1")]);
    w.run(1_500);
    w.now.wall -= 1_000_000;
    w.crash();
    w.run(1);
    assert_eq!(ends(&w).0, ["1"]);
}

/// Only one member of the window has been read when the window closes.
#[test]
fn a_window_closes_with_the_members_of_a_former_life_that_have_not_been_read() {
    let mut w = World::new(with(|app| app.window = 15_000));
    let urgent = NewItem { expiry: Some(T0 + 8_000), ..item("a", "ann", "urgent") };
    w.send(vec![urgent, item("a", "ann", "other")]);
    w.drain_jobs();
    w.crash();
    w.advance(6_000);
    while w.engine.memory_bytes().0 == 0 {
        assert!(w.do_job_in_pieces(1), "it is read");
    }
    // The next read takes long.
    let (late, jobs): (VecDeque<Job>, VecDeque<Job>) =
        std::mem::take(&mut w.jobs).into_iter().partition(|job| matches!(job, Job::Load(..)));
    w.jobs = jobs;
    w.advance(1_900);
    w.drain_jobs();
    w.confirm_all();
    w.drain_jobs();
    w.jobs.extend(late);
    w.run(100);
    assert_eq!(w.story(), [(7_900, names(&["urgent", "other"]))]);
    assert_eq!(w.delivered[0].1.closed_by, ClosedBy::Expiry);
}

/// Judges promise 10.
#[test]
fn a_long_window_counts_on_over_a_restart() {
    let mut w = World::new(with(|app| {
        app.window = 3_600_000;
        app.max_items = 4;
    }));
    w.send(vec![item("a", "c", "1"), item("a", "c", "2"), item("a", "c", "3")]);
    w.run(1_000);
    assert_eq!(w.engine.memory_bytes(), (0, 0), "far away: in the store alone");
    w.crash();
    w.send(vec![item("a", "c", "4"), item("a", "c", "5")]);
    w.run(1_000);
    assert_eq!(w.story(), [(1_000, names(&["1", "2", "3", "4"]))]);
    assert_eq!(w.delivered[0].1.closed_by, ClosedBy::Count);
    w.run(4_000_000);
    assert_eq!(w.delivered.len(), 2);
    w.store.check_empty();
}

/// An id ends every ten seconds. For five seconds, in which another ends, the clock is an hour behind.
/// Excluded: ids forgotten although they ended within the tail.
/// Judges promise 14.
#[test]
fn an_id_is_remembered_though_the_clock_was_wrong_for_some_seconds() {
    const TAIL: u64 = 60;
    let mut w = World::new(with(|app| app.dedupe_tail = TAIL * 10_000));
    let named = |n: u64| with_id(&n.to_string(), DuplicateRule::Keep, item("a", "", &n.to_string()));
    let next = |w: &mut World, n: u64| {
        w.send(vec![named(n)]);
        w.run(10_000);
    };
    (0..120).for_each(|n| next(&mut w, n));
    w.now.wall -= 3_600_000;
    w.send(vec![named(1_000)]);
    w.run(5_000);
    w.now.wall += 3_600_000;
    w.run(5_000);
    for n in 121..240 {
        next(&mut w, n);
        let repeated = (n + 2 - TAIL..=n).filter(|n| *n != 120);
        let before = w.delivered.len();
        w.send(repeated.map(named).collect());
        w.run(1);
        assert_eq!(w.delivered.len(), before, "a repeat of an id that ended within the tail, after {n}");
    }
}

/// The milliseconds of the two clocks do not change at the same moment.
#[test]
fn a_window_does_not_close_before_the_due_that_it_carries() {
    let mut w = World::new(with(|app| app.window = 3_000));
    w.send(vec![item("a", "c", "1")]);
    w.drain_jobs();
    w.now.wall -= 2;
    w.advance(3_000);
    assert!(w.out.is_empty(), "the wall clock is not there yet");
    w.advance(2);
    w.drain_jobs();
    assert_eq!(w.out.len(), 1);
    let (_, batch) = &w.out[0];
    assert_eq!((batch.items[0].due, batch.closed_by), (w.now.wall, ClosedBy::Time));
}

/// Memory is full of items that were due before the clock was set back. Items that are due now are in the store, and
/// come first.
#[test]
fn what_is_due_finds_room_where_all_of_memory_waits_behind_it() {
    let mut settings = settings();
    settings.budget.rows = 0;
    let mut w = World::new(settings);
    let apps: Vec<String> = (0..5).map(|n| format!("a{n}")).collect();
    let of = |app: &String, due: u64, name: &str| at(due, item(app, "", name));
    w.send(apps.iter().flat_map(|app| (0..100).map(move |_| of(app, T0 + 30_000, "old"))).collect());
    w.drain_jobs();
    w.input(Input::EgressBlocked(true));
    w.run(31_000);
    assert!(w.engine.memory_bytes().0 >= 256, "{} rows", w.engine.memory_bytes().0);
    w.now.wall -= 20_000;
    w.input(Input::Tick);
    w.send(apps.iter().map(|app| of(app, w.now.wall, "new")).collect());
    w.drain_jobs();
    w.input(Input::EgressBlocked(false));
    w.run(60_000);
    assert_eq!(ends(&w).0.len(), 505);
    w.store.check_empty();
}

/// Members of a former life that have not come into memory are not counted in a short window. A member that ends in
/// the store does not take those in memory along.
#[test]
fn members_of_a_former_life_that_are_taken_back_in_the_store_leave_the_others_in_their_window() {
    let budget = Budget { rows: 4, ..settings().budget };
    let mut w = World::new(Settings { budget, ..settings() });
    let id = |n: u64| n.to_string();
    w.send((1..=12).map(|n| with_id(&id(n), DuplicateRule::Keep, item("a", "ann", &id(n)))).collect());
    w.drain_jobs();
    w.crash();
    w.drain_jobs();
    let here = w.engine.memory_bytes().0 as u64;
    assert!((1..=4).contains(&here), "{here} are in memory");
    for n in here + 1..=12 {
        assert_eq!(w.ask(Command::Cancel(target("a", &id(n)))), Answer::Cancelled { count: 1, in_flight: 0 });
        w.engine.check_invariants();
    }
    w.run(5_000);
    let left: Vec<String> = (1..=here).map(id).collect();
    assert_eq!(w.story(), [(3_000, left)]);
    w.store.check_empty();
}

/// Items that were in batches and wait for their time again do not stay beyond the bound of memory.
#[test]
fn what_comes_back_from_batches_when_the_clock_is_set_back_leaves_memory() {
    let thresholds = Thresholds { few: 1, ..Thresholds::default() };
    let budget = Budget { rows: 10, ..settings().budget };
    let mut w = World::new(Settings { budget, thresholds, ..settings() });
    // Each confirm allows more batches in flight.
    w.run(4_899);
    w.send((0..60).map(|_| item("a", "", "first")).collect());
    w.run(1);
    w.delivered.clear();
    w.send((0..40).map(|n| at(T0 + 4_940, item("a", "", &n.to_string()))).collect());
    w.drain_jobs();
    w.advance(40);
    w.drain_jobs();
    assert_eq!(w.out.len(), 40, "all are on their way");
    lose_egress(&mut w);
    w.now.wall -= 60_000;
    w.input(Input::EgressReady);
    w.drain_jobs();
    let (rows, _) = w.engine.memory_bytes();
    assert!(rows <= 10 + 5, "{rows} rows are in memory");
    w.now.wall += 60_000;
    w.run(60_000);
    let all: Vec<String> = (0..40).map(|n| n.to_string()).collect();
    assert_eq!(ends(&w).0, all);
    w.store.check_empty();
}

/// One call ends some of them, and the next calls end the rest at once.
#[test]
fn pauses_that_end_at_one_moment_do_not_end_in_one_call() {
    const MANY: usize = 2_500;
    let mut w = World::new(Settings { max_applications: 10_000, ..settings() });
    let end = T0 + 60_000;
    let names: Vec<String> = (0..MANY).map(|n| format!("app{n}")).collect();
    for name in &names {
        w.ask(Command::Pause(name.as_str().into(), Some(Moment::At(end))));
    }
    w.send(names.iter().map(|name| at(T0, item(name, "", name))).collect());
    w.drain_jobs();
    let wait = end - w.now.wall;
    w.advance(wait);
    assert!(w.engine.is_behind(), "more is to be done");
    let told = w.engine.snapshot(w.now).applications;
    assert!(told.iter().any(|app| app.paused) && told.iter().any(|app| !app.paused), "a part of them");
    w.run(1_000);
    assert_eq!(w.delivered.len(), MANY);
    w.store.check_empty();
}
