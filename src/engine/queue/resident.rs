//! Stored items of a queue that are in memory: their number, and how many are due in each second. The first
//! of these seconds gives the low mark.

use alloc::collections::BTreeMap;
use tidegate_types::Key;

/// Counts of one queue; see the module's page.
#[derive(Debug, Default)]
pub(crate) struct Resident {
    count: u64,
    seconds: BTreeMap<u64, u32>,
}

impl Resident {
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// How many are due in each second.
    #[cfg(test)]
    pub(crate) fn seconds(&self) -> &BTreeMap<u64, u32> {
        &self.seconds
    }

    /// No item is due before this, UTC ms.
    pub(super) fn first_due(&self) -> Option<u64> {
        self.seconds.keys().next().map(|second| second * 1_000)
    }

    pub(super) fn add(&mut self, place: Key) {
        self.count += 1;
        *self.seconds.entry(place.due / 1_000).or_default() += 1;
    }

    pub(super) fn remove(&mut self, place: Key) {
        self.count -= 1;
        let second = place.due / 1_000;
        if let Some(count) = self.seconds.get_mut(&second) {
            *count -= 1;
            if *count == 0 {
                self.seconds.remove(&second);
            }
        }
    }
}
