//! A real store beside the fake one: both get the same operations and reads, and must answer alike.

use super::fake_store::FakeStore;
use crate::engine::event::*;
use crate::store::ground::{Ground, GroundKind};
use crate::store::{CommitGroup, OpenStore, Reader, Store};

pub(crate) struct Twin {
    ground: Ground,
    /// `None` while the store is reopened.
    store: Option<Box<dyn Store>>,
    /// The reader that it gave last: some stores give only one.
    reader: Option<Box<dyn Reader>>,
}

impl Twin {
    /// A new store on the disk, in its own folder.
    pub(crate) fn new() -> Self {
        Twin::on(GroundKind::Disk)
    }

    /// A new store of this kind.
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

    /// Checks that the answer equals that of the other store, except for contents that come along with rows; both may
    /// report an error.
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

    /// Reopens the store when the clock shows `wall`, and checks that it finds what the other store has.
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
