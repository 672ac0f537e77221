//! At how much of something the engine does otherwise: in a call, in a read, in memory.
//!
//! No promise depends on them, and nobody configures them: they bound how long one thing holds up another.
//! They stand in one place so that the worlds of the simulator can draw them small: what only a large number
//! reaches is met there as well.

/// Each bounds one kind of work. None of them may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    // ---- in one call: some ten milliseconds each; what is left is done by the next calls, at once ---------
    /// Requests and commands judged; the entries of one message stay together.
    pub arrivals: usize,
    /// Items that become due, also by windows that close.
    pub due: usize,
    /// Windows that close.
    pub windows: usize,
    /// Items that are handed to the publisher; the last batch may go beyond.
    pub sent: usize,
    /// Items whose attempts end; the last batch may go beyond.
    pub ended: usize,
    /// Items in memory that one command about many looks at.
    pub looked_at: usize,
    /// Items in memory that all such commands together look at.
    pub looked_at_by_all: usize,
    /// Rows in memory that all commands look at to find out which they are about.
    pub gathered: usize,
    /// Items evicted in one go.
    pub evicted: usize,
    /// Items given up at the heads of queues over their limit.
    pub trimmed: usize,
    /// Queues looked at for that.
    pub trimmed_queues: usize,
    /// Windows closed to make room, and as many by flushes of whole applications.
    pub flushed_windows: usize,
    /// Their members; the last window may go beyond.
    pub flushed: usize,

    // ---- in one read: what it brings comes into memory in one call, and commits wait while it is made -----
    /// Rows of one queue.
    pub chunk: usize,
    /// Rows of all queues.
    pub read: usize,
    /// Queues that it reads of.
    pub ranges: usize,
    /// Reads of rows under way.
    pub reads: usize,
    /// Rows at the head of a queue, for a probe.
    pub probe: usize,
    /// Rows at the head of a queue, for what is to be given up there.
    pub trim_read: usize,
    /// Rows taken beyond the bound of memory where nothing could move otherwise; one such read at a time.
    pub few: usize,
    /// Identities asked for.
    pub asked: usize,
    /// Rows that a step of a command about many brings.
    pub step: usize,
    /// Rows that such a step looks at: some milliseconds.
    pub step_looked_at: usize,
    /// Bytes of a page of a list behind which it ends, about.
    pub page: u64,
    /// Rows that have changed while such a step is under way, beyond which it is given up and put again:
    /// some 100 bytes each.
    pub noted: usize,

    // ---- at one time --------------------------------------------------------------------------------------
    /// Arrivals in a line that have been asked for ahead of their turn.
    pub asked_ahead: usize,
    /// Commands about many items.
    pub scans: usize,
    /// Due items in memory with which a queue needs no more for the moment.
    pub enough: u64,
    /// Due items that any one queue may have in memory, or half of all rows where that is more: a quick one
    /// takes what closes with one window without a detour over the store. Beyond, they wait there: a slow
    /// queue does not fill memory.
    pub ready: u64,
    /// Items beyond its limit that an application may have while its oldest are given up.
    pub trim_slack: u64,
    /// Queues without items that are remembered; beyond, an idle one is forgotten.
    pub idle_queues: usize,
    /// Operations that are committed without waiting for more.
    pub lazy_ops: usize,
    /// Uncommitted work beyond which nothing more is taken in: operations. The disk has to keep up.
    pub uncommitted_ops: u64,
    /// The same in bytes of payload.
    pub uncommitted_bytes: u64,
    /// How far a member's arrival number may be from that of the first of its window: an item keeps the
    /// distance in four bytes.
    pub span: u64,
    /// Arrival numbers that are leased from the store at a time, from a start on: at least eight times
    /// [`Thresholds::arrivals`].
    pub lease: u64,
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
            lazy_ops: 10_000,
            uncommitted_ops: 200_000,
            uncommitted_bytes: 32 << 20,
            span: u32::MAX as u64,
            lease: 1 << 20,
        }
    }
}
