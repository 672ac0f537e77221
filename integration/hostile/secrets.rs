//! Passwords, tokens, payloads and headers appear in no output: a complete run at trace level is searched for
//! canaries.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tidegate_harness::{binary, wait_until, Config, Daemon, Node, Site, Verdict};

const URI: &str = "canary-uri-7f3a9c51";
const FILE: &str = "canary-file-2b8d6e04";
const WRONG: &str = "canary-wrong-5d1c7a33";
const TOKEN: &str = "canary-token-9e4f1c7a2b";
const PAYLOAD: &str = "canary-payload-c0ffee";
const HEADER: &str = "canary-header-b0bcat";
const ALL: [&str; 6] = [URI, FILE, WRONG, TOKEN, PAYLOAD, HEADER];

/// The most verbose level. Secrets must be kept out of the log at every level.
const LEVEL: (&str, &str) = ("TIDEGATE_LOG", "trace");

#[track_caller]
fn silent(place: &str, text: &str) {
    use base64::Engine as _;
    for canary in ALL {
        assert!(!text.contains(canary), "{place} tells {canary}:\n{text}");
        let encoded = base64::engine::general_purpose::STANDARD.encode(canary);
        assert!(!text.contains(encoded.trim_end_matches('=')), "{place} tells {canary} in base64");
        // Bytes in a debug print.
        let bytes: Vec<String> = canary.bytes().take(8).map(|byte| byte.to_string()).collect();
        assert!(!text.contains(&bytes.join(", ")), "{place} tells {canary} in bytes");
    }
}

/// Sends a request. Returns the status line, headers and body.
fn http(address: SocketAddr, method: &str, path: &str, token: Option<&str>) -> String {
    let Ok(mut stream) = TcpStream::connect(address) else { return String::new() };
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a read timeout");
    let bearer = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{bearer}Content-Length: 0\r\nConnection: close\r\n\r\n"
    );
    let mut answer = String::new();
    let _answered = stream.write_all(head.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
    answer
}

/// A daemon at the most verbose log level.
fn started(config: &Config, dir: &Path) -> Daemon {
    let mut daemon = Daemon::stopped(config, dir);
    daemon.environment(LEVEL.0, Some(LEVEL.1));
    daemon.start_again();
    daemon
}

/// Runs a command. Returns its standard output and standard error.
fn told(daemon: &Daemon, arguments: &[&str]) -> String {
    let mut command = Command::new(binary());
    command.arg("--config").arg(daemon.config_file()).args(arguments).env(LEVEL.0, LEVEL.1);
    let out = command.output().expect("the command runs");
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

#[test]
fn canaries_are_never_told() {
    let Some(node) = Node::controlled("canaries_are_never_told") else { return };
    let site = Site::on(node, "canary");
    for (user, password) in [("canary-in", URI), ("canary-out", FILE)] {
        node.ctl(&["add_user", user, password]);
        node.ctl(&["set_permissions", "-p", "/", user, ".*", ".*", ".*"]);
    }
    let secret = |name: &str, content: &str| {
        let path = site.dir.join(name);
        fs::write(&path, content).expect("a secret's file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
        path.to_string_lossy().into_owned()
    };
    let (address, ..) = node.login();
    let config = site
        .config()
        .text("amqp.uri", &format!("amqp://canary-in:{URI}@{address}/%2f"))
        .text("egress.uri", &format!("amqp://canary-out@{address}/%2f"))
        .text("egress.password_file", &secret("password", FILE))
        .text("admin.token_file", &secret("token", TOKEN))
        .text("defaults.retry.min", "200ms");
    let daemon = started(&config, &site.dir);
    let admin = daemon.admin();
    let ready = || http(admin, "GET", "/readyz", Some(TOKEN)).starts_with("HTTP/1.1 200");
    wait_until("it is ready", Duration::from_secs(30), ready);

    let canary = |application: &str, id: &str| {
        let body = format!(r#"{{"secret":"{PAYLOAD}"}}"#);
        site.push(application, body).id(id).customer("customer-1").with("x-note", HEADER)
    };
    // One unroutable; one dead-lettered for a field beside the payload; two for their body; one waiting.
    let envelope = |body: String| {
        site.push("shop", body).content_type("application/vnd.tidegate+json").with("x-note", HEADER)
    };
    for push in [
        canary("nobody", "unroutable"),
        canary("shop", "dead-1").with("x-delay", "soon"),
        envelope(format!(r#"{{"payload":"{PAYLOAD}"#)).id("dead-2"),
        envelope(format!(r#"[{{"payload":"{PAYLOAD}"}},{{"payload_base64":"{PAYLOAD}!"}}]"#)).id("dead-3"),
        canary("shop", "waiting").delay(3_600_000),
        canary("shop", "lookup").kind("tidegate.lookup"),
    ] {
        assert_eq!(site.client.publish(&push), Verdict::Taken);
    }
    let state = || http(admin, "GET", "/api/v1/state", Some(TOKEN));
    wait_until("all have come to rest", Duration::from_secs(20), || {
        site.client.depth(&site.dead()) == Some(3) && told(&daemon, &["parked", "list"]).contains("nobody")
    });
    wait_until("the state is told", Duration::from_secs(20), || state().starts_with("HTTP/1.1 200"));

    for path in [
        "/api/v1/state",
        "/",
        "/page.js",
        "/api/v1/items",
        "/api/v1/timeline",
        "/api/v1/items?limit=1000&state=waiting",
        "/api/v1/items/shop/waiting",
        "/api/v1/items/nobody/unroutable",
        "/api/v1/applications",
        "/api/v1/parked",
        "/api/v1/parked/nobody",
        "/livez",
        "/readyz",
        "/metrics",
    ] {
        silent(path, &http(admin, "GET", path, Some(TOKEN)));
        silent(path, &http(admin, "GET", path, Some("not the token")));
        silent(path, &http(admin, "GET", path, None));
    }
    let listed = told(&daemon, &["list"]);
    assert!(
        listed.contains("customer-1") && listed.contains("waiting"),
        "ids and customers may be told: {listed}"
    );
    for arguments in [
        &["status"][..],
        &["status", "--output", "json"],
        &["list"],
        &["list", "--output", "json"],
        &["lookup", "shop", "waiting"],
        &["lookup", "nobody", "unroutable", "--output", "json"],
        &["parked", "list"],
        &["parked", "list", "nobody"],
        &["check"],
        &["config", "sample"],
        &["cancel", "shop", "waiting"],
    ] {
        silent(&arguments.join(" "), &told(&daemon, arguments));
    }
    // The error sentences of dead letters name the field, not its content.
    let dead = site.dead_inbox();
    for letter in dead.take(3, Duration::from_secs(10)) {
        silent("a dead letter's sentence", &letter.text("x-tidegate-error").expect("a sentence"));
    }
    daemon.term();
    let mut daemon = daemon;
    daemon.exit(Duration::from_secs(30));
    let log = daemon.log();
    assert!(log.contains("DEBUG lapin") && log.contains("DEBUG tidegate"), "a log at debug level");
    silent("the log", &log);

    // A refused login, and a faulty configuration.
    let refused = config.clone().text("amqp.uri", &format!("amqp://canary-in:{WRONG}@{address}/%2f"));
    let dir = tidegate_harness::workdir("canary-refused");
    let refused = refused.text("store.path", &dir.join("store").to_string_lossy());
    let second = started(&refused, &dir);
    wait_until("the login is refused", Duration::from_secs(30), || {
        let log = second.log().to_lowercase();
        log.contains("access_refused") || log.contains("403") || log.contains("refused")
    });
    silent("the log of a refused login", &second.log());
    silent("check of a refused login", &told(&second, &["check"]));
    silent("state of a refused login", &http(second.admin(), "GET", "/api/v1/state", Some(TOKEN)));
    second.rewrite(&refused.text("amqp.uri", &format!("amqp://canary-in:{WRONG}@host:port:7/%zz")));
    silent("check of a faulty URI", &told(&second, &["check"]));
}
