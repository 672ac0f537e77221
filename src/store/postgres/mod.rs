//! The store in a PostgreSQL database: the rows of the disk store in tables of the database.
//!
//! Other modules define the meaning of rows, once for all engines ([`super::changes`], [`super::load`]). This
//! module contains the tables ([`schema`]), the connection ([`connect`]), the ownership of the tables
//! ([`claim`], [`home`]), and the reading ([`rows`]) and writing ([`commit`]) of rows.
//! [`inspect`](mod@inspect) finds out beforehand what a daemon would miss, and [`frozen`] reads all shards
//! for an export.
//!
//! With several shards, each has its own rows, claim and lease in the same tables; [`membership`] tells which
//! nodes may share them.
//!
//! One daemon at a time owns the store, by a lease that each commit extends. A daemon that has lost the store
//! without noticing writes nothing: each transaction begins with the fence, which the database refuses once
//! another daemon has claimed the store. Any doubt about a commit ends the store, as on a disk; opening it
//! again shows its state.
//!
//! Deliberately absent: reconnecting, and waiting until the store is free. The caller that opened the store
//! does both.

mod claim;
mod clocks;
mod commit;
mod connect;
mod frozen;
mod home;
mod inspect;
mod membership;
mod pooling;
mod rights;
mod rows;
mod schema;
mod settings;
mod statements;

#[cfg(test)]
mod frozen_tests;
#[cfg(test)]
mod inspect_tests;
#[cfg(test)]
mod shards_tests;
#[cfg(test)]
mod tests;

pub(super) use frozen::{freeze, refuse_absent};
pub use inspect::inspect;
pub use membership::{MemberView, Membership, SeenShard};
pub use schema::schema;

use super::ended::Epochs;
use super::load;
use super::{
    CloseError, CommitError, CommitGroup, Contents, OpenError, OpenStore, ReadError, Reader, ReclaimJob,
    ShardPlace, Store, Usage, UsageError, WantedContents,
};
use claim::{Claim, Claimed};
use connect::DatabaseLink;
use home::ShardHome;
use rows::PgRows;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidegate_common::clock;
use tidegate_common::lease::Lease;
use tidegate_config::DatabaseConfig;
use tidegate_types::event::{Load, Loaded, Marks, Opened, Range, RangeRows};

/// Pause between two trials whether a database has room again.
const TRIAL_PAUSE: Duration = Duration::from_secs(5);

/// A step of a scan ends after this time, because commits wait for the same thread.
const LOOK_WITHIN: Duration = Duration::from_millis(20);
/// Age at which the size of the tables is queried again.
const USAGE_AGE: Duration = Duration::from_secs(60);
/// Approximate limit of one transaction, in operations and bytes: it takes some hundred milliseconds.
const GROUP_LIMIT: (usize, u64) = (20_000, 8 << 20);
/// Rows of an earlier epoch that one statement removes.
const SWEPT: i64 = 5_000;
/// Pause between two such statements.
const SWEEP_PAUSE: Duration = Duration::from_millis(50);

/// For this time, in ms, a daemon that has left the store to another is no heir. Otherwise the store would
/// change hands without end while no daemon can reach the broker.
const NO_HEIR_MS: u64 = 300_000;

/// Claims the store, and keeps the connections and the directory from one attempt to the next.
pub(super) struct Contender {
    config: DatabaseConfig,
    /// Locked as long as this process may own the store.
    home: Arc<ShardHome>,
    /// The connections for commits and for contents, once they are open.
    links: Option<[DatabaseLink; 2]>,
    /// Number of claims by this process.
    claims: Arc<AtomicU64>,
    /// When this process last left the store to another daemon, monotonic ms; 0: never.
    left_at: Arc<AtomicU64>,
    /// Bytes of the last commit, if the database had no room for it; 0: it had.
    lacking: Arc<AtomicU64>,
}

impl Contender {
    /// Prepares a claim for this shard, with the directory `path`.
    ///
    /// # Errors
    ///
    /// [`OpenError::HoldsDisk`]; those of the directory, as [`super::open`] says.
    pub(super) fn new(path: &Path, config: &DatabaseConfig, place: ShardPlace) -> Result<Self, OpenError> {
        Ok(Contender {
            config: config.clone(),
            home: Arc::new(ShardHome::open(path, place)?),
            links: None,
            claims: Arc::default(),
            left_at: Arc::default(),
            lacking: Arc::default(),
        })
    }

    /// Opens the store, makes it first if there is none, and claims it. `wall`: the wall clock, UTC ms.
    ///
    /// # Errors
    ///
    /// See [`super::open`].
    pub(super) fn open(&mut self, wall: u64) -> Result<OpenStore, OpenError> {
        // All slow steps come before the claim, with which the lease begins.
        let links = self.links.take().map_or_else(|| self.connect(), Ok)?;
        // The claim does not use the second connection, which must work afterwards.
        links[1].ask("SELECT 1").map_err(|e| links[1].failed(&e))?;
        // A daemon that has left the store to another is no heir for a while.
        let left_at = self.left_at.load(Ordering::Acquire);
        let is_heir = left_at == 0 || now_ms() >= left_at + NO_HEIR_MS;
        let home = (&self.home, &self.claims);
        let claimed = match Claim::take(&links[0], home, &self.config, is_heir) {
            Err(error @ (OpenError::Claimed { .. } | OpenError::ClockApart { .. })) => {
                // With several shards the next attempt may come after days.
                self.links = Some(links).filter(|_| self.home.place().is_only());
                return Err(error);
            }
            claimed => claimed?,
        };
        let Claimed { claim, number, marks, identity, takeover, epoch } = claimed;
        let [rows, reader] = PgRows::over(links);
        let opened = match first_reads(&rows, &claim, (number, marks), wall) {
            Ok(opened) => opened,
            Err(error) => {
                // Another daemon need not wait for the lease to find the same.
                claim.release(rows.link());
                return Err(error);
            }
        };
        let store = PgStore {
            rows,
            claim,
            number,
            marks,
            reader: Mutex::new(Some(reader)),
            usage: Mutex::new(None),
            config: self.config.clone(),
            place: self.home.place(),
            sweep: Arc::default(),
            left_at: Arc::clone(&self.left_at),
            lacking: Arc::clone(&self.lacking),
            tried_at: Mutex::default(),
        };
        Ok(OpenStore {
            store: Box::new(store),
            opened,
            identity,
            takeover: Some(takeover),
            epoch: Some(epoch),
        })
    }

    /// The name of this node.
    ///
    /// # Errors
    ///
    /// [`OpenError::Io`], [`OpenError::Random`].
    pub(super) fn node(&self) -> Result<String, OpenError> {
        self.home.name()
    }

    fn connect(&self) -> Result<[DatabaseLink; 2], OpenError> {
        let (config, ShardPlace { number, count }) = (&self.config, self.home.place());
        let mut links = [DatabaseLink::open(config)?, DatabaseLink::open(config)?];
        schema::ensure(&links[0], &config.schema, count)?;
        for link in &mut links {
            link.prepare(&config.schema, number)?;
        }
        // The claim needs no right on these tables, and a store that cannot be used must not be claimed.
        links[0].execute(&rights::trials_of_rows(&config.schema)).map_err(|e| links[0].failed(&e))?;
        Ok(links)
    }
}

/// Reads what a life begins with, and then extends the lease, of which that may have taken a good part.
///
/// # Errors
///
/// As [`super::open`].
fn first_reads(
    rows: &PgRows,
    claim: &Claim,
    (number, marks): (u64, Marks),
    wall: u64,
) -> Result<Opened, OpenError> {
    let read = rows.find_closings().and_then(|()| load::opened(rows, marks, wall));
    let (opened, epochs) = read.map_err(|error| match error {
        // As any other statement that the database refuses at a start.
        ReadError::Engine(text) => {
            let place = rows.link().place();
            let error = text.strip_prefix(&format!("{place}: ")).unwrap_or(&text).to_owned();
            OpenError::Database { place: place.to_owned(), error }
        }
        other @ (ReadError::Damaged { .. }
        | ReadError::Missing { .. }
        | ReadError::Lost(_)
        | ReadError::Contract(_)) => other.into(),
    })?;
    rows.set_epochs(epochs);
    claim.renew(rows.link(), number, marks)?;
    Ok(opened)
}

/// See the module.
struct PgStore {
    rows: PgRows,
    claim: Claim,
    /// Number of the last commit.
    number: u64,
    /// The marks of the last commit.
    marks: Marks,
    /// The second reader, until it is taken.
    reader: Mutex<Option<PgRows>>,
    /// The last measured usage, and its time.
    usage: Mutex<Option<(Instant, Usage)>>,
    config: DatabaseConfig,
    place: ShardPlace,
    sweep: Arc<Sweep>,
    /// Shared with its [`Contender`], as the next one.
    left_at: Arc<AtomicU64>,
    lacking: Arc<AtomicU64>,
    /// When it was last tried whether there is room again.
    tried_at: Mutex<Option<Instant>>,
}

impl PgStore {
    /// Whether the database has room, as far as is known: after a commit that was refused for lack of it, as
    /// much is tried now and then. A life that takes requests returns them if its next commit is refused, and
    /// the broker counts each return.
    fn has_room(&self) -> Result<bool, UsageError> {
        let lacking = self.lacking.load(Ordering::Acquire);
        let mut tried_at = self.tried_at.lock().unwrap_or_else(PoisonError::into_inner);
        if lacking == 0 {
            return Ok(true);
        }
        if tried_at.is_some_and(|at| at.elapsed() < TRIAL_PAUSE) {
            return Ok(false);
        }
        *tried_at = Some(Instant::now());
        match self.rows.link().try_write(&self.config.schema, lacking.min(GROUP_LIMIT.1)) {
            Ok(()) => {
                self.lacking.store(0, Ordering::Release);
                Ok(true)
            }
            Err(error) if error.is_shortage() => Ok(false),
            Err(error) => Err(UsageError(error.to_string())),
        }
    }
}

/// The state of the removal of old rows of ended items.
#[derive(Debug, Default)]
struct Sweep {
    /// As far as known, no bucket contains rows of an earlier epoch.
    is_done: AtomicBool,
    /// The store is being closed, and the sweep stops.
    is_over: AtomicBool,
}

impl Store for PgStore {
    fn commit(&mut self, groups: &[CommitGroup]) -> Result<(), CommitError> {
        self.commit_all(groups)
    }

    fn load(&mut self, load: &Load) -> Result<Loaded, ReadError> {
        if let Load::Scan(scan) = load {
            let until = Instant::now() + LOOK_WITHIN;
            return load::look(&self.rows, scan, || Instant::now() >= until);
        }
        load::load(&self.rows, load, &self.rows.epochs())
    }

    fn reader(&self) -> Option<Box<dyn Reader>> {
        let rows = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Box::new(rows))
    }

    fn lease(&self) -> Option<Arc<Lease>> {
        Some(Arc::clone(self.claim.lease()))
    }

    fn renew(&mut self) -> Result<(), CommitError> {
        self.claim.renew(self.rows.link(), self.number, self.marks)?;
        self.claim.follow_name(self.rows.link());
        Ok(())
    }

    fn heir(&mut self) -> Result<Option<String>, CommitError> {
        let heir = self.claim.heir(self.rows.link())?;
        if heir.is_some() {
            self.left_at.store(now_ms().max(1), Ordering::Release);
        }
        Ok(heir)
    }

    /// The tables contain the rows of all shards: each shard reports an equal part of their size. After a
    /// commit for which there was no room, nothing is free until a trial finds room.
    fn usage(&self) -> Result<Usage, UsageError> {
        let free = if self.has_room()? { u64::MAX } else { 0 };
        let mut known = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, usage)) = *known {
            if at.elapsed() < USAGE_AGE {
                return Ok(Usage { free, ..usage });
            }
        }
        let size = self.rows.link().size(&self.config.schema);
        let (used, is_unsynced) = size.map_err(|e| UsageError(e.to_string()))?;
        if is_unsynced && !self.config.allow_async {
            tracing::warn!(
                "the server runs with fsync = off by now: a crash of its machine loses confirmed commits"
            );
        }
        let usage = Usage { used: used / u64::from(self.place.count.max(1)), free, total: u64::MAX };
        *known = Some((Instant::now(), usage));
        Ok(usage)
    }

    /// Removes the buckets' rows of earlier epochs.
    fn begin_reclaim(&mut self) -> Result<Option<ReclaimJob>, CommitError> {
        if self.sweep.is_done.swap(true, Ordering::AcqRel) {
            return Ok(None);
        }
        let (config, shard, epochs) = (self.config.clone(), self.place.number, self.rows.epochs());
        let (sweep, token) = (Arc::clone(&self.sweep), self.claim.fence().0.to_vec());
        Ok(Some(Box::new(move || {
            let swept = sweep.run((&config, shard), &token, epochs);
            if swept.is_err() {
                sweep.is_done.store(false, Ordering::Release);
            }
            swept.map_err(|error| CommitError::Engine { action: "removed old rows of ended items", error })
        })))
    }

    fn group_limit(&self) -> (usize, u64) {
        GROUP_LIMIT
    }

    fn close(self: Box<Self>) -> Result<(), CloseError> {
        self.sweep.is_over.store(true, Ordering::Release);
        self.claim.release(self.rows.link());
        Ok(())
    }
}

impl Sweep {
    /// Removes rows of this shard and of epochs before these in small portions, on a separate connection, as
    /// long as this claim owns the store.
    fn run(
        &self,
        (config, shard): (&DatabaseConfig, u16),
        token: &[u8],
        epochs: Epochs,
    ) -> Result<(), String> {
        let mut link = DatabaseLink::open(config).map_err(|e| e.to_string())?;
        link.prepare(&config.schema, shard).map_err(|e| e.to_string())?;
        for (bucket, epoch) in (0_i16..).zip(epochs) {
            loop {
                let removed = link.sweep(token, (bucket, epoch), SWEPT).map_err(|e| e.to_string())?;
                if removed < SWEPT as u64 || self.is_over.load(Ordering::Acquire) {
                    break;
                }
                std::thread::sleep(SWEEP_PAUSE);
            }
        }
        Ok(())
    }
}

impl Reader for PgRows {
    /// Without anything wanted, only the connection is used.
    fn contents(&self, wanted: &WantedContents) -> Result<Option<Contents>, ReadError> {
        if wanted.is_empty() {
            self.touch()?;
        }
        Ok(load::contents(self, wanted)?.all())
    }

    fn ranges(&self, ranges: &[Range], max_rows: usize, max_bytes: u64) -> Result<Vec<RangeRows>, ReadError> {
        load::read_ranges(self, ranges, max_rows, max_bytes)
    }
}

/// The present monotonic ms, which leases use.
fn now_ms() -> u64 {
    clock::now().mono
}
