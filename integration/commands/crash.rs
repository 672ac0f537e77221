//! Kills around a command: an answered command stays done, and an unanswered one is done and answered later.

use super::{wait_for, FAR};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;
use tidegate_harness::{correlation_of, now_ms, wait_until, Asker, Push, Site, Way};

#[test]
fn a_cancelled_item_never_comes_back() {
    let site = Site::new("never-back");
    let inbox = site.inbox("shop");
    let config = site
        .config()
        .text("defaults.window", "3s")
        .set("applications.nobody.retry", r#"{ min = "200ms", max = "200ms" }"#);
    let mut daemon = site.start(&config);
    let near = i64::try_from(now_ms()).expect("a date") + 4500;
    site.client.publish_all([
        site.push("shop", "1").id("near").number("x-deliver-at", near),
        site.push("shop", "1").id("beside").number("x-deliver-at", near),
        site.push("shop", "1").id("far").delay(FAR),
        site.push("shop", "1").id("window").customer("c"),
        site.push("nobody", "1").id("parked"),
    ]);
    wait_for(&daemon, "nobody", "parked", "parked");
    let all = [("shop", "near"), ("shop", "far"), ("shop", "window"), ("nobody", "parked")];
    for (application, id) in all {
        wait_until("it is cancelled", Duration::from_secs(10), || {
            // The parked item may be in flight as a probe.
            daemon.ask("DELETE", &format!("/api/v1/items/{application}/{id}")).1["result"] == "cancelled"
        });
    }
    daemon.kill9();
    site.client.bind(&site.queue("shop"), &site.out(), "nobody");
    daemon.start_again();
    daemon.wait_ready();
    for (application, id) in all {
        let found = daemon.ask("GET", &format!("/api/v1/items/{application}/{id}")).1;
        assert_eq!(found["state"], "cancelled", "{found}");
    }
    assert_eq!(inbox.batch().ids(), ["beside"], "it was due with the near one");
    inbox.quiet(Duration::from_millis(500));
    daemon.holds("waiting", 0);
    daemon.holds("parked", 0);
}

#[test]
fn killed_between_command_and_answer() {
    const COUNT: usize = 200;
    let site = Site::new("between");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config());
    let asker = Asker::new(&site);
    let due = i64::try_from(now_ms()).expect("a date") + 6000;
    site.client.publish_all((0..COUNT).map(|n| {
        let push = site.push("shop", "1").id(&format!("{n}")).customer(&format!("c{}", n % 9));
        if n % 2 == 0 {
            push.number("x-deliver-at", due)
        } else {
            push.delay(FAR)
        }
    }));
    wait_until("all wait", Duration::from_secs(10), || daemon.items("waiting") == COUNT as u64);
    for part in 0..2 {
        let of_part = (0..COUNT).filter(|n| n % 2 == part);
        site.client.publish_all(of_part.map(|n| {
            asker.command(site.push("shop", "").id(&format!("{n}")), "tidegate.cancel", &format!("{n}"))
        }));
        daemon.kill9();
        daemon.start_again();
        daemon.wait_ready();
    }
    let mut open: BTreeSet<String> = (0..COUNT).map(|n| n.to_string()).collect();
    while !open.is_empty() {
        let answer = asker.next();
        // A command done before the kill gets the same answer.
        assert_eq!(answer.json(), json!({"result": "cancelled", "count": 1}));
        open.remove(&correlation_of(&answer));
    }
    for n in 0..COUNT {
        let found = daemon.ask("GET", &format!("/api/v1/items/shop/{n}")).1;
        assert_eq!(found["state"], "cancelled", "{found}");
    }
    daemon.holds("waiting", 0);
    let left = u64::try_from(due).expect("a date").saturating_sub(now_ms());
    inbox.quiet(Duration::from_millis(left + 500));
}

#[test]
fn killed_while_a_customer_is_cancelled() {
    let site = Site::new("customer-kill");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config());
    let asker = Asker::new(&site);
    site.client.publish_all((0..5000).map(|n| {
        let push = site.push("shop", "1").id(&format!("{n}"));
        push.customer(if n % 5 == 0 { "stays" } else { "goes" }).delay(FAR + n)
    }));
    wait_until("all wait", Duration::from_secs(20), || daemon.items("waiting") == 5000);
    let command = asker.command(site.push("shop", "").customer("goes"), "tidegate.cancel", "all");
    site.client.publish(&command);
    daemon.kill9();
    daemon.start_again();
    daemon.wait_ready();
    let answer = asker.next().json();
    assert_eq!(answer["result"], "cancelled", "{answer}");
    wait_until("it is as the answer says", Duration::from_secs(10), || daemon.items("waiting") == 1000);
    let counts = |customer: &str| daemon.ask("GET", &format!("/api/v1/customers/shop/{customer}")).1;
    assert_eq!((&counts("goes")["waiting"], &counts("stays")["waiting"]), (&json!(0), &json!(1000)));
    inbox.quiet(Duration::from_millis(100));
}

/// If its ack is lost, RabbitMQ delivers a cancel again and it is executed again. What was published after it
/// must not be lost by that.
fn comes_again(name: &str, selector: impl Fn(Push) -> Push) {
    let site = Site::new(name);
    let inbox = site.inbox("shop");
    let (ingest, uri) = site.node.proxied();
    let config = site.config().text("amqp.uri", &uri).text("egress.uri", site.node.uri());
    let daemon = site.start(&config);
    let asker = Asker::new(&site);
    let due = i64::try_from(now_ms()).expect("a date") + 2500;
    let item = || site.push("shop", "1").id("x").customer("c").number("x-deliver-at", due);
    // Blocks acks and answers.
    ingest.stall_one(Way::Up);
    site.client.publish(&item());
    site.client.publish(&asker.command(selector(site.push("shop", "")), "tidegate.cancel", "once"));
    wait_until("it is taken back", Duration::from_secs(10), || daemon.state()["totals"]["cancelled"] == 1);
    site.client.publish(&item());
    wait_for(&daemon, "shop", "x", "waiting");
    wait_until("it is durable", Duration::from_secs(10), || daemon.state()["uncommitted"] == 0);
    ingest.cut(true);
    ingest.heal();
    let answer = asker.next();
    assert_eq!(answer.json(), json!({"result": "cancelled", "count": 1}));
    // What followed the cancel is delivered again too, and is not taken for the cancelled item.
    assert_eq!(inbox.batch().ids(), ["x"]);
    wait_for(&daemon, "shop", "x", "sent");
    inbox.quiet(Duration::from_millis(200));
}

#[test]
fn a_cancel_that_comes_again_costs_nothing_that_was_sent_behind_it() {
    comes_again("again-id", |push| push.id("x"));
}

#[test]
fn a_cancel_of_a_customer_that_comes_again_costs_nothing_that_was_sent_behind_it() {
    comes_again("again-customer", |push| push.customer("c"));
}

#[test]
fn an_orderly_stop_leaves_no_answered_command_behind() {
    let site = Site::new("stop");
    site.application("shop");
    let mut daemon = site.start(&site.config());
    let asker = Asker::new(&site);
    for _ in 0..4 {
        assert_eq!(asker.ask("lookup", site.push("shop", "").id("x"))["state"], "unknown");
        daemon.term();
        assert!(daemon.exit(Duration::from_secs(20)).success());
        // An unacked command would be executed once more.
        site.lies(&site.ingest_queue(), 0);
        daemon.start_again();
        daemon.wait_ready();
    }
}
