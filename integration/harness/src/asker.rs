//! Commands over AMQP: a request of type `tidegate.*`, and its answer from a queue.

use crate::client::{Client, Inbox};
use crate::message::{Push, Received};
use crate::site::Site;
use crate::util::LEAST_WAIT;
use lapin::types::FieldTable;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// After this time a question is asked again, more than twice the time for which the daemon keeps an answer.
const ASK_AGAIN: Duration = Duration::from_secs(15);
/// Prefix of the correlation ids of [`Asker::ask`].
const ASKED: &str = "ask-";

/// A client that sends commands and waits for their answers.
pub struct Asker<'s> {
    site: &'s Site<'s>,
    reply_to: String,
    answers: Inbox,
}

impl<'s> Asker<'s> {
    /// A daemon's log says so if a busy broker does not take an answer in time; its client asks again.
    pub const NOT_SENT: &'static str = "answers to commands could not be sent";

    /// With a durable queue for the answers.
    pub fn new(site: &'s Site<'s>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let reply_to = site.queue(&format!("replies-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        site.client.queue(&reply_to, FieldTable::default());
        let answers = site.client.consume(&reply_to);
        Asker { site, reply_to, answers }
    }

    /// With RabbitMQ's direct reply-to: no queue, the answers arrive on the site's publishing channel.
    pub fn direct(site: &'s Site<'s>) -> Self {
        let answers = site.client.consume_direct_replies();
        Asker { site, reply_to: Client::DIRECT_REPLY_TO.to_owned(), answers }
    }

    /// Turns the push into a command that asks for an answer.
    #[must_use]
    pub fn command(&self, push: Push, kind: &str, correlation: &str) -> Push {
        let mut push = push.kind(kind);
        push.properties = push
            .properties
            .with_reply_to(self.reply_to.as_str().into())
            .with_correlation_id(correlation.into());
        push
    }

    /// Sends a command (`kind` without `tidegate.`) and returns its answer. No other answer may be
    /// outstanding. Asks again if none comes: the daemon drops an answer that a busy broker does not take.
    ///
    /// # Panics
    /// If there is no answer within `LEAST_WAIT`.
    pub fn ask(&self, kind: &str, push: Push) -> Value {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let correlation = format!("{ASKED}{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let command = self.command(push, &format!("tidegate.{kind}"), &correlation);
        let end = Instant::now() + LEAST_WAIT;
        while Instant::now() < end {
            self.site.client.publish(&command);
            while let Some(answer) = self.poll(ASK_AGAIN) {
                let about = correlation_of(&answer);
                if about == correlation {
                    return answer.json();
                }
                // A question that was asked twice may have two answers.
                assert!(about.starts_with(ASKED), "{about} instead of {correlation}");
            }
        }
        panic!("no answer to {kind} within {LEAST_WAIT:?}");
    }

    /// The answer to each of these commands, which have been sent, by correlation id. Sends a command again whose
    /// answer is `in_flight`, because the daemon waits five seconds for an outcome, and those without an answer if
    /// the daemon in the site's directory says that it has dropped some. So these are commands that get the same
    /// answer again. A command that is lost is not sent again.
    ///
    /// # Panics
    /// If there is another answer, or not each of them has one within `LEAST_WAIT`.
    pub fn answers_to(&self, commands: &BTreeMap<String, Push>) -> BTreeMap<String, Value> {
        let end = Instant::now() + LEAST_WAIT;
        let mut told = BTreeMap::new();
        while told.len() < commands.len() {
            let of = (told.len(), commands.len());
            assert!(Instant::now() < end, "{} of {} commands have an answer", of.0, of.1);
            let Some(answer) = self.poll(ASK_AGAIN) else {
                let log = fs::read_to_string(self.site.dir.join("log")).unwrap_or_default();
                if log.contains(Self::NOT_SENT) {
                    let open = commands.iter().filter(|(correlation, _)| !told.contains_key(*correlation));
                    self.site.client.publish_all(open.map(|(_, command)| command.clone()));
                }
                continue;
            };
            let (about, answer) = (correlation_of(&answer), answer.json());
            let command = commands.get(&about).unwrap_or_else(|| panic!("to {about:?}: {answer}"));
            if answer["result"] != "in_flight" {
                told.entry(about).or_insert(answer);
            } else if !told.contains_key(&about) {
                self.site.client.publish(command);
            }
        }
        told
    }

    /// The next answer; panics when none comes within `LEAST_WAIT`.
    pub fn next(&self) -> Received {
        self.answers.next()
    }

    /// The next answer; `None` if none comes within `limit`.
    pub fn poll(&self, limit: Duration) -> Option<Received> {
        self.answers.poll(limit)
    }

    /// Panics if any answer comes within `time`.
    pub fn quiet(&self, time: Duration) {
        self.answers.quiet(time);
    }
}

/// Property `correlation_id`, empty when absent.
pub fn correlation_of(answer: &Received) -> String {
    answer.properties.correlation_id().as_ref().map(ToString::to_string).unwrap_or_default()
}
