//! Tests of damaged store files: logs cut, changed, zeroed and removed, tables changed.
//!
//! In each case the store opens with every commit, or it refuses and names what is missing, or it reports at
//! the read that a row is damaged. It never omits a row silently.

#![expect(clippy::wildcard_enum_match_arm, reason = "another error fails the test")]

use super::tests::{
    config, crash_image, everything, group, item, key, open_at, put, put_item, refusal, unlocked, whole, APP,
};
use super::*;
use std::collections::BTreeSet;
use std::fs;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use tidegate_types::event::Stored;
use tidegate_types::Key;

/// Deterministic, so that failures are reproducible.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

pub(crate) fn logs(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir.join("db")).unwrap().map(|entry| entry.unwrap().path());
    let mut logs: Vec<_> = entries.filter(|path| path.extension().is_some_and(|e| e == "jnl")).collect();
    logs.sort();
    logs
}

/// The bytes of a log, without the zeros at its end.
fn content(log: &Path) -> Vec<u8> {
    let mut bytes = fs::read(log).unwrap();
    bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
    bytes
}

/// The end of each batch of a log.
fn ends(bytes: &[u8]) -> Vec<usize> {
    bytes.windows(4).enumerate().filter(|(_, w)| w == b"FJL\x03").map(|(at, _)| at + 4).collect()
}

/// A closed store of `commits` commits, each with one item of the commit's number; its tail is in one log.
fn store_of(commits: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open_at(dir.path()).store;
    for number in 1..=commits {
        store.commit(&[group(number, vec![put(number, number)])]).unwrap();
    }
    store.close().unwrap();
    dir
}

fn keys(numbers: impl IntoIterator<Item = u64>) -> Vec<Key> {
    numbers.into_iter().map(|number| key(number, number)).collect()
}

fn accept(path: &Path) -> OpenStore {
    unlocked(|| open(&config(path), 32 << 20, true, tidegate_common::clock::wall_ms())).unwrap()
}

fn directory_at(path: &Path) -> directory::Directory {
    unlocked(|| directory::Directory::open(path)).unwrap()
}

/// First and last lost commit that a refusal names.
fn named(error: &OpenError) -> (u64, u64) {
    let OpenError::Damaged { place, error } = error else { panic!("{error}") };
    assert!(place.contains(".jnl"), "{place}: {error}");
    let words: Vec<&str> = error.split_whitespace().collect();
    match words[..] {
        ["commits", first, "to", last, ..] => (first.parse().unwrap(), last.parse().unwrap()),
        _ => panic!("{error}"),
    }
}

/// A copy of a store's files.
fn copy(from: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["db", "COMMITTED"] {
        let path = from.join(name);
        if path.is_dir() {
            crash_image(&path, &dir.path().join(name));
        } else {
            fs::copy(path, dir.path().join(name)).unwrap();
        }
    }
    dir
}

#[test]
fn the_last_log_cut_at_every_byte() {
    const COMMITS: u64 = 40;
    let dir = store_of(COMMITS);
    let log = logs(dir.path()).pop().unwrap();
    let bytes = content(&log);
    let ends = ends(&bytes);
    assert_eq!(ends.len() as u64, COMMITS + 1, "one batch a commit, and the first");
    assert!(bytes.len() > 4096 + 200);
    fs::write(&log, &bytes).unwrap();
    let note = fs::read(dir.path().join("COMMITTED")).unwrap();
    let mut tried = 0;
    // The test checks each offset without opening the store. Where a commit begins or ends, and at some
    // offsets in between, it also opens the store.
    for len in bytes.len() - 4096..=bytes.len() {
        let known = ends.iter().filter(|end| **end <= len).count() as u64 - 1;
        fs::write(&log, &bytes[..len]).unwrap();
        fs::write(dir.path().join("COMMITTED"), &note).unwrap();
        let directory = directory_at(dir.path());
        let checked = super::logs::check(&directory, false);
        assert_eq!(fs::metadata(&log).unwrap().len(), len as u64, "a check that refuses changes nothing");
        match checked {
            Ok(_) => assert_eq!(known, COMMITS, "cut to {len}"),
            Err(error) => assert_eq!(named(&error), (known + 1, COMMITS), "cut to {len}"),
        }
        drop(directory);
        tried += 1;
        let border = ends.iter().any(|end| end.abs_diff(len) <= 1);
        if border || len % 61 == 0 {
            if known < COMMITS {
                assert_eq!(named(&refusal(dir.path())), (known + 1, COMMITS), "cut to {len}");
            }
            let mut store = accept(dir.path()).store;
            assert_eq!(everything(&mut *store), keys(1..=known), "cut to {len}");
            // The store works on from there.
            store.commit(&[group(77, vec![put(77, 77)])]).unwrap();
            store.close().unwrap();
            let mut store = open_at(dir.path()).store;
            assert_eq!(everything(&mut *store), keys((1..=known).chain([77])), "cut to {len}");
            drop(store);
            let _ = fs::remove_file(dir.path().join("ACCEPTED"));
        }
    }
    assert_eq!(tried, 4097);
}

#[test]
fn what_was_never_reported_is_no_loss() {
    // `COMMITTED` is the one before the last commit, as after a crash within that commit.
    let dir = store_of(9);
    let note = fs::read(dir.path().join("COMMITTED")).unwrap();
    let mut store = open_at(dir.path()).store;
    store.commit(&[group(10, vec![put(10, 10)])]).unwrap();
    drop(store);
    let log = logs(dir.path()).pop().unwrap();
    let bytes = content(&log);
    let ends = ends(&bytes);
    let before = ends[ends.len() - 2];
    for len in before..bytes.len() {
        let dir = copy(dir.path());
        let log = logs(dir.path()).pop().unwrap();
        fs::write(dir.path().join("COMMITTED"), &note).unwrap();
        // The batch is cut, or its pages were written out of order.
        let holed = [&bytes[..len], &vec![0; bytes.len() - len - 1], &bytes[bytes.len() - 1..]].concat();
        for torn in [&bytes[..len], &holed] {
            fs::write(&log, torn).unwrap();
            let mut store = open_at(dir.path()).store;
            let whole = torn == bytes;
            assert_eq!(everything(&mut *store), keys(1..=if whole { 10 } else { 9 }), "torn at {len}");
        }
    }
}

/// Opens a store with changed files. `Err`: the open was refused, or a read reported damage.
fn contents(path: &Path) -> Result<Vec<Key>, String> {
    let opened = unlocked(|| open(&config(path), 32 << 20, false, tidegate_common::clock::wall_ms()))
        .map_err(|error| error.to_string())?;
    let mut store = opened.store;
    match store.load(&whole(APP)).map_err(|error| error.to_string())? {
        Loaded::Ranges(answers) => {
            let rows = &answers[0].rows;
            for row in rows {
                assert_eq!(row.content, big(row.key.due).content, "a content was changed");
            }
            Ok(rows.iter().map(|row| row.key).collect())
        }
        other => panic!("{other:?}"),
    }
}

/// A large item that differs from all others; some of them fill a table.
fn big(number: u64) -> Stored {
    let mut dice = Dice(number | 1 << 40);
    let body = (0..1_500).map(|_| dice.below(256) as u8).collect();
    let content = Content { properties: vec![1, 2], body, json: false };
    Stored { content: Some(Arc::new(content)), ..item(number, number) }
}

fn put_big(number: u64) -> Op {
    put_item(big(number), false)
}

/// A store with sealed logs and tables, as a killed process leaves it, and the keys of all its items.
fn large() -> &'static (tempfile::TempDir, Vec<Key>) {
    static STORE: std::sync::OnceLock<(tempfile::TempDir, Vec<Key>)> = std::sync::OnceLock::new();
    STORE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let mut store = open(&config(dir.path()), 0, false, tidegate_common::clock::wall_ms()).unwrap().store;
        let mut number = 0;
        let tables = |path: &Path| fs::read_dir(path).map_or(0, Iterator::count);
        // Each memtable takes about a MiB; commits follow until there is a table of items.
        while number < 1_500 || tables(&dir.path().join("db/keyspaces/1/tables")) == 0 {
            number += 1;
            store.commit(&[group(number, vec![put_big(number)])]).unwrap();
            assert!(number < 100_000, "no table was ever written");
        }
        let image = copy(dir.path());
        drop(store);
        for log in logs(image.path()) {
            fs::write(&log, content(&log)).unwrap();
        }
        let all = keys(1..=number);
        (image, all)
    })
}

#[test]
fn a_large_store_opens_as_it_was_left() {
    let (image, all) = large();
    let dir = copy(image.path());
    assert_eq!(&contents(dir.path()).unwrap(), all);
    assert!(!dir.path().join("ACCEPTED").exists());
}

/// Splits the only log in two at the end of a batch, as a rotation would.
fn split(dir: &Path) -> (PathBuf, PathBuf) {
    let first = logs(dir).pop().unwrap();
    let bytes = content(&first);
    let ends = ends(&bytes);
    let middle = ends[ends.len() / 2];
    let number: u64 = first.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    let second = first.with_file_name(format!("{}.jnl", number + 1));
    fs::write(&second, &bytes[middle..]).unwrap();
    fs::write(&first, &bytes[..middle]).unwrap();
    (first, second)
}

#[test]
fn damage_in_the_middle_of_a_sealed_log_is_noticed() {
    const COMMITS: u64 = 40;
    let dir = store_of(COMMITS);
    let (sealed, _) = split(dir.path());
    assert_eq!(everything(&mut *open_at(copy(dir.path()).path()).store), keys(1..=COMMITS));
    let good = fs::read(&sealed).unwrap();
    let ends = ends(&good);
    let directory = directory_at(dir.path());
    let mut unnoticed = BTreeSet::new();
    let mut tried = 0;
    // One bit of every byte after the first batch, and stretches of zeros.
    for at in ends[0]..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        fs::write(&sealed, &bad).unwrap();
        tried += 1;
        match super::logs::check(&directory, false) {
            Err(OpenError::Damaged { place, error }) => {
                assert!(place.contains(".jnl, byte "), "{place}: {error}");
            }
            Err(other) => panic!("{other}"),
            Ok(_) => {
                unnoticed.insert(at);
            }
        }
        assert_eq!(fs::read(&sealed).unwrap(), bad, "a check that refuses changes nothing");
    }
    for page in (ends[0]..good.len() - 64).step_by(37) {
        for len in [64, 512, 4096] {
            let mut bad = good.clone();
            let end = bad.len().min(page + len);
            bad[page..end].fill(0);
            fs::write(&sealed, &bad).unwrap();
            tried += 1;
            assert!(super::logs::check(&directory, false).is_err(), "{len} zeros at {page}");
        }
    }
    println!("{tried} changes of a sealed log");
    assert_eq!(unnoticed, BTreeSet::new(), "bytes whose change went unnoticed");
}

#[test]
fn a_lost_log_is_noticed() {
    let dir = store_of(40);
    split(dir.path());
    let (second, third) = split(dir.path());
    // Not the oldest log, which the engine may have deleted.
    fs::remove_file(&second).unwrap();
    let (from, to) = named(&refusal(dir.path()));
    assert!(from > 1 && to < 40, "{from} {to}");
    let mut store = accept(dir.path()).store;
    assert_eq!(everything(&mut *store), keys((1..from).chain(to + 1..=40)));
    drop(store);
    // An accepted loss is not reported again, but later damage is.
    drop(open_at(dir.path()));
    let bytes = content(&third);
    fs::write(&third, &bytes[..bytes.len() - 10]).unwrap();
    assert_eq!(named(&refusal(dir.path())), (41, 41));
}

#[test]
fn an_accepted_loss_costs_no_more_than_was_damaged() {
    const COMMITS: u64 = 40;
    let dir = store_of(COMMITS);
    let (sealed, _) = split(dir.path());
    let good = fs::read(&sealed).unwrap();
    let ends = ends(&good);
    // Damage in a row: the check finds the changed batch, and reads the next one. Damage in a length: all
    // following batches are lost.
    let (changed, shape) = (ends[10] - 20, ends[9] + 13 + 12);
    for (at, expected) in [(changed, (10, 10)), (shape, (10, ends.len() as u64 - 1))] {
        let dir = copy(dir.path());
        let log = dir.path().join("db").join(sealed.file_name().unwrap());
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        fs::write(&log, &bad).unwrap();
        assert_eq!(named(&refusal(dir.path())), expected, "byte {at}");
        {
            // An accepted loss stays accepted, also if the log is still needed at the next start.
            let directory = directory_at(dir.path());
            super::logs::check(&directory, true).unwrap();
            super::logs::check(&directory, false).unwrap();
        }
        let mut store = accept(dir.path()).store;
        let rest = keys((1..expected.0).chain(expected.1 + 1..=COMMITS));
        assert_eq!(everything(&mut *store), rest, "byte {at}");
        drop(store);
        assert_eq!(everything(&mut *open_at(dir.path()).store), rest, "byte {at}");
        let mut damaged = log.into_os_string();
        damaged.push(".damaged");
        assert_eq!(fs::read(damaged).unwrap(), bad, "what was damaged is kept");
    }
}

/// Flips a bit in the batch that is followed by `after` others in the last log.
fn flip_a_bit(dir: &Path, after: usize) {
    let log = logs(dir).pop().unwrap();
    let mut bytes = content(&log);
    let ends = ends(&bytes);
    bytes[ends[ends.len() - 1 - after] - 20] ^= 1;
    fs::write(log, bytes).unwrap();
}

/// Excluded: a loss that is passed over since an accepted one had the same number; a start that takes an
/// accepted gap for a new loss, or accepts one that no start has gone on from. Judges promise 3.
#[test]
fn the_number_of_an_accepted_loss_is_never_given_out_again() {
    let dir = store_of(20);
    let log = logs(dir.path()).pop().unwrap();
    let bytes = content(&log);
    fs::write(&log, &bytes[..ends(&bytes)[10]]).unwrap();
    assert_eq!(named(&refusal(dir.path())), (11, 20));
    // A start that was killed before its first commit.
    let directory = directory_at(dir.path());
    assert_eq!(super::logs::check(&directory, true).unwrap(), 20);
    drop(directory);
    assert_eq!(named(&refusal(dir.path())), (11, 20));
    let mut store = accept(dir.path()).store;
    for number in 31..=40 {
        store.commit(&[group(number, vec![put(number, number)])]).unwrap();
    }
    store.close().unwrap();
    for _ in 0..2 {
        assert_eq!(everything(&mut *open_at(dir.path()).store), keys((1..=10).chain(31..=40)));
    }
    assert_eq!(fs::read_to_string(dir.path().join("ACCEPTED")).unwrap(), "11 20\n");
    // Commit 21 is that of the start.
    flip_a_bit(dir.path(), 5);
    let bad = content(&log);
    assert_eq!(named(&refusal(dir.path())), (26, 26));
    assert_eq!(content(&log), bad, "a refusal changes nothing");
    let mut store = accept(dir.path()).store;
    assert_eq!(everything(&mut *store), keys((1..=10).chain(31..=34).chain(36..=40)));
    store.close().unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("ACCEPTED")).unwrap(), "11 20\n26 26\n");
    drop(open_at(dir.path()));
}

/// Earlier builds gave the numbers of accepted losses out again.
///
/// Excluded: a later loss among these numbers that is passed over. Judges promise 3.
#[test]
fn a_gap_that_an_earlier_build_has_filled_hides_nothing() {
    for commits in [15, 25] {
        let dir = store_of(commits);
        fs::write(dir.path().join("ACCEPTED"), "11 20\n").unwrap();
        let image = copy(dir.path());
        fs::copy(dir.path().join("ACCEPTED"), image.path().join("ACCEPTED")).unwrap();
        flip_a_bit(image.path(), commits as usize - 13);
        assert_eq!(named(&refusal(image.path())), (13, 13));
        let mut store = open_at(dir.path()).store;
        store.commit(&[group(77, vec![put(77, 77)])]).unwrap();
        store.close().unwrap();
        assert_eq!(everything(&mut *open_at(dir.path()).store), keys((1..=commits).chain([77])));
    }
}

#[test]
fn changed_files_are_refused_or_read_right() {
    let (image, all) = large();
    let mut files = Vec::new();
    let mut folders = vec![image.path().to_owned()];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.metadata().unwrap().len() > 0 && !path.ends_with("LOCK") {
                files.push(path.strip_prefix(image.path()).unwrap().to_owned());
            }
        }
    }
    files.sort();
    let rounds = std::env::var("STORE_FLIPS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let seed = std::env::var("STORE_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0x5eed);
    let mut dice = Dice(seed);
    let (mut right, mut refused, mut panicked, mut short) = (0, 0, 0, Vec::new());
    for round in 0..rounds {
        // The large files of the items are chosen as often as all small ones together.
        let heavy: Vec<_> = files.iter().filter(|f| f.starts_with("db/keyspaces/1/tables")).collect();
        let file = match dice.below(3) {
            0 => files[dice.below(files.len() as u64) as usize].clone(),
            1 => heavy[dice.below(heavy.len() as u64) as usize].clone(),
            _ => logs(image.path())[0].strip_prefix(image.path()).unwrap().to_owned(),
        };
        let dir = copy(image.path());
        let path = dir.path().join(&file);
        let mut bytes = content(&path);
        let at = dice.below(bytes.len() as u64) as usize;
        let zeroed = dice.below(4) == 0;
        if zeroed {
            let end = bytes.len().min((at & !4095) + 4096);
            bytes[at & !4095..end].fill(0);
        } else {
            bytes[at] ^= 1 << dice.below(8);
        }
        fs::write(&path, &bytes).unwrap();
        let what = format!("round {round} of seed {seed}: {}, byte {at}, zeroed {zeroed}", file.display());
        match catch_unwind(AssertUnwindSafe(|| contents(dir.path()))) {
            Ok(Ok(keys)) if &keys == all => right += 1,
            Ok(Ok(keys)) => short.push(format!("{what}: {} of {}", keys.len(), all.len())),
            Ok(Err(_)) => refused += 1,
            Err(_) => {
                println!("panicked: {what}");
                panicked += 1;
            }
        }
    }
    println!("{rounds} changes: {refused} refused, {right} without effect, {panicked} ended by a panic");
    assert!(short.is_empty(), "silently short:\n{}", short.join("\n"));
}
