//! Reclaims disk space at once, in a store that no daemon has open: every table is rewritten without the
//! deleted rows.

use super::database::unwritable;
use super::directory::Directory;
use super::disk::{open_in, IfAbsent, OpenDisk};
use super::keyspace::KeyspaceId;
use super::verify::{WalkStep, Watcher};
use super::{CloseError, CommitError, OpenError, Store};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tidegate_common::clock;

/// The result of a compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Bytes on the disk before it.
    pub before: u64,
    /// Bytes on the disk after it.
    pub after: u64,
}

/// Why a store was not compacted. Its content is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum CompactError {
    /// The store was not opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store was not written.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The store was not closed.
    #[error(transparent)]
    Close(#[from] CloseError),
    /// A new table is written completely before the old ones are deleted.
    #[error("keyspace `{keyspace}` needs up to {needed} free bytes for this, and {free} are free")]
    NoRoom {
        /// Name of the keyspace.
        keyspace: &'static str,
        /// Present size of its tables, in bytes.
        needed: u64,
        /// Free bytes on its file system.
        free: u64,
    },
    /// The size of its files could not be read.
    #[error("the files in {path} cannot be measured: {source}")]
    Measure {
        /// The store's directory.
        path: String,
        /// The system's error.
        source: io::Error,
    },
}

/// Compacts the store in `path`, one keyspace after another.
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

/// Disk space of the files below a directory, in bytes.
fn size_of(path: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        // A file deleted since the listing takes no space.
        let found = match entry.metadata() {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        bytes += if found.is_dir() { size_of(&entry.path())? } else { found.blocks() * 512 };
    }
    Ok(bytes)
}
