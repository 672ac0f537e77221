//! The nodes among which the shards of a database are shared: who lives, and who has which shard.
//!
//! Deliberately absent: who shall have which shard. The caller decides that from what it is told here, and
//! the claims decide who has one.

use super::clocks;
use super::connect::{DatabaseError, DatabaseLink};
use super::schema;
use crate::layout::refuse_disk_store;
use crate::{database_of, directory, node, OpenError};
use std::fmt;
use tidegate_common::clock;
use tidegate_config::{DatabaseConfig, StoreConfig};
use tokio_postgres::{Row, Statement};

/// One node among those that share the shards of a database.
pub struct Membership {
    store: StoreConfig,
    count: u16,
    /// The connection, and the statement of a round.
    linked: Option<(DatabaseLink, Statement)>,
    /// The name under which this node was last reported as living.
    reported: Option<String>,
    /// The key of the first round, by which this node and the others trust each other.
    key: Option<[u8; 32]>,
    /// Why this node may claim nothing: its clock was wrong at the last round.
    apart: Option<String>,
}

/// What the database says at one moment, by its own clock.
#[derive(Clone, PartialEq, Eq)]
pub struct MemberView {
    /// Name of this node.
    pub own: String,
    /// Living nodes by name, sorted; this one among them if it was reported.
    pub living: Vec<String>,
    /// All shards, by number.
    pub shards: Vec<SeenShard>,
    /// Proves forwards between the shards of all nodes.
    pub key: [u8; 32],
}

/// One shard, as the database knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenShard {
    /// Number of the shard, from 0.
    pub number: u16,
    /// Who has it, or had it last.
    pub owner: Option<String>,
    /// What is left of the lease, ms; 0: the shard is free.
    pub left_ms: u64,
}

impl fmt::Debug for MemberView {
    /// Leaves the key out.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemberView { own, living, shards, key: _ } = self;
        let mut told = out.debug_struct("MemberView");
        told.field("own", own).field("living", living).field("shards", shards).finish_non_exhaustive()
    }
}

impl SeenShard {
    /// From a row that begins with number, owner, and what is left of the lease.
    pub(super) fn of(row: &Row) -> Self {
        let number = row.get::<_, i16>(0).unsigned_abs();
        SeenShard { number, owner: row.get(1), left_ms: row.get::<_, i64>(2).max(0).unsigned_abs() }
    }
}

impl Membership {
    /// Prepares the part of a node in sharing `count` shards, 2 or more. `store`: that of the node (its path,
    /// not a shard's). Locks nothing, connects nowhere.
    pub fn new(store: &StoreConfig, count: u16) -> Membership {
        Membership { store: store.clone(), count, linked: None, reported: None, key: None, apart: None }
    }

    /// Does one round: reports this node, and reads what the database says. `is_able`: this node can serve
    /// shards, and is reported as living; otherwise its report is taken back. Connects first if there is no
    /// connection, and makes the tables if there are none; after any error the next round connects again.
    /// Every wait has a bound: that of the login, then the length of the lease.
    ///
    /// # Errors
    ///
    /// [`OpenError::Database`]; [`OpenError::ClockApart`], while which this node is not reported from the
    /// second round on; [`OpenError::Damaged`] if the tables are no longer those of the first round;
    /// [`OpenError::OtherShards`], [`OpenError::ForeignSchema`]; [`OpenError::HoldsDisk`], [`OpenError::Io`],
    /// [`OpenError::Random`] and others of the directory.
    pub fn round(&mut self, is_able: bool) -> Result<MemberView, OpenError> {
        directory::make(&self.store.path)?;
        let own = node::name_in(&self.store.path)?;
        // Is put back after a success alone.
        let (link, statement) = self.linked.take().map_or_else(|| self.connect(), Ok)?;
        let is_living = is_able && self.apart.is_none();
        let former = self.reported.clone().filter(|former| *former != own);
        let before = clock::now();
        let rows = link.query(&statement, &[&own, &is_living, &former]).map_err(|e| link.failed(&e))?;
        self.reported = is_living.then(|| own.clone());
        let (at, view) = self.view(own, &rows).map_err(|e| link.failed(&e))?;
        self.refuse_others(view.key)?;
        self.apart = clocks::refusal_at(at, before);
        let place = link.place().to_owned();
        self.linked = Some((link, statement));
        match &self.apart {
            Some(error) => Err(OpenError::ClockApart { place, error: error.clone() }),
            None => Ok(view),
        }
    }

    /// Takes the report of this node back: it is ending. Best effort: without a connection, the report ends
    /// by itself after 5 s.
    pub fn leave(&mut self) {
        let (Some((link, statement)), Some(own)) = (self.linked.take(), self.reported.take()) else { return };
        if let Err(error) = link.query(&statement, &[&own, &false, &None::<String>]) {
            tracing::debug!(%error, "cannot take back that this node lives");
        }
    }

    fn connect(&self) -> Result<(DatabaseLink, Statement), OpenError> {
        refuse_disk_store(&self.store.path)?;
        let config: &DatabaseConfig = database_of(&self.store)?;
        let link = DatabaseLink::open(config)?;
        schema::ensure(&link, &config.schema, self.count)?;
        let statement = link.prepare_round(&config.schema)?;
        Ok((link, statement))
    }

    /// Refuses tables that were made anew or replaced while this node ran. Their key is another one, and
    /// nodes with different keys take nothing from each other.
    fn refuse_others(&mut self, key: [u8; 32]) -> Result<(), OpenError> {
        if *self.key.get_or_insert(key) == key {
            return Ok(());
        }
        let place = format!("schema `{}`", database_of(&self.store)?.schema);
        let error = "its tables were made anew or replaced while this node ran, so it must be started again";
        Err(OpenError::Damaged { place, error: error.to_owned() })
    }

    /// Reads the rows of a round. Returns the database's clock as well, UTC ms.
    fn view(&self, own: String, rows: &[Row]) -> Result<(i64, MemberView), DatabaseError> {
        let shards: Vec<SeenShard> = rows.iter().map(SeenShard::of).collect();
        all_there(&shards, self.count)?;
        let Some(first) = rows.first() else {
            return Err(DatabaseError::saying("table `shards` is empty"));
        };
        let key = first.get::<_, &[u8]>(4).try_into();
        let key = key
            .map_err(|_| DatabaseError::saying("the column `key` of table `cluster` is not 32 bytes long"))?;
        let mut living: Vec<String> = first.get(5);
        living.extend(self.reported.clone());
        living.sort();
        Ok((first.get(3), MemberView { own, living, shards, key }))
    }
}

/// Checks that the table has a row for each of so many shards.
///
/// # Errors
///
/// Which one is missing, or that there are others.
pub(super) fn all_there(shards: &[SeenShard], count: u16) -> Result<(), DatabaseError> {
    let missing = (0..count).find(|number| shards.iter().all(|shard| shard.number != *number));
    match missing {
        Some(number) => Err(DatabaseError::saying(format!("table `shards` has no row of shard {number}"))),
        None if shards.len() != usize::from(count) => {
            Err(DatabaseError::saying(format!("table `shards` has {} rows, not {count}", shards.len())))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::{Ground, GroundKind};

    #[test]
    fn a_node_whose_clock_is_wrong_is_not_reported_until_it_is_right() {
        let Ground::Postgres(ground) = GroundKind::Postgres.bare() else { unreachable!("another ground") };
        let mut node = Membership::new(&ground.config(), 2);
        node.round(true).unwrap();
        let nodes = || ground.sql("SELECT count(*) FROM $.nodes");
        assert_eq!((nodes(), &node.apart), ("1".to_owned(), &None));
        // As the last round has found.
        node.apart = Some("behind".to_owned());
        let view = node.round(true).unwrap();
        assert_eq!((nodes(), view.living, &node.apart), ("0".to_owned(), vec![], &None));
        let view = node.round(true).unwrap();
        assert_eq!((nodes(), &view.living[..]), ("1".to_owned(), &[view.own.clone()][..]));
        assert!(!format!("{view:?}").contains("key"), "{view:?}");
    }
}
