//! The JSON envelope: one object or an array of them.

use super::site;
use crate::requests::{due_of, leave_now};
use serde_json::{json, Value};
use std::time::Duration;
use tidegate_harness::{now_ms, Inbox, Push, Site};

const TYPE: &str = "application/vnd.tidegate+json";

fn envelope(site: &Site<'_>, key: &str, body: &Value) -> Push {
    Push::new(&site.ingest(), key, body.to_string()).content_type(TYPE)
}

#[test]
fn an_object_carries_all_fields() {
    let site = site("object");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config());
    let at = now_ms() + 3_600_000;
    let body = format!(
        r#"{{"application": "shop", "customer": 42, "deliver_at": {at}, "id": "e1", "deliver_before": {},
            "on_duplicate": "keep", "payload": {{"a": [1, 2.50]}}}}"#,
        at + 60_000
    );
    let push = Push::new(&site.ingest(), "ignored", body).content_type(TYPE);
    site.client.publish(&push);
    assert_eq!(due_of(&daemon, "shop", "e1"), at);
    leave_now(&daemon, "shop", "e1");
    let received = inbox.next();
    received.is_not_early();
    assert!(received.body_text().contains(r#"{"a": [1, 2.50]}"#), "as written: {}", received.body_text());
    let batch = received.batch();
    assert_eq!((batch.customer.as_deref(), batch.ids()), (Some("42"), vec!["e1"]));
    assert_eq!(batch.items[0].content_type.as_deref(), Some("application/json"));
}

#[test]
fn payload_forms() {
    let site = site("payload");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config());
    let one = |body: Value| {
        site.client.publish(&envelope(&site, "shop", &body));
        inbox.batch().items.remove(0)
    };
    assert_eq!(one(json!({"payload": null})).payload, Some(Value::Null));
    let item = one(json!({"content_type": "text/plain", "payload": "hi"}));
    assert_eq!((item.base64.as_deref(), item.payload), (Some("aGk="), None), "a string is its text");
    let item = one(json!({"content_type": "application/octet-stream", "payload_base64": "AAH/"}));
    assert_eq!(item.base64.as_deref(), Some("AAH/"));
    let item = one(json!({"payload_base64": "eyJ4IjoxfQ=="}));
    assert_eq!(item.payload, Some(json!({"x": 1})), "JSON by its content type");
}

#[test]
fn an_array_is_understood_entry_by_entry_with_fallbacks() {
    let site = site("array");
    let inbox = site.inbox("shop");
    let other = site.inbox("mail");
    let _daemon = site.start(&site.config());
    let entries = json!([
        {"customer": "c1", "payload": 1},
        {"customer": "c1", "payload": 2, "id": "own"},
        {"application": "mail", "payload": 3, "delay_ms": 300},
    ]);
    site.client.publish(&envelope(&site, "shop", &entries).id("m"));
    let batch = inbox.batch();
    assert_eq!(batch.ids(), ["m/0", "own"]);
    let mail = other.next();
    mail.is_not_early();
    assert_eq!(mail.batch().ids(), ["m/2"]);
}

#[test]
fn faults_reject_the_whole_message() {
    let site = site("faults");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config().set("limits.max_envelope_items", "3"));
    let dead = site.dead_inbox();
    let refuse = |body: &str, reason: &str, named: &str| {
        let push = Push::new(&site.ingest(), "shop", body).content_type(TYPE);
        site.client.publish(&push);
        let letter = dead.next();
        let sentence = letter.text("x-tidegate-error").expect("a sentence");
        assert_eq!(letter.text("x-tidegate-reason").as_deref(), Some(reason), "{body}: {sentence}");
        assert!(sentence.contains(named), "{body}: {sentence}");
        assert_eq!(letter.body_text(), body);
    };
    refuse(r#"{"payload": 1, "pauload": 2}"#, "invalid", "pauload");
    refuse(r#"{"payload": 1, "payload_base64": "AA=="}"#, "invalid", "payload");
    refuse(r#"{"customer": "c"}"#, "invalid", "payload");
    refuse(r#"{"payload_base64": "?"}"#, "invalid", "payload_base64");
    refuse(r#"{"payload": 1, "delay_ms": "x"}"#, "invalid", "delay_ms");
    refuse(r#"{"payload": 1, "delay_ms": 1, "deliver_at": 4102444800000}"#, "invalid", "deliver_at");
    refuse("[]", "invalid", "array");
    refuse("{", "invalid", "");
    refuse(r#"[{"payload": 1}, {"payload": 2, "on_duplicate": "maybe"}]"#, "invalid", "on_duplicate");
    refuse(r#"[{"payload":1},{"payload":1},{"payload":1},{"payload":1}]"#, "too_large", "max_envelope_items");
    quiet(&inbox);
}

fn quiet(inbox: &Inbox) {
    inbox.quiet(Duration::from_millis(400));
}
