//! Dead letters: count, list, show, export, send back, drop.
//!
//! They lie at the broker: each answer is a walk along their queue, which costs it something. So they are
//! looked at when somebody asks for them, and never by the way.

use super::answer::ApiState;
use super::audit::Caller;
use super::items::named;
use super::parse;
use crate::letters::LetterReport;
use axum::extract::State;
use axum::http::{header, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde_json::{json, Value};

/// On an export that is not complete: why.
const STOPPED: HeaderName = HeaderName::from_static("x-tidegate-stopped");

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
    let groups = |report: LetterReport| Json(found("groups", json!(report.groups), &report)).into_response();
    shared.letters(caller, parse::letter_count(uri.query()), groups).await
}

async fn list(State(shared): State<ApiState>, Extension(caller): Extension<Caller>, uri: Uri) -> Response {
    let page = |report: LetterReport| Json(found("letters", json!(report.letters), &report)).into_response();
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

/// Of a count or a list: what was found, under this name.
fn found(name: &str, found: Value, report: &LetterReport) -> Value {
    let LetterReport { depth, looked_at, more, stopped, .. } = report;
    let mut told = json!({ "depth": depth, "looked_at": looked_at, "more": more, "stopped": stopped });
    told[name] = found;
    told
}

/// Of what was sent back or dropped.
fn deed(report: &LetterReport) -> Json<Value> {
    let LetterReport { depth, looked_at, count, kept, more, stopped, .. } = report;
    Json(json!({
        "result": "done", "count": count, "kept": kept, "depth": depth, "left": depth.saturating_sub(*count),
        "looked_at": looked_at, "more": more, "stopped": stopped,
    }))
}

/// One letter a line.
fn lines(report: LetterReport) -> Response {
    let mut text = String::new();
    for letter in &report.letters {
        text.push_str(&json!(letter).to_string());
        text.push('\n');
    }
    let kind = HeaderValue::from_static("application/x-ndjson");
    let mut answer = ([(header::CONTENT_TYPE, kind)], text).into_response();
    let why = report.stopped.or_else(|| report.more.then(|| "there are more letters".to_owned()));
    // An error's text may hold what no header can.
    let value =
        |text: String| HeaderValue::from_str(&text.replace(|c: char| !c.is_ascii_graphic(), " ")).ok();
    let told = why.and_then(value).map(|text| (STOPPED, text));
    answer.headers_mut().extend(told);
    answer
}
