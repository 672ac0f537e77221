//! Queues in back-off, slow probes, and which flights give up their channels to others.

use super::channels::Shortage;
use super::{Dispatch, LATE_PROBE_MS};
use crate::backoff::{self, Random};
use crate::ids::QueueId;
use crate::live::LiveItems;
use crate::mutant::{mutated, Mutant};
use crate::queue::Condition;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use tidegate_types::Now;

impl Dispatch {
    /// Begins the back-off of a queue, until `until`, monotonic ms.
    pub(crate) fn begin_backoff(&mut self, queue: QueueId, until: u64) {
        self.backoffs.insert((until, queue));
    }

    /// Ends the back-offs whose time has come.
    pub(crate) fn end_backoffs(&mut self, live: &mut LiveItems, now: Now) {
        if mutated(Mutant::ParkedForEver) {
            return;
        }
        while let Some((until, queue)) = self.backoffs.first().copied().filter(|(at, _)| *at <= now.mono) {
            self.backoffs.pop_first();
            self.end_backoff(live, queue, until);
        }
    }

    fn end_backoff(&mut self, live: &mut LiveItems, queue: QueueId, until: u64) {
        if live.queues.get(queue).is_some() && live.queues.at(queue).at_work().health_mut().end_pause(until) {
            live.queues.at(queue).requeue();
        }
    }

    /// Ends the back-off of a queue now, by a command.
    pub(crate) fn retry_now(&mut self, live: &mut LiveItems, queue: QueueId, until: u64) {
        self.backoffs.remove(&(until, queue));
        self.end_backoff(live, queue, until);
    }

    /// Queues whose probes have become slow since the last call.
    pub(crate) fn late_probes(&self, live: &LiveItems, now: Now) -> Vec<QueueId> {
        let late = self.channels.taken().filter(|(_, since)| since + LATE_PROBE_MS <= now.mono);
        let queues = late.filter_map(|(number, _)| self.flights.get(number).map(|flight| flight.queue));
        queues
            .filter(|queue| {
                live.queues[*queue].active().is_some_and(|active| !active.is(Condition::SlowProbe))
            })
            .collect()
    }

    /// When something must be done without an event, monotonic ms.
    pub(crate) fn deadline(&self, live: &LiveItems) -> Option<u64> {
        let backoff = self.backoffs.first().map(|(at, _)| *at);
        let channel = self.channels.next_given_up(self.wanted(live));
        let late = self.channels.taken().filter(|(number, _)| {
            let queue = self.flights.get(*number).and_then(|flight| live.queues.get(flight.queue));
            queue.and_then(|queue| queue.active()).is_some_and(|active| !active.is(Condition::SlowProbe))
        });
        let late = late.map(|(_, since)| since + LATE_PROBE_MS).min();
        [backoff, channel, late, self.paced.next()].into_iter().flatten().min()
    }

    // ---- giving up channels -------------------------------------------------------------------------------

    /// Batches that wait for a channel, or for the slot of a batch that is alone.
    fn wanted(&self, live: &LiveItems) -> Shortage {
        if !self.egress.is_open() {
            return Shortage::default();
        }
        let (mut sound, mut failing) = self.channels.waiting();
        if !self.channels.has_room(false) || !self.channels.has_room(true) {
            let queues: BTreeSet<QueueId> = self.waiting_suspects(live).map(|(_, queue)| queue).collect();
            let of_failing = queues.iter().filter(|queue| live.queues[**queue].is_failing()).count();
            sound += queues.len() - of_failing;
            failing += of_failing;
        }
        let any = sound + failing > 0 || !self.suspects.is_empty() || live.queues.is_anything_running();
        let (slots, bytes) = self.channels.held();
        Shortage {
            sound,
            failing,
            slot: any && !self.egress.has_room() && self.egress.is_mostly(slots, bytes),
        }
    }

    /// The flights that give up their channels for others; the publisher settles them.
    pub(crate) fn give_up(&mut self, live: &LiveItems, now: Now) -> Vec<u64> {
        let wanted = self.wanted(live);
        self.channels.give_up(wanted, now)
    }

    /// A batch that took its slot at `since` was confirmed.
    pub(crate) fn heard(&mut self, since: u64, now: Now) {
        self.channels.heard(now.mono.saturating_sub(since));
    }
}

/// After a reload: no back-off lasts longer than one that begins now.
pub(crate) fn shorten_backoffs(dispatch: &mut Dispatch, live: &mut LiveItems, random: &mut Random, now: Now) {
    for (until, queue) in dispatch.backoffs.iter().copied().collect::<Vec<_>>() {
        if live.queues.get(queue).is_none() {
            continue;
        }
        let retry = live.queues.settings_of(queue).retry;
        let health = live.queues.at(queue).at_work().health_mut();
        let sooner = now.mono + backoff::pause(&retry, health.failures(), random.draw());
        if sooner < until && health.shorten_pause(until, sooner) {
            dispatch.backoffs.remove(&(until, queue));
            dispatch.begin_backoff(queue, sooner);
        }
    }
}
