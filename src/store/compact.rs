//! Room on the disk given back at once, in a store that no daemon has open: every table is written anew
//! without what was deleted.

use super::database::unwritable;
use super::directory::Directory;
use super::disk::{open_in, IfAbsent, OpenDisk};
use super::keyspace::KeyspaceId;
use super::verify::{WalkStep, Watcher};
use super::{CloseError, CommitError, OpenError, Store};
use crate::clock;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What a compaction made of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Bytes on the disk before.
    pub before: u64,
    /// The same afterwards.
    pub after: u64,
}

/// Why a store was not compacted. What it holds is as it was.
#[derive(Debug, thiserror::Error)]
pub enum CompactError {
    /// It was not opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It was not written.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// It was not closed.
    #[error(transparent)]
    Close(#[from] CloseError),
    /// A table is written as a whole before the old ones go.
    #[error("keyspace `{keyspace}` needs up to {needed} bytes of room for this, and {free} are free")]
    NoRoom {
        /// The part of the store.
        keyspace: &'static str,
        /// Bytes that its tables take now.
        needed: u64,
        /// Bytes free on its file system.
        free: u64,
    },
    /// Its files could not be measured.
    #[error("the files in {path} cannot be measured: {source}")]
    Measure {
        /// The store's directory.
        path: String,
        /// The system's answer.
        source: io::Error,
    },
}

/// Compacts the store in `path`, one keyspace after the other.
///
/// # Errors
///
/// See [`CompactError`].
pub fn compact(path: &Path, memory_limit: u64, watcher: &mut dyn Watcher) -> Result<Compacted, CompactError> {
    let directory = Directory::existing(path)?;
    let measured = |path: &Path| {
        size_of(path).map_err(|source| CompactError::Measure { path: path.display().to_string(), source })
    };
    let before = measured(path)?;
    let OpenDisk { mut store, .. } =
        open_in(directory, memory_limit, false, IfAbsent::Refuse, clock::wall_ms())?;
    store.flush()?;
    let total = KeyspaceId::ALL.len() as u64;
    for (done, id) in (0..).zip(KeyspaceId::ALL) {
        watcher.step(WalkStep { keyspace: id.name(), done, total });
        let needed = store.keyspace(id).disk_space();
        let free = store.usage().map_or(u64::MAX, |usage| usage.free);
        if needed > free {
            return Err(CompactError::NoRoom { keyspace: id.name(), needed, free });
        }
        store.keyspace(id).major_compact().map_err(|e| unwritable("compacted", path, &e))?;
    }
    store.end_reclaim()?;
    Box::new(store).close()?;
    watcher.step(WalkStep { keyspace: KeyspaceId::Meta.name(), done: total, total });
    Ok(Compacted { before, after: measured(path)? })
}

/// Bytes that the files below a directory take on the disk.
fn size_of(path: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        // One that has gone meanwhile takes no room.
        let found = match entry.metadata() {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        bytes += if found.is_dir() { size_of(&entry.path())? } else { found.blocks() * 512 };
    }
    Ok(bytes)
}
