//! Tests of opening a store: it finds the committed rows, and detects damage to its files. A crash is
//! simulated by a copy of the files of a store in use, as `kill -9` would leave them.

#![expect(clippy::wildcard_enum_match_arm, reason = "another error fails the test")]

use super::disk::write_raw;
use super::keyspace::KeyspaceId;
use super::rows;
use super::tests::{
    crash_image, delete, everything, failed, fresh, group, key, open_at, part, place, put, refusal, whole,
    APP,
};
use super::*;
use std::fs;
use tidegate_types::event::FOR_EVER;
use tidegate_types::event::{BucketRow, QueueRow, WindowRow};

/// Judges promise 9.
#[test]
fn marks_and_small_rows_survive() {
    let (dir, mut store) = fresh();
    let window = |customer: &str, count| WindowRow {
        application: "app".into(),
        customer: customer.into(),
        end: 99,
        window: 8,
        count,
        weight: 7,
        expiry: Some(3),
    };
    let queue = |name: &str, count, paused| QueueRow {
        queue: name.into(),
        count,
        low: key(4, 5),
        paused,
        unindexed_until: 6,
        slowed: None,
    };
    let (bucket, marks) = (|bucket, from| BucketRow { bucket, from }, Marks { next_seq: 77, wall: 0 });
    let over = vec![
        Op::DeleteWindow { application: "app".into(), customer: "b".into() },
        Op::PutQueue(queue("held", 0, Some(9_000))),
        Op::PutQueue(queue("held too", 3, Some(FOR_EVER))),
        Op::PutQueue(queue("runs", 2, None)),
        Op::PutQueue(queue("gone", 0, None)),
        Op::BeginBucket(bucket(7, 80)),
    ];
    store
        .commit(&[
            group(
                1,
                vec![
                    Op::PutWindow(window("a", 1)),
                    Op::PutWindow(window("b", 1)),
                    Op::PutWindow(window("a", 2)),
                    Op::PutQueue(queue("held", 5, Some(9_000))),
                    Op::PutQueue(queue("held too", 5, Some(FOR_EVER))),
                    Op::PutQueue(queue("runs", 5, None)),
                    Op::PutQueue(queue("gone", 5, Some(FOR_EVER))),
                    Op::PutQueue(queue("", 6, None)),
                    Op::BeginBucket(bucket(7, 60)),
                    Op::BeginBucket(bucket(2, 70)),
                ],
            ),
            CommitGroup { marks, ..group(2, over) },
        ])
        .unwrap();
    store.close().unwrap();
    let first = open_at(dir.path());
    let expected = Opened {
        marks,
        queues: vec![
            queue("", 6, None),
            queue("held", 0, Some(9_000)),
            queue("runs", 2, None),
            queue("held too", 3, Some(FOR_EVER)),
        ],
        windows: vec![window("a", 2)],
        buckets: vec![bucket(2, 70), bucket(7, 80)],
        ..Opened::default()
    };
    assert_eq!(first.opened, expected);
    assert_ne!(first.identity, 0);
    let identity = first.identity;
    drop(first);
    let again = open_at(dir.path());
    assert_eq!((again.opened, again.identity), (expected, identity));
}

#[test]
fn each_store_has_an_identity_of_its_own() {
    let (one, _) = fresh();
    let (other, _) = fresh();
    assert_ne!(open_at(one.path()).identity, open_at(other.path()).identity);
}

/// Judges promise 3.
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
    // The same without a close, in the same directory.
    drop(store);
    assert_eq!(everything(&mut *open_at(dir.path()).store).len(), 35);
}

#[test]
fn a_first_start_cut_short_is_begun_again() {
    let (dir, store) = fresh();
    drop(store);
    for meta in [rows::META_FORMAT, rows::META_IDENTITY, rows::META_MARKS] {
        write_raw(dir.path(), KeyspaceId::Meta, meta, None);
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
    write_raw(dir.path(), KeyspaceId::Meta, rows::META_FORMAT, Some(&rows::number_row(rows::META_FORMAT, 9)));
    assert!(matches!(refusal(dir.path()), OpenError::Newer { found: 9, known: rows::FORMAT }));
}

#[test]
fn an_older_format_is_refused_with_what_to_do() {
    // With all keyspaces, and without those that older formats did not have.
    let drain = "let the version that wrote it run";
    for (format, removed, way) in [
        (1, vec!["items", "identities", "queues"], drain),
        (2, vec!["items", "queues"], drain),
        (2, vec![], drain),
        (3, vec![], "tidegate store export DIR > FILE"),
        (4, vec![], "tidegate store export DIR > FILE"),
    ] {
        let (dir, mut store) = fresh();
        store.commit(&[group(1, vec![put(1, 1)])]).unwrap();
        drop(store);
        let row = rows::number_row(rows::META_FORMAT, format);
        write_raw(dir.path(), KeyspaceId::Meta, rows::META_FORMAT, Some(&row));
        let db = fjall::Database::builder(dir.path().join("db")).open().unwrap();
        for name in removed {
            db.delete_keyspace(db.keyspace(name, Default::default).unwrap()).unwrap();
        }
        drop(db);
        let error = refusal(dir.path());
        assert!(matches!(error, OpenError::Older { found } if u64::from(found) == format), "{error}");
        assert!(error.to_string().contains(way), "{error}");
    }
}

#[test]
fn damaged_meta_rows_are_named() {
    for meta in [rows::META_FORMAT, rows::META_IDENTITY, rows::META_MARKS] {
        for broken in [Some(b"garbage".as_slice()), None] {
            let (dir, mut store) = fresh();
            store.commit(&[group(1, vec![put(1, 1)])]).unwrap();
            drop(store);
            write_raw(dir.path(), KeyspaceId::Meta, meta, broken);
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
    write_raw(
        dir.path(),
        KeyspaceId::Items,
        &rows::item_key(APP, key(2, 2)).unwrap(),
        Some(b"not a record at all"),
    );
    let mut store = open_at(dir.path()).store;
    let named = |error: ReadError| match error {
        ReadError::Damaged { keyspace, key, .. } => {
            assert_eq!((keyspace, &*key), ("items", "queue `app` due 2 number 2"))
        }
        other => panic!("{other}"),
    };
    named(store.load(&whole(APP)).unwrap_err());
    named(store.load(&Load::Contents(vec![(1, place(APP, 2, 2))])).unwrap_err());
    named(store.reader().unwrap().contents(&[(1, place(APP, 2, 2))]).unwrap_err());
    match store.commit(&[group(2, vec![failed(2, 2, 1)])]).unwrap_err() {
        CommitError::Read(error) => named(error),
        other => panic!("{other}"),
    }
    // Other rows are still readable.
    assert_eq!(part(&mut *store, key(2, 3), 9, 9).0, vec![key(3, 3)]);
    drop(store);
    write_raw(dir.path(), KeyspaceId::Windows, &rows::prefix(&["app", "c"]).unwrap(), Some(b"short"));
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
    // To the storage engine a hole in the middle of synced commits looks like the incomplete end of a crash.
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

    // Without its `version` file the storage engine takes the directory for a new one.
    let mark = dir.path().join("db/version");
    let kept = fs::read(&mark).unwrap();
    fs::remove_file(&mark).unwrap();
    let error = refusal(dir.path());
    assert!(matches!(&error, OpenError::Damaged { place, .. } if place.ends_with("version")), "{error}");
    fs::write(&mark, kept).unwrap();

    for keyspace in fs::read_dir(dir.path().join("db/keyspaces")).unwrap().map(|e| e.unwrap().path()) {
        if keyspace.file_name().unwrap() == "1" {
            fs::remove_file(keyspace.join("current")).unwrap();
        }
    }
    let error = refusal(dir.path());
    assert!(matches!(&error, OpenError::Damaged { place, .. } if place.contains("keyspace `")), "{error}");
}

/// Judges promise 3.
#[test]
fn a_torn_end_is_no_damage() {
    let (dir, mut store) = fresh();
    store.commit(&[group(1, vec![put(1, 1)])]).unwrap();
    // The state of `COMMITTED` before the next commit, as a power cut during that commit leaves it.
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
