//! What a store promises, tried on real directories. A crash is tried on a copy of the files of a store in use:
//! that is what `kill -9` leaves behind.

#![expect(clippy::wildcard_enum_match_arm, reason = "another answer fails the test")]

use super::disk::write_raw;
use super::rows::{self, Space};
use super::*;
use crate::engine::event::{LaneRow, Stored, WindowRow};
use crate::engine::types::{Dead, Reason};
use std::fs;
use std::process::Command;

pub(super) fn key(due: u64, seq: u64) -> Key {
    Key { due, seq }
}

fn lane(name: &str) -> Place {
    Place::Lane(name.into())
}

pub(super) fn item(due: u64, seq: u64) -> Stored {
    let content = Content { properties: vec![1, 2], body: format!("body {seq}").into_bytes(), json: true };
    Stored {
        key: key(due, seq),
        application: "app".into(),
        customer: Some("c".into()),
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
    Op::Put { place: Place::Time, item: Box::new(item(due, seq)), indexed: false }
}

fn put_indexed(due: u64, seq: u64, customer: &str) -> Op {
    let item = Stored { customer: Some(customer.into()), ..item(due, seq) };
    Op::Put { place: Place::Time, item: Box::new(item), indexed: true }
}

fn names(customer: &str) -> Option<(Arc<str>, Arc<str>)> {
    Some(("app".into(), customer.into()))
}

pub(super) fn delete(due: u64, seq: u64) -> Op {
    Op::Delete { place: Place::Time, key: key(due, seq), indexed: None }
}

fn park(from: Place, key: Key, to: &str, attempts: u32) -> Op {
    let last_error = Some("no queue".into());
    Op::Park { from, key, indexed: None, lane: to.into(), attempts, last_error, dead: None }
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

fn refusal(path: &Path) -> OpenError {
    match open(&config(path), 32 << 20, false) {
        Ok(_) => panic!("opened"),
        Err(error) => error,
    }
}

/// A directory of its own, and a store in it.
fn fresh() -> (tempfile::TempDir, Box<dyn Store>) {
    let dir = tempfile::tempdir().unwrap();
    let store = open_at(dir.path()).store;
    (dir, store)
}

fn time(store: &mut dyn Store, from: Key, until: u64, max_rows: usize) -> (Vec<Key>, Option<Key>) {
    match store.load(&Load::Time { from, until, max_rows, max_bytes: u64::MAX }).unwrap() {
        Loaded::Time { rows, next } => (rows.iter().map(|r| r.key).collect(), next),
        other => panic!("{other:?}"),
    }
}

fn everything(store: &mut dyn Store) -> Vec<Key> {
    time(store, Key::default(), u64::MAX, usize::MAX).0
}

fn in_lane(store: &mut dyn Store, name: &str, from: Key, max_rows: usize) -> (Vec<Stored>, Option<Key>) {
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
fn crash_image(from: &Path, to: &Path) {
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
        indexed: names("c"),
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
    let gone = Op::Delete { place: lane(""), key: key(2, 2), indexed: None };
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
    let op = Op::Put { place: Place::Time, item: Box::new(bare), indexed: false };
    assert!(matches!(
        store.commit(&[group(1, vec![op])]),
        Err(StoreError::NoContent { key: Key { seq: 3, .. } })
    ));
    assert_eq!(everything(&mut *store), vec![]);
}

#[test]
fn a_customer_is_found_by_index_rows_alone() {
    let (_dir, mut store) = fresh();
    let index = |seq| Op::Index { key: key(seq, seq), application: "app".into(), customer: "c".into() };
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
    let gone = Op::Delete { place: Place::Time, key: key(8, 8), indexed: names("c") };
    store.commit(&[group(2, vec![gone])]).unwrap();
    assert_eq!(of_customer(&mut *store, "c", key(5, 6), 9), (vec![key(9, 9)], None));
    // An index row without its item is damage, not an item less.
    store.commit(&[group(3, vec![delete(9, 9)])]).unwrap();
    let load = Load::Group { application: "app".into(), customer: "c".into(), from: key(5, 6), max_rows: 9 };
    let error = store.load(&load).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { keyspace: "customers", .. }), "{error}");
}

#[test]
fn marks_windows_and_lanes_survive() {
    let (dir, mut store) = fresh();
    let window = |customer: &str, count| WindowRow {
        application: "app".into(),
        customer: customer.into(),
        end: 99,
        count,
        weight: 7,
        expiry: Some(3),
    };
    let lane_row = |name: &str, count| LaneRow { lane: name.into(), count, low: key(4, 5) };
    let marks = Marks { next_seq: 77, low: key(1, 2), bare_until: 3, waiting: 4 };
    store
        .commit(&[
            group(
                1,
                vec![
                    Op::PutWindow(window("a", 1)),
                    Op::PutWindow(window("b", 1)),
                    Op::PutWindow(window("a", 2)),
                    Op::PutLane(lane_row("app", 5)),
                    Op::PutLane(lane_row("", 6)),
                    Op::PutLane(lane_row("gone", 1)),
                ],
            ),
            Commit {
                ops: vec![
                    Op::DeleteWindow { application: "app".into(), customer: "b".into() },
                    Op::PutLane(lane_row("gone", 0)),
                ],
                token: 2,
                marks,
            },
        ])
        .unwrap();
    store.close().unwrap();
    let first = open_at(dir.path());
    let expected = Opened {
        marks,
        windows: vec![window("a", 2)],
        lanes: vec![lane_row("", 6), lane_row("app", 5)],
        applications: vec![],
    };
    assert_eq!(first.opened, expected);
    assert_ne!(first.identity, 0);
    let identity = first.identity;
    drop(first);
    let again = open_at(dir.path());
    assert_eq!((again.opened, again.identity), (expected, identity));
    let (_other, _) = fresh();
    assert_ne!(open_at(_other.path()).identity, identity);
}

#[test]
fn a_killed_process_loses_nothing_committed() {
    let (dir, mut store) = fresh();
    for round in 0..20 {
        store.commit(&[group(round, vec![put(round, round), put(1_000 + round, 1_000 + round)])]).unwrap();
        if round % 4 == 3 {
            store.commit(&[group(round, vec![delete(1_000 + round, 1_000 + round)])]).unwrap();
        }
    }
    let image = dir.path().join("image");
    crash_image(&dir.path().join("db"), &image.join("db"));
    fs::copy(dir.path().join("COMMITTED"), image.join("COMMITTED")).unwrap();
    let mut survivor = open_at(&image);
    assert_eq!(survivor.opened.marks.next_seq, 20);
    let rows = everything(&mut *survivor.store);
    assert_eq!(rows, everything(&mut *store));
    assert_eq!(rows.len(), 20 + 15);
    // And without a close, in the same directory.
    drop(store);
    assert_eq!(everything(&mut *open_at(dir.path()).store).len(), 35);
}

#[test]
fn a_first_start_cut_short_is_begun_again() {
    let (dir, store) = fresh();
    drop(store);
    for meta in [rows::META_FORMAT, rows::META_IDENTITY, rows::META_MARKS] {
        write_raw(dir.path(), Space::Meta, meta, None);
    }
    fs::remove_file(dir.path().join("COMMITTED")).unwrap();
    assert_eq!(open_at(dir.path()).opened, Opened::default());
}

#[test]
fn a_second_process_is_refused_by_pid() {
    let (dir, _store) = fresh();
    match refusal(dir.path()) {
        OpenError::Locked { pid, path } => {
            assert_eq!(pid, Some(std::process::id()));
            assert_eq!(path, dir.path().join("LOCK"));
        }
        other => panic!("{other}"),
    }
    assert!(refusal(dir.path()).to_string().contains(&std::process::id().to_string()));
}

#[test]
fn the_lock_lasts_as_long_as_a_reader() {
    let (dir, store) = fresh();
    let reader = store.reader().unwrap();
    store.close().unwrap();
    assert!(matches!(refusal(dir.path()), OpenError::Locked { .. }));
    drop(reader);
    open_at(dir.path());
}

#[test]
fn a_newer_format_is_refused() {
    let (dir, store) = fresh();
    drop(store);
    write_raw(dir.path(), Space::Meta, rows::META_FORMAT, Some(&rows::number_row(rows::META_FORMAT, 9)));
    assert!(matches!(refusal(dir.path()), OpenError::Newer { found: 9, known: 1 }));
}

#[test]
fn damaged_meta_rows_are_named() {
    for meta in [rows::META_FORMAT, rows::META_IDENTITY, rows::META_MARKS] {
        for broken in [Some(b"garbage".as_slice()), None] {
            let (dir, mut store) = fresh();
            store.commit(&[group(1, vec![put(1, 1)])]).unwrap();
            drop(store);
            write_raw(dir.path(), Space::Meta, meta, broken);
            let name = String::from_utf8(meta.to_vec()).unwrap();
            match refusal(dir.path()) {
                OpenError::Damaged { place, error } => {
                    assert!(place.contains("`meta`") && place.contains(&name), "{place}: {error}");
                }
                other => panic!("{other}"),
            }
        }
    }
}

#[test]
fn damaged_rows_are_named_and_never_skipped() {
    let (dir, mut store) = fresh();
    store.commit(&[group(1, vec![put(1, 1), put(2, 2), put(3, 3)])]).unwrap();
    drop(store);
    write_raw(dir.path(), Space::Time, &rows::time_key(key(2, 2)), Some(b"not a record at all"));
    let mut store = open_at(dir.path()).store;
    let named = |error: StoreError| match error {
        StoreError::Damaged { keyspace, key, .. } => {
            assert_eq!((keyspace, &*key), ("time", "due 2 number 2"))
        }
        other => panic!("{other}"),
    };
    named(store.load(&Load::Time { from: Key::default(), until: 9, max_rows: 9, max_bytes: 0 }).unwrap_err());
    named(store.load(&Load::Contents(vec![(1, Place::Time, key(2, 2))])).unwrap_err());
    named(store.reader().unwrap().contents(&[(1, Place::Time, key(2, 2))]).unwrap_err());
    named(store.commit(&[group(2, vec![park(Place::Time, key(2, 2), "app", 1)])]).unwrap_err());
    // What lies beside it can still be read.
    assert_eq!(time(&mut *store, key(2, 3), 9, 9).0, vec![key(3, 3)]);
    drop(store);
    write_raw(dir.path(), Space::Windows, &rows::prefix(&["app", "c"]).unwrap(), Some(b"short"));
    let error = refusal(dir.path());
    assert!(matches!(&error, OpenError::Damaged { place, .. } if place.contains("`windows`")), "{error}");
}

#[test]
fn a_lost_keyspace_or_log_is_noticed() {
    let (dir, mut store) = fresh();
    for n in 1..=3 {
        store.commit(&[group(n, vec![put(n, n)])]).unwrap();
    }
    drop(store);
    let log = fs::read_dir(dir.path().join("db"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .find(|p| p.extension().is_some_and(|e| e == "jnl"))
        .unwrap();
    // A hole in the middle of synced commits looks to the storage engine like the torn end of a crash.
    let good = fs::read(&log).unwrap();
    let mut holed = good.clone();
    let middle = good.iter().rposition(|b| *b != 0).unwrap() / 2;
    holed[middle..].fill(0);
    fs::write(&log, &holed).unwrap();
    match refusal(dir.path()) {
        OpenError::Damaged { place, error } => {
            assert!(place.contains(".jnl"), "{place}");
            assert!(error.contains("to 3 had been made durable"), "{error}");
        }
        other => panic!("{other}"),
    }
    fs::write(&log, &good).unwrap();
    assert_eq!(everything(&mut *open_at(dir.path()).store).len(), 3);

    for keyspace in fs::read_dir(dir.path().join("db/keyspaces")).unwrap().map(|e| e.unwrap().path()) {
        if keyspace.file_name().unwrap() == "1" {
            fs::remove_file(keyspace.join("current")).unwrap();
        }
    }
    let error = refusal(dir.path());
    assert!(matches!(&error, OpenError::Damaged { place, .. } if place.contains("keyspace `")), "{error}");
}

#[test]
fn a_torn_end_is_no_damage() {
    let (dir, mut store) = fresh();
    store.commit(&[group(1, vec![put(1, 1)])]).unwrap();
    // The state of the note before the next commit: what a power cut during that commit leaves.
    let noted = fs::read(dir.path().join("COMMITTED")).unwrap();
    store.commit(&[group(2, vec![put(2, 2)])]).unwrap();
    drop(store);
    fs::write(dir.path().join("COMMITTED"), noted).unwrap();
    let log = dir.path().join("db/0.jnl");
    let bytes = fs::read(&log).unwrap();
    let end = bytes.iter().rposition(|b| *b != 0).unwrap();
    fs::write(&log, &bytes[..end - 3]).unwrap();
    let again = open_at(dir.path());
    assert_eq!(again.opened.marks.next_seq, 2);
    let mut store = again.store;
    assert_eq!(everything(&mut *store), vec![key(1, 1)]);
    store.commit(&[group(2, vec![put(2, 2)])]).unwrap();
    drop(store);
    assert_eq!(everything(&mut *open_at(dir.path()).store), vec![key(1, 1), key(2, 2)]);
}

#[test]
fn room_is_measured() {
    let (_dir, store) = fresh();
    let usage = store.usage().unwrap();
    assert!(usage.used > 0 && usage.free > 0 && usage.total >= usage.free, "{usage:?}");
}

#[test]
fn the_memory_store_keeps_nothing() {
    let settings = config::Store { kind: StoreKind::Memory, ..config(Path::new("/nowhere/at/all")) };
    let (first, second) =
        (open(&settings, 1 << 20, false).unwrap(), open(&settings, 1 << 20, false).unwrap());
    assert_ne!(first.identity, second.identity);
    assert_eq!(first.opened, Opened::default());
    let mut store = first.store;
    store.commit(&[group(1, vec![])]).unwrap();
    assert_eq!(everything(&mut *store), vec![]);
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
            println!("skipped: strace cannot be used here: {other:?}");
            return;
        }
    }
    let calls = fs::read_to_string(trace.path()).unwrap();
    let synced = |call: &str, file: &str| {
        calls.lines().filter(|l| l.contains(call) && l.contains(file) && l.ends_with("= 0")).count()
    };
    assert_eq!(synced("fdatasync(", ".jnl>"), 3, "{calls}");
    assert!(synced("fsync(", ".jnl>") >= 1, "the first commit of a new store: {calls}");
    assert!(synced("fsync(", "/db>") >= 1, "the directory: {calls}");
}
