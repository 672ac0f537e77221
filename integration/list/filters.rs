//! Order, every filter, and invalid parameters.

use super::{config, ids, list, one_of_each, FAR, NEAR};
use serde_json::{json, Value};
use std::time::Duration;
use tidegate_harness::{now_ms, wait_until, Site, Way};

#[test]
fn in_order_of_due_by_every_filter() {
    let site = Site::new("filters");
    let daemon = site.start(&config(&site));
    let before = now_ms();
    one_of_each(&site, &daemon);
    let after = now_ms();
    let all = ["p1", "p2", "p3", "near", "alone", "window", "mail", "far", "farther"];
    for (query, wanted) in [
        ("", &all[..]),
        ("limit=9", &all),
        ("application=shop", &["near", "alone", "window", "far", "farther"]),
        ("application=nobody", &["p1", "p2", "p3"]),
        ("application=none", &[]),
        ("customer=a", &["p2", "near", "window", "mail", "far"]),
        ("application=shop&customer=a", &["near", "window", "far"]),
        ("application=shop&customer=none", &[]),
        ("state=parked", &["p1", "p2", "p3"]),
        ("state=parked&customer=z", &["p3"]),
        ("state=waiting", &["near", "alone", "window", "mail", "far", "farther"]),
        ("state=waiting&application=nobody", &[]),
        ("state=in_flight", &[]),
        // An empty parameter counts as absent.
        ("application=&customer=&state=&from=&to=&cursor=&limit=", &all),
    ] {
        assert_eq!(ids(&daemon, query), wanted, "{query}");
    }
    let rows = list(&daemon, "application=shop");
    assert!(rows.windows(2).all(|pair| pair[0]["due"].as_u64() <= pair[1]["due"].as_u64()), "{rows:?}");
    let near = &rows[0];
    let keys: Vec<&String> = near.as_object().expect("an object").keys().collect();
    let mut wanted =
        ["state", "application", "id", "customer", "due", "received", "attempts", "last_error"].to_vec();
    wanted.sort_unstable();
    assert_eq!(keys, wanted);
    let received = near["received"].as_u64().expect("a time");
    assert!((before..=after).contains(&received), "{near}");
    assert_eq!(near["due"], received + NEAR as u64, "{near}");
    assert_eq!(rows[1]["customer"], Value::Null);
}

#[test]
fn times_bound_it_from_inclusive_to_exclusive() {
    let site = Site::new("times");
    site.application("shop");
    let daemon = site.start(&config(&site));
    // A multiple of 1000, so that RFC 3339 needs no fraction.
    let base = now_ms() / 1000 * 1000 + FAR as u64;
    let at = |n: u64| base + n * 1000;
    site.client.publish_all((0..5).map(|n| {
        let at = i64::try_from(at(n)).expect("a date");
        site.push("shop", "1").id(&n.to_string()).number("x-deliver-at", at)
    }));
    wait_until("all wait", Duration::from_secs(10), || daemon.items("waiting") == 5);
    for (from, to, wanted) in [
        (Some(at(1)), Some(at(3)), &["1", "2"][..]),
        (Some(at(1) + 1), Some(at(3) + 1), &["2", "3"]),
        (Some(at(4)), None, &["4"]),
        (None, Some(at(1)), &["0"]),
        (Some(at(5)), None, &[]),
        (Some(at(3)), Some(at(1)), &[]),
        (Some(0), None, &["0", "1", "2", "3", "4"]),
    ] {
        let part = |name: &str, ms: Option<u64>| ms.map(|ms| format!("&{name}={ms}")).unwrap_or_default();
        let query = format!("application=shop{}{}", part("from", from), part("to", to));
        assert_eq!(ids(&daemon, &query), wanted, "{query}");
    }
    assert_eq!(ids(&daemon, "from=2000-01-01T00:00:00Z&to=2999-01-01T00:00:00%2B01:00").len(), 5);
    assert_eq!(ids(&daemon, "from=2999-01-01T00:00:00-01:00"), [""; 0]);
}

#[test]
fn what_is_in_flight_is_listed_as_such() {
    let site = Site::new("in-flight");
    let inbox = site.inbox("shop");
    let (egress, uri) = site.node.proxied();
    let daemon = site.start(&config(&site).text("egress.uri", &uri));
    site.client.publish(&site.push("shop", "1").id("first"));
    assert_eq!(inbox.batch().ids(), ["first"]);
    wait_until("it is sent", Duration::from_secs(10), || list(&daemon, "").is_empty());
    egress.stall_one(Way::Down);
    site.client.publish_all([
        site.push("shop", "1").id("x").customer("a"),
        site.push("shop", "1").id("y").delay(300),
        site.push("shop", "1").id("later").delay(FAR),
    ]);
    wait_until("the window is open", Duration::from_secs(10), || daemon.items("windows") == 1);
    daemon.ask("POST", "/api/v1/customers/shop/a/flush");
    inbox.items(2, Duration::from_secs(10));
    let both = || {
        let mut both = ids(&daemon, "state=in_flight");
        both.sort();
        both
    };
    wait_until("both are in flight", Duration::from_secs(10), || both() == ["x", "y"]);
    assert_eq!(ids(&daemon, "state=in_flight&customer=a"), ["x"]);
    assert_eq!(ids(&daemon, "state=waiting"), ["later"]);
    assert_eq!(ids(&daemon, "").len(), 3);
    egress.heal();
    wait_until("they have ended", Duration::from_secs(10), || ids(&daemon, "") == ["later"]);
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let site = Site::new("refused");
    site.application("shop");
    let daemon = site.start(&config(&site));
    let long = "x".repeat(201);
    for (query, named) in [
        ("colour=red", "colour"),
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=ten", "limit"),
        ("limit=-1", "limit"),
        ("state=sent", "state"),
        ("state=WAITING", "state"),
        ("from=tomorrow", "from"),
        ("from=1800000000", "from"),
        ("to=2030-01-01T00:00:00", "to"),
        ("cursor=1", "cursor"),
        ("cursor=a-b", "cursor"),
        ("application=a&application=b", "application"),
        (&format!("customer={long}"), "customer"),
        ("application=%zz", "application"),
    ] {
        let (status, answer) = daemon.ask("GET", &format!("/api/v1/items?{query}"));
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(status == 400 && error.starts_with(named), "{query}: {status} {answer}");
    }
    assert_eq!(daemon.ask("GET", "/api/v1/items?limit=1000"), (200, json!({"items": [], "next": null})));
}
