//! Tests of the examination of a database: its own trace, its bounds, and that the rights it asks for are
//! those that a store uses.

use super::clocks::difference_ms;
use super::connect::DatabaseLink;
use super::inspect::inspect;
use super::pooling::evidence;
use super::rights::try_rights;
use super::schema::{lock, try_make, MakeTrial};
use crate::ended_tests::{begin, remember};
use crate::ground::{Ground, GroundKind, PgGround};
use crate::tests::{delete, everything, given, group, key, put};
use std::time::{Duration, Instant};
use tidegate_common::check_line::{CheckLine, Severity};
use tidegate_common::clock;

fn ground() -> PgGround {
    match GroundKind::Postgres.bare() {
        Ground::Postgres(ground) => ground,
        Ground::Disk(_) | Ground::Maps(_) => unreachable!("another ground"),
    }
}

fn inspected(ground: &PgGround) -> Vec<CheckLine> {
    inspect(&ground.config().database.unwrap(), 1)
}

fn faults(lines: &[CheckLine]) -> Vec<&str> {
    lines.iter().filter(|line| line.severity == Severity::Fault).map(|line| &*line.text).collect()
}

fn link(ground: &PgGround) -> DatabaseLink {
    DatabaseLink::open(&ground.config().database.unwrap()).unwrap()
}

#[test]
fn an_examination_leaves_nothing_behind() {
    let ground = ground();
    let seen = || {
        ground.sql(
            "SELECT (SELECT count(*) FROM pg_namespace WHERE nspname = '$'), (SELECT count(*) \
             FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = '$')",
        )
    };
    let lines = inspected(&ground);
    let is_told = |text: &str| lines.iter().any(|line| line.text.contains(text));
    assert!(faults(&lines).is_empty() && is_told("the first start makes them"), "{lines:?}");
    assert_eq!(seen(), "0|0");
    let mut store = ground.open(clock::wall_ms()).unwrap().store;
    store.commit(&[group(1, vec![put(1, 1)])]).unwrap();
    let rows = || ground.sql("SELECT s.*, s.xmin, (SELECT count(*) FROM $.nodes) FROM $.shards s");
    let (tables, before) = (seen(), rows());
    let lines = inspected(&ground);
    assert!(faults(&lines).is_empty(), "{lines:?}");
    assert_eq!((seen(), rows()), (tables, before), "neither a claim nor a lease has changed");
    store.commit(&[group(2, vec![put(2, 2)])]).unwrap();
    assert_eq!(everything(&mut *store), [key(1, 1), key(2, 2)]);
}

#[test]
fn tables_that_appear_during_an_examination_are_no_obstacle() {
    let ground = ground();
    let schema = ground.config().database.unwrap().schema;
    let (first, second) = (link(&ground), link(&ground));
    let tried = || try_make(&first, &schema, 1).unwrap();
    assert_eq!(tried(), MakeTrial::Possible);
    let holds = |name: &str| format!("BEGIN; SELECT pg_advisory_xact_lock({})", lock(name));
    second.execute(&holds("of_others")).unwrap();
    assert_eq!(tried(), MakeTrial::Possible);
    second.execute(&holds(&schema)).unwrap();
    assert_eq!(tried(), MakeTrial::Busy);
    second.execute("ROLLBACK").unwrap();
    // A daemon has made them since the last look.
    ground.open(clock::wall_ms()).unwrap().store.close().unwrap();
    assert_eq!(tried(), MakeTrial::Made);
}

#[test]
fn a_table_that_is_locked_holds_an_examination_up_for_a_while_only() {
    let ground = ground();
    ground.open(clock::wall_ms()).unwrap().store.close().unwrap();
    let other = link(&ground);
    other.execute("SET idle_in_transaction_session_timeout = 0; BEGIN").unwrap();
    other.execute(&ground.named("LOCK TABLE $.rows")).unwrap();
    let begun = Instant::now();
    let lines = inspected(&ground);
    let told = faults(&lines);
    assert!(told.len() == 1 && told[0].contains("55P03"), "{lines:?}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    other.execute("ROLLBACK").unwrap();
    let lines = inspected(&ground);
    assert!(faults(&lines).is_empty(), "{lines:?}");
}

#[test]
fn the_rights_that_are_tried_are_enough_for_a_store() {
    let ground = ground();
    ground.open(clock::wall_ms()).unwrap().store.close().unwrap();
    ground.sql("CREATE ROLE $_least LOGIN");
    ground.sql("GRANT USAGE ON SCHEMA $ TO $_least");
    let least = ground.as_role("_least");
    let config = least.config().database.unwrap();
    let tried = try_rights(&link(&least), &config.schema, 1).unwrap();
    assert_eq!(tried.missing.len(), 6, "{tried:?}");
    ground.sql(&tried.grants(&config.schema, &config.user));
    let tried = try_rights(&link(&least), &config.schema, 1).unwrap();
    assert!(tried.missing.is_empty() && tried.error.is_none(), "{tried:?}");
    suffices(&least);
}

#[test]
fn rights_on_the_columns_alone_are_enough() {
    let ground = ground();
    ground.open(clock::wall_ms()).unwrap().store.close().unwrap();
    ground.sql("CREATE ROLE $_columns LOGIN");
    for grant in [
        "USAGE ON SCHEMA $",
        "SELECT (format, shards) ON $.cluster",
        "SELECT (shard, identity, claim, epoch, owner, backend, claimed, expires, commit_no, next_seq, wall) \
         ON $.shards",
        "UPDATE (claim, writer, epoch, owner, backend, claimed, expires, commit_no, next_seq, wall) \
         ON $.shards",
        "SELECT (name, seen), INSERT (name, seen), UPDATE (seen), DELETE ON $.nodes",
        "SELECT (ctid, shard, key, head, rest), INSERT (shard, key, head, rest), UPDATE (head, rest), DELETE \
         ON $.items",
        "SELECT (ctid, shard, space, key, value), INSERT (shard, space, key, value), UPDATE (value), DELETE \
         ON $.rows",
        "SELECT (ctid, shard, bucket, epoch, identity, value), \
         INSERT (shard, bucket, epoch, identity, value), UPDATE (value), DELETE ON $.ended",
    ] {
        ground.sql(&format!("GRANT {grant} TO $_columns"));
    }
    let columns = ground.as_role("_columns");
    let lines = inspected(&columns);
    assert!(faults(&lines).is_empty(), "{lines:?}");
    suffices(&columns);
    ground.sql("REVOKE SELECT (expires) ON $.shards FROM $_columns");
    let lines = inspected(&columns);
    let told = faults(&lines);
    assert!(told.len() == 1 && told[0].contains("are missing: SELECT on `shards`"), "{lines:?}");
}

/// The role's rights are enough for a daemon's whole life.
fn suffices(least: &PgGround) {
    let mut store = least.open(clock::wall_ms()).unwrap().store;
    store.commit(&[group(1, vec![put(1, 1), put(2, 2), begin(2, 1), remember(2, given(1), 10)])]).unwrap();
    store.commit(&[group(2, vec![delete(1, 1), begin(2, 5), remember(2, given(2), 11)])]).unwrap();
    store.begin_reclaim().unwrap().expect("a job")().unwrap();
    assert_eq!(everything(&mut *store), [key(2, 2)]);
    store.usage().unwrap();
    assert_eq!(store.heir().unwrap(), None);
    // Another daemon reports that it stands by, and then takes over.
    let heir = least.elsewhere();
    assert!(heir.open(clock::wall_ms()).is_err(), "the store has an owner");
    assert!(store.heir().unwrap().is_some());
    store.close().unwrap();
    heir.open(clock::wall_ms()).unwrap().store.close().unwrap();
}

#[test]
fn clocks_of_one_machine_agree_and_its_sessions_are_separate() {
    let ground = ground();
    let (first, second) = (link(&ground), link(&ground));
    assert!(difference_ms(&first).unwrap().abs() <= 2, "{:?}", difference_ms(&first));
    assert_eq!(evidence(&first, &second).unwrap(), None);
    // The same connection twice, as a pooler with one session.
    let told = evidence(&first, &first).unwrap();
    assert!(told.is_some_and(|told| told.contains("two connections")), "one session for both");
}
