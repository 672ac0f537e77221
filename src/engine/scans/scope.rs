//! The items that a cancel or count covers, and where these are.

use super::course::ScanRange;
use super::gather::InMemory;
use crate::core::Core;
use crate::ids::{CustomerId, ItemId, QueueId};
use crate::mutant::{mutated, Mutant};
use crate::queue::Entry;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use tidegate_types::event::{Along, Stored};
use tidegate_types::{CustomerOf, Key, Now, Selection};

/// See the module's page.
#[derive(Clone, Debug)]
pub(super) enum Scope {
    /// All items of a customer. Later requests of the customer wait until a cancel has finished.
    Customer(CustomerOf),
    /// The items that a selection takes. Nothing waits for it.
    Selected(Selection),
    /// The due items of a parked application.
    Parked(Box<str>),
}

/// The facts about an item that decide whether a scope takes it.
#[derive(Debug)]
pub(super) struct Traits {
    pub(super) application: Arc<str>,
    pub(super) customer: Option<Arc<str>>,
    pub(super) due: u64,
    pub(super) received: u64,
    pub(super) seq: u64,
}

impl Traits {
    /// Those of an item in memory.
    pub(super) fn near(core: &Core, id: ItemId) -> Self {
        let item = &core.live.items()[id];
        let (application, customer) = core.live.row(item).address();
        Traits { application, customer, due: item.due(), received: item.received(), seq: item.key().seq }
    }

    /// Those of an item that is in the store only.
    pub(super) fn far(stored: &Stored) -> Self {
        let (application, customer) = (Arc::clone(&stored.application), stored.customer.clone());
        Traits { application, customer, due: stored.due, received: stored.received, seq: stored.key.seq }
    }
}

impl Scope {
    pub(super) fn application(&self) -> &str {
        match self {
            Scope::Customer(of) => &of.application,
            Scope::Selected(selection) => &selection.application,
            Scope::Parked(application) => application,
        }
    }

    /// Whether the item belongs to a cancel of this scope from the moment the cancel is judged.
    pub(super) fn claims(&self, item: &Traits) -> bool {
        let customer = item.customer.as_deref();
        let takes = match self {
            Scope::Customer(of) => Some(&*of.customer) == customer,
            Scope::Selected(selection) => selection.takes(customer, item.due, item.received),
            Scope::Parked(_) => false,
        };
        takes && *item.application == *self.application()
    }

    /// Whether it takes an item in memory, of its application and, if it names one, of its customer.
    pub(super) fn takes_near(&self, core: &Core, id: ItemId) -> bool {
        let Scope::Selected(selection) = self else { return true };
        let item = Traits::near(core, id);
        let all = mutated(Mutant::SelectedInMemoryAll) && *item.application == *selection.application;
        all || self.claims(&item)
    }

    /// Whether it takes an item that is in the store only, likewise.
    pub(super) fn takes_far(&self, stored: &Stored) -> bool {
        match self {
            Scope::Selected(selection) if !mutated(Mutant::SelectedFarAll) => {
                selection.takes(stored.customer.as_deref(), stored.due, stored.received)
            }
            Scope::Selected(_) | Scope::Customer(_) | Scope::Parked(_) => true,
        }
    }

    pub(super) fn in_memory(&self, core: &Core) -> InMemory {
        match self {
            Scope::Customer(of) => InMemory::Customer(customer(core, of)),
            Scope::Selected(_) => InMemory::pending(core, |id| self.takes_near(core, id)),
            Scope::Parked(application) => {
                InMemory::Numbers(due_in_memory(core, application).unwrap_or_default())
            }
        }
    }

    /// The ranges of the store to scan, and the number of queues examined.
    pub(super) fn ranges(&self, core: &Core, now: Now) -> (VecDeque<ScanRange>, usize) {
        let ranges = match self {
            Scope::Customer(of) => of_customer(core, of).unwrap_or_default(),
            Scope::Selected(selection) => of_selection(core, selection).into_iter().collect(),
            Scope::Parked(application) => of_parked(core, application, now).into_iter().collect(),
        };
        let looked_at = ranges.len().max(1);
        (ranges, looked_at)
    }
}

pub(super) fn customer(core: &Core, of: &CustomerOf) -> Option<CustomerId> {
    let live = &core.live;
    live.queues[live.queues.find(&of.application)?].customer(&of.customer)
}

/// The queue of an application, if it is parked.
fn parked(core: &Core, application: &str) -> Option<QueueId> {
    let queues = &core.live.queues;
    queues.find(application).filter(|id| queues[*id].is_failing() || mutated(Mutant::DropParkedTakesAll))
}

fn due_in_memory(core: &Core, application: &str) -> Option<Vec<u64>> {
    let live = &core.live;
    let active = live.queues[parked(core, application)?].active()?;
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
    Some(out.into_iter().filter_map(|id| live.items().get(id)).map(|item| item.key().seq).collect())
}

/// The rows of a customer. `None`: memory holds all its items.
fn of_customer(core: &Core, of: &CustomerOf) -> Option<VecDeque<ScanRange>> {
    let mut out = VecDeque::new();
    let queues = &core.live.queues;
    let queue = queues.find(&of.application).map(|id| &queues[id]).filter(|queue| queue.far() > 0)?;
    let (name, customer): (_, Arc<str>) = (Arc::clone(queue.name()), (&*of.customer).into());
    let near = queue.near_until_of(&of.customer);
    let (low, former) = (queue.low(), queue.former_unindexed());
    let mut from = low;
    if near.due < former && !mutated(Mutant::UnindexedForgotten) {
        // Else items with a customer row would be met twice.
        from = Key::at(former);
        let (along, customer) = (Along::Queue(Arc::clone(&name)), Some(Arc::clone(&customer)));
        out.push_back(ScanRange { along, from: near, until: former, customer, low: near });
    }
    let along = Along::Customer(name, customer);
    out.push_back(ScanRange { along, from, until: u64::MAX, customer: None, low: from });
    Some(out)
}

/// The range of a queue with the dues of the selection. Its rows are in order of due.
fn of_selection(core: &Core, selection: &Selection) -> Option<ScanRange> {
    let queues = &core.live.queues;
    let queue = &queues[queues.find(&selection.application)?];
    let (from, until) = (Key::at(selection.due_from), selection.due_until);
    let range = ScanRange::of_queue(queue, from, until, selection.customer.as_deref().map(Arc::from));
    (queue.stored() > 0 && (until == u64::MAX || range.from.due < until)).then_some(range)
}

/// The range of a parked queue with the due items.
fn of_parked(core: &Core, application: &str, now: Now) -> Option<ScanRange> {
    let queue = parked(core, application)?;
    let until = if mutated(Mutant::DropParkedTakesAll) { u64::MAX } else { now.wall + 1 };
    Some(ScanRange::of_queue(&core.live.queues[queue], Key::default(), until, None))
}
