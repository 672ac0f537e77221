//! Properties that hold for any message: no panic, nothing lost, and sizes as promised.

use super::super::fields;
use super::super::properties::{parse_table, Basic};
use super::super::{encode, Exchanges};
use super::*;
use base64::engine::general_purpose::STANDARD;
use base64::Engine as _;
use lapin::protocol::basic::{gen_properties, parse_properties};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tidegate_types::size::overhead;
use tidegate_types::{Batch, BatchItem, ClosedBy, Command, Format};

fn values() -> impl Strategy<Value = AMQPValue> {
    let plain = prop_oneof![
        any::<bool>().prop_map(AMQPValue::Boolean),
        any::<i8>().prop_map(AMQPValue::ShortShortInt),
        any::<u8>().prop_map(AMQPValue::ShortShortUInt),
        any::<i16>().prop_map(AMQPValue::ShortInt),
        any::<u16>().prop_map(AMQPValue::ShortUInt),
        any::<i32>().prop_map(AMQPValue::LongInt),
        any::<u32>().prop_map(AMQPValue::LongUInt),
        any::<i64>().prop_map(AMQPValue::LongLongInt),
        (NOW as i64 - 1_000_000..NOW as i64 + 1_000_000).prop_map(AMQPValue::LongLongInt),
        any::<f32>().prop_map(AMQPValue::Float),
        any::<f64>().prop_map(AMQPValue::Double),
        any::<(u8, u32)>().prop_map(|(scale, value)| AMQPValue::DecimalValue(DecimalValue { scale, value })),
        any::<String>().prop_map(|text| AMQPValue::LongString(text.into())),
        "[0-9.+-]{0,20}".prop_map(|text| AMQPValue::LongString(text.into())),
        vec(any::<u8>(), 0..300).prop_map(|bytes| AMQPValue::LongString(bytes.into())),
        vec(any::<u8>(), 0..50).prop_map(|bytes| AMQPValue::ByteArray(bytes.into())),
        any::<u64>().prop_map(AMQPValue::Timestamp),
        Just(AMQPValue::Void),
    ];
    plain.prop_recursive(4, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(|values| AMQPValue::FieldArray(values.into())),
            vec(("[a-z]{0,5}", inner), 0..4).prop_map(|entries| {
                let mut table = FieldTable::default();
                for (name, value) in entries {
                    table.insert(name.into(), value);
                }
                AMQPValue::FieldTable(table)
            }),
        ]
    })
}

fn names() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => proptest::sample::select([&fields::ALL[..], &["x-user-id", "CC"]].concat())
        .prop_map(String::from),
        1 => "\\PC{0,60}",
    ]
}

fn short_text() -> impl Strategy<Value = Option<String>> {
    option::of(prop_oneof![
        "\\PC{0,20}",
        any::<String>().prop_map(|text| text.chars().take(50).collect()),
        Just("application/json".to_string()),
        Just("application/vnd.tidegate+json".to_string()),
        Just("tidegate.item".to_string()),
    ])
}

prop_compose! {
    pub(super) fn properties()(
        headers in option::of(vec((names(), values()), 0..6)),
        content_type in short_text(),
        content_encoding in short_text(),
        message_id in short_text(),
        kind in short_text(),
        user_id in short_text(),
        reply_to in short_text(),
        correlation_id in short_text(),
        numbers in option::of((any::<u8>(), any::<u64>())),
    ) -> BasicProperties {
        let mut properties = BasicProperties::default();
        if let Some(headers) = headers {
            let mut table = FieldTable::default();
            for (name, value) in headers {
                table.insert(name.into(), value);
            }
            properties = properties.with_headers(table);
        }
        if let Some(text) = content_type { properties = properties.with_content_type(text.into()); }
        if let Some(text) = content_encoding { properties = properties.with_content_encoding(text.into()); }
        if let Some(text) = message_id { properties = properties.with_message_id(text.into()); }
        if let Some(text) = kind { properties = properties.with_type(text.into()); }
        if let Some(text) = reply_to { properties = properties.with_reply_to(text.into()); }
        if let Some(text) = correlation_id { properties = properties.with_correlation_id(text.into()); }
        if let Some(text) = user_id { properties = properties.with_user_id(text.into()); }
        if let Some((priority, timestamp)) = numbers {
            properties = properties.with_priority(priority).with_timestamp(timestamp);
        }
        properties
    }
}

fn json_value() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<String>().prop_map(Into::into),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Into::into),
            vec((any::<String>(), inner), 0..4)
                .prop_map(|entries| entries.into_iter().collect::<serde_json::Map<_, _>>().into()),
        ]
    })
}

pub(super) fn bodies() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..60),
        json_value().prop_map(|value| serde_json::to_vec_pretty(&value).unwrap()),
        vec(
            (
                proptest::sample::select(vec![
                    "application",
                    "customer",
                    "delay_ms",
                    "deliver_at",
                    "deliver_before",
                    "id",
                    "on_duplicate",
                    "content_type",
                    "payload",
                    "payload_base64",
                    "other",
                ]),
                json_value(),
            ),
            0..5
        )
        .prop_map(|entries| {
            let object: serde_json::Map<_, _> =
                entries.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
            serde_json::to_vec(&serde_json::Value::Object(object)).unwrap()
        }),
    ]
}

/// Bodies of commands, more or less.
fn selectors() -> impl Strategy<Value = Vec<u8>> {
    let keys = proptest::sample::select(vec!["application", "customer", "id", "payload"]);
    let values =
        prop_oneof![json_value(), "\\PC{0,30}".prop_map(Into::into), any::<i64>().prop_map(Into::into)];
    vec((keys, values), 0..4).prop_map(|entries| {
        let object: serde_json::Map<_, _> =
            entries.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
        serde_json::to_vec(&serde_json::Value::Object(object)).unwrap()
    })
}

/// Requests that are accepted, with the names kept apart.
fn accepted() -> impl Strategy<Value = NewItem> {
    let content_types =
        option::of(prop_oneof![Just("application/json".to_string()), "\\PC{0,40}", "[\"\\\\\n\u{1}]{0,40}"]);
    (
        content_types,
        option::weighted(0.2, "\\PC{1,9}"),
        option::of(any::<String>()),
        option::weighted(0.2, "[\"\u{1}a-z]{1,9}"),
        bodies(),
    )
        .prop_filter_map("reserved", |(content_type, encoding, id, kind, body)| {
            let mut properties = BasicProperties::default();
            if let Some(text) = content_type {
                properties = properties.with_content_type(text.into());
            }
            if let Some(text) = encoding {
                properties = properties.with_content_encoding(text.into());
            }
            if let Some(text) = id {
                let text: String = text.chars().take(60).collect();
                properties = properties.with_message_id(text.into());
            }
            if let Some(text) = kind {
                properties = properties.with_type(text.into());
            }
            match take(properties, &body) {
                RequestBody::Items(mut items) => items.pop(),
                RequestBody::Rejected(_) | RequestBody::Command(..) | RequestBody::Elsewhere(_) => None,
            }
        })
}

fn formats() -> impl Strategy<Value = Format> {
    proptest::sample::select(vec![Format::Json, Format::Ndjson, Format::CloudEvents])
}

pub(super) fn batch_of(
    format: Format,
    application: &str,
    customer: Option<&str>,
    seq: u64,
    items: &[NewItem],
) -> Batch {
    let item = |(index, item): (usize, &NewItem)| BatchItem {
        seq: seq.saturating_add(index as u64),
        window: seq,
        accepted_due: seq,
        due: seq,
        received: NOW,
        attempts: 0,
        retry: 0,
        content: item.content.clone(),
    };
    Batch {
        number: 1,
        application: application.into(),
        customer: customer.map(Into::into),
        dead: None,
        format,
        closed_by: ClosedBy::Time,
        attempt: 1,
        due: seq,
        held: None,
        alone: false,
        items: items.iter().enumerate().map(item).collect(),
    }
}

/// The items of a body as its readers see them.
pub(super) fn read_back(format: Format, body: &[u8]) -> Vec<serde_json::Value> {
    match format {
        Format::Json | Format::Passthrough => {
            let mut value: serde_json::Value = serde_json::from_slice(body).unwrap();
            serde_json::from_value(value["items"].take()).unwrap()
        }
        Format::Ndjson => {
            let lines = std::str::from_utf8(body).unwrap().lines();
            lines.map(|line| serde_json::from_str(line).unwrap()).collect()
        }
        Format::CloudEvents => serde_json::from_slice(body).unwrap(),
    }
}

fn encoded(batch: &Batch) -> Vec<u8> {
    encode(batch, &Exchanges::new("out", "dead"), u64::MAX, NOW).body.to_vec()
}

proptest! {
    #[test]
    fn any_message_is_read(
        properties in properties(),
        body in bodies(),
        exchange in "[a-z]{0,2}",
        key in "\\PC{0,60}",
    ) {
        let came = body.clone();
        match from(&exchange, &key, properties, &body) {
            RequestBody::Items(items) => {
                prop_assert!(!items.is_empty());
                for item in items {
                    prop_assert!((1..=200).contains(&item.application.len()));
                    prop_assert!(item.customer.is_none_or(|name| (1..=200).contains(&name.len())));
                    prop_assert!(item.at.is_none_or(|at| (NOW..=NOW + LIMITS.max_delay_ms).contains(&at)));
                    let (basic, _) = Basic::parse(&item.content.properties).unwrap();
                    prop_assert!(basic.message_id.is_none_or(|id| (1..=255).contains(&id.len())));
                    let expected = basic.message_id.and_then(|id| given(&item.application, id));
                    prop_assert_eq!(item.identity, expected);
                }
            }
            RequestBody::Command(command, _) => prop_assert!(false, "no type is a command's: {command:?}"),
            RequestBody::Elsewhere(items) => prop_assert!(false, "elsewhere: {items:?}"),
            RequestBody::Rejected(rejected) => {
                prop_assert_eq!(&rejected.content.body, &came);
                prop_assert!(!rejected.dead.error.is_empty() && rejected.dead.error.len() < 510);
                prop_assert!(Basic::parse(&rejected.content.properties).is_some());
            }
        }
    }

    /// A command, or a rejection that is answered: every client that waits gets an answer.
    #[test]
    fn any_command_is_read_or_answered(
        properties in properties(),
        body in prop_oneof![bodies(), selectors(), Just(Vec::new())],
        kind in "tidegate\\.(cancel|lookup|flush|reschedule|pause|resume|[a-z]{0,3})",
        envelope in any::<bool>(),
        exchange in "[a-z]{0,2}",
        key in "\\PC{0,60}",
    ) {
        let mut properties = properties.with_type(kind.as_str().into());
        if envelope {
            properties = properties.with_content_type("application/vnd.tidegate+json".into());
        }
        let asker = properties.reply_to().as_ref().map(|queue| queue.to_string());
        let asker = asker.filter(|queue| !queue.is_empty());
        let reply_to = match from(&exchange, &key, properties, &body) {
            RequestBody::Items(items) | RequestBody::Elsewhere(items) => {
                return Err(TestCaseError::fail(format!("items: {items:?}")));
            }
            RequestBody::Rejected(rejected) => {
                prop_assert_eq!(rejected.dead.reason, Reason::Invalid);
                prop_assert!(!rejected.dead.error.is_empty() && rejected.dead.error.len() < 510);
                prop_assert_eq!(&rejected.content.body, &body);
                rejected.reply_to
            }
            RequestBody::Command(command, reply_to) => {
                let (verb, application, selected, most) = match &command {
                    Command::Cancel(target) => ("cancel", &target.application, &target.id, 255),
                    Command::Lookup(target) => ("lookup", &target.application, &target.id, 255),
                    Command::CancelAll(of) => ("cancel", &of.application, &of.customer, 200),
                    Command::PauseCustomer(of, _) => ("pause", &of.application, &of.customer, 200),
                    Command::ResumeCustomer(of) => ("resume", &of.application, &of.customer, 200),
                    Command::Flush(of) => ("flush", &of.application, &of.customer, 200),
                    Command::Reschedule(target, _) => ("reschedule", &target.application, &target.id, 255),
                    Command::Pause(application, _) => ("pause", application, application, 200),
                    Command::Resume(application) => ("resume", application, application, 200),
                    Command::CancelSelected(_)
                    | Command::CountSelected(_)
                    | Command::Count(_)
                    | Command::List(_)
                    | Command::TimelineQuery(_)
                    | Command::FlushAll(_)
                    | Command::Slow(..)
                    | Command::Retry(_)
                    | Command::DropParked(_) => {
                        return Err(TestCaseError::fail(format!("not by message: {command:?}")));
                    }
                };
                prop_assert_eq!(format!("tidegate.{verb}"), kind);
                prop_assert!((1..=200).contains(&application.len()) && (1..=most).contains(&selected.len()));
                reply_to
            }
        };
        prop_assert_eq!(reply_to.map(|to| to.queue.to_string()), asker);
    }

    #[test]
    fn stored_properties_are_the_librarys(properties in properties()) {
        let stored = match take(properties, b"x") {
            RequestBody::Items(items) | RequestBody::Elsewhere(items) => items[0].content.properties.clone(),
            RequestBody::Rejected(rejected) => rejected.content.properties.clone(),
            RequestBody::Command(command, _) => panic!("no type is a command's: {command:?}"),
        };
        let (rest, parsed) = parse_properties(stored.as_slice()).unwrap();
        prop_assert!(rest.is_empty());
        // Through text, because NaN is not equal to itself.
        let library = gen_properties(&parsed)(Vec::new().into()).unwrap().write;
        let (_, again) = parse_properties(library.as_slice()).unwrap();
        prop_assert_eq!(format!("{again:?}"), format!("{parsed:?}"));
        prop_assert_eq!(library.len(), stored.len());
        let (basic, table) = Basic::parse(&stored).unwrap();
        let out = basic.to_amqp(parse_table(table));
        prop_assert_eq!(out.user_id(), &None);
        prop_assert_eq!(out.expiration(), &None);
        prop_assert!(out.headers().as_ref().is_some_and(|headers| !headers.contains_key("CC")));
    }

    #[test]
    fn damaged_bytes_do_not_panic(bytes in any::<Vec<u8>>()) {
        if let Some((_, table)) = Basic::parse(&bytes) {
            parse_table(table);
        }
    }

    #[test]
    fn payloads_survive_and_sizes_hold(
        items in vec(accepted(), 1..6),
        format in formats(),
        application in "\\PC{1,40}|[\"\\\\\u{1}/]{1,40}",
        customer in option::of("\\PC{1,40}|[\"\\\\\u{1}/]{1,40}"),
        seq in any::<u64>(),
    ) {
        let batch = batch_of(format, &application, customer.as_deref(), seq, &items);
        let body = encoded(&batch);
        let cost = overhead(format, &application, customer.as_deref());
        let promised = cost.batch + items.iter().map(|item| u64::from(item.weight) + cost.item).sum::<u64>();
        prop_assert!(body.len() as u64 <= promised, "{} > {promised}", body.len());

        let read = read_back(format, &body);
        prop_assert_eq!(read.len(), items.len());
        let field = if format == Format::CloudEvents { "data" } else { "payload" };
        for (read, item) in read.iter().zip(&items) {
            let payload = &item.content.body;
            if item.content.json {
                let own: serde_json::Value = serde_json::from_slice(payload).unwrap();
                prop_assert_eq!(&read[field], &own);
            } else {
                let text = read[format!("{field}_base64")].as_str().unwrap();
                prop_assert_eq!(&STANDARD.decode(text).unwrap(), payload);
            }
            if let Some(id) = Basic::parse(&item.content.properties).unwrap().0.message_id {
                prop_assert_eq!(read["id"].as_str().unwrap(), id);
            }
        }
    }

    #[test]
    fn passthrough_fits_its_weight(item in accepted()) {
        let batch = batch_of(Format::Passthrough, "a", None, 1, std::slice::from_ref(&item));
        prop_assert!(encoded(&batch).len() <= item.weight as usize);
    }
}

#[test]
fn the_bound_is_tight() {
    let properties = BasicProperties::default().with_content_type("application/json".into());
    let items: Vec<_> =
        (0..1000).map(|n| item(take(properties.clone(), format!("{{\"n\":{n}}}").as_bytes()))).collect();
    for format in [Format::Json, Format::Ndjson, Format::CloudEvents] {
        let batch = batch_of(format, "orders", Some("customer"), NOW, &items);
        let cost = overhead(format, "orders", Some("customer"));
        let promised = cost.batch + items.iter().map(|item| u64::from(item.weight) + cost.item).sum::<u64>();
        let body = encoded(&batch).len() as u64;
        assert!(body <= promised && promised - body <= 80 * 1000, "{format:?}: {body} of {promised}");
    }
}
