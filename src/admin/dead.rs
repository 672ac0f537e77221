//! Dead letters: count, list, show, export, send back, drop.
//!
//! They are in a queue of the broker, and each answer is a walk along it, which costs the broker something.
//! So the daemon reads them only on request.

use super::answer::ApiState;
use super::audit::Caller;
use super::items::named;
use super::parse;
use axum::extract::State;
use axum::http::{header, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::Serialize;
use serde_json::{json, Value};
use tidegate_wire::dead_letters::{Letter, LetterGroup, LetterReport, WalkCursor};

/// Header of an incomplete export: the reason.
const STOPPED: HeaderName = HeaderName::from_static("x-tidegate-stopped");

/// Header of a part of an export: the cursor for the next call.
const CURSOR: HeaderName = HeaderName::from_static("x-tidegate-cursor");

/// Header of an export with dead letters whose bodies are too long for it: their number.
const LEFT_OUT: HeaderName = HeaderName::from_static("x-tidegate-bodies-left-out");

/// Routes of this file, below `/api/v1`.
pub(super) fn router() -> Router<ApiState> {
    Router::new()
        .route("/api/v1/dead", get(list).delete(discard))
        .route("/api/v1/dead/count", get(count))
        .route("/api/v1/dead/export", get(export))
        .route("/api/v1/dead/letters/{key}", get(show))
        .route("/api/v1/dead/retry", post(retry))
}

async fn count(State(shared): State<ApiState>, Extension(caller): Extension<Caller>, uri: Uri) -> Response {
    let groups = |report: LetterReport| Told::of(&report, Groups { groups: &report.groups }).into_response();
    shared.letters(caller, parse::letter_count(uri.query()), groups).await
}

async fn list(State(shared): State<ApiState>, Extension(caller): Extension<Caller>, uri: Uri) -> Response {
    let page = |report: LetterReport| Told::of(&report, Letters { letters: &report.letters }).into_response();
    shared.letters(caller, parse::letter_list(uri.query()), page).await
}

async fn show(State(shared): State<ApiState>, Extension(caller): Extension<Caller>, uri: Uri) -> Response {
    let one = |report: LetterReport| match report.letters.first() {
        Some(letter) => Json(json!(letter)).into_response(),
        None => {
            let told = json!({ "result": "unknown", "looked_at": report.looked_at, "more": report.more });
            (StatusCode::NOT_FOUND, Json(told)).into_response()
        }
    };
    shared.letters(caller, named(&uri, parse::letter), one).await
}

async fn export(State(shared): State<ApiState>, Extension(caller): Extension<Caller>, uri: Uri) -> Response {
    shared.letters(caller, parse::letter_export(uri.query()), lines).await
}

async fn retry(State(shared): State<ApiState>, Extension(caller): Extension<Caller>, uri: Uri) -> Response {
    let done = |report: LetterReport| deed(&report).into_response();
    shared.letters(caller, parse::letter_retry(uri.query()), done).await
}

async fn discard(State(shared): State<ApiState>, Extension(caller): Extension<Caller>, uri: Uri) -> Response {
    let done = |report: LetterReport| deed(&report).into_response();
    shared.letters(caller, parse::letter_drop(uri.query()), done).await
}

/// The answer to a count or a list: the progress of the walk and the findings.
#[derive(Serialize)]
struct Told<'r, T> {
    depth: usize,
    looked_at: usize,
    more: bool,
    stopped: Option<&'r str>,
    cursor: Option<&'r str>,
    #[serde(flatten)]
    found: T,
}

#[derive(Serialize)]
struct Groups<'r> {
    groups: &'r [LetterGroup],
}

#[derive(Serialize)]
struct Letters<'r> {
    letters: &'r [Letter],
}

impl<'r, T> Told<'r, T> {
    fn of(report: &'r LetterReport, found: T) -> Json<Self> {
        let LetterReport { depth, looked_at, more, stopped, cursor, .. } = report;
        let (stopped, cursor) = (stopped.as_deref(), cursor.as_ref().map(WalkCursor::as_str));
        Json(Told { depth: *depth, looked_at: *looked_at, more: *more, stopped, cursor, found })
    }
}

/// The answer to sending back or dropping.
fn deed(report: &LetterReport) -> Json<Value> {
    let LetterReport { depth, looked_at, count, kept, more, stopped, cursor, .. } = report;
    Json(json!({
        "result": "done", "count": count, "kept": kept, "depth": depth, "left": depth.saturating_sub(*count),
        "looked_at": looked_at, "more": more, "stopped": stopped, "cursor": cursor,
    }))
}

/// One dead letter per line.
fn lines(report: LetterReport) -> Response {
    let mut text = Vec::new();
    for letter in &report.letters {
        // A dead letter has a JSON form in all its parts, and a write to memory does not fail.
        let _ = serde_json::to_writer(&mut text, letter);
        text.push(b'\n');
    }
    let kind = HeaderValue::from_static("application/x-ndjson");
    let mut answer = ([(header::CONTENT_TYPE, kind)], text).into_response();
    let why = report.stopped.or_else(|| report.more.then(|| "there are more dead letters".to_owned()));
    // The text of an error may contain bytes that no header allows.
    let value =
        |text: String| HeaderValue::from_str(&text.replace(|c: char| !c.is_ascii_graphic(), " ")).ok();
    let told = why.and_then(value).map(|text| (STOPPED, text));
    answer.headers_mut().extend(told);
    let cursor = report.cursor.and_then(|cursor| HeaderValue::from_str(cursor.as_str()).ok());
    answer.headers_mut().extend(cursor.map(|cursor| (CURSOR, cursor)));
    let is_without = |letter: &&Letter| letter.whole.as_ref().is_some_and(|whole| whole.body_left_out);
    let without = report.letters.iter().filter(is_without).count();
    let without = (without > 0).then(|| (LEFT_OUT, HeaderValue::from(without)));
    answer.headers_mut().extend(without);
    answer
}
