//! One id, one item: each value of `x-on-duplicate`, across restarts and lost acks, and ids that must not be
//! confused.
//!
//! Judges promise 14.

mod again;
mod apart;
mod ended;
mod waiting;

use std::time::Duration;
use tidegate_harness::{wait_until, Daemon, Inbox, Item};

/// Three hours, ms: such an item is held in the store only.
pub(super) const FAR: i64 = 3 * 3_600_000;

/// Payloads of `json` batches with this many items as sorted JSON text. Panics if another message follows.
pub(super) fn payloads(inbox: &Inbox, count: usize) -> Vec<String> {
    let items = inbox.items(count, Duration::from_secs(20));
    inbox.quiet(Duration::from_millis(500));
    let text = |item: Item| item.payload.map(|payload| payload.to_string()).unwrap_or_default();
    let mut texts: Vec<String> = items.into_iter().map(text).collect();
    texts.sort();
    texts
}

/// Pauses or resumes the application `shop`. Where a test needs items that still wait, it pauses them until
/// then, because a machine with other work may take longer than any delay.
pub(super) fn order(daemon: &Daemon, verb: &str) {
    wait_until(verb, Duration::from_secs(10), || {
        let (status, answer) = daemon.ask("POST", &format!("/api/v1/applications/shop/{verb}"));
        assert!(matches!(status, 200 | 503), "{verb}: {status} {answer}");
        status == 200
    });
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
