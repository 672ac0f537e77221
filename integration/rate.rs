//! Rates: an application's items leave in order and never faster than its rate, and other applications are
//! not slowed down.

use serde_json::{json, Value};
use std::collections::BTreeSet;
use std::time::Duration;
use tidegate_harness::{now_ms, wait_until, Daemon, Inbox, Machine, Received, Site};

/// Longer than anything here takes, on any machine.
const LONG: Duration = Duration::from_secs(60);

fn application(daemon: &Daemon, name: &str) -> Value {
    daemon.ask("GET", &format!("/api/v1/applications/{name}")).1
}

/// Takes `items` messages. Panics if one arrives sooner than a token bucket allows: `per_second`, depth
/// `burst`, full at `from` (UTC ms).
fn arrive(inbox: &Inbox, from: u64, items: usize, per_second: u64, burst: u64) -> Vec<Received> {
    let all = inbox.take(items, LONG);
    for (n, message) in (1..).zip(&all) {
        let soonest = from * 1_000 + (n as u64).saturating_sub(burst) * 1_000_000 / per_second;
        let at = message.at_us;
        assert!(at + 1_000 >= soonest, "VERDICT: item {n} came {} us too soon", soonest - at);
        message.is_not_early();
    }
    all
}

#[test]
fn items_leave_in_order_at_the_rate_and_others_in_their_time() {
    // They leave over a quarter of a minute, so that others are seen to come first on a busy machine too.
    const ITEMS: usize = 600;
    const BURST: usize = 20;
    let site = Site::new("rate");
    let (slow, fast) = (site.inbox("slow"), site.inbox("fast"));
    let config = site.config().text("defaults.format", "passthrough").text("applications.slow.rate", "40/s");
    let daemon = site.start(&config.set("applications.slow.burst", &BURST.to_string()));
    let told = || application(&daemon, "slow");
    let order = |verb: &str| daemon.ask("POST", &format!("/api/v1/applications/slow/{verb}")).0;
    wait_until("it is paused", LONG, || order("pause") == 200);
    site.client.publish_all((0..ITEMS).map(|n| site.push("slow", "1").id(&format!("s{n:03}"))));
    wait_until("all are taken", LONG, || told()["total"] == ITEMS);
    let (machine, begun) = (Machine::watched(), now_ms());
    site.client.publish_all((0..20).map(|n| site.push("fast", "1").id(&format!("f{n}")).delay(n * 20)));
    wait_until("it goes on", LONG, || order("resume") == 200);
    wait_until("it is told what is held back", Duration::from_secs(10), || {
        let told = told();
        told["held"].as_u64().is_some_and(|held| held > 0)
    });
    let app = told();
    assert_eq!(
        (&app["rate"], &app["rate_until"], &app["state"]),
        (&json!("40/s"), &Value::Null, &json!("open"))
    );
    if let Some(until) = app["held_until"].as_u64() {
        assert!(until < now_ms() + 10_000, "{app}");
    }
    // While `slow` is held back, `fast` gets its items on time.
    fast.take(20, LONG);
    let least = if machine.had_time() { ITEMS as u64 / 2 } else { 1 };
    assert!(told()["total"].as_u64().is_some_and(|left| left >= least), "the others came first: {}", told());
    let all = arrive(&slow, begun, ITEMS, 40, BURST as u64);
    let ids: Vec<String> = all.iter().map(Received::id).collect();
    assert_eq!(ids, (0..ITEMS).map(|n| format!("s{n:03}")).collect::<Vec<_>>(), "in order, each once");
    wait_until("nothing is held", Duration::from_secs(10), || told()["held"] == 0);
    let page = daemon.ask_whole("GET", "/metrics").expect("metrics").body;
    let figure = |name: &str| {
        let line = page.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.and_then(|value| value.parse::<f64>().ok()).unwrap_or_else(|| panic!("no {name}"))
    };
    let held = figure("tidegate_held_back_seconds_count");
    let sum = figure("tidegate_held_back_seconds_sum");
    // What leaves together in a late turn counts once, and that is a burst at most.
    let most = (ITEMS - BURST) as f64;
    let (least, seconds) = if machine.had_time() { (most / 2.0, 30.0) } else { (most / BURST as f64, 0.0) };
    assert!((least..=most).contains(&held), "{held} of {ITEMS} were held back, a burst was not");
    assert!(sum > seconds, "that is no lateness: {sum} s");
}

/// Batches stay whole, and the rate counts their items.
#[test]
fn windows_leave_whole_at_the_rate() {
    let site = Site::new("ratewindows");
    let inbox = site.inbox("shop");
    // Each window closes by its tenth item, however long the ten take to arrive.
    let config = site.config().text("defaults.window", "60s").set("defaults.max_items", "10");
    let config = config.text("defaults.rate", "20/s");
    let _daemon = site.start(&config.set("defaults.burst", "10"));
    let begun = now_ms();
    site.client.publish_all((0..60).map(|n| {
        let push = site.push("shop", "1").id(&format!("{n}"));
        push.customer(&format!("c{}", n % 6))
    }));
    let mut items = 0;
    while items < 60 {
        let batch = inbox.batch();
        items += batch.items.len() as u64;
        let soonest = begun + items.saturating_sub(10) * 50;
        assert!(batch.message.at_us / 1_000 + 1 >= soonest, "VERDICT: {items} items came too soon");
        assert_eq!(batch.items.len(), 10, "whole");
    }
}

/// A receiver asks for a lower rate: the rate survives a kill, and ends at its time or by a command.
#[test]
fn a_rate_for_a_while_outlives_a_kill() {
    let site = Site::new("rateslow");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config().text("defaults.format", "passthrough"));
    let told = daemon.cli(&["rate", "shop", "2/s", "--for", "10m"]);
    assert_eq!((told.code, told.err.as_str()), (0, ""), "{told:?}");
    assert!(told.out.starts_with("set until 2"), "{}", told.out);
    let begun = now_ms();
    site.client.publish_all((0..100).map(|n| site.push("shop", "1").id(&format!("{n:03}"))));
    let mut seen: BTreeSet<String> = arrive(&inbox, begun, 4, 2, 2).iter().map(Received::id).collect();
    daemon.kill9();
    // What the former life has sent may still be on its way.
    site.lies(&site.queue("shop"), 0);
    seen.extend(std::iter::from_fn(|| inbox.poll(Duration::from_secs(6))).map(|message| message.id()));
    let killed = now_ms();
    daemon.start_again();
    daemon.wait_ready();
    let app = application(&daemon, "shop");
    assert_eq!(app["rate"], "2/s", "{app}");
    assert!(app["rate_until"].as_u64().is_some_and(|until| until > now_ms() + 300_000), "{app}");
    // The start allows one burst.
    seen.extend(arrive(&inbox, killed, 6, 2, 2).iter().map(Received::id));
    assert_eq!(
        daemon.ask("DELETE", "/api/v1/applications/shop/rate"),
        (200, json!({"result": "done", "changed": true}))
    );
    while seen.len() < 100 {
        seen.insert(inbox.next().id());
    }
    assert_eq!(daemon.ask("DELETE", "/api/v1/applications/shop/rate").1["changed"], false);
    // So far ahead that it is still to come when it is judged, also on a machine with other work.
    let until = now_ms() + 12_000;
    let path = format!("/api/v1/applications/shop/rate?rate=1/min&until={until}");
    assert_eq!(daemon.ask("POST", &path), (200, json!({"result": "done", "changed": true, "until": until})));
    assert_eq!(daemon.ask("POST", &path).1["changed"], false);
    site.client.publish_all((0..3).map(|n| site.push("shop", "1").id(&format!("last-{n}"))));
    let last = arrive(&inbox, now_ms().saturating_sub(1_000), 1, 1, 1);
    let rest = inbox.take(2, LONG);
    assert!(rest.iter().all(|message| message.at_us / 1_000 >= until), "not before it has ended: {last:?}");
    for wrong in
        ["", "rate=", "rate=10", "rate=0/s", "rate=1/s&for=1&until=2100-01-01T00:00:00Z", "rate=1/s&burst=2"]
    {
        assert_eq!(daemon.ask("POST", &format!("/api/v1/applications/shop/rate?{wrong}")).0, 400, "{wrong}");
    }
    assert_eq!(
        daemon.ask("POST", "/api/v1/applications/shop/rate?rate=1/s&until=2020-01-01T00:00:00Z").0,
        409
    );
}

/// A long backlog with little memory: beyond its head, a held application uses none.
#[test]
fn a_backlog_that_is_held_back_leaves_memory_to_others() {
    const ITEMS: u64 = 12_000;
    let site = Site::new("ratebacklog");
    let (slow, fast) = (site.inbox("slow"), site.inbox("fast"));
    let config = site.config().text("defaults.format", "passthrough").text("limits.memory", "16MiB");
    let daemon = site.start(&config.text("applications.slow.rate", "100/s"));
    site.client.publish_all((0..ITEMS).map(|n| site.push("slow", "1").id(&format!("{n}"))));
    let told = || application(&daemon, "slow");
    wait_until("all but its head is in the store alone", LONG, || {
        let told = told();
        told["total"].as_u64().is_some_and(|total| total > ITEMS / 2)
            && told["held"].as_u64().is_some_and(|held| (1..7_000).contains(&held))
    });
    site.client.publish_all((0..500).map(|n| site.push("fast", "1").id(&format!("f{n}")).delay(n * 2)));
    fast.take(500, LONG);
    slow.take(200, LONG);
    assert!(told()["total"].as_u64().is_some_and(|left| left > ITEMS / 4), "{}", told());
    let told = daemon.cli(&["rate", "slow", "10000000/s"]);
    assert_eq!(told.code, 0, "{told:?}");
    slow.take(ITEMS as usize - 200, Duration::from_secs(300));
}

/// One customer has far more items than fit into memory: they leave in order at its rate, also across a kill,
/// and another customer's items leave on time.
#[test]
fn each_customer_has_a_rate_of_its_own_and_nobody_waits_for_another() {
    const ITEMS: u64 = 12_000;
    let site = Site::new("ratecustomer");
    let inbox = site.inbox("shop");
    let config = site.config().text("defaults.format", "passthrough").text("limits.memory", "16MiB");
    let mut daemon = site.start(&config.clone().text("applications.shop.customer_rate", "20/s"));
    let of = |customer: &str, n: u64| {
        let id = format!("{customer}{n}");
        site.push("shop", "1").id(&id).customer(customer)
    };
    // Customer (`ann` 0, `bob` 1) and item number.
    let number = |message: &Received| {
        let id = message.id();
        let (customer, n) = id.split_at(3);
        (usize::from(customer == "bob"), n.parse::<u64>().expect("a number"))
    };
    let begun = now_ms();
    site.client.publish_all((0..ITEMS).map(|n| of("ann", n)));
    let told = |daemon: &Daemon| application(daemon, "shop");
    wait_until("all but its head is in the store alone", LONG, || {
        let told = told(&daemon);
        told["total"].as_u64().is_some_and(|total| total > ITEMS / 10 * 9)
            && told["held"].as_u64().is_some_and(|held| (1..200).contains(&held))
            && told["held_until"].as_u64().is_some()
    });
    // `bob` publishes more slowly than the rate.
    let of_bob = now_ms();
    site.client.publish_all((0..60).map(|n| of("bob", n).delay(n as i64 * 100)));
    let mut seen = [Vec::new(), Vec::new()];
    let mut take = |inbox: &Inbox, until: usize| {
        while seen[1].len() < until {
            let message = inbox.next();
            message.is_not_early();
            let (customer, n) = number(&message);
            seen[customer].push((n, message.at_us));
        }
    };
    take(&inbox, 60);
    let [ann, _] = &seen;
    assert!(ann.iter().map(|(n, _)| *n).eq(0..ann.len() as u64), "in order");
    for (n, (_, at)) in (1..).zip(ann) {
        let soonest = begun * 1_000 + (n as u64).saturating_sub(20) * 50_000;
        assert!(at + 1_000 >= soonest, "VERDICT: item {n} came {} us too soon", soonest - at);
    }
    assert!(ann.len() > 40, "{} of a rate of twenty a second", ann.len());
    // His take 6 s, in which hers go on at 20 a second. Behind hers, his would come after ten minutes.
    let meanwhile = ann.iter().filter(|(_, at)| at / 1_000 >= of_bob).count();
    assert!(meanwhile < 600, "VERDICT: another's waited for {meanwhile} of hers");
    daemon.kill9();
    daemon.rewrite(&config.text("applications.shop.customer_rate", "off"));
    daemon.start_again();
    daemon.wait_ready();
    let mut left: BTreeSet<u64> = (ann.len() as u64..ITEMS).collect();
    while !left.is_empty() {
        left.remove(&number(&inbox.next()).1);
    }
}
