//! Paging to the end: each item exactly once, whatever changes in between.

use super::{config, pause, FAR, NEAR};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tidegate_harness::{alone, now_ms, now_us, wait_until, Daemon, Push, Received, Site};

/// All rows of a query, fetched page by page.
fn pages(daemon: &Daemon, query: &str, limit: usize) -> Vec<Value> {
    let mut rows: Vec<Value> = Vec::new();
    let mut cursor = String::new();
    loop {
        let (status, page) =
            daemon.ask("GET", &format!("/api/v1/items?{query}&limit={limit}&cursor={cursor}"));
        assert_eq!(status, 200, "{page}");
        let items = page["items"].as_array().expect("items");
        assert!(items.len() <= limit, "{} rows", items.len());
        rows.extend(items.iter().cloned());
        match page["next"].as_str() {
            Some(next) if next == cursor => panic!("it does not go on from {cursor}"),
            Some(next) => cursor = next.to_owned(),
            None => return rows,
        }
    }
}

fn in_order(rows: &[Value]) {
    let due = |row: &Value| row["due"].as_u64().expect("due");
    let jump = rows.windows(2).find(|pair| due(&pair[0]) > due(&pair[1]));
    assert!(jump.is_none(), "{jump:?}");
}

/// Number of rows for each id.
fn counted(rows: &[Value]) -> BTreeMap<String, u32> {
    let mut counted = BTreeMap::new();
    for row in rows {
        *counted.entry(row["id"].as_str().expect("an id").to_owned()).or_default() += 1;
    }
    counted
}

/// `count` items of every kind: near, far, many at one millisecond, windows, parked.
fn everywhere<'a>(site: &'a Site<'_>, count: u64) -> impl Iterator<Item = Push> + 'a {
    let one_instant = i64::try_from(now_ms()).expect("a date") + FAR;
    (0..count).map(move |n| {
        let push = site.push("shop", "1").id(&format!("{n}"));
        match n % 6 {
            0 => push.delay(NEAR + n as i64 % 7),
            1 => push.delay(FAR + n as i64 * 10).customer(&format!("c{}", n % 50)),
            2 | 3 => push.number("x-deliver-at", one_instant),
            4 => push.customer(&format!("c{}", n % 50)),
            _ => Push { key: "nobody".to_owned(), ..push },
        }
    })
}

#[test]
fn each_item_exactly_once_in_order() {
    const COUNT: u64 = 3000;
    let site = Site::new("pages");
    site.application("shop");
    let mut daemon = site.start(&config(&site));
    pause(&daemon);
    site.client.publish_all(everywhere(&site, COUNT));
    wait_until("all are there", Duration::from_secs(20), || {
        daemon.items("waiting") + daemon.items("parked") == COUNT && daemon.items("parked") == COUNT / 6
    });
    let check = |daemon: &Daemon| {
        for (query, limit, wanted) in [
            ("", 1000, COUNT),
            ("", 97, COUNT),
            ("state=parked", 100, COUNT / 6),
            ("application=shop", 333, COUNT / 6 * 5),
            ("application=shop&state=waiting", 1000, COUNT / 6 * 5),
            // Of each six items, those with remainders 1 and 4: every 50th customer has 20 of them.
            ("customer=c10", 7, COUNT / 150),
        ] {
            let rows = pages(daemon, query, limit);
            in_order(&rows);
            let counted = counted(&rows);
            let repeated: Vec<_> = counted.iter().filter(|(_, times)| **times > 1).take(3).collect();
            assert!(repeated.is_empty(), "{query} by {limit}: twice: {repeated:?}");
            assert_eq!(counted.len() as u64, wanted, "{query} by {limit}");
        }
    };
    check(&daemon);
    daemon.kill9();
    daemon.start_again();
    daemon.wait_ready();
    wait_until("the parked ones are known again", Duration::from_secs(10), || {
        daemon.items("parked") == COUNT / 6
    });
    check(&daemon);
}

mod alone {
    use super::*;

    #[test]
    fn items_that_stay_are_seen_once_while_others_come_and_go() {
        alone();
        const STAY: u64 = 1200;
        let site = Site::new("moving");
        let inbox = site.inbox("mail");
        site.application("shop");
        let daemon = site.start(&config(&site).text("applications.mail.window", "50ms"));
        pause(&daemon);
        site.client.publish_all((0..STAY).map(|n| {
            let delay = if n % 2 == 0 { NEAR + n as i64 } else { FAR + n as i64 % 3 };
            site.push("shop", "1").id(&format!("stays{n}")).delay(delay)
        }));
        wait_until("all wait", Duration::from_secs(20), || daemon.items("waiting") == STAY);
        let (stop, stopping) = std::sync::mpsc::channel::<()>();
        let mut rounds = Vec::new();
        let mut came: Vec<Received> = Vec::new();
        std::thread::scope(|scope| {
            let (daemon, site) = (&daemon, &site);
            // Dropped on a failed round too, so that the producer ends.
            let stop = stop;
            scope.spawn(move || {
                let producer = tidegate_harness::Client::connect(site.node.uri());
                let mut n = 0;
                while stopping.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                    let of = |k: i64| site.push("mail", "1").id(&format!("{n}-{k}"));
                    producer.publish_all((0..20).map(|k| of(k).delay(k * 5)).chain([of(99).customer("c")]));
                    n += 1;
                }
            });
            // At least five rounds, and until enough has arrived to judge.
            let end = Instant::now() + Duration::from_secs(60);
            while rounds.len() < 5 || came.len() <= 20 {
                let round = rounds.len();
                assert!(Instant::now() < end, "{round} rounds, and {} batches meanwhile", came.len());
                let begun = now_us();
                let mut rows = pages(daemon, "", 150);
                in_order(&rows);
                rows.retain(|row| row["application"] == "shop");
                let counted = counted(&rows);
                assert!(counted.values().all(|times| *times == 1), "round {round}: a row twice");
                assert_eq!(counted.len() as u64, STAY, "round {round}");
                rounds.push(begun..now_us());
                came.extend(std::iter::from_fn(|| inbox.poll(Duration::ZERO)));
            }
            stop.send(()).expect("the producer still runs");
        });
        came.extend(std::iter::from_fn(|| inbox.poll(Duration::from_millis(500))));
        came.iter().for_each(Received::is_not_early);
        // Judged by the best round: lists would delay items in every round.
        let worst = |round: &std::ops::Range<u64>| {
            let within = came.iter().filter(|message| round.contains(&message.at_us));
            within.map(Received::lateness_us).max()
        };
        let best = rounds.iter().filter_map(worst).min().expect("something came beside a list");
        assert!(best < 2_000_000, "a list held somebody up for {best} us");
    }
}
