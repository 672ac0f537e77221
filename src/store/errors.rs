//! What can go wrong: an enum for each kind of operation.

use crate::engine::event::Place;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The engine asked for what no store can do: a fault of the program, not of the disk. Checked in a release
/// build as well, because going on would lose an item.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("a fault of this program, please report it: {0}")]
pub struct BrokenContract(String);

/// Says which contract was broken. A debug build ends here.
#[track_caller]
pub(super) fn broken_contract(what: impl Into<String>) -> BrokenContract {
    let what = what.into();
    debug_assert!(false, "{what}");
    BrokenContract(what)
}

/// Why something could not be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// Something stored does not read as it was written.
    #[error("the store is damaged: keyspace `{keyspace}`, key {key}: {error}")]
    Damaged {
        /// Which part of the store.
        keyspace: &'static str,
        /// The row's key, readable.
        key: String,
        /// What is wrong with it.
        error: String,
    },
    /// An item that should be there is not.
    #[error(
        "the item due {}, number {}, is not in the store (queue `{}`)",
        place.key.due, place.key.seq, place.queue
    )]
    Missing {
        /// Where it was looked for.
        place: Place,
    },
    /// The storage engine failed while it read, for another reason than damage.
    #[error("the storage engine failed while it read: {0}")]
    Engine(String),
    /// The database has not answered, or not in time: it may do so again.
    #[error("the database was lost while rows were read: {0}")]
    Lost(String),
    /// As [`BrokenContract`] says.
    #[error(transparent)]
    Contract(#[from] BrokenContract),
}

/// Why a group of commits failed. Nothing may be relied on then: they may have been written, or not.
#[derive(Debug, Error)]
pub enum CommitError {
    /// No room left. Distinct from other faults: space may come back.
    #[error("the disk is full ({free} bytes free): {error}")]
    DiskFull {
        /// Bytes free when it was noticed.
        free: u64,
        /// The storage engine's words.
        error: String,
    },
    /// An item that was to be moved could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// What was written lately does not go to tables: writing more would wait without bound.
    #[error("the disk has not kept up: keyspace `{keyspace}` has waited {waited_s} s for room in memory")]
    Backlog {
        /// The part of the store that has written most.
        keyspace: &'static str,
        /// Time waited, seconds.
        waited_s: u64,
    },
    /// Another process has claimed the store.
    #[error("another daemon has taken the store over: nothing was written")]
    Fenced,
    /// The database has not answered, or not in time, or has refused: it may take the next one.
    #[error("the database was lost while it committed: {0}")]
    Lost(String),
    /// The storage engine failed, for another reason than room.
    #[error("the storage engine failed while it {action}: {error}")]
    Engine {
        /// What it did.
        action: &'static str,
        /// Text of the error.
        error: String,
    },
    /// As [`BrokenContract`] says.
    #[error(transparent)]
    Contract(#[from] BrokenContract),
}

/// Why room on the disk could not be measured.
#[derive(Debug, Error)]
#[error("room on the disk cannot be measured: {0}")]
pub struct UsageError(pub(super) String);

/// Why a store did not close. What was reported as committed is durable even so.
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
pub struct SpawnError(#[from] pub(super) io::Error);

/// Why a running store does nothing any more. The process ends, and opens it again to learn what is there.
#[derive(Debug, Error)]
pub enum StoreFailure {
    /// A commit failed.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// A read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// More was queued than whoever queues it may, because the disk has stood still.
    #[error(
        "the disk has not kept up: {bytes} bytes wait to be written, the first of them for {waited_ms} ms"
    )]
    Stalled {
        /// Number of bytes queued.
        bytes: u64,
        /// Age of the oldest, ms.
        waited_ms: u64,
    },
    /// A call of the storage engine did not come back.
    #[error("the disk does not answer: a {call} has not come back for {age_ms} ms")]
    NoAnswer {
        /// `commit`, `read` and so on.
        call: &'static str,
        /// Age of the call, ms.
        age_ms: u64,
    },
    /// Another process may have claimed the store meanwhile.
    #[error("the store may be another daemon's by now: the lease was last renewed {age_ms} ms ago")]
    LeaseOver {
        /// Time since the last renewal was asked for, ms.
        age_ms: u64,
    },
    /// It was let go of, since it is of no use without a broker, and another daemon stands by.
    #[error("there is no way to the broker: the store was left to {heir}, which stands by")]
    GivenAway {
        /// Name of the other daemon.
        heir: String,
    },
    /// One of the store's threads has panicked; the log says where.
    #[error("the store has a fault of its own; see the log")]
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

/// How a store was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Another daemon has claimed it.
    Fenced,
    /// The lease was over before it could be extended.
    LeaseOver,
    /// The database did not answer, or would not do.
    Database,
    /// It was left to another daemon, for want of a way to the broker.
    GivenAway,
}

impl Loss {
    /// All of them.
    pub const ALL: [Loss; 4] = [Loss::Fenced, Loss::LeaseOver, Loss::Database, Loss::GivenAway];

    /// As state and metrics tell it.
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
    /// Set where the store is not broken, but out of reach or another daemon's: what is there is learned by
    /// opening it anew, once that can be done.
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
    /// Another process has it.
    #[error(
        "{} is in use by process {}", path.display(),
        pid.map_or_else(|| "unknown".to_owned(), |p| p.to_string())
    )]
    Locked {
        /// The other's process id, as far as it has written it down.
        pid: Option<u32>,
        /// The lock file.
        path: PathBuf,
    },
    /// Another daemon has it, on this machine or another one.
    #[error(
        "the store is {owner}'s, for another {} s unless that goes on", left_ms.div_ceil(1_000)
    )]
    Claimed {
        /// Name of its machine, and its own.
        owner: String,
        /// What is left of its lease, ms.
        left_ms: u64,
    },
    /// The database cannot be reached, or will not do.
    #[error("database {place}: {error}")]
    Database {
        /// Its name and addresses.
        place: String,
        /// Its answer, or what is in the way.
        error: String,
    },
    /// The tables are another program's, or of another version of this one.
    #[error("schema `{schema}` does not fit: {error}")]
    ForeignSchema {
        /// Name of the schema.
        schema: String,
        /// What is otherwise.
        error: String,
    },
    /// The directory holds a store on the disk: what waits there would not leave.
    #[error(
        "{} holds a store on the disk, whose items would not leave: run it with `store.kind = \"disk\"` \
         until nothing waits and move `db` away, or name another store.path", path.display()
    )]
    HoldsDisk {
        /// The configured path.
        path: PathBuf,
    },
    /// The directory is a symbolic link: whoever made it might turn it elsewhere.
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
    /// Nothing is there, and nothing is to be made.
    #[error("there is no store in {}", path.display())]
    Absent {
        /// The path that was named.
        path: PathBuf,
    },
    /// Another user's: files that this process makes in it would be out of that one's reach.
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
    #[error("the store has format {found}, and this program knows no newer one than {known}")]
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
        /// File or directory concerned.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The first commit of a new store failed.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The storage engine could not read, for another reason than damage.
    #[error(transparent)]
    Read(ReadError),
    /// No random number for the store's identity.
    #[error("the system gives no random numbers: {0}")]
    Random(String),
}

impl OpenError {
    /// It may be opened later, without anything being mended here: another daemon has it, or the database is
    /// out of reach.
    pub fn is_passing(&self) -> bool {
        match self {
            OpenError::Claimed { .. } | OpenError::Database { .. } | OpenError::Read(ReadError::Lost(_)) => {
                true
            }
            OpenError::Commit(error) => error.loss().is_some(),
            OpenError::Locked { .. }
            | OpenError::ForeignSchema { .. }
            | OpenError::HoldsDisk { .. }
            | OpenError::Symlink { .. }
            | OpenError::NotADirectory { .. }
            | OpenError::Absent { .. }
            | OpenError::Foreign { .. }
            | OpenError::Newer { .. }
            | OpenError::Older { .. }
            | OpenError::Damaged { .. }
            | OpenError::Io { .. }
            | OpenError::Read(_)
            | OpenError::Random(_) => false,
        }
    }

    /// For `map_err`: what was tried on which path.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
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

/// How to bring a store of an older format over.
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
