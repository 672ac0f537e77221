//! What all consumers and forwarders of a daemon know of the map, which leads requests straight to the queues
//! of their homes: whether it does, how many applications were met, and counters.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Most applications that get a binding because they were met, in one run of the process: producers may
/// invent names, and a binding stays.
pub(crate) const MOST_MET: usize = 10_000;

/// Figures of the map since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapStats {
    /// Requests that passed the sharder, and are safe in the queues of their homes. One that is delivered to
    /// the sharder again, and forwarded again, counts again; so in `misplaced`.
    pub forwarded: u64,
    /// Requests that came, as a whole or in part, to the queue of a shard that is not their home, and were
    /// forwarded from there.
    pub misplaced: u64,
    /// Bindings that were made for applications that were met; one that existed counts as well.
    pub bound: u64,
    /// Wrong bindings that were taken away because a request came by them.
    pub corrected: u64,
    /// Bindings that the broker refused, or did not confirm in time.
    pub bind_failures: u64,
}

/// See the module. Read and written from any thread.
#[derive(Debug, Default)]
pub struct SharedMap {
    leads: AtomicBool,
    met: AtomicUsize,
    forwarded: AtomicU64,
    misplaced: AtomicU64,
    bound: AtomicU64,
    corrected: AtomicU64,
    bind_failures: AtomicU64,
}

impl SharedMap {
    /// A consumer has prepared the ways of requests. `is_certain`: as far as is known, no way but the map
    /// leads to the ingest queue, so that an application that is bound has one way.
    pub(crate) fn prepared(&self, is_certain: bool) {
        self.leads.store(is_certain, Relaxed);
    }

    /// Whether applications may be bound.
    pub(crate) fn leads(&self) -> bool {
        self.leads.load(Relaxed)
    }

    /// Counts an application that was not met before. Whether there is room for its binding.
    pub(crate) fn admits(&self) -> bool {
        let one_more = |met: usize| (met < MOST_MET).then_some(met + 1);
        self.met.fetch_update(Relaxed, Relaxed, one_more).is_ok()
    }

    /// Counts a request that is safe in the queues of its homes. `by_sharder`: it came through the ingest
    /// queue, and not to a shard.
    pub fn forwarded(&self, by_sharder: bool) {
        let counter = if by_sharder { &self.forwarded } else { &self.misplaced };
        counter.fetch_add(1, Relaxed);
    }

    /// Counts a binding that was made.
    pub fn bound(&self) {
        self.bound.fetch_add(1, Relaxed);
    }

    /// Counts a wrong binding that was taken away.
    pub fn corrected(&self) {
        self.corrected.fetch_add(1, Relaxed);
    }

    /// Counts a binding that could not be made.
    pub fn bind_failed(&self) {
        self.bind_failures.fetch_add(1, Relaxed);
    }

    /// All of them at this moment.
    pub fn stats(&self) -> MapStats {
        MapStats {
            forwarded: self.forwarded.load(Relaxed),
            misplaced: self.misplaced.load(Relaxed),
            bound: self.bound.load(Relaxed),
            corrected: self.corrected.load(Relaxed),
            bind_failures: self.bind_failures.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_applications_find_room() {
        let map = SharedMap::default();
        assert_eq!((0..20_000).filter(|_| map.admits()).count(), 10_000);
        assert!(!map.leads(), "before the sharder has prepared the ways");
    }

    #[test]
    fn each_event_has_a_counter_of_its_own() {
        let figures = SharedMap::default();
        assert_eq!(figures.stats(), MapStats::default());
        let times = |count: u64, event: &dyn Fn()| (0..count).for_each(|_| event());
        times(1, &|| figures.forwarded(true));
        times(2, &|| figures.forwarded(false));
        times(3, &|| figures.bound());
        times(4, &|| figures.corrected());
        times(5, &|| figures.bind_failed());
        let counted = MapStats { forwarded: 1, misplaced: 2, bound: 3, corrected: 4, bind_failures: 5 };
        assert_eq!(figures.stats(), counted);
    }
}
