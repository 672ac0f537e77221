//! The scan of one command over the items.

use super::cancel::CancelScan;
use super::count::CountScan;
use super::course::Course;
use super::list::ListScan;
use super::scope::Scope;
use super::timeline::TimelineScan;
use super::Done;
use crate::core::{listed, Core};
use crate::ids::ItemId;
use crate::mutant::{mutated, Mutant};
use crate::reads::ReadLine;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use tidegate_types::event::{Load, Scan, Stored};
use tidegate_types::{Answer, Asker, Command, Key, Now};

/// The operation on the items.
#[derive(Debug)]
pub(super) enum Kind {
    Cancel(CancelScan),
    Count(CountScan),
    List(ListScan),
    Timeline(TimelineScan),
}

impl Kind {
    /// `None`: the command is no scan.
    pub(super) fn of(core: &Core, command: &Command, asker: &Asker, now: Now) -> Option<Self> {
        let cancel = |scope: Scope| Some(Kind::Cancel(CancelScan::new(scope, asker, now)));
        let count = |scope: Scope| Some(Kind::Count(CountScan::new(scope)));
        match command {
            Command::CancelAll(of) => cancel(Scope::Customer(of.clone())),
            Command::CancelSelected(selection) => cancel(Scope::Selected(selection.clone())),
            Command::DropParked(application) => cancel(Scope::Parked(application.clone())),
            Command::Count(of) => count(Scope::Customer(of.clone())),
            Command::CountSelected(selection) => count(Scope::Selected(selection.clone())),
            Command::List(filter) => Some(Kind::List(ListScan::new(filter.clone()))),
            Command::TimelineQuery(timeline) => Some(Kind::Timeline(TimelineScan::new(core, timeline, now))),
            Command::Cancel(_)
            | Command::Lookup(_)
            | Command::Reschedule(..)
            | Command::Flush(_)
            | Command::FlushAll(_)
            | Command::Pause(..)
            | Command::Resume(_)
            | Command::PauseCustomer(..)
            | Command::ResumeCustomer(_)
            | Command::Slow(..)
            | Command::Retry(_) => None,
        }
    }
}

/// One command under way.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) kind: Kind,
    pub(super) course: Course,
    pub(super) asker: Asker,
    pub(super) command: Command,
    /// The caller no longer waits.
    pub(super) left: bool,
}

impl Running {
    pub(super) fn new(core: &Core, kind: Kind, command: Command, asker: Asker) -> Self {
        let counts = matches!(kind, Kind::Count(_) | Kind::Timeline(_));
        let course = Course::new(core.live.shared.journal.next_number(), counts);
        Running { kind, course, asker, command, left: false }
    }

    pub(super) fn cancel(&self) -> Option<&CancelScan> {
        let Kind::Cancel(cancel) = &self.kind else { return None };
        Some(cancel)
    }

    /// Records the arrival numbers of its items in memory, `left` rows at most. Whether these are all.
    pub(super) fn gather(&mut self, core: &mut Core, left: &mut usize) -> bool {
        self.course.gather(core, left, |core, left| match &mut self.kind {
            Kind::Cancel(cancel) => cancel.scope.in_memory(core),
            Kind::Count(count) => count.scope.in_memory(core),
            Kind::List(list) => list.in_memory(core, left),
            Kind::Timeline(timeline) => timeline.in_memory(core),
        })
    }

    /// Visits gathered items in memory, `step` of them and `look` of all scans at most. Whether these were
    /// all.
    pub(super) fn cover_memory(
        &mut self,
        core: &mut Core,
        (step, look): (usize, &mut usize),
        now: Now,
    ) -> bool {
        let rest = self.course.resident.len().saturating_sub(step.min(*look));
        let step = self.course.resident.split_off(rest);
        *look -= step.len();
        for seq in step {
            if let Some(id) = core.live.items().by_seq(seq) {
                self.visit(core, id, now);
            } else if let Some(counted) = &mut self.course.counted {
                // If the item was evicted since, the scan meets it in the store.
                counted.remove(&seq);
            }
        }
        self.course.resident.is_empty()
    }

    /// Finds what to scan in the store. `gather`: the number of rows that may be examined.
    pub(super) fn begin_with_store(&mut self, core: &mut Core, gather: &mut usize, now: Now) {
        let (ranges, looked_at) = match &mut self.kind {
            // Memory holds all items.
            _ if !core.live.shared.journal.is_durable() => (VecDeque::new(), 0),
            Kind::Cancel(cancel) => cancel.scope.ranges(core, now),
            Kind::Count(count) => count.scope.ranges(core, now),
            Kind::List(list) => list.ranges(core, now),
            Kind::Timeline(timeline) => timeline.take_ranges(),
        };
        self.course.ranges = Some(ranges);
        *gather = gather.saturating_sub(looked_at);
        core.live.shared.count_work(looked_at as u64);
    }

    /// An item was rescheduled.
    pub(super) fn note_retimed(&mut self, application: &str, key: Key, due: u64) {
        let is_concerned = match &self.kind {
            Kind::Cancel(cancel) => cancel.spares_retimed(application),
            Kind::Count(count) => count.scope.application() == application,
            Kind::List(list) => list.is_about(application),
            Kind::Timeline(timeline) => timeline.is_about(application),
        };
        if is_concerned {
            self.course.note_retimed(application, key, due);
        }
    }

    /// Applies the command to an item in memory.
    pub(super) fn visit(&mut self, core: &mut Core, id: ItemId, now: Now) {
        if core.live.items()[id].letter().is_some() && !mutated(Mutant::CancelAllTakesDead) {
            // It was dead-lettered since the scan began.
            return;
        }
        match &mut self.kind {
            Kind::Cancel(cancel) => cancel.visit(&self.course, core, id, now),
            Kind::Count(count) => count.visit(&self.course, core, id),
            Kind::List(list) => list.show(&self.course, listed::near(core, id)),
            Kind::Timeline(timeline) => {
                let listed = listed::near(core, id);
                timeline.count(&listed.application, listed.due);
            }
        }
    }

    /// Handles a row of the store whose item is in memory too.
    fn meet(&mut self, core: &mut Core, id: ItemId, stored: Stored, now: Now) {
        let seq = stored.key.seq;
        match &mut self.kind {
            Kind::Cancel(_) => self.visit(core, id, now),
            Kind::Count(count) => count.meet(&mut self.course, core, id, seq),
            Kind::List(list) => list.meet(&self.course, core, id, stored),
            Kind::Timeline(_) => {
                if self.course.meets_anew(seq) {
                    self.visit(core, id, now);
                }
            }
        }
    }

    /// Applies the command to an item that is in the store only.
    fn visit_far(&mut self, core: &mut Core, stored: Stored, now: Now) {
        match &mut self.kind {
            Kind::Cancel(cancel) => cancel.visit_far(&self.course, core, &stored, now),
            Kind::Count(count) => count.visit_far(&mut self.course, core, stored, now),
            Kind::List(list) => list.show(&self.course, listed::far(core, stored, now)),
            Kind::Timeline(timeline) => timeline.visit_far(&mut self.course, &stored),
        }
    }

    /// Takes the rows of a step over the store; the next one is to begin at `next`.
    pub(super) fn scanned(&mut self, core: &mut Core, rows: Vec<Stored>, next: Option<Key>, now: Now) {
        self.course.range_rows += rows.len();
        let mut skip = mutated(Mutant::ListSkips);
        for mut stored in rows {
            if core::mem::take(&mut skip) {
                continue;
            }
            if matches!(self.kind, Kind::Count(_)) && self.course.has_passed(&stored) {
                continue;
            }
            if let Some(id) = core.live.items().by_seq(stored.key.seq) {
                self.meet(core, id, stored, now);
            } else if core.live.shared.reads.renew(&mut stored) {
                self.visit_far(core, stored, now);
            }
        }
        match &mut self.kind {
            Kind::Cancel(cancel) => cancel.advance(&mut self.course, next),
            Kind::Count(_) => self.course.advance(next),
            Kind::List(list) => list.advance(&mut self.course, next, core.live.thresholds().page),
            Kind::Timeline(timeline) => timeline.advance(&mut self.course, next),
        }
    }

    /// The next step over the store.
    pub(super) fn step(&mut self, number: u64, core: &mut Core) -> Option<Load> {
        let range = self.course.range()?.clone();
        let step = core.live.thresholds().step;
        let max_rows = match &self.kind {
            Kind::Cancel(_) | Kind::Count(_) => step,
            Kind::List(list) => list.max_rows(step),
            Kind::Timeline(timeline) => timeline.max_rows(&range, self.course.range_rows).min(step),
        };
        self.course.steps += 1;
        self.course.steps_now = true;
        core.live.shared.reads.begin(ReadLine::Scans);
        Some(Load::Scan(Scan {
            number,
            along: range.along,
            from: range.from,
            until: range.until,
            customer: range.customer,
            max_rows,
            max_looked_at: core.live.thresholds().step_looked_at,
            properties: matches!(self.kind, Kind::List(_)),
        }))
    }

    /// Whether its caller is local. Else it came by message.
    pub(super) fn is_local(&self) -> bool {
        matches!(self.asker, Asker::Local(_))
    }

    /// Whether it has covered memory and has not begun with the store.
    pub(super) fn is_to_step(&self) -> bool {
        !self.left && !self.course.steps_now && self.course.range().is_some()
    }

    /// Whether it is to be answered.
    pub(super) fn is_done(&self, now: Now) -> bool {
        // It keeps its place until its step has returned: else callers that come and go would have no bound.
        self.left && !self.course.steps_now
            || self.course.is_through() && self.cancel().is_none_or(|cancel| cancel.has_waited(now))
    }

    pub(super) fn end(self, core: &Core) -> Done {
        if self.left {
            return (self.asker, self.command, Answer::Unavailable("the caller has gone"));
        }
        let answer = match self.kind {
            Kind::Cancel(cancel) => cancel.answer(),
            Kind::Count(count) => count.answer(core),
            Kind::List(list) => list.answer(),
            Kind::Timeline(timeline) => timeline.answer(),
        };
        (self.asker, self.command, answer)
    }
}
