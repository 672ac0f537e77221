//! All items that have not ended, in memory or in the store: one way in, one across, one out, and the ways
//! between memory and store.
//!
//! In: [`LiveItems::admit`]. Across, to the dead letters: [`LiveItems::move_to_dead_letters`]; to another
//! time: [`LiveItems::reschedule`] and [`LiveItems::reschedule_far`]. Out: [`LiveItems::finish`] and
//! [`LiveItems::finish_far`]. Into memory: [`LiveItems::restore`]; out of it: [`QueueItems::evict`]. Each of
//! these keeps in step everything that an item touches: the item, the counts of its queue, its customer, its
//! window, its index rows, and the notes that make reads and questions under way out of date. No other code
//! adds or removes an item.
//!
//! A change of one item runs in its queue, [`QueueItems`], which reaches no other queue and borrows the state
//! that all queues share, [`SharedItems`]. A change of a customer's window runs in [`CustomerItems`]. This
//! module keeps the decisions over several queues: which items leave when memory is short, what is due next,
//! and the move to the dead letters.

mod aside;
mod due;
mod members;
mod memory;
mod shared;
mod times;
mod ways;

use super::customers::{Customer, CustomerMut, CustomerTurn, Customers};
use super::ids::{CustomerId, ItemId, QueueId};
use super::items::{self, Address, Item, ItemFlag, Items, Placement, Residence, Stage};
use super::journal::Journal;
use super::mutant::{mutated, Mutant};
use super::queue::{Condition, Entry, QueueMut, Queues};
use super::reads::ReadLine;
use super::schedule::Taken;
use super::window::{self, Member, Plan, Window};
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::num::NonZeroU64;
pub(super) use tidegate_types::event::HORIZON_MS;
use tidegate_types::event::{ClosingRow, IndexRows, Op, Opened, Place, Stored, FOR_EVER};
use tidegate_types::{
    AppSettings, Budget, ClosedBy, Content, Dead, Delivery, DuplicateRule, Identity, Key, NewItem, Now,
    Thresholds,
};

use aside::count_due;
pub(super) use aside::fill_of;
use members::{member_of, CustomerItems, Formed};
use shared::{rewritten, standing, ItemRow, SharedItems};
use ways::Dying;

/// An item that is due at once may be confirmed before it is stored. If it is not, it is stored after this
/// time, ms.
const DEFER_MS: u64 = 20;
/// The same for one with a large body: its confirm may take this long under full load, where the write would
/// cost more than all else.
const DEFER_LARGE_MS: u64 = 500;

/// Payloads of items due within this time stay in memory as long as there is room for them, ms.
const KEEP_MS: u64 = 30_000;

/// The delivery that brought an item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) delivery: Delivery,
    /// When it arrived, UTC ms.
    pub(super) received: u64,
    pub(super) redelivered: bool,
    /// It has other entries here.
    pub(super) several: bool,
}

/// What decides when a new item is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timing {
    /// It named this time, or the past: UTC ms.
    Own(u64),
    /// When its customer's window ends.
    Windowed,
    /// Due at once.
    Immediate,
}

/// Parameters with which a new item is admitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admission {
    /// The queue of its application.
    pub(super) queue: QueueId,
    pub(super) origin: Origin,
    pub(super) timing: Timing,
    /// Planned end of the window that it takes over from the item that it replaces, wall clock.
    pub(super) inherited: Option<u64>,
    /// It may be confirmed before it is written: its queue may publish at once.
    pub(super) may_defer: bool,
}

/// Work whose time has come by the clock and that is not done yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    Nothing,
    /// Some windows are over and not closed.
    Windows,
    /// Items are due and still in the schedule; windows may be over as well. The key of the first such item.
    Items(Key),
}

/// All items that have not ended; see the module's page.
#[derive(Debug)]
pub(super) struct LiveItems {
    pub(super) queues: Queues,
    pub(super) shared: SharedItems,
}

/// The live items of one queue, to be changed. It reaches no other queue.
#[derive(Debug)]
pub(super) struct QueueItems<'s> {
    queue: QueueMut<'s>,
    shared: &'s mut SharedItems,
}

impl LiveItems {
    pub(super) fn new(queues: Queues, journal: Journal, budget: Budget, now: Now) -> Self {
        LiveItems { queues, shared: SharedItems::new(journal, budget, now) }
    }

    /// Limits at which the engine changes its behaviour.
    pub(super) fn thresholds(&self) -> &Thresholds {
        self.queues.thresholds()
    }

    /// Read access; only the methods below change which items are in memory.
    pub(super) fn items(&self) -> &Items {
        &self.shared.items
    }

    /// Read access, likewise.
    pub(super) fn customers(&self) -> &Customers {
        &self.shared.customers
    }

    /// The live items of this queue.
    pub(super) fn at(&mut self, queue: QueueId) -> QueueItems<'_> {
        QueueItems { queue: self.queues.at(queue), shared: &mut self.shared }
    }

    /// The live items of the queue of this item.
    pub(super) fn home_of(&mut self, id: ItemId) -> QueueItems<'_> {
        self.at(self.shared.items[id].queue())
    }

    /// The item as the store keeps it.
    pub(super) fn row<'a>(&'a self, item: &'a Item) -> ItemRow<'a> {
        self.shared.row(self.queues[item.queue()].name(), item)
    }

    /// The due of the first item of the ready queue, as far as that is cheap to know.
    pub(super) fn first_due(&self, queue: QueueId) -> Option<u64> {
        let active = self.queues[queue].active()?;
        let id = match active.ready().first()? {
            Entry::Single(id) => id,
            Entry::Customer(customer) => self.customers().get(customer)?.ready.first()?,
        };
        self.items().get(id).map(|item| item.due())
    }

    // ---- in, across, out ----------------------------------------------------------------------------------

    /// Admits a new item. Returns its arrival number.
    pub(super) fn admit(&mut self, new: NewItem, admission: Admission, now: Now) -> u64 {
        let seq = self.at(admission.queue).admit(new, admission, now);
        self.make_room(now);
        seq
    }

    /// Admits a request that is a dead letter from the start. Returns its arrival number.
    pub(super) fn admit_dead(
        &mut self,
        dead: Dead,
        meant_for: Address,
        content: Arc<Content>,
        origin: Origin,
        now: Now,
    ) -> u64 {
        let queue = self.queues.dead_letters();
        let seq = self.shared.journal.number();
        let (received, tag) = (origin.received, origin.delivery.tag);
        let placement = Placement { key: Key::own(now.wall, seq), queue, customer: None, received, tag };
        let item = Item::dead_on_arrival(Arc::new(dead), meant_for, content, placement);
        self.at(queue).place(item, false, false, now);
        self.make_room(now);
        seq
    }

    /// Gives up an item, which becomes a dead letter. It must be on no list, and must not be orphaned.
    /// `former`: the identity it had, where that is to be remembered with the confirm of the dead letter.
    pub(super) fn move_to_dead_letters(
        &mut self,
        id: ItemId,
        dead: Dead,
        former: Option<Identity>,
        now: Now,
    ) {
        let letters = self.queues.dead_letters();
        let Dying { mut item, meant_for, from, removed } = self.home_of(id).take_dying(id);
        item.become_dead_letter(dead, meant_for, former, letters, now.wall);
        if item.is_stored() {
            self.at(letters).place_letter(item, from, removed, now);
        } else {
            self.at(letters).place(item, false, false, now);
            self.make_room(now);
        }
    }

    /// Ends items in memory: their requests may be acked, and the store deletes their rows. They must be on
    /// no list.
    pub(super) fn finish(&mut self, ids: &[ItemId]) {
        self.shared.detach(ids);
        ids.iter().for_each(|id| self.home_of(*id).finish_detached(*id));
    }

    /// Ends an item that is in the store alone.
    pub(super) fn finish_far(&mut self, stored: &Stored) {
        let Some(queue) = self.queues.of_stored(stored) else { return };
        self.at(queue).finish_far(stored);
    }

    /// Gives an item in memory `due` as its own time. It must be on no list and in no flight.
    pub(super) fn reschedule(&mut self, id: ItemId, due: u64, now: Now) {
        self.home_of(id).reschedule(id, due, now);
        self.make_room(now);
    }

    /// Gives an item in the store alone `due` as its own time. It stays there; if it is due soon, the loader
    /// reads it as it reads any other.
    pub(super) fn reschedule_far(&mut self, stored: &Stored, due: u64) {
        let Some(queue) = self.queues.of_stored(stored) else { return };
        self.at(queue).reschedule_far(stored, due);
    }

    /// Writes the deferred items whose confirm did not come in time. The queues of large ones lag.
    pub(super) fn store_deferred(&mut self, now: Now) {
        for large in [false, true] {
            while let Some((at, id)) = self.shared.deferred[usize::from(large)].front().copied() {
                let item =
                    self.items().get(id).filter(|item| matches!(item.residence(), Residence::Pending(_)));
                let queue = item.map(Item::queue);
                if queue.is_some() && at > now.mono {
                    break;
                }
                self.shared.deferred[usize::from(large)].pop_front();
                if let Some(queue) = queue {
                    if large {
                        self.queues.at(queue).at_work().set(Condition::Lagging, true);
                    }
                    self.home_of(id).store_pending(id, now);
                }
            }
        }
    }

    // ---- memory -------------------------------------------------------------------------------------------

    /// Takes a stored item into memory, unless it is there already, has ended since the read, or is passed
    /// over. Returns its handle if it was taken. `back`: it was passed over before.
    pub(super) fn restore(&mut self, mut stored: Stored, back: bool, now: Now) -> Option<ItemId> {
        let seq = stored.key.seq;
        if self.items().by_seq(seq).is_some() || !self.shared.reads.is_current(ReadLine::Ordered, seq) {
            return None;
        }
        // Since the read began, its window may have closed and the item may have left memory.
        self.shared.reads.renew(&mut stored);
        let queue = self.queues.id(stored.queue());
        if aside::passes_over(self, queue, &stored, back, now) {
            return None;
        }
        Some(self.at(queue).restore(stored, now))
    }

    /// When the next item is due or the next pause or rate ends, UTC ms.
    pub(super) fn next_end(&self) -> Option<u64> {
        [self.shared.next_due(), self.queues.next_end()].into_iter().flatten().min()
    }

    /// Drops notes of changes that no open read can conflict with.
    pub(super) fn tidy_reads(&mut self) {
        let most = self.thresholds().noted;
        self.shared.reads.tidy(&mut self.shared.watch, most);
    }

    /// Moves the items that are due last, all of them after `after`, out of memory. Returns how many.
    pub(super) fn evict_furthest(&mut self, count: usize, after: u64, now: Now) -> usize {
        if !self.shared.journal.is_durable() {
            return 0;
        }
        let most = self.thresholds().evicted;
        let SharedItems { items, schedule, .. } = &mut self.shared;
        let key_of = |place| items.at(place).map_or(Key::default(), |id| items[id].place());
        let places = schedule.take_furthest(count.min(most), after, key_of);
        let ids: Vec<ItemId> = places.into_iter().filter_map(|place| items.at(place)).collect();
        for id in &ids {
            if let Stage::Windowed { pos, .. } = self.items()[*id].stage() {
                self.shared.set_stage(*id, Stage::Windowed { pos, scheduled: false });
            }
            self.home_of(*id).evict(*id, now);
        }
        ids.len()
    }

    /// If an item came in beyond the bound of memory, items that are due later leave memory for it.
    fn make_room(&mut self, now: Now) {
        if let Some(after) = self.shared.crowded_in.take() {
            self.evict_furthest(self.shared.budget.rows / 16 + 1, after, now);
        }
    }

    /// Moves out of memory, one portion a turn, the due items of queues that are held back and what exceeds
    /// the bound of memory. Returns whether more is left to do.
    pub(super) fn clear_out(&mut self, now: Now) -> bool {
        let mut left = self.thresholds().evicted;
        let held_back = self.evict_held_back(&mut left, now);
        let leaving = self.evict_leaving(&mut left, now);
        self.evict_beyond(now) || held_back || leaving
    }

    fn evict_held_back(&mut self, left: &mut usize, now: Now) -> bool {
        while *left > 0 {
            let Some(queue) = self.shared.evicting.front().copied() else { break };
            if self.queues.get(queue).is_none_or(|queue| !queue.is_held_back())
                || !self.at(queue).clear_out(left, now).ready()
            {
                self.shared.evicting.pop_front();
                if self.queues.get(queue).is_some() {
                    let mut queue = self.queues.at(queue);
                    queue.active_mut().set(Condition::Evicting, false);
                    queue.requeue();
                }
            }
        }
        !self.shared.evicting.is_empty()
    }

    /// Items that left their batches and wait for a later time again, as after a step of the clock, may
    /// exceed the bound of memory only by as much as reads may.
    fn evict_beyond(&mut self, now: Now) -> bool {
        let most = self.thresholds().few * (self.thresholds().reads + 1);
        let beyond = self.shared.rows_beyond().saturating_sub(most);
        beyond > 0 && self.evict_furthest(beyond, now.wall, now) > 0 && self.shared.rows_beyond() > most
    }

    /// Moves stalled items out of memory, at most `most`, to make room for the rows that this queue waits
    /// for. Only queues that have nothing ready give any up: a queue that waits for later rows than this one
    /// all of them, the others those at or behind their bound. Returns how many left.
    pub(super) fn evict_stalled(&mut self, queue: QueueId, most: usize, now: Now) -> usize {
        if !self.shared.journal.is_durable() {
            return 0;
        }
        let waits_for = |live: &LiveItems, id: QueueId| (live.queues[id].near_until().due, id);
        let others = self.shared.stalled.iter().copied().filter(|id| *id != queue);
        let others = others.take(self.thresholds().ranges * 4);
        let ids: Vec<QueueId> = core::iter::once(queue).chain(others).collect();
        let mut left = most;
        for id in ids {
            let stalled_alone = |live: &LiveItems| {
                let ready = live.queues.get(id)?.active()?.ready();
                ready.has_stalled().then_some(ready.is_empty())
            };
            if left > 0 && stalled_alone(self) == Some(true) {
                let later = waits_for(self, id) > waits_for(self, queue);
                let bound = if later { Key::default() } else { self.queues[id].near_until() };
                self.at(id).clear_out(&mut left, now).stalled(bound);
            }
            if stalled_alone(self).is_none() {
                self.shared.stalled.remove(&id);
            }
        }
        most - left
    }

    /// The queue is held back from now on: its due items leave memory where a store holds them.
    pub(super) fn begin_evicting(&mut self, queue: QueueId, now: Now) {
        self.call_all(queue);
        let mut known = self.queues.at(queue);
        known.begin_hold(now.wall);
        if !self.shared.journal.is_durable() || mutated(Mutant::ParkedStaysInMemory) {
            return;
        }
        let active = known.active_mut();
        let holds = !active.ready().is_empty() || active.ready().has_stalled();
        if holds && !active.set(Condition::Evicting, true) {
            self.shared.evicting.push_back(queue);
        }
        known.mark_for_loader();
    }

    // ---- time ---------------------------------------------------------------------------------------------

    /// Takes at most `limit` items whose time has come out of the schedule. Returns whether these are all.
    pub(super) fn take_due(&mut self, limit: usize, now: Now) -> bool {
        aside::call_paced(self, now);
        for queue in core::mem::take(&mut self.shared.held) {
            if self.queues.get(queue).is_some() {
                self.queues.at(queue).run();
            }
        }
        let early = if mutated(Mutant::Early) { 7 } else { 0 };
        // All rows are visited in one loop without other work in between: they are scattered in memory, and
        // the processor fetches several at a time.
        let SharedItems { items, schedule, .. } = &mut self.shared;
        let mut due = Vec::new();
        let taken = schedule.take_due(now.wall + early, limit, |place| {
            due.extend(items.at(place).map(|id| (items[id].place(), id, items[id].stage())));
        });
        let key_of = |place| items.at(place).map_or(Key::default(), |id| items[id].place());
        self.shared.behind = match taken {
            Taken::All => Behind::Windows,
            Taken::Most => schedule.first_key(key_of).map_or(Behind::Windows, Behind::Items),
        };
        due.sort_unstable_by_key(|(key, ..)| *key);
        self.shared.work += due.len() as u64;
        for (_, id, stage) in due {
            match stage {
                Stage::Scheduled => self.home_of(id).make_ready(id, now),
                // The monotonic clock decides when its window ends.
                Stage::Windowed { pos, .. } => {
                    self.shared.set_stage(id, Stage::Windowed { pos, scheduled: false });
                }
                Stage::Ready | Stage::Flying(_) | Stage::Detached => {
                    debug_assert!(false, "what is due twice was not taken out of the schedule");
                }
            }
        }
        taken == Taken::All
    }

    /// Closes windows whose time has come, in order, as many as a turn has time for. Returns whether these
    /// are all.
    pub(super) fn close_ripe(&mut self, turn: Thresholds, now: Now) -> bool {
        let (ripe, all) = self.shared.customers.take_due(&self.queues, turn, now);
        for (customer, cause) in ripe {
            self.close_window(customer, cause, now);
        }
        if all {
            self.shared.behind = Behind::Nothing;
        }
        all
    }

    /// Closes a customer's window: its members become due and stay so.
    pub(super) fn close_window(&mut self, id: CustomerId, cause: ClosedBy, now: Now) {
        self.at(self.shared.customers[id].queue).of(id).close_window(cause, now);
    }

    /// Hands the changed rows of windows to the journal.
    pub(super) fn flush_windows(&mut self) {
        self.shared.customers.flush(&self.queues, self.shared.journal.ops());
    }

    /// Call after a step of the wall clock: expiries fall at other moments, and other rows are to be loaded.
    /// The cost grows with the number of queues and windows.
    pub(super) fn recheck(&mut self, now: Now) {
        for queue in self.queues.ids().collect::<Vec<_>>() {
            if let Some(active) = self.queues[queue].active() {
                self.shared.customers.recheck(active, now);
            }
            self.queues.at(queue).mark_for_loader();
        }
    }

    pub(super) fn configure(&mut self, budget: Budget, now: Now) {
        self.shared.budget = budget;
        self.shared.customers.configure(&self.queues, budget.rows, now);
        for queue in self.queues.ids().collect::<Vec<_>>() {
            self.call_all(queue);
            self.queues.at(queue).passed_mut().want_all();
        }
        for id in self.items().ids().collect::<Vec<_>>() {
            let (queue, key) = (self.items()[id].queue(), self.items()[id].place());
            if !self.items()[id].stage().is_in_batch() {
                self.queues.at(queue).at_work().may_drop(key, id);
            }
        }
    }

    // ---- a former life ------------------------------------------------------------------------------------

    /// Restores what the former life left: windows, and customers that were held back.
    pub(super) fn reopen(&mut self, opened: &Opened, now: Now) {
        self.bring_back(opened, now);
        for row in &opened.held {
            let queue = self.queues.id(&row.application);
            self.queues.at(queue).hold(&row.customer, row.until.unwrap_or(FOR_EVER));
        }
        let born = self.shared.journal.next_number();
        for row in &opened.windows {
            let queue = self.queues.id(&row.application);
            let mut at = self.at(queue);
            let id = at.customer_id(&row.customer);
            at.customer(id).reopen(row, born, now);
        }
    }

    /// For a clock that was set back before this life: members of closed windows are due now, and members of
    /// short windows that were open wait for `window` at most. Long windows have rows of their own, from
    /// which they are reopened.
    fn bring_back(&mut self, opened: &Opened, now: Now) {
        let long: BTreeSet<(&str, &str, u64)> =
            opened.windows.iter().map(|row| (&*row.application, &*row.customer, row.window)).collect();
        for row in &opened.ahead {
            if row.closed_by.is_none() && long.contains(&(&*row.application, &*row.customer, row.window)) {
                continue;
            }
            let queue = self.queues.id(&row.application);
            // No later than the span that the next start reads ahead, should the clock be set back once more.
            let window = self.queues.settings_of(queue).window.min(HORIZON_MS);
            let due = now.wall + if row.closed_by.is_some() { 0 } else { window };
            if due >= row.due || mutated(Mutant::AheadForgotten) {
                continue;
            }
            let closed = ClosingRow {
                application: Arc::clone(&row.application),
                end: row.end,
                window: row.window,
                due,
                cause: row.closed_by.unwrap_or(ClosedBy::Time),
            };
            let mut at = self.at(queue);
            at.close_far(&closed);
            at.shared.close_in_store(closed);
        }
    }

    /// Panics where an invariant is broken.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut resident: alloc::collections::BTreeMap<QueueId, (u64, u64)> =
            alloc::collections::BTreeMap::new();
        let mut seconds =
            alloc::collections::BTreeMap::<QueueId, alloc::collections::BTreeMap<u64, u32>>::new();
        let batched = self.items().ids().filter(|id| self.items()[*id].stage().is_in_batch()).count();
        assert_eq!(self.shared.rows_in_batches(), batched, "items in batches");
        for id in self.items().ids() {
            let item = &self.items()[id];
            let counts = resident.entry(item.queue()).or_default();
            if item.is_stored() {
                counts.0 += 1;
                let of_queue = seconds.entry(item.queue()).or_default();
                *of_queue.entry(item.due() / 1_000).or_default() += 1;
            } else {
                counts.1 += 1;
            }
            if let Stage::Windowed { pos, .. } = item.stage() {
                let window = item.customer().and_then(|customer| self.customers().window(customer));
                let window = window.expect("a member has an open window");
                assert_eq!(
                    window.members().get(pos as usize),
                    Some(&id),
                    "it stands where its window has it"
                );
                let known = window.far() as usize + window.members().len();
                assert_eq!(window.count() as usize, known, "members of {}", self.queues[item.queue()].name());
            }
        }
        self.check_behind();
        for queue in self.queues.ids() {
            let (stored, pending) = resident.get(&queue).copied().unwrap_or_default();
            let known = &self.queues[queue];
            assert_eq!(known.resident(), stored, "resident items of queue {}", known.name());
            let due = seconds.remove(&queue).unwrap_or_default();
            let counted =
                known.active().map(|active| active.resident().seconds().clone()).unwrap_or_default();
            assert_eq!(counted, due, "when those are due of queue {}", known.name());
            assert_eq!(known.total() - known.stored(), pending, "pending items of queue {}", known.name());
        }
        let loading = self.queues.ids().filter_map(|id| self.queues[id].active()?.loading());
        let back = self.queues.ids().filter_map(|id| self.queues[id].passed().reading());
        let reserved: usize =
            loading.map(|loading| loading.rows).chain(back.map(|reading| reading.rows)).sum();
        assert_eq!(self.shared.reserved_rows(), reserved, "rows that reads under way may bring");
    }
}
