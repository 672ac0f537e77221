//! The interface between a store and the engine that holds its rows: keys and values in keyspaces, in order
//! of key.
//!
//! The layer below is an engine, which does not know the meaning of a row ([`super::database`]). The layer
//! above knows it, once for all engines: what a commit writes ([`super::changes`]) and what a load reads
//! ([`super::load`]).

use super::keyspace::KeyspaceId;
use super::reading::damaged;
use super::rows;
use super::ReadError;
use std::iter;
use tidegate_types::Key;

/// Bytes of a key or a value; cheap to clone.
pub(crate) type RowBytes = fjall::Slice;

/// A row's key and value.
pub(crate) type Row = (RowBytes, RowBytes);

/// Row keys from the first to before the second; empty unless the second is greater.
pub(crate) type RowBounds = (Vec<u8>, Vec<u8>);

/// Read no bodies of items.
pub(crate) const NO_BODIES: u64 = 0;
/// Read all bodies of items.
pub(crate) const ALL_BODIES: u64 = u64::MAX;

/// Reads of an engine. Each read sees every commit made before it began.
///
/// A method that returns an iterator reads little more than the caller takes, because rows may be large. A
/// remote engine fetches rows in pages.
///
/// For items a remote engine may return only heads ([`super::record`]), if the caller wants no bodies, or if
/// the bodies exceed the wanted bytes. A local engine returns whole records.
pub(crate) trait Rows {
    /// Number of look-ups that are made together. It is small for a local engine, since the results kept in
    /// between displace rows from the processor's caches.
    const TOGETHER: usize = 16;

    /// Number of rows that are read before a look-up for all of them. A local engine gains nothing from more,
    /// and rows may be large.
    const AHEAD: usize = 1;

    /// Reads one row.
    ///
    /// # Errors
    ///
    /// Those of the engine.
    fn get(&self, id: KeyspaceId, key: &[u8]) -> Result<Option<RowBytes>, ReadError>;

    /// Returns as many answers as keys, in their order. With a local engine an answer that is not called for
    /// costs nothing. `bodies`: all of them, or none.
    fn get_many(
        &self,
        keys: &[(KeyspaceId, RowBytes)],
        _bodies: u64,
    ) -> impl Iterator<Item = impl FnOnce() -> Result<Option<RowBytes>, ReadError>> {
        keys.iter().map(move |(id, key)| move || self.get(*id, key))
    }

    /// The rows within the bounds, in order of key.
    fn range(
        &self,
        id: KeyspaceId,
        bounds: RowBounds,
        bodies: u64,
    ) -> impl Iterator<Item = Result<Row, ReadError>>;

    /// Items by as many ranges as bounds, in their order. `most`: the usual number of rows wanted from each
    /// range. `bodies`: the wanted bytes of all ranges together.
    fn ranges(
        &self,
        bounds: Vec<RowBounds>,
        _most: usize,
        bodies: u64,
    ) -> impl Iterator<Item = impl Iterator<Item = Result<Row, ReadError>>> {
        // The caller may not reach all ranges.
        let range = move |bounds| self.range(KeyspaceId::Items, bounds, bodies);
        bounds.into_iter().map(move |bounds| iter::once_with(move || range(bounds)).flatten())
    }

    /// All rows of a small keyspace, in order of key.
    fn all(&self, id: KeyspaceId) -> impl Iterator<Item = Result<Row, ReadError>>;

    /// All rows of a small keyspace, each parsed by `read`.
    ///
    /// # Errors
    ///
    /// Those of the engine, or the fault that `read` finds in a row.
    fn read_all<T>(
        &self,
        id: KeyspaceId,
        read: impl Fn(&[u8], &[u8]) -> Result<T, String>,
    ) -> Result<Vec<T>, ReadError> {
        let one = |row: Result<Row, ReadError>| {
            let (key, value) = row?;
            read(&key, &value).map_err(|e| damaged(id, &key, &e))
        };
        self.all(id).map(one).collect()
    }

    /// Whether a window may have closed early, in this life or an earlier one, and have members.
    fn has_closings(&self) -> bool;

    /// Notes that a closing is about to be written.
    fn note_closing(&self);

    /// Whether a loss of durable commits was accepted. Then a row may lead to an item that is gone: the rows
    /// of a lost commit that a table contained already have stayed, those of other keyspaces have not.
    fn has_losses(&self) -> bool {
        false
    }
}

/// The row keys of a queue's items from `from` to before the due `until`.
///
/// # Errors
///
/// A name that is too long.
pub(crate) fn item_bounds(queue: &str, from: Key, until: u64) -> Result<RowBounds, ReadError> {
    Ok((rows::item_key(queue, from)?, rows::item_key(queue, Key::at(until))?))
}
