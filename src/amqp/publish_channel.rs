//! One channel with many unconfirmed publishes: their confirms, and the reason when the channel ends.

use super::confirm_tracker::{BrokerAnswer, ConfirmTracker, Returned};
use super::confirms::Confirms;
use super::fault::{EndReason, Fault, FaultKind, CAUSE_LIMIT};
use super::message::{us_since, PublishMessage, TurnOutput};
use lapin::message::BasicReturnMessage;
use lapin::{BasicProperties, Channel, Confirmation};
use std::sync::Arc;
use std::time::Duration;
use tidegate_types::{BatchId, Outcome};
use tokio::time::Instant;

pub(crate) struct PublishChannel {
    /// Each publish under way holds it; cloning lapin's own handle is several times as expensive.
    channel: Arc<Channel>,
    /// Moments in the tracker count from here, in us.
    epoch: Instant,
    tracker: ConfirmTracker,
    confirms: Confirms,
    /// Reads the id of a message that was returned.
    id_of: fn(&BasicProperties) -> Option<BatchId>,
    /// When the channel was first seen closed without a reason.
    closed_since: Option<Instant>,
}

impl PublishChannel {
    /// `id_of` reads the id that its messages carry.
    pub(crate) fn new(channel: Channel, id_of: fn(&BasicProperties) -> Option<BatchId>) -> Self {
        PublishChannel {
            channel: Arc::new(channel),
            epoch: Instant::now(),
            tracker: ConfirmTracker::default(),
            confirms: Confirms::default(),
            id_of,
            closed_since: None,
        }
    }

    /// Nothing is unconfirmed.
    pub(crate) fn is_idle(&self) -> bool {
        self.tracker.is_empty()
    }

    /// It can be published on.
    pub(crate) fn is_open(&self) -> bool {
        self.closed_since.is_none() && self.channel.status().connected()
    }

    /// Waits until there is something to [`PublishChannel::collect`]. Safe to cancel.
    pub(crate) async fn woken(&mut self) {
        self.confirms.woken().await;
    }

    pub(crate) fn publish(&mut self, message: PublishMessage) {
        let slot = self.tracker.publish(message.number, message.id, us_since(self.epoch));
        tidegate_common::failpoint!("before-publish");
        self.confirms.start(slot, Box::pin(message.publish(self.channel.clone())));
        tidegate_common::failpoint!("after-publish");
    }

    /// Takes every answer there is and judges them (see [`super::confirm_tracker`]).
    ///
    /// # Errors
    /// The channel has ended: with the reason if one came within [`CAUSE_LIMIT`], else as
    /// [`FaultKind::AfterEnd`]. [`FaultKind::Lost`] with the channel still open: its answers cannot be
    /// trusted.
    pub(crate) fn collect(&mut self, output: &mut TurnOutput) -> Result<(), Fault> {
        let PublishChannel { confirms, tracker, epoch, id_of, .. } = self;
        let mut reason = EndReason::default();
        let mut stray = false;
        confirms.drain(|slot, result| {
            let (answer, back) = match result {
                Ok(Confirmation::Ack(back)) => (BrokerAnswer::Ack, back),
                Ok(Confirmation::Nack(back)) => (BrokerAnswer::Nack, back),
                Ok(Confirmation::NotRequested) => {
                    reason.hear(Fault::lost("the channel does not confirm"));
                    return;
                }
                Err(error) => {
                    reason.hear(Fault::from(error));
                    return;
                }
            };
            stray |= tracker.answer(slot, answer, back.map(|back| returned(&back, *id_of))).is_err();
        });
        // A return that matches no publish makes every ack of this round doubtful: all of them stay unknown.
        if stray {
            return Err(Fault::lost("the broker returned a message that is not in flight"));
        }
        let now = us_since(*epoch);
        let TurnOutput { settled, confirm_us, .. } = output;
        tracker.judge(settled, |at| confirm_us.push(now.saturating_sub(at)));
        tidegate_common::failpoint!("after-confirm", if output.has_confirms());
        match reason.result() {
            Err(fault) if fault.kind != FaultKind::AfterEnd => Err(fault),
            Err(_) => self.check_closed(true),
            Ok(()) => self.check_closed(false),
        }
    }

    /// Detects a closed channel. Its unconfirmed publishes report the reason, a little later.
    fn check_closed(&mut self, seen: bool) -> Result<(), Fault> {
        if !seen && self.closed_since.is_none() && self.channel.status().connected() {
            return Ok(());
        }
        let since = *self.closed_since.get_or_insert_with(Instant::now);
        if self.is_idle() || since.elapsed() >= CAUSE_LIMIT {
            return Err(Fault {
                kind: FaultKind::AfterEnd,
                ..Fault::lost("the publishing channel was lost")
            });
        }
        Ok(())
    }

    /// Ids of what is unconfirmed, in no order.
    pub(crate) fn unconfirmed(&self) -> Vec<BatchId> {
        self.tracker.ids().collect()
    }

    /// The moment of the oldest unconfirmed publish.
    pub(crate) fn oldest(&mut self) -> Option<Instant> {
        self.tracker.oldest().map(|at| self.epoch + Duration::from_micros(at))
    }

    /// Settles everything unconfirmed with `outcome`, and returns the channel.
    pub(crate) fn end(mut self, outcome: &Outcome, output: &mut TurnOutput) -> Arc<Channel> {
        output.settled.extend(self.tracker.fail(outcome));
        self.channel
    }
}

fn returned(back: &BasicReturnMessage, id_of: fn(&BasicProperties) -> Option<BatchId>) -> Returned {
    Returned { id: id_of(&back.properties), text: format!("{} {}", back.reply_code, back.reply_text) }
}
