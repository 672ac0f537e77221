//! `kill -9` under load: the time until the backlog is back at its former level.

use crate::book::{run as figures, Bench, Book, Case, Run};
use crate::load::{timed, Arrivals, Ends, Progress, Steady, APPLICATION};
use crate::report::told_whole;
use crate::throughput::clean;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tidegate_harness::{wait_until, Daemon, Node, Site};

pub const GROUP: &str = "kills";
const RATE: u64 = 3_000;
const PERIOD: Duration = Duration::from_secs(2);
/// Before the first kill: the longest delay, and then a second in which the level is measured.
const CALM: Duration = Duration::from_secs(4);
/// Time limit for the load after the last kill.
const LEVEL: Duration = Duration::from_secs(60);

pub fn run(bench: &Bench, book: &mut Book) {
    if !bench.wants(GROUP) {
        return;
    }
    let kills = bench.plan.kills;
    for _ in 0..bench.plan.rounds {
        let title = format!("kill -9 every 2 s, {kills} times, {} requests a second", told_whole(RATE));
        let case = Case::new(GROUP, GROUP, title).at("kills", kills).at("rate", RATE);
        book.measure(case, || killed(&bench.node, kills));
    }
}

/// Requests that were sent and have not arrived.
#[derive(Default)]
struct Behind {
    load: Progress,
    arrivals: Arrivals,
}

impl Behind {
    fn now(&self) -> u64 {
        // In this order: an arrival between the two reads can only make the result too small.
        let sent = self.load.sent.load(Ordering::Relaxed);
        sent.saturating_sub(self.arrivals.distinct())
    }

    /// The maximum within this time.
    fn most(&self, time: Duration) -> u64 {
        let end = Instant::now() + time;
        let mut most = 0;
        while Instant::now() < end {
            most = most.max(self.now());
            std::thread::sleep(Duration::from_millis(5));
        }
        most
    }
}

fn killed(node: &Node, kills: u64) -> Run {
    let site = Site::on(node, "kills");
    let mut inbox = site.inbox(APPLICATION);
    let mut daemon = site.start(&site.config().text("defaults.format", "passthrough"));
    let seconds = (CALM + LEVEL).as_secs() + 2 + kills * PERIOD.as_secs();
    let load = Steady { rate: RATE, seconds, spread_ms: 2_000 };
    let behind = Behind::default();
    let run = std::thread::scope(|scope| {
        scope.spawn(|| {
            load.feed(node, (&site.ingest(), APPLICATION), &behind.load, timed);
        });
        scope.spawn(|| behind.arrivals.note(&mut inbox, &behind.load.over));
        let _ends = Ends(&behind.load);
        kill(&mut daemon, &behind, kills)
    });
    clean(&site, daemon);
    run
}

fn kill(daemon: &mut Daemon, behind: &Behind, kills: u64) -> Run {
    std::thread::sleep(CALM);
    let level = behind.most(Duration::from_secs(1));
    let mut last = Instant::now();
    for _ in 0..kills {
        std::thread::sleep(PERIOD);
        last = Instant::now();
        daemon.kill9();
        daemon.start_again();
    }
    // Not in the first 200 ms: the backlog must rise above the level before it can fall to it.
    let mut highest = 0;
    wait_until("the backlog is level", LEVEL, || {
        let now = behind.now();
        highest = highest.max(now);
        now <= level && last.elapsed() > Duration::from_millis(200)
    });
    let seconds = last.elapsed().as_secs_f64();
    figures([
        ("seconds", seconds),
        ("level", level as f64),
        ("highest", highest as f64),
        ("repeats", behind.arrivals.repeats() as f64),
    ])
}
