//! The keyspaces on the disk, as the storage engine has them.
//!
//! Scans start at the key they are given, never at the beginning: what was deleted there lately still costs
//! time until it is compacted away.

use super::keyspace::{KeyspaceId, KEYSPACES};
use super::load::damaged;
use super::row_reads::{Row, RowBounds, RowBytes, Rows};
use super::{CommitError, ReadError};
use fjall::{Database, Iter, Keyspace, Readable, Snapshot};
use std::io;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Free space below which a failure of the storage engine that names no cause is put down to it. It writes
/// files of up to 64 MiB.
const NO_ROOM: u64 = 64 << 20;

/// Answers of the system that mean a file is not what it was.
pub(super) const DAMAGE: [io::ErrorKind; 3] =
    [io::ErrorKind::NotFound, io::ErrorKind::UnexpectedEof, io::ErrorKind::InvalidData];

/// Handles of all keyspaces; cheap to clone, readable from several threads.
#[derive(Clone)]
pub(super) struct Keyspaces {
    /// In the order of [`KeyspaceId::ALL`].
    all: [Keyspace; KEYSPACES],
    /// Reads see this moment; without one, each sees what there is when it begins.
    moment: Option<Snapshot>,
    /// A window has closed early, and may have members.
    closings: Arc<AtomicBool>,
    /// Held while a commit is made, and while a snapshot is taken: see [`Keyspaces::between_commits`].
    commits: Arc<Mutex<()>>,
}

impl Keyspaces {
    /// From handles in the order of [`KeyspaceId::ALL`].
    ///
    /// # Errors
    ///
    /// The storage engine's.
    pub(super) fn new(all: [Keyspace; KEYSPACES]) -> Result<Self, ReadError> {
        let id = KeyspaceId::Closings;
        let none = all[id.index()].is_empty().map_err(|e| unreadable(id, b"", &e))?;
        let (closings, commits) = (Arc::new(AtomicBool::new(!none)), Arc::default());
        Ok(Keyspaces { all, moment: None, closings, commits })
    }

    /// The same as they are now, for reads beside whoever writes. The storage engine keeps what they see for
    /// as long as they are there.
    pub(super) fn frozen(&self, db: &Database) -> Self {
        let _whole = self.between_commits();
        Keyspaces { moment: Some(db.snapshot()), ..self.clone() }
    }

    /// As long as this is held no other thread makes a commit or takes a snapshot. The storage engine takes
    /// what has been flushed or compacted for visible up to a number of its own (`lsm_tree::SuperVersions`),
    /// also where that is above the one of a commit that is being put into memtables: a snapshot would see a
    /// part of it.
    pub(super) fn between_commits(&self) -> MutexGuard<'_, ()> {
        // Nothing is changed under it that could be left half done.
        self.commits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle of one.
    pub(super) fn of(&self, id: KeyspaceId) -> &Keyspace {
        &self.all[id.index()]
    }

    /// Rows in order of key. The bounds must not be inverted: that is a fault to the storage engine.
    pub(super) fn rows<K: AsRef<[u8]>>(&self, id: KeyspaceId, bounds: impl RangeBounds<K>) -> Iter {
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
}

/// A failed read: damage, unless it is plainly the system's fault.
pub(super) fn unreadable(id: KeyspaceId, near: &[u8], error: &fjall::Error) -> ReadError {
    match io_error(error) {
        Some(io) if !DAMAGE.contains(&io.kind()) => ReadError::Engine(io.to_string()),
        _ => damaged(id, near, &format_args!("at or behind this key: {error}")),
    }
}

/// A failed write: of `path`, or of what lies behind it.
pub(super) fn unwritable(action: &'static str, path: &Path, error: &fjall::Error) -> CommitError {
    let free = free_bytes(path).unwrap_or(u64::MAX);
    let full = match io_error(error).map(io::Error::kind) {
        Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => true,
        Some(_) => false,
        // A background worker failed earlier, and the reason is in the log only.
        None => matches!(error, fjall::Error::Poisoned) && free < NO_ROOM,
    };
    let error = if matches!(error, fjall::Error::Poisoned) {
        "an earlier write to a table or to the log failed, see the log".to_owned()
    } else {
        error.to_string()
    };
    if full {
        CommitError::DiskFull { free, error }
    } else {
        CommitError::Engine { action, error }
    }
}

/// The system's error within one of the storage engine.
pub(super) fn io_error(error: &fjall::Error) -> Option<&io::Error> {
    if let fjall::Error::Io(io) | fjall::Error::Storage(fjall::LsmError::Io(io)) = error {
        return Some(io);
    }
    None
}

/// Bytes free on the file system of `path`, for an unprivileged user.
fn free_bytes(path: &Path) -> Option<u64> {
    rustix::fs::statvfs(path).ok().map(|fs| fs.f_bavail.saturating_mul(fs.f_frsize))
}
