//! The pure engine: what is due when, which items leave together, what is safe to acknowledge, what the store must
//! do. No clock, no I/O, no randomness of its own, no async, and it cannot fail.
//!
//! The contract is one verb: [`Engine::handle`] takes what happened and the present moment, and returns what must
//! be done, as one batch in the order in which it must be done. [`Engine::next_deadline`] says when it wants to be
//! called again though nothing happens. The same inputs at the same moments give the same effects, bit for bit.
//!
//! Who decides what: `identity` judges what arrives, in order, and knows duplicates; `intake` turns requests into items;
//! `window` opens and closes windows; `preload` keeps the near future in memory and the far one in the store; `delivery`
//! forms batches, `outcome` judges what became of them; `lane` takes care of what cannot be delivered at present; `full`
//! knows the limits; `command` and `walk` answer whoever asks; `tail` remembers what has ended; `ledger` knows what may be
//! acknowledged; `memory` keeps the tables.
//!
//! What the caller must keep to:
//! - effects are carried out in the order of their fields, and those of one call before those of the next;
//! - reads see every write handed over before them;
//! - a publish is settled exactly once, also when the connection is lost ([`types::Outcome::Unknown`], before
//!   [`Input::EgressLost`]);
//! - `now.mono` never goes back.

mod asked;
mod command;
mod delivery;
pub mod event;
mod full;
mod identity;
mod intake;
mod lane;
mod ledger;
pub mod lookup;
mod memory;
mod outcome;
mod plant;
mod preload;
mod retry;
mod schedule;
pub mod size;
mod slab;
pub mod snapshot;
mod table;
mod tail;
pub mod types;
mod walk;
mod window;

#[cfg(test)]
mod tests;

use event::{Deadline, Effects, Input, Marks, Op, Opened, Token};
use identity::{ByIdentity, Inbox, Undecided};
use ledger::Ledger;
use plant::{planted, Plant};
use preload::Cursor;
use retry::Random;
use schedule::Schedule;
use slab::Slab;
use snapshot::Counters;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use table::{App, Flight, Group, Row};
use tail::Tail;
use types::{Delivery, Ended, Identity, Key, Now, Reply, Settings};
use walk::Task;

/// Handle of the application that stands for the dead exchange.
const DEAD: u32 = 0;

/// Rows of one kind of work in a turn: bounds how long other work can wait behind it.
const TURN_ROWS: usize = 10_000;

/// Deletes may wait so long for a commit that is made anyway, ms. It bounds what a crash can repeat.
const DELETE_WAIT_MS: u64 = 10;

/// A difference between the two clocks of more than this is a step of the wall clock, ms.
const STEP_MS: u64 = 1_000;

/// Applications remembered though nothing of theirs is left; beyond, an idle one is forgotten.
const IDLE_APPS: usize = 1_024;

/// Sequences are our own consecutive numbers: no producer chooses them, but one chooses which of them stay, every
/// 1,024th, say. So the high bits of the product must reach the low ones, which choose the place in the table.
/// Sixteen neighbours lie together: they come together.
#[derive(Default)]
struct SeqHasher(u64);

impl Hasher for SeqHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, n: u64) {
        let n = self.0.rotate_left(5) ^ n;
        let mixed = (n >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = (mixed ^ (mixed >> 32)) << 4 | (n & 15);
    }
}

type SeqMap<V> = HashMap<u64, V, BuildHasherDefault<SeqHasher>>;

/// Whether requests are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Open,
    /// Nothing more is taken; what was taken before is still being made safe and acked. Closing the channel sooner
    /// would bring it back a second time.
    Closing,
    Closed,
}

/// The state of the egress end, as last told.
#[derive(Debug, Default)]
struct Egress {
    ready: bool,
    blocked: bool,
}

/// See the module's page.
pub struct Engine {
    settings: Settings,
    random: Random,
    /// Both clocks at the last call, to notice steps.
    last: Now,
    counters: Counters,

    // What is in memory.
    rows: Slab<Row>,
    by_seq: SeqMap<u32>,
    /// Those that their producers named.
    by_identity: ByIdentity,
    groups: Slab<Group>,
    apps: Slab<App>,
    names: HashMap<Arc<str>, u32>,
    /// So many applications are remembered before idle ones are looked for.
    forget_at: usize,
    content_bytes: u64,
    open_windows: u64,
    ready_rows: u64,

    // What comes when.
    schedule: Schedule,
    closing: Schedule,
    /// Customers whose window has closed, and who wait for their members from the store.
    collecting: VecDeque<u32>,
    backoffs: BTreeSet<(u64, u32)>,
    more_due: bool,

    // The way out.
    egress: Egress,
    run: VecDeque<u32>,
    flights: SeqMap<Flight>,
    next_flight: u64,
    slots: usize,
    slot_bytes: u64,
    suspects: VecDeque<u64>,
    probe: Option<u64>,
    parking: VecDeque<u32>,
    /// Customers with due items whose older ones are in the store alone, where the store's began when the last was
    /// held back, and whether to look again in any case.
    held: Vec<u32>,
    held_bar: Key,
    release: bool,
    /// Sequences whose payloads must be fetched before their flights can leave.
    lacking: Vec<u64>,

    // The store.
    next_seq: u64,
    token: Token,
    committed: Token,
    ops: Vec<Op>,
    deletes: Vec<Op>,
    deletes_since: u64,
    /// Items in the time index, and those of them in memory.
    stored: u64,
    stored_in_memory: u64,
    /// Items of the time index in memory, counted by the second of their key: gives the low mark.
    seconds: BTreeMap<u64, u64>,
    bare_until: u64,
    cursor: Cursor,
    dirty_windows: Vec<u32>,
    dirty_lanes: Vec<u32>,
    dirty_counts: Vec<u32>,
    /// Items of lanes, in memory, that the clock's going back made early.
    early: BTreeSet<(Key, u32)>,
    /// Applications that can be delivered to and have a backlog in their lane.
    hungry: BTreeSet<u32>,
    /// Where the next look at them begins, and lanes being fetched from.
    hungry_from: u32,
    lane_loads: usize,

    // Identities and commands.
    inbox: Inbox,
    tail: Tail,
    /// The longest `dedupe_tail` of any application, ms.
    longest_tail: u64,
    undecided: Undecided,
    /// Ends that somebody waits for, of this turn.
    ends: Vec<(Identity, Ended)>,
    /// When cancels stop waiting for an outcome, monotonic; and that of the one being judged again.
    outcomes_until: BTreeSet<(u64, Identity)>,
    waited_for: Option<u64>,
    /// An item comes into memory to be taken out at once: it does not go on to its lane.
    fetching: bool,
    /// The window that a replaced item leaves to its successor: group and wall-clock end.
    inherited: Option<(u32, u64)>,
    tasks: BTreeMap<u64, Task>,
    next_task: u64,
    /// Answers that are on their way to the broker.
    answers_out: usize,
    /// Answers, each with the commit that it waits for.
    replies: VecDeque<(Token, Reply)>,

    // The way in.
    ledger: Ledger,
    /// Parts that become safe with a commit.
    awaiting: VecDeque<(Token, Delivery)>,
    /// Items that may be confirmed before they need be stored: stored at this monotonic moment at the latest.
    deferred: VecDeque<(u64, u32, u64)>,
    /// Payloads to be let go once their commit is durable.
    fresh: VecDeque<(Token, u32, u64)>,
    /// What the first request needs to know has been loaded.
    restored: bool,
    store_full: bool,
    windows_full: bool,
    /// Applications at their limit whose policy is to pause.
    full: BTreeSet<u32>,
    gate: Gate,
    draining: bool,

    fx: Effects,
}

impl Engine {
    /// An engine over what a store held when it was opened. `seed` feeds the jitter of back-off and nothing else.
    pub fn new(settings: Settings, opened: &Opened, seed: u64, now: Now) -> Self {
        let single = settings.hold_max.is_some();
        let mut engine = Engine {
            random: Random(seed),
            last: now,
            counters: Counters::default(),
            rows: Slab::new(),
            by_seq: SeqMap::default(),
            by_identity: ByIdentity::default(),
            groups: Slab::new(),
            apps: Slab::new(),
            names: HashMap::new(),
            forget_at: IDLE_APPS,
            content_bytes: 0,
            open_windows: 0,
            ready_rows: 0,
            schedule: Schedule::new(now.wall),
            closing: Schedule::new(now.mono),
            collecting: VecDeque::new(),
            backoffs: BTreeSet::new(),
            more_due: false,
            egress: Egress::default(),
            run: VecDeque::new(),
            flights: SeqMap::default(),
            next_flight: 1,
            slots: 0,
            slot_bytes: 0,
            suspects: VecDeque::new(),
            probe: None,
            parking: VecDeque::new(),
            held: Vec::new(),
            held_bar: Key::default(),
            release: false,
            lacking: Vec::new(),
            next_seq: opened.marks.next_seq.max(1),
            token: 0,
            committed: 0,
            ops: Vec::new(),
            deletes: Vec::new(),
            deletes_since: 0,
            stored: opened.marks.waiting,
            stored_in_memory: 0,
            seconds: BTreeMap::new(),
            bare_until: opened.marks.bare_until,
            cursor: Cursor::new(opened, now),
            dirty_windows: Vec::new(),
            dirty_lanes: Vec::new(),
            dirty_counts: Vec::new(),
            early: BTreeSet::new(),
            hungry: BTreeSet::new(),
            hungry_from: 0,
            lane_loads: 0,
            inbox: Inbox::default(),
            tail: Tail::new(&opened.buckets),
            longest_tail: settings.longest_tail(),
            undecided: Undecided::new(),
            ends: Vec::new(),
            outcomes_until: BTreeSet::new(),
            waited_for: None,
            fetching: false,
            inherited: None,
            tasks: BTreeMap::new(),
            next_task: 1,
            answers_out: 0,
            replies: VecDeque::new(),
            ledger: Ledger::new(single),
            awaiting: VecDeque::new(),
            deferred: VecDeque::new(),
            fresh: VecDeque::new(),
            restored: false,
            store_full: false,
            windows_full: false,
            full: BTreeSet::new(),
            gate: Gate::Closed,
            draining: false,
            fx: Effects::default(),
            settings,
        };
        let dead = engine.app("");
        debug_assert_eq!(dead, DEAD);
        engine.restore_counts(&opened.applications);
        engine.restore_lanes(&opened.lanes);
        engine.restore_windows(&opened.windows, now);
        engine
    }

    /// Something happened, or a deadline came. Returns what must be done.
    pub fn handle(&mut self, input: Input, now: Now) -> Effects {
        self.observe(now);
        match input {
            Input::Requests(requests) => self.take_requests(requests, now),
            Input::Committed(token) => self.committed(token),
            Input::Loaded(loaded) => self.loaded(loaded, now),
            Input::Settled(settled) => self.settled(settled, now),
            Input::Commands(commands) => self.take_commands(commands),
            Input::Answered(deliveries) => {
                self.answers_out = self.answers_out.saturating_sub(deliveries.len());
                deliveries.into_iter().for_each(|delivery| self.ledger.safe(delivery));
            }
            Input::IngestReady { generation } => {
                self.ingest_lost();
                self.ledger.restart(generation);
            }
            Input::IngestLost => self.ingest_lost(),
            Input::EgressReady => self.egress = Egress { ready: true, blocked: false },
            Input::EgressLost => self.egress.ready = false,
            Input::EgressBlocked(blocked) => self.egress.blocked = blocked,
            Input::StoreFull(full) => self.store_full = full,
            Input::Configure(settings) => self.configure(*settings),
            Input::Drain => self.draining = true,
            Input::Tick => {}
        }
        self.turn(now);
        std::mem::take(&mut self.fx)
    }

    /// When to call [`Engine::handle`] with [`Input::Tick`] at the latest. Nothing = not before an event.
    pub fn next_deadline(&self) -> Deadline {
        if self.more_due || !self.parking.is_empty() {
            return Deadline { wall: Some(0), mono: Some(0) };
        }
        let early = self.early.first().map(|(key, _)| key.due);
        let wall = [self.schedule.next(), self.preload_deadline(), early].into_iter().flatten().min();
        let deletes = (!self.deletes.is_empty()).then(|| self.deletes_since + DELETE_WAIT_MS);
        let backoff = self.backoffs.first().map(|(at, _)| *at);
        let deferred = self.deferred.front().map(|(at, ..)| *at);
        let outcome = self.outcomes_until.first().map(|(at, _)| *at);
        let mono = [self.closing.next(), deletes, backoff, deferred, outcome, self.task_deadline()];
        let mono = mono.into_iter().flatten().min();
        Deadline { wall, mono }
    }

    /// Nothing is due, in flight or waiting for the store: what a graceful shutdown waits for. What cannot be
    /// delivered at present does not count; with a durable store it is safe, and without one its request was
    /// never acked.
    pub fn is_idle(&self) -> bool {
        let stuck = !self.egress.ready || self.egress.blocked;
        self.ops.is_empty()
            && self.deletes.is_empty()
            && self.committed == self.token
            && self.replies.is_empty()
            && self.answers_out == 0
            && (stuck
                || (self.slots == 0
                    && self.run.is_empty()
                    && self.held.is_empty()
                    && self.suspects.is_empty()))
    }

    /// What one turn does after every input, in this order: what has come in, time, the way out, the store.
    fn turn(&mut self, now: Now) {
        self.settle_undecided(now);
        self.end_waits(now);
        self.settle_tasks(now);
        self.judge_arrivals(now);
        self.advance_cursor(now);
        self.take_due(now);
        if !self.more_due {
            // Else items that were due before them would leave after them.
            self.close_windows(now);
        }
        self.store_deferred(now);
        self.end_backoffs(now);
        self.park_chunk();
        self.release_held(now);
        self.pump(now);
        self.settle_undecided(now);
        self.preload(now);
        self.flush(now);
        self.release_replies();
        self.ledger.acks(&mut self.fx.acks);
        self.restored |= self.may_open_intake();
        let open = self.has_room() && self.restored;
        self.move_gate(open);
    }

    /// Notices steps of the wall clock: forward, whatever became due leaves now; backward, everything waits for
    /// its time anew.
    fn observe(&mut self, now: Now) {
        debug_assert!(now.mono >= self.last.mono, "the monotonic clock never goes back");
        let expected = self.last.wall + now.mono.saturating_sub(self.last.mono);
        if now.wall > expected + STEP_MS {
            self.counters.clock_forward += 1;
            self.recheck_expiries(now);
        } else if now.wall + STEP_MS < expected {
            self.counters.clock_backward += 1;
            self.recheck_expiries(now);
        }
        if now.wall < self.last.wall {
            let rows = &self.rows;
            self.schedule.rebase(now.wall, |id| rows[id].key);
        }
        self.last = now;
    }

    /// Rows whose time has come.
    fn take_due(&mut self, now: Now) {
        let mut due = Vec::new();
        let early = if planted(Plant::Early) { 7 } else { 0 };
        self.more_due = !self.schedule.take_due(now.wall + early, TURN_ROWS, &mut due);
        while let Some((key, id)) = self.early.first().copied() {
            if key.due > now.wall {
                break;
            }
            self.early.pop_first();
            let app = self.rows[id].app;
            self.apps[app].early -= 1;
            self.hungry.insert(app);
            due.push(id);
        }
        let rows = &self.rows;
        due.sort_unstable_by_key(|id| rows[*id].key);
        for id in due {
            match self.rows[id].state {
                table::State::Scheduled => self.make_ready(id),
                // Its window's end is a matter of the monotonic clock.
                table::State::Windowed { pos, .. } => {
                    self.rows[id].state = table::State::Windowed { pos, scheduled: false };
                }
                table::State::Ready | table::State::Flying(_) => {
                    debug_assert!(false, "what is due twice was not taken out of the schedule");
                }
            }
        }
    }

    /// Hands collected operations over as one commit.
    fn flush(&mut self, now: Now) {
        self.flush_windows();
        self.flush_lanes();
        let hurry = !self.ops.is_empty()
            || !self.fx.loads.is_empty()
            || self.draining
            || !self.replies.is_empty()
            || self.deletes.len() >= TURN_ROWS
            || now.mono >= self.deletes_since + DELETE_WAIT_MS;
        if (self.ops.is_empty() && self.deletes.is_empty()) || !hurry {
            return;
        }
        self.flush_counts();
        self.token += 1;
        self.fx.store = std::mem::take(&mut self.ops);
        self.fx.store.append(&mut self.deletes);
        let low = self.low_mark();
        let marks = Marks { next_seq: self.next_seq, low, bare_until: self.bare_until, waiting: self.stored };
        self.fx.commit = Some((self.token, marks));
    }

    /// The commit that makes everything decided so far durable.
    fn present_token(&self) -> Token {
        if self.has_changes() {
            self.next_token()
        } else {
            self.token
        }
    }

    /// A part of a delivery is safe once all that was decided before is durable.
    fn safe_once_durable(&mut self, delivery: Delivery) {
        let token = self.present_token();
        if token > self.committed && self.is_durable() {
            self.awaiting.push_back((token, delivery));
        } else {
            self.ledger.safe(delivery);
        }
    }

    /// Something has been decided that has not been handed over to the store.
    fn has_changes(&self) -> bool {
        !self.ops.is_empty() || !self.deletes.is_empty()
    }

    /// The token that operations collected now will get.
    fn next_token(&self) -> Token {
        self.token + 1
    }

    fn delete_later(&mut self, op: Op) {
        if self.deletes.is_empty() {
            self.deletes_since = self.last.mono;
        }
        self.deletes.push(op);
    }

    /// A commit became durable: what waited for it is safe.
    fn committed(&mut self, token: Token) {
        debug_assert!(token <= self.token, "only what was handed over can be durable");
        self.counters.commits += token.saturating_sub(self.committed);
        self.committed = self.committed.max(token);
        while let Some((at, delivery)) = self.awaiting.front().copied() {
            if at > token {
                break;
            }
            self.awaiting.pop_front();
            self.ledger.safe(delivery);
        }
        while let Some((at, id, seq)) = self.fresh.front().copied() {
            if at > token {
                break;
            }
            self.fresh.pop_front();
            if self.by_seq.get(&seq) == Some(&id) && !matches!(self.rows[id].state, table::State::Flying(_)) {
                self.drop_content(id);
            }
        }
    }

    fn configure(&mut self, settings: Settings) {
        self.longest_tail = settings.longest_tail();
        self.settings = settings;
        for id in self.apps.ids().collect::<Vec<_>>() {
            let app = &mut self.apps[id];
            app.settings = self.settings.of(&app.name).clone();
            app.overhead = size::overhead(app.settings.format, &app.name, None);
        }
        for id in self.groups.ids().collect::<Vec<_>>() {
            let group = &mut self.groups[id];
            let app = &self.apps[group.app];
            group.overhead = size::overhead(app.settings.format, &app.name, Some(&group.customer));
            if group.window.is_some() {
                // A shorter quiet time holds for the open windows too.
                self.plan_check(id, self.last);
            }
        }
        self.recheck_limits();
    }

    /// Whether items are written to a store; else the broker's unacked message is the only copy.
    fn is_durable(&self) -> bool {
        self.settings.hold_max.is_none()
    }
}
