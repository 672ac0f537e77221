//! The engine's settings: those of applications, and its share of memory.

use super::thresholds::Thresholds;
use crate::rate::{Bound, Rate};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;

/// Body format of an application's batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// One JSON object with an array of items.
    #[default]
    Json,
    /// One JSON object per line.
    Ndjson,
    /// CloudEvents JSON batch.
    CloudEvents,
    /// Each item alone, as received.
    Passthrough,
}

/// The policy when an application or the daemon is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// Stop consuming until there is room.
    #[default]
    Pause,
    /// Close windows early, then pause.
    FlushEarly,
    /// The item that is due first is dead, reason `full`.
    DropOldest,
    /// The new item is dead, reason `full`.
    DropNewest,
}

/// Back-off after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// First pause, ms.
    pub min: u64,
    /// Longest pause, ms.
    pub max: u64,
    /// Failed attempts before an item is dead-lettered; 0 = no limit.
    pub attempts: u32,
}

impl Retry {
    /// Whether an item with this many failed attempts has none left.
    pub fn is_used_up(&self, attempts: u32) -> bool {
        self.attempts > 0 && attempts >= self.attempts
    }
}

/// Settings of one application (`[defaults]` overlaid by `[applications.NAME]`). Times in ms, sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppSettings {
    /// Longest wait of a windowed item, from the first of its customer.
    pub window: u64,
    /// Close a window after this time without a new item, ms; 0 = off.
    pub quiet: u64,
    /// Windows end at wall-clock multiples of `window`.
    pub align: bool,
    /// Round own times up to multiples of this; 0 = off.
    pub coalesce: u64,
    /// Maximum number of items in one batch, at least 1.
    pub max_items: u32,
    /// Maximum bytes of one encoded batch body; a single larger item is sent alone.
    pub max_bytes: u64,
    /// Format of the message body.
    pub format: Format,
    /// How long a sent id is remembered.
    pub dedupe_tail: u64,
    /// Back-off between attempts.
    pub retry: Retry,
    /// Policy when `max_waiting` is reached.
    pub on_full: OnFull,
    /// Maximum number of waiting items; 0 = no limit.
    pub max_waiting: u64,
    /// Rate of its items; `None` = no limit.
    pub rate: Option<Rate>,
    /// Maximum number of items that leave at once under `rate`; 0 = those of one second.
    pub burst: u32,
    /// Rate of the items of each customer; `None` = no limit.
    pub customer_rate: Option<Rate>,
    /// Maximum number of items of a customer that leave at once under `customer_rate`; 0 = those of one
    /// second.
    pub customer_burst: u32,
}

impl AppSettings {
    /// Whether at its limit the item that is due first is dead-lettered.
    pub fn drops_oldest(&self) -> bool {
        self.max_waiting > 0 && self.on_full == OnFull::DropOldest
    }

    /// Rate and burst of its items.
    pub fn bound(&self) -> Option<Bound> {
        self.rate.map(|rate| Bound::new(rate, self.burst))
    }

    /// Rate and burst of the items of each customer.
    pub fn customer_bound(&self) -> Option<Bound> {
        self.customer_rate.map(|rate| Bound::new(rate, self.customer_burst))
    }

    /// Maximum number of items and of bytes in one batch.
    pub fn most_of_batch(&self) -> (usize, u64) {
        match self.format {
            Format::Passthrough => (1, u64::MAX),
            Format::Json | Format::Ndjson | Format::CloudEvents => (self.max_items as usize, self.max_bytes),
        }
    }
}

impl Default for AppSettings {
    /// The contract's `[defaults]`.
    fn default() -> Self {
        AppSettings {
            window: 3_000,
            quiet: 0,
            align: false,
            coalesce: 0,
            max_items: 1_000,
            max_bytes: 1 << 20,
            format: Format::Json,
            dedupe_tail: 600_000,
            retry: Retry { min: 1_000, max: 300_000, attempts: 0 },
            on_full: OnFull::Pause,
            max_waiting: 0,
            rate: None,
            burst: 0,
            customer_rate: None,
            customer_burst: 0,
        }
    }
}

/// Limits on the durable items that the engine keeps in memory. Items that are not durable come in addition;
/// the ingest prefetch bounds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Number of items.
    pub rows: usize,
    /// Bytes of payloads that may stay after their commit.
    pub contents: u64,
    /// Bytes of filters for ids of items that have ended.
    pub filters: usize,
}

/// Bytes that one item costs in the engine's tables and lists; a measured upper bound.
const ROW_COST: u64 = 288;

impl Budget {
    /// Divides `limits.memory` (bytes): three sixteenths for items, as much for payloads, a quarter each for
    /// the store's buffers and the ingest prefetch, an eighth for unconfirmed batches. The filters use what
    /// the store leaves, a thirty-second at most.
    pub fn of(memory: u64) -> Self {
        let share = memory / 16 * 3;
        Budget { rows: (share / ROW_COST) as usize, contents: share, filters: (memory / 32) as usize }
    }
}

/// All settings of the engine. A reload replaces them as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Settings of applications without a table of their own.
    pub defaults: Arc<AppSettings>,
    /// Settings of the other applications, by name.
    pub applications: BTreeMap<String, Arc<AppSettings>>,
    /// `store.hold_max` in ms if `store.kind` is `memory`; `None` with a durable store.
    pub hold_max: Option<u64>,
    /// How far ahead an item's time may be, ms.
    pub max_delay: u64,
    /// The engine's share of `limits.memory`.
    pub budget: Budget,
    /// Maximum number of open windows.
    pub customers: u64,
    /// Maximum number of applications with waiting items; a request for one more is dead, reason `full`.
    pub max_applications: u64,
    /// Maximum number of unconfirmed batches.
    pub max_in_flight: usize,
    /// Maximum bytes of unconfirmed batches.
    pub max_in_flight_bytes: u64,
    /// Bounds on the work of one call, and similar ones.
    pub thresholds: Thresholds,
}

impl Settings {
    /// The longest time for which any application remembers sent ids, ms.
    pub fn longest_tail(&self) -> u64 {
        let all = core::iter::once(&self.defaults).chain(self.applications.values());
        all.map(|app| app.dedupe_tail).max().unwrap_or(0)
    }

    /// The settings of one application.
    pub fn of(&self, application: &str) -> &Arc<AppSettings> {
        self.applications.get(application).unwrap_or(&self.defaults)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns: `retry.attempts`, the failed attempts of an item.
    /// Excluded: the limit ignored, or reached one attempt sooner or later; a limit of 0.
    /// Judges promise 6.
    #[test]
    fn when_the_attempts_of_an_item_are_used_up() {
        for (attempts, failed, expected) in [
            (3, 0, false),
            (3, 2, false),
            (3, 3, true),
            (3, 4, true),
            (1, 0, false),
            (1, 1, true),
            (0, 0, false),
            (0, u32::MAX, false),
        ] {
            let retry = Retry { min: 1_000, max: 300_000, attempts };
            assert_eq!(retry.is_used_up(failed), expected, "{failed} of {attempts}");
        }
    }
}
