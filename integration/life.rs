//! Process start: without a broker, with an invalid configuration. Locks, signals and reloads are rows of the
//! table of faults (`faults/life.rs`), which run in each `make test`.

use std::fs;
use std::time::{Duration, Instant};
use tidegate_harness::{wait_until, Daemon, Node, Site};

#[test]
fn the_start_does_not_wait_for_the_broker() {
    let Some(node) = Node::lent("the_start_does_not_wait_for_the_broker") else { return };
    let site = Site::on(&node, "no-broker");
    site.application("shop");
    node.stop();
    let start = Instant::now();
    let daemon = Daemon::start(&site.config(), &site.dir);
    wait_until("it lives", Duration::from_secs(20), || daemon.ask("GET", "/livez").0 == 200);
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

/// A reload from a pipe without a writer blocks nothing: what is read in time counts, and what arrives later
/// does not.
#[test]
fn a_reload_that_does_not_come_to_an_end_holds_up_nothing() {
    let site = Site::new("reload-pipe");
    let inbox = site.inbox("shop");
    let config = site.config();
    let daemon = site.start(&config);
    let file = daemon.config_file().to_owned();
    let text = fs::read(&file).expect("the configuration");
    fs::remove_file(&file).expect("it is replaced");
    let made = std::process::Command::new("mkfifo").arg(&file).status().expect("mkfifo");
    assert!(made.success());
    daemon.hup();
    for n in 0..20 {
        site.client.publish(&site.push("shop", "1").id(&n.to_string()).delay(20));
        inbox.next().is_not_early();
        assert_eq!(daemon.ask("GET", "/livez").0, 200);
    }
    let says = |text: &str| daemon.log().contains(text);
    wait_until("it is given up", Duration::from_secs(30), || says("reading it does not end"));
    daemon.hup();
    wait_until("the next is refused", Duration::from_secs(10), || {
        says("an earlier read has not returned yet")
    });
    fs::write(&file, &text).expect("somebody writes to the pipe");
    wait_until("it came too late", Duration::from_secs(10), || says("was read too late"));
    assert!(!says("configuration reloaded"), "{}", daemon.log_tail());
    fs::remove_file(&file).expect("the pipe");
    fs::write(&file, &text).expect("a file again");
    daemon.hup();
    wait_until("it is reloaded", Duration::from_secs(10), || says("configuration reloaded"));
}
