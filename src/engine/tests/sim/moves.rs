//! Items that get another key or another queue: by a closed window, a new time, or their death.

use super::model::*;
use tidegate_types::event::*;
use tidegate_types::*;

impl Model {
    /// Applies the moves of a commit.
    pub(super) fn moves(&mut self, ops: &[Op]) {
        for op in ops {
            match op {
                // A deleted item got its last time before that.
                Op::Move { from, to, standing, .. }
                    if !(is_retimed(from, to, standing) && self.lives[&from.key.seq].deleted) =>
                {
                    self.moved(from, to, standing);
                }
                Op::Close(closed) => self.closed_early(closed),
                _ => {}
            }
        }
    }

    /// Applies a new time that an item got before it was deleted in the same commit.
    pub(super) fn retimed_before(&mut self, place: &Place, ops: &[Op]) {
        for op in ops {
            let Op::Move { from, to, standing, .. } = op else { continue };
            if from.key.seq == place.key.seq && is_retimed(from, to, standing) {
                self.moved(from, to, standing);
            }
        }
    }

    pub(super) fn moved(&mut self, from: &Place, to: &Place, standing: &Standing) {
        let seq = from.key.seq;
        let life = &self.lives[&seq];
        let (ask, state, attempts) = (life.ask, life.state, life.attempts);
        let range = attempts.0..=attempts.1;
        assert!(
            range.contains(&standing.attempts) || life.state.is_over(),
            "{ask}: attempts {} of {range:?}",
            standing.attempts
        );
        match (&standing.dead, state) {
            (Some(_), State::Dead(_) | State::DeadOut(..) | State::DeadSent(_)) => {}
            (Some(dead), _) => {
                self.check_verdict(ask, Some(seq), dead.reason);
                if dead.reason == Reason::Full {
                    self.check_oldest(seq, to.key.due);
                }
                self.set(seq, State::Dead(dead.reason));
            }
            (None, State::Dead(_) | State::DeadOut(..)) => panic!("{ask} is alive again"),
            (None, _) => {
                let windowed = self.is_windowed(life);
                if standing.own_time && (windowed || from.key != to.key) {
                    return self.retimed(seq, to.key.due);
                }
                if standing.own_time {
                    self.stays_in_place(seq);
                }
                assert_eq!(from.key, to.key, "moved though it was given no other time");
            }
        }
    }

    /// The item that is given up must be the first that is due, among those that are not in flight.
    fn check_oldest(&self, seq: u64, due: u64) {
        let life = &self.lives[&seq];
        // Its window may have closed earlier than is visible, or its row may have been moved.
        let due = due.min(life.due).min(life.accepted_due);
        let name = self.application(seq);
        // Otherwise a batch of it may wait for payloads; its pause may have been the shortest.
        let rests =
            self.apps.get(name).is_some_and(|app| app.paused.is_some() || app.parked_until > self.now.mono);
        let failed = |other: &Life| rests && self.prompt && other.failed && other.waiting_since < self.call;
        let older = |other: &&Life| {
            other.state == State::Waiting
                && (other.due > self.latest_wall && other.published.is_none() || failed(other))
                && other.accepted < self.call
                && other.due.max(other.accepted_due) < due
                && self.application(other.seq) == name
        };
        let older = self.lives.values().find(older);
        assert!(older.is_none(), "{:?} is due before {:?}, which made room", older.map(|o| o.due), due);
    }

    fn windows_closed(&mut self, seq: u64, due: u64, cause: ClosedBy) {
        let new = self.asks[self.lives[&seq].ask].new.clone();
        let may_flush = self.may_flush(&new.application, new.customer.as_deref().unwrap_or(""));
        let call = self.call;
        self.windows.close_ripe(call, self.now);
        self.windows.has_closed(seq, due, cause, may_flush, call);
        self.windows.closed_sooner(seq, due, cause);
        self.lives.get_mut(&seq).expect("there").due = due;
    }

    /// Makes the members of a window that closed early due.
    fn closed_early(&mut self, closed: &ClosingRow) {
        let ClosingRow { application, end, window, due, cause } = closed;
        assert!(due < end, "a window that closed early: {closed:?}");
        let is_member = |life: &&Life| {
            let its = life.number == *window && life.accepted_due == *end && self.is_windowed(life);
            its && life.state == State::Waiting && life.published.is_none()
        };
        let members = self.lives.values().filter(|life| self.application(life.seq) == &**application);
        let members: Vec<(u64, bool)> =
            members.filter(is_member).map(|life| (life.seq, life.restored)).collect();
        for (seq, restored) in members {
            if restored {
                self.lives.get_mut(&seq).expect("there").due = *due;
            } else {
                self.windows_closed(seq, *due, *cause);
            }
        }
    }
}

/// Whether the move gives the item a new own time.
fn is_retimed(from: &Place, to: &Place, standing: &Standing) -> bool {
    standing.own_time && standing.dead.is_none() && from.key != to.key
}
