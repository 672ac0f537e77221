//! The description of this API, an OpenAPI 3.1 document at `/api/v1/openapi.json`: one file within the
//! binary. It contains no data; it needs a token like everything below `/api/v1`.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::Router;

/// Path of the document.
pub(super) const PATH: &str = "/api/v1/openapi.json";
const DOCUMENT: &str = include_str!("openapi.json");

/// The route of the document.
pub(super) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/api/v1/openapi.json", get(served))
}

async fn served() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT).into_response()
}

#[cfg(test)]
#[path = "openapi_tests.rs"]
mod tests;
