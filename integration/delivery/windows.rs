//! The causes that close a window, and which items of a customer leave together.

use super::{held, order};
use serde_json::{json, Value};
use std::time::Duration;
use tidegate_harness::{now_ms, wait_until, Batch, Push, Site};

fn cause(batch: &Batch) -> String {
    batch.message.text("x-closed-by").expect("header x-closed-by")
}

fn some(site: &Site<'_>, customer: &str, count: usize) -> Vec<Push> {
    (0..count).map(|n| site.push("shop", "{}").customer(customer).id(&format!("{customer}{n}"))).collect()
}

#[test]
fn time_closes_it_and_each_customer_has_a_batch() {
    let site = Site::new("time");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config().text("defaults.window", "3s"));
    let start = i64::try_from(now_ms()).expect("a date");
    // As one array, which is judged in one turn: single requests may take longer to arrive than a window lasts.
    let entry = |n: usize, customer: &str| {
        let id = format!("{customer}{n}");
        json!({ "customer": customer, "id": id, "payload": {} })
    };
    let all: Vec<Value> = (0..20).flat_map(|n| ["a", "b", "c"].map(|customer| entry(n, customer))).collect();
    let body = json!(all).to_string();
    site.client.publish(&site.push("shop", body).content_type("application/vnd.tidegate+json"));
    wait_until("all are taken", Duration::from_secs(10), || daemon.state()["totals"]["accepted"] == 60);
    // The moment of receipt is rounded up.
    let taken = i64::try_from(now_ms()).expect("a date") + 1;
    for _ in 0..3 {
        let batch = inbox.batch();
        let customer = batch.customer.clone().expect("a customer");
        let expected: Vec<String> = (0..20).map(|n| format!("{customer}{n}")).collect();
        assert_eq!(batch.ids(), expected, "all of it, in order of arrival");
        assert_eq!(cause(&batch), "time");
        batch.message.is_not_early();
        let due = batch.items[0].due;
        assert!(batch.items.iter().all(|i| i.due == due), "one window, one due");
        // By the daemon's own time stamps: the moment of arrival also depends on the machine.
        let first = batch.items.iter().map(|item| item.received).min().expect("an item");
        // Never before the first item arrived.
        let counted = due - first;
        assert!(counted >= 3000, "{counted} ms from the first that came");
        assert!(due <= taken + 3000, "{due}, and all had come at {taken}");
        assert!(first >= start, "{first} and {start}");
    }
    inbox.quiet(Duration::from_millis(300));
}

#[test]
fn count_closes_it_at_once() {
    let site = Site::new("count");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config().text("defaults.window", "30s").set("defaults.max_items", "10"));
    site.client.publish_all(some(&site, "a", 25));
    for part in 0..2 {
        let batch = inbox.batch();
        let expected: Vec<String> = (part * 10..part * 10 + 10).map(|n| format!("a{n}")).collect();
        assert_eq!(
            (batch.ids(), cause(&batch).as_str()),
            (expected.iter().map(String::as_str).collect(), "count")
        );
    }
    inbox.quiet(Duration::from_millis(300));
}

#[test]
fn bytes_close_it_and_bound_the_body() {
    let site = Site::new("bytes");
    let inbox = site.inbox("shop");
    let daemon =
        site.start(&site.config().text("defaults.window", "60s").text("defaults.max_bytes", "16KiB"));
    let body = format!("\"{}\"", "x".repeat(3000));
    let pushes = (0..20).map(|n| {
        site.push("shop", body.clone()).content_type("application/json").customer("a").id(&format!("{n}"))
    });
    site.client.publish_all(pushes);
    // A first item always fits, whatever its size.
    let huge = format!("\"{}\"", "y".repeat(40_000));
    site.client.publish(&site.push("shop", huge).content_type("application/json").customer("b").id("huge"));
    wait_until("all are taken", Duration::from_secs(10), || daemon.state()["totals"]["accepted"] == 21);
    // The last part of them is in an open window, if it has room.
    wait_until("it is closed", Duration::from_secs(10), || {
        let (status, answer) = daemon.ask("POST", "/api/v1/customers/shop/a/flush");
        assert!(matches!(status, 200 | 404 | 503), "{status} {answer}");
        status != 503
    });
    let mut ids = Vec::new();
    while ids.len() < 21 {
        let batch = inbox.batch();
        if batch.customer.as_deref() == Some("b") {
            assert_eq!((batch.ids(), cause(&batch).as_str()), (vec!["huge"], "bytes"));
        } else {
            let size = batch.message.body.len();
            assert!(size <= 16 * 1024, "{size} bytes");
            assert!(batch.items.len() >= 3, "not split finer than need be: {}", batch.items.len());
        }
        ids.extend(batch.items.into_iter().map(|i| i.id));
    }
    ids.retain(|id| id != "huge");
    assert_eq!(ids, (0..20).map(|n| n.to_string()).collect::<Vec<_>>(), "in order");
}

#[test]
fn quiet_closes_it() {
    let site = Site::new("quiet");
    let inbox = site.inbox("shop");
    // The pause between two of them may be seconds on a machine with other work.
    let _daemon = site.start(&site.config().text("defaults.window", "120s").text("defaults.quiet", "15s"));
    let mut last = 0;
    for push in some(&site, "a", 5) {
        std::thread::sleep(Duration::from_millis(150));
        last = now_ms();
        site.client.publish(&push);
    }
    let batch = inbox.batch();
    assert_eq!((batch.ids(), cause(&batch).as_str()), (vec!["a0", "a1", "a2", "a3", "a4"], "quiet"));
    let waited = batch.message.at_us / 1000 - last;
    assert!(waited >= 15_000, "VERDICT: left {waited} ms after the last");
}

#[test]
fn aligned_windows_end_at_multiples() {
    let site = Site::new("align");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config().text("defaults.window", "2s").set("defaults.align", "true"));
    site.client.publish_all(some(&site, "a", 1));
    let batch = inbox.batch();
    assert_eq!(batch.items[0].due % 2000, 0, "a multiple since the epoch: {}", batch.items[0].due);
    batch.message.is_not_early();
}

#[test]
fn what_of_one_customer_is_due_together_leaves_together() {
    let site = Site::new("together");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config().text("defaults.window", "60s").text("defaults.coalesce", "1s"));
    order(&daemon, "pause");
    // All are taken before the first is due: else its time would be that of its receipt.
    let base = now_ms() / 1000 * 1000 + 10_000;
    let at = |ms: u64| i64::try_from(base + ms).expect("a date");
    let push = |customer: &str, id: &str, ms| {
        site.push("shop", "{}").customer(customer).id(id).number("x-deliver-at", at(ms))
    };
    site.client.publish_all([
        push("a", "a3", 900),
        push("a", "a1", 300),
        push("b", "b1", 500),
        push("a", "a2", 600),
        push("a", "next", 3_600_400),
    ]);
    held(&daemon, 5);
    order(&daemon, "resume");
    let mut batches: Vec<Batch> = (0..2).map(|_| inbox.batch()).collect();
    batches.sort_by_key(|b| (b.items[0].due, b.customer.clone()));
    let shown: Vec<_> = batches.iter().map(|b| (b.items[0].due, b.ids())).collect();
    assert_eq!(shown, [(at(1000), vec!["a3", "a1", "a2"]), (at(1000), vec!["b1"])]);
    let (status, next) = daemon.ask("GET", "/api/v1/items/shop/next");
    assert_eq!((status, &next["due"]), (200, &json!(at(3_601_000))), "{next}");
}

/// Judges promise 5.
#[test]
fn one_customer_in_order_over_many_batches() {
    let site = Site::new("order");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config().text("defaults.window", "50ms").set("defaults.max_items", "7"));
    let count = 3000;
    let pushes =
        (0..count).map(|n| site.push("shop", "{}").customer(&format!("c{}", n % 3)).id(&format!("{n}")));
    site.client.publish_all(pushes);
    let mut last = [(-1, -1); 3];
    for item in inbox.items(count, Duration::from_secs(20)) {
        let n: i64 = item.id.parse().expect("our id");
        let before = &mut last[usize::try_from(n % 3).expect("0..3")];
        assert!((item.due, n) > *before, "{n} (due {}) after {before:?}", item.due);
        *before = (item.due, n);
    }
}

#[test]
fn without_customer_and_time_it_leaves_at_once_and_alone() {
    let site = Site::new("at-once");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config().text("defaults.window", "60s"));
    site.client.publish_all((0..30).map(|n| site.push("shop", "{}").id(&format!("{n}"))));
    for n in 0..30 {
        let batch = inbox.batch();
        assert_eq!(batch.ids(), [n.to_string()]);
        assert_eq!(batch.message.number("x-count"), Some(1));
    }
}

/// Judges promise 8.
#[test]
fn the_counters_add_up() {
    let site = Site::new("counters");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config());
    site.client.publish_all((0..300).map(|n| site.push("shop", "{}").customer(&format!("c{}", n % 7))));
    site.client.publish_all((0..10).map(|_| site.push("shop", "{}").with("x-delay", "soon")));
    inbox.items(300, Duration::from_secs(10));
    wait_until("all is settled", Duration::from_secs(10), || {
        let totals = daemon.state()["totals"].clone();
        totals["confirmed"] == 300 && totals["dead_confirmed"] == 10
    });
    let state = daemon.state();
    let totals = &state["totals"];
    assert_eq!((&totals["received"], &totals["dead"]["invalid"]), (&310.into(), &10.into()), "{state}");
    for key in ["waiting", "parked", "in_flight", "due", "windows"] {
        assert_eq!(state["items"][key], 0, "{key}: {state}");
    }
}
