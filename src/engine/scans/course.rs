//! How far a scan has come: through memory first, then through ranges of the store.

use crate::core::Core;
use crate::ids::{CustomerId, ItemId, QueueId};
use crate::items::NumberMap;
use crate::lookup::Lookup;
use crate::mutant::{mutated, Mutant};
use crate::queue::Queue;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use tidegate_types::event::{Along, Stored};
use tidegate_types::Key;

/// A part of the store to scan.
#[derive(Clone, Debug)]
pub(super) struct ScanRange {
    pub(super) along: Along,
    pub(super) from: Key,
    pub(super) until: u64,
    pub(super) customer: Option<Arc<str>>,
    /// No item of it has a lower key.
    pub(super) low: Key,
}

impl ScanRange {
    /// The rows of a queue from this key on.
    pub(super) fn of_queue(queue: &Queue, from: Key, until: u64, customer: Option<Arc<str>>) -> Self {
        let (along, low) = (Along::Queue(Arc::clone(queue.name())), queue.low());
        ScanRange { along, from: low.max(from), until, customer, low }
    }
}

/// The queue of this application, or those of all.
pub(super) fn queues_of(core: &Core, application: Option<&str>) -> Vec<QueueId> {
    let queues = &core.live.queues;
    match application {
        Some(name) => queues.find(name).into_iter().collect(),
        None => queues.ids().filter(|id| *id != queues.dead_letters()).collect(),
    }
}

/// Progress of collecting items in memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Gathering {
    NotBegun,
    /// It continues the customer's list at this item. The number counts how often it was begun anew.
    Customer(CustomerId, ItemId, u32),
    Done,
}

/// What a scan has covered, and what is left.
#[derive(Debug)]
pub(super) struct Course {
    /// Items from this arrival number on came after the command.
    pub(super) before: u64,
    pub(super) gathering: Gathering,
    /// Arrival numbers of items in memory that have not been visited.
    pub(super) resident: Vec<u64>,
    /// Items counted in memory, which are not counted again in the store; `None`: the command counts nothing.
    pub(super) counted: Option<NumberMap<u64, ()>>,
    /// Items rescheduled since it began, and whether the scan had passed them before: in the store their new
    /// places may be ahead of the scan or behind it.
    retimed: BTreeMap<u64, bool>,
    /// Ranges of the store that are left; `None` until memory has been covered.
    pub(super) ranges: Option<VecDeque<ScanRange>>,
    /// Rows of the present range so far.
    pub(super) range_rows: usize,
    pub(super) steps: u32,
    /// A step over the store is under way.
    pub(super) steps_now: bool,
}

impl Course {
    pub(super) fn new(before: u64, counts: bool) -> Self {
        Course {
            before,
            gathering: Gathering::NotBegun,
            resident: Vec::new(),
            counted: counts.then(Lookup::new),
            retimed: BTreeMap::new(),
            ranges: None,
            range_rows: 0,
            steps: 0,
            steps_now: false,
        }
    }

    /// Whether the scan has covered all items.
    pub(super) fn is_through(&self) -> bool {
        self.ranges.as_ref().is_some_and(VecDeque::is_empty)
    }

    /// The present range of the store.
    pub(super) fn range(&self) -> Option<&ScanRange> {
        self.ranges.as_ref()?.front()
    }

    /// Continues the present range at `next`, or ends it.
    pub(super) fn advance(&mut self, next: Option<Key>) {
        let Some(ranges) = &mut self.ranges else { return };
        if let Some(next) = next {
            ranges.front_mut().into_iter().for_each(|range| range.from = next);
        } else {
            ranges.pop_front();
            self.range_rows = 0;
        }
    }

    /// Whether the item came after the command.
    pub(super) fn is_later(&self, seq: u64) -> bool {
        seq >= self.before && !mutated(Mutant::CancelAllTakesLater)
    }

    /// Notes that an item of this application, with this former key and due, was rescheduled.
    pub(super) fn note_retimed(&mut self, application: &str, key: Key, due: u64) {
        let is_its = |range: &&ScanRange| match &range.along {
            Along::Queue(name) | Along::Customer(name, _) => **name == *application,
        };
        // Ranges of one queue are consecutive. Customer rows are in the order of their keys.
        let is_behind = |range: &ScanRange| match &range.along {
            Along::Queue(_) => Key { due, ..key } < range.from,
            Along::Customer(..) => key < range.from,
        };
        let met = self.ranges.as_ref().is_some_and(|ranges| ranges.iter().find(is_its).is_none_or(is_behind));
        self.retimed.entry(key.seq).and_modify(|known| *known |= met).or_insert(met);
    }

    pub(super) fn is_retimed(&self, seq: u64) -> bool {
        self.retimed.contains_key(&seq)
    }

    /// For a count: whether it meets the item of a row for the first time.
    pub(super) fn meets_anew(&mut self, seq: u64) -> bool {
        let is_new = self.retimed.get_mut(&seq).is_none_or(|met| !core::mem::replace(met, true));
        is_new && !self.counted.as_ref().is_some_and(|counted| counted.contains_key(&seq))
    }

    /// For a count: the place of the item is in the previous range, which counted it, and its key is in the
    /// present one.
    pub(super) fn has_passed(&self, stored: &Stored) -> bool {
        let is_below = |along: &Along, low| matches!(along, Along::Customer(..)) && stored.place() < low;
        self.range().is_some_and(|range| is_below(&range.along, range.low))
    }
}
