//! The disk store: one fjall database, one batch and one sync for each call of commit.
//!
//! Every commit has a number, written in the same batch as its rows. Deliberately absent: repair. What does
//! not read as it was written is reported by name, and stays.

use super::changes::Changes;
use super::database::{damaged, io_error, unwritable, Epochs, Keyspaces, DAMAGE};
use super::directory::{Committed, Directory};
use super::keyspace::{KeyspaceId, KEYSPACES};
use super::rows::{self, FORMAT, META_FORMAT, META_IDENTITY, META_MARKS};
use super::{ahead, logs, reclaim};
use super::{
    new_identity, CloseError, CommitError, CommitGroup, OpenError, OpenStore, ReadError, Reader, ReclaimJob,
    Store, Usage, UsageError,
};
use crate::clock;
use crate::engine::event::{BucketRow, Load, Loaded, Marks, Opened, BUCKETS};
use fjall::config::{BlockSizePolicy, FilterPolicy};
use fjall::{AbstractTree, Database, KeyspaceCreateOptions, PersistMode};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// All logs of the storage engine together, bytes: the least it can do with, and what a start reads at most
/// twice.
const JOURNALS: u64 = 64 << 20;
/// Threads that flush and compact. The first never compacts, and hands on what it is given without a pause
/// while all others are busy with it: with two it would take a core for as long as any compaction runs. With
/// one alone a flush waits behind a compaction, and commits behind that (see `docs/DECISIONS.md`).
const WORKERS: usize = 3;
/// Files kept open, far below the usual limit of 1,024 for a process.
const OPEN_FILES: usize = 200;
/// Bytes of memory that a row costs in a memtable beside key and value, about.
const ROW_OVERHEAD: u64 = 128;

/// Memtables of one keyspace on their way to the disk with which a commit is still made. With 4 the storage
/// engine waits (`Keyspace::local_backpressure`, with no bound and no look at its own health), and a worker
/// may add one meanwhile.
const SEALED_MAX: usize = 2;
/// Tables of the first level of one keyspace with which a commit is still made. The storage engine slows down
/// at 20 and waits at 30, in the same way.
const L0_MAX: usize = 20;
/// Longest wait for room in a memtable, below [`super::thread::STORE_CALL_LIMIT`], so that the sentence is
/// the right one.
const ROOM_LIMIT: Duration = Duration::from_secs(45);
/// Between two looks: the storage engine offers nothing that could be waited for.
const ROOM_LOOK: Duration = Duration::from_millis(2);

/// What the storage engine may use of `limits.memory`, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DiskBudget {
    /// Cache of blocks read.
    cache: u64,
    /// Rows not flushed to a table yet, in all keyspaces together. As much again is on its way to the disk
    /// where rows come fast; at twice as much that is not, commits wait.
    memtables: u64,
}

impl DiskBudget {
    /// A quarter of the limit: one part cache, three parts memtables, half of them on their way. The larger a
    /// memtable, the fewer tables there are to be compacted.
    fn of(memory_limit: u64) -> Self {
        let part = memory_limit / 16;
        let memtables = part / 2 * 3;
        DiskBudget { cache: part.clamp(1 << 20, 256 << 20), memtables: memtables.clamp(1 << 20, 32 << 20) }
    }
}

/// Opens the store in `path`, and makes it first where there is none.
///
/// # Errors
///
/// See [`super::open`].
pub(super) fn open(path: &Path, memory_limit: u64, accept_loss: bool) -> Result<OpenStore, OpenError> {
    let directory = Directory::open(path)?;
    let budget = DiskBudget::of(memory_limit);
    // Before the storage engine sees them: it cuts off what it cannot read.
    logs::check(&directory, accept_loss)?;
    if !directory.data().try_exists().map_err(OpenError::io("look at", &directory.data()))? {
        establish(&directory, budget)?;
    }
    let db = open_database(&directory.data(), budget)?;
    let (keyspaces, known) = match read_format(&db)? {
        FoundFormat::Current => {
            let keyspaces = open_keyspaces(&db, &directory.data())?;
            let known = read_meta(&keyspaces)?;
            (keyspaces, known)
        }
        FoundFormat::None => create(&db, &directory.data())?,
    };
    let StoreMeta { identity, number, marks } = known;
    let (mut committed, noted) = Committed::open(&directory, identity)?;
    let lost = noted.filter(|noted| *noted > number);
    if let (Some(noted), true) = (lost, accept_loss) {
        tracing::warn!(first = number + 1, last = noted, "durable commits are gone, and this is accepted");
    } else if let Some(noted) = lost {
        return Err(OpenError::Damaged {
            place: format!("{}/*.jnl", directory.data().display()),
            error: format!(
                "commits {} to {noted} had been made durable and are gone; restore the files, or start with \
                 --accept-loss to go on without them",
                number + 1,
            ),
        });
    }
    committed.record(number);
    committed.sync().map_err(OpenError::io("sync", &directory.path().join("COMMITTED")))?;
    directory.sync()?;
    let (buckets, epochs) = read_buckets(&keyspaces)?;
    let queues = keyspaces.all(KeyspaceId::Queues, rows::read_queue)?;
    let opened = Opened {
        marks,
        ahead: ahead::ahead(&keyspaces, &queues, marks, clock::wall_ms())?,
        queues,
        windows: keyspaces.all(KeyspaceId::Windows, rows::read_window)?,
        closings: keyspaces.all(KeyspaceId::Closings, rows::read_closing)?,
        buckets,
    };
    // What the log gave back counts as well; how much that was is not known, half is a fair guess.
    let unflushed = KeyspaceId::ALL.map(|_| budget.memtables / 2 / KeyspaceId::ALL.len() as u64);
    let directory = Arc::new(directory);
    let store = DiskStore { keyspaces, db, committed, number, marks, budget, unflushed, epochs, directory };
    Ok(OpenStore { store: Box::new(store), opened, identity })
}

/// What the keyspace `meta` holds.
struct StoreMeta {
    identity: u64,
    /// Of the last commit.
    number: u64,
    marks: Marks,
}

/// Makes a new store beside its place, and moves it there once it is whole: what the storage engine has half
/// made, it cannot open again. Nothing was ever stored in what an earlier start left there.
fn establish(directory: &Directory, budget: DiskBudget) -> Result<(), OpenError> {
    let (path, new) = (directory.data(), directory.path().join("db.new"));
    match fs::remove_dir_all(&new) {
        Ok(()) => tracing::info!(path = %new.display(), "removed; an earlier first start was cut short"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(OpenError::io("remove", &new)(error)),
    }
    let db = open_database(&new, budget)?;
    drop((create(&db, &new)?, db));
    fs::rename(&new, &path).map_err(OpenError::io("rename", &new))?;
    directory.sync()
}

fn open_database(path: &Path, budget: DiskBudget) -> Result<Database, OpenError> {
    Database::builder(path)
        .cache_size(budget.cache)
        .max_journaling_size(JOURNALS)
        .max_cached_files(Some(OPEN_FILES))
        .worker_threads(WORKERS)
        .open()
        .map_err(|error| not_opened(path, error))
}

fn not_opened(path: &Path, error: fjall::Error) -> OpenError {
    if matches!(error, fjall::Error::Locked) {
        return OpenError::Locked { pid: None, path: path.join("lock") };
    }
    match io_error(&error) {
        Some(io) if !DAMAGE.contains(&io.kind()) => {
            let source = io::Error::new(io.kind(), io.to_string());
            OpenError::Io { action: "open", path: path.to_owned(), source }
        }
        _ => {
            let place = if matches!(error, fjall::Error::JournalRecovery(_)) {
                path.join("*.jnl")
            } else if matches!(error, fjall::Error::InvalidVersion(_)) {
                path.join("version")
            } else {
                path.to_owned()
            };
            OpenError::Damaged { place: place.display().to_string(), error: error.to_string() }
        }
    }
}

/// What lies in an opened database.
enum FoundFormat {
    /// A store that this program knows.
    Current,
    /// No store is there.
    None,
}

fn read_format(db: &Database) -> Result<FoundFormat, OpenError> {
    let place = "keyspace `meta`, key `format`".to_owned();
    let row = if db.keyspace_exists(KeyspaceId::Meta.name()) {
        let meta = db.keyspace(KeyspaceId::Meta.name(), || options(KeyspaceId::Meta));
        meta.and_then(|meta| meta.get(META_FORMAT)).map_err(|e| not_read(KeyspaceId::Meta, &e))?
    } else {
        None
    };
    let Some(row) = row else {
        // A first start may have been cut short. But where there are items, there was a format.
        for name in db.list_keyspace_names() {
            let keyspace = db.keyspace(&name, KeyspaceCreateOptions::default);
            if !keyspace.and_then(|k| k.is_empty()).map_err(|e| not_read(KeyspaceId::Meta, &e))? {
                let error = format!("missing, although keyspace `{}` holds rows", &*name);
                return Err(OpenError::Damaged { place, error });
            }
        }
        return Ok(FoundFormat::None);
    };
    let found = rows::read_number(META_FORMAT, &row)
        .and_then(|n| u32::try_from(n).map_err(|_| "out of range".to_owned()))
        .map_err(|error| OpenError::Damaged { place: place.clone(), error })?;
    if found > FORMAT {
        return Err(OpenError::Newer { found, known: FORMAT });
    }
    if found < FORMAT {
        return Err(OpenError::Older { found });
    }
    // Every keyspace is made before the format is written: one that is missing has been lost.
    for id in KeyspaceId::ALL {
        if !db.keyspace_exists(id.name()) {
            let place = format!("keyspace `{}`", id.name());
            return Err(OpenError::Damaged { place, error: "missing".to_owned() });
        }
    }
    Ok(FoundFormat::Current)
}

fn open_keyspaces(db: &Database, path: &Path) -> Result<Keyspaces, OpenError> {
    let open =
        |id: KeyspaceId| db.keyspace(id.name(), || options(id)).map_err(|error| not_opened(path, error));
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = KeyspaceId::ALL.map(open);
    Ok(Keyspaces::new([a?, b?, c?, d?, e?, f?, g?, h?, i?, j?, k?, l?, m?, n?, o?]))
}

/// How a keyspace is laid out. The storage engine keeps this with the keyspace; a change takes effect on new
/// ones.
fn options(id: KeyspaceId) -> KeyspaceCreateOptions {
    // The size of a memtable is seen to by `DiskStore::rotate`, since it follows the configuration.
    let options = KeyspaceCreateOptions::default().max_memtable_size(256 << 20);
    match id {
        // Single reads look for what is there.
        KeyspaceId::Items => {
            options.expect_point_read_hits(true).data_block_size_policy(BlockSizePolicy::all(8 << 10))
        }
        // Only ever scanned.
        KeyspaceId::Customers | KeyspaceId::Queues | KeyspaceId::Windows | KeyspaceId::Closings => {
            options.filter_policy(FilterPolicy::disabled())
        }
        // Single reads mostly look for what is not there: a filter for every table, of the last level as
        // well.
        KeyspaceId::Identities | KeyspaceId::Ended(_) => options.expect_point_read_hits(false),
        KeyspaceId::Meta => options,
    }
}

/// The first commit of a new store, number 0.
fn create(db: &Database, path: &Path) -> Result<(Keyspaces, StoreMeta), OpenError> {
    let keyspaces = open_keyspaces(db, path)?;
    let known = StoreMeta { identity: new_identity()?, number: 0, marks: Marks::default() };
    let meta = keyspaces.of(KeyspaceId::Meta);
    let mut batch = db.batch().durability(Some(PersistMode::SyncAll));
    batch.insert(meta, META_FORMAT, rows::number_row(META_FORMAT, FORMAT.into()));
    batch.insert(meta, META_IDENTITY, rows::number_row(META_IDENTITY, known.identity));
    batch.insert(meta, META_MARKS, rows::marks_row(known.number, &known.marks));
    batch.commit().map_err(|e| unwritable("wrote the first commit", path, &e))?;
    Ok((keyspaces, known))
}

fn read_meta(keyspaces: &Keyspaces) -> Result<StoreMeta, OpenError> {
    fn row<T>(
        keyspaces: &Keyspaces,
        key: &[u8],
        read: impl Fn(&[u8]) -> Result<T, String>,
    ) -> Result<T, ReadError> {
        let bytes = keyspaces.get(KeyspaceId::Meta, key)?;
        bytes
            .ok_or_else(|| "missing".to_owned())
            .and_then(|bytes| read(&bytes))
            .map_err(|e| damaged(KeyspaceId::Meta, key, &e))
    }
    let identity = row(keyspaces, META_IDENTITY, |bytes| rows::read_number(META_IDENTITY, bytes))?;
    let (number, marks) = row(keyspaces, META_MARKS, rows::read_marks)?;
    Ok(StoreMeta { identity, number, marks })
}

/// The rows about the buckets, first begun first, and in which epoch each of them is. One that never began is
/// in none.
fn read_buckets(keyspaces: &Keyspaces) -> Result<(Vec<BucketRow>, Epochs), ReadError> {
    let (mut begun, mut epochs) = (Vec::new(), Epochs::default());
    for (bucket, known) in (0..BUCKETS).zip(&mut epochs) {
        let id = KeyspaceId::Ended(bucket);
        let Some(bytes) = keyspaces.get(id, rows::BUCKET)? else { continue };
        let read = rows::read_bucket(bucket, &bytes);
        let (row, epoch) = read.map_err(|e| damaged(id, rows::BUCKET, &e))?;
        begun.push((epoch, row));
        *known = epoch;
    }
    begun.sort_by_key(|(epoch, row)| (*epoch, row.from));
    Ok((begun.into_iter().map(|(_, row)| row).collect(), epochs))
}

fn not_read(id: KeyspaceId, error: &fjall::Error) -> OpenError {
    damaged(id, b"", error).into()
}

/// See the module.
pub(super) struct DiskStore {
    // In this order they are dropped: the lock last.
    keyspaces: Keyspaces,
    db: Database,
    committed: Committed,
    /// Of the last commit.
    number: u64,
    /// Of the last commit.
    marks: Marks,
    budget: DiskBudget,
    /// Bytes written to each keyspace since its memtable was last rotated, about.
    unflushed: [u64; KEYSPACES],
    /// In which epoch each bucket is.
    epochs: Epochs,
    directory: Arc<Directory>,
}

impl DiskStore {
    /// A commit that says what the last one said.
    fn commit_marks(&mut self) -> Result<(), CommitError> {
        let marks = self.marks;
        self.commit(&[CommitGroup { ops: Vec::new(), token: 0, marks, hurried: false }])
    }

    /// Hands the fullest memtable over to be flushed, once all of them together are beyond the budget; not
    /// while two of its keyspace are on their way already.
    fn rotate(&mut self) -> Result<(), CommitError> {
        let Some(id) = self.fullest().filter(|_| self.unflushed() > self.budget.memtables) else {
            return Ok(());
        };
        if self.keyspaces.of(id).sealed_memtable_count() < SEALED_MAX {
            self.rotate_one(id)?;
        }
        Ok(())
    }

    fn unflushed(&self) -> u64 {
        self.unflushed.iter().sum()
    }

    fn fullest(&self) -> Option<KeyspaceId> {
        KeyspaceId::ALL.into_iter().max_by_key(|id| self.unflushed[id.index()])
    }

    fn rotate_one(&mut self, id: KeyspaceId) -> Result<(), CommitError> {
        // A worker that has failed takes nothing over, and what is handed over would wait in vain.
        self.health()?;
        self.unflushed[id.index()] = 0;
        // Not part of the documented interface, but the documented size is fixed for the life of a keyspace.
        let rotated = self.keyspaces.of(id).rotate_memtable();
        rotated.map(drop).map_err(|e| unwritable("rotated a memtable", self.directory.path(), &e))
    }

    /// Waits until the storage engine takes a commit to these keyspaces without a wait of its own.
    fn await_room(&mut self, touched: &[KeyspaceId]) -> Result<(), CommitError> {
        let begun = Instant::now();
        loop {
            self.health()?;
            self.rotate()?;
            let crowded = |id: &&KeyspaceId| {
                let keyspace = self.keyspaces.of(**id);
                keyspace.sealed_memtable_count() > SEALED_MAX || keyspace.tree.l0_run_count() >= L0_MAX
            };
            let large = self.unflushed() > 2 * self.budget.memtables;
            let crowded = touched.iter().find(crowded).copied().or(self.fullest().filter(|_| large));
            let Some(keyspace) = crowded else { return Ok(()) };
            if begun.elapsed() > ROOM_LIMIT {
                return Err(CommitError::Backlog {
                    keyspace: keyspace.name(),
                    waited_s: ROOM_LIMIT.as_secs(),
                });
            }
            std::thread::sleep(ROOM_LOOK);
        }
    }

    /// Removes what a bucket holds on the disk, before the first rows of its next epoch are written.
    ///
    /// Not by `Keyspace::clear`: that takes the tables out of the keyspace, but leaves their files on the
    /// disk until the next start. Dropping them writes nothing to the log, so a replay has nothing to repeat,
    /// and rows written afterwards are as safe as any others. What the memtable holds stays, and what the log
    /// holds comes back after a crash: those rows are of an earlier epoch, which [`super::find`] sees, and go
    /// with the next drop. The row about the bucket, written next, keeps the keyspace from staying empty: the
    /// storage engine frees a log only when each keyspace that had rows in it has a newer table.
    ///
    /// The files go when the last version of the keyspace that knows them does, which is at one of the next
    /// rotations of any memtable. A compaction of this bucket that still runs is waited for; it was filled
    /// too long ago for one to be likely.
    fn empty(&self, bucket: KeyspaceId) -> Result<(), CommitError> {
        let tree = &self.keyspaces.of(bucket).tree;
        if tree.table_count() == 0 {
            return Ok(());
        }
        let dropped = tree.drop_range::<&[u8], _>(..);
        dropped.map_err(|e| unwritable("emptied a bucket", self.directory.path(), &e.into()))
    }
}

impl Store for DiskStore {
    fn commit(&mut self, groups: &[CommitGroup]) -> Result<(), CommitError> {
        let Some(last) = groups.last() else { return Ok(()) };
        let number = self.number + 1;
        let keyspaces = self.keyspaces.clone();
        let mut changes = Changes::new(&keyspaces, number, self.epochs);
        for op in groups.iter().flat_map(|group| &group.ops) {
            changes.apply(op)?;
        }
        changes.put(KeyspaceId::Meta, META_MARKS, rows::marks_row(number, &last.marks));
        self.await_room(&changes.touched().collect::<Vec<_>>())?;
        for bucket in changes.begun() {
            self.empty(*bucket)?;
        }
        let epochs = changes.epochs();
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncData));
        for (id, key, value) in changes.into_rows() {
            let bytes = key.len() + value.as_ref().map_or(0, |v| v.len());
            self.unflushed[id.index()] += bytes as u64 + ROW_OVERHEAD;
            match value {
                Some(value) => batch.insert(keyspaces.of(id), key, value),
                None => batch.remove(keyspaces.of(id), key),
            }
        }
        batch.commit().map_err(|e| unwritable("committed", self.directory.path(), &e))?;
        (self.number, self.marks) = (number, last.marks);
        self.epochs = epochs;
        self.committed.record(number);
        self.rotate()
    }

    fn load(&mut self, load: &Load) -> Result<Loaded, ReadError> {
        self.keyspaces.load(load, &self.epochs)
    }

    fn reader(&self) -> Option<Box<dyn Reader>> {
        Some(Box::new(DiskReader { keyspaces: self.keyspaces.clone(), _directory: self.directory.clone() }))
    }

    fn usage(&self) -> Result<Usage, UsageError> {
        let used = self.db.disk_space().map_err(|e| UsageError(e.to_string()))?;
        let fs = rustix::fs::statvfs(self.directory.path()).map_err(|e| UsageError(e.to_string()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(fs.f_frsize);
        Ok(Usage { used, free: bytes(fs.f_bavail), total: bytes(fs.f_blocks) })
    }

    fn health(&self) -> Result<(), CommitError> {
        // Writes what is buffered, which is nothing between commits; but first it says whether a worker has
        // failed.
        let healthy = self.db.persist(PersistMode::Buffer);
        healthy.map_err(|e| unwritable("wrote what is in memory", self.directory.path(), &e))
    }

    fn begin_reclaim(&mut self) -> Result<Option<ReclaimJob>, CommitError> {
        // Behind these commits would wait.
        let crowded = |id: KeyspaceId| self.keyspaces.of(id).sealed_memtable_count() >= SEALED_MAX;
        if KeyspaceId::ALL.into_iter().any(crowded) {
            return Ok(None);
        }
        // The storage engine drops what is older than its last commit: so that one must not be what was
        // deleted.
        self.commit_marks()?;
        for id in KeyspaceId::ALL {
            self.rotate_one(id)?;
        }
        Ok(Some(reclaim::job(self.keyspaces.clone(), self.directory.clone())))
    }

    fn end_reclaim(&mut self) -> Result<(), CommitError> {
        // Files that no version of a keyspace knows any more go when a memtable that holds something is
        // rotated.
        self.commit_marks()?;
        self.rotate_one(KeyspaceId::Meta)
    }

    fn group_limit(&self) -> (usize, u64) {
        // A memtable grows by a whole group at a time.
        (65_536, self.budget.memtables)
    }

    fn close(self: Box<Self>) -> Result<(), CloseError> {
        self.db.persist(PersistMode::SyncAll).map_err(|e| CloseError::Sync(e.to_string()))?;
        self.committed.sync().map_err(|e| CloseError::Sync(e.to_string()))
    }
}

/// Reads beside the thread that owns the store; keeps the directory locked while it does.
struct DiskReader {
    keyspaces: Keyspaces,
    _directory: Arc<Directory>,
}

impl Reader for DiskReader {
    fn contents(&self, wanted: &super::WantedContents) -> Result<Option<super::Contents>, ReadError> {
        self.keyspaces.contents(wanted)
    }
}

/// For tests of what a damaged or foreign store does: writes a row past all rules.
#[cfg(test)]
pub(super) fn write_raw(path: &Path, id: KeyspaceId, key: &[u8], value: Option<&[u8]>) {
    let directory = Directory::open(path).unwrap();
    let db = open_database(&directory.data(), DiskBudget::of(0)).unwrap();
    let keyspaces = open_keyspaces(&db, &directory.data()).unwrap();
    let mut batch = db.batch().durability(Some(PersistMode::SyncAll));
    match value {
        Some(value) => batch.insert(keyspaces.of(id), key, fjall::Slice::from(value)),
        None => batch.remove(keyspaces.of(id), key),
    }
    batch.commit().unwrap();
}
