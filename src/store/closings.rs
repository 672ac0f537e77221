//! Windows that closed before their planned end. Their members stay where they lie, under that end; what is
//! said here is when they are due, and who reads a queue has them in that order.
//!
//! Of each such window there are two rows, as long as one of its members is stored: one by its planned end,
//! for who has a member, and one by the moment at which it closed, for who reads along the queue. The first
//! is looked up window by window and never scanned: most of them are gone by the time that a scan would come
//! to them, and what was deleted lately costs a scan. As long as no window has closed early nothing is looked
//! up.

use super::keyspace::KeyspaceId;
use super::load::{damaged, item_bounds, place, view};
use super::record::View;
use super::row_reads::{Row, RowBounds, RowBytes, Rows};
use super::{rows, ReadError};
use crate::engine::event::{ClosingRow, Stored};
use crate::engine::types::{ClosedBy, Key};
use std::iter::Peekable;
use std::sync::Arc;

/// When a window closed, UTC ms, and what closed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Closed {
    pub(super) due: u64,
    pub(super) cause: ClosedBy,
}

impl Closed {
    /// A member of that window, as it is due.
    pub(super) fn of<'a>(closed: Option<Self>, view: View<'a>) -> View<'a> {
        match closed {
            Some(Closed { due, cause }) => View { due, closed_by: cause, ..view },
            None => view,
        }
    }
}

/// Row keys of the members of a window: from this arrival number on, to before the next window.
///
/// # Errors
///
/// A name that is too long.
pub(super) fn member_bounds(queue: &str, end: u64, window: u64, from: u64) -> Result<RowBounds, ReadError> {
    let first = Key { due: end, window, seq: from };
    let behind = Key { due: end, window: window.saturating_add(1), seq: 0 };
    Ok((rows::item_key(queue, first)?, rows::item_key(queue, behind)?))
}

/// An item's row, and its place in the order in which its queue is read.
pub(super) struct DueRow {
    pub(super) place: Key,
    closed: Option<Closed>,
    row: Row,
}

impl DueRow {
    /// The item, as it is due.
    ///
    /// # Errors
    ///
    /// A record that does not read as it was written.
    pub(super) fn view(&self) -> Result<View<'_>, ReadError> {
        Ok(Closed::of(self.closed, view(&self.row.0, &self.row.1)?))
    }

    /// Bytes of its record.
    pub(super) fn len(&self) -> u64 {
        self.row.1.len() as u64
    }
}

pub(super) type RowsRead<'a> = Box<dyn Iterator<Item = Result<Row, ReadError>> + 'a>;

/// The rows of a queue from a place to before the due `until`, in order of place.
///
/// # Errors
///
/// A name that is too long; the items of the iterator are the storage engine's, and rows that do not read as
/// they were written.
pub(super) fn in_order<'a, R: Rows>(
    rows: &'a R,
    queue: &Arc<str>,
    from: Key,
    until: u64,
) -> Result<InOrder<'a, R>, ReadError> {
    let lying = rows.range(KeyspaceId::Items, item_bounds(queue, from, until)?);
    in_order_of(rows, Box::new(lying), queue, from, until)
}

/// The same, with the rows as they lie there.
///
/// # Errors
///
/// As [`in_order`].
pub(super) fn in_order_of<'a, R: Rows>(
    rows: &'a R,
    lying: RowsRead<'a>,
    queue: &Arc<str>,
    from: Key,
    until: u64,
) -> Result<InOrder<'a, R>, ReadError> {
    let lying = Lying { rows, lying, known: None };
    let closings: RowsRead<'a> = if rows.has_closings() && from < Key::at(until) {
        let bounds = (rows::closed_by_due(queue, from)?, rows::closed_by_due(queue, Key::at(until))?);
        Box::new(rows.range(KeyspaceId::Closings, bounds))
    } else {
        Box::new(std::iter::empty())
    };
    let closed = ClosedMembers { rows, queue: Arc::clone(queue), from, closings, members: None };
    Ok(InOrder { lying: lying.peekable(), closed: closed.peekable() })
}

/// A queue in order: see [`in_order`].
pub(super) struct InOrder<'a, R: Rows> {
    lying: Peekable<Lying<'a, R>>,
    closed: Peekable<ClosedMembers<'a, R>>,
}

impl<R: Rows> Iterator for InOrder<'_, R> {
    type Item = Result<DueRow, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        // A fault comes first, wherever it is.
        let place = |row: Option<&Result<DueRow, ReadError>>| {
            row.map(|row| row.as_ref().map_or(Key::default(), |row| row.place))
        };
        match (place(self.lying.peek()), place(self.closed.peek())) {
            (Some(lying), Some(closed)) if closed < lying => self.closed.next(),
            (None, _) => self.closed.next(),
            (Some(_), _) => self.lying.next(),
        }
    }
}

/// Rows that are due when their keys say.
struct Lying<'a, R> {
    rows: &'a R,
    lying: RowsRead<'a>,
    /// The window that was looked up last, by planned end and number, and whether it has closed early.
    known: Option<((u64, u64), bool)>,
}

impl<R: Rows> Lying<'_, R> {
    fn look(&mut self, row: Row) -> Result<Option<DueRow>, ReadError> {
        let place = place(KeyspaceId::Items, &row.0)?;
        let closed = self.rows.has_closings() && self.has_closed(&view(&row.0, &row.1)?)?;
        Ok((!closed).then_some(DueRow { place, closed: None, row }))
    }

    /// Whether a window that has closed early has it; what has a time of its own may lie amid the members.
    fn has_closed(&mut self, view: &View<'_>) -> Result<bool, ReadError> {
        if !view.is_windowed() {
            return Ok(false);
        }
        let window = (view.key.due, view.key.window);
        let closed = match self.known {
            Some((known, closed)) if known == window => closed,
            Some(_) | None => self::closed(self.rows, view)?.is_some(),
        };
        self.known = Some((window, closed));
        Ok(closed)
    }
}

impl<R: Rows> Iterator for Lying<'_, R> {
    type Item = Result<DueRow, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let looked = self.lying.next()?.and_then(|row| self.look(row));
            if let Some(row) = looked.transpose() {
                return Some(row);
            }
        }
    }
}

/// Members of windows that closed early, in the order in which those closed.
struct ClosedMembers<'a, R> {
    rows: &'a R,
    queue: Arc<str>,
    from: Key,
    /// By the moment at which they closed.
    closings: RowsRead<'a>,
    members: Option<(ClosingRow, RowsRead<'a>)>,
}

impl<'a, R: Rows> ClosedMembers<'a, R> {
    fn open(&self, row: &Row) -> Result<(ClosingRow, RowsRead<'a>), ReadError> {
        let closing = rows::read_closed_by_due(&row.0, &row.1)
            .map_err(|error| damaged(KeyspaceId::Closings, &row.0, &error))?;
        let is_first = (closing.due, closing.window) == (self.from.due, self.from.window);
        let from = if is_first { self.from.seq } else { 0 };
        let bounds = member_bounds(&self.queue, closing.end, closing.window, from)?;
        Ok((closing, Box::new(self.rows.range(KeyspaceId::Items, bounds))))
    }

    fn next_member(&mut self) -> Result<Option<DueRow>, ReadError> {
        loop {
            if let Some((ClosingRow { due, cause, .. }, members)) = &mut self.members {
                for row in members {
                    let row = row?;
                    if view(&row.0, &row.1)?.is_windowed() {
                        let place = Key { due: *due, ..place(KeyspaceId::Items, &row.0)? };
                        let closed = Some(Closed { due: *due, cause: *cause });
                        return Ok(Some(DueRow { place, closed, row }));
                    }
                }
            }
            let Some(row) = self.closings.next().transpose()? else { return Ok(None) };
            self.members = Some(self.open(&row)?);
        }
    }
}

impl<R: Rows> Iterator for ClosedMembers<'_, R> {
    type Item = Result<DueRow, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_member().transpose()
    }
}

/// Whether the window of this item has closed early, and when.
///
/// # Errors
///
/// The storage engine's; a row that does not read as it was written.
pub(super) fn closed<R: Rows>(rows: &R, view: &View<'_>) -> Result<Option<Closed>, ReadError> {
    if !rows.has_closings() || !view.is_windowed() {
        return Ok(None);
    }
    let key = rows::closed_by_end(view.application, view.key)?;
    read_closed(&key, rows.get(KeyspaceId::Closings, &key)?)
}

/// Items as they are due: the windows of some may have closed early.
///
/// # Errors
///
/// The storage engine's; a row that does not read as it was written.
pub(super) fn as_due<'s, R: Rows>(
    rows: &R,
    items: impl Iterator<Item = &'s mut Stored>,
) -> Result<(), ReadError> {
    if !rows.has_closings() {
        return Ok(());
    }
    let windowed: Vec<_> = items.filter(|item| item.is_windowed()).collect();
    let key = |item: &&mut Stored| {
        Ok((KeyspaceId::Closings, rows::closed_by_end(&item.application, item.key)?.into()))
    };
    let keys = windowed.iter().map(key).collect::<Result<Vec<_>, ReadError>>()?;
    for ((item, (_, key)), row) in windowed.into_iter().zip(&keys).zip(rows.get_many(&keys)) {
        if let Some(closed) = read_closed(key, row()?)? {
            (item.due, item.closed_by) = (closed.due, closed.cause);
        }
    }
    Ok(())
}

/// What the row under this key says, which is one by planned end.
///
/// # Errors
///
/// A row that does not read as it was written.
pub(super) fn read_closed(key: &[u8], bytes: Option<RowBytes>) -> Result<Option<Closed>, ReadError> {
    let read = |bytes: RowBytes| {
        let (due, cause) = rows::read_closed_by_end(key, &bytes)?;
        Ok(Closed { due, cause })
    };
    bytes.map(read).transpose().map_err(|error: String| damaged(KeyspaceId::Closings, key, &error))
}
