//! Cleaning, bounds, and the stored form against the library's own generator and parser.

use super::super::properties::{parse_table, Basic, MAX_DEPTH};
use super::*;
use lapin::protocol::basic::{gen_properties, parse_properties};
use lapin::types::{FieldArray, ShortString};

/// As the library writes them.
fn library_bytes(properties: &BasicProperties) -> Vec<u8> {
    gen_properties(properties)(Vec::new().into()).unwrap().write
}

/// The properties that an output with these stored bytes would carry.
fn outgoing(bytes: &[u8]) -> BasicProperties {
    let (basic, table) = Basic::parse(bytes).unwrap();
    basic.to_amqp(parse_table(table))
}

fn short(text: &str) -> ShortString {
    text.into()
}

fn full() -> BasicProperties {
    BasicProperties::default()
        .with_content_type(short("text/plain"))
        .with_content_encoding(short("gzip"))
        .with_headers(table(&[
            ("array", AMQPValue::FieldArray(vec![number(1), text("two"), AMQPValue::Void].into())),
            ("table", AMQPValue::FieldTable(table(&[("deep", AMQPValue::Boolean(true))]))),
            ("i8", AMQPValue::ShortShortInt(-1)),
            ("u8", AMQPValue::ShortShortUInt(255)),
            ("i16", AMQPValue::ShortInt(-2)),
            ("u16", AMQPValue::ShortUInt(65_535)),
            ("i32", AMQPValue::LongInt(-3)),
            ("u32", AMQPValue::LongUInt(4)),
            ("i64", number(i64::MIN)),
            ("f32", AMQPValue::Float(1.5)),
            ("f64", AMQPValue::Double(-1.5)),
            ("decimal", decimal(2, -150)),
            ("time", AMQPValue::Timestamp(7)),
            ("bytes", AMQPValue::ByteArray(vec![0, 255].into())),
            ("latin", AMQPValue::LongString(vec![0xff].into())),
        ]))
        .with_priority(3)
        .with_correlation_id(short("corr"))
        .with_reply_to(short("reply"))
        .with_message_id(short("id"))
        .with_timestamp(1_700_000_000)
        .with_type(short("kind"))
        .with_app_id(short("app"))
        .with_cluster_id(short("cluster"))
}

/// By AMQP 1.0 a request may come with this address, which no channel of the publisher may use.
/// Excluded: an item that the broker refuses for ever, as its dead letter too; an address that is left out.
#[test]
fn the_name_of_direct_replies_is_no_address_and_an_address_of_one_is() {
    for (address, leaves) in [
        ("amq.rabbitmq.reply-to", false),
        ("amq.rabbitmq.reply-to.g1h2AAA", true),
        ("amq.rabbitmq.reply-t", true),
    ] {
        let came = item(take(full().with_reply_to(short(address)), b"x"));
        let sent = outgoing(&came.content.properties).reply_to().clone();
        assert_eq!(sent, leaves.then(|| short(address)), "{address}");
    }
}

#[test]
fn everything_else_is_kept() {
    let item = item(take(full(), b"x"));
    assert_eq!(item.content.properties, library_bytes(&full()));
    assert_eq!(item.content.properties.capacity(), item.content.properties.len());
    assert_eq!(outgoing(&item.content.properties), full().with_delivery_mode(2));
    let (rest, parsed) = parse_properties(item.content.properties.as_slice()).unwrap();
    assert_eq!((rest, parsed), (&b""[..], full()));
}

#[test]
fn what_is_never_copied() {
    let named = [
        ("CC", AMQPValue::FieldArray(vec![text("elsewhere")].into())),
        ("BCC", text("elsewhere")),
        ("x-delivery-count", number(3)),
        ("x-acquired-count", number(3)),
        ("x-user-id", text("forged")),
        ("cc", text("kept")),
        ("x-death", AMQPValue::FieldArray(FieldArray::default())),
    ];
    let properties =
        with(&named).with_user_id(short("someone")).with_expiration(short("5")).with_delivery_mode(1);
    let clean =
        with(&[("x-user-id", text("someone")), named[5].clone(), named[6].clone()]).with_delivery_mode(2);
    assert_eq!(outgoing(&item(take(properties.clone(), b"x")).content.properties), clean);
    // A rejected one is cleaned as well.
    let refused = rejected(take(properties.with_type(short("tidegate.x")), b"x"));
    assert_eq!(outgoing(&refused.content.properties), clean.with_type(short("tidegate.x")));
    // Nothing left: no table.
    let bare = item(take(with(&named[..2]), b"x")).content;
    assert_eq!(bare.properties, [0, 0]);
}

#[test]
fn short_strings_become_long_ones_at_any_level() {
    let inner = |value| table(&[("a", AMQPValue::FieldArray(vec![value].into()))]);
    let given = inner(AMQPValue::FieldTable(table(&[("b", AMQPValue::ShortString("s".into()))])));
    let stored = item(take(BasicProperties::default().with_headers(given), b"x")).content;
    let expected = inner(AMQPValue::FieldTable(table(&[("b", text("s"))])));
    assert_eq!(outgoing(&stored.properties).headers().as_ref(), Some(&expected));
}

fn nested(depth: usize) -> AMQPValue {
    (0..depth).fold(number(1), |value, level| match level % 2 {
        0 => {
            let mut table = FieldTable::default();
            table.insert("n".into(), value);
            AMQPValue::FieldTable(table)
        }
        _ => AMQPValue::FieldArray(vec![value].into()),
    })
}

#[test]
fn depth_is_bounded() {
    let deepest = with(&[("n", nested(MAX_DEPTH))]);
    assert_eq!(
        outgoing(&item(take(deepest.clone(), b"x")).content.properties),
        deepest.with_delivery_mode(2)
    );

    for depth in [MAX_DEPTH + 1, 1000, 26_000] {
        let properties = with(&[("n", nested(depth)), ("keep", text("me")), ("x-customer", number(42))])
            .with_message_id(short("id"));
        let refused = rejected(take(properties, b"x"));
        assert!(refused.dead.error.contains("nested"));
        assert_eq!(refused.customer.as_deref(), Some("42"));
        let expected = with(&[("keep", text("me")), ("x-customer", number(42))]).with_message_id(short("id"));
        assert_eq!(outgoing(&refused.content.properties), expected.with_delivery_mode(2));
    }
}

#[test]
fn a_dead_letter_fits_a_frame() {
    // Above the limit of a request, yet it can travel whole.
    let headers =
        [("a", text(&"h".repeat(50_000))), ("b", text(&"h".repeat(50_000))), ("x-delay", number(1))];
    let whole = rejected(take(with(&headers), b"x"));
    assert_eq!(outgoing(&whole.content.properties), with(&headers).with_delivery_mode(2));
    // It cannot: as much as fits.
    let headers = [("a", text(&"h".repeat(130_000))), ("b", text("kept")), ("c", number(1))];
    let cut = rejected(take(with(&headers), b"x"));
    assert_eq!(outgoing(&cut.content.properties), with(&headers[1..]).with_delivery_mode(2));
}

#[test]
fn damaged_bytes_are_noticed() {
    let whole = item(take(full(), b"x")).content.properties.clone();
    for length in 0..whole.len() {
        assert_eq!(Basic::parse(&whole[..length]), None, "{length}");
    }
    assert_eq!(Basic::parse(&[0x80, 0, 1, 0xff]), None);
    assert_eq!(parse_table(&[0, 0, 0, 9, 1]), FieldTable::default());
}

#[test]
fn every_property_the_library_writes_is_skipped_or_read() {
    let foreign = full().with_delivery_mode(1).with_expiration(short("9")).with_user_id(short("u"));
    assert_eq!(outgoing(&library_bytes(&foreign)), full().with_delivery_mode(2));
}
