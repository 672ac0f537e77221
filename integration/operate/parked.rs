//! Parked items: listed with their reason, retried at once, dropped on request.

use super::{application, order, run};
use serde_json::{json, Value};
use std::time::Duration;
use tidegate_harness::{wait_until, Config, Daemon, Site};

/// No automatic retry within a test.
fn config(site: &Site<'_>) -> Config {
    site.config().set("defaults.retry", r#"{ min = "60s", max = "60s" }"#)
}

/// Parks `count` items of `nobody`, which has no queue.
fn park(site: &Site<'_>, daemon: &Daemon, count: u64) {
    let push = |n: u64| site.push("nobody", "1").id(&format!("{n}")).customer(&format!("c{}", n % 3));
    site.client.publish_all((0..count).map(push));
    wait_until("all are parked", Duration::from_secs(10), || {
        let told = application(daemon, "nobody");
        told["parked"] == count && told["state"] == "parked"
    });
}

fn parked(daemon: &Daemon) -> Vec<Value> {
    let (status, told) = daemon.ask("GET", "/api/v1/parked");
    assert_eq!(status, 200, "{told}");
    told["applications"].as_array().expect("applications").clone()
}

#[test]
fn shown_with_attempts_and_reason() {
    let site = Site::new("shown");
    site.application("shop");
    let mut daemon = site.start(&config(&site));
    site.client.publish(&site.push("shop", "1").id("other").delay(60_000));
    assert_eq!(parked(&daemon), [] as [Value; 0]);
    park(&site, &daemon, 6);
    let check = |daemon: &Daemon| {
        let all = parked(daemon);
        assert_eq!((all.len(), &all[0]["name"], &all[0]["parked"]), (1, &json!("nobody"), &json!(6)));
        assert!(all[0]["failures"].as_u64().is_some_and(|n| n >= 1), "{all:?}");
        assert!(all[0]["next_try_in_ms"].as_u64().is_some_and(|ms| ms <= 60_000), "{all:?}");
        let why = all[0]["last_error"].as_str().expect("a reason").to_owned();
        let (_, list) = daemon.ask("GET", "/api/v1/items?state=parked");
        let items = list["items"].as_array().expect("items");
        assert_eq!(items.len(), 6, "{list}");
        let (tried, behind): (Vec<_>, Vec<_>) = items.iter().partition(|item| item["attempts"] != 0);
        assert!(!tried.is_empty(), "{list}");
        assert!(tried.iter().all(|item| item["last_error"] == why.as_str()), "{why}: {list}");
        assert!(behind.iter().all(|item| item["last_error"].is_null()), "not tried itself: {list}");
        why
    };
    let why = check(&daemon);
    assert!(why.contains("NO_ROUTE") || why.contains("return"), "{why}");
    let table = run(&daemon, "parked list");
    assert!(table.contains("nobody") && table.contains(&why) && !table.contains("shop"), "{table}");
    let table = run(&daemon, "parked list nobody");
    assert_eq!(table.lines().filter(|line| line.contains(" parked ")).count(), 6, "{table}");
    assert!(table.contains(&why), "{table}");
    let all: Value = serde_json::from_str(&run(&daemon, "parked list --output json")).expect("JSON");
    assert_eq!(
        (&all["applications"][0]["name"], &all["applications"][0]["parked"]),
        (&json!("nobody"), &json!(6))
    );
    let rows: Value = serde_json::from_str(&run(&daemon, "parked list nobody --output json")).expect("JSON");
    assert_eq!(rows["items"].as_array().map(Vec::len), Some(6));
    daemon.kill9();
    daemon.start_again();
    daemon.wait_ready();
    wait_until("it is tried after the start, and parked again", Duration::from_secs(10), || {
        let told = application(&daemon, "nobody");
        told["parked"] == 6 && told["failures"].as_u64().is_some_and(|n| n >= 1)
    });
    check(&daemon);
}

fn tried_at_once(name: &str, retry: impl Fn(&Daemon) -> bool) {
    let site = Site::new(name);
    let daemon = site.start(&config(&site));
    assert!(!retry(&daemon), "nothing to try");
    park(&site, &daemon, 30);
    assert!(retry(&daemon), "there is still no queue");
    wait_until("it has failed again", Duration::from_secs(10), || {
        application(&daemon, "nobody")["failures"] == 2
    });
    assert_eq!(application(&daemon, "nobody")["parked"], 30);
    let inbox = site.inbox("nobody");
    inbox.quiet(Duration::from_millis(300));
    assert!(retry(&daemon));
    let mut ids: Vec<u32> = inbox
        .items(30, Duration::from_secs(10))
        .into_iter()
        .map(|item| item.id.parse().expect("our id"))
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..30).collect::<Vec<_>>());
    wait_until("all is well", Duration::from_secs(10), || {
        let told = application(&daemon, "nobody");
        told["state"] == "open" && told["total"] == 0
    });
    assert_eq!(parked(&daemon), [] as [Value; 0]);
    inbox.quiet(Duration::from_millis(200));
}

#[test]
fn tried_at_once_over_http() {
    tried_at_once("retry-http", |daemon| order(daemon, "nobody", "retry"));
}

#[test]
fn tried_at_once_by_the_command_line() {
    tried_at_once("retry-cli", |daemon| match run(daemon, "parked retry nobody").as_str() {
        "tried now\n" => true,
        "there was nothing to try: it is not parked, or is paused\n" => false,
        other => panic!("{other}"),
    });
}

#[test]
fn given_up_over_http() {
    let site = Site::new("drop-http");
    let other = site.inbox("shop");
    let mut daemon = site.start(&config(&site));
    let drop = |daemon: &Daemon| daemon.ask("DELETE", "/api/v1/applications/nobody/parked");
    assert_eq!(drop(&daemon), (200, json!({"result": "cancelled", "count": 0})));
    park(&site, &daemon, 2500);
    site.client.publish_all([
        site.push("nobody", "1").id("later").delay(60_000),
        site.push("shop", "1").id("other").delay(60_000),
    ]);
    wait_until("both wait", Duration::from_secs(10), || daemon.items("waiting") == 2);
    assert_eq!(drop(&daemon), (200, json!({"result": "cancelled", "count": 2500})));
    assert_eq!(drop(&daemon), (200, json!({"result": "cancelled", "count": 0})));
    let state = daemon.state();
    let told = [&state["items"]["parked"], &state["items"]["waiting"], &state["totals"]["cancelled"]];
    assert_eq!(told, [&json!(0), &json!(2), &json!(2500)], "what is not due yet stays: {state}");
    assert_eq!(daemon.ask("GET", "/api/v1/items/nobody/7").1["state"], "cancelled");
    daemon.kill9();
    daemon.start_again();
    daemon.wait_ready();
    let inbox = site.inbox("nobody");
    site.client.publish(&site.push("nobody", "1").id("new"));
    assert_eq!(inbox.batch().ids(), ["new"], "nothing of it comes back");
    inbox.quiet(Duration::from_millis(300));
    other.quiet(Duration::from_millis(10));
    site.lies(&site.dead(), 0);
}

#[test]
fn given_up_by_the_command_line_only_with_yes() {
    let site = Site::new("drop-cli");
    let daemon = site.start(&config(&site));
    let told = daemon.cli(&["parked", "drop", "nobody"]);
    assert_eq!(told.code, 3, "unknown: {told:?}");
    park(&site, &daemon, 4);
    let told = daemon.cli(&["parked", "drop", "nobody"]);
    assert_eq!((told.code, told.out.as_str()), (2, ""), "{told:?}");
    assert!(told.err.contains("4 items"), "{told:?}");
    assert_eq!(application(&daemon, "nobody")["parked"], 4);
    assert_eq!(run(&daemon, "parked drop nobody --yes"), "cancelled: 4 items\n");
    daemon.holds("parked", 0);
    daemon.holds("waiting", 0);
    assert_eq!(run(&daemon, "parked drop nobody --yes"), "cancelled: 0 items\n");
}
