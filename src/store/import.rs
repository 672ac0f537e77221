//! Imports the lines of an export into a new or existing store that no daemon has open.
//!
//! A store that an import makes is a copy of the exported one: it has the same identity, and items keep their
//! arrival numbers and so their assigned ids. A batch whose outcome was unknown is repeated under the id that
//! its receiver may have seen. In a store that existed before, the items become new arrivals in the same
//! order, and all numbers grow by the same offset.
//!
//! No line is imported twice. Each commit records how many lines of this export are in the store. An
//! interrupted import continues after them, and repeating a complete import adds nothing, also if its items
//! have left since. An id is skipped and counted if the store knows it, because its item waits or has ended
//! since.

use super::directory::Directory;
use super::disk::{open_in, DiskStore, IfAbsent, OpenDisk};
use super::former::FormerWindows;
use super::lines::{EndLine, EndedLine, ExportLine, ItemLine, StoreLine, WindowLine};
use super::lines::{LONGEST_FIRST, LONGEST_LINE};
use super::rows::{self, ImportRow};
use super::{CloseError, CommitError, CommitGroup, OpenError, ReadError, Store};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_config::terms::MAX_NAME;
use tidegate_types::event::{
    BucketRow, Found, HeldRow, IndexRows, Load, Loaded, Marks, Op, Opened, QueueRow, Stored, Wanted,
    WindowRow,
};
use tidegate_types::{Identity, Key};

/// Returns the identity of a producer's id within an application.
pub type IdentityOf = fn(&str, &str) -> Identity;

/// Maximum number of lines of one commit, and bytes after which a commit ends.
const COMMIT_LINES: usize = 1_000;
const COMMIT_BYTES: usize = 4 << 20;
/// Latest moment, UTC ms: AMQP's numbers are signed.
const LATEST: u64 = i64::MAX as u64;

/// The result of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// The import made the store: numbers and assigned ids are those of the exported store.
    pub founded: bool,
    /// Lines that an earlier import of the same export had added.
    pub lines_before: u64,
    /// Number of added items, without dead letters.
    pub items: u64,
    /// Number of added dead letters.
    pub dead_letters: u64,
    /// Items skipped because an item with the same id waits.
    pub waiting: u64,
    /// Items skipped because an item with the same id has ended since.
    pub ended: u64,
    /// Items without an id, which have a different assigned id in this store.
    pub renumbered: u64,
    /// Added ids of ended items.
    pub ended_ids: u64,
    /// Added open windows.
    pub windows: u64,
    /// Added pauses of queues and customers.
    pub paused: u64,
}

/// Why an import ended early. Its commits so far stay, and an import of the same export continues after them.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The store was not opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store was not written.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The store was not read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The last sync failed.
    #[error(transparent)]
    Close(#[from] CloseError),
    /// The lines could not be read.
    #[error("the export cannot be read: {0}")]
    Input(io::Error),
    /// A line is not valid.
    #[error("line {line}: {error}")]
    Line {
        /// Number of the line, from 1.
        line: u64,
        /// What is wrong with the line.
        error: String,
    },
    /// The last line is missing.
    #[error(
        "the export is incomplete: it ends after line {lines}. Its lines so far are in the store; import the \
         complete export again"
    )]
    Cut {
        /// Number of lines read.
        lines: u64,
    },
    /// The store is the exported one, or already contains another export of it.
    #[error(
        "{} is the exported store, or contains another export of that store: items that have left it since \
         would be delivered twice; import into another directory", path.display()
    )]
    SameStore {
        /// Directory of the store.
        path: PathBuf,
    },
}

/// Progress of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportStep {
    /// Number of items read so far.
    pub items: u64,
    /// Number of items by the first line.
    pub total: u64,
}

/// Imports all lines of `input` into the store in `path`, and makes the store first if there is none. `now`:
/// UTC ms.
///
/// # Errors
///
/// See [`ImportError`].
pub fn import(
    path: &Path,
    memory_limit: u64,
    input: &mut dyn BufRead,
    identity_of: IdentityOf,
    now: u64,
    tell: &mut dyn FnMut(ImportStep),
) -> Result<Imported, ImportError> {
    let mut lines = ExportLines { input, read: 0 };
    let Some((ExportLine::Store(first), _)) = lines.next()? else {
        lines.read = 1;
        return Err(lines.fault("it is missing, or not the first line of an export"));
    };
    let (export, identity) = first.names().map_err(|error| lines.fault(error))?;
    let directory = match Directory::existing(path) {
        Err(OpenError::Absent { .. }) => Directory::open(path)?,
        found => found?,
    };
    let opened = open_in(directory, memory_limit, false, IfAbsent::Make(Some(identity)), now)?;
    let mut import = Import::begin(opened, &first, (export, identity), identity_of, now)
        .map_err(|error| error.unwrap_or_else(|| ImportError::SameStore { path: path.to_owned() }))?;
    let done = import.run(&mut lines, first.items, tell);
    let Import { store, told, .. } = import;
    // The store is closed also after an error: all commits are durable either way.
    let closed = Box::new(store).close();
    done?;
    closed?;
    Ok(told)
}

/// Reads and counts the lines of the input.
struct ExportLines<'i> {
    input: &'i mut dyn BufRead,
    read: u64,
}

impl ExportLines<'_> {
    fn fault(&self, error: impl Into<String>) -> ImportError {
        ImportError::Line { line: self.read, error: error.into() }
    }

    fn text(&mut self) -> Result<Option<Vec<u8>>, ImportError> {
        let mut text = Vec::new();
        let longest = if self.read == 0 { LONGEST_FIRST } else { LONGEST_LINE };
        let mut room = (&mut *self.input).take(longest + 1);
        room.read_until(b'\n', &mut text).map_err(ImportError::Input)?;
        if text.is_empty() {
            return Ok(None);
        }
        self.read += 1;
        if text.len() as u64 > longest {
            return Err(self.fault(format!("it is longer than {longest} bytes")));
        }
        Ok(Some(text))
    }

    /// The next line, and its length in bytes.
    fn next(&mut self) -> Result<Option<(ExportLine, usize)>, ImportError> {
        let Some(text) = self.text()? else { return Ok(None) };
        // A line without a line end is incomplete, whatever its content.
        if text.last() != Some(&b'\n') {
            self.read -= 1;
            return Ok(None);
        }
        let line = serde_json::from_slice(&text).map_err(|error| self.fault(error.to_string()))?;
        Ok(Some((line, text.len())))
    }
}

/// The lines of the next commit.
#[derive(Default)]
struct Chunk {
    lines: Vec<(u64, ExportLine)>,
    bytes: usize,
}

struct Import {
    store: DiskStore,
    identity_of: IdentityOf,
    now: u64,
    /// Key of the row with the progress of the import.
    key: Vec<u8>,
    row: ImportRow,
    marks: Marks,
    /// All arrival numbers of the export are below this one.
    numbers: u64,
    /// Set for an export of version 1, which does not name windows.
    former: Option<FormerWindows>,
    queues: HashMap<Arc<str>, QueueRow>,
    /// Application and customer of the windows in the store.
    windows: HashSet<(Arc<str>, Arc<str>)>,
    /// Likewise of the held customers.
    held: HashSet<(Arc<str>, Arc<str>)>,
    /// The buckets of ended items that have begun, the newest last.
    buckets: Vec<BucketRow>,
    told: Imported,
    items: u64,
}

impl Import {
    /// `None` as an error stands for [`ImportError::SameStore`].
    fn begin(
        opened: OpenDisk,
        first: &StoreLine,
        (export, identity): (u128, u64),
        identity_of: IdentityOf,
        now: u64,
    ) -> Result<Self, Option<ImportError>> {
        let OpenDisk { store, opened, identity: own } = opened;
        let Opened { mut marks, queues, held, windows, buckets, .. } = opened;
        let key = rows::import_key(export);
        let before = store.imports().map_err(|error| Some(error.into()))?;
        let new = ImportRow { store: identity, ..ImportRow::default() };
        let row = match before.iter().find(|(known, _)| *known == key) {
            Some((_, row)) => *row,
            // The store is new, or an import made it and ended before its first commit.
            None if own == identity && store.is_new() => {
                marks.next_seq = first.next_number;
                ImportRow { founding: true, ..new }
            }
            None if own == identity || before.iter().any(|(_, row)| row.store == identity) => {
                return Err(None);
            }
            None => {
                let offset = marks.next_seq.max(1) - 1;
                marks.next_seq = offset.saturating_add(first.next_number);
                ImportRow { offset, ..new }
            }
        };
        marks.wall = marks.wall.max(first.clock);
        marks.next_seq = marks.next_seq.max(1);
        Ok(Import {
            store,
            identity_of,
            now,
            key,
            row,
            marks,
            numbers: first.next_number,
            former: (first.version == 1).then(FormerWindows::default),
            queues: queues.into_iter().map(|row| (Arc::clone(&row.queue), row)).collect(),
            windows: windows.into_iter().map(|row| (row.application, row.customer)).collect(),
            held: held.into_iter().map(|row| (row.application, row.customer)).collect(),
            buckets,
            told: Imported { founded: row.founding, lines_before: row.lines, ..Imported::default() },
            items: 0,
        })
    }

    fn run(
        &mut self,
        lines: &mut ExportLines<'_>,
        total: u64,
        tell: &mut dyn FnMut(ImportStep),
    ) -> Result<(), ImportError> {
        if self.row.whole {
            return Ok(());
        }
        let mut chunk = Chunk::default();
        loop {
            let Some((line, bytes)) = lines.next()? else {
                self.commit(chunk, lines.read, false)?;
                return Err(ImportError::Cut { lines: lines.read });
            };
            if let ExportLine::End(EndLine { lines: counted, items }) = line {
                if (counted, items) != (lines.read - 1, self.items) {
                    let (before, found) = (lines.read - 1, self.items);
                    return Err(lines.fault(format!(
                        "it counts {counted} lines and {items} items, but {before} and {found} precede it"
                    )));
                }
                self.commit(chunk, lines.read, true)?;
                return match lines.text()? {
                    None => Ok(()),
                    Some(_) => Err(lines.fault("it follows the last line of the export")),
                };
            }
            self.items += u64::from(matches!(line, ExportLine::Item(_)));
            let named = match &mut self.former {
                Some(former) => former.name(line),
                None => vec![line],
            };
            // The store contains this line already.
            if lines.read <= self.row.lines {
                continue;
            }
            chunk.bytes += bytes;
            chunk.lines.extend(named.into_iter().map(|line| (lines.read, line)));
            if chunk.lines.len() >= COMMIT_LINES || chunk.bytes >= COMMIT_BYTES {
                self.commit(std::mem::take(&mut chunk), lines.read, false)?;
                tell(ImportStep { items: self.items, total });
            }
        }
    }

    /// Makes one atomic commit, with the progress of the import.
    fn commit(&mut self, chunk: Chunk, lines: u64, whole: bool) -> Result<(), ImportError> {
        let mut ops = ImportOps::default();
        let mut entries = Vec::with_capacity(chunk.lines.len());
        for (number, line) in chunk.lines {
            let fault = |error: String| ImportError::Line { line: number, error };
            entries.push(self.entry(line).map_err(fault)?);
        }
        let known = self.known(&entries)?;
        for (entry, known) in entries.into_iter().zip(known) {
            self.add(entry, known.unwrap_or_default(), &mut ops)?;
        }
        for queue in &ops.touched {
            ops.ops.extend(self.queues.get(queue).map(|row| Op::PutQueue(row.clone())));
        }
        self.row = ImportRow { lines: lines.max(self.row.lines), whole, ..self.row };
        let row = (self.key.clone(), rows::import_row(&self.key, self.row));
        let group = CommitGroup { ops: ops.ops, token: 0, marks: self.marks, hurried: false };
        Ok(self.store.commit_with(&[group], &[row])?)
    }

    /// Checks a line, and converts it.
    fn entry(&self, line: ExportLine) -> Result<ImportEntry, String> {
        match line {
            ExportLine::Item(line) => self.item(*line),
            ExportLine::Ended(line) => {
                let (identity, ended) = EndedLine::ended(line)?;
                Ok(ImportEntry::Ended(identity, ended))
            }
            ExportLine::Window(line) => {
                names(&[&line.application, &line.customer])?;
                let row = WindowLine::row(&line)?;
                Ok(ImportEntry::Window(WindowRow {
                    window: row.window.saturating_add(self.row.offset),
                    ..row
                }))
            }
            ExportLine::Queue(line) => {
                let customer = line.customer.as_deref();
                names(&[line.application.as_str()].into_iter().chain(customer).collect::<Vec<_>>())?;
                match (customer, line.held()) {
                    (None, _) => Ok(ImportEntry::Queue(line.row()?)),
                    (Some(_), Some(row)) => Ok(ImportEntry::Held(row)),
                    (Some(_), None) => {
                        Err("the line is for a customer, and its `paused` is false".to_owned())
                    }
                }
            }
            ExportLine::Store(_) => Err("it is a first line, in the middle of an export".to_owned()),
            ExportLine::End(_) => Err("it is a last line, in the middle of an export".to_owned()),
        }
    }

    fn item(&self, line: ItemLine) -> Result<ImportEntry, String> {
        let id = line.id.clone();
        let mut item = line.stored()?;
        if item.dead.is_none() {
            names(&[&item.application])?;
        }
        item.customer.as_deref().map_or(Ok(()), |customer| names(&[customer]))?;
        if let (Some(id), Some(given)) = (&id, item.given.filter(|_| item.dead.is_none())) {
            if (self.identity_of)(&item.application, id) != given {
                return Err("`identity` is not that of `application` and `id`".to_owned());
            }
        }
        if item.key.due > LATEST || item.accepted_due > LATEST {
            return Err("`due` is out of range".to_owned());
        }
        if item.key.seq >= self.numbers {
            return Err("`number` is not below the `next_number` of the first line".to_owned());
        }
        item.key.window += self.row.offset;
        item.key.seq += self.row.offset;
        Ok(ImportEntry::Item(Box::new(item)))
    }

    /// What the store knows of the item of each entry.
    fn known(&mut self, entries: &[ImportEntry]) -> Result<Vec<Option<Found>>, ImportError> {
        let buckets: Vec<u8> = self.buckets.iter().rev().map(|row| row.bucket).collect();
        let wanted = |entry: &ImportEntry| {
            let (application, identity, key) = match entry {
                ImportEntry::Item(item) if item.dead.is_none() => {
                    let kept = self.row.founding.then_some(item.key);
                    (Arc::clone(&item.application), item.identity(), kept)
                }
                // No queue has an empty name: the look-up returns only how the item ended.
                ImportEntry::Ended(identity, _) => ("".into(), *identity, None),
                ImportEntry::Item(_)
                | ImportEntry::Window(_)
                | ImportEntry::Queue(_)
                | ImportEntry::Held(_) => return None,
            };
            Some(Wanted { identity, application, key, buckets: buckets.clone() })
        };
        let mut out = Vec::with_capacity(entries.len());
        for entry in entries {
            let Some(wanted) = wanted(entry) else {
                out.push(None);
                continue;
            };
            let found = match entry {
                ImportEntry::Ended(..) => Found { item: None, ended: self.store.ended(&wanted)? },
                ImportEntry::Item(item) if item.given.is_none() && !self.row.founding => Found::default(),
                ImportEntry::Item(_)
                | ImportEntry::Window(_)
                | ImportEntry::Queue(_)
                | ImportEntry::Held(_) => match self.store.load(&Load::Find(vec![wanted]))? {
                    Loaded::Found(mut found) => found.pop().unwrap_or_default(),
                    Loaded::Ranges(_) | Loaded::Contents(_) | Loaded::Scanned { .. } => Found::default(),
                },
            };
            out.push(Some(found));
        }
        Ok(out)
    }

    fn add(&mut self, entry: ImportEntry, known: Found, ops: &mut ImportOps) -> Result<(), ImportError> {
        match entry {
            ImportEntry::Item(item) => self.add_item(*item, &known, ops)?,
            ImportEntry::Ended(identity, ended) => {
                if known.ended.is_some_and(|known| known.at >= ended.at) {
                    return Ok(());
                }
                let bucket = self.bucket(ops);
                self.told.ended_ids += 1;
                ops.ops.push(Op::Remember { bucket, identity, ended: Box::new(ended) });
            }
            ImportEntry::Window(row) => {
                let names = (Arc::clone(&row.application), Arc::clone(&row.customer));
                // A window that is open in this store stays as it is; the items keep their own due.
                if self.windows.insert(names) {
                    self.told.windows += 1;
                    ops.ops.push(Op::PutWindow(row));
                }
            }
            ImportEntry::Held(row) => {
                // A customer held in this store stays held until that hold ends.
                if self.held.insert((Arc::clone(&row.application), Arc::clone(&row.customer))) {
                    self.told.paused += 1;
                    ops.ops.push(Op::PutHeld(row));
                }
            }
            ImportEntry::Queue(row) => {
                if !self.queues.contains_key(&row.queue) {
                    self.told.paused += u64::from(row.paused.is_some());
                    ops.touched.insert(Arc::clone(&row.queue));
                    self.queues.insert(Arc::clone(&row.queue), row);
                }
            }
        }
        Ok(())
    }

    fn add_item(&mut self, item: Stored, known: &Found, ops: &mut ImportOps) -> Result<(), ImportError> {
        let waits = item.dead.is_none();
        if waits {
            let identity = item.identity();
            let unique = item.given.is_some() || self.row.founding;
            if known.item.is_some() || (unique && !ops.identities.insert(identity)) {
                self.told.waiting += 1;
                return Ok(());
            }
            // An end before the receipt is that of another item with the same id.
            if known.ended.as_ref().is_some_and(|ended| ended.at >= item.received) {
                self.told.ended += 1;
                return Ok(());
            }
        } else if self.row.founding && self.store.has_item(item.queue(), item.key)? {
            self.told.waiting += 1;
            return Ok(());
        }
        let renumbered = !self.row.founding && item.given.is_none() && waits;
        self.told.renumbered += u64::from(renumbered);
        let queue: Arc<str> = item.queue().into();
        let row = self.queues.entry(Arc::clone(&queue)).or_insert_with(|| empty_queue(&queue));
        row.low = if row.count == 0 { item.key } else { row.low.min(item.key) };
        row.count += 1;
        ops.touched.insert(queue);
        let count = if waits { &mut self.told.items } else { &mut self.told.dead_letters };
        *count += 1;
        if waits && item.given.is_none() && item.key.due != item.accepted_due {
            let rows = IndexRows { identity: Some(item.identity()), customer: None };
            ops.ops.push(Op::Index { key: item.key, rows });
        }
        let indexed = waits && item.customer.is_some();
        ops.ops.push(Op::Put { item: Box::new(item), indexed });
        Ok(())
    }

    /// The bucket that is being filled; begins one if there is none. An older end is only kept longer there.
    fn bucket(&mut self, ops: &mut ImportOps) -> u8 {
        if let Some(row) = self.buckets.last() {
            return row.bucket;
        }
        let row = BucketRow { bucket: 0, from: self.now };
        self.buckets.push(row);
        ops.ops.push(Op::BeginBucket(row));
        row.bucket
    }
}

/// A checked line.
enum ImportEntry {
    Item(Box<Stored>),
    Ended(Identity, tidegate_types::Ended),
    Window(WindowRow),
    /// A queue without its items.
    Queue(QueueRow),
    /// A held customer.
    Held(HeldRow),
}

/// The writes of one commit.
#[derive(Default)]
struct ImportOps {
    ops: Vec<Op>,
    /// Queues with a changed row.
    touched: BTreeSet<Arc<str>>,
    /// Identities of the items in the commit.
    identities: HashSet<Identity>,
}

/// The row of a queue without items. Every imported item gets a customer row, so none is unindexed.
fn empty_queue(queue: &Arc<str>) -> QueueRow {
    QueueRow {
        queue: Arc::clone(queue),
        count: 0,
        low: Key::default(),
        paused: None,
        unindexed_until: 0,
        slowed: None,
    }
}

/// Checks the length of names of applications and customers.
fn names(all: &[&str]) -> Result<(), String> {
    match all.iter().find(|name| !(1..=MAX_NAME).contains(&name.len())) {
        None => Ok(()),
        Some(name) => Err(format!("a name has {} bytes; 1 to {MAX_NAME} are allowed", name.len())),
    }
}
