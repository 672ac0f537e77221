//! Tests of the promises of a store in a database that other stores do not make: claims, leases, the fence,
//! and statements whose cost does not depend on the database's statistics.

#![expect(clippy::wildcard_enum_match_arm, reason = "another answer fails the test")]

use super::connect::DatabaseLink;
use super::inspect::inspect;
use crate::ended_tests::{begin, remember};
use crate::find_tests::wanted;
use crate::ground::{Ground, GroundKind, PgGround};
use crate::tests::{
    delete, everything, given, group, item, key, part, place, put, put_item, range, ranges, whole, APP,
};
use crate::{CommitError, OpenError, OpenStore, ReadError, ShardPlace, Store, Takeover};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_common::check_line::Severity;
use tidegate_common::clock;
use tidegate_config::DatabaseConfig;
use tidegate_harness::{wait_until, Database};
use tidegate_types::event::{ClosingRow, IndexRows, Load, Loaded, Op, RangeRows, Stored};
use tidegate_types::{ClosedBy, Content, Identity, Key};
use tokio_postgres::config::TargetSessionAttrs;

const LIMIT: Duration = Duration::from_secs(60);

fn ground() -> PgGround {
    match GroundKind::Postgres.bare() {
        Ground::Postgres(ground) => ground,
        Ground::Disk(_) | Ground::Maps(_) => unreachable!("another ground"),
    }
}

fn open(ground: &PgGround) -> Result<OpenStore, OpenError> {
    ground.open(clock::wall_ms())
}

fn refusal(ground: &PgGround) -> OpenError {
    open(ground).map(drop).expect_err("opened")
}

#[test]
fn a_store_is_one_daemons_until_it_is_released() {
    let ground = ground();
    let mut store = open(&ground).unwrap().store;
    store.commit(&[group(1, vec![put(1, 1)])]).unwrap();
    let elsewhere = ground.elsewhere();
    match refusal(&elsewhere) {
        OpenError::Claimed { owner, left_ms } => {
            assert!(owner.contains('/') && (1..=10_000).contains(&left_ms), "{owner} {left_ms}");
        }
        other => panic!("{other}"),
    }
    store.close().unwrap();
    let mut store = open(&elsewhere).unwrap().store;
    assert_eq!(everything(&mut *store), [key(1, 1)]);
}

#[test]
fn the_same_daemon_has_it_back_at_once_and_a_copy_of_its_file_is_another() {
    let ground = ground();
    // As after kill -9: the store is not released.
    drop(open(&ground).unwrap());
    drop(open(&ground).unwrap());
    let elsewhere = ground.elsewhere();
    std::fs::copy(ground.path().join("NODE"), elsewhere.path().join("NODE")).unwrap();
    assert!(matches!(refusal(&elsewhere), OpenError::Claimed { .. }));
    drop(open(&ground).unwrap());
    assert_eq!(ground.sql("SELECT epoch FROM $.shards"), "3");
}

#[test]
fn what_is_over_is_free() {
    let ground = ground();
    drop(open(&ground).unwrap());
    ground.sql("UPDATE $.shards SET expires = clock_timestamp() - interval '1 ms'");
    drop(open(&ground.elsewhere()).unwrap());
    // The first daemon is no longer the owner.
    assert!(matches!(refusal(&ground), OpenError::Claimed { .. }));
}

/// The stores of two daemons: the second has claimed the store without the first one's knowledge.
fn stolen(ground: &PgGround) -> (Box<dyn Store>, Box<dyn Store>) {
    let mut old = open(ground).unwrap().store;
    old.commit(&[group(1, vec![put(1, 1)])]).unwrap();
    ground.sql("UPDATE $.shards SET expires = clock_timestamp() - interval '1 ms'");
    let new = open(&ground.elsewhere()).unwrap().store;
    (old, new)
}

#[test]
fn whoever_has_lost_it_writes_nothing_and_forgets_who_it_was() {
    let ground = ground();
    let (mut old, mut new) = stolen(&ground);
    new.commit(&[group(2, vec![put(2, 2)])]).unwrap();
    let before = ground.sql("SELECT commit_no, next_seq, claim FROM $.shards");
    let refused = old.commit(&[group(3, vec![put(3, 3), delete(1, 1)])]).unwrap_err();
    assert!(matches!(refused, CommitError::Fenced), "{refused}");
    assert_eq!(everything(&mut *new), [key(1, 1), key(2, 2)]);
    assert!(matches!(old.renew(), Err(CommitError::Fenced)));
    assert_eq!(ground.sql("SELECT commit_no, next_seq, claim FROM $.shards"), before);
    // It must not pass for the former owner again, however the other daemon came to its claim.
    assert!(!ground.path().join("NODE").exists());
    // It must not release a store that it does not own.
    old.close().unwrap();
    new.commit(&[group(4, vec![put(4, 4)])]).unwrap();
}

#[test]
fn a_store_without_its_row_takes_nothing() {
    let ground = ground();
    let mut store = open(&ground).unwrap().store;
    ground.sql("DELETE FROM $.shards");
    let refused = store.commit(&[group(1, vec![put(1, 1)])]).unwrap_err();
    assert!(matches!(refused, CommitError::Fenced), "{refused}");
    assert_eq!(ground.sql("SELECT count(*) FROM $.items"), "0");
}

#[test]
fn every_commit_extends_the_lease_and_so_does_a_renewal() {
    let ground = ground();
    let mut store = open(&ground).unwrap().store;
    let lease = store.lease().unwrap();
    let left = "SELECT expires > clock_timestamp() + interval '6 s' FROM $.shards";
    let age = "UPDATE $.shards SET expires = clock_timestamp() + interval '5 s'";
    for renewed in [false, true] {
        ground.sql(age);
        std::thread::sleep(Duration::from_millis(20));
        let before = clock::now().mono;
        if renewed {
            store.renew().unwrap();
        } else {
            store.commit(&[group(1, vec![put(1, 1)])]).unwrap();
        }
        assert_eq!(ground.sql(left), "t", "renewed: {renewed}");
        assert!(lease.age(clock::now().mono) <= clock::now().mono - before, "renewed: {renewed}");
    }
    assert_eq!(ground.sql("SELECT commit_no, next_seq FROM $.shards"), "1|2", "a renewal is no commit");
}

#[test]
fn a_lost_connection_is_a_failed_commit_and_what_is_there_is_found_again() {
    let ground = ground();
    let mut store = open(&ground).unwrap().store;
    store.commit(&[group(1, vec![put(1, 1)])]).unwrap();
    ground.sql("SELECT pg_terminate_backend(backend) FROM $.shards");
    let lost = store.commit(&[group(2, vec![put(2, 2)])]).unwrap_err();
    // The server's own reason: 57P01 is an administrator's command.
    assert!(matches!(&lost, CommitError::Lost(text) if text.contains("57P01")), "{lost}");
    drop(store);
    let mut store = open(&ground).unwrap().store;
    assert_eq!(everything(&mut *store), [key(1, 1)]);
}

/// After a fault that passes, the same daemon claims the store again. One that does not pass ends the life of
/// the store: a daemon that went on would lose it without end.
/// Excluded: a transaction that the server ended because this process stood still, as a fault of a statement;
/// a missing right, met by one read of many, as a lost connection.
#[test]
fn a_fault_that_passes_is_told_from_one_that_does_not() {
    let ground = ground();
    let mut store = open(&ground).unwrap().store;
    ground.sql("CREATE FUNCTION $.fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'");
    ground.sql("CREATE TRIGGER fail BEFORE INSERT ON $.items FOR EACH STATEMENT EXECUTE FUNCTION $.fail()");
    for (code, passes) in [
        ("08006", true),
        ("25P03", true),
        ("25P04", true),
        ("25006", true),
        ("53100", true),
        ("57P01", true),
        ("42501", false),
        ("XX001", false),
    ] {
        ground.sql(&format!(
            "CREATE OR REPLACE FUNCTION $.fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN \
             RAISE ''it fails'' USING ERRCODE = ''{code}''; END'"
        ));
        let error = store.commit(&[group(1, vec![put(1, 1)])]).unwrap_err();
        assert_eq!(matches!(error, CommitError::Lost(_)), passes, "{error}");
        assert!(error.to_string().contains(code), "{error}");
    }
    ground.sql("DROP TABLE $.items CASCADE");
    for load in [whole(APP), Load::Contents(vec![(1, place(APP, 1, 1)), (2, place(APP, 2, 2))])] {
        let error = store.load(&load).unwrap_err();
        assert!(matches!(error, ReadError::Engine(_)) && error.to_string().contains("42P01"), "{error}");
    }
}

#[test]
fn a_transaction_that_was_undone_is_made_again() {
    let ground = ground();
    let mut store = open(&ground).unwrap().store;
    // Acts as a deadlock for the first two attempts; a sequence is not rolled back.
    ground.sql("CREATE SEQUENCE $.tries");
    ground.sql(
        "CREATE FUNCTION $.undo() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN \
         IF nextval(''$.tries'') < 3 THEN RAISE ''undone'' USING ERRCODE = ''40P01''; END IF; \
         RETURN NEW; END'",
    );
    ground.sql("CREATE TRIGGER undo BEFORE INSERT ON $.items FOR EACH STATEMENT EXECUTE FUNCTION $.undo()");
    store.commit(&[group(1, vec![put(1, 1)])]).unwrap();
    assert_eq!(everything(&mut *store), [key(1, 1)]);
    ground.sql("ALTER SEQUENCE $.tries MINVALUE -9 INCREMENT BY -1");
    let undone = store.commit(&[group(2, vec![put(2, 2)])]).unwrap_err();
    assert!(undone.to_string().contains("40P01"), "{undone}");
}

/// A database that stops waiting for its replica has committed, and reports it by a warning.
#[test]
fn what_no_replica_has_is_a_doubt_and_other_warnings_are_none() {
    let conf = "synchronous_standby_names = 'nobody'\nsynchronous_commit = local";
    let server = Database::own(conf).expect("PostgreSQL, which `make setup` installs");
    let ground = PgGround::of(Box::leak(Box::new(server)));
    let mut store = open(&ground).unwrap().store;
    let trigger = |does: &str| {
        ground.sql(&format!(
            "CREATE OR REPLACE FUNCTION $.does() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN {does}; RETURN NULL; END'"
        ));
    };
    trigger("RAISE WARNING ''of another kind''");
    ground.sql("CREATE TRIGGER does AFTER INSERT ON $.items FOR EACH STATEMENT EXECUTE FUNCTION $.does()");
    store.commit(&[group(1, vec![put(1, 1)])]).unwrap();
    trigger("PERFORM set_config(''synchronous_commit'', ''on'', true)");
    let doubt = std::thread::scope(|scope| {
        let committing = scope.spawn(|| store.commit(&[group(2, vec![put(2, 2)])]));
        let begun = Instant::now();
        let waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        while ground.sql(waiting).is_empty() && begun.elapsed() < Duration::from_secs(30) {
            std::thread::yield_now();
        }
        ground.sql(&format!("SELECT pg_cancel_backend(({waiting}))"));
        committing.join().expect("a commit").unwrap_err()
    });
    assert!(doubt.to_string().contains("no longer waits for its synchronous replica"), "{doubt}");
    assert_eq!(ground.sql("SELECT count(*) FROM $.items"), "2", "it has committed all the same");
}

/// A reload applies to each session that has not set the value itself.
#[test]
fn a_reload_of_the_server_makes_no_commit_lax() {
    let server = Database::own("fsync = on").expect("PostgreSQL, which `make setup` installs");
    let ground = PgGround::of(Box::leak(Box::new(server)));
    drop(open(&ground).unwrap());
    let lax = ground.config().database.unwrap();
    let strict = DatabaseConfig { allow_async: false, ..lax.clone() };
    let told = |link: &DatabaseLink| link.words("SHOW synchronous_commit").unwrap().concat().concat();
    let follower = DatabaseLink::open(&lax).unwrap();
    let reload = |setting: &str| {
        ground.sql(&format!("ALTER SYSTEM SET {setting}"));
        ground.sql("SELECT pg_reload_conf()");
    };
    let set = |value: &str| {
        reload(&format!("synchronous_commit = {value}"));
        wait_until("a session has followed", LIMIT, || told(&follower) == value);
    };
    for (before, kept) in [("remote_write", "remote_write"), ("local", "on"), ("on", "on")] {
        set(before);
        let link = DatabaseLink::open(&strict).unwrap();
        assert_eq!(told(&link), kept, "{before}");
        set("off");
        assert_eq!(told(&link), kept, "{before}, and off since");
    }
    assert!(!follower.size(&lax.schema).unwrap().1);
    reload("fsync = off");
    wait_until("it is noticed with the size", LIMIT, || follower.size(&lax.schema).unwrap().1);
}

#[test]
fn the_server_ends_no_session_that_rests() {
    let ground = ground();
    if ground.sql("SELECT count(*) FROM pg_settings WHERE name = 'idle_session_timeout'") == "0" {
        // PostgreSQL 13 has no such limit.
        return;
    }
    ground.sql("CREATE ROLE $_rests LOGIN");
    ground.sql("ALTER ROLE $_rests SET idle_session_timeout = '1h'");
    let link = DatabaseLink::open(&ground.as_role("_rests").config().database.unwrap()).unwrap();
    assert_eq!(link.words("SHOW idle_session_timeout").unwrap().concat(), ["0"]);
}

/// An item with a body of so many MiB.
fn large(queue: &str, key: Key, mib: usize) -> Stored {
    let content = Content { properties: vec![], body: vec![7; mib << 20], json: false };
    let item = item(key.due, key.seq);
    Stored { application: queue.into(), key, content: Some(Arc::new(content)), ..item }
}

/// Which of the rows have their contents.
fn with_contents(read: &RangeRows) -> Vec<bool> {
    read.rows.iter().map(|row| row.content.is_some()).collect()
}

/// They come in one answer, within the lease, however much memory there is for them. A body that is left out
/// costs the ranges behind it nothing.
#[test]
fn bodies_of_many_ranges_are_bounded_together() {
    const QUEUES: [&str; 4] = ["a", "b", "c", "d"];
    let ground = ground();
    let mut store = open(&ground).unwrap().store;
    for (token, queue) in (1..).zip(QUEUES) {
        let items = (0..4).map(|seq| put_item(large(queue, key(1, token * 10 + seq), 3), false));
        store.commit(&[group(token, items.collect())]).unwrap();
    }
    let asked = QUEUES.map(|queue| range(queue, key(0, 0), u64::MAX, 100)).into();
    for read in ranges(&mut *store, asked, u64::MAX) {
        assert_eq!((with_contents(&read), read.next), (vec![true, true, false, false], None));
    }
}

#[test]
fn bodies_of_windows_that_closed_early_are_bounded_together() {
    const QUEUES: [&str; 2] = ["a", "b"];
    let ground = ground();
    let mut store = open(&ground).unwrap().store;
    for (window, queue) in (1..).zip(QUEUES) {
        let member = |n| {
            let key = Key { due: 100, window, seq: window * 10 + n };
            put_item(Stored { own_time: false, ..large(queue, key, 6) }, true)
        };
        store.commit(&[group(window, (0..4).map(member).collect())]).unwrap();
        let (application, cause) = (queue.into(), ClosedBy::Count);
        let closed = Op::Close(ClosingRow { application, end: 100, window, due: 50, cause });
        store.commit(&[group(window, vec![closed])]).unwrap();
    }
    let asked = QUEUES.map(|queue| range(queue, key(0, 0), u64::MAX, 100)).into();
    let read = ranges(&mut *store, asked, u64::MAX);
    assert!(read.iter().flat_map(|read| &read.rows).all(|row| row.due == 50));
    assert_eq!((with_contents(&read[0]), read[0].next), (vec![true; 4], None));
    assert_eq!((with_contents(&read[1]), read[1].next), (vec![true, false, false, false], None));
}

/// Pages end by rows, or by bytes of heads; no row is omitted or repeated.
#[test]
fn rows_with_large_heads_are_read_in_pages() {
    let ground = ground();
    let mut store = open(&ground).unwrap().store;
    let large = |seq: u64| {
        let content = Content { properties: vec![7; 100 << 10], body: vec![1; 10], json: false };
        put_item(Stored { content: Some(Arc::new(content)), ..item(1, seq) }, false)
    };
    for chunk in 0..6 {
        store.commit(&[group(chunk, (chunk * 50..(chunk + 1) * 50).map(large).collect())]).unwrap();
    }
    let (keys, next) = part(&mut *store, key(0, 0), u64::MAX, 250);
    assert_eq!(keys, (0..250).map(|seq| key(1, seq)).collect::<Vec<_>>());
    assert_eq!(next, Some(key(1, 250)));
    let many = (0..64).map(|n| range(APP, key(1, n), u64::MAX, 128)).collect();
    for (read, n) in ranges(&mut *store, many, 0).into_iter().zip(0..) {
        let seqs: Vec<_> = read.rows.iter().map(|row| row.key.seq).collect();
        assert_eq!(seqs, (n..n + seqs.len() as u64).collect::<Vec<_>>());
        assert_eq!(read.next, Some(key(1, n + seqs.len() as u64)));
    }
}

#[test]
fn tables_of_others_are_refused_by_name() {
    let ground = ground();
    drop(open(&ground).unwrap());
    for (change, part) in
        [("UPDATE $.cluster SET format = 99", "format 99"), ("DELETE FROM $.cluster", "empty")]
    {
        ground.sql(change);
        let error = refusal(&ground);
        let named = matches!(&error, OpenError::ForeignSchema { error, .. } if error.contains(part));
        assert!(named, "{change}: {error}");
    }
}

#[test]
fn a_directory_with_a_store_on_the_disk_is_refused() {
    let ground = ground();
    std::fs::create_dir_all(ground.path().join("db")).unwrap();
    std::fs::write(ground.path().join("db").join("version"), "").unwrap();
    assert!(matches!(refusal(&ground), OpenError::HoldsDisk { .. }));
}

#[test]
fn what_is_forgotten_goes_by_and_by() {
    let ground = ground();
    let mut store = open(&ground).unwrap().store;
    store.commit(&[group(1, vec![begin(2, 1), remember(2, given(1), 10)])]).unwrap();
    store.commit(&[group(2, vec![begin(2, 5), remember(2, given(2), 11)])]).unwrap();
    assert_eq!(ground.sql("SELECT count(*) FROM $.ended"), "2");
    store.begin_reclaim().unwrap().expect("a job")().unwrap();
    assert_eq!(ground.sql("SELECT count(*), min(epoch) FROM $.ended"), "1|2");
    assert!(store.begin_reclaim().unwrap().is_none(), "nothing is left");
    store.commit(&[group(3, vec![begin(3, 1)])]).unwrap();
    assert!(store.begin_reclaim().unwrap().is_some());
}

#[test]
fn people_see_what_waits() {
    let ground = ground();
    let mut store = open(&ground).unwrap().store;
    store.commit(&[group(1, vec![put(1_780_272_000_123, 7)])]).unwrap();
    let seen = ground.sql("SELECT queue, extract(epoch FROM due) * 1000, number, bytes > 0 FROM $.waiting");
    assert_eq!(seen, format!("{APP}|1780272000123.000000|7|t"));
    // PostgreSQL has no text that contains a zero.
    let named = |queue: &str, n| put_item(Stored { application: queue.into(), ..item(n, n) }, false);
    store.commit(&[group(2, vec![named("caf\u{e9}", 8), named("a\0\u{e9}\\", 9)])]).unwrap();
    let seen = ground.sql("SELECT queue FROM $.waiting WHERE number > 7 ORDER BY number");
    assert_eq!(seen, "caf\u{e9}\na\\000\\303\\251\\\\");
    assert_eq!(ground.sql("SELECT number FROM $.waiting WHERE queue = 'caf\u{e9}'"), "8");
}

/// Defines functions and operators in `public`, by a role that may do no more. They fit calls with these
/// types better than those of PostgreSQL, and fail if they are called.
fn set_traps(ground: &PgGround) {
    ground.sql("CREATE ROLE $_other");
    ground.sql("GRANT USAGE, CREATE ON SCHEMA public TO $_other");
    let define = |call: &str, returned: &str| {
        ground.sql(&format!(
            "SET ROLE $_other; CREATE FUNCTION public.{call} RETURNS {returned} LANGUAGE plpgsql AS \
             'BEGIN RAISE ''a trap''; END'"
        ));
    };
    define("convert_from(bytea, text)", "text");
    define("to_timestamp(numeric)", "timestamptz");
    define("pg_total_relation_size(text)", "int8");
    // Until PostgreSQL 13, `extract` returns float8.
    for (sign, left, right) in [("*", "numeric", "int4"), ("*", "float8", "int4"), ("/", "int8", "numeric")] {
        let name = if sign == "*" { "times" } else { "divided" };
        define(&format!("{name}({left}, {right})"), left);
        ground.sql(&format!(
            "SET ROLE $_other; CREATE OPERATOR public.{sign} (LEFTARG = {left}, RIGHTARG = {right}, \
             FUNCTION = public.{name})"
        ));
    }
}

/// A role that may create in `public` runs nothing with the rights of the daemon, or of a reader of its view.
#[test]
fn what_others_define_is_never_called() {
    let server = Database::own("").expect("PostgreSQL, which `make setup` installs");
    let ground = PgGround::of(Box::leak(Box::new(server)));
    set_traps(&ground);
    let config = ground.config().database.unwrap();
    let unset = DatabaseLink::at(&config, &config.hosts[0], TargetSessionAttrs::ReadWrite).unwrap();
    for call in ["1.5 * 2", "8::int8 / 2.0", "convert_from('\\x41'::bytea, 'UTF8')", "to_timestamp(1.5)"] {
        let error = unset.words(&format!("SELECT {call}")).unwrap_err().to_string();
        assert!(error.contains("a trap"), "{call}: {error}");
    }

    let free = inspect(&config, 1);
    let mut store = open(&ground).unwrap().store;
    store.commit(&[group(1, vec![put(1, 1), begin(2, 1), remember(2, given(1), 10)])]).unwrap();
    store.renew().unwrap();
    store.usage().unwrap();
    assert!(matches!(refusal(&ground.elsewhere()), OpenError::Claimed { .. }));
    assert!(store.heir().unwrap().is_some());
    store.begin_reclaim().unwrap().expect("a job")().unwrap();
    assert_eq!(everything(&mut *store), [key(1, 1)]);
    let owned = inspect(&config, 1);
    assert!(free.iter().chain(&owned).all(|line| line.severity != Severity::Fault), "{free:?} {owned:?}");
    let node = DatabaseLink::open(&config).unwrap();
    let round = node.prepare_round(&config.schema).unwrap();
    assert_eq!(node.query(&round, &[&"n", &false, &None::<String>]).unwrap().len(), 1);

    let seen = "SELECT queue, number, due < now() FROM";
    assert_eq!(ground.sql(&format!("{seen} $.waiting")), format!("{APP}|1|t"));
    // As an administrator makes the tables.
    ground.sql(&super::schema("printed", 1));
    ground.sql("INSERT INTO printed.items SELECT * FROM $.items");
    assert_eq!(ground.sql(&format!("{seen} printed.waiting")), format!("{APP}|1|t"));
    // As the guide makes the view anew, by the lines that `sed` picks.
    let text = super::schema("printed", 1);
    let path = text.lines().find(|line| line.starts_with("SET ")).expect("the path");
    assert_eq!(text.lines().position(|line| line == path), Some(1), "it is the first statement");
}

/// Another daemon may be able to read it, or this one, after a repair.
#[test]
fn a_store_that_cannot_be_read_is_released() {
    let ground = ground();
    let mut store = open(&ground).unwrap().store;
    store.commit(&[group(1, vec![begin(2, 1)])]).unwrap();
    store.close().unwrap();
    ground.sql("CREATE ROLE $_bad LOGIN");
    ground.sql("GRANT USAGE ON SCHEMA $ TO $_bad");
    ground.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA $ TO $_bad");
    // Only a read of rows finds this out.
    ground.sql("ALTER TABLE $.rows ENABLE ROW LEVEL SECURITY");
    ground.sql("CREATE POLICY unreadable ON $.rows USING (1 / (space - space) = 0)");
    let owner = "SELECT epoch, owner IS NULL, expires < clock_timestamp() FROM $.shards";
    let error = refusal(&ground.as_role("_bad"));
    let is_told = error.to_string().ends_with(": division by zero (22012)");
    assert!(matches!(error, OpenError::Database { .. }) && is_told && error.is_passing(), "{error}");
    assert_eq!(ground.sql(owner), "2|t|t");
    ground.sql("UPDATE $.rows SET value = '\\x00'");
    let error = refusal(&ground);
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    assert_eq!(ground.sql(owner), "3|t|t");
}

#[test]
fn a_store_without_a_right_on_its_rows_is_not_claimed() {
    let ground = ground();
    open(&ground).unwrap().store.close().unwrap();
    ground.sql("CREATE ROLE $_partly LOGIN");
    ground.sql("GRANT USAGE ON SCHEMA $ TO $_partly");
    ground.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA $ TO $_partly");
    let partly = ground.as_role("_partly");
    for (right, table) in [("SELECT", "rows"), ("INSERT", "items"), ("UPDATE", "ended"), ("DELETE", "rows")] {
        ground.sql(&format!("REVOKE {right} ON $.{table} FROM $_partly"));
        let error = refusal(&partly);
        let is_told = error.to_string().contains(&format!("permission denied for table {table} (42501)"));
        assert!(is_told && error.is_passing(), "{right}: {error}");
        ground.sql(&format!("GRANT {right} ON $.{table} TO $_partly"));
    }
    assert_eq!(ground.sql("SELECT epoch FROM $.shards"), "1");
    open(&partly).unwrap().store.close().unwrap();
}

/// Each life takes requests, and returns them if its first commit is refused.
#[test]
fn a_store_that_had_no_room_takes_nothing_until_there_is_some() {
    let ground = ground();
    let mut opener = ground.opener(ShardPlace::ONLY).unwrap();
    let mut store = opener.open(clock::wall_ms()).unwrap().store;
    ground.sql(
        "CREATE FUNCTION $.no_room() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN \
         RAISE ''no room'' USING ERRCODE = ''53100''; END'",
    );
    ground.sql("CREATE TRIGGER no_room BEFORE INSERT ON $.items FOR EACH ROW EXECUTE FUNCTION $.no_room()");
    let lost = store.commit(&[group(1, vec![put(1, 1)])]).unwrap_err();
    assert!(matches!(lost, CommitError::Lost(_)), "{lost}");
    drop(store);
    let mut store = opener.open(clock::wall_ms()).unwrap().store;
    for _ in 0..2 {
        assert_eq!(store.usage().unwrap().free, 0);
        store.renew().expect("the trial leaves the connection as it was");
    }
    drop(store);
    ground.sql("DROP TRIGGER no_room ON $.items");
    let mut store = opener.open(clock::wall_ms()).unwrap().store;
    assert_eq!(store.usage().unwrap().free, u64::MAX);
    assert_eq!(ground.sql("SELECT count(*) FROM $.items"), "0", "a trial was not undone");
    store.commit(&[group(1, vec![put(1, 1)])]).unwrap();
    assert_eq!(everything(&mut *store), [key(1, 1)]);
}

/// Whatever statistics the database has of its tables: none, or that they are empty. Statements are prepared
/// at the start, and never again.
#[test]
fn no_statement_goes_over_a_whole_table_whatever_is_known_of_it() {
    const ROWS: u64 = 5_000;
    for known in ["", "ANALYZE", "VACUUM ANALYZE"] {
        let ground = ground();
        drop(open(&ground).unwrap());
        for table in ["items", "rows", "ended"] {
            ground.sql(&format!("ALTER TABLE $.{table} SET (autovacuum_enabled = false)"));
            if !known.is_empty() {
                ground.sql(&format!("{known} $.{table}"));
            }
        }
        let mut store = open(&ground).unwrap().store;
        let identity = |n: u64| Identity::given(u128::from(n + 1).to_be_bytes());
        let item = |n: u64| Stored { given: Some(identity(n)), ..item(n + 1, 1) };
        let rows = |n: u64| IndexRows { identity: Some(identity(n)), customer: None };
        for chunk in 0..ROWS / 500 {
            let puts = (chunk * 500..(chunk + 1) * 500).map(|n| put_item(item(n), true)).collect();
            store.commit(&[group(chunk, puts)]).unwrap();
        }
        let ended = (0..ROWS).map(|n| remember(2, identity(n), n));
        store.commit(&[group(99, std::iter::once(begin(2, 1)).chain(ended).collect())]).unwrap();
        let wanted = (0..500).map(|n| wanted(identity(n * 10), &[2])).collect();
        let Loaded::Found(found) = store.load(&Load::Find(wanted)).unwrap() else { panic!("found") };
        assert!(found.iter().all(|found| found.item.is_some() && found.ended.is_some()));
        let places = (0..500).map(|n| (n, place(APP, n * 10 + 1, 1))).collect();
        assert!(
            matches!(store.load(&Load::Contents(places)), Ok(Loaded::Contents(found)) if found.len() == 500)
        );
        let read = part(&mut *store, key(2_000, 0), 4_000, 100);
        assert_eq!((read.0.len(), read.1), (100, Some(key(2_100, 1))));
        let gone = (0..500).map(|n| Op::Delete { place: place(APP, n * 10 + 1, 1), rows: rows(n * 10) });
        store.commit(&[group(100, gone.collect())]).unwrap();
        store.begin_reclaim().unwrap().expect("a job")().unwrap();
        // The server reports a session's figures when its connection ends.
        store.close().unwrap();
        let told = "SELECT sum(seq_tup_read), sum(idx_tup_fetch) > 3000 FROM pg_stat_user_tables \
                    WHERE schemaname = '$' AND relname IN ('items', 'rows', 'ended')";
        let begun = Instant::now();
        let mut seen = ground.sql(told);
        while !seen.ends_with("|t") && begun.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(50));
            seen = ground.sql(told);
        }
        assert_eq!(seen, "0|t", "rows read one after the other, where `{known}` was said");
    }
}

#[test]
fn the_wait_for_a_database_that_is_not_there_has_an_end() {
    let ground = ground();
    let mut config = ground.config();
    let begun = Instant::now();
    config.database.as_mut().unwrap().hosts = vec![("127.0.0.1".to_owned(), 1)];
    let refused = crate::open(&config, 32 << 20, false, 0).map(drop).expect_err("opened");
    let told = refused.to_string();
    assert!(
        told.contains("`postgres` at 127.0.0.1:1") && begun.elapsed() < Duration::from_secs(20),
        "{told}"
    );
}

#[test]
fn a_role_that_may_not_make_tables_is_told_how() {
    let ground = ground();
    ground.sql("CREATE ROLE $_weak LOGIN");
    let weak = ground.as_role("_weak");
    let told = refusal(&weak).to_string();
    assert!(told.contains("tidegate schema") && told.contains("42501"), "{told}");
    let schema = ground.config().database.unwrap().schema;
    ground.sql(&super::schema(&schema, 1));
    ground.sql("GRANT USAGE ON SCHEMA $ TO $_weak");
    ground.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA $ TO $_weak");
    let mut store = open(&weak).unwrap().store;
    store.commit(&[group(1, vec![put(1, 1)])]).unwrap();
    assert_eq!(everything(&mut *store), [key(1, 1)]);
}

#[test]
fn a_takeover_by_a_clock_that_is_behind_finds_what_lies_ahead() {
    // Other tests cover the result on every ground; this one checks that the rows are read, and within the
    // lease.
    let ground = ground();
    let mut store = open(&ground).unwrap().store;
    let mut first = group(1, vec![put(5_000, 1)]);
    first.marks.wall = 30_000;
    store.commit(&[first]).unwrap();
    store.close().unwrap();
    for behind in [5, 1_000, 25_000] {
        let opened = ground.elsewhere().open(30_000 - behind).unwrap();
        assert_eq!(opened.opened.marks.wall, 30_000);
        opened.store.close().unwrap();
    }
}

#[test]
fn whoever_has_it_knows_whose_it_was() {
    let ground = ground();
    let elsewhere = ground.elsewhere();
    let over = "UPDATE $.shards SET expires = clock_timestamp() - interval '1 ms'";
    assert_eq!(open(&ground).unwrap().takeover, Some(Takeover::Free), "it is new");
    assert_eq!(open(&ground).unwrap().takeover, Some(Takeover::Own));
    ground.sql(over);
    assert_eq!(open(&ground).unwrap().takeover, Some(Takeover::Own), "its lease was over, and it is its own");
    ground.sql(over);
    let opened = open(&elsewhere).unwrap();
    assert_eq!(opened.takeover, Some(Takeover::Expired));
    let lease = opened.store.lease().unwrap();
    assert!(lease.holds(clock::now().mono));
    opened.store.close().unwrap();
    assert!(!lease.holds(clock::now().mono), "what was let go of is nobody's");
    assert_eq!(open(&ground).unwrap().takeover, Some(Takeover::Free));
}

#[test]
fn whoever_stands_by_is_an_heir_for_as_long_as_it_does() {
    let ground = ground();
    let elsewhere = ground.elsewhere();
    let mut store = open(&ground).unwrap().store;
    assert_eq!(store.heir().unwrap(), None, "nobody else was seen");
    refusal(&elsewhere);
    let heir = store.heir().unwrap().expect("an heir");
    ground.sql("UPDATE $.nodes SET seen = clock_timestamp() - interval '6 s'");
    assert_eq!(store.heir().unwrap(), None, "it has not been heard of");
    refusal(&elsewhere);
    store.close().unwrap();
    let mut store = open(&elsewhere).unwrap().store;
    assert_eq!(ground.sql("SELECT owner FROM $.shards"), heir);
    assert_eq!(ground.sql("SELECT count(*) FROM $.nodes"), "0", "it stands by no longer");
    refusal(&ground);
    let former = store.heir().unwrap().expect("the former owner");
    assert_ne!(former, heir);
    // Its own row does not count.
    ground.sql(&format!("INSERT INTO $.nodes VALUES ('{heir}', clock_timestamp() + interval '1 s')"));
    assert_eq!(store.heir().unwrap(), Some(former));
}

/// A connection in the middle of a transaction that locks the store's row, as of a process that was frozen
/// there.
fn holding(ground: &PgGround, before: &str) -> DatabaseLink {
    let link = DatabaseLink::open(&ground.config().database.unwrap()).unwrap();
    link.execute("SET idle_in_transaction_session_timeout = 0").unwrap();
    for text in [before, "BEGIN", "SELECT 1 FROM $.shards FOR UPDATE"] {
        link.execute(&ground.named(text)).unwrap();
    }
    link
}

#[test]
fn a_former_owner_that_holds_the_row_is_cut_off_and_nobody_else() {
    let ground = ground();
    drop(open(&ground).unwrap());
    let former = holding(
        &ground,
        "UPDATE $.shards SET expires = clock_timestamp(), backend = pg_backend_pid(), \
         claimed = clock_timestamp()",
    );
    let begun = Instant::now();
    let store = open(&ground.elsewhere()).unwrap().store;
    assert!(begun.elapsed() >= Duration::from_secs(1), "it was not held: {:?}", begun.elapsed());
    assert!(former.ask("SELECT 1").is_err(), "its connection is ended");
    store.close().unwrap();
    // Any other holder keeps the row until it releases it.
    let stranger = holding(&ground, "SELECT 1");
    let letting_go = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(1_500));
        stranger.execute("COMMIT")
    });
    open(&ground).unwrap().store.close().unwrap();
    letting_go.join().unwrap().unwrap();
}
