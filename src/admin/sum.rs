//! The state of a daemon from the states of its shards. Pure. With one shard it is that shard's.
//!
//! Counts are added. Of values that cannot be added, the one that an operator has to know counts: the longest
//! time, the earliest due, the least room, the gravest state.

use super::state::{Application, NodeFacts, ShardState, StateInput, StoreState};
use super::traffic::Traffic;
use std::collections::BTreeMap;
use tidegate_common::distribution::Distribution;
use tidegate_types::snapshot::{Counters, Deliverability, ItemCounts, Snapshot};

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
        // It is the node's, and no sum.
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

fn add_snapshot(all: &mut Snapshot, more: Snapshot) {
    let Snapshot {
        items,
        in_flight_batches,
        intake_paused,
        uncommitted,
        longest_turn_us,
        totals,
        applications,
        applications_total,
        dead_letters,
    } = more;
    add_items(&mut all.items, &items);
    all.in_flight_batches += in_flight_batches;
    // Some producer's requests wait.
    all.intake_paused |= intake_paused;
    all.uncommitted += uncommitted;
    all.longest_turn_us = all.longest_turn_us.max(longest_turn_us);
    add_counters(&mut all.totals, &totals);
    // Each shard lists its first names, so the first names of all are among them, with all their counts.
    let listed = [&all.applications, &applications].map(|list| list.len() as u64);
    let is_whole = listed == [all.applications_total, applications_total];
    let mut named = BTreeMap::new();
    for application in std::mem::take(&mut all.applications).into_iter().chain(applications) {
        merge_into(named.entry(application.name.clone()).or_insert(None), application);
    }
    // Names that a shard does not list may be those of another shard: the total is then a lower bound.
    let at_least = if is_whole { 0 } else { all.applications_total.max(applications_total) };
    all.applications_total = at_least.max(named.len() as u64);
    all.applications = named.into_values().flatten().take(Snapshot::MAX_APPLICATIONS).collect();
    if let Some(more) = dead_letters {
        merge_into(&mut all.dead_letters, more);
    }
}

fn add_items(all: &mut ItemCounts, more: &ItemCounts) {
    let ItemCounts {
        waiting,
        in_memory,
        due,
        in_flight,
        parked,
        windows,
        next_due_at,
        oldest_due_at,
        loaded_until_at,
        payload_bytes,
    } = more;
    all.waiting += waiting;
    all.in_memory += in_memory;
    all.due += due;
    all.in_flight += in_flight;
    all.parked += parked;
    all.windows += windows;
    all.next_due_at = least(all.next_due_at, *next_due_at);
    all.oldest_due_at = least(all.oldest_due_at, *oldest_due_at);
    // Below the lowest of them, all items of every shard are in memory. 0 is that of a shard without a store.
    let known = [all.loaded_until_at, *loaded_until_at].into_iter().filter(|at| *at > 0);
    all.loaded_until_at = known.min().unwrap_or_default();
    all.payload_bytes += payload_bytes;
}

fn add_counters(all: &mut Counters, more: &Counters) {
    let Counters {
        received,
        redelivered,
        accepted,
        rejected,
        cancelled,
        replaced,
        given_back,
        duplicates,
        tries_dropped,
        tries_taken,
        confirmed,
        batches_confirmed,
        batches_published,
        returned,
        nacked,
        refused,
        unknown,
        dead,
        dead_confirmed,
        windows_closed,
        windows_in_parts,
        commits,
        clock_forward,
        clock_backward,
    } = more;
    all.received += received;
    all.redelivered += redelivered;
    all.accepted += accepted;
    all.rejected += rejected;
    all.cancelled += cancelled;
    all.replaced += replaced;
    all.given_back += given_back;
    for (all, more) in all.duplicates.iter_mut().zip(duplicates) {
        all.dropped += more.dropped;
        all.replaced += more.replaced;
        all.accepted += more.accepted;
        all.dead += more.dead;
    }
    all.tries_dropped += tries_dropped;
    all.tries_taken += tries_taken;
    all.confirmed += confirmed;
    all.batches_confirmed += batches_confirmed;
    all.batches_published += batches_published;
    all.returned += returned;
    all.nacked += nacked;
    all.refused += refused;
    all.unknown += unknown;
    all.dead.iter_mut().zip(dead).for_each(|(all, more)| *all += more);
    all.dead_confirmed += dead_confirmed;
    all.windows_closed.iter_mut().zip(windows_closed).for_each(|(all, more)| *all += more);
    all.windows_in_parts += windows_in_parts;
    all.commits += commits;
    // Each shard notices a step for itself.
    all.clock_forward = (*clock_forward).max(all.clock_forward);
    all.clock_backward = (*clock_backward).max(all.clock_backward);
}

/// One application, or the dead letters, as several shards have it.
fn merge_into(all: &mut Option<Application>, more: Application) {
    let Some(all) = all else {
        *all = Some(more);
        return;
    };
    let Application {
        name: _,
        delivery,
        total,
        paused,
        paused_until,
        paused_customers,
        rate,
        rate_until,
        held,
        held_until,
        waiting,
        due,
        in_flight,
        parked,
        windows,
        confirmed,
        oldest_due_at,
    } = more;
    let delivered = std::mem::take(&mut all.delivery);
    all.delivery = gravest(delivered, delivery);
    all.total += total;
    // It is paused until the last of its pauses has ended; one without an end lasts longest.
    let ends = [(all.paused, all.paused_until), (paused, paused_until)];
    all.paused_until = last_end(ends);
    all.paused |= paused;
    all.paused_customers += paused_customers;
    // A rate that a command has set may be known to some shards only, until it has reached all.
    all.rate_until = last_end([(all.rate.is_some(), all.rate_until), (rate.is_some(), rate_until)]);
    all.rate = std::mem::take(&mut all.rate).or(rate);
    all.held += held;
    all.held_until = least(all.held_until, held_until);
    all.waiting += waiting;
    all.due += due;
    all.in_flight += in_flight;
    all.parked += parked;
    all.windows += windows;
    all.confirmed += confirmed;
    all.oldest_due_at = least(all.oldest_due_at, oldest_due_at);
}

/// Parked before unproven before open. Of two parked ones: the earliest next try, and the most failures with
/// their error.
fn gravest(one: Deliverability, other: Deliverability) -> Deliverability {
    use Deliverability::{Open, Parked, Unproven};
    match (one, other) {
        (
            Parked { next_try_in_ms: one_try, failures: one_failures, last_error: one_error },
            Parked { next_try_in_ms, failures, last_error },
        ) => {
            let (failures, last_error) =
                if failures > one_failures { (failures, last_error) } else { (one_failures, one_error) };
            Parked { next_try_in_ms: one_try.min(next_try_in_ms), failures, last_error }
        }
        (parked @ Parked { .. }, Open | Unproven) | (Open | Unproven, parked @ Parked { .. }) => parked,
        (Unproven, Open | Unproven) | (Open, Unproven) => Unproven,
        (Open, Open) => Open,
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

fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

/// When the last of those that apply ends; `None` if one of them has no end, or none applies.
fn last_end(all: [(bool, Option<u64>); 2]) -> Option<u64> {
    let ends: Option<Vec<u64>> =
        all.into_iter().filter(|(applies, _)| *applies).map(|(_, end)| end).collect();
    ends?.into_iter().max()
}

#[cfg(test)]
#[path = "sum_tests.rs"]
mod tests;
