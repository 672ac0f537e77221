//! Many items due together, compared with a publisher that only publishes the same messages.

use crate::book::{Bench, Book, Case, Run};
use crate::load::{customer, number, wait_for_depth, Batch, Ids, APPLICATION, PATIENCE};
use crate::peers::{per_second, publisher};
use crate::report::told_whole;
use crate::throughput::{clean, taken_in};
use std::time::{Duration, Instant};
use tidegate_harness::{now_ms, Node, Site};

pub const GROUP: &str = "bursts";
/// Items of each customer that are due together.
const EACH: u64 = 100;
/// tidegate may load items into memory this long before they are due.
const HORIZON_MS: u64 = 22_000;
/// Body size of messages that are delivered unchanged.
const BODY: usize = crate::load::BODY;

pub fn run(bench: &Bench, book: &mut Book) {
    let (millisecond, second) = (bench.plan.millisecond, bench.plan.second);
    for _ in 0..bench.plan.rounds {
        if bench.wants("millisecond") {
            let title = format!("{} messages due in one millisecond", told_whole(millisecond));
            let case = Case::new(GROUP, "millisecond", title).beside("a bare publisher");
            book.measure(case.at("items", millisecond), || in_one_millisecond(&bench.node, millisecond));
        }
        if bench.wants("second") {
            let title = format!(
                "{} items with ids from the store due within {} ms",
                told_whole(second),
                spread_ms(second)
            );
            let case = Case::new(GROUP, "second", title).beside("a bare publisher of the batches");
            let case = case.at("items", second).at("customers", second / EACH);
            book.measure(case, || in_one_second(&bench.node, second));
        }
    }
}

/// Adds the time of the bare publisher, and the ratio to it.
fn beside(mut run: Run, bare: Duration) -> Run {
    let ratio = run["seconds"] / bare.as_secs_f64();
    run.insert("bare_seconds".to_owned(), bare.as_secs_f64());
    run.insert("ratio".to_owned(), ratio);
    run
}

/// Timed from the millisecond in which all items are due until all are in the application's queue.
fn in_one_millisecond(node: &Node, count: u64) -> Run {
    let site = Site::on(node, "millisecond");
    site.application(APPLICATION);
    let daemon = site.start(&site.config().text("defaults.format", "passthrough"));
    let due = now_ms() + 2_000 + count / 10;
    let headers = number("x-deliver-at", due);
    Batch::of(&site.ingest(), count, Ids::None).publish(node, |_| headers.clone());
    taken_in(&daemon, count);
    let start = wait_for(due);
    wait_for_depth(&site.client, &site.queue(APPLICATION), count);
    let run = per_second(count, start.elapsed());
    clean(&site, daemon);
    beside(run, publisher(node, &vec![BODY; usize::try_from(count).unwrap_or(0)]))
}

/// A million items per second. Fewer items get less time, otherwise the bare publisher would be compared with
/// the clock.
fn spread_ms(count: u64) -> u64 {
    (count / 1000).clamp(1, 1000)
}

/// Timed from the first due to the arrival of the last batch. The items are in the store only until shortly
/// before: they are published with a due beyond the horizon, and memory has no room for all of them.
fn in_one_second(node: &Node, count: u64) -> Run {
    let site = Site::on(node, "second");
    let inbox = site.inbox(APPLICATION);
    let memory = format!("{}MiB", (count / 8_000).clamp(16, 64));
    let config = site.config().text("limits.memory", &memory).text("limits.max_body", "1MiB");
    let daemon = site.start(&config);
    let due = now_ms() + HORIZON_MS + count / 8;
    let (customers, spread) = ((count / EACH).max(1), spread_ms(count));
    let begun = Instant::now();
    Batch::of(&site.ingest(), count, Ids::Each).publish(node, |n| {
        // Latest due first, so that the daemon must sort.
        let mut headers = number("x-deliver-at", due + spread - 1 - n % customers % spread);
        headers.extend(customer(n % customers));
        headers
    });
    let stored = taken_in(&daemon, count).duration_since(begun);
    let start = wait_for(due);
    let (mut items, mut sizes) = (0, Vec::new());
    while items < count {
        let received = inbox.poll(PATIENCE).expect("a batch within a minute");
        items += u64::try_from(received.number("x-count").unwrap_or(0)).unwrap_or(0);
        sizes.push(received.body.len());
    }
    let mut run = per_second(count, start.elapsed());
    run.insert("stored_per_second".to_owned(), count as f64 / stored.as_secs_f64());
    run.insert("batches".to_owned(), sizes.len() as f64);
    run.insert("rss_mib".to_owned(), daemon.peak_rss() as f64 / f64::from(1 << 20));
    clean(&site, daemon);
    beside(run, publisher(node, &sizes))
}

/// Sleeps until this moment of the wall clock.
///
/// # Panics
/// If it has passed already: then the setup took too long.
fn wait_for(due: u64) -> Instant {
    let now = now_ms();
    assert!(now < due, "taking it in took {} ms too long", now - due);
    std::thread::sleep(Duration::from_millis(due - now));
    Instant::now()
}
