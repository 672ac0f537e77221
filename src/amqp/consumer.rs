//! The ingest end: takes deliveries, reads them, hands them to the loop in chunks, and acks what the loop
//! says.
//!
//! It publishes nothing: a blocked connection would hold its acks back too. Every error, the end of the
//! consumer's stream and a cancel by the broker lead to a new connection and generation. Acks of the old one
//! are dropped, because tags begin again at 1 and a late `multiple` ack would cover what was never stored.
//!
//! While the intake is paused the consumer stays, and deliveries are held back here: each return to the queue
//! counts towards its delivery limit, and the broker dead-letters a request that is returned too often. The
//! prefetch bounds the deliveries held. Only the broker's consumer timeout makes the daemon return them.

use super::backoff::Backoff;
use super::connection::Session;
use super::consumer_channel::ConsumerChannel;
use super::cost;
use super::fault::{Fault, FaultKind};
use super::gate::WatchedGate;
use super::ingest_lock::{check_consumers, IngestLock, LockTaker};
use super::prefetch::Prefetch;
use super::quarantine::Quarantine;
use super::shared::Shared;
use super::supervise::{
    frame_note, requested, supervise, unless_shutdown, ConnectionUser, Dialer, NoteLog, RateLimitedLog,
};
use super::topology::{count_queue, lead_requests, prepare_ingest};
use super::{BrokerEvent, Event, Forwarding, IngestOrder, LinkStatus, Options, ShutdownSignal, Side, FAR_MS};
use futures_util::future::BoxFuture;
use futures_util::FutureExt;
use lapin::message::Delivery;
use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tidegate_common::clock;
use tidegate_config::Readings;
use tidegate_types::event::Intake;
use tidegate_types::{Delivery as Handle, Request};
use tidegate_wire::{self, Delivered, Forward, Incoming, RequestLimits, SharedRequest};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, MissedTickBehavior};

/// Upper bounds on a chunk for the loop, which a single request may exceed: a turn stays short, and what
/// waits for it small.
const CHUNK_ITEMS: usize = 1_024;
const CHUNK_BYTES: u64 = 4 << 20;
/// Interval between counts of the queue's consumers, where counting is the only guard.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);
/// Pause between the returns of a message that cannot be parsed, until its queue's delivery limit removes it;
/// and the longer pause beyond the limit that tidegate declares (50).
const CULPRIT_PAUSE: Duration = Duration::from_millis(100);
const CULPRIT_PAUSE_LATER: Duration = Duration::from_secs(1);
const CULPRIT_EXPECTED: u32 = 60;

/// How long a consumer has used up its prefetch, without acks, before it gets a successor for what fits; and
/// how long nothing more is delivered before that is shown.
const NO_ACKS: Duration = Duration::from_secs(1);
/// How long requests have to come again before it is shown no more.
const CALM: Duration = Duration::from_secs(10);

/// What the status says in a quarantine that follows parse errors. What waits for long, or is held back, may
/// hold up all behind it.
const ONE_BY_ONE: &str = "requests are taken one at a time, each once the one before it is acked: a message \
     that cannot be parsed (a name or id that is not UTF-8) keeps coming back";
/// In quarantine, the log names each delivery while at most this many are taken at a time.
const NAMED: u16 = 16;

/// The shard gives up its lock with its connection, so that the daemon that has the ingest queue gets it.
fn gate_closed() -> Fault {
    Fault::lost("the sharder of this daemon does not serve the ingest queue any more")
}

/// The ingest end, across connections.
pub(crate) struct Ingest {
    shared: Arc<Shared>,
    options: Arc<Options>,
    orders: UnboundedReceiver<IngestOrder>,
    shutdown: ShutdownSignal,
    limits: RequestLimits,
    readings: Arc<Readings>,
    generation: u32,
    /// The loop's last order; [`Intake::Pause`] at the beginning.
    intake: Intake,
    stopped: bool,
    prefetch: Prefetch,
    quarantine: Quarantine,
    backoff: Backoff,
    notes: NoteLog,
    log: RateLimitedLog,
    lock_taker: LockTaker,
    /// Names that headers of requests came close to, each logged once.
    near_misses: BTreeSet<&'static str>,
    /// Requests were led to the queue by an earlier connection.
    has_led: bool,
    /// Of a shard among several.
    gate: WatchedGate,
}

/// Why consuming ended without a fault.
enum AfterGeneration {
    /// Deliveries held for too long were returned; consuming begins anew with the next resume.
    Returned,
    Shutdown,
}

/// One generation of consuming.
struct Generation {
    consumer: ConsumerChannel,
    /// Delivered, and not handed to the loop while the intake is paused; each with the moment of its receipt,
    /// UTC ms, rounded up, so that no delay that counts from it ends too soon.
    held: VecDeque<(Delivery, u64)>,
    /// Since when there are any.
    held_since: Option<Instant>,
    /// Since when the consumer has used up its prefetch, or there is none because nothing fits.
    waits_since: Option<Instant>,
    standstill: Option<Standstill>,
    address: String,
    notes: Vec<String>,
    /// For counting, where only a count of the consumers guards the queue.
    counting: Option<Arc<Session>>,
}

/// Nothing more is delivered until requests are acked, and this has lasted.
struct Standstill {
    since: Instant,
    /// When it was last so.
    last: Instant,
    note: String,
}

impl Ingest {
    pub(crate) fn new(
        shared: Arc<Shared>,
        options: Arc<Options>,
        orders: UnboundedReceiver<IngestOrder>,
        shutdown: ShutdownSignal,
    ) -> Self {
        Ingest {
            lock_taker: LockTaker::new(Arc::clone(&shared), Arc::clone(&options), shutdown.clone()),
            gate: options.forwarding.as_ref().map(Forwarding::gate_of_shard).unwrap_or_default(),
            quarantine: Quarantine::started(options.quarantine, options.ingest.prefetch),
            prefetch: Prefetch::new(options.ingest.prefetch, options.memory, options.limits.max_body),
            limits: options.limits,
            readings: Arc::clone(&options.readings),
            shared,
            options,
            orders,
            shutdown,
            generation: 0,
            intake: Intake::Pause,
            stopped: false,
            backoff: Backoff::default(),
            notes: NoteLog::default(),
            log: RateLimitedLog::default(),
            near_misses: BTreeSet::new(),
            has_led: false,
        }
    }

    /// Ends with the shutdown only.
    pub(crate) async fn run(mut self) {
        let (shared, shutdown) = (Arc::clone(&self.shared), self.shutdown.clone());
        let Options { amqp, timeouts, .. } = &*self.options;
        let dialer = Dialer::new("tidegate ingest", &amqp.endpoints, amqp, timeouts.connect);
        supervise(&mut self, dialer, &shared, &shutdown).await;
    }

    /// Stays connected without consuming until an order arrives. False: shut down.
    async fn idle(&mut self, session: &Session) -> Result<bool, Fault> {
        loop {
            self.shared.moved(Side::Ingest);
            tokio::select! {
                () = requested(&mut self.shutdown) => return Ok(false),
                order = self.orders.recv() => match order {
                    Some(order) => {
                        self.note(order);
                        return Ok(true);
                    }
                    None => return Ok(false),
                },
                () = self.gate.closed() => return Err(gate_closed()),
                () = tokio::time::sleep(Duration::from_secs(1)) => {
                    if !session.is_connected() {
                        return Err(Fault::lost("the connection was lost"));
                    }
                }
            }
        }
    }

    /// Takes the lock of the queue; `None`: shut down. See [`LockTaker::take`].
    async fn take_lock(
        &mut self,
        session: &Arc<Session>,
        outdone: Option<Fault>,
    ) -> Result<Option<IngestLock>, Fault> {
        tokio::select! {
            biased;
            () = self.gate.closed() => Err(gate_closed()),
            taken = self.lock_taker.take(session, outdone) => taken,
        }
    }

    /// Waits until the sharder serves the ingest queue. False: shut down.
    async fn is_gate_open(&mut self, session: &Session) -> Result<bool, Fault> {
        loop {
            self.shared.moved(Side::Ingest);
            tokio::select! {
                biased;
                () = requested(&mut self.shutdown) => return Ok(false),
                () = self.gate.opened() => return Ok(true),
                () = tokio::time::sleep(Duration::from_secs(1)) => {
                    if !session.is_connected() {
                        return Err(Fault::lost("the connection was lost"));
                    }
                    let reason = "the sharder of this daemon does not serve the ingest queue at present";
                    self.shared.link(Side::Ingest, LinkStatus::Standby { reason: reason.to_owned() });
                }
            }
        }
    }

    /// Notes an order while there is no consumer: acks can only be of an old generation.
    fn note(&mut self, order: IngestOrder) {
        match order {
            IngestOrder::Acks(_) => {}
            IngestOrder::Intake(intake) => self.intake = intake,
            IngestOrder::Configure { limits, readings, memory } => {
                (self.limits, self.readings) = (limits, readings);
                self.prefetch.set_limits(memory, limits.max_body);
            }
            IngestOrder::Stop => self.stopped = true,
        }
    }

    /// One channel and consumer, from its start to its end.
    async fn generation(
        &mut self,
        session: &Arc<Session>,
        notes: &[String],
        lock: IngestLock,
    ) -> Result<AfterGeneration, Fault> {
        let limit = self.options.timeouts.confirm;
        let queue = self.options.ingest.queue.clone();
        let shared = Arc::clone(&self.shared);
        let lock = match lock {
            IngestLock::Held => None,
            IngestLock::Counting(reason) => {
                self.log.warn("ingest lock", &reason, "the ingest queue is guarded weakly");
                Some(Arc::clone(session))
            }
        };
        let width = self.quarantine.restart();
        let prefetch = match self.quarantine.is_on() {
            true => self.prefetch.set(width),
            false => {
                // An unknown count is treated as a large one: the waiting messages may have any size.
                let counts = shared.while_waiting(Side::Ingest, count_queue(session, &queue, limit)).await;
                let ready = counts.map_or(u32::MAX, |counts| counts.ready);
                self.prefetch.restart(ready)
            }
        };
        let channel = shared.while_waiting(Side::Ingest, session.channel(limit)).await?;
        self.generation = self.generation.wrapping_add(1).max(1);
        let starting = ConsumerChannel::start(channel, self.generation, &queue, prefetch, limit);
        let consumer = shared.while_waiting(Side::Ingest, starting).await?;
        if let Some(session) = &lock {
            // Nothing was consumed yet, so the channel has exactly one consumer.
            if let Err(fault) = shared.while_waiting(Side::Ingest, self.check_alone(session, 1)).await {
                shared.while_waiting(Side::Ingest, consumer.close(&self.shutdown)).await?;
                return Err(fault);
            }
        }
        let mut generation = Generation {
            consumer,
            held: VecDeque::new(),
            held_since: None,
            waits_since: None,
            standstill: None,
            address: session.address().to_owned(),
            notes: notes.to_vec(),
            counting: lock,
        };
        self.shared.set_prefetch(prefetch);
        let present = self.shared.begin_generation(self.generation);
        self.shared.post(BrokerEvent::IngestReady { generation: self.generation });
        self.show(&generation);
        tracing::info!(address = generation.address, generation = self.generation, prefetch, "consuming");
        let result = match self.consume(&mut generation).await {
            Ok(next) => Ok(next),
            Err(fault) => Err(generation.consumer.cause(fault).await),
        };
        drop(present);
        self.shared.post(BrokerEvent::IngestLost);
        let Generation { consumer, held, .. } = generation;
        let returned = consumer.unacked();
        if returned > 0 {
            tracing::info!(
                deliveries = returned,
                unread = held.len(),
                generation = self.generation,
                "returned {returned} deliveries to the queue"
            );
        }
        let closing = consumer.close(&self.shutdown);
        let closed = shared.while_waiting(Side::Ingest, closing).await;
        match result {
            Ok(AfterGeneration::Returned) => closed.map(|()| AfterGeneration::Returned),
            other => other,
        }
    }

    async fn consume(&mut self, generation: &mut Generation) -> Result<AfterGeneration, Fault> {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut counting = self.next_count(generation);
        let shared = Arc::clone(&self.shared);
        loop {
            // The previous turn took something, or a second passed without anything to take.
            shared.moved(Side::Ingest);
            tokio::select! {
                biased;
                () = requested(&mut self.shutdown) => {
                    while let Ok(order) = self.orders.try_recv() {
                        self.handle_order(order, generation).await?;
                    }
                    return Ok(AfterGeneration::Shutdown);
                }
                () = self.gate.closed() => return Err(gate_closed()),
                order = self.orders.recv() => {
                    let Some(order) = order else { return Ok(AfterGeneration::Shutdown) };
                    shared.while_waiting(Side::Ingest, self.handle_order(order, generation)).await?;
                }
                chunk = generation.consumer.next() => match chunk {
                    Some(chunk) => shared.while_waiting(Side::Ingest, self.arrived(chunk, generation)).await?,
                    None => {
                        generation.consumer.ended()?;
                        shared.while_waiting(Side::Ingest, self.consume_if_it_fits(generation)).await?;
                    }
                },
                count = &mut counting => {
                    let (queue, heartbeat) = (&self.options.ingest.queue, self.options.amqp.heartbeat);
                    check_consumers(count, generation.consumer.consumers(), queue, heartbeat)?;
                    counting = self.next_count(generation);
                }
                _ = second.tick() => {
                    if !generation.consumer.is_connected() {
                        let lost = Fault::lost("the channel was lost");
                        return Err(Fault { kind: FaultKind::AfterEnd, ..lost });
                    }
                    if generation.held_since.is_some_and(|since| since.elapsed() >= self.options.held_limit) {
                        tracing::warn!(
                            held = generation.held.len(),
                            "the intake has been paused for nearly the broker's consumer timeout: \
                             the deliveries are returned"
                        );
                        return Ok(AfterGeneration::Returned);
                    }
                    self.prefetch.second();
                    shared.while_waiting(Side::Ingest, self.consume_what_fits(generation)).await?;
                    self.watch_standstill(generation);
                }
            }
        }
    }

    /// Checks that the queue has no consumers beyond the `own` ones of this daemon.
    async fn check_alone(&self, session: &Session, own: u32) -> Result<(), Fault> {
        let Options { ingest, amqp, timeouts, .. } = &*self.options;
        let count = count_queue(session, &ingest.queue, timeouts.connect).await;
        check_consumers(count.map(|counts| counts.consumers), own, &ingest.queue, amqp.heartbeat)
    }

    /// The next count of the queue's consumers; never ready if the lock is held.
    fn next_count(&self, generation: &Generation) -> BoxFuture<'static, Result<u32, Fault>> {
        let Some(session) = generation.counting.clone() else {
            return std::future::pending().boxed();
        };
        let (queue, limit) = (self.options.ingest.queue.clone(), self.options.timeouts.connect);
        async move {
            tokio::time::sleep(COUNT_INTERVAL).await;
            count_queue(&session, &queue, limit).await.map(|counts| counts.consumers)
        }
        .boxed()
    }

    async fn handle_order(&mut self, order: IngestOrder, generation: &mut Generation) -> Result<(), Fault> {
        let acks = match order {
            IngestOrder::Acks(acks) => acks,
            IngestOrder::Intake(intake) => {
                self.intake = intake;
                self.show(generation);
                return match intake {
                    Intake::Pause => Ok(()),
                    Intake::Resume => self.forward_held(generation).await,
                };
            }
            order @ (IngestOrder::Configure { .. } | IngestOrder::Stop) => {
                self.note(order);
                if self.stopped {
                    generation.consumer.stop().await?;
                    self.shared.post(BrokerEvent::IngestStopped);
                }
                return Ok(());
            }
        };
        tidegate_common::failpoint!("before-ack");
        let covered = generation.consumer.ack(&acks).await?;
        tidegate_common::failpoint!("after-ack");
        if covered > 0 {
            self.backoff.reset();
            let follows_deaths = self.quarantine.follows_deaths();
            if self.quarantine.acked(covered) {
                tracing::info!("consuming with the ordinary prefetch again");
                self.show(generation);
                if follows_deaths {
                    self.shared.post(BrokerEvent::Quarantine { width: None });
                }
            }
            self.consume_what_fits(generation).await?;
        }
        Ok(())
    }

    /// Takes a chunk. If it contains an error, none of it is handed over: the broker redelivers all of it.
    async fn arrived(
        &mut self,
        chunk: Vec<lapin::Result<Delivery>>,
        generation: &mut Generation,
    ) -> Result<(), Fault> {
        if let Some(Err(error)) = chunk.iter().find(|delivery| delivery.is_err()) {
            return Err(Fault::from(error));
        }
        let received = clock::wall_ms_up();
        for delivery in chunk.into_iter().flatten() {
            let cost = cost::of_unread(delivery.data.len() as u64, &delivery.properties);
            generation.consumer.delivered(delivery.delivery_tag, cost);
            if self.intake == Intake::Pause {
                self.prefetch.seen(cost);
            }
            generation.held.push_back((delivery, received));
        }
        match self.intake {
            Intake::Pause => {
                generation.held_since.get_or_insert_with(Instant::now);
                // They stay in memory until the resume.
                self.adapt_prefetch(generation).await
            }
            Intake::Resume => self.forward_held(generation).await,
        }
    }

    /// Reads what is held and hands it over, in bounded chunks.
    async fn forward_held(&mut self, generation: &mut Generation) -> Result<(), Fault> {
        generation.held_since = None;
        let now = clock::wall_ms_up();
        while !generation.held.is_empty() {
            let (mut requests, mut items, mut bytes) = (Vec::new(), 0, 0);
            let mut forwards = Vec::new();
            while items < CHUNK_ITEMS && bytes < CHUNK_BYTES {
                let Some((delivery, received)) = generation.held.pop_front() else { break };
                tidegate_common::failpoint!("poisoned-request", if delivery.data == b"poison");
                let raw = delivery.data.len() as u64;
                // What goes to other shards keeps them as they are until it is confirmed.
                let decoded = match &self.options.forwarding {
                    Some(_) => cost::of_properties(&delivery.properties),
                    None => 0,
                };
                let request = self.read(delivery, generation.consumer.generation(), received, &mut forwards);
                let forwarded = forwards.last().filter(|(delivery, _)| *delivery == request.delivery);
                let parts = forwarded.map_or(0, |(_, parts)| cost::of_parts(parts).max(decoded));
                let cost = cost::of(&request, raw) + parts;
                self.prefetch.seen(cost);
                generation.consumer.set_cost(request.delivery.tag, cost);
                items += request.item_count();
                bytes += cost;
                requests.push(request);
            }
            let is_last = generation.held.is_empty();
            let may_wait = is_last
                && !generation.consumer.is_exhausted()
                && requests
                    .iter()
                    .all(|request| request.is_far(FAR_MS + now.saturating_sub(request.received)));
            self.shared.post(Event::Requests { requests, may_wait });
            // Their confirms come after the requests.
            for (delivery, parts) in forwards {
                if let Some(Forwarding { sender, sharing, .. }) = &self.options.forwarding {
                    sender.send(delivery, parts, (&self.shared, sharing.own));
                }
            }
            if !is_last {
                tokio::task::yield_now().await;
            }
        }
        self.adapt_prefetch(generation).await
    }

    /// After acks, or after some time: consumes again where that was not possible, or with another prefetch.
    async fn consume_what_fits(&mut self, generation: &mut Generation) -> Result<(), Fault> {
        self.consume_if_it_fits(generation).await?;
        // A quarantine widens with what arrives.
        if self.quarantine.is_on() {
            return Ok(());
        }
        self.adapt_prefetch(generation).await
    }

    /// Replaces the consumer where memory demands a smaller prefetch; also where more fits, but only while no
    /// delivery is on its way, and not during a pause, which returns nothing to the queue.
    async fn adapt_prefetch(&mut self, generation: &mut Generation) -> Result<(), Fault> {
        let consumer = &mut generation.consumer;
        if self.stopped || !consumer.is_running() {
            return Ok(());
        }
        let since = generation.waits_since.unwrap_or_else(Instant::now);
        generation.waits_since = consumer.is_exhausted().then_some(since);
        let may_grow = self.intake == Intake::Resume && consumer.is_exhausted();
        let load = consumer.load();
        let is_replaced = if self.quarantine.is_on() {
            let wider = may_grow.then(|| self.quarantine.widen(self.prefetch.allowed())).flatten();
            if let Some(width) = wider {
                // Reported first: if the process dies over these deliveries, the next process takes fewer.
                self.shared.post(BrokerEvent::Quarantine { width: Some(width) });
                self.prefetch.set(width);
            }
            wider.is_some()
        } else {
            let has_waited = since.elapsed() >= NO_ACKS;
            self.prefetch.shrink(load)
                || (may_grow && (self.prefetch.grow(load) || (has_waited && self.prefetch.renew(load))))
        };
        if is_replaced {
            consumer.cancel().await?;
        }
        Ok(())
    }

    /// Consumes with what fits beside what is unacked, if there is no consumer. In quarantine, what earlier
    /// consumers have left unacked counts too: at most half as much as the width.
    async fn consume_if_it_fits(&mut self, generation: &mut Generation) -> Result<(), Fault> {
        let consumer = &mut generation.consumer;
        if !consumer.is_resting() {
            return Ok(());
        }
        let load = consumer.load();
        let is_quarantine = self.quarantine.is_on();
        let next = match is_quarantine {
            true => Some(self.prefetch.current()).filter(|width| load.count <= usize::from(width / 2)),
            false => self.prefetch.next(load),
        };
        let Some(prefetch) = next else {
            generation.waits_since.get_or_insert_with(Instant::now);
            return Ok(());
        };
        let left = if is_quarantine { 0 } else { u16::try_from(load.count).unwrap_or(u16::MAX) };
        self.shared.set_prefetch(left.saturating_add(prefetch));
        tracing::debug!(from = consumer.prefetch(), to = prefetch, unacked = load.count, "another prefetch");
        generation.waits_since = None;
        consumer.consume(prefetch).await
    }

    /// Shows for how long nothing more is delivered because too much is unacked, and when that is over.
    fn watch_standstill(&mut self, generation: &mut Generation) {
        let (consumer, load) = (&generation.consumer, generation.consumer.load());
        let is_full = consumer.is_resting() || (consumer.is_exhausted() && self.prefetch.room(load) == 0);
        let is_meant = self.stopped || self.intake == Intake::Pause || self.quarantine.is_on();
        let since = generation.waits_since.filter(|since| is_full && !is_meant && since.elapsed() >= NO_ACKS);
        match (&mut generation.standstill, since) {
            (Some(standstill), Some(_)) => standstill.last = Instant::now(),
            (Some(standstill), None) if standstill.last.elapsed() >= CALM => {
                let seconds = (standstill.last - standstill.since).as_secs();
                tracing::info!(seconds, "requests are taken again");
                generation.standstill = None;
                self.show(generation);
            }
            (None, Some(since)) => {
                let reason = match self.prefetch.free(load) {
                    0 => format!(
                        "as many are unacked as ingest.prefetch allows ({})",
                        self.prefetch.configured()
                    ),
                    _ => format!(
                        "those that are unacked need their part of limits.memory, a quarter ({} bytes)",
                        self.prefetch.quarter()
                    ),
                };
                self.log.warn(
                    "standstill",
                    &reason,
                    "no more requests are taken until some of them are acked",
                );
                let note = format!("no more requests are taken until some of them are acked: {reason}");
                generation.standstill = Some(Standstill { since, last: Instant::now(), note });
                self.show(generation);
            }
            (_, None) => {}
        }
    }

    /// Reads a delivery; adds what goes to other shards to `forwards`. `received`: see [`Generation::held`].
    fn read(
        &mut self,
        delivery: Delivery,
        generation: u32,
        received: u64,
        forwards: &mut Vec<(Handle, Vec<Forward>)>,
    ) -> Request {
        self.quarantine.delivered(delivery.redelivered);
        if self.quarantine.is_on() && self.quarantine.width() <= NAMED {
            // If the process dies over it, the log names it.
            let id = delivery.properties.message_id().as_ref().map(|id| id.as_str().to_owned());
            tracing::info!(
                tag = delivery.delivery_tag,
                message_id = id,
                bytes = delivery.data.len(),
                "a delivery is taken in quarantine"
            );
        }
        for meant in tidegate_wire::near_misses(delivery.properties.headers().as_ref()) {
            self.shared.figures().near_miss_header();
            if self.near_misses.insert(meant) {
                tracing::warn!(
                    meant,
                    "a request has a header with nearly this name, which has no effect; \
                     further ones are only counted"
                );
            }
        }
        let frame_max = self.limits.frame_max.min(self.shared.frame_max());
        let limits = RequestLimits { frame_max, ..self.limits };
        let handle = Handle { generation, tag: delivery.delivery_tag };
        let Delivery { exchange, routing_key, properties, data: body, redelivered, .. } = delivery;
        let redelivered = redelivered || tidegate_wire::is_moved(&properties);
        let store_identity = self.options.store_identity;
        let Some(Forwarding { sharing, .. }) = &self.options.forwarding else {
            let (exchange, routing_key) = (exchange.as_str(), routing_key.as_str());
            let incoming = Incoming { exchange, routing_key, properties, body, received };
            let body = tidegate_wire::request(incoming, &limits, &self.readings, store_identity);
            return Request { delivery: handle, redelivered, received, body };
        };
        // Those of a forward are in its table.
        let has_more_keys = properties.headers().as_ref().is_some_and(|all| all.inner().contains_key("CC"));
        let copied = has_more_keys.then(|| routing_key.clone()).filter(|_| sharing.own.is_some());
        let delivered = Delivered { exchange, routing_key, properties, body, redelivered, received };
        let read = tidegate_wire::shared_request(delivered, &limits, &self.readings, store_identity, sharing);
        let SharedRequest { body, redelivered, forwards: parts } = read;
        if let Some(key) = copied.filter(|_| !parts.is_empty()) {
            let detail = format!("queue '{}', routing key '{key}'", self.options.ingest.queue);
            self.log.warn(
                "further routing keys",
                &detail,
                "a request comes to the queues of several shards by its header CC: without message_id it is \
                 one request in each",
            );
        }
        if !parts.is_empty() {
            forwards.push((handle, parts));
        }
        Request { delivery: handle, redelivered, received, body }
    }

    fn show(&self, generation: &Generation) {
        let address = generation.address.clone();
        let link = match self.intake {
            Intake::Pause => LinkStatus::Paused { address },
            Intake::Resume => {
                let standstill = generation.standstill.as_ref().map(|standstill| standstill.note.clone());
                let is_narrow = self.quarantine.is_on() && !self.quarantine.follows_deaths();
                let narrow = is_narrow.then(|| ONE_BY_ONE.to_owned());
                let notes = generation.notes.iter().cloned().chain(narrow).chain(standstill).collect();
                LinkStatus::Up { address, notes, dead: None }
            }
        };
        self.shared.link(Side::Ingest, link);
    }

    /// The pause after a frame that cannot be parsed; replaces the error text if that goes on.
    fn on_parse_error(&mut self, error: &mut String) -> Duration {
        self.shared.figures().parse_error();
        let before = self.quarantine.is_on();
        // All that was unacked may precede the culprit.
        self.quarantine.parse_error(u16::try_from(self.shared.prefetch()).unwrap_or(u16::MAX));
        let queue = &self.options.ingest.queue;
        if self.quarantine.is_on() && !before {
            tracing::warn!(
                queue = %queue,
                "a message that cannot be parsed (a name or id that is not UTF-8) comes back each time; \
                 consuming one at a time until the queue's delivery limit takes it away"
            );
        }
        if self.quarantine.errors() > CULPRIT_EXPECTED {
            *error = format!(
                "the message at the head of queue '{queue}' cannot be parsed (a name or id that is not \
                 UTF-8) and keeps coming back: the queue has no delivery limit, or a high one. Remove the \
                 message, for example with the management page's 'Get messages' and ack mode 'Reject requeue \
                 false', or give the queue a delivery limit by a policy"
            );
            CULPRIT_PAUSE_LATER
        } else if self.quarantine.is_on() {
            CULPRIT_PAUSE
        } else {
            self.backoff.next()
        }
    }
}

impl ConnectionUser for Ingest {
    const SIDE: Side = Side::Ingest;

    async fn work(&mut self, session: &Arc<Session>) -> Result<(), Fault> {
        let options = self.options.clone();
        let (names, own) = match &options.forwarding {
            Some(Forwarding { names, sharing, .. }) => (&**names, sharing.own),
            None => (&options.names, None),
        };
        let setup = prepare_ingest(session, options.amqp.topology, (names, own), options.timeouts.connect);
        let shared = Arc::clone(&self.shared);
        let setup = shared.while_waiting(Side::Ingest, setup);
        let mut notes = match unless_shutdown(&mut self.shutdown, setup).await {
            Some(done) => done?,
            None => return Ok(()),
        };
        notes.extend(frame_note(session, &options.amqp));
        let mut notes = self.notes.take(Side::Ingest, notes);
        if !self.is_gate_open(session).await? {
            return Ok(());
        }
        // Also while paused: the daemon that serves the queue keeps it over a reconnect.
        let mut lock = self.take_lock(session, None).await?;
        if lock.is_none() {
            return Ok(());
        }
        let (mode, limit) = (options.amqp.topology, options.timeouts.connect);
        let leading = lead_requests(session, mode, (names, own), !self.has_led, limit);
        let leading = shared.while_waiting(Side::Ingest, leading);
        let led = match unless_shutdown(&mut self.shutdown, leading).await {
            Some(done) => done?,
            None => return Ok(()),
        };
        notes.extend(self.notes.take(Side::Ingest, led.notes));
        self.has_led = true;
        if let Some(Forwarding { map, .. }) = &options.forwarding {
            map.prepared(led.is_mapped);
        }
        let sharder = options.forwarding.as_ref().filter(|forwarding| forwarding.sharing.own.is_none());
        let mut open = None;
        let mut outdone = None;
        loop {
            while let Ok(order) = self.orders.try_recv() {
                self.note(order);
            }
            // Also while paused: the shards go on with what is in their queues.
            let gate = sharder.and_then(|forwarding| forwarding.gate.as_ref());
            if let (Some(gate), Some(lock), None) = (gate, &lock, &open) {
                open = Some((gate.open(&self.shutdown), *lock == IngestLock::Held));
            }
            if self.intake == Intake::Pause || self.stopped {
                self.shared.link(Side::Ingest, LinkStatus::Paused { address: session.address().to_owned() });
                if !self.idle(session).await? {
                    return Ok(());
                }
                // The count of the consumers is out of date.
                lock = None;
                continue;
            }
            let Some(held) = lock.take() else {
                // A lock that is held stays with the connection; where consumers are counted, another daemon
                // may have come.
                open = open.filter(|(_, is_held)| *is_held);
                lock = self.take_lock(session, outdone.take()).await?;
                if lock.is_none() {
                    return Ok(());
                }
                // Orders may have arrived during the wait.
                continue;
            };
            outdone = match self.generation(session, &notes, held).await {
                Ok(AfterGeneration::Shutdown) => return Ok(()),
                Ok(AfterGeneration::Returned) => None,
                Err(fault) if fault.kind == FaultKind::Standby => Some(fault),
                Err(fault) => return Err(fault),
            };
        }
    }

    /// Orders stay queued: acks are void by then, and the others are read before the next consumer begins.
    async fn while_disconnected<T: Send>(&mut self, wait: impl Future<Output = T> + Send) -> Option<T> {
        let mut shutdown = self.shutdown.clone();
        unless_shutdown(&mut shutdown, wait).await
    }

    fn on_failure(&mut self, fault: Fault) -> (String, Duration) {
        let mut error = fault.text;
        let pause = match fault.kind {
            FaultKind::Parse => self.on_parse_error(&mut error),
            FaultKind::Lost
            | FaultKind::Setup
            | FaultKind::Standby
            | FaultKind::Content
            | FaultKind::ContentFatal
            | FaultKind::AfterEnd => self.backoff.next(),
        };
        (error, pause)
    }

    fn backoff(&mut self) -> &mut Backoff {
        &mut self.backoff
    }
}
