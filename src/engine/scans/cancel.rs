//! A cancel of many items, which waits for the outcomes of those in flight.

use super::course::Course;
use super::scope::{Scope, Traits};
use crate::core::Core;
use crate::ids::ItemId;
use crate::mutant::{mutated, Mutant};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use tidegate_types::event::Stored;
use tidegate_types::{Answer, Asker, End, Identity, Key, Now};

/// How long a command waits for the outcome of items in flight, ms.
pub(crate) const OUTCOME_MS: u64 = 5_000;

/// The end of an item that this caller cancels.
pub(crate) fn end_of_cancel(asker: &Asker) -> End {
    match asker {
        Asker::Remote { redelivered: true, .. } => End::CancelledAgain,
        Asker::Remote { .. } | Asker::Local(_) => End::Cancelled,
    }
}

/// A cancel under way.
#[derive(Debug)]
pub(super) struct CancelScan {
    pub(super) scope: Scope,
    /// The end of its items.
    pub(super) end: End,
    pub(super) cancelled: u64,
    /// Items in flight whose outcomes it waits for, and when that wait ends, monotonic ms.
    pub(super) in_flight: BTreeSet<Identity>,
    pub(super) until: u64,
    /// It has covered all items, and waits for outcomes.
    pub(super) waits: bool,
    /// It does not wait for outcomes once it has covered all items.
    pub(super) impatient: bool,
    /// The lowest place to which items were moved that it may have passed: it goes back there.
    back: Option<Key>,
}

impl CancelScan {
    pub(super) fn new(scope: Scope, asker: &Asker, now: Now) -> Self {
        CancelScan {
            scope,
            end: end_of_cancel(asker),
            cancelled: 0,
            in_flight: BTreeSet::new(),
            until: now.mono + OUTCOME_MS,
            waits: false,
            impatient: false,
            back: None,
        }
    }

    /// Items in flight do not belong to it any more.
    pub(super) fn is_given_up(&self, course: &Course) -> bool {
        self.impatient && course.is_through()
    }

    /// Whether an item with these traits belongs to it.
    pub(super) fn owns(&self, course: &Course, item: &Traits) -> bool {
        self.scope.claims(item) && item.seq < course.before && !self.is_given_up(course)
    }

    /// Whether an item of this application that is rescheduled waits for its new time. Else all earlier items
    /// belong to it from the moment it is judged.
    pub(super) fn spares_retimed(&self, application: &str) -> bool {
        matches!(&self.scope, Scope::Parked(name) if **name == *application)
    }

    pub(super) fn visit(&mut self, course: &Course, core: &mut Core, id: ItemId, now: Now) {
        let seq = core.live.items()[id].key().seq;
        if course.is_later(seq) || course.is_retimed(seq) || !self.scope.takes_near(core, id) {
            return;
        }
        if core.is_undecided(id) {
            let identity = core.live.items()[id].identity();
            self.await_outcome(core, identity);
        } else {
            self.cancelled += 1;
            core.cancel(id, self.end.clone(), now);
        }
    }

    pub(super) fn visit_far(&mut self, course: &Course, core: &mut Core, stored: &Stored, now: Now) {
        let spared = course.is_later(stored.key.seq) || course.is_retimed(stored.key.seq);
        if spared || stored.dead.is_some() || !self.scope.takes_far(stored) {
            return;
        }
        // It may have been delivered, like an item in flight.
        if stored.outcome_unknown && !mutated(Mutant::CancelAllTakesUnknown) {
            self.await_outcome(core, stored.identity());
            return;
        }
        self.cancelled += 1;
        if !mutated(Mutant::CancelAllAnswersOnly) {
            core.cancel_far(stored, self.end.clone(), now);
        }
    }

    fn await_outcome(&mut self, core: &mut Core, identity: Identity) {
        core.want_outcomes(true);
        self.in_flight.insert(identity);
    }

    /// Takes the items whose outcomes are known out of those that it waits for.
    pub(super) fn take_known(&mut self, known: &BTreeMap<Identity, bool>) -> Vec<(Identity, bool)> {
        let mut met = Vec::new();
        if self.in_flight.len() < known.len() {
            let found = self.in_flight.iter().filter_map(|id| Some((*id, *known.get(id)?)));
            met.extend(found);
        } else {
            let found = known.iter().filter(|(id, _)| self.in_flight.contains(id));
            met.extend(found.map(|(id, has_ended)| (*id, *has_ended)));
        }
        met.iter().for_each(|(id, _)| {
            self.in_flight.remove(id);
        });
        met
    }

    /// Items of this application that are in the store only were moved to this place and after it.
    pub(super) fn go_back(&mut self, application: &str, to: Key) {
        if self.scope.application() == application {
            self.back = Some(self.back.map_or(to, |back| back.min(to)));
        }
    }

    pub(super) fn advance(&mut self, course: &mut Course, next: Option<Key>) {
        course.advance([next, self.back.take()].into_iter().flatten().min());
    }

    /// Whether it waits for no more outcomes.
    pub(super) fn has_waited(&self, now: Now) -> bool {
        let is_over = self.until <= now.mono || self.impatient || mutated(Mutant::ScanIsImpatient);
        is_over || self.in_flight.is_empty()
    }

    pub(super) fn answer(&self) -> Answer {
        Answer::Cancelled { count: self.cancelled, in_flight: self.in_flight.len() as u64 }
    }
}
