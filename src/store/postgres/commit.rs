//! Writes of rows: each call of commit is one transaction, sent in one go.
//!
//! The first statement is the fence. All answers are awaited and the first error decides: the COMMIT behind a
//! refused statement is no error to the database, though nothing was written.

use super::connect::{DatabaseError, DatabaseLink};
use super::rows::space;
use super::{now_ms, PgStore};
use crate::engine::event::Marks;
use crate::store::changes::Changes;
use crate::store::ended::Epochs;
use crate::store::keyspace::KeyspaceId;
use crate::store::load::damaged;
use crate::store::record;
use crate::store::row_reads::RowBytes;
use crate::store::rows::BUCKET;
use crate::store::{CommitError, CommitGroup, ReadError};
use futures_util::future::join_all;
use std::future::Future;
use std::pin::Pin;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Statement};

/// How often a transaction is made that the database has undone for reasons of its own.
const TRIES: u32 = 3;

/// Rows by table, as the statements take them.
#[derive(Default)]
struct WrittenRows<'a> {
    items: Vec<&'a [u8]>,
    heads: Vec<&'a [u8]>,
    rests: Vec<&'a [u8]>,
    no_items: Vec<&'a [u8]>,
    spaces: Vec<i16>,
    others: Vec<&'a [u8]>,
    values: Vec<&'a [u8]>,
    no_spaces: Vec<i16>,
    no_others: Vec<&'a [u8]>,
    buckets: Vec<i16>,
    epochs: Vec<i64>,
    identities: Vec<&'a [u8]>,
    ends: Vec<&'a [u8]>,
}

type NewRow = (KeyspaceId, RowBytes, Option<RowBytes>);

impl<'a> WrittenRows<'a> {
    fn of(rows: &'a [NewRow], epochs: &Epochs) -> Result<Self, ReadError> {
        let mut all = WrittenRows::default();
        for (id, key, value) in rows {
            match (id, value) {
                (KeyspaceId::Items, Some(record)) => {
                    let parts = record::split(key, record).map_err(|e| damaged(*id, key, &e))?;
                    all.items.push(key);
                    all.heads.push(parts.0);
                    all.rests.push(parts.1);
                }
                (KeyspaceId::Items, None) => all.no_items.push(key),
                (KeyspaceId::Ended(bucket), Some(value)) if **key != *BUCKET => {
                    all.buckets.push(i16::from(*bucket));
                    let epoch = epochs.get(usize::from(*bucket)).copied().unwrap_or_default();
                    all.epochs.push(epoch as i64);
                    all.identities.push(key);
                    all.ends.push(value);
                }
                (_, Some(value)) => {
                    all.spaces.push(space(*id));
                    all.others.push(key);
                    all.values.push(value);
                }
                (_, None) => {
                    all.no_spaces.push(space(*id));
                    all.no_others.push(key);
                }
            }
        }
        Ok(all)
    }
}

type Sent<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;

fn said<'a>(client: &'a Client, text: &'a str) -> Sent<'a> {
    Box::pin(client.batch_execute(text))
}

fn sent<'a>(
    client: &'a Client,
    statement: &'a Statement,
    parameters: &'a [&'a (dyn ToSql + Sync)],
) -> Sent<'a> {
    Box::pin(async move { client.execute(statement, parameters).await.map(drop) })
}

/// One transaction, with the fence first.
fn write(
    link: &DatabaseLink,
    (token, lease_ms): (&[u8], f64),
    (number, marks): (u64, Marks),
    w: &WrittenRows<'_>,
) -> Result<(), DatabaseError> {
    let (client, s) = (link.client(), link.statements()?);
    let (number, next_seq, wall) = (number as i64, marks.next_seq as i64, marks.wall as i64);
    let fence: [&(dyn ToSql + Sync); 5] = [&token, &number, &next_seq, &wall, &lease_ms];
    let no_items: [&(dyn ToSql + Sync); 1] = [&w.no_items];
    let items: [&(dyn ToSql + Sync); 3] = [&w.items, &w.heads, &w.rests];
    let no_others: [&(dyn ToSql + Sync); 2] = [&w.no_spaces, &w.no_others];
    let others: [&(dyn ToSql + Sync); 3] = [&w.spaces, &w.others, &w.values];
    let ended: [&(dyn ToSql + Sync); 4] = [&w.buckets, &w.epochs, &w.identities, &w.ends];
    let parts: [(bool, &Statement, &[&(dyn ToSql + Sync)]); 5] = [
        (w.no_items.is_empty(), &s.delete_items, &no_items),
        (w.items.is_empty(), &s.write_items, &items),
        (w.no_others.is_empty(), &s.delete_others, &no_others),
        (w.others.is_empty(), &s.write_others, &others),
        (w.ends.is_empty(), &s.write_ended, &ended),
    ];
    // Sent in the order in which they stand here, without waiting for an answer.
    let mut all = vec![said(client, "BEGIN"), sent(client, &s.fence, &fence)];
    for (is_empty, statement, parameters) in parts {
        if !is_empty {
            all.push(sent(client, statement, parameters));
        }
    }
    all.push(said(client, "COMMIT"));
    let warnings = link.warnings();
    link.run(async { join_all(all).await.into_iter().collect::<Result<Vec<()>, Error>>() })?;
    if link.warnings() != warnings {
        // It does so where it no longer waits for a replica, and calls that a success.
        return Err(DatabaseError::saying("the commit came with a warning, which the log has"));
    }
    Ok(())
}

fn is_undone(error: &DatabaseError) -> bool {
    [Some(&SqlState::T_R_SERIALIZATION_FAILURE), Some(&SqlState::T_R_DEADLOCK_DETECTED)]
        .contains(&error.code())
}

impl PgStore {
    /// Does what [`crate::store::Store::commit`] says.
    pub(super) fn commit_all(&mut self, groups: &[CommitGroup]) -> Result<(), CommitError> {
        let Some(last) = groups.last() else { return Ok(()) };
        let number = self.number + 1;
        let mut changes = Changes::new(&self.rows, number, self.rows.epochs());
        changes.apply(groups.iter().flat_map(|group| &group.ops))?;
        changes.forget_closed()?;
        let (begun, epochs) = (!changes.begun().is_empty(), changes.epochs());
        let rows: Vec<NewRow> = changes.into_rows().collect();
        let written = WrittenRows::of(&rows, &epochs)?;
        let link = self.rows.link();
        for tries_left in (0..TRIES).rev() {
            let sent = now_ms();
            match write(link, self.claim.fence(), (number, last.marks), &written) {
                Ok(()) => {
                    self.claim.lease().renewed(sent);
                    break;
                }
                Err(error) if is_undone(&error) && tries_left > 0 => {
                    tracing::warn!(%error, "the database has undone a commit; it is made again");
                }
                Err(error) => return Err(self.claim.refused(&error)),
            }
        }
        (self.number, self.marks) = (number, last.marks);
        self.is_swept &= !begun;
        self.rows.set_epochs(epochs);
        Ok(())
    }
}
