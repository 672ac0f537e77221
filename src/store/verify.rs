//! Verifies a store that no daemon has open: reads every row, and compares it with the rows that it refers
//! to. It repairs nothing and writes no row.
//!
//! The storage engine reads its tables only as an open database. So its log is replayed into memory, what a
//! crash tore off the log's end is cut off, as at any start, and memory may be flushed.
//!
//! A fault is what would stop or mislead a daemon: a row that does not decode; a row that leads to nothing or
//! to another item; an item without the row that must lead to it; a queue with a wrong count, or with a
//! recorded beginning behind its first item. After an accepted loss, rows that lead to nothing are no faults:
//! a daemon passes over them.

use super::closings::{closed, member_bounds};
use super::errors::BrokenContract;
use super::frozen::{Frozen, FrozenRows};
use super::keyspace::{self, KeyspaceId};
use super::opening::{open_present, read_meta, refuse_loss, PresentStore};
use super::queue_rows::{self, OfQueue};
use super::record::{self, View};
use super::row_reads::{Rows, NO_BODIES};
use super::rows::{self, META_FORMAT, META_FORMER_IMPORT, META_IDENTITY, META_MARKS};
use super::{directory, ended, OpenError, ReadError};
use fjall::Slice;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use tidegate_types::event::{Marks, QueueRow, BUCKETS, DEAD_LETTERS};
use tidegate_types::{Identity, Key};

/// A fault of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowFault {
    /// Name of the keyspace.
    pub keyspace: &'static str,
    /// The row's key in readable form.
    pub key: String,
    /// What is wrong with the row.
    pub error: String,
}

/// Progress of a pass over a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkStep {
    /// Name of the keyspace.
    pub keyspace: &'static str,
    /// Rows read so far, in all keyspaces.
    pub done: u64,
    /// Total number of rows, approximate.
    pub total: u64,
}

/// Receives the progress and the faults of a pass over a store.
pub trait Watcher {
    /// Called from time to time.
    fn step(&mut self, step: WalkStep);

    /// Called once for each faulty row.
    fn fault(&mut self, fault: RowFault);
}

/// The content of a store in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreSummary {
    /// The store's identity, chosen when it was made.
    pub identity: u64,
    /// Number of the last commit.
    pub commit: u64,
    /// Number of rows read.
    pub rows: u64,
    /// Number of waiting items.
    pub items: u64,
    /// Dead letters that have not yet reached the dead-letter exchange.
    pub dead_letters: u64,
    /// Queues that contain items or are paused.
    pub queues: u64,
    /// Queues that are paused.
    pub paused: u64,
    /// Items with an id from their producer, or with an identity row under their assigned id.
    pub ids: u64,
    /// Remembered ids of ended items.
    pub ended_ids: u64,
    /// Open windows that have a row.
    pub windows: u64,
    /// Windows that closed before their planned end and have members.
    pub closings: u64,
    /// The earliest due of a waiting item, UTC ms.
    pub oldest_due: Option<u64>,
    /// The latest due of a waiting item, UTC ms.
    pub newest_due: Option<u64>,
    /// Size on the disk, in bytes.
    pub bytes: u64,
    /// Number of faulty rows.
    pub faults: u64,
}

/// Verifies the store in `path`.
///
/// # Errors
///
/// As [`super::open`], if nothing of it can be read; [`OpenError::Absent`], [`OpenError::Foreign`]. Faults of
/// single rows go to the watcher.
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
    walk.report_step(KeyspaceId::Meta);
    Ok(StoreSummary { bytes, ..walk.summary })
}

/// Number of rows between two reported steps.
const STEP_ROWS: u64 = 1_000;

struct StoreWalk<'w> {
    frozen: Frozen,
    watcher: &'w mut dyn Watcher,
    summary: StoreSummary,
    total: u64,
    marks: Marks,
    /// The rows of queues, by name.
    queues: HashMap<Arc<str>, QueueRow>,
    /// The items found in each queue: their number and the first of them.
    counted: HashMap<Arc<str>, (u64, Key)>,
    /// Number of items to which an identity row leads.
    identified: u64,
}

/// The fault of a row, or `Ok` if it has none.
type RowVerdict = Result<(), String>;

impl StoreWalk<'_> {
    fn fault(&mut self, id: KeyspaceId, key: &[u8], error: impl Into<String>) {
        self.summary.faults += 1;
        let (keyspace, key) = (id.name(), keyspace::show(id, key));
        self.watcher.fault(RowFault { keyspace, key, error: error.into() });
    }

    fn report_step(&mut self, id: KeyspaceId) {
        let done = self.summary.rows;
        self.watcher.step(WalkStep { keyspace: id.name(), done, total: self.total.max(done) });
    }

    /// Visits every row of a keyspace. A failed read ends the pass, and is reported.
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
                    self.report_step(id);
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
            other if other.starts_with(META_FORMER_IMPORT) => Ok(()),
            _ => Err("unknown row name".to_owned()),
        });
        // Only missing rows are reported here; rows that do not decode were reported above.
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
            if let OfQueue::Queue(row) = queue_rows::read_of_queue(key, value)? {
                walk.summary.queues += 1;
                walk.summary.paused += u64::from(row.paused.is_some());
                walk.queues.insert(Arc::clone(&row.queue), row);
            }
            Ok(())
        });
    }

    fn items(&mut self) {
        self.each(KeyspaceId::Items, |walk, key, value| {
            // The item counts even if its record is damaged: its queue counts it too.
            let (queue, place) = rows::read_item_key(key).ok_or("the key is not an item key")?;
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

    /// Checks the rows that lead to an item.
    fn item(&mut self, view: &View<'_>) -> RowVerdict {
        if view.key.seq >= self.marks.next_seq {
            let next = self.marks.next_seq;
            return Err(format!("its number was never assigned: the next number is {next}"));
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
        // A row that does not decode is reported in its own keyspace.
        if rows::read_identity(identity, &row).is_ok_and(|key| key != view.key) {
            return Err("the row of its id leads to another item".to_owned());
        }
        self.identified += 1;
        Ok(())
    }

    /// Compares the rows of queues with the items found.
    fn counts(&mut self) {
        let mut names: Vec<Arc<str>> = self.queues.keys().chain(self.counted.keys()).cloned().collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let found = self.counted.get(&name).copied();
            let wrong = match (self.queues.get(&name), found) {
                (None, Some((count, _))) => Some(format!("missing, although the queue has {count} items")),
                (Some(row), found) if row.count != found.map_or(0, |(count, _)| count) => {
                    let count = found.map_or(0, |(count, _)| count);
                    Some(format!("it counts {} items, and the queue has {count}", row.count))
                }
                (Some(row), Some((_, first))) if first < row.low => Some(format!(
                    "the queue is read from due {} on, and its first item is due {}",
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
                return walk.leads_nowhere("no item of the queue belongs to this row");
            };
            // An item that does not decode was reported above.
            let other = record::decode(&item, &bytes).is_ok_and(|view| view.customer != Some(&*customer));
            if other {
                return Err("this row leads to an item of another customer".to_owned());
            }
            Ok(())
        });
    }

    /// Identity rows do not name their queue. So only if there are more of them than items found through
    /// them, those that lead to no item are searched for in all queues.
    fn identities(&mut self) {
        let before = self.summary.rows;
        self.each(KeyspaceId::Identities, |walk, key, value| {
            let key = <[u8; 16]>::try_from(&**key).map_err(|_| "the key is not an identity")?;
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
                // An item that does not decode was reported above, and may be the one.
                if record::decode(&item, &bytes).map_or(true, |view| view.identity() == identity) {
                    return Ok(());
                }
            }
            walk.leads_nowhere("no item of any queue belongs to this row")
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

    /// Each of the two rows of a closing must lead to the other, and the window must have a member.
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
            return if same { Ok(()) } else { Err("the other row of this closing differs".to_owned()) };
        }
        let (due, _) = rows::read_closed_by_end(key, value)?;
        other(rows::closed_by_due(&queue, Key { due, ..place }))?;
        self.summary.closings += 1;
        let members = member_bounds(&queue, place.due, place.window, 0).map_err(|e| words(&e))?;
        for row in self.frozen.keyspaces.range(KeyspaceId::Items, members, NO_BODIES) {
            let (key, value) = row.map_err(|e| words(&e))?;
            // An item that does not decode was reported above.
            if record::decode(&key, &value).map_or(true, |view| view.is_windowed()) {
                return Ok(());
            }
        }
        self.leads_nowhere("the closed window has no members left")
    }

    /// A row that leads to nothing. An accepted loss may leave it behind.
    fn leads_nowhere(&self, error: &str) -> RowVerdict {
        if self.frozen.keyspaces.has_losses() {
            Ok(())
        } else {
            Err(error.to_owned())
        }
    }

    fn bucket(&mut self, bucket: u8) {
        let id = KeyspaceId::Ended(bucket);
        // A damaged row is reported below, in its keyspace.
        let row = self.frozen.keyspaces.get(id, rows::BUCKET).ok().flatten();
        let epoch =
            row.and_then(|bytes| rows::read_bucket(bucket, &bytes).ok()).map_or(0, |(_, epoch)| epoch);
        self.each(id, |walk, key, value| {
            if **key == *rows::BUCKET {
                return rows::read_bucket(bucket, value).map(drop);
            }
            let key = <[u8; 16]>::try_from(&**key).map_err(|_| "the key is not an identity")?;
            let read = ended::decode(Identity::from_bytes(key), value).map_err(|e| e.to_string())?;
            // Rows of an earlier epoch do not count.
            walk.summary.ended_ids += u64::from(read.0 == epoch);
            Ok(())
        });
    }
}

/// The error text of a failed read, for a row that the report names already.
fn words(error: &ReadError) -> String {
    match error {
        ReadError::Damaged { error, .. } => error.clone(),
        ReadError::Missing { .. } | ReadError::Engine(_) | ReadError::Lost(_) | ReadError::Contract(_) => {
            error.to_string()
        }
    }
}
