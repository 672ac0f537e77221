//! Many queues that take what they are sent and confirm nothing: whoever else has something due is not late for them,
//! whether it is busy, rests between its items, or has never been heard of.

use super::lost::{config, losses, EGRESS};
use std::cell::Cell;
use std::time::{Duration, Instant};
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::{alone, best_of_three, text, wait_until, Daemon, Inbox, Node, Proxy, Site};

const LIMIT: Duration = Duration::from_secs(60);
/// Nobody is later than this, where it is measured.
const LATE: Duration = Duration::from_secs(1);
/// Who waits for a place that a silent queue has is later than this: it is given up after 30 s.
const HELD_UP: Duration = Duration::from_secs(20);
/// Longer than a confirm proves that a queue can be delivered to.
const REST: Duration = Duration::from_millis(5_500);
const ROUNDS: usize = 2;
/// What hangs has so many channels.
const CHANNELS: usize = 64;

struct Story<'s> {
    site: &'s Site<'s>,
    daemon: &'s Daemon,
    count: usize,
    measured: bool,
    /// Items that have arrived.
    arrived: Cell<u64>,
}

impl Story<'_> {
    /// An item each of some applications, due at once: all are there in time. One set of applications is tried, or up to
    /// three where it is measured.
    fn arrive(&self, what: &str, sets: [&[(&str, &Inbox)]; 3]) {
        let late = |round: usize| self.latest(&format!("{what}.{round}"), sets[round]);
        if !self.measured {
            let late = late(0);
            let log = self.daemon.log_tail();
            assert!(late < HELD_UP, "{what}: late by {late:?} beside {}: {log}", self.count);
            return;
        }
        best_of_three(|round| {
            let late = late(round as usize);
            (late < LATE).then_some(()).ok_or_else(|| format!("{what}: {late:?} beside {}", self.count))
        });
    }

    /// The same set as often as it is tried.
    fn arrive_again(&self, what: &str, set: &[(&str, &Inbox)]) {
        self.arrive(what, [set; 3]);
    }

    fn latest(&self, what: &str, inboxes: &[(&str, &Inbox)]) -> Duration {
        let began = Instant::now();
        let id = format!("{what}-{}", self.count);
        for (application, _) in inboxes {
            self.site.client.publish(&self.site.push(application, "{}").id(&id));
        }
        for (application, inbox) in inboxes {
            assert_eq!(inbox.batch().ids(), [id.as_str()], "{application}: {}", self.daemon.log_tail());
            self.arrived.set(self.arrived.get() + 1);
        }
        began.elapsed()
    }
}

/// More and more of them, as `counts` says.
fn silent_ones(name: &str, counts: &[usize], kind: &str, measured: bool) {
    let Some(node) = Node::own(name, "") else { return };
    let site = Site::on(&node, name);
    let daemon = site.start(&site.config());
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text(kind));
    let all = *counts.last().expect("a count");
    let mute = |n: usize| format!("mute{n}");
    let queues: Vec<String> = (0..all).map(|n| site.queue(&mute(n))).collect();
    (0..all).for_each(|n| site.application_with(&mute(n), arguments.clone()));
    let inbox_of = |application: &str| {
        site.application_with(application, arguments.clone());
        site.client.consume(&site.queue(application))
    };
    let busy = ("busy", &inbox_of("busy"));
    let three_of = |what: &str| -> [(String, Inbox); 3] {
        [0, 1, 2].map(|n| format!("{what}-{n}")).map(|name| (name.clone(), inbox_of(&name)))
    };
    let rests = three_of("rests");
    let rests = rests.each_ref().map(|(name, inbox)| (name.as_str(), inbox));
    let story_of = |count| Story { site: &site, daemon: &daemon, count, measured, arrived: Cell::new(0) };
    story_of(0).arrive_again("before", &[busy, rests[0], rests[1], rests[2]]);

    let mut silent = 0;
    for count in counts.iter().copied() {
        let story = story_of(count);
        let (firsts, news) = (three_of(&format!("first{count}")), three_of(&format!("new{count}")));
        node.silence(&queues[silent..count]);
        // Of none of these is anything known.
        let at_once = (silent..count).map(|n| site.push(&mute(n), "{}").id("kept"));
        site.client.publish_all(at_once);
        silent = count;
        let sets = firsts.each_ref().map(|(name, inbox)| [(name.as_str(), inbox), busy]);
        story.arrive("at once", sets.each_ref().map(|set| set.as_slice()));
        if count <= CHANNELS {
            wait_until("all are out", LIMIT, || daemon.items("in_flight") == count as u64);
        }
        for round in 0..if count == all && !measured { ROUNDS } else { 1 } {
            let rested = Instant::now();
            let mut n = 0;
            while rested.elapsed() < REST {
                story.arrive_again(&format!("busy {round}.{n}"), &[busy]);
                n += 1;
                std::thread::sleep(Duration::from_millis(100));
            }
            let sets = [0, 1, 2].map(|n| [busy, rests[n], (news[n].0.as_str(), &news[n].1)]);
            story.arrive(&format!("rested {round}"), sets.each_ref().map(|set| set.as_slice()));
        }
    }
    assert_eq!(daemon.ask("GET", "/readyz").0, 200);
    // Each has its batch once, and has had it all the time where there were channels for all.
    node.wake(&queues);
    for queue in &queues {
        let inbox = site.client.consume(queue);
        assert_eq!(inbox.batch().ids(), ["kept"]);
    }
    wait_until("they are confirmed", LIMIT, || daemon.items("in_flight") == 0 && daemon.items("parked") == 0);
    assert!(all > CHANNELS || daemon.state()["totals"]["unknown"] == 0);
}

#[test]
fn silent_queues_make_nobody_late_however_many() {
    silent_ones("silent_queues", &[8, 16, 40], "classic", false);
}

#[test]
fn silent_quorum_queues_make_nobody_late_however_many() {
    silent_ones("silent_quorum_queues", &[8, 16, 40], "quorum", false);
}

/// What was out to them when the connection was lost is tried again, each alone; beside that others go on.
fn suspects_of(name: &str, count: usize, kind: &str, measured: bool) {
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
    let story = Story { site: &site, daemon: &daemon, count, measured, arrived: Cell::new(0) };
    story.arrive_again("before", &[busy, rests]);
    node.silence(&queues);
    site.client.publish_all((0..count).map(|n| site.push(&mute(n), "{}").id("kept")));
    wait_until("all are out, or were", LIMIT, || {
        daemon.items("in_flight") + daemon.items("parked") == count as u64
    });
    for round in 0..if measured { 1 } else { ROUNDS } {
        // Else they would come once more.
        wait_until("all is confirmed", LIMIT, || {
            daemon.state()["totals"]["confirmed"] == story.arrived.get()
        });
        let before = losses(&daemon);
        proxy.cut(true);
        wait_until("the connection is lost", LIMIT, || losses(&daemon) > before);
        wait_until("it is connected again", LIMIT, || daemon.ask("GET", "/readyz").0 == 200);
        story.arrive_again(&format!("after loss {round}"), &[busy, first]);
        std::thread::sleep(REST);
        story.arrive_again(&format!("rested {round}"), &[busy, rests, first]);
    }
    node.wake(&queues);
    for queue in &queues {
        assert_eq!(site.client.consume(queue).batch().ids(), ["kept"]);
    }
    wait_until("they are confirmed", LIMIT, || daemon.items("in_flight") == 0 && daemon.items("parked") == 0);
}

#[test]
fn suspects_of_forty_silent_quorum_queues_make_nobody_late() {
    suspects_of("suspects_of_forty", 40, "quorum", false);
}

mod alone {
    use super::{alone, silent_ones, suspects_of};

    /// They are more than there are channels: those that wait in vain give their places up in turn.
    #[test]
    fn beside_two_hundred_silent_queues_nobody_is_a_second_late() {
        alone();
        silent_ones("silent_measured", &[200], "classic", true);
    }

    #[test]
    fn beside_two_hundred_suspects_nobody_is_a_second_late() {
        alone();
        suspects_of("suspects_measured", 200, "classic", true);
    }
}
