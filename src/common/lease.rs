//! How long the daemon may treat a store that several machines can reach as its own. Pure; the clock is
//! `CLOCK_BOOTTIME`, so that the time of a suspend counts.
//!
//! The database counts a lease from the arrival of a renewal. The daemon counts it from the moment it *sent*
//! that renewal, and ends it a fifth early. So a slow answer never extends a lease. The clocks need not
//! agree, as long as they run at about the same rate.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The lease of a store, as this daemon counts it.
#[derive(Debug)]
pub struct Lease {
    length_ms: u64,
    /// When the last answered renewal was sent, monotonic ms.
    sent_ms: AtomicU64,
    /// The daemon has released it.
    ended: AtomicBool,
}

impl Lease {
    /// A lease of this length, first requested at `sent_ms` (monotonic ms).
    pub fn new(length_ms: u64, sent_ms: u64) -> Self {
        Lease { length_ms, sent_ms: AtomicU64::new(sent_ms), ended: AtomicBool::new(false) }
    }

    /// The database has answered the renewal that was sent at `sent_ms` (monotonic ms).
    pub fn renewed(&self, sent_ms: u64) {
        self.sent_ms.fetch_max(sent_ms, Ordering::Release);
    }

    /// Releases the lease: from now on another daemon can have it.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Whether no other daemon can have the store at `now_ms` (monotonic ms).
    pub fn holds(&self, now_ms: u64) -> bool {
        self.remaining(now_ms) > 0
    }

    /// Whether the daemon released it; `false` for a lease that only ran out.
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// How long the lease still holds at `now_ms` (monotonic ms), ms.
    pub fn remaining(&self, now_ms: u64) -> u64 {
        if self.is_ended() {
            return 0;
        }
        (self.length_ms / 5 * 4).saturating_sub(self.age(now_ms))
    }

    /// Length of the lease, ms.
    pub fn length_ms(&self) -> u64 {
        self.length_ms
    }

    /// Time until the next renewal, ms: it is due when a third of the lease has passed.
    pub fn due_in(&self, now_ms: u64) -> u64 {
        (self.length_ms / 3).saturating_sub(self.age(now_ms))
    }

    /// Time since the last renewal was sent, ms.
    pub fn age(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.sent_ms.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_due_after_a_third_and_over_before_its_end() {
        let lease = Lease::new(10_000, 1_000);
        assert!(lease.holds(1_000) && lease.holds(8_999) && !lease.holds(9_000));
        assert_eq!([1_000, 8_999, 9_000].map(|now| lease.remaining(now)), [8_000, 1, 0]);
        assert_eq!((lease.due_in(1_000), lease.due_in(4_332), lease.due_in(4_333)), (3_333, 1, 0));
        lease.renewed(5_000);
        assert!(lease.holds(12_999) && !lease.holds(13_000) && lease.due_in(8_000) > 0);
        // A late answer to an earlier renewal.
        lease.renewed(2_000);
        assert!(lease.holds(12_999) && !lease.holds(13_000));
        assert!(lease.holds(0), "a clock that runs backwards ends no lease");
        lease.end();
        lease.renewed(12_000);
        assert!(
            !lease.holds(12_000) && lease.remaining(0) == 0 && lease.is_ended(),
            "no renewal revives a released lease"
        );
    }
}
