//! What became of a publish, and what that means for the items of its batch and for their queue.

use super::Core;
use crate::engine::ids::{ItemId, QueueId};
use crate::engine::items::LetterFacts;
use crate::engine::mutant::{mutated, Mutant};
use crate::engine::queue::Condition;
use crate::engine::snapshot::Counters;
use crate::engine::types::{BatchId, End, Now, Outcome, Reason, Settled};
use std::sync::Arc;

/// First pause of a dead letter that the broker refuses, ms; doubled with each further refusal, up to
/// [`LAST_ASIDE_MS`].
const FIRST_ASIDE_MS: u64 = 5_000;
const LAST_ASIDE_MS: u64 = 300_000;

impl Core {
    /// Publishes have ended; [`Core::settle`] looks at them.
    pub(in crate::engine) fn hand_in(&mut self, settled: Vec<Settled>) {
        self.settled.extend(settled);
    }

    /// Looks at publishes that have ended, in order, until `rows` items have been in them. Whether that was
    /// all.
    pub(in crate::engine) fn settle(&mut self, rows: usize, now: Now) -> bool {
        let mut done = 0;
        let mut delivered = Vec::new();
        while done < rows {
            let Some(settled) = self.settled.pop_front() else { break };
            done += self.dispatch.flights.get(settled.number).map_or(0, |flight| flight.rows.len());
            if !matches!(settled.outcome, Outcome::Confirmed(_)) {
                // What others do next finds them gone.
                self.live.finish(&std::mem::take(&mut delivered));
            }
            Landing { core: self, number: settled.number, now }.judge(settled.outcome, &mut delivered);
        }
        self.live.finish(&delivered);
        self.settled.is_empty()
    }

    /// As [`Core::remember_dead`] says.
    fn remember_letter(&mut self, id: ItemId, now: Now) {
        let item = &self.live.items()[id];
        let Some(LetterFacts { dead, former: Some(identity), .. }) = item.letter().cloned() else { return };
        let (application, _) = self.live.row(item).address();
        let ended = self.ended(id, End::Dead(dead), now);
        let queue = self.live.queues.id(&application);
        self.remember(queue, identity, ended);
    }

    /// A member of a failed batch waits again, unless it has had its last attempt.
    pub(super) fn return_to_queue(&mut self, id: ItemId, attempted: bool, error: &str, now: Now) {
        let queue = self.live.items()[id].queue();
        let allowed = self.live.queues.settings_of(queue).retry.attempts;
        let limited = attempted && allowed > 0 && queue != self.live.queues.dead_letters();
        let item = &self.live.items()[id];
        let (identity, attempts) = (item.identity(), item.tries().attempts);
        if item.is_orphaned() {
            return self.forget(id);
        }
        let tried = attempts + u32::from(mutated(Mutant::AttemptsOneTooFew));
        if limited && tried >= allowed && !mutated(Mutant::AttemptsIgnored) {
            let error = format!("given up after {allowed} attempts (retry.attempts): {error}");
            return self.dead_letter(id, Reason::Attempts, &error, now);
        }
        let mut home = self.live.home_of(id);
        home.set_flying(id, None);
        home.push_ready(id);
        self.tell(identity, None);
    }

    /// The queue is left alone for a while; then one probe tries it. What waits for its next try goes back to
    /// its head.
    fn park(&mut self, queue: QueueId, error: &str, now: Now) {
        let retry = self.live.queues.settings_of(queue).retry;
        let live = self.live.queues.at(queue).at_work();
        live.set(Condition::SlowProbe, false);
        if let Some(until) = live.health_mut().failed(error, &retry, &mut self.random, now.mono) {
            self.dispatch.begin_backoff(queue, until);
        }
        // What waits for its rate goes back at once.
        self.dispatch.paced.recheck(queue);
        for id in self.dispatch.recall(&mut self.live, queue) {
            self.return_to_queue(id, false, error, now);
        }
        self.live.begin_evicting(queue, now);
    }

    /// The dead exchange is the last resort: a letter that the broker refuses waits and is tried again,
    /// alone, and those behind it go on.
    fn step_aside(&mut self, id: ItemId, text: &str, now: Now) {
        if self.live.items()[id].is_orphaned() {
            return self.forget(id);
        }
        let doubled = FIRST_ASIDE_MS << self.live.items()[id].tries().attempts.saturating_sub(1).min(10);
        let until = now.wall + doubled.min(LAST_ASIDE_MS);
        self.live.shared.amend(id, |tries| tries.last_error = Some(text.into()));
        self.live.home_of(id).defer_letter(id, until, now);
    }
}

/// A publish that has ended, and what that means.
#[derive(Debug)]
struct Landing<'c> {
    core: &'c mut Core,
    /// Of its flight.
    number: u64,
    now: Now,
}

impl Landing<'_> {
    /// What has been delivered is added to `delivered`, and is to be finished.
    fn judge(mut self, outcome: Outcome, delivered: &mut Vec<ItemId>) {
        let Some(alone) = self.core.dispatch.landed(&mut self.core.live, self.number) else { return };
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

    /// Confirmed and not returned: this, and nothing else, ends an item well.
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

    /// Could not be delivered: its members go back to the head of their queue, which is left alone for a
    /// while. `attempted`: the attempt counts.
    fn failed(self, error: &str, attempted: bool) {
        let Landing { core, number, now } = self;
        let Some(flight) = core.dispatch.flights.end(number) else { return };
        let text: Arc<str> = error.into();
        for id in flight.rows {
            core.live.shared.amend(id, |tries| {
                tries.attempts += u32::from(attempted && !mutated(Mutant::AttemptForgotten));
                tries.last_error = Some(Arc::clone(&text));
            });
            core.return_to_queue(id, attempted, error, now);
        }
        core.park(flight.queue, error, now);
    }

    /// The broker closed the channel over this batch, or perhaps over another that was out with it.
    fn refused(mut self, alone: bool, text: &str) {
        if !alone {
            // What went before the culprit may have arrived: its confirm is gone with the channel.
            if !mutated(Mutant::SharedRefusalIsKnown) {
                self.note_unknown();
            }
            return self.suspect();
        }
        self.note_known();
        self.tell_not_out();
        let Landing { core, number, now } = self;
        if core.dispatch.split(&mut core.live, number) {
            return;
        }
        let Some(flight) = core.dispatch.flights.end(number) else { return };
        for id in flight.rows {
            core.live.shared.amend(id, |tries| tries.attempts += 1);
            if flight.queue == core.live.queues.dead_letters() {
                core.step_aside(id, text, now);
            } else {
                core.dead_letter(id, Reason::Refused, &format!("refused by the broker: {text}"), now);
            }
        }
    }

    /// No confirm came in time. Where others were out with it, it is one of the suspects; where it was alone,
    /// its queue is left alone, and the attempt does not count.
    fn overdue(self, alone: bool) {
        let Some(queue) = self.core.dispatch.flights.get(self.number).map(|flight| flight.queue) else {
            return;
        };
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

    /// It goes again, alone.
    fn suspect(mut self) {
        if !self.forget_lost() {
            self.tell_not_out();
            self.core.dispatch.suspect(&mut self.core.live, self.number, false);
        }
    }

    /// The connection is to blame: the same members go again, under the same batch id.
    fn try_again(mut self, alone: bool) {
        if !self.forget_lost() {
            self.tell_not_out();
            self.core.dispatch.try_again(&mut self.core.live, self.number, alone);
        }
    }

    /// Members that others have taken the place of were not sent: they are replaced for good.
    fn replace_superseded(&mut self) {
        let Core { live, dispatch, .. } = &mut *self.core;
        let is_replaced = |id| live.items()[id].superseded().is_some();
        for id in dispatch.flights.split_off(self.number, is_replaced) {
            self.core.forget(id);
        }
    }

    /// The broker has these requests back and delivers them again: nothing of the flight goes again. Until
    /// its turn came, its members would count as waiting beside what has come in their place.
    fn forget_lost(&mut self) -> bool {
        let Core { live, dispatch, .. } = &mut *self.core;
        let Some(flight) = dispatch.flights.get(self.number) else { return false };
        let lost = flight.rows.iter().all(|id| live.items()[*id].is_orphaned());
        if lost {
            let rows = dispatch.flights.end(self.number).map(|flight| flight.rows).unwrap_or_default();
            rows.into_iter().for_each(|id| self.core.forget(id));
        }
        lost
    }

    fn members(&self) -> Vec<ItemId> {
        let flight = self.core.dispatch.flights.get(self.number);
        flight.map(|flight| flight.rows.clone()).unwrap_or_default()
    }

    /// It has ended, and waits for another: so whoever waits for what becomes of its members is judged again,
    /// and may find one to replace.
    fn tell_not_out(&mut self) {
        if !self.core.outcomes_wanted || mutated(Mutant::EndOfAttemptUntold) {
            return;
        }
        for id in self.members() {
            self.core.tell(self.core.live.items()[id].identity(), None);
        }
    }

    /// The broker did not take it: whatever was unknown of an earlier attempt, its members may be taken back
    /// and moved again. Else what was out when a connection was lost, and is parked since, could be for ever
    /// neither.
    fn note_known(&mut self) {
        self.set_unknown(false);
    }

    /// Whether its members were delivered cannot be known.
    fn note_unknown(&mut self) {
        self.set_unknown(true);
    }

    fn set_unknown(&mut self, unknown: bool) {
        for id in self.members() {
            self.core.live.shared.amend(id, |tries| tries.outcome_unknown = unknown);
        }
    }
}
