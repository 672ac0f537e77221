//! Requests that are events themselves, in batches of events and elsewhere.

use super::super::batch::{encode, Exchanges, Outgoing};
use super::*;
use proptest::prelude::*;
use serde_json::{json, Value};
use std::sync::Arc;
use tidegate_config::{CopiedProperty, Copies, Reading};
use tidegate_types::size::overhead;
use tidegate_types::{Batch, BatchItem, ClosedBy, Format};

const KIND: &str = "application/cloudevents+json";

fn batch(format: Format, items: Vec<NewItem>) -> Batch {
    let item = |(seq, new): (u64, NewItem)| BatchItem {
        seq,
        window: seq,
        accepted_due: NOW + 5,
        due: NOW + 5,
        received: NOW,
        attempts: 0,
        retry: 0,
        content: new.content,
    };
    Batch {
        number: 1,
        dead: None,
        held: None,
        alone: false,
        application: "orders".into(),
        customer: None,
        format,
        due: NOW + 5,
        closed_by: ClosedBy::Time,
        attempt: 1,
        items: (1..).zip(items).map(item).collect(),
    }
}

fn sent(format: Format, items: Vec<NewItem>) -> Outgoing {
    let names = Exchanges { egress: "out".into(), dead: "dead".into() };
    encode(&batch(format, items), &names, STORE, NOW)
}

fn events(items: Vec<NewItem>) -> Vec<Value> {
    serde_json::from_slice(&sent(Format::CloudEvents, items).body).expect("JSON")
}

fn structured(body: &[u8]) -> NewItem {
    item(take(BasicProperties::default().with_content_type(KIND.into()), body))
}

fn binary(headers: &[(&str, AMQPValue)], content_type: &str, body: &[u8]) -> NewItem {
    item(take(with(headers).with_content_type(content_type.into()), body))
}

#[test]
fn a_structured_event_goes_out_as_it_came_with_its_due() {
    let body = br#"{"specversion":"1.0","id":"e-1","source":"/shop",
        "type":"order.placed","time":"2026-01-01T00:00:00Z","n":7, "data": {"a": 1.0, "b":"}"}} "#;
    let mut want: Value = serde_json::from_slice(body).unwrap();
    want["due"] = (NOW + 5).to_string().into();
    let out = sent(Format::CloudEvents, vec![structured(body)]);
    let text = String::from_utf8(out.body.to_vec()).unwrap();
    assert!(text.contains(r#""data": {"a": 1.0, "b":"}"}"#) && !text.contains('\n'), "as written: {text}");
    assert_eq!(serde_json::from_str::<Vec<Value>>(&text).unwrap(), [want]);
    // An event that has its own `due` keeps it.
    let own = br#"{"specversion":"1.0","id":"e","source":"s","type":"t","due":"soon"}"#;
    assert_eq!(events(vec![structured(own)])[0]["due"], "soon");
    // Elsewhere it is a payload like any other.
    let lines = sent(Format::Ndjson, vec![structured(own)]);
    let line: Value = serde_json::from_slice(&lines.body).unwrap();
    assert_eq!((&line["payload"]["id"], &line["content_type"]), (&json!("e"), &json!(KIND)));
}

#[test]
fn a_binary_event_goes_out_with_its_attributes_and_data() {
    for prefix in ["cloudEvents:", "cloudEvents_"] {
        let names =
            ["specversion", "id", "source", "type", "subject", "n", "big", "ok", "time", "UPPER", "data"];
        let names = names.map(|name| format!("{prefix}{name}"));
        let values = [
            text("1.0"),
            text("e-2"),
            text("/shop"),
            text("order.placed"),
            text("anna"),
            AMQPValue::LongInt(7),
            number(1 << 40),
            AMQPValue::Boolean(true),
            AMQPValue::Timestamp(NOW / 1_000),
            text("no attribute"),
            text("nor this"),
        ];
        let headers: Vec<(&str, AMQPValue)> = names.iter().map(String::as_str).zip(values).collect();
        let want = json!({
            "specversion": "1.0", "id": "e-2", "source": "/shop", "type": "order.placed", "subject": "anna",
            "n": 7, "big": "1099511627776", "ok": true, "time": "2026-06-01T00:00:00Z",
            "datacontenttype": "application/json", "due": (NOW + 5).to_string(), "data": {"order": 17},
        });
        let body = br#"{"order": 17}"#;
        assert_eq!(events(vec![binary(&headers, "application/json", body)]), [want]);
        let bytes = events(vec![binary(&headers, "text/plain", b"Hello")]);
        assert_eq!((&bytes[0]["data_base64"], &bytes[0]["data"]), (&json!("SGVsbG8="), &Value::Null));
    }
}

#[test]
fn what_is_no_event_is_the_data_of_one() {
    let required = [("specversion", "1.0"), ("id", "e"), ("source", "s"), ("type", "t")];
    for (name, wrong) in required.iter().flat_map(|(name, _)| [(*name, None), (*name, Some(""))]) {
        let value = |known: &str, good: &str| match wrong {
            Some(wrong) if known == name => Some(wrong.to_owned()),
            None if known == name => None,
            _ => Some(good.to_owned()),
        };
        let members: serde_json::Map<String, Value> = required
            .iter()
            .filter_map(|(known, good)| Some(((*known).to_owned(), value(known, good)?.into())))
            .collect();
        let body = Value::Object(members).to_string();
        let event = &events(vec![structured(body.as_bytes())])[0];
        assert_eq!((&event["type"], &event["data"].is_object()), (&json!("tidegate.item"), &true), "{body}");
        let names: Vec<(String, AMQPValue)> = required
            .iter()
            .filter_map(|(known, good)| Some((format!("cloudEvents:{known}"), text(&value(known, good)?))))
            .collect();
        let headers: Vec<_> = names.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        let event = &events(vec![binary(&headers, "application/json", b"1")])[0];
        assert_eq!((&event["type"], &event["data"]), (&json!("tidegate.item"), &json!(1)), "{headers:?}");
    }
    let many = (0..129).map(|n| format!(r#","m{n}":1"#)).collect::<String>();
    let many = format!(r#"{{"specversion":"1.0","id":"e","source":"s","type":"t"{many}}}"#);
    for body in [
        &*many,
        r#"[{"specversion":"1.0","id":"e","source":"s","type":"t"}]"#,
        r#"{"specversion":"1.0","id":"e","source":"s","type":"t","subject":""}"#,
        r#"{"specversion":"1.0","id":"e","source":"s","type":"t","subject":7}"#,
        r#"{"specversion":"1.0","id":"e","source":"s","type":"t","time":"tomorrow"}"#,
        r#"{"specversion":"1.0","id":"e","source":"s","type":"t","time":"2026-01-01 00:00:00Z"}"#,
        r#"{"specversion":"1.0","id":"e","source":"s","type":"t","time":"2026-01-01t00:00:00Z"}"#,
        r#"{"specversion":"1.0","id":"e","source":"s","type":"t","time":"2026-01-01T00:00:00z"}"#,
        r#"{"specversion":"1.0","id":"e","source":"s","type":"t","time":"2026-01-01T00:00:60Z"}"#,
        r#"{"specversion":"1.0","id":"e","source":"s","type":"t","due":null}"#,
        r#"{"specversion":"1.0","id":"e","source":"s","type":"t","Upper":1}"#,
        r#"{"specversion":"1.0","id":"e","source":"s","type":"t","list":[1]}"#,
        r#"{"specversion":"1.0","id":"e","source":"s","type":"t","big":1.5}"#,
        r#"{"specversion":"1.0","id":"e","source":"s","type":"t","data":1,"data_base64":"MQ=="}"#,
        r#"{"specversion":"1.0","id":"e","source":"s","type":"t","data_base64":"MQ"}"#,
        r#"{"specversion":"1.0","id":"e","source":"a shop","type":"t"}"#,
        r#"{"specversion":"1.0","id":"e","source":"s","type":"t","dataschema":"schema"}"#,
        r#"{"specversion":"1.0","id":"e","source":"s","type":"t","datacontenttype":"json"}"#,
        r#"{"specversion":"0.3","id":"e","source":"s","type":"t"}"#,
        r#"{"specversion":1.0,"id":"e","source":"s","type":"t"}"#,
        r#"{"specversion":"1.0","id":"e","id":"f","source":"s","type":"t"}"#,
        r#"{"specversion":"1.0","id":"e","source":"s","type":"t""#,
    ] {
        let event = &events(vec![structured(body.as_bytes())])[0];
        assert_eq!(event["type"], "tidegate.item", "{body}");
    }
}

#[test]
fn attributes_of_an_event_have_the_form_that_readers_ask_for() {
    let required = [("specversion", "1.0"), ("id", "e"), ("source", "s"), ("type", "t")];
    let kind = |name: &str, value: AMQPValue| {
        let names = required.map(|(known, _)| format!("cloudEvents:{known}"));
        let own = format!("cloudEvents:{name}");
        let mut headers: Vec<(&str, AMQPValue)> =
            names.iter().map(String::as_str).zip(required.map(|(_, value)| text(value))).collect();
        headers.push((&own, value));
        events(vec![binary(&headers, "application/json", b"1")])[0]["type"].clone()
    };
    // Milliseconds by mistake, and the seconds beside the years 0 to 9999.
    let stamp = |seconds: i64| ("time", AMQPValue::Timestamp(seconds.cast_unsigned()));
    let others = [1_795_226_080_785, 253_402_300_800, -62_167_219_201, i64::MAX, i64::MIN].map(stamp);
    let texts = [("subject", number(7)), ("subject", text("")), ("time", text("soon")), ("due", number(1))];
    for (name, value) in texts.into_iter().chain(others) {
        assert_eq!(kind(name, value.clone()), "tidegate.item", "{name} {value:?}");
    }
    let texts = [("subject", text("a")), ("time", text("2026-01-01T00:00:00Z")), ("x", number(1))];
    for (name, value) in texts.into_iter().chain([1_795_226_080, 0, -1, -62_167_219_200].map(stamp)) {
        assert_eq!(kind(name, value.clone()), "t", "{name} {value:?}");
    }
    // RFC 3986: a reference for the source, and a whole URI for the schema.
    for schema in ["", "schema", "/schema", "http://a b/", "http://a/%zz"] {
        assert_eq!(kind("dataschema", text(schema)), "tidegate.item", "{schema}");
    }
    assert_eq!(kind("dataschema", text("https://example.com/schema#1")), "t");
    let source = |source: &str| {
        let body = json!({ "specversion": "1.0", "id": "e", "source": source, "type": "t" }).to_string();
        events(vec![structured(body.as_bytes())])[0]["type"].clone()
    };
    for wrong in ["a b", "1a:b", "%zz", "a#b#c", "<a>", "ä"] {
        assert_eq!(source(wrong), "tidegate.item", "{wrong}");
    }
    for right in
        ["s", "/shop/1?a=b#c", "urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66", "//host/a", "a%20b", "#a"]
    {
        assert_eq!(source(right), "t", "{right}");
    }
}

#[test]
fn what_is_passed_on_is_added_where_the_event_has_no_such_attribute() {
    let mut readings = Readings::default();
    let headers = vec!["x-tenant".to_owned(), "n".to_owned()];
    let properties = vec![CopiedProperty::CorrelationId];
    let copies = Arc::new(Copies { properties, headers });
    readings.defaults = Reading { copies, ..Reading::default() };
    let properties = with(&[("x-tenant", text("eu")), ("n", text("copied"))])
        .with_content_type(KIND.into())
        .with_correlation_id("c".into());
    let body = br#"{"specversion":"1.0","id":"e","source":"s","type":"t","n":"own"}"#;
    let incoming =
        Incoming { exchange: "in", routing_key: "orders", properties, body: body.to_vec(), received: NOW };
    let event = &events(vec![item(read_with(incoming, &LIMITS, &readings, STORE))])[0];
    assert_eq!((&event["xtenant"], &event["n"]), (&json!("eu"), &json!("own")));
    assert_eq!(event["correlationid"], "c");
}

#[test]
fn attributes_beside_an_envelope_are_not_those_of_its_entries() {
    let headers = ["specversion", "id", "source", "type"].map(|name| format!("cloudEvents:{name}"));
    let headers: Vec<_> = headers.iter().map(|name| (name.as_str(), text("1.0"))).collect();
    let properties = with(&headers).with_content_type("application/vnd.tidegate+json".into());
    let out = events(items(take(properties, br#"[{"payload":1},{"payload":2}]"#)));
    assert_eq!((&out[0]["type"], &out[0]["data"]), (&json!("tidegate.item"), &json!(1)));
    assert_ne!(out[0]["id"], out[1]["id"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn an_event_is_never_longer_than_its_weight_says(
        names in prop::collection::vec("[a-z0-9]{1,20}", 0..6),
        texts in prop::collection::vec(".{0,30}", 6),
        content_type in "[a-z]{1,8}/[a-z]{1,8}",
        body in prop::collection::vec(any::<u8>(), 0..60),
        prefix in prop::sample::select(vec!["cloudEvents:", "cloudEvents_"]),
    ) {
        let mut headers: Vec<(String, AMQPValue)> = ["id", "source", "type"]
            .into_iter()
            .zip(&texts)
            .map(|(name, value)| (format!("{prefix}{name}"), text(value)))
            .collect();
        headers.push((format!("{prefix}specversion"), text("1.0")));
        let others = names.iter().zip(&texts);
        headers.extend(others.map(|(name, value)| (format!("{prefix}{name}"), text(value))));
        let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        let new = binary(&headers, &content_type, &body);
        let weight = u64::from(new.weight);
        let out = sent(Format::CloudEvents, vec![new]);
        let event = &serde_json::from_slice::<Vec<Value>>(&out.body).unwrap()[0];
        prop_assert!(event["due"].is_string() && event["id"].is_string());
        let bound = overhead(Format::CloudEvents, "orders", None);
        prop_assert!(out.body.len() as u64 <= weight + bound.batch + bound.item);
    }
}
