//! Compares the whole store with a simple model of ordered maps, the one of the engine's tests: random
//! operations in random groups, with restarts between them, and every kind of read after each commit.

use super::beside_tests::compared;
use super::ground::GroundKind;
use super::tests::{given, item, put_item, range};
use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_fake_store::{FakeStore, Twin};
use tidegate_types::event::{
    Along, BucketRow, ClosingRow, IndexRows, QueueRow, Scan, Standing, Stored, Wanted, WindowRow,
    DEAD_LETTERS,
};
use tidegate_types::{ClosedBy, Dead, End, Ended, Identity, Key, Reason};

/// Number of arrival numbers that each commit leases; one step uses fewer.
const LEASE: u64 = 1 << 10;
const QUEUES: [&str; 3] = ["a", "ab", "b"];
const CUSTOMERS: [&str; 2] = ["x", "y"];

/// Store and model answer or refuse every read alike, including look-ups that lead astray.
fn compare(store: &mut Twin, model: &mut FakeStore, from: Key, until: u64, most: (usize, usize)) {
    let names = || QUEUES.into_iter().chain([DEAD_LETTERS]);
    let ranges = names().map(|queue| range(queue, from, until, most.0)).collect();
    store.load(&Load::Ranges { ranges, max_rows: most.1, max_bytes: u64::MAX }, model);
    for queue in names() {
        let customers = CUSTOMERS.map(|customer| Along::Customer(queue.into(), customer.into()));
        for along in customers.into_iter().chain([Along::Queue(queue.into())]) {
            for (customer, properties) in [(None, false), (Some(CUSTOMERS[0].into()), true)] {
                let (number, max_rows, max_looked_at) = (3, most.0, most.1);
                let along = along.clone();
                let scan = Scan { number, along, from, until, customer, max_rows, max_looked_at, properties };
                store.load(&Load::Scan(scan), model);
            }
        }
    }
    let places: Vec<(u64, Place)> =
        model.items.keys().map(|(queue, key)| (key.seq, Place { queue: queue.clone(), key: *key })).collect();
    let beside = places.iter().map(|(seq, place)| {
        let key = Key::own(place.key.due + 1, place.key.seq);
        vec![(*seq, Place { key, ..place.clone() })]
    });
    for wanted in beside.take(3).chain([places.clone()]) {
        store.load(&Load::Contents(wanted), model);
    }
    compare_finds(store, model);
}

/// Looks up each item by its identity, and each id that may have been given, under every application: with
/// the key of its own item, with that of another, and without.
fn compare_finds(store: &mut Twin, model: &mut FakeStore) {
    let buckets: Vec<u8> = model.buckets.iter().map(|row| row.bucket).collect();
    let items = model.items.values().map(|item| (item.identity(), Some(item.key)));
    let mut asked: Vec<(Identity, Option<Key>)> = items.collect();
    let keys: Vec<Key> = asked.iter().filter_map(|(_, key)| *key).collect();
    asked.extend((0..40).map(|n| (given(n), keys.get(usize::from(n)).copied())));
    asked.extend(keys.iter().skip(1).zip(asked.clone()).map(|(key, (identity, _))| (identity, Some(*key))));
    for (identity, key) in asked {
        for (application, key) in QUEUES.into_iter().zip([key, key, None]) {
            let (application, buckets) = (application.into(), buckets.clone());
            store.load(&Load::Find(vec![Wanted { identity, application, key, buckets }]), model);
        }
    }
}

/// One operation as numbers, whose meaning depends on the state.
type Dice = (u8, u8, u8, u8, bool);

/// The operation that these numbers mean in this state: always one that the engine may request.
fn op(model: &FakeStore, seq: u64, (kind, a, b, c, flag): Dice) -> Op {
    let due = u64::from(c % 8);
    let (queue, customer) = (QUEUES[usize::from(a) % 3].into(), CUSTOMERS[usize::from(b) % 2].into());
    let chosen = model.items.values().nth(usize::from(a) % model.items.len().max(1));
    let rows_of = |item: &Stored| {
        let row = |customer: &Arc<str>| (item.application.clone(), customer.clone());
        let identity = model.identities.get(&item.identity()).is_some_and(|place| place.key == item.key);
        let indexed =
            |row: &(Arc<str>, Arc<str>)| model.customers.contains(&(row.0.clone(), row.1.clone(), item.key));
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
        (12, Some(item)) if item.is_windowed() && item.key.due > 0 => {
            let closed = ClosingRow {
                application: item.application.clone(),
                end: item.key.due,
                window: item.key.window,
                due: due.min(item.key.due - 1),
                cause: ClosedBy::Quiet,
            };
            Op::Close(closed)
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
            // Only in a bucket that has begun.
            match model.buckets.get(usize::from(a) % 2) {
                Some(row) => {
                    Op::Remember { bucket: row.bucket, identity: given(b % 40), ended: Box::new(ended) }
                }
                None => Op::BeginBucket(BucketRow { bucket: 1, from: seq }),
            }
        }
        _ => {
            let named = Some(given(b % 40)).filter(|id| flag && !model.identities.contains_key(id));
            let item = Stored {
                application: queue,
                customer: (c % 5 > 0).then_some(customer),
                given: named,
                fingerprint: named.map_or(0, |_| u64::from(c)),
                own_time: c % 3 == 0,
                ..item(due, seq)
            };
            // The item joins an existing window, or is the first of a new one.
            let joins = |other: &&Stored| {
                let same = other.application == item.application && other.customer == item.customer;
                same && other.is_windowed() && other.key.due == due && b % 8 > 0
            };
            let joined = model.items.values().filter(|_| item.is_windowed()).rfind(joins);
            let window = joined.map_or(seq, |other| other.key.window);
            let item = Stored { key: Key { due, window, seq }, ..item };
            let indexed = item.customer.is_some() && a % 2 == 0;
            put_item(item, indexed)
        }
    }
}

/// Moves an item to another due, with a failed attempt, or to the dead-letter queue.
fn transfer(item: &Stored, removed: IndexRows, due: u64, dead: bool) -> Op {
    let from = Place { queue: item.queue().into(), key: item.key };
    let key = Key { due: due + 10, ..item.key };
    let standing = Standing {
        attempts: item.attempts + 1,
        last_error: Some("no queue".into()),
        outcome_unknown: due.is_multiple_of(2),
        own_time: true,
        closed_by: ClosedBy::Flush,
        dead: item.dead.clone(),
        due: (dead && !due.is_multiple_of(3)).then_some(item.due),
    };
    if dead || item.dead.is_some() {
        let verdict = Dead { reason: Reason::Attempts, error: "too often".into() };
        let standing = Standing { dead: Some(Arc::new(verdict)), ..standing };
        let (to, written) = (Place { queue: DEAD_LETTERS.into(), key }, IndexRows::default());
        return Op::Move { from, to, removed, written, standing: Box::new(standing), weight: 0 };
    }
    let customer = item.customer.clone().map(|customer| (item.application.clone(), customer));
    let written = IndexRows { identity: Some(item.identity()), customer };
    let to = Place { key, ..from.clone() };
    Op::Move { from, to, removed, written, standing: Box::new(standing), weight: 0 }
}

fn small_row(queue: Arc<str>, customer: Arc<str>, seq: u64, (a, b, due, flag): (u8, u8, u64, bool)) -> Op {
    let (end, window) = (due, u64::from(b % 3));
    match a % 3 {
        0 => {
            let (count, low) = (u64::from(b % 3), Key::own(due, seq));
            Op::PutQueue(QueueRow {
                queue,
                count,
                low,
                paused: flag.then_some(due.max(2)),
                unindexed_until: due,
                slowed: None,
            })
        }
        1 => {
            let (count, weight, expiry) = (u32::from(b) + 1, seq, flag.then_some(due));
            Op::PutWindow(WindowRow { application: queue, customer, end, window, count, weight, expiry })
        }
        _ => Op::DeleteWindow { application: queue, customer },
    }
}

/// The groups of one call of commit; the read after it (first key, end, maximum rows); and whether the store
/// is opened again.
type Step = (Vec<Vec<Dice>>, (u8, u8, u8), bool);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let group = vec(any::<Dice>(), 0..12);
    let step = (vec(group, 1..4), any::<(u8, u8, u8)>(), proptest::bool::weighted(0.2));
    vec(step, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn a_store_on_a_disk_is_what_ordered_maps_are(steps in steps()) {
        live(GroundKind::Disk, steps);
    }

    #[test]
    fn so_is_its_own_logic_over_maps(steps in steps()) {
        live(GroundKind::Maps, steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(12) })]

    #[test]
    fn and_so_is_one_in_a_database(steps in steps()) {
        live(GroundKind::Postgres, steps);
    }
}

fn live(on: GroundKind, steps: Vec<Step>) {
    let ground = on.bare();
    let mut store = compared(move |wall| ground.open_when(wall));
    let (mut model, mut seq) = (FakeStore::default(), 0);
    // As in the journal, numbers are used only once their lease is written.
    model.marks.next_seq = LEASE;
    for (groups, (from, until, max_rows), reopen) in steps {
        let mut commits = Vec::new();
        for dice in groups {
            let mut ops = Vec::new();
            let marks = Marks { next_seq: seq + LEASE, wall: seq };
            for dice in dice {
                seq += 1;
                let op = op(&model, seq, dice);
                model.commit(vec![op.clone()], marks);
                ops.push(op);
            }
            model.marks = marks;
            commits.push((ops, seq, marks));
        }
        store.commit(commits);
        if reopen {
            store.reopen(&model, u64::MAX);
        }
        let (from, until) = (Key::at((from % 12).into()), u64::from(until % 64));
        compare(&mut store, &mut model, Key::default(), u64::MAX, (usize::MAX, usize::MAX));
        let most = (usize::from(max_rows % 5), 1 + usize::from(max_rows % 7));
        compare(&mut store, &mut model, from, until, most);
    }
    store.reopen(&model, u64::MAX);
}
