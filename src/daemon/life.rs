//! A life: from the opening of the store to its closing, with the one loop that owns the engine.
//!
//! The steps of one turn:
//! 1. Sleep until an event arrives or an item is due.
//! 2. Handle control events first: settled publishes, answers of the store, links, orders, queries. They
//!    free slots and memory.
//! 3. Handle the requests of the ingest connection, in bounded chunks.
//! 4. After each input, carry out the engine's effects in their order.
//! 5. About once a second, do the housekeeping.
//!
//! Events for which a turn has no time are first in the next one.

use super::answers::ShardAnswer;
use super::exports::Exports;
use super::guard::GRACE;
use super::housekeeping::Housekeeping;
use super::lasting::Lasting;
use super::mailbox::{answer, ControlEvent, LoopEvent, Mailbox, Patience, ShardOrder};
use super::reports::{Ending, FoundItems, ShardReport};
use super::shard::Shard;
use super::standby::StandbyWaits;
use super::starts::Starts;
use super::status::{self, note_link};
use super::{recovery, OnAmqp, RunError};
use crate::admin::{CommandRequest, Latch};
use crate::telemetry::SpanExporter;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_amqp::{Amqp, BrokerEvent, LinkStatus, OnSpan, Side};
use tidegate_common::clock;
use tidegate_common::lease::Lease;
use tidegate_common::progress::DaemonPart;
use tidegate_config::{Config, StoreKind};
use tidegate_engine::{Engine, Seeds};
use tidegate_store::{thread::StoreEvent, Loss, OpenError, StoreFailure};
use tidegate_types::event::{Input, Intake};
use tidegate_types::{Asker, Command, Request, Settled};
use tokio::sync::oneshot;

/// Longest sleep, so that a step of the wall clock or a suspend is noticed in time.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Part of the shutdown budget reserved for closing.
const CLOSING: Duration = Duration::from_secs(5);

/// Time limit for closing when another life follows.
const LOST_CLOSING: Duration = Duration::from_millis(200);

/// Least time for each step of closing, even if earlier steps have used up the budget.
const LEAST: Duration = Duration::from_millis(1_500);

/// The answer to open commands when the store is lost.
const LOST: &str = "the store was lost before the command was known to be complete; ask again";

/// A turn leaves the remaining events to the next one after this time, microseconds.
const TURN_US: u64 = 10_000;

/// An open store and its engine. Nothing happens before [`OpenLife::begin`].
pub(super) struct OpenLife {
    pub(super) found: FoundItems,
    engine: Engine,
    store: tidegate_store::thread::StoreHandle,
    lease: Option<Arc<Lease>>,
    store_identity: u64,
    exporter: Option<tidegate_store::export::Exporter>,
    /// Number of this node's claim of the store.
    epoch: Option<u64>,
    mailbox: Arc<Mailbox>,
    /// Events that came before the order to serve.
    events: VecDeque<LoopEvent>,
}

/// A running life.
pub(super) struct Life<'s> {
    lasting: &'s mut Lasting,
    shard: Shard,
    starts: &'s mut Starts,
    exports: Exports,
    mailbox: Arc<Mailbox>,
    events: VecDeque<LoopEvent>,
    housekeeping: Housekeeping,
    /// Monotonic end of the drain, once a stop was requested, or the store is to be left to another node.
    stop_at_ms: Option<u64>,
    /// It is to be left to another node.
    is_release: bool,
    failure: Option<StoreFailure>,
}

/// The events of one turn that the engine takes many at a time, in the order of the inputs.
#[derive(Default)]
struct Turn {
    settled: Vec<Settled>,
    commands: Vec<(Asker, Command)>,
    requests: Vec<Request>,
}

impl Life<'_> {
    /// Opens the store, and creates an engine for what it holds.
    pub(super) fn open(
        lasting: &mut Lasting,
        opener: &mut tidegate_store::Opener,
        waits: &StandbyWaits,
    ) -> Result<OpenLife, RunError> {
        let random = || getrandom::u64().map_err(|error| OpenError::Random(error.to_string()));
        let seeds = Seeds { jitter: random()?, names: random()? };
        let opened =
            recovery::opening(lasting, waits, recovery::CHECK_EVERY, || opener.open(clock::wall_ms()))?;
        let mailbox = lasting.next_mailbox();
        let config = &lasting.config;
        let on_store = Arc::clone(&mailbox);
        let (exporter, lease) = (opened.store.exporter(), opened.store.lease());
        let handle = tidegate_store::thread::spawn(
            opened.store,
            lasting.number,
            tidegate_store::thread::ThreadLimits::of(config.limits.memory),
            Arc::clone(&lasting.tally.commits),
            Arc::new(move |event| on_store.post(ControlEvent::Store(event))),
        )?;
        let mut engine = Engine::new(config.engine_settings(), &opened.opened, seeds, clock::now());
        engine.count_from(lasting.tally.totals.clone());
        lasting.tally.begins(opened.takeover);
        // A standby daemon has other readiness conditions.
        lasting.health.readiness.reset(false);
        lasting.health.readiness.set(Latch::Store, true);
        Ok(OpenLife {
            found: FoundItems::of(&opened.opened),
            engine,
            store: handle,
            lease,
            store_identity: opened.identity,
            exporter,
            epoch: opened.epoch,
            mailbox,
            events: VecDeque::new(),
        })
    }
}

impl OpenLife {
    /// Waits for the order to serve, which the node gives once the admin port answers. False: the store is
    /// not to be served.
    pub(super) fn may_serve(&mut self) -> bool {
        loop {
            let order = self.events.iter().position(|event| {
                matches!(
                    event,
                    LoopEvent::Control(ControlEvent::Order(ShardOrder::Serve | ShardOrder::Withdraw))
                )
            });
            match order.and_then(|place| self.events.remove(place)) {
                Some(LoopEvent::Control(ControlEvent::Order(ShardOrder::Serve))) => return true,
                Some(_) => return false,
                None => self.mailbox.take(LONGEST_SLEEP, Patience::None, &mut self.events),
            }
        }
    }

    #[cfg(test)]
    pub(super) fn store_identity(&self) -> u64 {
        self.store_identity
    }

    /// Closes the store without having served it.
    pub(super) fn give_back(self) {
        if let Err(error) = self.store.close(CLOSING) {
            tracing::warn!(%error, "the store was not closed in time; nothing of it has changed");
        }
    }

    /// Connects to the broker. `quarantine`: most redelivered requests to take at a time, beginning with one.
    pub(super) fn begin<'s>(
        self,
        lasting: &'s mut Lasting,
        quarantine: Option<u16>,
        starts: &'s mut Starts,
    ) -> Life<'s> {
        let on_amqp = Arc::clone(&self.mailbox);
        let on_amqp: OnAmqp = Arc::new(move |event: tidegate_amqp::Event| on_amqp.post(event));
        let options = tidegate_amqp::Options::new(&lasting.config, self.store_identity, quarantine);
        let export =
            |exporter: Arc<SpanExporter>| -> OnSpan { OnSpan(Arc::new(move |span| exporter.export(span))) };
        let (spans, progress) = (lasting.spans.clone().map(export), Arc::clone(&lasting.health.progress));
        let (lease, figures) = (self.lease.clone(), Arc::clone(&lasting.tally.figures));
        let forwarding = lasting.forwarding.clone();
        let options = tidegate_amqp::Options { spans, progress, figures, lease, forwarding, ..options };
        lasting.health.progress.begin();
        lasting.health.progress.moved(DaemonPart::Loop);
        let amqp = Amqp::start((lasting.runtime.handle(), lasting.outward.handle()), options, on_amqp);
        // The engine decides when to begin.
        amqp.intake(Intake::Pause);
        let housekeeping = Housekeeping::new(clock::now(), self.engine.counters());
        Life {
            shard: Shard::new(self.engine, amqp, self.store, (self.lease, self.epoch), self.store_identity),
            starts,
            exports: Exports::of_shard(self.exporter, lasting.runtime.handle().clone()),
            mailbox: self.mailbox,
            events: self.events,
            housekeeping,
            stop_at_ms: None,
            is_release: false,
            failure: None,
            lasting,
        }
    }
}

impl Life<'_> {
    /// Runs the life to its end.
    pub(super) fn run(mut self) -> Ending {
        let mut events = std::mem::take(&mut self.events);
        self.shard.feed(Input::Tick);
        while self.failure.is_none() && !self.is_over() {
            if events.is_empty() {
                let (idle, patience) = (self.shard.idle_time(LONGEST_SLEEP), self.shard.patience());
                self.mailbox.take(idle, patience, &mut events);
            }
            let begun = clock::mono_us();
            // After a suspend, no event from before may be handled under a lost lease.
            self.look_at_lease();
            if self.failure.is_none() {
                self.turn(&mut events);
                self.shard.end_turn();
                self.shard.renew();
                self.look_at_lease();
            }
            // The turn counts before the housekeeping checks for progress.
            self.lasting.health.progress.moved(DaemonPart::Loop);
            self.keep_house();
            let took_us = clock::mono_us().saturating_sub(begun);
            let longest_us = &mut self.lasting.tally.longest_turn_us;
            *longest_us = took_us.max(*longest_us);
        }
        self.close(events);
        self.lasting.tally.totals = self.shard.engine.counters().clone();
        let goes_on = self.goes_on();
        match (self.loss(), self.failure.take()) {
            (Some(loss), Some(failure)) => Ending::Lost(loss, failure),
            (_, None) if self.is_release => Ending::Released,
            // The store had just been left to another daemon when a stop was requested.
            (None, Some(StoreFailure::GivenAway { .. })) | (_, None) => Ending::Stopped,
            (None, Some(failure)) if goes_on => Ending::FailedAlone(failure),
            (None, Some(failure)) => Ending::Failed(failure),
        }
    }

    /// Ends the life once the store may belong to another daemon.
    fn look_at_lease(&mut self) {
        if let Some(age_ms) = self.shard.lost_for().filter(|_| self.failure.is_none()) {
            self.store_failed(StoreFailure::LeaseOver { age_ms });
        }
    }

    /// Whether the process goes on after this life: its store is lost, or left to another node; or this node
    /// has other shards, which do not end with it.
    fn goes_on(&self) -> bool {
        let fails_alone = self.failure.is_some() && !self.is_stopping() && self.lasting.board.is_some();
        self.loss().is_some() || self.is_release || fails_alone
    }

    /// The kind of loss, if the next life may have the store again.
    fn loss(&self) -> Option<Loss> {
        self.failure.as_ref().filter(|_| !self.is_stopping())?.loss()
    }

    /// One turn. Neighbouring events of one kind reach the engine as one input. When its time is over, the
    /// turn leaves the remaining events to the next one, after the clock, the watchdog and the housekeeping.
    fn turn(&mut self, events: &mut VecDeque<LoopEvent>) {
        tidegate_common::failpoint!("turn");
        let end = clock::mono_us() + TURN_US;
        let mut turn = Turn::default();
        while let Some(event) = events.pop_front() {
            match event {
                LoopEvent::Requests { requests, .. } if turn.requests.is_empty() => turn.requests = requests,
                LoopEvent::Requests { requests, .. } => turn.requests.extend(requests),
                LoopEvent::Settled(chunk) => turn.settled.extend(chunk),
                LoopEvent::Command(request, sender) => {
                    if !turn.requests.is_empty() {
                        // They have waited for others, and came before the command.
                        self.dispatch(&mut turn);
                    }
                    turn.commands.extend(self.admit(request, sender));
                }
                LoopEvent::Control(event) => {
                    self.dispatch(&mut turn);
                    self.handle(event);
                    if clock::mono_us() > end {
                        return;
                    }
                }
            }
        }
        self.dispatch(&mut turn);
        // An unfinished query keeps the turns going, since its steps arrive as events.
        let left = self.shard.queries.left();
        if !left.is_empty() {
            self.shard.feed(Input::Left(left));
        }
    }

    fn dispatch(&mut self, turn: &mut Turn) {
        let Turn { settled, commands, requests } = std::mem::take(turn);
        if !settled.is_empty() {
            self.shard.feed(Input::Settled(settled));
        }
        if !commands.is_empty() {
            self.shard.feed(Input::Commands(commands));
        }
        if !requests.is_empty() {
            self.shard.feed(Input::Requests(requests));
        }
    }

    fn handle(&mut self, event: ControlEvent) {
        match event {
            ControlEvent::Broker(event) => self.broker(event),
            ControlEvent::Store(StoreEvent::Committed(token)) => self.shard.feed(Input::Committed(token)),
            ControlEvent::Store(StoreEvent::Loaded(loaded)) => self.shard.feed(Input::Loaded(loaded)),
            ControlEvent::Store(StoreEvent::Failed(failure)) => self.store_failed(failure),
            ControlEvent::Order(ShardOrder::Stop | ShardOrder::Withdraw) => self.begin_stop(),
            ControlEvent::Order(ShardOrder::Configure(config)) => self.configure(config),
            // It serves already.
            ControlEvent::Opened | ControlEvent::Order(ShardOrder::Serve | ShardOrder::Turn(_)) => {}
            ControlEvent::Order(ShardOrder::Share(forwarding)) => {
                self.lasting.forwarding = Some(*forwarding);
            }
            ControlEvent::Order(ShardOrder::Release) => self.begin_release(),
            ControlEvent::State(reply) => {
                answer(reply, || status::state(&self.shard, self.lasting, self.is_stopping()));
            }
            ControlEvent::Export(reply) => self.exports.begin(reply),
        }
    }

    /// Once a second.
    fn keep_house(&mut self) {
        let is_stopping = self.stop_at_ms.is_some();
        if self.housekeeping.run(&mut self.shard, self.lasting, is_stopping) {
            self.starts.look(clock::now().mono);
        }
    }

    fn configure(&mut self, config: Arc<Config>) {
        self.shard.feed(Input::Configure(Box::new(config.engine_settings())));
        self.shard.amqp.reconfigure(&config);
        self.lasting.configure(config);
    }

    fn store_failed(&mut self, failure: StoreFailure) {
        if failure.loss().is_some() {
            tracing::warn!("the store is lost: {failure}");
        } else {
            tracing::error!(error = %failure, "the store has failed");
        }
        self.shard.give_up();
        self.lasting.health.readiness.set(Latch::Store, false);
        self.failure = Some(failure);
    }

    /// `None`: the command has been answered.
    fn admit(
        &mut self,
        request: CommandRequest,
        sender: oneshot::Sender<ShardAnswer>,
    ) -> Option<(Asker, Command)> {
        if let Some(error) = self.refusal(&request) {
            // The client may have disconnected.
            let _ = sender.send(ShardAnswer::Refused(error));
            return None;
        }
        self.shard.queries.admit(request, sender, self.shard.store_identity)
    }

    /// Why this daemon cannot carry out a command at present. With the memory store, what waits is at the
    /// broker while there is no consumer, and is delivered again: an item is not unknown then, nor cancelled.
    fn refusal(&self, request: &CommandRequest) -> Option<String> {
        let queue = &self.lasting.config.ingest.queue;
        if self.is_spare() {
            return Some(format!(
                "this daemon stands by: another one serves queue '{queue}' and holds the waiting items; ask \
                 the daemon whose state is not 'standby'"
            ));
        }
        let lacks = self.holds_unacked() && !self.shard.consumes && is_about_items(request);
        lacks.then(|| self.without_items())
    }

    /// Whether all that waits is at the broker too, unacked.
    fn holds_unacked(&self) -> bool {
        self.lasting.config.store.kind == StoreKind::Memory
    }

    fn without_items(&self) -> String {
        let queue = &self.lasting.config.ingest.queue;
        format!(
            "this daemon does not consume from queue '{queue}' at present, and the broker has the waiting \
             items until it does; ask again then"
        )
    }

    /// Nothing can be acked any more, and what is not durable is delivered again. With the memory store, open
    /// commands wait for items that are gone now, and are told so.
    fn lose_ingest(&mut self) {
        self.shard.consumes = false;
        self.set_consumer();
        if self.holds_unacked() {
            self.shard.queries.reject_all(Some(&self.without_items()));
        }
        self.shard.feed(Input::IngestLost);
    }

    fn broker(&mut self, event: BrokerEvent) {
        match event {
            BrokerEvent::IngestReady { generation } => {
                self.shard.consumes = true;
                self.set_consumer();
                self.shard.feed(Input::IngestReady { generation });
            }
            BrokerEvent::IngestLost => self.lose_ingest(),
            BrokerEvent::Prefetch(prefetch) => self.shard.feed(Input::Prefetch(prefetch)),
            BrokerEvent::EgressReady => self.shard.feed(Input::EgressReady),
            BrokerEvent::EgressLost => self.shard.feed(Input::EgressLost),
            BrokerEvent::EgressBlocked(blocked) => self.shard.feed(Input::EgressBlocked(blocked)),
            BrokerEvent::Link { side, link } => self.link(side, link),
            // What was delivered before is still decided. The latch has been open since the order to stop.
            BrokerEvent::IngestStopped => {}
            BrokerEvent::Quarantine { width } => self.starts.quarantine(width),
            BrokerEvent::Answered(deliveries) => self.shard.feed(Input::Answered(deliveries)),
            BrokerEvent::Forwarded(deliveries) => self.shard.feed(Input::Forwarded(deliveries)),
        }
    }

    fn link(&mut self, side: Side, link: LinkStatus) {
        note_link(&mut self.shard.links, side, link, &self.lasting.health.readiness);
        self.set_consumer();
    }

    /// Keeps the latch closed while this daemon takes requests, or while another one does whose requests
    /// would come to this one: with the memory store, all of them. A daemon that stops takes none, whatever
    /// its connections still do. A shard that is left to another node is not missing at this one.
    fn set_consumer(&self) {
        let takes = self.shard.consumes || self.is_spare();
        self.lasting.health.readiness.set(Latch::Consumer, takes && !self.is_stopping());
    }

    /// Whether another daemon serves the queue; with the memory store, its requests come to this daemon when
    /// it ends.
    fn is_spare(&self) -> bool {
        self.lasting.config.store.kind == StoreKind::Memory
            && matches!(self.shard.links[0], Some(LinkStatus::Standby { .. }))
    }

    /// Whether a stop was requested.
    fn is_stopping(&self) -> bool {
        self.stop_at_ms.is_some() && !self.is_release
    }

    fn begin_stop(&mut self) {
        if self.is_stopping() {
            return;
        }
        self.is_release = false;
        let budget = self.begin_drain();
        self.set_consumer();
        tracing::info!(budget_ms = budget.as_millis() as u64, "stopping: due items are published first");
        self.lasting.reports.send(ShardReport::Draining { within: budget + CLOSING * 3 });
    }

    /// The life ends, and the store is left to another node.
    fn begin_release(&mut self) {
        if self.stop_at_ms.is_some() {
            return;
        }
        self.is_release = true;
        let budget = self.begin_drain();
        let budget_ms = budget.as_millis() as u64;
        tracing::info!(budget_ms, "leaving the store to another node: due items are published first");
    }

    /// Begins the drain, unless it has begun; returns the time that it may take.
    fn begin_drain(&mut self) -> Duration {
        let drain = self.lasting.config.timeouts.drain;
        let budget = drain.saturating_sub(CLOSING).max(Duration::from_millis(100));
        if self.stop_at_ms.is_none() {
            self.stop_at_ms = Some(clock::now().mono + budget.as_millis() as u64);
            self.shard.begin_drain();
        }
        budget
    }

    /// Whether draining is over: nothing is due or in flight, or the budget is spent.
    fn is_over(&self) -> bool {
        self.stop_at_ms.is_some_and(|end| self.shard.engine.is_idle() || clock::now().mono >= end)
    }

    /// Waits for confirms, closes connections and store, each within bounds, and logs what is left.
    fn close(&mut self, mut events: VecDeque<LoopEvent>) {
        self.lasting.health.progress.tell_waiting(self.shard.engine.sums().0);
        self.lasting.health.progress.end();
        let is_lost = self.loss().is_some();
        let budget = match &self.failure {
            None => CLOSING,
            // Confirms are of no use any more.
            Some(_) if is_lost => LOST_CLOSING,
            Some(_) => Duration::from_secs(2),
        };
        // After a failure of the store no signal has limited the time.
        let last_within = (!self.goes_on()).then_some(CLOSING + GRACE);
        self.lasting.reports.send(ShardReport::Closing { within: budget * 2, last_within });
        let left = self.shard.engine.snapshot(clock::now());
        let end = Instant::now() + budget;
        self.lasting.waits.block_on(self.shard.end_of_amqp(budget));
        self.mailbox.take(Duration::ZERO, Patience::None, &mut events);
        if self.failure.is_none() {
            // Nothing can be acked any more. The broker redelivers requests that are not durable.
            self.lose_ingest();
            // Handling the last confirms avoids repeats after the next start.
            while !events.is_empty() {
                self.turn(&mut events);
            }
            self.shard.feed(Input::Drain);
            let end = end.max(Instant::now() + LEAST);
            while self.shard.engine.is_behind() && Instant::now() < end {
                self.shard.feed(Input::Tick);
            }
        } else {
            // Updates the totals only; the effects are dropped.
            self.shard.feed(Input::IngestLost);
        }
        let left_of = |end: Instant| end.saturating_duration_since(Instant::now()).max(LEAST);
        self.exports.end(&self.lasting.waits, left_of(end));
        // The engine decides nothing any more: open commands end now and not when their wait ends.
        self.shard.queries.reject_all(self.goes_on().then_some(LOST));
        match self.shard.store.close(left_of(end)) {
            Ok(()) => {}
            // A call to the database may still run; the database refuses its writes once the next life has
            // the store.
            Err(error) if is_lost => tracing::debug!(%error, "a call of the store goes on"),
            Err(error) => {
                tracing::error!(%error, "the store was not closed in time; every acked item is in its log");
            }
        }
        self.mailbox.take(Duration::ZERO, Patience::None, &mut events);
        // Events for the shard go to the next life. Without one they are dropped, which ends the wait of
        // their senders.
        self.lasting.inlet.put_back(events);
        tracing::info!(
            waiting = left.items.waiting,
            parked = left.items.parked,
            in_flight = left.items.in_flight,
            "closed; waiting items stay in the store"
        );
    }
}

/// Whether it depends on the items that wait; else it is about those that come as well.
fn is_about_items(request: &CommandRequest) -> bool {
    match request {
        Command::Pause(..)
        | Command::Resume(_)
        | Command::PauseCustomer(..)
        | Command::ResumeCustomer(_)
        | Command::Slow(..) => false,
        Command::Cancel(_)
        | Command::CancelAll(_)
        | Command::CancelSelected(_)
        | Command::Lookup(_)
        | Command::Reschedule(..)
        | Command::Count(_)
        | Command::CountSelected(_)
        | Command::Flush(_)
        | Command::FlushAll(_)
        | Command::List(_)
        | Command::TimelineQuery(_)
        | Command::Retry(_)
        | Command::DropParked(_) => true,
    }
}
