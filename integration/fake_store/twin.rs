//! A real store beside the fake one: both are told and asked the same, and must say the same.

use super::FakeStore;
use std::sync::Arc;
use tidegate_types::event::{Load, Loaded, Marks, Op, Opened, Place, Token};
use tidegate_types::Content;

/// One atomic commit.
pub type Group = (Vec<Op>, Token, Marks);

/// A real store, as far as it is compared. A failure that the fake one has no part in is a panic.
pub trait RealStore {
    /// Makes all groups durable.
    fn commit(&mut self, groups: Vec<Group>);

    /// The answer to a read.
    ///
    /// # Errors
    ///
    /// It refuses the read.
    fn load(&mut self, load: &Load) -> Result<Loaded, String>;

    /// Contents, read beside the commits.
    fn contents(&mut self, wanted: &[(u64, Place)]) -> Option<Vec<(u64, Arc<Content>)>>;

    /// Closes it and opens it anew, while the clock says `wall`, UTC ms: what it holds.
    fn reopen(&mut self, wall: u64) -> Opened;
}

/// See the module.
pub struct Twin(Box<dyn RealStore>);

impl Twin {
    /// Of this store, which holds nothing.
    pub fn new(real: impl RealStore + 'static) -> Self {
        Twin(Box::new(real))
    }

    /// Makes all groups durable in the real one.
    pub fn commit(&mut self, groups: Vec<Group>) {
        self.0.commit(groups);
    }

    /// The same answer as the other's, but for the contents that come along with rows, or an error of both.
    pub fn load(&mut self, load: &Load, other: &mut FakeStore) {
        if let Load::Contents(wanted) = load {
            assert_eq!(self.0.contents(wanted), other.contents(wanted), "{load:?}");
        }
        match (self.0.load(load), other.load(load, usize::MAX)) {
            (Ok(loaded), Ok(expected)) => {
                assert_eq!(without_contents(loaded), without_contents(expected), "{load:?}");
            }
            (Err(_), Err(_)) => {}
            (loaded, expected) => panic!("{load:?}: {loaded:?}, and not {expected:?}"),
        }
    }

    /// A start, while the clock says `wall`, UTC ms: the real one holds what the other one does.
    pub fn reopen(&mut self, other: &FakeStore, wall: u64) {
        let (mut opened, mut expected) = (self.0.reopen(wall), other.opened(wall));
        for known in [&mut opened, &mut expected] {
            known.queues.sort_by_key(|row| row.queue.clone());
            known.windows.sort_by_key(|row| (row.application.clone(), row.customer.clone()));
        }
        assert_eq!(opened, expected);
    }
}

fn without_contents(mut loaded: Loaded) -> Loaded {
    if let Loaded::Ranges(ranges) = &mut loaded {
        ranges.iter_mut().flat_map(|range| &mut range.rows).for_each(|row| row.content = None);
    }
    loaded
}
