//! Everything that has not ended, wherever it lies: one way in, one across, one out, and the ways between
//! memory and store.
//!
//! In: [`LiveItems::admit`]. Across, to the dead letters: [`LiveItems::move_to_dead_letters`]; to another time:
//! [`LiveItems::reschedule`] and [`LiveItems::reschedule_far`]. Out: [`LiveItems::finish`] and
//! [`LiveItems::finish_far`]. Into memory: [`LiveItems::restore`]; out of it: [`QueueItems::evict`]. Each keeps all
//! that belongs together: the item, the counts of its queue, its customer, its window, its index rows, and
//! what reads and questions under way must not believe any more. Nothing else adds or removes an item.
//!
//! What happens to an item happens in its queue, [`QueueItems`], which names no other and has at hand what
//! all queues share, [`SharedItems`]; what happens to a customer's window, in [`CustomerItems`]. Here is what
//! goes over several queues: who gives way when memory is short, what is due next, and the step to the dead
//! letters.

mod aside;
mod due;
mod members;
mod memory;
mod shared;
mod times;
mod ways;

use super::customers::{Customer, CustomerMut, CustomerTurn, Customers};
pub(super) use super::event::HORIZON_MS;
use super::event::{ClosingRow, IndexRows, Op, Opened, Place, Stored, FOR_EVER};
use super::ids::{CustomerId, ItemId, QueueId};
use super::items::{self, Address, Item, ItemFlag, Items, Placement, Residence, Stage};
use super::journal::Journal;
use super::mutant::{mutated, Mutant};
use super::queue::{Condition, Entry, QueueMut, Queues};
use super::reads::ReadLine;
use super::schedule::Taken;
use super::types::{
    AppSettings, Budget, ClosedBy, Content, Dead, Delivery, DuplicateRule, Identity, Key, NewItem, Now,
    Thresholds,
};
use super::window::{self, Member, Plan, Window};
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::Arc;

use aside::count_due;
pub(super) use aside::fill_of;
use members::{CustomerItems, Formed};
use shared::{rewritten, standing, ItemRow, SharedItems};
use ways::Dying;

/// What is due at once may be confirmed before it is stored; it is stored when it was not, after this time,
/// ms.
const DEFER_MS: u64 = 20;

/// Payloads due within this time stay in memory as long as there is room for them, ms.
const KEEP_MS: u64 = 30_000;

/// Where an item came from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) delivery: Delivery,
    /// When it arrived, UTC ms.
    pub(super) received: u64,
    pub(super) redelivered: bool,
}

/// What decides when a new item is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timing {
    /// It named this time, or the past: UTC ms.
    Own(u64),
    /// With its customer's window.
    Windowed,
    /// Due at once.
    Immediate,
}

/// How a new item is taken in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admission {
    /// Of its application.
    pub(super) queue: QueueId,
    pub(super) origin: Origin,
    pub(super) timing: Timing,
    /// Planned end of the window that it takes over from the item in whose place it comes, wall clock.
    pub(super) inherited: Option<u64>,
    /// It may be confirmed before it is written: its queue has nothing before it, and the way out is free.
    pub(super) may_defer: bool,
}

/// How far the clock is ahead of what has been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    Nothing,
    /// Windows are over that have not been closed.
    Windows,
    /// So may be windows, and items are due that are still in the schedule: the key of the first.
    Items(Key),
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct LiveItems {
    pub(super) queues: Queues,
    pub(super) shared: SharedItems,
}

/// What of the stock is one queue's, and is changed: it names no other queue.
#[derive(Debug)]
pub(super) struct QueueItems<'s> {
    queue: QueueMut<'s>,
    shared: &'s mut SharedItems,
}

impl LiveItems {
    pub(super) fn new(queues: Queues, journal: Journal, budget: Budget, now: Now) -> Self {
        LiveItems { queues, shared: SharedItems::new(journal, budget, now) }
    }

    /// At how much the engine does otherwise.
    pub(super) fn thresholds(&self) -> &Thresholds {
        self.queues.thresholds()
    }

    /// To be looked at: what is in memory changes by the ways below.
    pub(super) fn items(&self) -> &Items {
        &self.shared.items
    }

    /// To be looked at, likewise.
    pub(super) fn customers(&self) -> &Customers {
        &self.shared.customers
    }

    /// What is this queue's.
    pub(super) fn at(&mut self, queue: QueueId) -> QueueItems<'_> {
        QueueItems { queue: self.queues.at(queue), shared: &mut self.shared }
    }

    /// What is that of this item's queue.
    pub(super) fn home_of(&mut self, id: ItemId) -> QueueItems<'_> {
        self.at(self.shared.items[id].queue())
    }

    /// An item as the store knows it.
    pub(super) fn row<'a>(&'a self, item: &'a Item) -> ItemRow<'a> {
        self.shared.row(self.queues[item.queue()].name(), item)
    }

    /// The due of the item that has waited longest in the queue's line, as far as that is cheap to know.
    pub(super) fn first_due(&self, queue: QueueId) -> Option<u64> {
        let active = self.queues[queue].active()?;
        let id = match active.ready().first()? {
            Entry::Single(id) => id,
            Entry::Customer(customer) => self.customers().get(customer)?.ready.first()?,
        };
        self.items().get(id).map(|item| item.due())
    }

    // ---- in, across, out ----------------------------------------------------------------------------------

    /// Takes a new item in; its arrival number.
    pub(super) fn admit(&mut self, new: NewItem, admission: Admission, now: Now) -> u64 {
        let seq = self.at(admission.queue).admit(new, admission, now);
        self.make_room(now);
        seq
    }

    /// Takes a request in that is a dead letter from the start; its arrival number.
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

    /// Gives an item up: from now on it is a dead letter. It is on no list. `former`: the identity it lived
    /// under, where that is to be remembered with the confirm of the dead letter.
    pub(super) fn move_to_dead_letters(
        &mut self,
        id: ItemId,
        dead: Dead,
        former: Option<Identity>,
        now: Now,
    ) {
        let letters = self.queues.dead_letters();
        let Some(Dying { mut item, meant_for, from, removed }) = self.home_of(id).take_dying(id) else {
            return;
        };
        item.become_dead_letter(dead, meant_for, former, letters, now.wall);
        if item.is_stored() {
            self.at(letters).place_letter(item, from, removed, now);
        } else {
            self.at(letters).place(item, false, false, now);
            self.make_room(now);
        }
    }

    /// Items in memory are done with: their requests may be acked, and the store forgets them. They are on no
    /// list.
    pub(super) fn finish(&mut self, ids: &[ItemId]) {
        self.shared.detach(ids);
        ids.iter().for_each(|id| self.home_of(*id).finish_detached(*id));
    }

    /// An item in the store alone is done with.
    pub(super) fn finish_far(&mut self, stored: &Stored) {
        let Some(queue) = self.queues.find(stored.queue()) else { return };
        self.at(queue).finish_far(stored);
    }

    /// An item in memory is due then, at a time of its own. It is on no list, and in no flight.
    pub(super) fn reschedule(&mut self, id: ItemId, due: u64, now: Now) {
        self.home_of(id).reschedule(id, due, now);
        self.make_room(now);
    }

    /// An item in the store alone is due then, at a time of its own. It stays there: what is due soon is read
    /// as any other.
    pub(super) fn reschedule_far(&mut self, stored: &Stored, due: u64) {
        let Some(queue) = self.queues.find(stored.queue()) else { return };
        self.at(queue).reschedule_far(stored, due);
    }

    /// Items whose confirm did not come in time are written now.
    pub(super) fn store_deferred(&mut self, now: Now) {
        while let Some((at, id)) = self.shared.deferred.front().copied() {
            let item = self.items().get(id);
            let pending = item.is_some_and(|item| matches!(item.residence(), Residence::Pending(_)));
            if pending && at > now.mono {
                break;
            }
            self.shared.deferred.pop_front();
            if pending {
                self.home_of(id).store_pending(id, now);
            }
        }
    }

    // ---- memory -------------------------------------------------------------------------------------------

    /// Takes a stored item into memory, unless it is there or has ended meanwhile, or is passed over. Its
    /// handle, where it came. `back`: it was passed over before.
    pub(super) fn restore(&mut self, mut stored: Stored, back: bool, now: Now) -> Option<ItemId> {
        let seq = stored.key.seq;
        if self.items().by_seq(seq).is_some() || !self.shared.reads.is_current(ReadLine::Ordered, seq) {
            return None;
        }
        // Its window may have closed, and it have left memory, since the read began.
        self.shared.reads.renew(&mut stored);
        let queue = self.queues.id(stored.queue());
        if aside::passes_over(self, queue, &stored, back, now) {
            return None;
        }
        Some(self.at(queue).restore(stored, now))
    }

    /// When the next item is due, or a pause or a rate ends, UTC ms.
    pub(super) fn next_end(&self) -> Option<u64> {
        [self.shared.next_due(), self.queues.next_end()].into_iter().flatten().min()
    }

    /// Drops notes of changes that no open read can conflict with.
    pub(super) fn tidy_reads(&mut self) {
        let most = self.thresholds().noted;
        self.shared.reads.tidy(&self.shared.watch, most);
    }

    /// Items due last, all after this moment, leave memory.
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

    /// An item has come in beyond the bound of memory: what is due later leaves it.
    fn make_room(&mut self, now: Now) {
        if let Some(after) = self.shared.crowded_in.take() {
            self.evict_furthest(self.shared.budget.rows / 16 + 1, after, now);
        }
    }

    /// What is to leave memory does so, a chunk a turn: what is due in queues that are held back, and what
    /// is beyond the bound. Whether more is to do.
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

    /// What was in batches and waits for a later time again, as after a step of the clock, does not stay
    /// beyond what reads may bring in beyond the bound of memory.
    fn evict_beyond(&mut self, now: Now) -> bool {
        let most = self.thresholds().few * (self.thresholds().reads + 1);
        let beyond = self.shared.rows_beyond().saturating_sub(most);
        beyond > 0 && self.evict_furthest(beyond, now.wall, now) > 0 && self.shared.rows_beyond() > most
    }

    /// Due items that wait for what has still to be read, with nothing else of their queue due, leave memory
    /// for what this queue waits for, at most so many: of its own those that come behind it, and of queues
    /// that wait for something later all. How many have.
    pub(super) fn evict_stalled(&mut self, queue: QueueId, most: usize, now: Now) -> usize {
        if !self.shared.journal.is_durable() {
            return 0;
        }
        let waits_for = |live: &LiveItems, id: QueueId| (live.queues[id].near_until().due, id);
        let others = self.shared.stalled.iter().copied().filter(|id| *id != queue);
        let others = others.take(self.thresholds().ranges * 4);
        let ids: Vec<QueueId> = std::iter::once(queue).chain(others).collect();
        let mut left = most;
        for id in ids {
            let line = |live: &LiveItems| {
                let line = live.queues.get(id)?.active()?.ready();
                line.has_stalled().then_some(line.is_empty())
            };
            if left > 0 && line(self) == Some(true) {
                let later = waits_for(self, id) > waits_for(self, queue);
                let bound = if later { Key::default() } else { self.queues[id].near_until() };
                self.at(id).clear_out(&mut left, now).stalled(bound);
            }
            if line(self).is_none() {
                self.shared.stalled.remove(&id);
            }
        }
        most - left
    }

    /// The queue is held back: its due items are to leave memory, where they can.
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

    /// Items whose time has come, at most `limit` of them. Whether these are all.
    pub(super) fn take_due(&mut self, limit: usize, now: Now) -> bool {
        aside::call_paced(self, now);
        for queue in std::mem::take(&mut self.shared.held) {
            if self.queues.get(queue).is_some() {
                self.queues.at(queue).run();
            }
        }
        let early = if mutated(Mutant::Early) { 7 } else { 0 };
        // All rows are looked at in one go, and no other work between: they lie anywhere in memory, and the
        // processor fetches several at a time.
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
                // Its window's end is a matter of the monotonic clock.
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

    /// Closes windows whose moment has come, in order, as many as a turn has time for. Whether these are all.
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

    /// Ends a customer's window: its members are due, for good.
    pub(super) fn close_window(&mut self, id: CustomerId, cause: ClosedBy, now: Now) {
        self.at(self.shared.customers[id].queue).of(id).close_window(cause, now);
    }

    /// Hands over the rows of windows that have changed.
    pub(super) fn flush_windows(&mut self) {
        self.shared.customers.flush(&self.queues, self.shared.journal.ops());
    }

    /// After a step of the wall clock: expiries lie elsewhere, and other rows are to be loaded. The cost is
    /// that of all queues and windows.
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
        self.shared.customers.configure(&self.queues, now);
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

    /// Open windows as the former life left them.
    pub(super) fn reopen(&mut self, opened: &Opened, now: Now) {
        self.bring_back(opened, now);
        for row in &opened.held {
            let queue = self.queues.id(&row.application);
            self.queues.at(queue).hold(&row.customer, row.until.unwrap_or(FOR_EVER));
        }
        for row in &opened.windows {
            let queue = self.queues.id(&row.application);
            let mut at = self.at(queue);
            let id = at.customer_id(&row.customer);
            at.customer(id).reopen(row, now);
        }
    }

    /// The clock was set back before this life: members of windows that had closed are due, and those of
    /// short ones that were open wait for `window` at most. Long windows have rows, which see to their own.
    fn bring_back(&mut self, opened: &Opened, now: Now) {
        let long: BTreeSet<(&str, &str, u64)> =
            opened.windows.iter().map(|row| (&*row.application, &*row.customer, row.window)).collect();
        for row in &opened.ahead {
            if row.closed_by.is_none() && long.contains(&(&*row.application, &*row.customer, row.window)) {
                continue;
            }
            let queue = self.queues.id(&row.application);
            // No later than the next start will look, should the clock be set back once more.
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
        let mut resident: std::collections::BTreeMap<QueueId, (u64, u64)> = std::collections::BTreeMap::new();
        let mut seconds = std::collections::BTreeMap::<QueueId, std::collections::BTreeMap<u64, u32>>::new();
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
