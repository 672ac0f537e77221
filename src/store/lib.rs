//! The durable store: its contract and its failures.
//!
//! [`disk`] keeps items over restarts and power cuts, [`postgres`] keeps them in a database, and [`memory`]
//! keeps no items. [`thread`] runs a store on its own thread, so that a slow disk never delays a publish.
//! Deliberately absent: any decision. The engine decides what to write, move, remove and read; the store does
//! it, durably and in order.

mod ahead;
mod changes;
mod closings;
pub mod compact;
mod database;
mod directory;
mod disk;
pub mod emptying;
pub mod ended;
mod errors;
pub mod export;
pub mod fields;
mod find;
mod former;
mod frozen;
pub mod import;
mod jobs;
pub mod joined;
mod keyspace;
mod layout;
mod left_behind;
pub mod lines;
mod load;
mod log_batch;
mod logs;
mod memory;
pub mod naming;
mod node;
mod open_windows;
mod opening;
mod postgres;
pub mod queue_line;
pub mod queue_rows;
mod reading;
mod reclaim;
pub mod record;
mod recount;
mod report;
mod row_reads;
pub mod rows;
mod scan;
pub mod thread;
pub mod verify;

#[cfg(test)]
extern crate self as tidegate_store;

#[cfg(test)]
mod beside_tests;
#[cfg(test)]
mod closings_tests;
#[cfg(test)]
mod emptying_tests;
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
mod recount_tests;
#[cfg(test)]
mod scan_tests;
#[cfg(test)]
mod shards_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod thread_tests;
#[cfg(test)]
mod verify_tests;

pub use errors::{
    BrokenContract, CloseError, CommitError, Loss, OpenError, ReadError, SpawnError, StoreFailure, UsageError,
};

pub use layout::{refuse_disk_store, store_paths, ShardLayout};
pub use left_behind::left_behind;
pub use postgres::{inspect as inspect_database, schema as database_schema};
pub use postgres::{MemberView, Membership, SeenShard};

use std::path::PathBuf;
use std::sync::Arc;
use tidegate_common::lease::Lease;
use tidegate_config::{DatabaseConfig, StoreConfig, StoreKind};
use tidegate_types::event::{Load, Loaded, Marks, Op, Opened, Place, Range, RangeRows, Scan, Token};
use tidegate_types::Content;

/// One group of writes; it is atomic over all keyspaces.
#[derive(Clone, Debug, PartialEq)]
pub struct CommitGroup {
    /// In order; each operation sees the effects of earlier ones.
    pub ops: Vec<Op>,
    /// [`thread::StoreEvent::Committed`] names it once the group is durable.
    pub token: Token,
    /// Recorded with the group.
    pub marks: Marks,
    /// An answer waits for this group: the commit does not wait for others to share its sync.
    pub hurried: bool,
}

/// Space on the disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Used by the store.
    pub used: u64,
    /// Free on its file system for an unprivileged user; `u64::MAX` where unknown.
    pub free: u64,
    /// Size of its file system.
    pub total: u64,
}

/// Requested contents: for each the arrival number, which the answer repeats, and the place of the item.
pub type WantedContents = [(u64, Place)];

/// Contents that were found, with their arrival numbers, in the order of the request.
pub type Contents = Vec<(u64, Arc<Content>)>;

/// The slow part of reclaiming space; see [`Store::begin_reclaim`].
pub type ReclaimJob = Box<dyn FnOnce() -> Result<(), CommitError> + Send>;

/// One step of a scan over a snapshot of the rows; see [`Store::look`].
pub type LookJob = Box<dyn FnOnce() -> Result<Loaded, ReadError> + Send>;

/// A store, owned by one thread.
pub trait Store: Send {
    /// Makes all groups durable in order, with a single sync for all of them; each group is atomic.
    ///
    /// # Errors
    ///
    /// After an error it is unknown whether the groups were written. The caller stops, and opens the store
    /// again to find out.
    fn commit(&mut self, groups: &[CommitGroup]) -> Result<(), CommitError>;

    /// Reads; sees every earlier commit.
    ///
    /// # Errors
    ///
    /// An unreadable record or a missing content is damage; it is never skipped.
    fn load(&mut self, load: &Load) -> Result<Loaded, ReadError>;

    /// A second reader for contents, which another thread may use concurrently. `None`: this store has none.
    fn reader(&self) -> Option<Box<dyn Reader>> {
        None
    }

    /// One step of a scan over the present rows, which another thread may run at any later time. It returns
    /// what [`Store::load`] would return now, or less if the step takes long. `None`: this store scans by
    /// [`Store::load`] alone.
    fn look(&self, _scan: &Scan) -> Option<LookJob> {
        None
    }

    /// The lease, which says how long the store belongs to this process. `None`: no other process can claim
    /// the store.
    fn lease(&self) -> Option<Arc<Lease>> {
        None
    }

    /// Extends the lease. A commit extends it too.
    ///
    /// # Errors
    ///
    /// As [`Store::commit`].
    fn renew(&mut self) -> Result<(), CommitError> {
        Ok(())
    }

    /// Name of a daemon that stands by and would take the store over, if one was seen lately. The caller then
    /// closes the store.
    ///
    /// # Errors
    ///
    /// As [`Store::commit`].
    fn heir(&mut self) -> Result<Option<String>, CommitError> {
        Ok(None)
    }

    /// An exporter that runs concurrently with the thread that owns the store. `None`: this store has no
    /// exports.
    fn exporter(&self) -> Option<export::Exporter> {
        None
    }

    /// Used and free space.
    ///
    /// # Errors
    ///
    /// The file system reports no figures.
    fn usage(&self) -> Result<Usage, UsageError>;

    /// Checks that the store can still write: a background part of it may have failed between two commits.
    ///
    /// # Errors
    ///
    /// The error with which the next commit would fail.
    fn health(&self) -> Result<(), CommitError> {
        Ok(())
    }

    /// Begins to reclaim the space of deleted rows. Another thread runs the job, concurrently with commits
    /// and reads; [`Store::end_reclaim`] follows it. `None`: this store has no space to reclaim, or many rows
    /// are being flushed, and a later call may begin.
    ///
    /// # Errors
    ///
    /// As [`Store::commit`].
    fn begin_reclaim(&mut self) -> Result<Option<ReclaimJob>, CommitError> {
        Ok(None)
    }

    /// Releases the files that the job has made obsolete.
    ///
    /// # Errors
    ///
    /// As [`Store::commit`].
    fn end_reclaim(&mut self) -> Result<(), CommitError> {
        Ok(())
    }

    /// The most operations, and about the most bytes, for one call of [`Store::commit`]. The store still
    /// accepts a single larger group.
    fn group_limit(&self) -> (usize, u64) {
        (65_536, 32 << 20)
    }

    /// Syncs and closes all files.
    ///
    /// # Errors
    ///
    /// The last sync failed. All commits are durable nevertheless.
    fn close(self: Box<Self>) -> Result<(), CloseError>;
}

/// Reads contents and queues concurrently with the thread that owns the store.
pub trait Reader: Send {
    /// All wanted contents, or `None` if one is missing (not written yet, or already gone). The caller then
    /// asks the store itself, whose answer is ordered with the writes.
    ///
    /// # Errors
    ///
    /// As [`Store::load`].
    fn contents(&self, wanted: &WantedContents) -> Result<Option<Contents>, ReadError>;

    /// The next rows of some queues, as [`Load::Ranges`] describes them. A commit in progress may be visible
    /// in part.
    ///
    /// # Errors
    ///
    /// As [`Store::load`].
    fn ranges(&self, ranges: &[Range], max_rows: usize, max_bytes: u64) -> Result<Vec<RangeRows>, ReadError>;
}

/// An opened store, with the state read from it.
pub struct OpenStore {
    /// To pass to [`thread::spawn`].
    pub store: Box<dyn Store>,
    /// For the engine.
    pub opened: Opened,
    /// Random, chosen when the store is made. With the arrival number it keeps assigned ids unique
    /// permanently.
    pub identity: u64,
    /// Its previous owner, for a store that another daemon could have owned.
    pub takeover: Option<Takeover>,
    /// Number of this claim, for a store that another daemon could have owned.
    pub epoch: Option<u64>,
}

/// How this daemon came to own a store that several daemons can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takeover {
    /// It had no owner: it is new, or its last owner released it.
    Free,
    /// The lease of its last owner expired.
    Expired,
    /// This daemon owned it already, in an earlier process or an earlier life.
    Own,
}

impl Takeover {
    /// All of its values.
    pub const ALL: [Takeover; 3] = [Takeover::Free, Takeover::Expired, Takeover::Own];

    /// From the name of the last owner, if the store had one, and this daemon's own name.
    pub fn of<N: PartialEq + ?Sized>(former: Option<&N>, own: &N) -> Self {
        match former {
            None => Takeover::Free,
            Some(former) if former == own => Takeover::Own,
            Some(_) => Takeover::Expired,
        }
    }

    /// Its name in the state and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Takeover::Free => "free",
            Takeover::Expired => "expired",
            Takeover::Own => "own",
        }
    }
}

/// Which of how many shards a store belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardPlace {
    /// Number of the shard, from 0.
    pub number: u16,
    /// Number of shards; 1: it is the only one.
    pub count: u16,
}

impl ShardPlace {
    /// That of the only shard.
    pub const ONLY: ShardPlace = ShardPlace { number: 0, count: 1 };

    /// Whether there are no other shards.
    pub fn is_only(self) -> bool {
        self.count <= 1
    }
}

/// Opens the configured store: once, or repeatedly where another daemon may own it or it may be unreachable.
pub struct Opener {
    kind: OpenerKind,
    memory_limit: u64,
    accept_loss: bool,
}

enum OpenerKind {
    Disk(PathBuf),
    /// With the name of this daemon, and the path in which a disk store may have been left.
    Memory(String, PathBuf),
    Postgres(Box<postgres::Contender>),
}

impl Opener {
    /// Prepares to open the configured store. `place` matters for a store in a database alone, where all
    /// shards have the same tables; with several, `store.path` is the shard's directory in that of the node
    /// ([`tidegate_config::shard_path`]). `memory_limit` (`limits.memory`, bytes): the disk store's
    /// buffers and caches take about a quarter of it, the ended items of the memory store a sixteenth.
    /// `accept_loss`: go on although durable commits are missing.
    ///
    /// # Errors
    ///
    /// See [`OpenError`]: those of the directory, and of random numbers.
    pub fn new(
        store: &StoreConfig,
        place: ShardPlace,
        memory_limit: u64,
        accept_loss: bool,
    ) -> Result<Self, OpenError> {
        let kind = match store.kind {
            StoreKind::Disk => OpenerKind::Disk(store.path.clone()),
            StoreKind::Memory => OpenerKind::Memory(node::name_of_process()?, store.path.clone()),
            StoreKind::Postgres => {
                let contender = postgres::Contender::new(&store.path, database_of(store)?, place)?;
                OpenerKind::Postgres(Box::new(contender))
            }
        };
        Ok(Opener { kind, memory_limit, accept_loss })
    }

    /// Opens the store, and makes it first if there is none. `wall`: the wall clock, UTC ms.
    ///
    /// # Errors
    ///
    /// See [`OpenError`]. Nothing is repaired silently: a damaged store stays unchanged.
    pub fn open(&mut self, wall: u64) -> Result<OpenStore, OpenError> {
        match &mut self.kind {
            OpenerKind::Disk(path) => disk::open(path, self.memory_limit, self.accept_loss, wall),
            OpenerKind::Memory(_, path) => {
                left_behind::refuse_left_behind(path)?;
                memory::open(self.memory_limit)
            }
            OpenerKind::Postgres(contender) => contender.open(wall),
        }
    }

    /// The name of this daemon, as the owner of its store. To be called once the store was opened, or belongs
    /// to another daemon: only then is the directory locked.
    ///
    /// # Errors
    ///
    /// The file of the name cannot be read or made, or the system provides no random numbers.
    pub fn node(&self) -> Result<String, OpenError> {
        match &self.kind {
            OpenerKind::Disk(path) => node::name_in(path),
            OpenerKind::Memory(name, _) => Ok(name.clone()),
            OpenerKind::Postgres(contender) => contender.node(),
        }
    }
}

/// The database of this store.
///
/// # Errors
///
/// [`OpenError::Database`]: none is named.
fn database_of(store: &StoreConfig) -> Result<&DatabaseConfig, OpenError> {
    store.database.as_ref().ok_or_else(|| {
        let error = "no database is named".to_owned();
        OpenError::Database { place: "nowhere".to_owned(), error }
    })
}

/// Opens the configured store of the only shard, once; see [`Opener`].
///
/// # Errors
///
/// See [`Opener::new`] and [`Opener::open`].
pub fn open(
    store: &StoreConfig,
    memory_limit: u64,
    accept_loss: bool,
    wall: u64,
) -> Result<OpenStore, OpenError> {
    Opener::new(store, ShardPlace::ONLY, memory_limit, accept_loss)?.open(wall)
}

/// A random identity; never 0.
fn new_identity() -> Result<u64, OpenError> {
    Ok(getrandom::u64().map_err(|e| OpenError::Random(e.to_string()))?.max(1))
}
