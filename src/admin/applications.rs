//! Applications: their state, pause and resume, their rate, and their parked items.
//!
//! The state comes from the state document, with the same names and the same bound on the number of
//! applications. A daemon that does not have what waits never says that an application is unknown, nor that
//! there is none: `tail` would take what is parked at the daemon that has it, and a script would see nothing.

use super::answer::{failure, unavailable, ApiState};
use super::audit::Caller;
use super::command::CommandRequest;
use super::items::named;
use super::parse;
use super::state::{Application, Document, LinkState};
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Extension, Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_config::StoreKind;
use tidegate_types::snapshot::Snapshot;

/// All or some applications of the state document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Applications {
    /// Listed in order of name.
    pub applications: Vec<Application>,
    /// The dead exchange, which receives dead letters like an application.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letters: Option<Application>,
    /// The daemon lists only some of its applications.
    pub applications_truncated: bool,
    /// Same as [`Document::missing_shards`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_shards: Vec<u16>,
}

impl Applications {
    /// All applications listed.
    pub(crate) fn all(document: Document) -> Self {
        Applications {
            applications: document.snapshot.applications,
            dead_letters: document.snapshot.dead_letters,
            applications_truncated: document.applications_truncated,
            missing_shards: document.missing_shards,
        }
    }

    /// Those that cannot be delivered to, or still hold items parked earlier.
    pub(crate) fn parked(document: Document) -> Self {
        let is_parked = |a: &Application| a.parked_since().is_some() || a.parked > 0;
        let mut all = Applications::all(document);
        all.applications.retain(is_parked);
        all.dead_letters = all.dead_letters.filter(is_parked);
        all
    }
}

/// Routes of this file, below `/api/v1`.
pub(super) fn router() -> Router<ApiState> {
    Router::new()
        .route("/api/v1/applications", get(all))
        .route("/api/v1/applications/{application}", get(one))
        .route("/api/v1/applications/{application}/pause", post(pause))
        .route("/api/v1/applications/{application}/resume", post(resume))
        .route("/api/v1/applications/{application}/rate", post(slow).delete(set_rate))
        .route("/api/v1/applications/{application}/flush", post(flush))
        .route("/api/v1/applications/{application}/retry", post(retry))
        .route("/api/v1/applications/{application}/parked", delete(drop_parked))
        .route("/api/v1/applications/{application}/items", get(count_selected).delete(cancel_selected))
        .route("/api/v1/parked", get(parked))
}

async fn all(State(shared): State<ApiState>, uri: Uri) -> Response {
    report(&shared, &uri, Applications::all).await
}

async fn parked(State(shared): State<ApiState>, uri: Uri) -> Response {
    report(&shared, &uri, Applications::parked).await
}

async fn report(shared: &ApiState, uri: &Uri, choose: fn(Document) -> Applications) -> Response {
    if let Err(fault) = parse::no_query(uri.query()) {
        return failure(StatusCode::BAD_REQUEST, &fault.to_string());
    }
    match shared.state().await {
        Ok(document) => several(document, choose),
        Err(answer) => answer,
    }
}

fn several(document: Document, choose: fn(Document) -> Applications) -> Response {
    match all_untold(&document) {
        Some(reason) => unavailable(&format!("what waits is not known here: {reason}")),
        None => Json(choose(document)).into_response(),
    }
}

/// Why this daemon, which lists nothing, knows of no shard what is there; `None`: it lists something, or
/// knows.
fn all_untold(document: &Document) -> Option<String> {
    let Snapshot { applications, dead_letters, .. } = &document.snapshot;
    let lists = !applications.is_empty() || dead_letters.is_some();
    if lists && !is_of_the_past(document) {
        return None;
    }
    let mut first = None;
    for home in 0..shard_count(document) {
        let reason = untold(document, home)?;
        first.get_or_insert(reason);
    }
    first
}

fn shard_count(document: &Document) -> u16 {
    u16::try_from(document.shards.len()).unwrap_or(u16::MAX).max(1)
}

/// Whether what a daemon lists that does not know what waits is from the time when it served the queue.
fn is_of_the_past(document: &Document) -> bool {
    document.store.kind == StoreKind::Memory.as_str()
}

async fn one(State(shared): State<ApiState>, uri: Uri) -> Response {
    let application = match named(&uri, parse::application) {
        Ok(application) => application,
        Err(fault) => return failure(StatusCode::BAD_REQUEST, &fault.to_string()),
    };
    match shared.state().await {
        Ok(document) => single(document, &application),
        Err(answer) => answer,
    }
}

fn single(document: Document, application: &str) -> Response {
    let truncated = document.applications_truncated;
    let untold = untold(&document, tidegate_wire::home(application, shard_count(&document)));
    let is_void = untold.is_some() && is_of_the_past(&document);
    let found = document.snapshot.applications.into_iter().find(|a| *a.name == *application);
    match (found.filter(|_| !is_void), untold) {
        (Some(found), _) => Json(found).into_response(),
        (None, Some(reason)) => {
            unavailable(&format!("what waits for this application is not known here: {reason}"))
        }
        // The application may exist beyond the list, so `unknown` would be false.
        (None, None) if truncated => failure(
            StatusCode::NOT_FOUND,
            "there are more applications than one answer lists, and this one is not among them",
        ),
        (None, None) => (StatusCode::NOT_FOUND, Json(json!({ "result": "unknown" }))).into_response(),
    }
}

/// Why this daemon does not know which applications with this home have items; `None`: it knows.
fn untold(document: &Document, home: u16) -> Option<String> {
    if document.missing_shards.contains(&home) {
        return Some(format!("nobody tells of shard {home} at present"));
    }
    let (kind, has_one) = (document.store.kind.as_str(), document.shards.len() <= 1);
    // A node that tells of one of several shards in a database has its store.
    if kind == StoreKind::Postgres.as_str() && !has_one {
        return None;
    }
    // Otherwise all shards are here, each with its connections.
    let ingest = document.links.iter().filter(|link| link.side == "ingest").nth(usize::from(home))?;
    let [_, connected, paused, standby, _, waiting, _, _] = LinkState::STATES;
    let LinkState { side: _, state, detail, notes: _ } = ingest;
    // A disk holds what waits, also while the daemon is not connected.
    let is_known = if kind == StoreKind::Memory.as_str() {
        [connected, paused].contains(&state.as_str())
    } else {
        ![standby, waiting].contains(&state.as_str())
    };
    let advice = if state == standby { "; ask the daemon whose state is not 'standby'" } else { "" };
    let colon = if detail.is_empty() { "" } else { ": " };
    (!is_known).then(|| format!("ingest is {state}{colon}{detail}{advice}"))
}

async fn pause(State(shared): State<ApiState>, Extension(caller): Extension<Caller>, uri: Uri) -> Response {
    let read = |of| Ok(CommandRequest::Pause(of, parse::pause_end(uri.query())?));
    shared.change(caller, parse::application(uri.path()).and_then(read)).await
}

async fn resume(State(shared): State<ApiState>, Extension(caller): Extension<Caller>, uri: Uri) -> Response {
    shared.change(caller, named(&uri, parse::application).map(CommandRequest::Resume)).await
}

async fn slow(State(shared): State<ApiState>, Extension(caller): Extension<Caller>, uri: Uri) -> Response {
    let read = |of| {
        let (rate, end) = parse::slowed(uri.query())?;
        Ok(CommandRequest::Slow(of, Some(rate), end))
    };
    shared.change(caller, parse::application(uri.path()).and_then(read)).await
}

/// Restores the rate of the configuration.
async fn set_rate(
    State(shared): State<ApiState>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Response {
    let as_set = |application| CommandRequest::Slow(application, None, None);
    shared.change(caller, named(&uri, parse::application).map(as_set)).await
}

async fn flush(State(shared): State<ApiState>, Extension(caller): Extension<Caller>, uri: Uri) -> Response {
    shared.change(caller, named(&uri, parse::application).map(CommandRequest::FlushAll)).await
}

async fn retry(State(shared): State<ApiState>, Extension(caller): Extension<Caller>, uri: Uri) -> Response {
    shared.change(caller, named(&uri, parse::application).map(CommandRequest::Retry)).await
}

async fn count_selected(State(shared): State<ApiState>, uri: Uri) -> Response {
    let read = |of| parse::selection(of, uri.query());
    let selection = parse::application(uri.path()).and_then(read);
    shared.look(selection.map(CommandRequest::CountSelected)).await
}

async fn cancel_selected(
    State(shared): State<ApiState>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Response {
    let read = |of| parse::selection(of, uri.query());
    let selection = parse::application(uri.path()).and_then(read);
    shared.change(caller, selection.map(CommandRequest::CancelSelected)).await
}

async fn drop_parked(
    State(shared): State<ApiState>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Response {
    shared.change(caller, named(&uri, parse::application).map(CommandRequest::DropParked)).await
}

#[cfg(test)]
mod tests {
    use super::super::health::NodeHealth;
    use super::super::state::tests::example;
    use super::*;

    /// [`example`], with this store and this ingest connection.
    fn document(kind: &str, state: &str) -> Document {
        let mut input = example();
        (input.store.kind, input.links[0].state) = (kind.to_owned(), state.to_owned());
        Document::new(&input, &NodeHealth::ready_but(&[]))
    }

    /// Excluded: a `tail` that takes a parked backlog, since it asks a daemon that does not have it.
    #[test]
    fn an_application_is_unknown_only_to_a_daemon_that_has_what_waits() {
        let told = |kind, state, application| single(document(kind, state), application).status().as_u16();
        for state in LinkState::STATES {
            let serves = ["connected", "paused"].contains(&state);
            let has_store = !["standby", "waiting"].contains(&state);
            for (kind, knows) in [("disk", has_store), ("postgres", has_store), ("memory", serves)] {
                assert_eq!(told(kind, state, "none"), if knows { 404 } else { 503 }, "{kind} {state}");
                let lists = kind != "memory" || serves;
                assert_eq!(told(kind, state, "mail"), if lists { 200 } else { 503 }, "{kind} {state}");
            }
        }
        let mut document = document("memory", "standby");
        document.links[0].detail = "another tidegate serves queue 'q'".to_owned();
        let reason = "ingest is standby: another tidegate serves queue 'q'; ask the daemon whose state is \
                      not 'standby'";
        assert_eq!(untold(&document, 0).as_deref(), Some(reason));
        assert_eq!(all_untold(&document).as_deref(), Some(reason));
    }

    /// Excluded: an empty list of a daemon that does not have what waits, taken for the whole of it; a
    /// refusal where something is known.
    #[test]
    fn nothing_is_listed_only_by_a_daemon_that_has_what_waits() {
        for choose in [Applications::all, Applications::parked] {
            let told = |document| several(document, choose).status().as_u16();
            for state in LinkState::STATES {
                let serves = ["connected", "paused"].contains(&state);
                let has_store = !["standby", "waiting"].contains(&state);
                for (kind, knows) in [("disk", has_store), ("postgres", has_store), ("memory", serves)] {
                    let lists = kind != "memory" || serves;
                    let full = document(kind, state);
                    assert_eq!(told(full), if lists { 200 } else { 503 }, "{kind} {state}");
                    let mut empty = document(kind, state);
                    empty.snapshot = Snapshot::default();
                    assert_eq!(told(empty), if knows { 200 } else { 503 }, "{kind} {state}");
                }
            }
        }
    }

    /// Excluded: a list of some shards that is refused for the others, which it names.
    #[test]
    fn one_shard_that_is_told_of_makes_a_list() {
        let mut document = document("postgres", "connected");
        document.shards.push(document.shards[0].clone());
        document.snapshot = Snapshot::default();
        assert_eq!(all_untold(&document), None);
        document.missing_shards = vec![1];
        assert_eq!(all_untold(&document), None);
        document.missing_shards = vec![0, 1];
        assert_eq!(all_untold(&document).as_deref(), Some("nobody tells of shard 0 at present"));
    }

    /// In a database, a shard that this node does not have has no connection here, and is told by another.
    #[test]
    fn of_several_shards_the_home_decides() {
        let mut document = document("disk", "connected");
        document.shards.push(document.shards[0].clone());
        let mut second = document.links[0].clone();
        second.state = "standby".to_owned();
        document.links.push(second);
        assert_eq!([0, 1].map(|home| untold(&document, home).is_some()), [false, true]);
        document.store.kind = "postgres".to_owned();
        assert_eq!([0, 1].map(|home| untold(&document, home).is_some()), [false, false]);
        document.missing_shards.push(0);
        assert_eq!([0, 1].map(|home| untold(&document, home).is_some()), [true, false]);
    }
}
