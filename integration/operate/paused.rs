//! Paused applications: none of their items leaves, those of others do, and the pause is remembered.
//!
//! Judges promise 15.

use super::{application, order, run};
use serde_json::{json, Value};
use std::time::Duration;
use tidegate_harness::{wait_until, Daemon, Push, Site};

/// Two hundred each: windowed, timed, and due at once.
fn some<'a>(site: &'a Site<'_>, application: &'a str, name: &'a str) -> impl Iterator<Item = Push> + 'a {
    (0..600).map(move |n| {
        let push = site.push(application, "1").id(&format!("{name}{n}"));
        match n % 3 {
            0 => push.customer(&format!("c{}", n % 10)),
            1 => push.delay(n % 200),
            _ => push,
        }
    })
}

/// Waits until a kill costs nothing of what has happened: what has left does not come again.
fn is_stored(daemon: &Daemon) {
    wait_until("all is stored", Duration::from_secs(10), || daemon.state()["uncommitted"] == 0);
}

#[test]
fn held_back_over_kills_and_then_all_of_it_once() {
    let site = Site::new("paused");
    let (shop, mail) = (site.inbox("shop"), site.inbox("mail"));
    let mut daemon = site.start(&site.config());
    assert!(order(&daemon, "shop", "pause"), "before there was anything of it");
    assert!(!order(&daemon, "shop", "pause"));
    site.client.publish_all(some(&site, "shop", "a"));
    site.client.publish_all(some(&site, "mail", "a"));
    mail.items(600, Duration::from_secs(10));
    wait_until("only what is held is stored", Duration::from_secs(10), || {
        let state = daemon.state();
        state["items"]["waiting"] == 600 && state["uncommitted"] == 0
    });
    for round in 0..2 {
        shop.quiet(Duration::from_millis(300));
        let told = application(&daemon, "shop");
        assert_eq!((&told["paused"], &told["total"]), (&json!(true), &json!(600)), "{round}: {told}");
        assert_ne!(application(&daemon, "mail")["paused"], true);
        is_stored(&daemon);
        daemon.kill9();
        daemon.start_again();
        daemon.wait_ready();
        wait_until("its items are known again", Duration::from_secs(10), || {
            application(&daemon, "shop")["total"] == 600
        });
    }
    // A new item waits with the others; one of another application leaves.
    site.client.publish_all([site.push("shop", "1").id("late"), site.push("mail", "1").id("late")]);
    assert_eq!(mail.batch().ids(), ["late"]);
    wait_until("it is held", Duration::from_secs(10), || application(&daemon, "shop")["total"] == 601);
    let found = daemon.ask("GET", "/api/v1/items/shop/late").1;
    assert_eq!(found["state"], "waiting", "held back is not parked: {found}");
    shop.quiet(Duration::from_millis(200));
    assert!(order(&daemon, "shop", "resume"));
    assert!(!order(&daemon, "shop", "resume"));
    let mut ids: Vec<String> =
        shop.items(601, Duration::from_secs(15)).into_iter().map(|item| item.id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 601);
    shop.quiet(Duration::from_millis(300));
    wait_until("all ends are stored", Duration::from_secs(10), || {
        let state = daemon.state();
        state["items"]["waiting"] == 0 && state["uncommitted"] == 0
    });
    daemon.kill9();
    daemon.start_again();
    daemon.wait_ready();
    site.client.publish(&site.push("shop", "1").id("free"));
    assert_eq!(shop.batch().ids(), ["free"], "that it goes on is remembered too");
}

#[test]
fn what_is_held_back_can_be_cancelled_listed_replaced_and_expires() {
    let site = Site::new("held");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config());
    let dead = site.dead_inbox();
    order(&daemon, "shop", "pause");
    let soon = i64::try_from(tidegate_harness::now_ms()).expect("a date") + 700;
    let push = |id: &str| site.push("shop", "1").id(id).customer("c");
    site.client.publish_all([
        push("cancelled").delay(100),
        push("replaced"),
        push("stays"),
        push("expires").number("x-deliver-before", soon),
    ]);
    wait_until("all are held", Duration::from_secs(10), || application(&daemon, "shop")["total"] == 4);
    // They are due now, so they are held.
    wait_until("all are due", Duration::from_secs(10), || tidegate_harness::now_ms() > soon as u64 + 300);
    assert_eq!(daemon.ask("DELETE", "/api/v1/items/shop/cancelled").1["result"], "cancelled");
    let replace = push("replaced").with("x-on-duplicate", "replace").content_type("application/json");
    site.client.publish(&Push { body: b"2".to_vec(), ..replace });
    wait_until("it is replaced", Duration::from_secs(10), || daemon.state()["totals"]["replaced"] == 1);
    is_stored(&daemon);
    let (_, list) = daemon.ask("GET", "/api/v1/items?application=shop&state=waiting");
    let ids: Vec<&Value> = list["items"].as_array().expect("items").iter().map(|row| &row["id"]).collect();
    assert!(ids.contains(&&json!("stays")) && !ids.contains(&&json!("cancelled")), "{list}");
    daemon.kill9();
    daemon.start_again();
    daemon.wait_ready();
    inbox.quiet(Duration::from_millis(300));
    order(&daemon, "shop", "resume");
    let letter = dead.next();
    let reason = letter.text("x-tidegate-reason");
    assert_eq!((letter.id().as_str(), reason.as_deref()), ("expires", Some("expired")));
    let mut items = inbox.items(2, Duration::from_secs(10));
    items.sort_by(|a, b| a.id.cmp(&b.id));
    let ids: Vec<&str> = items.iter().map(|item| item.id.as_str()).collect();
    assert_eq!((ids, &items[0].payload), (vec!["replaced", "stays"], &Some(json!(2))));
    inbox.quiet(Duration::from_millis(300));
}

#[test]
fn by_the_command_line() {
    let site = Site::new("cli");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config());
    for (arguments, said) in [
        ("pause shop", "paused\n"),
        ("pause shop", "it was paused already\n"),
        ("resume mail", "it was not paused\n"),
    ] {
        assert_eq!(run(&daemon, arguments), said, "{arguments}");
    }
    let asked: Value = serde_json::from_str(&run(&daemon, "pause shop --output json")).expect("JSON");
    assert_eq!(asked, json!({"result": "done", "changed": false}));
    site.client.publish(&site.push("shop", "1").id("x"));
    wait_until("it is held", Duration::from_secs(10), || application(&daemon, "shop")["total"] == 1);
    for table in [run(&daemon, "status"), run(&daemon, "list --count")] {
        let line = table.lines().find(|line| line.starts_with("shop")).unwrap_or_else(|| panic!("{table}"));
        assert!(line.contains("paused") && line.split_whitespace().any(|cell| cell == "1"), "{table}");
    }
    inbox.quiet(Duration::from_millis(200));
    assert_eq!(run(&daemon, "resume shop"), "resumed\n");
    assert_eq!(inbox.batch().ids(), ["x"]);
    daemon.kill9();
    assert_eq!(daemon.cli(&["pause", "shop"]).code, 1, "nobody to tell");
}

#[test]
fn what_is_held_back_is_counted_and_is_not_parked() {
    let site = Site::new("figures");
    site.application("shop");
    let daemon = site.start(&site.config());
    order(&daemon, "shop", "pause");
    site.client.publish_all((0..5).map(|n| site.push("shop", "1").id(&format!("{n}")).customer("c")));
    site.client.publish(&site.push("shop", "1").id("later").delay(60_000));
    wait_until("all are held", Duration::from_secs(10), || application(&daemon, "shop")["total"] == 6);
    // The window has ended and its items wait like the later one: held items are not parked.
    wait_until("nothing of it is in memory", Duration::from_secs(10), || daemon.items("in_memory") == 0);
    daemon.holds("waiting", 6);
    daemon.holds("parked", 0);
    assert_eq!(application(&daemon, "shop")["total"], 6);
    let (_, list) = daemon.ask("GET", "/api/v1/items?state=waiting");
    assert_eq!(list["items"].as_array().map(Vec::len), Some(6), "{list}");
    assert_eq!(daemon.ask("GET", "/api/v1/customers/shop/c").1["waiting"], 5);
    assert_eq!(daemon.ask("GET", "/api/v1/parked").1["applications"], json!([]));
}
