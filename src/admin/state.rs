//! The state document of `/api/v1/state`: what the daemon's loop hands over, and the JSON made of it; pure.
//!
//! Names are stable: keys may be added, none is renamed or changes its meaning. A number carries its unit as the
//! last part of its name (`_ms`, `_us`, `_bytes`); names ending in `_at` are moments, UTC milliseconds; what has
//! no unit is a count. Totals count from the start of the process. There are no payloads, no customers and no
//! secrets in it.

use crate::engine::snapshot::{Application, Counters, Delivery, Snapshot};
use crate::engine::types::{ClosedBy, DuplicateRule, Reason};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the daemon's loop answers to [`super::Query::State`].
#[derive(Clone, Debug)]
pub struct StateInput {
    /// The engine's numbers.
    pub snapshot: Snapshot,
    /// The connections.
    pub links: Vec<LinkState>,
    /// The store.
    pub store: StoreState,
    /// Moment of publish minus due.
    pub lateness: LatenessState,
    /// It is shutting down.
    pub draining: bool,
    /// Of this binary.
    pub version: &'static str,
    /// Start of the process, UTC ms.
    pub started_at: u64,
    /// Moment of the snapshot, UTC ms.
    pub at: u64,
    /// Since the start, by the monotonic clock, ms.
    pub uptime_ms: u64,
}

/// One connection to a broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LinkState {
    /// `ingest` or `egress`.
    pub side: &'static str,
    /// A word: `connecting`, `connected`, `paused`, `blocked`, `down` or `closed`.
    pub state: String,
    /// A sentence, when there is something to say: address, last error, time of the next try. No secrets.
    pub detail: String,
}

/// The store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreState {
    /// `disk` or `memory`.
    pub kind: String,
    /// Durable commits.
    pub commits: u64,
    /// Time the last commit took.
    pub last_commit_ms: u64,
    /// Longest commit.
    pub max_commit_ms: u64,
    /// On disk.
    pub bytes: u64,
    /// Free where it lies.
    pub free_bytes: u64,
    /// Orders waiting for the store's thread.
    pub queue: u64,
}

/// Distribution of lateness over all items, at their first publish.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatenessState {
    /// Items measured.
    pub count: u64,
    /// Median.
    pub p50_us: u64,
    /// 99 of 100 are not later.
    pub p99_us: u64,
    /// 999 of 1,000 are not later.
    pub p999_us: u64,
    /// The latest.
    pub max_us: u64,
}

/// The document. Also what `tidegate status` reads: a key that an older or newer daemon leaves out is its default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Document {
    /// Of the daemon.
    pub version: String,
    /// The whole in a word: `draining`, `not_ready`, `blocked`, `paused` or `running`; the first that applies.
    pub state: String,
    /// As `/readyz` says.
    pub ready: bool,
    /// Names of the latches that are open.
    pub missing: Vec<String>,
    /// Start of the process.
    pub started_at: u64,
    /// Moment of this document.
    pub at: u64,
    /// By the monotonic clock.
    pub uptime_ms: u64,
    /// Items now.
    pub items: Items,
    /// Unconfirmed batches.
    pub in_flight_batches: u64,
    /// No requests are taken at present.
    pub intake_paused: bool,
    /// Connections.
    pub links: Vec<Link>,
    /// The store.
    pub store: StoreState,
    /// Store operations handed over and not yet durable.
    pub uncommitted: u64,
    /// Moment of publish minus due.
    pub lateness: LatenessState,
    /// Since the start.
    pub totals: Totals,
    /// By application, in order of name.
    pub applications: Vec<ApplicationState>,
    /// `applications` is not all of them.
    pub applications_truncated: bool,
    /// The dead exchange, as a destination like any other; null while it has nothing to do.
    pub dead_letters: Option<ApplicationState>,
}

/// Items now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Items {
    /// Stored or held, not parked; in flight included.
    pub waiting: u64,
    /// Of the waiting ones, in memory.
    pub in_memory: u64,
    /// Of the waiting ones, due and not yet published.
    pub due: u64,
    /// Of the waiting ones, published and not yet confirmed.
    pub in_flight: u64,
    /// Of applications that cannot be delivered to at present.
    pub parked: u64,
    /// Open windows.
    pub windows: u64,
    /// Earliest due of what is in memory.
    pub next_due_at: Option<u64>,
    /// Everything that is due before this moment is in memory.
    pub loaded_until_at: u64,
    /// Payloads in memory.
    pub payload_bytes: u64,
}

/// One connection, as read back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Link {
    /// See [`LinkState::side`].
    pub side: String,
    /// See [`LinkState::state`].
    pub state: String,
    /// See [`LinkState::detail`].
    pub detail: String,
}

/// Since the start of the process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Requests received.
    pub received: u64,
    /// Of these, marked redelivered.
    pub redelivered: u64,
    /// Items accepted.
    pub accepted: u64,
    /// Requests that were not understood or could not be taken: dead letters from the start.
    pub rejected: u64,
    /// Items taken back by a command.
    pub cancelled: u64,
    /// Items whose place a later request with the same id took.
    pub replaced: u64,
    /// Items forgotten because the broker delivers their requests again.
    pub given_back: u64,
    /// Requests whose id was known, by `x-on-duplicate`; every rule is there.
    pub duplicates: BTreeMap<String, Duplicates>,
    /// Items confirmed at the output exchange.
    pub confirmed: u64,
    /// Batches confirmed at the output exchange.
    pub batches_confirmed: u64,
    /// Batches handed to the publisher, repeats included.
    pub batches_published: u64,
    /// Publishes returned as unroutable.
    pub returned: u64,
    /// Publishes nacked.
    pub nacked: u64,
    /// Publishes that closed the channel.
    pub refused: u64,
    /// Publishes whose outcome stayed unknown.
    pub unknown: u64,
    /// Dead items and requests, by reason of the contract; every reason is there.
    pub dead: BTreeMap<String, u64>,
    /// Dead letters confirmed at the dead exchange.
    pub dead_confirmed: u64,
    /// Windows closed, by cause of the contract; every cause is there.
    pub windows_closed: BTreeMap<String, u64>,
    /// Commits that became durable.
    pub commits: u64,
    /// Steps of the wall clock, forward.
    pub clock_forward: u64,
    /// Steps of the wall clock, backward.
    pub clock_backward: u64,
}

/// What one rule did to requests whose id was known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Duplicates {
    /// Dropped: the other one stays.
    pub dropped: u64,
    /// Took the other one's place.
    pub replaced: u64,
    /// Accepted as new: the other one had ended.
    pub accepted: u64,
    /// Dead, reason `duplicate`.
    pub dead: u64,
}

/// One application.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ApplicationState {
    /// Routing key.
    pub name: String,
    /// `unproven` (nothing confirmed lately), `open` or `parked`.
    pub state: String,
    /// Items that have not ended, wherever they are.
    pub total: u64,
    /// Held back by an operator's order.
    pub paused: bool,
    /// Items in memory that wait for their time.
    pub waiting: u64,
    /// Items that are due and wait for a free slot.
    pub due: u64,
    /// Items published and not confirmed.
    pub in_flight: u64,
    /// Items parked.
    pub parked: u64,
    /// Open windows.
    pub windows: u64,
    /// Items confirmed since the start.
    pub confirmed: u64,
    /// Parked: until the next try.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try_in_ms: Option<u64>,
    /// Parked: failed probes in a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failures: Option<u32>,
    /// Parked: text of the last failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

impl Document {
    /// Makes the document. `missing`: names of the open latches.
    pub fn new(input: &StateInput, missing: &[&str]) -> Self {
        let snapshot = &input.snapshot;
        let (dead, named): (Vec<_>, Vec<_>) = snapshot.applications.iter().partition(|a| a.name.is_empty());
        Document {
            version: input.version.to_owned(),
            state: overall(input, missing).to_owned(),
            ready: missing.is_empty(),
            missing: missing.iter().map(|&m| m.to_owned()).collect(),
            started_at: input.started_at,
            at: input.at,
            uptime_ms: input.uptime_ms,
            items: Items::new(snapshot),
            in_flight_batches: snapshot.in_flight_batches,
            intake_paused: snapshot.paused,
            links: input.links.iter().map(Link::new).collect(),
            store: input.store.clone(),
            uncommitted: snapshot.uncommitted,
            lateness: input.lateness.clone(),
            totals: Totals::new(&snapshot.counters),
            applications_truncated: snapshot.applications.len() >= Snapshot::MAX_APPLICATIONS,
            applications: named.into_iter().map(ApplicationState::new).collect(),
            dead_letters: dead.into_iter().next().map(ApplicationState::new),
        }
    }
}

fn overall(input: &StateInput, missing: &[&str]) -> &'static str {
    if input.draining {
        "draining"
    } else if !missing.is_empty() {
        "not_ready"
    } else if input.links.iter().any(|l| l.state == "blocked") {
        "blocked"
    } else if input.snapshot.paused {
        "paused"
    } else {
        "running"
    }
}

impl Items {
    fn new(s: &Snapshot) -> Self {
        Items {
            waiting: s.waiting,
            in_memory: s.in_memory,
            due: s.ready,
            in_flight: s.in_flight_items,
            parked: s.parked,
            windows: s.windows,
            next_due_at: s.next_due,
            loaded_until_at: s.loaded_until,
            payload_bytes: s.content_bytes,
        }
    }
}

impl Link {
    fn new(link: &LinkState) -> Self {
        Link { side: link.side.to_owned(), state: link.state.clone(), detail: link.detail.clone() }
    }
}

impl Totals {
    fn new(c: &Counters) -> Self {
        let by_reason = Reason::ALL.iter().zip(c.dead).map(|(r, n)| (r.as_str().to_owned(), n));
        let by_cause = CAUSES.iter().zip(c.closed).map(|(cause, n)| (cause.as_str().to_owned(), n));
        let by_rule = RULES.iter().zip(c.duplicates).map(|(rule, [dropped, replaced, accepted, dead])| {
            (rule.as_str().to_owned(), Duplicates { dropped, replaced, accepted, dead })
        });
        Totals {
            received: c.requests,
            redelivered: c.redelivered,
            accepted: c.accepted,
            rejected: c.rejected,
            cancelled: c.cancelled,
            replaced: c.replaced,
            given_back: c.given_back,
            duplicates: by_rule.collect(),
            confirmed: c.sent,
            batches_confirmed: c.batches,
            batches_published: c.published,
            returned: c.returned,
            nacked: c.nacked,
            refused: c.refused,
            unknown: c.unknown,
            dead: by_reason.collect(),
            dead_confirmed: c.dead_sent,
            windows_closed: by_cause.collect(),
            commits: c.commits,
            clock_forward: c.clock_forward,
            clock_backward: c.clock_backward,
        }
    }
}

/// In the order of their declaration, which is that of [`Counters::closed`].
const CAUSES: [ClosedBy; 6] =
    [ClosedBy::Time, ClosedBy::Count, ClosedBy::Bytes, ClosedBy::Quiet, ClosedBy::Flush, ClosedBy::Expiry];

/// In the order of their declaration, which is that of [`Counters::duplicates`].
const RULES: [DuplicateRule; 5] = [
    DuplicateRule::Keep,
    DuplicateRule::Replace,
    DuplicateRule::Earliest,
    DuplicateRule::Latest,
    DuplicateRule::Reject,
];

impl ApplicationState {
    fn new(a: &Application) -> Self {
        let (state, next_try_in_ms, failures, last_error) = match &a.delivery {
            Delivery::Unproven => ("unproven", None, None, None),
            Delivery::Open => ("open", None, None, None),
            Delivery::Parked { next_try_in, failures, last_error } => {
                ("parked", Some(*next_try_in), Some(*failures), Some(last_error.clone()))
            }
        };
        ApplicationState {
            name: a.name.clone(),
            state: state.to_owned(),
            total: a.total,
            paused: a.paused,
            waiting: a.waiting,
            due: a.ready,
            in_flight: a.in_flight,
            parked: a.parked,
            windows: a.windows,
            confirmed: a.sent,
            next_try_in_ms,
            failures,
            last_error,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// A daemon with one open and one parked application.
    pub(crate) fn example() -> StateInput {
        let app = |name: &str, delivery| Application {
            name: name.to_owned(),
            total: 14,
            paused: false,
            waiting: 4,
            ready: 1,
            in_flight: 2,
            parked: 9,
            windows: 3,
            sent: 100,
            delivery,
        };
        let parked = Delivery::Parked { next_try_in: 1_500, failures: 3, last_error: "NO_ROUTE".to_owned() };
        let mut counters = Counters { requests: 12, sent: 100, ..Counters::default() };
        counters.dead[4] = 7;
        counters.closed[1] = 5;
        StateInput {
            snapshot: Snapshot {
                waiting: 40,
                parked: 9,
                next_due: Some(1_800_000_001_000),
                counters,
                applications: vec![app("", Delivery::Open), app("mail", Delivery::Open), app("sms", parked)],
                ..Snapshot::default()
            },
            links: vec![LinkState {
                side: "ingest",
                state: "connected".into(),
                detail: "127.0.0.1:5672".into(),
            }],
            store: StoreState { kind: "disk".into(), bytes: 4096, ..StoreState::default() },
            lateness: LatenessState { count: 5, p50_us: 400, p99_us: 900, p999_us: 950, max_us: 1_000 },
            draining: false,
            version: "0.0.0-test",
            started_at: 1_800_000_000_000 - 7_200_000,
            at: 1_800_000_000_000,
            uptime_ms: 7_200_000,
        }
    }

    #[test]
    fn names_and_places_are_stable() {
        let doc = serde_json::to_value(Document::new(&example(), &[])).unwrap();
        for (path, want) in [
            ("/version", json!("0.0.0-test")),
            ("/state", json!("running")),
            ("/ready", json!(true)),
            ("/missing", json!([])),
            ("/uptime_ms", json!(7_200_000)),
            ("/items/waiting", json!(40)),
            ("/items/next_due_at", json!(1_800_000_001_000_u64)),
            ("/links/0/side", json!("ingest")),
            ("/store/bytes", json!(4096)),
            ("/lateness/p99_us", json!(900)),
            ("/totals/received", json!(12)),
            ("/totals/dead/expired", json!(7)),
            ("/totals/dead/invalid", json!(0)),
            ("/totals/windows_closed/count", json!(5)),
            ("/applications/0/name", json!("mail")),
            ("/applications/0/state", json!("open")),
            ("/applications/1/state", json!("parked")),
            ("/applications/1/next_try_in_ms", json!(1_500)),
            ("/applications/1/last_error", json!("NO_ROUTE")),
            ("/dead_letters/parked", json!(9)),
            ("/applications_truncated", json!(false)),
        ] {
            assert_eq!(doc.pointer(path), Some(&want), "{path} in {doc:#}");
        }
        assert_eq!(doc["applications"].as_array().unwrap().len(), 2, "the dead exchange stands apart");
        assert!(doc.pointer("/applications/0/last_error").is_none());
    }

    #[test]
    fn the_state_word_is_the_gravest_that_applies() {
        let mut input = example();
        let word = |input: &StateInput, missing: &[&str]| Document::new(input, missing).state;
        assert_eq!(word(&input, &[]), "running");
        input.snapshot.paused = true;
        assert_eq!(word(&input, &[]), "paused");
        input.links[0].state = "blocked".into();
        assert_eq!(word(&input, &[]), "blocked");
        assert_eq!(word(&input, &["egress"]), "not_ready");
        input.draining = true;
        assert_eq!(word(&input, &["egress"]), "draining");
    }

    #[test]
    fn it_reads_back_and_forgives_what_is_left_out_or_new() {
        let doc = Document::new(&example(), &["egress"]);
        let back: Document = serde_json::from_str(&serde_json::to_string(&doc).unwrap()).unwrap();
        assert_eq!(back, doc);
        let other: Document = serde_json::from_value(json!({ "version": "9", "new": 1 })).unwrap();
        assert_eq!(other, Document { version: "9".into(), ..Document::default() });
    }
}
