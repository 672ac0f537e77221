//! Windows that close early while their members are in the store only: each leaves as one batch with the
//! right cause and due, also across a kill, and when nothing can be delivered at that time.
//!
//! Judges promise 10.

use std::collections::BTreeMap;
use std::time::Duration;
use tidegate_harness::{now_ms, wait_until, Batch, Config, Daemon, Inbox, Push, Site};

/// So long that all members of a window are far.
const WINDOW_MS: i64 = 600_000;
const CUSTOMERS: usize = 200;

/// The event between the requests and the end of their windows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Meanwhile {
    Nothing,
    /// A kill -9 and a restart.
    Kill,
    /// The queue is missing when the windows close, and is declared again later.
    Parked,
}

const ALL: [Meanwhile; 3] = [Meanwhile::Nothing, Meanwhile::Kill, Meanwhile::Parked];

fn config(site: &Site) -> Config {
    let config = site.config().text("defaults.window", &format!("{WINDOW_MS}ms"));
    config.text("defaults.retry.min", "200ms").text("defaults.retry.max", "500ms")
}

/// Item number `n` of each customer.
fn nth<'s>(site: &'s Site<'_>, n: usize) -> impl Iterator<Item = Push> + 's {
    let push = move |customer: usize| {
        let body = format!("\"{}\"", "x".repeat(3_000));
        let push = site.push("shop", body).content_type("application/json");
        push.customer(&format!("c{customer}")).id(&format!("{customer}-{n}"))
    };
    (0..CUSTOMERS).map(push)
}

fn stored(daemon: &Daemon, count: u64) {
    wait_until("all are taken and stored", Duration::from_secs(60), || {
        let state = daemon.state();
        state["items"]["waiting"].as_u64() == Some(count) && state["uncommitted"] == 0
    });
}

/// Expects one batch for each customer, with these of its items, closed early for this cause.
fn each_has_one(inbox: &Inbox, cause: &str, numbers: &[usize], after: i64) {
    let mut seen = BTreeMap::<String, Batch>::new();
    while seen.len() < CUSTOMERS {
        let batch = inbox.batch();
        batch.message.is_not_early();
        let customer = batch.customer.clone().expect("a customer");
        let wanted: Vec<String> = numbers.iter().map(|n| format!("{}-{n}", &customer[1..])).collect();
        assert_eq!(batch.ids(), wanted, "{cause}: the window of {customer} in one");
        assert_eq!(batch.message.text("x-closed-by").as_deref(), Some(cause), "{customer}");
        let (due, last) = (batch.items[0].due, batch.items.iter().map(|item| item.received).max());
        assert!(batch.items.iter().all(|item| item.due == due), "one window, one due");
        let planned = batch.items[0].received + WINDOW_MS;
        assert!(due >= last.expect("an item").max(after), "VERDICT: {customer} is due before it closed");
        assert!(due < planned - WINDOW_MS / 2, "{customer} is due when it closed, and not as planned");
        let before = seen.insert(customer, batch);
        assert!(before.is_none(), "VERDICT: twice: {before:?}");
    }
    inbox.quiet(Duration::from_millis(300));
}

/// Publishes the first items, closes the windows with `close`, and checks the batches.
fn closes(
    cause: &str,
    first: usize,
    numbers: &[usize],
    configured: impl Fn(Config) -> Config,
    close: impl Fn(&Site, &Daemon),
) {
    for meanwhile in ALL {
        let site = Site::new(&format!("far-{cause}-{meanwhile:?}").to_lowercase());
        site.application("shop");
        let mut daemon = site.start(&configured(config(&site)));
        site.client.publish_all((0..first).flat_map(|n| nth(&site, n)));
        stored(&daemon, (first * CUSTOMERS) as u64);
        match meanwhile {
            Meanwhile::Nothing => {}
            Meanwhile::Kill => {
                daemon.kill9();
                daemon.start_again();
                daemon.wait_ready();
            }
            Meanwhile::Parked => site.client.delete_queue(&site.queue("shop")),
        }
        let before = i64::try_from(now_ms()).expect("a date");
        close(&site, &daemon);
        if meanwhile == Meanwhile::Parked {
            wait_until("all are parked", Duration::from_secs(60), || {
                daemon.items("parked") >= (numbers.len() * CUSTOMERS) as u64
            });
        }
        each_has_one(&site.inbox("shop"), cause, numbers, before);
    }
}

#[test]
fn what_closes_by_bytes_leaves_whole_though_it_is_far() {
    // Five of the items fit.
    let configured = |config: Config| config.text("defaults.max_bytes", "16KiB");
    closes("bytes", 5, &[0, 1, 2, 3, 4], configured, |site, _| {
        site.client.publish_all(nth(site, 5));
    });
}

#[test]
fn what_closes_by_quiet_leaves_whole_though_it_is_far() {
    let configured = |config: Config| config.text("defaults.quiet", "15s");
    closes("quiet", 3, &[0, 1, 2], configured, |_, _| {});
}

#[test]
fn what_is_flushed_leaves_whole_though_it_is_far() {
    closes(
        "flush",
        3,
        &[0, 1, 2],
        |config| config,
        |_, daemon| {
            for customer in 0..CUSTOMERS {
                let path = format!("/api/v1/customers/shop/c{customer}/flush");
                assert_eq!(daemon.ask("POST", &path).1["count"], 3);
            }
        },
    );
}

/// An item that cannot leave before its expiry is dead-lettered, and the others leave without it. Therefore
/// the expiry leaves enough time.
#[test]
fn what_closes_by_expiry_leaves_whole_though_it_is_far() {
    for kill in [false, true] {
        let site = Site::new(&format!("far-expiry-{kill}"));
        let inbox = site.inbox("shop");
        let mut daemon = site.start(&config(&site));
        let dead = site.dead_inbox();
        let expiry = |customer: usize| now_ms() as i64 + 12_000 + 20 * customer as i64;
        site.client.publish_all((0..3).flat_map(|n| nth(&site, n)));
        let urgent = nth(&site, 3).enumerate();
        site.client.publish_all(urgent.map(|(n, push)| push.number("x-deliver-before", expiry(n))));
        stored(&daemon, 4 * CUSTOMERS as u64);
        if kill {
            daemon.kill9();
            daemon.start_again();
            daemon.wait_ready();
        }
        let (mut whole, mut without) = (0, 0);
        while whole + without < CUSTOMERS {
            let batch = inbox.batch();
            batch.message.is_not_early();
            assert_eq!(batch.message.text("x-closed-by").as_deref(), Some("expiry"));
            let number = batch.customer.clone().expect("a customer")[1..].to_owned();
            let ids: Vec<String> = (0..batch.items.len()).map(|n| format!("{number}-{n}")).collect();
            assert_eq!(batch.ids(), ids);
            match ids.len() {
                4 => whole += 1,
                3 => without += 1,
                other => panic!("{other} of four are together"),
            }
        }
        println!("{whole} of {CUSTOMERS} left in time, with a kill: {kill}");
        (0..without)
            .for_each(|_| assert_eq!(dead.next().text("x-tidegate-reason").as_deref(), Some("expired")));
        assert!(whole > 0, "none of them left in time");
        inbox.quiet(Duration::from_millis(300));
        dead.quiet(Duration::from_millis(10));
    }
}

/// Single members are cancelled and rescheduled, before and after their window closes, far and near.
#[test]
fn members_are_cancelled_and_rescheduled_before_and_after_the_close() {
    for window in ["600s", "15s"] {
        let site = Site::new(&format!("far-members-{window}"));
        site.application("shop");
        let daemon = site.start(&config(&site).text("defaults.window", window));
        site.client.publish_all((0..5).flat_map(|n| nth(&site, n).take(FIRST)));
        stored(&daemon, 5 * FIRST as u64);
        let change = |action: &str, n: usize| {
            for customer in 0..FIRST {
                let item = format!("/api/v1/items/shop/{customer}-{n}");
                let (code, told) = match action {
                    "cancel" => daemon.ask("DELETE", &item),
                    delay_ms => daemon.ask("POST", &format!("{item}/reschedule?delay={delay_ms}")),
                };
                assert_eq!(code, 200, "{action} of {item}: {told}");
            }
        };
        change("cancel", 0);
        change("3600000", 1);
        site.client.delete_queue(&site.queue("shop"));
        for customer in 0..FIRST {
            let path = format!("/api/v1/customers/shop/c{customer}/flush");
            assert_eq!(daemon.ask("POST", &path).1["count"], 3, "of {customer}, {window}");
        }
        // Until the rescheduled items are read from the store, the daemon does not know that they are not
        // due.
        wait_until("they are parked", Duration::from_secs(60), || daemon.items("parked") >= 3 * FIRST as u64);
        change("cancel", 2);
        change("3600000", 3);
        let inbox = site.inbox("shop");
        for _ in 0..FIRST {
            let batch = inbox.batch();
            let number = batch.customer.clone().expect("a customer")[1..].to_owned();
            assert_eq!(batch.ids(), [format!("{number}-4")], "{window}");
            assert_eq!(batch.message.text("x-closed-by").as_deref(), Some("flush"));
        }
        inbox.quiet(Duration::from_millis(300));
        daemon.holds("waiting", 2 * FIRST as u64);
        change("0", 1);
        change("0", 3);
        let mut left: Vec<String> =
            inbox.items(2 * FIRST, Duration::from_secs(60)).into_iter().map(|item| item.id).collect();
        left.sort_unstable();
        let mut wanted: Vec<String> = (0..FIRST).flat_map(|n| [format!("{n}-1"), format!("{n}-3")]).collect();
        wanted.sort_unstable();
        assert_eq!(left, wanted, "each once");
        daemon.holds("waiting", 0);
    }
}

/// Number of customers whose members are cancelled and rescheduled.
const FIRST: usize = 20;
