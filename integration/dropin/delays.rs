//! `x-delay` in all types that clients send, and values beyond the plugin's range.

use super::passthrough;
use std::time::Duration;
use tidegate_harness::lapin::types::{AMQPValue, ByteArray, DecimalValue, FieldArray, FieldTable};
use tidegate_harness::{now_ms, text, wait_until, Raw, RawProperties, Site, Verdict};

fn decimal(scale: u8, value: i32) -> AMQPValue {
    // RabbitMQ's decimal is signed; the library's type holds the same bits.
    AMQPValue::DecimalValue(DecimalValue { scale, value: value.cast_unsigned() })
}

fn bytes(value: &str) -> AMQPValue {
    AMQPValue::ByteArray(ByteArray::from(value.as_bytes()))
}

/// Clients choose the type by language (`int` in Java, `long` in .NET), by the value (amqplib for Node sends
/// 100 in 8 bits and 300 in 16), or send text.
#[test]
fn every_type_of_number_is_a_delay() {
    let site = Site::new("types");
    let inbox = site.inbox("mykey");
    let _daemon = site.start(&passthrough(&site));
    let cases = [
        (AMQPValue::ShortShortInt(100), 100),
        (AMQPValue::ShortShortUInt(200), 200),
        (AMQPValue::ShortInt(300), 300),
        (AMQPValue::ShortUInt(300), 300),
        (AMQPValue::LongInt(300), 300),
        (AMQPValue::LongUInt(300), 300),
        (AMQPValue::LongLongInt(300), 300),
        (AMQPValue::Float(300.0), 300),
        (AMQPValue::Double(300.0), 300),
        (decimal(0, 300), 300),
        (decimal(2, 30_000), 300),
        (text("300"), 300),
        (text("+300"), 300),
        (text("300.0"), 300),
        (bytes("300"), 300),
    ];
    for (n, (value, delay)) in cases.iter().enumerate() {
        let from = i64::try_from(now_ms()).expect("a date");
        let push = site.push("mykey", n.to_string()).header("x-delay", value.clone());
        assert_eq!(site.client.publish(&push), Verdict::Taken);
        let received = inbox.next();
        let waits = received.number("x-due").expect("x-due") - from;
        assert_eq!(received.body_text(), n.to_string());
        received.is_not_early();
        assert!((*delay..delay + 25_000).contains(&waits), "{value:?}: {waits} ms");
        // The plugin negates it to prevent a second delay; tidegate passes it on unchanged.
        assert_eq!(received.header("x-delay"), Some(value));
    }
}

/// The unsigned 64-bit type of AMQP 0-9-1, which some clients send and RabbitMQ reads as signed.
#[test]
fn the_long_integer_of_the_protocols_text_is_one_too() {
    let site = Site::new("long");
    let inbox = site.inbox("mykey");
    let _daemon = site.start(&passthrough(&site));
    let mut entry = b"\x07x-delayL".to_vec();
    entry.extend_from_slice(&300_u64.to_be_bytes());
    let from = i64::try_from(now_ms()).expect("a date");
    let properties = RawProperties::default().headers(&entry).persistent();
    Raw::connect(site.node).publish(&site.ingest(), b"mykey", &properties, b"long");
    let received = inbox.next();
    assert!(received.number("x-due").expect("x-due") >= from + 300);
    assert_eq!((received.body_text().as_str(), received.number("x-delay")), ("long", Some(300)));
}

/// The plugin truncates fractions; tidegate rounds them up. Two headers with a time are accepted only if they
/// give the same millisecond, so the second header shows the value used.
#[test]
fn fractions_round_up() {
    let site = Site::new("fractions");
    let inbox = site.inbox("mykey");
    let _daemon = site.start(&passthrough(&site));
    let dead = site.dead_inbox();
    let cases = [
        (AMQPValue::Float(299.5), 300),
        (AMQPValue::Double(299.000_001), 300),
        (decimal(1, 2991), 300),
        (text("299.001"), 300),
        (bytes("299.9"), 300),
        (AMQPValue::Double(0.25), 1),
        (AMQPValue::Double(-0.25), 0),
        (decimal(1, -1), 0),
        (text("-0.5"), 0),
    ];
    for (value, ms) in cases {
        let push = |witness| {
            site.push("mykey", "x").header("x-delay", value.clone()).number("x-opt-delivery-delay", witness)
        };
        site.client.publish(&push(ms));
        inbox.next().is_not_early();
        site.client.publish(&push(ms + 1));
        assert_eq!(dead.next().text("x-tidegate-reason").as_deref(), Some("invalid"), "{value:?}");
    }
}

/// The plugin's longest delay is 2^32 - 1 ms. It delivers longer ones at once; other implementations overflow
/// at 2^31.
#[test]
fn beyond_32_bits_they_wait() {
    let site = Site::new("beyond");
    let inbox = site.inbox("mykey");
    let mut daemon = site.start(&passthrough(&site).text("limits.max_delay", "36500d"));
    let cases = [
        AMQPValue::LongUInt(1 << 31),
        AMQPValue::LongUInt(u32::MAX),
        AMQPValue::LongLongInt(1 << 32),
        AMQPValue::LongLongInt((1 << 32) + 1),
        AMQPValue::LongLongInt((1 << 31) * 1000),
        AMQPValue::Double(4_294_967_296.5),
        text("4294967300"),
        bytes("3000000000000"),
    ];
    let count = cases.len() as u64;
    for value in cases {
        let push = site.push("mykey", "far").header("x-delay", value);
        assert_eq!(site.client.publish(&push), Verdict::Taken);
    }
    wait_until("all wait", Duration::from_secs(10), || daemon.items("waiting") == count);
    daemon.term();
    assert!(daemon.exit(Duration::from_secs(20)).success());
    daemon.start_again();
    daemon.wait_ready();
    wait_until("all still wait", Duration::from_secs(10), || daemon.items("waiting") == count);
    inbox.quiet(Duration::from_millis(300));
    site.lies(&site.dead(), 0);
}

/// The plugin delivers at once for another type or too long a delay, and fails for text that is no number.
/// tidegate dead-letters such a message, because it must not leave without its delay.
#[test]
fn what_is_no_delay_is_dead_with_its_reason() {
    let site = Site::new("no-delay");
    let inbox = site.inbox("mykey");
    let _daemon = site.start(&passthrough(&site));
    let dead = site.dead_inbox();
    let cases = [
        text("soon"),
        text("5s"),
        text("5 000"),
        text("1e3"),
        text("0x10"),
        text("2030-01-01T00:00:00Z"),
        bytes("five"),
        AMQPValue::Boolean(true),
        AMQPValue::Timestamp(1_900_000_000),
        AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::LongInt(5)])),
        AMQPValue::FieldTable(FieldTable::default()),
        AMQPValue::LongLongInt(i64::MAX),
        AMQPValue::Double(1e300),
    ];
    for (n, value) in cases.into_iter().enumerate() {
        let id = n.to_string();
        site.client.publish(&site.push("mykey", "x").id(&id).header("x-delay", value.clone()));
        let letter = dead.next();
        assert_eq!(letter.id(), id, "{value:?}");
        assert_eq!(letter.text("x-tidegate-reason").as_deref(), Some("invalid"), "{value:?}");
        let sentence = letter.text("x-tidegate-error").expect("a sentence");
        assert!(sentence.starts_with("x-delay"), "{value:?}: {sentence}");
        assert_eq!(letter.header("x-delay"), Some(&value), "it can be corrected and published again");
    }
    inbox.quiet(Duration::from_millis(200));
}
