//! Messages arrive unchanged in body, properties and headers, with three added headers.

use super::site;
use crate::dropin::passthrough;
use crate::requests::order;
use std::time::Duration;
use tidegate_harness::lapin::types::{
    AMQPValue, ByteArray, DecimalValue, FieldArray, FieldTable, LongString,
};
use tidegate_harness::lapin::BasicProperties;
use tidegate_harness::{text, wait_until, Push, Raw, RawProperties, Received};

/// Panics unless `received` has exactly this body, these properties and headers, and the headers that
/// tidegate adds.
fn check(received: &Received, body: &[u8], properties: BasicProperties, mut headers: FieldTable) {
    assert!(received.body == body, "{} bytes of {}", received.body.len(), body.len());
    let batch = received.text("x-batch").expect("x-batch");
    assert!(batch.len() == 32 && batch.bytes().all(|b| b.is_ascii_hexdigit()), "{batch}");
    let due = received.number("x-due").expect("x-due");
    received.is_not_early();
    headers.insert("x-due".into(), AMQPValue::LongLongInt(due));
    headers.insert("x-attempt".into(), AMQPValue::LongLongInt(1));
    headers.insert("x-batch".into(), text(&batch));
    assert_eq!(received.properties, properties.with_delivery_mode(2).with_headers(headers));
}

/// The same for a message that arrives with all its properties and headers.
fn check_whole(received: &Received, push: &Push) {
    check(received, &push.body, push.properties.clone(), push.headers.clone());
}

/// One header of every type that RabbitMQ knows, with nested tables and arrays.
fn every_type() -> FieldTable {
    let mut inner = FieldTable::default();
    inner.insert("deep".into(), AMQPValue::FieldArray(FieldArray::from(vec![text("x"), AMQPValue::Void])));
    inner.insert("empty".into(), AMQPValue::FieldTable(FieldTable::default()));
    let array = vec![
        AMQPValue::LongInt(1),
        text("two"),
        AMQPValue::FieldTable(inner.clone()),
        AMQPValue::FieldArray(FieldArray::default()),
    ];
    let decimal = DecimalValue { scale: 2, value: (-31_415_i32).cast_unsigned() };
    let mut table = FieldTable::default();
    for (name, value) in [
        ("boolean", AMQPValue::Boolean(true)),
        ("i8", AMQPValue::ShortShortInt(i8::MIN)),
        ("u8", AMQPValue::ShortShortUInt(u8::MAX)),
        ("i16", AMQPValue::ShortInt(i16::MIN)),
        ("u16", AMQPValue::ShortUInt(u16::MAX)),
        ("i32", AMQPValue::LongInt(i32::MIN)),
        ("u32", AMQPValue::LongUInt(u32::MAX)),
        ("i64", AMQPValue::LongLongInt(i64::MIN)),
        ("float", AMQPValue::Float(1.5)),
        ("double", AMQPValue::Double(-0.1)),
        ("decimal", AMQPValue::DecimalValue(decimal)),
        ("text", text("\u{e4} \u{1f30a}")),
        ("text, not UTF-8", AMQPValue::LongString(LongString::from(&[0xff, 0, 0xfe][..]))),
        ("bytes", AMQPValue::ByteArray(ByteArray::from(&[0, 1, 255][..]))),
        ("timestamp", AMQPValue::Timestamp(1_900_000_000)),
        ("void", AMQPValue::Void),
        ("array", AMQPValue::FieldArray(FieldArray::from(array))),
        ("table", AMQPValue::FieldTable(inner)),
        ("X-Delay", text("another name: names are case-sensitive")),
    ] {
        table.insert(name.into(), value);
    }
    table
}

fn every_property() -> BasicProperties {
    BasicProperties::default()
        .with_content_type("application/x-own; charset=latin-1".into())
        .with_content_encoding("gzip".into())
        .with_priority(7)
        .with_correlation_id("correlation".into())
        .with_reply_to("amq.rabbitmq.reply-to.none".into())
        .with_message_id("message-1".into())
        .with_timestamp(1_234_567_890)
        .with_type("own.type".into())
        .with_app_id("own-app".into())
        .with_cluster_id("own-cluster".into())
}

#[test]
fn every_property_and_every_type_of_header_arrives_equal() {
    let site = site("whole");
    let inbox = site.inbox("mykey");
    let _daemon = site.start(&passthrough(&site));
    for (delay, id) in [(Some(200), "waits"), (None, "at once")] {
        let mut push = site.push("mykey", b"\0binary\xff\r\n".as_slice());
        push.headers = every_type();
        // The same id again would be a duplicate.
        push.properties = every_property().with_message_id(id.into());
        if let Some(delay) = delay {
            push = push.header("x-delay", AMQPValue::LongInt(delay));
        }
        site.client.publish(&push);
        let received = inbox.next();
        check_whole(&received, &push);
        assert_eq!((received.exchange, received.key), (site.out(), "mykey".to_owned()));
    }
}

/// The same for a message that was on disk while the process was killed.
#[test]
fn what_was_stored_and_read_again_arrives_equal() {
    let site = site("stored");
    let inbox = site.inbox("mykey");
    let mut daemon = site.start(&passthrough(&site));
    // It is not to leave before the kill.
    order(&daemon, "mykey", "pause");
    let mut push = site.push("mykey", noise(1 << 20));
    push.headers = every_type();
    push.properties = every_property();
    let push = push.header("x-delay", AMQPValue::LongInt(2500));
    site.client.publish(&push);
    let stored = || {
        let state = daemon.state();
        state["items"]["waiting"] == 1 && state["uncommitted"] == 0
    };
    wait_until("it is stored", Duration::from_secs(10), stored);
    daemon.kill9();
    daemon.start_again();
    daemon.wait_ready();
    order(&daemon, "mykey", "resume");
    check_whole(&inbox.next(), &push);
}

/// Pseudo-random bytes, the same in each run (xorshift).
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn bodies_arrive_byte_for_byte() {
    let site = site("bodies");
    let inbox = site.inbox("mykey");
    let _daemon = site.start(&passthrough(&site));
    let json = b"{ \"a\" :\r\n 1.0,\t\"a\": 2 }\n";
    let bodies: [(&str, &[u8]); 5] = [
        ("empty", b""),
        ("one zero", b"\0"),
        ("JSON is not written anew", json),
        ("every byte", &(0..=255).collect::<Vec<u8>>()),
        ("1 MiB", &noise(1 << 20)),
    ];
    for (id, body) in bodies {
        for delay in [0, 150] {
            // The same id again would be a duplicate.
            let id = format!("{id}, {delay}");
            let push = site.push("mykey", body).id(&id).content_type("application/json").delay(delay);
            site.client.publish(&push);
            check_whole(&inbox.next(), &push);
        }
    }
}

/// A message without properties gets an id and becomes persistent.
#[test]
fn an_absent_id_is_set_and_a_transient_message_becomes_persistent() {
    let site = site("bare");
    let inbox = site.inbox("mykey");
    let _daemon = site.start(&passthrough(&site));
    let mut raw = Raw::connect(site.node);
    let mut ids = Vec::new();
    for _ in 0..2 {
        raw.publish(&site.ingest(), b"mykey", &RawProperties::default(), b"bare");
        let received = inbox.next();
        ids.push(received.id());
        let expected = BasicProperties::default().with_message_id(received.id().into());
        check(&received, b"bare", expected, FieldTable::default());
    }
    assert!(!ids[0].is_empty() && ids[0] != ids[1], "{ids:?}");
}

/// Fields that would re-route the message, expire it, or be refused by the broker are dropped; the user id is
/// passed on in a header.
#[test]
fn what_is_never_copied() {
    let site = site("never");
    let inbox = site.inbox("mykey");
    let elsewhere = site.inbox("elsewhere");
    let _daemon = site.start(&passthrough(&site));
    let (_, _, user, _) = site.node.login();
    let own = site.push("mykey", "x").with("own", "kept").id("m").header("x-delay", AMQPValue::LongInt(400));
    let mut push = own.clone();
    let other = AMQPValue::FieldArray(FieldArray::from(vec![text("elsewhere")]));
    for (name, value) in [
        ("CC", other.clone()),
        ("BCC", other),
        ("x-delivery-count", AMQPValue::LongLongInt(3)),
        ("x-acquired-count", AMQPValue::LongLongInt(3)),
    ] {
        push = push.header(name, value);
    }
    push.properties = push.properties.with_expiration("5000".into()).with_user_id(user.as_str().into());
    site.client.publish(&push);
    let own = own.with("x-user-id", &user);
    check_whole(&inbox.next(), &own);
    inbox.quiet(Duration::from_millis(200));
    elsewhere.quiet(Duration::from_millis(10));
}

/// The plugin negates the delay of a delivered message, so that publishing it again does not delay it again.
/// tidegate passes `x-delay` on unchanged: published again under the same id, the message waits again, and
/// the added headers are set anew.
#[test]
fn published_again_as_it_came_it_waits_again() {
    let site = site("again");
    let inbox = site.inbox("mykey");
    let _daemon = site.start(&passthrough(&site));
    let push = site.push("mykey", "x").id("m").header("x-delay", AMQPValue::LongInt(300));
    site.client.publish(&push);
    let first = inbox.next();
    check_whole(&first, &push);
    let due = |received: &Received| received.number("x-due").expect("x-due");
    let mut last = first;
    for _ in 0..3 {
        let mut again = push.clone();
        again.headers = last.properties.headers().clone().expect("headers");
        site.client.publish(&again);
        let next = inbox.next();
        check(&next, &push.body, again.properties.clone(), push.headers.clone());
        assert!(due(&next) >= due(&last) + 300, "{} and {}", due(&last), due(&next));
        assert_ne!(last.text("x-batch"), next.text("x-batch"));
        last = next;
    }
}
