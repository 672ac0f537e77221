//! Duplicates of an item that has ended or is leaving: what is remembered, for how long, and which ids may be
//! reused.

use super::{duplicates, wait_for};
use serde_json::json;
use std::time::Duration;
use tidegate_harness::{now_ms, wait_until, Push, Site, Way};

fn push(site: &Site<'_>, id: &str, rule: &str, body: &str) -> Push {
    site.push("shop", body).content_type("application/json").id(id).with("x-on-duplicate", rule)
}

#[test]
fn after_it_was_sent() {
    let site = Site::new("tail");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config().text("defaults.dedupe_tail", "1m"));
    let rules = ["keep", "earliest", "reject", "replace", "latest"];
    for rule in rules {
        site.client.publish(&push(&site, rule, rule, "1"));
        assert_eq!(inbox.batch().ids(), [rule]);
        wait_for(&daemon, "shop", rule, "sent");
    }
    site.client.publish_all(rules.map(|rule| push(&site, rule, rule, "2")));
    let again: Vec<String> =
        inbox.take(2, Duration::from_secs(5)).into_iter().map(|m| m.batch().items[0].id.clone()).collect();
    assert_eq!(again, ["replace", "latest"], "accepted as new; the others are dropped or dead");
    inbox.quiet(Duration::from_millis(300));
    assert_eq!(site.dead_inbox().next().id(), "reject");
    for (rule, verdict) in [
        ("keep", "dropped"),
        ("earliest", "dropped"),
        ("reject", "dead"),
        ("replace", "accepted"),
        ("latest", "accepted"),
    ] {
        assert_eq!(duplicates(&daemon, rule, verdict), 1, "{rule} {verdict}");
    }
}

#[test]
fn after_the_tail_it_is_new() {
    let site = Site::new("tail-over");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config().text("defaults.dedupe_tail", "700ms"));
    for n in 0..2 {
        site.client.publish(&push(&site, "again", "reject", &n.to_string()));
        let batch = inbox.batch();
        assert_eq!(batch.items[0].payload, Some(json!(n)));
        // The state `sent` lasts no longer than the tail.
        wait_until("its end is known", Duration::from_secs(10), || {
            daemon.state()["totals"]["confirmed"] == n + 1
        });
        wait_for(&daemon, "shop", "again", "unknown");
    }
    site.lies(&site.dead(), 0);
}

fn remembered(name: &str, kill: bool) {
    let site = Site::new(name);
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config());
    let all = || ["once", "windowed"].map(|id| site.push("shop", "1").id(id).customer(id));
    site.client.publish_all(all());
    inbox.items(2, Duration::from_secs(5));
    // The answer arrives once the end is durable.
    wait_for(&daemon, "shop", "once", "sent");
    wait_for(&daemon, "shop", "windowed", "sent");
    if kill {
        daemon.kill9();
    } else {
        daemon.term();
        assert!(daemon.exit(Duration::from_secs(20)).success());
    }
    daemon.start_again();
    daemon.wait_ready();
    site.client.publish_all(all());
    // Of the first two, those whose acks the kill has lost come once more.
    wait_until("they are dropped", Duration::from_secs(5), || {
        let again = daemon.state()["totals"]["redelivered"].as_u64().expect("a number");
        duplicates(&daemon, "keep", "dropped") == 2 + again
    });
    inbox.quiet(Duration::from_millis(500));
    assert_eq!(daemon.ask("GET", "/api/v1/items/shop/once").1["state"], "sent");
}

#[test]
fn a_sent_id_is_remembered_over_a_restart() {
    remembered("remembered", false);
}

#[test]
fn a_sent_id_is_remembered_over_a_kill() {
    remembered("remembered-kill", true);
}

#[test]
fn the_id_of_a_cancelled_or_dead_item_is_free_at_once() {
    let site = Site::new("free");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config());
    let dead = site.dead_inbox();
    site.client.publish(&push(&site, "cancelled", "reject", "1").delay(60_000));
    wait_for(&daemon, "shop", "cancelled", "waiting");
    assert_eq!(daemon.ask("DELETE", "/api/v1/items/shop/cancelled").0, 200);
    site.client.publish(&push(&site, "cancelled", "reject", "2"));
    assert_eq!(inbox.batch().items[0].payload, Some(json!(2)));
    let past = i64::try_from(now_ms()).expect("a date") - 1000;
    site.client.publish(&push(&site, "expired", "reject", "1").number("x-deliver-before", past));
    assert_eq!(dead.next().text("x-tidegate-reason").as_deref(), Some("expired"));
    site.client.publish(&push(&site, "expired", "reject", "2"));
    assert_eq!(inbox.batch().items[0].payload, Some(json!(2)));
    assert_eq!(duplicates(&daemon, "reject", "accepted"), 2);
    dead.quiet(Duration::from_millis(200));
}

#[test]
fn in_flight_it_is_decided_when_the_attempt_ends() {
    let site = Site::new("in-flight");
    let inbox = site.inbox("shop");
    let (egress, uri) = site.node.proxied();
    let daemon = site.start(&site.config().text("egress.uri", &uri));
    // An application with few confirmed batches gets only a few batches at a time.
    for n in 0..8 {
        site.client.publish(&push(&site, &format!("before{n}"), "keep", "1"));
        assert_eq!(inbox.batch().items.len(), 1);
        wait_for(&daemon, "shop", &format!("before{n}"), "sent");
    }
    // Batches reach the broker, but their confirms do not get through.
    egress.stall_one(Way::Down);
    for rule in ["keep", "replace", "latest", "earliest", "reject"] {
        site.client.publish(&push(&site, rule, rule, "1"));
        assert_eq!(inbox.batch().ids(), [rule]);
        wait_for(&daemon, "shop", rule, "in_flight");
        site.client.publish(&push(&site, rule, rule, "2"));
    }
    wait_until("keep and reject are decided", Duration::from_secs(5), || {
        duplicates(&daemon, "keep", "dropped") == 1 && duplicates(&daemon, "reject", "dead") == 1
    });
    inbox.quiet(Duration::from_millis(200));
    assert_eq!(duplicates(&daemon, "replace", "accepted"), 0, "not before the attempt has ended");
    egress.heal();
    let mut again: Vec<String> =
        inbox.take(2, Duration::from_secs(5)).into_iter().map(|m| m.batch().items[0].id.clone()).collect();
    again.sort();
    assert_eq!(again, ["latest", "replace"]);
    wait_until("earliest is dropped", Duration::from_secs(5), || {
        duplicates(&daemon, "earliest", "dropped") == 1
    });
    inbox.quiet(Duration::from_millis(200));
}
