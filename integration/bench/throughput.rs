//! Maximum throughput: a full ingest queue, and a daemon that starts with it.
//!
//! Timed from the first message taken off the ingest queue to the last one at its destination, less the
//! requested delay. With windows it is timed until all requests are durable: batches leave when windows
//! close, one second apart, and that second would be the resolution of the result.

use crate::book::{Bench, Book, Case, Cpu, Run};
use crate::load::{customer, delay, wait_for_depth, Batch, Ids, APPLICATION, BODY, LIMIT, PATIENCE};
use crate::peers::{bare, per_second, Bridge};
use crate::report::told_whole;
use std::time::{Duration, Instant};
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::{wait_until, Config, Daemon, Inbox, Node, Site};

pub const GROUP: &str = "throughput";
pub const CUSTOMERS: u64 = 1000;
const DAY_MS: u64 = 86_400_000;

/// One measurement: its name on the command line, its title, its function, its peer row, and the target ratio
/// to that row.
pub struct Row {
    pub name: &'static str,
    pub title: &'static str,
    run: fn(&Node, u64) -> Run,
    beside: Option<&'static str>,
    goal: Option<f64>,
}

const fn row(name: &'static str, title: &'static str, run: fn(&Node, u64) -> Run) -> Row {
    Row { name, title, run, beside: None, goal: None }
}

impl Row {
    const fn beside(self, other: &'static str) -> Row {
        Row { beside: Some(other), ..self }
    }

    const fn goal(self, goal: f64) -> Row {
        Row { goal: Some(goal), ..self }
    }
}

/// A row comes after its peer.
pub const ROWS: [Row; 15] = [
    row("bare", "a bare consumer that only acks", bare),
    row("bridge", "a tuned bridge: consume, publish confirmed, ack 200 together", |node, count| {
        bridge(Bridge::TUNED, node, count)
    }),
    row("bridge-mandatory", "the tuned bridge, with mandatory", |node, count| {
        bridge(Bridge::MANDATORY, node, count)
    })
    .beside("bridge"),
    row("bridge-direct", "the tuned bridge, to a direct exchange", |node, count| {
        bridge(Bridge::DIRECT, node, count)
    })
    .beside("bridge"),
    row("bridge-marked", "the tuned bridge, with an id and three headers", |node, count| {
        bridge(Bridge::MARKED, node, count)
    })
    .beside("bridge"),
    row("bridge-alike", "the tuned bridge, with all of these, as tidegate has them", |node, count| {
        bridge(Bridge::ALIKE, node, count)
    })
    .beside("bridge"),
    row("naive", "a naive bridge: consume, publish confirmed with mandatory, ack each", |node, count| {
        bridge(Bridge::NAIVE, node, count)
    })
    .beside("bridge"),
    row("windowed", "windowed batches, 1,000 customers", |node, count| {
        on_disk(node, count, Ids::None, CUSTOMERS)
    })
    .beside("bare")
    .goal(0.9),
    row("windowed-ids", "windowed batches, each with a message_id", |node, count| {
        on_disk(node, count, Ids::Each, CUSTOMERS)
    })
    .beside("bare"),
    row("delayed", "passthrough, delay of 1 s", |node, count| passthrough(node, count, 1000, Ids::None))
        .beside("bridge")
        .goal(1.0),
    row("delayed-ids", "passthrough, delay of 1 s, each with a message_id", |node, count| {
        passthrough(node, count, 1000, Ids::Each)
    })
    .beside("bridge"),
    row("at-once", "passthrough, due at once", |node, count| passthrough(node, count, 0, Ids::None))
        .beside("bridge")
        .goal(1.0),
    row("at-once-ids", "passthrough, due at once, each with a message_id", |node, count| {
        passthrough(node, count, 0, Ids::Each)
    })
    .beside("bridge"),
    row("far", "due in a day, with ids: from the queue into the store", |node, count| {
        stored(node, count, Ids::Each, DAY_MS)
    })
    .beside("bare"),
    row("parked", "no queue is bound: from the queue into the store", |node, count| {
        stored(node, count, Ids::None, 0)
    })
    .beside("bare"),
];

/// The named rows, or all, and the peer of each.
fn chosen(bench: &Bench) -> Vec<&'static Row> {
    let beside = |name: &str| ROWS.iter().any(|row| bench.wants(row.name) && row.beside == Some(name));
    ROWS.iter().filter(|row| bench.wants(row.name) || beside(row.name)).collect()
}

pub fn run(bench: &Bench, book: &mut Book) {
    let count = bench.plan.messages;
    for _ in 0..bench.plan.rounds {
        for row in chosen(bench) {
            let case = Case {
                beside: row.beside.map(str::to_owned),
                goal: row.goal,
                ..Case::new(GROUP, row.name, row.title)
            };
            let case = if row.name == "windowed" { case.at("customers", CUSTOMERS) } else { case };
            book.measure(case, || (row.run)(&bench.node, count));
        }
        if bench.wants("windowed") {
            for customers in &bench.plan.customers {
                let customer = if *customers == 1 { "customer" } else { "customers" };
                let title = format!("windowed batches, {} {customer}", told_whole(*customers));
                let case = Case::new(GROUP, format!("windowed-{customers}"), title);
                let case = case.at("customers", *customers).beside("bare");
                // At least one message for each customer.
                let count = count.max(*customers);
                book.measure(case, || on_disk(&bench.node, count, Ids::None, *customers));
            }
        }
    }
}

/// Fills the ingest queue while the daemon is down, and starts it. Returns the daemon, the moment of the
/// first delivery, and the processor time until then.
fn filled(
    site: &Site<'_>,
    config: &Config,
    batch: Batch<'_>,
    headers: impl Fn(u64) -> Vec<u8>,
) -> (Daemon, Instant, Cpu) {
    let daemon = site.start(config);
    refilled(site, daemon, &[site.ingest_queue()], || batch.publish(site.node, headers))
}

/// The same for a daemon that runs, and all the queues that `fill` publishes to; they are empty before.
pub fn refilled(
    site: &Site<'_>,
    mut daemon: Daemon,
    queues: &[String],
    fill: impl FnOnce(),
) -> (Daemon, Instant, Cpu) {
    daemon.term();
    daemon.exit(Duration::from_secs(30));
    fill();
    let depth = || queues.iter().filter_map(|queue| site.client.depth(queue)).sum::<u32>();
    let full = depth();
    daemon.start_again();
    let end = Instant::now() + LIMIT;
    while depth() == full {
        assert!(Instant::now() < end, "the daemon takes nothing");
        std::thread::sleep(Duration::from_millis(2));
    }
    let before = Cpu::of(site.node, Some(&daemon));
    (daemon, Instant::now(), before)
}

fn bridge(bridge: Bridge, node: &Node, count: u64) -> Run {
    bridge.run(node, count, BODY, FieldTable::default())
}

/// The figures of `count` messages in this time, and what they have cost until now.
pub fn measured(site: &Site<'_>, daemon: &Daemon, count: u64, time: Duration, before: Cpu) -> Run {
    let mut run = per_second(count, time);
    let used = Cpu::of(site.node, Some(daemon)).since(before);
    run.insert("cpu_us".to_owned(), used.daemon_us as f64 / count as f64);
    run.insert("broker_cpu_us".to_owned(), used.broker_us as f64 / count as f64);
    run.insert("rss_mib".to_owned(), daemon.peak_rss() as f64 / f64::from(1 << 20));
    run
}

/// Waits until the daemon has accepted `count` requests since its start, all durable. Returns that moment.
pub fn taken_in(daemon: &Daemon, count: u64) -> Instant {
    let end = Instant::now() + LIMIT;
    loop {
        let state = daemon.state();
        let accepted = state["totals"]["accepted"].as_u64();
        if accepted == Some(count) && state["uncommitted"].as_u64() == Some(0) {
            return Instant::now();
        }
        assert!(Instant::now() < end, "not all is taken in: {accepted:?} of {count}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Acks follow at once, but the broker takes up to a second to report them, so this is checked outside the
/// timed part.
fn acked(site: &Site<'_>) {
    wait_until("all of it is acked", Duration::from_secs(20), || {
        site.node.messages(&site.ingest_queue()) == Some(0)
    });
}

/// Waits for batches with this many items.
pub fn arrive(inbox: &Inbox, count: u64) {
    let mut items = 0;
    while items < count {
        let received = inbox.poll(PATIENCE).expect("a batch within a minute");
        items += u64::try_from(received.number("x-count").unwrap_or(0)).unwrap_or(0);
    }
}

fn on_disk(node: &Node, count: u64, ids: Ids, customers: u64) -> Run {
    windowed(node, (count, customers), ids, |_, config| config, |_| Run::new())
}

/// So many windowed requests of so many customers, with the store that `store` configures; `more` adds figures
/// before the daemon ends.
pub fn windowed(
    node: &Node,
    (count, customers): (u64, u64),
    ids: Ids,
    store: impl Fn(&Site<'_>, Config) -> Config,
    more: impl Fn(&Daemon) -> Run,
) -> Run {
    let site = Site::on(node, "windowed");
    let config = store(&site, site.config().text("defaults.window", "1s"));
    site.application(APPLICATION);
    let headers: Vec<Vec<u8>> = (0..customers).map(customer).collect();
    let header = |n: u64| headers[usize::try_from(n % customers).unwrap_or(0)].clone();
    let inbox = site.client.consume(&site.queue(APPLICATION));
    let (daemon, start, before) = filled(&site, &config, Batch::of(&site.ingest(), count, ids), header);
    let took = taken_in(&daemon, count).duration_since(start);
    acked(&site);
    arrive(&inbox, count);
    let mut run = measured(&site, &daemon, count, took, before);
    run.extend(more(&daemon));
    clean(&site, daemon);
    run
}

fn passthrough(node: &Node, count: u64, delay_ms: u64, ids: Ids) -> Run {
    let site = Site::on(node, "passthrough");
    site.application(APPLICATION);
    let run = through(&site, Batch::of(&site.ingest(), count, ids), delay_ms);
    site.client.delete_queue(&site.queue(APPLICATION));
    run
}

/// Publishes each message unchanged to the application's queue, which must exist.
pub fn through(site: &Site<'_>, batch: Batch<'_>, delay_ms: u64) -> Run {
    let config = site.config().text("defaults.format", "passthrough");
    let headers = delay(delay_ms);
    let (daemon, start, before) = filled(site, &config, batch, |_| headers.clone());
    wait_for_depth(&site.client, &site.queue(APPLICATION), batch.count);
    let took = start.elapsed().saturating_sub(Duration::from_millis(delay_ms));
    measured(site, &daemon, batch.count, took, before)
}

/// From the queue into the store only: the items are due in a day, or no queue is bound.
fn stored(node: &Node, count: u64, ids: Ids, delay_ms: u64) -> Run {
    let site = Site::on(node, "stored");
    let config = site.config().text("defaults.format", "passthrough");
    let headers = delay(delay_ms);
    let exchange = site.ingest();
    let batch = Batch::of(&exchange, count, ids);
    let (daemon, start, before) = filled(&site, &config, batch, |_| headers.clone());
    let took = taken_in(&daemon, count).duration_since(start);
    acked(&site);
    measured(&site, &daemon, count, took, before)
}

/// Frees disk space and the broker's time for the next run.
pub fn clean(site: &Site<'_>, daemon: Daemon) {
    drop(daemon);
    site.client.delete_queue(&site.queue(APPLICATION));
    site.client.delete_queue(&site.ingest_queue());
    let _gone = std::fs::remove_dir_all(site.dir.join("store"));
}
