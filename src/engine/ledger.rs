//! Which deliveries may be acknowledged: a pure count of what is still unsafe, tag by tag.
//!
//! A delivery consists of one part or, for a JSON array, of several. A part is safe when its item is durable, or
//! its batch confirmed, or its dead letter confirmed, whichever comes first. Tags of one generation are numbered
//! from 1 in the order of delivery; acks of an older generation would hit messages that were never stored, so its
//! parts are forgotten with it.

use super::types::{Ack, Delivery};
use std::collections::VecDeque;
use std::num::NonZeroU64;

#[derive(Debug, Default)]
pub(super) struct Ledger {
    generation: u32,
    /// Tag of the first entry of `open`.
    first: u64,
    /// Unsafe parts of each delivery from `first` on.
    open: VecDeque<u32>,
    /// The prefix moved since the last [`Ledger::acks`].
    moved: bool,
    /// Nothing is stored: deliveries end in any order and are acked one by one.
    single: bool,
    singles: Vec<u64>,
}

impl Ledger {
    pub(super) fn new(single: bool) -> Self {
        Ledger { first: 1, single, ..Ledger::default() }
    }

    /// A new life of the connection: everything before it is void.
    pub(super) fn restart(&mut self, generation: u32) {
        *self = Ledger { generation, ..Ledger::new(self.single) };
    }

    /// The handle of a delivery of the present generation.
    pub(super) fn delivery(&self, tag: NonZeroU64) -> Delivery {
        Delivery { generation: self.generation, tag: tag.get() }
    }

    pub(super) fn is_current(&self, delivery: Delivery) -> bool {
        delivery.generation == self.generation
    }

    /// A delivery has come in, made of `parts` parts (0: nothing in it needs keeping).
    pub(super) fn open(&mut self, delivery: Delivery, parts: u32) {
        if !self.is_current(delivery) {
            return;
        }
        if self.open.is_empty() && delivery.tag > self.first {
            self.first = delivery.tag;
        }
        debug_assert_eq!(delivery.tag, self.first + self.open.len() as u64, "tags come without a gap");
        self.open.push_back(parts.max(1));
        if parts == 0 {
            self.safe(delivery);
        }
    }

    /// One part of a delivery is safe.
    pub(super) fn safe(&mut self, delivery: Delivery) {
        if !self.is_current(delivery) || delivery.tag < self.first {
            return;
        }
        let Some(left) = self.open.get_mut((delivery.tag - self.first) as usize) else { return };
        if *left == 0 {
            return;
        }
        *left -= 1;
        if *left > 0 {
            return;
        }
        if delivery.tag != self.first {
            if self.single {
                self.singles.push(delivery.tag);
            }
            return;
        }
        while self.open.front() == Some(&0) {
            self.open.pop_front();
            self.first += 1;
            self.moved = true;
        }
    }

    /// Every delivery so far is safe, and its ack has been given.
    pub(super) fn is_settled(&self) -> bool {
        self.open.is_empty() && !self.moved
    }

    /// Deliveries that are not safe yet.
    #[cfg(test)]
    pub(super) fn unsafe_deliveries(&self) -> usize {
        self.open.iter().filter(|left| **left > 0).count()
    }

    /// The acks that follow from what became safe since the last call.
    pub(super) fn acks(&mut self, out: &mut Vec<Ack>) {
        let delivery = |tag| Delivery { generation: self.generation, tag };
        // A tag that the prefix has swallowed since needs no ack of its own.
        out.extend(
            self.singles
                .drain(..)
                .filter(|tag| *tag >= self.first)
                .map(|tag| Ack { delivery: delivery(tag), multiple: false }),
        );
        if std::mem::take(&mut self.moved) {
            out.push(Ack { delivery: delivery(self.first - 1), multiple: true });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acks(ledger: &mut Ledger) -> Vec<(u64, bool)> {
        let mut out = vec![];
        ledger.acks(&mut out);
        out.iter().map(|a| (a.delivery.tag, a.multiple)).collect()
    }

    fn tag(tag: u64) -> Delivery {
        Delivery { generation: 1, tag }
    }

    #[test]
    fn one_multiple_ack_covers_the_safe_prefix() {
        let mut l = Ledger::new(false);
        l.restart(1);
        l.open(tag(1), 1);
        l.open(tag(2), 2);
        l.open(tag(3), 1);
        l.safe(tag(3));
        l.safe(tag(2));
        assert_eq!(acks(&mut l), []);
        l.safe(tag(1));
        assert_eq!(acks(&mut l), [(1, true)]);
        l.safe(tag(2));
        assert_eq!(acks(&mut l), [(3, true)]);
        assert_eq!(l.unsafe_deliveries(), 0);
    }

    #[test]
    fn single_acks_where_nothing_is_stored() {
        let mut l = Ledger::new(true);
        l.restart(1);
        (1..=4).for_each(|t| l.open(tag(t), 1));
        l.safe(tag(3));
        l.safe(tag(1));
        assert_eq!(acks(&mut l), [(3, false), (1, true)]);
        l.safe(tag(4));
        l.safe(tag(2));
        assert_eq!(acks(&mut l), [(4, true)]);
    }

    #[test]
    fn an_old_generation_is_never_acked() {
        let mut l = Ledger::new(false);
        l.restart(1);
        l.open(tag(1), 1);
        l.restart(2);
        l.safe(tag(1));
        assert_eq!(acks(&mut l), []);
        l.open(Delivery { generation: 2, tag: 1 }, 1);
        l.safe(tag(1));
        assert_eq!(acks(&mut l), [], "tag 1 of the old life is another message");
    }
}
