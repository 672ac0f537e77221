//! A queue for each application, and one for dead letters: its items, how much of its front is in memory, and
//! whether it is drained.
//!
//! The invariant: every stored item of a queue whose place is below [`Queue::near_until`] is in memory, is
//! passed over, or has ended. Items at or above it may be in memory as well. A queue that is paused, parked
//! or has a slow probe is not drained: its due items are evicted from memory, and loaded again in order, from
//! its head on.
//!
//! A queue with nothing in memory costs one row of this table; the state of a queue at work is in its
//! [`ActiveQueue`].

mod active;
mod agenda;
mod flights;
mod later;
mod passed;
mod ready;
mod resident;
mod table;

use super::health::HealthState;
use super::ids::CustomerId;
use super::mutant::{mutated, Mutant};
pub(crate) use active::{ActiveQueue, Condition};
pub(crate) use agenda::{EndOf, QueueMut};
use alloc::boxed::Box;
use alloc::sync::Arc;
pub(crate) use flights::QueueFlights;
use passed::PassedOver;
pub(crate) use passed::Room;
pub(crate) use ready::Entry;
use ready::ReadyQueue;
pub(crate) use table::Queues;
use tidegate_types::event::{QueueRow, Slowed, FOR_EVER};
use tidegate_types::{AppSettings, Key, Settings};

/// A key above all others.
pub(crate) const LAST: Key = Key::own(u64::MAX, u64::MAX);

/// A read of a queue's next rows under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loading {
    pub(crate) from: Key,
    pub(crate) until: u64,
    /// Number of rows for which memory is reserved.
    pub(crate) rows: usize,
    /// Lowest place of an item that left memory or was written during the read, which may have missed it.
    pub(crate) behind: Option<Key>,
    /// The queue was held back during the read: its rows are not used.
    pub(crate) void: bool,
    /// It reads the head of a queue that is held back or trimmed: for a probe, or to dead-letter items.
    pub(crate) head: bool,
}

/// The queue of an application, or the dead-letter queue.
#[derive(Debug)]
pub(crate) struct Queue {
    name: Arc<str>,
    /// Numbers of items with a row in the store, and without one.
    stored: u64,
    pending: u64,
    near_until: Key,
    /// When its pause ends, UTC ms.
    paused: Option<u64>,
    /// The rate that a command has set.
    slowed: Option<Slowed>,
    /// Customers with due items that are passed over.
    passed: PassedOver,
    /// Its row is out of date.
    dirty: bool,
    /// It is in the list of queues that the loader has to check.
    marked: bool,
    /// Items of former lives may lack customer rows below this due, UTC ms.
    former_unindexed: u64,
    /// The same for items of all lives.
    unindexed_until: u64,
    /// When the loader checks it next, wall clock; `u64::MAX` = not at all.
    wake: u64,
    active: Option<Box<ActiveQueue>>,
}

impl Queue {
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Number of items that have not ended, in memory or not.
    pub(crate) fn total(&self) -> u64 {
        self.stored + self.pending
    }

    pub(crate) fn stored(&self) -> u64 {
        self.stored
    }

    /// Number of stored items that are in memory.
    pub(crate) fn resident(&self) -> u64 {
        self.active.as_ref().map_or(0, |active| active.resident().count())
    }

    /// Number of items that are in the store only.
    pub(crate) fn far(&self) -> u64 {
        debug_assert!(self.stored >= self.resident(), "what is resident is stored");
        self.stored - self.resident()
    }

    /// Whether an item may be dead-lettered for another: not all are in flight.
    pub(crate) fn has_droppable(&self) -> bool {
        self.far() > 0 || self.active.as_ref().is_some_and(|active| active.droppable().next().is_some())
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// When its pause ends without a command, UTC ms.
    pub(crate) fn paused_until(&self) -> Option<u64> {
        self.paused.filter(|until| *until < FOR_EVER)
    }

    /// The temporary rate, if a command has set one.
    pub(crate) fn slowed(&self) -> Option<Slowed> {
        self.slowed
    }

    /// Until when its rate holds back a batch that could leave otherwise, monotonic ms.
    pub(crate) fn paced_until(&self) -> Option<u64> {
        self.active.as_ref()?.pace().waits_until()
    }

    /// Customers with due items that are passed over.
    pub(crate) fn passed(&self) -> &PassedOver {
        &self.passed
    }

    /// Lower bound of the places of this customer's items that are not in memory.
    pub(crate) fn near_until_of(&self, customer: &str) -> Key {
        self.near_until().min(self.passed.first(customer))
    }

    /// Lower bound of the places of all items that are not in memory, passed-over ones included.
    pub(crate) fn near_until_of_all(&self) -> Key {
        self.near_until().min(self.passed.low())
    }

    /// A stored item of a customer leaves memory, or stays in the store, and is passed over. Call it before
    /// the counts change.
    fn pass_over(&mut self, customer: &str, place: Key) {
        if self.far() == 0 && !self.is_loading() {
            // No other items are missing from memory.
            self.near_until = LAST;
        }
        self.passed.pass_over(customer, place);
    }

    /// An item with this place is in the store only from now on. `passed`: its customer, if it is passed
    /// over. Call it before the counts change.
    fn leave_in_store(&mut self, place: Key, passed: Option<&str>) {
        match passed.filter(|_| !self.is_trimming()) {
            Some(customer) => self.pass_over(customer, place),
            None => self.lower(place),
        }
    }

    /// An item with this place is in the store only from now on. Call it before the counts change.
    fn lower(&mut self, place: Key) {
        let known = self.far() > 0 || self.is_loading();
        self.near_until = if known { self.near_until.min(place) } else { place };
        let loading = self.active.as_mut().and_then(|active| active.loading_mut().as_mut());
        if let Some(loading) = loading {
            loading.behind = Some(loading.behind.map_or(place, |behind| behind.min(place)));
        }
    }

    /// Whether the loader may pass over an item of a customer at this place, and leave it in the store: it
    /// must be due, the queue must not be trimmed, and the item must not lack its customer row. `back`: it
    /// was passed over before, and has the row.
    pub(crate) fn may_pass_over(&self, place: Key, back: bool, wall: u64) -> bool {
        let is_indexed = back || place.due >= self.former_unindexed;
        place.due <= wall && is_indexed && !self.is_trimming()
    }

    /// Whether its first items must be dead-lettered and are not in memory.
    pub(crate) fn is_trimming(&self) -> bool {
        self.active().is_some_and(|active| active.is(Condition::Trimming))
    }

    pub(crate) fn former_unindexed(&self) -> u64 {
        self.former_unindexed
    }

    /// The customer of this name, if it has items in memory or an open window.
    pub(crate) fn customer(&self, name: &str) -> Option<CustomerId> {
        self.active()?.customer(name)
    }

    pub(crate) fn active(&self) -> Option<&ActiveQueue> {
        self.active.as_deref()
    }

    /// Settings of its application, also if it is not active.
    fn settings<'a>(&'a self, all: &'a Settings) -> &'a Arc<AppSettings> {
        self.active().map_or_else(|| all.of(&self.name), ActiveQueue::settings)
    }

    fn is_loading(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.loading().is_some())
    }

    /// Whether the last try failed and none has succeeded since.
    pub(crate) fn is_failing(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.health().is_failing())
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.active
            .as_ref()
            .is_some_and(|active| matches!(active.health().state(), HealthState::Parked { .. }))
    }

    /// Whether it is not drained: it is paused, failing, or its probe is slow.
    pub(crate) fn is_held_back(&self) -> bool {
        self.is_paused()
            || self.is_failing()
            || self.active.as_ref().is_some_and(|active| active.is(Condition::SlowProbe))
    }

    /// Number of due items that are in the store only, as far as it is known without a read: for a queue that
    /// is held back, those that were due when that began, or when they came later.
    pub(crate) fn far_due(&self, wall: u64) -> u64 {
        if self.near_until().due > wall {
            return 0;
        }
        self.far().saturating_sub(self.active.as_ref().map_or(0, |active| active.later().count(wall)))
    }

    /// Lower bound of the places of items that are not in memory, passed-over ones excepted. Due items at or
    /// above it wait until these have been loaded.
    pub(crate) fn near_until(&self) -> Key {
        if self.far() == 0 && !self.is_loading() {
            LAST
        } else {
            self.near_until
        }
    }

    /// New or due items below this place stay in memory.
    pub(crate) fn memory_bound(&self) -> Key {
        if self.is_held_back() {
            Key::default()
        } else {
            self.near_until()
        }
    }

    /// Lower bound of the places of stored items.
    pub(crate) fn low(&self) -> Key {
        self.low_of_free().min(self.passed.low())
    }

    /// The same without passed-over items.
    pub(crate) fn low_of_free(&self) -> Key {
        let near = self.active.as_ref().and_then(|active| active.resident().first_due()).map(Key::at);
        let far = (self.far() > 0).then_some(self.near_until);
        [near, far].into_iter().flatten().min().unwrap_or(LAST)
    }

    pub(crate) fn row(&self) -> QueueRow {
        QueueRow {
            queue: Arc::clone(&self.name),
            count: self.stored + u64::from(mutated(Mutant::CountForgotten) && self.stored == 0),
            low: self.low(),
            paused: self.paused.filter(|_| !mutated(Mutant::PauseForgotten)),
            unindexed_until: if self.stored == 0 { 0 } else { self.unindexed_until },
            slowed: self.slowed.filter(|_| !mutated(Mutant::RateForgotten)),
        }
    }

    /// The state of the queue, for messages of tests.
    #[cfg(test)]
    pub(crate) fn describe(&self) -> String {
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
            && self.active.as_ref().is_none_or(|active| active.is_idle(true, true, mono))
    }
}
