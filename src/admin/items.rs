//! Items and customers: look up, cancel, reschedule, list, count, flush, pause; what is due when.

use super::answer::ApiState;
use super::audit::Caller;
use super::command::CommandRequest;
use super::parse::{self, BadRequest};
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use axum::routing::{delete, get, post};
use axum::{Extension, Router};

/// Routes of this file, below `/api/v1`.
pub(super) fn router() -> Router<ApiState> {
    Router::new()
        .route("/api/v1/items", get(list))
        .route("/api/v1/timeline", get(timeline))
        .route("/api/v1/items/{application}/{id}", get(lookup).delete(cancel))
        .route("/api/v1/items/{application}/{id}/reschedule", post(reschedule))
        .route("/api/v1/customers/{application}/{customer}", get(count))
        .route("/api/v1/customers/{application}/{customer}/items", delete(cancel_all))
        .route("/api/v1/customers/{application}/{customer}/flush", post(flush))
        .route("/api/v1/customers/{application}/{customer}/pause", post(pause))
        .route("/api/v1/customers/{application}/{customer}/resume", post(resume))
}

async fn list(State(shared): State<ApiState>, uri: Uri) -> Response {
    shared.look(parse::filter(uri.query()).map(CommandRequest::List)).await
}

async fn timeline(State(shared): State<ApiState>, uri: Uri) -> Response {
    shared.look(parse::timeline(uri.query()).map(CommandRequest::TimelineQuery)).await
}

async fn lookup(State(shared): State<ApiState>, uri: Uri) -> Response {
    shared.look(named(&uri, parse::item).map(CommandRequest::Lookup)).await
}

async fn cancel(State(shared): State<ApiState>, Extension(caller): Extension<Caller>, uri: Uri) -> Response {
    shared.change(caller, named(&uri, parse::item).map(CommandRequest::Cancel)).await
}

async fn reschedule(
    State(shared): State<ApiState>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Response {
    let read = |of| Ok(CommandRequest::Reschedule(of, parse::new_due(uri.query())?));
    shared.change(caller, parse::item(uri.path()).and_then(read)).await
}

async fn count(State(shared): State<ApiState>, uri: Uri) -> Response {
    shared.look(named(&uri, parse::customer).map(CommandRequest::Count)).await
}

async fn cancel_all(
    State(shared): State<ApiState>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Response {
    shared.change(caller, named(&uri, parse::customer).map(CommandRequest::CancelAll)).await
}

async fn flush(State(shared): State<ApiState>, Extension(caller): Extension<Caller>, uri: Uri) -> Response {
    shared.change(caller, named(&uri, parse::customer).map(CommandRequest::Flush)).await
}

async fn pause(State(shared): State<ApiState>, Extension(caller): Extension<Caller>, uri: Uri) -> Response {
    let read = |of| Ok(CommandRequest::PauseCustomer(of, parse::pause_end(uri.query())?));
    shared.change(caller, parse::customer(uri.path()).and_then(read)).await
}

async fn resume(State(shared): State<ApiState>, Extension(caller): Extension<Caller>, uri: Uri) -> Response {
    shared.change(caller, named(&uri, parse::customer).map(CommandRequest::ResumeCustomer)).await
}

/// The target named by a path that takes no query. A query is refused and not ignored, since it may have been
/// meant to narrow a command down.
pub(super) fn named<T>(uri: &Uri, read: fn(&str) -> Result<T, BadRequest>) -> Result<T, BadRequest> {
    parse::no_query(uri.query())?;
    read(uri.path())
}
