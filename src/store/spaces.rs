//! The keyspaces on the disk, and every read from them.
//!
//! Scans start at the key they are given, never at the beginning: what was deleted there lately still costs time
//! until it is compacted away.

use super::record::{self, View};
use super::rows::{self, PLACE_LEN};
use super::space::{self, Space, SPACES};
use super::{find, walk, Contents, Reader, StoreError, Wanted};
use crate::engine::event::{Load, Loaded, Place, Stored, BUCKETS};
use crate::engine::types::{Content, Key};
use fjall::{Keyspace, Slice};
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Free space below which a failure of the storage engine that names no cause is put down to it. It writes files
/// of up to 64 MiB.
const NO_ROOM: u64 = 64 << 20;

/// Answers of the system that mean a file is not what it was.
pub const DAMAGE: [io::ErrorKind; 3] =
    [io::ErrorKind::NotFound, io::ErrorKind::UnexpectedEof, io::ErrorKind::InvalidData];

/// Handles of all keyspaces; cheap to clone, readable from several threads.
#[derive(Clone)]
pub struct Spaces {
    /// In the order of [`Space::ALL`].
    all: [Keyspace; SPACES],
}

/// Which life each bucket lives; see [`super::ended`].
pub type Lives = [u64; BUCKETS as usize];

impl Spaces {
    /// From handles in the order of [`Space::ALL`].
    pub fn new(all: [Keyspace; SPACES]) -> Self {
        Spaces { all }
    }

    /// The handle of one.
    pub fn of(&self, space: Space) -> &Keyspace {
        &self.all[space.index()]
    }

    /// One row.
    ///
    /// # Errors
    ///
    /// The storage engine's.
    pub fn get(&self, space: Space, key: &[u8]) -> Result<Option<Slice>, StoreError> {
        self.of(space).get(key).map_err(|e| unreadable(space, key, &e))
    }

    /// All rows of a small keyspace, read by `read`.
    ///
    /// # Errors
    ///
    /// The storage engine's, or what `read` finds wrong with a row.
    pub fn all<T>(
        &self,
        space: Space,
        read: impl Fn(&[u8], &[u8]) -> Result<T, String>,
    ) -> Result<Vec<T>, StoreError> {
        let mut rows = Vec::new();
        for row in self.of(space).iter() {
            let (key, value) = row.into_inner().map_err(|e| unreadable(space, b"", &e))?;
            rows.push(read(&key, &value).map_err(|e| damaged(space, &key, &e))?);
        }
        Ok(rows)
    }

    /// Answers a load. `lives`: which life each bucket lives.
    ///
    /// # Errors
    ///
    /// As [`super::Store::load`].
    pub fn load(&self, load: &Load, lives: &Lives) -> Result<Loaded, StoreError> {
        match load {
            Load::Time { from, until, max_rows, max_bytes } => {
                let end = rows::time_key(Key { due: *until, seq: 0 }).to_vec();
                let start = rows::time_key(*from).to_vec();
                let (rows, next) = self.items(Space::Time, start, end, *max_rows, *max_bytes)?;
                Ok(Loaded::Time { rows, next })
            }
            Load::Lane { lane, from, max_rows, max_bytes } => {
                let (start, end) = (rows::place_key(&[lane], *from)?, after(&[lane])?);
                let (rows, next) = self.items(Space::Lanes, start, end, *max_rows, *max_bytes)?;
                Ok(Loaded::Lane { lane: lane.clone(), rows, next })
            }
            Load::Group { application, customer, from, max_rows } => {
                let names: [&str; 2] = [application, customer];
                let (rows, next) = self.group(&names, *from, *max_rows)?;
                Ok(Loaded::Group { application: application.clone(), customer: customer.clone(), rows, next })
            }
            Load::Find(wanted) => {
                let found = wanted.iter().map(|wanted| find::find(self, lives, wanted));
                Ok(Loaded::Found(found.collect::<Result<_, _>>()?))
            }
            Load::Walk(walk) => {
                let (rows, next) = walk::walk(self, walk)?;
                Ok(Loaded::Walked { number: walk.number, rows, next })
            }
            Load::Contents(wanted) => {
                let mut found = Vec::with_capacity(wanted.len());
                for (handle, place, key) in wanted {
                    let missing = || StoreError::Missing { place: place.clone(), key: *key };
                    found.push((*handle, self.content(place, *key)?.ok_or_else(missing)?));
                }
                Ok(Loaded::Contents(found))
            }
        }
    }

    /// Items from `start` to before `end`, and the key of the first one left out.
    fn items(
        &self,
        space: Space,
        start: Vec<u8>,
        end: Vec<u8>,
        max_rows: usize,
        max_bytes: u64,
    ) -> Result<(Vec<Stored>, Option<Key>), StoreError> {
        let mut out = Vec::new();
        if start >= end {
            return Ok((out, None));
        }
        // Contents stop at the first one that does not fit, so that those given are the foremost ones.
        let mut room = Some(max_bytes);
        let mut last = start.clone();
        for row in self.of(space).range(start..end) {
            let (row, bytes) = row.into_inner().map_err(|e| unreadable(space, &last, &e))?;
            let key = place(space, &row)?;
            if out.len() >= max_rows {
                return Ok((out, Some(key)));
            }
            let view = record::decode(key, &bytes).map_err(|e| damaged(space, &row, &e))?;
            let mut item = view.stored(key);
            room = room.and_then(|room| room.checked_sub(view.content_size()));
            item.content = room.map(|_| view.content());
            out.push(item);
            last = row.to_vec();
        }
        Ok((out, None))
    }

    fn group(
        &self,
        names: &[&str; 2],
        from: Key,
        max_rows: usize,
    ) -> Result<(Vec<Stored>, Option<Key>), StoreError> {
        let (start, end) = (rows::place_key(names, from)?, after(names)?);
        let mut out = Vec::new();
        for row in self.of(Space::Customers).range(start.clone()..end) {
            let row = row.key().map_err(|e| unreadable(Space::Customers, &start, &e))?;
            let key = place(Space::Customers, &row)?;
            if out.len() >= max_rows {
                return Ok((out, Some(key)));
            }
            out.push(self.of_index_row(&row, key)?);
        }
        Ok((out, None))
    }

    /// The item that a row of the customers' index leads to, without content.
    ///
    /// # Errors
    ///
    /// The storage engine's; damage, where there is none.
    pub fn of_index_row(&self, row: &[u8], key: Key) -> Result<Stored, StoreError> {
        let item = self.view(&Place::Time, key, |view| view.stored(key))?;
        item.ok_or_else(|| damaged(Space::Customers, row, &"no item in the time index belongs to this row"))
    }

    fn content(&self, place: &Place, key: Key) -> Result<Option<Arc<Content>>, StoreError> {
        self.view(place, key, |view| view.content())
    }

    /// The item in this place, as `read` sees it.
    ///
    /// # Errors
    ///
    /// The storage engine's, or a record that does not read as it was written.
    pub fn view<T>(
        &self,
        place: &Place,
        key: Key,
        read: impl Fn(&View<'_>) -> T,
    ) -> Result<Option<T>, StoreError> {
        let (space, row) = row_of(place, key)?;
        let Some(bytes) = self.get(space, &row)? else { return Ok(None) };
        let view = record::decode(key, &bytes).map_err(|e| damaged(space, &row, &e))?;
        Ok(Some(read(&view)))
    }
}

impl Reader for Spaces {
    fn contents(&self, wanted: &Wanted) -> Result<Option<Contents>, StoreError> {
        let mut found = Vec::with_capacity(wanted.len());
        for (handle, place, key) in wanted {
            let Some(content) = self.content(place, *key)? else { return Ok(None) };
            found.push((*handle, content));
        }
        Ok(Some(found))
    }
}

/// Keyspace and key of an item.
///
/// # Errors
///
/// A lane's name that is too long.
pub fn row_of(place: &Place, key: Key) -> Result<(Space, Vec<u8>), StoreError> {
    Ok(match place {
        Place::Time => (Space::Time, rows::time_key(key).to_vec()),
        Place::Lane(lane) => (Space::Lanes, rows::place_key(&[lane], key)?),
    })
}

/// The first key behind all places under these names: one byte longer than the last of them.
fn after(names: &[&str]) -> Result<Vec<u8>, StoreError> {
    let mut end = rows::prefix(names)?;
    end.extend_from_slice(&[0xff; PLACE_LEN + 1]);
    Ok(end)
}

/// The place in the order that the key of a row ends in.
///
/// # Errors
///
/// Damage, where it is too short.
pub fn place(space: Space, row: &[u8]) -> Result<Key, StoreError> {
    rows::place_of(row).ok_or_else(|| damaged(space, row, &"the key is too short"))
}

/// A row that does not read as it was written.
pub fn damaged(space: Space, key: &[u8], error: &dyn Display) -> StoreError {
    StoreError::Damaged { keyspace: space.name(), key: space::show(space, key), error: error.to_string() }
}

/// A failed read: damage, unless it is plainly the system's fault.
pub fn unreadable(space: Space, near: &[u8], error: &fjall::Error) -> StoreError {
    match io_error(error) {
        Some(io) if !DAMAGE.contains(&io.kind()) => {
            StoreError::Engine { action: "read", error: io.to_string() }
        }
        _ => damaged(space, near, &format_args!("at or behind this key: {error}")),
    }
}

/// A failed write: of `path`, or of what lies behind it.
pub fn unwritable(action: &'static str, path: &Path, error: &fjall::Error) -> StoreError {
    let free = free_bytes(path).unwrap_or(u64::MAX);
    let full = match io_error(error).map(io::Error::kind) {
        Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => true,
        Some(_) => false,
        // A background worker failed earlier, and the reason is in the log only.
        None => matches!(error, fjall::Error::Poisoned) && free < NO_ROOM,
    };
    let error = error.to_string();
    if full {
        StoreError::DiskFull { free, error }
    } else {
        StoreError::Engine { action, error }
    }
}

/// The system's error within one of the storage engine.
pub fn io_error(error: &fjall::Error) -> Option<&io::Error> {
    if let fjall::Error::Io(io) | fjall::Error::Storage(fjall::LsmError::Io(io)) = error {
        return Some(io);
    }
    None
}

/// Bytes free on the file system of `path`, for an unprivileged user.
fn free_bytes(path: &Path) -> Option<u64> {
    rustix::fs::statvfs(path).ok().map(|fs| fs.f_bavail.saturating_mul(fs.f_frsize))
}
