//! Walks over stored items, on real directories.

#![expect(clippy::wildcard_enum_match_arm, reason = "another answer fails the test")]

use super::disk::write_raw;
use super::rows;
use super::space::Space;
use super::tests::{fresh, group, indexed, item, key, lane, open_at};
use super::*;
use crate::engine::event::{Along, LaneRow, Stored, Walk};
use crate::engine::types::{Dead, Reason};

fn walk(along: Along, application: &str, customer: &str) -> Walk {
    let name = |name: &str| (!name.is_empty()).then(|| name.into());
    Walk {
        number: 7,
        along,
        from: Key::default(),
        low: Key::default(),
        until: u64::MAX,
        application: name(application),
        customer: name(customer),
        max_rows: 99,
        max_looked_at: 99,
    }
}

/// A walk over everything.
pub(super) fn all(from: Key, max_rows: usize, max_looked_at: usize) -> Load {
    Load::Walk(Walk { from, max_rows, max_looked_at, ..walk(Along::All, "", "") })
}

fn rows_of(store: &mut dyn Store, load: &Load) -> (Vec<(Place, Stored)>, Option<Key>) {
    match store.load(load).unwrap() {
        Loaded::Walked { number: 7, rows, next } => (rows, next),
        other => panic!("{other:?}"),
    }
}

fn seqs(store: &mut dyn Store, walk: &Walk) -> (Vec<u64>, Option<u64>) {
    let (rows, next) = rows_of(store, &Load::Walk(walk.clone()));
    (rows.iter().map(|row| row.1.key.seq).collect(), next.map(|key| key.seq))
}

fn put(place: Place, due: u64, application: &str, customer: &str, dead: bool) -> Op {
    let dead = dead.then(|| Arc::new(Dead { reason: Reason::Full, error: "full".into() }));
    let (application, customer): (Arc<str>, Option<Arc<str>>) = (application.into(), Some(customer.into()));
    let item = Stored { application, customer, dead, ..item(due, due) };
    Op::Put { place, item: Box::new(item), indexed: indexed(None, "") }
}

fn lane_row(name: &str) -> Op {
    Op::PutLane(LaneRow { lane: name.into(), count: 1, low: Key::default() })
}

/// Odd ones in the time index, even ones in lanes; those of tens are dead.
fn filled() -> (tempfile::TempDir, Box<dyn Store>) {
    let (dir, mut store) = fresh();
    let ops = vec![
        lane_row("a"),
        lane_row("b"),
        lane_row(""),
        put(lane("b"), 2, "b", "x", false),
        put(Place::Time, 1, "a", "x", false),
        put(lane("a"), 4, "a", "y", false),
        put(Place::Time, 3, "b", "x", false),
        put(lane("b"), 6, "b", "y", false),
        put(Place::Time, 5, "a", "y", false),
        put(lane("a"), 8, "a", "x", false),
        put(Place::Time, 7, "c", "x", false),
        put(Place::Time, 10, "a", "x", true),
        put(lane(""), 20, "a", "x", true),
    ];
    store.commit(&[group(1, ops)]).unwrap();
    (dir, store)
}

#[test]
fn all_places_are_walked_in_one_order() {
    let (_dir, mut store) = filled();
    let everything = walk(Along::All, "", "");
    assert_eq!(seqs(&mut *store, &everything), ((1..9).collect(), None));
    let (rows, _) = rows_of(&mut *store, &Load::Walk(everything.clone()));
    for (place, row) in rows {
        let expected = match row.key.seq {
            1 | 3 | 5 | 7 => Place::Time,
            4 | 8 => lane("a"),
            _ => lane("b"),
        };
        assert_eq!(place, expected);
        // Properties, for the id in them, but no body.
        let content = row.content.unwrap();
        assert_eq!((&*content.properties, &*content.body, content.json), (&[1, 2][..], &[][..], true));
    }
    // Cut at both ends, of one application, of one customer, of both.
    let part = Walk { from: key(3, 3), until: 7, ..everything };
    assert_eq!(seqs(&mut *store, &part), (vec![3, 4, 5, 6], None));
    assert_eq!(seqs(&mut *store, &Walk { from: key(3, 4), ..part }), (vec![4, 5, 6], None));
    assert_eq!(seqs(&mut *store, &walk(Along::All, "a", "")), (vec![1, 4, 5, 8], None));
    assert_eq!(seqs(&mut *store, &walk(Along::All, "c", "")), (vec![7], None));
    assert_eq!(seqs(&mut *store, &walk(Along::All, "", "x")), (vec![1, 2, 3, 7, 8], None));
    assert_eq!(seqs(&mut *store, &walk(Along::All, "b", "x")), (vec![2, 3], None));
    assert_eq!(seqs(&mut *store, &walk(Along::All, "nobody", "")), (vec![], None));
    let inverted = Walk { from: key(9, 0), until: 3, ..walk(Along::All, "", "") };
    assert_eq!(seqs(&mut *store, &inverted), (vec![], None));
}

#[test]
fn a_walk_stops_at_its_bounds_and_goes_on_from_there() {
    let (_dir, mut store) = filled();
    let full = walk(Along::All, "", "x");
    // So many rows; so many looked at, whether they are wanted or not.
    assert_eq!(seqs(&mut *store, &Walk { max_rows: 2, ..full.clone() }), (vec![1, 2], Some(3)));
    assert_eq!(seqs(&mut *store, &Walk { max_looked_at: 5, ..full.clone() }), (vec![1, 2, 3], Some(6)));
    // The last one wanted is in, but dead ones lie behind it and have not been looked at.
    assert_eq!(seqs(&mut *store, &Walk { max_rows: 5, ..full.clone() }), (vec![1, 2, 3, 7, 8], Some(10)));
    assert_eq!(seqs(&mut *store, &Walk { max_looked_at: 9, ..full }), (vec![1, 2, 3, 7, 8], None));
    for step in 1..12 {
        let (mut seen, mut from) = (vec![], Some(Key::default()));
        while let Some(next) = from {
            let (rows, next) = rows_of(&mut *store, &all(next, 99, step));
            seen.extend(rows.iter().map(|row| row.1.key.seq));
            from = next;
        }
        assert_eq!(seen, (1..9).collect::<Vec<_>>(), "{step} rows a step");
    }
}

#[test]
fn a_lane_is_walked_for_one_customer() {
    let (_dir, mut store) = filled();
    let (rows, next) = rows_of(&mut *store, &Load::Walk(walk(Along::Lane, "a", "x")));
    assert_eq!(next, None);
    assert_eq!(rows.len(), 1);
    assert_eq!((&rows[0].0, rows[0].1.key), (&lane("a"), key(8, 8)));
    let content = rows[0].1.content.as_deref().unwrap();
    assert_eq!((&*content.properties, &*content.body), (&[1, 2][..], &[][..]));
    assert_eq!(seqs(&mut *store, &walk(Along::Lane, "a", "")), (vec![4, 8], None));
    let lane = walk(Along::Lane, "b", "y");
    assert_eq!(seqs(&mut *store, &Walk { max_looked_at: 1, ..lane.clone() }), (vec![], Some(6)));
    assert_eq!(seqs(&mut *store, &Walk { until: 6, ..lane.clone() }), (vec![], None));
    assert_eq!(seqs(&mut *store, &Walk { from: key(6, 6), ..lane }), (vec![6], None));
    assert_eq!(seqs(&mut *store, &walk(Along::Lane, "c", "")), (vec![], None));
}

#[test]
fn all_lanes_are_walked_together() {
    let (_dir, mut store) = filled();
    let lanes = walk(Along::Lane, "", "");
    assert_eq!(seqs(&mut *store, &lanes), (vec![2, 4, 6, 8], None));
    assert_eq!(seqs(&mut *store, &walk(Along::Lane, "", "y")), (vec![4, 6], None));
    assert_eq!(seqs(&mut *store, &Walk { from: key(3, 0), max_rows: 2, ..lanes }), (vec![4, 6], Some(8)));
}

/// Rows below a low mark would be damage; here they show that nobody looks there.
#[test]
fn a_walk_never_starts_below_a_low_mark() {
    let (_dir, mut store) = filled();
    let low = |lane: &str, due| Op::PutLane(LaneRow { lane: lane.into(), count: 1, low: key(due, 0) });
    store.commit(&[group(2, vec![low("a", 5), low("b", 3)])]).unwrap();
    let everything = Walk { low: key(2, 0), ..walk(Along::All, "", "") };
    assert_eq!(seqs(&mut *store, &everything), (vec![3, 5, 6, 7, 8], None));
    assert_eq!(seqs(&mut *store, &Walk { from: key(6, 0), ..everything }), (vec![6, 7, 8], None));
    // The time index alone is meant by the walk's own mark.
    let lane = Walk { low: key(9, 0), ..walk(Along::Lane, "a", "") };
    assert_eq!(seqs(&mut *store, &lane), (vec![8], None));
    assert_eq!(seqs(&mut *store, &Walk { application: None, ..lane }), (vec![6, 8], None));
}

#[test]
fn a_customer_is_walked_by_index_rows() {
    let (_dir, mut store) = fresh();
    let of = |due, customer: &str| {
        let item = Stored { customer: Some(customer.into()), ..item(due, due) };
        Op::Put { place: Place::Time, item: Box::new(item), indexed: indexed(None, customer) }
    };
    let bare = put(Place::Time, 4, "app", "c", false);
    store.commit(&[group(1, vec![of(1, "c"), of(2, "c2"), of(3, "c"), bare, of(5, "c")])]).unwrap();
    let full = walk(Along::Customer, "app", "c");
    let (rows, next) = rows_of(&mut *store, &Load::Walk(full.clone()));
    assert!(rows.iter().all(|(place, row)| *place == Place::Time && row.content.is_none()));
    assert_eq!((rows.len(), next), (3, None));
    assert_eq!(seqs(&mut *store, &full), (vec![1, 3, 5], None));
    assert_eq!(seqs(&mut *store, &Walk { max_rows: 1, ..full.clone() }), (vec![1], Some(3)));
    assert_eq!(seqs(&mut *store, &Walk { max_looked_at: 2, ..full.clone() }), (vec![1, 3], Some(5)));
    assert_eq!(seqs(&mut *store, &Walk { from: key(2, 0), until: 5, ..full.clone() }), (vec![3], None));
    assert_eq!(seqs(&mut *store, &Walk { from: key(5, 9), until: 5, ..full.clone() }), (vec![], None));
    assert_eq!(seqs(&mut *store, &Walk { low: key(3, 0), ..full.clone() }), (vec![3, 5], None));
    // An index row without its item is damage here as well.
    let gone = Op::Delete { place: Place::Time, key: key(3, 3), indexed: indexed(None, "") };
    store.commit(&[group(2, vec![gone])]).unwrap();
    let error = store.load(&Load::Walk(full)).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { keyspace: "customers", .. }), "{error}");
}

#[test]
fn damage_on_the_way_is_named_and_never_skipped() {
    let (dir, store) = filled();
    drop(store);
    let row = rows::place_key(&["b"], key(6, 6)).unwrap();
    write_raw(dir.path(), Space::Lanes, &row, Some(b"not a record at all"));
    let mut store = open_at(dir.path()).store;
    for load in [all(Key::default(), 99, 99), Load::Walk(walk(Along::Lane, "b", ""))] {
        match store.load(&load).unwrap_err() {
            StoreError::Damaged { keyspace: "lanes", key, .. } => assert!(key.contains("\\x06"), "{key}"),
            other => panic!("{other}"),
        }
    }
    // What lies before it can still be seen.
    assert_eq!(rows_of(&mut *store, &all(Key::default(), 5, 99)).0.len(), 5);
}
