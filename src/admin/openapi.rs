//! What this listener understands and answers, as an OpenAPI 3.1 document at `/api/v1/openapi.json`: one file
//! that is part of the binary. It holds no data; a token is asked for as for everything below `/api/v1`.

use super::answer::ApiState;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::Router;

/// Where it is served.
pub(super) const PATH: &str = "/api/v1/openapi.json";
const DOCUMENT: &str = include_str!("openapi.json");

/// The route of this file.
pub(super) fn router() -> Router<ApiState> {
    Router::new().route("/api/v1/openapi.json", get(served))
}

async fn served() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT).into_response()
}

#[cfg(test)]
#[path = "openapi_tests.rs"]
mod tests;
