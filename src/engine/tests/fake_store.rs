//! A store of sorted maps, which checks what it is told to do.

use crate::engine::event::*;
use crate::engine::types::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a real store does, over sorted maps. A job that has been executed is durable.
#[derive(Clone, Default)]
pub(in crate::engine) struct FakeStore {
    pub(in crate::engine) time: BTreeMap<Key, Stored>,
    pub(in crate::engine) lanes: BTreeMap<(Arc<str>, Key), Stored>,
    pub(super) index: BTreeSet<(Arc<str>, Arc<str>, Key)>,
    pub(super) identities: BTreeMap<Identity, Key>,
    pub(super) ended: BTreeMap<(u8, Identity), Ended>,
    pub(super) buckets: BTreeMap<u8, u64>,
    pub(super) windows: BTreeMap<(Arc<str>, Arc<str>), WindowRow>,
    pub(super) lane_rows: BTreeMap<Arc<str>, LaneRow>,
    pub(in crate::engine) counts: BTreeMap<Arc<str>, u64>,
    pub(super) paused: BTreeSet<Arc<str>>,
    marks: Marks,
}

impl FakeStore {
    pub(super) fn apply(&mut self, ops: Vec<Op>, marks: Marks) {
        for op in ops {
            self.apply_one(op);
        }
        self.marks = marks;
        self.check_counts();
        assert_eq!(marks.waiting, self.time.len() as u64, "the mark counts the time index");
        if let Some(first) = self.time.keys().next() {
            assert!(marks.low <= *first, "low mark {:?} above the first row {first:?}", marks.low);
        }
    }

    /// Every commit leaves exact numbers behind.
    fn check_counts(&self) {
        let mut counts: BTreeMap<Arc<str>, u64> = BTreeMap::new();
        for item in self.time.values().chain(self.lanes.values()) {
            let name = if item.dead.is_some() { "".into() } else { item.application.clone() };
            *counts.entry(name).or_default() += 1;
        }
        assert_eq!(self.counts, counts, "numbers by application");
    }

    fn apply_one(&mut self, op: Op) {
        match op {
            Op::Put { place, item, indexed } => {
                assert!(item.content.is_some(), "a write carries its payload");
                assert!(
                    indexed.customer.is_none() || place == Place::Time,
                    "lanes are not indexed by customer"
                );
                self.add_index(item.key, indexed);
                let before = match place {
                    Place::Time => self.time.insert(item.key, *item),
                    Place::Lane(lane) => self.lanes.insert((lane, item.key), *item),
                };
                assert!(before.is_none(), "written twice");
            }
            Op::Delete { place, key, indexed } => {
                self.remove_index(key, indexed);
                let gone = match place {
                    Place::Time => self.time.remove(&key),
                    Place::Lane(lane) => self.lanes.remove(&(lane, key)),
                };
                assert!(gone.is_some(), "deleted what was not there: {key:?}");
                let left = self.identities.iter().find(|(_, at)| **at == key);
                assert!(left.is_none(), "left behind: {left:?} of {:?}", gone);
            }
            Op::Index { key, indexed } => self.add_index(key, indexed),
            Op::Park { from, key, indexed, identity, lane, attempts, last_error, dead } => {
                self.remove_index(key, indexed);
                self.add_index(key, Indexed { identity, customer: None });
                let mut item = match from {
                    Place::Time => self.time.remove(&key),
                    Place::Lane(lane) => self.lanes.remove(&(lane, key)),
                }
                .expect("parked what is there");
                item.attempts = attempts;
                item.last_error = last_error;
                item.dead = dead;
                self.lanes.insert((lane, key), item);
            }
            Op::Remember { bucket, identity, ended } => {
                assert!(identity.is_given(), "only ids that producers gave are remembered");
                assert!(self.buckets.contains_key(&bucket), "the bucket was begun");
                self.ended.insert((bucket, identity), *ended);
            }
            Op::BeginBucket(row) => {
                self.ended.retain(|(bucket, _), _| *bucket != row.bucket);
                self.buckets.insert(row.bucket, row.from);
            }
            Op::PutWindow(row) => {
                self.windows.insert((row.application.clone(), row.customer.clone()), row);
            }
            Op::DeleteWindow { application, customer } => {
                self.windows.remove(&(application, customer));
            }
            Op::PutApp(row) => {
                if row.paused {
                    self.paused.insert(row.application.clone());
                } else {
                    self.paused.remove(&row.application);
                }
                if row.waiting == 0 {
                    self.counts.remove(&row.application);
                } else {
                    self.counts.insert(row.application, row.waiting);
                }
            }
            Op::PutLane(row) if row.count == 0 => {
                self.lane_rows.remove(&row.lane);
            }
            Op::PutLane(row) => {
                self.lane_rows.insert(row.lane.clone(), row);
            }
        }
    }

    fn add_index(&mut self, key: Key, indexed: Indexed) {
        if let Some((application, customer)) = indexed.customer {
            self.index.insert((application, customer, key));
        }
        if let Some(identity) = indexed.identity {
            let before = self.identities.insert(identity, key);
            assert!(
                before.is_none_or(|before| before == key),
                "two items of one identity: {before:?} {key:?}"
            );
        }
    }

    fn remove_index(&mut self, key: Key, indexed: Indexed) {
        if let Some((application, customer)) = indexed.customer {
            self.index.remove(&(application, customer, key));
        }
        if let Some(identity) = indexed.identity {
            let there = self.identities.remove(&identity);
            assert!(
                there.is_none_or(|there| there == key),
                "removed another item's identity: {there:?} {key:?}"
            );
        }
    }

    fn find(&self, wanted: &Wanted) -> Found {
        let item = self.identities.get(&wanted.identity).map(|key| {
            let lane = (wanted.application.clone(), *key);
            let (place, item) = match self.time.get(key) {
                Some(item) => (Place::Time, item),
                None => {
                    (Place::Lane(lane.0.clone()), self.lanes.get(&lane).expect("where its identity leads"))
                }
            };
            (place, Stored { content: None, ..item.clone() })
        });
        let ended = wanted.buckets.iter().find_map(|bucket| self.ended.get(&(*bucket, wanted.identity)));
        Found { item, ended: ended.cloned() }
    }

    fn walk(&self, walk: &Walk, most: usize) -> Loaded {
        let time = self.time.iter().map(|(key, item)| (*key, Place::Time, item));
        let lanes = self.lanes.iter().map(|((lane, key), item)| (*key, Place::Lane(lane.clone()), item));
        let mut rows: Vec<(Key, Place, &Stored)> = match walk.along {
            Along::All => time.chain(lanes).collect(),
            Along::Lane => lanes.collect(),
            Along::Customer => time
                .filter(|(key, _, item)| {
                    let customer = item.customer.clone().unwrap_or_default();
                    self.index.contains(&(item.application.clone(), customer, *key))
                })
                .collect(),
        };
        let takes = |wanted: &Option<Arc<str>>, found: Option<&Arc<str>>| {
            wanted.as_ref().is_none_or(|wanted| Some(wanted) == found)
        };
        rows.retain(|(key, _, item)| {
            *key >= walk.from
                && key.due < walk.until
                && item.dead.is_none()
                && takes(&walk.application, Some(&item.application))
                && takes(&walk.customer, item.customer.as_ref())
        });
        rows.sort_by_key(|(key, ..)| *key);
        let max = walk.max_rows.min(most);
        let next = rows.get(max).map(|(key, ..)| *key);
        let rows = rows.into_iter().take(max).map(|(_, place, item)| (place, item.clone())).collect();
        Loaded::Walked { number: walk.number, rows, next }
    }

    /// Executes a read, bringing at most `most` rows, as a store may that serves a large read in pieces.
    pub(super) fn load(&self, load: Load, most: usize) -> Loaded {
        match load {
            Load::Time { from, until, max_rows, max_bytes } => {
                let range = self.time.range(from..Key { due: until, seq: 0 });
                let (rows, next) = cut(range.map(|(k, v)| (*k, v)), max_rows.min(most), max_bytes);
                Loaded::Time { rows, next }
            }
            Load::Lane { lane, from, max_rows, max_bytes } => {
                let range =
                    self.lanes.range((lane.clone(), from)..).take_while(|((name, _), _)| *name == lane);
                let (rows, next) = cut(range.map(|((_, k), v)| (*k, v)), max_rows.min(most), max_bytes);
                Loaded::Lane { lane, rows, next }
            }
            Load::Group { application, customer, from, max_rows } => {
                let range = self
                    .index
                    .range((application.clone(), customer.clone(), from)..)
                    .take_while(|(a, c, _)| *a == application && *c == customer)
                    .filter_map(|(.., k)| self.time.get(k).map(|v| (*k, v)));
                let (rows, next) = cut(range, max_rows.min(most), 0);
                Loaded::Group { application, customer, rows, next }
            }
            Load::Find(wanted) => Loaded::Found(wanted.iter().map(|wanted| self.find(wanted)).collect()),
            Load::Walk(walk) => self.walk(&walk, most),
            Load::Contents(wanted) => {
                Loaded::Contents(self.contents(&wanted).expect("asked for what is there"))
            }
        }
    }

    /// Contents, if all are there.
    pub(super) fn contents(&self, wanted: &[(u64, Place, Key)]) -> Option<Vec<(u64, Arc<Content>)>> {
        wanted
            .iter()
            .map(|(handle, place, key)| {
                let item = match place {
                    Place::Time => self.time.get(key),
                    Place::Lane(lane) => self.lanes.get(&(lane.clone(), *key)),
                };
                Some((*handle, item?.content.clone().expect("has content")))
            })
            .collect()
    }

    pub(super) fn opened(&self) -> Opened {
        Opened {
            marks: self.marks,
            windows: self.windows.values().cloned().collect(),
            lanes: self.lane_rows.values().cloned().collect(),
            applications: self
                .counts
                .keys()
                .chain(&self.paused)
                .collect::<BTreeSet<_>>()
                .into_iter()
                .map(|application| AppRow {
                    application: application.clone(),
                    waiting: self.counts.get(application).copied().unwrap_or(0),
                    paused: self.paused.contains(application),
                })
                .collect(),
            buckets: self
                .buckets
                .iter()
                .map(|(bucket, from)| BucketRow { bucket: *bucket, from: *from })
                .collect(),
        }
    }
}

fn cut<'a>(
    rows: impl Iterator<Item = (Key, &'a Stored)>,
    max_rows: usize,
    max_bytes: u64,
) -> (Vec<Stored>, Option<Key>) {
    let (mut out, mut bytes) = (Vec::new(), 0);
    for (key, row) in rows {
        if out.len() == max_rows {
            return (out, Some(key));
        }
        let mut row = row.clone();
        bytes += row.content.as_ref().map_or(0, |c| c.size());
        if bytes > max_bytes {
            row.content = None;
        }
        out.push(row);
    }
    (out, None)
}
