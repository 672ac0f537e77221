//! Decides which requests are permitted, by method, token, `Host` and origin, from the head of a request
//! alone. Pure.
//!
//! There are two regimes. With tokens, a client may connect from anywhere: the first token permits
//! everything, the second one permits reading, and the third one the state. Without tokens, the listener is
//! on loopback or on a unix socket, and the guard keeps out web pages in a browser on the same machine: by
//! the host name they used (DNS rebinding) and by their origin. No browser speaks to a unix socket, but it
//! can reach a port that is forwarded to one (`ssh -L`), so both checks apply there, too. There is no CORS:
//! no page may ever read an answer.

use super::{openapi, page, Tokens};
use axum::http::{header, HeaderMap, Method, StatusCode, Uri};
use secrecy::{ExposeSecret, SecretString};
use std::net::IpAddr;
use subtle::ConstantTimeEq;
use tidegate_config::Listen;

/// Longest path and query, bytes. The longest names of the contract, percent-encoded, fit several times.
pub(super) const MAX_URI: usize = 8 * 1024;
/// Largest head of a request in bytes: path, query and headers. The reader's buffer is larger, since it reads
/// ahead.
pub(super) const MAX_HEAD: usize = 32 << 10;

/// The tokens and the address by which requests are judged.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    tokens: Tokens,
    /// The listening address, if it is an IP address.
    listen: Option<IpAddr>,
}

/// The right of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    /// No token is configured, or the path needs none.
    Open,
    /// The token for the state, for a request of the state.
    State,
    /// The token for reading, for a request that reads.
    Read,
    /// The token for all requests.
    Full,
}

impl Grant {
    /// Name of the token in the log.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Grant::Open => "none",
            Grant::State => "state",
            Grant::Read => "read",
            Grant::Full => "full",
        }
    }
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Path and query above [`MAX_URI`].
    UriTooLong,
    /// The whole head is above [`MAX_HEAD`].
    HeadTooLong,
    /// The token is missing or wrong.
    Unauthorized,
    /// The token for reading, for a request that changes something.
    ReadOnly,
    /// The token for the state, for any other request.
    StateOnly,
    /// The `Host` is missing or does not name this listener.
    Host,
    /// The request comes from a web page of another origin.
    Origin,
}

impl Refusal {
    /// Status of the answer.
    pub(super) fn status(self) -> StatusCode {
        match self {
            Refusal::UriTooLong => StatusCode::URI_TOO_LONG,
            Refusal::HeadTooLong => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Refusal::Unauthorized => StatusCode::UNAUTHORIZED,
            Refusal::ReadOnly | Refusal::StateOnly | Refusal::Host | Refusal::Origin => StatusCode::FORBIDDEN,
        }
    }

    /// Sentence of the answer.
    pub(super) fn text(self) -> &'static str {
        match self {
            Refusal::UriTooLong => "the path and query are too long",
            Refusal::HeadTooLong => "path, query and headers have more than 32 KiB",
            Refusal::Unauthorized => "the header Authorization: Bearer TOKEN is missing or wrong",
            Refusal::ReadOnly => {
                "this token may only read: methods other than GET need the token of admin.token_file"
            }
            Refusal::StateOnly => {
                "this token is for the state and the metrics: other reads need the token of \
                 admin.read_token_file"
            }
            Refusal::Host => "the Host header does not name this listener",
            Refusal::Origin => "requests from web pages of another origin are refused",
        }
    }
}

impl Guard {
    /// The guard of a listener on `listen`, which must be local without a token; `super::serve` checks that.
    pub(super) fn new(tokens: Tokens, listen: &Listen) -> Self {
        let listen = match listen {
            Listen::Tcp(address) => Some(address.ip()),
            Listen::Unix(_) | Listen::Off => None,
        };
        Guard { tokens, listen }
    }

    /// Judges one request. Probes (`/livez`, `/readyz`) need no token: they show a supervisor only which part
    /// is not up, and supervisors seldom have secrets. The files of the web page need none either: they
    /// contain no data, and the page asks for the token.
    pub(super) fn judge(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<Grant, Refusal> {
        let target = uri.path_and_query().map_or(0, |p| p.as_str().len());
        if target > MAX_URI {
            return Err(Refusal::UriTooLong);
        }
        // Each header line has four more bytes.
        let lines: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
        if target + lines > MAX_HEAD {
            return Err(Refusal::HeadTooLong);
        }
        match &self.tokens.full {
            // Anything else may have a body, and few of those are received at a time.
            Some(_) if (is_probe(uri.path()) || page::is_page(uri.path())) && reads(method) => {
                Ok(Grant::Open)
            }
            Some(full) => self.judge_bearer(method, uri.path(), headers, full),
            None if !self.host_is_ours(uri, headers) => Err(Refusal::Host),
            None if is_foreign_page(headers) => Err(Refusal::Origin),
            None => Ok(Grant::Open),
        }
    }

    fn judge_bearer(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        full: &SecretString,
    ) -> Result<Grant, Refusal> {
        let given = bearer(headers).ok_or(Refusal::Unauthorized)?;
        let is = |token: &Option<SecretString>| token.as_ref().is_some_and(|token| is_token(given, token));
        // The comparison covers all tokens, whichever one matches.
        match (is_token(given, full), is(&self.tokens.read), is(&self.tokens.state)) {
            (true, ..) => Ok(Grant::Full),
            (_, true, _) if reads(method) => Ok(Grant::Read),
            (_, true, _) => Err(Refusal::ReadOnly),
            (.., true) if is_of_state(method, path) => Ok(Grant::State),
            (.., true) => Err(Refusal::StateOnly),
            (false, false, false) => Err(Refusal::Unauthorized),
        }
    }

    fn host_is_ours(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        // Both are checked. With an absolute target the Host header should be ignored, but a page can choose
        // neither, so neither may be foreign.
        let mut hosts = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
        let target_fits = uri.authority().is_none_or(|a| self.names_us(a.as_str()));
        target_fits && host.to_str().is_ok_and(|h| self.names_us(h))
    }

    /// Any port is accepted: a tunnel has another one, and the host name reveals a rebound page.
    fn names_us(&self, authority: &str) -> bool {
        let Some(host) = host_part(authority) else { return false };
        if host.eq_ignore_ascii_case("localhost") {
            return true;
        }
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        bare.parse::<IpAddr>().is_ok_and(|ip| {
            Some(ip) == self.listen
                || ip == IpAddr::from(std::net::Ipv4Addr::LOCALHOST)
                || ip == IpAddr::from(std::net::Ipv6Addr::LOCALHOST)
        })
    }
}

/// Whether the answer comes from memory alone: probes, files of the web page, description of the API.
pub(super) fn is_static(path: &str) -> bool {
    is_probe(path) || page::is_page(path) || path == openapi::PATH
}

fn is_probe(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz")
}

/// The host of `host`, `host:port`, `[v6]` or `[v6]:port`; `None` for anything else.
fn host_part(authority: &str) -> Option<&str> {
    let (host, port) = match authority.rfind(']') {
        Some(end) => authority.split_at(end + 1),
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let port_fits = port.is_empty() || port.strip_prefix(':').is_some_and(|p| p.parse::<u16>().is_ok());
    (port_fits && !host.is_empty()).then_some(host)
}

/// Whether the answer comes from a snapshot of the loop and has no payloads, ids or customers.
pub(super) fn is_of_state(method: &Method, path: &str) -> bool {
    let reports = ["/api/v1/state", "/api/v1/applications", "/api/v1/parked", "/metrics"];
    // The paths below an application are about its items; even counts of them would reveal its customers.
    let is_application = path.strip_prefix("/api/v1/applications/").is_some_and(|name| !name.contains('/'));
    reads(method) && (reports.contains(&path) || is_application)
}

/// Whether the method changes nothing; on every path these methods only read.
pub(super) fn reads(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// The token of the one `Authorization: Bearer` header of a request.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, given) = value.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| given.trim_ascii())
}

/// Compares hashes, so that the time it takes reveals neither content nor length of the token.
fn is_token(given: &[u8], token: &SecretString) -> bool {
    let given = blake3::hash(given);
    let wanted = blake3::hash(token.expose_secret().as_bytes());
    given.as_bytes().ct_eq(wanted.as_bytes()).into()
}

/// Whether a page of another origin sent the request. Browsers add these headers for pages; other clients do
/// not. For a page served from here the value is `same-origin`.
fn is_foreign_page(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return !matches!(site.as_bytes(), b"same-origin" | b"none");
    }
    headers.contains_key(header::ORIGIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    fn tokens(full: Option<&str>, read: Option<&str>) -> Tokens {
        let secret = |text: Option<&str>| text.map(|text| text.to_owned().into());
        Tokens { full: secret(full), read: secret(read), state: secret(full.map(|_| "st4te")) }
    }

    fn guard(listen: &str, full: Option<&str>, read: Option<&str>) -> Guard {
        Guard::new(tokens(full, read), &Listen::parse(listen).unwrap())
    }

    fn open() -> Guard {
        guard("127.0.0.5:9380", None, None)
    }

    fn judge(
        guard: &Guard,
        path: &'static str,
        pairs: &[(&'static str, &'static str)],
    ) -> Result<Grant, Refusal> {
        guard.judge(&Method::GET, &Uri::from_static(path), &headers(pairs))
    }

    #[test]
    fn host_names_that_mean_loopback_pass() {
        for host in [
            "localhost",
            "LocalHost:9380",
            "127.0.0.1",
            "127.0.0.1:80",
            "[::1]",
            "[::1]:9380",
            "127.0.0.5:9380",
        ] {
            assert_eq!(judge(&open(), "/api/v1/state", &[("host", host)]), Ok(Grant::Open), "{host}");
        }
    }

    #[test]
    fn other_host_names_do_not() {
        for host in [
            "evil.example",
            "localhost.evil.example",
            "localhost.",
            "127.0.0.1.evil.example",
            "",
            ":9380",
            "127.0.0.2",
            "10.0.0.1:9380",
            "localhost:x",
            "localhost:",
            "[::1]evil",
            "[::1",
            "::1:80:90",
            "localhost:80:80",
            "user@localhost",
            "0.0.0.0",
            "127.1",
        ] {
            for path in ["/api/v1/state", "/livez", "/nowhere"] {
                let refused = judge(&open(), path, &[("host", host)]);
                assert_eq!(refused, Err(Refusal::Host), "{host:?} {path}");
            }
        }
        assert_eq!(judge(&open(), "/livez", &[]), Err(Refusal::Host));
        assert_eq!(
            judge(&open(), "/livez", &[("host", "localhost"), ("host", "evil.example")]),
            Err(Refusal::Host)
        );
        assert_eq!(judge(&open(), "http://evil.example/livez", &[("host", "localhost")]), Err(Refusal::Host));
    }

    #[test]
    fn web_pages_are_kept_out() {
        let host = ("host", "localhost");
        for (pair, want) in [
            (("origin", "http://evil.example"), Err(Refusal::Origin)),
            (("origin", "null"), Err(Refusal::Origin)),
            (("sec-fetch-site", "cross-site"), Err(Refusal::Origin)),
            (("sec-fetch-site", "same-site"), Err(Refusal::Origin)),
            (("sec-fetch-site", "none"), Ok(Grant::Open)),
            (("sec-fetch-site", "same-origin"), Ok(Grant::Open)),
        ] {
            assert_eq!(judge(&open(), "/api/v1/state", &[host, pair]), want, "{pair:?}");
        }
    }

    #[test]
    fn a_token_is_needed_everywhere_but_for_probes() {
        let guard = guard("0.0.0.0:9380", Some("s3cret"), None);
        let auth = |value| judge(&guard, "/api/v1/state", &[("authorization", value)]);
        assert_eq!(auth("Bearer s3cret"), Ok(Grant::Full));
        assert_eq!(auth("bearer s3cret"), Ok(Grant::Full));
        for wrong in ["Bearer s3cre", "Bearer s3cret2", "Bearer ", "Bearer", "s3cret", "Basic s3cret", ""] {
            assert_eq!(auth(wrong), Err(Refusal::Unauthorized), "{wrong:?}");
        }
        assert_eq!(judge(&guard, "/api/v1/state", &[]), Err(Refusal::Unauthorized));
        assert_eq!(judge(&guard, "/nowhere", &[]), Err(Refusal::Unauthorized));
        assert_eq!(
            judge(&guard, "/a", &[("authorization", "Bearer x"), ("authorization", "Bearer s3cret")]),
            Err(Refusal::Unauthorized)
        );
        for path in ["/livez", "/readyz"] {
            let asked = |method: Method| guard.judge(&method, &Uri::from_static(path), &headers(&[]));
            for method in [Method::GET, Method::HEAD] {
                assert_eq!(asked(method), Ok(Grant::Open), "{path}");
            }
            // Excluded: bodies without a token that never end and take all places for bodies.
            for method in [Method::POST, Method::PUT, Method::DELETE] {
                assert_eq!(asked(method), Err(Refusal::Unauthorized), "{path}");
            }
        }
    }

    #[test]
    fn the_page_is_shown_to_whoever_may_connect_and_nothing_is_told() {
        let locked = guard("0.0.0.0:9380", Some("s3cret"), Some("r3ad"));
        for path in ["/", "/page.css", "/page.js"] {
            assert_eq!(judge(&locked, path, &[]), Ok(Grant::Open), "{path}");
            let uri = Uri::from_static(path);
            let posted = locked.judge(&Method::POST, &uri, &HeaderMap::new());
            assert_eq!(posted, Err(Refusal::Unauthorized), "{path}");
            // Without a token, the requested host name is checked here, too.
            assert_eq!(judge(&open(), path, &[("host", "localhost:1")]), Ok(Grant::Open));
            assert_eq!(judge(&open(), path, &[("host", "evil.example")]), Err(Refusal::Host));
            let foreign = [("host", "localhost"), ("sec-fetch-site", "cross-site")];
            assert_eq!(judge(&open(), path, &foreign), Err(Refusal::Origin));
        }
        for path in ["/page.html", "/page.js/", "//", "/api/v1/state", "/metrics", "/api/v1/timeline"] {
            assert_eq!(judge(&locked, path, &[]), Err(Refusal::Unauthorized), "{path}");
        }
    }

    #[test]
    fn the_second_token_reads_and_does_nothing_else() {
        let guard = guard("127.0.0.1:9380", Some("s3cret"), Some("r3ad"));
        let judge = |method: &Method, path: &'static str, token: &'static str| {
            guard.judge(method, &Uri::from_static(path), &headers(&[("authorization", token)]))
        };
        for method in [Method::GET, Method::HEAD] {
            assert_eq!(judge(&method, "/api/v1/state", "Bearer r3ad"), Ok(Grant::Read));
            assert_eq!(judge(&method, "/api/v1/state", "Bearer s3cret"), Ok(Grant::Full));
        }
        for method in [Method::POST, Method::DELETE, Method::PUT, Method::PATCH, Method::OPTIONS] {
            let refused = judge(&method, "/api/v1/items/a/1", "Bearer r3ad");
            assert_eq!(refused, Err(Refusal::ReadOnly), "{method}");
            assert_eq!(judge(&method, "/api/v1/items/a/1", "Bearer s3cret"), Ok(Grant::Full), "{method}");
            let refused = judge(&method, "/api/v1/items/a/1", "Bearer other");
            assert_eq!(refused, Err(Refusal::Unauthorized), "{method}");
        }
        assert_eq!(judge(&Method::GET, "/api/v1/state", "Bearer other"), Err(Refusal::Unauthorized));
    }

    #[test]
    fn the_third_token_sees_how_things_stand_and_no_more() {
        let guard = guard("127.0.0.1:9380", Some("s3cret"), Some("r3ad"));
        let judge = |method: &Method, path: &'static str| {
            guard.judge(method, &Uri::from_static(path), &headers(&[("authorization", "Bearer st4te")]))
        };
        for path in ["/api/v1/state", "/metrics", "/api/v1/applications?x", "/api/v1/parked"] {
            assert_eq!(judge(&Method::GET, path), Ok(Grant::State), "{path}");
            assert_eq!(judge(&Method::HEAD, path), Ok(Grant::State), "{path}");
            assert_eq!(judge(&Method::POST, path), Err(Refusal::StateOnly), "{path}");
        }
        for path in [
            "/api/v1/items",
            "/api/v1/items/a/1",
            "/api/v1/customers/a/c",
            "/api/v1/timeline",
            "/api/v1/export",
            "/api/v1/dead",
            "/api/v1/dead/export",
            "/x/metrics",
        ] {
            assert_eq!(judge(&Method::GET, path), Err(Refusal::StateOnly), "{path}");
        }
    }

    #[test]
    fn a_socket_is_guarded_as_loopback_is() {
        let guard = guard("unix:/run/tidegate/admin.sock", None, None);
        for host in ["localhost", "127.0.0.1:9380", "[::1]"] {
            assert_eq!(judge(&guard, "/api/v1/state", &[("host", host)]), Ok(Grant::Open), "{host}");
        }
        // The request of a page through a forwarded port, after its name was rebound to this machine.
        let rebound = [("host", "evil.example:9380"), ("sec-fetch-site", "same-origin")];
        assert_eq!(judge(&guard, "/api/v1/state", &rebound), Err(Refusal::Host));
        let page = [("host", "localhost:9380"), ("sec-fetch-site", "cross-site")];
        assert_eq!(judge(&guard, "/api/v1/state", &page), Err(Refusal::Origin));
        assert_eq!(judge(&guard, "/api/v1/state", &[]), Err(Refusal::Host));
    }

    #[test]
    fn no_token_is_printed() {
        let guard = guard("0.0.0.0:9380", Some("s3cret"), Some("r3ad"));
        let shown = format!("{guard:?}");
        assert!(["s3cret", "r3ad", "st4te"].iter().all(|token| !shown.contains(token)), "{shown}");
    }
}
