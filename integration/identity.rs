//! One id, one item: each value of `x-on-duplicate`, across restarts and lost acks, and ids that must not be
//! confused.
//!
//! Judges promise 14.

mod again;
mod apart;
mod ended;
mod waiting;

use std::time::Duration;
use tidegate_harness::{wait_until, Daemon, Inbox};

/// Three hours, ms: such an item is held in the store only.
pub(super) const FAR: i64 = 3 * 3_600_000;

/// Payloads of `json` batches as JSON text, in order of arrival, until nothing arrives within `wait`.
pub(super) fn payloads(inbox: &Inbox, wait: Duration) -> Vec<String> {
    let messages = std::iter::from_fn(|| inbox.poll(wait));
    let items = messages.flat_map(|message| message.batch().items);
    items.map(|item| item.payload.map(|p| p.to_string()).unwrap_or_default()).collect()
}

/// Waits until a look-up returns this state.
pub(super) fn wait_for(daemon: &Daemon, application: &str, id: &str, state: &str) {
    wait_until(&format!("{application} {id} is {state}"), Duration::from_secs(10), || {
        daemon.ask("GET", &format!("/api/v1/items/{application}/{id}")).1["state"] == state
    });
}

/// One counter below `totals.duplicates`.
pub(super) fn duplicates(daemon: &Daemon, rule: &str, verdict: &str) -> u64 {
    let state = daemon.state();
    let figure = &state["totals"]["duplicates"][rule][verdict];
    figure.as_u64().unwrap_or_else(|| panic!("no figure for {rule} {verdict}: {state}"))
}
