//! Tests of the export as its client sees it: streamed, whole or broken off, and refused.

use super::*;
use std::sync::Mutex;
use tokio::sync::mpsc;

/// A loop that has these chunks for the first client, and nothing for the next.
fn feeding(helpings: Vec<io::Result<Vec<u8>>>) -> Ask {
    let feed = Mutex::new(Some(helpings));
    Arc::new(move |query| {
        let Query::Export(reply) = query else { return tell(query, example()) };
        let Some(helpings) = feed.lock().unwrap().take() else {
            return drop(reply.send(Err(ExportRefusal::Busy)));
        };
        let (sender, taken) = mpsc::channel(helpings.len().max(1));
        helpings.into_iter().for_each(|helping| sender.try_send(helping).unwrap());
        drop(reply.send(Ok(taken)));
    })
}

#[test]
fn lines_come_as_they_are_and_the_next_reader_waits() {
    let helpings = vec![Ok(b"{\"kind\":\"store\"}\n".to_vec()), Ok(b"{\"kind\":\"end\"}\n".to_vec())];
    let it = start(Some(TOKEN), feeding(helpings));
    let path = "/api/v1/export";
    assert_eq!(it.get(path).status, 401);
    let bearer = format!("Bearer {READ_TOKEN}");
    let of = |path: &str| it.request("GET", path, &[("authorization", &bearer)], b"");
    assert_eq!(of("/api/v1/export?limit=3").status, 400, "it knows no parameter");
    let answer = of(path);
    assert_eq!((answer.status, answer.text.as_str()), (200, "{\"kind\":\"store\"}\n{\"kind\":\"end\"}\n"));
    assert_eq!(answer.headers["content-type"], "application/x-ndjson");
    let answer = of(path);
    assert_eq!((answer.status, answer.json()["error"].as_str()), (503, Some("another export is under way")));
}

/// Probes need no token and may be of any number; none of them ends the answer to another client.
#[test]
fn an_export_goes_on_while_others_come_and_go() {
    let (helping, taken) = mpsc::channel(1);
    let feed = Mutex::new(Some(taken));
    let it = start(
        Some(TOKEN),
        Arc::new(move |query| {
            let Query::Export(reply) = query else { return tell(query, example()) };
            drop(reply.send(Ok(feed.lock().unwrap().take().unwrap())));
        }),
    );
    let mut stream = TcpStream::connect(it.addr()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let head =
        format!("GET /api/v1/export HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {READ_TOKEN}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    helping.blocking_send(Ok(b"first\n".to_vec())).unwrap();
    let mut text = Vec::new();
    let mut some = [0; 4_096];
    while !text.ends_with(b"first\n\r\n") {
        let read = stream.read(&mut some).unwrap();
        assert_ne!(read, 0, "{}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&some[..read]);
    }
    // More connections than places; each stays after its answer.
    let mut probes = Vec::new();
    for _ in 0..200 {
        let mut probe = TcpStream::connect(it.addr()).unwrap();
        probe.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        probe.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let read = probe.read(&mut some).unwrap();
        assert!(some[..read].starts_with(b"HTTP/1.1 200"));
        probes.push(probe);
    }
    helping.blocking_send(Ok(b"last\n".to_vec())).unwrap();
    drop(helping);
    while !text.ends_with(b"0\r\n\r\n") {
        let read = stream.read(&mut some).unwrap();
        assert_ne!(read, 0, "it was ended: {}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&some[..read]);
    }
    assert!(String::from_utf8_lossy(&text).contains("last\n"));
}

#[test]
fn an_answer_that_cannot_go_on_breaks_off() {
    let helpings = vec![Ok(b"{\"kind\":\"store\"}\n".to_vec()), Err(io::Error::other("damaged"))];
    let it = start(None, feeding(helpings));
    let mut stream = TcpStream::connect(it.addr()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(b"GET /api/v1/export HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    let mut text = Vec::new();
    // The answer ends without the last chunk of a whole one: the rest is lost with the connection.
    stream.read_to_end(&mut text).unwrap();
    let text = String::from_utf8_lossy(&text);
    assert!(!text.contains("0\r\n\r\n"), "{text}");
}

#[test]
fn what_cannot_be_exported_is_refused_with_the_reason() {
    let unreadable = ExportRefusal::Unreadable("keyspace `queues` is damaged".to_owned());
    for (refusal, status, word) in
        [(ExportRefusal::NotOnDisk("store.kind is memory"), 409, "memory"), (unreadable, 500, "`queues`")]
    {
        let it = start(
            None,
            Arc::new(move |query| match query {
                Query::Export(reply) => drop(reply.send(Err(refusal.clone()))),
                query @ (Query::State(..) | Query::Command(..) | Query::Letters(..)) => {
                    tell(query, example())
                }
            }),
        );
        let answer = it.get("/api/v1/export");
        assert_eq!(answer.status, status);
        assert!(answer.json()["error"].as_str().unwrap().contains(word), "{}", answer.text);
    }
}
