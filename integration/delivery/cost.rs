//! The cost of a message under light load, in commits, syncs and threads: other load on the machine hardly
//! changes these counts.

use super::{held, order};
use std::fs;
use std::time::Duration;
use tidegate_harness::{has_disk_store, now_ms, require, wait_until, Daemon, Site};

/// Number of messages, and the time over which they become due: some two hundred a second.
const COUNT: u32 = 300;
const SPREAD_MS: i64 = 1_500;

/// Publishes items with own times, spread over a while, and lets them leave once all are taken. Without ids,
/// because a new id may need a query to the store, which ends the delay that batches commits. Returns when
/// the first one is due, UTC ms.
fn push_spread(site: &Site<'_>, daemon: &Daemon) -> u64 {
    order(daemon, "pause");
    let first = now_ms() + 4_000;
    let base = i64::try_from(first).expect("a date");
    site.client.publish_all((0..COUNT).map(|n| {
        let at = base + i64::from(n) * SPREAD_MS / i64::from(COUNT);
        site.push("shop", "{}").number("x-deliver-at", at)
    }));
    held(daemon, u64::from(COUNT));
    order(daemon, "resume");
    first
}

fn commits(daemon: &Daemon) -> u64 {
    daemon.state()["store"]["commits"].as_u64().expect("commits")
}

#[test]
fn what_was_delivered_is_removed_many_items_a_commit() {
    let site = Site::new("removed");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config());
    let first = push_spread(&site, &daemon);
    let before = commits(&daemon);
    assert_eq!(inbox.items(COUNT as usize, Duration::from_secs(30)).len(), COUNT as usize);
    wait_until("nothing is left", Duration::from_secs(10), || daemon.items("waiting") == 0);
    // One commit every 100 ms makes 15; one for each message, or every 10 ms, would make far more. On a machine
    // with other work they leave over a longer time.
    let (made, time) = (commits(&daemon) - before, now_ms().saturating_sub(first));
    let most = (u64::from(COUNT) / 4).max(time / 100 + 30);
    assert!(made <= most, "{made} commits while {COUNT} messages left in {time} ms");
}

#[test]
fn requests_and_removals_share_syncs() {
    if !require("strace") || !has_disk_store() {
        return;
    }
    let site = Site::new("shared-syncs");
    let inbox = site.inbox("shop");
    let (daemon, trace) = Daemon::start_traced(&site.config(), &site.dir, "fdatasync");
    let mut daemon = daemon.ready();
    let begun = now_ms();
    push_spread(&site, &daemon);
    inbox.items(COUNT as usize, Duration::from_secs(30));
    daemon.term();
    daemon.exit(Duration::from_secs(30));
    let trace = fs::read_to_string(trace).expect("the trace");
    let syncs = trace.lines().filter(|line| line.contains("fdatasync(")).count();
    assert!(syncs > 0, "no sync in the trace: does the pattern still fit?");
    // About twenty; one for each message would make hundreds. The start uses fsync, not fdatasync. On a machine
    // with other work they come and leave over a longer time.
    let time = now_ms().saturating_sub(begun);
    let most = (u64::from(COUNT) / 3).max(time / 100 + 30);
    assert!(syncs as u64 <= most, "{syncs} syncs of data for {COUNT} messages in {time} ms");
}

#[test]
fn each_end_of_the_broker_has_one_thread() {
    let site = Site::new("threads");
    let daemon = site.start(&site.config());
    // Two threads of one pool would both wake at each event. Threads of DNS look-ups end after ten seconds.
    wait_until("one thread each", Duration::from_secs(60), || {
        let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("its threads");
        let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let names: Vec<String> = tasks.flatten().map(name).collect();
        let count = |wanted: &str| names.iter().filter(|name| name.trim() == wanted).count();
        (count("tidegate-in"), count("tidegate-out")) == (1, 1)
    });
}
