//! The report of the engine's state: plain numbers, copied at one moment.
//!
//! The engine fills in these structs, and they are the JSON of `/api/v1/state`: there is one set of names.
//! The names are stable: keys may be added, none is renamed or changes its meaning. The last part of a
//! number's name is its unit (`_ms`, `_us`, `_bytes`); names ending in `_at` are moments, UTC milliseconds; a
//! name without a unit is a count. Reading is tolerant: missing keys have their defaults, unknown keys are
//! ignored.

use crate::{ClosedBy, DuplicateRule, Reason};
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Totals since the start of the process. Each item counted in `accepted` or `rejected` ends in exactly one
/// of `confirmed`, `dead_confirmed`, `cancelled`, `replaced` and `given_back`, or has not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Ingest messages read.
    pub received: u64,
    /// Of these, those marked as redelivered.
    pub redelivered: u64,
    /// Items accepted (array entries counted one by one).
    pub accepted: u64,
    /// Requests that were not understood, and items that could not be accepted: dead letters from the start.
    pub rejected: u64,
    /// Items cancelled by a command.
    pub cancelled: u64,
    /// Items replaced by a later request with the same id.
    pub replaced: u64,
    /// Items and dead requests forgotten because the broker redelivers them: their only copy was a message
    /// that was unacked when the ingest connection was lost.
    pub given_back: u64,
    /// Requests whose id was known, in the order of [`DuplicateRule`]'s declaration.
    #[serde(with = "by_rule")]
    pub duplicates: [Duplicates; RULES.len()],
    /// Dropped requests that a consumer or a queue had sent back, and that are no other try by the rules.
    pub tries_dropped: u64,
    /// Items that their consumers have sent back and that were accepted again.
    pub tries_taken: u64,
    /// Items confirmed at the output exchange.
    pub confirmed: u64,
    /// Batches confirmed at the output exchange.
    pub batches_confirmed: u64,
    /// Batches handed to the publisher, repeats included.
    pub batches_published: u64,
    /// Publishes that were returned as unroutable.
    pub returned: u64,
    /// Publishes that were nacked.
    pub nacked: u64,
    /// Publishes that the broker refused by closing the channel.
    pub refused: u64,
    /// Publishes whose outcome stayed unknown; they are sent again.
    pub unknown: u64,
    /// Dead items and requests by reason, in the order of [`Reason::ALL`], counted when judged.
    #[serde(with = "by_reason")]
    pub dead: [u64; Reason::ALL.len()],
    /// Dead letters confirmed at the dead exchange.
    pub dead_confirmed: u64,
    /// Windows closed, by cause in the order of [`ClosedBy`]'s declaration.
    #[serde(with = "by_cause")]
    pub windows_closed: [u64; CAUSES.len()],
    /// Batches that contained only a part of their window, since memory had no room for the rest.
    pub windows_in_parts: u64,
    /// Customers whose rate was forgotten before it allowed their next items, since memory had no room for
    /// what so many owed: these may leave sooner.
    pub rates_forgotten: u64,
    /// Commits that became durable.
    pub commits: u64,
    /// Wall-clock steps noticed, forward.
    pub clock_forward: u64,
    /// Wall-clock steps noticed, backward.
    pub clock_backward: u64,
}

impl Counters {
    /// An item was replaced by a later request of its id, by this rule.
    pub fn count_replaced(&mut self, rule: DuplicateRule) {
        self.replaced += 1;
        self.duplicates[rule as usize].replaced += 1;
    }
}

/// Results of one duplicate rule for requests whose id was known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Duplicates {
    /// Dropped; the known item stays.
    pub dropped: u64,
    /// Replaced the known item.
    pub replaced: u64,
    /// Accepted as new; the known item had ended.
    pub accepted: u64,
    /// Dead, reason `duplicate`.
    pub dead: u64,
}

/// State of delivery to an application; in JSON the key `state` of the application, with these fields beside
/// it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Deliverability {
    /// Healthy: a batch was confirmed lately.
    Open,
    /// A delivery failed; one probe is sent after a back-off.
    Parked {
        /// Milliseconds until the next try.
        next_try_in_ms: u64,
        /// Failed probes in a row.
        failures: u32,
        /// Text of the last failure.
        last_error: String,
    },
    /// No batch was confirmed yet, or lately: one batch at a time until one is. An unknown state is read as
    /// this one.
    #[default]
    #[serde(other)]
    Unproven,
}

/// One application that has items or other state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Application {
    /// Name, which is the routing key; empty for the dead exchange.
    pub name: String,
    /// State of its delivery.
    #[serde(flatten)]
    pub delivery: Deliverability,
    /// Items that have not ended, in memory or not.
    #[serde(default)]
    pub total: u64,
    /// Paused by an operator.
    #[serde(default)]
    pub paused: bool,
    /// When the pause ends without a command, UTC ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_until: Option<u64>,
    /// Number of its paused customers.
    #[serde(default)]
    pub paused_customers: u64,
    /// Rate of its items, such as `100/s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// When the rate ends, if a command has set it for a time, UTC ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_until: Option<u64>,
    /// Due items in memory that its rate holds back; the other numbers include them. More may be in the
    /// store.
    #[serde(default)]
    pub held: u64,
    /// When the next of them leaves, UTC ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_until: Option<u64>,
    /// Items that are neither due in memory, in flight nor parked, those in the store only included.
    #[serde(default)]
    pub waiting: u64,
    /// Items that are due and wait for a free slot.
    #[serde(default)]
    pub due: u64,
    /// Items published and not settled.
    #[serde(default)]
    pub in_flight: u64,
    /// Number of items parked.
    #[serde(default)]
    pub parked: u64,
    /// Number of open windows.
    #[serde(default)]
    pub windows: u64,
    /// Items confirmed since the application became active; the count restarts after it had no items.
    #[serde(default)]
    pub confirmed: u64,
    /// Earliest due of its items that are due and not confirmed, UTC ms; parked and paused ones count here.
    #[serde(default)]
    pub oldest_due_at: Option<u64>,
}

/// The details of a parked application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parked<'a> {
    /// Time until the next attempt, ms.
    pub next_try_in_ms: u64,
    /// Failed probes in a row.
    pub failures: u32,
    /// Text of the last failure.
    pub last_error: &'a str,
}

impl Application {
    /// The value of its state in the document.
    pub fn state(&self) -> &'static str {
        match self.delivery {
            Deliverability::Unproven => "unproven",
            Deliverability::Open => "open",
            Deliverability::Parked { .. } => "parked",
        }
    }

    /// The details, if it cannot be delivered to at present.
    pub fn parked_since(&self) -> Option<Parked<'_>> {
        match &self.delivery {
            Deliverability::Unproven | Deliverability::Open => None,
            Deliverability::Parked { next_try_in_ms, failures, last_error } => {
                Some(Parked { next_try_in_ms: *next_try_in_ms, failures: *failures, last_error })
            }
        }
    }
}

/// Items at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ItemCounts {
    /// Items that are not parked, those in flight included.
    pub waiting: u64,
    /// Of these, those in memory.
    pub in_memory: u64,
    /// Items that are due and not yet published.
    pub due: u64,
    /// Items published and not settled.
    pub in_flight: u64,
    /// Items of applications that cannot be delivered to at present.
    pub parked: u64,
    /// Number of open windows.
    pub windows: u64,
    /// Earliest due of the items that wait in memory, UTC ms.
    pub next_due_at: Option<u64>,
    /// Earliest due of the items that are due, not confirmed, and may leave, UTC ms: the dead exchange and
    /// applications that are parked, paused or held back by their rate do not count.
    pub oldest_due_at: Option<u64>,
    /// All items below this due are in memory, UTC ms.
    pub loaded_until_at: u64,
    /// Bytes of payloads in memory.
    pub payload_bytes: u64,
}

/// The whole state at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// Numbers of items by state.
    pub items: ItemCounts,
    /// Number of unconfirmed batches.
    pub in_flight_batches: u64,
    /// The intake is paused.
    pub intake_paused: bool,
    /// Commits that are not durable yet, with the one in the making.
    pub uncommitted: u64,
    /// Longest turn of the daemon's loop since its start, us. The daemon fills it in, as the engine reads no
    /// clock.
    pub longest_turn_us: u64,
    /// Totals since the start.
    pub totals: Counters,
    /// By application, in order of name; at most [`Snapshot::MAX_APPLICATIONS`].
    pub applications: Vec<Application>,
    /// Number of applications, those left out of [`Snapshot::applications`] included.
    pub applications_total: u64,
    /// The dead exchange, as a destination; `None` while it has no items.
    pub dead_letters: Option<Application>,
}

impl Snapshot {
    /// Bound of [`Snapshot::applications`], so that hostile producers cannot inflate an answer with names.
    pub const MAX_APPLICATIONS: usize = 1_000;
}

/// In the order of their declaration, which is that of [`Counters::windows_closed`].
const CAUSES: [ClosedBy; 6] =
    [ClosedBy::Time, ClosedBy::Count, ClosedBy::Bytes, ClosedBy::Quiet, ClosedBy::Flush, ClosedBy::Expiry];

/// In the order of their declaration, which is that of [`Counters::duplicates`].
const RULES: [DuplicateRule; 5] = [
    DuplicateRule::Keep,
    DuplicateRule::Replace,
    DuplicateRule::Earliest,
    DuplicateRule::Latest,
    DuplicateRule::Reject,
];

/// Serializes an array with one value per variant of an enum as a JSON object by the variants' texts, with
/// every key.
macro_rules! object_by {
    ($module:ident, $all:expr, $kind:ty, $value:ty) => {
        mod $module {
            use super::*;
            use alloc::collections::BTreeMap;
            use serde::{Deserializer, Serializer};

            const LEN: usize = $all.len();

            pub(super) fn serialize<S: Serializer>(values: &[$value; LEN], to: S) -> Result<S::Ok, S::Error> {
                to.collect_map($all.into_iter().map(<$kind>::as_str).zip(values))
            }

            pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[$value; LEN], D::Error> {
                let values = BTreeMap::<String, $value>::deserialize(from)?;
                Ok($all.map(|kind| values.get(kind.as_str()).copied().unwrap_or_default()))
            }
        }
    };
}

object_by!(by_reason, Reason::ALL, Reason, u64);
object_by!(by_cause, CAUSES, ClosedBy, u64);
object_by!(by_rule, RULES, DuplicateRule, Duplicates);
