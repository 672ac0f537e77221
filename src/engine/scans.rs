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
//!
//! Each kind of scan has a module with its state and what differs: which items it wants, what it does with
//! one in memory or in the store only, how its ranges end, and its answer. All share the [`course`].

mod cancel;
mod claims;
mod count;
mod course;
mod flushing;
mod gather;
mod list;
mod running;
mod scope;
mod timeline;

use super::ids::ItemId;
use super::mutant::{mutated, Mutant};
use super::waits::{Waiter, Waits};
use crate::core::{Core, ItemLocation, LiveItem};
use alloc::boxed::Box;
use alloc::collections::btree_map::{BTreeMap, Entry};
use alloc::vec::Vec;
use cancel::CancelScan;
use claims::Claims;
use course::Course;
use flushing::Flushing;
use running::{Kind, Running};
use scope::{Scope, Traits};
use tidegate_types::event::{Load, Stored};
use tidegate_types::{Answer, Asker, Command, Ended, Identity, Key, Now};

pub(crate) use cancel::{end_of_cancel, OUTCOME_MS};

/// See the module's page.
#[derive(Debug, Default)]
pub(crate) struct Scans {
    running: BTreeMap<u64, Running>,
    /// Those by message that have covered memory, wait for no outcome, and wait for a place at the store:
    /// there may be thousands, so no turn goes over them.
    queued: BTreeMap<u64, Running>,
    /// Those of them that claim items.
    claims: Claims,
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

    /// Begins a scan, or returns the answer that refuses it: only so many local ones may be under way. One
    /// that came by message is never refused, since its sender may take no answer; the prefetch is its limit.
    pub(crate) fn begin(
        &mut self,
        core: &mut Core,
        command: Command,
        asker: Asker,
        now: Now,
    ) -> Option<Done> {
        let (scans, most) = (core.live.thresholds().scans, core.live.thresholds().gathered);
        if matches!(asker, Asker::Local(_)) && self.local_under_way() >= scans {
            return Some((asker, command, Answer::Unavailable("too many commands of this kind at one time")));
        }
        if let Command::FlushAll(application) = &command {
            self.flushing.push(Flushing::new(core, &application.clone(), command, asker));
            return None;
        }
        let Some(kind) = Kind::of(core, &command, &asker, now) else {
            debug_assert!(false, "a command of one item or application is no scan");
            return Some((asker, command, Answer::Unknown));
        };
        let mut running = Running::new(core, kind, command, asker);
        let mut left = most.saturating_sub(self.gathered);
        running.gather(core, &mut left);
        self.gathered = most - left;
        self.next_number += 1;
        if let Some(cancel) = running.cancel() {
            self.claims.begin(self.next_number, &cancel.scope);
        }
        self.running.insert(self.next_number, running);
        None
    }

    /// Number of local commands that have not covered all items.
    fn local_under_way(&self) -> usize {
        let waits = |scan: &Running| scan.cancel().is_some_and(|cancel| cancel.waits);
        let local = self.running.values().filter(|scan| scan.is_local());
        local.filter(|scan| !waits(scan)).count() + self.flushing.len()
    }

    /// Number of a cancel of this customer that has not covered all items yet.
    pub(crate) fn cancel_under_way(&self, application: &str, customer: &str) -> Option<u64> {
        let mut its = self.claims.of_customer(application, customer).iter().copied();
        its.find(|number| !self.is_through(*number))
    }

    /// Whether the scan has covered all items.
    pub(crate) fn is_through(&self, number: u64) -> bool {
        self.get(number).is_none_or(|scan| scan.course.is_through())
    }

    fn get(&self, number: u64) -> Option<&Running> {
        self.running.get(&number).or_else(|| self.queued.get(&number))
    }

    fn is_empty(&self) -> bool {
        self.running.is_empty() && self.queued.is_empty()
    }

    /// Whether a cancel of a customer has been judged and has not begun.
    pub(crate) fn has_cancels_to_begin(&self) -> bool {
        let is_of_customer = |cancel: &CancelScan| matches!(cancel.scope, Scope::Customer(_));
        let mut to_begin = self.running.values().filter(|scan| scan.course.ranges.is_none());
        to_begin.any(|scan| scan.cancel().is_some_and(is_of_customer))
    }

    /// Sets the prefetch: a share of it may wait here.
    pub(crate) fn set_prefetch(&mut self, prefetch: u16) {
        if self.waits.set_prefetch(prefetch) {
            for scan in self.running.values_mut().filter(|scan| !scan.is_local()) {
                if let Kind::Cancel(cancel) = &mut scan.kind {
                    cancel.impatient |= cancel.waits;
                }
            }
        }
    }

    /// Whether anything waits for the end of an attempt.
    pub(crate) fn awaits_any(&self) -> bool {
        self.running.values().filter_map(Running::cancel).any(|cancel| !cancel.in_flight.is_empty())
    }

    /// Advances scans that have not covered memory yet, the oldest first, within the limits of one call.
    pub(crate) fn advance(&mut self, core: &mut Core, loads: &mut Vec<Load>, now: Now) -> Advanced {
        let most = core.live.thresholds();
        let mut gather = most.gathered.saturating_sub(core::mem::take(&mut self.gathered));
        let (step, mut look) = (most.looked_at, most.looked_at_by_all);
        let mut covered = Vec::new();
        for (number, scan) in self.running.iter_mut().filter(|(_, scan)| scan.course.ranges.is_none()) {
            if scan.gather(core, &mut gather) && scan.cover_memory(core, (step, &mut look), now) {
                covered.push(*number);
            }
        }
        self.begin_with_store(core, covered, &mut gather, loads, now);
        let (mut windows, mut items) =
            (core.live.thresholds().flushed_windows, core.live.thresholds().flushed);
        for flushing in &mut self.flushing {
            flushing.advance(core, (&mut windows, &mut items), now);
        }
        let flushed: Vec<Flushing> = self.flushing.extract_if(.., |flushing| flushing.is_through()).collect();
        let more = !self.flushing.is_empty()
            || self.running.values().any(|scan| scan.course.ranges.is_none())
            || gather == 0 && !self.queued.is_empty();
        let mut advanced = Advanced { more, ..self.take_done(core, now) };
        advanced.done.extend(flushed.into_iter().map(Flushing::done));
        advanced
    }

    /// Begins with the store where memory has been covered. Of the commands that came by message and wait for
    /// no outcome, only so many have a step under way; the others follow in order.
    fn begin_with_store(
        &mut self,
        core: &mut Core,
        covered: Vec<u64>,
        gather: &mut usize,
        loads: &mut Vec<Load>,
        now: Now,
    ) {
        for number in covered {
            let is_awaiting =
                |scan: &Running| scan.cancel().is_some_and(|cancel| !cancel.in_flight.is_empty());
            let Entry::Occupied(scan) = self.running.entry(number) else { continue };
            if !scan.get().is_local() && !is_awaiting(scan.get()) {
                self.queued.insert(number, scan.remove());
            } else if *gather > 0 {
                scan.into_mut().begin_with_store(core, gather, now);
            }
        }
        let stepping = self.running.values().filter(|scan| !scan.is_local() && scan.course.steps_now).count();
        let mut room = core.live.thresholds().scans.saturating_sub(stepping);
        while *gather > 0 && room > 0 {
            let Some((number, mut scan)) = self.queued.pop_first() else { break };
            scan.begin_with_store(core, gather, now);
            room -= usize::from(scan.is_to_step());
            self.running.insert(number, scan);
        }
        for (number, scan) in self.running.iter_mut().filter(|(_, scan)| scan.is_to_step()) {
            loads.extend(scan.step(*number, core));
        }
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
        scan.course.steps_now = false;
        if scan.left {
            return;
        }
        if !core.live.shared.reads.is_given_up() {
            scan.scanned(core, rows, next, now);
        }
        loads.extend(scan.step(number, core));
    }

    /// Takes the outcomes of attempts for the scans that wait for them.
    pub(crate) fn outcomes(&mut self, core: &mut Core, outcomes: &[(Identity, Option<Ended>)], now: Now) {
        let mut known: BTreeMap<Identity, bool> = BTreeMap::new();
        for (identity, ended) in outcomes {
            known.entry(*identity).or_insert(ended.is_some());
        }
        for scan in self.running.values_mut() {
            let Kind::Cancel(cancel) = &mut scan.kind else { continue };
            if cancel.is_given_up(&scan.course) {
                continue;
            }
            for (identity, has_ended) in cancel.take_known(&known) {
                if has_ended || mutated(Mutant::FailedIsNotTakenBack) {
                    continue;
                }
                if let Some(id) = core.live.items().by_identity(identity) {
                    scan.visit(core, id, now);
                }
            }
        }
    }

    /// Takes the scans that are complete, or have waited long enough.
    fn take_done(&mut self, core: &Core, now: Now) -> Advanced {
        for scan in self.running.values_mut().filter(|scan| scan.course.is_through()) {
            let Kind::Cancel(cancel) = &mut scan.kind else { continue };
            if !cancel.waits && !cancel.in_flight.is_empty() {
                cancel.waits = true;
                cancel.impatient |= !self.waits.begin(Waiter::of(&scan.command, &scan.asker));
            }
        }
        let over = self.running.iter().filter(|(_, scan)| scan.is_done(now));
        let over: Vec<u64> = over.map(|(number, _)| *number).collect();
        let mut advanced = Advanced::default();
        for number in over {
            let Some(scan) = self.running.remove(&number) else { continue };
            if let Some(cancel) = scan.cancel() {
                self.claims.end(number, &cancel.scope);
                if cancel.waits {
                    self.waits.end(Waiter::of(&scan.command, &scan.asker));
                }
                advanced.given_up.extend(&cancel.in_flight);
            }
            advanced.done.push(scan.end(core));
        }
        advanced
    }

    /// When the next wait for outcomes ends, monotonic ms.
    pub(crate) fn deadline(&self) -> Option<u64> {
        // Before it has covered all items no time limit applies.
        let through = self.running.values().filter(|scan| scan.course.is_through());
        let waits = through.filter_map(Running::cancel).filter(|cancel| !cancel.in_flight.is_empty());
        waits.map(|cancel| cancel.until).min()
    }

    /// Cancels an item that belongs to a cancel under way which has not reached it yet.
    pub(crate) fn claim(&mut self, core: &mut Core, found: ItemLocation, now: Now) -> ItemLocation {
        let ItemLocation::Live(live) = &found else { return found };
        if self.is_empty() {
            return found;
        }
        let traits = match live {
            LiveItem::Resident(id) if core.is_undecided(*id) => return found,
            LiveItem::Resident(id) => Traits::near(core, *id),
            LiveItem::Far(stored) if stored.outcome_unknown && !mutated(Mutant::ClaimTakesUnknown) => {
                return found
            }
            LiveItem::Far(stored) => Traits::far(stored),
        };
        let Some((cancel, _)) = self.owner_mut(&traits) else { return found };
        let end = cancel.end.clone();
        cancel.cancelled += u64::from(!mutated(Mutant::ClaimedUncounted));
        let (attempts, fingerprint) = match live {
            LiveItem::Resident(id) => {
                let item = &core.live.items()[*id];
                let tried = (item.tries().attempts, item.fingerprint());
                core.cancel(*id, end.clone(), now);
                tried
            }
            LiveItem::Far(stored) => {
                core.cancel_far(stored, end.clone(), now);
                (stored.attempts, stored.fingerprint)
            }
        };
        let Traits { customer, due, .. } = traits;
        ItemLocation::Ended(Box::new(Ended { end, at: now.wall, due, attempts, fingerprint, customer }))
    }

    /// Whether the item is in flight and a cancel takes it if its attempt fails: a request that came after
    /// the cancel is not judged by such an item. `at_once`: the request waits for no outcome, so neither does
    /// the cancel.
    pub(crate) fn may_take_back(&mut self, core: &Core, found: &ItemLocation, at_once: bool) -> bool {
        let ItemLocation::Live(LiveItem::Resident(id)) = found else { return false };
        let item = &core.live.items()[*id];
        // An item that may have been delivered before is not cancelled.
        if self.is_empty() || !core.is_in_flight(*id) || item.tries().outcome_unknown {
            return false;
        }
        let traits = Traits::near(core, *id);
        while let Some((cancel, course)) = self.owner_mut(&traits) {
            if !at_once || !course.is_through() {
                return true;
            }
            cancel.impatient = true;
        }
        false
    }

    /// Whether a cancel that has not covered all items yet takes the item of this identity if its attempt
    /// fails.
    pub(crate) fn is_going_over(&self, core: &Core, identity: Identity) -> bool {
        if self.is_empty() {
            return false;
        }
        let Some(id) = core.live.items().by_identity(identity) else { return false };
        let item = Traits::near(core, id);
        self.owner_of(&item, |scan| !scan.course.is_through()).is_some()
    }

    /// Items have been loaded: those that belong to a cancel under way are cancelled, and a count that has
    /// not begun with the store counts them in memory.
    pub(crate) fn note_restored(&mut self, core: &mut Core, restored: &[ItemId], now: Now) {
        for scan in self.running.values_mut() {
            if let Kind::Count(count) = &scan.kind {
                count.note_restored(&mut scan.course, core, restored);
            }
        }
        let cancels = !self.queued.is_empty() || self.running.values().any(|scan| scan.cancel().is_some());
        if !cancels || mutated(Mutant::RestoredUnclaimed) {
            return;
        }
        for id in restored.iter().copied() {
            if core.live.items().get(id).is_some_and(|item| item.letter().is_none()) {
                self.claim(core, ItemLocation::Live(LiveItem::Resident(id)), now);
            }
        }
    }

    /// Number of the first cancel to which an item with these traits belongs, of those that `counts` takes.
    fn owner_of(&self, item: &Traits, counts: impl Fn(&Running) -> bool) -> Option<u64> {
        let owns = |number: &u64| {
            let scan = self.get(*number).filter(|scan| counts(scan));
            scan.is_some_and(|scan| scan.cancel().is_some_and(|cancel| cancel.owns(&scan.course, item)))
        };
        self.claims.of(item).filter_map(|numbers| numbers.iter().copied().find(owns)).min()
    }

    /// The first cancel to which an item with these traits belongs.
    fn owner_mut(&mut self, item: &Traits) -> Option<(&mut CancelScan, &Course)> {
        let number = self.owner_of(item, |_| true)?;
        let scan = self.running.get_mut(&number).or_else(|| self.queued.get_mut(&number))?;
        let Kind::Cancel(cancel) = &mut scan.kind else { return None };
        Some((cancel, &scan.course))
    }

    /// The callers of these commands have left. Commands that change something continue to their ends.
    pub(crate) fn leave(&mut self, numbers: &[u64]) {
        for scan in self.running.values_mut().filter(|scan| scan.cancel().is_none()) {
            if let Asker::Local(number) = &scan.asker {
                scan.left |= numbers.contains(number) || mutated(Mutant::LeavesWithAll);
            }
        }
    }

    /// Drops remote commands, which the broker redelivers.
    pub(crate) fn forget_deliveries(&mut self) {
        let (waits, claims) = (&mut self.waits, &mut self.claims);
        self.running.append(&mut self.queued);
        self.running.retain(|number, scan| {
            let stays = scan.is_local();
            if let Some(cancel) = scan.cancel().filter(|_| !stays) {
                claims.end(*number, &cancel.scope);
                if cancel.waits {
                    waits.end(Waiter::of(&scan.command, &scan.asker));
                }
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
        for scan in self.running.values_mut().filter(|scan| scan.course.range().is_some()) {
            if let Kind::Cancel(cancel) = &mut scan.kind {
                cancel.go_back(application, to);
            }
        }
    }
}
