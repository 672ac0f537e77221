//! The table of all queues: look-up by name and by handle, counts over all queues, and which of them have
//! work.

use super::agenda::{bound, Agenda, EndOf, QueueMut};
use super::passed::PassedOver;
use super::{Condition, Queue, LAST};
use crate::ids::QueueId;
use crate::lookup::{NameKeys, NameMap};
use crate::slab::{self, Handle, Slab};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Index;
use tidegate_types::event::{QueueRow, Stored, DEAD_LETTERS};
use tidegate_types::{AppSettings, Now, Settings, Thresholds};

/// All queues, by name and by handle.
#[derive(Debug)]
pub(crate) struct Queues {
    table: Slab<QueueId, Queue>,
    names: NameMap<QueueId>,
    settings: Arc<Settings>,
    agenda: Agenda,
    /// Idle queues are looked for when more than this many are active, or are known at all.
    tidy_at: usize,
    tidy_names_at: usize,
    dead_letters: QueueId,
}

impl Queues {
    /// The queues of a store. The hashes of names follow from `seed`.
    pub(crate) fn new(settings: Arc<Settings>, rows: &[QueueRow], seed: u64) -> Self {
        let keys = NameKeys::of(seed);
        let idle = settings.thresholds.idle_queues;
        let mut queues = Queues {
            table: Slab::new(),
            names: NameMap::with_hasher(keys),
            settings,
            agenda: Agenda::new(keys),
            tidy_at: idle,
            tidy_names_at: 2 * idle,
            dead_letters: Handle::new(0, slab::FIRST),
        };
        queues.dead_letters = queues.id(DEAD_LETTERS);
        for row in rows {
            let id = queues.id(&row.queue);
            queues.at(id).reopen(row);
        }
        queues
    }

    /// The queue of this name.
    pub(crate) fn find(&self, name: &str) -> Option<QueueId> {
        self.names.get(name).copied()
    }

    /// The queue of an item that has not ended and is in the store only. A queue with items is known.
    pub(crate) fn of_stored(&self, stored: &Stored) -> Option<QueueId> {
        let queue = self.find(stored.queue());
        debug_assert!(queue.is_some(), "a queue with items is known");
        queue
    }

    /// The queue of this name, added if it is not known.
    pub(crate) fn id(&mut self, name: &str) -> QueueId {
        if let Some(id) = self.names.get(name) {
            return *id;
        }
        let name: Arc<str> = name.into();
        let id = self.table.insert(Queue {
            name: Arc::clone(&name),
            stored: 0,
            pending: 0,
            near_until: LAST,
            paused: None,
            slowed: None,
            passed: PassedOver::new(),
            dirty: false,
            marked: false,
            former_unindexed: 0,
            unindexed_until: 0,
            wake: u64::MAX,
            active: None,
        });
        self.names.insert(name, id);
        id
    }

    pub(crate) fn dead_letters(&self) -> QueueId {
        self.dead_letters
    }

    /// How many queues have items.
    pub(crate) fn occupied(&self) -> u64 {
        self.agenda.occupied
    }

    /// How many queues are paused.
    pub(crate) fn paused(&self) -> u64 {
        self.agenda.paused
    }

    /// How many queues have a temporary rate.
    pub(crate) fn slowed(&self) -> u64 {
        self.agenda.slowed
    }

    /// How many customers are held back, over all queues.
    pub(crate) fn held(&self) -> u64 {
        self.agenda.held
    }

    /// When the next state ends by itself, UTC ms.
    pub(crate) fn next_end(&self) -> Option<u64> {
        self.agenda.ends.first().map(|(until, ..)| *until)
    }

    /// A state that was to end by then, and its queue.
    pub(crate) fn ended(&self, wall: u64) -> Option<(QueueId, EndOf)> {
        let first = self.agenda.ends.first().filter(|(until, ..)| *until <= wall);
        first.map(|(_, queue, ending)| (*queue, ending.clone()))
    }

    pub(crate) fn total(&self) -> u64 {
        self.agenda.total
    }

    pub(crate) fn get(&self, id: QueueId) -> Option<&Queue> {
        self.table.get(id)
    }

    /// A queue to be changed.
    pub(crate) fn at(&mut self, id: QueueId) -> QueueMut<'_> {
        QueueMut::new(id, &mut self.table[id], &mut self.agenda, &self.settings)
    }

    /// All handles, in order of their places. The cost grows with the number of queues.
    pub(crate) fn ids(&self) -> impl Iterator<Item = QueueId> + '_ {
        self.table.handles()
    }

    /// Settings of a queue's application, whether it is active or not.
    pub(crate) fn settings_of(&self, id: QueueId) -> &Arc<AppSettings> {
        self.table[id].settings(&self.settings)
    }

    /// Sets new settings for all active queues. The cost grows with the number of queues.
    pub(crate) fn configure(&mut self, settings: Arc<Settings>) {
        self.settings = settings;
        for id in self.table.handles().collect::<Vec<_>>() {
            let queue = &mut self.table[id];
            let settings = self.settings.of(&queue.name);
            let bound = bound(&queue.name, queue.slowed, settings);
            if let Some(active) = &mut queue.active {
                active.configure(Arc::clone(settings));
                active.pace_mut().set(bound, self.agenda.mono);
            }
            self.at(id).run();
        }
    }

    /// Sets the clocks: the wall clock separates due items from later ones, the monotonic one paces items.
    pub(crate) fn observe(&mut self, now: Now) {
        (self.agenda.wall, self.agenda.mono) = (now.wall, now.mono);
    }

    // ---- counts -------------------------------------------------------------------------------------------

    /// Due items of all queues.
    pub(crate) fn ready_rows(&self) -> u64 {
        self.agenda.ready_rows
    }

    /// The rows that have changed since the last call.
    pub(crate) fn take_dirty_rows(&mut self) -> Vec<QueueRow> {
        let mut rows = Vec::with_capacity(self.agenda.dirty.len());
        for id in core::mem::take(&mut self.agenda.dirty) {
            let Some(queue) = self.table.get_mut(id) else {
                debug_assert!(false, "a queue stays known until its row is taken");
                continue;
            };
            queue.dirty = false;
            rows.push(queue.row());
        }
        rows
    }

    // ---- work lists ---------------------------------------------------------------------------------------

    pub(crate) fn take_marked(&mut self) -> Vec<QueueId> {
        let marked = core::mem::take(&mut self.agenda.marked);
        for id in &marked {
            if let Some(queue) = self.table.get_mut(*id) {
                queue.marked = false;
            }
        }
        marked
    }

    pub(crate) fn take_to_trim(&mut self) -> Vec<QueueId> {
        core::mem::take(&mut self.agenda.to_trim)
    }

    pub(crate) fn next_to_run(&mut self) -> Option<QueueId> {
        while let Some(id) = self.agenda.run.pop_front() {
            if let Some(active) = self.table.get_mut(id).and_then(|queue| queue.active.as_mut()) {
                active.set(Condition::Running, false);
                return Some(id);
            }
        }
        None
    }

    pub(crate) fn is_anything_running(&self) -> bool {
        !self.agenda.run.is_empty()
    }

    pub(crate) fn thresholds(&self) -> &Thresholds {
        &self.settings.thresholds
    }

    /// Frees the state of idle queues. A queue at rest keeps its state for a while: idle ones are looked for
    /// only once there are twice as many queues as were left the last time.
    pub(crate) fn tidy(&mut self) {
        if self.agenda.active <= self.tidy_at && self.table.len() <= self.tidy_names_at {
            return;
        }
        for id in self.table.handles().collect::<Vec<_>>() {
            self.rest(id);
        }
        let idle = self.thresholds().idle_queues;
        self.tidy_at = idle.max(self.agenda.active * 2);
        self.tidy_names_at = 2 * idle.max(self.table.len());
    }

    /// Frees the state of this queue, if it is idle.
    fn rest(&mut self, id: QueueId) {
        let dead_letters = self.dead_letters;
        let queue = &mut self.table[id];
        if queue
            .active
            .as_ref()
            .is_some_and(|active| active.is_idle(queue.total() == 0, queue.pending == 0, self.agenda.mono))
        {
            queue.active = None;
            self.agenda.active -= 1;
        }
        if queue.is_forgettable(self.agenda.mono)
            && !queue.marked
            && queue.wake == u64::MAX
            && id != dead_letters
        {
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
