//! What the engine reports about itself: plain numbers, copied out at one moment.
//!
//! These structs are the JSON of `/api/v1/state` as well as what the engine fills in: one set of names. The
//! names are stable: keys may be added, none is renamed or changes its meaning. A number carries its unit as
//! the last part of its name (`_ms`, `_us`, `_bytes`); names ending in `_at` are moments, UTC milliseconds;
//! what has no unit is a count. Reading forgives: what is left out is its default, what is unknown is passed
//! over.

use super::types::{ClosedBy, DuplicateRule, Reason};
use serde::{Deserialize, Serialize};

/// Totals since the start of the process. What is `accepted` or `rejected` ends in exactly one of
/// `confirmed`, `dead_confirmed`, `cancelled`, `replaced` and `given_back`, or is still there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Ingest messages read.
    pub received: u64,
    /// Of these, marked redelivered.
    pub redelivered: u64,
    /// Items accepted (array entries counted one by one).
    pub accepted: u64,
    /// Requests that were not understood, and items that could not be accepted: dead letters from the start.
    pub rejected: u64,
    /// Items cancelled by a command.
    pub cancelled: u64,
    /// Items replaced by a later request with the same id.
    pub replaced: u64,
    /// Items and dead requests forgotten because the broker delivers them again: their only copy was a
    /// message that was not acked when the ingest connection was lost.
    pub given_back: u64,
    /// Requests whose id was known, in the order of [`DuplicateRule`]'s declaration.
    #[serde(with = "by_rule")]
    pub duplicates: [Duplicates; RULES.len()],
    /// Of those dropped: sent back by their consumer or by a queue, and no other try by the rules.
    pub tries_dropped: u64,
    /// Items that their consumers have sent back, and that are delivered again.
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
    /// Publishes that were refused: the channel was closed over them.
    pub refused: u64,
    /// Publishes whose outcome stayed unknown: sent again.
    pub unknown: u64,
    /// Dead items and requests by reason, in the order of [`Reason::ALL`], counted when judged.
    #[serde(with = "by_reason")]
    pub dead: [u64; Reason::ALL.len()],
    /// Dead letters confirmed at the dead exchange.
    pub dead_confirmed: u64,
    /// Windows closed, by cause in the order of [`ClosedBy`]'s declaration.
    #[serde(with = "by_cause")]
    pub windows_closed: [u64; CAUSES.len()],
    /// Batches that left a part of their window behind: memory had no room for the rest.
    pub windows_in_parts: u64,
    /// Commits that became durable.
    pub commits: u64,
    /// Wall-clock steps noticed, forward.
    pub clock_forward: u64,
    /// Wall-clock steps noticed, backward.
    pub clock_backward: u64,
}

impl Counters {
    /// An item was replaced by a later request of its id, by this rule.
    pub(in crate::engine) fn count_replaced(&mut self, rule: DuplicateRule) {
        self.replaced += 1;
        self.duplicates[rule as usize].replaced += 1;
    }
}

/// What one duplicate rule did to requests whose id was known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Duplicates {
    /// Dropped: the other one stays.
    pub dropped: u64,
    /// Replaced the other one.
    pub replaced: u64,
    /// Accepted as new: the other one had ended.
    pub accepted: u64,
    /// Dead, reason `duplicate`.
    pub dead: u64,
}

/// How deliverable an application is; in JSON the key `state` of its application, with the fields beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Deliverability {
    /// Healthy: a batch was confirmed lately.
    Open,
    /// It could not be delivered to; one probe when the time comes.
    Parked {
        /// Milliseconds until the next try.
        next_try_in_ms: u64,
        /// Failed probes in a row.
        failures: u32,
        /// Text of the last failure.
        last_error: String,
    },
    /// Nothing confirmed yet (or not lately): one batch at a time until it is. A word that this version does
    /// not know is read as this one.
    #[default]
    #[serde(other)]
    Unproven,
}

/// One application, as far as it has anything in memory or parked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Application {
    /// Name, which is the routing key; empty for the dead exchange.
    pub name: String,
    /// State of its delivery.
    #[serde(flatten)]
    pub delivery: Deliverability,
    /// Items that have not ended, wherever they are.
    #[serde(default)]
    pub total: u64,
    /// Held back by an operator's order.
    #[serde(default)]
    pub paused: bool,
    /// When that ends by itself, UTC ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_until: Option<u64>,
    /// Customers of it that are held back.
    #[serde(default)]
    pub paused_customers: u64,
    /// How fast its items leave, such as `100/s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// When that ends by itself, where a command has given it for a while, UTC ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_until: Option<u64>,
    /// Due items in memory that its rate holds back, counted among the others as well; more may lie in the
    /// store.
    #[serde(default)]
    pub held: u64,
    /// When the next of them leaves, UTC ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_until: Option<u64>,
    /// Items in memory that wait for their time.
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
    /// Items confirmed since it was taken up, which it is anew after nothing of it was left.
    #[serde(default)]
    pub confirmed: u64,
    /// Earliest due of its items that are due and not confirmed, UTC ms; parked and paused ones count here.
    #[serde(default)]
    pub oldest_due_at: Option<u64>,
}

/// Items at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ItemCounts {
    /// Items stored or held that are not parked; in flight included.
    pub waiting: u64,
    /// Of these, in memory.
    pub in_memory: u64,
    /// Items that are due and not yet published.
    pub due: u64,
    /// Items published and not settled.
    pub in_flight: u64,
    /// Items of applications that cannot be delivered to at present.
    pub parked: u64,
    /// Number of open windows.
    pub windows: u64,
    /// Earliest due of what waits in memory, UTC ms.
    pub next_due_at: Option<u64>,
    /// Earliest due of what is due, not confirmed, and may leave: the dead exchange and applications that are
    /// parked, paused or held back by their rate do not count. UTC ms.
    pub oldest_due_at: Option<u64>,
    /// Everything below this due is in memory, UTC ms.
    pub loaded_until_at: u64,
    /// Bytes of payloads in memory.
    pub payload_bytes: u64,
}

/// Everything at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// Numbers of items by stage.
    pub items: ItemCounts,
    /// Number of unconfirmed batches.
    pub in_flight_batches: u64,
    /// The intake is paused.
    pub intake_paused: bool,
    /// Store operations handed over and not yet durable.
    pub uncommitted: u64,
    /// Longest turn of the daemon's loop since its start, us. The engine reads no clock: the daemon fills it
    /// in.
    pub longest_turn_us: u64,
    /// Totals since the start.
    pub totals: Counters,
    /// By application, in order of name; at most [`Snapshot::MAX_APPLICATIONS`].
    pub applications: Vec<Application>,
    /// Applications there are, [`Snapshot::applications`] and those that found no room in it.
    pub applications_total: u64,
    /// The dead exchange, as a destination like any other; `None` while it has nothing to do.
    pub dead_letters: Option<Application>,
}

impl Snapshot {
    /// Bound on [`Snapshot::applications`], so that names from hostile producers cannot blow up an answer.
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

/// An array with one value for each variant of an enum, in JSON an object by the variants' texts; every key
/// is there.
macro_rules! object_by {
    ($module:ident, $all:expr, $kind:ty, $value:ty) => {
        mod $module {
            use super::*;
            use serde::{Deserializer, Serializer};
            use std::collections::BTreeMap;

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
