//! The keyspaces on the disk, as the storage engine provides them.
//!
//! Scans start at the given key, never at the beginning of a keyspace: rows deleted there lately cost time
//! until a compaction removes them.

use super::keyspace::{KeyspaceId, KEYSPACES};
use super::reading::damaged;
use super::row_reads::{Row, RowBounds, RowBytes, Rows};
use super::{CommitError, ReadError};
use fjall::{Database, Iter, Keyspace, Readable, Snapshot};
use std::io;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Free space below which an unexplained failure of the storage engine is attributed to a full disk. The
/// engine writes files of up to 64 MiB.
const NO_ROOM: u64 = 64 << 20;

/// Errors of the system that mean that a file was altered or lost.
pub(crate) const DAMAGE: [io::ErrorKind; 3] =
    [io::ErrorKind::NotFound, io::ErrorKind::UnexpectedEof, io::ErrorKind::InvalidData];

/// Handles of all keyspaces; cheap to clone, readable from several threads.
#[derive(Clone)]
pub(crate) struct Keyspaces {
    /// In the order of [`KeyspaceId::ALL`].
    all: [Keyspace; KEYSPACES],
    /// Reads see this snapshot; without one, each read sees the state at its beginning.
    moment: Option<Snapshot>,
    /// Some window has closed early and may still have members.
    closings: Arc<AtomicBool>,
    /// Held during a commit, and while a snapshot is taken; see [`Keyspaces::between_commits`].
    commits: Arc<Mutex<()>>,
    /// The answer of [`Rows::has_losses`].
    losses: bool,
}

impl Keyspaces {
    /// Wraps handles in the order of [`KeyspaceId::ALL`].
    ///
    /// # Errors
    ///
    /// Those of the storage engine.
    pub(crate) fn new(all: [Keyspace; KEYSPACES]) -> Result<Self, ReadError> {
        let id = KeyspaceId::Closings;
        let none = all[id.index()].is_empty().map_err(|e| unreadable(id, b"", &e))?;
        let (closings, commits) = (Arc::new(AtomicBool::new(!none)), Arc::default());
        Ok(Keyspaces { all, moment: None, closings, commits, losses: false })
    }

    /// The same, of a store in which a loss was accepted or not.
    pub(crate) fn with_losses(self, losses: bool) -> Self {
        Keyspaces { losses, ..self }
    }

    /// A snapshot of the present state, for reads concurrent with writes. The storage engine keeps the rows
    /// of the snapshot while it exists.
    pub(crate) fn frozen(&self, db: &Database) -> Self {
        let _whole = self.between_commits();
        Keyspaces { moment: Some(db.snapshot()), ..self.clone() }
    }

    /// While the guard is held, no other thread makes a commit or takes a snapshot. The storage engine makes
    /// flushed or compacted rows visible up to an internal number (`lsm_tree::SuperVersions`), also where
    /// that number is above the one of a commit that is being written to memtables. Without this lock a
    /// snapshot would see a part of that commit.
    pub(crate) fn between_commits(&self) -> MutexGuard<'_, ()> {
        // The lock protects no data that a panic could leave inconsistent.
        self.commits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle of one keyspace.
    pub(crate) fn of(&self, id: KeyspaceId) -> &Keyspace {
        &self.all[id.index()]
    }

    /// The rows in order of key. The bounds must not be inverted: the storage engine treats that as a fault.
    pub(crate) fn rows<K: AsRef<[u8]>>(&self, id: KeyspaceId, bounds: impl RangeBounds<K>) -> Iter {
        match &self.moment {
            Some(moment) => moment.range(self.of(id), bounds),
            None => self.of(id).range(bounds),
        }
    }
}

impl Rows for Keyspaces {
    fn get(&self, id: KeyspaceId, key: &[u8]) -> Result<Option<RowBytes>, ReadError> {
        let got = match &self.moment {
            Some(moment) => moment.get(self.of(id), key),
            None => self.of(id).get(key),
        };
        got.map_err(|e| unreadable(id, key, &e))
    }

    fn range(
        &self,
        id: KeyspaceId,
        (start, end): RowBounds,
        _bodies: u64,
    ) -> impl Iterator<Item = Result<Row, ReadError>> {
        let rows = (start < end).then(|| self.rows(id, start.clone()..end));
        let mut last = RowBytes::from(start);
        rows.into_iter().flatten().map(move |row| {
            let (key, value) = row.into_inner().map_err(|e| unreadable(id, &last, &e))?;
            last = key.clone();
            Ok((key, value))
        })
    }

    fn all(&self, id: KeyspaceId) -> impl Iterator<Item = Result<Row, ReadError>> {
        let rows = self.rows::<&[u8]>(id, ..);
        rows.map(move |row| row.into_inner().map_err(|e| unreadable(id, b"", &e)))
    }

    fn has_closings(&self) -> bool {
        self.closings.load(Ordering::Relaxed)
    }

    fn note_closing(&self) {
        self.closings.store(true, Ordering::Relaxed);
    }

    fn has_losses(&self) -> bool {
        self.losses
    }
}

/// Classifies a failed read: damage, unless the system reports a fault of its own.
pub(crate) fn unreadable(id: KeyspaceId, near: &[u8], error: &fjall::Error) -> ReadError {
    match io_error(error) {
        Some(io) if !DAMAGE.contains(&io.kind()) => ReadError::Engine(io.to_string()),
        _ => damaged(id, near, &format_args!("at or behind this key: {error}")),
    }
}

/// Classifies a failed write to `path` or to a file below it.
pub(crate) fn unwritable(action: &'static str, path: &Path, error: &fjall::Error) -> CommitError {
    let free = free_bytes(path).unwrap_or(u64::MAX);
    let full = match io_error(error).map(io::Error::kind) {
        Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => true,
        Some(_) => false,
        // A background worker failed earlier, and only the log contains the reason.
        None => matches!(error, fjall::Error::Poisoned) && free < NO_ROOM,
    };
    let error = if matches!(error, fjall::Error::Poisoned) {
        "an earlier write to a table or to the log failed; see the daemon's log".to_owned()
    } else {
        error.to_string()
    };
    if full {
        CommitError::DiskFull { free, error }
    } else {
        CommitError::Engine { action, error }
    }
}

/// The system's error inside an error of the storage engine.
pub(crate) fn io_error(error: &fjall::Error) -> Option<&io::Error> {
    if let fjall::Error::Io(io) | fjall::Error::Storage(fjall::LsmError::Io(io)) = error {
        return Some(io);
    }
    None
}

/// Free bytes on the file system of `path`, for an unprivileged user.
fn free_bytes(path: &Path) -> Option<u64> {
    rustix::fs::statvfs(path).ok().map(|fs| fs.f_bavail.saturating_mul(fs.f_frsize))
}
