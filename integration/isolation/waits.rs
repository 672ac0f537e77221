//! A queue that never confirms, and producers that go on about what hangs there: others go on, within a second where
//! that is measured, and nothing is lost.

use super::lost::in_flight;
use std::time::{Duration, Instant};
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::{alone, best_of_three, text, wait_until, Asker, Daemon, Inbox, Node, Push, Site};

const LIMIT: Duration = Duration::from_secs(60);
/// Another application's items arrive within this time, where it is measured.
const SOON: Duration = Duration::from_secs(1);
/// Who waits for what hangs is later than this: it is given up after 30 s.
const HELD_UP: Duration = Duration::from_secs(20);

/// More than the default prefetch.
const MANY: u32 = 10_500;
const CANCELS: u32 = 2_500;

fn replace(site: &Site<'_>, id: &str, body: &str) -> Push {
    let push = site.push("mute", format!("\"{body}\"")).content_type("application/json");
    push.id(id).with("x-on-duplicate", "replace")
}

/// All that was sent has been judged, though the queue hangs: the line does not stop.
fn taken(site: &Site<'_>, other: &Inbox) {
    wait_until("the ingest queue is taken", LIMIT, || site.client.depth(&site.ingest_queue()) == Some(0));
    // And judged: the line is in order, and each of one id that lies in the store alone takes a look there.
    let id = format!("behind{}", tidegate_harness::now_us());
    site.client.publish(&site.push("other", "{}").id(&id));
    let behind: Vec<_> =
        other.take(1, LIMIT).into_iter().map(|message| message.batch().ids()[0].to_owned()).collect();
    assert_eq!(behind, [id]);
}

/// Items of another application, one behind the other: each arrives soon.
fn others_arrive(site: &Site<'_>, other: &Inbox, what: &str, (daemon, measured): (&Daemon, bool)) {
    let slowest = |round: u32| {
        let ids = (0..5).map(|n| format!("{what}.{round}.{n}"));
        let took = ids.map(|id| {
            let begun = Instant::now();
            site.client.publish(&site.push("other", "{}").id(&id));
            assert_eq!(other.batch().ids(), [id], "{}", daemon.log_tail());
            begun.elapsed()
        });
        took.max().expect("five")
    };
    if !measured {
        let took = slowest(0);
        assert!(took < HELD_UP, "{what}: it took {took:?}: {}", daemon.log_tail());
        return;
    }
    best_of_three(|round| {
        let took = slowest(round);
        (took < SOON).then_some(()).ok_or_else(|| format!("{what}: it took {took:?}"))
    });
}

fn hold(name: &str, kind: &str, prefetch: Option<u32>, replaces: u32, measured: bool) {
    let Some(node) = Node::own(name, "") else { return };
    let site = Site::on(&node, name);
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text(kind));
    let mut config = site.config();
    if let Some(prefetch) = prefetch {
        config = config.set("ingest.prefetch", &prefetch.to_string());
    }
    let daemon = site.start(&config);
    let other = site.inbox("other");
    site.application_with("mute", arguments);
    others_arrive(&site, &other, "before", (&daemon, measured));
    node.silence(&[site.queue("mute")]);
    site.client.publish(&replace(&site, "x", "0"));
    in_flight(&daemon, "mute");
    site.client.publish_all((1..=replaces).map(|n| replace(&site, "x", &n.to_string())));
    taken(&site, &other);
    others_arrive(&site, &other, "beside what is replaced", (&daemon, measured));
    let asker = Asker::new(&site);
    let cancel = |n: u32| asker.command(site.push("mute", "").id("x"), "tidegate.cancel", &n.to_string());
    site.client.publish_all((0..CANCELS).map(cancel));
    taken(&site, &other);
    others_arrive(&site, &other, "beside what is cancelled", (&daemon, measured));
    for _ in 0..CANCELS {
        let answer = asker.next().json();
        assert!(["in_flight", "cancelled"].iter().any(|result| answer["result"] == *result), "{answer}");
    }
    site.client.publish(&replace(&site, "x", "last"));
    others_arrive(&site, &other, "at the end", (&daemon, measured));
    node.wake(&[site.queue("mute")]);
    let mute = site.client.consume(&site.queue("mute"));
    let mut bodies = Vec::new();
    while bodies.last().is_none_or(|body| *body != "last") {
        bodies.extend(mute.batch().items.into_iter().filter_map(|item| item.payload));
    }
    wait_until("all is acked", LIMIT, || site.client.depth(&site.ingest_queue()) == Some(0));
}

#[test]
fn what_replaces_and_cancels_what_hangs_holds_nobody_up_with_a_small_prefetch() {
    hold("waits-small", "classic", Some(10), 2_000, false);
}

#[test]
fn what_replaces_and_cancels_what_hangs_in_a_quorum_queue_holds_nobody_up() {
    hold("waits-quorum", "quorum", None, MANY, false);
}

/// As many ids as would fill the prefetch are in flight, and each is replaced.
#[test]
fn what_replaces_many_that_hang_holds_nobody_up() {
    let name = "waits-many";
    let Some(node) = Node::own(name, "") else { return };
    let site = Site::on(&node, name);
    let daemon = site.start(&site.config().set("ingest.prefetch", "500").text("defaults.window", "300ms"));
    let other = site.inbox("other");
    site.application("mute");
    others_arrive(&site, &other, "before", (&daemon, false));
    node.silence(&[site.queue("mute")]);
    let count = 700;
    let one = |n: u32, body: &str| replace(&site, &n.to_string(), body).customer("ann");
    site.client.publish_all((0..count).map(|n| one(n, "old")));
    in_flight(&daemon, "mute");
    site.client.publish_all((0..count).map(|n| one(n, "new")));
    others_arrive(&site, &other, "beside what is replaced", (&daemon, false));
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
    use super::{alone, hold, MANY};

    #[test]
    fn what_replaces_and_cancels_what_hangs_holds_nobody_up() {
        alone();
        hold("waits-default", "classic", None, MANY, true);
    }
}
