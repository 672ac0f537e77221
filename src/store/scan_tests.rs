//! Tests of scans over stored items.

#![expect(clippy::wildcard_enum_match_arm, reason = "another answer fails the test")]

use super::ground::{on_each, Ground, GroundKind};
use super::keyspace::KeyspaceId;
use super::rows;
use super::tests::{delete, group, index, item, key, place, put_indexed, put_item, verdict, APP};
use super::*;
use std::sync::Arc;
use tidegate_types::event::{Along, Scan, Stored};
use tidegate_types::{Content, Key};

on_each! {
    a_queue_is_scanned_in_order,
    a_scan_stops_at_its_bounds_and_goes_on_from_there,
    a_customer_is_scanned_by_index_rows_alone,
    damage_on_the_way_is_named_and_never_skipped,
}

on_each! { [on_a_slow_disk = Disk] { a_step_over_large_rows_ends_early_and_the_next_goes_on_there } }
on_each! {
    [on_a_disk_beside = Disk, over_maps_beside = Maps]
    { a_look_sees_its_moment_whatever_is_committed_since }
}

fn scan(along: Along) -> Scan {
    let (from, until) = (Key::default(), u64::MAX);
    Scan { number: 7, along, from, until, customer: None, max_rows: 99, max_looked_at: 99, properties: false }
}

fn queue(name: &str) -> Scan {
    scan(Along::Queue(name.into()))
}

fn customer(name: &str) -> Scan {
    scan(Along::Customer(APP.into(), name.into()))
}

fn rows_of(store: &mut dyn Store, scan: &Scan) -> (Vec<Stored>, Option<Key>) {
    match store.load(&Load::Scan(scan.clone())).unwrap() {
        Loaded::Scanned { number: 7, rows, next } => (rows, next),
        other => panic!("{other:?}"),
    }
}

/// Keys of the items of a customer that have index rows.
pub(crate) fn of_customer(store: &mut dyn Store, name: &str) -> Vec<Key> {
    let (rows, next) = rows_of(store, &customer(name));
    assert_eq!(next, None);
    rows.iter().map(|row| row.key).collect()
}

fn seqs(store: &mut dyn Store, scan: &Scan) -> (Vec<u64>, Option<u64>) {
    let (rows, next) = rows_of(store, scan);
    (rows.iter().map(|row| row.key.seq).collect(), next.map(|key| key.seq))
}

/// Odd items are of customer `x`, even ones of `y`; 20 is dead, and 3 is of another application.
fn filled(on: GroundKind) -> (Ground, Box<dyn Store>) {
    let (dir, mut store) = on.fresh();
    let of = |due: u64| {
        let customer = Some(if due.is_multiple_of(2) { "y".into() } else { "x".into() });
        Stored { customer, ..item(due, due) }
    };
    let mut ops: Vec<_> = [1, 2, 4, 5, 6, 7, 8].map(|due| put_item(of(due), due > 4)).to_vec();
    ops.push(put_item(Stored { dead: Some(verdict()), ..of(20) }, false));
    ops.push(put_item(Stored { application: "other".into(), ..of(3) }, true));
    store.commit(&[group(1, ops)]).unwrap();
    (dir, store)
}

fn a_queue_is_scanned_in_order(on: GroundKind) {
    let (_dir, mut store) = filled(on);
    assert_eq!(seqs(&mut *store, &queue(APP)), (vec![1, 2, 4, 5, 6, 7, 8], None));
    assert_eq!(seqs(&mut *store, &queue("other")), (vec![3], None));
    assert_eq!(seqs(&mut *store, &queue("")), (vec![20], None));
    assert_eq!(seqs(&mut *store, &queue("nobody")), (vec![], None));
    // Bounded at both ends; of one customer; both.
    let part = Scan { from: key(4, 4), until: 7, ..queue(APP) };
    assert_eq!(seqs(&mut *store, &part), (vec![4, 5, 6], None));
    assert_eq!(seqs(&mut *store, &Scan { from: key(4, 5), ..part.clone() }), (vec![5, 6], None));
    let of_y = Scan { customer: Some("y".into()), ..queue(APP) };
    assert_eq!(seqs(&mut *store, &of_y), (vec![2, 4, 6, 8], None));
    assert_eq!(seqs(&mut *store, &Scan { customer: Some("z".into()), ..part }), (vec![], None));
    let inverted = Scan { from: key(9, 0), until: 3, ..queue(APP) };
    assert_eq!(seqs(&mut *store, &inverted), (vec![], None));
    // Properties only on request, for the id in them, and never a body.
    for row in rows_of(&mut *store, &queue(APP)).0 {
        assert_eq!(row.content, None);
    }
    for row in rows_of(&mut *store, &Scan { properties: true, ..queue("") }).0 {
        let content = row.content.unwrap();
        assert_eq!((&*content.properties, &*content.body, content.json), (&[1, 2][..], &[][..], true));
        assert_eq!((&*row.application, row.dead), (APP, Some(verdict())));
    }
}

fn a_scan_stops_at_its_bounds_and_goes_on_from_there(on: GroundKind) {
    let (_dir, mut store) = filled(on);
    let of_x = Scan { customer: Some("x".into()), ..queue(APP) };
    // Limits of returned rows, and of rows read, whether they match or not.
    assert_eq!(seqs(&mut *store, &Scan { max_rows: 2, ..of_x.clone() }), (vec![1, 5], Some(6)));
    assert_eq!(seqs(&mut *store, &Scan { max_looked_at: 5, ..of_x.clone() }), (vec![1, 5], Some(7)));
    // The last matching row is returned, and the row after it was not read.
    assert_eq!(seqs(&mut *store, &Scan { max_rows: 3, ..of_x.clone() }), (vec![1, 5, 7], Some(8)));
    assert_eq!(seqs(&mut *store, &Scan { max_looked_at: 7, ..of_x.clone() }), (vec![1, 5, 7], None));
    assert_eq!(seqs(&mut *store, &Scan { until: 8, max_rows: 3, ..of_x }), (vec![1, 5, 7], None));
    for step in 1..10 {
        for (whole, expected) in [(queue(APP), vec![1, 2, 4, 5, 6, 7, 8]), (customer("y"), vec![6, 8])] {
            let (mut seen, mut from) = (vec![], Some(Key::default()));
            while let Some(next) = from {
                let (rows, next) =
                    rows_of(&mut *store, &Scan { from: next, max_looked_at: step, ..whole.clone() });
                seen.extend(rows.iter().map(|row| row.key.seq));
                from = next;
            }
            assert_eq!(seen, expected, "{step} rows a step");
        }
    }
}

fn a_customer_is_scanned_by_index_rows_alone(on: GroundKind) {
    let (_dir, mut store) = filled(on);
    assert_eq!(seqs(&mut *store, &customer("x")), (vec![5, 7], None));
    let part = Scan { from: key(5, 6), max_rows: 1, properties: true, ..customer("x") };
    let (rows, next) = rows_of(&mut *store, &part);
    assert_eq!((rows.len(), rows[0].key, next), (1, key(7, 7), None));
    assert_eq!(&*rows[0].content.as_ref().unwrap().properties, &[1, 2]);
    assert_eq!(seqs(&mut *store, &Scan { max_rows: 1, ..customer("y") }), (vec![6], Some(8)));
    assert_eq!(seqs(&mut *store, &Scan { max_looked_at: 1, ..customer("y") }), (vec![6], Some(8)));
    assert_eq!(seqs(&mut *store, &Scan { from: key(6, 7), until: 8, ..customer("y") }), (vec![], None));
    assert_eq!(seqs(&mut *store, &Scan { from: key(9, 9), until: 5, ..customer("y") }), (vec![], None));
    let other = Scan { along: Along::Customer("other".into(), "x".into()), ..customer("x") };
    assert_eq!(seqs(&mut *store, &other), (vec![3], None));
    // Index rows that are written later, and removed.
    let written = Op::Index { key: key(1, 1), rows: index(None, "x") };
    let gone = Op::Delete { place: place(APP, 5, 5), rows: index(None, "x") };
    store.commit(&[group(2, vec![written, gone, put_indexed(9, 9, "x2")])]).unwrap();
    assert_eq!(seqs(&mut *store, &customer("x")), (vec![1, 7], None));
    assert_eq!(seqs(&mut *store, &customer("x2")), (vec![9], None));
    // An index row without its item is damage; the scan does not skip it.
    store.commit(&[group(3, vec![delete(7, 7)])]).unwrap();
    let error = store.load(&Load::Scan(customer("x"))).unwrap_err();
    assert!(matches!(error, ReadError::Damaged { keyspace: "customers", .. }), "{error}");
}

fn a_step_over_large_rows_ends_early_and_the_next_goes_on_there(on: GroundKind) {
    let (_dir, mut store) = on.fresh();
    let large = |seq: u64| {
        let content = Content { properties: vec![], body: vec![7; 3 << 20], json: false };
        let customer = Some("x".into());
        put_item(Stored { customer, content: Some(Arc::new(content)), ..item(seq, seq) }, true)
    };
    for seq in 1..=5 {
        store.commit(&[group(seq, vec![large(seq)])]).unwrap();
    }
    for whole in [queue(APP), customer("x")] {
        assert_eq!(seqs(&mut *store, &whole), (vec![1, 2], Some(3)));
        assert_eq!(seqs(&mut *store, &Scan { from: key(3, 3), ..whole.clone() }), (vec![3, 4], Some(5)));
        assert_eq!(seqs(&mut *store, &Scan { from: key(5, 5), ..whole }), (vec![5], None));
    }
}

/// On a slow machine the step may end after any row.
fn a_look_sees_its_moment_whatever_is_committed_since(on: GroundKind) {
    let (_dir, mut store) = filled(on);
    let job = store.look(&queue(APP)).unwrap();
    store.commit(&[group(2, [1, 2, 4, 5, 6, 7, 8].map(|due| delete(due, due)).to_vec())]).unwrap();
    assert_eq!(seqs(&mut *store, &queue(APP)), (vec![], None));
    let Loaded::Scanned { number: 7, rows, next } = job().unwrap() else { panic!("a step of a scan") };
    let seen: Vec<u64> = rows.iter().map(|row| row.key.seq).collect();
    let all = [1, 2, 4, 5, 6, 7, 8];
    assert!(!seen.is_empty() && all.starts_with(&seen), "{seen:?}");
    assert_eq!(next.map(|key| key.seq), all.get(seen.len()).copied());
}

fn damage_on_the_way_is_named_and_never_skipped(on: GroundKind) {
    let (dir, store) = filled(on);
    drop(store);
    let row = rows::item_key(APP, key(6, 6)).unwrap();
    dir.write_raw(KeyspaceId::Items, &row, Some(b"not a record at all"));
    let mut store = dir.open().store;
    for scan in [queue(APP), Scan { customer: Some("x".into()), ..queue(APP) }, customer("y")] {
        match store.load(&Load::Scan(scan)).unwrap_err() {
            ReadError::Damaged { keyspace: "items", key, .. } => {
                assert_eq!(key, "queue `app` due 6 number 6");
            }
            other => panic!("{other}"),
        }
    }
    // The rows before it are still readable.
    assert_eq!(seqs(&mut *store, &Scan { until: 6, ..queue(APP) }).0, vec![1, 2, 4, 5]);
}
