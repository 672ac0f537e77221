//! The same request delivered again has the same fingerprint, and any other one differs.

use super::*;
use std::collections::BTreeSet;

fn full() -> BasicProperties {
    with(&[("x-customer", text("42")), ("x-delay", number(5_000)), ("trace", text("t"))])
        .with_message_id("id".into())
        .with_content_type("text/plain".into())
        .with_content_encoding("gzip".into())
        .with_correlation_id("c".into())
        .with_reply_to("r".into())
        .with_type("kind".into())
        .with_app_id("app".into())
        .with_timestamp(1)
        .with_priority(3)
        .with_expiration("60000".into())
        .with_delivery_mode(2)
}

fn fingerprint(properties: BasicProperties, body: &[u8]) -> u64 {
    item(take(properties, body)).fingerprint
}

fn headers(more: &[(&str, AMQPValue)]) -> BasicProperties {
    let mut all = full().headers().clone().unwrap_or_default();
    for (name, value) in more {
        all.insert((*name).into(), value.clone());
    }
    full().with_headers(all)
}

/// Judges promise 14.
#[test]
fn a_copy_that_comes_later_and_with_marks_of_the_broker_is_equal() {
    let first = fingerprint(full(), b"body");
    let later = Incoming {
        exchange: "tidegate.in",
        routing_key: "orders",
        properties: headers(&[
            ("x-delivery-count", number(3)),
            ("x-acquired-count", number(4)),
            ("x-death", AMQPValue::FieldTable(table(&[("count", number(1))]))),
            ("x-first-death-queue", text("q")),
            ("x-last-death-reason", text("rejected")),
        ]),
        body: b"body".to_vec(),
        received: NOW + 77_000,
    };
    let later = item(read(later, &LIMITS));
    assert_eq!(later.fingerprint, first);
    assert_eq!(later.at, Some(NOW + 82_000), "though its due is another");
}

#[test]
fn every_part_that_differs_makes_another() {
    let changed = [
        full(),
        headers(&[("x-customer", text("43"))]),
        headers(&[("x-delay", number(5_001))]),
        headers(&[("trace", text("u"))]),
        headers(&[("more", AMQPValue::Void)]),
        headers(&[("x-deliver-before", number(1_900_000_000_000))]),
        headers(&[("x-on-duplicate", text("replace"))]),
        headers(&[("x-application", text("other"))]),
        full().with_message_id("id2".into()),
        full().with_content_type("text/html".into()),
        full().with_content_encoding("br".into()),
        full().with_correlation_id("d".into()),
        full().with_reply_to("s".into()),
        full().with_type("sort".into()),
        full().with_app_id("bpp".into()),
        full().with_timestamp(2),
        full().with_priority(4),
        full().with_expiration("60001".into()),
        full().with_delivery_mode(1),
        full().with_user_id("u".into()),
        BasicProperties::default(),
    ];
    let mut all: BTreeSet<u64> = changed.iter().map(|p| fingerprint(p.clone(), b"body")).collect();
    let other_key = item(from("tidegate.in", "refunds", full(), b"body"));
    all.extend([fingerprint(full(), b"bodz"), fingerprint(full(), b""), other_key.fingerprint]);
    assert_eq!(all.len(), changed.len() + 3);
}

#[test]
fn without_an_id_there_is_none() {
    let bare = || BasicProperties::default().with_content_type("application/vnd.tidegate+json".into());
    assert_eq!(fingerprint(BasicProperties::default(), b"body"), 0);
    let entries = items(take(bare(), br#"[{"payload": 1}, {"payload": 2, "id": "7"}]"#));
    assert_eq!(entries[0].fingerprint, 0);
    assert_ne!(entries[1].fingerprint, 0, "it has one of its own");
}

#[test]
fn of_an_envelope_each_entry_counts_for_itself() {
    let envelope = |id: &str, body: &str| {
        let properties = BasicProperties::default()
            .with_content_type("application/vnd.tidegate+json".into())
            .with_message_id(id.into());
        let all: Vec<u64> =
            items(take(properties, body.as_bytes())).iter().map(|item| item.fingerprint).collect();
        all
    };
    let body = r#"[{"payload": 1}, {"payload": 2, "delay_ms": 5}]"#;
    let first = envelope("m", body);
    assert_eq!(envelope("m", body), first);
    // A neighbour may change.
    assert_eq!(envelope("m", r#"[{"payload": 1}, {"payload": 3}]"#)[0], first[0]);
    let single = |fields: &str| envelope("m", &format!("{{{fields}}}"))[0];
    let changed = [
        r#""payload": 1"#,
        r#""payload": 2"#,
        r#""payload_base64": "MQ==""#,
        r#""payload": 1, "application": "a""#,
        r#""payload": 1, "customer": "a""#,
        r#""payload": 1, "delay_ms": 5"#,
        r#""payload": 1, "deliver_at": 1900000000000"#,
        r#""payload": 1, "deliver_before": 1900000000000"#,
        r#""payload": 1, "on_duplicate": "keep""#,
        r#""payload": 1, "content_type": "text/json""#,
        r#""payload": 1, "id": "n""#,
    ];
    let mut all: BTreeSet<u64> = changed.iter().map(|fields| single(fields)).collect();
    all.extend(first.iter().copied());
    all.insert(envelope("n", r#"{"payload": 2}"#)[0]);
    assert_eq!(all.len(), changed.len() + 3);
}

#[test]
fn an_envelope_with_marks_of_the_broker_is_the_same_whatever_stands_beside_it() {
    let beside =
        [("x-application", text("orders")), ("x-customer", text("c")), ("cloudEvents:id", text("e"))];
    let of = |marks: &[(&str, AMQPValue)]| {
        let headers: Vec<_> = beside.iter().chain(marks).cloned().collect();
        let properties = with(&headers).with_content_type("application/vnd.tidegate+json".into());
        let read = items(take(properties, br#"[{"id":"a","payload":1},{"id":"b","payload":2}]"#));
        read.iter().map(|item| item.fingerprint).collect::<Vec<_>>()
    };
    assert_eq!(of(&[]), of(&[("x-delivery-count", number(1))]));
}
