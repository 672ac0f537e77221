//! The start of the process: without a broker, with a bad configuration. Locks, signals and reloads are rows of the
//! table of faults (`faults/life.rs`), which run in each `make test`.

use std::time::{Duration, Instant};
use tidegate_harness::{Daemon, Node, Site};

#[test]
fn the_start_does_not_wait_for_the_broker() {
    let Some(node) = Node::own("the_start_does_not_wait_for_the_broker", "") else { return };
    let site = Site::on(&node, "no-broker");
    site.application("shop");
    node.stop();
    let start = Instant::now();
    let daemon = Daemon::start(&site.config(), &site.dir);
    tidegate_harness::wait_until("it lives", Duration::from_secs(20), || {
        daemon.ask("GET", "/livez").0 == 200
    });
    let (status, missing) = daemon.ask("GET", "/readyz");
    assert_eq!(status, 503, "{missing}");
    assert!(start.elapsed() < Duration::from_secs(20), "it has waited for the broker");
    node.start_again();
    let daemon = daemon.ready();
    let client = tidegate_harness::Client::connect(node.uri());
    client.publish(&site.push("shop", "{}").id("x"));
    assert_eq!(client.consume(&site.queue("shop")).batch().ids(), ["x"]);
    drop(daemon);
}

#[test]
fn a_bad_configuration_is_exit_code_78_with_every_fault() {
    let site = Site::new("bad-config");
    let config = site.config().text("ingest.prefech", "1").text("defaults.window", "soon");
    let mut daemon = Daemon::start(&config, &site.dir);
    let status = daemon.exit(Duration::from_secs(10));
    assert_eq!(status.code(), Some(78));
    let log = daemon.log();
    assert!(log.contains("prefech") && log.contains("window"), "all faults at once: {log}");
}
