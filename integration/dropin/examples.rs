//! The examples in the plugin's documentation, and the cases of its test suite.

use super::passthrough;
use crate::requests::{due_of, leave_now, order};
use std::ops::RangeInclusive;
use std::time::Duration;
use tidegate_harness::lapin::types::AMQPValue;
use tidegate_harness::lapin::ExchangeKind;
use tidegate_harness::{now_ms, wait_until, Daemon, Push, Received, Site, Verdict};

/// The delays of the plugin's tests (halved), in this order; the messages must come back sorted.
const SUITE: [i32; 6] = [1000, 200, 600, 400, 200, 800];

/// One message for each delay, with the delay as its body, and its place among them in a header.
fn by_delay(site: &Site<'_>, delays: &[i32], value: impl Fn(i32) -> AMQPValue) -> Vec<Push> {
    let push = |(place, delay): (i64, &i32)| {
        site.push("mykey", delay.to_string()).number("place", place).header("x-delay", value(*delay))
    };
    (0..).zip(delays).map(push).collect()
}

fn place_of(received: &Received) -> i64 {
    received.number("place").expect("its place")
}

fn due(received: &Received) -> i64 {
    received.number("x-due").expect("x-due")
}

fn moment() -> i64 {
    i64::try_from(now_ms()).expect("a date")
}

/// Waits until the daemon has accepted this many in all. Returns a moment after the receipt of the last,
/// which is rounded up.
fn taken(daemon: &Daemon, count: usize) -> i64 {
    let accepted = || daemon.state()["totals"]["accepted"] == count;
    wait_until("all are accepted", Duration::from_secs(10), accepted);
    moment() + 1
}

/// Panics unless these are all messages of [`by_delay`], in the order of their times, and each delay counts
/// from the receipt of its message, which was between these moments. They are close together on an idle
/// machine: then the order is that of the delays.
fn check_order(received: &[Received], delays: &[i32], receipts: RangeInclusive<i64>) {
    received.iter().for_each(Received::is_not_early);
    assert!(received.is_sorted_by_key(due), "{:?}", received.iter().map(due).collect::<Vec<_>>());
    let mut published: Vec<&Received> = received.iter().collect();
    published.sort_by_key(|received| place_of(received));
    assert!(published.iter().map(|received| place_of(received)).eq((0..).take(delays.len())), "each once");
    for (received, delay) in published.into_iter().zip(delays) {
        assert_eq!(received.body_text(), delay.to_string());
        let from = due(received) - i64::from(*delay);
        assert!(receipts.contains(&from), "{delay}: counts from {from}, and came within {receipts:?}");
    }
}

/// README, "Usage", in Java: 5000 ms, then 1000 ms, as a Java `int`; the second message arrives first.
#[test]
fn the_second_message_of_the_example_leaves_first() {
    let site = Site::new("usage");
    let inbox = site.inbox("my-queue");
    let daemon = site.start(&passthrough(&site));
    let publish = |id: &str, body: &str, delay: i32| {
        let from = moment();
        let push = site.push("my-queue", body).id(id).header("x-delay", AMQPValue::LongInt(delay));
        assert_eq!(site.client.publish(&push), Verdict::Taken);
        from + i64::from(delay)
    };
    let first = publish("first", "delayed payload", 60_000);
    let second = publish("second", "more delayed payload", 200);
    let arrives = |body: &str| {
        let received = inbox.next();
        assert_eq!(received.body_text(), body);
        received.is_not_early();
        assert_eq!((received.exchange.as_str(), received.key.as_str()), (site.out().as_str(), "my-queue"));
        due(&received)
    };
    assert!(arrives("more delayed payload") >= second);
    assert!(due_of(&daemon, "my-queue", "first").cast_signed() >= first);
    inbox.quiet(Duration::from_millis(300));
    // Its minute need not pass.
    leave_now(&daemon, "my-queue", "first");
    arrives("delayed payload");
    inbox.quiet(Duration::from_millis(300));
}

/// The example publishes with an empty routing key, which a direct exchange routes like any other. In
/// tidegate the key names the application and must not be empty, so such a producer adds `x-application`.
#[test]
fn an_empty_routing_key_needs_the_header() {
    let site = Site::new("empty-key");
    let inbox = site.inbox("my-queue");
    let _daemon = site.start(&passthrough(&site));
    let example = || site.push("", "delayed payload").header("x-delay", AMQPValue::LongInt(200));
    site.client.publish(&example().with("x-application", "my-queue"));
    let received = inbox.next();
    received.is_not_early();
    assert_eq!((received.key.as_str(), received.body_text().as_str()), ("my-queue", "delayed payload"));
    site.client.publish(&example());
    let letter = site.dead_inbox().next();
    assert_eq!(letter.text("x-tidegate-reason").as_deref(), Some("invalid"));
    assert!(letter.text("x-tidegate-error").expect("a sentence").contains("x-application"));
    assert_eq!(letter.body_text(), "delayed payload");
}

/// README, end of "Usage": without the header there is no delay. The same for 0 (its tests of routing) and
/// negative values.
#[test]
fn without_a_delay_or_with_none_left_it_leaves_at_once() {
    let site = Site::new("at-once");
    let inbox = site.inbox("mykey");
    let _daemon = site.start(&passthrough(&site));
    let delays: [Option<AMQPValue>; 6] = [
        None,
        Some(AMQPValue::LongInt(0)),
        Some(AMQPValue::LongInt(-60_000)),
        Some(AMQPValue::LongLongInt(i64::MIN)),
        // Void and empty values count as absent.
        Some(AMQPValue::Void),
        Some(AMQPValue::LongString("".into())),
    ];
    for (n, delay) in delays.into_iter().enumerate() {
        let push = site.push("mykey", n.to_string());
        let push = match &delay {
            Some(value) => push.header("x-delay", value.clone()),
            None => push,
        };
        let from = moment();
        site.client.publish(&push);
        let received = inbox.next();
        assert_eq!(received.body_text(), n.to_string());
        let due = due(&received);
        assert!((from..from + 25_000).contains(&due), "case {n}: due {} ms after its publish", due - from);
        assert_eq!(received.header("x-delay"), delay.as_ref(), "case {n}");
    }
}

/// The plugin's `delay_order`, and `string_delay_header` with the number as text; then
/// `delayed_messages_count`: waiting messages are counted.
#[test]
fn delays_come_back_sorted_and_are_counted() {
    let site = Site::new("order");
    let inbox = site.inbox("mykey");
    let daemon = site.start(&passthrough(&site));
    let mut count = 0;
    let texts = |delay: i32| AMQPValue::LongString(delay.to_string().into());
    for pushes in [by_delay(&site, &SUITE, AMQPValue::LongInt), by_delay(&site, &SUITE, texts)] {
        let from = moment();
        site.client.publish_all(pushes);
        count += 6;
        let until = taken(&daemon, count);
        check_order(&inbox.take(6, Duration::from_secs(10)), &SUITE, from..=until);
    }
    let later = SUITE.map(|delay| delay + 3000);
    let from = moment();
    // None is to leave before all are counted.
    order(&daemon, "mykey", "pause");
    site.client.publish_all(by_delay(&site, &later, AMQPValue::LongInt));
    let until = taken(&daemon, count + 6);
    wait_until("all six are counted", Duration::from_secs(10), || daemon.items("waiting") == 6);
    order(&daemon, "mykey", "resume");
    check_order(&inbox.take(6, Duration::from_secs(10)), &later, from..=until);
    wait_until("none is left", Duration::from_secs(10), || daemon.items("waiting") == 0);
}

/// The plugin's `node_restart_before_delay_expires` and `node_restart_after_delay_expires`: some delays end
/// while the node is down, some after. Here tidegate holds the messages, so tidegate is killed.
#[test]
fn a_kill_between_publish_and_delivery_loses_none() {
    let site = Site::new("restart");
    let inbox = site.inbox("mykey");
    let mut daemon = site.start(&passthrough(&site));
    let delays = [3500, 5500, 2500, 3000, 6500, 4000, 5000];
    let from = moment();
    // None is to leave before the kill.
    order(&daemon, "mykey", "pause");
    site.client.publish_all(by_delay(&site, &delays, AMQPValue::LongInt));
    let stored = || {
        let state = daemon.state();
        state["items"]["waiting"] == 7 && state["uncommitted"] == 0
    };
    wait_until("all seven are stored", Duration::from_secs(10), stored);
    let until = taken(&daemon, 7);
    daemon.kill9();
    inbox.quiet(Duration::from_millis(2800));
    daemon.start_again();
    daemon.wait_ready();
    order(&daemon, "mykey", "resume");
    // Unacked messages are delivered again and their delay starts anew; the stored copies are earlier.
    let mut first: Vec<Received> = Vec::new();
    while first.len() < 7 {
        let received = inbox.next();
        received.is_not_early();
        if !first.iter().any(|before| place_of(before) == place_of(&received)) {
            first.push(received);
        }
    }
    check_order(&first, &delays, from..=until);
}

/// The plugin's `routing_direct`: two messages with the bound key arrive at every queue bound with it. A
/// message without a bound queue is dropped by the plugin; tidegate keeps it until there is a queue.
#[test]
fn the_routing_key_finds_the_queues_bound_with_it_and_the_rest_is_kept() {
    let site = Site::new("direct");
    let inbox = site.inbox("mykey");
    let second = site.queue("second");
    site.client.queue(&second, Default::default());
    site.client.bind(&second, &site.out(), "mykey");
    let second = site.client.consume(&second);
    let daemon = site.start(&passthrough(&site).text("defaults.retry.max", "1s"));
    for (id, key) in [("1", "mykey"), ("2", "noroute"), ("3", "mykey")] {
        let push = site.push(key, "x").id(id).header("x-delay", AMQPValue::LongInt(100));
        assert_eq!(site.client.publish(&push), Verdict::Taken);
    }
    for queue in [&inbox, &second] {
        let received = queue.take(2, Duration::from_secs(10));
        assert_eq!(received.iter().map(Received::id).collect::<Vec<_>>(), ["1", "3"]);
        assert!(received.iter().all(|r| r.key == "mykey"));
    }
    wait_until("the other one is parked", Duration::from_secs(10), || daemon.items("parked") == 1);
    let late = site.inbox("noroute").next();
    assert_eq!((late.id().as_str(), late.key.as_str()), ("2", "noroute"));
    inbox.quiet(Duration::from_millis(100));
}

/// The plugin's `e2e_nodelay` and `e2e_delay`: another exchange in front. A producer can even keep the name
/// of its exchange: the ingest queue is bound to it, and the routing key is kept.
#[test]
fn an_exchange_of_the_producers_own_may_stand_in_front() {
    let site = Site::new("front");
    let inbox = site.inbox("mykey");
    let daemon = site.start(&passthrough(&site));
    let mut count = 0;
    let front = format!("{}.front", site.ingest());
    site.client.exchange(&front, ExchangeKind::Direct);
    site.client.bind(&site.ingest_queue(), &front, "mykey");
    for delays in [&[0][..], &SUITE[..]] {
        let mut pushes = by_delay(&site, delays, AMQPValue::LongInt);
        for push in &mut pushes {
            push.exchange.clone_from(&front);
        }
        let from = moment();
        site.client.publish_all(pushes);
        count += delays.len();
        let until = taken(&daemon, count);
        check_order(&inbox.take(delays.len(), Duration::from_secs(10)), delays, from..=until);
    }
}
