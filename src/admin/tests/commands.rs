//! Tests of commands and applications over the wire.

use super::*;
use std::sync::mpsc::{channel, Receiver};
use std::sync::Mutex;
use tidegate_types::{CustomerOf, Filter, ListedStage, Selection, TimelineQuery};

/// A loop that answers every command alike, and passes the commands on.
fn commanded(status: Status, document: Value) -> (Running, Receiver<CommandRequest>) {
    let (asked, heard) = channel();
    let asked = Mutex::new(asked);
    let ask: Ask = Arc::new(move |query| match query {
        Query::State(_, reply) => drop(reply.send(example())),
        Query::Letters(job, _) => panic!("no work on letters was expected: {job:?}"),
        Query::Export(_) => panic!("no export was expected"),
        Query::Command(command, reply) => {
            asked.lock().unwrap().send(command).unwrap();
            drop(reply.send(CommandResponse { status, document: document.clone() }));
        }
    });
    (start(None, ask), heard)
}

fn done() -> (Running, Receiver<CommandRequest>) {
    commanded(Status::Known, json!({ "result": "done", "changed": true }))
}

/// A body that is announced and never sent takes no place: that of a read is not waited for, and that of a
/// change is waited for before the request takes a place.
#[test]
fn bodies_that_never_come_keep_no_command_out() {
    let (it, heard) = done();
    let promised = |method: &str, path: &str| {
        let mut stream = TcpStream::connect(it.addr()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let mut looks: Vec<TcpStream> = (0..25).map(|_| promised("GET", "/api/v1/items/a/1")).collect();
    let _changes: Vec<TcpStream> =
        (0..36).map(|_| promised("POST", "/api/v1/applications/a/pause")).collect();
    for stream in &mut looks {
        let mut some = [0; 4_096];
        let read = stream.read(&mut some).unwrap();
        assert!(some[..read].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&some[..read]));
    }
    assert_eq!(heard.try_iter().count(), 25);
    assert_eq!(it.request("POST", "/api/v1/applications/a/resume", &[], b"").status, 200);
    assert_eq!(heard.try_iter().count(), 1, "and no command that waits for its body");
}

#[test]
fn every_path_is_a_command() {
    let (it, heard) = done();
    let item = || ItemOf { application: "a/b".into(), id: "c d".into() };
    let of = || CustomerOf { application: "a".into(), customer: "c/d".into() };
    let app = || "a b".into();
    let filter = Filter {
        application: Some("a".into()),
        state: Some(ListedStage::Parked),
        limit: 5,
        ..Filter::default()
    };
    let all = || Selection::all("a b".into());
    let some = || Selection { customer_prefix: "c/".into(), due_from: 5_000_000_000_000, ..all() };
    let some_of = Selection {
        customer: Some("c d".into()),
        due_until: 5_000_000_000_000,
        received_until: 5_000_000_000_001,
        ..all()
    };
    let timeline =
        TimelineQuery { application: Some("a".into()), at: None, each_ms: 1_800_000, stretches: 48 };
    for (method, path, want) in [
        ("GET", "/api/v1/items/a%2Fb/c%20d", CommandRequest::Lookup(item())),
        ("DELETE", "/api/v1/items/a%2Fb/c%20d", CommandRequest::Cancel(item())),
        ("GET", "/api/v1/items?application=a&state=parked&limit=5", CommandRequest::List(filter)),
        ("GET", "/api/v1/timeline?span=day&application=a", CommandRequest::TimelineQuery(timeline)),
        ("GET", "/api/v1/customers/a/c%2Fd", CommandRequest::Count(of())),
        ("DELETE", "/api/v1/customers/a/c%2Fd/items", CommandRequest::CancelAll(of())),
        ("POST", "/api/v1/customers/a/c%2Fd/flush", CommandRequest::Flush(of())),
        ("POST", "/api/v1/customers/a/c%2Fd/pause", CommandRequest::PauseCustomer(of(), None)),
        (
            "POST",
            "/api/v1/customers/a/c%2Fd/pause?for=9",
            CommandRequest::PauseCustomer(of(), Some(tidegate_types::Moment::After(9))),
        ),
        ("POST", "/api/v1/customers/a/c%2Fd/resume", CommandRequest::ResumeCustomer(of())),
        ("POST", "/api/v1/applications/a%20b/flush", CommandRequest::FlushAll(app())),
        ("POST", "/api/v1/applications/a%20b/pause", CommandRequest::Pause(app(), None)),
        (
            "POST",
            "/api/v1/applications/a%20b/pause?for=9",
            CommandRequest::Pause(app(), Some(tidegate_types::Moment::After(9))),
        ),
        (
            "POST",
            "/api/v1/applications/a%20b/pause?until=1970-01-01T00:00:09Z",
            CommandRequest::Pause(app(), Some(tidegate_types::Moment::At(9_000))),
        ),
        (
            "POST",
            "/api/v1/applications/a%20b/rate?rate=5/min",
            CommandRequest::Slow(app(), "5/min".parse().ok(), None),
        ),
        (
            "POST",
            "/api/v1/applications/a%20b/rate?for=9&rate=10%2Fs",
            CommandRequest::Slow(app(), "10/s".parse().ok(), Some(tidegate_types::Moment::After(9))),
        ),
        ("DELETE", "/api/v1/applications/a%20b/rate", CommandRequest::Slow(app(), None, None)),
        ("POST", "/api/v1/applications/a%20b/resume", CommandRequest::Resume(app())),
        ("POST", "/api/v1/applications/a%20b/retry", CommandRequest::Retry(app())),
        ("GET", "/api/v1/applications/a%20b/items?all=true", CommandRequest::CountSelected(all())),
        ("DELETE", "/api/v1/applications/a%20b/items?all=true", CommandRequest::CancelSelected(all())),
        (
            "GET",
            "/api/v1/applications/a%20b/items?customer_prefix=c%2F&due_after=5000000000000",
            CommandRequest::CountSelected(some()),
        ),
        (
            "DELETE",
            "/api/v1/applications/a%20b/items?customer=c+d&due_before=5000000000000\
             &received_before=5000000000001",
            CommandRequest::CancelSelected(some_of),
        ),
        ("DELETE", "/api/v1/applications/a%20b/parked", CommandRequest::DropParked(app())),
    ] {
        let answer = it.request(method, path, &[], b"");
        assert_eq!(answer.status, 200, "{method} {path}");
        assert_eq!(answer.json(), json!({ "result": "done", "changed": true }));
        assert_eq!(heard.try_recv(), Ok(want), "{method} {path}");
    }
}

#[test]
fn the_kind_of_answer_is_the_status() {
    for (status, document, code) in [
        (Status::Known, json!({ "result": "sent", "batch": "ab", "at": 5 }), 200),
        (Status::Unknown, json!({ "result": "unknown" }), 404),
        (Status::Refused, json!({ "result": "rejected", "error": "why" }), 409),
        (Status::Unavailable, json!({ "error": "starting" }), 503),
    ] {
        let (it, _heard) = commanded(status, document.clone());
        let answer = it.request("DELETE", "/api/v1/items/a/1", &[], b"");
        let told = answer.json();
        for (key, value) in document.as_object().unwrap() {
            assert_eq!(&told[key], value, "{told}");
        }
        let problem = json!({"type": "about:blank", "status": code, "detail": document["error"]});
        let is_problem = code >= 409;
        for (key, value) in problem.as_object().unwrap() {
            assert_eq!(told.get(key), is_problem.then_some(value), "{told}");
        }
        let kind = if is_problem { "application/problem+json" } else { "application/json" };
        assert_eq!((answer.status, answer.header("content-type")), (code, kind));
        assert_eq!(answer.header("retry-after"), if code == 503 { "1" } else { "" });
    }
}

#[test]
fn what_is_not_understood_reaches_nobody() {
    let (it, heard) = done();
    for (method, path, named) in [
        ("DELETE", "/api/v1/items/a/%ff", "id: "),
        ("DELETE", "/api/v1/items/a/50%", "id: "),
        ("DELETE", "/api/v1/items/a/", "an application, customer or id"),
        ("DELETE", "/api/v1/items//1", "application: "),
        ("DELETE", "/api/v1/customers/a//items", "customer: "),
        ("DELETE", "/api/v1/applications/a/items", "all: "),
        ("DELETE", "/api/v1/applications/a/items?all=false", "all: "),
        ("DELETE", "/api/v1/applications/a/items?due_before=", "due_before: "),
        ("DELETE", "/api/v1/applications/a/items?all=true&customer=c", "all: "),
        ("DELETE", "/api/v1/applications/a/items?all=yes", "all: "),
        ("DELETE", "/api/v1/applications/a/items?due_before=soon", "due_before: "),
        ("DELETE", "/api/v1/applications/a/items?state=parked", "state: "),
        ("GET", "/api/v1/applications/a/items", "all: "),
        ("POST", "/api/v1/applications/a/rate", "rate: "),
        ("POST", "/api/v1/applications/a/rate?rate=10", "rate: "),
        ("DELETE", "/api/v1/applications/a/rate?rate=10/s", "rate: "),
        ("DELETE", "/api/v1/customers/a/c/items?state=parked", "state: "),
        ("DELETE", "/api/v1/applications/%C3%28/parked", "application: "),
        ("POST", "/api/v1/applications/a/pause?for=5m", "for: "),
        ("GET", "/api/v1/applications/%ff", "application: "),
        ("GET", "/api/v1/applications?state=open", "state: "),
        ("GET", "/api/v1/parked?application=a", "application: "),
        ("GET", "/api/v1/items?limit=0", "limit: "),
        ("GET", "/api/v1/items?cursor=x", "cursor: "),
        ("GET", "/api/v1/items?from=1&from=2", "from: "),
        ("GET", "/api/v1/items?sort=due", "sort: "),
        ("GET", "/api/v1/timeline?span=year", "span: "),
        ("GET", "/api/v1/timeline?from=1", "from: "),
    ] {
        let answer = it.request(method, path, &[], b"");
        assert_eq!(answer.status, 400, "{method} {path}");
        assert!(answer.json()["error"].as_str().unwrap().starts_with(named), "{path}: {}", answer.text);
    }
    for (method, path) in [
        ("DELETE", "/api/v1/items"),
        ("POST", "/api/v1/timeline"),
        ("POST", "/api/v1/items/a/1"),
        ("GET", "/api/v1/customers/a/c/items"),
        ("GET", "/api/v1/customers/a/c/flush"),
        ("DELETE", "/api/v1/customers/a/c"),
        ("GET", "/api/v1/applications/a/pause"),
        ("DELETE", "/api/v1/applications/a"),
    ] {
        assert_eq!(it.request(method, path, &[], b"").status, 405, "{method} {path}");
    }
    assert_eq!(it.get("/api/v1/items/a/1/2").status, 404);
    assert_eq!(it.get("/api/v1/items/a/b/../../../../livez").status, 404, "no path is tidied up");
    // Requests that no proper client sends must not be mistaken for others either.
    let raw = b"DELETE /api/v1/items/a/\xff HTTP/1.1\r\nhost: localhost\r\n\r\n";
    assert_eq!(it.raw(raw), "HTTP/1.1 400 Bad Request");
    assert!(heard.try_recv().is_err());
}

#[test]
fn nothing_is_changed_for_a_web_page_nor_without_the_token() {
    let (it, heard) = done();
    let changes = [
        ("DELETE", "/api/v1/items/a/1"),
        ("DELETE", "/api/v1/customers/a/c/items"),
        ("POST", "/api/v1/customers/a/c/flush"),
        ("POST", "/api/v1/applications/a/pause"),
        ("POST", "/api/v1/applications/a/resume"),
        ("POST", "/api/v1/applications/a/retry"),
        ("DELETE", "/api/v1/applications/a/parked"),
        ("GET", "/api/v1/items/a/1"),
        ("GET", "/api/v1/items"),
    ];
    let form = ("content-type", "application/x-www-form-urlencoded");
    for (method, path) in changes {
        for header in [
            ("origin", "http://evil.example"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("host", "evil.example"),
        ] {
            let answer = it.request(method, path, &[header, form], b"a=b");
            assert_eq!(answer.status, 403, "{method} {path} {header:?}");
        }
        let preflight = [("origin", "http://evil.example"), ("access-control-request-method", "DELETE")];
        let answer = it.request("OPTIONS", path, &preflight, b"");
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (403, ""), "{path}");
    }
    assert!(heard.try_recv().is_err());

    let locked = start(Some(TOKEN), answering());
    let reads = [("authorization", "Bearer canary-read-token")];
    for (method, path) in changes {
        assert_eq!(locked.request(method, path, &[], b"").status, 401, "{method} {path}");
        if method != "GET" {
            assert_eq!(locked.request(method, path, &reads, b"").status, 403, "{method} {path}");
        }
    }
}

#[test]
fn applications_are_told_as_in_the_state() {
    let it = start(None, answering());
    let state = it.get("/api/v1/state").json();
    let all = it.get("/api/v1/applications");
    assert_eq!(all.status, 200);
    for key in ["applications", "dead_letters", "applications_truncated"] {
        assert_eq!(all.json()[key], state[key], "{key}");
    }
    assert_eq!(it.get("/api/v1/applications/sms").json(), state["applications"][1]);
    let unknown = it.get("/api/v1/applications/nobody");
    assert_eq!((unknown.status, unknown.json()), (404, json!({ "result": "unknown" })));
}

#[test]
fn only_what_is_parked_is_told_as_parked() {
    let mut input = example();
    let dead_letters = input.snapshot.dead_letters.iter_mut();
    for application in input.snapshot.applications.iter_mut().chain(dead_letters) {
        application.parked = if application.name == "sms" { 9 } else { 0 };
    }
    let it = start(None, Arc::new(move |query| tell(query, input.clone())));
    let parked = it.get("/api/v1/parked").json();
    let names: Vec<_> = parked["applications"].as_array().unwrap().iter().map(|a| &a["name"]).collect();
    assert_eq!(names, ["sms"]);
    let sms = &parked["applications"][0];
    assert_eq!(sms["parked"], 9);
    assert_eq!((&sms["failures"], &sms["next_try_in_ms"]), (&json!(3), &json!(1_500)));
    assert_eq!(sms["last_error"], "NO_ROUTE");
    assert!(parked.get("dead_letters").is_none(), "{parked}");
}

#[test]
fn an_application_that_may_be_there_is_not_called_unknown() {
    let mut input = example();
    let one = input.snapshot.applications[0].clone();
    let many = tidegate_types::snapshot::Snapshot::MAX_APPLICATIONS;
    input.snapshot.applications = vec![one; many];
    input.snapshot.applications_total = many as u64 + 1;
    let it = start(None, Arc::new(move |query| tell(query, input.clone())));
    assert_eq!(it.get("/api/v1/applications").json()["applications_truncated"], true);
    let answer = it.get("/api/v1/applications/nobody");
    assert_eq!(answer.status, 404);
    assert!(answer.json().get("result").is_none(), "{}", answer.text);
}

#[test]
fn a_loop_that_has_ended_answers_no_command() {
    let it = start(None, Arc::new(drop));
    for (method, path) in [("DELETE", "/api/v1/items/a/1"), ("GET", "/api/v1/applications")] {
        let answer = it.request(method, path, &[], b"");
        assert_eq!((answer.status, answer.header("retry-after")), (503, "1"), "{path}");
        assert_eq!(answer.json()["error"], "the daemon is stopping");
    }
}

/// Excluded: a dead letter that is sent back on terms that the intake refuses, and so becomes another one.
#[test]
fn letters_are_not_sent_back_to_die_again() {
    let (asked, heard) = channel();
    let asked = Mutex::new(asked);
    let ask: Ask = Arc::new(move |query| match query {
        Query::Letters(task, reply) => {
            asked.lock().unwrap().send(task).unwrap();
            drop(reply.send(Ok(LetterReport::default())));
        }
        Query::State(..) | Query::Command(..) | Query::Export(_) => panic!("only letters were expected"),
    });
    let it = start(None, ask);
    let mut config = tidegate_config::Config::default();
    config.limits.max_delay = Duration::from_millis(600_000);
    it.horizon.configure(&config);
    let now = tidegate_common::clock::wall_ms();
    let answer = |terms: &str| it.request("POST", &format!("/api/v1/dead/retry?all=true{terms}"), &[], b"");
    for (terms, named) in [
        ("&delay=600001".to_owned(), "limits.max_delay"),
        ("&delay=9223372036854775807".to_owned(), "limits.max_delay"),
        ("&at=9999-12-31T23:59:59Z".to_owned(), "limits.max_delay"),
        ("&delay=600001&walk=true".to_owned(), "limits.max_delay"),
        (format!("&deliver_before={}", now - 1), "x-deliver-before"),
        (format!("&at={}&deliver_before={}", now - 2_000, now - 1_000), "x-deliver-before"),
        (format!("&delay=300000&deliver_before={}", now + 100_000), "x-deliver-before"),
    ] {
        let refused = answer(&terms);
        assert_eq!((refused.status, &refused.json()["result"]), (409, &json!("rejected")), "{terms}");
        assert!(refused.json()["error"].as_str().unwrap().contains(named), "{terms}: {}", refused.text);
    }
    assert!(heard.try_recv().is_err(), "nothing was asked of the broker");
    let in_time = format!("&deliver_before={}", now + 300_000);
    for terms in ["", "&delay=600000", in_time.as_str()] {
        assert_eq!(answer(terms).status, 200, "{terms}");
        assert!(heard.try_recv().is_ok(), "{terms}");
    }
}

#[test]
fn the_state_is_told_while_commands_wait() {
    let (kept, waiting) = channel();
    let ask: Ask = Arc::new(move |query| match query {
        Query::State(_, reply) => drop(reply.send(example())),
        Query::Letters(job, _) => panic!("no work on letters was expected: {job:?}"),
        Query::Export(_) => panic!("no export was expected"),
        Query::Command(_, reply) => kept.send(reply).unwrap(),
    });
    let it = start(None, ask);
    std::thread::scope(|scope| {
        let full: Vec<_> =
            (0..routes::MAX_COMMANDS).map(|_| scope.spawn(|| it.get("/api/v1/items").status)).collect();
        let replies: Vec<_> =
            full.iter().map(|_| waiting.recv_timeout(Duration::from_secs(20)).unwrap()).collect();
        assert_eq!(it.get("/api/v1/items").status, 503);
        assert_eq!(it.get("/api/v1/state").status, 200);
        assert_eq!(it.get("/livez").status, 200);
        for reply in replies {
            let _ = reply.send(CommandResponse { status: Status::Known, document: json!({ "items": [] }) });
        }
        for one in full {
            assert_eq!(one.join().unwrap(), 200);
        }
    });
}
