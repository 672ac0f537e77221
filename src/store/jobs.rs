//! What waits for the store's thread: commits and reads, in the order in which they were asked for, and what
//! they cost in memory.

use super::CommitGroup;
use crate::engine::event::{Load, Op};
use crate::engine::types::{Dead, End};
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of memory that any job costs in the queue, about.
pub(super) const JOB_COST: u64 = 128;
/// Operations that are company enough: commits with as many wait for no more.
const COMPANY_OPS: usize = 64;
/// Bytes, as [`Jobs::bytes`] counts them, that are company enough: where bodies are large few deliveries are
/// out at a time, and with all of them here no more company can come.
const COMPANY_BYTES: u64 = 32 << 10;

pub(super) enum Job {
    Commit(CommitGroup),
    Load(Load),
}

pub(super) struct Queued<T> {
    /// When it was queued, monotonic ms.
    pub(super) since: u64,
    pub(super) bytes: u64,
    pub(super) job: T,
}

/// See the module's page.
#[derive(Default)]
pub(super) struct Jobs {
    line: VecDeque<Queued<Job>>,
    /// Sums over the line: bytes, operations, and reads.
    bytes: u64,
    ops: usize,
    loads: usize,
    /// Commits that an answer waits for.
    hurried: usize,
}

impl Jobs {
    pub(super) fn push(&mut self, queued: Queued<Job>) {
        self.count(&queued);
        self.line.push_back(queued);
    }

    /// It is the first again.
    pub(super) fn put_back(&mut self, queued: Queued<Job>) {
        self.count(&queued);
        self.line.push_front(queued);
    }

    pub(super) fn pop(&mut self) -> Option<Queued<Job>> {
        let queued = self.line.pop_front()?;
        self.bytes = self.bytes.saturating_sub(queued.bytes);
        match &queued.job {
            Job::Commit(commit) => {
                self.ops -= commit.ops.len();
                self.hurried -= usize::from(commit.hurried);
            }
            Job::Load(_) => self.loads -= 1,
        }
        Some(queued)
    }

    fn count(&mut self, queued: &Queued<Job>) {
        self.bytes = self.bytes.saturating_add(queued.bytes);
        match &queued.job {
            Job::Commit(commit) => {
                self.ops += commit.ops.len();
                self.hurried += usize::from(commit.hurried);
            }
            Job::Load(_) => self.loads += 1,
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Jobs::default();
    }

    pub(super) fn len(&self) -> usize {
        self.line.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// With one of this size, and without the largest of all: one may be as large as it must be. Costs time
    /// in the number of jobs.
    pub(super) fn bytes_beside_the_largest(&self, new: u64) -> u64 {
        let largest = self.line.iter().map(|queued| queued.bytes).fold(new, u64::max);
        self.bytes.saturating_add(new).saturating_sub(largest)
    }

    /// When the first was queued, monotonic ms.
    pub(super) fn since(&self) -> Option<u64> {
        self.line.front().map(|first| first.since)
    }

    /// A read or an answer waits, or there is enough for a sync: nothing waits for company.
    pub(super) fn is_pressing(&self) -> bool {
        self.loads > 0 || self.hurried > 0 || self.ops >= COMPANY_OPS || self.bytes >= COMPANY_BYTES
    }
}

/// Bytes of memory that a queued operation holds, about.
pub(super) fn size(op: &Op) -> u64 {
    let text = |dead: &Option<Arc<Dead>>| dead.as_ref().map_or(0, |dead| dead.error.len() as u64);
    match op {
        Op::Put { item, .. } => 256 + item.content.as_ref().map_or(0, |c| c.size()),
        Op::Move { standing, .. } => {
            256 + text(&standing.dead) + standing.last_error.as_ref().map_or(0, |e| e.len() as u64)
        }
        Op::Delete { .. }
        | Op::Index { .. }
        | Op::PutQueue(_)
        | Op::PutHeld(_)
        | Op::PutWindow(_)
        | Op::DeleteWindow { .. }
        | Op::Close(_)
        | Op::BeginBucket(_) => 128,
        Op::Remember { ended, .. } => match &ended.end {
            End::Dead(dead) => 256 + dead.error.len() as u64,
            End::Sent(_) | End::Cancelled | End::CancelledAgain => 256,
        },
    }
}
