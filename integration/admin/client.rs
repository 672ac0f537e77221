//! Client commands need the daemon's address and token, but no login to the broker.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::thread;
use tidegate_harness::{binary, Site};

/// Runs the binary. Returns its exit code, standard output and standard error.
pub fn told(arguments: &[&str], environment: &[(&str, &str)]) -> (i32, String, String) {
    let mut command = Command::new(binary());
    for name in ["TIDEGATE_CONFIG", "TIDEGATE_URL", "TIDEGATE_TOKEN"] {
        command.env_remove(name);
    }
    let out = command.args(arguments).envs(environment.iter().copied()).output().expect("the command runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (out.status.code().unwrap_or(-1), text(&out.stdout), text(&out.stderr))
}

#[test]
fn an_operator_needs_no_password_of_the_broker() {
    let site = Site::new("operator");
    let token = site.dir.join("token");
    fs::write(&token, "a-token-of-an-operator\n").expect("the token");
    // As in a mounted Kubernetes secret.
    let link = site.dir.join("link");
    std::os::unix::fs::symlink(&token, &link).expect("a link");
    let daemon = site.start(&site.config().text("admin.token_file", &link.to_string_lossy()));
    let url = format!("http://{}", daemon.admin());
    let file = link.to_string_lossy().into_owned();
    let (code, out, err) = told(&["status", "--url", &url, "--token-file", &file], &[]);
    assert!(code == 0 && out.contains("running"), "{out}{err}");
    let environment = [("TIDEGATE_URL", url.as_str()), ("TIDEGATE_TOKEN", "a-token-of-an-operator")];
    let (code, out, err) = told(&["list", "--output", "json"], &environment);
    assert!(code == 0 && out.contains("\"items\": []"), "{out}{err}");
    let (code, _, err) = told(&["status"], &environment[..1]);
    assert!(code == 1 && err.contains("--token-file"), "{err}");
    // A configuration with a broker login that this user cannot read, such as the service's.
    let config = site.dir.join("operator.toml");
    let text = format!(
        "[amqp]\nuri = \"amqp://tidegate@rabbit.example\"\npassword_file = \"/none\"\n\
         [admin]\nlisten = \"{}\"\ntoken_file = {file:?}\n",
        daemon.admin()
    );
    fs::write(&config, text).expect("the configuration");
    let config = config.to_string_lossy().into_owned();
    let (code, out, err) = told(&["status", "--config", &config], &[]);
    assert!(code == 0 && out.contains("running"), "{out}{err}");
    let (code, _, err) = told(&["push", "shop", "x", "--url", &url], &[]);
    assert!(code == 2 && err.contains("--url"), "{err}");
}

#[test]
fn a_fresh_broker_is_no_fault_of_a_check() {
    let site = Site::new("fresh");
    let daemon = tidegate_harness::Daemon::stopped(&site.config(), &site.dir);
    let found = daemon.cli(&["check", "--connect"]);
    assert_eq!(found.code, 0, "{found:?}");
    assert_eq!(found.out.matches("it will be created at the start").count(), 7, "{found:?}");
    assert!(!found.out.contains("fail"), "{found:?}");
    assert!(!site.client.has_queue(&site.ingest_queue()), "a check creates nothing");
    // With passive topology nothing is created, so the same objects are faults.
    let daemon =
        tidegate_harness::Daemon::stopped(&site.config().text("amqp.topology", "passive"), &site.dir);
    let found = daemon.cli(&["check", "--connect"]);
    assert_eq!((found.code, found.out.matches("fail").count()), (1, 7), "{found:?}");
}

#[test]
fn a_list_goes_on_from_its_cursor() {
    let site = Site::new("cursor");
    let daemon = site.start(&site.config());
    site.client.publish_all((0..5).map(|n| site.push("shop", "1").id(&n.to_string()).delay(600_000 + n)));
    tidegate_harness::wait_until("all wait", std::time::Duration::from_secs(10), || {
        daemon.items("waiting") == 5
    });
    let page = |arguments: &[&str]| {
        let mut all = vec!["list", "--limit", "2", "--output", "json"];
        all.extend(arguments);
        let page = daemon.cli(&all).json();
        let ids: Vec<String> = page["items"]
            .as_array()
            .expect("items")
            .iter()
            .map(|item| item["id"].as_str().expect("an id").to_owned())
            .collect();
        (ids, page["next"].as_str().map(str::to_owned))
    };
    let (first, next) = page(&[]);
    assert_eq!(first, ["0", "1"]);
    let (second, next) = page(&["--cursor", &next.expect("there is more")]);
    assert_eq!(second, ["2", "3"]);
    let (third, next) = page(&["--cursor", &next.expect("there is more")]);
    assert_eq!((third, next), (vec!["4".to_owned()], None));
}

#[test]
fn a_port_of_the_other_kind_is_named() {
    let site = Site::new("otherport");
    let (plain, ..) = site.node.login();
    // Answers the AMQP header as a TLS server does: with an alert.
    let alerting = TcpListener::bind("127.0.0.1:0").expect("a port");
    let tls = alerting.local_addr().expect("its address");
    let server = thread::spawn(move || {
        let (mut stream, _) = alerting.accept().expect("a client");
        let _ = stream.write_all(&[21, 3, 3, 0, 2, 2, 70]);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    for (uri, wants) in
        [(format!("amqps://u:p@{plain}"), "write amqp://"), (format!("amqp://u:p@{tls}"), "write amqps://")]
    {
        let config = site.config().text("amqp.uri", &uri).text("timeouts.connect", "120s");
        let found = tidegate_harness::Daemon::stopped(&config, &site.dir).cli(&["push", "shop", "x"]);
        assert!(found.code == 1 && found.err.contains(wants), "{uri}: {found:?}");
    }
    server.join().expect("it has answered");
}
