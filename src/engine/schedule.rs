//! The schedule: a timing wheel for the near time, a sorted set beyond it.
//!
//! The wheel has one slot per millisecond over [`SLOTS`] milliseconds, so that insertion and removal are O(1)
//! and nothing cascades; two levels of bitmaps find the next slot in use. Entries beyond its span are in a
//! set sorted by key and move to the wheel once, when its span reaches them. (The wheel is scheme 4 of
//! Varghese and Lauck, "Hashed and hierarchical timing wheels", 1987.)
//!
//! Entries are handles; the caller supplies the key at removal and wherever one is needed. The wheel keeps
//! eight bytes for each entry, so that a million of them stay in the processor's caches. Entries of one
//! millisecond are in the order in which they were added, which nearly always is that of their keys; where it
//! may not be, the slot is marked, and sorted when its order is needed. The module reads no clock.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use tidegate_types::Key;

/// Span of the wheel in milliseconds: a little over a minute, which is as far as the engine looks ahead.
pub(crate) const SLOTS: u64 = 1 << 16;
const MASK: u64 = SLOTS - 1;

/// Marks the absence of an entry.
const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

/// The extent of a [`Schedule::take_due`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// All due entries.
    All,
    /// The limit was reached; [`Schedule::first_key`] finds the rest.
    Most,
}

#[derive(Debug)]
pub(crate) struct Schedule {
    /// First millisecond that has not been taken. The wheel covers `base..base + SLOTS`.
    base: u64,
    heads: Vec<u32>,
    tails: Vec<u32>,
    /// The last key added to each slot.
    added: Vec<Key>,
    /// One bit per slot: its entries may not be in the order of their keys.
    disordered: Vec<u64>,
    /// One bit per slot in use, and one bit per word of these.
    used: Vec<u64>,
    used_words: Vec<u64>,
    links: Vec<Link>,
    far: BTreeSet<(Key, u32)>,
    near: usize,
}

impl Schedule {
    pub(crate) fn new(now: u64) -> Self {
        Schedule {
            base: now,
            heads: vec![NIL; SLOTS as usize],
            tails: vec![NIL; SLOTS as usize],
            added: vec![Key::default(); SLOTS as usize],
            disordered: vec![0; (SLOTS / 64) as usize],
            used: vec![0; (SLOTS / 64) as usize],
            used_words: vec![0; (SLOTS / 64 / 64) as usize],
            links: Vec::new(),
            far: BTreeSet::new(),
            near: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.near + self.far.len()
    }

    /// Adds `id`, due at `key.due`. An entry that is due already is taken by the next [`Schedule::take_due`].
    pub(crate) fn insert(&mut self, id: u32, key: Key) {
        if key.due < self.base + SLOTS {
            self.link(id, key, self.slot(key.due));
        } else {
            self.far.insert((key, id));
        }
    }

    /// Removes an entry; it must have been inserted with this key.
    pub(crate) fn remove(&mut self, id: u32, key: Key) {
        if key.due < self.base + SLOTS {
            self.unlink(id, self.slot(key.due));
        } else {
            let was = self.far.remove(&(key, id));
            debug_assert!(was, "the caller gives back the key it inserted");
        }
    }

    /// Takes up to `limit` entries due at or before `now`, the earliest millisecond first. Each is passed to
    /// `each` before the next is searched, so that memory fetches of `each` overlap with the search.
    pub(crate) fn take_due(&mut self, now: u64, limit: usize, mut each: impl FnMut(u32)) -> Taken {
        let mut left = limit;
        while let Some(at) = self.first_used().filter(|at| *at <= now) {
            let slot = at & MASK;
            while let Some(head) = Some(self.heads[slot as usize]).filter(|head| *head != NIL) {
                if left == 0 {
                    return Taken::Most;
                }
                self.unlink(head, slot);
                left -= 1;
                each(head);
            }
        }
        while let Some((_, id)) = self.far.first().copied().filter(|(key, _)| key.due <= now) {
            if left == 0 {
                return Taken::Most;
            }
            self.far.pop_first();
            left -= 1;
            each(id);
        }
        if self.base <= now {
            self.base = now + 1;
            self.refill();
        }
        Taken::All
    }

    /// Due of the earliest entry. An overdue one counts as due at `base`.
    pub(crate) fn next(&self) -> Option<u64> {
        self.first_used().or_else(|| self.far.first().map(|(key, _)| key.due))
    }

    /// An entry with the earliest due.
    pub(crate) fn first(&self) -> Option<u32> {
        match self.first_used() {
            Some(at) => Some(self.heads[(at & MASK) as usize]),
            None => self.far.first().map(|(_, id)| *id),
        }
    }

    /// The lowest key of all entries. Sorts the first slot if needed.
    pub(crate) fn first_key(&mut self, key_of: impl Fn(u32) -> Key) -> Option<Key> {
        if let Some(slot) = self.first_used().map(|at| at & MASK).filter(|slot| self.is_disordered(*slot)) {
            self.sort_slot(slot, &key_of);
        }
        self.first().map(key_of)
    }

    /// Due of the last entry.
    pub(crate) fn last(&self) -> Option<u64> {
        self.far.last().map(|(key, _)| key.due).or_else(|| self.last_used())
    }

    /// The clock stepped back to `now`: all entries are inserted anew.
    pub(crate) fn rebase(&mut self, now: u64, key_of: impl Fn(u32) -> Key) {
        let mut ids = Vec::with_capacity(self.near);
        while let Some(at) = self.first_used() {
            self.drain_slot(at & MASK, &mut ids);
        }
        // `base` may lag behind `now`, and must not move forward: entries beyond its span stay in the set.
        self.base = self.base.min(now);
        for id in ids {
            self.insert(id, key_of(id));
        }
    }

    /// Takes up to `count` entries due after this moment, the last first.
    pub(crate) fn take_furthest(
        &mut self,
        count: usize,
        after: u64,
        key_of: impl Fn(u32) -> Key,
    ) -> Vec<u32> {
        let mut out = Vec::with_capacity(count.min(self.len()));
        while out.len() < count {
            if let Some((key, id)) = self.far.last().copied() {
                if key.due <= after {
                    break;
                }
                self.far.pop_last();
                out.push(id);
                continue;
            }
            let Some(at) = self.last_used().filter(|at| *at > after) else { break };
            let slot = at & MASK;
            if self.is_disordered(slot) {
                self.sort_slot(slot, &key_of);
            }
            while let Some(tail) = Some(self.tails[slot as usize]).filter(|tail| *tail != NIL) {
                if out.len() == count {
                    break;
                }
                self.unlink(tail, slot);
                out.push(tail);
            }
        }
        out
    }

    /// Moves entries that the wheel's span has reached from the set to the wheel.
    fn refill(&mut self) {
        while let Some((key, id)) = self.far.first().copied().filter(|(key, _)| key.due < self.base + SLOTS) {
            self.far.pop_first();
            self.link(id, key, self.slot(key.due));
        }
    }

    /// An overdue entry is in the slot of `base`. Its removal finds it there, because the slot is emptied
    /// before `base` moves on.
    fn slot(&self, due: u64) -> u64 {
        due.max(self.base) & MASK
    }

    fn link(&mut self, id: u32, key: Key, slot: u64) {
        if self.links.len() <= id as usize {
            self.links.resize(id as usize + 1, Link { prev: NIL, next: NIL });
        }
        let tail = core::mem::replace(&mut self.tails[slot as usize], id);
        let before = core::mem::replace(&mut self.added[slot as usize], key);
        self.links[id as usize] = Link { prev: tail, next: NIL };
        if tail == NIL {
            self.heads[slot as usize] = id;
            self.used[(slot / 64) as usize] |= 1 << (slot % 64);
            self.used_words[(slot / 4096) as usize] |= 1 << (slot / 64 % 64);
        } else {
            self.links[tail as usize].next = id;
            if before > key {
                self.disordered[(slot / 64) as usize] |= 1 << (slot % 64);
            }
        }
        self.near += 1;
    }

    fn unlink(&mut self, id: u32, slot: u64) {
        let Link { prev, next } = self.links[id as usize];
        if next == NIL {
            debug_assert_eq!(self.tails[slot as usize], id, "the caller gives back the key it inserted");
            self.tails[slot as usize] = prev;
        } else {
            self.links[next as usize].prev = prev;
        }
        if prev == NIL {
            debug_assert_eq!(self.heads[slot as usize], id, "the caller gives back the key it inserted");
            self.heads[slot as usize] = next;
            if next == NIL {
                self.mark_empty(slot);
            }
        } else {
            self.links[prev as usize].next = next;
        }
        self.near -= 1;
    }

    fn is_disordered(&self, slot: u64) -> bool {
        self.disordered[(slot / 64) as usize] & 1 << (slot % 64) != 0
    }

    /// Sorts the entries of a slot by key.
    fn sort_slot(&mut self, slot: u64, key_of: impl Fn(u32) -> Key) {
        let mut ids = Vec::new();
        self.drain_slot(slot, &mut ids);
        ids.sort_unstable_by_key(|id| key_of(*id));
        for id in ids {
            self.link(id, key_of(id), slot);
        }
    }

    fn mark_empty(&mut self, slot: u64) {
        let word = (slot / 64) as usize;
        self.used[word] &= !(1 << (slot % 64));
        self.disordered[word] &= !(1 << (slot % 64));
        if self.used[word] == 0 {
            self.used_words[word / 64] &= !(1 << (word % 64));
        }
    }

    fn drain_slot(&mut self, slot: u64, out: &mut Vec<u32>) {
        self.tails[slot as usize] = NIL;
        let mut id = core::mem::replace(&mut self.heads[slot as usize], NIL);
        while id != NIL {
            out.push(id);
            self.near -= 1;
            id = self.links[id as usize].next;
        }
        self.mark_empty(slot);
    }

    /// The first moment at or after `base` whose slot is in use.
    fn first_used(&self) -> Option<u64> {
        if self.near == 0 {
            return None;
        }
        let start = self.base & MASK;
        let slot = self.first_from(start, SLOTS).or_else(|| self.first_from(0, start))?;
        Some(self.base + (slot.wrapping_sub(start) & MASK))
    }

    /// The first slot in use in `from..to`.
    fn first_from(&self, from: u64, to: u64) -> Option<u64> {
        let mut slot = from;
        while slot < to {
            let word = (slot / 64) as usize;
            let rest = self.used[word] & (!0 << (slot % 64));
            if rest != 0 {
                let found = word as u64 * 64 + u64::from(rest.trailing_zeros());
                return (found < to).then_some(found);
            }
            // This word has no more: the summary finds the next word in use.
            let next_word = word + 1;
            let mut summary = next_word / 64;
            let mut bits = match self.used_words.get(summary) {
                Some(bits) => bits & (!0 << (next_word % 64)),
                None => return None,
            };
            while bits == 0 {
                summary += 1;
                bits = *self.used_words.get(summary)?;
            }
            slot = (summary as u64 * 64 + u64::from(bits.trailing_zeros())) * 64;
        }
        None
    }

    /// The last slot in use in `from..to`.
    fn last_from(&self, from: u64, to: u64) -> Option<u64> {
        let mut end = to;
        while end > from {
            let word = ((end - 1) / 64) as usize;
            let rest = self.used[word] & (!0 >> (63 - (end - 1) % 64));
            if rest != 0 {
                let found = word as u64 * 64 + 63 - u64::from(rest.leading_zeros());
                return (found >= from).then_some(found);
            }
            // This word has none before: the summary finds the previous word in use.
            let mut summary = word / 64;
            let mut bits = self.used_words[summary] & !(!0 << (word % 64));
            while bits == 0 {
                summary = summary.checked_sub(1)?;
                bits = self.used_words[summary];
            }
            end = (summary as u64 * 64 + 64 - u64::from(bits.leading_zeros())) * 64;
        }
        None
    }

    /// The last moment in the wheel whose slot is in use.
    fn last_used(&self) -> Option<u64> {
        if self.near == 0 {
            return None;
        }
        let start = self.base & MASK;
        let slot = self.last_from(0, start).or_else(|| self.last_from(start, SLOTS))?;
        Some(self.base + (slot.wrapping_sub(start) & MASK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    fn key(due: u64, seq: u64) -> Key {
        Key::own(due, seq)
    }

    #[test]
    fn near_and_far_come_out_in_their_time() {
        let mut s = Schedule::new(1_000);
        s.insert(1, key(1_005, 1));
        s.insert(2, key(1_000 + SLOTS + 10, 2));
        s.insert(3, key(1_000 + 3 * SLOTS, 3));
        assert_eq!(s.next(), Some(1_005));
        let mut out = vec![];
        assert_eq!((s.take_due(1_004, 10, |id| out.push(id)), out.len()), (Taken::All, 0));
        assert_eq!(s.take_due(1_005, 10, |id| out.push(id)), Taken::All);
        assert_eq!(core::mem::take(&mut out), [1]);
        assert_eq!(s.next(), Some(1_000 + SLOTS + 10));
        assert_eq!(s.take_due(1_000 + 4 * SLOTS, 10, |id| out.push(id)), Taken::All);
        assert_eq!(out, [2, 3]);
        assert_eq!((s.len(), s.next()), (0, None));
    }

    #[test]
    fn a_turn_is_bounded() {
        let mut s = Schedule::new(0);
        for id in 0..10 {
            s.insert(id, key(u64::from(id) + 1, u64::from(id)));
        }
        let mut out = vec![];
        assert_eq!(s.take_due(100, 4, |id| out.push(id)), Taken::Most);
        assert_eq!(out.len(), 4);
        assert_eq!(s.take_due(100, 40, |id| out.push(id)), Taken::All);
        assert_eq!(out.len(), 10);
    }

    #[test]
    fn of_one_millisecond_the_last_are_taken_off_its_end_and_who_came_out_of_order_is_found() {
        let mut s = Schedule::new(0);
        for seq in [1, 2, 5, 3, 7] {
            s.insert(seq as u32, key(10, seq));
        }
        assert!(s.is_disordered(10));
        let key_of = |id: u32| key(10, u64::from(id));
        assert_eq!(s.take_furthest(2, 0, key_of), [7, 5], "by their keys");
        assert!(!s.is_disordered(10), "they have been put in order for that");
        s.remove(2, key(10, 2));
        s.insert(4, key(10, 4));
        assert_eq!(s.take_furthest(2, 0, key_of), [4, 3]);
        let mut out = vec![];
        s.insert(9, key(10, 9));
        s.insert(8, key(10, 8));
        s.insert(6, key(10, 6));
        assert_eq!(s.take_due(10, 2, |id| out.push(id)), Taken::Most);
        assert_eq!(s.first_key(key_of), Some(key(10, 6)), "what is left comes before 9");
        assert_eq!(s.take_due(10, 9, |id| out.push(id)), Taken::All);
        assert_eq!(out, [1, 9, 6, 8]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Remove(usize),
        Advance(u64),
        Back(u64),
        Furthest(usize, Option<u64>),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            5 => (0..3 * SLOTS).prop_map(Step::Insert),
            3 => (0..500u64).prop_map(Step::Insert),
            2 => any::<usize>().prop_map(Step::Remove),
            4 => (0..2_000u64).prop_map(Step::Advance),
            1 => (0..2 * SLOTS).prop_map(Step::Advance),
            1 => (0..5_000u64).prop_map(Step::Back),
            1 => (0..5usize, proptest::option::of(0..3_000u64))
                .prop_map(|(n, beyond)| Step::Furthest(n, beyond)),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_sorted_map(steps in prop::collection::vec(step(), 1..200)) {
            let mut now = 1_000_000u64;
            let mut s = Schedule::new(now);
            let mut model: BTreeMap<Key, u32> = BTreeMap::new();
            let mut keys: Vec<Key> = vec![];
            for step in steps {
                match step {
                    Step::Insert(ahead) => {
                        let id = keys.len() as u32;
                        let k = key(now + ahead + 1, u64::from(id));
                        keys.push(k);
                        s.insert(id, k);
                        model.insert(k, id);
                    }
                    Step::Remove(n) => {
                        let nth = model.iter().nth(n % model.len().max(1));
                        if let Some((k, id)) = nth.map(|(k, v)| (*k, *v)) {
                            model.remove(&k);
                            s.remove(id, k);
                        }
                    }
                    Step::Advance(by) => {
                        now += by;
                        let mut out = vec![];
                        loop {
                            let mut some = vec![];
                            let all = s.take_due(now, 3, |id| some.push(id));
                            out.append(&mut some);
                            if all == Taken::All {
                                break;
                            }
                        }
                        let mut taken: Vec<Key> = out.iter().map(|id| keys[*id as usize]).collect();
                        prop_assert!(taken.windows(2).all(|w| w[0].due <= w[1].due));
                        taken.sort();
                        let due: Vec<Key> = model.keys().copied().take_while(|k| k.due <= now).collect();
                        for k in &due {
                            model.remove(k);
                        }
                        prop_assert_eq!(taken, due);
                    }
                    Step::Back(by) => {
                        now -= by;
                        s.rebase(now, |id| keys[id as usize]);
                    }
                    Step::Furthest(n, beyond) => {
                        let after = beyond.map_or(0, |ms| now + ms);
                        let got = s.take_furthest(n, after, |id| keys[id as usize]);
                        let got: Vec<Key> = got.iter().map(|id| keys[*id as usize]).collect();
                        let later = model.keys().rev().copied().take_while(|key| key.due > after);
                        let want: Vec<Key> = later.take(n).collect();
                        for k in &want {
                            model.remove(k);
                        }
                        prop_assert_eq!(got, want);
                    }
                }
                prop_assert_eq!(s.len(), model.len());
                prop_assert_eq!(s.next(), model.keys().next().map(|k| k.due));
                prop_assert_eq!(s.last(), model.keys().next_back().map(|k| k.due));
            }
        }
    }
}
