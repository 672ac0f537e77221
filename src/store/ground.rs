//! What the tests of a store run on: a real directory, or ordered maps. The maps are no engine at all, so
//! that what holds over both is the store's own.

use super::changes::Changes;
use super::disk::write_raw;
use super::ended::Epochs;
use super::keyspace::{KeyspaceId, KEYSPACES};
use super::load::{self, FoundContents};
use super::row_reads::{Row, RowBounds, RowBytes, Rows};
use super::rows::{self, META_MARKS};
use super::tests::open_with;
use super::*;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tempfile::TempDir;

/// What a test runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GroundKind {
    Disk,
    Maps,
}

impl GroundKind {
    /// One of its own, and a store in it.
    pub(super) fn fresh(self) -> (Ground, Box<dyn Store>) {
        let ground = self.bare();
        let store = ground.open().store;
        (ground, store)
    }

    /// Without a store as yet.
    pub(crate) fn bare(self) -> Ground {
        match self {
            GroundKind::Disk => Ground::Disk(tempfile::tempdir().unwrap()),
            GroundKind::Maps => Ground::Maps(Arc::default()),
        }
    }
}

/// Outlives the stores that are opened in it, one after the other.
pub(crate) enum Ground {
    Disk(TempDir),
    Maps(Arc<Mutex<MapRows>>),
}

impl Ground {
    /// Opens what is there.
    pub(super) fn open(&self) -> OpenStore {
        self.open_when(crate::clock::wall_ms())
    }

    /// The same, while the clock says `wall`.
    pub(crate) fn open_when(&self, wall: u64) -> OpenStore {
        match self {
            Ground::Disk(folder) => open_with(folder.path(), wall).unwrap(),
            Ground::Maps(held) => MapStore::open(Arc::clone(held), wall).unwrap(),
        }
    }

    /// Why what is there is not opened.
    pub(super) fn refusal(&self) -> OpenError {
        let opened = match self {
            Ground::Disk(folder) => open_with(folder.path(), 0).map(drop),
            Ground::Maps(held) => MapStore::open(Arc::clone(held), 0).map(drop),
        };
        opened.expect_err("opened")
    }

    /// Writes a row past all rules.
    pub(super) fn write_raw(&self, id: KeyspaceId, key: &[u8], value: Option<&[u8]>) {
        match self {
            Ground::Disk(folder) => write_raw(folder.path(), id, key, value),
            Ground::Maps(held) => held.lock().unwrap().set(id, key.into(), value.map(RowBytes::from)),
        }
    }
}

/// Runs each of these on a disk, and over maps.
macro_rules! on_both {
    ($($(#[$attribute:meta])* $test:ident),+ $(,)?) => {
        mod on_a_disk {
            $(#[test] $(#[$attribute])* fn $test() { super::$test(super::GroundKind::Disk); })+
        }
        mod over_maps {
            $(#[test] $(#[$attribute])* fn $test() { super::$test(super::GroundKind::Maps); })+
        }
    };
}
pub(super) use on_both;

/// Rows in ordered maps.
#[derive(Clone, Default)]
pub(crate) struct MapRows {
    /// In the order of [`KeyspaceId::ALL`].
    all: [BTreeMap<RowBytes, RowBytes>; KEYSPACES],
}

impl MapRows {
    fn of(&self, id: KeyspaceId) -> &BTreeMap<RowBytes, RowBytes> {
        &self.all[id.index()]
    }

    fn set(&mut self, id: KeyspaceId, key: RowBytes, value: Option<RowBytes>) {
        match value {
            Some(value) => drop(self.all[id.index()].insert(key, value)),
            None => drop(self.all[id.index()].remove(&key)),
        }
    }
}

/// A record, or its head alone where its rest is more than what is left of `bodies`.
fn within(id: KeyspaceId, key: &[u8], value: RowBytes, bodies: &mut u64) -> RowBytes {
    if id != KeyspaceId::Items {
        return value;
    }
    // What cannot be read is told by who reads it.
    let Ok((head, rest)) = record::split(key, &value) else { return value };
    *bodies = bodies.saturating_sub(rest.len() as u64);
    if *bodies > 0 {
        return value;
    }
    let mut head = head.to_vec();
    record::mark_cut(&mut head);
    head.into()
}

/// As an engine that is far away: of items it brings heads alone, wherever it may.
impl Rows for MapRows {
    const TOGETHER: usize = 3;
    const AHEAD: usize = 3;

    fn get(&self, id: KeyspaceId, key: &[u8]) -> Result<Option<RowBytes>, ReadError> {
        Ok(self.of(id).get(key).cloned())
    }

    fn get_many(
        &self,
        keys: &[(KeyspaceId, RowBytes)],
        bodies: u64,
    ) -> impl Iterator<Item = impl FnOnce() -> Result<Option<RowBytes>, ReadError>> {
        keys.iter().map(move |(id, key)| {
            move || Ok(self.get(*id, key)?.map(|value| within(*id, key, value, &mut { bodies })))
        })
    }

    fn range(
        &self,
        id: KeyspaceId,
        (start, end): RowBounds,
        mut bodies: u64,
    ) -> impl Iterator<Item = Result<Row, ReadError>> {
        let rows = (start < end).then(|| self.of(id).range(RowBytes::from(start)..RowBytes::from(end)));
        rows.into_iter()
            .flatten()
            .map(move |(key, value)| Ok((key.clone(), within(id, key, value.clone(), &mut bodies))))
    }

    fn all(&self, id: KeyspaceId) -> impl Iterator<Item = Result<Row, ReadError>> {
        self.of(id).iter().map(|(key, value)| Ok((key.clone(), value.clone())))
    }

    /// It looks each time: whoever knows that there are none is no test of what is done where there are.
    fn has_closings(&self) -> bool {
        true
    }

    fn note_closing(&self) {}
}

/// A store over maps. What it has written is there for the next one, as on a disk.
struct MapStore {
    rows: MapRows,
    held: Arc<Mutex<MapRows>>,
    /// Of the last commit.
    number: u64,
    epochs: Epochs,
}

impl MapStore {
    fn open(held: Arc<Mutex<MapRows>>, wall: u64) -> Result<OpenStore, OpenError> {
        let rows = held.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let marks = rows.get(KeyspaceId::Meta, META_MARKS)?;
        let (number, marks) =
            marks.map_or((0, Marks::default()), |row| rows::read_marks(&row).expect("marks"));
        let (opened, epochs) = load::opened(&rows, marks, wall)?;
        Ok(OpenStore { store: Box::new(MapStore { rows, held, number, epochs }), opened, identity: 1 })
    }
}

impl Store for MapStore {
    fn commit(&mut self, groups: &[CommitGroup]) -> Result<(), CommitError> {
        let Some(last) = groups.last() else { return Ok(()) };
        let number = self.number + 1;
        let mut changes = Changes::new(&self.rows, number, self.epochs);
        changes.apply(groups.iter().flat_map(|group| &group.ops))?;
        changes.put(KeyspaceId::Meta, META_MARKS, rows::marks_row(number, &last.marks));
        changes.forget_closed()?;
        let (begun, epochs) = (changes.begun().to_vec(), changes.epochs());
        let written: Vec<_> = changes.into_rows().collect();
        for bucket in begun {
            self.rows.all[bucket.index()].clear();
        }
        for (id, key, value) in written {
            self.rows.set(id, key, value);
        }
        (self.number, self.epochs) = (number, epochs);
        self.held.lock().unwrap().clone_from(&self.rows);
        Ok(())
    }

    fn load(&mut self, load: &Load) -> Result<Loaded, ReadError> {
        load::load(&self.rows, load, &self.epochs)
    }

    fn reader(&self) -> Option<Box<dyn Reader>> {
        Some(Box::new(self.rows.clone()))
    }

    fn look(&self, scan: &Scan) -> Option<LookJob> {
        let (rows, scan) = (self.rows.clone(), scan.clone());
        Some(Box::new(move || load::look(&rows, &scan, || false)))
    }

    fn usage(&self) -> Result<Usage, UsageError> {
        Ok(Usage { used: 0, free: u64::MAX, total: u64::MAX })
    }

    fn close(self: Box<Self>) -> Result<(), CloseError> {
        Ok(())
    }
}

impl Reader for MapRows {
    fn contents(&self, wanted: &WantedContents) -> Result<Option<Contents>, ReadError> {
        Ok(match load::contents(self, wanted)? {
            FoundContents::All(found) => Some(found),
            FoundContents::Without(_) => None,
        })
    }
}
