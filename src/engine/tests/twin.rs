//! The store on a disk beside the fake one: it is told and asked the same, and must say the same.

use super::fake_store::FakeStore;
use crate::engine::event::*;
use crate::store::ground::{Ground, GroundKind};
use crate::store::{CommitGroup, OpenStore, Reader, Store};

pub(crate) struct Twin {
    ground: Ground,
    /// None while it is opened anew.
    store: Option<Box<dyn Store>>,
    /// The one that it gave last: some give one alone.
    reader: Option<Box<dyn Reader>>,
}

impl Twin {
    /// A new store in a folder of its own.
    pub(crate) fn new() -> Self {
        Twin::on(GroundKind::Disk)
    }

    /// A new store.
    pub(crate) fn on(kind: GroundKind) -> Self {
        let ground = kind.bare();
        let store = Some(ground.open_when(0).store);
        Twin { ground, store, reader: None }
    }

    fn store(&mut self) -> &mut dyn Store {
        &mut **self.store.as_mut().expect("it is open")
    }

    pub(crate) fn commit(&mut self, groups: &[CommitGroup]) {
        self.store().commit(groups).unwrap_or_else(|error| panic!("{groups:?}: {error}"));
    }

    /// The same answer as the other's, but for the contents that come along with rows, or an error of both.
    pub(crate) fn load(&mut self, load: &Load, other: &mut FakeStore) {
        if let Load::Contents(wanted) = load {
            let given = self.store().reader();
            self.reader = given.or(self.reader.take());
            let reader = self.reader.as_ref().expect("it has a second reader");
            let contents = reader.contents(wanted).unwrap_or_else(|error| panic!("{load:?}: {error}"));
            assert_eq!(contents, other.contents(wanted), "{load:?}");
        }
        match (self.store().load(load), other.load(load, usize::MAX)) {
            (Ok(loaded), Ok(expected)) => {
                assert_eq!(without_contents(loaded), without_contents(expected), "{load:?}");
            }
            (Err(_), Err(_)) => {}
            (loaded, expected) => panic!("{load:?}: {loaded:?}, and not {expected:?}"),
        }
    }

    /// A start, while the clock says `wall`: what is found is what the other one has.
    pub(crate) fn reopen(&mut self, other: &FakeStore, wall: u64) {
        self.reader = None;
        self.store.take().expect("it is open").close().expect("closed");
        let OpenStore { store, mut opened, .. } = self.ground.open_when(wall);
        self.store = Some(store);
        let mut expected = other.opened(wall);
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
