//! The ingest end: takes deliveries, reads them, hands them to the loop in chunks, and acks what the loop says.
//!
//! Publishes nothing: a blocked connection would hold its acks back too. Every error, the end of the consumer's
//! stream and a cancel by the broker all lead to a new connection and generation; acks of the old one are dropped,
//! because tags begin again at 1 and a late `multiple` ack would cover what was never stored.

use super::backoff::Backoff;
use super::connection::{address, Session};
use super::fault::{Fault, Kind};
use super::feed::Feed;
use super::prefetch::{Prefetch, Quarantine};
use super::shared::Shared;
use super::supervise::{requested, time_left, unless_shutdown, Notices};
use super::topology::prepare_ingest;
use super::wire::{self, Incoming, RequestLimits};
use super::{Event, IngestOrder, Link, Options, ShutdownSignal, Side};
use crate::clock;
use crate::engine::event::Intake;
use crate::engine::types::{Delivery as Handle, Request};
use lapin::message::Delivery;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, MissedTickBehavior};

/// A connection that lasted so long has proved itself.
const PROVEN: Duration = Duration::from_secs(30);
/// Between the returns of a message that cannot be parsed, until its queue's delivery limit takes it away. Beyond the
/// limit that tidegate declares (50), slower.
const CULPRIT_PAUSE: Duration = Duration::from_millis(100);
const CULPRIT_PAUSE_LATER: Duration = Duration::from_secs(1);
const CULPRIT_EXPECTED: u32 = 60;

/// Supervisor of the ingest end.
pub(super) struct Ingest {
    shared: Arc<Shared>,
    options: Arc<Options>,
    orders: UnboundedReceiver<IngestOrder>,
    shutdown: ShutdownSignal,
    limits: RequestLimits,
    generation: u32,
    paused: bool,
    stopped: bool,
    prefetch: Prefetch,
    quarantine: Quarantine,
    backoff: Backoff,
    connects: usize,
    notices: Notices,
}

/// Why consuming ended without a fault.
enum Next {
    Pause,
    Shutdown,
}

impl Ingest {
    pub(super) fn new(
        shared: Arc<Shared>,
        options: Arc<Options>,
        orders: UnboundedReceiver<IngestOrder>,
        shutdown: ShutdownSignal,
    ) -> Self {
        let prefetch = Prefetch::new(options.ingest.prefetch, options.memory);
        Ingest {
            quarantine: Quarantine::started(options.quarantine, prefetch.current()),
            limits: options.limits,
            shared,
            options,
            orders,
            shutdown,
            generation: 0,
            paused: false,
            stopped: false,
            prefetch,
            backoff: Backoff::default(),
            connects: 0,
            notices: Notices::new(Side::Ingest),
        }
    }

    /// Ends with the shutdown only.
    pub(super) async fn run(mut self) {
        loop {
            let started = Instant::now();
            let Err(fault) = self.life().await else { break };
            if started.elapsed() >= PROVEN {
                self.backoff.reset();
            }
            let pause = self.mourn(fault);
            let mut shutdown = self.shutdown.clone();
            if unless_shutdown(&mut shutdown, tokio::time::sleep(pause)).await.is_none() {
                break;
            }
        }
        self.shared.link(Side::Ingest, Link::Closed);
    }

    /// One connection, from its opening to its end. `Ok`: shut down.
    async fn life(&mut self) -> Result<(), Fault> {
        let options = self.options.clone();
        let endpoints = &options.amqp.endpoints;
        let Some(endpoint) = endpoints.get(self.connects % endpoints.len().max(1)) else {
            return Err(Fault::setup("no address is configured"));
        };
        self.connects += 1;
        self.shared.link(Side::Ingest, Link::Connecting { address: address(endpoint) });
        let ca_file = options.amqp.ca_file.as_deref();
        let opening = Session::open(endpoint, ca_file, options.timeouts.connect, "tidegate ingest");
        let session = match unless_shutdown(&mut self.shutdown, opening).await {
            Some(Ok(session)) => session,
            Some(Err(error)) => return Err(Fault::setup(error.to_string())),
            None => return Ok(()),
        };
        let result = self.work(&session).await;
        session.close(time_left(&self.shutdown)).await;
        result
    }

    async fn work(&mut self, session: &Session) -> Result<(), Fault> {
        let options = self.options.clone();
        let names = options.names();
        let setup = prepare_ingest(session, options.amqp.topology, &names, options.timeouts.connect);
        let notes = match unless_shutdown(&mut self.shutdown, setup).await {
            Some(done) => self.notices.take(done?),
            None => return Ok(()),
        };
        while let Ok(order) = self.orders.try_recv() {
            self.note(order);
        }
        loop {
            if self.paused || self.stopped {
                self.shared.link(Side::Ingest, Link::Paused { address: session.address().to_owned() });
                if !self.idle(session).await? {
                    return Ok(());
                }
            } else if let Next::Shutdown = self.generation(session, &notes).await? {
                return Ok(());
            }
        }
    }

    /// Connected without consuming, until an order comes. False: shut down.
    async fn idle(&mut self, session: &Session) -> Result<bool, Fault> {
        loop {
            tokio::select! {
                () = requested(&mut self.shutdown) => return Ok(false),
                order = self.orders.recv() => match order {
                    Some(order) => {
                        self.note(order);
                        return Ok(true);
                    }
                    None => return Ok(false),
                },
                () = tokio::time::sleep(Duration::from_secs(1)) => {
                    if !session.connection().status().connected() {
                        return Err(Fault::lost("the connection was lost"));
                    }
                }
            }
        }
    }

    /// An order while there is no consumer: acks can only be of an old generation.
    fn note(&mut self, order: IngestOrder) {
        match order {
            IngestOrder::Acks(_) => {}
            IngestOrder::Intake(intake) => self.paused = intake == Intake::Pause,
            IngestOrder::Limits(limits, memory) => {
                self.limits = limits;
                self.prefetch.set_memory(memory);
            }
            IngestOrder::Stop => self.stopped = true,
        }
    }

    /// One channel and consumer, from its start to its end.
    async fn generation(&mut self, session: &Session, notes: &[String]) -> Result<Next, Fault> {
        let limit = self.options.timeouts.confirm;
        let prefetch = if self.quarantine.is_on() { 1 } else { self.prefetch.current() };
        let channel = session.channel(limit).await?;
        self.generation = self.generation.wrapping_add(1).max(1);
        let queue = &self.options.ingest.queue;
        let mut feed = Feed::start(channel, self.generation, queue, prefetch, limit).await?;
        self.shared.set_prefetch(prefetch);
        self.shared.post(Event::IngestReady { generation: self.generation });
        self.shared
            .link(Side::Ingest, Link::Up { address: session.address().to_owned(), notes: notes.to_vec() });
        tracing::info!(address = session.address(), generation = self.generation, prefetch, "consuming");
        let result = match self.consume(&mut feed).await {
            Ok(next) => Ok(next),
            Err(fault) => Err(feed.cause(fault).await),
        };
        self.shared.post(Event::IngestLost);
        let closed = feed.close(time_left(&self.shutdown)).await;
        match result {
            Ok(Next::Pause) => closed.map(|()| Next::Pause),
            other => other,
        }
    }

    async fn consume(&mut self, feed: &mut Feed) -> Result<Next, Fault> {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = requested(&mut self.shutdown) => {
                    while let Ok(order) = self.orders.try_recv() {
                        self.obey(order, feed).await?;
                    }
                    return Ok(Next::Shutdown);
                }
                order = self.orders.recv() => {
                    let Some(order) = order else { return Ok(Next::Shutdown) };
                    self.obey(order, feed).await?;
                    if self.paused && !self.stopped {
                        return Ok(Next::Pause);
                    }
                }
                chunk = feed.next() => match chunk {
                    Some(chunk) => self.take(chunk, feed).await?,
                    None => feed.ended().await?,
                },
                _ = second.tick() => {
                    if !feed.is_connected() {
                        return Err(Fault { kind: Kind::AfterEnd, ..Fault::lost("the channel was lost") });
                    }
                }
            }
        }
    }

    async fn obey(&mut self, order: IngestOrder, feed: &mut Feed) -> Result<(), Fault> {
        let IngestOrder::Acks(acks) = order else {
            self.note(order);
            return if self.stopped { feed.stop().await } else { Ok(()) };
        };
        let covered = feed.ack(&acks).await?;
        failpoint!("after-ack");
        if covered > 0 {
            self.backoff.reset();
            if self.quarantine.acked(covered) {
                tracing::info!("consuming with the ordinary prefetch again");
                self.turn(self.prefetch.current(), feed).await?;
            }
            feed.rested().await?;
        }
        Ok(())
    }

    async fn turn(&self, prefetch: u16, feed: &mut Feed) -> Result<(), Fault> {
        tracing::debug!(from = feed.prefetch(), to = prefetch, "another prefetch");
        self.shared.set_prefetch(prefetch);
        feed.turn(prefetch).await
    }

    /// Reads a chunk and hands it over. With an error in it nothing is handed over: all of it comes again.
    async fn take(&mut self, chunk: Vec<lapin::Result<Delivery>>, feed: &mut Feed) -> Result<(), Fault> {
        if let Some(Err(error)) = chunk.iter().find(|delivery| delivery.is_err()) {
            return Err(Fault::from(error));
        }
        let received = clock::wall_ms();
        let mut requests = Vec::with_capacity(chunk.len());
        for delivery in chunk.into_iter().flatten() {
            feed.delivered(delivery.delivery_tag);
            self.prefetch.seen(delivery.data.len() as u64);
            requests.push(self.read(delivery, feed.generation(), received));
        }
        self.shared.post(Event::Requests(requests));
        if feed.is_running() && !self.quarantine.is_on() {
            if let Some(prefetch) = self.prefetch.change() {
                self.turn(prefetch, feed).await?;
            }
        }
        Ok(())
    }

    fn read(&mut self, delivery: Delivery, generation: u32, received: u64) -> Request {
        if self.quarantine.is_on() {
            self.quarantine.delivered(delivery.redelivered);
            // Should the process not survive this one, the log names it.
            let id = delivery.properties.message_id().as_ref().map(|id| id.as_str().to_owned());
            tracing::info!(
                tag = delivery.delivery_tag,
                message_id = id,
                bytes = delivery.data.len(),
                "one at a time"
            );
        }
        let incoming = Incoming {
            exchange: delivery.exchange.as_str(),
            routing_key: delivery.routing_key.as_str(),
            properties: delivery.properties,
            body: delivery.data,
            received,
        };
        Request {
            delivery: Handle { generation, tag: delivery.delivery_tag },
            redelivered: delivery.redelivered,
            received,
            body: wire::request(incoming, &self.limits, self.options.store_identity),
        }
    }

    /// Counts, reports, and gives the pause before the next attempt.
    fn mourn(&mut self, fault: Fault) -> Duration {
        self.shared.failed(Side::Ingest);
        let mut error = fault.text;
        let pause = if fault.kind == Kind::Parse {
            self.shared.parse_error();
            let before = self.quarantine.is_on();
            self.quarantine.parse_error(self.prefetch.current());
            let queue = &self.options.ingest.queue;
            if self.quarantine.is_on() && !before {
                tracing::warn!(
                    queue = %queue,
                    "a message that cannot be parsed (a name or id that is not UTF-8) comes back each time; \
                     consuming one at a time until the queue's delivery limit takes it away"
                );
            }
            if self.quarantine.errors() > CULPRIT_EXPECTED {
                error = format!(
                    "the message at the head of queue '{queue}' cannot be parsed (a name or id that is not UTF-8) and \
                     keeps coming back: the queue has no delivery limit, or a high one. Remove the message, for example \
                     with the management page's 'Get messages' and ack mode 'Reject requeue false', or give the \
                     queue a delivery limit by a policy"
                );
                CULPRIT_PAUSE_LATER
            } else if self.quarantine.is_on() {
                CULPRIT_PAUSE
            } else {
                self.backoff.next()
            }
        } else {
            self.backoff.next()
        };
        self.notices.failure(&error, pause);
        self.shared.link(Side::Ingest, Link::Down { error, retry_in: pause });
        pause
    }
}
