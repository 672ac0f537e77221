//! The store on a disk, as the one that the fake store is compared with.

use std::sync::Arc;
use tempfile::TempDir;
use tidegate_config::{Config, StoreConfig};
use tidegate_fake_store::{Group, RealStore, Twin};
use tidegate_store::{CommitGroup, OpenStore, Reader, Store};
use tidegate_types::event::*;
use tidegate_types::*;

/// Of its cache, bytes.
const MEMORY: u64 = 32 << 20;

struct OnDisk {
    folder: TempDir,
    /// None while it is opened anew.
    store: Option<Box<dyn Store>>,
    /// The one that it gave last: some give one alone.
    reader: Option<Box<dyn Reader>>,
}

/// A new store in a folder of its own.
pub(super) fn on_disk() -> Twin {
    let mut real = OnDisk { folder: tempfile::tempdir().expect("a folder"), store: None, reader: None };
    real.open(0);
    Twin::new(real)
}

impl OnDisk {
    fn config(&self) -> StoreConfig {
        let path = self.folder.path().display().to_string();
        let set = [("TIDEGATE__STORE__PATH".to_owned(), path)];
        Config::load(None, set.into_iter()).expect("a configuration").config.store
    }

    fn open(&mut self, wall: u64) -> Opened {
        let OpenStore { store, opened, .. } =
            tidegate_store::open(&self.config(), MEMORY, false, wall).expect("opened");
        self.store = Some(store);
        opened
    }

    fn store(&mut self) -> &mut dyn Store {
        &mut **self.store.as_mut().expect("it is open")
    }
}

impl RealStore for OnDisk {
    fn commit(&mut self, groups: Vec<Group>) {
        let group = |(ops, token, marks)| CommitGroup { ops, token, marks, hurried: false };
        let groups: Vec<CommitGroup> = groups.into_iter().map(group).collect();
        self.store().commit(&groups).unwrap_or_else(|error| panic!("{groups:?}: {error}"));
    }

    fn load(&mut self, load: &Load) -> Result<Loaded, String> {
        self.store().load(load).map_err(|error| error.to_string())
    }

    fn contents(&mut self, wanted: &[(u64, Place)]) -> Option<Vec<(u64, Arc<Content>)>> {
        let given = self.store().reader();
        self.reader = given.or(self.reader.take());
        let reader = self.reader.as_ref().expect("it has a second reader");
        reader.contents(wanted).unwrap_or_else(|error| panic!("{wanted:?}: {error}"))
    }

    fn reopen(&mut self, wall: u64) -> Opened {
        self.reader = None;
        self.store.take().expect("it is open").close().expect("closed");
        self.open(wall)
    }
}
