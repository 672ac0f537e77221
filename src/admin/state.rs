//! The state document of `/api/v1/state`: the engine's snapshot, and beside it the daemon's other figures.
//! Pure.
//!
//! The engine's part and the rule for names are in [`tidegate_types::snapshot`]; nothing is copied or renamed
//! here. The document contains no payloads, customers or secrets.

use super::added::add_snapshot;
use super::health::NodeHealth;
use super::traffic::Traffic;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
pub(crate) use tidegate_types::snapshot::Application;
use tidegate_types::snapshot::Snapshot;
use tidegate_types::Now;

/// Values of [`Document::state`] and [`ShardLine::state`], the gravest first.
pub(super) const STATES: [&str; 8] =
    ["draining", "waiting", "not_ready", "blocked", "stuck", "standby", "paused", "running"];

/// What the daemon knows of itself, whatever its shards do.
#[derive(Clone, Copy, Debug)]
pub struct NodeFacts {
    /// Version of this binary.
    pub version: &'static str,
    /// Start of the process.
    pub started: Now,
    /// The present moment.
    pub now: Now,
}

impl NodeFacts {
    /// Time since the start by the monotonic clock, ms.
    pub(super) fn uptime_ms(&self) -> u64 {
        self.now.mono.saturating_sub(self.started.mono)
    }
}

/// One shard in the document: who has its store, and what it does in this daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShardLine {
    /// Its number, as in the table `shards` of a database; the first is 0.
    pub shard: u16,
    /// The state of this shard in this daemon, in the words of [`Document::state`].
    pub state: String,
    /// The node that has the store, as of the last attempt to open it; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Number of this node's claim of the store; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Time until the owner's lease ends unless renewed, as this node knows it; absent if no other daemon can
    /// take the store, or the owner is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// Where several nodes share the shards: why this node does not have the store, which nobody has as far
    /// as it knows; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Number of times this process has opened the store.
    pub life: u64,
    /// Its ingest queue.
    pub queue: String,
    /// Its items that have not ended and are not parked; 0 while this node does not have the store.
    pub waiting: u64,
}

/// The answer of one shard to [`super::Query::State`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShardState {
    /// What the document says of this shard alone.
    pub line: ShardLine,
    /// The name of this node, as the store knows it; empty while unknown.
    pub node: String,
    /// The engine's numbers.
    pub snapshot: Snapshot,
    /// The ingest and the egress connection.
    pub links: Vec<LinkState>,
    /// Counters of the store.
    pub store: StoreState,
    /// The figures that only the metrics show.
    pub traffic: Traffic,
    /// The shard is shutting down.
    pub draining: bool,
}

impl StateInput {
    /// Adds a shard that another node has, as that one tells of it.
    pub fn add_elsewhere(&mut self, line: ShardLine, snapshot: Snapshot) {
        let own = self.shards.iter_mut().find(|own| own.shard == line.shard);
        own.into_iter().for_each(|own| own.clone_from(&line));
        self.elsewhere.push(snapshot);
    }
}

impl ShardState {
    /// Sets the word for the state of this shard, from its own health.
    #[must_use]
    pub fn judged(mut self, facts: &NodeFacts, health: &NodeHealth) -> Self {
        let times = (facts.now.wall, facts.uptime_ms());
        let word = overall(self.draining, &self.links, &self.snapshot, times, health);
        word.clone_into(&mut self.line.state);
        self
    }
}

/// The state of the whole daemon: the sum over its shards ([`super::sum`]).
#[derive(Clone, Debug, PartialEq)]
pub struct StateInput {
    /// The name of this node; empty while unknown.
    pub node: String,
    /// The shards, by their numbers.
    pub shards: Vec<ShardLine>,
    /// The engine's numbers.
    pub snapshot: Snapshot,
    /// The ingest and the egress connection of each shard.
    pub links: Vec<LinkState>,
    /// The engine's numbers of the shards that other nodes have.
    pub elsewhere: Vec<Snapshot>,
    /// Shards of which nobody tells, since no node has them, or theirs does not answer.
    pub missing_shards: Vec<u16>,
    /// Counters of the map, if there are several shards.
    pub map: Option<MapState>,
    /// Counters of the store.
    pub store: StoreState,
    /// The figures that only the metrics show.
    pub traffic: Traffic,
    /// The daemon is shutting down.
    pub draining: bool,
    /// Version of this binary.
    pub version: &'static str,
    /// Start of the process, UTC ms.
    pub started_at: u64,
    /// Moment of the snapshot, UTC ms.
    pub at: u64,
    /// Time since the start by the monotonic clock, ms.
    pub uptime_ms: u64,
}

/// One connection to a broker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkState {
    /// `ingest` or `egress`.
    pub side: String,
    /// One of [`LinkState::STATES`].
    pub state: String,
    /// Details where there are any: address, last error, time of the next attempt. No secrets.
    pub detail: String,
    /// What is not as it should be although it is connected, such as an intake that stands still; a sentence
    /// each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl LinkState {
    /// Values of its state.
    pub const STATES: [&str; 8] =
        ["connecting", "connected", "paused", "standby", "blocked", "waiting", "down", "closed"];
}

/// The connections of one side that are in one state, with the same notes, for a display: with several shards
/// there are many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkGroup<'d> {
    /// The first of them, with its details.
    pub(crate) first: &'d LinkState,
    /// Number of connections in the state.
    count: usize,
    /// Number of connections of the side.
    of: usize,
}

impl LinkGroup<'_> {
    /// The state of them, with the details of the first after `separator`; and how many they are, where the
    /// side has several connections.
    pub(crate) fn text(&self, separator: &str) -> String {
        let LinkGroup { first: LinkState { side: _, state, detail, notes }, count, of } = self;
        let many = if *of > 1 { format!(" ({count} of {of})") } else { String::new() };
        let told = [detail].into_iter().filter(|text| !text.is_empty()).chain(notes);
        let told = told.map(String::as_str).collect::<Vec<_>>().join("; ");
        let told = if told.is_empty() { told } else { format!("{separator}{told}") };
        format!("{state}{many}{told}")
    }
}

/// Counters of the map, which leads requests straight to the queues of their homes, since the start of the
/// process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MapState {
    /// Requests that the sharder has forwarded.
    pub forwarded: u64,
    /// Requests that came, as a whole or in part, to a shard that is not their home, and were forwarded.
    pub misplaced: u64,
    /// Bindings made for applications.
    pub bound: u64,
    /// Wrong bindings taken away because a request came by them.
    pub corrected: u64,
    /// Bindings that the broker refused, or did not confirm in time.
    pub bind_failures: u64,
}

impl MapState {
    /// The counters in words, for a display.
    pub(crate) fn text(&self) -> String {
        let MapState { forwarded, misplaced, bound, corrected, bind_failures } = self;
        format!(
            "forwarded: {forwarded} by the sharder, {misplaced} by shards; \
             bindings: {bound} made, {corrected} corrected, {bind_failures} failed"
        )
    }
}

/// Counters of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreState {
    /// `disk`, `memory` or `postgres`.
    pub kind: String,
    /// Durable commits since the start.
    pub commits: u64,
    /// Duration of the last commit.
    pub last_commit_ms: u64,
    /// Longest commit since the start.
    pub max_commit_ms: u64,
    /// Size on disk.
    pub bytes: u64,
    /// Free space on its file system, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Commits and reads waiting for the store's thread.
    pub queue: u64,
    /// Number of times it was opened since the start.
    pub lives: u64,
    /// Those of them in which another daemon could have had it, by the reason this one could take it.
    pub takeovers: BTreeMap<String, u64>,
    /// Number of times it was lost since the start, by cause.
    pub lives_ended: BTreeMap<String, u64>,
    /// Time until the lease ends unless renewed; absent if no other daemon can take the store, or there is no
    /// store at present.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_remaining_ms: Option<u64>,
}

/// Distribution of lateness over all items, at their first publish.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LatenessState {
    /// Number of items measured.
    pub count: u64,
    /// Median, in microseconds.
    pub p50_us: u64,
    /// 99 of 100 items are not later.
    pub p99_us: u64,
    /// 999 of 1,000 items are not later.
    pub p999_us: u64,
    /// Largest value, in microseconds.
    pub max_us: u64,
}

/// The document. `tidegate status` reads it, too: a key that an older or newer daemon leaves out has its
/// default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Document {
    /// Version of the daemon.
    pub version: String,
    /// The daemon's state: `draining`, `waiting`, `not_ready`, `blocked`, `stuck`, `standby`, `paused` or
    /// `running`; the first that applies.
    pub state: String,
    /// The answer of `/readyz`.
    pub ready: bool,
    /// Names of the latches that are open.
    pub missing: Vec<String>,
    /// Names of the parts that are stuck.
    pub stuck: Vec<String>,
    /// Start of the process, UTC ms.
    pub started_at: u64,
    /// Moment of this document, UTC ms.
    pub at: u64,
    /// Uptime by the monotonic clock.
    pub uptime_ms: u64,
    /// The name of this node, by which it owns stores: its machine's, and its own. Empty while unknown.
    pub node: String,
    /// The shards of this daemon.
    pub shards: Vec<ShardLine>,
    /// Shards of which nobody tells, because no node has them, or theirs does not answer; absent if there are
    /// none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_shards: Vec<u16>,
    /// The ingest and the egress connection of each shard.
    pub links: Vec<LinkState>,
    /// Counters of the map; absent with one shard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub map: Option<MapState>,
    /// Counters of the store.
    pub store: StoreState,
    /// Moment of publish minus due.
    pub lateness: LatenessState,
    /// The engine's own numbers, key by key beside the others.
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// `applications` contains only some of them.
    pub applications_truncated: bool,
}

impl Document {
    /// Makes the document of this state.
    pub(crate) fn new(input: &StateInput, health: &NodeHealth) -> Self {
        let lateness = &input.traffic.lateness;
        // Its own state is judged by its own numbers.
        let mut snapshot = input.snapshot.clone();
        input.elsewhere.iter().cloned().for_each(|more| add_snapshot(&mut snapshot, more));
        let (missing, stuck) = (health.missing(), health.verdict().stuck_names());
        let times = (input.at, input.uptime_ms);
        Document {
            version: input.version.to_owned(),
            state: overall(input.draining, &input.links, &input.snapshot, times, health).to_owned(),
            ready: missing.is_empty() && stuck.is_empty(),
            missing: missing.into_iter().map(str::to_owned).collect(),
            stuck: stuck.into_iter().map(str::to_owned).collect(),
            started_at: input.started_at,
            at: input.at,
            uptime_ms: input.uptime_ms,
            node: input.node.clone(),
            shards: input.shards.clone(),
            missing_shards: input.missing_shards.clone(),
            links: input.links.clone(),
            map: input.map,
            store: input.store.clone(),
            lateness: LatenessState {
                count: lateness.count,
                p50_us: lateness.p50,
                p99_us: lateness.p99,
                p999_us: lateness.p999,
                max_us: lateness.max,
            },
            applications_truncated: snapshot.applications_total > snapshot.applications.len() as u64,
            snapshot,
        }
    }

    /// The connections by side and state, each in the order of its first one.
    pub(crate) fn link_groups(&self) -> Vec<LinkGroup<'_>> {
        let mut groups: Vec<LinkGroup<'_>> = Vec::new();
        for first in &self.links {
            let same = |group: &&mut LinkGroup<'_>| {
                let LinkState { side, state, detail: _, notes } = group.first;
                (side, state, notes) == (&first.side, &first.state, &first.notes)
            };
            match groups.iter_mut().find(same) {
                Some(group) => group.count += 1,
                None => {
                    let of = self.links.iter().filter(|link| link.side == first.side).count();
                    groups.push(LinkGroup { first, count: 1, of });
                }
            }
        }
        groups
    }
}

/// Why the daemon is not ready, from the names of open latches and stuck parts.
pub(crate) fn unready(missing: &[String], stuck: &[String]) -> String {
    let told = [(missing, "missing"), (stuck, "stuck")];
    let told = told.into_iter().filter(|(names, _)| !names.is_empty());
    told.map(|(names, what)| format!("{} {what}", names.join(", "))).collect::<Vec<_>>().join("; ")
}

/// The first word that applies. `at`: the moment of the snapshot, UTC ms.
fn overall(
    is_draining: bool,
    links: &[LinkState],
    snapshot: &Snapshot,
    (at, uptime_ms): (u64, u64),
    health: &NodeHealth,
) -> &'static str {
    let [draining, waiting, not_ready, blocked, stuck, standby, paused, running] = STATES;
    let is_any = |state: &str| links.iter().any(|link| link.state == state);
    // Where several nodes share the shards, the sharder of one serves the ingest queue for all.
    let is_serving = links.iter().any(|link| link.side == "ingest" && link.state != "standby");
    // The first item that may leave has been due for too long; it may well wait for the broker's answer. One
    // that became due while the daemon was down counts from its start.
    let overdue = |due: u64| at.saturating_sub(due).min(uptime_ms);
    let is_overdue =
        || snapshot.items.oldest_due_at.is_some_and(|due| overdue(due) > health.stuck_after_ms());
    if is_draining {
        draining
    } else if is_any("waiting") {
        waiting
    } else if !health.missing().is_empty() {
        not_ready
    } else if is_any("blocked") {
        blocked
    } else if !health.verdict().stuck.is_empty() || is_overdue() {
        stuck
    } else if is_any("standby") && !is_serving {
        standby
    } else if snapshot.intake_paused {
        paused
    } else {
        running
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::health::ShardHealth;
    use super::super::sum::sum;
    use super::*;
    use serde_json::json;
    use std::sync::Arc;
    use std::time::Duration;
    use tidegate_common::distribution::Distribution;
    use tidegate_common::progress::ProgressMarks;
    use tidegate_types::snapshot::Deliverability;
    use tidegate_types::snapshot::{Counters, ItemCounts};

    /// Two hours after its start.
    pub(crate) fn facts() -> NodeFacts {
        let (started, now) =
            (Now { wall: 1_799_992_800_000, mono: 5 }, Now { wall: 1_800_000_000_000, mono: 7_200_005 });
        NodeFacts { version: "0.0.0-test", started, now }
    }

    /// A daemon whose only shard is [`shard`].
    pub(crate) fn example() -> StateInput {
        sum(&facts(), vec![shard()])
    }

    /// The same daemon, as if it had several shards.
    pub(crate) fn with_map() -> StateInput {
        let map = MapState { forwarded: 40, misplaced: 3, bound: 5, corrected: 2, bind_failures: 1 };
        StateInput { map: Some(map), ..example() }
    }

    /// A shard with one open and one parked application.
    pub(crate) fn shard() -> ShardState {
        let app = |name: &str, delivery| Application {
            name: name.to_owned(),
            total: 14,
            paused: false,
            paused_until: None,
            paused_customers: 0,
            rate: None,
            rate_until: None,
            held: 0,
            held_until: None,
            waiting: 4,
            due: 1,
            in_flight: 2,
            parked: 9,
            windows: 3,
            confirmed: 100,
            oldest_due_at: None,
            delivery,
        };
        let parked =
            Deliverability::Parked { next_try_in_ms: 1_500, failures: 3, last_error: "NO_ROUTE".to_owned() };
        let mut totals = Counters { received: 12, confirmed: 100, ..Counters::default() };
        totals.dead[4] = 7;
        totals.windows_closed[1] = 5;
        ShardState {
            line: ShardLine {
                shard: 0,
                state: "not_ready".into(),
                owner: Some("machine/name".into()),
                epoch: Some(3),
                lease_ms: Some(8_000),
                reason: None,
                life: 2,
                queue: "tidegate.ingest".into(),
                waiting: 40,
            },
            node: "machine/name".into(),
            snapshot: Snapshot {
                items: ItemCounts {
                    waiting: 40,
                    parked: 9,
                    next_due_at: Some(1_800_000_001_000),
                    ..ItemCounts::default()
                },
                totals,
                applications: vec![app("mail", Deliverability::Open), app("sms", parked)],
                applications_total: 2,
                dead_letters: Some(app("", Deliverability::Open)),
                ..Snapshot::default()
            },
            links: vec![LinkState {
                side: "ingest".into(),
                state: "connected".into(),
                detail: "127.0.0.1:5672".into(),
                notes: vec![],
            }],
            store: StoreState {
                kind: "disk".into(),
                bytes: 4096,
                free_bytes: Some(0),
                lives: 2,
                takeovers: BTreeMap::from([("expired".to_owned(), 2)]),
                lives_ended: BTreeMap::from([("database".to_owned(), 1)]),
                lease_remaining_ms: Some(8_000),
                ..StoreState::default()
            },
            traffic: Traffic {
                lateness: Distribution {
                    count: 5,
                    p50: 400,
                    p99: 900,
                    p999: 950,
                    max: 1_000,
                    ..Distribution::default()
                },
                ..Traffic::default()
            },
            draining: false,
        }
    }

    /// Every key of the document with its place: scripts and monitors of users read them. Keys are added to
    /// this file, and none is removed.
    #[test]
    fn names_and_places_are_stable() {
        let golden: serde_json::Value = serde_json::from_str(include_str!("state_golden.json")).unwrap();
        let doc =
            serde_json::to_value(Document::new(&example(), &NodeHealth::ready_but(&["egress"]))).unwrap();
        assert_eq!(doc, golden, "{doc:#}");
    }

    #[test]
    fn the_map_is_told_of_several_shards_only() {
        let health = NodeHealth::ready_but(&[]);
        let told = |input: &StateInput| serde_json::to_value(Document::new(input, &health)).unwrap();
        let (alone, mut several) = (told(&example()), told(&with_map()));
        assert_eq!(alone.get("map"), None);
        let map = several.as_object_mut().unwrap().remove("map");
        let counters =
            json!({ "forwarded": 40, "misplaced": 3, "bound": 5, "corrected": 2, "bind_failures": 1 });
        assert_eq!(map, Some(counters));
        assert_eq!(several, alone, "nothing else differs");
    }

    #[test]
    fn the_state_counts_what_other_nodes_have_and_is_judged_by_its_own() {
        let mut input = example();
        let own = Document::new(&input, &NodeHealth::ready_but(&[]));
        let mut more = input.snapshot.clone();
        (more.items.waiting, more.items.oldest_due_at, more.intake_paused) = (7, Some(1), true);
        let line = ShardLine { shard: 0, owner: Some("there".to_owned()), ..ShardLine::default() };
        input.add_elsewhere(line.clone(), more);
        input.missing_shards.push(3);
        let all = Document::new(&input, &NodeHealth::ready_but(&[]));
        assert_eq!(all.snapshot.items.waiting, own.snapshot.items.waiting + 7);
        assert_eq!((all.state, all.shards, all.missing_shards), (own.state, vec![line], vec![3]));
        assert_eq!((all.links, all.store, all.lateness), (own.links, own.store, own.lateness));
    }

    /// The sharder of another node serves the ingest queue.
    #[test]
    fn a_node_that_serves_shards_does_not_stand_by() {
        let mut input = example();
        let spare = LinkState {
            side: "sharder".to_owned(),
            state: "standby".to_owned(),
            detail: String::new(),
            notes: vec![],
        };
        let word = |input: &StateInput| Document::new(input, &NodeHealth::ready_but(&[])).state;
        let before = word(&input);
        input.links.push(spare.clone());
        assert_eq!(word(&input), before);
        input.links = vec![spare];
        assert_eq!(word(&input), "standby", "it has no shard");
    }

    #[test]
    fn the_state_word_is_the_gravest_that_applies() {
        let mut input = example();
        let word = |input: &StateInput, missing: &[&str]| {
            Document::new(input, &NodeHealth::ready_but(missing)).state
        };
        assert_eq!(word(&input, &[]), "running");
        input.snapshot.intake_paused = true;
        assert_eq!(word(&input, &[]), "paused");
        input.snapshot.items.oldest_due_at = Some(input.at - 30_000);
        assert_eq!(word(&input, &[]), "paused");
        input.snapshot.items.oldest_due_at = Some(input.at - 30_001);
        assert_eq!(word(&input, &[]), "stuck");
        let late = ShardHealth {
            progress: Arc::new(ProgressMarks::of_age(Duration::from_secs(40))),
            ..ShardHealth::default()
        };
        late.readiness.reset(true);
        let document = Document::new(&example(), &NodeHealth::of(vec![late]));
        assert_eq!((document.state.as_str(), document.ready), ("stuck", false));
        assert_eq!(document.stuck, ["loop", "ingest", "egress"]);
        input.uptime_ms = 20_000;
        assert_eq!(word(&input, &[]), "paused", "it was due before the start");
        input.links[0].state = "standby".into();
        assert_eq!(word(&input, &[]), "standby");
        input.links[0].state = "blocked".into();
        assert_eq!(word(&input, &[]), "blocked");
        assert_eq!(word(&input, &["egress"]), "not_ready");
        input.links[0].state = "waiting".into();
        assert_eq!(word(&input, &["store"]), "waiting");
        input.draining = true;
        assert_eq!(word(&input, &["egress"]), "draining");
    }

    #[test]
    fn it_reads_back_and_forgives_what_is_left_out_or_new() {
        for input in [example(), with_map()] {
            let doc = Document::new(&input, &NodeHealth::ready_but(&["egress"]));
            let back: Document = serde_json::from_str(&serde_json::to_string(&doc).unwrap()).unwrap();
            assert_eq!(back, doc);
        }
        let other: Document = serde_json::from_value(json!({ "version": "9", "new": 1 })).unwrap();
        assert_eq!(other, Document { version: "9".into(), ..Document::default() });
    }
}
