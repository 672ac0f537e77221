//! Whether the daemon still moves: heartbeats that its parts leave, and that a probe reads without a
//! question to any of them.
//!
//! It does not know why a part stands still. Waiting for a broker or for work is no standing still: the loop
//! turns at least once a second, and a store without work has nothing to be late with.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A part that has not moved for longer is taken for dead.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// The heartbeats of one process. Shared as `Arc<Liveness>`.
#[derive(Debug)]
pub struct Liveness {
    epoch: Instant,
    /// Last turn of the loop, ms since `epoch`.
    turned: AtomicU64,
    /// Since when the store has been at work on the oldest of what waits for it, ms since `epoch`; [`IDLE`]
    /// without.
    store_busy: AtomicU64,
}

/// The store has nothing to do.
const IDLE: u64 = u64::MAX;

impl Default for Liveness {
    fn default() -> Self {
        Liveness { epoch: Instant::now(), turned: AtomicU64::new(0), store_busy: AtomicU64::new(IDLE) }
    }
}

impl Liveness {
    /// As if the process had started `age` ago, without a turn since.
    #[cfg(test)]
    pub(super) fn of_age(age: Duration) -> Liveness {
        Liveness {
            epoch: Instant::now().checked_sub(age).expect("a machine that is up"),
            ..Liveness::default()
        }
    }

    /// The loop has come round.
    pub fn turned(&self) {
        self.turned.store(self.now(), Ordering::Release);
    }

    /// Age of the oldest job that the store has not finished, ms; `None` without one. Told at least once a
    /// second by whoever looks at the store: an age that is not renewed goes on growing.
    pub fn store_oldest(&self, age_ms: Option<u64>) {
        let since = age_ms.map_or(IDLE, |age| self.now().saturating_sub(age));
        self.store_busy.store(since, Ordering::Release);
    }

    /// Names of the parts that have stood still for longer than [`STUCK_AFTER`]; empty while all move.
    pub fn stuck(&self) -> Vec<&'static str> {
        self.stuck_at(self.now())
    }

    fn stuck_at(&self, now: u64) -> Vec<&'static str> {
        let limit = STUCK_AFTER.as_millis() as u64;
        let late = |since: u64| since != IDLE && now.saturating_sub(since) > limit;
        let parts = [("loop", &self.turned), ("store", &self.store_busy)];
        parts
            .into_iter()
            .filter(|(_, since)| late(since.load(Ordering::Acquire)))
            .map(|(part, _)| part)
            .collect()
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_stands_still_is_named_after_a_minute() {
        let it = Liveness::default();
        it.turned();
        it.store_oldest(None);
        let none: [&str; 0] = [];
        assert_eq!(it.stuck_at(60_000), none);
        assert_eq!(it.stuck_at(61_000), ["loop"]);
        it.store_oldest(Some(0));
        assert_eq!(it.stuck_at(61_000), ["loop", "store"]);
        it.turned.store(61_000, Ordering::Release);
        assert_eq!(it.stuck_at(61_000), ["store"], "the loop turns and says it again");
        it.store_oldest(None);
        assert_eq!(it.stuck_at(61_000), none, "and now it has nothing to do");
    }
}
