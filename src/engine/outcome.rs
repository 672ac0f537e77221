//! What became of a publish, and what follows: delivered, tried again, parked, split, or given up.
//!
//! Guarantee: an item ends well by a confirm without a return, and by nothing else. Decided here and nowhere else.

use super::event::Op;
use super::plant::{planted, Plant};
use super::retry;
use super::table::{Phase, Road, State};
use super::types::{BatchId, End, Now, Outcome, Reason, Settled};
use super::{Engine, DEAD};
use std::sync::Arc;

impl Engine {
    pub(super) fn settled(&mut self, settled: Vec<Settled>, now: Now) {
        for Settled { number, outcome } in settled {
            let Some(flight) = self.flights.get(&number) else { continue };
            let Phase::Out { probe } = flight.phase else { continue };
            let app = flight.app;
            self.free_slot(number);
            if probe {
                self.probe = None;
                self.apps[app].suspects -= 1;
            }
            match outcome {
                Outcome::Confirmed(batch) => self.delivered(number, batch, now),
                Outcome::Nacked => {
                    self.counters.nacked += 1;
                    self.failed(number, "nacked by the broker: a bound queue is full or unavailable", now);
                }
                Outcome::Returned(_) if planted(Plant::ReturnedIsDelivered) => {
                    self.delivered(number, BatchId::default(), now);
                }
                Outcome::Unknown if planted(Plant::UnknownIsDelivered) => {
                    self.delivered(number, BatchId::default(), now);
                }
                Outcome::Returned(text) => {
                    self.counters.returned += 1;
                    self.failed(number, &format!("returned by the broker: {text}"), now);
                }
                Outcome::Refused(text) => {
                    self.counters.refused += 1;
                    self.refused(number, probe, &text, now);
                }
                Outcome::Unsent => {
                    self.not_published(number);
                    if probe {
                        self.suspect(number, true);
                    } else {
                        self.send_again(number);
                    }
                }
                Outcome::Unavailable(text) => {
                    self.not_published(number);
                    self.park_app(app, &text, now);
                    self.send_again(number);
                    if self.is_durable() {
                        self.keep_one_probe(app);
                    }
                }
                Outcome::Unknown | Outcome::Overdue => {
                    self.counters.unknown += 1;
                    self.note_unsure(number);
                    if probe {
                        self.suspect(number, true);
                    } else {
                        self.send_again(number);
                    }
                }
            }
            self.replace_probe(app);
        }
    }

    /// Confirmed and not returned: this, and nothing else, ends an item well.
    pub(super) fn delivered(&mut self, number: u64, batch: BatchId, now: Now) {
        let Some(flight) = self.flights.remove(&number) else { return };
        let app = flight.app;
        let count = flight.rows.len() as u64;
        if app == DEAD {
            self.counters.dead_sent += count;
        } else {
            self.counters.sent += count;
            self.counters.batches += 1;
        }
        for id in flight.rows {
            self.remember_sent(id, batch, now);
            self.finish(id);
        }
        let share = self.share();
        let app_row = &mut self.apps[app];
        app_row.sent += count;
        match app_row.road {
            Road::Open { .. } => app_row.allowance = (app_row.allowance * 2).min(share),
            Road::Unproven | Road::Probing { .. } => {
                app_row.allowance = 2;
                app_row.failures = 0;
            }
            // A straggler from before the failure; the probe decides.
            Road::Parked { .. } => return,
        }
        app_row.road = Road::Open { proven: now.mono };
        if app_row.lane.is_some() {
            self.hungry.insert(app);
        }
    }

    /// An item is done with: its request may be acked, and the store forgets it.
    pub(super) fn finish(&mut self, id: u32) {
        let place = self.place_of(&self.rows[id]);
        let indexed = self.index_of(&self.rows[id]);
        let Some(row) = self.remove_row(id) else { return };
        self.count_out(row.app);
        if let Some(tag) = row.tag {
            let delivery = self.ledger.delivery(tag);
            if row.identity.is_given() {
                // Else a crash could forget that the id was known, with the request acked.
                self.safe_once_durable(delivery);
            } else {
                self.ledger.safe(delivery);
            }
        }
        if !row.stored {
            return;
        }
        self.cursor.note_move(row.key.seq, None);
        if row.in_lane {
            self.leave_lane(row.app);
        } else {
            self.stored -= 1;
        }
        self.delete_later(Op::Delete { place, key: row.key, indexed });
    }

    fn remember_sent(&mut self, id: u32, batch: BatchId, now: Now) {
        let (app, identity) = (self.rows[id].app, self.rows[id].identity);
        if app == DEAD {
            self.remember_letter(id, now);
        } else if identity.is_given() || !self.undecided.is_empty() {
            let ended = self.ended(id, End::Sent(batch), now);
            self.remember(app, identity, ended, now);
        }
    }

    /// See [`Engine::remember_dead`].
    fn remember_letter(&mut self, id: u32, now: Now) {
        let extra = self.rows[id].extra.as_deref();
        let Some((identity, dead)) = extra.and_then(|extra| extra.was.zip(extra.dead.clone())) else {
            return;
        };
        let (application, _) = self.address(&self.rows[id]);
        let app = self.app(&application);
        let ended = self.ended(id, End::Dead(dead), now);
        self.remember(app, identity, ended, now);
    }

    /// It was handed over, and went nowhere.
    fn not_published(&mut self, number: u64) {
        if let Some(flight) = self.flights.get_mut(&number) {
            flight.publishes = flight.publishes.saturating_sub(1);
        }
    }

    /// Nobody can say whether its members were delivered.
    fn note_unsure(&mut self, number: u64) {
        let Some(flight) = self.flights.get(&number) else { return };
        for id in &flight.rows {
            self.rows[*id].unsure = true;
        }
    }

    /// An item that is taken out leaves its flight, which waits for its next try; the last one takes it along.
    pub(super) fn leave_flight(&mut self, id: u32) {
        let State::Flying(number) = self.rows[id].state else { return };
        let Some(flight) = self.flights.get_mut(&number) else { return };
        flight.rows.retain(|other| *other != id);
        if !flight.rows.is_empty() {
            return;
        }
        let (app, phase) = (flight.app, flight.phase);
        self.flights.remove(&number);
        match phase {
            Phase::Suspect => {
                self.suspects.retain(|other| *other != number);
                self.apps[app].suspects -= 1;
            }
            Phase::Waiting => self.apps[app].resend.retain(|other| *other != number),
            Phase::Gathering { .. } | Phase::Out { .. } => debug_assert!(false, "it is in flight"),
        }
        self.replace_probe(app);
    }

    /// To be sent again as it is, before anything new of its application.
    pub(super) fn send_again(&mut self, number: u64) {
        let Some(flight) = self.flights.get_mut(&number) else { return };
        flight.phase = Phase::Waiting;
        let app = flight.app;
        let lost = flight.rows.iter().all(|id| self.rows[*id].is_lost());
        if lost {
            // The broker has these requests back and delivers them again.
            if let Some(flight) = self.flights.remove(&number) {
                for id in flight.rows {
                    self.give_back_to_broker(id);
                }
            }
            return;
        }
        let resend = &mut self.apps[app].resend;
        let at = resend.partition_point(|other| *other < number);
        resend.insert(at, number);
        self.enqueue(app);
    }

    /// Nacked or returned: the application is left alone for a while, and one batch of it will try the road.
    pub(super) fn failed(&mut self, number: u64, error: &str, now: Now) {
        let Some(flight) = self.flights.get(&number) else { return };
        let app = flight.app;
        let rows = self.count_attempt(number, error);
        self.park_app(app, error, now);
        if rows == 0 {
            return;
        }
        self.send_again(number);
        if self.is_durable() {
            self.keep_one_probe(app);
        }
    }

    /// Counts a failed attempt to every member; members that have had their last go to the dead exchange. Returns
    /// how many are left in the flight.
    fn count_attempt(&mut self, number: u64, error: &str) -> usize {
        let Some(flight) = self.flights.get_mut(&number) else { return 0 };
        let allowed = self.apps[flight.app].settings.retry.attempts;
        let limited = allowed > 0 && flight.app != DEAD;
        let rows = std::mem::take(&mut flight.rows);
        let text: Arc<str> = error.into();
        for id in &rows {
            let row = &mut self.rows[*id];
            row.attempts += 1;
            row.extra.get_or_insert_with(Box::default).last_error = Some(Arc::clone(&text));
        }
        let (left, over): (Vec<u32>, Vec<u32>) =
            rows.into_iter().partition(|id| !limited || self.rows[*id].attempts < allowed);
        for id in over {
            let error = format!("given up after {allowed} attempts (retry.attempts): {error}");
            self.kill(id, Reason::Attempts, &error);
        }
        let count = left.len();
        if count == 0 {
            self.flights.remove(&number);
        } else if let Some(flight) = self.flights.get_mut(&number) {
            flight.rows = left;
        }
        count
    }

    pub(super) fn park_app(&mut self, app: u32, error: &str, now: Now) {
        let random = self.random.draw();
        let row = &mut self.apps[app];
        row.allowance = 1;
        if matches!(row.road, Road::Parked { .. }) {
            return;
        }
        row.failures = row.failures.saturating_add(1);
        let until = now.mono + retry::pause(&row.settings.retry, row.failures, random);
        row.road = Road::Parked { until, last_error: error.into() };
        self.backoffs.insert((until, app));
        self.start_parking(app);
    }

    /// Of several failed batches the oldest stays in memory as the probe, with its attempts written down; the
    /// others go to the lane.
    fn keep_one_probe(&mut self, app: u32) {
        while self.apps[app].resend.len() > 1 {
            if let Some(number) = self.apps[app].resend.pop_back() {
                self.dissolve(number);
            }
        }
        let Some(number) = self.apps[app].resend.front().copied() else { return };
        let rows = self.flights.get(&number).map(|flight| flight.rows.clone()).unwrap_or_default();
        for id in rows {
            self.store_row(id);
            self.park_in_place(id);
        }
    }

    pub(super) fn end_backoffs(&mut self, now: Now) {
        while let Some((at, app)) = self.backoffs.first().copied() {
            if at > now.mono {
                break;
            }
            self.backoffs.pop_first();
            let Road::Parked { last_error, .. } = &self.apps[app].road else { continue };
            let last_error = Arc::clone(last_error);
            let probe = !self.apps[app].resend.is_empty();
            self.apps[app].road = if probe { Road::Probing { last_error } } else { Road::Unproven };
            if self.apps[app].lane.is_some() {
                self.hungry.insert(app);
            }
            self.enqueue(app);
        }
    }

    /// The broker closed the channel over this batch, or perhaps over another that was out with it.
    pub(super) fn refused(&mut self, number: u64, probe: bool, text: &str, now: Now) {
        if !probe {
            self.suspect(number, false);
            return;
        }
        let Some(flight) = self.flights.get_mut(&number) else { return };
        let app = flight.app;
        if flight.rows.len() == 1 {
            let Some(flight) = self.flights.remove(&number) else { return };
            let id = flight.rows[0];
            if app == DEAD {
                // The dead exchange is the last resort: it is tried again later, and the operator is told.
                let number = self.form(app, vec![id]);
                self.failed(number, text, now);
                return;
            }
            self.rows[id].attempts += 1;
            self.kill(id, Reason::Refused, &format!("refused by the broker: {text}"));
            return;
        }
        // One of its members is the culprit: try the halves.
        let tail = flight.rows.split_off(flight.rows.len() / 2);
        flight.bytes /= 2;
        let format = flight.format;
        let tail = self.form(app, tail);
        if let Some(flight) = self.flights.get_mut(&tail) {
            flight.format = format;
        }
        self.suspect(tail, true);
        self.suspect(number, true);
    }

    /// Into the line of those that are sent alone, on the probe channel.
    pub(super) fn suspect(&mut self, number: u64, first: bool) {
        let Some(flight) = self.flights.get_mut(&number) else { return };
        flight.phase = Phase::Suspect;
        self.apps[flight.app].suspects += 1;
        if first {
            self.suspects.push_front(number);
        } else {
            let at = self.suspects.partition_point(|other| *other < number);
            self.suspects.insert(at, number);
        }
    }
}
