//! A store as [`Twin`] compares it with the fake one. The tests of the engine include this file as well: the
//! tests of this crate could not use it from another crate, where [`Store`] is another type.

use std::sync::Arc;
use tidegate_fake_store::{Group, RealStore, Twin};
use tidegate_store::{CommitGroup, OpenStore, Reader, Store};
use tidegate_types::event::{Load, Loaded, Opened, Place};
use tidegate_types::Content;

struct Compared<F> {
    /// Opens it, while the clock says this, UTC ms.
    open: F,
    /// None while it is opened anew.
    store: Option<Box<dyn Store>>,
    /// The one that it gave last: some give one alone.
    reader: Option<Box<dyn Reader>>,
}

/// The store that `open` opens, which holds nothing yet.
pub(super) fn compared(mut open: impl FnMut(u64) -> OpenStore + 'static) -> Twin {
    let store = Some(open(0).store);
    Twin::new(Compared { open, store, reader: None })
}

impl<F> Compared<F> {
    fn store(&mut self) -> &mut dyn Store {
        &mut **self.store.as_mut().expect("it is open")
    }
}

impl<F: FnMut(u64) -> OpenStore> RealStore for Compared<F> {
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
        let OpenStore { store, opened, .. } = (self.open)(wall);
        self.store = Some(store);
        opened
    }
}
