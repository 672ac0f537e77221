//! Customers of whom due items lie in the store though their queue has been read beyond them: those that are
//! held back, and those of whom memory has its fill.
//!
//! The loader passes over what is due of them: the queue's bound moves on, and where the first that was
//! passed over lies is remembered here, of each. Nothing of theirs that lies behind it leaves before. It is
//! read back in portions, beside the reads at the queue's bound, once there is room for more of it.

use super::LAST;
use crate::engine::mutant::{mutated, Mutant};
use crate::engine::types::Key;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Whether there is room for more of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Room {
    /// Nobody has asked.
    Unknown,
    /// More is wanted in memory.
    Some,
    /// More was read, and memory had its fill.
    None,
}

/// One of them.
#[derive(Debug)]
struct PassedCustomer {
    /// It is held back until then, UTC ms.
    held: Option<u64>,
    /// No item of theirs lies in the store alone below both this and the queue's bound.
    first: Key,
    room: Room,
}

/// What was passed over is being read.
#[derive(Debug)]
pub(in crate::engine) struct ReadBack {
    /// Where it begins, and what it does not look at.
    from: Key,
    until: Key,
    /// Places in memory that it may fill.
    pub(in crate::engine) rows: usize,
    /// Of the head of a queue that is held back, for a probe.
    pub(in crate::engine) probe: bool,
    /// What was passed over since it began: the first of each.
    behind: BTreeMap<Arc<str>, Key>,
}

/// See the module's page.
#[derive(Debug)]
pub(in crate::engine) struct PassedOver {
    all: BTreeMap<Arc<str>, PassedCustomer>,
    /// Where the first of each lies of whom something was passed over, and of those of whom it is wanted.
    firsts: BTreeSet<(Key, Arc<str>)>,
    wanted: BTreeSet<(Key, Arc<str>)>,
    /// How many are held back.
    held: u64,
    reading: Option<ReadBack>,
}

impl PassedOver {
    pub(super) fn new() -> Self {
        PassedOver {
            all: BTreeMap::new(),
            firsts: BTreeSet::new(),
            wanted: BTreeSet::new(),
            held: 0,
            reading: None,
        }
    }

    /// Customers that are held back.
    pub(in crate::engine) fn held(&self) -> u64 {
        self.held
    }

    /// Nothing is held back, passed over, or being read.
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.reading.is_none()
    }

    /// Until when this one's items are held back, UTC ms.
    pub(in crate::engine) fn held_until(&self, customer: &str) -> Option<u64> {
        // Nearly always there is none.
        if self.all.is_empty() {
            return None;
        }
        self.all.get(customer)?.held
    }

    /// No item that was passed over lies below, of no customer.
    pub(super) fn low(&self) -> Key {
        self.firsts.first().map_or(LAST, |(first, _)| *first)
    }

    /// The same of one.
    pub(in crate::engine) fn first(&self, customer: &str) -> Key {
        if self.all.is_empty() {
            return LAST;
        }
        self.all.get(customer).map_or(LAST, |passed| passed.first)
    }

    /// Changes one, and what is known of all.
    fn change<T>(&mut self, customer: &str, change: impl FnOnce(&mut PassedCustomer) -> T) -> T {
        let (name, mut passed) = self.all.remove_entry(customer).unwrap_or_else(|| {
            (customer.into(), PassedCustomer { held: None, first: LAST, room: Room::Unknown })
        });
        if passed.first < LAST {
            self.firsts.remove(&(passed.first, Arc::clone(&name)));
            self.wanted.remove(&(passed.first, Arc::clone(&name)));
        }
        self.held -= u64::from(passed.held.is_some());
        let changed = change(&mut passed);
        self.held += u64::from(passed.held.is_some());
        if passed.first < LAST {
            self.firsts.insert((passed.first, Arc::clone(&name)));
            if passed.room == Room::Some && passed.held.is_none() {
                self.wanted.insert((passed.first, Arc::clone(&name)));
            }
        }
        if passed.first < LAST || passed.held.is_some() {
            self.all.insert(name, passed);
        }
        changed
    }

    /// Until when it was held back before, if it was.
    pub(super) fn hold(&mut self, customer: &str, until: u64) -> Option<u64> {
        self.change(customer, |passed| passed.held.replace(until))
    }

    /// It goes on, and what was passed over of it is wanted. Until when it was held back, if it was.
    pub(super) fn let_go(&mut self, customer: &str) -> Option<u64> {
        self.all.get(customer)?.held?;
        self.change(customer, |passed| {
            passed.room = if mutated(Mutant::PassedOverForgotten) { Room::Unknown } else { Room::Some };
            passed.held.take()
        })
    }

    /// An item of one of them, in the store alone, is passed over.
    pub(super) fn pass_over(&mut self, customer: &str, place: Key) {
        if place < self.first(customer) {
            self.change(customer, |passed| passed.first = place);
        }
        if let Some(reading) = &mut self.reading {
            match reading.behind.get_mut(customer) {
                Some(behind) => *behind = place.min(*behind),
                None => drop(reading.behind.insert(customer.into(), place)),
            }
        }
    }

    /// Whether memory has room for more of this one.
    pub(in crate::engine) fn room(&self, customer: &str) -> Room {
        self.all.get(customer).map_or(Room::Unknown, |passed| passed.room)
    }

    /// There is room for more of it in memory, or there is none.
    pub(in crate::engine) fn set_room(&mut self, customer: &str, room: Room) {
        let forgotten = room == Room::Some && mutated(Mutant::PassedOverForgotten);
        if self.all.get(customer).is_some_and(|passed| passed.room != room) && !forgotten {
            self.change(customer, |passed| passed.room = room);
        }
    }

    /// There is room for more of each.
    pub(in crate::engine) fn want_all(&mut self) {
        for (_, customer) in self.firsts.clone() {
            self.set_room(&customer, Room::Some);
        }
    }

    /// Where the first lies of what is to be read, and of how many customers, unless something is being read.
    pub(in crate::engine) fn wanted(&self) -> Option<(Key, usize)> {
        let first = self.wanted.first().map(|(first, _)| (*first, self.wanted.len()));
        first.filter(|_| self.reading.is_none())
    }

    /// All that was passed over is to be read otherwise: from where on.
    pub(super) fn take_low(&mut self) -> Key {
        let low = self.low();
        for (_, customer) in self.firsts.clone() {
            self.change(&customer, |passed| passed.first = LAST);
        }
        low
    }

    // ---- reads --------------------------------------------------------------------------------------------

    /// A read is under way.
    pub(in crate::engine) fn reading(&self) -> Option<&ReadBack> {
        self.reading.as_ref()
    }

    /// A read of what lies between these begins, which may fill so many places in memory.
    pub(in crate::engine) fn begin_read(&mut self, (from, until): (Key, Key), rows: usize, probe: bool) {
        self.reading = Some(ReadBack { from, until, rows, probe, behind: BTreeMap::new() });
    }

    /// What is read of this customer at this place comes behind something that has been passed over since the
    /// read began.
    pub(in crate::engine) fn is_behind(&self, customer: &str, place: Key) -> bool {
        let behind = self.reading.as_ref().and_then(|reading| reading.behind.get(customer));
        behind.is_some_and(|behind| *behind < place)
    }

    /// The read has ended, and has not looked at `next`, where it has not looked at all. What it was, and of
    /// whom there may be more in memory now. `void`: it has brought nothing that counts. `near`: the queue's
    /// bound, beyond which nothing counts.
    pub(in crate::engine) fn end_read(
        &mut self,
        next: Option<Key>,
        void: bool,
        near: Key,
    ) -> Option<(ReadBack, BTreeSet<Arc<str>>)> {
        let read = self.reading.take()?;
        // The bound may have moved on since, over what came in and was passed over beyond what was asked for.
        let until = if void { read.from } else { next.unwrap_or(read.until).min(near) };
        let passed = self.firsts.range((read.from, Arc::from(""))..);
        let passed = passed.take_while(|(first, _)| *first < until);
        let mut customers: BTreeSet<Arc<str>> = passed.map(|(_, customer)| Arc::clone(customer)).collect();
        for customer in &customers {
            let behind = read.behind.get(customer).copied().filter(|_| !mutated(Mutant::ReadBackForgets));
            let behind = behind.unwrap_or(LAST);
            let first = if until == near { behind } else { behind.min(until) };
            self.change(customer, |passed| passed.first = first);
        }
        // Those of whom something before was passed over meanwhile may have found no room.
        customers.extend(read.behind.keys().cloned());
        Some((read, customers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(due: u64) -> Key {
        Key::own(due, due)
    }

    /// Something came in behind what the read looks at, before that began, and the queue's bound has moved on
    /// over it since.
    #[test]
    fn a_read_that_comes_to_its_end_knows_nothing_of_what_lies_behind_it() {
        let mut passed = PassedOver::new();
        passed.pass_over("ann", key(10));
        passed.set_room("ann", Room::Some);
        passed.pass_over("ann", key(90));
        passed.begin_read((key(10), key(50)), 5, false);
        let (_, customers) = passed.end_read(None, false, key(100)).unwrap();
        assert!(customers.contains("ann"));
        assert_eq!(passed.first("ann"), key(50));
        passed.begin_read((key(50), key(101)), 5, false);
        passed.end_read(None, false, key(100)).unwrap();
        assert_eq!((passed.first("ann"), passed.is_empty()), (LAST, true));
    }

    #[test]
    fn what_is_passed_over_during_a_read_is_not_taken_for_read() {
        let mut passed = PassedOver::new();
        passed.pass_over("ann", key(10));
        passed.begin_read((key(10), key(50)), 5, false);
        passed.pass_over("ann", key(30));
        passed.pass_over("bob", key(40));
        passed.end_read(None, false, key(50)).unwrap();
        assert_eq!(["ann", "bob"].map(|name| passed.first(name)), [key(30), key(40)]);
        passed.begin_read((key(30), key(50)), 5, false);
        passed.end_read(Some(key(35)), true, key(50)).unwrap();
        assert_eq!(passed.first("ann"), key(30), "it was of no use");
    }
}
