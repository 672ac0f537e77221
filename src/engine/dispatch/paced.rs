//! Batches that wait for the rate of their application, and until when.

use super::Dispatch;
use crate::ids::QueueId;
use crate::live::LiveItems;
use crate::mutant::{mutated, Mutant};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use tidegate_types::Now;

/// The step that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PacedStep {
    /// The forming of the next batch.
    Form,
    /// The launch of a formed batch whose payloads are complete.
    Leave,
}

/// Queues that wait for their rates, by the time of the next check, monotonic ms.
#[derive(Debug, Default)]
pub(crate) struct PacedQueues(BTreeSet<(u64, QueueId, PacedStep)>);

impl PacedQueues {
    /// Time of the next check.
    pub(super) fn next(&self) -> Option<u64> {
        self.0.first().map(|(at, ..)| *at)
    }

    /// Checks the formed batches of the queue at once: their wait may have ended or become shorter.
    pub(crate) fn recheck(&mut self, queue: QueueId) {
        self.0.insert((0, queue, PacedStep::Leave));
    }

    /// A formed batch of the queue may leave at this time.
    pub(super) fn wait_to_leave(&mut self, queue: QueueId, at: u64) {
        self.0.insert((at, queue, PacedStep::Leave));
    }

    /// The next batch of the queue may be formed at `until`, and no longer at `before`.
    fn wait_to_form(&mut self, queue: QueueId, before: Option<u64>, until: Option<u64>) {
        if let Some(at) = before {
            self.0.remove(&(at, queue, PacedStep::Form));
        }
        self.0.extend(until.map(|at| (at, queue, PacedStep::Form)));
    }

    /// Puts queues whose next batch may be formed now into the run queue, and returns those of which a formed
    /// batch may leave.
    pub(crate) fn end(&mut self, live: &mut LiveItems, now: Now) -> Vec<QueueId> {
        let mut leave = Vec::new();
        while let Some((_, queue, step)) = self.0.first().copied().filter(|(at, ..)| *at <= now.mono) {
            if mutated(Mutant::HeldForEver) {
                break;
            }
            self.0.pop_first();
            if live.queues.get(queue).is_none() {
                continue;
            }
            match step {
                PacedStep::Form => {
                    live.queues.at(queue).at_work().pace_mut().wait(None);
                    live.queues.at(queue).requeue();
                }
                PacedStep::Leave => leave.push(queue),
            }
        }
        leave
    }
}

impl Dispatch {
    /// Whether the queue's next batch waits for its rate. The queue is checked again when the batch may
    /// leave.
    pub(super) fn paces(&mut self, live: &mut LiveItems, queue: QueueId, now: Now) -> bool {
        let active = live.queues.at(queue).at_work();
        let again = active.flights().first_to_resend().and_then(|number| self.flights.get(number));
        let again = again.map(|flight| flight.rows.len() as u64);
        let pace = active.pace_mut();
        let size = again.unwrap_or(pace.wanted());
        let until = Some(pace.ready_at(size)).filter(|at| *at > now.mono);
        let before = pace.wait(until);
        if before != until {
            self.paced.wait_to_form(queue, before, until);
        }
        until.is_some()
    }
}
