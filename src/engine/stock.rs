//! Everything that has not ended, wherever it lies: one way in, one across, one out, and the ways between memory and
//! store.
//!
//! In: [`Stock::admit`]. Across, to the dead letters: [`Stock::bury`]. Out: [`Stock::finish`] and
//! [`Stock::finish_far`]. Into memory: [`Stock::restore`]; out of it: [`Stock::evict`]. Each keeps all that belongs
//! together: the item, the counts of its queue, its customer, its window, its index rows, and what reads and questions
//! under way must not believe any more. Nothing else adds or removes an item.

use super::customers::{CustomerId, Customers};
use super::event::{ClosingRow, IndexRows, Op, Place, RekeyMembers, Standing, Stored};
use super::items::{self, Extra, Item, ItemId, Items, Residence, Stage};
use super::journal::Journal;
use super::mutant::{mutated, Mutant};
use super::queue::{Entry, QueueId, Queues};
use super::reads::{Reads, Watch};
use super::schedule::Schedule;
use super::snapshot::Counters;
use super::types::{Budget, ClosedBy, Content, Dead, Delivery, Format, Identity, Key, NewItem, Now};
use super::windows::{self, Member, Plan, Windows};
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;

/// How far ahead items are kept in memory, ms. Less where memory is short.
pub(super) const HORIZON_MS: u64 = 20_000;

/// What is due at once may be confirmed before it is stored; it is stored when it was not, after this time, ms.
const DEFER_MS: u64 = 20;

/// Payloads due within this time stay in memory as long as there is room for them, ms.
const KEEP_MS: u64 = 30_000;

/// Due items of one queue in memory. Beyond, they wait in the store: a slow queue does not fill memory.
const READY_ROWS: u64 = 16_384;

/// Items evicted in one go.
const EVICT_ROWS: usize = 1_000;

/// Where an item came from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) delivery: Delivery,
    /// UTC ms.
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
    /// At once.
    Immediate,
}

/// How a new item is taken in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admission {
    pub(super) origin: Origin,
    pub(super) timing: Timing,
    /// Planned end of the window that it takes over from the item in whose place it comes, wall clock.
    pub(super) inherited: Option<u64>,
    /// It may be confirmed before it is written: its queue has nothing before it, and the way out is free.
    pub(super) may_defer: bool,
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct Stock {
    pub(super) items: Items,
    pub(super) queues: Queues,
    pub(super) customers: Customers,
    pub(super) windows: Windows,
    pub(super) journal: Journal,
    pub(super) reads: Reads,
    pub(super) watch: Watch,
    pub(super) counters: Counters,
    /// What waits for its own time, and members of windows, by key; wall clock.
    schedule: Schedule,
    /// Items that may be confirmed before they need be stored: stored at this monotonic moment at the latest.
    deferred: VecDeque<(u64, ItemId)>,
    /// Queues that are held back and have due rows in memory.
    evicting: VecDeque<QueueId>,
    budget: Budget,
    /// Rows and payload bytes that reads under way may bring.
    reserved: (usize, u64),
    /// Queues whose items got other keys in the store in this turn, and the first of these keys.
    rekeys: Vec<(Arc<str>, Key)>,
    /// Rows touched, for tests that count work.
    work: u64,
}

impl Stock {
    pub(super) fn new(queues: Queues, journal: Journal, budget: Budget, now: Now) -> Self {
        Stock {
            items: Items::new(),
            queues,
            customers: Customers::new(),
            windows: Windows::new(now),
            journal,
            reads: Reads::new(),
            watch: Watch::new(),
            counters: Counters::default(),
            schedule: Schedule::new(now.wall),
            deferred: VecDeque::new(),
            evicting: VecDeque::new(),
            budget,
            reserved: (0, 0),
            rekeys: Vec::new(),
            work: 0,
        }
    }

    // ---- in ---------------------------------------------------------------------------------------------------

    /// Takes a new item in; its arrival number.
    pub(super) fn admit(&mut self, new: NewItem, admission: Admission, now: Now) -> u64 {
        let queue = self.queues.id(&new.application);
        let customer = new.customer.as_deref().map(|name| self.customers.id(&mut self.queues, queue, name));
        customer.into_iter().for_each(|id| self.customers.pin(id));
        let expiry = new.expiry.unwrap_or(u64::MAX);
        let windowed = customer.filter(|_| admission.timing == Timing::Windowed);
        // Before it has a number: a window that closes takes in all numbers so far.
        windowed.into_iter().for_each(|id| self.close_overflowing(id, new.weight, now));
        let seq = self.journal.number();
        let due = match (admission.timing, windowed) {
            (Timing::Own(due), _) => due,
            (Timing::Windowed, Some(id)) => {
                let member = Member { weight: new.weight, expiry, seq };
                self.join_window(id, member, admission.inherited, now)
            }
            (Timing::Immediate | Timing::Windowed, _) => now.wall,
        };
        let item = Item {
            key: Key { due, seq },
            due,
            received: admission.origin.received,
            expiry,
            identity: new.identity.unwrap_or(Identity::assigned(seq)),
            fingerprint: if new.identity.is_some() { new.fingerprint } else { 0 },
            queue,
            customer,
            closing: None,
            weight: new.weight,
            attempts: 0,
            stage: Stage::Ready,
            residence: NonZeroU64::new(admission.origin.delivery.tag)
                .map_or(Residence::Orphaned, Residence::Pending),
            closed_by: ClosedBy::Time,
            own_time: matches!(admission.timing, Timing::Own(_)),
            indexed: false,
            outcome_unknown: false,
            amended: false,
            content: Some(new.content),
            extra: None,
            siblings: items::Siblings::default(),
        };
        self.counters.accepted += 1;
        self.place(item, windowed.is_some(), admission.may_defer, now);
        if let Some(id) = windowed {
            if let Some(cause) = Windows::is_full(&self.customers, &self.queues, id) {
                self.close_window(id, cause, now);
            }
        }
        customer.into_iter().for_each(|id| self.customers.unpin(id, &mut self.queues));
        seq
    }

    /// Takes a request in that is a dead letter from the start; its arrival number.
    pub(super) fn admit_dead(
        &mut self,
        extra: Extra,
        content: Arc<Content>,
        origin: Origin,
        now: Now,
    ) -> u64 {
        let seq = self.journal.number();
        let item = Item {
            key: Key { due: now.wall, seq },
            due: now.wall,
            received: origin.received,
            expiry: u64::MAX,
            identity: Identity::assigned(seq),
            fingerprint: 0,
            queue: self.queues.dead_letters(),
            customer: None,
            closing: None,
            weight: 0,
            attempts: 0,
            stage: Stage::Ready,
            residence: NonZeroU64::new(origin.delivery.tag).map_or(Residence::Orphaned, Residence::Pending),
            closed_by: ClosedBy::Time,
            own_time: false,
            indexed: false,
            outcome_unknown: false,
            amended: false,
            content: Some(content),
            extra: Some(Box::new(extra)),
            siblings: items::Siblings::default(),
        };
        self.place(item, false, false, now);
        seq
    }

    /// Decides where a new item lives, writes it if anything is written, and puts it on its list.
    fn place(&mut self, mut item: Item, windowed: bool, may_defer: bool, now: Now) {
        let (queue, key) = (item.queue, item.key);
        if !self.journal.is_durable() {
            self.queues.add_pending(queue);
            let id = self.insert(item);
            return self.enlist(id, windowed, now);
        }
        let due_now = key.due <= now.wall && !windowed;
        if due_now && may_defer && key < self.queues[queue].memory_bound() && !self.is_crowded(queue) {
            self.queues.add_pending(queue);
            let id = self.insert(item);
            self.deferred.push_back((now.mono + DEFER_MS, id));
            return self.enlist(id, windowed, now);
        }
        let far = key >= self.queues[queue].memory_bound()
            || key.due > now.wall + HORIZON_MS
            || (due_now && self.is_crowded(queue))
            || !self.make_room(key, now);
        item.indexed = far && item.customer.is_some() && !mutated(Mutant::IndexForgotten);
        self.write(&mut item);
        if far {
            self.queues.add_far(queue, key);
            self.watch.changed(item.identity);
            if let (Some(customer), true) = (item.customer, windowed) {
                self.windows.add_far(&mut self.customers, customer, now.wall + HORIZON_MS);
            }
            return;
        }
        self.queues.add_resident(queue, key);
        let id = self.insert(item);
        self.keep_content(id, now);
        self.enlist(id, windowed, now);
    }

    /// Hands an item's row over to the store; its delivery is safe with that.
    fn write(&mut self, item: &mut Item) {
        let stored = self.stored_from(item);
        let token = self.journal.put(stored, item.indexed);
        if let Residence::Pending(tag) = item.residence {
            self.journal.safe_with(token, tag);
        }
        item.residence = Residence::Stored(token);
        item.amended = false;
    }

    /// Puts an item that has just come on its list.
    fn enlist(&mut self, id: ItemId, windowed: bool, now: Now) {
        let key = self.items[id].key;
        if windowed {
            self.add_member(id, now);
        } else if key.due > now.wall {
            self.items[id].stage = Stage::Scheduled;
            self.schedule.insert(items::place_of(id), key);
        } else {
            self.make_ready(id, now);
        }
    }

    // ---- across -----------------------------------------------------------------------------------------------

    /// Gives an item up: from now on it is a dead letter. It is on no list. `identity`: the one it lived under; `former`:
    /// the same, where that is to be remembered with the confirm of its letter.
    pub(super) fn bury(
        &mut self,
        id: ItemId,
        identity: Identity,
        dead: Dead,
        former: Option<Identity>,
        now: Now,
    ) {
        if self.items[id].is_orphaned() {
            return self.give_back(id);
        }
        let (application, customer) = self.address(&self.items[id]);
        let from = self.place_in_store(&self.items[id]);
        let moved = self.items[id].extra.as_deref().is_some_and(|extra| extra.accepted_due.is_some());
        let removed = IndexRows {
            identity: (identity.is_given() || moved).then_some(identity),
            ..self.index_rows(&self.items[id])
        };
        self.watch.changed(identity);
        let Some(mut item) = self.remove(id) else { return };
        let from_queue = item.queue;
        let accepted_due = item.accepted_due();
        let extra = item.extra_mut();
        extra.accepted_due = Some(accepted_due);
        extra.dead = Some(Arc::new(dead));
        extra.meant_for = Some((application, customer));
        extra.former_identity = former;
        let old = item.key;
        item.identity = Identity::assigned(old.seq);
        item.queue = self.queues.dead_letters();
        item.customer = None;
        item.closing = None;
        item.stage = Stage::Ready;
        // In order of their due, and due at once: an item may be given up before its time.
        item.key.due = item.due.min(now.wall);
        item.due = item.key.due;
        item.indexed = false;
        item.amended = false;
        if !item.is_stored() {
            self.queues.remove_pending(from_queue);
            return self.place(item, false, false, now);
        }
        item.residence = Residence::Stored(self.journal.next_token());
        let to = self.place_in_store(&item);
        let standing = Box::new(standing(&item));
        self.journal.push(Op::Move { from, to, removed, written: IndexRows::default(), standing });
        self.queues.remove_stored(from_queue, old, true);
        self.reads.note_gone(old.seq);
        let queue = item.queue;
        if item.key >= self.queues[queue].memory_bound()
            || self.is_crowded(queue)
            || (self.free_rows() == 0 && !mutated(Mutant::DeadCrowdIn))
        {
            self.queues.add_far(queue, item.key);
        } else {
            self.queues.add_resident(queue, item.key);
            let id = self.insert(item);
            self.make_ready(id, now);
        }
    }

    // ---- out --------------------------------------------------------------------------------------------------

    /// An item in memory is done with: its request may be acked, and the store forgets it. It is on no list.
    pub(super) fn finish(&mut self, id: ItemId) {
        let (place, rows) = (self.place_in_store(&self.items[id]), self.index_rows(&self.items[id]));
        let Some(item) = self.remove(id) else { return };
        self.watch.changed(item.identity);
        match item.residence {
            Residence::Pending(tag) => {
                self.queues.remove_pending(item.queue);
                let delivery = self.journal.delivery(tag);
                if item.identity.is_given() {
                    // Else a crash could forget that the id was known, with the request acked.
                    self.journal.safe_once_durable(delivery);
                } else {
                    self.journal.safe(delivery);
                }
            }
            Residence::Orphaned => self.queues.remove_pending(item.queue),
            Residence::Stored(_) => {
                self.queues.remove_stored(item.queue, item.key, true);
                self.journal.delete(place, rows);
                if !mutated(Mutant::LoadFromThePast) {
                    self.reads.note_gone(item.key.seq);
                }
            }
        }
    }

    /// An item in the store alone is done with.
    pub(super) fn finish_far(&mut self, stored: &Stored) {
        let Some(queue) = self.queues.find(stored.queue()) else { return };
        if let Some(customer) = stored.customer.as_deref().filter(|_| stored.is_windowed()) {
            if let Some(id) = self.customers.find(&self.queues, queue, customer) {
                let member =
                    self.customers[id].window.as_ref().is_some_and(|window| window.end() == stored.key.due);
                if member {
                    let ops = self.journal.ops();
                    self.windows.leave(&mut self.customers, &mut self.queues, id, stored.weight, true, ops);
                    self.customers.release(id, &mut self.queues);
                }
            }
        }
        let moved = stored.accepted_due != stored.key.due;
        let identity = (stored.given.is_some() || moved).then_some(stored.identity());
        let customer = stored.customer.clone().map(|customer| (Arc::clone(&stored.application), customer));
        let place = Place { queue: Arc::clone(self.queues[queue].name()), key: stored.key };
        self.journal.delete(place, IndexRows { identity, customer });
        self.queues.remove_stored(queue, stored.key, false);
        self.reads.note_gone(stored.key.seq);
        self.watch.changed(stored.identity());
    }

    /// Forgets an item that the broker delivers again. It is on no list.
    pub(super) fn give_back(&mut self, id: ItemId) {
        debug_assert!(!self.items[id].is_stored(), "what is stored is not given back to the broker");
        if let Some(item) = self.remove(id) {
            self.watch.changed(item.identity);
            self.queues.remove_pending(item.queue);
            self.counters.given_back += 1;
        }
    }

    // ---- between memory and store -----------------------------------------------------------------------------

    /// Takes a stored item into memory, unless it is there or has ended meanwhile. Its handle, where it came.
    pub(super) fn restore(&mut self, stored: Stored, now: Now) -> Option<ItemId> {
        let seq = stored.key.seq;
        if self.items.by_seq(seq).is_some() || !self.reads.is_current(seq) {
            return None;
        }
        let queue = self.queues.id(stored.queue());
        let windowed = stored.is_windowed();
        let customer = stored.customer.as_deref().filter(|_| stored.dead.is_none());
        let customer = customer.map(|name| self.customers.id(&mut self.queues, queue, name));
        let is_dead = stored.dead.is_some();
        let extra =
            (is_dead || stored.last_error.is_some() || stored.accepted_due != stored.key.due).then(|| {
                Box::new(Extra {
                    accepted_due: (stored.accepted_due != stored.key.due).then_some(stored.accepted_due),
                    last_error: stored.last_error,
                    dead: stored.dead,
                    meant_for: is_dead.then(|| (stored.application, stored.customer)),
                    former_identity: None,
                })
            });
        let key = stored.key;
        let item = Item {
            key,
            due: key.due,
            received: stored.received,
            expiry: stored.expiry.unwrap_or(u64::MAX),
            identity: stored.given.filter(|_| !is_dead).unwrap_or(Identity::assigned(seq)),
            fingerprint: stored.fingerprint,
            queue,
            customer,
            closing: None,
            weight: stored.weight,
            attempts: stored.attempts,
            stage: Stage::Ready,
            residence: Residence::Stored(0),
            closed_by: stored.closed_by,
            own_time: stored.own_time,
            // Perhaps it has none; removing a row that is not there costs nothing worth knowing.
            indexed: customer.is_some(),
            outcome_unknown: stored.outcome_unknown,
            amended: false,
            content: stored.content,
            extra,
            siblings: items::Siblings::default(),
        };
        self.queues.add_restored(queue, key);
        let id = self.insert(item);
        let later = key.due > now.wall && !is_dead;
        match customer.filter(|_| windowed && later) {
            Some(customer) if self.rejoin_window(id, customer, now) => self.add_member(id, now),
            Some(_) | None if later => {
                self.items[id].stage = Stage::Scheduled;
                self.schedule.insert(items::place_of(id), key);
            }
            Some(_) | None => self.push_ready(id),
        }
        Some(id)
    }

    /// An item leaves memory, and waits in the store alone. It is on no list but that of its open window. Where its window
    /// closed early, the moment of closing becomes its key.
    fn evict(&mut self, id: ItemId, now: Now) {
        if self.items[id].is_orphaned() {
            return self.give_back(id);
        }
        let item = &self.items[id];
        let (queue, customer, old) = (item.queue, item.customer, item.key);
        let (from, removed) = (self.place_in_store(item), self.index_rows(item));
        let customer_row = self.customer_row(item);
        customer.into_iter().for_each(|customer| self.customers.pin(customer));
        if let (Some(customer), Stage::Windowed { pos, .. }) = (customer, item.stage) {
            self.forget_member(customer, pos);
            self.windows.add_far(&mut self.customers, customer, now.wall + HORIZON_MS);
        }
        let Some(mut item) = self.remove(id) else { return };
        self.watch.changed(item.identity);
        if item.due != item.key.due {
            let accepted = item.accepted_due();
            item.key.due = item.due;
            item.extra_mut().accepted_due = Some(accepted);
        }
        if item.is_stored() {
            let written = IndexRows { identity: item.identity_row(), customer: customer_row };
            self.rewrite(&item, from, removed, written);
            self.queues.evicted(queue, old, item.key);
        } else {
            item.indexed = customer_row.is_some();
            self.write(&mut item);
            self.queues.remove_pending(queue);
            self.queues.add_far(queue, item.key);
        }
        customer.into_iter().for_each(|customer| self.customers.unpin(customer, &mut self.queues));
    }

    /// What the row of an item that leaves memory lacks: another key, its standing, or its row under the customer.
    fn rewrite(&mut self, item: &Item, from: Place, removed: IndexRows, written: IndexRows) {
        let moved = from.key != item.key;
        if moved || item.amended {
            let to = self.place_in_store(item);
            let standing = Box::new(standing(item));
            let (removed, written) =
                if moved { (removed, written.clone()) } else { (IndexRows::default(), IndexRows::default()) };
            self.journal.push(Op::Move { from, to, removed, written, standing });
            self.reads.note_gone(item.key.seq);
        }
        if !moved && !item.indexed && written.customer.is_some() && !mutated(Mutant::IndexForgotten) {
            let rows = IndexRows { identity: None, ..written };
            self.journal.push_lazy(Op::Index { key: item.key, rows });
        }
    }

    /// Items due last, all after this moment, leave memory.
    pub(super) fn evict_furthest(&mut self, count: usize, after: u64, now: Now) -> usize {
        if !self.journal.is_durable() {
            return 0;
        }
        let items = &self.items;
        let key_of = |place: u32| items.at(place).map_or(Key::default(), |id| items[id].key);
        let places = self.schedule.take_furthest(count.min(EVICT_ROWS), after, key_of);
        let ids: Vec<ItemId> = places.into_iter().filter_map(|place| self.items.at(place)).collect();
        for id in &ids {
            if let Stage::Windowed { pos, .. } = self.items[*id].stage {
                self.items[*id].stage = Stage::Windowed { pos, scheduled: false };
            }
            self.evict(*id, now);
        }
        ids.len()
    }

    /// Makes room in memory for an item with this key: what is due later leaves it. False: all that is there is due
    /// sooner.
    fn make_room(&mut self, key: Key, now: Now) -> bool {
        if self.free_rows() == 0 {
            self.evict_furthest(self.budget.rows / 16 + 1, key.due, now);
        }
        self.free_rows() > 0
    }

    /// Queues that are held back: what is due leaves memory, a chunk a turn. Whether more is to do.
    pub(super) fn evict_held_back(&mut self, now: Now) -> bool {
        let mut left = EVICT_ROWS;
        while left > 0 {
            let Some(queue) = self.evicting.front().copied() else { break };
            if self.queues.get(queue).is_none_or(|queue| !queue.is_held_back())
                || !self.evict_some(queue, &mut left, now)
            {
                self.evicting.pop_front();
                if self.queues.get(queue).is_some() {
                    self.queues.live(queue).evicting = false;
                    self.queues.look_at(queue);
                    self.queues.run(queue);
                }
            }
        }
        !self.evicting.is_empty()
    }

    /// Whether anything of the queue's line is left.
    fn evict_some(&mut self, queue: QueueId, left: &mut usize, now: Now) -> bool {
        while *left > 0 {
            let live = self.queues.live(queue);
            let Some(entry) = live.stalled.pop().or_else(|| live.line.pop_back()) else { return false };
            let ids: Vec<ItemId> = match entry {
                Entry::Single(id) => vec![id],
                Entry::Customer(customer) => {
                    let Some(owner) = self.customers.get(customer) else { continue };
                    let keep = owner.ready.len().saturating_sub(*left);
                    let owner = &mut self.customers[customer];
                    let ids = owner.ready.split_off(keep).into();
                    if owner.ready.is_empty() {
                        owner.in_line = false;
                        owner.ready = VecDeque::new();
                    } else {
                        self.queues.live(queue).line.push_back(entry);
                    }
                    ids
                }
            };
            *left = left.saturating_sub(ids.len().max(1));
            for id in ids {
                if self.items.get(id).is_some_and(|item| item.stage == Stage::Ready) {
                    self.count_ready(queue, -1);
                    self.evict(id, now);
                }
            }
            if let Entry::Customer(customer) = entry {
                self.customers.release(customer, &mut self.queues);
            }
        }
        true
    }

    /// The queue is held back: its due items are to leave memory, where they can.
    pub(super) fn begin_evicting(&mut self, queue: QueueId) {
        if !self.journal.is_durable() || mutated(Mutant::ParkedStaysInMemory) {
            return;
        }
        let live = self.queues.live(queue);
        if !live.evicting && !(live.line.is_empty() && live.stalled.is_empty()) {
            live.evicting = true;
            self.evicting.push_back(queue);
        }
        self.queues.look_at(queue);
    }

    // ---- memory -----------------------------------------------------------------------------------------------

    fn insert(&mut self, item: Item) -> ItemId {
        self.work += 1;
        let (queue, key, customer) = (item.queue, item.key, item.customer);
        let id = self.items.insert(item);
        customer.into_iter().for_each(|customer| self.customers.add_row(customer, id, &mut self.items));
        if self.queues.live(queue).settings.drops_oldest() {
            self.queues.live(queue).droppable.insert((key, id));
        }
        id
    }

    fn remove(&mut self, id: ItemId) -> Option<Item> {
        self.work += 1;
        if let Some(customer) = self.items.get(id)?.customer {
            self.customers.remove_row(customer, id, &mut self.items, &mut self.queues);
        }
        let item = self.items.remove(id)?;
        self.queues.live(item.queue).droppable.remove(&(item.key, id));
        if let Some(closing) = item.closing {
            let ops = self.journal.ops();
            self.windows.leave_closing(closing, ops);
        }
        Some(item)
    }

    /// Takes an item off its list, whatever that is; what is in flight stays there.
    pub(super) fn unlist(&mut self, id: ItemId) {
        let item = &self.items[id];
        let (key, queue, customer, weight) = (item.key, item.queue, item.customer, item.weight);
        match item.stage {
            Stage::Scheduled => self.schedule.remove(items::place_of(id), key),
            Stage::Windowed { pos, scheduled } => {
                if scheduled {
                    self.schedule.remove(items::place_of(id), key);
                }
                if let Some(customer) = customer {
                    self.forget_member(customer, pos);
                    let ops = self.journal.ops();
                    self.windows.leave(&mut self.customers, &mut self.queues, customer, weight, false, ops);
                }
            }
            // Its entry is passed over when it is met.
            Stage::Ready => self.count_ready(queue, -1),
            Stage::Flying(_) => return,
        }
        self.items[id].stage = Stage::Flying(0);
    }

    pub(super) fn configure(&mut self, budget: Budget, now: Now) {
        self.budget = budget;
        for id in self.customers.configure(&self.queues) {
            if self.customers[id].window.is_some() {
                // A shorter quiet time holds for the open windows too.
                self.windows.plan_check(&mut self.customers, &self.queues, id, now);
            }
        }
        for id in self.items.ids().collect::<Vec<_>>() {
            let (queue, key) = (self.items[id].queue, self.items[id].key);
            let flying = matches!(self.items[id].stage, Stage::Flying(_));
            let live = self.queues.live(queue);
            if live.settings.drops_oldest() && !flying {
                live.droppable.insert((key, id));
            }
        }
    }

    /// The wall clock went back: everything waits for its time anew.
    pub(super) fn rebase(&mut self, now: Now) {
        let items = &self.items;
        self.schedule.rebase(now.wall, |place| items.at(place).map_or(Key::default(), |id| items[id].key));
    }

    /// Rows that find room in memory, beside those that are on their way from the store.
    pub(super) fn free_rows(&self) -> usize {
        self.budget.rows.saturating_sub(self.items.len() + self.reserved.0)
    }

    /// Rows beyond the bound of memory, those under way apart.
    pub(super) fn rows_beyond(&self) -> usize {
        let flying = usize::try_from(self.queues.flying_rows).unwrap_or(usize::MAX);
        (self.items.len() + self.reserved.0).saturating_sub(self.budget.rows.saturating_add(flying))
    }

    /// Bytes of payloads that find room, likewise.
    pub(super) fn free_bytes(&self) -> u64 {
        self.budget.contents.saturating_sub(self.items.content_bytes() + self.reserved.1)
    }

    /// A read takes its place in memory.
    pub(super) fn reserve(&mut self, rows: usize, bytes: u64) {
        self.reserved = (self.reserved.0 + rows, self.reserved.1 + bytes);
    }

    /// What it has brought counts itself.
    pub(super) fn fulfil(&mut self, rows: usize, bytes: u64) {
        self.reserved = (self.reserved.0 - rows, self.reserved.1 - bytes);
    }

    /// Decides whether the payload of an item that is being written stays in memory afterwards.
    fn keep_content(&mut self, id: ItemId, now: Now) {
        let item = &self.items[id];
        let Residence::Stored(token) = item.residence else { return };
        let soon = item.key.due <= now.wall + KEEP_MS;
        if !soon || self.items.content_bytes() >= self.budget.contents / 4 * 3 {
            self.journal.fresh(token, id);
        }
    }

    /// A commit became durable: what waited for it is safe, and payloads may go.
    pub(super) fn committed(&mut self, token: u64) {
        for id in self.journal.committed(token) {
            let idle = self.items.get(id).is_some_and(|item| !matches!(item.stage, Stage::Flying(_)));
            if idle {
                self.drop_content(id);
            }
        }
    }

    /// Lets a payload go that can be read again.
    fn drop_content(&mut self, id: ItemId) {
        if mutated(Mutant::ContentsStay) {
            return;
        }
        if matches!(self.items[id].residence, Residence::Stored(token) if self.journal.is_committed(token)) {
            self.items.take_content(id);
        }
    }

    /// The payload for a publish; one that can be read again does not stay.
    pub(super) fn lend_content(&mut self, id: ItemId) -> Option<Arc<Content>> {
        let gone =
            matches!(self.items[id].residence, Residence::Stored(token) if self.journal.is_committed(token));
        if gone {
            self.items.take_content(id)
        } else {
            self.items[id].content.clone()
        }
    }

    /// Items whose confirm did not come in time are written now.
    pub(super) fn store_deferred(&mut self, now: Now) {
        while let Some((at, id)) = self.deferred.front().copied() {
            let pending =
                self.items.get(id).is_some_and(|item| matches!(item.residence, Residence::Pending(_)));
            if pending && at > now.mono {
                break;
            }
            self.deferred.pop_front();
            if pending {
                self.store_pending(id, now);
            }
        }
    }

    /// Writes an item that is in memory alone, where it stays.
    fn store_pending(&mut self, id: ItemId, now: Now) {
        if !self.journal.is_durable() {
            return;
        }
        let (queue, key) = (self.items[id].queue, self.items[id].key);
        let stored = self.stored_from(&self.items[id]);
        let token = self.journal.put(stored, false);
        if let Residence::Pending(tag) = self.items[id].residence {
            self.journal.safe_with(token, tag);
        }
        self.items[id].residence = Residence::Stored(token);
        self.items[id].amended = false;
        self.queues.add_resident(queue, key);
        self.queues.remove_pending(queue);
        self.keep_content(id, now);
    }

    pub(super) fn deferred_until(&self) -> Option<u64> {
        self.deferred.front().map(|(at, _)| *at)
    }

    /// The broker delivers again what was not acked: what it alone keeps is orphaned. The cost is that of all items; it
    /// happens with a connection.
    pub(super) fn orphan_pending(&mut self) -> Vec<ItemId> {
        let pending: Vec<ItemId> = self.items.ids().filter(|id| !self.items[*id].is_stored()).collect();
        for id in &pending {
            self.items[*id].residence = Residence::Orphaned;
        }
        pending
    }

    /// Panics where an invariant is broken.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut resident: std::collections::BTreeMap<QueueId, (u64, u64)> = std::collections::BTreeMap::new();
        for id in self.items.ids() {
            let item = &self.items[id];
            let counts = resident.entry(item.queue).or_default();
            if item.is_stored() {
                counts.0 += 1;
            } else {
                counts.1 += 1;
            }
        }
        for queue in self.queues.ids() {
            let (stored, pending) = resident.get(&queue).copied().unwrap_or_default();
            let known = &self.queues[queue];
            assert_eq!(known.resident(), stored, "resident items of queue {}", known.name());
            assert_eq!(known.total() - known.stored(), pending, "pending items of queue {}", known.name());
        }
    }

    // ---- what is due ------------------------------------------------------------------------------------------

    /// Items whose time has come, at most `limit` of them. Whether these are all.
    pub(super) fn take_due(&mut self, limit: usize, now: Now) -> bool {
        let mut places = Vec::new();
        let early = if mutated(Mutant::Early) { 7 } else { 0 };
        let all = self.schedule.take_due(now.wall + early, limit, &mut places);
        let mut due: Vec<ItemId> = places.into_iter().filter_map(|place| self.items.at(place)).collect();
        due.sort_unstable_by_key(|id| self.items[*id].key);
        self.work += due.len() as u64;
        for id in due {
            match self.items[id].stage {
                Stage::Scheduled => self.make_ready(id, now),
                // Its window's end is a matter of the monotonic clock.
                Stage::Windowed { pos, .. } => {
                    self.items[id].stage = Stage::Windowed { pos, scheduled: false }
                }
                Stage::Ready | Stage::Flying(_) => {
                    debug_assert!(false, "what is due twice was not taken out of the schedule");
                }
            }
        }
        all
    }

    /// When something in memory is due next, wall clock.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.schedule.next()
    }

    fn is_crowded(&self, queue: QueueId) -> bool {
        let ready = self.queues[queue].live().map_or(0, |live| live.ready_rows);
        ready >= READY_ROWS
    }

    /// An item is due: it goes into its queue's line, or out of memory where older ones have gone before it.
    pub(super) fn make_ready(&mut self, id: ItemId, now: Now) {
        self.items[id].stage = Stage::Ready;
        let item = &self.items[id];
        let queue = item.queue;
        let leaves = item.place() >= self.queues[queue].memory_bound() || self.is_crowded(queue);
        if leaves && item.is_stored() && !mutated(Mutant::FarOvertaken) {
            self.evict(id, now);
        } else {
            self.push_ready(id);
        }
    }

    /// Puts a due item into its queue's line.
    pub(super) fn push_ready(&mut self, id: ItemId) {
        self.items[id].stage = Stage::Ready;
        let (queue, customer, place) =
            (self.items[id].queue, self.items[id].customer, self.items[id].place());
        let entry = match customer {
            None => Some(Entry::Single(id)),
            Some(customer) => {
                // The place of one that has ended is not known, and others before it may be due later.
                let last = self.customers[customer].ready.back();
                let sorted =
                    last.is_none_or(|last| self.items.get(*last).is_some_and(|last| last.place() <= place));
                self.customers.push_ready(customer, id, sorted)
            }
        };
        self.queues.live(queue).line.extend(entry);
        self.count_ready(queue, 1);
        self.queues.run(queue);
    }

    fn count_ready(&mut self, queue: QueueId, change: i64) {
        let live = self.queues.live(queue);
        live.ready_rows = live.ready_rows.saturating_add_signed(change);
        self.queues.ready_rows = self.queues.ready_rows.saturating_add_signed(change);
        if change < 0 {
            self.queues.look_at(queue);
        }
    }

    /// As many due items as the queue's next batch takes, of one customer, in order of (due, arrival). Nothing at or above
    /// the queue's bound: older ones have still to be loaded.
    pub(super) fn take_batch(&mut self, queue: QueueId, most: usize) -> Vec<ItemId> {
        let bound = self.queues[queue].near_until();
        loop {
            let Some(entry) = self.queues.live(queue).line.pop_front() else { return Vec::new() };
            let taken = match entry {
                Entry::Single(id) => {
                    let Some(item) = self.items.get(id).filter(|item| item.stage == Stage::Ready) else {
                        continue;
                    };
                    if item.place() >= bound {
                        Vec::new()
                    } else {
                        vec![id]
                    }
                }
                Entry::Customer(customer) => {
                    let Some(taken) = self.take_of_customer(customer, bound, most) else { continue };
                    taken
                }
            };
            if taken.is_empty() {
                self.queues.live(queue).stalled.push(entry);
                self.queues.look_at(queue);
                continue;
            }
            self.count_ready(queue, -(taken.len() as i64));
            self.work += taken.len() as u64;
            return taken;
        }
    }

    /// `None`: nothing of theirs is due any more.
    fn take_of_customer(&mut self, customer: CustomerId, bound: Key, most: usize) -> Option<Vec<ItemId>> {
        let items = &self.items;
        let is_ready = |id: &ItemId| items.get(*id).is_some_and(|item| item.stage == Stage::Ready);
        let owner = self.customers.get(customer)?;
        let (queue, overhead) = (owner.queue, owner.overhead);
        let settings = self.queues.settings_of(queue);
        let (max_items, max_bytes) = match settings.format {
            Format::Passthrough => (1, u64::MAX),
            Format::Json | Format::Ndjson | Format::CloudEvents => {
                (settings.max_items as usize, settings.max_bytes)
            }
        };
        let owner = &mut self.customers[customer];
        while owner.ready.front().is_some_and(|id| !is_ready(id)) {
            owner.ready.pop_front();
        }
        if std::mem::take(&mut owner.unsorted) && !mutated(Mutant::OrderForgotten) {
            owner.ready.retain(is_ready);
            owner.ready.make_contiguous().sort_unstable_by_key(|id| items[*id].place());
        }
        let mut bytes = overhead.batch;
        let (mut taken, mut passed) = (Vec::new(), 0);
        for id in owner.ready.iter().copied() {
            if !is_ready(&id) {
                passed += 1;
                continue;
            }
            let item = &items[id];
            bytes += u64::from(item.weight) + overhead.item;
            let full = taken.len() >= max_items.min(most).max(1) || (!taken.is_empty() && bytes > max_bytes);
            let full = full && !mutated(Mutant::BatchUnbounded);
            if item.place() >= bound || full {
                break;
            }
            taken.push(id);
        }
        let gone = taken.len() + if taken.is_empty() { 0 } else { passed };
        owner.ready.drain(..gone);
        if owner.ready.is_empty() {
            owner.in_line = false;
            if owner.ready.capacity() > 64 {
                owner.ready = VecDeque::new();
            }
            if taken.is_empty() {
                self.customers.release(customer, &mut self.queues);
                return None;
            }
        } else if !taken.is_empty() {
            self.queues.live(queue).line.push_back(Entry::Customer(customer));
        }
        Some(taken)
    }

    /// More of the queue has been loaded: what waited for that stands in line again, before the others.
    pub(super) fn unstall(&mut self, queue: QueueId) {
        let live = self.queues.live(queue);
        for entry in std::mem::take(&mut live.stalled).into_iter().rev() {
            live.line.push_front(entry);
        }
        self.queues.run(queue);
    }

    /// The clock went back while it was due: it waits for its time anew.
    pub(super) fn postpone(&mut self, id: ItemId) {
        let key = self.items[id].key;
        self.items[id].stage = Stage::Scheduled;
        self.schedule.insert(items::place_of(id), key);
    }

    /// A dead letter waits until then, wall clock, and others go before it.
    pub(super) fn defer_letter(&mut self, id: ItemId, until: u64) {
        let from = self.place_in_store(&self.items[id]);
        let Some(mut item) = self.remove(id) else { return };
        let (queue, old) = (item.queue, item.key);
        let accepted = item.accepted_due();
        item.extra_mut().accepted_due = Some(accepted);
        (item.key.due, item.due) = (until, until);
        item.stage = Stage::Scheduled;
        if item.is_stored() {
            item.residence = Residence::Stored(self.journal.next_token());
            item.amended = false;
            let (to, none) = (self.place_in_store(&item), IndexRows::default());
            let standing = Box::new(standing(&item));
            self.journal.push(Op::Move { from, to, removed: none.clone(), written: none, standing });
            self.queues.remove_stored(queue, old, true);
            self.queues.add_resident(queue, item.key);
            self.reads.note_gone(old.seq);
        }
        let key = item.key;
        let id = self.insert(item);
        self.schedule.insert(items::place_of(id), key);
    }

    /// Items that may be confirmed before they are written, as far as they are still there.
    pub(super) fn deferred(&self) -> impl Iterator<Item = ItemId> + '_ {
        self.deferred.iter().map(|(_, id)| *id)
    }

    /// An attempt has failed: what is known of the item now goes to the store when it leaves memory.
    pub(super) fn amend(&mut self, id: ItemId, change: impl FnOnce(&mut Item)) {
        let item = &mut self.items[id];
        item.amended = true;
        change(item);
    }

    /// An item is under way, or is not any more: what is may not be dropped.
    pub(super) fn set_flying(&mut self, id: ItemId, flight: Option<u64>) {
        let (queue, key) = (self.items[id].queue, self.items[id].key);
        self.items[id].stage = flight.map_or(Stage::Ready, Stage::Flying);
        let live = self.queues.live(queue);
        if live.settings.drops_oldest() {
            match flight {
                Some(_) => live.droppable.remove(&(key, id)),
                None => live.droppable.insert((key, id)),
            };
        }
    }

    // ---- windows ----------------------------------------------------------------------------------------------

    /// An item that would take its customer's window over its bytes closes it first.
    fn close_overflowing(&mut self, id: CustomerId, weight: u32, now: Now) {
        if Windows::would_overflow(&self.customers, &self.queues, id, weight) {
            self.close_window(id, ClosedBy::Bytes, now);
        }
    }

    /// Counts a new item into its customer's window, opening one if need be; the planned end, which is the due in its
    /// key.
    fn join_window(&mut self, id: CustomerId, member: Member, inherited: Option<u64>, now: Now) -> u64 {
        if self.customers[id].window.is_none() {
            let settings = self.queues.settings_of(self.customers[id].queue);
            let length = match inherited {
                // Bounded, should the clock have gone back between the two.
                Some(end) => end.saturating_sub(now.wall).min(settings.window),
                None => windows::length(settings, now),
            };
            let plan = Plan { length, end: now.wall + length, long: length > HORIZON_MS };
            self.windows.open(&mut self.customers, &mut self.queues, id, plan, member.seq, now);
        }
        self.windows.join(&mut self.customers, &self.queues, id, member, now)
    }

    /// A stored item has come back whose window had not ended: into that window, which may have to be opened anew with at
    /// most its old time left, and at most `window`. False: another window is open.
    fn rejoin_window(&mut self, id: ItemId, customer: CustomerId, now: Now) -> bool {
        let item = &self.items[id];
        let member = Member { weight: item.weight, expiry: item.expiry, seq: item.key.seq };
        let end = item.key.due;
        if self.customers[customer].window.is_none() {
            let longest = self.queues.settings_of(self.customers[customer].queue).window;
            let length = end.saturating_sub(now.wall).min(longest);
            let plan = Plan { length, end, long: false };
            self.windows.open(&mut self.customers, &mut self.queues, customer, plan, member.seq, now);
        }
        if self.customers[customer].window.as_ref().is_none_or(|window| window.end() != end) {
            return false;
        }
        self.windows.rejoin(&mut self.customers, &self.queues, customer, member, now);
        true
    }

    /// A member of an open window that stays in memory.
    fn add_member(&mut self, id: ItemId, now: Now) {
        let (key, customer) = (self.items[id].key, self.items[id].customer);
        let scheduled = key.due > now.wall;
        if scheduled {
            self.schedule.insert(items::place_of(id), key);
        }
        let window = customer.and_then(|customer| self.customers[customer].window.as_mut());
        let Some(window) = window else {
            debug_assert!(false, "a member has an open window");
            return;
        };
        self.items[id].stage = Stage::Windowed { pos: window.members.len() as u32, scheduled };
        window.members.push(id);
    }

    /// Closes the gap in a window's list.
    fn forget_member(&mut self, customer: CustomerId, pos: u32) {
        let Some(window) = self.customers[customer].window.as_mut() else { return };
        window.members.swap_remove(pos as usize);
        if let Some(moved) = window.members.get(pos as usize).copied() {
            if let Stage::Windowed { pos: place, .. } = &mut self.items[moved].stage {
                *place = pos;
            }
        }
    }

    /// Ends a customer's window: its members are due, for good.
    pub(super) fn close_window(&mut self, id: CustomerId, cause: ClosedBy, now: Now) {
        self.customers.pin(id);
        let ops = self.journal.ops();
        if let Some(window) = self.windows.end(&mut self.customers, &mut self.queues, id, ops) {
            self.counters.windows_closed[cause as usize] += 1;
            self.release_members(id, window, cause, now);
        }
        self.customers.unpin(id, &mut self.queues);
    }

    fn release_members(&mut self, id: CustomerId, mut window: windows::Window, cause: ClosedBy, now: Now) {
        let due = window.due_at_close(cause, now);
        let early = due < window.end() && self.journal.is_durable();
        let items = &self.items;
        window.members.sort_unstable_by_key(|member| items[*member].key.seq);
        let through_seq = self.journal.next_number().saturating_sub(1);
        let queue = self.customers[id].queue;
        if early && window.far() > 0 {
            self.rekey_far_members(id, &window, due, cause, through_seq);
        }
        let closing =
            (early && !window.members.is_empty() && !mutated(Mutant::ClosingForgotten)).then(|| {
                let row = ClosingRow {
                    application: Arc::clone(self.queues[queue].name()),
                    customer: Arc::clone(&self.customers[id].name),
                    end: window.end(),
                    through_seq,
                    due,
                    cause,
                };
                let members = window.members.len() as u32;
                let ops = self.journal.ops();
                self.windows.begin_closing(row, members, ops)
            });
        self.work += window.members.len() as u64;
        for member in window.members {
            let item = &mut self.items[member];
            if let Stage::Windowed { scheduled: true, .. } = item.stage {
                self.schedule.remove(items::place_of(member), item.key);
            }
            item.due = due;
            item.closed_by = cause;
            item.closing = closing;
            self.make_ready(member, now);
        }
    }

    fn rekey_far_members(
        &mut self,
        id: CustomerId,
        window: &windows::Window,
        due: u64,
        cause: ClosedBy,
        through_seq: u64,
    ) {
        let queue = self.customers[id].queue;
        let name = Arc::clone(self.queues[queue].name());
        // Members of an earlier window with the same planned end may still be in memory under that key.
        let keys = self.customers.items(id, &self.items).map(|member| self.items[member].key);
        let mut except: Vec<u64> = keys.filter(|key| key.due == window.end()).map(|key| key.seq).collect();
        except.sort_unstable();
        let members =
            RekeyMembers { customer: Arc::clone(&self.customers[id].name), through_seq, due, cause, except };
        self.reads.note_rekey(&name, window.end(), &members);
        if !mutated(Mutant::RekeyForgotten) {
            let (end, members) = (window.end(), vec![members]);
            self.journal.push(Op::Rekey { queue: name, end, members, indexed: true });
        }
        // Members of former lives may be among them.
        let to = Key { due, seq: 0 };
        self.rekeys.push((Arc::clone(self.queues[queue].name()), to));
        self.queues.rekeyed(queue, to);
    }

    /// Tells of queues whose items got other keys in the store since the last call, and from which key on.
    pub(super) fn tell_rekeys(&mut self, mut tell: impl FnMut(&str, Key)) {
        for (queue, to) in std::mem::take(&mut self.rekeys) {
            tell(&queue, to);
        }
    }

    // ---- as others see it -------------------------------------------------------------------------------------

    pub(super) fn stored_from(&self, item: &Item) -> Stored {
        let (application, customer) = self.address(item);
        Stored {
            key: item.key,
            accepted_due: item.accepted_due(),
            application,
            customer,
            given: item.identity.is_given().then_some(item.identity),
            fingerprint: item.fingerprint,
            received: item.received,
            own_time: item.own_time,
            expiry: (item.expiry != u64::MAX).then_some(item.expiry),
            weight: item.weight,
            closed_by: item.closed_by,
            attempts: item.attempts,
            last_error: item.last_error(),
            outcome_unknown: item.outcome_unknown,
            dead: item.extra.as_deref().and_then(|extra| extra.dead.clone()),
            content: item.content.clone(),
        }
    }

    /// Application and customer by name; of a dead item, those that it was meant for.
    pub(super) fn address(&self, item: &Item) -> (Arc<str>, Option<Arc<str>>) {
        if let Some((application, customer)) =
            item.extra.as_deref().and_then(|extra| extra.meant_for.as_ref())
        {
            return (Arc::clone(application), customer.clone());
        }
        let customer = item.customer.map(|customer| Arc::clone(&self.customers[customer].name));
        (Arc::clone(self.queues[item.queue].name()), customer)
    }

    pub(super) fn place_in_store(&self, item: &Item) -> Place {
        Place { queue: Arc::clone(self.queues[item.queue].name()), key: item.key }
    }

    fn customer_row(&self, item: &Item) -> Option<(Arc<str>, Arc<str>)> {
        let customer = Arc::clone(&self.customers[item.customer?].name);
        Some((Arc::clone(self.queues[item.queue].name()), customer))
    }

    /// Index rows that the item's row may have.
    fn index_rows(&self, item: &Item) -> IndexRows {
        let customer = if item.indexed { self.customer_row(item) } else { None };
        IndexRows { identity: item.identity_row(), customer }
    }

    /// The due of the item that has waited longest in the queue's line, as far as that is cheap to know.
    pub(super) fn first_due(&self, queue: QueueId) -> Option<u64> {
        let live = self.queues[queue].live()?;
        let entry = live.line.front().or(live.stalled.first())?;
        let id = match entry {
            Entry::Single(id) => *id,
            Entry::Customer(customer) => *self.customers.get(*customer)?.ready.front()?,
        };
        self.items.get(id).map(|item| item.due)
    }

    #[cfg(test)]
    pub(super) fn work(&self) -> u64 {
        self.work
    }
}

fn standing(item: &Item) -> Standing {
    Standing {
        attempts: item.attempts,
        last_error: item.last_error(),
        outcome_unknown: item.outcome_unknown,
        closed_by: item.closed_by,
        dead: item.extra.as_deref().and_then(|extra| extra.dead.clone()),
    }
}
