//! The store on a disk beside the fake one: it is told and asked the same, and must say the same.

use super::fake_store::FakeStore;
use crate::config::{StoreConfig, StoreKind};
use crate::engine::event::*;
use crate::store::{open, CommitGroup, OpenStore, Store};
use std::time::Duration;
use tempfile::TempDir;

/// Memory that it is opened with, bytes.
const MEMORY: u64 = 32 << 20;

pub(crate) struct Twin {
    folder: TempDir,
    /// None while it is opened anew.
    store: Option<Box<dyn Store>>,
}

impl Twin {
    /// A new store in a folder of its own.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let OpenStore { store, .. } = open_in(&folder, 0);
        Twin { folder, store: Some(store) }
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
            let reader = self.store().reader().expect("a disk has a second reader");
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
        self.store.take().expect("it is open").close().expect("closed");
        let OpenStore { store, mut opened, .. } = open_in(&self.folder, wall);
        self.store = Some(store);
        let mut expected = other.opened(wall);
        for known in [&mut opened, &mut expected] {
            known.queues.sort_by_key(|row| row.queue.clone());
            known.windows.sort_by_key(|row| (row.application.clone(), row.customer.clone()));
        }
        assert_eq!(opened, expected);
    }
}

fn open_in(folder: &TempDir, wall: u64) -> OpenStore {
    let path = folder.path().to_owned();
    let config = StoreConfig { kind: StoreKind::Disk, path, hold_max: Duration::from_secs(1_500) };
    open(&config, MEMORY, false, wall).expect("opened")
}

fn without_contents(mut loaded: Loaded) -> Loaded {
    if let Loaded::Ranges(ranges) = &mut loaded {
        ranges.iter_mut().flat_map(|range| &mut range.rows).for_each(|row| row.content = None);
    }
    loaded
}
