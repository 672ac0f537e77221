//! Writes of rows: each call of commit is one transaction, sent without waiting in between.
//!
//! The first statement is the fence. The store awaits all answers, and the first error decides: a COMMIT
//! after a refused statement is no error to the database, although it writes nothing.

use super::connect::{DatabaseError, DatabaseLink};
use super::rows::space;
use super::{now_ms, PgStore};
use crate::changes::Changes;
use crate::ended::Epochs;
use crate::keyspace::KeyspaceId;
use crate::reading::damaged;
use crate::record;
use crate::row_reads::RowBytes;
use crate::rows::BUCKET;
use crate::{CommitError, CommitGroup, ReadError};
use std::future::{poll_fn, Future};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::Poll;
use tidegate_types::event::Marks;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Statement};

/// Number of attempts for a transaction that the database rolls back for reasons of its own.
const TRIES: u32 = 3;

/// Approximate limit of the items that one statement writes, in bytes: far below the size limit of one
/// message to the database.
const STATEMENT_BYTES: usize = 32 << 20;

/// Rows by table, as parameters of the statements.
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

type ItemSlices<'w, 'a> = (&'w [&'a [u8]], &'w [&'a [u8]], &'w [&'a [u8]]);

impl<'a> WrittenRows<'a> {
    /// Items in slices for the statements: each up to the byte limit, or a single item.
    fn item_slices(&self) -> Vec<ItemSlices<'_, 'a>> {
        let (mut ends, mut bytes) = (Vec::new(), 0);
        for (n, (head, rest)) in self.heads.iter().zip(&self.rests).enumerate() {
            let size = head.len() + rest.len();
            if bytes > 0 && bytes + size > STATEMENT_BYTES {
                ends.push(n);
                bytes = 0;
            }
            bytes += size;
        }
        ends.push(self.items.len());
        let mut from = 0;
        let slice = |to: usize| {
            let range = std::mem::replace(&mut from, to)..to;
            Some((self.items.get(range.clone())?, self.heads.get(range.clone())?, self.rests.get(range)?))
        };
        ends.into_iter().filter_map(slice).filter(|(items, ..)| !items.is_empty()).collect()
    }
}

type Sent<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;

fn simple<'a>(client: &'a Client, text: &'a str) -> Sent<'a> {
    Box::pin(client.batch_execute(text))
}

fn sent<'a>(
    client: &'a Client,
    statement: &'a Statement,
    parameters: &'a [&'a (dyn ToSql + Sync)],
) -> Sent<'a> {
    Box::pin(async move { client.execute(statement, parameters).await.map(drop) })
}

/// Runs one transaction, with the fence first.
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
    let slices = w.item_slices();
    let items: Vec<[&(dyn ToSql + Sync); 3]> =
        slices.iter().map(|(a, b, c)| [a as _, b as _, c as _]).collect();
    let no_others: [&(dyn ToSql + Sync); 2] = [&w.no_spaces, &w.no_others];
    let others: [&(dyn ToSql + Sync); 3] = [&w.spaces, &w.others, &w.values];
    let ended: [&(dyn ToSql + Sync); 4] = [&w.buckets, &w.epochs, &w.identities, &w.ends];
    let parts: [(bool, &Statement, &[&(dyn ToSql + Sync)]); 4] = [
        (w.no_items.is_empty(), &s.delete_items, &no_items),
        (w.no_others.is_empty(), &s.delete_others, &no_others),
        (w.others.is_empty(), &s.write_others, &others),
        (w.ends.is_empty(), &s.write_ended, &ended),
    ];
    // Sent in this order, without waiting for answers.
    let mut all = vec![simple(client, "BEGIN"), sent(client, &s.fence, &fence)];
    for (is_empty, statement, parameters) in parts {
        if !is_empty {
            all.push(sent(client, statement, parameters));
        }
    }
    all.extend(items.iter().map(|slice| sent(client, &s.write_items, slice)));
    all.push(simple(client, "COMMIT"));
    let warnings = link.warnings();
    link.run(in_order(all))?;
    link.unwarned(warnings)
}

/// Sends all statements in order, and awaits their answers. The last one, which makes the others durable, is
/// not sent if one of them could not be sent: the database would not know that it is missing.
async fn in_order(all: Vec<Sent<'_>>) -> Result<(), Error> {
    let mut answers: Vec<Option<Result<(), Error>>> = all.iter().map(|_| None).collect();
    let (mut all, last) = (all, answers.len().saturating_sub(1));
    poll_fn(|context| {
        let mut is_failed = false;
        for (n, (sent, answer)) in all.iter_mut().zip(&mut answers).enumerate() {
            if answer.is_none() && !(n == last && is_failed) {
                if let Poll::Ready(done) = sent.as_mut().poll(context) {
                    *answer = Some(done);
                }
            }
            is_failed |= matches!(answer, Some(Err(_)));
        }
        let waits = answers.iter().take(last).any(Option::is_none);
        let waits = waits || !is_failed && answers.iter().any(Option::is_none);
        if waits {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
    answers.into_iter().flatten().collect()
}

/// Bytes of these rows; at least one.
fn size_of_rows(rows: &[NewRow]) -> u64 {
    let size = |(_, key, value): &NewRow| key.len() + value.as_ref().map_or(0, |value| value.len());
    (rows.iter().map(size).sum::<usize>() as u64).max(1)
}

fn is_undone(error: &DatabaseError) -> bool {
    [Some(&SqlState::T_R_SERIALIZATION_FAILURE), Some(&SqlState::T_R_DEADLOCK_DETECTED)]
        .contains(&error.code())
}

impl PgStore {
    /// The implementation of [`crate::Store::commit`].
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
                    tracing::warn!(%error, "the database rolled a commit back; it is tried again");
                }
                Err(error) => {
                    if error.is_shortage() {
                        self.lacking.fetch_max(size_of_rows(&rows), Ordering::AcqRel);
                    }
                    return Err(self.claim.refused(&error));
                }
            }
        }
        (self.number, self.marks) = (number, last.marks);
        if begun {
            self.sweep.is_done.store(false, Ordering::Release);
        }
        self.rows.set_epochs(epochs);
        self.claim.follow_name(self.rows.link());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_written_in_slices_in_order() {
        let sizes = [STATEMENT_BYTES / 2, 10, STATEMENT_BYTES / 2, 5, STATEMENT_BYTES * 2, 7, 8];
        let rests: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0; *size]).collect();
        let names: Vec<[u8; 1]> = (0..7).map(|n| [n]).collect();
        let written = WrittenRows {
            items: names.iter().map(|name| &name[..]).collect(),
            heads: sizes.iter().map(|_| &[][..]).collect(),
            rests: rests.iter().map(|rest| &rest[..]).collect(),
            ..WrittenRows::default()
        };
        let slices = written.item_slices();
        let told: Vec<Vec<u8>> = slices.iter().map(|(items, ..)| items.concat()).collect();
        assert_eq!(told, [vec![0, 1], vec![2, 3], vec![4], vec![5, 6]]);
        let lengths = slices
            .iter()
            .all(|(items, heads, rests)| (items.len(), items.len()) == (heads.len(), rests.len()));
        assert!(lengths && WrittenRows::default().item_slices().is_empty());
    }

    /// The statement that makes all durable is not sent: the database would not know that one is missing.
    #[test]
    fn what_could_not_be_sent_is_not_committed() {
        use std::cell::RefCell;
        let sent = RefCell::new(Vec::new());
        let part = |n: u8, answer: Option<Result<(), Error>>| -> Sent<'_> {
            let sent = &sent;
            Box::pin(async move {
                sent.borrow_mut().push(n);
                answer.unwrap_or(Ok(()))
            })
        };
        let all = vec![
            part(1, None),
            part(2, Some(Err(Error::__private_api_timeout()))),
            part(3, None),
            part(4, None),
        ];
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert!(runtime.block_on(in_order(all)).is_err());
        assert_eq!(*sent.borrow(), [1, 2, 3]);
        sent.borrow_mut().clear();
        let all = (0..40).map(|n| part(n, None)).collect();
        runtime.block_on(in_order(all)).unwrap();
        assert_eq!(*sent.borrow(), (0..40).collect::<Vec<_>>());
    }
}
