//! Checks of a world at rest: the store has executed its work, and the clock has passed every deadline. Nothing may wait
//! without a reason.
//!
//! Judges every promise.

use super::commands::Asked;
use super::customers::takes_back;
use super::model::{Known, Life, State};
use super::{DeadExchange, Sim};
use std::collections::BTreeSet;
use tidegate_types::event::*;
use tidegate_types::*;

/// Time for which an item that is due at once may wait for its confirm before it is written, ms: with a small body, and
/// with a large one.
const DEFER_MS: u64 = 20;
const DEFER_LARGE_MS: u64 = 500;

/// Time for which the close of a window may wait for another commit, and a little more, ms.
const CLOSE_MS: u64 = 20;

/// Time for which a safe delivery waits for those before it, ms.
const ACK_MS: u64 = 100;

/// Rows allowed beyond the budget, apart from those in batches and those that reads add.
const SOME_ROWS: usize = 16;

/// Bytes of contents allowed beyond the budget and those of items that are in flight or not durable: what a load brings.
const CONTENTS_BEYOND: u64 = 300 * 200;

/// The same at rest, beside items that were in flight and are to be sent again.
const CONTENTS_AT_REST: u64 = 80 * 200;

impl Sim {
    /// Lets the store execute all its work and time pass until every wait of the engine is over, without any confirm.
    pub(super) fn rest(&mut self) {
        self.take_forwards();
        self.come_to_rest();
        // Twice, as batches of the first pass may have made room.
        let large = if self.model.settings.thresholds.large == 1 { DEFER_LARGE_MS } else { 0 };
        let end = self.world.now.mono + large + ACK_MS + 50;
        for _ in 0..3_000 {
            let left = end.saturating_sub(self.world.now.mono);
            match self.world.wait() {
                Some(wait) if wait <= left => self.world.advance(wait),
                _ if left > 0 => self.world.advance(left),
                _ => break,
            }
            self.come_to_rest();
        }
        self.take_acks();
        self.come_to_rest();
        self.model.given_back.clear();
        self.check_overlooked();
        self.check_rest();
        self.check_told();
    }

    pub(super) fn come_to_rest(&mut self) {
        for _ in 0..5_000 {
            self.world.drain_jobs();
            self.judge();
            self.free_channels();
            if self.world.wait() != Some(0) && self.world.jobs.is_empty() {
                self.model.rested = self.model.call;
                return;
            }
            self.world.input(Input::Tick);
        }
        panic!("turns without end: {:?} at {:?}", self.world.engine.next_deadline(), self.world.now);
    }

    fn check_rest(&self) {
        self.check_moving();
        self.check_waits();
        self.check_dropped();
        self.check_dead_letters();
        self.check_line();
        self.check_commands();
        self.check_store();
        self.check_contents();
    }

    /// Only a share of the prefetch may wait for outcomes, over all applications and for each: the rest is for other
    /// requests.
    fn check_waits(&self) {
        let Some(prefetch) = self.plan.prefetch.filter(|_| self.model.durable) else { return };
        let share = |part: u16| usize::from((prefetch / part).max(u16::from(prefetch > 1)));
        let waiting = self.world.engine.awaiting_by_message();
        assert!(waiting.len() <= share(4), "of {prefetch} deliveries wait {waiting:?}");
        for application in &self.apps {
            let of_it = waiting.iter().filter(|name| *name == application).count();
            assert!(of_it <= share(16), "of {prefetch} deliveries {of_it} of {application} wait");
        }
    }

    /// At rest, payloads that can be read again must have left memory.
    fn check_contents(&self) {
        if !self.model.durable {
            return;
        }
        let (_, bytes) = self.world.engine.memory_bytes();
        let flying: usize = self.model.flights.values().map(|flight| flight.items.len()).sum();
        let settings = &self.world.settings;
        let sent = 200 * flying.max(settings.max_in_flight) as u64;
        let most = settings.budget.contents + sent + CONTENTS_AT_REST;
        assert!(bytes <= most, "{bytes} bytes in memory while nothing moves, {most} may be");
    }

    /// Items beyond the limit must have been given up, unless they are in flight.
    fn check_dropped(&self) {
        let model = &self.model;
        // This holds where memory has room for them.
        let roomy = self.world.settings.budget.rows >= 10_000;
        if !roomy || !model.durable || model.lives_begun > 1 || !model.before.is_empty() {
            return;
        }
        for (name, app) in &model.apps {
            let settings = model.settings.of(name);
            let over = settings.max_waiting > 0 && app.live - model.heirs(name) > settings.max_waiting;
            if !over || settings.on_full != OnFull::DropOldest {
                continue;
            }
            let waits = |life: &&Life| {
                let free = life.state == State::Waiting && (life.published.is_none() || life.failed);
                free && model.application(life.seq) == name
            };
            let waiting = model.lives.values().find(waits).map(|life| life.ask);
            assert!(waiting.is_none(), "{} of {name} wait, {waiting:?} among them", app.live);
        }
    }

    fn check_dead_letters(&self) {
        let model = &self.model;
        let hindered = model.egress != (true, false)
            || model.flights.len() >= model.settings.max_in_flight
            || (model.settings.max_in_flight_bytes < 1_000 && !model.flights.is_empty())
            || model.flights.values().any(|flight| flight.dead)
            || !model.has_channel()
            || model.dead_left_alone_until > model.now.mono
            || self.dead_exchange == DeadExchange::Hangs;
        // A dead letter that the broker refuses waits alone.
        let moves = |ask: usize| !model.asks[ask].poison_dead;
        let is_due = |due: u64| due <= model.now.wall;
        let waiting = model
            .lives
            .values()
            .find(|life| matches!(life.state, State::Dead(_)) && is_due(life.due) && moves(life.ask));
        assert!(
            hindered || waiting.is_none(),
            "the dead letter of {:?} does not move",
            waiting.map(|life| life.ask)
        );
    }

    /// Each delivery must be acked, or wait for its own safety and nothing else.
    fn check_line(&self) {
        let model = &self.model;
        let mut waits: BTreeSet<Identity> = BTreeSet::new();
        let mut open: Vec<usize> = model.open.iter().copied().collect();
        open.sort_by_key(|number| model.messages[number].delivered.map(|(_, _, tag, _)| tag));
        for number in open {
            let message = &model.messages[&number];
            if let Some(since) = message.safe_since {
                assert!(
                    model.now.mono <= since + ACK_MS + 1,
                    "{number} is safe since {since} and not acked at {:?}",
                    model.now
                );
                continue;
            }
            if message.command.is_some() {
                // Its answer may wait for an outcome, which another check covers.
                continue;
            }
            for (part, ask) in message.asks.iter().enumerate() {
                if let Some(seq) = message.taken[part] {
                    assert!(!model.durable || self.may_be_unwritten(seq), "{ask} is still not written");
                    continue;
                }
                let new = &model.asks[*ask].new;
                let Some(reason) = self.undecided(*ask, &waits) else {
                    panic!(
                        "{ask} is not decided at {:?}: {new:?} of message {} {:?}, known {:?}, {:?}; {} live, {:?}; {}",
                        model.now,
                        model.asks[*ask].message,
                        message.delivered,
                        new.identity.map(|identity| model.timeline.get(&identity).and_then(|line| line.last())),
                        new.identity.map(|identity| self.world.engine.describe_identity(identity)),
                        model.live(&new.application),
                        model.settings.of(&new.application),
                        self.world.engine.describe()
                    );
                };
                match reason {
                    // An entry with an id may be decided, and wait for the rest of its message.
                    Undecided::Held if new.identity.is_some() => return,
                    Undecided::Held => return self.check_flushed(&new.application),
                    // Or its wait is over, and it is held ahead of the others for lack of room.
                    Undecided::Awaits if self.is_held(*ask) => return,
                    Undecided::Awaits => waits.extend(new.identity),
                    Undecided::Unseen => {}
                }
            }
        }
        self.check_intake();
    }

    /// Whether it is safe, or was due just now, and may be confirmed before it is written.
    fn may_be_unwritten(&self, seq: u64) -> bool {
        let life = &self.model.lives[&seq];
        let large = self.model.settings.thresholds.is_large(&self.model.asks[life.ask].new.content);
        let just_now = self.model.now.mono < life.seen + if large { DEFER_LARGE_MS } else { DEFER_MS };
        // Only large ones may wait behind others.
        let is_due = life.published.is_some() || large && life.due <= self.model.now.wall;
        self.model.is_safe(seq) || is_due && life.put.is_none() && just_now
    }

    /// Where the policy closes windows to make room, none may stay open while a request waits for room.
    fn check_flushed(&self, name: &str) {
        let model = &self.model;
        let settings = model.settings.of(name);
        let full = settings.max_waiting > 0 && model.live(name) >= settings.max_waiting;
        let flushes = settings.on_full == OnFull::FlushEarly && full && model.before.is_empty();
        let open = flushes.then(|| model.windows.open_in(name)).flatten();
        let engine = || self.world.engine.describe();
        assert!(open.is_none(), "{name} is full, and the window of {open:?} is open; {}", engine());
    }

    /// Whether it depends on an item in flight with its id, or is queued behind an entry that does.
    fn awaits(&self, ask: usize, waits: &BTreeSet<Identity>) -> bool {
        let model = &self.model;
        let new = &model.asks[ask].new;
        let Some(identity) = new.identity else { return false };
        let rule = !matches!(new.on_duplicate, DuplicateRule::Keep | DuplicateRule::Reject);
        let rule = rule || new.tried.batch.is_some();
        let tag = model.messages[&model.asks[ask].message].delivered.map(|(_, _, tag, _)| tag);
        // It may be decided, and is acked only when the cancel before it is: else that would take it if it is repeated.
        let cancels = |asked: &Asked| match &asked.command {
            Command::Cancel(target) => target.identity == identity,
            Command::CancelAll(of) => {
                of.application == new.application && new.customer.as_deref() == Some(&*of.customer)
            }
            _ => false,
        };
        let behind = |asked: &Asked| asked.tag.is_some_and(|its| Some(its) < tag) && cancels(asked);
        match model.timeline.get(&identity).and_then(|line| line.last()) {
            _ if waits.contains(&identity) || model.commands.values().any(behind) => true,
            Some((_, Known::Out(seq))) => rule || model.lives[seq].orphaned || self.may_be_taken_back(*seq),
            Some((_, Known::Waiting(seq))) => model.lives[seq].perhaps_sent && self.may_be_taken_back(*seq),
            Some(_) | None => false,
        }
    }

    /// Whether a cancel of its customer waits for the end of its attempt.
    fn may_be_taken_back(&self, seq: u64) -> bool {
        let of_all =
            |asked: &&Asked| matches!(asked.command, Command::CancelAll(_) | Command::CancelSelected(_));
        self.model.commands.values().filter(of_all).any(|asked| asked.covers(&self.model, seq))
    }

    /// Whether one of the entries of its message has no room, or gets the room of another item only now.
    fn is_held(&self, ask: usize) -> bool {
        let message = &self.model.messages[&self.model.asks[ask].message];
        message.asks.iter().any(|ask| self.lacks_room(*ask))
    }

    fn lacks_room(&self, ask: usize) -> bool {
        let model = &self.model;
        let new = &model.asks[ask].new;
        let settings = model.settings.of(&new.application);
        let full = settings.max_waiting > 0 && model.live(&new.application) >= settings.max_waiting;
        let waits_for_room = matches!(settings.on_full, OnFull::Pause | OnFull::FlushEarly);
        // Windows of former lives are not known one by one, and the cause of a close is not always visible.
        let open = model.windows.open.len() + model.windows.going_on(model.now);
        let known =
            open.max(self.world.store.windows.len()) as u64 + u64::from(model.lives_begun > 1) * 100_000;
        let windows = waits_for_room && new.at.is_none() && known >= model.settings.customers;
        let dropping = settings.on_full == OnFull::DropOldest;
        full && (waits_for_room || dropping) || windows || self.store_full || !model.before.is_empty()
    }

    /// Whether it may have waited for a cancel of its customer to scan all items.
    fn waited_behind_cancel(&self, ask: usize) -> bool {
        let model = &self.model;
        let new = &model.asks[ask].new;
        let delivered =
            model.messages[&model.asks[ask].message].delivered.map_or(usize::MAX, |(call, ..)| call);
        let is_it = |asked: &Asked| match &asked.command {
            Command::CancelAll(of) => {
                asked.answered >= delivered
                    && of.application == new.application
                    && new.customer.as_deref() == Some(&*of.customer)
            }
            _ => false,
        };
        model.commands.values().chain(model.answered.values()).any(is_it)
    }

    /// Whether an entry that has waited for a cancel has no room: the entries are decided cancel by cancel, and the
    /// others are queued behind it.
    fn holds_what_waited(&self) -> bool {
        let open = self.model.open.iter().map(|number| &self.model.messages[number]);
        let untaken = open.flat_map(|message| message.asks.iter().zip(&message.taken));
        let mut untaken = untaken.filter(|(_, taken)| taken.is_none()).map(|(ask, _)| *ask);
        untaken.any(|ask| self.is_held(ask) && self.waited_behind_cancel(ask))
    }

    fn undecided(&self, ask: usize, waits: &BTreeSet<Identity>) -> Option<Undecided> {
        let model = &self.model;
        if self.awaits(ask, waits) {
            return Some(Undecided::Awaits);
        }
        if !model.durable {
            return Some(Undecided::Unseen);
        }
        if self.is_held(ask) || self.waited_behind_cancel(ask) && self.holds_what_waited() {
            return Some(Undecided::Held);
        }
        // It was dropped, and another entry of its message is undecided or was published just now; or it was dropped a
        // moment ago, and its ack waits for those before it.
        let identity = model.asks[ask].new.identity?;
        if self.returned_behind_held(ask, identity) {
            return Some(Undecided::Unseen);
        }
        let message = &model.messages[&model.asks[ask].message];
        let mut others = message.asks.iter().zip(&message.taken).filter(|(other, _)| **other != ask);
        others
            .any(|(other, taken)| match taken {
                None => self.awaits(*other, waits) || self.is_held(*other),
                Some(seq) => !model.is_safe(*seq) && self.may_be_unwritten(*seq),
            })
            .then_some(Undecided::Unseen)
            .or_else(|| self.was_just_reached(ask).then_some(Undecided::Unseen))
    }

    /// Whether its turn came a moment ago: an entry queued before it was admitted then.
    fn was_just_reached(&self, ask: usize) -> bool {
        let model = &self.model;
        let tag = |number: &usize| model.messages[number].delivered.map(|(_, _, tag, _)| tag);
        let own = tag(&model.asks[ask].message);
        let is_before = |life: &Life| {
            let message = model.asks[life.ask].message;
            tag(&message) < own && model.messages[&message].taken.contains(&Some(life.seq))
        };
        let lately = model.lives.values().filter(|life| model.now.mono <= life.seen + ACK_MS);
        lately.into_iter().any(is_before)
    }

    /// Whether it is queued behind an entry that waits for room: entries that have waited for an attempt have their own
    /// queue.
    fn returned_behind_held(&self, ask: usize, identity: Identity) -> bool {
        let model = &self.model;
        let delivered = model.messages[&model.asks[ask].message].delivered.map_or(0, |(call, ..)| call);
        let known = model.known_since(identity, delivered);
        let parts = model.open.iter().flat_map(|number| {
            let message = &model.messages[number];
            message.asks.iter().zip(&message.taken)
        });
        let mut undecided = parts.filter(|(_, taken)| taken.is_none());
        known.iter().any(|known| matches!(known, Known::Out(_)))
            && undecided.any(|(ask, _)| self.is_held(*ask))
    }

    /// The intake may be closed only while a limit is reached.
    fn check_intake(&self) {
        if self.world.intake_open || !self.model.durable || self.store_full || !self.model.before.is_empty() {
            return;
        }
        let settings = &self.model.settings;
        let near = |is: u64, limit: u64| limit > 0 && is * 2 >= limit;
        let apps = self.apps.iter().any(|name| {
            let app = settings.of(name);
            matches!(app.on_full, OnFull::Pause | OnFull::FlushEarly)
                && near(self.model.live(name), app.max_waiting)
        });
        let windows = near(self.model.windows.open.len() as u64, settings.customers);
        assert!(apps || windows, "the intake is closed, and nothing is full");
    }

    fn check_commands(&self) {
        let model = &self.model;
        for (number, asked) in &model.commands {
            let may_wait = match &asked.command {
                // It may have found the item in flight only after an answer of the store.
                command if takes_back(command) || matches!(command, Command::Reschedule(..)) => {
                    model.now.mono <= asked.now.mono.max(self.world.stalled) + 5_200
                }
                // It may be queued behind others.
                _ => false,
            };
            let in_line = !asked.local && (self.store_full || !model.open.is_empty());
            let engine = || self.world.engine.describe();
            assert!(
                may_wait || in_line,
                "{number} is not answered: {:?} of {:?}; {}",
                asked.command,
                asked.now,
                engine()
            );
        }
    }

    /// The store must hold exactly the items that have not ended, each due when a restart would have it due.
    fn check_store(&self) {
        let (model, store) = (&self.model, &self.world.store);
        if !model.durable {
            return;
        }
        for (seq, place) in &store.places {
            let life = model.lives.get(seq).unwrap_or_else(|| panic!("nobody knows {place:?}"));
            let item = &store.items[&(place.queue.clone(), place.key)];
            assert!(!life.state.is_over(), "{} is {:?}, and still in the store", life.ask, life.state);
            if item.dead.is_some() {
                continue;
            }
            let due = item.due;
            assert!(
                !life.restored || due <= life.due || model.stepped,
                "{} is due later than it was at the restart",
                life.ask
            );
            let exact = !model.stepped && model.windows.causes(*seq).is_some();
            let Some(win) = model.windows.of(*seq).filter(|_| exact) else {
                let is_right = life.retimed.map_or(due <= life.accepted_due, |retimed| due == retimed);
                assert!(is_right, "{item:?} is due at {due}, not {:?}", life.retimed);
                continue;
            };
            let expected = win.closed.as_ref().map_or(win.end, |close| close.due);
            // Its close is written with the next commit, a moment later.
            if due == win.end && model.now.wall < expected + CLOSE_MS {
                continue;
            }
            assert_eq!(due, expected, "a restart would have {} due at another moment", life.ask);
        }
        let stays = |life: &&Life| life.put.is_some() && !life.state.is_over() && !life.superseded;
        for life in model.lives.values().filter(stays) {
            assert!(
                store.places.contains_key(&life.seq),
                "{} is {:?}, and not in the store",
                life.ask,
                life.state
            );
        }
    }

    pub(super) fn check_memory(&mut self) {
        if !self.model.durable {
            return;
        }
        let (rows, bytes) = self.world.engine.memory_bytes();
        let before = std::mem::replace(&mut self.rows_in_memory, rows);
        let model = &self.model;
        let flying: usize = model.flights.values().map(|flight| flight.items.len()).sum();
        let (budget, thresholds) = (self.world.settings.budget, self.world.settings.thresholds);
        let beyond = thresholds.few * (thresholds.reads + 1) + SOME_ROWS;
        // Rows that no longer wait for a turn leave in portions.
        let held = self.world.engine.rows_in_batches() + self.world.engine.rows_leaving();
        let room = budget.rows + held + model.fresh.len() + beyond;
        let engine = || self.world.engine.describe();
        // Rows that were in batches and wait for a later time leave in portions.
        let leaves = self.world.engine.is_behind() && rows <= before;
        assert!(rows <= room || leaves, "{rows} rows in memory, {room} may be; {budget:?}; {}", engine());
        let most = budget.contents + 200 * (flying + model.fresh.len()) as u64 + CONTENTS_BEYOND;
        assert!(bytes <= most, "{bytes} bytes in memory, {most} may be; {budget:?}");
    }

    /// No item is left, none is missing, and the counters add up.
    pub(super) fn check_end(&mut self, left: usize) {
        let model = &self.model;
        let not_over = model.lives.values().find(|life| !life.state.is_over());
        let deadline = self.world.engine.next_deadline();
        assert!(
            not_over.is_none(),
            "{left} do not come out: {:?} {:?} due {:?} of {:?}; {:?} {deadline:?}",
            not_over.map(|life| life.ask),
            not_over.map(|life| life.state),
            not_over.map(|life| life.due),
            not_over.map(|life| model.application(life.seq)),
            model.now,
        );
        assert!(self.world.queue.is_empty(), "{} requests are not acked", self.world.queue.len());
        assert!(model.commands.is_empty(), "{} commands are not answered", model.commands.len());
        for life in model.lives.values() {
            let ask = &model.asks[life.ask];
            match life.state {
                State::Sent => assert!(ask.arrivals > 0, "{} counts as sent, and did not arrive", life.ask),
                State::DeadSent(_) => assert!(ask.letters > 0, "the letter of {} did not arrive", life.ask),
                _ => {}
            }
        }
        self.world.store.check_empty();
        let (rows, bytes) = self.world.engine.memory_bytes();
        assert_eq!((rows, bytes), (0, 0), "rows and bytes left in memory");
        self.world.input(Input::Drain);
        self.world.drain_jobs();
        assert!(self.world.engine.is_idle(), "nothing is left, but it is not idle");
        self.check_counters();
    }

    fn check_counters(&self) {
        let model = &self.model;
        let counters = self.world.engine.counters();
        if model.lives_begun > 1 {
            return;
        }
        let taken = counters.accepted + counters.rejected;
        let ended = counters.confirmed + counters.dead_confirmed + counters.given_back;
        assert_eq!(taken, ended + counters.cancelled + counters.replaced, "{counters:?}");
        let count =
            |is: fn(&State) -> bool| model.lives.values().filter(|life| is(&life.state)).count() as u64;
        let count_of = |state| model.lives.values().filter(|life| life.state == state).count() as u64;
        assert_eq!(counters.confirmed, count(|state| *state == State::Sent), "sent");
        assert_eq!(
            counters.dead_confirmed,
            count(|state| matches!(state, State::DeadSent(_))),
            "dead letters"
        );
        if !model.durable {
            return;
        }
        for reason in Reason::ALL {
            let dead = count_of(State::DeadSent(reason));
            assert_eq!(counters.dead[reason as usize], dead, "dead: {reason:?}");
        }
        // Items that ended before they were written are not visible.
        let is_gone = |life: &&Life| life.state == State::Cancelled && !life.perhaps_replaced;
        let gone = model.lives.values().filter(is_gone);
        let gone: Vec<u64> = gone.map(|life| life.seq).collect();
        assert!(
            counters.cancelled >= gone.len() as u64,
            "{} are said to be cancelled, {gone:?} were",
            counters.cancelled
        );
        if model.ingest_lost == 0 {
            let dropped: u64 = counters.duplicates.iter().map(|rule| rule.dropped).sum();
            assert_eq!(taken + dropped, model.asks.len() as u64, "every entry has become something");
        }
    }
}

/// Why an entry is undecided.
enum Undecided {
    /// A limit is reached, and all entries behind wait as well.
    Held,
    /// It waits for the outcome of an item in flight with its id.
    Awaits,
    /// It may have been dropped, or be waiting: that is not visible.
    Unseen,
}
