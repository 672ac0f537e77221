//! Commands over HTTP, and names that need escaping in a path.

use super::wait_for;
use serde_json::json;
use std::time::Duration;
use tidegate_harness::{wait_until, Site};

#[test]
fn the_same_over_http() {
    let site = Site::new("http");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config().text("defaults.window", "60s"));
    site.client.publish(&site.push("shop", "1").id("x").delay(60_000));
    site.client.publish_all((0..4).map(|n| site.push("shop", "1").customer("c").id(&format!("c{n}"))));
    wait_until("all are held", Duration::from_secs(10), || {
        let (status, list) = daemon.ask("GET", "/api/v1/items?application=shop&limit=10");
        assert_eq!(status, 200, "{list}");
        list["items"].as_array().is_some_and(|items| items.len() == 5)
    });
    let (status, item) = daemon.ask("GET", "/api/v1/items/shop/x");
    assert_eq!((status, &item["state"]), (200, &json!("waiting")));
    let cancelled = |count: u64| (200, json!({"result": "cancelled", "count": count}));
    assert_eq!(daemon.ask("DELETE", "/api/v1/items/shop/x"), cancelled(1));
    let unknown = (404, json!({"result": "unknown"}));
    assert_eq!(daemon.ask("DELETE", "/api/v1/items/shop/none"), unknown);
    let (status, item) = daemon.ask("GET", "/api/v1/items/shop/none");
    assert_eq!((status, &item["state"]), (404, &json!("unknown")));
    let flushed = daemon.ask("POST", "/api/v1/customers/shop/c/flush");
    assert_eq!(flushed, (200, json!({"result": "flushed", "count": 4})));
    assert_eq!(inbox.batch().items.len(), 4);
    site.client.publish(&site.push("shop", "1").customer("d"));
    wait_until("it is held", Duration::from_secs(10), || {
        daemon.ask("GET", "/api/v1/customers/shop/d").1["waiting"] == 1
    });
    assert_eq!(daemon.ask("DELETE", "/api/v1/customers/shop/d/items"), cancelled(1));
    assert_eq!(daemon.ask("DELETE", "/api/v1/customers/shop/d/items"), cancelled(0));
    inbox.quiet(Duration::from_millis(200));
    for (method, path) in [
        ("DELETE", "/api/v1/items/shop/x?force=1"),
        ("DELETE", "/api/v1/customers/shop/%zz/items"),
        ("POST", "/api/v1/customers/shop/c/flush?customer=d"),
    ] {
        let (status, answer) = daemon.ask(method, path);
        assert!(status == 400 && answer["error"].is_string(), "{method} {path}: {status} {answer}");
    }
    // The wrong method must change nothing.
    for (method, path) in [
        ("GET", "/api/v1/customers/shop/c/flush"),
        ("POST", "/api/v1/items/shop/x"),
        ("GET", "/api/v1/applications/shop/pause"),
    ] {
        assert_eq!(daemon.ask(method, path).0, 405, "{method} {path}");
    }
}

#[test]
fn names_of_any_kind() {
    let site = Site::new("names");
    let application = "shop/eu west";
    let inbox = site.inbox(application);
    let daemon = site.start(&site.config().text("defaults.window", "60s"));
    let path = "/api/v1/items/shop%2Feu%20west";
    let ids = [("a/b", "a%2Fb"), ("..", "%2E%2E"), ("ü?#%41", "%C3%BC%3F%23%2541"), ("a+b c", "a+b%20c")];
    let of = |id: &str| site.push(application, "1").id(id);
    site.client.publish_all(ids.map(|(id, _)| of(id).delay(60_000)));
    site.client.publish(&of("windowed").customer("k/1 ä"));
    for (id, written) in ids {
        wait_until(id, Duration::from_secs(10), || {
            let (_, found) = daemon.ask("GET", &format!("{path}/{written}"));
            found["state"] == "waiting" && found["id"] == id && found["application"] == application
        });
        let (status, answer) = daemon.ask("DELETE", &format!("{path}/{written}"));
        assert_eq!((status, &answer["count"]), (200, &json!(1)), "{id}: {answer}");
    }
    let told = daemon.cli(&["lookup", application, "windowed", "--output", "json"]);
    assert_eq!((told.code, &told.json()["customer"]), (0, &json!("k/1 ä")), "{told:?}");
    let told = daemon.cli(&["flush", application, "--customer", "k/1 ä"]);
    assert_eq!((told.code, told.out.as_str()), (0, "flushed: 1 item\n"), "{told:?}");
    assert_eq!(inbox.batch().ids(), ["windowed"]);
    let told = daemon.cli(&["cancel", application, ".."]);
    assert_eq!((told.code, told.out.as_str()), (0, "cancelled: 1 item\n"), "it was so before: {told:?}");
}

#[test]
fn over_amqp_and_http_it_is_one_item() {
    let site = Site::new("both");
    site.application("shop");
    let daemon = site.start(&site.config());
    let asker = tidegate_harness::Asker::new(&site);
    site.client.publish(&site.push("shop", "1").id("x").customer("c").delay(60_000));
    let over_amqp = asker.ask("lookup", site.push("shop", "").id("x"));
    assert_eq!(daemon.ask("GET", "/api/v1/items/shop/x"), (200, over_amqp));
    site.client.publish(&site.push("shop", "").id("x").kind("tidegate.cancel"));
    wait_for(&daemon, "shop", "x", "cancelled");
    let over_amqp = asker.ask("cancel", site.push("shop", "").id("x"));
    assert_eq!(daemon.ask("DELETE", "/api/v1/items/shop/x"), (200, over_amqp));
}
