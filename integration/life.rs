//! Process start and stop: without a broker, with an invalid configuration, with acks that the broker has not
//! processed. Locks, signals and reloads are rows of the table of faults (`faults/life.rs`), which run in each
//! `make test`.

use lapin::types::FieldTable;
use std::fs;
use std::io::Read;
use std::time::{Duration, Instant};
use tidegate_harness::{text, wait_until, Daemon, Node, Site};

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

/// RabbitMQ holds acks back that a quorum queue is not ready for, and forgets them when the channel closes.
#[test]
fn what_was_sent_before_a_stop_is_gone_from_the_ingest_queue() {
    const LIMIT: Duration = Duration::from_secs(60);
    const SENT: u64 = 120;
    let Some(node) = Node::lent("what_was_sent_before_a_stop") else { return };
    let site = Site::on(&node, "stop-acks");
    let mut quorum = FieldTable::default();
    quorum.insert("x-queue-type".into(), text("quorum"));
    site.application_with("shop", quorum);
    // Each has one batch in flight until the first one is confirmed.
    let names: Vec<String> = (0..SENT).map(|n| format!("shop{n}")).collect();
    names.iter().for_each(|name| site.client.bind(&site.queue("shop"), &site.out(), name));
    let (app, ingest) = ([site.queue("shop")], [site.ingest_queue()]);
    let mut daemon = site.start(&site.config().text("store.kind", "memory").text("defaults.window", "1ms"));
    node.silence(&app);
    // Between any two of them lies one that stays: each needs an ack of its own.
    site.client.publish_all(names.iter().flat_map(|name| {
        let push = |id: &str| site.push(name, "{}").id(id);
        [push("goes"), push("stays").delay(600_000)]
    }));
    wait_until("they are published", LIMIT, || daemon.items("in_flight") == SENT);
    daemon.term();
    // What comes then lies in the queue.
    let mut more = 0;
    wait_until("nothing is consumed any more", LIMIT, || {
        site.client.publish(&site.push("shop", "{}").id(&format!("more{more}")).delay(600_000));
        more += 1;
        site.client.depth(&ingest[0]) > Some(0)
    });
    node.silence(&ingest);
    node.wake(&app);
    wait_until("they are confirmed", LIMIT, || node.messages(&app[0]) == Some(SENT));
    node.wake(&ingest);
    assert!(daemon.exit(LIMIT).success(), "{}", daemon.log_tail());
    wait_until("only what was not sent", LIMIT, || node.messages(&ingest[0]) == Some(SENT + more));
}

/// The reader may be a pager, a stopped terminal, or a container's log driver.
#[test]
fn a_log_that_nobody_reads_holds_up_nothing() {
    let site = Site::new("unread-log");
    let inbox = site.inbox("shop");
    let mut daemon = Daemon::stopped(&site.config(), &site.dir);
    let mut log = daemon.start_into_pipe();
    daemon.wait_ready();
    let delivered = |id: &str| {
        site.client.publish(&site.push("shop", "{}").id(id));
        assert_eq!(inbox.batch().ids(), [id]);
    };
    delivered("before");
    // Each is a line of the log: together more than a pipe takes.
    let name = "n".repeat(100);
    for n in 0..700 {
        assert_eq!(daemon.ask("POST", &format!("/api/v1/applications/{name}{n}/pause")).0, 200);
    }
    // A line of the thread that reads requests, and one of the thread that decides.
    site.client.publish(&site.push("shop", "{}").id("alike").with("X-Delay", "0"));
    assert_eq!(inbox.batch().ids(), ["alike"]);
    daemon.hup();
    delivered("after");
    assert_eq!(daemon.ask("GET", "/livez").0, 200);
    daemon.term();
    assert!(daemon.exit(Duration::from_secs(60)).success());
    let mut text = String::new();
    log.read_to_string(&mut text).expect("text");
    let lines = text.lines().filter(|line| line.contains("action=\"pause\"")).count();
    assert!(lines > 50 && lines < 700, "the pipe was never full: {lines} lines");
}
