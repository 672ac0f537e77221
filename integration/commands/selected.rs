//! All items of an application, or those that match a filter: counted and cancelled.

use serde_json::{json, Value};
use std::time::Duration;
use tidegate_harness::{now_ms, wait_until, Daemon, Site};

fn count(daemon: &Daemon, query: &str) -> Value {
    daemon.ask("GET", &format!("/api/v1/applications/shop/items?{query}")).1["waiting"].clone()
}

fn wait_for_count(daemon: &Daemon, items: u64) {
    wait_until("all are there", Duration::from_secs(60), || count(daemon, "all=true") == json!(items));
}

/// Near and far items of three customers, in a window, and without a customer.
#[test]
fn items_are_counted_and_cancelled_by_what_they_have_in_common() {
    let site = Site::new("selected");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config().text("defaults.window", "60s"));
    let item =
        |id: &str, customer: &str, delay: i64| site.push("shop", "1").id(id).customer(customer).delay(delay);
    site.client.publish_all([
        item("eu-near", "eu-1", 60_000),
        item("eu-far", "eu-2", super::FAR),
        item("us-near", "us-1", 60_000),
        item("us-far", "us-1", super::FAR),
        site.push("shop", "1").id("window").customer("eu-3"),
        site.push("shop", "1").id("nobody").delay(super::FAR),
    ]);
    wait_for_count(&daemon, 6);
    let before = now_ms() + 1;
    wait_until("the clock goes on", Duration::from_secs(10), || now_ms() > before);
    site.client.publish(&item("us-later", "us-2", super::FAR));
    wait_for_count(&daemon, 7);
    let soon = now_ms() + 3_600_000;
    for (query, waiting) in [
        ("customer_prefix=eu-".to_owned(), 3),
        ("customer=us-1".to_owned(), 2),
        (format!("due_before={soon}"), 3),
        (format!("due_after={soon}"), 4),
        (format!("received_before={before}"), 6),
        (format!("customer_prefix=us&due_after={soon}&received_before={before}"), 1),
    ] {
        assert_eq!(count(&daemon, &query), waiting, "{query}");
    }
    let told = daemon.cli(&["cancel", "shop", "--customer-prefix", "eu-", "--dry-run"]);
    let would = "would cancel 3 items: 3 waiting, 0 in flight, 0 parked\n";
    assert_eq!((told.code, told.out.as_str(), told.err.as_str()), (0, would, ""));
    let told = daemon.cli(&["cancel", "shop", "--customer-prefix", "eu-"]);
    assert_eq!((told.code, told.out.as_str(), told.err.as_str()), (0, "cancelled: 3 items\n", ""));
    let told = daemon.cli(&[
        "cancel",
        "shop",
        "--due-after",
        &soon.to_string(),
        "--received-before",
        &before.to_string(),
    ]);
    assert_eq!((told.code, told.out.as_str()), (0, "cancelled: 2 items\n"), "{told:?}");
    for id in ["eu-near", "eu-far", "window", "us-far", "nobody"] {
        assert_eq!(daemon.ask("GET", &format!("/api/v1/items/shop/{id}")).1["state"], "cancelled", "{id}");
    }
    let path = "/api/v1/applications/shop/items?customer=us-1&due_before=2100-01-01T00:00:00Z";
    assert_eq!(daemon.ask("DELETE", path), (200, json!({"result": "cancelled", "count": 1})));
    let told = daemon.cli(&["cancel", "shop", "--all", "--output", "json"]);
    assert_eq!((told.code, told.json()), (0, json!({"result": "cancelled", "count": 1})), "what came later");
    assert_eq!(daemon.ask("DELETE", "/api/v1/applications/shop/items").0, 400, "all has to be said");
    // The ids of cancelled items may be reused.
    site.client.publish(&site.push("shop", "2").id("eu-far"));
    assert_eq!(inbox.batch().ids(), ["eu-far"]);
}

/// New items arrive during the cancel: all earlier items are cancelled, items that it does not count stay,
/// and a kill brings none back.
#[test]
fn all_of_an_application_are_cancelled_while_more_come() {
    const OLD: u64 = 6_000;
    const NEW: u64 = 400;
    let site = Site::new("selectedall");
    let _inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config().text("limits.memory", "16MiB"));
    let item = |name: &str, n: u64| site.push("shop", "1").id(&format!("{name}-{n}")).delay(super::FAR);
    site.client.publish_all((0..OLD).map(|n| item("old", n)));
    wait_for_count(&daemon, OLD);
    let (status, told) = std::thread::scope(|scope| {
        let cancel = scope.spawn(|| daemon.ask("DELETE", "/api/v1/applications/shop/items?all=true"));
        site.client.publish_all((0..NEW).map(|n| item("new", n)));
        cancel.join().expect("an answer")
    });
    let taken = told["count"].as_u64().expect("a count");
    assert!(status == 200 && taken >= OLD, "{told}");
    wait_for_count(&daemon, OLD + NEW - taken);
    daemon.kill9();
    daemon.start_again();
    daemon.wait_ready();
    // None comes back, and none is lost.
    wait_for_count(&daemon, OLD + NEW - taken);
    let (_, page) = daemon.ask("GET", "/api/v1/items?application=shop&limit=1000");
    for item in page["items"].as_array().expect("items") {
        assert!(item["id"].as_str().is_some_and(|id| id.starts_with("new-")), "{item}");
    }
    assert_eq!(daemon.ask("GET", "/api/v1/items/shop/old-17").1["state"], "cancelled");
}
