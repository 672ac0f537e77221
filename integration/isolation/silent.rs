//! Many queues that take what they are sent and confirm nothing: whoever else has something due is not late for them,
//! whether it is busy, rests between its items, or has never been heard of.

use super::lost::{config, losses, EGRESS};
use std::time::{Duration, Instant};
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::{text, wait_until, Daemon, Inbox, Node, Proxy, Site};

const LIMIT: Duration = Duration::from_secs(60);
/// Nobody is later than this.
const LATE: Duration = Duration::from_secs(1);
/// Longer than a confirm proves that a queue can be delivered to.
const REST: Duration = Duration::from_millis(5_500);
const ROUNDS: usize = 3;

struct Story<'s> {
    site: &'s Site<'s>,
    daemon: &'s Daemon,
    count: usize,
}

impl Story<'_> {
    /// An item each of some applications, due at once: all are there in time.
    fn arrive(&self, what: &str, inboxes: &[(&str, &Inbox)]) {
        let began = Instant::now();
        let id = format!("{what}-{}", self.count);
        for (application, _) in inboxes {
            self.site.client.publish(&self.site.push(application, "{}").id(&id));
        }
        for (application, inbox) in inboxes {
            let batch = inbox.poll(LIMIT).expect("it arrives").batch();
            assert_eq!(batch.ids(), [id.as_str()], "{application}");
            let late = began.elapsed();
            let log = self.daemon.log_tail();
            assert!(late < LATE, "{application} is late by {late:?} beside {} ({what}): {log}", self.count);
        }
    }
}

fn silent_ones(name: &str, count: usize, kind: &str) {
    let Some(node) = Node::own(name, "") else { return };
    let site = Site::on(&node, name);
    let daemon = site.start(&site.config());
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text(kind));
    let mute = |n: usize| format!("mute{n}");
    let queues: Vec<String> = (0..count).map(|n| site.queue(&mute(n))).collect();
    (0..count).for_each(|n| site.application_with(&mute(n), arguments.clone()));
    let inbox_of = |application: &str| {
        site.application_with(application, arguments.clone());
        site.client.consume(&site.queue(application))
    };
    let (busy, rests, first) = (inbox_of("busy"), inbox_of("rests"), inbox_of("first"));
    let news: Vec<(String, Inbox)> =
        (0..ROUNDS).map(|n| format!("new{n}")).map(|name| (name.clone(), inbox_of(&name))).collect();
    let story = Story { site: &site, daemon: &daemon, count };
    let both = [("busy", &busy), ("rests", &rests)];
    story.arrive("before", &both);

    node.silence(&queues);
    // Of none of these is anything known.
    let at_once = (0..count).map(|n| site.push(&mute(n), "{}").id("kept"));
    site.client.publish_all(at_once);
    story.arrive("at once", &[("first", &first), ("busy", &busy)]);
    wait_until("all are out", LIMIT, || daemon.items("in_flight") == count as u64);
    for (round, (name, new)) in news.iter().enumerate() {
        let rested = Instant::now();
        let mut n = 0;
        while rested.elapsed() < REST {
            story.arrive(&format!("busy {round}.{n}"), &[("busy", &busy)]);
            n += 1;
            std::thread::sleep(Duration::from_millis(100));
        }
        story.arrive(&format!("rested {round}"), &[both[0], both[1], (name, new)]);
    }
    // Each has its batch once, and has had it all the time.
    node.wake(&queues);
    for queue in &queues {
        let inbox = site.client.consume(queue);
        assert_eq!(inbox.batch().ids(), ["kept"]);
    }
    wait_until("they are confirmed", LIMIT, || daemon.items("in_flight") == 0);
    assert_eq!(daemon.state()["totals"]["unknown"], 0);
}

#[test]
fn eight_silent_queues_make_nobody_late() {
    silent_ones("eight_silent_queues", 8, "classic");
}

#[test]
fn sixteen_silent_queues_make_nobody_late() {
    silent_ones("sixteen_silent_queues", 16, "classic");
}

#[test]
fn sixteen_silent_quorum_queues_make_nobody_late() {
    silent_ones("sixteen_silent_quorum_queues", 16, "quorum");
}

#[test]
fn forty_silent_queues_make_nobody_late() {
    silent_ones("forty_silent_queues", 40, "classic");
}

#[test]
fn forty_silent_quorum_queues_make_nobody_late() {
    silent_ones("forty_silent_quorum_queues", 40, "quorum");
}

/// More than there are channels: those that wait in vain give their places up in turn.
#[test]
fn two_hundred_silent_queues_make_nobody_late() {
    let (name, count) = ("two_hundred_silent_queues", 200);
    let Some(node) = Node::own(name, "") else { return };
    let site = Site::on(&node, name);
    let daemon = site.start(&site.config());
    let mute = |n: usize| format!("mute{n}");
    let queues: Vec<String> = (0..count).map(|n| site.queue(&mute(n))).collect();
    (0..count).for_each(|n| site.application(&mute(n)));
    let inboxes = ["busy", "rests", "first"].map(|name| (name, site.inbox(name)));
    let [busy, rests, first] = inboxes.each_ref().map(|(name, inbox)| (*name, inbox));
    let story = Story { site: &site, daemon: &daemon, count };
    story.arrive("before", &[busy, rests]);
    node.silence(&queues);
    site.client.publish_all((0..count).map(|n| site.push(&mute(n), "{}").id("kept")));
    story.arrive("at once", &[first, busy]);
    for round in 0..ROUNDS {
        std::thread::sleep(REST);
        story.arrive(&format!("rested {round}"), &[busy, rests, first]);
    }
    assert_eq!(daemon.ask("GET", "/readyz").0, 200);
    node.wake(&queues);
    for queue in &queues {
        assert_eq!(site.client.consume(queue).batch().ids(), ["kept"]);
    }
    wait_until("they are confirmed", LIMIT, || daemon.items("in_flight") == 0 && daemon.items("parked") == 0);
}

/// What was out to them when the connection was lost is tried again, each alone; beside that others go on.
fn suspects_of(name: &str, count: usize, kind: &str) {
    let Some(node) = Node::own(name, "") else { return };
    let site = Site::on(&node, name);
    // Beside the broker, which may wait for a silent queue before it closes a connection.
    let proxy = Proxy::start(node.login().0);
    let daemon = site.start(&config(&site, &proxy.uri(EGRESS, "%2f")));
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text(kind));
    let mute = |n: usize| format!("mute{n}");
    let queues: Vec<String> = (0..count).map(|n| site.queue(&mute(n))).collect();
    (0..count).for_each(|n| site.application_with(&mute(n), arguments.clone()));
    let inboxes = ["busy", "rests", "first"].map(|name| (name, site.inbox(name)));
    let [busy, rests, first] = inboxes.each_ref().map(|(name, inbox)| (*name, inbox));
    let story = Story { site: &site, daemon: &daemon, count };
    story.arrive("before", &[busy, rests]);
    node.silence(&queues);
    site.client.publish_all((0..count).map(|n| site.push(&mute(n), "{}").id("kept")));
    wait_until("all are out, or were", LIMIT, || {
        daemon.items("in_flight") + daemon.items("parked") == count as u64
    });
    for round in 0..ROUNDS {
        // Else they would come once more.
        let arrived = 2 + 5 * round as u64;
        wait_until("all is confirmed", LIMIT, || daemon.state()["totals"]["confirmed"] == arrived);
        let before = losses(&daemon);
        proxy.cut(true);
        wait_until("the connection is lost", LIMIT, || losses(&daemon) > before);
        wait_until("it is connected again", LIMIT, || daemon.ask("GET", "/readyz").0 == 200);
        story.arrive(&format!("after loss {round}"), &[busy, first]);
        std::thread::sleep(REST);
        story.arrive(&format!("rested {round}"), &[busy, rests, first]);
    }
    node.wake(&queues);
    for queue in &queues {
        assert_eq!(site.client.consume(queue).batch().ids(), ["kept"]);
    }
    wait_until("they are confirmed", LIMIT, || daemon.items("in_flight") == 0 && daemon.items("parked") == 0);
}

#[test]
fn suspects_of_forty_silent_quorum_queues_make_nobody_late() {
    suspects_of("suspects_of_forty", 40, "quorum");
}

#[test]
fn suspects_of_two_hundred_silent_queues_make_nobody_late() {
    suspects_of("suspects_of_two_hundred", 200, "classic");
}
