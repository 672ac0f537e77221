//! What operators do: pause and resume applications, and deal with items that cannot be delivered.

mod checked;
mod customer;
mod paper;
mod parked;
mod paused;
mod secured;
mod setup;
mod telemetry;

use serde_json::{json, Value};
use tidegate_harness::Daemon;

/// One application's state document.
pub(super) fn application(daemon: &Daemon, name: &str) -> Value {
    daemon.ask("GET", &format!("/api/v1/applications/{name}")).1
}

/// Orders an action for an application. Returns whether it changed anything.
pub(super) fn order(daemon: &Daemon, name: &str, verb: &str) -> bool {
    let (status, answer) = daemon.ask("POST", &format!("/api/v1/applications/{name}/{verb}"));
    assert_eq!((status, &answer["result"]), (200, &json!("done")), "{verb} {name}: {answer}");
    answer["changed"].as_bool().unwrap_or_else(|| panic!("{verb} {name}: {answer}"))
}

/// Runs a command that must succeed, and returns its output.
pub(super) fn run(daemon: &Daemon, arguments: &str) -> String {
    let told = daemon.cli(&arguments.split(' ').collect::<Vec<_>>());
    assert_eq!((told.code, told.err.as_str()), (0, ""), "{arguments}: {told:?}");
    told.out
}
