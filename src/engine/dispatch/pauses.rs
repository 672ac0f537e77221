//! Queues that are left alone for a while, and probes that are out for long.

use super::{Dispatch, LATE_PROBE_MS};
use crate::engine::ids::QueueId;
use crate::engine::mutant::{mutated, Mutant};
use crate::engine::stock::Stock;
use crate::engine::types::Now;

impl Dispatch {
    /// The queue is left alone until then, monotonic.
    pub(in crate::engine) fn begin_backoff(&mut self, queue: QueueId, until: u64) {
        self.backoffs.insert((until, queue));
    }

    /// Queues whose pause has ended.
    pub(in crate::engine) fn end_backoffs(&mut self, stock: &mut Stock, now: Now) {
        if mutated(Mutant::ParkedForEver) {
            return;
        }
        while let Some((until, queue)) = self.backoffs.first().copied().filter(|(at, _)| *at <= now.mono) {
            self.backoffs.pop_first();
            self.end_backoff(stock, queue, until);
        }
    }

    fn end_backoff(&mut self, stock: &mut Stock, queue: QueueId, until: u64) {
        if stock.queues().get(queue).is_some() && stock.queues_mut().live(queue).health_mut().end_pause(until)
        {
            self.look_again(stock, queue);
        }
    }

    /// A command ends the pause of a queue now.
    pub(in crate::engine) fn retry_now(&mut self, stock: &mut Stock, queue: QueueId, until: u64) {
        self.backoffs.remove(&(until, queue));
        self.end_backoff(stock, queue, until);
    }

    /// Queues whose probe has been out for long, and that were not known to be hindered.
    pub(in crate::engine) fn late_probes(&self, stock: &Stock, now: Now) -> Vec<QueueId> {
        let late = self.channels.taken().filter(|(_, since)| since + LATE_PROBE_MS <= now.mono);
        let queues = late.filter_map(|(number, _)| self.flights.get(&number).map(|flight| flight.queue));
        queues.filter(|queue| stock.queues()[*queue].live().is_some_and(|live| !live.is_hindered())).collect()
    }

    /// When something is to be done without any event, monotonic.
    pub(in crate::engine) fn deadline(&self, stock: &Stock) -> Option<u64> {
        let backoff = self.backoffs.first().map(|(at, _)| *at);
        let waits = || self.channels.has_waiting() || self.first_suspect(stock).is_some();
        let channel = self.channels.oldest_of_all().filter(|_| self.egress.has_slot() && waits());
        let channel = channel.map(|since| since + self.confirm_timeout);
        let late = self.channels.taken().filter(|(number, _)| {
            let queue = self.flights.get(number).and_then(|flight| stock.queues().get(flight.queue));
            queue.and_then(|queue| queue.live()).is_some_and(|live| !live.is_hindered())
        });
        let late = late.map(|(_, since)| since + LATE_PROBE_MS).min();
        [backoff, channel, late].into_iter().flatten().min()
    }
}
