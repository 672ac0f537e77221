//! What enters the engine and what leaves it: two enums and a struct whose field order is the order of execution.

use super::types::{
    Ack, Asker, Batch, Command, Content, Dead, Delivery, Ended, Identity, Key, Reply, Request, Settings,
    Settled,
};
use std::sync::Arc;

/// Proof that a group of store operations has been handed over; durable when [`Input::Committed`] names it or a
/// later one.
pub type Token = u64;

/// An item as the store keeps it: its persistent fields, without anything that a restart forgets.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// Time index key.
    pub key: Key,
    /// Application name; empty for a dead request whose application could not be read.
    pub application: Arc<str>,
    /// Customer name.
    pub customer: Option<Arc<str>>,
    /// Of its producer's id, if there was one.
    pub given: Option<Identity>,
    /// Receipt, UTC ms.
    pub received: u64,
    /// It named a time of its own: it never leaves before `key.due`.
    pub own_time: bool,
    /// UTC ms.
    pub expiry: Option<u64>,
    /// See [`super::types::NewItem::weight`].
    pub weight: u32,
    /// Failed attempts so far.
    pub attempts: u32,
    /// Text of the last failure.
    pub last_error: Option<Arc<str>>,
    /// Set: it goes to the dead exchange.
    pub dead: Option<Arc<Dead>>,
    /// Always there in a write; a load may leave it out.
    pub content: Option<Arc<Content>>,
}

impl Stored {
    /// Which item it is.
    pub fn identity(&self) -> Identity {
        self.given.unwrap_or(Identity::assigned(self.key.seq))
    }
}

/// Where a stored item lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The time index, keyed (due, seq).
    Time,
    /// The lane of an application that cannot be delivered to at present, keyed (lane, due, seq). The lane's name
    /// is the application's, or empty for the dead exchange.
    Lane(Arc<str>),
}

/// A window that ends beyond the engine's horizon, as the store keeps it: a row of its own, so that a restart
/// does not have to count its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowRow {
    /// Application name.
    pub application: Arc<str>,
    /// Customer name.
    pub customer: Arc<str>,
    /// Planned end, UTC ms.
    pub end: u64,
    /// Members so far.
    pub count: u32,
    /// Sum of their weights, bytes.
    pub weight: u64,
    /// Most urgent expiry among the members, UTC ms.
    pub expiry: Option<u64>,
}

/// The parked backlog of one lane, as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneRow {
    /// Application name, or empty for the dead exchange.
    pub lane: Arc<str>,
    /// Items in the lane. 0 removes the row.
    pub count: u64,
    /// No item of the lane lies below this key: scans start here, never at the beginning.
    pub low: Key,
}

/// How many items of an application are stored, wherever they lie, as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppRow {
    /// Application name, or empty for the dead exchange.
    pub application: Arc<str>,
    /// Items.
    pub waiting: u64,
    /// It is held back until somebody lets it go on. No items and not paused removes the row.
    pub paused: bool,
}

/// Secondary index rows of one item: which are written, or which are there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexed {
    /// Its identity row, which leads to its key.
    pub identity: Option<Identity>,
    /// Its row under (application, customer).
    pub customer: Option<(Arc<str>, Arc<str>)>,
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

/// One write. All writes of one [`Effects`] are one atomic commit.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Add an item, with these index rows; without any it is bare.
    Put {
        /// Where.
        place: Place,
        /// With content. Boxed: most operations are deletes.
        item: Box<Stored>,
        /// Customer: in the time index only.
        indexed: Indexed,
    },
    /// Remove an item, and its index rows. One that is not there is no fault.
    Delete {
        /// Where it lies.
        place: Place,
        /// Its key.
        key: Key,
        /// Those that may have been written.
        indexed: Indexed,
    },
    /// Write index rows of an item that was bare until now.
    Index {
        /// Its key.
        key: Key,
        /// Which.
        indexed: Indexed,
    },
    /// Move an item into a lane (or rewrite it there), with what is now known of it. The content moves along
    /// without passing through the engine.
    Park {
        /// Where it lies.
        from: Place,
        /// Its key, which stays the same.
        key: Key,
        /// Removed, as for [`Op::Delete`].
        indexed: Indexed,
        /// Its identity row, where that has to be written (after the removal).
        identity: Option<Identity>,
        /// Name of the lane it moves to.
        lane: Arc<str>,
        /// Failed attempts so far.
        attempts: u32,
        /// Text of the last failure.
        last_error: Option<Arc<str>>,
        /// Its verdict, when it is dead.
        dead: Option<Arc<Dead>>,
    },
    /// Write or replace a window's row.
    PutWindow(WindowRow),
    /// Remove a window's row.
    DeleteWindow {
        /// Application name.
        application: Arc<str>,
        /// Customer name.
        customer: Arc<str>,
    },
    /// Write a lane's row; a count of 0 removes it.
    PutLane(LaneRow),
    /// Write an application's row; see [`AppRow`] for when that removes it.
    PutApp(AppRow),
    /// Remember an item that has ended; replaces what the bucket says of the same identity.
    Remember {
        /// Below [`BUCKETS`].
        bucket: u8,
        /// Of an item whose producer gave an id.
        identity: Identity,
        /// What is remembered.
        ended: Box<Ended>,
    },
    /// Empty a bucket, and begin it anew. Everything in it is out of date: it need not be atomic with the rest.
    BeginBucket(BucketRow),
}

/// Recorded with every commit, so that a start needs no scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The next arrival number.
    pub next_seq: u64,
    /// No item of the time index lies below this key: scans start here, never among the tombstones.
    pub low: Key,
    /// No bare item (without index rows) is due at or after this moment, UTC ms.
    pub bare_until: u64,
    /// Items in the time index.
    pub waiting: u64,
}

/// What a store knew when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// As of the last commit.
    pub marks: Marks,
    /// Rows of long windows.
    pub windows: Vec<WindowRow>,
    /// Lanes with parked items.
    pub lanes: Vec<LaneRow>,
    /// Applications that have stored items, or are paused.
    pub applications: Vec<AppRow>,
    /// Buckets of ended items.
    pub buckets: Vec<BucketRow>,
}

/// One read. Executed in order with the writes: it sees every write handed over before it.
#[derive(Clone, Debug, PartialEq)]
pub enum Load {
    /// The next rows of the time index.
    Time {
        /// First key wanted, inclusive.
        from: Key,
        /// First due not wanted, UTC ms.
        until: u64,
        /// At most so many rows.
        max_rows: usize,
        /// Leave contents out once those returned sum up to so many bytes.
        max_bytes: u64,
    },
    /// The next rows of a lane.
    Lane {
        /// Its name.
        lane: Arc<str>,
        /// First key wanted, inclusive.
        from: Key,
        /// At most so many rows.
        max_rows: usize,
        /// As above.
        max_bytes: u64,
    },
    /// The indexed rows of one customer in the time index, without contents.
    Group {
        /// Application name.
        application: Arc<str>,
        /// Customer name.
        customer: Arc<str>,
        /// First key wanted, inclusive.
        from: Key,
        /// At most so many rows.
        max_rows: usize,
    },
    /// Contents of single items. `u64` is the engine's handle, given back with the answer.
    Contents(Vec<(u64, Place, Key)>),
    /// Where items are, or how they ended, by identity.
    Find(Vec<Wanted>),
    /// Stored items one by one, in bounded steps.
    Walk(Walk),
}

/// An item looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which.
    pub identity: Identity,
    /// Its application: names the lane that it may lie in.
    pub application: Arc<str>,
    /// Buckets in which its end may be remembered, in the order in which they are looked at.
    pub buckets: Vec<u8>,
}

/// What the store knows of an item that was looked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// It is there, without content.
    pub item: Option<(Place, Stored)>,
    /// What the first of the buckets says that knows it.
    pub ended: Option<Ended>,
}

/// A walk over stored items in bounded steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// The engine's handle, given back with the answer.
    pub number: u64,
    /// Where.
    pub along: Along,
    /// First key wanted, inclusive.
    pub from: Key,
    /// Nothing of the time index lies below: a scan of it never starts before.
    pub low: Key,
    /// First due not wanted, UTC ms.
    pub until: u64,
    /// Of this application alone.
    pub application: Option<Arc<str>>,
    /// Of this customer alone.
    pub customer: Option<Arc<str>>,
    /// At most so many rows.
    pub max_rows: usize,
    /// At most so many rows looked at: bounds how long other reads and writes wait.
    pub max_looked_at: usize,
}

/// What a [`Walk`] goes along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Along {
    /// The customer's rows of the time index that have index rows. Application and customer are set.
    Customer,
    /// The application's lane; without an application every lane, merged in order of key, dead items left out.
    Lane,
    /// The time index and every lane, merged in order of key; dead items are left out.
    All,
}

/// The answer to one [`Load`].
#[derive(Clone, Debug, PartialEq)]
pub enum Loaded {
    /// To [`Load::Time`].
    Time {
        /// In order of key.
        rows: Vec<Stored>,
        /// The first key not looked at: everything in the store below it and not below `from` is in `rows`.
        /// `None`: the scan met the end of the index (below `until`).
        next: Option<Key>,
    },
    /// To [`Load::Lane`].
    Lane {
        /// Its name.
        lane: Arc<str>,
        /// In order of key.
        rows: Vec<Stored>,
        /// As above; `None`: no more rows in the lane.
        next: Option<Key>,
    },
    /// To [`Load::Group`].
    Group {
        /// Application name.
        application: Arc<str>,
        /// Customer name.
        customer: Arc<str>,
        /// In order of key, without contents.
        rows: Vec<Stored>,
        /// As above; `None`: no more rows of this customer.
        next: Option<Key>,
    },
    /// To [`Load::Contents`]. A content that is not there is damage, and the store reports it as an error instead.
    Contents(Vec<(u64, Arc<Content>)>),
    /// To [`Load::Find`], in the same order. Writes handed over after the question may show or not.
    Found(Vec<Found>),
    /// To [`Load::Walk`].
    Walked {
        /// The engine's handle.
        number: u64,
        /// In order of key. Contents hold properties and an empty body along [`Along::All`] and
        /// [`Along::Lane`], and are left out otherwise.
        rows: Vec<(Place, Stored)>,
        /// The first key not looked at; `None`: the end.
        next: Option<Key>,
    },
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
    /// Answers to these deliveries are out, or nobody waits for them any more.
    Answered(Vec<Delivery>),
    /// A new ingest consumer runs; tags of older generations mean nothing any more.
    IngestReady {
        /// Its generation.
        generation: u32,
    },
    /// The ingest connection is gone; the broker will deliver again what was not acked.
    IngestLost,
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
    /// Forward no deliveries. The consumer stays, and so does all that the broker has handed over.
    Pause,
    /// Forward them again, or begin to consume.
    Resume,
}

/// What the shell must do, in the order of the fields.
#[derive(Debug, Default)]
pub struct Effects {
    /// 1. One atomic commit; empty = none. The store makes it durable and answers [`Input::Committed`].
    pub store: Vec<Op>,
    /// Token and marks of that commit.
    pub commit: Option<(Token, Marks)>,
    /// 2. Acks: everything they cover is safe already.
    pub acks: Vec<Ack>,
    /// 3. Publishes, in order; each against a free slot of the publisher.
    pub publishes: Vec<Batch>,
    /// 4. Answers: what they say is durable.
    pub replies: Vec<Reply>,
    /// 5. Reads.
    pub loads: Vec<Load>,
    /// 6. A change of the intake.
    pub intake: Option<Intake>,
}

/// When the engine wants to be called again without any event: the sooner of the two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline {
    /// UTC ms.
    pub wall: Option<u64>,
    /// Monotonic ms.
    pub mono: Option<u64>,
}
