//! The corpus, from the real encoders and by hand. A test compares its files, so a change of format must
//! update them: `WRITE_CORPUS=1 cargo test --test fuzz the_corpus`. Files with other names (findings) are
//! kept.

use lapin::protocol::basic::gen_properties;
use lapin::types::{AMQPValue, DecimalValue, FieldArray, FieldTable};
use lapin::BasicProperties;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tidegate_store::{ended, queue_rows, record, rows};
use tidegate_types::event::{BucketRow, ClosingRow, HeldRow, Marks, QueueRow, WindowRow};
use tidegate_types::{BatchId, ClosedBy, Dead, End, Ended, Identity, Key, Reason};

fn write(target: &str, name: &str, bytes: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/fuzz/corpus").join(target);
    let file = folder.join(name);
    if std::env::var_os("WRITE_CORPUS").is_some() {
        fs::create_dir_all(&folder).unwrap();
        fs::write(&file, bytes).unwrap();
    }
    let there = fs::read(&file).unwrap_or_default();
    assert!(there == bytes, "{} is not of this format: WRITE_CORPUS=1 writes it anew", file.display());
}

fn part(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes(), bytes].concat()
}

/// Without the checksum, which the targets append.
fn unsealed(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len() - 4]
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

#[test]
fn the_corpus_is_of_this_format() {
    messages();
    bodies();
    stored();
    small_rows();
    texts();
}

fn messages() {
    let mut nested = FieldTable::default();
    nested.insert("inner".into(), AMQPValue::FieldArray(FieldArray::from(vec![text("x"), AMQPValue::Void])));
    let values = [
        ("text", text("soon")),
        ("digits", text("1780272060000")),
        ("rfc", text("2026-06-01T00:01:00.5+02:00")),
        ("number", AMQPValue::LongLongInt(1_780_272_060_000)),
        ("small", AMQPValue::ShortShortInt(-1)),
        ("float", AMQPValue::Double(1.5e3)),
        ("nan", AMQPValue::Double(f64::NAN)),
        ("decimal", AMQPValue::DecimalValue(DecimalValue { scale: 3, value: 60_000 })),
        ("timestamp", AMQPValue::Timestamp(1_780_272_060)),
        ("table", AMQPValue::FieldTable(nested)),
    ];
    let names =
        ["x-application", "x-customer", "x-deliver-at", "x-delay", "x-deliver-before", "x-on-duplicate"];
    for (n, (kind, value)) in values.into_iter().enumerate() {
        let mut table = FieldTable::default();
        table.insert(names[n % names.len()].into(), value.clone());
        table.insert("x-delay".into(), value.clone());
        // A header that is copied into batches.
        table.insert("h".into(), value);
        table.insert("CC".into(), text("elsewhere"));
        let properties = BasicProperties::default()
            .with_headers(table)
            .with_content_type("application/json; charset=utf-8".into())
            .with_message_id(format!("id-{kind}").into())
            .with_user_id("somebody".into())
            .with_expiration("5000".into())
            .with_timestamp(7)
            .with_priority(9);
        message(kind, &properties, b"{\"n\":[1,2.5,\"\\u00e4\"]}");
    }
    message("bare", &BasicProperties::default(), b"");
    let command = BasicProperties::default().with_type("tidegate.cancel".into()).with_message_id("7".into());
    message("command", &command.with_reply_to("answers".into()).with_correlation_id("c".into()), b"");
    let envelope = BasicProperties::default().with_content_type("application/vnd.tidegate+json".into());
    message("envelope", &envelope, br#"[{"payload":1},{"payload":"x","customer":"c"}]"#);
    let id = "00ff10a0b0c0d0e0f0112233445566aa";
    let mut headers = FieldTable::default();
    headers.insert("x-batch".into(), AMQPValue::LongString(id.into()));
    headers.insert("x-retry".into(), AMQPValue::LongLongInt(2));
    headers.insert("x-death".into(), AMQPValue::FieldArray(Default::default()));
    let back = BasicProperties::default().with_message_id(id.into()).with_headers(headers);
    message("batch", &back.clone().with_type("tidegate.batch".into()), br#"{"items":[]}"#);
    message("again", &back.with_message_id("m".into()), b"x");
}

fn message(name: &str, properties: &BasicProperties, body: &[u8]) {
    let wire = gen_properties(properties)(Vec::new().into()).unwrap().write;
    write("properties", name, &[part(&wire), part(b"orders"), body.to_vec()].concat());
}

fn bodies() {
    let deep = format!(r#"{{"payload":{}{}}}"#, "[".repeat(130), "]".repeat(130));
    let cases: [(&str, &str); 14] = [
        ("one", r#"{"application":"shop","customer":"c","id":"1","delay_ms":1500,"payload":{"a":[1,2]}}"#),
        ("many", r#"[{"payload":1},{"payload":null,"id":2},{"payload_base64":"AAEC","content_type":"x/y"}]"#),
        ("times", r#"{"deliver_at":"2026-06-01T00:01:00Z","deliver_before":1780272990000,"payload":""}"#),
        ("rule", r#" [ {"id":"a","on_duplicate":"latest","payload":"\u00e4\ud83d\ude00"} ] "#),
        ("huge", r#"{"delay_ms":1e999,"payload":1}"#),
        ("digits", r#"{"delay_ms":"99999999999999999999999","payload":1}"#),
        ("twice", r#"{"id":"a","id":"b","payload":1}"#),
        ("surrogate", r#"{"id":"\ud800","payload":1}"#),
        ("nul", r#"{"customer":"a\u0000b","payload":1}"#),
        ("empty", "[]"),
        ("cut", r#"[{"payload":"#),
        ("deep", &deep),
        ("number", "1e400"),
        ("space", " \t\r\n{ \"payload\" : 1 } "),
    ];
    for (name, body) in cases {
        write("envelope", name, body.as_bytes());
    }
    write("envelope", "latin-1", b"{\"payload\":\"caf\xe9\"}");
    let selectors = [
        ("id", r#"{"application":"shop","id":"17"}"#),
        ("customer", r#"{"customer":"c"}"#),
        ("assigned", r#"{"application":"other","id":"000000000000abcd-9-1a1fbd00462"}"#),
        ("behind", r#"{"application":"other","id":"000000000000abcd-9-1a1fbd00462-2"}"#),
        ("number", r#"{"id":17}"#),
        ("both", r#"{"id":"x","customer":"c","application":"a"}"#),
        ("array", "[{}]"),
        ("unknown", r#"{"payload":1}"#),
        ("null", r#"{"id":null}"#),
        ("none", ""),
    ];
    for (name, body) in selectors {
        for which in [0_u8, 1, 2, 0x41, 0x80, 3] {
            write("command", &format!("{name}-{which}"), &[&[which], body.as_bytes()].concat());
        }
    }
}

fn stored() {
    let key = Key::own(1_780_272_000_000, 7);
    let row = rows::item_key("shop", key).unwrap();
    let plain = record::View {
        key,
        due: key.due,
        accepted_due: key.due,
        application: "shop",
        customer: None,
        given: None,
        fingerprint: 0,
        received: 1_780_271_000_000,
        own_time: false,
        expiry: None,
        weight: 300,
        closed_by: ClosedBy::Time,
        attempts: 0,
        last_error: None,
        outcome_unknown: false,
        retry: 0,
        dead: None,
        json: true,
        properties: &[0, 0],
        body: b"{}",
    };
    write("record", "plain", unsealed(&record::encode(&row, &plain)));
    let full = record::View {
        customer: Some("customer ä"),
        accepted_due: u64::MAX,
        given: Some(Identity::given([3; 16])),
        fingerprint: u64::MAX,
        own_time: true,
        expiry: Some(u64::MAX),
        weight: u32::MAX,
        closed_by: ClosedBy::Flush,
        attempts: u32::MAX,
        last_error: Some("no queue"),
        outcome_unknown: true,
        ..plain.clone()
    };
    write("record", "full", unsealed(&record::encode(&row, &full)));
    write("record", "whole", &record::encode(&row, &full));
    let sent_back = record::View { retry: u32::MAX, ..full.clone() };
    write("record", "sent-back", unsealed(&record::encode(&row, &sent_back)));
    let letters = rows::item_key("", key).unwrap();
    let dead = record::View { dead: Some((Reason::Attempts, "too often")), ..full };
    write("record", "dead", unsealed(&record::encode(&letters, &dead)));
    // A length of 2^63 in ten bytes, and one that overflows.
    write(
        "record",
        "varint",
        b"\x02\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    );
    let identity = Identity::given([7; 16]);
    let row = |end, customer: Option<&str>| Ended {
        end,
        at: 5,
        due: u64::MAX,
        attempts: 2,
        fingerprint: u64::MAX,
        customer: customer.map(Arc::from),
    };
    let dead = End::Dead(Arc::new(Dead { reason: Reason::Expired, error: "too late".into() }));
    for (name, row) in [
        ("sent", row(End::Sent(BatchId([9; 16])), Some("c"))),
        ("cancelled", row(End::Cancelled, None)),
        ("dead", row(dead, Some("customer ä"))),
    ] {
        let bytes = ended::encode(identity, 3, &row);
        write("ended", name, unsealed(&bytes));
        write("ended", &format!("{name}-whole"), &bytes);
    }
}

fn small_rows() {
    let row = |name: &str, (key, value): (Vec<u8>, Vec<u8>)| {
        write("rows", name, &[part(&key), unsealed(&value).to_vec()].concat());
        write("rows", &format!("{name}-whole"), &[part(&key), value].concat());
    };
    let window = WindowRow {
        application: "a".into(),
        customer: "ä".into(),
        end: 9,
        window: 3,
        count: 1,
        weight: 2,
        expiry: Some(3),
    };
    row("window", rows::window_row(&window).unwrap());
    let low = Key::own(1, 2);
    let queue = QueueRow {
        queue: "shop".into(),
        count: 9,
        low,
        paused: Some(9_000),
        unindexed_until: u64::MAX,
        slowed: None,
    };
    row("queue", queue_rows::queue_row(&queue).unwrap());
    let held = HeldRow { application: "shop".into(), customer: "anna".into(), until: Some(9_000) };
    let (key, value) = queue_rows::held_row(&held).unwrap();
    row("held", (key, value.unwrap()));
    let closing =
        ClosingRow { application: "a".into(), end: 9, window: u64::MAX, due: 8, cause: ClosedBy::Quiet };
    let [by_end, by_due] = rows::closing_rows(&closing).unwrap();
    row("closing-by-end", by_end);
    row("closing-by-due", by_due);
    row("marks", (rows::META_MARKS.to_vec(), rows::marks_row(7, &Marks::default())));
    row("format", (rows::META_FORMAT.to_vec(), rows::number_row(rows::META_FORMAT, rows::FORMAT.into())));
    row("bucket", (rows::BUCKET.to_vec(), rows::bucket_row(BucketRow { bucket: 0, from: 8 }, 3)));
    let (key, value) = rows::identity_row(Identity::assigned(7), Key::own(1, 2));
    row("identity", (key.to_vec(), value));
}

fn texts() {
    let sample = include_str!("../../config.example.toml");
    let keys: String = sample.lines().filter(|line| !line.starts_with("# ") && *line != "#").fold(
        String::new(),
        |mut all, line| {
            all.push_str(line);
            all.push('\n');
            all
        },
    );
    write("config", "sample", keys.as_bytes());
    write("config", "active", keys.replace("\n#", "\n").as_bytes());
    let cases: [(&str, &str); 8] = [
        ("environment", "[limits]\nmemory='64MiB'\n\0DEFAULTS__RETRY__MIN=2s\nAPPLICATIONS__shop__WINDOW=10s\nAMQP=1"),
        ("applications", "[applications.shop]\nwindow='1h30m'\nretry={min='1ms',max='9e9h',attempts=0}\n[applications.'']\n"),
        ("uri", "[amqp]\nuri='amqps://u:p%40@[::1]:5671/%2f?x=1#f'\n"),
        ("uris", "[amqp]\nuris=['amqp://a','amqp://@:0/%zz','amqp://host:99999/']\nuri=''\n"),
        ("sizes", "[limits]\nmemory='18446744073709551615GiB'\nmax_body='0.1MB'\nmax_delay='99999999999999d'\n"),
        ("types", "[limits]\nmemory=5\ncustomers='x'\nmax_body=[]\n[store]\nkind=1.5\n"),
        ("dates", "[store]\npath=1979-05-27T07:32:00Z\n[[applications]]\n"),
        ("syntax", "[a.b\n= '''\n"),
    ];
    for (name, file) in cases {
        write("config", name, file.as_bytes());
    }
    let paths: [(&str, &str); 10] = [
        ("item", "/api/v1/items/shop/17"),
        ("encoded", "/api/v1/items/a%2Fb%20c/%C3%A4"),
        ("broken", "/api/v1/items/%/%f"),
        ("bytes", "/api/v1/customers/shop/%ff%fe"),
        ("filter", "/api/v1/items?application=shop&customer=c+d&state=in_flight&limit=1000"),
        ("times", "/api/v1/items?from=2030-01-31T09:00:00+01:00&to=1900000000000&cursor=5-6-7"),
        ("least", "/api/v1/items?from=-009999-01-02T01:59:59Z&to=9999-12-30T22:00:00.999999999Z"),
        ("twice", "/api/v1/items?limit=1&limit=2&&=&x"),
        (
            "wide",
            "/api/v1/items?from=18446744073709551615&cursor=18446744073709551615-0-18446744073709551615",
        ),
        ("moment", "2030-01-31T09:00:00 01:00"),
    ];
    for (name, path) in paths {
        write("http", name, path.as_bytes());
    }
}
