//! Moves between memory and store: into memory, out of it, and the rows written on the way.

use super::*;
use alloc::vec::Vec;

impl<'s> QueueItems<'s> {
    /// Takes a stored item into memory.
    pub(super) fn restore(&mut self, stored: Stored, now: Now) -> ItemId {
        let windowed = stored.is_windowed();
        let customer = stored.customer.as_deref().filter(|_| stored.dead.is_none());
        let customer = customer.map(|name| self.customer_id(name));
        let (place, is_dead) = (stored.place(), stored.dead.is_some());
        let item = Item::restored(stored, self.queue.id(), customer);
        let (key, closed) = (item.key(), item.due() < item.accepted_due());
        self.queue.add_restored(place);
        let id = self.insert(item);
        let later = place.due > now.wall && !is_dead;
        let window = customer.and_then(|customer| self.shared.customers.window(customer));
        let ripens = windowed && window.is_some_and(|window| window.still_holds(key, now));
        // After the clock was set back the moment at which its window closed is in the future, but the window
        // stays closed.
        let rejoins = ripens || windowed && later && (!closed || mutated(Mutant::ClosedRejoins));
        match customer.filter(|_| rejoins) {
            Some(customer) if self.of(customer).rejoin_window(id, now) => {
                self.of(customer).add_member(id, now);
            }
            Some(_) | None if later => self.shared.await_time(id),
            Some(_) | None => {
                let window = customer.and_then(|customer| self.shared.customers.window(customer));
                if windowed && window.is_some_and(|window| window.holds(key)) {
                    self.shared.items[id].set(ItemFlag::Stray, true);
                }
                self.push_ready(id);
            }
        }
        id
    }

    /// Moves an item out of memory; from then on it waits in the store alone. It must be on no list but that
    /// of its open window.
    pub(super) fn evict(&mut self, id: ItemId, now: Now) {
        let item = &self.shared.items[id];
        if item.is_orphaned() {
            return self.forget(id);
        }
        let (customer, place, stage, member) = (item.customer(), item.place(), item.stage(), member_of(item));
        let customer_row = self.row(item).customer();
        let passed = customer.and_then(|customer| self.of(customer).passed(place, now));
        self.shared.customers.pin(customer);
        if let (Some(customer), Stage::Windowed { pos, .. }) = (customer, stage) {
            self.of(customer).forget_member(pos);
            self.customer(customer).add_far(member, now.wall + HORIZON_MS);
        }
        let mut item = self.remove(id);
        if !mutated(Mutant::EvictUntold) {
            self.shared.watch.changed(item.identity());
        }
        if item.is_stored() {
            self.rewrite(&item, customer_row);
            self.queue.evicted(place, passed.as_deref());
        } else {
            item.set(ItemFlag::Indexed, customer_row.is_some());
            self.write(&mut item);
            self.queue.remove_pending();
            self.queue.add_far(place, passed.as_deref());
        }
        if let (Some(customer), true) = (customer, passed.is_some()) {
            self.of(customer).want_passed();
        }
        self.unpin(customer);
    }

    /// Writes what the row of an item that leaves memory lacks: facts that have changed, or its row under the
    /// customer.
    fn rewrite(&mut self, item: &Item, customer: Option<(Arc<str>, Arc<str>)>) {
        if item.is(ItemFlag::Amended) {
            let (place, none) = (self.row(item).place(), IndexRows::default());
            let (from, to, standing, weight) = (place.clone(), place, standing(item), item.weight());
            let (removed, written) = (none.clone(), none);
            self.shared.journal.push(Op::Move { from, to, removed, written, standing, weight });
            self.shared.reads.note_rewritten(rewritten(item));
        }
        // An item of a former life may have no such row.
        let unsure = item.key().due < self.queue.former_unindexed();
        let lacks = customer.is_some() && (unsure || !item.is(ItemFlag::Indexed));
        if lacks && !mutated(Mutant::IndexForgotten) {
            let rows = IndexRows { identity: None, customer };
            self.shared.journal.ops().push(Op::Index { key: item.key(), rows });
        }
    }

    /// Starts to move due items out of memory, at most `left`, which is counted down.
    pub(super) fn clear_out<'q>(&'q mut self, left: &'q mut usize, now: Now) -> Clearance<'q, 's> {
        Clearance { at: self, left, now }
    }

    // ---- the table of items -------------------------------------------------------------------------------

    pub(super) fn insert(&mut self, item: Item) -> ItemId {
        let key = item.place();
        let id = self.shared.insert(item);
        self.queue.active_mut().may_drop(key, id);
        self.queue.may_trim();
        id
    }

    pub(super) fn remove(&mut self, id: ItemId) -> Item {
        self.shared.detach(&[id]);
        self.take_out(id)
    }

    /// The rest of a removal, after [`SharedItems::detach`].
    pub(super) fn take_out(&mut self, id: ItemId) -> Item {
        let item = self.shared.take_out(id);
        if let Some(customer) = item.customer() {
            self.customer(customer).remove_row();
        }
        self.queue.active_mut().may_not_drop(item.place(), id);
        self.queue.may_trim();
        item
    }

    /// Takes an item off the list that it is on; an item in flight stays in its flight.
    pub(crate) fn unlist(&mut self, id: ItemId) {
        let SharedItems { items, schedule, .. } = &mut *self.shared;
        let item = &items[id];
        let (key, customer, member) = (item.place(), item.customer(), member_of(item));
        match item.stage() {
            Stage::Scheduled => schedule.remove(items::place_of(id), key),
            Stage::Windowed { pos, scheduled } => {
                if scheduled {
                    schedule.remove(items::place_of(id), key);
                }
                if let Some(customer) = customer {
                    self.of(customer).forget_member(pos);
                    self.of(customer).leave_window(member, false);
                }
            }
            // Its entry is skipped when its turn comes.
            Stage::Ready => {
                count_due(self, customer, -1);
                customer.into_iter().for_each(|customer| self.of(customer).call_paced());
            }
            Stage::Flying(_) | Stage::Detached => return,
        }
        self.shared.set_stage(id, Stage::Detached);
    }

    /// Writes an item that is in memory alone; it stays in memory.
    pub(super) fn store_pending(&mut self, id: ItemId, now: Now) {
        if !self.shared.journal.is_durable() {
            return;
        }
        let item = &self.shared.items[id];
        let (key, residence, stored) = (item.place(), item.residence(), self.row(item).stored());
        let token = self.shared.journal.put(stored, false);
        if let Residence::Pending(tag) = residence {
            self.shared.journal.safe_with(token, tag);
        }
        self.shared.items[id].set_stored(token);
        self.queue.add_resident(key);
        self.queue.remove_pending();
        self.shared.keep_content(id, now);
    }
}

/// Moves due items of one queue out of memory, as many as `left` allows.
#[derive(Debug)]
pub(super) struct Clearance<'q, 's> {
    at: &'q mut QueueItems<'s>,
    left: &'q mut usize,
    now: Now,
}

impl Clearance<'_, '_> {
    /// Stalled items at or behind this bound, the last first.
    pub(super) fn stalled(&mut self, bound: Key) {
        let mut entries = self.at.queue.ready_mut().take_stalled();
        let mut stays = Vec::new();
        while *self.left > 0 {
            let Some(entry) = entries.pop() else { break };
            let before = *self.left;
            if !self.entry(entry, bound) {
                continue;
            }
            match entry {
                // Its first item may have waited for those that left, as the order in the store is not that
                // of arrival.
                Entry::Customer(_) if *self.left < before => {
                    self.put_in_ready_queue(entry);
                    self.at.queue.run();
                }
                Entry::Customer(_) | Entry::Single(_) => stays.push(entry),
            }
        }
        entries.extend(stays.into_iter().rev());
        self.at.queue.ready_mut().put_stalled(entries);
    }

    /// Items of the ready queue, the last first. Returns whether any are left.
    pub(super) fn ready(&mut self) -> bool {
        while *self.left > 0 {
            let Some(entry) = self.at.queue.ready_mut().take_last() else {
                self.at.shared.stalled.remove(&self.at.queue.id());
                return false;
            };
            if self.entry(entry, Key::default()) {
                self.put_in_ready_queue(entry);
            }
        }
        true
    }

    fn put_in_ready_queue(&mut self, entry: Entry) {
        if let Entry::Customer(id) = entry {
            self.at.of(id).turn_to(CustomerTurn::InLine);
        }
        self.at.queue.ready_mut().push(entry);
    }

    /// Due items of an entry that has been taken out, at or behind this bound, the last first. The first may
    /// be behind it as well, as the order in the store is not that of arrival. Returns whether the entry has
    /// items left.
    fn entry(&mut self, entry: Entry, bound: Key) -> bool {
        let SharedItems { items, customers, .. } = &mut *self.at.shared;
        let mut ids = Vec::new();
        let all = mutated(Mutant::LeavingMakesRoom);
        let is_behind = |id: ItemId| all || items.get(id).is_none_or(|item| item.place() >= bound);
        match entry {
            Entry::Single(id) => ids.push(id),
            Entry::Customer(customer) => {
                if customers.get(customer).is_none() {
                    return false;
                }
                let ready = &mut customers[customer].ready;
                while ids.len() < *self.left {
                    let last = ready.pop_last_if(is_behind).or_else(|| ready.pop_first_if(is_behind));
                    let Some(id) = last else { break };
                    ids.push(id);
                }
            }
        }
        *self.left = self.left.saturating_sub(ids.len());
        for id in ids {
            let item = self.at.shared.items.get(id).filter(|item| item.stage() == Stage::Ready);
            let Some(customer) = item.map(Item::customer) else { continue };
            count_due(self.at, customer, -1);
            self.at.evict(id, self.now);
        }
        let Entry::Customer(customer) = entry else { return false };
        let is_left = !self.at.shared.customers[customer].ready.is_empty();
        if !is_left {
            self.at.of(customer).turn_to(CustomerTurn::None);
            self.at.of(customer).want_passed();
            self.at.customer(customer).release();
        }
        is_left
    }
}
