//! The four formats to the byte, dead letters, and the way back in.

use super::super::{answer, batch_id_of, encode, item_id, Exchanges};
use super::*;
use lapin::types::ShortString;
use std::sync::Arc;
use tidegate_types::{AssignedId, Batch, BatchId, BatchItem, ClosedBy, Content, Dead, Format, ReplyTo};

pub(super) fn names() -> Exchanges {
    Exchanges::new("out", "dead")
}

pub(super) fn out_item(seq: u64, request: NewItem) -> BatchItem {
    BatchItem {
        seq,
        window: seq,
        accepted_due: NOW + seq,
        due: NOW + seq,
        received: NOW,
        attempts: 0,
        retry: 0,
        content: request.content,
    }
}

pub(super) fn batch(format: Format, items: Vec<BatchItem>) -> Batch {
    Batch {
        number: 1,
        application: "orders".into(),
        customer: Some("c\"1".into()),
        dead: None,
        format,
        closed_by: ClosedBy::Count,
        attempt: 2,
        due: NOW + 1,
        held: None,
        alone: false,
        items,
    }
}

fn three() -> Vec<BatchItem> {
    let json =
        BasicProperties::default().with_content_type("application/json".into()).with_message_id("ä\n".into());
    let gzip = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_content_encoding("gzip".into())
        .with_type("order.paid".into());
    vec![
        out_item(1, item(take(json, b"{\"a\":\r\n 1}"))),
        out_item(2, item(take(gzip, b"1234"))),
        out_item(31, item(take(BasicProperties::default(), b""))),
    ]
}

fn body(out: &super::super::Outgoing) -> String {
    String::from_utf8(out.body.to_vec()).unwrap()
}

fn header<'a>(properties: &'a BasicProperties, name: &str) -> Option<&'a AMQPValue> {
    properties.headers().as_ref()?.inner().get(name)
}

#[test]
fn json() {
    let out = encode(&batch(Format::Json, three()), &names(), STORE, NOW + 1999);
    let id = out.id.to_string();
    let expected = [
        r#"{"application":"orders","customer":"c\"1","batch":""#,
        &id,
        r#"","items":["#,
        r#"{"id":"ä\n","due":1780272000001,"received":1780272000000,"#,
        r#""content_type":"application/json","payload":{"a":   1}},"#,
        r#"{"id":"000000000000abcd-2-19e807aec02","due":1780272000002,"#,
        r#""received":1780272000000,"content_type":"application/json","#,
        r#""content_encoding":"gzip","payload_base64":"MTIzNA=="},"#,
        r#"{"id":"000000000000abcd-1f-19e807aec1f","due":1780272000031,"#,
        r#""received":1780272000000,"content_type":null,"payload_base64":""}"#,
        "]}",
    ];
    assert_eq!(body(&out), expected.concat());
    assert_eq!((out.exchange.as_str(), out.routing_key.as_str()), ("out", "orders"));
    let short = |text: &str| ShortString::from(text);
    let properties = BasicProperties::default()
        .with_content_type(short("application/json"))
        .with_message_id(short(&id))
        .with_app_id(short("tidegate"))
        .with_type(short("tidegate.batch"))
        .with_timestamp(NOW / 1000 + 1)
        .with_delivery_mode(2)
        .with_headers(table(&[
            ("x-customer", text("c\"1")),
            ("x-count", number(3)),
            ("x-due", number(NOW as i64 + 1)),
            ("x-closed-by", text("count")),
            ("x-attempt", number(2)),
            ("x-batch", text(&id)),
        ]));
    assert_eq!(out.properties, properties);
    assert_eq!(batch_id_of(&out.properties), Some(out.id));
}

/// A character set is no encoding: each format embeds the payload and omits the character set, and alone it
/// leaves as it came.
#[test]
fn a_character_set_is_no_content_encoding() {
    for none in ["utf-8", "UTF-8", "utf8", "us-ascii", "ASCII", "identity"] {
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_content_encoding(none.into());
        let one = || vec![out_item(1, item(take(properties.clone(), br#"{"a":1}"#)))];
        for format in [Format::Json, Format::Ndjson] {
            let written = body(&encode(&batch(format, one()), &names(), STORE, NOW));
            assert!(written.contains(r#""content_type":"application/json","payload":{"a":1}}"#), "{written}");
        }
        let written = body(&encode(&batch(Format::CloudEvents, one()), &names(), STORE, NOW));
        assert!(written.contains(r#""data":{"a":1}"#) && !written.contains("contentencoding"), "{written}");
        let headers = [("specversion", "1.0"), ("id", "e"), ("source", "/s"), ("type", "t")];
        let headers: Vec<_> =
            headers.iter().map(|(name, value)| (format!("cloudEvents:{name}"), text(value))).collect();
        let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        let event = properties.clone().with_headers(table(&headers));
        let event = vec![out_item(1, item(take(event, br#"{"a":1}"#)))];
        let written = body(&encode(&batch(Format::CloudEvents, event), &names(), STORE, NOW));
        assert!(written.contains(r#""id":"e""#) && written.contains(r#""data":{"a":1}"#), "{written}");
        assert!(!written.contains("contentencoding"), "{written}");
        let out = encode(&batch(Format::Passthrough, one()), &names(), STORE, NOW);
        assert_eq!(out.properties.content_encoding().as_ref().unwrap().as_str(), none, "as it came");
    }
}

#[test]
fn json_without_customer() {
    let alone = Batch { customer: None, ..batch(Format::Json, three()) };
    let out = encode(&alone, &names(), STORE, NOW);
    assert!(body(&out).starts_with(r#"{"application":"orders","customer":null,"batch":""#));
    assert_eq!(header(&out.properties, "x-customer"), None);
}

#[test]
fn ndjson() {
    let out = encode(&batch(Format::Ndjson, three()[..2].to_vec()), &names(), STORE, NOW);
    let expected = [
        r#"{"id":"ä\n","due":1780272000001,"received":1780272000000,"content_type":"application/json","#,
        r#""payload":{"a":   1}}"#,
        "\n",
        r#"{"id":"000000000000abcd-2-19e807aec02","due":1780272000002,"#,
        r#""received":1780272000000,"content_type":"application/json","#,
        r#""content_encoding":"gzip","payload_base64":"MTIzNA=="}"#,
        "\n",
    ];
    assert_eq!(body(&out), expected.concat());
    assert_eq!(out.properties.content_type().as_ref().unwrap().as_str(), "application/x-ndjson");
}

#[test]
fn cloud_events() {
    let batch = Batch { application: "a b/ü".into(), ..batch(Format::CloudEvents, three()) };
    let out = encode(&batch, &names(), STORE, NOW);
    let same = r#""source":"/tidegate/a%20b%2F%C3%BC","subject":"c\"1","#;
    let time = r#""time":"2026-06-01T00:00:00.000Z","#;
    let expected = [
        r#"[{"specversion":"1.0","id":"ä\n","#,
        same,
        r#""type":"tidegate.item","#,
        time,
        r#""datacontenttype":"application/json","due":"1780272000001","data":{"a":   1}},"#,
        r#"{"specversion":"1.0","id":"000000000000abcd-2-19e807aec02","#,
        same,
        r#""type":"order.paid","#,
        time,
        r#""datacontenttype":"application/json","contentencoding":"gzip","#,
        r#""due":"1780272000002","data_base64":"MTIzNA=="},"#,
        r#"{"specversion":"1.0","id":"000000000000abcd-1f-19e807aec1f","#,
        same,
        r#""type":"tidegate.item","#,
        time,
        r#""due":"1780272000031","data_base64":""}]"#,
    ];
    assert_eq!(body(&out), expected.concat());
    assert_eq!(
        out.properties.content_type().as_ref().unwrap().as_str(),
        "application/cloudevents-batch+json"
    );
}

#[test]
fn passthrough() {
    let properties =
        with(&[("x-customer", number(42)), ("x-delay", number(5)), ("x-attempt", text("stale"))])
            .with_content_type("text/plain".into())
            .with_timestamp(7)
            .with_type("kind".into())
            .with_delivery_mode(1);
    let request = item(take(properties.clone(), b"body"));
    let content: Arc<Content> = Arc::clone(&request.content);
    let out = encode(&batch(Format::Passthrough, vec![out_item(2, request)]), &names(), STORE, NOW);
    assert_eq!(&*out.body, b"body");
    assert_eq!(Arc::strong_count(&content), 2, "shared, not copied");
    let expected = properties
        .with_message_id("000000000000abcd-2-19e807aec02".into())
        .with_delivery_mode(2)
        .with_headers(table(&[
            ("x-customer", number(42)),
            ("x-delay", number(5)),
            ("x-due", number(NOW as i64 + 2)),
            ("x-attempt", number(2)),
            ("x-batch", text(&out.id.to_string())),
        ]));
    assert_eq!(out.properties, expected);
    assert_eq!((out.exchange.as_str(), out.routing_key.as_str()), ("out", "orders"));

    let own = item(take(BasicProperties::default().with_message_id("own".into()), b""));
    let out = encode(&batch(Format::Passthrough, vec![out_item(2, own)]), &names(), STORE, NOW);
    assert_eq!(out.properties.message_id().as_ref().unwrap().as_str(), "own");
}

/// Judges promise 9.
#[test]
fn batch_ids() {
    let id = |batch: &Batch, store| encode(batch, &names(), store, NOW).id;
    let first = batch(Format::Json, three());
    let known = id(&first, STORE);
    let hex = known.to_string();
    assert_eq!(hex.len(), 32);
    assert!(hex.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')));
    // The same members: the same id, whatever else changed.
    let again = Batch { number: 9, attempt: 7, format: Format::CloudEvents, customer: None, ..first.clone() };
    assert_eq!(id(&again, STORE), known);
    // Other members, application or store: another id.
    assert_ne!(id(&Batch { items: three()[..2].to_vec(), ..first.clone() }, STORE), known);
    assert_ne!(id(&Batch { application: "other".into(), ..first.clone() }, STORE), known);
    assert_ne!(id(&first, STORE + 1), known);
    let mut moved = first.clone();
    moved.items[0].seq += 1;
    assert_ne!(id(&moved, STORE), known);
}

#[test]
fn returns_without_a_batch_id() {
    assert_eq!(batch_id_of(&BasicProperties::default()), None);
    assert_eq!(batch_id_of(&with(&[("x-batch", number(1))])), None);
    assert_eq!(batch_id_of(&with(&[("x-batch", AMQPValue::LongString(vec![0xff; 32].into()))])), None);
    let of = |digits: &str| batch_id_of(&with(&[("x-batch", text(digits))]));
    assert_eq!(
        of("000102030405060708090a0b0c0d0e0f"),
        Some(BatchId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]))
    );
    for other in ["", "0", "+00102030405060708090a0b0c0d0e0f", "000102030405060708090a0b0c0d0e0g"] {
        assert_eq!(of(other), None, "{other}");
    }
    assert_eq!(of("000102030405060708090a0b0c0d0e0f00"), None);
}

#[test]
fn ids_of_items() {
    let items = three();
    let ids: Vec<String> = items
        .iter()
        .map(|item| item_id(&item.content, STORE, AssignedId { seq: item.seq, due: 0x1f, window: 2 }))
        .collect();
    assert_eq!(ids, ["ä\n", "000000000000abcd-2-1f", "000000000000abcd-1f-1f-1d"]);
    let last = AssignedId { seq: u64::MAX, due: u64::MAX, window: u64::MAX - u64::from(u32::MAX) };
    let longest = "ffffffffffffffff-ffffffffffffffff-ffffffffffffffff-ffffffff";
    assert_eq!(item_id(&Content::default(), u64::MAX, last), longest);
}

#[test]
fn answers() {
    let to = ReplyTo { queue: "amq.gen-x".into(), correlation_id: Some("c-1".into()) };
    let (key, properties) = answer(&to, NOW + 1999);
    assert_eq!(key.as_str(), "amq.gen-x");
    let expected = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_correlation_id("c-1".into())
        .with_app_id("tidegate".into())
        .with_type("tidegate.answer".into())
        .with_timestamp(NOW / 1000 + 1)
        .with_delivery_mode(2)
        .with_headers(table(&[]));
    assert_eq!(properties, expected);
    let (_, properties) = answer(&ReplyTo { correlation_id: None, ..to }, NOW);
    assert_eq!(properties.correlation_id(), &None);
}

/// The dead letter of a batch of one.
fn dead_letter(
    application: &str,
    customer: Option<&str>,
    dead: Dead,
    content: Arc<Content>,
) -> super::super::Outgoing {
    let item = BatchItem {
        seq: 5,
        window: 5,
        accepted_due: NOW,
        due: NOW,
        received: NOW,
        attempts: 3,
        retry: 0,
        content,
    };
    let batch = Batch {
        application: application.into(),
        customer: customer.map(Into::into),
        dead: Some(Arc::new(dead)),
        attempt: 1,
        ..batch(Format::Json, vec![item])
    };
    encode(&batch, &names(), STORE, NOW)
}

#[test]
fn dead_letters() {
    let properties = with(&[("x-customer", number(42)), ("x-delay", text("soon")), ("CC", text("x"))])
        .with_content_type("text/plain".into())
        .with_user_id("u".into());
    let refused = rejected(take(properties, b"body"));
    let out = dead_letter("orders", refused.customer.as_deref(), refused.dead, refused.content);
    assert_eq!((out.exchange.as_str(), out.routing_key.as_str()), ("dead", "orders"));
    assert_eq!(&*out.body, b"body");
    let expected = BasicProperties::default()
        .with_content_type("text/plain".into())
        .with_message_id("000000000000abcd-5-19e807aec00".into())
        .with_delivery_mode(2)
        .with_headers(table(&[
            ("x-application", text("orders")),
            ("x-customer", text("42")),
            ("x-delay", text("soon")),
            ("x-user-id", text("u")),
            ("x-tidegate-reason", text("invalid")),
            ("x-tidegate-error", text("x-delay is not a number of milliseconds: \"soon\"")),
            ("x-tidegate-attempts", number(3)),
            ("x-due", number(NOW as i64)),
            ("x-attempt", number(1)),
            ("x-batch", text(&out.id.to_string())),
        ]));
    assert_eq!(out.properties, expected);

    let refused = rejected(from("", "q", BasicProperties::default(), b"body"));
    let out = dead_letter("", None, refused.dead, refused.content);
    assert_eq!(out.routing_key.as_str(), "");
    assert_eq!(header(&out.properties, "x-application"), None);
}

#[test]
fn a_dead_letter_is_understood_again() {
    let properties =
        with(&[("x-customer", number(42)), ("x-delay", number(1500)), ("x-on-duplicate", text("latest"))])
            .with_content_type("application/json".into())
            .with_message_id("own".into());
    let mut request = item(take(properties, b"{\"a\":1}"));
    for round in 0..3 {
        let dead = Dead { reason: Reason::ALL[round], error: "why".into() };
        let out = dead_letter(
            &request.application,
            request.customer.as_deref(),
            dead,
            Arc::clone(&request.content),
        );
        assert_eq!(header(&out.properties, "x-tidegate-reason"), Some(&text(Reason::ALL[round].as_str())));
        let again = item(from("tidegate.in", "orders", out.properties, &out.body));
        assert_eq!(
            (&again.application, &again.customer, &again.identity),
            (&request.application, &request.customer, &request.identity)
        );
        assert_eq!(
            (again.at, again.expiry, again.on_duplicate),
            (request.at, request.expiry, request.on_duplicate)
        );
        assert_eq!(
            (&again.content.body, again.content.json, again.weight),
            (&request.content.body, true, request.weight)
        );
        request = again;
    }
}

#[test]
fn damage_does_not_cost_the_payload() {
    let content = Arc::new(Content { properties: vec![0xff; 9], body: b"body".to_vec(), json: false });
    let item = BatchItem {
        seq: 1,
        window: 1,
        accepted_due: NOW,
        due: NOW,
        received: u64::MAX,
        attempts: 0,
        retry: 0,
        content,
    };
    for format in [Format::Json, Format::Ndjson, Format::CloudEvents] {
        assert!(body(&encode(&batch(format, vec![item.clone()]), &names(), STORE, NOW)).contains("Ym9keQ=="));
    }
    assert_eq!(&*encode(&batch(Format::Passthrough, vec![item]), &names(), STORE, NOW).body, b"body");
}
