//! What a queue needs while it is at work. Each part of the engine changes of it what is its own, by the
//! verbs here.

use super::due_line::DueLine;
use super::lane::Lane;
use super::Loading;
use crate::engine::health::Health;
use crate::engine::ids::{CustomerId, ItemId, QueueId};
use crate::engine::lookup::Lookup;
use crate::engine::types::{AppSettings, Key};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Seconds by which the items of a queue that is held back are counted; what is due later counts with the
/// last.
const LATER_SECONDS: usize = 4_096;

/// The second that has begun when an item with this due is due.
fn due_second(due: u64) -> u64 {
    due.div_ceil(1_000)
}

/// See the module's page.
#[derive(Debug)]
pub(in crate::engine) struct Live {
    id: QueueId,
    name: Arc<str>,
    settings: Arc<AppSettings>,
    customers: Lookup<Arc<str>, CustomerId>,
    /// Customers with an open window.
    windows: BTreeSet<CustomerId>,
    line: DueLine,
    lane: Lane,
    health: Health,
    /// A probe has been out for longer than a healthy queue takes.
    hindered: bool,
    /// Stored items in memory, and these by the second of their key: gives the low mark.
    resident: u64,
    seconds: BTreeMap<u64, u32>,
    loading: Option<Loading>,
    /// Due rows are leaving memory.
    evicting: bool,
    /// While it is held back: items in the store alone that were not due when they went there, by the second
    /// in which they will be.
    later: Option<BTreeMap<u64, u64>>,
    /// It stands in the run queue.
    running: bool,
    /// Items in memory and not in flight, by key; only where the first may be dropped.
    droppable: BTreeSet<(Key, ItemId)>,
    /// There are more items than allowed, and the first of them are being given up.
    trimming: bool,
    sent: u64,
}

impl Live {
    pub(super) fn new(id: QueueId, name: Arc<str>, settings: Arc<AppSettings>) -> Self {
        Live {
            id,
            name,
            settings,
            customers: Lookup::new(),
            windows: BTreeSet::new(),
            line: DueLine::default(),
            lane: Lane::default(),
            health: Health::new(),
            hindered: false,
            resident: 0,
            seconds: BTreeMap::new(),
            loading: None,
            evicting: false,
            later: None,
            running: false,
            droppable: BTreeSet::new(),
            trimming: false,
            sent: 0,
        }
    }

    /// New settings; what may be dropped is to be told anew.
    pub(super) fn configure(&mut self, settings: Arc<AppSettings>) {
        self.settings = settings;
        self.droppable.clear();
    }

    /// Of its queue.
    pub(in crate::engine) fn id(&self) -> QueueId {
        self.id
    }

    pub(in crate::engine) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(in crate::engine) fn settings(&self) -> &Arc<AppSettings> {
        &self.settings
    }

    // ---- customers and windows ----------------------------------------------------------------------------

    pub(in crate::engine) fn customer(&self, name: &str) -> Option<CustomerId> {
        self.customers.get(name).copied()
    }

    pub(in crate::engine) fn add_customer(&mut self, name: Arc<str>, id: CustomerId) {
        self.customers.insert(name, id);
    }

    pub(in crate::engine) fn forget_customer(&mut self, name: &str) {
        self.customers.remove(name);
    }

    /// Customers with an open window.
    pub(in crate::engine) fn windows(&self) -> &BTreeSet<CustomerId> {
        &self.windows
    }

    pub(in crate::engine) fn window_opened(&mut self, id: CustomerId) {
        self.windows.insert(id);
    }

    pub(in crate::engine) fn window_ended(&mut self, id: CustomerId) {
        self.windows.remove(&id);
    }

    // ---- the way out --------------------------------------------------------------------------------------

    pub(in crate::engine) fn line(&self) -> &DueLine {
        &self.line
    }

    pub(in crate::engine) fn line_mut(&mut self) -> &mut DueLine {
        &mut self.line
    }

    pub(in crate::engine) fn lane(&self) -> &Lane {
        &self.lane
    }

    pub(in crate::engine) fn lane_mut(&mut self) -> &mut Lane {
        &mut self.lane
    }

    pub(in crate::engine) fn health(&self) -> &Health {
        &self.health
    }

    pub(in crate::engine) fn health_mut(&mut self) -> &mut Health {
        &mut self.health
    }

    /// A probe has been out for longer than a healthy queue takes.
    pub(in crate::engine) fn is_hindered(&self) -> bool {
        self.hindered
    }

    pub(in crate::engine) fn hinder(&mut self) {
        self.hindered = true;
    }

    /// That probe has ended. Whether there was one.
    pub(in crate::engine) fn end_hindrance(&mut self) -> bool {
        std::mem::take(&mut self.hindered)
    }

    /// Items that the broker has taken, in this life.
    pub(in crate::engine) fn sent(&self) -> u64 {
        self.sent
    }

    pub(in crate::engine) fn count_sent(&mut self, count: u64) {
        self.sent += count;
    }

    /// Something can be sent: batches to be sent again, or due items.
    pub(super) fn has_work(&self) -> bool {
        self.lane.first_to_resend().is_some() || !self.line.is_empty()
    }

    /// It stands in the run queue from now on. Whether that is news.
    pub(super) fn begin_running(&mut self) -> bool {
        !std::mem::replace(&mut self.running, true)
    }

    pub(super) fn end_running(&mut self) {
        self.running = false;
    }

    // ---- memory -------------------------------------------------------------------------------------------

    /// Stored items in memory.
    pub(super) fn resident(&self) -> u64 {
        self.resident
    }

    /// How many are due in each second, for tests.
    #[cfg(test)]
    pub(in crate::engine) fn seconds(&self) -> &BTreeMap<u64, u32> {
        &self.seconds
    }

    /// The second of the first of them.
    pub(super) fn first_second(&self) -> Option<u64> {
        self.seconds.keys().next().copied()
    }

    pub(super) fn count_resident(&mut self, key: Key) {
        self.resident += 1;
        *self.seconds.entry(key.due / 1_000).or_default() += 1;
    }

    pub(super) fn uncount_resident(&mut self, key: Key) {
        self.resident -= 1;
        let second = key.due / 1_000;
        if let Some(count) = self.seconds.get_mut(&second) {
            *count -= 1;
            if *count == 0 {
                self.seconds.remove(&second);
            }
        }
    }

    /// The read of the next rows that is under way.
    pub(in crate::engine) fn loading(&self) -> Option<&Loading> {
        self.loading.as_ref()
    }

    pub(in crate::engine) fn loading_mut(&mut self) -> Option<&mut Loading> {
        self.loading.as_mut()
    }

    pub(in crate::engine) fn begin_loading(&mut self, loading: Loading) {
        self.loading = Some(loading);
    }

    pub(super) fn end_loading(&mut self) -> Option<Loading> {
        self.loading.take()
    }

    /// Due rows are leaving memory.
    pub(in crate::engine) fn is_evicting(&self) -> bool {
        self.evicting
    }

    /// Whether that is news.
    pub(in crate::engine) fn begin_evicting(&mut self) -> bool {
        !std::mem::replace(&mut self.evicting, true)
    }

    pub(in crate::engine) fn end_evicting(&mut self) {
        self.evicting = false;
    }

    // ---- what is due later, while it is held back ---------------------------------------------------------

    /// From now on what goes to the store alone is counted by when it is due. `known`: this many lie there
    /// and are not due before that moment.
    pub(super) fn begin_later(&mut self, known: Option<(u64, u64)>) {
        if self.later.is_none() {
            self.later = Some(known.map(|(due, count)| (due_second(due), count)).into_iter().collect());
        }
    }

    pub(super) fn end_later(&mut self) {
        self.later = None;
    }

    /// Items in the store alone that are known not to be due.
    pub(super) fn later(&self, wall: u64) -> u64 {
        let later = self.later.as_ref();
        later.map_or(0, |later| later.range(wall / 1_000 + 1..).map(|(_, count)| count).sum())
    }

    /// That many of those that were to be due at `end` are due now.
    pub(super) fn due_sooner(&mut self, end: u64, count: u64) {
        let later = self.later.as_mut();
        if let Some(waiting) = later.and_then(|later| later.get_mut(&due_second(end))) {
            *waiting = waiting.saturating_sub(count);
        }
    }

    /// An item that is not due yet has gone to the store alone, or come from there.
    pub(super) fn count_later(&mut self, key: Key, wall: u64, comes: bool) {
        let Some(later) = self.later.as_mut() else { return };
        while later.first_key_value().is_some_and(|(second, _)| *second <= wall / 1_000) {
            later.pop_first();
        }
        if key.due <= wall {
            return;
        }
        if !comes {
            if let Some(count) = later.get_mut(&due_second(key.due)) {
                *count = count.saturating_sub(1);
            }
            return;
        }
        let last = later.last_key_value().map(|(second, _)| *second);
        let second = last.filter(|_| later.len() >= LATER_SECONDS).unwrap_or(due_second(key.due));
        *later.entry(second).or_default() += 1;
    }

    // ---- what may be dropped ------------------------------------------------------------------------------

    /// The item is in memory, and not in flight: where the first may be dropped, it may be one of them.
    pub(in crate::engine) fn may_drop(&mut self, key: Key, id: ItemId) {
        if self.settings.drops_oldest() {
            self.droppable.insert((key, id));
        }
    }

    pub(in crate::engine) fn may_not_drop(&mut self, key: Key, id: ItemId) {
        self.droppable.remove(&(key, id));
    }

    /// It has another place now.
    pub(super) fn drops_as(&mut self, before: Key, now: Key, id: ItemId) {
        if self.droppable.remove(&(before, id)) {
            self.droppable.insert((now, id));
        }
    }

    /// Items that may be dropped, the first to go first.
    pub(in crate::engine) fn droppable(&self) -> impl Iterator<Item = (Key, ItemId)> + '_ {
        self.droppable.iter().copied()
    }

    /// There are more items than allowed, and the first of them have to be read to be given up.
    pub(in crate::engine) fn is_trimming(&self) -> bool {
        self.trimming
    }

    /// What it was before.
    pub(in crate::engine) fn set_trimming(&mut self, trimming: bool) -> bool {
        std::mem::replace(&mut self.trimming, trimming)
    }

    // ---- rest ---------------------------------------------------------------------------------------------

    /// Nothing of it is needed any more. `quiet`: neither what is known of its health, unless that is bad.
    pub(super) fn is_idle(&self, quiet: bool) -> bool {
        self.resident == 0
            && self.customers.is_empty()
            && self.windows.is_empty()
            && self.line.is_empty()
            && !self.line.has_stalled()
            && self.lane.is_idle()
            && self.loading.is_none()
            && !self.evicting
            && !self.hindered
            && !self.trimming
            && !self.running
            && !self.health.is_failing()
            && quiet
    }

    /// For messages of tests.
    #[cfg(test)]
    pub(super) fn describe(&self, paused: bool) -> String {
        let (line, lane) = (&self.line, &self.lane);
        let counts = (self.resident, line.items(), line.len(), line.stalled(), lane.slots(), lane.suspects());
        let flags = (self.running, self.evicting, self.hindered, self.trimming, paused);
        let fetching: Vec<u64> = lane.fetching().collect();
        let resend: Vec<u64> = lane.to_resend().collect();
        let state = self.health.state();
        format!("{counts:?} {flags:?} {state:?} {:?} fetching {fetching:?} resend {resend:?}", self.loading)
    }
}
