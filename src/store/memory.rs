//! The memory store: keeps no items. The broker's unacked message is the only copy, and the engine, as its
//! settings require, writes no items here. The store does remember how items ended, so that repeats are
//! recognised: within bounds, and until the process ends.

use super::errors::{broken_contract, BrokenContract};
use super::{
    new_identity, CloseError, CommitError, CommitGroup, OpenError, OpenStore, ReadError, Store, Usage,
    UsageError,
};
use std::collections::HashMap;
use tidegate_types::event::{Found, Load, Loaded, Op, Opened, RangeRows, Wanted, BUCKETS};
use tidegate_types::{Ended, Identity};

/// Memory that one ended item costs, in bytes, approximate.
const ENTRY: u64 = 200;
/// The store keeps at least this many ended items, however little memory there is.
const LEAST: usize = 1_000;

/// Opens an empty store with a fresh identity. Its ended items take at most a sixteenth of `memory_limit`
/// (bytes).
///
/// # Errors
///
/// The system provides no random numbers.
pub(crate) fn open(memory_limit: u64) -> Result<OpenStore, OpenError> {
    let entries = usize::try_from(memory_limit / 16 / ENTRY).unwrap_or(usize::MAX);
    let store = MemoryStore::new(entries.max(LEAST));
    let (store, identity) = (Box::new(store), new_identity()?);
    Ok(OpenStore { store, opened: Opened::default(), identity, takeover: None, epoch: None })
}

/// The items that ended within one span of time.
#[derive(Debug, Default)]
struct EndedBucket {
    /// Number of this beginning: the lowest number marks the oldest bucket.
    begun: u64,
    newer: HashMap<Identity, Ended>,
    /// What was `newer` before that was full. It can be forgotten alone, so that the newest ends stay however
    /// fast items end.
    older: HashMap<Identity, Ended>,
}

impl EndedBucket {
    fn len(&self) -> usize {
        self.newer.len() + self.older.len()
    }

    fn find(&self, identity: &Identity) -> Option<&Ended> {
        self.newer.get(identity).or_else(|| self.older.get(identity))
    }

    /// Adds an end of an item that it does not contain. `half`: maximum size of each of the two tables.
    fn add(&mut self, identity: Identity, ended: Ended, half: usize) {
        if self.newer.len() >= half {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(identity, ended);
    }

    /// Empties the older table, or the newer one if that is the only one.
    fn forget_oldest(&mut self) {
        // A fresh table frees the memory of the old one.
        if self.older.is_empty() {
            self.newer = HashMap::new();
        } else {
            self.older = HashMap::new();
        }
    }
}

/// See the module.
#[derive(Debug)]
struct MemoryStore {
    buckets: [EndedBucket; BUCKETS as usize],
    /// Number of bucket beginnings so far.
    begun: u64,
    /// Maximum number of ended items, at least 1.
    most: usize,
    /// The warning about a full table has been logged.
    warned: bool,
}

impl MemoryStore {
    /// An empty store for at most `most` ended items.
    fn new(most: usize) -> Self {
        MemoryStore { buckets: Default::default(), begun: 0, most, warned: false }
    }

    fn apply(&mut self, op: &Op) -> Result<(), BrokenContract> {
        match op {
            Op::Remember { bucket, identity, ended } => self.remember(*bucket, *identity, ended)?,
            Op::BeginBucket(row) => {
                self.begun += 1;
                let begun = self.begun;
                *self.bucket(row.bucket)? = EndedBucket { begun, ..EndedBucket::default() };
            }
            Op::Put { .. }
            | Op::Delete { .. }
            | Op::Index { .. }
            | Op::Move { .. }
            | Op::Close(_)
            | Op::PutQueue(_)
            | Op::PutHeld(_)
            | Op::PutWindow(_)
            | Op::DeleteWindow { .. } => {
                return Err(broken_contract("the memory store was given something to keep"));
            }
        }
        Ok(())
    }

    fn remember(&mut self, bucket: u8, identity: Identity, ended: &Ended) -> Result<(), BrokenContract> {
        let known = self.bucket(bucket)?;
        if let Some(known) = known.newer.get_mut(&identity) {
            *known = ended.clone();
            return Ok(());
        }
        // It has ended again: it is as new as any.
        known.older.remove(&identity);
        self.make_room();
        let half = self.most.div_ceil(2);
        self.bucket(bucket)?.add(identity, ended.clone(), half);
        Ok(())
    }

    fn bucket(&mut self, bucket: u8) -> Result<&mut EndedBucket, BrokenContract> {
        self.buckets.get_mut(usize::from(bucket)).ok_or_else(|| no_bucket(bucket))
    }

    /// Empties the oldest table that is not empty, if there is no room for one more item.
    fn make_room(&mut self) {
        let kept: usize = self.buckets.iter().map(EndedBucket::len).sum();
        if kept < self.most {
            return;
        }
        let filled = self.buckets.iter_mut().filter(|bucket| bucket.len() > 0);
        if let Some(oldest) = filled.min_by_key(|bucket| bucket.begun) {
            oldest.forget_oldest();
        }
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(
                kept,
                "no room to remember more ended items: repeats are recognised for a shorter time than \
                 `dedupe_tail`; raise `limits.memory`, or keep the store on the disk"
            );
        }
    }

    fn find(&self, wanted: &Wanted) -> Result<Found, BrokenContract> {
        let mut found = Found::default();
        for bucket in &wanted.buckets {
            let known = self.buckets.get(usize::from(*bucket)).ok_or_else(|| no_bucket(*bucket))?;
            if let Some(ended) = known.find(&wanted.identity) {
                found.ended = Some(ended.clone());
                break;
            }
        }
        Ok(found)
    }
}

fn no_bucket(bucket: u8) -> BrokenContract {
    broken_contract(format!("there is no bucket {bucket} of ended items"))
}

impl Store for MemoryStore {
    fn commit(&mut self, groups: &[CommitGroup]) -> Result<(), CommitError> {
        Ok(groups.iter().flat_map(|group| &group.ops).try_for_each(|op| self.apply(op))?)
    }

    fn load(&mut self, load: &Load) -> Result<Loaded, ReadError> {
        Ok(match load {
            Load::Ranges { ranges, .. } => {
                let none = |queue| RangeRows { queue, rows: Vec::new(), next: None };
                Loaded::Ranges(ranges.iter().map(|range| none(range.queue.clone())).collect())
            }
            Load::Find(wanted) => {
                Loaded::Found(wanted.iter().map(|wanted| self.find(wanted)).collect::<Result<_, _>>()?)
            }
            Load::Scan(scan) => Loaded::Scanned { number: scan.number, rows: Vec::new(), next: None },
            Load::Contents(wanted) => match wanted.first() {
                None => Loaded::Contents(Vec::new()),
                Some((_, place)) => return Err(ReadError::Missing { place: place.clone() }),
            },
        })
    }

    fn usage(&self) -> Result<Usage, UsageError> {
        Ok(Usage { used: 0, free: u64::MAX, total: u64::MAX })
    }

    fn close(self: Box<Self>) -> Result<(), CloseError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::event::{BucketRow, Marks, QueueRow};
    use tidegate_types::End;
    use tidegate_types::Key;

    fn commit(store: &mut MemoryStore, ops: Vec<Op>) {
        store.commit(&[CommitGroup { ops, token: 1, marks: Marks::default(), hurried: false }]).unwrap();
    }

    fn remember(bucket: u8, seq: u64, at: u64) -> Op {
        let ended = Ended { end: End::Cancelled, at, due: 5, attempts: 0, fingerprint: 0, customer: None };
        Op::Remember { bucket, identity: Identity::assigned(seq), ended: Box::new(ended) }
    }

    fn begin(bucket: u8) -> Op {
        Op::BeginBucket(BucketRow { bucket, from: 1 })
    }

    /// When the item ended, by the first of the buckets that contains it.
    fn at(store: &mut MemoryStore, seq: u64, buckets: &[u8]) -> Option<u64> {
        let identity = Identity::assigned(seq);
        let wanted = Wanted { identity, application: "app".into(), key: None, buckets: buckets.to_vec() };
        match store.load(&Load::Find(vec![wanted])).unwrap() {
            Loaded::Found(found) => found[0].ended.as_ref().map(|ended| ended.at),
            other @ (Loaded::Ranges(_) | Loaded::Contents(_) | Loaded::Scanned { .. }) => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_ended_is_found_until_its_bucket_begins_anew() {
        let mut store = MemoryStore::new(10);
        commit(&mut store, vec![begin(0), remember(0, 1, 10), remember(0, 1, 11), remember(0, 2, 12)]);
        commit(&mut store, vec![begin(1), remember(1, 1, 20)]);
        assert_eq!(at(&mut store, 1, &[1, 0]), Some(20));
        assert_eq!(at(&mut store, 1, &[0, 1]), Some(11));
        assert_eq!((at(&mut store, 2, &[1]), at(&mut store, 3, &[1, 0])), (None, None));
        // In order: entries from before the beginning go, later ones stay.
        commit(&mut store, vec![remember(0, 3, 30), begin(0), remember(0, 4, 40)]);
        assert_eq!((at(&mut store, 2, &[0]), at(&mut store, 3, &[0])), (None, None));
        assert_eq!(at(&mut store, 4, &[1, 0]), Some(40));
    }

    #[test]
    fn the_oldest_bucket_goes_when_there_is_no_room() {
        let mut store = MemoryStore::new(4);
        commit(&mut store, vec![begin(5), remember(5, 1, 1), remember(5, 2, 2), begin(0), remember(0, 3, 3)]);
        commit(&mut store, vec![remember(0, 4, 4)]);
        // A known item takes no additional room.
        commit(&mut store, vec![remember(0, 4, 4)]);
        assert!(!store.warned);
        commit(&mut store, vec![remember(0, 5, 5)]);
        assert!(store.warned);
        assert_eq!((at(&mut store, 1, &[5]), at(&mut store, 2, &[5])), (None, None));
        let left: Vec<_> = (3..6).filter_map(|seq| at(&mut store, seq, &[0, 5])).collect();
        assert_eq!(left, vec![3, 4, 5]);
        // A single bucket is bounded as well, and forgets its older half.
        commit(&mut store, vec![remember(0, 6, 6), remember(0, 7, 7)]);
        let left: Vec<_> = (3..8).filter_map(|seq| at(&mut store, seq, &[0])).collect();
        assert_eq!(left, vec![5, 6, 7]);
    }

    /// Excluded: an end that is forgotten while older ones stay, or at once; more ends than may be kept.
    #[test]
    fn the_newest_ends_stay_however_many_come() {
        for most in [4, 5] {
            let mut store = MemoryStore::new(most);
            commit(&mut store, vec![begin(0)]);
            for seq in 1..50 {
                commit(&mut store, vec![remember(0, seq, seq)]);
                let left: Vec<_> = (1..=seq).filter_map(|seq| at(&mut store, seq, &[0])).collect();
                let newest: Vec<_> = (1..=seq).skip(seq as usize - left.len()).collect();
                assert_eq!(left, newest);
                assert!(left.len() <= most && left.len() >= most.div_ceil(2).min(seq as usize), "{left:?}");
            }
        }
    }

    /// Excluded: an id that has ended again, and goes with those that ended when it did first.
    #[test]
    fn an_end_is_as_old_as_the_last_of_its_id() {
        let mut store = MemoryStore::new(4);
        let ends: Vec<Op> = [1, 2, 3, 1, 4, 5].into_iter().map(|seq| remember(0, seq, seq)).collect();
        commit(&mut store, vec![begin(0)]);
        commit(&mut store, ends);
        let left: Vec<_> = (1..=5).filter_map(|seq| at(&mut store, seq, &[0])).collect();
        assert_eq!(left, [1, 3, 4, 5]);
    }

    #[test]
    #[should_panic(expected = "there is no bucket 8")]
    fn a_bucket_too_many_is_refused() {
        commit(&mut MemoryStore::new(4), vec![begin(BUCKETS)]);
    }

    #[test]
    #[should_panic(expected = "given something to keep")]
    fn items_and_queues_are_not_for_this_store() {
        let low = Key::default();
        let row = QueueRow {
            queue: "a".into(),
            count: 0,
            low,
            paused: Some(1_000),
            unindexed_until: 0,
            slowed: None,
        };
        commit(&mut MemoryStore::new(4), vec![Op::PutQueue(row)]);
    }
}
