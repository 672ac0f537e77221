//! Work is bounded per turn and constant per item, whatever the backlog: counted in operations, rows and publishes, not time.
//!
//! Judges promise 7.

use super::world::*;
use tidegate_types::event::*;
use tidegate_types::*;
use DuplicateRule::Keep;

/// A turn may decide on 4,096 arrivals or one whole envelope, make 10,000 rows due, and evict 1,000. Each row is
/// touched a few times and written with a few operations.
const TURN_OPS: usize = 40_000;
const TURN_ROWS: u64 = 80_000;

/// Work of the measured part of a world, and the number of items that it was done for.
pub(super) struct Cost {
    items: u64,
    meter: Meter,
    looked_at: u64,
}

impl Cost {
    /// Operations, rows touched in memory and rows read in the store, per item.
    fn each(&self) -> f64 {
        (self.meter.ops + self.meter.rows + self.looked_at) as f64 / self.items.max(1) as f64
    }
}

pub(super) fn roomy() -> Settings {
    Settings {
        budget: Budget { rows: 5_000, contents: 1 << 20, filters: 1 << 16 },
        customers: 10_000_000,
        max_applications: 10_000_000,
        max_in_flight: 1_000,
        max_in_flight_bytes: 1 << 30,
        ..settings()
    }
}

fn roomy_with(change: impl FnOnce(&mut AppSettings)) -> Settings {
    Settings { defaults: with(change).defaults, ..roomy() }
}

/// Sends the items in groups of a thousand, as fast as the store takes them.
pub(super) fn fill(w: &mut World, items: impl Iterator<Item = NewItem>) {
    let mut items = items.peekable();
    while items.peek().is_some() {
        w.send(items.by_ref().take(1_000).collect());
        w.drain_jobs();
        w.delivered.clear();
        w.acks.clear();
    }
}

pub(super) fn begin(w: &mut World) -> u64 {
    w.meter = Meter::default();
    w.store.looked_at
}

pub(super) fn end(w: &World, items: u64, looked_at: u64) -> Cost {
    Cost { items, meter: w.meter, looked_at: w.store.looked_at - looked_at }
}

fn run_out(w: &mut World, ms: u64) {
    for _ in 0..1_000 {
        w.run(ms);
        if w.store.items.is_empty() {
            return;
        }
    }
    panic!("{} items do not come out", w.store.items.len());
}

fn sent(w: &World) -> usize {
    w.delivered.iter().map(|(_, batch)| batch.items.len()).sum()
}

pub(super) fn flat(name: &str, sizes: &[u64], shape: impl Fn(u64) -> Cost) {
    let mut first = None;
    for n in sizes {
        let cost = shape(*n);
        let (ops, publishes, rows) = cost.meter.most;
        println!("{name}, {n}: {:.1} an item; most of a turn: {ops} operations, {publishes} publishes, {rows} rows", cost.each());
        assert!(
            ops <= TURN_OPS && rows <= TURN_ROWS && publishes <= 1_000,
            "{name}, {n}: {:?} in one turn",
            cost.meter.most
        );
        let before = *first.get_or_insert(cost.each());
        assert!(
            cost.each() <= before * 1.7 + 3.0,
            "{name}: {before:.1} an item, and {:.1} of {n}",
            cost.each()
        );
    }
}

pub(super) const SIZES: [u64; 3] = [1_000, 10_000, 100_000];

#[test]
fn one_customer_with_a_million_items() {
    flat("one customer", &SIZES, |n| {
        let mut w = World::new(roomy());
        fill(&mut w, (0..n).map(|i| at(T0 + 100_000 + i / 10, item("a", "ann", "x"))));
        let looked = begin(&mut w);
        run_out(&mut w, 110_000);
        assert_eq!(sent(&w) as u64, n);
        end(&w, n, looked)
    });
}

#[test]
fn applications_with_one_item_each() {
    flat("applications", &[1_000, 10_000, 33_000], |n| {
        let mut w = World::new(roomy());
        fill(&mut w, (0..n).map(|i| at(T0 + 100_000 + i / 10, item(&format!("a{i}"), "", "x"))));
        let looked = begin(&mut w);
        run_out(&mut w, 110_000);
        assert_eq!(sent(&w) as u64, n);
        end(&w, n, looked)
    });
}

#[test]
fn a_million_items_in_one_millisecond() {
    flat("one millisecond", &SIZES, |n| {
        let mut w = World::new(roomy());
        fill(&mut w, (0..n).map(|_| at(T0 + 100_000, item("a", "", "x"))));
        let looked = begin(&mut w);
        run_out(&mut w, 110_000);
        assert_eq!(sent(&w) as u64, n);
        end(&w, n, looked)
    });
}

/// Judges promise 10.
#[test]
fn windows_that_close_together_with_members_partly_far() {
    flat("windows", &SIZES, |n| {
        let mut w = World::new(roomy_with(|app| (app.window, app.align) = (120_000, true)));
        for round in 0..2 {
            fill(&mut w, (0..n / 2).map(|i| item("a", &format!("c{i}"), &round.to_string())));
        }
        let looked = begin(&mut w);
        run_out(&mut w, 130_000);
        assert_eq!(sent(&w) as u64, n);
        // Memory holds at most half of them: members that come into it later leave in a batch of their own.
        let most = w.delivered.iter().map(|(_, batch)| batch.items.len()).max();
        assert!(most <= Some(2), "a batch of one window's members alone");
        end(&w, n, looked)
    });
}

/// Judges promise 6.
#[test]
fn parked_applications() {
    flat("parked", &[500, 2_000, 10_000], |n| {
        let retry = Retry { min: 5_000, max: 5_000, attempts: 0 };
        let mut w = World::new(roomy_with(|app| app.retry = retry));
        fill(&mut w, (0..n * 3).map(|i| at(T0 + 10, item(&format!("a{}", i % n), "", "x"))));
        let looked = begin(&mut w);
        let until = w.now.mono + 20_000;
        let mut probes = 0;
        while w.now.mono < until {
            while let Some(batch) = w.first_out() {
                probes += 1;
                assert!(batch.alone, "one probe at a time");
                w.settle(0, Outcome::Returned("312 NO_ROUTE".into()));
            }
            let ms = w.wait().unwrap_or(1_000).clamp(1, 1_000);
            w.advance(ms);
        }
        let (rows, _) = w.engine.memory_bytes();
        assert!(rows <= 5_000 + 272, "what is parked holds a small head: {rows}");
        assert!(probes >= n * 3 && probes <= n * 7, "{probes} probes of {n}");
        end(&w, probes, looked)
    });
}

/// Ever new names that no queue is bound for: their items end by their last attempt.
/// Excluded: a name that stays in memory, and is told as parked, with nothing left of it.
#[test]
fn names_that_have_failed_leave_nothing() {
    let mut w = World::new(with(|app| app.retry = Retry { min: 1_000, max: 1_000, attempts: 1 }));
    let failing = |n: u64| format!("a{n}");
    for round in 0..8 {
        w.send((0..600).map(|n| item(&failing(round * 600 + n), "", "x")).collect());
        for _ in 0..600 {
            w.drain_jobs();
            while let Some(at) = w.out.iter().position(|(_, batch)| batch.dead.is_none()) {
                w.settle(at, Outcome::Returned("312 NO_ROUTE".into()));
            }
            w.confirm_all();
            w.advance(5);
        }
        let told = w.engine.snapshot(w.now).applications;
        let parked = told
            .iter()
            .filter(|app| matches!(app.delivery, tidegate_types::snapshot::Deliverability::Parked { .. }));
        assert_eq!(parked.count(), 0, "nothing of them is left");
    }
    assert_eq!(ends(&w).1.len(), 4_800, "each has its dead letter");
    let names = w.engine.core.live.queues.ids().count();
    assert!(names <= 2_200, "{names} names are in memory");
    w.store.check_empty();
}

/// Lets application `a` have a fresh confirm: after a silence only a few batches would go out.
fn heard(w: &mut World) {
    w.send(vec![item("a", "", "proof")]);
    w.drain_jobs();
    w.confirm_all();
}

/// Judges promise 13.
#[test]
fn requests_that_wait_for_an_outcome() {
    flat("awaiting", &[1_000, 4_000, 10_000], |n| {
        let settings = Settings { max_in_flight: 20_000, ..roomy() };
        let mut w = World::new(settings);
        let new =
            |i: u64, payload: &str| with_id(&i.to_string(), DuplicateRule::Replace, item("a", "", payload));
        w.send(vec![item("a", "", "proof")]);
        for _ in 0..40 {
            w.run(100);
            w.send((0..4).map(|_| item("a", "", "proof")).collect());
        }
        w.run(100);
        heard(&mut w);
        w.send((0..n).map(|i| new(i, "old")).collect());
        w.advance(30);
        w.drain_jobs();
        w.send((0..n).map(|i| new(i, "new")).collect());
        w.drain_jobs();
        let looked = begin(&mut w);
        w.delivered.clear();
        run_out(&mut w, 1_000);
        w.run(1_000);
        assert!(w.queue.is_empty(), "{} are not decided", w.queue.len());
        end(&w, n, looked)
    });
}

#[test]
fn envelopes_of_ten_thousand_entries() {
    let mut w = World::new(roomy());
    for e in 0..10 {
        let entries =
            (0..10_000).map(|i| at(T0 + 100_000 + i, item("a", &format!("c{}", i % 100), &e.to_string())));
        w.enqueue(RequestBody::Items(entries.collect()));
    }
    begin(&mut w);
    w.deliver(usize::MAX);
    for _ in 0..1_000 {
        w.drain_jobs();
        if w.queue.is_empty() {
            break;
        }
        let wait = w.wait().unwrap_or(10);
        w.advance(wait.min(10));
    }
    assert!(w.queue.is_empty(), "{} envelopes are not taken", w.queue.len());
    let (ops, _, rows) = w.meter.most;
    assert!(ops <= 25_000 && rows <= TURN_ROWS, "one envelope a turn: {:?}", w.meter.most);
    assert_eq!(w.store.items.len(), 100_000);
}

#[test]
fn a_cancel_of_a_customer_with_a_million_items() {
    flat("cancel", &SIZES, |n| {
        let mut w = World::new(roomy());
        fill(&mut w, (0..n).map(|i| at(T0 + 100_000 + i, item("a", "ann", "x"))));
        let looked = begin(&mut w);
        let of = CustomerOf { application: "a".into(), customer: "ann".into() };
        assert_eq!(w.ask(Command::CancelAll(of)), Answer::Cancelled { count: n, in_flight: 0 });
        end(&w, n, looked)
    });
}

#[test]
fn drop_oldest_at_its_limit() {
    for due in [0, 100_000] {
        flat(if due == 0 { "drop-oldest, due" } else { "drop-oldest, far" }, &SIZES, |n| {
            let mut w =
                World::new(roomy_with(|app| (app.max_waiting, app.on_full) = (n, OnFull::DropOldest)));
            w.input(Input::EgressBlocked(true));
            fill(&mut w, (0..n).map(|i| at(T0 + due + i / 10, item("a", "", "x"))));
            let looked = begin(&mut w);
            fill(&mut w, (0..1_000).map(|i| at(T0 + 200_000 + i, item("a", "", "y"))));
            for _ in 0..50 {
                w.advance(10);
                w.drain_jobs();
            }
            let left = w.store.items.values().filter(|item| item.dead.is_none()).count() as u64;
            assert_eq!(left, n, "as many as may wait");
            end(&w, 1_000, looked)
        });
    }
}

#[test]
fn an_empty_store_that_was_full() {
    flat("empty", &SIZES, |n| {
        let mut w = World::new(roomy());
        fill(&mut w, (0..n).map(|i| at(T0 + 30_000 + i / 10, item("a", &format!("c{}", i % 50), "x"))));
        run_out(&mut w, 60_000);
        let looked = begin(&mut w);
        for i in 0..100 {
            w.send(vec![at(w.now.wall + 100, item("a", "ann", &i.to_string()))]);
            w.run(200);
        }
        end(&w, 100, looked)
    });
}

#[test]
fn batches_that_are_confirmed_together() {
    flat("confirmed", &SIZES, |n| {
        let mut w = World::new(Settings { budget: Budget::of(1 << 30), ..roomy() });
        for _ in 0..40 {
            w.send((0..4).map(|_| item("a", "", "proof")).collect());
            w.run(100);
        }
        let due = w.now.wall + 50;
        fill(&mut w, (0..n).map(|i| at(due, with_id(&i.to_string(), Keep, item("a", "ann", "x")))));
        heard(&mut w);
        for _ in 0..1_000 {
            w.advance(w.wait().unwrap_or(1).min(10));
            w.drain_jobs();
        }
        let out: usize = w.out.iter().map(|(_, batch)| batch.items.len()).sum();
        assert_eq!(out as u64, n, "all of it is out");
        let looked = begin(&mut w);
        let settled = |batch: &Batch| Settled { number: batch.number, outcome: CONFIRMED };
        w.input(Input::Settled(w.out.iter().map(|(_, batch)| settled(batch)).collect()));
        assert!(w.meter.most.0 <= 13_000, "{} operations in one turn", w.meter.most.0);
        w.out.clear();
        w.run(1_000);
        w.store.check_empty();
        end(&w, n, looked)
    });
}

/// Memory has room for a tenth of a crowd that is due at one moment. While it leaves, it is read in many parts, and what
/// has left is removed in few commits.
/// Excluded: a read that waits for a commit of its own.
#[test]
fn a_crowd_from_the_store_is_read_without_a_commit_for_each_read() {
    const ITEMS: u64 = 2_000;
    let mut w = World::new(Settings { budget: Budget { rows: 200, ..Budget::of(1 << 30) }, ..roomy() });
    let due = w.now.wall + 60_000;
    fill(&mut w, (0..ITEMS).map(|i| at(due, with_id(&i.to_string(), Keep, item("a", "", "x")))));
    w.run(59_999);
    let (commits, read) = (w.engine.counters().commits, w.store.looked_at);
    w.advance(1);
    let mut loads = 0;
    while w.engine.sums().0 > 0 {
        loads += w.jobs.iter().filter(|job| matches!(job, Job::Load(..))).count();
        assert!(w.do_job() || !w.out.is_empty() || w.engine.is_behind(), "{}", w.engine.describe());
        w.confirm_all();
        if w.engine.is_behind() {
            w.input(Input::Tick);
        }
    }
    let (commits, read) = (w.engine.counters().commits - commits, w.store.looked_at - read);
    assert!(read >= ITEMS / 2 && loads >= 10, "{read} rows in {loads} reads");
    assert!(commits <= 2, "{commits} commits for {loads} reads");
}

#[test]
fn what_many_applications_have_due_at_one_moment() {
    flat("applications together", &[1, 12, 48], |n| {
        // All of them would fit into memory at once.
        let mut w = World::new(Settings { budget: Budget::of(1 << 30), ..roomy() });
        let name = |i: u64| format!("a{}", i / 1_000 % n);
        fill(&mut w, (0..n * 4_000).map(|i| at(T0 + 100_000, item(&name(i), "", &i.to_string()))));
        let looked = begin(&mut w);
        w.run(99_000);
        let (_, _, rows) = w.meter.most;
        assert!(rows <= 20_000, "{rows} rows come into memory in one turn");
        assert_eq!(w.engine.memory_bytes().0 as u64, n * 4_000, "all that is due soon is there before");
        run_out(&mut w, 1_000);
        for app in 0..n {
            let of = w.delivered.iter().filter(|(_, batch)| *batch.application == *format!("a{app}"));
            let seqs: Vec<u64> = of.flat_map(|(_, batch)| batch.items.iter().map(|item| item.seq)).collect();
            assert!(seqs.len() == 4_000 && seqs.is_sorted(), "each in its order");
        }
        end(&w, n * 4_000, looked)
    });
}

/// Memory is full of items that are due soon when the first rows of many applications become urgent at one moment.
/// Excluded: evictions bounded for each of the applications, but not for all of them together.
#[test]
fn what_leaves_memory_for_applications_that_become_urgent_together() {
    let budget = Budget { rows: 20_000, contents: 1 << 20, filters: 1 << 16 };
    // Each turn commits what it has done.
    let thresholds = Thresholds { lazy_ops: 1, ..Thresholds::default() };
    let mut w = World::new(Settings { budget, thresholds, ..roomy() });
    let urgent = T0 + HORIZON_MS + 1_000;
    fill(&mut w, (0..65_536).map(|i| at(urgent, item(&format!("a{}", i % 256), "", "x"))));
    w.run(10_000);
    let later = w.now.wall + HORIZON_MS;
    fill(&mut w, (0..20_000).map(|i| at(later, item("near", &format!("c{}", i % 100), "x"))));
    assert_eq!(w.engine.rows_in_memory("near"), 20_000);
    begin(&mut w);
    w.run(urgent - 1 - w.now.wall);
    let (left, (most, ..)) = (20_000 - w.engine.rows_in_memory("near"), w.meter.most);
    assert!(left >= 10_000 && w.meter.ops >= left, "{left} left in {} operations", w.meter.ops);
    assert!(most <= 1_000, "{most} operations in one turn");
    w.run(later - w.now.wall);
    assert_eq!(sent(&w), 65_536 + 20_000);
    let late = w.delivered.iter().map(|(now, batch)| now.wall - batch.due).max();
    assert_eq!(late, Some(0), "each at its time");
}

/// A world whose memory holds all items.
fn near(change: impl FnOnce(&mut AppSettings)) -> World {
    World::new(Settings { budget: Budget::of(1 << 30), ..roomy_with(change) })
}

#[test]
fn windows_that_are_flushed_early() {
    flat("flushed", &SIZES, |n| {
        let mut w = near(|app| {
            (app.window, app.max_items, app.max_bytes) = (15_000, 2_000, 1 << 30);
            (app.max_waiting, app.on_full) = (n, OnFull::FlushEarly);
        });
        fill(&mut w, (0..n).map(|i| item("a", &format!("c{}", i / 500), "x")));
        let looked = begin(&mut w);
        w.send(vec![item("a", "one more", "x")]);
        run_out(&mut w, 16_000);
        let (_, _, rows) = w.meter.most;
        assert!(rows <= 30_000, "{rows} rows in one turn");
        assert_eq!(sent(&w) as u64, n + 1);
        end(&w, n, looked)
    });
}

#[test]
fn applications_that_give_up_their_oldest_at_one_time() {
    flat("applications that drop their oldest", &[100, 1_000, 5_000], |n| {
        let mut w = World::new(roomy_with(|app| (app.max_waiting, app.on_full) = (2, OnFull::DropOldest)));
        w.input(Input::EgressBlocked(true));
        let round = |of: u64| (0..n).map(move |i| at(T0 + 100_000 + of, item(&format!("a{i}"), "", "x")));
        (0..2).for_each(|of| fill(&mut w, round(of)));
        let looked = begin(&mut w);
        fill(&mut w, round(2));
        for _ in 0..n {
            w.advance(w.wait().unwrap_or(1).min(1));
            w.drain_jobs();
        }
        let dead = w.store.items.values().filter(|item| item.dead.is_some()).count() as u64;
        assert_eq!((dead, w.store.items.len() as u64), (n, 3 * n), "one of each");
        end(&w, n, looked)
    });
}

#[test]
fn many_counts_of_one_customer() {
    flat("counts", &SIZES, |n| {
        let mut w = near(|_| ());
        fill(&mut w, (0..n).map(|i| at(T0 + 15_000 + i / 100, item("a", "ann", "x"))));
        assert_eq!(w.engine.memory_bytes().0 as u64, n);
        let looked = begin(&mut w);
        let of = CustomerOf { application: "a".into(), customer: "ann".into() };
        let ask = |number| (Asker::Local(number), Command::Count(of.clone()));
        w.input(Input::Commands((1..=32).map(ask).collect()));
        while w.engine.is_behind() {
            w.advance(0);
        }
        let next_due = Some(T0 + 15_000);
        for number in 1..=32 {
            w.drain_jobs();
            let counted = Answer::Counted { waiting: n, in_flight: 0, parked: 0, next_due, paused: None };
            assert_eq!(w.answer_to(number), Some(counted), "the {number}th");
        }
        end(&w, 32 * n, looked)
    });
}

#[test]
fn a_count_of_a_customer_whose_items_leave_meanwhile() {
    let mut w = near(|_| ());
    let name = |i: u64| with_id(&format!("{i}"), Keep, at(T0 + 15_000 + i, item("a", "ann", "x")));
    fill(&mut w, (0..50_000).map(name));
    let of = CustomerOf { application: "a".into(), customer: "ann".into() };
    w.input(Input::Commands(vec![(Asker::Local(1), Command::Count(of))]));
    // Cancels one by one all items with which the count would continue, but the last.
    let mut cancelled = 0;
    while w.answer_to(1).is_none() && cancelled < 30_000 {
        let some = (0..1_000).map(|i| 49_999 - cancelled - i);
        let one = |i: u64| (Asker::Local(100_000 + i), Command::Cancel(target("a", &format!("{i}"))));
        w.input(Input::Commands(some.map(one).collect()));
        cancelled += 1_000;
    }
    w.drain_jobs();
    while w.engine.is_behind() {
        w.advance(0);
        w.drain_jobs();
    }
    let Some(Answer::Counted { waiting, next_due, .. }) = w.answer_to(1) else { panic!("an answer") };
    assert!((50_000 - cancelled..=50_000).contains(&waiting), "{waiting}, and {cancelled} are cancelled");
    assert_eq!(next_due, Some(T0 + 15_000));
}

/// Between two steps of a count, items not counted yet leave memory for others: they are counted in the store.
#[test]
fn a_count_of_a_customer_whose_items_leave_memory_meanwhile() {
    let thresholds = Thresholds { looked_at: 1, ..Thresholds::default() };
    let budget = Budget { rows: 40, contents: 1 << 20, filters: 1 << 16 };
    let mut w = World::new(Settings { thresholds, budget, ..settings() });
    fill(&mut w, (0..30).map(|i| at(T0 + 15_000 + i, item("a", "ann", "x"))));
    assert_eq!(w.engine.memory_bytes().0, 30);
    let of = CustomerOf { application: "a".into(), customer: "ann".into() };
    w.input(Input::Commands(vec![(Asker::Local(1), Command::Count(of))]));
    w.send((0..30).map(|i| at(T0 + 5_000 + i, item("b", "", "x"))).collect());
    assert!(w.engine.rows_in_memory("a") < 25, "some have left");
    while w.engine.is_behind() || !w.jobs.is_empty() {
        w.advance(0);
        w.drain_jobs();
    }
    let Some(Answer::Counted { waiting, .. }) = w.answer_to(1) else { panic!("an answer") };
    assert_eq!(waiting, 30);
}

/// Between two steps more items come into memory, before the place of the count: they are counted there, none is in the store.
#[test]
fn a_count_of_a_customer_whose_items_come_into_memory_meanwhile() {
    let thresholds = Thresholds { gathered: 1, ..Thresholds::default() };
    let mut w = World::new(Settings { thresholds, ..settings() });
    let ends = HORIZON_MS + 1_000;
    fill(&mut w, (0..30).map(|i| at(T0 + ends - 2_000 + 100 * i, item("a", "ann", "x"))));
    w.advance(HORIZON_MS / 2 + 100);
    assert!((10..25).contains(&w.engine.rows_in_memory("a")), "some are far, and have been asked for");
    let of = CustomerOf { application: "a".into(), customer: "ann".into() };
    w.input(Input::Commands(vec![(Asker::Local(1), Command::Count(of))]));
    w.drain_jobs();
    assert_eq!((w.engine.rows_in_memory("a"), w.answer_to(1)), (30, None));
    while w.engine.is_behind() || !w.jobs.is_empty() {
        w.advance(0);
        w.drain_jobs();
    }
    let Some(Answer::Counted { waiting, .. }) = w.answer_to(1) else { panic!("an answer") };
    assert_eq!(waiting, 30);
}

#[test]
fn lists_and_the_state_of_many_applications() {
    flat("lists of many applications", &[500, 2_000, 20_000], |n| {
        let mut w = World::new(roomy());
        fill(&mut w, (0..n).map(|i| at(T0 + 100_000 + i, item(&format!("a{i:05}"), "", "x"))));
        let looked = begin(&mut w);
        let filter = Filter { limit: 10, ..Filter::default() };
        let ask = |number| (Asker::Local(number), Command::List(filter.clone()));
        w.input(Input::Commands((1..=20).map(ask).collect()));
        while w.engine.is_behind() || !w.jobs.is_empty() {
            w.advance(0);
            w.drain_jobs();
        }
        for number in 1..=20 {
            let Some(Answer::Listed { items, next }) = w.answer_to(number) else { panic!("the {number}th") };
            let dues: Vec<u64> = items.iter().map(|item| item.due - T0 - 100_000).collect();
            assert_eq!(dues, (0..10).collect::<Vec<_>>());
            assert!(next.is_some(), "there are more");
        }
        let state = w.engine.snapshot(w.now);
        assert_eq!((state.items.waiting, state.applications_total), (n, n));
        let told: Vec<&str> = state.applications.iter().map(|application| &*application.name).collect();
        let first: Vec<String> = (0..n.min(1_000)).map(|i| format!("a{i:05}")).collect();
        assert_eq!(told, first, "the first by name");
        end(&w, 20 * n, looked)
    });
}

/// However little a call does, neither failed nor due items are overtaken.
#[test]
fn what_is_due_leaves_in_order_however_little_a_call_does() {
    let thresholds = Thresholds {
        arrivals: 2,
        due: 2,
        windows: 1,
        sent: 1,
        ended: 1,
        looked_at: 1,
        lease: 16,
        ..Thresholds::default()
    };
    let change = |app: &mut AppSettings| (app.window, app.max_items) = (5_000, 3);
    let mut w = World::new(Settings { thresholds, max_in_flight: 4, ..with(change) });
    w.send(vec![item("a", "ann", "w0"), item("a", "bob", "w1"), item("a", "ann", "w2")]);
    // They are due after the windows, and come in no order.
    let name = |n: u64| format!("o{n:02}");
    w.send((0..20).rev().map(|n| at(T0 + 5_010 + n / 7, item("a", "ann", &name(n)))).collect());
    w.drain_jobs();
    w.advance(6_000);
    let mut left = Vec::new();
    for step in 0..1_000 {
        w.drain_jobs();
        if let Some(batch) = w.first_out() {
            // The first batch fails as a whole while others are in flight.
            let outcome = if step == 3 { Outcome::Nacked } else { CONFIRMED };
            if matches!(outcome, Outcome::Confirmed(_)) && batch.customer.as_deref() == Some("ann") {
                left.extend(batch.items.iter().map(|item| (item.due, item.seq)));
            }
            w.settle(0, outcome);
        }
        w.advance(w.wait().unwrap_or(100).min(100));
    }
    assert_eq!(left.len(), 22);
    assert!(left.is_sorted(), "{left:?}");
    w.store.check_empty();
}

/// The other windows wait neither for a later call nor for a later moment.
#[test]
fn windows_that_end_together_close_at_that_moment_however_little_a_call_does() {
    let thresholds = Thresholds { due: 3, windows: 4, ..Thresholds::default() };
    let mut w = World::new(Settings { thresholds, ..with(|app| app.window = 5_000) });
    let customers: Vec<String> = (0..20).map(|n| format!("c{n:02}")).collect();
    w.send(customers.iter().flat_map(|name| [item("a", name, "1"), item("a", name, "2")]).collect());
    w.drain_jobs();
    w.advance(5_000);
    w.drain_jobs();
    while w.engine.is_behind() || !w.out.is_empty() {
        w.confirm_all();
        w.advance(0);
        w.drain_jobs();
    }
    let batches = w.delivered.iter().map(|(_, batch)| batch);
    let left: Vec<&str> = batches.clone().filter_map(|batch| batch.customer.as_deref()).collect();
    assert_eq!(left, customers, "in order, at once");
    assert!(batches.clone().all(|batch| batch.items.len() == 2 && batch.closed_by == ClosedBy::Time));
}

/// Rows that are read while due items are still in the schedule wait for these.
#[test]
fn what_has_been_read_waits_for_what_was_due_sooner_however_little_a_call_does() {
    let thresholds = Thresholds { due: 1, few: 2, ..Thresholds::default() };
    let budget = Budget { rows: 8, ..settings().budget };
    let mut w = World::new(Settings { thresholds, budget, ..settings() });
    w.send((0..20).map(|n| at(T0 + 5_000 + 100 * n, item("a", "ann", &n.to_string()))).collect());
    w.drain_jobs();
    w.now.wall += 60_000;
    for _ in 0..500 {
        w.advance(1);
        w.drain_jobs();
        if !w.out.is_empty() {
            w.settle(0, CONFIRMED);
        }
    }
    let all: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    assert_eq!(ends(&w).0, all);
}

/// One call closes one window and takes one item: neither an unclosed window nor an item is overtaken.
#[test]
fn a_window_that_is_over_and_what_was_due_before_it_keep_their_order() {
    let thresholds = Thresholds { windows: 1, due: 1, ..Thresholds::default() };
    let mut w = World::new(Settings { thresholds, ..with(|app| app.window = 5_000) });
    w.send(["ann", "bob", "cat"].map(|name| item("a", name, &format!("{name} window"))).into());
    w.drain_jobs();
    let own = |at_ms: u64, name: &str, id: &str| at(T0 + at_ms, item("a", name, id));
    w.send(vec![own(5_000, "cat", "last"), own(4_000, "ann", "first"), own(4_500, "ann", "second")]);
    w.send(vec![own(3_000, "", "proves")]);
    w.run(3_000);
    w.advance(2_000);
    for _ in 0..100 {
        w.drain_jobs();
        w.confirm_all();
        w.advance(0);
    }
    let of = |customer: &str| -> Vec<String> {
        let batches = w.delivered.iter().filter(|(_, batch)| batch.customer.as_deref() == Some(customer));
        batches.flat_map(|(_, batch)| batch.items.iter().map(name)).collect()
    };
    assert_eq!(of("ann"), ["first", "second", "ann window"]);
    assert_eq!(of("cat"), ["cat window", "last"]);
}
