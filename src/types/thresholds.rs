//! The amounts at which the engine changes its behaviour: in a call, in a read, in memory.
//!
//! No promise depends on them, and they are not configurable: they bound how long one task delays another.
//! They are in one place so that the simulator can draw small values, and reaches cases that otherwise only
//! large numbers reach.

use crate::Content;

/// Each bounds one kind of work. None of them may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    // ---- in one call: some ten milliseconds each; the next calls do the rest at once ----------------------
    /// Requests and commands judged; the entries of one message stay together.
    pub arrivals: usize,
    /// Items that become due, those of closing windows included.
    pub due: usize,
    /// Windows that close.
    pub windows: usize,
    /// Items handed to the publisher; the last batch may exceed it.
    pub sent: usize,
    /// Items whose attempts end; the last batch may exceed it.
    pub ended: usize,
    /// Items in memory that one scan visits.
    pub looked_at: usize,
    /// Items in memory that all scans together visit.
    pub looked_at_by_all: usize,
    /// Rows in memory that all scans together examine to collect their items.
    pub gathered: usize,
    /// Items evicted at a time.
    pub evicted: usize,
    /// Items dead-lettered at the heads of queues over their limit.
    pub trimmed: usize,
    /// Queues examined for that.
    pub trimmed_queues: usize,
    /// Windows closed to make room, and as many by flushes of whole applications.
    pub flushed_windows: usize,
    /// Members of these windows; the last window may exceed it.
    pub flushed: usize,

    // ---- in one read: its rows are loaded in one call, and commits wait for the read ----------------------
    /// Rows of one queue.
    pub chunk: usize,
    /// Rows of all queues.
    pub read: usize,
    /// Queues that it reads.
    pub ranges: usize,
    /// Reads of rows under way.
    pub reads: usize,
    /// Rows at the head of a queue, for a probe. Its first window may leave in two parts, which is cheaper
    /// than thousands of rows for each try.
    pub probe: usize,
    /// Rows at the head of a queue, to dead-letter items there.
    pub trim_read: usize,
    /// Rows loaded beyond the bound of memory if nothing could move otherwise; one such read at a time.
    pub few: usize,
    /// Identities looked up.
    pub asked: usize,
    /// Rows that a scan step returns.
    pub step: usize,
    /// Rows that a scan step reads: some milliseconds.
    pub step_looked_at: usize,
    /// Approximate bytes after which a page of a list ends.
    pub page: u64,
    /// Notes of rows changed during a scan step, beyond which the step is abandoned and repeated: some 100
    /// bytes each.
    pub noted: usize,

    // ---- at one time --------------------------------------------------------------------------------------
    /// Arrivals in a line that the store was asked for ahead of their turn.
    pub asked_ahead: usize,
    /// Scans under way.
    pub scans: usize,
    /// Due items in memory with which a queue needs no further read.
    pub enough: u64,
    /// Due items that one queue may have in memory, or half of all rows if that is more: a fast queue takes
    /// the items of a closing window without a detour through the store. Further items wait in the store, so
    /// that a slow queue does not fill memory.
    pub ready: u64,
    /// Items that an application may have beyond its limit while its oldest are dead-lettered.
    pub trim_slack: u64,
    /// Queues without items that are kept; beyond, an idle one is dropped.
    pub idle_queues: usize,
    /// Bytes of a body from which on a write costs more than a late ack.
    pub large: usize,
    /// Number of operations that are committed without waiting for more.
    pub lazy_ops: usize,
    /// Uncommitted operations beyond which nothing more is taken in, until the disk has caught up.
    pub uncommitted_ops: u64,
    /// The same in bytes of payload.
    pub uncommitted_bytes: u64,
    /// Maximum distance of a member's arrival number from that of the first of its window: an item keeps the
    /// distance in four bytes.
    pub span: u64,
    /// Arrival numbers leased from the store at a time: at least eight times [`Thresholds::arrivals`].
    pub lease: u64,
}

impl Thresholds {
    /// Whether a write of this content costs more than a late ack.
    pub fn is_large(&self, content: &Content) -> bool {
        content.body.len() >= self.large
    }
}

impl Default for Thresholds {
    fn default() -> Self {
        Thresholds {
            arrivals: 4_096,
            due: 10_000,
            windows: 1_000,
            sent: 10_000,
            ended: 5_000,
            looked_at: 1_000,
            looked_at_by_all: 8_000,
            gathered: 20_000,
            evicted: 1_000,
            trimmed: 1_000,
            trimmed_queues: 64,
            flushed_windows: 256,
            flushed: 4_096,
            chunk: 4_096,
            read: 8_192,
            ranges: 64,
            reads: 4,
            probe: 16,
            trim_read: 256,
            few: 64,
            asked: 1_024,
            step: 1_000,
            step_looked_at: 4_000,
            page: 1 << 20,
            noted: 200_000,
            asked_ahead: 8_192,
            scans: 64,
            enough: 2_048,
            ready: 16_384,
            trim_slack: 4_096,
            idle_queues: 1_024,
            large: 4 << 10,
            lazy_ops: 10_000,
            uncommitted_ops: 200_000,
            uncommitted_bytes: 32 << 20,
            span: u32::MAX as u64,
            lease: 1 << 20,
        }
    }
}
