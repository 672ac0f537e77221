//! Paths, handlers, and the layers that every request passes.
//!
//! Routes of items, customers and metrics belong into routers of their own beside [`probes`] and [`api`]; what a
//! handler tells is made by pure functions of the state it was given (`state.rs`).

use super::guard::{is_probe, Guard, Refusal};
use super::readiness::Readiness;
use super::state::Document;
use super::{Ask, Query};
use axum::body::{to_bytes, Body};
use axum::extract::{Request, State};
use axum::http::{header, HeaderName, HeaderValue, StatusCode};
use axum::middleware::{from_fn, from_fn_with_state, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, Semaphore};
use tokio::time::timeout;

/// How long the loop may take to answer a query.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Whole time of a request, from its headers to the head of its answer. Longer than [`ANSWER_WITHIN`].
const REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// Longest request body: names and filters, never payloads.
pub(super) const MAX_BODY: usize = 64 * 1024;
/// Requests handled at one time, probes apart; each may cost the loop a snapshot.
const MAX_REQUESTS: usize = 16;

/// On every answer. No page may frame, sniff, keep or read it.
const SECURITY_HEADERS: [(HeaderName, &str); 6] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

#[derive(Clone)]
struct Shared {
    readiness: Arc<Readiness>,
    ask: Ask,
}

#[derive(Clone)]
struct Gate {
    guard: Arc<Guard>,
    slots: Arc<Semaphore>,
}

/// Everything that is served.
pub(super) fn router(guard: Guard, readiness: Arc<Readiness>, ask: Ask) -> Router {
    let gate = Gate { guard: Arc::new(guard), slots: Arc::new(Semaphore::new(MAX_REQUESTS)) };
    probes()
        .merge(api())
        .fallback(|| async { failure(StatusCode::NOT_FOUND, "there is nothing at this path") })
        .method_not_allowed_fallback(|| async {
            failure(StatusCode::METHOD_NOT_ALLOWED, "this path does not know this method")
        })
        .with_state(Shared { readiness, ask })
        .layer(from_fn_with_state(gate, admit))
        .layer(from_fn(harden))
}

fn probes() -> Router<Shared> {
    Router::new().route("/livez", get(|| async { "ok" })).route("/readyz", get(readyz))
}

fn api() -> Router<Shared> {
    Router::new().route("/api/v1/state", get(state))
}

async fn readyz(State(shared): State<Shared>) -> Response {
    let missing = shared.readiness.missing();
    let status = if missing.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({ "ready": missing.is_empty(), "missing": missing }))).into_response()
}

async fn state(State(shared): State<Shared>) -> Response {
    let (reply, answer) = oneshot::channel();
    (shared.ask)(Query::State(reply));
    match timeout(ANSWER_WITHIN, answer).await {
        Ok(Ok(input)) => Json(Document::new(&input, &shared.readiness.missing())).into_response(),
        Ok(Err(_)) => unavailable("the daemon is stopping"),
        Err(_) => unavailable("the daemon did not answer in time"),
    }
}

/// The gate before every handler: who asks, how much at a time, how large, how long.
async fn admit(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    if let Err(refusal) = gate.guard.judge(request.uri(), request.headers()) {
        return refuse(refusal);
    }
    // Probes are answered from memory, and must be answered when everything else is stuck.
    let _slot = if is_probe(request.uri().path()) {
        None
    } else {
        match gate.slots.try_acquire() {
            Ok(slot) => Some(slot),
            Err(_) => return unavailable("too many requests at one time"),
        }
    };
    let handled = async {
        match with_bounded_body(request).await {
            Ok(request) => next.run(request).await,
            Err(answer) => answer,
        }
    };
    match timeout(REQUEST_WITHIN, handled).await {
        Ok(answer) => answer,
        Err(_) => failure(StatusCode::REQUEST_TIMEOUT, "the request took too long"),
    }
}

/// The body is read whole before the handler runs, so that no handler can forget its limit.
async fn with_bounded_body(request: Request) -> Result<Request, Response> {
    let (head, body) = request.into_parts();
    let too_large = || failure(StatusCode::PAYLOAD_TOO_LARGE, "the body is above 64 KiB, or it broke off");
    let announced =
        head.headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|n| n > MAX_BODY as u64) {
        return Err(too_large());
    }
    let body = to_bytes(body, MAX_BODY).await.map_err(|_| too_large())?;
    Ok(Request::from_parts(head, Body::from(body)))
}

async fn harden(request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    for (name, value) in SECURITY_HEADERS {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

fn refuse(refusal: Refusal) -> Response {
    let mut answer = failure(refusal.status(), refusal.text());
    if refusal == Refusal::Unauthorized {
        answer
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tidegate\""));
    }
    answer
}

fn unavailable(text: &str) -> Response {
    let mut answer = failure(StatusCode::SERVICE_UNAVAILABLE, text);
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

fn failure(status: StatusCode, text: &str) -> Response {
    (status, Json(json!({ "error": text }))).into_response()
}
