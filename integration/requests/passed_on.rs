//! Fields of requests that the entries of a batch pass on: `copy_headers` and `copy_properties`.

use super::site;
use crate::requests::{close_window, leave_now};
use serde_json::{json, Value};
use std::time::Duration;
use tidegate_harness::lapin::types::{AMQPValue, FieldTable};
use tidegate_harness::{wait_until, Config, Daemon, Push, Received, Site};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn passing_on(site: &Site<'_>, format: &str) -> Config {
    site.config()
        .text("defaults.format", format)
        .text("defaults.window", "500ms")
        .set("defaults.copy_headers", r#"["traceparent", "x-tenant"]"#)
        .set("defaults.copy_properties", r#"["correlation_id", "type", "timestamp"]"#)
}

/// One request with all these fields, and one without any.
fn two(site: &Site<'_>) -> [Push; 2] {
    let mut traced = site
        .push("shop", "{}")
        .id("traced")
        .kind("order.placed")
        .with("traceparent", TRACE)
        .with("x-tenant", "blue")
        .with("x-other", "stays behind");
    traced.properties = traced.properties.with_correlation_id("c-9".into()).with_timestamp(1_780_272_000);
    let plain = site.push("shop", "{}").id("plain").with("x-other", "stays behind");
    [traced.customer("c"), plain.customer("c")]
}

fn entries(received: &Received) -> Vec<Value> {
    let body = received.body_text();
    match body.as_bytes().first() {
        Some(b'[') => received.json().as_array().expect("an array of events").clone(),
        _ if body.contains("\"items\"") => received.json()["items"].as_array().expect("items").clone(),
        _ => body.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect(),
    }
}

/// As the contract specifies for `json` and `ndjson`.
fn check_entry(entry: &Value) {
    assert_eq!(entry["headers"], json!({"traceparent": TRACE, "x-tenant": "blue"}), "{entry}");
    assert_eq!(entry["correlation_id"], "c-9");
    assert_eq!(entry["type"], "order.placed");
    assert_eq!(entry["timestamp"], "2026-06-01T00:00:00Z");
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn json_and_ndjson() {
    for format in ["json", "ndjson"] {
        let site = site(&format!("passed-{format}"));
        let inbox = site.inbox("shop");
        let daemon = site.start(&passing_on(&site, format).text("defaults.window", "60s"));
        site.client.publish_all(two(&site));
        close_window(&daemon, "shop", "c", 2);
        let entries = entries(&inbox.next());
        assert_eq!(entries.len(), 2);
        check_entry(&entries[0]);
        assert!(!entries[0].to_string().contains("stays behind"));
        let mut left: Vec<&str> = keys(&entries[1]);
        left.sort_unstable();
        assert_eq!(left, ["content_type", "due", "id", "payload_base64", "received"], "nothing to pass on");
    }
}

#[test]
fn cloudevents() {
    let site = site("passed-events");
    let inbox = site.inbox("shop");
    let daemon = site.start(&passing_on(&site, "cloudevents").text("defaults.window", "60s"));
    site.client.publish_all(two(&site));
    close_window(&daemon, "shop", "c", 2);
    let events = entries(&inbox.next());
    assert_eq!((&events[0]["traceparent"], &events[0]["xtenant"]), (&json!(TRACE), &json!("blue")));
    assert_eq!((&events[0]["correlationid"], &events[0]["type"]), (&json!("c-9"), &json!("order.placed")));
    assert_eq!(events[0]["timestamp"], "2026-06-01T00:00:00Z");
    assert_eq!((&events[1]["type"], events[1].get("traceparent")), (&json!("tidegate.item"), None));
    let named = |name: &&str| name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    assert!(keys(&events[0]).iter().all(|name| *name == "data_base64" || named(name)), "{}", events[0]);
}

/// For every way of waiting: in memory, in the store only, and parked.
#[test]
fn they_outlive_a_kill_and_a_retry() {
    let site = site("passed-kill");
    let config =
        passing_on(&site, "json").text("defaults.retry.min", "100ms").text("defaults.retry.max", "200ms");
    let mut daemon = site.start(&config);
    let [traced, _] = two(&site);
    let far = Push { key: "mail".into(), ..traced.clone() }.delay(6_000);
    let parked = traced.delay(300);
    let mail = site.inbox("mail");
    site.client.publish_all([far, parked]);
    wait_until("it is parked, and all is stored", Duration::from_secs(10), || {
        let state = daemon.state();
        state["items"]["parked"] == 1 && state["uncommitted"] == 0
    });
    daemon.kill9();
    // The choice is made on arrival and stays, even if the configuration changes.
    daemon.rewrite(&config.clone().set("defaults.copy_headers", "[]"));
    daemon.start_again();
    daemon.wait_ready();
    let inbox = site.inbox("shop");
    check_entry(&entries(&inbox.next())[0]);
    check_entry(&entries(&mail.next())[0]);
}

#[test]
fn a_reload_counts_for_what_comes_then() {
    let site = site("passed-reload");
    let inbox = site.inbox("shop");
    let config = passing_on(&site, "json");
    let before = config.clone().unset("defaults.copy_headers").unset("defaults.copy_properties");
    let daemon = site.start(&before);
    let [traced, _] = two(&site);
    site.client.publish(&traced.clone().id("early").delay(3_600_000));
    wait_until("it is taken", Duration::from_secs(10), || daemon.items("waiting") == 1);
    daemon.rewrite(&config);
    daemon.hup();
    wait_until("it is reloaded", Duration::from_secs(10), || daemon.log().contains("configuration reloaded"));
    site.client.publish(&traced.clone().id("late"));
    let late = entries(&inbox.next()).remove(0);
    assert_eq!(late["id"], "late");
    check_entry(&late);
    leave_now(&daemon, "shop", "early");
    let early = entries(&inbox.next()).remove(0);
    assert_eq!((&early["id"], early.get("headers")), (&json!("early"), None));
    // A faulty file changes nothing, and the log names the key.
    daemon.rewrite(&config.set("defaults.copy_headers", r#"["x-delay"]"#));
    daemon.hup();
    wait_until("it is refused", Duration::from_secs(10), || daemon.log().contains("defaults.copy_headers"));
    site.client.publish(&traced.id("again"));
    check_entry(&entries(&inbox.next())[0]);
}

#[test]
fn what_is_passed_on_counts_towards_max_bytes() {
    for format in ["json", "ndjson", "cloudevents"] {
        let site = site(&format!("passed-bytes-{format}"));
        let inbox = site.inbox("shop");
        let config = passing_on(&site, format).text("defaults.max_bytes", "16KiB");
        let mut daemon = site.start(&config);
        // No item of this customer is to leave before the kill.
        let of_customer = "/api/v1/customers/shop/b";
        let order = |daemon: &Daemon, verb: &str| {
            let path = format!("{of_customer}/{verb}");
            wait_until(verb, Duration::from_secs(10), || daemon.ask("POST", &path).0 == 200);
        };
        order(&daemon, "pause");
        // Each control character is encoded in six bytes; a table in an event is JSON text inside JSON text.
        let mut table = FieldTable::default();
        table.insert("\"k\"".into(), tidegate_harness::text(&"\"\\".repeat(100)));
        let push = |n: usize| {
            let push =
                site.push("shop", "x").id(&format!("{n}")).with("traceparent", &"\u{1}".repeat(n * 20));
            push.header("x-tenant", AMQPValue::FieldTable(table.clone()))
        };
        let windowed = (0..20).map(|n| push(n).customer("a"));
        let at_once = (20..40).map(|n| push(n).customer("b").delay(3_000));
        site.client.publish_all(windowed.chain(at_once));
        wait_until("all is stored", Duration::from_secs(10), || {
            daemon.ask("GET", of_customer).1["waiting"] == 20 && daemon.state()["uncommitted"] == 0
        });
        // Also for items that are read from the store.
        daemon.kill9();
        daemon.start_again();
        daemon.wait_ready();
        order(&daemon, "resume");
        let mut seen = std::collections::BTreeSet::new();
        let (mut largest, mut batches) = (0, 0);
        while seen.len() < 40 {
            let received = inbox.next();
            assert!(received.body.len() <= 16 * 1024, "{format}: {} bytes", received.body.len());
            largest = largest.max(received.body.len());
            batches += 1;
            seen.extend(entries(&received).iter().map(|e| e["id"].as_str().expect("an id").to_owned()));
        }
        assert!(batches >= 8, "{format}: {batches} batches");
        assert!(largest > 8 * 1024, "not split finer than need be: {largest}");
    }
}

#[test]
fn entries_of_an_envelope_have_those_of_their_message() {
    let site = site("passed-envelope");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&passing_on(&site, "json"));
    let body = json!([{"customer": "c", "payload": 1}, {"customer": "c", "payload": 2}]).to_string();
    let [traced, _] = two(&site);
    let push = Push { body: body.into_bytes(), ..traced }.content_type("application/vnd.tidegate+json");
    site.client.publish(&push.id("m"));
    let entries = entries(&inbox.next());
    assert_eq!(entries.len(), 2);
    entries.iter().for_each(check_entry);
}

#[test]
fn passthrough_carries_them_in_any_case() {
    let site = site("passed-through");
    let inbox = site.inbox("shop");
    let daemon = site.start(&passing_on(&site, "passthrough"));
    assert!(daemon.log().contains("defaults.copy_headers: has no effect"), "{}", daemon.log_tail());
    let [traced, _] = two(&site);
    site.client.publish(&traced.delay(1));
    let got = inbox.next();
    assert_eq!(got.text("traceparent").as_deref(), Some(TRACE));
    assert_eq!(got.text("x-other").as_deref(), Some("stays behind"));
    let correlation = got.properties.correlation_id().as_ref().map(|id| id.as_str());
    assert_eq!((correlation, got.body_text().as_str()), (Some("c-9"), "{}"));
}

#[test]
fn a_batch_has_a_trace_context_of_its_own_and_each_entry_that_of_its_request() {
    let site = site("traces");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config().text("defaults.window", "60s"));
    let context = |trace: u32, span: u32| format!("00-{trace:032x}-{span:016x}-01");
    let push = |customer: &str, id: &str, context: &str| {
        let push = site.push("shop", "1").content_type("application/json").customer(customer).id(id);
        if context.is_empty() {
            push
        } else {
            push.with("traceparent", context).with("tracestate", "a=1")
        }
    };
    let batch = |customer: &str, pushes: Vec<tidegate_harness::Push>| {
        let count = pushes.len();
        site.client.publish_all(pushes);
        close_window(&daemon, "shop", customer, count);
        inbox.next()
    };
    let (one, two, other) = (context(7, 1), context(7, 2), context(8, 3));
    let same = batch("same", vec![push("same", "a", &one), push("same", "b", &two), push("same", "c", "")]);
    let parent = same.text("traceparent").expect("a context");
    assert!(parent.starts_with(&one[..36]) && parent.ends_with("-01") && parent != one && parent != two);
    assert_eq!(same.text("tracestate").as_deref(), Some("a=1"));
    let entries = same.json();
    let of = |index: usize| entries["items"][index]["traceparent"].as_str();
    assert_eq!((of(0), of(1), of(2)), (Some(one.as_str()), Some(two.as_str()), None));
    let several = batch("several", vec![push("several", "d", &one), push("several", "e", &other)]);
    let parent = several.text("traceparent").expect("a context");
    assert!(!parent.starts_with(&one[..36]) && !parent.starts_with(&other[..36]), "{parent}");
    assert_eq!(several.text("tracestate"), None);
    let none = batch("none", vec![push("none", "f", "")]);
    assert_eq!(none.text("traceparent"), None);
    let malformed = batch("bad", vec![push("bad", "g", "00-zz")]);
    assert_eq!(malformed.text("traceparent"), None, "it counts as absent");
}
