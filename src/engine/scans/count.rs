//! A count of the items of a customer or of a selection, by state.

use super::course::Course;
use super::scope::{customer, Scope};
use crate::core::{listed, Core};
use crate::ids::ItemId;
use crate::mutant::{mutated, Mutant};
use tidegate_types::event::Stored;
use tidegate_types::{Answer, Listed, Now};

/// A count under way.
#[derive(Debug)]
pub(super) struct CountScan {
    pub(super) scope: Scope,
    by_stage: [u64; 3],
    next_due: Option<u64>,
}

impl CountScan {
    pub(super) fn new(scope: Scope) -> Self {
        CountScan { scope, by_stage: [0; 3], next_due: None }
    }

    /// Items have been loaded. A count that is still in memory has passed their places in the list, and its
    /// ranges of the store will begin behind them.
    pub(super) fn note_restored(&self, course: &mut Course, core: &Core, restored: &[ItemId]) {
        // A selection meets stored items in the store, in memory or not.
        let Scope::Customer(of) = &self.scope else { return };
        if course.ranges.is_some() || mutated(Mutant::RestoredUncounted) {
            return;
        }
        let Some(customer) = customer(core, of) else { return };
        let items = restored.iter().filter_map(|id| core.live.items().get(*id));
        for item in items.filter(|item| item.customer() == Some(customer)) {
            course.record(item.key().seq);
        }
    }

    pub(super) fn visit(&mut self, course: &Course, core: &Core, id: ItemId) {
        if self.scope.takes_near(core, id) && !course.is_later(core.live.items()[id].key().seq) {
            self.tally(&listed::near(core, id));
        }
    }

    /// Handles a row of the store whose item is in memory too.
    pub(super) fn meet(&mut self, course: &mut Course, core: &Core, id: ItemId, seq: u64) {
        if course.meets_anew(seq) && seq < course.before && self.scope.takes_near(core, id) {
            self.tally(&listed::near(core, id));
        }
    }

    pub(super) fn visit_far(&mut self, course: &mut Course, core: &Core, stored: Stored, now: Now) {
        let counts = course.meets_anew(stored.key.seq) && !mutated(Mutant::CountsOneTooFew);
        if counts && !course.is_later(stored.key.seq) && self.scope.takes_far(&stored) {
            self.tally(&listed::far(core, stored, now));
        }
    }

    fn tally(&mut self, item: &Listed) {
        self.by_stage[item.stage as usize] += 1;
        self.next_due = Some(self.next_due.map_or(item.due, |due| {
            if mutated(Mutant::NextDueIsTheLast) {
                due.max(item.due)
            } else {
                due.min(item.due)
            }
        }));
    }

    /// When the pause of the counted customer ends.
    fn paused(&self, core: &Core) -> Option<u64> {
        let Scope::Customer(of) = &self.scope else { return None };
        let queue = core.live.queues.find(&of.application)?;
        core.live.queues[queue].passed().held_until(&of.customer)
    }

    pub(super) fn answer(&self, core: &Core) -> Answer {
        let [waiting, in_flight, parked] = self.by_stage;
        Answer::Counted { waiting, in_flight, parked, next_due: self.next_due, paused: self.paused(core) }
    }
}
