//! Tests of export and import: complete, and not into a store that exists.

use super::export::{Export, Exporter};
use super::import::{import, ImportError, ImportTarget, Imported};
use super::keyspace::KeyspaceId;
use super::naming::Naming;
use super::rows;
use super::tests::{disk_at, given, group, index, item, items, key, named, open_at, place, put_item, APP};
use super::verify::{verify, RowFault, WalkStep, Watcher};
use super::*;
use std::path::Path;
use tidegate_types::event::{BucketRow, ClosingRow, IndexRows, QueueRow, Stored, WindowRow};
use tidegate_types::{AssignedId, BatchId, ClosedBy, Dead, End, Ended, Identity, Key, Reason};

const MEMORY: u64 = 32 << 20;
const NOW: u64 = 5_000;

pub(crate) fn id_of(_: &Content, _: u64, id: AssignedId) -> String {
    id.seq.to_string()
}

/// In these tests an id is the number of its identity.
fn identity_of(_: &str, id: &str) -> Identity {
    id.parse().map_or(Identity::assigned(0), |n: u8| given(n))
}

fn queue(name: &str, count: u64, low: u64, paused: bool) -> Op {
    Op::PutQueue(QueueRow {
        queue: name.into(),
        count,
        low: key(low, 0),
        paused: paused.then_some(9_000),
        unindexed_until: 0,
        slowed: None,
    })
}

fn sent(at: u64) -> Ended {
    let end = End::Sent(BatchId([3; 16]));
    Ended { end, at, due: 2, attempts: 0, fingerprint: 3, customer: None }
}

/// Fills the store at `path` with items of every kind.
fn fill(path: &Path) {
    let mut store = open_at(path).store;
    store.commit(&[of_every_kind()]).unwrap();
    store.close().unwrap();
}

/// Rows of every kind.
pub(crate) fn of_every_kind() -> CommitGroup {
    let dead = Stored {
        dead: Some(Arc::new(Dead { reason: Reason::Expired, error: "late".into() })),
        customer: None,
        application: "".into(),
        ..item(7, 3)
    };
    let binary = Content { properties: vec![0, 0], body: vec![0xff, 0], json: false };
    let moved = Stored { accepted_due: 40, content: Some(Arc::new(binary)), ..item(55, 4) };
    let member = Stored { own_time: false, received: 6, ..item(90, 5) };
    let window = WindowRow {
        application: APP.into(),
        customer: "c".into(),
        end: 900,
        window: 1,
        count: 1,
        weight: 7,
        expiry: Some(8),
    };
    let closing = ClosingRow { application: APP.into(), end: 90, window: 5, due: 70, cause: ClosedBy::Flush };
    let assigned = IndexRows { identity: Some(Identity::assigned(4)), customer: None };
    let ops = vec![
        put_item(item(50, 1), true),
        put_item(named(60, 2), true),
        put_item(dead, false),
        put_item(moved, true),
        Op::Index { key: key(55, 4), rows: assigned },
        put_item(member, true),
        queue(APP, 4, 40, false),
        queue("held", 0, 0, true),
        queue("", 1, 0, false),
        Op::PutWindow(window),
        Op::Close(closing),
        Op::BeginBucket(BucketRow { bucket: 1, from: 1 }),
        Op::Remember { bucket: 1, identity: given(9), ended: Box::new(sent(1)) },
    ];
    group(9, ops)
}

fn exported(path: &Path) -> String {
    lines_of(Exporter::open(path, MEMORY).unwrap().begin(id_of).unwrap())
}

/// All lines of an export.
pub(crate) fn lines_of(mut export: Export) -> String {
    let mut out = Vec::new();
    while export.next(&mut out).unwrap() {}
    String::from_utf8(out).unwrap()
}

/// An item without an id keeps the assigned one in front of its properties.
const NAMING: Naming = Naming {
    identity_of,
    with_id: |properties, id| (properties.len() <= 2).then(|| [id.as_bytes(), properties].concat()),
};

/// One store, whatever the application.
fn target(path: &Path) -> ImportTarget<'_> {
    ImportTarget { path, shards: None, home_of: |_, _| 0, memory_limit: MEMORY }
}

fn imported(path: &Path, text: &str) -> Result<Imported, ImportError> {
    import(&target(path), &mut text.as_bytes(), NAMING, NOW, &mut |_| {})
}

struct Sound;

impl Watcher for Sound {
    fn step(&mut self, _: WalkStep) {}

    fn fault(&mut self, fault: RowFault) {
        panic!("{fault:?}");
    }
}

/// The lines after the first, which contains the name of the export.
pub(crate) fn behind_first(text: &str) -> Vec<&str> {
    text.lines().skip(1).collect()
}

pub(crate) fn source() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path());
    let text = exported(dir.path());
    (dir, text)
}

#[test]
fn a_new_store_is_the_exported_one_again() {
    let (from, text) = source();
    let to = tempfile::tempdir().unwrap();
    let path = to.path().join("new");
    let told = imported(&path, &text).unwrap();
    assert_eq!(told, Imported { items: 4, dead_letters: 1, ended_ids: 1, windows: 1, paused: 1 });
    let summary = verify(&path, MEMORY, &mut Sound).unwrap();
    assert_eq!((summary.items, summary.dead_letters, summary.ids, summary.ended_ids), (4, 1, 3, 1));
    let text_again = exported(&path);
    assert_eq!(behind_first(&text_again), behind_first(&text));
    let (old, new) = (open_at(from.path()), open_at(&path));
    assert_eq!(old.identity, new.identity);
    assert_eq!(new.opened.marks, old.opened.marks);
    assert_eq!(new.opened.windows, old.opened.windows);
    let mut store = new.store;
    let rows = items(&mut *store, APP);
    let member = rows.iter().find(|row| row.key.seq == 5).unwrap();
    assert_eq!((member.key, member.accepted_due, member.closed_by), (key(70, 5), 90, ClosedBy::Flush));
    assert_eq!(rows.iter().map(|row| row.key.seq).collect::<Vec<_>>(), [1, 4, 2, 5]);
    assert_eq!(items(&mut *store, "").len(), 1);
}

/// Names of the files and folders in a directory, in order.
fn names_in(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Checks that no command and no daemon opens the store, and that each names the directory and the way out.
fn is_refused_as_incomplete(path: &Path, text: &str) {
    let refusals = [
        super::tests::open_with(path, NOW).err().map(|error| error.to_string()),
        imported(path, text).err().map(|error| error.to_string()),
        verify(path, MEMORY, &mut Sound).err().map(|error| error.to_string()),
        Exporter::open(path, MEMORY).err().map(|error| error.to_string()),
        super::compact::compact(path, MEMORY, &mut Sound).err().map(|error| error.to_string()),
    ];
    name_what_is_incomplete(path, refusals);
}

/// Checks that each refusal names the directory and the way out.
pub(super) fn name_what_is_incomplete(path: &Path, refusals: impl IntoIterator<Item = Option<String>>) {
    for refusal in refusals {
        let refusal = refusal.expect("refused");
        let (said, way) = ("was interrupted, and what is in it is incomplete", "remove the directory");
        assert!(refusal.contains(said) && refusal.contains(way), "{refusal}");
        assert!(refusal.contains(&path.display().to_string()), "{refusal}");
    }
}

#[test]
fn an_import_that_was_cut_is_refused_until_its_directory_is_removed() {
    let (_from, text) = source();
    let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at + 1).collect();
    for (at, end) in ends.iter().enumerate().take(ends.len() - 1) {
        // The export is cut at the end of a line, and within the next line.
        for cut in [*end, end + 5] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("new");
            match imported(&path, &text[..cut]) {
                Err(ImportError::Cut { lines }) => assert_eq!(lines, at as u64 + 1),
                other => panic!("{other:?}"),
            }
            is_refused_as_incomplete(&path, &text);
            std::fs::remove_dir_all(&path).unwrap();
            imported(&path, &text).unwrap();
            assert_eq!(behind_first(&exported(&path)), behind_first(&text), "cut behind line {}", at + 1);
            verify(&path, MEMORY, &mut Sound).unwrap();
        }
    }
}

/// The commits before the last one do not make the store complete, however many they are.
#[test]
fn an_import_that_fails_after_commits_is_refused_as_well() {
    let (_from, text) = source();
    let mut lines: Vec<&str> = text.lines().collect();
    let ended = *lines.iter().find(|line| line.contains("\"kind\":\"ended\"")).unwrap();
    // More lines than one commit has, and a last line that does not count them.
    lines.splice(1..1, std::iter::repeat_n(ended, 2_500));
    let long: String = lines.iter().flat_map(|line| [*line, "\n"]).collect();
    let dir = tempfile::tempdir().unwrap();
    let mut steps = 0;
    let told = import(&target(dir.path()), &mut long.as_bytes(), NAMING, NOW, &mut |_| steps += 1);
    assert!(matches!(told, Err(ImportError::Line { .. })) && steps == 2, "{told:?} after {steps} steps");
    is_refused_as_incomplete(dir.path(), &text);
    // As if the process had been killed when the store was just made.
    let made = tempfile::tempdir().unwrap();
    let directory = super::directory::Directory::open(made.path()).unwrap();
    let make = super::disk::IfAbsent::Make(Some(7));
    drop(super::disk::open_in(directory, MEMORY, false, make, NOW).unwrap());
    is_refused_as_incomplete(made.path(), &text);
    // And before that: nothing has been made yet.
    let begun = tempfile::tempdir().unwrap();
    std::fs::create_dir(begun.path().join("db.new")).unwrap();
    imported(begun.path(), &text).unwrap();
}

#[test]
fn a_directory_with_a_store_is_refused_and_the_store_stays_as_it_was() {
    let (from, text) = source();
    let refused = |path: &Path| {
        let error = imported(path, &text).unwrap_err();
        assert!(matches!(error, ImportError::NotEmpty { .. }), "{error}");
        let error = error.to_string();
        let told = error.contains("import into an empty directory") && error.contains("publish the items");
        assert!(told && error.contains(&path.display().to_string()), "{error}");
    };
    // The exported store, a new one of a daemon, and the imported one.
    refused(from.path());
    assert_eq!(behind_first(&exported(from.path())), behind_first(&text));
    let fresh = tempfile::tempdir().unwrap();
    let made = open_at(fresh.path());
    assert!(matches!(imported(fresh.path(), &text), Err(ImportError::Open(OpenError::Locked { .. }))));
    made.store.close().unwrap();
    refused(fresh.path());
    assert_eq!(verify(fresh.path(), MEMORY, &mut Sound).unwrap().items, 0);
    let to = tempfile::tempdir().unwrap();
    imported(to.path(), &text).unwrap();
    refused(to.path());
    // A part of a store.
    std::fs::remove_dir_all(to.path().join("db")).unwrap();
    refused(to.path());
    assert_eq!(names_in(to.path()), ["COMMITTED", "LOCK"]);
    // Losses that were accepted of another store would hide those of this one.
    std::fs::rename(to.path().join("COMMITTED"), to.path().join("ACCEPTED")).unwrap();
    refused(to.path());
    // What belongs to no store is left alone.
    let mount = tempfile::tempdir().unwrap();
    std::fs::create_dir(mount.path().join("lost+found")).unwrap();
    imported(mount.path(), &text).unwrap();
    assert_eq!(names_in(mount.path()), ["COMMITTED", "LOCK", "db", "lost+found"]);
}

/// Earlier builds kept a note of each import, which says nothing about the store now.
#[test]
fn a_note_of_an_earlier_build_is_no_fault() {
    let (from, text) = source();
    let key = [rows::META_FORMER_IMPORT, &[7; 16]].concat();
    super::disk::write_raw(from.path(), KeyspaceId::Meta, &key, Some(b"lines, and whether it was whole"));
    assert_eq!(verify(from.path(), MEMORY, &mut Sound).unwrap().faults, 0);
    assert_eq!(behind_first(&exported(from.path())), behind_first(&text));
    open_at(from.path());
}

#[test]
fn a_line_at_fault_is_named_and_nothing_of_its_commit_is_there() {
    let (_from, text) = source();
    let fault = |text: &str| {
        let to = tempfile::tempdir().unwrap();
        match imported(to.path(), text) {
            Err(ImportError::Line { line, error }) => (line, error),
            other => panic!("{other:?}"),
        }
    };
    let (line, error) = fault("{}\n");
    assert!(line == 1 && error.contains("kind"), "{error}");
    let behind_end = format!("{text}x\n");
    assert_eq!(fault(&behind_end).1, "it follows the last line of the export");
    let lacking: String = text
        .lines()
        .filter(|line| !line.contains("\"number\":4"))
        .fold(String::new(), |all, line| all + line + "\n");
    assert!(fault(&lacking).1.starts_with("it counts"), "{}", fault(&lacking).1);
    let (line, error) = fault(&text.replace("\"number\":4", "\"number\":4000"));
    assert_eq!(error, "number 4000 is not below the `next_number` of the first line");
    let at = text.lines().position(|line| line.contains("\"number\":4")).unwrap() as u64;
    assert_eq!(line, at + 1);
    let (line, error) = fault(&text.replace("\"number\":4", "\"number\":1"));
    assert_eq!((line, &*error), (at + 1, "the export contains this item twice"));
    // A window of a member that is still to come.
    let window = text.lines().find(|line| line.contains(r#""kind":"window""#)).unwrap();
    let number = serde_json::from_str::<serde_json::Value>(window).unwrap()["window"].to_string();
    let later = window.replace(&format!(r#""window":{number}"#), r#""window":4000"#);
    assert_ne!(later, window);
    assert!(fault(&text.replace(window, &later)).1.starts_with("number 4000 is not below"));
    // Another number, and the id of another item.
    let named = text.lines().find(|line| line.contains("\"number\":2,")).unwrap();
    let again = named.replace("\"number\":2,", "\"number\":8,");
    let twin = |line: &str| if line.contains("\"number\":1,") { again.clone() } else { line.to_owned() };
    assert_eq!(fault(&text.lines().map(|line| twin(line) + "\n").collect::<String>()).1, error);
    let long = format!("\"application\":\"{}\"", "x".repeat(201));
    let (_, error) = fault(&text.replace("\"application\":\"app\"", &long));
    assert_eq!(error, "a name has 201 bytes; 1 to 200 are allowed");
}

/// The lines and the error of an export that ends with an error.
fn broken_off(path: &Path) -> (String, String) {
    let mut export = Exporter::open(path, MEMORY).unwrap().begin(id_of).unwrap();
    let mut out = Vec::new();
    loop {
        match export.next(&mut out) {
            Ok(true) => {}
            Ok(false) => panic!("it is whole"),
            Err(error) => return (String::from_utf8(out).unwrap(), error.to_string()),
        }
    }
}

/// An unreadable row is not omitted.
#[test]
fn an_export_ends_at_a_damaged_row() {
    let (from, _) = source();
    let row = rows::item_key(APP, key(55, 4)).unwrap();
    super::disk::write_raw(from.path(), KeyspaceId::Items, &row, Some(b"scratched"));
    let (_, error) = broken_off(from.path());
    assert!(error.contains("queue `app` due 55 number 4"), "{error}");
}

/// The rows are intact, but fewer than the store's count.
#[test]
fn an_export_that_lacks_items_is_not_whole() {
    let (from, text) = source();
    let more = QueueRow {
        queue: APP.into(),
        count: 5,
        low: key(40, 0),
        paused: None,
        unindexed_until: 0,
        slowed: None,
    };
    let (at, row) = queue_rows::queue_row(&more).unwrap();
    super::disk::write_raw(from.path(), KeyspaceId::Queues, &at, Some(&row));
    let (out, error) = broken_off(from.path());
    assert!(error.contains("keyspace `queues`") && error.contains("6 items, and 5 were found"), "{error}");
    assert_eq!(out.lines().count(), text.lines().count() - 1, "all but the line that says that it is whole");
}

/// `export` refuses what `run` refuses.
#[test]
fn a_store_that_lost_commits_is_not_exported() {
    let (from, _) = source();
    let identity = open_at(from.path()).identity;
    let directory = super::directory::Directory::open(from.path()).unwrap();
    let (mut committed, number) = super::directory::Committed::open(&directory, identity).unwrap();
    committed.record(number.unwrap() + 2);
    drop((committed, directory));
    let refused = Exporter::open(from.path(), MEMORY).err().expect("refused").to_string();
    assert!(refused.contains("had been made durable and are gone"), "{refused}");
}

#[test]
fn nothing_is_made_where_no_store_is() {
    for inside in [None, Some("db"), Some("db.new")] {
        let dir = tempfile::tempdir().unwrap();
        if let Some(name) = inside {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let before = names_in(dir.path());
        let absent = |error: &OpenError| matches!(error, OpenError::Absent { .. });
        assert!(verify(dir.path(), MEMORY, &mut Sound).is_err_and(|e| absent(&e)), "{inside:?}");
        assert!(Exporter::open(dir.path(), MEMORY).is_err_and(|e| absent(&e)), "{inside:?}");
        let compacted = super::compact::compact(dir.path(), MEMORY, &mut Sound);
        assert!(compacted.is_err_and(|e| e.to_string().contains("no store")), "{inside:?}");
        assert_eq!(names_in(dir.path()), before);
    }
}

/// An escape turns one byte into six: if base64 is shorter, the body is exported as base64, whatever it
/// contains.
#[test]
fn no_line_is_longer_than_an_import_takes() {
    let bodies: [fn(usize) -> u8; 5] = [|_| 0, |_| b'"', |n| (n % 128) as u8, |_| b'x', |n| (n % 251) as u8];
    for body in bodies {
        let body: Vec<u8> = (0..90_000).map(body).collect();
        let from = tempfile::tempdir().unwrap();
        let content = Content { properties: vec![0, 0], body, json: false };
        let stored = Stored { content: Some(Arc::new(content)), ..item(50, 1) };
        let mut store = open_at(from.path()).store;
        store.commit(&[group(1, vec![put_item(stored.clone(), true), queue(APP, 1, 50, false)])]).unwrap();
        store.close().unwrap();
        let text = exported(from.path());
        let longest = text.lines().map(str::len).max().unwrap();
        assert!(longest <= 90_000 / 3 * 4 + 1_000, "{longest} bytes");
        let to = tempfile::tempdir().unwrap();
        imported(to.path(), &text).unwrap();
        let back = items(&mut *open_at(to.path()).store, APP);
        assert_eq!(back[0].content, stored.content);
    }
}

/// The export was written before exports named windows. It contains two open windows, one of them with a row,
/// an own-time item due when they end, and a window that closed early.
#[test]
fn windows_of_an_export_of_version_1_stay_whole() {
    let text = include_str!("export_v1.ndjson");
    let (end, closed) = (1_800_000_060_000, 1_800_000_005_000);
    let at = |due, window, seq| Key { due, window, seq };
    let to = tempfile::tempdir().unwrap();
    assert_eq!(imported(to.path(), text).unwrap().items, 9);
    verify(to.path(), MEMORY, &mut Sound).unwrap();
    let mut open = open_at(to.path());
    let window = &open.opened.windows[0];
    assert_eq!((&*window.customer, window.end, window.window, window.count), ("ann", end, 11, 3));
    let keys: Vec<Key> = items(&mut *open.store, "shop").into_iter().map(|item| item.key).collect();
    let want = [
        (closed, 17, 17),
        (closed, 17, 18),
        (end, 11, 11),
        (end, 11, 13),
        (end, 11, 15),
        (end, 12, 12),
        (end, 12, 14),
        (end, 16, 16),
        (end, 19, 19),
    ];
    assert_eq!(keys, want.map(|(due, window, seq)| at(due, window, seq)));
}

/// Threads of the storage engine make tables during the test; a snapshot must contain whole commits.
#[test]
fn what_is_exported_beside_commits_is_whole() {
    const ITEMS: u64 = 3_000;
    const COMMITS: u64 = 60;
    let dir = tempfile::tempdir().unwrap();
    let mut store = disk_at(dir.path(), 1 << 20);
    let exporter = store.exporter().unwrap();
    let large = |seq: u64| {
        let body = vec![seq as u8; 200];
        Stored { content: Some(Arc::new(Content { body, ..Content::default() })), ..item(50, seq) }
    };
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            for commit in 0..COMMITS {
                let first = commit * ITEMS;
                let puts = (first..first + ITEMS).map(|seq| put_item(large(seq), true));
                let gone = (first.saturating_sub(ITEMS)..first)
                    .map(|seq| Op::Delete { place: place(APP, 50, seq), rows: index(None, "c") });
                let ops = puts.chain(gone).chain([queue(APP, ITEMS, 0, false)]).collect();
                store.commit(&[group(first + ITEMS, ops)]).unwrap();
            }
            Box::new(store).close().unwrap();
        });
        let mut out = Vec::new();
        while !writer.is_finished() {
            let mut export = exporter.begin(id_of).unwrap();
            while export.next(&mut out).unwrap() {
                out.clear();
            }
        }
    });
}
