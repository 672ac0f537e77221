//! One life of the publishing channel: window, confirms, and the probe channel beside it.

use super::confirms::Confirms;
use super::connection::Session;
use super::fault::{Fault, Kind};
use super::probe::{probe, Message, Probed};
use super::shared::Shared;
use super::window::{Answer, Returned, Window};
use super::wire::{self, Exchanges, Outgoing};
use super::Options;
use crate::clock;
use crate::config::Timeouts;
use crate::engine::types::{Batch, Outcome, Settled};
use futures_util::future::BoxFuture;
use futures_util::FutureExt;
use lapin::message::BasicReturnMessage;
use lapin::{Channel, Confirmation};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// What one turn brought: settled batches and figures, handed over together so that the hot path locks once a turn.
#[derive(Default)]
pub(super) struct Owed {
    pub(super) settled: Vec<Settled>,
    late_us: Vec<u64>,
    confirm_us: Vec<u64>,
}

impl Owed {
    pub(super) fn has_confirms(&self) -> bool {
        !self.confirm_us.is_empty()
    }

    pub(super) fn record(&self, shared: &Shared) {
        if self.late_us.is_empty() && self.confirm_us.is_empty() {
            return;
        }
        let mut figures = shared.figures();
        self.late_us.iter().for_each(|us| figures.lateness.record(*us));
        self.confirm_us.iter().for_each(|us| figures.confirm.record(*us));
    }
}

pub(super) struct Lane {
    session: Arc<Session>,
    /// Each publish under way holds it; cloning lapin's own handle is several times as dear.
    channel: Arc<Channel>,
    names: Exchanges,
    store_identity: u64,
    limit: Duration,
    /// Moments in the window count from here, in us.
    epoch: Instant,
    window: Window,
    confirms: Confirms,
    blocked: bool,
    /// Confirm time-outs count from here at the earliest.
    unblocked_at: Instant,
    /// Suspects are probed with nothing else unconfirmed on the connection.
    alone: bool,
    suspects: VecDeque<Batch>,
    /// Held back while suspects are probed alone.
    held: VecDeque<Batch>,
    probe_channel: Option<Arc<Channel>>,
    probing: Option<(u64, Instant, BoxFuture<'static, Probed>)>,
    probed: Option<Probed>,
}

impl Lane {
    pub(super) fn new(
        session: Arc<Session>,
        channel: Channel,
        names: Exchanges,
        alone: bool,
        options: &Options,
    ) -> Self {
        let now = Instant::now();
        Lane {
            session,
            channel: Arc::new(channel),
            names,
            store_identity: options.store_identity,
            limit: options.timeouts.connect,
            epoch: now,
            window: Window::default(),
            confirms: Confirms::default(),
            blocked: false,
            unblocked_at: now,
            alone,
            suspects: VecDeque::new(),
            held: VecDeque::new(),
            probe_channel: None,
            probing: None,
            probed: None,
        }
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Nothing is unconfirmed or waits to be published.
    pub(super) fn is_idle(&self) -> bool {
        self.window.is_empty() && self.probing.is_none() && self.suspects.is_empty() && self.held.is_empty()
    }

    /// True if that is news.
    pub(super) fn set_blocked(&mut self, blocked: bool) -> bool {
        if !blocked && self.blocked {
            self.unblocked_at = Instant::now();
        }
        std::mem::replace(&mut self.blocked, blocked) != blocked
    }

    /// Waits until there is something to [`Lane::collect`]. Safe to cancel.
    pub(super) async fn woken(&mut self) {
        let Lane { confirms, probing, probed, .. } = self;
        tokio::select! {
            () = confirms.woken() => {}
            done = async {
                match probing {
                    Some((_, _, probing)) => probing.await,
                    None => std::future::pending().await,
                }
            } => *probed = Some(done),
        }
    }

    /// Takes one batch: published now, or queued for the probe channel.
    pub(super) fn admit(&mut self, batch: Batch, owed: &mut Owed) {
        if batch.probe {
            self.suspects.push_back(batch);
        } else if self.alone && (self.probing.is_some() || !self.suspects.is_empty()) {
            self.held.push_back(batch);
        } else {
            self.publish(&batch, owed);
        }
    }

    /// Takes every answer there is and judges them (see [`super::window`]).
    pub(super) fn collect(&mut self, owed: &mut Owed) -> Result<(), Fault> {
        let Lane { confirms, window, epoch, .. } = self;
        let mut fault: Option<Fault> = None;
        let mut stray = false;
        confirms.drain(|slot, result| {
            let (answer, back) = match result {
                Ok(Confirmation::Ack(back)) => (Answer::Ack, back),
                Ok(Confirmation::Nack(back)) => (Answer::Nack, back),
                Ok(Confirmation::NotRequested) => {
                    keep(&mut fault, Fault::lost("the channel does not confirm"));
                    return;
                }
                Err(error) => {
                    keep(&mut fault, Fault::from(error));
                    return;
                }
            };
            stray |= window.answer(slot, answer, back.map(|back| returned(&back))).is_err();
        });
        // A return that belongs to none makes every ack of this round doubtful: all of it stays unknown.
        if stray {
            return Err(Fault::lost("the broker returned a message that is not in flight"));
        }
        let now = us_since(*epoch);
        window.judge(&mut owed.settled, |at| owed.confirm_us.push(now.saturating_sub(at)));
        failpoint!("after-confirm", if owed.has_confirms());
        match fault {
            Some(fault) => Err(fault),
            None => self.finish_probe(owed),
        }
    }

    /// Starts the next probe, or publishes what was held back for the last one.
    pub(super) fn advance(&mut self, owed: &mut Owed) {
        if self.probing.is_some() || (self.alone && !self.suspects.is_empty() && !self.window.is_empty()) {
            return;
        }
        if let Some(batch) = self.suspects.pop_front() {
            let message = self.message(&batch, owed);
            let channel = self.probe_channel.take();
            let probing = probe(self.session.clone(), channel, message, self.alone, self.limit).boxed();
            self.probing = Some((batch.number, Instant::now(), probing));
            return;
        }
        while let Some(batch) = self.held.pop_front() {
            self.publish(&batch, owed);
        }
    }

    /// A lost channel, or an answer that is overdue. While the connection is blocked no answer can be.
    pub(super) fn check(&mut self, timeouts: &Timeouts) -> Result<(), Fault> {
        if !self.channel.status().connected() || !self.session.connection().status().connected() {
            return Err(Fault { kind: Kind::AfterEnd, ..Fault::lost("the publishing channel was lost") });
        }
        if self.blocked {
            return Ok(());
        }
        let publish = self.window.oldest().map(|at| self.epoch + Duration::from_micros(at));
        let probe = self.probing.as_ref().map(|(_, since, _)| *since);
        let oldest = publish.into_iter().chain(probe).min();
        if oldest.is_some_and(|at| at.max(self.unblocked_at).elapsed() >= timeouts.confirm) {
            return Err(Fault::timeout("a publish", timeouts.confirm));
        }
        Ok(())
    }

    /// The end: everything not settled is, with `outcome`; what was not published at all is so.
    pub(super) fn fail(&mut self, outcome: &Outcome, owed: &mut Owed) {
        owed.settled.extend(self.window.fail(outcome));
        let probing = self.probing.take().map(|(number, ..)| number);
        let waiting = self.suspects.drain(..).chain(self.held.drain(..)).map(|batch| batch.number);
        let settled = |outcome: Outcome| move |number| Settled { number, outcome: outcome.clone() };
        owed.settled.extend(probing.into_iter().map(settled(Outcome::Unknown)));
        owed.settled.extend(waiting.map(settled(Outcome::Unsent)));
    }

    /// Closes the channels as far as they are open. lapin takes the end of a connection with channels half closed for
    /// an error.
    pub(super) async fn close(self, limit: Duration) {
        let open = [Some(self.channel), self.probe_channel];
        for channel in open.into_iter().flatten().filter(|channel| channel.status().connected()) {
            if !self.session.connection().status().blocked() {
                // The connection's end closes it at the latest.
                let _ = tokio::time::timeout(limit, channel.close(200, "OK".into())).await;
            }
        }
    }

    fn finish_probe(&mut self, owed: &mut Owed) -> Result<(), Fault> {
        let Some(probed) = self.probed.take() else { return Ok(()) };
        let since = self.probing.take().map(|(_, since, _)| since);
        if let (Outcome::Confirmed(_), Some(since)) = (&probed.settled.outcome, since) {
            owed.confirm_us.push(us_since(since));
        }
        owed.settled.push(probed.settled);
        self.probe_channel = probed.channel;
        probed.fault.map_or(Ok(()), Err)
    }

    fn publish(&mut self, batch: &Batch, owed: &mut Owed) {
        let message = self.message(batch, owed);
        let slot = self.window.publish(message.number, message.id, us_since(self.epoch));
        failpoint!("before-publish");
        self.confirms.start(slot, Box::pin(message.publish(self.channel.clone())));
        failpoint!("after-publish");
    }

    /// Encodes, and notes how late its items are.
    fn message(&self, batch: &Batch, owed: &mut Owed) -> Message {
        let now_us = clock::wall_us();
        let Outgoing { exchange, routing_key, properties, body, id } =
            wire::encode(batch, &self.names, self.store_identity, now_us / 1_000);
        if batch.dead.is_none() {
            let late = |due: u64| now_us.saturating_sub(due.saturating_mul(1_000));
            // Repeats are late for a reason of their own.
            if batch.attempt == 1 {
                owed.late_us.extend(batch.items.iter().map(|item| late(item.due)));
            }
        }
        Message { number: batch.number, id, exchange, routing_key, properties, body }
    }
}

fn returned(back: &BasicReturnMessage) -> Returned {
    Returned {
        id: wire::batch_id_of(&back.properties),
        text: format!("{} {}", back.reply_code, back.reply_text),
    }
}

/// The first real reason counts; that something was tried after the end is none.
fn keep(fault: &mut Option<Fault>, new: Fault) {
    if fault.as_ref().is_none_or(|old| old.kind == Kind::AfterEnd && new.kind != Kind::AfterEnd) {
        *fault = Some(new);
    }
}

fn us_since(moment: Instant) -> u64 {
    u64::try_from(moment.elapsed().as_micros()).unwrap_or(u64::MAX)
}
