//! A lost publishing connection with different unconfirmed messages: other applications continue, nothing is
//! lost, and the process can be stopped.

use std::cell::Cell;
use std::time::{Duration, Instant};
use tidegate_harness::{
    alone, best_of_three, holds_within, wait_until, Config, Daemon, Ledger, Load, Node, Push, Recorder, Site,
};

const LIMIT: Duration = Duration::from_secs(60);
/// Other applications continue within this time, at the median.
const MEDIAN: Duration = Duration::from_secs(5);

/// A separate user for publishing, by which its connection is closed.
const EGRESS: &str = "closed";

/// `uri` is that of the egress connection.
pub(super) fn config(site: &Site<'_>, uri: &str) -> Config {
    site.config().text("egress.uri", uri).set("defaults.retry", r#"{ min = "1s", max = "2s" }"#)
}

/// Number of lost egress connections.
pub(super) fn losses(daemon: &Daemon) -> u64 {
    let (_, metrics) = daemon.ask("GET", "/metrics");
    let mut lines = metrics.as_str().unwrap_or_default().lines();
    let count =
        lines.find_map(|line| line.strip_prefix("tidegate_connections_failed_total{side=\"egress\"} "));
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

fn close_once(node: &Node, daemon: &Daemon) {
    let before = losses(daemon);
    node.close_connections(EGRESS);
    wait_until("the connection is closed", LIMIT, || losses(daemon) > before);
}

/// Waits until so many items are confirmed: what is not would be sent again after a loss.
fn confirmed(daemon: &Daemon, items: u64) {
    wait_until("all is confirmed", LIMIT, || {
        daemon.state()["totals"]["confirmed"].as_u64().is_some_and(|confirmed| confirmed >= items)
    });
}

/// Waits until so many applications are parked beside one whose queue does not confirm. At any moment some of
/// them are tried again, and are in flight.
fn parked(daemon: &Daemon, applications: u64) {
    wait_until("they are parked", LIMIT, || {
        let state = daemon.state();
        let number = |section: &str, key: &str| state[section][key].as_u64().unwrap_or(0);
        number("totals", "returned") >= applications
            && number("items", "parked") + number("items", "in_flight") > applications
    });
}

/// Waits until a batch of the application is published but unconfirmed.
pub(super) fn in_flight(daemon: &Daemon, application: &str) {
    wait_until("an item is in flight", LIMIT, || {
        let (_, page) =
            daemon.ask("GET", &format!("/api/v1/items?application={application}&state=in_flight"));
        page["items"].as_array().is_some_and(|items| !items.is_empty())
    });
}

#[test]
fn a_connection_lost_while_a_queue_keeps_silent_stops_nobody() {
    let Some(node) = Node::controlled("a_connection_lost_while_a_queue_keeps_silent") else { return };
    let site = Site::on(node, "lost-silent");
    node.ctl(&["add_user", EGRESS, EGRESS]);
    node.ctl(&["set_permissions", "-p", "/", EGRESS, ".*", ".*", ".*"]);
    let mut daemon = site.start(&config(&site, &node.uri_of(EGRESS, "%2f")));
    let other = site.inbox("other");
    site.application("mute");
    // Opens a channel for batches alone, as in any daemon that has run for a while.
    site.client.publish(&site.push("other", "{}").id("before"));
    assert_eq!(other.batch().ids(), ["before"]);
    node.silence(&[site.queue("mute")]);
    site.client.publish(&site.push("mute", "{}").id("kept"));
    in_flight(&daemon, "mute");
    confirmed(&daemon, 1);
    close_once(node, &daemon);
    for n in 0..20 {
        site.client.publish(&site.push("other", "{}").id(&format!("after{n}")));
        assert_eq!(other.batch().ids(), [format!("after{n}")], "{}", daemon.log_tail());
    }
    // Once more, now with the channel of dead letters too.
    node.silence(&[site.dead()]);
    site.client.publish(&site.push("other", "{}").with("x-delay", "soon").id("bad"));
    wait_until("the letter is out", LIMIT, || daemon.state()["dead_letters"]["in_flight"] == 1);
    confirmed(&daemon, 21);
    close_once(node, &daemon);
    site.client.publish(&site.push("other", "{}").id("last"));
    assert_eq!(other.batch().ids(), ["last"], "{}", daemon.log_tail());
    node.wake(&[site.dead(), site.queue("mute")]);
    assert_eq!(site.client.consume(&site.queue("mute")).batch().ids(), ["kept"]);
    assert_eq!(site.dead_inbox().next().id(), "bad");
    daemon.term();
    assert!(daemon.exit(LIMIT).success(), "{}", daemon.log_tail());
}

/// Loses connections while each message of the load is for another of many applications. In addition, some
/// applications are parked, and one queue and the dead-letter queue are silent. With `judged`, the time until
/// the others continue is measured.
fn many_lost(name: &str, store: &str, (applications, losses_of_all): (u64, usize), judged: bool) {
    const PARKED: u64 = 300;
    /// Messages per second: a rate that passes even on a busy machine.
    const RATE: u64 = 150;
    let Some(node) = Node::controlled(name) else { return };
    let site = Site::on(node, name);
    let (proxy, uri) = node.proxied();
    let mut daemon = site.start(&config(&site, &uri).text("store.kind", store));
    site.client.queue(&site.queue("all"), Default::default());
    for n in 0..applications {
        site.client.bind(&site.queue("all"), &site.out(), &format!("a{n}"));
    }
    site.application("mute");
    node.silence(&[site.queue("mute"), site.dead()]);
    site.client.publish(&site.push("mute", "{}").id("mute"));
    site.client.publish(&site.push("a0", "{}").with("x-delay", "soon").id("bad"));
    site.client.publish_all((0..PARKED).map(|n| site.push(&format!("p{n}"), "{}").id(&format!("p{n}"))));
    parked(&daemon, PARKED);

    let ledger = Ledger::new();
    let recorder = Recorder::start(node.uri(), &[site.queue("all")], &ledger);
    let ingest = site.ingest();
    let load = |part: &'static str| {
        let ingest = ingest.clone();
        let next = move |n: u64| {
            let application = format!("a{}", n % applications);
            let delay = n % 4 * 50;
            let push = Push::new(&ingest, &application, "{}").id(&format!("{part}{n}"));
            let push = push.delay(i64::try_from(delay).unwrap_or(0));
            (push, application, None, Some(delay))
        };
        Load::start(node.uri(), RATE, &ledger, Box::new(next))
    };
    let amid = load("amid");
    ledger.fault();
    let lost = Cell::new(0);
    let lose = || {
        let (n, before) = (lost.replace(lost.get() + 1), losses(&daemon));
        let since = Instant::now();
        proxy.cut(n % 2 == 0);
        wait_until(&format!("loss {n} is noticed"), LIMIT, || losses(&daemon) > before);
        // Everything sent before the loss must arrive, and some more: no loss is permanent. The connection
        // must be open, otherwise the next cut would find none and wait for a loss that never happens.
        let sent = ledger.confirmed_count() + 30;
        let mut ready = None;
        let goes_on = holds_within(LIMIT, || {
            ready = Some(daemon.ask("GET", "/readyz"));
            ledger.arrived_count() >= sent && ready.as_ref().is_some_and(|(status, _)| *status == 200)
        });
        let arrived = ledger.arrived_count();
        assert!(goes_on, "after loss {n} {arrived} of {sent} have come, {ready:?}, {}", daemon.state());
        since.elapsed()
    };
    if judged {
        best_of_three(|_| {
            let mut took: Vec<Duration> = (0..losses_of_all / 3).map(|_| lose()).collect();
            took.sort_unstable();
            let good = took[took.len() / 2] < MEDIAN;
            good.then_some(())
                .ok_or_else(|| format!("until what came before a loss, and some more, has arrived: {took:?}"))
        });
    }
    while lost.get() < losses_of_all {
        lose();
    }
    amid.stop();
    assert!(ledger.arrives(LIMIT), "{} have not arrived", ledger.missing());
    ledger.past();
    // While connections hold, nothing arrives twice except batches whose outcome the daemon reports as
    // unknown: a batch alone on its channel is given up if others need the channel, and a busy broker
    // confirms slowly.
    let unknown = || daemon.state()["totals"]["unknown"].as_u64().expect("a count");
    let unknown_before = unknown();
    let after = load("after");
    let sent = ledger.confirmed_count() + 300;
    wait_until("some more have come", LIMIT, || ledger.arrived_count() >= sent);
    after.stop();
    let report = ledger.settle(LIMIT);
    report.assert_clean();
    let unknown = unknown() - unknown_before;
    let twice = &report.unexplained;
    assert!(twice.len() as u64 <= unknown, "{twice:?} came twice, and of {unknown} batches it was not known");
    drop(recorder);

    node.wake(&[site.queue("mute"), site.dead()]);
    assert_eq!(site.client.consume(&site.queue("mute")).batch().ids(), ["mute"]);
    assert_eq!(site.dead_inbox().next().id(), "bad");
    site.client.queue(&site.queue("parked"), Default::default());
    for n in 0..PARKED {
        site.client.bind(&site.queue("parked"), &site.out(), &format!("p{n}"));
    }
    let parked = site.client.consume(&site.queue("parked"));
    let mut ids: Vec<String> = Vec::new();
    while ids.len() < PARKED as usize {
        ids.push(parked.batch().ids()[0].to_owned());
        ids.sort();
        ids.dedup();
    }
    daemon.term();
    assert!(daemon.exit(LIMIT).success(), "{}", daemon.log_tail());
}

#[test]
fn forty_lost_connections_amid_two_thousand_applications_stop_nobody() {
    many_lost("lost-forty-disk", "disk", (2_000, 40), false);
}

#[test]
fn forty_lost_connections_with_the_memory_store_stop_nobody() {
    many_lost("lost-forty-memory", "memory", (2_000, 40), false);
}

/// This test runs alone, after all others.
mod alone {
    use super::*;

    #[test]
    fn after_a_lost_connection_everybody_goes_on_within_seconds() {
        alone();
        many_lost("lost-soon", "disk", (200, 9), true);
    }
}
