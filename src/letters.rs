//! What lies in the queue of dead letters, and what can be done with it, in the words that the admin port,
//! the command line and the AMQP side share; pure.

use serde::Serialize;
use serde_json::{Map, Value};

/// Most letters that one call looks at. Each is held until the walk ends, and then goes back. Few enough for
/// a slow broker: taking one costs milliseconds in a quorum queue.
pub const MOST_LOOKED_AT: usize = 2_000;
/// Most letters that one call sends back or drops.
pub const MOST_OF_A_CALL: usize = 1_000;
/// Most letters that may be asked for, over all calls of a walk.
pub const MOST_OF_A_WALK: usize = 10_000_000;
/// Largest body, bytes, that an answer shows: in base64 it still fits into what clients read.
pub const MOST_SHOWN_BODY: usize = 8 << 20;
/// Bytes of letters, as JSON, with which a list is full; the first letter always fits.
pub const FULL_PAGE: usize = 1 << 20;
/// Longest sentence and name that a summary shows, bytes; what is longer is cut, and ends in `…`.
pub const MOST_SHOWN_TEXT: usize = 1_024;
/// Digits of a [`LetterKey`].
pub const KEY_LENGTH: usize = 32;

/// Names a letter by what it holds: the beginning of a hash over its body, properties and headers. Two that
/// are alike in all of it have one key, and are as good as each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct LetterKey(Box<str>);

impl LetterKey {
    /// Reads a key; `None`: it has not [`KEY_LENGTH`] hexadecimal digits in lower case.
    pub fn parse(text: &str) -> Option<LetterKey> {
        let digits = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        (digits && text.len() == KEY_LENGTH).then(|| LetterKey(text.into()))
    }

    /// The key that begins the digits of a longer hash.
    pub fn of(digits: &str) -> LetterKey {
        LetterKey(digits.chars().take(KEY_LENGTH).collect())
    }

    /// The key as its digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Which letters; what is left out holds for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetterFilter {
    /// Why it is there, exactly.
    pub reason: Option<Box<str>>,
    /// Name of its application, exactly; empty: those whose application could not be read.
    pub application: Option<Box<str>>,
    /// This one alone.
    pub key: Option<LetterKey>,
}

impl LetterFilter {
    /// Whether a letter is meant.
    pub fn takes(&self, letter: &Letter) -> bool {
        self.reason.as_deref().is_none_or(|reason| *reason == *letter.reason)
            && self.application.as_deref().is_none_or(|name| *name == *letter.application)
            && self.key.as_ref().is_none_or(|key| *key == letter.key)
    }
}

/// When a letter that is sent back shall be due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NewTime {
    /// As a request that comes without a time: at once, or with its customer's window.
    #[default]
    Now,
    /// At this moment, UTC ms.
    At(u64),
    /// So many ms after it is sent back.
    After(u64),
}

/// How letters are sent back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryTerms {
    /// New due of the item.
    pub time: NewTime,
    /// New expiry, UTC ms; without one, an old one is kept where the item can still meet it.
    pub deliver_before: Option<u64>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LetterJob {
    /// How many there are, by reason and application.
    Count,
    /// Shows them, in one walk: a quorum queue does not keep the order of what is given back.
    List {
        /// Those that are wanted.
        filter: LetterFilter,
        /// Most of them, 1 to [`MOST_OF_A_WALK`].
        limit: usize,
        /// With headers and body.
        whole: bool,
    },
    /// Publishes them to the ingest exchange, and takes each away once it is confirmed there.
    Retry {
        /// Those that are wanted.
        filter: LetterFilter,
        /// Most letters, 1 to [`MOST_OF_A_WALK`].
        limit: usize,
        /// As what they are sent.
        terms: RetryTerms,
    },
    /// Takes them away for good.
    Drop {
        /// Those that are wanted.
        filter: LetterFilter,
        /// Most letters, 1 to [`MOST_OF_A_WALK`].
        limit: usize,
    },
}

/// How a look stands to those before it and behind it. Letters that were looked at go back when the walk
/// along their queue ends; until then nobody else sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LetterWalk {
    /// From the head of the queue, and over with the call.
    #[default]
    Once,
    /// From the head of the queue, and the next call may go on.
    First,
    /// Goes on where the call ended that told this cursor.
    Next(WalkCursor),
}

/// Names a walk between two calls. No other has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct WalkCursor(Box<str>);

impl WalkCursor {
    /// The cursor of this number.
    pub fn of(number: u64) -> WalkCursor {
        WalkCursor(format!("{number:016x}").into())
    }

    /// Reads a cursor; `None`: it is none.
    pub fn parse(text: &str) -> Option<WalkCursor> {
        u64::from_str_radix(text, 16).ok().map(WalkCursor::of).filter(|cursor| *cursor.0 == *text)
    }

    /// The cursor as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What is asked for in one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterTask {
    /// What is to be done.
    pub job: LetterJob,
    /// From where on, and whether it goes on.
    pub walk: LetterWalk,
}

impl LetterJob {
    /// It shows payloads.
    pub fn is_whole(&self) -> bool {
        matches!(self, LetterJob::List { whole: true, .. })
    }

    /// What was asked for is there, whatever else is in the queue.
    pub fn is_satisfied(&self, report: &LetterReport) -> bool {
        match self {
            LetterJob::Count => false,
            LetterJob::List { limit, .. } => report.letters.len() >= *limit,
            LetterJob::Retry { limit, .. } | LetterJob::Drop { limit, .. } => report.count >= *limit,
        }
    }

    /// Name in the log, and the filter, of one that changes something.
    pub fn deed(&self) -> Option<(&'static str, &LetterFilter)> {
        match self {
            LetterJob::Count | LetterJob::List { .. } => None,
            LetterJob::Retry { filter, .. } => Some(("dead_retry", filter)),
            LetterJob::Drop { filter, .. } => Some(("dead_drop", filter)),
        }
    }
}

/// A letter as it lies in the queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Letter {
    /// Its name in commands.
    pub key: LetterKey,
    /// As tidegate put it; `broker:` and RabbitMQ's word for what RabbitMQ moved there.
    pub reason: Box<str>,
    /// The sentence, where tidegate wrote one.
    pub error: Option<Box<str>>,
    /// Empty: it could not be read.
    pub application: Box<str>,
    /// Name of the customer.
    pub customer: Option<Box<str>>,
    /// `message_id` of the letter.
    pub id: Option<Box<str>>,
    /// Failed attempts of the item.
    pub attempts: Option<u64>,
    /// When the item was due, UTC ms.
    pub due: Option<u64>,
    /// Media type of the body.
    pub content_type: Option<Box<str>>,
    /// Length of the body.
    pub bytes: usize,
    /// The rest of it, where that was asked for.
    #[serde(flatten)]
    pub whole: Option<WholeLetter>,
}

/// What a letter holds beside its summary.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WholeLetter {
    /// AMQP properties, but headers.
    pub properties: Map<String, Value>,
    /// All headers, by name.
    pub headers: Value,
    /// The body, where it is UTF-8 and as JSON no longer than in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The body in padded standard base64, where it is not, or where that is shorter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    /// It is longer than [`MOST_SHOWN_BODY`], and left out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub body_left_out: bool,
}

/// Letters of one reason and application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LetterGroup {
    /// As in [`Letter::reason`].
    pub reason: Box<str>,
    /// As in [`Letter::application`].
    pub application: Box<str>,
    /// Number of letters seen of it.
    pub count: usize,
}

/// What became of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LetterReport {
    /// Ready letters in the queue when the walk along it began, whatever they are.
    pub depth: usize,
    /// How many of them the walk has looked at so far.
    pub looked_at: usize,
    /// Letters sent back or dropped; of a count, those counted.
    pub count: usize,
    /// Letters that were meant and stay, because a new time cannot be given to them.
    pub kept: usize,
    /// There are letters that were not looked at, or are not in the list for want of room.
    pub more: bool,
    /// With this the next call goes on; there is none where what was asked for is there, or nothing is left.
    pub cursor: Option<WalkCursor>,
    /// Why it ended before its end, if it did. What is told of was done.
    pub stopped: Option<String>,
    /// Those of a list.
    pub letters: Vec<Letter>,
    /// Those of a count, by reason, then application.
    pub groups: Vec<LetterGroup>,
}

/// Why nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LetterTrouble {
    /// Not as things stand; trying again does not help.
    #[error("{0}")]
    Refused(String),
    /// Not at present: trying again may help.
    #[error("{0}")]
    Unavailable(String),
}
