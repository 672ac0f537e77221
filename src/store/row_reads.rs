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

/// Reads of an engine. All of them see every commit that was made before they began.
///
/// What gives an iterator reads as far as it is asked for, and little more: rows may be large. An engine that
/// is far away brings them in pages.
pub(super) trait Rows {
    /// How many things are looked for together: few where the rows are near, since what is kept of them
    /// meanwhile pushes rows out of the processor's caches.
    const TOGETHER: usize = 16;

    /// One row.
    ///
    /// # Errors
    ///
    /// The engine's.
    fn get(&self, id: KeyspaceId, key: &[u8]) -> Result<Option<RowBytes>, ReadError>;

    /// As many answers as keys, in their order. One that is not called for costs nothing where the rows are
    /// near.
    fn get_many(
        &self,
        keys: &[(KeyspaceId, RowBytes)],
    ) -> impl Iterator<Item = impl FnOnce() -> Result<Option<RowBytes>, ReadError>> {
        keys.iter().map(move |(id, key)| move || self.get(*id, key))
    }

    /// Rows in order of key.
    fn range(&self, id: KeyspaceId, bounds: RowBounds) -> impl Iterator<Item = Result<Row, ReadError>>;

    /// As many ranges as bounds, in their order; mostly the first rows of each are wanted.
    fn ranges(
        &self,
        id: KeyspaceId,
        bounds: Vec<RowBounds>,
    ) -> impl Iterator<Item = impl Iterator<Item = Result<Row, ReadError>>> {
        // Some may not be reached.
        bounds.into_iter().map(move |bounds| iter::once_with(move || self.range(id, bounds)).flatten())
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
