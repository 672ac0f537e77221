//! A batch that is sent again is sent unchanged, and in its former order.

use super::model::{Flight, Model, State};
use std::sync::Arc;
use tidegate_types::*;

/// A batch of a customer that is to be sent again.
pub(super) struct Again {
    application: String,
    customer: Option<Arc<str>>,
    /// Its items that wait for that.
    items: Vec<u64>,
    /// The call in which its attempt ended.
    call: usize,
}

impl Model {
    /// An attempt has ended. A failed batch goes back to its queue, with all batches that wait there.
    pub(super) fn ended(&mut self, number: u64, flight: &Flight, outcome: &Outcome) {
        let again = match outcome {
            // A refused batch that was sent alone is split.
            Outcome::Unknown | Outcome::Unsent | Outcome::Refused(_) => true,
            Outcome::Overdue => !flight.alone,
            Outcome::Confirmed(_) | Outcome::Nacked | Outcome::Returned(_) => false,
            Outcome::Failed(_) | Outcome::Unavailable(_) => false,
        };
        if flight.dead || matches!(outcome, Outcome::Confirmed(_)) {
            return;
        }
        if !again {
            return self.again.retain(|_, other| other.application != flight.application);
        }
        let customer =
            flight.items.first().and_then(|seq| self.asks[self.lives[seq].ask].new.customer.clone());
        let again = Again {
            application: flight.application.clone(),
            customer: customer.map(|name| (*name).into()),
            items: flight.items.clone(),
            call: self.call,
        };
        // Its other half may wait under the same number.
        let half = self.again.remove(&(flight.first, number)).map_or(vec![], |half| half.items);
        let items = again.items.iter().chain(&half).copied().collect();
        self.again.insert((flight.first, number), Again { items, ..again });
    }

    /// Removes items that no longer wait, or wait for their time: after the clock is set back, an own time is awaited
    /// anew. Items that the broker redelivers are not sent again.
    pub(super) fn leave_again(&mut self) {
        let (lives, now) = (&self.lives, self.now);
        self.again.values_mut().for_each(|again| {
            let call = again.call;
            again.items.retain(|seq| {
                let life = &lives[seq];
                let waits = life.state == State::Waiting && life.retimed_call < call && !life.orphaned;
                waits && life.due <= now.wall
            });
        });
        self.again.retain(|_, again| !again.items.is_empty());
    }

    /// No item of its customer that was sent earlier may wait to be sent again. Without a store the end of a waiting item
    /// is not visible. Returns the number under which its items were sent first; a half may have another.
    pub(super) fn check_again(&mut self, batch: &Batch) -> u64 {
        let seqs: Vec<u64> = batch.items.iter().map(|item| item.seq).collect();
        let its = |again: &Again| again.items.iter().any(|seq| seqs.contains(seq));
        let was = self.again.iter().find(|(_, again)| its(again)).map(|((first, _), _)| *first);
        let first = was.unwrap_or(batch.number);
        self.again.values_mut().for_each(|again| again.items.retain(|seq| !seqs.contains(seq)));
        self.leave_again();
        let Some(customer) = batch.customer.as_deref().filter(|_| batch.dead.is_none() && self.durable)
        else {
            return first;
        };
        // A cancel that is under way may be about to take what was not sent, and not what may have arrived.
        let stays = |seq: &u64| !self.commands.values().any(|asked| asked.covers(self, *seq));
        let before = self.again.range(..(first, 0)).find(|(_, again)| {
            let its = *again.application == *batch.application && again.customer.as_deref() == Some(customer);
            its && again.items.iter().any(stays)
        });
        if let Some(((other, _), again)) = before {
            panic!(
                "{first} of {customer} is sent before {other}: {:?} wait since {}",
                again.items, again.call
            );
        }
        first
    }
}
