//! One command on its way over the items.

use super::legs::{most_steps, Leg};
use super::scope::{Scope, Traits};
use super::{end_of_cancel, Kind, Running};
use crate::engine::core::{listed, Core};
use crate::engine::event::{Along, Load, Scan, Stored};
use crate::engine::ids::ItemId;
use crate::engine::mutant::{mutated, Mutant};
use crate::engine::reads::ReadLine;
use crate::engine::types::{Answer, Key, Listed, Now};
use std::collections::VecDeque;

impl Running {
    pub(super) fn is_through(&self) -> bool {
        self.legs.as_ref().is_some_and(VecDeque::is_empty)
    }

    /// What is in flight is not its own any more.
    pub(super) fn is_given_up(&self) -> bool {
        self.impatient && self.is_through()
    }

    /// An item like this with this number is its own.
    pub(super) fn owns(&self, traits: Traits<'_>, seq: u64) -> bool {
        let Kind::Cancel(scope) = &self.kind else { return false };
        scope.claims(traits) && seq < self.before && !self.is_given_up()
    }

    /// An item of its application in memory is one that it is about.
    fn takes_near(&self, core: &Core, id: ItemId) -> bool {
        match &self.kind {
            Kind::Cancel(scope) | Kind::Count(scope) => scope.takes_near(core, id),
            Kind::List(_) | Kind::Outlook(_) => true,
        }
    }

    /// An item was given another time.
    pub(super) fn note_retimed(&mut self, application: &str, key: Key, due: u64) {
        let concerned = match &self.kind {
            // From the moment at which it is judged all that came before it is its own.
            Kind::Cancel(Scope::Customer(_) | Scope::Selected(_)) => false,
            Kind::Cancel(scope @ Scope::Parked(_)) | Kind::Count(scope) => scope.application() == application,
            Kind::List(filter) => filter.application.as_ref().is_none_or(|name| **name == *application),
            Kind::Outlook(counting) => counting.is_about(application),
        };
        if !concerned {
            return;
        }
        let is_its = |leg: &&Leg| match &leg.along {
            Along::Queue(name) | Along::Customer(name, _) => **name == *application,
        };
        // Legs of one queue follow each other. Rows under a customer lie in the order of their keys.
        let is_behind = |leg: &Leg| match &leg.along {
            Along::Queue(_) => Key { due, ..key } < leg.from,
            Along::Customer(..) => key < leg.from,
        };
        let met = self.legs.as_ref().is_some_and(|legs| legs.iter().find(is_its).is_none_or(is_behind));
        self.retimed.entry(key.seq).and_modify(|known| *known |= met).or_insert(met);
    }

    /// Of a count: this one's place lies among those that the leg before went along, and its key among those
    /// of this one.
    pub(super) fn has_passed(&self, stored: &Stored) -> bool {
        let leg = self.legs.as_ref().and_then(VecDeque::front);
        let is_below = |leg: &Leg| matches!(leg.along, Along::Customer(..)) && stored.place() < leg.low;
        matches!(self.kind, Kind::Count(_)) && leg.is_some_and(is_below)
    }

    /// It has not met this one yet, which has been given another time meanwhile.
    fn meets_anew(&mut self, seq: u64) -> bool {
        self.retimed.get_mut(&seq).is_none_or(|met| !std::mem::replace(met, true))
    }

    /// An item belongs on the page. One that is on it already, with the time that it had, is there once.
    fn show(&mut self, listed: Listed) {
        if self.retimed.contains_key(&listed.key.seq) {
            self.page.retain(|shown| shown.key.seq != listed.key.seq);
        }
        self.page.push(listed);
    }

    /// An item in memory.
    pub(super) fn look_at(&mut self, core: &mut Core, id: ItemId, now: Now) {
        if core.stock.items()[id].letter().is_some() && !mutated(Mutant::CancelAllTakesDead) {
            // It has died since the scan began.
            return;
        }
        if let Kind::Outlook(counting) = &mut self.kind {
            let listed = listed::near(core, id);
            return counting.count(&listed.application, listed.due);
        }
        let seq = core.stock.items()[id].key().seq;
        let later = seq >= self.before && !mutated(Mutant::CancelAllTakesLater);
        if !self.takes_near(core, id) {
            return;
        }
        match &self.kind {
            Kind::Cancel(_) if later => {}
            // It waits for its new time.
            Kind::Cancel(Scope::Parked(_)) if self.retimed.contains_key(&seq) => {}
            Kind::Cancel(_) => {
                if core.is_undecided(id) {
                    core.want_outcomes(true);
                    self.in_flight.insert(core.stock.items()[id].identity());
                } else {
                    self.cancelled += 1;
                    core.cancel(id, end_of_cancel(&self.asker), now);
                }
            }
            Kind::Count(_) if later => {}
            Kind::Count(_) => {
                let listed = listed::near(core, id);
                self.tally(&listed);
            }
            Kind::List(filter) => {
                let listed = listed::near(core, id);
                if filter.takes(&listed) {
                    self.show(listed);
                }
            }
            Kind::Outlook(_) => {}
        }
    }

    /// An item in the store that is in memory as well.
    pub(super) fn meet(&mut self, core: &mut Core, id: ItemId, stored: Stored, now: Now) {
        let is_new = matches!(self.kind, Kind::List(_)) || self.meets_anew(stored.key.seq);
        let takes = self.takes_near(core, id);
        match &self.kind {
            Kind::List(filter) if core.stock.items()[id].letter().is_none() => {
                let listed = Listed { properties: stored.content, ..listed::near(core, id) };
                if filter.takes(&listed) {
                    self.show(listed);
                }
            }
            Kind::Count(_) | Kind::Outlook(_) if !is_new => {}
            Kind::Count(_)
                if takes && stored.key.seq < self.before && !self.counted_in_memory(stored.key.seq) =>
            {
                let listed = listed::near(core, id);
                self.tally(&listed);
            }
            Kind::Outlook(_) if self.counted_in_memory(stored.key.seq) => {}
            Kind::Count(_) | Kind::List(_) => {}
            Kind::Cancel(_) | Kind::Outlook(_) => self.look_at(core, id, now),
        }
    }

    pub(super) fn look_at_far(&mut self, core: &mut Core, stored: Stored, now: Now) {
        let is_new = matches!(self.kind, Kind::List(_)) || self.meets_anew(stored.key.seq);
        let counted = self.counted_in_memory(stored.key.seq) || !is_new;
        if let Kind::Outlook(counting) = &mut self.kind {
            if !counted && stored.dead.is_none() {
                counting.count(&stored.application, stored.due);
            }
            return;
        }
        let later = stored.key.seq >= self.before && !mutated(Mutant::CancelAllTakesLater);
        match &self.kind {
            Kind::Cancel(scope) | Kind::Count(scope) if !scope.takes_far(&stored) => {}
            Kind::Cancel(_) if later || stored.dead.is_some() => {}
            Kind::Cancel(Scope::Parked(_)) if self.retimed.contains_key(&stored.key.seq) => {}
            // It may have been delivered, as one that is in flight.
            Kind::Cancel(_) if stored.outcome_unknown && !mutated(Mutant::CancelAllTakesUnknown) => {
                core.want_outcomes(true);
                self.in_flight.insert(stored.identity());
            }
            Kind::Cancel(_) => {
                self.cancelled += 1;
                if !mutated(Mutant::CancelAllAnswersOnly) {
                    core.cancel_far(&stored, end_of_cancel(&self.asker), now);
                }
            }
            Kind::Count(_) if later || counted || mutated(Mutant::CountsOneTooFew) => {}
            Kind::Count(_) => {
                let listed = listed::far(core, stored, now);
                self.tally(&listed);
            }
            Kind::List(filter) => {
                let listed = listed::far(core, stored, now);
                if filter.takes(&listed) {
                    self.show(listed);
                }
            }
            Kind::Outlook(_) => {}
        }
    }

    pub(super) fn tally(&mut self, item: &Listed) {
        self.by_stage[item.stage as usize] += 1;
        self.next_due = Some(self.next_due.map_or(item.due, |due| {
            if mutated(Mutant::NextDueIsTheLast) {
                due.max(item.due)
            } else {
                due.min(item.due)
            }
        }));
    }

    /// What is on the page so far is as much as one may hold. Of what is in memory more may be known by now.
    fn is_page_full(&mut self, most: u64) -> bool {
        let Kind::List(filter) = &self.kind else { return false };
        self.page.sort_unstable_by_key(|item| item.key);
        self.page.dedup_by_key(|item| item.key);
        self.page.iter().take(filter.limit).map(Listed::size).sum::<u64>() >= most
    }

    /// Where the present leg goes on, or that it is over. A page that holds `most` bytes is full.
    pub(super) fn go_on(&mut self, next: Option<Key>, most: u64) {
        let rewound = match self.kind {
            Kind::Cancel(_) => self.known_until.take(),
            Kind::Count(_) | Kind::List(_) | Kind::Outlook(_) => None,
        };
        let next = [next, rewound].into_iter().flatten().min();
        let is_full = self.is_page_full(most);
        let Some(legs) = &mut self.legs else { return };
        if let (Kind::Outlook(counting), Some(leg)) = (&mut self.kind, legs.front_mut()) {
            if !counting.goes_on(leg, next, self.leg_rows) {
                legs.pop_front();
                self.leg_rows = 0;
            }
            return;
        }
        let enough = match &self.kind {
            Kind::List(filter) => {
                let limit = filter.limit;
                self.page.len() >= limit && self.leg_rows >= limit || is_full
            }
            Kind::Cancel(_) | Kind::Count(_) | Kind::Outlook(_) => false,
        };
        match (next, legs.front_mut()) {
            (Some(next), Some(leg)) if !enough && self.steps < most_steps(&self.kind) => leg.from = next,
            (Some(next), Some(leg)) if !matches!(self.kind, Kind::List(_)) => leg.from = next,
            (next, _) => {
                if let (Some(next), Kind::List(_)) = (next, &self.kind) {
                    let known = self.known_until.map_or(next, |known| known.min(next));
                    self.known_until = Some(known);
                    self.page.retain(|item| item.key < known);
                }
                legs.pop_front();
                self.leg_rows = 0;
            }
        }
        self.skip_legs();
    }

    /// Of a list: what is left has nothing on this page.
    pub(super) fn skip_legs(&mut self) {
        let Kind::List(filter) = &self.kind else { return };
        let Some(legs) = &mut self.legs else { return };
        let last = self.page.get(filter.limit.saturating_sub(1)).map(|item| item.key);
        // Nothing behind that is on this page.
        let Some(last) = [last, self.known_until].into_iter().flatten().min() else { return };
        if let Some(leg) = legs.front().filter(|leg| leg.low > last) {
            let low = leg.low.max(filter.from);
            self.known_until = Some(self.known_until.map_or(low, |known| known.min(low)));
            legs.clear();
        }
    }

    /// The next step over the store.
    pub(super) fn step(&mut self, number: u64, core: &mut Core) -> Option<Load> {
        let leg = self.legs.as_ref()?.front()?.clone();
        self.steps += 1;
        self.steps_now = true;
        core.stock.shared.reads.begin(ReadLine::Scans);
        let step = core.stock.thresholds().step;
        let most = match &self.kind {
            Kind::List(filter) => filter.limit.clamp(1, step),
            Kind::Outlook(counting) => counting.rows(&leg, self.leg_rows).min(step),
            Kind::Cancel(_) | Kind::Count(_) => step,
        };
        Some(Load::Scan(Scan {
            number,
            along: leg.along,
            from: leg.from,
            until: leg.until,
            customer: leg.customer,
            max_rows: most,
            max_looked_at: core.stock.thresholds().step_looked_at,
            properties: matches!(self.kind, Kind::List(_)),
        }))
    }

    /// Until when the customer that was counted is held back.
    fn paused(&self, core: &Core) -> Option<u64> {
        let Kind::Count(Scope::Customer(of)) = &self.kind else { return None };
        let queue = core.stock.queues.find(&of.application)?;
        core.stock.queues[queue].passed().held_until(&of.customer)
    }

    pub(super) fn answer(&self, core: &Core) -> Answer {
        if self.left {
            return Answer::Unavailable("whoever asked has gone");
        }
        match &self.kind {
            Kind::Count(_) => {
                let [waiting, in_flight, parked] = self.by_stage;
                Answer::Counted {
                    waiting,
                    in_flight,
                    parked,
                    next_due: self.next_due,
                    paused: self.paused(core),
                }
            }
            Kind::List(filter) => {
                let mut items = self.page.clone();
                items.sort_unstable_by_key(|item| item.key);
                items.dedup_by_key(|item| item.key);
                let known = |item: &Listed| self.known_until.is_none_or(|until| item.key < until);
                items.retain(known);
                let left_out = items.get(filter.limit).map(|item| item.key);
                items.truncate(filter.limit);
                Answer::Listed {
                    items,
                    next: left_out
                        .filter(|_| self.known_until.is_none() || !mutated(Mutant::CursorSkipsAhead))
                        .or(self.known_until)
                        .filter(|_| !mutated(Mutant::ListEndsTooSoon)),
                }
            }
            Kind::Outlook(counting) => Answer::Timeline(Box::new(counting.told())),
            Kind::Cancel(_) => {
                Answer::Cancelled { count: self.cancelled, in_flight: self.in_flight.len() as u64 }
            }
        }
    }
}
