//! The store as lines, for a backup. The answer is streamed, since it is as large as the backlog.

use super::answer::{failure, unavailable, ApiState, STATE_WITHIN};
use super::audit::{self, Caller};
use super::{parse, Query};
use axum::body::Body;
use axum::extract::State;
use axum::http::{header, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use futures_util::stream;
use std::io;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Marks a long answer, of which only one runs at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streamed;

/// The lines of an export in chunks; an error is the last item.
pub type ExportFeed = mpsc::Receiver<io::Result<Vec<u8>>>;

/// Why an export is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportRefusal {
    /// The store keeps no items on a disk; the text says where, and the alternative.
    NotOnDisk(&'static str),
    /// Another export is running.
    Busy,
    /// A row is damaged; the text names it and the fault.
    Unreadable(String),
}

/// Routes of this file, below `/api/v1`.
pub(super) fn router() -> Router<ApiState> {
    Router::new().route("/api/v1/export", get(export))
}

async fn export(State(shared): State<ApiState>, Extension(caller): Extension<Caller>, uri: Uri) -> Response {
    if let Err(fault) = parse::no_query(uri.query()) {
        return failure(StatusCode::BAD_REQUEST, &fault.to_string());
    }
    let (reply, answer) = oneshot::channel::<Result<ExportFeed, ExportRefusal>>();
    (shared.ask)(Query::Export(reply));
    match timeout(STATE_WITHIN, answer).await {
        Ok(Ok(Ok(feed))) => {
            audit::payloads_read(caller, "export");
            lines(feed)
        }
        Ok(Ok(Err(ExportRefusal::Busy))) => unavailable("another export is under way"),
        Ok(Ok(Err(ExportRefusal::NotOnDisk(why)))) => failure(StatusCode::CONFLICT, why),
        Ok(Ok(Err(ExportRefusal::Unreadable(error)))) => failure(StatusCode::INTERNAL_SERVER_ERROR, &error),
        Ok(Err(_)) => unavailable("the daemon is stopping"),
        Err(_) => unavailable("the daemon did not answer in time"),
    }
}

fn lines(feed: ExportFeed) -> Response {
    let helpings =
        stream::unfold(feed, |mut feed| async move { feed.recv().await.map(|helping| (helping, feed)) });
    let kind = HeaderValue::from_static("application/x-ndjson");
    let mut answer = ([(header::CONTENT_TYPE, kind)], Body::from_stream(helpings)).into_response();
    answer.extensions_mut().insert(Streamed);
    answer
}
