//! Tests of several shards in one schema: each has its own rows, claim and lease, and the nodes know of each
//! other.

use super::connect::DatabaseLink;
use super::inspect::inspect;
use super::membership::{MemberView, Membership, SeenShard};
use crate::ground::{Ground, GroundKind, PgGround};
use crate::tests::{everything, group, key, part, put, put_indexed, unlocked};
use crate::{CommitError, OpenError, OpenStore, Opener, ShardPlace, Takeover};
use std::collections::BTreeSet;
use tidegate_common::check_line::Severity;
use tidegate_common::clock;

const COUNT: u16 = 2;

fn ground() -> PgGround {
    match GroundKind::Postgres.bare() {
        Ground::Postgres(ground) => ground,
        Ground::Disk(_) | Ground::Maps(_) => unreachable!("another ground"),
    }
}

fn opener(ground: &PgGround, number: u16) -> Opener {
    ground.opener(ShardPlace { number, count: COUNT }).unwrap()
}

/// A shard of two.
fn open(ground: &PgGround, number: u16) -> Result<OpenStore, OpenError> {
    unlocked(|| ground.opener(ShardPlace { number, count: COUNT })?.open(clock::wall_ms()))
}

fn refusal(opened: Result<OpenStore, OpenError>) -> OpenError {
    opened.map(drop).expect_err("opened")
}

fn membership(ground: &PgGround) -> Membership {
    Membership::new(&ground.config(), COUNT)
}

/// The owners, by shard.
fn owners(view: &MemberView) -> Vec<Option<&str>> {
    view.shards.iter().map(|shard| shard.owner.as_deref()).collect()
}

#[test]
fn shards_of_one_schema_have_their_own_rows_and_claims() {
    let ground = ground();
    let [mut first, mut second] = [0, 1].map(|number| open(&ground, number).unwrap());
    assert_ne!(first.identity, second.identity);
    assert_eq!((first.epoch, second.epoch), (Some(1), Some(1)));
    first.store.commit(&[group(1, vec![put(1, 1), put_indexed(2, 2, "c")])]).unwrap();
    second.store.commit(&[group(1, vec![put(1, 1), put(5, 3)])]).unwrap();
    second.store.commit(&[group(2, vec![put(6, 4)])]).unwrap();
    assert_eq!(everything(&mut *first.store), [key(1, 1), key(2, 2)]);
    assert_eq!(everything(&mut *second.store), [key(1, 1), key(5, 3), key(6, 4)]);
    first.store.commit(&[group(2, vec![crate::tests::delete(1, 1)])]).unwrap();
    assert_eq!(everything(&mut *first.store), [key(2, 2)]);
    assert_eq!(part(&mut *second.store, key(0, 0), 2, 9).0, [key(1, 1)]);
    assert_eq!(ground.sql("SELECT shard, commit_no, next_seq FROM $.shards ORDER BY 1"), "0|2|3\n1|2|3");
    assert_eq!(ground.sql("SELECT shard, count(*) FROM $.items GROUP BY 1 ORDER BY 1"), "0|1\n1|3");
    let whole = DatabaseLink::open(&ground.config().database.unwrap()).unwrap();
    let (whole, _) = whole.size(&ground.named("$")).unwrap();
    assert_eq!(first.store.usage().unwrap().used, whole / 2);
    // What one does with its store is nothing to the other.
    first.store.close().unwrap();
    let elsewhere = ground.elsewhere();
    assert!(matches!(refusal(open(&elsewhere, 1)), OpenError::Claimed { .. }));
    let mut first = open(&elsewhere, 0).unwrap();
    assert_eq!((first.takeover, everything(&mut *first.store)), (Some(Takeover::Free), vec![key(2, 2)]));
    second.store.renew().unwrap();
}

#[test]
fn all_shards_of_a_node_have_its_name_and_a_directory_each() {
    let ground = ground();
    let mut openers = [0, 1].map(|number| opener(&ground, number));
    let names: BTreeSet<String> = std::thread::scope(|scope| {
        let all: Vec<_> = openers
            .iter_mut()
            .map(|opener| {
                scope.spawn(|| {
                    drop(opener.open(clock::wall_ms()).unwrap());
                    opener.node().unwrap()
                })
            })
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let named: Vec<&String> = names.iter().collect();
    assert_eq!(ground.sql("SELECT DISTINCT owner FROM $.shards"), *named[0]);
    assert_eq!(named.len(), 1, "{names:?}");
    let files = |name: &str| {
        let files = std::fs::read_dir(ground.path().join(name)).unwrap();
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect::<BTreeSet<_>>()
    };
    assert_eq!(files(""), ["NODE", "shard-0", "shard-1"].map(str::to_owned).into());
    assert_eq!(files("shard-1"), ["LOCK"].map(str::to_owned).into());
    assert!(matches!(
        ground.opener(ShardPlace { number: 1, count: COUNT }).map(drop),
        Err(OpenError::Locked { .. })
    ));
    // Its former process is gone: it has its shards back at once.
    drop(openers);
    assert_eq!(open(&ground, 1).unwrap().takeover, Some(Takeover::Own));
}

#[test]
fn a_shard_that_was_taken_does_not_disturb_the_other_one() {
    let ground = ground();
    let [first, second] = [0, 1].map(|number| opener(&ground, number));
    let mut openers = [first, second];
    let mut stores = openers.each_mut().map(|opener| opener.open(clock::wall_ms()).unwrap().store);
    let name = openers[0].node().unwrap();
    ground.sql("UPDATE $.shards SET expires = clock_timestamp() - interval '1 ms' WHERE shard = 0");
    let elsewhere = ground.elsewhere();
    let mut taken = open(&elsewhere, 0).unwrap();
    assert_eq!(taken.takeover, Some(Takeover::Expired));
    let refused = stores[0].commit(&[group(1, vec![put(1, 1)])]).unwrap_err();
    assert!(matches!(refused, CommitError::Fenced), "{refused}");
    assert!(!ground.path().join("NODE").exists(), "the name is given up");
    assert_eq!(everything(&mut *stores[1]), []);
    taken.store.commit(&[group(2, vec![put(3, 3)])]).unwrap();
    // The node has another name, which its other shards follow.
    let renewed = openers[0].node().unwrap();
    assert_ne!(renewed, name);
    assert_eq!(openers[1].node().unwrap(), renewed);
    let owner = || ground.sql("SELECT owner FROM $.shards WHERE shard = 1");
    assert_eq!(owner(), name);
    stores[1].renew().unwrap();
    assert_eq!(owner(), renewed);
    stores[1].commit(&[group(3, vec![put(4, 4)])]).unwrap();
    let [_, second] = stores;
    drop((second, openers));
    assert_eq!(open(&ground, 1).unwrap().takeover, Some(Takeover::Own));
}

#[test]
fn a_node_that_has_lost_all_shards_has_one_new_name() {
    let ground = ground();
    let mut openers = [0, 1].map(|number| opener(&ground, number));
    let mut stores = openers.each_mut().map(|opener| opener.open(clock::wall_ms()).unwrap().store);
    let name = openers[0].node().unwrap();
    ground.sql("UPDATE $.shards SET expires = clock_timestamp() - interval '1 ms'");
    let elsewhere = ground.elsewhere();
    let others = [0, 1].map(|number| open(&elsewhere, number).unwrap());
    let mut names = BTreeSet::from([name]);
    for (store, opener) in stores.iter_mut().zip(&openers) {
        assert!(matches!(store.renew(), Err(CommitError::Fenced)));
        names.insert(opener.node().unwrap());
    }
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(!names.contains(&*ground.sql("SELECT DISTINCT owner FROM $.shards")));
    drop(others);
}

#[test]
fn another_number_of_shards_is_refused_with_the_way_out() {
    let ground = ground();
    let places = |count| ShardPlace { number: 0, count };
    let open = |count| unlocked(|| ground.elsewhere().opener(places(count))?.open(clock::wall_ms()));
    open(4).unwrap().store.close().unwrap();
    assert_eq!(ground.sql("SELECT shards, octet_length(key) FROM $.cluster"), "4|32");
    assert_eq!(ground.sql("SELECT count(*), count(DISTINCT identity), max(shard) FROM $.shards"), "4|4|3");
    let alone = ground.open(clock::wall_ms());
    for (wanted, opened) in [(1, alone), (2, open(2)), (5, open(5))] {
        let error = refusal(opened);
        assert!(matches!(error, OpenError::OtherShards { found: 4, .. }) && !error.is_passing(), "{error}");
        let said = ground.named(&format!(
            "schema `$` does not fit: it is laid out for 4 shards, and shards.count is {wanted}: set \
             shards.count = 4, or name another store.schema"
        ));
        assert_eq!(error.to_string(), said);
    }
    let error = membership(&ground).round(true).map(drop).unwrap_err();
    assert!(matches!(error, OpenError::OtherShards { found: 4, wanted: 2, .. }), "{error}");
    open(4).unwrap();
}

/// The tables as an earlier program has made them.
fn age(ground: &PgGround) {
    ground.sql("ALTER TABLE $.cluster DROP COLUMN key");
    ground.sql("UPDATE $.cluster SET format = 2");
}

#[test]
fn tables_of_the_former_format_go_on_for_one_shard() {
    let ground = ground();
    let mut store = ground.open(clock::wall_ms()).unwrap().store;
    store.commit(&[group(1, vec![put(1, 1)])]).unwrap();
    store.close().unwrap();
    age(&ground);
    let mut store = ground.open(clock::wall_ms()).unwrap().store;
    store.commit(&[group(2, vec![put(2, 2)])]).unwrap();
    assert_eq!(everything(&mut *store), [key(1, 1), key(2, 2)]);
    let told = |count| inspect(&ground.config().database.unwrap(), count);
    let faults = |count| {
        let lines = told(count).into_iter().filter(|line| line.severity == Severity::Fault);
        lines.map(|line| line.text).collect::<Vec<_>>()
    };
    assert!(faults(1).is_empty(), "{:?}", told(1));
    assert_eq!(ground.sql("SELECT format FROM $.cluster"), "2", "nothing is changed");
    let error = refusal(open(&ground.elsewhere(), 0));
    let said = "it is laid out for 1 shard, and shards.count is 2: set shards.count = 1, or name another";
    assert!(error.to_string().contains(said), "{error}");
    assert_eq!(faults(2), [error.to_string()]);
}

#[test]
fn an_examination_tells_of_all_shards() {
    let ground = ground();
    let told = |count| -> Vec<(Severity, String)> {
        let lines = inspect(&ground.config().database.unwrap(), count);
        lines.into_iter().map(|line| (line.severity, line.text)).collect()
    };
    let is_told = |level, text: &str| {
        let (all, text) = (told(COUNT), ground.named(text));
        assert!(all.contains(&(level, text.clone())), "{text}: {all:#?}");
        assert!(!all.iter().any(|(level, _)| *level == Severity::Fault), "{all:#?}");
    };
    let node = ground.elsewhere();
    let mut opener = opener(&node, 1);
    let store = opener.open(clock::wall_ms()).unwrap().store;
    let name = opener.node().unwrap();
    is_told(Severity::Good, "the tables in schema `$` are laid out for 2 shards");
    is_told(Severity::Good, "has all rights on the tables in schema `$`");
    is_told(Severity::Good, "no daemon owns these shards: 0");
    is_told(Severity::Good, &format!("{name} owns these shards: 1"));
    ground.sql("UPDATE $.shards SET owner = 'a/1', expires = clock_timestamp() - interval '1 ms'");
    is_told(Severity::Note, "the last owner of these shards, a/1, has lost its leases: 0, 1");
    let faults = |count| {
        let all = told(count).into_iter().filter(|(level, _)| *level == Severity::Fault);
        all.map(|(_, text)| text).collect::<Vec<_>>()
    };
    let others = faults(3);
    assert!(
        others.len() == 1 && others[0].contains("laid out for 2 shards, and shards.count is 3"),
        "{others:?}"
    );
    ground.sql("DELETE FROM $.shards WHERE shard = 1");
    let missing = faults(COUNT);
    assert!(
        missing.len() == 1 && missing[0].ends_with("table `shards` has no row of shard 1"),
        "{missing:?}"
    );
    drop(store);
}

#[test]
fn a_role_needs_to_read_the_key_where_there_are_several_shards() {
    let ground = ground();
    open(&ground, 0).unwrap().store.close().unwrap();
    ground.sql("CREATE ROLE $_reads LOGIN");
    ground.sql("GRANT USAGE ON SCHEMA $ TO $_reads");
    ground.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA $ TO $_reads");
    let reads = ground.as_role("_reads");
    let mut nodes = [membership(&ground), membership(&reads)];
    let keys = nodes.each_mut().map(|node| node.round(true).unwrap().key);
    assert!(keys[0] == keys[1] && keys[0] != [0; 32], "one key for all");
    ground.sql("REVOKE SELECT ON $.cluster FROM $_reads");
    ground.sql("GRANT SELECT (format, shards) ON $.cluster TO $_reads");
    let lines = inspect(&reads.config().database.unwrap(), COUNT);
    let named = "rights on the tables in schema `$` are missing: SELECT on `cluster`.";
    let is_told = lines.iter().any(|line| line.text.starts_with(&ground.named(named)));
    assert!(is_told, "{lines:#?}");
    let error = nodes[1].round(true).map(drop).unwrap_err();
    assert!(error.is_passing() && error.to_string().contains("42501"), "{error}");
}

/// Excluded: nodes that go on with the key of the former tables, and discard what the others send them.
#[test]
fn a_node_does_not_go_on_with_tables_that_were_made_anew() {
    let ground = ground();
    let mut node = membership(&ground);
    let former = node.round(true).unwrap().key;
    ground.sql("DROP SCHEMA $ CASCADE");
    let error = node.round(true).map(drop).unwrap_err();
    assert!(error.is_passing(), "another node may be about to restore them: {error}");
    let error = node.round(true).map(drop).unwrap_err();
    let is_named = error.to_string().contains(&ground.named("schema `$`"));
    assert!(!error.is_passing() && is_named, "{error}");
    assert_ne!(membership(&ground).round(true).unwrap().key, former, "a new start has the new one");
}

#[test]
fn nodes_see_each_other_and_who_has_which_shard() {
    let (ground, free) = (ground(), SeenShard { number: 0, owner: None, left_ms: 0 });
    let elsewhere = ground.elsewhere();
    let mut nodes = [membership(&ground), membership(&elsewhere)];
    let first = nodes[0].round(true).unwrap();
    assert_eq!(first.living, [&*first.own]);
    assert_eq!(first.shards, [free.clone(), SeenShard { number: 1, ..free.clone() }]);
    let second = nodes[1].round(true).unwrap();
    let mut both = [first.own.clone(), second.own.clone()];
    both.sort();
    assert_eq!((&second.living[..], second.key), (&both[..], first.key));
    assert_eq!(nodes[0].round(true).unwrap().living, both);
    // A node that cannot serve sees the same, and is not seen.
    let unable = nodes[1].round(false).unwrap();
    assert_eq!((&unable.own, &unable.living[..]), (&second.own, &[first.own.clone()][..]));
    assert_eq!(nodes[0].round(true).unwrap().living, [&*first.own]);
    assert_eq!(nodes[1].round(true).unwrap().living, both);
    nodes[1].leave();
    assert_eq!(ground.sql("SELECT name FROM $.nodes"), first.own);
    // It comes back by its next round.
    assert_eq!(nodes[1].round(true).unwrap().living, both);
    ground.sql(&format!("UPDATE $.nodes SET seen = seen - interval '6 s' WHERE name = '{}'", second.own));
    assert_eq!(nodes[0].round(true).unwrap().living, [&*first.own], "it was not heard of for 6 s");

    let mut store = open(&elsewhere, 1).unwrap().store;
    let seen = nodes[0].round(true).unwrap();
    assert_eq!(owners(&seen), [None, Some(&*second.own)]);
    assert!(seen.shards[0].left_ms == 0 && (1..=10_000).contains(&seen.shards[1].left_ms), "{seen:?}");
    // A claim neither takes the report of its node back, nor is it one.
    assert_eq!(ground.sql("SELECT count(*) FROM $.nodes"), "2");
    assert!(matches!(refusal(open(&ground, 1)), OpenError::Claimed { .. }));
    ground.sql("DELETE FROM $.nodes");
    assert!(matches!(refusal(open(&ground, 1)), OpenError::Claimed { .. }));
    assert_eq!((store.heir().unwrap(), &*ground.sql("SELECT count(*) FROM $.nodes")), (None, "0"));
    nodes[1].round(true).unwrap();
    assert_eq!(store.heir().unwrap(), None, "it is no heir of itself");
    nodes[0].round(true).unwrap();
    assert_eq!(store.heir().unwrap(), Some(first.own.clone()));
    ground.sql("UPDATE $.shards SET expires = clock_timestamp() - interval '1 ms'");
    let seen = nodes[0].round(true).unwrap();
    assert_eq!((owners(&seen), seen.shards[1].left_ms), (vec![None, Some(&*second.own)], 0));
    store.renew().unwrap();
    store.close().unwrap();
    assert_eq!(nodes[0].round(true).unwrap().shards[1], SeenShard { number: 1, ..free });
}

#[test]
fn a_node_with_a_new_name_is_not_seen_twice() {
    let ground = ground();
    let (mut node, mut other) = (membership(&ground), membership(&ground.elsewhere()));
    let former = node.round(true).unwrap().own;
    crate::node::forget(ground.path(), &former).unwrap();
    let view = node.round(true).unwrap();
    assert_ne!(view.own, former);
    assert_eq!(view.living, [&*view.own]);
    let mut both = vec![view.own, other.round(true).unwrap().own];
    both.sort();
    assert_eq!(other.round(true).unwrap().living, both);
    // Old reports go, also the own one while nothing is reported.
    ground.sql("UPDATE $.nodes SET seen = clock_timestamp() - interval '2 days'");
    assert_eq!(other.round(true).unwrap().living.len(), 1);
    assert_eq!(ground.sql("SELECT count(*) FROM $.nodes"), "1");
    ground.sql("UPDATE $.nodes SET seen = clock_timestamp() - interval '2 days'");
    other.round(false).unwrap();
    assert_eq!(ground.sql("SELECT count(*) FROM $.nodes"), "0");
}

#[test]
fn a_round_after_an_error_connects_again() {
    let ground = ground();
    let mut node = membership(&ground);
    node.round(true).unwrap();
    let sessions =
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'tidegate' AND query LIKE '%$\".nodes%'";
    ground.sql(&format!("SELECT pg_terminate_backend(pid) FROM ({sessions}) s"));
    let error = node.round(true).map(drop).unwrap_err();
    assert!(matches!(error, OpenError::Database { .. }) && error.is_passing(), "{error}");
    node.leave();
    assert_eq!(node.round(true).unwrap().living.len(), 1);
    ground.sql("DELETE FROM $.shards WHERE shard = 0");
    let error = node.round(true).map(drop).unwrap_err().to_string();
    assert!(error.ends_with("table `shards` has no row of shard 0"), "{error}");
}

#[test]
fn a_directory_with_a_store_on_the_disk_is_no_node() {
    let ground = ground();
    let data = ground.path().join("shard-1/db");
    std::fs::create_dir_all(&data).unwrap();
    std::fs::write(data.join("version"), "").unwrap();
    let errors = [
        refusal(open(&ground, 0)),
        membership(&ground).round(true).map(drop).unwrap_err(),
        refusal(ground.open(clock::wall_ms())),
    ];
    for error in errors {
        assert!(matches!(&error, OpenError::HoldsDisk { path } if path.ends_with("shard-1")), "{error}");
    }
    assert!(!ground.path().join("shard-0").exists(), "nothing is made");
}
