//! Forwards requests to the queue of one shard, for all consumers of the daemon.
//!
//! Each shard has a forwarder with a connection of its own: RabbitMQ reads nothing more from a channel whose
//! queue does not answer, and other queues must not wait for that one.
//!
//! A request is reported once all its parts, which may go to several shards, are confirmed, and only then
//! acked. A part that the broker did not take is sent again, as long as its consumer's connection lasts;
//! afterwards the broker delivers the request again, and its consumer hands it over anew. What may have
//! arrived is marked in the next copy, so that its home knows the same request again. The parts leave in the
//! order in which they were handed over. At first, and after a failure, they leave one at a time until one
//! is confirmed: so a queue that does not answer gets no pile of copies, and one that is full gets none out
//! of order.
//!
//! Bounds: the prefetches of the consumers bound what is handed over, [`MOST_OPEN`] and [`MOST_BYTES`] what
//! is unconfirmed, and the confirm time-out every wait for the broker.

use super::backoff::Backoff;
use super::connection::Session;
use super::fault::Fault;
use super::mapper::Mapper;
use super::message::{confirm_channel, PublishMessage, TurnOutput};
use super::publish_channel::PublishChannel;
use super::shared::Shared;
use super::supervise::{
    ended_or_ordered, frame_note, requested, supervise, ConnectionUser, Dialer, NoteLog, RateLimitedLog,
};
use super::{BrokerEvent, LinkStatus, Options, ShutdownSignal, Side};
use futures_util::StreamExt;
use lapin::types::ShortString;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel};
use std::sync::Arc;
use std::time::Duration;
use tidegate_types::{Delivery, Outcome};
use tidegate_wire::{forward_id_of, Forward, ForwardKey};
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, MissedTickBehavior};

/// Most unconfirmed parts, and most bytes of their bodies; a single larger one is sent alone.
const MOST_OPEN: usize = 512;
const MOST_BYTES: usize = 16 << 20;
/// Accuracy of the confirm time-out.
const CHECK: Duration = Duration::from_millis(250);
/// How long a queue is left alone that did not take a part.
const REST: Duration = Duration::from_millis(250);

/// A request of which parts are not confirmed.
struct OpenRequest {
    delivery: Delivery,
    /// The consumer that it came to.
    from: Arc<Shared>,
    /// The shard of that consumer; `None`: it is the sharder's.
    came_to: Option<u16>,
    parts_left: AtomicUsize,
}

impl OpenRequest {
    /// Whether its consumer's connection lasts; else the request is delivered again.
    fn is_wanted(&self) -> bool {
        self.from.generation() == self.delivery.generation
    }

    /// A part is confirmed. Whether it was the last one.
    fn confirmed(&self) -> bool {
        self.parts_left.fetch_sub(1, AcqRel) == 1
    }
}

/// The part of a request for one shard.
struct ForwardPart {
    request: Arc<OpenRequest>,
    forward: Forward,
}

/// Hands requests to the forwarders, from any thread; never blocks.
#[derive(Clone)]
pub struct ForwardSender(Arc<[UnboundedSender<ForwardPart>]>);

/// The other ends of a [`ForwardSender`], by shard.
pub struct ForwardQueues(Vec<UnboundedReceiver<ForwardPart>>);

/// The way to the forwarders of so many shards, which may start later.
pub fn forward_queues(shards: u16) -> (ForwardSender, ForwardQueues) {
    let (senders, queues): (Vec<_>, Vec<_>) = (0..shards).map(|_| unbounded_channel()).unzip();
    (ForwardSender(senders.into()), ForwardQueues(queues))
}

impl ForwardQueues {
    pub(crate) fn by_shard(self) -> impl Iterator<Item = (u16, PartQueue)> {
        (0..).zip(self.0.into_iter().map(PartQueue))
    }
}

/// Where one forwarder takes parts from.
pub(crate) struct PartQueue(UnboundedReceiver<ForwardPart>);

impl ForwardSender {
    /// Hands over a request of the consumer `from`, which is that of the shard `came_to`, or the sharder's.
    pub(crate) fn send(
        &self,
        delivery: Delivery,
        parts: Vec<Forward>,
        (from, came_to): (&Arc<Shared>, Option<u16>),
    ) {
        let parts_left = AtomicUsize::new(parts.len());
        let request = Arc::new(OpenRequest { delivery, from: Arc::clone(from), came_to, parts_left });
        for forward in parts {
            let queue = self.0.get(usize::from(forward.shard));
            let part = ForwardPart { request: Arc::clone(&request), forward };
            // Without a forwarder the daemon is ending, and the request stays unacked.
            let _ = queue.map(|queue| queue.send(part));
        }
    }
}

impl std::fmt::Debug for ForwardSender {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("ForwardSender(..)")
    }
}

/// Of one shard: what has been handed over for it, across connections.
pub(crate) struct Forwarder {
    shared: Arc<Shared>,
    options: Arc<Options>,
    key: ForwardKey,
    mapper: Mapper,
    queue: ShortString,
    parts: UnboundedReceiver<ForwardPart>,
    shutdown: ShutdownSignal,
    /// To be published, by number.
    waiting: BTreeMap<u64, ForwardPart>,
    /// Published and not answered, by number.
    open: BTreeMap<u64, ForwardPart>,
    /// Bytes of their bodies.
    open_bytes: usize,
    /// Number of the last part.
    last: u64,
    /// Number of waiting parts from which they are looked through for those that are delivered again.
    look_at: usize,
    /// Nothing is published before this moment.
    rests_until: Option<Instant>,
    /// Nothing was confirmed since the connection was opened, or since a part has failed.
    careful: bool,
    backoff: Backoff,
    notes: NoteLog,
    log: RateLimitedLog,
}

impl Forwarder {
    /// `queue`: name of the shard's queue.
    pub(crate) fn new(
        shared: Arc<Shared>,
        options: Arc<Options>,
        (key, mapper): (ForwardKey, Mapper),
        (queue, PartQueue(parts)): (&str, PartQueue),
        shutdown: ShutdownSignal,
    ) -> Self {
        Forwarder {
            // The configuration bounds the name.
            queue: ShortString::try_new(queue).unwrap_or_default(),
            shared,
            options,
            key,
            mapper,
            parts,
            shutdown,
            waiting: BTreeMap::new(),
            open: BTreeMap::new(),
            open_bytes: 0,
            last: 0,
            look_at: MOST_OPEN,
            rests_until: None,
            careful: false,
            backoff: Backoff::default(),
            notes: NoteLog::default(),
            log: RateLimitedLog::default(),
        }
    }

    /// Ends with the shutdown only.
    pub(crate) async fn run(mut self) {
        let (shared, shutdown) = (Arc::clone(&self.shared), self.shutdown.clone());
        let Options { amqp, timeouts, .. } = &*self.options;
        let dialer = Dialer::new("tidegate forwards", &amqp.endpoints, amqp, timeouts.connect);
        supervise(&mut self, dialer, &shared, &shutdown).await;
    }

    fn take(&mut self, part: ForwardPart) {
        if self.waiting.len() >= self.look_at {
            self.waiting.retain(|_, part| part.request.is_wanted());
            self.look_at = MOST_OPEN.max(self.waiting.len() * 2);
        }
        self.mapper.meet(&part.forward, part.request.came_to, Instant::now());
        self.last += 1;
        self.waiting.insert(self.last, part);
    }

    /// Publishes what may be.
    fn publish(&mut self, channel: &mut PublishChannel, frame_max: u32) {
        if self.rests_until.is_some_and(|until| until > Instant::now()) {
            return;
        }
        let most = if self.careful { 1 } else { MOST_OPEN };
        while self.open.len() < most {
            let Some(next) = self.waiting.first_entry() else { return };
            let bytes = next.get().forward.size();
            if !self.open.is_empty() && self.open_bytes + bytes > MOST_BYTES {
                return;
            }
            let (number, part) = next.remove_entry();
            if !part.request.is_wanted() {
                continue;
            }
            let message = part.forward.message(&self.key, number, frame_max);
            channel.publish(PublishMessage::forward(number, self.queue.clone(), message));
            self.open_bytes += bytes;
            self.open.insert(number, part);
        }
    }

    /// Takes the outcomes of published parts, and reports the requests that are safe.
    fn settle(&mut self, output: TurnOutput) {
        let mut safe: Vec<(Arc<Shared>, Vec<Delivery>)> = Vec::new();
        if output.has_confirms() {
            tidegate_common::failpoint!("after-forward");
            self.backoff.reset();
            self.careful = false;
        }
        for settled in output.settled {
            let Some(mut part) = self.open.remove(&settled.number) else { continue };
            self.open_bytes -= part.forward.size();
            match settled.outcome {
                Outcome::Confirmed(_) => {
                    if part.request.confirmed() {
                        let OpenRequest { delivery, from, came_to, .. } = &*part.request;
                        self.mapper.map().forwarded(came_to.is_none());
                        match safe.iter_mut().find(|(known, _)| Arc::ptr_eq(known, from)) {
                            Some((_, deliveries)) => deliveries.push(*delivery),
                            None => safe.push((Arc::clone(from), vec![*delivery])),
                        }
                    }
                    continue;
                }
                // It has not arrived: the next copy is the first one.
                Outcome::Returned(text) => self.rest(&format!("it does not exist: {text}")),
                Outcome::Nacked => {
                    self.rest(
                        "the broker did not take a request (basic.nack): it is full, or has no majority",
                    );
                }
                Outcome::Unsent
                | Outcome::Unknown
                | Outcome::Overdue
                | Outcome::Failed(_)
                | Outcome::Refused(_)
                | Outcome::Unavailable(_) => part.forward.repeats(),
            }
            self.careful = true;
            self.waiting.insert(settled.number, part);
        }
        for (from, deliveries) in safe {
            from.post(BrokerEvent::Forwarded(deliveries));
        }
    }

    /// Leaves the queue alone for a moment.
    fn rest(&mut self, reason: &str) {
        self.rests_until = Some(Instant::now() + REST);
        let detail = format!("queue '{}': {reason}", self.queue);
        self.log.warn("forward", &detail, "requests wait to be forwarded to their shard");
    }

    /// Ends a channel: what was not answered may have arrived.
    fn end(&mut self, channel: PublishChannel) {
        let mut output = TurnOutput::default();
        // The session closes the channel with itself.
        drop(channel.end(&Outcome::Unknown, &mut output));
        self.settle(output);
    }

    async fn forward(
        &mut self,
        session: &Session,
        channel: &mut PublishChannel,
        up: &LinkStatus,
    ) -> Result<(), Fault> {
        let mut events = Box::pin(session.connection().events_listener());
        let mut check = tokio::time::interval(CHECK);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut closing, mut was_blocked): (Option<Instant>, bool) = (None, false);
        // What was written while the broker read nothing has its time from then on.
        let mut unblocked_at = Instant::now();
        let mut reason = "a memory or disk alarm of the broker".to_owned();
        loop {
            self.shared.moved(Side::Egress);
            let mut bindings = false;
            tokio::select! {
                () = requested(&mut self.shutdown), if closing.is_none() => {
                    let end = self.shutdown.borrow().unwrap_or_else(Instant::now);
                    closing = Some(Instant::now() + end.saturating_duration_since(Instant::now()) / 2);
                }
                () = channel.woken() => {}
                () = self.mapper.answered() => bindings = true,
                // The status of the connection shows everything else.
                Some(event) = events.next() => {
                    if let lapin::Event::ConnectionBlocked(text) = event {
                        reason = text;
                    }
                }
                _ = check.tick() => bindings = true,
                part = self.parts.recv(), if closing.is_none() => match part {
                    Some(part) => self.take(part),
                    None => return Ok(()),
                },
            }
            while let Ok(part) = self.parts.try_recv() {
                self.take(part);
            }
            let mut output = TurnOutput::default();
            let collected = channel.collect(&mut output);
            self.settle(output);
            collected?;
            session.ensure_channels()?;
            let blocked = session.is_blocked();
            if blocked != std::mem::replace(&mut was_blocked, blocked) {
                unblocked_at = Instant::now();
                let link = if blocked { LinkStatus::Blocked { reason: reason.clone() } } else { up.clone() };
                self.shared.link(Side::Egress, link);
            }
            let limit = self.options.timeouts.confirm;
            let waits = |since: Instant| since.max(unblocked_at).elapsed() >= limit;
            if !blocked && channel.oldest().is_some_and(waits) {
                return Err(Fault::timeout("the confirm of a forwarded request", limit));
            }
            match closing {
                Some(end) if channel.is_idle() || end <= Instant::now() => return Ok(()),
                Some(_) => {}
                None if blocked => {}
                None => {
                    self.publish(channel, session.frame_max());
                    // What waits here must not be overtaken, unless there is always something.
                    if bindings && (self.waiting.is_empty() || !self.careful) {
                        self.mapper.order(Instant::now());
                    }
                }
            }
        }
    }
}

impl ConnectionUser for Forwarder {
    const SIDE: Side = Side::Egress;

    async fn work(&mut self, session: &Arc<Session>) -> Result<(), Fault> {
        let options = self.options.clone();
        // The queue is its shard's, which declares it. Until it exists, parts are returned, and wait.
        let opening = confirm_channel(session, options.timeouts.connect);
        let shared = Arc::clone(&self.shared);
        let opening = shared.while_waiting(Side::Egress, opening);
        let channel = match self.while_disconnected(opening).await {
            Some(opened) => opened?,
            None => return Ok(()),
        };
        let notes = frame_note(session, &options.amqp).into_iter().collect();
        let address = session.address().to_owned();
        let up = LinkStatus::Up { address, notes: self.notes.take(Side::Egress, notes), dead: None };
        self.shared.link(Side::Egress, up.clone());
        // The queue may not exist yet.
        self.careful = true;
        let mut channel = PublishChannel::new(channel, forward_id_of);
        let bindings = self.mapper.connected(session, options.timeouts.confirm);
        let result = tokio::select! {
            biased;
            result = self.forward(session, &mut channel, &up) => result,
            never = bindings => match never {},
        };
        self.end(channel);
        result
    }

    /// Takes what is handed over during the wait, so that what is delivered again meanwhile is forgotten.
    async fn while_disconnected<T: Send>(&mut self, wait: impl Future<Output = T> + Send) -> Option<T> {
        let mut wait = std::pin::pin!(wait);
        let mut shutdown = self.shutdown.clone();
        loop {
            match ended_or_ordered(wait.as_mut(), &mut self.parts, &mut shutdown).await? {
                Ok(done) => return Some(done),
                Err(part) => self.take(part),
            }
        }
    }

    fn on_failure(&mut self, fault: Fault) -> (String, Duration) {
        let text = match fault.code {
            Some(403) => format!(
                "{}; requests are forwarded through the default exchange: the login needs the write \
                 permission on amq.default",
                fault.text
            ),
            _ => fault.text,
        };
        (text, self.backoff.next())
    }

    fn backoff(&mut self) -> &mut Backoff {
        &mut self.backoff
    }
}

#[cfg(test)]
#[path = "forwarder_tests.rs"]
mod tests;
