//! Retries: a consumer sends a message back, by rejecting it or by publishing it again, with the same id, and
//! it waits again each time.
//!
//! Judges promise 14.

use super::passthrough;
use crate::requests::close_window;
use std::time::Duration;
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::{text, wait_until, Daemon, Push, Received, Site, Verdict};

const ROUNDS: usize = 12;
const DELAY_MS: i64 = 300;

fn due(received: &Received) -> i64 {
    received.number("x-due").expect("x-due")
}

/// Panics unless `next` is the retry after `before`: unchanged except for the headers that tidegate adds, and
/// not early.
fn check_next(before: Option<&Received>, next: &Received, round: usize) {
    next.is_not_early();
    let Some(before) = before else { return };
    assert_eq!((next.id(), &next.body), (before.id(), &before.body), "round {round}");
    assert!(due(next) >= due(before) + DELAY_MS, "round {round}: {} and {}", due(before), due(next));
    assert_ne!(next.text("x-batch"), before.text("x-batch"), "round {round}");
}

/// The queue's dead letters go back to the ingest exchange, and each message is rejected: the retry loop that
/// delayed exchanges are mostly used for.
fn by_dead_lettering(id: Option<&str>) {
    let site = Site::new(&format!("dead-lettered-{}", id.is_some()));
    let queue = site.queue("work");
    let mut arguments = FieldTable::default();
    arguments.insert("x-dead-letter-exchange".into(), text(&site.ingest()));
    site.client.queue(&queue, arguments);
    let daemon = site.start(&passthrough(&site));
    site.client.bind(&queue, &site.out(), "mykey");
    let push = site.push("mykey", "try").delay(DELAY_MS);
    let push = id.map_or(push.clone(), |id| push.id(id));
    assert_eq!(site.client.publish(&push), Verdict::Taken);
    let inbox = site.client.consume_and_reject(&queue);
    let mut before: Option<Received> = None;
    for round in 0..ROUNDS {
        let next = inbox.next();
        check_next(before.as_ref(), &next, round);
        assert!(id.is_none_or(|id| next.id() == id), "round {round}: {}", next.id());
        before = Some(next);
    }
    assert!(!daemon.log().contains("was dropped as a duplicate"), "none of them is one");
}

#[test]
fn rejected_each_time_it_comes_each_time_without_an_id() {
    by_dead_lettering(None);
}

#[test]
fn rejected_each_time_it_comes_each_time_with_an_id() {
    by_dead_lettering(Some("m"));
}

/// What a consumer publishes to send a message back: the message unchanged.
fn again(site: &Site<'_>, received: &Received) -> Push {
    let mut push = site.push("mykey", received.body.clone());
    push.properties = received.properties.clone();
    push.headers = received.properties.headers().clone().expect("headers");
    push.delay(DELAY_MS)
}

/// Kills the daemon once the end of this item is durable: an answer is sent only after that.
fn kill_and_start(daemon: &mut Daemon, id: &str) {
    let is_sent = || daemon.ask("GET", &format!("/api/v1/items/mykey/{id}")).1["state"] == "sent";
    wait_until("its end is remembered", Duration::from_secs(10), is_sent);
    daemon.kill9();
    daemon.start_again();
    daemon.wait_ready();
}

/// With each rule for duplicates, and with a kill of tidegate in between.
fn by_publishing(id: Option<&str>) {
    let site = Site::new(&format!("published-{}", id.is_some()));
    let inbox = site.inbox("mykey");
    let mut daemon = site.start(&passthrough(&site));
    let push = site.push("mykey", "try").delay(DELAY_MS);
    let push = id.map_or(push.clone(), |id| push.id(id));
    site.client.publish(&push);
    let mut last = inbox.next();
    for round in 1..ROUNDS {
        if round == ROUNDS / 2 {
            kill_and_start(&mut daemon, &last.id());
        }
        let rule = ["keep", "replace", "earliest", "latest", "reject"][round % 5];
        let push = again(&site, &last).with("x-on-duplicate", rule);
        assert_eq!(site.client.publish(&push), Verdict::Taken);
        let next = inbox.next();
        check_next(Some(&last), &next, round);
        last = next;
    }
    // The same retry published twice is accepted once.
    for _ in 0..2 {
        site.client.publish(&again(&site, &last).with("x-on-duplicate", "keep"));
    }
    let next = inbox.next();
    check_next(Some(&last), &next, ROUNDS);
    site.client.publish(&again(&site, &last).with("x-on-duplicate", "keep"));
    let dropped = || daemon.state()["totals"]["tries_dropped"].clone();
    wait_until("both are counted", Duration::from_secs(10), || dropped() == 2);
    inbox.quiet(Duration::from_millis(1_000));
    wait_until("the log says so", Duration::from_secs(10), || {
        daemon.log().contains("was dropped as a duplicate")
    });
    assert_eq!(dropped(), 2, "counted");
    site.lies(&site.dead(), 0);
}

#[test]
fn published_again_it_comes_each_time_without_an_id() {
    by_publishing(None);
}

#[test]
fn published_again_it_comes_each_time_with_an_id() {
    by_publishing(Some("m"));
}

/// From a batch of format `json` a consumer sends back the items that failed.
#[test]
fn items_of_a_batch_are_tried_again_one_by_one() {
    let site = Site::new("items");
    let inbox = site.inbox("mykey");
    let daemon = site.start(&site.config().text("defaults.window", "60s"));
    let push = |body: &str| site.push("mykey", body).customer("c");
    site.client.publish_all([push("1").id("given"), push("2")]);
    close_window(&daemon, "mykey", "c", 2);
    let mut batch = inbox.batch();
    assert_eq!(batch.items.len(), 2);
    for round in 1..4 {
        let ids: Vec<String> = batch.ids().iter().map(ToString::to_string).collect();
        for id in &ids {
            let again = push("again").id(id).with("x-batch", &batch.id);
            site.client.publish_all([again.clone(), again]);
        }
        close_window(&daemon, "mykey", "c", 2);
        let next = inbox.batch();
        assert_eq!(next.ids(), ids, "round {round}");
        assert_ne!(next.id, batch.id, "round {round}");
        batch = next;
    }
    inbox.quiet(Duration::from_millis(500));
}
