//! The layers that every request passes, and the routers behind them. Probes and state are here, items and
//! customers in `items.rs`, applications in `applications.rs`. Handlers make their answers by pure functions.

use super::accept::Peer;
use super::answer::{failure, unavailable, ApiState, COMMAND_WITHIN, LETTER_ANSWERS};
use super::audit::{Audited, Caller, RefusedLog};
use super::guard::{is_of_state, is_static, reads, Guard, Refusal};
use super::health::NodeHealth;
use super::{applications, dead, export, items, metrics, openapi, page, Ask, StateScope};
use axum::body::{to_bytes, Body, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::{header, HeaderName, HeaderValue, StatusCode, Uri};
use axum::middleware::{from_fn, from_fn_with_state, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Time limit of a request, from its head to the head of its answer; longer than the wait for the daemon.
const REQUEST_WITHIN: Duration = COMMAND_WITHIN.saturating_add(Duration::from_secs(5));
/// Largest request body, bytes: names and filters, never payloads.
pub(super) const MAX_BODY: usize = 64 * 1024;
/// Time limit for the body, from the end of the head.
const BODY_WITHIN: Duration = Duration::from_secs(5);
/// Most bodies that are received at one time. They are counted apart from the commands, which seldom have
/// one: a body that does not arrive keeps no command out.
const MAX_BODIES: usize = 8;
/// Most queries of the state at one time; each costs the loop a snapshot.
const MAX_QUESTIONS: usize = 16;
/// Most commands in progress. They are counted apart from the queries, which the loop answers at once:
/// commands that wait for the store or for an outcome must not keep an operator from seeing the reason. All
/// together leave connections for probes.
pub(super) const MAX_COMMANDS: usize = 32;

/// Headers of every answer. No other page may frame, sniff, cache or read it. Only the web page sets its own
/// policy.
const SECURITY_HEADERS: [(HeaderName, &str); 6] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

#[derive(Clone)]
struct Gate {
    guard: Arc<Guard>,
    questions: Arc<Semaphore>,
    commands: Arc<Semaphore>,
    bodies: Arc<Semaphore>,
    refused: Arc<RefusedLog>,
}

/// The router for all paths.
pub(super) fn router(guard: Guard, health: Arc<NodeHealth>, ask: Ask) -> Router {
    let gate = Gate {
        guard: Arc::new(guard),
        questions: Arc::new(Semaphore::new(MAX_QUESTIONS)),
        commands: Arc::new(Semaphore::new(MAX_COMMANDS)),
        bodies: Arc::new(Semaphore::new(MAX_BODIES)),
        refused: Arc::default(),
    };
    probes()
        .merge(page::router())
        .merge(openapi::router())
        .merge(items::router())
        .merge(applications::router())
        .merge(dead::router())
        .merge(export::router())
        .route("/api/v1/state", get(state))
        .route("/metrics", get(metrics))
        .fallback(nothing)
        .method_not_allowed_fallback(|| async {
            failure(StatusCode::METHOD_NOT_ALLOWED, "this path does not allow this method")
        })
        .with_state(ApiState {
            health,
            ask,
            refused: Arc::clone(&gate.refused),
            letter_answers: Arc::new(Semaphore::new(LETTER_ANSWERS)),
        })
        .layer(from_fn_with_state(gate, admit))
        .layer(from_fn(harden))
}

fn probes() -> Router<ApiState> {
    Router::new().route("/livez", get(livez)).route("/readyz", get(readyz))
}

/// The answer comes from the marks of the parts and involves none of them.
async fn livez(State(shared): State<ApiState>) -> Response {
    let stuck = shared.health.verdict().dead_names();
    if stuck.is_empty() {
        return "ok".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "live": false, "stuck": stuck }))).into_response()
}

async fn readyz(State(shared): State<ApiState>) -> Response {
    let (missing, stuck) = (shared.health.missing(), shared.health.verdict().stuck_names());
    let ready = missing.is_empty() && stuck.is_empty();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({ "ready": ready, "missing": missing, "stuck": stuck }))).into_response()
}

async fn state(State(shared): State<ApiState>) -> Response {
    match shared.state().await {
        Ok(document) => Json(document).into_response(),
        Err(answer) => answer,
    }
}

async fn metrics(State(shared): State<ApiState>) -> Response {
    let told = match shared.state_and_traffic(StateScope::Node).await {
        Ok((document, traffic)) => metrics::page(document, traffic, shared.refused.count()),
        Err(answer) => return answer,
    };
    match told {
        Ok(page) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], page).into_response(),
        Err(error) => failure(StatusCode::INTERNAL_SERVER_ERROR, &format!("the metrics: {error}")),
    }
}

/// Names the cause when a script with an empty variable matches no route.
async fn nothing(uri: Uri) -> Response {
    let path = uri.path();
    if path.starts_with("/api/") && (path.contains("//") || path.ends_with('/')) {
        return failure(
            StatusCode::BAD_REQUEST,
            "an application, customer or id in the path must not be empty",
        );
    }
    failure(StatusCode::NOT_FOUND, "there is nothing at this path")
}

/// The gate before every handler: rights, number of requests, sizes and times. A request without a right is
/// logged, and so is one that would change something but was refused before. A change that was tried has its
/// own line.
async fn admit(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>().copied();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let granted = gate.guard.judge(request.method(), request.uri(), request.headers());
    let answer = match granted {
        Ok(grant) => granted_to(&gate, Caller { peer, grant }, request, next).await,
        Err(refusal) => refuse(refusal),
    };
    let changes = !reads(&method) && answer.extensions().get::<Audited>().is_none();
    if granted.is_err() || changes {
        gate.refused.note(peer, &method, &path, answer.status());
    }
    answer
}

async fn granted_to(gate: &Gate, caller: Caller, request: Request, next: Next) -> Response {
    let mut request = match with_bounded_body(&gate.bodies, request).await {
        Ok(request) => request,
        Err(answer) => return answer,
    };
    request.extensions_mut().insert(caller);
    // These are answered from memory; probes must be answered even when everything else is stuck.
    let _slot = if is_static(request.uri().path()) {
        None
    } else {
        let slots = if is_of_state(request.method(), request.uri().path()) {
            &gate.questions
        } else {
            &gate.commands
        };
        match slots.try_acquire() {
            Ok(slot) => Some(slot),
            Err(_) => return unavailable("too many requests at one time"),
        }
    };
    match timeout(REQUEST_WITHIN, next.run(request)).await {
        Ok(answer) => answer,
        Err(_) => failure(StatusCode::REQUEST_TIMEOUT, "the request took too long"),
    }
}

/// Reads the whole body before the handler runs, so that no handler can forget its limit. The body of a read
/// request is ignored and not waited for.
async fn with_bounded_body(bodies: &Semaphore, request: Request) -> Result<Request, Response> {
    let (head, body) = request.into_parts();
    if reads(&head.method) || body.is_end_stream() {
        return Ok(Request::from_parts(head, Body::empty()));
    }
    let too_large = || failure(StatusCode::PAYLOAD_TOO_LARGE, "the body is above 64 KiB or incomplete");
    let announced =
        head.headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|n| n > MAX_BODY as u64) {
        return Err(too_large());
    }
    let _turn = bodies.try_acquire().map_err(|_| unavailable("too many requests at one time"))?;
    let late = |_| failure(StatusCode::REQUEST_TIMEOUT, "the body did not come in time");
    let body =
        timeout(BODY_WITHIN, to_bytes(body, MAX_BODY)).await.map_err(late)?.map_err(|_| too_large())?;
    Ok(Request::from_parts(head, Body::from(body)))
}

async fn harden(request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    for (name, value) in SECURITY_HEADERS {
        answer.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
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
