//! The engine's numbers of several shards as those of one. Pure. What counts of values that cannot be added
//! is said in [`super::sum`].

use std::collections::BTreeMap;
use tidegate_types::snapshot::{Application, Counters, Deliverability, ItemCounts, Snapshot};

/// Adds the numbers of another shard.
pub(super) fn add_snapshot(all: &mut Snapshot, more: Snapshot) {
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
        rates_forgotten,
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
    all.rates_forgotten += rates_forgotten;
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

/// The lesser of those that there are.
pub(super) fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

/// When the last of those that apply ends; `None` if one of them has no end, or none applies.
fn last_end(all: [(bool, Option<u64>); 2]) -> Option<u64> {
    let ends: Option<Vec<u64>> =
        all.into_iter().filter(|(applies, _)| *applies).map(|(_, end)| end).collect();
    ends?.into_iter().max()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The engine's own counters: one that is missing in the sum would be 1 here.
    #[test]
    fn no_counter_is_left_out() {
        let ones = |value: &serde_json::Value| serde_json::from_value::<Counters>(value.clone()).unwrap();
        fn fill(value: &mut serde_json::Value) {
            if let Some(members) = value.as_object_mut() {
                members.values_mut().for_each(fill);
            } else {
                *value = 1.into();
            }
        }
        let mut value = serde_json::to_value(Counters::default()).unwrap();
        fill(&mut value);
        let mut all = ones(&value);
        add_counters(&mut all, &ones(&value));
        let text = serde_json::to_string(&all).unwrap();
        assert_eq!(text.matches(":1").count(), 2, "the steps of the clock, which each shard notices: {text}");
    }

    #[test]
    fn the_gravest_and_the_last_count() {
        assert_eq!(gravest(Deliverability::Open, Deliverability::Unproven), Deliverability::Unproven);
        assert_eq!(gravest(Deliverability::Open, Deliverability::Open), Deliverability::Open);
        assert_eq!(last_end([(true, Some(5)), (true, Some(9))]), Some(9));
        assert_eq!(last_end([(true, None), (true, Some(9))]), None, "one without an end lasts longest");
        assert_eq!(last_end([(false, None), (true, Some(9))]), Some(9));
    }
}
