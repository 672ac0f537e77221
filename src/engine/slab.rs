//! A table of values under small integer handles, whose places are used again.
//!
//! Handles are `u32` so that the lists running through the engine's tables stay small. Using a handle after its
//! value was removed is a bug of the engine and panics.

/// No handle.
pub(super) const NIL: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Slab { places: Vec::new(), free: Vec::new() }
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        if let Some(id) = self.free.pop() {
            self.places[id as usize] = Some(value);
            return id;
        }
        self.places.push(Some(value));
        (self.places.len() - 1) as u32
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<T> {
        let value = self.places.get_mut(id as usize)?.take()?;
        self.free.push(id);
        if self.free.len() == self.places.len() && self.places.len() > 4_096 {
            // All empty after a peak: give the memory back.
            self.places = Vec::new();
            self.free = Vec::new();
        }
        Some(value)
    }

    pub(super) fn get(&self, id: u32) -> Option<&T> {
        self.places.get(id as usize)?.as_ref()
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// In order of handle.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.places.len() as u32).filter(|id| self.places[*id as usize].is_some())
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, id: u32) -> &T {
        self.places[id as usize].as_ref().expect("a live handle")
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, id: u32) -> &mut T {
        self.places[id as usize].as_mut().expect("a live handle")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_and_handles_stay() {
        let mut slab = Slab::new();
        let (a, b) = (slab.insert("a"), slab.insert("b"));
        assert_eq!(slab.remove(a), Some("a"));
        assert_eq!(slab.remove(a), None);
        assert_eq!(slab.insert("c"), a);
        assert_eq!((slab[a], slab[b], slab.len()), ("c", "b", 2));
        assert_eq!(slab.ids().collect::<Vec<_>>(), [a, b]);
    }
}
