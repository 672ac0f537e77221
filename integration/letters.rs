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
use tidegate_harness::{holds_within, wait_until, Daemon, Push, Site, Told};

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

/// Whether this says that the broker was silent for too long, as it may be on a machine with other work: a
/// look is repeated then, and what changes the queue goes on with the rest.
fn is_silence(text: &str) -> bool {
    ["no answer", "the broker is slow", "try again in a moment"].iter().any(|words| text.contains(words))
}

/// Whether this reply is of a call that has stopped, or has done nothing, for this reason.
fn is_broken_off((status, answer): &(u16, Value)) -> bool {
    *status == 503 || *status == 200 && answer["stopped"].as_str().is_some_and(is_silence)
}

/// The reply to a look that must succeed.
pub(crate) fn done(daemon: &Daemon, method: &str, path: &str) -> Value {
    let mut told = (0, Value::Null);
    holds_within(Duration::from_secs(20), || {
        told = daemon.ask(method, path);
        !is_broken_off(&told)
    });
    let (status, answer) = &told;
    assert!(*status == 200 && !is_broken_off(&told), "{method} {path}: {answer}\n{}", daemon.log_tail());
    told.1
}

/// The reply to a request that changes the queue and must succeed, with the count of all its parts. `limit`
/// is that of all parts together.
pub(crate) fn changed(daemon: &Daemon, method: &str, path: &str, limit: Option<u64>) -> Value {
    let (mut count, mut last) = (0, Value::Null);
    let ended = holds_within(Duration::from_secs(20), || {
        let rest = limit.map_or(String::new(), |limit| format!("&limit={}", limit - count));
        let told = daemon.ask(method, &format!("{path}{rest}"));
        let broken_off = is_broken_off(&told);
        assert!(told.0 == 200 || broken_off, "{method} {path}: {told:?}\n{}", daemon.log_tail());
        count += told.1["count"].as_u64().unwrap_or(0);
        last = told.1;
        !broken_off || limit == Some(count)
    });
    assert!(ended, "{method} {path}: {last}\n{}", daemon.log_tail());
    last["count"] = count.into();
    last
}

/// A command that looks at dead letters, run until the broker is not silent.
fn looked(daemon: &Daemon, arguments: &[&str]) -> Told {
    let mut told = None;
    holds_within(Duration::from_secs(20), || {
        let run = daemon.cli(arguments);
        let broken_off = run.code != 0 && is_silence(&run.err);
        told = Some(run);
        !broken_off
    });
    told.expect("a run")
}

/// A command that changes the queue, run until the broker is not silent. The output is that of all runs
/// together.
fn carried_out(daemon: &Daemon, arguments: &[&str]) -> Told {
    let mut arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    let limit = arguments.iter().position(|argument| argument == "--limit").map(|at| at + 1);
    let (mut before, mut told) = (0, None);
    holds_within(Duration::from_secs(20), || {
        let run = daemon.cli(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        let broken_off = run.code != 0 && is_silence(&run.err);
        if broken_off {
            let count = count_of(&run);
            before += count;
            if let Some(at) = limit {
                let rest = arguments[at].parse::<u64>().expect("a number") - count;
                arguments[at] = rest.to_string();
            }
        }
        told = Some(run);
        !broken_off
    });
    let told = told.expect("a run");
    if before == 0 {
        return told;
    }
    let count = before + count_of(&told);
    let out = match serde_json::from_str::<Value>(&told.out) {
        Ok(mut answer) => {
            answer["count"] = count.into();
            answer.to_string()
        }
        Err(_) => {
            let (word, rest) = told.out.split_once(": ").unwrap_or_else(|| panic!("{told:?}"));
            let rest = rest.find(';').map_or("", |at| &rest[at..]);
            format!("{word}: {count} letter{}{rest}", if count == 1 { "" } else { "s" })
        }
    };
    // A former run has done all.
    let nothing = told.code == 3 && count_of(&told) == 0 && told.err.contains("unknown: no such dead letter");
    Told { code: if nothing { 0 } else { told.code }, out, err: told.err }
}

/// The number of dead letters in a command's output; 0 without one.
fn count_of(told: &Told) -> u64 {
    let count = match serde_json::from_str::<Value>(&told.out) {
        Ok(answer) => answer["count"].as_u64(),
        Err(_) => told.out.split_once(": ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok()),
    };
    count.unwrap_or(0)
}

/// Panics unless the log tells this many actions of this kind. An action that was broken off is told, and
/// was repeated.
fn told_in_the_log(daemon: &Daemon, action: &str, count: usize) {
    let log = daemon.log();
    let told = log.matches(&format!("admin action action=\"{action}\"")).count();
    let again = log.matches("a dead-letter action failed or was completed only in part").count();
    assert!((count..=count + again).contains(&told), "{told} of {action}, {again} broken off: {log}");
}

fn listed(daemon: &Daemon, query: &str) -> Vec<Value> {
    let page = done(daemon, "GET", &format!("/api/v1/dead{query}"));
    page["letters"].as_array().unwrap_or_else(|| panic!("{page}")).clone()
}

fn ids(letters: &[Value]) -> Vec<&str> {
    letters.iter().map(|letter| letter["id"].as_str().unwrap_or("none")).collect()
}
