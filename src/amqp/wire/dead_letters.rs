//! The content of the dead-letter queue and the actions on it, in the types that the admin port, the command
//! line and the AMQP side share. Pure.

use serde::Serialize;
use serde_json::{Map, Value};

/// Most dead letters that one call reads. Each is held until the walk ends and then returns to the queue. The
/// number suits a slow broker: one get from a quorum queue takes milliseconds.
pub const MOST_LOOKED_AT: usize = 2_000;
/// Most dead letters that one call sends back or drops.
pub const MOST_OF_A_CALL: usize = 1_000;
/// Most dead letters that a walk may ask for, over all its calls.
pub const MOST_OF_A_WALK: usize = 10_000_000;
/// Largest body in bytes that an answer contains; as base64 it still fits the clients' limit.
pub const MOST_SHOWN_BODY: usize = 8 << 20;
/// Size of a full list in bytes of JSON; the first dead letter always fits.
pub const FULL_PAGE: usize = 1 << 20;
/// Longest sentence or name in a summary, bytes. Longer ones are cut and end in `…`.
pub const MOST_SHOWN_TEXT: usize = 1_024;
/// Number of digits of a [`LetterKey`].
pub const KEY_LENGTH: usize = 32;

/// Names a dead letter by its content: the beginning of a hash over body, properties and headers. Dead
/// letters of equal content have the same key and are interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct LetterKey(Box<str>);

impl LetterKey {
    /// Reads a key; `None` without exactly [`KEY_LENGTH`] lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<LetterKey> {
        let digits = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        (digits && text.len() == KEY_LENGTH).then(|| LetterKey(text.into()))
    }

    /// The key made of the first digits of a longer hash.
    pub fn of(digits: &str) -> LetterKey {
        LetterKey(digits.chars().take(KEY_LENGTH).collect())
    }

    /// The key as its digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Selects dead letters; a field that is `None` matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetterFilter {
    /// The reason, exactly.
    pub reason: Option<Box<str>>,
    /// The application, exactly; empty: dead letters whose application could not be read.
    pub application: Option<Box<str>>,
    /// This key only.
    pub key: Option<LetterKey>,
}

impl LetterFilter {
    /// Whether the filter selects this dead letter.
    pub fn takes(&self, letter: &Letter) -> bool {
        self.reason.as_deref().is_none_or(|reason| *reason == *letter.reason)
            && self.application.as_deref().is_none_or(|name| *name == *letter.application)
            && self.key.as_ref().is_none_or(|key| *key == letter.key)
    }
}

/// The new due of a dead letter that is sent back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NewTime {
    /// As a request without a time: at once, or with its customer's window.
    #[default]
    Now,
    /// At this moment, UTC ms.
    At(u64),
    /// This many ms after it is sent back.
    After(u64),
}

/// How dead letters are sent back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryTerms {
    /// The new due.
    pub time: NewTime,
    /// New expiry, UTC ms. Without one, the old expiry stays if the item can still meet it.
    pub deliver_before: Option<u64>,
}

/// The action of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LetterJob {
    /// Counts dead letters by reason and application.
    Count,
    /// Lists dead letters within one walk: a quorum queue does not keep the order of returned messages.
    List {
        /// The ones to list.
        filter: LetterFilter,
        /// Most dead letters to list, 1 to [`MOST_OF_A_WALK`].
        limit: usize,
        /// With headers and body.
        whole: bool,
    },
    /// Publishes dead letters to the ingest exchange, and removes each one once its publish is confirmed.
    Retry {
        /// The ones to send back.
        filter: LetterFilter,
        /// Most dead letters to send back, 1 to [`MOST_OF_A_WALK`].
        limit: usize,
        /// Their new due and expiry.
        terms: RetryTerms,
    },
    /// Removes dead letters permanently.
    Drop {
        /// The ones to drop.
        filter: LetterFilter,
        /// Most dead letters to drop, 1 to [`MOST_OF_A_WALK`].
        limit: usize,
    },
}

/// How a call relates to the calls before and after it. The dead letters that a walk has read return to the
/// queue when the walk ends; until then no other reader sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LetterWalk {
    /// Starts at the head of the queue and ends with the call.
    #[default]
    Once,
    /// Starts at the head of the queue; the next call may continue.
    First,
    /// Continues at the cursor that an earlier call returned.
    Next(WalkCursor),
}

/// Names a walk between two calls. Each walk has its own cursor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct WalkCursor(Box<str>);

impl WalkCursor {
    /// The cursor with this number.
    pub fn of(number: u64) -> WalkCursor {
        WalkCursor(format!("{number:016x}").into())
    }

    /// Reads a cursor; `None` for any other text.
    pub fn parse(text: &str) -> Option<WalkCursor> {
        u64::from_str_radix(text, 16).ok().map(WalkCursor::of).filter(|cursor| *cursor.0 == *text)
    }

    /// The cursor as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One call: what it does, and where it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterTask {
    /// What the call does.
    pub job: LetterJob,
    /// Where the walk starts, and whether a later call continues it.
    pub walk: LetterWalk,
}

impl LetterJob {
    /// Whether the answer contains payloads.
    pub fn is_whole(&self) -> bool {
        matches!(self, LetterJob::List { whole: true, .. })
    }

    /// Whether the report contains all that was asked for, even if the queue holds more.
    pub fn is_satisfied(&self, report: &LetterReport) -> bool {
        match self {
            LetterJob::Count => false,
            LetterJob::List { limit, .. } => report.letters.len() >= *limit,
            LetterJob::Retry { limit, .. } | LetterJob::Drop { limit, .. } => report.count >= *limit,
        }
    }

    /// The action's name in the log and its filter, if the action changes something.
    pub fn deed(&self) -> Option<(&'static str, &LetterFilter)> {
        match self {
            LetterJob::Count | LetterJob::List { .. } => None,
            LetterJob::Retry { filter, .. } => Some(("dead_retry", filter)),
            LetterJob::Drop { filter, .. } => Some(("dead_drop", filter)),
        }
    }
}

/// A dead letter in the queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Letter {
    /// The key that names it in commands.
    pub key: LetterKey,
    /// The reason as tidegate wrote it, or `broker:` and RabbitMQ's word for what RabbitMQ moved there.
    pub reason: Box<str>,
    /// The error sentence, if tidegate wrote one.
    pub error: Option<Box<str>>,
    /// The application; empty if it could not be read.
    pub application: Box<str>,
    /// Name of the customer.
    pub customer: Option<Box<str>>,
    /// Property `message_id` of the message.
    pub id: Option<Box<str>>,
    /// Failed attempts of the item.
    pub attempts: Option<u64>,
    /// When the item was due, UTC ms.
    pub due: Option<u64>,
    /// Media type of the body.
    pub content_type: Option<Box<str>>,
    /// Length of the body.
    pub bytes: usize,
    /// Properties, headers and body, if the call asked for them.
    #[serde(flatten)]
    pub whole: Option<WholeLetter>,
}

/// The parts of a dead letter that its summary leaves out.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WholeLetter {
    /// AMQP properties, except the headers.
    pub properties: Map<String, Value>,
    /// All headers, by name.
    pub headers: Value,
    /// The body, if it is UTF-8 and not longer as a JSON string than as base64: 7 MiB of control characters
    /// would be 42 MiB of JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The body in padded standard base64, if it is not UTF-8 or base64 is shorter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    /// The body is longer than [`MOST_SHOWN_BODY`] and is left out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub body_left_out: bool,
}

/// The dead letters of one reason and application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LetterGroup {
    /// As in [`Letter::reason`].
    pub reason: Box<str>,
    /// As in [`Letter::application`].
    pub application: Box<str>,
    /// Number of dead letters found.
    pub count: usize,
}

/// The result of a call.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LetterReport {
    /// Ready messages in the queue when the walk began, of any kind.
    pub depth: usize,
    /// Number of them that the walk has read so far.
    pub looked_at: usize,
    /// Dead letters sent back, dropped or counted.
    pub count: usize,
    /// Selected dead letters that stay in the queue, because they cannot be given a new time.
    pub kept: usize,
    /// The walk has not read some dead letters, or the list has no room for them.
    pub more: bool,
    /// The cursor for the next call; `None` if the call returned all that was asked for, or the queue has no
    /// more.
    pub cursor: Option<WalkCursor>,
    /// Why the call stopped early, if it did. The report covers the completed part.
    pub stopped: Option<String>,
    /// The dead letters of a list.
    pub letters: Vec<Letter>,
    /// The groups of a count, by reason, then application.
    pub groups: Vec<LetterGroup>,
}

/// Why a call did nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LetterTrouble {
    /// The state of the queue or the request rules it out; trying again does not help.
    #[error("{0}")]
    Refused(String),
    /// Not possible at present; trying again may help.
    #[error("{0}")]
    Unavailable(String),
}
