//! Ownership of the store: a random claim for each life, which the fence of each transaction must match, and
//! a lease that each transaction extends.
//!
//! A daemon recognises itself by its name ([`crate::node`]). Its directory is locked ([`super::home`]), so an
//! earlier process of this daemon has ended, and the daemon need not wait for that process's lease. A daemon
//! that is refused as a former owner gives its name up, so that two daemons with the same name do not take
//! the store from each other without end.

use super::clocks;
use super::connect::{DatabaseError, DatabaseLink};
use super::home::ShardHome;
use super::now_ms;
use crate::{node, CommitError, OpenError, Takeover};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_common::lease::Lease;
use tidegate_config::DatabaseConfig;
use tidegate_types::event::Marks;
use tokio_postgres::error::SqlState;

/// How long a transaction may hold the row to be claimed: the last one of an earlier process, which ends with
/// its connection.
const LOCKED_LIMIT: Duration = Duration::from_secs(10);

/// A claimed store.
pub(super) struct Claimed {
    pub(super) claim: Claim,
    /// Number of the last commit.
    pub(super) number: u64,
    /// The marks of the last commit.
    pub(super) marks: Marks,
    /// Same as [`crate::OpenStore::identity`].
    pub(super) identity: u64,
    /// Same as [`crate::OpenStore::takeover`].
    pub(super) takeover: Takeover,
    /// Same as [`crate::OpenStore::epoch`].
    pub(super) epoch: u64,
}

/// See the module.
pub(super) struct Claim {
    token: [u8; node::RANDOM],
    /// The name of the node in the store's row.
    owner: String,
    /// Same as [`node::given_up`] when the name was looked up.
    given_up: u64,
    lease: Arc<Lease>,
    lease_ms: f64,
    /// Locked as long as the claim exists.
    home: Arc<ShardHome>,
    /// Number of this claim, and the counter of this process's claims.
    number: u64,
    claims: Arc<AtomicU64>,
}

impl Claim {
    /// Claims the store for the daemon of this directory. `claims`: the number of this process's claims so
    /// far. `is_heir`: other daemons may leave the store to this one. With several shards, the membership
    /// alone records who that may be.
    ///
    /// # Errors
    ///
    /// [`OpenError::Claimed`], [`OpenError::ClockApart`], [`OpenError::Database`], [`OpenError::Io`],
    /// [`OpenError::Random`].
    pub(super) fn take(
        link: &DatabaseLink,
        (home, claims): (&Arc<ShardHome>, &Arc<AtomicU64>),
        config: &DatabaseConfig,
        is_heir: bool,
    ) -> Result<Claimed, OpenError> {
        let failed = |error: DatabaseError| link.failed(&error);
        let statements = link.statements().map_err(failed)?;
        let (token, given_up, owner) = (node::random()?, node::given_up(), home.name()?);
        judge_clock(link, &owner)?;
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
                        tracing::warn!("ended the former owner's connection, which held the store's row");
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
                    // The store has become free since.
                    continue;
                }
                let has = row.get(0);
                if is_heir && home.place().is_only() {
                    // The daemon stands by even if this fails.
                    let noted = link.query(&statements.note_spare, &[&owner]);
                    noted.map_or_else(
                        |error| tracing::debug!(%error, "cannot record that this daemon stands by"),
                        drop,
                    );
                }
                return Err(OpenError::Claimed { owner: has, left_ms });
            };
            link.unwarned(warnings).map_err(failed)?;
            if home.place().is_only() {
                let forgotten = link.query(&statements.forget_spares, &[&owner]);
                forgotten.map_or_else(
                    |error| tracing::debug!(%error, "cannot remove the record of standing by"),
                    drop,
                );
            }
            let number = |column| row.get::<_, i64>(column) as u64;
            let marks = Marks { next_seq: number(2), wall: number(3) };
            let takeover = Takeover::of(row.get::<_, Option<&str>>(5), &owner);
            tracing::info!(epoch = number(0), owner, was = takeover.as_str(), "claimed the store");
            let lease = Arc::new(Lease::new(lease_ms, sent));
            let (home, claims) = (Arc::clone(home), Arc::clone(claims));
            let number_of_claim = claims.fetch_add(1, Ordering::AcqRel) + 1;
            let lease_ms = lease_ms as f64;
            let (epoch, identity) = (number(0), number(4).max(1));
            let number = number(1);
            let claim =
                Claim { token, owner, given_up, lease, lease_ms, home, number: number_of_claim, claims };
            return Ok(Claimed { claim, number, marks, identity, takeover, epoch });
        }
    }

    /// The lease, for the parts that act on the store's content.
    pub(super) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// The parameters of the fence: the claim, and the length of the lease in ms.
    pub(super) fn fence(&self) -> (&[u8], f64) {
        (&self.token, self.lease_ms)
    }

    /// Extends the lease.
    ///
    /// # Errors
    ///
    /// Those of the database; [`CommitError::Fenced`].
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

    /// Records the present name of the node, if another of its shards has given the former one up: the other
    /// nodes count by name what each has. Best effort; the next call tries again.
    pub(super) fn follow_name(&mut self, link: &DatabaseLink) {
        let given_up = node::given_up();
        if self.given_up == given_up {
            return;
        }
        let own = match self.home.name() {
            Ok(own) => own,
            Err(error) => return tracing::debug!(%error, "the name of this node is unknown"),
        };
        if own != self.owner {
            let token = self.token.as_slice();
            let renamed = link.statements().and_then(|s| link.query(&s.rename, &[&token, &own]));
            if let Err(error) = renamed {
                return tracing::debug!(%error, "cannot record the new name of this node");
            }
            self.owner = own;
        }
        self.given_up = given_up;
    }

    /// Classifies a refusal of the database: what it means for the commit and the claim.
    pub(super) fn refused(&self, error: &DatabaseError) -> CommitError {
        let is_fence =
            error.code() == Some(&SqlState::CHECK_VIOLATION) && error.constraint() == Some("fence");
        // A division by zero means that the row is missing: its removal has taken the store away as well.
        if !is_fence && error.code() != Some(&SqlState::DIVISION_BY_ZERO) {
            return match error.is_passing() {
                true => CommitError::Lost(error.to_string()),
                false => CommitError::Engine { action: "committed", error: error.to_string() },
            };
        }
        if self.number != self.claims.load(Ordering::Acquire) {
            // The call is of an earlier life of this process, which has claimed the store again since.
            return CommitError::Fenced;
        }
        if let Err(error) = self.home.forget(&self.owner) {
            tracing::warn!(%error, "cannot remove the file NODE");
        }
        CommitError::Fenced
    }

    /// Another daemon that stands by, or serves other shards, if one was seen lately.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub(super) fn heir(&self, link: &DatabaseLink) -> Result<Option<String>, CommitError> {
        // The node may have another name by now, by which it is no other daemon.
        let own = self.home.name().unwrap_or_else(|_| self.owner.clone());
        let spares = link.statements().and_then(|s| link.query(&s.spare, &[&own]));
        let spares = spares.map_err(|error| self.refused(&error))?;
        Ok(spares.first().map(|row| row.get(0)))
    }

    /// Releases the store, so that the next owner need not wait.
    pub(super) fn release(&self, link: &DatabaseLink) {
        // The lease ends before another daemon can own the store.
        self.lease.end();
        let released = link.statements().and_then(|s| link.query(&s.release, &[&self.token.as_slice()]));
        if let Err(error) = released {
            tracing::warn!(%error, "the store was not released; another daemon can claim it after the lease");
        }
    }
}

/// A daemon with a wrong clock would send everything at the wrong time. If the store is still its own, its
/// clock has stepped while it served, and it goes on.
fn judge_clock(link: &DatabaseLink, name: &str) -> Result<(), OpenError> {
    let failed = |error: DatabaseError| link.failed(&error);
    let difference_ms = clocks::difference_ms(link).map_err(failed)?;
    let Some(error) = clocks::refusal(difference_ms) else { return Ok(()) };
    let rows = link.statements().and_then(|statements| link.query(&statements.owner, &[])).map_err(failed)?;
    if rows.first().is_some_and(|row| row.get::<_, &str>(0) == name) {
        tracing::warn!(
            "{}; the daemon goes on, because the store is its own",
            clocks::sentence(difference_ms)
        );
        return Ok(());
    }
    Err(OpenError::ClockApart { place: link.place().to_owned(), error })
}

fn is_locked(error: &DatabaseError) -> bool {
    error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
}
