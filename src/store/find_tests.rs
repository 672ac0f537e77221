//! Finding items by identity, on real directories.

#![expect(clippy::wildcard_enum_match_arm, reason = "another answer fails the test")]

use super::disk::write_raw;
use super::rows;
use super::space::Space;
use super::tests::{fresh, group, in_lane, indexed, item, key, lane, open_at};
use super::*;
use crate::engine::event::{Found, Indexed, Stored, Wanted};
use crate::engine::types::Identity;

/// Of an item whose producer named it.
pub(super) fn given(n: u8) -> Identity {
    Identity::given([n; 16])
}

pub(super) fn wanted(identity: Identity, buckets: &[u8]) -> Wanted {
    Wanted { identity, application: "app".into(), buckets: buckets.to_vec() }
}

pub(super) fn find(store: &mut dyn Store, wanted: Vec<Wanted>) -> Vec<Found> {
    match store.load(&Load::Find(wanted)).unwrap() {
        Loaded::Found(found) => found,
        other => panic!("{other:?}"),
    }
}

/// Where an item is.
fn place(store: &mut dyn Store, identity: Identity) -> Option<(Place, Key)> {
    let found = find(store, vec![wanted(identity, &[])]).remove(0);
    assert_eq!(found.ended, None);
    found.item.map(|(place, item)| {
        assert_eq!((item.identity(), &item.content), (identity, &None));
        (place, item.key)
    })
}

fn named(due: u64, n: u8) -> Stored {
    Stored { given: Some(given(n)), ..item(due, n.into()) }
}

/// With its identity row.
fn put_named(due: u64, n: u8) -> Op {
    Op::Put { place: Place::Time, item: Box::new(named(due, n)), indexed: indexed(Some(given(n)), "c") }
}

fn delete(place: Place, due: u64, n: u8) -> Op {
    Op::Delete { place, key: key(due, n.into()), indexed: indexed(Some(given(n)), "c") }
}

fn park(from: Place, due: u64, n: u8, removed: bool, identity: Option<Identity>) -> Op {
    Op::Park {
        from,
        key: key(due, n.into()),
        indexed: if removed { indexed(Some(given(n)), "c") } else { Indexed::default() },
        identity,
        lane: "app".into(),
        attempts: 1,
        last_error: None,
        dead: None,
    }
}

#[test]
fn an_item_is_found_wherever_it_lies() {
    let (dir, mut store) = fresh();
    let bare = Op::Put { place: Place::Time, item: Box::new(named(5, 5)), indexed: Indexed::default() };
    let assigned = Op::Put {
        place: Place::Time,
        item: Box::new(item(6, 6)),
        indexed: indexed(Some(Identity::assigned(6)), ""),
    };
    let parked =
        Op::Put { place: lane("app"), item: Box::new(named(7, 7)), indexed: indexed(Some(given(7)), "") };
    store.commit(&[group(1, vec![put_named(4, 4), bare, assigned, parked])]).unwrap();
    for _ in 0..2 {
        let found =
            find(&mut *store, vec![wanted(given(7), &[]), wanted(given(9), &[]), wanted(given(4), &[0, 1])]);
        let seen: Vec<_> = found.into_iter().map(|found| found.item).collect();
        let without = |n: u8| Stored { content: None, ..named(n.into(), n) };
        assert_eq!(seen, vec![Some((lane("app"), without(7))), None, Some((Place::Time, without(4)))]);
        // One that is bare is the engine's to know.
        assert_eq!(place(&mut *store, given(5)), None);
        assert_eq!(place(&mut *store, Identity::assigned(6)), Some((Place::Time, key(6, 6))));
        drop(store);
        store = open_at(dir.path()).store;
    }
    // From now on it has index rows, and an earlier end is no hindrance.
    let index = Op::Index { key: key(5, 5), indexed: indexed(Some(given(5)), "c") };
    store.commit(&[group(2, vec![index])]).unwrap();
    assert_eq!(place(&mut *store, given(5)), Some((Place::Time, key(5, 5))));
}

#[test]
fn identity_rows_go_and_come_with_their_items() {
    let (_dir, mut store) = fresh();
    store.commit(&[group(1, vec![put_named(1, 1), put_named(2, 2), put_named(3, 3)])]).unwrap();
    // Moved with its row written anew; moved without any; gone.
    let moved = park(Place::Time, 1, 1, true, Some(given(1)));
    let silent = park(Place::Time, 2, 2, true, None);
    store.commit(&[group(2, vec![moved, silent, delete(Place::Time, 3, 3)])]).unwrap();
    assert_eq!(place(&mut *store, given(1)), Some((lane("app"), key(1, 1))));
    assert_eq!((place(&mut *store, given(2)), place(&mut *store, given(3))), (None, None));
    assert_eq!(in_lane(&mut *store, "app", Key::default(), 9).0.len(), 2);
    // Within the lane, with nothing to remove.
    store.commit(&[group(3, vec![park(lane("app"), 2, 2, false, Some(given(2)))])]).unwrap();
    assert_eq!(place(&mut *store, given(2)), Some((lane("app"), key(2, 2))));
    // What is not there is removed without a fault, row by row.
    let (again, never) = (delete(Place::Time, 3, 3), delete(lane("app"), 9, 9));
    store.commit(&[group(4, vec![delete(lane("app"), 1, 1), again, never])]).unwrap();
    assert_eq!(place(&mut *store, given(1)), None);
}

#[test]
fn the_last_word_on_an_identity_counts() {
    let (_dir, mut store) = fresh();
    // One that takes the place of another under the same identity, in one call.
    let second = Op::Put {
        place: Place::Time,
        item: Box::new(Stored { key: key(8, 80), ..named(8, 1) }),
        indexed: indexed(Some(given(1)), "c"),
    };
    let ops = vec![put_named(1, 1), delete(Place::Time, 1, 1), second];
    store.commit(&[group(1, ops), group(2, vec![put_named(2, 2), delete(Place::Time, 2, 2)])]).unwrap();
    assert_eq!(place(&mut *store, given(1)), Some((Place::Time, key(8, 80))));
    assert_eq!(place(&mut *store, given(2)), None);
    // Removed and written by one operation: the row stays.
    let ops = vec![put_named(3, 3), park(Place::Time, 3, 3, true, Some(given(3)))];
    store.commit(&[group(3, ops)]).unwrap();
    assert_eq!(place(&mut *store, given(3)), Some((lane("app"), key(3, 3))));
}

#[test]
fn an_identity_row_that_leads_astray_is_damage() {
    let (dir, mut store) = fresh();
    store.commit(&[group(1, vec![put_named(1, 1), put_named(2, 2), put_named(3, 3)])]).unwrap();
    // The item goes, its row stays; and another lane is not looked into.
    let gone = Op::Delete { place: Place::Time, key: key(1, 1), indexed: Indexed::default() };
    let elsewhere = Op::Park {
        from: Place::Time,
        key: key(2, 2),
        indexed: Indexed::default(),
        identity: None,
        lane: "other".into(),
        attempts: 1,
        last_error: None,
        dead: None,
    };
    store.commit(&[group(2, vec![gone, elsewhere])]).unwrap();
    let damage = |store: &mut dyn Store, n: u8, words: &str| match store
        .load(&Load::Find(vec![wanted(given(3), &[]), wanted(given(n), &[])]))
        .unwrap_err()
    {
        StoreError::Damaged { keyspace: "identities", key, error } => {
            let name = u128::from_be_bytes(given(n).to_bytes());
            assert_eq!(key, format!("identity {name:032x}"));
            assert!(error.contains(words), "{error}");
        }
        other => panic!("{other}"),
    };
    damage(&mut *store, 1, "no item in the time index or its lane");
    damage(&mut *store, 2, "no item in the time index or its lane");
    drop(store);
    // A whole row that leads to another item, a row under another identity, and a flipped bit.
    let (row, astray) = rows::identity_row(given(4), key(3, 3));
    write_raw(dir.path(), Space::Identities, &row, Some(&astray));
    write_raw(dir.path(), Space::Identities, &given(5).to_bytes(), Some(&astray));
    let (row, mut flipped) = rows::identity_row(given(6), key(3, 3));
    flipped[3] ^= 4;
    write_raw(dir.path(), Space::Identities, &row, Some(&flipped));
    let mut store = open_at(dir.path()).store;
    damage(&mut *store, 4, "another one");
    damage(&mut *store, 5, "checksum mismatch");
    damage(&mut *store, 6, "checksum mismatch");
}
