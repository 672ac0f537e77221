//! Imports the lines of an export into a new store: the exported store is there again.
//!
//! It has the same identity, and items keep their arrival numbers and so their assigned ids. A batch whose
//! outcome was unknown is repeated under the id that its receiver may have seen.
//!
//! The first commit marks the store as incomplete, and the one with the last lines removes the mark. Nothing
//! opens a store with the mark: an import that was interrupted is begun anew, in an empty directory.
//!
//! An import may also make a store for each of several shards. Each line goes to the home of its application.
//! An end names no application, so each shard gets it; it is found in the home of its item alone, and goes
//! when its time is over. These stores have identities of their own: they go on from the same arrival number.
//! A mark beside them is made before the first of them, and removed when all are complete.
//! Deliberately absent: imports into a store that exists. Two stores assign the same arrival numbers, and an
//! item that is missing in one of them may have left it.

use super::directory::Directory;
use super::disk::{open_in, DiskStore, IfAbsent, OpenDisk};
use super::former::FormerWindows;
use super::layout::{self, ShardLayout};
use super::lines::{EndLine, ExportLine, ItemLine, StoreLine, LONGEST_FIRST, LONGEST_LINE};
use super::naming::{IdentityOf, Naming};
use super::opening::open_present;
use super::queue_line::QueueLine;
use super::{directory, new_identity, CloseError, CommitError, CommitGroup, OpenError, ReadError, Store};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_config::terms::MAX_NAME;
use tidegate_types::event::{BucketRow, IndexRows, Load, Loaded, Marks, Op, QueueRow, Stored, Wanted};
use tidegate_types::{Identity, Key};

/// Returns the shard of an application among a number of them, below that number.
pub type HomeOf = fn(&str, u16) -> u16;

/// Where the lines of an import go.
#[derive(Clone, Copy, Debug)]
pub struct ImportTarget<'p> {
    /// Directory of the store, or of those of all shards. It is empty, or is made.
    pub path: &'p Path,
    /// Number of shards. `None`: that of the layout in the directory, or one.
    pub shards: Option<u16>,
    /// Finds the shard of an application.
    pub home_of: HomeOf,
    /// Memory for all stores together, bytes; see [`super::Opener::new`].
    pub memory_limit: u64,
}

/// Maximum number of lines of one commit, and bytes of all lines after which a commit is made.
const COMMIT_LINES: usize = 1_000;
const COMMIT_BYTES: usize = 4 << 20;
/// Latest moment, UTC ms: AMQP's numbers are signed.
const LATEST: u64 = i64::MAX as u64;
/// The bucket of the ids that have ended. Those of the exported store are only kept longer there.
const BUCKET: u8 = 0;

/// What an import has brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Number of items, without dead letters.
    pub items: u64,
    /// Number of dead letters.
    pub dead_letters: u64,
    /// Ids of ended items.
    pub ended_ids: u64,
    /// Number of open windows.
    pub windows: u64,
    /// Pauses of queues and customers.
    pub paused: u64,
}

/// Why an import ended early. What it has made so far is an incomplete store, which nothing opens.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The store was not made or not opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is a store already. It was not changed.
    #[error(
        "{} contains a store already, or a part of one: import into an empty directory, or publish the items \
         again if they are few", path.display()
    )]
    NotEmpty {
        /// The directory that was named.
        path: PathBuf,
    },
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
    #[error("the export is incomplete: it ends after line {lines}")]
    Cut {
        /// Number of lines read.
        lines: u64,
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

/// Makes the exported store again, from all lines of `input`, or one for each shard. `now`: UTC ms.
///
/// # Errors
///
/// See [`ImportError`].
pub fn import(
    target: &ImportTarget<'_>,
    input: &mut dyn BufRead,
    naming: Naming,
    now: u64,
    tell: &mut dyn FnMut(ImportStep),
) -> Result<Imported, ImportError> {
    let mut lines = ExportLines { input, read: 0 };
    let Some((ExportLine::Store(first), _)) = lines.next()? else {
        lines.read = 1;
        return Err(lines.fault("it is missing, or not the first line of an export"));
    };
    let identity = first.identity().map_err(|error| lines.fault(error))?;
    let layout = match target.shards {
        Some(count) => ShardLayout::claim(target.path, count)?,
        None => layout::present_layout(target.path)?,
    };
    let paths = layout.map_or_else(|| vec![target.path.to_owned()], |layout| layout.paths(target.path));
    let memory_limit = target.memory_limit / paths.len() as u64;
    let free = paths.iter().map(|path| free_directory(path, memory_limit));
    let directories: Vec<Directory> = free.collect::<Result<_, _>>()?;
    if layout.is_some() {
        layout::begin_import(target.path)?;
    }
    let mut import = Import::new(&first, naming, target.home_of);
    for directory in directories {
        let identity = if layout.is_some() { new_identity()? } else { identity };
        let OpenDisk { store, .. } =
            open_in(directory, memory_limit, false, IfAbsent::Make(Some(identity)), now)?;
        import.stores.push(StoreImport::new(store, &first, naming.identity_of, now));
    }
    let done = import.run(&mut lines, first.items, tell);
    let (told, closed) = (import.told(), import.close());
    done?;
    closed?;
    if layout.is_some() {
        layout::end_import(target.path)?;
    }
    Ok(told)
}

/// Locks the directory, and makes it if it is missing. Refuses one with a store in it.
fn free_directory(path: &Path, memory_limit: u64) -> Result<Directory, ImportError> {
    let taken = || ImportError::NotEmpty { path: path.to_owned() };
    match open_present(path, memory_limit) {
        Err(OpenError::Absent { .. }) => {}
        // What keeps the store from being opened is more useful to know: an interrupted import, a daemon.
        present => return Err(present.map_or_else(ImportError::from, |_| taken())),
    }
    let directory = Directory::open(path)?;
    if directory::is_free(directory.path())? {
        Ok(directory)
    } else {
        Err(taken())
    }
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

impl Chunk {
    fn put(&mut self, number: u64, line: ExportLine, bytes: usize) {
        self.lines.push((number, line));
        self.bytes += bytes;
    }
}

/// An import into all stores.
struct Import {
    naming: Naming,
    home_of: HomeOf,
    /// Set for an export of version 1, which does not name windows.
    former: Option<FormerWindows>,
    stores: Vec<StoreImport>,
    /// Bytes of all lines that are not committed.
    bytes: usize,
    items: u64,
}

impl Import {
    fn new(first: &StoreLine, naming: Naming, home_of: HomeOf) -> Self {
        let former = (first.version == 1).then(FormerWindows::default);
        Import { naming, home_of, former, stores: Vec::new(), bytes: 0, items: 0 }
    }

    fn run(
        &mut self,
        lines: &mut ExportLines<'_>,
        total: u64,
        tell: &mut dyn FnMut(ImportStep),
    ) -> Result<(), ImportError> {
        loop {
            let Some((line, bytes)) = lines.next()? else {
                return Err(ImportError::Cut { lines: lines.read });
            };
            if let ExportLine::End(EndLine { lines: counted, items }) = line {
                if (counted, items) != (lines.read - 1, self.items) {
                    let (before, found) = (lines.read - 1, self.items);
                    return Err(lines.fault(format!(
                        "it counts {counted} lines and {items} items, but {before} and {found} precede it"
                    )));
                }
                if lines.text()?.is_some() {
                    return Err(lines.fault("it follows the last line of the export"));
                }
                return self.stores.iter_mut().try_for_each(|store| store.commit(true).map(drop));
            }
            self.items += u64::from(matches!(line, ExportLine::Item(_)));
            let named = match &mut self.former {
                Some(former) => former.name(line),
                None => vec![line],
            };
            for line in named {
                self.take(lines.read, line, bytes).map_err(|error| lines.fault(error))?;
            }
            if self.commit_full()? {
                tell(ImportStep { items: self.items, total });
            }
        }
    }

    /// Hands a line to the store of its home, or to all stores.
    fn take(&mut self, number: u64, mut line: ExportLine, bytes: usize) -> Result<(), String> {
        let count = self.stores.len();
        if let (ExportLine::Item(item), true) = (&mut line, count > 1) {
            self.naming.keep_id(item)?;
        }
        let home = match &line {
            ExportLine::Item(item) => Some(item.application.as_str()),
            ExportLine::Queue(queue) => Some(queue.application.as_str()),
            ExportLine::Window(window) => Some(window.application.as_str()),
            // What does not belong between the first line and the last one is refused by any store.
            ExportLine::Ended(_) | ExportLine::Store(_) | ExportLine::End(_) => None,
        };
        let Some(home) = home else {
            self.stores.iter_mut().for_each(|store| store.chunk.put(number, line.clone(), bytes));
            self.bytes += bytes * count;
            return Ok(());
        };
        let at = if count > 1 { (self.home_of)(home, u16::try_from(count).unwrap_or(u16::MAX)) } else { 0 };
        let store = self.stores.get_mut(usize::from(at));
        store.ok_or_else(|| format!("its home is shard {at} of {count}"))?.chunk.put(number, line, bytes);
        self.bytes += bytes;
        Ok(())
    }

    /// Makes the commits that are due. False: none was.
    fn commit_full(&mut self) -> Result<bool, ImportError> {
        let mut is_any = false;
        for store in &mut self.stores {
            if store.chunk.lines.len() >= COMMIT_LINES {
                self.bytes -= store.commit(false)?;
                is_any = true;
            }
        }
        while self.bytes >= COMMIT_BYTES {
            let Some(largest) = self.stores.iter_mut().max_by_key(|store| store.chunk.bytes) else { break };
            self.bytes -= largest.commit(false)?;
            is_any = true;
        }
        Ok(is_any)
    }

    /// What all stores have got; an end counts once.
    fn told(&self) -> Imported {
        let mut told = Imported::default();
        for store in &self.stores {
            told.items += store.told.items;
            told.dead_letters += store.told.dead_letters;
            told.windows += store.told.windows;
            told.paused += store.told.paused;
            told.ended_ids = told.ended_ids.max(store.told.ended_ids);
        }
        told
    }

    /// Closes all stores, and returns the first error.
    fn close(self) -> Result<(), CloseError> {
        let closed = self.stores.into_iter().map(|import| Box::new(import.store).close());
        closed.collect::<Vec<_>>().into_iter().collect()
    }
}

/// An import into one store.
struct StoreImport {
    store: DiskStore,
    identity_of: IdentityOf,
    now: u64,
    marks: Marks,
    /// Set if several shards were exported: an earlier line may contain a later end of an id.
    has_later_ends: bool,
    queues: HashMap<Arc<str>, QueueRow>,
    /// Whether [`BUCKET`] has begun.
    has_bucket: bool,
    chunk: Chunk,
    told: Imported,
}

impl StoreImport {
    fn new(store: DiskStore, first: &StoreLine, identity_of: IdentityOf, now: u64) -> Self {
        StoreImport {
            store,
            identity_of,
            now,
            marks: Marks { next_seq: first.next_number.max(1), wall: first.clock },
            has_later_ends: first.shards.is_some(),
            queues: HashMap::new(),
            has_bucket: false,
            chunk: Chunk::default(),
            told: Imported::default(),
        }
    }

    /// Makes one atomic commit, and returns the bytes of its lines. With the last one the store is complete.
    fn commit(&mut self, is_last: bool) -> Result<usize, ImportError> {
        let Chunk { lines, bytes } = std::mem::take(&mut self.chunk);
        let mut writes = ImportOps::default();
        for (number, line) in lines {
            self.add(number, line, &mut writes)?;
        }
        let ImportOps { mut ops, touched, .. } = writes;
        ops.extend(touched.iter().filter_map(|queue| self.queues.get(queue).cloned()).map(Op::PutQueue));
        let group = CommitGroup { ops, token: 0, marks: self.marks, hurried: false };
        self.store.commit_groups(&[group], is_last)?;
        Ok(bytes)
    }

    /// Checks a line, and adds what it brings.
    fn add(&mut self, number: u64, line: ExportLine, writes: &mut ImportOps) -> Result<(), ImportError> {
        let fault = |error: String| ImportError::Line { line: number, error };
        match line {
            ExportLine::Item(line) => {
                let item = self.item(*line).map_err(fault)?;
                if self.is_repeated(&item, writes)? {
                    return Err(fault("the export contains this item twice".to_owned()));
                }
                self.add_item(item, writes);
            }
            ExportLine::Ended(line) => {
                // The lines of the newest bucket come last: the newest end of an id stays.
                let (identity, ended) = line.ended().map_err(fault)?;
                if self.has_later_ends {
                    let known = self.known_end(identity, writes)?;
                    if known.is_some_and(|known| known > ended.at) {
                        return Ok(());
                    }
                    writes.ends.insert(identity, ended.at);
                    self.told.ended_ids -= u64::from(known.is_some());
                }
                if !std::mem::replace(&mut self.has_bucket, true) {
                    writes.ops.push(Op::BeginBucket(BucketRow { bucket: BUCKET, from: self.now }));
                }
                self.told.ended_ids += 1;
                writes.ops.push(Op::Remember { bucket: BUCKET, identity, ended: Box::new(ended) });
            }
            ExportLine::Window(line) => {
                names(&[&line.application, &line.customer]).map_err(fault)?;
                let row = line.row().map_err(fault)?;
                self.is_numbered(row.window).map_err(fault)?;
                self.told.windows += 1;
                writes.ops.push(Op::PutWindow(row));
            }
            ExportLine::Queue(line) => self.add_queue(&line, writes).map_err(fault)?,
            ExportLine::Store(_) => {
                return Err(fault("it is a first line, in the middle of an export".to_owned()))
            }
            ExportLine::End(_) => {
                return Err(fault("it is a last line, in the middle of an export".to_owned()))
            }
        }
        Ok(())
    }

    /// When the item with this identity ended, by an earlier line, UTC ms.
    fn known_end(&self, identity: Identity, writes: &ImportOps) -> Result<Option<u64>, ReadError> {
        match writes.ends.get(&identity) {
            Some(at) => Ok(Some(*at)),
            None => Ok(self.store.end_of(identity, BUCKET)?.map(|ended| ended.at)),
        }
    }

    fn item(&self, line: ItemLine) -> Result<Stored, String> {
        let id = line.id.clone();
        let item = line.stored()?;
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
        self.is_numbered(item.key.seq.max(item.key.window))?;
        Ok(item)
    }

    /// Checks that an item may have this number: the daemon gives the next one to the next request.
    fn is_numbered(&self, number: u64) -> Result<(), String> {
        if number >= self.marks.next_seq {
            return Err(format!("number {number} is not below the `next_number` of the first line"));
        }
        Ok(())
    }

    /// Whether an earlier line has brought an item with this place or id, or one of the same commit with this
    /// number. Notes those of this item.
    fn is_repeated(&mut self, item: &Stored, writes: &mut ImportOps) -> Result<bool, ReadError> {
        if !writes.numbers.insert(item.key.seq) || self.store.has_item(item.queue(), item.key)? {
            return Ok(true);
        }
        let Some(identity) = item.given.filter(|_| item.dead.is_none()) else { return Ok(false) };
        let application = Arc::clone(&item.application);
        let wanted = Wanted { identity, application, key: None, buckets: Vec::new() };
        let known = match self.store.load(&Load::Find(vec![wanted]))? {
            Loaded::Found(found) => found.iter().any(|found| found.item.is_some()),
            Loaded::Ranges(_) | Loaded::Contents(_) | Loaded::Scanned { .. } => false,
        };
        Ok(known || !writes.identities.insert(identity))
    }

    fn add_item(&mut self, item: Stored, writes: &mut ImportOps) {
        let waits = item.dead.is_none();
        let queue: Arc<str> = item.queue().into();
        let row = self.queues.entry(Arc::clone(&queue)).or_insert_with(|| empty_queue(&queue));
        row.low = if row.count == 0 { item.key } else { row.low.min(item.key) };
        row.count += 1;
        writes.touched.insert(queue);
        let count = if waits { &mut self.told.items } else { &mut self.told.dead_letters };
        *count += 1;
        if waits && item.given.is_none() && item.key.due != item.accepted_due {
            let rows = IndexRows { identity: Some(item.identity()), customer: None };
            writes.ops.push(Op::Index { key: item.key, rows });
        }
        let indexed = waits && item.customer.is_some();
        writes.ops.push(Op::Put { item: Box::new(item), indexed });
    }

    /// Adds the pause and the rate of a queue, or the pause of a customer.
    fn add_queue(&mut self, line: &QueueLine, writes: &mut ImportOps) -> Result<(), String> {
        let customer = line.customer.as_deref();
        names(&[line.application.as_str()].into_iter().chain(customer).collect::<Vec<_>>())?;
        if customer.is_some() {
            let held = line.held().ok_or("the line is for a customer, and its `paused` is false")?;
            self.told.paused += 1;
            writes.ops.push(Op::PutHeld(held));
            return Ok(());
        }
        let QueueRow { queue, paused, slowed, .. } = line.row()?;
        self.told.paused += u64::from(paused.is_some());
        let row = self.queues.entry(Arc::clone(&queue)).or_insert_with(|| empty_queue(&queue));
        (row.paused, row.slowed) = (paused, slowed);
        writes.touched.insert(queue);
        Ok(())
    }
}

/// The writes of one commit.
#[derive(Default)]
struct ImportOps {
    ops: Vec<Op>,
    /// Queues with a changed row.
    touched: BTreeSet<Arc<str>>,
    /// Arrival numbers and producers' ids of the items in the commit.
    numbers: HashSet<u64>,
    identities: HashSet<Identity>,
    /// When items ended, UTC ms.
    ends: HashMap<Identity, u64>,
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
