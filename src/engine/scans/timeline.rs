//! What becomes due when: items counted by stretches of time, from now on, over a bounded number of rows.
//!
//! Each application has its part of them, so that one with a large backlog hides no other. What is due
//! already is not gone over: it may be any number, and is counted elsewhere.

use super::ranges::ScanRange;
use crate::engine::core::Core;
use crate::engine::event::Along;
use crate::engine::queue::Queue;
use crate::engine::types::{Key, Now, Timeline, TimelineQuery};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Rows that one answer goes over: some 40 ms of reading, in steps between which everything else goes on.
const ROWS: usize = 50_000;

/// Applications that one answer goes over; as many as the state lists.
const QUEUES: usize = 1_000;

/// Rows read beyond the last stretch for the next due of an application that has nothing in it. The first
/// nearly always tells it; it may have ended meanwhile.
const PROBE_ROWS: usize = 8;

/// A count on its way.
#[derive(Debug)]
pub(super) struct Counting {
    application: Option<Arc<str>>,
    told: Timeline,
    /// End of the last stretch, UTC ms.
    until: u64,
    ranges: VecDeque<ScanRange>,
    /// Rows that each application has.
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
            told: Timeline {
                at: now.wall,
                from,
                each_ms,
                counts: vec![0; timeline.stretches],
                // Of those left out nothing is known.
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

    /// What of the store it goes over.
    pub(super) fn ranges(&self) -> VecDeque<ScanRange> {
        self.ranges.clone()
    }

    pub(super) fn count(&mut self, application: &Arc<str>, due: u64) {
        if due < self.told.at {
            return;
        }
        let is_within = due < self.until;
        if is_within {
            let stretch = (due - self.told.from) / self.told.each_ms;
            if let Some(count) = self.told.counts.get_mut(stretch as usize) {
                *count += 1;
            }
        }
        let all = &mut self.told.applications;
        if all.len() >= QUEUES && !all.contains_key(application) {
            self.told.applications_truncated = true;
            return;
        }
        let ahead = all.entry(Arc::clone(application)).or_default();
        ahead.count += u64::from(is_within);
        ahead.next_due = Some(ahead.next_due.map_or(due, |next| next.min(due)));
    }

    /// Most rows of the next step.
    pub(super) fn rows(&self, range: &ScanRange, range_rows: usize) -> usize {
        if self.is_beyond(range) {
            PROBE_ROWS
        } else {
            self.share.saturating_sub(range_rows).max(1)
        }
    }

    /// It looks for the next due alone.
    fn is_beyond(&self, range: &ScanRange) -> bool {
        range.until > self.until
    }

    /// After a step: whether the leg goes on, and where.
    pub(super) fn goes_on(&mut self, range: &mut ScanRange, next: Option<Key>, range_rows: usize) -> bool {
        let knows_next = match &range.along {
            Along::Queue(name) | Along::Customer(name, _) => self.told.applications.contains_key(name),
        };
        match next {
            Some(next) if range_rows < self.share && !(knows_next && self.is_beyond(range)) => {
                range.from = next
            }
            Some(next) => {
                if next.due < self.until {
                    let known = self.told.counted_until.unwrap_or(u64::MAX);
                    self.told.counted_until = Some(known.min(next.due));
                }
                return false;
            }
            None if knows_next || self.is_beyond(range) => return false,
            None => (range.from, range.until) = (Key::at(self.until), u64::MAX),
        }
        true
    }

    pub(super) fn told(&self) -> Timeline {
        self.told.clone()
    }
}
