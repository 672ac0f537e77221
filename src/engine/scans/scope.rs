//! Which items a command that cancels or counts is about.

use crate::engine::core::Core;
use crate::engine::event::Stored;
use crate::engine::ids::ItemId;
use crate::engine::mutant::{mutated, Mutant};
use crate::engine::types::{CustomerOf, Selection};

/// See the module's page.
#[derive(Clone, Debug)]
pub(super) enum Scope {
    /// All of a customer. Requests of theirs that come behind a cancel wait until it is through.
    Customer(CustomerOf),
    /// What a selection takes. Nothing waits for it.
    Selected(Selection),
    /// What is due of an application that cannot be delivered to.
    Parked(Box<str>),
}

/// What is asked of an item to tell whether a scope takes it.
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

    /// From the moment at which a cancel of it is judged, all of it that came before is its own.
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

    /// An item in memory, of its application and, where it names one, of its customer.
    pub(super) fn takes_near(&self, core: &Core, id: ItemId) -> bool {
        let Scope::Selected(selection) = self else { return true };
        let item = &core.live.items()[id];
        let (application, customer) = core.live.row(item).address();
        let its = *application == *selection.application;
        let all = mutated(Mutant::SelectedInMemoryAll);
        its && (all || selection.takes(customer.as_deref(), item.due(), item.received()))
    }

    /// An item in the store alone, likewise.
    pub(super) fn takes_far(&self, stored: &Stored) -> bool {
        match self {
            Scope::Selected(selection) if !mutated(Mutant::SelectedFarAll) => {
                selection.takes(stored.customer.as_deref(), stored.due, stored.received)
            }
            Scope::Selected(_) | Scope::Customer(_) | Scope::Parked(_) => true,
        }
    }
}
