//! Application, customer, own time, expiry and id as headers and properties.

use super::site;
use crate::requests::{due_of, leave_now};
use std::time::Duration;
use tidegate_harness::lapin::types::{AMQPValue, ByteArray, DecimalValue};
use tidegate_harness::{now_ms, now_us, wait_until, Push, Received, Verdict};

#[test]
fn application_comes_from_the_header_or_the_routing_key() {
    let site = site("application");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config());
    let by_key = site.push("shop", "1").id("by-key");
    let by_header = site.push("elsewhere", "2").with("x-application", "shop").id("by-header");
    let by_default = Push::new("", &site.ingest_queue(), "3").with("x-application", "shop").id("by-default");
    for push in [by_key, by_header, by_default] {
        assert_eq!(site.client.publish(&push), Verdict::Taken);
        let batch = inbox.batch();
        assert_eq!((batch.application.as_str(), batch.customer.as_deref()), ("shop", None));
        assert_eq!(batch.ids(), [push.properties.message_id().as_ref().map_or("", |i| i.as_str())]);
        assert!(batch.message.header("x-customer").is_none(), "left out where there is none");
    }
    // With the default exchange the routing key is the queue's name, which names no application.
    site.client.publish(&Push::new("", &site.ingest_queue(), "4"));
    let dead = site.dead_inbox().next();
    assert_eq!(dead.text("x-tidegate-reason").as_deref(), Some("invalid"));
    assert!(dead.text("x-tidegate-error").expect("a sentence").contains("application"));
}

#[test]
fn customer_is_text_bytes_or_an_integer() {
    let site = site("customer");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config());
    let long = "x".repeat(200);
    let cases = [
        (AMQPValue::LongString("c\u{e4}".into()), "c\u{e4}"),
        (AMQPValue::ByteArray(ByteArray::from(&b"bytes"[..])), "bytes"),
        (AMQPValue::LongLongInt(42), "42"),
        (AMQPValue::ShortShortInt(-7), "-7"),
        (AMQPValue::LongString(long.as_str().into()), long.as_str()),
    ];
    for (value, expected) in cases {
        site.client.publish(&site.push("shop", "{}").header("x-customer", value));
        let batch = inbox.batch();
        assert_eq!(batch.customer.as_deref(), Some(expected));
        assert_eq!(batch.message.text("x-customer").as_deref(), Some(expected));
    }
    site.client.publish(&site.push("shop", "{}").customer(""));
    assert_eq!(inbox.batch().customer, None, "empty is absent");
}

/// Judges promise 4.
#[test]
fn every_form_of_an_own_time_is_kept_and_never_early() {
    let site = site("own-time");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config());
    // Far enough ahead that each request is taken before it: a past time counts as now.
    let at = i64::try_from(now_ms() + 15_000).expect("a date");
    let zoned = format!("{}.{:03}", civil(at / 1000), at % 1000);
    let delays = [
        AMQPValue::LongLongInt(15_000),
        AMQPValue::LongInt(15_000),
        AMQPValue::LongUInt(15_000),
        AMQPValue::ShortInt(15_000),
        AMQPValue::Float(14_999.5),
        AMQPValue::Double(14_999.01),
        AMQPValue::DecimalValue(DecimalValue { scale: 1, value: 150_000 }),
        AMQPValue::LongString("15000".into()),
    ];
    let mut pushes: Vec<Push> = Vec::new();
    for name in ["x-delay", "x-opt-delivery-delay"] {
        pushes.extend(delays.iter().map(|d| site.push("shop", "{}").header(name, d.clone())));
    }
    for name in ["x-deliver-at", "x-opt-delivery-time"] {
        pushes.push(site.push("shop", "{}").number(name, at));
        pushes.push(site.push("shop", "{}").header(name, AMQPValue::Double(at as f64)));
        pushes.push(site.push("shop", "{}").with(name, &at.to_string()));
        pushes.push(site.push("shop", "{}").with(name, &format!("{zoned}Z")));
        pushes.push(site.push("shop", "{}").with(name, &format!("{zoned}+00:00")));
    }
    let absolute = pushes.len() - 10;
    for (n, push) in pushes.iter_mut().enumerate() {
        *push = push.clone().id(&format!("{n}"));
    }
    let count = site.client.publish_all(pushes);
    for received in inbox.take(count, Duration::from_secs(10)) {
        received.is_not_early();
        let batch = received.batch();
        assert_eq!(batch.items.len(), 1, "without a customer it leaves alone");
        let item = &batch.items[0];
        let n: usize = item.id.parse().expect("our id");
        if n >= absolute {
            assert_eq!(item.due, at, "request {n}");
        } else {
            assert_eq!(item.due - item.received, 15_000, "request {n}: fractions of a ms round up");
        }
    }
}

/// Seconds since the epoch as `YYYY-MM-DDTHH:MM:SS` in UTC.
fn civil(seconds: i64) -> String {
    let (mut days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let leap = |y: i64| (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
    let mut year = 1970;
    while days >= 365 + i64::from(leap(year)) {
        days -= 365 + i64::from(leap(year));
        year += 1;
    }
    let february = 28 + i64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}", days + 1)
}

#[test]
fn an_amqp_timestamp_is_in_seconds() {
    let site = site("timestamp");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config());
    // Far enough ahead that the request is taken before it: a past time counts as now.
    let at = now_ms() / 1000 + 16;
    site.client.publish(&site.push("shop", "{}").header("x-deliver-at", AMQPValue::Timestamp(at)));
    let received = inbox.next();
    received.is_not_early();
    assert_eq!(received.batch().items[0].due, i64::try_from(at * 1000).expect("a date"));
}

#[test]
fn past_and_negative_times_mean_now() {
    let site = site("past");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config());
    let hour_ago = i64::try_from(now_ms()).expect("a date") - 3_600_000;
    site.client.publish_all([
        site.push("shop", "{}").number("x-deliver-at", hour_ago),
        site.push("shop", "{}").delay(-5),
        site.push("shop", "{}").delay(0),
        site.push("shop", "{}").with("x-deliver-at", "2001-01-01T00:00:00+02:00"),
    ]);
    inbox.take(4, Duration::from_secs(10));
}

#[test]
fn far_times_are_64_bit_and_wait() {
    let site = site("far");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config());
    for (id, delay) in
        [("2^31 s", 1_i64 << 31), ("2^32 ms", (1_i64 << 32) + 10), ("9 years", 283_824_000_000)]
    {
        assert_eq!(site.client.publish(&site.push("shop", "{}").delay(delay).id(id)), Verdict::Taken);
    }
    wait_until("the far items are held", Duration::from_secs(10), || daemon.items("waiting") == 3);
    inbox.quiet(Duration::from_millis(300));
    site.lies(&site.dead(), 0);
}

#[test]
fn the_same_time_twice_is_accepted() {
    let site = site("twice");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config());
    site.client.publish(&site.push("shop", "{}").delay(300).with("x-opt-delivery-delay", "300"));
    inbox.next().is_not_early();
}

#[test]
fn an_item_that_cannot_leave_before_its_expiry_is_dead() {
    let site = site("expiry");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config().text("defaults.window", "20s"));
    let dead = site.dead_inbox();
    let within = |ms: i64| i64::try_from(now_ms()).expect("a date") + ms;
    let late = site.push("shop", "{}").id("late").delay(5000).number("x-deliver-before", within(3000));
    site.client.publish(&late);
    let mut letters: Vec<Received> = Vec::new();
    // A window closes 100 ms before the expiry. On a machine that is too busy just then the item is dead, so
    // another one is tried. All of them would be dead if the window closed at the expiry.
    let left = (0..20).any(|round| {
        let (id, soon) = (format!("window {round}"), within(3000));
        let push = site.push("shop", "{}").id(&id).customer("c").number("x-deliver-before", soon);
        site.client.publish(&push);
        let mut left = None;
        wait_until("its window has closed", Duration::from_secs(20), || {
            letters.extend(dead.poll(Duration::ZERO));
            left = inbox.poll(Duration::from_millis(50));
            left.is_some() || letters.iter().any(|letter| letter.id() == id)
        });
        let Some(left) = left else {
            let letter = letters.iter().find(|letter| letter.id() == id).expect("its letter");
            assert_eq!(letter.text("x-tidegate-reason").as_deref(), Some("expired"));
            return false;
        };
        assert_eq!(left.text("x-closed-by").as_deref(), Some("expiry"));
        let batch = left.batch();
        assert_eq!(batch.ids(), [id.as_str()]);
        // It left when it was due, otherwise it would be dead; the time until its arrival here depends on the
        // machine.
        assert!(batch.items[0].due < soon, "due {}, to be delivered before {soon}", batch.items[0].due);
        true
    });
    assert!(left, "a window closes before its expiry");
    wait_until("the other one is dead", Duration::from_secs(10), || {
        letters.extend(dead.poll(Duration::from_millis(50)));
        letters.iter().any(|letter| letter.id() == "late")
    });
    let letter = letters.iter().find(|letter| letter.id() == "late").expect("its letter");
    assert_eq!(letter.text("x-tidegate-reason").as_deref(), Some("expired"));
}

/// Judges promise 9.
#[test]
fn an_assigned_id_is_there_and_unique() {
    let site = site("assigned");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config());
    site.client.publish_all((0..50).map(|_| site.push("shop", "{}").customer("c")));
    let mut ids: Vec<String> = inbox.items(50, Duration::from_secs(10)).into_iter().map(|i| i.id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 50);
    assert!(ids.iter().all(|id| !id.is_empty()));
}

#[test]
fn what_waited_in_the_queue_is_not_late_by_that_where_delays_count_from_the_timestamp() {
    let site = site("delay-from");
    let inbox = site.inbox("shop");
    let config = site.config().text("applications.shop.delay_from", "timestamp");
    let mut daemon = site.start(&config);
    daemon.kill9();
    // Published an hour ago, with a delay that ends in an hour.
    let made = now_ms() / 1_000 - 3_600;
    let mut push = site.push("shop", "1").id("waited").delay(7_200_000);
    push.properties = push.properties.with_timestamp(made);
    assert_eq!(site.client.publish(&push), Verdict::Taken);
    daemon.start_again();
    daemon.wait_ready();
    assert_eq!(due_of(&daemon, "shop", "waited"), made * 1_000 + 7_200_000);
    leave_now(&daemon, "shop", "waited");
    assert_eq!(inbox.batch().ids(), ["waited"]);
}

/// Measured with the producer's clock in microseconds, taken before it publishes: anything before that time
/// plus the delay is early.
/// Judges promise 4.
#[test]
fn no_delay_is_over_before_its_time_by_the_producers_clock() {
    const DELAY_MS: i64 = 20;
    let site = site("microseconds");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config().text("defaults.format", "passthrough"));
    for number in 0..300 {
        let before = now_us();
        let id = format!("{number}");
        assert_eq!(site.client.publish(&site.push("shop", "1").id(&id).delay(DELAY_MS)), Verdict::Taken);
        let got = inbox.next();
        got.is_not_early();
        let due = u64::try_from(got.number("x-due").expect("x-due")).expect("a date") * 1_000;
        let earliest = before + DELAY_MS.unsigned_abs() * 1_000;
        assert!(due >= earliest, "{id}: due {due}, sent and delayed until {earliest}");
    }
}

#[test]
fn a_note_of_arrival_in_seconds_is_refused() {
    let site = site("noted-in-seconds");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config().text("applications.shop.delay_from", "timestamp"));
    let dead = site.dead_inbox();
    for (id, noted) in [("none", 0), ("seconds", i64::try_from(now_ms() / 1_000).expect("a date"))] {
        let push = site.push("shop", "1").id(id).delay(3_600_000).number("timestamp_in_ms", noted);
        site.client.publish(&push);
        let letter = dead.next();
        assert_eq!(
            (letter.id().as_str(), letter.text("x-tidegate-reason").as_deref()),
            (id, Some("invalid"))
        );
        let sentence = letter.text("x-tidegate-error").expect("a sentence");
        assert!(sentence.starts_with("timestamp_in_ms, which delays count from, is too small"), "{sentence}");
    }
    // Where delays do not count from it, its value does not matter.
    site.client.publish(&site.push("shop", "1").id("at-once").number("timestamp_in_ms", 0));
    assert_eq!(inbox.batch().ids(), ["at-once"]);
}
