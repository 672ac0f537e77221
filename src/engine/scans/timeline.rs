//! The timeline: counts items by time spans, from now on, over a bounded number of rows.
//!
//! Each application has its share of the rows, so that one with a large backlog hides no other. Items that
//! are due already are not read: their number has no bound, and it is counted elsewhere.

use super::course::{queues_of, Course, ScanRange};
use super::gather::InMemory;
use crate::core::Core;
use crate::ids::ItemId;
use crate::queue::Queue;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use tidegate_types::event::{Along, Stored};
use tidegate_types::{Answer, Key, Now, Timeline, TimelineQuery};

/// Rows that one answer reads: some 40 ms of reading, in steps between which all other work continues.
const ROWS: usize = 50_000;

/// Applications that one answer covers; as many as the state lists.
const QUEUES: usize = 1_000;

/// Rows read beyond the last span to find the next due of an application with no item within the timeline.
/// The first row nearly always suffices, but its item may have ended since.
const PROBE_ROWS: usize = 8;

/// A timeline under way.
#[derive(Debug)]
pub(super) struct TimelineScan {
    application: Option<Arc<str>>,
    result: Timeline,
    /// End of the last span, UTC ms.
    until: u64,
    /// The ranges of the store to scan, until the scan begins with them.
    ranges: VecDeque<ScanRange>,
    /// Rows that may be read for each application.
    share: usize,
}

impl TimelineScan {
    pub(super) fn new(core: &Core, timeline: &TimelineQuery, now: Now) -> Self {
        let each_ms = timeline.each_ms.max(1);
        let at = timeline.at.unwrap_or(now.wall);
        let from = at / each_ms * each_ms;
        let until = from.saturating_add(each_ms.saturating_mul(timeline.stretches as u64));
        let queues = &core.live.queues;
        let ids = queues_of(core, timeline.application.as_deref());
        let stored = |queue: &&Queue| queue.stored() > 0;
        let range = |queue: &Queue| ScanRange::of_queue(queue, Key::at(at), until, None);
        let mut ranges: VecDeque<ScanRange> =
            ids.into_iter().map(|id| &queues[id]).filter(stored).map(range).take(QUEUES + 1).collect();
        let is_too_many = ranges.len() > QUEUES;
        ranges.truncate(QUEUES);
        TimelineScan {
            application: timeline.application.clone(),
            result: Timeline {
                at,
                from,
                each_ms,
                counts: vec![0; timeline.stretches],
                // Nothing is known of the applications left out.
                counted_until: is_too_many.then_some(at),
                applications: BTreeMap::new(),
                applications_truncated: is_too_many,
            },
            until,
            share: ROWS / ranges.len().max(1),
            ranges,
        }
    }

    pub(super) fn is_about(&self, application: &str) -> bool {
        self.application.as_deref().is_none_or(|name| *name == *application)
    }

    pub(super) fn in_memory(&self, core: &Core) -> InMemory {
        let name = |id: ItemId| core.live.row(&core.live.items()[id]).address().0;
        InMemory::pending(core, |id| self.is_about(&name(id)))
    }

    /// Takes the ranges of the store to scan. Returns their number, too.
    pub(super) fn take_ranges(&mut self) -> (VecDeque<ScanRange>, usize) {
        let looked_at = self.ranges.len();
        (core::mem::take(&mut self.ranges), looked_at)
    }

    pub(super) fn visit_far(&mut self, course: &mut Course, stored: &Stored) {
        if course.meets_anew(stored.key.seq) && stored.dead.is_none() {
            self.count(&stored.application, stored.due);
        }
    }

    pub(super) fn count(&mut self, application: &Arc<str>, due: u64) {
        if due < self.result.at {
            return;
        }
        let is_within = due < self.until;
        if is_within {
            let stretch = (due - self.result.from) / self.result.each_ms;
            if let Some(count) = self.result.counts.get_mut(stretch as usize) {
                *count += 1;
            }
        }
        let all = &mut self.result.applications;
        if all.len() >= QUEUES && !all.contains_key(application) {
            self.result.applications_truncated = true;
            return;
        }
        let ahead = all.entry(Arc::clone(application)).or_default();
        ahead.count += u64::from(is_within);
        ahead.next_due = Some(ahead.next_due.map_or(due, |next| next.min(due)));
    }

    /// Maximum number of rows of the next step.
    pub(super) fn max_rows(&self, range: &ScanRange, range_rows: usize) -> usize {
        if self.is_beyond(range) {
            PROBE_ROWS
        } else {
            self.share.saturating_sub(range_rows).max(1)
        }
    }

    /// Whether it only looks for the next due.
    fn is_beyond(&self, range: &ScanRange) -> bool {
        range.until > self.until
    }

    /// Continues the present range at `next`, or beyond the last span, or ends it.
    pub(super) fn advance(&mut self, course: &mut Course, next: Option<Key>) {
        let Some(range) = course.ranges.as_mut().and_then(VecDeque::front_mut) else { return };
        let is_beyond = self.is_beyond(range);
        let knows_next = match &range.along {
            Along::Queue(name) | Along::Customer(name, _) => self.result.applications.contains_key(name),
        };
        let next = match next {
            Some(next) if course.range_rows < self.share && !(knows_next && is_beyond) => Some(next),
            Some(next) => {
                if next.due < self.until {
                    let known = self.result.counted_until.unwrap_or(u64::MAX);
                    self.result.counted_until = Some(known.min(next.due));
                }
                None
            }
            None if knows_next || is_beyond => None,
            None => {
                range.until = u64::MAX;
                Some(Key::at(self.until))
            }
        };
        course.advance(next);
    }

    pub(super) fn answer(self) -> Answer {
        Answer::Timeline(Box::new(self.result))
    }
}
