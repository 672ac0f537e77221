//! Empties a store, some items at a time: they are read, the caller makes them safe elsewhere, and only then
//! are they removed. What was not removed is there at the next attempt.
//!
//! A daemon has the store open for itself, and so has this.

use super::directory::Directory;
use super::disk::{open_in, IfAbsent, OpenDisk};
use super::errors::broken_contract;
use super::{
    database_of, postgres, CloseError, CommitError, CommitGroup, OpenError, OpenStore, Opener, ReadError,
    ShardPlace, Store,
};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use tidegate_common::clock;
use tidegate_config::StoreConfig;
use tidegate_types::event::{
    HeldRow, Load, Loaded, Marks, Op, Opened, Place, QueueRow, Range, RangeRows, Stored, Token, DEAD_LETTERS,
};
use tidegate_types::{Content, Key};

/// Most items of one step.
pub const STEP_ITEMS: usize = 1_000;
/// Most dead letters of one step: how large they are is not known before they are read.
const STEP_LETTERS: usize = 16;
/// Bytes, by weight, after which a step takes no more items.
const STEP_BYTES: u64 = 16 << 20;

/// A queue that is being emptied.
struct EmptiedQueue {
    /// Its row, as it is in the store.
    row: QueueRow,
    /// The place at which the next step begins; `None`: it was read to its end.
    next: Option<Key>,
    /// An item was left where it is.
    has_left: bool,
    /// Number of its items in the last step.
    taken: u64,
}

/// See the module.
pub struct EmptyingStore {
    store: Box<dyn Store>,
    identity: u64,
    marks: Marks,
    token: Token,
    queues: Vec<EmptiedQueue>,
    /// The queues of items, and that of dead letters, which have a next place: what is due first comes first.
    order: [BTreeSet<(Key, usize)>; 2],
    held: Vec<HeldRow>,
    /// Number of items when it was opened, dead letters included.
    items: u64,
}

/// What a step takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOf {
    /// Items, of any applications.
    Items,
    /// Dead letters on their way.
    Letters,
}

impl EmptyingStore {
    /// Opens the disk store in `path`, which must exist. `memory_limit`: as for [`super::Opener::new`].
    ///
    /// # Errors
    ///
    /// As [`super::open`]; [`OpenError::Absent`].
    pub fn on_disk(path: &Path, memory_limit: u64) -> Result<Self, OpenError> {
        let directory = Directory::existing(path)?;
        let wall = clock::wall_ms();
        let OpenDisk { store, opened, identity } =
            open_in(directory, memory_limit, false, IfAbsent::Refuse, wall)?;
        Ok(EmptyingStore::of(Box::new(store), opened, identity))
    }

    /// Claims the store of a shard in the configured database, which must exist.
    ///
    /// # Errors
    ///
    /// As [`Opener::new`] and [`Opener::open`]; [`OpenError::ForeignSchema`]: there is none.
    pub fn in_database(config: &StoreConfig, place: ShardPlace) -> Result<Self, OpenError> {
        postgres::refuse_absent(database_of(config)?, place.count)?;
        let OpenStore { store, opened, identity, .. } =
            Opener::new(config, place, 0, false)?.open(clock::wall_ms())?;
        Ok(EmptyingStore::of(store, opened, identity))
    }

    /// Of a store that was just opened.
    pub(crate) fn of(store: Box<dyn Store>, opened: Opened, identity: u64) -> Self {
        let Opened { marks, queues, held, .. } = opened;
        let items = queues.iter().map(|queue| queue.count).sum();
        let emptied = |row: QueueRow| {
            let next = Some(row.low);
            EmptiedQueue { row, next, has_left: false, taken: 0 }
        };
        let queues: Vec<EmptiedQueue> = queues.into_iter().map(emptied).collect();
        let mut order: [BTreeSet<(Key, usize)>; 2] = Default::default();
        for (at, queue) in queues.iter().enumerate() {
            order[usize::from(&*queue.row.queue == DEAD_LETTERS)].insert((queue.row.low, at));
        }
        EmptyingStore { store, identity, marks, token: 0, queues, order, held, items }
    }

    /// The identity of the store, a part of the ids that it has assigned.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// Number of items when it was opened, dead letters included.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// The applications that a command has paused or slowed down at `now` (UTC ms), and the applications and
    /// customers whose items it holds back.
    pub fn held_back(&self, now: u64) -> Vec<(Arc<str>, Option<Arc<str>>)> {
        let queues = self.queues.iter().map(|queue| &queue.row).filter(|queue| {
            queue.paused.is_some_and(|until| until > now)
                || queue.slowed.is_some_and(|slowed| slowed.until > now)
        });
        let queues = queues.map(|queue| (Arc::clone(&queue.queue), None));
        let held = self.held.iter().filter(|held| held.until.is_some_and(|until| until > now));
        let held = held.map(|held| (Arc::clone(&held.application), Some(Arc::clone(&held.customer))));
        queues.chain(held).collect()
    }

    /// The next items, with their contents, those of each queue in the order in which they would leave;
    /// `None`: there are no more.
    ///
    /// # Errors
    ///
    /// As [`Store::load`].
    pub fn step(&mut self, of: StepOf) -> Result<Option<Vec<Stored>>, ReadError> {
        let most = if of == StepOf::Items { STEP_ITEMS } else { STEP_LETTERS };
        self.queues.iter_mut().filter(|queue| queue.taken > 0).for_each(|queue| queue.taken = 0);
        let (mut items, mut bytes) = (Vec::new(), 0);
        while items.len() < most && bytes < STEP_BYTES {
            let Some((from, at)) = self.order[usize::from(of == StepOf::Letters)].pop_first() else { break };
            let Some(queue) = self.queues.get(at).map(|queue| Arc::clone(&queue.row.queue)) else { continue };
            let mut read = self.read(&queue, from, most - items.len())?;
            let fits = |item: &&Stored| {
                let is_first = bytes == 0;
                let fits = is_first || bytes + u64::from(item.weight) <= STEP_BYTES;
                bytes += u64::from(item.weight).max(1);
                fits
            };
            let taken = read.rows.iter().take_while(fits).count();
            if let Some(behind) = read.rows.get(taken) {
                read.next = Some(behind.place());
                read.rows.truncate(taken);
            }
            self.fill(&queue, &mut read.rows)?;
            if let Some(queue) = self.queues.get_mut(at) {
                (queue.next, queue.taken) = (read.next, queue.taken + read.rows.len() as u64);
            }
            if let Some(next) = read.next {
                self.order[usize::from(of == StepOf::Letters)].insert((next, at));
            }
            items.append(&mut read.rows);
        }
        Ok(Some(items).filter(|items| !items.is_empty()))
    }

    /// Reads a queue from this place on, without contents.
    fn read(&mut self, queue: &Arc<str>, from: Key, max_rows: usize) -> Result<RangeRows, ReadError> {
        let ranges = vec![Range { queue: Arc::clone(queue), from, until: u64::MAX, max_rows }];
        match self.store.load(&Load::Ranges { ranges, max_rows, max_bytes: 0 })? {
            Loaded::Ranges(mut read) if read.len() == 1 => Ok(read.remove(0)),
            Loaded::Ranges(_) | Loaded::Contents(_) | Loaded::Found(_) | Loaded::Scanned { .. } => {
                Err(broken_contract("a store answers one range with one").into())
            }
        }
    }

    /// Reads the contents of these items, all of this queue.
    fn fill(&mut self, queue: &Arc<str>, items: &mut [Stored]) -> Result<(), ReadError> {
        if items.is_empty() {
            return Ok(());
        }
        let wanted =
            items.iter().map(|item| (item.key.seq, Place { queue: Arc::clone(queue), key: item.key }));
        let Loaded::Contents(found) = self.store.load(&Load::Contents(wanted.collect()))? else {
            return Err(broken_contract("a store answers contents with contents").into());
        };
        let mut found: HashMap<u64, Arc<Content>> = found.into_iter().collect();
        for item in items {
            item.content = found.remove(&item.key.seq);
        }
        Ok(())
    }

    /// Removes items of the last [`EmptyingStore::step`], in one commit. The others are left.
    ///
    /// # Errors
    ///
    /// As [`Store::commit`]. The store must then be opened again to find out.
    pub fn remove(&mut self, safe: &[Stored]) -> Result<(), CommitError> {
        let mut ops: Vec<Op> = Vec::with_capacity(safe.len() + 1);
        let mut removed: HashMap<&str, u64> = HashMap::new();
        let mut windows = BTreeSet::new();
        for item in safe {
            *removed.entry(item.queue()).or_default() += 1;
            let place = Place { queue: item.queue().into(), key: item.key };
            ops.push(Op::Delete { place, rows: item.index_rows() });
            if let Some(customer) = item.customer.as_ref().filter(|_| item.is_windowed()) {
                windows.insert((Arc::clone(&item.application), Arc::clone(customer)));
            }
        }
        // What is left of a window ends when it was to end, and nothing joins it any more.
        let windows = windows.into_iter();
        ops.extend(windows.map(|(application, customer)| Op::DeleteWindow { application, customer }));
        for queue in self.queues.iter_mut().filter(|queue| queue.taken > 0) {
            let count = removed.get(&*queue.row.queue).copied().unwrap_or(0);
            queue.has_left |= count < queue.taken;
            queue.row.count = queue.row.count.saturating_sub(count);
            if let Some(next) = queue.next.filter(|_| !queue.has_left) {
                queue.row.low = next;
            }
            if count > 0 {
                ops.push(Op::PutQueue(queue.row.clone()));
            }
        }
        if ops.is_empty() {
            return Ok(());
        }
        self.token += 1;
        self.store.commit(&[CommitGroup { ops, token: self.token, marks: self.marks, hurried: true }])
    }

    /// Keeps the store for this process, if another one could claim it. To be called at least once a second
    /// while items are made safe.
    ///
    /// # Errors
    ///
    /// As [`Store::commit`].
    pub fn keep(&mut self) -> Result<(), CommitError> {
        match self.store.lease() {
            Some(lease) if lease.due_in(clock::now().mono) == 0 => self.store.renew(),
            Some(_) | None => Ok(()),
        }
    }

    /// Syncs and closes it.
    ///
    /// # Errors
    ///
    /// As [`Store::close`].
    pub fn close(self) -> Result<(), CloseError> {
        self.store.close()
    }
}
