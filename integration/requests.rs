//! Requests: headers, own times, envelopes, formats, commands; and malformed requests.

mod envelope;
mod fields;
mod formats;
mod lines;
mod passed_on;
mod rejected;

use std::time::Duration;
use tidegate_harness::{wait_until, Daemon, Site};

/// A site of a daemon with one shard. The suite of several shards runs some of these modules too, with its own.
fn site(name: &str) -> Site<'static> {
    Site::new(name)
}

// A busy daemon may have to be asked again, so these ask until they are answered.

/// Pauses an application, or resumes it: `verb`.
pub(super) fn order(daemon: &Daemon, application: &str, verb: &str) {
    let path = format!("/api/v1/applications/{application}/{verb}");
    wait_until(verb, Duration::from_secs(10), || daemon.ask("POST", &path).0 == 200);
}

/// The due of an item, UTC ms, once the daemon has taken it.
pub(super) fn due_of(daemon: &Daemon, application: &str, id: &str) -> u64 {
    let path = format!("/api/v1/items/{application}/{id}");
    let mut due = None;
    wait_until("the item is taken", Duration::from_secs(10), || {
        due = daemon.ask("GET", &path).1["due"].as_u64();
        due.is_some()
    });
    due.expect("a due")
}

/// Gives an item that waits a new time: now.
pub(super) fn leave_now(daemon: &Daemon, application: &str, id: &str) {
    let path = format!("/api/v1/items/{application}/{id}/reschedule?delay=0");
    wait_until("the item has its new time", Duration::from_secs(10), || daemon.ask("POST", &path).0 == 200);
}

/// Closes the window of a customer once this many items are in it, however slowly they have come.
pub(super) fn close_window(daemon: &Daemon, application: &str, customer: &str, count: usize) {
    let path = format!("/api/v1/customers/{application}/{customer}");
    let waiting = || daemon.ask("GET", &path).1["waiting"] == count;
    wait_until("all are in the window", Duration::from_secs(10), waiting);
    let closed = || daemon.ask("POST", &format!("{path}/flush")).0 == 200;
    wait_until("the window is closed", Duration::from_secs(10), closed);
}
