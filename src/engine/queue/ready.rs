//! The due work of a queue, in order: entries that may leave, and entries that wait for older rows to be
//! loaded.

use crate::engine::ids::{CustomerId, ItemId};
use std::collections::{BTreeSet, VecDeque};

/// An entry of a ready queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Entry {
    Customer(CustomerId),
    Single(ItemId),
}

/// The due work of a queue; see the module's page.
#[derive(Debug, Default)]
pub(in crate::engine) struct ReadyQueue {
    /// Entries that may leave, in the order in which they came here.
    ready: VecDeque<Entry>,
    /// Entries whose first item, or the rest of its window, is at or above the bound.
    stalled: Vec<Entry>,
    /// Since when memory has had no room for the rest of such a window, monotonic ms.
    lacks_room: Option<u64>,
    /// The members of it in memory may leave without the rest.
    in_parts: bool,
    /// Items of both kinds of entries.
    items: u64,
    /// Customers that are set aside, whose turn does not come through the entries, and their due items.
    aside: BTreeSet<CustomerId>,
    items_aside: u64,
}

impl ReadyQueue {
    /// Whether no entry may leave.
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Whether any entry waits for rows that have still to be loaded.
    pub(in crate::engine) fn has_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// Entries that may leave.
    pub(in crate::engine) fn len(&self) -> usize {
        self.ready.len()
    }

    /// Items of all entries.
    pub(in crate::engine) fn items(&self) -> u64 {
        self.items
    }

    /// Items of all entries, and of customers that are set aside.
    pub(in crate::engine) fn all_items(&self) -> u64 {
        self.items + self.items_aside
    }

    /// Customers that are set aside.
    pub(in crate::engine) fn aside(&self) -> &BTreeSet<CustomerId> {
        &self.aside
    }

    /// The first entry; where none may leave, the first stalled one.
    pub(in crate::engine) fn first(&self) -> Option<Entry> {
        self.ready.front().or(self.stalled.first()).copied()
    }

    pub(in crate::engine) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.ready.iter().chain(&self.stalled).copied()
    }

    pub(in crate::engine) fn push(&mut self, entry: Entry) {
        self.ready.push_back(entry);
    }

    /// Puts an entry back as the first.
    pub(in crate::engine) fn put_back(&mut self, entry: Entry) {
        self.ready.push_front(entry);
    }

    pub(in crate::engine) fn take(&mut self) -> Option<Entry> {
        self.ready.pop_front()
    }

    /// Takes the last entry, stalled ones first.
    pub(in crate::engine) fn take_last(&mut self) -> Option<Entry> {
        let last = self.stalled.pop().or_else(|| self.ready.pop_back());
        if last.is_none() {
            self.has_left();
        }
        last
    }

    /// Adds an entry that waits for older rows.
    pub(in crate::engine) fn stall(&mut self, entry: Entry) {
        self.stalled.push(entry);
    }

    /// Takes all stalled entries to be examined; the caller stalls those again that stay.
    pub(in crate::engine) fn take_stalled(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.stalled)
    }

    /// Sets the stalled entries, in order.
    pub(in crate::engine) fn put_stalled(&mut self, entries: Vec<Entry>) {
        self.stalled = entries;
    }

    /// Notes that memory has no room for the rest of a window. Returns for how long it has had none, ms.
    pub(in crate::engine) fn lacks_room(&mut self, mono: u64) -> u64 {
        mono.saturating_sub(*self.lacks_room.get_or_insert(mono))
    }

    pub(in crate::engine) fn is_in_parts(&self) -> bool {
        self.in_parts
    }

    pub(in crate::engine) fn leave_in_parts(&mut self) {
        self.in_parts = true;
    }

    /// A batch has left, or no entries are left.
    pub(in crate::engine) fn has_left(&mut self) {
        (self.lacks_room, self.in_parts) = (None, false);
    }

    /// Puts the stalled entries back, ahead of the others. Returns them.
    pub(in crate::engine) fn unstall(&mut self) -> Vec<Entry> {
        let stalled = std::mem::take(&mut self.stalled);
        for entry in stalled.iter().rev() {
            self.ready.push_front(*entry);
        }
        stalled
    }

    /// How many entries are stalled.
    #[cfg(test)]
    pub(super) fn stalled(&self) -> usize {
        self.stalled.len()
    }

    /// Counts items in or out: those of entries, or of a customer that is set aside.
    pub(super) fn count(&mut self, change: i64, aside: bool) {
        let items = if aside { &mut self.items_aside } else { &mut self.items };
        *items = items.saturating_add_signed(change);
    }

    /// A customer with this many due items is set aside from now on, or no longer.
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
