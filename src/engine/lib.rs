//! The pure engine: it decides what is due when, which items leave together, what is safe to acknowledge and
//! what the store must do. It reads no clock, does no I/O, has no randomness, no async, and cannot fail.
//!
//! The contract is one verb: [`Engine::handle`] takes an input and the present moment, and returns one batch
//! of effects in the order of execution. [`Engine::next_deadline`] returns when the engine must be called
//! again if no input comes before. The same inputs at the same moments give the same effects, bit for bit.
//!
//! Each part owns its state, which other parts change through its methods only. Dependencies have no cycles.
//!
//! | part | owns | decides |
//! | --- | --- | --- |
//! | `turn_state` | flags kept between two calls | whether a clock has stepped |
//! | [`live`] | all items that have not ended | how items enter, move and end; what leaves memory |
//! | [`items`], [`queue`], [`customers`], [`schedule`] | its tables | counts, order, ends |
//! | [`journal`], [`ledger`] | pending writes, and what waits for them | acks, answers; is there a store |
//! | [`reads`] | reads and look-ups under way | which answers are out of date |
//! | [`loader`] | reads of queues | what is loaded into memory |
//! | [`dispatch`], [`health`], [`pace`] | batches under way | what is sent next, how, and how fast |
//! | [`core`](self::core) | the parts above | how items end; what an outcome means |
//! | [`arrivals`], [`judge`], [`duplicates`] | arrivals not judged yet | what becomes of a request |
//! | [`thresholds`] | nothing | the amounts at which behaviour changes |
//! | [`waits`] | how many arrivals wait for outcomes | which may wait for one |
//! | [`admission`] | limits | whether there is room |
//! | [`commands`], [`scans`] | commands under way | what is answered |
//! | [`report`] | nothing | what is reported |
//! | [`recent`] | identities of ended items | where an end may be remembered |
//! | [`repeats`] | commands that may come again | what is safe only with them |
//!
//! The caller must keep these rules:
//! - effects are executed in the order of their fields, and those of one call before those of the next;
//! - reads see every write handed over before them that concerns their answer
//!   ([`tidegate_types::event::Footprint`]), and are answered in order, scans apart from the others;
//! - each publish is settled exactly once, also when the connection is lost
//!   ([`tidegate_types::Outcome::Unknown`], before [`Input::EgressLost`]);
//! - `now.mono` never goes back.

#![cfg_attr(not(test), no_std)]

#[macro_use]
extern crate alloc;

mod admission;
mod arrivals;
mod backoff;
mod commands;
mod core;
mod customers;
mod debts;
mod dispatch;
mod duplicates;
mod health;
mod ids;
mod items;
mod journal;
mod judge;
mod ledger;
mod live;
mod loader;
mod lookup;
mod mutant;
pub mod pace;
mod queue;
mod reads;
mod ready;
mod recent;
mod repeats;
mod report;
mod scans;
mod schedule;
mod slab;
mod turn_state;
mod waits;
mod window;

#[cfg(test)]
pub(crate) mod tests;

use self::core::Core;
use admission::Limits;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use arrivals::{Arrival, Arrivals, LineName, Next, Placed};
use commands::Executed;
use dispatch::Dispatch;
use journal::{Journal, MoveRoom};
use judge::{Decider, Decision, Hurry};
pub use ledger::Ledger;
use live::{LiveItems, Origin};
use loader::Loader;
use mutant::{mutated, Mutant};
use queue::Queues;
use recent::Recent;
use scans::{Advanced, Scans};
use tidegate_types::event::{Deadline, Effects, Input, Intake, Loaded, Opened};
use tidegate_types::snapshot::{Counters, Snapshot};
use tidegate_types::{Answer, Asker, Command, Delivery, Now, Reply, Request, RequestBody, Settings};
use turn_state::{ClockStep, TurnState};

/// Random numbers of one engine.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    /// Of the jitter of back-off. It need not be secret.
    pub jitter: u64,
    /// Of the hashes of names. It must be secret, because producers choose names.
    pub names: u64,
}

/// See the module's page.
pub struct Engine {
    settings: Arc<Settings>,
    core: Core,
    arrivals: Arrivals,
    limits: Limits,
    loader: Loader,
    scans: Scans,
    turn_state: TurnState,
    fx: Effects,
}

impl Engine {
    /// An engine over the contents of a store at its opening.
    pub fn new(settings: Settings, opened: &Opened, seeds: Seeds, now: Now) -> Self {
        let settings = Arc::new(settings);
        let queues = Queues::new(Arc::clone(&settings), &opened.queues, seeds.names);
        let journal = Journal::new(settings.hold_max.is_none(), opened.marks, settings.thresholds, now);
        let live = LiveItems::new(queues, journal, settings.budget, now);
        let mut recent = Recent::new(&opened.buckets, opened.marks.wall, now);
        recent.configure(settings.longest_tail(), settings.budget.filters);
        let dispatch = Dispatch::new(&settings);
        let mut engine = Engine {
            core: Core::new(live, dispatch, recent, seeds.jitter),
            arrivals: Arrivals::new(),
            limits: Limits::default(),
            loader: Loader::new(now),
            scans: Scans::new(),
            turn_state: TurnState::new(now),
            fx: Effects::default(),
            settings,
        };
        engine.core.live.reopen(opened, now);
        engine.limits.note_surplus(&engine.core.live);
        engine
    }

    /// Takes an input or a deadline. Returns the effects to execute.
    pub fn handle(&mut self, input: Input, now: Now) -> Effects {
        self.observe(now);
        match input {
            Input::Requests(requests) => requests.into_iter().for_each(|request| self.take_request(request)),
            Input::Committed(token) => self.core.live.shared.committed(token),
            Input::Loaded(loaded) => self.loaded(loaded, now),
            Input::Settled(settled) => self.core.hand_in(settled),
            Input::Commands(commands) => {
                for (asker, command) in commands {
                    self.arrivals.push(Arrival::Command { command, asker });
                }
            }
            Input::Left(numbers) => self.scans.leave(&numbers),
            Input::Answered(deliveries) => self.core.live.shared.journal.answered(deliveries),
            Input::Forwarded(deliveries) => {
                deliveries.into_iter().for_each(|delivery| self.core.live.shared.journal.safe(delivery));
            }
            Input::IngestReady { generation } => self.restart_ingest(generation),
            Input::IngestLost => self.restart_ingest(0),
            Input::Prefetch(prefetch) => {
                self.arrivals.set_prefetch(prefetch);
                self.scans.set_prefetch(prefetch);
            }
            Input::EgressReady => self.core.dispatch.egress.set_ready(true),
            Input::EgressLost => self.core.dispatch.egress.set_ready(false),
            Input::EgressBlocked(blocked) => self.core.dispatch.set_blocked(blocked, now),
            Input::StoreFull(full) => self.limits.set_store_full(full),
            Input::Configure(settings) => self.configure(*settings, now),
            Input::Drain => self.turn_state.draining = true,
            Input::Tick => {}
        }
        self.turn(now);
        ::core::mem::take(&mut self.fx)
    }

    /// When to call [`Engine::handle`] with [`Input::Tick`] at the latest. `None` in both clocks: no tick is
    /// needed before the next event.
    pub fn next_deadline(&self) -> Deadline {
        if self.turn_state.more {
            return Deadline { wall: Some(0), mono: Some(0) };
        }
        let (core, live) = (&self.core, &self.core.live);
        let wall = [live.next_end(), self.loader.deadline(self.turn_state.clocks.last())];
        let mono = [
            live.customers().next_look(),
            live.shared.journal.deadline(),
            live.shared.deferred_until(),
            core.dispatch.deadline(live),
            core.recent.deadline(),
            self.arrivals.deadline(),
            self.scans.deadline(),
        ];
        Deadline { wall: wall.into_iter().flatten().min(), mono: mono.into_iter().flatten().min() }
    }

    /// The last call left work that must be done at once.
    pub fn is_behind(&self) -> bool {
        self.turn_state.more
    }

    /// Nothing is due, in flight or waiting for the store: a graceful shutdown waits for this. Items that
    /// cannot be delivered at present do not count: with a durable store they are safe, and without one their
    /// requests were never acked.
    pub fn is_idle(&self) -> bool {
        !self.turn_state.more && !self.loader.is_reading() && self.core.is_idle()
    }

    /// Whether something could go on once outcomes of publishes or further requests are known: due items wait
    /// for a slot or for memory, requests for room, arrivals or commands for an outcome, the consumer for
    /// acks, or the shutdown for all. If not, these may come somewhat later.
    pub fn waits_for_events(&self) -> bool {
        let TurnState { draining, taking, no_room, more, .. } = self.turn_state;
        let (live, journal) = (&self.core.live, &self.core.live.shared.journal);
        draining
            || !taking
            || no_room
            || more
            || live.queues.ready_rows() > 0
            || live.queues.is_anything_running()
            || self.core.dispatch.flights.count() > self.core.dispatch.egress.slots()
            || self.loader.is_blocked()
            || live.shared.free_rows() == 0
            || !self.arrivals.is_clear()
            || self.arrivals.awaits_any()
            || self.scans.awaits_any()
            || journal.is_answer_awaited()
            || journal.ledger().unacked() >= self.arrivals.half_of_prefetch()
    }

    /// Totals since the start of the process.
    pub fn counters(&self) -> &Counters {
        self.core.live.shared.counters()
    }

    /// Continues from the totals of a previous engine.
    pub fn count_from(&mut self, totals: Counters) {
        *self.core.live.shared.counters_mut() = totals;
    }

    /// Items that have not ended, items that are due and in memory, and open windows.
    pub fn sums(&self) -> (u64, u64, u64) {
        let live = &self.core.live;
        (live.queues.total(), live.queues.ready_rows(), live.customers().open_windows())
    }

    /// Whether an item is due that nothing holds back. This lasts for a moment only, unless egress is closed
    /// or the engine has overlooked the item. Costs time proportional to the number of applications.
    pub fn is_overlooked(&self, now: Now) -> bool {
        report::is_overlooked(&self.core, now)
    }

    /// The state at this moment. Costs time proportional to the number of applications that have items, not
    /// to the number of items.
    pub fn snapshot(&self, now: Now) -> Snapshot {
        report::take(&self.core, !self.turn_state.taking, now)
    }

    // ---- what happens -------------------------------------------------------------------------------------

    /// Notices steps of the wall clock, also those that are too small to be counted. After a step forward,
    /// items that became due leave now; after a step backward, all items wait for their times anew.
    fn observe(&mut self, now: Now) {
        let ClockStep { forward, backward, less, drifted } = self.turn_state.clocks.observe(now);
        self.core.recent.observe(now);
        let live = &mut self.core.live;
        live.queues.observe(now);
        live.shared.counters_mut().clock_forward += u64::from(forward);
        live.shared.counters_mut().clock_backward += u64::from(backward);
        if drifted && !mutated(Mutant::StepUnnoticed) {
            live.recheck(now);
        }
        if less {
            live.shared.rebase(now);
        }
    }

    fn take_request(&mut self, request: Request) {
        let Request { delivery, redelivered, received, body } = request;
        let live = &mut self.core.live;
        if !live.shared.journal.ledger().is_current(delivery) {
            return;
        }
        // Its home counts what goes there as a whole.
        let is_counted = !matches!(&body, RequestBody::Elsewhere(items) if items.is_empty());
        live.shared.counters_mut().received += u64::from(is_counted);
        live.shared.counters_mut().redelivered += u64::from(is_counted && redelivered);
        let journal = &mut live.shared.journal;
        let several = match &body {
            RequestBody::Items(items) | RequestBody::Elsewhere(items) => items.len() > 1,
            RequestBody::Rejected(_) | RequestBody::Command(..) => false,
        };
        let origin = Origin { delivery, received, redelivered, several };
        let elsewhere =
            u32::from(matches!(body, RequestBody::Elsewhere(_)) && !mutated(Mutant::ForwardUnawaited));
        match body {
            RequestBody::Items(items) | RequestBody::Elsewhere(items) => {
                let behind = journal.repeats().requests(delivery.tag, &items);
                journal.open_delivery(delivery, items.len() as u32 + elsewhere, behind);
                for item in items {
                    self.arrivals.push(Arrival::Item(Box::new(item), origin));
                }
            }
            RequestBody::Rejected(rejected) => {
                journal.open_delivery(delivery, 1, 0);
                self.arrivals.push(Arrival::Rejected(rejected, origin));
            }
            RequestBody::Command(command, reply_to) => {
                let behind = journal.repeats().command(delivery.tag, &command);
                journal.open_delivery(delivery, 1, behind);
                let asker = Asker::Remote { delivery, redelivered, reply_to };
                self.arrivals.push(Arrival::Command { command, asker });
            }
        }
    }

    fn loaded(&mut self, loaded: Loaded, now: Now) {
        let line = reads::ReadLine::of(&loaded);
        match loaded {
            Loaded::Contents(contents) => self.core.contents_loaded(contents),
            Loaded::Ranges(ranges) => {
                let restored = self.loader.loaded(&mut self.core.live, ranges, now);
                self.scans.note_restored(&mut self.core, &restored, now);
            }
            Loaded::Found(found) => self.arrivals.found(found),
            Loaded::Scanned { number, rows, next } => {
                self.scans.scanned(&mut self.core, number, rows, next, &mut self.fx.loads, now);
            }
        }
        line.into_iter().for_each(|line| self.core.live.shared.reads.end(line));
    }

    /// The broker redelivers every unacked message: items whose only copy is such a message are forgotten, or
    /// they would exist twice.
    fn restart_ingest(&mut self, generation: u32) {
        self.core.live.shared.journal.restart_deliveries(generation);
        if !self.arrivals.is_clear() {
            self.limits.keep_out(self.turn_state.clocks.last());
        }
        self.turn_state.no_room = false;
        self.arrivals.forget_deliveries(&mut self.core.live.shared.watch);
        self.scans.forget_deliveries();
        self.core.orphan_pending();
    }

    fn configure(&mut self, settings: Settings, now: Now) {
        self.settings = Arc::new(settings);
        self.core.recent.configure(self.settings.longest_tail(), self.settings.budget.filters);
        self.core.dispatch.configure(&self.settings);
        self.limits.configure(&mut self.core.live);
        self.core.live.queues.configure(Arc::clone(&self.settings));
        self.limits.note_surplus(&self.core.live);
        self.core.reconfigured(now);
        self.core.live.configure(self.settings.budget, now);
    }

    // ---- one turn -----------------------------------------------------------------------------------------

    /// The turn after every input, in this order: ended publishes, arrivals, time, egress, memory, store.
    fn turn(&mut self, now: Now) {
        self.turn_state.more = false;
        self.core.want_outcomes(self.arrivals.awaits_any() || self.scans.awaits_any());
        let ended = self.core.settle(self.settings.thresholds.ended, now);
        self.tell_outcomes(now);
        self.end_waits(now);
        let stopped_at = self.judge_arrivals(now);
        if self.scans.has_cancels_to_begin() {
            // Else items that came before a cancel and are due would leave before it takes them.
            self.advance_scans(now);
        }
        self.pass_time(now);
        self.turn_state.more |= !self.core.end_pauses(now);
        // Else a failure that has not been processed yet would be overtaken.
        let sent = self.settings.thresholds.sent;
        self.turn_state.more |= !ended || self.core.pump(sent, now, &mut self.fx.publishes);
        // Else a channel would be given up for room that a settled one, not processed yet, has left.
        if ended {
            self.fx.give_up = self.core.dispatch.give_up(&self.core.live, now);
            self.trim(now);
        }
        self.tell_outcomes(now);
        self.release_waiting();
        self.advance_scans(now);
        self.notice_room(stopped_at);
        self.core.live.shared.tell_retold(|application, to| self.scans.go_back(application, to));
        self.turn_state.more |= self.core.live.clear_out(now);
        self.turn_state.more |= self.loader.advance(&mut self.core.live, now, &mut self.fx.loads);
        self.fx.loads.extend(self.core.dispatch.take_lacking(&self.core.live));
        self.core.recent.forget(&mut self.core.live.shared.journal, now.wall);
        self.ask(now);
        self.commit(now);
        self.core.live.queues.tidy();
        self.core.live.tidy_reads();
        self.steer_intake();
    }

    /// Items and windows whose time has come.
    fn pass_time(&mut self, now: Now) {
        let turn = self.settings.thresholds;
        // Windows last: else items that were due before them would leave after them.
        let all = self.core.live.take_due(turn.due, now) && self.core.live.close_ripe(turn, now);
        self.turn_state.more |= !all;
        let live = &mut self.core.live;
        self.turn_state.more |= self.limits.flush(live, now);
        live.store_deferred(now);
    }

    /// Schedules a turn if room was freed after the queue of requests was judged: no other event may wake it.
    fn notice_room(&mut self, before: [u64; 3]) {
        let made = admission::occupied(&self.core.live).iter().zip(before).any(|(now, before)| *now < before);
        self.turn_state.more |= self.turn_state.no_room && made;
    }

    /// Dead-letters items beyond the limit of an application whose policy drops the oldest.
    fn trim(&mut self, now: Now) {
        if self.core.live.shared.journal.room_to_move() == MoveRoom::OnceDurable {
            return;
        }
        for (id, sentence) in self.limits.trim(&mut self.core.live) {
            if self.core.live.items().get(id).is_none() {
                // It was evicted from memory for another's dead letter: the next turn looks it up.
                self.turn_state.more = true;
                continue;
            }
            if self.core.live.shared.journal.room_to_move() != MoveRoom::Free {
                self.limits.trim_again(self.core.live.items()[id].queue());
                self.turn_state.more = true;
                continue;
            }
            self.core.unlist(id);
            self.core.dead_letter(id, tidegate_types::Reason::Full, &sentence, now);
        }
        self.turn_state.more |= self.limits.is_trimming(&self.core.live);
    }

    /// Attempts have ended: arrivals that wait for them are judged now, before new ones.
    fn tell_outcomes(&mut self, now: Now) {
        let outcomes = self.core.take_outcomes();
        if outcomes.is_empty() {
            return;
        }
        self.scans.outcomes(&mut self.core, &outcomes, now);
        for (identity, ended) in &outcomes {
            self.arrivals.outcome_known(*identity, ended.as_ref(), &mut self.core.live.shared.watch);
        }
        self.turn_state.more |= self.arrivals.has_returned();
    }

    fn advance_scans(&mut self, now: Now) {
        let loads = &mut self.fx.loads;
        let Advanced { done, given_up, more } = self.scans.advance(&mut self.core, loads, now);
        self.turn_state.more |= more;
        self.turn_state.more |= self.arrivals.scans_ended(|number| self.scans.is_through(number));
        if !given_up.is_empty() && !mutated(Mutant::EndOfPatienceUntold) {
            // A request waits for these outcomes no longer than the cancel that came before it.
            for identity in given_up {
                self.arrivals.outcome_known(identity, None, &mut self.core.live.shared.watch);
            }
            self.turn_state.more |= self.arrivals.has_returned();
        }
        done.into_iter().for_each(|done| self.reply(done));
    }

    /// Answers commands whose time limit for an outcome has passed.
    fn end_waits(&mut self, now: Now) {
        for (command, asker) in self.arrivals.end_waits(now) {
            self.reply((asker, command, Answer::InFlight));
        }
    }

    /// More arrivals wait for outcomes than may: requests are decided without them, commands are answered.
    fn release_waiting(&mut self) {
        let (core, scans) = (&self.core, &self.scans);
        let may = |id: tidegate_types::Identity| core.may_be_superseded(id) && !scans.is_going_over(core, id);
        let Some(commands) = self.arrivals.release(may) else { return };
        for (command, asker) in commands {
            self.reply((asker, command, Answer::InFlight));
        }
        self.turn_state.more |= self.arrivals.has_returned();
    }

    fn reply(&mut self, (asker, command, answer): scans::Done) {
        let command = Some(Box::new(command));
        self.core.live.shared.journal.reply(Reply { asker, command, answer });
    }

    /// Asks the store for what the next arrivals need.
    fn ask(&mut self, now: Now) {
        let settings = Arc::clone(&self.settings);
        let load = self.arrivals.ask(&mut self.core, self.turn_state.no_room, |core, arrival| {
            judge::questions(core, &settings, arrival, now)
        });
        self.fx.loads.extend(load);
    }

    /// Hands the collected operations over as one commit, and releases what waited for earlier ones.
    fn commit(&mut self, now: Now) {
        let live = &mut self.core.live;
        live.flush_windows();
        live.shared.journal.observe(now);
        let hurry =
            self.turn_state.draining || self.fx.loads.iter().any(|load| live.shared.journal.shows_in(load));
        if live.shared.journal.is_due(hurry, now) {
            let rows = live.queues.take_dirty_rows();
            self.fx.hurried = live.shared.journal.is_answer_awaited();
            let commit = live.shared.journal.take(rows, now);
            self.fx.store = commit.ops;
            self.fx.commit = Some((commit.token, commit.marks));
        }
        self.fx.replies = live.shared.journal.take_replies();
        live.shared.journal.acks(now, &mut self.fx.acks);
    }

    /// Makes the consumer pause or resume. Requests that were handed over stay queued here; nothing is
    /// returned to the broker.
    fn steer_intake(&mut self) {
        let stopped = self.limits.is_store_full()
            || self.limits.keeps_out(&self.core.live, &self.settings, self.turn_state.clocks.last())
            || !self.core.live.shared.journal.has_numbers()
            || self.turn_state.draining;
        let blocked = self.turn_state.no_room || self.core.live.shared.journal.is_under_pressure();
        let clear = self.arrivals.is_clear();
        // Intake resumes only once the queue of arrivals is empty: else it would flap with every request.
        let flows = if self.turn_state.taking { !blocked || clear } else { !blocked && clear };
        let taking = flows && !stopped;
        if taking != self.turn_state.taking {
            self.turn_state.taking = taking;
            self.fx.intake = Some(if taking { Intake::Resume } else { Intake::Pause });
        }
    }

    // ---- what has come in ---------------------------------------------------------------------------------

    /// Judges arrivals as far as the known facts allow. Returns what was occupied then.
    fn judge_arrivals(&mut self, now: Now) -> [u64; 3] {
        self.turn_state.no_room = false;
        self.arrivals.scans_ended(|number| self.scans.is_through(number));
        let [mut left, mut left_of_local] = [self.settings.thresholds.arrivals; 2];
        let open = !self.limits.is_store_full() && self.core.live.shared.journal.has_numbers();
        if open && self.judge_line(LineName::Returned, &mut left, now) {
            self.judge_line(LineName::Requests, &mut left, now);
        }
        let occupied = admission::occupied(&self.core.live);
        self.judge_line(LineName::Local, &mut left_of_local, now);
        occupied
    }

    /// Judges arrivals of one line. Whether the line is empty now.
    fn judge_line(&mut self, name: LineName, left: &mut usize, now: Now) -> bool {
        let settings = Arc::clone(&self.settings);
        let mut last: Option<Delivery> = None;
        loop {
            let Some(next) = self.arrivals.peek(name) else { return true };
            let delivery = next.delivery();
            // The entries of one message become durable in one commit.
            let same = delivery.is_some() && delivery == last;
            // Local commands go on: an operator may want to cancel what waits for the disk.
            let held = name != LineName::Local && self.core.live.shared.journal.is_under_pressure();
            if !same && (*left == 0 || held) {
                self.turn_state.more |= *left == 0;
                return false;
            }
            let questions = |core: &Core, arrival: &Arrival| judge::questions(core, &settings, arrival, now);
            let whole = same || self.arrivals.is_message_known(name, &mut self.core, questions);
            if whole && !same && !self.has_room_for_message(name, now) {
                self.turn_state.no_room = true;
                return false;
            }
            let next = whole.then(|| self.arrivals.next(name, &mut self.core, questions)).flatten();
            let Some(next) = next else { return false };
            last = delivery;
            *left = left.saturating_sub(self.arrivals.cost(&next.placed.arrival));
            if !self.judge(name, next, now) {
                return false;
            }
            if name != LineName::Local {
                self.limits.goes_on();
            }
        }
    }

    /// Whether the message at the head of a line, if it has several entries, may be let in: for each of them
    /// there must be room, if it came alone. Then all are admitted, also beyond a limit. If one of them
    /// waited, the message would stay unacked, and come again after those admitted before have been sent or
    /// cancelled.
    fn has_room_for_message(&mut self, name: LineName, now: Now) -> bool {
        let (core, limits, settings) = (&mut self.core, &mut self.limits, &self.settings);
        // What has waited for an outcome was let in with its message.
        name != LineName::Requests
            || !self.arrivals.needs_room(|item, origin, found| {
                judge::lacks_room(core, limits, settings, (item, origin, found), now)
            })
    }

    /// Judges one arrival. False: it was returned to the head of its line.
    fn judge(&mut self, name: LineName, Next { placed, found, at_once }: Next, now: Now) -> bool {
        if let Arrival::Item(item, _) = &placed.arrival {
            if let Some(identity) = item.identity.filter(|id| self.arrivals.is_awaited(*id)) {
                self.await_outcome(identity, placed, now);
                return true;
            }
        }
        let customer = placed.arrival.customer();
        let cancel = customer.and_then(|(application, name)| self.scans.cancel_under_way(application, name));
        if let Some(number) = self.arrivals.scan_before_its_id(&placed.arrival).or(cancel) {
            self.arrivals.await_scan(number, placed);
            return true;
        }
        if let Arrival::Command { command, .. } = &placed.arrival {
            // A cancel takes requests that came before it, and these have to become items first.
            let core = &self.core;
            if self.arrivals.release_for(command, |identity| core.will_be_told(identity)) {
                self.arrivals.put_back(name, placed, at_once);
                return false;
            }
        }
        let Placed { place, until, arrival } = placed;
        match arrival {
            Arrival::Rejected(rejected, origin) => {
                judge::reject(&mut self.core, *rejected, origin, now);
            }
            Arrival::Item(item, origin) => {
                let how = Hurry { draining: self.turn_state.draining, at_once };
                let mut decider = Decider::new(&self.settings, &mut self.limits, &mut self.scans, how);
                match decider.item(&mut self.core, item, origin, found, now) {
                    Decision::Done => {}
                    Decision::Await(identity, item) => {
                        let arrival = Arrival::Item(item, origin);
                        self.await_outcome(identity, Placed { place, until, arrival }, now);
                    }
                    Decision::NoRoom(item) => {
                        let arrival = Arrival::Item(item, origin);
                        self.arrivals.put_back(name, Placed { place, until, arrival }, at_once);
                        self.turn_state.no_room = true;
                        return false;
                    }
                }
            }
            Arrival::Command { command, asker } => {
                self.execute((place, until), command, asker, found, now);
            }
        }
        true
    }

    /// The arrival waits until that attempt has ended. The time limit counts from the beginning of its first
    /// wait.
    fn await_outcome(&mut self, identity: tidegate_types::Identity, placed: Placed, now: Now) {
        let limit = match &placed.arrival {
            Arrival::Command { .. } => scans::OUTCOME_MS,
            Arrival::Item(..) | Arrival::Rejected(..) => arrivals::REQUEST_MS,
        };
        let begun = placed.until.filter(|_| !mutated(Mutant::PatienceAnew));
        let until = Some(begun.unwrap_or(now.mono + limit));
        self.core.want_outcomes(true);
        self.arrivals.await_outcome(identity, Placed { until, ..placed });
    }

    fn execute(
        &mut self,
        (place, until): (u64, Option<u64>),
        command: Command,
        asker: Asker,
        found: Vec<(tidegate_types::Identity, tidegate_types::event::Found)>,
        now: Now,
    ) {
        let (core, scans) = (&mut self.core, &mut self.scans);
        match commands::execute(core, scans, &self.settings, &command, &asker, found, now) {
            Executed::Answer(answer) => self.reply((asker, command, answer)),
            Executed::Await(identity) => {
                if self.arrivals.may_wait(&command, &asker) {
                    let arrival = Arrival::Command { command, asker };
                    self.await_outcome(identity, Placed { place, until, arrival }, now);
                } else {
                    self.reply((asker, command, Answer::InFlight));
                }
            }
            Executed::Scan => {
                let refused = self.scans.begin(&mut self.core, command, asker, now);
                refused.into_iter().for_each(|done| self.reply(done));
            }
        }
    }
}
