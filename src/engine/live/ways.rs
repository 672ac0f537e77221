//! How an item enters its queue, and how it leaves it for good.

use super::*;

/// An item that has left its queue to be a dead letter.
#[derive(Debug)]
pub(super) struct Dying {
    pub(super) item: Item,
    /// Application and customer to which it was addressed.
    pub(super) meant_for: Address,
    /// Place of its row, and its index rows.
    pub(super) from: Place,
    pub(super) removed: IndexRows,
}

impl<'s> QueueItems<'s> {
    /// The items of one customer of this queue.
    pub(crate) fn of<'q>(&'q mut self, customer: CustomerId) -> CustomerItems<'q, 's> {
        CustomerItems { id: customer, at: self }
    }

    /// The customer of this name, added if it is not known.
    pub(super) fn customer_id(&mut self, name: &str) -> CustomerId {
        self.shared.customers.id(self.queue.active_mut(), name)
    }

    /// An item of this queue as the store keeps it.
    pub(super) fn row<'a>(&'a self, item: &'a Item) -> ItemRow<'a> {
        self.shared.row(self.queue.name(), item)
    }

    /// A customer of this queue, to be changed.
    pub(super) fn customer(&mut self, id: CustomerId) -> CustomerMut<'_> {
        self.shared.customers.at(id, self.queue.active_mut())
    }

    /// The other half of [`Customers::pin`].
    pub(super) fn unpin(&mut self, customer: Option<CustomerId>) {
        customer.into_iter().for_each(|id| self.customer(id).unpin());
    }

    // ---- in -----------------------------------------------------------------------------------------------

    /// Admits a new item. Returns its arrival number.
    pub(super) fn admit(&mut self, new: NewItem, admission: Admission, now: Now) -> u64 {
        let customer = new.customer.as_deref().map(|name| self.customer_id(name));
        self.shared.customers.pin(customer);
        let expiry = new.expiry.unwrap_or(u64::MAX);
        let windowed = customer.filter(|_| admission.timing == Timing::Windowed);
        // Before it has a number: a window that closes covers all numbers given out so far.
        windowed.into_iter().for_each(|id| self.of(id).close_overflowing(new.weight, now));
        let seq = self.shared.journal.number();
        let key = match (admission.timing, windowed) {
            (Timing::Own(due), _) => {
                self.shared.customers.own_key(customer, due, seq, self.queue.thresholds().span)
            }
            (Timing::Windowed, Some(id)) => {
                let member = Member { weight: new.weight, expiry, seq };
                Key { seq, ..self.of(id).join_window(member, admission.inherited, now) }
            }
            (Timing::Immediate | Timing::Windowed, _) => Key::own(now.wall, seq),
        };
        let own_time = matches!(admission.timing, Timing::Own(_));
        let Origin { delivery, received, .. } = admission.origin;
        // A delay counts from the moment of receipt, rounded up. All else counts from now, which is rounded
        // down, and so is the receipt: no item seems to have come after its window was opened.
        let received = if own_time { received } else { received.min(now.wall) };
        let placement = Placement { key, queue: admission.queue, customer, received, tag: delivery.tag };
        let item = Item::arrived(new, own_time, placement);
        self.shared.counters.accepted += 1;
        self.place(item, windowed.is_some(), admission.may_defer, now);
        if let Some(id) = windowed {
            if let Some(cause) = self.customer(id).is_full() {
                self.of(id).close_window(cause, now);
            }
        }
        self.unpin(customer);
        seq
    }

    /// Decides where a new item is kept, writes it where there is a store, and puts it on its list.
    pub(super) fn place(&mut self, mut item: Item, windowed: bool, may_defer: bool, now: Now) {
        let key = item.place();
        if !self.shared.journal.is_durable() {
            self.queue.add_pending();
            let id = self.insert(item);
            return self.enlist(id, windowed, now);
        }
        let due_now = key.due <= now.wall && !windowed;
        if due_now && may_defer && key < self.queue.memory_bound() && !self.is_crowded() {
            let large = item.content().is_some_and(|content| self.queue.thresholds().is_large(content));
            self.queue.add_pending();
            let id = self.insert(item);
            let wait = if large { DEFER_LARGE_MS } else { DEFER_MS };
            self.shared.deferred[usize::from(large)].push_back((now.mono + wait, id));
            return self.enlist(id, windowed, now);
        }
        let customer = item.customer().filter(|_| due_now);
        let passed = customer.and_then(|customer| self.of(customer).passes(key));
        let far = passed.is_some() || self.lies_in_store_alone(key, due_now, now);
        item.set(ItemFlag::Indexed, far && item.customer().is_some() && !mutated(Mutant::IndexForgotten));
        self.write(&mut item);
        if far {
            let passed = passed.or_else(|| self.of(customer?).passed(key, now));
            self.queue.add_far(key, passed.as_deref());
            let SharedItems { watch, customers, .. } = &mut *self.shared;
            watch.put(item.identity(), || ItemRow::new(self.queue.name(), customers, &item).stored());
            if let (Some(customer), true) = (item.customer(), windowed) {
                self.customer(customer).add_far(member_of(&item), now.wall + HORIZON_MS);
            }
            return;
        }
        self.queue.add_resident(key);
        let id = self.insert(item);
        self.shared.keep_content(id, now);
        self.enlist(id, windowed, now);
    }

    /// Whether an item that is written with this key goes to the store alone: it is not needed in memory
    /// soon, or there is no room.
    pub(super) fn lies_in_store_alone(&mut self, key: Key, due_now: bool, now: Now) -> bool {
        key >= self.queue.memory_bound()
            || key.due > now.wall + HORIZON_MS
            || (due_now && self.is_crowded())
            || !self.shared.has_room_for(key)
    }

    /// Hands an item's row to the journal; its delivery is safe once that is durable.
    pub(super) fn write(&mut self, item: &mut Item) {
        let stored = self.row(item).stored();
        let token = self.shared.journal.put(stored, item.is(ItemFlag::Indexed));
        if let Residence::Pending(tag) = item.residence() {
            self.shared.journal.safe_with(token, tag);
        }
        item.set_stored(token);
    }

    /// Puts a new item on its list.
    pub(super) fn enlist(&mut self, id: ItemId, windowed: bool, now: Now) {
        let (customer, key) = (self.shared.items[id].customer(), self.shared.items[id].place());
        match customer.filter(|_| windowed) {
            Some(customer) => self.of(customer).add_member(id, now),
            None if key.due > now.wall => self.shared.await_time(id),
            None => self.make_ready(id, now),
        }
    }

    /// Takes a dead letter in; its row moves here from `from`.
    pub(super) fn place_letter(&mut self, mut item: Item, from: Place, removed: IndexRows, now: Now) {
        item.set_stored(self.shared.journal.next_token());
        let (to, standing) = (self.row(&item).place(), standing(&item));
        let (weight, written) = (item.weight(), IndexRows::default());
        self.shared.journal.push(Op::Move { from, to, removed, written, standing, weight });
        let key = item.place();
        let no_room = self.shared.free_rows() == 0 && !mutated(Mutant::DeadCrowdIn);
        if key >= self.queue.memory_bound() || self.is_crowded() || no_room {
            return self.queue.add_far(key, None);
        }
        self.queue.add_resident(key);
        let id = self.insert(item);
        self.shared.keep_content(id, now);
        self.make_ready(id, now);
    }

    // ---- out ----------------------------------------------------------------------------------------------

    /// Takes an item that is given up out of its queue. It must not be orphaned.
    pub(super) fn take_dying(&mut self, id: ItemId) -> Dying {
        debug_assert!(!self.shared.items[id].is_orphaned(), "what the broker delivers again is forgotten");
        let row = self.row(&self.shared.items[id]);
        let (meant_for, from, removed) = (row.address(), row.place(), row.index());
        self.shared.watch.changed(self.shared.items.lose_identity(id));
        let item = self.remove(id);
        self.leave_as_stray(&item);
        if item.is_stored() {
            self.queue.remove_stored(item.place(), true);
            self.shared.reads.note_gone(item.key().seq);
        } else {
            self.queue.remove_pending();
        }
        Dying { item, meant_for, from, removed }
    }

    /// Ends an item that has been detached: its request may be acked, and the store deletes its row.
    pub(super) fn finish_detached(&mut self, id: ItemId) {
        let item = &self.shared.items[id];
        let (place, rows) = (self.row(item).place(), self.row(item).index());
        let item = self.take_out(id);
        self.leave_as_stray(&item);
        self.shared.watch.changed(item.identity());
        let SharedItems { journal, counters, reads, .. } = &mut *self.shared;
        match item.residence() {
            Residence::Pending(tag) => {
                self.queue.remove_pending();
                let delivery = journal.ledger().delivery(tag);
                if item.identity().is_given() && !mutated(Mutant::AckBeforeRemembered) {
                    // Otherwise a crash could lose the remembered id after the request was acked.
                    journal.safe_once_durable(delivery);
                } else {
                    journal.safe(delivery);
                }
            }
            Residence::Orphaned => {
                self.queue.remove_pending();
                if let Some(rule) = item.superseded() {
                    // It was sent, so its replacement counts as a new item.
                    counters.duplicates[rule as usize].accepted += 1;
                }
            }
            Residence::Stored(_) => {
                self.queue.remove_stored(item.place(), true);
                journal.delete(place, rows);
                if !mutated(Mutant::LoadFromThePast) {
                    reads.note_gone(item.key().seq);
                }
            }
        }
    }

    /// Ends an item that is in the store alone.
    pub(super) fn finish_far(&mut self, stored: &Stored) {
        self.leave_window_far(stored);
        let place = Place { queue: Arc::clone(self.queue.name()), key: stored.key };
        self.shared.journal.delete(place, stored.index_rows());
        self.queue.remove_stored(stored.place(), false);
        self.queue.may_trim();
        let stalls = self.queue.active().is_some_and(|active| active.ready().has_stalled());
        if stalls && self.queue.far() == 0 && !mutated(Mutant::StalledForEver) {
            // The queue has no rows left for which stalled entries could wait, and none will be loaded.
            self.unstall();
        }
        if !mutated(Mutant::FarGoneUntold) {
            self.shared.reads.note_gone(stored.key.seq);
        }
        self.shared.watch.changed(stored.identity());
    }

    /// Forgets an item that the broker delivers again, or that another replaced while it was in flight. It
    /// must be on no list.
    pub(crate) fn forget(&mut self, id: ItemId) {
        debug_assert!(!self.shared.items[id].is_stored(), "what is stored is not given back to the broker");
        let item = self.remove(id);
        self.shared.watch.changed(item.identity());
        self.queue.remove_pending();
        match item.superseded() {
            Some(rule) => self.shared.counters.count_replaced(rule),
            None => self.shared.counters.given_back += 1,
        }
    }

    /// The request of an orphaned item in flight has come again. The item takes this request over and is
    /// written, so that its attempt may last as long as it needs.
    pub(crate) fn adopt(&mut self, id: ItemId, origin: Origin, now: Now) {
        self.shared.items[id].set_tag(NonZeroU64::new(origin.delivery.tag));
        self.store_pending(id, now);
    }

    /// Another item takes the id of an item in flight, whose attempt may end late or never. From now on this
    /// item exists in its flight only. The end of the attempt decides whether it counts as sent or as
    /// replaced; a crash, which leaves that unknown, keeps the other item alone.
    pub(crate) fn supersede(&mut self, id: ItemId, rule: DuplicateRule) {
        let item = &self.shared.items[id];
        let (place, rows) = (self.row(item).place(), self.row(item).index());
        let (residence, due_place) = (item.residence(), item.place());
        let SharedItems { items, journal, watch, reads, .. } = &mut *self.shared;
        watch.changed(items.lose_identity(id));
        match residence {
            // Its own request comes again: as the other item, or before it.
            Residence::Orphaned => return,
            Residence::Pending(tag) => journal.safe_once_durable(journal.ledger().delivery(tag)),
            Residence::Stored(_) => {
                self.queue.add_pending();
                self.queue.remove_stored(due_place, true);
                reads.note_gone(place.key.seq);
                journal.delete(place, rows);
            }
        }
        items[id].supersede(rule);
    }
}
