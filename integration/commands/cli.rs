//! The binary's `cancel`, `lookup` and `flush`: exit codes, tables, JSON.

use super::wait_for;
use serde_json::json;
use std::time::Duration;
use tidegate_harness::Site;

#[test]
fn exit_codes_tables_and_json() {
    let site = Site::new("cli");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config().text("defaults.window", "60s"));
    site.client.publish_all([
        site.push("shop", "1").id("x").customer("c").delay(60_000),
        site.push("shop", "1").id("y").customer("c").delay(60_000),
        site.push("shop", "1").id("z").customer("d"),
    ]);
    for id in ["x", "y", "z"] {
        wait_for(&daemon, "shop", id, "waiting");
    }

    let told = daemon.cli(&["lookup", "shop", "x"]);
    assert_eq!((told.code, told.err.as_str()), (0, ""), "{told:?}");
    let fact = |name: &str| {
        let line = told.out.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {}", told.out)).trim().to_owned()
    };
    assert_eq!(
        (fact("state"), fact("application"), fact("id")),
        ("waiting".into(), "shop".into(), "x".into())
    );
    assert_eq!((fact("customer"), fact("attempts")), ("c".into(), "0".into()));
    assert!(fact("due").ends_with('Z'), "a time for people: {}", told.out);
    let told = daemon.cli(&["lookup", "shop", "x", "--output", "json"]);
    assert_eq!((told.code, told.json()), (0, daemon.ask("GET", "/api/v1/items/shop/x").1));

    let told = daemon.cli(&["cancel", "shop", "x"]);
    assert_eq!((told.code, told.out.as_str(), told.err.as_str()), (0, "cancelled: 1 item\n", ""));
    let told = daemon.cli(&["--output", "json", "cancel", "shop", "--customer", "c"]);
    assert_eq!((told.code, told.json()), (0, json!({"result": "cancelled", "count": 1})), "y was left");
    let told = daemon.cli(&["flush", "shop", "--customer", "d", "--output", "json"]);
    assert_eq!((told.code, told.json()), (0, json!({"result": "flushed", "count": 1})));
    assert_eq!(inbox.batch().ids(), ["z"]);
    wait_for(&daemon, "shop", "z", "sent");

    let told = daemon.cli(&["cancel", "shop", "z"]);
    assert_eq!((told.code, told.out.as_str()), (3, ""), "not done: {told:?}");
    assert!(told.err.contains("sent"), "it says why: {told:?}");
    let told = daemon.cli(&["cancel", "shop", "z", "--output", "json"]);
    assert_eq!((told.code, &told.json()["result"]), (3, &json!("sent")));
    for command in [&["cancel", "shop", "none"][..], &["lookup", "shop", "none"]] {
        let told = daemon.cli(command);
        assert_eq!((told.code, told.out.as_str()), (3, ""), "{told:?}");
        assert!(told.err.contains("unknown"), "{told:?}");
    }
    let told = daemon.cli(&["lookup", "shop", "none", "--output", "json"]);
    assert_eq!((told.code, &told.json()["state"]), (3, &json!("unknown")));
    let told = daemon.cli(&["flush", "shop", "--customer", "nobody"]);
    assert_eq!((told.code, told.out.as_str()), (0, "flushed: 0 items\n"));

    for wrong in [
        &["cancel", "shop"][..],
        &["cancel", "shop", "x", "--customer", "c"],
        &["lookup", "shop"],
        &["flush"],
    ] {
        let told = daemon.cli(wrong);
        assert_eq!((told.code, told.out.as_str()), (2, ""), "usage: {told:?}");
    }
    daemon.kill9();
    let told = daemon.cli(&["lookup", "shop", "x"]);
    assert_eq!((told.code, told.out.as_str()), (1, ""), "nobody to ask: {told:?}");
    assert!(!told.err.is_empty());
}

/// Flushes the windows of all customers of the application, and of no other application.
#[test]
fn all_windows_of_an_application_are_flushed() {
    let site = Site::new("flush-all");
    let (shop, mail) = (site.inbox("shop"), site.inbox("mail"));
    let daemon = site.start(&site.config().text("defaults.window", "1h"));
    let push = |application: &str, n: u32| site.push(application, "1").customer(&format!("c{}", n % 300));
    site.client.publish_all((0..600).map(|n| push("shop", n)).chain([push("mail", 0)]));
    daemon.holds("waiting", 601);
    let told = daemon.cli(&["flush", "shop"]);
    assert_eq!((told.code, told.out.as_str()), (0, "flushed: 600 items\n"), "{told:?}");
    for received in shop.take(300, Duration::from_secs(20)) {
        assert_eq!(received.text("x-closed-by").as_deref(), Some("flush"));
        assert_eq!(received.number("x-count"), Some(2));
    }
    let (status, told) = daemon.ask("POST", "/api/v1/applications/shop/flush");
    assert_eq!((status, told), (200, json!({"result": "flushed", "count": 0})));
    mail.quiet(Duration::from_millis(200));
}
