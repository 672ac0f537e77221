//! Rates: which items they hold back, in which order and until when, and which items they leave alone.

use super::world::*;
use tidegate_types::event::*;
use tidegate_types::*;

fn rated(rate: &str, burst: u32, change: impl FnOnce(&mut AppSettings)) -> Settings {
    let mut settings = with(change);
    let app = AppSettings { rate: Some(rate.parse().unwrap()), burst, ..(*settings.defaults).clone() };
    settings.applications.insert("slow".into(), app.into());
    settings
}

fn singles(n: u64) -> Vec<NewItem> {
    (0..n).map(|n| at(T0, item("slow", "", &n.to_string()))).collect()
}

/// Moments of delivery after [`T0`] and numbers of items, for one application.
fn moments(w: &World, application: &str) -> Vec<(u64, usize)> {
    let of = w.delivered.iter().filter(|(_, batch)| &*batch.application == application);
    of.map(|(now, batch)| (now.wall - T0, batch.items.len())).collect()
}

/// One burst first, then even intervals, in order. Items of others leave at their time, and the engine sleeps in
/// between.
#[test]
fn items_leave_at_the_rate_of_their_application_and_others_in_their_time() {
    let mut w = World::new(rated("10/s", 3, |_| ()));
    w.send(singles(20));
    w.send((0..5).map(|n| at(T0 + n * 300, item("fast", "", "fast"))).collect());
    w.run(150);
    assert_eq!(w.wait(), Some(50), "nothing is to be done before the next may leave");
    w.run(10_000);
    let slow: Vec<u64> = moments(&w, "slow").into_iter().map(|(at, _)| at).collect();
    let wanted: Vec<u64> = (0..20u64).map(|n| n.saturating_sub(2) * 100).collect();
    // The first is sent alone, and the others after its confirm.
    assert_eq!(slow, wanted);
    assert_eq!(moments(&w, "fast"), [(0, 1), (300, 1), (600, 1), (900, 1), (1_200, 1)]);
    let names: Vec<String> = ends(&w).0.into_iter().filter(|name| name != "fast").collect();
    assert_eq!(names, (0..20).map(|n| n.to_string()).collect::<Vec<_>>(), "in order");
    let held: Vec<[u64; 2]> = w.delivered.iter().filter_map(|(_, batch)| batch.held).collect();
    let wanted: Vec<[u64; 2]> = (1..18).map(|n| [T0, T0 + n * 100]).collect();
    assert_eq!(held, wanted, "what it is late by for its rate is told");
}

/// A batch counts all its items and leaves whole: later batches wait for all of them.
#[test]
fn a_batch_counts_its_items_and_stays_whole() {
    let mut w = World::new(rated("10/s", 10, |app| (app.window, app.max_items) = (1_000, 50)));
    let of =
        |customer: &str, n: u64| (0..n).map(move |_| item("slow", customer, customer)).collect::<Vec<_>>();
    for (customer, n) in [("ann", 10), ("bob", 4), ("carl", 30), ("dora", 1)] {
        w.send(of(customer, n));
    }
    w.run(30_000);
    // Ann's ten empty the bucket. Bob's four wait for four, Carl's thirty for a full bucket, and Dora's one for what
    // Carl's then owe.
    assert_eq!(moments(&w, "slow"), [(1_000, 10), (1_400, 4), (2_400, 30), (4_500, 1)]);
}

/// Due items in the store stay there except for their head, although memory has room.
#[test]
fn what_is_held_back_costs_no_memory_beyond_its_head() {
    let mut w = World::new(rated("100/s", 1, |_| ()));
    w.send(singles(6_000));
    w.run(100);
    let enough = w.settings.thresholds.enough as usize;
    // Items that came in before any was held back were accepted in one turn.
    w.send(singles(6_000));
    w.run(20_000);
    assert!(w.engine.memory_bytes().0 <= enough + 6_000, "{:?}", w.engine.memory_bytes());
    w.run(50_000);
    assert!(
        w.engine.memory_bytes().0 <= enough + w.settings.thresholds.chunk,
        "{:?}",
        w.engine.memory_bytes()
    );
    w.run(60_000);
    assert_eq!(moments(&w, "slow").len(), 12_000);
    let sorted = moments(&w, "slow").windows(2).all(|pair| pair[0].0 + 10 == pair[1].0);
    assert!(sorted, "at even distances");
}

#[test]
fn expiry_is_judged_when_an_item_leaves() {
    let mut w = World::new(rated("1/s", 1, |_| ()));
    let expires = |n: u64| NewItem { expiry: Some(T0 + 2_500), ..at(T0, item("slow", "", &n.to_string())) };
    w.send((0..4).map(expires).collect());
    w.run(10_000);
    let (sent, dead) = ends(&w);
    assert_eq!(sent, ["0", "1", "2"]);
    assert_eq!(dead, [("3".to_owned(), Reason::Expired)]);
}

/// The temporary rate survives a kill and ends; then the configured one holds. A start costs one burst.
#[test]
fn a_rate_that_a_command_gives_holds_until_its_end_over_a_kill_too() {
    let mut w = World::new(settings());
    let slow = |rate: &str, end| Command::Slow("slow".into(), rate.parse().ok(), end);
    let until = T0 + 3_000;
    let end = Some(Moment::At(until));
    assert_eq!(w.ask(slow("2/s", end)), Answer::Until { until: Some(until), changed: true });
    assert_eq!(w.ask(slow("2/s", end)), Answer::Until { until: Some(until), changed: false });
    w.send(singles(12));
    w.run(1_200);
    assert_eq!(moments(&w, "slow"), [(0, 1), (0, 1), (500, 1), (1_000, 1)]);
    let told = |w: &World| w.engine.snapshot(w.now).applications.into_iter().next().unwrap_or_default();
    let app = told(&w);
    assert_eq!((app.rate.as_deref(), app.rate_until), (Some("2/s"), Some(until)));
    assert_eq!((app.held, app.held_until), (8, Some(T0 + 1_500)));
    w.crash();
    w.run(1_000);
    // Two at once, then one every half second.
    let after: Vec<u64> = moments(&w, "slow")[4..].iter().map(|(at, _)| *at).collect();
    assert_eq!(after, [1_200, 1_200, 1_700, 2_200]);
    w.run(2_000);
    let after: Vec<u64> = moments(&w, "slow")[8..].iter().map(|(at, _)| *at).collect();
    assert_eq!(after, [2_700, 3_000, 3_000, 3_000], "it has ended");
    assert_eq!(told(&w).rate, None);
    assert_eq!(w.ask(slow("", None)), Answer::Done { changed: false });
    assert_eq!(w.ask(slow("5/min", None)), Answer::Until { until: None, changed: true });
    w.crash();
    assert_eq!(told(&w).rate.as_deref(), Some("5/min"), "until another is given");
    assert_eq!(w.ask(slow("", None)), Answer::Done { changed: true });
    let over = Some(Moment::At(T0));
    assert!(matches!(w.ask(slow("1/s", over)), Answer::Rejected(text) if text.contains("has passed")));
}

#[test]
fn a_reload_changes_the_rate_of_what_waits() {
    let mut w = World::new(rated("1/h", 1, |_| ()));
    w.send(singles(5));
    w.run(1_000);
    assert_eq!(moments(&w, "slow").len(), 1);
    w.settings = rated("10/s", 1, |_| ());
    let settings = w.settings.clone();
    w.input(Input::Configure(Box::new(settings)));
    w.run(1_000);
    // One item is owed, as before.
    assert_eq!(
        moments(&w, "slow").into_iter().skip(1).map(|(at, _)| at).collect::<Vec<_>>(),
        [1_100, 1_200, 1_300, 1_400]
    );
}

/// A batch of the application fails while others of it wait for their payloads, and its rate is lowered before these
/// come, while it owes for what has left.
/// Excluded: an application that sends nothing any more, as a batch counts as recalled that is none any more.
#[test]
fn what_was_recalled_and_then_given_back_for_its_rate_leaves_again() {
    let mut settings = rated("10/s", 100, |app| app.retry = Retry { min: 1_000, max: 1_000, attempts: 0 });
    settings.budget.contents = 1;
    let mut w = World::new(settings);
    for _ in 0..6 {
        w.send((0..6).map(|_| item("slow", "", "proof")).collect());
        w.drain_jobs();
        w.confirm_all();
    }
    let due = |n: u64| T0 + if n == 0 { 400 } else { 500 };
    w.send((0..6).map(|n| at(due(n), item("slow", "", &n.to_string()))).collect());
    w.run(300);
    assert_eq!((w.now.wall, w.delivered.len()), (T0 + 300, 36));
    w.advance(100);
    w.drain_jobs();
    assert_eq!(w.out.len(), 1, "one is out");
    w.advance(100);
    let reads = w.jobs.iter().any(|job| matches!(job, Job::Load(Load::Contents(_), _)));
    assert!(reads, "others wait for payloads");
    w.settle(0, Outcome::Returned("NO_ROUTE".into()));
    let slow = |rate: &str| Command::Slow("slow".into(), rate.parse().ok(), None);
    w.input(Input::Commands(vec![(Asker::Local(1), slow("1/h"))]));
    w.drain_jobs();
    w.run(5_000);
    w.input(Input::Commands(vec![(Asker::Local(2), slow(""))]));
    w.run(10_000);
    assert_eq!(moments(&w, "slow").len(), 42, "{:?}", moments(&w, "slow"));
    w.store.check_empty();
}

/// Batches are formed at once, and the rate is lowered while their payloads are read: they release their slots.
#[test]
fn what_a_lower_rate_would_keep_for_long_gives_its_slots_back() {
    let mut settings = with(|_| ());
    (settings.max_in_flight, settings.budget.contents) = (8, 1);
    let mut w = World::new(settings);
    w.send((0..6).map(|n| at(T0 + 30_000, item("slow", "", &n.to_string()))).collect());
    w.run(29_000);
    w.advance(1_000);
    w.do_job();
    let slow = |rate: &str| Command::Slow("slow".into(), rate.parse().ok(), None);
    assert_eq!(w.ask(slow("1/h")), Answer::Until { until: None, changed: true });
    w.drain_jobs();
    w.send((0..30).map(|n| at(T0 + 30_000, item("fast", "", &n.to_string()))).collect());
    w.run(2_000);
    assert_eq!(moments(&w, "fast").len(), 30, "others have the slots");
    assert!(moments(&w, "slow").len() < 3, "{:?}", moments(&w, "slow"));
    assert_eq!(w.ask(slow("")), Answer::Done { changed: true });
    w.run(2_000);
    assert_eq!(moments(&w, "slow").len(), 6, "what was formed and given back is charged to nobody");
    w.store.check_empty();
}
