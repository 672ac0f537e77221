//! Faults of the broker: a queue of a shard that is missing, and connections that are closed.

use super::{applications, consumed, home, killed, queues, site, COUNT};
use std::time::Duration;
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::{text, wait_until, Daemon, Ledger, Node, Recorder};

/// Time limit of a wait.
const LIMIT: Duration = Duration::from_secs(60);
/// The shard whose queue goes missing.
const MISSING: u16 = 2;
/// A user of this test alone, by which its daemon's connections are closed.
const CLOSED: &str = "shards-closed";
/// Connections of its daemon: those that consume, publish and forward for each shard, and that of the sharder.
const CONNECTIONS: u64 = 3 * COUNT as u64 + 1;

#[test]
fn a_deleted_queue_of_a_shard_is_made_again_and_nothing_is_lost() {
    let site = site("shards-deleted");
    let applications = consumed(&site);
    let daemon = site.start(&site.config());
    let queue = site.shard_queue(MISSING);
    for round in 0..3 {
        // What lies in a deleted queue is lost with it, so nothing does.
        site.client.delete_queue(&queue);
        site.client.publish_all(applications.iter().flat_map(|(application, _)| {
            (0..20).map(|n| site.push(application, "{}").id(&format!("{round}-{n}"))).collect::<Vec<_>>()
        }));
        for (application, inbox) in &applications {
            let mut ids: Vec<String> = inbox.items(20, LIMIT).into_iter().map(|item| item.id).collect();
            ids.sort();
            ids.dedup();
            assert_eq!(ids.len(), 20, "{application}");
        }
        wait_until("all is acked", LIMIT, || daemon.state()["ready"] == true);
        queues(&site).for_each(|queue| site.lies(&queue, 0));
    }
    for (_, inbox) in &applications {
        inbox.quiet(Duration::from_millis(50));
    }
    site.lies(&site.dead(), 0);
}

#[test]
fn while_the_queue_of_one_shard_is_missing_the_others_go_on() {
    let site = site("shards-missing");
    let applications = consumed(&site);
    let mut daemon = site.start(&site.config());
    daemon.term();
    assert!(daemon.exit(LIMIT).success(), "{}", daemon.log_tail());
    let queue = site.shard_queue(MISSING);
    daemon.rewrite(&site.config().text("amqp.topology", "passive"));
    daemon.start_again();
    daemon.wait_ready();
    site.client.delete_queue(&queue);
    for n in 0..10 {
        site.client.publish_all(
            applications.iter().map(|(application, _)| site.push(application, "{}").id(&format!("{n}"))),
        );
        for (application, inbox) in applications.iter().filter(|(name, _)| home(name) != MISSING) {
            assert_eq!(inbox.batch().ids(), [format!("{n}")], "{application}");
        }
    }
    assert!(daemon.log().contains(&queue), "the log names it: {}", daemon.log_tail());
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text("quorum"));
    site.client.queue(&queue, arguments);
    for (application, inbox) in applications.iter().filter(|(name, _)| home(name) == MISSING) {
        let ids: Vec<String> = inbox.items(10, LIMIT).into_iter().map(|item| item.id).collect();
        assert_eq!(ids, (0..10).map(|n| n.to_string()).collect::<Vec<_>>(), "{application}");
    }
    for (_, inbox) in &applications {
        inbox.quiet(Duration::from_millis(50));
    }
}

/// Connections that the daemon has lost or could not open so far; `None` without an answer.
fn losses(daemon: &Daemon) -> Option<u64> {
    let metrics = daemon.ask_whole("GET", "/metrics").filter(|answer| answer.status == 200)?.body;
    let lines = metrics.lines().filter(|line| line.starts_with("tidegate_connections_failed_total{"));
    Some(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
}

#[test]
fn closed_connections_lose_nothing_and_explain_every_repeat() {
    let Some(node) = Node::controlled("closed_connections_lose_nothing_and_explain_every_repeat") else {
        return;
    };
    node.ctl(&["add_user", CLOSED, CLOSED]);
    node.ctl(&["set_permissions", "-p", "/", CLOSED, ".*", ".*", ".*"]);
    let site = site("shards-closed");
    let names = applications(2);
    let queues: Vec<String> = names.iter().map(|name| site.queue(name)).collect();
    names.iter().for_each(|name| site.application(name));
    let ledger = Ledger::new();
    let recorder = Recorder::start(node.uri(), &queues, &ledger);
    let mut daemon = site.start(&site.config().text("amqp.uri", &node.uri_of(CLOSED, "%2f")));
    let load = killed::load(&site, &ledger, "amid", &names);
    let some_more = || {
        let sent = ledger.confirmed_count() + 100;
        wait_until("some more have come", LIMIT, || ledger.arrived_count() >= sent);
    };
    for _ in 0..3 {
        some_more();
        let mut before = None;
        wait_until("its figures", LIMIT, || {
            before = losses(&daemon);
            before.is_some()
        });
        ledger.fault();
        node.close_connections(CLOSED);
        wait_until("all of them are lost", LIMIT, || {
            losses(&daemon) >= before.map(|before| before + CONNECTIONS)
        });
        daemon.wait_ready();
        ledger.healed();
    }
    some_more();
    load.stop();
    let report = ledger.settle(LIMIT);
    report.assert_clean();
    assert!(report.unexplained.is_empty(), "{:?}", report.unexplained);
    drop(recorder);
    daemon.holds("waiting", 0);
    site.lies(&site.dead(), 0);
}
