//! A queue that never confirms, and producers that replace and cancel its item in flight: others continue,
//! and nothing is lost.
//!
//! Judges promise 6.

use super::lost::in_flight;
use super::{in_time, HELD_UP};
use std::cell::Cell;
use std::time::{Duration, Instant};
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::{alone, best_of_three, text, wait_until, Asker, Daemon, Inbox, Node, Push, Site};

const LIMIT: Duration = Duration::from_secs(60);

/// More than the default prefetch.
const MANY: u32 = 10_500;
const CANCELS: u32 = 2_500;
/// No answer comes after this time: more than twice the time for which the daemon keeps one.
const SILENCE: Duration = Duration::from_secs(15);

fn replace(site: &Site<'_>, id: &str, body: &str) -> Push {
    let push = site.push("mute", format!("\"{body}\"")).content_type("application/json");
    push.id(id).with("x-on-duplicate", "replace")
}

/// Waits until all requests have been processed although the queue is silent: intake does not stop.
fn taken(site: &Site<'_>, other: &Inbox) {
    wait_until("the ingest queue is taken", LIMIT, || site.client.depth(&site.ingest_queue()) == Some(0));
    // Requests are processed in order, so this one comes last. Each duplicate of an item in the store only
    // needs a look-up there.
    let id = format!("behind{}", tidegate_harness::now_us());
    site.client.publish(&site.push("other", "{}").id(&id));
    let behind: Vec<_> =
        other.take(1, LIMIT).into_iter().map(|message| message.batch().ids()[0].to_owned()).collect();
    assert_eq!(behind, [id]);
}

/// Publishes items of another application one after the other; each must arrive soon. Returns the longest
/// time.
fn others_arrive(site: &Site<'_>, other: &Inbox, from: u32, daemon: &Daemon) -> Duration {
    let mut slowest = Duration::ZERO;
    for n in from..from + 5 {
        let id = format!("other{n}");
        let begun = Instant::now();
        site.client.publish(&site.push("other", "{}").id(&id));
        assert_eq!(other.batch().ids(), [id], "{}", daemon.log_tail());
        let took = begun.elapsed();
        assert!(took < HELD_UP, "it took {took:?}: {}", daemon.log_tail());
        slowest = slowest.max(took);
    }
    slowest
}

/// Replaces and cancels an item in flight many times. Returns the longest time of another application's item.
fn hold(name: &str, kind: &str, prefetch: Option<u32>, replaces: u32) -> Duration {
    let slowest = Cell::new(Duration::ZERO);
    let Some(node) = Node::controlled(name) else { return slowest.get() };
    let site = Site::on(node, name);
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text(kind));
    let mut config = site.config();
    if let Some(prefetch) = prefetch {
        config = config.set("ingest.prefetch", &prefetch.to_string());
    }
    let daemon = site.start(&config);
    let other = site.inbox("other");
    site.application_with("mute", arguments);
    let others_arrive =
        |from: u32| slowest.set(slowest.get().max(others_arrive(&site, &other, from, &daemon)));
    others_arrive(0);
    node.silence(&[site.queue("mute")]);
    site.client.publish(&replace(&site, "x", "0"));
    in_flight(&daemon, "mute");
    site.client.publish_all((1..=replaces).map(|n| replace(&site, "x", &n.to_string())));
    taken(&site, &other);
    others_arrive(10);
    let asker = Asker::new(&site);
    let cancel = |n: u32| asker.command(site.push("mute", "").id("x"), "tidegate.cancel", &n.to_string());
    site.client.publish_all((0..CANCELS).map(cancel));
    taken(&site, &other);
    others_arrive(20);
    let mut answered = 0;
    wait_until("all are answered", LIMIT, || {
        while let Some(answer) = asker.poll(SILENCE).map(|answer| answer.json()) {
            assert!(["in_flight", "cancelled"].iter().any(|result| answer["result"] == *result), "{answer}");
            answered += 1;
            if answered == CANCELS {
                return true;
            }
        }
        // The daemon drops answers that a busy broker does not take: those are asked for again.
        site.client.publish_all((answered..CANCELS).map(cancel));
        false
    });
    site.client.publish(&replace(&site, "x", "last"));
    others_arrive(30);
    node.wake(&[site.queue("mute")]);
    let mute = site.client.consume(&site.queue("mute"));
    let mut bodies = Vec::new();
    while bodies.last().is_none_or(|body| *body != "last") {
        bodies.extend(mute.batch().items.into_iter().filter_map(|item| item.payload));
    }
    wait_until("all is acked", LIMIT, || site.client.depth(&site.ingest_queue()) == Some(0));
    slowest.get()
}

#[test]
fn what_replaces_and_cancels_what_hangs_holds_nobody_up_with_a_small_prefetch() {
    hold("waits-small", "classic", Some(10), 2_000);
}

#[test]
fn what_replaces_and_cancels_what_hangs_in_a_quorum_queue_holds_nobody_up() {
    hold("waits-quorum", "quorum", None, MANY);
}

/// Enough ids to fill the prefetch are in flight, and each is replaced.
#[test]
fn what_replaces_many_that_hang_holds_nobody_up() {
    let name = "waits-many";
    let Some(node) = Node::controlled(name) else { return };
    let site = Site::on(node, name);
    let daemon = site.start(&site.config().set("ingest.prefetch", "500").text("defaults.window", "300ms"));
    let other = site.inbox("other");
    site.application("mute");
    others_arrive(&site, &other, 0, &daemon);
    node.silence(&[site.queue("mute")]);
    let count = 700;
    let one = |n: u32, body: &str| replace(&site, &n.to_string(), body).customer("ann");
    site.client.publish_all((0..count).map(|n| one(n, "old")));
    in_flight(&daemon, "mute");
    site.client.publish_all((0..count).map(|n| one(n, "new")));
    others_arrive(&site, &other, 10, &daemon);
    node.wake(&[site.queue("mute")]);
    let mute = site.client.consume(&site.queue("mute"));
    let mut new = std::collections::BTreeSet::new();
    while new.len() < count as usize {
        let items = mute.batch().items;
        new.extend(items.into_iter().filter(|item| item.payload == Some("new".into())).map(|item| item.id));
    }
    let totals = daemon.state()["totals"].clone();
    assert_eq!(totals["dead"]["full"], 0, "{totals}");
}

mod alone {
    use super::*;

    #[test]
    fn what_replaces_and_cancels_what_hangs_holds_nobody_up_for_a_second() {
        alone();
        best_of_three(|round| in_time(hold(&format!("waits-default-{round}"), "classic", None, MANY)));
    }
}
