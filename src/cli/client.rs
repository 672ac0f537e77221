//! A client of the running daemon's admin port.

use super::output::{plain, Failure};
use super::unix::SocketConnector;
use percent_encoding::{utf8_percent_encode, AsciiSet, NON_ALPHANUMERIC};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;
use tidegate_config::{Admin, Listen, UNIX_SCHEME};
use ureq::http::{Method, Request, Response, Uri};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::Body;

/// Longer than the daemon's slowest answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(40);
/// Longer than the longest life of a connection at the daemon.
const STREAM_WITHIN: Duration = Duration::from_secs(660);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// A page of items, a thousand applications with long names and errors, and the largest dead letter fit.
const MAX_ANSWER: u64 = 16 << 20;
/// Dots are encoded, so that the name `..` reaches the daemon.
const ENCODED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');

/// An HTTP client for one daemon.
pub(super) struct Client {
    agent: ureq::Agent,
    /// The part of a request's URL before the path.
    base: String,
    /// The daemon's address, as an operator writes it.
    place: String,
    authorization: Option<String>,
    /// What `authorization` consists of, for the sentence about a refusal.
    token_from: &'static str,
}

impl Client {
    /// A client for the daemon that listens at the address of `[admin]`.
    ///
    /// # Errors
    /// Failed: the listener is off.
    pub(super) fn new(admin: &Admin) -> Result<Self, Failure> {
        match &admin.listen {
            Listen::Tcp(address) => {
                Ok(Client::to_host(format!("http://{}", reachable(*address)), admin.token.as_ref()))
            }
            Listen::Unix(path) => Ok(Client::to_socket(path, admin.token.as_ref())),
            Listen::Off => Err(Failure::failed(
                "admin.listen is off: this daemon has no admin port. Name another daemon with --url",
            )),
        }
    }

    /// A client for the daemon at this address.
    ///
    /// # Errors
    /// Usage: the address is neither `http://HOST:PORT` nor `unix:/PATH`.
    pub(super) fn at(url: &str, token: Option<&SecretString>) -> Result<Self, Failure> {
        let wrong = |why: &str| {
            Failure::Usage(format!(
                "the daemon's URL needs the form http://127.0.0.1:9380 or unix:/PATH: {why}"
            ))
        };
        if url.starts_with(UNIX_SCHEME) {
            return match Listen::parse(url) {
                Ok(Listen::Unix(path)) => Ok(Client::to_socket(&path, token)),
                Ok(Listen::Tcp(_) | Listen::Off) => Err(wrong("it is not a URL")),
                Err(why) => Err(wrong(&format!("it {why}"))),
            };
        }
        let parsed: Uri = url.parse().map_err(|_| wrong("it is not a URL"))?;
        let authority = parsed.authority().map_or("", |a| a.as_str());
        match parsed.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(wrong("this client does not support TLS")),
            Some(_) | None => return Err(wrong("it must begin with http:// or unix:")),
        }
        if authority.is_empty() || authority.contains('@') || !matches!(parsed.path(), "" | "/") {
            return Err(wrong("it must contain only host and port"));
        }
        Ok(Client::to_host(format!("http://{authority}"), token))
    }

    fn to_host(base: String, token: Option<&SecretString>) -> Self {
        let agent = ureq::Agent::new_with_config(bounds());
        let authorization = token.map(bearer);
        Client { agent, place: base.clone(), base, authorization, token_from: "this token" }
    }

    fn to_socket(path: &Path, token: Option<&SecretString>) -> Self {
        let connector = SocketConnector::new(path, CONNECT_WITHIN);
        let agent = ureq::Agent::with_parts(bounds(), connector, DefaultResolver::default());
        Client {
            agent,
            // The host name that the daemon expects; it is not resolved.
            base: format!("http://{}", Ipv4Addr::LOCALHOST),
            place: Listen::Unix(path.to_path_buf()).to_string(),
            authorization: token.map(bearer),
            token_from: "this token",
        }
    }

    /// The same client, whose failures name its token in these words.
    pub(super) fn token_from(self, token_from: &'static str) -> Self {
        Client { token_from, ..self }
    }

    /// Status and document of one exchange, with any status.
    ///
    /// # Errors
    /// If there is no answer, or it is not JSON.
    pub(super) fn exchange(&self, method: Method, path: &str) -> Result<(u16, Value), Failure> {
        let (status, text) = self.send(method, path, ANSWER_WITHIN)?;
        let value = serde_json::from_str(&text).map_err(|_| self.not_tidegate())?;
        Ok((status, value))
    }

    /// Status of a probe, and its document if it has one; waits at most `within`.
    ///
    /// # Errors
    /// If no answer arrives in time.
    pub(super) fn probe(&self, path: &str, within: Duration) -> Result<(u16, Value), Failure> {
        let (status, text) = self.send(Method::GET, path, within)?;
        Ok((status, serde_json::from_str(&text).unwrap_or_default()))
    }

    /// The lines of an answer of any length, as they arrive.
    ///
    /// # Errors
    /// If there is no answer, or a refusal.
    pub(super) fn stream(&self, path: &str) -> Result<impl BufRead, Failure> {
        let mut answer = self.answer(Method::GET, path, STREAM_WITHIN)?;
        let status = answer.status().as_u16();
        if status == 200 {
            return Ok(BufReader::new(answer.into_body().into_reader()));
        }
        let text = answer.body_mut().with_config().limit(MAX_ANSWER).read_to_string().unwrap_or_default();
        Err(self.said(status, &serde_json::from_str(&text).map_err(|_| self.not_tidegate())?))
    }

    /// Status and text of one exchange, with any status; waits at most `within`.
    ///
    /// # Errors
    /// If no answer arrives in time.
    pub(super) fn send(
        &self,
        method: Method,
        path: &str,
        within: Duration,
    ) -> Result<(u16, String), Failure> {
        let mut answer = self.answer(method, path, within)?;
        let status = answer.status().as_u16();
        let text = answer.body_mut().with_config().limit(MAX_ANSWER).read_to_string();
        let fault = |error: ureq::Error| {
            if let ureq::Error::BodyExceedsLimit(most) = error {
                let text = format!("{}: the answer is longer than {most} bytes: request less", self.place);
                return Failure::Failed(text);
            }
            self.unreachable(&error)
        };
        Ok((status, text.map_err(fault)?))
    }

    fn unreachable(&self, error: &ureq::Error) -> Failure {
        Failure::Failed(format!("no daemon answers at {}: {error}", self.place))
    }

    fn answer(&self, method: Method, path: &str, within: Duration) -> Result<Response<Body>, Failure> {
        let mut request = Request::builder().method(&method).uri(format!("{}{path}", self.base));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        if method == Method::POST {
            // Without a length, the end of the empty body would be a second write.
            request = request.header("content-length", "0");
        }
        let request = request.body(()).map_err(Failure::failed)?;
        let request = self.agent.configure_request(request).timeout_global(Some(within)).build();
        self.agent.run(request).map_err(|error| self.unreachable(&error))
    }

    /// The document of an answer, `unknown` included.
    ///
    /// # Errors
    /// If there is no answer, or a refusal.
    pub(super) fn ask(&self, method: Method, path: &str) -> Result<Value, Failure> {
        match self.exchange(method, path)? {
            (200, document) => Ok(document),
            (404, document) if is_unknown(&document) => Ok(document),
            (status, document) => Err(self.said(status, &document)),
        }
    }

    /// The failure for a refusal by the daemon.
    pub(super) fn said(&self, status: u16, answer: &Value) -> Failure {
        if status == 401 && self.authorization.is_some() {
            return Failure::Failed(format!(
                "the daemon does not accept {}. It accepts the tokens that its files held when it started",
                self.token_from
            ));
        }
        if status == 401 {
            return Failure::failed(
                "the daemon requires a token: name its file with --token-file or with admin.token_file of \
                 this configuration, or set TIDEGATE_TOKEN",
            );
        }
        let said = answer["error"].as_str().unwrap_or("no reason given");
        if status == 409 {
            return Failure::Partial(format!("not done: {}", plain(said)));
        }
        Failure::Failed(format!("{}: HTTP {status}: {}", self.place, plain(said)))
    }

    /// The failure if another server listens at the address.
    pub(super) fn not_tidegate(&self) -> Failure {
        Failure::Failed(format!("the server at {} is not tidegate's admin server", self.place))
    }
}

fn bounds() -> ureq::config::Config {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        // A daemon may end an old connection with the exchange on it. Over a socket none is reused either.
        .max_idle_connections(0)
        // The client connects directly, so that no proxy sees the token.
        .proxy(None)
        .timeout_connect(Some(CONNECT_WITHIN))
        .build()
}

fn bearer(token: &SecretString) -> String {
    format!("Bearer {}", token.expose_secret())
}

/// Whether the target is unknown to the daemon.
pub(super) fn is_unknown(document: &Value) -> bool {
    document["result"] == "unknown" || document["state"] == "unknown"
}

/// A path below `/api/v1`, from unencoded segments.
pub(super) fn path(segments: &[&str]) -> String {
    segments.iter().fold("/api/v1".to_owned(), |path, segment| path + "/" + &encoded(segment))
}

/// A query with its question mark; empty without pairs.
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

/// The address of a listener as seen from its own machine.
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
    use crate::admin::{parse, serve, AdminOptions, Ask, NodeHealth, Readiness, Server, ShardHealth};
    use std::io::Write;
    use std::net::TcpListener;
    use std::sync::Arc;
    use tidegate_config::Config;
    use tokio::runtime::Runtime;

    /// The admin server of a daemon, until it is dropped.
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

    /// Starts a server, and makes a configuration that names it.
    pub(in crate::cli) fn running(token: Option<&str>, ask: Ask) -> (Daemon, Config) {
        running_at("127.0.0.1:0", token, ask)
    }

    /// As [`running`], at the address `listen`.
    fn running_at(listen: &str, token: Option<&str>, ask: Ask) -> (Daemon, Config) {
        let mut config = Config::load(None, std::iter::empty()).unwrap().config;
        config.admin.token = token.map(|t| t.to_owned().into());
        config.admin.listen = Listen::parse(listen).unwrap();
        let shard = ShardHealth::default();
        let readiness = Arc::clone(&shard.readiness);
        let health = Arc::new(NodeHealth::of(vec![shard]));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = runtime.block_on(serve(AdminOptions::from(&config.admin), health, ask)).unwrap();
        config.admin.listen = server.listens_at().clone();
        (Daemon { readiness, server, runtime }, config)
    }

    impl Client {
        /// Address and `Authorization`.
        pub(in crate::cli) fn shown(&self) -> (String, Option<String>) {
            (self.place.clone(), self.authorization.clone())
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
    fn a_socket_is_asked_as_an_address_is() {
        let dir = tempfile::tempdir().unwrap();
        let listen = format!("unix:{}/admin.sock", dir.path().display());
        let (daemon, config) = running_at(&listen, Some("a-token"), Arc::new(drop));
        let client = Client::new(&config.admin).unwrap();
        assert_eq!(client.shown(), (listen.clone(), Some("Bearer a-token".to_owned())));
        assert_eq!(client.exchange(Method::GET, "/readyz").unwrap().0, 503);
        // The same address by name, and without the token.
        let client = Client::at(&listen, None).unwrap();
        assert_eq!(client.exchange(Method::GET, "/readyz").unwrap().0, 503);
        assert_eq!(client.exchange(Method::GET, "/api/v1/state").unwrap().0, 401);
        daemon.stop();
        let failure = client.exchange(Method::GET, "/readyz").unwrap_err();
        assert!(failure.text().contains(&listen), "{failure:?}");
    }

    #[test]
    fn a_token_that_is_not_accepted_is_not_called_missing() {
        let (daemon, config) = running(Some("a-token"), Arc::new(drop));
        let url = format!("http://{}", config.admin.listen);
        let said = |token: Option<&SecretString>| {
            let client = Client::at(&url, token).unwrap().token_from("the token in TIDEGATE_TOKEN");
            client.ask(Method::GET, "/api/v1/state").unwrap_err().text().to_owned()
        };
        let missing = said(None);
        assert!(missing.contains("requires a token"), "{missing}");
        let wrong = said(Some(&"another-token".to_owned().into()));
        assert!(wrong.contains("does not accept the token in TIDEGATE_TOKEN"), "{wrong}");
        daemon.stop();
    }

    /// A refusal may close the connection as soon as the head is read.
    #[test]
    fn a_request_ends_with_its_head() {
        for method in [Method::GET, Method::DELETE, Method::POST] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let client = Client::at(&format!("http://{}", listener.local_addr().unwrap()), None).unwrap();
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
                head.join("\n").to_ascii_lowercase()
            });
            let answer = client.send(method.clone(), "/x", Duration::from_secs(20)).unwrap();
            assert_eq!(answer, (200, "{}".to_owned()));
            let head = server.join().unwrap();
            assert!(!head.contains("transfer-encoding"), "{head}");
            assert_eq!(head.contains("content-length: 0"), method == Method::POST, "{head}");
        }
    }

    /// The server keeps each connection open, and answers once on it.
    #[test]
    fn each_exchange_has_a_connection_of_its_own() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = Client::at(&format!("http://{}", listener.local_addr().unwrap()), None).unwrap();
        let server = std::thread::spawn(move || {
            [(); 2].map(|()| {
                let (mut stream, _) = listener.accept().unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                assert!(lines.take_while(|line| !line.is_empty()).count() > 0);
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
                stream
            })
        });
        for _ in 0..2 {
            let answer = client.send(Method::GET, "/readyz", Duration::from_secs(20)).unwrap();
            assert_eq!(answer, (200, "{}".to_owned()));
        }
        drop(server.join().unwrap());
    }

    #[test]
    fn a_daemon_that_listens_nowhere_is_not_asked() {
        let mut admin = Config::default().admin;
        admin.listen = Listen::Off;
        let failure = Client::new(&admin).err().unwrap();
        assert!(failure.text().contains("admin.listen is off"), "{failure:?}");
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
