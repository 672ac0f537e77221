//! What the arguments and policies of a queue mean for tidegate, judged by the queue's document of RabbitMQ's
//! management API. Pure.
//!
//! If an argument and a policy set the same number, the broker applies the lower one; of words it applies the
//! argument's.

use super::output::plain;
use serde_json::Value;
use std::fmt::Display;
use tidegate_common::check_line::{CheckLine, Severity};

/// The limit of the queue that the daemon declares. Restarts of a daemon soon use up a lower one.
const RETURNS: i64 = 50;
/// Number of returns after which RabbitMQ 4 removes a message if the queue has no limit.
const RETURNS_OF_4: i64 = 20;
/// Longer than deliveries are held while the intake is paused, ms.
const LEAST_CONSUMER_TIMEOUT_MS: i64 = 30 * 60 * 1_000;

/// A queue as the management API describes it.
pub(super) struct Managed<'d> {
    subject: &'static str,
    name: &'d str,
    document: &'d Value,
    /// Major version of the broker; 0 if unknown.
    major: u64,
}

/// The major number of a version; 0 if there is none.
pub(super) fn major(version: &str) -> u64 {
    version.split('.').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

impl<'d> Managed<'d> {
    pub(super) fn new(subject: &'static str, name: &'d str, document: &'d Value, major: u64) -> Self {
        Managed { subject, name, document, major }
    }

    /// Judges the ingest queue. `dead` is the exchange for dead letters.
    pub(super) fn judge_ingest(&self, dead: &str) -> Vec<CheckLine> {
        let mut found = vec![self.summary()];
        self.judge_kind(&mut found);
        self.judge_losses(&mut found, "requests");
        self.judge_returns(&mut found);
        self.judge_dead_exchange(&mut found, dead);
        if let Some((ms, from)) = self.number("consumer-timeout") {
            if ms < LEAST_CONSUMER_TIMEOUT_MS {
                let text = format!(
                    "{from} sets a consumer timeout of {ms} ms: while the intake is paused, tidegate holds \
                     deliveries for up to 25 minutes, and the broker would take them back. Raise it to \
                     {LEAST_CONSUMER_TIMEOUT_MS} or remove it"
                );
                found.push(self.line(Severity::Warning, text));
            }
        }
        found
    }

    /// Judges the dead-letter queue.
    pub(super) fn judge_dead(&self) -> Vec<CheckLine> {
        let mut found = vec![self.summary()];
        self.judge_state(&mut found);
        self.judge_losses(&mut found, "dead letters");
        let looks = self.number("delivery-limit");
        let few = match &looks {
            Some((limit, _)) => *limit < 1_000_000 && !(*limit < 0 && self.major >= 4),
            None => self.major >= 4,
        };
        if self.kind() == "quorum" && few {
            let limit = looks.map_or(RETURNS_OF_4, |(limit, _)| limit.max(0));
            let text = format!(
                "a dead letter is lost after {limit} returns, and each read by `tidegate dead` is one: \
                 declare the queue with an x-delivery-limit of 1000000000"
            );
            found.push(self.line(Severity::Warning, text));
        }
        found
    }

    /// Judges the lock queue, which keeps a second daemon away and exists while one runs.
    pub(super) fn judge_lock(&self) -> Vec<CheckLine> {
        let text = self.number("expires").map(|(ms, from)| {
            format!(
                "{from} deletes it after {ms} ms without use, and this queue is never used: a second \
                 tidegate could then take requests beside this one. Exclude it from the policy's pattern"
            )
        });
        text.into_iter().map(|text| self.line(Severity::Warning, text)).collect()
    }

    fn line(&self, severity: Severity, text: impl Display) -> CheckLine {
        CheckLine::new(severity, self.subject, format!("queue '{}': {text}", self.name))
    }

    fn kind(&self) -> &str {
        // The field is absent in the document of a queue without a leader.
        self.document["type"].as_str().or_else(|| self.argument("x-queue-type")).unwrap_or("unknown")
    }

    fn argument(&self, name: &str) -> Option<&str> {
        self.document["arguments"][name].as_str()
    }

    fn summary(&self) -> CheckLine {
        let mut text = format!("type {}", self.kind());
        match self.policies() {
            Some(policies) => {
                let definition = self.document["effective_policy_definition"].as_object();
                let keys: Vec<_> =
                    definition.into_iter().flatten().map(|(k, v)| format!("{k}={v}")).collect();
                text.push_str(&format!(", {policies} sets {}", keys.join(", ")));
            }
            None => text.push_str(", no policy"),
        }
        self.line(Severity::Good, text)
    }

    /// Names of the policies that apply; `None` if there are none.
    fn policies(&self) -> Option<String> {
        let named = |key: &str| self.document[key].as_str().filter(|name| !name.is_empty());
        match (named("policy"), named("operator_policy")) {
            (None, None) => None,
            (Some(one), None) => Some(format!("policy '{one}'")),
            (None, Some(one)) => Some(format!("operator policy '{one}'")),
            (Some(one), Some(other)) => Some(format!("policy '{one}' with operator policy '{other}'")),
        }
    }

    fn both(&self, key: &str) -> [(&Value, String); 2] {
        let argument = &self.document["arguments"][format!("x-{key}")];
        let policy = &self.document["effective_policy_definition"][key];
        let policies = self.policies().unwrap_or_else(|| "a policy".to_owned());
        [(argument, format!("its argument x-{key}")), (policy, policies)]
    }

    /// The effective number and its source.
    fn number(&self, key: &str) -> Option<(i64, String)> {
        let numbers = self.both(key).into_iter().filter_map(|(v, from)| Some((v.as_i64()?, from)));
        numbers.min_by_key(|(n, _)| *n)
    }

    /// The effective word and its source.
    fn word(&self, key: &str) -> Option<(&str, String)> {
        self.both(key).into_iter().find_map(|(v, from)| Some((v.as_str()?, from)))
    }

    fn judge_kind(&self, found: &mut Vec<CheckLine>) {
        match self.kind() {
            "quorum" => {}
            "classic" => found.push(self.line(
                Severity::Warning,
                "it is a classic queue: its requests are on one node only, and a request that ends the \
                 daemon each time is never removed. Move to a quorum queue: name a new one in ingest.queue",
            )),
            "stream" => found.push(self.line(
                Severity::Fault,
                "it is a stream: acked requests stay in it and are delivered again after each restart. Name \
                 a quorum queue in ingest.queue",
            )),
            other => found.push(self.line(
                Severity::Warning,
                format!("its type is {}, which this version does not know", plain(other)),
            )),
        }
        for (key, level, text) in [
            (
                "exclusive",
                Severity::Fault,
                "it is exclusive: only the connection that declared it may use it",
            ),
            (
                "auto_delete",
                Severity::Warning,
                "it is deleted with all requests when its last consumer leaves",
            ),
        ] {
            if self.document[key] == true {
                found.push(self.line(level, text));
            }
        }
        if self.document["durable"] == false {
            found.push(self.line(Severity::Warning, "it is not durable: a restart of the broker deletes it"));
        }
        self.judge_state(found);
    }

    fn judge_state(&self, found: &mut Vec<CheckLine>) {
        let state = self.document["state"].as_str().unwrap_or("running");
        if ["down", "crashed", "stopped", "minority", "terminated", "timeout"].contains(&state) {
            let text = format!(
                "its state is {state}: it does not work until the broker's nodes are back. `rabbitmqctl \
                 cluster_status` shows which are down"
            );
            found.push(self.line(Severity::Fault, text));
        }
        let count = |key: &str| self.document[key].as_array().map_or(0, Vec::len);
        let (members, online) = (count("members"), count("online"));
        if online > 0 && online < members {
            let text = format!("{online} of its {members} members are online: check the others");
            found.push(self.line(Severity::Warning, text));
        }
    }

    /// Judges what removes messages before a consumer gets them.
    fn judge_losses(&self, found: &mut Vec<CheckLine>, what: &str) {
        if let Some((ms, from)) = self.number("message-ttl") {
            let text = format!(
                "{from} sets a message-ttl of {ms} ms: the broker removes {what} that wait longer, for \
                 instance while tidegate is stopped. Remove it, or exclude this queue from the policy's \
                 pattern"
            );
            found.push(self.line(Severity::Warning, text));
        }
        if let Some((ms, from)) = self.number("expires") {
            let text =
                format!("{from} deletes the queue with all {what} after {ms} ms without use. Remove it");
            found.push(self.line(Severity::Warning, text));
        }
        let overflow = self.word("overflow");
        let refuses = overflow.as_ref().is_some_and(|(word, _)| word.starts_with("reject-publish"));
        for key in ["max-length", "max-length-bytes"] {
            let Some((most, from)) = self.number(key).filter(|_| !refuses) else { continue };
            let text = format!(
                "{from} sets a {key} of {most}, and overflow is drop-head: each message above it drops the \
                 oldest of the {what}. Set overflow to reject-publish, which notifies the publisher"
            );
            found.push(self.line(Severity::Warning, text));
        }
    }

    fn judge_returns(&self, found: &mut Vec<CheckLine>) {
        if self.kind() != "quorum" {
            return;
        }
        let text = match self.number("delivery-limit") {
            None if self.major >= 4 => format!(
                "it has no delivery limit, and RabbitMQ 4 removes a request after {RETURNS_OF_4} returns: \
                 set one of {RETURNS} by a policy (delivery-limit)"
            ),
            Some((limit, from)) if limit < 0 && self.major == 3 => format!(
                "{from} sets a delivery-limit of {limit}, which for RabbitMQ 3 permits no return: it \
                 removes a request at its first return. Set {RETURNS}"
            ),
            Some((limit, from)) if (0..RETURNS).contains(&limit) => format!(
                "{from} sets a delivery-limit of {limit}: the broker removes a request after that many lost \
                 connections. Set {RETURNS} or more"
            ),
            Some(_) | None => return,
        };
        found.push(self.line(Severity::Warning, text));
    }

    fn judge_dead_exchange(&self, found: &mut Vec<CheckLine>, dead: &str) {
        match self.word("dead-letter-exchange") {
            None => found.push(self.line(
                Severity::Warning,
                format!(
                    "it has no dead-letter exchange: requests that the broker removes are lost. Set \
                     dead-letter-exchange to '{dead}' by a policy"
                ),
            )),
            Some((other, from)) if other != dead => {
                let text = format!(
                    "{from} sends requests that the broker removes to the exchange '{other}', not to \
                     '{dead}': `tidegate dead` does not see them. Set dead-letter-exchange to '{dead}'"
                );
                found.push(self.line(Severity::Warning, text));
            }
            Some(_) if self.kind() == "quorum" => {
                let safe = self.word("dead-letter-strategy").is_some_and(|(word, _)| word == "at-least-once");
                let refuses = self.word("overflow").is_some_and(|(word, _)| word == "reject-publish");
                if !(safe && refuses) {
                    found.push(self.line(
                        Severity::Note,
                        "requests that the broker removes may be lost on the way to the dead exchange: they \
                         are safe only with dead-letter-strategy at-least-once and overflow reject-publish",
                    ));
                }
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
#[path = "advice_tests.rs"]
mod tests;
