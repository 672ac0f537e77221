//! Output of the command line about itself and the configuration: completions, manual pages, schema, and
//! `health`.

use serde_json::{json, Value};
use std::fs;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use tidegate_harness::{binary, wait_until, workdir, Node, Site};

fn tidegate(arguments: &[&str]) -> Output {
    Command::new(binary()).args(arguments).output().expect("the program runs")
}

fn text(arguments: &[&str]) -> String {
    let output = tidegate(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_shell_takes_the_completions() {
    let file = workdir("completions").join("tidegate.bash");
    let script = text(&["completions", "bash"]) + "\ncomplete -p tidegate\n";
    fs::write(&file, script).expect("the script's file");
    let sourced = Command::new("bash").arg("--norc").arg(&file).output().expect("bash runs");
    let said = String::from_utf8_lossy(&sourced.stdout);
    assert!(sourced.status.success() && said.contains("_tidegate"), "{sourced:?}");
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        assert!(text(&["completions", shell]).contains("parked"), "{shell}");
    }
}

#[test]
fn each_command_has_a_manual_page() {
    let directory = workdir("man");
    text(&["man", "--directory", directory.to_str().expect("a path of text")]);
    let page =
        |name: &str| fs::read_to_string(directory.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(page("tidegate.1").starts_with(".ie") && page("tidegate.1").contains(".SH SYNOPSIS"));
    assert!(page("tidegate-parked-drop.1").contains("Confirm; without it"));
    assert!(text(&["man"]).contains(".TH tidegate 1"));
    let missing = tidegate(&["man", "--directory", "/nonexistent/man"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/nonexistent/man"));
}

/// A configuration as JSON, as an editor validates it.
fn document(toml: &str) -> Value {
    json!(toml::from_str::<toml::Table>(toml).expect("TOML"))
}

#[test]
fn the_schema_takes_what_the_daemon_takes() {
    let schema: Value = serde_json::from_str(&text(&["config", "schema"])).expect("JSON");
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let sample = text(&["config", "sample"]);
    assert!(validator.is_valid(&document(&sample)));
    // With the commented examples enabled, except the alternative form of addresses.
    let active: String = sample
        .lines()
        .map(|line| {
            line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line).to_owned() + "\n"
        })
        .collect();
    let errors: Vec<_> = validator.iter_errors(&document(&active)).map(|error| error.to_string()).collect();
    assert_eq!(errors, [""; 0]);
    for wrong in [
        "[ingest]\nprefech = 3\n",
        "[ingest]\nprefetch = 0\n",
        "[ingest]\nprefetch = \"3\"\n",
        "[defaults]\nwindow = \"3\"\n",
        "[defaults]\nformat = \"xml\"\n",
        "[limits]\nmemory = \"3 apples\"\n",
        "[applications.shop]\nqueue = \"q\"\n",
        "[applications.shop.retry]\nattempts = -1\n",
        "[nothing]\n",
    ] {
        assert!(!validator.is_valid(&document(wrong)), "{wrong}");
    }
}

#[test]
fn what_holds_is_shown_without_passwords() {
    let file = workdir("shown").join("config.toml");
    fs::write(&file, "[amqp]\nuri = \"amqp://me:canary@localhost/%2f\"\n").expect("the configuration");
    let path = file.to_str().expect("a path of text");
    let mut command = Command::new(binary());
    command.args(["config", "show", "--config", path]).env("TIDEGATE__INGEST__PREFETCH", "7");
    let shown = String::from_utf8(command.output().expect("the program runs").stdout).expect("text");
    assert!(!shown.contains("canary") && shown.contains("amqp://me:***@localhost/%2f"), "{shown}");
    assert_eq!(document(&shown)["ingest"]["prefetch"], 7);
    fs::write(&file, "[amqp]\nuri = 3\n").expect("the configuration");
    assert_eq!(tidegate(&["config", "show", "--config", path]).status.code(), Some(78));
}

#[test]
fn health_is_an_exit_code() {
    let Some(node) = Node::lent("health_is_an_exit_code") else { return };
    let site = Site::on(&node, "health");
    let mut daemon = site.start(&site.config());
    // Its own time limit is short.
    let health = |more: &[&str]| daemon.cli(&[&["health", "--timeout", "60s"][..], more].concat());
    let well = health(&[]);
    assert_eq!((well.code, well.out.as_str()), (0, "live and ready\n"), "{well:?}");
    node.stop();
    wait_until("it misses the broker", Duration::from_secs(30), || daemon.ask("GET", "/readyz").0 == 503);
    let without = health(&["--output", "json"]);
    let told: Value = serde_json::from_str(&without.out).expect("JSON");
    assert_eq!(
        (without.code, &told["live"], &told["ready"]),
        (3, &json!(true), &json!(false)),
        "{without:?}"
    );
    assert!(without.err.starts_with("live, not ready: "), "{without:?}");
    assert_eq!(health(&["--live"]).code, 0);
    daemon.kill9();
    let begun = Instant::now();
    let gone = daemon.cli(&["health", "--timeout", "1s"]);
    assert!(gone.code == 1 && begun.elapsed() < Duration::from_secs(30), "{gone:?}");
}
