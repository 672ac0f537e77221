//! A queue for each application, and one for the dead letters: what lies in it, how much of its front is in
//! memory, and whether it is drained.
//!
//! The invariant: every stored item of a queue whose key lies below [`Queue::near_until`] is in memory, or
//! has ended. Items at or above it may be in memory as well. A queue that is paused, parked or hindered is
//! not drained, and nothing of it moves: what is due leaves memory, and comes back in order, from its head
//! on.
//!
//! A queue with nothing in memory costs a row of this table and no more; what it needs while it is at work is
//! its [`ActiveQueue`] part.

mod active;
mod agenda;
mod flights;
mod later;
mod passed;
mod ready;
mod resident;
mod table;

use super::event::{QueueRow, Slowed, FOR_EVER};
use super::health::HealthState;
use super::ids::CustomerId;
use super::mutant::{mutated, Mutant};
use super::types::{AppSettings, Key, Settings};
pub(super) use active::{ActiveQueue, Condition};
pub(super) use agenda::{EndOf, QueueMut};
pub(super) use flights::QueueFlights;
use passed::PassedOver;
pub(super) use passed::Room;
pub(super) use ready::Entry;
use ready::ReadyQueue;
use std::sync::Arc;
pub(super) use table::Queues;

/// Above every key.
pub(super) const LAST: Key = Key::own(u64::MAX, u64::MAX);

/// A read of a queue's next rows that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loading {
    pub(super) from: Key,
    pub(super) until: u64,
    /// Places in memory that it may fill.
    pub(super) rows: usize,
    /// Lowest key that went to the store alone meanwhile: the read may have missed it.
    pub(super) behind: Option<Key>,
    /// The queue is held back meanwhile: what it brings is of no use.
    pub(super) void: bool,
    /// Of the head of a queue that is held back: to probe it, or to give items up.
    pub(super) head: bool,
}

/// One queue: an application's, or that of the dead letters.
#[derive(Debug)]
pub(super) struct Queue {
    name: Arc<str>,
    /// Items with a row in the store, and items without one.
    stored: u64,
    pending: u64,
    near_until: Key,
    /// Until then, UTC ms.
    paused: Option<u64>,
    /// The rate that a command has given it for a while.
    slowed: Option<Slowed>,
    /// Customers of whom due items are passed over.
    passed: PassedOver,
    /// Its row is out of date.
    dirty: bool,
    /// It stands in the list of those that the loader has to look at.
    marked: bool,
    /// Below this due, items of former lives may lack customer rows, UTC ms.
    former_unindexed: u64,
    /// The same for all lives.
    unindexed_until: u64,
    /// When the loader looks at it next, wall clock; `u64::MAX` = not at all.
    wake: u64,
    active: Option<Box<ActiveQueue>>,
}

impl Queue {
    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Items that have not ended, wherever they are.
    pub(super) fn total(&self) -> u64 {
        self.stored + self.pending
    }

    pub(super) fn stored(&self) -> u64 {
        self.stored
    }

    /// Stored items that are in memory.
    pub(super) fn resident(&self) -> u64 {
        self.active.as_ref().map_or(0, |active| active.resident().count())
    }

    /// Items in the store alone.
    pub(super) fn far(&self) -> u64 {
        debug_assert!(self.stored >= self.resident(), "what is resident is stored");
        self.stored - self.resident()
    }

    /// One of its items may be given up for another: not all of them are in flight.
    pub(super) fn has_droppable(&self) -> bool {
        self.far() > 0 || self.active.as_ref().is_some_and(|active| active.droppable().next().is_some())
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// When its pause ends by itself, UTC ms.
    pub(super) fn paused_until(&self) -> Option<u64> {
        self.paused.filter(|until| *until < FOR_EVER)
    }

    /// The rate that holds for a while.
    pub(super) fn slowed(&self) -> Option<Slowed> {
        self.slowed
    }

    /// Until when its rate holds something back that could leave otherwise, monotonic.
    pub(super) fn paced_until(&self) -> Option<u64> {
        self.active.as_ref()?.pace().waits_until()
    }

    /// Customers of whom due items are passed over.
    pub(super) fn passed(&self) -> &PassedOver {
        &self.passed
    }

    /// No item of this customer that memory lacks lies below.
    pub(super) fn near_until_of(&self, customer: &str) -> Key {
        self.near_until().min(self.passed.first(customer))
    }

    /// No item that memory lacks lies below, of no customer.
    pub(super) fn near_until_of_all(&self) -> Key {
        self.near_until().min(self.passed.low())
    }

    /// A stored item of a customer is in the store alone from now on, or stays there, and is passed over.
    /// Call it before the counts change.
    fn pass_over(&mut self, customer: &str, place: Key) {
        if self.far() == 0 && !self.is_loading() {
            // Memory lacks nothing else.
            self.near_until = LAST;
        }
        self.passed.pass_over(customer, place);
    }

    /// An item with this place is in the store alone from now on. `passed`: its customer, where it is passed
    /// over. Call it before the counts change.
    fn leave_in_store(&mut self, place: Key, passed: Option<&str>) {
        match passed.filter(|_| !self.is_trimming()) {
            Some(customer) => self.pass_over(customer, place),
            None => self.lower(place),
        }
    }

    /// An item with this place is in the store alone from now on. Call it before the counts change.
    fn lower(&mut self, place: Key) {
        let known = self.far() > 0 || self.is_loading();
        self.near_until = if known { self.near_until.min(place) } else { place };
        let loading = self.active.as_mut().and_then(|active| active.loading_mut().as_mut());
        if let Some(loading) = loading {
            loading.behind = Some(loading.behind.map_or(place, |behind| behind.min(place)));
        }
    }

    /// The loader may pass over an item of a customer at this place, and leave it in the store: where it is
    /// due; not where the first items are to be given up, and not where it may lack its customer row. `back`:
    /// it has been passed over before, and has one.
    pub(super) fn may_pass_over(&self, place: Key, back: bool, wall: u64) -> bool {
        let is_indexed = back || place.due >= self.former_unindexed;
        place.due <= wall && is_indexed && !self.is_trimming()
    }

    /// Its first items are to be given up, and are not in memory.
    pub(super) fn is_trimming(&self) -> bool {
        self.active().is_some_and(|active| active.is(Condition::Trimming))
    }

    pub(super) fn former_unindexed(&self) -> u64 {
        self.former_unindexed
    }

    /// The customer of this name, if anything of theirs is in memory or their window is open.
    pub(super) fn customer(&self, name: &str) -> Option<CustomerId> {
        self.active()?.customer(name)
    }

    pub(super) fn active(&self) -> Option<&ActiveQueue> {
        self.active.as_deref()
    }

    /// Settings of its application, whether it is at work or not.
    fn settings<'a>(&'a self, all: &'a Settings) -> &'a Arc<AppSettings> {
        self.active().map_or_else(|| all.of(&self.name), ActiveQueue::settings)
    }

    fn is_loading(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.loading().is_some())
    }

    /// The last try failed, or its pause has not ended.
    pub(super) fn is_failing(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.health().is_failing())
    }

    pub(super) fn is_parked(&self) -> bool {
        self.active
            .as_ref()
            .is_some_and(|active| matches!(active.health().state(), HealthState::Parked { .. }))
    }

    /// It cannot be delivered to at present, or it must not.
    pub(super) fn is_held_back(&self) -> bool {
        self.is_paused()
            || self.is_failing()
            || self.active.as_ref().is_some_and(|active| active.is(Condition::SlowProbe))
    }

    /// Items in the store alone that are due, as far as that is known without a look: of a queue that is
    /// held back those that were due when that began, or have come since and were due then.
    pub(super) fn far_due(&self, wall: u64) -> u64 {
        if self.near_until().due > wall {
            return 0;
        }
        self.far().saturating_sub(self.active.as_ref().map_or(0, |active| active.later().count(wall)))
    }

    /// No item that memory lacks lies below. What is due at or above it waits for what has to be loaded.
    pub(super) fn near_until(&self) -> Key {
        if self.far() == 0 && !self.is_loading() {
            LAST
        } else {
            self.near_until
        }
    }

    /// Below this, what comes in or becomes due stays in memory.
    pub(super) fn memory_bound(&self) -> Key {
        if self.is_held_back() {
            Key::default()
        } else {
            self.near_until()
        }
    }

    /// No stored item lies below.
    pub(super) fn low(&self) -> Key {
        self.low_of_free().min(self.passed.low())
    }

    /// The same, without what is held back of customers.
    pub(super) fn low_of_free(&self) -> Key {
        let near = self.active.as_ref().and_then(|active| active.resident().first_due()).map(Key::at);
        let far = (self.far() > 0).then_some(self.near_until);
        [near, far].into_iter().flatten().min().unwrap_or(LAST)
    }

    pub(super) fn row(&self) -> QueueRow {
        QueueRow {
            queue: Arc::clone(&self.name),
            count: self.stored + u64::from(mutated(Mutant::CountForgotten) && self.stored == 0),
            low: self.low(),
            paused: self.paused.filter(|_| !mutated(Mutant::PauseForgotten)),
            unindexed_until: if self.stored == 0 { 0 } else { self.unindexed_until },
            slowed: self.slowed.filter(|_| !mutated(Mutant::RateForgotten)),
        }
    }

    /// For messages of tests.
    #[cfg(test)]
    pub(super) fn describe(&self) -> String {
        let (near, far, wake) = (self.near_until, self.far(), self.wake);
        let active = self.active.as_ref().map(|active| active.describe(self.is_paused()));
        format!("{} stored {} far {far} near {near:?} wake {wake} {active:?}", self.name, self.stored)
    }

    fn is_forgettable(&self, mono: u64) -> bool {
        self.total() == 0
            && !self.is_paused()
            && self.slowed.is_none()
            && self.passed.is_empty()
            && !self.dirty
            && self.active.as_ref().is_none_or(|active| active.is_idle(true, mono))
    }
}
