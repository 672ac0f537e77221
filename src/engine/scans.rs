//! Commands that cover many items: all of a customer, all parked ones, a page of a list, a timeline.
//!
//! Each scans memory and the store in bounded steps, between which all other work continues. Rows of a step
//! are judged by the state of memory at that time: an item that was loaded since is handled in memory, and
//! one that ended since is skipped. Items that arrived after the command do not belong to it.
//!
//! From the moment a cancel of a customer is judged, all earlier items of that customer belong to it. A later
//! request or command that asks for such an item, or needs it in memory, finds it cancelled. Requests of that
//! customer wait until the scan has covered all items ([`super::arrivals`]). A cancel of a selection owns its
//! items in the same way, but nothing waits for it: the selection may be the whole queue.

mod flushing;
mod gather;
mod ranges;
mod running;
mod scope;
mod timeline;

use super::ids::ItemId;
use super::items::{Item, NumberMap};
use super::lookup::Lookup;
use super::mutant::{mutated, Mutant};
use super::waits::{Waiter, Waits};
use crate::core::{Core, ItemLocation, LiveItem};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use flushing::Flushing;
use gather::Gathering;
use ranges::{ranges, ScanRange};
use scope::{Scope, Traits};
use tidegate_types::event::{Load, Stored};
use tidegate_types::{Answer, Asker, Command, End, Ended, Filter, Identity, Key, Listed, Now};
use timeline::Counting;

/// How long a command waits for the outcome of items in flight, ms.
pub(crate) const OUTCOME_MS: u64 = 5_000;

/// The operation on the items.
#[derive(Debug)]
enum Kind {
    Cancel(Scope),
    Count(Scope),
    List(Filter),
    TimelineQuery(Box<Counting>),
}

/// One command under way.
#[derive(Debug)]
struct Running {
    kind: Kind,
    asker: Asker,
    command: Command,
    /// Items from this arrival number on came after the command.
    before: u64,
    /// Progress of collecting its items in memory.
    gathering: Gathering,
    /// Arrival numbers of items in memory that have not been visited.
    resident: Vec<u64>,
    /// For a count: items counted in memory, which are not counted again in the store.
    counted: NumberMap<u64, ()>,
    /// Items rescheduled since it began, and whether the scan had passed them before: in the store their new
    /// places may be ahead of the scan or behind it.
    retimed: BTreeMap<u64, bool>,
    /// Ranges of the store that are left; `None` until memory has been covered.
    ranges: Option<VecDeque<ScanRange>>,
    steps: u32,
    cancelled: u64,
    /// Items in flight whose outcomes it waits for, and when that wait ends, monotonic ms.
    in_flight: BTreeSet<Identity>,
    until: u64,
    /// It has covered all items, and waits for outcomes.
    waits: bool,
    /// It does not wait for outcomes once it has covered all items.
    impatient: bool,
    /// A step over the store is under way.
    steps_now: bool,
    /// The caller no longer waits.
    left: bool,
    by_stage: [u64; 3],
    next_due: Option<u64>,
    page: Vec<Listed>,
    /// For a list: rows of the present range so far, and the key up to which the page is complete.
    range_rows: usize,
    known_until: Option<Key>,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(crate) struct Scans {
    running: BTreeMap<u64, Running>,
    next_number: u64,
    /// Rows examined in this call by scans that began in it.
    gathered: usize,
    /// Counts of the scans that wait for outcomes.
    waits: Waits,
    /// Flushes of whole applications.
    flushing: Vec<Flushing>,
}

/// An answer that is ready.
pub(crate) type Done = (Asker, Command, Answer);

/// The results of a step.
#[derive(Debug, Default)]
pub(crate) struct Advanced {
    pub(crate) done: Vec<Done>,
    /// Items whose outcomes did not come in time: arrivals that wait because of them are judged without.
    pub(crate) given_up: Vec<Identity>,
    /// More work can be done at once.
    pub(crate) more: bool,
}

impl Scans {
    pub(crate) fn new() -> Self {
        Scans::default()
    }

    /// Begins a scan, or returns the answer that refuses it.
    pub(crate) fn begin(
        &mut self,
        core: &mut Core,
        command: Command,
        asker: Asker,
        now: Now,
    ) -> Option<Done> {
        let under_way = self.running.values().filter(|scan| !scan.waits).count() + self.flushing.len();
        if under_way >= core.live.thresholds().scans {
            return Some((asker, command, Answer::Unavailable("too many commands of this kind at one time")));
        }
        let kind = match &command {
            Command::CancelAll(of) => Kind::Cancel(Scope::Customer(of.clone())),
            Command::CancelSelected(selection) => Kind::Cancel(Scope::Selected(selection.clone())),
            Command::DropParked(application) => Kind::Cancel(Scope::Parked(application.clone())),
            Command::Count(of) => Kind::Count(Scope::Customer(of.clone())),
            Command::CountSelected(selection) => Kind::Count(Scope::Selected(selection.clone())),
            Command::List(filter) => Kind::List(filter.clone()),
            Command::TimelineQuery(timeline) => {
                Kind::TimelineQuery(Box::new(Counting::new(core, timeline, now)))
            }
            Command::FlushAll(application) => {
                self.flushing.push(Flushing::new(core, &application.clone(), command, asker));
                return None;
            }
            Command::Cancel(_)
            | Command::Lookup(_)
            | Command::Reschedule(..)
            | Command::Flush(_)
            | Command::Pause(..)
            | Command::Resume(_)
            | Command::PauseCustomer(..)
            | Command::ResumeCustomer(_)
            | Command::Slow(..)
            | Command::Retry(_) => {
                debug_assert!(false, "a command of one item or application is no scan");
                return Some((asker, command, Answer::Unknown));
            }
        };
        let mut running = Running {
            kind,
            asker,
            command,
            before: core.live.shared.journal.next_number(),
            gathering: Gathering::NotBegun,
            resident: Vec::new(),
            counted: Lookup::new(),
            retimed: BTreeMap::new(),
            ranges: None,
            steps: 0,
            cancelled: 0,
            in_flight: BTreeSet::new(),
            until: now.mono + OUTCOME_MS,
            waits: false,
            impatient: false,
            steps_now: false,
            left: false,
            by_stage: [0; 3],
            next_due: None,
            page: Vec::new(),
            range_rows: 0,
            known_until: None,
        };
        let most = core.live.thresholds().gathered;
        let mut left = most.saturating_sub(self.gathered);
        running.gather(core, &mut left);
        self.gathered = most - left;
        self.next_number += 1;
        self.running.insert(self.next_number, running);
        None
    }

    /// Number of a cancel of this customer that has not covered all items yet.
    pub(crate) fn cancel_under_way(&self, application: &str, customer: &str) -> Option<u64> {
        let found = self.running.iter().find(|(_, scan)| match &scan.kind {
            Kind::Cancel(Scope::Customer(of)) => {
                *of.application == *application && *of.customer == *customer && !scan.is_through()
            }
            Kind::Cancel(_) | Kind::Count(_) | Kind::List(_) | Kind::TimelineQuery(_) => false,
        });
        found.map(|(number, _)| *number)
    }

    /// Whether the scan has covered all items.
    pub(crate) fn is_through(&self, number: u64) -> bool {
        self.running.get(&number).is_none_or(Running::is_through)
    }

    /// Whether a cancel of a customer has been judged and has not begun.
    pub(crate) fn has_cancels_to_begin(&self) -> bool {
        let of_customer = |scan: &Running| matches!(scan.kind, Kind::Cancel(Scope::Customer(_)));
        let begins = |scan: &Running| of_customer(scan) && scan.ranges.is_none();
        self.running.last_key_value().is_some_and(|(_, scan)| begins(scan))
    }

    /// Sets the prefetch: a share of it may wait here.
    pub(crate) fn set_prefetch(&mut self, prefetch: u16) {
        if self.waits.set_prefetch(prefetch) {
            let remote = self.running.values_mut().filter(|scan| matches!(scan.asker, Asker::Remote { .. }));
            remote.for_each(|scan| scan.impatient |= scan.waits);
        }
    }

    /// Whether anything waits for the end of an attempt.
    pub(crate) fn awaits_any(&self) -> bool {
        self.running.values().any(|scan| !scan.in_flight.is_empty())
    }

    /// Advances scans that have not covered memory yet, the oldest first, within the limits of one call.
    pub(crate) fn advance(&mut self, core: &mut Core, loads: &mut Vec<Load>, now: Now) -> Advanced {
        let most = core.live.thresholds();
        let mut gather = most.gathered.saturating_sub(core::mem::take(&mut self.gathered));
        let (step, mut look) = (most.looked_at, most.looked_at_by_all);
        for (number, scan) in self.running.iter_mut().filter(|(_, scan)| scan.ranges.is_none()) {
            if !scan.gather(core, &mut gather) {
                continue;
            }
            let rest = scan.resident.len().saturating_sub(step.min(look));
            let step = scan.resident.split_off(rest);
            look -= step.len();
            for seq in step {
                match core.live.items().by_seq(seq) {
                    Some(id) => scan.visit(core, id, now),
                    // If the item was evicted since, the scan meets it in the store.
                    None => drop(scan.counted.remove(&seq)),
                }
            }
            if scan.resident.is_empty() && gather > 0 {
                let (ranges, looked_at) = ranges(core, &scan.kind, now);
                gather = gather.saturating_sub(looked_at);
                core.live.shared.count_work(looked_at as u64);
                scan.ranges = Some(ranges);
                loads.extend(scan.step(*number, core));
            }
        }
        let (mut windows, mut items) =
            (core.live.thresholds().flushed_windows, core.live.thresholds().flushed);
        for flushing in &mut self.flushing {
            flushing.advance(core, (&mut windows, &mut items), now);
        }
        let flushed: Vec<Flushing> = self.flushing.extract_if(.., |flushing| flushing.is_through()).collect();
        let more = !self.flushing.is_empty() || self.running.values().any(|scan| scan.ranges.is_none());
        let mut advanced = Advanced { more, ..self.take_done(core, now) };
        advanced.done.extend(flushed.into_iter().map(Flushing::done));
        advanced
    }

    /// Takes the rows of a step over the store.
    pub(crate) fn scanned(
        &mut self,
        core: &mut Core,
        number: u64,
        rows: Vec<Stored>,
        next: Option<Key>,
        loads: &mut Vec<Load>,
        now: Now,
    ) {
        let Some(scan) = self.running.get_mut(&number) else { return };
        scan.steps_now = false;
        if scan.left {
            return;
        }
        if core.live.shared.reads.is_given_up() {
            loads.extend(scan.step(number, core));
            return;
        }
        scan.range_rows += rows.len();
        let mut skip = mutated(Mutant::ListSkips);
        for mut stored in rows {
            if core::mem::take(&mut skip) {
                continue;
            }
            let seq = stored.key.seq;
            if scan.has_passed(&stored) {
                continue;
            }
            if let Some(id) = core.live.items().by_seq(seq) {
                scan.meet(core, id, stored, now);
            } else if core.live.shared.reads.renew(&mut stored) {
                scan.visit_far(core, stored, now);
            }
        }
        scan.advance(next, core.live.thresholds().page);
        loads.extend(scan.step(number, core));
    }

    /// Takes the outcomes of attempts for the scans that wait for them.
    pub(crate) fn outcomes(&mut self, core: &mut Core, outcomes: &[(Identity, Option<Ended>)], now: Now) {
        let waits = |scan: &&mut Running| !scan.in_flight.is_empty() && !scan.is_given_up();
        for scan in self.running.values_mut().filter(waits) {
            for (identity, ended) in outcomes {
                if !scan.in_flight.remove(identity)
                    || ended.is_some()
                    || mutated(Mutant::FailedIsNotTakenBack)
                {
                    continue;
                }
                if let Some(id) = core.live.items().by_identity(*identity) {
                    scan.visit(core, id, now);
                }
            }
        }
    }

    /// Takes the scans that are complete, or have waited long enough.
    fn take_done(&mut self, core: &Core, now: Now) -> Advanced {
        for scan in self.running.values_mut().filter(|scan| !scan.waits && scan.is_through()) {
            if !scan.in_flight.is_empty() {
                scan.waits = true;
                scan.impatient |= !self.waits.begin(Waiter::of(&scan.command, &scan.asker));
            }
        }
        let is_done = |scan: &Running| {
            let through = scan.ranges.as_ref().is_some_and(VecDeque::is_empty);
            // It keeps its place until its step has returned: else callers that come and go would have no
            // bound.
            scan.left && !scan.steps_now
                || through
                    && (scan.in_flight.is_empty()
                        || scan.until <= now.mono
                        || scan.impatient
                        || mutated(Mutant::ScanIsImpatient))
        };
        let over: Vec<u64> =
            self.running.iter().filter(|(_, scan)| is_done(scan)).map(|(number, _)| *number).collect();
        let mut advanced = Advanced::default();
        for scan in over.into_iter().filter_map(|number| self.running.remove(&number)) {
            if scan.waits {
                self.waits.end(Waiter::of(&scan.command, &scan.asker));
            }
            let answer = scan.answer(core);
            advanced.given_up.extend(scan.in_flight);
            advanced.done.push((scan.asker, scan.command, answer));
        }
        advanced
    }

    /// When the next wait for outcomes ends, monotonic ms.
    pub(crate) fn deadline(&self) -> Option<u64> {
        // Before it has covered all items no time limit applies.
        let waits = |scan: &&Running| {
            !scan.in_flight.is_empty() && scan.ranges.as_ref().is_some_and(VecDeque::is_empty)
        };
        self.running.values().filter(waits).map(|scan| scan.until).min()
    }

    /// Cancels an item that belongs to a cancel under way which has not reached it yet.
    pub(crate) fn claim(&mut self, core: &mut Core, found: ItemLocation, now: Now) -> ItemLocation {
        let ItemLocation::Live(live) = &found else { return found };
        if self.running.is_empty() {
            return found;
        }
        let (owner, customer) = match live {
            LiveItem::Resident(id) => {
                if core.is_undecided(*id) {
                    return found;
                }
                let item = &core.live.items()[*id];
                let (application, customer) = core.live.row(item).address();
                (self.owner_of(near(item, &application, customer.as_deref()), item.key().seq), customer)
            }
            LiveItem::Far(stored) if stored.outcome_unknown && !mutated(Mutant::ClaimTakesUnknown) => {
                return found
            }
            LiveItem::Far(stored) => {
                (self.owner_of(Traits::of(stored), stored.key.seq), stored.customer.clone())
            }
        };
        let Some(scan) = owner else { return found };
        let end = end_of_cancel(&scan.asker);
        scan.cancelled += u64::from(!mutated(Mutant::ClaimedUncounted));
        let ended = match live {
            LiveItem::Resident(id) => {
                let item = &core.live.items()[*id];
                let ended = (item.due(), item.tries().attempts, item.fingerprint());
                core.cancel(*id, end.clone(), now);
                ended
            }
            LiveItem::Far(stored) => {
                core.cancel_far(stored, end.clone(), now);
                (stored.due, stored.attempts, stored.fingerprint)
            }
        };
        let (due, attempts, fingerprint) = ended;
        ItemLocation::Ended(Box::new(Ended { end, at: now.wall, due, attempts, fingerprint, customer }))
    }

    /// Whether the item is in flight and a cancel takes it if its attempt fails: a request that came after
    /// the cancel is not judged by such an item. `at_once`: the request waits for no outcome, so neither does
    /// the cancel.
    pub(crate) fn may_take_back(&mut self, core: &Core, found: &ItemLocation, at_once: bool) -> bool {
        let ItemLocation::Live(LiveItem::Resident(id)) = found else { return false };
        let item = &core.live.items()[*id];
        // An item that may have been delivered before is not cancelled.
        if self.running.is_empty() || !core.is_in_flight(*id) || item.tries().outcome_unknown {
            return false;
        }
        let (application, customer) = core.live.row(item).address();
        let (traits, seq) = (near(item, &application, customer.as_deref()), item.key().seq);
        while let Some(scan) = self.owner_of(traits, seq) {
            if !at_once || !scan.is_through() {
                return true;
            }
            scan.impatient = true;
        }
        false
    }

    /// Whether a cancel that has not covered all items yet takes the item of this identity if its attempt
    /// fails.
    pub(crate) fn is_going_over(&self, core: &Core, identity: Identity) -> bool {
        if self.running.is_empty() {
            return false;
        }
        let Some(id) = core.live.items().by_identity(identity) else { return false };
        let item = &core.live.items()[id];
        let (application, customer) = core.live.row(item).address();
        let traits = near(item, &application, customer.as_deref());
        let owns = |scan: &Running| scan.owns(traits, item.key().seq);
        self.running.values().any(|scan| owns(scan) && !scan.is_through())
    }

    /// Items have been loaded: those that belong to a cancel under way are cancelled, and a count that has
    /// not begun with the store counts them in memory.
    pub(crate) fn note_restored(&mut self, core: &mut Core, restored: &[ItemId], now: Now) {
        for scan in self.running.values_mut() {
            scan.gather_restored(core, restored);
        }
        let cancels = self.running.values().any(|scan| matches!(scan.kind, Kind::Cancel(_)));
        if !cancels || mutated(Mutant::RestoredUnclaimed) {
            return;
        }
        for id in restored.iter().copied() {
            if core.live.items().get(id).is_some_and(|item| item.letter().is_none()) {
                self.claim(core, ItemLocation::Live(LiveItem::Resident(id)), now);
            }
        }
    }

    fn owner_of(&mut self, traits: Traits<'_>, seq: u64) -> Option<&mut Running> {
        self.running.values_mut().find(|scan| scan.owns(traits, seq))
    }

    /// The callers of these commands have left. Commands that change something continue to their ends.
    pub(crate) fn leave(&mut self, numbers: &[u64]) {
        let has_left = |scan: &Running| match (&scan.asker, &scan.kind) {
            (Asker::Local(number), Kind::Count(_) | Kind::List(_) | Kind::TimelineQuery(_)) => {
                numbers.contains(number) || mutated(Mutant::LeavesWithAll)
            }
            (Asker::Local(_), Kind::Cancel(_)) | (Asker::Remote { .. }, _) => false,
        };
        self.running.values_mut().filter(|scan| has_left(scan)).for_each(|scan| scan.left = true);
    }

    /// Drops remote commands, which the broker redelivers.
    pub(crate) fn forget_deliveries(&mut self) {
        let waits = &mut self.waits;
        self.running.retain(|_, scan| {
            let stays = matches!(scan.asker, Asker::Local(_));
            if !stays && scan.waits {
                waits.end(Waiter::of(&scan.command, &scan.asker));
            }
            stays
        });
    }

    /// An item of this application, with this former key and due, was rescheduled.
    pub(crate) fn retimed(&mut self, application: &str, key: Key, due: u64) {
        self.running.values_mut().for_each(|scan| scan.note_retimed(application, key, due));
    }

    /// Items that are in the store only were moved, perhaps behind a scan's position: it goes back to them.
    pub(crate) fn go_back(&mut self, application: &str, to: Key) {
        for scan in self.running.values_mut() {
            if scan.ranges.as_ref().is_none_or(VecDeque::is_empty) {
                continue;
            }
            let concerned = match &scan.kind {
                Kind::Cancel(scope) => scope.application() == application,
                Kind::Count(_) | Kind::List(_) | Kind::TimelineQuery(_) => false,
            };
            if concerned {
                scan.known_until = Some(scan.known_until.map_or(to, |known| known.min(to)));
            }
        }
    }
}

/// Traits of an item in memory, with the given names.
fn near<'a>(item: &Item, application: &'a str, customer: Option<&'a str>) -> Traits<'a> {
    Traits { application, customer, due: item.due(), received: item.received() }
}

/// The end of an item that this caller cancels.
pub(crate) fn end_of_cancel(asker: &Asker) -> End {
    match asker {
        Asker::Remote { redelivered: true, .. } => End::CancelledAgain,
        Asker::Remote { .. } | Asker::Local(_) => End::Cancelled,
    }
}
