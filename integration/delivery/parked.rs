//! Applications that cannot be delivered to: only their items are held back, at low cost and in order.

use std::time::{Duration, Instant};
use tidegate_harness::lapin::types::{AMQPValue, FieldTable};
use tidegate_harness::{alone, best_of_three, percentile, text, wait_until, Daemon, Node, Site};

/// Judges promise 2.
#[test]
fn one_unroutable_among_five_hundred_in_flight() {
    let site = Site::new("unroutable");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config().text("defaults.retry.min", "300ms"));
    let at = |id: &str, application: &str, when: i64| {
        site.push(application, "{}").id(id).number("x-deliver-at", when)
    };
    let when = i64::try_from(tidegate_harness::now_ms()).expect("a date") + 1500;
    let pushes = (0..501).map(|n| {
        let application = if n == 250 { "nobody" } else { "shop" };
        at(&format!("{n}"), application, when)
    });
    site.client.publish_all(pushes);
    let mut ids: Vec<usize> = inbox
        .items(500, Duration::from_secs(10))
        .into_iter()
        .map(|i| i.id.parse().expect("our id"))
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..501).filter(|n| *n != 250).collect::<Vec<_>>(), "each once, none of them retried");
    inbox.quiet(Duration::from_millis(500));
    wait_until("it is parked", Duration::from_secs(10), || daemon.items("parked") == 1);
    let late = site.inbox("nobody");
    let batch = late.batch();
    assert_eq!(batch.ids(), ["250"]);
    assert!(batch.message.number("x-attempt").expect("x-attempt") >= 2);
    late.quiet(Duration::from_millis(500));
    inbox.quiet(Duration::from_millis(10));
}

/// A daemon with sixty items of `slow`, whose queue takes five: the rest is parked.
fn with_a_full_queue(site: &Site<'_>) -> Daemon {
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(5));
    arguments.insert("x-overflow".into(), text("reject-publish"));
    site.application_with("slow", arguments);
    let config = site.config().text("defaults.retry.min", "200ms").text("defaults.retry.max", "400ms");
    let daemon = site.start(&config);
    for n in 0..60 {
        site.client.publish(&site.push("slow", "{}").id(&format!("{n}")));
    }
    wait_until("the rest is parked", Duration::from_secs(10), || daemon.items("parked") == 55);
    site.lies(&site.queue("slow"), 5);
    daemon
}

/// These tests run one at a time, after all others.
mod alone {
    use super::*;

    #[test]
    fn a_parked_application_makes_no_other_late() {
        alone();
        let site = Site::new("full-late");
        let fast = site.inbox("fast");
        let _daemon = with_a_full_queue(&site);
        best_of_three(|round| {
            let mut lateness: Vec<i64> = Vec::new();
            for n in 0..20 {
                site.client.publish(&site.push("fast", "{}").id(&format!("{round}-{n}")).delay(100));
                let received = fast.next();
                received.is_not_early();
                lateness.push(received.lateness_us());
            }
            // The median of twenty: the machine may delay single items.
            lateness.sort_unstable();
            let median = percentile(&lateness, 50.0);
            (median < 300_000).then_some(()).ok_or_else(|| format!("late by {median} us"))
        });
    }
}

/// Judges promise 5.
#[test]
fn a_full_queue_parks_its_application_alone_and_drains_in_order() {
    let site = Site::new("full");
    let fast = site.inbox("fast");
    let _daemon = with_a_full_queue(&site);
    for n in 0..20 {
        site.client.publish(&site.push("fast", "{}").id(&format!("{n}")).delay(100));
        fast.next().is_not_early();
    }
    let inbox = site.client.consume(&site.queue("slow"));
    let mut ids: Vec<usize> =
        inbox.items(60, Duration::from_secs(40)).into_iter().map(|i| i.id.parse().expect("our id")).collect();
    // Items in flight at the first refusal may arrive before the refused one; nothing arrives twice.
    let (first, rest) = ids.split_at(5);
    assert_eq!(first, [0, 1, 2, 3, 4]);
    assert!(rest.windows(2).filter(|w| w[0] > w[1]).count() <= 1, "in order: {rest:?}");
    ids.sort_unstable();
    assert_eq!(ids, (0..60).collect::<Vec<_>>());
    inbox.quiet(Duration::from_millis(500));
}

/// Judges promise 6.
#[test]
fn ten_thousand_parked_cost_one_probe_per_back_off() {
    let Some(node) = Node::lent("ten_thousand_parked") else { return };
    let site = Site::on(&node, "probe");
    let config = site
        .config()
        .text("defaults.retry.min", "1s")
        .text("defaults.retry.max", "1s")
        .text("defaults.format", "passthrough");
    let mut daemon = site.start(&config);
    site.client.publish_all((0..10_000).map(|n| site.push("nobody", "{}").customer("c").id(&format!("{n}"))));
    wait_until("all are parked", Duration::from_secs(30), || daemon.items("parked") == 10_000);
    // Asking the broker takes time too.
    let begun = Instant::now();
    let before = node.returned_total();
    let mut probes = 0;
    wait_until("some probes", Duration::from_secs(5), || {
        probes = node.returned_total() - before;
        probes >= 5
    });
    let seconds = begun.elapsed().as_secs_f64();
    // The first may come at once.
    let most = (seconds * 1.5) as u64 + 1;
    assert!(probes <= most, "{probes} returned in {seconds:.1} s with a back-off of 1 s");
    daemon.kill9();
    daemon.start_again();
    daemon.wait_ready();
    let inbox = site.inbox("nobody");
    let mut ids: Vec<usize> = inbox
        .take(10_000, Duration::from_secs(30))
        .into_iter()
        .map(|m| m.id().parse().expect("our id"))
        .collect();
    let jumps: Vec<&[usize]> = ids.windows(2).filter(|w| w[0] > w[1]).collect();
    assert!(jumps.len() <= 1, "in order: {} jumps back: {:?} ..", jumps.len(), &jumps[..jumps.len().min(40)]);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 10_000);
}

#[test]
fn attempts_are_counted_and_end_in_the_dead_exchange() {
    let site = Site::new("attempts");
    let config = site.config().set("defaults.retry", r#"{ min = "100ms", max = "200ms", attempts = 3 }"#);
    let _daemon = site.start(&config);
    site.client.publish(&site.push("nobody", "{}").id("given-up"));
    let letter = site.dead_inbox().next();
    assert_eq!(letter.id(), "given-up");
    assert_eq!(letter.text("x-tidegate-reason").as_deref(), Some("attempts"));
    assert_eq!(letter.number("x-tidegate-attempts"), Some(3));
    assert!(letter.number("x-due").is_some());
}
