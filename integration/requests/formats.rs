//! The four body formats, the properties of a batch, and the properties that are never copied.

use super::site;
use crate::requests::{close_window, due_of, order};
use serde_json::Value;
use std::time::Duration;
use tidegate_harness::lapin::types::{AMQPValue, FieldArray};
use tidegate_harness::{now_ms, text, wait_until, Client, Node, Push, Received, Site};

fn property(value: &Option<tidegate_harness::lapin::types::ShortString>) -> &str {
    value.as_ref().map_or("", |v| v.as_str())
}

/// Payloads of one customer: JSON, JSON by suffix, bytes, invalid JSON, and one with a content encoding.
fn mixed(site: &Site<'_>) -> Vec<Push> {
    let push =
        |id: &str, body: &[u8], kind: &str| site.push("shop", body).customer("c").id(id).content_type(kind);
    let mut encoded = push("enc", b"{}", "application/json");
    encoded.properties = encoded.properties.with_content_encoding("gzip".into());
    let mut plain = push("json", b"{ \"a\":\n1.0 }", "application/json");
    // As kombu sends every message.
    plain.properties = plain.properties.with_content_encoding("utf-8".into());
    vec![
        plain,
        push("plus", b"[1]", "application/x.y+json").kind("order.placed"),
        push("bytes", &[0, 255], "application/octet-stream"),
        push("broken", b"{", "application/json"),
        encoded,
    ]
}

/// A batch of all of them, which were held back until their time had come: so they leave together, however
/// slowly they have come.
fn one_batch(site: &Site<'_>, format: &str) -> Received {
    let inbox = site.inbox("shop");
    let daemon =
        site.start(&site.config().text("applications.shop.format", format).text("defaults.window", "1s"));
    order(&daemon, "shop", "pause");
    site.client.publish_all(mixed(site));
    wait_until("all are due", Duration::from_secs(10), || {
        let state = daemon.state();
        let closed = state["items"]["waiting"] == 5 && state["items"]["windows"] == 0;
        closed && due_of(&daemon, "shop", "enc") < now_ms()
    });
    order(&daemon, "shop", "resume");
    inbox.next()
}

fn check_envelope(received: &Received, content_type: &str) {
    assert_eq!(property(received.properties.content_type()), content_type);
    assert_eq!(property(received.properties.app_id()), "tidegate");
    assert_eq!(property(received.properties.kind()), "tidegate.batch");
    assert_eq!(received.properties.delivery_mode(), &Some(2));
    assert!(received.properties.timestamp().is_some());
    assert_eq!(received.key, "shop");
    assert_eq!(received.text("x-customer").as_deref(), Some("c"));
    assert_eq!(received.number("x-count"), Some(5));
    assert_eq!(received.number("x-attempt"), Some(1));
    assert_eq!(received.text("x-closed-by").as_deref(), Some("time"));
    assert_eq!(received.text("x-batch").as_deref(), Some(received.id().as_str()));
    assert!(!received.id().is_empty());
    received.is_not_early();
}

#[test]
fn json() {
    let site = site("json");
    let received = one_batch(&site, "json");
    check_envelope(&received, "application/json");
    let written = received.body_text();
    assert!(written.contains("{ \"a\": 1.0 }"), "as written, line breaks as spaces: {written}");
    let batch = received.batch();
    assert_eq!(batch.ids(), ["json", "plus", "bytes", "broken", "enc"]);
    assert_eq!(batch.id, batch.message.id());
    let forms: Vec<_> = batch.items.iter().map(|i| (i.payload.is_some(), i.base64.as_deref())).collect();
    let expected =
        [(true, None), (true, None), (false, Some("AP8=")), (false, Some("ew==")), (false, Some("e30="))];
    assert_eq!(forms, expected);
    assert_eq!(batch.message.json()["items"][4]["content_encoding"], "gzip");
    assert!(batch.message.json()["items"][0]["content_encoding"].is_null(), "a character set is none");
    assert_eq!(batch.items[2].content_type.as_deref(), Some("application/octet-stream"));
}

#[test]
fn ndjson() {
    let site = site("ndjson");
    let received = one_batch(&site, "ndjson");
    check_envelope(&received, "application/x-ndjson");
    let body = received.body_text();
    let lines: Vec<Value> = body.lines().map(|l| serde_json::from_str(l).expect("a JSON line")).collect();
    let ids: Vec<&str> = lines.iter().map(|l| l["id"].as_str().expect("id")).collect();
    assert_eq!(ids, ["json", "plus", "bytes", "broken", "enc"]);
    assert_eq!(lines[2]["payload_base64"], "AP8=");
    assert!(lines.iter().all(|l| l["due"].is_u64() && l["received"].is_u64()));
}

#[test]
fn cloudevents() {
    let site = site("cloudevents");
    let received = one_batch(&site, "cloudevents");
    check_envelope(&received, "application/cloudevents-batch+json");
    let body = received.json();
    let events = body.as_array().expect("an array");
    assert_eq!(events.len(), 5);
    for event in events {
        assert_eq!(event["specversion"], "1.0");
        assert_eq!(event["source"], "/tidegate/shop");
        assert_eq!(event["subject"], "c");
        assert!(
            event["time"].as_str().expect("time").ends_with('Z')
                || event["time"].as_str().expect("time").contains('+')
        );
        assert!(!event["due"].is_null());
    }
    let kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().expect("type")).collect();
    assert_eq!(kinds[..2], ["tidegate.item", "order.placed"]);
    assert_eq!(events[0]["data"], serde_json::json!({"a": 1.0}));
    assert_eq!(events[2]["data_base64"], "AP8=");
    assert_eq!(events[2]["datacontenttype"], "application/octet-stream");
}

#[test]
fn passthrough_gives_each_item_as_it_came() {
    let site = site("passthrough");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config().text("defaults.format", "passthrough"));
    let mut push =
        site.push("shop", [0u8, 1, 255]).id("m1").content_type("image/x").kind("own").with("x-own", "v");
    push.headers.insert("CC".into(), AMQPValue::FieldArray(FieldArray::from(vec![text("elsewhere")])));
    push.headers.insert("x-delivery-count".into(), AMQPValue::LongLongInt(3));
    push.properties =
        push.properties.with_priority(4).with_correlation_id("corr".into()).with_app_id("own-app".into());
    site.client.publish(&push.clone().delay(300));
    let got = inbox.next();
    got.is_not_early();
    assert_eq!(got.body, [0, 1, 255]);
    assert_eq!((got.id().as_str(), property(got.properties.kind())), ("m1", "own"));
    assert_eq!(property(got.properties.app_id()), "own-app");
    assert_eq!(property(got.properties.correlation_id()), "corr");
    assert_eq!(got.properties.priority(), &Some(4));
    assert_eq!(got.text("x-own").as_deref(), Some("v"));
    assert_eq!(got.number("x-attempt"), Some(1));
    assert!(got.text("x-batch").is_some());
    assert!(got.header("CC").is_none() && got.header("x-delivery-count").is_none());
    site.client.publish(&site.push("shop", "no id"));
    let got = inbox.next();
    assert!(!got.id().is_empty(), "the assigned id");
    assert_eq!(got.body_text(), "no id");
}

#[test]
fn cc_does_not_re_route() {
    let site = site("cc");
    let (shop, elsewhere) = (site.inbox("shop"), site.inbox("elsewhere"));
    let config = site.config().text("defaults.format", "passthrough");
    let _daemon = site.start(&config);
    let dead = site.dead_inbox();
    for name in ["CC", "BCC"] {
        let array = AMQPValue::FieldArray(FieldArray::from(vec![text("elsewhere")]));
        site.client.publish(&site.push("shop", "x").header(name, array.clone()).id(name));
        assert_eq!(shop.next().id(), name);
        site.client.publish(&site.push("shop", "x").header(name, array).with("x-delay", "bad"));
        assert!(dead.next().header(name).is_none(), "nor to the dead exchange");
    }
    elsewhere.quiet(Duration::from_millis(300));
}

#[test]
fn a_foreign_user_id_travels_as_a_header() {
    let Some(node) = Node::controlled("a_foreign_user_id_travels_as_a_header") else { return };
    let site = site("user-id");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config().text("defaults.format", "passthrough"));
    let other = Client::connect(&node.uri_of("other", "%2f"));
    let from_other = |id: &str| {
        let mut push = site.push("shop", "x").id(id);
        push.properties = push.properties.with_user_id("other".into());
        push
    };
    other.publish(&from_other("fine"));
    let got = inbox.next();
    assert!(got.properties.user_id().is_none(), "the broker would refuse it");
    assert_eq!(got.text("x-user-id").as_deref(), Some("other"));
    other.publish(&from_other("dead").with("x-delay", "bad"));
    let letter = site.dead_inbox().next();
    assert_eq!((letter.id().as_str(), letter.text("x-user-id").as_deref()), ("dead", Some("other")));
}

#[test]
fn events_that_come_in_go_out_as_themselves() {
    let site = site("own-events");
    let inbox = site.inbox("shop");
    let config = site.config().text("applications.shop.format", "cloudevents").text("defaults.window", "60s");
    let daemon = site.start(&config);
    let structured = r#"{"specversion":"1.0","id":"e-1","source":"/s","type":"t.one","data":[1]}"#;
    let binary =
        [("specversion", "1.0"), ("id", "e-2"), ("source", "/s"), ("type", "t.two"), ("subject", "x")];
    let binary = binary.iter().fold(site.push("shop", r#"{"n":2}"#), |push, (name, value)| {
        push.with(&format!("cloudEvents:{name}"), value)
    });
    site.client.publish_all([
        site.push("shop", structured).content_type("application/cloudevents+json").customer("c").id("a"),
        binary.content_type("application/json").customer("c").id("b"),
        site.push("shop", "3").content_type("application/json").customer("c").id("plain"),
    ]);
    close_window(&daemon, "shop", "c", 3);
    let received = inbox.next();
    assert_eq!(property(received.properties.content_type()), "application/cloudevents-batch+json");
    let events = received.json();
    let fields = |name: &str| events.as_array().expect("events").iter().map(|e| e[name].clone()).collect();
    let ids: Vec<serde_json::Value> = fields("id");
    assert_eq!(ids, ["e-1", "e-2", "plain"]);
    let kinds: Vec<serde_json::Value> = fields("type");
    assert_eq!(kinds, ["t.one", "t.two", "tidegate.item"]);
    let data: Vec<serde_json::Value> = fields("data");
    assert_eq!(data, [serde_json::json!([1]), serde_json::json!({"n": 2}), serde_json::json!(3)]);
    assert_eq!((&events[1]["subject"], &events[2]["subject"]), (&"x".into(), &"c".into()));
    assert!(events.as_array().expect("events").iter().all(|event| event["due"].is_string()), "{events}");
}
