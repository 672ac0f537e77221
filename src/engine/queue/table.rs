//! The table of all queues: by name and by handle, what they count together, and which of them has work.

use super::{Condition, Live, Loading, Queue, LAST};
use crate::engine::event::{QueueRow, DEAD_LETTERS};
use crate::engine::ids::{ItemId, QueueId};
use crate::engine::lookup::Lookup;
use crate::engine::mutant::{mutated, Mutant};
use crate::engine::slab::{self, Handle, Slab};
use crate::engine::types::{AppSettings, Key, Settings, Thresholds};
use std::collections::VecDeque;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

/// All queues, by name and by handle.
#[derive(Debug)]
pub(in crate::engine) struct Queues {
    table: Slab<QueueId, Queue>,
    names: Lookup<Arc<str>, QueueId>,
    settings: Arc<Settings>,
    /// Queues whose row is out of date; queues that the loader has to look at.
    dirty: Vec<QueueId>,
    review: Vec<QueueId>,
    /// Queues that lacked what was to be given up, and for which something has changed since.
    to_trim: Vec<QueueId>,
    /// Queues that may have something to send, in turn.
    run: VecDeque<QueueId>,
    /// Queues with a [`Live`] part: those that have been idle are looked for when they are many.
    live: usize,
    tidy_at: usize,
    tidy_names_at: usize,
    /// Queues with items, and queues that are paused.
    occupied: u64,
    paused: u64,
    dead_letters: QueueId,
    /// Wall clock at the last call.
    wall: u64,
    /// Over all queues: items, items with a row in the store, due items.
    total: u64,
    stored: u64,
    ready_rows: u64,
}

impl Queues {
    pub(in crate::engine) fn new(settings: Arc<Settings>, rows: &[QueueRow]) -> Self {
        let idle = settings.thresholds.idle_queues;
        let mut queues = Queues {
            table: Slab::new(),
            names: Lookup::new(),
            settings,
            dirty: Vec::new(),
            review: Vec::new(),
            to_trim: Vec::new(),
            run: VecDeque::new(),
            live: 0,
            tidy_at: idle,
            tidy_names_at: 2 * idle,
            occupied: 0,
            paused: 0,
            dead_letters: Handle::new(0, slab::FIRST),
            wall: 0,
            total: 0,
            stored: 0,
            ready_rows: 0,
        };
        queues.dead_letters = queues.id(DEAD_LETTERS);
        for row in rows {
            let id = queues.id(&row.queue);
            let queue = &mut queues.table[id];
            queue.stored = row.count;
            queue.near_until = row.low;
            queue.paused = row.paused;
            queue.former_unindexed = row.unindexed_until;
            queue.unindexed_until = row.unindexed_until;
            queues.total += row.count;
            queues.stored += row.count;
            queues.occupied += u64::from(row.count > 0);
            queues.paused += u64::from(row.paused);
            queues.look_at(id);
        }
        queues
    }

    /// The queue of this name.
    pub(in crate::engine) fn find(&self, name: &str) -> Option<QueueId> {
        self.names.get(name).copied()
    }

    /// The queue of this name, made known if it is not.
    pub(in crate::engine) fn id(&mut self, name: &str) -> QueueId {
        if let Some(id) = self.names.get(name) {
            return *id;
        }
        let name: Arc<str> = name.into();
        let id = self.table.insert(Queue {
            name: Arc::clone(&name),
            stored: 0,
            pending: 0,
            near_until: LAST,
            paused: false,
            dirty: false,
            reviewed: false,
            former_unindexed: 0,
            unindexed_until: 0,
            wake: u64::MAX,
            live: None,
        });
        self.names.insert(name, id);
        id
    }

    pub(in crate::engine) fn dead_letters(&self) -> QueueId {
        self.dead_letters
    }

    /// Queues that have items.
    pub(in crate::engine) fn occupied(&self) -> u64 {
        self.occupied
    }

    /// Queues that are paused.
    pub(in crate::engine) fn paused(&self) -> u64 {
        self.paused
    }

    pub(in crate::engine) fn total(&self) -> u64 {
        self.total
    }

    pub(in crate::engine) fn get(&self, id: QueueId) -> Option<&Queue> {
        self.table.get(id)
    }

    /// In order of place. Its cost is that of all queues.
    pub(in crate::engine) fn ids(&self) -> impl Iterator<Item = QueueId> + '_ {
        self.table.handles()
    }

    /// What the queue needs at work, made where it is not there.
    pub(in crate::engine) fn live(&mut self, id: QueueId) -> &mut Live {
        let queue = &mut self.table[id];
        if queue.live.is_none() {
            self.live += 1;
        }
        let (settings, name) = (&self.settings, &queue.name);
        let new = || Box::new(Live::new(id, Arc::clone(name), Arc::clone(settings.of(name))));
        queue.live.get_or_insert_with(new)
    }

    /// Settings of a queue's application, whether it is at work or not.
    pub(in crate::engine) fn settings_of(&self, id: QueueId) -> &Arc<AppSettings> {
        let queue = &self.table[id];
        queue.live.as_ref().map_or_else(|| self.settings.of(&queue.name), |live| live.settings())
    }

    /// New settings, for all that are at work. The cost is that of all queues.
    pub(in crate::engine) fn configure(&mut self, settings: Arc<Settings>) {
        self.settings = settings;
        for id in self.table.handles().collect::<Vec<_>>() {
            let queue = &mut self.table[id];
            if let Some(live) = &mut queue.live {
                live.configure(Arc::clone(self.settings.of(&queue.name)));
            }
        }
    }

    /// The wall clock, by which what is due later is told from what is due.
    pub(in crate::engine) fn observe(&mut self, wall: u64) {
        self.wall = wall;
    }

    // ---- counts -------------------------------------------------------------------------------------------

    fn touch_row(&mut self, id: QueueId) {
        let queue = &mut self.table[id];
        if !queue.dirty {
            queue.dirty = true;
            self.dirty.push(id);
        }
    }

    /// Due items of all queues.
    pub(in crate::engine) fn ready_rows(&self) -> u64 {
        self.ready_rows
    }

    /// That many due items have come into the queue's line, or left it.
    pub(in crate::engine) fn count_ready(&mut self, id: QueueId, change: i64) {
        self.live(id).line_mut().count(change);
        self.ready_rows = self.ready_rows.saturating_add_signed(change);
        if change < 0 {
            self.look_at(id);
        }
    }

    /// An item came into memory that the broker alone keeps.
    pub(in crate::engine) fn add_pending(&mut self, id: QueueId) {
        self.live(id);
        self.count_in(id);
        self.table[id].pending += 1;
    }

    pub(in crate::engine) fn remove_pending(&mut self, id: QueueId) {
        self.table[id].pending -= 1;
        self.count_out(id);
    }

    /// Before an item is added.
    fn count_in(&mut self, id: QueueId) {
        self.occupied += u64::from(self.table[id].total() == 0);
        self.total += 1;
    }

    /// After an item was removed.
    fn count_out(&mut self, id: QueueId) {
        self.occupied -= u64::from(self.table[id].total() == 0);
        self.total -= 1;
    }

    /// An item is written that stays in memory, without a customer row.
    pub(in crate::engine) fn add_resident(&mut self, id: QueueId, key: Key) {
        self.live(id);
        self.count_in(id);
        let queue = &mut self.table[id];
        queue.stored += 1;
        queue.resident_mut().add(key);
        queue.lacks_customer_row(key);
        self.stored += 1;
        self.touch_row(id);
    }

    /// An item is written that is in the store alone from now on.
    pub(in crate::engine) fn add_far(&mut self, id: QueueId, key: Key) {
        self.count_in(id);
        let queue = &mut self.table[id];
        queue.count_later(key, self.wall, true);
        queue.lower(key);
        queue.stored += 1;
        self.stored += 1;
        self.touch_row(id);
        self.look_at(id);
    }

    /// A stored item has come into memory.
    pub(in crate::engine) fn add_restored(&mut self, id: QueueId, key: Key) {
        self.live(id);
        self.table[id].count_later(key, self.wall, false);
        self.table[id].resident_mut().add(key);
    }

    /// A stored item has left memory.
    pub(in crate::engine) fn evicted(&mut self, id: QueueId, place: Key) {
        let queue = &mut self.table[id];
        queue.count_later(place, self.wall, true);
        queue.lower(place);
        queue.resident_mut().remove(place);
        self.look_at(id);
    }

    /// The window of an item in memory has closed: its place before, and now.
    pub(in crate::engine) fn note_closed(
        &mut self,
        id: QueueId,
        item: ItemId,
        places: (Key, Key),
        stored: bool,
    ) {
        let (before, now) = places;
        if before == now {
            return;
        }
        let live = self.live(id);
        live.drops_as(before, now, item);
        if stored {
            live.resident_mut().remove(before);
            live.resident_mut().add(now);
            if !mutated(Mutant::LowNotTold) {
                self.touch_row(id);
            }
        }
    }

    /// A stored item is not in this queue any more.
    pub(in crate::engine) fn remove_stored(&mut self, id: QueueId, key: Key, resident: bool) {
        let queue = &mut self.table[id];
        queue.stored -= 1;
        if !resident {
            queue.count_later(key, self.wall, false);
        }
        if resident {
            queue.resident_mut().remove(key);
        }
        self.stored -= 1;
        self.count_out(id);
        self.touch_row(id);
    }

    /// Items in the store alone got another place, from `to` on.
    pub(in crate::engine) fn closed_far(&mut self, id: QueueId, to: Key) {
        self.table[id].lower(to);
        self.touch_row(id);
        self.look_at(id);
    }

    /// That many items in the store alone, which were to be due at `end`, are due now.
    pub(in crate::engine) fn due_sooner(&mut self, id: QueueId, end: u64, count: u64) {
        self.table[id].due_sooner(end, count);
    }

    /// A read of the queue's next rows has ended, and has not looked at `next`. What it was; `None`: there
    /// was none.
    pub(in crate::engine) fn loaded(&mut self, id: QueueId, next: Option<Key>) -> Option<Loading> {
        self.table[id].loaded(next)
    }

    /// Whether that changed anything.
    pub(in crate::engine) fn set_paused(&mut self, id: QueueId, paused: bool) -> bool {
        if self.table[id].paused == paused {
            return false;
        }
        self.table[id].paused = paused;
        self.paused = if paused { self.paused + 1 } else { self.paused - 1 };
        self.touch_row(id);
        self.look_at(id);
        true
    }

    /// The rows that have changed since the last call.
    pub(in crate::engine) fn take_dirty_rows(&mut self) -> Vec<QueueRow> {
        let mut rows = Vec::with_capacity(self.dirty.len());
        for id in std::mem::take(&mut self.dirty) {
            let Some(queue) = self.table.get_mut(id) else { continue };
            queue.dirty = false;
            rows.push(queue.row());
        }
        rows
    }

    // ---- who has work -------------------------------------------------------------------------------------

    /// The loader has to look at this queue.
    pub(in crate::engine) fn look_at(&mut self, id: QueueId) {
        let queue = &mut self.table[id];
        if !queue.reviewed {
            queue.reviewed = true;
            self.review.push(id);
        }
    }

    pub(in crate::engine) fn take_review(&mut self) -> Vec<QueueId> {
        let review = std::mem::take(&mut self.review);
        for id in &review {
            if let Some(queue) = self.table.get_mut(*id) {
                queue.reviewed = false;
            }
        }
        review
    }

    /// Something has changed in the queue: where its first items are to be given up and were not in memory,
    /// that is tried again.
    pub(in crate::engine) fn may_trim(&mut self, id: QueueId) {
        if self.table[id].live.as_ref().is_some_and(|live| live.is(Condition::Trimming)) {
            self.to_trim.push(id);
        }
    }

    pub(in crate::engine) fn take_to_trim(&mut self) -> Vec<QueueId> {
        std::mem::take(&mut self.to_trim)
    }

    /// Puts a queue into the run queue if it has something to send and is not held back.
    pub(in crate::engine) fn run(&mut self, id: QueueId) {
        let queue = &mut self.table[id];
        let Some(live) = queue.live.as_mut() else { return };
        if !queue.paused && live.has_work() && !live.set(Condition::Running, true) {
            if mutated(Mutant::BacklogGoesFirst) {
                self.run.push_front(id);
            } else {
                self.run.push_back(id);
            }
        }
    }

    pub(in crate::engine) fn next_to_run(&mut self) -> Option<QueueId> {
        while let Some(id) = self.run.pop_front() {
            if let Some(live) = self.table.get_mut(id).and_then(|queue| queue.live.as_mut()) {
                live.set(Condition::Running, false);
                return Some(id);
            }
        }
        None
    }

    pub(in crate::engine) fn is_anything_running(&self) -> bool {
        !self.run.is_empty()
    }

    pub(in crate::engine) fn thresholds(&self) -> &Thresholds {
        &self.settings.thresholds
    }

    /// Gives back what idle queues hold. A queue at rest keeps what it has for a while: they are looked
    /// through only once there are twice as many as were left the last time.
    pub(in crate::engine) fn tidy(&mut self) {
        if self.live <= self.tidy_at && self.table.len() <= self.tidy_names_at {
            return;
        }
        for id in self.table.handles().collect::<Vec<_>>() {
            self.rest(id);
        }
        let idle = self.thresholds().idle_queues;
        self.tidy_at = idle.max(self.live * 2);
        self.tidy_names_at = 2 * idle.max(self.table.len());
    }

    /// Gives back what this queue holds, where it is idle.
    fn rest(&mut self, id: QueueId) {
        let dead_letters = self.dead_letters;
        let queue = &mut self.table[id];
        if queue.live.as_ref().is_some_and(|live| live.is_idle(queue.pending == 0)) {
            queue.live = None;
            self.live -= 1;
        }
        if queue.is_forgettable() && !queue.reviewed && queue.wake == u64::MAX && id != dead_letters {
            let name = Arc::clone(&queue.name);
            self.names.remove(&name);
            self.table.remove(id);
        }
    }
}

impl Index<QueueId> for Queues {
    type Output = Queue;
    fn index(&self, id: QueueId) -> &Queue {
        &self.table[id]
    }
}

impl IndexMut<QueueId> for Queues {
    fn index_mut(&mut self, id: QueueId) -> &mut Queue {
        &mut self.table[id]
    }
}
