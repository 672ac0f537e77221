//! What customers still owe their rates while no item of theirs is in memory: a number for each, which takes
//! a quarter of the memory of a customer's row, and no timer.
//!
//! With a rate such as `10/h` a customer owes for hours, so there may be as many debts as customers. Their
//! number is bounded by memory; one that is forgotten lets its customer begin with a full bucket, as after a
//! start. Paid debts are looked for a few at a time, since a timer for each would cost as much as the debt.

use super::mutant::{mutated, Mutant};
use super::pace::Debt;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::ops::Bound::{Excluded, Unbounded};

/// Most debts for each item that fits in memory. A debt takes some 130 B, so all take as much memory as the
/// items do, at most.
const FOR_EACH_ROW: usize = 2;
/// Number of debts looked at for each batch. More than one, so that they are gone through sooner than they
/// double.
const LOOKED_AT: usize = 2;

/// An application, and a customer of it.
type Debtor = (Arc<str>, Arc<str>);

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Debts {
    owed: BTreeMap<Debtor, Debt>,
    most: usize,
    /// The one that was looked at last.
    last: Option<Debtor>,
}

impl Debts {
    /// No debts. `rows`: number of items that fit in memory.
    pub(crate) fn new(rows: usize) -> Self {
        Debts { owed: BTreeMap::new(), most: rows * FOR_EACH_ROW, last: None }
    }

    /// Changes the bound; see [`Debts::new`].
    pub(crate) fn configure(&mut self, rows: usize) {
        self.most = rows * FOR_EACH_ROW;
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.owed.len()
    }

    /// The customer has no row any more.
    pub(crate) fn note(&mut self, debtor: Debtor, debt: Debt) {
        if !mutated(Mutant::DebtForgotten) {
            self.owed.insert(debtor, debt);
        }
    }

    /// The customer has a row again.
    pub(crate) fn take(&mut self, application: &Arc<str>, customer: &Arc<str>) -> Option<Debt> {
        if self.owed.is_empty() {
            return None;
        }
        self.owed.remove(&(Arc::clone(application), Arc::clone(customer)))
    }

    /// Looks at the next few debts, once for each batch. Drops those that are paid, and others if there are
    /// too many. Returns how many of the dropped ones were not paid.
    pub(crate) fn look(&mut self, mono: u64) -> u64 {
        let mut forgotten = 0;
        for _ in 0..LOOKED_AT {
            let behind = self.last.take().map_or(Unbounded, Excluded);
            let next = self.owed.range((behind, Unbounded)).next().or_else(|| self.owed.first_key_value());
            let Some((debtor, debt)) = next else { break };
            let (debtor, is_paid) = (debtor.clone(), debt.is_paid(mono));
            if is_paid || self.owed.len() > self.most {
                self.owed.remove(&debtor);
                forgotten += u64::from(!is_paid);
            }
            self.last = Some(debtor);
        }
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::super::pace::Pace;
    use super::*;
    use alloc::format;
    use tidegate_types::rate::Bound;

    fn debtor(n: u64) -> Debtor {
        ("shop".into(), format!("{n:06}").into())
    }

    /// What is owed after as many items left at the moment 0, at one each second without a burst.
    fn debt(items: u64) -> Debt {
        let mut pace = Pace::new(Some(Bound::new("1/s".parse().unwrap(), 1)));
        pace.leave(items, 0);
        pace.debt().expect("something has left")
    }

    /// A thousand customers a second owe for ten seconds each. Excluded: paid debts that stay; debts that are
    /// dropped before they are paid; a search that begins anew each time.
    #[test]
    fn paid_debts_go_and_others_stay() {
        let (mut debts, mut most) = (Debts::new(1_000_000), 0);
        for n in 0..60_000 {
            debts.note(debtor(n), debt(10 + n / 1_000));
            assert_eq!(debts.look(n), 0, "none is forgotten");
            most = most.max(debts.len());
        }
        assert!((10_000..25_000).contains(&most), "{most}");
        for n in 0..60_000 {
            let (application, customer) = debtor(n);
            let known = debts.take(&application, &customer);
            assert!(known.is_some() || debt(10 + n / 1_000).is_paid(60_000), "{n}");
        }
        assert_eq!((debts.len(), debts.look(60_000)), (0, 0));
    }

    /// Excluded: debts without a bound; a bound that is exceeded until debts are paid; a paid one that counts
    /// as forgotten.
    #[test]
    fn they_are_bounded_and_what_is_forgotten_is_counted() {
        let (mut debts, mut forgotten) = (Debts::new(100), 0);
        for n in 0..1_000 {
            debts.note(debtor(n), debt(1_000_000));
            forgotten += debts.look(0);
            assert!(debts.len() <= 100 * FOR_EACH_ROW, "{}", debts.len());
        }
        assert_eq!(debts.len() as u64 + forgotten, 1_000);
        debts.configure(10);
        let forgotten: u64 = (0..200).map(|_| debts.look(0)).sum();
        assert_eq!((debts.len(), forgotten), (10 * FOR_EACH_ROW, 90 * FOR_EACH_ROW as u64));
        let mut debts = Debts::new(0);
        debts.note(debtor(0), debt(1));
        assert_eq!((debts.look(1_000), debts.len()), (0, 0), "it is paid");
    }
}
