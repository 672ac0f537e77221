//! What became of a publish, and what that means for the items of its batch and for their queue.

use super::Core;
use crate::engine::ids::{ItemId, QueueId};
use crate::engine::items::Item;
use crate::engine::mutant::{mutated, Mutant};
use crate::engine::queue::Condition;
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
            done += self.dispatch.get(settled.number).map_or(0, |flight| flight.rows.len());
            if !matches!(settled.outcome, Outcome::Confirmed(_)) {
                // What others do next finds them gone.
                self.stock.finish(&std::mem::take(&mut delivered));
            }
            self.settle_one(settled, &mut delivered, now);
        }
        self.stock.finish(&delivered);
        self.settled.is_empty()
    }

    /// What has been delivered is added to `delivered`, and is to be finished.
    fn settle_one(&mut self, Settled { number, outcome }: Settled, delivered: &mut Vec<ItemId>, now: Now) {
        let Some(alone) = self.dispatch.landed(&mut self.stock, number) else { return };
        if !matches!(outcome, Outcome::Confirmed(_)) {
            self.replace_superseded(number);
        }
        match outcome {
            Outcome::Confirmed(batch) => self.delivered(number, batch, delivered, now),
            Outcome::Returned(_) if mutated(Mutant::ReturnedIsDelivered) => {
                self.delivered(number, BatchId::default(), delivered, now);
            }
            Outcome::Unknown if mutated(Mutant::UnknownIsDelivered) => {
                self.delivered(number, BatchId::default(), delivered, now);
            }
            Outcome::Nacked if mutated(Mutant::NackedIsDelivered) => {
                self.delivered(number, BatchId::default(), delivered, now);
            }
            Outcome::Overdue if mutated(Mutant::OverdueIsDelivered) => {
                self.delivered(number, BatchId::default(), delivered, now);
            }
            Outcome::Nacked => {
                self.stock.counters_mut().nacked += 1;
                self.note_known(number);
                self.failed(number, "nacked by the broker: a bound queue is full or unavailable", true, now);
            }
            Outcome::Returned(text) => {
                self.stock.counters_mut().returned += 1;
                self.note_known(number);
                self.failed(number, &format!("returned by the broker: {text}"), true, now);
            }
            Outcome::Unavailable(text) => {
                self.dispatch.not_published(number);
                self.failed(number, &text, mutated(Mutant::UnavailableCounts), now);
            }
            Outcome::Refused(text) => {
                self.stock.counters_mut().refused += 1;
                self.refused(number, alone, &text, now);
            }
            Outcome::Overdue => {
                self.stock.counters_mut().unknown += 1;
                self.note_unknown(number);
                self.overdue(number, alone, now);
            }
            Outcome::Unknown => {
                self.stock.counters_mut().unknown += 1;
                self.note_unknown(number);
                self.try_again(number, alone);
            }
            Outcome::Unsent => {
                self.dispatch.not_published(number);
                self.try_again(number, alone);
            }
        }
    }

    /// Confirmed and not returned: this, and nothing else, ends an item well.
    fn delivered(&mut self, number: u64, batch: BatchId, delivered: &mut Vec<ItemId>, now: Now) {
        let Some(flight) = self.dispatch.end(number) else { return };
        let (queue, since) = (flight.queue, flight.since);
        let count = flight.rows.len() as u64;
        let dead_letters = queue == self.stock.queues().dead_letters();
        if dead_letters {
            self.stock.counters_mut().dead_confirmed += count;
        } else {
            self.stock.counters_mut().confirmed += count;
            self.stock.counters_mut().batches_confirmed += 1;
        }
        for id in flight.rows.iter().copied() {
            if dead_letters {
                self.remember_letter(id, now);
            } else {
                let identity = self.stock.items()[id].identity();
                if identity.is_given() || self.outcomes_wanted {
                    let ended = self.ended(id, End::Sent(batch), now);
                    self.remember(queue, identity, ended);
                }
            }
        }
        delivered.extend(flight.rows);
        self.dispatch.heard(since, now);
        let share = self.dispatch.share();
        let live = self.stock.queues_mut().at(queue).live();
        live.count_sent(count);
        live.health_mut().confirmed(since, now.mono, share);
        if live.set(Condition::Hindered, false) {
            self.stock.unstall(queue);
        }
        self.stock.queues_mut().at(queue).end_hold();
        self.dispatch.look_again(&mut self.stock, queue);
    }

    /// As [`Core::remember_dead`] says.
    fn remember_letter(&mut self, id: ItemId, now: Now) {
        let item = &self.stock.items()[id];
        let Some(identity) = item.former_identity() else { return };
        let Some(dead) = item.dead().cloned() else { return };
        let (application, _) = self.stock.address(item);
        let ended = self.ended(id, End::Dead(dead), now);
        let queue = self.stock.queues_mut().id(&application);
        self.remember(queue, identity, ended);
    }

    /// Could not be delivered: its members go back to the head of their queue, which is left alone for a
    /// while. `attempted`: the attempt counts.
    fn failed(&mut self, number: u64, error: &str, attempted: bool, now: Now) {
        let Some(flight) = self.dispatch.end(number) else { return };
        let queue = flight.queue;
        let text: Arc<str> = error.into();
        for id in flight.rows {
            self.stock.amend(id, |item| {
                if attempted && !mutated(Mutant::AttemptForgotten) {
                    item.count_attempt();
                }
                item.set_last_error(Arc::clone(&text));
            });
            self.return_to_queue(id, attempted, error, now);
        }
        self.park(queue, error, now);
    }

    /// A member of a failed batch waits again, unless it has had its last attempt.
    pub(super) fn return_to_queue(&mut self, id: ItemId, attempted: bool, error: &str, now: Now) {
        let queue = self.stock.items()[id].queue();
        let allowed = self.stock.queues().settings_of(queue).retry.attempts;
        let limited = attempted && allowed > 0 && queue != self.stock.queues().dead_letters();
        let item = &self.stock.items()[id];
        let (identity, attempts) = (item.identity(), item.attempts());
        if item.is_orphaned() {
            return self.give_back(id);
        }
        let tried = attempts + u32::from(mutated(Mutant::AttemptsOneTooFew));
        if limited && tried >= allowed && !mutated(Mutant::AttemptsIgnored) {
            let error = format!("given up after {allowed} attempts (retry.attempts): {error}");
            return self.kill(id, Reason::Attempts, &error, now);
        }
        self.stock.set_flying(id, None);
        self.stock.push_ready(id);
        self.tell(identity, None);
    }

    /// The queue is left alone for a while; then one probe tries it. What waits for its next try goes back to
    /// its head.
    fn park(&mut self, queue: QueueId, error: &str, now: Now) {
        let retry = self.stock.queues().settings_of(queue).retry;
        let live = self.stock.queues_mut().at(queue).live();
        live.set(Condition::Hindered, false);
        if let Some(until) = live.health_mut().failed(error, &retry, &mut self.random, now.mono) {
            self.dispatch.begin_backoff(queue, until);
        }
        for id in self.dispatch.recall(&mut self.stock, queue) {
            self.return_to_queue(id, false, error, now);
        }
        self.stock.begin_evicting(queue, now);
    }

    /// The broker closed the channel over this batch, or perhaps over another that was out with it.
    fn refused(&mut self, number: u64, alone: bool, text: &str, now: Now) {
        if !alone {
            // What went before the culprit may have arrived: its confirm is gone with the channel.
            if !mutated(Mutant::SharedRefusalIsKnown) {
                self.note_unknown(number);
            }
            return self.suspect(number);
        }
        self.note_known(number);
        self.tell_not_out(number);
        if self.dispatch.split(&mut self.stock, number) {
            return;
        }
        let Some(flight) = self.dispatch.end(number) else { return };
        for id in flight.rows {
            self.stock.amend(id, Item::count_attempt);
            if flight.queue == self.stock.queues().dead_letters() {
                self.step_aside(id, text, now);
            } else {
                self.kill(id, Reason::Refused, &format!("refused by the broker: {text}"), now);
            }
        }
    }

    /// The dead exchange is the last resort: a letter that the broker refuses waits and is tried again,
    /// alone, and those behind it go on.
    fn step_aside(&mut self, id: ItemId, text: &str, now: Now) {
        if self.stock.items()[id].is_orphaned() {
            return self.give_back(id);
        }
        let doubled = FIRST_ASIDE_MS << self.stock.items()[id].attempts().saturating_sub(1).min(10);
        let until = now.wall + doubled.min(LAST_ASIDE_MS);
        self.stock.amend(id, |item| item.set_last_error(text.into()));
        self.stock.defer_letter(id, until, now);
    }

    /// No confirm came in time. Where others were out with it, it is one of the suspects; where it was alone,
    /// its queue is left alone, and the attempt does not count.
    fn overdue(&mut self, number: u64, alone: bool, now: Now) {
        let Some(queue) = self.dispatch.get(number).map(|flight| flight.queue) else { return };
        if alone {
            self.failed(
                number,
                "no confirm came in time: a bound queue may have lost its majority",
                mutated(Mutant::OverdueCounts),
                now,
            );
        } else {
            self.stock.queues_mut().at(queue).live().health_mut().doubt();
            self.suspect(number);
        }
    }

    /// It goes again, alone.
    fn suspect(&mut self, number: u64) {
        if !self.forget_lost(number) {
            self.tell_not_out(number);
            self.dispatch.suspect(&mut self.stock, number, false);
        }
    }

    /// Members of a flight that others have taken the place of were not sent: they are replaced for good.
    fn replace_superseded(&mut self, number: u64) {
        let items = self.stock.items();
        for id in self.dispatch.split_off(number, |id| items[id].superseded().is_some()) {
            self.give_back(id);
        }
    }

    /// The broker has these requests back and delivers them again: nothing of the flight goes again. Until
    /// its turn came, its members would count as waiting beside what has come in their place.
    fn forget_lost(&mut self, number: u64) -> bool {
        let Some(flight) = self.dispatch.get(number) else { return false };
        let lost = flight.rows.iter().all(|id| self.stock.items()[*id].is_orphaned());
        if lost {
            let rows = self.dispatch.end(number).map(|flight| flight.rows).unwrap_or_default();
            rows.into_iter().for_each(|id| self.give_back(id));
        }
        lost
    }

    /// The connection is to blame: the same members go again, under the same batch id.
    fn try_again(&mut self, number: u64, alone: bool) {
        if self.forget_lost(number) {
            return;
        }
        self.tell_not_out(number);
        self.dispatch.try_again(&mut self.stock, number, alone);
    }

    /// Its attempt has ended, and it waits for another: so whoever waits for what becomes of its members is
    /// judged again, and may find one to replace.
    fn tell_not_out(&mut self, number: u64) {
        if !self.outcomes_wanted || mutated(Mutant::EndOfAttemptUntold) {
            return;
        }
        let rows = self.dispatch.get(number).map(|flight| flight.rows.clone()).unwrap_or_default();
        for id in rows {
            self.tell(self.stock.items()[id].identity(), None);
        }
    }

    /// The broker did not take it: whatever was unknown of an earlier attempt, its members may be taken back
    /// and moved again. Else what was out when a connection was lost, and is parked since, could be for ever
    /// neither.
    fn note_known(&mut self, number: u64) {
        self.amend_members(number, Item::forget_outcome_unknown);
    }

    /// Whether its members were delivered cannot be known.
    fn note_unknown(&mut self, number: u64) {
        self.amend_members(number, Item::set_outcome_unknown);
    }

    fn amend_members(&mut self, number: u64, change: fn(&mut Item)) {
        let rows = self.dispatch.get(number).map(|flight| flight.rows.clone()).unwrap_or_default();
        for id in rows {
            self.stock.amend(id, change);
        }
    }
}
