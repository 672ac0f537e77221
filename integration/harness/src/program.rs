//! Foreign programs that a test starts: their output, and that none outlives the test.

use crate::guard;
use crate::require::{lacks, on_path, require, skip};
use crate::util::wait_until;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// The system's interpreter, which finds Debian's packages.
const PYTHON: &str = "/usr/bin/python3";
/// Debian's libraries for Go.
const GO_PATH: &str = "/usr/share/gocode";
/// Packages for node, installed by `make setup`.
const NODE_MODULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/node/node_modules");

/// Whether Python finds a module; if not, as in [`lacks`]. `package` is Debian's name for it.
///
/// # Panics
/// In a CI, unless `TIDEGATE_LACKS` names the package.
pub fn require_python(module: &str, package: &str) -> bool {
    if !require("python3") {
        return false;
    }
    let found = finds("python3", "-c", &format!("import {module}"));
    if !found {
        lacks(package, "is not installed");
    }
    found
}

/// Whether there is a node with amqplib. Its package comes from npm, so no test requires it.
pub fn has_node() -> bool {
    let found = on_path("node").is_some() && finds("node", "-e", "require('amqplib')");
    if !found {
        skip("there is no node with amqplib");
    }
    found
}

/// Whether there is Go with the AMQP library, from Debian's `golang-go` and
/// `golang-github-rabbitmq-amqp091-go-dev`.
pub fn has_go() -> bool {
    let library = Path::new(GO_PATH).join("src/github.com/rabbitmq/amqp091-go");
    let found = on_path("go").is_some() && library.is_dir();
    if !found {
        skip("there is no go with amqp091-go");
    }
    found
}

fn finds(interpreter: &str, flag: &str, script: &str) -> bool {
    command(interpreter).args([flag, script]).output().is_ok_and(|told| told.status.success())
}

fn command(name: &str) -> Command {
    let mut command = Command::new(if name == "python3" { PYTHON } else { name });
    command.env("NODE_PATH", NODE_MODULES).env("PYTHONDONTWRITEBYTECODE", "1");
    // Libraries of the distribution only, nothing from the network.
    command.env("GOPATH", GO_PATH).env("GO111MODULE", "off");
    command
}

/// A program that runs in the test's directory. It ends with the test, and so do its children.
pub struct Program {
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts `python3`, `node`, `go` or another interpreter with a script and its arguments. All output goes
    /// to a file.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(interpreter: &str, arguments: &[&str], dir: &Path) -> Program {
        let log = tempfile::Builder::new().prefix("program-").tempfile_in(dir).expect("a log");
        let (file, log) = log.keep().expect("a log that stays");
        let second: File = file.try_clone().expect("a second handle");
        let child = command(interpreter)
            .args(arguments)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(second)
            .process_group(0)
            .spawn()
            .unwrap_or_else(|e| panic!("{interpreter} does not start: {e}"));
        guard::watch(child.id());
        Program { child, log }
    }

    /// Its output so far.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it has printed this text.
    ///
    /// # Panics
    /// If it has not within `LEAST_WAIT`.
    pub fn wait_for(&self, text: &str) {
        let end = Duration::from_secs(20);
        let what = || format!("{text:?} in what it said:\n{}", self.said());
        if !self.said().contains(text) {
            wait_until(&what(), end, || self.said().contains(text));
        }
    }

    /// Waits for its end, and returns its output.
    ///
    /// # Panics
    /// If it has not ended within `LEAST_WAIT`, or ended with a failure.
    pub fn end(self) -> String {
        let (has_succeeded, said) = self.ended();
        assert!(has_succeeded, "the program failed: {said}");
        said
    }

    /// Waits for its end. Returns whether it succeeded, and its output.
    ///
    /// # Panics
    /// If it has not ended within `LEAST_WAIT`.
    pub fn ended(mut self) -> (bool, String) {
        let mut status: Option<ExitStatus> = None;
        wait_until("the program ends", Duration::from_secs(30), || {
            status = self.child.try_wait().expect("its status");
            status.is_some()
        });
        (status.is_some_and(|status| status.success()), self.said())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let group = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(group) = group {
            let _gone = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _reaped = self.child.wait();
        guard::forget(self.child.id());
    }
}
