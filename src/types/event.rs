//! The engine's inputs and effects. The field order of [`Effects`] is the order of execution.

use crate::rate::Rate;
use crate::{
    Ack, Asker, Batch, ClosedBy, Command, Content, Dead, Delivery, Ended, Identity, Key, Reply, Request,
    Settings, Settled,
};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Number of a commit handed to the store; the commit is durable when [`Input::Committed`] names it or a
/// later one.
pub type Token = u64;

/// Name of the queue of dead letters. No application has an empty name.
pub const DEAD_LETTERS: &str = "";

/// The end of a pause or rate that only a command ends.
pub const FOR_EVER: u64 = u64::MAX;

/// An item as the store keeps it: its persistent fields only.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// Its key in its queue.
    pub key: Key,
    /// Its actual due, UTC ms; earlier than the due in its key if its window closed sooner. Of a dead letter,
    /// the due of the item when it died; the due in its key is when it may be tried.
    pub due: u64,
    /// Its due as accepted, UTC ms; see [`crate::AssignedId::due`].
    pub accepted_due: u64,
    /// Application name. For a dead letter, the application it was meant for; empty if that could not be
    /// read.
    pub application: Arc<str>,
    /// Name of the customer.
    pub customer: Option<Arc<str>>,
    /// Identity of its producer's id, if there was one.
    pub given: Option<Identity>,
    /// See [`crate::NewItem::fingerprint`]; 0 where there is no id.
    pub fingerprint: u64,
    /// Receipt, UTC ms.
    pub received: u64,
    /// It has an own time: it never leaves before `due`.
    pub own_time: bool,
    /// Its expiry, UTC ms.
    pub expiry: Option<u64>,
    /// Same as [`crate::NewItem::weight`].
    pub weight: u32,
    /// What closed its window, if known.
    pub closed_by: ClosedBy,
    /// Failed attempts so far.
    pub attempts: u32,
    /// Text of the last failure.
    pub last_error: Option<Arc<str>>,
    /// The outcome of an attempt stayed unknown: it may have been delivered.
    pub outcome_unknown: bool,
    /// Same as [`crate::Tried::retry`].
    pub retry: u32,
    /// Set: it is a dead letter.
    pub dead: Option<Arc<Dead>>,
    /// Always set in a write; a load may leave it out.
    pub content: Option<Arc<Content>>,
}

impl Stored {
    /// The item's identity.
    pub fn identity(&self) -> Identity {
        self.given.unwrap_or(Identity::assigned(self.key.seq))
    }

    /// Its place in the order in which the queue is read, and leaves.
    pub fn place(&self) -> Key {
        if self.dead.is_some() {
            return self.key;
        }
        Key { due: self.due, ..self.key }
    }

    /// The due of a dead letter whose row does not contain it.
    pub fn letter_due(key: Key, accepted_due: u64, own_time: bool) -> u64 {
        if own_time {
            accepted_due
        } else {
            key.due
        }
    }

    /// Name of the queue that contains it.
    pub fn queue(&self) -> &str {
        if self.dead.is_some() {
            DEAD_LETTERS
        } else {
            &self.application
        }
    }

    /// It is, or was, a member of a window.
    pub fn is_windowed(&self) -> bool {
        !self.own_time && self.customer.is_some() && self.dead.is_none()
    }
}

impl Stored {
    /// Index rows that it may have in the store: removing one that does not exist is no fault. A dead letter
    /// has none: those of its id belong to another item.
    pub fn index_rows(&self) -> IndexRows {
        if self.dead.is_some() {
            return IndexRows::default();
        }
        let moved = self.accepted_due != self.key.due;
        let identity = (self.given.is_some() || moved).then_some(self.identity());
        let customer = self.customer.clone().map(|customer| (Arc::clone(&self.application), customer));
        IndexRows { identity, customer }
    }
}

/// The place of a stored item.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The queue: an application's name, or [`DEAD_LETTERS`].
    pub queue: Arc<str>,
    /// Its key there.
    pub key: Key,
}

/// The row that the store keeps for each queue beside its items. A start reads no other queue data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRow {
    /// Application name, or [`DEAD_LETTERS`].
    pub queue: Arc<str>,
    /// Number of items. The row is removed when this is 0 and the queue is neither paused nor slowed down.
    pub count: u64,
    /// Lower bound of the keys in the queue: scans start here, never among the tombstones.
    pub low: Key,
    /// End of its pause, UTC ms, unless a command ends it sooner; [`FOR_EVER`]: only a command ends it.
    pub paused: Option<u64>,
    /// Every item that is due at or after this moment, UTC ms, has its customer row.
    pub unindexed_until: u64,
    /// The rate that a command has set.
    pub slowed: Option<Slowed>,
}

/// A rate that replaces the configured one for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowed {
    /// The rate at which items leave.
    pub rate: Rate,
    /// When it ends, UTC ms; [`FOR_EVER`]: when a command ends it.
    pub until: u64,
}

/// A customer whose items are held back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRow {
    /// Name of the application.
    pub application: Arc<str>,
    /// Name of the customer.
    pub customer: Arc<str>,
    /// End of the pause, UTC ms; [`FOR_EVER`]: only a command ends it. `None`: not paused, the row is
    /// removed.
    pub until: Option<u64>,
}

/// A window that ends beyond the engine's horizon. The store keeps it as a row, so that a restart does not
/// have to count its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowRow {
    /// Name of the application.
    pub application: Arc<str>,
    /// Name of the customer.
    pub customer: Arc<str>,
    /// Planned end, UTC ms: the due of its members.
    pub end: u64,
    /// Number of the window: [`Key::window`] of its members.
    pub window: u64,
    /// Members so far.
    pub count: u32,
    /// Sum of their weights, bytes.
    pub weight: u64,
    /// Most urgent expiry among the members, UTC ms.
    pub expiry: Option<u64>,
}

/// A window that closed before its planned end. Its members keep their keys, which contain that end, and are
/// due at the moment it closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosingRow {
    /// Name of the application.
    pub application: Arc<str>,
    /// Planned end, UTC ms: the due in its members' keys.
    pub end: u64,
    /// Number of the window: [`Key::window`] of its members.
    pub window: u64,
    /// When it closed, UTC ms.
    pub due: u64,
    /// What closed it.
    pub cause: ClosedBy,
}

/// A bucket of remembered ends: items that ended in one span of time, forgotten together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketRow {
    /// Its number, below [`BUCKETS`].
    pub bucket: u8,
    /// Lower bound of the ends in it, UTC ms.
    pub from: u64,
}

/// Number of buckets of ended items.
pub const BUCKETS: u8 = 8;

/// The fields of a stored item that may change while it waits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// Same as [`Stored::attempts`].
    pub attempts: u32,
    /// Same as [`Stored::last_error`].
    pub last_error: Option<Arc<str>>,
    /// Same as [`Stored::outcome_unknown`].
    pub outcome_unknown: bool,
    /// Same as [`Stored::own_time`].
    pub own_time: bool,
    /// Same as [`Stored::closed_by`].
    pub closed_by: ClosedBy,
    /// Same as [`Stored::dead`].
    pub dead: Option<Arc<Dead>>,
    /// Of a dead letter: same as [`Stored::due`]; `None`: [`Stored::letter_due`].
    pub due: Option<u64>,
}

/// Index rows of one item: the row from its identity to its key, and the row under its customer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexRows {
    /// An item whose producer gave an id has this row from its first commit until it ends or is
    /// dead-lettered. An item with an assigned id has it only once its key differs from the one in that id.
    pub identity: Option<Identity>,
    /// Application and customer. Items that are in memory from their first commit on need no such row.
    pub customer: Option<(Arc<str>, Arc<str>)>,
}

/// One write. All writes of one [`Effects`] are one atomic commit; each operation sees the ones before it.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Add an item to its queue ([`Stored::queue`]), with its identity row if its producer gave an id and it
    /// is not a dead letter.
    Put {
        /// Includes its content. Boxed, since most operations are deletes.
        item: Box<Stored>,
        /// Whether a row under its customer is written too.
        indexed: bool,
    },
    /// Remove an item and the named index rows. Removing an item that does not exist is no fault.
    Delete {
        /// Its present place.
        place: Place,
        /// Index rows that may exist.
        rows: IndexRows,
    },
    /// Write missing index rows of an item.
    Index {
        /// Key of the item.
        key: Key,
        /// The rows to write.
        rows: IndexRows,
    },
    /// Move an item to another key or another queue, or rewrite it in place, with its present standing. The
    /// content moves along without passing through the engine.
    Move {
        /// Its present place.
        from: Place,
        /// New place; may be the same.
        to: Place,
        /// Index rows to remove first.
        removed: IndexRows,
        /// Index rows to write then, for the new key.
        written: IndexRows,
        /// Its new standing.
        standing: Box<Standing>,
        /// Size of its content, bytes, approximate: the store reads and writes it.
        weight: u32,
    },
    /// Record that a window closed before its planned end: every windowed item with that end and window
    /// number is due at the moment of closing. No item is moved. The store removes the record with the last
    /// of these items. If a window is recorded twice, the later record counts.
    Close(ClosingRow),
    /// Write a queue's row; see [`QueueRow::count`] for when that removes it.
    PutQueue(QueueRow),
    /// Write, replace or remove the row of a customer that is held back.
    PutHeld(HeldRow),
    /// Write or replace a window's row.
    PutWindow(WindowRow),
    /// Remove a window's row.
    DeleteWindow {
        /// Name of the application.
        application: Arc<str>,
        /// Name of the customer.
        customer: Arc<str>,
    },
    /// Remember an item that has ended; replaces an entry of the same identity in the bucket.
    Remember {
        /// Number below [`BUCKETS`].
        bucket: u8,
        /// Identity of an item whose producer gave an id.
        identity: Identity,
        /// How the item ended.
        ended: Box<Ended>,
    },
    /// Empty a bucket and begin it anew. Its entries are out of date, so this need not be atomic with the
    /// rest.
    BeginBucket(BucketRow),
}

/// What operations may change in the answer to a read of queues. A read that they do not concern may be
/// executed before them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// The highest key of a removed item.
    removed: Option<Key>,
    /// The earliest due of an added item, UTC ms.
    added: Option<u64>,
    /// Items get other places, or their rows are rewritten.
    moved: bool,
}

impl Footprint {
    /// That of these operations, over all queues together: most items that leave at one time are of one
    /// queue.
    pub fn of<'o>(ops: impl IntoIterator<Item = &'o Op>) -> Self {
        let mut all = Footprint::default();
        for op in ops {
            match op {
                // No later than the key is its place in the order of reading.
                Op::Delete { place, .. } => all.removed = all.removed.max(Some(place.key)),
                Op::Put { item, .. } => {
                    let due = item.due.min(item.key.due);
                    all.added = Some(all.added.map_or(due, |first| first.min(due)));
                }
                Op::Move { .. } | Op::Close(_) => all.moved = true,
                // These rows belong to no item's place.
                Op::Index { .. }
                | Op::PutQueue(_)
                | Op::PutHeld(_)
                | Op::PutWindow(_)
                | Op::DeleteWindow { .. }
                | Op::Remember { .. }
                | Op::BeginBucket(_) => {}
            }
        }
        all
    }

    /// That of both.
    pub fn and(self, other: Footprint) -> Self {
        let added = [self.added, other.added].into_iter().flatten().min();
        Footprint { removed: self.removed.max(other.removed), added, moved: self.moved || other.moved }
    }

    /// Whether these reads could have another answer before the operations than after them.
    pub fn concerns(&self, ranges: &[Range]) -> bool {
        let removed = |range: &Range| self.removed.is_some_and(|removed| removed >= range.from);
        let added = |range: &Range| self.added.is_some_and(|added| added < range.until);
        self.moved || ranges.iter().any(|range| removed(range) || added(range))
    }
}

/// The horizon, ms: windows that end within it have no row in the store, and items due within it are held in
/// memory.
pub const HORIZON_MS: u64 = 20_000;

/// Items of one customer with one due ahead of the clock. A start finds them if the clock was set back since
/// the previous life.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AheadRow {
    /// Name of the application.
    pub application: Arc<str>,
    /// Name of the customer.
    pub customer: Arc<str>,
    /// Due in their keys, UTC ms.
    pub end: u64,
    /// Their actual due, UTC ms: sooner if their window closed early.
    pub due: u64,
    /// Number of their window.
    pub window: u64,
    /// What closed their window; `None`: it was open, or ended at its planned end.
    pub closed_by: Option<ClosedBy>,
}

/// Marks recorded with every commit, so that a start needs no scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The first arrival number that has certainly not been given out: the next life begins with it. It is
    /// ahead of the numbers given out by a reserved range.
    pub next_seq: u64,
    /// The latest wall clock time of this life, UTC ms: keys of short windows are below it plus
    /// [`HORIZON_MS`].
    pub wall: u64,
}

/// The facts that a store reports when it is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Marks of the last commit.
    pub marks: Marks,
    /// Queues that have items, or are paused or slowed down.
    pub queues: Vec<QueueRow>,
    /// Rows of paused customers.
    pub held: Vec<HeldRow>,
    /// Rows of long windows.
    pub windows: Vec<WindowRow>,
    /// Buckets of ended items, in the order in which they began; their clock times may be in another order.
    pub buckets: Vec<BucketRow>,
    /// If the clock is behind [`Marks::wall`]: members of windows that are due in the time between, and up to
    /// [`HORIZON_MS`] after it.
    pub ahead: Vec<AheadRow>,
}

/// The next rows of one queue, in the order of [`Stored::place`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// Application name, or [`DEAD_LETTERS`].
    pub queue: Arc<str>,
    /// First key wanted, inclusive.
    pub from: Key,
    /// First due not wanted, UTC ms.
    pub until: u64,
    /// Maximum number of rows in the answer; large rows reduce it.
    pub max_rows: usize,
}

/// One read, executed in order with the writes: it sees every write handed over before it, as far as that
/// concerns its answer. Answers to all but [`Load::Contents`] come in the order of the questions.
#[derive(Clone, Debug, PartialEq)]
pub enum Load {
    /// The next rows of some queues.
    Ranges {
        /// At most one for each queue.
        ranges: Vec<Range>,
        /// Maximum number of rows of all ranges together, in their order. A range that is not reached is left
        /// for another read: its answer has no rows, and its next key is its first one.
        max_rows: usize,
        /// Contents are left out once the returned ones, over all ranges in order, sum up to this, bytes.
        max_bytes: u64,
    },
    /// Contents of single items, by arrival number, which the answer repeats.
    Contents(Vec<(u64, Place)>),
    /// Places or ends of items, by identity.
    Find(Vec<Wanted>),
    /// Stored items in order, in bounded steps.
    Scan(Scan),
}

/// One item to look up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Identity to be found.
    pub identity: Identity,
    /// Application in whose queue to look, as the caller named it: an assigned identity may belong to an item
    /// of another application, and is not found then.
    pub application: Arc<str>,
    /// For an item with an assigned id: its key, unless an identity row names another.
    pub key: Option<Key>,
    /// Buckets that may remember its end, in the order of looking.
    pub buckets: Vec<u8>,
}

/// The result of one look-up in the store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The item, without content, if it is stored.
    pub item: Option<Stored>,
    /// Its end, from the first bucket that contains it.
    pub ended: Option<Ended>,
}

/// One bounded step along stored items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The engine's handle; the answer repeats it.
    pub number: u64,
    /// The rows to scan.
    pub along: Along,
    /// First key wanted, inclusive.
    pub from: Key,
    /// First due not wanted, UTC ms.
    pub until: u64,
    /// Only items of this customer.
    pub customer: Option<Arc<str>>,
    /// Maximum number of rows returned.
    pub max_rows: usize,
    /// Maximum number of rows read: bounds how long other reads and writes wait.
    pub max_looked_at: usize,
    /// Whether contents are returned with properties and an empty body; else they are left out.
    pub properties: bool,
}

/// The rows that a [`Scan`] reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Along {
    /// A queue, in order of key. Dead letters are included in the dead-letter queue only.
    Queue(Arc<str>),
    /// The customer rows of this application and customer, in order of key.
    Customer(Arc<str>, Arc<str>),
}

/// The answer to one [`Load`].
#[derive(Clone, Debug, PartialEq)]
pub enum Loaded {
    /// To [`Load::Ranges`], in the same order.
    Ranges(Vec<RangeRows>),
    /// To [`Load::Contents`]. A missing content is damage, which the store reports as an error instead.
    Contents(Vec<(u64, Arc<Content>)>),
    /// To [`Load::Find`], in the same order. Writes handed over after the look-up may or may not be visible.
    Found(Vec<Found>),
    /// Answer to [`Load::Scan`].
    Scanned {
        /// The engine's handle.
        number: u64,
        /// In order of key.
        rows: Vec<Stored>,
        /// The first key not read; `None`: the scan reached the end or `until`.
        next: Option<Key>,
    },
}

/// The rows of one [`Range`].
#[derive(Clone, Debug, PartialEq)]
pub struct RangeRows {
    /// Application name, or [`DEAD_LETTERS`].
    pub queue: Arc<str>,
    /// In order of key.
    pub rows: Vec<Stored>,
    /// The first key not read: all items of the queue from `from` to below it are in `rows`. `None`: the read
    /// reached the end of the queue or `until`.
    pub next: Option<Key>,
}

/// An input to the engine. Inputs carry many values of one kind: the hot path is per turn, not per message.
#[derive(Debug)]
pub enum Input {
    /// Ingest messages in the order of their delivery tags.
    Requests(Vec<Request>),
    /// Every store operation up to and including this token is durable.
    Committed(Token),
    /// A read has come back.
    Loaded(Loaded),
    /// Publishes have ended.
    Settled(Vec<Settled>),
    /// Commands from within this process.
    Commands(Vec<(Asker, Command)>),
    /// The local callers of these commands wait no longer: commands that only read are ended.
    Left(Vec<u64>),
    /// Answers to these deliveries have been sent, or are no longer wanted.
    Answered(Vec<Delivery>),
    /// What these deliveries contained for other shards is in the queues of those.
    Forwarded(Vec<Delivery>),
    /// A new ingest consumer runs; tags of older generations are invalid.
    IngestReady {
        /// Generation of the consumer.
        generation: u32,
    },
    /// The ingest connection is lost; the broker will redeliver the unacked messages.
    IngestLost,
    /// The new limit of unacked deliveries: a share of them may wait for an outcome.
    Prefetch(u16),
    /// Batches can be published.
    EgressReady,
    /// Batches cannot be published. Those in flight have been settled before this.
    EgressLost,
    /// `connection.blocked` (true) and `connection.unblocked` (false) of the egress connection.
    EgressBlocked(bool),
    /// The store has no room for new items (true), or has it again (false).
    StoreFull(bool),
    /// The configuration was read again.
    Configure(Box<Settings>),
    /// Shutting down: send what is due, take nothing new.
    Drain,
    /// A deadline has come, or time has passed.
    Tick,
}

/// A change for the ingest consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intake {
    /// Hand over no more. Delivered messages stay with the consumer.
    Pause,
    /// Hand over again.
    Resume,
}

/// What the shell must do, in the order of the fields.
#[derive(Debug, Default)]
pub struct Effects {
    /// 1. One atomic commit, with its token and marks in `commit`. The store makes it durable and answers
    ///    [`Input::Committed`]. Without `commit` there is no commit; a commit may consist of marks only.
    pub store: Vec<Op>,
    /// Token and marks of that commit.
    pub commit: Option<(Token, Marks)>,
    /// An answer waits for that commit: the store does not delay it to share a sync with other commits.
    pub hurried: bool,
    /// 2. Acks; all that they cover is safe already.
    pub acks: Vec<Ack>,
    /// 3. Publishes, in order; each against a free slot of the publisher.
    pub publishes: Vec<Batch>,
    /// Numbers of batches that were published alone ([`crate::Batch::alone`]), have waited long for
    /// their confirms, and must give up their channels: the publisher settles each that is not settled yet.
    pub give_up: Vec<u64>,
    /// 4. Replies; the changes that they report are durable.
    pub replies: Vec<Reply>,
    /// 5. Reads of the store.
    pub loads: Vec<Load>,
    /// 6. A change of the intake.
    pub intake: Option<Intake>,
}

/// When the engine must be called again without an event: at the sooner of the two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline {
    /// By the wall clock, UTC ms.
    pub wall: Option<u64>,
    /// By the monotonic clock, ms.
    pub mono: Option<u64>,
}
