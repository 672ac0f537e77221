//! State that all queues share, because there is little of it or because one order holds for all: memory, the
//! schedule, the journal, and the notes that make reads under way out of date. It knows queues by their
//! handles only.

use super::{Behind, KEEP_MS};
use crate::customers::Customers;
use crate::ids::{CustomerId, ItemId, QueueId};
use crate::items::{self, Address, Item, ItemFlag, Items, Residence, Stage, Tries};
use crate::journal::Journal;
use crate::mutant::{mutated, Mutant};
use crate::reads::Rewritten;
use crate::reads::{Reads, Watch};
use crate::schedule::Schedule;
use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use tidegate_types::event::{ClosingRow, IndexRows, Op, Place, Standing, Stored};
use tidegate_types::snapshot::Counters;
use tidegate_types::{Budget, Content, Identity, Key, Now};

/// State that all queues share; see the module's page.
#[derive(Debug)]
pub(crate) struct SharedItems {
    pub(crate) journal: Journal,
    /// Changes that reads of rows under way cannot know.
    pub(crate) reads: Reads,
    pub(crate) watch: Watch,
    pub(super) counters: Counters,
    pub(super) items: Items,
    pub(crate) customers: Customers,
    /// Items that wait for their own time, and members of windows, by key; wall clock.
    pub(super) schedule: Schedule,
    /// Items that may be confirmed before they are stored, and the monotonic moment at which they are stored
    /// at the latest: those with small bodies, and those with large ones.
    pub(super) deferred: [VecDeque<(u64, ItemId)>; 2],
    /// Customers with due rows that are to leave memory, with their queues.
    pub(super) leaving: VecDeque<(QueueId, CustomerId)>,
    /// Queues that are held back and have due rows in memory.
    pub(super) evicting: VecDeque<QueueId>,
    pub(super) budget: Budget,
    /// Items in batches, in flight or to be sent again: they cannot leave memory.
    batched: usize,
    /// Rows and payload bytes that reads under way may bring.
    reserved: (usize, u64),
    /// An item came in for which items that are due after this moment are to leave memory, UTC ms.
    pub(super) crowded_in: Option<u64>,
    /// Queues with items in the store alone that got another place in this turn, and the first of those
    /// places.
    pub(super) retold: Vec<(Arc<str>, Key)>,
    /// Work that is due and not done yet.
    pub(super) behind: Behind,
    /// Queues that wait until it is done: a window of theirs may be over whose items come in between.
    pub(super) held: BTreeSet<QueueId>,
    /// Queues with items that wait for older rows; one may have moved on since.
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
            customers: Customers::new(budget.rows, now),
            schedule: Schedule::new(now.wall),
            deferred: [VecDeque::new(), VecDeque::new()],
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

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// Counts rows that other modules have visited.
    pub(crate) fn count_work(&mut self, rows: u64) {
        self.work += rows;
    }

    #[cfg(test)]
    pub(crate) fn work(&self) -> u64 {
        self.work
    }

    /// Reports the queues with items in the store alone that got another place since the last call, and from
    /// which place on.
    pub(crate) fn tell_retold(&mut self, mut tell: impl FnMut(&str, Key)) {
        for (queue, to) in core::mem::take(&mut self.retold) {
            tell(&queue, to);
        }
    }

    // ---- rows in memory -----------------------------------------------------------------------------------

    /// How many more rows fit in memory, apart from those that reads may bring.
    pub(crate) fn free_rows(&self) -> usize {
        self.budget.rows.saturating_sub(self.items.len() + self.reserved.0)
    }

    /// Rows beyond the bound of memory, without those in batches: the batches of a queue that hangs take no
    /// room from other queues.
    pub(crate) fn rows_beyond(&self) -> usize {
        let apart = if mutated(Mutant::BatchesCrowdOut) { 0 } else { self.batched };
        (self.items.len() + self.reserved.0).saturating_sub(self.budget.rows + apart)
    }

    /// How many more bytes of payloads fit, likewise.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.budget.contents.saturating_sub(self.items.content_bytes() + self.reserved.1)
    }

    /// Reserves room in memory for a read.
    pub(crate) fn reserve(&mut self, rows: usize, bytes: u64) {
        self.reserved = (self.reserved.0 + rows, self.reserved.1 + bytes);
    }

    /// Frees the reserved room, as the rows that the read has brought count themselves.
    pub(crate) fn fulfil(&mut self, rows: usize, bytes: u64) {
        self.reserved = (self.reserved.0 - rows, self.reserved.1 - bytes);
    }

    #[cfg(test)]
    pub(super) fn reserved_rows(&self) -> usize {
        self.reserved.0
    }

    /// Whether memory has room for an item with this key, or an item that is due later and is to leave for
    /// it. False: all items there are due sooner.
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
    /// of the next. The entries are scattered in memory, and the processor fetches several at a time.
    pub(super) fn detach(&mut self, ids: &[ItemId]) {
        self.customers.unlink(ids, &mut self.items);
        self.items.unindex(ids);
    }

    /// Takes an item that is detached out of the table.
    pub(super) fn take_out(&mut self, id: ItemId) -> Item {
        self.work += 1;
        let item = self.items.remove(id);
        self.batched -= usize::from(item.stage().is_in_batch());
        item
    }

    pub(super) fn set_stage(&mut self, id: ItemId, stage: Stage) {
        let was = self.items[id].stage().is_in_batch();
        self.items[id].set_stage(stage);
        self.batched = self.batched + usize::from(self.items[id].stage().is_in_batch()) - usize::from(was);
    }

    /// Changes facts of an item, as a failed attempt does. They are written when the item leaves memory.
    pub(crate) fn amend(&mut self, id: ItemId, change: impl FnOnce(&mut Tries)) {
        self.items[id].amend(change);
    }

    /// Sets the id and the fingerprint of the request of this dead letter, which are to be remembered with
    /// its confirm.
    pub(crate) fn set_former(&mut self, id: ItemId, identity: Identity, fingerprint: u64) {
        self.items[id].set_former(identity, fingerprint);
    }

    /// The broker redelivers what was not acked: items that it alone keeps become orphaned. The cost grows
    /// with the number of all items; it occurs once per connection.
    pub(crate) fn orphan_pending(&mut self) -> Vec<ItemId> {
        let pending: Vec<ItemId> = self.items.ids().filter(|id| !self.items[*id].is_stored()).collect();
        for id in &pending {
            self.items[*id].set_tag(None);
        }
        pending
    }

    #[cfg(test)]
    pub(crate) fn rows_in_batches(&self) -> usize {
        self.batched
    }

    // ---- their times --------------------------------------------------------------------------------------

    /// Puts the item into the schedule, to wait for its due.
    pub(crate) fn await_time(&mut self, id: ItemId) {
        self.set_stage(id, Stage::Scheduled);
        self.schedule.insert(items::place_of(id), self.items[id].place());
    }

    /// When something in memory is due next, wall clock.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.schedule.next()
    }

    /// The wall clock went back: all items wait for their time anew.
    pub(crate) fn rebase(&mut self, now: Now) {
        let items = &self.items;
        self.schedule
            .rebase(now.wall, |place| items.at(place).map_or(Key::default(), |id| items[id].place()));
    }

    /// Items that may be confirmed before they are written, where they still exist.
    pub(crate) fn deferred(&self) -> impl Iterator<Item = ItemId> + '_ {
        self.deferred.iter().flatten().map(|(_, id)| *id)
    }

    /// When the first of them is written at the latest, monotonic.
    pub(crate) fn deferred_until(&self) -> Option<u64> {
        self.deferred.iter().filter_map(|list| list.front()).map(|(at, _)| *at).min()
    }

    // ---- their payloads -----------------------------------------------------------------------------------

    /// Decides whether the payload of an item that is being written stays in memory after the commit.
    pub(super) fn keep_content(&mut self, id: ItemId, now: Now) {
        let item = &self.items[id];
        // Without a store its payload is nowhere else.
        let Residence::Stored(token) = item.residence() else { return };
        let soon = item.due() <= now.wall + KEEP_MS;
        if !soon || self.items.content_bytes() >= self.budget.contents / 4 * 3 {
            self.journal.fresh(token, id);
        }
    }

    /// A commit became durable: the requests that waited for it are safe, and payloads may leave memory.
    pub(crate) fn committed(&mut self, token: u64) {
        let before = self.journal.uncommitted();
        for id in self.journal.committed(token) {
            let idle = self.items.get(id).is_some_and(|item| !item.stage().is_in_batch());
            if idle && self.is_readable(id) && !mutated(Mutant::ContentsStay) {
                self.items.take_content(id);
            }
        }
        self.counters.commits += before - self.journal.uncommitted();
    }

    /// Whether the store has the item durably, so that its payload can be read from there.
    fn is_readable(&self, id: ItemId) -> bool {
        match self.items[id].residence() {
            Residence::Stored(token) => self.journal.is_committed(token),
            Residence::Pending(_) | Residence::Orphaned => false,
        }
    }

    /// Adds a payload that has come from the store.
    pub(crate) fn set_content(&mut self, id: ItemId, content: Arc<Content>) {
        self.items.set_content(id, content);
    }

    /// Returns the payload for a publish. One that can be read again leaves memory.
    pub(crate) fn lend_content(&mut self, id: ItemId) -> Option<Arc<Content>> {
        if self.is_readable(id) {
            self.items.take_content(id)
        } else {
            self.items[id].content().cloned()
        }
    }

    // ---- rows for the store -------------------------------------------------------------------------------

    /// An item of the queue of this name, as the store knows it.
    pub(super) fn row<'a>(&'a self, queue: &'a Arc<str>, item: &'a Item) -> ItemRow<'a> {
        ItemRow::new(queue, &self.customers, item)
    }

    /// Writes that a window has closed before its end. Whatever reads and answers under way say of its
    /// members is out of date then, wherever these are.
    pub(super) fn close_in_store(&mut self, closed: ClosingRow) {
        self.reads.note_closed(&self.watch, &closed);
        if !mutated(Mutant::ClosingForgotten) {
            self.journal.push(Op::Close(closed));
        }
    }
}

/// An item as the store knows it: by names, not by handles.
#[derive(Debug)]
pub(crate) struct ItemRow<'a> {
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
    pub(crate) fn address(&self) -> Address {
        if let Some(letter) = self.item.letter() {
            return letter.meant_for.clone();
        }
        let customer = self.item.customer().map(|customer| Arc::clone(&self.customers[customer].name));
        (Arc::clone(self.queue), customer)
    }

    /// Queue and key of its row.
    pub(crate) fn place(&self) -> Place {
        Place { queue: Arc::clone(self.queue), key: self.item.key() }
    }

    pub(super) fn stored(&self) -> Stored {
        let (item, (application, customer)) = (self.item, self.address());
        let (tries, identity) = (item.tries(), item.identity());
        Stored {
            key: item.key(),
            due: items::reported_due(item),
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

    /// The index rows that it may have.
    pub(super) fn index(&self) -> IndexRows {
        let customer = if self.item.is(ItemFlag::Indexed) { self.customer() } else { None };
        IndexRows { identity: self.item.identity_row(), customer }
    }
}

/// The part of an item's row that may change while it waits.
pub(super) fn standing(item: &Item) -> Box<Standing> {
    let tries = item.tries().clone();
    Box::new(Standing {
        attempts: tries.attempts,
        last_error: tries.last_error,
        outcome_unknown: tries.outcome_unknown,
        own_time: item.is(ItemFlag::OwnTime),
        closed_by: item.closed_by(),
        dead: item.letter().map(|letter| Arc::clone(&letter.dead)),
        due: item.letter().map(|letter| letter.due),
    })
}

/// The part of it that reads under way have to know.
pub(super) fn rewritten(item: &Item) -> Rewritten {
    Rewritten {
        key: item.key(),
        due: items::reported_due(item),
        attempts: item.tries().attempts,
        outcome_unknown: item.tries().outcome_unknown,
        own_time: item.is(ItemFlag::OwnTime),
        dead: item.letter().is_some(),
    }
}
