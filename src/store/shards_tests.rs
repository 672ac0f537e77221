//! Tests of exports and imports over the stores of several shards: nothing is lost on the way from one number
//! of shards to another.

use super::export::{Export, Exporter};
use super::import::{import, ImportError, ImportTarget, Imported};
use super::joined::Joined;
use super::layout::begin_import;
use super::lines::{ExportLine, ItemLine, StoreLine, WindowLine};
use super::moving_tests::name_what_is_incomplete;
use super::naming::Naming;
use super::tests::{given, group, item, open_at, put_item};
use super::verify::{verify, RowFault, WalkStep, Watcher};
use super::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tempfile::TempDir;
use tidegate_config::shard_path;
use tidegate_types::event::{BucketRow, ClosingRow, HeldRow, QueueRow, Stored, Wanted, WindowRow, FOR_EVER};
use tidegate_types::{AssignedId, BatchId, ClosedBy, Dead, End, Ended, Identity, Key, Reason};
use xxhash_rust::xxh3::xxh3_128;

const MEMORY: u64 = 64 << 20;
const NOW: u64 = 5_000;
const APPS: [&str; 5] = ["ape", "bee", "cat", "dog", "eel"];

/// In these tests the properties of an item are its id.
const NAMING: Naming =
    Naming { identity_of, with_id: |properties, id| properties.is_empty().then(|| id.as_bytes().to_vec()) };

fn identity_of(application: &str, id: &str) -> Identity {
    Identity::given(xxh3_128(format!("{application}/{id}").as_bytes()).to_be_bytes())
}

fn id_of(content: &Content, store: u64, id: AssignedId) -> String {
    if content.properties.is_empty() {
        format!("{store:x}-{}-{}", id.seq, id.due)
    } else {
        String::from_utf8(content.properties.clone()).unwrap()
    }
}

/// By the first letter, so that each of two or four shards has an application.
fn home_of(application: &str, shards: u16) -> u16 {
    application.bytes().next().map_or(0, u16::from) % shards
}

fn target(path: &Path, shards: Option<u16>) -> ImportTarget<'_> {
    ImportTarget { path, shards, home_of, memory_limit: MEMORY }
}

fn imported(path: &Path, shards: Option<u16>, text: &str) -> Result<Imported, ImportError> {
    import(&target(path, shards), &mut text.as_bytes(), NAMING, NOW, &mut |_| {})
}

fn exported(path: &Path) -> String {
    let paths = store_paths(path).unwrap();
    let begin = |path: &PathBuf| Exporter::open(path, 32 << 20).unwrap().begin(id_of).unwrap();
    let exports: Vec<Export> = paths.iter().map(begin).collect();
    let mut joined = Joined::of(exports, NAMING).unwrap();
    let mut out = Vec::new();
    while joined.next(&mut out).unwrap() {}
    let text = String::from_utf8(out).unwrap();
    let told = joined.told();
    assert_eq!((told.lines, told.items), (text.lines().count() as u64, joined.items()));
    text
}

fn lines(text: &str) -> Vec<ExportLine> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn first(text: &str) -> StoreLine {
    let Some(ExportLine::Store(first)) = lines(text).into_iter().next() else { panic!("{text}") };
    first
}

/// Everything in an export but arrival numbers, in the order of each application. A window is named by its
/// first item.
fn essence(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut out: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut named: BTreeMap<(String, u64), String> = BTreeMap::new();
    let mut put = |part: String, text: String| out.entry(part).or_default().push(text);
    let mut windows = Vec::new();
    for line in lines(text) {
        match line {
            ExportLine::Item(line) => {
                let ItemLine { number, window, identity: _, fingerprint: _, .. } = *line;
                let id = line.id.clone().unwrap();
                let window = (line.application.clone(), window.unwrap_or(number));
                let window = named.entry(window).or_insert_with(|| id.clone()).clone();
                let rest = ItemLine {
                    number: 0,
                    window: None,
                    identity: None,
                    fingerprint: None,
                    properties: String::new(),
                    ..(*line).clone()
                };
                put(format!("items of {}", line.queue()), format!("in {window}: {rest:?}"));
            }
            ExportLine::Window(row) => windows.push(row),
            ExportLine::Queue(row) => put("queues".to_owned(), format!("{row:?}")),
            ExportLine::Ended(row) => put("ended".to_owned(), format!("{row:?}")),
            ExportLine::Store(_) | ExportLine::End(_) => {}
        }
    }
    for row in windows {
        let window = named[&(row.application.clone(), row.window.unwrap())].clone();
        put("windows".to_owned(), format!("{window}: {:?}", WindowLine { window: None, ..row }));
    }
    for part in ["queues", "ended", "windows", "items of "] {
        out.entry(part.to_owned()).or_default().sort();
    }
    // Several shards may tell of the same end.
    out.entry("ended".to_owned()).or_default().dedup();
    out
}

fn sent(at: u64) -> Box<Ended> {
    let end = End::Sent(BatchId([3; 16]));
    Box::new(Ended { end, at, due: 2, attempts: 0, fingerprint: 3, customer: None })
}

/// What the applications have in a store. Their items have the arrival numbers `from` and above.
fn ops(application: &str, from: u64) -> Vec<Op> {
    let of = |place: Key, stored: Stored| {
        let plain = Content { body: place.seq.to_string().into_bytes(), ..Content::default() };
        let content = stored.content.clone().filter(|_| stored.given.is_some());
        let content = Some(content.unwrap_or_else(|| Arc::new(plain)));
        let (due, accepted_due) = (place.due, stored.accepted_due.max(place.due));
        put_item(
            Stored { key: place, due, accepted_due, content, application: application.into(), ..stored },
            true,
        )
    };
    let own = |due: u64, seq: u64| of(Key::own(due, from + seq), item(due, from + seq));
    let member = |due: u64, first: u64, seq: u64| {
        let place = Key { due, window: from + first, seq: from + seq };
        let customer = Some("ann".into());
        of(place, Stored { own_time: false, customer, ..item(due, from + seq) })
    };
    let id = format!("{application}-named");
    let content = Content { properties: id.clone().into_bytes(), body: vec![0xff, 0], json: false };
    let named = Stored {
        given: Some(identity_of(application, &id)),
        fingerprint: 7,
        content: Some(Arc::new(content)),
        ..item(60, from + 2)
    };
    let application: Arc<str> = application.into();
    let window = WindowRow {
        application: Arc::clone(&application),
        customer: "ann".into(),
        end: 90_000,
        window: from + 3,
        count: 3,
        weight: 7,
        expiry: Some(8),
    };
    let closing = ClosingRow {
        application: Arc::clone(&application),
        end: 80_000,
        window: from + 6,
        due: 70,
        cause: ClosedBy::Flush,
    };
    let queue = QueueRow {
        queue: Arc::clone(&application),
        count: 8,
        low: Key::default(),
        paused: (&*application == "bee").then_some(9_000),
        unindexed_until: 0,
        slowed: None,
    };
    let held =
        HeldRow { application: Arc::clone(&application), customer: "bob".into(), until: Some(FOR_EVER) };
    vec![
        own(50, 1),
        of(Key::own(60, from + 2), named),
        own(50, 9),
        // The first member of this window has left.
        member(90_000, 3, 4),
        member(90_000, 3, 5),
        member(80_000, 6, 6),
        member(80_000, 6, 7),
        own(40, 8),
        Op::PutWindow(window),
        Op::Close(closing),
        Op::PutQueue(queue),
        Op::PutHeld(held),
    ]
}

fn dead(application: &str, seq: u64) -> Op {
    let verdict = Dead { reason: Reason::Expired, error: "late".into() };
    let content = Some(Arc::new(Content::default()));
    let application = application.into();
    let dead = Some(Arc::new(verdict));
    put_item(Stored { dead, customer: None, application, content, ..item(7, seq) }, false)
}

/// Fills the store at `path` with everything that a store can hold.
fn fill(path: &Path) {
    let mut store = open_at(path).store;
    let mut all: Vec<Op> = (0..).zip(APPS).flat_map(|(n, name)| ops(name, 10 + 10 * n)).collect();
    all.extend([dead("", 1), dead("bee", 2), dead("cat", 3)]);
    all.push(Op::PutQueue(QueueRow {
        queue: "".into(),
        count: 3,
        low: Key::default(),
        paused: None,
        unindexed_until: 0,
        slowed: None,
    }));
    all.push(Op::BeginBucket(BucketRow { bucket: 1, from: 1 }));
    all.extend([9, 8].map(|n| Op::Remember { bucket: 1, identity: given(n), ended: sent(n.into()) }));
    store.commit(&[group(100, all)]).unwrap();
    store.close().unwrap();
}

struct Sound;

impl Watcher for Sound {
    fn step(&mut self, _: WalkStep) {}

    fn fault(&mut self, fault: RowFault) {
        panic!("{fault:?}");
    }
}

fn assert_same(text: &str, all: &BTreeMap<String, Vec<String>>, way: &str) {
    let there = essence(text);
    assert!(there.keys().eq(all.keys()), "{way}: {:?}", there.keys());
    for (part, texts) in &there {
        assert_eq!(texts, &all[part], "{way}: {part}");
    }
}

/// Imports into a new directory, and checks that the stores there are sound and have what is theirs.
fn moved(text: &str, shards: u16) -> (TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let told = imported(dir.path(), Some(shards), text).unwrap();
    let all = Imported { items: 40, dead_letters: 3, ended_ids: 2, windows: 5, paused: 6 };
    assert_eq!(told, all, "to {shards}");
    let paths = store_paths(dir.path()).unwrap();
    assert_eq!(paths.len(), usize::from(shards));
    for (number, path) in (0..).zip(&paths) {
        let summary = verify(path, MEMORY, &mut Sound).unwrap();
        let homes = APPS.iter().filter(|name| home_of(name, shards) == number).count() as u64;
        assert_eq!((summary.items, summary.windows, summary.ended_ids), (8 * homes, homes, 2), "{number}");
    }
    let again = exported(dir.path());
    assert_eq!(first(&again).shards, (shards > 1).then_some(shards));
    (dir, again)
}

fn source() -> (TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path());
    let text = exported(dir.path());
    (dir, text)
}

#[test]
fn nothing_is_lost_between_any_numbers_of_shards() {
    let (_from, text) = source();
    let all = essence(&text);
    assert_eq!(all["windows"].len(), 5);
    assert_eq!(all["items of dog"].len(), 8);
    let (_four, of_four) = moved(&text, 4);
    assert_same(&of_four, &all, "1 to 4");
    for shards in [1, 2, 4] {
        let (_there, there) = moved(&of_four, shards);
        assert_same(&there, &all, &format!("4 to {shards}"));
    }
}

#[test]
fn an_assigned_id_finds_its_item_in_its_new_store() {
    let (from, text) = source();
    let store = open_at(from.path()).identity;
    let (four, of_four) = moved(&text, 4);
    let (one, _) = moved(&of_four, 1);
    // The first item of the fourth application, and a member of its closed window.
    for (seq, due) in [(41, 50), (47, 80_000)] {
        let id = format!("{store:x}-{seq}-{due}");
        let wanted = Wanted {
            identity: identity_of("dog", &id),
            application: "dog".into(),
            key: None,
            buckets: Vec::new(),
        };
        for path in [shard_path(four.path(), home_of("dog", 4)), one.path().to_owned()] {
            let mut open = open_at(&path);
            assert_ne!(open.identity, store, "it would assign the same ids again");
            let loaded = open.store.load(&Load::Find(vec![wanted.clone()])).unwrap();
            let Loaded::Found(found) = loaded else { panic!("{loaded:?}") };
            let found = found[0].item.clone().unwrap_or_else(|| panic!("{id} in {}", path.display()));
            assert_eq!((found.customer.is_some(), found.accepted_due), (true, due));
        }
    }
}

/// Each shard has got all remembered ends, and only the item's home knows of a later one.
#[test]
fn the_latest_end_of_an_id_stays_whichever_shard_tells_of_it() {
    let (_from, text) = source();
    let (four, _) = moved(&text, 4);
    let mut store = open_at(&shard_path(four.path(), 1)).store;
    let later = vec![
        Op::BeginBucket(BucketRow { bucket: 2, from: 40 }),
        Op::Remember { bucket: 2, identity: given(9), ended: sent(50) },
    ];
    store.commit(&[group(200, later)]).unwrap();
    store.close().unwrap();
    let of_four = exported(four.path());
    assert_eq!(essence(&of_four)["ended"].len(), 2 + 1);
    for shards in [1, 2] {
        let (_there, there) = moved(&of_four, shards);
        let mut ends: Vec<u64> = Vec::new();
        for line in lines(&there) {
            if let ExportLine::Ended(row) = line {
                ends.push(row.at);
            }
        }
        ends.sort_unstable();
        let each = usize::from(shards);
        assert_eq!(ends, [vec![8; each], vec![50; each]].concat());
    }
}

#[test]
fn an_export_of_one_store_stays_as_it_is() {
    let (from, text) = source();
    let mut plain = Exporter::open(from.path(), MEMORY).unwrap().begin(id_of).unwrap();
    let mut out = Vec::new();
    while plain.next(&mut out).unwrap() {}
    let plain = String::from_utf8(out).unwrap();
    assert!(text.lines().skip(1).eq(plain.lines().skip(1)));
    assert_eq!(first(&text), StoreLine { export: first(&text).export, ..first(&plain) });
}

#[test]
fn an_import_into_shards_that_was_cut_is_refused_as_a_whole() {
    let (_from, text) = source();
    let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at + 1).collect();
    for cut in [ends[0], ends[ends.len() / 2], ends[ends.len() - 2]] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new");
        let told = imported(&path, Some(4), &text[..cut]).unwrap_err();
        assert!(matches!(told, ImportError::Cut { .. }), "{told}");
        is_refused(&path, &text);
        for number in 0..4 {
            let told = verify(&shard_path(&path, number), MEMORY, &mut Sound).unwrap_err();
            assert!(matches!(told, OpenError::Incomplete { .. }), "{told}");
        }
        fs::remove_dir_all(&path).unwrap();
        imported(&path, Some(4), &text).unwrap();
        assert_eq!(ShardLayout::claim(&path, 4).unwrap().unwrap().count, 4);
    }
    // As if the process had been killed when all stores were complete.
    let (four, _) = moved(&text, 4);
    begin_import(four.path()).unwrap();
    is_refused(four.path(), &text);
}

#[test]
fn no_command_takes_shards_without_their_file_for_a_single_store() {
    let (_from, text) = source();
    let (two, _) = moved(&text, 2);
    fs::remove_file(two.path().join("SHARDS")).unwrap();
    let refusals = [
        ShardLayout::claim(two.path(), 2).err().map(|error| error.to_string()),
        store_paths(two.path()).err().map(|error| error.to_string()),
        imported(two.path(), None, &text).err().map(|error| error.to_string()),
    ];
    for refusal in &refusals {
        assert_eq!(refusal, &refusals[0]);
        let named = refusal.as_deref().unwrap_or_default();
        assert!(named.contains("SHARDS: missing, although ") && named.contains("shard-0 holds"), "{named}");
    }
    assert_eq!(fs::read_dir(two.path()).unwrap().count(), 2, "nothing is made");
}

fn is_refused(path: &Path, text: &str) {
    let refusals = [
        ShardLayout::claim(path, 4).err().map(|error| error.to_string()),
        store_paths(path).err().map(|error| error.to_string()),
        imported(path, Some(4), text).err().map(|error| error.to_string()),
        imported(path, None, text).err().map(|error| error.to_string()),
    ];
    name_what_is_incomplete(path, refusals);
}

#[test]
fn an_import_goes_into_the_shards_that_are_there_and_into_no_others() {
    let (from, text) = source();
    let dir = tempfile::tempdir().unwrap();
    let layout = ShardLayout::claim(dir.path(), 4).unwrap();
    for shards in [1, 2] {
        let told = imported(dir.path(), Some(shards), &text).unwrap_err();
        assert!(matches!(told, ImportError::Open(OpenError::OtherCount { found: 4, .. })), "{told}");
    }
    let told = imported(from.path(), Some(2), &text).unwrap_err();
    assert!(matches!(told, ImportError::Open(OpenError::Undivided { .. })), "{told}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 5, "nothing is made");
    assert_eq!(imported(dir.path(), None, &text).unwrap().items, 40);
    assert_eq!(ShardLayout::find(dir.path()).unwrap(), layout);
    let other = tempfile::tempdir().unwrap();
    ShardLayout::claim(other.path(), 2).unwrap();
    drop(open_at(&shard_path(other.path(), 1)));
    match imported(other.path(), Some(2), &text) {
        Err(ImportError::NotEmpty { path }) => assert_eq!(path, shard_path(other.path(), 1)),
        told => panic!("{told:?}"),
    }
    ShardLayout::claim(other.path(), 2).unwrap();
}
