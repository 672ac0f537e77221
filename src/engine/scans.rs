//! Commands that go over many items: all of a customer, all parked ones, a page of a list, what is due when.
//!
//! Each goes over memory and over the store in bounded steps, between which everything else goes on. What a
//! step brings is judged by what memory knows then: an item that came into memory meanwhile is met there, and
//! one that ended meanwhile is passed over. Items that arrived after the command are not its own.
//!
//! From the moment a cancel of a customer is judged, whatever of that customer arrived before it is its own.
//! Something of another that comes behind it and asks for such an item, or needs it in memory, finds it
//! cancelled. Requests of that customer wait until it has gone over all items ([`super::arrivals`]).

mod gather;
mod legs;
mod timeline;

use super::core::{Core, LiveItem, Whereabouts};
use super::event::{Load, Scan, Stored};
use super::ids::ItemId;
use super::items::NumberMap;
use super::lookup::Lookup;
use super::mutant::{mutated, Mutant};
use super::types::{Answer, Asker, Command, CustomerOf, End, Ended, Filter, Identity, Key, Listed, Now};
use gather::{Gathering, GATHER_ROWS};
use legs::{legs, most_steps, Leg};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use timeline::Counting;

/// Items in memory of one step, and rows of a step over the store.
const STEP_ROWS: usize = 1_000;

/// Items in memory that the steps of one call look at.
const LOOK_ROWS: usize = 8_000;

/// Rows looked at in one step: some milliseconds of reading, in which commits wait.
const STEP_LOOKED_AT: usize = 4_000;

/// Scans at one time.
const SCANS: usize = 64;

/// How long a command waits for the outcome of items in flight, ms.
pub(super) const OUTCOME_MS: u64 = 5_000;

/// What is done to, or asked of, the items.
#[derive(Debug)]
enum Kind {
    CancelAll(CustomerOf),
    Count(CustomerOf),
    DropParked(Box<str>),
    List(Filter),
    Outlook(Box<Counting>),
}

/// One command on its way.
#[derive(Debug)]
struct Running {
    kind: Kind,
    asker: Asker,
    command: Command,
    /// Items from this arrival number on came later.
    before: u64,
    /// How far it has found out what it is about in memory.
    gathering: Gathering,
    /// Items in memory that have not been looked at.
    resident: Vec<u64>,
    /// Of a count: those that it began with. What is met in the store as well is counted once.
    counted: NumberMap<u64, ()>,
    /// What is still to be gone over, once memory has been; `None`: not known before.
    legs: Option<VecDeque<Leg>>,
    steps: u32,
    cancelled: u64,
    /// Items in flight, whose outcome is waited for until then, monotonic.
    in_flight: BTreeSet<Identity>,
    until: u64,
    by_stage: [u64; 3],
    next_due: Option<u64>,
    page: Vec<Listed>,
    /// Of a list: rows of the present leg so far; and where what is known ends.
    leg_rows: usize,
    known_until: Option<Key>,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Scans {
    running: BTreeMap<u64, Running>,
    next_number: u64,
    /// Rows that those which began in this call have looked at to find out what they are about.
    gathered: usize,
}

/// An answer that is ready.
pub(super) type Done = (Asker, Command, Answer);

/// What a step has come to.
#[derive(Debug, Default)]
pub(super) struct Advanced {
    pub(super) done: Vec<Done>,
    /// Items whose outcome was waited for in vain: what waits because of that is judged without.
    pub(super) given_up: Vec<Identity>,
    /// More is to do at once.
    pub(super) more: bool,
}

impl Scans {
    pub(super) fn new() -> Self {
        Scans::default()
    }

    /// Begins one, or says why not.
    pub(super) fn begin(
        &mut self,
        core: &mut Core,
        command: Command,
        asker: Asker,
        now: Now,
    ) -> Option<Done> {
        if self.running.len() >= SCANS {
            return Some((asker, command, Answer::Unavailable("too many commands of this kind at one time")));
        }
        let kind = match &command {
            Command::CancelAll(of) => Kind::CancelAll(of.clone()),
            Command::Count(of) => Kind::Count(of.clone()),
            Command::DropParked(application) => Kind::DropParked(application.clone()),
            Command::List(filter) => Kind::List(filter.clone()),
            Command::Outlook(outlook) => Kind::Outlook(Box::new(Counting::new(core, outlook, now))),
            Command::Cancel(_)
            | Command::Lookup(_)
            | Command::Reschedule(..)
            | Command::Flush(_)
            | Command::Pause(_)
            | Command::Resume(_)
            | Command::Retry(_) => {
                debug_assert!(false, "a command of one item or application is no scan");
                return Some((asker, command, Answer::Unknown));
            }
        };
        let mut running = Running {
            kind,
            asker,
            command,
            before: core.stock().journal().next_number(),
            gathering: Gathering::NotBegun,
            resident: Vec::new(),
            counted: Lookup::new(),
            legs: None,
            steps: 0,
            cancelled: 0,
            in_flight: BTreeSet::new(),
            until: now.mono + OUTCOME_MS,
            by_stage: [0; 3],
            next_due: None,
            page: Vec::new(),
            leg_rows: 0,
            known_until: None,
        };
        let mut left = GATHER_ROWS.saturating_sub(self.gathered);
        running.gather(core, &mut left);
        self.gathered = GATHER_ROWS - left;
        self.next_number += 1;
        self.running.insert(self.next_number, running);
        None
    }

    /// The cancel of this customer that has not gone over all items yet.
    pub(super) fn cancel_under_way(&self, application: &str, customer: &str) -> Option<u64> {
        let found = self.running.iter().find(|(_, scan)| match &scan.kind {
            Kind::CancelAll(of) => {
                *of.application == *application && *of.customer == *customer && !scan.is_through()
            }
            Kind::Count(_) | Kind::DropParked(_) | Kind::List(_) | Kind::Outlook(_) => false,
        });
        found.map(|(number, _)| *number)
    }

    /// It has gone over all items.
    pub(super) fn is_through(&self, number: u64) -> bool {
        self.running.get(&number).is_none_or(Running::is_through)
    }

    /// Whether anything waits for the end of an attempt.
    pub(super) fn awaits_any(&self) -> bool {
        self.running.values().any(|scan| !scan.in_flight.is_empty())
    }

    /// A step over memory of those that are not through with it, as many as one call has time for: those that
    /// began first.
    pub(super) fn advance(&mut self, core: &mut Core, loads: &mut Vec<Load>, now: Now) -> Advanced {
        let mut gather = GATHER_ROWS.saturating_sub(std::mem::take(&mut self.gathered));
        let mut look = LOOK_ROWS;
        for (number, scan) in self.running.iter_mut().filter(|(_, scan)| scan.legs.is_none()) {
            if !scan.gather(core, &mut gather) {
                continue;
            }
            let rest = scan.resident.len().saturating_sub(STEP_ROWS.min(look));
            let step = scan.resident.split_off(rest);
            look -= step.len();
            for seq in step {
                if let Some(id) = core.stock().items().by_seq(seq) {
                    scan.look_at(core, id, now);
                }
            }
            if scan.resident.is_empty() && gather > 0 {
                let (legs, looked_at) = legs(core, &scan.kind, now);
                gather = gather.saturating_sub(looked_at);
                core.stock_mut().count_work(looked_at as u64);
                scan.legs = Some(legs);
                loads.extend(scan.step(*number, core));
            }
        }
        let more = self.running.values().any(|scan| scan.legs.is_none());
        Advanced { more, ..self.take_done(core, now) }
    }

    /// A step over the store has come back.
    pub(super) fn scanned(
        &mut self,
        core: &mut Core,
        number: u64,
        rows: Vec<Stored>,
        next: Option<Key>,
        loads: &mut Vec<Load>,
        now: Now,
    ) {
        let Some(scan) = self.running.get_mut(&number) else { return };
        scan.leg_rows += rows.len();
        let mut skip = mutated(Mutant::ListSkips);
        for mut stored in rows {
            if std::mem::take(&mut skip) {
                continue;
            }
            let seq = stored.key.seq;
            if let Some(id) = core.stock().items().by_seq(seq) {
                scan.meet(core, id, stored, now);
            } else if core.stock().reads().renew(&mut stored) {
                scan.look_at_far(core, stored, now);
            }
        }
        scan.go_on(next);
        loads.extend(scan.step(number, core));
    }

    /// Attempts have ended that a scan waits for.
    pub(super) fn outcomes(&mut self, core: &mut Core, outcomes: &[(Identity, Option<Ended>)], now: Now) {
        for scan in self.running.values_mut().filter(|scan| !scan.in_flight.is_empty()) {
            for (identity, ended) in outcomes {
                if !scan.in_flight.remove(identity)
                    || ended.is_some()
                    || mutated(Mutant::FailedIsNotTakenBack)
                {
                    continue;
                }
                if let Some(id) = core.stock().items().by_identity(*identity) {
                    scan.look_at(core, id, now);
                }
            }
        }
    }

    /// Those that are through, or have waited long enough.
    fn take_done(&mut self, core: &Core, now: Now) -> Advanced {
        let is_done = |scan: &Running| {
            let through = scan.legs.as_ref().is_some_and(VecDeque::is_empty);
            through
                && (scan.in_flight.is_empty() || scan.until <= now.mono || mutated(Mutant::ScanIsImpatient))
        };
        let over: Vec<u64> =
            self.running.iter().filter(|(_, scan)| is_done(scan)).map(|(number, _)| *number).collect();
        let mut advanced = Advanced::default();
        for scan in over.into_iter().filter_map(|number| self.running.remove(&number)) {
            let answer = scan.answer(core);
            advanced.given_up.extend(scan.in_flight);
            advanced.done.push((scan.asker, scan.command, answer));
        }
        advanced
    }

    /// When one loses its patience, monotonic.
    pub(super) fn deadline(&self) -> Option<u64> {
        // Before it has gone over everything it has no reason to look at the clock.
        let waits = |scan: &&Running| {
            !scan.in_flight.is_empty() && scan.legs.as_ref().is_some_and(VecDeque::is_empty)
        };
        self.running.values().filter(waits).map(|scan| scan.until).min()
    }

    /// Whatever of a customer arrived before a cancel of it is its own, though it may not have come to it
    /// yet.
    pub(super) fn claim(&mut self, core: &mut Core, found: Whereabouts, now: Now) -> Whereabouts {
        let Whereabouts::Live(live) = &found else { return found };
        if self.running.is_empty() {
            return found;
        }
        let (application, customer, seq) = match live {
            LiveItem::Resident(id) => {
                if core.is_undecided(*id) {
                    return found;
                }
                let item = &core.stock().items()[*id];
                let (application, customer) = core.stock().address(item);
                (application, customer, item.key().seq)
            }
            LiveItem::Far(stored) if stored.outcome_unknown && !mutated(Mutant::ClaimTakesUnknown) => {
                return found
            }
            LiveItem::Far(stored) => {
                (Arc::clone(&stored.application), stored.customer.clone(), stored.key.seq)
            }
        };
        let Some(scan) = self.owner_of(&application, customer.as_deref(), seq) else { return found };
        let end = end_of_cancel(&scan.asker);
        scan.cancelled += 1;
        let ended = match live {
            LiveItem::Resident(id) => {
                let item = &core.stock().items()[*id];
                let ended = (item.due(), item.attempts(), item.fingerprint());
                core.cancel(*id, end.clone(), now);
                ended
            }
            LiveItem::Far(stored) => {
                core.cancel_far(stored, end.clone(), now);
                (stored.key.due, stored.attempts, stored.fingerprint)
            }
        };
        let (due, attempts, fingerprint) = ended;
        Whereabouts::Ended(Box::new(Ended { end, at: now.wall, due, attempts, fingerprint, customer }))
    }

    /// It is in flight, and a cancel of its customer takes it back if that fails: a request that came behind
    /// the cancel is not judged by it.
    pub(super) fn may_take_back(&mut self, core: &Core, found: &Whereabouts) -> bool {
        let Whereabouts::Live(LiveItem::Resident(id)) = found else { return false };
        let item = &core.stock().items()[*id];
        // What may have been delivered before is left to itself.
        if self.running.is_empty() || !core.is_in_flight(*id) || item.outcome_unknown() {
            return false;
        }
        let (application, customer) = core.stock().address(item);
        self.owner_of(&application, customer.as_deref(), item.key().seq).is_some()
    }

    /// Items have come into memory: those that belong to a cancel on its way are cancelled.
    pub(super) fn claim_restored(&mut self, core: &mut Core, restored: &[ItemId], now: Now) {
        let cancels = self.running.values().any(|scan| matches!(scan.kind, Kind::CancelAll(_)));
        if !cancels || mutated(Mutant::RestoredUnclaimed) {
            return;
        }
        for id in restored.iter().copied() {
            if core.stock().items().get(id).is_some_and(|item| !item.is_dead()) {
                self.claim(core, Whereabouts::Live(LiveItem::Resident(id)), now);
            }
        }
    }

    fn owner_of(&mut self, application: &str, customer: Option<&str>, seq: u64) -> Option<&mut Running> {
        self.running.values_mut().find(|scan| match &scan.kind {
            Kind::CancelAll(of) => {
                seq < scan.before && *of.application == *application && Some(&*of.customer) == customer
            }
            Kind::Count(_) | Kind::DropParked(_) | Kind::List(_) | Kind::Outlook(_) => false,
        })
    }

    /// The broker delivers those of its commands again that were not answered.
    pub(super) fn forget_deliveries(&mut self) {
        self.running.retain(|_, scan| matches!(scan.asker, Asker::Local(_)));
    }

    /// Members of a window got other keys in the store, perhaps behind a scan's back: it goes back to them.
    pub(super) fn rekeyed(&mut self, application: &str, to: Key) {
        for scan in self.running.values_mut() {
            let Some(leg) = scan.legs.as_mut().and_then(|legs| legs.front_mut()) else { continue };
            let concerned = match (&scan.kind, &leg.along) {
                (Kind::CancelAll(of), _) => *of.application == *application,
                (Kind::DropParked(name), _) => **name == *application,
                (Kind::Count(_) | Kind::List(_) | Kind::Outlook(_), _) => false,
            };
            if concerned {
                scan.known_until = Some(scan.known_until.map_or(to, |known| known.min(to)));
            }
        }
    }
}

impl Running {
    fn is_through(&self) -> bool {
        self.legs.as_ref().is_some_and(VecDeque::is_empty)
    }

    /// An item in memory.
    fn look_at(&mut self, core: &mut Core, id: ItemId, now: Now) {
        if core.stock().items()[id].is_dead() && !mutated(Mutant::CancelAllTakesDead) {
            // It has died since the scan began.
            return;
        }
        if let Kind::Outlook(counting) = &mut self.kind {
            let listed = core.listed(id);
            return counting.count(&listed.application, listed.due);
        }
        let seq = core.stock().items()[id].key().seq;
        let later = seq >= self.before && !mutated(Mutant::CancelAllTakesLater);
        match &self.kind {
            Kind::CancelAll(_) | Kind::DropParked(_) if later => {}
            Kind::CancelAll(_) | Kind::DropParked(_) => {
                if core.is_undecided(id) {
                    core.want_outcomes(true);
                    self.in_flight.insert(core.stock().items()[id].identity());
                } else {
                    self.cancelled += 1;
                    core.cancel(id, end_of_cancel(&self.asker), now);
                }
            }
            Kind::Count(_) if later => {}
            Kind::Count(_) => {
                let listed = core.listed(id);
                self.tally(&listed);
            }
            Kind::List(filter) => {
                let listed = core.listed(id);
                if filter.takes(&listed) {
                    self.page.push(listed);
                }
            }
            Kind::Outlook(_) => {}
        }
    }

    /// An item in the store that is in memory as well.
    fn meet(&mut self, core: &mut Core, id: ItemId, stored: Stored, now: Now) {
        match &self.kind {
            Kind::List(filter) if !core.stock().items()[id].is_dead() => {
                let listed = Listed { properties: stored.content, ..core.listed(id) };
                if filter.takes(&listed) {
                    self.page.push(listed);
                }
            }
            Kind::Count(_) if stored.key.seq < self.before && !self.counted_in_memory(stored.key.seq) => {
                let listed = core.listed(id);
                self.tally(&listed);
            }
            Kind::Outlook(_) if self.counted_in_memory(stored.key.seq) => {}
            Kind::Count(_) | Kind::List(_) => {}
            Kind::CancelAll(_) | Kind::DropParked(_) | Kind::Outlook(_) => self.look_at(core, id, now),
        }
    }

    fn look_at_far(&mut self, core: &mut Core, stored: Stored, now: Now) {
        let counted = self.counted_in_memory(stored.key.seq);
        if let Kind::Outlook(counting) = &mut self.kind {
            if !counted && stored.dead.is_none() {
                counting.count(&stored.application, stored.key.due);
            }
            return;
        }
        let later = stored.key.seq >= self.before && !mutated(Mutant::CancelAllTakesLater);
        match &self.kind {
            Kind::CancelAll(_) | Kind::DropParked(_) if later || stored.dead.is_some() => {}
            // It may have been delivered, as one that is in flight.
            Kind::CancelAll(_) | Kind::DropParked(_)
                if stored.outcome_unknown && !mutated(Mutant::CancelAllTakesUnknown) =>
            {
                core.want_outcomes(true);
                self.in_flight.insert(stored.identity());
            }
            Kind::CancelAll(_) | Kind::DropParked(_) => {
                self.cancelled += 1;
                if !mutated(Mutant::CancelAllAnswersOnly) {
                    core.cancel_far(&stored, end_of_cancel(&self.asker), now);
                }
            }
            Kind::Count(_) if later || counted || mutated(Mutant::CountsOneTooFew) => {}
            Kind::Count(_) => {
                let listed = core.listed_far(stored, now);
                self.tally(&listed);
            }
            Kind::List(filter) => {
                let listed = core.listed_far(stored, now);
                if filter.takes(&listed) {
                    self.page.push(listed);
                }
            }
            Kind::Outlook(_) => {}
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

    /// Where the present leg goes on, or that it is over.
    fn go_on(&mut self, next: Option<Key>) {
        let rewound = match self.kind {
            Kind::CancelAll(_) | Kind::DropParked(_) => self.known_until.take(),
            Kind::Count(_) | Kind::List(_) | Kind::Outlook(_) => None,
        };
        let next = [next, rewound].into_iter().flatten().min();
        let Some(legs) = &mut self.legs else { return };
        if let (Kind::Outlook(counting), Some(leg)) = (&mut self.kind, legs.front_mut()) {
            if !counting.goes_on(leg, next, self.leg_rows) {
                legs.pop_front();
                self.leg_rows = 0;
            }
            return;
        }
        let enough = match &self.kind {
            Kind::List(filter) => self.page.len() >= filter.limit && self.leg_rows >= filter.limit,
            Kind::CancelAll(_) | Kind::Count(_) | Kind::DropParked(_) | Kind::Outlook(_) => false,
        };
        match (next, legs.front_mut()) {
            (Some(next), Some(leg)) if !enough && self.steps < most_steps(&self.kind) => leg.from = next,
            (Some(next), Some(leg)) if !matches!(self.kind, Kind::List(_)) => leg.from = next,
            (next, _) => {
                if let (Some(next), Kind::List(_)) = (next, &self.kind) {
                    self.known_until = Some(self.known_until.map_or(next, |known| known.min(next)));
                }
                legs.pop_front();
                self.leg_rows = 0;
            }
        }
        self.skip_legs();
    }

    /// Of a list: what is left has nothing on this page.
    fn skip_legs(&mut self) {
        let Kind::List(filter) = &self.kind else { return };
        let Some(legs) = &mut self.legs else { return };
        self.page.sort_unstable_by_key(|item| item.key);
        self.page.dedup_by_key(|item| item.key);
        let Some(last) = self.page.get(filter.limit.saturating_sub(1)).map(|item| item.key) else { return };
        if let Some(leg) = legs.front().filter(|leg| leg.low > last) {
            let low = leg.low.max(filter.from);
            self.known_until = Some(self.known_until.map_or(low, |known| known.min(low)));
            legs.clear();
        }
    }

    /// The next step over the store.
    fn step(&mut self, number: u64, core: &mut Core) -> Option<Load> {
        let leg = self.legs.as_ref()?.front()?.clone();
        self.steps += 1;
        core.stock_mut().reads_mut().begin();
        let most = match &self.kind {
            Kind::List(filter) => filter.limit.clamp(1, STEP_ROWS),
            Kind::Outlook(counting) => counting.rows(&leg, self.leg_rows).min(STEP_ROWS),
            Kind::CancelAll(_) | Kind::Count(_) | Kind::DropParked(_) => STEP_ROWS,
        };
        Some(Load::Scan(Scan {
            number,
            along: leg.along,
            from: leg.from,
            until: leg.until,
            customer: leg.customer,
            max_rows: most,
            max_looked_at: STEP_LOOKED_AT,
            properties: matches!(self.kind, Kind::List(_)),
        }))
    }

    fn answer(&self, _core: &Core) -> Answer {
        match &self.kind {
            Kind::Count(_) => {
                let [waiting, in_flight, parked] = self.by_stage;
                Answer::Counted { waiting, in_flight, parked, next_due: self.next_due }
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
                    next: left_out.or(self.known_until).filter(|_| !mutated(Mutant::ListEndsTooSoon)),
                }
            }
            Kind::Outlook(counting) => Answer::Timeline(Box::new(counting.told())),
            Kind::CancelAll(_) | Kind::DropParked(_) => {
                Answer::Cancelled { count: self.cancelled, in_flight: self.in_flight.len() as u64 }
            }
        }
    }
}

/// How what is taken back by whoever asks has ended.
pub(super) fn end_of_cancel(asker: &Asker) -> End {
    match asker {
        Asker::Remote { redelivered: true, .. } => End::CancelledAgain,
        Asker::Remote { .. } | Asker::Local(_) => End::Cancelled,
    }
}
