//! Items that a command gives another time.
//!
//! Judges promise 15.

use super::super::world::assigned;
use super::commands::Asked;
use super::customers::takes_back;
use super::model::*;
use super::verdicts::own_due;
use super::Sim;
use tidegate_types::*;

/// Commands from within the process about one application that may wait for outcomes.
const MOST_WAIT: usize = 8;

/// A move of an item's row to an own time: the due before and after, the moment, UTC ms, and the call.
pub(super) struct Moved {
    seq: u64,
    before: u64,
    /// It had waited for its window, which may have closed earlier than is visible.
    windowed: bool,
    due: u64,
    at: u64,
    call: usize,
    /// An answer has reported it.
    told: bool,
}

impl Model {
    /// Its own time, from its request or from a command.
    pub(super) fn own_time(&self, life: &Life) -> Option<u64> {
        life.retimed.or(self.asks[life.ask].new.at)
    }

    /// Whether it is, or was, a member of a window.
    pub(super) fn is_windowed(&self, life: &Life) -> bool {
        self.own_time(life).is_none() && self.asks[life.ask].new.customer.is_some()
    }

    /// Its row was moved to an own time, which a command must have asked for. It has left its window and its wait.
    pub(super) fn retimed(&mut self, seq: u64, due: u64) {
        let (life, call) = (&self.lives[&seq], self.call);
        let (ask, before, windowed) = (life.ask, life.due, self.is_windowed(life));
        assert!(self.is_asked_for(life, due), "{ask} was moved to {due}, and nobody asked for it");
        assert!(!life.undecided, "{ask} was given another time, and may have been delivered");
        self.moves.push(Moved { seq, before, windowed, due, at: self.now.wall, call, told: false });
        self.check_moves(seq);
        self.windows.part_with(seq);
        let life = self.lives.get_mut(&seq).expect("there");
        (life.retimed, life.retimed_call, life.due) = (Some(due), call, due);
        (life.window, life.published, life.failed) = (None, None, false);
    }

    /// Whether a command asks for this time.
    fn is_asked_for(&self, life: &Life, due: u64) -> bool {
        self.commands.values().any(|asked| match &asked.command {
            Command::Reschedule(target, to) if is_named(life, target) => {
                self.is_inexact() || self.may_become(life.ask, asked, *to, (due, self.now.wall))
            }
            _ => false,
        })
    }

    /// Its row stays in place: its new time may equal its present one.
    pub(super) fn stays_in_place(&mut self, seq: u64) {
        let life = &self.lives[&seq];
        if self.is_asked_for(life, life.due) {
            let due = life.due;
            self.lives.get_mut(&seq).expect("there").retimed = Some(due);
        }
    }

    /// The due that this moment gives, if it is decided at `wall`.
    fn would_be(&self, ask: usize, to: Moment, wall: u64) -> u64 {
        let new = &self.asks[ask].new;
        let at = match to {
            Moment::At(at) => at,
            Moment::After(delay) => wall + delay + 1,
        };
        own_due(self.settings.of(&new.application), at, new.expiry, wall)
    }

    /// Whether this due is possible, if it was decided between the question and this moment.
    fn may_become(&self, ask: usize, asked: &Asked, to: Moment, (due, wall): (u64, u64)) -> bool {
        let (first, last) = (self.would_be(ask, to, asked.now.wall), self.would_be(ask, to, wall));
        (first.min(last)..=first.max(last)).contains(&due)
    }

    /// Whether it may have been decided by another clock, or under other settings.
    fn is_inexact(&self) -> bool {
        self.stepped || !self.before.is_empty()
    }

    /// Whether its due may have been another since the entry was delivered: that of a window, or the one before a
    /// command.
    pub(super) fn was_due_otherwise(&self, seq: u64, ask: usize) -> bool {
        self.lives[&seq].window.is_some() || self.is_retimed_since(seq, ask)
    }

    /// Whether it was given another time since the entry was delivered.
    pub(super) fn is_retimed_since(&self, seq: u64, ask: usize) -> bool {
        let delivered = self.messages[&self.asks[ask].message].delivered;
        self.lives[&seq].retimed_call >= delivered.map_or(0, |(call, ..)| call).max(1)
    }

    /// Whether the entry is its own request, redelivered, which does not restore its old time.
    pub(super) fn keeps_its_time(&self, seq: u64, ask: usize) -> bool {
        let redelivered = self.messages[&self.asks[ask].message].delivered.is_some_and(|(.., again)| again);
        redelivered && self.lives[&seq].retimed.is_some() && self.is_same(seq, ask)
    }

    /// Whether as many commands from within the process wait for outcomes as may.
    pub(super) fn many_wait(&self, asked: &Asked) -> bool {
        let waits = |other: &&Asked| {
            let may_wait = takes_back(&other.command) || matches!(other.command, Command::Reschedule(..));
            may_wait && other.local && other.answered >= asked.call
        };
        self.commands.values().chain(self.answered.values()).filter(waits).count() >= MOST_WAIT
    }

    pub(super) fn judge_reschedule(&mut self, asked: &Asked, target: &Target, to: Moment, answer: &Answer) {
        self.judge_new_time(asked, target, to, answer);
        let named = self.lives.values().filter(|life| is_named(life, target)).map(|life| life.seq);
        named.collect::<Vec<u64>>().into_iter().for_each(|seq| self.check_moves(seq));
    }

    /// Whether it was given this time in this life.
    pub(super) fn was_moved_to(&self, seq: u64, due: u64) -> bool {
        self.moves.iter().any(|is| is.seq == seq && is.due == due)
    }

    /// There may be no more unreported moves than commands that ask for them.
    fn check_moves(&self, seq: u64) {
        let life = &self.lives[&seq];
        let untold = self.moves.iter().filter(|is| is.seq == seq && !is.told).count();
        let asks = |asked: &&Asked| matches!(&asked.command, Command::Reschedule(target, _) if is_named(life, target));
        let asked = self.commands.values().filter(asks).count();
        assert!(untold <= asked, "{seq} was moved {untold} times, and {asked} ask for it");
    }

    /// The item whose move this answer reports: among several moves, the first that fits.
    fn tell_move(&mut self, asked: &Asked, target: &Target, to: Moment, told: (u64, u64)) -> Option<u64> {
        let (before, due) = told;
        let fits = |is: &Moved| {
            let life = &self.lives[&is.seq];
            // The due of members of a window may have become sooner in between.
            let was = is.before == before || is.windowed && before <= life.accepted_due;
            let becomes = self.is_inexact() || self.may_become(life.ask, asked, to, (due, is.at));
            !is.told && is.due == due && is.call >= asked.call && is_named(life, target) && was && becomes
        };
        let found = self.moves.iter().position(fits)?;
        self.moves[found].told = true;
        Some(self.moves[found].seq)
    }

    fn judge_new_time(&mut self, asked: &Asked, target: &Target, to: Moment, answer: &Answer) {
        match answer {
            Answer::Rescheduled { due, before } => {
                let Some(seq) = self.tell_move(asked, target, to, (*before, *due)) else {
                    // It was due at that moment already, and may have been given another time since.
                    let of_it = |life: &&Life| is_named(life, target);
                    let moved_on =
                        |life: &Life| self.moves.iter().any(|is| is.seq == life.seq && is.before == *due);
                    let was_due = |life: &Life| life.due == *due || moved_on(life);
                    let unmoved = due == before && self.lives.values().filter(of_it).any(was_due);
                    return assert!(unmoved, "{target:?} is said to be due at {due}, not {before}");
                };
                let expiry = self.asks[self.lives[&seq].ask].new.expiry;
                assert!(
                    expiry.is_none_or(|at| *due < at),
                    "{seq} is to be due at {due}, and expires at {expiry:?}"
                );
                let life = self.lives.get_mut(&seq).expect("moved");
                life.promised = Some(*due);
            }
            Answer::Rejected(text) => {
                let seq = target.assigned.map(|id| id.seq);
                let own = seq.and_then(|seq| self.lives.get(&seq)).map(|life| &self.asks[life.ask].new);
                let of_id = self.asks.iter().map(|ask| &ask.new);
                let of_id = of_id.filter(|new| new.identity == Some(target.identity));
                let expiries = of_id.chain(own).filter_map(|new| new.expiry);
                let expires = |wall: u64, expiry: u64| match to {
                    Moment::At(at) => at.max(wall) >= expiry,
                    Moment::After(delay) => wall + delay + 1 >= expiry,
                };
                let right = expiries.into_iter().any(|expiry| expires(self.now.wall, expiry));
                assert!(right || self.stepped, "{target:?} was refused: {text}");
            }
            Answer::Unavailable(_) => assert!(!self.durable, "{target:?} cannot be given another time"),
            Answer::Cancelled { .. } => panic!("{target:?} was to have another time: {answer:?}"),
            _ => self.judge_cancel(asked, target, answer),
        }
    }
}

/// Whether the target names the item, by its producer's id or by its assigned one.
fn is_named(life: &Life, target: &Target) -> bool {
    life.identity == target.identity || target.assigned.is_some_and(|id| id.seq == life.seq)
}

impl Sim {
    /// Gives one of the newest items that have not ended, or any other, a sooner or later time.
    pub(super) fn retime(&mut self) {
        let lately = self.model.lives.values().rev().filter(|life| life.state.is_live()).take(30);
        let lately: Vec<(u64, Identity, u64)> =
            lately.map(|life| (life.seq, life.identity, life.accepted_due)).collect();
        if lately.is_empty() {
            return;
        }
        let (seq, identity, accepted_due) = lately[self.toss(lately.len() as u64) as usize];
        let target = if identity.is_given() {
            Target {
                application: self.model.application(seq).into(),
                id: "".into(),
                identity,
                assigned: None,
            }
        } else {
            assigned(self.model.application(seq), self.model.lives[&seq].key(), accepted_due)
        };
        let spread = [30, 3_000, 60_000, 400_000][self.toss(4) as usize];
        let ms = self.toss(spread);
        let expiry = self.model.asks[self.model.lives[&seq].ask].new.expiry;
        let to = match self.toss(3) {
            0 => Moment::After(ms),
            // Just before its expiry, or at that moment.
            1 if expiry.is_some() => Moment::At(expiry.unwrap_or_default() - self.toss(2)),
            _ => Moment::At((self.world.now.wall + ms).saturating_sub(20)),
        };
        self.ask(Command::Reschedule(target, to));
    }
}
