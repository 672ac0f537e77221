//! The whole store against a naive one of ordered maps: random operations, in random groups, with restarts
//! between them, and every kind of read after each commit.

#![expect(clippy::wildcard_enum_match_arm, reason = "another answer fails the test")]

use super::tests::{given, group, item, open_at, put_item, range};
use super::*;
use crate::engine::event::{
    Along, BucketRow, ClosingRow, Found, IndexRows, QueueRow, RangeRows, RekeyMembers, Scan, Standing,
    Stored, Wanted, WindowRow, DEAD_LETTERS,
};
use crate::engine::types::{ClosedBy, Dead, End, Ended, Identity, Key, Reason};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

const QUEUES: [&str; 3] = ["a", "ab", "b"];
const CUSTOMERS: [&str; 2] = ["x", "y"];

/// What a store holds, in maps.
#[derive(Clone, Debug, Default)]
struct Model {
    items: BTreeMap<(Arc<str>, Key), Stored>,
    identities: BTreeMap<Identity, Key>,
    customers: BTreeMap<(Arc<str>, Arc<str>, Key), ()>,
    queues: BTreeMap<Arc<str>, QueueRow>,
    windows: BTreeMap<(Arc<str>, Arc<str>), WindowRow>,
    closings: BTreeMap<(Arc<str>, Arc<str>, u64, u64), ClosingRow>,
    buckets: BTreeMap<u8, (u64, BTreeMap<Identity, Ended>)>,
    next_seq: u64,
}

impl Model {
    fn index(&mut self, key: Key, rows: &IndexRows) {
        if let Some(identity) = rows.identity {
            self.identities.insert(identity, key);
        }
        if let Some((application, customer)) = &rows.customer {
            self.customers.insert((application.clone(), customer.clone(), key), ());
        }
    }

    fn unindex(&mut self, key: Key, rows: &IndexRows) {
        if let Some(identity) = rows.identity {
            self.identities.remove(&identity);
        }
        if let Some((application, customer)) = &rows.customer {
            self.customers.remove(&(application.clone(), customer.clone(), key));
        }
    }

    fn rekey(&mut self, queue: &Arc<str>, end: u64, window: &RekeyMembers, indexed: bool) {
        let members: Vec<Stored> = self.items.values().cloned().collect();
        for item in members {
            let row = (queue.clone(), window.customer.clone(), item.key);
            let wanted = item.queue() == &**queue
                && item.is_windowed()
                && item.customer.as_ref() == Some(&window.customer)
                && item.key.due == end
                && item.key.seq <= window.through_seq
                && !window.except.contains(&item.key.seq);
            if wanted && (!indexed || self.customers.contains_key(&row)) {
                let key = Key { due: window.due, seq: item.key.seq };
                self.items.remove(&(queue.clone(), item.key));
                self.customers.remove(&row);
                let customer = Some((queue.clone(), window.customer.clone()));
                self.index(key, &IndexRows { identity: Some(item.identity()), customer });
                let moved = Stored { key, closed_by: window.cause, ..item };
                self.items.insert((queue.clone(), key), moved);
            }
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Put { item, indexed } => {
                self.items.insert((item.queue().into(), item.key), Stored::clone(item));
                if item.dead.is_none() {
                    let customer = item.customer.clone().filter(|_| *indexed);
                    let customer = customer.map(|customer| (item.application.clone(), customer));
                    self.index(item.key, &IndexRows { identity: item.given, customer });
                }
            }
            Op::Delete { place, rows } => {
                self.items.remove(&(place.queue.clone(), place.key));
                self.unindex(place.key, rows);
            }
            Op::Index { key, rows } => self.index(*key, rows),
            Op::Move { from, to, removed, written, standing } => {
                let item = self.items.remove(&(from.queue.clone(), from.key)).unwrap();
                let Standing { attempts, last_error, outcome_unknown, own_time, closed_by, dead } =
                    Standing::clone(standing);
                let known =
                    Stored { attempts, last_error, outcome_unknown, own_time, closed_by, dead, ..item };
                let item = Stored { key: to.key, ..known };
                self.items.insert((to.queue.clone(), to.key), item);
                self.unindex(from.key, removed);
                self.index(to.key, written);
            }
            Op::Rekey { queue, end, members, indexed } => {
                members.iter().for_each(|window| self.rekey(queue, *end, window, *indexed));
            }
            Op::PutQueue(row) if row.count == 0 && !row.paused => drop(self.queues.remove(&row.queue)),
            Op::PutQueue(row) => drop(self.queues.insert(row.queue.clone(), row.clone())),
            Op::PutWindow(row) => {
                self.windows.insert((row.application.clone(), row.customer.clone()), row.clone());
            }
            Op::DeleteWindow { application, customer } => {
                self.windows.remove(&(application.clone(), customer.clone()));
            }
            Op::PutClosing(row) => {
                let key = (row.application.clone(), row.customer.clone(), row.end, row.through_seq);
                self.closings.insert(key, row.clone());
            }
            Op::DeleteClosing { application, customer, end, through_seq } => {
                self.closings.remove(&(application.clone(), customer.clone(), *end, *through_seq));
            }
            Op::Remember { bucket, identity, ended } => {
                let bucket = self.buckets.entry(*bucket).or_default();
                bucket.1.insert(*identity, Ended::clone(ended));
            }
            Op::BeginBucket(row) => drop(self.buckets.insert(row.bucket, (row.from, BTreeMap::new()))),
        }
    }

    /// What a start must find, whatever the order of the rows.
    fn judge_opened(&self, opened: &Opened) {
        let Opened { mut queues, mut windows, mut closings, .. } = opened.clone();
        queues.sort_by_key(|row| row.queue.clone());
        windows.sort_by_key(|row| (row.application.clone(), row.customer.clone()));
        closings.sort_by_key(|row| (row.application.clone(), row.customer.clone(), row.end, row.through_seq));
        assert_eq!(queues, self.queues.values().cloned().collect::<Vec<_>>());
        assert_eq!(windows, self.windows.values().cloned().collect::<Vec<_>>());
        assert_eq!(closings, self.closings.values().cloned().collect::<Vec<_>>());
        let buckets =
            self.buckets.iter().map(|(bucket, (from, _))| BucketRow { bucket: *bucket, from: *from });
        let mut buckets: Vec<BucketRow> = buckets.collect();
        buckets.sort_by_key(|row| row.from);
        assert_eq!(opened.buckets, buckets);
        assert_eq!(opened.marks.next_seq, self.next_seq);
    }

    fn of_queue(&self, queue: &str, from: Key, until: u64) -> Vec<Stored> {
        let of = |((name, key), _): &(&(Arc<str>, Key), &Stored)| {
            **name == *queue && *key >= from && key.due < until
        };
        self.items.iter().filter(of).map(|(_, item)| item.clone()).collect()
    }

    /// Everything that can be read is what the maps say.
    fn judge(&self, store: &mut dyn Store, from: Key, until: u64, max_rows: usize) {
        let names = || QUEUES.into_iter().chain([DEAD_LETTERS]);
        let ranges = names().map(|queue| range(queue, from, until, max_rows)).collect();
        let expected = names().map(|queue| {
            let all = self.of_queue(queue, from, until);
            let next = all.get(max_rows).map(|item| item.key);
            RangeRows { queue: queue.into(), rows: all.into_iter().take(max_rows).collect(), next }
        });
        let read = store.load(&Load::Ranges { ranges, max_rows: usize::MAX, max_bytes: u64::MAX }).unwrap();
        assert_eq!(read, Loaded::Ranges(expected.collect()));
        for queue in names() {
            self.judge_scan(store, Along::Queue(queue.into()), (from, until, max_rows));
            for customer in CUSTOMERS {
                let along = Along::Customer(queue.into(), customer.into());
                self.judge_scan(store, along, (from, until, max_rows));
            }
        }
        let places =
            self.items.keys().map(|(queue, key)| (key.seq, Place { queue: queue.clone(), key: *key }));
        let contents = self.items.iter().map(|((_, key), item)| (key.seq, item.content.clone().unwrap()));
        let (places, contents): (Vec<_>, Vec<_>) = (places.collect(), contents.collect());
        assert_eq!(store.reader().unwrap().contents(&places).unwrap(), Some(contents.clone()));
        assert_eq!(store.load(&Load::Contents(places)).unwrap(), Loaded::Contents(contents));
        self.judge_finds(store);
    }

    fn judge_scan(&self, store: &mut dyn Store, along: Along, (from, until, max_rows): (Key, u64, usize)) {
        let mut expected = match &along {
            Along::Queue(queue) => self.of_queue(queue, from, until),
            Along::Customer(application, customer) => {
                let rows = self.customers.keys().filter(|(a, c, _)| a == application && c == customer);
                let items = rows.map(|(a, _, key)| self.items[&(a.clone(), *key)].clone());
                items.filter(|item| item.key >= from && item.key.due < until).collect()
            }
        };
        expected.iter_mut().for_each(|item| item.content = None);
        let next = expected.get(max_rows).map(|item| item.key);
        expected.truncate(max_rows);
        let scan = Scan {
            number: 3,
            along,
            from,
            until,
            customer: None,
            max_rows,
            max_looked_at: usize::MAX,
            properties: false,
        };
        let read = store.load(&Load::Scan(scan)).unwrap();
        assert_eq!(read, Loaded::Scanned { number: 3, rows: expected, next });
    }

    /// Each item by its identity, and each id that was ever given in each queue.
    fn judge_finds(&self, store: &mut dyn Store) {
        for item in self.items.values().filter(|item| item.dead.is_none()) {
            let buckets: Vec<u8> = self.buckets.keys().copied().collect();
            let ended =
                buckets.iter().find_map(|bucket| self.buckets[bucket].1.get(&item.identity()).cloned());
            let (application, key) = (item.application.clone(), Some(item.key));
            let wanted = Wanted { identity: item.identity(), application, key, buckets };
            let expected = Found { item: Some(Stored { content: None, ..item.clone() }), ended };
            assert_eq!(store.load(&Load::Find(vec![wanted])).unwrap(), Loaded::Found(vec![expected]));
        }
        for n in 0..40 {
            let identity = given(n);
            if self.identities.contains_key(&identity) {
                continue;
            }
            let wanted = |queue: &&str| Wanted {
                identity,
                application: (*queue).into(),
                key: None,
                buckets: vec![0, 1],
            };
            let ended = [0, 1].into_iter().find_map(|b| self.buckets.get(&b)?.1.get(&identity).cloned());
            match store.load(&Load::Find(QUEUES.iter().map(wanted).collect())).unwrap() {
                Loaded::Found(found) => assert_eq!(found, vec![Found { item: None, ended }; QUEUES.len()]),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// One step, as numbers: what they mean depends on what is there.
type Dice = (u8, u8, u8, u8, bool);

/// The operation that these numbers mean in this state: always one that the engine may ask for.
fn op(model: &Model, seq: u64, (kind, a, b, c, flag): Dice) -> Op {
    let due = u64::from(c % 8);
    let (queue, customer) = (QUEUES[usize::from(a) % 3].into(), CUSTOMERS[usize::from(b) % 2].into());
    let chosen = model.items.values().nth(usize::from(a) % model.items.len().max(1));
    let rows_of = |item: &Stored| {
        let row = |customer: &Arc<str>| (item.application.clone(), customer.clone());
        let identity = model.identities.get(&item.identity()).is_some_and(|key| *key == item.key);
        let indexed = |row: &(Arc<str>, Arc<str>)| {
            model.customers.contains_key(&(row.0.clone(), row.1.clone(), item.key))
        };
        let (waits, customer) = (item.dead.is_none(), item.customer.as_ref().map(row));
        IndexRows {
            identity: Some(item.identity()).filter(|_| waits && identity),
            customer: customer.filter(|row| waits && indexed(row)),
        }
    };
    match (kind % 16, chosen) {
        (8 | 9, Some(item)) => {
            Op::Delete { place: Place { queue: item.queue().into(), key: item.key }, rows: rows_of(item) }
        }
        (10 | 11, Some(item)) => transfer(item, rows_of(item), due, flag),
        (12, _) => {
            let window = |customer: &str, through_seq, due| RekeyMembers {
                customer: customer.into(),
                through_seq,
                due,
                cause: ClosedBy::Quiet,
                except: vec![u64::from(b) / 2, u64::from(b) / 2 + 3],
            };
            let members = vec![
                window(CUSTOMERS[0], seq.saturating_sub(u64::from(b) % 8), 20 + due),
                window(CUSTOMERS[1], seq, 30 + due),
                window(CUSTOMERS[0], seq, 40),
            ];
            Op::Rekey { queue, end: due, members, indexed: flag }
        }
        (13, Some(item)) if item.dead.is_none() => {
            let customer = item.customer.clone().map(|customer| (item.application.clone(), customer));
            Op::Index { key: item.key, rows: IndexRows { identity: Some(item.identity()), customer } }
        }
        (14, _) => small_row(queue, customer, seq, (a, b, due, flag)),
        (15, _) if b % 4 == 0 => Op::BeginBucket(BucketRow { bucket: a % 2, from: seq }),
        (15, _) => {
            let ended = Ended {
                end: End::Cancelled,
                at: seq,
                due,
                attempts: b.into(),
                fingerprint: c.into(),
                customer: None,
            };
            // Only a bucket that has begun.
            match model.buckets.keys().nth(usize::from(a) % 2) {
                Some(bucket) => {
                    Op::Remember { bucket: *bucket, identity: given(b % 40), ended: Box::new(ended) }
                }
                None => Op::BeginBucket(BucketRow { bucket: 1, from: seq }),
            }
        }
        _ => {
            let named = Some(given(b % 40)).filter(|id| flag && !model.identities.contains_key(id));
            let item = Stored {
                key: Key { due, seq },
                accepted_due: due,
                application: queue,
                customer: (c % 5 > 0).then_some(customer),
                given: named,
                fingerprint: named.map_or(0, |_| u64::from(c)),
                own_time: c % 3 == 0,
                ..item(due, seq)
            };
            put_item(item, a % 2 == 0)
        }
    }
}

/// To another moment, with a failed attempt, or to the dead letters.
fn transfer(item: &Stored, removed: IndexRows, due: u64, dead: bool) -> Op {
    let from = Place { queue: item.queue().into(), key: item.key };
    let key = Key { due: due + 10, seq: item.key.seq };
    let standing = Standing {
        attempts: item.attempts + 1,
        last_error: Some("no queue".into()),
        outcome_unknown: due.is_multiple_of(2),
        own_time: true,
        closed_by: ClosedBy::Flush,
        dead: item.dead.clone(),
    };
    if dead || item.dead.is_some() {
        let verdict = Dead { reason: Reason::Attempts, error: "too often".into() };
        let standing = Standing { dead: Some(Arc::new(verdict)), ..standing };
        let (to, written) = (Place { queue: DEAD_LETTERS.into(), key }, IndexRows::default());
        return Op::Move { from, to, removed, written, standing: Box::new(standing) };
    }
    let customer = item.customer.clone().map(|customer| (item.application.clone(), customer));
    let written = IndexRows { identity: Some(item.identity()), customer };
    let to = Place { key, ..from.clone() };
    Op::Move { from, to, removed, written, standing: Box::new(standing) }
}

fn small_row(queue: Arc<str>, customer: Arc<str>, seq: u64, (a, b, due, flag): (u8, u8, u64, bool)) -> Op {
    let (end, through_seq) = (due, u64::from(b % 3));
    match a % 5 {
        0 => {
            let (count, low) = (u64::from(b % 3), Key { due, seq });
            Op::PutQueue(QueueRow { queue, count, low, paused: flag, unindexed_until: due })
        }
        1 => {
            let (count, weight, expiry) = (b.into(), seq, flag.then_some(due));
            Op::PutWindow(WindowRow { application: queue, customer, end, count, weight, expiry })
        }
        2 => Op::DeleteWindow { application: queue, customer },
        3 => {
            let cause = ClosedBy::Bytes;
            Op::PutClosing(ClosingRow { application: queue, customer, end, through_seq, due: seq, cause })
        }
        _ => Op::DeleteClosing { application: queue, customer, end, through_seq },
    }
}

/// Groups of one call of commit, and what is read behind it: first key, end, most rows; and whether the store
/// is opened anew.
type Step = (Vec<Vec<Dice>>, (u8, u8, u8), bool);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let group = vec(any::<Dice>(), 0..12);
    let step = (vec(group, 1..4), any::<(u8, u8, u8)>(), proptest::bool::weighted(0.2));
    vec(step, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn a_store_is_what_ordered_maps_are(steps in steps()) {
        let dir = tempfile::tempdir().unwrap();
        let mut store = open_at(dir.path()).store;
        let mut model = Model::default();
        let mut seq = 0;
        for (groups, (from, until, max_rows), reopen) in steps {
            let mut commits = Vec::new();
            for dice in groups {
                let mut ops = Vec::new();
                for dice in dice {
                    seq += 1;
                    let op = op(&model, seq, dice);
                    model.apply(&op);
                    ops.push(op);
                }
                model.next_seq = seq + 1;
                commits.push(group(seq, ops));
            }
            store.commit(&commits).unwrap();
            if reopen {
                drop(store);
                let opened = open_at(dir.path());
                model.judge_opened(&opened.opened);
                store = opened.store;
            }
            let (from, until) = (Key { due: (from % 12).into(), seq: 0 }, u64::from(until % 64));
            model.judge(&mut *store, Key::default(), u64::MAX, usize::MAX);
            model.judge(&mut *store, from, until, usize::from(max_rows % 5));
        }
        store.close().unwrap();
        model.judge_opened(&open_at(dir.path()).opened);
    }
}
