//! What the engine works by: the settings of applications, its share of memory.

use super::pace::{Bound, Rate};
use super::thresholds::Thresholds;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Body format of an application's batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// One JSON object with an array of items.
    #[default]
    Json,
    /// One JSON object a line.
    Ndjson,
    /// CloudEvents JSON batch.
    CloudEvents,
    /// Each item alone, as it came.
    Passthrough,
}

/// What happens when an application or the daemon is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// Stop consuming until there is room.
    #[default]
    Pause,
    /// Close windows sooner, then pause.
    FlushEarly,
    /// The item that waits longest is dead, reason `full`.
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
    /// Failed attempts before an item is given up; 0 = for ever.
    pub attempts: u32,
}

/// Settings of one application (`[defaults]` overlaid by `[applications.NAME]`). Times in ms, sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppSettings {
    /// Longest wait of a windowed item, from the first of its customer.
    pub window: u64,
    /// Close a window once nothing came for this time, ms; 0 = off.
    pub quiet: u64,
    /// Windows end at wall-clock multiples of `window`.
    pub align: bool,
    /// Round own times up to multiples of this; 0 = off.
    pub coalesce: u64,
    /// Most items of one batch, at least 1.
    pub max_items: u32,
    /// Most bytes of one encoded batch body; a single larger item still goes, alone.
    pub max_bytes: u64,
    /// Format of the message's body.
    pub format: Format,
    /// How long a sent id is remembered.
    pub dedupe_tail: u64,
    /// Back-off between attempts.
    pub retry: Retry,
    /// Policy at the limit.
    pub on_full: OnFull,
    /// Most waiting items; 0 = no limit of its own.
    pub max_waiting: u64,
    /// How fast items leave; `None` = as fast as they can.
    pub rate: Option<Rate>,
    /// Most items that leave at once under `rate`; 0 = those of a second.
    pub burst: u32,
    /// How fast the items of each customer leave; `None` = as fast as they can.
    pub customer_rate: Option<Rate>,
    /// Most items of a customer that leave at once under `customer_rate`; 0 = those of a second.
    pub customer_burst: u32,
}

impl AppSettings {
    /// At its limit the item that is due first is given up.
    pub fn drops_oldest(&self) -> bool {
        self.max_waiting > 0 && self.on_full == OnFull::DropOldest
    }

    /// How fast its items leave, and how many at once.
    pub(super) fn bound(&self) -> Option<Bound> {
        self.rate.map(|rate| Bound::new(rate, self.burst))
    }

    /// The same of each customer.
    pub(super) fn customer_bound(&self) -> Option<Bound> {
        self.customer_rate.map(|rate| Bound::new(rate, self.customer_burst))
    }

    /// Most items of one batch, and most bytes.
    pub(super) fn most_of_batch(&self) -> (usize, u64) {
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

/// What the engine may keep in memory, of what is durable. Beside it stands what is not: as much as the
/// broker hands out before an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Number of items.
    pub rows: usize,
    /// Bytes of payloads that may stay after their commit.
    pub contents: u64,
    /// Bytes of filters for ids of items that have ended.
    pub filters: usize,
}

/// Bytes that one item costs in the engine's tables and lists, measured from above.
const ROW_COST: u64 = 288;

impl Budget {
    /// How `limits.memory` (bytes) is divided: three sixteenths for items, as much for payloads, a quarter
    /// each for the store's buffers and the ingest prefetch, an eighth for what is published and not
    /// confirmed. The filters take of what the store leaves, a thirty-second at most.
    pub fn of(memory: u64) -> Self {
        let share = memory / 16 * 3;
        Budget { rows: (share / ROW_COST) as usize, contents: share, filters: (memory / 32) as usize }
    }
}

/// Everything the engine is told about how to work. Replaced whole by a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// For every application that has no table of its own.
    pub defaults: Arc<AppSettings>,
    /// By application name.
    pub applications: BTreeMap<String, Arc<AppSettings>>,
    /// `store.hold_max` in ms when nothing is stored (`kind = "memory"`); `None` with a durable store.
    pub hold_max: Option<u64>,
    /// How far ahead an item's time may be, ms.
    pub max_delay: u64,
    /// The engine's share of `limits.memory`.
    pub budget: Budget,
    /// Most open windows.
    pub customers: u64,
    /// Most applications with something waiting; a request for one more is dead, reason `full`.
    pub max_applications: u64,
    /// Most unconfirmed batches.
    pub max_in_flight: usize,
    /// Most bytes of unconfirmed batches.
    pub max_in_flight_bytes: u64,
    /// How much one call does, and the like.
    pub thresholds: Thresholds,
}

impl Settings {
    /// The longest time for which any application remembers sent ids, ms.
    pub fn longest_tail(&self) -> u64 {
        let all = std::iter::once(&self.defaults).chain(self.applications.values());
        all.map(|app| app.dedupe_tail).max().unwrap_or(0)
    }

    /// The settings of one application.
    pub fn of(&self, application: &str) -> &Arc<AppSettings> {
        self.applications.get(application).unwrap_or(&self.defaults)
    }
}
