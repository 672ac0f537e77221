//! A table whose rows have typed handles. A handle may outlive its row: its version differs from that of a
//! later row in the same place.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::num::NonZeroU32;
use core::ops::{Index, IndexMut};

/// Counts the rows of one place. Never zero, so that an optional handle is no larger.
pub(crate) type Version = NonZeroU32;

/// Version of the first row.
pub(crate) const FIRST: Version = Version::MIN;

fn next(version: Version) -> Version {
    version.checked_add(1).unwrap_or(FIRST)
}

/// A handle of a [`Slab`].
pub(crate) trait Handle: Copy {
    /// The handle of a place and version.
    fn new(place: u32, version: Version) -> Self;
    /// The place, for structures with one entry per place.
    fn place(self) -> u32;
    /// The version of the row in that place.
    fn version(self) -> Version;
}

/// Declares a handle type.
macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name {
            place: u32,
            version: $crate::slab::Version,
        }

        impl $crate::slab::Handle for $name {
            fn new(place: u32, version: $crate::slab::Version) -> Self {
                $name { place, version }
            }
            fn place(self) -> u32 {
                self.place
            }
            fn version(self) -> $crate::slab::Version {
                self.version
            }
        }
    };
}
pub(crate) use handle;

/// Places of a page. Memory is allocated and freed by the page, so that no step grows with the number of
/// rows: a single `Vec` would be copied as a whole whenever it is full.
const PAGE: usize = 1_024;
/// Number of first pages that are kept when they are empty, so that an ordinary lull frees nothing.
const KEPT_PAGES: usize = 4;

#[derive(Debug)]
struct Slot<T> {
    version: Version,
    row: Option<T>,
}

#[derive(Debug)]
struct Page<T, S> {
    slots: Vec<Slot<T>>,
    /// A value for each row, kept apart from it.
    asides: Vec<S>,
    /// Slots without a row.
    free: Vec<u32>,
    /// Version of a slot used for the first time; above all versions used before the page was freed.
    first_version: Version,
}

impl<T, S: Copy + Default> Page<T, S> {
    /// An empty page with room for this many rows.
    fn with_places(places: usize) -> Self {
        let (slots, asides) = (Vec::with_capacity(places), Vec::with_capacity(places));
        Page { slots, asides, free: Vec::new(), first_version: FIRST }
    }

    fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() == PAGE
    }

    /// Adds a row. Returns its slot and version.
    fn insert(&mut self, row: T) -> (usize, Version) {
        if let Some(place) = self.free.pop() {
            let slot = &mut self.slots[place as usize];
            slot.row = Some(row);
            self.asides[place as usize] = S::default();
            return (place as usize, slot.version);
        }
        self.asides.push(S::default());
        self.slots.push(Slot { version: self.first_version, row: Some(row) });
        (self.slots.len() - 1, self.first_version)
    }

    fn clear(&mut self) {
        let highest = self.slots.iter().map(|slot| slot.version).max().unwrap_or(FIRST);
        *self = Page { first_version: next(highest), ..Page::with_places(0) };
    }
}

/// See the module's page. For each row a value `S` is kept apart, next to those of other rows: for data that
/// changes when another row is added or removed, and would else cost a memory access far away.
#[derive(Debug)]
pub(crate) struct Slab<H, T, S = ()> {
    pages: Vec<Page<T, S>>,
    /// Pages that are not full. The first is filled first, so that later ones become empty.
    open: BTreeSet<usize>,
    rows: usize,
    handles: PhantomData<H>,
}

impl<H: Handle, T, S: Copy + Default> Slab<H, T, S> {
    /// Bytes of a row.
    pub(crate) const SLOT: usize = size_of::<Slot<T>>();

    pub(crate) fn new() -> Self {
        Slab { pages: Vec::new(), open: BTreeSet::new(), rows: 0, handles: PhantomData }
    }

    pub(crate) fn insert(&mut self, row: T) -> H {
        let number = self.open.first().copied().unwrap_or(self.pages.len());
        if number == self.pages.len() {
            // A table with more than one page is not small.
            let places = if number == 0 { 0 } else { PAGE };
            self.pages.push(Page::with_places(places));
            self.open.insert(number);
        }
        let page = &mut self.pages[number];
        let (place, version) = page.insert(row);
        if page.is_full() {
            self.open.remove(&number);
        }
        self.rows += 1;
        H::new((number * PAGE + place) as u32, version)
    }

    pub(crate) fn remove(&mut self, handle: H) -> Option<T> {
        let (number, place) = parts(handle.place());
        let page = self.pages.get_mut(number)?;
        let was_full = page.is_full();
        let slot = page.slots.get_mut(place)?;
        if slot.version != handle.version() {
            return None;
        }
        let row = slot.row.take()?;
        slot.version = next(slot.version);
        page.free.push(place as u32);
        if page.free.len() == page.slots.len() && number >= KEPT_PAGES {
            page.clear();
        }
        if was_full {
            self.open.insert(number);
        }
        self.rows -= 1;
        Some(row)
    }

    fn slot(&self, place: u32) -> Option<&Slot<T>> {
        let (number, place) = parts(place);
        self.pages.get(number)?.slots.get(place)
    }

    pub(crate) fn get(&self, handle: H) -> Option<&T> {
        let slot = self.slot(handle.place())?;
        (slot.version == handle.version()).then_some(slot.row.as_ref()).flatten()
    }

    pub(crate) fn get_mut(&mut self, handle: H) -> Option<&mut T> {
        let (number, place) = parts(handle.place());
        let slot = self.pages.get_mut(number)?.slots.get_mut(place)?;
        if slot.version == handle.version() {
            slot.row.as_mut()
        } else {
            None
        }
    }

    /// The value kept apart for the row in this place.
    pub(crate) fn aside(&self, place: u32) -> S {
        let (number, place) = parts(place);
        self.pages[number].asides[place]
    }

    /// Mutable access to that value.
    pub(crate) fn aside_mut(&mut self, place: u32) -> &mut S {
        let (number, place) = parts(place);
        &mut self.pages[number].asides[place]
    }

    /// The handle of the row in this place.
    pub(crate) fn at(&self, place: u32) -> Option<H> {
        let slot = self.slot(place)?;
        slot.row.is_some().then(|| H::new(place, slot.version))
    }

    pub(crate) fn len(&self) -> usize {
        self.rows
    }

    /// All handles, in order of place.
    pub(crate) fn handles(&self) -> impl Iterator<Item = H> + '_ {
        let slots = self.pages.iter().enumerate().flat_map(|(number, page)| {
            page.slots.iter().enumerate().map(move |(place, slot)| (number * PAGE + place, slot))
        });
        let used = slots.filter(|(_, slot)| slot.row.is_some());
        used.map(|(place, slot)| H::new(place as u32, slot.version))
    }
}

/// The page of a place, and the slot in it.
fn parts(place: u32) -> (usize, usize) {
    (place as usize / PAGE, place as usize % PAGE)
}

impl<H: Handle, T, S: Copy + Default> Index<H> for Slab<H, T, S> {
    type Output = T;
    fn index(&self, handle: H) -> &T {
        self.get(handle).expect("a live handle")
    }
}

impl<H: Handle, T, S: Copy + Default> IndexMut<H> for Slab<H, T, S> {
    fn index_mut(&mut self, handle: H) -> &mut T {
        self.get_mut(handle).expect("a live handle")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    handle!(
        /// A handle for tests.
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
    fn a_handle_from_before_a_peak_stays_dead_and_memory_goes_by_the_page() {
        let mut slab: Slab<TestId, usize> = Slab::new();
        let all: Vec<TestId> = (0..(KEPT_PAGES + 2) * PAGE).map(|n| slab.insert(n)).collect();
        let held = |slab: &Slab<TestId, usize>| -> usize {
            slab.pages.iter().map(|page| page.slots.capacity()).sum()
        };
        assert_eq!(held(&slab), all.len(), "no page is larger than another");
        // Remove all but the first row of the last page.
        let last = (KEPT_PAGES + 1) * PAGE;
        all.iter().filter(|id| id.place() as usize != last).for_each(|id| {
            assert!(slab.remove(*id).is_some());
        });
        assert_eq!(held(&slab), (KEPT_PAGES + 1) * PAGE, "the page that is in use and those that are kept");
        assert_eq!((slab.len(), slab.get(all[last])), (1, Some(&last)));
        assert_eq!(slab.remove(all[last]), Some(last));
        assert_eq!((slab.len(), held(&slab)), (0, KEPT_PAGES * PAGE));
        let again: Vec<TestId> = (0..all.len()).map(|n| slab.insert(n)).collect();
        assert!(all.iter().all(|old| slab.get(*old).is_none()), "a place is given again, a handle never");
        assert!(again.iter().enumerate().all(|(n, id)| slab.get(*id) == Some(&n)));
    }

    #[test]
    fn the_first_pages_are_filled_first() {
        let mut slab: Slab<TestId, usize> = Slab::new();
        let all: Vec<TestId> = (0..3 * PAGE).map(|n| slab.insert(n)).collect();
        for place in [2 * PAGE + 1, 7, PAGE + 3] {
            slab.remove(all[place]);
        }
        let again: Vec<u32> = (0..4).map(|n| slab.insert(n).place()).collect();
        let expected = [7, PAGE + 3, 2 * PAGE + 1, 3 * PAGE];
        assert!(again.iter().map(|place| *place as usize).eq(expected), "{again:?}");
        assert_eq!(slab.handles().count(), slab.len());
    }
}
