//! The reports of the store's threads, and the limits on a stalled store.

use super::{StoreFailure, Usage};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_common::distribution::{Distribution, Recorder};
use tidegate_types::event::{Loaded, Token};

/// Time within which each call of the storage engine must return: longer than any sync of a working disk.
pub const STORE_CALL_LIMIT: Duration = Duration::from_secs(60);
/// How long a few small commits wait for others to share a sync. Only acks wait with them, and an ack may
/// wait ten times as long. At 200 requests a second two or three share a sync and the wake-ups that it
/// causes. A value below the interval between two requests gains nothing.
const LINGER: Duration = Duration::from_millis(10);
/// Smallest limit on the queue, in bytes; see [`ThreadLimits::of`].
const LEAST_QUEUED: u64 = 64 << 20;

/// Limits after which a stalled store counts as failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLimits {
    /// Upper bound on the queue, in bytes. Callers stay far below it.
    pub queued: u64,
    /// Upper bound on the duration of one call.
    pub call: Duration,
    /// How long a few small commits wait for others to share a sync; to the millisecond.
    pub linger: Duration,
}

impl ThreadLimits {
    /// The queue may hold `limits.memory` bytes, of which the engine uses a part. A call may take
    /// [`STORE_CALL_LIMIT`], and commits wait 10 ms for others.
    pub fn of(memory_limit: u64) -> Self {
        ThreadLimits { queued: memory_limit.max(LEAST_QUEUED), call: STORE_CALL_LIMIT, linger: LINGER }
    }
}

/// An event of the store.
#[derive(Debug)]
pub enum StoreEvent {
    /// Every commit up to and including this token is durable.
    Committed(Token),
    /// The answer to a read.
    Loaded(Loaded),
    /// The store has failed. This is the last event; the store makes no further commit or read.
    Failed(StoreFailure),
}

/// Receiver of events. Called from the store's threads; must not block.
pub type OnEvent = Arc<dyn Fn(StoreEvent) + Send + Sync>;

/// The durations of commits, over all lives of the store in this process.
#[derive(Debug)]
pub struct CommitFigures(Mutex<CommitRecord>);

#[derive(Debug)]
struct CommitRecord {
    commits: u64,
    last_ms: u64,
    times: Recorder,
}

/// A snapshot of [`CommitFigures`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitStats {
    /// Number of durable commits.
    pub commits: u64,
    /// Duration of the last sync with its writes, ms.
    pub last_ms: u64,
    /// Durations of all syncs with their writes, microseconds.
    pub times: Distribution,
}

impl Default for CommitFigures {
    fn default() -> Self {
        CommitFigures(Mutex::new(CommitRecord { commits: 0, last_ms: 0, times: Recorder::of_durations() }))
    }
}

impl CommitFigures {
    /// Records one sync: its number of commits, and its duration.
    pub(crate) fn committed(&self, commits: u64, took_us: u64) {
        let mut record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        record.commits += commits;
        record.last_ms = took_us / 1_000;
        record.times.record(took_us);
    }

    /// The figures so far.
    pub fn stats(&self) -> CommitStats {
        let record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let CommitRecord { commits, last_ms, times } = &*record;
        CommitStats { commits: *commits, last_ms: *last_ms, times: times.snapshot() }
    }
}

/// Current figures of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Number of waiting commits and loads.
    pub queued: usize,
    /// How long a thread with work has made no progress, ms: its call has not returned, or it takes up no
    /// job.
    pub still_ms: Option<u64>,
    /// Used and free space, as of about a second before the last call of
    /// [`super::thread::StoreHandle::stats`].
    pub usage: Option<Usage>,
    /// Whether [`StoreEvent::Failed`] has been reported.
    pub failed: bool,
}
