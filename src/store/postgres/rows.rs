//! Reads of rows: all keys in one request, ranges in pages.

use super::connect::{DatabaseError, DatabaseLink};
use super::OpenError;
use crate::ended::Epochs;
use crate::errors::broken_contract;
use crate::frozen::{FrozenPage, PAGE_BYTES, PAGE_ROWS};
use crate::keyspace::KeyspaceId;
use crate::load::read_buckets;
use crate::reading::damaged;
use crate::record;
use crate::row_reads::{Row, RowBounds, RowBytes, Rows, NO_BODIES};
use crate::{rows::BUCKET, ReadError};
use futures_util::future::try_join_all;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio_postgres::Error;

/// Number of rows of the first page, and of the following pages.
const FIRST_PAGE: usize = 256;
const PAGE: usize = 4_096;
/// Number of rows of the first pages of several ranges together.
const FIRST_PAGES: usize = 8_192;
/// Minimum number of rows of a page.
const LEAST_PAGE: usize = 16;
/// Approximate limit of the heads on one page, or on the first pages of several ranges together, in bytes.
const PAGE_HEADS: usize = 8 << 20;
/// Maximum size of the rests on one page, or on the first pages of several ranges together, in bytes: they
/// have to arrive within the lease, over a slow network too.
const PAGE_RESTS: u64 = 32 << 20;

/// Reads rows of the tables through one connection.
pub(super) struct PgRows {
    link: DatabaseLink,
    /// The epoch of each bucket: part of the key of its rows.
    epochs: Arc<Mutex<Epochs>>,
    /// Some window has closed early, and may have members.
    closings: Arc<AtomicBool>,
}

impl PgRows {
    /// Readers over two connections with prepared statements: the second is for another thread. The caller
    /// calls [`PgRows::find_closings`] before it reads.
    pub(super) fn over(links: [DatabaseLink; 2]) -> [Self; 2] {
        let (epochs, closings): (Arc<Mutex<Epochs>>, Arc<AtomicBool>) = Default::default();
        links.map(|link| {
            let (epochs, closings) = (Arc::clone(&epochs), Arc::clone(&closings));
            PgRows { link, epochs, closings }
        })
    }

    /// A reader over a connection that reads a snapshot.
    ///
    /// # Errors
    ///
    /// Those of the database, and of rows that do not read as they were written.
    pub(super) fn frozen(link: DatabaseLink) -> Result<Self, OpenError> {
        let rows = PgRows { link, epochs: Arc::default(), closings: Arc::default() };
        rows.find_closings()?;
        let (_, epochs) = read_buckets(&rows)?;
        rows.set_epochs(epochs);
        Ok(rows)
    }

    /// Finds out whether some window has closed early.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub(super) fn find_closings(&self) -> Result<(), ReadError> {
        let any = self.page_of(KeyspaceId::Closings, &everything(), 1, NO_BODIES)?;
        self.closings.store(!any.rows.is_empty(), Ordering::Relaxed);
        Ok(())
    }

    /// Uses the connection: some networks cut one that nobody uses.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub(super) fn touch(&self) -> Result<(), ReadError> {
        self.link.execute("SELECT 1").map_err(|e| self.unreadable(&e))
    }

    /// The connection, for another reader.
    pub(super) fn into_link(self) -> DatabaseLink {
        self.link
    }

    /// The connection of this reader.
    pub(super) fn link(&self) -> &DatabaseLink {
        &self.link
    }

    /// The epoch of each bucket.
    pub(super) fn epochs(&self) -> Epochs {
        *self.epochs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the epochs after a commit.
    pub(super) fn set_epochs(&self, epochs: Epochs) {
        *self.epochs.lock().unwrap_or_else(PoisonError::into_inner) = epochs;
    }

    fn unreadable(&self, error: &DatabaseError) -> ReadError {
        let text = format!("{}: {error}", self.link.place());
        if error.is_passing() {
            ReadError::Lost(text)
        } else {
            ReadError::Engine(text)
        }
    }

    /// Reads all keys in one request.
    fn found(
        &self,
        keys: &[(KeyspaceId, RowBytes)],
        bodies: u64,
    ) -> Result<Vec<Option<RowBytes>>, ReadError> {
        let mut wanted = KeysByTable::default();
        let epochs = self.epochs();
        for (n, (id, key)) in keys.iter().enumerate() {
            match id {
                KeyspaceId::Items => wanted.items.add(n, key),
                KeyspaceId::Ended(bucket) if **key != *BUCKET => {
                    wanted.buckets.push(i16::from(*bucket));
                    let epoch = epochs.get(usize::from(*bucket)).copied().unwrap_or_default();
                    wanted.epochs.push(epoch as i64);
                    wanted.ended.add(n, key);
                }
                KeyspaceId::Ended(_)
                | KeyspaceId::Customers
                | KeyspaceId::Identities
                | KeyspaceId::Queues
                | KeyspaceId::Windows
                | KeyspaceId::Closings
                | KeyspaceId::Meta => {
                    wanted.spaces.push(space(*id));
                    wanted.others.add(n, key);
                }
            }
        }
        let answers = self.ask(&wanted, bodies != NO_BODIES).map_err(|e| self.unreadable(&e))?;
        let mut found = vec![None; keys.len()];
        for (n, value) in answers {
            if let Some(slot) = found.get_mut(n) {
                *slot = Some(value);
            }
        }
        Ok(found)
    }

    fn ask(&self, wanted: &KeysByTable<'_>, whole: bool) -> Result<Vec<(usize, RowBytes)>, DatabaseError> {
        let statements = self.link.statements()?;
        let client = self.link.client();
        let items = async {
            match wanted.items.keys.is_empty() {
                true => Ok(Vec::new()),
                false => client.query(&statements.items, &[&wanted.items.keys, &whole]).await,
            }
        };
        let others = async {
            match wanted.others.keys.is_empty() {
                true => Ok(Vec::new()),
                false => client.query(&statements.others, &[&wanted.spaces, &wanted.others.keys]).await,
            }
        };
        let ended = async {
            let KeysByTable { buckets, epochs, ended, .. } = wanted;
            match ended.keys.is_empty() {
                true => Ok(Vec::new()),
                false => client.query(&statements.ended, &[buckets, epochs, &ended.keys]).await,
            }
        };
        let (items, others, ended) = self.link.run(async { tokio::try_join!(items, others, ended) })?;
        // The answers are numbered from one, in the order of the request.
        let asked = |of: &TableKeys<'_>, row: &tokio_postgres::Row| {
            let n = usize::try_from(row.get::<_, i64>(0) - 1).unwrap_or(usize::MAX);
            of.places.get(n).copied().unwrap_or(usize::MAX)
        };
        let mut answers = Vec::with_capacity(items.len() + others.len() + ended.len());
        answers
            .extend(items.iter().map(|row| (asked(&wanted.items, row), record_of(row.get(1), row.get(2)))));
        answers.extend(others.iter().map(|row| (asked(&wanted.others, row), bytes_of(row, 1))));
        answers.extend(ended.iter().map(|row| (asked(&wanted.ended, row), bytes_of(row, 1))));
        Ok(answers)
    }

    /// Reads the first `most` rows within these bounds.
    fn page_of(
        &self,
        id: KeyspaceId,
        bounds: &RowBounds,
        most: usize,
        bodies: u64,
    ) -> Result<RowPage, ReadError> {
        if matches!(id, KeyspaceId::Ended(_)) {
            return Err(broken_contract("ended items are looked up by identity alone").into());
        }
        self.link
            .run(self.read_page(id, bounds, (most, PAGE_HEADS), bodies)?)
            .map_err(|e| self.unreadable(&e))
    }

    /// The next rows of a keyspace after this key, or the first ones; see [`FrozenRows::page`].
    ///
    /// [`FrozenRows::page`]: crate::frozen::FrozenRows::page
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub(super) fn frozen_page(
        &self,
        id: KeyspaceId,
        behind: Option<&RowBytes>,
    ) -> Result<FrozenPage, ReadError> {
        let mut page = if let KeyspaceId::Ended(bucket) = id {
            self.ended_page(bucket, behind)?
        } else {
            let (first, end) = everything();
            let from = behind.map_or(first, |key| after(key));
            self.page_of(id, &(from, end), PAGE_ROWS, PAGE_BYTES as u64)?
        };
        if id == KeyspaceId::Items {
            // The bodies of the others come with the next page.
            let whole = page.rows.iter().take_while(|(_, record)| record::is_whole(record)).count();
            if let (0, Some((key, _))) = (whole, page.rows.front()) {
                let key = key.clone();
                page.rows.truncate(1);
                page.is_last = false;
                // The snapshot has it still.
                let record = self.get(id, &key)?;
                page.rows[0].1 = record.ok_or_else(|| damaged(id, &key, &"missing"))?;
            } else if whole < page.rows.len() {
                page.rows.truncate(whole);
                page.is_last = false;
            }
        }
        let next = page.rows.back().filter(|_| !page.is_last).map(|(key, _)| key.clone());
        Ok(FrozenPage { rows: page.rows.into(), next })
    }

    /// Ended items of the present epoch of a bucket.
    fn ended_page(&self, bucket: u8, behind: Option<&RowBytes>) -> Result<RowPage, ReadError> {
        let epoch = self.epochs().get(usize::from(bucket)).copied().unwrap_or_default() as i64;
        let (bucket, behind, most) = (i16::from(bucket), behind.map_or(&[][..], |key| key), PAGE_ROWS as i64);
        let statement = self.link.statements().map(|statements| &statements.ended_page);
        let found = statement.and_then(|page| self.link.query(page, &[&bucket, &epoch, &behind, &most]));
        let found = found.map_err(|e| self.unreadable(&e))?;
        let rows: VecDeque<Row> = found.iter().map(|row| (bytes_of(row, 0), bytes_of(row, 1))).collect();
        Ok(RowPage { is_last: rows.len() < PAGE_ROWS, rows })
    }

    /// [`PgRows::page_of`] as a future. `most`: rows, and bytes of heads; a page has at least one row.
    fn read_page<'a>(
        &'a self,
        id: KeyspaceId,
        bounds: &'a RowBounds,
        (most, most_heads): (usize, usize),
        bodies: u64,
    ) -> Result<impl std::future::Future<Output = Result<RowPage, Error>> + 'a, ReadError> {
        let statements = self.link.statements().map_err(|e| self.unreadable(&e))?;
        let client = self.link.client();
        let (from, until, limit) = (bounds.0.as_slice(), bounds.1.as_slice(), most as i64);
        Ok(async move {
            if from >= until {
                return Ok(RowPage { rows: VecDeque::new(), is_last: true });
            }
            if id != KeyspaceId::Items {
                let found = client.query(&statements.page, &[&space(id), &from, &until, &limit]).await?;
                let row = |row: &tokio_postgres::Row| (bytes_of(row, 0), bytes_of(row, 1));
                let rows: VecDeque<Row> = found.iter().map(row).collect();
                return Ok(RowPage { is_last: rows.len() < most, rows });
            }
            let rests = bodies.min(PAGE_RESTS) as i64;
            let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
                [&from, &until, &limit, &(most_heads as i64), &rests];
            let found = client.query(&statements.item_page, &parameters).await?;
            let heads: usize = found.iter().map(|row| row.get::<_, &[u8]>(1).len()).sum();
            let row = |row: &tokio_postgres::Row| (bytes_of(row, 0), record_of(row.get(1), row.get(2)));
            let rows: VecDeque<Row> = found.iter().map(row).collect();
            Ok(RowPage { is_last: rows.len() < most && heads < most_heads, rows })
        })
    }
}

fn bytes_of(row: &tokio_postgres::Row, column: usize) -> RowBytes {
    RowBytes::from(row.get::<_, &[u8]>(column))
}

/// The error of a failed read once more, for another of its answers. What may pass stays so, and what does
/// not ends the life of the store.
fn again(error: &ReadError) -> ReadError {
    match error {
        ReadError::Lost(text) => ReadError::Lost(text.clone()),
        ReadError::Engine(text) => ReadError::Engine(text.clone()),
        other @ (ReadError::Damaged { .. } | ReadError::Missing { .. } | ReadError::Contract(_)) => {
            ReadError::Engine(other.to_string())
        }
    }
}

/// The record of an item, or its head if its rest was not read.
fn record_of(head: &[u8], rest: Option<&[u8]>) -> RowBytes {
    let mut bytes = Vec::with_capacity(head.len() + rest.map_or(0, <[u8]>::len));
    bytes.extend_from_slice(head);
    match rest {
        Some(rest) => bytes.extend_from_slice(rest),
        None => record::mark_cut(&mut bytes),
    }
    bytes.into()
}

/// The number of a keyspace in table `rows`, which contains all rows except items and ended items. Part of
/// the format.
pub(super) fn space(id: KeyspaceId) -> i16 {
    id.index() as i16
}

/// The bounds of a whole keyspace: no key begins with that many bytes of this value.
fn everything() -> RowBounds {
    (Vec::new(), vec![u8::MAX; 1_024])
}

/// The first key after this one.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// Keys of one table, and the index of each in the whole request.
#[derive(Default)]
struct TableKeys<'a> {
    keys: Vec<&'a [u8]>,
    places: Vec<usize>,
}

impl<'a> TableKeys<'a> {
    fn add(&mut self, place: usize, key: &'a [u8]) {
        self.keys.push(key);
        self.places.push(place);
    }
}

/// Keys by table.
#[derive(Default)]
struct KeysByTable<'a> {
    items: TableKeys<'a>,
    others: TableKeys<'a>,
    spaces: Vec<i16>,
    ended: TableKeys<'a>,
    buckets: Vec<i16>,
    epochs: Vec<i64>,
}

/// A page of a range.
struct RowPage {
    rows: VecDeque<Row>,
    /// No rows follow.
    is_last: bool,
}

/// Iterates over a range page by page.
struct Pages<'a> {
    rows: &'a PgRows,
    id: KeyspaceId,
    left: RowBounds,
    bodies: u64,
    most: usize,
    page: RowPage,
    fault: Option<ReadError>,
}

impl Iterator for Pages<'_> {
    type Item = Result<Row, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(fault) = self.fault.take() {
            self.page = RowPage { rows: VecDeque::new(), is_last: true };
            return Some(Err(fault));
        }
        if self.page.rows.is_empty() && !self.page.is_last {
            match self.rows.page_of(self.id, &self.left, self.most, self.bodies) {
                Ok(page) => self.page = page,
                Err(error) => {
                    self.page.is_last = true;
                    return Some(Err(error));
                }
            }
            self.most = PAGE;
        }
        let row = self.page.rows.pop_front()?;
        if self.page.rows.is_empty() {
            self.left.0 = after(&row.0);
        }
        if self.id == KeyspaceId::Items && record::is_whole(&row.1) {
            self.bodies = self.bodies.saturating_sub(row.1.len() as u64);
        }
        Some(Ok(row))
    }
}

impl Rows for PgRows {
    const TOGETHER: usize = 256;
    const AHEAD: usize = 256;

    fn get(&self, id: KeyspaceId, key: &[u8]) -> Result<Option<RowBytes>, ReadError> {
        let found = self.found(&[(id, key.into())], u64::MAX)?;
        Ok(found.into_iter().next().flatten())
    }

    fn get_many(
        &self,
        keys: &[(KeyspaceId, RowBytes)],
        bodies: u64,
    ) -> impl Iterator<Item = impl FnOnce() -> Result<Option<RowBytes>, ReadError>> {
        let answers: Vec<Result<Option<RowBytes>, ReadError>> = match self.found(keys, bodies) {
            Ok(found) => found.into_iter().map(Ok).collect(),
            // Every answer contains the error, as the caller may not take all of them.
            Err(error) => keys.iter().map(|_| Err(again(&error))).collect(),
        };
        answers.into_iter().map(|answer| move || answer)
    }

    fn range(
        &self,
        id: KeyspaceId,
        bounds: RowBounds,
        bodies: u64,
    ) -> impl Iterator<Item = Result<Row, ReadError>> {
        let page = RowPage { rows: VecDeque::new(), is_last: bounds.0 >= bounds.1 };
        Pages { rows: self, id, left: bounds, bodies, most: FIRST_PAGE, page, fault: None }
    }

    fn ranges(
        &self,
        bounds: Vec<RowBounds>,
        most: usize,
        bodies: u64,
    ) -> impl Iterator<Item = impl Iterator<Item = Result<Row, ReadError>>> {
        let id = KeyspaceId::Items;
        let many = bounds.len().max(1);
        let most = most.min(FIRST_PAGES / many).clamp(LEAST_PAGE, PAGE);
        let each = bodies.min(PAGE_RESTS) / many as u64;
        let first = (most, PAGE_HEADS / many);
        let reads = bounds.iter().map(|bounds| self.read_page(id, bounds, first, each));
        let reads = reads.collect::<Result<Vec<_>, _>>();
        let first =
            reads.and_then(|reads| self.link.run(try_join_all(reads)).map_err(|e| self.unreadable(&e)));
        let (pages, fault) = match first {
            Ok(pages) => (pages, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let mut pages = pages.into_iter();
        bounds.into_iter().map(move |left| {
            let page = pages.next().unwrap_or(RowPage { rows: VecDeque::new(), is_last: true });
            let fault = fault.as_ref().map(again);
            Pages { rows: self, id, left, bodies: each, most: PAGE, page, fault }
        })
    }

    fn all(&self, id: KeyspaceId) -> impl Iterator<Item = Result<Row, ReadError>> {
        self.range(id, everything(), u64::MAX)
    }

    fn has_closings(&self) -> bool {
        self.closings.load(Ordering::Relaxed)
    }

    fn note_closing(&self) {
        self.closings.store(true, Ordering::Relaxed);
    }
}
