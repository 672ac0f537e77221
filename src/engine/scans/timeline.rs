//! The timeline: counts items by time spans, from now on, over a bounded number of rows.
//!
//! Each application has its share of the rows, so that one with a large backlog hides no other. Items that
//! are due already are not read: their number has no bound, and it is counted elsewhere.

use super::ranges::ScanRange;
use crate::core::Core;
use crate::queue::Queue;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use tidegate_types::event::Along;
use tidegate_types::{Key, Now, Timeline, TimelineQuery};

/// Rows that one answer reads: some 40 ms of reading, in steps between which all other work continues.
const ROWS: usize = 50_000;

/// Applications that one answer covers; as many as the state lists.
const QUEUES: usize = 1_000;

/// Rows read beyond the last span to find the next due of an application with no item within the timeline.
/// The first row nearly always suffices, but its item may have ended since.
const PROBE_ROWS: usize = 8;

/// A count under way.
#[derive(Debug)]
pub(super) struct Counting {
    application: Option<Arc<str>>,
    result: Timeline,
    /// End of the last span, UTC ms.
    until: u64,
    ranges: VecDeque<ScanRange>,
    /// Rows that may be read for each application.
    share: usize,
}

impl Counting {
    pub(super) fn new(core: &Core, timeline: &TimelineQuery, now: Now) -> Self {
        let each_ms = timeline.each_ms.max(1);
        let from = now.wall / each_ms * each_ms;
        let until = from.saturating_add(each_ms.saturating_mul(timeline.stretches as u64));
        let queues = &core.live.queues;
        let ids: Vec<_> = match &timeline.application {
            Some(name) => queues.find(name).into_iter().collect(),
            None => queues.ids().filter(|id| *id != queues.dead_letters()).collect(),
        };
        let stored = |queue: &&Queue| queue.stored() > 0;
        let range = |queue: &Queue| ScanRange {
            along: Along::Queue(Arc::clone(queue.name())),
            from: Key::at(now.wall).max(queue.low()),
            until,
            customer: None,
            low: queue.low(),
        };
        let mut ranges: VecDeque<ScanRange> =
            ids.into_iter().map(|id| &queues[id]).filter(stored).map(range).take(QUEUES + 1).collect();
        let is_too_many = ranges.len() > QUEUES;
        ranges.truncate(QUEUES);
        Counting {
            application: timeline.application.clone(),
            result: Timeline {
                at: now.wall,
                from,
                each_ms,
                counts: vec![0; timeline.stretches],
                // Nothing is known of the applications left out.
                counted_until: is_too_many.then_some(now.wall),
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

    /// The ranges of the store that it reads.
    pub(super) fn ranges(&self) -> VecDeque<ScanRange> {
        self.ranges.clone()
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
    pub(super) fn rows(&self, range: &ScanRange, range_rows: usize) -> usize {
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

    /// After a step: whether the range continues; sets where.
    pub(super) fn goes_on(&mut self, range: &mut ScanRange, next: Option<Key>, range_rows: usize) -> bool {
        let knows_next = match &range.along {
            Along::Queue(name) | Along::Customer(name, _) => self.result.applications.contains_key(name),
        };
        match next {
            Some(next) if range_rows < self.share && !(knows_next && self.is_beyond(range)) => {
                range.from = next
            }
            Some(next) => {
                if next.due < self.until {
                    let known = self.result.counted_until.unwrap_or(u64::MAX);
                    self.result.counted_until = Some(known.min(next.due));
                }
                return false;
            }
            None if knows_next || self.is_beyond(range) => return false,
            None => (range.from, range.until) = (Key::at(self.until), u64::MAX),
        }
        true
    }

    pub(super) fn result(&self) -> Timeline {
        self.result.clone()
    }
}
