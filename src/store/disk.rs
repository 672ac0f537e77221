//! The disk store: one fjall database, with one batch and one sync for each call of commit.
//!
//! Every commit has a number, written in the same batch as its rows. Deliberately absent: repair. A row that
//! does not read as it was written is reported by name, and stays.

use super::changes::Changes;
use super::database::{unwritable, Keyspaces};
use super::directory::{Committed, Directory};
use super::ended::Epochs;
use super::export::Exporter;
use super::keyspace::{KeyspaceId, KEYSPACES};
use super::opening::{
    create, establish, open_database, open_keyspaces, read_format, read_meta, refuse_incomplete, refuse_loss,
    DiskBudget, FoundFormat, StoreMeta,
};
use super::reading::view;
use super::row_reads::Rows;
use super::rows::{self, META_IMPORTING, META_MARKS};
use super::{find, load, logs, reclaim, recount};
use super::{
    CloseError, CommitError, CommitGroup, LookJob, OpenError, OpenStore, ReadError, Reader, ReclaimJob,
    Store, Usage, UsageError,
};
use fjall::{AbstractTree, Database, PersistMode};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_types::event::{Load, Loaded, Marks, Opened, Range, RangeRows, Scan};
use tidegate_types::{Ended, Identity, Key};

/// Memory that a row costs in a memtable in addition to key and value, in bytes, approximate.
const ROW_OVERHEAD: u64 = 128;

/// A commit is made while at most this many memtables of one keyspace are being flushed. With 4 the storage
/// engine waits (`Keyspace::local_backpressure`, without a bound and without a check of its own health), and
/// a worker may add one in the same time.
const SEALED_MAX: usize = 2;
/// A commit is made while the first level of each keyspace has fewer tables than this. The storage engine
/// slows down at 20 and waits at 30, in the same way.
const L0_MAX: usize = 20;
/// Logs of the storage engine, with the one in use, that it gets by with: while its oldest log waits for
/// memtables to be flushed, up to two more come.
const LOGS_MAX: usize = 3;
/// Longest wait for room in a memtable. It is below [`super::thread::STORE_CALL_LIMIT`], so that the error
/// names this wait and not a call without an answer.
const ROOM_LIMIT: Duration = Duration::from_secs(45);
/// Interval between two checks: the storage engine offers no event to wait for.
const ROOM_LOOK: Duration = Duration::from_millis(2);
/// A step of a scan ends after this time, because others wait for the same thread.
const LOOK_WITHIN: Duration = Duration::from_millis(5);

/// Opens the store in `path`, and makes it first if there is none.
///
/// # Errors
///
/// See [`super::open`].
pub(crate) fn open(
    path: &Path,
    memory_limit: u64,
    accept_loss: bool,
    wall: u64,
) -> Result<OpenStore, OpenError> {
    let directory = Directory::open(path)?;
    let OpenDisk { store, opened, identity } =
        open_in(directory, memory_limit, accept_loss, IfAbsent::Make(None), wall)?;
    Ok(OpenStore { store: Box::new(store), opened, identity, takeover: None, epoch: None })
}

/// What to do if the store does not exist.
#[derive(Clone, Copy, Debug)]
pub(crate) enum IfAbsent {
    /// Refuse to open it.
    Refuse,
    /// Make it: a new one, or for an import one with this identity, which is incomplete until
    /// [`DiskStore::commit_groups`] says otherwise.
    Make(Option<u64>),
}

/// An opened disk store, with the state read from it.
pub(crate) struct OpenDisk {
    pub(crate) store: DiskStore,
    pub(crate) opened: Opened,
    /// Same as [`OpenStore::identity`].
    pub(crate) identity: u64,
}

/// Opens the store in a directory that this process has locked.
///
/// # Errors
///
/// See [`super::open`]; [`OpenError::Absent`].
pub(crate) fn open_in(
    directory: Directory,
    memory_limit: u64,
    accept_loss: bool,
    if_absent: IfAbsent,
    wall: u64,
) -> Result<OpenDisk, OpenError> {
    let budget = DiskBudget::of(memory_limit);
    // Before the storage engine opens the logs: it cuts off what it cannot read.
    let accepted = logs::check(&directory, accept_loss)?;
    if !directory.holds_store()? {
        match if_absent {
            IfAbsent::Refuse => return Err(OpenError::Absent { path: directory.path().to_owned() }),
            IfAbsent::Make(identity) => establish(&directory, budget, identity)?,
        }
    }
    let db = open_database(&directory.data(), budget)?;
    let (keyspaces, known) = match (read_format(&db)?, if_absent) {
        (FoundFormat::Current, _) => {
            let keyspaces = open_keyspaces(&db, &directory.data())?;
            // An import has just made the store itself.
            if !matches!(if_absent, IfAbsent::Make(Some(_))) {
                refuse_incomplete(&directory, &keyspaces)?;
            }
            let known = read_meta(&keyspaces)?;
            (keyspaces, known)
        }
        (FoundFormat::None, IfAbsent::Make(identity)) => create(&db, &directory.data(), identity)?,
        (FoundFormat::None, IfAbsent::Refuse) => {
            return Err(OpenError::Absent { path: directory.path().to_owned() });
        }
    };
    let StoreMeta { identity, number: found, marks } = known;
    let (mut committed, noted) = Committed::open(&directory, identity)?;
    match refuse_loss(&directory, found, noted) {
        Err(_) if accept_loss => {
            recount::mark(&directory)?;
            let last = noted.unwrap_or(found);
            tracing::warn!(first = found + 1, last, "durable commits are missing: --accept-loss allows it");
        }
        verdict => verdict?,
    }
    // The number of a lost commit is never given out again: its gap would hide a later loss.
    let number = found.max(accepted).max(noted.unwrap_or(0));
    if number > found {
        logs::note_accepted(&directory, &[(found + 1, number)])?;
    }
    committed.record(found);
    committed.sync().map_err(OpenError::io("sync", &directory.path().join("COMMITTED")))?;
    directory.sync()?;
    // With the option, also a store in which an earlier build has accepted a loss.
    let is_recounted = recount::is_marked(&directory)? || accept_loss && directory.has_losses()?;
    let keyspaces = keyspaces.with_losses(directory.has_losses()?);
    let (mut opened, epochs) = load::opened(&keyspaces, marks, wall)?;
    // Rows restored from the log count as well. Their size is unknown; half of the budget is a fair guess.
    let unflushed = KeyspaceId::ALL.map(|_| budget.memtables / 2 / KeyspaceId::ALL.len() as u64);
    let directory = Arc::new(directory);
    let logs_tried = 0;
    let mut store = DiskStore {
        keyspaces,
        db,
        committed,
        number,
        marks,
        budget,
        unflushed,
        logs_tried,
        epochs,
        directory,
    };
    if is_recounted {
        opened = store.recount(opened, wall)?;
    } else if number > found {
        // Makes the gap durable: later losses are behind it.
        store.commit_marks()?;
    }
    Ok(OpenDisk { store, opened, identity })
}

/// See the module.
pub(crate) struct DiskStore {
    // The fields are dropped in this order: the lock last.
    keyspaces: Keyspaces,
    db: Database,
    committed: Committed,
    /// Number of the last commit.
    number: u64,
    /// The marks of the last commit.
    marks: Marks,
    budget: DiskBudget,
    /// Bytes written to each keyspace since its last memtable rotation, approximate.
    unflushed: [u64; KEYSPACES],
    /// Number of logs at the last commit that was to free some, or fewer if some went since.
    logs_tried: usize,
    /// The current epoch of each bucket.
    epochs: Epochs,
    directory: Arc<Directory>,
}

impl DiskStore {
    /// Commits the marks of the last commit again.
    fn commit_marks(&mut self) -> Result<(), CommitError> {
        self.commit(&[self.last_marks()])
    }

    /// Counts the queues anew after an accepted loss, and makes the gap durable with their rows. Returns the
    /// state read again. `opened`: the state as it was read; `wall`: as for [`super::open`]. Where an item
    /// cannot be read, what can be read is to leave all the same: the counts stay until another start.
    fn recount(&mut self, opened: Opened, wall: u64) -> Result<Opened, OpenError> {
        let recounted = match recount::recount(&self.keyspaces, &opened.queues, self.marks) {
            Ok(recounted) => recounted,
            Err(error) => {
                tracing::warn!(%error, "a loss was accepted, and the items cannot be counted");
                self.commit_marks()?;
                return Ok(opened);
            }
        };
        let (queues, marks) = (recounted.ops.len(), recounted.marks);
        self.commit(&[CommitGroup { ops: recounted.ops, token: 0, marks, hurried: false }])?;
        recount::unmark(&self.directory)?;
        tracing::warn!(queues, "a loss was accepted: all items were counted, and these queues have new rows");
        Ok(load::opened(&self.keyspaces, marks, wall)?.0)
    }

    fn last_marks(&self) -> CommitGroup {
        CommitGroup { ops: Vec::new(), token: 0, marks: self.marks, hurried: false }
    }

    /// The handle of a keyspace.
    pub(crate) fn keyspace(&self, id: KeyspaceId) -> &fjall::Keyspace {
        self.keyspaces.of(id)
    }

    /// Whether this queue contains an item with this key.
    ///
    /// # Errors
    ///
    /// As [`Store::load`].
    pub(crate) fn has_item(&self, queue: &str, key: Key) -> Result<bool, ReadError> {
        let row = rows::item_key(queue, key)?;
        let Some(bytes) = self.keyspaces.get(KeyspaceId::Items, &row)? else { return Ok(false) };
        view(&row, &bytes).map(|_| true)
    }

    /// How the item with this identity ended, if this bucket contains it.
    ///
    /// # Errors
    ///
    /// As [`Store::load`].
    pub(crate) fn end_of(&self, identity: Identity, bucket: u8) -> Result<Option<Ended>, ReadError> {
        let Some(id) = KeyspaceId::ended(bucket) else { return Ok(None) };
        let bytes = self.keyspaces.get(id, &identity.to_bytes())?;
        find::read_ended(identity, &self.epochs, bucket, bytes)
    }

    /// As [`Store::commit`]. `ends_import`: with these groups the imported store is complete.
    ///
    /// # Errors
    ///
    /// As [`Store::commit`].
    pub(crate) fn commit_groups(
        &mut self,
        groups: &[CommitGroup],
        ends_import: bool,
    ) -> Result<(), CommitError> {
        let frees_logs = self.has_too_many_logs();
        self.write(groups, ends_import, frees_logs)
    }

    /// As [`DiskStore::commit_groups`]. `frees_logs`: every keyspace gets a newer table.
    ///
    /// The storage engine deletes a log only when each keyspace with rows in that log has a table with a row
    /// at least as new. A compaction that drops the newest row, a deletion, takes this away again. A
    /// keyspace that then goes idle would keep that log, and all later ones with it, until the next start. A
    /// deletion of a row that does not exist makes a table, and changes nothing else.
    fn write(
        &mut self,
        groups: &[CommitGroup],
        ends_import: bool,
        frees_logs: bool,
    ) -> Result<(), CommitError> {
        let Some(last) = groups.last() else { return Ok(()) };
        let number = self.number + 1;
        let keyspaces = self.keyspaces.clone();
        let mut changes = Changes::new(&keyspaces, number, self.epochs);
        changes.apply(groups.iter().flat_map(|group| &group.ops))?;
        changes.put(KeyspaceId::Meta, META_MARKS, rows::marks_row(number, &last.marks));
        if ends_import {
            changes.remove(KeyspaceId::Meta, META_IMPORTING);
        }
        changes.forget_closed()?;
        if frees_logs {
            KeyspaceId::ALL.into_iter().for_each(|id| changes.remove(id, rows::NO_ROW));
        }
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
        let whole = keyspaces.between_commits();
        let committed = batch.commit();
        drop(whole);
        committed.map_err(|e| unwritable("committed", self.directory.path(), &e))?;
        (self.number, self.marks) = (number, last.marks);
        self.epochs = epochs;
        self.committed.record(number);
        if frees_logs {
            return self.rotate_all();
        }
        self.rotate()
    }

    /// Whether the next commit should free logs. It is tried once for each log above [`LOGS_MAX`], since more
    /// attempts do not help where the disk is slow, and only while no commit has to wait for it.
    fn has_too_many_logs(&mut self) -> bool {
        let logs = self.db.journal_count();
        self.logs_tried = self.logs_tried.min(logs);
        if logs <= self.logs_tried.max(LOGS_MAX) || !self.has_room() {
            return false;
        }
        tracing::debug!(logs, "every keyspace is flushed, so that logs can go");
        self.logs_tried = logs;
        true
    }

    /// Whether each keyspace can take one more memtable without a wait of later commits.
    fn has_room(&self) -> bool {
        KeyspaceId::ALL.into_iter().all(|id| {
            let keyspace = self.keyspaces.of(id);
            keyspace.sealed_memtable_count() < SEALED_MAX && keyspace.tree.l0_run_count() < L0_MAX
        })
    }

    /// Flushes all memtables to tables, and waits until this is done.
    ///
    /// # Errors
    ///
    /// As [`Store::commit`].
    pub(crate) fn flush(&mut self) -> Result<(), CommitError> {
        self.commit_marks()?;
        self.rotate_all()?;
        let begun = Instant::now();
        for id in KeyspaceId::ALL {
            while self.keyspaces.of(id).sealed_memtable_count() > 0 {
                self.health()?;
                let waited = begun.elapsed();
                if waited > ROOM_LIMIT {
                    return Err(CommitError::Backlog { keyspace: id.name(), waited_s: waited.as_secs() });
                }
                std::thread::sleep(ROOM_LOOK);
            }
        }
        Ok(())
    }

    /// Rotates the fullest memtable once all memtables together exceed the budget, unless two memtables of
    /// its keyspace are already being flushed.
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

    fn rotate_all(&mut self) -> Result<(), CommitError> {
        KeyspaceId::ALL.into_iter().try_for_each(|id| self.rotate_one(id))
    }

    fn rotate_one(&mut self, id: KeyspaceId) -> Result<(), CommitError> {
        // A failed worker flushes nothing, so a rotated memtable would wait without end.
        self.health()?;
        self.unflushed[id.index()] = 0;
        // Not part of the documented interface, but the documented size is fixed when a keyspace is made.
        let rotated = self.keyspaces.of(id).rotate_memtable();
        rotated.map(drop).map_err(|e| unwritable("rotated a memtable", self.directory.path(), &e))
    }

    /// Waits until the storage engine accepts a commit to these keyspaces without waiting itself.
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

    /// Removes the tables of a bucket before the first rows of its next epoch are written.
    ///
    /// This does not use `Keyspace::clear`, which removes the tables from the keyspace but leaves their files
    /// on the disk until the next start. Dropping tables writes nothing to the log, so a replay repeats
    /// nothing, and later rows are as safe as any others. Rows in the memtable stay, and rows in the log come
    /// back after a crash: they are of an earlier epoch, which [`super::find`] checks, and go with the next
    /// drop. The row about the bucket, which is written next, keeps the keyspace from staying empty: the
    /// storage engine frees a log only when each keyspace with rows in that log has a newer table.
    ///
    /// The files are deleted when the last version of the keyspace that refers to them is dropped, which
    /// happens at one of the next rotations of any memtable. The call waits for a running compaction of this
    /// bucket; one is unlikely, as the bucket was filled long ago.
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
        self.commit_groups(groups, false)
    }

    fn load(&mut self, load: &Load) -> Result<Loaded, ReadError> {
        load::load(&self.keyspaces, load, &self.epochs)
    }

    fn reader(&self) -> Option<Box<dyn Reader>> {
        Some(Box::new(DiskReader { keyspaces: self.keyspaces.clone(), _directory: self.directory.clone() }))
    }

    fn look(&self, scan: &Scan) -> Option<LookJob> {
        let reader =
            DiskReader { keyspaces: self.keyspaces.frozen(&self.db), _directory: self.directory.clone() };
        let scan = scan.clone();
        Some(Box::new(move || {
            let until = Instant::now() + LOOK_WITHIN;
            load::look(&reader.keyspaces, &scan, || Instant::now() >= until)
        }))
    }

    fn exporter(&self) -> Option<Exporter> {
        Some(Exporter::new(&self.keyspaces, &self.db, &self.directory))
    }

    fn usage(&self) -> Result<Usage, UsageError> {
        let used = self.db.disk_space().map_err(|e| UsageError(e.to_string()))?;
        let fs = rustix::fs::statvfs(self.directory.path()).map_err(|e| UsageError(e.to_string()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(fs.f_frsize);
        Ok(Usage { used, free: bytes(fs.f_bavail), total: bytes(fs.f_blocks) })
    }

    fn health(&self) -> Result<(), CommitError> {
        // This writes buffered rows, of which there are none between commits. But it first reports whether a
        // worker has failed.
        let healthy = self.db.persist(PersistMode::Buffer);
        healthy.map_err(|e| unwritable("wrote what is in memory", self.directory.path(), &e))
    }

    fn begin_reclaim(&mut self) -> Result<Option<ReclaimJob>, CommitError> {
        if !self.has_room() {
            return Ok(None);
        }
        // The storage engine drops versions older than its last commit. So the last commit must not be the
        // one that deleted the rows. Logs count as used space, too.
        self.write(&[self.last_marks()], false, true)?;
        Ok(Some(reclaim::job(self.keyspaces.clone(), self.directory.clone())))
    }

    fn end_reclaim(&mut self) -> Result<(), CommitError> {
        // Obsolete files are deleted when a memtable that is not empty is rotated.
        self.commit_marks()?;
        self.rotate_one(KeyspaceId::Meta)
    }

    fn group_limit(&self) -> (usize, u64) {
        // A memtable grows by whole groups.
        (65_536, self.budget.memtables)
    }

    fn close(self: Box<Self>) -> Result<(), CloseError> {
        self.db.persist(PersistMode::SyncAll).map_err(|e| CloseError::Sync(e.to_string()))?;
        self.committed.sync().map_err(|e| CloseError::Sync(e.to_string()))
    }
}

/// Reads concurrently with the thread that owns the store; keeps the directory locked while it exists.
struct DiskReader {
    keyspaces: Keyspaces,
    _directory: Arc<Directory>,
}

impl Reader for DiskReader {
    fn contents(&self, wanted: &super::WantedContents) -> Result<Option<super::Contents>, ReadError> {
        Ok(load::contents(&self.keyspaces, wanted)?.all())
    }

    fn ranges(&self, ranges: &[Range], max_rows: usize, max_bytes: u64) -> Result<Vec<RangeRows>, ReadError> {
        load::read_ranges(&self.keyspaces, ranges, max_rows, max_bytes)
    }
}

/// Writes a row past all checks, for tests of damaged and foreign stores.
#[cfg(test)]
pub(crate) fn write_raw(path: &Path, id: KeyspaceId, key: &[u8], value: Option<&[u8]>) {
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
