//! Tokens: one for everything, one that reads, and one that reads the state only.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use tidegate_harness::{is_on_disk, wait_until, Config, Daemon, Site};

use super::client::told;

const FULL: &str = "a-token-for-everything";
const READ: &str = "a-token-for-reading";

/// Returns the status of one exchange.
fn status(daemon: &Daemon, method: &str, path: &str, token: Option<&str>) -> u16 {
    daemon.ask_with(token, method, path).0
}

/// The same for dead letters, asked again while a busy broker does not tell the daemon of them in time.
fn status_of_dead(daemon: &Daemon, path: &str, token: Option<&str>) -> u16 {
    let mut told = 0;
    wait_until(path, Duration::from_secs(60), || {
        told = status(daemon, "GET", path, token);
        told != 503
    });
    told
}

fn files(site: &Site<'_>) -> (PathBuf, PathBuf) {
    let file = |name: &str, text: &str| {
        let path = site.dir.join(name);
        fs::write(&path, text).expect("the token");
        path
    };
    (file("full", FULL), file("read", READ))
}

fn config(site: &Site<'_>) -> Config {
    let (full, read) = files(site);
    let config = site.config().text("admin.token_file", &full.to_string_lossy());
    config.text("admin.read_token_file", &read.to_string_lossy())
}

#[test]
fn the_token_for_reading_reads_and_does_nothing_else() {
    let site = Site::new("tokens");
    let mut daemon = Daemon::stopped(&config(&site), &site.dir);
    daemon.start_again();
    daemon.wait_ready();
    for path in [
        "/api/v1/state",
        "/metrics",
        "/api/v1/items",
        "/api/v1/timeline",
        "/api/v1/applications",
        "/api/v1/parked",
    ] {
        let of = |token| status(&daemon, "GET", path, token);
        assert_eq!([of(Some(FULL)), of(Some(READ)), of(Some("another")), of(None)], [200, 200, 401, 401]);
    }
    for (method, path) in [
        ("DELETE", "/api/v1/items/shop/1"),
        ("DELETE", "/api/v1/customers/shop/ann/items"),
        ("POST", "/api/v1/customers/shop/ann/flush"),
        ("POST", "/api/v1/applications/shop/pause"),
        ("POST", "/api/v1/applications/shop/resume"),
        ("POST", "/api/v1/applications/shop/retry"),
        ("DELETE", "/api/v1/applications/shop/parked"),
    ] {
        let of = |token| status(&daemon, method, path, token);
        assert_eq!([of(Some(READ)), of(Some("another")), of(None)], [403, 401, 401], "{method} {path}");
        assert!([200, 404].contains(&of(Some(FULL))), "{method} {path}");
    }
    assert_eq!(status(&daemon, "GET", "/livez", None), 200);
    wait_until("the lines", Duration::from_secs(5), || daemon.log().matches("admin action").count() == 7);
    let log = daemon.log();
    assert_eq!(log.matches("token=\"full\"").count(), 7, "{log}");
    assert!(log.contains("status=403") && !log.contains(FULL) && !log.contains(READ), "{log}");
}

#[test]
fn the_token_for_the_state_sees_no_payloads_and_who_sees_them_is_told() {
    const STATE: &str = "a-token-for-the-state";
    let site = Site::new("statetoken");
    let path = site.dir.join("state");
    fs::write(&path, STATE).expect("the token");
    let config = config(&site).text("admin.state_token_file", &path.to_string_lossy());
    let mut daemon = Daemon::stopped(&config, &site.dir);
    daemon.start_again();
    daemon.wait_ready();
    for path in ["/api/v1/state", "/metrics", "/api/v1/applications", "/api/v1/parked"] {
        assert_eq!(status(&daemon, "GET", path, Some(STATE)), 200, "{path}");
        assert_eq!(status(&daemon, "POST", path, Some(STATE)), 403, "{path}");
    }
    // The token is accepted; the application is unknown.
    assert_eq!(status(&daemon, "GET", "/api/v1/applications/shop", Some(STATE)), 404);
    let items = "/api/v1/applications/shop/items?customer=anna";
    let dead = ["/api/v1/dead", "/api/v1/dead/export"];
    for path in ["/api/v1/items", "/api/v1/export", "/api/v1/timeline", items].into_iter().chain(dead) {
        assert_eq!(status(&daemon, "GET", path, Some(STATE)), 403, "{path}");
    }
    assert!(!daemon.log().contains("admin read of payloads"), "{}", daemon.log_tail());
    // A store in a database has no exports. Missing rights would be reported first.
    let export = if is_on_disk() { 200 } else { 409 };
    assert_eq!(status(&daemon, "GET", "/api/v1/export", Some(READ)), export);
    for path in ["/api/v1/dead/export", "/api/v1/dead?whole=true", "/api/v1/dead"] {
        assert_eq!(status_of_dead(&daemon, path, Some(READ)), 200, "{path}");
    }
    wait_until("the lines", Duration::from_secs(5), || daemon.log().contains("action=\"dead_read\""));
    let log = daemon.log();
    let told = log.lines().filter(|line| line.contains("admin read of payloads"));
    let told: Vec<&str> = told.filter(|line| line.contains("token=\"read\"")).collect();
    // Only responses with payloads are logged: a store in a database had no export.
    assert_eq!(told.len(), if is_on_disk() { 3 } else { 2 }, "{told:?}");
    assert!(told[0].contains("action=\"export\"") == is_on_disk() && !log.contains(STATE), "{told:?}");
}

#[test]
fn the_command_line_says_what_a_token_may_not() {
    let site = Site::new("readcli");
    let daemon = site.start(&config(&site));
    let url = format!("http://{}", daemon.admin());
    let environment = [("TIDEGATE_URL", url.as_str()), ("TIDEGATE_TOKEN", READ)];
    let (code, out, err) = told(&["status"], &environment);
    assert!(code == 0 && out.contains("running"), "{out}{err}");
    let (code, _, err) = told(&["pause", "shop"], &environment);
    assert!(code == 1 && err.contains("this token may only read"), "{code} {err}");
    let wrong = [("TIDEGATE_URL", url.as_str()), ("TIDEGATE_TOKEN", "another-token")];
    let (code, _, err) = told(&["status"], &wrong);
    let said = "does not accept the token in TIDEGATE_TOKEN";
    assert!(code == 1 && err.contains(said) && !err.contains("another-token"), "{code} {err}");
    let (code, _, err) = told(&["status"], &wrong[..1]);
    assert!(code == 1 && err.contains("requires a token"), "{code} {err}");
    // With its configuration file the command uses the token for everything.
    let paused = daemon.cli(&["pause", "shop"]);
    assert_eq!(paused.code, 0, "{paused:?}");
}

#[test]
fn a_token_for_reading_alone_is_refused() {
    let site = Site::new("readonly");
    let mut daemon = Daemon::stopped(&config(&site).unset("admin.token_file"), &site.dir);
    daemon.start_again();
    assert_eq!(daemon.exit(Duration::from_secs(20)).code(), Some(78));
    assert!(daemon.log().contains("admin.read_token_file: needs token_file, too"), "{}", daemon.log_tail());
}

#[test]
fn other_tokens_wait_for_a_restart() {
    let site = Site::new("newtokens");
    let daemon = site.start(&config(&site));
    fs::write(site.dir.join("read"), "another-token-for-reading").expect("the token");
    daemon.hup();
    wait_until("it says so", Duration::from_secs(10), || daemon.log().contains("only after a restart"));
    assert!(daemon.log().contains("keys=\"admin.read_token_file\""), "{}", daemon.log_tail());
    assert_eq!(status(&daemon, "GET", "/api/v1/state", Some(READ)), 200);
}
