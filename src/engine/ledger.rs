//! The deliveries that may be acked: a pure count of unsafe parts by tag.
//!
//! A delivery consists of one part or, for a JSON array, of several. A part is safe when its item is durable,
//! or its batch or dead letter is confirmed, whichever comes first. Tags of one generation are numbered from
//! 1 in the order of delivery. An ack with a tag of an older generation would ack another message, so its
//! parts are forgotten with it.
//!
//! One `multiple` ack covers the safe prefix. An ack waits for nothing but its own request's safety: when the
//! first unsafe delivery has held safe ones back for [`PATIENCE_MS`], these are acked one by one.

use super::mutant::{mutated, Mutant};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::num::NonZeroU64;
use tidegate_types::{Ack, Delivery, Now};

/// How long safe deliveries wait for an unsafe one before them, so that one ack covers many, ms.
const PATIENCE_MS: u64 = 100;

/// State of one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeliveryState {
    /// Number of parts that are not safe.
    Unsafe(u32),
    /// All parts are safe, and the ack has not been sent.
    Safe,
    /// The ack has been sent.
    Acked,
}

/// See the module.
#[derive(Debug)]
pub struct Ledger {
    generation: u32,
    /// Tag of the first entry of `open`.
    first: u64,
    open: VecDeque<DeliveryState>,
    /// The last tag not acked yet of the prefix removed since the last [`Ledger::acks`].
    prefix: Option<u64>,
    /// Tags that became safe behind an unsafe one since the last [`Ledger::acks`].
    behind: Vec<u64>,
    /// Such tags of earlier calls, in the order in which they became safe, with the time, monotonic ms; some
    /// may have been acked since.
    held_up: VecDeque<(u64, u64)>,
    /// The wait for the first unsafe delivery is over.
    impatient: bool,
    /// Deliveries become safe in any order, and are acked one by one at once.
    single: bool,
}

impl Ledger {
    /// Of no delivery. `single`: nothing is stored, so that deliveries become safe in any order.
    pub fn new(single: bool) -> Self {
        Ledger {
            generation: 0,
            first: 1,
            open: VecDeque::new(),
            prefix: None,
            behind: Vec::new(),
            held_up: VecDeque::new(),
            impatient: false,
            single,
        }
    }

    /// A new connection: all earlier deliveries are void.
    pub fn restart(&mut self, generation: u32) {
        *self = Ledger { generation, ..Ledger::new(self.single) };
    }

    /// The handle of a delivery of the present generation.
    pub(crate) fn delivery(&self, tag: NonZeroU64) -> Delivery {
        Delivery { generation: self.generation, tag: tag.get() }
    }

    pub(crate) fn is_current(&self, delivery: Delivery) -> bool {
        delivery.generation == self.generation
    }

    /// A delivery has come in, with `parts` parts (0: it is safe at once).
    pub fn open(&mut self, delivery: Delivery, parts: u32) {
        if !self.is_current(delivery) {
            return;
        }
        if self.open.is_empty() && delivery.tag > self.first {
            self.first = delivery.tag;
        }
        debug_assert_eq!(delivery.tag, self.first + self.open.len() as u64, "tags come without a gap");
        self.open.push_back(DeliveryState::Unsafe(parts.max(1)));
        if parts == 0 {
            self.safe(delivery);
        }
    }

    /// One part of a delivery is safe. Whether all of it is now.
    pub fn safe(&mut self, delivery: Delivery) -> bool {
        if !self.is_current(delivery) || delivery.tag < self.first {
            return false;
        }
        let Some(state) = self.open.get_mut((delivery.tag - self.first) as usize) else {
            debug_assert!(false, "a delivery comes in before a part of it is safe");
            return false;
        };
        match *state {
            DeliveryState::Unsafe(parts) if parts > 1 => {
                *state = DeliveryState::Unsafe(parts - 1);
                false
            }
            DeliveryState::Unsafe(_) => {
                *state = DeliveryState::Safe;
                if delivery.tag == self.first {
                    self.take_prefix();
                } else {
                    self.behind.push(delivery.tag);
                }
                true
            }
            DeliveryState::Safe | DeliveryState::Acked => {
                debug_assert!(false, "a part becomes safe once");
                false
            }
        }
    }

    fn take_prefix(&mut self) {
        while let Some(state) = self.open.front().filter(|state| !matches!(state, DeliveryState::Unsafe(_))) {
            if *state == DeliveryState::Safe {
                self.prefix = Some(self.first);
            }
            self.open.pop_front();
            self.first += 1;
        }
        self.impatient = false;
        let first = self.first;
        if self.open.is_empty() {
            self.behind.clear();
            self.held_up.clear();
        } else if self.behind.len() + self.held_up.len() > self.open.len() {
            self.behind.retain(|tag| *tag >= first);
            self.held_up.retain(|(_, tag)| *tag >= first);
        }
    }

    /// Number of deliveries from the first unsafe one on.
    pub fn unacked(&self) -> usize {
        self.open.len()
    }

    /// The acks that follow from what became safe since the last call.
    pub fn acks(&mut self, now: Now, out: &mut Vec<Ack>) {
        let generation = self.generation;
        let ack = |tag, multiple| Ack { delivery: Delivery { generation, tag }, multiple };
        out.extend(self.prefix.take().map(|tag| ack(tag, true)));
        self.held_up.extend(self.behind.drain(..).map(|tag| (now.mono, tag)));
        while self.held_up.front().is_some_and(|(_, tag)| *tag < self.first) {
            self.held_up.pop_front();
        }
        let over = self.deadline().is_some_and(|at| at <= now.mono) && !mutated(Mutant::AckWaitsForPrefix);
        if !(over || self.single || self.impatient) {
            return;
        }
        self.impatient |= !self.held_up.is_empty();
        for (_, tag) in self.held_up.drain(..).filter(|(_, tag)| *tag >= self.first) {
            self.open[(tag - self.first) as usize] = DeliveryState::Acked;
            out.push(ack(tag, false));
        }
    }

    /// When the wait for the first unsafe delivery ends, monotonic ms.
    pub fn deadline(&self) -> Option<u64> {
        self.held_up.front().map(|(since, _)| since + PATIENCE_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acks_at(ledger: &mut Ledger, mono: u64) -> Vec<(u64, bool)> {
        let mut out = vec![];
        ledger.acks(Now { wall: 0, mono }, &mut out);
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
        assert_eq!(acks_at(&mut l, 0), []);
        l.safe(tag(1));
        assert_eq!(acks_at(&mut l, 0), [(1, true)]);
        l.safe(tag(2));
        assert_eq!(acks_at(&mut l, 0), [(3, true)]);
        assert_eq!(l.unacked(), 0);
    }

    /// Judges promise 13.
    #[test]
    fn an_unsafe_delivery_holds_others_back_for_a_tenth_of_a_second_at_most() {
        let mut l = Ledger::new(false);
        l.restart(1);
        (1..=5).for_each(|t| l.open(tag(t), 1));
        l.safe(tag(2));
        l.safe(tag(4));
        assert_eq!(acks_at(&mut l, 1_000), []);
        assert_eq!(l.deadline(), Some(1_100));
        assert_eq!(acks_at(&mut l, 1_100), [(2, false), (4, false)]);
        l.safe(tag(5));
        assert_eq!(acks_at(&mut l, 1_101), [(5, false)], "it is held back no longer");
        l.safe(tag(1));
        assert_eq!(acks_at(&mut l, 1_102), [(1, true)]);
        l.safe(tag(3));
        assert_eq!(acks_at(&mut l, 1_103), [(3, true)], "the last of the prefix that was not acked");
        assert_eq!((l.unacked(), l.deadline()), (0, None));
    }

    #[test]
    fn a_delivery_is_held_back_no_longer_where_one_behind_the_other_is_unsafe() {
        let mut l = Ledger::new(false);
        l.restart(1);
        (1..=6).for_each(|t| l.open(tag(t), 1));
        l.safe(tag(4));
        assert_eq!(acks_at(&mut l, 1_000), []);
        l.safe(tag(1));
        l.safe(tag(6));
        assert_eq!(acks_at(&mut l, 1_060), [(1, true)]);
        assert_eq!(l.deadline(), Some(1_100));
        l.safe(tag(2));
        assert_eq!(acks_at(&mut l, 1_099), [(2, true)]);
        assert_eq!(acks_at(&mut l, 1_100), [(4, false), (6, false)], "with what is held back as well");
        l.safe(tag(3));
        assert_eq!(acks_at(&mut l, 1_101), [(3, true)]);
        l.safe(tag(5));
        assert_eq!(acks_at(&mut l, 1_102), [(5, true)]);
        assert_eq!((l.unacked(), l.deadline()), (0, None));
    }

    #[test]
    fn single_acks_where_nothing_is_stored() {
        let mut l = Ledger::new(true);
        l.restart(1);
        (1..=4).for_each(|t| l.open(tag(t), 1));
        l.safe(tag(3));
        l.safe(tag(1));
        assert_eq!(acks_at(&mut l, 0), [(1, true), (3, false)]);
        l.safe(tag(4));
        l.safe(tag(2));
        assert_eq!(acks_at(&mut l, 0), [(4, true)]);
    }

    #[test]
    fn an_old_generation_is_never_acked() {
        let mut l = Ledger::new(false);
        l.restart(1);
        l.open(tag(1), 1);
        l.restart(2);
        l.safe(tag(1));
        assert_eq!(acks_at(&mut l, 0), []);
        l.open(Delivery { generation: 2, tag: 1 }, 1);
        l.safe(tag(1));
        assert_eq!(acks_at(&mut l, 0), [], "tag 1 of the old life is another message");
    }
}
