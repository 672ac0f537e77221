//! The ranges of the store that a command scans.

use super::scope::Scope;
use super::Kind;
use crate::core::Core;
use crate::ids::QueueId;
use crate::mutant::{mutated, Mutant};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use tidegate_types::event::Along;
use tidegate_types::{Filter, Key, ListedStage, Now, Selection};

/// Steps that one page of a list may take, for one application and for all. After that each remaining
/// application has one step, and the page contains the key to continue at.
const LIST_STEPS: u32 = 100;
const LIST_STEPS_OF_ALL: u32 = 2_000;

/// A part of the store to scan.
#[derive(Clone, Debug)]
pub(super) struct ScanRange {
    pub(super) along: Along,
    pub(super) from: Key,
    pub(super) until: u64,
    pub(super) customer: Option<Arc<str>>,
    /// No item of it has a lower key.
    pub(super) low: Key,
}

/// The ranges of the store to scan, none if memory holds all items; and the number of queues examined.
pub(super) fn ranges(core: &Core, kind: &Kind, now: Now) -> (VecDeque<ScanRange>, usize) {
    let live = &core.live;
    let mut out = VecDeque::new();
    if !live.shared.journal.is_durable() {
        return (out, 0);
    }
    match kind {
        Kind::Cancel(Scope::Customer(of)) | Kind::Count(Scope::Customer(of)) => {
            let Some(queue) = live.queues.find(&of.application).filter(|id| live.queues[*id].far() > 0)
            else {
                return (out, 1);
            };
            let known = &live.queues[queue];
            let (name, customer): (_, Arc<str>) = (Arc::clone(known.name()), (&*of.customer).into());
            let near = known.near_until_of(&of.customer);
            let (low, former) = (known.low(), known.former_unindexed());
            let mut from = low;
            if near.due < former && !mutated(Mutant::UnindexedForgotten) {
                // Else items with a customer row would be met twice.
                from = Key::at(former);
                let (along, customer) = (Along::Queue(Arc::clone(&name)), Some(Arc::clone(&customer)));
                out.push_back(ScanRange { along, from: near, until: former, customer, low: near });
            }
            let along = Along::Customer(name, customer);
            out.push_back(ScanRange { along, from, until: u64::MAX, customer: None, low: from });
        }
        Kind::Cancel(Scope::Selected(selection)) | Kind::Count(Scope::Selected(selection)) => {
            out.extend(selected(core, selection));
            return (out, 1);
        }
        Kind::Cancel(Scope::Parked(application)) | Kind::Count(Scope::Parked(application)) => {
            let queue = live.queues.find(application);
            let all = mutated(Mutant::DropParkedTakesAll);
            let Some(queue) = queue.filter(|id| live.queues[*id].is_failing() || all) else {
                return (out, 1);
            };
            let from = live.queues[queue].low();
            let until = if all { u64::MAX } else { now.wall + 1 };
            let along = Along::Queue(Arc::clone(live.queues[queue].name()));
            out.push_back(ScanRange { along, from, until, customer: None, low: from });
        }
        Kind::List(filter) => return list_ranges(core, filter, now),
        Kind::TimelineQuery(counting) => out = counting.ranges(),
    }
    let looked_at = out.len();
    (out, looked_at)
}

/// The range of a queue with the dues of the selection. Its rows are in order of due.
fn selected(core: &Core, selection: &Selection) -> Option<ScanRange> {
    let queues = &core.live.queues;
    let queue = &queues[queues.find(&selection.application)?];
    let (low, until) = (queue.low(), selection.due_until);
    let from = low.max(Key::at(selection.due_from));
    let range = ScanRange {
        along: Along::Queue(Arc::clone(queue.name())),
        from,
        until,
        customer: selection.customer.as_deref().map(Arc::from),
        low,
    };
    (queue.stored() > 0 && (until == u64::MAX || from.due < until)).then_some(range)
}

fn list_ranges(core: &Core, filter: &Filter, now: Now) -> (VecDeque<ScanRange>, usize) {
    let queues = &core.live.queues;
    let ids: Vec<QueueId> = match &filter.application {
        Some(name) => queues.find(name).into_iter().collect(),
        None => queues.ids().filter(|id| *id != queues.dead_letters()).collect(),
    };
    let looked_at = ids.len();
    let wanted = |id: &QueueId| {
        let queue = &queues[*id];
        let parked = filter.state != Some(ListedStage::Parked) || queue.is_failing();
        queue.stored() > 0 && parked
    };
    let due_only = if filter.state == Some(ListedStage::Parked) { now.wall + 1 } else { u64::MAX };
    let until = filter.until.unwrap_or(u64::MAX).min(due_only);
    let lows = ids.into_iter().filter(wanted).map(|id| (queues[id].low(), id));
    let mut lows: Vec<(Key, QueueId)> = lows.filter(|(low, _)| filter.from.max(*low).due < until).collect();
    // All queues are included, since a wanted item may be in the last one. A page that is full ends sooner.
    lows.sort_unstable();
    let range = |(low, id): (Key, QueueId)| ScanRange {
        along: Along::Queue(Arc::clone(queues[id].name())),
        from: filter.from.max(low),
        until,
        customer: filter.customer.clone(),
        low,
    };
    (lows.into_iter().map(range).collect(), looked_at)
}

/// The number of steps after which each range has one step only.
pub(super) fn most_steps(kind: &Kind) -> u32 {
    match kind {
        Kind::List(filter) if filter.application.is_none() => LIST_STEPS_OF_ALL,
        Kind::List(_) | Kind::Cancel(_) | Kind::Count(_) | Kind::TimelineQuery(_) => LIST_STEPS,
    }
}
