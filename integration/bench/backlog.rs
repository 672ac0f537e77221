//! A growing backlog: its cost, and its effect on the lateness of items that are due soon.

use crate::book::{guarded, run as figures, Bench, Book, Case, Run};
use crate::load::{delay, Batch, Ids, Steady, APPLICATION, PATIENCE};
use crate::report::told_whole;
use crate::steady::under;
use crate::throughput::taken_in;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};
use tidegate_harness::{Daemon, Inbox, Push, Site, Verdict};

pub const GROUP: &str = "waiting";
const DAY_MS: u64 = 86_400_000;
/// Messages published before the daemon must have taken them in, so that the broker holds no backlog itself.
const SLICE: u64 = 100_000;
/// Delay of the item that a start is timed by: long enough to be stored before the kill.
const SOON_MS: u64 = 1_000;

pub fn run(bench: &Bench, book: &mut Book) {
    if !bench.wants(GROUP) {
        return;
    }
    let plan = &bench.plan;
    let limit = book.limit;
    let begun = guarded("starting the daemon", limit, || {
        let site = Site::on(&bench.node, GROUP);
        let inbox = site.inbox(APPLICATION);
        let daemon = site.start(&site.config().text("defaults.format", "passthrough"));
        (site, inbox, daemon)
    });
    let (site, mut inbox, mut daemon) = match begun {
        Ok(begun) => begun,
        Err(wrong) => return book.fail(case(plan.waiting[0], plan.waiting_rate), wrong),
    };
    for waiting in &plan.waiting {
        let filling = guarded("filling the store", limit, || fill(&site, &daemon, *waiting));
        if let Err(wrong) = filling {
            return book.fail(case(*waiting, plan.waiting_rate), wrong);
        }
        for _ in 0..plan.rounds {
            let load = |rate| Steady { rate, seconds: plan.seconds, spread_ms: plan.spread_ms };
            book.measure(case(*waiting, plan.waiting_rate), || {
                let mut run = started(&site, &mut daemon, &mut inbox, *waiting);
                run.extend(loaded(&site, &daemon, &mut inbox, load(plan.waiting_rate)));
                run
            });
            if *waiting == plan.fast_waiting {
                book.measure(case(*waiting, plan.fast_rate), || {
                    loaded(&site, &daemon, &mut inbox, load(plan.fast_rate))
                });
            }
        }
    }
}

fn case(waiting: u64, rate: u64) -> Case {
    let title = format!("{} waiting, {} a second", told_whole(waiting), told_whole(rate));
    Case::new(GROUP, format!("waiting-{waiting}-{rate}"), title).at("waiting", waiting).at("rate", rate)
}

/// Publishes until `waiting` items wait that are due in a day.
fn fill(site: &Site<'_>, daemon: &Daemon, waiting: u64) {
    let far = delay(DAY_MS);
    loop {
        let there = daemon.items("waiting");
        if there >= waiting {
            return;
        }
        let count = SLICE.min(waiting - there);
        let before = accepted(daemon);
        Batch::of(&site.ingest(), count, Ids::None).publish(site.node, |_| far.clone());
        taken_in(daemon, before + count);
    }
}

fn accepted(daemon: &Daemon) -> u64 {
    daemon.state()["totals"]["accepted"].as_u64().unwrap_or(0)
}

/// `kill -9`, and the time from the next start to the arrival of an item that became due while the daemon was
/// down; and the size of the store.
fn started(site: &Site<'_>, daemon: &mut Daemon, inbox: &mut Inbox, waiting: u64) -> Run {
    let soon = Push::new(&site.ingest(), APPLICATION, "soon").delay(i64::try_from(SOON_MS).unwrap_or(0));
    let before = accepted(daemon);
    assert_eq!(site.client.publish(&soon), Verdict::Taken);
    taken_in(daemon, before + 1);
    daemon.kill9();
    std::thread::sleep(Duration::from_millis(SOON_MS));
    let begun = Instant::now();
    daemon.start_again();
    inbox.poll(PATIENCE).expect("what has fallen due");
    let start = begun.elapsed();
    daemon.wait_ready();
    let disk = bytes_below(&site.dir.join("store")) as f64;
    figures([
        ("start_ms", start.as_secs_f64() * 1000.0),
        ("idle_mib", daemon.rss() as f64 / f64::from(1 << 20)),
        ("disk_bytes", disk / waiting as f64),
    ])
}

fn loaded(site: &Site<'_>, daemon: &Daemon, inbox: &mut Inbox, load: Steady) -> Run {
    let mut run = under(site, daemon, inbox, load);
    run.insert("rss_mib".to_owned(), daemon.peak_rss() as f64 / f64::from(1 << 20));
    run
}

/// Allocated size: of a preallocated file only the written part.
fn bytes_below(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        Ok(found) => found.blocks() * 512,
        // The file was compacted away while the folder was read.
        Err(_) => 0,
    });
    sizes.sum()
}
