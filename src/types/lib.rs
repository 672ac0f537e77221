//! The engine's basic types: moments, keys, items and batches. Settings and commands have files of their own.
//!
//! Every value here has been checked at the border (`amqp::wire`, `config`); the engine never sees an
//! unchecked one. Nothing here reads a clock or knows AMQP or the format on disk.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod event;
pub mod rate;
mod request;
mod settings;
pub mod size;
pub mod snapshot;
mod thresholds;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
pub use rate::{Bound, Rate};
pub use request::{
    Ahead, Answer, Asker, AssignedId, Command, CustomerOf, End, Ended, Filter, ListPlace, Listed,
    ListedStage, Moment, Reply, ReplyTo, Selection, Target, Timeline, TimelineQuery,
};
use serde::{Deserialize, Serialize};
pub use settings::{AppSettings, Budget, Format, OnFull, Retry, Settings};
pub use thresholds::Thresholds;

/// The present moment; the shell reads it once for each turn of the loop.
///
/// Own times and expiry are judged by `wall`; windows, quiet times, back-off and timeouts by `mono`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Wall clock, UTC milliseconds since the epoch. May step in both directions.
    pub wall: u64,
    /// Monotonic clock, milliseconds since an arbitrary start. Never goes back.
    pub mono: u64,
}

/// The place of an item in the time-sorted order: earliest first, and first in, first out at equal times. The
/// members of a window stay together, at the place of the first of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// Due time, UTC ms.
    pub due: u64,
    /// Arrival number of its window's first member; for an item outside a window, its own.
    pub window: u64,
    /// Arrival number: unique within one store, never reused.
    pub seq: u64,
}

impl Key {
    /// Key of an item that is no member of a window.
    pub const fn own(due: u64, seq: u64) -> Self {
        Key { due, window: seq, seq }
    }

    /// The key before all items that are due at this moment, UTC ms.
    pub const fn at(due: u64) -> Self {
        Key { due, window: 0, seq: 0 }
    }

    /// The first key behind this one; of the last key, itself.
    pub fn next(self) -> Self {
        let Key { due, window, seq } = self;
        let (seq, is_over) = seq.overflowing_add(1);
        let (window, is_over) = window.overflowing_add(u64::from(is_over));
        due.checked_add(u64::from(is_over)).map_or(self, |due| Key { due, window, seq })
    }

    /// Distance of its number from that of its window's first member.
    pub fn behind_first(self) -> u32 {
        let behind = u32::try_from(self.seq.saturating_sub(self.window));
        debug_assert!(behind.is_ok(), "a window closes before its numbers are that far apart");
        behind.unwrap_or(u32::MAX)
    }
}

/// Identifies an item: 128 bits of a cryptographic hash over (application, id), computed at the border.
///
/// The texts stay out of the engine, so that rows have a fixed size. An item whose producer gave no id is
/// identified by its arrival number, in a range that no hash reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity([u64; 2]);

/// Hashes in two steps; a derived implementation would hash byte by byte.
impl core::hash::Hash for Identity {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
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

    /// Identity of an item that came without an id.
    pub fn assigned(seq: u64) -> Self {
        Identity([0, seq])
    }

    /// Whether its producer gave the id.
    pub fn is_given(self) -> bool {
        self.0[0] & Self::GIVEN != 0
    }

    /// The arrival number of an item that came without an id.
    pub fn assigned_seq(self) -> Option<u64> {
        (!self.is_given()).then_some(self.0[1])
    }

    /// Bytes for keys on disk.
    pub fn to_bytes(self) -> [u8; 16] {
        ((u128::from(self.0[0]) << 64) | u128::from(self.0[1])).to_be_bytes()
    }

    /// Reads the bytes of [`Identity::to_bytes`].
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let number = u128::from_be_bytes(bytes);
        Identity([(number >> 64) as u64, number as u64])
    }
}

/// The id of a batch, as published: the same members, the same id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchId(pub [u8; 16]);

impl core::fmt::Display for BatchId {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

/// The part of a request that passes through unchanged: its properties, with headers, and its body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// AMQP basic properties in wire encoding, without those that must never be copied to an output, and a
    /// note of those that go into entries of batches. The engine does not read it.
    pub properties: Vec<u8>,
    /// The payload, byte for byte.
    pub body: Vec<u8>,
    /// Whether `body` may be embedded as JSON: judged once, when the request is read.
    pub json: bool,
}

impl Content {
    /// Bytes of memory that this content occupies, allocation headers included (an upper estimate).
    pub fn size(&self) -> u64 {
        (self.properties.capacity() + self.body.capacity() + 128) as u64
    }
}

/// The broker's handle of one ingest message: the ingest connection, and the delivery within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Counts the ingest connections of this process from 1. Acks of an old generation are dropped.
    pub generation: u32,
    /// AMQP delivery tag, from 1 within a generation.
    pub tag: u64,
}

/// What happens if an item with the same identity exists (header `x-on-duplicate`).
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

/// One push request, parsed and checked.
#[derive(Clone, Debug)]
pub struct NewItem {
    /// Name of the application; 1 to 200 bytes.
    pub application: Box<str>,
    /// Name of the customer; 1 to 200 bytes.
    pub customer: Option<Box<str>>,
    /// Own time, UTC ms; a delay has been added to the moment of receipt. May be in the past.
    pub at: Option<u64>,
    /// It must leave before this moment, UTC ms.
    pub expiry: Option<u64>,
    /// Identity of (application, `message_id`), if the producer gave an id.
    pub identity: Option<Identity>,
    /// What to do if the id is known already.
    pub on_duplicate: DuplicateRule,
    /// Fingerprint of body, properties and terms as sent: equal for two deliveries of one message. 0 without
    /// an id.
    pub fingerprint: u64,
    /// What its headers say about earlier deliveries.
    pub tried: Tried,
    /// Set: its consumer has used its last try. The item is dead, unless its identity is known otherwise.
    pub over: Option<Box<Dead>>,
    /// Upper bound, in bytes, of what this item adds to an encoded batch of any format, without the names of
    /// application and customer.
    pub weight: u32,
    /// Properties and payload.
    pub content: Arc<Content>,
}

/// What a request's headers say about an earlier try: its consumer had it, or a queue dead-lettered it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// The batch in which its consumer received it, if the request names one.
    pub batch: Option<BatchId>,
    /// It was sent back: it carries headers that a batch, or a broker that moves messages, sets.
    pub sent_back: bool,
    /// The item whose assigned id it carries, if it names a batch: that item came without an id.
    pub first: Option<Identity>,
    /// How often its consumer has sent it back, where that is counted; such an item is published as a
    /// separate batch.
    pub retry: u32,
}

impl NewItem {
    /// The rejected form of a request that cannot be taken.
    pub fn rejected(self, dead: Dead) -> Rejected {
        let NewItem { application, customer, content, .. } = self;
        Rejected { application: Some(application), customer, dead, content, reply_to: None }
    }
}

/// Why an item or a request was dead-lettered. The texts are part of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The request could not be understood.
    Invalid,
    /// Body or envelope exceeds its limit.
    TooLarge,
    /// An item with its identity exists, and the rule is `reject`.
    Duplicate,
    /// There is no room, and the policy is to drop.
    Full,
    /// It could not leave before its expiry.
    Expired,
    /// All allowed attempts have failed.
    Attempts,
    /// The broker refuses this single message.
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

/// Why one item or request is dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead {
    /// One of the contract's reasons.
    pub reason: Reason,
    /// A sentence that names the field, limit or answer concerned; header `x-tidegate-error`.
    pub error: Box<str>,
}

/// A request that could not be understood or taken.
#[derive(Clone, Debug)]
pub struct Rejected {
    /// Name of the application if it could be read; routing key of the dead letter.
    pub application: Option<Box<str>>,
    /// As far as it could be read.
    pub customer: Option<Box<str>>,
    /// Why it was rejected.
    pub dead: Dead,
    /// The message as received.
    pub content: Arc<Content>,
    /// Where the answer goes, if it was a command that wants one.
    pub reply_to: Option<ReplyTo>,
}

/// The content of one ingest message.
#[derive(Clone, Debug)]
pub enum RequestBody {
    /// Items: one, or the entries of a JSON array, which become durable in one commit.
    Items(Vec<NewItem>),
    /// Not understood: it becomes a dead item.
    Rejected(Box<Rejected>),
    /// A command, and where its answer goes.
    Command(Command, Option<ReplyTo>),
    /// A message, or entries of a JSON array, that concern applications of other shards and are being
    /// forwarded to them; [`event::Input::Forwarded`] reports that they are safe there. With the items that
    /// stay here, if any.
    Elsewhere(Vec<NewItem>),
}

/// One ingest message, as the engine receives it.
#[derive(Clone, Debug)]
pub struct Request {
    /// Acked once everything in it is safe.
    pub delivery: Delivery,
    /// RabbitMQ's redelivered flag.
    pub redelivered: bool,
    /// Wall clock at receipt, UTC ms, rounded up.
    pub received: u64,
    /// What it contains.
    pub body: RequestBody,
}

impl Request {
    /// Units of work to judge it: the number of its items, at least 1.
    pub fn item_count(&self) -> usize {
        match &self.body {
            RequestBody::Items(items) | RequestBody::Elsewhere(items) => items.len().max(1),
            RequestBody::Rejected(_) | RequestBody::Command(..) => 1,
        }
    }

    /// Whether all that it contains has an own time, more than `ms` after its receipt, and takes the place of
    /// no item, which may be due sooner: nothing is late if it is judged somewhat later.
    pub fn is_far(&self, ms: u64) -> bool {
        let first = self.received.saturating_add(ms);
        match &self.body {
            RequestBody::Items(items) | RequestBody::Elsewhere(items) => items.iter().all(|item| {
                let is_new = item.identity.is_none() || item.on_duplicate == DuplicateRule::Keep;
                is_new && item.at.is_some_and(|at| at > first)
            }),
            RequestBody::Rejected(_) | RequestBody::Command(..) => false,
        }
    }
}

/// Cause of the first close in a batch; header `x-closed-by`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClosedBy {
    /// The end of a window, or an own time.
    #[default]
    Time,
    /// It reached `max_items`.
    Count,
    /// It reached `max_bytes`.
    Bytes,
    /// No item came for `quiet`.
    Quiet,
    /// A flush by an operator or producer.
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

/// One item of a batch to be published.
#[derive(Clone, Debug)]
pub struct BatchItem {
    /// Arrival number; together with the store's identity it is one half of the id of an item that came
    /// without one.
    pub seq: u64,
    /// Arrival number of the first member of its window; its own if it has no window.
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

/// Most channels for batches that are published alone ([`Batch::alone`]). This many applications may stop
/// confirming at one moment, and this many more, before another application waits longer than half a second.
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
    /// Set: it goes to the dead exchange, for this reason.
    pub dead: Option<Arc<Dead>>,
    /// Format of the message body.
    pub format: Format,
    /// Cause of the first close in it.
    pub closed_by: ClosedBy,
    /// How often it was published, this time included.
    pub attempt: u32,
    /// Earliest due, UTC ms.
    pub due: u64,
    /// Begin and end of the time that its application's rate held it back, UTC ms.
    pub held: Option<[u64; 2]>,
    /// Publish it on a channel where nothing else is unconfirmed: the broker's answer, or a missing one, then
    /// concerns this batch only. At most [`ALONE_CHANNELS`] at a time; the channel carries nothing else until
    /// the batch is settled.
    pub alone: bool,
    /// In order of (due, arrival). Never empty.
    pub items: Vec<BatchItem>,
}

/// The outcome of a publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Confirmed and not returned: delivered, under this id.
    Confirmed(BatchId),
    /// The broker answered `basic.nack` (a queue is full, say).
    Nacked,
    /// Unroutable: `basic.return` with this reply text.
    Returned(Box<str>),
    /// The broker closed the channel with this text while the batch was unconfirmed on it. A batch that was
    /// alone is the cause; any other is one of the suspects.
    Refused(Box<str>),
    /// The broker failed over it (541), alone on its connection, with this text. A lost connection is no
    /// attempt that counts.
    Failed(Box<str>),
    /// The exchange is missing or not writable, with the broker's text: the batch was not published.
    Unavailable(Box<str>),
    /// No confirm came in time, or before another batch needed the channel, which was given up; or the broker
    /// failed (541) while it was out. It may or may not have been delivered.
    Overdue,
    /// The connection was lost: the batch may or may not have been delivered.
    Unknown,
    /// There was no connection: the batch was not published.
    Unsent,
}

/// One settled publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Same as [`Batch::number`].
    pub number: u64,
    /// Outcome of the publish.
    pub outcome: Outcome,
}

/// An acknowledgement to the broker for the ingest queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The delivery that is acked.
    pub delivery: Delivery,
    /// Acks all deliveries up to and including it.
    pub multiple: bool,
}
