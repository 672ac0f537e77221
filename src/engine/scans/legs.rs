//! What a command goes over: items in memory, and stretches of the store.

use super::Kind;
use crate::engine::core::Core;
use crate::engine::event::Along;
use crate::engine::ids::{ItemId, QueueId};
use crate::engine::mutant::{mutated, Mutant};
use crate::engine::queue::{Entry, LAST};
use crate::engine::types::{Filter, Key, ListedStage, Now};
use std::collections::VecDeque;
use std::sync::Arc;

/// A part of the store to go over.
#[derive(Clone, Debug)]
pub(super) struct Leg {
    pub(super) along: Along,
    pub(super) from: Key,
    pub(super) until: u64,
    pub(super) customer: Option<Arc<str>>,
    /// No item of it lies below.
    pub(super) low: Key,
}

/// What is in flight is in memory: its keys say where in the store it can be.
pub(super) fn narrow(core: &Core, mut filter: Filter) -> Filter {
    if filter.state != Some(ListedStage::InFlight) || !core.stock().journal().is_durable() {
        return filter;
    }
    let keys = || {
        let flying = core.stock().items().ids().filter(|id| core.is_in_flight(*id));
        flying.map(|id| core.stock().items()[id].key())
    };
    filter.from = filter.from.max(keys().min().unwrap_or(LAST));
    let end = keys().max().map_or(0, |key| key.due.saturating_add(1));
    filter.until = Some(filter.until.map_or(end, |until| until.min(end)));
    filter
}

/// Arrival numbers of the items in memory that a command is about.
pub(super) fn residents(core: &Core, kind: &Kind) -> Vec<u64> {
    let stock = core.stock();
    let seq = |id: ItemId| stock.items()[id].key().seq;
    match kind {
        Kind::CancelAll(of) | Kind::Count(of) => {
            let queue = stock.queues().find(&of.application);
            let customer =
                queue.and_then(|queue| stock.customers().find(stock.queues(), queue, &of.customer));
            customer
                .map(|id| stock.customers().items(id, stock.items()).map(seq).collect())
                .unwrap_or_default()
        }
        Kind::DropParked(application) => {
            let queue = stock.queues().find(application);
            let parked = queue
                .filter(|queue| stock.queues()[*queue].is_failing() || mutated(Mutant::DropParkedTakesAll));
            parked.map(|queue| due_in_memory(core, queue)).unwrap_or_default()
        }
        // What is stored is met in the store.
        Kind::Outlook(counting) => {
            let pending = core.pending().into_iter();
            let name = |id: &ItemId| stock.address(&stock.items()[*id]).0;
            pending.filter(|id| counting.is_about(&name(id))).map(seq).collect()
        }
        Kind::List(filter) => {
            let pending = core.pending().into_iter();
            pending.filter(|id| filter.takes(&core.listed(*id))).map(seq).collect()
        }
    }
}

fn due_in_memory(core: &Core, queue: QueueId) -> Vec<u64> {
    let stock = core.stock();
    let Some(live) = stock.queues()[queue].live() else { return Vec::new() };
    let mut out = Vec::new();
    for entry in live.line().entries() {
        match entry {
            Entry::Single(id) => out.push(id),
            Entry::Customer(customer) => {
                out.extend(stock.customers().get(customer).into_iter().flat_map(|owner| owner.ready.iter()));
            }
        }
    }
    for number in live.lane().to_resend() {
        out.extend(core.dispatch().get(number).into_iter().flat_map(|flight| flight.rows.iter().copied()));
    }
    out.into_iter().filter_map(|id| stock.items().get(id)).map(|item| item.key().seq).collect()
}

/// What of the store has to be gone over: nothing, where memory holds all.
pub(super) fn legs(core: &Core, kind: &Kind, now: Now) -> VecDeque<Leg> {
    let stock = core.stock();
    let mut out = VecDeque::new();
    if !stock.journal().is_durable() {
        return out;
    }
    match kind {
        Kind::CancelAll(of) | Kind::Count(of) => {
            let Some(queue) = stock.queues().find(&of.application).filter(|id| stock.queues()[*id].far() > 0)
            else {
                return out;
            };
            let known = &stock.queues()[queue];
            let (name, customer): (_, Arc<str>) = (Arc::clone(known.name()), (&*of.customer).into());
            let (low, near, former) = (known.low(), known.near_until(), known.former_unindexed());
            let mut from = low;
            if near.due < former && !mutated(Mutant::UnindexedForgotten) {
                // Those with a row among them would be met twice.
                from = Key { due: former, seq: 0 };
                let (along, customer) = (Along::Queue(Arc::clone(&name)), Some(Arc::clone(&customer)));
                out.push_back(Leg { along, from: near, until: former, customer, low: near });
            }
            let along = Along::Customer(name, customer);
            out.push_back(Leg { along, from, until: u64::MAX, customer: None, low: from });
        }
        Kind::DropParked(application) => {
            let queue = stock.queues().find(application);
            let all = mutated(Mutant::DropParkedTakesAll);
            let Some(queue) = queue.filter(|id| stock.queues()[*id].is_failing() || all) else { return out };
            let from = stock.queues()[queue].low();
            let until = if all { u64::MAX } else { now.wall + 1 };
            let along = Along::Queue(Arc::clone(stock.queues()[queue].name()));
            out.push_back(Leg { along, from, until, customer: None, low: from });
        }
        Kind::List(filter) => out = list_legs(core, filter, now),
        Kind::Outlook(counting) => out = counting.legs(),
    }
    out
}

fn list_legs(core: &Core, filter: &Filter, now: Now) -> VecDeque<Leg> {
    let queues = core.stock().queues();
    let ids: Vec<QueueId> = match &filter.application {
        Some(name) => queues.find(name).into_iter().collect(),
        None => queues.ids().filter(|id| *id != queues.dead_letters()).collect(),
    };
    let wanted = |id: &QueueId| {
        let queue = &queues[*id];
        let parked = filter.state != Some(ListedStage::Parked) || queue.is_failing();
        queue.stored() > 0 && parked
    };
    let due_only = if filter.state == Some(ListedStage::Parked) { now.wall + 1 } else { u64::MAX };
    let until = filter.until.unwrap_or(u64::MAX).min(due_only);
    let mut legs: Vec<Leg> = ids
        .into_iter()
        .filter(wanted)
        .map(|id| Leg {
            along: Along::Queue(Arc::clone(queues[id].name())),
            from: filter.from.max(queues[id].low()),
            until,
            customer: filter.customer.clone(),
            low: queues[id].low(),
        })
        .filter(|leg| leg.from.due < until)
        .collect();
    // None is left out, however many they are: what is looked for may lie in the last. A page that fills
    // before ends there.
    legs.sort_by_key(|leg| leg.low);
    legs.into()
}
