//! Many queues that accept messages but never confirm: other applications are not delayed, whether they are
//! busy, idle between their items, or new.
//!
//! Judges promise 6.

use super::lost::{config, losses};
use super::{in_time, HELD_UP};
use std::cell::Cell;
use std::time::{Duration, Instant};
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::{alone, best_of_three, text, wait_until, Daemon, Inbox, Node, Site};

const LIMIT: Duration = Duration::from_secs(60);
/// Longer than the time for which a confirm proves that a queue can be delivered to.
const REST: Duration = Duration::from_millis(5_500);
const ROUNDS: usize = 2;
/// Number of channels for batches alone.
const CHANNELS: usize = 64;

struct Story<'s> {
    site: &'s Site<'s>,
    daemon: &'s Daemon,
    /// Largest lateness so far.
    latest: &'s Cell<Duration>,
    count: usize,
}

impl Story<'_> {
    /// Publishes one item for each of these applications, due at once, and expects all in time.
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
            assert!(
                late < HELD_UP,
                "{application} is late by {late:?} beside {} ({what}): {log}",
                self.count
            );
            self.latest.set(self.latest.get().max(late));
        }
    }
}

/// Silences more and more queues, as `counts` says. Returns the largest lateness of another application's
/// item.
fn silent_ones(name: &str, counts: &[usize], kind: &str) -> Duration {
    let latest = Cell::default();
    let Some(node) = Node::controlled(name) else { return latest.get() };
    let site = Site::on(node, name);
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
    let (busy, rests) = (inbox_of("busy"), inbox_of("rests"));
    let news_of = |what: &str| -> Vec<(String, Inbox)> {
        let names = counts.iter().map(|count| format!("{what}{count}"));
        names.map(|name| (name.clone(), inbox_of(&name))).collect()
    };
    let (firsts, news) = (news_of("first"), news_of("new"));
    let both = [("busy", &busy), ("rests", &rests)];
    Story { site: &site, daemon: &daemon, latest: &latest, count: 0 }.arrive("before", &both);

    let mut silent = 0;
    for ((count, (first, to_first)), (new, to_new)) in counts.iter().copied().zip(&firsts).zip(&news) {
        let story = Story { site: &site, daemon: &daemon, latest: &latest, count };
        node.silence(&queues[silent..count]);
        // All of these are unproven.
        let at_once = (silent..count).map(|n| site.push(&mute(n), "{}").id("kept"));
        site.client.publish_all(at_once);
        silent = count;
        story.arrive("at once", &[(first, to_first), both[0]]);
        if count <= CHANNELS {
            wait_until("all are out", LIMIT, || daemon.items("in_flight") == count as u64);
        }
        for round in 0..if count == all { ROUNDS } else { 1 } {
            let rested = Instant::now();
            let mut n = 0;
            while rested.elapsed() < REST {
                story.arrive(&format!("busy {round}.{n}"), &both[..1]);
                n += 1;
                std::thread::sleep(Duration::from_millis(100));
            }
            story.arrive(&format!("rested {round}"), &[both[0], both[1], (new, to_new)]);
        }
    }
    assert_eq!(daemon.ask("GET", "/readyz").0, 200);
    // Each has its batch exactly once; with enough channels for all, its first publish is still open.
    node.wake(&queues);
    for queue in &queues {
        let inbox = site.client.consume(queue);
        assert_eq!(inbox.batch().ids(), ["kept"]);
    }
    wait_until("they are confirmed", LIMIT, || daemon.items("in_flight") == 0 && daemon.items("parked") == 0);
    assert!(all > CHANNELS || daemon.state()["totals"]["unknown"] == 0);
    latest.get()
}

#[test]
fn silent_queues_make_nobody_late_however_many() {
    silent_ones("silent_queues", &[8, 16, 40], "classic");
}

#[test]
fn silent_quorum_queues_make_nobody_late_however_many() {
    silent_ones("silent_quorum_queues", &[8, 16, 40], "quorum");
}

/// Batches in flight to silent queues at the loss of the connection are suspects, and each is sent alone
/// again while other applications continue. Returns the largest lateness of another application's item.
fn suspects_of(name: &str, count: usize, kind: &str) -> Duration {
    let latest = Cell::default();
    let Some(node) = Node::controlled(name) else { return latest.get() };
    let site = Site::on(node, name);
    // A proxy cuts the connection, because the broker may wait for a silent queue before it closes one.
    let (proxy, uri) = node.proxied();
    let daemon = site.start(&config(&site, &uri));
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text(kind));
    let mute = |n: usize| format!("mute{n}");
    let queues: Vec<String> = (0..count).map(|n| site.queue(&mute(n))).collect();
    (0..count).for_each(|n| site.application_with(&mute(n), arguments.clone()));
    let inboxes = ["busy", "rests", "first"].map(|name| (name, site.inbox(name)));
    let [busy, rests, first] = inboxes.each_ref().map(|(name, inbox)| (*name, inbox));
    let story = Story { site: &site, daemon: &daemon, latest: &latest, count };
    story.arrive("before", &[busy, rests]);
    node.silence(&queues);
    site.client.publish_all((0..count).map(|n| site.push(&mute(n), "{}").id("kept")));
    wait_until("all are out, or were", LIMIT, || {
        daemon.items("in_flight") + daemon.items("parked") == count as u64
    });
    for round in 0..ROUNDS {
        // Unconfirmed items would be sent again.
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
    latest.get()
}

#[test]
fn suspects_of_forty_silent_quorum_queues_make_nobody_late() {
    suspects_of("suspects_of_forty", 40, "quorum");
}

mod alone {
    use super::*;

    /// More queues than channels: batches that are not confirmed give up their channels in turn.
    #[test]
    fn beside_two_hundred_silent_queues_nobody_is_a_second_late() {
        alone();
        best_of_three(|round| in_time(silent_ones(&format!("silent_ones_{round}"), &[200], "classic")));
    }

    #[test]
    fn beside_two_hundred_suspects_nobody_is_a_second_late() {
        alone();
        best_of_three(|round| in_time(suspects_of(&format!("suspects_{round}"), 200, "classic")));
    }
}
