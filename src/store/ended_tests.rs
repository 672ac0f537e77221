//! Tests of the remembered ends of items.

use super::find_tests::{find, wanted};
use super::ground::{on_each, GroundKind};
use super::keyspace::KeyspaceId;
use super::tests::{crash_image, disk_at, everything, fresh, given, group, key, open_at, put};
use super::*;
use std::fs;
use std::path::Path;
use tidegate_types::event::{BucketRow, BUCKETS};
use tidegate_types::{BatchId, Dead, End, Ended, Identity, Reason};

on_each! {
    the_end_of_an_item_is_remembered_in_its_bucket,
    buckets_are_told_in_the_order_in_which_they_began_whatever_the_clock_was,
    a_bucket_that_begins_anew_knows_nothing_of_before,
    what_is_left_in_a_bucket_hides_nothing_in_another,
    damaged_rows_of_buckets_are_named,
    #[should_panic(expected = "there is no bucket 8")]
    there_are_no_more_buckets_to_begin,
    #[should_panic(expected = "there is no bucket 8")]
    there_are_no_more_buckets_to_look_into,
}

fn ended(at: u64) -> Ended {
    Ended {
        end: End::Sent(BatchId([3; 16])),
        at,
        due: 5,
        attempts: 2,
        fingerprint: 6,
        customer: Some("c".into()),
    }
}

pub(crate) fn remember(bucket: u8, identity: Identity, at: u64) -> Op {
    Op::Remember { bucket, identity, ended: Box::new(ended(at)) }
}

pub(crate) fn begin(bucket: u8, from: u64) -> Op {
    Op::BeginBucket(BucketRow { bucket, from })
}

/// When the item ended, by the first of the buckets that contains it.
fn at(store: &mut dyn Store, identity: Identity, buckets: &[u8]) -> Option<u64> {
    let found = find(store, vec![wanted(identity, buckets)]).remove(0);
    assert_eq!(found.item, None);
    found.ended.map(|found| {
        assert_eq!(found, ended(found.at));
        found.at
    })
}

/// Size of all table files of a store, in bytes.
pub(crate) fn in_tables(path: &Path) -> u64 {
    let keyspaces = fs::read_dir(path.join("db/keyspaces")).unwrap();
    let tables = keyspaces.filter_map(|keyspace| fs::read_dir(keyspace.unwrap().path().join("tables")).ok());
    // A file may be deleted during this.
    tables.flatten().filter_map(|file| file.unwrap().metadata().ok()).map(|file| file.len()).sum()
}

fn the_end_of_an_item_is_remembered_in_its_bucket(on: GroundKind) {
    let (dir, mut store) = on.fresh();
    let dead = Arc::new(Dead { reason: Reason::Expired, error: "too late".into() });
    let other = Ended { end: End::Dead(dead), at: 9, due: 8, attempts: 0, fingerprint: 1, customer: None };
    let cancelled = Ended { end: End::Cancelled, ..other.clone() };
    let of =
        |n, ended: &Ended| Op::Remember { bucket: 1, identity: given(n), ended: Box::new(ended.clone()) };
    let first = vec![begin(0, 1), remember(0, given(1), 10), remember(0, given(1), 11)];
    store
        .commit(&[
            group(1, first),
            group(2, vec![begin(1, 2), remember(1, given(1), 20), of(2, &other), of(3, &cancelled)]),
        ])
        .unwrap();
    for _ in 0..2 {
        assert_eq!(at(&mut *store, given(1), &[1, 0]), Some(20));
        assert_eq!(at(&mut *store, given(1), &[7, 0, 1]), Some(11));
        assert_eq!(at(&mut *store, given(1), &[]), None);
        assert_eq!(at(&mut *store, given(9), &[0, 1, 2, 3, 4, 5, 6, 7]), None);
        let found = find(&mut *store, vec![wanted(given(2), &[0, 1]), wanted(given(3), &[0, 1])]);
        let found: Vec<_> = found.into_iter().map(|found| found.ended).collect();
        assert_eq!(found, vec![Some(other.clone()), Some(cancelled.clone())]);
        drop(store);
        let again = dir.open();
        let rows = vec![BucketRow { bucket: 0, from: 1 }, BucketRow { bucket: 1, from: 2 }];
        assert_eq!(again.opened.buckets, rows);
        store = again.store;
    }
}

fn buckets_are_told_in_the_order_in_which_they_began_whatever_the_clock_was(on: GroundKind) {
    let (dir, mut store) = on.fresh();
    for (n, (bucket, from)) in [(0, 900), (1, 700), (0, 800)].into_iter().enumerate() {
        store.commit(&[group(n as u64 + 1, vec![begin(bucket, from)])]).unwrap();
    }
    drop(store);
    let rows = vec![BucketRow { bucket: 1, from: 700 }, BucketRow { bucket: 0, from: 800 }];
    assert_eq!(dir.open().opened.buckets, rows);
    let (dir, mut store) = on.fresh();
    store.commit(&[group(1, vec![begin(0, 900)])]).unwrap();
    store.commit(&[group(2, vec![begin(1, 700)])]).unwrap();
    drop(store);
    let rows = vec![BucketRow { bucket: 0, from: 900 }, BucketRow { bucket: 1, from: 700 }];
    assert_eq!(dir.open().opened.buckets, rows);
}

fn a_bucket_that_begins_anew_knows_nothing_of_before(on: GroundKind) {
    let (dir, mut store) = on.fresh();
    store
        .commit(&[group(1, vec![begin(0, 1), remember(0, given(1), 10), remember(0, given(2), 11)])])
        .unwrap();
    // Rows before the beginning are removed, later ones stay, also over the groups of one call.
    store
        .commit(&[
            group(2, vec![remember(0, given(3), 12)]),
            group(3, vec![remember(0, given(4), 13), begin(0, 50), remember(0, given(4), 51)]),
            group(4, vec![remember(0, given(5), 52)]),
        ])
        .unwrap();
    for _ in 0..2 {
        let known: Vec<_> = (1..6).map(|n| at(&mut *store, given(n), &[0])).collect();
        assert_eq!(known, vec![None, None, None, Some(51), Some(52)]);
        drop(store);
        let again = dir.open();
        assert_eq!(again.opened.buckets, vec![BucketRow { bucket: 0, from: 50 }]);
        store = again.store;
    }
}

fn what_is_left_in_a_bucket_hides_nothing_in_another(on: GroundKind) {
    let (_dir, mut store) = on.fresh();
    store.commit(&[group(1, vec![begin(0, 1), begin(1, 2), remember(0, given(1), 10)])]).unwrap();
    store.commit(&[group(2, vec![remember(1, given(1), 20), begin(0, 30)])]).unwrap();
    assert_eq!(at(&mut *store, given(1), &[0, 1]), Some(20));
}

/// A small memory limit flushes often, so that there are tables and memtables of several epochs, and rows
/// restored after a crash.
#[test]
fn epochs_of_a_bucket_never_mix_and_their_files_go() {
    let (dir, mut store) = fresh();
    const ROWS: u64 = 40_000;
    const EPOCHS: u64 = 8;
    let row = 16 + ended::encode(Identity::assigned(ROWS), 9, &ended(ROWS)).len() as u64;
    let mut most = 0;
    for epoch in 0..EPOCHS {
        store.commit(&[group(epoch, vec![begin(3, epoch)])]).unwrap();
        for start in (epoch * ROWS..(epoch + 1) * ROWS).step_by(4_000) {
            let ops = (start..start + 4_000).map(|n| remember(3, Identity::assigned(n), n));
            store.commit(&[group(start, ops.collect())]).unwrap();
        }
        most = most.max(in_tables(dir.path()));
    }
    assert!(most > ROWS * row / 2, "little was flushed, so little was tried: {most} bytes");
    assert!(most < 3 * ROWS * row, "{most} bytes are on the disk, an epoch has {}", ROWS * row);
    let last = |store: &mut dyn Store| {
        for n in ((EPOCHS - 1) * ROWS..EPOCHS * ROWS).step_by(997) {
            assert_eq!(at(store, Identity::assigned(n), &[3]), Some(n));
            assert_eq!(at(store, Identity::assigned(n - ROWS), &[3]), None);
        }
    };
    last(&mut *store);
    drop(store);
    last(&mut *open_at(dir.path()).store);
}

/// A crash between the removal of a bucket's tables and the commit that begins the bucket.
#[test]
fn a_crash_while_a_bucket_begins_loses_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = disk_at(dir.path(), 32 << 20);
    const ROWS: u64 = 40_000;
    store.commit(&[group(1, vec![begin(3, 1), begin(4, 2), put(7, 7)])]).unwrap();
    for start in (0..ROWS).step_by(4_000) {
        let of = |bucket| move |n| remember(bucket, Identity::assigned(n), n);
        let ops = (start..start + 4_000).map(of(3)).chain((start..start + 2_000).map(of(4)));
        store.commit(&[group(start, ops.collect())]).unwrap();
    }
    store.flush().unwrap();
    drop(store);
    let before = dir.path().join("before");
    crash_image(&dir.path().join("db"), &before);
    let noted = fs::read(dir.path().join("COMMITTED")).unwrap();
    let full = in_tables(dir.path());

    let mut store = open_at(dir.path()).store;
    store.commit(&[group(9, vec![begin(3, 99), remember(3, Identity::assigned(5), 12)])]).unwrap();
    drop(store);
    // The open deletes obsolete files.
    open_at(dir.path());
    assert!(in_tables(dir.path()) < full, "nothing was dropped, so nothing was tried");
    // The earlier state of the log.
    let logs = |path: &Path| {
        let files = fs::read_dir(path).unwrap().map(|file| file.unwrap().path());
        files.filter(|file| file.extension().is_some_and(|e| e == "jnl")).collect::<Vec<_>>()
    };
    let after = dir.path().join("after");
    crash_image(&dir.path().join("db"), &after.join("db"));
    logs(&after.join("db")).iter().for_each(|log| fs::remove_file(log).unwrap());
    for log in logs(&before) {
        fs::copy(&log, after.join("db").join(log.file_name().unwrap())).unwrap();
    }
    fs::write(after.join("COMMITTED"), noted).unwrap();

    let mut torn = open_at(&after);
    let from = torn.opened.buckets.iter().map(|row| (row.bucket, row.from)).collect::<Vec<_>>();
    assert_eq!(everything(&mut *torn.store), vec![key(7, 7)]);
    for n in 0..ROWS {
        // The flushed rows are gone, and the others are unchanged.
        let known = at(&mut *torn.store, Identity::assigned(n), &[3]);
        assert!(known.is_none_or(|at| at == n), "{n}: {known:?}");
        let other = at(&mut *torn.store, Identity::assigned(n), &[4]);
        assert_eq!(other, (n % 4_000 < 2_000).then_some(n));
    }
    assert!(from.contains(&(4, 2)), "{from:?}");
    // The bucket begins again, and works.
    let again = vec![begin(3, 99), remember(3, Identity::assigned(5), 12)];
    torn.store.commit(&[group(9, again)]).unwrap();
    drop(torn);
    let mut again = open_at(&after);
    assert!(again.opened.buckets.contains(&BucketRow { bucket: 3, from: 99 }));
    let known = (0..ROWS).filter(|n| at(&mut *again.store, Identity::assigned(*n), &[3]).is_some());
    assert_eq!(known.collect::<Vec<_>>(), vec![5]);

    // After the durable commit a killed process finds everything.
    let mut store = open_at(dir.path());
    assert!(store.opened.buckets.contains(&BucketRow { bucket: 3, from: 99 }));
    assert_eq!(at(&mut *store.store, Identity::assigned(5), &[3]), Some(12));
    assert_eq!(at(&mut *store.store, Identity::assigned(6), &[3]), None);
}

fn damaged_rows_of_buckets_are_named(on: GroundKind) {
    let (dir, mut store) = on.fresh();
    store.commit(&[group(1, vec![begin(2, 1), remember(2, given(1), 10)])]).unwrap();
    drop(store);
    let row = ended::encode(given(1), 2, &ended(10));
    for bit in (0..row.len() * 8).step_by(31) {
        let mut flipped = row.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        dir.write_raw(KeyspaceId::Ended(2), &given(1).to_bytes(), Some(&flipped));
        let error = dir.open().store.load(&Load::Find(vec![wanted(given(1), &[0, 2])])).unwrap_err();
        let ReadError::Damaged { keyspace, key, .. } = &error else { panic!("{error}") };
        let named = *keyspace == "ended_2" && key.contains("identity ");
        assert!(named, "{error}");
    }
    dir.write_raw(KeyspaceId::Ended(2), rows::BUCKET, Some(b"garbage"));
    let error = dir.refusal();
    assert!(matches!(&error, OpenError::Damaged { place, .. } if place.contains("`ended_2`")), "{error}");
}

fn there_are_no_more_buckets_to_begin(on: GroundKind) {
    let (_dir, mut store) = on.fresh();
    let _ = store.commit(&[group(1, vec![begin(BUCKETS, 1)])]);
}

fn there_are_no_more_buckets_to_look_into(on: GroundKind) {
    let (_dir, mut store) = on.fresh();
    let _ = store.load(&Load::Find(vec![wanted(given(1), &[BUCKETS])]));
}
