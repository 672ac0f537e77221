//! Collects the items in memory that a command covers, in steps, since they may be all items.

use super::scope::Scope;
use super::{Kind, Running};
use crate::core::{listed, Core};
use crate::ids::{CustomerId, ItemId, QueueId};
use crate::lookup::Lookup;
use crate::mutant::{mutated, Mutant};
use crate::queue::{Entry, LAST};
use alloc::vec::Vec;
use tidegate_types::{CustomerOf, Filter, ListedStage};

/// How often a customer's list is begun anew because its next item has left memory. After that the list is
/// read in one step.
const ANEW: u32 = 4;

/// Progress of a command.
#[derive(Clone, Copy, Debug)]
pub(super) enum Gathering {
    NotBegun,
    /// It continues the customer's list at this item. The number counts how often it was begun anew.
    Customer(CustomerId, ItemId, u32),
    Done,
}

impl Running {
    /// Records the arrival numbers of its items in memory, `left` rows at most. Whether these are all.
    pub(super) fn gather(&mut self, core: &mut Core, left: &mut usize) -> bool {
        let before = *left;
        if *left > 0 && matches!(self.gathering, Gathering::NotBegun) {
            self.gathering = self.begin_gathering(core, left);
        }
        while let Gathering::Customer(customer, next, anew) = self.gathering {
            if *left == 0 && anew < ANEW {
                break;
            }
            *left = left.saturating_sub(1);
            let items = core.live.items();
            let Some(item) = items.get(next) else {
                self.resident.clear();
                self.counted = Lookup::new();
                self.gathering = of_customer(core, Some(customer), anew + 1);
                continue;
            };
            self.record(item.key().seq);
            let next = items.sibling(next);
            self.gathering = next.map_or(Gathering::Done, |next| Gathering::Customer(customer, next, anew));
        }
        core.live.shared.count_work((before - *left) as u64);
        matches!(self.gathering, Gathering::Done)
    }

    fn record(&mut self, seq: u64) {
        let counts = matches!(self.kind, Kind::Count(_) | Kind::TimelineQuery(_));
        if counts && self.counted.insert(seq, ()).is_some() {
            return;
        }
        self.resident.push(seq);
    }

    /// Items have been loaded. A count that is still in memory has passed their places in the list, and its
    /// ranges of the store will begin behind them.
    pub(super) fn gather_restored(&mut self, core: &Core, restored: &[ItemId]) {
        // A selection meets stored items in the store, in memory or not.
        let Kind::Count(Scope::Customer(of)) = &self.kind else { return };
        if self.ranges.is_some() || mutated(Mutant::RestoredUncounted) {
            return;
        }
        let Some(customer) = customer(core, of) else { return };
        let items = core.live.items();
        let its = restored.iter().filter_map(|id| items.get(*id)).filter(|i| i.customer() == Some(customer));
        for seq in its.map(|item| item.key().seq).collect::<Vec<u64>>() {
            self.record(seq);
        }
    }

    /// Whether the item was in memory when the count began, and was counted there.
    pub(super) fn counted_in_memory(&self, seq: u64) -> bool {
        self.counted.contains_key(&seq)
    }

    fn begin_gathering(&mut self, core: &Core, left: &mut usize) -> Gathering {
        let live = &core.live;
        let seq = |id: ItemId| live.items()[id].key().seq;
        let found: Vec<u64> = match &mut self.kind {
            Kind::Cancel(Scope::Customer(of)) | Kind::Count(Scope::Customer(of)) => {
                return of_customer(core, customer(core, of), 0)
            }
            // Stored items are met in the store.
            Kind::Cancel(scope @ Scope::Selected(_)) | Kind::Count(scope @ Scope::Selected(_)) => {
                let pending = listed::pending(core).into_iter();
                pending.filter(|id| scope.takes_near(core, *id)).map(seq).collect()
            }
            Kind::Cancel(Scope::Parked(application)) | Kind::Count(Scope::Parked(application)) => {
                let queue = live.queues.find(application);
                let parked = queue
                    .filter(|queue| live.queues[*queue].is_failing() || mutated(Mutant::DropParkedTakesAll));
                parked.map(|queue| due_in_memory(core, queue)).unwrap_or_default()
            }
            // Stored items are met in the store.
            Kind::TimelineQuery(counting) => {
                let pending = listed::pending(core).into_iter();
                let name = |id: &ItemId| live.row(&live.items()[*id]).address().0;
                pending.filter(|id| counting.is_about(&name(id))).map(seq).collect()
            }
            Kind::List(filter) => {
                if filter.state == Some(ListedStage::InFlight) && live.shared.journal.is_durable() {
                    narrow(core, filter);
                    *left = left.saturating_sub(live.items().len());
                }
                let pending = listed::pending(core).into_iter();
                pending.filter(|id| filter.takes(&listed::near(core, *id))).map(seq).collect()
            }
        };
        *left = left.saturating_sub(found.len());
        found.into_iter().for_each(|seq| self.record(seq));
        Gathering::Done
    }
}

fn customer(core: &Core, of: &CustomerOf) -> Option<CustomerId> {
    let live = &core.live;
    live.queues[live.queues.find(&of.application)?].customer(&of.customer)
}

/// The beginning of a customer's list.
fn of_customer(core: &Core, customer: Option<CustomerId>, anew: u32) -> Gathering {
    let live = &core.live;
    let known = customer.filter(|id| live.customers().get(*id).is_some());
    let first = known.and_then(|id| Some((id, live.customers().items(id, live.items()).next()?)));
    first.map_or(Gathering::Done, |(id, first)| Gathering::Customer(id, first, anew))
}

/// Narrows a list of items in flight: these are in memory, and their places bound the range of the store.
fn narrow(core: &Core, filter: &mut Filter) {
    let flying = core.live.items().ids().filter(|id| core.is_in_flight(*id));
    let (mut first, mut end) = (LAST, 0);
    for place in flying.map(|id| core.live.items()[id].place()) {
        first = first.min(place);
        end = end.max(place.due.saturating_add(1));
    }
    filter.from = filter.from.max(first);
    filter.until = Some(filter.until.map_or(end, |until| until.min(end)));
}

fn due_in_memory(core: &Core, queue: QueueId) -> Vec<u64> {
    let live = &core.live;
    let Some(active) = live.queues[queue].active() else { return Vec::new() };
    let mut out = Vec::new();
    let aside = active.ready().aside().iter().copied().map(Entry::Customer);
    for entry in active.ready().entries().chain(aside) {
        match entry {
            Entry::Single(id) => out.push(id),
            Entry::Customer(customer) => {
                out.extend(live.customers().get(customer).into_iter().flat_map(|owner| owner.ready.iter()));
            }
        }
    }
    for number in active.flights().to_resend() {
        out.extend(
            core.dispatch.flights.get(number).into_iter().flat_map(|flight| flight.rows.iter().copied()),
        );
    }
    out.into_iter().filter_map(|id| live.items().get(id)).map(|item| item.key().seq).collect()
}
