//! The few channels on which a batch goes alone: who has one, and whose turn is next.

use crate::engine::ids::QueueId;
use crate::engine::mutant::{mutated, Mutant};
use crate::engine::types::{Now, ALONE_CHANNELS};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// See the module's page.
#[derive(Debug)]
pub(super) struct SoloChannels {
    /// Flights that have one, by number, since when (monotonic).
    taken: BTreeMap<u64, u64>,
    /// Queues whose probe waits for a channel, and the one that got the last free one: they take turns.
    waiting: BTreeSet<QueueId>,
    last: Option<QueueId>,
}

impl SoloChannels {
    pub(super) fn new() -> Self {
        SoloChannels { taken: BTreeMap::new(), waiting: BTreeSet::new(), last: None }
    }

    /// A channel is free for a batch that goes alone, or the one that has waited longest for its confirm may
    /// lose its own: for more than `confirm_timeout` ms.
    pub(super) fn has_room(&self, confirm_timeout: u64, now: Now) -> bool {
        let oldest = self.taken.values().min();
        // One more at a time: whoever loses its channel is settled for it.
        let gives_way = oldest.is_some_and(|since| since + confirm_timeout <= now.mono);
        if mutated(Mutant::HungBatchHindersAll) {
            return self.taken.is_empty();
        }
        self.taken.len() < ALONE_CHANNELS || (self.taken.len() == ALONE_CHANNELS && gives_way)
    }

    pub(super) fn take(&mut self, number: u64, now: Now) {
        self.taken.insert(number, now.mono);
    }

    /// Whether the flight had one.
    pub(super) fn give_back(&mut self, number: u64) -> bool {
        self.taken.remove(&number).is_some()
    }

    /// The queue's probe waits for a channel.
    pub(super) fn wait(&mut self, queue: QueueId) {
        self.waiting.insert(queue);
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The queue whose turn it is waits no more.
    pub(super) fn next_waiting(&mut self) -> Option<QueueId> {
        let next = self.last.and_then(|last| {
            let behind = (Bound::Excluded(last), Bound::Unbounded);
            self.waiting.range(behind).next().copied()
        });
        let queue = next.or_else(|| self.waiting.first().copied())?;
        self.waiting.remove(&queue);
        self.last = Some(queue);
        Some(queue)
    }

    /// Flights that have a channel, and since when, monotonic.
    pub(super) fn taken(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.taken.iter().map(|(number, since)| (*number, *since))
    }

    /// Since when the first of them has its own, where none is free, monotonic.
    pub(super) fn oldest_of_all(&self) -> Option<u64> {
        self.taken.values().min().copied().filter(|_| self.taken.len() == ALONE_CHANNELS)
    }
}
