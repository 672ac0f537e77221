//! The table of fields, row by row, and what a rejection carries.

use super::super::message::ENVELOPE;
use super::*;
use crate::identity::assigned;
use tidegate_config::{DelayFrom, Reading};
use tidegate_types::{AssignedId, BatchId, DuplicateRule, Identity, Tried};

fn own_time(name: &str, value: AMQPValue) -> Option<u64> {
    item(take(with(&[(name, value)]), b"x")).at
}

fn time_refusal(name: &str, value: AMQPValue) -> String {
    refusal(take(with(&[(name, value)]), b"x"))
}

#[test]
fn the_least_request() {
    let item = item(take(BasicProperties::default(), b"\x00\xff"));
    assert_eq!(&*item.application, "orders");
    assert_eq!((&item.customer, item.at, item.expiry, item.identity), (&None, None, None, None));
    assert_eq!(item.on_duplicate, DuplicateRule::Keep);
    assert_eq!(item.content.body, b"\x00\xff");
    assert!(!item.content.json);
}

#[test]
fn application() {
    let name = |exchange, key, headers: &[(&str, AMQPValue)]| {
        item(from(exchange, key, with(headers), b"x")).application
    };
    assert_eq!(&*name("", "tidegate.ingest", &[("x-application", text("a"))]), "a");
    assert_eq!(&*name("e", "key", &[("x-application", text("a"))]), "a");
    assert_eq!(&*name("e", "key", &[]), "key");
    assert_eq!(&*name("e", "key", &[("x-application", text(""))]), "key");
    assert_eq!(&*name("e", "key", &[("x-application", AMQPValue::Void)]), "key");
    assert_eq!(&*name("e", "key", &[("x-application", AMQPValue::ShortInt(-7))]), "-7");
    assert_eq!(&*name("e", "key", &[("x-application", AMQPValue::ByteArray(b"b".as_slice().into()))]), "b");
    let longest = "ü".repeat(100);
    assert_eq!(&*name("e", &longest, &[]), longest);
    assert_eq!(&*name("e", "", &[("x-application", text(&longest))]), longest);

    for (exchange, key, header, named) in [
        ("", "tidegate.ingest", None, "x-application"),
        ("e", "", None, "x-application"),
        ("e", "", Some(text("")), "x-application"),
        ("e", &*"k".repeat(201), None, "the routing key"),
        ("e", "key", Some(text(&"k".repeat(201))), "x-application"),
        ("e", "key", Some(AMQPValue::LongString(vec![b'a', 0xff].into())), "x-application"),
        ("e", "key", Some(AMQPValue::Boolean(true)), "x-application"),
    ] {
        let headers = header.map(|value| ("x-application", value));
        let refused = rejected(from(exchange, key, with(headers.as_slice()), b"x"));
        assert!(refused.dead.error.starts_with(named), "{}", refused.dead.error);
        assert_eq!(refused.application, None);
    }
}

#[test]
fn customer() {
    let name = |value| item(take(with(&[("x-customer", value)]), b"x")).customer;
    assert_eq!(name(text("42")).as_deref(), Some("42"));
    for (value, expected) in [
        (AMQPValue::ShortShortInt(-42), "-42"),
        (AMQPValue::ShortShortUInt(200), "200"),
        (AMQPValue::ShortInt(-300), "-300"),
        (AMQPValue::ShortUInt(60_000), "60000"),
        (AMQPValue::LongInt(-1), "-1"),
        (AMQPValue::LongUInt(u32::MAX), "4294967295"),
        (number(i64::MIN), "-9223372036854775808"),
        (AMQPValue::ByteArray("Zoë".as_bytes().into()), "Zoë"),
        (AMQPValue::ShortString("s".into()), "s"),
        (text(" \0"), " \0"),
    ] {
        assert_eq!(name(value.clone()).as_deref(), Some(expected), "{value:?}");
    }
    assert_eq!(name(text("")), None);
    assert_eq!(name(AMQPValue::Void), None);
    assert_eq!(name(text(&"c".repeat(200))).unwrap().len(), 200);
    for value in [
        text(&"c".repeat(201)),
        AMQPValue::Double(42.0),
        decimal(0, 42),
        AMQPValue::Timestamp(42),
        AMQPValue::FieldTable(table(&[])),
        AMQPValue::LongString(vec![0xc3].into()),
    ] {
        let refused = rejected(take(with(&[("x-customer", value.clone())]), b"x"));
        assert!(refused.dead.error.starts_with("x-customer "), "{}", refused.dead.error);
        assert_eq!((refused.application.as_deref(), refused.customer), (Some("orders"), None), "{value:?}");
    }
}

#[test]
fn delays() {
    let day = DAY as i64;
    for (value, expected) in [
        (number(1500), 1500),
        (number(0), 0),
        (number(-1), 0),
        (number(i64::MIN), 0),
        (AMQPValue::LongUInt(u32::MAX), 4_294_967_295),
        (number(1 << 32), 1 << 32),
        (number((1 << 32) + 1), (1 << 32) + 1),
        (number(3650 * day), 3650 * DAY),
        (text("1500"), 1500),
        (text("1.5"), 2),
        (text("-5"), 0),
        (AMQPValue::Double(1.5), 2),
        (AMQPValue::Float(0.25), 1),
        (AMQPValue::Double(-1e300), 0),
        (decimal(1, 15), 2),
        (decimal(1, -15), 0),
    ] {
        for name in ["x-delay", "x-opt-delivery-delay"] {
            assert_eq!(own_time(name, value.clone()), Some(NOW + expected), "{name} {value:?}");
        }
    }
    assert_eq!(own_time("x-delay", text("")), None);
    assert_eq!(own_time("x-delay", AMQPValue::Void), None);
    for value in [
        number(3650 * day + 1),
        number(i64::MAX),
        text("18446744073709551615"),
        text("soon"),
        text("1e3"),
        text("2026-06-01T00:00:00Z"),
        AMQPValue::Double(f64::NAN),
        AMQPValue::Double(f64::INFINITY),
        AMQPValue::Double(1e300),
        AMQPValue::Timestamp(5),
        AMQPValue::Boolean(true),
        AMQPValue::FieldArray(vec![number(1)].into()),
    ] {
        for name in ["x-delay", "x-opt-delivery-delay"] {
            assert!(time_refusal(name, value.clone()).starts_with(name), "{name} {value:?}");
        }
    }
}

#[test]
fn points_in_time() {
    let ms = NOW as i64;
    for (value, expected) in [
        (number(ms + 1), NOW + 1),
        (number(ms - 1), NOW),
        (number(100_000_000_000), NOW),
        (number(-1), NOW),
        (text("1780272000001"), NOW + 1),
        (text("1780272000000.5"), NOW + 1),
        (AMQPValue::Double(1_780_272_000_000.5), NOW + 1),
        (AMQPValue::Timestamp(NOW / 1000 + 1), NOW + 1000),
        (AMQPValue::Timestamp(0), NOW),
        // A moment before 1970, in two's complement.
        (AMQPValue::Timestamp(u64::MAX), NOW),
        (text("2026-06-01T00:00:00.001Z"), NOW + 1),
        (text("2026-06-01T02:00:00.0005+02:00"), NOW + 1),
        (text("1970-01-01T00:00:00Z"), NOW),
        (AMQPValue::ByteArray(b"2026-05-31T23:00:01-01:00".as_slice().into()), NOW + 1000),
    ] {
        for name in ["x-deliver-at", "x-opt-delivery-time"] {
            assert_eq!(own_time(name, value.clone()), Some(expected), "{name} {value:?}");
        }
    }
    for (value, said) in [
        (number(0), "seconds by mistake"),
        (number(NOW as i64 / 1000), "seconds by mistake"),
        (text("1780272000"), "seconds by mistake"),
        (number(99_999_999_999), "seconds by mistake"),
        (decimal(0, i32::MAX), "seconds by mistake"),
        (number(ms + 3650 * DAY as i64 + 1), "limits.max_delay"),
        (number(i64::MAX), "limits.max_delay"),
        (text("18446744073709551615"), "limits.max_delay"),
        (AMQPValue::Double(1e300), "limits.max_delay"),
        (AMQPValue::Timestamp(i64::MAX as u64), "limits.max_delay"),
        (AMQPValue::Timestamp(NOW), "limits.max_delay"),
        (text("9999-12-31T23:59:59Z"), "limits.max_delay"),
        (text("2026-06-01T00:00:00"), "\"2026-06-01T00:00:00\""),
        (text("tomorrow"), "\"tomorrow\""),
        (AMQPValue::Double(f64::NAN), "NaN"),
        (AMQPValue::FieldTable(table(&[])), "a table"),
    ] {
        for name in ["x-deliver-at", "x-opt-delivery-time"] {
            let error = time_refusal(name, value.clone());
            assert!(error.starts_with(name) && error.contains(said), "{error}");
        }
    }
}

#[test]
fn seconds_beyond_31_bits() {
    const TURN: u64 = (1 << 31) * 1000;
    for (value, expected) in [
        (number(TURN as i64 - 1), TURN - 1),
        (number(TURN as i64), TURN),
        (text("2147483648000"), TURN),
        (AMQPValue::Double(2_147_483_648_000.0), TURN),
        (AMQPValue::Timestamp((1 << 31) - 1), TURN - 1000),
        (AMQPValue::Timestamp(1 << 31), TURN),
        (AMQPValue::Timestamp(1 << 32), 2 * TURN),
        (text("2038-01-19T03:14:08Z"), TURN),
    ] {
        let limits = RequestLimits { max_delay_ms: 100 * 366 * DAY, ..LIMITS };
        let properties = with(&[("x-deliver-at", value.clone())]);
        let parts = Incoming { exchange: "e", routing_key: "k", properties, body: Vec::new(), received: NOW };
        assert_eq!(item(read(parts, &limits)).at, Some(expected), "{value:?}");
    }
}

#[test]
fn several_own_times() {
    let ms = NOW as i64;
    let at = |headers: &[(&str, AMQPValue)]| item(take(with(headers), b"x")).at;
    assert_eq!(at(&[("x-deliver-at", number(ms + 500)), ("x-delay", number(500))]), Some(NOW + 500));
    assert_eq!(at(&[("x-delay", text("500")), ("x-opt-delivery-delay", number(500))]), Some(NOW + 500));
    assert_eq!(at(&[("x-deliver-at", text("2026-01-01T00:00:00Z")), ("x-delay", number(-3))]), Some(NOW));
    assert_eq!(at(&[("x-delay", text("")), ("x-opt-delivery-delay", number(5))]), Some(NOW + 5));
    for headers in [
        [("x-deliver-at", number(ms + 500)), ("x-delay", number(501))],
        [("x-delay", number(0)), ("x-opt-delivery-delay", number(1))],
        [("x-deliver-at", number(ms + 5)), ("x-opt-delivery-time", number(ms + 6))],
    ] {
        let error = refusal(take(with(&headers), b"x"));
        assert!(error.contains(headers[0].0) && error.contains(headers[1].0), "{error}");
    }
}

#[test]
fn no_overflow_at_the_edges() {
    for received in [0, NOW, u64::MAX - 1, u64::MAX] {
        for max_delay_ms in [0, 1, u64::MAX] {
            for value in [number(0), number(i64::MAX), number(i64::MIN), AMQPValue::Timestamp(u64::MAX)] {
                for name in ["x-delay", "x-deliver-at", "x-deliver-before"] {
                    let limits = RequestLimits { max_delay_ms, ..LIMITS };
                    let properties = with(&[(name, value.clone())]);
                    let incoming =
                        Incoming { exchange: "e", routing_key: "k", properties, body: Vec::new(), received };
                    read(incoming, &limits);
                }
            }
        }
    }
}

#[test]
fn expiry() {
    let expiry = |value| item(take(with(&[("x-deliver-before", value)]), b"x")).expiry;
    assert_eq!(expiry(number(NOW as i64 + 5)), Some(NOW + 5));
    // Judged by the engine, when it would leave.
    assert_eq!(expiry(number(NOW as i64 - 5)), Some(NOW - 5));
    assert_eq!(expiry(number(-5)), Some(0));
    assert_eq!(expiry(text("9999-12-31T23:59:59Z")), Some(253_402_300_799_000));
    assert_eq!(expiry(AMQPValue::Timestamp(2_000_000_000)), Some(2_000_000_000_000));
    assert_eq!(expiry(number(i64::MAX)), Some(i64::MAX as u64));
    assert_eq!(expiry(text("")), None);
    for value in [number(1_780_272_000), text("never"), AMQPValue::Double(f64::NAN)] {
        assert!(time_refusal("x-deliver-before", value).starts_with("x-deliver-before "));
    }
}

#[test]
fn ids_and_duplicate_rules() {
    let id = |id: &str| item(take(BasicProperties::default().with_message_id(id.into()), b"x")).identity;
    assert_eq!(id("i-1"), given("orders", "i-1"));
    assert_eq!(id(""), None);
    assert_eq!(id(&"i".repeat(255)), given("orders", &"i".repeat(255)));

    let rule = |value| item(take(with(&[("x-on-duplicate", value)]), b"x")).on_duplicate;
    for (name, expected) in [
        ("", DuplicateRule::Keep),
        ("keep", DuplicateRule::Keep),
        ("replace", DuplicateRule::Replace),
        ("earliest", DuplicateRule::Earliest),
        ("latest", DuplicateRule::Latest),
        ("reject", DuplicateRule::Reject),
    ] {
        assert_eq!(rule(text(name)), expected);
    }
    assert_eq!(rule(AMQPValue::Void), DuplicateRule::Keep);
    for value in [text("Keep"), text("drop\n"), number(1), AMQPValue::Boolean(true), text(&"r".repeat(300))] {
        let error = refusal(take(with(&[("x-on-duplicate", value)]), b"x"));
        assert!(error.starts_with("x-on-duplicate ") && !error.contains('\n'), "{error}");
    }
}

#[test]
fn limits() {
    let body = vec![b'x'; LIMITS.max_body as usize];
    item(take(BasicProperties::default(), &body));
    let refused = rejected(take(with(&[("x-customer", text("c"))]), &[&body[..], b"y"].concat()));
    assert_eq!(refused.dead.reason, Reason::TooLarge);
    assert!(refused.dead.error.contains("limits.max_body"));
    assert_eq!((refused.application.as_deref(), refused.customer.as_deref()), (Some("orders"), Some("c")));
    assert_eq!(refused.content.body.len() as u64, LIMITS.max_body + 1);

    let many: Vec<_> = (0..1001).map(|n| (n.to_string(), number(n))).collect();
    let named: Vec<_> = many.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    item(take(with(&named[..1000]), b"x"));
    assert_eq!(rejected(take(with(&named), b"x")).dead.reason, Reason::TooLarge);
    let large = text(&"h".repeat(70_000));
    assert_eq!(rejected(take(with(&[("h", large)]), b"x")).dead.reason, Reason::TooLarge);
}

/// Header, other header and envelope read moments with one parser, and the sentence names the field.
#[test]
fn times_that_rfc_3339_has_not_are_refused_by_name() {
    for (time, offset) in [
        ("08:00:00", "+24:00"),
        ("08:00:00", "+25:59"),
        ("08:00:00", "+0800"),
        ("08:00:00", "+08"),
        ("08:00:00", "+08:00:30"),
        ("08:00:00,5", "Z"),
        ("08:00:61", "Z"),
    ] {
        let written = format!("2026-06-02T{time}{offset}");
        for name in ["x-deliver-at", "x-opt-delivery-time", "x-deliver-before"] {
            let sentence = refusal(take(with(&[(name, text(&written))]), b"x"));
            let expected =
                format!("{name} is neither a number of milliseconds nor RFC 3339 text with an offset: ");
            assert!(sentence.starts_with(&expected) && sentence.contains(&written), "{sentence}");
        }
        for name in ["deliver_at", "deliver_before"] {
            let body = format!(r#"{{"payload":1,"{name}":"{written}"}}"#);
            let envelope = BasicProperties::default().with_content_type(ENVELOPE.into());
            let sentence = refusal(take(envelope, body.as_bytes()));
            assert!(sentence.starts_with(&format!("{name} is neither")), "{sentence}");
        }
    }
}

#[test]
fn moments_of_the_year_9999_and_leap_seconds_are_taken() {
    let never = item(take(with(&[("x-deliver-before", text("9999-12-31T23:59:59Z"))]), b"x"));
    assert_eq!(never.expiry, Some(253_402_300_799_000));
    let ahead = refusal(take(with(&[("x-deliver-at", text("9999-12-31T23:59:59Z"))]), b"x"));
    assert!(ahead.contains("limits.max_delay"), "{ahead}");
    let leap = item(take(with(&[("x-deliver-at", text("2026-06-30T23:59:60Z"))]), b"x"));
    let after = item(take(with(&[("x-deliver-at", text("2026-07-01T00:00:00Z"))]), b"x"));
    assert_eq!(leap.at, after.at, "not a second early");
}

#[test]
fn an_own_time_rounds_up_and_an_expiry_down() {
    let written = "2026-06-02T00:00:00.0005Z";
    let taken = item(take(
        with(&[("x-deliver-at", text(written)), ("x-deliver-before", text("2026-06-03T00:00:00.0005Z"))]),
        b"x",
    ));
    assert_eq!((taken.at, taken.expiry), (Some(NOW + DAY + 1), Some(NOW + 2 * DAY)));
    let body = format!(r#"{{"payload":1,"deliver_at":"{written}","deliver_before":"{written}"}}"#);
    let envelope = BasicProperties::default().with_content_type(ENVELOPE.into());
    let taken = item(take(envelope, body.as_bytes()));
    assert_eq!((taken.at, taken.expiry), (Some(NOW + DAY + 1), Some(NOW + DAY)));
}

#[test]
fn sentences_are_bounded_and_on_one_line() {
    let long = "\n\u{7f}\"".repeat(20_000);
    for name in ["x-customer", "x-application", "x-delay", "x-deliver-at", "x-on-duplicate"] {
        let error = refusal(take(with(&[(name, text(&long))]), b"x"));
        assert!(error.len() < 510 && !error.contains(char::is_control), "{error:?}");
    }
}

#[test]
fn a_delay_counts_from_the_timestamp_where_that_is_configured() {
    let mut readings = Readings::default();
    readings.defaults.delay_from = DelayFrom::Timestamp;
    readings.applications.insert("received".into(), Reading::default());
    let made = NOW - 10_500;
    let due = |application: &str, delay: i64, stamp: Option<u64>, noted: Option<AMQPValue>| {
        let mut headers = vec![("x-delay", number(delay))];
        headers.extend(noted.map(|value| ("timestamp_in_ms", value)));
        let mut properties = with(&headers);
        if let Some(seconds) = stamp {
            properties = properties.with_timestamp(seconds);
        }
        let exchange = "tidegate.in";
        let incoming =
            Incoming { exchange, routing_key: application, properties, body: vec![], received: NOW };
        match read_with(incoming, &LIMITS, &readings, STORE) {
            RequestBody::Items(items) | RequestBody::Elsewhere(items) => items[0].at.ok_or_else(String::new),
            RequestBody::Rejected(rejected) => Err(rejected.dead.error.to_string()),
            RequestBody::Command(..) => panic!("no command"),
        }
    };
    let stamp = Some(made / 1_000);
    let second = made / 1_000 * 1_000;
    assert_eq!(due("orders", 60_000, stamp, None), Ok(second + 60_000));
    assert_eq!(due("orders", 60_000, stamp, Some(number(made as i64))), Ok(made + 60_000));
    assert_eq!(due("orders", 60_000, None, Some(number(made as i64))), Ok(made + 60_000));
    assert_eq!(due("orders", 5_000, stamp, None), Ok(NOW), "it is over");
    assert_eq!(due("orders", -1, stamp, None), Ok(NOW));
    assert_eq!(due("orders", 60_000, None, None), Ok(NOW + 60_000), "nobody says when it was made");
    for other in [text("soon"), number(-1)] {
        assert_eq!(due("orders", 60_000, None, Some(other)), Ok(NOW + 60_000), "that says nothing");
    }
    for wrong in [number(0), AMQPValue::LongInt(0), number(NOW as i64 / 1_000), number(99_999_999_999)] {
        let sentence = due("orders", 60_000, stamp, Some(wrong)).unwrap_err();
        let expected = "timestamp_in_ms, which delays count from, is too small for UTC milliseconds";
        assert!(sentence.starts_with(expected), "{sentence}");
    }
    assert_eq!(due("orders", 0, None, Some(number(100_000_000_000))), Ok(NOW), "that is a moment");
    assert_eq!(due("received", 60_000, None, Some(number(0))), Ok(NOW + 60_000), "nothing counts from it");
    for none in [0, (-5_i64).cast_unsigned()] {
        assert_eq!(due("orders", 60_000, Some(none), None), Ok(NOW + 60_000), "that is no moment");
    }
    assert_eq!(due("received", 60_000, stamp, None), Ok(NOW + 60_000), "each application has its own");
    // Milliseconds in a field for seconds.
    let wrong = due("orders", 0, Some(NOW), None).unwrap_err();
    assert!(wrong.contains("limits.max_delay") && wrong.contains("its timestamp, "), "{wrong}");
    // Entries of an envelope count from their message's.
    let properties = with(&[]).with_timestamp(made / 1_000).with_content_type(ENVELOPE.into());
    let body = br#"[{"payload":1,"delay_ms":60000},{"payload":2,"delay_ms":60000,"application":"received"}]"#;
    let incoming = Incoming {
        exchange: "tidegate.in",
        routing_key: "orders",
        properties,
        body: body.to_vec(),
        received: NOW,
    };
    let RequestBody::Items(items) = read_with(incoming, &LIMITS, &readings, STORE) else { panic!("items") };
    let dues: Vec<_> = items.iter().map(|item| item.at).collect();
    assert_eq!(dues, [Some(second + 60_000), Some(NOW + 60_000)]);
}

#[test]
fn another_try_names_its_batch_and_nothing_else_is_one() {
    let hex = "00ff10a0b0c0d0e0f0112233445566aa";
    let id = u128::from_str_radix(hex, 16).unwrap().to_be_bytes();
    let bytes = AMQPValue::ByteArray(hex.as_bytes().into());
    for (value, batch) in [
        (text(hex), Some(BatchId(id))),
        (text(&hex.to_uppercase()), Some(BatchId(id))),
        (bytes, Some(BatchId(id))),
        (text(&hex[1..]), None),
        (text(&format!("+{}", &hex[1..])), None),
        (text(""), None),
        (number(7), None),
        (AMQPValue::Boolean(true), None),
    ] {
        let taken = item(take(with(&[("x-batch", value.clone())]), b"x"));
        assert_eq!(taken.tried, Tried { batch, sent_back: true, ..Tried::default() }, "{value:?}");
    }
    let deaths = AMQPValue::FieldArray(Default::default());
    let moved = item(take(with(&[("x-death", deaths)]), b"x"));
    assert_eq!(moved.tried, Tried { batch: None, sent_back: true, ..Tried::default() });
    assert_eq!(item(take(with(&[("x-attempt", number(1))]), b"x")).tried, Tried::default());
    // The id that this store assigned names the item that came without one; another store's does not.
    for (store, first) in [(STORE, Some(Identity::assigned(7))), (STORE + 1, None)] {
        let id = assigned(store, AssignedId { seq: 7, due: 9, window: 5 });
        let again = item(take(with(&[("x-batch", text(hex))]).with_message_id(id.into()), b"x"));
        assert_eq!(again.tried.first, first, "{store}");
    }
    // Beside an envelope it counts for every entry.
    let properties = with(&[("x-batch", text(hex))]).with_content_type(ENVELOPE.into());
    let entries = items(take(properties, br#"[{"payload":1,"id":"a"},{"payload":2}]"#));
    assert!(entries.iter().all(|entry| entry.tried.batch == Some(BatchId(id))));
}
