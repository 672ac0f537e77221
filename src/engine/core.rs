//! What happens to items, whatever the cause: how each ends, what the outcome of a publish means, and where
//! an identity is.
//!
//! Guarantee: an item is sent only by a confirm without a return. Decided in [`outcome`] and nowhere else.

pub(crate) mod listed;
mod outcome;

use super::backoff::Random;
use super::dispatch::{self, Candidate, Dispatch};
use super::ids::{ItemId, QueueId};
use super::items::{reported_due, Item, ItemFlag};
use super::journal::MoveRoom;
use super::live::LiveItems;
use super::mutant::{mutated, Mutant};
use super::queue::{Condition, EndOf};
use super::recent::{self, Recent};
use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use tidegate_types::event::{Found, Stored};
use tidegate_types::{Batch, Dead, DuplicateRule, End, Ended, Identity, Now, Reason, Settled};

/// Maximum number of pauses ended in one call: many may end at one moment.
const PAUSES_ENDED: usize = 1_000;

/// An item that has not ended: in memory, or in the store only.
#[derive(Debug)]
pub(crate) enum LiveItem {
    Resident(ItemId),
    Far(Box<Stored>),
}

/// Where an identity is, or how it ended, as far as that is remembered.
#[derive(Debug)]
pub(crate) enum ItemLocation {
    Live(LiveItem),
    Ended(Box<Ended>),
    Nowhere,
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) live: LiveItems,
    pub(crate) dispatch: Dispatch,
    pub(crate) recent: Recent,
    random: Random,
    /// Attempts that have ended and have not been processed.
    settled: VecDeque<Settled>,
    /// Queues with flights whose payloads have been loaded.
    fetched: BTreeSet<QueueId>,
    /// Queues that wait until the store has room to make dead letters of their expired items.
    moving: VecDeque<QueueId>,
    /// Attempts that have ended in this turn: by identity, and how its item ended, if it did. Kept only while
    /// something waits for an outcome.
    outcomes: Vec<(Identity, Option<Ended>)>,
    outcomes_wanted: bool,
}

impl Core {
    pub(crate) fn new(live: LiveItems, dispatch: Dispatch, recent: Recent, seed: u64) -> Self {
        Core {
            live,
            dispatch,
            recent,
            random: Random(seed),
            settled: VecDeque::new(),
            fetched: BTreeSet::new(),
            moving: VecDeque::new(),
            outcomes: Vec::new(),
            outcomes_wanted: false,
        }
    }

    // ---- how items end ------------------------------------------------------------------------------------

    /// Whether the ends of attempts are reported. Callers that start to wait for one set it; it is computed
    /// anew once per call.
    pub(crate) fn want_outcomes(&mut self, wanted: bool) {
        self.outcomes_wanted = wanted;
    }

    pub(crate) fn take_outcomes(&mut self) -> Vec<(Identity, Option<Ended>)> {
        core::mem::take(&mut self.outcomes)
    }

    fn report(&mut self, identity: Identity, ended: Option<&Ended>) {
        if self.outcomes_wanted {
            self.outcomes.push((identity, ended.cloned()));
        }
    }

    /// The end of an item in memory, at this moment.
    fn ended(&self, id: ItemId, end: End, now: Now) -> Ended {
        let item = &self.live.items()[id];
        let (_, customer) = self.live.row(item).address();
        Ended {
            end,
            at: now.wall,
            due: reported_due(item),
            attempts: if mutated(Mutant::EndedAttemptsWrong) { 0 } else { item.tries().attempts },
            fingerprint: item.fingerprint(),
            customer,
        }
    }

    fn remember(&mut self, queue: QueueId, identity: Identity, ended: Ended) {
        let remembers = self.live.queues.settings_of(queue).dedupe_tail > 0;
        self.report(identity, Some(&ended));
        if identity.is_given() && remembers {
            self.recent.remember(&mut self.live.shared.journal, identity, ended);
        }
    }

    /// Remembers the id of a request that was dead from the start. This is remembered with the commit that
    /// makes its dead letter safe, and never sooner: else the redelivered request would be dropped as a
    /// repeat.
    pub(crate) fn remember_dead(&mut self, queue: QueueId, identity: Identity, letter: u64, ended: Ended) {
        let resident = self.live.items().by_seq(letter);
        match resident.filter(|id| !self.live.items()[*id].is_stored() && !mutated(Mutant::DeadTooSoon)) {
            Some(id) => self.live.shared.set_former(id, identity, ended.fingerprint),
            None => self.remember(queue, identity, ended),
        }
    }

    /// Dead-letters an item, which must be on no list.
    pub(crate) fn dead_letter(&mut self, id: ItemId, reason: Reason, error: &str, now: Now) {
        if self.live.items()[id].is_orphaned() {
            return self.forget(id);
        }
        if mutated(Mutant::DeadForgotten) {
            return self.live.finish(&[id]);
        }
        self.live.shared.counters_mut().dead[reason as usize] += u64::from(!mutated(Mutant::DeadUncounted));
        let dead = Dead { reason, error: error.into() };
        let ended = self.ended(id, End::Dead(Arc::new(dead.clone())), now);
        let (queue, identity) = (self.live.items()[id].queue(), self.live.items()[id].identity());
        let later = !self.live.shared.journal.is_durable() && identity.is_given();
        self.live.move_to_dead_letters(id, dead, later.then_some(identity), now);
        if later {
            self.report(identity, Some(&ended));
        } else {
            self.remember(queue, identity, ended);
        }
    }

    /// Cancels an item that is in memory and not in flight.
    pub(crate) fn cancel(&mut self, id: ItemId, end: End, now: Now) {
        let (queue, identity) = (self.live.items()[id].queue(), self.live.items()[id].identity());
        let ended = self.ended(id, end, now);
        self.remember(queue, identity, ended);
        self.live.shared.counters_mut().cancelled += 1;
        self.end_unsent(id);
    }

    /// Cancels an item that is in the store only.
    pub(crate) fn cancel_far(&mut self, stored: &Stored, end: End, now: Now) {
        let Some(queue) = self.live.queues.of_stored(stored) else { return };
        let ended = Ended {
            end,
            at: now.wall,
            due: stored.due,
            attempts: stored.attempts,
            fingerprint: stored.fingerprint,
            customer: stored.customer.clone(),
        };
        self.remember(queue, stored.identity(), ended);
        self.live.shared.counters_mut().cancelled += 1;
        self.live.finish_far(stored);
    }

    /// Sets the due of an item that is in memory and not in flight.
    pub(crate) fn reschedule(&mut self, id: ItemId, due: u64, now: Now) {
        self.unlist(id);
        self.live.reschedule(id, due, now);
    }

    /// An item ends without having been sent: it leaves every list and the store, and its request is acked.
    pub(crate) fn end_unsent(&mut self, id: ItemId) {
        self.unlist(id);
        self.live.finish(&[id]);
    }

    /// A request of the same id replaces an item that is in flight, without a wait for its outcome.
    pub(crate) fn supersede(&mut self, id: ItemId, rule: DuplicateRule) {
        let identity = self.live.items()[id].identity();
        // Nothing needs to wait for the outcome of this id any more.
        self.report(identity, None);
        self.live.home_of(id).supersede(id, rule);
    }

    /// Whether a request that waits for this identity can be decided now, without the outcome. Payloads that
    /// the store is reading must stay; and without a store, a redelivered request is recognised only by its
    /// item in flight.
    pub(crate) fn may_be_superseded(&self, identity: Identity) -> bool {
        let item = self.live.items().by_identity(identity).map(|id| &self.live.items()[id]);
        self.will_be_told(identity) && item.is_none_or(|item| !self.dispatch.flights.is_fetching(item))
    }

    /// Whether it can be decided so now, or once the payloads under way have been read.
    pub(crate) fn will_be_told(&self, identity: Identity) -> bool {
        let item = self.live.items().by_identity(identity).map(|id| &self.live.items()[id]);
        item.is_none_or(|item| !item.is_orphaned() || self.live.shared.journal.is_durable())
    }

    /// Removes an item from the list it is on.
    pub(crate) fn unlist(&mut self, id: ItemId) {
        self.dispatch.leave(&mut self.live, id);
        self.live.home_of(id).unlist(id);
    }

    /// The ingest connection is lost: items that only the broker keeps are forgotten; those in flight once
    /// their attempts have ended.
    pub(crate) fn orphan_pending(&mut self) {
        for id in self.live.shared.orphan_pending() {
            if !self.is_in_flight(id) {
                self.unlist(id);
                self.forget(id);
            }
        }
    }

    fn forget(&mut self, id: ItemId) {
        let identity = self.live.items()[id].identity();
        self.report(identity, None);
        self.live.home_of(id).forget(id);
    }

    // ---- sending ------------------------------------------------------------------------------------------

    /// Sends batches while there are slots and queues with due items, until `rows` items have been sent.
    /// Whether there may be more.
    pub(crate) fn pump(&mut self, rows: usize, now: Now, out: &mut Vec<Batch>) -> bool {
        for queue in self.dispatch.late_probes(&self.live, now) {
            self.live.queues.at(queue).at_work().set(Condition::SlowProbe, true);
            self.live.begin_evicting(queue, now);
        }
        let mut gone = 0;
        while let Some(queue) = self.fetched.pop_first() {
            gone += self.launch_fetched(queue, now, out);
            if gone >= rows {
                return true;
            }
        }
        end_move_wait(self);
        while gone < rows {
            let Some(mut candidate) = self.dispatch.next(&mut self.live, now) else {
                if end_move_wait(self) {
                    continue;
                }
                let room = self.live.shared.journal.room_to_move();
                return !self.moving.is_empty() && room == MoveRoom::NextTurn;
            };
            gone += candidate.rows.len();
            if lacks_room_to_move(&self.live, &candidate, now) {
                self.moving.push_back(candidate.queue);
                self.live.queues.at(candidate.queue).at_work().set(Condition::Moving, true);
                self.keep_back(candidate, now);
                continue;
            }
            candidate.rows = self.revalidate(core::mem::take(&mut candidate.rows), now);
            if self.is_held(candidate.has_been_out(), &candidate.rows) {
                self.keep_back(candidate, now);
            } else {
                self.send(candidate, now, out);
            }
        }
        true
    }

    /// The batch was never published, and its customer has been paused since it was formed.
    fn is_held(&self, has_been_out: bool, rows: &[ItemId]) -> bool {
        let held = rows.first().is_some_and(|id| self.live.is_held(*id));
        held && !has_been_out && !mutated(Mutant::HeldIsPublished)
    }

    /// Returns the members to wait with the others of their customer.
    fn keep_back(&mut self, mut candidate: Candidate, now: Now) {
        let rows = core::mem::take(&mut candidate.rows);
        self.dispatch.drop_candidate(&mut self.live, &candidate);
        rows.into_iter().for_each(|id| self.return_to_queue(id, false, "", now));
    }

    fn send(&mut self, candidate: Candidate, now: Now, out: &mut Vec<Batch>) {
        if candidate.rows.is_empty() {
            self.dispatch.drop_candidate(&mut self.live, &candidate);
        } else {
            self.dispatch.send(&mut self.live, candidate, now, out);
        }
    }

    /// Takes loaded payloads: [`Core::pump`] launches the flights that waited for them.
    pub(crate) fn contents_loaded(&mut self, contents: Vec<(u64, Arc<tidegate_types::Content>)>) {
        self.fetched.append(&mut self.dispatch.content_loaded(&mut self.live, contents));
    }

    /// Launches the flights of a queue whose payloads are complete, as far as they still may leave. Returns
    /// how many items they had.
    fn launch_fetched(&mut self, queue: QueueId, now: Now, out: &mut Vec<Batch>) -> usize {
        let mut gone = 0;
        if self.live.queues.get(queue).is_none() {
            return gone;
        }
        while let Some((number, rows)) = self.dispatch.next_fetched(&mut self.live, queue, now) {
            let before = rows.len();
            gone += before;
            let rows = if mutated(Mutant::FetchedUnscreened) { rows } else { self.revalidate(rows, now) };
            let gone = (before - rows.len()) as u64;
            self.live.queues.at(queue).at_work().flights_mut().remove_items(gone);
            self.dispatch.flights.refund(&mut self.live, number, gone);
            // A suspect, sent alone because others were in flight with it, goes on although its queue is
            // parked.
            let parked = self.live.queues[queue].is_parked() && mutated(Mutant::ParkedSuspectsGoBack);
            let held = self.is_held(!self.dispatch.flights.is_new(number), &rows);
            if self.dispatch.flights.is_recalled(number) || parked || held {
                self.withdraw(queue, number, rows, now);
                continue;
            }
            let identities: Vec<Identity> = rows.iter().map(|id| self.live.items()[*id].identity()).collect();
            self.dispatch.launch_fetched(&mut self.live, number, rows, now, out);
            if !self.dispatch.flights.is_under_way(number) {
                // It was not published: nothing needs to wait for its outcome.
                identities.into_iter().for_each(|identity| self.report(identity, None));
            }
        }
        gone
    }

    /// Its queue was parked while payloads were fetched: its members return to the queue, in order.
    fn withdraw(&mut self, queue: QueueId, number: u64, rows: Vec<ItemId>, now: Now) {
        self.dispatch.withdraw(&mut self.live, number, rows.len() as u64);
        for id in rows {
            self.return_to_queue(id, false, "", now);
        }
        if self.live.queues[queue].is_held_back() {
            self.live.begin_evicting(queue, now);
        }
        // Items that had to wait behind them may leave now.
        self.live.queues.at(queue).requeue();
    }

    /// Returns those of the items that may be sent. Expired ones are dead-lettered, those that a step back of
    /// the clock made early wait again, and those that the broker will redeliver are forgotten.
    fn revalidate(&mut self, rows: Vec<ItemId>, now: Now) -> Vec<ItemId> {
        // An item that was tried at its time may be tried again, whatever the clock says; one that was
        // rescheduled since waits for its new time.
        let is_early = |item: &Item| {
            let tried = item.tries().attempts > 0 && item.accepted_due() == item.key().due;
            let early = item.is(ItemFlag::OwnTime) && item.key().due > now.wall && !tried;
            early && !mutated(Mutant::EarlyAfterStepBack)
        };
        let is_good = |item: &Item| {
            let sooner = if mutated(Mutant::ExpiredTooSoon) { 1_000 } else { 0 };
            let expired = item.expiry().saturating_sub(sooner) <= now.wall && !mutated(Mutant::ExpiryIgnored);
            !item.is_orphaned() && (item.letter().is_some() || (!expired && !is_early(item)))
        };
        if rows.iter().all(|id| is_good(&self.live.items()[*id])) {
            return rows;
        }
        let (good, bad): (Vec<ItemId>, Vec<ItemId>) =
            rows.into_iter().partition(|id| is_good(&self.live.items()[*id]));
        for id in bad {
            let item = &self.live.items()[id];
            let expiry = item.expiry();
            if item.is_orphaned() {
                self.forget(id);
            } else if expiry <= now.wall || mutated(Mutant::ExpiredTooSoon) {
                let error = format!(
                    "x-deliver-before {expiry} had passed when the item could leave, at {}",
                    now.wall
                );
                self.dead_letter(id, Reason::Expired, &error, now);
            } else {
                let identity = item.identity();
                self.live.home_of(id).set_flying(id, None);
                // The clock stepped back while the item was due.
                self.live.shared.await_time(id);
                self.report(identity, None);
            }
        }
        good
    }

    /// Ends back-offs, and pauses whose time has passed, up to [`PAUSES_ENDED`]. Whether that was all.
    pub(crate) fn end_pauses(&mut self, now: Now) -> bool {
        self.dispatch.end_backoffs(&mut self.live, now);
        self.fetched.extend(self.dispatch.paced.end(&mut self.live, now));
        for _ in 0..PAUSES_ENDED {
            let Some((queue, ends)) = self.live.queues.ended(now.wall) else { return true };
            match ends {
                EndOf::Pause => {
                    self.live.queues.at(queue).set_paused(None);
                    self.resume(queue);
                }
                EndOf::Rate => {
                    self.live.queues.at(queue).set_slowed(None);
                    self.dispatch.paced.recheck(queue);
                }
                EndOf::Customer(customer) => drop(self.live.let_go(queue, &customer)),
            }
        }
        self.live.queues.ended(now.wall).is_none()
    }

    /// Settings have changed: back-offs may be shorter, and flights that wait for a rate are checked again.
    pub(crate) fn reconfigured(&mut self, now: Now) {
        dispatch::shorten_backoffs(&mut self.dispatch, &mut self.live, &mut self.random, now);
        let queues = &self.live.queues;
        let fetches =
            |id: &QueueId| queues[*id].active().is_some_and(|live| live.flights().first_fetching().is_some());
        self.fetched.extend(queues.ids().filter(fetches));
    }

    /// Drains a queue again after a pause or hold.
    pub(crate) fn resume(&mut self, queue: QueueId) {
        self.live.queues.at(queue).end_hold();
        self.live.at(queue).unstall();
        self.live.queues.at(queue).requeue();
    }

    /// Nothing is in flight or waits for a slot or the store.
    pub(crate) fn is_idle(&self) -> bool {
        self.live.shared.journal.is_idle() && self.dispatch.is_idle(&self.live)
    }

    // ---- where an identity is -----------------------------------------------------------------------------

    pub(crate) fn is_in_flight(&self, id: ItemId) -> bool {
        self.dispatch.flights.is_in_flight(&self.live.items()[id])
    }

    /// An item of this identity and queue is in flight.
    pub(crate) fn is_out(&self, identity: Identity, queue: QueueId) -> bool {
        let its = |id: &ItemId| self.live.items()[*id].queue() == queue && self.is_in_flight(*id);
        self.live.items().by_identity(identity).filter(its).is_some()
    }

    /// In flight or perhaps delivered: its end is not known yet.
    pub(crate) fn is_undecided(&self, id: ItemId) -> bool {
        self.is_in_flight(id) || self.live.items()[id].tries().outcome_unknown
    }

    /// Where an identity of this queue is, or how it ended. `found`: the answer of the store, if it was
    /// asked.
    pub(crate) fn location(
        &mut self,
        identity: Identity,
        queue: QueueId,
        found: Option<Found>,
        now: Now,
    ) -> ItemLocation {
        if let Some(id) =
            self.live.items().by_identity(identity).filter(|id| self.live.items()[*id].queue() == queue)
        {
            if !self.live.items()[id].is_orphaned() || self.is_in_flight(id) {
                return ItemLocation::Live(LiveItem::Resident(id));
            }
            // Its request will be redelivered, and nothing of it is in flight.
            self.unlist(id);
            self.forget(id);
        }
        let Some(found) = found else { return ItemLocation::Nowhere };
        if let Some(mut stored) = found.item {
            if stored.dead.is_none() && stored.application == *self.live.queues[queue].name() {
                // Since it was read it may have been tried, or its window may have closed. If it has ended
                // since, the answer was discarded before (`Watch`).
                self.live.shared.reads.renew(&mut stored);
                return ItemLocation::Live(LiveItem::Far(Box::new(stored)));
            }
        }
        let tail = self.live.queues.settings_of(queue).dedupe_tail;
        match found.ended {
            Some(ended)
                if recent::is_remembered(ended.at, tail, now.wall) || identity.assigned_seq().is_some() =>
            {
                ItemLocation::Ended(Box::new(ended))
            }
            Some(_) | None => ItemLocation::Nowhere,
        }
    }
}

/// If there is room to make dead letters, the queue that has waited longest for it goes on. Whether one does.
fn end_move_wait(core: &mut Core) -> bool {
    if core.live.shared.journal.room_to_move() != MoveRoom::Free {
        return false;
    }
    let Some(queue) = core.moving.pop_front() else { return false };
    if core.live.queues.get(queue).is_some() {
        core.live.queues.at(queue).at_work().set(Condition::Moving, false);
        core.live.queues.at(queue).requeue();
    }
    true
}

/// Whether members have expired, and the store has too much to make dead letters of already. Those of a
/// repeat are few enough.
fn lacks_room_to_move(live: &LiveItems, candidate: &Candidate, now: Now) -> bool {
    let is_over = |id: &ItemId| {
        let item = &live.items()[*id];
        item.letter().is_none() && item.expiry() <= now.wall
    };
    !candidate.is_repeat()
        && live.shared.journal.room_to_move() != MoveRoom::Free
        && candidate.rows.iter().any(is_over)
}
