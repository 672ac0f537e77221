//! Exports a store as lines of text, as of one moment: see [`super::lines`].
//!
//! This works for a store that no daemon has open, and for one that a daemon writes to: the export reads a
//! snapshot. A row that does not read as it was written ends the export with an error that names the row. A
//! number of items other than the store's count ends it too. No row is omitted silently.

use super::closings::Closed;
use super::database::Keyspaces;
use super::directory::{Committed, Directory};
use super::ended::Epochs;
use super::frozen::{Frozen, FrozenPage, FrozenRows};
use super::keyspace::KeyspaceId;
use super::lines::{EndLine, EndedLine, ExportLine, ItemLine, StoreLine, WindowLine};
use super::lines::{LINES_FORMAT, LINES_VERSION};
use super::opening::{open_present, read_meta, refuse_loss, PresentStore};
use super::queue_line::QueueLine;
use super::queue_rows::{self, OfQueue};
use super::reading::{damaged, view};
use super::record::View;
use super::row_reads::{Row, RowBytes};
use super::rows;
use super::{ended, postgres, OpenError, ReadError};
use fjall::Database;
use std::path::Path;
use std::sync::Arc;
use tidegate_config::DatabaseConfig;
use tidegate_types::{AssignedId, Content, Identity};

/// Returns the id of an item from its properties; for an item without one, the id that the store with this
/// identity assigns.
pub type IdOf = fn(&Content, u64, AssignedId) -> String;

/// Exports one open disk store. Cheap to clone; keeps the store's directory locked.
#[derive(Clone)]
pub struct Exporter {
    // The fields are dropped in this order: the lock last.
    keyspaces: Keyspaces,
    db: Database,
    _directory: Arc<Directory>,
}

impl Exporter {
    pub(crate) fn new(keyspaces: &Keyspaces, db: &Database, directory: &Arc<Directory>) -> Self {
        Exporter { keyspaces: keyspaces.clone(), db: db.clone(), _directory: Arc::clone(directory) }
    }

    /// Opens the store in `path`, which no daemon may have open.
    ///
    /// # Errors
    ///
    /// As [`super::open`], also if durable commits are missing; [`OpenError::Absent`],
    /// [`OpenError::Foreign`].
    pub fn open(path: &Path, memory_limit: u64) -> Result<Self, OpenError> {
        let PresentStore { keyspaces, db, directory } = open_present(path, memory_limit)?;
        refuse_loss(&directory, read_meta(&keyspaces)?.number, Committed::noted(&directory)?)?;
        Ok(Exporter { keyspaces, db, _directory: Arc::new(directory) })
    }

    /// Begins an export of the present durable state. The disk keeps that state until the export is dropped.
    ///
    /// # Errors
    ///
    /// A row that does not read as it was written; the system provides no random number for the export's
    /// name.
    pub fn begin(&self, id_of: IdOf) -> Result<Export, ReadError> {
        Export::begin(Box::new(Frozen::new(&self.db, &self.keyspaces)), Some(self.clone()), id_of)
    }
}

/// Begins an export of each of so many shards in a database, whoever owns them, all as of one moment: that of
/// a single transaction, which reads on a connection of its own. The database keeps the rows of that moment
/// until all of them are dropped.
///
/// # Errors
///
/// [`OpenError::ForeignSchema`], [`OpenError::OtherShards`], [`OpenError::Database`]; a row that does not
/// read as it was written.
pub fn begin_of_database(config: &DatabaseConfig, count: u16, id_of: IdOf) -> Result<Vec<Export>, OpenError> {
    let shards = postgres::freeze(config, count)?;
    let begun = shards.into_iter().map(|shard| Export::begin(Box::new(shard), None, id_of));
    Ok(begun.collect::<Result<_, _>>()?)
}

/// The name of an export.
///
/// # Errors
///
/// The system provides no random number.
pub(crate) fn random_name() -> Result<String, ReadError> {
    let mut name = [0; 16];
    getrandom::fill(&mut name).map_err(|e| ReadError::Engine(e.to_string()))?;
    Ok(format!("{:032x}", u128::from_be_bytes(name)))
}

/// The state for making lines.
struct ExportState {
    identity: u64,
    id_of: IdOf,
    epochs: Epochs,
    /// Number of items so far.
    found: u64,
}

/// An export in progress.
pub struct Export {
    frozen: Box<dyn FrozenRows>,
    /// Of a disk store: locks its directory.
    _exporter: Option<Exporter>,
    state: ExportState,
    /// The first line, until it is written.
    first: Option<StoreLine>,
    clock: u64,
    items: u64,
    /// Numbers of lines and items written so far.
    told: EndLine,
    /// The keyspaces not yet read to their end, the next one last.
    parts: Vec<KeyspaceId>,
    /// The last key read from the current keyspace.
    behind: Option<RowBytes>,
}

impl Export {
    /// Counts the items, and prepares the first line.
    ///
    /// # Errors
    ///
    /// As [`Exporter::begin`].
    fn begin(
        frozen: Box<dyn FrozenRows>,
        exporter: Option<Exporter>,
        id_of: IdOf,
    ) -> Result<Self, ReadError> {
        let (identity, marks) = frozen.marks()?;
        let items = count_items(&*frozen)?;
        let first = StoreLine {
            format: LINES_FORMAT.to_owned(),
            version: LINES_VERSION,
            export: random_name()?,
            store: format!("{identity:016x}"),
            next_number: marks.next_seq,
            clock: marks.wall,
            items,
            shards: None,
        };
        let (epochs, begun) = frozen.epochs()?;
        let mut parts = vec![KeyspaceId::Queues, KeyspaceId::Windows, KeyspaceId::Items];
        parts.extend(begun.into_iter().map(KeyspaceId::Ended));
        parts.reverse();
        Ok(Export {
            frozen,
            _exporter: exporter,
            state: ExportState { identity, id_of, epochs, found: 0 },
            clock: first.clock,
            first: Some(first),
            items,
            told: EndLine::default(),
            parts,
            behind: None,
        })
    }

    /// Number of items, by the store's count.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// The latest time of the daemon's clock, UTC ms.
    pub(crate) fn clock(&self) -> u64 {
        self.clock
    }

    /// Numbers of lines and items written so far.
    pub fn told(&self) -> EndLine {
        self.told
    }

    /// Appends the next lines: some hundred KiB, or one row if it is larger. False: these include the last
    /// line.
    ///
    /// # Errors
    ///
    /// Errors of the storage engine; a row that does not read as it was written.
    pub fn next(&mut self, out: &mut Vec<u8>) -> Result<bool, ReadError> {
        if let Some(first) = self.first.take() {
            ExportLine::Store(first).put(&mut self.told, out);
        }
        let Some(lines) = self.lines()? else {
            let told = self.told;
            ExportLine::End(told).put(&mut self.told, out);
            return Ok(false);
        };
        lines.iter().for_each(|line| line.put(&mut self.told, out));
        Ok(true)
    }

    /// The next lines between the first and the last one. `None`: there are no more.
    ///
    /// # Errors
    ///
    /// As [`Export::next`].
    pub(crate) fn lines(&mut self) -> Result<Option<Vec<ExportLine>>, ReadError> {
        let Some(part) = self.parts.last().copied() else {
            let found = self.state.found;
            if found != self.items {
                let error = format!("{} items, and {found} were found", self.items);
                return Err(damaged(KeyspaceId::Queues, b"", &error));
            }
            return Ok(None);
        };
        let FrozenPage { rows, next } = self.frozen.page(part, self.behind.as_ref())?;
        let lines = if part == KeyspaceId::Items {
            self.state.items(&*self.frozen, &rows)?
        } else {
            let lines = rows.iter().map(|(key, value)| self.state.row(part, key, value).transpose());
            lines.flatten().collect::<Result<_, _>>()?
        };
        if next.is_none() {
            self.parts.pop();
        }
        self.behind = next;
        Ok(Some(lines))
    }
}

/// The number of items by the rows of all queues.
fn count_items(frozen: &dyn FrozenRows) -> Result<u64, ReadError> {
    let (mut items, mut behind) = (0, None);
    loop {
        let FrozenPage { rows, next } = frozen.page(KeyspaceId::Queues, behind.as_ref())?;
        for (key, value) in &rows {
            let row =
                queue_rows::read_of_queue(key, value).map_err(|e| damaged(KeyspaceId::Queues, key, &e))?;
            if let OfQueue::Queue(row) = row {
                items += row.count;
            }
        }
        let Some(next) = next else { return Ok(items) };
        behind = Some(next);
    }
}

impl ExportState {
    fn items(&mut self, frozen: &dyn FrozenRows, rows: &[Row]) -> Result<Vec<ExportLine>, ReadError> {
        let views = rows.iter().map(|(key, value)| view(key, value)).collect::<Result<Vec<_>, _>>()?;
        let closed = frozen.closed(&views)?;
        self.found += views.len() as u64;
        let items = views.into_iter().zip(closed);
        let lines = items.map(|(view, closed)| Box::new(self.item(&Closed::of(closed, view))));
        Ok(lines.map(ExportLine::Item).collect())
    }

    fn row(&self, id: KeyspaceId, key: &[u8], value: &[u8]) -> Result<Option<ExportLine>, ReadError> {
        let broken = |error: &dyn std::fmt::Display| damaged(id, key, error);
        Ok(match id {
            KeyspaceId::Queues => match queue_rows::read_of_queue(key, value).map_err(|e| broken(&e))? {
                OfQueue::Queue(row) => QueueLine::of(&row),
                OfQueue::Held(row) => Some(QueueLine::of_customer(&row)),
            }
            .map(ExportLine::Queue),
            KeyspaceId::Windows => {
                let row = rows::read_window(key, value).map_err(|e| broken(&e))?;
                Some(ExportLine::Window(WindowLine::of(&row)))
            }
            KeyspaceId::Ended(bucket) if key != rows::BUCKET => {
                let key = <[u8; 16]>::try_from(key).map_err(|_| broken(&"the key is not an identity"))?;
                let identity = Identity::from_bytes(key);
                let (epoch, ended) = ended::decode(identity, value).map_err(|e| broken(&e))?;
                // Rows of an earlier epoch of the bucket do not count.
                let counts = self.epochs.get(usize::from(bucket)) == Some(&epoch);
                counts.then(|| ExportLine::Ended(EndedLine::of(identity, &ended)))
            }
            KeyspaceId::Ended(_)
            | KeyspaceId::Items
            | KeyspaceId::Customers
            | KeyspaceId::Identities
            | KeyspaceId::Closings
            | KeyspaceId::Meta => None,
        })
    }

    fn item(&self, view: &View<'_>) -> ItemLine {
        let content = Content { properties: view.properties.to_vec(), body: Vec::new(), json: view.json };
        let assigned = AssignedId::of(view.key, view.accepted_due);
        let id = (self.id_of)(&content, self.identity, assigned);
        ItemLine::of(view, id)
    }
}
