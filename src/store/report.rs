//! What the store's threads report, and what a store that has stalled may cost.

use super::{StoreFailure, Usage};
use crate::distribution::{Distribution, Recorder};
use crate::engine::event::{Loaded, Token};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time within which each call of the storage engine must come back: longer than any sync of a disk that
/// still works.
pub const STORE_CALL_LIMIT: Duration = Duration::from_secs(60);
/// How long few small commits wait for company. Acks alone wait with them, which may wait ten times as long;
/// at 200 requests a second two or three share a sync and what it wakes. Less than the pause between two
/// requests gains nothing.
const LINGER: Duration = Duration::from_millis(10);
/// Least bound on what is queued, bytes; see [`ThreadLimits::of`].
const LEAST_QUEUED: u64 = 64 << 20;

/// What a store that has stalled may cost before it is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLimits {
    /// Upper bound on what is queued, bytes. Callers stay far below it.
    pub queued: u64,
    /// Upper bound on the time that one call takes.
    pub call: Duration,
    /// How long few small commits wait for others, so that they share a sync; to the millisecond.
    pub linger: Duration,
}

impl ThreadLimits {
    /// As much as `limits.memory` (bytes) may be queued, of which the engine uses a part;
    /// [`STORE_CALL_LIMIT`] a call, and 10 ms for company.
    pub fn of(memory_limit: u64) -> Self {
        ThreadLimits { queued: memory_limit.max(LEAST_QUEUED), call: STORE_CALL_LIMIT, linger: LINGER }
    }
}

/// What the store reports.
#[derive(Debug)]
pub enum StoreEvent {
    /// Every commit up to and including this token is durable.
    Committed(Token),
    /// A read has come back.
    Loaded(Loaded),
    /// The store has failed: the last event of its kind, and nothing is committed or read any more.
    Failed(StoreFailure),
}

/// Where events go. Called from the store's threads; must not block.
pub type OnEvent = Arc<dyn Fn(StoreEvent) + Send + Sync>;

/// How long commits have taken: for the process, over all lives of the store.
#[derive(Debug)]
pub struct CommitFigures(Mutex<CommitRecord>);

#[derive(Debug)]
struct CommitRecord {
    commits: u64,
    last_ms: u64,
    times: Recorder,
}

/// What [`CommitFigures`] tell at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitStats {
    /// Commits made durable.
    pub commits: u64,
    /// Duration of the last sync with its writes, ms.
    pub last_ms: u64,
    /// How long each sync with its writes took, microseconds.
    pub times: Distribution,
}

impl Default for CommitFigures {
    fn default() -> Self {
        CommitFigures(Mutex::new(CommitRecord { commits: 0, last_ms: 0, times: Recorder::of_durations() }))
    }
}

impl CommitFigures {
    /// One sync, of so many commits, has taken this long.
    pub(super) fn committed(&self, commits: u64, took_us: u64) {
        let mut record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        record.commits += commits;
        record.last_ms = took_us / 1_000;
        record.times.record(took_us);
    }

    /// What has been counted so far.
    pub fn stats(&self) -> CommitStats {
        let record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let CommitRecord { commits, last_ms, times } = &*record;
        CommitStats { commits: *commits, last_ms: *last_ms, times: times.snapshot() }
    }
}

/// How the store is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Commits and loads that wait to be taken up.
    pub queued: usize,
    /// For how long a thread with work has come no further, ms: its call has not come back, or it takes up
    /// nothing.
    pub still_ms: Option<u64>,
    /// Room taken and left, as of about a second before the last call of
    /// [`super::thread::StoreHandle::stats`].
    pub usage: Option<Usage>,
    /// [`StoreEvent::Failed`] has been reported.
    pub failed: bool,
}
