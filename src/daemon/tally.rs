//! Counters of a shard over all lives of its store, and the part of the state document that needs no
//! store. Counters that restarted with each restart of the database would hide in their rates what was lost
//! with it.

use crate::admin::{ShardLine, ShardState, StoreState, Traffic};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_amqp::Figures;
use tidegate_config::StoreKind;
use tidegate_store::thread::CommitFigures;
use tidegate_store::{Loss, Takeover};
use tidegate_types::snapshot::{Counters, Snapshot};

/// The counters of one shard since the start of the process.
#[derive(Debug, Default)]
pub(super) struct ShardTally {
    /// Totals with which the engine of the next life continues.
    pub(super) totals: Counters,
    /// Figures of both connections.
    pub(super) figures: Arc<Figures>,
    /// Figures of the store.
    pub(super) commits: Arc<CommitFigures>,
    /// Longest turn of the loop so far without its sleep, us.
    pub(super) longest_turn_us: u64,
    /// Number of times a store was opened.
    lives: u64,
    /// Those of them in which another daemon could have had the store, in the order of [`Takeover::ALL`].
    takeovers: [u64; Takeover::ALL.len()],
    /// Number of lives that ended without a stop, in the order of [`Loss::ALL`].
    losses: [u64; Loss::ALL.len()],
}

impl ShardTally {
    /// A life begins.
    pub(super) fn begins(&mut self, takeover: Option<Takeover>) {
        self.lives += 1;
        if let Some(takeover) = takeover {
            self.takeovers[takeover as usize] += 1;
        }
    }

    /// A life has ended, and another follows.
    pub(super) fn lost(&mut self, loss: Loss) {
        self.losses[loss as usize] += 1;
    }

    /// This state with the figures that need no store.
    pub(super) fn state(&self, kind: StoreKind, state: ShardState) -> ShardState {
        let ShardTally { totals, figures, commits, longest_turn_us, lives, takeovers, losses } = self;
        let (ends, commits) = (figures.stats(), commits.stats());
        let named = |words: &[&str], counts: &[u64]| -> BTreeMap<String, u64> {
            words.iter().map(|word| (*word).to_owned()).zip(counts.iter().copied()).collect()
        };
        ShardState {
            line: ShardLine { life: *lives, ..state.line },
            snapshot: Snapshot {
                totals: totals.clone(),
                longest_turn_us: *longest_turn_us,
                ..Snapshot::default()
            },
            store: StoreState {
                kind: kind.as_str().to_owned(),
                commits: commits.commits,
                last_commit_ms: commits.last_ms,
                max_commit_ms: commits.times.max / 1_000,
                lives: *lives,
                takeovers: named(&Takeover::ALL.map(Takeover::as_str), takeovers),
                lives_ended: named(&Loss::ALL.map(Loss::as_str), losses),
                ..StoreState::default()
            },
            traffic: Traffic {
                lateness: ends.lateness,
                held: ends.held,
                confirm: ends.confirm,
                batch_items: ends.batch_items,
                batch_bytes: ends.batch_bytes,
                commits: commits.times,
                connections_failed: [("ingest", ends.ingest_failures), ("egress", ends.egress_failures)],
                prefetch: 0,
                parse_errors: ends.parse_errors,
                answers_unroutable: ends.answers_unroutable,
                near_miss_headers: ends.near_miss_headers,
            },
            ..state
        }
    }
}
