//! A hash map that can be asked for a key and for nothing else.
//!
//! The order of a hash map differs from process to process, and the engine's answers must not: the same
//! inputs give the same effects, bit for bit. Here the compiler sees to it, because there is no way to walk
//! over the entries. Deliberately absent: iterators, `retain`, `drain`, `Clone`, and a `Debug` that shows
//! entries. Whoever needs an order takes a `BTreeMap`.

use std::borrow::Borrow;
use std::collections::hash_map::{HashMap, RandomState};
use std::fmt;
use std::hash::{BuildHasher, Hash};

/// Tables with room for fewer entries than this keep it.
const SHRINK_FROM: usize = 1_024;

/// A hash map without an order; see the module. `Lookup<K, ()>` is a set.
pub(super) struct Lookup<K, V, S = RandomState> {
    entries: HashMap<K, V, S>,
}

impl<K, V, S> Lookup<K, V, S> {
    /// An empty table, which holds no memory yet.
    pub(super) fn new() -> Self
    where
        S: Default,
    {
        Lookup { entries: HashMap::default() }
    }

    /// Number of entries.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of entries that memory is held for at present, [`Lookup::len`] or more.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// Drops all entries and gives their memory back.
    #[cfg(test)]
    pub(super) fn clear(&mut self)
    where
        S: Default,
    {
        self.entries = HashMap::default();
    }
}

impl<K: Eq + Hash, V, S: BuildHasher> Lookup<K, V, S> {
    /// The value of a key.
    pub(super) fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.entries.get(key)
    }

    /// The value of a key, to be changed.
    pub(super) fn get_mut<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.entries.get_mut(key)
    }

    /// Whether the key has a value.
    pub(super) fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.entries.contains_key(key)
    }

    /// The value of a key; where it has none yet, `value` makes one first. Look up with [`Lookup::get_mut`]
    /// where the key would have to be made for the question.
    pub(super) fn get_or_insert_with(&mut self, key: K, value: impl FnOnce() -> V) -> &mut V {
        self.entries.entry(key).or_insert_with(value)
    }

    /// Sets the value of a key, and gives the one it replaces.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.entries.insert(key, value)
    }

    /// Takes a key and its value out.
    pub(super) fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.entries.remove(key)
    }

    /// Takes the key out if its value is as `condition` says: for values whose key may since have been given
    /// to another.
    pub(super) fn remove_if<Q>(&mut self, key: &Q, condition: impl FnOnce(&V) -> bool) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        if self.entries.get(key).is_some_and(condition) {
            self.entries.remove(key)
        } else {
            None
        }
    }

    /// Gives memory back after a peak: once less than an eighth of the room is in use, down to twice what is
    /// needed. Costs a comparison otherwise, so that it may be called after each removal.
    pub(super) fn shrink(&mut self) {
        if self.entries.capacity() >= SHRINK_FROM && self.entries.len() < self.entries.capacity() / 8 {
            self.entries.shrink_to(2 * self.entries.len());
        }
    }
}

impl<K, V, S: Default> Default for Lookup<K, V, S> {
    fn default() -> Self {
        Lookup::new()
    }
}

/// The number of entries only: they have no order to be shown in.
impl<K, V, S> fmt::Debug for Lookup<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lookup({})", self.entries.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_key_leads_to_its_value() {
        let mut names: Lookup<Arc<str>, u32> = Lookup::new();
        assert!(names.is_empty());
        assert_eq!(names.capacity(), 0, "no memory before the first entry");
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
    fn memory_is_given_back_after_a_peak() {
        let mut peak: Lookup<u64, u64> = Lookup::new();
        for key in 0..100_000 {
            peak.insert(key, key);
        }
        let most = peak.capacity();
        for key in 100..100_000 {
            peak.remove(&key);
            peak.shrink();
        }
        assert!(peak.capacity() < SHRINK_FROM, "{} of {most}", peak.capacity());
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
