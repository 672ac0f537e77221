//! Kills around a command: an answered command stays done, and an unanswered one is done and answered later.

use super::{wait_for, FAR};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;
use tidegate_harness::{now_ms, wait_until, Asker, Push, Site, Way};

#[test]
fn a_cancelled_item_never_comes_back() {
    let site = Site::new("never-back");
    let inbox = site.inbox("shop");
    let config = site
        .config()
        .text("defaults.window", "600s")
        .set("applications.nobody.retry", r#"{ min = "200ms", max = "200ms" }"#);
    let mut daemon = site.start(&config);
    site.client.publish(&site.push("nobody", "1").id("parked"));
    wait_for(&daemon, "nobody", "parked", "parked");
    // The cancels are over by then.
    let near = i64::try_from(now_ms()).expect("a date") + 20_000;
    site.client.publish_all([
        site.push("shop", "1").id("near").number("x-deliver-at", near),
        site.push("shop", "1").id("beside").number("x-deliver-at", near),
        site.push("shop", "1").id("far").delay(FAR),
        site.push("shop", "1").id("window").customer("c"),
    ]);
    let all = [("shop", "near"), ("shop", "far"), ("shop", "window"), ("nobody", "parked")];
    for (application, id) in all {
        wait_until("it is cancelled", Duration::from_secs(10), || {
            // The parked item may be in flight as a probe, and a request still on its way through the broker.
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
    let flushed = daemon.ask("POST", "/api/v1/customers/shop/c/flush");
    assert_eq!(flushed, (200, json!({"result": "flushed", "count": 0})));
    assert_eq!(inbox.batch().ids(), ["beside"], "it was due with the near one");
    inbox.quiet(Duration::from_millis(500));
    daemon.holds("waiting", 0);
    daemon.holds("parked", 0);
}

/// Repeated with more time if a busy machine reaches the moment at which the items are due before all are cancelled.
#[test]
fn killed_between_command_and_answer() {
    assert!([6_000, 20_000, 60_000].into_iter().any(are_cancelled_over_kills), "they were always due before");
}

/// Half of the items are due after this many milliseconds. Whether all are cancelled before that.
fn are_cancelled_over_kills(delay: u64) -> bool {
    const COUNT: usize = 200;
    let site = Site::new(&format!("between-{delay}"));
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config());
    let asker = Asker::new(&site);
    let due = now_ms() + delay;
    site.client.publish_all((0..COUNT).map(|n| {
        let push = site.push("shop", "1").id(&format!("{n}")).customer(&format!("c{}", n % 9));
        if n % 2 == 0 {
            push.number("x-deliver-at", i64::try_from(due).expect("a date"))
        } else {
            push.delay(FAR)
        }
    }));
    let all_wait = || daemon.items("waiting") == COUNT as u64 || now_ms() >= due;
    wait_until("all wait", Duration::from_secs(10), all_wait);
    let cancel = |n: usize| {
        let id = n.to_string();
        (id.clone(), asker.command(site.push("shop", "").id(&id), "tidegate.cancel", &id))
    };
    let cancels: BTreeMap<String, Push> = (0..COUNT).map(cancel).collect();
    for part in 0..2 {
        let of_part = (0..COUNT).filter(|n| n % 2 == part);
        site.client.publish_all(of_part.map(|n| cancels[&n.to_string()].clone()));
        daemon.kill9();
        daemon.start_again();
        daemon.wait_ready();
    }
    let answers = asker.answers_to(&cancels);
    if now_ms() >= due {
        return false;
    }
    for answer in answers.values() {
        // A command done before the kill gets the same answer.
        assert_eq!(*answer, json!({"result": "cancelled", "count": 1}));
    }
    for n in 0..COUNT {
        let found = daemon.ask("GET", &format!("/api/v1/items/shop/{n}")).1;
        assert_eq!(found["state"], "cancelled", "{found}");
    }
    daemon.holds("waiting", 0);
    inbox.quiet(Duration::from_millis(due.saturating_sub(now_ms()) + 500));
    true
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
    let answer = &asker.answers_to(&BTreeMap::from([("all".to_owned(), command)]))["all"];
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
    let due = i64::try_from(now_ms()).expect("a date") + 3_600_000;
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
    match asker.poll(Duration::from_secs(60)) {
        Some(answer) => assert_eq!(answer.json(), json!({"result": "cancelled", "count": 1})),
        // Asked again, it would be another cancel.
        None => assert!(daemon.log().contains(super::NOT_SENT), "{}", daemon.log_tail()),
    }
    // What followed the cancel is delivered again too, and is not taken for the cancelled item. Then comes this one.
    site.client.publish(&site.push("shop", "1").id("behind").delay(FAR));
    wait_for(&daemon, "shop", "behind", "waiting");
    wait_until("it is there again, and leaves now", Duration::from_secs(10), || {
        daemon.ask("POST", "/api/v1/items/shop/x/reschedule?delay=0").1["result"] == "rescheduled"
    });
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
