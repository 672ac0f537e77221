//! The running daemon, asked through its admin port.

use super::output::{plain, Failure};
use crate::config::Admin;
use percent_encoding::{utf8_percent_encode, AsciiSet, NON_ALPHANUMERIC};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use ureq::http::{Method, Request, Uri};

/// Longer than the daemon takes for its slowest answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(40);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// A page of items, or a thousand applications, with long names and errors stay below.
const MAX_ANSWER: u64 = 16 << 20;
/// Dots are encoded: `..` as a name must reach the daemon.
const ENCODED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');

/// See the module.
pub(super) struct Client {
    agent: ureq::Agent,
    base: String,
    authorization: Option<String>,
}

impl Client {
    /// For the daemon that listens as `[admin]` says.
    pub(super) fn new(admin: &Admin) -> Self {
        Client::to(format!("http://{}", reachable(admin.listen)), admin.token.as_ref())
    }

    /// For the daemon at this address.
    ///
    /// # Errors
    /// Usage: it is not `http://HOST:PORT`.
    pub(super) fn at(url: &str, token: Option<&SecretString>) -> Result<Self, Failure> {
        let wrong = |why: &str| {
            Failure::Usage(format!("the daemon's URL needs the form http://127.0.0.1:9380: {why}"))
        };
        let parsed: Uri = url.parse().map_err(|_| wrong("it is none"))?;
        let authority = parsed.authority().map_or("", |a| a.as_str());
        match parsed.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(wrong("TLS is a proxy's task, and there is none in this client")),
            Some(_) | None => return Err(wrong("it does not begin with http://")),
        }
        if authority.is_empty() || authority.contains('@') || !matches!(parsed.path(), "" | "/") {
            return Err(wrong("it holds something else than host and port"));
        }
        Ok(Client::to(format!("http://{authority}"), token))
    }

    fn to(base: String, token: Option<&SecretString>) -> Self {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            // The daemon is asked directly, and its token is shown to no proxy.
            .proxy(None)
            .timeout_connect(Some(CONNECT_WITHIN))
            .timeout_global(Some(ANSWER_WITHIN))
            .build();
        Client {
            agent: ureq::Agent::new_with_config(agent),
            base,
            authorization: token.map(|t| format!("Bearer {}", t.expose_secret())),
        }
    }

    /// Status and document of one exchange, whatever the status.
    ///
    /// # Errors
    /// No answer, or one that is no JSON.
    pub(super) fn exchange(&self, method: Method, path: &str) -> Result<(u16, Value), Failure> {
        let unreachable =
            |error: ureq::Error| Failure::Failed(format!("no daemon answers at {}: {error}", self.base));
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let request = request.body(()).map_err(Failure::failed)?;
        let mut answer = self.agent.run(request).map_err(unreachable)?;
        let status = answer.status().as_u16();
        let text = answer.body_mut().with_config().limit(MAX_ANSWER).read_to_string().map_err(unreachable)?;
        let value = serde_json::from_str(&text).map_err(|_| self.not_tidegate())?;
        Ok((status, value))
    }

    /// The document of an answer: of what there is, or of what is `unknown`.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(super) fn ask(&self, method: Method, path: &str) -> Result<Value, Failure> {
        match self.exchange(method, path)? {
            (200, document) => Ok(document),
            (404, document) if is_unknown(&document) => Ok(document),
            (status, document) => Err(self.said(status, &document)),
        }
    }

    /// The daemon's refusal, as a failure.
    pub(super) fn said(&self, status: u16, answer: &Value) -> Failure {
        if status == 401 {
            return Failure::failed(
                "the daemon wants its token: name its file with --token-file, set TIDEGATE_TOKEN, or let \
                 admin.token_file of this configuration name it",
            );
        }
        let said = answer["error"].as_str().unwrap_or("no reason given");
        if status == 409 {
            return Failure::Partial(format!("not done: {}", plain(said)));
        }
        Failure::Failed(format!("{}: HTTP {status}: {}", self.base, plain(said)))
    }

    /// Something else listens there.
    pub(super) fn not_tidegate(&self) -> Failure {
        Failure::Failed(format!("what answers at {} is not tidegate's admin server", self.base))
    }
}

/// The daemon knows nothing of it.
pub(super) fn is_unknown(document: &Value) -> bool {
    document["result"] == "unknown" || document["state"] == "unknown"
}

/// A path below `/api/v1`, of segments as they are meant.
pub(super) fn path(segments: &[&str]) -> String {
    segments.iter().fold("/api/v1".to_owned(), |path, segment| path + "/" + &encoded(segment))
}

/// A query, with its question mark; empty without pairs.
pub(super) fn query(pairs: &[(&str, String)]) -> String {
    let pairs: Vec<_> = pairs.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    if pairs.is_empty() {
        return String::new();
    }
    format!("?{}", pairs.join("&"))
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, &ENCODED).to_string()
}

/// Where a listener can be reached from its own machine.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip().to_canonical() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        IpAddr::V4(_) | IpAddr::V6(_) => listen.ip(),
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::admin::{parse, serve, AdminOptions, Ask, Readiness, Server};
    use crate::config::Config;
    use std::sync::Arc;
    use tokio::runtime::Runtime;

    /// A daemon's admin server, until it is dropped.
    pub(in crate::cli) struct Daemon {
        pub(in crate::cli) readiness: Arc<Readiness>,
        server: Server,
        runtime: Runtime,
    }

    impl Daemon {
        pub(in crate::cli) fn stop(self) {
            self.runtime.block_on(self.server.stop());
        }
    }

    /// Starts one, and makes the configuration that leads to it.
    pub(in crate::cli) fn running(token: Option<&str>, ask: Ask) -> (Daemon, Config) {
        let mut config = Config::load(None, std::iter::empty()).unwrap().config;
        config.admin.token = token.map(|t| t.to_owned().into());
        config.admin.listen = "127.0.0.1:0".parse().unwrap();
        let readiness = Arc::new(Readiness::new());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = runtime
            .block_on(serve(AdminOptions::from(&config.admin), readiness.clone(), Arc::default(), ask))
            .unwrap();
        config.admin.listen = server.local_addr();
        (Daemon { readiness, server, runtime }, config)
    }

    impl Client {
        /// Address and `Authorization`.
        pub(in crate::cli) fn shown(&self) -> (String, Option<String>) {
            (self.base.clone(), self.authorization.clone())
        }
    }

    #[test]
    fn a_listener_on_every_address_is_reached_on_loopback() {
        let at = |text: &str| reachable(text.parse().unwrap()).to_string();
        assert_eq!(at("0.0.0.0:9380"), "127.0.0.1:9380");
        assert_eq!(at("[::]:9380"), "[::1]:9380");
        assert_eq!(at("10.1.2.3:9380"), "10.1.2.3:9380");
    }

    #[test]
    fn the_daemon_reads_what_was_meant() {
        for (application, id) in [("mail", "17"), ("..", "."), ("a/b c", "100%?#&=+"), ("größe", "\0\n✓")]
        {
            let item = parse::item(&path(&["items", application, id])).unwrap();
            assert_eq!((&*item.application, &*item.id), (application, id));
            let pairs = [("application", application.to_owned()), ("customer", id.to_owned())];
            let filter = parse::filter(query(&pairs).strip_prefix('?')).unwrap();
            assert_eq!(
                (filter.application.as_deref(), filter.customer.as_deref()),
                (Some(application), Some(id))
            );
        }
        assert_eq!(query(&[]), "");
    }
}
