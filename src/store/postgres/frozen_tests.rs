//! Tests of exports of a database: the same lines as of a disk, as of one moment, over all shards.

use crate::export::{begin_of_database, Export};
use crate::ground::{Ground, GroundKind, PgGround};
use crate::moving_tests::{behind_first, id_of, lines_of, of_every_kind, source};
use crate::tests::{delete, group, item, named, put, put_item, unlocked};
use crate::{OpenError, OpenStore, ShardPlace};
use std::sync::Arc;
use tidegate_common::clock;
use tidegate_types::event::{BucketRow, Op, QueueRow, Stored};
use tidegate_types::{Content, End, Ended, Key};

fn ground() -> PgGround {
    match GroundKind::Postgres.bare() {
        Ground::Postgres(ground) => ground,
        Ground::Disk(_) | Ground::Maps(_) => unreachable!("another ground"),
    }
}

fn open(ground: &PgGround, number: u16, count: u16) -> OpenStore {
    unlocked(|| ground.opener(ShardPlace { number, count })?.open(clock::wall_ms())).unwrap()
}

fn begun(ground: &PgGround, count: u16) -> Result<Vec<Export>, OpenError> {
    begin_of_database(&ground.config().database.unwrap(), count, id_of)
}

fn count(items: u64) -> Op {
    let (low, unindexed_until) = (Key::default(), 0);
    Op::PutQueue(QueueRow {
        queue: "app".into(),
        count: items,
        low,
        paused: None,
        unindexed_until,
        slowed: None,
    })
}

#[test]
fn the_lines_are_those_of_a_disk_with_the_same_rows() {
    let (_disk, wanted) = source();
    let ground = ground();
    let OpenStore { mut store, identity, .. } = ground.open(clock::wall_ms()).unwrap();
    store.commit(&[of_every_kind()]).unwrap();
    // A daemon has it open.
    let exports = begun(&ground, 1).unwrap();
    assert_eq!(exports.iter().map(Export::items).sum::<u64>(), 5);
    let text = lines_of(exports.into_iter().next().unwrap());
    assert_eq!(behind_first(&text), behind_first(&wanted));
    assert!(text.starts_with("{\"kind\":\"store\"") && text.contains(&format!("{identity:016x}")), "{text}");
    store.close().unwrap();
}

#[test]
fn all_shards_are_read_as_of_the_moment_of_the_beginning() {
    let ground = ground();
    let [mut first, mut second] = [0, 1].map(|number| open(&ground, number, 2).store);
    let large = |seq, bytes| {
        let content = Content { properties: vec![0, 0], body: vec![b'x'; bytes], json: false };
        put_item(Stored { content: Some(Arc::new(content)), ..item(50, seq) }, false)
    };
    // Two that share a page, one that fills one, and one that is larger than any.
    let ops = vec![large(1, 600 << 10), large(2, 600 << 10), large(3, 1 << 20), large(4, 3 << 20), count(4)];
    first.commit(&[group(9, ops)]).unwrap();
    let many = 1_500;
    let mut ops: Vec<Op> = (1..=many).map(|seq| put(seq, seq)).collect();
    let ended = Ended { end: End::Cancelled, at: 1, due: 2, attempts: 0, fingerprint: 3, customer: None };
    let remember = |n| {
        let identity = crate::tests::given(n);
        Op::Remember { bucket: 1, identity, ended: Box::new(ended.clone()) }
    };
    ops.extend([count(many), Op::BeginBucket(BucketRow { bucket: 1, from: 1 }), remember(1), remember(2)]);
    second.commit(&[group(9_000, ops)]).unwrap();
    let exports = begun(&ground, 2).unwrap();
    // None of this is seen.
    first.commit(&[group(10, vec![delete(50, 1), put_item(named(70, 9), false), count(4)])]).unwrap();
    second.commit(&[group(9_001, vec![delete(1, 1), remember(3), count(many - 1)])]).unwrap();
    let texts: Vec<String> = exports.into_iter().map(lines_of).collect();
    let numbers = |text: &str| {
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let items = lines.filter(|line| line["kind"] == "item");
        items.map(|line| line["number"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(numbers(&texts[0]), [1, 2, 3, 4]);
    assert_eq!(numbers(&texts[1]), (1..=many).collect::<Vec<_>>());
    let lengths: Vec<usize> = texts[0].lines().map(str::len).filter(|length| *length > 1_000).collect();
    assert!(lengths.iter().zip([600 << 10, 600 << 10, 1 << 20, 3 << 20]).all(|(a, b)| *a > b), "{lengths:?}");
    assert_eq!(texts[1].matches("\"kind\":\"ended\"").count(), 2);
}

#[test]
fn what_is_not_there_or_divided_otherwise_is_refused() {
    let ground = ground();
    let refused = |count| begun(&ground, count).map(drop).unwrap_err();
    assert!(matches!(refused(1), OpenError::ForeignSchema { .. }), "{}", refused(1));
    drop(open(&ground, 0, 2));
    assert!(matches!(refused(1), OpenError::OtherShards { found: 2, wanted: 1, .. }), "{}", refused(1));
    assert!(begun(&ground, 2).is_ok());
}
