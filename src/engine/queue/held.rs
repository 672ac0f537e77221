//! Customers of a queue whose items are held back, while those of others leave.
//!
//! What is due of them leaves memory, and the loader passes over it: the queue's bound moves on, and where
//! the first that was passed over lies is remembered here. Once they go on, the queue is read again from
//! there.

use super::LAST;
use crate::engine::types::Key;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One of them.
#[derive(Debug)]
struct HeldCustomer {
    /// Until then, UTC ms.
    until: u64,
    /// No item of theirs lies in the store alone below both this and the queue's bound.
    first: Key,
}

/// See the module's page.
#[derive(Debug)]
pub(in crate::engine) struct HeldCustomers {
    all: BTreeMap<Arc<str>, HeldCustomer>,
    /// Where the first of each lies of whom something was passed over.
    firsts: BTreeSet<(Key, Arc<str>)>,
}

impl HeldCustomers {
    pub(super) fn new() -> Self {
        HeldCustomers { all: BTreeMap::new(), firsts: BTreeSet::new() }
    }

    pub(in crate::engine) fn len(&self) -> usize {
        self.all.len()
    }

    /// Until when this one's items are held back, UTC ms.
    pub(in crate::engine) fn until(&self, customer: &str) -> Option<u64> {
        // Nearly always there is none.
        if self.all.is_empty() {
            return None;
        }
        self.all.get(customer).map(|held| held.until)
    }

    /// No item of theirs that was passed over lies below.
    pub(super) fn low(&self) -> Key {
        self.firsts.first().map_or(LAST, |(first, _)| *first)
    }

    /// The same of one.
    pub(super) fn first(&self, customer: &str) -> Key {
        self.all.get(customer).map_or(LAST, |held| held.first)
    }

    /// Until when it was held before, if it was.
    pub(super) fn hold(&mut self, customer: Arc<str>, until: u64) -> Option<u64> {
        let before = self.all.get(&customer).map(|held| (held.until, held.first));
        let first = before.map_or(LAST, |(_, first)| first);
        self.all.insert(customer, HeldCustomer { until, first });
        before.map(|(until, _)| until)
    }

    /// It goes on: until when it was held, and where the first of it lies that was passed over.
    pub(super) fn release(&mut self, customer: &str) -> Option<(u64, Key)> {
        let held = self.all.remove(customer)?;
        self.firsts.remove(&(held.first, customer.into()));
        Some((held.until, held.first))
    }

    /// An item of one of them, in the store alone, is passed over.
    pub(super) fn pass_over(&mut self, customer: &str, place: Key) {
        if let Some(held) = self.all.get_mut(customer).filter(|held| place < held.first) {
            let before = std::mem::replace(&mut held.first, place);
            self.firsts.remove(&(before, customer.into()));
            self.firsts.insert((place, customer.into()));
        }
    }

    /// All that was passed over is to be read: from where on.
    pub(super) fn take_low(&mut self) -> Key {
        let low = self.low();
        for (_, customer) in std::mem::take(&mut self.firsts) {
            self.all.get_mut(&customer).into_iter().for_each(|held| held.first = LAST);
        }
        low
    }
}
