//! Tests of windows that close before their planned end.
//!
//! Judges promise 10.

use super::disk::write_raw;
use super::find_tests::{find, wanted};
use super::ground::{on_each, GroundKind};
use super::keyspace::KeyspaceId;
use super::rows;
use super::scan_tests::of_customer;
use super::tests::{fresh, given, group, index, item, items, key, named, open_at, put_item, APP};
use super::verify::{verify, RowFault, WalkStep, Watcher};
use super::*;
use std::collections::BTreeSet;
use std::path::Path;
use tidegate_types::event::{AheadRow, ClosingRow, Marks, QueueRow, Range, Standing, Stored, Wanted};
use tidegate_types::{ClosedBy, Identity, Key};

on_each! {
    members_lie_where_they_lay_and_are_due_when_their_window_closed,
    a_read_goes_on_where_the_last_one_ended,
    what_lies_ahead_of_the_clock_is_told_of,
}

/// A member of window `number` of customer `name`, which ends at `end`.
fn member(end: u64, (number, n): (u64, u8), name: &str) -> Stored {
    let key = Key { due: end, window: number, seq: n.into() };
    Stored { key, due: end, own_time: false, customer: Some(name.into()), ..item(end, n.into()) }
}

fn named_member(end: u64, (number, n): (u64, u8), name: &str) -> Stored {
    let key = Key { due: end, window: number, seq: n.into() };
    Stored { key, due: end, own_time: false, customer: Some(name.into()), ..named(end, n) }
}

/// The window closes at `due`.
fn close((end, window): (u64, u64), due: u64) -> Op {
    Op::Close(ClosingRow { application: APP.into(), end, window, due, cause: ClosedBy::Count })
}

/// The item after its window has closed.
fn closed(item: Stored, due: u64) -> Stored {
    Stored { due, closed_by: ClosedBy::Count, ..item }
}

fn places(store: &mut dyn Store) -> Vec<Key> {
    items(store, APP).iter().map(Stored::place).collect()
}

fn found(store: &mut dyn Store, identity: Identity, at: Option<Key>) -> Option<Stored> {
    find(store, vec![Wanted { key: at, ..wanted(identity, &[]) }]).remove(0).item
}

fn delete(end: u64, (window, n): (u64, u8)) -> Op {
    let key = Key { due: end, window, seq: n.into() };
    Op::Delete { place: Place { queue: APP.into(), key }, rows: index(None, "c") }
}

/// Number of windows that closed early and have members, as `verify` counts them in the closed store; and its
/// faults.
fn counted(dir: &Path) -> (u64, Vec<String>) {
    struct Faults(Vec<String>);
    impl Watcher for Faults {
        fn step(&mut self, _: WalkStep) {}
        fn fault(&mut self, fault: RowFault) {
            self.0.extend((fault.keyspace == "closings").then_some(fault.error));
        }
    }
    let mut faults = Faults(Vec::new());
    let summary = verify(dir, 32 << 20, &mut faults).unwrap();
    (summary.closings, faults.0)
}

fn members_lie_where_they_lay_and_are_due_when_their_window_closed(on: GroundKind) {
    for indexed in [true, false] {
        let (dir, mut store) = on.fresh();
        let dead = Stored { dead: Some(tests::verdict()), ..member(100, (1, 20), "c") };
        // It was rescheduled to a time that happens to be the end of the window.
        let own_time = Stored { own_time: true, ..member(100, (1, 21), "c") };
        let elsewhere = Stored { application: "other".into(), ..member(100, (1, 22), "c") };
        let all = [
            member(100, (1, 1), "c"),
            named_member(100, (1, 2), "c"),
            member(100, (3, 3), "c2"),
            member(101, (1, 5), "c"),
            member(99, (1, 6), "c"),
            named_member(100, (7, 7), "c"),
            dead.clone(),
            own_time.clone(),
            elsewhere.clone(),
        ];
        store.commit(&[group(1, all.iter().map(|item| put_item(item.clone(), indexed)).collect())]).unwrap();
        // Number 7 arrived after the window had closed.
        store.commit(&[group(2, vec![close((100, 1), 50)])]).unwrap();
        for _ in 0..2 {
            let expected = vec![
                closed(member(100, (1, 1), "c"), 50),
                closed(named_member(100, (1, 2), "c"), 50),
                member(99, (1, 6), "c"),
                own_time.clone(),
                member(100, (3, 3), "c2"),
                named_member(100, (7, 7), "c"),
                member(101, (1, 5), "c"),
            ];
            assert_eq!(items(&mut *store, APP), expected);
            assert_eq!(items(&mut *store, ""), vec![dead.clone()]);
            assert_eq!(items(&mut *store, "other"), vec![elsewhere.clone()]);
            let rows = of_customer(&mut *store, "c");
            assert_eq!(rows.len(), if indexed { 6 } else { 0 });
            assert!(rows.is_sorted(), "in the order of their keys: {rows:?}");
            let due = |store: &mut dyn Store, identity, at| {
                found(store, identity, at).map(|item| (item.key.due, item.due, item.closed_by))
            };
            assert_eq!(due(&mut *store, given(2), None), Some((100, 50, ClosedBy::Count)));
            assert_eq!(due(&mut *store, given(7), None), Some((100, 100, ClosedBy::Time)));
            let at = Some(Key { due: 100, window: 1, seq: 1 });
            assert_eq!(due(&mut *store, Identity::assigned(1), at), Some((100, 50, ClosedBy::Count)));
            drop(store);
            store = dir.open().store;
        }
    }
}

/// A read that ends within a window continues there, whatever lies between.
fn a_read_goes_on_where_the_last_one_ended(on: GroundKind) {
    let (_dir, mut store) = on.fresh();
    let all =
        (1..=40).map(|n| put_item(member(100 + u64::from(n % 4), (u64::from(n % 4) + 1, n + 4), "c"), true));
    store.commit(&[group(1, all.collect())]).unwrap();
    // Two of the four windows have closed, one of them at a due between those of others.
    store.commit(&[group(2, vec![close((102, 3), 60), close((103, 4), 101)])]).unwrap();
    let whole = places(&mut *store);
    assert_eq!(whole.len(), 40);
    assert!(whole.is_sorted(), "{whole:?}");
    assert_eq!(whole.iter().map(|place| place.due).collect::<BTreeSet<u64>>(), [60, 100, 101].into());
    for most in [1, 3, 7] {
        let (mut from, mut seen) = (Key::at(0), Vec::new());
        loop {
            let range = Range { queue: APP.into(), from, until: 200, max_rows: most };
            let load = Load::Ranges { ranges: vec![range], max_rows: most, max_bytes: u64::MAX };
            let Loaded::Ranges(mut answer) = store.load(&load).unwrap() else { panic!("ranges") };
            let answer = answer.remove(0);
            seen.extend(answer.rows.iter().map(Stored::place));
            let Some(next) = answer.next else { break };
            from = next;
        }
        assert_eq!(seen, whole, "{most} at a time");
    }
}

#[test]
fn what_closed_is_forgotten_with_the_last_of_its_members() {
    let (dir, mut store) = fresh();
    let put = |n| put_item(member(100, (1, n), "c"), true);
    let own_time = put_item(Stored { own_time: true, ..member(100, (1, 9), "c") }, true);
    store.commit(&[group(1, vec![put(1), put(2), put(3), put(4), own_time])]).unwrap();
    store.commit(&[group(2, vec![close((100, 1), 50)])]).unwrap();
    let now = |ops: Vec<Op>, store: Box<dyn Store>| {
        let mut store = store;
        store.commit(&[group(3, ops)]).unwrap();
        store.close().unwrap();
        let known = counted(dir.path());
        (known, open_at(dir.path()).store)
    };
    // Each kind of end, of the last or the first member: moved away, rewritten in place, or deleted.
    let at = |due, seq| Place { queue: APP.into(), key: Key { due, window: 1, seq } };
    let own = Standing { own_time: true, ..Standing::default() };
    for (ops, left) in [
        (vec![delete(100, (1, 4))], 1),
        (vec![delete(100, (1, 1))], 1),
        (vec![tests::moved(at(100, 2), at(70, 2), own)], 1),
        (vec![tests::moved(at(100, 3), at(100, 3), Standing::default())], 1),
        (vec![delete(100, (1, 3))], 0),
    ] {
        let known;
        (known, store) = now(ops, store);
        assert_eq!(known, (left, vec![]));
    }
    assert_eq!(places(&mut *store), [at(70, 2).key, at(100, 9).key], "what has a time of its own stays");
    // Closings without members, or whose members go in the same call, leave no rows.
    let (known, again) =
        now(vec![close((100, 5), 50), put(6), close((100, 1), 40), delete(100, (1, 6))], store);
    assert_eq!(known, (0, vec![]));
    drop(again);
}

#[test]
fn what_is_told_of_again_closed_at_the_moment_told_last() {
    let (dir, mut store) = fresh();
    let put = |n| put_item(member(100, (1, n), "c"), true);
    store.commit(&[group(1, vec![put(1), put(2)])]).unwrap();
    store.commit(&[group(2, vec![close((100, 1), 50)]), group(3, vec![close((100, 1), 40)])]).unwrap();
    store.commit(&[group(4, vec![close((100, 1), 30)])]).unwrap();
    assert_eq!(places(&mut *store).iter().map(|place| place.due).collect::<Vec<_>>(), [30, 30]);
    store.close().unwrap();
    assert_eq!(counted(dir.path()), (1, vec![]));
}

#[test]
fn rows_of_a_closing_that_do_not_belong_together_are_told() {
    let (dir, mut store) = fresh();
    store.commit(&[group(1, vec![put_item(member(100, (1, 1), "c"), true), close((100, 1), 50)])]).unwrap();
    drop(store);
    let row = |due| ClosingRow { application: APP.into(), end: 100, window: 1, due, cause: ClosedBy::Count };
    let [_, (by_due, value)] = rows::closing_rows(&row(50)).unwrap();
    write_raw(dir.path(), KeyspaceId::Closings, &by_due, None);
    assert_eq!(counted(dir.path()).1, ["the other row of this closing is missing"]);
    write_raw(dir.path(), KeyspaceId::Closings, &by_due, Some(&value));
    let [_, (by_due, value)] = rows::closing_rows(&row(40)).unwrap();
    write_raw(dir.path(), KeyspaceId::Closings, &by_due, Some(&value));
    assert_eq!(counted(dir.path()).1, ["the other row of this closing differs"]);
    write_raw(dir.path(), KeyspaceId::Closings, &by_due, Some(b"not a row"));
    let error = open_at(dir.path()).store.load(&whole(APP)).unwrap_err();
    assert!(matches!(&error, ReadError::Damaged { keyspace: "closings", .. }), "{error}");
    write_raw(dir.path(), KeyspaceId::Closings, &by_due, None);
    let item = rows::item_key(APP, Key { due: 100, window: 1, seq: 1 }).unwrap();
    write_raw(dir.path(), KeyspaceId::Items, &item, None);
    assert_eq!(counted(dir.path()).1, ["the closed window has no members left"]);
}

fn whole(queue: &str) -> Load {
    let range = Range { queue: queue.into(), from: Key::at(0), until: u64::MAX, max_rows: 100 };
    Load::Ranges { ranges: vec![range], max_rows: 100, max_bytes: u64::MAX }
}

/// A start with a clock that was set back reports the window members that lie ahead of the clock, and no
/// other items.
fn what_lies_ahead_of_the_clock_is_told_of(on: GroundKind) {
    let now = tidegate_common::clock::wall_ms();
    let (soon, later, beyond_ms) = (now + 100_000, now + 200_000, now + 900_000);
    let (dir, mut store) = on.fresh();
    let held = QueueRow {
        queue: APP.into(),
        count: 6,
        low: key(1, 0),
        paused: None,
        unindexed_until: u64::MAX,
        slowed: None,
    };
    let early = member(beyond_ms, (4, 4), "c");
    let own_time = Stored { own_time: true, ..member(soon, (5, 5), "c") };
    let all = [
        member(soon, (1, 1), "c"),
        member(soon, (1, 2), "c"),
        member(later, (3, 3), "c2"),
        early,
        own_time,
        member(9, (6, 6), "c"),
    ];
    let beyond = member(beyond_ms, (7, 7), "c");
    let mut ops: Vec<Op> = all.into_iter().chain([beyond]).map(|item| put_item(item, false)).collect();
    ops.extend([Op::PutQueue(held), close((beyond_ms, 4), soon)]);
    let row = |customer: &str, (due, window), closed_by| AheadRow {
        application: APP.into(),
        customer: customer.into(),
        end: if window == 4 { beyond_ms } else { due },
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
        let OpenStore { store: again, opened, .. } = dir.open();
        assert_eq!((opened.marks, &opened.ahead[..]), (marks, expected));
        store = again;
    }
}
