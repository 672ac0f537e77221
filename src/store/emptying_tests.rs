//! Tests of emptying a store: everything is read once, and only what was removed is gone.

use super::emptying::{EmptyingStore, StepOf, STEP_ITEMS};
use super::ground::{on_each, GroundKind};
use super::tests::{given, group, item, key, named, put_item, verdict, APP};
use super::verify::{verify, RowFault, WalkStep, Watcher};
use super::*;
use tidegate_types::event::{ClosingRow, HeldRow, QueueRow, Stored, WindowRow, FOR_EVER};
use tidegate_types::{ClosedBy, Key};

on_each! {
    what_was_removed_is_gone_and_what_was_not_is_there_again,
    an_item_that_stays_is_met_again_and_the_others_are_not,
    many_items_and_large_bodies_come_in_steps,
    a_letter_leaves_the_id_to_the_item_that_has_it_now,
}

fn queue(name: &str, count: u64) -> Op {
    let (low, unindexed_until) = (key(0, 0), 0);
    Op::PutQueue(QueueRow { queue: name.into(), count, low, paused: None, unindexed_until, slowed: None })
}

fn member(seq: u64) -> Stored {
    let key = Key { due: 900, window: 5, seq };
    Stored { own_time: false, key, due: 900, accepted_due: 900, ..item(900, seq) }
}

/// Items of every kind in three queues: own times, ids, members of an open window and of one that closed
/// early, a dead letter.
fn filled(kind: GroundKind) -> (ground::Ground, EmptyingStore) {
    let (ground, mut store) = kind.fresh();
    let window = WindowRow {
        application: APP.into(),
        customer: "c".into(),
        end: 900,
        window: 5,
        count: 2,
        weight: 7,
        expiry: None,
    };
    let closed = |seq| Stored {
        application: "other".into(),
        key: Key { due: 80, window: 8, seq },
        due: 80,
        accepted_due: 80,
        own_time: false,
        ..item(80, seq)
    };
    let closing =
        ClosingRow { application: "other".into(), end: 80, window: 8, due: 30, cause: ClosedBy::Flush };
    let dead = Stored { dead: Some(verdict()), customer: None, ..item(7, 3) };
    let ops = vec![
        put_item(item(50, 1), true),
        put_item(named(60, 2), true),
        put_item(member(5), true),
        put_item(member(6), true),
        put_item(closed(8), true),
        put_item(closed(9), true),
        put_item(Stored { application: "other".into(), ..item(40, 4) }, true),
        put_item(dead, false),
        queue("", 1),
        queue(APP, 4),
        queue("other", 3),
        Op::PutWindow(window),
        Op::Close(closing),
    ];
    store.commit(&[group(9, ops)]).unwrap();
    store.close().unwrap();
    let emptying = opened(&ground);
    (ground, emptying)
}

fn opened(ground: &ground::Ground) -> EmptyingStore {
    let OpenStore { store, opened, identity, .. } = ground.open();
    EmptyingStore::of(store, opened, identity)
}

/// Queue, due and number of items.
fn told(items: &[Stored]) -> Vec<(&str, u64, u64)> {
    items.iter().map(|item| (item.queue(), item.due, item.key.seq)).collect()
}

fn what_was_removed_is_gone_and_what_was_not_is_there_again(kind: GroundKind) {
    let (ground, mut store) = filled(kind);
    assert_eq!((store.items(), store.held_back(0)), (8, vec![]));
    let first = store.step(StepOf::Items).unwrap().unwrap();
    // Each queue in the order in which it would leave: a window of the other one has closed at 30.
    let of_app = [(APP, 50, 1), (APP, 60, 2), (APP, 900, 5), (APP, 900, 6)];
    let of_other = [("other", 30, 8), ("other", 30, 9), ("other", 40, 4)];
    assert_eq!(told(&first), [&of_app[..], &of_other].concat());
    assert!(first.iter().all(|item| item.content.is_some()));
    store.close().unwrap();
    let mut store = opened(&ground);
    let again = store.step(StepOf::Items).unwrap().unwrap();
    assert_eq!(again, first);
    store.remove(&again).unwrap();
    assert_eq!(store.step(StepOf::Items).unwrap(), None);
    let letters = store.step(StepOf::Letters).unwrap().unwrap();
    assert_eq!(told(&letters), [("", 7, 3)]);
    store.remove(&letters).unwrap();
    assert_eq!(store.step(StepOf::Letters).unwrap(), None);
    store.keep().unwrap();
    store.close().unwrap();
    let OpenStore { store, opened, .. } = ground.open();
    assert_eq!((opened.queues, opened.windows), (vec![], vec![]));
    store.close().unwrap();
    if let ground::Ground::Disk(folder) = &ground {
        // No row of an index and no closing is left behind.
        let summary = verify(folder.path(), 32 << 20, &mut Sound).unwrap();
        assert_eq!((summary.items, summary.ids, summary.windows, summary.closings), (0, 0, 0, 0));
    }
}

struct Sound;

impl Watcher for Sound {
    fn step(&mut self, _: WalkStep) {}

    fn fault(&mut self, fault: RowFault) {
        panic!("{fault:?}");
    }
}

fn an_item_that_stays_is_met_again_and_the_others_are_not(kind: GroundKind) {
    let (ground, mut store) = filled(kind);
    while let Some(mut items) = store.step(StepOf::Items).unwrap() {
        items.retain(|item| item.given != Some(given(2)) && item.key.seq != 9);
        store.remove(&items).unwrap();
    }
    store.close().unwrap();
    for _ in 0..2 {
        let mut store = opened(&ground);
        assert_eq!(store.items(), 3);
        let left = store.step(StepOf::Items).unwrap().unwrap();
        assert_eq!(told(&left), [(APP, 60, 2), ("other", 30, 9)]);
        store.remove(&[]).unwrap();
        assert_eq!(store.step(StepOf::Items).unwrap(), None);
        store.close().unwrap();
    }
    if let ground::Ground::Disk(folder) = &ground {
        let summary = verify(folder.path(), 32 << 20, &mut Sound).unwrap();
        assert_eq!((summary.items, summary.dead_letters, summary.faults), (2, 1, 0));
    }
}

fn many_items_and_large_bodies_come_in_steps(kind: GroundKind) {
    let (ground, mut store) = kind.fresh();
    let many = STEP_ITEMS as u64 + 500;
    let large = |seq| {
        let content = Content { properties: vec![0, 0], body: vec![7; 9 << 20], json: false };
        let content = Some(Arc::new(content));
        Stored { application: "large".into(), weight: 9 << 20, content, ..item(seq, seq) }
    };
    let mut ops: Vec<Op> = (1..=many).map(|seq| put_item(item(seq / 3, seq), true)).collect();
    ops.extend([queue(APP, many), queue("large", 3)]);
    store.commit(&[group(many, ops)]).unwrap();
    (1..=3).for_each(|seq| store.commit(&[group(many, vec![put_item(large(seq), true)])]).unwrap());
    store.close().unwrap();
    let mut store = opened(&ground);
    let mut seen: Vec<(String, u64)> = Vec::new();
    let mut steps = 0;
    while let Some(items) = store.step(StepOf::Items).unwrap() {
        assert!(items.len() <= STEP_ITEMS);
        assert!(items.iter().all(|item| item.content.is_some()));
        seen.extend(items.iter().map(|item| (item.queue().to_owned(), item.key.seq)));
        store.remove(&items).unwrap();
        steps += 1;
    }
    // Each queue in its order.
    let of = |queue: &str| seen.iter().filter(|(of, _)| of == queue).map(|(_, seq)| *seq).collect::<Vec<_>>();
    assert_eq!((of(APP), of("large")), ((1..=many).collect(), vec![1, 2, 3]));
    assert!((4..=6).contains(&steps), "{steps}");
    store.close().unwrap();
}

fn a_letter_leaves_the_id_to_the_item_that_has_it_now(kind: GroundKind) {
    let (ground, mut store) = kind.fresh();
    let letter = Stored { dead: Some(verdict()), key: key(5, 1), ..named(5, 2) };
    let ops = vec![put_item(named(60, 2), true), put_item(letter, false), queue("", 1), queue(APP, 1)];
    store.commit(&[group(3, ops)]).unwrap();
    store.close().unwrap();
    let mut store = opened(&ground);
    let letters = store.step(StepOf::Letters).unwrap().unwrap();
    assert!(letters[0].dead.is_some() && letters[0].given.is_some());
    store.remove(&letters).unwrap();
    store.close().unwrap();
    let mut store = ground.open().store;
    let found = find_tests::find(&mut *store, vec![find_tests::wanted(given(2), &[])]);
    assert_eq!(found[0].item.as_ref().map(|item| item.key), Some(key(60, 2)));
    store.close().unwrap();
}

#[test]
fn what_is_held_back_is_named_until_it_ends() {
    let (ground, mut store) = GroundKind::Disk.fresh();
    let paused = |name: &str, until| {
        let Op::PutQueue(row) = queue(name, 0) else { unreachable!("a queue") };
        Op::PutQueue(QueueRow { paused: Some(until), ..row })
    };
    let held = HeldRow { application: APP.into(), customer: "ann".into(), until: Some(FOR_EVER) };
    store.commit(&[group(1, vec![paused("long", 90), paused("over", 10), Op::PutHeld(held)])]).unwrap();
    store.close().unwrap();
    let store = opened(&ground);
    assert_eq!(store.held_back(50), [("long".into(), None), (APP.into(), Some("ann".into()))]);
    assert_eq!(store.held_back(90), [(APP.into(), Some("ann".into()))]);
    store.close().unwrap();
}
