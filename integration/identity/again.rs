//! Requests that RabbitMQ delivers again because their acks were lost: none becomes two items.

use super::{duplicates, order, wait_for, FAR};
use std::collections::BTreeMap;
use std::time::Duration;
use tidegate_harness::{now_ms, wait_until, Daemon, Inbox, Proxy, Site, Way};

/// Expects `count` items, each exactly once, and nothing more.
fn each_once(inbox: &Inbox, count: usize) {
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for item in inbox.items(count, Duration::from_secs(20)) {
        *seen.entry(item.id).or_default() += 1;
    }
    let repeats: Vec<_> = seen.iter().filter(|(_, times)| **times > 1).take(5).collect();
    assert!(repeats.is_empty(), "more than once: {repeats:?}");
    assert_eq!(seen.len(), count);
    inbox.quiet(Duration::from_millis(400));
}

fn durable(daemon: &Daemon, waiting: u64) {
    wait_until("all are durable", Duration::from_secs(10), || {
        let state = daemon.state();
        state["items"]["waiting"] == waiting && state["uncommitted"] == 0
    });
}

/// A daemon whose ingest connection goes through a proxy, which can hold back its acks.
fn behind_a_proxy(name: &str) -> (Site<'static>, Proxy, Inbox, Daemon) {
    let site = Site::new(name);
    let inbox = site.inbox("shop");
    let (ingest, uri) = site.node.proxied();
    let config = site.config().text("amqp.uri", &uri).text("egress.uri", site.node.uri());
    let daemon = site.start(&config);
    (site, ingest, inbox, daemon)
}

#[test]
fn acks_lost_with_the_connection() {
    let (site, ingest, inbox, daemon) = behind_a_proxy("acks-lost");
    ingest.stall_one(Way::Up);
    // Nothing leaves before its request has come again.
    order(&daemon, "pause");
    let due = i64::try_from(now_ms()).expect("a date") + 3500;
    site.client.publish_all((0..300).map(|n| {
        let push = site.push("shop", "1").id(&format!("{n}"));
        match n % 3 {
            0 => push.customer(&format!("c{}", n % 7)).number("x-deliver-at", due),
            1 => push.number("x-deliver-at", due),
            // In the store only.
            _ => push.delay(FAR),
        }
    }));
    durable(&daemon, 300);
    ingest.cut(true);
    ingest.heal();
    wait_until("all come again, and are dropped", Duration::from_secs(10), || {
        duplicates(&daemon, "keep", "dropped") == 300
    });
    let totals = daemon.state()["totals"].clone();
    assert_eq!((&totals["redelivered"], &totals["accepted"]), (&300.into(), &300.into()), "{totals}");
    order(&daemon, "resume");
    each_once(&inbox, 200);
    daemon.holds("waiting", 100);
}

#[test]
fn acks_lost_with_the_process() {
    let (site, ingest, inbox, mut daemon) = behind_a_proxy("acks-lost-kill");
    ingest.stall_one(Way::Up);
    // Nothing leaves before the kill.
    order(&daemon, "pause");
    let due = i64::try_from(now_ms()).expect("a date") + 4500;
    let push = |n: u32| site.push("shop", "1").id(&format!("{n}")).number("x-deliver-at", due);
    site.client.publish_all((0..300).map(push));
    durable(&daemon, 300);
    daemon.kill9();
    ingest.cut(true);
    ingest.heal();
    daemon.start_again();
    daemon.wait_ready();
    order(&daemon, "resume");
    each_once(&inbox, 300);
    wait_until("all have come again, and are dropped", Duration::from_secs(10), || {
        duplicates(&daemon, "keep", "dropped") == 300
    });
}

#[test]
fn killed_in_the_midst_of_taking_in() {
    let site = Site::new("midst");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config());
    // Nothing leaves before the last kill.
    order(&daemon, "pause");
    let due = i64::try_from(now_ms()).expect("a date") + 8000;
    for round in 0..3 {
        site.client.publish_all((0..1000).map(|n| {
            site.push("shop", "1").id(&format!("{round}-{n}")).customer("c").number("x-deliver-at", due)
        }));
        daemon.kill9();
        daemon.start_again();
        daemon.wait_ready();
    }
    order(&daemon, "resume");
    each_once(&inbox, 3000);
}

#[test]
fn what_had_ended_does_not_come_back_under_any_rule() {
    let (site, ingest, inbox, daemon) = behind_a_proxy("ended-again");
    let dead = site.dead_inbox();
    ingest.stall_one(Way::Up);
    let rules = ["keep", "replace", "earliest", "latest", "reject"];
    let push = |id: String, rule| site.push("shop", "1").id(&id).with("x-on-duplicate", rule);
    for rule in rules {
        site.client.publish(&push(format!("sent-{rule}"), rule));
        assert_eq!(inbox.batch().ids(), [format!("sent-{rule}")]);
        wait_for(&daemon, "shop", &format!("sent-{rule}"), "sent");
        site.client.publish(&push(format!("cancelled-{rule}"), rule).delay(60_000));
        wait_for(&daemon, "shop", &format!("cancelled-{rule}"), "waiting");
        let cancelled = daemon.ask("DELETE", &format!("/api/v1/items/shop/cancelled-{rule}"));
        assert_eq!(cancelled.1["result"], "cancelled");
    }
    let past = i64::try_from(now_ms()).expect("a date") - 1000;
    site.client.publish(&push("expired".to_owned(), "replace").number("x-deliver-before", past));
    assert_eq!(dead.next().id(), "expired");
    wait_for(&daemon, "shop", "expired", "expired");
    ingest.cut(true);
    ingest.heal();
    wait_until("all have come again", Duration::from_secs(10), || {
        daemon.state()["totals"]["redelivered"] == 11
    });
    wait_until("all are dropped", Duration::from_secs(10), || {
        rules.iter().map(|rule| duplicates(&daemon, rule, "dropped")).sum::<u64>() == 11
    });
    inbox.quiet(Duration::from_millis(400));
    dead.quiet(Duration::from_millis(50));
    daemon.holds("waiting", 0);
    // Not marked as redelivered, so it is a new request.
    site.client.publish(&push("cancelled-keep".to_owned(), "keep"));
    assert_eq!(inbox.batch().ids(), ["cancelled-keep"]);
}
