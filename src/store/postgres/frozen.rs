//! A snapshot of the rows of all shards, for an export: one transaction on a connection of its own reads them
//! all. It locks nothing that a daemon waits for, and needs no claim.
//!
//! The database keeps all rows of its tables that were deleted since, as long as the transaction lasts.

use super::connect::DatabaseLink;
use super::rows::PgRows;
use super::schema;
use crate::closings::{self, Closed};
use crate::ended::Epochs;
use crate::frozen::{begun_buckets, FrozenPage, FrozenRows};
use crate::keyspace::KeyspaceId;
use crate::record::View;
use crate::row_reads::RowBytes;
use crate::{OpenError, ReadError};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_config::DatabaseConfig;
use tidegate_types::event::Marks;

/// Longest time between two reads, in minutes: the reader of an export may be slow.
const IDLE_MINUTES: u64 = 10;

/// The transaction that reads.
struct PgSnapshot {
    schema: String,
    /// The shard that was read last, and its rows; `None`: the connection is lost.
    current: Mutex<Option<(u16, PgRows)>>,
}

/// The rows of one shard in a snapshot.
pub(crate) struct FrozenShard {
    snapshot: Arc<PgSnapshot>,
    shard: u16,
    identity: u64,
    marks: Marks,
}

/// Begins a snapshot of so many shards, and returns them in order.
///
/// # Errors
///
/// [`OpenError::ForeignSchema`], [`OpenError::OtherShards`], [`OpenError::Database`].
pub(crate) fn freeze(config: &DatabaseConfig, count: u16) -> Result<Vec<FrozenShard>, OpenError> {
    let name = &config.schema;
    let mut link = present(config, count)?;
    let begun = link.execute(&format!(
        "SET idle_in_transaction_session_timeout = '{IDLE_MINUTES} min'; \
         BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    ));
    begun.map_err(|e| link.failed(&e))?;
    let text = format!("SELECT identity, next_seq, wall FROM \"{name}\".shards ORDER BY shard");
    let rows = link.ask(&text).map_err(|e| link.failed(&e))?;
    link.prepare(name, 0)?;
    let rows_of_first = PgRows::frozen(link)?;
    let snapshot =
        Arc::new(PgSnapshot { schema: name.clone(), current: Mutex::new(Some((0, rows_of_first))) });
    let shards = (0..).zip(&rows).map(|(shard, row)| {
        let number = |column| row.get::<_, i64>(column) as u64;
        let marks = Marks { next_seq: number(1), wall: number(2) };
        FrozenShard { snapshot: Arc::clone(&snapshot), shard, identity: number(0).max(1), marks }
    });
    Ok(shards.collect())
}

/// Connects to a database with tables for so many shards.
fn present(config: &DatabaseConfig, count: u16) -> Result<DatabaseLink, OpenError> {
    let (link, name) = (DatabaseLink::open(config)?, &config.schema);
    if !schema::exists(&link, name)? {
        let error = "there are no tables of a store".to_owned();
        return Err(OpenError::ForeignSchema { schema: name.clone(), error });
    }
    schema::known(&link, name, count)?;
    Ok(link)
}

/// Refuses a database without tables for so many shards.
///
/// # Errors
///
/// As [`freeze`].
pub(crate) fn refuse_absent(config: &DatabaseConfig, count: u16) -> Result<(), OpenError> {
    present(config, count).map(drop)
}

impl PgSnapshot {
    /// Reads rows of a shard.
    fn of<T>(&self, shard: u16, read: impl FnOnce(&PgRows) -> Result<T, ReadError>) -> Result<T, ReadError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let (was, mut rows) = current.take().ok_or_else(|| ReadError::Lost("the snapshot is gone".into()))?;
        if was != shard {
            let engine = |error: OpenError| ReadError::Engine(error.to_string());
            let mut link = rows.into_link();
            link.prepare(&self.schema, shard).map_err(engine)?;
            rows = PgRows::frozen(link).map_err(engine)?;
        }
        let done = read(&rows);
        *current = Some((shard, rows));
        done
    }
}

impl FrozenRows for FrozenShard {
    fn marks(&self) -> Result<(u64, Marks), ReadError> {
        Ok((self.identity, self.marks))
    }

    fn page(&self, id: KeyspaceId, behind: Option<&RowBytes>) -> Result<FrozenPage, ReadError> {
        self.snapshot.of(self.shard, |rows| rows.frozen_page(id, behind))
    }

    fn epochs(&self) -> Result<(Epochs, Vec<u8>), ReadError> {
        self.snapshot.of(self.shard, begun_buckets)
    }

    fn closed(&self, items: &[View<'_>]) -> Result<Vec<Option<Closed>>, ReadError> {
        self.snapshot.of(self.shard, |rows| closings::closed_each(rows, items))
    }
}
