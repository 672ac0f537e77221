//! How the disk store's files are opened and made: the database, its keyspaces, and the rows that identify
//! them. Deliberately absent: the meaning of item rows.

use super::database::{io_error, unwritable, Keyspaces, DAMAGE};
use super::directory::Directory;
use super::keyspace::KeyspaceId;
use super::reading::damaged;
use super::row_reads::Rows;
use super::rows::{self, FORMAT, META_FORMAT, META_IDENTITY, META_IMPORTING, META_MARKS};
use super::{logs, new_identity, OpenError, ReadError};
use fjall::compaction::Leveled;
use fjall::config::{BlockSizePolicy, FilterPolicy};
use fjall::{Database, KeyspaceCreateOptions, PersistMode};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tidegate_types::event::Marks;

/// Size of all logs of the storage engine together, in bytes. This is the engine's minimum; a start seldom
/// reads more than twice as much (see `DiskStore::write`).
const JOURNALS: u64 = 64 << 20;
/// Threads that flush and compact. The first thread never compacts, and passes on its jobs without a pause
/// while all other threads compact: with two threads it would use a whole core for as long as any compaction
/// runs. With one thread a flush waits behind a compaction, and commits wait behind the flush (see
/// `docs/DECISIONS.md`).
const WORKERS: usize = 3;
/// Files kept open, far below the usual limit of 1,024 for a process.
const OPEN_FILES: usize = 200;
/// Tables of the first level that are merged together. The storage engine slows commits down at 20 tables.
const MERGED_TABLES: u8 = 8;
/// The share of `limits.memory` for the storage engine, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskBudget {
    /// Cache of blocks that were read.
    pub(crate) cache: u64,
    /// Rows of all keyspaces that no table contains yet. When rows arrive fast, as much again is being
    /// flushed. At twice this size without a flush, commits wait.
    pub(crate) memtables: u64,
}

impl DiskBudget {
    /// A quarter of the limit: one part for the cache, three parts for memtables, half of which are being
    /// flushed. Larger memtables make fewer tables to compact.
    pub(crate) fn of(memory_limit: u64) -> Self {
        let part = memory_limit / 16;
        let memtables = part / 2 * 3;
        DiskBudget { cache: part.clamp(1 << 20, 256 << 20), memtables: memtables.clamp(1 << 20, 32 << 20) }
    }
}

/// Refuses a store in which durable commits are missing.
pub(crate) fn refuse_loss(directory: &Directory, number: u64, noted: Option<u64>) -> Result<(), OpenError> {
    let Some(noted) = noted.filter(|noted| *noted > number) else { return Ok(()) };
    Err(OpenError::Damaged {
        place: format!("{}/*.jnl", directory.data().display()),
        error: format!(
            "commits {} to {noted} had been made durable and are gone; restore the files, or start with \
             --accept-loss to go on without them",
            number + 1,
        ),
    })
}

/// Refuses a store whose import was interrupted.
pub(crate) fn refuse_incomplete(directory: &Directory, keyspaces: &Keyspaces) -> Result<(), OpenError> {
    match keyspaces.get(KeyspaceId::Meta, META_IMPORTING)? {
        Some(_) => Err(OpenError::Incomplete { path: directory.path().to_owned() }),
        None => Ok(()),
    }
}

/// An existing store, opened for reading, whatever its rows contain.
pub(crate) struct PresentStore {
    // The fields are dropped in this order: the lock last.
    pub(crate) keyspaces: Keyspaces,
    pub(crate) db: Database,
    pub(crate) directory: Directory,
}

/// Opens an existing store, and writes no row. As at every start, an incomplete end of the log is cut off.
///
/// # Errors
///
/// As [`super::open`]; [`OpenError::Absent`], [`OpenError::Foreign`]. Except for the format and the mark of
/// an import, no rows are read.
pub(crate) fn open_present(path: &Path, memory_limit: u64) -> Result<PresentStore, OpenError> {
    let directory = Directory::existing(path)?;
    logs::check(&directory, false)?;
    let absent = || OpenError::Absent { path: directory.path().to_owned() };
    let db = open_database(&directory.data(), DiskBudget::of(memory_limit))?;
    let FoundFormat::Current = read_format(&db)? else { return Err(absent()) };
    let keyspaces = open_keyspaces(&db, &directory.data())?.with_losses(directory.has_losses()?);
    refuse_incomplete(&directory, &keyspaces)?;
    Ok(PresentStore { keyspaces, db, directory })
}

/// The rows of the keyspace `meta`.
pub(crate) struct StoreMeta {
    pub(crate) identity: u64,
    /// Number of the last commit.
    pub(crate) number: u64,
    pub(crate) marks: Marks,
}

/// Makes a new store in a temporary directory and renames it when it is complete: the storage engine cannot
/// open a database that it has made only in part. A leftover of an earlier start contains no data and is
/// removed.
pub(crate) fn establish(
    directory: &Directory,
    budget: DiskBudget,
    identity: Option<u64>,
) -> Result<(), OpenError> {
    let (path, new) = (directory.data(), directory.path().join("db.new"));
    match fs::remove_dir_all(&new) {
        Ok(()) => tracing::info!(path = %new.display(), "removed; an earlier first start was interrupted"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(OpenError::io("remove", &new)(error)),
    }
    let db = open_database(&new, budget)?;
    drop((create(&db, &new, identity)?, db));
    fs::rename(&new, &path).map_err(OpenError::io("rename", &new))?;
    directory.sync()
}

pub(crate) fn open_database(path: &Path, budget: DiskBudget) -> Result<Database, OpenError> {
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

/// The content of an opened database.
pub(crate) enum FoundFormat {
    /// A store in the current format.
    Current,
    /// There is no store.
    None,
}

pub(crate) fn read_format(db: &Database) -> Result<FoundFormat, OpenError> {
    let place = "keyspace `meta`, key `format`".to_owned();
    let row = if db.keyspace_exists(KeyspaceId::Meta.name()) {
        let meta = db.keyspace(KeyspaceId::Meta.name(), || options(KeyspaceId::Meta));
        meta.and_then(|meta| meta.get(META_FORMAT)).map_err(|e| not_read(KeyspaceId::Meta, &e))?
    } else {
        None
    };
    let Some(row) = row else {
        // A first start may have been interrupted. But where there are items, a format was written.
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
    // All keyspaces are made before the format is written: a missing one was lost.
    for id in KeyspaceId::ALL {
        if !db.keyspace_exists(id.name()) {
            let place = format!("keyspace `{}`", id.name());
            return Err(OpenError::Damaged { place, error: "missing".to_owned() });
        }
    }
    Ok(FoundFormat::Current)
}

pub(crate) fn open_keyspaces(db: &Database, path: &Path) -> Result<Keyspaces, OpenError> {
    let open =
        |id: KeyspaceId| db.keyspace(id.name(), || options(id)).map_err(|error| not_opened(path, error));
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = KeyspaceId::ALL.map(open);
    Ok(Keyspaces::new([a?, b?, c?, d?, e?, f?, g?, h?, i?, j?, k?, l?, m?, n?, o?])?)
}

/// Layout of a keyspace. The storage engine stores it with the keyspace; a change affects new keyspaces only.
fn options(id: KeyspaceId) -> KeyspaceCreateOptions {
    // `DiskStore::rotate` limits the size of a memtable, since it follows the configuration.
    let options = KeyspaceCreateOptions::default()
        .max_memtable_size(256 << 20)
        .compaction_strategy(Arc::new(Leveled::default().with_l0_threshold(MERGED_TABLES)));
    match id {
        // Single reads usually find their row.
        KeyspaceId::Items => {
            options.expect_point_read_hits(true).data_block_size_policy(BlockSizePolicy::all(8 << 10))
        }
        // These keyspaces are only scanned.
        KeyspaceId::Customers | KeyspaceId::Queues | KeyspaceId::Windows => {
            options.filter_policy(FilterPolicy::disabled())
        }
        // Single reads usually find nothing: each table gets a filter, also on the last level.
        KeyspaceId::Identities | KeyspaceId::Closings | KeyspaceId::Ended(_) => {
            options.expect_point_read_hits(false)
        }
        KeyspaceId::Meta => options,
    }
}

/// The first commit of a new store, number 0. With an `identity` it is that of a store to be imported, and
/// marked as incomplete.
pub(crate) fn create(
    db: &Database,
    path: &Path,
    identity: Option<u64>,
) -> Result<(Keyspaces, StoreMeta), OpenError> {
    let keyspaces = open_keyspaces(db, path)?;
    let known =
        StoreMeta { identity: identity.map_or_else(new_identity, Ok)?, number: 0, marks: Marks::default() };
    let meta = keyspaces.of(KeyspaceId::Meta);
    let mut batch = db.batch().durability(Some(PersistMode::SyncAll));
    batch.insert(meta, META_FORMAT, rows::number_row(META_FORMAT, FORMAT.into()));
    batch.insert(meta, META_IDENTITY, rows::number_row(META_IDENTITY, known.identity));
    batch.insert(meta, META_MARKS, rows::marks_row(known.number, &known.marks));
    if identity.is_some() {
        batch.insert(meta, META_IMPORTING, rows::number_row(META_IMPORTING, known.identity));
    }
    batch.commit().map_err(|e| unwritable("wrote the first commit", path, &e))?;
    Ok((keyspaces, known))
}

pub(crate) fn read_meta(keyspaces: &Keyspaces) -> Result<StoreMeta, OpenError> {
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

fn not_read(id: KeyspaceId, error: &fjall::Error) -> OpenError {
    damaged(id, b"", error).into()
}
