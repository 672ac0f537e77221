//! The systemd files: systemd accepts them, they stay hardened, and they fit the daemon's defaults.
//!
//! Without `systemd-analyze`, the tests that need it are skipped, or fail in a CI.
#![expect(clippy::unwrap_used, reason = "a test that fails is to stop")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tidegate_config::Config;
use tidegate_harness::{lacks, require, skip};

const TOOL: &str = "systemd-analyze";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd")
}

fn read(name: &str) -> String {
    fs::read_to_string(folder().join(name)).unwrap()
}

/// All values of a key; a commented key counts only with its `#`.
fn values<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    text.lines().filter_map(|l| l.split_once('=')).filter(|(k, _)| *k == key).map(|(_, v)| v).collect()
}

/// Seconds of a setting such as `60s`.
fn seconds(text: &str, key: &str) -> u64 {
    let value = values(text, key)[0];
    value.strip_suffix('s').unwrap_or(value).parse().unwrap()
}

/// Runs the tool, if it is installed.
fn analyze(args: &[&str]) -> Option<Output> {
    require(TOOL).then(|| Command::new(TOOL).args(args).output().unwrap())
}

fn version() -> Option<u32> {
    let output = analyze(&["--version"])?;
    String::from_utf8_lossy(&output.stdout).split_whitespace().nth(1)?.parse().ok()
}

/// The unit with these drop-ins, laid out as installed for `verify`, with the built binary.
fn installed(drop_ins: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let unit = dir.path().join("tidegate.service");
    fs::write(&unit, read("tidegate.service").replace("/usr/bin/tidegate", env!("CARGO_BIN_EXE_tidegate")))
        .unwrap();
    let folder = dir.path().join("tidegate.service.d");
    fs::create_dir(&folder).unwrap();
    for name in drop_ins {
        fs::write(folder.join(name), read(name)).unwrap();
    }
    (dir, unit)
}

#[track_caller]
fn verify(drop_ins: &[&str]) {
    let (_dir, unit) = installed(drop_ins);
    let Some(output) = analyze(&["verify", "--man=no", "--recursive-errors=no", unit.to_str().unwrap()])
    else {
        return;
    };
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    if complaints.contains("Failed to initialize manager") || complaints.contains("unrecognized option") {
        return lacks(TOOL, &format!("cannot verify here: {}", complaints.trim()));
    }
    let about_us: Vec<&str> = complaints.lines().filter(|l| l.contains("tidegate")).collect();
    assert_eq!(about_us, Vec::<&str>::new(), "{drop_ins:?}");
    assert!(output.status.success(), "{drop_ins:?}: {complaints}");
}

#[test]
fn systemd_understands_the_unit() {
    verify(&[]);
    verify(&["credentials.conf"]);
    verify(&["admin-socket.conf"]);
}

#[test]
fn systemd_understands_the_drop_in_for_newer_versions() {
    match version() {
        None => {}
        Some(version) if version < 253 => skip(&format!("systemd {version} does not know notify-reload")),
        Some(_) => verify(&["notify-reload.conf"]),
    }
}

#[test]
fn the_drop_in_for_restarts_backs_off() {
    let text = read("restart-backoff.conf");
    assert!(seconds(&text, "RestartMaxDelaySec") >= 30 && !values(&text, "RestartSteps").is_empty());
    match version() {
        None => {}
        Some(version) if version < 254 => println!("skipped: systemd {version} does not know RestartSteps"),
        Some(_) => verify(&["restart-backoff.conf"]),
    }
}

#[test]
fn the_unit_stays_hardened() {
    let (_dir, unit) = installed(&[]);
    // The threshold is in tenths.
    let args = ["security", "--offline=yes", "--threshold=20", unit.to_str().unwrap()];
    let Some(output) = analyze(&args) else { return };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if String::from_utf8_lossy(&output.stderr).contains("unrecognized option") {
        return lacks(TOOL, "knows no offline review");
    }
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("Overall exposure level"), "{text}");
}

#[test]
fn the_unit_fits_the_daemon() {
    let unit = read("tidegate.service");
    for (key, value) in [
        ("Type", "notify"),
        ("NotifyAccess", "main"),
        ("ExecReload", "/bin/kill -HUP $MAINPID"),
        ("RestartPreventExitStatus", "78"),
        ("LimitCORE", "0"),
        ("Environment", "RUST_MIN_STACK=67108864"),
        ("StartLimitIntervalSec", "0"),
        ("Restart", "on-failure"),
        ("UMask", "0077"),
        ("StateDirectoryMode", "0700"),
    ] {
        assert_eq!(values(&unit, key), [value], "{key}");
    }
    assert!(values(&unit, "LoadCredential").is_empty(), "a missing file would keep the unit from starting");
    let defaults = Config::default();
    assert_eq!(Path::new("/var/lib").join(values(&unit, "StateDirectory")[0]), defaults.store.path);
    assert!(seconds(&unit, "TimeoutStopSec") >= 2 * defaults.timeouts.drain.as_secs());
    let limit = values(&unit, "#MemoryMax")[0].strip_suffix('M').unwrap().parse::<u64>().unwrap() << 20;
    assert!(limit >= 2 * defaults.limits.memory);

    let socket = read("admin-socket.conf");
    let path = Path::new("/run").join(values(&unit, "RuntimeDirectory")[0]).join("admin.sock");
    assert!(socket.contains(&format!("listen = \"unix:{}\"", path.display())), "{socket}");
    assert_eq!((values(&socket, "PrivateUsers"), values(&socket, "Group").len()), (vec!["no"], 1));

    let reload = read("notify-reload.conf");
    assert_eq!((values(&reload, "Type"), values(&reload, "ExecReload")), (vec!["notify-reload"], vec![""]));
    let credentials = read("credentials.conf");
    for name in
        ["amqp-password", "amqp-key", "egress-password", "egress-key", "admin-token", "admin-read-token"]
    {
        assert!(credentials.contains(&format!("LoadCredential={name}:")), "{name}");
    }
}
