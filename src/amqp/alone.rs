//! Batches that are published alone, each on a channel where nothing else is unconfirmed: an answer, a close
//! of the channel or a missing answer then concerns that batch and no other.
//!
//! A batch whose confirm is overdue keeps its channel: its queue may have lost its majority, and once the
//! majority is back the confirm arrives and nothing was published twice. When another batch needs a channel,
//! the engine decides which batch gives up its own. One that has none yet leaves the channel that is being
//! opened to the next batch: a broker that is slow to open them would have ever more to open, and none would
//! be used. No batch keeps its channel for ever: RabbitMQ may lose a confirm, with a queue that is deleted
//! and declared again for example.
//!
//! After the broker has closed a connection over the content of a message, each suspect is published on a
//! separate connection: if the broker closes that one too, the culprit is known, and no other batch is
//! affected. The same holds if the broker has failed (541), for which no message need be to blame: what fails
//! again waits for its next try, and is not refused.

use super::connection::Session;
use super::fault::{Fault, FaultKind};
use super::figures::Figures;
use super::message::{confirm_channel, Encoder, PublishMessage, TurnOutput};
use super::suspects::Suspects;
use super::Options;
use futures_util::future::{BoxFuture, Shared};
use futures_util::FutureExt;
use lapin::{Channel, Confirmation};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tidegate_common::clock;
use tidegate_types::{Batch, BatchId, Outcome, ALONE_CHANNELS};
use tokio::time::Instant;

/// Shows in `rabbitmqctl list_connections`.
const APART: &str = "tidegate egress, apart";
/// Idle channels that are kept open, and how long further ones are: opening a channel costs a round trip, and
/// every frame costs a look at each open channel.
const IDLE_CHANNELS: usize = 8;
const IDLE_FOR: Duration = Duration::from_secs(300);
/// Most batches with a separate connection at a time; each connection costs a thread.
const MAX_APART: usize = 32;
/// How long a batch may occupy a separate connection while another one waits for it.
const APART_FOR: Duration = Duration::from_millis(500);
/// Pause before a batch whose separate connection failed is settled: its retry would open the next one at
/// once.
const PAUSE: Duration = Duration::from_secs(1);

/// The end of one batch.
pub(crate) struct AloneEnd {
    pub(crate) number: u64,
    pub(crate) id: BatchId,
    pub(crate) application: Arc<str>,
    pub(crate) dead: bool,
    pub(crate) answer: AloneAnswer,
}

/// The result of its publish.
pub(crate) struct AloneAnswer {
    pub(crate) outcome: Outcome,
    /// A failure beyond the batch; with [`Outcome::Unavailable`], of its exchange.
    pub(crate) fault: Option<Fault>,
    /// Its separate connection, to be closed.
    pub(crate) apart: Option<Arc<Session>>,
    /// Why no separate connection could be opened.
    pub(crate) no_connection: Option<String>,
    /// The broker has ended its separate connection over it.
    ended_apart: bool,
    /// Its channel is as good as before, for the next batch.
    reusable: bool,
}

struct AloneFlight {
    number: u64,
    id: BatchId,
    application: Arc<str>,
    dead: bool,
    /// On a separate connection.
    apart: bool,
    since: Instant,
    /// The channel, once there is one: nothing is published before.
    channel: Arc<OnceLock<Arc<Channel>>>,
    publish: BoxFuture<'static, AloneAnswer>,
}

impl AloneFlight {
    fn is_published(&self) -> bool {
        self.channel.get().is_some()
    }

    /// Its outcome if it ends without an answer.
    fn unanswered(&self, outcome: &Outcome) -> Outcome {
        if self.is_published() {
            outcome.clone()
        } else {
            Outcome::Unsent
        }
    }
}

/// A channel on which one batch at a time is published.
#[derive(Clone)]
enum AloneChannel {
    Open(Arc<Channel>),
    /// It goes on being opened, whoever waits for it.
    Opening(Shared<BoxFuture<'static, Result<Arc<Channel>, Fault>>>),
}

impl AloneChannel {
    /// It is opened from the first poll on, within `limit`.
    fn begin(session: Arc<Session>, limit: Duration) -> AloneChannel {
        let opening = async move { Ok(Arc::new(confirm_channel(&session, limit).await?)) };
        AloneChannel::Opening(opening.boxed().shared())
    }

    async fn get(self) -> Result<Arc<Channel>, Fault> {
        match self {
            AloneChannel::Open(channel) => Ok(channel),
            AloneChannel::Opening(opening) => opening.await,
        }
    }

    fn is_open(&self) -> bool {
        matches!(self, AloneChannel::Open(_))
    }

    /// It can be used, or may be one day.
    fn is_alive(&self) -> bool {
        !matches!(self, AloneChannel::Open(channel) if !channel.status().connected())
    }
}

#[derive(Default)]
struct AloneSlot {
    /// That of the flight, unless the flight is apart: then, as without one, it waits for the next batch.
    channel: Option<AloneChannel>,
    flight: Option<AloneFlight>,
    /// Moment of the last publish on it.
    used: Option<Instant>,
}

impl AloneSlot {
    /// Goes on opening the channel. Who waits for it hears why there is none; else the next batch finds out.
    fn open(&mut self, cx: &mut Context<'_>) {
        if let Some(AloneChannel::Opening(opening)) = &mut self.channel {
            if let Poll::Ready(opened) = opening.poll_unpin(cx) {
                self.channel = opened.ok().map(AloneChannel::Open);
            }
        }
    }

    /// Takes its channel if that is open.
    fn take_open(&mut self) -> Option<Arc<Channel>> {
        let Some(AloneChannel::Open(channel)) = self.channel.take_if(|channel| channel.is_open()) else {
            return None;
        };
        Some(channel)
    }
}

/// A bounded number of channels, and the batches that wait for one.
pub(crate) struct AlonePool {
    slots: Vec<AloneSlot>,
    /// Upper bound on channels: the broker may allow fewer than the engine counts on.
    most: usize,
    /// Not published so far.
    waiting: VecDeque<Batch>,
    /// Batches that wait for a separate connection.
    suspects: VecDeque<Batch>,
    ended: Vec<AloneEnd>,
    /// Channels, open and being opened, after the last publish.
    reached: usize,
    /// The broker has ended the connection, as it allowed no more channels.
    over_limit: bool,
}

impl AlonePool {
    /// `channels`: how many the connection may have beside those for other purposes.
    pub(crate) fn new(channels: usize) -> Self {
        let most = channels.clamp(1, ALONE_CHANNELS);
        AlonePool {
            slots: Vec::new(),
            most,
            waiting: VecDeque::new(),
            suspects: VecDeque::new(),
            ended: Vec::new(),
            reached: 0,
            over_limit: false,
        }
    }

    /// If the broker has ended the connection over a channel too many, opened here or, `elsewhere`, for
    /// another purpose: how many the next connection should have. How many are allowed it says in a text
    /// only, and other connections may have a part of them.
    pub(crate) fn fewer(&self, elsewhere: bool) -> Option<usize> {
        if self.over_limit {
            return Some((self.reached / 2).max(1));
        }
        // Others may use up the limit, and the few here are not to blame.
        (elsewhere && self.reached > IDLE_CHANNELS).then(|| (self.reached / 2).max(IDLE_CHANNELS))
    }

    /// At most this many channels from now on, if that is more than before.
    pub(crate) fn allow(&mut self, most: usize) {
        self.most = self.most.max(most);
    }

    /// Nothing is unconfirmed.
    pub(crate) fn is_quiet(&self) -> bool {
        self.slots.iter().all(|slot| slot.flight.is_none()) && self.ended.is_empty()
    }

    /// Waits until a batch has ended. Safe to cancel.
    pub(crate) async fn woken(&mut self) {
        std::future::poll_fn(|cx| if self.poll(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Polls every flight: there are few, unless many queues do not confirm. Channels that are being opened
    /// for nobody go on as well.
    fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        for slot in &mut self.slots {
            slot.open(cx);
            let Some(mut flight) = slot.flight.take() else { continue };
            let Poll::Ready(answer) = Pin::new(&mut flight.publish).poll(cx) else {
                slot.flight = Some(flight);
                continue;
            };
            let AloneFlight { number, id, application, dead, apart, .. } = flight;
            if !apart && !answer.reusable {
                slot.channel = None;
            }
            self.over_limit |= !apart && answer.is_over_limit();
            self.ended.push(AloneEnd { number, id, application, dead, answer });
        }
        !self.ended.is_empty()
    }

    /// Those that have ended by now.
    pub(crate) fn take_ended(&mut self) -> Vec<AloneEnd> {
        // The caller may have been woken for something else.
        let _ = self.woken().now_or_never();
        std::mem::take(&mut self.ended)
    }

    /// Puts a batch behind those that wait.
    pub(crate) fn queue(&mut self, batch: Batch) {
        self.waiting.push_back(batch);
    }

    /// Ids of what is published and unconfirmed.
    pub(crate) fn unconfirmed(&self) -> Vec<BatchId> {
        let flights = self.slots.iter().filter_map(|slot| slot.flight.as_ref());
        flights.filter(|flight| flight.is_published()).map(|flight| flight.id).collect()
    }

    /// Nothing waits to be published.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.suspects.is_empty()
    }

    fn apart(&self) -> impl Iterator<Item = &AloneFlight> {
        self.slots.iter().filter_map(|slot| slot.flight.as_ref()).filter(|flight| flight.apart)
    }

    /// Whether a batch can be published now, if one waits.
    pub(crate) fn has_room(&self) -> bool {
        self.slots.len() < self.most || self.slots.iter().any(|slot| slot.flight.is_none())
    }

    /// Whether a batch waits that can be published now.
    pub(crate) fn owes(&self) -> bool {
        let suspect = !self.suspects.is_empty() && self.apart().count() < MAX_APART;
        self.has_room() && (suspect || !self.waiting.is_empty())
    }

    /// Publishes what waits while there are channels for it. A suspect is published on a separate connection,
    /// and waits while there are too many of those.
    pub(crate) fn publish_waiting(
        &mut self,
        session: &Arc<Session>,
        options: &Arc<Options>,
        encoder: &Encoder,
        suspects: &Suspects,
        output: &mut TurnOutput,
    ) {
        while self.owes() {
            self.publish_next(session, options, encoder, suspects, output);
        }
    }

    /// Publishes the first waiting batch. [`AlonePool::owes`] must be true.
    fn publish_next(
        &mut self,
        session: &Arc<Session>,
        options: &Arc<Options>,
        encoder: &Encoder,
        suspects: &Suspects,
        output: &mut TurnOutput,
    ) {
        debug_assert!(self.owes());
        let may_go_apart = self.apart().count() < MAX_APART;
        let suspect = if may_go_apart { self.suspects.pop_front() } else { None };
        let Some(batch) = suspect.or_else(|| self.waiting.pop_front()) else { return };
        let Some(message) = encoder.encoded(&batch, clock::wall_us(), output) else { return };
        let (now, id) = (Instant::now(), message.id);
        let apart = suspects.has(id, &batch.application, now);
        if apart && !may_go_apart {
            return self.suspects.push_back(batch);
        }
        // An open channel saves a round trip.
        let idle =
            |is: fn(&AloneSlot) -> bool| self.slots.iter().position(|slot| slot.flight.is_none() && is(slot));
        let open = idle(|slot| slot.channel.as_ref().is_some_and(AloneChannel::is_open));
        let begun = idle(|slot| slot.channel.is_some());
        let free = idle(|slot| slot.channel.is_none());
        let place = open.or(begun).filter(|_| !apart).or(free).or_else(|| {
            if self.slots.len() >= self.most {
                return open.or(begun);
            }
            self.slots.push(AloneSlot::default());
            Some(self.slots.len() - 1)
        });
        let Some(slot) = place.and_then(|place| self.slots.get_mut(place)) else {
            return output.settle(batch.number, Outcome::Unsent);
        };
        slot.used = Some(now);
        let opened = Arc::new(OnceLock::new());
        let (session, options, channel) = (Arc::clone(session), Arc::clone(options), Arc::clone(&opened));
        let (number, application, dead) =
            (batch.number, Arc::clone(&batch.application), batch.dead.is_some());
        let prepared = PreparedBatch { message, batch };
        let publish = if apart {
            publish_apart(session, options, channel, prepared).boxed()
        } else {
            let own = slot.channel.take().filter(AloneChannel::is_alive);
            let own =
                own.unwrap_or_else(|| AloneChannel::begin(Arc::clone(&session), options.timeouts.connect));
            slot.channel = Some(own.clone());
            publish_alone(session, options, own, channel, prepared).boxed()
        };
        slot.flight =
            Some(AloneFlight { number, id, application, dead, apart, since: now, channel: opened, publish });
        self.reached = self.slots.iter().filter(|slot| slot.channel.is_some()).count();
    }

    /// Gives up a batch that is unanswered or waits; returns its channel.
    pub(crate) fn give_up(&mut self, number: u64, output: &mut TurnOutput) -> Option<Arc<Channel>> {
        for waiting in [&mut self.waiting, &mut self.suspects] {
            if let Some(place) = waiting.iter().position(|batch| batch.number == number) {
                output.unsent(waiting.remove(place));
                return None;
            }
        }
        let is_it =
            |slot: &&mut AloneSlot| slot.flight.as_ref().is_some_and(|flight| flight.number == number);
        let slot = self.slots.iter_mut().find(is_it)?;
        let flight = slot.flight.take()?;
        output.settle(number, flight.unanswered(&Outcome::Overdue));
        let channel = flight.channel.get().cloned();
        if channel.is_some() && !flight.apart {
            slot.channel = None;
        }
        channel
    }

    /// The batch that has waited longest for its confirm, if for longer than `limit`. Times count from
    /// `not_before` at the earliest.
    pub(crate) fn oldest(&self, limit: Duration, not_before: Instant) -> Option<u64> {
        self.oldest_of(|_| true, limit, not_before)
    }

    /// The batch that was published longest ago, if its confirm is missing for longer than `limit`. Times
    /// count from `not_before` at the earliest.
    pub(crate) fn overdue(&self, limit: Duration, not_before: Instant) -> Option<u64> {
        self.oldest_of(AloneFlight::is_published, limit, not_before)
    }

    fn oldest_of(
        &self,
        counts: impl Fn(&AloneFlight) -> bool,
        limit: Duration,
        not_before: Instant,
    ) -> Option<u64> {
        let flights = self.slots.iter().filter_map(|slot| slot.flight.as_ref());
        let oldest = flights.filter(|flight| counts(flight)).min_by_key(|flight| flight.since)?;
        (oldest.since.max(not_before).elapsed() >= limit).then_some(oldest.number)
    }

    /// The batch that has occupied a separate connection for longest, if that is too long and another batch
    /// waits for one. Times count from `not_before` at the earliest.
    pub(crate) fn oldest_apart(&self, not_before: Instant) -> Option<u64> {
        if self.suspects.is_empty() || self.apart().count() < MAX_APART {
            return None;
        }
        let oldest = self.apart().filter(|flight| flight.is_published()).min_by_key(|flight| flight.since)?;
        (oldest.since.max(not_before).elapsed() >= APART_FOR).then_some(oldest.number)
    }

    /// A channel that has been idle for long, beyond the few that are kept.
    pub(crate) fn take_surplus(&mut self) -> Option<Arc<Channel>> {
        let is_idle = |slot: &&mut AloneSlot| {
            slot.flight.is_none() && slot.channel.as_ref().is_some_and(AloneChannel::is_open)
        };
        if self.slots.len() <= IDLE_CHANNELS {
            return None;
        }
        let idle: Vec<&mut AloneSlot> = self.slots.iter_mut().filter(is_idle).collect();
        let count = idle.len();
        let is_old = |slot: &&mut AloneSlot| slot.used.is_some_and(|at| at.elapsed() >= IDLE_FOR);
        idle.into_iter().filter(|_| count > IDLE_CHANNELS).find(is_old)?.take_open()
    }

    /// The connection has ended: settles unconfirmed batches with `outcome`, and waiting ones as unsent.
    pub(crate) fn fail(&mut self, outcome: &Outcome, output: &mut TurnOutput) {
        for end in self.take_ended() {
            output.settle(end.number, end.answer.outcome);
        }
        for flight in self.slots.iter_mut().filter_map(|slot| slot.flight.take()) {
            output.settle(flight.number, flight.unanswered(outcome));
        }
        output.unsent(self.waiting.drain(..).chain(self.suspects.drain(..)));
    }

    /// Open channels, to be closed.
    pub(crate) fn take_channels(&mut self) -> Vec<Arc<Channel>> {
        self.slots.iter_mut().filter_map(AloneSlot::take_open).collect()
    }
}

/// A batch that waits for its channel, and its message.
struct PreparedBatch {
    message: PublishMessage,
    batch: Batch,
}

impl PreparedBatch {
    /// It is published now, and records that: before, it may have waited for long, or be given up.
    fn begun(self, figures: &Figures) -> PublishMessage {
        let PreparedBatch { mut message, batch } = self;
        let mut output = TurnOutput::default();
        message.begin(&batch, clock::wall_us(), &mut output);
        output.record(figures);
        message
    }
}

/// Publishes on a separate connection, which is opened for it.
async fn publish_apart(
    session: Arc<Session>,
    options: Arc<Options>,
    opened: Arc<OnceLock<Arc<Channel>>>,
    prepared: PreparedBatch,
) -> AloneAnswer {
    let (limit, dead) = (options.timeouts.connect, prepared.batch.dead.is_some());
    let mut answer = match session.another(&options.amqp, limit, APART).await {
        Ok(own) => {
            let own = Arc::new(own);
            let channel = AloneChannel::begin(Arc::clone(&own), limit);
            let answer = publish_alone(Arc::clone(&own), options, channel, opened, prepared).await;
            AloneAnswer { apart: Some(own), ..answer }
        }
        // The broker may allow no more connections, or be gone.
        Err(fault) => {
            AloneAnswer { no_connection: Some(fault.text), ..AloneAnswer::of(Outcome::Unsent, None) }
        }
    };
    answer.fault = match answer.fault {
        // Once the message is published, nothing else on the connection can be the cause.
        Some(fault) if fault.has_suspects() && answer.outcome != Outcome::Unsent => {
            answer.ended_apart = true;
            // The broker's failure may pass, and a lost connection is no attempt that counts. A dead letter
            // that is refused waits alone: its queue is not parked.
            answer.outcome = if fault.is_crash() && !dead {
                Outcome::Failed(fault.text.into())
            } else {
                Outcome::Refused(fault.text.into())
            };
            None
        }
        other => other.filter(Fault::is_unavailable),
    };
    if matches!(answer.outcome, Outcome::Unknown | Outcome::Unsent) {
        tokio::time::sleep(PAUSE).await;
    }
    answer
}

/// The wait for the confirm is unbounded here: the owner of the pool gives up what waits for too long, or is
/// in the way.
async fn publish_alone(
    session: Arc<Session>,
    options: Arc<Options>,
    channel: AloneChannel,
    opened: Arc<OnceLock<Arc<Channel>>>,
    prepared: PreparedBatch,
) -> AloneAnswer {
    let id = prepared.message.id;
    let ended = AloneAnswer::of;
    let channel = match channel.get().await {
        Ok(channel) => channel,
        Err(fault) => return ended(Outcome::Unsent, Some(fault)),
    };
    // Set here only, once.
    let _ = opened.set(Arc::clone(&channel));
    let outcome = match prepared.begun(&options.figures).publish(Arc::clone(&channel)).await {
        Ok(Confirmation::Ack(None)) => Outcome::Confirmed(id),
        Ok(Confirmation::Ack(Some(back)) | Confirmation::Nack(Some(back))) => {
            Outcome::Returned(format!("{} {}", back.reply_code, back.reply_text).into())
        }
        Ok(Confirmation::Nack(None)) => Outcome::Nacked,
        Ok(Confirmation::NotRequested) => {
            return ended(Outcome::Unknown, Some(Fault::lost("the channel does not confirm")));
        }
        Err(error) => {
            let fault = Fault::from(error);
            let text = fault.text.as_str().into();
            return if fault.is_unavailable() {
                ended(Outcome::Unavailable(text), Some(fault))
            } else if fault.closes_channel_only() {
                ended(Outcome::Refused(text), None)
            } else if fault.kind == FaultKind::AfterEnd && session.is_connected() {
                ended(Outcome::Unknown, None)
            } else {
                ended(Outcome::Unknown, Some(fault))
            };
        }
    };
    AloneAnswer { reusable: true, ..ended(outcome, None) }
}

impl AloneAnswer {
    fn of(outcome: Outcome, fault: Option<Fault>) -> AloneAnswer {
        AloneAnswer { outcome, fault, apart: None, no_connection: None, ended_apart: false, reusable: false }
    }

    /// It was alone on a separate connection, and the broker has ended that, or its channel, over it.
    pub(crate) fn is_culprit(&self) -> bool {
        self.ended_apart || (self.apart.is_some() && matches!(self.outcome, Outcome::Refused(_)))
    }

    /// It has no channel, since the broker allows no more.
    fn is_over_limit(&self) -> bool {
        self.outcome == Outcome::Unsent && self.fault.as_ref().is_some_and(Fault::is_over_limit)
    }

    /// The broker has reported the outcome.
    pub(crate) fn is_known(&self) -> bool {
        !matches!(self.outcome, Outcome::Unknown | Outcome::Unsent | Outcome::Overdue)
    }

    /// The broker has confirmed it.
    pub(crate) fn is_confirmed(&self) -> bool {
        matches!(self.outcome, Outcome::Confirmed(_))
    }
}
