//! The state document of `/api/v1/state`: the engine's snapshot, and beside it the daemon's other figures.
//! Pure.
//!
//! The engine's part and the rule for names are in [`tidegate_types::snapshot`]; nothing is copied or renamed
//! here. The document contains no payloads, customers or secrets.

use super::traffic::Traffic;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidegate_common::progress::ProgressMarks;
pub(crate) use tidegate_types::snapshot::Application;
use tidegate_types::snapshot::Snapshot;

/// Values of [`Document::state`], the gravest first.
pub(super) const STATES: [&str; 8] =
    ["draining", "waiting", "not_ready", "blocked", "stuck", "standby", "paused", "running"];

/// The answer of the daemon's loop to [`super::Query::State`].
#[derive(Clone, Debug)]
pub struct StateInput {
    /// The engine's numbers.
    pub snapshot: Snapshot,
    /// The ingest and the egress connection.
    pub links: Vec<LinkState>,
    /// Counters of the store.
    pub store: StoreState,
    /// Moment of publish minus due.
    pub lateness: LatenessState,
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
}

impl LinkState {
    /// Values of its state.
    pub const STATES: [&str; 8] =
        ["connecting", "connected", "paused", "standby", "blocked", "waiting", "down", "closed"];
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
pub struct LatenessState {
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
    /// The ingest and the egress connection.
    pub links: Vec<LinkState>,
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
    /// Makes the document; `missing` has the names of the open latches.
    pub(crate) fn new(input: &StateInput, missing: &[&str], progress: &ProgressMarks) -> Self {
        let snapshot = &input.snapshot;
        let stuck = progress.verdict().stuck_names();
        let is_stuck = !stuck.is_empty() || is_overdue(input, progress.stuck_after_ms());
        Document {
            version: input.version.to_owned(),
            state: overall(input, missing, is_stuck).to_owned(),
            ready: missing.is_empty() && stuck.is_empty(),
            missing: missing.iter().map(|&m| m.to_owned()).collect(),
            stuck: stuck.into_iter().map(str::to_owned).collect(),
            started_at: input.started_at,
            at: input.at,
            uptime_ms: input.uptime_ms,
            links: input.links.clone(),
            store: input.store.clone(),
            lateness: input.lateness.clone(),
            applications_truncated: snapshot.applications_total > snapshot.applications.len() as u64,
            snapshot: snapshot.clone(),
        }
    }
}

/// Why the daemon is not ready, from the names of open latches and stuck parts.
pub(crate) fn unready(missing: &[String], stuck: &[String]) -> String {
    let told = [(missing, "missing"), (stuck, "stuck")];
    let told = told.into_iter().filter(|(names, _)| !names.is_empty());
    told.map(|(names, what)| format!("{} {what}", names.join(", "))).collect::<Vec<_>>().join("; ")
}

fn overall(input: &StateInput, missing: &[&str], is_stuck: bool) -> &'static str {
    let [draining, waiting, not_ready, blocked, stuck, standby, paused, running] = STATES;
    let is_any = |state: &str| input.links.iter().any(|link| link.state == state);
    if input.draining {
        draining
    } else if is_any("waiting") {
        waiting
    } else if !missing.is_empty() {
        not_ready
    } else if is_any("blocked") {
        blocked
    } else if is_stuck {
        stuck
    } else if is_any("standby") {
        standby
    } else if input.snapshot.intake_paused {
        paused
    } else {
        running
    }
}

/// Whether the first item that may leave has been due for too long; it may well wait for the broker's answer.
/// An item that became due while the daemon was down counts from its start.
fn is_overdue(input: &StateInput, limit_ms: u64) -> bool {
    let overdue = |due: u64| input.at.saturating_sub(due).min(input.uptime_ms);
    input.snapshot.items.oldest_due_at.is_some_and(|due| overdue(due) > limit_ms)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;
    use tidegate_types::snapshot::Deliverability;
    use tidegate_types::snapshot::{Counters, ItemCounts};

    /// A daemon with one open and one parked application.
    pub(crate) fn example() -> StateInput {
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
        StateInput {
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
            lateness: LatenessState { count: 5, p50_us: 400, p99_us: 900, p999_us: 950, max_us: 1_000 },
            traffic: Traffic::default(),
            draining: false,
            version: "0.0.0-test",
            started_at: 1_800_000_000_000 - 7_200_000,
            at: 1_800_000_000_000,
            uptime_ms: 7_200_000,
        }
    }

    /// Every key of the document with its place: scripts and monitors of users read them. Keys are added to
    /// this file, and none is removed.
    #[test]
    fn names_and_places_are_stable() {
        let golden: serde_json::Value = serde_json::from_str(include_str!("state_golden.json")).unwrap();
        let doc =
            serde_json::to_value(Document::new(&example(), &["egress"], &ProgressMarks::default())).unwrap();
        assert_eq!(doc, golden, "{doc:#}");
    }

    #[test]
    fn the_state_word_is_the_gravest_that_applies() {
        let mut input = example();
        let word = |input: &StateInput, missing: &[&str]| {
            Document::new(input, missing, &ProgressMarks::default()).state
        };
        assert_eq!(word(&input, &[]), "running");
        input.snapshot.intake_paused = true;
        assert_eq!(word(&input, &[]), "paused");
        input.snapshot.items.oldest_due_at = Some(input.at - 30_000);
        assert_eq!(word(&input, &[]), "paused");
        input.snapshot.items.oldest_due_at = Some(input.at - 30_001);
        assert_eq!(word(&input, &[]), "stuck");
        let late = ProgressMarks::of_age(Duration::from_secs(40));
        let document = Document::new(&example(), &[], &late);
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
        let doc = Document::new(&example(), &["egress"], &ProgressMarks::default());
        let back: Document = serde_json::from_str(&serde_json::to_string(&doc).unwrap()).unwrap();
        assert_eq!(back, doc);
        let other: Document = serde_json::from_value(json!({ "version": "9", "new": 1 })).unwrap();
        assert_eq!(other, Document { version: "9".into(), ..Document::default() });
    }
}
