//! The cancels under way that claim items, by whose items these are: every request of a customer, and every
//! item that is looked for, asks for them.

use super::scope::{Scope, Traits};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Numbers of scans, in ascending order.
type ScanNumbers = Vec<u64>;

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Cancels of a customer, by application and customer.
    of_customers: BTreeMap<Box<str>, BTreeMap<Box<str>, ScanNumbers>>,
    /// Cancels of a selection, which are local: there are few.
    of_selections: ScanNumbers,
}

impl Claims {
    /// A cancel of this scope has begun. Numbers ascend.
    pub(super) fn begin(&mut self, number: u64, scope: &Scope) {
        match scope {
            Scope::Customer(of) => {
                let customers = self.of_customers.entry(of.application.clone()).or_default();
                customers.entry(of.customer.clone()).or_default().push(number);
            }
            Scope::Selected(_) => self.of_selections.push(number),
            // It claims nothing.
            Scope::Parked(_) => {}
        }
    }

    /// A cancel of this scope has ended.
    pub(super) fn end(&mut self, number: u64, scope: &Scope) {
        let remove = |numbers: &mut ScanNumbers| numbers.retain(|other| *other != number);
        match scope {
            Scope::Customer(of) => {
                let Some(customers) = self.of_customers.get_mut(&of.application) else { return };
                if let Some(numbers) = customers.get_mut(&of.customer) {
                    remove(numbers);
                    if numbers.is_empty() {
                        customers.remove(&of.customer);
                    }
                }
                if customers.is_empty() {
                    self.of_customers.remove(&of.application);
                }
            }
            Scope::Selected(_) => remove(&mut self.of_selections),
            Scope::Parked(_) => {}
        }
    }

    /// Cancels of this customer.
    pub(super) fn of_customer(&self, application: &str, customer: &str) -> &[u64] {
        let customers = self.of_customers.get(application);
        customers.and_then(|customers| customers.get(customer)).map_or(&[], Vec::as_slice)
    }

    /// The lists of cancels that may claim an item with these traits.
    pub(super) fn of(&self, item: &Traits) -> impl Iterator<Item = &[u64]> {
        let customer = item.customer.as_deref();
        let of_customer = customer.map_or(&[][..], |customer| self.of_customer(&item.application, customer));
        [of_customer, &self.of_selections].into_iter()
    }
}
