//! Translates operations to rows: the writes of one call of commit, each row once, in its final version.
//!
//! The storage engine cannot read a batch before it is written, and two writes of one key in one batch have
//! no order there. So all groups of a call are collected here first. An operation that moves items looks here
//! before it reads the disk. The rows are sorted by key, so that they reach the storage engine in order.

use super::closings::{self, member_bounds};
use super::ended::Epochs;
use super::errors::{broken_contract, BrokenContract};
use super::keyspace::{KeyspaceId, KEYSPACES};
use super::queue_rows;
use super::reading::{head, view};
use super::record::{self, View};
use super::row_reads::{Row, RowBounds, RowBytes, Rows, ALL_BODIES, NO_BODIES};
use super::{ended, rows, CommitError, ReadError};
use std::collections::btree_map::Entry;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use tidegate_types::event::{BucketRow, ClosingRow, IndexRows, Op, Place, Standing, Stored};
use tidegate_types::{Ended, Identity, Key};

/// Number of items to move that are read together, with their bodies.
const MOVED_TOGETHER: usize = 64;

/// Number of rows among which a member of a window is usually found, if there is one.
const FEW: usize = 16;

/// The final version of a row.
enum Change {
    /// The key was never written before: if the row is removed again, there is nothing to write.
    Add(RowBytes),
    Write(RowBytes),
    Remove,
}

impl Change {
    /// The value after the commit.
    fn value(&self) -> Option<&RowBytes> {
        match self {
            Change::Add(value) | Change::Write(value) => Some(value),
            Change::Remove => None,
        }
    }
}

/// The pending changes of one keyspace.
type Pending = BTreeMap<RowBytes, Change>;

/// The pending changes of one call of commit.
pub(crate) struct Changes<'a, R> {
    rows: &'a R,
    /// In the order of [`KeyspaceId::ALL`].
    pending: [Pending; KEYSPACES],
    /// Number of the commit: the epoch of each bucket that begins in it.
    number: u64,
    epochs: Epochs,
    begun: Vec<KeyspaceId>,
    /// Rows about windows that may have closed early, read in one request.
    closings: BTreeMap<RowBytes, Option<RowBytes>>,
    /// Windows that closed early and from which this call removes members, by queue, planned end and number;
    /// with the highest sequence number among those members.
    left: BTreeMap<(Arc<str>, u64, u64), u64>,
}

impl<'a, R: Rows> Changes<'a, R> {
    /// No changes yet, for commit `number`. `epochs`: the epoch of each bucket before this commit.
    pub(crate) fn new(rows: &'a R, number: u64, epochs: Epochs) -> Self {
        let pending = std::array::from_fn(|_| Pending::new());
        let (begun, closings, left) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Changes { rows, pending, number, epochs, begun, closings, left }
    }

    /// Adds the operations of one call of commit, in order.
    ///
    /// # Errors
    ///
    /// See [`CommitError`]; in that case nothing has been written.
    pub(crate) fn apply<'o>(&mut self, ops: impl Iterator<Item = &'o Op> + Clone) -> Result<(), CommitError> {
        // All items are requested at once: a remote engine gets one request.
        let from =
            ops.clone().filter_map(|op| if let Op::Move { from, .. } = op { Some(from) } else { None });
        let key = |from: &Place| Ok((KeyspaceId::Items, rows::item_key(&from.queue, from.key)?.into()));
        let moved = from.map(key).collect::<Result<Vec<_>, BrokenContract>>()?;
        let together = moved.chunks(R::TOGETHER.min(MOVED_TOGETHER));
        let read = together.flat_map(|keys| self.rows.get_many(keys, ALL_BODIES));
        let mut lying = moved.iter().zip(read);
        self.read_closings(ops.clone())?;
        for op in ops {
            let moved = if matches!(op, Op::Move { .. }) { lying.next() } else { None };
            let lies = moved.map_or(Ok(None), |((id, key), row)| self.get_or(*id, key, row))?;
            self.apply_one(op, lies)?;
        }
        Ok(())
    }

    /// `lies`: the row of the item to move, as the earlier operations have left it.
    fn apply_one(&mut self, op: &Op, lies: Option<RowBytes>) -> Result<(), CommitError> {
        match op {
            Op::Put { item, indexed } => Ok(self.put_item(item, *indexed)?),
            Op::Delete { place, rows } => {
                self.leave_window(place)?;
                self.remove_item(rows::item_key(&place.queue, place.key)?);
                Ok(self.remove_index(place.key, rows)?)
            }
            Op::Index { key, rows } => Ok(self.index(*key, rows)?),
            Op::Move { from, to, removed, written, standing, weight: _ } => {
                self.move_item(from, to, standing, lies)?;
                self.remove_index(from.key, removed)?;
                Ok(self.index(to.key, written)?)
            }
            Op::Close(closed) => Ok(self.close(closed)?),
            Op::PutQueue(queue) => {
                let (key, value) = queue_rows::queue_row(queue)?;
                let kept = queue.count > 0 || queue.paused.is_some() || queue.slowed.is_some();
                self.set(KeyspaceId::Queues, key, kept.then_some(value));
                Ok(())
            }
            Op::PutHeld(held) => {
                let (key, value) = queue_rows::held_row(held)?;
                self.set(KeyspaceId::Queues, key, value);
                Ok(())
            }
            Op::PutWindow(window) => {
                let (key, value) = rows::window_row(window)?;
                self.put(KeyspaceId::Windows, key, value);
                Ok(())
            }
            Op::DeleteWindow { application, customer } => {
                self.remove(KeyspaceId::Windows, rows::window_key(application, customer)?);
                Ok(())
            }
            Op::Remember { bucket, identity, ended } => Ok(self.remember(*bucket, *identity, ended)?),
            Op::BeginBucket(row) => Ok(self.begin(*row)?),
        }
    }

    /// Writes one row.
    pub(crate) fn put(&mut self, id: KeyspaceId, key: impl Into<RowBytes>, value: impl Into<RowBytes>) {
        self.set(id, key, Some(value));
    }

    /// Removes one row; a missing row is no error.
    pub(crate) fn remove(&mut self, id: KeyspaceId, key: impl Into<RowBytes>) {
        self.pending[id.index()].insert(key.into(), Change::Remove);
    }

    fn set(&mut self, id: KeyspaceId, key: impl Into<RowBytes>, value: Option<impl Into<RowBytes>>) {
        let change = value.map_or(Change::Remove, |value| Change::Write(value.into()));
        self.pending[id.index()].insert(key.into(), change);
    }

    /// Adds an item under a key that no other item had before: each arrival number is used once.
    fn add_item(&mut self, key: Vec<u8>, record: Vec<u8>) {
        match self.pending[KeyspaceId::Items.index()].entry(key.into()) {
            Entry::Vacant(row) => drop(row.insert(Change::Add(record.into()))),
            Entry::Occupied(mut row) => drop(row.insert(Change::Write(record.into()))),
        }
    }

    /// Removes an item. An item that one call adds and removes is not written at all.
    fn remove_item(&mut self, key: Vec<u8>) {
        let pending = &mut self.pending[KeyspaceId::Items.index()];
        if matches!(pending.get(key.as_slice()), Some(Change::Add(_))) {
            pending.remove(key.as_slice());
        } else {
            pending.insert(key.into(), Change::Remove);
        }
    }

    /// The buckets that begin anew. Their tables have to be dropped before the rows are written.
    pub(crate) fn begun(&self) -> &[KeyspaceId] {
        &self.begun
    }

    /// The keyspaces with changes.
    pub(crate) fn touched(&self) -> impl Iterator<Item = KeyspaceId> + '_ {
        KeyspaceId::ALL.into_iter().filter(|id| !self.pending[id.index()].is_empty())
    }

    /// The epoch of each bucket after the commit.
    pub(crate) fn epochs(&self) -> Epochs {
        self.epochs
    }

    /// The changed rows, each once, by keyspace and in order of key.
    pub(crate) fn into_rows(self) -> impl Iterator<Item = (KeyspaceId, RowBytes, Option<RowBytes>)> {
        let value = |change| match change {
            Change::Add(value) | Change::Write(value) => Some(value),
            Change::Remove => None,
        };
        let of = move |(id, pending): (KeyspaceId, Pending)| {
            pending.into_iter().map(move |(key, change)| (id, key, value(change)))
        };
        KeyspaceId::ALL.into_iter().zip(self.pending).flat_map(of)
    }

    /// One row as it will be after the commit.
    pub(crate) fn get(&self, id: KeyspaceId, key: &[u8]) -> Result<Option<RowBytes>, ReadError> {
        let known = if id == KeyspaceId::Closings { self.closings.get(key) } else { None };
        self.get_or(id, key, || known.map_or_else(|| self.rows.get(id, key), |row| Ok(row.clone())))
    }

    /// The same. `row` reads the present row.
    fn get_or(
        &self,
        id: KeyspaceId,
        key: &[u8],
        row: impl FnOnce() -> Result<Option<RowBytes>, ReadError>,
    ) -> Result<Option<RowBytes>, ReadError> {
        match self.pending[id.index()].get(key) {
            Some(pending) => Ok(pending.value().cloned()),
            None => row(),
        }
    }

    /// Whether any row within these bounds will satisfy `is_it` after the commit. `lying`: the present rows.
    fn has_any(
        &self,
        id: KeyspaceId,
        (start, end): &RowBounds,
        lying: impl Iterator<Item = Result<Row, ReadError>>,
        is_it: impl Fn(&Row) -> Result<bool, ReadError>,
    ) -> Result<bool, ReadError> {
        if start >= end {
            return Ok(false);
        }
        let pending = &self.pending[id.index()];
        let bounds = (Bound::Included(start.as_slice()), Bound::Excluded(end.as_slice()));
        for (key, change) in pending.range::<[u8], _>(bounds) {
            let Some(value) = change.value() else { continue };
            if is_it(&(key.clone(), value.clone()))? {
                return Ok(true);
            }
        }
        for row in lying {
            let row = row?;
            if !pending.contains_key(&row.0) && is_it(&row)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    // ---- windows that closed early ------------------------------------------------------------------------

    /// Reads the rows about all windows that items of this call leave in one request, where requests are
    /// expensive.
    fn read_closings<'o>(&mut self, ops: impl Iterator<Item = &'o Op> + Clone) -> Result<(), ReadError> {
        if R::AHEAD == 1 {
            return Ok(());
        }
        let any = self.rows.has_closings() || ops.clone().any(|op| matches!(op, Op::Close(_)));
        let key = |op: &Op| match op {
            Op::Delete { place, .. } | Op::Move { from: place, .. } if any => {
                Some(rows::closed_by_end(&place.queue, place.key))
            }
            Op::Close(closed) => Some(rows::closed_by_end(
                &closed.application,
                Key { due: closed.end, window: closed.window, seq: 0 },
            )),
            Op::Delete { .. }
            | Op::Move { .. }
            | Op::Put { .. }
            | Op::Index { .. }
            | Op::PutQueue(_)
            | Op::PutHeld(_)
            | Op::PutWindow(_)
            | Op::DeleteWindow { .. }
            | Op::Remember { .. }
            | Op::BeginBucket(_) => None,
        };
        let mut keys = ops.filter_map(key).collect::<Result<Vec<_>, BrokenContract>>()?;
        keys.sort_unstable();
        keys.dedup();
        let keys: Vec<_> = keys.into_iter().map(|key| (KeyspaceId::Closings, key.into())).collect();
        for ((_, key), row) in keys.iter().zip(self.rows.get_many(&keys, NO_BODIES)) {
            self.closings.insert(RowBytes::clone(key), row()?);
        }
        Ok(())
    }

    fn close(&mut self, closed: &ClosingRow) -> Result<(), ReadError> {
        self.forget_closing(&closed.application, closed.end, closed.window)?;
        for (key, value) in rows::closing_rows(closed)? {
            self.put(KeyspaceId::Closings, key, value);
        }
        self.rows.note_closing();
        let window = (Arc::clone(&closed.application), closed.end, closed.window);
        self.left.entry(window).or_default();
        Ok(())
    }

    /// Removes both rows of a closing.
    fn forget_closing(&mut self, queue: &str, end: u64, window: u64) -> Result<(), ReadError> {
        let place = |due| Key { due, window, seq: 0 };
        let by_end = rows::closed_by_end(queue, place(end))?;
        let known = closings::read_closed(&by_end, self.get(KeyspaceId::Closings, &by_end)?)?;
        if let Some(closed) = known {
            self.remove(KeyspaceId::Closings, by_end);
            self.remove(KeyspaceId::Closings, rows::closed_by_due(queue, place(closed.due))?);
        }
        Ok(())
    }

    /// Notes that an item leaves its place: it may be the last member of a window that closed early.
    fn leave_window(&mut self, place: &Place) -> Result<(), ReadError> {
        if !self.rows.has_closings() {
            return Ok(());
        }
        let window = (Arc::clone(&place.queue), place.key.due, place.key.window);
        if let Some(last) = self.left.get_mut(&window) {
            *last = place.key.seq.max(*last);
            return Ok(());
        }
        let key = rows::closed_by_end(&place.queue, place.key)?;
        if self.get(KeyspaceId::Closings, &key)?.is_some() {
            self.left.insert(window, place.key.seq);
        }
        Ok(())
    }

    /// Removes the rows of windows that closed early and have no members left. To be called after the last
    /// operation.
    ///
    /// # Errors
    ///
    /// Errors of the storage engine; a row that does not read as it was written.
    pub(crate) fn forget_closed(&mut self) -> Result<(), ReadError> {
        // Members usually leave in order: the remaining ones are behind the last that leaves, and not among
        // those that have left.
        let mut perhaps: Vec<_> = std::mem::take(&mut self.left).into_iter().collect();
        for is_behind in [true, false] {
            let bounds = |((queue, end, window), last): &((Arc<str>, u64, u64), u64)| {
                let (first, behind) = member_bounds(queue, *end, *window, 0)?;
                let middle = rows::item_key(queue, Key { due: *end, window: *window, seq: *last })?;
                Ok(if is_behind { (middle, behind) } else { (first, middle) })
            };
            let bounds = perhaps.iter().map(bounds).collect::<Result<Vec<RowBounds>, ReadError>>()?;
            let lying = self.rows.ranges(bounds.clone(), FEW, NO_BODIES);
            let is_member = |(row, bytes): &Row| Ok(head(row, bytes)?.is_windowed());
            let mut none = Vec::new();
            for ((window, bounds), lying) in perhaps.into_iter().zip(&bounds).zip(lying) {
                if !self.has_any(KeyspaceId::Items, bounds, lying, is_member)? {
                    none.push(window);
                }
            }
            perhaps = none;
        }
        perhaps.iter().try_for_each(|((queue, end, window), _)| self.forget_closing(queue, *end, *window))
    }

    // ---- items --------------------------------------------------------------------------------------------

    fn put_item(&mut self, item: &Stored, indexed: bool) -> Result<(), BrokenContract> {
        let Some(content) = item.content.as_deref() else {
            let Key { due, seq, .. } = item.key;
            return Err(broken_contract(format!("the item due {due}, number {seq}, has no content")));
        };
        let row = rows::item_key(item.queue(), item.key)?;
        let view = View::of(item, content);
        let record = record::encode(&row, &view);
        self.add_item(row, record);
        let waits = item.dead.is_none();
        let customer = item.customer.clone().filter(|_| waits && indexed);
        let index = IndexRows {
            identity: item.given.filter(|_| waits),
            customer: customer.map(|customer| (item.application.clone(), customer)),
        };
        self.index(item.key, &index)
    }

    /// Writes index rows that point to `key`.
    pub(crate) fn index(&mut self, key: Key, index: &IndexRows) -> Result<(), BrokenContract> {
        if let Some(identity) = index.identity {
            let (row, value) = rows::identity_row(identity, key);
            self.put(KeyspaceId::Identities, row, value);
        }
        if let Some((application, customer)) = &index.customer {
            let row = rows::place_key(&[application, customer], key)?;
            self.put(KeyspaceId::Customers, row, RowBytes::from([]));
        }
        Ok(())
    }

    fn remove_index(&mut self, key: Key, index: &IndexRows) -> Result<(), BrokenContract> {
        if let Some(identity) = index.identity {
            self.remove(KeyspaceId::Identities, identity.to_bytes());
        }
        if let Some((application, customer)) = &index.customer {
            self.remove(KeyspaceId::Customers, rows::place_key(&[application, customer], key)?);
        }
        Ok(())
    }

    fn move_item(
        &mut self,
        from: &Place,
        to: &Place,
        standing: &Standing,
        lies: Option<RowBytes>,
    ) -> Result<(), CommitError> {
        let row = rows::item_key(&from.queue, from.key)?;
        let bytes = lies.ok_or_else(|| ReadError::Missing { place: from.clone() })?;
        let view = view(&row, &bytes)?;
        let moved = View {
            key: to.key,
            own_time: standing.own_time,
            closed_by: standing.closed_by,
            attempts: standing.attempts,
            last_error: standing.last_error.as_deref(),
            outcome_unknown: standing.outcome_unknown,
            dead: standing.dead.as_deref().map(|dead| (dead.reason, &*dead.error)),
            due: standing
                .due
                .unwrap_or_else(|| Stored::letter_due(to.key, view.accepted_due, standing.own_time)),
            ..view
        };
        if moved.queue() != &*to.queue {
            let (to, queue) = (&to.queue, moved.queue());
            return Err(
                broken_contract(format!("an item of queue `{queue}` is moved to queue `{to}`")).into()
            );
        }
        let target = rows::item_key(&to.queue, to.key)?;
        let record = record::encode(&target, &moved);
        if from != to {
            self.leave_window(from)?;
        }
        // In this order, because old and new may be the same row.
        self.remove_item(row);
        self.put(KeyspaceId::Items, target, record);
        Ok(())
    }

    fn remember(&mut self, bucket: u8, identity: Identity, ended: &Ended) -> Result<(), BrokenContract> {
        let id = bucket_keyspace(bucket)?;
        let epoch = self.epochs.get(usize::from(bucket)).copied().unwrap_or_default();
        self.put(id, identity.to_bytes(), ended::encode(identity, epoch, ended));
        Ok(())
    }

    /// Earlier rows of the bucket belong to the epoch that ends here, also those of this call.
    fn begin(&mut self, row: BucketRow) -> Result<(), BrokenContract> {
        let id = bucket_keyspace(row.bucket)?;
        self.pending[id.index()].clear();
        if let Some(epoch) = self.epochs.get_mut(usize::from(row.bucket)) {
            *epoch = self.number;
        }
        if !self.begun.contains(&id) {
            self.begun.push(id);
        }
        self.put(id, rows::BUCKET, rows::bucket_row(row, self.number));
        Ok(())
    }
}

fn bucket_keyspace(bucket: u8) -> Result<KeyspaceId, BrokenContract> {
    KeyspaceId::ended(bucket)
        .ok_or_else(|| broken_contract(format!("there is no bucket {bucket} of ended items")))
}
