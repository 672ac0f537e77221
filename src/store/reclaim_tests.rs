//! Tests of reclaimed space, and of a storage engine that has failed between two commits.

use super::ended_tests::in_tables;
use super::keyspace::KeyspaceId;
use super::tests::{config, delete, disk_at, everything, group, item, key, open_at, put_item};
use super::thread::{StoreEvent, ThreadLimits};
use super::thread_tests::{start, SOON};
use super::*;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tidegate_types::event::Stored;

/// Opens a store with the smallest possible memtables.
fn open_small(path: &Path) -> Box<dyn Store> {
    open(&config(path), 0, false, tidegate_common::clock::wall_ms()).unwrap().store
}

/// An incompressible item of 3 kB.
fn big(seq: u64) -> Op {
    let mut state = seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let byte = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    let content = Content { properties: vec![], body: (0..3_000).map(byte).collect(), json: false };
    put_item(Stored { content: Some(Arc::new(content)), ..item(seq, seq) }, false)
}

#[test]
fn room_comes_back_once_everything_was_deleted() {
    const ITEMS: u64 = 2_000;
    let dir = tempfile::tempdir().unwrap();
    let mut store = disk_at(dir.path(), 0);
    for start in (0..ITEMS).step_by(100) {
        store.commit(&[group(start, (start..start + 100).map(big).collect())]).unwrap();
    }
    store.flush().unwrap();
    // One item stays.
    let gone = (1..ITEMS).map(|seq| delete(seq, seq)).collect();
    store.commit(&[group(ITEMS, gone)]).unwrap();
    let (handle, events) = start(Box::new(store), ThreadLimits::of(0));
    let end = Instant::now() + SOON;
    let before = in_tables(dir.path());
    assert!(before > 2 << 20, "{before} bytes were flushed, so little was tried");
    let used = handle.stats().usage.unwrap().used;
    handle.reclaim();
    while in_tables(dir.path()) > before / 20 {
        assert!(Instant::now() < end, "{} bytes are left of {before}", in_tables(dir.path()));
        // The call has no effect while many rows are being flushed.
        handle.reclaim();
        std::thread::sleep(Duration::from_millis(10));
    }
    // The measured usage follows, within the age of a measurement.
    while handle.stats().usage.unwrap().used > used - before / 2 {
        assert!(Instant::now() < end, "{:?}, and {used} before", handle.stats());
        std::thread::sleep(Duration::from_millis(10));
    }
    // The store continues during the job, and a second attempt within the minute has no effect.
    handle.reclaim();
    handle.commit(group(ITEMS + 1, vec![big(ITEMS)]));
    assert!(matches!(events.recv_timeout(SOON).unwrap(), StoreEvent::Committed(token) if token == ITEMS + 1));
    handle.close(SOON).unwrap();
    assert_eq!(everything(&mut *open_at(dir.path()).store), vec![key(0, 0), key(ITEMS, ITEMS)]);
}

/// Removes the directory to which the storage engine's workers write the items, as a failing disk would.
fn break_flushes(path: &Path) {
    let keyspace = path.join(format!("db/keyspaces/{}", KeyspaceId::Items.index() + 1));
    std::fs::rename(keyspace.join("tables"), keyspace.join("gone")).unwrap();
}

/// The error of a store whose flushes fail, within `SOON` at the latest.
fn fails(mut store: Box<dyn Store>) -> CommitError {
    let (done, failed) = channel();
    std::thread::spawn(move || {
        let error = (0..200).find_map(|n| store.commit(&[group(n, (0..100).map(big).collect())]).err());
        let again = store.commit(&[group(999, vec![big(1)])]);
        let _ = done.send((error, again.is_err()));
    });
    let (error, again) = failed.recv_timeout(SOON).expect("a commit never returns");
    assert!(again, "nothing is taken after the failure");
    error.expect("60 MB of commits went through without a flush")
}

#[test]
fn a_flush_that_fails_ends_the_next_commits_and_never_hangs_them() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_small(dir.path());
    break_flushes(dir.path());
    let error = fails(store);
    assert!(error.to_string().contains("an earlier write to a table or to the log failed"), "{error}");
}

#[test]
fn a_flush_that_fails_is_noticed_without_a_commit() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open_small(dir.path());
    break_flushes(dir.path());
    // Just enough rows to begin a flush.
    store.commit(&[group(1, (0..400).map(big).collect())]).unwrap();
    let (handle, events) = start(store, ThreadLimits::of(0));
    let end = Instant::now() + SOON;
    let failed = loop {
        // A request for the figures makes the store check its health, once a second.
        handle.stats();
        match events.recv_timeout(Duration::from_millis(50)) {
            Ok(StoreEvent::Failed(failed)) => break failed,
            Ok(other) => panic!("{other:?}"),
            Err(_) => assert!(Instant::now() < end, "the failure goes unnoticed"),
        }
    };
    assert!(matches!(failed, StoreFailure::Commit(CommitError::Engine { .. })), "{failed}");
    handle.close(SOON).unwrap();
}
