//! Lanes: what is due for an application that cannot be delivered to at present waits in the store, in a lane of
//! its own, so that it neither fills memory nor lies at the front of the time index.
//!
//! Items enter in bounded chunks, come back in order and in chunks, and keep attempts and last error there. While
//! anything is left in the lane, what becomes due goes behind it. With nothing stored there are no lanes: the items
//! wait in memory, bounded by the prefetch.

use super::event::{Indexed, LaneRow, Load, Op, Place, Stored};
use super::plant::{planted, Plant};
use super::preload::Share;
use super::table::{Lane, Ready, Road, State};
use super::types::{Delivery, Key, Now};
use super::{Engine, DEAD};
use std::collections::VecDeque;
use std::sync::Arc;

/// Items parked in one turn.
const PARK_ROWS: usize = 1_000;

/// Items fetched from a lane at a time.
const LANE_ROWS: usize = 1_000;

/// The same where memory is full: so many must fit for each application that has nothing else to send, or nothing
/// would ever move.
const LANE_FEW: usize = 64;

/// Lanes fetched from at a time. What they bring where memory is full is all that goes beyond its bound.
const LANE_LOADS: usize = 4;

/// A lane is fetched from when its application has fewer items than this on the way.
const LANE_LOW: u64 = 500;

const LAST: Key = Key { due: u64::MAX, seq: u64::MAX };

impl Lane {
    fn new() -> Self {
        Lane { count: 0, low: LAST, next: LAST, in_memory: 0, loading: None, behind: None, dirty: false }
    }

    /// An item lies in the lane's store, and not in memory.
    fn note(&mut self, key: Key) {
        self.low = self.low.min(key);
        self.next = self.next.min(key);
        if self.loading.is_some() {
            self.behind = Some(self.behind.map_or(key, |b| b.min(key)));
        }
    }
}

impl Engine {
    pub(super) fn restore_lanes(&mut self, rows: &[LaneRow]) {
        for row in rows {
            let app = self.app(&row.lane);
            let lane = Lane { count: row.count, low: row.low, next: row.low, ..Lane::new() };
            self.apps[app].lane = Some(lane);
            self.hungry.insert(app);
        }
    }

    /// Whether what becomes due for this application now must wait in its lane.
    pub(super) fn waits_in_lane(&self, app: u32) -> bool {
        // Dead letters come from where they were found, not from where there is room for them.
        let crowded = app == DEAD
            && !planted(Plant::DeadCrowdIn)
            && self.room_for_rows() == 0
            && self.apps[app].ready_rows >= LANE_FEW as u64;
        let app = &self.apps[app];
        self.is_durable()
            && (app.paused
                || crowded
                || matches!(app.road, Road::Parked { .. } | Road::Probing { .. })
                || app.lane.as_ref().is_some_and(|lane| lane.count > lane.in_memory))
    }

    fn lane_mut(&mut self, app: u32) -> &mut Lane {
        let dirty = self.apps[app].lane.as_ref().is_some_and(|lane| lane.dirty);
        if !dirty {
            self.dirty_lanes.push(app);
        }
        let lane = self.apps[app].lane.get_or_insert_with(Lane::new);
        lane.dirty = true;
        lane
    }

    /// A new item goes straight into the lane.
    pub(super) fn put_in_lane(&mut self, app: u32, item: Stored, delivery: Option<Delivery>) {
        let token = self.next_token();
        if let Some(delivery) = delivery {
            self.awaiting.push_back((token, delivery));
        }
        let lane = self.lane_mut(app);
        lane.count += 1;
        lane.note(item.key);
        self.hungry.insert(app);
        let item = Box::new(item);
        let place = Place::Lane(Arc::clone(&self.apps[app].name));
        let identity = (app != DEAD).then(|| item.identity());
        item.given.into_iter().for_each(|identity| self.touch(identity));
        self.gone_far(app);
        self.begin_index();
        self.ops.push(Op::Put { place, item, indexed: Indexed { identity, customer: None } });
    }

    /// An item leaves memory for its application's lane. It is on no list. What lies there already is not written
    /// again: whoever changed it has written the change.
    pub(super) fn park_row(&mut self, id: u32) {
        if !self.rows[id].stored {
            if self.rows[id].tag.is_none() {
                self.give_back_to_broker(id);
            } else {
                let item = self.stored_from(&self.rows[id]);
                if let Some(mut row) = self.remove_row(id) {
                    let delivery = self.take_delivery(&mut row);
                    self.put_in_lane(row.app, item, delivery);
                }
            }
            return;
        }
        if !self.rows[id].in_lane {
            self.park_in_place(id);
        }
        self.back_to_lane(id);
    }

    /// An item of the lane is in the store alone again. It is on no list.
    pub(super) fn back_to_lane(&mut self, id: u32) {
        self.leaves_memory(id);
        let Some(row) = self.remove_row(id) else { return };
        self.touch(row.identity);
        self.cursor.note_move(row.key.seq, Some(row.app));
        let lane = self.lane_mut(row.app);
        lane.in_memory -= 1;
        lane.note(row.key);
        self.hungry.insert(row.app);
    }

    /// The stored row moves to the lane, or is written there anew with what is known of it now; the item stays in
    /// memory.
    pub(super) fn park_in_place(&mut self, id: u32) {
        let row = &self.rows[id];
        let app = row.app;
        let lane = Arc::clone(&self.apps[app].name);
        let (from, key, mut indexed) = (self.place_of(row), row.key, self.index_of(row));
        if app != DEAD {
            // It goes on being found by its identity.
            indexed.identity = None;
        }
        let extra = row.extra.as_deref().cloned().unwrap_or_default();
        let attempts = row.attempts;
        let was_in_lane = row.in_lane;
        let identity = (app != DEAD && !was_in_lane).then_some(row.identity);
        self.begin_index();
        self.ops.push(Op::Park {
            from,
            key,
            indexed,
            identity,
            lane,
            attempts,
            last_error: extra.last_error,
            dead: extra.dead,
        });
        if was_in_lane {
            return;
        }
        self.stored -= 1;
        self.stored_in_memory -= 1;
        self.leave_second(key.due);
        let token = self.next_token();
        let row = &mut self.rows[id];
        row.in_lane = true;
        row.indexed = false;
        row.named = true;
        row.token = token;
        self.cursor.note_move(key.seq, Some(app));
        let lane = self.lane_mut(app);
        lane.count += 1;
        lane.in_memory += 1;
        lane.low = lane.low.min(key);
    }

    /// An item of a lane goes on to the dead exchange's lane.
    pub(super) fn move_to_dead_lane(&mut self, id: u32, from_app: u32) {
        let row = &self.rows[id];
        let key = row.key;
        let from = Place::Lane(Arc::clone(&self.apps[from_app].name));
        let indexed = Indexed { customer: None, ..self.index_of(row) };
        let extra = row.extra.as_deref().cloned().unwrap_or_default();
        self.ops.push(Op::Park {
            from,
            key,
            indexed,
            identity: None,
            lane: Arc::clone(&self.apps[DEAD].name),
            attempts: row.attempts,
            last_error: extra.last_error,
            dead: extra.dead,
        });
        self.leave_lane(from_app);
        let token = self.next_token();
        self.rows[id].token = token;
        self.cursor.note_move(key.seq, Some(DEAD));
        let lane = self.lane_mut(DEAD);
        lane.count += 1;
        lane.in_memory += 1;
        lane.low = lane.low.min(key);
    }

    /// An item of the lane has come into memory out of turn.
    pub(super) fn came_from_lane(&mut self, app: u32) {
        self.lane_mut(app).in_memory += 1;
    }

    /// An item of the lane that was in memory is finished.
    pub(super) fn leave_lane(&mut self, app: u32) {
        let lane = self.lane_mut(app);
        lane.count -= 1;
        lane.in_memory -= 1;
        if lane.in_memory == 0 && lane.loading.is_none() {
            lane.low = lane.next;
        }
        self.hungry.insert(app);
    }

    /// The application is parked: what is ready goes into the lane, a chunk a turn.
    pub(super) fn start_parking(&mut self, app: u32) {
        if self.is_durable() && !self.apps[app].parking && !self.apps[app].ready.is_empty() {
            self.apps[app].parking = true;
            self.parking.push_back(app);
        }
    }

    pub(super) fn park_chunk(&mut self) {
        let Some(app) = self.parking.pop_front() else { return };
        let mut left = PARK_ROWS;
        while left > 0 {
            let Some(entry) = self.apps[app].ready.pop_front() else { break };
            let ids: Vec<u32> = match entry {
                Ready::Single(id) => vec![id],
                Ready::Group(group) => {
                    let group_row = &mut self.groups[group];
                    let take = group_row.ready.len().min(left);
                    let ids = group_row.ready.drain(..take).collect();
                    if group_row.ready.is_empty() {
                        group_row.queued = false;
                    } else {
                        self.apps[app].ready.push_front(entry);
                    }
                    ids
                }
            };
            left = left.saturating_sub(ids.len());
            for id in &ids {
                self.apps[app].ready_rows -= 1;
                self.ready_rows -= 1;
                self.park_row(*id);
            }
            if let Ready::Group(group) = entry {
                self.release_group(group);
            }
        }
        if self.apps[app].ready.is_empty() {
            self.apps[app].ready = VecDeque::new();
            self.apps[app].parking = false;
            self.hungry.insert(app);
            // It may have become deliverable meanwhile.
            self.enqueue(app);
        } else {
            self.parking.push_back(app);
        }
    }

    /// Fetches from the lanes of applications that can be delivered to and have little else on the way, in turn.
    /// One that has to wait is not looked at again before something has changed for it.
    pub(super) fn load_lanes(&mut self) {
        let most = self.settings.budget.rows + LANE_FEW * LANE_LOADS;
        while self.egress.ready
            && self.lane_loads < LANE_LOADS
            && self.rows.len() + self.cursor.coming.rows + LANE_FEW <= most
        {
            let next = self.hungry.range(self.hungry_from..).next().or_else(|| self.hungry.first());
            let Some(app) = next.copied() else { return };
            self.hungry.remove(&app);
            self.hungry_from = app + 1;
            self.load_lane(app);
        }
    }

    fn load_lane(&mut self, app: u32) {
        let (ready, early) = (self.apps[app].ready_rows, self.apps[app].early);
        let parking = self.apps[app].parking || self.apps[app].paused;
        let closed = matches!(self.apps[app].road, Road::Parked { .. } | Road::Probing { .. });
        let room = self.room_for_rows();
        let max_rows = if room > LANE_FEW { room.min(LANE_ROWS) } else { LANE_FEW };
        let max_bytes = self.room_for_contents() / LANE_LOADS as u64;
        let Some(lane) = self.apps[app].lane.as_mut() else { return };
        let nothing = lane.count <= lane.in_memory;
        let busy = ready >= LANE_LOW || (room <= LANE_FEW && ready > 0) || early > 0;
        if closed || nothing || busy || parking || lane.loading.is_some() {
            return;
        }
        let share = Share { rows: max_rows, bytes: max_bytes };
        lane.loading = Some(share);
        self.cursor.expect(share);
        let from = lane.next;
        self.cursor.begin_other();
        self.lane_loads += 1;
        let lane = Arc::clone(&self.apps[app].name);
        self.fx.loads.push(Load::Lane { lane, from, max_rows, max_bytes });
    }

    pub(super) fn lane_loaded(&mut self, name: &str, rows: Vec<Stored>, next: Option<Key>, now: Now) {
        let app = self.app(name);
        let closed = self.apps[app].paused
            || matches!(self.apps[app].road, Road::Parked { .. } | Road::Probing { .. });
        let first = rows.first().map(|row| row.key);
        if !closed {
            for stored in rows {
                let (seq, before) = (stored.key.seq, self.by_seq.len());
                self.restore(stored, Some(app), now);
                if self.by_seq.len() > before {
                    debug_assert!(self.by_seq.contains_key(&seq));
                    self.lane_mut(app).in_memory += 1;
                }
            }
        }
        let share = self.lane_mut(app).loading.take().unwrap_or_default();
        self.cursor.arrived(share);
        self.lane_loads -= 1;
        let lane = self.lane_mut(app);
        // Parked again meanwhile: nothing was taken, and the next load begins where this one did.
        let next = if closed { first.or(next) } else { next };
        lane.next = next.unwrap_or(LAST);
        if let Some(behind) = lane.behind.take().filter(|_| !planted(Plant::LaneForgetsBehind)) {
            lane.next = lane.next.min(behind);
        }
        if lane.in_memory == 0 {
            lane.low = lane.next;
        }
        self.hungry.insert(app);
    }

    /// Items of failed flights that go back to the lane, all of one application.
    pub(super) fn dissolve(&mut self, number: u64) {
        let Some(flight) = self.flights.remove(&number) else { return };
        for id in flight.rows {
            self.rows[id].state = State::Ready;
            if self.rows[id].in_lane {
                // Its attempts have changed.
                self.park_in_place(id);
            }
            self.park_row(id);
        }
    }

    pub(super) fn flush_lanes(&mut self) {
        for app in std::mem::take(&mut self.dirty_lanes) {
            let lane_name = Arc::clone(&self.apps[app].name);
            let Some(lane) = self.apps[app].lane.as_mut() else { continue };
            lane.dirty = false;
            let row = LaneRow { lane: lane_name, count: lane.count, low: lane.low };
            if lane.count == 0 && lane.loading.is_none() {
                self.apps[app].lane = None;
                self.hungry.remove(&app);
            }
            self.ops.push(Op::PutLane(row));
        }
    }
}
