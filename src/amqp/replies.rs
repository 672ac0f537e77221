//! Answers to commands, on a separate connection that is opened at the first answer, so that no answer can
//! disturb a batch.
//!
//! The client chooses the reply queue, and RabbitMQ (3.10 for one) closes the whole connection with 541 over
//! a direct reply-to name that it cannot resolve: one made up, or one from another cluster by federation. So
//! answers share no connection with batches, and a fault here affects only answers.
//!
//! An answer is worth less than a batch: its content is durable already, and a client that misses it can ask
//! again. So each answer is published once, and given up after a time limit or at the first failure; its
//! command is acked either way. The cost is bounded: few unconfirmed answers at a time, a bounded queue, and
//! no body in memory once it is written.
//!
//! Every answer handed over is reported exactly once as [`BrokerEvent::Answered`]. One that is returned,
//! because its reply queue is gone or on another broker, is counted and logged.

use super::confirms::Confirms;
use super::connection::Session;
use super::fault::{EndReason, Fault, FaultKind};
use super::message::confirm_channel;
use super::shared::Shared;
use super::supervise::{requested, time_left, Dialer};
use super::{BrokerEvent, Options, ShutdownSignal};
use futures_util::future::BoxFuture;
use futures_util::FutureExt;
use lapin::options::BasicPublishOptions;
use lapin::{Channel, Confirmation};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tidegate_common::clock;
use tidegate_common::log_limit::LogLimit;
use tidegate_types::{Delivery, ReplyTo};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;

/// Unconfirmed answers at most.
const MAX_OPEN: usize = 64;
/// Upper bound on answers that wait to be published: beyond it the oldest are given up, since their clients
/// stop waiting first.
const MAX_WAITING: usize = 10_000;
/// Pause between a fault and the next attempt; also how long the reason of a loss may take to arrive, and the
/// accuracy of the time limit.
const PAUSE: Duration = Duration::from_millis(250);
/// Prefix of the names that stand for a consumer instead of a queue.
const DIRECT_REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// The answer to one command, encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingReply {
    /// The command's message; comes back in [`BrokerEvent::Answered`].
    pub delivery: Delivery,
    /// Reply queue and correlation id.
    pub reply_to: ReplyTo,
    /// A JSON document.
    pub body: Vec<u8>,
}

/// Answers, and when they were handed over.
pub(crate) type Handed = (Instant, Vec<OutgoingReply>);

/// All unfinished answers of this process, across connections.
pub(crate) struct Replies {
    shared: Arc<Shared>,
    options: Arc<Options>,
    orders: UnboundedReceiver<Handed>,
    shutdown: ShutdownSignal,
    /// Not published so far, in order of hand-over.
    waiting: VecDeque<(Instant, OutgoingReply)>,
    /// Kept while it works, whatever becomes of its channel.
    session: Option<Arc<Session>>,
    dialer: Dialer,
    channel: ReplyChannel,
    /// Result of [`ReplyChannel::Opening`].
    opened: Option<Result<OpenedChannel, Fault>>,
    /// By slot of `confirms`.
    open: Vec<Option<OpenReply>>,
    confirms: Confirms,
    /// To be reported.
    answered: Vec<Delivery>,
    log: ReplyFailureLog,
}

type OpenedChannel = (Arc<Session>, Channel);

/// State of the channel.
enum ReplyChannel {
    /// No channel, and none is opened before this moment.
    Closed(Option<Instant>),
    Opening(BoxFuture<'static, Result<OpenedChannel, Fault>>),
    /// A channel, and the moment when it was first seen closed.
    Open(Arc<Channel>, Option<Instant>),
}

/// An unconfirmed answer.
struct OpenReply {
    /// When it was handed over.
    since: Instant,
    published: Instant,
    /// `None`: reported already, because its time is over; its confirm may still come.
    delivery: Option<Delivery>,
}

impl Replies {
    pub(crate) fn new(
        shared: Arc<Shared>,
        options: Arc<Options>,
        orders: UnboundedReceiver<Handed>,
        shutdown: ShutdownSignal,
    ) -> Self {
        let Options { amqp, timeouts, .. } = &*options;
        // The addresses of the ingest end: a reply queue is on the broker that its command came from.
        let dialer = Dialer::new("tidegate answers", &amqp.endpoints, amqp, timeouts.connect);
        Replies {
            shared,
            options,
            orders,
            shutdown,
            waiting: VecDeque::new(),
            session: None,
            dialer,
            channel: ReplyChannel::Closed(None),
            opened: None,
            open: Vec::new(),
            confirms: Confirms::default(),
            answered: Vec::new(),
            log: ReplyFailureLog::default(),
        }
    }

    /// Ends with the shutdown only. Answers handed over before still go out during the first half of its
    /// time.
    pub(crate) async fn run(mut self) {
        let mut shutdown = self.shutdown.clone();
        let mut closing: Option<Instant> = None;
        while closing.is_none_or(|end| !self.is_idle() && end > Instant::now()) {
            let busy = !self.rests();
            tokio::select! {
                () = requested(&mut shutdown), if closing.is_none() => {
                    let end = shutdown.borrow().unwrap_or_else(Instant::now);
                    closing = Some(Instant::now() + end.saturating_duration_since(Instant::now()) / 2);
                }
                () = self.woken() => {}
                () = tokio::time::sleep(PAUSE), if busy => {}
            }
            self.turn();
        }
        self.end().await;
    }

    /// No command waits for an answer.
    fn is_idle(&self) -> bool {
        let unconfirmed = self.open.iter().flatten().any(|open| open.delivery.is_some());
        self.orders.is_empty() && self.waiting.is_empty() && !unconfirmed
    }

    /// No time limit is running.
    fn rests(&self) -> bool {
        self.waiting.is_empty() && self.open.iter().all(Option::is_none)
    }

    /// Waits for an event other than the end of a time limit. Safe to cancel.
    async fn woken(&mut self) {
        let Replies { orders, waiting, channel, opened, confirms, .. } = self;
        tokio::select! {
            Some((since, replies)) = orders.recv() => {
                waiting.extend(replies.into_iter().map(|reply| (since, reply)));
            }
            () = confirms.woken() => {}
            done = async {
                match channel {
                    ReplyChannel::Opening(opening) => opening.await,
                    ReplyChannel::Closed(_) | ReplyChannel::Open(..) => std::future::pending().await,
                }
            } => *opened = Some(done),
        }
    }

    /// Does what can be done now.
    fn turn(&mut self) {
        let now = Instant::now();
        // Wakes are taken in any case: one that is left would wake the task indefinitely.
        self.take_answers();
        match self.opened.take() {
            Some(Ok((session, channel))) => {
                self.session = Some(session);
                self.channel = ReplyChannel::Open(Arc::new(channel), None);
            }
            Some(Err(fault)) => {
                self.log.warn("no connection or channel for them can be opened", &fault.text, 0);
                self.session = None;
                self.channel = ReplyChannel::Closed(Some(now + PAUSE));
            }
            None => {}
        }
        if !self.rests() {
            self.check(now);
            self.advance(now);
        }
        self.report_answered();
    }

    /// Shuts down: gives up all that was not sent.
    async fn end(mut self) {
        while let Ok((since, replies)) = self.orders.try_recv() {
            self.waiting.extend(replies.into_iter().map(|reply| (since, reply)));
        }
        self.take_answers();
        let channel = match &self.channel {
            ReplyChannel::Open(channel, _) => Some(channel.clone()),
            ReplyChannel::Closed(_) | ReplyChannel::Opening(_) => None,
        };
        let mut left = self.abandon(None);
        left.extend(self.waiting.drain(..).map(|(_, reply)| reply.delivery));
        self.fail(left, "shutting down", "");
        self.report_answered();
        let blocked = self.blocked();
        let Some(session) = self.session.take() else { return };
        if let Some(channel) = channel.filter(|channel| !blocked && channel.status().connected()) {
            // The connection's end closes it at the latest.
            let _ = tokio::time::timeout(time_left(&self.shutdown), channel.close(200, "OK".into())).await;
        }
        session.close(time_left(&self.shutdown)).await;
    }

    /// Takes the broker's answers. If the channel has ended, they contain the reason.
    fn take_answers(&mut self) {
        let Replies { confirms, open, answered, .. } = self;
        let (mut nacked, mut failed, mut unroutable) = (Vec::new(), Vec::new(), Vec::new());
        let mut reason = EndReason::default();
        confirms.drain(|slot, result| {
            let Some(entry) = open.get_mut(slot).and_then(Option::take) else { return };
            match result {
                Ok(Confirmation::Ack(back)) => {
                    // It may belong to another answer: lapin does not report which message was returned.
                    if let Some(back) = back {
                        unroutable.push(back.routing_key.to_string());
                    }
                    answered.extend(entry.delivery);
                }
                Ok(Confirmation::Nack(_) | Confirmation::NotRequested) => nacked.extend(entry.delivery),
                Err(error) => {
                    failed.extend(entry.delivery);
                    reason.hear(Fault::from(error));
                }
            }
        });
        if let Some(queue) = unroutable.first() {
            self.shared.figures().answers_unroutable(unroutable.len() as u64);
            self.log.warn("their reply queue does not exist", queue, unroutable.len() as u64);
        }
        self.fail(nacked, "the broker did not take them", "basic.nack");
        let Err(fault) = reason.result() else { return };
        // With `AfterEnd` the reason itself may still arrive for the others.
        if fault.kind != FaultKind::AfterEnd {
            failed.extend(self.abandon(Some(Instant::now() + PAUSE)));
        }
        let reason = if fault.code == Some(403) {
            "the publishing login needs the write permission on the default exchange, amq.default"
        } else {
            "their channel was closed"
        };
        self.fail(failed, reason, &fault.text);
    }

    /// Gives up what has waited too long, and a channel that is lost or no longer answers.
    fn check(&mut self, now: Instant) {
        let blocked = self.blocked();
        let limit = self.options.answer_limit;
        let late = |since: Instant| now.saturating_duration_since(since) >= limit;
        let excess = self.waiting.len().saturating_sub(MAX_WAITING);
        self.give_up(excess, "more than 10,000 were waiting", "");
        let overdue = self.waiting.iter().take_while(|(since, _)| late(*since)).count();
        let why = match &self.channel {
            _ if blocked => "the broker takes nothing at present",
            ReplyChannel::Closed(_) | ReplyChannel::Opening(_) => "there is no connection",
            ReplyChannel::Open(..) => "others are not confirmed",
        };
        self.give_up(overdue, "they could not be sent within 5 s", why);
        let unconfirmed = self.open.iter_mut().flatten().filter(|entry| late(entry.since));
        let unconfirmed = unconfirmed.filter_map(|entry| entry.delivery.take()).collect();
        self.fail(unconfirmed, "they were not confirmed within 5 s", "");
        let silent = !blocked && self.open.iter().flatten().any(|entry| late(entry.published));
        if let ReplyChannel::Open(channel, lost) = &mut self.channel {
            let pause = if self.open.iter().any(Option::is_some) { PAUSE } else { Duration::ZERO };
            let gone = !channel.status().connected() && lost.get_or_insert(now).elapsed() >= pause;
            if gone || silent {
                let left = self.abandon(Some(now));
                // A session that does not answer is not used again.
                self.session = self.session.take().filter(|_| !silent);
                self.fail(left, "their channel was lost", "");
            }
        }
    }

    /// Publishes as many answers as may be unconfirmed, on a channel that is opened if necessary.
    fn advance(&mut self, now: Instant) {
        while !self.waiting.is_empty() && !self.blocked() {
            let channel = match &self.channel {
                ReplyChannel::Closed(Some(again)) if *again > now => return,
                ReplyChannel::Closed(_) => {
                    self.channel = ReplyChannel::Opening(self.opening());
                    return;
                }
                ReplyChannel::Opening(_) => return,
                ReplyChannel::Open(channel, _) if !channel.status().connected() => return,
                ReplyChannel::Open(channel, _) => channel.clone(),
            };
            let Some(slot) = self.free_slot() else { return };
            let Some((since, reply)) = self.waiting.pop_front() else { return };
            self.open[slot] = Some(OpenReply { since, published: now, delivery: Some(reply.delivery) });
            self.confirms.start(slot, Box::pin(publish(channel, reply)));
        }
    }

    /// Opens a channel on the present connection, else on a new one to the next address.
    fn opening(&mut self) -> BoxFuture<'static, Result<OpenedChannel, Fault>> {
        let session = self.session.take().filter(|session| session.is_connected());
        let limit = self.options.timeouts.connect;
        let dialed = match session {
            Some(_) => None,
            None => Some(self.dialer.next().map(|endpoint| self.dialer.open(&endpoint))),
        };
        async move {
            let session = match (session, dialed) {
                (Some(session), _) => session,
                (None, Some(dialing)) => Arc::new(dialing?.await?),
                (None, None) => return Err(Fault::setup("no connection")),
            };
            let channel = confirm_channel(&session, limit).await?;
            Ok((session, channel))
        }
        .boxed()
    }

    fn blocked(&self) -> bool {
        let status = self.session.as_ref().map(|session| session.connection().status());
        // A lost connection does not count as blocked: another may be opened.
        status.is_some_and(|status| status.connected() && status.blocked())
    }

    fn free_slot(&mut self) -> Option<usize> {
        if let Some(slot) = self.open.iter().position(Option::is_none) {
            return Some(slot);
        }
        if self.open.len() == MAX_OPEN {
            return None;
        }
        self.open.push(None);
        Some(self.open.len() - 1)
    }

    /// Abandons the channel; returns the deliveries whose answers were unconfirmed on it.
    fn abandon(&mut self, again: Option<Instant>) -> Vec<Delivery> {
        self.confirms = Confirms::default();
        self.channel = ReplyChannel::Closed(again);
        self.open.drain(..).flatten().filter_map(|entry| entry.delivery).collect()
    }

    /// Gives up the `count` oldest of the waiting answers.
    fn give_up(&mut self, count: usize, reason: &'static str, text: &str) {
        let oldest = self.waiting.drain(..count).map(|(_, reply)| reply.delivery).collect();
        self.fail(oldest, reason, text);
    }

    fn fail(&mut self, deliveries: Vec<Delivery>, reason: &'static str, text: &str) {
        if !deliveries.is_empty() {
            self.log.warn(reason, text, deliveries.len() as u64);
            self.answered.extend(deliveries);
        }
    }

    fn report_answered(&mut self) {
        if !self.answered.is_empty() {
            self.shared.post(BrokerEvent::Answered(std::mem::take(&mut self.answered)));
        }
    }
}

/// Publishes and waits for the confirm; body and channel are dropped once the message is written.
async fn publish(channel: Arc<Channel>, reply: OutgoingReply) -> lapin::Result<Confirmation> {
    let confirm = {
        let (key, properties) = tidegate_wire::answer(&reply.reply_to, clock::wall_ms());
        let (channel, body) = (channel, reply.body);
        // RabbitMQ 3.x returns a mandatory message to a direct reply-to even though it has been delivered.
        let mandatory = !reply.reply_to.queue.starts_with(DIRECT_REPLY_TO);
        let options = BasicPublishOptions { mandatory, immediate: false };
        channel.basic_publish("".into(), key, options, &body, properties).await?
    };
    confirm.await
}

/// Logs why answers were given up, each reason at most once a minute, since clients can cause it.
#[derive(Debug, Default)]
struct ReplyFailureLog(BTreeMap<&'static str, LogLimit<1>>);

impl ReplyFailureLog {
    fn warn(&mut self, reason: &'static str, detail: &str, answers: u64) {
        let limit = self.0.entry(reason).or_default();
        match limit.admit(answers, Instant::now().into_std()) {
            Some(left_out) => {
                let answers = answers + left_out;
                tracing::warn!(answers, reason, detail, "answers to commands could not be sent");
            }
            None => tracing::debug!(answers, reason, detail, "answers to commands could not be sent"),
        }
    }
}
