//! The files of the page: three, served with or without a token.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use tidegate_harness::{Daemon, Site};

/// The headers of a response, in lower case, and its body.
fn exchange(daemon: &Daemon, method: &str, path: &str, host: &str) -> (String, String) {
    let mut stream = TcpStream::connect(daemon.admin()).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_ascii_lowercase(), body.to_owned())
}

#[test]
fn its_files_are_there_with_their_policy() {
    let site = Site::new("pagefiles");
    let token = site.dir.join("token");
    fs::write(&token, "a-token-for-everything").expect("the token");
    for config in [site.config(), site.config().text("admin.token_file", &token.to_string_lossy())] {
        let locked = config.render().contains("token_file");
        let mut daemon = Daemon::stopped(&config, &site.dir);
        daemon.start_again();
        daemon.wait_ready();
        for (path, kind, begin) in [
            ("/", "text/html", "<!doctype html>"),
            ("/page.css", "text/css", "/*"),
            ("/page.js", "text/javascript", "//"),
        ] {
            let (head, body) = exchange(&daemon, "GET", path, "localhost");
            assert!(head.starts_with("http/1.1 200") && body.starts_with(begin), "{path}: {head}");
            for line in [
                &format!("content-type: {kind}; charset=utf-8"),
                "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; \
                 connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; \
                 frame-ancestors 'none'",
                "cache-control: no-store",
                "x-content-type-options: nosniff",
                "x-frame-options: deny",
            ] {
                assert!(head.lines().any(|one| one == line), "{path}: {line}\n{head}");
            }
            let (head, body) = exchange(&daemon, "HEAD", path, "localhost");
            assert!(head.starts_with("http/1.1 200") && body.is_empty(), "{path}: {head}");
            let (head, _) = exchange(&daemon, "POST", path, "localhost");
            assert!(head.starts_with(if locked { "http/1.1 401" } else { "http/1.1 405" }), "{path}: {head}");
            let (head, _) = exchange(&daemon, "GET", path, "evil.example");
            assert_eq!(head.starts_with("http/1.1 403"), !locked, "{path}: {head}");
        }
        // Data need the token.
        let (head, body) = exchange(&daemon, "GET", "/api/v1/timeline", "localhost");
        assert_eq!(head.starts_with("http/1.1 401"), locked, "{head}{body}");
        daemon.kill9();
    }
}
