//! The egress end: one task owns the publishing connection, its channel and the window of confirms.
//!
//! Every batch handed over is settled exactly once: by the broker's answer (see [`super::window`] for what it takes
//! to know whom an answer means), or, when the connection ends, as unknown, or as one of the suspects if the broker
//! ended it over the content of a message. Deliberately absent: retries, which are the engine's.

use super::backoff::Backoff;
use super::connection::{address, Session};
use super::fault::{Fault, Kind};
use super::lane::{Lane, Owed};
use super::shared::Shared;
use super::supervise::{requested, time_left, unless_shutdown, Notices};
use super::topology::prepare_egress;
use super::wire::Exchanges;
use super::{probe, Event, Link, Options, ShutdownSignal, Side};
use crate::engine::types::{Batch, Outcome, Settled};
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, MissedTickBehavior};

/// A connection that lasted so long has proved itself.
const PROVEN: Duration = Duration::from_secs(30);
/// After the broker ended a whole connection over a message, suspects are probed with nothing else in flight for so
/// long: otherwise the connection's end could not be blamed on the probe.
const ALONE: Duration = Duration::from_secs(600);
/// How long to look for the reason of an end after noticing the end.
const CAUSE_LIMIT: Duration = Duration::from_millis(250);
/// Accuracy of the confirm time-out.
const CHECK: Duration = Duration::from_millis(250);

/// Supervisor of the egress end.
pub(super) struct Egress {
    shared: Arc<Shared>,
    options: Arc<Options>,
    jobs: UnboundedReceiver<Vec<Batch>>,
    shutdown: ShutdownSignal,
    names: Exchanges,
    backoff: Backoff,
    connects: usize,
    alone_until: Option<Instant>,
    notices: Notices,
}

impl Egress {
    pub(super) fn new(
        shared: Arc<Shared>,
        options: Arc<Options>,
        jobs: UnboundedReceiver<Vec<Batch>>,
        shutdown: ShutdownSignal,
    ) -> Self {
        let names = Exchanges::new(&options.egress.exchange, &options.dead.exchange);
        Egress {
            shared,
            options,
            jobs,
            shutdown,
            names,
            backoff: Backoff::default(),
            connects: 0,
            alone_until: None,
            notices: Notices::new(Side::Egress),
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
            let pause = self.backoff.next();
            self.shared.failed(Side::Egress);
            self.notices.failure(&fault.text, pause);
            self.shared.link(Side::Egress, Link::Down { error: fault.text, retry_in: pause });
            if self.meanwhile(tokio::time::sleep(pause)).await.is_none() {
                break;
            }
        }
        self.disown();
        self.shared.link(Side::Egress, Link::Closed);
    }

    /// One connection, from its opening to its end. `Ok`: shut down.
    async fn life(&mut self) -> Result<(), Fault> {
        let options = self.options.clone();
        let endpoints = &options.egress.endpoints;
        let Some(endpoint) = endpoints.get(self.connects % endpoints.len().max(1)) else {
            return Err(Fault::setup("no address is configured"));
        };
        self.connects += 1;
        self.shared.link(Side::Egress, Link::Connecting { address: address(endpoint) });
        let ca_file = options.amqp.ca_file.as_deref();
        let opening = Session::open(endpoint, ca_file, options.timeouts.connect, "tidegate egress");
        let session = match self.meanwhile(opening).await {
            Some(Ok(session)) => Arc::new(session),
            Some(Err(error)) => return Err(Fault::setup(error.to_string())),
            None => return Ok(()),
        };
        let result = self.work(&session).await;
        session.close(time_left(&self.shutdown)).await;
        result
    }

    async fn work(&mut self, session: &Arc<Session>) -> Result<(), Fault> {
        let options = self.options.clone();
        let limit = options.timeouts.connect;
        let names = options.names();
        let preparing = async {
            let notes = prepare_egress(session, options.amqp.topology, &names, limit).await?;
            Ok::<_, Fault>((notes, probe::confirm_channel(session, limit).await?))
        };
        let (notes, channel) = match self.meanwhile(preparing).await {
            Some(done) => done?,
            None => return Ok(()),
        };
        let up = Link::Up { address: session.address().to_owned(), notes: self.notices.take(notes) };
        let alone = self.alone_until.is_some_and(|until| until > Instant::now());
        let mut lane = Lane::new(session.clone(), channel, self.names.clone(), alone, &options);
        // One that arrived before this was handed over to the connection before it.
        self.disown();
        self.shared.post(Event::EgressReady);
        self.shared.link(Side::Egress, up.clone());
        tracing::info!(address = session.address(), "publishing");
        let mut seen = None;
        let result = match self.flow(&mut lane, &up, &mut seen).await {
            Err(fault) if fault.kind == Kind::AfterEnd => Err(self.cause(&mut lane, fault, seen).await),
            other => other,
        };
        self.end(&mut lane, result.as_ref().err());
        lane.close(time_left(&self.shutdown)).await;
        result
    }

    /// Publishes until the connection fails or the shutdown has come to its end.
    /// `seen` keeps the last error that lapin told of by itself.
    async fn flow(&mut self, lane: &mut Lane, up: &Link, seen: &mut Option<Fault>) -> Result<(), Fault> {
        let mut events = Box::pin(lane.session().connection().events_listener());
        let mut check = tokio::time::interval(CHECK);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut closing: Option<Instant> = None;
        let mut reason = String::new();
        loop {
            let arrived = tokio::select! {
                () = requested(&mut self.shutdown), if closing.is_none() => {
                    let left = self.shutdown.borrow().map_or(Duration::ZERO, |end| end.saturating_duration_since(Instant::now()));
                    closing = Some(Instant::now() + left / 2);
                    None
                }
                () = lane.woken() => None,
                event = events.next() => {
                    match event {
                        Some(lapin::Event::Error(error)) => *seen = Some(Fault::from(error)),
                        Some(lapin::Event::ConnectionBlocked(text)) => reason = text,
                        // Whatever else it says is read off the status.
                        _ => {}
                    }
                    None
                }
                _ = check.tick() => None,
                batches = self.jobs.recv() => match batches {
                    Some(batches) => Some(batches),
                    None => return Ok(()),
                },
            };
            self.blocked(lane, up, &reason);
            self.turn(lane, arrived)?;
            lane.check(&self.options.timeouts)?;
            if closing.is_some_and(|end| lane.is_idle() || end <= Instant::now()) {
                return Ok(());
            }
        }
    }

    /// Publishes what has arrived and settles what was answered.
    fn turn(&mut self, lane: &mut Lane, arrived: Option<Vec<Batch>>) -> Result<(), Fault> {
        let mut owed = Owed::default();
        let mut result = lane.collect(&mut owed);
        match (arrived, &result) {
            (Some(batches), Ok(())) => {
                for batch in batches {
                    lane.admit(batch, &mut owed);
                }
                result = lane.collect(&mut owed);
            }
            // They have nothing to do with the end of this channel.
            (Some(batches), Err(_)) => owed.settled.extend(unsent(batches)),
            (None, _) => {}
        }
        if result.is_ok() {
            lane.advance(&mut owed);
        }
        if owed.has_confirms() {
            self.backoff.reset();
        }
        owed.record(&self.shared);
        self.settle(owed.settled);
        result
    }

    /// The reason of an end that was noticed on a closed channel. Unconfirmed publishes know it for certain; what
    /// lapin told of by itself may have been about the probe channel, so it serves as a text only.
    async fn cause(&mut self, lane: &mut Lane, mut fault: Fault, seen: Option<Fault>) -> Fault {
        let end = Instant::now() + CAUSE_LIMIT;
        while !lane.is_idle() && tokio::time::timeout_at(end, lane.woken()).await.is_ok() {
            let mut owed = Owed::default();
            let found = lane.collect(&mut owed);
            owed.record(&self.shared);
            self.settle(owed.settled);
            match found {
                Err(found) if found.kind != Kind::AfterEnd => return found,
                Err(_) | Ok(()) => {}
            }
        }
        if let Some(seen) = seen {
            fault.text = seen.text;
        }
        fault
    }

    /// Tells a change of the broker's flow control.
    fn blocked(&self, lane: &mut Lane, up: &Link, reason: &str) {
        let now = lane.session().connection().status().blocked();
        if lane.set_blocked(now) {
            self.shared.post(Event::EgressBlocked(now));
            if now {
                tracing::warn!(
                    address = lane.session().address(),
                    reason,
                    "the broker takes no messages at present"
                );
                let reason = if reason.is_empty() { "a memory or disk alarm of the broker" } else { reason };
                self.shared.link(Side::Egress, Link::Blocked { reason: reason.to_owned() });
            } else {
                tracing::info!(address = lane.session().address(), "the broker takes messages again");
                self.shared.link(Side::Egress, up.clone());
            }
        }
    }

    /// Settles all that is left, in this order: outcomes, then the news of the loss.
    fn end(&mut self, lane: &mut Lane, fault: Option<&Fault>) {
        let outcome = match fault {
            Some(Fault { kind: Kind::Content, text, .. }) => Outcome::Refused(text.as_str().into()),
            Some(Fault { kind: Kind::ContentFatal, text, .. }) => {
                self.alone_until = Some(Instant::now() + ALONE);
                Outcome::Refused(text.as_str().into())
            }
            Some(_) | None => Outcome::Unknown,
        };
        let mut owed = Owed::default();
        let was_blocked = lane.set_blocked(false);
        lane.fail(&outcome, &mut owed);
        owed.record(&self.shared);
        self.settle(owed.settled);
        self.disown();
        self.shared.post(Event::EgressLost);
        if was_blocked {
            self.shared.post(Event::EgressBlocked(false));
        }
    }

    /// Waits for something while there is no connection; what is handed over meanwhile is settled at once. `None`:
    /// shut down.
    async fn meanwhile<T>(&mut self, work: impl std::future::Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        let mut shutdown = self.shutdown.clone();
        loop {
            let jobs = &mut self.jobs;
            let arrived = unless_shutdown(&mut shutdown, async {
                tokio::select! {
                    done = &mut work => Ok(done),
                    Some(batches) = jobs.recv() => Err(batches),
                }
            })
            .await?;
            match arrived {
                Ok(done) => return Some(done),
                Err(batches) => self.settle(unsent(batches)),
            }
        }
    }

    /// Settles what has been handed over but not published.
    fn disown(&mut self) {
        while let Ok(batches) = self.jobs.try_recv() {
            self.settle(unsent(batches));
        }
    }

    fn settle(&self, settled: Vec<Settled>) {
        if !settled.is_empty() {
            self.shared.post(Event::Settled(settled));
        }
    }
}

fn unsent(batches: Vec<Batch>) -> Vec<Settled> {
    batches.iter().map(|batch| Settled { number: batch.number, outcome: Outcome::Unsent }).collect()
}
