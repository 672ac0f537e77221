//! The life of the process: start without a broker, locks, signals, reloads.

use std::time::{Duration, Instant};
use tidegate_harness::{Daemon, Ledger, Node, Recorder, Site};

#[test]
fn the_start_does_not_wait_for_the_broker() {
    let Some(node) = Node::own("the_start_does_not_wait_for_the_broker", "") else { return };
    let site = Site::on(&node, "no-broker");
    site.application("shop");
    node.stop();
    let start = Instant::now();
    let daemon = Daemon::start(&site.config(), &site.dir);
    tidegate_harness::wait_until("it lives", Duration::from_secs(5), || daemon.ask("GET", "/livez").0 == 200);
    let (status, missing) = daemon.ask("GET", "/readyz");
    assert_eq!(status, 503, "{missing}");
    assert!(start.elapsed() < Duration::from_secs(5));
    node.start_again();
    let daemon = daemon.ready();
    let client = tidegate_harness::Client::connect(node.uri());
    client.publish(&site.push("shop", "{}").id("x"));
    assert_eq!(client.consume(&site.queue("shop")).batch().ids(), ["x"]);
    drop(daemon);
}

#[test]
fn a_second_process_on_the_store_is_refused() {
    let site = Site::new("locked");
    let first = site.start(&site.config());
    let dir = tidegate_harness::workdir("second");
    let mut second = Daemon::start(&site.config(), &dir);
    let status = second.exit(Duration::from_secs(10));
    assert_eq!(status.code(), Some(75), "{}", second.log_tail());
    assert!(second.log().contains(&first.pid().to_string()), "names the pid: {}", second.log());
}

#[test]
fn sigterm_under_load_loses_nothing() {
    let site = Site::new("sigterm");
    site.application("shop");
    let ledger = Ledger::new();
    let _recorder = Recorder::start(site.node.uri(), &[site.queue("shop")], &ledger);
    let mut daemon = site.start(&site.config());
    let load = site.load(&ledger, 500);
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(1200));
        daemon.term();
        let status = daemon.exit(Duration::from_secs(30));
        assert_eq!(status.code(), Some(0), "{}", daemon.log_tail());
        daemon.start_again();
        daemon.wait_ready();
    }
    load.stop();
    let report = ledger.settle(Duration::from_secs(20));
    report.assert_clean();
    assert!(report.repeats.is_empty(), "an orderly stop repeats nothing: {} repeats", report.repeats.len());
}

#[test]
fn a_second_signal_ends_it_at_once_and_loses_nothing() {
    let site = Site::new("second-signal");
    site.application("shop");
    let ledger = Ledger::new();
    let _recorder = Recorder::start(site.node.uri(), &[site.queue("shop")], &ledger);
    let mut daemon = site.start(&site.config());
    let load = site.load(&ledger, 500);
    std::thread::sleep(Duration::from_millis(1000));
    daemon.term();
    daemon.term();
    daemon.exit(Duration::from_secs(5));
    daemon.start_again();
    daemon.wait_ready();
    std::thread::sleep(Duration::from_millis(500));
    load.stop();
    ledger.settle(Duration::from_secs(20)).assert_clean();
}

#[test]
fn sighup_takes_a_good_configuration_and_keeps_the_old_one_otherwise() {
    let site = Site::new("sighup");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config());
    let waits = |id: &str| {
        site.client.publish(&site.push("shop", "{}").customer("c").id(id));
        let received = inbox.next();
        let item = received.clone().batch().items.remove(0);
        assert_eq!(item.id, id);
        item.due - item.received
    };
    let old = waits("before");
    assert!((195..300).contains(&old), "waited {old} ms");
    daemon.rewrite(&site.config().text("defaults.window", "a while").text("defaults.colour", "red"));
    daemon.hup();
    tidegate_harness::wait_until("the fault is reported", Duration::from_secs(5), || {
        daemon.log().contains("colour")
    });
    assert!(daemon.running());
    let old = waits("refused");
    assert!((195..300).contains(&old), "the old one stands, yet it waited {old} ms");
    let mut n = 0;
    daemon.rewrite(&site.config().text("defaults.window", "900ms"));
    daemon.hup();
    tidegate_harness::wait_until("the new window", Duration::from_secs(10), || {
        n += 1;
        waits(&format!("x{n}")) >= 895
    });
    assert_eq!(daemon.ask("GET", "/readyz").0, 200, "without a reconnect");
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
