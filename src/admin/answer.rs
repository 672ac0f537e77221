//! Queries to the daemon's loop with a time limit, and the answers that all paths share.

use super::audit::{self, Audit, Audited, Caller, RefusedLog};
use super::command::{CommandRequest, CommandResponse, Status};
use super::health::NodeHealth;
use super::parse::BadRequest;
use super::state::Document;
use super::traffic::Traffic;
use super::{Ask, Query, StateScope};
use axum::body::{Body, Bytes};
use axum::http::{header, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::Json;
use futures_util::{stream, StreamExt as _};
use serde_json::{json, Value};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tidegate_common::clock;
use tidegate_wire::dead_letters::{LetterJob, LetterReport, LetterTask, LetterTrouble};
use tokio::sync::{oneshot, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Time limit for a snapshot by the loop.
pub(super) const STATE_WITHIN: Duration = Duration::from_secs(5);
/// Time limit for a command. The cancel of an item in flight waits some seconds for its outcome; a list, or
/// the cancel of a large customer, waits for many reads.
pub(super) const COMMAND_WITHIN: Duration = Duration::from_secs(30);

/// How long an answer about dead letters waits until another one has been read.
const ROOM_WITHIN: Duration = Duration::from_secs(5);
/// Most answers with dead letters that are being prepared or read. One takes up to three times
/// [`tidegate_wire::dead_letters::FULL_PAGE`], or the size of the largest dead letter that is shown whole. It
/// keeps its place until its client has read it, so clients that do not read cost some 60 MiB beside
/// `limits.memory`. Commands that change something need no place.
pub(super) const LETTER_ANSWERS: usize = 3;
/// Most bytes of an answer handed over at a time.
const PIECE: usize = 64 << 10;

/// Media type of every error (RFC 9457).
pub(super) const PROBLEM_JSON: &str = "application/problem+json";

/// State that all handlers share.
#[derive(Clone)]
pub(super) struct ApiState {
    pub(super) health: Arc<NodeHealth>,
    pub(super) ask: Ask,
    /// The log of refused requests.
    pub(super) refused: Arc<RefusedLog>,
    /// Places for answers about dead letters.
    pub(super) letter_answers: Arc<Semaphore>,
}

impl ApiState {
    /// The state document of this moment, or an error response.
    pub(super) async fn state(&self) -> Result<Document, Response> {
        Ok(self.state_and_traffic(StateScope::AllNodes).await?.0)
    }

    /// As [`state`](Self::state), with the figures that only the metrics show.
    pub(super) async fn state_and_traffic(&self, scope: StateScope) -> Result<(Document, Traffic), Response> {
        let (reply, answer) = oneshot::channel();
        (self.ask)(Query::State(scope, reply));
        match timeout(STATE_WITHIN, answer).await {
            Ok(Ok(input)) => {
                let document = Document::new(&input, &self.health);
                Ok((document, input.traffic))
            }
            Ok(Err(_)) => Err(unavailable("the daemon is stopping")),
            Err(_) => Err(unavailable("the daemon did not answer in time")),
        }
    }

    /// Runs a command that changes nothing; a bad request is refused.
    pub(super) async fn look(&self, request: Result<CommandRequest, BadRequest>) -> Response {
        match request {
            Ok(request) => of(self.carried_out(request).await),
            Err(fault) => failure(StatusCode::BAD_REQUEST, &fault.to_string()),
        }
    }

    /// As [`look`](Self::look), for a command that changes something; the audit log names the caller.
    pub(super) async fn change(
        &self,
        caller: Caller,
        request: Result<CommandRequest, BadRequest>,
    ) -> Response {
        let request = match request {
            Ok(request) => request,
            Err(fault) => return failure(StatusCode::BAD_REQUEST, &fault.to_string()),
        };
        let audit = Audit::begin(caller, &request);
        let answered = self.carried_out(request.clone()).await;
        audit.end(code(answered.status), &answered);
        let mut answer = of(answered);
        answer.extensions_mut().insert(Audited);
        answer
    }

    /// Runs an action on dead letters; a bad request is refused. The audit log names the caller of a change.
    pub(super) async fn letters(
        &self,
        caller: Caller,
        task: Result<LetterTask, BadRequest>,
        shown: impl FnOnce(LetterReport) -> Response,
    ) -> Response {
        let task = match task {
            Ok(task) => task,
            Err(fault) => return failure(StatusCode::BAD_REQUEST, &fault.to_string()),
        };
        let deed = task.job.deed();
        let room = match deed {
            Some(_) => None,
            None => match timeout(ROOM_WITHIN, Arc::clone(&self.letter_answers).acquire_owned()).await {
                Ok(Ok(room)) => Some(room),
                Ok(Err(_)) | Err(_) => {
                    return unavailable("other clients are still reading answers about dead letters")
                }
            },
        };
        let audit = deed.map(|(action, filter)| Audit::of_letters(caller, action, filter));
        let done = match self.letter_refusal(&task.job) {
            Some(text) => Err(LetterTrouble::Refused(text)),
            None => self.letters_done(task.clone()).await,
        };
        let (status, document) = match &done {
            Ok(report) => (Status::Known, json!({ "result": "done", "count": report.count })),
            Err(LetterTrouble::Refused(text)) => {
                (Status::Refused, json!({ "result": "rejected", "error": text }))
            }
            Err(LetterTrouble::Unavailable(text)) => (Status::Unavailable, json!({ "error": text })),
        };
        let answered = CommandResponse { status, document };
        let audited = audit.is_some();
        if let Some(audit) = audit {
            audit.end(code(status), &answered);
        }
        if done.is_ok() && task.job.is_whole() {
            audit::payloads_read(caller, "dead_read");
        }
        let mut answer = held(done.map_or_else(|_| of(answered), shown), room);
        if audited {
            answer.extensions_mut().insert(Audited);
        }
        answer
    }

    /// Why this action would only turn dead letters into other ones.
    fn letter_refusal(&self, job: &LetterJob) -> Option<String> {
        match job {
            LetterJob::Retry { terms, .. } => self.health.refusal(terms, clock::wall_ms()),
            LetterJob::Count | LetterJob::List { .. } | LetterJob::Drop { .. } => None,
        }
    }

    async fn letters_done(&self, task: LetterTask) -> Result<LetterReport, LetterTrouble> {
        let (reply, answer) = oneshot::channel();
        (self.ask)(Query::Letters(task, reply));
        let unavailable = |text: &str| Err(LetterTrouble::Unavailable(text.to_owned()));
        match timeout(COMMAND_WITHIN, answer).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => unavailable("the daemon is stopping"),
            Err(_) => unavailable("the broker did not answer in time; it may still be done"),
        }
    }

    async fn carried_out(&self, request: CommandRequest) -> CommandResponse {
        let (reply, answer) = oneshot::channel();
        (self.ask)(Query::Command(request, reply));
        let text = match timeout(COMMAND_WITHIN, answer).await {
            Ok(Ok(answered)) => return answered,
            Ok(Err(_)) => "the daemon is stopping",
            Err(_) => "the daemon did not answer in time; it may still do what was asked",
        };
        CommandResponse { status: Status::Unavailable, document: json!({ "error": text }) }
    }
}

/// The same answer, which keeps its place until the client has taken it.
fn held(answer: Response, room: Option<OwnedSemaphorePermit>) -> Response {
    let Some(room) = room else { return answer };
    let (head, body) = answer.into_parts();
    let whole = (body.into_data_stream(), Bytes::new(), room);
    let pieces = stream::unfold(whole, |(mut data, mut rest, room)| async move {
        while rest.is_empty() {
            // A body made in memory does not fail.
            rest = data.next().await?.ok()?;
        }
        let piece = rest.split_to(rest.len().min(PIECE));
        Some((Ok::<_, Infallible>(piece), (data, rest, room)))
    });
    Response::from_parts(head, Body::from_stream(pieces))
}

/// A result is the command's own JSON, `unknown` included; a command that was not carried out is a problem
/// document.
fn of(answered: CommandResponse) -> Response {
    match answered.status {
        Status::Unavailable => busy(answered.document),
        Status::Refused => problem(code(Status::Refused), answered.document),
        status @ (Status::Known | Status::Unknown) => (code(status), Json(answered.document)).into_response(),
    }
}

fn code(status: Status) -> StatusCode {
    match status {
        Status::Known => StatusCode::OK,
        Status::Unknown => StatusCode::NOT_FOUND,
        Status::Refused => StatusCode::CONFLICT,
        Status::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Status 503 with this sentence.
pub(super) fn unavailable(text: &str) -> Response {
    busy(json!({ "error": text }))
}

fn busy(document: Value) -> Response {
    let mut answer = problem(StatusCode::SERVICE_UNAVAILABLE, document);
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

/// Any other error response.
pub(super) fn failure(status: StatusCode, text: &str) -> Response {
    problem(status, json!({ "error": text }))
}

/// Makes every error response: the members of RFC 9457 beside `error`, which keeps the sentence. The status
/// names the kind, so that no other `type` is needed.
fn problem(status: StatusCode, mut document: Value) -> Response {
    let detail = document["error"].clone();
    document["type"] = "about:blank".into();
    document["title"] = status.canonical_reason().unwrap_or("Error").into();
    document["status"] = status.as_u16().into();
    document["detail"] = detail;
    let kind = (header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    (status, [kind], document.to_string()).into_response()
}
