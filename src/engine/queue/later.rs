//! Items of a queue that is held back that are in the store alone and were not due when they went there,
//! counted by the second in which they become due. So the number of its due items is known without a read.

use alloc::collections::BTreeMap;
use tidegate_types::Key;

/// How many seconds have a count of their own; items that are due later count with the last.
const SECONDS: usize = 4_096;

/// The first second that begins no earlier than this due.
fn due_second(due: u64) -> u64 {
    due.div_ceil(1_000)
}

/// Counts of one queue; see the module's page. It counts nothing before [`Later::begin`].
#[derive(Debug, Default)]
pub(super) struct Later {
    seconds: Option<BTreeMap<u64, u64>>,
}

impl Later {
    /// Counts the items that go to the store alone from now on. `known`: that many are there already and are
    /// not due before that moment.
    pub(super) fn begin(&mut self, known: Option<(u64, u64)>) {
        if self.seconds.is_none() {
            self.seconds = Some(known.map(|(due, count)| (due_second(due), count)).into_iter().collect());
        }
    }

    pub(super) fn end(&mut self) {
        self.seconds = None;
    }

    /// How many items in the store alone are known not to be due.
    pub(super) fn count(&self, wall: u64) -> u64 {
        let seconds = self.seconds.as_ref();
        seconds.map_or(0, |seconds| seconds.range(wall / 1_000 + 1..).map(|(_, count)| count).sum())
    }

    /// `count` of the items that were to be due at `end` are due now.
    pub(super) fn due_sooner(&mut self, end: u64, count: u64) {
        let seconds = self.seconds.as_mut();
        if let Some(waiting) = seconds.and_then(|seconds| seconds.get_mut(&due_second(end))) {
            *waiting = waiting.saturating_sub(count);
        }
    }

    /// Counts an item that is not due yet and has gone to the store alone, or come from there.
    pub(super) fn note(&mut self, place: Key, wall: u64, comes: bool) {
        let Some(seconds) = self.seconds.as_mut() else { return };
        while seconds.first_key_value().is_some_and(|(second, _)| *second <= wall / 1_000) {
            seconds.pop_first();
        }
        if place.due <= wall {
            return;
        }
        if !comes {
            if let Some(count) = seconds.get_mut(&due_second(place.due)) {
                *count = count.saturating_sub(1);
            }
            return;
        }
        let last = seconds.last_key_value().map(|(second, _)| *second);
        let second = last.filter(|_| seconds.len() >= SECONDS).unwrap_or(due_second(place.due));
        *seconds.entry(second).or_default() += 1;
    }
}
