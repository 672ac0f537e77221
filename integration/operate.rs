//! What operators do: hold applications back and let them go on, and see to what cannot be delivered.

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

/// One application, as the state tells of it.
pub(super) fn application(daemon: &Daemon, name: &str) -> Value {
    daemon.ask("GET", &format!("/api/v1/applications/{name}")).1
}

/// An order to an application, and whether it made a difference.
pub(super) fn order(daemon: &Daemon, name: &str, verb: &str) -> bool {
    let (status, answer) = daemon.ask("POST", &format!("/api/v1/applications/{name}/{verb}"));
    assert_eq!((status, &answer["result"]), (200, &json!("done")), "{verb} {name}: {answer}");
    answer["changed"].as_bool().unwrap_or_else(|| panic!("{verb} {name}: {answer}"))
}

/// Runs the command line, which must succeed; gives what it says.
pub(super) fn run(daemon: &Daemon, arguments: &str) -> String {
    let told = daemon.cli(&arguments.split(' ').collect::<Vec<_>>());
    assert_eq!((told.code, told.err.as_str()), (0, ""), "{arguments}: {told:?}");
    told.out
}
