//! Malformed requests are dead-lettered with a reason and a sentence that names the field; others are not
//! affected.

use super::site;
use std::time::Duration;
use tidegate_harness::lapin::types::{AMQPValue, ByteArray, FieldTable};
use tidegate_harness::{now_ms, text, Push, Site, Verdict};

/// Judges promise 8.
#[test]
fn each_malformed_field_is_named_and_nobody_else_is_held_up() {
    let site = site("malformed");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config().text("limits.max_body", "64KiB"));
    let dead = site.dead_inbox();
    let now = i64::try_from(now_ms()).expect("a date");
    let push = || site.push("shop", "{}");
    let long = "x".repeat(201);
    // Without NaN and infinite floats: RabbitMQ closes the connection of a client that publishes one.
    let cases: Vec<(Push, &str, &str)> = vec![
        (push().delay(1000).number("x-deliver-at", now + 50_000), "invalid", "x-delay"),
        (push().number("x-deliver-at", now / 1000), "invalid", "x-deliver-at"),
        (push().delay(3651 * 86_400_000), "invalid", "x-delay"),
        (push().number("x-deliver-at", i64::MAX), "invalid", "x-deliver-at"),
        (push().with("x-deliver-at", "tomorrow"), "invalid", "x-deliver-at"),
        (push().with("x-deliver-at", "2030-01-01T00:00:00"), "invalid", "x-deliver-at"),
        (push().with("x-delay", "soon"), "invalid", "x-delay"),
        (push().header("x-delay", AMQPValue::Boolean(true)), "invalid", "x-delay"),
        (
            push().header("x-opt-delivery-time", AMQPValue::FieldTable(FieldTable::default())),
            "invalid",
            "delivery-time",
        ),
        (push().with("x-deliver-before", "never"), "invalid", "x-deliver-before"),
        (push().customer(&long), "invalid", "x-customer"),
        (push().header("x-customer", AMQPValue::Boolean(false)), "invalid", "x-customer"),
        (
            push().header("x-customer", AMQPValue::ByteArray(ByteArray::from(&[0xff, 0xfe][..]))),
            "invalid",
            "x-customer",
        ),
        (push().with("x-application", &long), "invalid", "x-application"),
        (push().with("x-on-duplicate", "perhaps"), "invalid", "x-on-duplicate"),
        (push().kind("tidegate.dance"), "invalid", "type"),
        (site.push("shop", vec![b'x'; 70_000]), "too_large", "body"),
    ];
    for (n, (push, reason, field)) in cases.iter().enumerate() {
        assert_eq!(site.client.publish(&push.clone().id(&format!("bad-{n}"))), Verdict::Taken);
        assert_eq!(site.client.publish(&site.push("shop", "1").id(&format!("good-{n}"))), Verdict::Taken);
        let letter = dead.next();
        let sentence = letter.text("x-tidegate-error").expect("a sentence");
        let shown = format!("case {n} ({field}): {sentence}");
        assert_eq!(letter.text("x-tidegate-reason").as_deref(), Some(*reason), "{shown}");
        assert!(sentence.contains(field), "{shown}");
        assert_eq!(letter.id(), format!("bad-{n}"), "{shown}");
        assert_eq!(letter.body, push.body, "{shown}");
        assert_eq!(letter.properties.delivery_mode(), &Some(2));
        assert_eq!(inbox.batch().ids(), [format!("good-{n}")], "{shown}");
    }
    inbox.quiet(Duration::from_millis(300));
}

#[test]
fn a_dead_letter_carries_what_it_came_with() {
    let site = site("letter");
    site.application("shop");
    let _daemon = site.start(&site.config());
    let push = site
        .push("shop", "body")
        .customer("c1")
        .with("x-delay", "soon")
        .with("x-own", "kept")
        .id("m1")
        .content_type("text/plain")
        .kind("order");
    site.client.publish(&push);
    let letter = site.dead_inbox().next();
    assert_eq!((letter.exchange.as_str(), letter.key.as_str()), (site.dead().as_str(), "shop"));
    for (name, value) in
        [("x-application", "shop"), ("x-customer", "c1"), ("x-delay", "soon"), ("x-own", "kept")]
    {
        assert_eq!(letter.header(name), Some(&text(value)), "{name}");
    }
    assert_eq!(letter.properties.content_type().as_ref().map(|t| t.as_str()), Some("text/plain"));
    assert_eq!(letter.properties.kind().as_ref().map(|t| t.as_str()), Some("order"));
    assert!(letter.header("x-tidegate-attempts").is_some());
}

/// Judges promise 8.
#[test]
fn an_expiration_of_the_producer_ends_in_the_dead_exchange_and_not_in_nothing() {
    let Some(node) = tidegate_harness::Node::controlled("expiration") else { return };
    let site = Site::on(node, "expiration");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config());
    let with_expiration = |id: &str| {
        let mut push = site.push("shop", "{}").id(id);
        push.properties = push.properties.with_expiration("300".into());
        push
    };
    site.client.publish(&with_expiration("taken").delay(900));
    let batch = inbox.batch();
    assert_eq!(batch.ids(), ["taken"], "once taken, tidegate's own times count");
    assert!(batch.message.properties.expiration().is_none());
    daemon.term();
    assert!(daemon.exit(Duration::from_secs(20)).success());
    site.client.publish(&with_expiration("expired"));
    let letter = site.dead_inbox().next();
    assert_eq!(letter.id(), "expired", "the broker's own dead-lettering");
}

#[test]
fn a_command_that_names_nothing_is_dead_and_says_why() {
    let site = site("command");
    site.application("shop");
    let _daemon = site.start(&site.config());
    let dead = site.dead_inbox();
    let push = |kind: &str| site.push("shop", "{}").kind(kind);
    let cases = [
        (push("tidegate.cancel"), "message_id"),
        (push("tidegate.lookup").customer("c"), "message_id"),
        (push("tidegate.flush").id("x"), "x-customer"),
        (push("tidegate.Cancel").id("x"), "type"),
        (push("tidegate.").id("x"), "type"),
    ];
    for (push, field) in cases {
        site.client.publish(&push);
        let letter = dead.next();
        let sentence = letter.text("x-tidegate-error").expect("a sentence");
        assert_eq!(letter.text("x-tidegate-reason").as_deref(), Some("invalid"), "{sentence}");
        assert!(sentence.contains(field), "{field}: {sentence}");
        assert_eq!(letter.properties.kind(), push.properties.kind(), "it may be sent again as it is");
    }
}
