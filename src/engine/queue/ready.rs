//! A queue's due work, in order: what may leave, and what waits for older rows that have still to be loaded.

use crate::engine::ids::{CustomerId, ItemId};
use std::collections::{BTreeSet, VecDeque};

/// What stands in a queue's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Entry {
    Customer(CustomerId),
    Single(ItemId),
}

/// See the module's page.
#[derive(Debug, Default)]
pub(in crate::engine) struct ReadyQueue {
    /// In order of arrival in this line.
    line: VecDeque<Entry>,
    /// Entries whose first item lies at or above the bound, or whose window does with its rest.
    stalled: Vec<Entry>,
    /// Since when there has been no room for the rest of such a window, monotonic ms.
    lacks_room: Option<u64>,
    /// What is there of it may leave.
    in_parts: bool,
    /// Items of both.
    items: u64,
    /// Customers that stand aside, whose turn comes by something else than the line, and their due items.
    aside: BTreeSet<CustomerId>,
    items_aside: u64,
}

impl ReadyQueue {
    /// Nothing may leave.
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// Something waits for what has still to be loaded.
    pub(in crate::engine) fn has_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// Entries that may leave.
    pub(in crate::engine) fn len(&self) -> usize {
        self.line.len()
    }

    /// Items of all entries.
    pub(in crate::engine) fn items(&self) -> u64 {
        self.items
    }

    /// Items of all entries, and of customers that stand aside.
    pub(in crate::engine) fn all_items(&self) -> u64 {
        self.items + self.items_aside
    }

    /// Customers that stand aside.
    pub(in crate::engine) fn aside(&self) -> &BTreeSet<CustomerId> {
        &self.aside
    }

    /// The first entry; of what is stalled, where nothing may leave.
    pub(in crate::engine) fn first(&self) -> Option<Entry> {
        self.line.front().or(self.stalled.first()).copied()
    }

    pub(in crate::engine) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.line.iter().chain(&self.stalled).copied()
    }

    pub(in crate::engine) fn push(&mut self, entry: Entry) {
        self.line.push_back(entry);
    }

    /// It stays the first.
    pub(in crate::engine) fn put_back(&mut self, entry: Entry) {
        self.line.push_front(entry);
    }

    pub(in crate::engine) fn take(&mut self) -> Option<Entry> {
        self.line.pop_front()
    }

    /// The last one: of what is stalled first.
    pub(in crate::engine) fn take_last(&mut self) -> Option<Entry> {
        let last = self.stalled.pop().or_else(|| self.line.pop_back());
        if last.is_none() {
            self.has_left();
        }
        last
    }

    /// It waits for older rows.
    pub(in crate::engine) fn stall(&mut self, entry: Entry) {
        self.stalled.push(entry);
    }

    /// All that is stalled, to be looked through: what stays is to be stalled again.
    pub(in crate::engine) fn take_stalled(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.stalled)
    }

    /// What is stalled again, in order.
    pub(in crate::engine) fn put_stalled(&mut self, entries: Vec<Entry>) {
        self.stalled = entries;
    }

    /// There is no room for the rest of a window. For how long there has been none, ms.
    pub(in crate::engine) fn lacks_room(&mut self, mono: u64) -> u64 {
        mono.saturating_sub(*self.lacks_room.get_or_insert(mono))
    }

    pub(in crate::engine) fn is_in_parts(&self) -> bool {
        self.in_parts
    }

    pub(in crate::engine) fn leave_in_parts(&mut self) {
        self.in_parts = true;
    }

    /// A batch has left the line, or there is nothing in it.
    pub(in crate::engine) fn has_left(&mut self) {
        (self.lacks_room, self.in_parts) = (None, false);
    }

    /// What is stalled stands in line again, before the others. Which entries those are.
    pub(in crate::engine) fn unstall(&mut self) -> Vec<Entry> {
        let stalled = std::mem::take(&mut self.stalled);
        for entry in stalled.iter().rev() {
            self.line.push_front(*entry);
        }
        stalled
    }

    /// How many entries wait for older rows.
    #[cfg(test)]
    pub(super) fn stalled(&self) -> usize {
        self.stalled.len()
    }

    /// That many items have come, or gone: of entries, or of a customer that stands aside.
    pub(super) fn count(&mut self, change: i64, aside: bool) {
        let items = if aside { &mut self.items_aside } else { &mut self.items };
        *items = items.saturating_add_signed(change);
    }

    /// A customer with so many due items stands aside, or does not any more.
    pub(in crate::engine) fn set_aside(&mut self, customer: CustomerId, items: i64, aside: bool) {
        if aside {
            self.aside.insert(customer);
        } else {
            self.aside.remove(&customer);
        }
        let items = if aside { items } else { -items };
        self.count(-items, false);
        self.count(items, true);
    }
}
