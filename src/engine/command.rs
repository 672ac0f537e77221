//! Commands: what somebody asks of the daemon beside requests, and what is answered.
//!
//! Every answer says what is so once all that was handed over before it is durable, and leaves not sooner: a crash cannot
//! make it untrue. What is in flight is waited for, within a bound. The commands that go over many items are in `walk`.

use super::event::{AppRow, Found, Op, Place, Stored};
use super::identity::{Arrival, Live, Whereabouts};
use super::plant::{planted, Plant};
use super::table::{Road, Row, State};
use super::types::{
    Answer, Asker, ClosedBy, Command, CustomerOf, End, Ended, Identity, Listed, Now, Reply, Stage, Target,
};
use super::walk::Errand;
use super::{Engine, DEAD};
use std::collections::VecDeque;
use std::sync::Arc;

/// How long a cancel waits for the outcome of an item in flight, ms.
pub(super) const OUTCOME_MS: u64 = 5_000;

impl Asker {
    /// How what it takes back has ended.
    pub(super) fn end_of_cancel(&self) -> End {
        match self {
            Asker::Remote { redelivered: true, .. } => End::CancelledAgain,
            Asker::Remote { .. } | Asker::Local(_) => End::Cancelled,
        }
    }
}

impl Engine {
    /// Commands from within the process stand in line with the requests.
    pub(super) fn take_commands(&mut self, commands: Vec<(Asker, Command)>) {
        for (asker, command) in commands {
            self.arrived(Arrival::Command(command, asker));
        }
    }

    pub(super) fn execute(&mut self, command: Command, asker: Asker, found: Vec<Found>, now: Now) {
        let answer = match &command {
            Command::Cancel(target) => match self.cancel(target, asker.end_of_cancel(), found, now) {
                Some(answer) => answer,
                None => return self.wait_for_outcome(command, asker, now),
            },
            Command::Lookup(target) => self.look_up(target, found, now),
            Command::Flush(of) => Answer::Flushed(self.flush_customer(of, now)),
            Command::Pause(application) => self.set_paused(application, true),
            Command::Resume(application) => self.set_paused(application, false),
            Command::Retry(application) => self.retry_now(application, now),
            Command::CancelAll(of) => {
                return self.begin_walk(Errand::CancelAll(of.clone()), command, asker, now)
            }
            Command::Count(of) => return self.begin_walk(Errand::Count(of.clone()), command, asker, now),
            Command::List(filter) => {
                return self.begin_walk(Errand::List(filter.clone()), command, asker, now)
            }
            Command::DropParked(application) => {
                return self.begin_walk(Errand::DropParked(application.clone()), command, asker, now);
            }
        };
        self.reply(asker, Some(command), answer);
    }

    /// Says so once everything up to now is durable.
    pub(super) fn reply(&mut self, asker: Asker, command: Option<Command>, answer: Answer) {
        let token = self.present_token();
        let reply = Reply { asker, command: command.map(Box::new), answer };
        self.replies.push_back((token, reply));
    }

    /// Answers that are true for good.
    pub(super) fn release_replies(&mut self) {
        while let Some((token, _)) = self.replies.front() {
            if *token > self.committed && self.is_durable() && !planted(Plant::AnswerTooSoon) {
                break;
            }
            let Some((_, reply)) = self.replies.pop_front() else { break };
            match reply.asker {
                Asker::Remote { delivery, reply_to: None, .. } => self.ledger.safe(delivery),
                Asker::Remote { .. } => {
                    self.answers_out += 1;
                    self.fx.replies.push(reply);
                }
                Asker::Local(_) => self.fx.replies.push(reply),
            }
        }
    }

    /// The first of the target's identities that anybody knows.
    fn find_target(&mut self, target: &Target, found: Vec<Found>, now: Now) -> (Identity, Whereabouts) {
        let Some(app) = self.names.get(&*target.application).copied().or_else(|| {
            // Nothing of it is in memory; the answer may tell of something in the store.
            let known = found.iter().any(|found| found.item.is_some() || found.ended.is_some());
            known.then(|| self.app(&target.application))
        }) else {
            return (target.identity, Whereabouts::Nowhere);
        };
        let mut found = found.into_iter();
        for identity in target.identities() {
            match self.whereabouts(identity, app, found.next(), now) {
                Whereabouts::Nowhere => {}
                known @ (Whereabouts::Live(_) | Whereabouts::Ended(_)) => return (identity, known),
            }
        }
        (target.identity, Whereabouts::Nowhere)
    }

    /// `None`: it is in flight, and not known yet.
    fn cancel(&mut self, target: &Target, end: End, found: Vec<Found>, now: Now) -> Option<Answer> {
        let (_, whereabouts) = self.find_target(target, found, now);
        let id = match whereabouts {
            Whereabouts::Nowhere => return Some(self.dead_or_unknown(target)),
            Whereabouts::Ended(ended) => return Some(Answer::Ended(ended)),
            Whereabouts::Live(Live::Row(id)) if self.is_in_flight(id) || self.rows[id].unsure => return None,
            Whereabouts::Live(Live::Row(id)) => Some(id),
            Whereabouts::Live(Live::Far(found)) => self.fetch(*found, now),
        };
        let Some(id) = id else { return Some(Answer::Unknown) };
        self.cancel_rows(&[id], &end, now);
        Some(Answer::Cancelled { count: 1, in_flight: 0 })
    }

    /// Takes items back that are not in flight.
    pub(super) fn cancel_rows(&mut self, ids: &[u32], end: &End, now: Now) {
        for id in ids {
            let (app, identity) = (self.rows[*id].app, self.rows[*id].identity);
            let ended = self.ended(*id, end.clone(), now);
            self.remember(app, identity, ended, now);
        }
        self.counters.cancelled += ids.len() as u64;
        self.take_out(ids);
    }

    /// How an item in memory ends now.
    pub(super) fn ended(&self, id: u32, end: End, now: Now) -> Ended {
        let row = &self.rows[id];
        let (_, customer) = self.address(row);
        Ended { end, at: now.wall, due: row.due, attempts: row.attempts, customer }
    }

    /// An item that nobody named, and that is dead already, is known by its arrival number until it is gone.
    fn dead_or_unknown(&self, target: &Target) -> Answer {
        let id = target.assigned.and_then(|seq| self.by_seq.get(&seq)).copied();
        let Some(row) = id.map(|id| &self.rows[id]).filter(|row| row.app == DEAD) else {
            return Answer::Unknown;
        };
        let dead = row.extra.as_deref().and_then(|extra| extra.dead.clone());
        let (application, customer) = self.address(row);
        match dead {
            Some(dead) if *application == *target.application => Answer::Ended(Box::new(Ended {
                end: End::Dead(dead),
                at: row.received,
                due: row.due,
                attempts: row.attempts,
                customer,
            })),
            Some(_) | None => Answer::Unknown,
        }
    }

    /// Puts a cancel behind the attempt that is under way.
    fn wait_for_outcome(&mut self, command: Command, asker: Asker, now: Now) {
        let Command::Cancel(target) = &command else { return };
        let Some(identity) = target.identities().find(|identity| self.row_of(*identity).is_some()) else {
            return;
        };
        let until = self.waited_for.unwrap_or(now.mono + OUTCOME_MS);
        self.outcomes_until.insert((until, identity));
        self.undecided.entry(identity).or_default().push_back((until, Arrival::Command(command, asker)));
    }

    /// Cancels whose outcome did not become known in time.
    pub(super) fn end_waits(&mut self, now: Now) {
        while let Some((until, identity)) = self.outcomes_until.first().copied() {
            if until > now.mono {
                break;
            }
            self.outcomes_until.pop_first();
            let Some(waiting) = self.undecided.remove(&identity) else { continue };
            let (over, left): (VecDeque<_>, VecDeque<_>) =
                waiting.into_iter().partition(|(at, _)| *at <= now.mono);
            if !left.is_empty() {
                self.undecided.insert(identity, left);
            }
            for (_, arrival) in over {
                if let Arrival::Command(command, asker) = arrival {
                    self.reply(asker, Some(command), Answer::InFlight);
                }
            }
        }
    }

    fn look_up(&mut self, target: &Target, found: Vec<Found>, now: Now) -> Answer {
        match self.find_target(target, found, now).1 {
            Whereabouts::Nowhere => self.dead_or_unknown(target),
            Whereabouts::Ended(ended) => Answer::Ended(ended),
            Whereabouts::Live(Live::Row(id)) => Answer::Found(Box::new(self.listed(id))),
            Whereabouts::Live(Live::Far(found)) => {
                let (place, stored) = *found;
                Answer::Found(Box::new(self.listed_far(&place, stored)))
            }
        }
    }

    /// What is to be told of an item in memory.
    pub(super) fn listed(&self, id: u32) -> Listed {
        let row = &self.rows[id];
        let (application, customer) = self.address(row);
        Listed {
            stage: self.stage_of(id, row),
            key: row.key,
            due: row.due,
            application,
            customer,
            received: row.received,
            attempts: row.attempts,
            last_error: row.extra.as_deref().and_then(|extra| extra.last_error.clone()),
            properties: row.content.clone(),
        }
    }

    fn stage_of(&self, id: u32, row: &Row) -> Stage {
        if self.is_in_flight(id) {
            return Stage::InFlight;
        }
        match row.state {
            State::Scheduled | State::Windowed { .. } if !row.in_lane => Stage::Waiting,
            State::Scheduled | State::Windowed { .. } | State::Ready | State::Flying(_) => {
                self.stage_of_due(row.app)
            }
        }
    }

    /// Of an item that is due and not in flight.
    fn stage_of_due(&self, app: u32) -> Stage {
        if self.is_parked(app) {
            Stage::Parked
        } else {
            Stage::Waiting
        }
    }

    /// The last try of an application failed.
    pub(super) fn is_parked(&self, app: u32) -> bool {
        match self.apps[app].road {
            Road::Parked { .. } | Road::Probing { .. } => true,
            Road::Unproven => self.apps[app].failures > 0,
            Road::Open { .. } => false,
        }
    }

    /// What is to be told of an item in the store alone.
    pub(super) fn listed_far(&self, place: &Place, stored: Stored) -> Listed {
        let stage = match place {
            Place::Time => Stage::Waiting,
            Place::Lane(name) => self.names.get(name).map_or(Stage::Waiting, |app| self.stage_of_due(*app)),
        };
        Listed {
            stage,
            key: stored.key,
            due: stored.key.due,
            application: stored.application,
            customer: stored.customer,
            received: stored.received,
            attempts: stored.attempts,
            last_error: stored.last_error,
            properties: stored.content,
        }
    }

    /// Closes the customer's open window; says how many items were in it.
    fn flush_customer(&mut self, of: &CustomerOf, now: Now) -> u64 {
        let Some(app) = self.names.get(&*of.application) else { return 0 };
        let Some(group) = self.apps[*app].groups.get(&*of.customer).copied() else { return 0 };
        let Some(window) = &self.groups[group].window else { return 0 };
        let count = u64::from(window.count);
        self.pin_group(group);
        self.close_window(group, ClosedBy::Flush, now);
        self.unpin_group(group);
        count
    }

    fn set_paused(&mut self, application: &str, paused: bool) -> Answer {
        let app = self.app(application);
        if self.apps[app].paused == paused {
            return Answer::Done { changed: false };
        }
        self.apps[app].paused = paused;
        if self.is_durable() {
            let row = &self.apps[app];
            let (application, waiting) = (Arc::clone(&row.name), row.counted);
            self.ops.push(Op::PutApp(AppRow { application, waiting, paused }));
        }
        if paused {
            self.start_parking(app);
        } else {
            if self.apps[app].lane.is_some() {
                self.hungry.insert(app);
            }
            self.enqueue(app);
        }
        Answer::Done { changed: true }
    }

    /// A parked application's next probe goes now.
    fn retry_now(&mut self, application: &str, now: Now) -> Answer {
        let app = self.names.get(application).copied();
        let until = app.and_then(|app| match self.apps[app].road {
            Road::Parked { until, .. } => Some((until, app)),
            Road::Unproven | Road::Open { .. } | Road::Probing { .. } => None,
        });
        let Some(entry) = until else { return Answer::Done { changed: false } };
        self.backoffs.remove(&entry);
        self.backoffs.insert((now.mono, entry.1));
        Answer::Done { changed: true }
    }
}
