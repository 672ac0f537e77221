//! Grounds for tests of a store: a real directory, a database, or ordered maps. The maps are not a storage
//! engine, so a property that holds over all of them is the store's own.

use super::changes::Changes;
use super::disk::write_raw;
use super::ended::Epochs;
use super::keyspace::{KeyspaceId, KEYSPACES};
use super::load;
use super::row_reads::{Row, RowBounds, RowBytes, Rows};
use super::rows::{self, META_MARKS};
use super::tests::{open_with, unlocked};
use super::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use tempfile::TempDir;
use tidegate_config::Config;
use tidegate_harness::Database;

/// The kind of ground for a test.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GroundKind {
    Disk,
    Maps,
    Postgres,
}

impl GroundKind {
    /// A separate ground, with a store in it.
    pub(crate) fn fresh(self) -> (Ground, Box<dyn Store>) {
        let ground = self.bare();
        let store = ground.open().store;
        (ground, store)
    }

    /// A ground without a store.
    pub(crate) fn bare(self) -> Ground {
        match self {
            GroundKind::Disk => Ground::Disk(tempfile::tempdir().unwrap()),
            GroundKind::Maps => Ground::Maps(Arc::default()),
            GroundKind::Postgres => Ground::Postgres(PgGround::fresh()),
        }
    }
}

/// Outlives the stores that are opened in it one after the other.
pub(crate) enum Ground {
    Disk(TempDir),
    Maps(Arc<Mutex<MapRows>>),
    Postgres(PgGround),
}

impl Ground {
    /// Opens the store in it.
    pub(crate) fn open(&self) -> OpenStore {
        self.open_when(tidegate_common::clock::wall_ms())
    }

    /// The same at the wall clock `wall`.
    pub(crate) fn open_when(&self, wall: u64) -> OpenStore {
        match self {
            Ground::Disk(folder) => open_with(folder.path(), wall).unwrap(),
            Ground::Maps(held) => MapStore::open(Arc::clone(held), wall).unwrap(),
            Ground::Postgres(ground) => ground.open(wall).unwrap(),
        }
    }

    /// The error with which the store is refused.
    pub(crate) fn refusal(&self) -> OpenError {
        let opened = match self {
            Ground::Disk(folder) => open_with(folder.path(), 0).map(drop),
            Ground::Maps(held) => MapStore::open(Arc::clone(held), 0).map(drop),
            Ground::Postgres(ground) => ground.open(0).map(drop),
        };
        opened.expect_err("opened")
    }

    /// Writes a row past all checks.
    pub(crate) fn write_raw(&self, id: KeyspaceId, key: &[u8], value: Option<&[u8]>) {
        match self {
            Ground::Disk(folder) => write_raw(folder.path(), id, key, value),
            Ground::Maps(held) => held.lock().unwrap().set(id, key.into(), value.map(RowBytes::from)),
            Ground::Postgres(ground) => ground.write_raw(id, key, value),
        }
    }
}

/// A separate schema in the server that all tests share, and a directory.
pub(crate) struct PgGround {
    folder: TempDir,
    server: &'static Database,
    schema: String,
    /// The role's name after the schema's; empty: the role that owns everything.
    suffix: &'static str,
}

impl PgGround {
    fn fresh() -> Self {
        PgGround::of(Database::shared().expect("PostgreSQL, which `make setup` installs"))
    }

    /// A ground in another server.
    pub(crate) fn of(server: &'static Database) -> Self {
        PgGround { folder: tempfile::tempdir().unwrap(), server, schema: server.schema(), suffix: "" }
    }

    /// The configuration of a daemon for it.
    pub(crate) fn config(&self) -> tidegate_config::StoreConfig {
        let role = format!("{}{}", self.schema, self.suffix);
        let role = if self.suffix.is_empty() { "tidegate" } else { &role };
        let [uri, path] = [self.server.uri_of(role), self.folder.path().display().to_string()];
        let set = |key: &str, value: &str| (format!("TIDEGATE__STORE__{key}"), value.to_owned());
        let all = [
            set("KIND", "postgres"),
            set("URI", &uri),
            set("PATH", &path),
            set("SCHEMA", &self.schema),
            set("ALLOW_ASYNC", "true"),
        ];
        Config::load(None, all.into_iter()).unwrap().config.store
    }

    /// The ground of another daemon: the same schema, another directory.
    pub(crate) fn elsewhere(&self) -> PgGround {
        PgGround { folder: tempfile::tempdir().unwrap(), schema: self.schema.clone(), ..*self }
    }

    /// The same with the rights of a role, whose name is the schema's plus this suffix.
    pub(crate) fn as_role(&self, suffix: &'static str) -> PgGround {
        PgGround { suffix, ..self.elsewhere() }
    }

    /// The daemon's directory.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn open(&self, wall: u64) -> Result<OpenStore, OpenError> {
        let config = self.config();
        unlocked(|| open(&config, 32 << 20, false, wall))
    }

    /// Prepares to open the store of one of several shards.
    pub(crate) fn opener(&self, place: ShardPlace) -> Result<Opener, OpenError> {
        let mut config = self.config();
        config.path = tidegate_config::shard_path(&config.path, place.number);
        Opener::new(&config, place, 32 << 20, false)
    }

    /// The answer of the database; `$` stands for the schema.
    pub(crate) fn sql(&self, text: &str) -> String {
        self.server.sql(&self.named(text))
    }

    /// The text with the schema's name in place of each `$`.
    pub(crate) fn named(&self, text: &str) -> String {
        text.replace('$', &self.schema)
    }

    fn write_raw(&self, id: KeyspaceId, key: &[u8], value: Option<&[u8]>) {
        let hex = |bytes: &[u8]| {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("'\\x{digits}'::bytea")
        };
        let is_item = id == KeyspaceId::Items;
        let bucket = match id {
            KeyspaceId::Ended(bucket) if key != rows::BUCKET => Some(bucket),
            KeyspaceId::Ended(_)
            | KeyspaceId::Items
            | KeyspaceId::Customers
            | KeyspaceId::Identities
            | KeyspaceId::Queues
            | KeyspaceId::Windows
            | KeyspaceId::Closings
            | KeyspaceId::Meta => None,
        };
        let (key, value) = (hex(key), value.map(hex));
        let (table, place) = match bucket {
            Some(bucket) => ("ended", format!("bucket = {bucket} AND identity = {key}")),
            None if is_item => ("items", format!("key = {key}")),
            None => ("rows", format!("space = {} AND key = {key}", id.index())),
        };
        let Some(value) = value else {
            return drop(self.sql(&format!("DELETE FROM $.{table} WHERE {place}")));
        };
        let set = if is_item { format!("head = {value}, rest = ''") } else { format!("value = {value}") };
        let changed = format!("UPDATE $.{table} SET {set} WHERE {place} RETURNING 1");
        if self.sql(&format!("WITH changed AS ({changed}) SELECT count(*) FROM changed")) == "0" {
            let space = id.index();
            let new = if is_item {
                format!("items VALUES (0, {key}, {value}, '')")
            } else {
                format!("rows VALUES (0, {space}, {key}, {value})")
            };
            self.sql(&format!("INSERT INTO $.{new}"));
        }
    }
}

/// Runs each of these tests on every ground, or on the grounds that are named first.
macro_rules! on_each {
    ([$($module:ident = $ground:ident),+] $tests:tt) => {
        $(on_each! { @ $module = $ground $tests })+
    };
    (@ $module:ident = $ground:ident { $($(#[$attribute:meta])* $test:ident),+ $(,)? }) => {
        mod $module {
            $(#[test] $(#[$attribute])* fn $test() { super::$test(super::GroundKind::$ground); })+
        }
    };
    ($($(#[$attribute:meta])* $test:ident),+ $(,)?) => {
        on_each! {
            [on_a_disk = Disk, over_maps = Maps, in_postgres = Postgres]
            { $($(#[$attribute])* $test),+ }
        }
    };
}
pub(crate) use on_each;

/// The rows in ordered maps.
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

/// A record, or its head alone if its rest exceeds what is left of `bodies`.
fn within(id: KeyspaceId, key: &[u8], value: RowBytes, bodies: &mut u64) -> RowBytes {
    if id != KeyspaceId::Items {
        return value;
    }
    // The reader reports an unreadable record.
    let Ok((head, rest)) = record::split(key, &value) else { return value };
    *bodies = bodies.saturating_sub(rest.len() as u64);
    if *bodies > 0 {
        return value;
    }
    let mut head = head.to_vec();
    record::mark_cut(&mut head);
    head.into()
}

/// Behaves as a remote engine: it returns heads of items alone wherever it may.
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

    /// Always looks up closings, so that every test covers the look-up.
    fn has_closings(&self) -> bool {
        true
    }

    fn note_closing(&self) {}
}

/// A store over maps. The next one opened finds its rows, as on a disk.
struct MapStore {
    rows: MapRows,
    held: Arc<Mutex<MapRows>>,
    /// Number of the last commit.
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
        let store = Box::new(MapStore { rows, held, number, epochs });
        Ok(OpenStore { store, opened, identity: 1, takeover: None, epoch: None })
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
        Ok(load::contents(self, wanted)?.all())
    }

    fn ranges(&self, ranges: &[Range], max_rows: usize, max_bytes: u64) -> Result<Vec<RangeRows>, ReadError> {
        load::read_ranges(self, ranges, max_rows, max_bytes)
    }
}
