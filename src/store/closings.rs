//! Windows that closed before their planned end. Their members keep their keys, which contain the planned
//! end; the rows of this module record when the members are due. Readers of a queue return them in that
//! order.
//!
//! Each such window has two rows as long as one of its members is stored: one by its planned end, for readers
//! of a member, and one by the moment of closing, for readers of the queue. The first is looked up window by
//! window and never scanned: most of these rows are deleted by the time a scan would reach them, and recently
//! deleted rows slow a scan. As long as no window has closed early, there are no look-ups.

use super::keyspace::KeyspaceId;
use super::reading::{damaged, head, place};
use super::record::{self, View};
use super::row_reads::item_bounds;
use super::row_reads::{Row, RowBounds, RowBytes, Rows, NO_BODIES};
use super::{rows, ReadError};
use std::collections::VecDeque;
use std::iter::Peekable;
use std::sync::Arc;
use tidegate_types::event::{ClosingRow, Range, Stored};
use tidegate_types::{ClosedBy, Key};

/// When a window closed, UTC ms, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed {
    pub(crate) due: u64,
    pub(crate) cause: ClosedBy,
}

impl Closed {
    /// A member of that window, with its actual due.
    pub(crate) fn of<'a>(closed: Option<Self>, view: View<'a>) -> View<'a> {
        match closed {
            Some(Closed { due, cause }) => View { due, closed_by: cause, ..view },
            None => view,
        }
    }
}

/// Row keys of the members of a window, from this arrival number on, up to the next window.
///
/// # Errors
///
/// A name that is too long.
pub(crate) fn member_bounds(queue: &str, end: u64, window: u64, from: u64) -> Result<RowBounds, ReadError> {
    let first = Key { due: end, window, seq: from };
    let behind = Key { due: end, window: window.saturating_add(1), seq: 0 };
    Ok((rows::item_key(queue, first)?, rows::item_key(queue, behind)?))
}

/// An item's row, and its place in the reading order of its queue.
pub(crate) struct DueRow {
    pub(crate) place: Key,
    closed: Option<Closed>,
    row: Row,
}

impl DueRow {
    /// The item with its actual due; without its body, if that was not read.
    ///
    /// # Errors
    ///
    /// A record that does not read as it was written.
    pub(crate) fn view(&self) -> Result<View<'_>, ReadError> {
        Ok(Closed::of(self.closed, head(&self.row.0, &self.row.1)?))
    }

    /// Whether the body was read.
    pub(crate) fn is_whole(&self) -> bool {
        record::is_whole(&self.row.1)
    }

    /// Number of bytes of its record that were read.
    pub(crate) fn len(&self) -> u64 {
        self.row.1.len() as u64
    }
}

pub(crate) type RowsRead<'a> = Box<dyn Iterator<Item = Result<Row, ReadError>> + 'a>;

/// All rows of a range, in order of place; a remote engine omits the bodies.
///
/// # Errors
///
/// A name that is too long. The iterator returns errors of the storage engine, and rows that do not read as
/// they were written.
pub(crate) fn in_order<'a, R: Rows>(
    rows: &'a R,
    queue: &Arc<str>,
    from: Key,
    until: u64,
) -> Result<InOrder<'a, R>, ReadError> {
    let lying = rows.range(KeyspaceId::Items, item_bounds(queue, from, until)?, NO_BODIES);
    let range = Range { queue: Arc::clone(queue), from, until, max_rows: usize::MAX };
    in_order_of(rows, Box::new(lying), &range, NO_BODIES)
}

/// The same, with the rows of the range in order of key as input. `bodies`: as in [`Rows`], for the members
/// that are read from other places.
///
/// # Errors
///
/// As [`in_order`].
pub(crate) fn in_order_of<'a, R: Rows>(
    rows: &'a R,
    lying: RowsRead<'a>,
    range: &Range,
    bodies: u64,
) -> Result<InOrder<'a, R>, ReadError> {
    let Range { ref queue, from, until, .. } = *range;
    let lying = Lying { rows, lying, ready: VecDeque::new(), known: None };
    let closings: RowsRead<'a> = if rows.has_closings() && from < Key::at(until) {
        let bounds = (rows::closed_by_due(queue, from)?, rows::closed_by_due(queue, Key::at(until))?);
        Box::new(rows.range(KeyspaceId::Closings, bounds, NO_BODIES))
    } else {
        Box::new(std::iter::empty())
    };
    let closed =
        ClosedMembers { rows, queue: Arc::clone(queue), from, bodies, closings, members: VecDeque::new() };
    Ok(InOrder { lying: lying.peekable(), closed: closed.peekable() })
}

/// A queue in order: see [`in_order`].
pub(crate) struct InOrder<'a, R: Rows> {
    lying: Peekable<Lying<'a, R>>,
    closed: Peekable<ClosedMembers<'a, R>>,
}

impl<R: Rows> Iterator for InOrder<'_, R> {
    type Item = Result<DueRow, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        // An error comes first, whichever source it is from.
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

/// A window of a queue, by planned end and number.
type OfWindow = (u64, u64);

/// Rows whose due is the one in their key.
struct Lying<'a, R> {
    rows: &'a R,
    lying: RowsRead<'a>,
    /// Rows that were read ahead.
    ready: VecDeque<Result<DueRow, ReadError>>,
    /// The window of the last look-up, and whether it has closed early.
    known: Option<(OfWindow, bool)>,
}

impl<R: Rows> Lying<'_, R> {
    /// Reads some rows, and looks up which of them are members of windows that closed early. False: no rows
    /// are left.
    fn read_ahead(&mut self) -> bool {
        let (mut read, mut fault) = (Vec::with_capacity(R::AHEAD), None);
        for row in self.lying.by_ref().take(R::AHEAD) {
            match row {
                Ok(row) => read.push(row),
                Err(error) => fault = Some(error),
            }
            if fault.is_some() {
                break;
            }
        }
        let any = !read.is_empty() || fault.is_some();
        match self.due_of(read) {
            Ok(due) => self.ready.extend(due.into_iter().map(Ok)),
            // This error belongs to an earlier row than one met by the read itself.
            Err(error) => fault = Some(error),
        }
        self.ready.extend(fault.map(Err));
        any
    }

    fn due_of(&mut self, read: Vec<Row>) -> Result<Vec<DueRow>, ReadError> {
        let (mut windows, mut unknown) = (Vec::with_capacity(read.len()), Vec::new());
        let mut last = self.known.map(|(window, _)| window);
        for row in &read {
            let view = head(&row.0, &row.1)?;
            // Own-time items may lie between the members.
            let window = view.is_windowed().then_some((view.key.due, view.key.window));
            if window.is_some() && window != last {
                let key = rows::closed_by_end(view.application, view.key)?;
                unknown.push((KeyspaceId::Closings, key.into()));
                last = window;
            }
            windows.push(window);
        }
        let mut looked_up = unknown.iter().zip(self.rows.get_many(&unknown, NO_BODIES));
        let mut due = Vec::with_capacity(read.len());
        for (row, window) in read.into_iter().zip(windows) {
            let is_known = |window| self.known.filter(|(known, _)| *known == window);
            let closed = match window.map(|window| (window, is_known(window))) {
                None => false,
                Some((_, Some((_, closed)))) => closed,
                Some((window, None)) => {
                    let closing = looked_up.next();
                    let closing = closing.map(|((_, key), row)| read_closed(key, row()?)).transpose()?;
                    let closed = closing.flatten().is_some();
                    self.known = Some((window, closed));
                    closed
                }
            };
            if !closed {
                due.push(due_row(row)?);
            }
        }
        Ok(due)
    }
}

fn due_row(row: Row) -> Result<DueRow, ReadError> {
    Ok(DueRow { place: place(KeyspaceId::Items, &row.0)?, closed: None, row })
}

impl<R: Rows> Iterator for Lying<'_, R> {
    type Item = Result<DueRow, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.ready.pop_front() {
                return Some(row);
            }
            if !self.rows.has_closings() {
                return self.lying.next().map(|row| row.and_then(due_row));
            }
            if !self.read_ahead() {
                return None;
            }
        }
    }
}

/// Members of windows that closed early, in the order of closing.
struct ClosedMembers<'a, R> {
    rows: &'a R,
    queue: Arc<str>,
    from: Key,
    /// The wanted bytes of bodies that are not read yet.
    bodies: u64,
    /// Closings by the moment of closing.
    closings: RowsRead<'a>,
    /// The members of some of these windows, in the same order.
    members: VecDeque<(ClosingRow, RowsRead<'a>)>,
}

impl<'a, R: Rows> ClosedMembers<'a, R> {
    /// Opens the next windows. False: none are left.
    fn open(&mut self) -> Result<bool, ReadError> {
        let mut opened = Vec::with_capacity(R::AHEAD);
        for row in self.closings.by_ref().take(R::AHEAD) {
            let (key, value) = row?;
            let closing = rows::read_closed_by_due(&key, &value)
                .map_err(|error| damaged(KeyspaceId::Closings, &key, &error))?;
            let is_first = (closing.due, closing.window) == (self.from.due, self.from.window);
            let from = if is_first { self.from.seq } else { 0 };
            let bounds = member_bounds(&self.queue, closing.end, closing.window, from)?;
            opened.push((closing, bounds));
        }
        let any = !opened.is_empty();
        let bounds = opened.iter().map(|(_, bounds)| bounds.clone()).collect();
        let lying = self.rows.ranges(bounds, usize::MAX, self.bodies);
        let members = opened.into_iter().zip(lying);
        self.members.extend(members.map(|((closing, _), lying)| {
            let lying: RowsRead<'a> = Box::new(lying);
            (closing, lying)
        }));
        Ok(any)
    }

    fn next_member(&mut self) -> Result<Option<DueRow>, ReadError> {
        loop {
            if let Some((ClosingRow { due, cause, .. }, members)) = self.members.front_mut() {
                for row in members {
                    let row = row?;
                    if record::is_whole(&row.1) {
                        self.bodies = self.bodies.saturating_sub(row.1.len() as u64);
                    }
                    if head(&row.0, &row.1)?.is_windowed() {
                        let place = Key { due: *due, ..place(KeyspaceId::Items, &row.0)? };
                        let closed = Some(Closed { due: *due, cause: *cause });
                        return Ok(Some(DueRow { place, closed, row }));
                    }
                }
                self.members.pop_front();
            } else if !self.open()? {
                return Ok(None);
            }
        }
    }
}

impl<R: Rows> Iterator for ClosedMembers<'_, R> {
    type Item = Result<DueRow, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_member().transpose()
    }
}

/// Whether and when the window of this item closed early.
///
/// # Errors
///
/// Errors of the storage engine; a row that does not read as it was written.
pub(crate) fn closed<R: Rows>(rows: &R, view: &View<'_>) -> Result<Option<Closed>, ReadError> {
    if !rows.has_closings() || !view.is_windowed() {
        return Ok(None);
    }
    let key = rows::closed_by_end(view.application, view.key)?;
    read_closed(&key, rows.get(KeyspaceId::Closings, &key)?)
}

/// The same for many items, in their order. Those of one window that follow each other cost one look-up.
///
/// # Errors
///
/// As [`closed`].
pub(crate) fn closed_each<R: Rows>(rows: &R, views: &[View<'_>]) -> Result<Vec<Option<Closed>>, ReadError> {
    if !rows.has_closings() {
        return Ok(vec![None; views.len()]);
    }
    let mut keys: Vec<(KeyspaceId, RowBytes)> = Vec::new();
    let mut places = Vec::with_capacity(views.len());
    for view in views {
        if !view.is_windowed() {
            places.push(None);
            continue;
        }
        let key = rows::closed_by_end(view.application, view.key)?;
        if keys.last().is_none_or(|(_, last)| **last != *key) {
            keys.push((KeyspaceId::Closings, key.into()));
        }
        places.push(keys.len().checked_sub(1));
    }
    let found = keys.iter().zip(rows.get_many(&keys, NO_BODIES));
    let found = found.map(|((_, key), row)| read_closed(key, row()?));
    let found: Vec<Option<Closed>> = found.collect::<Result<_, _>>()?;
    Ok(places.into_iter().map(|place| found.get(place?).copied().flatten()).collect())
}

/// Sets the actual due of items whose windows closed early.
///
/// # Errors
///
/// Errors of the storage engine; a row that does not read as it was written.
pub(crate) fn as_due<'s, R: Rows>(
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
    let closings = keys.iter().zip(rows.get_many(&keys, NO_BODIES));
    for (item, ((_, key), row)) in windowed.into_iter().zip(closings) {
        if let Some(closed) = read_closed(key, row()?)? {
            (item.due, item.closed_by) = (closed.due, closed.cause);
        }
    }
    Ok(())
}

/// Parses the row under this key, which is one by planned end.
///
/// # Errors
///
/// A row that does not read as it was written.
pub(crate) fn read_closed(key: &[u8], bytes: Option<RowBytes>) -> Result<Option<Closed>, ReadError> {
    let read = |bytes: RowBytes| {
        let (due, cause) = rows::read_closed_by_end(key, &bytes)?;
        Ok(Closed { due, cause })
    };
    bytes.map(read).transpose().map_err(|error: String| damaged(KeyspaceId::Closings, key, &error))
}
