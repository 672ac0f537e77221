//! Tests of the server over real sockets with a real HTTP client.

mod commands;
mod export;

use super::state::tests::example;
use super::*;
use serde_json::{json, Value};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use tidegate_common::progress::{DaemonPart, ProgressMarks};

const TOKEN: &str = "canary-token";
const READ_TOKEN: &str = "canary-read-token";

/// A server on its own port and runtime, until it is dropped.
struct Running {
    readiness: Arc<Readiness>,
    progress: Arc<ProgressMarks>,
    horizon: Arc<TimeHorizon>,
    server: Option<Server>,
    runtime: tokio::runtime::Runtime,
}

fn start(token: Option<&str>, ask: Ask) -> Running {
    start_with(token, ProgressMarks::default(), ask)
}

fn start_with(token: Option<&str>, progress: ProgressMarks, ask: Ask) -> Running {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let shard = ShardHealth { progress: Arc::new(progress), ..ShardHealth::default() };
    let ShardHealth { readiness, progress, horizon } = shard.clone();
    let health = Arc::new(NodeHealth::of(vec![shard]));
    let options = AdminOptions {
        listen: at("127.0.0.1:0"),
        tokens: Tokens { full: secret(token), read: secret(token.map(|_| READ_TOKEN)), state: None },
    };
    let server = runtime.block_on(serve(options, health, ask)).unwrap();
    Running { readiness, progress, horizon, server: Some(server), runtime }
}

fn at(listen: &str) -> Listen {
    Listen::parse(listen).unwrap()
}

fn secret(text: Option<&str>) -> Option<SecretString> {
    text.map(|text| text.to_owned().into())
}

/// A loop that answers every query.
fn answering() -> Ask {
    Arc::new(|query| tell(query, example()))
}

fn tell(query: Query, state: StateInput) {
    match query {
        Query::State(_, reply) => drop(reply.send(state)),
        Query::Command(asked, _) => panic!("no command was expected: {asked:?}"),
        Query::Letters(asked, _) => panic!("no work on letters was expected: {asked:?}"),
        Query::Export(_) => panic!("no export was expected"),
    }
}

impl Running {
    fn addr(&self) -> SocketAddr {
        match self.server.as_ref().unwrap().listens_at() {
            Listen::Tcp(address) => *address,
            other @ (Listen::Unix(_) | Listen::Off) => panic!("no address: {other}"),
        }
    }

    fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let agent = ureq::Agent::new_with_config(
            ureq::Agent::config_builder()
                .http_status_as_error(false)
                .allow_non_standard_methods(true)
                .proxy(None)
                .timeout_global(Some(Duration::from_secs(20)))
                .build(),
        );
        let mut request =
            ureq::http::Request::builder().method(method).uri(format!("http://{}{path}", self.addr()));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut response = agent.run(request.body(body).unwrap()).unwrap();
        let text = response.body_mut().read_to_string().unwrap();
        Answer { status: response.status().as_u16(), headers: response.headers().clone(), text }
    }

    fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[], b"")
    }

    /// Sends raw bytes that a proper client would not send. Returns the status line.
    fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.addr()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        let mut chunk = [0; 1024];
        while !answer.windows(2).any(|w| w == b"\r\n") {
            match stream.read(&mut chunk).unwrap() {
                0 => break,
                n => answer.extend_from_slice(&chunk[..n]),
            }
        }
        String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
    }
}

struct Answer {
    status: u16,
    headers: ureq::http::HeaderMap,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }
}

#[test]
fn livez_is_ok_whatever_is_missing() {
    let it = start(None, answering());
    let answer = it.get("/livez");
    assert_eq!((answer.status, answer.text.as_str()), (200, "ok"));
    assert_eq!(it.request("HEAD", "/livez", &[], b"").status, 200);
}

#[test]
fn readyz_says_who_is_stuck_and_livez_who_is_dead() {
    // All parts have stood still for 50 s; the loop never answers.
    let it = start_with(Some(TOKEN), ProgressMarks::of_age(Duration::from_secs(50)), Arc::new(drop));
    Latch::ALL.into_iter().for_each(|latch| it.readiness.set(latch, true));
    let told = |path: &str| {
        let answer = it.get(path);
        (answer.status, answer.json())
    };
    let unready = |parts: &[&str]| (503, json!({ "ready": false, "missing": [], "stuck": parts }));
    assert_eq!(told("/readyz"), unready(&["loop", "ingest", "egress"]));
    assert_eq!(it.get("/livez").status, 200, "for one span only");
    it.progress.configure(Duration::from_secs(20));
    let dead = |parts: &[&str]| (503, json!({ "live": false, "stuck": parts }));
    assert_eq!(told("/livez"), dead(&["loop", "ingest", "egress"]));
    it.progress.moved(DaemonPart::Loop);
    it.progress.moved(DaemonPart::Ingest);
    it.progress.rests(DaemonPart::Egress);
    it.progress.told(DaemonPart::Schedule, None);
    it.progress.told(DaemonPart::Store, Some(41_000));
    assert_eq!(told("/livez"), dead(&["store"]));
    it.progress.told(DaemonPart::Store, Some(35_000));
    assert_eq!(told("/readyz"), unready(&["store"]));
    assert_eq!(it.get("/livez").status, 200);
    it.progress.told(DaemonPart::Store, None);
    assert_eq!((it.get("/readyz").status, it.get("/livez").status), (200, 200));
}

/// Seventy sockets that each send a piece of a head now and then, while the closure runs.
fn besieged<T>(addr: SocketAddr, work: impl FnOnce() -> T) -> T {
    let mut slow: Vec<TcpStream> = (0..70).map(|_| TcpStream::connect(addr).unwrap()).collect();
    let (done, ended) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0.. {
                for stream in &mut slow {
                    let piece = if round == 0 { "GET /livez HTTP/1.1\r\n" } else { "X-Slow: 1\r\n" };
                    if stream.write_all(piece.as_bytes()).is_err() {
                        // It was evicted: it connects again.
                        if let Ok(again) = TcpStream::connect(addr) {
                            *stream = again;
                        }
                    }
                }
                if ended.recv_timeout(Duration::from_millis(200))
                    != Err(std::sync::mpsc::RecvTimeoutError::Timeout)
                {
                    return;
                }
            }
        });
        let result = work();
        drop(done);
        result
    })
}

#[test]
fn probes_are_answered_while_slow_sockets_trickle() {
    for token in [None, Some(TOKEN)] {
        let it = start(token, answering());
        besieged(it.addr(), || {
            let took = (0..100).map(|_| {
                let asked = std::time::Instant::now();
                assert_eq!((it.get("/livez").status, it.get("/readyz").status), (200, 503));
                let took = asked.elapsed();
                std::thread::sleep(Duration::from_millis(10));
                took
            });
            let mut took: Vec<Duration> = took.collect();
            took.sort_unstable();
            // A busy machine may hold up some of them.
            assert!(took[50] < Duration::from_millis(500), "{took:?}");
            assert!(took[90] < Duration::from_secs(2), "{took:?}");
        });
    }
}

/// An address that connects as fast as it can waits for its own places only.
#[test]
fn a_crowd_from_one_address_holds_up_no_other() {
    let it = start(None, answering());
    let (addr, done) = (it.addr(), std::sync::atomic::AtomicBool::new(false));
    let other = SocketAddr::from(([127, 0, 0, 9], 0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut open = std::collections::VecDeque::new();
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let connected = it.runtime.block_on(async {
                    let socket = tokio::net::TcpSocket::new_v4().unwrap();
                    socket.set_reuseaddr(true).unwrap();
                    socket.bind(other).unwrap();
                    tokio::time::timeout(Duration::from_millis(100), socket.connect(addr)).await
                });
                if let Ok(Ok(stream)) = connected {
                    open.push_back(stream);
                }
                if open.len() > 300 {
                    open.pop_front();
                }
            }
        });
        let probe = || assert_eq!(it.get("/livez").status, 200);
        let took = (0..20).map(|_| {
            let asked = std::time::Instant::now();
            probe();
            asked.elapsed()
        });
        let mut took: Vec<Duration> = took.collect();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        took.sort_unstable();
        // Each of them would wait behind a thousand others, which are admitted at six hundred a second.
        assert!(took[10] < Duration::from_millis(500), "{took:?}");
    });
}

#[test]
fn a_head_that_does_not_come_ends_the_connection() {
    let it = start(None, answering());
    let mut stream = TcpStream::connect(it.addr()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n").unwrap();
    let begun = std::time::Instant::now();
    let mut answer = Vec::new();
    // Closed or reset: in both cases the client waits for nothing more.
    let _ = stream.read_to_end(&mut answer);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}: {answer:?}", begun.elapsed());
}

/// Excluded: a request that is cut off in the middle, because its connection has lived for long.
#[tokio::test]
async fn a_request_is_answered_at_the_end_of_its_connection_and_a_long_answer_is_cut() {
    use axum::response::IntoResponse;
    use axum::routing::get;
    let bounds = Bounds { idle: Duration::from_secs(60), life: Duration::from_millis(500) };
    let slow = || async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        "answered"
    };
    let long = || async {
        let pieces = futures_util::stream::pending::<Result<&str, std::convert::Infallible>>();
        let mut answer = axum::body::Body::from_stream(pieces).into_response();
        answer.extensions_mut().insert(super::export::Streamed);
        answer
    };
    let app = axum::Router::new().route("/slow", get(slow)).route("/long", get(long));
    let (listener, bound) = AdminListener::bind(&at("127.0.0.1:0")).await.unwrap().unwrap();
    let Listen::Tcp(addr) = bound else { panic!("no address: {bound}") };
    let (stop, stopped) = watch::channel(false);
    let connections = Arc::new(Connections::new(Places::default()));
    let serving = tokio::spawn(serve::serve(listener, app, connections, bounds, stopped));
    let begun = std::time::Instant::now();
    for (path, end) in [("/slow", "\r\n\r\nanswered"), ("/long", "\r\n\r\n")] {
        let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with(end), "{path}: {answer:?}");
    }
    assert!(begun.elapsed() < bounds.idle, "neither waits for the next request");
    drop(stop);
    serving.await.unwrap();
}

#[test]
fn readyz_follows_the_latches() {
    let it = start(None, answering());
    let answer = it.get("/readyz");
    assert_eq!(answer.status, 503);
    let missing = ["store", "ingest", "egress", "topology", "consumer"];
    assert_eq!(answer.json(), json!({ "ready": false, "missing": missing, "stuck": [] }));
    for latch in Latch::ALL {
        it.readiness.set(latch, true);
    }
    let answer = it.get("/readyz");
    assert_eq!((answer.status, answer.json()), (200, json!({ "ready": true, "missing": [], "stuck": [] })));
    it.readiness.set(Latch::Egress, false);
    assert_eq!(it.get("/readyz").json()["missing"], json!(["egress"]));
}

#[test]
fn state_is_what_the_loop_answers() {
    let it = start(None, answering());
    for latch in Latch::ALL {
        it.readiness.set(latch, true);
    }
    let answer = it.get("/api/v1/state");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(
        answer.json(),
        serde_json::to_value(state::Document::new(&example(), &NodeHealth::ready_but(&[]))).unwrap()
    );
}

#[test]
fn a_loop_that_has_ended_or_is_stuck_gives_503() {
    let gone = start(None, Arc::new(drop));
    let answer = gone.get("/api/v1/state");
    assert_eq!((answer.status, answer.header("retry-after")), (503, "1"));
    assert_eq!(answer.json()["error"], "the daemon is stopping");

    let kept = std::sync::Mutex::new(Vec::new());
    let stuck = start(None, Arc::new(move |query| kept.lock().unwrap().push(query)));
    let answer = stuck.get("/api/v1/state");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["error"], "the daemon did not answer in time");
}

#[test]
fn unknown_paths_and_methods() {
    let it = start(None, answering());
    let answer = it.get("/nowhere");
    assert_eq!((answer.status, answer.json()["error"].is_string()), (404, true));
    let answer = it.request("POST", "/api/v1/state", &[], b"{}");
    assert_eq!((answer.status, answer.json()["error"].is_string()), (405, true));
    assert!(answer.header("allow").contains("GET"), "{:?}", answer.headers);
    // No CORS: a preflight is answered like any unknown method.
    let answer = it.request("OPTIONS", "/api/v1/state", &[], b"");
    assert_eq!(answer.status, 405);
    assert_eq!(answer.header("access-control-allow-origin"), "");
}

#[test]
fn every_answer_carries_the_security_headers() {
    let it = start(None, answering());
    for (path, headers) in
        [("/livez", &[][..]), ("/nowhere", &[]), ("/api/v1/state", &[("host", "evil.example")])]
    {
        let answer = it.request("GET", path, headers, b"");
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(answer.header("cache-control"), "no-store", "{path}");
        assert!(answer.header("content-security-policy").starts_with("default-src 'none'"), "{path}");
    }
}

/// The files need no token; the requests of the page do.
#[test]
fn the_page_is_three_files_with_a_policy_of_their_own() {
    let policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                  img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    let files = [("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")];
    for token in [None, Some(TOKEN)] {
        let it = start(token, Arc::new(|query| panic!("the loop is not asked: {query:?}")));
        for (path, kind) in files {
            let answer = it.get(path);
            assert_eq!(answer.status, 200, "{path}");
            assert_eq!(answer.header("content-type"), format!("{kind}; charset=utf-8"));
            assert_eq!(answer.header("content-security-policy"), policy);
            for (name, value) in [
                ("cache-control", "no-store"),
                ("x-content-type-options", "nosniff"),
                ("x-frame-options", "DENY"),
                ("referrer-policy", "no-referrer"),
                ("cross-origin-resource-policy", "same-origin"),
            ] {
                assert_eq!(answer.header(name), value, "{path}");
            }
            let head = it.request("HEAD", path, &[], b"");
            assert_eq!((head.status, head.text.as_str()), (200, ""), "{path}");
            let refused = it.request("POST", path, &[], b"");
            assert_eq!(refused.status, if token.is_some() { 401 } else { 405 }, "{path}");
            let elsewhere = it.request("GET", path, &[("host", "evil.example")], b"");
            assert_eq!(elsewhere.status, if token.is_some() { 200 } else { 403 }, "{path}");
        }
    }
}

#[test]
fn a_rebound_name_and_a_web_page_are_refused() {
    let it = start(None, answering());
    for path in ["/livez", "/readyz", "/api/v1/state", "/nowhere"] {
        assert_eq!(it.request("GET", path, &[("host", "evil.example")], b"").status, 403, "{path}");
        assert_eq!(it.request("GET", path, &[("origin", "http://evil.example")], b"").status, 403, "{path}");
    }
    assert_eq!(it.request("GET", "/livez", &[("host", "localhost:1")], b"").status, 200);
    assert_eq!(it.raw(b"GET /livez HTTP/1.0\r\n\r\n"), "HTTP/1.0 403 Forbidden");
}

#[test]
fn the_token_opens_everything_and_its_lack_all_but_probes() {
    let it = start(Some(TOKEN), answering());
    let wrong = ("authorization", "Bearer canary-tokem");
    for headers in [&[][..], &[wrong]] {
        let answer = it.request("GET", "/api/v1/state", headers, b"");
        assert_eq!(answer.status, 401);
        assert!(answer.header("www-authenticate").starts_with("Bearer"));
        assert!(!answer.text.contains("canary"));
        assert_eq!(it.request("GET", "/nowhere", headers, b"").status, 401);
        assert_eq!(it.request("GET", "/api/v1/openapi.json", headers, b"").status, 401);
    }
    assert_eq!(it.get("/livez").status, 200);
    assert_eq!(it.get("/readyz").status, 503);
    let right = [("authorization", "Bearer canary-token"), ("host", "admin.example")];
    assert_eq!(it.request("GET", "/api/v1/state", &right, b"").status, 200);
    let reads = [("authorization", "Bearer canary-read-token")];
    assert_eq!(it.request("GET", "/api/v1/state", &reads, b"").status, 200);
    let refused = it.request("DELETE", "/api/v1/items/a/1", &reads, b"");
    assert_eq!(refused.status, 403);
    assert!(refused.json()["error"].as_str().unwrap().starts_with("this token may only read"));
}

#[tokio::test]
async fn what_is_off_serves_nobody() {
    let options = AdminOptions { listen: Listen::Off, tokens: Tokens::default() };
    let server =
        serve(options, Arc::new(NodeHealth::of(vec![ShardHealth::default()])), answering()).await.unwrap();
    assert_eq!(server.listens_at(), &Listen::Off);
    server.stop().await;
}

#[tokio::test]
async fn the_socket_is_there_as_long_as_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admin.sock");
    let serve = || {
        let options = AdminOptions { listen: Listen::Unix(path.clone()), tokens: Tokens::default() };
        serve(options, Arc::new(NodeHealth::of(vec![ShardHealth::default()])), answering())
    };
    let server = serve().await.unwrap();
    let second = serve().await.unwrap_err();
    let wants = format!("cannot listen on unix:{}: another process listens there", path.display());
    assert!(second.to_string().ends_with(&wants), "{second}");
    let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, b"GET /livez HTTP/1.0\r\nhost: localhost\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.0 200 OK"), "{answer}");
    server.stop().await;
    assert!(!path.exists());
    // A server that is dropped without a stop leaves no file either.
    drop(serve().await.unwrap());
    let gone = async {
        while path.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone).await.unwrap();
}

#[test]
fn what_is_too_large_is_refused() {
    let it = start(None, answering());
    let body = vec![b'x'; routes::MAX_BODY];
    assert_eq!(it.request("POST", "/nowhere", &[], &body).status, 404);
    let announced = format!(
        "POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
        routes::MAX_BODY + 1
    );
    assert_eq!(it.raw(announced.as_bytes()), "HTTP/1.1 413 Payload Too Large");
    let mut chunked =
        b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    chunked.extend(format!("{:x}\r\n", routes::MAX_BODY + 1).as_bytes());
    chunked.extend(vec![b'x'; routes::MAX_BODY + 1]);
    assert_eq!(it.raw(&chunked), "HTTP/1.1 413 Payload Too Large");
    let path = format!("/{}", "a".repeat(guard::MAX_URI));
    assert_eq!(it.get(&path).status, 414);
    let long = |bytes| format!("GET /livez HTTP/1.1\r\nhost: localhost\r\na: {}\r\n\r\n", "x".repeat(bytes));
    assert_eq!(it.raw(long(32_000).as_bytes()), "HTTP/1.1 200 OK");
    // One read brings all of it, beyond the limit of the buffer.
    for bytes in [32_800, 40_000, 60_000, 100_000] {
        let status = it.raw(long(bytes).as_bytes());
        assert_eq!(status, "HTTP/1.1 431 Request Header Fields Too Large", "{bytes}");
    }
    let header = format!("GET /livez HTTP/1.1\r\nhost: localhost\r\n{}\r\n", "a: b\r\n".repeat(200));
    assert_eq!(it.raw(header.as_bytes()), "HTTP/1.1 431 Request Header Fields Too Large");
}

#[test]
fn probes_are_answered_while_the_api_is_full() {
    // The replies are kept, so that each of these requests waits for its answer.
    let (kept, waiting) = std::sync::mpsc::channel();
    let it = start(None, Arc::new(move |query| kept.send(query).unwrap()));
    std::thread::scope(|scope| {
        let full: Vec<_> = (0..16).map(|_| scope.spawn(|| it.get("/api/v1/state").status)).collect();
        let replies: Vec<_> =
            (0..16).map(|_| waiting.recv_timeout(Duration::from_secs(20)).unwrap()).collect();
        let answer = it.get("/api/v1/state");
        assert_eq!((answer.status, answer.header("retry-after")), (503, "1"));
        assert_eq!(it.get("/livez").status, 200);
        for query in replies {
            tell(query, example());
        }
        for one in full {
            assert_eq!(one.join().unwrap(), 200);
        }
    });
}

#[tokio::test]
async fn what_would_be_open_to_the_network_does_not_start() {
    let try_on = |listen: &str, token: Option<&str>| {
        let options =
            AdminOptions { listen: at(listen), tokens: Tokens { full: secret(token), ..Tokens::default() } };
        serve(options, Arc::new(NodeHealth::of(vec![ShardHealth::default()])), answering())
    };
    assert!(matches!(try_on("0.0.0.0:0", None).await, Err(ServeError::TokenNeeded(_))));
    assert!(matches!(try_on("[::]:0", None).await, Err(ServeError::TokenNeeded(_))));
    assert!(matches!(try_on("0.0.0.0:0", Some(" ")).await, Err(ServeError::EmptyToken)));
    let server = try_on("0.0.0.0:0", Some(TOKEN)).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_taken_address_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap();
    let options = AdminOptions { listen: listen.into(), tokens: Tokens::default() };
    let error = serve(options, Arc::new(NodeHealth::of(vec![ShardHealth::default()])), answering())
        .await
        .unwrap_err();
    assert!(error.to_string().contains(&listen.to_string()), "{error}");
}

#[test]
fn a_stopped_server_takes_no_more() {
    let mut it = start(None, answering());
    assert_eq!(it.get("/livez").status, 200);
    let addr = it.addr();
    let server = it.server.take().unwrap();
    it.runtime.block_on(server.stop());
    let refused = TcpStream::connect(addr).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}
