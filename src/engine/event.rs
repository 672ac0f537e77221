//! What enters the engine and what leaves it: two enums and a struct whose field order is the order of
//! execution.

use super::pace::Rate;
use super::types::{
    Ack, Asker, Batch, ClosedBy, Command, Content, Dead, Delivery, Ended, Identity, Key, Reply, Request,
    Settings, Settled,
};
use std::sync::Arc;

/// Proof that a group of store operations has been handed over; durable when [`Input::Committed`] names it or
/// a later one.
pub type Token = u64;

/// Name of the queue of dead letters. No application has an empty name.
pub const DEAD_LETTERS: &str = "";

/// The end of what no clock ends.
pub const FOR_EVER: u64 = u64::MAX;

/// An item as the store keeps it: its persistent fields, without anything that a restart forgets.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// Its key in its queue.
    pub key: Key,
    /// When it is really due: earlier than its key says where its window closed sooner, UTC ms.
    pub due: u64,
    /// When it was due as accepted, UTC ms; see [`super::types::AssignedId::due`].
    pub accepted_due: u64,
    /// Application name; of a dead item the one it was meant for, empty where that could not be read.
    pub application: Arc<str>,
    /// Name of the customer.
    pub customer: Option<Arc<str>>,
    /// Of its producer's id, if there was one.
    pub given: Option<Identity>,
    /// See [`super::types::NewItem::fingerprint`]; 0 where there is no id.
    pub fingerprint: u64,
    /// Receipt, UTC ms.
    pub received: u64,
    /// It named a time of its own: it never leaves before `due`.
    pub own_time: bool,
    /// When it expires, UTC ms.
    pub expiry: Option<u64>,
    /// Same as [`super::types::NewItem::weight`].
    pub weight: u32,
    /// What closed its window, where that is known.
    pub closed_by: ClosedBy,
    /// Failed attempts so far.
    pub attempts: u32,
    /// Text of the last failure.
    pub last_error: Option<Arc<str>>,
    /// The outcome of an attempt stayed unknown: it may have been delivered.
    pub outcome_unknown: bool,
    /// Same as [`super::types::Tried::retry`].
    pub retry: u32,
    /// Set: it is a dead letter.
    pub dead: Option<Arc<Dead>>,
    /// Always there in a write; a load may leave it out.
    pub content: Option<Arc<Content>>,
}

impl Stored {
    /// Which item it is.
    pub fn identity(&self) -> Identity {
        self.given.unwrap_or(Identity::assigned(self.key.seq))
    }

    /// Its place in the order in which the queue is read, and leaves.
    pub fn place(&self) -> Key {
        Key { due: self.due, ..self.key }
    }

    /// The queue that it lies in.
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

    /// One of an application with this key, and nothing else to tell of, for tests.
    #[cfg(test)]
    pub(crate) fn blank(application: &str, key: Key) -> Self {
        Stored {
            key,
            due: key.due,
            accepted_due: key.due,
            application: application.into(),
            customer: None,
            given: None,
            fingerprint: 0,
            received: 0,
            own_time: false,
            expiry: None,
            weight: 0,
            closed_by: ClosedBy::Time,
            attempts: 0,
            last_error: None,
            outcome_unknown: false,
            retry: 0,
            dead: None,
            content: None,
        }
    }
}

impl Stored {
    /// Index rows that it may have in the store: what is removed and is not there is no fault.
    pub(super) fn index_rows(&self) -> IndexRows {
        let moved = self.accepted_due != self.key.due;
        let identity = (self.given.is_some() || moved).then_some(self.identity());
        let customer = self.customer.clone().map(|customer| (Arc::clone(&self.application), customer));
        IndexRows { identity, customer }
    }
}

/// Where a stored item lies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The queue: an application's name, or [`DEAD_LETTERS`].
    pub queue: Arc<str>,
    /// Its key there.
    pub key: Key,
}

/// What the store keeps of one queue beside its items. A start reads these rows and no others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRow {
    /// Application name, or [`DEAD_LETTERS`].
    pub queue: Arc<str>,
    /// Items in it. With 0, not paused and not slowed down the row is removed.
    pub count: u64,
    /// No item of the queue lies below: scans start here, never among the tombstones.
    pub low: Key,
    /// Held back until then, UTC ms, or until a command lets it go on; [`FOR_EVER`]: until that alone.
    pub paused: Option<u64>,
    /// No item that lacks its customer row is due at or after this moment, UTC ms.
    pub unindexed_until: u64,
    /// The rate that a command has given it for a while.
    pub slowed: Option<Slowed>,
}

/// A rate that holds for a while instead of that of the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowed {
    /// How fast items leave.
    pub rate: Rate,
    /// Until then, UTC ms; [`FOR_EVER`]: until a command ends it.
    pub until: u64,
}

/// A customer whose items are held back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRow {
    /// Name of the application.
    pub application: Arc<str>,
    /// Name of the customer.
    pub customer: Arc<str>,
    /// Until then, UTC ms, or until a command lets it go on: [`FOR_EVER`]. `None`: it goes on, without a row.
    pub until: Option<u64>,
}

/// A window that ends beyond the engine's horizon, as the store keeps it: a row of its own, so that a restart
/// does not have to count its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowRow {
    /// Name of the application.
    pub application: Arc<str>,
    /// Name of the customer.
    pub customer: Arc<str>,
    /// Planned end, UTC ms: the due of its members.
    pub end: u64,
    /// Which window: [`Key::window`] of its members.
    pub window: u64,
    /// Members so far.
    pub count: u32,
    /// Sum of their weights, bytes.
    pub weight: u64,
    /// Most urgent expiry among the members, UTC ms.
    pub expiry: Option<u64>,
}

/// A window that closed before its planned end. Its members stay where they lie, under that end, and are due
/// when it closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosingRow {
    /// Name of the application.
    pub application: Arc<str>,
    /// Planned end, UTC ms: the due in its members' keys.
    pub end: u64,
    /// Which window: [`Key::window`] of its members.
    pub window: u64,
    /// When it closed, UTC ms.
    pub due: u64,
    /// What closed it.
    pub cause: ClosedBy,
}

/// A part of the memory of ended items: all that ended in one span of time, forgotten as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketRow {
    /// Which, below [`BUCKETS`].
    pub bucket: u8,
    /// Nothing in it ended before, UTC ms.
    pub from: u64,
}

/// Buckets of ended items at most.
pub const BUCKETS: u8 = 8;

/// What a row that was written anew says now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rewritten {
    pub(super) key: Key,
    pub(super) due: u64,
    pub(super) attempts: u32,
    pub(super) outcome_unknown: bool,
    pub(super) own_time: bool,
    /// It is among the dead letters.
    pub(super) dead: bool,
}

/// What may change of a stored item while it waits.
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
}

/// Index rows of one item: the one that leads from its identity to its key, and the one under its customer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexRows {
    /// Every item whose producer gave an id has this row from its first commit until it ends or dies; one
    /// without only once its key is no longer the one in its assigned id.
    pub identity: Option<Identity>,
    /// Application and customer. Items that are in memory from their first commit on need none.
    pub customer: Option<(Arc<str>, Arc<str>)>,
}

/// One write. All writes of one [`Effects`] are one atomic commit; a later one sees what an earlier one did.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Add an item to its queue ([`Stored::queue`]), with its identity row where its producer gave an id and
    /// it is not dead.
    Put {
        /// With content. Boxed: most operations are deletes.
        item: Box<Stored>,
        /// With a row under its customer.
        indexed: bool,
    },
    /// Remove an item, and those of its index rows that are named. One that is not there is no fault.
    Delete {
        /// Where it lies.
        place: Place,
        /// Those that may be there.
        rows: IndexRows,
    },
    /// Write index rows of an item that lacks them.
    Index {
        /// Key of the item.
        key: Key,
        /// Which rows are concerned.
        rows: IndexRows,
    },
    /// Move an item to another key or another queue, or rewrite it where it is, with what is now known of it.
    /// The content moves along without passing through the engine.
    Move {
        /// Where it lies.
        from: Place,
        /// Where it will lie; may be the same.
        to: Place,
        /// Index rows removed first.
        removed: IndexRows,
        /// Index rows written then, for the new key.
        written: IndexRows,
        /// Its standing from now on.
        standing: Box<Standing>,
    },
    /// A window has closed before its planned end: every windowed item under that end and its number is due
    /// then from now on. No item is moved. The store forgets it with the last of them. One that is told of
    /// again closed at the later told moment.
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
    /// Remember an item that has ended; replaces what the bucket says of the same identity.
    Remember {
        /// Number below [`BUCKETS`].
        bucket: u8,
        /// Of an item whose producer gave an id.
        identity: Identity,
        /// What is remembered.
        ended: Box<Ended>,
    },
    /// Empty a bucket, and begin it anew. Everything in it is out of date: it need not be atomic with the
    /// rest.
    BeginBucket(BucketRow),
}

/// Windows that end within this time have no row of their own, and what is due within it is held in memory,
/// ms.
pub const HORIZON_MS: u64 = 20_000;

/// Items of one customer that lie under one due ahead of the clock, found by a start before whose time the
/// clock was set back.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AheadRow {
    /// Name of the application.
    pub application: Arc<str>,
    /// Name of the customer.
    pub customer: Arc<str>,
    /// The due in their keys, UTC ms.
    pub end: u64,
    /// When they are due: before that where their window closed early, UTC ms.
    pub due: u64,
    /// Number of their window.
    pub window: u64,
    /// What had closed their window; `None`: it was open, or had ended in its time.
    pub closed_by: Option<ClosedBy>,
}

/// Recorded with every commit, so that a start needs no scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The first arrival number that has certainly not been given out: a life begins there. It runs ahead of
    /// those that have been, by a lease.
    pub next_seq: u64,
    /// The latest moment that the wall clock has shown in this life, UTC ms: keys of short windows lie below
    /// it and [`HORIZON_MS`].
    pub wall: u64,
}

/// What a store knew when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// As of the last commit.
    pub marks: Marks,
    /// Queues that have items, or are paused.
    pub queues: Vec<QueueRow>,
    /// Customers that are held back.
    pub held: Vec<HeldRow>,
    /// Rows of long windows.
    pub windows: Vec<WindowRow>,
    /// Buckets of ended items, in the order in which they began: by the clock they may have begun otherwise.
    pub buckets: Vec<BucketRow>,
    /// Where the clock is behind [`Marks::wall`]: members of windows that are due in the time between, and
    /// within [`HORIZON_MS`] of it.
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
    /// Upper bound on the rows of the answer, which may have fewer where they are large.
    pub max_rows: usize,
}

/// One read. Executed in order with the writes: it sees every write handed over before it. Answers to all but
/// [`Load::Contents`] come in the order of the questions.
#[derive(Clone, Debug, PartialEq)]
pub enum Load {
    /// The next rows of some queues.
    Ranges {
        /// One each queue.
        ranges: Vec<Range>,
        /// Rows of all ranges together, in their order: those of a range that is not reached are left for
        /// another read, and its answer goes on where it begins.
        max_rows: usize,
        /// Contents are left out once those returned, of all ranges in order, sum up to this, bytes.
        max_bytes: u64,
    },
    /// Contents of single items, by arrival number, which is given back with the answer.
    Contents(Vec<(u64, Place)>),
    /// Where items are, or how they ended, by identity.
    Find(Vec<Wanted>),
    /// Stored items one by one, in bounded steps.
    Scan(Scan),
}

/// An item looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Identity to be found.
    pub identity: Identity,
    /// Application in whose queue it is looked for, as whoever asks has named it: an assigned identity may
    /// belong to another's item, and is not found then.
    pub application: Arc<str>,
    /// Where it lies unless an identity row says otherwise: of an item without an id.
    pub key: Option<Key>,
    /// Buckets in which its end may be remembered, in the order in which they are looked at.
    pub buckets: Vec<u8>,
}

/// What the store knows of an item that was looked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// It waits, without content.
    pub item: Option<Stored>,
    /// What the first of the buckets says that knows it.
    pub ended: Option<Ended>,
}

/// One bounded step along stored items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The engine's handle, given back with the answer.
    pub number: u64,
    /// Rows to walk along.
    pub along: Along,
    /// First key wanted, inclusive.
    pub from: Key,
    /// First due not wanted, UTC ms.
    pub until: u64,
    /// Of this customer alone.
    pub customer: Option<Arc<str>>,
    /// Most rows returned.
    pub max_rows: usize,
    /// Most rows looked at: bounds how long other reads and writes wait.
    pub max_looked_at: usize,
    /// Contents hold properties and an empty body; else they are left out.
    pub properties: bool,
}

/// What a [`Scan`] goes along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Along {
    /// A queue, in order of key. Dead letters are left out unless it is theirs.
    Queue(Arc<str>),
    /// The customer rows of this application and customer, in order of key.
    Customer(Arc<str>, Arc<str>),
}

/// The answer to one [`Load`].
#[derive(Clone, Debug, PartialEq)]
pub enum Loaded {
    /// To [`Load::Ranges`], in the same order.
    Ranges(Vec<RangeRows>),
    /// To [`Load::Contents`]. A content that is not there is damage, and the store reports it as an error
    /// instead.
    Contents(Vec<(u64, Arc<Content>)>),
    /// To [`Load::Find`], in the same order. Writes handed over after the question may show or not.
    Found(Vec<Found>),
    /// Answer to [`Load::Scan`].
    Scanned {
        /// The engine's handle.
        number: u64,
        /// In order of key.
        rows: Vec<Stored>,
        /// The first key not looked at; `None`: the end (below `until`).
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
    /// The first key not looked at: everything in the queue below it and not below `from` is in `rows`.
    /// `None`: the scan met the end of the queue, or `until`.
    pub next: Option<Key>,
}

/// What happens to the engine. Inputs carry many of a kind: the hot path is per turn, not per message.
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
    /// Whoever asked for these within this process waits for no answer any more: what only looks ends.
    Left(Vec<u64>),
    /// Answers to these deliveries are out, or not wanted any more.
    Answered(Vec<Delivery>),
    /// A new ingest consumer runs; tags of older generations mean nothing any more.
    IngestReady {
        /// Generation of the consumer.
        generation: u32,
    },
    /// The ingest connection is gone; the broker will deliver again what was not acked.
    IngestLost,
    /// So many deliveries may be out and not acked from now on: a share of them may wait for an outcome.
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
    /// Shutting down: give out what is due, take nothing new.
    Drain,
    /// A deadline has come, or time has simply passed.
    Tick,
}

/// What the ingest consumer must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intake {
    /// Hand over no more. What the broker has delivered stays with the consumer.
    Pause,
    /// Hand over again.
    Resume,
}

/// What the shell must do, in the order of the fields.
#[derive(Debug, Default)]
pub struct Effects {
    /// 1. One atomic commit, with the token and marks of it in `commit`. The store makes it durable and
    ///    answers [`Input::Committed`]. Without `commit` there is none; with it there may be no operations
    ///    but the marks.
    pub store: Vec<Op>,
    /// Token and marks of that commit.
    pub commit: Option<(Token, Marks)>,
    /// An answer waits for that commit: it is made without a wait for others to share a sync with.
    pub hurried: bool,
    /// 2. Acks: everything they cover is safe already.
    pub acks: Vec<Ack>,
    /// 3. Publishes, in order; each against a free slot of the publisher.
    pub publishes: Vec<Batch>,
    /// Numbers of batches that went alone ([`super::types::Batch::alone`]), have waited long for their
    /// confirms, and give their channels up: the publisher settles each, if it has not yet.
    pub give_up: Vec<u64>,
    /// 4. Answers: what they say is durable.
    pub replies: Vec<Reply>,
    /// 5. Reads of the store.
    pub loads: Vec<Load>,
    /// 6. A change of the intake.
    pub intake: Option<Intake>,
}

/// When the engine wants to be called again without any event: the sooner of the two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline {
    /// By the wall clock, UTC ms.
    pub wall: Option<u64>,
    /// By the monotonic clock, ms.
    pub mono: Option<u64>,
}
