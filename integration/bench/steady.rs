//! Steady rates: their cost, and the lateness of delayed messages at the consumer; compared with RabbitMQ's
//! TTL.

use crate::book::{run as figures, Bench, Book, Case, Run};
use crate::load::{
    delayed, expiring, number, number_in, quorum, Progress, Steady, APPLICATION, BODY, PATIENCE,
};
use crate::report::told_whole;
use crate::throughput::clean;
use std::collections::BTreeMap;
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::{now_ms, percentile, text, Client, Daemon, Inbox, Node, Raw, RawProperties, Site};

pub const RATES: &str = "rates";
pub const TTL: &str = "ttl";
/// Width of a class of delays, ms. Each class has a separate figure.
const CLASS_MS: u64 = 250;
/// Time to live of the messages ahead of a load, ms.
const AHEAD_MS: u64 = 10_000;

pub fn run(bench: &Bench, book: &mut Book) {
    let plan = &bench.plan;
    for _ in 0..plan.rounds {
        for rate in &plan.rates {
            let load = Steady { rate: *rate, seconds: plan.seconds, spread_ms: plan.spread_ms };
            if bench.wants(RATES) {
                let case = Case::new(
                    RATES,
                    format!("rate-{rate}"),
                    format!("tidegate, {} a second", told_whole(*rate)),
                );
                book.measure(case.at("rate", *rate), || alone(&bench.node, load));
            }
            if bench.wants(TTL) && plan.ttl_rates.contains(rate) {
                let title = format!("TTL with dead-lettering, {} a second", told_whole(*rate));
                let case = Case::new(TTL, format!("ttl-{rate}"), title);
                book.measure(case.at("rate", *rate), || dead_lettered(&bench.node, load, 0));
            }
        }
        for waiting in plan.ttl_waiting.iter().filter(|_| bench.wants(TTL)) {
            let load = Steady { rate: plan.waiting_rate, seconds: plan.seconds, spread_ms: plan.spread_ms };
            let title = format!("the same, {} ahead that wait {} s", told_whole(*waiting), AHEAD_MS / 1000);
            let case = Case::new(TTL, format!("ttl-waiting-{waiting}"), title).at("waiting", *waiting);
            book.measure(case, || dead_lettered(&bench.node, load, *waiting));
        }
    }
}

/// Without a backlog.
fn alone(node: &Node, load: Steady) -> Run {
    let site = Site::on(node, "rates");
    let mut inbox = site.inbox(APPLICATION);
    let daemon = site.start(&site.config().text("defaults.format", "passthrough"));
    let run = under(&site, &daemon, &mut inbox, load);
    clean(&site, daemon);
    run
}

/// The daemon's cost for this load, and the lateness at the consumer.
pub fn under(site: &Site<'_>, daemon: &Daemon, inbox: &mut Inbox, load: Steady) -> Run {
    let (cpu, wakeups) = (daemon.cpu_us(), daemon.wakeups());
    let mut run = lateness(inbox, load, || {
        load.feed(site.node, (&site.ingest(), APPLICATION), &Progress::default(), delayed);
    });
    let each = |before: u64, after: u64| (after - before) as f64 / load.count() as f64;
    run.insert("cpu_us".to_owned(), each(cpu, daemon.cpu_us()));
    run.insert("wakeups".to_owned(), each(wakeups, daemon.wakeups()));
    run.insert("rss_mib".to_owned(), daemon.rss() as f64 / f64::from(1 << 20));
    run
}

/// One queue whose messages expire, each with its own TTL, into the application's queue: a message at the
/// head delays those after it. `ahead` messages are in the queue before the load.
fn dead_lettered(node: &Node, load: Steady, ahead: u64) -> Run {
    const WAITING: &str = "bench.ttl.waiting";
    const OUT: &str = "bench.ttl.out";
    let client = Client::connect(node.uri());
    let mut arguments = quorum();
    arguments.insert("x-dead-letter-exchange".into(), text(""));
    arguments.insert("x-dead-letter-routing-key".into(), text(OUT));
    client.queue(WAITING, arguments);
    client.queue(OUT, FieldTable::default());
    let mut inbox = client.consume(OUT);
    if ahead > 0 {
        let headers = number("x-due", now_ms() + AHEAD_MS);
        let properties = RawProperties::default().headers(&headers).persistent();
        let properties = properties.expiration(AHEAD_MS.to_string().as_bytes());
        Raw::connect(node).flood("", WAITING, &properties, &[b'x'; BODY], ahead);
    }
    let run = lateness(&mut inbox, load, || {
        load.feed(node, ("", WAITING), &Progress::default(), expiring);
    });
    client.delete_queue(WAITING);
    client.delete_queue(OUT);
    run
}

/// Percentiles of the lateness of all messages, and the median for each class of delays.
fn lateness(inbox: &mut Inbox, load: Steady, feed: impl FnOnce() + Send) -> Run {
    let (mut late, mut classes): (Vec<i64>, BTreeMap<u64, Vec<i64>>) = Default::default();
    std::thread::scope(|scope| {
        let feeder = scope.spawn(feed);
        while (late.len() as u64) < load.count() {
            let received = inbox.poll(PATIENCE).expect("a message within a minute");
            if !received.body.first().is_some_and(u8::is_ascii_digit) {
                continue;
            }
            let us = received.lateness_us();
            late.push(us);
            classes.entry(load.delay(number_in(&received.body)) / CLASS_MS).or_default().push(us);
        }
        feeder.join().expect("the feeder");
    });
    late.sort_unstable();
    let ms = |p: f64| percentile(&late, p) as f64 / 1000.0;
    let mut run = figures([
        ("p50_ms", ms(50.0)),
        ("p99_ms", ms(99.0)),
        ("largest_ms", ms(100.0)),
        ("early", late.iter().filter(|us| **us < 0).count() as f64),
    ]);
    for (class, mut late) in classes {
        late.sort_unstable();
        let middle = class * CLASS_MS + CLASS_MS / 2;
        run.insert(format!("p50_ms_of_{middle}"), percentile(&late, 50.0) as f64 / 1000.0);
    }
    run
}
