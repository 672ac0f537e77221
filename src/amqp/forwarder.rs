//! Forwards requests to the queues of their homes: one for the whole daemon, used by all its consumers.
//!
//! Each request handed over is reported once all its parts are confirmed, and only then acked. A part that
//! the broker did not take is sent again, as long as its consumer's connection lasts; afterwards the broker
//! delivers the request again, and its consumer hands it over anew. What may have arrived is marked in the
//! next copy, so that its home knows the same request again. The parts of one shard leave in the order in
//! which they were handed over.
//!
//! Bounds: the prefetches of the consumers bound what is handed over, [`MOST_OPEN`] and [`MOST_BYTES`] what is
//! unconfirmed, and the confirm time-out every wait for the broker.

use super::backoff::Backoff;
use super::connection::Session;
use super::fault::Fault;
use super::message::{confirm_channel, PublishMessage, TurnOutput};
use super::publish_channel::PublishChannel;
use super::shared::Shared;
use super::supervise::{
    frame_note, requested, supervise, unless_shutdown, ConnectionUser, Dialer, NoteLog, RateLimitedLog,
};
use super::topology::prepare_ingest;
use super::{BrokerEvent, LinkStatus, Options, ShutdownSignal, Side};
use futures_util::StreamExt;
use lapin::types::ShortString;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tidegate_types::{Delivery, Outcome};
use tidegate_wire::{forward_id_of, Forward, ForwardKey};
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, MissedTickBehavior};

/// Most unconfirmed parts, and most bytes of their bodies; a single larger one is sent alone.
const MOST_OPEN: usize = 1_024;
const MOST_BYTES: usize = 16 << 20;
/// Accuracy of the confirm time-out.
const CHECK: Duration = Duration::from_millis(250);
/// How long a queue is left alone that did not take a part.
const REST: Duration = Duration::from_millis(250);

/// One request for other shards.
struct ForwardJob {
    delivery: Delivery,
    parts: Vec<Forward>,
    /// The consumer that it came to.
    from: Arc<Shared>,
}

/// Hands requests to the forwarder, from any thread; never blocks.
#[derive(Clone)]
pub struct ForwardSender(UnboundedSender<ForwardJob>);

/// The other end of a [`ForwardSender`].
pub struct ForwardQueue(UnboundedReceiver<ForwardJob>);

/// The way to a forwarder that may start later.
pub fn forward_queue() -> (ForwardSender, ForwardQueue) {
    let (sender, jobs) = unbounded_channel();
    (ForwardSender(sender), ForwardQueue(jobs))
}

impl ForwardSender {
    pub(crate) fn send(&self, delivery: Delivery, parts: Vec<Forward>, from: &Arc<Shared>) {
        // Without a forwarder the daemon is ending, and the request stays unacked.
        let _ = self.0.send(ForwardJob { delivery, parts, from: Arc::clone(from) });
    }
}

impl std::fmt::Debug for ForwardSender {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("ForwardSender(..)")
    }
}

/// A request of which parts are not confirmed.
struct OpenRequest {
    delivery: Delivery,
    from: Arc<Shared>,
    parts_left: usize,
}

impl OpenRequest {
    /// Whether its consumer's connection lasts; else the request is delivered again.
    fn is_wanted(&self) -> bool {
        self.from.generation() == self.delivery.generation
    }
}

struct Part {
    /// Number of its request.
    request: u64,
    forward: Forward,
}

/// The queue of one shard.
struct HomeQueue {
    name: ShortString,
    /// To be published, by number.
    waiting: BTreeMap<u64, Part>,
    /// Not before this moment.
    rests_until: Option<Instant>,
}

/// What has been handed over, across connections.
pub(crate) struct Forwarder {
    shared: Arc<Shared>,
    options: Arc<Options>,
    key: ForwardKey,
    jobs: UnboundedReceiver<ForwardJob>,
    shutdown: ShutdownSignal,
    requests: BTreeMap<u64, OpenRequest>,
    /// By shard.
    queues: Vec<HomeQueue>,
    /// Published and not answered, by number.
    open: BTreeMap<u64, Part>,
    /// Bytes of their bodies.
    open_bytes: usize,
    /// Numbers of requests and parts.
    next: u64,
    backoff: Backoff,
    notes: NoteLog,
    log: RateLimitedLog,
}

impl Forwarder {
    pub(crate) fn new(
        shared: Arc<Shared>,
        options: Arc<Options>,
        key: ForwardKey,
        ForwardQueue(jobs): ForwardQueue,
        shutdown: ShutdownSignal,
    ) -> Self {
        let queue = |name: &String| HomeQueue {
            // The configuration bounds the names.
            name: ShortString::try_new(name.as_str()).unwrap_or_default(),
            waiting: BTreeMap::new(),
            rests_until: None,
        };
        Forwarder {
            queues: options.shard_queues.iter().map(queue).collect(),
            shared,
            options,
            key,
            jobs,
            shutdown,
            requests: BTreeMap::new(),
            open: BTreeMap::new(),
            open_bytes: 0,
            next: 0,
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

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Queues the parts of a request.
    fn take(&mut self, job: ForwardJob) {
        let ForwardJob { delivery, parts, from } = job;
        if self.requests.first_key_value().is_some_and(|(_, oldest)| !oldest.is_wanted()) {
            self.forget();
        }
        let request = self.number();
        self.requests.insert(request, OpenRequest { delivery, from, parts_left: parts.len() });
        for forward in parts {
            let number = self.number();
            self.put_back(number, Part { request, forward });
        }
    }

    /// Forgets requests that are delivered again, except for the parts that are on their way.
    fn forget(&mut self) {
        let Forwarder { requests, queues, .. } = self;
        requests.retain(|_, request| request.is_wanted());
        for queue in queues {
            queue.waiting.retain(|_, part| requests.contains_key(&part.request));
        }
    }

    fn put_back(&mut self, number: u64, part: Part) {
        // There is a queue for each shard.
        if let Some(queue) = self.queues.get_mut(usize::from(part.forward.shard)) {
            queue.waiting.insert(number, part);
        }
    }

    /// Publishes what may be, queue by queue.
    fn publish(&mut self, channel: &mut PublishChannel, frame_max: u32) {
        let now = Instant::now();
        for place in 0..self.queues.len() {
            while self.open.len() < MOST_OPEN {
                let Some(queue) = self.queues.get_mut(place) else { return };
                if queue.rests_until.is_some_and(|until| until > now) {
                    break;
                }
                let Some(next) = queue.waiting.first_entry() else { break };
                let bytes = next.get().forward.bytes();
                if !self.open.is_empty() && self.open_bytes + bytes > MOST_BYTES {
                    return;
                }
                let (number, part) = next.remove_entry();
                if !self.requests.get(&part.request).is_some_and(OpenRequest::is_wanted) {
                    self.requests.remove(&part.request);
                    continue;
                }
                let message = part.forward.message(&self.key, frame_max);
                channel.publish(PublishMessage::forward(number, queue.name.clone(), message));
                self.open_bytes += bytes;
                self.open.insert(number, part);
            }
        }
    }

    /// Takes the outcomes of published parts, and reports the requests that are safe.
    fn settle(&mut self, output: TurnOutput) {
        let mut safe: Vec<(Arc<Shared>, Vec<Delivery>)> = Vec::new();
        if output.has_confirms() {
            tidegate_common::failpoint!("after-forward");
            self.backoff.reset();
        }
        for settled in output.settled {
            let Some(mut part) = self.open.remove(&settled.number) else { continue };
            self.open_bytes -= part.forward.bytes();
            match settled.outcome {
                Outcome::Confirmed(_) => {
                    if let Some(OpenRequest { delivery, from, .. }) = self.is_complete(part.request) {
                        match safe.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &from)) {
                            Some((_, deliveries)) => deliveries.push(delivery),
                            None => safe.push((from, vec![delivery])),
                        }
                    }
                }
                Outcome::Returned(text) => {
                    self.rest(&part, &format!("it does not exist: {text}"));
                    self.put_back(settled.number, part);
                }
                Outcome::Nacked => {
                    self.rest(
                        &part,
                        "the broker did not take a request (basic.nack): it is full, or has no majority",
                    );
                    part.forward.repeats();
                    self.put_back(settled.number, part);
                }
                Outcome::Unsent
                | Outcome::Unknown
                | Outcome::Overdue
                | Outcome::Refused(_)
                | Outcome::Unavailable(_) => {
                    part.forward.repeats();
                    self.put_back(settled.number, part);
                }
            }
        }
        for (from, deliveries) in safe {
            from.post(BrokerEvent::Forwarded(deliveries));
        }
    }

    /// The request of a confirmed part, if it was the last one.
    fn is_complete(&mut self, request: u64) -> Option<OpenRequest> {
        let open = self.requests.get_mut(&request)?;
        open.parts_left -= 1;
        if open.parts_left > 0 {
            return None;
        }
        self.requests.remove(&request)
    }

    /// Leaves a queue alone for a moment.
    fn rest(&mut self, part: &Part, reason: &str) {
        let Some(queue) = self.queues.get_mut(usize::from(part.forward.shard)) else { return };
        queue.rests_until = Some(Instant::now() + REST);
        let detail = format!("queue '{}': {reason}", queue.name);
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
        let mut closing: Option<Instant> = None;
        let mut reason = "a memory or disk alarm of the broker".to_owned();
        loop {
            self.shared.moved(Side::Egress);
            tokio::select! {
                () = requested(&mut self.shutdown), if closing.is_none() => {
                    let end = self.shutdown.borrow().unwrap_or_else(Instant::now);
                    closing = Some(Instant::now() + end.saturating_duration_since(Instant::now()) / 2);
                }
                () = channel.woken() => {}
                // The status of the connection shows everything else.
                Some(event) = events.next() => {
                    if let lapin::Event::ConnectionBlocked(text) = event {
                        reason = text;
                    }
                }
                _ = check.tick() => {}
                job = self.jobs.recv(), if closing.is_none() => match job {
                    Some(job) => self.take(job),
                    None => return Ok(()),
                },
            }
            while let Ok(job) = self.jobs.try_recv() {
                self.take(job);
            }
            let mut output = TurnOutput::default();
            let collected = channel.collect(&mut output);
            self.settle(output);
            collected?;
            let blocked = session.is_blocked();
            self.shared.link(
                Side::Egress,
                match blocked {
                    true => LinkStatus::Blocked { reason: reason.clone() },
                    false => up.clone(),
                },
            );
            let limit = self.options.timeouts.confirm;
            if !blocked && channel.oldest().is_some_and(|since| since.elapsed() >= limit) {
                return Err(Fault::timeout("the confirm of a forwarded request", limit));
            }
            match closing {
                Some(end) if channel.is_idle() || end <= Instant::now() => return Ok(()),
                Some(_) => {}
                None if blocked => {}
                None => self.publish(channel, session.frame_max()),
            }
        }
    }
}

impl ConnectionUser for Forwarder {
    const SIDE: Side = Side::Egress;

    async fn work(&mut self, session: &Arc<Session>) -> Result<(), Fault> {
        let options = self.options.clone();
        let limit = options.timeouts.connect;
        let preparing = async {
            let notes = prepare_ingest(session, options.amqp.topology, &options.names(), limit).await?;
            Ok::<_, Fault>((notes, confirm_channel(session, limit).await?))
        };
        let shared = Arc::clone(&self.shared);
        let preparing = shared.while_waiting(Side::Egress, preparing);
        let (mut notes, channel) = match self.while_disconnected(preparing).await {
            Some(done) => done?,
            None => return Ok(()),
        };
        notes.extend(frame_note(session, &options.amqp));
        let address = session.address().to_owned();
        let up = LinkStatus::Up { address, notes: self.notes.take(Side::Egress, notes), dead: None };
        self.shared.link(Side::Egress, up.clone());
        let mut channel = PublishChannel::new(channel, forward_id_of);
        let result = self.forward(session, &mut channel, &up).await;
        self.end(channel);
        result
    }

    /// Takes what is handed over during the wait, so that what is delivered again meanwhile is forgotten.
    async fn while_disconnected<T: Send>(&mut self, wait: impl Future<Output = T> + Send) -> Option<T> {
        let mut wait = std::pin::pin!(wait);
        let mut shutdown = self.shutdown.clone();
        loop {
            let jobs = &mut self.jobs;
            let arrived = unless_shutdown(&mut shutdown, async {
                tokio::select! {
                    done = &mut wait => Ok(done),
                    Some(job) = jobs.recv() => Err(job),
                }
            });
            match arrived.await? {
                Ok(done) => return Some(done),
                Err(job) => self.take(job),
            }
        }
    }

    fn on_failure(&mut self, fault: Fault) -> (String, Duration) {
        let text = match fault.code {
            Some(403) => format!(
                "{}; requests are forwarded through the default exchange: the login needs the write permission \
                 on amq.default",
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
