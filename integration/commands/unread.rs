//! Commands whose output nobody reads (`| head` that has ended): the exit code is that of what was done.

use super::wait_for;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use tidegate_harness::{is_on_disk, wait_until, Daemon, Site};

/// Exit codes of these commands, each with a standard output that is closed.
fn exit_as(daemon: &Daemon, expected: &[(&str, i32)]) {
    let begun = Instant::now();
    for (line, code) in expected {
        let arguments: Vec<&str> = line.split(' ').collect();
        let mut told = daemon.cli_unread(&arguments);
        // A busy broker may not tell the daemon of dead letters in time, and the command fails.
        while told == 1 && line.starts_with("dead ") && begun.elapsed() < Duration::from_secs(60) {
            told = daemon.cli_unread(&arguments);
        }
        assert_eq!(told, *code, "{line}: {:?}", daemon.cli(&arguments));
    }
}

/// Turns a byte around in each table of the items, and checks that their rows count as damaged.
fn damage(daemon: &Daemon, tables: &Path) {
    assert_eq!(daemon.cli(&["store", "compact"]).code, 0);
    for table in fs::read_dir(tables).expect("the tables") {
        let path = table.expect("a table").path();
        let mut bytes = fs::read(&path).expect("its bytes");
        bytes[60] ^= 0xff;
        fs::write(&path, bytes).expect("the table is written");
    }
    let told = daemon.cli(&["store", "verify"]);
    assert!(told.code == 1 && told.out.starts_with("damaged: keyspace items"), "{told:?}");
}

#[test]
fn a_reader_that_has_gone_turns_no_failure_into_a_success() {
    let site = Site::new("unread");
    site.application("shop");
    let mut daemon = site.start(&site.config());
    site.client.publish(&site.push("shop", "1").id("x").delay(3_600_000));
    site.client.publish(&site.push("shop", "1").id("dead").with("x-delay", "soon"));
    wait_for(&daemon, "shop", "x", "waiting");
    wait_until("one is dead", Duration::from_secs(20), || site.client.depth(&site.dead()) == Some(1));
    let no_letter = format!("dead drop {} --yes", "0".repeat(32));
    exit_as(
        &daemon,
        &[
            ("lookup shop x", 0),
            ("lookup shop none --output json", 3),
            ("cancel shop none --output json", 3),
            ("status", 0),
            ("list --output json", 0),
            ("config sample", 0),
            ("completions bash", 0),
            ("dead list", 0),
            (&no_letter, 3),
            // What is saved is what is read.
            ("dead export", 3),
        ],
    );
    if is_on_disk() {
        exit_as(&daemon, &[("store export --running", 3)]);
    }
    daemon.term();
    assert!(daemon.exit(Duration::from_secs(20)).success());
    if is_on_disk() {
        exit_as(&daemon, &[("store verify", 0), ("store export", 3)]);
        // It is due later than a memory store may hold it, and so it stays.
        let memory = Daemon::another(&site.config().text("store.kind", "memory"));
        let from = format!("move --from disk:{}", site.dir.join("store").display());
        exit_as(&memory, &[(&from, 3), (&format!("{from} --output json"), 3)]);
        damage(&daemon, &site.dir.join("store/db/keyspaces/1/tables"));
        exit_as(&daemon, &[("store verify", 1), ("store verify --output json", 1)]);
    }

    let mut alone = Daemon::another(&site.config().text("amqp.uri", "amqp://guest:guest@127.0.0.1:1"));
    alone.start_again();
    wait_until("it lives", Duration::from_secs(20), || alone.ask("GET", "/livez").0 == 200);
    let unready = [("status", 3), ("status --output json", 3), ("health --output json", 3)];
    exit_as(
        &alone,
        &[&unready[..], &[("check --connect", 1), ("check --connect --output json", 1)]].concat(),
    );
}
