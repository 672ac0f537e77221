//! The queue of the store's thread: commits and reads in the order of their requests, and their cost in
//! memory.

use super::CommitGroup;
use std::collections::VecDeque;
use std::sync::Arc;
use tidegate_types::event::{Footprint, Load, Op, Range};
use tidegate_types::{Dead, End};

/// Memory that any job costs in the queue, in bytes, approximate.
pub(crate) const JOB_COST: u64 = 128;
/// A commit with this many operations does not wait for others to share its sync.
const COMPANY_OPS: usize = 64;
/// The same in bytes, as [`Jobs::bytes`] counts them. Where bodies are large, few deliveries are unacked at a
/// time; once all of them are in the queue, no more can come.
const COMPANY_BYTES: u64 = 32 << 10;

/// No read passes commits with more operations than this. Else items would leave faster than they are removed
/// for as long as there are any, and the queue would grow without end.
const PASSED_OPS: usize = 10_000;

pub(crate) enum Job {
    /// With what it may change in the answers to reads.
    Commit(CommitGroup, Footprint),
    Load(Load),
}

pub(crate) struct Queued<T> {
    /// When it was queued, monotonic ms.
    pub(crate) since: u64,
    pub(crate) bytes: u64,
    pub(crate) job: T,
}

/// The queue of jobs, in order.
#[derive(Default)]
pub(crate) struct Jobs {
    queue: VecDeque<Queued<Job>>,
    /// Sums over the queue: bytes, operations, and reads.
    bytes: u64,
    ops: usize,
    loads: usize,
    /// Number of commits for which an answer waits.
    hurried: usize,
}

impl Jobs {
    pub(crate) fn push(&mut self, queued: Queued<Job>) {
        self.count(&queued);
        self.queue.push_back(queued);
    }

    /// Puts a job back at the head of the queue.
    pub(crate) fn put_back(&mut self, queued: Queued<Job>) {
        self.count(&queued);
        self.queue.push_front(queued);
    }

    pub(crate) fn pop(&mut self) -> Option<Queued<Job>> {
        let queued = self.queue.pop_front()?;
        self.bytes = self.bytes.saturating_sub(queued.bytes);
        match &queued.job {
            Job::Commit(commit, _) => {
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
            Job::Commit(commit, _) => {
                self.ops += commit.ops.len();
                self.hurried += usize::from(commit.hurried);
            }
            Job::Load(_) => self.loads += 1,
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Jobs::default();
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes including a new job of `new` bytes, without the largest job: a single job may have any size.
    /// Takes time in proportion to the number of jobs.
    pub(crate) fn bytes_beside_the_largest(&self, new: u64) -> u64 {
        let largest = self.queue.iter().map(|queued| queued.bytes).fold(new, u64::max);
        self.bytes.saturating_add(new).saturating_sub(largest)
    }

    /// Whether a read of these ranges may be executed before all jobs: no other read is among them, no commit
    /// concerns it, and they are not too many.
    pub(crate) fn may_pass(&self, ranges: &[Range]) -> bool {
        let concerns = |job: &Job| match job {
            Job::Commit(_, footprint) => footprint.concerns(ranges),
            Job::Load(_) => true,
        };
        self.ops <= PASSED_OPS && !self.queue.iter().any(|queued| concerns(&queued.job))
    }

    /// Whether the first job is a read whose answer follows those of other reads.
    pub(crate) fn begins_with_read(&self) -> bool {
        match self.queue.front().map(|first| &first.job) {
            Some(Job::Load(Load::Ranges { .. } | Load::Find(_))) => true,
            Some(Job::Load(Load::Contents(_) | Load::Scan(_)) | Job::Commit(..)) | None => false,
        }
    }

    /// When the first job was queued, monotonic ms.
    pub(crate) fn since(&self) -> Option<u64> {
        self.queue.front().map(|first| first.since)
    }

    /// Whether the next sync should begin at once: a read or an answer waits, or the operations or bytes
    /// suffice.
    pub(crate) fn is_pressing(&self) -> bool {
        self.loads > 0 || self.hurried > 0 || self.ops >= COMPANY_OPS || self.bytes >= COMPANY_BYTES
    }
}

/// Memory that a queued operation holds, or needs when it is executed, in bytes, approximate.
pub(crate) fn size(op: &Op) -> u64 {
    let text = |dead: &Option<Arc<Dead>>| dead.as_ref().map_or(0, |dead| dead.error.len() as u64);
    match op {
        Op::Put { item, .. } => 256 + item.content.as_ref().map_or(0, |c| c.size()),
        // Its content is read when it is executed.
        Op::Move { standing, weight, .. } => {
            let error = standing.last_error.as_ref().map_or(0, |e| e.len() as u64);
            256 + text(&standing.dead) + error + u64::from(*weight)
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
