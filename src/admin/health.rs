//! Readiness and progress of the whole daemon: every shard must be ready, and no part of any may stand still.
//! The limits on new times stand beside them, since no loop is asked for those either.

use super::horizon::TimeHorizon;
use super::readiness::{Latch, Readiness};
use std::sync::Arc;
use std::time::Duration;
use tidegate_common::progress::{DaemonPart, ProgressMarks, ProgressVerdict};
use tidegate_wire::dead_letters::RetryTerms;

/// The latches and marks of one shard, and its limits on new times.
#[derive(Clone, Debug, Default)]
pub struct ShardHealth {
    /// Its own latches.
    pub readiness: Arc<Readiness>,
    /// The marks of its parts.
    pub progress: Arc<ProgressMarks>,
    /// How far ahead the time of a request may be.
    pub horizon: Arc<TimeHorizon>,
}

/// The health of all shards. Takes no lock, and asks no part.
#[derive(Clone, Debug)]
pub struct NodeHealth(Vec<ShardHealth>);

impl NodeHealth {
    /// Of these shards.
    pub fn of(shards: Vec<ShardHealth>) -> NodeHealth {
        NodeHealth(shards)
    }

    /// One shard in which only these latches are open, for tests of what reads them.
    #[cfg(test)]
    pub(crate) fn ready_but(missing: &[&str]) -> NodeHealth {
        let shard = ShardHealth::default();
        let closed = Latch::ALL.into_iter().filter(|latch| !missing.contains(&latch.as_str()));
        closed.for_each(|latch| shard.readiness.set(latch, true));
        NodeHealth::of(vec![shard])
    }

    /// Names of the latches that are open in any shard, in the order of [`Latch::ALL`]; empty when ready.
    pub fn missing(&self) -> Vec<&'static str> {
        let missing: Vec<&str> = self.0.iter().flat_map(|shard| shard.readiness.missing()).collect();
        Latch::ALL.into_iter().map(Latch::as_str).filter(|latch| missing.contains(latch)).collect()
    }

    /// The parts that stand still in any shard, with the longest time.
    pub fn verdict(&self) -> ProgressVerdict {
        ProgressVerdict::of_all(self.0.iter().map(|shard| shard.progress.verdict()))
    }

    /// The value of `timeouts.stuck_after`, ms.
    pub fn stuck_after_ms(&self) -> u64 {
        // All shards have the same, except within a reload.
        self.0.iter().map(|shard| shard.progress.stuck_after_ms()).min().unwrap_or(u64::MAX)
    }

    /// Whether to stop the sign of life to the service manager: see [`ProgressMarks::is_late_for`].
    pub fn is_late_for(&self, patience: Duration) -> bool {
        self.0.iter().any(|shard| shard.progress.is_late_for(patience))
    }

    /// Names of the parts that have not moved for two seconds in any shard.
    pub fn stillest(&self) -> Vec<&'static str> {
        let still: Vec<&str> = self.0.iter().flat_map(|shard| shard.progress.stillest()).collect();
        DaemonPart::ALL.into_iter().map(DaemonPart::as_str).filter(|part| still.contains(part)).collect()
    }

    /// Why dead letters that are sent back on these terms at `now`, UTC ms, would be dead again. All shards
    /// have the same limits, except within a reload; then those of each count.
    pub fn refusal(&self, terms: &RetryTerms, now: u64) -> Option<String> {
        self.0.iter().find_map(|shard| shard.horizon.refusal(terms, now))
    }

    /// Items that had not ended at the last reports of the loops.
    pub fn waiting(&self) -> u64 {
        self.0.iter().map(|shard| shard.progress.waiting()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(age: Duration) -> ShardHealth {
        ShardHealth { progress: Arc::new(ProgressMarks::of_age(age)), ..ShardHealth::default() }
    }

    fn close_all(readiness: &Readiness) {
        Latch::ALL.into_iter().for_each(|latch| readiness.set(latch, true));
    }

    #[test]
    fn ready_only_when_every_shard_is() {
        let (one, other) = (ShardHealth::default(), ShardHealth::default());
        let node = NodeHealth::of(vec![one.clone(), other.clone()]);
        close_all(&one.readiness);
        assert_eq!(node.missing(), ["store", "ingest", "egress", "topology", "consumer"]);
        close_all(&other.readiness);
        assert_eq!(node.missing(), Vec::<&str>::new());
        one.readiness.set(Latch::Egress, false);
        other.readiness.set(Latch::Store, false);
        assert_eq!(node.missing(), ["store", "egress"]);
        other.readiness.reset(true);
        assert_eq!(node.missing(), ["egress"], "a shard that stands by is ready");
        one.readiness.set(Latch::Egress, true);
        assert_eq!(node.missing(), Vec::<&str>::new());
    }

    #[test]
    fn a_part_that_stands_still_in_one_shard_stands_still() {
        let (one, other) = (ShardHealth::default(), shard(Duration::from_secs(70)));
        let node = NodeHealth::of(vec![one.clone(), other.clone()]);
        assert_eq!(node.verdict().stuck_names(), ["loop", "ingest", "egress"]);
        assert!(node.verdict().stuck.iter().all(|(_, age)| (70_000..80_000).contains(age)));
        assert_eq!(node.stillest(), ["loop", "ingest", "egress"]);
        assert!(node.is_late_for(Duration::from_secs(1)));
        other.progress.begin();
        assert_eq!(node.verdict(), ProgressVerdict::default());
        assert!(!node.is_late_for(Duration::from_secs(1)) && node.stillest().is_empty());
        one.progress.tell_waiting(3);
        other.progress.tell_waiting(4);
        assert_eq!(node.waiting(), 7);
    }
}
