//! A failing disk: the n-th write or sync of a process, for every n, and a full disk.
//!
//! A commit that the store reported must be there when the store is opened again, whatever failed and at any
//! time. `STORE_FAULTS=all` tries every n; otherwise each run tries another part of them and prints its seed.

#![expect(clippy::unwrap_used, reason = "a test that fails is to stop")]
#![expect(clippy::wildcard_enum_match_arm, reason = "another answer fails the test")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_common::clock;
use tidegate_config::StoreKind;
use tidegate_harness::{bounded, lacks, require, say, Disk, Moments};
use tidegate_store::{open, CommitError, CommitGroup, OpenError, OpenStore, Store};
use tidegate_types::event::{Load, Loaded, Marks, Op, Range, Stored};
use tidegate_types::{ClosedBy, Content, Key};

/// Directory of the child's store and of its report.
const DIR: &str = "TIDEGATE_STORE_FAULT_DIR";
const COMMITS: u64 = 14;
const PART: u64 = 150 << 10;

fn put_bytes(number: u64, len: u64) -> Op {
    let body = (0..len).map(|n| (n.wrapping_mul(number | 1) >> 3) as u8).collect();
    let content = Content { properties: vec![1, 2], body, json: false };
    let item = Stored {
        key: Key::own(number, number),
        due: number,
        accepted_due: number,
        application: "app".into(),
        customer: None,
        given: None,
        fingerprint: 0,
        received: 5,
        own_time: true,
        expiry: None,
        weight: 100,
        closed_by: ClosedBy::Time,
        attempts: 0,
        retry: 0,
        last_error: None,
        outcome_unknown: false,
        dead: None,
        content: Some(Arc::new(content)),
    };
    Op::Put { item: Box::new(item), indexed: false }
}

fn group(number: u64) -> CommitGroup {
    let marks = Marks { next_seq: number + 1, wall: 0 };
    CommitGroup { ops: vec![put_bytes(number, PART)], token: number, marks, hurried: false }
}

fn keys(numbers: impl IntoIterator<Item = u64>) -> Vec<Key> {
    numbers.into_iter().map(|number| Key::own(number, number)).collect()
}

fn everything(store: &mut dyn Store) -> Vec<Key> {
    let (mut keys, mut next) = (Vec::new(), Some(Key::default()));
    // One read returns a limited number of bytes.
    while let Some(from) = next {
        let rest = Range { queue: "app".into(), from, until: u64::MAX, max_rows: usize::MAX };
        match store
            .load(&Load::Ranges { ranges: vec![rest], max_rows: usize::MAX, max_bytes: u64::MAX })
            .unwrap()
        {
            Loaded::Ranges(answers) => {
                let rows = &answers[0].rows;
                let whole = |row: &Stored| row.content.as_ref().is_some_and(|c| c.body.len() as u64 == PART);
                assert!(rows.iter().all(whole));
                keys.extend(rows.iter().map(|row| row.key));
                next = answers[0].next;
            }
            other => panic!("{other:?}"),
        }
    }
    keys
}

/// With little memory, so that memtables are flushed to tables. A child process that another test forks holds
/// this process's file locks until its exec, so a locked store is opened again.
fn open_at(path: &Path) -> Result<OpenStore, OpenError> {
    let hold_max = Duration::from_secs(1_500);
    let config = tidegate_config::StoreConfig {
        kind: StoreKind::Disk,
        path: path.to_owned(),
        hold_max,
        database: None,
    };
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match open(&config, 0, false, clock::wall_ms()) {
            Err(OpenError::Locked { .. }) if Instant::now() < end => std::thread::yield_now(),
            done => return done,
        }
    }
}

/// Run by the tests below under strace: commits that fill logs and tables, each reported once it is durable.
///
/// The report uses another system call than the store's writes, so the injected faults do not hit it.
#[test]
#[ignore = "a part of the tests below, which run it as a process of its own"]
fn commits_reported_one_by_one() {
    let dir = PathBuf::from(std::env::var_os(DIR).expect("the directory that a test below gives"));
    let report = File::options().write(true).create(true).truncate(false).open(dir.join("reported")).unwrap();
    // With little memory, fuller memtables are flushed to tables in the background.
    let Ok(opened) = open_at(&dir.join("store")) else { return };
    let mut store = opened.store;
    for number in 1..=COMMITS {
        if store.commit(&[group(number)]).is_err() {
            return;
        }
        report.write_all_at(&number.to_le_bytes(), 0).unwrap();
    }
    let _ = store.close();
}

/// Runs the child with these faults. `None` if strace cannot be used here.
fn child(dir: &Path, inject: &str) -> Option<String> {
    if !require("strace") {
        return None;
    }
    let (_, module) = module_path!().split_once("::").expect("a module of the program");
    let trace = dir.join("trace");
    let run = Command::new("strace")
        .args(["-f", "-qq", "-e", "trace=write,fdatasync,fsync,ftruncate,rename", "-e", inject, "-o"])
        .arg(&trace)
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", &format!("{module}::commits_reported_one_by_one"), "--quiet"])
        .env(DIR, dir)
        .output();
    match run {
        Ok(_) if fs::metadata(&trace).is_ok_and(|trace| trace.len() > 0) => {
            Some(fs::read_to_string(&trace).unwrap())
        }
        other => {
            lacks("strace", &format!("cannot be used here: {other:?}"));
            None
        }
    }
}

fn reported(dir: &Path) -> u64 {
    fs::read(dir.join("reported")).ok().and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// The store contains what was reported, and at most the next commit too; and it takes new commits.
fn judge(dir: &Path, what: &str) {
    let reported = reported(dir);
    let path = dir.join("store");
    let opened = open_at(&path).unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut store = opened.store;
    let found = everything(&mut *store);
    let most = (reported + 1).min(COMMITS);
    assert!(found == keys(1..=reported) || found == keys(1..=most), "{what}: {reported} reported, {found:?}");
    store.commit(&[group(99)]).unwrap_or_else(|error| panic!("{what}: {error}"));
    store.close().unwrap();
    let again = everything(&mut *open_at(&path).unwrap().store);
    assert_eq!(again, found.into_iter().chain(keys([99])).collect::<Vec<_>>(), "{what}");
}

/// Makes the n-th call fail, and with `lasting` every later call too.
fn every_nth(call: &str, error: &str, lasting: bool) {
    bounded(Duration::from_secs(600));
    let first = tempfile::tempdir().unwrap();
    let Some(trace) = child(first.path(), "trace=write,fdatasync,fsync,ftruncate,rename") else { return };
    assert_eq!(reported(first.path()), COMMITS, "without a fault all is committed");
    judge(first.path(), "without a fault");
    let begins = format!(" {call}(");
    let calls = trace.lines().filter(|line| line.contains(&begins)).count();
    assert!(calls > 0, "{calls} calls of {call}");
    let all = std::env::var("STORE_FAULTS").is_ok_and(|value| value == "all");
    let step = if all { 1 } else { calls.div_ceil(8) };
    let from = Moments::of(call).pick(0, step as u64) as usize;
    let (mut tried, mut stopped) = (0, 0);
    for n in (1 + from..=calls).step_by(step) {
        let dir = tempfile::tempdir().unwrap();
        let when = if lasting { format!("{n}+") } else { n.to_string() };
        let inject = format!("inject={call}:error={error}:when={when}");
        let Some(trace) = child(dir.path(), &inject) else { return };
        // Because of background workers the number of calls differs a little from run to run.
        if !trace.contains("(INJECTED)") {
            continue;
        }
        tried += 1;
        stopped += u64::from(reported(dir.path()) < COMMITS);
        judge(dir.path(), &inject);
    }
    assert!(tried > 0);
    say(&format!("{call} {error}, lasting {lasting}: {tried} of {calls} tried, {stopped} stopped early"));
}

#[test]
fn no_room_at_the_nth_write() {
    every_nth("write", "ENOSPC", true);
}

#[test]
fn a_failure_of_the_nth_write() {
    every_nth("write", "EIO", false);
}

#[test]
fn a_failure_of_the_nth_sync_of_data() {
    every_nth("fdatasync", "EIO", false);
}

#[test]
fn a_failure_of_the_nth_sync() {
    every_nth("fsync", "EIO", false);
}

#[test]
fn no_room_for_the_nth_change_of_length() {
    every_nth("ftruncate", "ENOSPC", true);
}

/// The log has room, but the table that a background worker writes has none.
#[test]
fn a_flush_that_finds_no_room_is_named_and_nothing_is_lost() {
    bounded(Duration::from_secs(60));
    let Some(disk) = Disk::mount(24) else { return };
    let path = disk.path().join("store");
    let filler = disk.path().join("filler");
    let free = || {
        let fs = rustix::fs::statvfs(disk.path()).unwrap();
        fs.f_bavail * fs.f_frsize
    };
    let mut store = open_at(&path).unwrap().store;
    // A little less than one flush.
    let mut durable = 0;
    while durable < 6 {
        store.commit(&[group(durable + 1)]).unwrap();
        durable += 1;
    }
    fs::write(&filler, vec![1; (free() - 5 * PART) as usize]).unwrap();
    let error = loop {
        match store.commit(&[group(durable + 1)]) {
            Ok(()) => durable += 1,
            Err(error) => break error,
        }
        assert!(durable < 1_000, "it never filled up");
    };
    assert!(matches!(error, CommitError::DiskFull { .. }), "{error}");
    assert!(durable >= 6 && store.commit(&[group(durable + 1)]).is_err(), "{durable}");
    println!("{durable} commits before it was full: {error}");
    drop(store);
    fs::remove_file(&filler).unwrap();
    let mut store = open_at(&path).unwrap().store;
    let found = everything(&mut *store);
    assert!(found == keys(1..=durable) || found == keys(1..=durable + 1), "{durable} durable, {found:?}");
    store.commit(&[group(found.len() as u64 + 1)]).unwrap();
    store.close().unwrap();
}

#[test]
fn a_full_disk_is_named_and_opens_again_with_room() {
    bounded(Duration::from_secs(60));
    let Some(disk) = Disk::mount(12) else { return };
    let path = disk.path().join("store");
    let filler = disk.path().join("filler");
    fs::write(&filler, vec![1; 4 << 20]).unwrap();
    let mut durable = 0;
    for round in 0..3 {
        // In later rounds the disk is full from the start, so opening may fail already.
        let failed = match open_at(&path) {
            Ok(opened) => {
                let mut store = opened.store;
                let failed = loop {
                    match store.commit(&[group(durable + 1)]) {
                        Ok(()) => durable += 1,
                        Err(error) => break error,
                    }
                    assert!(durable < 1_000, "it never filled up");
                };
                // After a failure the store takes no commit.
                let more = store.commit(&[group(durable + 1)]);
                assert!(more.is_err(), "round {round}");
                failed.to_string()
            }
            Err(error) => error.to_string(),
        };
        let full = failed.contains("the disk is full") || failed.contains("No space left");
        assert!(full, "round {round}: {failed}");
    }
    assert!(durable > 5, "{durable} commits before it was full");
    fs::remove_file(&filler).unwrap();
    assert_open_and_whole(&path, durable);
}

/// The store at `path` opens with every reported commit, and at most the one that was under way when it
/// failed; and it takes new commits.
fn assert_open_and_whole(path: &Path, durable: u64) {
    let mut store = open_at(path).unwrap().store;
    let found = everything(&mut *store);
    assert!(found == keys(1..=durable) || found == keys(1..=durable + 1), "{durable} durable, {found:?}");
    let last = found.len() as u64 + 1;
    store.commit(&[group(last)]).unwrap();
    store.close().unwrap();
    assert_eq!(everything(&mut *open_at(path).unwrap().store), keys(1..=last));
}

fn folder_below(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let mut folders = entries.filter(|path| path.is_dir());
    folders.find_map(|path| if path.ends_with(name) { Some(path) } else { folder_below(&path, name) })
}

/// The file system that contains `part` of the store is filled from outside during commits: a commit fails
/// soon, and with room again the store opens with every reported commit.
fn filled_from_outside(part: impl Fn(&Path) -> PathBuf) {
    bounded(Duration::from_secs(150));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let mut first = open_at(&path).unwrap().store;
    first.commit(&[group(1)]).unwrap();
    first.close().unwrap();
    let Some(disk) = Disk::mount_over(48, &part(&path)) else { return };
    let mut durable = 1;
    let mut store = open_at(&path).unwrap().store;
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            disk.fill();
        });
        while store.commit(&[group(durable + 1)]).is_ok() {
            durable += 1;
            assert!(begun.elapsed() < Duration::from_secs(60), "{durable} commits on a full disk");
        }
    });
    assert!(store.commit(&[group(durable + 1)]).is_err(), "nothing is taken after the failure");
    drop(store);
    disk.make_room();
    assert_open_and_whole(&path, durable);
}

#[test]
fn a_disk_filled_from_outside_is_met_by_a_commit() {
    filled_from_outside(Path::to_owned);
}

/// The log has room, but the files written after it have none.
#[test]
fn a_disk_filled_from_outside_is_met_by_a_flush() {
    filled_from_outside(|path| folder_below(path, "keyspaces").expect("the storage engine's tables"));
}
