//! Dead letters in their queue: listed, sent back, dropped and exported, and never lost by any of it.
//!
//! Judges promise 8.

mod back;
mod edges;
mod kill;
mod look;
mod many;

use serde_json::Value;
use std::time::Duration;
use tidegate_harness::{wait_until, Daemon, Push, Site};

/// A request that is dead-lettered as `invalid`.
fn invalid(site: &Site<'_>, application: &str, id: &str) -> Push {
    site.push(application, format!("{{\"of\":\"{id}\"}}"))
        .content_type("application/json")
        .with("x-delay", "soon")
        .id(id)
}

/// Publishes them, and waits until `count` dead letters are in the queue.
fn died(site: &Site<'_>, pushes: impl IntoIterator<Item = Push>, count: u32) {
    site.client.publish_all(pushes);
    lie_there(site, count);
}

/// A dead letter as tidegate publishes it.
fn letter(site: &Site<'_>, reason: &str, id: &str) -> Push {
    Push::new(&site.dead(), "shop", "{}")
        .with("x-tidegate-reason", reason)
        .with("x-application", "shop")
        .id(id)
}

fn lie_there(site: &Site<'_>, count: u32) {
    wait_until("the dead letters", Duration::from_secs(20), || {
        site.client.depth(&site.dead()) == Some(count)
    });
}

/// The reply to a request that must succeed.
fn done(daemon: &Daemon, method: &str, path: &str) -> Value {
    let (status, answer) = daemon.ask(method, path);
    assert_eq!(status, 200, "{method} {path}: {answer}\n{}", daemon.log_tail());
    answer
}

fn listed(daemon: &Daemon, query: &str) -> Vec<Value> {
    let page = done(daemon, "GET", &format!("/api/v1/dead{query}"));
    page["letters"].as_array().unwrap_or_else(|| panic!("{page}")).clone()
}

fn ids(letters: &[Value]) -> Vec<&str> {
    letters.iter().map(|letter| letter["id"].as_str().unwrap_or("none")).collect()
}
