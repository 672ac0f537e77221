//! The web page at `/`: three files within the binary.
//!
//! They contain no data, so every client may load them without a token. The page gets its data from the API,
//! like any client. It loads nothing from another host, and its policy forbids that: the page shows names
//! given by producers, as text.

use axum::http::{header, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::Router;

/// Path, media type and text of one file.
pub(super) type PageFile = (&'static str, &'static str, &'static str);

pub(super) const FILES: [PageFile; 3] = [
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("page/page.js")),
];

/// The browser lets the page use its own script, style and API, and nothing else. The document itself may
/// contain no script or style, so that no text can become one.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The routes of the page.
pub(super) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES
        .into_iter()
        .fold(Router::new(), |router, file| router.route(file.0, get(move || async move { served(file) })))
}

/// Whether the path is a file of the page.
pub(super) fn is_page(path: &str) -> bool {
    FILES.iter().any(|(known, ..)| *known == path)
}

fn served((_, kind, text): PageFile) -> Response {
    let policy = HeaderValue::from_static(POLICY);
    ([(header::CONTENT_TYPE, kind)], [(header::CONTENT_SECURITY_POLICY, policy)], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The document contains no inline script or style and loads nothing from another host.
    #[test]
    fn the_document_keeps_to_its_policy() {
        let [(_, _, html), (_, _, css), (_, _, js)] = FILES;
        for banned in ["<style", " style=", " onclick=", " onload=", " onerror=", "javascript:", "@import"] {
            assert!(!html.contains(banned) && !css.contains(banned), "{banned}");
        }
        assert_eq!(html.matches("<script").count(), 1);
        assert!(html.contains(r#"<script src="page.js" defer></script>"#));
        for banned in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "localStorage"]
        {
            assert!(!js.contains(banned), "{banned}");
        }
        for (path, _, text) in FILES {
            let links = text.matches("://").count() - text.matches("http://www.w3.org/2000/svg").count();
            assert_eq!(links, 0, "{path} names another host");
        }
    }
}
