//! Counters of both ends, for status and metrics: for the whole process, over all its connections and lives
//! of the store.

use super::Side;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tidegate_common::distribution::{Distribution, Recorder};

/// Figures of both ends since the process started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Per item, microseconds: moment of publish minus due, or minus the moment until which its application's
    /// rate held it back; what leaves before its due counts as 0. Dead letters are not in it.
    pub lateness: Distribution,
    /// Per item that a rate held back, microseconds: for how long.
    pub held: Distribution,
    /// Per confirmed batch, microseconds: publish to confirm.
    pub confirm: Distribution,
    /// Per batch, at its first publish: items in it. Dead letters are not in it.
    pub batch_items: Distribution,
    /// Per batch, at its first publish: length of its body, bytes. Dead letters are not in it.
    pub batch_bytes: Distribution,
    /// Connections of the ingest side that failed or could not be opened.
    pub ingest_failures: u64,
    /// Connections of the egress side that failed or could not be opened.
    pub egress_failures: u64,
    /// Connections that ended with a frame that cannot be parsed.
    pub parse_errors: u64,
    /// Answers to commands whose reply queue does not exist.
    pub answers_unroutable: u64,
    /// Headers whose name is close to one with a meaning, and that have no effect.
    pub near_miss_headers: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Figures {
    recorders: Mutex<Recorders>,
    failures: [AtomicU64; 2],
    parse_errors: AtomicU64,
    answers_unroutable: AtomicU64,
    near_miss_headers: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Recorders {
    pub(crate) lateness: Recorder,
    pub(crate) held: Recorder,
    pub(crate) confirm: Recorder,
    pub(crate) batch_items: Recorder,
    pub(crate) batch_bytes: Recorder,
}

impl Default for Recorders {
    fn default() -> Self {
        Recorders {
            lateness: Recorder::of_durations(),
            held: Recorder::of_durations(),
            confirm: Recorder::of_durations(),
            batch_items: Recorder::of_items(),
            batch_bytes: Recorder::of_bytes(),
        }
    }
}

impl Figures {
    /// Counts a connection that failed or could not be opened.
    pub(crate) fn failed(&self, side: Side) {
        self.failures[index(side)].fetch_add(1, Relaxed);
    }

    pub(crate) fn parse_error(&self) {
        self.parse_errors.fetch_add(1, Relaxed);
    }

    pub(crate) fn answers_unroutable(&self, count: u64) {
        self.answers_unroutable.fetch_add(count, Relaxed);
    }

    pub(crate) fn near_miss_header(&self) {
        self.near_miss_headers.fetch_add(1, Relaxed);
    }

    /// Locks the recorders, for many values at a time.
    pub(crate) fn recorders(&self) -> MutexGuard<'_, Recorders> {
        self.recorders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them at this moment.
    pub fn stats(&self) -> Stats {
        let [lateness, held, confirm, batch_items, batch_bytes] = {
            let recorders = self.recorders();
            let Recorders { lateness, held, confirm, batch_items, batch_bytes } = &*recorders;
            [lateness, held, confirm, batch_items, batch_bytes].map(Recorder::snapshot)
        };
        Stats {
            lateness,
            held,
            confirm,
            batch_items,
            batch_bytes,
            ingest_failures: self.failures[0].load(Relaxed),
            egress_failures: self.failures[1].load(Relaxed),
            parse_errors: self.parse_errors.load(Relaxed),
            answers_unroutable: self.answers_unroutable.load(Relaxed),
            near_miss_headers: self.near_miss_headers.load(Relaxed),
        }
    }
}

/// The place of a side in an array of both.
pub(crate) fn index(side: Side) -> usize {
    match side {
        Side::Ingest => 0,
        Side::Egress => 1,
    }
}
