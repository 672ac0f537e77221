//! The durable store: what it must do, and what can go wrong with it.
//!
//! Two kinds: [`disk`] keeps items over restarts and power cuts, [`memory`] keeps no items. [`thread`] runs
//! either of them apart from the loop, so that a slow disk never delays a publish. Deliberately absent: any
//! decision. The engine says what is written, moved, removed and read; the store does that, durably and in
//! order.

mod ahead;
mod changes;
mod closings;
pub mod compact;
mod database;
mod directory;
mod disk;
pub mod ended;
mod errors;
pub mod export;
pub mod fields;
mod find;
mod former;
mod frozen;
pub mod import;
mod jobs;
mod keyspace;
pub mod lines;
mod load;
mod log_batch;
mod logs;
mod memory;
mod opening;
mod postgres;
pub mod queue_line;
mod queue_rows;
mod reclaim;
pub mod record;
mod report;
mod row_reads;
pub mod rows;
mod scan;
pub mod thread;
pub mod verify;

#[cfg(test)]
mod closings_tests;
#[cfg(test)]
mod ended_tests;
#[cfg(test)]
mod find_tests;
#[cfg(test)]
pub(crate) mod ground;
#[cfg(test)]
mod logs_tests;
#[cfg(test)]
mod measure;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod moving_tests;
#[cfg(test)]
mod open_tests;
#[cfg(test)]
mod reclaim_tests;
#[cfg(test)]
mod scan_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod thread_tests;
#[cfg(test)]
mod verify_tests;

pub use errors::{
    BrokenContract, CloseError, CommitError, Loss, OpenError, ReadError, SpawnError, StoreFailure, UsageError,
};

pub use postgres::schema as database_schema;

use crate::config::{self, StoreKind};
use crate::engine::event::{Load, Loaded, Marks, Op, Opened, Place, Scan, Token};
use crate::engine::types::Content;
use crate::lease::Lease;
use std::path::PathBuf;
use std::sync::Arc;

/// One group of writes: atomic, over all that it touches.
#[derive(Clone, Debug, PartialEq)]
pub struct CommitGroup {
    /// In order; a later one sees what an earlier one did.
    pub ops: Vec<Op>,
    /// Named by [`thread::StoreEvent::Committed`] once it is durable.
    pub token: Token,
    /// Recorded with it.
    pub marks: Marks,
    /// An answer waits for it: it waits for no others to share a sync with.
    pub hurried: bool,
}

/// Room on the disk, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Taken by the store.
    pub used: u64,
    /// Free on its file system, for an unprivileged user; `u64::MAX` where that is not known.
    pub free: u64,
    /// Size of its file system.
    pub total: u64,
}

/// Contents asked for: an arrival number to be given back with the answer, and where the item lies.
pub type WantedContents = [(u64, Place)];

/// Contents found, with the numbers they were asked for by, in the same order.
pub type Contents = Vec<(u64, Arc<Content>)>;

/// The part of giving back room that takes its time; see [`Store::begin_reclaim`].
pub type ReclaimJob = Box<dyn FnOnce() -> Result<(), CommitError> + Send>;

/// A step of a scan over the rows of one moment; see [`Store::look`].
pub type LookJob = Box<dyn FnOnce() -> Result<Loaded, ReadError> + Send>;

/// A store. One thread owns it.
pub trait Store: Send {
    /// Makes all groups durable, in order, with a single sync for all of them; each group is atomic.
    ///
    /// # Errors
    ///
    /// After an error nothing may be relied on: the groups may have been written, or not. The caller stops,
    /// and opens the store again to learn what is there.
    fn commit(&mut self, groups: &[CommitGroup]) -> Result<(), CommitError>;

    /// Reads; sees every commit made before.
    ///
    /// # Errors
    ///
    /// A record that cannot be read, or a content that is not there, is damage: it is never skipped.
    fn load(&mut self, load: &Load) -> Result<Loaded, ReadError>;

    /// A second reader for contents, to be used by another thread at the same time. `None`: this store has
    /// none.
    fn reader(&self) -> Option<Box<dyn Reader>> {
        None
    }

    /// A step of a scan over what is there now, to be taken by another thread at any later time: it brings
    /// what [`Store::load`] would bring at this moment, or less where it takes long. `None`: this store has
    /// nothing to look at.
    fn look(&self, _scan: &Scan) -> Option<LookJob> {
        None
    }

    /// For how long it is this process's, where others could claim it. `None`: nobody can.
    fn lease(&self) -> Option<Arc<Lease>> {
        None
    }

    /// Extends that. A commit does so too.
    ///
    /// # Errors
    ///
    /// As [`Store::commit`].
    fn renew(&mut self) -> Result<(), CommitError> {
        Ok(())
    }

    /// Name of another daemon that stands by and would have it, if one was heard of lately: the caller closes
    /// the store then.
    ///
    /// # Errors
    ///
    /// As [`Store::commit`].
    fn heir(&mut self) -> Result<Option<String>, CommitError> {
        Ok(None)
    }

    /// Makes exports beside the thread that owns the store. `None`: this store keeps no items.
    fn exporter(&self) -> Option<export::Exporter> {
        None
    }

    /// Room taken and left.
    ///
    /// # Errors
    ///
    /// The file system does not answer.
    fn usage(&self) -> Result<Usage, UsageError>;

    /// Whether it can still write: a part of it may have failed between two commits.
    ///
    /// # Errors
    ///
    /// What the next commit would fail with.
    fn health(&self) -> Result<(), CommitError> {
        Ok(())
    }

    /// Begins to give back the room of what was deleted. The job is for another thread, beside commits and
    /// reads; behind it comes [`Store::end_reclaim`]. `None`: this store has no room to give back, or much on
    /// its way to the disk: a later call may begin.
    ///
    /// # Errors
    ///
    /// As [`Store::commit`].
    fn begin_reclaim(&mut self) -> Result<Option<ReclaimJob>, CommitError> {
        Ok(None)
    }

    /// Lets go of the files that the job has made superfluous.
    ///
    /// # Errors
    ///
    /// As [`Store::commit`].
    fn end_reclaim(&mut self) -> Result<(), CommitError> {
        Ok(())
    }

    /// Most operations, and about how many bytes, that one call of [`Store::commit`] should be given. A
    /// single group beyond it is still taken.
    fn group_limit(&self) -> (usize, u64) {
        (65_536, 32 << 20)
    }

    /// Syncs and lets go of all files.
    ///
    /// # Errors
    ///
    /// The last sync failed. What was committed is durable even so.
    fn close(self: Box<Self>) -> Result<(), CloseError>;
}

/// Reads contents beside the thread that owns the store.
pub trait Reader: Send {
    /// The contents of all that is wanted, or `None` if one is not there (yet, or any more): then the caller
    /// asks the store itself, whose answer is ordered with the writes.
    ///
    /// # Errors
    ///
    /// As [`Store::load`].
    fn contents(&self, wanted: &WantedContents) -> Result<Option<Contents>, ReadError>;
}

/// A store that has been opened, and what it knew.
pub struct OpenStore {
    /// To be given to [`thread::spawn`].
    pub store: Box<dyn Store>,
    /// For the engine.
    pub opened: Opened,
    /// Random, made once in the life of a store: with the arrival number it makes assigned ids unique for
    /// ever.
    pub identity: u64,
    /// Whose it was before, where it could have been another daemon's.
    pub takeover: Option<Takeover>,
}

/// How a store that several daemons reach came to be this one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takeover {
    /// Nobody had it: it is new, or its last owner has let go of it.
    Free,
    /// Its last owner has not extended the lease.
    Expired,
    /// It was this daemon's already: an earlier process of it, or an earlier life.
    Own,
}

impl Takeover {
    /// All of them.
    pub const ALL: [Takeover; 3] = [Takeover::Free, Takeover::Expired, Takeover::Own];

    /// As state and metrics tell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Takeover::Free => "free",
            Takeover::Expired => "expired",
            Takeover::Own => "own",
        }
    }
}

/// Opens the configured store: once, or, where it can be another daemon's or out of reach, again and again.
pub struct Opener {
    kind: OpenerKind,
    memory_limit: u64,
    accept_loss: bool,
}

enum OpenerKind {
    Disk(PathBuf),
    Memory,
    Postgres(Box<postgres::Contender>),
}

impl Opener {
    /// For the configured store. `memory_limit` (`limits.memory`, bytes): the disk store's buffers and caches
    /// take about a quarter of it, what the memory store remembers a sixteenth. `accept_loss`: go on although
    /// commits that had been made durable are gone.
    ///
    /// # Errors
    ///
    /// See [`OpenError`]: of the directory.
    pub fn new(store: &config::StoreConfig, memory_limit: u64, accept_loss: bool) -> Result<Self, OpenError> {
        let kind = match (store.kind, &store.database) {
            (StoreKind::Disk, _) => OpenerKind::Disk(store.path.clone()),
            (StoreKind::Memory, _) => OpenerKind::Memory,
            (StoreKind::Postgres, Some(database)) => {
                OpenerKind::Postgres(Box::new(postgres::Contender::new(&store.path, database)?))
            }
            (StoreKind::Postgres, None) => {
                let error = "no database is named".to_owned();
                return Err(OpenError::Database { place: "nowhere".to_owned(), error });
            }
        };
        Ok(Opener { kind, memory_limit, accept_loss })
    }

    /// Opens it, and makes it first where there is none. `wall`: what the clock says, UTC ms.
    ///
    /// # Errors
    ///
    /// See [`OpenError`]. Nothing is repaired silently: a damaged store stays as it is.
    pub fn open(&mut self, wall: u64) -> Result<OpenStore, OpenError> {
        match &mut self.kind {
            OpenerKind::Disk(path) => disk::open(path, self.memory_limit, self.accept_loss, wall),
            OpenerKind::Memory => memory::open(self.memory_limit),
            OpenerKind::Postgres(contender) => contender.open(wall),
        }
    }
}

/// Opens the configured store, once; see [`Opener`].
///
/// # Errors
///
/// See [`Opener::new`] and [`Opener::open`].
pub fn open(
    store: &config::StoreConfig,
    memory_limit: u64,
    accept_loss: bool,
    wall: u64,
) -> Result<OpenStore, OpenError> {
    Opener::new(store, memory_limit, accept_loss)?.open(wall)
}

/// A random identity; never 0.
fn new_identity() -> Result<u64, OpenError> {
    Ok(getrandom::u64().map_err(|e| OpenError::Random(e.to_string()))?.max(1))
}
