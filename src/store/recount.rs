//! Counts the queues of a store anew, after a loss of durable commits was accepted.
//!
//! A lost commit may have added or removed items, and the row of a queue is that of the last commit that
//! wrote it. Nor is a lost commit gone as a whole: what a table contained already has stayed, keyspace by
//! keyspace. So one pass over all items counts them. A file marks the store from the moment at which the loss
//! is accepted until the new rows are durable, since a start may end in between.
//!
//! Deliberately absent: the rows that lead to items. Readers pass over one that leads nowhere
//! ([`Rows::has_losses`]), and look for a customer's items along the whole queue. An item whose row by id is
//! gone is not recognised by its id. The row of an open window may count members that are gone.

use super::directory::{self, Directory};
use super::keyspace::KeyspaceId;
use super::reading::damaged;
use super::row_reads::{Rows, NO_BODIES};
use super::{rows, OpenError, ReadError};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::Arc;
use tidegate_types::event::{Marks, Op, QueueRow};
use tidegate_types::Key;

/// Marks the store, durably.
///
/// # Errors
///
/// [`OpenError::Io`].
pub(crate) fn mark(directory: &Directory) -> Result<(), OpenError> {
    directory::own_file(&directory.recount())?;
    directory.sync()
}

/// Whether the store is marked.
///
/// # Errors
///
/// [`OpenError::Io`].
pub(crate) fn is_marked(directory: &Directory) -> Result<bool, OpenError> {
    directory::file_exists(&directory.recount())
}

/// Removes the mark, if there is one, once the rows are durable.
///
/// # Errors
///
/// [`OpenError::Io`].
pub(crate) fn unmark(directory: &Directory) -> Result<(), OpenError> {
    let path = directory.recount();
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(OpenError::io("remove", &path)(error)),
        Ok(()) | Err(_) => directory.sync(),
    }
}

/// What has to be written.
pub(crate) struct Recounted {
    /// The rows of queues that are wrong.
    pub(crate) ops: Vec<Op>,
    /// With a next arrival number that no item has.
    pub(crate) marks: Marks,
}

/// Counts the items of each queue. `known`: the present rows of the queues; `marks`: the present marks.
///
/// # Errors
///
/// Errors of the storage engine; a key that does not read as it was written.
pub(crate) fn recount<R: Rows>(
    rows: &R,
    known: &[QueueRow],
    mut marks: Marks,
) -> Result<Recounted, ReadError> {
    let known = known.iter().map(|row| (&*row.queue, row)).collect();
    let mut recount = QueueRecount { rows, known, ops: Vec::new() };
    let mut counted: Option<CountedQueue> = None;
    for row in rows.all(KeyspaceId::Items) {
        let (key, _) = row?;
        let (queue, place) = rows::read_item_key(&key)
            .ok_or_else(|| damaged(KeyspaceId::Items, &key, &"the key is not an item key"))?;
        marks.next_seq = marks.next_seq.max(place.seq.saturating_add(1));
        match counted.as_mut().filter(|counted| *counted.queue == *queue) {
            Some(counted) => (counted.count, counted.last) = (counted.count + 1, place),
            None => {
                let next = CountedQueue { queue: queue.into(), count: 1, first: place, last: place };
                counted.replace(next).map_or(Ok(()), |whole| recount.end(whole))?;
            }
        }
    }
    counted.map_or(Ok(()), |whole| recount.end(whole))?;
    Ok(Recounted { ops: recount.rest(), marks })
}

/// The items found in one queue; in order of key, they follow each other.
struct CountedQueue {
    queue: Arc<str>,
    count: u64,
    first: Key,
    last: Key,
}

/// The state of [`recount`].
struct QueueRecount<'a, R> {
    rows: &'a R,
    /// Rows of queues in which no items were found so far.
    known: BTreeMap<&'a str, &'a QueueRow>,
    ops: Vec<Op>,
}

impl<R: Rows> QueueRecount<'_, R> {
    fn end(&mut self, counted: CountedQueue) -> Result<(), ReadError> {
        let CountedQueue { queue, count, first, last } = counted;
        let known = self.known.remove(&*queue);
        let low = self.first_closing(&queue)?.map_or(first, |closing| closing.min(first));
        // Any of them may lack its row under its customer.
        let unindexed_until = last.due.saturating_add(1);
        let row = QueueRow {
            queue,
            count,
            low,
            paused: known.and_then(|row| row.paused),
            unindexed_until: known.map_or(0, |row| row.unindexed_until).max(unindexed_until),
            slowed: known.and_then(|row| row.slowed),
        };
        if known != Some(&row) {
            self.ops.push(Op::PutQueue(row));
        }
        Ok(())
    }

    /// Lower bound of the places of items whose windows have closed early: these are before their keys.
    fn first_closing(&self, queue: &str) -> Result<Option<Key>, ReadError> {
        if !self.rows.has_closings() {
            return Ok(None);
        }
        let bounds =
            (rows::closed_by_due(queue, Key::default())?, rows::closed_by_due(queue, Key::at(u64::MAX))?);
        let first = self.rows.range(KeyspaceId::Closings, bounds, NO_BODIES).next();
        first.map_or(Ok(None), |row| {
            let (key, _) = row?;
            let (_, _, place) =
                rows::read_closing_key(&key).map_err(|e| damaged(KeyspaceId::Closings, &key, &e))?;
            Ok(Some(place))
        })
    }

    /// Adds the rows of queues without items.
    fn rest(self) -> Vec<Op> {
        let mut ops = self.ops;
        let none = |row: &QueueRow| QueueRow { count: 0, unindexed_until: 0, ..row.clone() };
        ops.extend(self.known.into_values().filter(|row| row.count > 0).map(|row| Op::PutQueue(none(row))));
        ops
    }
}
