//! What waits for the rate of its application, and until when.

use super::Dispatch;
use crate::engine::ids::QueueId;
use crate::engine::live::LiveItems;
use crate::engine::mutant::{mutated, Mutant};
use crate::engine::types::Now;
use std::collections::BTreeSet;

/// What it is that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PacedStep {
    /// The next batch is not formed before.
    Form,
    /// One that has been formed, and has its payloads by now, does not leave before.
    Leave,
}

/// Queues that wait for their rates, by when they are looked at again, monotonic ms.
#[derive(Debug, Default)]
pub(in crate::engine) struct PacedQueues(BTreeSet<(u64, QueueId, PacedStep)>);

impl PacedQueues {
    /// When the next of them is looked at.
    pub(super) fn next(&self) -> Option<u64> {
        self.0.first().map(|(at, ..)| *at)
    }

    /// What has been formed of the queue may not wait any more, or not for so long.
    pub(in crate::engine) fn recheck(&mut self, queue: QueueId) {
        self.0.insert((0, queue, PacedStep::Leave));
    }

    /// A batch that has been formed may leave then.
    pub(super) fn wait_to_leave(&mut self, queue: QueueId, at: u64) {
        self.0.insert((at, queue, PacedStep::Leave));
    }

    /// The next batch of the queue may be formed then, and not at `before`.
    fn wait_to_form(&mut self, queue: QueueId, before: Option<u64>, until: Option<u64>) {
        if let Some(at) = before {
            self.0.remove(&(at, queue, PacedStep::Form));
        }
        self.0.extend(until.map(|at| (at, queue, PacedStep::Form)));
    }

    /// Queues whose next batch may be formed by now stand in line again; and those of which one that has
    /// been formed may leave.
    pub(in crate::engine) fn end(&mut self, live: &mut LiveItems, now: Now) -> Vec<QueueId> {
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
    /// The queue's next batch waits for its rate. It is looked at again when that may leave.
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
