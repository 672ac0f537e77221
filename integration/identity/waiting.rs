//! Duplicates of an item that waits: in memory, in a window, or in the store only.

use super::{duplicates, order, payloads, wait_for, FAR};
use serde_json::json;
use std::time::Duration;
use tidegate_harness::{now_ms, wait_until, Push, Site};

/// Own times, ms from now on: all items are judged before the first.
const SHORT: i64 = 10_000;
const LONG: i64 = 10_700;
const ENVELOPE: &str = "application/vnd.tidegate+json";

fn push(site: &Site<'_>, id: &str, rule: &str, which: u32) -> Push {
    let body = json!(format!("{rule} {id} {which}")).to_string();
    site.push("shop", body).content_type("application/json").id(id).with("x-on-duplicate", rule)
}

#[test]
fn while_the_first_waits() {
    let site = Site::new("waiting");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config());
    order(&daemon, "pause");
    // A delay would count from each receipt.
    let begun = i64::try_from(now_ms()).expect("a date");
    let send = |id: &str, rule: &str, first: i64, second: i64| {
        for (which, after) in [(1, first), (2, second)] {
            site.client.publish(&push(&site, id, rule, which).number("x-deliver-at", begun + after));
        }
    };
    send("a", "keep", SHORT, SHORT);
    send("b", "replace", SHORT, LONG);
    send("c", "earliest", LONG, SHORT);
    send("d", "earliest", SHORT, LONG);
    send("e", "latest", SHORT, LONG);
    send("f", "latest", LONG, SHORT);
    send("g", "reject", SHORT, SHORT);
    wait_until("each second is judged while its first waits", Duration::from_secs(10), || {
        let of = |rule: &str, verdict: &str| duplicates(&daemon, rule, verdict);
        of("keep", "dropped") + of("replace", "replaced") + of("reject", "dead") == 3
            && of("earliest", "dropped") + of("earliest", "replaced") == 2
            && of("latest", "dropped") + of("latest", "replaced") == 2
    });
    order(&daemon, "resume");
    assert_eq!(
        payloads(&inbox, 7),
        [
            "\"earliest c 2\"",
            "\"earliest d 1\"",
            "\"keep a 1\"",
            "\"latest e 2\"",
            "\"latest f 1\"",
            "\"reject g 1\"",
            "\"replace b 2\""
        ]
    );
    let letter = site.dead_inbox().next();
    assert_eq!(letter.text("x-tidegate-reason").as_deref(), Some("duplicate"));
    assert_eq!(letter.body_text(), "\"reject g 2\"");
    let told = daemon.state()["totals"].clone();
    let only = |changes: serde_json::Value| {
        let mut all = json!({"dropped": 0, "replaced": 0, "accepted": 0, "dead": 0});
        let changes = changes.as_object().expect("an object").clone();
        all.as_object_mut().expect("an object").extend(changes);
        all
    };
    for (rule, changes) in [
        ("keep", json!({"dropped": 1})),
        ("replace", json!({"replaced": 1})),
        ("earliest", json!({"dropped": 1, "replaced": 1})),
        ("latest", json!({"dropped": 1, "replaced": 1})),
        ("reject", json!({"dead": 1})),
    ] {
        assert_eq!(told["duplicates"][rule], only(changes), "{rule}: {told}");
    }
    assert_eq!((&told["replaced"], &told["dead"]["duplicate"]), (&json!(3), &json!(1)), "{told}");
}

#[test]
fn what_is_in_the_store_alone_is_known_too() {
    let site = Site::new("far");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config());
    for (id, rule) in [
        ("a", "keep"),
        ("b", "replace"),
        ("c", "reject"),
        ("d", "earliest"),
        ("e", "latest"),
        ("f", "latest"),
    ] {
        site.client.publish(&push(&site, id, rule, 1).customer("first").delay(FAR));
    }
    wait_until("all six are in the store, and no longer in memory", Duration::from_secs(10), || {
        let items = daemon.state()["items"].clone();
        items["waiting"] == 6 && items["in_memory"] == 0
    });
    for (id, rule) in [("a", "keep"), ("b", "replace"), ("c", "reject"), ("d", "earliest"), ("e", "latest")] {
        site.client.publish(&push(&site, id, rule, 2).customer("second").delay(SHORT));
    }
    site.client.publish(&push(&site, "f", "latest", 2).customer("second").delay(2 * FAR));
    // Both are of one customer, so they may leave together.
    let mut ids = Vec::new();
    while ids.len() < 2 {
        let batch = inbox.batch();
        assert_eq!(batch.customer.as_deref(), Some("second"));
        ids.extend(batch.items.into_iter().map(|item| item.id));
    }
    assert_eq!(ids, ["b", "d"]);
    let letter = site.dead_inbox().next();
    assert_eq!((letter.id().as_str(), letter.body_text().as_str()), ("c", "\"reject c 2\""));
    inbox.quiet(Duration::from_millis(400));
    let far = now_ms() + FAR as u64 - 60_000;
    for (id, customer, after) in
        [("a", "first", far), ("c", "first", far), ("e", "first", far), ("f", "second", far + FAR as u64)]
    {
        let item = daemon.ask("GET", &format!("/api/v1/items/shop/{id}")).1;
        assert_eq!((&item["state"], &item["customer"]), (&json!("waiting"), &json!(customer)), "{item}");
        assert!(item["due"].as_u64().is_some_and(|due| (after..after + 120_000).contains(&due)), "{item}");
    }
    daemon.holds("waiting", 4);
}

#[test]
fn replace_takes_payload_customer_and_time() {
    let site = Site::new("replace");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config().text("defaults.window", "10m"));
    let first = |id: &str, customer: &str| site.push("shop", "1").id(id).customer(customer);
    order(&daemon, "pause");
    let due = i64::try_from(now_ms()).expect("a date") + 10_000;
    site.client.publish_all([
        first("to-own-time", "a"),
        first("beside-it", "a"),
        first("to-window", "b").delay(FAR),
        first("to-nobody", "b").delay(FAR),
    ]);
    let second = |id: &str| site.push("shop", "{\"n\": 2}").id(id).with("x-on-duplicate", "replace");
    site.client.publish(
        &second("to-own-time").content_type("application/json").customer("c").number("x-deliver-at", due),
    );
    site.client.publish(&second("to-window").customer("d"));
    site.client.publish(&second("to-nobody"));
    wait_until("all are replaced", Duration::from_secs(10), || {
        duplicates(&daemon, "replace", "replaced") == 3
    });
    order(&daemon, "resume");
    let mut both = [inbox.batch(), inbox.batch()];
    // On a machine with other work both may be due when they go on.
    both.sort_by_key(|batch| batch.customer.is_some());
    let [nobody, own] = &both;
    assert_eq!((nobody.ids(), nobody.customer.as_deref()), (vec!["to-nobody"], None), "it leaves at once");
    assert_eq!((own.ids(), own.customer.as_deref()), (vec!["to-own-time"], Some("c")));
    assert_eq!((&own.items[0].payload, own.items[0].due), (&Some(json!({"n": 2})), due));
    let flush = |customer: &str| {
        let path = format!("/api/v1/customers/shop/{customer}/flush");
        assert_eq!(daemon.ask("POST", &path), (200, json!({"result": "flushed", "count": 1})), "{customer}");
        let batch = inbox.batch();
        assert_eq!(batch.customer.as_deref(), Some(customer));
        batch.items.into_iter().map(|item| item.id).collect::<Vec<_>>()
    };
    assert_eq!(flush("d"), ["to-window"]);
    assert_eq!(flush("a"), ["beside-it"], "the replaced one has left its window");
    inbox.quiet(Duration::from_millis(1000));
}

#[test]
fn one_array_judges_its_entries_in_order() {
    let site = Site::new("array");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config().text("defaults.window", "60s"));
    let entry = |id: &str, rule: &str, n: u32| json!({"customer": "c", "id": id, "on_duplicate": rule, "payload": format!("{id} {n}")});
    let entries = json!([
        entry("kept", "keep", 1),
        entry("replaced", "replace", 1),
        entry("kept", "keep", 2),
        entry("replaced", "replace", 2),
        entry("rejected", "reject", 1),
        entry("rejected", "reject", 2),
        entry("replaced", "replace", 3),
    ]);
    site.client.publish(&site.push("shop", entries.to_string()).content_type(ENVELOPE));
    let letter = site.dead_inbox().next();
    assert_eq!(letter.text("x-tidegate-reason").as_deref(), Some("duplicate"));
    assert!(letter.body_text().contains("rejected 2"), "{}", letter.body_text());
    wait_for(&daemon, "shop", "replaced", "waiting");
    daemon.ask("POST", "/api/v1/customers/shop/c/flush");
    assert_eq!(payloads(&inbox, 3), ["\"kept 1\"", "\"rejected 1\"", "\"replaced 3\""]);
    assert_eq!(duplicates(&daemon, "replace", "replaced"), 2);
}

#[test]
fn a_kill_while_it_waits_forgets_no_id() {
    let site = Site::new("kill-waiting");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config().text("defaults.window", "4s"));
    order(&daemon, "pause");
    let near = i64::try_from(now_ms()).expect("a date") + 4500;
    let all = |which: u32| {
        [
            push(&site, "near", "keep", which).number("x-deliver-at", near),
            push(&site, "far", "keep", which).delay(FAR),
            push(&site, "window", "keep", which).customer("c"),
        ]
    };
    site.client.publish_all(all(1));
    for id in ["near", "far", "window"] {
        wait_for(&daemon, "shop", id, "waiting");
    }
    daemon.kill9();
    site.client.publish_all(all(2));
    daemon.start_again();
    daemon.wait_ready();
    // The first three may be delivered once more, if the kill came before their acks.
    site.lies(&site.ingest_queue(), 0);
    wait_until("all three are judged", Duration::from_secs(10), || {
        duplicates(&daemon, "keep", "dropped") >= 3
    });
    daemon.holds("waiting", 3);
    order(&daemon, "resume");
    assert_eq!(payloads(&inbox, 2), ["\"keep near 1\"", "\"keep window 1\""]);
    let replaced = push(&site, "far", "replace", 3);
    site.client.publish(&replaced);
    assert_eq!(inbox.batch().ids(), ["far"]);
}
