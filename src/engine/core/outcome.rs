//! The outcome of a publish, and what it means for the items of its batch and for their queue.

use super::Core;
use crate::dispatch::Flight;
use crate::ids::{ItemId, QueueId};
use crate::items::LetterFacts;
use crate::mutant::{mutated, Mutant};
use crate::queue::Condition;
use alloc::sync::Arc;
use alloc::vec::Vec;
use tidegate_types::snapshot::Counters;
use tidegate_types::{BatchId, End, Now, Outcome, Reason, Settled};

/// First delay of a dead letter that the broker refuses, ms; doubled with each further refusal, up to
/// [`LAST_ASIDE_MS`].
const FIRST_ASIDE_MS: u64 = 5_000;
const LAST_ASIDE_MS: u64 = 300_000;

impl Core {
    /// Takes ended publishes; [`Core::settle`] processes them.
    pub(crate) fn hand_in(&mut self, settled: Vec<Settled>) {
        self.settled.extend(settled);
    }

    /// Processes ended publishes in order, until `rows` items have been in them. Whether that was all.
    pub(crate) fn settle(&mut self, rows: usize, now: Now) -> bool {
        let mut done = 0;
        let mut delivered = Vec::new();
        while done < rows {
            let Some(settled) = self.settled.pop_front() else { break };
            done += self.dispatch.flights.get(settled.number).map_or(0, |flight| flight.rows.len());
            if !matches!(settled.outcome, Outcome::Confirmed(_)) {
                // The next outcomes must find these items ended.
                self.live.finish(&core::mem::take(&mut delivered));
            }
            Landing { core: self, number: settled.number, now }.judge(settled.outcome, &mut delivered);
        }
        self.live.finish(&delivered);
        self.settled.is_empty()
    }

    /// Remembers the former id of a confirmed dead letter; see [`Core::remember_dead`].
    fn remember_letter(&mut self, id: ItemId, now: Now) {
        let item = &self.live.items()[id];
        let Some(LetterFacts { dead, former: Some(identity), .. }) = item.letter().cloned() else { return };
        let (application, _) = self.live.row(item).address();
        let ended = self.ended(id, End::Dead(dead), now);
        let queue = self.live.queues.id(&application);
        self.remember(queue, identity, ended);
    }

    /// Returns a member of a failed batch to its queue, or dead-letters it after its last attempt.
    pub(super) fn return_to_queue(&mut self, id: ItemId, attempted: bool, error: &str, now: Now) {
        let queue = self.live.items()[id].queue();
        let retry = self.live.queues.settings_of(queue).retry;
        let limited = attempted && queue != self.live.queues.dead_letters();
        let item = &self.live.items()[id];
        let (identity, attempts) = (item.identity(), item.tries().attempts);
        if item.is_orphaned() {
            return self.forget(id);
        }
        if limited && retry.is_used_up(attempts) {
            let error = format!("given up after {} attempts (retry.attempts): {error}", retry.attempts);
            return self.dead_letter(id, Reason::Attempts, &error, now);
        }
        let mut home = self.live.home_of(id);
        home.set_flying(id, None);
        home.push_ready(id);
        self.report(identity, None);
    }

    /// Parks the queue for its back-off; then one probe tries it. Batches that wait for their next try return
    /// to the head of the queue.
    fn park(&mut self, queue: QueueId, error: &str, now: Now) {
        let retry = self.live.queues.settings_of(queue).retry;
        let live = self.live.queues.at(queue).at_work();
        live.set(Condition::SlowProbe, false);
        if let Some(until) = live.health_mut().failed(error, &retry, &mut self.random, now.mono) {
            self.dispatch.begin_backoff(queue, until);
        }
        // Batches that wait for their rate return at once.
        self.dispatch.paced.recheck(queue);
        for id in self.dispatch.recall(&mut self.live, queue) {
            self.return_to_queue(id, false, error, now);
        }
        self.live.begin_evicting(queue, now);
    }

    /// The dead exchange is the last resort: a dead letter that the broker refuses waits and is tried again,
    /// alone, and those behind it go on.
    fn step_aside(&mut self, id: ItemId, text: &str, now: Now) {
        if self.live.items()[id].is_orphaned() {
            return self.forget(id);
        }
        let before = self.live.items()[id].letter().map_or(0, |letter| letter.refusals);
        let doubled = FIRST_ASIDE_MS << before.min(10);
        let until = now.wall + doubled.min(LAST_ASIDE_MS);
        self.live.shared.amend(id, |tries| tries.last_error = Some(text.into()));
        self.live.home_of(id).defer_letter(id, until, now);
    }
}

/// Processes one ended publish.
#[derive(Debug)]
struct Landing<'c> {
    core: &'c mut Core,
    /// Number of its flight.
    number: u64,
    now: Now,
}

impl Landing<'_> {
    /// Applies the outcome. Delivered items are added to `delivered`; the caller finishes them.
    fn judge(mut self, outcome: Outcome, delivered: &mut Vec<ItemId>) {
        let Some(alone) = self.core.dispatch.landed(&mut self.core.live, self.number) else {
            debug_assert!(false, "each publish is settled once");
            return;
        };
        if !matches!(outcome, Outcome::Confirmed(_)) {
            self.replace_superseded();
        }
        match outcome {
            Outcome::Confirmed(batch) => self.delivered(batch, delivered),
            Outcome::Returned(_) if mutated(Mutant::ReturnedIsDelivered) => {
                self.delivered(BatchId::default(), delivered);
            }
            Outcome::Unknown if mutated(Mutant::UnknownIsDelivered) => {
                self.delivered(BatchId::default(), delivered);
            }
            Outcome::Nacked if mutated(Mutant::NackedIsDelivered) => {
                self.delivered(BatchId::default(), delivered);
            }
            Outcome::Overdue if mutated(Mutant::OverdueIsDelivered) => {
                self.delivered(BatchId::default(), delivered);
            }
            Outcome::Nacked => {
                self.counters().nacked += 1;
                self.note_known();
                self.failed("nacked by the broker: a bound queue is full or unavailable", true);
            }
            Outcome::Returned(text) => {
                self.counters().returned += 1;
                self.note_known();
                self.failed(&format!("returned by the broker: {text}"), true);
            }
            Outcome::Failed(text) => {
                self.counters().unknown += 1;
                self.note_known();
                self.failed(&format!("the broker fails over this batch (see its log): {text}"), false);
            }
            Outcome::Unavailable(text) => {
                self.core.dispatch.flights.not_published(self.number);
                self.failed(&text, mutated(Mutant::UnavailableCounts));
            }
            Outcome::Refused(text) => {
                self.counters().refused += 1;
                self.refused(alone, &text);
            }
            Outcome::Overdue => {
                self.counters().unknown += 1;
                self.note_unknown();
                self.overdue(alone);
            }
            Outcome::Unknown => {
                self.counters().unknown += 1;
                self.note_unknown();
                self.try_again(alone);
            }
            Outcome::Unsent => {
                self.core.dispatch.flights.not_published(self.number);
                self.try_again(alone);
            }
        }
    }

    fn counters(&mut self) -> &mut Counters {
        self.core.live.shared.counters_mut()
    }

    /// Confirmed and not returned: only this makes an item sent.
    fn delivered(self, batch: BatchId, delivered: &mut Vec<ItemId>) {
        let Landing { core, number, now } = self;
        let Some(flight) = core.dispatch.flights.end(number) else { return };
        let (queue, since) = (flight.queue, flight.since);
        let count = flight.rows.len() as u64;
        let dead_letters = queue == core.live.queues.dead_letters();
        let counters = core.live.shared.counters_mut();
        if dead_letters {
            counters.dead_confirmed += count;
        } else {
            counters.confirmed += count;
            counters.batches_confirmed += 1;
        }
        for id in flight.rows.iter().copied() {
            if dead_letters {
                core.remember_letter(id, now);
            } else {
                let identity = core.live.items()[id].identity();
                if identity.is_given() || core.outcomes_wanted {
                    let ended = core.ended(id, End::Sent(batch), now);
                    core.remember(queue, identity, ended);
                }
            }
        }
        delivered.extend(flight.rows);
        core.dispatch.heard(since, now);
        let share = core.dispatch.egress.share();
        let live = core.live.queues.at(queue).at_work();
        live.count_sent(count);
        live.health_mut().confirmed(since, now.mono, share);
        if live.set(Condition::SlowProbe, false) {
            core.live.at(queue).unstall();
        }
        let mut queue = core.live.queues.at(queue);
        queue.end_hold();
        queue.requeue();
    }

    /// The batch could not be delivered: its members return to the head of their queue, which is parked.
    /// `attempted`: the attempt counts.
    fn failed(self, error: &str, attempted: bool) {
        let Landing { core, number, now } = self;
        let Some(flight) = core.dispatch.flights.end(number) else { return };
        let text: Arc<str> = error.into();
        // A dead letter reports the attempts of the item.
        let counts = attempted && flight.queue != core.live.queues.dead_letters();
        for id in flight.rows {
            core.live.shared.amend(id, |tries| {
                tries.attempts += u32::from(counts && !mutated(Mutant::AttemptForgotten));
                tries.last_error = Some(Arc::clone(&text));
            });
            core.return_to_queue(id, attempted, error, now);
        }
        core.park(flight.queue, error, now);
    }

    /// The broker closed the channel because of this batch, or of another that was unconfirmed on it.
    fn refused(mut self, alone: bool, text: &str) {
        if !alone {
            // Batches published before the refused one may have arrived: their confirms were lost with the
            // channel.
            if !mutated(Mutant::SharedRefusalIsKnown) {
                self.note_unknown();
            }
            return self.suspect();
        }
        self.note_known();
        self.report_attempt_end();
        let Landing { core, number, now } = self;
        if core.dispatch.split(&mut core.live, number) {
            return;
        }
        let Some(flight) = core.dispatch.flights.end(number) else { return };
        for id in flight.rows {
            if flight.queue == core.live.queues.dead_letters() {
                core.step_aside(id, text, now);
            } else {
                core.live.shared.amend(id, |tries| tries.attempts += 1);
                core.dead_letter(id, Reason::Refused, &format!("refused by the broker: {text}"), now);
            }
        }
    }

    /// No confirm came in time. If others were unconfirmed on its channel, it is one of the suspects; if it
    /// was alone, its queue is parked, and the attempt does not count.
    fn overdue(self, alone: bool) {
        let Some(queue) = self.flight().map(|flight| flight.queue) else { return };
        if alone {
            self.failed(
                "no confirm came in time: a bound queue may have lost its majority",
                mutated(Mutant::OverdueCounts),
            );
        } else {
            self.core.live.queues.at(queue).at_work().health_mut().doubt();
            self.suspect();
        }
    }

    /// Publishes it again, alone.
    fn suspect(mut self) {
        if !self.forget_lost() {
            self.report_attempt_end();
            self.core.dispatch.suspect(&mut self.core.live, self.number, false);
        }
    }

    /// The connection was the cause: the same members are published again under the same batch id.
    fn try_again(mut self, alone: bool) {
        if !self.forget_lost() {
            self.report_attempt_end();
            self.core.dispatch.try_again(&mut self.core.live, self.number, alone);
        }
    }

    /// Superseded members were not sent: they are forgotten, their replacements stay.
    fn replace_superseded(&mut self) {
        let Core { live, dispatch, .. } = &mut *self.core;
        let is_replaced = |id| live.items()[id].superseded().is_some();
        for id in dispatch.flights.split_off(self.number, is_replaced) {
            self.core.forget(id);
        }
    }

    /// If the broker redelivers all requests of the flight, the flight ends here: else its members would
    /// count as waiting beside the redelivered ones.
    fn forget_lost(&mut self) -> bool {
        let is_lost = |id: &ItemId| self.core.live.items()[*id].is_orphaned();
        let lost = self.flight().is_some_and(|flight| flight.rows.iter().all(is_lost));
        if lost {
            let flight = self.core.dispatch.flights.end(self.number);
            flight.into_iter().flat_map(|flight| flight.rows).for_each(|id| self.core.forget(id));
        }
        lost
    }

    /// Its flight, which stays until the outcome has been applied.
    fn flight(&self) -> Option<&Flight> {
        let flight = self.core.dispatch.flights.get(self.number);
        debug_assert!(flight.is_some(), "a flight ends with its outcome");
        flight
    }

    fn members(&self) -> Vec<ItemId> {
        self.flight().into_iter().flat_map(|flight| flight.rows.iter().copied()).collect()
    }

    /// Its attempt has ended, and another follows. Requests that wait for the outcome of its members are
    /// judged again, and may replace one.
    fn report_attempt_end(&mut self) {
        if !self.core.outcomes_wanted || mutated(Mutant::EndOfAttemptUntold) {
            return;
        }
        for id in self.members() {
            self.core.report(self.core.live.items()[id].identity(), None);
        }
    }

    /// The broker did not take it: its members may be cancelled and moved again, even if the outcome of an
    /// earlier attempt is unknown. Else items that were in flight at the loss of a connection, and are parked
    /// since, could never be cancelled or moved.
    fn note_known(&mut self) {
        self.set_unknown(false);
    }

    /// Its members may or may not have been delivered.
    fn note_unknown(&mut self) {
        self.set_unknown(true);
    }

    fn set_unknown(&mut self, unknown: bool) {
        for id in self.members() {
            self.core.live.shared.amend(id, |tries| tries.outcome_unknown = unknown);
        }
    }
}
