//! Declared, checked and ignored topology, and existing queues with other arguments.

use std::time::Duration;
use tidegate_harness::lapin::types::{AMQPValue, FieldTable};
use tidegate_harness::lapin::ExchangeKind;
use tidegate_harness::{has_disk_store, text, wait_until, Config, Daemon, Node, Push, Site};

#[test]
fn declare_builds_everything_with_default_names() {
    let Some(node) = Node::controlled("declare_builds_everything") else { return };
    let site = Site::on(node, "defaults");
    let plain = tidegate_harness::Client::connect(&node.uri_of("guest", "plain"));
    let config = Config::default()
        .text("amqp.uri", &node.uri_of("guest", "plain"))
        .text("store.path", &site.dir.join("store").to_string_lossy());
    let _daemon = site.start(&config);
    assert!(plain.has_exchange("tidegate.in", ExchangeKind::Fanout));
    assert!(plain.has_exchange("tidegate.out", ExchangeKind::Direct));
    assert!(plain.has_exchange("tidegate.dead", ExchangeKind::Fanout));
    plain.lies("tidegate.dead", 0);
    let listed = node.ctl(&["list_queues", "-p", "plain", "name", "arguments", "durable"]);
    for wanted in ["x-queue-type", "quorum", "at-least-once", "reject-publish", "x-delivery-limit", "50"] {
        assert!(listed.contains(wanted), "{wanted} in {listed}");
    }
    plain.queue("app", FieldTable::default());
    plain.bind("app", "tidegate.out", "app");
    plain.publish(&Push::new("tidegate.in", "app", "{}").id("x"));
    assert_eq!(plain.consume("app").batch().ids(), ["x"]);
}

#[test]
fn passive_waits_for_what_is_missing_and_takes_it_when_it_comes() {
    let site = Site::new("passive");
    let daemon = Daemon::start(&site.config().text("amqp.topology", "passive"), &site.dir);
    wait_until("it says what is missing", Duration::from_secs(20), || {
        let (status, told) = daemon.ask("GET", "/readyz");
        assert_ne!(status, 200, "{told}");
        daemon.log().contains(&site.ingest_queue())
    });
    assert!(!site.client.has_queue(&site.ingest_queue()), "passive creates nothing");
    build(&site);
    let daemon = daemon.ready();
    let inbox = site.inbox("shop");
    site.client.publish(&site.push("shop", "{}").id("x"));
    assert_eq!(inbox.batch().ids(), ["x"]);
    drop(daemon);
}

#[test]
fn off_uses_what_is_there() {
    let site = Site::new("off");
    build(&site);
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config().text("amqp.topology", "off"));
    site.client.publish(&site.push("shop", "{}").id("x"));
    assert_eq!(inbox.batch().ids(), ["x"]);
}

fn build(site: &Site<'_>) {
    site.client.exchange(&site.ingest(), ExchangeKind::Fanout);
    site.client.exchange(&site.out(), ExchangeKind::Direct);
    site.client.exchange(&site.dead(), ExchangeKind::Fanout);
    site.client.queue(&site.dead(), FieldTable::default());
    site.client.bind(&site.dead(), &site.dead(), "");
    site.client.queue(&site.ingest_queue(), FieldTable::default());
    site.client.bind(&site.ingest_queue(), &site.ingest(), "");
}

#[test]
fn a_queue_with_other_arguments_is_used_and_both_sides_are_reported() {
    let site = Site::new("mismatch");
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(123_456));
    arguments.insert("x-overflow".into(), text("drop-head"));
    site.client.queue(&site.ingest_queue(), arguments);
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config());
    site.client.publish(&site.push("shop", "{}").id("x"));
    assert_eq!(inbox.batch().ids(), ["x"]);
    let log = daemon.log();
    let told = log.lines().any(|l| l.contains(&site.ingest_queue()) && l.contains("WARN"));
    assert!(told, "a warning that names the queue:\n{log}");
    assert!(log.contains("quorum"), "what was wanted:\n{log}");
}

/// Judges promise 11.
#[test]
fn a_second_daemon_does_not_consume_the_same_queue() {
    // With a store in a database the second daemon does not reach the broker.
    if !has_disk_store() {
        return;
    }
    let site = Site::new("exclusive");
    // RabbitMQ enforces exclusive consumers on classic queues only.
    site.client.queue(&site.ingest_queue(), FieldTable::default());
    let _first = site.start(&site.config());
    let dir = tidegate_harness::workdir("second");
    let config = site.config().text("store.path", &dir.join("store").to_string_lossy());
    let second = Daemon::start(&config, &dir);
    wait_until("it is refused", Duration::from_secs(20), || {
        let (status, told) = second.ask("GET", "/readyz");
        assert_ne!(status, 200, "the consumer is exclusive, yet {told}");
        let log = second.log();
        log.lines().any(|line| line.contains(&site.ingest_queue()) && line.contains("WARN"))
    });
}
