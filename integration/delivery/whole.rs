//! Windows leave whole: one message for each, or full messages, for any number of windows and with little
//! memory.
//!
//! Judges promise 10.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};
use tidegate_harness::{
    alone, best_of_three, bounded, is_optimised, now_ms, percentile, processor_share, say, wait_until,
    Config, Daemon, Inbox, Raw, RawProperties, Site,
};

/// Length of the windows, which all end together, ms.
const WINDOW_MS: u64 = 20_000;

/// Number of customers, and of items for each.
type Shape = (usize, usize);

/// A batch: its customer, its due, and the numbers of its items.
type Left = (String, i64, Vec<usize>);

/// Memory for about 11,000 items.
fn little(site: &Site) -> Config {
    site.config().text("limits.memory", "16MiB")
}

/// An unoptimised binary takes several times as long, so it gets the second shape: 1.8 to 3.7 times what
/// memory holds.
fn of_size(whole: Shape, part: Shape) -> Shape {
    if is_optimised() {
        whole
    } else {
        part
    }
}

/// Aligned windows, which end together.
fn together(config: Config, window_ms: u64) -> Config {
    config.text("defaults.window", &format!("{window_ms}ms")).set("defaults.align", "true")
}

/// Waits for the first fifth of a window, so that there is time to publish before its end.
fn begin(window_ms: u64) {
    let limit = Duration::from_millis(window_ms + 5_000);
    wait_until("a window begins", limit, || now_ms() % window_ms < window_ms / 5);
}

/// Item number `n` of a customer.
fn of_customer(customer: usize, n: usize) -> RawProperties {
    let name = customer.to_string();
    let mut headers = b"\x0ax-customerS".to_vec();
    headers.extend_from_slice(&(name.len() as u32).to_be_bytes());
    headers.extend_from_slice(name.as_bytes());
    let properties = RawProperties::default().content_type(b"application/json").headers(&headers);
    properties.persistent().message_id(format!("{customer}-{n}").as_bytes())
}

/// Publishes items in turns, one for each customer, as fast as the broker takes them.
fn put(raw: &mut Raw, site: &Site, customers: Range<usize>, numbers: Range<usize>) {
    for n in numbers {
        for customer in customers.clone() {
            raw.put(&site.ingest(), b"shop", &of_customer(customer, n), n.to_string().as_bytes());
            if customer % 500 == 0 {
                raw.settle(1_500);
            }
        }
    }
}

/// Waits until all are stored. Requests that are received and wait for room or for an answer of the store would be
/// delivered again after a kill: the restarted daemon would put them into another batch of the same window.
fn stored(daemon: &Daemon, items: usize) {
    wait_until("all are taken and stored", Duration::from_secs(600), || {
        let state = daemon.state();
        state["totals"]["accepted"].as_u64() >= Some(items as u64) && state["uncommitted"] == 0
    });
}

/// Publishes items in turns, and waits until they are stored.
fn publish(site: &Site, daemon: &Daemon, (customers, from, until): (usize, usize, usize)) {
    let mut raw = Raw::connect(site.node);
    put(&mut raw, site, 0..customers, from..until);
    raw.settle(0);
    stored(daemon, customers * until);
}

/// Receives all items, each once, and in order within each batch.
fn take(inbox: &Inbox, (customers, each): Shape) -> Vec<Left> {
    let (mut left, mut seen) = (Vec::new(), BTreeSet::new());
    while seen.len() < customers * each {
        let batch = inbox.batch();
        batch.message.is_not_early();
        let number = |id: &&str| id.split_once('-').and_then(|(_, n)| n.parse().ok()).expect("an id of ours");
        let numbers: Vec<usize> = batch.ids().iter().map(number).collect();
        assert!(numbers.windows(2).all(|two| two[0] < two[1]), "VERDICT: in order: {numbers:?}");
        left.push((batch.customer.clone().expect("a customer"), batch.items[0].due, numbers));
        for item in batch.items {
            assert!(seen.insert(item.id.clone()), "VERDICT: {} twice", item.id);
        }
    }
    left
}

fn sizes(left: &[Left]) -> BTreeMap<usize, usize> {
    let mut sizes = BTreeMap::new();
    left.iter().for_each(|(_, _, numbers)| *sizes.entry(numbers.len()).or_default() += 1);
    sizes
}

/// Expects one batch for each window. If publishing was so slow that it continued into the next window, a
/// customer has two.
fn each_is_one(left: &[Left]) {
    let windows: BTreeSet<(&str, i64)> = left.iter().map(|(name, due, _)| (name.as_str(), *due)).collect();
    assert_eq!(windows.len(), left.len(), "batches of which size: {:?}", sizes(left));
}

#[test]
fn windows_leave_whole_after_a_kill_before_they_end() {
    bounded(Duration::from_secs(600));
    // A batch in flight at a kill may arrive twice, so everything must be published before windows end.
    let in_time = [WINDOW_MS, 3 * WINDOW_MS, 9 * WINDOW_MS].into_iter().any(whole_after_a_kill);
    assert!(in_time, "publishing took longer than {} ms", 9 * WINDOW_MS);
}

/// Returns false if windows ended before everything was published.
fn whole_after_a_kill(window_ms: u64) -> bool {
    let site = Site::new(&format!("whole-kill-{window_ms}"));
    let shop = site.inbox("shop");
    let mut daemon = site.start(&together(little(&site), window_ms));
    begin(window_ms);
    let end = now_ms() / window_ms + 1;
    let (customers, each) = of_size((20_000, 3), (8_000, 3));
    publish(&site, &daemon, (customers, 0, each));
    daemon.kill9();
    if now_ms() / window_ms >= end {
        return false;
    }
    daemon.start_again();
    daemon.wait_ready();
    each_is_one(&take(&shop, (customers, each)));
    true
}

#[test]
fn windows_that_close_by_count_leave_whole_though_most_of_them_is_far() {
    let site = Site::new("whole-count");
    let shop = site.inbox("shop");
    let config = little(&site).text("defaults.window", "10min").set("defaults.max_items", "4");
    let daemon = site.start(&config);
    let (customers, each) = of_size((8_000, 4), (5_000, 4));
    publish(&site, &daemon, (customers, 0, each - 1));
    publish(&site, &daemon, (customers, each - 1, each));
    assert_eq!(sizes(&take(&shop, (customers, each))), [(each, customers)].into());
}

#[test]
fn large_windows_leave_in_full_batches_with_little_memory() {
    let site = Site::new("whole-large");
    let shop = site.inbox("shop");
    let daemon = site.start(&together(little(&site), WINDOW_MS).set("defaults.max_items", "500"));
    begin(WINDOW_MS);
    let (customers, each) = of_size((30, 2_000), (30, 1_000));
    publish(&site, &daemon, (customers, 0, each));
    let left = take(&shop, (customers, each));
    // If publishing continued into the next window, each window has one batch that is not full.
    let rest: Vec<Left> = left.iter().filter(|(.., numbers)| numbers.len() != 500).cloned().collect();
    assert!(rest.iter().all(|(_, due, _)| due % WINDOW_MS as i64 == 0), "of which size: {:?}", sizes(&left));
    each_is_one(&rest);
}

#[test]
fn windows_of_a_thousand_lines_leave_whole_with_little_memory() {
    let site = Site::new("whole-lines");
    let shop = site.inbox("shop");
    let config = little(&site).text("defaults.window", "10min").text("defaults.format", "ndjson");
    let daemon = site.start(&config.set("defaults.max_items", "1000"));
    let (customers, each) = of_size((100, 1_000), (40, 1_000));
    publish(&site, &daemon, (customers, 0, each));
    for received in shop.take(customers, Duration::from_secs(60)) {
        assert_eq!(received.body_text().lines().count(), 1_000);
    }
    daemon.holds("waiting", 0);
}

/// Each item is one message, and the items of a customer keep their order.
#[test]
fn items_that_leave_alone_keep_the_order_of_their_windows_with_little_memory() {
    let site = Site::new("whole-items");
    let shop = site.inbox("shop");
    let daemon = site.start(
        &together(little(&site), WINDOW_MS)
            .text("defaults.format", "passthrough")
            .set("defaults.max_items", "2000"),
    );
    begin(WINDOW_MS);
    let (customers, each) = of_size((100, 1_000), (40, 1_000));
    publish(&site, &daemon, (customers, 0, each));
    let mut last = BTreeMap::new();
    for received in shop.take(customers * each, Duration::from_secs(300)) {
        received.is_not_early();
        let id = received.id();
        let (customer, n) = id.split_once('-').expect("an id of ours");
        let n: usize = n.parse().expect("a number");
        assert_eq!(received.body_text(), n.to_string(), "the body of {id}");
        let due = received.number("x-due").expect("x-due");
        assert_eq!(due % WINDOW_MS as i64, 0, "{id} is due at the end of its window");
        let before = last.insert(customer.to_owned(), (n, due));
        let next = before.map_or(0, |(before, _)| before + 1);
        assert_eq!(n, next, "VERDICT: what follows on {before:?} of {customer}");
        assert!(
            before.is_none_or(|(_, before)| before <= due),
            "VERDICT: {id} is due before what it follows"
        );
    }
    assert_eq!(last.len(), customers);
    shop.quiet(Duration::from_millis(300));
    daemon.holds("waiting", 0);
}

#[test]
fn windows_of_an_application_whose_queue_was_missing_leave_whole() {
    // The memory store leaves everything unacked, so no more than the prefetch allows.
    for (store, (customers, each)) in [("disk", of_size((30_000, 4), (10_000, 4))), ("memory", (2_000, 4))] {
        let site = Site::new(&format!("whole-parked-{store}"));
        let config = site.config().text("defaults.retry.min", "200ms").text("defaults.retry.max", "500ms");
        let daemon = site.start(&together(config.text("store.kind", store), WINDOW_MS));
        begin(WINDOW_MS);
        publish(&site, &daemon, (customers, 0, each));
        wait_until("their windows are over, and all are parked", Duration::from_secs(90), || {
            daemon.items("parked") == (customers * each) as u64
        });
        each_is_one(&take(&site.inbox("shop"), (customers, each)));
    }
}

/// These tests run one at a time, after all others.
mod alone {
    use super::*;

    const MIB: u64 = 1 << 20;
    /// The daemon's memory in addition to `limits.memory`, which has its default of 256 MiB here.
    const BESIDE: u64 = 100 * MIB;

    /// Customers that publish in turns: few enough that all three items of a customer arrive within one
    /// window.
    const IN_TURNS: usize = 20_000;

    /// All batches must have left within this time after the windows' end, on an idle machine, ms.
    const OUT_MS: f64 = 5_000.0;
    /// Lateness bound of another application in the meantime, at the 99th percentile, us.
    const LATE_US: i64 = 500_000;

    #[test]
    fn windows_that_end_together_are_soon_out_and_make_nobody_late_with_little_memory() {
        alone();
        // A window has to be long enough for what is published in it; on a slow machine the next one is.
        best_of_three(|round| end_together(&format!("whole-{round}"), 5_000 << round));
    }

    fn end_together(name: &str, window_ms: u64) -> Result<(), String> {
        let share = processor_share();
        let site = Site::new(name);
        let shop = site.inbox("shop");
        let daemon = site.start(&together(little(&site), window_ms));
        let (customers, each) = of_size((8_000, 4), (5_000, 4));
        begin(window_ms);
        let end = (now_ms() / window_ms + 1) * window_ms;
        publish(&site, &daemon, (customers, 0, each));
        if now_ms() >= end {
            return Err(format!("publishing took longer than a window of {window_ms} ms"));
        }
        let (out_ms, late) = site.late_beside("mail", || {
            let left = take(&shop, (customers, each));
            let out_ms = now_ms() - end;
            each_is_one(&left);
            out_ms
        });
        let most = percentile(&late, 99.0);
        let told = format!(
            "{customers} windows are out {out_ms} ms after their end; another application meanwhile: {} items, late \
             by {} us at the median, {most} us at the 99th percentile",
            late.len(),
            percentile(&late, 50.0)
        );
        say(&told);
        if (out_ms as f64) < OUT_MS / share && most < LATE_US {
            Ok(())
        } else {
            Err(told)
        }
    }

    /// More windows than memory holds. With an unoptimised binary only a few.
    #[test]
    fn a_million_customers_with_three_items_have_a_batch_each() {
        alone();
        bounded(Duration::from_secs(1_200));
        let (customers, window): (usize, _) =
            if is_optimised() { (1_000_000, "30s") } else { (4_000, "12s") };
        let site = Site::new("whole-million");
        let shop = site.inbox("shop");
        let mut daemon = site.start(&site.config().text("defaults.window", window).unset("limits.memory"));
        let empty = daemon.cpu_us();
        let begun = Instant::now();
        let (whole, took) = std::thread::scope(|scope| {
            let taken = scope.spawn(move || one_each(&shop, customers));
            let mut raw = Raw::connect(site.node);
            for first in (0..customers).step_by(IN_TURNS) {
                put(&mut raw, &site, first..customers.min(first + IN_TURNS), 0..3);
            }
            raw.settle(0);
            stored(&daemon, 3 * customers);
            let published = begun.elapsed();
            let peak = daemon.peak_rss();
            assert!(peak < 256 * MIB + BESIDE, "{} MiB at the most", peak / MIB);
            // The last windows are still open.
            daemon.kill9();
            let start = Instant::now();
            daemon.start_again();
            daemon.wait_ready();
            let (ready, work_us) = (start.elapsed(), daemon.cpu_us());
            let waiting = daemon.items("waiting");
            assert!(
                work_us < empty + 3_000_000,
                "{work_us} us of work to be ready, {empty} with an empty store"
            );
            say(&format!("ready in {ready:?} with {waiting} items, which took {work_us} us of work"));
            (taken.join().expect("all of them"), published)
        });
        let peak = daemon.peak_rss() / MIB;
        assert!(daemon.peak_rss() < 256 * MIB + BESIDE, "{peak} MiB at the most");
        say(&format!(
            "{customers} customers with three items each: {whole} batches, published in {took:?}, all out after {:?}, \
             {peak} MiB at the most",
            begun.elapsed()
        ));
    }

    /// Receives a batch for each customer, with its three items in order. Returns the number of batches:
    /// those in flight at a kill arrive once more, unchanged.
    fn one_each(shop: &Inbox, customers: usize) -> usize {
        let mut seen = vec![false; customers];
        let (mut left, mut all) = (customers, 0);
        while left > 0 {
            let Some(received) = shop.poll(Duration::from_secs(180)) else {
                panic!("VERDICT: lost: {left} of {customers} have no batch");
            };
            received.is_not_early();
            let batch = received.batch();
            let customer: usize = batch.customer.as_deref().expect("a customer").parse().expect("a number");
            let payloads: Vec<&serde_json::Value> =
                batch.items.iter().filter_map(|item| item.payload.as_ref()).collect();
            assert_eq!(payloads, [0, 1, 2], "the items of customer {customer}, in one");
            left -= usize::from(!std::mem::replace(&mut seen[customer], true));
            all += 1;
        }
        all
    }
}
