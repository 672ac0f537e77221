//! The state of a daemon from the states of its shards. Pure. With one shard it is that shard's.
//!
//! Counts are added. Of values that cannot be added, the one that an operator has to know counts: the longest
//! time, the earliest due, the least room, the gravest state.

use super::added::{add_snapshot, least};
use super::state::{NodeFacts, ShardState, StateInput, StoreState};
use super::traffic::Traffic;
use tidegate_common::distribution::Distribution;

/// The sum over these shards, in the order of their numbers.
pub fn sum(facts: &NodeFacts, shards: Vec<ShardState>) -> StateInput {
    let lines = shards.iter().map(|shard| shard.line.clone()).collect();
    // A shard that has not tried to open its store does not know its name yet.
    let node = shards.iter().map(|shard| &shard.node).find(|name| !name.is_empty()).cloned();
    let mut shards = shards.into_iter();
    let mut all = shards.next().unwrap_or_default();
    for ShardState { line: _, node: _, snapshot, links, store, traffic, draining } in shards {
        add_snapshot(&mut all.snapshot, snapshot);
        all.links.extend(links);
        add_store(&mut all.store, store);
        add_traffic(&mut all.traffic, &traffic);
        // A stop is ordered of all shards: when one drains, the daemon does.
        all.draining |= draining;
    }
    StateInput {
        node: node.unwrap_or_default(),
        shards: lines,
        snapshot: all.snapshot,
        links: all.links,
        // These are the node's, and no sums.
        elsewhere: Vec::new(),
        missing_shards: Vec::new(),
        map: None,
        store: all.store,
        traffic: all.traffic,
        draining: all.draining,
        version: facts.version,
        started_at: facts.started.wall,
        at: facts.now.wall,
        uptime_ms: facts.uptime_ms(),
    }
}

fn add_store(all: &mut StoreState, more: StoreState) {
    let StoreState {
        kind: _,
        commits,
        last_commit_ms,
        max_commit_ms,
        bytes,
        free_bytes,
        queue,
        lives,
        takeovers,
        lives_ended,
        lease_remaining_ms,
    } = more;
    all.commits += commits;
    all.last_commit_ms = all.last_commit_ms.max(last_commit_ms);
    all.max_commit_ms = all.max_commit_ms.max(max_commit_ms);
    all.bytes += bytes;
    all.free_bytes = least(all.free_bytes, free_bytes);
    all.queue += queue;
    all.lives += lives;
    takeovers.into_iter().for_each(|(word, count)| *all.takeovers.entry(word).or_default() += count);
    lives_ended.into_iter().for_each(|(word, count)| *all.lives_ended.entry(word).or_default() += count);
    all.lease_remaining_ms = least(all.lease_remaining_ms, lease_remaining_ms);
}

fn add_traffic(all: &mut Traffic, more: &Traffic) {
    let Traffic {
        lateness,
        held,
        confirm,
        batch_items,
        batch_bytes,
        commits,
        connections_failed,
        prefetch,
        parse_errors,
        answers_unroutable,
        near_miss_headers,
    } = more;
    let merge = |all: &mut Distribution, more| *all = Distribution::merged([&*all, more]);
    merge(&mut all.lateness, lateness);
    merge(&mut all.held, held);
    merge(&mut all.confirm, confirm);
    merge(&mut all.batch_items, batch_items);
    merge(&mut all.batch_bytes, batch_bytes);
    merge(&mut all.commits, commits);
    for ((_, all), (_, more)) in all.connections_failed.iter_mut().zip(connections_failed) {
        *all += more;
    }
    all.prefetch += prefetch;
    all.parse_errors += parse_errors;
    all.answers_unroutable += answers_unroutable;
    all.near_miss_headers += near_miss_headers;
}

#[cfg(test)]
#[path = "sum_tests.rs"]
mod tests;
