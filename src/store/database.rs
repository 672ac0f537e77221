//! The keyspaces on the disk, and every read from them.
//!
//! Scans start at the key they are given, never at the beginning: what was deleted there lately still costs
//! time until it is compacted away.

use super::keyspace::{self, KeyspaceId, KEYSPACES};
use super::record::{self, View};
use super::rows;
use super::{closings, find, scan, CommitError, Contents, ReadError, Reader, WantedContents};
use crate::engine::event::{Load, Loaded, Place, Range, RangeRows, Scan, BUCKETS};
use crate::engine::types::{Content, Key};
use fjall::{Database, Iter, Keyspace, Readable, Slice, Snapshot};
use std::fmt::Display;
use std::io;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Free space below which a failure of the storage engine that names no cause is put down to it. It writes
/// files of up to 64 MiB.
const NO_ROOM: u64 = 64 << 20;

/// Bytes of rows that one read of ranges goes over, beside the first row of each: what is left is for the
/// next one. Large bodies that are due together would keep it at work for minutes, and a call that takes so
/// long is taken for dead.
const READ_BYTES: u64 = 32 << 20;

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

/// Number of the commit at which each bucket last began; see [`super::ended`].
pub(super) type Epochs = [u64; BUCKETS as usize];

/// Row key and value.
pub(super) type Row = (Slice, Slice);

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

    /// Whether a window may have closed early, in this life of the process or before, and have members.
    pub(super) fn has_closings(&self) -> bool {
        self.closings.load(Ordering::Relaxed)
    }

    /// One is about to be written.
    pub(super) fn note_closing(&self) {
        self.closings.store(true, Ordering::Relaxed);
    }

    /// The handle of one.
    pub(super) fn of(&self, id: KeyspaceId) -> &Keyspace {
        &self.all[id.index()]
    }

    /// One row.
    ///
    /// # Errors
    ///
    /// The storage engine's.
    pub(super) fn get(&self, id: KeyspaceId, key: &[u8]) -> Result<Option<Slice>, ReadError> {
        let got = match &self.moment {
            Some(moment) => moment.get(self.of(id), key),
            None => self.of(id).get(key),
        };
        got.map_err(|e| unreadable(id, key, &e))
    }

    /// Rows in order of key. The bounds must not be inverted: that is a fault to the storage engine.
    pub(super) fn rows<K: AsRef<[u8]>>(&self, id: KeyspaceId, bounds: impl RangeBounds<K>) -> Iter {
        match &self.moment {
            Some(moment) => moment.range(self.of(id), bounds),
            None => self.of(id).range(bounds),
        }
    }

    /// The rows from `start` to before `end`, in order of key.
    pub(super) fn range(
        &self,
        id: KeyspaceId,
        start: Vec<u8>,
        end: Vec<u8>,
    ) -> impl Iterator<Item = Result<Row, ReadError>> {
        let rows = (start < end).then(|| self.rows(id, start.clone()..end));
        let mut last = Slice::from(start);
        rows.into_iter().flatten().map(move |row| {
            let (key, value) = row.into_inner().map_err(|e| unreadable(id, &last, &e))?;
            last = key.clone();
            Ok((key, value))
        })
    }

    /// All rows of a small keyspace, read by `read`.
    ///
    /// # Errors
    ///
    /// The storage engine's, or what `read` finds wrong with a row.
    pub(super) fn all<T>(
        &self,
        id: KeyspaceId,
        read: impl Fn(&[u8], &[u8]) -> Result<T, String>,
    ) -> Result<Vec<T>, ReadError> {
        let mut rows = Vec::new();
        for row in self.rows::<&[u8]>(id, ..) {
            let (key, value) = row.into_inner().map_err(|e| unreadable(id, b"", &e))?;
            rows.push(read(&key, &value).map_err(|e| damaged(id, &key, &e))?);
        }
        Ok(rows)
    }

    /// Answers a load. `epochs`: in which epoch each bucket is.
    ///
    /// # Errors
    ///
    /// As [`super::Store::load`].
    pub(super) fn load(&self, load: &Load, epochs: &Epochs) -> Result<Loaded, ReadError> {
        match load {
            Load::Ranges { ranges, max_rows, max_bytes } => {
                let (mut room, mut looked_at, mut left) = (Some(*max_bytes), 0, *max_rows);
                let read = ranges.iter().map(|range| -> Result<RangeRows, ReadError> {
                    let most = range.max_rows.min(left);
                    let answer = self.range_rows(range, most, &mut room, &mut looked_at)?;
                    left -= answer.rows.len();
                    Ok(answer)
                });
                Ok(Loaded::Ranges(read.collect::<Result<_, _>>()?))
            }
            Load::Contents(wanted) => {
                let mut found = Vec::with_capacity(wanted.len());
                for (number, place) in wanted {
                    let missing = || ReadError::Missing { place: place.clone() };
                    found.push((*number, self.content(place)?.ok_or_else(missing)?));
                }
                Ok(Loaded::Contents(found))
            }
            Load::Find(wanted) => {
                let found = wanted.iter().map(|wanted| find::find(self, epochs, wanted));
                Ok(Loaded::Found(found.collect::<Result<_, _>>()?))
            }
            Load::Scan(wanted) => self.scan(wanted, || false),
        }
    }

    /// One step of a scan, which may end wherever `is_late` says so.
    ///
    /// # Errors
    ///
    /// As [`super::Store::load`].
    pub(super) fn scan(&self, wanted: &Scan, is_late: impl Fn() -> bool) -> Result<Loaded, ReadError> {
        let (rows, next) = scan::scan(self, wanted, &is_late)?;
        Ok(Loaded::Scanned { number: wanted.number, rows, next })
    }

    /// The rows of one range, `most` at most. `room`: bytes left for contents; `None` once one did not fit,
    /// so that those given are the foremost ones. `looked_at`: bytes that this read has gone over.
    fn range_rows(
        &self,
        range: &Range,
        most: usize,
        room: &mut Option<u64>,
        looked_at: &mut u64,
    ) -> Result<RangeRows, ReadError> {
        let Range { queue, from, until, max_rows } = range;
        let mut answer = RangeRows { queue: queue.clone(), rows: Vec::new(), next: None };
        // Not reached: nothing is said of it, not even where its first row is.
        if most == 0 && *max_rows > 0 {
            return Ok(RangeRows { next: Some(*from), ..answer });
        }
        for row in closings::in_order(self, queue, *from, *until)? {
            let row = row?;
            let enough = *looked_at >= READ_BYTES && !answer.rows.is_empty();
            if enough || answer.rows.len() >= most {
                answer.next = Some(row.place);
                break;
            }
            *looked_at += row.len();
            let view = row.view()?;
            let mut item = view.stored(queue);
            *room = room.and_then(|room| room.checked_sub(view.content_size()));
            item.content = room.map(|_| view.content());
            answer.rows.push(item);
        }
        Ok(answer)
    }

    fn content(&self, place: &Place) -> Result<Option<Arc<Content>>, ReadError> {
        self.item(&place.queue, place.key, |view| view.content())
    }

    /// The item under this key of this queue, as it lies there, as `read` sees it.
    ///
    /// # Errors
    ///
    /// The storage engine's, or a record that does not read as it was written.
    pub(super) fn item<T>(
        &self,
        queue: &str,
        key: Key,
        read: impl Fn(&View<'_>) -> T,
    ) -> Result<Option<T>, ReadError> {
        self.look_at(queue, key, |view| Ok(read(&view)))
    }

    /// The same as it is due: its window may have closed early.
    ///
    /// # Errors
    ///
    /// As [`Keyspaces::item`].
    pub(super) fn item_as_due<T>(
        &self,
        queue: &str,
        key: Key,
        read: impl Fn(&View<'_>) -> T,
    ) -> Result<Option<T>, ReadError> {
        self.look_at(queue, key, |view| Ok(read(&closings::Closed::of(self.closed(&view)?, view))))
    }

    fn look_at<T>(
        &self,
        queue: &str,
        key: Key,
        look: impl FnOnce(View<'_>) -> Result<T, ReadError>,
    ) -> Result<Option<T>, ReadError> {
        let row = rows::item_key(queue, key)?;
        let Some(bytes) = self.get(KeyspaceId::Items, &row)? else { return Ok(None) };
        look(view(&row, &bytes)?).map(Some)
    }

    /// The item that a row of the customers' index leads to, as `read` sees it.
    ///
    /// # Errors
    ///
    /// The storage engine's; damage, where there is none.
    pub(super) fn item_of_customer_row<T>(
        &self,
        row: &[u8],
        queue: &str,
        key: Key,
        read: impl Fn(&View<'_>) -> T,
    ) -> Result<T, ReadError> {
        self.item_as_due(queue, key, read)?.ok_or_else(|| leads_nowhere(row))
    }
}

impl Reader for Keyspaces {
    fn contents(&self, wanted: &WantedContents) -> Result<Option<Contents>, ReadError> {
        let mut found = Vec::with_capacity(wanted.len());
        for (number, place) in wanted {
            let Some(content) = self.content(place)? else { return Ok(None) };
            found.push((*number, content));
        }
        Ok(Some(found))
    }
}

/// Row keys of the items of a queue from `from` to before the due `until`.
///
/// # Errors
///
/// A name that is too long.
pub(super) fn item_bounds(queue: &str, from: Key, until: u64) -> Result<(Vec<u8>, Vec<u8>), ReadError> {
    Ok((rows::item_key(queue, from)?, rows::item_key(queue, Key::at(until))?))
}

/// The item in a row of [`KeyspaceId::Items`].
///
/// # Errors
///
/// A record that does not read as it was written.
pub(super) fn view<'a>(row: &'a [u8], bytes: &'a [u8]) -> Result<View<'a>, ReadError> {
    record::decode(row, bytes).map_err(|e| damaged(KeyspaceId::Items, row, &e))
}

/// The place in the order that the key of a row ends in.
///
/// # Errors
///
/// Damage, where it is too short.
pub(super) fn place(id: KeyspaceId, row: &[u8]) -> Result<Key, ReadError> {
    rows::place_of(row).ok_or_else(|| damaged(id, row, &"the key is too short"))
}

/// A row of the customers' index whose item is not there.
pub(super) fn leads_nowhere(row: &[u8]) -> ReadError {
    damaged(KeyspaceId::Customers, row, &"no item of the queue belongs to this row")
}

/// A row that does not read as it was written.
pub(super) fn damaged(id: KeyspaceId, key: &[u8], error: &dyn Display) -> ReadError {
    ReadError::Damaged { keyspace: id.name(), key: keyspace::show(id, key), error: error.to_string() }
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
