//! Kills and restarts under load, judged by the oracle.

use std::time::{Duration, SystemTime};
use tidegate_harness::{say, Ledger, Node, Recorder, Report, Site};

/// Moments for faults; the seed is printed, so that a bad run can be told apart from a bad day.
struct Moments(u64);

impl Moments {
    fn new(test: &str) -> Moments {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock after 1970");
        let seed = u64::from(since.subsec_nanos()) | 1;
        say(&format!("{test}: seed {seed}"));
        Moments(seed)
    }

    fn pause(&mut self, from_ms: u64, to_ms: u64) {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        std::thread::sleep(Duration::from_millis(from_ms + self.0 % (to_ms - from_ms)));
    }
}

fn told(test: &str, report: &Report) {
    say(&format!(
        "{test}: {} confirmed, {} items in {} batches, {} repeats, {} lost",
        report.confirmed,
        report.items_out,
        report.batches,
        report.repeats.len(),
        report.lost.len()
    ));
}

fn kill_loop(name: &str, kind: &str, kills: u32) {
    let site = Site::new(name);
    site.application("shop");
    let ledger = Ledger::new();
    let _recorder = Recorder::start(site.node.uri(), &[site.queue("shop")], &ledger);
    let mut daemon = site.start(&site.config().text("store.kind", kind));
    let load = site.load(&ledger, 800);
    let mut moments = Moments::new(name);
    for _ in 0..kills {
        moments.pause(200, 1800);
        daemon.kill9();
        daemon.start_again();
        daemon.wait_ready();
    }
    moments.pause(200, 800);
    load.stop();
    let report = ledger.settle(Duration::from_secs(30));
    told(name, &report);
    report.assert_clean();
    let per_kill = report.repeats.len() as u64 / u64::from(kills);
    assert!(per_kill <= 4000, "{per_kill} repeats a kill: more than what was in flight");
    assert_eq!(site.client.depth(&site.dead()), Some(0), "nothing was given up");
}

#[test]
fn kill_9_of_the_daemon_with_the_disk_store() {
    kill_loop("kill-disk", "disk", 8);
}

#[test]
fn kill_9_of_the_daemon_with_the_memory_store() {
    kill_loop("kill-memory", "memory", 4);
}

#[test]
fn kill_9_right_after_the_start_does_not_lose_the_backlog() {
    let site = Site::new("kill-start");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config());
    site.client.publish_all((0..2000).map(|n| {
        let push = site.push("shop", "{}").id(&format!("{n}")).delay(4000);
        if n % 2 == 0 {
            push.customer(&format!("c{}", n % 10))
        } else {
            push
        }
    }));
    for pause in [0, 30, 90, 200, 400] {
        daemon.kill9();
        daemon.start_again();
        std::thread::sleep(Duration::from_millis(pause));
    }
    daemon.wait_ready();
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 2000 {
        let received = inbox.next();
        assert!(received.lateness_us() >= 0, "early");
        seen.extend(received.batch().items.into_iter().map(|i| i.id));
    }
}

#[test]
fn the_broker_restarts_and_is_killed_under_load() {
    let Some(node) = Node::own("the_broker_restarts_and_is_killed", "") else { return };
    let site = Site::on(&node, "broker");
    site.application("shop");
    let ledger = Ledger::new();
    let recorder = Recorder::start(node.uri(), &[site.queue("shop")], &ledger);
    let mut daemon = site.start(&site.config());
    let pid = daemon.pid();
    let load = site.load(&ledger, 500);
    let mut moments = Moments::new("broker");
    for kill in [false, true, false, true] {
        moments.pause(1500, 2500);
        if kill {
            node.kill9()
        } else {
            node.stop()
        }
        moments.pause(100, 1500);
        node.start_again();
        daemon.wait_ready();
    }
    moments.pause(1000, 1500);
    load.stop();
    let report = ledger.settle(Duration::from_secs(60));
    told("broker", &report);
    report.assert_clean();
    assert!(daemon.running() && daemon.pid() == pid, "the same process throughout");
    drop(recorder);
}
