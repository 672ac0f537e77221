//! The store on a disk beside the fake one: it is told and asked the same, and must say the same.

use super::fake_store::FakeStore;
use crate::config::{StoreConfig, StoreKind};
use crate::engine::event::*;
use crate::store::{open, CommitGroup, OpenStore, Store};
use std::time::Duration;
use tempfile::TempDir;

/// Memory that it is opened with, bytes.
const MEMORY: u64 = 32 << 20;

pub(super) struct Twin {
    folder: TempDir,
    /// None while it is opened anew.
    store: Option<Box<dyn Store>>,
}

impl Twin {
    /// A new store in a folder of its own.
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let OpenStore { store, .. } = open_in(&folder);
        Twin { folder, store: Some(store) }
    }

    fn store(&mut self) -> &mut dyn Store {
        &mut **self.store.as_mut().expect("it is open")
    }

    pub(super) fn commit(&mut self, ops: &[Op], token: Token, marks: Marks) {
        let group = CommitGroup { ops: ops.to_vec(), token, marks, hurried: false };
        self.store().commit(&[group]).unwrap_or_else(|error| panic!("commit {token}: {error}"));
    }

    /// The same answer as the other's, but for the contents that come along with rows.
    pub(super) fn load(&mut self, load: &Load, other: &Loaded) {
        let loaded = self.store().load(load).unwrap_or_else(|error| panic!("{load:?}: {error}"));
        assert_eq!(without_contents(loaded), without_contents(other.clone()), "{load:?}");
    }

    /// A start: what is found is what the other one has.
    pub(super) fn reopen(&mut self, other: &FakeStore) {
        self.store.take().expect("it is open").close().expect("closed");
        let OpenStore { store, mut opened, .. } = open_in(&self.folder);
        self.store = Some(store);
        let mut expected = other.opened(other.marks.wall);
        for known in [&mut opened, &mut expected] {
            known.queues.sort_by(|a, b| a.queue.cmp(&b.queue));
            // It depends on the machine's own clock.
            known.ahead.clear();
        }
        assert_eq!(opened, expected);
    }
}

fn open_in(folder: &TempDir) -> OpenStore {
    let path = folder.path().to_owned();
    let config = StoreConfig { kind: StoreKind::Disk, path, hold_max: Duration::from_secs(1_500) };
    open(&config, MEMORY, false).expect("opened")
}

fn without_contents(mut loaded: Loaded) -> Loaded {
    if let Loaded::Ranges(ranges) = &mut loaded {
        ranges.iter_mut().flat_map(|range| &mut range.rows).for_each(|row| row.content = None);
    }
    loaded
}
