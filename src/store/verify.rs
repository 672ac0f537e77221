//! Looking through a store that no daemon has open: every row is read, and held against those that it refers
//! to. Nothing is repaired, and no row is written.
//!
//! What counts as wrong is what a daemon would stumble over: a row that does not decode; one that leads to
//! nothing, or to another item; an item that no row leads to although one should; a queue that is counted
//! wrong, or whose beginning is taken for later than it is.

use super::closings::{closed, member_bounds};
use super::errors::BrokenContract;
use super::frozen::Frozen;
use super::keyspace::{self, KeyspaceId};
use super::opening::{open_present, read_meta, refuse_loss, PresentStore};
use super::record::{self, View};
use super::row_reads::{Rows, NO_BODIES};
use super::rows::{self, OfQueue, META_FORMAT, META_IDENTITY, META_IMPORT, META_MARKS};
use super::{directory, ended, OpenError, ReadError};
use crate::engine::event::{Marks, QueueRow, BUCKETS, DEAD_LETTERS};
use crate::engine::types::{Identity, Key};
use fjall::Slice;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// What is wrong with one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowFault {
    /// Which part of the store.
    pub keyspace: &'static str,
    /// The row's key, readable.
    pub key: String,
    /// What is wrong with it.
    pub error: String,
}

/// How far a walk through a store is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkStep {
    /// Which part of the store.
    pub keyspace: &'static str,
    /// Rows that have been looked at, in all parts.
    pub done: u64,
    /// Rows that there are, about.
    pub total: u64,
}

/// Whom a walk through a store tells of it.
pub trait Watcher {
    /// From time to time.
    fn step(&mut self, step: WalkStep);

    /// Once for each row that is at fault.
    fn fault(&mut self, fault: RowFault);
}

/// What a store holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreSummary {
    /// Made once in the life of a store.
    pub identity: u64,
    /// Number of the last commit.
    pub commit: u64,
    /// Rows that were looked at.
    pub rows: u64,
    /// Items that wait.
    pub items: u64,
    /// Dead letters that have not reached the dead-letter exchange yet.
    pub dead_letters: u64,
    /// Queues that hold items or are paused.
    pub queues: u64,
    /// Queues that are paused.
    pub paused: u64,
    /// Items that are known by an id of their producers', or have a row under their assigned one.
    pub ids: u64,
    /// Ids that are remembered of items that have ended.
    pub ended_ids: u64,
    /// Windows that are open and have a row.
    pub windows: u64,
    /// Windows that closed before their planned end and have members.
    pub closings: u64,
    /// The earliest due of an item that waits, UTC ms.
    pub oldest_due: Option<u64>,
    /// The latest due of an item that waits, UTC ms.
    pub newest_due: Option<u64>,
    /// Bytes on the disk.
    pub bytes: u64,
    /// Rows at fault.
    pub faults: u64,
}

/// Looks through the store in `path`.
///
/// # Errors
///
/// As [`super::open`], where nothing of it can be read; [`OpenError::Absent`], [`OpenError::Foreign`]. What
/// is wrong with single rows is told to the watcher.
pub fn verify(path: &Path, memory_limit: u64, watcher: &mut dyn Watcher) -> Result<StoreSummary, OpenError> {
    let present = open_present(path, memory_limit)?;
    let frozen = Frozen::new(&present.db, &present.keyspaces);
    let total = KeyspaceId::ALL.map(|id| frozen.about(id)).iter().sum();
    let mut walk = StoreWalk {
        frozen,
        watcher,
        summary: StoreSummary::default(),
        total,
        marks: Marks::default(),
        queues: HashMap::new(),
        counted: HashMap::new(),
        identified: 0,
    };
    let bytes = present.db.disk_space().unwrap_or(0);
    walk.meta(&present);
    walk.queues();
    walk.items();
    walk.counts();
    walk.customers();
    walk.identities();
    walk.windows();
    (0..BUCKETS).for_each(|bucket| walk.bucket(bucket));
    walk.tell(KeyspaceId::Meta);
    Ok(StoreSummary { bytes, ..walk.summary })
}

/// Rows between two steps that are told.
const STEP_ROWS: u64 = 1_000;

struct StoreWalk<'w> {
    frozen: Frozen,
    watcher: &'w mut dyn Watcher,
    summary: StoreSummary,
    total: u64,
    marks: Marks,
    /// As their rows say.
    queues: HashMap<Arc<str>, QueueRow>,
    /// Items of each queue as they were found, and the first of them.
    counted: HashMap<Arc<str>, (u64, Key)>,
    /// Items to which a row of their identity leads.
    identified: u64,
}

/// What is wrong with a row, or that nothing is.
type RowVerdict = Result<(), String>;

impl StoreWalk<'_> {
    fn fault(&mut self, id: KeyspaceId, key: &[u8], error: impl Into<String>) {
        self.summary.faults += 1;
        let (keyspace, key) = (id.name(), keyspace::show(id, key));
        self.watcher.fault(RowFault { keyspace, key, error: error.into() });
    }

    fn tell(&mut self, id: KeyspaceId) {
        let done = self.summary.rows;
        self.watcher.step(WalkStep { keyspace: id.name(), done, total: self.total.max(done) });
    }

    /// Every row of a keyspace; what cannot be read at all ends it, and is told.
    fn each(&mut self, id: KeyspaceId, mut visit: impl FnMut(&mut Self, &Slice, &Slice) -> RowVerdict) {
        let mut behind: Option<Slice> = None;
        loop {
            let page = match self.frozen.page(id, behind.as_ref()) {
                Ok(page) => page,
                Err(error) => {
                    return self.fault(id, behind.as_deref().unwrap_or_default(), words(&error));
                }
            };
            for (key, value) in &page.rows {
                if let Err(error) = visit(self, key, value) {
                    self.fault(id, key, error);
                }
                self.summary.rows += 1;
                if self.summary.rows.is_multiple_of(STEP_ROWS) {
                    self.tell(id);
                }
            }
            let Some(next) = page.next else { return };
            behind = Some(next);
        }
    }

    fn meta(&mut self, present: &PresentStore) {
        self.each(KeyspaceId::Meta, |walk, key, value| match &**key {
            META_FORMAT => rows::read_number(key, value).map(drop),
            META_IDENTITY => rows::read_number(key, value).map(|found| walk.summary.identity = found),
            META_MARKS => rows::read_marks(value).map(|(commit, marks)| {
                (walk.summary.commit, walk.marks) = (commit, marks);
            }),
            other if other.starts_with(META_IMPORT) => rows::read_import(key, value).map(drop),
            _ => Err("no row of this name is known".to_owned()),
        });
        // What must be there, and is not; what does not decode has been told already.
        if let Err(OpenError::Damaged { error, .. }) = read_meta(&present.keyspaces) {
            if error == "missing" {
                self.fault(KeyspaceId::Meta, META_MARKS, "the store's identity or its marks are missing");
            }
        }
        match directory::Committed::noted(&present.directory)
            .and_then(|noted| refuse_loss(&present.directory, self.summary.commit, noted))
        {
            Ok(()) => {}
            Err(error) => self.fault(KeyspaceId::Meta, META_MARKS, error.to_string()),
        }
    }

    fn queues(&mut self) {
        self.each(KeyspaceId::Queues, |walk, key, value| {
            if let OfQueue::Queue(row) = rows::read_of_queue(key, value)? {
                walk.summary.queues += 1;
                walk.summary.paused += u64::from(row.paused.is_some());
                walk.queues.insert(Arc::clone(&row.queue), row);
            }
            Ok(())
        });
    }

    fn items(&mut self) {
        self.each(KeyspaceId::Items, |walk, key, value| {
            // Counted whatever it holds: its queue counts it too.
            let (queue, place) = rows::read_item_key(key).ok_or("the key is none of an item")?;
            let read = record::decode(key, value).map_err(|e| e.to_string());
            let closed =
                read.as_ref().ok().and_then(|view| closed(&walk.frozen.keyspaces, view).ok()).flatten();
            let place = Key { due: closed.map_or(place.due, |closed| closed.due), ..place };
            walk.count(queue, place);
            let view = read?;
            if view.queue() == DEAD_LETTERS {
                walk.summary.dead_letters += 1;
            } else {
                walk.summary.items += 1;
                let due = Some(place.due);
                walk.summary.oldest_due = walk.summary.oldest_due.map_or(due, |old| due.min(Some(old)));
                walk.summary.newest_due = walk.summary.newest_due.max(due);
            }
            walk.item(&view)
        });
    }

    fn count(&mut self, queue: &str, place: Key) {
        match self.counted.get_mut(queue) {
            Some((count, first)) => (*count, *first) = (*count + 1, place.min(*first)),
            None => drop(self.counted.insert(queue.into(), (1, place))),
        }
    }

    /// The rows that lead to an item.
    fn item(&mut self, view: &View<'_>) -> RowVerdict {
        if view.key.seq >= self.marks.next_seq {
            let next = self.marks.next_seq;
            return Err(format!("its number was never given out: the next one is {next}"));
        }
        if view.queue() == DEAD_LETTERS {
            return Ok(());
        }
        if view.given.is_some() || view.accepted_due != view.key.due {
            self.led_to_by_identity(view)?;
        }
        let unindexed_until = self.queues.get(view.application).map_or(u64::MAX, |row| row.unindexed_until);
        let Some(customer) = view.customer.filter(|_| view.key.due >= unindexed_until) else { return Ok(()) };
        let row = rows::place_key(&[view.application, customer], view.key).map_err(|e| e.to_string())?;
        match self.frozen.keyspaces.get(KeyspaceId::Customers, &row).map_err(|e| words(&e))? {
            Some(_) => Ok(()),
            None => Err("its row under its customer is missing".to_owned()),
        }
    }

    fn led_to_by_identity(&mut self, view: &View<'_>) -> RowVerdict {
        let identity = view.identity();
        let row =
            self.frozen.keyspaces.get(KeyspaceId::Identities, &identity.to_bytes()).map_err(|e| words(&e))?;
        let Some(row) = row else { return Err("the row of its id is missing".to_owned()) };
        // One that does not decode is told of where it lies.
        if rows::read_identity(identity, &row).is_ok_and(|key| key != view.key) {
            return Err("the row of its id leads to another item".to_owned());
        }
        self.identified += 1;
        Ok(())
    }

    /// What the rows of queues say, against what was found.
    fn counts(&mut self) {
        let mut names: Vec<Arc<str>> = self.queues.keys().chain(self.counted.keys()).cloned().collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let found = self.counted.get(&name).copied();
            let wrong = match (self.queues.get(&name), found) {
                (None, Some((count, _))) => Some(format!("missing, although {count} items lie in the queue")),
                (Some(row), found) if row.count != found.map_or(0, |(count, _)| count) => {
                    let count = found.map_or(0, |(count, _)| count);
                    Some(format!("it counts {} items, and {count} lie in the queue", row.count))
                }
                (Some(row), Some((_, first))) if first < row.low => Some(format!(
                    "items are looked for from due {} on, and the first is due {}",
                    row.low.due, first.due
                )),
                (Some(_) | None, _) => None,
            };
            if let (Some(error), Ok(key)) = (wrong, rows::prefix(&[&name])) {
                self.fault(KeyspaceId::Queues, &key, error);
            }
        }
    }

    fn customers(&mut self) {
        self.each(KeyspaceId::Customers, |walk, key, _| {
            let ([application, customer], place) = rows::read_customer_key(key)?;
            let item = rows::item_key(&application, place).map_err(|e| e.to_string())?;
            let Some(bytes) = walk.frozen.keyspaces.get(KeyspaceId::Items, &item).map_err(|e| words(&e))?
            else {
                return Err("no item of the queue belongs to this row".to_owned());
            };
            // One that does not decode has been told of.
            let other = record::decode(&item, &bytes).is_ok_and(|view| view.customer != Some(&*customer));
            if other {
                return Err("the item that this row leads to is another customer's".to_owned());
            }
            Ok(())
        });
    }

    /// They do not name their queue: only where there are more of them than items that they lead to, those
    /// that lead nowhere are looked for in all queues.
    fn identities(&mut self) {
        let before = self.summary.rows;
        self.each(KeyspaceId::Identities, |walk, key, value| {
            let key = <[u8; 16]>::try_from(&**key).map_err(|_| "the key is none of an identity")?;
            rows::read_identity(Identity::from_bytes(key), value)?;
            walk.summary.ids += 1;
            Ok(())
        });
        if self.summary.ids == self.identified {
            return;
        }
        let queues: Vec<Arc<str>> = self.counted.keys().cloned().collect();
        let counted = std::mem::replace(&mut self.summary.rows, before);
        self.each(KeyspaceId::Identities, |walk, key, value| {
            let Ok(key) = <[u8; 16]>::try_from(&**key) else { return Ok(()) };
            let identity = Identity::from_bytes(key);
            let Ok(place) = rows::read_identity(identity, value) else { return Ok(()) };
            for queue in queues.iter().filter(|queue| &***queue != DEAD_LETTERS) {
                let item = rows::item_key(queue, place).map_err(|e| e.to_string())?;
                let Some(bytes) =
                    walk.frozen.keyspaces.get(KeyspaceId::Items, &item).map_err(|e| words(&e))?
                else {
                    continue;
                };
                // One that does not decode has been told of, and may be the one.
                if record::decode(&item, &bytes).map_or(true, |view| view.identity() == identity) {
                    return Ok(());
                }
            }
            Err("no item of any queue belongs to this row".to_owned())
        });
        self.summary.rows = counted;
    }

    fn windows(&mut self) {
        self.each(KeyspaceId::Windows, |walk, key, value| {
            rows::read_window(key, value)?;
            walk.summary.windows += 1;
            Ok(())
        });
        self.each(KeyspaceId::Closings, |walk, key, value| walk.closing(key, value));
    }

    /// Each of the two rows of a closing leads to the other, and the window has a member.
    fn closing(&mut self, key: &[u8], value: &[u8]) -> RowVerdict {
        let (by_due, queue, place) = rows::read_closing_key(key)?;
        let other = |key: Result<Vec<u8>, BrokenContract>| {
            let key = key.map_err(|e| e.to_string())?;
            let row = self.frozen.keyspaces.get(KeyspaceId::Closings, &key).map_err(|e| words(&e))?;
            row.map(|row| (key, row)).ok_or("the other row of this closing is missing".to_owned())
        };
        if by_due {
            let row = rows::read_closed_by_due(key, value)?;
            let (key, found) = other(rows::closed_by_end(&queue, Key { due: row.end, ..place }))?;
            let same =
                rows::read_closed_by_end(&key, &found).is_ok_and(|known| known == (row.due, row.cause));
            return if same {
                Ok(())
            } else {
                Err("the other row of this closing says otherwise".to_owned())
            };
        }
        let (due, _) = rows::read_closed_by_end(key, value)?;
        other(rows::closed_by_due(&queue, Key { due, ..place }))?;
        self.summary.closings += 1;
        let members = member_bounds(&queue, place.due, place.window, 0).map_err(|e| words(&e))?;
        for row in self.frozen.keyspaces.range(KeyspaceId::Items, members, NO_BODIES) {
            let (key, value) = row.map_err(|e| words(&e))?;
            // One that does not decode has been told of.
            if record::decode(&key, &value).map_or(true, |view| view.is_windowed()) {
                return Ok(());
            }
        }
        Err("no member of the window that closed is left".to_owned())
    }

    fn bucket(&mut self, bucket: u8) {
        let id = KeyspaceId::Ended(bucket);
        // Told of where it lies.
        let row = self.frozen.keyspaces.get(id, rows::BUCKET).ok().flatten();
        let epoch =
            row.and_then(|bytes| rows::read_bucket(bucket, &bytes).ok()).map_or(0, |(_, epoch)| epoch);
        self.each(id, |walk, key, value| {
            if **key == *rows::BUCKET {
                return rows::read_bucket(bucket, value).map(drop);
            }
            let key = <[u8; 16]>::try_from(&**key).map_err(|_| "the key is none of an identity")?;
            let read = ended::decode(Identity::from_bytes(key), value).map_err(|e| e.to_string())?;
            // Of an earlier epoch: it counts for nothing.
            walk.summary.ended_ids += u64::from(read.0 == epoch);
            Ok(())
        });
    }
}

/// What a failed read says of a row that is named already.
fn words(error: &ReadError) -> String {
    match error {
        ReadError::Damaged { error, .. } => error.clone(),
        ReadError::Missing { .. } | ReadError::Engine(_) | ReadError::Lost(_) | ReadError::Contract(_) => {
            error.to_string()
        }
    }
}
