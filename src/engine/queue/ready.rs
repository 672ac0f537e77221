//! The due work of a queue, in order: entries that may leave, and entries that wait for older rows to be
//! loaded.

use crate::ids::{CustomerId, ItemId};
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

/// An entry of a ready queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Customer(CustomerId),
    Single(ItemId),
}

/// The due work of a queue; see the module's page.
#[derive(Debug, Default)]
pub(crate) struct ReadyQueue {
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
    pub(crate) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Whether any entry waits for rows that have still to be loaded.
    pub(crate) fn has_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// Entries that may leave.
    pub(crate) fn len(&self) -> usize {
        self.ready.len()
    }

    /// Items of all entries.
    pub(crate) fn items(&self) -> u64 {
        self.items
    }

    /// Items of all entries, and of customers that are set aside.
    pub(crate) fn all_items(&self) -> u64 {
        self.items + self.items_aside
    }

    /// Customers that are set aside.
    pub(crate) fn aside(&self) -> &BTreeSet<CustomerId> {
        &self.aside
    }

    /// The first entry; where none may leave, the first stalled one.
    pub(crate) fn first(&self) -> Option<Entry> {
        self.ready.front().or(self.stalled.first()).copied()
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.ready.iter().chain(&self.stalled).copied()
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.ready.push_back(entry);
    }

    /// Puts an entry back as the first.
    pub(crate) fn put_back(&mut self, entry: Entry) {
        self.ready.push_front(entry);
    }

    pub(crate) fn take(&mut self) -> Option<Entry> {
        self.ready.pop_front()
    }

    /// Takes the last entry, stalled ones first.
    pub(crate) fn take_last(&mut self) -> Option<Entry> {
        let last = self.stalled.pop().or_else(|| self.ready.pop_back());
        if last.is_none() {
            self.has_left();
        }
        last
    }

    /// Adds an entry that waits for older rows.
    pub(crate) fn stall(&mut self, entry: Entry) {
        self.stalled.push(entry);
    }

    /// Takes all stalled entries to be examined; the caller stalls those again that stay.
    pub(crate) fn take_stalled(&mut self) -> Vec<Entry> {
        core::mem::take(&mut self.stalled)
    }

    /// Sets the stalled entries, in order.
    pub(crate) fn put_stalled(&mut self, entries: Vec<Entry>) {
        self.stalled = entries;
    }

    /// Notes that memory has no room for the rest of a window. Returns for how long it has had none, ms.
    pub(crate) fn lacks_room(&mut self, mono: u64) -> u64 {
        mono.saturating_sub(*self.lacks_room.get_or_insert(mono))
    }

    pub(crate) fn is_in_parts(&self) -> bool {
        self.in_parts
    }

    pub(crate) fn leave_in_parts(&mut self) {
        self.in_parts = true;
    }

    /// A batch has left, or no entries are left.
    pub(crate) fn has_left(&mut self) {
        (self.lacks_room, self.in_parts) = (None, false);
    }

    /// Puts the stalled entries back, ahead of the others. Returns them.
    pub(crate) fn unstall(&mut self) -> Vec<Entry> {
        let stalled = core::mem::take(&mut self.stalled);
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
    pub(crate) fn set_aside(&mut self, customer: CustomerId, items: i64, aside: bool) {
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
