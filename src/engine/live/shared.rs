//! What all queues share, since there is little of it or one order counts: memory, the schedule, the journal,
//! what reads under way must not believe. It knows of no queue but by its handle.

use super::{Behind, KEEP_MS};
use crate::engine::customers::Customers;
use crate::engine::event::{ClosingRow, IndexRows, Op, Place, Rewritten, Standing, Stored};
use crate::engine::ids::{CustomerId, ItemId, QueueId};
use crate::engine::items::{self, Address, Item, ItemFlag, Items, Residence, Stage, Tries};
use crate::engine::journal::Journal;
use crate::engine::mutant::{mutated, Mutant};
use crate::engine::reads::{Reads, Watch};
use crate::engine::schedule::Schedule;
use crate::engine::snapshot::Counters;
use crate::engine::types::{Budget, Content, Identity, Key, Now};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// See the module's page.
#[derive(Debug)]
pub(in crate::engine) struct SharedItems {
    pub(in crate::engine) journal: Journal,
    /// What reads of rows under way cannot know.
    pub(in crate::engine) reads: Reads,
    pub(in crate::engine) watch: Watch,
    pub(super) counters: Counters,
    pub(super) items: Items,
    pub(in crate::engine) customers: Customers,
    /// What waits for its own time, and members of windows, by key; wall clock.
    pub(super) schedule: Schedule,
    /// Items that may be confirmed before they need be stored: stored at this monotonic moment at the latest.
    pub(super) deferred: VecDeque<(u64, ItemId)>,
    /// Customers that are held back and have due rows in memory, with their queues.
    pub(super) leaving: VecDeque<(QueueId, CustomerId)>,
    /// Queues that are held back and have due rows in memory.
    pub(super) evicting: VecDeque<QueueId>,
    pub(super) budget: Budget,
    /// Items in batches, out or to be sent again: they cannot leave memory.
    batched: usize,
    /// Rows and payload bytes that reads under way may bring.
    reserved: (usize, u64),
    /// An item came in for which what is due after this moment is to leave memory, UTC ms.
    pub(super) crowded_in: Option<u64>,
    /// Queues of which items in the store alone got another place in this turn, and the first of these.
    pub(super) retold: Vec<(Arc<str>, Key)>,
    /// What of that which is due is not in line.
    pub(super) behind: Behind,
    /// Queues that wait until it has: a window of theirs may be over whose items come in between.
    pub(super) held: BTreeSet<QueueId>,
    /// Queues of which something waits for older rows; one may have moved on since.
    pub(super) stalled: BTreeSet<QueueId>,
    /// Rows touched, for tests that count work.
    pub(super) work: u64,
}

impl SharedItems {
    pub(super) fn new(journal: Journal, budget: Budget, now: Now) -> Self {
        SharedItems {
            journal,
            reads: Reads::new(),
            watch: Watch::new(),
            counters: Counters::default(),
            items: Items::new(),
            customers: Customers::new(now),
            schedule: Schedule::new(now.wall),
            deferred: VecDeque::new(),
            leaving: VecDeque::new(),
            evicting: VecDeque::new(),
            budget,
            batched: 0,
            reserved: (0, 0),
            crowded_in: None,
            retold: Vec::new(),
            behind: Behind::Nothing,
            held: BTreeSet::new(),
            stalled: BTreeSet::new(),
            work: 0,
        }
    }

    pub(in crate::engine) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(in crate::engine) fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// Rows have been looked at elsewhere.
    pub(in crate::engine) fn count_work(&mut self, rows: u64) {
        self.work += rows;
    }

    #[cfg(test)]
    pub(in crate::engine) fn work(&self) -> u64 {
        self.work
    }

    /// Tells of queues of which items in the store alone got another place since the last call, and from
    /// which place on.
    pub(in crate::engine) fn tell_retold(&mut self, mut tell: impl FnMut(&str, Key)) {
        for (queue, to) in std::mem::take(&mut self.retold) {
            tell(&queue, to);
        }
    }

    // ---- rows in memory -----------------------------------------------------------------------------------

    /// Rows that find room in memory, beside those that are on their way from the store.
    pub(in crate::engine) fn free_rows(&self) -> usize {
        self.budget.rows.saturating_sub(self.items.len() + self.reserved.0)
    }

    /// Rows beyond the bound of memory, those in batches apart: who hangs keeps nobody else from it with
    /// these.
    pub(in crate::engine) fn rows_beyond(&self) -> usize {
        let apart = if mutated(Mutant::BatchesCrowdOut) { 0 } else { self.batched };
        (self.items.len() + self.reserved.0).saturating_sub(self.budget.rows + apart)
    }

    /// Bytes of payloads that find room, likewise.
    pub(in crate::engine) fn free_bytes(&self) -> u64 {
        self.budget.contents.saturating_sub(self.items.content_bytes() + self.reserved.1)
    }

    /// A read takes its place in memory.
    pub(in crate::engine) fn reserve(&mut self, rows: usize, bytes: u64) {
        self.reserved = (self.reserved.0 + rows, self.reserved.1 + bytes);
    }

    /// What it has brought counts itself.
    pub(in crate::engine) fn fulfil(&mut self, rows: usize, bytes: u64) {
        self.reserved = (self.reserved.0 - rows, self.reserved.1 - bytes);
    }

    #[cfg(test)]
    pub(super) fn reserved_rows(&self) -> usize {
        self.reserved.0
    }

    /// There is room in memory for an item with this key, or something that is due later, which is to leave
    /// for it. False: all that is there is due sooner.
    pub(super) fn has_room_for(&mut self, key: Key) -> bool {
        if self.free_rows() > 0 {
            return true;
        }
        let gives_way = self.schedule.last().is_some_and(|last| last > key.due);
        if gives_way {
            self.crowded_in = Some(key.due);
        }
        gives_way
    }

    /// Puts an item into the table, and on the list of its customer.
    pub(super) fn insert(&mut self, item: Item) -> ItemId {
        self.work += 1;
        self.batched += usize::from(item.stage().is_in_batch());
        let customer = item.customer();
        let id = self.items.insert(item);
        customer.into_iter().for_each(|customer| self.customers.add_row(customer, id, &mut self.items));
        id
    }

    /// Takes items off the lists and out of the indexes that lead to them: all items out of one, then all out
    /// of the next. What is changed lies anywhere in memory, and the processor fetches several at a time.
    pub(super) fn detach(&mut self, ids: &[ItemId]) {
        self.customers.unlink(ids, &mut self.items);
        self.items.unindex(ids);
    }

    /// Takes an item that is detached out of the table.
    pub(super) fn take_out(&mut self, id: ItemId) -> Option<Item> {
        self.work += 1;
        let item = self.items.remove(id)?;
        self.batched -= usize::from(item.stage().is_in_batch());
        Some(item)
    }

    pub(super) fn set_stage(&mut self, id: ItemId, stage: Stage) {
        let was = self.items[id].stage().is_in_batch();
        self.items[id].set_stage(stage);
        self.batched = self.batched + usize::from(self.items[id].stage().is_in_batch()) - usize::from(was);
    }

    /// Changes what is known of an item, as by an attempt that has failed: that goes to the store when it
    /// leaves memory.
    pub(in crate::engine) fn amend(&mut self, id: ItemId, change: impl FnOnce(&mut Tries)) {
        self.items[id].amend(change);
    }

    /// What the request of this dead letter had for an id and a fingerprint is to be remembered with its
    /// confirm.
    pub(in crate::engine) fn set_former(&mut self, id: ItemId, identity: Identity, fingerprint: u64) {
        self.items[id].set_former(identity, fingerprint);
    }

    /// The broker delivers again what was not acked: what it alone keeps is orphaned. The cost is that of all
    /// items; it happens with a connection.
    pub(in crate::engine) fn orphan_pending(&mut self) -> Vec<ItemId> {
        let pending: Vec<ItemId> = self.items.ids().filter(|id| !self.items[*id].is_stored()).collect();
        for id in &pending {
            self.items[*id].set_tag(None);
        }
        pending
    }

    #[cfg(test)]
    pub(in crate::engine) fn rows_in_batches(&self) -> usize {
        self.batched
    }

    // ---- their times --------------------------------------------------------------------------------------

    /// The item waits for the due in its place.
    pub(in crate::engine) fn await_time(&mut self, id: ItemId) {
        self.set_stage(id, Stage::Scheduled);
        self.schedule.insert(items::place_of(id), self.items[id].place());
    }

    /// When something in memory is due next, wall clock.
    pub(in crate::engine) fn next_due(&self) -> Option<u64> {
        self.schedule.next()
    }

    /// The wall clock went back: everything waits for its time anew.
    pub(in crate::engine) fn rebase(&mut self, now: Now) {
        let items = &self.items;
        self.schedule
            .rebase(now.wall, |place| items.at(place).map_or(Key::default(), |id| items[id].place()));
    }

    /// Items that may be confirmed before they are written, as far as they are still there.
    pub(in crate::engine) fn deferred(&self) -> impl Iterator<Item = ItemId> + '_ {
        self.deferred.iter().map(|(_, id)| *id)
    }

    /// When the first of them is written at the latest, monotonic.
    pub(in crate::engine) fn deferred_until(&self) -> Option<u64> {
        self.deferred.front().map(|(at, _)| *at)
    }

    // ---- their payloads -----------------------------------------------------------------------------------

    /// Decides whether the payload of an item that is being written stays in memory afterwards.
    pub(super) fn keep_content(&mut self, id: ItemId, now: Now) {
        let item = &self.items[id];
        let Residence::Stored(token) = item.residence() else { return };
        let soon = item.due() <= now.wall + KEEP_MS;
        if !soon || self.items.content_bytes() >= self.budget.contents / 4 * 3 {
            self.journal.fresh(token, id);
        }
    }

    /// A commit became durable: what waited for it is safe, and payloads may go.
    pub(in crate::engine) fn committed(&mut self, token: u64) {
        let before = self.journal.uncommitted();
        for id in self.journal.committed(token) {
            let idle = self.items.get(id).is_some_and(|item| !item.stage().is_in_batch());
            if idle && self.is_readable(id) && !mutated(Mutant::ContentsStay) {
                self.items.take_content(id);
            }
        }
        self.counters.commits += before - self.journal.uncommitted();
    }

    /// The store has the item for good: its payload can be read from there.
    fn is_readable(&self, id: ItemId) -> bool {
        match self.items[id].residence() {
            Residence::Stored(token) => self.journal.is_committed(token),
            Residence::Pending(_) | Residence::Orphaned => false,
        }
    }

    /// A payload has come from the store.
    pub(in crate::engine) fn set_content(&mut self, id: ItemId, content: Arc<Content>) {
        self.items.set_content(id, content);
    }

    /// The payload for a publish; one that can be read again does not stay.
    pub(in crate::engine) fn lend_content(&mut self, id: ItemId) -> Option<Arc<Content>> {
        if self.is_readable(id) {
            self.items.take_content(id)
        } else {
            self.items[id].content().cloned()
        }
    }

    // ---- what the store is told ---------------------------------------------------------------------------

    /// An item of the queue of this name, as the store knows it.
    pub(super) fn row<'a>(&'a self, queue: &'a Arc<str>, item: &'a Item) -> ItemRow<'a> {
        ItemRow::new(queue, &self.customers, item)
    }

    /// The store is told that a window has closed before its end. What reads and answers under way say of its
    /// members, wherever these are now, is out of date.
    pub(super) fn close_in_store(&mut self, closed: ClosingRow) {
        self.reads.note_closed(&self.watch, &closed);
        if !mutated(Mutant::ClosingForgotten) {
            self.journal.push(Op::Close(closed));
        }
    }
}

/// An item as the store knows it: by names, not by handles.
#[derive(Debug)]
pub(in crate::engine) struct ItemRow<'a> {
    queue: &'a Arc<str>,
    customers: &'a Customers,
    item: &'a Item,
}

impl<'a> ItemRow<'a> {
    /// `queue`: its name.
    pub(super) fn new(queue: &'a Arc<str>, customers: &'a Customers, item: &'a Item) -> Self {
        ItemRow { queue, customers, item }
    }

    /// Application and customer by name; of a dead item, those that it was meant for.
    pub(in crate::engine) fn address(&self) -> Address {
        if let Some(letter) = self.item.letter() {
            return letter.meant_for.clone();
        }
        let customer = self.item.customer().map(|customer| Arc::clone(&self.customers[customer].name));
        (Arc::clone(self.queue), customer)
    }

    /// Where it lies.
    pub(in crate::engine) fn place(&self) -> Place {
        Place { queue: Arc::clone(self.queue), key: self.item.key() }
    }

    pub(super) fn stored(&self) -> Stored {
        let (item, (application, customer)) = (self.item, self.address());
        let (tries, identity) = (item.tries(), item.identity());
        Stored {
            key: item.key(),
            due: item.due(),
            accepted_due: item.accepted_due(),
            application,
            customer,
            given: identity.is_given().then_some(identity),
            fingerprint: item.fingerprint(),
            received: item.received(),
            own_time: item.is(ItemFlag::OwnTime),
            expiry: (item.expiry() != u64::MAX).then_some(item.expiry()),
            weight: item.weight(),
            closed_by: item.closed_by(),
            attempts: tries.attempts,
            last_error: tries.last_error.clone(),
            outcome_unknown: tries.outcome_unknown,
            retry: tries.retry,
            dead: item.letter().map(|letter| Arc::clone(&letter.dead)),
            content: item.content().cloned(),
        }
    }

    /// Its index row under its customer, where it has one.
    pub(super) fn customer(&self) -> Option<(Arc<str>, Arc<str>)> {
        let customer = Arc::clone(&self.customers[self.item.customer()?].name);
        Some((Arc::clone(self.queue), customer))
    }

    /// Index rows that it may have.
    pub(super) fn index(&self) -> IndexRows {
        let customer = if self.item.is(ItemFlag::Indexed) { self.customer() } else { None };
        IndexRows { identity: self.item.identity_row(), customer }
    }
}

/// What may change of an item's row while it waits.
pub(super) fn standing(item: &Item) -> Box<Standing> {
    let tries = item.tries().clone();
    Box::new(Standing {
        attempts: tries.attempts,
        last_error: tries.last_error,
        outcome_unknown: tries.outcome_unknown,
        own_time: item.is(ItemFlag::OwnTime),
        closed_by: item.closed_by(),
        dead: item.letter().map(|letter| Arc::clone(&letter.dead)),
    })
}

/// What of that reads under way have to know.
pub(super) fn rewritten(item: &Item) -> Rewritten {
    Rewritten {
        key: item.key(),
        due: item.due(),
        attempts: item.tries().attempts,
        outcome_unknown: item.tries().outcome_unknown,
        own_time: item.is(ItemFlag::OwnTime),
        dead: item.letter().is_some(),
    }
}
