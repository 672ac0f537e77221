//! Tests of `verify`: a sound store has no faults, and every damaged row is reported by name.

use super::directory::Directory;
use super::disk::write_raw;
use super::keyspace::KeyspaceId;
use super::rows;
use super::tests::{disk_at, given, group, index, item, key, named, open_at, place, put_item, APP};
use super::verify::{verify, RowFault, StoreSummary, WalkStep, Watcher};
use super::*;
use std::path::Path;
use tidegate_types::event::{BucketRow, QueueRow, Stored, WindowRow};
use tidegate_types::{Dead, End, Ended, Reason};

#[derive(Default)]
struct Told {
    faults: Vec<RowFault>,
    last: Option<WalkStep>,
}

impl Watcher for Told {
    fn step(&mut self, step: WalkStep) {
        self.last = Some(step);
    }

    fn fault(&mut self, fault: RowFault) {
        self.faults.push(fault);
    }
}

fn verified(path: &Path) -> (StoreSummary, Vec<RowFault>) {
    let mut told = Told::default();
    let summary = verify(path, 32 << 20, &mut told).unwrap();
    assert_eq!(summary.faults, told.faults.len() as u64);
    assert_eq!(told.last.unwrap().done, summary.rows);
    (summary, told.faults)
}

fn row(queue: &str, count: u64, low: u64) -> Op {
    Op::PutQueue(QueueRow {
        queue: queue.into(),
        count,
        low: key(low, 0),
        paused: None,
        unindexed_until: 0,
        slowed: None,
    })
}

/// A store with two items, one of them with an id, a dead letter, a window, and the remembered id of a
/// cancelled item.
fn filled() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open_at(dir.path()).store;
    let dead =
        Stored { dead: Some(Arc::new(Dead { reason: Reason::Expired, error: "late".into() })), ..item(7, 3) };
    let window = WindowRow {
        application: APP.into(),
        customer: "c".into(),
        end: 90,
        window: 1,
        count: 1,
        weight: 7,
        expiry: None,
    };
    let ended = Ended { end: End::Cancelled, at: 1, due: 2, attempts: 0, fingerprint: 3, customer: None };
    let ops = vec![
        put_item(item(50, 1), true),
        put_item(named(60, 2), true),
        put_item(dead, false),
        row(APP, 2, 40),
        row("", 1, 0),
        Op::PutWindow(window),
        Op::BeginBucket(BucketRow { bucket: 1, from: 1 }),
        Op::Remember { bucket: 1, identity: given(9), ended: Box::new(ended) },
    ];
    store.commit(&[group(9, ops)]).unwrap();
    store.close().unwrap();
    dir
}

/// The faults found after a row was written past all checks.
fn fault_of(id: KeyspaceId, row: &[u8], value: Option<&[u8]>) -> Vec<RowFault> {
    let dir = filled();
    write_raw(dir.path(), id, row, value);
    verified(dir.path()).1
}

fn only(faults: Vec<RowFault>) -> (&'static str, String, String) {
    let [RowFault { keyspace, key, error }] = <[RowFault; 1]>::try_from(faults).expect("one fault");
    (keyspace, key, error)
}

#[test]
fn a_sound_store_is_counted() {
    let dir = filled();
    let (summary, faults) = verified(dir.path());
    assert_eq!(faults, []);
    let counts = (summary.items, summary.dead_letters, summary.ids, summary.ended_ids, summary.windows);
    assert_eq!(counts, (2, 1, 1, 1, 1));
    assert_eq!((summary.queues, summary.oldest_due, summary.newest_due), (2, Some(50), Some(60)));
    assert_eq!((summary.commit, summary.closings, summary.paused), (1, 0, 0));
    assert_eq!(verified(dir.path()).0.commit, 1, "looking changes nothing");
    assert_eq!(open_at(dir.path()).identity, summary.identity);
}

#[test]
fn every_damaged_row_is_named() {
    let item = rows::item_key(APP, key(50, 1)).unwrap();
    let (keyspace, key_, error) = only(fault_of(KeyspaceId::Items, &item, Some(b"scratched")));
    assert_eq!((keyspace, key_.as_str()), ("items", "queue `app` due 50 number 1"));
    assert!(error.starts_with("checksum mismatch"), "{error}");
    for (id, row) in [
        (KeyspaceId::Windows, rows::window_key(APP, "c").unwrap()),
        (KeyspaceId::Ended(1), given(9).to_bytes().to_vec()),
        (KeyspaceId::Ended(1), rows::BUCKET.to_vec()),
        (KeyspaceId::Meta, rows::META_IDENTITY.to_vec()),
    ] {
        let (keyspace, _, error) = only(fault_of(id, &row, Some(b"scratched")));
        assert_eq!((keyspace, error.starts_with("checksum mismatch")), (id.name(), true), "{error}");
    }
    let (keyspace, key_, error) = only(fault_of(KeyspaceId::Meta, b"other", Some(b"1")));
    assert_eq!((keyspace, key_.as_str(), error.as_str()), ("meta", "`other`", "unknown row name"));
}

#[test]
fn rows_that_lead_nowhere_are_named_and_those_that_nothing_leads_to() {
    let other = rows::place_key(&[APP, "c"], key(51, 1)).unwrap();
    let (keyspace, _, error) = only(fault_of(KeyspaceId::Customers, &other, Some(b"")));
    assert_eq!((keyspace, error.as_str()), ("customers", "no item of the queue belongs to this row"));
    let foreign = rows::place_key(&[APP, "d"], key(50, 1)).unwrap();
    let (_, _, error) = only(fault_of(KeyspaceId::Customers, &foreign, Some(b"")));
    assert_eq!(error, "this row leads to an item of another customer");
    let mine = rows::place_key(&[APP, "c"], key(50, 1)).unwrap();
    let (keyspace, _, error) = only(fault_of(KeyspaceId::Customers, &mine, None));
    assert_eq!((keyspace, error.as_str()), ("items", "its row under its customer is missing"));
    let (row, _) = rows::identity_row(given(2), key(60, 2));
    let (keyspace, key_, error) = only(fault_of(KeyspaceId::Identities, &row, None));
    assert_eq!((keyspace, key_.as_str()), ("items", "queue `app` due 60 number 2"));
    assert_eq!(error, "the row of its id is missing");
    let (row, value) = rows::identity_row(given(5), key(61, 2));
    let (keyspace, _, error) = only(fault_of(KeyspaceId::Identities, &row, Some(&value)));
    assert_eq!((keyspace, error.as_str()), ("identities", "no item of any queue belongs to this row"));
    let (row, value) = rows::identity_row(given(2), key(50, 1));
    let errors: Vec<String> =
        fault_of(KeyspaceId::Identities, &row, Some(&value)).into_iter().map(|fault| fault.error).collect();
    assert_eq!(
        errors,
        ["the row of its id leads to another item", "no item of any queue belongs to this row"]
    );
}

#[test]
fn queues_that_are_counted_wrong_are_named() {
    let faults = |ops: Vec<Op>| {
        let dir = filled();
        let mut store = open_at(dir.path()).store;
        store.commit(&[group(9, ops)]).unwrap();
        store.close().unwrap();
        only(verified(dir.path()).1)
    };
    let (keyspace, key_, error) = faults(vec![row(APP, 3, 40)]);
    assert_eq!((keyspace, key_.as_str()), ("queues", "`\\x03app`"));
    assert_eq!(error, "it counts 3 items, and the queue has 2");
    assert_eq!(
        faults(vec![row(APP, 2, 51)]).2,
        "the queue is read from due 51 on, and its first item is due 50"
    );
    assert_eq!(faults(vec![row("", 0, 0)]).2, "missing, although the queue has 1 items");
    let unknown = Op::Delete { place: place(APP, 60, 2), rows: index(Some(given(2)), "c") };
    assert_eq!(faults(vec![unknown]).2, "it counts 2 items, and the queue has 1");
}

#[test]
fn an_item_with_a_number_of_the_future_is_named() {
    let dir = filled();
    let mut store = open_at(dir.path()).store;
    store.commit(&[group(9, vec![put_item(item(70, 99), true), row(APP, 3, 40)])]).unwrap();
    store.close().unwrap();
    let error = only(verified(dir.path()).1).2;
    assert_eq!(error, "its number was never assigned: the next number is 10");
}

#[test]
fn what_is_not_there_is_not_made_and_what_is_open_stays_closed() {
    let dir = tempfile::tempdir().unwrap();
    let none = dir.path().join("none");
    let mut told = Told::default();
    assert!(matches!(verify(&none, 0, &mut told), Err(OpenError::Absent { .. })));
    assert!(!none.exists());
    assert!(matches!(verify(dir.path(), 0, &mut told), Err(OpenError::Absent { .. })));
    let _held = Directory::open(dir.path()).unwrap();
    assert!(matches!(verify(dir.path(), 0, &mut told), Err(OpenError::Locked { .. })));
}

/// Deleted rows take no space afterwards, and all other rows stay unchanged.
#[test]
fn a_store_is_smaller_when_it_is_compacted() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = disk_at(dir.path(), 32 << 20);
    let body = |seq: u64| (0..2_000).map(|n| (n * seq * 7_919 % 251) as u8).collect::<Vec<_>>();
    let content = |seq| Content { properties: vec![], body: body(seq), json: false };
    let put = |seq: u64| {
        put_item(Stored { content: Some(Arc::new(content(seq))), customer: None, ..item(50, seq) }, false)
    };
    store.commit(&[group(2_000, (1..=1_000).map(put).collect())]).unwrap();
    // Rows that are put and deleted within a memtable never reach a table.
    store.flush().unwrap();
    let gone = (11..=1_000).map(|seq| super::tests::delete(50, seq));
    store.commit(&[group(2_000, gone.chain([row(APP, 10, 50)]).collect())]).unwrap();
    Box::new(store).close().unwrap();
    let mut told = Told::default();
    let compact::Compacted { before, after } = compact::compact(dir.path(), 32 << 20, &mut told).unwrap();
    // The log is not rewritten, and keeps its size.
    assert!(before > 4_000_000 && after < before / 3 * 2, "{before} to {after}");
    let (summary, faults) = verified(dir.path());
    assert_eq!((summary.items, faults), (10, vec![]));
}
