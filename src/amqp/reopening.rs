//! A publish channel that is opened again after its end, and the batches that wait for it. When it is opened,
//! and what an end means, its owner decides.

use super::fault::Fault;
use super::message::{Encoder, TurnOutput};
use super::publish_channel::PublishChannel;
use super::topology::Note;
use futures_util::future::BoxFuture;
use lapin::Channel;
use std::collections::VecDeque;
use std::sync::Arc;
use tidegate_types::{Batch, BatchId, Outcome};
use tidegate_wire::batch_id_of;
use tokio::time::Instant;

/// A channel, and notes on the exchange that it publishes to.
pub(crate) type Opening = BoxFuture<'static, Result<(Channel, Vec<Note>), Fault>>;

enum ReopeningState {
    Closed,
    Opening(Opening),
    Open(Box<PublishChannel>),
}

/// A channel at most, and a queue of batches that outlives it.
pub(crate) struct ReopeningChannel {
    state: ReopeningState,
    /// Result of [`ReopeningState::Opening`].
    opened: Option<Result<(Channel, Vec<Note>), Fault>>,
    /// Not published so far, in order of hand-over.
    waiting: VecDeque<Batch>,
}

impl ReopeningChannel {
    pub(crate) fn closed() -> Self {
        ReopeningChannel { state: ReopeningState::Closed, opened: None, waiting: VecDeque::new() }
    }

    pub(crate) fn of(channel: Channel) -> Self {
        ReopeningChannel {
            state: ReopeningState::Open(Box::new(PublishChannel::new(channel, batch_id_of))),
            ..ReopeningChannel::closed()
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state, ReopeningState::Closed)
    }

    /// Nothing is unconfirmed.
    pub(crate) fn is_quiet(&self) -> bool {
        match &self.state {
            ReopeningState::Open(channel) => channel.is_idle(),
            ReopeningState::Closed | ReopeningState::Opening(_) => true,
        }
    }

    /// Nothing waits to be published.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// There is a channel, and it can be published on.
    pub(crate) fn is_open(&self) -> bool {
        match &self.state {
            ReopeningState::Open(channel) => channel.is_open(),
            ReopeningState::Closed | ReopeningState::Opening(_) => false,
        }
    }

    /// Puts a batch behind those that wait.
    pub(crate) fn queue(&mut self, batch: Batch) {
        self.waiting.push_back(batch);
    }

    /// Publishes everything that waits, if there is a channel for it.
    pub(crate) fn publish_waiting(&mut self, encoder: &Encoder, output: &mut TurnOutput) {
        let channel = match &mut self.state {
            ReopeningState::Open(channel) if channel.is_open() => channel,
            ReopeningState::Open(_) | ReopeningState::Closed | ReopeningState::Opening(_) => return,
        };
        let waiting = std::mem::take(&mut self.waiting);
        for message in waiting.iter().filter_map(|batch| encoder.message(batch, output)) {
            channel.publish(message);
        }
    }

    /// Takes those of the waiting batches that are to be published alone: as the engine orders, or as
    /// `is_suspect` says.
    pub(crate) fn take_alone(&mut self, is_suspect: impl Fn(&Batch) -> bool) -> VecDeque<Batch> {
        let (alone, ordinary) = self.waiting.drain(..).partition(|batch| batch.alone || is_suspect(batch));
        self.waiting = ordinary;
        alone
    }

    /// Settles a batch as unsent if it waits here; false: it does not.
    pub(crate) fn give_up(&mut self, number: u64, output: &mut TurnOutput) -> bool {
        let Some(place) = self.waiting.iter().position(|batch| batch.number == number) else { return false };
        output.unsent(self.waiting.remove(place));
        true
    }

    /// Settles everything that waits with `outcome`.
    pub(crate) fn settle_waiting(&mut self, outcome: &Outcome, output: &mut TurnOutput) {
        self.waiting.drain(..).for_each(|batch| output.settle(batch.number, outcome.clone()));
    }

    pub(crate) fn open(&mut self, opening: Opening) {
        self.state = ReopeningState::Opening(opening);
    }

    /// Waits until there is something to [`ReopeningChannel::collect`] or [`ReopeningChannel::take_opened`].
    /// Safe to cancel.
    pub(crate) async fn woken(&mut self) {
        match &mut self.state {
            ReopeningState::Closed => std::future::pending().await,
            ReopeningState::Opening(opening) => {
                let done = opening.await;
                self.opened = Some(done);
                self.state = ReopeningState::Closed;
            }
            ReopeningState::Open(channel) => channel.woken().await,
        }
    }

    /// Takes the result of an opening that has ended, with its notes; `None`: none has ended.
    ///
    /// # Errors
    /// Why there is no channel.
    pub(crate) fn take_opened(&mut self) -> Result<Option<Vec<Note>>, Fault> {
        let Some(opened) = self.opened.take() else { return Ok(None) };
        let (channel, notes) = opened?;
        self.state = ReopeningState::Open(Box::new(PublishChannel::new(channel, batch_id_of)));
        Ok(Some(notes))
    }

    /// Same as [`PublishChannel::collect`].
    pub(crate) fn collect(&mut self, output: &mut TurnOutput) -> Result<(), Fault> {
        match &mut self.state {
            ReopeningState::Open(channel) => channel.collect(output),
            ReopeningState::Closed | ReopeningState::Opening(_) => Ok(()),
        }
    }

    /// Ids of what is unconfirmed, in no order.
    pub(crate) fn unconfirmed(&self) -> Vec<BatchId> {
        match &self.state {
            ReopeningState::Open(channel) => channel.unconfirmed(),
            ReopeningState::Closed | ReopeningState::Opening(_) => Vec::new(),
        }
    }

    /// The moment of the oldest unconfirmed publish.
    pub(crate) fn oldest(&mut self) -> Option<Instant> {
        match &mut self.state {
            ReopeningState::Open(channel) => channel.oldest(),
            ReopeningState::Closed | ReopeningState::Opening(_) => None,
        }
    }

    /// Abandons the channel, if there is one, and settles everything unconfirmed on it with `outcome`.
    /// Waiting batches stay.
    pub(crate) fn leave(&mut self, outcome: &Outcome, output: &mut TurnOutput) -> Option<Arc<Channel>> {
        match std::mem::replace(&mut self.state, ReopeningState::Closed) {
            ReopeningState::Open(channel) => Some(channel.end(outcome, output)),
            ReopeningState::Closed | ReopeningState::Opening(_) => None,
        }
    }
}
