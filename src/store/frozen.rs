//! A snapshot of a store's rows, read page by page while others write; here that of a disk store.
//!
//! The storage engine keeps the rows of a snapshot as long as it exists, so its holder must finish. Each page
//! is a separate read, so that no table and no memtable is held between two pages.

use super::closings::{self, Closed};
use super::database::{unreadable, Keyspaces};
use super::ended::Epochs;
use super::keyspace::KeyspaceId;
use super::load::read_buckets;
use super::reading::damaged;
use super::record::View;
use super::row_reads::{Row, RowBytes, Rows};
use super::rows::{self, META_IDENTITY, META_MARKS};
use super::ReadError;
use fjall::Database;
use std::ops::Bound;
use tidegate_types::event::Marks;

/// Maximum rows of a page, and bytes after which a page ends.
pub(crate) const PAGE_ROWS: usize = 1_000;
pub(crate) const PAGE_BYTES: usize = 1 << 20;

/// What an export reads of a snapshot.
pub(crate) trait FrozenRows: Send {
    /// The store's identity, and the marks of its last commit.
    ///
    /// # Errors
    ///
    /// Errors of the storage engine; a row that does not read as it was written.
    fn marks(&self) -> Result<(u64, Marks), ReadError>;

    /// The next rows after this key, or the first ones. Items come with their bodies.
    ///
    /// # Errors
    ///
    /// Errors of the storage engine.
    fn page(&self, id: KeyspaceId, behind: Option<&RowBytes>) -> Result<FrozenPage, ReadError>;

    /// The epoch of each bucket (see [`super::ended`]), and the buckets that have begun, oldest first.
    ///
    /// # Errors
    ///
    /// As [`FrozenRows::marks`].
    fn epochs(&self) -> Result<(Epochs, Vec<u8>), ReadError>;

    /// Whether and when the windows of these items closed early, in the order of the items.
    ///
    /// # Errors
    ///
    /// As [`FrozenRows::marks`].
    fn closed(&self, items: &[View<'_>]) -> Result<Vec<Option<Closed>>, ReadError>;
}

/// See the module.
pub(crate) struct Frozen {
    /// The keyspaces as of the snapshot.
    pub(crate) keyspaces: Keyspaces,
}

/// Some rows of a keyspace, in order of key.
pub(crate) struct FrozenPage {
    pub(crate) rows: Vec<Row>,
    /// The key after which the next page begins; `None`: the end.
    pub(crate) next: Option<RowBytes>,
}

impl Frozen {
    /// A snapshot as of the last commit.
    pub(crate) fn new(db: &Database, keyspaces: &Keyspaces) -> Self {
        Frozen { keyspaces: keyspaces.frozen(db) }
    }

    /// Number of rows of a keyspace, approximate.
    pub(crate) fn about(&self, id: KeyspaceId) -> u64 {
        self.keyspaces.of(id).approximate_len() as u64
    }

    fn meta(&self, key: &[u8]) -> Result<RowBytes, ReadError> {
        let row = self.keyspaces.get(KeyspaceId::Meta, key)?;
        row.ok_or_else(|| damaged(KeyspaceId::Meta, key, &"missing"))
    }
}

impl FrozenRows for Frozen {
    fn marks(&self) -> Result<(u64, Marks), ReadError> {
        let identity = rows::read_number(META_IDENTITY, &self.meta(META_IDENTITY)?)
            .map_err(|e| damaged(KeyspaceId::Meta, META_IDENTITY, &e))?;
        let (_, marks) = rows::read_marks(&self.meta(META_MARKS)?)
            .map_err(|e| damaged(KeyspaceId::Meta, META_MARKS, &e))?;
        Ok((identity, marks))
    }

    fn page(&self, id: KeyspaceId, behind: Option<&RowBytes>) -> Result<FrozenPage, ReadError> {
        let from = behind.map_or(Bound::Unbounded, |key| Bound::Excluded(key.clone()));
        let (mut rows, mut bytes) = (Vec::new(), 0);
        let mut last = behind.cloned();
        for row in self.keyspaces.rows::<RowBytes>(id, (from, Bound::Unbounded)) {
            let near = last.as_deref().unwrap_or_default();
            let (key, value) = row.into_inner().map_err(|e| unreadable(id, near, &e))?;
            bytes += key.len() + value.len();
            last = Some(key.clone());
            rows.push((key, value));
            if rows.len() >= PAGE_ROWS || bytes >= PAGE_BYTES {
                return Ok(FrozenPage { rows, next: last });
            }
        }
        Ok(FrozenPage { rows, next: None })
    }

    fn epochs(&self) -> Result<(Epochs, Vec<u8>), ReadError> {
        begun_buckets(&self.keyspaces)
    }

    fn closed(&self, items: &[View<'_>]) -> Result<Vec<Option<Closed>>, ReadError> {
        closings::closed_each(&self.keyspaces, items)
    }
}

/// The answer of [`FrozenRows::epochs`], over any engine's rows.
///
/// # Errors
///
/// As [`FrozenRows::epochs`].
pub(crate) fn begun_buckets<R: Rows>(rows: &R) -> Result<(Epochs, Vec<u8>), ReadError> {
    let (begun, epochs) = read_buckets(rows)?;
    Ok((epochs, begun.into_iter().map(|row| row.bucket).collect()))
}
