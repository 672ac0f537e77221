//! A hash map that supports access by key only, and whose longest step does not grow with its size.
//!
//! The order of a hash map differs from process to process, and the engine's effects must not: the same
//! inputs give the same effects, bit for bit. The compiler ensures this, because the entries cannot be
//! iterated. Deliberately absent: iterators, `retain`, `drain`, `Clone`, and a `Debug` that shows entries.
//! Code that needs an order uses a `BTreeMap`.
//!
//! A map that doubles its size moves all entries in one step, which takes tens of milliseconds for a million.
//! So the entries are in small tables, and with every few hundred entries one table is divided in two, or two
//! are joined (linear hashing: Litwin, "Linear hashing: a new tool for file and table addressing", 1980).

use super::backoff::Random;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::borrow::Borrow;
use core::fmt;
use core::hash::{BuildHasher, Hash};
use hashbrown::hash_table::{Entry, HashTable};
use siphasher::sip::SipHasher13;

/// Maximum average number of entries in a table. The table that is divided next holds about twice as many,
/// which just fit into 1,024 places.
const FILL: usize = 384;
/// A table is joined to another once the average falls below a quarter of [`FILL`].
const SPARSE: usize = FILL / 4;

/// A hash map without an order; see the module. `Lookup<K, ()>` is a set.
pub(crate) struct Lookup<K, V, S> {
    /// In the order of division. None before the first entry.
    tables: Vec<HashTable<(K, V)>>,
    entries: usize,
    hasher: S,
}

/// The table of an entry among `count` tables. The bits used are not those by which a table selects its
/// places.
fn table_of(hash: u64, count: usize) -> usize {
    let mask = count.next_power_of_two() - 1;
    let place = (hash >> 20) as usize & mask;
    if place < count {
        place
    } else {
        place & (mask >> 1)
    }
}

/// The table from which the last of `count` tables was divided.
fn origin_of_last(count: usize) -> usize {
    let last = count - 1;
    last - (1 << last.ilog2())
}

/// A map by name. Producers choose the names; they do not know these keys, so they cannot choose names that
/// all go into one table.
pub(crate) type NameMap<V> = Lookup<Arc<str>, V, NameKeys>;

/// Keys of the hashes of names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameKeys(u64, u64);

impl NameKeys {
    /// The same keys for the same seed.
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = Random(seed);
        NameKeys(random.draw(), random.draw())
    }
}

impl BuildHasher for NameKeys {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.1)
    }
}

impl<K, V, S> Lookup<K, V, S> {
    /// An empty map, which holds no memory yet.
    pub(crate) fn new() -> Self
    where
        S: Default,
    {
        Lookup::with_hasher(S::default())
    }

    /// An empty map whose keys are hashed by `hasher`.
    pub(crate) fn with_hasher(hasher: S) -> Self {
        Lookup { tables: Vec::new(), entries: 0, hasher }
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries
    }

    /// Whether there is no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Number of entries for which memory is allocated, at least [`Lookup::len`].
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.tables.iter().map(HashTable::capacity).sum()
    }

    /// Drops all entries and frees their memory.
    #[cfg(test)]
    pub(crate) fn clear(&mut self)
    where
        S: Default,
    {
        *self = Lookup::new();
    }
}

impl<K: Eq + Hash, V, S: BuildHasher> Lookup<K, V, S> {
    /// The value of a key.
    pub(crate) fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        if self.entries == 0 {
            return None;
        }
        let hash = self.hasher.hash_one(key);
        let table = self.tables.get(table_of(hash, self.tables.len()))?;
        table.find(hash, |(other, _)| other.borrow() == key).map(|(_, value)| value)
    }

    /// Mutable access to the value of a key.
    pub(crate) fn get_mut<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        if self.entries == 0 {
            return None;
        }
        let hash = self.hasher.hash_one(key);
        let place = table_of(hash, self.tables.len());
        let table = self.tables.get_mut(place)?;
        table.find_mut(hash, |(other, _)| other.borrow() == key).map(|(_, value)| value)
    }

    /// Whether the key has a value.
    pub(crate) fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.get(key).is_some()
    }

    /// The value of a key, made by `value` if it has none. Use [`Lookup::get_mut`] first if an owned key
    /// would have to be made for the access.
    pub(crate) fn get_or_insert_with(&mut self, key: K, value: impl FnOnce() -> V) -> &mut V {
        self.divide();
        let hash = self.hasher.hash_one(&key);
        let place = table_of(hash, self.tables.len());
        let (table, hasher) = (&mut self.tables[place], &self.hasher);
        match table.entry(hash, |(other, _)| *other == key, |(other, _)| hasher.hash_one(other)) {
            Entry::Occupied(entry) => &mut entry.into_mut().1,
            Entry::Vacant(entry) => {
                self.entries += 1;
                &mut entry.insert((key, value())).into_mut().1
            }
        }
    }

    /// Sets the value of a key, and returns the one it replaces.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let mut value = Some(value);
        let place = self.get_or_insert_with(key, || value.take().expect("asked for once"));
        value.map(|value| core::mem::replace(place, value))
    }

    /// Removes a key and returns its value. Memory is freed after a peak.
    pub(crate) fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.remove_if(key, |_| true)
    }

    /// Removes the key if its value meets `condition`: for values whose key may belong to another value by
    /// now.
    pub(crate) fn remove_if<Q>(&mut self, key: &Q, condition: impl FnOnce(&V) -> bool) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        if self.entries == 0 {
            return None;
        }
        let hash = self.hasher.hash_one(key);
        let place = table_of(hash, self.tables.len());
        let table = self.tables.get_mut(place)?;
        let entry = table.find_entry(hash, |(other, _)| other.borrow() == key).ok()?;
        if !condition(&entry.get().1) {
            return None;
        }
        let ((_, value), _) = entry.remove();
        self.entries -= 1;
        self.join();
        Some(value)
    }

    /// Before an entry is added: divides a table if the tables are full.
    fn divide(&mut self) {
        if self.entries < self.tables.len() * FILL {
            return;
        }
        // There are many small maps: each has room for one table, not for four.
        if self.tables.is_empty() {
            self.tables.reserve_exact(1);
        }
        self.tables.push(HashTable::new());
        let count = self.tables.len();
        if count == 1 {
            return;
        }
        let hasher = &self.hasher;
        let hash_of = |(key, _): &(K, V)| hasher.hash_one(key);
        let (last, others) = self.tables.split_last_mut().expect("there are two at least");
        let origin = &mut others[origin_of_last(count)];
        for entry in origin.extract_if(|entry| table_of(hash_of(entry), count) == count - 1) {
            last.insert_unique(hash_of(&entry), entry, hash_of);
        }
        origin.shrink_to(0, hash_of);
    }

    /// After an entry was removed: joins two tables if they are sparse.
    fn join(&mut self) {
        let count = self.tables.len();
        if count < 2 || self.entries >= count * SPARSE {
            return;
        }
        let hasher = &self.hasher;
        let hash_of = |(key, _): &(K, V)| hasher.hash_one(key);
        let last = self.tables.pop().expect("there are two at least");
        let origin = &mut self.tables[origin_of_last(count)];
        for entry in last {
            origin.insert_unique(hash_of(&entry), entry, hash_of);
        }
        origin.shrink_to(2 * origin.len(), hash_of);
    }
}

impl<K, V, S: Default> Default for Lookup<K, V, S> {
    fn default() -> Self {
        Lookup::new()
    }
}

/// Shows the number of entries only, as they have no order.
impl<K, V, S> fmt::Debug for Lookup<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lookup({})", self.entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::hash_map::RandomState;
    use std::collections::HashMap;

    type Lookup<K, V> = super::Lookup<K, V, RandomState>;

    #[test]
    fn a_key_leads_to_its_value() {
        let mut names: Lookup<Arc<str>, u32> = Lookup::new();
        assert!(names.is_empty());
        assert_eq!(names.capacity(), 0, "no memory before the first entry");
        assert_eq!(names.get("shop"), None);
        assert_eq!(names.remove("shop"), None);
        assert_eq!(names.insert("shop".into(), 1), None);
        assert_eq!(names.insert("shop".into(), 2), Some(1));
        assert_eq!(names.get("shop"), Some(&2), "asked without making a key");
        assert_eq!(names.get("mail"), None);
        *names.get_mut("shop").expect("it is there") += 1;
        assert_eq!(names.remove("shop"), Some(3));
        assert_eq!(names.remove("shop"), None);
        assert!(!names.contains_key("shop"));
    }

    #[test]
    fn a_missing_value_is_made_once() {
        let mut counts: Lookup<u64, u32> = Lookup::default();
        for _ in 0..3 {
            *counts.get_or_insert_with(7, || 10) += 1;
        }
        assert_eq!((counts.get(&7), counts.len()), (Some(&13), 1));
    }

    #[test]
    fn a_value_is_taken_out_only_if_it_is_the_one_meant() {
        let mut owners: Lookup<u64, &str> = Lookup::new();
        owners.insert(1, "new");
        assert_eq!(owners.remove_if(&1, |owner| *owner == "old"), None);
        assert_eq!(owners.remove_if(&1, |owner| *owner == "new"), Some("new"));
        assert_eq!(owners.remove_if(&1, |_| true), None);
    }

    #[test]
    fn it_holds_what_a_map_of_the_standard_library_holds() {
        let mut lookup: Lookup<u64, u64> = Lookup::new();
        let mut model: HashMap<u64, u64> = HashMap::new();
        let mut random = 1_u64;
        for step in 0..200_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // It grows for the first half and falls for the second.
            let key = (random >> 33) % 30_000;
            let adds = (random >> 20) % 10 < if step < 100_000 { 8 } else { 2 };
            if adds {
                assert_eq!(lookup.insert(key, step), model.insert(key, step));
            } else {
                assert_eq!(lookup.remove(&key), model.remove(&key));
            }
            assert_eq!(lookup.len(), model.len());
        }
        assert!((0..30_000).all(|key| lookup.get(&key) == model.get(&key)));
    }

    /// Size of the largest table: the maximum number of entries that one step moves.
    fn largest<K, V>(lookup: &Lookup<K, V>) -> usize {
        lookup.tables.iter().map(HashTable::len).max().unwrap_or(0)
    }

    #[test]
    fn no_step_moves_more_than_a_table_and_tables_stay_small() {
        let mut lookup: Lookup<u64, u64> = Lookup::new();
        let mut most = 0;
        for key in 0..300_000 {
            let tables = lookup.tables.len();
            lookup.insert(key * 1_024, key);
            assert!(lookup.tables.len() <= tables + 1, "one table is divided a step");
            if key % 100 == 0 {
                most = most.max(largest(&lookup));
            }
        }
        assert!(most < 3 * FILL, "{most} entries in one table");
        assert!(lookup.capacity() < 3 * lookup.len(), "{} places for {}", lookup.capacity(), lookup.len());
    }

    #[test]
    fn memory_is_given_back_after_a_peak() {
        let mut peak: Lookup<u64, u64> = Lookup::new();
        for key in 0..100_000 {
            peak.insert(key, key);
        }
        let most = peak.capacity();
        for key in 100..100_000 {
            let tables = peak.tables.len();
            peak.remove(&key);
            assert!(peak.tables.len() + 1 >= tables, "two tables are joined a step");
            assert!(peak.capacity() <= 12 * peak.len().max(FILL), "{} of {most}", peak.capacity());
        }
        assert!((0..100).all(|key| peak.get(&key) == Some(&key)));
        peak.clear();
        assert_eq!((peak.len(), peak.capacity()), (0, 0));
    }

    #[test]
    fn only_the_number_of_entries_is_shown() {
        let mut secret: Lookup<&str, &str> = Lookup::new();
        secret.insert("key", "value");
        assert_eq!(format!("{secret:?}"), "Lookup(1)");
    }
}
