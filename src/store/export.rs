//! Exports a disk store as lines of text, as of one moment: see [`super::lines`].
//!
//! This works for a store that no daemon has open, and for one that a daemon writes to: the export reads a
//! snapshot. A row that does not read as it was written ends the export with an error that names the row. A
//! number of items other than the store's count ends it too. No row is omitted silently.

use super::closings::{self, Closed};
use super::database::Keyspaces;
use super::directory::{Committed, Directory};
use super::ended::Epochs;
use super::frozen::{Frozen, FrozenPage};
use super::keyspace::KeyspaceId;
use super::lines::{EndLine, EndedLine, ExportLine, ItemLine, StoreLine, WindowLine};
use super::lines::{LINES_FORMAT, LINES_VERSION};
use super::opening::{open_present, read_meta, refuse_loss, PresentStore};
use super::queue_line::QueueLine;
use super::queue_rows::{self, OfQueue};
use super::reading::damaged;
use super::record::{self, View};
use super::row_reads::Rows;
use super::rows::{self, META_IDENTITY, META_MARKS};
use super::{ended, OpenError, ReadError};
use fjall::{Database, Slice};
use std::path::Path;
use std::sync::Arc;
use tidegate_types::{AssignedId, Content, Identity};

/// Returns the id of an item from its properties; for an item without one, the id that the store with this
/// identity assigns.
pub type IdOf = fn(&Content, u64, AssignedId) -> String;

/// Exports one open store. Cheap to clone; keeps the store's directory locked.
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
        let frozen = Frozen::new(&self.db, &self.keyspaces);
        let name = |part: Result<u64, getrandom::Error>| part.map_err(|e| ReadError::Engine(e.to_string()));
        let export = (u128::from(name(getrandom::u64())?) << 64) | u128::from(name(getrandom::u64())?);
        let meta = |key: &[u8]| {
            let row = frozen.keyspaces.get(KeyspaceId::Meta, key)?;
            row.ok_or_else(|| damaged(KeyspaceId::Meta, key, &"missing"))
        };
        let identity = rows::read_number(META_IDENTITY, &meta(META_IDENTITY)?)
            .map_err(|e| damaged(KeyspaceId::Meta, META_IDENTITY, &e))?;
        let (_, marks) =
            rows::read_marks(&meta(META_MARKS)?).map_err(|e| damaged(KeyspaceId::Meta, META_MARKS, &e))?;
        let mut items = 0;
        frozen.each(KeyspaceId::Queues, |key, value| {
            let row =
                queue_rows::read_of_queue(key, value).map_err(|e| damaged(KeyspaceId::Queues, key, &e))?;
            if let OfQueue::Queue(row) = row {
                items += row.count;
            }
            Ok(())
        })?;
        let first = StoreLine {
            format: LINES_FORMAT.to_owned(),
            version: LINES_VERSION,
            export: format!("{export:032x}"),
            store: format!("{identity:016x}"),
            next_number: marks.next_seq,
            clock: marks.wall,
            items,
        };
        let (epochs, begun) = frozen.epochs()?;
        let mut parts = vec![KeyspaceId::Queues, KeyspaceId::Windows, KeyspaceId::Items];
        parts.extend(begun.into_iter().map(KeyspaceId::Ended));
        parts.reverse();
        let told = EndLine::default();
        let state = ExportState { identity, id_of, epochs, told };
        Ok(Export { frozen, _exporter: self.clone(), state, first: Some(first), items, parts, behind: None })
    }
}

/// The state for making lines.
struct ExportState {
    identity: u64,
    id_of: IdOf,
    epochs: Epochs,
    /// Numbers of lines and items so far.
    told: EndLine,
}

/// An export in progress.
pub struct Export {
    frozen: Frozen,
    _exporter: Exporter,
    state: ExportState,
    /// The first line, until it is written.
    first: Option<StoreLine>,
    items: u64,
    /// The keyspaces not yet read to their end, the next one last.
    parts: Vec<KeyspaceId>,
    /// The last key read from the current keyspace.
    behind: Option<Slice>,
}

impl Export {
    /// Number of items, by the store's count.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Numbers of lines and items written so far.
    pub fn told(&self) -> EndLine {
        self.state.told
    }

    /// Appends the next lines: some hundred KiB, or one row if it is larger. False: these include the last
    /// line.
    ///
    /// # Errors
    ///
    /// Errors of the storage engine; a row that does not read as it was written.
    pub fn next(&mut self, out: &mut Vec<u8>) -> Result<bool, ReadError> {
        if let Some(first) = self.first.take() {
            self.state.put(&ExportLine::Store(first), out);
        }
        let Some(part) = self.parts.last().copied() else {
            let told = self.state.told;
            if told.items != self.items {
                let error = format!("{} items, and {} were found", self.items, told.items);
                return Err(damaged(KeyspaceId::Queues, b"", &error));
            }
            self.state.put(&ExportLine::End(told), out);
            return Ok(false);
        };
        let FrozenPage { rows, next } = self.frozen.page(part, self.behind.as_ref())?;
        for (key, value) in &rows {
            self.state.row(&self.frozen, part, key, value, out)?;
        }
        if next.is_none() {
            self.parts.pop();
        }
        self.behind = next;
        Ok(true)
    }
}

impl ExportState {
    fn put(&mut self, line: &ExportLine, out: &mut Vec<u8>) {
        // Lines contain only texts and numbers, so writing cannot fail.
        if serde_json::to_writer(&mut *out, line).is_ok() {
            out.push(b'\n');
            self.told.lines += 1;
        }
    }

    fn row(
        &mut self,
        frozen: &Frozen,
        id: KeyspaceId,
        key: &[u8],
        value: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), ReadError> {
        let broken = |error: &dyn std::fmt::Display| damaged(id, key, error);
        let line = match id {
            KeyspaceId::Queues => match queue_rows::read_of_queue(key, value).map_err(|e| broken(&e))? {
                OfQueue::Queue(row) => QueueLine::of(&row),
                OfQueue::Held(row) => Some(QueueLine::of_customer(&row)),
            }
            .map(ExportLine::Queue),
            KeyspaceId::Windows => {
                let row = rows::read_window(key, value).map_err(|e| broken(&e))?;
                Some(ExportLine::Window(WindowLine::of(&row)))
            }
            KeyspaceId::Items => {
                let view = record::decode(key, value).map_err(|e| broken(&e))?;
                let view = Closed::of(closings::closed(&frozen.keyspaces, &view)?, view);
                self.told.items += 1;
                Some(ExportLine::Item(Box::new(self.item(&view))))
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
            | KeyspaceId::Customers
            | KeyspaceId::Identities
            | KeyspaceId::Closings
            | KeyspaceId::Meta => None,
        };
        if let Some(line) = line {
            self.put(&line, out);
        }
        Ok(())
    }

    fn item(&self, view: &View<'_>) -> ItemLine {
        let content = Content { properties: view.properties.to_vec(), body: Vec::new(), json: view.json };
        let assigned = AssignedId::of(view.key, view.accepted_due);
        let id = (self.id_of)(&content, self.identity, assigned);
        ItemLine::of(view, id)
    }
}
