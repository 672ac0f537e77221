//! What is counted for the life of the process, whatever lives of the store it sees; and the part of the
//! state that is told with a store as well as without one.

use super::process::Process;
use crate::admin::{LatenessState, StateInput, StoreState, Traffic};
use crate::amqp::Figures;
use crate::clock;
use crate::engine::snapshot::{Counters, Snapshot};
use crate::store::thread::CommitFigures;
use crate::store::{Loss, Takeover};
use std::collections::BTreeMap;
use std::sync::Arc;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ProcessTally {
    /// Where the engine of the next life goes on.
    pub(super) totals: Counters,
    /// Of both ends.
    pub(super) figures: Arc<Figures>,
    /// Of the store.
    pub(super) commits: Arc<CommitFigures>,
    /// Longest turn of the loop so far, sleep apart, us.
    pub(super) longest_turn_us: u64,
    /// How often a store was opened.
    lives: u64,
    /// Of these, in the order of [`Takeover::ALL`]: such as could have been another daemon's.
    takeovers: [u64; Takeover::ALL.len()],
    /// Lives that ended without a stop, in the order of [`Loss::ALL`].
    losses: [u64; Loss::ALL.len()],
}

impl ProcessTally {
    /// A life begins.
    pub(super) fn begins(&mut self, takeover: Option<Takeover>) {
        self.lives += 1;
        if let Some(takeover) = takeover {
            self.takeovers[takeover as usize] += 1;
        }
    }

    /// It has ended, and others follow.
    pub(super) fn lost(&mut self, loss: Loss) {
        self.losses[loss as usize] += 1;
    }
}

impl Process {
    /// The state, without what only a life can tell.
    pub(super) fn state(&self) -> StateInput {
        let now = clock::now();
        let ProcessTally { totals, figures, commits, longest_turn_us, lives, takeovers, losses } =
            &self.tally;
        let (ends, commits) = (figures.stats(), commits.stats());
        let named = |words: &[&str], counts: &[u64]| -> BTreeMap<String, u64> {
            words.iter().map(|word| (*word).to_owned()).zip(counts.iter().copied()).collect()
        };
        StateInput {
            snapshot: Snapshot {
                totals: totals.clone(),
                longest_turn_us: *longest_turn_us,
                ..Snapshot::default()
            },
            links: Vec::new(),
            store: StoreState {
                kind: super::status::kind(&self.config).to_owned(),
                commits: commits.commits,
                last_commit_ms: commits.last_ms,
                max_commit_ms: commits.times.max / 1_000,
                lives: *lives,
                takeovers: named(&Takeover::ALL.map(Takeover::as_str), takeovers),
                lives_ended: named(&Loss::ALL.map(Loss::as_str), losses),
                ..StoreState::default()
            },
            lateness: LatenessState {
                count: ends.lateness.count,
                p50_us: ends.lateness.p50,
                p99_us: ends.lateness.p99,
                p999_us: ends.lateness.p999,
                max_us: ends.lateness.max,
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
            draining: false,
            version: env!("CARGO_PKG_VERSION"),
            started_at: self.started.wall,
            at: now.wall,
            uptime_ms: now.mono.saturating_sub(self.started.mono),
        }
    }
}
