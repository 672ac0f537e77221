//! Which shards of a database this node takes, and which it gives up. Pure but for what it remembers from one
//! round to the next.
//!
//! Each node decides for itself, from what the database says at one moment. It takes free shards up to its
//! equal part, if no other node has fewer, and gives one up if it has the most and another node at least two
//! fewer. So the nodes come to nearly equal numbers, and then no shard moves any more.
//!
//! Two nodes never take the same shard, since the database decides. A shard is never without an owner for
//! long: one that stays free is taken by whoever sees it, whatever its part.

use std::collections::{BTreeMap, BTreeSet};
use tidegate_store::{MemberView, SeenShard};

/// Most shards that are taken in one round: another node may have started at the same time.
const CLAIMED_AT_A_TIME: usize = 2;
/// For how long a shard stays free for the node with the fewest, ms.
const LEFT_TO_THE_FEWEST_MS: u64 = 4_000;
/// After how long a free shard is taken beyond the node's part, ms: the others that count as living do not
/// take it.
const LEFT_TO_OTHERS_MS: u64 = 8_000;
/// How long a node is seen before shards are given up for it, ms: it may lose its database again at once.
const SETTLED_NODE_MS: u64 = 5_000;
/// How long a shard stays with this node at least, ms.
const SETTLED_SHARD_MS: u64 = 10_000;

/// After how long a shard that was to be given up and is still here no longer keeps others here, ms.
const LEAVES_WITHIN_MS: u64 = 60_000;

/// What this node can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeAbility {
    /// It reaches no broker.
    None,
    /// Something of it has failed: it takes what no other node takes.
    Spare,
    /// It takes its part.
    Full,
}

/// A shard, as this process knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnShard {
    /// Its store is open here.
    Held,
    /// It can be claimed.
    Possible,
    /// It has failed here, and is not tried yet.
    Failed,
}

/// What this node does in one round.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BalanceRound {
    /// Shards to be claimed.
    pub(super) claims: Vec<u16>,
    /// A shard to be given up, after it has drained.
    pub(super) gives_up: Option<u16>,
}

/// What is remembered of earlier rounds. All moments are monotonic ms.
#[derive(Debug, Default)]
pub(super) struct Balance {
    /// Since when each other node has been living.
    nodes: BTreeMap<String, u64>,
    /// Since when each free shard has been free.
    free: BTreeMap<u16, u64>,
    /// Since when this node has had each of its shards.
    held: BTreeMap<u16, u64>,
    /// The shard that is being given up, and since when.
    leaving: Option<(u16, u64)>,
    /// Shards that were to be given up and are still here.
    stuck: BTreeSet<u16>,
    /// Since when this node has too many and waits for another one, which is to give one up first.
    waits_since: Option<u64>,
}

impl Balance {
    /// Decides about one round. `own`: what this process knows of a shard.
    pub(super) fn decide(
        &mut self,
        view: &MemberView,
        own: impl Fn(u16) -> OwnShard,
        ability: NodeAbility,
        now: u64,
    ) -> BalanceRound {
        self.note(view, |shard| own(shard) == OwnShard::Held, now);
        let counts = self.counts_of_others(view);
        let may_try = |shard| own(shard) == OwnShard::Possible;
        let claims = match ability {
            NodeAbility::None => Vec::new(),
            NodeAbility::Spare | NodeAbility::Full => self.claims(view, &counts, (ability, &may_try), now),
        };
        let gives_up = if claims.is_empty() { self.surplus(view, &counts, now) } else { None };
        self.leaving = gives_up.map(|shard| (shard, now)).or(self.leaving);
        BalanceRound { claims, gives_up }
    }

    /// Notes what has changed since the last round.
    fn note(&mut self, view: &MemberView, holds: impl Fn(u16) -> bool, now: u64) {
        let others: Vec<&String> = view.living.iter().filter(|node| **node != view.own).collect();
        self.nodes.retain(|node, _| others.contains(&node));
        for node in others {
            self.nodes.entry(node.clone()).or_insert(now);
        }
        for SeenShard { number, owner, left_ms } in &view.shards {
            if holds(*number) {
                self.free.remove(number);
                self.held.entry(*number).or_insert(now);
                continue;
            }
            self.held.remove(number);
            // What an earlier process of this node had need not wait for the end of its lease.
            if *left_ms == 0 || owner.as_ref() == Some(&view.own) {
                self.free.entry(*number).or_insert(now);
            } else {
                self.free.remove(number);
            }
        }
        let held = &self.held;
        self.stuck.retain(|shard| held.contains_key(shard));
        if let Some((shard, _)) = self.leaving.take_if(|(_, since)| now >= *since + LEAVES_WITHIN_MS) {
            self.stuck.insert(shard);
        }
        self.leaving.take_if(|(shard, _)| !held.contains_key(shard));
    }

    /// How many shards each other living node has.
    fn counts_of_others(&self, view: &MemberView) -> BTreeMap<String, usize> {
        let mut counts: BTreeMap<String, usize> = self.nodes.keys().map(|node| (node.clone(), 0)).collect();
        for SeenShard { owner, left_ms, .. } in &view.shards {
            let count = owner.as_ref().filter(|_| *left_ms > 0).and_then(|owner| counts.get_mut(owner));
            count.into_iter().for_each(|count| *count += 1);
        }
        counts
    }

    /// The free shards that this node takes.
    fn claims(
        &self,
        view: &MemberView,
        counts: &BTreeMap<String, usize>,
        (ability, may_try): (NodeAbility, &impl Fn(u16) -> bool),
        now: u64,
    ) -> Vec<u16> {
        let (own, nodes) = (self.held.len(), counts.len() + 1);
        let part = view.shards.len().div_ceil(nodes);
        let is_fewest = counts.values().all(|count| own <= *count);
        let room = if ability == NodeAbility::Full { part.saturating_sub(own) } else { 0 };
        // Nodes that start together begin at different shards.
        let begin = counts.keys().filter(|node| **node < view.own).count() * view.shards.len() / nodes;
        let (before, from) = view.shards.split_at(begin.min(view.shards.len()));
        let mut claims = Vec::new();
        for shard in from.iter().chain(before) {
            let since = self.free.get(&shard.number).filter(|_| may_try(shard.number));
            let Some(since) = since else { continue };
            let waited = now.saturating_sub(*since);
            let has_room = claims.len() < room && (is_fewest || waited >= LEFT_TO_THE_FEWEST_MS);
            if claims.len() < CLAIMED_AT_A_TIME && (has_room || waited >= LEFT_TO_OTHERS_MS) {
                claims.push(shard.number);
            }
        }
        claims
    }

    /// The shard that is given up: the last one that has been here for long enough, while none is free and no
    /// other node has more. Of several with the most, the first by name gives one up; the others would give
    /// up theirs at the same moment, and wait for it for a minute.
    fn surplus(&mut self, view: &MemberView, counts: &BTreeMap<String, usize>, now: u64) -> Option<u16> {
        let is_settled = |node: &str| {
            self.nodes.get(node).is_some_and(|since| now.saturating_sub(*since) >= SETTLED_NODE_MS)
        };
        let settled = counts.iter().filter(|(node, _)| is_settled(node));
        let fewest = settled.map(|(_, count)| *count).min()?;
        let own = self.held.len();
        // One that stays free for long does so because it fails, and keeps no other one here.
        let is_settling = self.free.values().any(|since| now.saturating_sub(*since) < LEFT_TO_OTHERS_MS);
        if own < fewest + 2 {
            self.waits_since = None;
        }
        if self.leaving.is_some() || is_settling || own < fewest + 2 {
            return None;
        }
        let is_first = counts.iter().all(|(node, count)| *count < own || (*count == own && view.own < *node));
        if is_first {
            self.waits_since = None;
        } else if now.saturating_sub(*self.waits_since.get_or_insert(now)) < LEAVES_WITHIN_MS {
            return None;
        }
        let last = self.held.iter().rev().filter(|(shard, _)| !self.stuck.contains(shard));
        let mut settled = last.filter(|(_, since)| now.saturating_sub(**since) >= SETTLED_SHARD_MS);
        settled.next().map(|(shard, _)| *shard)
    }
}

#[cfg(test)]
#[path = "balance_tests.rs"]
mod tests;
