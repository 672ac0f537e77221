//! The state of items as lists and look-ups report it.

use super::Core;
use crate::ids::{ItemId, QueueId};
use crate::items::{reported_due, Residence, Stage};
use crate::mutant::{mutated, Mutant};
use alloc::vec::Vec;
use tidegate_types::event::Stored;
use tidegate_types::{Listed, ListedStage, Now};

/// Describes an item in memory.
pub(crate) fn near(core: &Core, id: ItemId) -> Listed {
    let item = &core.live.items()[id];
    let (application, customer) = core.live.row(item).address();
    let stage = if core.is_in_flight(id) {
        ListedStage::InFlight
    } else {
        match item.stage() {
            Stage::Scheduled | Stage::Windowed { .. } => ListedStage::Waiting,
            Stage::Ready | Stage::Flying(_) | Stage::Detached => stage_of_due(core, item.queue()),
        }
    };
    Listed {
        stage,
        key: item.place(),
        accepted_due: item.accepted_due(),
        due: reported_due(item),
        application,
        customer,
        received: item.received(),
        attempts: item.tries().attempts,
        retry: item.tries().retry,
        last_error: item.tries().last_error.clone(),
        properties: item.content().cloned(),
    }
}

/// State of an item that is due and not in flight.
fn stage_of_due(core: &Core, queue: QueueId) -> ListedStage {
    let queue = &core.live.queues[queue];
    if queue.is_failing() || (queue.is_paused() && mutated(Mutant::PausedToldParked)) {
        ListedStage::Parked
    } else {
        ListedStage::Waiting
    }
}

/// Describes an item that is in the store only.
pub(crate) fn far(core: &Core, stored: Stored, now: Now) -> Listed {
    let is_due = stored.place().due <= now.wall || mutated(Mutant::FarToldParked);
    let queue = core.live.queues.find(stored.queue()).filter(|_| is_due);
    Listed {
        stage: queue.map_or(ListedStage::Waiting, |queue| stage_of_due(core, queue)),
        key: stored.place(),
        accepted_due: stored.accepted_due,
        due: stored.due,
        application: stored.application,
        customer: stored.customer,
        received: stored.received,
        attempts: stored.attempts,
        retry: stored.retry,
        last_error: stored.last_error,
        properties: stored.content,
    }
}

/// Items that only the broker keeps, for lists.
pub(crate) fn pending(core: &Core) -> Vec<ItemId> {
    let is_pending = |id: &ItemId| {
        let item = &core.live.items()[*id];
        matches!(item.residence(), Residence::Pending(_)) && item.letter().is_none()
    };
    if core.live.shared.journal.is_durable() {
        core.live
            .shared
            .deferred()
            .filter(|id| core.live.items().get(*id).is_some())
            .filter(is_pending)
            .collect()
    } else {
        core.live.items().ids().filter(is_pending).collect()
    }
}
