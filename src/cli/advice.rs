//! What arguments and policies of a queue mean for tidegate, judged by the document of RabbitMQ's management
//! API; pure.
//!
//! Where an argument and a policy set the same number, the broker takes the lower one; of words it takes the
//! argument's.

use super::check::{finding, CheckLine, Level};
use super::output::plain;
use serde_json::Value;
use std::fmt::Display;

/// What the queue declared at a start has; fewer returns are soon used up by a daemon that is restarted.
const RETURNS: i64 = 50;
/// RabbitMQ 4 drops after so many where the queue has no limit of its own.
const RETURNS_OF_4: i64 = 20;
/// Longer than deliveries are held while the intake is paused, ms.
const LEAST_CONSUMER_TIMEOUT_MS: i64 = 30 * 60 * 1_000;

/// A queue as the management API tells of it.
pub(super) struct Managed<'d> {
    subject: &'static str,
    name: &'d str,
    document: &'d Value,
    /// First number of the broker's version; 0 if it does not tell.
    major: u64,
}

/// First number of a version, 0 if there is none.
pub(super) fn major(version: &str) -> u64 {
    version.split('.').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

impl<'d> Managed<'d> {
    pub(super) fn new(subject: &'static str, name: &'d str, document: &'d Value, major: u64) -> Self {
        Managed { subject, name, document, major }
    }

    /// The queue of requests. `dead`: the exchange that dead letters go to.
    pub(super) fn judge_ingest(&self, dead: &str) -> Vec<CheckLine> {
        let mut found = vec![self.summary()];
        self.judge_kind(&mut found);
        self.judge_losses(&mut found, "requests");
        self.judge_returns(&mut found);
        self.judge_dead_exchange(&mut found, dead);
        if let Some((ms, from)) = self.number("consumer-timeout") {
            if ms < LEAST_CONSUMER_TIMEOUT_MS {
                let text = format!(
                    "{from} sets a consumer timeout of {ms} ms: while the intake is paused, deliveries are \
                     held for up to 25 minutes, and the broker would close the channel over them. Raise it \
                     to {LEAST_CONSUMER_TIMEOUT_MS} or take it away"
                );
                found.push(self.line(Level::Warn, text));
            }
        }
        found
    }

    /// The queue of dead letters.
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
                "a dead letter is gone after {limit} returns, and each look of `tidegate dead` is one: \
                 declare it with an x-delivery-limit of 1000000000"
            );
            found.push(self.line(Level::Warn, text));
        }
        found
    }

    /// The queue that keeps a second daemon away, which is there while one runs.
    pub(super) fn judge_lock(&self) -> Vec<CheckLine> {
        let text = self.number("expires").map(|(ms, from)| {
            format!(
                "{from} deletes it after {ms} ms in which nobody uses it, as nobody ever does: a second \
                 tidegate could then take requests beside this one. Let the policy's pattern leave it out"
            )
        });
        text.into_iter().map(|text| self.line(Level::Warn, text)).collect()
    }

    fn line(&self, level: Level, text: impl Display) -> CheckLine {
        finding(level, self.subject, format!("queue '{}': {text}", self.name))
    }

    fn kind(&self) -> &str {
        // Absent in what a queue without a leader tells of itself.
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
        self.line(Level::Ok, text)
    }

    /// The names of the policies that apply; `None` without any.
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

    /// The number that holds, and what sets it.
    fn number(&self, key: &str) -> Option<(i64, String)> {
        let numbers = self.both(key).into_iter().filter_map(|(v, from)| Some((v.as_i64()?, from)));
        numbers.min_by_key(|(n, _)| *n)
    }

    /// The word that holds, and what sets it.
    fn word(&self, key: &str) -> Option<(&str, String)> {
        self.both(key).into_iter().find_map(|(v, from)| Some((v.as_str()?, from)))
    }

    fn judge_kind(&self, found: &mut Vec<CheckLine>) {
        match self.kind() {
            "quorum" => {}
            "classic" => found.push(self.line(
                Level::Warn,
                "it is a classic queue: its requests lie on one node alone, and a request that ends the \
                 daemon each time is never taken off. Move to a quorum queue: name a new one in ingest.queue",
            )),
            "stream" => found.push(self.line(
                Level::Fail,
                "it is a stream: what is acked stays, and would come again after each restart. Name a quorum \
                 queue in ingest.queue",
            )),
            other => found.push(self.line(
                Level::Warn,
                format!("its type is {}, which this version does not know", plain(other)),
            )),
        }
        for (key, level, text) in [
            ("exclusive", Level::Fail, "it is exclusive: only the connection that made it may use it"),
            ("auto_delete", Level::Warn, "it is deleted, with all requests, once nobody consumes it"),
        ] {
            if self.document[key] == true {
                found.push(self.line(level, text));
            }
        }
        if self.document["durable"] == false {
            found.push(self.line(Level::Warn, "it is not durable: a restart of the broker takes it away"));
        }
        self.judge_state(found);
    }

    fn judge_state(&self, found: &mut Vec<CheckLine>) {
        let state = self.document["state"].as_str().unwrap_or("running");
        if ["down", "crashed", "stopped", "minority", "terminated", "timeout"].contains(&state) {
            let text = format!(
                "its state is {state}: nothing moves until the broker's nodes are back. `rabbitmqctl \
                 cluster_status` shows which are away"
            );
            found.push(self.line(Level::Fail, text));
        }
        let count = |key: &str| self.document[key].as_array().map_or(0, Vec::len);
        let (members, online) = (count("members"), count("online"));
        if online > 0 && online < members {
            let text = format!("{online} of its {members} members are online: see to the others");
            found.push(self.line(Level::Warn, text));
        }
    }

    /// What takes messages away that nobody has consumed.
    fn judge_losses(&self, found: &mut Vec<CheckLine>, what: &str) {
        if let Some((ms, from)) = self.number("message-ttl") {
            let text = format!(
                "{from} sets a message-ttl of {ms} ms: {what} that wait longer, as while tidegate is \
                 stopped, are taken off by the broker. Take it away, or let the policy's pattern leave this \
                 queue out"
            );
            found.push(self.line(Level::Warn, text));
        }
        if let Some((ms, from)) = self.number("expires") {
            let text = format!(
                "{from} deletes the queue with all {what} after {ms} ms in which nobody uses it. Take it away"
            );
            found.push(self.line(Level::Warn, text));
        }
        let overflow = self.word("overflow");
        let refuses = overflow.as_ref().is_some_and(|(word, _)| word.starts_with("reject-publish"));
        for key in ["max-length", "max-length-bytes"] {
            let Some((most, from)) = self.number(key).filter(|_| !refuses) else { continue };
            let text = format!(
                "{from} sets a {key} of {most}, and overflow is drop-head: each message beyond it pushes the \
                 oldest of the {what} out. Set overflow to reject-publish, so that who publishes is told"
            );
            found.push(self.line(Level::Warn, text));
        }
    }

    fn judge_returns(&self, found: &mut Vec<CheckLine>) {
        if self.kind() != "quorum" {
            return;
        }
        let text = match self.number("delivery-limit") {
            None if self.major >= 4 => format!(
                "it has no delivery limit, and RabbitMQ 4 takes a request off after {RETURNS_OF_4} returns: \
                 give it one of {RETURNS} by a policy (delivery-limit)"
            ),
            Some((limit, from)) if limit < 0 && self.major == 3 => format!(
                "{from} sets a delivery-limit of {limit}, which RabbitMQ 3 takes for none at all: a request \
                 is gone with its first return. Set {RETURNS}"
            ),
            Some((limit, from)) if (0..RETURNS).contains(&limit) => format!(
                "{from} sets a delivery-limit of {limit}: the broker takes a request off after so many lost \
                 connections. Set {RETURNS} or more"
            ),
            Some(_) | None => return,
        };
        found.push(self.line(Level::Warn, text));
    }

    fn judge_dead_exchange(&self, found: &mut Vec<CheckLine>, dead: &str) {
        match self.word("dead-letter-exchange") {
            None => found.push(self.line(
                Level::Warn,
                format!(
                    "it has no dead-letter exchange: what the broker takes off by itself is lost. Set \
                     dead-letter-exchange to '{dead}' by a policy"
                ),
            )),
            Some((other, from)) if other != dead => {
                let text = format!(
                    "{from} sends what the broker takes off to the exchange '{other}', not to '{dead}': \
                     `tidegate dead` does not see it. Set dead-letter-exchange to '{dead}'"
                );
                found.push(self.line(Level::Warn, text));
            }
            Some(_) if self.kind() == "quorum" => {
                let safe = self.word("dead-letter-strategy").is_some_and(|(word, _)| word == "at-least-once");
                let refuses = self.word("overflow").is_some_and(|(word, _)| word == "reject-publish");
                if !(safe && refuses) {
                    found.push(self.line(
                        Level::Note,
                        "what the broker takes off may be lost on its way to the dead exchange: it is safe \
                         with dead-letter-strategy at-least-once and overflow reject-publish, both",
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
