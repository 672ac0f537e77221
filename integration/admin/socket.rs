//! The admin port on a unix socket, and no admin port.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_harness::{wait_until, Config, Daemon, Site};

use super::client::told;

/// Status and body of one exchange; status 0 without an answer.
fn ask(path: &Path, method: &str, target: &str, token: Option<&str>) -> (u16, String) {
    let exchange = || {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        let bearer = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
        let head =
            format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{bearer}Connection: close\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = exchange().unwrap_or_default();
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (status, answer.split_once("\r\n\r\n").map_or_else(String::new, |(_, body)| body.to_owned()))
}

/// A stopped daemon that will listen there.
fn stopped(site: &Site<'_>, config: &Config, listen: &str) -> Daemon {
    let mut daemon = Daemon::stopped(config, &site.dir);
    daemon.environment("TIDEGATE__ADMIN__LISTEN", Some(listen));
    daemon
}

/// The socket's path, and the value of `admin.listen` for it.
fn place(site: &Site<'_>) -> (PathBuf, String) {
    let path = site.dir.join("a.sock");
    let listen = format!("unix:{}", path.display());
    (path, listen)
}

fn wait_ready(path: &Path) {
    wait_until("it is ready", Duration::from_secs(30), || ask(path, "GET", "/readyz", None).0 == 200);
}

fn mode(path: &Path) -> u32 {
    let found = fs::symlink_metadata(path).expect("it is there");
    assert!(found.file_type().is_socket());
    found.permissions().mode() & 0o7777
}

#[test]
fn its_user_and_group_ask_and_nobody_else() {
    let site = Site::new("socket");
    let (path, listen) = place(&site);
    let mut daemon = stopped(&site, &site.config(), &listen);
    daemon.start_again();
    wait_ready(&path);
    assert_eq!(mode(&path), 0o660);
    assert_eq!(ask(&path, "GET", "/api/v1/state", None).0, 200);
    // A web page that reaches the socket through a forwarded port.
    let mut page = UnixStream::connect(&path).expect("it listens");
    page.write_all(b"DELETE /api/v1/items/a/1 HTTP/1.0\r\nHost: evil.example\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    page.read_to_string(&mut answer).expect("it answers");
    assert!(answer.contains(" 403 "), "{answer}");

    // The client commands: by configuration file, by URL, and by environment variable.
    let config = site.dir.join("operator.toml");
    fs::write(&config, format!("[admin]\nlisten = {listen:?}\n")).expect("the configuration");
    let config = config.to_string_lossy().into_owned();
    for (arguments, environment) in [
        (&["status", "--config", &config][..], &[][..]),
        (&["status", "--url", &listen], &[]),
        (&["status"], &[("TIDEGATE_URL", listen.as_str())]),
    ] {
        let (code, out, err) = told(arguments, environment);
        assert!(code == 0 && out.contains("running"), "{arguments:?}: {out}{err}");
    }
    site.client.publish(&site.push("shop", "1").id("kept").delay(600_000));
    let of = |arguments: &[&str]| told(arguments, &[("TIDEGATE_URL", listen.as_str())]);
    wait_until("it waits", Duration::from_secs(10), || of(&["lookup", "shop", "kept"]).1.contains("waiting"));
    assert!(of(&["list"]).1.contains("kept"));
    assert_eq!(of(&["pause", "shop"]).0, 0);
    assert_eq!(of(&["resume", "shop"]).0, 0);
    assert_eq!(of(&["parked", "list"]).0, 0);
    let (code, out, err) = of(&["cancel", "shop", "kept"]);
    assert_eq!(code, 0, "{out}{err}");
    wait_until("the lines", Duration::from_secs(5), || daemon.log().matches("admin action").count() == 3);
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains(r#"action="cancel""#)).expect("the line");
    let user = rustix::process::geteuid().as_raw();
    assert!(line.contains(&format!("peer=uid:{user},pid:")) && line.contains("count=1"), "{line}");

    daemon.term();
    assert!(daemon.exit(Duration::from_secs(30)).success());
    assert!(!path.exists(), "it goes with the daemon");
    let (code, _, err) = of(&["status"]);
    assert!(code == 1 && err.contains(&listen), "{err}");
}

#[test]
fn what_a_killed_daemon_left_is_replaced() {
    let site = Site::new("stale");
    let (path, listen) = place(&site);
    let mut daemon = stopped(&site, &site.config(), &listen);
    daemon.start_again();
    wait_ready(&path);
    daemon.kill9();
    assert_eq!(mode(&path), 0o660, "it is left behind");
    daemon.start_again();
    wait_ready(&path);
    assert_eq!(mode(&path), 0o660);
}

#[test]
fn what_another_listens_on_or_is_no_socket_is_left_alone() {
    let site = Site::new("taken");
    let (path, listen) = place(&site);
    let other = UnixListener::bind(&path).expect("a socket");
    let mut daemon = stopped(&site, &site.config(), &listen);
    daemon.start_again();
    assert_eq!(daemon.exit(Duration::from_secs(20)).code(), Some(1));
    let says = format!("cannot listen on {listen}: another process listens there");
    assert!(daemon.log().contains(&says), "{}", daemon.log_tail());
    assert!(UnixStream::connect(&path).is_ok(), "it is the other's still");
    drop(other);
    fs::remove_file(&path).expect("it is there");
    fs::write(&path, "kept").expect("a file");
    daemon.start_again();
    assert_eq!(daemon.exit(Duration::from_secs(20)).code(), Some(1));
    assert!(daemon.log().contains("not a socket"), "{}", daemon.log_tail());
    assert_eq!(fs::read_to_string(&path).expect("a file"), "kept");
}

#[test]
fn tokens_hold_on_a_socket_as_well() {
    let site = Site::new("sockettoken");
    let (path, listen) = place(&site);
    let file = |name: &str, text: &str| {
        let path = site.dir.join(name);
        fs::write(&path, text).expect("the token");
        path.to_string_lossy().into_owned()
    };
    let config = site.config().text("admin.token_file", &file("full", "a-token-for-everything"));
    let config = config.text("admin.read_token_file", &file("read", "a-token-for-reading"));
    let mut daemon = stopped(&site, &config, &listen);
    daemon.start_again();
    wait_ready(&path);
    let (full, read) = (Some("a-token-for-everything"), Some("a-token-for-reading"));
    assert_eq!(ask(&path, "GET", "/api/v1/state", read).0, 200);
    assert_eq!(ask(&path, "POST", "/api/v1/applications/shop/pause", read).0, 403);
    assert_eq!(ask(&path, "POST", "/api/v1/applications/shop/pause", None).0, 401);
    assert_eq!(ask(&path, "POST", "/api/v1/applications/shop/pause", full).0, 200);
}

#[test]
fn probes_are_answered_while_many_sockets_say_nothing() {
    let site = Site::new("socketsiege");
    let (path, listen) = place(&site);
    let mut daemon = stopped(&site, &site.config(), &listen);
    daemon.start_again();
    wait_ready(&path);
    let mut silent: Vec<UnixStream> = Vec::new();
    for _ in 0..200 {
        let mut stream = UnixStream::connect(&path).expect("it listens");
        let _ = stream.write_all(b"GET /livez HTTP/1.1\r\nX-Slow: ");
        silent.push(stream);
    }
    for _ in 0..5 {
        assert_eq!(ask(&path, "GET", "/livez", None).0, 200);
    }
    // As many connections are kept as from one address, and no more.
    let fds = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("its descriptors");
    let sockets = fds
        .flatten()
        .filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:")));
    assert!(sockets.count() < 64 + 30);
}

#[test]
fn switched_off_nobody_listens_and_all_else_goes_on() {
    let site = Site::new("off");
    let inbox = site.inbox("shop");
    let mut daemon = stopped(&site, &site.config(), "off");
    daemon.start_again();
    wait_until("it has started", Duration::from_secs(20), || daemon.log().contains("admin=off"));
    assert_eq!(daemon.ask("GET", "/livez").0, 0);
    wait_until("it consumes", Duration::from_secs(20), || daemon.log().contains(": consuming "));
    site.client.publish(&site.push("shop", "1").id("sent"));
    assert_eq!(inbox.items(1, Duration::from_secs(20))[0].id, "sent");
    let config = site.dir.join("operator.toml");
    fs::write(&config, "[admin]\nlisten = \"off\"\n").expect("the configuration");
    let (code, _, err) = told(&["status", "--config", &config.to_string_lossy()], &[]);
    assert!(code == 1 && err.contains("admin.listen is off"), "{code} {err}");
    daemon.term();
    assert!(daemon.exit(Duration::from_secs(30)).success());
}
