//! A table whose rows have typed handles. A handle outlives its row safely: its version tells that the place
//! has been taken by another one since.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// A handle of a [`Slab`].
pub(super) trait Handle: Copy {
    /// From a place and its version.
    fn new(place: u32, version: u32) -> Self;
    /// The place, for structures that keep one entry a place.
    fn place(self) -> u32;
    /// Which row of that place.
    fn version(self) -> u32;
}

/// Declares a handle type.
macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(super) struct $name {
            place: u32,
            version: u32,
        }

        impl $crate::engine::slab::Handle for $name {
            fn new(place: u32, version: u32) -> Self {
                $name { place, version }
            }
            fn place(self) -> u32 {
                self.place
            }
            fn version(self) -> u32 {
                self.version
            }
        }
    };
}
pub(super) use handle;

/// Places kept when a table has become empty, so that an ordinary pause frees nothing.
const KEPT_PLACES: usize = 4_096;

#[derive(Debug)]
struct Slot<T> {
    version: u32,
    row: Option<T>,
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct Slab<H, T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// Version of a place used for the first time; above all versions given out before the last shrinking.
    first_version: u32,
    handles: PhantomData<H>,
}

impl<H: Handle, T> Slab<H, T> {
    pub(super) fn new() -> Self {
        Slab { slots: Vec::new(), free: Vec::new(), first_version: 0, handles: PhantomData }
    }

    pub(super) fn insert(&mut self, row: T) -> H {
        if let Some(place) = self.free.pop() {
            let slot = &mut self.slots[place as usize];
            slot.row = Some(row);
            return H::new(place, slot.version);
        }
        self.slots.push(Slot { version: self.first_version, row: Some(row) });
        H::new((self.slots.len() - 1) as u32, self.first_version)
    }

    pub(super) fn remove(&mut self, handle: H) -> Option<T> {
        let slot = self.slots.get_mut(handle.place() as usize)?;
        if slot.version != handle.version() {
            return None;
        }
        let row = slot.row.take()?;
        slot.version = slot.version.wrapping_add(1);
        self.free.push(handle.place());
        if self.free.len() == self.slots.len() && self.slots.len() > KEPT_PLACES {
            let highest = self.slots.iter().map(|slot| slot.version).max().unwrap_or_default();
            self.first_version = highest.wrapping_add(1);
            self.slots = Vec::new();
            self.free = Vec::new();
        }
        Some(row)
    }

    pub(super) fn get(&self, handle: H) -> Option<&T> {
        let slot = self.slots.get(handle.place() as usize)?;
        (slot.version == handle.version()).then_some(slot.row.as_ref()).flatten()
    }

    pub(super) fn get_mut(&mut self, handle: H) -> Option<&mut T> {
        let slot = self.slots.get_mut(handle.place() as usize)?;
        if slot.version == handle.version() {
            slot.row.as_mut()
        } else {
            None
        }
    }

    /// The handle of the row that is in this place.
    pub(super) fn at(&self, place: u32) -> Option<H> {
        let slot = self.slots.get(place as usize)?;
        slot.row.is_some().then(|| H::new(place, slot.version))
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// In order of place.
    pub(super) fn handles(&self) -> impl Iterator<Item = H> + '_ {
        let used = self.slots.iter().enumerate().filter(|(_, slot)| slot.row.is_some());
        used.map(|(place, slot)| H::new(place as u32, slot.version))
    }
}

impl<H: Handle, T> Index<H> for Slab<H, T> {
    type Output = T;
    fn index(&self, handle: H) -> &T {
        self.get(handle).expect("a live handle")
    }
}

impl<H: Handle, T> IndexMut<H> for Slab<H, T> {
    fn index_mut(&mut self, handle: H) -> &mut T {
        self.get_mut(handle).expect("a live handle")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    handle!(
        /// Handle for tests alone.
        TestId
    );

    #[test]
    fn places_are_used_again_and_old_handles_are_dead() {
        let mut slab: Slab<TestId, &str> = Slab::new();
        let (a, b) = (slab.insert("a"), slab.insert("b"));
        assert_eq!(slab.remove(a), Some("a"));
        assert_eq!(slab.remove(a), None);
        let c = slab.insert("c");
        assert_eq!(c.place(), a.place());
        assert_eq!((slab.get(a), slab.get(c), slab.get(b)), (None, Some(&"c"), Some(&"b")));
        assert_eq!(slab.len(), 2);
        assert_eq!(slab.handles().collect::<Vec<_>>(), [c, b]);
        assert_eq!(slab.at(a.place()), Some(c));
    }

    #[test]
    fn a_handle_from_before_a_peak_stays_dead() {
        let mut slab: Slab<TestId, usize> = Slab::new();
        let all: Vec<TestId> = (0..KEPT_PLACES + 1).map(|n| slab.insert(n)).collect();
        all.iter().for_each(|id| assert!(slab.remove(*id).is_some()));
        let new = slab.insert(7);
        assert_eq!(new.place(), all[0].place());
        assert_eq!(slab.get(all[0]), None);
    }
}
