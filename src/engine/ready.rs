//! Due items of one customer, in the order in which they leave.

use super::ids::ItemId;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use tidegate_types::Key;

/// Due, UTC ms, and arrival number. In the order of the store, members of a window are adjacent: another item
/// of the customer with the same due may come after one that arrived later.
type ReadyPlace = (u64, u64);

/// Due items of one customer in order of (due, arrival). Most are added in that order and cost one entry of a
/// queue; the others are kept in a map, so that no turn has to sort many.
#[derive(Debug, Default)]
pub(crate) struct ReadyItems {
    in_order: VecDeque<(ReadyPlace, ItemId)>,
    late: BTreeMap<ReadyPlace, ItemId>,
}

impl ReadyItems {
    /// Adds an item. Items that end stay until they are popped.
    pub(crate) fn push(&mut self, place: Key, item: ItemId) {
        let place = (place.due, place.seq);
        let last = self.in_order.back().map(|(last, _)| *last);
        if last.is_none_or(|last| last <= place) {
            self.in_order.push_back((place, item));
        } else {
            self.late.insert(place, item);
        }
    }

    /// The first item.
    pub(crate) fn first(&self) -> Option<ItemId> {
        let late = self.late.first_key_value().map(|(place, item)| (*place, *item));
        self.in_order
            .front()
            .copied()
            .into_iter()
            .chain(late)
            .min_by_key(|(place, _)| *place)
            .map(|(_, item)| item)
    }

    pub(crate) fn pop_first(&mut self) -> Option<ItemId> {
        let late = self.late.first_key_value().map(|(place, _)| *place);
        let in_order = self.in_order.front().map(|(place, _)| *place);
        if late.is_some_and(|late| in_order.is_none_or(|place| late < place)) {
            return self.late.pop_first().map(|(_, item)| item);
        }
        let first = self.in_order.pop_front();
        self.shrink();
        first.map(|(_, item)| item)
    }

    /// Puts the first items back, in order.
    pub(crate) fn put_back(&mut self, first: Vec<ItemId>, place_of: impl Fn(ItemId) -> Key) {
        for item in first.into_iter().rev() {
            let place = place_of(item);
            self.in_order.push_front(((place.due, place.seq), item));
        }
    }

    /// Sorts all items anew, as some have other places now. Items without a place have left.
    pub(crate) fn put_in_order(&mut self, place_of: impl Fn(ItemId) -> Option<Key>) {
        let placed = |item| place_of(item).map(|place| ((place.due, place.seq), item));
        let mut all: Vec<(ReadyPlace, ItemId)> = self.iter().filter_map(placed).collect();
        all.sort_unstable();
        (self.in_order, self.late) = (all.into(), BTreeMap::new());
    }

    /// Whether all items come before this place in the order of the store. Items without a place have left.
    pub(crate) fn ends_before(&self, place: Key, place_of: impl Fn(ItemId) -> Option<Key>) -> bool {
        let in_order = self.in_order.iter().rev().map(|(at, item)| (at.0, *item));
        let late = self.late.iter().rev().map(|(at, item)| (at.0, *item));
        let comes_before = |(_, item): (u64, ItemId)| place_of(item).is_none_or(|other| other < place);
        in_order.take_while(|(due, _)| *due >= place.due).all(comes_before)
            && late.take_while(|(due, _)| *due >= place.due).all(comes_before)
    }

    /// Removes up to `most` items, the last ones in the order of the store. Items without a place have left.
    pub(crate) fn pop_last(&mut self, most: usize, place_of: impl Fn(ItemId) -> Option<Key>) -> Vec<ItemId> {
        let mut last: Vec<(Key, ItemId)> = Vec::new();
        // Items with the same due may have another order there.
        let within = |last: &[(Key, ItemId)], item: ItemId| {
            let due = place_of(item).map(|place| place.due);
            last.len() < most || last.last().map(|(place, _)| place.due) == due
        };
        while let Some(item) = self.pop_last_if(|item| within(&last, item)) {
            last.extend(place_of(item).map(|place| (place, item)));
        }
        last.sort_unstable();
        let mut stay: Vec<(Key, ItemId)> = last.drain(..last.len().saturating_sub(most)).collect();
        stay.sort_unstable_by_key(|(place, _)| (place.due, place.seq));
        stay.into_iter().for_each(|(place, item)| self.push(place, item));
        last.into_iter().map(|(_, item)| item).collect()
    }

    pub(crate) fn pop_first_if(&mut self, test: impl FnOnce(ItemId) -> bool) -> Option<ItemId> {
        self.first().filter(|first| test(*first)).and_then(|_| self.pop_first())
    }

    pub(crate) fn pop_last_if(&mut self, test: impl FnOnce(ItemId) -> bool) -> Option<ItemId> {
        let late = self.late.last_key_value().map(|(place, item)| (*place, *item));
        let in_order = self.in_order.back().copied();
        let (_, last) = late.max(in_order).filter(|(_, last)| test(*last))?;
        if late > in_order {
            self.late.pop_last();
        } else {
            self.in_order.pop_back();
            self.shrink();
        }
        Some(last)
    }

    /// Frees the memory of an empty queue after a peak.
    fn shrink(&mut self) {
        if self.in_order.is_empty() && self.in_order.capacity() > 64 {
            self.in_order = VecDeque::new();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.in_order.is_empty() && self.late.is_empty()
    }

    /// All items, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = ItemId> + '_ {
        self.in_order.iter().map(|(_, item)| *item).chain(self.late.values().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::{Handle, FIRST};

    /// Columns: (due, arrival) of items in the order in which they are added; then the order in which they
    /// leave, by arrival number.
    /// Excluded: an order of adding, of due alone, or of arrival alone; another order from the end.
    /// Judges promise 5.
    #[test]
    fn items_leave_by_due_and_arrival() {
        for (added, expected) in [
            (&[(5, 1), (5, 2), (6, 3)][..], &[1, 2, 3][..]),
            (&[(6, 1), (5, 2)], &[2, 1]),
            (&[(5, 2), (5, 1)], &[1, 2]),
            (&[(9, 1), (9, 3), (9, 2)], &[1, 2, 3]),
            (&[(5, 1), (9, 2), (7, 3), (8, 4), (6, 5)], &[1, 5, 3, 4, 2]),
            (&[(9, 1), (8, 2), (7, 3), (9, 4)], &[3, 2, 1, 4]),
            (&[], &[]),
        ] {
            let filled = || {
                let mut ready = ReadyItems::default();
                for (due, seq) in added {
                    ready.push(Key::own(*due, u64::from(*seq)), ItemId::new(*seq, FIRST));
                }
                ready
            };
            let (mut ready, mut forward) = (filled(), vec![]);
            while let Some(first) = ready.first() {
                assert_eq!(ready.pop_first(), Some(first), "{added:?}");
                forward.push(first.place());
            }
            assert_eq!(forward, expected, "{added:?}");
            assert!(ready.is_empty() && ready.pop_first().is_none(), "{added:?}");
            let mut ready = filled();
            let mut backward: Vec<u32> =
                core::iter::from_fn(|| ready.pop_last_if(|_| true)).map(ItemId::place).collect();
            backward.reverse();
            assert_eq!(backward, expected, "{added:?}, from the end");
        }
    }
}
