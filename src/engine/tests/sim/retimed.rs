//! Items that a command gives another time.

use super::super::world::assigned;
use super::commands::Asked;
use super::model::*;
use super::verdicts::own_due;
use super::Sim;
use crate::engine::types::*;

/// Commands from within the process about one application that may wait for outcomes.
const MOST_WAIT: usize = 8;

impl Model {
    /// The time of its own that it has, be it of its request or of a command.
    pub(super) fn own_time(&self, life: &Life) -> Option<u64> {
        life.retimed.or(self.asks[life.ask].new.at)
    }

    /// It is, or was, a member of a window.
    pub(super) fn is_windowed(&self, life: &Life) -> bool {
        self.own_time(life).is_none() && self.asks[life.ask].new.customer.is_some()
    }

    /// Its row was moved to a time of its own: somebody has asked for that. It has left its window, and what it waited
    /// for.
    pub(super) fn retimed(&mut self, seq: u64, due: u64) {
        let (life, call) = (&self.lives[&seq], self.call);
        let (ask, before) = (life.ask, life.due);
        // Which is meant is told by the moment, where several ask for another time; else by what it may have become.
        let means = |asked: &Asked, is: &dyn Fn(NewDue) -> bool| match &asked.command {
            Command::Reschedule(target, to) => asked.retimed.is_none() && is_named(life, target) && is(*to),
            _ => false,
        };
        let find = |is: &dyn Fn(NewDue, &Asked) -> bool| {
            let found = self.commands.iter().find(|(_, asked)| means(asked, &|to| is(to, asked)));
            found.map(|(number, _)| *number)
        };
        let exact = find(&|to, _| self.would_be(ask, to, self.now.wall) == due);
        let near = || find(&|to, asked| self.may_become(ask, asked, to, due));
        let any = || find(&|_, _| self.is_inexact());
        let Some(number) = exact.or_else(near).or_else(any) else {
            panic!("{ask} was moved to {due}, and nobody asked for it");
        };
        assert!(!life.undecided, "{ask} was given another time, and may have been delivered");
        self.commands.get_mut(&number).expect("found").retimed = Some((seq, before, due));
        self.windows.part_with(seq);
        let life = self.lives.get_mut(&seq).expect("there");
        (life.retimed, life.retimed_call, life.due) = (Some(due), call, due);
        (life.window, life.published, life.failed) = (None, None, false);
    }

    /// The moment that is meant, judged at another.
    fn would_be(&self, ask: usize, to: NewDue, wall: u64) -> u64 {
        let new = &self.asks[ask].new;
        let at = match to {
            NewDue::At(at) => at,
            NewDue::After(delay) => wall + delay + 1,
        };
        own_due(self.settings.of(&new.application), at, new.expiry, wall)
    }

    /// The same, judged between question and answer.
    fn may_become(&self, ask: usize, asked: &Asked, to: NewDue, due: u64) -> bool {
        let (first, last) = (self.would_be(ask, to, asked.now.wall), self.would_be(ask, to, self.now.wall));
        (first.min(last)..=first.max(last)).contains(&due)
    }

    /// It may have been judged by another clock, or under other settings.
    fn is_inexact(&self) -> bool {
        self.stepped || !self.before.is_empty()
    }

    /// Its time may have been another since the entry was delivered: that of a window, or the one before a command.
    pub(super) fn was_due_otherwise(&self, seq: u64, ask: usize) -> bool {
        self.lives[&seq].window.is_some() || self.is_retimed_since(seq, ask)
    }

    /// It was given another time since an entry was delivered.
    pub(super) fn is_retimed_since(&self, seq: u64, ask: usize) -> bool {
        let delivered = self.messages[&self.asks[ask].message].delivered;
        self.lives[&seq].retimed_call >= delivered.map_or(0, |(call, ..)| call).max(1)
    }

    /// An entry is its own request, delivered again, which does not bring its old time back.
    pub(super) fn keeps_its_time(&self, seq: u64, ask: usize) -> bool {
        let redelivered = self.messages[&self.asks[ask].message].delivered.is_some_and(|(.., again)| again);
        redelivered && self.lives[&seq].retimed.is_some() && self.is_same(seq, ask)
    }

    /// As many of those that this process has asked for wait for outcomes as may.
    pub(super) fn many_wait(&self, asked: &Asked) -> bool {
        let waits = |other: &&Asked| {
            let may_wait = matches!(
                other.command,
                Command::Cancel(_) | Command::CancelAll(_) | Command::DropParked(_) | Command::Reschedule(..)
            );
            may_wait && other.local && other.answered >= asked.call
        };
        self.commands.values().chain(self.answered.values()).filter(waits).count() >= MOST_WAIT
    }

    pub(super) fn judge_reschedule(&mut self, asked: &Asked, target: &Target, to: NewDue, answer: &Answer) {
        match answer {
            Answer::Rescheduled { due, before } => {
                let Some((seq, was, is)) = asked.retimed else {
                    // It was due then already, and may have been given another time behind this.
                    let of_it = |life: &&Life| is_named(life, target);
                    let since = || self.commands.values().chain(self.answered.values());
                    let moved_on = |life: &Life| {
                        since().any(|other| {
                            other.retimed.is_some_and(|(seq, was, _)| seq == life.seq && was == *due)
                        })
                    };
                    let was_due = |life: &Life| life.due == *due || moved_on(life);
                    let unmoved = due == before && self.lives.values().filter(of_it).any(was_due);
                    return assert!(unmoved, "{target:?} is said to be due at {due}, and was not moved");
                };
                assert_eq!(*due, is, "due from now on");
                let expiry = self.asks[self.lives[&seq].ask].new.expiry;
                assert!(
                    expiry.is_none_or(|at| *due < at),
                    "{seq} is to be due at {due}, and expires at {expiry:?}"
                );
                let life = self.lives.get_mut(&seq).expect("moved");
                life.promised = Some(*due);
                let windowed = self.asks[self.lives[&seq].ask].new.at.is_none();
                assert!(
                    *before == was || windowed && *before <= self.lives[&seq].accepted_due,
                    "{before}, not {was}"
                );
            }
            Answer::Rejected(text) => {
                let seq = target.assigned.map(|id| id.seq);
                let own = seq.and_then(|seq| self.lives.get(&seq)).map(|life| &self.asks[life.ask].new);
                let of_id = self.asks.iter().map(|ask| &ask.new);
                let of_id = of_id.filter(|new| new.identity == Some(target.identity));
                let expiries = of_id.chain(own).filter_map(|new| new.expiry);
                let expires = |wall: u64, expiry: u64| match to {
                    NewDue::At(at) => at.max(wall) >= expiry,
                    NewDue::After(delay) => wall + delay + 1 >= expiry,
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

/// By its producer's id, or by the one that it was assigned.
fn is_named(life: &Life, target: &Target) -> bool {
    life.identity == target.identity || target.assigned.is_some_and(|id| id.seq == life.seq)
}

impl Sim {
    /// Somebody wants one of the newest that have not ended, or any other, sooner or later than it was to be.
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
            assigned(self.model.application(seq), seq, accepted_due)
        };
        let spread = [30, 3_000, 60_000, 400_000][self.toss(4) as usize];
        let ms = self.toss(spread);
        let expiry = self.model.asks[self.model.lives[&seq].ask].new.expiry;
        let to = match self.toss(3) {
            0 => NewDue::After(ms),
            // Just before it expires, or just then.
            1 if expiry.is_some() => NewDue::At(expiry.unwrap_or_default() - self.toss(2)),
            _ => NewDue::At((self.world.now.wall + ms).saturating_sub(20)),
        };
        self.ask(Command::Reschedule(target, to));
    }
}
