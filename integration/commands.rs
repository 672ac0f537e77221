//! Commands over AMQP, over HTTP and on the command line: in every state of an item, across kills, and in a
//! race with the publish.
//!
//! Judges promise 15.

mod answers;
mod cli;
mod crash;
mod elsewhere;
mod http;
mod race;
mod reschedule;
mod selected;
mod states;
mod unread;

use std::time::Duration;
use tidegate_harness::{wait_until, Asker, Daemon};

/// Three hours, ms: such an item is held in the store only.
pub(super) const FAR: i64 = 3 * 3_600_000;

/// See [`Asker::NOT_SENT`].
pub(super) const NOT_SENT: &str = Asker::NOT_SENT;

/// Waits until a look-up returns this state.
pub(super) fn wait_for(daemon: &Daemon, application: &str, id: &str, state: &str) {
    wait_until(&format!("{application} {id} is {state}"), Duration::from_secs(10), || {
        daemon.ask("GET", &format!("/api/v1/items/{application}/{id}")).1["state"] == state
    });
}
