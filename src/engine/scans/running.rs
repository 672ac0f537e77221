//! The scan of one command over the items.

use super::ranges::{most_steps, ScanRange};
use super::scope::{Scope, Traits};
use super::{end_of_cancel, Kind, Running};
use crate::core::{listed, Core};
use crate::ids::ItemId;
use crate::mutant::{mutated, Mutant};
use crate::reads::ReadLine;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use tidegate_types::event::{Along, Load, Scan, Stored};
use tidegate_types::{Answer, Key, Listed, Now};

impl Running {
    pub(super) fn is_through(&self) -> bool {
        self.ranges.as_ref().is_some_and(VecDeque::is_empty)
    }

    /// Items in flight do not belong to it any more.
    pub(super) fn is_given_up(&self) -> bool {
        self.impatient && self.is_through()
    }

    /// Whether an item with these traits and this number belongs to it.
    pub(super) fn owns(&self, traits: Traits<'_>, seq: u64) -> bool {
        let Kind::Cancel(scope) = &self.kind else { return false };
        scope.claims(traits) && seq < self.before && !self.is_given_up()
    }

    /// Whether it covers this item in memory of its application.
    fn takes_near(&self, core: &Core, id: ItemId) -> bool {
        match &self.kind {
            Kind::Cancel(scope) | Kind::Count(scope) => scope.takes_near(core, id),
            Kind::List(_) | Kind::TimelineQuery(_) => true,
        }
    }

    /// An item was rescheduled.
    pub(super) fn note_retimed(&mut self, application: &str, key: Key, due: u64) {
        let concerned = match &self.kind {
            // All earlier items belong to it from the moment it is judged.
            Kind::Cancel(Scope::Customer(_) | Scope::Selected(_)) => false,
            Kind::Cancel(scope @ Scope::Parked(_)) | Kind::Count(scope) => scope.application() == application,
            Kind::List(filter) => filter.application.as_ref().is_none_or(|name| **name == *application),
            Kind::TimelineQuery(counting) => counting.is_about(application),
        };
        if !concerned {
            return;
        }
        let is_its = |range: &&ScanRange| match &range.along {
            Along::Queue(name) | Along::Customer(name, _) => **name == *application,
        };
        // Ranges of one queue are consecutive. Customer rows are in the order of their keys.
        let is_behind = |range: &ScanRange| match &range.along {
            Along::Queue(_) => Key { due, ..key } < range.from,
            Along::Customer(..) => key < range.from,
        };
        let met = self.ranges.as_ref().is_some_and(|ranges| ranges.iter().find(is_its).is_none_or(is_behind));
        self.retimed.entry(key.seq).and_modify(|known| *known |= met).or_insert(met);
    }

    /// For a count: the place of the item is in the previous range, which counted it, and its key is in the
    /// present one.
    pub(super) fn has_passed(&self, stored: &Stored) -> bool {
        let range = self.ranges.as_ref().and_then(VecDeque::front);
        let is_below =
            |range: &ScanRange| matches!(range.along, Along::Customer(..)) && stored.place() < range.low;
        matches!(self.kind, Kind::Count(_)) && range.is_some_and(is_below)
    }

    /// Whether it meets an item for the first time, if this was rescheduled since it began.
    fn meets_anew(&mut self, seq: u64) -> bool {
        self.retimed.get_mut(&seq).is_none_or(|met| !core::mem::replace(met, true))
    }

    /// Puts an item on the page. A rescheduled item that is on it with its former time is replaced.
    fn show(&mut self, listed: Listed) {
        if self.retimed.contains_key(&listed.key.seq) {
            self.page.retain(|shown| shown.key.seq != listed.key.seq);
        }
        self.page.push(listed);
    }

    /// Applies the command to an item in memory.
    pub(super) fn visit(&mut self, core: &mut Core, id: ItemId, now: Now) {
        if core.live.items()[id].letter().is_some() && !mutated(Mutant::CancelAllTakesDead) {
            // It was dead-lettered since the scan began.
            return;
        }
        if let Kind::TimelineQuery(counting) = &mut self.kind {
            let listed = listed::near(core, id);
            return counting.count(&listed.application, listed.due);
        }
        let seq = core.live.items()[id].key().seq;
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
                    self.in_flight.insert(core.live.items()[id].identity());
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
            Kind::TimelineQuery(_) => {}
        }
    }

    /// Handles a row of the store whose item is in memory too.
    pub(super) fn meet(&mut self, core: &mut Core, id: ItemId, stored: Stored, now: Now) {
        let is_new = matches!(self.kind, Kind::List(_)) || self.meets_anew(stored.key.seq);
        let takes = self.takes_near(core, id);
        match &self.kind {
            Kind::List(filter) if core.live.items()[id].letter().is_none() => {
                let listed = Listed { properties: stored.content, ..listed::near(core, id) };
                if filter.takes(&listed) {
                    self.show(listed);
                }
            }
            Kind::Count(_) | Kind::TimelineQuery(_) if !is_new => {}
            Kind::Count(_)
                if takes && stored.key.seq < self.before && !self.counted_in_memory(stored.key.seq) =>
            {
                let listed = listed::near(core, id);
                self.tally(&listed);
            }
            Kind::TimelineQuery(_) if self.counted_in_memory(stored.key.seq) => {}
            Kind::Count(_) | Kind::List(_) => {}
            Kind::Cancel(_) | Kind::TimelineQuery(_) => self.visit(core, id, now),
        }
    }

    pub(super) fn visit_far(&mut self, core: &mut Core, stored: Stored, now: Now) {
        let is_new = matches!(self.kind, Kind::List(_)) || self.meets_anew(stored.key.seq);
        let counted = self.counted_in_memory(stored.key.seq) || !is_new;
        if let Kind::TimelineQuery(counting) = &mut self.kind {
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
            // It may have been delivered, like an item in flight.
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
            Kind::TimelineQuery(_) => {}
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

    /// Whether the page holds as many bytes as it may. Items in memory may have been added since.
    fn is_page_full(&mut self, most: u64) -> bool {
        let Kind::List(filter) = &self.kind else { return false };
        self.page.sort_unstable_by_key(|item| item.key);
        self.page.dedup_by_key(|item| item.key);
        self.page.iter().take(filter.limit).map(Listed::size).sum::<u64>() >= most
    }

    /// Continues the present range at `next`, or ends it. A page that holds `most` bytes is full.
    pub(super) fn advance(&mut self, next: Option<Key>, most: u64) {
        let rewound = match self.kind {
            Kind::Cancel(_) => self.known_until.take(),
            Kind::Count(_) | Kind::List(_) | Kind::TimelineQuery(_) => None,
        };
        let next = [next, rewound].into_iter().flatten().min();
        let is_full = self.is_page_full(most);
        let Some(ranges) = &mut self.ranges else { return };
        if let (Kind::TimelineQuery(counting), Some(range)) = (&mut self.kind, ranges.front_mut()) {
            if !counting.goes_on(range, next, self.range_rows) {
                ranges.pop_front();
                self.range_rows = 0;
            }
            return;
        }
        let enough = match &self.kind {
            Kind::List(filter) => {
                let limit = filter.limit;
                self.page.len() >= limit && self.range_rows >= limit || is_full
            }
            Kind::Cancel(_) | Kind::Count(_) | Kind::TimelineQuery(_) => false,
        };
        match (next, ranges.front_mut()) {
            (Some(next), Some(range)) if !enough && self.steps < most_steps(&self.kind) => range.from = next,
            (Some(next), Some(range)) if !matches!(self.kind, Kind::List(_)) => range.from = next,
            (next, _) => {
                if let (Some(next), Kind::List(_)) = (next, &self.kind) {
                    let known = self.known_until.map_or(next, |known| known.min(next));
                    self.known_until = Some(known);
                    self.page.retain(|item| item.key < known);
                }
                ranges.pop_front();
                self.range_rows = 0;
            }
        }
        self.skip_ranges();
    }

    /// For a list: drops the remaining ranges if they have nothing on this page.
    pub(super) fn skip_ranges(&mut self) {
        let Kind::List(filter) = &self.kind else { return };
        let Some(ranges) = &mut self.ranges else { return };
        let last = self.page.get(filter.limit.saturating_sub(1)).map(|item| item.key);
        // Nothing after this key is on the page.
        let Some(last) = [last, self.known_until].into_iter().flatten().min() else { return };
        if let Some(range) = ranges.front().filter(|range| range.low > last) {
            let low = range.low.max(filter.from);
            self.known_until = Some(self.known_until.map_or(low, |known| known.min(low)));
            ranges.clear();
        }
    }

    /// The next step over the store.
    pub(super) fn step(&mut self, number: u64, core: &mut Core) -> Option<Load> {
        let range = self.ranges.as_ref()?.front()?.clone();
        self.steps += 1;
        self.steps_now = true;
        core.live.shared.reads.begin(ReadLine::Scans);
        let step = core.live.thresholds().step;
        let most = match &self.kind {
            Kind::List(filter) => filter.limit.clamp(1, step),
            Kind::TimelineQuery(counting) => counting.rows(&range, self.range_rows).min(step),
            Kind::Cancel(_) | Kind::Count(_) => step,
        };
        Some(Load::Scan(Scan {
            number,
            along: range.along,
            from: range.from,
            until: range.until,
            customer: range.customer,
            max_rows: most,
            max_looked_at: core.live.thresholds().step_looked_at,
            properties: matches!(self.kind, Kind::List(_)),
        }))
    }

    /// When the pause of the counted customer ends.
    fn paused(&self, core: &Core) -> Option<u64> {
        let Kind::Count(Scope::Customer(of)) = &self.kind else { return None };
        let queue = core.live.queues.find(&of.application)?;
        core.live.queues[queue].passed().held_until(&of.customer)
    }

    pub(super) fn answer(&self, core: &Core) -> Answer {
        if self.left {
            return Answer::Unavailable("the caller has gone");
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
            Kind::TimelineQuery(counting) => Answer::Timeline(Box::new(counting.result())),
            Kind::Cancel(_) => {
                Answer::Cancelled { count: self.cancelled, in_flight: self.in_flight.len() as u64 }
            }
        }
    }
}
