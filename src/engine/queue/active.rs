//! State of a queue that exists only while the queue is active. Each part of the engine changes its own
//! fields through the methods here.

use super::flights::QueueFlights;
use super::later::Later;
use super::ready::ReadyQueue;
use super::resident::Resident;
use super::Loading;
use crate::health::Health;
use crate::ids::{CustomerId, ItemId, QueueId};
use crate::lookup::{NameKeys, NameMap};
use crate::pace::Pace;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use tidegate_types::rate::Bound;
use tidegate_types::{AppSettings, Key};

/// A condition of an active queue; several may hold at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// A probe has been in flight for longer than a healthy queue takes.
    SlowProbe,
    /// Due rows are leaving memory.
    Evicting,
    /// The queue has more items than allowed, and the first of them have to be read before they can be given
    /// up.
    Trimming,
    /// Its first items have expired, and the store makes dead letters of others before.
    Moving,
    /// It is in the run queue.
    Running,
    /// Since it last had nothing to send and nothing in flight, a large item of it was not confirmed before
    /// it had to be written. Does not keep it active, and so is the last.
    Lagging,
}

/// The part of a queue that exists while it is active; see the module's page.
#[derive(Debug)]
pub(crate) struct ActiveQueue {
    id: QueueId,
    name: Arc<str>,
    settings: Arc<AppSettings>,
    customers: NameMap<CustomerId>,
    /// Customers with an open window.
    windows: BTreeSet<CustomerId>,
    ready: ReadyQueue,
    flights: QueueFlights,
    health: Health,
    pace: Pace,
    resident: Resident,
    later: Later,
    /// Read of its next rows, if one is under way.
    loading: Option<Loading>,
    /// Items in memory and not in flight, by key. Filled only where the oldest item may be dropped.
    droppable: BTreeSet<(Key, ItemId)>,
    /// Whether each [`Condition`] holds, by its number.
    conditions: [bool; 6],
    sent: u64,
}

impl ActiveQueue {
    pub(super) fn new(
        id: QueueId,
        name: Arc<str>,
        settings: Arc<AppSettings>,
        bound: Option<Bound>,
        keys: NameKeys,
    ) -> Self {
        ActiveQueue {
            id,
            name,
            settings,
            customers: NameMap::with_hasher(keys),
            windows: BTreeSet::new(),
            ready: ReadyQueue::default(),
            flights: QueueFlights::default(),
            health: Health::new(),
            pace: Pace::new(bound),
            resident: Resident::default(),
            later: Later::default(),
            loading: None,
            droppable: BTreeSet::new(),
            conditions: [false; 6],
            sent: 0,
        }
    }

    /// Sets new settings. The caller then names the items that may be dropped again.
    pub(super) fn configure(&mut self, settings: Arc<AppSettings>) {
        self.settings = settings;
        self.droppable.clear();
    }

    /// Handle of its queue.
    pub(crate) fn id(&self) -> QueueId {
        self.id
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn settings(&self) -> &Arc<AppSettings> {
        &self.settings
    }

    // ---- customers and windows ----------------------------------------------------------------------------

    pub(crate) fn customer(&self, name: &str) -> Option<CustomerId> {
        self.customers.get(name).copied()
    }

    pub(crate) fn add_customer(&mut self, name: Arc<str>, id: CustomerId) {
        self.customers.insert(name, id);
    }

    pub(crate) fn forget_customer(&mut self, name: &str) {
        self.customers.remove(name);
    }

    /// Customers with an open window.
    pub(crate) fn windows(&self) -> &BTreeSet<CustomerId> {
        &self.windows
    }

    pub(crate) fn window_opened(&mut self, id: CustomerId) {
        self.windows.insert(id);
    }

    pub(crate) fn window_ended(&mut self, id: CustomerId) {
        self.windows.remove(&id);
    }

    // ---- the way out --------------------------------------------------------------------------------------

    pub(crate) fn ready(&self) -> &ReadyQueue {
        &self.ready
    }

    pub(crate) fn ready_mut(&mut self) -> &mut ReadyQueue {
        &mut self.ready
    }

    pub(crate) fn flights(&self) -> &QueueFlights {
        &self.flights
    }

    pub(crate) fn flights_mut(&mut self) -> &mut QueueFlights {
        &mut self.flights
    }

    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    pub(crate) fn health_mut(&mut self) -> &mut Health {
        &mut self.health
    }

    /// How fast its items leave.
    pub(crate) fn pace(&self) -> &Pace {
        &self.pace
    }

    pub(crate) fn pace_mut(&mut self) -> &mut Pace {
        &mut self.pace
    }

    /// Items that the broker has confirmed in this life.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    pub(crate) fn count_sent(&mut self, count: u64) {
        self.sent += count;
    }

    /// Whether it can send anything: batches to be sent again, or due items.
    pub(super) fn has_work(&self) -> bool {
        self.flights.first_to_resend().is_some() || !self.ready.is_empty()
    }

    pub(crate) fn is(&self, condition: Condition) -> bool {
        self.conditions[condition as usize]
    }

    /// Sets a condition. Returns what it was before.
    pub(crate) fn set(&mut self, condition: Condition, on: bool) -> bool {
        core::mem::replace(&mut self.conditions[condition as usize], on)
    }

    // ---- memory -------------------------------------------------------------------------------------------

    pub(crate) fn resident(&self) -> &Resident {
        &self.resident
    }

    pub(super) fn resident_mut(&mut self) -> &mut Resident {
        &mut self.resident
    }

    pub(super) fn later(&self) -> &Later {
        &self.later
    }

    pub(super) fn later_mut(&mut self) -> &mut Later {
        &mut self.later
    }

    /// Read of the next rows, if one is under way.
    pub(crate) fn loading(&self) -> Option<&Loading> {
        self.loading.as_ref()
    }

    pub(crate) fn loading_mut(&mut self) -> &mut Option<Loading> {
        &mut self.loading
    }

    // ---- droppable items ----------------------------------------------------------------------------------

    /// The item is in memory and not in flight: it may be dropped, where the settings drop the oldest.
    pub(crate) fn may_drop(&mut self, key: Key, id: ItemId) {
        if self.settings.drops_oldest() {
            self.droppable.insert((key, id));
        }
    }

    pub(crate) fn may_not_drop(&mut self, key: Key, id: ItemId) {
        self.droppable.remove(&(key, id));
    }

    /// The item has another place now.
    pub(super) fn drops_as(&mut self, before: Key, now: Key, id: ItemId) {
        if self.droppable.remove(&(before, id)) {
            self.droppable.insert((now, id));
        }
    }

    /// Items that may be dropped, in the order in which they would be.
    pub(crate) fn droppable(&self) -> impl Iterator<Item = (Key, ItemId)> + '_ {
        self.droppable.iter().copied()
    }

    // ---- rest ---------------------------------------------------------------------------------------------

    /// Whether this part may be removed. `is_empty`: the queue has no item, so that a failure says nothing
    /// any more once its back-off is over. `quiet`: nothing else keeps the queue active. `mono`: the present
    /// moment, monotonic ms.
    pub(super) fn is_idle(&self, is_empty: bool, quiet: bool, mono: u64) -> bool {
        self.resident.count() == 0
            && self.customers.is_empty()
            && self.windows.is_empty()
            && self.ready.is_empty()
            && !self.ready.has_stalled()
            && self.flights.is_idle()
            && self.loading.is_none()
            && self.conditions[..Condition::Lagging as usize].iter().all(|holds| !holds)
            && (!self.health.is_failing() || is_empty && self.health.needs_probe())
            && self.pace.is_at_rest(mono)
            && quiet
    }

    /// For messages of tests.
    #[cfg(test)]
    pub(super) fn describe(&self, paused: bool) -> String {
        let (ready, flights) = (&self.ready, &self.flights);
        let counts = (
            self.resident.count(),
            ready.items(),
            ready.len(),
            ready.stalled(),
            flights.slots(),
            flights.suspects(),
        );
        let fetching: Vec<u64> = flights.fetching().collect();
        let resend: Vec<u64> = flights.to_resend().collect();
        let state = self.health.state();
        let conditions = (self.conditions, paused);
        format!(
            "{counts:?} {conditions:?} {state:?} {:?} fetching {fetching:?} resend {resend:?}",
            self.loading
        )
    }
}
