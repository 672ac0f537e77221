//! Properties and headers in the entries of batches: to the byte, by type, and within what was promised.

use super::super::fields;
use super::super::properties::Basic;
use super::super::{encode, item_id, with_message_id, Exchanges};
use super::random::{batch_of, properties, read_back};
use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;
use tidegate_config::{Config, CopiedProperty, Copies, Reading};
use tidegate_types::size::overhead;
use tidegate_types::{AssignedId, Content, Format};

const FORMATS: [Format; 3] = [Format::Json, Format::Ndjson, Format::CloudEvents];
const ENVELOPE: &str = "application/vnd.tidegate+json";

/// The same for every application.
fn rules(properties: &[CopiedProperty], headers: &[&str]) -> Readings {
    let headers = headers.iter().map(|name| (*name).to_owned()).collect();
    let copies = Arc::new(Copies { properties: properties.to_vec(), headers });
    let defaults = Reading { copies, ..Reading::default() };
    Readings { defaults, ..Readings::default() }
}

fn every_property() -> Vec<CopiedProperty> {
    CopiedProperty::ALL.iter().map(|(_, property)| *property).collect()
}

fn take_with(copies: &Readings, properties: BasicProperties, body: &[u8]) -> RequestBody {
    let body = body.to_vec();
    let incoming =
        Incoming { exchange: "tidegate.in", routing_key: "orders", properties, body, received: NOW };
    read_with(incoming, &LIMITS, copies, STORE)
}

/// The body of their batch, which is no longer than their weights say.
fn written(format: Format, items: &[NewItem]) -> String {
    let batch = batch_of(format, "orders", None, NOW, items);
    let body = encode(&batch, &Exchanges::new("out", "dead"), STORE, NOW).body.to_vec();
    let cost = overhead(format, "orders", None);
    let promised = cost.batch + items.iter().map(|item| u64::from(item.weight) + cost.item).sum::<u64>();
    assert!(body.len() as u64 <= promised, "{format:?}: {} > {promised}", body.len());
    String::from_utf8(body).unwrap()
}

/// The part of one request's entry between the contract's fields and its payload.
fn passed_on(format: Format, copies: &Readings, properties: BasicProperties) -> String {
    let properties = properties.with_message_id("i".into());
    let item = item(take_with(copies, properties, b""));
    let body = written(format, std::slice::from_ref(&item));
    let before = match format {
        Format::CloudEvents => r#""due":"1780272000000""#,
        Format::Json | Format::Ndjson | Format::Passthrough => r#""content_type":null"#,
    };
    let from = body.find(before).unwrap() + before.len();
    let payload = if format == Format::CloudEvents { ",\"data_base64\"" } else { ",\"payload_base64\"" };
    body[from..body.find(payload).unwrap()].to_owned()
}

#[test]
fn chosen_ones_stand_in_every_entry() {
    let copies = rules(&every_property(), &["traceparent", "x-tenant", "x-missing"]);
    let sent = with(&[
        ("traceparent", text("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")),
        ("x-tenant", number(7)),
        ("x-other", text("stays behind")),
    ])
    .with_correlation_id("c-\"1".into())
    .with_reply_to("answers".into())
    .with_type("order.placed".into())
    .with_timestamp(NOW / 1000)
    .with_priority(3)
    .with_app_id("web".into())
    .with_cluster_id("".into());
    let fields = [
        r#","correlation_id":"c-\"1","reply_to":"answers","type":"order.placed","#,
        r#""timestamp":"2026-06-01T00:00:00Z","priority":3,"app_id":"web","#,
        r#""headers":{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","x-tenant":7}"#,
    ]
    .concat();
    assert_eq!(passed_on(Format::Json, &copies, sent.clone()), fields);
    assert_eq!(passed_on(Format::Ndjson, &copies, sent.clone()), fields);
    let attributes = [
        r#","correlationid":"c-\"1","replyto":"answers","timestamp":"2026-06-01T00:00:00Z","priority":3,"#,
        r#""appid":"web","traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","#,
        r#""xtenant":7"#,
    ]
    .concat();
    assert_eq!(passed_on(Format::CloudEvents, &copies, sent), attributes);
}

#[test]
fn without_any_an_entry_is_as_ever() {
    let copies = rules(&every_property(), &["traceparent"]);
    let empty = BasicProperties::default().with_correlation_id("".into());
    for (rules, properties) in [
        (&Readings::default(), with(&[("traceparent", text("t"))]).with_correlation_id("c".into())),
        (&copies, with(&[("Traceparent", text("t"))])),
        (&copies, empty),
    ] {
        for format in FORMATS {
            assert_eq!(passed_on(format, rules, properties.clone()), "");
        }
    }
    let only = rules(&[], &["traceparent"]);
    let sent = with(&[("traceparent", text("t"))]).with_correlation_id("c".into());
    assert_eq!(passed_on(Format::Json, &only, sent.clone()), r#","headers":{"traceparent":"t"}"#);
    let only = rules(&[CopiedProperty::CorrelationId], &[]);
    assert_eq!(passed_on(Format::Json, &only, sent), r#","correlation_id":"c""#);
}

#[test]
fn every_type_has_one_form() {
    let nested = table(&[("bytes", AMQPValue::ByteArray(vec![0, 255].into())), ("none", AMQPValue::Void)]);
    let array = vec![number(1), text("\"two"), AMQPValue::FieldTable(nested)];
    for (value, json, attribute) in [
        (text("a\n\u{e4}"), r#""a\nä""#, r#""a\nä""#),
        (AMQPValue::LongString(vec![0xff].into()), r#"{"base64":"/w=="}"#, r#""/w==""#),
        (AMQPValue::ByteArray(b"text".to_vec().into()), r#"{"base64":"dGV4dA=="}"#, r#""dGV4dA==""#),
        (AMQPValue::Boolean(true), "true", "true"),
        (AMQPValue::Boolean(false), "false", "false"),
        (AMQPValue::ShortShortInt(-128), "-128", "-128"),
        (AMQPValue::ShortShortUInt(255), "255", "255"),
        (AMQPValue::ShortInt(-2), "-2", "-2"),
        (AMQPValue::ShortUInt(65_535), "65535", "65535"),
        (AMQPValue::LongInt(i32::MIN), "-2147483648", "-2147483648"),
        (AMQPValue::LongUInt(u32::MAX), "4294967295", r#""4294967295""#),
        (number(i64::MIN), "-9223372036854775808", r#""-9223372036854775808""#),
        (AMQPValue::Float(0.1), "0.1", r#""0.1""#),
        (AMQPValue::Double(1e300), "1e300", r#""1e300""#),
        (AMQPValue::Double(-0.0), "-0.0", r#""-0.0""#),
        (AMQPValue::Float(f32::NAN), r#""NaN""#, r#""NaN""#),
        (AMQPValue::Double(f64::INFINITY), r#""Infinity""#, r#""Infinity""#),
        (AMQPValue::Double(f64::NEG_INFINITY), r#""-Infinity""#, r#""-Infinity""#),
        (decimal(2, -150), "-1.50", r#""-1.50""#),
        (decimal(3, 7), "0.007", r#""0.007""#),
        (decimal(0, i32::MIN), "-2147483648", r#""-2147483648""#),
        (AMQPValue::Timestamp(7), r#""1970-01-01T00:00:07Z""#, r#""1970-01-01T00:00:07Z""#),
        (AMQPValue::Timestamp(-1_i64 as u64), r#""1969-12-31T23:59:59Z""#, r#""1969-12-31T23:59:59Z""#),
        (AMQPValue::Timestamp(NOW), r#""1780272000000""#, r#""1780272000000""#),
        (AMQPValue::Timestamp(-62_167_219_201_i64 as u64), r#""-62167219201""#, r#""-62167219201""#),
        (
            AMQPValue::FieldArray(array.into()),
            r#"[1,"\"two",{"bytes":{"base64":"AP8="},"none":null}]"#,
            r#""[1,\"\\\"two\",{\"bytes\":{\"base64\":\"AP8=\"},\"none\":null}]""#,
        ),
    ] {
        let copies = rules(&[], &["h"]);
        let sent = with(&[("h", value)]);
        assert_eq!(passed_on(Format::Json, &copies, sent.clone()), format!(r#","headers":{{"h":{json}}}"#));
        assert_eq!(passed_on(Format::CloudEvents, &copies, sent), format!(r#","h":{attribute}"#));
    }
    // Void is null, which an attribute of an event cannot be.
    let (copies, sent) = (rules(&[], &["h"]), with(&[("h", AMQPValue::Void)]));
    assert_eq!(passed_on(Format::Json, &copies, sent.clone()), r#","headers":{"h":null}"#);
    assert_eq!(passed_on(Format::CloudEvents, &copies, sent), "");
}

/// As after a reload to another format: the configuration refuses these together with `cloudevents`.
#[test]
fn an_event_has_no_member_twice() {
    let copies = rules(&[CopiedProperty::CorrelationId], &["X-A", "correlationid", "id", "x-a", "--", "due"]);
    let all = ["X-A", "correlationid", "id", "x-a", "--", "due"].map(|name| (name, text(name)));
    let sent = with(&all).with_correlation_id("c".into());
    assert_eq!(passed_on(Format::CloudEvents, &copies, sent), r#","correlationid":"c","xa":"X-A""#);
}

#[test]
fn the_application_decides() {
    let mut copies = rules(&[CopiedProperty::CorrelationId], &[]);
    copies.applications.insert("quiet".into(), Reading::default());
    let sent = BasicProperties::default().with_correlation_id("c".into());
    let quiet = with(&[("x-application", text("quiet"))]).with_correlation_id("c".into());
    assert_ne!(passed_on(Format::Json, &copies, sent), "");
    assert_eq!(passed_on(Format::Json, &copies, quiet), "");
}

#[test]
fn entries_of_an_envelope_have_those_of_the_message() {
    let copies = rules(&[CopiedProperty::CorrelationId, CopiedProperty::Kind], &["traceparent", "x-b"]);
    let sent = with(&[("traceparent", text("t")), ("x-a", text("a")), ("x-b", text("b"))])
        .with_content_type(ENVELOPE.into())
        .with_correlation_id("c".into())
        .with_type("k".into());
    let body = br#"[{"payload":1,"customer":"c"},{"payload":2,"delay_ms":5,"id":"own"}]"#;
    let read = items(take_with(&copies, sent.clone(), body));
    assert_eq!(read.len(), 2);
    for entry in read_back(Format::Json, written(Format::Json, &read).as_bytes()) {
        assert_eq!(entry["headers"], serde_json::json!({"traceparent": "t", "x-b": "b"}));
        assert_eq!((entry["correlation_id"].as_str(), entry["type"].as_str()), (Some("c"), Some("k")));
    }
    // Each application has its own choice, whichever comes first.
    let mut apart = copies.clone();
    apart.applications.insert("quiet".into(), Reading::default());
    let body = br#"[{"payload":1,"application":"quiet"},{"payload":2},{"payload":3,"application":"quiet"}]"#;
    let read = items(take_with(&apart, sent.clone(), body));
    let with_headers = |item: &NewItem| written(Format::Json, std::slice::from_ref(item)).contains("headers");
    assert_eq!(read.iter().map(with_headers).collect::<Vec<_>>(), [false, true, false]);
    let one = item(take_with(&copies, sent, br#"{"payload":1}"#));
    assert!(written(Format::Ndjson, &[one]).contains(r#""headers":{"traceparent":"t","x-b":"b"}"#));
}

/// A choice changes neither what leaves as `passthrough` nor which request it is.
#[test]
fn the_request_stays_what_it_is() {
    let copies = rules(&every_property(), &["traceparent"]);
    let sent = with(&[("traceparent", text("t")), ("x-customer", text("c"))])
        .with_message_id("m".into())
        .with_priority(1);
    let (plain, chosen) = (item(take(sent.clone(), b"x")), item(take_with(&copies, sent, b"x")));
    assert_eq!((plain.fingerprint, plain.identity), (chosen.fingerprint, chosen.identity));
    assert_eq!(Basic::parse(&plain.content.properties), Basic::parse(&chosen.content.properties));
    assert_eq!(chosen.content.properties.capacity(), chosen.content.properties.len());
    let alone = |item: &NewItem| {
        let batch = batch_of(Format::Passthrough, "orders", None, NOW, std::slice::from_ref(item));
        encode(&batch, &Exchanges::new("out", "dead"), STORE, NOW).properties
    };
    assert_eq!(alone(&plain), alone(&chosen));
}

/// The store keeps these bytes for years.
#[test]
fn a_choice_lies_behind_the_properties() {
    let copies = rules(&[CopiedProperty::Timestamp, CopiedProperty::CorrelationId], &["c", "a"]);
    let sent = with(&[("a", number(1)), ("b", number(2)), ("c", number(3))]).with_correlation_id("c".into());
    let (plain, chosen) = (item(take(sent.clone(), b"")), item(take_with(&copies, sent, b"")));
    let mut expected = plain.content.properties.clone();
    expected[1] |= 2;
    // The first of the properties; the first and the third header.
    expected.extend_from_slice(&[1, 0, 0, 0, 2]);
    assert_eq!(chosen.content.properties, expected);
    assert_eq!(chosen.weight - plain.weight, r#","correlation_id":"c","headers":{"a":1,"c":3}"#.len() as u32);
}

/// Headers that the contract reads are never passed on a second time, and no output carries those that
/// re-route.
#[test]
fn the_configuration_refuses_names_that_are_taken() {
    let fault = |name: &str| {
        let list = format!("[{name:?}]");
        let env = [("TIDEGATE__DEFAULTS__COPY_HEADERS".to_owned(), list)];
        Config::load(None, env.into_iter()).err().map(|faults| faults.to_string()).unwrap_or_default()
    };
    for name in fields::ALL.into_iter().chain(tidegate_config::terms::batch_header::ALL) {
        assert!(fault(name).contains("which tidegate itself reads or writes"), "{name}: {}", fault(name));
    }
    for name in tidegate_config::terms::NEVER_COPIED {
        assert!(fault(name).contains("never copied"), "{name}: {}", fault(name));
    }
    assert_eq!(fault("x-user-id"), "");
}

/// Members of every object, in the order written: a reader into a map would not see one that is there twice.
fn members(format: Format, body: &str) -> Vec<Vec<String>> {
    struct Members(Vec<String>);
    impl<'de> serde::Deserialize<'de> for Members {
        fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            struct Keys;
            impl<'de> serde::de::Visitor<'de> for Keys {
                type Value = Members;
                fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    out.write_str("an object")
                }
                fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                    let mut keys = vec![];
                    while let Some((key, _)) = map.next_entry::<String, serde::de::IgnoredAny>()? {
                        keys.push(key);
                    }
                    Ok(Members(keys))
                }
            }
            from.deserialize_map(Keys)
        }
    }
    let of = |entries: Vec<Members>| entries.into_iter().map(|members| members.0).collect();
    match format {
        Format::CloudEvents => of(serde_json::from_str(body).unwrap()),
        Format::Ndjson => of(body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()),
        Format::Json | Format::Passthrough => vec![],
    }
}

proptest! {
    #[test]
    fn whatever_is_passed_on_is_readable_and_as_long_as_promised(
        sent in properties(),
        body in vec(any::<u8>(), 0..20),
        picked in vec(0_usize..8, 0..6),
        chosen in proptest::sample::subsequence(every_property(), 0..=7),
        format in proptest::sample::select(FORMATS.to_vec()),
    ) {
        // Names that it has, so that something is chosen.
        let has: Vec<&str> = sent.headers().iter().flatten().map(|(name, _)| name.as_str()).collect();
        let headers: Vec<&str> = picked.iter().filter_map(|at| has.get(*at).copied()).collect();
        let copies = rules(&chosen, &headers);
        let RequestBody::Items(items) = take_with(&copies, sent.clone(), &body) else { return Ok(()) };
        let text = written(format, &items);
        prop_assert_eq!(read_back(format, text.as_bytes()).len(), items.len());
        for mut keys in members(format, &text) {
            keys.sort();
            let count = keys.len();
            keys.dedup();
            prop_assert_eq!(keys.len(), count, "{}", text);
        }
        let RequestBody::Items(plain) = take(sent, &body) else { panic!("without copies it is none") };
        prop_assert_eq!(plain[0].fingerprint, items[0].fingerprint);
        prop_assert!(plain[0].weight <= items[0].weight);
    }

    #[test]
    fn damage_is_read_as_far_as_it_goes(mut bytes in vec(any::<u8>(), 2..80), kind in any::<u8>()) {
        // With headers and a choice, and often with a value in the table.
        (bytes[0], bytes[1]) = (0x20, 0x02);
        if kind < 128 && bytes.len() > 12 {
            let length = (bytes.len() - 6) as u32;
            bytes[2..6].copy_from_slice(&length.to_be_bytes());
            (bytes[6], bytes[7], bytes[8]) = (1, b'h', b"VtbBsuIifDldTSxAF"[usize::from(kind) % 17]);
            bytes.extend_from_slice(&[0xff, 0, 0]);
        }
        let content = Arc::new(Content { properties: bytes, body: vec![], json: false });
        let item = NewItem { content, ..item(take(BasicProperties::default(), b"")) };
        for format in FORMATS {
            let batch = batch_of(format, "orders", None, NOW, std::slice::from_ref(&item));
            let body = encode(&batch, &Exchanges::new("out", "dead"), STORE, NOW).body.to_vec();
            prop_assert_eq!(read_back(format, &body).len(), 1);
        }
    }
}

#[test]
fn a_trace_context_goes_into_the_entry_and_into_that_of_the_batch() {
    const CONTEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let (mut on, mut off) = (rules(&[], &[]), rules(&[], &[]));
    (on.defaults.traces, off.defaults.traces) = (true, false);
    let sent = with(&[("traceparent", text(CONTEXT)), ("tracestate", text("a=1"))]);
    let fields = format!(r#","traceparent":"{CONTEXT}","tracestate":"a=1""#);
    for format in [Format::Json, Format::Ndjson, Format::CloudEvents] {
        assert_eq!(passed_on(format, &on, sent.clone()), fields);
        assert_eq!(passed_on(format, &off, sent.clone()), "");
        let malformed = with(&[("traceparent", text("00-4bf9")), ("tracestate", text("a=1"))]);
        assert_eq!(passed_on(format, &on, malformed), "", "it counts as absent");
        let other_type = with(&[("traceparent", number(1))]);
        assert_eq!(passed_on(format, &on, other_type), "");
    }
    let mut copied = rules(&[], &["traceparent"]);
    copied.defaults.traces = true;
    let once = passed_on(Format::CloudEvents, &copied, with(&[("traceparent", text(CONTEXT))]));
    assert_eq!(once, format!(r#","traceparent":"{CONTEXT}""#), "an event has each attribute once");
}

/// As if the request had come with the id: an assigned one stays with an item that another store gets.
#[test]
fn an_id_is_put_into_stored_properties_and_nothing_else_changes() {
    let copies = rules(&[CopiedProperty::Priority, CopiedProperty::AppId], &["lang"]);
    let bare = BasicProperties::default().with_priority(3).with_app_id("app".into());
    let whole = bare.clone().with_headers(table(&[("lang", text("en")), ("deep", number(7))]));
    for (copies, properties) in [
        (Readings::default(), BasicProperties::default()),
        (Readings::default(), bare),
        (Readings::default(), whole.clone()),
        (copies, whole),
    ] {
        let nameless = item(take_with(&copies, properties.clone(), b"1"));
        let (largest, due) = (u64::from(u32::MAX), u64::from(u32::MAX) << 12);
        let assigned = AssignedId { seq: largest << 30, due, window: (largest << 30) - largest };
        let id = item_id(&nameless.content, STORE, assigned);
        let named = item(take_with(&copies, properties.with_message_id(id.as_str().into()), b"1"));
        let put = with_message_id(&nameless.content.properties, &id);
        assert_eq!(put.as_ref(), Some(&named.content.properties));
        assert!(nameless.weight >= named.weight, "{} < {}", nameless.weight, named.weight);
        assert_eq!(with_message_id(&named.content.properties, "other"), None, "it has one");
    }
    assert_eq!(with_message_id(b"", "id"), None, "damage stays as it is");
}
