//! When and how batches leave: windows, own times, order, parked applications, topology.

mod cost;
mod crowds;
mod far;
mod own_times;
mod parked;
mod refused;
mod topology;
mod whole;
mod windows;

use std::time::Duration;
use tidegate_harness::{wait_until, Daemon};

/// Pauses or resumes the application `shop`. A test pauses items that must be there together, because a
/// machine with other work may take longer to publish them than any delay.
pub(super) fn order(daemon: &Daemon, verb: &str) {
    wait_until(verb, Duration::from_secs(10), || {
        let (status, answer) = daemon.ask("POST", &format!("/api/v1/applications/shop/{verb}"));
        assert!(matches!(status, 200 | 503), "{verb}: {status} {answer}");
        status == 200
    });
}

/// Waits until this many items wait, and all are durable.
pub(super) fn held(daemon: &Daemon, count: u64) {
    wait_until("all are taken and stored", Duration::from_secs(60), || {
        let state = daemon.state();
        state["items"]["waiting"].as_u64() == Some(count) && state["uncommitted"] == 0
    });
}
