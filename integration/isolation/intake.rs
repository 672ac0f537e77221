//! A backlog at the start, the effect of a pause on it, and a large request among many that wait.

use std::time::Duration;
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::lapin::ExchangeKind;
use tidegate_harness::{wait_until, Node, Site};

const LIMIT: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// Judges promise 7.
#[test]
fn large_bodies_that_wait_at_the_start_do_not_fill_the_memory() {
    let site = Site::new("large");
    // The first start declares the topology.
    drop(site.start(&site.config()));
    site.client.exchange(&site.out(), ExchangeKind::Direct);
    site.client.queue(&site.queue("big"), FieldTable::default());
    site.client.bind(&site.queue("big"), &site.out(), "big");
    let body = vec![b'x'; 7 * MIB as usize];
    for n in 0..60 {
        site.client.publish(&site.push("big", body.clone()).id(&n.to_string()));
    }
    let config = site.config().text("limits.memory", "64MiB").text("defaults.format", "passthrough");
    let daemon = site.start(&config);
    wait_until("all of them", LIMIT, || site.client.depth(&site.queue("big")) == Some(60));
    let peak = daemon.peak_rss();
    assert!(peak < 250 * MIB, "{} MiB", peak / MIB);
}

/// Also depends on the engine, which must not begin anything new during a pause.
/// Judges promise 12.
#[test]
fn a_pause_with_a_backlog_returns_nothing_to_the_queue() {
    // A separate node, because the counter includes messages returned in other tests.
    let Some(node) = Node::lent("a_pause_with_a_backlog") else { return };
    let site = Site::on(&node, "paused");
    drop(site.start(&site.config()));
    let inbox = site.inbox("shop");
    let before = node.returned_total();
    let count = 600;
    let body = vec![b'x'; 20_000];
    site.client.publish_all(
        (0..count)
            .map(|n| site.push("shop", body.clone()).id(&n.to_string()).customer(&format!("c{}", n % 7))),
    );
    let config = site
        .config()
        .set("defaults.max_waiting", "20")
        .text("defaults.on_full", "pause")
        .text("defaults.window", "300ms");
    let _daemon = site.start(&config);
    let mut seen = 0;
    while seen < count {
        seen += inbox.batch().ids().len();
    }
    site.lies(&site.dead(), 0);
    assert_eq!(node.returned_total(), before, "nothing was returned");
}

/// With the memory store, what waits stays unacked. A large request among it costs the others nothing.
/// Excluded: an intake that rests until most of what waits has left.
#[test]
fn one_large_request_stops_nobody_while_others_wait_in_the_memory_store() {
    const WAIT_MS: i64 = 600_000;
    let site = Site::new("memory-large");
    let inbox = site.inbox("shop");
    let config = site.config().text("store.kind", "memory").text("limits.memory", "64MiB");
    let daemon = site.start(&config.text("defaults.format", "json"));
    let later = |id: &str, body: Vec<u8>| site.push("later", body).delay(WAIT_MS).id(id);
    site.client.publish_all((0..2_000).map(|n| later(&format!("w{n}"), b"{}".to_vec())));
    wait_until("they wait", LIMIT, || daemon.items("waiting") == 2_000);
    site.client.publish(&later("large", vec![b'x'; 200_000]));
    wait_until("it waits", LIMIT, || daemon.items("waiting") == 2_001);
    site.client.publish_all((0..1_000).map(|n| site.push("shop", "{}").id(&n.to_string())));
    assert_eq!(inbox.items(1_000, LIMIT).len(), 1_000);
    daemon.holds("waiting", 2_001);
}
