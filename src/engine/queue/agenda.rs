//! State that all queues share: which of them have work, and the counts over all of them. A queue is changed
//! through [`QueueMut`], which keeps this state in step and reaches no other queue.

use super::passed::PassedOver;
use super::{ActiveQueue, Condition, Loading, Queue, ReadyQueue, LAST};
use crate::ids::{ItemId, QueueId};
use crate::lookup::NameKeys;
use crate::mutant::{mutated, Mutant};
use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;
use tidegate_types::event::{QueueRow, Slowed, DEAD_LETTERS, FOR_EVER};
use tidegate_types::rate::Bound;
use tidegate_types::{AppSettings, Key, Settings, Thresholds};

/// A state of a queue that ends by itself after a while.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EndOf {
    /// Its own pause.
    Pause,
    /// The rate that a command has set.
    Rate,
    /// The pause of a customer.
    Customer(Arc<str>),
}

/// State that all queues share; see the module's page.
#[derive(Debug)]
pub(super) struct Agenda {
    /// Keys of the hashes of customers' names.
    keys: NameKeys,
    /// Queues whose row is out of date, and queues that the loader has to visit.
    pub(super) dirty: Vec<QueueId>,
    pub(super) marked: Vec<QueueId>,
    /// Queues whose first items, which were to be given up, were not in memory, and which have changed since.
    pub(super) to_trim: Vec<QueueId>,
    /// Queues that may have batches to send, in the order of their turns.
    pub(super) run: VecDeque<QueueId>,
    /// Queues with a [`ActiveQueue`] part, queues with items, and queues that are paused.
    pub(super) active: usize,
    pub(super) occupied: u64,
    pub(super) paused: u64,
    /// Queues with a temporary rate, and customers that are held back.
    pub(super) slowed: u64,
    pub(super) held: u64,
    /// States that end by themselves, by their end, UTC ms.
    pub(super) ends: BTreeSet<(u64, QueueId, EndOf)>,
    /// Items, and due items, of all queues.
    pub(super) total: u64,
    pub(super) ready_rows: u64,
    /// The clocks at the last call: wall, and monotonic.
    pub(super) wall: u64,
    pub(super) mono: u64,
}

impl Agenda {
    pub(super) fn new(keys: NameKeys) -> Self {
        Agenda {
            keys,
            dirty: Vec::new(),
            marked: Vec::new(),
            to_trim: Vec::new(),
            run: VecDeque::new(),
            active: 0,
            occupied: 0,
            paused: 0,
            slowed: 0,
            held: 0,
            ends: BTreeSet::new(),
            total: 0,
            ready_rows: 0,
            wall: 0,
            mono: 0,
        }
    }

    /// Moves the end of a state, where it has or had one.
    fn note_end(&mut self, id: QueueId, of: EndOf, before: Option<u64>, ends: Option<u64>) {
        if let Some(before) = before {
            self.ends.remove(&(before, id, of.clone()));
        }
        self.ends.extend(ends.filter(|until| *until < FOR_EVER).map(|until| (until, id, of)));
    }

    /// Sets or removes the temporary rate of a queue.
    fn note_slowed(&mut self, id: QueueId, known: &mut Option<Slowed>, slowed: Option<Slowed>) {
        let before = core::mem::replace(known, slowed);
        let until = |slowed: Option<Slowed>| slowed.map(|slowed| slowed.until);
        self.note_end(id, EndOf::Rate, until(before), until(slowed));
        self.slowed = self.slowed + u64::from(slowed.is_some()) - u64::from(before.is_some());
    }
}

/// A queue to be changed: each change updates the state that all queues share.
#[derive(Debug)]
pub(crate) struct QueueMut<'q> {
    id: QueueId,
    queue: &'q mut Queue,
    agenda: &'q mut Agenda,
    settings: &'q Settings,
}

impl Deref for QueueMut<'_> {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        self.queue
    }
}

impl<'q> QueueMut<'q> {
    pub(super) fn new(
        id: QueueId,
        queue: &'q mut Queue,
        agenda: &'q mut Agenda,
        settings: &'q Settings,
    ) -> Self {
        QueueMut { id, queue, agenda, settings }
    }

    /// Restores the queue as a former life left it.
    pub(super) fn reopen(&mut self, row: &QueueRow) {
        self.queue.stored = row.count;
        self.queue.near_until = row.low;
        self.queue.former_unindexed = row.unindexed_until;
        self.queue.unindexed_until = row.unindexed_until;
        self.agenda.total += row.count;
        self.agenda.occupied += u64::from(row.count > 0);
        self.note_paused(row.paused);
        self.agenda.note_slowed(self.id, &mut self.queue.slowed, row.slowed);
        self.mark_for_loader();
    }

    /// Its active part, created if it has none.
    pub(crate) fn at_work(self) -> &'q mut ActiveQueue {
        let QueueMut { id, queue, agenda, settings } = self;
        let Queue { name, active, slowed, .. } = queue;
        active.get_or_insert_with(|| {
            agenda.active += 1;
            let settings = settings.of(name);
            Box::new(ActiveQueue::new(
                id,
                Arc::clone(name),
                Arc::clone(settings),
                bound(name, *slowed, settings),
                agenda.keys,
            ))
        })
    }

    /// The same, where further changes of the queue follow.
    pub(crate) fn active_mut(&mut self) -> &mut ActiveQueue {
        QueueMut::new(self.id, self.queue, self.agenda, self.settings).at_work()
    }

    pub(crate) fn ready_mut(&mut self) -> &mut ReadyQueue {
        self.active_mut().ready_mut()
    }

    pub(crate) fn id(&self) -> QueueId {
        self.id
    }

    /// Limits at which the engine changes its behaviour.
    pub(crate) fn thresholds(&self) -> &'q Thresholds {
        &self.settings.thresholds
    }

    /// Settings of its application, whether it is active or not.
    pub(crate) fn settings(&self) -> &Arc<AppSettings> {
        self.queue.settings(self.settings)
    }

    // ---- counts -------------------------------------------------------------------------------------------

    fn touch_row(&mut self) {
        if !core::mem::replace(&mut self.queue.dirty, true) {
            self.agenda.dirty.push(self.id);
        }
    }

    /// Counts due items in or out: those of the ready queue, or of a customer that is set aside.
    pub(crate) fn count_ready(&mut self, change: i64, aside: bool) {
        self.active_mut().ready_mut().count(change, aside);
        self.agenda.ready_rows = self.agenda.ready_rows.saturating_add_signed(change);
        if change < 0 {
            self.mark_for_loader();
        }
    }

    /// Counts an item in memory that only the broker keeps.
    pub(crate) fn add_pending(&mut self) {
        self.active_mut();
        self.count_in();
        self.queue.pending += 1;
    }

    pub(crate) fn remove_pending(&mut self) {
        self.queue.pending -= 1;
        self.count_out();
    }

    /// Call before an item is added.
    fn count_in(&mut self) {
        self.agenda.occupied += u64::from(self.queue.total() == 0);
        self.agenda.total += 1;
    }

    /// Call after an item was removed.
    fn count_out(&mut self) {
        self.agenda.occupied -= u64::from(self.queue.total() == 0);
        self.agenda.total -= 1;
    }

    /// Counts an item that is written without a customer row and stays in memory.
    pub(crate) fn add_resident(&mut self, place: Key) {
        self.count_in();
        self.active_mut().resident_mut().add(place);
        self.queue.stored += 1;
        self.queue.unindexed_until = self.queue.unindexed_until.max(place.due.saturating_add(1));
        self.touch_row();
    }

    /// Counts an item that is written and is in the store alone from now on. `passed`: its customer, if the
    /// item is passed over.
    pub(crate) fn add_far(&mut self, place: Key, passed: Option<&str>) {
        self.count_in();
        self.count_later(place, true);
        self.queue.leave_in_store(place, passed);
        self.queue.stored += 1;
        self.touch_row();
        self.mark_for_loader();
    }

    /// Counts a stored item that has come into memory.
    pub(crate) fn add_restored(&mut self, place: Key) {
        self.active_mut().resident_mut().add(place);
        self.count_later(place, false);
    }

    /// Counts a stored item that has left memory. `passed`: its customer, if the item is passed over.
    pub(crate) fn evicted(&mut self, place: Key, passed: Option<&str>) {
        self.count_later(place, true);
        self.queue.leave_in_store(place, passed);
        self.active_mut().resident_mut().remove(place);
        self.mark_for_loader();
    }

    /// The window of an item in memory has closed: its place before, and now.
    pub(crate) fn note_closed(&mut self, item: ItemId, before: Key, now: Key, stored: bool) {
        if before == now {
            return;
        }
        let active = self.active_mut();
        active.drops_as(before, now, item);
        if stored {
            active.resident_mut().remove(before);
            active.resident_mut().add(now);
            if !mutated(Mutant::LowNotTold) {
                self.touch_row();
            }
        }
    }

    /// Counts out a stored item that has left this queue.
    pub(crate) fn remove_stored(&mut self, place: Key, resident: bool) {
        self.queue.stored -= 1;
        if resident {
            self.active_mut().resident_mut().remove(place);
        } else {
            self.count_later(place, false);
        }
        self.count_out();
        self.touch_row();
    }

    /// Counts an item that is not due yet and has gone to the store alone, or come from there.
    fn count_later(&mut self, place: Key, comes: bool) {
        if let Some(active) = self.queue.active.as_mut() {
            active.later_mut().note(place, self.agenda.wall, comes);
        }
    }

    /// Items in the store alone got another place, from `to` on.
    pub(crate) fn closed_far(&mut self, to: Key) {
        self.queue.lower(to);
        self.touch_row();
        self.mark_for_loader();
    }

    /// `count` items in the store alone that were to be due at `end` are due now.
    pub(crate) fn due_sooner(&mut self, end: u64, count: u64) {
        if let Some(active) = self.queue.active.as_mut() {
            active.later_mut().due_sooner(end, count);
        }
    }

    // ---- states -------------------------------------------------------------------------------------------

    /// A read of its next rows has ended. `next`: the first key that it has not read. Returns that read;
    /// `None`: there was none.
    pub(crate) fn loaded(&mut self, next: Option<Key>) -> Option<Loading> {
        let loading = self.queue.active.as_mut()?.loading_mut().take()?;
        let reached = if loading.void { loading.from } else { next.unwrap_or(Key::at(loading.until)) };
        let behind = loading.behind.filter(|_| !mutated(Mutant::BehindForgotten));
        self.queue.near_until = behind.map_or(reached, |behind| behind.min(reached));
        Some(loading)
    }

    /// Sets when the loader visits it next, wall clock; `u64::MAX`: not at all. Returns what was set before.
    pub(crate) fn wake_at(&mut self, at: u64) -> u64 {
        core::mem::replace(&mut self.queue.wake, at)
    }

    /// The queue is held back from now on, or still.
    pub(crate) fn begin_hold(&mut self, wall: u64) {
        let (far, first) = (self.queue.far(), self.queue.near_until().due);
        if let Some(active) = self.queue.active.as_mut() {
            active.later_mut().begin((far > 0 && first > wall).then_some((first, far)));
        }
    }

    /// Call where a reason to hold the queue back has ended: others may remain.
    pub(crate) fn end_hold(&mut self) {
        let held = self.queue.is_held_back();
        if let Some(active) = self.queue.active.as_mut().filter(|_| !held) {
            active.later_mut().end();
        }
    }

    /// Pauses the queue, or ends its pause. Returns whether that changed anything.
    pub(crate) fn set_paused(&mut self, until: Option<u64>) -> bool {
        if self.queue.paused == until {
            return false;
        }
        self.note_paused(until);
        self.touch_row();
        self.mark_for_loader();
        true
    }

    fn note_paused(&mut self, until: Option<u64>) {
        let before = core::mem::replace(&mut self.queue.paused, until);
        let ends = if mutated(Mutant::PauseHasNoEnd) { None } else { until };
        self.agenda.note_end(self.id, EndOf::Pause, before, ends);
        self.agenda.paused = self.agenda.paused + u64::from(until.is_some()) - u64::from(before.is_some());
    }

    /// Sets or removes a temporary rate. Returns whether that changed anything.
    pub(crate) fn set_slowed(&mut self, slowed: Option<Slowed>) -> bool {
        if self.queue.slowed == slowed {
            return false;
        }
        self.agenda.note_slowed(self.id, &mut self.queue.slowed, slowed);
        self.touch_row();
        let bound = bound(&self.queue.name, slowed, self.settings());
        let mono = self.agenda.mono;
        if let Some(active) = self.queue.active.as_mut() {
            active.pace_mut().set(bound, mono);
        }
        self.requeue();
        true
    }

    /// Holds a customer back until `until`. Returns until when it was held back before, if it was.
    pub(crate) fn hold(&mut self, customer: &Arc<str>, until: u64) -> Option<u64> {
        let before = self.queue.passed.hold(customer, until);
        self.agenda.note_end(self.id, EndOf::Customer(Arc::clone(customer)), before, Some(until));
        self.agenda.held += u64::from(before.is_none());
        before
    }

    /// Ends the hold of a customer: its items that were passed over are read. Returns whether it was held
    /// back.
    pub(crate) fn let_go(&mut self, customer: &str) -> bool {
        let Some(until) = self.queue.passed.let_go(customer) else { return false };
        self.agenda.note_end(self.id, EndOf::Customer(customer.into()), Some(until), None);
        self.agenda.held -= 1;
        self.requeue();
        true
    }

    // ---- what is passed over ------------------------------------------------------------------------------

    /// The first items are to be given up: those that were passed over are among them and are read as well.
    pub(crate) fn read_passed(&mut self) {
        let low = self.queue.passed.take_low();
        if self.queue.far() > 0 && low < LAST && !mutated(Mutant::PassedOverForgotten) {
            self.queue.lower(low);
        }
        self.requeue();
    }

    /// An item in the store alone, or about to be, is passed over.
    pub(crate) fn pass_over(&mut self, customer: &str, place: Key) {
        self.queue.pass_over(customer, place);
    }

    /// Its items that are passed over, to be changed; the loader will visit the queue.
    pub(crate) fn passed_mut(&mut self) -> &mut PassedOver {
        self.mark_for_loader();
        &mut self.queue.passed
    }

    // ---- work lists ---------------------------------------------------------------------------------------

    /// Something has changed for the queue: it gets a turn, and the loader visits it.
    pub(crate) fn requeue(&mut self) {
        self.mark_for_loader();
        self.run();
    }

    /// The loader has to visit it.
    pub(crate) fn mark_for_loader(&mut self) {
        if !core::mem::replace(&mut self.queue.marked, true) {
            self.agenda.marked.push(self.id);
        }
    }

    /// Something has changed in the queue: if its first items are to be given up and were not in memory, that
    /// is tried again.
    pub(crate) fn may_trim(&mut self) {
        if self.queue.active().is_some_and(|active| active.is(Condition::Trimming)) {
            self.agenda.to_trim.push(self.id);
        }
    }

    /// Puts it into the run queue if it can send anything and is not paused.
    pub(crate) fn run(&mut self) {
        let paused = self.queue.is_paused();
        let Some(active) = self.queue.active.as_mut() else { return };
        if !paused && active.has_work() && !active.set(Condition::Running, true) {
            if mutated(Mutant::BacklogGoesFirst) {
                self.agenda.run.push_front(self.id);
            } else {
                self.agenda.run.push_back(self.id);
            }
        }
    }
}

/// How fast the items of a queue may leave: the temporary rate, or that of the settings. Dead letters have no
/// bound.
pub(super) fn bound(name: &str, slowed: Option<Slowed>, settings: &AppSettings) -> Option<Bound> {
    let slowed = slowed.map(|slowed| Bound::new(slowed.rate, 0));
    slowed.or(settings.bound()).filter(|_| name != DEAD_LETTERS)
}
