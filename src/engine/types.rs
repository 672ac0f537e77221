//! The engine's words: moments, keys, items and batches. Settings, and what is asked of it, have files of
//! their own.
//!
//! Every value here has been checked at the border (`amqp::wire`, `config`); the engine never meets an
//! unchecked one. Nothing here reads a clock, knows AMQP, or knows how bytes lie on disk.

pub use super::pace::Rate;
pub use super::request::{
    Ahead, Answer, Asker, AssignedId, Command, CustomerOf, End, Ended, Filter, Listed, ListedStage, Moment,
    Reply, ReplyTo, Selection, Target, Timeline, TimelineQuery,
};
pub use super::settings::{AppSettings, Budget, Format, OnFull, Retry, Settings};
pub use super::thresholds::Thresholds;
use std::sync::Arc;

/// A moment, read once by the shell for each turn of the loop.
///
/// Own times and expiry are judged by `wall`; windows, quiet times, back-off and timeouts by `mono`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Wall clock, UTC milliseconds since the epoch. May step in both directions.
    pub wall: u64,
    /// Monotonic clock, milliseconds since an arbitrary start. Never goes back.
    pub mono: u64,
}

/// The place of an item in the time-sorted order: earliest first, at equal instants first in, first out, but
/// that the members of a window lie together, where the first of them would.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Due time, UTC ms.
    pub due: u64,
    /// Arrival number of its window's first member; of an item with a time of its own, its own.
    pub window: u64,
    /// Arrival number: unique within one store, for ever.
    pub seq: u64,
}

impl Key {
    /// Of an item that is no member of a window.
    pub const fn own(due: u64, seq: u64) -> Self {
        Key { due, window: seq, seq }
    }

    /// Before all that is due at this moment, UTC ms.
    pub const fn at(due: u64) -> Self {
        Key { due, window: 0, seq: 0 }
    }

    /// How far its number is from that of its window's first member.
    pub fn behind_first(self) -> u32 {
        let behind = u32::try_from(self.seq.saturating_sub(self.window));
        debug_assert!(behind.is_ok(), "a window closes before its numbers are that far apart");
        behind.unwrap_or(u32::MAX)
    }
}

/// Which item it is: a hash over (application, id), 128 bits of a cryptographic one, made at the border.
///
/// The texts stay out of the engine, so that a row is of fixed size. An item whose producer gave no id is
/// known by its arrival number, in a range that no hash reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity([u64; 2]);

/// In two steps; derived, it would be handed over byte by byte.
impl std::hash::Hash for Identity {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(self.0[0]);
        state.write_u64(self.0[1]);
    }
}

impl Identity {
    const GIVEN: u64 = 1 << 63;

    /// From the first bytes of a hash over application and id.
    pub fn given(hash: [u8; 16]) -> Self {
        let number = u128::from_be_bytes(hash);
        Identity([(number >> 64) as u64 | Self::GIVEN, number as u64])
    }

    /// Of an item that came without an id.
    pub fn assigned(seq: u64) -> Self {
        Identity([0, seq])
    }

    /// Its producer named it.
    pub fn is_given(self) -> bool {
        self.0[0] & Self::GIVEN != 0
    }

    /// The arrival number of an item that came without an id.
    pub fn assigned_seq(self) -> Option<u64> {
        (!self.is_given()).then_some(self.0[1])
    }

    /// For keys on the disk.
    pub fn to_bytes(self) -> [u8; 16] {
        ((u128::from(self.0[0]) << 64) | u128::from(self.0[1])).to_be_bytes()
    }

    /// Reads what [`Identity::to_bytes`] gave.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let number = u128::from_be_bytes(bytes);
        Identity([(number >> 64) as u64, number as u64])
    }
}

/// The id of a batch, as published: the same members, the same id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchId(pub [u8; 16]);

impl std::fmt::Display for BatchId {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

/// What a request carries through the house untouched: its properties, with headers, and its body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// AMQP basic properties in wire encoding, already cleaned of what must never be copied to an output, and
    /// which of them go into entries of batches. The engine does not read it.
    pub properties: Vec<u8>,
    /// The payload, byte for byte.
    pub body: Vec<u8>,
    /// Whether `body` may be embedded as JSON: judged once, when the request is read.
    pub json: bool,
}

impl Content {
    /// Bytes of memory that holding this content costs, allocation headers included (an estimate from above).
    pub fn size(&self) -> u64 {
        (self.properties.capacity() + self.body.capacity() + 128) as u64
    }
}

/// The broker's handle of one ingest message: which life of the connection, and which delivery within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Counts the ingest connections of this process from 1. Acks of an old generation are dropped.
    pub generation: u32,
    /// AMQP delivery tag, from 1 within a generation.
    pub tag: u64,
}

/// What happens when an item with the same identity is already there (header `x-on-duplicate`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DuplicateRule {
    /// The new one is dropped.
    #[default]
    Keep,
    /// The new one takes the place of the old one.
    Replace,
    /// The one with the earlier due stays.
    Earliest,
    /// The one with the later due stays.
    Latest,
    /// The new one is dead, reason `duplicate`.
    Reject,
}

impl DuplicateRule {
    /// The header's value.
    pub fn as_str(self) -> &'static str {
        match self {
            DuplicateRule::Keep => "keep",
            DuplicateRule::Replace => "replace",
            DuplicateRule::Earliest => "earliest",
            DuplicateRule::Latest => "latest",
            DuplicateRule::Reject => "reject",
        }
    }
}

/// One push request, read and checked.
#[derive(Clone, Debug)]
pub struct NewItem {
    /// Where it goes; 1 to 200 bytes.
    pub application: Box<str>,
    /// Whom it is for; 1 to 200 bytes.
    pub customer: Option<Box<str>>,
    /// Own time, UTC ms; a delay has been added to the moment of receipt. May lie in the past.
    pub at: Option<u64>,
    /// It must leave before this moment, UTC ms.
    pub expiry: Option<u64>,
    /// Of (application, `message_id`), where the producer gave an id.
    pub identity: Option<Identity>,
    /// What to do if the id is known.
    pub on_duplicate: DuplicateRule,
    /// Of body, properties and terms as they were sent: equal for two deliveries of one message. 0 without an
    /// id.
    pub fingerprint: u64,
    /// What it says of having been delivered before.
    pub tried: Tried,
    /// Set: its consumer has had its last try. It is dead, unless the item is known otherwise.
    pub over: Option<Box<Dead>>,
    /// Upper bound, in bytes, of what this item adds to an encoded batch of any format, application and
    /// customer names apart.
    pub weight: u32,
    /// Properties and payload.
    pub content: Arc<Content>,
}

/// What a request tells of an earlier try: that its consumer had it, or that a queue gave it up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// The batch in which it came to its consumer, where it names one.
    pub batch: Option<BatchId>,
    /// It was sent back: it carries what a batch, or a broker that moves it, puts on a message.
    pub sent_back: bool,
    /// The item whose assigned id it bears, where it names a batch: that came without an id of its own.
    pub first: Option<Identity>,
    /// How often its consumer has sent it back, where that is counted; such an item leaves alone.
    pub retry: u32,
}

impl NewItem {
    /// What becomes of it where it cannot be taken.
    pub fn rejected(self, dead: Dead) -> Rejected {
        let NewItem { application, customer, content, .. } = self;
        Rejected { application: Some(application), customer, dead, content, reply_to: None }
    }
}

/// Why an item or a request was given up. The texts are part of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The request could not be understood.
    Invalid,
    /// Body or envelope above its limit.
    TooLarge,
    /// Same identity, rule `reject`.
    Duplicate,
    /// No room, and the policy says drop.
    Full,
    /// It could not leave before its expiry.
    Expired,
    /// As many attempts as allowed have failed.
    Attempts,
    /// The broker refuses this very message.
    Refused,
    /// This configuration cannot do it.
    Unsupported,
}

impl Reason {
    /// All reasons, in the order of their declaration.
    pub const ALL: [Reason; 8] = [
        Reason::Invalid,
        Reason::TooLarge,
        Reason::Duplicate,
        Reason::Full,
        Reason::Expired,
        Reason::Attempts,
        Reason::Refused,
        Reason::Unsupported,
    ];

    /// The value of header `x-tidegate-reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Invalid => "invalid",
            Reason::TooLarge => "too_large",
            Reason::Duplicate => "duplicate",
            Reason::Full => "full",
            Reason::Expired => "expired",
            Reason::Attempts => "attempts",
            Reason::Refused => "refused",
            Reason::Unsupported => "unsupported",
        }
    }
}

/// The verdict on a dead item or request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead {
    /// One of the contract's reasons.
    pub reason: Reason,
    /// A sentence that names the field, limit or answer concerned; header `x-tidegate-error`.
    pub error: Box<str>,
}

/// A request that could not be understood, or not be taken.
#[derive(Clone, Debug)]
pub struct Rejected {
    /// As far as it could be read; routing key of the dead letter.
    pub application: Option<Box<str>>,
    /// As far as it could be read.
    pub customer: Option<Box<str>>,
    /// Reason and sentence.
    pub dead: Dead,
    /// The message as it came.
    pub content: Arc<Content>,
    /// It was a command, and an answer is wanted.
    pub reply_to: Option<ReplyTo>,
}

/// What one ingest message turned out to be.
#[derive(Clone, Debug)]
pub enum RequestBody {
    /// Items: one, or the entries of a JSON array, which become durable in one commit.
    Items(Vec<NewItem>),
    /// Not understood: it becomes a dead item.
    Rejected(Box<Rejected>),
    /// A command, and where its answer goes.
    Command(Command, Option<ReplyTo>),
}

/// One ingest message, as the engine receives it.
#[derive(Clone, Debug)]
pub struct Request {
    /// To be acked once everything in it is safe.
    pub delivery: Delivery,
    /// RabbitMQ's mark that it was delivered before.
    pub redelivered: bool,
    /// Wall clock at receipt, UTC ms, rounded up.
    pub received: u64,
    /// What is requested.
    pub body: RequestBody,
}

impl Request {
    /// How much work it is to judge: its items, and at least 1.
    pub fn item_count(&self) -> usize {
        match &self.body {
            RequestBody::Items(items) => items.len().max(1),
            RequestBody::Rejected(_) | RequestBody::Command(..) => 1,
        }
    }
}

/// Cause of the first close in a batch; header `x-closed-by`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClosedBy {
    /// A window's end, or an own time.
    #[default]
    Time,
    /// It reached `max_items`.
    Count,
    /// It reached `max_bytes`.
    Bytes,
    /// Nothing came for `quiet`.
    Quiet,
    /// An operator's or producer's flush.
    Flush,
    /// The most urgent expiry in the window.
    Expiry,
}

impl ClosedBy {
    /// The header's value.
    pub fn as_str(self) -> &'static str {
        match self {
            ClosedBy::Time => "time",
            ClosedBy::Count => "count",
            ClosedBy::Bytes => "bytes",
            ClosedBy::Quiet => "quiet",
            ClosedBy::Flush => "flush",
            ClosedBy::Expiry => "expiry",
        }
    }
}

/// One item of a batch on its way out.
#[derive(Clone, Debug)]
pub struct BatchItem {
    /// Arrival number; with the store's identity it makes one half of the id of an item that came without
    /// one.
    pub seq: u64,
    /// Arrival number of the first member of its window; without one, its own.
    pub window: u64,
    /// When it was due as accepted, UTC ms: the other half of that id, by which the store finds it.
    pub accepted_due: u64,
    /// Due time, UTC ms.
    pub due: u64,
    /// When it arrived, UTC ms.
    pub received: u64,
    /// Failed attempts so far.
    pub attempts: u32,
    /// Same as [`Tried::retry`].
    pub retry: u32,
    /// Properties and payload.
    pub content: Arc<Content>,
}

/// Most channels for batches that are published alone ([`Batch::alone`]): so many applications may fall
/// silent at one moment, and as many again, before another waits for longer than half a second.
pub const ALONE_CHANNELS: usize = 128;

/// A batch, ready to be encoded and published. One to the dead exchange holds exactly one item.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The engine's handle, unique within this process.
    pub number: u64,
    /// Application name: the routing key. Empty for a dead request whose application could not be read.
    pub application: Arc<str>,
    /// Customer of all its items.
    pub customer: Option<Arc<str>>,
    /// Set: to the dead exchange, with this verdict.
    pub dead: Option<Arc<Dead>>,
    /// Format of the message's body.
    pub format: Format,
    /// Cause of the first close in it.
    pub closed_by: ClosedBy,
    /// Publishes of it, this one included.
    pub attempt: u32,
    /// Earliest due, UTC ms.
    pub due: u64,
    /// From when and until when its application's rate held it back, UTC ms, if it did.
    pub held: Option<[u64; 2]>,
    /// Publish it on a channel where nothing else is unconfirmed: the broker's answer, or its silence, then
    /// concerns this batch and no other. At most [`ALONE_CHANNELS`] at a time; its channel is its own until
    /// it is settled.
    pub alone: bool,
    /// In order of (due, arrival). Never empty.
    pub items: Vec<BatchItem>,
}

/// What became of a publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Confirmed and not returned: delivered, under this id.
    Confirmed(BatchId),
    /// The broker answered `basic.nack` (a queue is full, say).
    Nacked,
    /// Unroutable: `basic.return` with this reply text.
    Returned(Box<str>),
    /// The broker closed the channel with this text while the batch was unconfirmed there. Where it was alone
    /// it is the culprit; elsewhere it is one of the suspects.
    Refused(Box<str>),
    /// The exchange is missing or may not be written to, with the broker's text: it went nowhere.
    Unavailable(Box<str>),
    /// No confirm came in time, or before another needed its channel, which was given up: it may or may not
    /// have been delivered.
    Overdue,
    /// The connection was lost: it may or may not have been delivered.
    Unknown,
    /// There was no connection to publish it on: it went nowhere.
    Unsent,
}

/// One settled publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Same as [`Batch::number`].
    pub number: u64,
    /// What became of it.
    pub outcome: Outcome,
}

/// Acknowledge towards the ingest queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Delivery to be acked.
    pub delivery: Delivery,
    /// All up to and including it.
    pub multiple: bool,
}
