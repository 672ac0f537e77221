//! A snapshot of a disk store's rows, read page by page while others write.
//!
//! The storage engine keeps the rows of a snapshot as long as it exists, so its holder must finish. Each page
//! is a separate read, so that no table and no memtable is held between two pages.

use super::database::{unreadable, Keyspaces};
use super::ended::Epochs;
use super::keyspace::KeyspaceId;
use super::load::read_buckets;
use super::row_reads::Row;
use super::ReadError;
use fjall::{Database, Slice};
use std::ops::Bound;

/// Maximum rows of a page, and bytes after which a page ends.
const PAGE_ROWS: usize = 1_000;
const PAGE_BYTES: usize = 1 << 20;

/// See the module.
pub(crate) struct Frozen {
    /// The keyspaces as of the snapshot.
    pub(crate) keyspaces: Keyspaces,
}

/// Some rows of a keyspace, in order of key.
pub(crate) struct FrozenPage {
    pub(crate) rows: Vec<Row>,
    /// The key after which the next page begins; `None`: the end.
    pub(crate) next: Option<Slice>,
}

impl Frozen {
    /// A snapshot as of the last commit.
    pub(crate) fn new(db: &Database, keyspaces: &Keyspaces) -> Self {
        Frozen { keyspaces: keyspaces.frozen(db) }
    }

    /// The next rows after this key, or the first ones.
    ///
    /// # Errors
    ///
    /// Errors of the storage engine.
    pub(crate) fn page(&self, id: KeyspaceId, behind: Option<&Slice>) -> Result<FrozenPage, ReadError> {
        let from = behind.map_or(Bound::Unbounded, |key| Bound::Excluded(key.clone()));
        let (mut rows, mut bytes) = (Vec::new(), 0);
        let mut last = behind.cloned();
        for row in self.keyspaces.rows::<Slice>(id, (from, Bound::Unbounded)) {
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

    /// All rows of a keyspace.
    ///
    /// # Errors
    ///
    /// Errors of the storage engine; those of `visit`.
    pub(crate) fn each(
        &self,
        id: KeyspaceId,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let mut behind = None;
        loop {
            let FrozenPage { rows, next } = self.page(id, behind.as_ref())?;
            rows.iter().try_for_each(|(key, value)| visit(key, value))?;
            let Some(next) = next else { return Ok(()) };
            behind = Some(next);
        }
    }

    /// The epoch of each bucket (see [`super::ended`]), and the buckets that have begun, oldest first.
    ///
    /// # Errors
    ///
    /// Errors of the storage engine; the row of a bucket that does not read as it was written.
    pub(crate) fn epochs(&self) -> Result<(Epochs, Vec<u8>), ReadError> {
        let (begun, epochs) = read_buckets(&self.keyspaces)?;
        Ok((epochs, begun.into_iter().map(|row| row.bucket).collect()))
    }

    /// Number of rows of a keyspace, approximate.
    pub(crate) fn about(&self, id: KeyspaceId) -> u64 {
        self.keyspaces.of(id).approximate_len() as u64
    }
}
