//! A publish channel that is opened again after its end, and the batches that wait for it.

use super::fault::Fault;
use super::message::TurnOutput;
use super::publish_channel::PublishChannel;
use super::topology::Note;
use futures_util::future::BoxFuture;
use lapin::Channel;
use std::collections::VecDeque;
use std::sync::Arc;
use tidegate_types::{Batch, BatchId, Outcome};
use tokio::time::Instant;

/// A channel, and notes on the exchange that it publishes to.
pub(crate) type Opening = BoxFuture<'static, Result<(Channel, Vec<Note>), Fault>>;

enum ReopeningState {
    Closed,
    Opening(Opening),
    Open(Box<PublishChannel>),
}

pub(crate) struct ReopeningChannel {
    state: ReopeningState,
    /// Result of [`ReopeningState::Opening`].
    opened: Option<Result<(Channel, Vec<Note>), Fault>>,
    /// Not published so far.
    pub(crate) waiting: VecDeque<Batch>,
}

impl ReopeningChannel {
    pub(crate) fn closed() -> Self {
        ReopeningChannel { state: ReopeningState::Closed, opened: None, waiting: VecDeque::new() }
    }

    pub(crate) fn of(channel: Channel) -> Self {
        ReopeningChannel {
            state: ReopeningState::Open(Box::new(PublishChannel::new(channel))),
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

    /// The channel, if it can be published on.
    pub(crate) fn channel(&mut self) -> Option<&mut PublishChannel> {
        match &mut self.state {
            ReopeningState::Open(channel) if channel.is_open() => Some(channel),
            ReopeningState::Open(_) | ReopeningState::Closed | ReopeningState::Opening(_) => None,
        }
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
        self.state = ReopeningState::Open(Box::new(PublishChannel::new(channel)));
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
