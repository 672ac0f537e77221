//! What the store's threads report, and what a store that has stalled may cost.

use super::{StoreFailure, Usage};
use crate::engine::event::{Loaded, Token};
use std::sync::Arc;
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

/// How the store is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Commits made durable.
    pub commits: u64,
    /// Duration of the last sync with its writes, ms.
    pub last_commit_ms: u64,
    /// The longest one so far, ms.
    pub max_commit_ms: u64,
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
