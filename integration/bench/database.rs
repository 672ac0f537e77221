//! A store in PostgreSQL, on the machine of broker and load, with syncs on: beside the store on the disk, at a
//! steady rate, and through kills of its owner, whose store another daemon takes over.

use crate::book::{run as figures, Bench, Book, Case, Run};
use crate::load::{customer, timed, Arrivals, Ends, Ids, Progress, Steady, APPLICATION};
use crate::report::told_whole;
use crate::throughput::{arrive, clean, taken_in, windowed, CUSTOMERS};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tidegate_harness::{
    holds_within, percentile, wait_until, Config, Daemon, Database, Node, RawProperties, Site,
};

pub const GROUP: &str = "database";
/// The share of the disk's rate that the database must reach.
const GOAL: f64 = 0.5;
/// Items a second of the steady load.
const RATE: u64 = 20_000;
/// Requests a second while owners are killed.
const KILL_RATE: u64 = 5_000;
/// Time limit for a takeover, and for the backlog after it.
const LIMIT: Duration = Duration::from_secs(120);

pub fn run(bench: &Bench, book: &mut Book) {
    if !bench.wants(GROUP) {
        return;
    }
    let (node, plan) = (&bench.node, &bench.plan);
    let Some(server) = Database::own("fsync = on\nfull_page_writes = on\n") else {
        return book.fail(Case::new(GROUP, GROUP, "a store in PostgreSQL"), "it is not installed".to_owned());
    };
    for _ in 0..plan.rounds {
        for (ids, word, title) in [(Ids::None, "", ""), (Ids::Each, "-ids", ", each with a message_id")] {
            let [disk, database] = ["disk", "postgres"].map(|kind| format!("{kind}{word}"));
            let case = Case::new(GROUP, &disk, format!("windowed batches on the disk{title}"));
            book.measure(case, || told(node, ids, plan.messages, |_, config| config));
            let title = format!("windowed batches in PostgreSQL{title}");
            let case = Case { goal: Some(GOAL), ..Case::new(GROUP, database, title).beside(&disk) };
            book.measure(case, || {
                told(node, ids, plan.messages, |site, config| site.in_database(config, &server))
            });
        }
        let title = format!("{} items a second, in windows", told_whole(RATE));
        let seconds = plan.seconds.max(8);
        book.measure(Case::new(GROUP, "postgres-steady", title), || steady(node, &server, seconds));
        let kills = plan.takeovers;
        let title = format!(
            "kill -9 of the owner, {kills} times, two daemons, {} requests a second",
            told_whole(KILL_RATE)
        );
        book.measure(Case::new(GROUP, "postgres-kills", title), || killed(node, &server, kills));
    }
}

/// A full queue, with what the commits took.
fn told(node: &Node, ids: Ids, count: u64, store: impl Fn(&Site<'_>, Config) -> Config) -> Run {
    windowed(node, (count, CUSTOMERS), ids, store, commits)
}

/// Durations of the commits since the daemon's start: median and 99th percentile, by the upper bounds of the
/// metric's buckets.
fn commits(daemon: &Daemon) -> Run {
    let (_, metrics) = daemon.ask("GET", "/metrics");
    let lines = metrics.as_str().unwrap_or_default().lines();
    let buckets: Vec<(f64, f64)> = lines
        .filter_map(|line| {
            let rest = line.strip_prefix("tidegate_store_commit_seconds_bucket{le=\"")?;
            let (bound, count) = rest.split_once("\"} ")?;
            Some((bound.parse().unwrap_or(f64::INFINITY), count.parse().ok()?))
        })
        .collect();
    let all = buckets.last().map_or(0.0, |(_, count)| *count);
    let ms = |share: f64| {
        let bucket = buckets.iter().find(|(_, count)| *count >= all * share);
        bucket.map_or(0.0, |(bound, _)| bound * 1e3)
    };
    figures([("commit_p50_ms", ms(0.5)), ("commit_p99_ms", ms(0.99)), ("commits", all)])
}

/// Requests at a steady rate. Its producer may not reach the rate on a small machine: so the rate at which items
/// became durable is a figure.
fn steady(node: &Node, server: &Database, seconds: u64) -> Run {
    let site = Site::on(node, "postgres-steady");
    let inbox = site.inbox(APPLICATION);
    let config = site.in_database(site.config().text("defaults.window", "1s"), server);
    let daemon = site.start(&config);
    let customers: Vec<Vec<u8>> = (0..CUSTOMERS).map(customer).collect();
    let load = Steady { rate: RATE, seconds, spread_ms: 1 };
    let begun = Instant::now();
    let took = std::thread::scope(|scope| {
        scope.spawn(|| {
            load.feed(node, (&site.ingest(), APPLICATION), &Progress::default(), |n, _| {
                let place = usize::try_from(n % CUSTOMERS).unwrap_or(0);
                RawProperties::default().headers(&customers[place]).persistent()
            });
        });
        taken_in(&daemon, load.count()).duration_since(begun)
    });
    arrive(&inbox, load.count());
    let mut run = commits(&daemon);
    run.extend(figures([
        ("per_second", load.count() as f64 / took.as_secs_f64()),
        ("cpu_us", daemon.cpu_us() as f64 / load.count() as f64),
        ("rss_mib", daemon.peak_rss() as f64 / f64::from(1 << 20)),
    ]));
    clean(&site, daemon);
    run
}

/// What was sent, and what arrived of it.
#[derive(Default)]
struct Flow {
    load: Progress,
    /// Whether what arrives is still noted.
    notes: Progress,
    arrivals: Arrivals,
}

impl Flow {
    fn sent(&self) -> u64 {
        self.load.sent.load(Ordering::Relaxed)
    }

    /// Waits until all that was sent by now has arrived. Returns how much has not.
    fn missing(&self) -> u64 {
        let sent = self.sent();
        holds_within(LIMIT, || self.arrivals.distinct() >= sent);
        sent.saturating_sub(self.arrivals.distinct())
    }
}

/// Two daemons, one of which owns the store. The owner is killed; once the other one has taken over, it is
/// started again, and stands by. A takeover takes from the kill to the next arrival after a silence.
fn killed(node: &Node, server: &Database, kills: u64) -> Run {
    let site = Site::on(node, "postgres-kills");
    let mut inbox = site.inbox(APPLICATION);
    let config = site.in_database(site.config().text("defaults.format", "passthrough"), server);
    let mut owner = Daemon::another(&config);
    let mut spare = Daemon::another(&config);
    owner.start_again();
    owner.wait_ready();
    spare.start_again();
    let flow = Flow::default();
    // Ended by the last kill: no load lasts that long.
    let load = Steady { rate: KILL_RATE, seconds: 60 * (kills + 1), spread_ms: 1_000 };
    let mut takeovers = Vec::new();
    let lost = std::thread::scope(|scope| {
        let feeder = scope.spawn(|| {
            load.feed(node, (&site.ingest(), APPLICATION), &flow.load, timed);
        });
        scope.spawn(|| flow.arrivals.note(&mut inbox, &flow.notes.over));
        let (ends, _notes) = (Ends(&flow.load), Ends(&flow.notes));
        for _ in 0..kills {
            wait_until("the spare stands by", LIMIT, || spare.stage() == "standby");
            assert_eq!(flow.missing(), 0, "all has arrived before the next kill");
            let killed = Instant::now();
            owner.kill9();
            takeovers.push(silence_after(&flow, killed));
            owner.start_again();
            std::mem::swap(&mut owner, &mut spare);
        }
        drop(ends);
        feeder.join().expect("the producer");
        flow.missing()
    });
    takeovers.sort_unstable();
    let seconds = |p: f64| percentile(&takeovers, p) as f64 / 1e6;
    drop(spare);
    clean(&site, owner);
    figures([
        ("takeover_p50_s", seconds(50.0)),
        ("takeover_most_s", seconds(100.0)),
        ("repeats", flow.arrivals.repeats() as f64),
        ("lost", lost as f64),
    ])
}

/// From the kill to the first arrival after half a second without one, us.
fn silence_after(flow: &Flow, killed: Instant) -> i64 {
    const SILENT: Duration = Duration::from_millis(500);
    let (mut last, mut since) = (flow.arrivals.distinct(), Instant::now());
    loop {
        std::thread::sleep(Duration::from_millis(5));
        let now = flow.arrivals.distinct();
        if now != last {
            if since.elapsed() >= SILENT {
                return i64::try_from(killed.elapsed().as_micros()).unwrap_or(i64::MAX);
            }
            (last, since) = (now, Instant::now());
        }
        assert!(killed.elapsed() < LIMIT, "nobody takes the store over");
    }
}
