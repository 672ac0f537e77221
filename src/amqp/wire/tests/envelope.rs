//! The JSON envelope: one object, arrays, fall-backs, strictness, and the header form of its entries.

use super::super::{encode, item_id, Exchanges};
use super::*;
use std::sync::Arc;
use tidegate_types::{AssignedId, Batch, BatchItem, ClosedBy, DuplicateRule, Format};

fn envelope() -> BasicProperties {
    BasicProperties::default().with_content_type("application/vnd.tidegate+json".into())
}

fn one(json: &str) -> NewItem {
    item(take(envelope(), json.as_bytes()))
}

fn refused(json: &str) -> String {
    refusal(take(envelope(), json.as_bytes()))
}

/// The message that would leave for this item as `passthrough`.
fn republished(item: &NewItem) -> Incoming<'static> {
    let batch = Batch {
        number: 1,
        application: item.application.as_ref().into(),
        customer: item.customer.as_deref().map(Into::into),
        dead: None,
        format: Format::Passthrough,
        closed_by: ClosedBy::Time,
        attempt: 1,
        due: NOW,
        held: None,
        alone: false,
        items: vec![BatchItem {
            seq: 1,
            window: 1,
            accepted_due: NOW,
            due: NOW,
            received: NOW,
            attempts: 0,
            retry: 0,
            content: Arc::clone(&item.content),
        }],
    };
    let names = Exchanges::new("out", "dead");
    let out = encode(&batch, &names, 1, NOW);
    Incoming {
        exchange: "",
        routing_key: "",
        properties: out.properties,
        body: out.body.to_vec(),
        received: NOW,
    }
}

#[test]
fn content_types_of_an_envelope() {
    for content_type in ["Application/VND.tidegate+JSON", "application/vnd.tidegate+json; charset=utf-8"] {
        let properties = BasicProperties::default().with_content_type(content_type.into());
        assert_eq!(item(take(properties, b"{\"payload\":1}")).content.body, b"1");
    }
    let other = BasicProperties::default().with_content_type("application/json".into());
    assert_eq!(item(take(other, b"{\"payload\":1}")).content.body, b"{\"payload\":1}");
}

#[test]
fn all_fields() {
    let item = one(
        r#"{"application":"a","customer":42,"delay_ms":1.5,"deliver_before":"2026-06-02T00:00:00Z","id":"i",
            "on_duplicate":"latest","content_type":"text/plain","payload":"caf\u00e9\n"}"#,
    );
    assert_eq!(
        (&*item.application, item.customer.as_deref(), item.identity),
        ("a", Some("42"), given("a", "i"))
    );
    assert_eq!((item.at, item.expiry), (Some(NOW + 2), Some(NOW + DAY)));
    assert_eq!(item.on_duplicate, DuplicateRule::Latest);
    assert_eq!(item.content.body, "café\n".as_bytes());
    assert!(!item.content.json);
    assert_eq!(one(r#"{"payload":1,"deliver_at":1780272000001}"#).at, Some(NOW + 1));
    assert_eq!(one(r#"{"payload":1,"deliver_at":"1780272000001"}"#).at, Some(NOW + 1));
    assert_eq!(one(r#"{"payload":1,"deliver_at":"2026-06-01T00:00:01+00:00"}"#).at, Some(NOW + 1000));
    assert_eq!(one(r#"{"payload":1,"deliver_at":1780272000500,"delay_ms":500}"#).at, Some(NOW + 500));
    assert_eq!(one(r#"{"payload":1,"delay_ms":-1}"#).at, Some(NOW));
    assert_eq!(one(r#"{"payload":1,"delay_ms":1e3}"#).at, Some(NOW + 1000));
    let empty =
        one(r#"{"payload":1,"customer":"","id":null,"delay_ms":null,"on_duplicate":"","content_type":""}"#);
    assert_eq!((empty.customer, empty.identity, empty.at), (None, None, None));
}

#[test]
fn payloads() {
    for (json, body, embedded) in [
        (r#"{"payload": {"b" : [1,  1.0e2], "a":1} }"#, r#"{"b" : [1,  1.0e2], "a":1}"#, true),
        (r#"{"payload":null}"#, "null", true),
        (r#"{"payload":"text"}"#, r#""text""#, true),
        (r#"{"payload":"text","content_type":"text/plain"}"#, "text", false),
        (r#"{"payload":{"a":1},"content_type":"text/plain"}"#, r#"{"a":1}"#, false),
        (r#"{"payload":"x","content_type":"application/problem+json"}"#, r#""x""#, true),
        (r#"{"payload_base64":"aGVsbG8="}"#, "hello", false),
        (r#"{"payload_base64":"WzFd"}"#, "[1]", true),
        (r#"{"payload_base64":"WzFd","content_type":"application/octet-stream"}"#, "[1]", false),
        (r#"{"payload_base64":""}"#, "", false),
        (r#"{"payload":1,"payload_base64":null}"#, "1", true),
    ] {
        let content = one(json).content;
        assert_eq!((content.body.as_slice(), content.json), (body.as_bytes(), embedded), "{json}");
    }
}

#[test]
fn strictness() {
    for (json, named) in [
        (r#"{"payload":1,"payload_base64":"aGVsbG8="}"#, "exclude"),
        (r#"{}"#, "neither payload"),
        (r#"{"payload":1,"delay":5}"#, "unknown field `delay`"),
        (r#"{"payload":1,"payload":2}"#, "duplicate field `payload`"),
        (r#"{"payload":1} x"#, "not understood"),
        (r#"{"payload":1"#, "not understood"),
        (r#"5"#, "not understood"),
        ("", "not understood"),
        (r#"{"payload":1,"customer":4.2}"#, "customer "),
        (r#"{"payload":1,"customer":["a"]}"#, "customer "),
        (r#"{"payload":1,"customer":true}"#, "customer "),
        (r#"{"payload":1,"customer":"\ud800"}"#, "customer "),
        (r#"{"payload":1,"id":{}}"#, "id "),
        (r#"{"payload":1,"delay_ms":"soon"}"#, "delay_ms "),
        (r#"{"payload":1,"delay_ms":true}"#, "delay_ms "),
        (r#"{"payload":1,"delay_ms":1e300}"#, "limits.max_delay"),
        (r#"{"payload":1,"delay_ms":1e999}"#, "delay_ms "),
        (r#"{"payload":1,"deliver_at":1780272000}"#, "seconds by mistake"),
        (r#"{"payload":1,"deliver_at":"2026-06-01T00:00:00"}"#, "deliver_at "),
        (r#"{"payload":1,"deliver_at":1780272000500,"delay_ms":1}"#, "different moments"),
        (r#"{"payload":1,"deliver_before":[]}"#, "deliver_before "),
        (r#"{"payload":1,"on_duplicate":"drop"}"#, "on_duplicate "),
        (r#"{"payload_base64":"aGVsbG8"}"#, "payload_base64 "),
        (r#"{"payload_base64":"a-_="}"#, "payload_base64 "),
        (r#"{"payload_base64":5}"#, "payload_base64 "),
        (r#"[]"#, "empty array"),
        (r#"[{"payload":1}] x"#, "after its array"),
        (r#"[{"payload":1}"#, "not understood"),
    ] {
        let error = refused(json);
        assert!(error.contains(named), "{json}: {error}");
    }
    let long = format!(r#"{{"payload":1,"customer":"{}"}}"#, "c".repeat(201));
    assert!(refused(&long).starts_with("customer "));
    assert!(refused(&format!(r#"{{"payload":1,"id":"{}"}}"#, "i".repeat(256))).starts_with("id "));
    assert!(refused(&format!(r#"{{"payload":1,"content_type":"{}"}}"#, "t".repeat(256)))
        .starts_with("content_type "));
    assert!(refusal(take(envelope(), b"{\"payload\":\"\xff\"}")).contains("UTF-8"));
    let hostile = format!(r#"{{"payload":1,"{}\n":2}}"#, "k".repeat(5000));
    let error = refused(&hostile);
    assert!(error.len() < 510 && !error.contains(char::is_control));
}

#[test]
fn arrays() {
    let list = |json: &str| items(take(envelope().with_message_id("m".into()), json.as_bytes()));
    let found =
        list(" \n[{\"payload\":1}, {\"payload\":2,\"id\":\"own\"},{\"payload\":3,\"application\":\"b\"}]");
    let ids: Vec<_> = found
        .iter()
        .map(|item| item_id(&item.content, STORE, AssignedId { seq: 0, due: NOW, window: 0 }))
        .collect();
    assert_eq!(ids, ["m/0", "own", "m/2"]);
    let identities: Vec<_> = found.iter().map(|item| item.identity).collect();
    assert_eq!(identities, [given("orders", "m/0"), given("orders", "own"), given("b", "m/2")]);
    let applications: Vec<_> = found.iter().map(|item| &*item.application).collect();
    assert_eq!(applications, ["orders", "orders", "b"]);
    assert_eq!(items(take(envelope(), b"[{\"payload\":1}]"))[0].identity, None);
    assert_eq!(one(r#"{"payload":1}"#).identity, None);
    assert_eq!(
        item(take(envelope().with_message_id("m".into()), b"{\"payload\":1}")).identity,
        given("orders", "m")
    );

    let entries = |count: usize| format!("[{}]", vec!["{\"payload\":1}"; count].join(","));
    assert_eq!(list(&entries(5)).len(), 5);
    let large = rejected(take(envelope(), entries(6).as_bytes()));
    assert_eq!(large.dead.reason, Reason::TooLarge);
    assert!(large.dead.error.contains("limits.max_envelope_items"));

    for (json, named) in [
        (r#"[{"payload":1},{}]"#, "entry 1: "),
        (r#"[{"payload":1},{"payload":2,"x":1}]"#, "entry 1 "),
        (r#"[{"payload":1},5]"#, "entry 1 "),
        (r#"[[null,null]]"#, "entry 0 "),
        (r#"[{"payload":1},{"payload":1,"delay_ms":"x"}]"#, "entry 1: delay_ms "),
    ] {
        let error = refused(json);
        assert!(error.starts_with(named), "{error}");
    }
    let properties = envelope().with_message_id("m".repeat(254).as_str().into());
    let refusal = refusal(take(properties, b"[{\"payload\":1}]"));
    assert!(refusal.starts_with("entry 0: message_id with the index"));
}

#[test]
fn copies_of_headers_are_bounded() {
    let limits = RequestLimits { max_envelope_items: 10_000, ..LIMITS };
    let properties = envelope().with_headers(table(&[("h", text(&"h".repeat(60_000)))]));
    let body = format!("[{}]", vec!["{\"payload\":1}"; 600].join(","));
    let parts =
        Incoming { exchange: "e", routing_key: "k", properties, body: body.into_bytes(), received: NOW };
    assert_eq!(rejected(read(parts, &limits)).dead.reason, Reason::TooLarge);
}

#[test]
fn application_falls_back_to_the_message() {
    let headers =
        table(&[("x-application", text("h")), ("x-customer", text("ignored")), ("x-delay", number(5))]);
    let found = item(from("", "q", envelope().with_headers(headers), b"{\"payload\":1}"));
    assert_eq!((&*found.application, &found.customer, found.at), ("h", &None, None));
    let error = refusal(from("", "q", envelope(), b"{\"payload\":1}"));
    assert!(error.starts_with("application is missing"));
    // The message's own is a fall-back: only an entry that needs it is refused for it.
    let (long, wrong) = ("k".repeat(230), table(&[("x-application", text(&"n".repeat(230)))]));
    for (key, properties) in [(&*long, envelope()), ("q", envelope().with_headers(wrong))] {
        let found = item(from("in", key, properties.clone(), b"{\"application\":\"shop\",\"payload\":1}"));
        assert_eq!(&*found.application, "shop");
        refusal(from("in", key, properties, b"{\"payload\":1}"));
    }
}

#[test]
fn a_rejected_object_still_tells_its_names() {
    let refused = rejected(take(envelope(), br#"{"customer":7,"application":"a","nonsense":1}"#));
    assert_eq!((refused.application.as_deref(), refused.customer.as_deref()), (Some("a"), Some("7")));
    assert_eq!(refused.content.body, br#"{"customer":7,"application":"a","nonsense":1}"#);
    let refused = rejected(take(envelope(), br#"[{"customer":7,"application":"a","nonsense":1}]"#));
    assert_eq!((refused.application.as_deref(), refused.customer), (Some("orders"), None));
    let refused = rejected(take(envelope(), br#"["a","b"]"#));
    assert_eq!((refused.application.as_deref(), refused.customer), (Some("orders"), None));
}

#[test]
fn an_entry_can_be_published_again_as_it_leaves() {
    let properties = envelope()
        .with_content_encoding("identity".into())
        .with_correlation_id("corr".into())
        .with_type("kind".into())
        .with_headers(table(&[
            ("trace", text("t")),
            ("x-opt-delivery-time", number(NOW as i64 + 9)),
            ("x-application", text("other")),
            ("x-customer", text("other")),
            ("CC", text("elsewhere")),
        ]));
    let body = r#"[
        {"payload":{"a":1},"customer":"c","delay_ms":1500,"on_duplicate":"reject","id":"i"},
        {"payload":"t","content_type":"text/plain","deliver_at":"2026-06-02T00:00:00Z","application":"b"},
        {"payload":0,"deliver_at":"1970-01-01T00:00:00Z","deliver_before":"1970-01-01T00:00:00Z"}
    ]"#;
    let first = items(take(properties, body.as_bytes()));
    for (index, before) in first.iter().enumerate() {
        let after = item(read(republished(before), &LIMITS));
        assert_eq!(after.application, before.application, "{index}");
        assert_eq!(after.customer, before.customer);
        assert_eq!(after.at, before.at);
        assert_eq!(after.on_duplicate, before.on_duplicate);
        assert_eq!(after.expiry.is_some(), before.expiry.is_some());
        assert_eq!((&after.content.body, after.content.json), (&before.content.body, before.content.json));
        // The id is assigned once, and then is the item's own.
        let id = item_id(&before.content, 1, AssignedId { seq: 1, due: NOW, window: 1 });
        assert_eq!(after.identity, given(&before.application, &id));
        assert_eq!(before.identity.is_some(), index == 0, "{id}");
    }
    let out = republished(&first[0]).properties;
    let headers = out.headers().as_ref().unwrap().inner();
    assert_eq!(headers.get("x-delay"), Some(&number(1500)));
    assert_eq!(headers.get("x-customer"), Some(&text("c")));
    assert_eq!(headers.get("x-on-duplicate"), Some(&text("reject")));
    assert_eq!(headers.get("trace"), Some(&text("t")));
    assert!(!headers.contains_key("x-opt-delivery-time") && !headers.contains_key("CC"));
    assert_eq!(out.content_encoding(), &None);
    assert_eq!(out.content_type().as_ref().unwrap().as_str(), "application/json");
    assert_eq!(out.correlation_id().as_ref().unwrap().as_str(), "corr");
    assert_eq!(out.kind().as_ref().unwrap().as_str(), "kind");
    let out = republished(&first[1]).properties;
    let headers = out.headers().as_ref().unwrap().inner();
    assert_eq!(headers.get("x-deliver-at"), Some(&number((NOW + DAY) as i64)));
    assert!(!headers.contains_key("x-customer"));
}
