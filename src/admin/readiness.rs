//! Readiness as a set of latches: each part of a shard sets its own, and the shard is ready when all are
//! closed.
//!
//! Pure except for one atomic. Readiness does not know why a latch is open; the state document and the log
//! do.

use std::sync::atomic::{AtomicU8, Ordering};

/// One condition of readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latch {
    /// The ingest connection is up.
    Ingest,
    /// The egress connection is up.
    Egress,
    /// Queues and exchanges have been declared or verified on both connections.
    Topology,
    /// The store is open and takes commits.
    Store,
    /// The ingest consumer runs.
    Consumer,
}

impl Latch {
    /// All latches, in the order in which a start sets them.
    pub const ALL: [Latch; 5] =
        [Latch::Store, Latch::Ingest, Latch::Egress, Latch::Topology, Latch::Consumer];

    /// Its stable name in `missing` of `/readyz` and of the state document.
    pub fn as_str(self) -> &'static str {
        match self {
            Latch::Ingest => "ingest",
            Latch::Egress => "egress",
            Latch::Topology => "topology",
            Latch::Store => "store",
            Latch::Consumer => "consumer",
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Set while the shard stands by: it is ready to take over, whatever its latches are.
const SPARE: u8 = 1 << 7;

/// The latches of one shard. All are open at first. Shared as `Arc<Readiness>`.
#[derive(Debug, Default)]
pub struct Readiness {
    // One word, so that a reader sees all latches at the same moment.
    closed: AtomicU8,
}

impl Readiness {
    /// All latches open: not ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Closes (`true`) or opens a latch.
    pub fn set(&self, latch: Latch, closed: bool) {
        if closed {
            self.closed.fetch_or(latch.bit(), Ordering::AcqRel);
        } else {
            self.closed.fetch_and(!latch.bit(), Ordering::AcqRel);
        }
    }

    /// Opens all latches. With `true` the shard stands by; otherwise it waits for something that is
    /// missing.
    pub fn reset(&self, stands_by: bool) {
        self.closed.store(if stands_by { SPARE } else { 0 }, Ordering::Release);
    }

    /// Names of the open latches, in the order of [`Latch::ALL`]; empty when ready.
    pub fn missing(&self) -> Vec<&'static str> {
        let closed = self.closed.load(Ordering::Acquire);
        if closed & SPARE != 0 {
            return Vec::new();
        }
        Latch::ALL.into_iter().filter(|l| closed & l.bit() == 0).map(Latch::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_ready_at_first() {
        let r = Readiness::new();
        assert_eq!(r.missing(), ["store", "ingest", "egress", "topology", "consumer"]);
    }

    #[test]
    fn ready_only_with_every_latch() {
        for left_out in Latch::ALL {
            let r = Readiness::new();
            for latch in Latch::ALL.into_iter().filter(|l| *l != left_out) {
                r.set(latch, true);
            }
            assert_eq!(r.missing(), [left_out.as_str()]);
            r.set(left_out, true);
            assert_eq!(r.missing(), Vec::<&str>::new());
        }
    }

    #[test]
    fn whoever_stands_by_is_ready_until_it_takes_over() {
        let r = Readiness::new();
        r.set(Latch::Store, true);
        r.reset(true);
        assert_eq!(r.missing(), Vec::<&str>::new());
        r.reset(false);
        assert_eq!(r.missing(), ["store", "ingest", "egress", "topology", "consumer"]);
    }

    #[test]
    fn a_latch_opens_again() {
        let r = Readiness::new();
        Latch::ALL.into_iter().for_each(|latch| r.set(latch, true));
        r.set(Latch::Store, false);
        assert_eq!(r.missing(), ["store"]);
    }
}
