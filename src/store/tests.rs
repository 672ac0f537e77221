//! What a store promises, tried on real directories.

#![expect(clippy::wildcard_enum_match_arm, reason = "another answer fails the test")]

use super::*;
use crate::engine::event::{Indexed, Stored};
use crate::engine::types::{Dead, Identity, Reason};
use std::fs;
use std::process::Command;

pub(super) fn key(due: u64, seq: u64) -> Key {
    Key { due, seq }
}

pub(super) fn lane(name: &str) -> Place {
    Place::Lane(name.into())
}

pub(super) fn item(due: u64, seq: u64) -> Stored {
    let content = Content { properties: vec![1, 2], body: format!("body {seq}").into_bytes(), json: true };
    Stored {
        key: key(due, seq),
        application: "app".into(),
        customer: Some("c".into()),
        given: None,
        received: 5,
        own_time: true,
        expiry: None,
        weight: 100,
        attempts: 0,
        last_error: None,
        dead: None,
        content: Some(Arc::new(content)),
    }
}

pub(super) fn put(due: u64, seq: u64) -> Op {
    Op::Put { place: Place::Time, item: Box::new(item(due, seq)), indexed: Indexed::default() }
}

pub(super) fn put_indexed(due: u64, seq: u64, customer: &str) -> Op {
    let item = Stored { customer: Some(customer.into()), ..item(due, seq) };
    Op::Put { place: Place::Time, item: Box::new(item), indexed: indexed(None, customer) }
}

/// Index rows: of an identity, and of a customer where it is not empty.
pub(super) fn indexed(identity: Option<Identity>, customer: &str) -> Indexed {
    let customer = (!customer.is_empty()).then(|| ("app".into(), customer.into()));
    Indexed { identity, customer }
}

pub(super) fn delete(due: u64, seq: u64) -> Op {
    Op::Delete { place: Place::Time, key: key(due, seq), indexed: Indexed::default() }
}

pub(super) fn park(from: Place, key: Key, to: &str, attempts: u32) -> Op {
    let last_error = Some("no queue".into());
    Op::Park {
        from,
        key,
        indexed: Indexed::default(),
        identity: None,
        lane: to.into(),
        attempts,
        last_error,
        dead: None,
    }
}

pub(super) fn group(token: Token, ops: Vec<Op>) -> Commit {
    Commit { ops, token, marks: Marks { next_seq: token + 1, ..Marks::default() } }
}

pub(super) fn config(path: &Path) -> config::Store {
    config::Store {
        kind: StoreKind::Disk,
        path: path.to_owned(),
        hold_max: std::time::Duration::from_secs(1_500),
    }
}

pub(super) fn open_at(path: &Path) -> OpenStore {
    open(&config(path), 32 << 20, false).unwrap()
}

pub(super) fn refusal(path: &Path) -> OpenError {
    match open(&config(path), 32 << 20, false) {
        Ok(_) => panic!("opened"),
        Err(error) => error,
    }
}

/// A directory of its own, and a store in it.
pub(super) fn fresh() -> (tempfile::TempDir, Box<dyn Store>) {
    let dir = tempfile::tempdir().unwrap();
    let store = open_at(dir.path()).store;
    (dir, store)
}

pub(super) fn time(store: &mut dyn Store, from: Key, until: u64, max_rows: usize) -> (Vec<Key>, Option<Key>) {
    match store.load(&Load::Time { from, until, max_rows, max_bytes: u64::MAX }).unwrap() {
        Loaded::Time { rows, next } => (rows.iter().map(|r| r.key).collect(), next),
        other => panic!("{other:?}"),
    }
}

pub(super) fn everything(store: &mut dyn Store) -> Vec<Key> {
    time(store, Key::default(), u64::MAX, usize::MAX).0
}

pub(super) fn in_lane(
    store: &mut dyn Store,
    name: &str,
    from: Key,
    max_rows: usize,
) -> (Vec<Stored>, Option<Key>) {
    match store.load(&Load::Lane { lane: name.into(), from, max_rows, max_bytes: u64::MAX }).unwrap() {
        Loaded::Lane { lane, rows, next } => {
            assert_eq!(&*lane, name);
            (rows, next)
        }
        other => panic!("{other:?}"),
    }
}

fn of_customer(store: &mut dyn Store, name: &str, from: Key, max_rows: usize) -> (Vec<Key>, Option<Key>) {
    let load = Load::Group { application: "app".into(), customer: name.into(), from, max_rows };
    match store.load(&load).unwrap() {
        Loaded::Group { rows, next, .. } => {
            assert!(rows.iter().all(|r| r.content.is_none()));
            (rows.iter().map(|r| r.key).collect(), next)
        }
        other => panic!("{other:?}"),
    }
}

/// Copies all files as they are now: what a killed process would leave.
pub(super) fn crash_image(from: &Path, to: &Path) {
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

#[test]
fn scans_go_in_order_from_the_cursor() {
    let (_dir, mut store) = fresh();
    let keys = [(300, 1), (100, 2), (100, 9), (100, 5), (200, 3), (u64::MAX, u64::MAX)];
    store.commit(&[group(1, keys.iter().map(|(d, s)| put(*d, *s)).collect())]).unwrap();

    // Ties in one millisecond by arrival; `next` is the first row left out.
    let (rows, next) = time(&mut *store, Key::default(), u64::MAX, 2);
    assert_eq!((rows, next), (vec![key(100, 2), key(100, 5)], Some(key(100, 9))));
    let (rows, next) = time(&mut *store, key(100, 9), u64::MAX, 10);
    assert_eq!((rows, next), (vec![key(100, 9), key(200, 3), key(300, 1)], None));
    // `from` is inclusive, need not exist, and `until` is exclusive.
    assert_eq!(time(&mut *store, key(100, 3), 300, 10), (vec![key(100, 5), key(100, 9), key(200, 3)], None));
    assert_eq!(time(&mut *store, key(200, 4), 300, 10), (vec![], None));
    // As many rows as asked for, and none left: the end was met.
    assert_eq!(time(&mut *store, key(200, 0), 300, 1), (vec![key(200, 3)], None));
    assert_eq!(time(&mut *store, key(200, 0), 301, 1), (vec![key(200, 3)], Some(key(300, 1))));
    assert_eq!(time(&mut *store, key(200, 0), u64::MAX, 0), (vec![], Some(key(200, 3))));
    assert_eq!(time(&mut *store, key(500, 0), 400, 10), (vec![], None));
}

#[test]
fn items_come_back_whole_and_contents_stop_at_the_limit() {
    let (_dir, mut store) = fresh();
    store.commit(&[group(1, vec![put(1, 1), put(2, 2), put(3, 3)])]).unwrap();
    let content = item(1, 1).content.unwrap();
    let size = (content.properties.len() + content.body.len() + 128) as u64;
    let mut load = |max_bytes| {
        let load = Load::Time { from: Key::default(), until: 9, max_rows: 9, max_bytes };
        match store.load(&load).unwrap() {
            Loaded::Time { rows, next: None } => rows,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(load(u64::MAX), vec![item(1, 1), item(2, 2), item(3, 3)]);
    let bare = |due| Stored { content: None, ..item(due, due) };
    assert_eq!(load(2 * size), vec![item(1, 1), item(2, 2), bare(3)]);
    assert_eq!(load(2 * size - 1), vec![item(1, 1), bare(2), bare(3)]);
    assert_eq!(load(0), vec![bare(1), bare(2), bare(3)]);
}

#[test]
fn contents_are_found_by_place_and_their_absence_is_damage() {
    let (_dir, mut store) = fresh();
    store.commit(&[group(1, vec![put(1, 1), put(2, 2), park(Place::Time, key(2, 2), "app", 1)])]).unwrap();
    let wanted = vec![(70, lane("app"), key(2, 2)), (71, Place::Time, key(1, 1))];
    let found = vec![(70, item(2, 2).content.unwrap()), (71, item(1, 1).content.unwrap())];
    assert_eq!(store.load(&Load::Contents(wanted.clone())).unwrap(), Loaded::Contents(found.clone()));
    assert_eq!(store.reader().unwrap().contents(&wanted).unwrap(), Some(found));

    let gone = vec![(72, Place::Time, key(2, 2))];
    assert!(matches!(
        store.load(&Load::Contents(gone.clone())),
        Err(StoreError::Missing { place: Place::Time, key: Key { due: 2, seq: 2 } })
    ));
    assert_eq!(store.reader().unwrap().contents(&gone).unwrap(), None);
}

#[test]
fn groups_take_effect_in_order() {
    let (_dir, mut store) = fresh();
    // The last word counts, within a group and over groups handed in together.
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
fn parking_moves_an_item_with_its_content() {
    let (dir, mut store) = fresh();
    let dead = Arc::new(Dead { reason: Reason::Attempts, error: "3 attempts".into() });
    store.commit(&[group(1, vec![put_indexed(1, 1, "c"), put(2, 2)])]).unwrap();
    let op = Op::Park {
        from: Place::Time,
        key: key(1, 1),
        indexed: indexed(None, "c"),
        identity: None,
        lane: "app".into(),
        attempts: 3,
        last_error: Some("nack".into()),
        dead: Some(dead.clone()),
    };
    // One that is on the disk, one written earlier in the same group, one in an earlier group of the same call.
    store
        .commit(&[
            group(2, vec![op, put(3, 3), park(Place::Time, key(3, 3), "app", 1)]),
            group(3, vec![park(lane("app"), key(3, 3), "app", 2), park(Place::Time, key(2, 2), "other", 7)]),
        ])
        .unwrap();
    assert_eq!(everything(&mut *store), vec![]);
    assert_eq!(of_customer(&mut *store, "c", Key::default(), 9), (vec![], None));
    let first = Stored { attempts: 3, last_error: Some("nack".into()), dead: Some(dead), ..item(1, 1) };
    let third = Stored { attempts: 2, last_error: Some("no queue".into()), ..item(3, 3) };
    assert_eq!(in_lane(&mut *store, "app", Key::default(), 9), (vec![first.clone(), third.clone()], None));
    assert_eq!(in_lane(&mut *store, "app", Key::default(), 1), (vec![first], Some(key(3, 3))));
    assert_eq!(in_lane(&mut *store, "app", key(1, 2), 9), (vec![third], None));

    // On to the dead exchange's lane, whose name is empty, over a restart.
    store.commit(&[group(4, vec![park(lane("other"), key(2, 2), "", 8)])]).unwrap();
    drop(store);
    let mut store = open_at(dir.path()).store;
    let second = Stored { attempts: 8, last_error: Some("no queue".into()), ..item(2, 2) };
    assert_eq!(in_lane(&mut *store, "", Key::default(), 9), (vec![second], None));
    assert_eq!(in_lane(&mut *store, "other", Key::default(), 9), (vec![], None));
    let gone = Op::Delete { place: lane(""), key: key(2, 2), indexed: Indexed::default() };
    store.commit(&[group(5, vec![gone])]).unwrap();
    assert_eq!(in_lane(&mut *store, "", Key::default(), 9), (vec![], None));
}

#[test]
fn parking_what_is_not_there_fails_and_writes_nothing() {
    let (_dir, mut store) = fresh();
    let result = store.commit(&[group(1, vec![put(1, 1), park(Place::Time, key(2, 2), "app", 1)])]);
    assert!(matches!(result, Err(StoreError::Missing { place: Place::Time, key: Key { due: 2, seq: 2 } })));
    let result =
        store.commit(&[group(1, vec![put(1, 1), delete(1, 1), park(Place::Time, key(1, 1), "app", 1)])]);
    assert!(matches!(result, Err(StoreError::Missing { .. })));
    let bare = Stored { content: None, ..item(3, 3) };
    let op = Op::Put { place: Place::Time, item: Box::new(bare), indexed: Indexed::default() };
    assert!(matches!(
        store.commit(&[group(1, vec![op])]),
        Err(StoreError::NoContent { key: Key { seq: 3, .. } })
    ));
    assert_eq!(everything(&mut *store), vec![]);
}

#[test]
fn a_customer_is_found_by_index_rows_alone() {
    let (_dir, mut store) = fresh();
    let index = |seq| Op::Index { key: key(seq, seq), indexed: indexed(None, "c") };
    store
        .commit(&[group(
            1,
            vec![
                put_indexed(5, 5, "c"),
                put(6, 6),
                put_indexed(7, 7, "c2"),
                put(8, 8),
                index(8),
                put_indexed(9, 9, "c"),
            ],
        )])
        .unwrap();
    assert_eq!(
        of_customer(&mut *store, "c", Key::default(), 9),
        (vec![key(5, 5), key(8, 8), key(9, 9)], None)
    );
    assert_eq!(of_customer(&mut *store, "c", key(5, 6), 1), (vec![key(8, 8)], Some(key(9, 9))));
    assert_eq!(of_customer(&mut *store, "c2", Key::default(), 9), (vec![key(7, 7)], None));
    let gone = Op::Delete { place: Place::Time, key: key(8, 8), indexed: indexed(None, "c") };
    store.commit(&[group(2, vec![gone])]).unwrap();
    assert_eq!(of_customer(&mut *store, "c", key(5, 6), 9), (vec![key(9, 9)], None));
    // An index row without its item is damage, not an item less.
    store.commit(&[group(3, vec![delete(9, 9)])]).unwrap();
    let load = Load::Group { application: "app".into(), customer: "c".into(), from: key(5, 6), max_rows: 9 };
    let error = store.load(&load).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { keyspace: "customers", .. }), "{error}");
}

#[test]
fn room_is_measured() {
    let (_dir, store) = fresh();
    let usage = store.usage().unwrap();
    assert!(usage.used > 0 && usage.free > 0 && usage.total >= usage.free, "{usage:?}");
}

#[test]
fn the_memory_store_keeps_no_items() {
    let settings = config::Store { kind: StoreKind::Memory, ..config(Path::new("/nowhere/at/all")) };
    let (first, second) =
        (open(&settings, 1 << 20, false).unwrap(), open(&settings, 1 << 20, false).unwrap());
    assert_ne!(first.identity, second.identity);
    assert_eq!(first.opened, Opened::default());
    let mut store = first.store;
    store.commit(&[group(1, vec![])]).unwrap();
    assert_eq!(everything(&mut *store), vec![]);
    let walk = walk_tests::all(Key::default(), 9, 9);
    assert_eq!(store.load(&walk).unwrap(), Loaded::Walked { number: 7, rows: vec![], next: None });
    assert!(store.reader().is_none());
    assert!(store.load(&Load::Contents(vec![(1, Place::Time, key(1, 1))])).is_err());
    store.close().unwrap();
}

/// What `every_commit_is_synced` runs under strace.
#[test]
fn three_commits() {
    let (_dir, mut store) = fresh();
    for n in 1..=3 {
        store.commit(&[group(n, vec![put(n, n)]), group(n, vec![delete(n, n)])]).unwrap();
    }
}

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
        .args(["--exact", "store::tests::three_commits"])
        .output();
    match traced {
        Ok(output) if output.status.success() => {}
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
