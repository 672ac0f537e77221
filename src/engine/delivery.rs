//! The way out: from due items to batches, and to the publisher. What became of them is judged in `outcome`.
//!
//! An application with something to send stands in the run queue, and each turn of the queue sends one batch, so
//! that a large backlog of one delays nobody. Every batch takes a slot of the publisher; none is formed without a
//! free one.
//!
//! Guarantee: items are removed when their batch was confirmed and not returned, and at no other outcome. A batch
//! whose outcome is unknown is sent again with the same members, hence under the same batch id; receivers drop the
//! repeat by item id.

use super::event::Load;
use super::plant::{planted, Plant};
use super::slab::NIL;
use super::table::{Extra, Flight, Phase, Ready, Road, Row, State};
use super::types::{Batch, BatchItem, Content, Dead, End, Format, Identity, Now, Reason};
use super::{Engine, DEAD};
use std::sync::Arc;

/// How long a confirm proves that an application can be delivered to, ms. After a longer rest its next batch goes
/// alone first: a queue that was removed meanwhile then costs one returned batch, not a window of them.
const PROOF_MS: u64 = 5_000;

impl Engine {
    /// An item is due: it goes to its application's queue, or where that waits, to its lane.
    pub(super) fn make_ready(&mut self, id: u32) {
        self.rows[id].state = State::Ready;
        if self.waits_in_lane(self.rows[id].app) && !self.fetching {
            self.park_row(id);
        } else {
            self.push_ready(id);
        }
    }

    pub(super) fn push_ready(&mut self, id: u32) {
        let row = &mut self.rows[id];
        row.state = State::Ready;
        let (app, group, place) = (row.app, row.group, (row.due, row.key.seq));
        if group == NIL {
            self.apps[app].ready.push_back(Ready::Single(id));
        } else {
            let last = self.groups[group].ready.back().copied();
            let sorted = last.is_none_or(|last| (self.rows[last].due, self.rows[last].key.seq) <= place);
            let owner = &mut self.groups[group];
            owner.unsorted |= !sorted;
            owner.ready.push_back(id);
            if !owner.queued {
                owner.queued = true;
                self.apps[app].ready.push_back(Ready::Group(group));
            }
        }
        self.apps[app].ready_rows += 1;
        self.ready_rows += 1;
        self.enqueue(app);
    }

    /// Gives an item up: from now on it belongs to the dead exchange. It is on no list.
    pub(super) fn kill(&mut self, id: u32, reason: Reason, error: &str) {
        if self.rows[id].is_lost() {
            self.give_back_to_broker(id);
            return;
        }
        self.count_dead(reason);
        let dead = Arc::new(Dead { reason, error: error.into() });
        let ended = self.ended(id, End::Dead(Arc::clone(&dead)), self.last);
        let identity = self.rows[id].identity;
        let (application, customer) = self.address(&self.rows[id]);
        let row = &mut self.rows[id];
        let (app, group) = (row.app, row.group);
        let extra = row.extra.get_or_insert_with(Box::default);
        extra.dead = Some(dead);
        extra.application = Some(application);
        extra.customer = customer;
        row.app = DEAD;
        row.group = NIL;
        let in_lane = row.in_lane;
        let (seq, stored) = (row.key.seq, row.stored);
        self.apps[app].rows -= 1;
        self.apps[app].by_age.remove(&seq);
        self.apps[DEAD].rows += 1;
        if !stored {
            self.apps[app].unstored -= 1;
            self.apps[DEAD].unstored += 1;
        }
        self.count_out(app);
        self.count_in(DEAD);
        if group != NIL {
            self.groups[group].rows -= 1;
            self.release_group(group);
        }
        // The verdict is written down: a restart finds the item dead, not to be judged anew.
        if in_lane {
            self.move_to_dead_lane(id, app);
        } else if stored {
            self.park_in_place(id);
        }
        self.lose_identity(id);
        self.remember_dead(app, identity, seq, ended, self.last);
        self.make_ready(id);
    }

    /// The id of a dead item may be used again at once.
    fn lose_identity(&mut self, id: u32) {
        let row = &mut self.rows[id];
        row.named = false;
        if row.identity.is_given() {
            self.by_identity.remove(&row.identity);
            row.identity = Identity::assigned(row.key.seq);
        }
    }

    // ---- sending ----------------------------------------------------------------------------------------------

    /// Puts an application into the run queue if it has something to send and may.
    pub(super) fn enqueue(&mut self, app: u32) {
        if !self.apps[app].queued && self.has_work(app) && self.may_send(app) {
            self.apps[app].queued = true;
            self.run.push_back(app);
        }
    }

    pub(super) fn has_work(&self, app: u32) -> bool {
        let app = &self.apps[app];
        !app.resend.is_empty() || !app.ready.is_empty()
    }

    /// An application may not take all slots: another's batch finds one free within a confirm.
    pub(super) fn share(&self) -> usize {
        (self.settings.max_in_flight * 3 / 4).max(1)
    }

    pub(super) fn may_send(&self, app: u32) -> bool {
        let app = &self.apps[app];
        if app.suspects > 0 || app.parking || app.paused {
            return false;
        }
        match app.road {
            Road::Open { .. } => app.slots < app.allowance.min(self.share()),
            Road::Unproven | Road::Probing { .. } => app.slots == 0,
            Road::Parked { .. } => false,
        }
    }

    fn has_slot(&self) -> bool {
        self.egress.ready
            && !self.egress.blocked
            && self.slots < self.settings.max_in_flight
            && (self.slots == 0 || self.slot_bytes < self.settings.max_in_flight_bytes)
    }

    /// Hands out batches while there are slots and somebody to send to.
    pub(super) fn pump(&mut self, now: Now) {
        while self.has_slot() {
            if self.probe.is_none() {
                if let Some(number) = self.next_suspect() {
                    let app = self.flights.get(&number).map(|flight| flight.app);
                    if self.keep_sendable(number, now).is_some() {
                        self.probe = Some(number);
                        self.take_slot(number);
                        self.gather(number);
                    } else if let Some(app) = app {
                        self.apps[app].suspects -= 1;
                        self.replace_probe(app);
                    }
                    continue;
                }
            }
            let Some(app) = self.run.pop_front() else { break };
            self.apps[app].queued = false;
            self.rest(app, now);
            if !self.may_send(app) {
                continue;
            }
            if let Some(number) = self.next_flight(app, now) {
                self.take_slot(number);
                self.gather(number);
            }
            self.replace_probe(app);
        }
        self.request_contents();
    }

    /// The first in line whose application is not held back.
    fn next_suspect(&mut self) -> Option<u64> {
        let may = |number: &u64| self.flights.get(number).is_none_or(|flight| !self.apps[flight.app].paused);
        let place = self.suspects.iter().position(may)?;
        self.suspects.remove(place)
    }

    /// The probe may be gone without an answer (it expired, or was refused): then the next batch takes its place.
    /// Without this, an application would wait for ever behind a probe that does not exist.
    pub(super) fn replace_probe(&mut self, app: u32) {
        let row = &mut self.apps[app];
        let gone = row.resend.is_empty() && row.slots == 0 && row.suspects == 0;
        if gone && matches!(row.road, Road::Probing { .. }) {
            row.road = Road::Unproven;
            if row.lane.is_some() {
                self.hungry.insert(app);
            }
        }
        self.enqueue(app);
    }

    /// After a long rest an application has to prove itself again.
    fn rest(&mut self, app: u32, now: Now) {
        let app = &mut self.apps[app];
        if let Road::Open { proven } = app.road {
            if app.slots == 0 && now.mono > proven + PROOF_MS {
                app.road = Road::Unproven;
                app.allowance = 1;
            }
        }
    }

    /// The next batch of an application: one to be sent again, or a new one.
    fn next_flight(&mut self, app: u32, now: Now) -> Option<u64> {
        while let Some(number) = self.apps[app].resend.pop_front() {
            if let Some(number) = self.keep_sendable(number, now) {
                return Some(number);
            }
        }
        while let Some(entry) = self.apps[app].ready.pop_front() {
            let rows = match entry {
                Ready::Single(id) => vec![id],
                Ready::Group(group) => self.take_group(group, now),
            };
            if rows.is_empty() {
                continue;
            }
            self.apps[app].ready_rows -= rows.len() as u64;
            self.ready_rows -= rows.len() as u64;
            if self.apps[app].lane.is_some() {
                self.hungry.insert(app);
            }
            let rows = self.sendable(rows, now);
            if !rows.is_empty() {
                return Some(self.form(app, rows));
            }
        }
        None
    }

    pub(super) fn form(&mut self, app: u32, rows: Vec<u32>) -> u64 {
        let number = self.next_flight;
        self.next_flight += 1;
        let mut bytes = 0;
        for id in &rows {
            let row = &mut self.rows[*id];
            row.state = State::Flying(number);
            bytes += row.content.as_ref().map_or(u64::from(row.weight), |c| c.size());
        }
        let format = self.apps[app].settings.format;
        self.flights.insert(number, Flight { app, rows, bytes, format, publishes: 0, phase: Phase::Waiting });
        number
    }

    /// Where items that are due begin to be in the store alone, when memory lags behind.
    pub(super) fn bar(&self, now: Now) -> Option<(u64, u64)> {
        let far = self.cursor.far_min;
        (far.due <= now.wall && self.far() > 0).then_some((far.due, far.seq))
    }

    /// Customers that were held back stand in line again once more has been loaded.
    pub(super) fn release_held(&mut self, now: Now) {
        let release = std::mem::take(&mut self.release);
        let far = self.cursor.far_min;
        if self.held.is_empty() || (!release && far == self.held_bar && far.due <= now.wall) {
            return;
        }
        for group in std::mem::take(&mut self.held) {
            let Some(owner) = self.groups.get(group).filter(|owner| owner.held) else { continue };
            let app = owner.app;
            self.groups[group].held = false;
            self.apps[app].ready.push_back(Ready::Group(group));
            if self.waits_in_lane(app) {
                self.start_parking(app);
            }
            self.enqueue(app);
        }
    }

    /// As many due items of one customer as one batch takes, in order of (due, arrival). None while older ones of
    /// theirs have still to be loaded: then the customer is held back.
    fn take_group(&mut self, group: u32, now: Now) -> Vec<u32> {
        let bar = self.bar(now);
        let app = self.groups[group].app;
        let settings = &self.apps[app].settings;
        let (max_items, max_bytes) = match settings.format {
            Format::Passthrough => (1, u64::MAX),
            Format::Json | Format::Ndjson | Format::CloudEvents => {
                (settings.max_items as usize, settings.max_bytes)
            }
        };
        let rows = &self.rows;
        let owner = &mut self.groups[group];
        if std::mem::take(&mut owner.unsorted) && !planted(Plant::OrderForgotten) {
            owner.ready.make_contiguous().sort_unstable_by_key(|id| (rows[*id].due, rows[*id].key.seq));
        }
        let mut bytes = owner.overhead.batch;
        let mut take = 0;
        let incomplete = owner.closing.is_some_and(|closing| !closing.late);
        for id in owner.ready.iter().take(if incomplete { 0 } else { max_items }) {
            if bar.is_some_and(|bar| (rows[*id].due, rows[*id].key.seq) >= bar) {
                break;
            }
            bytes += u64::from(rows[*id].weight) + owner.overhead.item;
            if take > 0 && bytes > max_bytes {
                break;
            }
            take += 1;
        }
        if take == 0 {
            owner.held = true;
            self.held.push(group);
            self.held_bar = self.cursor.far_min;
            return Vec::new();
        }
        let taken: Vec<u32> = owner.ready.drain(..take).collect();
        if owner.ready.is_empty() {
            owner.queued = false;
            if owner.ready.capacity() > 64 {
                owner.ready = std::collections::VecDeque::new();
            }
        } else {
            self.apps[app].ready.push_back(Ready::Group(group));
        }
        taken
    }

    /// Of items about to be sent, those that may be: what has expired is dead, what the clock's going back made
    /// early waits again, and what the broker will deliver anew (see [`Engine::ingest_lost`]) is forgotten.
    fn sendable(&mut self, rows: Vec<u32>, now: Now) -> Vec<u32> {
        let is_sendable = |row: &Row| {
            if row.is_lost() {
                return false;
            }
            // A dead letter is bound to no time. One that was tried before has left in its time already.
            let early = row.own_time && row.key.due > now.wall && row.attempts == 0;
            row.app == DEAD || ((row.expiry > now.wall || planted(Plant::ExpiryIgnored)) && !early)
        };
        if rows.iter().all(|id| is_sendable(&self.rows[*id])) {
            return rows;
        }
        let (good, bad): (Vec<u32>, Vec<u32>) = rows.into_iter().partition(|id| is_sendable(&self.rows[*id]));
        for id in bad {
            let row = &mut self.rows[id];
            if row.is_lost() {
                self.give_back_to_broker(id);
            } else if row.expiry <= now.wall {
                let error =
                    format!("x-deliver-before {} was over when it could leave, at {}", row.expiry, now.wall);
                self.kill(id, Reason::Expired, &error);
            } else {
                row.state = State::Scheduled;
                if row.in_lane {
                    // Not to be given back when memory is short: it would be fetched again at once.
                    self.early.insert((row.key, id));
                    self.apps[row.app].early += 1;
                } else {
                    self.schedule.insert(id, row.key);
                }
            }
        }
        good
    }

    /// The same for a flight about to be sent again.
    fn keep_sendable(&mut self, number: u64, now: Now) -> Option<u64> {
        let rows = std::mem::take(&mut self.flights.get_mut(&number)?.rows);
        let rows = self.sendable(rows, now);
        if rows.is_empty() {
            self.flights.remove(&number);
            return None;
        }
        self.flights.get_mut(&number)?.rows = rows;
        Some(number)
    }

    pub(super) fn take_slot(&mut self, number: u64) {
        let Some(flight) = self.flights.get(&number) else { return };
        self.slots += 1;
        self.slot_bytes += flight.bytes;
        self.apps[flight.app].slots += 1;
        self.apps[flight.app].flying += flight.rows.len() as u64;
    }

    pub(super) fn free_slot(&mut self, number: u64) {
        let Some(flight) = self.flights.get(&number) else { return };
        self.slots -= 1;
        self.slot_bytes -= flight.bytes;
        self.apps[flight.app].slots -= 1;
        self.apps[flight.app].flying -= flight.rows.len() as u64;
    }

    /// Sends a flight, or waits for the payloads that it lacks. Behind one that waits, others of the same
    /// application wait too: their order counts.
    fn gather(&mut self, number: u64) {
        let probe = self.probe == Some(number);
        let Some(flight) = self.flights.get(&number) else { return };
        let app = flight.app;
        let lacking: Vec<u64> = flight
            .rows
            .iter()
            .map(|id| &self.rows[*id])
            .filter(|row| row.content.is_none())
            .map(|row| row.key.seq)
            .collect();
        if lacking.is_empty() && (probe || self.apps[app].outbox.is_empty()) {
            self.launch(number);
            return;
        }
        if let Some(flight) = self.flights.get_mut(&number) {
            flight.phase = Phase::Gathering { missing: lacking.len() as u32 };
        }
        self.lacking.extend(lacking);
        if !probe {
            self.apps[app].outbox.push_back(number);
        }
    }

    fn request_contents(&mut self) {
        if self.lacking.is_empty() {
            return;
        }
        let wanted = std::mem::take(&mut self.lacking)
            .into_iter()
            .filter_map(|seq| {
                let row = &self.rows[*self.by_seq.get(&seq)?];
                Some((seq, self.place_of(row), row.key))
            })
            .collect();
        self.fx.loads.push(Load::Contents(wanted));
    }

    pub(super) fn content_loaded(&mut self, seq: u64, content: Arc<Content>) {
        let Some(id) = self.by_seq.get(&seq).copied() else { return };
        let row = &mut self.rows[id];
        if row.content.is_some() {
            return;
        }
        self.content_bytes += content.size();
        row.content = Some(content);
        let State::Flying(number) = row.state else { return };
        let Some(flight) = self.flights.get_mut(&number) else { return };
        let Phase::Gathering { missing } = &mut flight.phase else { return };
        *missing = missing.saturating_sub(1);
        let app = flight.app;
        if self.probe == Some(number) {
            if flight.phase == (Phase::Gathering { missing: 0 }) {
                self.launch(number);
            }
            return;
        }
        self.launch_gathered(app);
    }

    fn launch_gathered(&mut self, app: u32) {
        while let Some(number) = self.apps[app].outbox.front().copied() {
            let ready = self
                .flights
                .get(&number)
                .is_none_or(|flight| flight.phase == Phase::Gathering { missing: 0 });
            if !ready {
                break;
            }
            self.apps[app].outbox.pop_front();
            self.launch(number);
        }
    }

    /// The connection went, or was blocked, while payloads were on their way: the flight gives its slot back and
    /// waits.
    fn unsent(&mut self, number: u64) {
        let Some(flight) = self.flights.get(&number) else { return };
        let app = flight.app;
        self.free_slot(number);
        if self.probe == Some(number) {
            self.probe = None;
            self.apps[app].suspects -= 1;
            self.suspect(number, true);
        } else {
            self.send_again(number);
        }
        self.replace_probe(app);
    }

    /// Time has passed while its payloads were on their way: takes out what has expired meanwhile, or has become
    /// early again. False: nothing is left of it.
    fn is_still_sendable(&mut self, number: u64) -> bool {
        let Some(app) = self.flights.get(&number).map(|flight| flight.app) else { return false };
        self.free_slot(number);
        if self.keep_sendable(number, self.last).is_some() {
            self.take_slot(number);
            return true;
        }
        if self.probe == Some(number) {
            self.probe = None;
            self.apps[app].suspects -= 1;
        }
        self.replace_probe(app);
        false
    }

    /// Hands a flight to the publisher.
    fn launch(&mut self, number: u64) {
        let probe = self.probe == Some(number);
        if !self.egress.ready || self.egress.blocked {
            self.unsent(number);
            return;
        }
        let Some(flight) = self.flights.get(&number) else { return };
        if matches!(flight.phase, Phase::Gathering { .. }) && !self.is_still_sendable(number) {
            return;
        }
        let committed = self.committed;
        let Some(flight) = self.flights.get_mut(&number) else { return };
        flight.publishes += 1;
        flight.phase = Phase::Out { probe };
        let app = &self.apps[flight.app];
        let mut items = Vec::with_capacity(flight.rows.len());
        let mut attempt = flight.publishes;
        for id in &flight.rows {
            let row = &mut self.rows[*id];
            attempt = attempt.max(row.attempts + 1);
            // A payload that can be read again does not stay here while its batch is under way.
            let gone = row.stored && row.token <= committed;
            let content = if gone { row.content.take() } else { row.content.clone() };
            let Some(content) = content else { continue };
            if gone {
                self.content_bytes -= content.size();
            }
            items.push(BatchItem {
                seq: row.key.seq,
                due: row.due,
                received: row.received,
                attempts: row.attempts,
                content,
            });
        }
        let first = &self.rows[flight.rows[0]];
        let extra = first.extra.as_deref();
        let dead = extra.and_then(|extra| extra.dead.clone());
        let (application, customer) = match (extra, &dead) {
            (Some(Extra { application: Some(application), customer, .. }), Some(_)) => {
                (Arc::clone(application), customer.clone())
            }
            _ => {
                let customer = (first.group != NIL).then(|| Arc::clone(&self.groups[first.group].customer));
                (Arc::clone(&app.name), customer)
            }
        };
        self.counters.published += 1;
        self.fx.publishes.push(Batch {
            number,
            application,
            customer,
            dead,
            format: flight.format,
            closed_by: first.closed_by,
            attempt,
            due: first.due,
            alone: probe,
            items,
        });
    }
}
