//! Members of closed windows that are moved, on real directories.

use super::disk::write_raw;
use super::find_tests::{find, wanted};
use super::keyspace::KeyspaceId;
use super::rows;
use super::scan_tests::of_customer;
use super::tests::{fresh, given, group, index, item, items, key, named, open_at, put_item, APP};
use super::*;
use crate::engine::event::{AheadRow, ClosingRow, Marks, QueueRow, Stored, Wanted};
use crate::engine::types::{ClosedBy, Identity, Key};

/// A member of window `number` of customer `name`, which ends at `end`.
fn member(end: u64, (number, n): (u64, u8), name: &str) -> Stored {
    let key = Key { due: end, window: number, seq: n.into() };
    Stored { key, own_time: false, customer: Some(name.into()), ..item(end, n.into()) }
}

fn named_member(end: u64, (number, n): (u64, u8), name: &str) -> Stored {
    let key = Key { due: end, window: number, seq: n.into() };
    Stored { key, own_time: false, customer: Some(name.into()), ..named(end, n) }
}

/// A window of customer `c` has closed at `due`. `except`: in memory.
fn rekey((end, window): (u64, u64), due: u64, except: &[u64]) -> Op {
    let (application, customer, cause) = (APP.into(), "c".into(), ClosedBy::Count);
    Op::Rekey {
        closed: ClosingRow { application, customer, end, window, due, cause },
        except: except.to_vec(),
    }
}

/// As it is once its window has closed.
fn closed(item: Stored, due: u64) -> Stored {
    Stored { key: Key { due, ..item.key }, closed_by: ClosedBy::Count, ..item }
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
        let dead = Stored { dead: Some(tests::verdict()), ..member(100, (1, 20), "c") };
        // It was given another time, at which its window ends by chance.
        let own_time = Stored { own_time: true, ..member(100, (1, 21), "c") };
        let elsewhere = Stored { application: "other".into(), ..member(100, (1, 22), "c") };
        let all = [
            member(100, (1, 1), "c"),
            named_member(100, (1, 2), "c"),
            member(100, (3, 3), "c2"),
            member(100, (1, 4), "c"),
            member(101, (1, 5), "c"),
            member(99, (1, 6), "c"),
            named_member(100, (7, 7), "c"),
            dead.clone(),
            own_time.clone(),
            elsewhere.clone(),
        ];
        store.commit(&[group(1, all.iter().map(|item| put_item(item.clone(), indexed)).collect())]).unwrap();
        // Number 4 is in memory, and 7 came when the window had closed.
        store.commit(&[group(2, vec![rekey((100, 1), 50, &[4])])]).unwrap();
        for _ in 0..2 {
            let expected = vec![
                closed(member(100, (1, 1), "c"), 50),
                closed(named_member(100, (1, 2), "c"), 50),
                member(99, (1, 6), "c"),
                member(100, (1, 4), "c"),
                own_time.clone(),
                member(100, (3, 3), "c2"),
                named_member(100, (7, 7), "c"),
                member(101, (1, 5), "c"),
            ];
            assert_eq!(items(&mut *store, APP), expected);
            assert_eq!(items(&mut *store, ""), vec![dead.clone()]);
            assert_eq!(items(&mut *store, "other"), vec![elsewhere.clone()]);
            let at = |due, window, seq| Key { due, window, seq };
            let rows = of_customer(&mut *store, "c");
            assert_eq!(rows[..2], [at(50, 1, 1), at(50, 1, 2)]);
            assert_eq!(rows.len(), if indexed { 7 } else { 2 });
            assert_eq!(found(&mut *store, given(2), None), Some(at(50, 1, 2)));
            assert_eq!(found(&mut *store, given(7), None), Some(key(100, 7)));
            // Its assigned id still says when it was due as accepted.
            assert_eq!(found(&mut *store, Identity::assigned(1), Some(key(100, 1))), Some(at(50, 1, 1)));
            drop(store);
            store = open_at(dir.path()).store;
        }
    }
}

#[test]
fn a_rekey_sees_what_came_before_it_in_the_same_commit() {
    for indexed in [true, false] {
        let (_dir, mut store) = fresh();
        let put = |n| put_item(member(100, (1, n), "c"), indexed);
        let at = |due, seq| Place { queue: APP.into(), key: Key { due, window: 1, seq } };
        let gone = |due, seq| Op::Delete { place: at(due, seq), rows: index(None, "c") };
        store.commit(&[group(1, vec![put(1), put(2), put(3)])]).unwrap();
        let attempts = crate::engine::event::Standing { attempts: 4, ..Default::default() };
        let failed = tests::moved(at(100, 3), at(100, 3), attempts);
        let ops = vec![gone(100, 1), put(4), put(5), gone(100, 5), failed];
        store
            .commit(&[
                group(2, ops),
                group(3, vec![rekey((100, 1), 50, &[])]),
                // What was moved can be deleted, and moved on.
                group(4, vec![gone(50, 2), rekey((50, 1), 40, &[3])]),
            ])
            .unwrap();
        assert_eq!(keys(&mut *store), vec![at(40, 4).key, at(50, 3).key], "indexed {indexed}");
        assert_eq!(items(&mut *store, APP)[1].attempts, 4);
    }
}

#[test]
fn windows_of_one_customer_that_closed_one_after_the_other() {
    let (_dir, mut store) = fresh();
    let all = [(1, 1), (1, 2), (3, 3), (3, 4), (5, 5), (5, 6)].map(|of| put_item(member(100, of, "c"), true));
    store.commit(&[group(1, all.to_vec())]).unwrap();
    let nobody = rekey((100, 2), 1, &[]);
    store.commit(&[group(2, vec![rekey((100, 1), 50, &[]), nobody, rekey((100, 3), 60, &[])])]).unwrap();
    let expected = [(50, 1, 1), (50, 1, 2), (60, 3, 3), (60, 3, 4), (100, 5, 5), (100, 5, 6)];
    let expected = expected.map(|(due, window, seq)| Key { due, window, seq });
    assert_eq!(keys(&mut *store), expected);
    assert_eq!(of_customer(&mut *store, "c"), expected);
    // At its own planned end: nothing but what closed it is new.
    store.commit(&[group(3, vec![rekey((100, 5), 100, &[])])]).unwrap();
    assert_eq!(of_customer(&mut *store, "c"), expected);
    assert_eq!(items(&mut *store, APP)[5], closed(member(100, (5, 6), "c"), 100));
    store.commit(&[group(4, vec![rekey((7, u64::MAX), 1, &[])])]).unwrap();
}

#[test]
fn damage_on_the_way_is_named_and_nothing_is_moved() {
    let (dir, mut store) = fresh();
    let ops = (1..=3).map(|n| put_item(member(100, (1, n), "c"), true)).collect();
    store.commit(&[group(1, ops)]).unwrap();
    drop(store);
    let at = |seq| Key { due: 100, window: 1, seq };
    let row = rows::item_key(APP, at(2)).unwrap();
    write_raw(dir.path(), KeyspaceId::Items, &row, Some(b"not a record at all"));
    let mut store = open_at(dir.path()).store;
    let error = store.commit(&[group(2, vec![rekey((100, 1), 50, &[])])]).unwrap_err();
    assert!(matches!(&error, CommitError::Read(ReadError::Damaged { keyspace: "items", .. })), "{error}");
    drop(store);
    write_raw(dir.path(), KeyspaceId::Items, &row, None);
    assert_eq!(keys(&mut *open_at(dir.path()).store), vec![at(1), at(3)]);
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
    let early = closed(member(beyond, (4, 4), "c"), soon);
    let own_time = Stored { own_time: true, ..member(soon, (5, 5), "c") };
    let all = [
        member(soon, (1, 1), "c"),
        member(soon, (1, 2), "c"),
        member(later, (3, 3), "c2"),
        early,
        own_time,
        member(9, (6, 6), "c"),
    ];
    let beyond = member(beyond, (7, 7), "c");
    let mut ops: Vec<Op> = all.into_iter().chain([beyond]).map(|item| put_item(item, false)).collect();
    ops.push(Op::PutQueue(held));
    let row = |customer: &str, (due, window), closed_by| AheadRow {
        application: APP.into(),
        customer: customer.into(),
        due,
        window,
        closed_by,
    };
    let count = Some(ClosedBy::Count);
    let expected = [row("c", (soon, 1), None), row("c", (soon, 4), count), row("c2", (later, 3), None)];
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
    let firsts = (1..=3).map(|n| put(member(100, (n.into(), n), "c")));
    store.commit(&[group(1, firsts.collect())]).unwrap();
    let first = vec![rekey((100, 1), 50, &[]), put(member(100, (2, 4), "c"))];
    let attempts = crate::engine::event::Standing { attempts: 2, ..Default::default() };
    let four = Place { queue: APP.into(), key: Key { due: 100, window: 2, seq: 4 } };
    let failed = tests::moved(four.clone(), four, attempts);
    let second = vec![failed, rekey((100, 2), 60, &[]), rekey((100, 1), 70, &[])];
    store.commit(&[group(2, first), group(3, second)]).unwrap();
    let left: Vec<(u64, u64)> = keys(&mut *store).iter().map(|key| (key.due, key.seq)).collect();
    assert_eq!(left, [(50, 1), (60, 2), (60, 4), (100, 3)]);
}
