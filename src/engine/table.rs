//! The rows of the engine's tables. Persistent facts come from [`super::event::Stored`]; what stands here besides
//! is volatile and made anew after a restart.

use super::event::{Place, Stored, Token};
use super::preload::Share;
use super::size::Overhead;
use super::types::{AppSettings, ClosedBy, Content, Dead, Format, Identity, Key};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;

/// Where an item in memory stands on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Waits for its own time, in the schedule.
    Scheduled,
    /// Member of its customer's open window. In the schedule too, so that memory can be given back in order of
    /// key; `pos` is its place in the window's list.
    Windowed { pos: u32, scheduled: bool },
    /// Due, and waiting for a free slot.
    Ready,
    /// Member of the flight with this number.
    Flying(u64),
}

/// One item in memory. The payload is apart, and may be in the store alone.
#[derive(Debug)]
pub(super) struct Row {
    /// Its place in the store's order; never changes.
    pub(super) key: Key,
    /// When it is really due: earlier than `key.due` where its window closed sooner.
    pub(super) due: u64,
    pub(super) received: u64,
    /// `u64::MAX` = none.
    pub(super) expiry: u64,
    /// By its producer's id, or by its arrival number.
    pub(super) identity: Identity,
    pub(super) app: u32,
    /// Its customer within the application, or [`super::slab::NIL`].
    pub(super) group: u32,
    pub(super) weight: u32,
    pub(super) attempts: u32,
    /// The commit its row went with; not needed where `stored` is false.
    pub(super) token: Token,
    pub(super) state: State,
    pub(super) closed_by: ClosedBy,
    pub(super) own_time: bool,
    /// It has a row in the store.
    pub(super) stored: bool,
    /// That row lies in its application's lane, not in the time index.
    pub(super) in_lane: bool,
    /// That row may have a row under its customer.
    pub(super) indexed: bool,
    /// That row may have a row under its identity.
    pub(super) named: bool,
    /// The outcome of an attempt stayed unknown: it may have been delivered.
    pub(super) unsure: bool,
    pub(super) content: Option<Arc<Content>>,
    /// Tag of the delivery to be acked, of the present generation, while that depends on this very item.
    pub(super) tag: Option<NonZeroU64>,
    pub(super) extra: Option<Box<Extra>>,
}

impl Row {
    /// Its only copy was an unacked message, which the broker delivers again.
    pub(super) fn is_lost(&self) -> bool {
        !self.stored && self.tag.is_none()
    }
}

/// What few items have.
#[derive(Clone, Debug, Default)]
pub(super) struct Extra {
    pub(super) last_error: Option<Arc<str>>,
    pub(super) dead: Option<Arc<Dead>>,
    /// Of a dead item: where it was going.
    pub(super) application: Option<Arc<str>>,
    pub(super) customer: Option<Arc<str>>,
    /// The identity that a dead item had which nothing stores.
    pub(super) was: Option<Identity>,
}

/// One customer of one application, as long as anything of theirs is in memory.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) app: u32,
    pub(super) customer: Arc<str>,
    pub(super) overhead: Overhead,
    pub(super) window: Option<Window>,
    /// A window that has closed, whose members are still coming from the store.
    pub(super) closing: Option<Closing>,
    /// Due items, in order of (due, seq) unless `unsorted`.
    pub(super) ready: VecDeque<u32>,
    pub(super) unsorted: bool,
    /// It stands in its application's queue, or is held back.
    pub(super) queued: bool,
    /// Older items of this customer are in the store alone: it waits for them, outside the queue.
    pub(super) held: bool,
    /// Rows in memory that name this group.
    pub(super) rows: u32,
}

#[derive(Debug)]
pub(super) struct Window {
    /// Monotonic end.
    pub(super) close: u64,
    /// The same moment on the wall clock, as planned when it opened: the due of its members.
    pub(super) end: u64,
    /// Key under which the group stands in the closing schedule.
    pub(super) check: Key,
    /// Monotonic moment of the last arrival.
    pub(super) last: u64,
    pub(super) count: u32,
    pub(super) weight: u64,
    /// Most urgent expiry, wall clock; `u64::MAX` = none.
    pub(super) expiry: u64,
    /// Members in memory, in no order.
    pub(super) members: Vec<u32>,
    /// Members in the store alone.
    pub(super) far: u32,
    /// It has a row of its own in the store.
    pub(super) long: bool,
    /// That row is out of date.
    pub(super) dirty: bool,
}

/// Members with a sequence up to `upto` left their window with this cause and due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closing {
    pub(super) upto: u64,
    pub(super) due: u64,
    pub(super) cause: ClosedBy,
    /// Another window closed while its members were being fetched.
    pub(super) again: bool,
    /// So fast do windows close that there is always one more to fetch: no waiting for the last.
    pub(super) late: bool,
    /// Members that are in the store alone.
    pub(super) far: usize,
    /// They are being fetched, and their place in memory is taken.
    pub(super) begun: bool,
}

/// What stands in an application's queue.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ready {
    Group(u32),
    Single(u32),
}

/// How deliverable an application is: the phase carries its data.
#[derive(Clone, Debug)]
pub(super) enum Road {
    /// Nothing confirmed lately: one batch at a time until something is.
    Unproven,
    /// Confirmed lately, at this monotonic moment.
    Open { proven: u64 },
    /// Could not be delivered to: the next probe goes at `until` (monotonic).
    Parked { until: u64, last_error: Arc<str> },
    /// The probe is on its way.
    Probing { last_error: Arc<str> },
}

/// Items of an application that wait in the store's lane.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    /// Items there, those also in memory included.
    pub(super) count: u64,
    /// No item of the lane lies below.
    pub(super) low: Key,
    /// Everything of the lane below is in memory (or gone).
    pub(super) next: Key,
    /// Of `count`, in memory.
    pub(super) in_memory: u64,
    /// A load of it is under way.
    pub(super) loading: Option<Share>,
    /// Lowest key parked while a load was under way.
    pub(super) behind: Option<Key>,
    pub(super) dirty: bool,
}

#[derive(Debug)]
pub(super) struct App {
    pub(super) name: Arc<str>,
    pub(super) settings: Arc<AppSettings>,
    /// Customers by name.
    pub(super) groups: HashMap<Arc<str>, u32>,
    pub(super) overhead: Overhead,
    /// Due work in order of arrival at this queue.
    pub(super) ready: VecDeque<Ready>,
    /// Items of `ready`.
    pub(super) ready_rows: u64,
    /// Flights to be sent again, oldest first; they go before anything new.
    pub(super) resend: VecDeque<u64>,
    /// Flights formed and waiting for payloads, in order; nothing overtakes them.
    pub(super) outbox: VecDeque<u64>,
    /// Flights that hold a publisher slot.
    pub(super) slots: usize,
    /// Items of these.
    pub(super) flying: u64,
    /// Flights suspected of having closed a channel, of this application.
    pub(super) suspects: usize,
    pub(super) road: Road,
    /// Most flights at a time: 1 after a failure or a long rest, doubled by each confirm.
    pub(super) allowance: usize,
    /// Failed probes in a row.
    pub(super) failures: u32,
    pub(super) lane: Option<Lane>,
    /// Items of the lane that the clock's going back made early: nothing more is fetched before they are due.
    pub(super) early: u64,
    /// Held back by somebody's order: nothing is sent.
    pub(super) paused: bool,
    /// Ready rows are on their way into the lane.
    pub(super) parking: bool,
    /// It stands in the engine's run queue.
    pub(super) queued: bool,
    /// Rows in memory that name it, and open windows.
    pub(super) rows: u64,
    pub(super) windows: u64,
    /// Items of it that have not ended, wherever they are; of these, without a row in the store; and the number that
    /// the store's row of it says.
    pub(super) total: u64,
    pub(super) unstored: u64,
    pub(super) counted: u64,
    pub(super) count_dirty: bool,
    /// Items in memory by sequence; only where the oldest may be dropped.
    pub(super) by_age: BTreeMap<u64, u32>,
    /// The oldest of those in the store alone, where they have been looked for.
    pub(super) oldest: Option<Oldest>,
    pub(super) sent: u64,
}

/// The oldest items of an application that are in the store alone, by sequence.
#[derive(Debug, Default)]
pub(super) struct Oldest {
    pub(super) rows: BTreeMap<u64, (Place, Stored)>,
    /// All that arrived before are there; `None` while they are being looked for.
    pub(super) upto: Option<u64>,
    /// Something has gone to the store alone since they were looked for.
    pub(super) grown: bool,
}

/// A batch from the moment it is formed until it is settled for good.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) app: u32,
    /// In order of (due, seq). Never empty.
    pub(super) rows: Vec<u32>,
    /// Payload bytes, against the publisher's bound.
    pub(super) bytes: u64,
    /// Fixed when it is formed: a repeat is the same message, whatever the settings have become meanwhile.
    pub(super) format: Format,
    /// Publishes so far.
    pub(super) publishes: u32,
    pub(super) phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Formed; so many payloads are still to come from the store. Holds a slot.
    Gathering { missing: u32 },
    /// With the publisher. Holds a slot.
    Out { probe: bool },
    /// To be sent again.
    Waiting,
    /// To be sent again alone, on the probe channel.
    Suspect,
}
