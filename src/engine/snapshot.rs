//! What the engine tells of itself: plain numbers, copied out at one moment.

use super::table::{App, Road};
use super::types::{Now, Reason};
use super::{Engine, Gate};

/// Totals since the start of the process. What is `accepted` or `rejected` ends in exactly one of `sent`,
/// `dead_sent`, `cancelled`, `replaced` and `given_back`, or is still there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Ingest messages read.
    pub requests: u64,
    /// Of these, marked redelivered.
    pub redelivered: u64,
    /// Items accepted (array entries counted one by one).
    pub accepted: u64,
    /// Requests that were not understood, and items that could not be taken: dead letters from the start.
    pub rejected: u64,
    /// Items confirmed at the output exchange.
    pub sent: u64,
    /// Batches confirmed at the output exchange.
    pub batches: u64,
    /// Dead items and requests by reason, in the order of [`Reason::ALL`], counted when judged.
    pub dead: [u64; Reason::ALL.len()],
    /// Dead letters confirmed at the dead exchange.
    pub dead_sent: u64,
    /// Batches handed to the publisher, repeats included.
    pub published: u64,
    /// Items and dead requests forgotten because the broker delivers them again: their only copy was a message
    /// that was not acked when the ingest connection was lost or paused.
    pub given_back: u64,
    /// Items taken back by a command.
    pub cancelled: u64,
    /// Items whose place a later request with the same id took.
    pub replaced: u64,
    /// Requests whose id was known, by rule in the order of [`super::types::DuplicateRule`] and by what became of them:
    /// dropped, replaced the old one, accepted as new, dead.
    pub duplicates: [[u64; 4]; 5],
    /// Publishes that were returned as unroutable.
    pub returned: u64,
    /// Publishes that were nacked.
    pub nacked: u64,
    /// Publishes that were refused: the channel was closed over them.
    pub refused: u64,
    /// Publishes whose outcome stayed unknown: sent again.
    pub unknown: u64,
    /// Windows closed, by cause in the order of [`super::types::ClosedBy`].
    pub closed: [u64; 6],
    /// Commits that became durable.
    pub commits: u64,
    /// Wall-clock steps noticed, forward.
    pub clock_forward: u64,
    /// Wall-clock steps noticed, backward.
    pub clock_backward: u64,
}

/// How deliverable an application is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Nothing confirmed yet (or not lately): one batch at a time until it is.
    Unproven,
    /// Confirmed lately.
    Open,
    /// It could not be delivered to; one probe when the time comes.
    Parked {
        /// Milliseconds until the next try.
        next_try_in: u64,
        /// Failed probes in a row.
        failures: u32,
        /// Text of the last failure.
        last_error: String,
    },
}

/// One application, as far as it has anything in memory or parked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Application {
    /// Name; empty for the dead exchange.
    pub name: String,
    /// Items in memory that wait for their time.
    pub waiting: u64,
    /// Items that are due and wait for a free slot.
    pub ready: u64,
    /// Items published and not settled.
    pub in_flight: u64,
    /// Items parked.
    pub parked: u64,
    /// Open windows.
    pub windows: u64,
    /// Items that have not ended, wherever they are.
    pub total: u64,
    /// Held back by somebody's order.
    pub paused: bool,
    /// Items confirmed since the start.
    pub sent: u64,
    /// State.
    pub delivery: Delivery,
}

/// Everything at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Items in the time index, in memory or in the store alone, in flight included.
    pub waiting: u64,
    /// Of these, in memory.
    pub in_memory: u64,
    /// Items in lanes.
    pub parked: u64,
    /// Open windows.
    pub windows: u64,
    /// Unconfirmed batches.
    pub in_flight_batches: u64,
    /// Items of these.
    pub in_flight_items: u64,
    /// Items that are due and not yet published.
    pub ready: u64,
    /// Earliest due of what waits in memory, UTC ms.
    pub next_due: Option<u64>,
    /// Everything below this due is in memory, UTC ms.
    pub loaded_until: u64,
    /// Bytes of payloads in memory.
    pub content_bytes: u64,
    /// Store operations handed over and not yet durable.
    pub uncommitted: u64,
    /// The intake is paused.
    pub paused: bool,
    /// Totals.
    pub counters: Counters,
    /// By application, in order of name; at most [`Snapshot::MAX_APPLICATIONS`].
    pub applications: Vec<Application>,
}

impl Snapshot {
    /// Bound on [`Snapshot::applications`], so that names from hostile producers cannot blow up an answer.
    pub const MAX_APPLICATIONS: usize = 1_000;
}

impl Engine {
    /// Totals since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The state at this moment. Costs time in the number of applications, not of items.
    pub fn snapshot(&self, now: Now) -> Snapshot {
        let mut applications: Vec<Application> =
            self.apps.ids().map(|id| self.application(&self.apps[id], now)).collect();
        applications.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let parked = applications.iter().map(|app| app.parked).sum();
        let in_flight_items = applications.iter().map(|app| app.in_flight).sum();
        applications.truncate(Snapshot::MAX_APPLICATIONS);
        Snapshot {
            waiting: if self.is_durable() { self.stored } else { self.rows.len() as u64 },
            in_memory: self.rows.len() as u64,
            parked,
            windows: self.open_windows,
            in_flight_batches: self.slots as u64,
            in_flight_items,
            ready: self.ready_rows,
            next_due: self.schedule.next(),
            loaded_until: self.cursor.until.due,
            content_bytes: self.content_bytes,
            uncommitted: self.token - self.committed,
            paused: self.gate != Gate::Open,
            counters: self.counters.clone(),
            applications,
        }
    }
}

impl Engine {
    fn application(&self, app: &App, now: Now) -> Application {
        let resend: u64 = app
            .resend
            .iter()
            .filter_map(|number| self.flights.get(number))
            .map(|flight| flight.rows.len() as u64)
            .sum();
        let delivery = match &app.road {
            Road::Unproven => Delivery::Unproven,
            Road::Open { .. } => Delivery::Open,
            Road::Parked { until, last_error } => Delivery::Parked {
                next_try_in: until.saturating_sub(now.mono),
                failures: app.failures,
                last_error: last_error.to_string(),
            },
            Road::Probing { last_error } => Delivery::Parked {
                next_try_in: 0,
                failures: app.failures,
                last_error: last_error.to_string(),
            },
        };
        let parked = match (&app.road, &app.lane) {
            // A paused application's items wait there too.
            (Road::Unproven | Road::Open { .. }, Some(_)) if app.paused => 0,
            (_, Some(lane)) => lane.count,
            // With nothing stored, what is ready behind the failed batch is what is parked.
            (Road::Parked { .. } | Road::Probing { .. }, None) => app.ready_rows + app.flying + resend,
            (Road::Unproven | Road::Open { .. }, None) => 0,
        };
        Application {
            name: app.name.to_string(),
            waiting: app.rows.saturating_sub(app.ready_rows + app.flying + resend),
            ready: app.ready_rows,
            in_flight: app.flying,
            parked,
            windows: app.windows,
            total: app.total,
            paused: app.paused,
            sent: app.sent,
            delivery,
        }
    }
}
