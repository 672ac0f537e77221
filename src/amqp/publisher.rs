//! The egress end: one task owns the publishing connection and its channels.
//!
//! Every batch handed over is settled exactly once: by the broker's answer ([`super::confirm_tracker`] finds
//! the batch that an answer belongs to), when its channel ends (see [`super::channels`]), or, when the
//! connection ends, as unknown, or as one of the suspects if the broker ended the connection over the content
//! of a message, or may have. Deliberately absent: retries, which the engine decides.

use super::backoff::Backoff;
use super::channels::{Carried, EgressChannels};
use super::connection::Session;
use super::fault::{Fault, FaultKind, CAUSE_LIMIT};
use super::message::{confirm_channel, unsent, Encoder, TurnOutput};
use super::shared::Shared;
use super::supervise::{
    ended_or_ordered, frame_note, requested, supervise, time_left, ConnectionUser, Dialer, NoteLog,
};
use super::topology::prepare_egress;
use super::{BrokerEvent, Event, Handover, LinkStatus, Options, ShutdownSignal, Side};
use futures_util::StreamExt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tidegate_common::clock;
use tidegate_common::progress::PublishTurn;
use tidegate_types::Settled;
use tidegate_wire::Exchanges;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, MissedTickBehavior};

/// Accuracy of the confirm time-out.
const CHECK: Duration = Duration::from_millis(250);

/// The egress end, across connections.
pub(crate) struct EgressPublisher {
    shared: Arc<Shared>,
    options: Arc<Options>,
    jobs: UnboundedReceiver<Handover>,
    shutdown: ShutdownSignal,
    encoder: Encoder,
    backoff: Backoff,
    notes: NoteLog,
    /// State that passes from one connection to the next.
    carried: Carried,
}

/// State of the link while it works.
struct UpLink {
    address: String,
    notes: Vec<String>,
    /// Of the last check of the dead exchange, which each opening of its channel repeats.
    dead_notes: Vec<String>,
    dead: Option<String>,
    blocked: Option<String>,
}

impl UpLink {
    fn link(&self) -> LinkStatus {
        match &self.blocked {
            Some(reason) => LinkStatus::Blocked { reason: reason.clone() },
            None => LinkStatus::Up {
                address: self.address.clone(),
                notes: [&*self.notes, &*self.dead_notes].concat(),
                dead: self.dead.clone(),
            },
        }
    }
}

impl EgressPublisher {
    pub(crate) fn new(
        shared: Arc<Shared>,
        options: Arc<Options>,
        jobs: UnboundedReceiver<Handover>,
        shutdown: ShutdownSignal,
    ) -> Self {
        let names = Exchanges::new(&options.egress.exchange, &options.dead.exchange);
        EgressPublisher {
            encoder: Encoder {
                names,
                store_identity: options.store_identity,
                frame_max: options.amqp.frame_max,
                spans: options.spans.clone(),
            },
            shared,
            options,
            jobs,
            shutdown,
            backoff: Backoff::default(),
            notes: NoteLog::default(),
            carried: Carried::default(),
        }
    }

    /// Ends with the shutdown only.
    pub(crate) async fn run(mut self) {
        let (shared, shutdown) = (Arc::clone(&self.shared), self.shutdown.clone());
        let Options { amqp, egress, timeouts, .. } = &*self.options;
        let dialer = Dialer::new("tidegate egress", &egress.endpoints, amqp, timeouts.connect);
        supervise(&mut self, dialer, &shared, &shutdown).await;
        self.settle_unsent();
    }

    /// Publishes until the connection fails or the shutdown has come to its end. `seen` keeps the last error
    /// that lapin reported by itself.
    async fn publish(
        &mut self,
        channels: &mut EgressChannels,
        up: &mut UpLink,
        seen: &mut Option<Fault>,
    ) -> Result<(), Fault> {
        let mut events = Box::pin(channels.session().connection().events_listener());
        let mut check = tokio::time::interval(CHECK);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut closing: Option<Instant> = None;
        let mut reason = String::new();
        loop {
            let mut arrived = Handover::default();
            tokio::select! {
                () = requested(&mut self.shutdown), if closing.is_none() => {
                    let end = self.shutdown.borrow().unwrap_or_else(Instant::now);
                    closing = Some(Instant::now() + end.saturating_duration_since(Instant::now()) / 2);
                }
                () = channels.woken() => {}
                // The status of the connection shows everything else.
                Some(event) = events.next() => {
                    if let lapin::Event::Error(error) = event {
                        *seen = Some(Fault::from(error));
                    } else if let lapin::Event::ConnectionBlocked(text) = event {
                        reason = text;
                    }
                }
                _ = check.tick() => {}
                handover = self.jobs.recv() => match handover {
                    Some(handover) => arrived = handover,
                    None => return Ok(()),
                },
            }
            self.note_blocked(channels, up, &reason);
            if self.options.lease.as_ref().is_some_and(|lease| !lease.holds(clock::now().mono)) {
                // Another daemon may have sent these batches by now, or have accepted a command that cancels
                // them.
                self.settle(unsent(arrived.batches).collect());
                return Err(Fault::lost("the store may be another daemon's by now"));
            }
            let took = !arrived.batches.is_empty() || !arrived.give_up.is_empty();
            self.turn(channels, arrived)?;
            self.note_dead(channels, up);
            let (left, owes, idle) = (!self.jobs.is_empty(), channels.owes(), channels.is_idle());
            self.shared.publisher_turned(PublishTurn { took, left, owes, idle, ..PublishTurn::default() });
            if closing.is_some_and(|end| channels.is_idle() || end <= Instant::now()) {
                return Ok(());
            }
        }
    }

    /// Publishes what has arrived and settles what was answered.
    fn turn(&mut self, channels: &mut EgressChannels, arrived: Handover) -> Result<(), Fault> {
        let mut output = TurnOutput::default();
        let mut result = channels.turn(arrived, &mut output);
        if result.is_ok() {
            result = channels.check(&mut output);
        }
        if output.has_confirms() {
            self.backoff.reset();
        }
        self.deliver(output);
        result
    }

    /// Finds the reason of an end that was noticed on a closed connection. Unconfirmed publishes report it
    /// for certain; what lapin reported by itself may have been about a single channel, so only its text is
    /// used.
    async fn cause(&mut self, channels: &mut EgressChannels, mut fault: Fault, seen: Option<Fault>) -> Fault {
        let mut output = TurnOutput::default();
        let found = channels.reason_of_end(CAUSE_LIMIT, &mut output).await;
        self.deliver(output);
        match (found, seen) {
            (Some(found), _) => found,
            (None, Some(seen)) => {
                fault.text = seen.text;
                fault
            }
            (None, None) => fault,
        }
    }

    /// Reports a change of the broker's flow control.
    fn note_blocked(&self, channels: &mut EgressChannels, up: &mut UpLink, reason: &str) {
        let now = channels.session().is_blocked();
        if !channels.set_blocked(now) {
            return;
        }
        self.shared.post(BrokerEvent::EgressBlocked(now));
        if now {
            tracing::warn!(address = up.address, reason, "the broker takes no messages at present");
            let reason = if reason.is_empty() { "a memory or disk alarm of the broker" } else { reason };
            up.blocked = Some(reason.to_owned());
        } else {
            tracing::info!(address = up.address, "the broker takes messages again");
            up.blocked = None;
        }
        self.shared.link(Side::Egress, up.link());
    }

    /// Reports whether dead letters can be published, and what was found about their exchange.
    fn note_dead(&mut self, channels: &mut EgressChannels, up: &mut UpLink) {
        let notes = channels.take_dead_notes();
        let changed = notes.is_some() || channels.dead_trouble() != up.dead.as_deref();
        if let Some(notes) = notes {
            up.dead_notes = self.notes.take(Side::Egress, notes);
        }
        if changed {
            up.dead = channels.dead_trouble().map(str::to_owned);
            self.shared.link(Side::Egress, up.link());
        }
    }

    /// Settles all that is left, and then reports the loss.
    fn end(&mut self, channels: &mut EgressChannels, fault: Option<&Fault>) {
        let mut output = TurnOutput::default();
        let was_blocked = channels.set_blocked(false);
        channels.fail(fault, &mut output);
        self.deliver(output);
        self.settle_unsent();
        self.shared.post(BrokerEvent::EgressLost);
        if was_blocked {
            self.shared.post(BrokerEvent::EgressBlocked(false));
        }
    }

    /// Settles what has been handed over but not published.
    fn settle_unsent(&mut self) {
        while let Ok(handover) = self.jobs.try_recv() {
            self.settle(unsent(handover.batches).collect());
        }
    }

    fn deliver(&self, output: TurnOutput) {
        output.record(self.shared.figures());
        self.settle(output.settled);
    }

    fn settle(&self, settled: Vec<Settled>) {
        if !settled.is_empty() {
            self.shared.post(Event::Settled(settled));
        }
    }
}

impl ConnectionUser for EgressPublisher {
    const SIDE: Side = Side::Egress;

    async fn work(&mut self, session: &Arc<Session>) -> Result<(), Fault> {
        let options = self.options.clone();
        let limit = options.timeouts.connect;
        let preparing = async {
            let notes =
                prepare_egress(session, options.amqp.topology, &options.egress.exchange, limit).await?;
            Ok::<_, Fault>((notes, confirm_channel(session, limit).await?))
        };
        let shared = Arc::clone(&self.shared);
        let preparing = shared.while_waiting(Side::Egress, preparing);
        let (mut notes, channel) = match self.while_disconnected(preparing).await {
            Some(done) => done?,
            None => return Ok(()),
        };
        notes.extend(frame_note(session, &options.amqp));
        let mut up = UpLink {
            address: session.address().to_owned(),
            notes: self.notes.take(Side::Egress, notes),
            dead_notes: Vec::new(),
            dead: None,
            blocked: None,
        };
        let carried = std::mem::take(&mut self.carried);
        let encoder = Encoder { frame_max: session.frame_max(), ..self.encoder.clone() };
        let mut channels = EgressChannels::new(Arc::clone(session), channel, encoder, options, carried);
        // A batch that arrived before this was handed over for the previous connection.
        self.settle_unsent();
        self.shared.post(BrokerEvent::EgressReady);
        self.shared.link(Side::Egress, up.link());
        tracing::info!(address = up.address, "publishing");
        let mut seen = None;
        let result = match self.publish(&mut channels, &mut up, &mut seen).await {
            Err(fault) if fault.kind == FaultKind::AfterEnd => {
                Err(self.cause(&mut channels, fault, seen).await)
            }
            other => other,
        };
        self.end(&mut channels, result.as_ref().err());
        let closing = channels.close(time_left(&self.shutdown));
        self.carried = self.shared.while_waiting(Side::Egress, closing).await;
        result
    }

    /// Batches handed over during the wait are settled at once.
    async fn while_disconnected<T: Send>(&mut self, wait: impl Future<Output = T> + Send) -> Option<T> {
        let mut wait = std::pin::pin!(wait);
        let mut shutdown = self.shutdown.clone();
        loop {
            match ended_or_ordered(wait.as_mut(), &mut self.jobs, &mut shutdown).await? {
                Ok(done) => return Some(done),
                Err(handover) => self.settle(unsent(handover.batches).collect()),
            }
        }
    }

    fn on_failure(&mut self, fault: Fault) -> (String, Duration) {
        (fault.text, self.backoff.next())
    }

    fn backoff(&mut self) -> &mut Backoff {
        &mut self.backoff
    }
}
