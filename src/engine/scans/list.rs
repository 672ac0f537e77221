//! A page of a list of items, in order of due.

use super::course::{queues_of, Course, ScanRange};
use super::gather::InMemory;
use crate::core::{listed, Core};
use crate::ids::{ItemId, QueueId};
use crate::mutant::{mutated, Mutant};
use crate::queue::LAST;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use tidegate_types::event::Stored;
use tidegate_types::{Answer, Filter, Key, Listed, ListedStage, Now};

/// Steps that one page of a list may take, for one application and for all. After that each remaining
/// application has one step, and the page contains the key to continue at.
const LIST_STEPS: u32 = 100;
const LIST_STEPS_OF_ALL: u32 = 2_000;

/// A page under way.
#[derive(Debug)]
pub(super) struct ListScan {
    filter: Filter,
    page: Vec<Listed>,
    /// The key up to which the page is complete; `None`: the page has no such bound yet.
    known_until: Option<Key>,
}

impl ListScan {
    pub(super) fn new(filter: Filter) -> Self {
        ListScan { filter, page: Vec::new(), known_until: None }
    }

    pub(super) fn is_about(&self, application: &str) -> bool {
        self.filter.application.as_deref().is_none_or(|name| *name == *application)
    }

    /// The items in memory on this page. `left`: the number of rows that may be examined.
    pub(super) fn in_memory(&mut self, core: &Core, left: &mut usize) -> InMemory {
        if self.filter.state == Some(ListedStage::InFlight) && core.live.shared.journal.is_durable() {
            self.narrow(core);
            *left = left.saturating_sub(core.live.items().len());
        }
        InMemory::pending(core, |id| self.filter.takes(&listed::near(core, id)))
    }

    /// Narrows a list of items in flight: these are in memory, and their places bound the range of the store.
    fn narrow(&mut self, core: &Core) {
        let flying = core.live.items().ids().filter(|id| core.is_in_flight(*id));
        let (mut first, mut end) = (LAST, 0);
        for place in flying.map(|id| core.live.items()[id].place()) {
            first = first.min(place);
            end = end.max(place.due.saturating_add(1));
        }
        self.filter.from = self.filter.from.max(first);
        self.filter.until = Some(self.filter.until.map_or(end, |until| until.min(end)));
    }

    /// The ranges of the store to scan, and the number of queues examined.
    pub(super) fn ranges(&self, core: &Core, now: Now) -> (VecDeque<ScanRange>, usize) {
        let (filter, queues) = (&self.filter, &core.live.queues);
        let ids = queues_of(core, filter.application.as_deref());
        let looked_at = ids.len();
        let wanted = |id: &QueueId| {
            let queue = &queues[*id];
            let parked = filter.state != Some(ListedStage::Parked) || queue.is_failing();
            queue.stored() > 0 && parked
        };
        let due_only = if filter.state == Some(ListedStage::Parked) { now.wall + 1 } else { u64::MAX };
        let until = filter.until.unwrap_or(u64::MAX).min(due_only);
        let lows = ids.into_iter().filter(wanted).map(|id| (queues[id].low(), id));
        let mut lows: Vec<(Key, QueueId)> =
            lows.filter(|(low, _)| filter.from.max(*low).due < until).collect();
        // All queues are included, since a wanted item may be in the last one. A page that is full ends
        // sooner.
        lows.sort_unstable();
        let range = |id| ScanRange::of_queue(&queues[id], filter.from, until, filter.customer.clone());
        (lows.into_iter().map(|(_, id)| range(id)).collect(), looked_at)
    }

    /// Handles a row of the store whose item is in memory too.
    pub(super) fn meet(&mut self, course: &Course, core: &Core, id: ItemId, stored: Stored) {
        if core.live.items()[id].letter().is_none() {
            self.show(course, Listed { properties: stored.content, ..listed::near(core, id) });
        }
    }

    /// Puts an item on the page if the filter takes it. A rescheduled item that is on it with its former time
    /// is replaced.
    pub(super) fn show(&mut self, course: &Course, listed: Listed) {
        if !self.filter.takes(&listed) {
            return;
        }
        if course.is_retimed(listed.key.seq) {
            self.page.retain(|shown| shown.key.seq != listed.key.seq);
        }
        self.page.push(listed);
    }

    /// Maximum number of rows of a step, `most` if the page is longer.
    pub(super) fn max_rows(&self, most: usize) -> usize {
        self.filter.limit.clamp(1, most)
    }

    /// Continues the present range at `next`, or ends it. A page that holds `most` bytes is full.
    pub(super) fn advance(&mut self, course: &mut Course, next: Option<Key>, most: u64) {
        let limit = self.filter.limit;
        // Items in memory may have been added since.
        self.sort();
        let is_full = self.page.iter().take(limit).map(Listed::size).sum::<u64>() >= most;
        let enough = self.page.len() >= limit && course.range_rows >= limit || is_full;
        let most_steps = if self.filter.application.is_none() { LIST_STEPS_OF_ALL } else { LIST_STEPS };
        let goes_on = !enough && course.steps < most_steps;
        if let Some(next) = next.filter(|_| !goes_on) {
            let known = self.bound(next);
            self.page.retain(|item| item.key < known);
        }
        course.advance(next.filter(|_| goes_on));
        self.skip_ranges(course);
    }

    /// Drops the remaining ranges if they have nothing on this page.
    fn skip_ranges(&mut self, course: &mut Course) {
        let last = self.page.get(self.filter.limit.saturating_sub(1)).map(|item| item.key);
        // Nothing after this key is on the page.
        let Some(last) = [last, self.known_until].into_iter().flatten().min() else { return };
        if let Some(low) = course.range().map(|range| range.low).filter(|low| *low > last) {
            self.bound(low.max(self.filter.from));
            course.ranges = Some(VecDeque::new());
        }
    }

    /// The page is complete up to this key at most. Up to which it is.
    fn bound(&mut self, key: Key) -> Key {
        *self.known_until.insert(self.known_until.map_or(key, |known| known.min(key)))
    }

    fn sort(&mut self) {
        self.page.sort_unstable_by_key(|item| item.key);
        self.page.dedup_by_key(|item| item.key);
    }

    pub(super) fn answer(mut self) -> Answer {
        self.sort();
        let (limit, known_until, mut items) = (self.filter.limit, self.known_until, self.page);
        items.retain(|item| known_until.is_none_or(|until| item.key < until));
        let left_out = items.get(limit).map(|item| item.key);
        items.truncate(limit);
        let next = left_out
            .filter(|_| known_until.is_none() || !mutated(Mutant::CursorSkipsAhead))
            .or(known_until)
            .filter(|_| !mutated(Mutant::ListEndsTooSoon));
        Answer::Listed { items, next }
    }
}
