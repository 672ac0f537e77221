//! How long a store that several machines reach may be taken for one's own. Pure; the clock is
//! `CLOCK_BOOTTIME`, so that a machine that slept has lost what it slept over.
//!
//! The database counts a lease from when it has heard of a renewal; here it counts from when that was *sent*,
//! and ends a fifth early. So a slow answer never stretches it, and clocks need not agree, as long as they
//! run about equally fast.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// See the module.
#[derive(Debug)]
pub struct Lease {
    length_ms: u64,
    /// When the last renewal that was answered had been sent, monotonic ms.
    sent_ms: AtomicU64,
    /// It was let go of.
    ended: AtomicBool,
}

impl Lease {
    /// Of this length, for the first time asked for at `sent_ms` (monotonic ms).
    pub fn new(length_ms: u64, sent_ms: u64) -> Self {
        Lease { length_ms, sent_ms: AtomicU64::new(sent_ms), ended: AtomicBool::new(false) }
    }

    /// A renewal that was sent at that moment (monotonic ms) has been answered.
    pub fn renewed(&self, sent_ms: u64) {
        self.sent_ms.fetch_max(sent_ms, Ordering::Release);
    }

    /// It is let go of: from now on others can have it.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Whether nobody else can have it, at `now` (monotonic ms).
    pub fn holds(&self, now_ms: u64) -> bool {
        self.remaining(now_ms) > 0
    }

    /// It was let go of, and is not only over.
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// How long that is still so, at `now` (monotonic ms), ms.
    pub fn remaining(&self, now_ms: u64) -> u64 {
        if self.is_ended() {
            return 0;
        }
        (self.length_ms / 5 * 4).saturating_sub(self.age(now_ms))
    }

    /// Its length, ms.
    pub fn length_ms(&self) -> u64 {
        self.length_ms
    }

    /// Time until it is to be renewed, which is when a third of it is over, ms.
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
        // An answer that comes late, of one that was sent before.
        lease.renewed(2_000);
        assert!(lease.holds(12_999) && !lease.holds(13_000));
        assert!(lease.holds(0), "a clock does not run backwards; if it does, nothing is concluded");
        lease.end();
        lease.renewed(12_000);
        assert!(
            !lease.holds(12_000) && lease.remaining(0) == 0 && lease.is_ended(),
            "nothing brings it back"
        );
    }
}
