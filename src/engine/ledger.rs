//! The deliveries that may be acked: a pure count of unsafe parts by tag.
//!
//! A delivery consists of one part or, for a JSON array, of several. A part is safe when its item is durable,
//! or its batch or dead letter is confirmed, whichever comes first. Tags of one generation are numbered from
//! 1 in the order of delivery. An ack with a tag of an older generation would ack another message, so its
//! parts are forgotten with it.
//!
//! One `multiple` ack covers the safe prefix. An ack waits for nothing but its own request's safety: when the
//! first unsafe delivery has held safe ones back for [`PATIENCE_MS`], these are acked one by one.
//!
//! Deliberately absent: what is acked. However much has passed behind one unsafe delivery, only the ones that
//! the broker still counts as unacked are kept.

use super::mutant::{mutated, Mutant};
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::num::NonZeroU64;
use tidegate_types::{Ack, Delivery, Now};

/// How long safe deliveries wait for an unsafe one before them, so that one ack covers many, ms.
const PATIENCE_MS: u64 = 100;

/// See the module.
#[derive(Debug)]
pub struct Ledger {
    generation: u32,
    /// The tag after the newest delivery.
    next: u64,
    /// Of each unsafe delivery, the number of parts that are not safe.
    open: BTreeMap<u64, u32>,
    /// Safe deliveries behind an unsafe one, as long as they are not acked.
    safe: BTreeSet<u64>,
    /// The last tag not acked yet of the prefix that has become safe since the last [`Ledger::acks`].
    prefix: Option<u64>,
    /// Tags that became safe behind an unsafe one since the last [`Ledger::acks`].
    behind: Vec<u64>,
    /// Such tags of earlier calls, in the order in which they became safe, with the time, monotonic ms; those
    /// not in `safe` have been acked since.
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
            next: 1,
            open: BTreeMap::new(),
            safe: BTreeSet::new(),
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
        debug_assert!(
            delivery.tag == self.next || (self.open.is_empty() && delivery.tag > self.next),
            "tags come without a gap"
        );
        self.next = delivery.tag + 1;
        self.open.insert(delivery.tag, parts.max(1));
        if parts == 0 {
            self.safe(delivery);
        }
    }

    /// One part of a delivery is safe. Whether all of it is now.
    pub fn safe(&mut self, delivery: Delivery) -> bool {
        if !self.is_current(delivery) {
            return false;
        }
        let (tag, first) = (delivery.tag, self.first());
        match self.open.entry(tag) {
            Entry::Occupied(mut parts) if *parts.get() > 1 => {
                *parts.get_mut() -= 1;
                false
            }
            Entry::Occupied(parts) => {
                parts.remove();
                if tag == first {
                    self.take_prefix(tag);
                } else {
                    self.safe.insert(tag);
                    self.behind.push(tag);
                }
                true
            }
            Entry::Vacant(_) => {
                debug_assert!(tag < first, "a delivery comes in, and then each part becomes safe once");
                false
            }
        }
    }

    /// The first unsafe delivery, or the next one to come.
    fn first(&self) -> u64 {
        self.open.first_key_value().map_or(self.next, |(tag, _)| *tag)
    }

    /// The first unsafe delivery has become safe, and with it those up to the next unsafe one.
    fn take_prefix(&mut self, tag: u64) {
        self.prefix = Some(tag);
        let first = self.first();
        while self.safe.first().is_some_and(|tag| *tag < first) {
            self.prefix = self.safe.pop_first();
        }
        self.impatient = false;
        if self.safe.is_empty() {
            self.behind.clear();
            self.held_up.clear();
        } else if self.behind.len() + self.held_up.len() > 2 * self.safe.len() {
            self.behind.retain(|tag| *tag >= first);
            self.held_up.retain(|(_, tag)| *tag >= first);
        }
    }

    /// Number of deliveries that are unsafe, or safe and held back by an unsafe one.
    pub fn unacked(&self) -> usize {
        self.open.len() + self.safe.len()
    }

    /// The acks that follow from what became safe since the last call.
    pub fn acks(&mut self, now: Now, out: &mut Vec<Ack>) {
        let generation = self.generation;
        let ack = |tag, multiple| Ack { delivery: Delivery { generation, tag }, multiple };
        out.extend(self.prefix.take().map(|tag| ack(tag, true)));
        self.held_up.extend(self.behind.drain(..).map(|tag| (now.mono, tag)));
        while self.held_up.front().is_some_and(|(_, tag)| !self.safe.contains(tag)) {
            self.held_up.pop_front();
        }
        let over = self.deadline().is_some_and(|at| at <= now.mono) && !mutated(Mutant::AckWaitsForPrefix);
        if !(over || self.single || self.impatient) {
            return;
        }
        self.impatient |= !self.held_up.is_empty();
        let unacked = self.held_up.drain(..).filter(|(_, tag)| self.safe.remove(tag));
        out.extend(unacked.map(|(_, tag)| ack(tag, false)));
    }

    /// When the wait for the first unsafe delivery ends, monotonic ms.
    pub fn deadline(&self) -> Option<u64> {
        self.held_up.front().map(|(since, _)| since + PATIENCE_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    /// The number of entries that are kept, and the room that they have.
    fn kept(l: &Ledger) -> usize {
        let entries = l.open.len() + l.safe.len() + l.behind.len() + l.held_up.len();
        entries.max(l.behind.capacity()).max(l.held_up.capacity())
    }

    /// Excluded: entries of what is acked behind one unsafe delivery, which grow with the throughput.
    #[test]
    fn what_is_acked_is_not_kept_however_much_passes_behind_one_unsafe_delivery() {
        for single in [false, true] {
            let mut l = Ledger::new(single);
            l.restart(1);
            l.open(tag(1), 1);
            let mut acked = 0;
            for t in 2..=200_001 {
                l.open(tag(t), 1);
                l.safe(tag(t));
                if t % 8 == 0 {
                    let acks = acks_at(&mut l, t / 8);
                    assert!(acks.iter().all(|(_, multiple)| !multiple));
                    acked += acks.len();
                }
                assert!(kept(&l) <= 4_096, "{}", kept(&l));
            }
            acked += acks_at(&mut l, 200_000).len();
            assert_eq!((acked, l.unacked()), (200_000, 1), "all but the first");
            l.safe(tag(1));
            assert_eq!(acks_at(&mut l, 200_001), [(1, true)]);
            assert_eq!((l.unacked(), l.deadline()), (0, None));
        }
    }

    proptest! {
        /// Against a plain list of all deliveries. Excluded: an ack of what is unsafe; an ack with a tag that
        /// is acked, over which the broker closes the channel; a safe delivery that is never acked, or later
        /// than the patience allows.
        #[test]
        fn every_delivery_is_acked_once_when_it_is_safe(
            single in any::<bool>(),
            steps in prop::collection::vec((0..4u8, any::<prop::sample::Index>(), 0..60u64), 1..300),
        ) {
            let mut l = Ledger::new(single);
            l.restart(1);
            // Parts left, and whether it is acked, of each; since when it is safe.
            let mut all: Vec<(u32, bool, u64)> = vec![];
            let mut mono = 0;
            for (step, place, number) in steps {
                match step {
                    0 | 1 => {
                        let parts = (number % 4) as u32;
                        all.push((parts, false, mono));
                        l.open(tag(all.len() as u64), parts);
                    }
                    2 => {
                        let open: Vec<usize> = (0..all.len()).filter(|n| all[*n].0 > 0).collect();
                        if !open.is_empty() {
                            let n = open[place.index(open.len())];
                            all[n] = (all[n].0 - 1, false, mono);
                            l.safe(tag(n as u64 + 1));
                        }
                    }
                    _ => {
                        mono += number;
                        for (tag, multiple) in acks_at(&mut l, mono) {
                            let last = tag as usize - 1;
                            prop_assert!(!all[last].1, "{tag} is acked already");
                            for one in &mut all[if multiple { 0 } else { last }..=last] {
                                prop_assert_eq!(one.0, 0, "unsafe");
                                one.1 = true;
                            }
                        }
                        let first = all.iter().position(|one| one.0 > 0).unwrap_or(all.len());
                        prop_assert!(all[..first].iter().all(|one| one.1), "the prefix is acked");
                        let late = |one: &&(u32, bool, u64)| {
                            one.0 == 0 && !one.1 && (single || one.2 + 60 + PATIENCE_MS <= mono)
                        };
                        prop_assert_eq!(all.iter().find(late), None);
                    }
                }
                let first = all.iter().position(|one| one.0 > 0).unwrap_or(all.len());
                prop_assert_eq!(l.unacked(), all[first..].iter().filter(|one| !one.1).count());
            }
        }
    }
}
