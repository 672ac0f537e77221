//! Whose the store is: a random claim for each life, which the fence of each transaction must match, and a
//! lease that each of them extends.
//!
//! A daemon knows itself again by a file in its directory, which is locked: an earlier process of it has
//! ended, so it need not wait for that one's lease. The file says when the machine was booted, and its own
//! place on the disk, so that a copy of it is another daemon; and whoever has been refused as a former owner
//! forgets it, so that two that pass for one do not take the store from each other for ever.

use super::connect::{DatabaseError, DatabaseLink};
use super::now_ms;
use crate::clock;
use crate::config::DatabaseConfig;
use crate::engine::event::Marks;
use crate::engine::types::Now;
use crate::lease::Lease;
use crate::store::directory::{own_file, Directory};
use crate::store::{CommitError, OpenError, Takeover};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_postgres::error::SqlState;

/// Bytes of a claim, and of a daemon's name for itself.
const RANDOM: usize = 16;
/// By so much may the moment of one boot differ, as the clocks say it at different times.
const SAME_BOOT_MS: u64 = 120_000;
/// How long a transaction may hold the row that is claimed: an earlier process's last one, which ends with
/// its connection.
const LOCKED_LIMIT: Duration = Duration::from_secs(10);

/// The store, as it was claimed.
pub(super) struct Claimed {
    pub(super) claim: Claim,
    /// Of the last commit.
    pub(super) number: u64,
    /// Of the last commit.
    pub(super) marks: Marks,
    /// Same as [`crate::store::OpenStore::identity`].
    pub(super) identity: u64,
    /// Same as [`crate::store::OpenStore::takeover`].
    pub(super) takeover: Takeover,
}

/// See the module.
pub(super) struct Claim {
    token: [u8; RANDOM],
    owner: String,
    lease: Arc<Lease>,
    lease_ms: f64,
    /// Locked as long as it is claimed.
    directory: Arc<Directory>,
    /// Number of this claim, and of the last one of this process.
    number: u64,
    claims: Arc<AtomicU64>,
}

impl Claim {
    /// Claims the store for the daemon of this directory. `claims`: how many this process has had. `is_heir`:
    /// others may leave the store to it.
    ///
    /// # Errors
    ///
    /// [`OpenError::Claimed`], [`OpenError::Database`], [`OpenError::Io`], [`OpenError::Random`].
    pub(super) fn take(
        link: &DatabaseLink,
        (directory, claims): (&Arc<Directory>, &Arc<AtomicU64>),
        config: &DatabaseConfig,
        is_heir: bool,
    ) -> Result<Claimed, OpenError> {
        let failed = |error: DatabaseError| link.failed(&error);
        let statements = link.statements().map_err(failed)?;
        let (token, owner) = (random()?, owner(directory)?);
        let lease_ms = config.lease.as_millis() as u64;
        let begun = Instant::now();
        loop {
            let (sent, warnings) = (now_ms(), link.warnings());
            let taken = link.query(&statements.claim, &[&token.as_slice(), &owner, &(lease_ms as f64)]);
            let rows = match taken {
                Ok(rows) => rows,
                Err(error) if is_locked(&error) && begun.elapsed() < LOCKED_LIMIT => {
                    let ended = link.query(&statements.unblock, &[&owner]).map_err(failed)?;
                    if !ended.is_empty() {
                        tracing::warn!("the former owner's connection held the store's row, and was ended");
                    }
                    continue;
                }
                Err(error) => return Err(failed(error)),
            };
            let Some(row) = rows.first() else {
                let rows = link.query(&statements.owner, &[]).map_err(failed)?;
                let Some(row) = rows.first() else {
                    return Err(failed(DatabaseError::saying("table `shards` is empty")));
                };
                let left_ms = row.get::<_, i64>(1).unsigned_abs();
                if left_ms == 0 && begun.elapsed() < LOCKED_LIMIT {
                    // Meanwhile it has become free.
                    continue;
                }
                let has = row.get(0);
                if is_heir {
                    // It stands by all the same.
                    let noted = link.query(&statements.note_spare, &[&owner]);
                    noted.map_or_else(|error| tracing::debug!(%error, "no note of standing by"), drop);
                }
                return Err(OpenError::Claimed { owner: has, left_ms });
            };
            link.unwarned(warnings).map_err(failed)?;
            let forgotten = link.query(&statements.forget_spares, &[&owner]);
            forgotten.map_or_else(|error| tracing::debug!(%error, "a note of standing by stays"), drop);
            let number = |column| row.get::<_, i64>(column) as u64;
            let marks = Marks { next_seq: number(2), wall: number(3) };
            let takeover = match row.get::<_, Option<&str>>(5) {
                None => Takeover::Free,
                Some(former) if former == owner => Takeover::Own,
                Some(_) => Takeover::Expired,
            };
            tracing::info!(epoch = number(0), owner, was = takeover.as_str(), "the store is this daemon's");
            let lease = Arc::new(Lease::new(lease_ms, sent));
            let (directory, claims) = (Arc::clone(directory), Arc::clone(claims));
            let number_of_claim = claims.fetch_add(1, Ordering::AcqRel) + 1;
            let lease_ms = lease_ms as f64;
            let identity = number(4).max(1);
            let number = number(1);
            let claim = Claim { token, owner, lease, lease_ms, directory, number: number_of_claim, claims };
            return Ok(Claimed { claim, number, marks, identity, takeover });
        }
    }

    /// For whoever acts on what the store holds.
    pub(super) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// What the fence is told: the claim, and the length of the lease, ms.
    pub(super) fn fence(&self) -> (&[u8], f64) {
        (&self.token, self.lease_ms)
    }

    /// Extends the lease.
    ///
    /// # Errors
    ///
    /// The database's; [`CommitError::Fenced`].
    pub(super) fn renew(&self, link: &DatabaseLink, number: u64, marks: Marks) -> Result<(), CommitError> {
        let (sent, warnings) = (now_ms(), link.warnings());
        let (token, lease_ms) = self.fence();
        let (number, next_seq, wall) = (number as i64, marks.next_seq as i64, marks.wall as i64);
        let fence = &link.statements().map_err(|e| self.refused(&e))?.fence;
        let renewed = link.query(fence, &[&token, &number, &next_seq, &wall, &lease_ms]);
        let renewed = renewed.and_then(|_| link.unwarned(warnings));
        renewed.map_err(|error| self.refused(&error))?;
        self.lease.renewed(sent);
        Ok(())
    }

    /// What a refusal of the database says of the commit, and of the claim.
    pub(super) fn refused(&self, error: &DatabaseError) -> CommitError {
        let is_fence =
            error.code() == Some(&SqlState::CHECK_VIOLATION) && error.constraint() == Some("fence");
        // No row: whoever has removed it has taken the store away as well.
        if !is_fence && error.code() != Some(&SqlState::DIVISION_BY_ZERO) {
            return match error.is_passing() {
                true => CommitError::Lost(error.to_string()),
                false => CommitError::Engine { action: "committed", error: error.to_string() },
            };
        }
        if self.number != self.claims.load(Ordering::Acquire) {
            // A call of an earlier life of this process, which has had the store again since.
            return CommitError::Fenced;
        }
        if let Err(error) = fs::remove_file(node_file(&self.directory)) {
            tracing::warn!(%error, "cannot forget which daemon this is");
        }
        CommitError::Fenced
    }

    /// Another daemon that stands by, if one was heard of lately.
    ///
    /// # Errors
    ///
    /// The database's.
    pub(super) fn heir(&self, link: &DatabaseLink) -> Result<Option<String>, CommitError> {
        let spares = link.statements().and_then(|s| link.query(&s.spare, &[&self.owner]));
        let spares = spares.map_err(|error| self.refused(&error))?;
        Ok(spares.first().map(|row| row.get(0)))
    }

    /// Lets go of it: the next owner need not wait.
    pub(super) fn release(&self, link: &DatabaseLink) {
        // Before it can be another's.
        self.lease.end();
        let released = link.statements().and_then(|s| link.query(&s.release, &[&self.token.as_slice()]));
        if let Err(error) = released {
            tracing::warn!(%error, "the store was not released; another daemon has it after the lease");
        }
    }
}

fn is_locked(error: &DatabaseError) -> bool {
    error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

fn random() -> Result<[u8; RANDOM], OpenError> {
    let mut bytes = [0; RANDOM];
    getrandom::fill(&mut bytes).map_err(|e| OpenError::Random(e.to_string()))?;
    Ok(bytes)
}

fn node_file(directory: &Directory) -> PathBuf {
    directory.path().join("NODE")
}

/// Which daemon this is, as people and the database know it: the machine's name, and what its directory says.
fn owner(directory: &Directory) -> Result<String, OpenError> {
    let path = node_file(directory);
    let mut file = own_file(&path)?;
    let mut text = Vec::new();
    // Bounded: whatever lies there, it is short.
    (&file).take(256).read_to_end(&mut text).map_err(OpenError::io("read", &path))?;
    let text = String::from_utf8_lossy(&text);
    // The kernel's own name for a boot lies where a service may not look.
    let Now { wall, mono } = clock::now();
    let booted = wall.saturating_sub(mono);
    let inode = file.metadata().map_err(OpenError::io("look at", &path))?.ino();
    let known: Vec<&str> = text.split_whitespace().collect();
    let is_same = |at: &str, place: &str| {
        let at = at.parse::<u64>().ok().filter(|at| at.abs_diff(booted) <= SAME_BOOT_MS);
        at.is_some() && place.parse() == Ok(inode)
    };
    let name = match known[..] {
        [name, at, place] if is_same(at, place) => name.to_owned(),
        _ => {
            let name = random()?.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let line = format!("{name} {booted} {inode}\n");
            let written = file.set_len(0).and_then(|()| write_at_start(&mut file, line.as_bytes()));
            written.and_then(|()| file.sync_all()).map_err(OpenError::io("write to", &path))?;
            name
        }
    };
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Ok(format!("{machine}/{name}"))
}

fn write_at_start(file: &mut fs::File, bytes: &[u8]) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt;
    file.write_all_at(bytes, 0)?;
    file.flush()
}
