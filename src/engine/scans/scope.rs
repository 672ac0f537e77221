//! The items that a cancel or count covers.

use crate::core::Core;
use crate::ids::ItemId;
use crate::mutant::{mutated, Mutant};
use alloc::boxed::Box;
use tidegate_types::event::Stored;
use tidegate_types::{CustomerOf, Selection};

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
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits<'a> {
    pub(super) application: &'a str,
    pub(super) customer: Option<&'a str>,
    pub(super) due: u64,
    pub(super) received: u64,
}

impl<'a> Traits<'a> {
    pub(super) fn of(stored: &'a Stored) -> Self {
        Traits {
            application: &stored.application,
            customer: stored.customer.as_deref(),
            due: stored.due,
            received: stored.received,
        }
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
    pub(super) fn claims(&self, item: Traits<'_>) -> bool {
        match self {
            Scope::Customer(of) => {
                *of.application == *item.application && Some(&*of.customer) == item.customer
            }
            Scope::Selected(selection) => {
                *selection.application == *item.application
                    && selection.takes(item.customer, item.due, item.received)
            }
            Scope::Parked(_) => false,
        }
    }

    /// Whether it takes an item in memory, of its application and, if it names one, of its customer.
    pub(super) fn takes_near(&self, core: &Core, id: ItemId) -> bool {
        let Scope::Selected(selection) = self else { return true };
        let item = &core.live.items()[id];
        let (application, customer) = core.live.row(item).address();
        let its = *application == *selection.application;
        let all = mutated(Mutant::SelectedInMemoryAll);
        its && (all || selection.takes(customer.as_deref(), item.due(), item.received()))
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
}
