//! Cancels that race with the publish: each answer is true.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidegate_harness::{now_ms, wait_until, Asker, Client, Push, Site};

const COUNT: u64 = 600;
/// Time to publish before the race, and how long the race lasts, ms.
const BEFORE_MS: u64 = 1_500;
const SPREAD_MS: u64 = 600;

/// The ids of each result.
fn results(asker: &Asker<'_>, cancels: &BTreeMap<String, Push>) -> BTreeMap<String, BTreeSet<String>> {
    let mut results: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (id, answer) in asker.answers_to(cancels) {
        let result = answer["result"].as_str().expect("a result").to_owned();
        results.entry(result).or_default().insert(id);
    }
    results
}

/// When the item of this number is due in a race that begins at a moment and lasts for a time.
type Due = fn(begin: u64, spread: u64, n: u64) -> u64;

/// Repeats the race until both results occur, at most three times, each four times as long as the one before: a busy
/// machine may delay one side for longer than the whole race.
fn race(name: &str, due: Due) {
    let mut told = Vec::new();
    for round in 0..3 {
        let counts = race_once(&format!("{name}{round}"), 4_u64.pow(round), due);
        if ["sent", "cancelled"].iter().all(|result| counts.contains_key(*result)) {
            return;
        }
        told.push(counts);
    }
    panic!("no race: {told:?}");
}

/// Checks each answer, and returns the number of answers with each result.
fn race_once(name: &str, times: u64, due: Due) -> BTreeMap<String, usize> {
    let spread = SPREAD_MS * times;
    let site = Site::new(name);
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config());
    let asker = Asker::new(&site);
    // From now on the daemon has a connection for its answers.
    asker.ask("lookup", site.push("shop", "").id("nobody"));
    let start = now_ms() + BEFORE_MS * times;
    site.client.publish_all((0..COUNT).map(|n| {
        let at = i64::try_from(due(start, spread, n)).expect("a date");
        site.push("shop", "1").id(&format!("{n}")).customer(&format!("c{n}")).number("x-deliver-at", at)
    }));
    // Spread over the same time, in another order.
    let canceller = Client::connect(site.node.uri());
    let cancel = |n: u64| {
        let id = n.to_string();
        (id.clone(), asker.command(site.push("shop", "").id(&id), "tidegate.cancel", &id))
    };
    let cancels: BTreeMap<String, Push> = (0..COUNT).map(cancel).collect();
    while now_ms() < start {
        std::thread::sleep(Duration::from_millis(1));
    }
    for step in 0..20 {
        while now_ms() < start + step * spread / 20 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let of_step = step * COUNT / 20..(step + 1) * COUNT / 20;
        canceller.publish_all(of_step.map(|n| cancels[&(n * 7 % COUNT).to_string()].clone()));
    }
    let results = results(&asker, &cancels);
    let empty = BTreeSet::new();
    let of = |result: &str| results.get(result).unwrap_or(&empty);
    let counts: BTreeMap<_, _> = results.iter().map(|(result, ids)| (result.clone(), ids.len())).collect();
    assert_eq!(of("cancelled").len() + of("sent").len(), COUNT as usize, "nothing else: {counts:?}");
    let arrived: BTreeSet<String> = if of("sent").is_empty() {
        BTreeSet::new()
    } else {
        inbox.items(of("sent").len(), Duration::from_secs(10)).into_iter().map(|item| item.id).collect()
    };
    inbox.quiet(Duration::from_millis(400));
    assert_eq!(&arrived, of("sent"), "{counts:?}");
    counts
}

#[test]
fn spread_over_the_same_time() {
    race("race-spread", |start, spread, n| start + n * spread / COUNT);
}

#[test]
fn all_due_at_one_instant() {
    race("race-instant", |start, spread, _| start + spread / 4);
}

/// Many customers leave at the same moment, and nobody takes an answer: the cancels wait in the queue while the daemon
/// is down, so it takes them all at once.
/// Excluded: a cancel beyond the number that may be under way, which is acked and does nothing.
/// Judges promise 3.
#[test]
fn all_of_a_thousand_cancels_without_a_reply_take_effect() {
    let site = Site::new("cancels");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config());
    let push = |n: u32| site.push("shop", "1").customer(&format!("c{n}")).delay(3_600_000);
    site.client.publish_all((0..1_000).map(|n| push(n).id(&n.to_string())));
    site.client.publish(&push(1_000).id("stays"));
    wait_until("all are stored", Duration::from_secs(10), || {
        let state = daemon.state();
        state["items"]["waiting"] == 1_001 && state["uncommitted"] == 0
    });
    daemon.kill9();
    let cancel = |n: u32| site.push("shop", "").customer(&format!("c{n}")).kind("tidegate.cancel");
    site.client.publish_all((0..1_000).map(cancel));
    daemon.start_again();
    daemon.wait_ready();
    wait_until("the others are cancelled", Duration::from_secs(10), || daemon.items("waiting") == 1);
    assert_eq!(daemon.state()["totals"]["cancelled"], 1_000);
    assert_eq!(daemon.ask("GET", "/api/v1/items/shop/stays").1["state"], "waiting");
    site.lies(&site.ingest_queue(), 0);
    inbox.quiet(Duration::from_millis(200));
}
