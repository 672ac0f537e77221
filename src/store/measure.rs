//! Measurements of the store alone: `make measure`.

#![expect(clippy::wildcard_enum_match_arm, reason = "another answer fails the measurement")]

use super::tests::{config, delete, group, item, open_at, place, put_item, range, APP};
use super::*;
use tidegate_common::clock::now;
use tidegate_types::event::{BucketRow, IndexRows, QueueRow, Stored, Wanted};
use tidegate_types::{BatchId, End, Ended, Identity, Key};

fn put(seq: u64, body: usize) -> Op {
    // Hardly compressible, and different in each row.
    let mut state = seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let byte = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    let content = Content { properties: vec![0; 20], body: (0..body).map(byte).collect(), json: false };
    put_item(Stored { content: Some(Arc::new(content)), ..item(seq, seq) }, false)
}

/// A producer's id, in no order.
fn given(seq: u64) -> Identity {
    let spread = u128::from(seq).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    Identity::given(spread.to_be_bytes())
}

/// Resident memory of this process, now and at its peak.
fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = |name| status.lines().find(|l| l.starts_with(name)).unwrap_or_default().to_owned();
    format!("{} {}", line("VmRSS"), line("VmHWM")).replace('\t', " ")
}

/// CPU time of all threads of this process, ms.
fn cpu_ms() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec * 1_000 + time.tv_nsec / 1_000_000).unwrap_or_default()
}

fn timed(what: &str, rows: u64, run: impl FnOnce()) {
    let (before, spent) = (now().mono, cpu_ms());
    run();
    let (ms, cpu) = ((now().mono - before).max(1), cpu_ms() - spent);
    let each = cpu as f64 * 1_000.0 / rows as f64;
    println!(
        "{what}: {rows} rows in {ms} ms, {} rows/s, CPU {each:.2} us a row; {}",
        rows * 1_000 / ms,
        memory()
    );
}

/// Duration of the commits, without the preparation of their content.
#[derive(Default)]
struct Commits {
    ms: u64,
    longest: u64,
}

impl Commits {
    fn make(&mut self, store: &mut dyn Store, group: CommitGroup) {
        let before = now().mono;
        store.commit(&[group]).unwrap();
        let took = now().mono - before;
        self.ms += took;
        self.longest = self.longest.max(took);
    }

    fn print(&self, rows: u64) {
        let Commits { ms, longest } = self;
        println!("commits alone: {ms} ms, {} rows/s; the longest {longest} ms", rows * 1_000 / ms.max(&1));
    }
}

/// Fills the store with rows.
fn fill(store: &mut dyn Store, rows: u64, body: usize) {
    let mut commits = Commits::default();
    for start in (0..rows).step_by(1_000) {
        commits.make(store, group(start, (start..start + 1_000).map(|seq| put(seq, body)).collect()));
    }
    commits.print(rows);
}

#[test]
#[ignore = "minutes: make measure runs it"]
fn throughput() {
    let dir = tempfile::tempdir().unwrap();
    let mut store =
        open(&config(dir.path()), 256 << 20, false, tidegate_common::clock::wall_ms()).unwrap().store;
    const ROWS: u64 = 300_000;
    timed("put, 1,000 x 300 B a commit", ROWS, || fill(&mut *store, ROWS, 300));
    timed("delete, 1,000 a commit", ROWS, || {
        for start in (0..ROWS).step_by(1_000) {
            let ops = (start..start + 1_000).map(|seq| delete(seq, seq)).collect();
            store.commit(&[group(start, ops)]).unwrap();
        }
    });
}

#[test]
#[ignore = "minutes: make measure runs it"]
fn a_million_waiting_in_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open_at(dir.path()).store;
    const ROWS: u64 = 1_000_000;
    timed("put, 1,000 x 1 kB a commit, limit 32 MiB", ROWS, || fill(&mut *store, ROWS, 1_000));
    timed("scan with contents, 1,000 a load", ROWS, || {
        let mut from = Some(Key::default());
        while let Some(next) = from {
            let ranges = vec![range(APP, next, u64::MAX, 1_000)];
            match store.load(&Load::Ranges { ranges, max_rows: usize::MAX, max_bytes: u64::MAX }).unwrap() {
                Loaded::Ranges(answers) => from = answers[0].next,
                other => panic!("{other:?}"),
            }
        }
    });
    let reader = store.reader().unwrap();
    timed("single contents in no order", 20_000, || {
        for n in 0..20_000 {
            let seq = n * 7_919 % ROWS;
            reader.contents(&[(n, place(APP, seq, seq))]).unwrap().unwrap();
        }
    });
    drop(reader);
    println!("{:?}", store.usage().unwrap());
    timed("close", 1, || store.close().unwrap());
    timed("open", 1, || drop(open_at(dir.path())));
}

/// Half of the million items wait in the store only, the other half has ended, spread over all buckets.
#[test]
#[ignore = "minutes: make measure runs it"]
fn a_million_identities() {
    const ROWS: u64 = 1_000_000;
    const ASKED: u64 = 1_000;
    let dir = tempfile::tempdir().unwrap();
    let mut store =
        open(&config(dir.path()), 256 << 20, false, tidegate_common::clock::wall_ms()).unwrap().store;
    let begin = |bucket| Op::BeginBucket(BucketRow { bucket, from: 1 });
    store.commit(&[group(1, (0..8).map(begin).collect())]).unwrap();
    let op = |seq: u64| {
        if seq.is_multiple_of(2) {
            return put_item(Stored { given: Some(given(seq)), fingerprint: seq, ..item(seq, seq) }, false);
        }
        let end = End::Sent(BatchId([7; 16]));
        let customer = Some("customer".into());
        let ended = Ended { end, at: seq, due: seq, attempts: 0, fingerprint: seq, customer };
        Op::Remember { bucket: (seq * 8 / ROWS) as u8, identity: given(seq), ended: Box::new(ended) }
    };
    timed("half put with identity, half remembered", ROWS, || {
        for start in (0..ROWS).step_by(1_000) {
            store.commit(&[group(start, (start..start + 1_000).map(op).collect())]).unwrap();
        }
    });
    let mut find = |what: &str, seq: fn(u64) -> u64, item: bool, ended: bool| {
        let (mut us, rounds) = (0, 50);
        for round in 0..rounds {
            let wanted = |n: u64| Wanted {
                identity: given(seq(round * ASKED + n)),
                application: APP.into(),
                key: None,
                buckets: (0..8).rev().collect(),
            };
            let load = Load::Find((0..ASKED).map(wanted).collect());
            let before = std::time::Instant::now();
            let found = match store.load(&load).unwrap() {
                Loaded::Found(found) => found,
                other => panic!("{other:?}"),
            };
            us += before.elapsed().as_micros() as u64;
            assert!(found.iter().all(|f| f.item.is_some() == item && f.ended.is_some() == ended));
        }
        println!("find, {what}: {:.2} us an identity; {}", us as f64 / (rounds * ASKED) as f64, memory());
    };
    find("unknown", |n| ROWS + n, false, false);
    find("waiting", |n| n * 7_919 % (ROWS / 2) * 2, true, false);
    find("ended", |n| n * 7_919 % (ROWS / 2) * 2 + 1, false, true);
    println!("{:?}", store.usage().unwrap());
    let before = std::time::Instant::now();
    store.commit(&[group(1, vec![begin(3)])]).unwrap();
    println!("a bucket begun anew in {} us", before.elapsed().as_micros());
    println!("{:?}", store.usage().unwrap());
}

/// Items with ids, of 10,000 customers, from their arrival far ahead of their due to the commit of their
/// ends.
fn far_items(limit: u64) {
    const ROWS: u64 = 1_000_000;
    const CUSTOMERS: u64 = 10_000;
    const COMMIT: u64 = 4_000;
    let customer = |seq: u64| -> Arc<str> { format!("customer-{}", seq % CUSTOMERS).into() };
    let rows =
        |seq: u64| IndexRows { identity: Some(given(seq)), customer: Some((APP.into(), customer(seq))) };
    // Each thousand of items is due one millisecond after the next; the last to arrive are due first.
    let key = |seq: u64| Key::own(1_000 + (ROWS - seq) / 1_000, seq);
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&config(dir.path()), limit, false, tidegate_common::clock::wall_ms()).unwrap().store;
    store.commit(&[group(1, vec![Op::BeginBucket(BucketRow { bucket: 0, from: 1 })])]).unwrap();
    let what = format!("far items with ids, limit {} MiB", limit >> 20);
    timed(&format!("{what}: in, 4,000 a commit"), ROWS, || {
        for start in (0..ROWS).step_by(COMMIT as usize) {
            let op = |seq| {
                let Op::Put { item, .. } = put(seq, 200) else { unreachable!() };
                put_item(
                    Stored { key: key(seq), given: Some(given(seq)), customer: Some(customer(seq)), ..*item },
                    true,
                )
            };
            store.commit(&[group(start, (start..start + COMMIT).map(op).collect())]).unwrap();
        }
    });
    timed(&format!("{what}: ended, 4,000 a commit"), ROWS, || {
        for start in (0..ROWS / COMMIT).rev().map(|commit| commit * COMMIT) {
            let op = |seq: u64| {
                let end = End::Sent(BatchId([7; 16]));
                let ended = Ended {
                    end,
                    at: seq,
                    due: key(seq).due,
                    attempts: 0,
                    fingerprint: seq,
                    customer: Some(customer(seq)),
                };
                let remember = Op::Remember { bucket: 0, identity: given(seq), ended: Box::new(ended) };
                let place = Place { queue: APP.into(), key: key(seq) };
                [Op::Delete { place, rows: rows(seq) }, remember]
            };
            store.commit(&[group(start, (start..start + COMMIT).flat_map(op).collect())]).unwrap();
        }
    });
    println!("{:?}", store.usage().unwrap());
}

#[test]
#[ignore = "minutes: make measure runs it"]
fn a_million_far_items() {
    far_items(64 << 20);
    far_items(256 << 20);
}

/// The name of a queue, of typical length.
fn queue_name(number: u64) -> Arc<str> {
    format!("application-{number:06}").into()
}

fn queue_row(number: u64, count: u64, low: Key) -> Op {
    Op::PutQueue(QueueRow {
        queue: queue_name(number),
        count,
        low,
        paused: None,
        unindexed_until: 0,
        slowed: None,
    })
}

/// The cost of one queue per application: ten items in each, in order of due over all of them.
fn many_queues(queues: u64, given_ids: bool) {
    const EACH: u64 = 10;
    const LIMIT: u64 = 256 << 20;
    let what = format!("{queues} queues, {}", if given_ids { "with ids" } else { "without ids" });
    let op = |seq: u64| {
        let Op::Put { item, .. } = put(seq, 300) else { unreachable!() };
        let given = given_ids.then(|| given(seq));
        put_item(Stored { application: queue_name(seq % queues), given, fingerprint: seq, ..*item }, false)
    };
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&config(dir.path()), LIMIT, false, tidegate_common::clock::wall_ms()).unwrap().store;
    timed(&format!("{what}: put, 1,000 x 300 B a commit"), queues * EACH, || {
        let mut commits = Commits::default();
        for start in (0..queues * EACH).step_by(1_000) {
            let mut ops: Vec<_> = (start..start + 1_000).map(op).collect();
            ops.extend(
                (start..start + 1_000).map(|seq| queue_row(seq % queues, seq / queues + 1, Key::default())),
            );
            commits.make(&mut *store, group(start, ops));
        }
        commits.print(queues * EACH);
    });
    println!("{:?}", store.usage().unwrap());
    store.close().unwrap();
    let mut opened = None;
    timed(&format!("{what}: start"), queues, || {
        opened = Some(open(&config(dir.path()), LIMIT, false, tidegate_common::clock::wall_ms()).unwrap());
    });
    let opened = opened.unwrap();
    assert_eq!(opened.opened.queues.len() as u64, queues);
    let mut store = opened.store;
    let of = |n: u64| range(&queue_name(n * 7_919 % queues), Key::default(), u64::MAX, 16);
    for (at_once, ranges) in [(1, 10_000.min(queues)), (100, queues)] {
        timed(&format!("{what}: ranges, {at_once} a load, 10 rows with contents each"), ranges, || {
            for start in (0..ranges).step_by(at_once as usize) {
                let ranges = (start..start + at_once).map(of).collect();
                match store.load(&Load::Ranges { ranges, max_rows: usize::MAX, max_bytes: u64::MAX }).unwrap()
                {
                    Loaded::Ranges(answers) => assert!(answers.iter().all(|a| a.rows.len() as u64 == EACH)),
                    other => panic!("{other:?}"),
                }
            }
        });
    }
    // As for an application that delivers: its head is deleted, its row follows, and the rest is read.
    timed(&format!("{what}: delete the head and move the low mark, 1,000 a commit"), queues, || {
        for start in (0..queues).step_by(1_000) {
            let ops = (start..start + 1_000).flat_map(|seq| {
                let place = Place { queue: queue_name(seq), key: Key::own(seq, seq) };
                let rows = IndexRows { identity: given_ids.then(|| given(seq)), customer: None };
                [Op::Delete { place, rows }, queue_row(seq, EACH - 1, Key::at(seq + 1))]
            });
            store.commit(&[group(start, ops.collect())]).unwrap();
        }
    });
    timed(&format!("{what}: ranges behind the low mark, 100 a load"), queues, || {
        for start in (0..queues).step_by(100) {
            let of = |n: u64| range(&queue_name(n), Key::at(n + 1), u64::MAX, 16);
            store
                .load(&Load::Ranges {
                    ranges: (start..start + 100).map(of).collect(),
                    max_rows: usize::MAX,
                    max_bytes: 0,
                })
                .unwrap();
        }
    });
    println!("{:?}", store.usage().unwrap());
}

#[test]
#[ignore = "minutes: make measure runs it"]
fn ten_thousand_queues() {
    many_queues(10_000, false);
    many_queues(10_000, true);
}

#[test]
#[ignore = "minutes: make measure runs it"]
fn a_hundred_thousand_queues() {
    many_queues(100_000, false);
    many_queues(100_000, true);
}
