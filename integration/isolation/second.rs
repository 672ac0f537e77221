//! One daemon serves an ingest queue, also during pauses and after reconnects of the other.
//!
//! Judges promise 11.

use std::time::Duration;
use tidegate_harness::{wait_until, workdir, Config, Daemon, Node, Site};

const LIMIT: Duration = Duration::from_secs(40);

fn second(config: &Config) -> Daemon {
    let dir = workdir("second");
    Daemon::start(&config.clone().text("store.path", &dir.join("store").to_string_lossy()), &dir)
}

fn consumers(site: &Site<'_>) -> u64 {
    site.node.consumers(&site.ingest_queue()).expect("the ingest queue")
}

fn waits(daemon: &Daemon) {
    wait_until("the second one's reason", LIMIT, || daemon.log().contains("another tidegate serves queue"));
    // The state tells it a moment after the log.
    wait_until("the lock in its links", LIMIT, || {
        daemon.state()["links"].to_string().contains("tidegate.lock.")
    });
    assert_eq!(daemon.ask("GET", "/readyz").0, 503);
}

#[test]
fn a_second_daemon_waits_also_while_the_first_is_paused_and_takes_over_at_its_end() {
    let Some(node) = Node::controlled("a_second_daemon_waits") else { return };
    let site = Site::on(node, "two");
    let config = site.config().set("defaults.max_waiting", "20").text("defaults.on_full", "pause");
    let mut first = site.start(&config);
    let mut other = second(&config);
    waits(&other);
    // It is full, so it pauses but keeps its consumer.
    site.client.publish_all((0..60).map(|n| site.push("later", "{}").id(&n.to_string()).delay(3_600_000)));
    wait_until("a full first one", LIMIT, || first.items("waiting") >= 20);
    std::thread::sleep(Duration::from_secs(3));
    assert!(consumers(&site) <= 1);
    assert_eq!(other.ask("GET", "/readyz").0, 503);
    first.term();
    first.exit(LIMIT);
    other.wait_ready();
    wait_until("its consumer, as the broker counts", LIMIT, || consumers(&site) == 1);
}

#[test]
fn after_a_reconnect_there_is_still_one() {
    // This closes all connections of the node, so it must not be shared with other tests.
    let Some(node) = Node::lent("after_a_reconnect_there_is_still_one") else { return };
    let site = Site::on(&node, "reconnect");
    let config = site.config();
    let first = site.start(&config);
    let other = second(&config);
    waits(&other);
    for _ in 0..3 {
        node.ctl(&["close_all_connections", "-p", "/", "a test"]);
        wait_until("one that is ready", LIMIT, || {
            [&first, &other].iter().filter(|daemon| daemon.ask("GET", "/readyz").0 == 200).count() == 1
        });
        std::thread::sleep(Duration::from_secs(1));
        assert!(consumers(&site) <= 1);
        wait_until("its consumer, as the broker counts", LIMIT, || consumers(&site) == 1);
    }
}

/// Without permission to declare the lock the daemon counts consumers, and names the permission to grant.
#[test]
fn a_login_that_may_not_declare_the_lock_is_told_what_to_grant() {
    let Some(node) = Node::controlled("a_login_that_may_not_declare_the_lock") else { return };
    let site = Site::on(node, "nolock");
    drop(site.start(&site.config()));
    node.ctl(&["add_user", "plain", "plain"]);
    node.ctl(&["set_permissions", "-p", "/", "plain", "^$", ".*", ".*"]);
    let config =
        site.config().text("amqp.uri", &node.uri_of("plain", "%2f")).text("amqp.topology", "passive");
    let mut first = Daemon::start(&config, &site.dir);
    first.wait_ready();
    assert!(
        first.log().contains("Grant the configure permission on 'tidegate.lock."),
        "{}",
        first.log_tail()
    );
    let other = second(&config);
    wait_until("the second one's reason", LIMIT, || other.log().contains("other consumer(s)"));
    std::thread::sleep(Duration::from_secs(7));
    assert_eq!(first.ask("GET", "/readyz").0, 200, "the first one stays");
    assert!(consumers(&site) <= 1);
    wait_until("its consumer, as the broker counts", LIMIT, || consumers(&site) == 1);
}
