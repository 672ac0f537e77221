//! Who may ask: token, `Host` and origin of a request, judged from its headers alone; pure.
//!
//! Two regimes. With a token, the bearer of it may do everything, from anywhere. Without one the listener is
//! on loopback, and what has to be kept out is a web page in a browser on the same machine: by the name it
//! used (DNS rebinding) and by the origin it comes from. There is no CORS: no page may ever read an answer.

use axum::http::{header, HeaderMap, StatusCode, Uri};
use secrecy::{ExposeSecret, SecretString};
use std::net::{IpAddr, SocketAddr};
use subtle::ConstantTimeEq;

/// Longest path and query, bytes: the longest names of the contract, percent-encoded, fit several times.
pub(super) const MAX_URI: usize = 8 * 1024;

/// What a request has to show.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    /// `None`: loopback without token.
    token: Option<SecretString>,
    /// The address that is listened on.
    listen: IpAddr,
}

/// Why a request is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Path and query above [`MAX_URI`].
    UriTooLong,
    /// No token, or a wrong one.
    Unauthorized,
    /// No `Host`, or one that does not mean this listener.
    Host,
    /// Sent by a web page of another origin.
    Origin,
}

impl Refusal {
    /// The answer's status.
    pub(super) fn status(self) -> StatusCode {
        match self {
            Refusal::UriTooLong => StatusCode::URI_TOO_LONG,
            Refusal::Unauthorized => StatusCode::UNAUTHORIZED,
            Refusal::Host | Refusal::Origin => StatusCode::FORBIDDEN,
        }
    }

    /// The answer's sentence.
    pub(super) fn text(self) -> &'static str {
        match self {
            Refusal::UriTooLong => "the path and query are too long",
            Refusal::Unauthorized => "the header Authorization: Bearer TOKEN is missing or wrong",
            Refusal::Host => "the Host header does not name this listener",
            Refusal::Origin => "requests from web pages are not answered",
        }
    }
}

impl Guard {
    /// For a listener on `listen`. Without `token` that has to be a loopback address; `super::serve` sees to
    /// it.
    pub(super) fn new(token: Option<SecretString>, listen: SocketAddr) -> Self {
        Guard { token, listen: listen.ip() }
    }

    /// Judges one request. Probes (`/livez`, `/readyz`) need no token: they tell a supervisor nothing but
    /// which part is not up, and supervisors seldom carry secrets.
    pub(super) fn judge(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        if uri.path_and_query().map_or(0, |p| p.as_str().len()) > MAX_URI {
            return Err(Refusal::UriTooLong);
        }
        match &self.token {
            Some(_) if is_probe(uri.path()) => Ok(()),
            Some(token) if bearer_is(headers, token) => Ok(()),
            Some(_) => Err(Refusal::Unauthorized),
            None if !self.host_is_ours(uri, headers) => Err(Refusal::Host),
            None if is_foreign_page(headers) => Err(Refusal::Origin),
            None => Ok(()),
        }
    }

    fn host_is_ours(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        // Both are looked at: with an absolute target the Host header should be ignored, but a page can
        // choose neither, so neither may be foreign.
        let mut hosts = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
        let target_fits = uri.authority().is_none_or(|a| self.names_us(a.as_str()));
        target_fits && host.to_str().is_ok_and(|h| self.names_us(h))
    }

    /// Any port will do: through a tunnel it is another one, and a rebound page is known by its name.
    fn names_us(&self, authority: &str) -> bool {
        let Some(host) = host_part(authority) else { return false };
        if host.eq_ignore_ascii_case("localhost") {
            return true;
        }
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        bare.parse::<IpAddr>().is_ok_and(|ip| {
            ip == self.listen
                || ip == IpAddr::from(std::net::Ipv4Addr::LOCALHOST)
                || ip == IpAddr::from(std::net::Ipv6Addr::LOCALHOST)
        })
    }
}

/// Answered without token.
pub(super) fn is_probe(path: &str) -> bool {
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

/// Hashed before they are compared: so neither content nor length of the token shows in the time it takes.
fn bearer_is(headers: &HeaderMap, token: &SecretString) -> bool {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return false };
    let bytes = value.as_bytes();
    let Some((scheme, given)) = bytes.split_at_checked(7) else { return false };
    if !scheme.eq_ignore_ascii_case(b"bearer ") {
        return false;
    }
    let given = blake3::hash(given.trim_ascii());
    let wanted = blake3::hash(token.expose_secret().as_bytes());
    given.as_bytes().ct_eq(wanted.as_bytes()).into()
}

/// Browsers add these to what a page sends; other clients do not. A page served from here would be
/// `same-origin`.
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

    fn open() -> Guard {
        Guard::new(None, "127.0.0.5:9380".parse().unwrap())
    }

    fn judge(
        guard: &Guard,
        path: &'static str,
        pairs: &[(&'static str, &'static str)],
    ) -> Result<(), Refusal> {
        guard.judge(&Uri::from_static(path), &headers(pairs))
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
            assert_eq!(judge(&open(), "/api/v1/state", &[("host", host)]), Ok(()), "{host}");
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
            (("sec-fetch-site", "none"), Ok(())),
            (("sec-fetch-site", "same-origin"), Ok(())),
        ] {
            assert_eq!(judge(&open(), "/api/v1/state", &[host, pair]), want, "{pair:?}");
        }
    }

    #[test]
    fn a_token_is_needed_everywhere_but_for_probes() {
        let guard = Guard::new(Some("s3cret".to_owned().into()), "0.0.0.0:9380".parse().unwrap());
        let auth = |value| judge(&guard, "/api/v1/state", &[("authorization", value)]);
        assert_eq!(auth("Bearer s3cret"), Ok(()));
        assert_eq!(auth("bearer s3cret"), Ok(()));
        for wrong in ["Bearer s3cre", "Bearer s3cret2", "Bearer ", "Bearer", "s3cret", "Basic s3cret", ""] {
            assert_eq!(auth(wrong), Err(Refusal::Unauthorized), "{wrong:?}");
        }
        assert_eq!(judge(&guard, "/api/v1/state", &[]), Err(Refusal::Unauthorized));
        assert_eq!(judge(&guard, "/nowhere", &[]), Err(Refusal::Unauthorized));
        assert_eq!(
            judge(&guard, "/a", &[("authorization", "Bearer x"), ("authorization", "Bearer s3cret")]),
            Err(Refusal::Unauthorized)
        );
        assert_eq!(judge(&guard, "/livez", &[]), Ok(()));
        assert_eq!(judge(&guard, "/readyz", &[]), Ok(()));
    }

    #[test]
    fn the_token_is_not_printed() {
        let guard = Guard::new(Some("s3cret".to_owned().into()), "0.0.0.0:9380".parse().unwrap());
        assert!(!format!("{guard:?}").contains("s3cret"));
    }
}
