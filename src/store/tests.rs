//! Tests of the promises of every store.

#![expect(clippy::wildcard_enum_match_arm, reason = "another answer fails the test")]

use super::directory::Directory;
use super::disk::{open_in, DiskStore, IfAbsent};
use super::ground::{on_each, Ground, GroundKind};
use super::*;
use std::fs;
use std::path::Path;
use std::process::Command;
use tidegate_types::event::{IndexRows, Range, RangeRows, Standing, Stored};
use tidegate_types::{ClosedBy, Dead, Identity, Key, Reason};

on_each! {
    scans_go_in_order_from_the_cursor,
    many_queues_are_read_at_once,
    items_come_back_whole_and_contents_stop_at_the_limit,
    a_read_of_many_ranges_brings_no_more_rows_than_it_is_asked_for,
    contents_are_found_by_place_and_their_absence_is_damage,
    groups_take_effect_in_order,
    a_move_takes_the_content_along_and_says_what_is_known_now,
    a_move_of_what_is_not_there_fails_and_writes_nothing,
    #[should_panic(expected = "the item due 3, number 3, has no content")]
    an_item_without_content_is_refused,
    #[should_panic(expected = "an item of queue `app` is moved to queue `other`")]
    a_move_to_another_application_is_refused,
    marks_alone_are_a_commit,
}

on_each! { [on_a_slow_disk = Disk] { a_read_of_large_rows_ends_early_and_says_where_it_goes_on } }
on_each! {
    [over_far_maps = Maps, in_a_far_database = Postgres]
    { rows_of_large_bodies_are_read_without_them }
}

/// The queue that most tests use.
pub(crate) const APP: &str = "app";

pub(crate) fn key(due: u64, seq: u64) -> Key {
    Key::own(due, seq)
}

pub(crate) fn place(queue: &str, due: u64, seq: u64) -> Place {
    Place { queue: queue.into(), key: key(due, seq) }
}

pub(crate) fn item(due: u64, seq: u64) -> Stored {
    let content = Content { properties: vec![1, 2], body: format!("body {seq}").into_bytes(), json: true };
    Stored {
        customer: Some("c".into()),
        received: 5,
        own_time: true,
        weight: 100,
        content: Some(Arc::new(content)),
        ..tidegate_fake_store::blank(APP, key(due, seq))
    }
}

/// The identity of an item with a producer's id.
pub(crate) fn given(n: u8) -> Identity {
    Identity::given([n; 16])
}

/// Item number `n`, with a producer's id.
pub(crate) fn named(due: u64, n: u8) -> Stored {
    Stored { given: Some(given(n)), fingerprint: 7, ..item(due, n.into()) }
}

pub(crate) fn put_item(item: Stored, indexed: bool) -> Op {
    Op::Put { item: Box::new(item), indexed }
}

pub(crate) fn put(due: u64, seq: u64) -> Op {
    put_item(item(due, seq), false)
}

/// Puts an item with its customer row.
pub(crate) fn put_indexed(due: u64, seq: u64, customer: &str) -> Op {
    put_item(Stored { customer: Some(customer.into()), ..item(due, seq) }, true)
}

/// Index rows of an identity, and of a customer if the name is not empty.
pub(crate) fn index(identity: Option<Identity>, customer: &str) -> IndexRows {
    let customer = (!customer.is_empty()).then(|| (APP.into(), customer.into()));
    IndexRows { identity, customer }
}

pub(crate) fn delete(due: u64, seq: u64) -> Op {
    Op::Delete { place: place(APP, due, seq), rows: IndexRows::default() }
}

pub(crate) fn verdict() -> Arc<Dead> {
    Arc::new(Dead { reason: Reason::Attempts, error: "3 attempts".into() })
}

/// A move without index rows.
pub(crate) fn moved(from: Place, to: Place, standing: Standing) -> Op {
    let (removed, written) = (IndexRows::default(), IndexRows::default());
    Op::Move { from, to, removed, written, standing: Box::new(standing), weight: 0 }
}

/// The standing of an own-time item.
fn of_its_own() -> Standing {
    Standing { own_time: true, ..Standing::default() }
}

/// A failed attempt, written under the item's present key.
pub(crate) fn failed(due: u64, seq: u64, attempts: u32) -> Op {
    let standing = Standing { attempts, last_error: Some("no queue".into()), ..of_its_own() };
    moved(place(APP, due, seq), place(APP, due, seq), standing)
}

pub(crate) fn group(token: Token, ops: Vec<Op>) -> CommitGroup {
    CommitGroup { ops, token, marks: Marks { next_seq: token + 1, wall: 0 }, hurried: false }
}

pub(crate) fn config(path: &Path) -> tidegate_config::StoreConfig {
    tidegate_config::StoreConfig {
        kind: StoreKind::Disk,
        path: path.to_owned(),
        hold_max: std::time::Duration::from_secs(1_500),
        database: None,
    }
}

pub(crate) fn open_at(path: &Path) -> OpenStore {
    open_with(path, tidegate_common::clock::wall_ms()).unwrap()
}

/// The same at the wall clock `wall`.
pub(crate) fn open_with(path: &Path, wall: u64) -> Result<OpenStore, OpenError> {
    unlocked(|| open(&config(path), 32 << 20, false, wall))
}

/// Retries while this process itself holds the lock: a child that another test starts inherits the open files
/// of this process for a moment, which a busy machine makes longer.
pub(crate) fn unlocked<T>(open: impl Fn() -> Result<T, OpenError>) -> Result<T, OpenError> {
    let begun = std::time::Instant::now();
    loop {
        match open() {
            Err(OpenError::Locked { pid, .. })
                if pid == Some(std::process::id())
                    && begun.elapsed() < std::time::Duration::from_secs(60) =>
            {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            opened => return opened,
        }
    }
}

/// A disk store that a test can flush; otherwise its threads decide when to flush.
pub(crate) fn disk_at(path: &Path, memory_limit: u64) -> DiskStore {
    let directory = unlocked(|| Directory::open(path)).unwrap();
    open_in(directory, memory_limit, false, IfAbsent::Make(None), tidegate_common::clock::wall_ms())
        .unwrap()
        .store
}

/// The error with which a store is refused; that this process holds it is one.
pub(crate) fn refusal(path: &Path) -> OpenError {
    let open = || open(&config(path), 32 << 20, false, tidegate_common::clock::wall_ms());
    let opened = if holds(&path.join("LOCK")) { open() } else { unlocked(open) };
    match opened {
        Ok(_) => panic!("opened"),
        Err(error) => error,
    }
}

/// Whether this process itself has this file open.
fn holds(file: &Path) -> bool {
    let Ok(file) = fs::canonicalize(file) else { return false };
    let open = fs::read_dir("/proc/self/fd").unwrap();
    open.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == file))
}

/// A separate directory, and a store in it.
pub(crate) fn fresh() -> (tempfile::TempDir, Box<dyn Store>) {
    let dir = tempfile::tempdir().unwrap();
    let store = open_at(dir.path()).store;
    (dir, store)
}

pub(crate) fn range(queue: &str, from: Key, until: u64, max_rows: usize) -> Range {
    Range { queue: queue.into(), from, until, max_rows }
}

/// All rows of a queue, with contents.
pub(crate) fn whole(queue: &str) -> Load {
    Load::Ranges {
        ranges: vec![range(queue, Key::default(), u64::MAX, usize::MAX)],
        max_rows: usize::MAX,
        max_bytes: u64::MAX,
    }
}

pub(crate) fn ranges(store: &mut dyn Store, ranges: Vec<Range>, max_bytes: u64) -> Vec<RangeRows> {
    let queues: Vec<_> = ranges.iter().map(|range| range.queue.clone()).collect();
    match store.load(&Load::Ranges { ranges, max_rows: usize::MAX, max_bytes }).unwrap() {
        Loaded::Ranges(answers) => {
            assert_eq!(answers.iter().map(|answer| answer.queue.clone()).collect::<Vec<_>>(), queues);
            answers
        }
        other => panic!("{other:?}"),
    }
}

/// The items of a queue with their contents.
pub(crate) fn items(store: &mut dyn Store, queue: &str) -> Vec<Stored> {
    let all = vec![range(queue, Key::default(), u64::MAX, usize::MAX)];
    ranges(store, all, u64::MAX).remove(0).rows
}

/// A part of the queue that most tests use.
pub(crate) fn part(store: &mut dyn Store, from: Key, until: u64, max_rows: usize) -> (Vec<Key>, Option<Key>) {
    let RangeRows { rows, next, .. } =
        ranges(store, vec![range(APP, from, until, max_rows)], u64::MAX).remove(0);
    (rows.iter().map(|r| r.key).collect(), next)
}

/// Keys of the queue that most tests use.
pub(crate) fn everything(store: &mut dyn Store) -> Vec<Key> {
    items(store, APP).iter().map(|item| item.key).collect()
}

/// Copies all files in their present state, as a killed process would leave them.
pub(crate) fn crash_image(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            crash_image(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn scans_go_in_order_from_the_cursor(on: GroundKind) {
    let (_dir, mut store) = on.fresh();
    let keys = [(300, 1), (100, 2), (100, 9), (100, 5), (200, 3), (u64::MAX, u64::MAX)];
    store.commit(&[group(1, keys.iter().map(|(d, s)| put(*d, *s)).collect())]).unwrap();

    // Items due in the same millisecond sort by arrival; `next` is the first row left out.
    let (rows, next) = part(&mut *store, Key::default(), u64::MAX, 2);
    assert_eq!((rows, next), (vec![key(100, 2), key(100, 5)], Some(key(100, 9))));
    let (rows, next) = part(&mut *store, key(100, 9), u64::MAX, 10);
    assert_eq!((rows, next), (vec![key(100, 9), key(200, 3), key(300, 1)], None));
    // `from` is inclusive, need not exist, and `until` is exclusive.
    assert_eq!(part(&mut *store, key(100, 3), 300, 10), (vec![key(100, 5), key(100, 9), key(200, 3)], None));
    assert_eq!(part(&mut *store, key(200, 4), 300, 10), (vec![], None));
    // As many rows as requested, and no more left: the read met the end.
    assert_eq!(part(&mut *store, key(200, 0), 300, 1), (vec![key(200, 3)], None));
    assert_eq!(part(&mut *store, key(200, 0), 301, 1), (vec![key(200, 3)], Some(key(300, 1))));
    assert_eq!(part(&mut *store, key(200, 0), u64::MAX, 0), (vec![], Some(key(200, 3))));
    assert_eq!(part(&mut *store, key(500, 0), 400, 10), (vec![], None));
}

fn many_queues_are_read_at_once(on: GroundKind) {
    let (_dir, mut store) = on.fresh();
    let of = |queue: &str, seq| put_item(Stored { application: queue.into(), ..item(seq, seq) }, false);
    // One name begins with another, and the name of the dead-letter queue is empty.
    let dead = put_item(Stored { dead: Some(verdict()), ..item(3, 33) }, false);
    let ops = vec![of("a", 1), of("ab", 2), of("a", 3), of("b", 4), of("ab", 5), dead];
    store.commit(&[group(1, ops)]).unwrap();
    let keys = |rows: &RangeRows| rows.rows.iter().map(|row| row.key.seq).collect::<Vec<_>>();
    let asked = vec![
        range("ab", Key::default(), u64::MAX, 9),
        range("a", key(2, 0), 3, 9),
        range("a", Key::default(), 9, 1),
        range("", Key::default(), u64::MAX, 9),
        range("nobody", Key::default(), u64::MAX, 9),
        range("b", key(4, 4), 5, 9),
    ];
    let answers = ranges(&mut *store, asked, u64::MAX);
    let seen: Vec<_> = answers.iter().map(keys).collect();
    assert_eq!(seen, vec![vec![2, 5], vec![], vec![1], vec![33], vec![], vec![4]]);
    let next: Vec<_> = answers.iter().map(|answer| answer.next).collect();
    assert_eq!(next, vec![None, None, Some(key(3, 3)), None, None, None]);
    assert_eq!(answers[3].rows, vec![Stored { dead: Some(verdict()), ..item(3, 33) }]);
    assert_eq!(ranges(&mut *store, vec![], 0), vec![]);
}

fn items_come_back_whole_and_contents_stop_at_the_limit(on: GroundKind) {
    let (_dir, mut store) = on.fresh();
    let other = Stored { application: "b".into(), ..item(1, 4) };
    store.commit(&[group(1, vec![put(1, 1), put(2, 2), put(3, 3), put_item(other.clone(), false)])]).unwrap();
    let content = item(1, 1).content.unwrap();
    let size = (content.properties.len() + content.body.len() + 128) as u64;
    let mut load = |max_bytes| {
        let asked = vec![range(APP, Key::default(), 9, 9), range("b", Key::default(), 9, 9)];
        let answers = ranges(&mut *store, asked, max_bytes);
        answers.into_iter().flat_map(|answer| answer.rows).collect::<Vec<_>>()
    };
    let bare = |item: Stored| Stored { content: None, ..item };
    assert_eq!(load(u64::MAX), vec![item(1, 1), item(2, 2), item(3, 3), other.clone()]);
    // The limit covers all ranges together, in order.
    assert_eq!(load(3 * size), vec![item(1, 1), item(2, 2), item(3, 3), bare(other.clone())]);
    assert_eq!(load(2 * size), vec![item(1, 1), item(2, 2), bare(item(3, 3)), bare(other.clone())]);
    assert_eq!(load(2 * size - 1)[..2], [item(1, 1), bare(item(2, 2))]);
    assert!(load(0).iter().all(|row| row.content.is_none()));
}

/// Five rows of 12 MiB in each of the queues `a` and `b`.
fn with_large_rows(on: GroundKind) -> (Ground, Box<dyn Store>) {
    let (ground, mut store) = on.fresh();
    let large = |queue: &str, seq: u64| {
        let content = Content { properties: vec![], body: vec![7; 12 << 20], json: false };
        let item = item(1, seq);
        put_item(Stored { application: queue.into(), content: Some(Arc::new(content)), ..item }, false)
    };
    for seq in 0..5 {
        store.commit(&[group(seq + 1, vec![large("a", seq), large("b", seq + 5)])]).unwrap();
    }
    (ground, store)
}

fn all_from(queue: &str, from: Key) -> Range {
    range(queue, from, u64::MAX, 100)
}

fn seqs(rows: &RangeRows) -> Vec<u64> {
    rows.rows.iter().map(|row| row.key.seq).collect()
}

/// With a remote engine a body beyond the memory limit is not read, but the other fields of its item are.
fn rows_of_large_bodies_are_read_without_them(on: GroundKind) {
    let (_dir, mut store) = with_large_rows(on);
    let read = ranges(&mut *store, vec![all_from("a", key(0, 0)), all_from("b", key(0, 0))], 0);
    assert_eq!((seqs(&read[0]), read[0].next), (vec![0, 1, 2, 3, 4], None));
    assert_eq!((seqs(&read[1]), read[1].next), (vec![5, 6, 7, 8, 9], None));
    assert!(read.iter().flat_map(|read| &read.rows).all(|row| row.content.is_none()));
    // As many bodies as fit, in order.
    let read = ranges(&mut *store, vec![all_from("a", key(0, 0))], 30 << 20).remove(0);
    let contents: Vec<_> = read.rows.iter().map(|row| row.content.as_ref().map(|c| c.body.len())).collect();
    assert_eq!(contents, [Some(12 << 20), Some(12 << 20), None, None, None]);
    let found = store.load(&Load::Contents(vec![(1, place("a", 1, 4))])).unwrap();
    assert!(matches!(found, Loaded::Contents(found) if found[0].1.body.len() == 12 << 20));
}

fn a_read_of_large_rows_ends_early_and_says_where_it_goes_on(on: GroundKind) {
    let (_dir, mut store) = with_large_rows(on);
    let all = all_from;
    // Each queue makes progress, whatever the others contain.
    let read = ranges(&mut *store, vec![all("a", key(0, 0)), all("b", key(0, 0))], 0);
    assert_eq!((seqs(&read[0]), read[0].next), (vec![0, 1, 2], Some(key(1, 3))));
    assert_eq!((seqs(&read[1]), read[1].next), (vec![5], Some(key(1, 6))));
    let read = ranges(&mut *store, vec![all("a", key(1, 3))], 0);
    assert_eq!((seqs(&read[0]), read[0].next), (vec![3, 4], None));
}

fn a_read_of_many_ranges_brings_no_more_rows_than_it_is_asked_for(on: GroundKind) {
    let (_dir, mut store) = on.fresh();
    let of = |queue: &str, seq| put_item(Stored { application: queue.into(), ..item(1, seq) }, false);
    let ops = (1..=4).flat_map(|seq| ["a", "b", "c"].map(|queue| of(queue, seq * 10)));
    store.commit(&[group(1, ops.collect())]).unwrap();
    let from = [key(0, 0), key(1, 15), key(1, 5)];
    let ranges =
        ["a", "b", "c"].into_iter().zip(from).map(|(queue, from)| range(queue, from, 9, 3)).collect();
    let Loaded::Ranges(read) = store.load(&Load::Ranges { ranges, max_rows: 5, max_bytes: 0 }).unwrap()
    else {
        panic!("ranges")
    };
    let told: Vec<_> = read.iter().map(|read| (read.rows.len(), read.next)).collect();
    // The read does not reach the third range.
    assert_eq!(told, [(3, Some(key(1, 40))), (2, Some(key(1, 40))), (0, Some(key(1, 5)))]);
}

fn contents_are_found_by_place_and_their_absence_is_damage(on: GroundKind) {
    let (_dir, mut store) = on.fresh();
    let dead = Standing { dead: Some(verdict()), ..Standing::default() };
    let ops = vec![put(1, 1), put(2, 2), moved(place(APP, 2, 2), place("", 9, 2), dead)];
    store.commit(&[group(1, ops)]).unwrap();
    let wanted = vec![(2, place("", 9, 2)), (1, place(APP, 1, 1))];
    let found = vec![(2, item(2, 2).content.unwrap()), (1, item(1, 1).content.unwrap())];
    assert_eq!(store.load(&Load::Contents(wanted.clone())).unwrap(), Loaded::Contents(found.clone()));
    let reader = store.reader().unwrap();
    assert_eq!(reader.contents(&wanted).unwrap(), Some(found));

    let gone = vec![(2, place(APP, 2, 2))];
    match store.load(&Load::Contents(gone.clone())).unwrap_err() {
        ReadError::Missing { place: missing } => assert_eq!(missing, place(APP, 2, 2)),
        other => panic!("{other}"),
    }
    assert_eq!(reader.contents(&gone).unwrap(), None);
}

fn groups_take_effect_in_order(on: GroundKind) {
    let (_dir, mut store) = on.fresh();
    // The last operation on a key counts, within a group and over groups of one call.
    store
        .commit(&[
            group(1, vec![put(1, 1), put(2, 2), delete(2, 2), put(3, 3)]),
            group(2, vec![delete(1, 1), put(4, 4), delete(3, 3)]),
            group(3, vec![put(3, 3)]),
        ])
        .unwrap();
    assert_eq!(everything(&mut *store), vec![key(3, 3), key(4, 4)]);
    store.commit(&[group(4, vec![delete(3, 3), delete(9, 9)])]).unwrap();
    assert_eq!(everything(&mut *store), vec![key(4, 4)]);
    store.commit(&[]).unwrap();
}

#[test]
fn what_comes_and_goes_in_one_call_is_not_written() {
    let (dir, mut store) = fresh();
    let came = group(1, vec![put(1, 1), put(2, 2), put(3, 3), put(5, 5)]);
    let moved = moved(place(APP, 5, 5), place(APP, 6, 5), of_its_own());
    let went = group(2, vec![delete(1, 1), failed(3, 3, 1), delete(3, 3), moved, delete(6, 5)]);
    store.commit(&[came, went]).unwrap();
    assert_eq!(everything(&mut *store), vec![key(2, 2)]);
    let log = fs::read(dir.path().join("db/0.jnl")).unwrap();
    let written = |body: &str| log.windows(body.len()).any(|bytes| bytes == body.as_bytes());
    assert!(written("body 2") && !["body 1", "body 3", "body 5"].into_iter().any(written));
    store.commit(&[group(3, vec![failed(2, 2, 1), delete(2, 2)])]).unwrap();
    assert_eq!(everything(&mut *store), vec![], "what was there before is removed");
}

fn a_move_takes_the_content_along_and_says_what_is_known_now(on: GroundKind) {
    let (dir, mut store) = on.fresh();
    store.commit(&[group(1, vec![put_indexed(1, 1, "c"), put(2, 2)])]).unwrap();
    let standing = Standing {
        attempts: 3,
        last_error: Some("nack".into()),
        outcome_unknown: true,
        own_time: true,
        closed_by: ClosedBy::Flush,
        dead: Some(verdict()),
        due: Some(40),
    };
    let op = Op::Move {
        from: place(APP, 1, 1),
        to: place("", 50, 1),
        removed: index(None, "c"),
        written: IndexRows::default(),
        standing: Box::new(standing),
        weight: 0,
    };
    // An item on the disk, one written earlier in the same group, and one of an earlier group of the same
    // call.
    let elsewhere = moved(place(APP, 2, 2), place(APP, 7, 2), of_its_own());
    store
        .commit(&[group(2, vec![op, put(3, 3), failed(3, 3, 1)]), group(3, vec![failed(3, 3, 2), elsewhere])])
        .unwrap();
    let second = Stored { key: key(7, 2), due: 7, ..item(2, 2) };
    let third = Stored { attempts: 2, last_error: Some("no queue".into()), ..item(3, 3) };
    // The item keeps its accepted due, its due when it died and its original application.
    let first = Stored {
        key: key(50, 1),
        due: 40,
        attempts: 3,
        last_error: Some("nack".into()),
        outcome_unknown: true,
        closed_by: ClosedBy::Flush,
        dead: Some(verdict()),
        ..item(1, 1)
    };
    for _ in 0..2 {
        assert_eq!(items(&mut *store, APP), vec![third.clone(), second.clone()]);
        assert_eq!(items(&mut *store, ""), vec![first.clone()]);
        assert_eq!(scan_tests::of_customer(&mut *store, "c"), vec![]);
        drop(store);
        store = dir.open().store;
    }
    // A move replaces the whole standing; and a dead item may get another attempt.
    let back = moved(place("", 50, 1), place(APP, 60, 1), of_its_own());
    store.commit(&[group(4, vec![failed(3, 3, 9), back])]).unwrap();
    let third = Stored { attempts: 9, ..third };
    assert_eq!(
        items(&mut *store, APP),
        vec![third, second, Stored { key: key(60, 1), due: 60, ..item(1, 1) }]
    );
    assert_eq!(items(&mut *store, ""), vec![]);
}

fn a_move_of_what_is_not_there_fails_and_writes_nothing(on: GroundKind) {
    let (_dir, mut store) = on.fresh();
    for ops in [vec![put(1, 1), failed(2, 2, 1)], vec![put(2, 2), delete(2, 2), failed(2, 2, 1)]] {
        match store.commit(&[group(1, ops)]).unwrap_err() {
            CommitError::Read(ReadError::Missing { place: missing }) => assert_eq!(missing, place(APP, 2, 2)),
            other => panic!("{other}"),
        }
    }
    assert_eq!(everything(&mut *store), vec![]);
}

fn an_item_without_content_is_refused(on: GroundKind) {
    let (_dir, mut store) = on.fresh();
    let _ = store.commit(&[group(1, vec![put_item(Stored { content: None, ..item(3, 3) }, false)])]);
}

fn a_move_to_another_application_is_refused(on: GroundKind) {
    let (_dir, mut store) = on.fresh();
    let ops = vec![put(1, 1), moved(place(APP, 1, 1), place("other", 1, 1), Standing::default())];
    let _ = store.commit(&[group(1, ops)]);
}

/// Judges promise 9.
fn marks_alone_are_a_commit(on: GroundKind) {
    let (dir, mut store) = on.fresh();
    let lease =
        CommitGroup { ops: vec![], token: 1, marks: Marks { next_seq: 1 << 20, wall: 0 }, hurried: false };
    store.commit(&[lease]).unwrap();
    drop(store);
    assert_eq!(dir.open().opened.marks.next_seq, 1 << 20);
}

#[test]
fn room_is_measured() {
    let (_dir, store) = fresh();
    let usage = store.usage().unwrap();
    assert!(usage.used > 0 && usage.free > 0 && usage.total >= usage.free, "{usage:?}");
}

#[test]
fn the_memory_store_keeps_no_items() {
    let settings =
        tidegate_config::StoreConfig { kind: StoreKind::Memory, ..config(Path::new("/nowhere/at/all")) };
    let (first, second) =
        (open(&settings, 1 << 20, false, 0).unwrap(), open(&settings, 1 << 20, false, 0).unwrap());
    assert_ne!(first.identity, second.identity);
    assert_eq!(first.opened, Opened::default());
    let mut store = first.store;
    store.commit(&[group(1, vec![])]).unwrap();
    assert_eq!(everything(&mut *store), vec![]);
    assert_eq!(scan_tests::of_customer(&mut *store, "c"), vec![]);
    assert!(store.reader().is_none());
    assert!(store.load(&Load::Contents(vec![(1, place(APP, 1, 1))])).is_err());
    store.close().unwrap();
}

/// `every_commit_is_synced` runs this under strace.
#[test]
fn three_commits() {
    let (_dir, mut store) = fresh();
    for n in 1..=3 {
        store.commit(&[group(n, vec![put(n, n)]), group(n, vec![delete(n, n)])]).unwrap();
    }
}

/// Judges promise 1.
#[test]
fn every_commit_is_synced() {
    if !tidegate_harness::require("strace") {
        return;
    }
    let trace = tempfile::NamedTempFile::new().unwrap();
    let traced = Command::new("strace")
        .args(["-f", "-y", "-e", "trace=fdatasync,fsync", "-o"])
        .arg(trace.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "tests::three_commits"])
        .output();
    match traced {
        Ok(output) if output.status.success() => {
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains("1 passed"), "{said}");
        }
        other => {
            return tidegate_harness::lacks("strace", &format!("cannot be used here: {other:?}"));
        }
    }
    let calls = fs::read_to_string(trace.path()).unwrap();
    let synced = |call: &str, file: &str| {
        calls.lines().filter(|l| l.contains(call) && l.contains(file) && l.ends_with("= 0")).count()
    };
    assert_eq!(synced("fdatasync(", ".jnl>"), 3, "{calls}");
    assert!(synced("fsync(", ".jnl>") >= 1, "the first commit of a new store: {calls}");
    assert!(synced("fsync(", "/db.new>") >= 1, "the directory: {calls}");
}
