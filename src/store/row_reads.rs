//! What a store asks of whatever holds its rows: keys and values in keyspaces, in order of key.
//!
//! Below lies an engine, which knows nothing of what a row means ([`super::database`]); above it everything
//! that does, once for all engines: what a commit writes ([`super::changes`]), and what a load reads
//! ([`super::load`]).

use super::keyspace::KeyspaceId;
use super::load::damaged;
use super::ReadError;
use std::iter;

/// Of a key or a value; cheap to clone.
pub(super) type RowBytes = fjall::Slice;

/// Row key and value.
pub(super) type Row = (RowBytes, RowBytes);

/// Row keys from the first to before the second; none, where the second is not behind the first.
pub(super) type RowBounds = (Vec<u8>, Vec<u8>);

/// No body of an item is wanted.
pub(super) const NO_BODIES: u64 = 0;
/// All bodies of items are wanted.
pub(super) const ALL_BODIES: u64 = u64::MAX;

/// Reads of an engine. All of them see every commit that was made before they began.
///
/// What gives an iterator reads as far as it is asked for, and little more: rows may be large. An engine that
/// is far away brings them in pages.
///
/// Of items such an engine may bring heads alone ([`super::record`]) where their bodies are not wanted, or
/// come to more bytes than are. One that is near brings whole records.
pub(super) trait Rows {
    /// How many things are looked for together: few where the rows are near, since what is kept of them
    /// meanwhile pushes rows out of the processor's caches.
    const TOGETHER: usize = 16;

    /// How many rows are read before something is looked up for all of them. Where the rows are near nothing
    /// is gained by it, and rows may be large.
    const AHEAD: usize = 1;

    /// One row.
    ///
    /// # Errors
    ///
    /// The engine's.
    fn get(&self, id: KeyspaceId, key: &[u8]) -> Result<Option<RowBytes>, ReadError>;

    /// As many answers as keys, in their order. One that is not called for costs nothing where the rows are
    /// near. `bodies`: all of them, or none.
    fn get_many(
        &self,
        keys: &[(KeyspaceId, RowBytes)],
        _bodies: u64,
    ) -> impl Iterator<Item = impl FnOnce() -> Result<Option<RowBytes>, ReadError>> {
        keys.iter().map(move |(id, key)| move || self.get(*id, key))
    }

    /// Rows in order of key.
    fn range(
        &self,
        id: KeyspaceId,
        bounds: RowBounds,
        bodies: u64,
    ) -> impl Iterator<Item = Result<Row, ReadError>>;

    /// Items by as many ranges as bounds, in their order. `most`: so many rows of each are wanted, as a rule.
    /// `bodies`: of all together.
    fn ranges(
        &self,
        bounds: Vec<RowBounds>,
        _most: usize,
        bodies: u64,
    ) -> impl Iterator<Item = impl Iterator<Item = Result<Row, ReadError>>> {
        // Some may not be reached.
        let range = move |bounds| self.range(KeyspaceId::Items, bounds, bodies);
        bounds.into_iter().map(move |bounds| iter::once_with(move || range(bounds)).flatten())
    }

    /// All rows of a small keyspace, in order of key.
    fn all(&self, id: KeyspaceId) -> impl Iterator<Item = Result<Row, ReadError>>;

    /// All rows of a small keyspace, read by `read`.
    ///
    /// # Errors
    ///
    /// The engine's, or what `read` finds wrong with a row.
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

    /// Whether a window may have closed early, in this life of the process or before, and have members.
    fn has_closings(&self) -> bool;

    /// One is about to be written.
    fn note_closing(&self);
}
