//! The queue of the store's thread: commits and reads in the order of their requests, and their cost in
//! memory.

use super::CommitGroup;
use crate::engine::event::{Load, Op};
use crate::engine::types::{Dead, End};
use std::collections::VecDeque;
use std::sync::Arc;

/// Memory that any job costs in the queue, in bytes, approximate.
pub(super) const JOB_COST: u64 = 128;
/// A commit with this many operations does not wait for others to share its sync.
const COMPANY_OPS: usize = 64;
/// The same in bytes, as [`Jobs::bytes`] counts them. Where bodies are large, few deliveries are unacked at a
/// time; once all of them are in the queue, no more can come.
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

/// The queue of jobs, in order.
#[derive(Default)]
pub(super) struct Jobs {
    queue: VecDeque<Queued<Job>>,
    /// Sums over the queue: bytes, operations, and reads.
    bytes: u64,
    ops: usize,
    loads: usize,
    /// Number of commits for which an answer waits.
    hurried: usize,
}

impl Jobs {
    pub(super) fn push(&mut self, queued: Queued<Job>) {
        self.count(&queued);
        self.queue.push_back(queued);
    }

    /// Puts a job back at the head of the queue.
    pub(super) fn put_back(&mut self, queued: Queued<Job>) {
        self.count(&queued);
        self.queue.push_front(queued);
    }

    pub(super) fn pop(&mut self) -> Option<Queued<Job>> {
        let queued = self.queue.pop_front()?;
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
        self.queue.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes including a new job of `new` bytes, without the largest job: a single job may have any size.
    /// Takes time in proportion to the number of jobs.
    pub(super) fn bytes_beside_the_largest(&self, new: u64) -> u64 {
        let largest = self.queue.iter().map(|queued| queued.bytes).fold(new, u64::max);
        self.bytes.saturating_add(new).saturating_sub(largest)
    }

    /// When the first job was queued, monotonic ms.
    pub(super) fn since(&self) -> Option<u64> {
        self.queue.front().map(|first| first.since)
    }

    /// Whether the next sync should begin at once: a read or an answer waits, or the operations or bytes
    /// suffice.
    pub(super) fn is_pressing(&self) -> bool {
        self.loads > 0 || self.hurried > 0 || self.ops >= COMPANY_OPS || self.bytes >= COMPANY_BYTES
    }
}

/// Memory that a queued operation holds, in bytes, approximate.
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
