//! Collects the items in memory that a command covers, in steps, since they may be all items.

use super::course::{Course, Gathering};
use crate::core::{listed, Core};
use crate::ids::{CustomerId, ItemId};
use crate::lookup::Lookup;
use alloc::vec::Vec;

/// How often a customer's list is begun anew because its next item has left memory. After that the list is
/// read in one step.
const ANEW: u32 = 4;

/// Where a command finds its items in memory.
#[derive(Debug)]
pub(super) enum InMemory {
    /// In the list of this customer, if it is known.
    Customer(Option<CustomerId>),
    /// By these arrival numbers.
    Numbers(Vec<u64>),
}

impl InMemory {
    /// Items of these that only the broker keeps: stored ones are met in the store.
    pub(super) fn pending(core: &Core, takes: impl Fn(ItemId) -> bool) -> Self {
        let pending = listed::pending(core).into_iter().filter(|id| takes(*id));
        InMemory::Numbers(pending.map(|id| core.live.items()[id].key().seq).collect())
    }
}

impl Course {
    /// Records the arrival numbers of the items in memory, `left` rows at most. Whether these are all.
    pub(super) fn gather(
        &mut self,
        core: &mut Core,
        left: &mut usize,
        find: impl FnOnce(&Core, &mut usize) -> InMemory,
    ) -> bool {
        let before = *left;
        if *left > 0 && matches!(self.gathering, Gathering::NotBegun) {
            self.gathering = match find(core, left) {
                InMemory::Customer(customer) => of_customer(core, customer, 0),
                InMemory::Numbers(found) => {
                    *left = left.saturating_sub(found.len());
                    found.into_iter().for_each(|seq| self.record(seq));
                    Gathering::Done
                }
            };
        }
        while let Gathering::Customer(customer, next, anew) = self.gathering {
            if *left == 0 && anew < ANEW {
                break;
            }
            *left = left.saturating_sub(1);
            let items = core.live.items();
            let Some(item) = items.get(next) else {
                self.resident.clear();
                self.counted = self.counted.is_some().then(Lookup::new);
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

    pub(super) fn record(&mut self, seq: u64) {
        if self.counted.as_mut().is_none_or(|counted| counted.insert(seq, ()).is_none()) {
            self.resident.push(seq);
        }
    }
}

/// The beginning of a customer's list.
fn of_customer(core: &Core, customer: Option<CustomerId>, anew: u32) -> Gathering {
    let live = &core.live;
    let known = customer.filter(|id| live.customers().get(*id).is_some());
    let first = known.and_then(|id| Some((id, live.customers().items(id, live.items()).next()?)));
    first.map_or(Gathering::Done, |(id, first)| Gathering::Customer(id, first, anew))
}
