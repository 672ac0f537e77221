//! A stalled part is reported, and a part that waits for something external is not.

use std::fs;
use std::time::{Duration, Instant};
use tidegate_harness::{has_disk_store, wait_until, Config, Daemon, Node, Site};

const LIMIT: Duration = Duration::from_secs(30);
/// Longer than any test holds a thread.
const LONG: Duration = Duration::from_secs(120);

fn quick(site: &Site<'_>) -> Config {
    site.config().text("timeouts.stuck_after", "3s")
}

fn stuck(daemon: &Daemon) -> Vec<String> {
    let names = daemon.ask("GET", "/readyz").1["stuck"].clone();
    serde_json::from_value(names).unwrap_or_default()
}

#[test]
fn a_part_that_stands_still_is_named_by_the_probes_and_the_log_until_it_moves_again() {
    let site = Site::new("stuck");
    site.application("shop");
    let daemon = site.start(&quick(&site));
    for (thread, part) in [("tidegate-out", "egress"), ("tidegate-loop", "loop")] {
        let held = daemon.hold_thread(thread, LONG);
        site.client.publish(&site.push("shop", "{}"));
        wait_until("not ready", LIMIT, || stuck(&daemon) == [part]);
        let (status, document) = daemon.ask("GET", "/readyz");
        assert_eq!((status, &document["missing"]), (503, &serde_json::json!([])), "{document}");
        wait_until("not live", LIMIT, || {
            let (status, document) = daemon.ask("GET", "/livez");
            status == 503 && document["stuck"] == serde_json::json!([part])
        });
        let begins = format!("part=\"{part}\"");
        let lines =
            |what: &str| daemon.log().lines().filter(|l| l.contains(what) && l.contains(&begins)).count();
        wait_until("a line for its begin", LIMIT, || lines("stuck: this part has work") == 1);
        let health = daemon.cli(&["health", "--timeout", "60s"]);
        assert!(health.code == 1 && health.err.contains(part), "{health:?}");
        if part == "egress" {
            assert_eq!(daemon.state()["state"], "stuck");
            let metrics = daemon.ask_whole("GET", "/metrics").expect("an answer").body;
            assert!(metrics.contains("tidegate_stuck{part=\"egress\"} 1"), "{metrics}");
            assert!(metrics.contains("tidegate_stuck{part=\"store\"} 0"), "{metrics}");
        }
        drop(held);
        wait_until("ready again", LIMIT, || daemon.ask("GET", "/readyz").0 == 200);
        assert_eq!(daemon.ask("GET", "/livez").0, 200);
        wait_until("a line for its end", LIMIT, || lines("not stuck any more") == 1);
        assert_eq!(lines("stuck: this part has work"), 1, "one for the whole time: {}", daemon.log_tail());
    }
    assert_eq!(site.client.consume(&site.queue("shop")).take(2, LIMIT).len(), 2, "what waited has gone out");
}

/// A part is stuck after a time for which a busy machine may stop the whole process, or a sync may take.
fn patient(site: &Site<'_>) -> Config {
    site.config().text("timeouts.stuck_after", "8s")
}

/// For longer than `patient` allows nothing is reported stuck, and the daemon stays live.
fn stays_live(daemon: &Daemon, what: &str) {
    let end = Instant::now() + Duration::from_secs(12);
    while Instant::now() < end {
        let (livez, readyz) = (daemon.ask("GET", "/livez"), daemon.ask("GET", "/readyz"));
        assert_eq!(livez.0, 200, "{what}: {livez:?}\n{}", daemon.log_tail());
        assert_eq!(readyz.1["stuck"], serde_json::json!([]), "{what}: {readyz:?}\n{}", daemon.log_tail());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(!daemon.log().contains("stuck: this part has"), "{what}: {}", daemon.log_tail());
}

#[test]
fn what_waits_for_somebody_else_is_not_stuck() {
    let Some(node) = Node::lent("what_waits_for_somebody_else_is_not_stuck") else { return };
    let site = Site::on(&node, "waits");
    ["shop", "paused", "silent"].into_iter().for_each(|name| site.application(name));
    let daemon = site.start(&patient(&site));
    stays_live(&daemon, "idle");
    let send = |name: &str, count: usize| site.client.publish_all((0..count).map(|_| site.push(name, "{}")));
    send("parked", 3);
    daemon.cli(&["pause", "paused"]);
    send("paused", 3);
    send("silent", 1);
    let silent = site.client.consume(&site.queue("silent"));
    assert_eq!(silent.take(1, LIMIT).len(), 1, "it is proven before it falls silent");
    let queue = [site.queue("silent")];
    node.silence(&queue);
    send("silent", 20);
    wait_until("batches that nobody confirms", LIMIT, || daemon.items("in_flight") > 0);
    wait_until("a parked application", LIMIT, || daemon.items("parked") >= 3);
    assert_eq!(daemon.ask("GET", "/readyz").0, 200);
    stays_live(&daemon, "parked, paused, silent");
    node.wake(&queue);
    // What is due is paused until it cannot leave.
    let order = |verb: &str| daemon.ask("POST", &format!("/api/v1/applications/shop/{verb}")).0;
    let one_waits = || {
        wait_until("an item of `shop` is there", LIMIT, || {
            daemon.ask("GET", "/api/v1/applications/shop").1["total"] == 1
        });
    };
    assert_eq!(order("pause"), 200);
    send("shop", 1);
    one_waits();
    node.memory_alarm(true);
    assert_eq!(order("resume"), 200);
    wait_until("a blocked connection", LIMIT, || daemon.state()["state"] == "blocked");
    stays_live(&daemon, "blocked");
    one_waits();
    node.memory_alarm(false);
    site.lies(&site.queue("shop"), 1);
    assert_eq!(order("pause"), 200);
    // The first one has ended when its confirm is known.
    wait_until("nothing of `shop` is left", LIMIT, || {
        let told = daemon.ask("GET", "/api/v1/applications/shop").1;
        told["total"] == 0 || told["result"] == "unknown"
    });
    send("shop", 1);
    one_waits();
    node.stop();
    wait_until("no connection", LIMIT, || daemon.ask("GET", "/readyz").0 == 503);
    assert_eq!(order("resume"), 200);
    stays_live(&daemon, "no broker");
    one_waits();
    node.start_again();
    wait_until("ready again", LIMIT * 2, || daemon.ask("GET", "/readyz").0 == 200);
}

/// Connections that stay open but carry nothing: each wait is bounded and marked as a wait.
#[test]
fn a_network_that_carries_nothing_is_not_taken_for_a_part_that_stands_still() {
    let Some(node) = Node::controlled("a_network_that_carries_nothing") else { return };
    let site = Site::on(node, "stalled-network");
    site.application("shop");
    let (proxy, uri) = node.proxied();
    let daemon = site.start(&patient(&site).text("amqp.uri", &uri));
    site.client.publish_all((0..20).map(|n| site.push("shop", "{}").delay(500 + n * 500)));
    wait_until("they are there", LIMIT, || daemon.items("waiting") > 0);
    proxy.stall();
    for round in ["stalled", "and no connection comes about"] {
        stays_live(&daemon, round);
    }
    proxy.heal();
    wait_until("ready again", LIMIT * 2, || daemon.ask("GET", "/readyz").0 == 200);
}

/// Asks the daemon to stop, and waits until all threads have ended except the one that a tracer holds; that
/// one ends with its process when the tracer releases it. Returns the time taken.
fn ends_around_what_is_held(daemon: &Daemon) -> Duration {
    let tasks = format!("/proc/{}/task", daemon.pid());
    let asked = Instant::now();
    daemon.term();
    // `timeouts.drain`, the time to close, and a margin for a slow machine.
    wait_until("the end of all other threads", Duration::from_secs(25), || {
        fs::read_dir(&tasks).map_or(0, Iterator::count) <= 2
    });
    asked.elapsed()
}

const CLOSED: &str = "closed; waiting items stay in the store";
const BROKEN_OFF: &str = "the stop did not complete in time and is aborted";

#[test]
fn a_stop_ends_whichever_thread_is_held() {
    for (thread, code, line) in [
        ("tidegate-out", 0, CLOSED),
        ("tidegate-in", 0, CLOSED),
        ("tidegate-store", 0, "the store was not closed in time"),
        ("tidegate-loop", 70, BROKEN_OFF),
        ("tidegate", 70, BROKEN_OFF),
    ] {
        let site = Site::new("held");
        site.application("shop");
        let mut daemon = site.start(&quick(&site).text("timeouts.drain", "2s"));
        // With ids, so that a message delivered again is recognised.
        let push = |n: u32| site.push("shop", "{}").delay(3_600_000).id(&n.to_string());
        site.client.publish_all((0..5).map(push));
        wait_until("they are there", LIMIT, || daemon.items("waiting") == 5);
        wait_until("they are acked", LIMIT, || site.client.depth(&site.ingest_queue()) == Some(0));
        let held = daemon.hold_thread(thread, LONG);
        // Longer than any regular wait of the thread.
        std::thread::sleep(Duration::from_millis(1_500));
        site.client.publish(&push(5));
        let time = ends_around_what_is_held(&daemon);
        drop(held);
        let status = daemon.exit(LIMIT);
        assert_eq!(status.code(), Some(code), "{thread}, after {time:?}: {}", daemon.log_tail());
        let log = daemon.log();
        assert!(log.contains(line), "{thread}: {log}");
        let last = log.lines().rfind(|l| l.contains(CLOSED) || l.contains(BROKEN_OFF)).unwrap_or_default();
        assert!(last.contains("waiting="), "{thread}: what was left: {log}");
        if thread == "tidegate-loop" {
            assert!(last.contains("stuck=[\"loop\"]"), "{last}");
        }
        // Acked requests are in the store, and the others are delivered again.
        daemon.start_again();
        daemon.wait_ready();
        wait_until("all of them", LIMIT, || daemon.items("waiting") == 6);
    }
}

/// A sync of the disk does not return.
#[test]
fn a_stop_ends_while_a_sync_does_not_come_back() {
    if !has_disk_store() {
        return;
    }
    let site = Site::new("held-sync");
    site.application("shop");
    let mut daemon = Daemon::stopped(&quick(&site).text("timeouts.drain", "2s"), &site.dir);
    daemon.launch_traced(&["trace=fdatasync", "inject=fdatasync:delay_enter=120000000:when=40"]);
    daemon.wait_ready();
    let mut sent = 0;
    wait_until("a sync that does not come back", Duration::from_secs(60), || {
        sent += 1;
        site.client.publish(&site.push("shop", "{}").with("x-delay", "1h").id(&sent.to_string()));
        stuck(&daemon) == ["store"]
    });
    wait_until("not live", LIMIT, || daemon.ask("GET", "/livez").0 == 503);
    ends_around_what_is_held(&daemon);
    let log = daemon.log();
    assert!(log.contains("the store was not closed in time") && log.contains(CLOSED), "{log}");
}
