//! Errors of the store: one enum for each kind of operation.

use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;
use tidegate_types::event::Place;

/// The engine requested something that no store can do: a bug in the program, not a fault of the disk.
/// Release builds check it as well, because going on would lose an item.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("a fault of this program, please report it: {0}")]
pub struct BrokenContract(String);

/// Makes the error. A debug build panics here.
#[track_caller]
pub(crate) fn broken_contract(what: impl Into<String>) -> BrokenContract {
    let what = what.into();
    debug_assert!(false, "{what}");
    BrokenContract(what)
}

/// Why a read failed.
#[derive(Debug, Error)]
pub enum ReadError {
    /// A row does not read as it was written.
    #[error("the store is damaged: keyspace `{keyspace}`, key {key}: {error}")]
    Damaged {
        /// Name of the keyspace.
        keyspace: &'static str,
        /// The row's key in readable form.
        key: String,
        /// What is wrong with the row.
        error: String,
    },
    /// An item is missing that must exist.
    #[error(
        "the item due {}, number {}, is not in the store (queue `{}`)",
        place.key.due, place.key.seq, place.queue
    )]
    Missing {
        /// The place of the item.
        place: Place,
    },
    /// The storage engine failed during a read, for a reason other than damage.
    #[error("the storage engine failed while it read: {0}")]
    Engine(String),
    /// The database did not answer, or not in time; it may answer again later.
    #[error("the database became unavailable during a read: {0}")]
    Lost(String),
    /// The engine broke its contract; see [`BrokenContract`].
    #[error(transparent)]
    Contract(#[from] BrokenContract),
}

/// Why a call of commit failed. It is then unknown whether the groups were written.
#[derive(Debug, Error)]
pub enum CommitError {
    /// No space left. Distinct from other faults, because space may become free again.
    #[error("the disk is full ({free} bytes free): {error}")]
    DiskFull {
        /// Free bytes when the store noticed it.
        free: u64,
        /// The storage engine's error text.
        error: String,
    },
    /// An item to be moved could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Memtables are not flushed: further writes would wait without bound.
    #[error("the disk has not kept up: keyspace `{keyspace}` has waited {waited_s} s for room in memory")]
    Backlog {
        /// The keyspace that has written most.
        keyspace: &'static str,
        /// Time waited, in seconds.
        waited_s: u64,
    },
    /// Another process has claimed the store.
    #[error("another daemon has taken the store over: nothing was written")]
    Fenced,
    /// The database did not answer, or not in time, or refused the commit; it may accept the next one.
    #[error("the database became unavailable during a commit: {0}")]
    Lost(String),
    /// The storage engine failed, for a reason other than a full disk.
    #[error("the storage engine failed while it {action}: {error}")]
    Engine {
        /// What it was doing.
        action: &'static str,
        /// Text of the error.
        error: String,
    },
    /// The engine broke its contract; see [`BrokenContract`].
    #[error(transparent)]
    Contract(#[from] BrokenContract),
}

/// Why the disk usage could not be measured.
#[derive(Debug, Error)]
#[error("the disk usage cannot be measured: {0}")]
pub struct UsageError(pub(crate) String);

/// Why a store did not close. All reported commits are durable nevertheless.
#[derive(Debug, Error)]
pub enum CloseError {
    /// The threads did not end in time.
    #[error("the store did not close within {0} ms")]
    Timeout(u128),
    /// The last sync failed.
    #[error("the last sync failed: {0}")]
    Sync(String),
}

/// Why the store's threads could not be started.
#[derive(Debug, Error)]
#[error("the store's thread cannot be started: {0}")]
pub struct SpawnError(#[from] pub(crate) io::Error);

/// Why a running store has stopped. The process opens the store again to learn its state.
#[derive(Debug, Error)]
pub enum StoreFailure {
    /// A commit failed.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// A read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The queue of writes exceeded its limit, because the disk has stalled.
    #[error(
        "the disk has not kept up: {bytes} bytes wait to be written, the first of them for {waited_ms} ms"
    )]
    Stalled {
        /// Number of queued bytes.
        bytes: u64,
        /// Age of the oldest queued job, ms.
        waited_ms: u64,
    },
    /// A call of the storage engine did not return.
    #[error("the disk does not answer: a {call} has not returned for {age_ms} ms")]
    NoAnswer {
        /// `commit`, `read` and so on.
        call: &'static str,
        /// Age of the call, ms.
        age_ms: u64,
    },
    /// The lease has expired, so another process may have claimed the store.
    #[error("the store may be another daemon's by now: the lease was last renewed {age_ms} ms ago")]
    LeaseOver {
        /// Time since the last renewal was requested, ms.
        age_ms: u64,
    },
    /// The daemon released the store, since it cannot reach the broker and another daemon stands by.
    #[error("the broker is unreachable: the store was left to {heir}, which stands by")]
    GivenAway {
        /// Name of the other daemon.
        heir: String,
    },
    /// One of the store's threads has panicked; the log says where.
    #[error("a thread of the store has panicked; see the log")]
    Panicked,
}

impl CommitError {
    fn loss(&self) -> Option<Loss> {
        match self {
            CommitError::Fenced => Some(Loss::Fenced),
            CommitError::Lost(_) | CommitError::Read(ReadError::Lost(_)) => Some(Loss::Database),
            CommitError::DiskFull { .. }
            | CommitError::Read(_)
            | CommitError::Backlog { .. }
            | CommitError::Engine { .. }
            | CommitError::Contract(_) => None,
        }
    }
}

/// How a daemon lost its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Another daemon has claimed it.
    Fenced,
    /// The lease expired before it could be extended.
    LeaseOver,
    /// The database did not answer, or refused.
    Database,
    /// The daemon left it to another daemon, since it could not reach the broker.
    GivenAway,
}

impl Loss {
    /// All of its values.
    pub const ALL: [Loss; 4] = [Loss::Fenced, Loss::LeaseOver, Loss::Database, Loss::GivenAway];

    /// Its name in the state and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Loss::Fenced => "fenced",
            Loss::LeaseOver => "lease_over",
            Loss::Database => "database",
            Loss::GivenAway => "given_away",
        }
    }
}

impl StoreFailure {
    /// Set if the store is intact, but unreachable or owned by another daemon. Opening it again, once that is
    /// possible, shows its state.
    pub fn loss(&self) -> Option<Loss> {
        match self {
            StoreFailure::Commit(error) => error.loss(),
            StoreFailure::Read(ReadError::Lost(_)) => Some(Loss::Database),
            StoreFailure::LeaseOver { .. } => Some(Loss::LeaseOver),
            StoreFailure::GivenAway { .. } => Some(Loss::GivenAway),
            StoreFailure::Read(_)
            | StoreFailure::Stalled { .. }
            | StoreFailure::NoAnswer { .. }
            | StoreFailure::Panicked => None,
        }
    }
}

/// Why a store cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has opened the store.
    #[error(
        "{} is in use by process {}", path.display(),
        pid.map_or_else(|| "unknown".to_owned(), |p| p.to_string())
    )]
    Locked {
        /// The process id of the other, if that process has written it to the lock file.
        pid: Option<u32>,
        /// The lock file.
        path: PathBuf,
    },
    /// Another daemon owns the store, on this machine or another.
    #[error(
        "the store belongs to {owner}; its lease ends in {} s unless renewed", left_ms.div_ceil(1_000)
    )]
    Claimed {
        /// Names of its machine and of the daemon.
        owner: String,
        /// Remaining time of its lease, ms.
        left_ms: u64,
    },
    /// The clocks of the database and of this machine are too far apart.
    #[error("database {place}: {error}")]
    ClockApart {
        /// Name and addresses of the database.
        place: String,
        /// The difference, and what follows.
        error: String,
    },
    /// The database is unreachable, or refuses.
    #[error("database {place}: {error}")]
    Database {
        /// Name and addresses of the database.
        place: String,
        /// Its answer, or the obstacle.
        error: String,
    },
    /// The tables belong to another program, or to another version of this one.
    #[error("schema `{schema}` does not fit: {error}")]
    ForeignSchema {
        /// Name of the schema.
        schema: String,
        /// What is different.
        error: String,
    },
    /// The tables are laid out for another number of shards than configured.
    #[error(
        "schema `{schema}` does not fit: it is laid out for {}, and shards.count is {wanted}: set \
         shards.count = {found}, or name another store.schema", shards_in_words(*found)
    )]
    OtherShards {
        /// Name of the schema.
        schema: String,
        /// Number of shards in the tables.
        found: u16,
        /// The configured number.
        wanted: u16,
    },
    /// The directory contains a store on the disk, whose items would not be delivered.
    #[error(
        "{} holds a store on the disk, whose items would not be delivered: run it with \
         `store.kind = \"disk\"` until nothing waits and move `db` away (with several shards: `SHARDS`, and \
         each `db`), or name another store.path",
        path.display()
    )]
    HoldsDisk {
        /// The configured path.
        path: PathBuf,
    },
    /// The directory contains another number of shards than configured.
    #[error(
        "{} holds the items of {found} shards, and shards.count is {wanted}: set shards.count = {found}; {}",
        path.display(), way_to_count(*wanted)
    )]
    OtherCount {
        /// The configured path.
        path: PathBuf,
        /// Number of shards in the directory.
        found: u16,
        /// The configured number.
        wanted: u16,
    },
    /// The directory contains a single store, and several shards are configured.
    #[error(
        "{} holds a store that is not divided into shards, and shards.count is {wanted}: set \
         shards.count = 1; {}", path.display(), way_to_count(*wanted)
    )]
    Undivided {
        /// The configured path.
        path: PathBuf,
        /// The configured number of shards.
        wanted: u16,
    },
    /// The file about the shards does not read as it was written, or is missing.
    #[error(
        "{}: {error}; restore the file from a copy of the directory, since the shards' stores belong to it",
        path.display()
    )]
    BadLayout {
        /// The file that was looked for.
        path: PathBuf,
        /// What is wrong with it.
        error: String,
    },
    /// The directory of one of the shards is missing.
    #[error(
        "{} is missing, the directory of a shard's store: mount or restore it. To go on without its items, \
         make an empty directory of this name, with mode 0700", path.display()
    )]
    LostShard {
        /// The missing directory.
        path: PathBuf,
    },
    /// The directory contains one store for each shard, and a single store is meant.
    #[error(
        "{} holds the stores of several shards, and is no store itself: name one of them, such as {}",
        path.display(), path.join("shard-0").display()
    )]
    Sharded {
        /// The path that was named.
        path: PathBuf,
    },
    /// The directory is a symbolic link: its owner could redirect it.
    #[error("{} is a symbolic link; name the directory itself", path.display())]
    Symlink {
        /// The configured path.
        path: PathBuf,
    },
    /// The path is not a directory.
    #[error("{} is not a directory", path.display())]
    NotADirectory {
        /// The configured path.
        path: PathBuf,
    },
    /// There is no store, and none shall be made.
    #[error("there is no store in {}", path.display())]
    Absent {
        /// The path that was named.
        path: PathBuf,
    },
    /// The import that made the store was interrupted.
    #[error(
        "the import into {} was interrupted, and what is in it is incomplete: remove the directory, or \
         empty it, and import again", path.display()
    )]
    Incomplete {
        /// Directory of the store.
        path: PathBuf,
    },
    /// Another user owns the directory: files made by this process would be inaccessible to that user.
    #[error(
        "{} belongs to user {owner}, and this process runs as user {user}: run it as user {owner}",
        path.display()
    )]
    Foreign {
        /// The path that was named.
        path: PathBuf,
        /// User id of its owner.
        owner: u32,
        /// User id of this process.
        user: u32,
    },
    /// Written by a newer version of this program.
    #[error("the store has format {found}, and the newest format that this program reads is {known}")]
    Newer {
        /// The store's format.
        found: u32,
        /// Format of this program.
        known: u32,
    },
    /// Written by an older version of this program, in a format that cannot be brought up to date.
    #[error("the store has format {found}, which this program cannot read; {}", way_over(*found))]
    Older {
        /// The store's format.
        found: u32,
    },
    /// The store does not read as it was written. Nothing was repaired or discarded.
    #[error("the store is damaged: {place}: {error}")]
    Damaged {
        /// The file, or the keyspace and key.
        place: String,
        /// What is wrong with the store.
        error: String,
    },
    /// A file could not be made, opened or read.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What the store tried to do.
        action: &'static str,
        /// The file or directory concerned.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The first commit of a new store failed.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The storage engine could not read, for a reason other than damage.
    #[error(transparent)]
    Read(ReadError),
    /// No random number for the store's identity.
    #[error("the system provides no random numbers: {0}")]
    Random(String),
}

impl OpenError {
    /// Whether a later attempt may succeed without a repair here: another daemon owns the store, the database
    /// is unreachable, or a clock is wrong.
    pub fn is_passing(&self) -> bool {
        match self {
            OpenError::Claimed { .. }
            | OpenError::ClockApart { .. }
            | OpenError::Database { .. }
            | OpenError::Read(ReadError::Lost(_)) => true,
            OpenError::Commit(error) => error.loss().is_some(),
            OpenError::Locked { .. }
            | OpenError::ForeignSchema { .. }
            | OpenError::OtherShards { .. }
            | OpenError::HoldsDisk { .. }
            | OpenError::OtherCount { .. }
            | OpenError::Undivided { .. }
            | OpenError::BadLayout { .. }
            | OpenError::LostShard { .. }
            | OpenError::Sharded { .. }
            | OpenError::Symlink { .. }
            | OpenError::NotADirectory { .. }
            | OpenError::Absent { .. }
            | OpenError::Incomplete { .. }
            | OpenError::Foreign { .. }
            | OpenError::Newer { .. }
            | OpenError::Older { .. }
            | OpenError::Damaged { .. }
            | OpenError::Io { .. }
            | OpenError::Read(_)
            | OpenError::Random(_) => false,
        }
    }

    /// For `map_err`: the action and its path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| OpenError::Io { action, path, source }
    }
}

impl From<ReadError> for OpenError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Damaged { keyspace, key, error } => {
                OpenError::Damaged { place: format!("keyspace `{keyspace}`, key {key}"), error }
            }
            ReadError::Missing { .. }
            | ReadError::Engine(_)
            | ReadError::Lost(_)
            | ReadError::Contract(_) => OpenError::Read(error),
        }
    }
}

/// A number of shards in words.
pub(crate) fn shards_in_words(count: u16) -> String {
    match count {
        1 => "1 shard".to_owned(),
        count => format!("{count} shards"),
    }
}

/// How to migrate a store of an older format.
fn way_over(found: u32) -> &'static str {
    // Older programs have no export.
    if found < 3 {
        "let the version that wrote it run until nothing waits any more, then remove the store's directory \
         and start this one"
    } else {
        "with the version that wrote it: `tidegate store export DIR > FILE`; move DIR away; with this one: \
         `tidegate store import DIR < FILE`"
    }
}

/// How to bring the items of a store to another number of shards.
fn way_to_count(wanted: u16) -> String {
    format!(
        "to change the number, stop the daemon, `tidegate store export > FILE`, move the directory away, set \
         shards.count = {wanted}, `tidegate store import < FILE`"
    )
}
