//! The durable store: what it must do, and what can go wrong with it.
//!
//! Two kinds: [`disk`] keeps items over restarts and power cuts, [`memory`] keeps no items. [`thread`] runs either
//! of them apart from the loop, so that a slow disk never delays a publish. Deliberately absent: any decision. The
//! engine says what is written, moved, removed and read; the store does that, durably and in order.

mod changes;
mod directory;
pub mod disk;
pub mod ended;
pub mod fields;
mod find;
mod log_batch;
mod logs;
pub mod memory;
pub mod record;
pub mod rows;
mod space;
mod spaces;
pub mod thread;
mod walk;

#[cfg(test)]
mod ended_tests;
#[cfg(test)]
mod find_tests;
#[cfg(test)]
mod logs_tests;
#[cfg(test)]
mod measure;
#[cfg(test)]
mod open_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod thread_tests;
#[cfg(test)]
mod walk_tests;

use crate::config::{self, StoreKind};
use crate::engine::event::{Load, Loaded, Marks, Op, Opened, Place, Token};
use crate::engine::types::{Content, Key};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// One group of writes: atomic, over all that it touches.
#[derive(Clone, Debug, PartialEq)]
pub struct Commit {
    /// In order; a later one sees what an earlier one did.
    pub ops: Vec<Op>,
    /// Named by [`thread::Event::Committed`] once it is durable.
    pub token: Token,
    /// Recorded with it.
    pub marks: Marks,
}

/// Room on the disk, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Taken by the store.
    pub used: u64,
    /// Free on its file system, for an unprivileged user.
    pub free: u64,
    /// Size of its file system.
    pub total: u64,
}

/// Contents asked for: the engine's handle, and where the item lies.
pub type Wanted = [(u64, Place, Key)];

/// Contents found, with the handles they were asked for by, in the same order.
pub type Contents = Vec<(u64, Arc<Content>)>;

/// A store. One thread owns it.
pub trait Store: Send {
    /// Makes all groups durable, in order, with a single sync for all of them; each group is atomic.
    ///
    /// # Errors
    ///
    /// After an error nothing may be relied on: the groups may have been written, or not. The caller stops, and
    /// opens the store again to learn what is there.
    fn commit(&mut self, groups: &[Commit]) -> Result<(), StoreError>;

    /// Reads; sees every commit made before.
    ///
    /// # Errors
    ///
    /// A record that cannot be read, or a content that is not there, is damage: it is never skipped.
    fn load(&mut self, load: &Load) -> Result<Loaded, StoreError>;

    /// A second reader for contents, to be used by another thread at the same time. `None`: this store has none.
    fn reader(&self) -> Option<Box<dyn Reader>> {
        None
    }

    /// Room taken and left.
    ///
    /// # Errors
    ///
    /// The file system does not answer.
    fn usage(&self) -> Result<Usage, StoreError>;

    /// Most operations, and about how many bytes, that one call of [`Store::commit`] should be given. A single
    /// group beyond it is still taken.
    fn group_limit(&self) -> (usize, u64) {
        (65_536, 32 << 20)
    }

    /// Syncs and lets go of all files.
    ///
    /// # Errors
    ///
    /// The last sync failed. What was committed is durable even so.
    fn close(self: Box<Self>) -> Result<(), StoreError>;
}

/// Reads contents beside the thread that owns the store.
pub trait Reader: Send {
    /// The contents of all that is wanted, or `None` if one is not there (yet, or any more): then the caller asks
    /// the store itself, whose answer is ordered with the writes.
    ///
    /// # Errors
    ///
    /// As [`Store::load`].
    fn contents(&self, wanted: &Wanted) -> Result<Option<Contents>, StoreError>;
}

/// Why a store cannot go on.
#[derive(Debug, Error)]
pub enum StoreError {
    /// No room left. Distinct from other faults: space may come back.
    #[error("the disk is full ({free} bytes free): {error}")]
    DiskFull {
        /// Bytes free when it was noticed.
        free: u64,
        /// The storage engine's words.
        error: String,
    },
    /// Something stored does not read as it was written.
    #[error("the store is damaged: keyspace `{keyspace}`, key {key}: {error}")]
    Damaged {
        /// Which part of the store.
        keyspace: &'static str,
        /// Which row.
        key: String,
        /// What is wrong with it.
        error: String,
    },
    /// An item that should be there is not.
    #[error("the item due {}, number {}, is not in the store ({place:?})", key.due, key.seq)]
    Missing {
        /// Where it was looked for.
        place: Place,
        /// Its key.
        key: Key,
    },
    /// An item without content was to be written; its payload would have been lost.
    #[error("the item due {}, number {}, was to be stored without its content", key.due, key.seq)]
    NoContent {
        /// Its key.
        key: Key,
    },
    /// A bucket of ended items that there is not.
    #[error("there is no bucket {0} of ended items")]
    NoBucket(u8),
    /// A name too long to be part of a key.
    #[error("a name of {0} bytes is too long for a key")]
    NameTooLong(usize),
    /// The storage engine failed, for another reason than room.
    #[error("the storage engine failed while it {action}: {error}")]
    Engine {
        /// What it did.
        action: &'static str,
        /// Its words.
        error: String,
    },
    /// So much was queued for so long that the disk must be taken for dead.
    #[error("the disk has not kept up: {queued} bytes have been waiting for {waited_s} s")]
    Stalled {
        /// Bytes queued.
        queued: u64,
        /// Seconds.
        waited_s: u64,
    },
    /// The thread did not end in time.
    #[error("the store did not close within {0} ms")]
    CloseTimeout(u128),
    /// A thread of the store could not be started.
    #[error("the store's thread cannot be started: {0}")]
    Thread(io::Error),
}

/// Why a store cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("{} is in use by process {}", path.display(), pid.map_or_else(|| "unknown".to_owned(), |p| p.to_string()))]
    Locked {
        /// The other's process id, as far as it has written it down.
        pid: Option<u32>,
        /// The lock file.
        path: PathBuf,
    },
    /// The directory is a symbolic link: somebody else might turn it elsewhere.
    #[error("{} is a symbolic link; name the directory itself", path.display())]
    Symlink {
        /// The configured path.
        path: PathBuf,
    },
    /// Something else than a directory has the name.
    #[error("{} is not a directory", path.display())]
    NotADirectory {
        /// The configured path.
        path: PathBuf,
    },
    /// Written by a newer version of this program.
    #[error("the store has format {found}, and this program knows no newer one than {known}")]
    Newer {
        /// The store's format.
        found: u32,
        /// This program's.
        known: u32,
    },
    /// Written by an older version of this program, in a format that cannot be brought up to date.
    #[error(
        "the store has format {found}, which this program cannot read; let the version that wrote it run until \
         nothing waits any more, then remove the store's directory and start this one"
    )]
    Older {
        /// The store's format.
        found: u32,
    },
    /// It does not read as it was written. Nothing was repaired and nothing given up.
    #[error("the store is damaged: {place}: {error}")]
    Damaged {
        /// The file, or the keyspace and key.
        place: String,
        /// What is wrong with it.
        error: String,
    },
    /// A file could not be made, opened or read.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The first write failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No random number for the store's identity.
    #[error("the system gives no random numbers: {0}")]
    Random(String),
}

impl OpenError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| OpenError::Io { action, path, source }
    }
}

/// A store that has been opened, and what it knew.
pub struct OpenStore {
    /// To be given to [`thread::spawn`].
    pub store: Box<dyn Store>,
    /// For the engine.
    pub opened: Opened,
    /// Random, made once in the life of a store: with the arrival number it makes assigned ids unique for ever.
    pub identity: u64,
}

/// Opens the configured store, and makes it first where there is none. `memory_limit` (`limits.memory`, bytes):
/// the disk store's buffers and caches take about a quarter of it, what the memory store remembers a sixteenth. `accept_loss`: go on although commits that had been
/// made durable are gone.
///
/// # Errors
///
/// See [`OpenError`]. Nothing is repaired silently: a damaged store stays as it is.
pub fn open(store: &config::Store, memory_limit: u64, accept_loss: bool) -> Result<OpenStore, OpenError> {
    match store.kind {
        StoreKind::Disk => disk::open(&store.path, memory_limit, accept_loss),
        StoreKind::Memory => memory::open(memory_limit),
    }
}

/// A random identity; never 0.
fn new_identity() -> Result<u64, OpenError> {
    Ok(getrandom::u64().map_err(|e| OpenError::Random(e.to_string()))?.max(1))
}
