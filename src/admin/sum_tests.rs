//! Each rule of the sum, on two shards that differ in everything.

use super::super::state::tests::{facts, shard};
use super::super::state::{LinkState, ShardLine};
use super::*;
use std::collections::BTreeMap;
use tidegate_common::distribution::Recorder;
use tidegate_types::snapshot::Duplicates;
use tidegate_types::snapshot::{Application, Counters, Deliverability, ItemCounts, Snapshot};

fn named(name: &str) -> Application {
    Application { name: name.to_owned(), ..Application::default() }
}

fn parked(next_try_in_ms: u64, failures: u32, last_error: &str) -> Deliverability {
    Deliverability::Parked { next_try_in_ms, failures, last_error: last_error.to_owned() }
}

fn times(of: &[u64]) -> Distribution {
    let mut recorder = Recorder::of_durations();
    of.iter().for_each(|us| recorder.record(*us));
    recorder.snapshot()
}

/// Two applications of [`shard`] are here as well, in another state, and one more is here alone.
fn second() -> ShardState {
    let like = &shard().snapshot.applications[0];
    let mail = Application {
        delivery: parked(900, 1, "NACK"),
        paused: true,
        paused_until: Some(50),
        paused_customers: 2,
        rate: Some("5/s".into()),
        rate_until: Some(60),
        held: 3,
        held_until: Some(70),
        oldest_due_at: Some(80),
        ..like.clone()
    };
    let sms = Application { name: "sms".into(), delivery: parked(2_000, 9, "REFUSED"), ..like.clone() };
    let mut totals = Counters { received: 5, clock_forward: 2, ..Counters::default() };
    totals.duplicates[1] = Duplicates { dropped: 1, replaced: 2, accepted: 3, dead: 4 };
    totals.dead[4] = 1;
    totals.windows_closed[1] = 2;
    ShardState {
        line: ShardLine { shard: 1, state: "standby".into(), life: 1, ..ShardLine::default() },
        node: "machine/name".into(),
        snapshot: Snapshot {
            items: ItemCounts {
                waiting: 2,
                in_memory: 3,
                due: 4,
                in_flight: 5,
                parked: 6,
                windows: 7,
                next_due_at: Some(1_700_000_000_000),
                oldest_due_at: Some(1_600_000_000_000),
                loaded_until_at: 9,
                payload_bytes: 8,
            },
            in_flight_batches: 3,
            intake_paused: true,
            uncommitted: 4,
            longest_turn_us: 77,
            totals,
            applications: vec![named("fax"), mail, sms],
            applications_total: 3,
            dead_letters: Some(Application { total: 1, ..named("") }),
        },
        links: vec![LinkState { side: "ingest".into(), state: "standby".into(), ..LinkState::default() }],
        store: StoreState {
            kind: "disk".into(),
            commits: 10,
            last_commit_ms: 20,
            max_commit_ms: 30,
            bytes: 4,
            free_bytes: Some(7),
            queue: 5,
            lives: 1,
            takeovers: BTreeMap::from([("expired".to_owned(), 1), ("own".to_owned(), 3)]),
            lives_ended: BTreeMap::from([("fenced".to_owned(), 2)]),
            lease_remaining_ms: Some(9_000),
        },
        traffic: Traffic {
            lateness: times(&[1_000_000; 3]),
            held: times(&[1]),
            confirm: times(&[2]),
            batch_items: times(&[3]),
            batch_bytes: times(&[4]),
            commits: times(&[5]),
            connections_failed: [("ingest", 1), ("egress", 2)],
            prefetch: 30,
            parse_errors: 4,
            answers_unroutable: 5,
            near_miss_headers: 6,
        },
        draining: true,
    }
}

fn both() -> StateInput {
    let mut first = shard();
    first.traffic.lateness = times(&[400, 500, 600, 700, 800, 900, 950]);
    first.traffic.connections_failed = [("ingest", 10), ("egress", 20)];
    first.traffic.prefetch = 12;
    first.store.max_commit_ms = 90;
    first.snapshot.longest_turn_us = 33;
    first.snapshot.items = ItemCounts {
        in_memory: 30,
        due: 40,
        in_flight: 50,
        windows: 70,
        next_due_at: Some(1_650_000_000_000),
        oldest_due_at: Some(1_660_000_000_000),
        loaded_until_at: 12,
        payload_bytes: 80,
        ..first.snapshot.items
    };
    (first.snapshot.in_flight_batches, first.snapshot.uncommitted) = (30, 40);
    let mail = &mut first.snapshot.applications[0];
    (mail.paused_customers, mail.held, mail.held_until) = (20, 30, Some(65));
    (mail.rate, mail.rate_until, mail.oldest_due_at) = (Some("5/s".into()), Some(55), Some(85));
    (first.store.commits, first.store.last_commit_ms, first.store.queue) = (100, 25, 50);
    (first.traffic.held, first.traffic.confirm) = (times(&[10, 10]), times(&[20, 20, 20]));
    first.traffic.batch_items = times(&[30; 4]);
    first.traffic.batch_bytes = times(&[40; 5]);
    first.traffic.commits = times(&[50; 6]);
    first.traffic.parse_errors = 40;
    first.traffic.answers_unroutable = 50;
    first.traffic.near_miss_headers = 60;
    sum(&facts(), vec![first, second()])
}

/// The golden document of `state.rs` is made from this sum.
#[test]
fn one_shard_is_unchanged() {
    let ShardState { line, node, snapshot, links, store, traffic, draining } = shard();
    let alone = sum(&facts(), vec![shard()]);
    let want = StateInput {
        node,
        shards: vec![line],
        snapshot,
        links,
        elsewhere: vec![],
        missing_shards: vec![],
        map: None,
        store,
        traffic,
        draining,
        version: "0.0.0-test",
        started_at: 1_799_992_800_000,
        at: 1_800_000_000_000,
        uptime_ms: 7_200_000,
    };
    assert_eq!(alone, want);
}

#[test]
fn counts_are_added_and_the_worst_of_the_rest_counts() {
    let all = both();
    let want = ItemCounts {
        waiting: 42,
        in_memory: 33,
        due: 44,
        in_flight: 55,
        parked: 15,
        windows: 77,
        next_due_at: Some(1_650_000_000_000),
        oldest_due_at: Some(1_600_000_000_000),
        loaded_until_at: 9,
        payload_bytes: 88,
    };
    let snapshot = &all.snapshot;
    assert_eq!(snapshot.items, want);
    assert_eq!((snapshot.in_flight_batches, snapshot.uncommitted, snapshot.longest_turn_us), (33, 44, 77));
    assert!(snapshot.intake_paused && all.draining);
    let mut totals = Counters { received: 17, confirmed: 100, clock_forward: 2, ..Counters::default() };
    totals.duplicates[1] = Duplicates { dropped: 1, replaced: 2, accepted: 3, dead: 4 };
    totals.dead[4] = 8;
    totals.windows_closed[1] = 7;
    assert_eq!(snapshot.totals, totals);
    let numbers: Vec<u16> = all.shards.iter().map(|line| line.shard).collect();
    assert_eq!((numbers, all.node.as_str()), (vec![0, 1], "machine/name"));
    let links: Vec<&str> = all.links.iter().map(|link| link.state.as_str()).collect();
    assert_eq!(links, ["connected", "standby"], "by shard");
    assert_eq!((all.at, all.uptime_ms, all.version), (1_800_000_000_000, 7_200_000, "0.0.0-test"));
}

#[test]
fn applications_are_merged_by_name() {
    let all = both().snapshot;
    let names: Vec<&str> = all.applications.iter().map(|application| application.name.as_str()).collect();
    assert_eq!((names, all.applications_total), (vec!["fax", "mail", "sms"], 3));
    let mail = Application {
        name: "mail".into(),
        delivery: parked(900, 1, "NACK"),
        total: 28,
        paused: true,
        paused_until: Some(50),
        paused_customers: 22,
        rate: Some("5/s".into()),
        rate_until: Some(60),
        held: 33,
        held_until: Some(65),
        waiting: 8,
        due: 2,
        in_flight: 4,
        parked: 18,
        windows: 6,
        confirmed: 200,
        oldest_due_at: Some(80),
    };
    assert_eq!(all.applications[1], mail);
    assert_eq!(all.applications[2].delivery, parked(1_500, 9, "REFUSED"));
    assert_eq!(all.dead_letters.map(|dead| dead.total), Some(15));
}

#[test]
fn no_more_names_than_one_shard_may_list() {
    let crowd = |kind: &str, total: u64| {
        let list = (0..700).map(|n| named(&format!("{kind}{n:04}"))).collect();
        let snapshot = Snapshot { applications: list, applications_total: total, ..Snapshot::default() };
        ShardState { snapshot, ..ShardState::default() }
    };
    let of = |one, other| {
        let all = sum(&facts(), vec![one, other]).snapshot;
        (all.applications.len(), all.applications_total)
    };
    assert_eq!(of(crowd("a", 700), crowd("b", 700)), (1_000, 1_400));
    assert_eq!(of(crowd("a", 700), crowd("a", 700)), (700, 700));
    assert_eq!(of(crowd("a", 9_000), crowd("b", 700)), (1_000, 9_000), "at least");
}

#[test]
fn figures_of_the_stores() {
    let want = StoreState {
        kind: "disk".into(),
        commits: 110,
        last_commit_ms: 25,
        max_commit_ms: 90,
        bytes: 4_100,
        free_bytes: Some(0),
        queue: 55,
        lives: 3,
        takeovers: BTreeMap::from([("expired".to_owned(), 3), ("own".to_owned(), 3)]),
        lives_ended: BTreeMap::from([("database".to_owned(), 1), ("fenced".to_owned(), 2)]),
        lease_remaining_ms: Some(8_000),
    };
    assert_eq!(both().store, want);
}

#[test]
fn distributions_are_merged_and_no_quantile_is_a_mean() {
    let traffic = both().traffic;
    let all = times(&[400, 500, 600, 700, 800, 900, 950, 1_000_000, 1_000_000, 1_000_000]);
    assert_eq!(traffic.lateness, all);
    assert!((795..=805).contains(&all.p50) && all.p99 == 1_000_000, "{all:?}");
    let others =
        [&traffic.held, &traffic.confirm, &traffic.batch_items, &traffic.batch_bytes, &traffic.commits];
    assert_eq!(others.map(|of| (of.count, of.max)), [(3, 10), (4, 20), (5, 30), (6, 40), (7, 50)]);
    assert_eq!(traffic.connections_failed, [("ingest", 11), ("egress", 22)]);
    let Traffic { prefetch, parse_errors, answers_unroutable, near_miss_headers, .. } = traffic;
    assert_eq!((prefetch, parse_errors, answers_unroutable, near_miss_headers), (42, 44, 55, 66));
}

/// A shard on standby holds nothing that is not in memory.
#[test]
fn a_shard_without_a_store_says_nothing_of_what_is_loaded() {
    let mut first = shard();
    first.snapshot.items.loaded_until_at = 12;
    let without = || ShardState::default();
    let of = |shards| sum(&facts(), shards).snapshot.items.loaded_until_at;
    assert_eq!(of(vec![first.clone(), without()]), 12);
    assert_eq!(of(vec![without(), first]), 12);
    assert_eq!(of(vec![without(), without()]), 0);
}

#[test]
fn without_a_shard_there_is_nothing() {
    let none = sum(&facts(), Vec::new());
    assert!(none.shards.is_empty() && none.node.is_empty() && none.snapshot == Snapshot::default());
}
