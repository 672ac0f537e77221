//! Tests of finding items by identity.

#![expect(clippy::wildcard_enum_match_arm, reason = "another answer fails the test")]

use super::ground::{on_each, GroundKind};
use super::keyspace::KeyspaceId;
use super::rows;
use super::tests::{given, group, index, item, items, key, moved, named, place, put_item, verdict, APP};
use super::*;
use tidegate_types::event::{ClosingRow, Found, IndexRows, Standing, Stored, Wanted, DEAD_LETTERS};
use tidegate_types::{ClosedBy, Identity, Key};

on_each! {
    an_item_that_was_named_is_found_from_its_first_commit,
    an_item_without_an_id_is_found_by_the_key_in_its_assigned_one,
    an_assigned_id_is_another_applications_and_not_found_under_this_one,
    identity_rows_go_and_come_with_their_items,
    the_last_word_on_an_identity_counts,
    an_identity_row_that_leads_astray_is_damage,
}

pub(crate) fn wanted(identity: Identity, buckets: &[u8]) -> Wanted {
    Wanted { identity, application: APP.into(), key: None, buckets: buckets.to_vec() }
}

pub(crate) fn find(store: &mut dyn Store, wanted: Vec<Wanted>) -> Vec<Found> {
    match store.load(&Load::Find(wanted)).unwrap() {
        Loaded::Found(found) => found,
        other => panic!("{other:?}"),
    }
}

/// The key of an item, by its identity row, or else under this key.
fn found(store: &mut dyn Store, identity: Identity, at: Option<Key>) -> Option<Key> {
    let found = find(store, vec![Wanted { key: at, ..wanted(identity, &[]) }]).remove(0);
    assert_eq!(found.ended, None);
    found.item.map(|item| {
        assert_eq!((item.identity(), &item.content), (identity, &None));
        item.key
    })
}

fn put_named(due: u64, n: u8) -> Op {
    put_item(named(due, n), true)
}

fn delete(due: u64, n: u8) -> Op {
    Op::Delete { place: place(APP, due, n.into()), rows: index(Some(given(n)), "c") }
}

fn an_item_that_was_named_is_found_from_its_first_commit(on: GroundKind) {
    let (dir, mut store) = on.fresh();
    let dead = put_item(Stored { dead: Some(verdict()), ..named(5, 5) }, false);
    let elsewhere = put_item(Stored { application: "b".into(), ..named(6, 6) }, false);
    store.commit(&[group(1, vec![put_named(4, 4), put_item(named(7, 7), false), dead, elsewhere])]).unwrap();
    for _ in 0..2 {
        let mut asked = [7, 9, 4].map(|n| wanted(given(n), &[0, 1])).to_vec();
        asked.push(Wanted { application: "b".into(), ..wanted(given(6), &[]) });
        let seen: Vec<_> = find(&mut *store, asked).into_iter().map(|found| found.item).collect();
        let without = |n: u8| Stored { content: None, ..named(n.into(), n) };
        let other = Stored { application: "b".into(), ..without(6) };
        assert_eq!(seen, vec![Some(without(7)), None, Some(without(4)), Some(other)]);
        // A dead item is no longer found by its id.
        assert_eq!(found(&mut *store, given(5), Some(key(5, 5))), None);
        drop(store);
        store = dir.open().store;
    }
}

fn an_item_without_an_id_is_found_by_the_key_in_its_assigned_one(on: GroundKind) {
    let (_dir, mut store) = on.fresh();
    store.commit(&[group(1, vec![put_item(item(6, 60), false), put_item(named(8, 80), false)])]).unwrap();
    let sixty = Identity::assigned(60);
    assert_eq!(found(&mut *store, sixty, Some(key(6, 60))), Some(key(6, 60)));
    assert_eq!(found(&mut *store, sixty, None), None);
    // The key comes from the request: here that of no item, of an item with its own id, and of another
    // number.
    assert_eq!(found(&mut *store, sixty, Some(key(7, 60))), None);
    assert_eq!(found(&mut *store, Identity::assigned(80), Some(key(8, 80))), None);
    assert_eq!(found(&mut *store, Identity::assigned(61), Some(key(6, 60))), None);
    // Once the item has moved, a row contains its place.
    let op = Op::Move {
        from: place(APP, 6, 60),
        to: place(APP, 5, 60),
        removed: IndexRows::default(),
        written: index(Some(sixty), ""),
        standing: Box::default(),
        weight: 0,
    };
    store.commit(&[group(2, vec![op])]).unwrap();
    assert_eq!(found(&mut *store, sixty, Some(key(6, 60))), Some(key(5, 60)));
    assert_eq!(items(&mut *store, APP)[0].accepted_due, 6);
}

fn an_assigned_id_is_another_applications_and_not_found_under_this_one(on: GroundKind) {
    let (dir, mut store) = on.fresh();
    let close = |end, window, due| {
        Op::Close(ClosingRow { application: APP.into(), end, window, due, cause: ClosedBy::Flush })
    };
    let ops = vec![
        put_item(item(6, 60), false),
        put_item(Stored { own_time: false, ..item(7, 70) }, true),
        put_item(Stored { application: "other".into(), ..item(9, 90) }, false),
    ];
    store.commit(&[group(1, ops)]).unwrap();
    // One item was rescheduled, and a row leads to it; the other was flushed, and keeps its place.
    let op = Op::Move {
        from: place(APP, 6, 60),
        to: place(APP, 8, 60),
        removed: IndexRows::default(),
        written: index(Some(Identity::assigned(60)), ""),
        standing: Box::new(Standing { own_time: true, ..Standing::default() }),
        weight: 0,
    };
    store.commit(&[group(2, vec![op, close(7, 70, 3)])]).unwrap();
    for _ in 0..2 {
        for (seq, accepted, due) in [(60, 6, 8), (70, 7, 3)] {
            let own = Wanted { key: Some(key(accepted, seq)), ..wanted(Identity::assigned(seq), &[0]) };
            // The other queues: one has items, one has none, and one is the dead-letter queue.
            let foreign = ["other", "nobody", DEAD_LETTERS]
                .map(|name| Wanted { application: name.into(), ..own.clone() });
            assert_eq!(find(&mut *store, foreign.to_vec()), vec![Found::default(); 3]);
            let found = find(&mut *store, vec![own]).remove(0).item.expect("its own application's");
            assert_eq!(found.place(), key(due, seq));
        }
        drop(store);
        store = dir.open().store;
    }
}

fn identity_rows_go_and_come_with_their_items(on: GroundKind) {
    let (_dir, mut store) = on.fresh();
    store.commit(&[group(1, vec![put_named(1, 1), put_named(2, 2), put_named(3, 3)])]).unwrap();
    // One item is moved, with its row rewritten; one is dead, without a row; one is deleted.
    let again = Op::Move {
        from: place(APP, 1, 1),
        to: place(APP, 9, 1),
        removed: index(Some(given(1)), "c"),
        written: index(Some(given(1)), ""),
        standing: Box::default(),
        weight: 0,
    };
    let dead = Op::Move {
        from: place(APP, 2, 2),
        to: place("", 9, 2),
        removed: index(Some(given(2)), "c"),
        written: IndexRows::default(),
        standing: Box::new(Standing { dead: Some(verdict()), ..Standing::default() }),
        weight: 0,
    };
    store.commit(&[group(2, vec![again, dead, delete(3, 3)])]).unwrap();
    assert_eq!(found(&mut *store, given(1), None), Some(key(9, 1)));
    assert_eq!((found(&mut *store, given(2), None), found(&mut *store, given(3), None)), (None, None));
    assert_eq!(scan_tests::of_customer(&mut *store, "c"), vec![]);
    // Removing missing rows is no error, for each kind of row.
    store.commit(&[group(3, vec![delete(9, 1), delete(3, 3), delete(50, 5)])]).unwrap();
    assert_eq!(found(&mut *store, given(1), None), None);
    assert_eq!((items(&mut *store, APP).len(), items(&mut *store, "").len()), (0, 1));
}

fn the_last_word_on_an_identity_counts(on: GroundKind) {
    let (_dir, mut store) = on.fresh();
    // An item replaces another with the same identity, in one call.
    let second = put_item(Stored { key: key(8, 80), ..named(8, 1) }, true);
    let ops = vec![put_named(1, 1), delete(1, 1), second];
    store.commit(&[group(1, ops), group(2, vec![put_named(2, 2), delete(2, 2)])]).unwrap();
    assert_eq!(found(&mut *store, given(1), None), Some(key(8, 80)));
    assert_eq!(found(&mut *store, given(2), None), None);
    // A missing row is written.
    store.commit(&[group(3, vec![put_item(item(3, 3), false)])]).unwrap();
    let op = Op::Index { key: key(3, 3), rows: index(Some(Identity::assigned(3)), "c") };
    store.commit(&[group(4, vec![op])]).unwrap();
    assert_eq!(found(&mut *store, Identity::assigned(3), None), Some(key(3, 3)));
    assert_eq!(scan_tests::of_customer(&mut *store, "c"), vec![key(3, 3), key(8, 80)]);
}

fn an_identity_row_that_leads_astray_is_damage(on: GroundKind) {
    let (dir, mut store) = on.fresh();
    store.commit(&[group(1, vec![put_named(1, 1), put_named(3, 3), put_named(7, 7)])]).unwrap();
    // The item is deleted and its row stays; the look-up does not search another queue.
    let gone = Op::Delete { place: place(APP, 1, 1), rows: IndexRows::default() };
    let dead = Standing { dead: Some(verdict()), ..Standing::default() };
    store.commit(&[group(2, vec![gone, moved(place(APP, 7, 7), place("", 7, 7), dead)])]).unwrap();
    let damage = |store: &mut dyn Store, n: u8, words: &str| match store
        .load(&Load::Find(vec![wanted(given(3), &[]), wanted(given(n), &[])]))
        .unwrap_err()
    {
        ReadError::Damaged { keyspace: "identities", key, error } => {
            let name = u128::from_be_bytes(given(n).to_bytes());
            assert_eq!(key, format!("identity {name:032x}"));
            assert!(error.contains(words), "{error}");
        }
        other => panic!("{other}"),
    };
    damage(&mut *store, 1, "no item of the application's queue");
    damage(&mut *store, 7, "no item of the application's queue");
    drop(store);
    // An intact row that leads to another item, with a given or an assigned id; a row under another identity;
    // and a flipped bit.
    let (row, astray) = rows::identity_row(given(4), key(3, 3));
    dir.write_raw(KeyspaceId::Identities, &row, Some(&astray));
    dir.write_raw(KeyspaceId::Identities, &given(5).to_bytes(), Some(&astray));
    let (row, mut flipped) = rows::identity_row(given(6), key(3, 3));
    flipped[3] ^= 4;
    dir.write_raw(KeyspaceId::Identities, &row, Some(&flipped));
    let assigned = Identity::assigned(9);
    let (row, astray) = rows::identity_row(assigned, key(3, 3));
    dir.write_raw(KeyspaceId::Identities, &row, Some(&astray));
    let mut store = dir.open().store;
    damage(&mut *store, 4, "another item");
    damage(&mut *store, 5, "checksum mismatch");
    damage(&mut *store, 6, "checksum mismatch");
    let error = store.load(&Load::Find(vec![wanted(assigned, &[])])).unwrap_err();
    assert!(error.to_string().contains("another item"), "{error}");
}
