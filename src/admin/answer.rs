//! Asking the daemon's loop, with a bound on the wait, and the answers that are the same for all paths.

use super::command::{CommandRequest, CommandResponse, Status};
use super::liveness::Liveness;
use super::parse::BadRequest;
use super::readiness::Readiness;
use super::state::Document;
use super::{Ask, Query};
use axum::http::{header, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::Json;
use serde_json::{json, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How long the loop may take for a snapshot.
const STATE_WITHIN: Duration = Duration::from_secs(5);
/// How long a command may take: the cancel of an item in flight waits some seconds for its outcome, and a
/// list or the cancel of a large customer for many reads.
pub(super) const COMMAND_WITHIN: Duration = Duration::from_secs(30);

/// What every handler knows.
#[derive(Clone)]
pub(super) struct ApiState {
    pub(super) readiness: Arc<Readiness>,
    pub(super) liveness: Arc<Liveness>,
    pub(super) ask: Ask,
}

impl ApiState {
    /// The state document of this moment, or the answer instead.
    pub(super) async fn state(&self) -> Result<Document, Response> {
        let (reply, answer) = oneshot::channel();
        (self.ask)(Query::State(reply));
        match timeout(STATE_WITHIN, answer).await {
            Ok(Ok(input)) => Ok(Document::new(&input, &self.readiness.missing())),
            Ok(Err(_)) => Err(unavailable("the daemon is stopping")),
            Err(_) => Err(unavailable("the daemon did not answer in time")),
        }
    }

    /// Has a command carried out, unless it was not understood.
    pub(super) async fn command(&self, request: Result<CommandRequest, BadRequest>) -> Response {
        let request = match request {
            Ok(request) => request,
            Err(fault) => return failure(StatusCode::BAD_REQUEST, &fault.to_string()),
        };
        let (reply, answer) = oneshot::channel();
        (self.ask)(Query::Command(request, reply));
        match timeout(COMMAND_WITHIN, answer).await {
            Ok(Ok(answered)) => of(answered),
            Ok(Err(_)) => unavailable("the daemon is stopping"),
            Err(_) => unavailable("the daemon did not answer in time; it may still do what was asked"),
        }
    }
}

fn of(answered: CommandResponse) -> Response {
    match answered.status {
        Status::Known => Json(answered.document).into_response(),
        Status::Unknown => (StatusCode::NOT_FOUND, Json(answered.document)).into_response(),
        Status::Refused => (StatusCode::CONFLICT, Json(answered.document)).into_response(),
        Status::Unavailable => busy(answered.document),
    }
}

/// 503 with this sentence.
pub(super) fn unavailable(text: &str) -> Response {
    busy(json!({ "error": text }))
}

fn busy(document: Value) -> Response {
    let mut answer = (StatusCode::SERVICE_UNAVAILABLE, Json(document)).into_response();
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

/// Any other refusal.
pub(super) fn failure(status: StatusCode, text: &str) -> Response {
    (status, Json(json!({ "error": text }))).into_response()
}
