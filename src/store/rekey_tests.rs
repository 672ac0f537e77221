//! Members of closed windows that are moved, on real directories.

use super::disk::write_raw;
use super::find_tests::{find, wanted};
use super::keyspace::KeyspaceId;
use super::rows;
use super::scan_tests::of_customer;
use super::tests::{
    delete, fresh, given, group, index, item, items, key, named, open_at, place, put_item, APP,
};
use super::*;
use crate::engine::event::{AheadRow, Marks, QueueRow, RekeyMembers, Stored, Wanted};
use crate::engine::types::{ClosedBy, Identity, Key};

/// A member of the window of customer `name` that ends at `end`.
fn member(end: u64, n: u8, name: &str) -> Stored {
    Stored { own_time: false, customer: Some(name.into()), ..item(end, n.into()) }
}

fn named_member(end: u64, n: u8, name: &str) -> Stored {
    Stored { own_time: false, customer: Some(name.into()), ..named(end, n) }
}

fn window(customer: &str, through_seq: u64, due: u64, except: &[u64]) -> RekeyMembers {
    let (customer, except) = (customer.into(), except.to_vec());
    RekeyMembers { customer, through_seq, due, cause: ClosedBy::Count, except }
}

fn rekey(end: u64, members: Vec<RekeyMembers>, indexed: bool) -> Op {
    Op::Rekey { queue: APP.into(), end, members, indexed }
}

/// As it is once its window has closed.
fn closed(item: Stored, due: u64) -> Stored {
    Stored { key: key(due, item.key.seq), closed_by: ClosedBy::Count, ..item }
}

fn keys(store: &mut dyn Store) -> Vec<Key> {
    items(store, APP).iter().map(|item| item.key).collect()
}

fn found(store: &mut dyn Store, identity: Identity, at: Option<Key>) -> Option<Key> {
    let found = find(store, vec![Wanted { key: at, ..wanted(identity, &[]) }]).remove(0);
    found.item.map(|item| item.key)
}

#[test]
fn members_move_with_all_that_leads_to_them() {
    for indexed in [true, false] {
        let (dir, mut store) = fresh();
        let dead = Stored { dead: Some(tests::verdict()), ..member(100, 20, "c") };
        let own_time = Stored { own_time: true, ..member(100, 21, "c") };
        let elsewhere = Stored { application: "other".into(), ..member(100, 22, "c") };
        let all = [
            member(100, 1, "c"),
            named_member(100, 2, "c"),
            member(100, 3, "c2"),
            member(100, 4, "c"),
            member(101, 5, "c"),
            member(99, 6, "c"),
            named_member(100, 7, "c"),
            dead.clone(),
            own_time.clone(),
            elsewhere.clone(),
        ];
        store.commit(&[group(1, all.iter().map(|item| put_item(item.clone(), indexed)).collect())]).unwrap();
        // Number 4 is in memory, and 7 came when the window had closed.
        store.commit(&[group(2, vec![rekey(100, vec![window("c", 6, 50, &[4])], indexed)])]).unwrap();
        for _ in 0..2 {
            let expected = vec![
                closed(member(100, 1, "c"), 50),
                closed(named_member(100, 2, "c"), 50),
                member(99, 6, "c"),
                member(100, 3, "c2"),
                member(100, 4, "c"),
                named_member(100, 7, "c"),
                own_time.clone(),
                member(101, 5, "c"),
            ];
            assert_eq!(items(&mut *store, APP), expected);
            assert_eq!(items(&mut *store, ""), vec![dead.clone()]);
            assert_eq!(items(&mut *store, "other"), vec![elsewhere.clone()]);
            let rows = of_customer(&mut *store, "c");
            assert_eq!(rows[..2], [key(50, 1), key(50, 2)]);
            assert_eq!(rows.len(), if indexed { 7 } else { 2 });
            assert_eq!(found(&mut *store, given(2), None), Some(key(50, 2)));
            assert_eq!(found(&mut *store, given(7), None), Some(key(100, 7)));
            // Its assigned id still says when it was due as accepted.
            assert_eq!(found(&mut *store, Identity::assigned(1), Some(key(100, 1))), Some(key(50, 1)));
            drop(store);
            store = open_at(dir.path()).store;
        }
    }
}

#[test]
fn a_rekey_sees_what_came_before_it_in_the_same_commit() {
    for indexed in [true, false] {
        let (_dir, mut store) = fresh();
        let put = |n, name: &str| put_item(member(100, n, name), indexed);
        let gone = |due, seq| Op::Delete { place: place(APP, due, seq), rows: index(None, "c") };
        store.commit(&[group(1, vec![put(1, "c"), put(2, "c"), put(3, "c")])]).unwrap();
        let attempts = crate::engine::event::Standing { attempts: 4, ..Default::default() };
        let failed = tests::moved(place(APP, 100, 3), place(APP, 100, 3), attempts);
        let ops = vec![gone(100, 1), put(4, "c"), put(5, "c"), gone(100, 5), failed];
        store
            .commit(&[
                group(2, ops),
                group(3, vec![rekey(100, vec![window("c", 9, 50, &[])], indexed)]),
                // What was moved can be deleted, and moved on.
                group(4, vec![gone(50, 2), rekey(50, vec![window("c", 9, 40, &[3])], indexed)]),
            ])
            .unwrap();
        assert_eq!(keys(&mut *store), vec![key(40, 4), key(50, 3)], "indexed {indexed}");
        assert_eq!(items(&mut *store, APP)[1].attempts, 4);
    }
}

#[test]
fn windows_of_one_customer_that_closed_one_after_the_other() {
    for indexed in [true, false] {
        let (_dir, mut store) = fresh();
        let ops = (1..=6).map(|n| put_item(member(100, n, "c"), true)).collect();
        store.commit(&[group(1, ops)]).unwrap();
        let members = vec![window("c", 2, 50, &[]), window("other", 9, 1, &[]), window("c", 4, 60, &[])];
        store.commit(&[group(2, vec![rekey(100, members, indexed)])]).unwrap();
        let expected =
            [(50, 1), (50, 2), (60, 3), (60, 4), (100, 5), (100, 6)].map(|(due, seq)| key(due, seq));
        assert_eq!(keys(&mut *store), expected);
        assert_eq!(of_customer(&mut *store, "c"), expected);
        // At its own planned end: nothing but what closed it is new. And the last number of all.
        let members = vec![window("c", u64::MAX, 100, &[])];
        store.commit(&[group(3, vec![rekey(100, members, indexed)])]).unwrap();
        assert_eq!(of_customer(&mut *store, "c"), expected);
        assert_eq!(items(&mut *store, APP)[5], closed(member(100, 6, "c"), 100));
        store.commit(&[group(4, vec![rekey(7, vec![window("nobody", 9, 1, &[])], indexed)])]).unwrap();
    }
}

#[test]
fn damage_on_the_way_is_named_and_nothing_is_moved() {
    for indexed in [true, false] {
        let (dir, mut store) = fresh();
        let ops = (1..=3).map(|n| put_item(member(100, n, "c"), true)).collect();
        store.commit(&[group(1, ops)]).unwrap();
        drop(store);
        let row = rows::item_key(APP, key(100, 2)).unwrap();
        write_raw(dir.path(), KeyspaceId::Items, &row, Some(b"not a record at all"));
        let mut store = open_at(dir.path()).store;
        let op = rekey(100, vec![window("c", 9, 50, &[])], indexed);
        let error = store.commit(&[group(2, vec![op])]).unwrap_err();
        assert!(matches!(&error, CommitError::Read(ReadError::Damaged { keyspace: "items", .. })), "{error}");
        drop(store);
        write_raw(dir.path(), KeyspaceId::Items, &row, None);
        assert_eq!(keys(&mut *open_at(dir.path()).store), vec![key(100, 1), key(100, 3)]);
    }
    // A customer row without its item.
    let (_dir, mut store) = fresh();
    store.commit(&[group(1, vec![put_item(member(100, 1, "c"), true), delete(100, 1)])]).unwrap();
    let op = rekey(100, vec![window("c", 9, 50, &[])], true);
    let error = store.commit(&[group(2, vec![op])]).unwrap_err();
    assert!(matches!(&error, CommitError::Read(ReadError::Damaged { keyspace: "customers", .. })), "{error}");
}

/// Members of windows, and nothing else, that a clock which was set back has not come to: told of by the
/// start that finds it so.
#[test]
fn what_lies_ahead_of_the_clock_is_told_of() {
    let now = crate::clock::wall_ms();
    let (soon, later, beyond) = (now + 100_000, now + 200_000, now + 900_000);
    let (dir, mut store) = fresh();
    let held =
        QueueRow { queue: APP.into(), count: 6, low: key(1, 0), paused: false, unindexed_until: u64::MAX };
    let early = closed(member(beyond, 4, "c"), soon);
    let own_time = Stored { own_time: true, ..member(soon, 5, "c") };
    let all = [
        member(soon, 1, "c"),
        member(soon, 2, "c"),
        member(later, 3, "c2"),
        early,
        own_time,
        member(9, 6, "c"),
    ];
    let beyond = member(beyond, 7, "c");
    let mut ops: Vec<Op> = all.into_iter().chain([beyond]).map(|item| put_item(item, false)).collect();
    ops.push(Op::PutQueue(held));
    let row = |customer: &str, due, closed_by| AheadRow {
        application: APP.into(),
        customer: customer.into(),
        due,
        closed_by,
    };
    let expected = [row("c", soon, None), row("c", soon, Some(ClosedBy::Count)), row("c2", later, None)];
    for (token, wall, expected) in [(1, now + 300_000, &expected[..]), (2, now - 1, &[])] {
        let marks = Marks { next_seq: 100, wall };
        store.commit(&[CommitGroup { ops: std::mem::take(&mut ops), token, marks, hurried: false }]).unwrap();
        drop(store);
        let OpenStore { store: again, opened, .. } = open_at(dir.path());
        assert_eq!((opened.marks, &opened.ahead[..]), (marks, expected));
        store = again;
    }
}

#[test]
fn windows_of_one_moment_that_close_in_one_call_meet_what_was_written_between_them() {
    let (_dir, mut store) = fresh();
    let put = |item: Stored| put_item(item, false);
    store.commit(&[group(1, (1..=3).map(|n| put(member(100, n, &format!("c{n}")))).collect())]).unwrap();
    let first = vec![rekey(100, vec![window("c1", 9, 50, &[])], false), put(member(100, 4, "c2"))];
    let attempts = crate::engine::event::Standing { attempts: 2, ..Default::default() };
    let failed = tests::moved(place(APP, 100, 4), place(APP, 100, 4), attempts);
    let second = vec![failed, rekey(100, vec![window("c2", 9, 60, &[]), window("c1", 9, 70, &[])], false)];
    store.commit(&[group(2, first), group(3, second)]).unwrap();
    let left: Vec<(u64, u64)> = keys(&mut *store).iter().map(|key| (key.due, key.seq)).collect();
    assert_eq!(left, [(50, 1), (60, 2), (60, 4), (100, 3)]);
}
