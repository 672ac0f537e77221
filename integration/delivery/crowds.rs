//! Many items due at one instant, many customers, long waits, and windows across a kill.

use super::{held, order};
use std::collections::BTreeSet;
use std::time::Duration;
use tidegate_harness::{now_ms, wait_until, Client, Node, Site};

#[test]
fn thousands_due_at_one_instant_while_publishing_goes_on() {
    const COUNT: usize = 10_000;
    let site = Site::new("instant");
    let (shop, mail) = (site.inbox("shop"), site.inbox("mail"));
    let _daemon = site.start(&site.config());
    let due = now_ms() + 5000;
    let at = i64::try_from(due).expect("a date");
    // Half of them without a customer, half in batches by customer.
    site.client.publish_all((0..COUNT).map(|n| {
        let push = site.push("shop", "1").id(&format!("{n}")).number("x-deliver-at", at);
        if n % 2 == 0 {
            push
        } else {
            push.customer(&format!("c{}", n % 100))
        }
    }));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let producer = Client::connect(site.node.uri());
            for n in 0..40 {
                while now_ms() < due - 500 + n * 25 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                producer.publish_all(
                    (0..25).map(|k| site.push("mail", "1").id(&format!("{n}-{k}")).delay(k * 10)),
                );
            }
        });
        let mut seen = BTreeSet::new();
        let mut items = 0;
        while items < COUNT {
            let received = shop.next();
            received.is_not_early();
            let batch = received.batch();
            items += batch.items.len();
            seen.extend(batch.items.into_iter().map(|item| item.id));
        }
        assert_eq!((items, seen.len()), (COUNT, COUNT), "each once");
    });
    let others: BTreeSet<String> =
        mail.items(1000, Duration::from_secs(10)).into_iter().map(|item| item.id).collect();
    assert_eq!(others.len(), 1000);
    shop.quiet(Duration::from_millis(300));
    mail.quiet(Duration::from_millis(10));
}

/// Judges promise 10.
#[test]
fn a_window_ends_after_a_kill_and_within_its_time() {
    let site = Site::new("window-kill");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config().text("defaults.window", "6s"));
    // No window's items leave before the kill.
    order(&daemon, "pause");
    let start = now_ms();
    let of = |customer: &str, n: u32| site.push("shop", "1").customer(customer).id(&format!("{customer}{n}"));
    site.client.publish_all((0..30).map(|n| of(["a", "b", "c"][n % 3], n as u32)));
    held(&daemon, 30);
    daemon.kill9();
    daemon.start_again();
    daemon.wait_ready();
    let back = now_ms();
    order(&daemon, "resume");
    site.client.publish(&of("a", 99));
    let mut seen = BTreeSet::new();
    while seen.len() < 31 {
        let batch = inbox.batch();
        batch.message.is_not_early();
        let due = u64::try_from(batch.items[0].due).expect("a date");
        assert!(due >= start + 6000, "VERDICT: a kill closes no window: after {} ms", due - start);
        // The last item may have arrived after the others had left, in a separate window.
        let late = due > back + 6000 && batch.ids() != ["a99"];
        assert!(!late, "at most a window after the restart: {} ms", due - back);
        assert_eq!(batch.message.text("x-closed-by").as_deref(), Some("time"));
        let customer = batch.customer.clone().expect("a customer");
        assert!(batch.items.iter().all(|item| item.id.starts_with(&customer)), "{:?}", batch.ids());
        for item in batch.items {
            assert!(seen.insert(item.id.clone()), "{} twice", item.id);
        }
    }
}

/// RabbitMQ closes the channel of a consumer that leaves a delivery unacked for half an hour.
#[test]
fn what_waits_for_long_is_not_left_unacked() {
    let Some(node) = Node::controlled("what_waits_for_long") else { return };
    let site = Site::on(node, "unacked");
    site.application("shop");
    let daemon = site.start(&site.config().text("defaults.window", "2h"));
    site.client.publish_all([
        site.push("shop", "1").id("timed").delay(7_200_000),
        site.push("shop", "1").id("windowed").customer("c"),
        site.push("nobody", "1").id("parked"),
    ]);
    wait_until("all are held", Duration::from_secs(10), || {
        daemon.items("waiting") + daemon.items("parked") == 3 && daemon.items("parked") == 1
    });
    wait_until("the broker has none of them left", Duration::from_secs(10), || {
        node.messages(&site.ingest_queue()) == Some(0)
    });
}

#[test]
fn more_customers_than_windows_are_allowed() {
    let site = Site::new("customers");
    let inbox = site.inbox("shop");
    let config = site
        .config()
        .set("limits.customers", "50")
        .text("defaults.on_full", "flush-early")
        .text("defaults.window", "3s");
    let daemon = site.start(&config);
    site.client
        .publish_all((0..400).map(|n| site.push("shop", "1").customer(&format!("c{n}")).id(&format!("{n}"))));
    let mut seen = BTreeSet::new();
    let mut early = 0;
    while seen.len() < 400 {
        let windows = daemon.items("windows");
        assert!(windows <= 50, "{windows} open windows");
        let batch = inbox.batch();
        // Judged by the cause, which does not depend on the speed of the publisher: a window that ends
        // normally is closed by time.
        early += u32::from(batch.message.text("x-closed-by").as_deref() == Some("flush"));
        assert_eq!(batch.items.len(), 1, "a customer each");
        assert!(seen.insert(batch.items[0].id.clone()), "twice");
    }
    assert!(early >= 300, "room is made by those that have waited longest: {early} have left sooner");
}
