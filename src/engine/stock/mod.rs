//! Everything that has not ended, wherever it lies: one way in, one across, one out, and the ways between
//! memory and store.
//!
//! In: [`Stock::admit`]. Across, to the dead letters: [`Stock::bury`]; to another time:
//! [`Stock::reschedule`] and [`Stock::reschedule_far`]. Out: [`Stock::finish`] and
//! [`Stock::finish_far`]. Into memory: [`Stock::restore`]; out of it: [`Stock::evict`]. Each keeps all that
//! belongs together: the item, the counts of its queue, its customer, its window, its index rows, and what
//! reads and questions under way must not believe any more. Nothing else adds or removes an item.

mod due;
mod members;
mod memory;
mod times;

use super::customers::{CustomerTurn, Customers};
pub(super) use super::event::HORIZON_MS;
use super::event::{ClosingRow, IndexRows, Op, Place, Stored};
use super::ids::{CustomerId, ItemId, QueueId};
use super::items::{self, Address, Item, Items, Placement, Residence, Stage};
use super::journal::Journal;
use super::mutant::{mutated, Mutant};
use super::queue::{Condition, Entry, Queues};
use super::reads::{Reads, Watch};
use super::schedule::Schedule;
use super::snapshot::Counters;
use super::types::{
    Budget, ClosedBy, Content, Dead, Delivery, DuplicateRule, Format, Identity, Key, NewItem, Now, Thresholds,
};
use super::window::{self, Member, Plan, Window};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

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

/// See the module's page.
#[derive(Debug)]
pub(super) struct Stock {
    items: Items,
    queues: Queues,
    customers: Customers,
    journal: Journal,
    reads: Reads,
    watch: Watch,
    counters: Counters,
    /// What waits for its own time, and members of windows, by key; wall clock.
    schedule: Schedule,
    /// Items that may be confirmed before they need be stored: stored at this monotonic moment at the latest.
    deferred: VecDeque<(u64, ItemId)>,
    /// Queues that are held back and have due rows in memory.
    evicting: VecDeque<QueueId>,
    budget: Budget,
    /// Items in batches, out or to be sent again: they cannot leave memory.
    batched: usize,
    /// Rows and payload bytes that reads under way may bring.
    reserved: (usize, u64),
    /// Queues of which items in the store alone got another place in this turn, and the first of these.
    retold: Vec<(Arc<str>, Key)>,
    /// What of that which is due is not in line.
    behind: Behind,
    /// Queues that wait until it has: a window of theirs may be over whose items come in between.
    held: BTreeSet<QueueId>,
    /// Queues of which something waits for older rows; one may have moved on since.
    stalled: BTreeSet<QueueId>,
    /// Rows touched, for tests that count work.
    work: u64,
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

impl Stock {
    pub(super) fn new(queues: Queues, journal: Journal, budget: Budget, now: Now) -> Self {
        Stock {
            items: Items::new(),
            queues,
            customers: Customers::new(now),
            journal,
            reads: Reads::new(),
            watch: Watch::new(),
            counters: Counters::default(),
            schedule: Schedule::new(now.wall),
            deferred: VecDeque::new(),
            evicting: VecDeque::new(),
            budget,
            batched: 0,
            reserved: (0, 0),
            retold: Vec::new(),
            behind: Behind::Nothing,
            held: BTreeSet::new(),
            stalled: BTreeSet::new(),
            work: 0,
        }
    }

    /// At how much the engine does otherwise.
    pub(super) fn thresholds(&self) -> &Thresholds {
        self.queues.thresholds()
    }

    // ---- its tables ---------------------------------------------------------------------------------------

    /// To be looked at: what is in memory changes by the ways below.
    pub(super) fn items(&self) -> &Items {
        &self.items
    }

    pub(super) fn customers(&self) -> &Customers {
        &self.customers
    }

    pub(super) fn queues(&self) -> &Queues {
        &self.queues
    }

    pub(super) fn queues_mut(&mut self) -> &mut Queues {
        &mut self.queues
    }

    pub(super) fn journal(&self) -> &Journal {
        &self.journal
    }

    pub(super) fn journal_mut(&mut self) -> &mut Journal {
        &mut self.journal
    }

    /// What reads of rows under way cannot know.
    pub(super) fn reads(&self) -> &Reads {
        &self.reads
    }

    pub(super) fn reads_mut(&mut self) -> &mut Reads {
        &mut self.reads
    }

    /// Forgets what no answer can be out of date by.
    pub(super) fn tidy_reads(&mut self) {
        self.reads.tidy(&self.watch);
    }

    pub(super) fn watch_mut(&mut self) -> &mut Watch {
        &mut self.watch
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(super) fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    // ---- in -----------------------------------------------------------------------------------------------

    /// Takes a new item in; its arrival number.
    pub(super) fn admit(&mut self, new: NewItem, admission: Admission, now: Now) -> u64 {
        let queue = admission.queue;
        let customer =
            new.customer.as_deref().map(|name| self.customers.id(self.queues.at(queue).live(), name));
        customer.into_iter().for_each(|id| self.customers.pin(id));
        let expiry = new.expiry.unwrap_or(u64::MAX);
        let windowed = customer.filter(|_| admission.timing == Timing::Windowed);
        // Before it has a number: a window that closes takes in all numbers so far.
        windowed.into_iter().for_each(|id| self.close_overflowing(id, new.weight, now));
        let seq = self.journal.number();
        let key = match (admission.timing, windowed) {
            (Timing::Own(due), _) => self.own_key(customer, due, seq),
            (Timing::Windowed, Some(id)) => {
                let member = Member { weight: new.weight, expiry, seq };
                Key { seq, ..self.join_window(id, member, admission.inherited, now) }
            }
            (Timing::Immediate | Timing::Windowed, _) => Key::own(now.wall, seq),
        };
        let own_time = matches!(admission.timing, Timing::Own(_));
        let Origin { delivery, received, .. } = admission.origin;
        // A delay counts from the moment of receipt, rounded up; everything else from now, which is rounded
        // down, and so is its receipt: nothing seems to have come after its window was opened.
        let received = if own_time { received } else { received.min(now.wall) };
        let placement = Placement { key, queue, customer, received, tag: delivery.tag };
        let item = Item::arrived(new, own_time, placement);
        self.counters.accepted += 1;
        self.place(item, windowed.is_some(), admission.may_defer, now);
        if let Some(id) = windowed {
            if let Some(cause) = self.customers.is_full(id, self.queues.at(queue).live()) {
                self.close_window(id, cause, now);
            }
        }
        customer.into_iter().for_each(|id| self.customers.unpin(id, self.queues.at(queue).live()));
        seq
    }

    /// Where an item with a time of its own lies: by itself, or, due when its customer's window ends, amid
    /// the members of that, for they leave in the order in which they came.
    fn own_key(&self, customer: Option<CustomerId>, due: u64, seq: u64) -> Key {
        let window = customer.and_then(|id| self.customers.window(id));
        let near = |place: &Key| place.due == due && seq - place.window <= self.thresholds().span;
        window.map(Window::place).filter(near).map_or(Key::own(due, seq), |place| Key { seq, ..place })
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
        let seq = self.journal.number();
        let placement = Placement {
            key: Key::own(now.wall, seq),
            queue: self.queues.dead_letters(),
            customer: None,
            received: origin.received,
            tag: origin.delivery.tag,
        };
        let item = Item::letter(Arc::new(dead), meant_for, content, placement);
        self.place(item, false, false, now);
        seq
    }

    /// Decides where a new item lives, writes it if anything is written, and puts it on its list.
    fn place(&mut self, mut item: Item, windowed: bool, may_defer: bool, now: Now) {
        let (queue, key) = (item.queue(), item.place());
        if !self.journal.is_durable() {
            self.queues.at(queue).add_pending();
            let id = self.insert(item);
            return self.enlist(id, windowed, now);
        }
        let due_now = key.due <= now.wall && !windowed;
        if due_now && may_defer && key < self.queues[queue].memory_bound() && !self.is_crowded(queue) {
            self.queues.at(queue).add_pending();
            let id = self.insert(item);
            self.deferred.push_back((now.mono + DEFER_MS, id));
            return self.enlist(id, windowed, now);
        }
        let far = self.lies_in_store_alone(queue, key, due_now, now);
        item.set_indexed(far && item.customer().is_some() && !mutated(Mutant::IndexForgotten));
        self.write(&mut item);
        if far {
            self.queues.at(queue).add_far(key);
            let address = self.address(&item);
            self.watch.put(item.identity(), || item.to_stored(address));
            if let (Some(customer), true) = (item.customer(), windowed) {
                self.customers.add_far(customer, now.wall + HORIZON_MS);
            }
            return;
        }
        self.queues.at(queue).add_resident(key);
        let id = self.insert(item);
        self.keep_content(id, now);
        self.enlist(id, windowed, now);
    }

    /// Whether an item that is written with this key does not stay in memory: it is not needed there soon, or
    /// there is no room.
    fn lies_in_store_alone(&mut self, queue: QueueId, key: Key, due_now: bool, now: Now) -> bool {
        key >= self.queues[queue].memory_bound()
            || key.due > now.wall + HORIZON_MS
            || (due_now && self.is_crowded(queue))
            || !self.make_room(key, now)
    }

    /// Hands an item's row over to the store; its delivery is safe with that.
    fn write(&mut self, item: &mut Item) {
        let stored = self.stored_from(item);
        let token = self.journal.put(stored, item.indexed());
        if let Residence::Pending(tag) = item.residence() {
            self.journal.safe_with(token, tag);
        }
        item.set_stored(token);
    }

    /// Puts an item that has just come on its list.
    fn enlist(&mut self, id: ItemId, windowed: bool, now: Now) {
        let key = self.items[id].place();
        if windowed {
            self.add_member(id, now);
        } else if key.due > now.wall {
            self.set_stage(id, Stage::Scheduled);
            self.schedule.insert(items::place_of(id), key);
        } else {
            self.make_ready(id, now);
        }
    }

    // ---- across -------------------------------------------------------------------------------------------

    /// Gives an item up: from now on it is a dead letter. It is on no list. `former`: the identity it lived
    /// under, where that is to be remembered with the confirm of the dead letter.
    pub(super) fn bury(&mut self, id: ItemId, dead: Dead, former: Option<Identity>, now: Now) {
        if self.items[id].is_orphaned() {
            return self.give_back(id);
        }
        let identity = self.items.lose_identity(id);
        let meant_for = self.address(&self.items[id]);
        let from = self.place_in_store(&self.items[id]);
        let moved = self.items[id].has_moved();
        let removed = IndexRows {
            identity: (identity.is_given() || moved).then_some(identity),
            ..self.index_rows(&self.items[id])
        };
        self.watch.changed(identity);
        let Some(mut item) = self.remove(id) else { return };
        self.leave_as_stray(&item);
        let (from_queue, old) = (item.queue(), item.place());
        item.bury(dead, meant_for, former, self.queues.dead_letters(), now.wall);
        if !item.is_stored() {
            self.queues.at(from_queue).remove_pending();
            return self.place(item, false, false, now);
        }
        item.set_stored(self.journal.next_token());
        let to = self.place_in_store(&item);
        let standing = Box::new(item.standing());
        self.journal.push(Op::Move { from, to, removed, written: IndexRows::default(), standing });
        self.queues.at(from_queue).remove_stored(old, true);
        self.reads.note_gone(old.seq);
        let queue = item.queue();
        if item.place() >= self.queues[queue].memory_bound()
            || self.is_crowded(queue)
            || (self.free_rows() == 0 && !mutated(Mutant::DeadCrowdIn))
        {
            self.queues.at(queue).add_far(item.place());
        } else {
            self.queues.at(queue).add_resident(item.place());
            let id = self.insert(item);
            self.keep_content(id, now);
            self.make_ready(id, now);
        }
    }

    // ---- out ----------------------------------------------------------------------------------------------

    /// Items in memory are done with: their requests may be acked, and the store forgets them. They are on no
    /// list.
    pub(super) fn finish(&mut self, ids: &[ItemId]) {
        self.detach(ids);
        ids.iter().for_each(|id| self.finish_detached(*id));
    }

    fn finish_detached(&mut self, id: ItemId) {
        let (place, rows) = (self.place_in_store(&self.items[id]), self.index_rows(&self.items[id]));
        let Some(item) = self.take_out(id) else { return };
        self.leave_as_stray(&item);
        self.watch.changed(item.identity());
        match item.residence() {
            Residence::Pending(tag) => {
                self.queues.at(item.queue()).remove_pending();
                let delivery = self.journal.delivery(tag);
                if item.identity().is_given() && !mutated(Mutant::AckBeforeRemembered) {
                    // Else a crash could forget that the id was known, with the request acked.
                    self.journal.safe_once_durable(delivery);
                } else {
                    self.journal.safe(delivery);
                }
            }
            Residence::Orphaned => {
                self.queues.at(item.queue()).remove_pending();
                if let Some(rule) = item.superseded() {
                    // It was sent, so the other came anew.
                    self.counters.duplicates[rule as usize].accepted += 1;
                }
            }
            Residence::Stored(_) => {
                self.queues.at(item.queue()).remove_stored(item.place(), true);
                self.journal.delete(place, rows);
                if !mutated(Mutant::LoadFromThePast) {
                    self.reads.note_gone(item.key().seq);
                }
            }
        }
    }

    /// An item in the store alone is done with.
    pub(super) fn finish_far(&mut self, stored: &Stored) {
        let Some(queue) = self.queues.find(stored.queue()) else { return };
        self.leave_window_far(queue, stored);
        let place = Place { queue: Arc::clone(self.queues[queue].name()), key: stored.key };
        self.journal.delete(place, stored.index_rows());
        self.queues.at(queue).remove_stored(stored.place(), false);
        self.queues.at(queue).may_trim();
        let stalls = self.queues[queue].live().is_some_and(|live| live.line().has_stalled());
        if stalls && self.queues[queue].far() == 0 && !mutated(Mutant::StalledForEver) {
            // Nothing is left that what is stalled could wait for, and nothing will be loaded.
            self.unstall(queue);
        }
        if !mutated(Mutant::FarGoneUntold) {
            self.reads.note_gone(stored.key.seq);
        }
        self.watch.changed(stored.identity());
    }

    /// Forgets an item that the broker delivers again, or that another has replaced while it was in flight.
    /// It is on no list.
    pub(super) fn give_back(&mut self, id: ItemId) {
        debug_assert!(!self.items[id].is_stored(), "what is stored is not given back to the broker");
        let Some(item) = self.remove(id) else { return };
        self.watch.changed(item.identity());
        self.queues.at(item.queue()).remove_pending();
        match item.superseded() {
            Some(rule) => self.counters.count_replaced(rule),
            None => self.counters.given_back += 1,
        }
    }

    /// The request of an item in flight that only the broker kept has come again: it is this one's, and
    /// written, so that its attempt may take the time that it takes.
    pub(super) fn adopt(&mut self, id: ItemId, origin: Origin, now: Now) {
        self.items[id].adopt(origin.delivery.tag);
        self.store_pending(id, now);
    }

    /// Another takes the id of an item in flight, whose attempt may end late or never. It is nowhere but in
    /// its flight from now on: the end of the attempt says whether it was sent or replaced, and a crash,
    /// which leaves that unknown, leaves the other alone.
    pub(super) fn supersede(&mut self, id: ItemId, rule: DuplicateRule) {
        let (place, rows) = (self.place_in_store(&self.items[id]), self.index_rows(&self.items[id]));
        let (queue, residence) = (self.items[id].queue(), self.items[id].residence());
        let due_place = self.items[id].place();
        let identity = self.items.lose_identity(id);
        self.watch.changed(identity);
        match residence {
            // Its own request comes again, and is the other, or comes before it.
            Residence::Orphaned => return,
            Residence::Pending(tag) => self.journal.safe_once_durable(self.journal.delivery(tag)),
            Residence::Stored(_) => {
                self.queues.at(queue).add_pending();
                self.queues.at(queue).remove_stored(due_place, true);
                self.reads.note_gone(place.key.seq);
                self.journal.delete(place, rows);
            }
        }
        self.items[id].supersede(rule);
    }

    // ---- as others see it ---------------------------------------------------------------------------------

    pub(super) fn stored_from(&self, item: &Item) -> Stored {
        item.to_stored(self.address(item))
    }

    /// Application and customer by name; of a dead item, those that it was meant for.
    pub(super) fn address(&self, item: &Item) -> Address {
        if let Some(meant_for) = item.meant_for() {
            return meant_for.clone();
        }
        let customer = item.customer().map(|customer| Arc::clone(&self.customers[customer].name));
        (Arc::clone(self.queues[item.queue()].name()), customer)
    }

    pub(super) fn place_in_store(&self, item: &Item) -> Place {
        Place { queue: Arc::clone(self.queues[item.queue()].name()), key: item.key() }
    }

    fn customer_row(&self, item: &Item) -> Option<(Arc<str>, Arc<str>)> {
        let customer = Arc::clone(&self.customers[item.customer()?].name);
        Some((Arc::clone(self.queues[item.queue()].name()), customer))
    }

    /// Index rows that the item's row may have.
    fn index_rows(&self, item: &Item) -> IndexRows {
        let customer = if item.indexed() { self.customer_row(item) } else { None };
        IndexRows { identity: item.identity_row(), customer }
    }

    /// The due of the item that has waited longest in the queue's line, as far as that is cheap to know.
    pub(super) fn first_due(&self, queue: QueueId) -> Option<u64> {
        let live = self.queues[queue].live()?;
        let id = match live.line().first()? {
            Entry::Single(id) => id,
            Entry::Customer(customer) => self.customers.get(customer)?.ready.first()?,
        };
        self.items.get(id).map(|item| item.due())
    }

    /// Rows have been looked at elsewhere.
    pub(super) fn count_work(&mut self, rows: u64) {
        self.work += rows;
    }

    #[cfg(test)]
    pub(super) fn work(&self) -> u64 {
        self.work
    }
}
