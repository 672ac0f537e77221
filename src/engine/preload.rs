//! The near future in memory, the far one in the store alone.
//!
//! The invariant, tested against a naive model: every item of the time index below [`Cursor::until`] is in memory.
//! (Items at or above it may be in memory as well; a load that meets them again knows them by their sequence.)
//!
//! One load of the time index runs at a time. Until it returns, every new item stays in memory, nothing is given
//! back, and the sequences of items that were finished meanwhile are remembered: what the load brings is then
//! exactly what memory lacks, whatever raced with it.

use super::event::{Indexed, Load, Loaded, Op, Opened, Place, Stored};
use super::plant::{planted, Plant};
use super::slab::NIL;
use super::table::{Extra, Row, State};
use super::types::{ClosedBy, Identity, Key, Now};
use super::{Engine, DEAD};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// How far ahead items are kept in memory, ms. Less where memory is short.
pub(super) const HORIZON_MS: u64 = 20_000;

/// Items due within this time are loaded even where their payloads find no room, ms.
pub(super) const URGENT_MS: u64 = 2_000;

/// Rows of one load: some milliseconds of reading.
const LOAD_ROWS: usize = 8_192;

/// A load that would bring fewer rows than this waits for more room.
const LOAD_ROWS_MIN: usize = 256;

/// The most that a load may bring: its place in memory, taken when it is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    pub(super) rows: usize,
    /// Of payloads.
    pub(super) bytes: u64,
}

#[derive(Debug)]
pub(super) struct Cursor {
    /// See the module's page.
    pub(super) until: Key,
    /// No item that is in the store alone lies below.
    pub(super) far_min: Key,
    /// A load of the time index is under way, up to this due.
    pub(super) loading: Option<(u64, Share)>,
    /// What all loads under way may bring, of the time index, of lanes and of closed windows.
    pub(super) coming: Share,
    /// Memory was full before all bare items of a former life were in it: from here on they get their index rows instead;
    /// and whether a load for that is under way.
    indexing: Option<Key>,
    index_load: bool,
    /// Loads of rows begun and ended so far. They end in the order in which they began.
    begun: u64,
    ended: u64,
    /// Items that were finished (`None`) or moved to a lane while a load was under way, which may bring them back
    /// from the past; with the last load begun before.
    moved: HashMap<u64, (Option<u32>, u64)>,
    /// The same in order, so that each is forgotten with the last load that it matters to.
    moves: VecDeque<(u64, u64)>,
}

impl Cursor {
    pub(super) fn new(opened: &Opened, now: Now) -> Self {
        let empty = opened.marks.waiting == 0;
        let start = if empty { Key { due: now.wall, seq: 0 } } else { opened.marks.low };
        let far_min = if empty { Key { due: u64::MAX, seq: u64::MAX } } else { opened.marks.low };
        Cursor {
            until: start,
            far_min,
            loading: None,
            coming: Share::default(),
            indexing: None,
            index_load: false,
            begun: 0,
            ended: 0,
            moved: HashMap::new(),
            moves: VecDeque::new(),
        }
    }

    /// A load takes its place in memory.
    pub(super) fn expect(&mut self, share: Share) {
        self.coming.rows += share.rows;
        self.coming.bytes += share.bytes;
    }

    /// What it brought counts itself.
    pub(super) fn arrived(&mut self, share: Share) {
        self.coming.rows -= share.rows;
        self.coming.bytes -= share.bytes;
    }

    pub(super) fn begin_other(&mut self) {
        self.begun += 1;
    }

    pub(super) fn end(&mut self) {
        self.ended += 1;
        while let Some((load, seq)) = self.moves.front().copied() {
            if load > self.ended {
                break;
            }
            self.moves.pop_front();
            if self.moved.get(&seq).is_some_and(|(_, last)| *last == load) {
                self.moved.remove(&seq);
            }
        }
    }

    /// An item is gone for good, or lies in the lane of this application now.
    pub(super) fn note_move(&mut self, seq: u64, lane: Option<u32>) {
        if self.begun > self.ended {
            self.moved.insert(seq, (lane, self.begun));
            self.moves.push_back((self.begun, seq));
        }
    }

    /// Whether a row read from the time index (`None`) or this lane is still there.
    pub(super) fn is_current(&self, seq: u64, read_from: Option<u32>) -> bool {
        if planted(Plant::LoadFromThePast) {
            return true;
        }
        match self.moved.get(&seq) {
            None => true,
            Some((now_in, _)) => now_in.is_some() && *now_in == read_from,
        }
    }
}

impl Engine {
    /// Items of the time index that are in the store alone.
    pub(super) fn far(&self) -> u64 {
        self.stored.saturating_sub(self.stored_in_memory)
    }

    /// Moves the cursor over what is known to be empty.
    pub(super) fn advance_cursor(&mut self, now: Now) {
        if self.cursor.loading.is_some() {
            return;
        }
        if self.far() == 0 {
            self.cursor.far_min = Key { due: u64::MAX, seq: u64::MAX };
        }
        let horizon = Key { due: now.wall + HORIZON_MS, seq: 0 };
        self.cursor.until = self.cursor.until.max(self.cursor.far_min.min(horizon));
    }

    /// Asks for the next rows when the horizon comes near and there is room.
    pub(super) fn preload(&mut self, now: Now) {
        self.load_lanes();
        self.collect_members(now);
        let wanted = if self.restored || self.may_open_intake() {
            now.wall + HORIZON_MS
        } else {
            // After a start; far away only where the clock was set back meanwhile.
            self.bare_until.max(now.wall + HORIZON_MS)
        };
        if self.cursor.loading.is_some() || self.cursor.index_load || !self.is_preload_due(now.wall) {
            return;
        }
        let Some(room) = self.room_for_overdue(now) else { return self.index_bare() };
        let from = self.cursor.until.max(self.cursor.far_min);
        let until = wanted.max(from.due.saturating_add(1));
        let share = Share { rows: room.min(LOAD_ROWS), bytes: self.room_for_contents() };
        self.cursor.loading = Some((until, share));
        self.cursor.expect(share);
        self.cursor.begin_other();
        self.fx.loads.push(Load::Time { from, until, max_rows: share.rows, max_bytes: share.bytes });
    }

    /// Items without index rows that find no room in memory get some: only then can an identity be looked for.
    fn index_bare(&mut self) {
        if self.restored || self.may_open_intake() {
            return;
        }
        let from = self.cursor.indexing.unwrap_or_else(|| self.first_lacking());
        self.cursor.index_load = true;
        self.cursor.begin_other();
        self.fx.loads.push(Load::Time { from, until: self.bare_until, max_rows: LOAD_ROWS, max_bytes: 0 });
    }

    fn bare_loaded(&mut self, rows: Vec<Stored>, next: Option<Key>) {
        self.cursor.index_load = false;
        self.cursor.indexing = next;
        for stored in rows {
            let seq = stored.key.seq;
            if stored.dead.is_some() || self.by_seq.contains_key(&seq) || !self.cursor.is_current(seq, None) {
                continue;
            }
            let identity = Some(stored.identity());
            let customer = stored.customer.map(|customer| (stored.application, customer));
            self.ops.push(Op::Index { key: stored.key, indexed: Indexed { identity, customer } });
        }
        self.restored |= next.is_none();
    }

    fn is_preload_due(&self, wall: u64) -> bool {
        let ahead = self.cursor.until.max(self.cursor.far_min).due.saturating_sub(wall);
        let room = self.has_spare_room();
        if !self.restored && !self.may_open_intake() {
            return true;
        }
        self.far() > 0 && ahead < HORIZON_MS / 2 && (room || ahead <= URGENT_MS)
    }

    /// Whether there is room for what is not urgent: for its payloads, and beside closed windows.
    fn has_spare_room(&self) -> bool {
        self.content_bytes < self.settings.budget.contents / 8 * 7 && self.collecting.is_empty()
    }

    /// When the next look at the far future is due, wall clock.
    pub(super) fn preload_deadline(&self) -> Option<u64> {
        if self.far() == 0 || self.cursor.loading.is_some() || self.cursor.index_load {
            return None;
        }
        if self.room().is_none() {
            // Either there is something to swap, or there is nothing to wait for but an event.
            let urgent = self.first_lacking().due.saturating_add(1).saturating_sub(URGENT_MS);
            return self.has_later_rows().then_some(urgent);
        }
        let reach = self.cursor.until.max(self.cursor.far_min).due.saturating_add(1);
        let room = self.has_spare_room();
        Some(reach.saturating_sub(if room { HORIZON_MS / 2 } else { URGENT_MS }))
    }

    /// Whether the first requests may be taken: everything that has no index rows is in memory.
    pub(super) fn may_open_intake(&self) -> bool {
        self.far() == 0
            || self.cursor.until.due >= self.bare_until
            || self.cursor.far_min.due >= self.bare_until
    }

    /// How many rows find room in memory, beside those that are on their way from the store.
    pub(super) fn room_for_rows(&self) -> usize {
        self.settings.budget.rows.saturating_sub(self.rows.len() + self.cursor.coming.rows)
    }

    /// Bytes of payloads that find room in memory, likewise.
    pub(super) fn room_for_contents(&self) -> u64 {
        self.settings.budget.contents.saturating_sub(self.content_bytes + self.cursor.coming.bytes)
    }

    /// The same; `None` = too few to be worth a load.
    fn room(&self) -> Option<usize> {
        let room = self.room_for_rows();
        (room >= LOAD_ROWS_MIN.min(self.settings.budget.rows / 4)).then_some(room)
    }

    /// The same, when it matters most: where what is due soonest is in the store alone, what is due later leaves
    /// memory for it; and where all that is in memory waits for what is not, a few rows more are taken.
    fn room_for_overdue(&mut self, now: Now) -> Option<usize> {
        let urgent = self.first_lacking().due <= now.wall.saturating_add(URGENT_MS) && self.far() > 0;
        if self.room().is_none() && urgent && self.has_later_rows() {
            self.give_back_furthest(LOAD_ROWS_MIN.min(self.settings.budget.rows / 4) + 1, 0);
        }
        let stuck = urgent && !self.held.is_empty() && self.is_resting();
        self.room().or(stuck.then_some(LOAD_ROWS_MIN))
    }

    /// Nothing is on its way, to the broker or from the store, that could make room.
    pub(super) fn is_resting(&self) -> bool {
        self.slots == 0 && self.run.is_empty() && self.parking.is_empty() && self.cursor.coming.rows == 0
    }

    /// Something that is due is in the store alone.
    pub(super) fn is_store_overdue(&self, now: Now) -> bool {
        self.far() > 0 && self.first_lacking().due <= now.wall
    }

    /// No item that memory lacks lies below.
    pub(super) fn first_lacking(&self) -> Key {
        self.cursor.until.max(self.cursor.far_min)
    }

    /// Whether memory holds rows that are due later than the first that it does not hold.
    fn has_later_rows(&self) -> bool {
        self.schedule.last().is_some_and(|due| due > self.first_lacking().due)
    }

    /// No item of the time index lies below.
    pub(super) fn low_mark(&self) -> Key {
        let near = self.seconds.keys().next().map(|second| Key { due: second * 1_000, seq: 0 });
        let far = (self.far() > 0).then_some(self.cursor.far_min);
        [near, far].into_iter().flatten().min().unwrap_or(Key { due: u64::MAX, seq: u64::MAX })
    }

    /// When memory is full, the items due last go back to being in the store alone.
    pub(super) fn make_room(&mut self, wanted: Key) {
        if self.rows.len() < self.settings.budget.rows || self.cursor.loading.is_some() {
            return;
        }
        self.give_back_furthest(self.settings.budget.rows / 16 + 1, 0);
        if self.rows.len() >= self.settings.budget.rows {
            // All that is in memory is due: the new one waits in the store behind it.
            self.cursor.until = self.cursor.until.min(wanted);
        }
    }

    /// Items due last, all after this moment, go back to being in the store alone. Not while the time index is being loaded.
    pub(super) fn give_back_furthest(&mut self, count: usize, after: u64) {
        let rows = &self.rows;
        for id in self.schedule.take_furthest(count, after, |id| rows[id].key) {
            self.give_back(id);
        }
    }

    /// The row leaves memory; it has been taken out of the schedule. Its index row goes with the next commit, so
    /// that whoever asks the store for this customer finds it.
    fn give_back(&mut self, id: u32) {
        let row = &self.rows[id];
        let (key, group) = (row.key, row.group);
        // One that was to leave at once, before the clock went back, has not been written yet.
        self.store_row(id);
        if self.rows[id].app != DEAD && !planted(Plant::IdentityNotIndexed) {
            self.index(id);
        }
        if let State::Windowed { pos, .. } = self.rows[id].state {
            self.forget_member(group, pos);
            self.far_member(group);
        }
        self.leaves_memory(id);
        self.remove_row(id);
        self.cursor.until = self.cursor.until.min(key);
        self.cursor.far_min = self.cursor.far_min.min(key);
    }

    /// Writes the index rows of an item of the time index that memory will not know of.
    fn index(&mut self, id: u32) {
        let row = &self.rows[id];
        let (application, customer) = self.address(row);
        let customer = customer.map(|customer| (application, customer));
        let indexed = Indexed { identity: Some(row.identity), customer };
        let (key, identity) = (row.key, row.identity);
        self.touch(identity);
        self.begin_index();
        self.ops.push(Op::Index { key, indexed });
    }

    pub(super) fn loaded(&mut self, loaded: Loaded, now: Now) {
        match loaded {
            Loaded::Time { rows, next } if self.cursor.index_load => self.bare_loaded(rows, next),
            Loaded::Time { rows, next } => {
                for stored in rows {
                    self.restore(stored, None, now);
                }
                let (until, share) = self.cursor.loading.take().unwrap_or_default();
                self.cursor.arrived(share);
                self.cursor.until = next.unwrap_or(Key { due: until, seq: 0 });
                if planted(Plant::CursorOffByOne) {
                    self.cursor.until.seq += 1;
                }
                self.cursor.far_min = self.cursor.far_min.max(self.cursor.until);
            }
            Loaded::Lane { lane, rows, next } => self.lane_loaded(&lane, rows, next, now),
            Loaded::Group { application, customer, rows, next } => {
                self.group_loaded(&application, &customer, rows, next, now);
            }
            Loaded::Contents(contents) => {
                for (seq, content) in contents {
                    self.content_loaded(seq, content);
                }
                return;
            }
            Loaded::Found(found) => self.found(found),
            Loaded::Walked { number, rows, next } => self.walked(number, rows, next, now),
        }
        self.cursor.end();
    }

    fn group_loaded(
        &mut self,
        application: &str,
        customer: &str,
        rows: Vec<Stored>,
        next: Option<Key>,
        now: Now,
    ) {
        let app = self.app(application);
        let group = self.group(app, customer);
        let Some(closing) = self.groups[group].closing else {
            self.release_group(group);
            return;
        };
        for stored in rows {
            if !stored.own_time && stored.key.seq <= closing.upto {
                self.restore(stored, None, now);
            }
        }
        match next {
            Some(from) => self.load_group(group, from),
            None if closing.again => {
                if let Some(closing) = self.groups[group].closing.as_mut() {
                    closing.again = false;
                    closing.late = true;
                }
                self.release = true;
                let from = self.low_mark();
                self.load_group(group, from);
            }
            None => {
                self.end_closing(group);
                self.release = true;
                self.release_group(group);
            }
        }
    }

    /// Takes a stored item into memory, unless it is there or was finished meanwhile.
    pub(super) fn restore(&mut self, stored: Stored, lane: Option<u32>, now: Now) {
        let seq = stored.key.seq;
        if self.by_seq.contains_key(&seq) || !self.cursor.is_current(seq, lane) {
            return;
        }
        let in_lane = lane.is_some();
        let (app, group) = match (&stored.dead, &stored.customer) {
            (Some(_), _) => (DEAD, NIL),
            (None, customer) => {
                let app = self.app(&stored.application);
                let group = customer.as_ref().map_or(NIL, |customer| self.group(app, customer));
                (app, group)
            }
        };
        let windowed = group != NIL && !stored.own_time;
        // Perhaps it has none; removing a row that is not there costs nothing worth knowing.
        let indexed = !in_lane && group != NIL;
        let identity = match stored.given {
            Some(identity) if app != DEAD => identity,
            Some(_) | None => Identity::assigned(seq),
        };
        let row = Row {
            key: stored.key,
            due: stored.key.due,
            received: stored.received,
            expiry: stored.expiry.unwrap_or(u64::MAX),
            identity,
            app,
            group,
            weight: stored.weight,
            attempts: stored.attempts,
            token: 0,
            state: State::Ready,
            closed_by: ClosedBy::Time,
            own_time: stored.own_time,
            stored: true,
            in_lane,
            indexed,
            named: app != DEAD,
            unsure: false,
            content: stored.content,
            tag: None,
            extra: (stored.dead.is_some() || stored.last_error.is_some()).then(|| {
                let meant_for = stored.dead.is_some();
                Box::new(Extra {
                    last_error: stored.last_error,
                    dead: stored.dead,
                    application: meant_for.then_some(stored.application),
                    customer: if meant_for { stored.customer } else { None },
                    was: None,
                })
            }),
        };
        let key = row.key;
        let id = self.insert_row(row);
        if in_lane {
            self.push_ready(id);
            return;
        }
        if windowed {
            match self.groups[group].closing {
                Some(c) if seq <= c.upto => self.leave_window(id, c.due, c.cause),
                _ if key.due <= now.wall => self.overdue_member(id),
                _ => self.rejoin_window(id, now),
            }
        } else if key.due <= now.wall {
            self.make_ready(id);
        } else {
            self.rows[id].state = State::Scheduled;
            self.schedule.insert(id, key);
        }
    }

    /// A member of a window that ended while nobody was there to close it.
    fn overdue_member(&mut self, id: u32) {
        let group = self.rows[id].group;
        if let Some(window) = self.groups[group].window.as_mut() {
            if window.far > 0 {
                window.far -= 1;
                let weight = self.rows[id].weight;
                self.uncount_member(group, weight);
            }
        }
        self.make_ready(id);
    }

    /// What the store must know to find an item again.
    pub(super) fn place_of(&self, row: &Row) -> Place {
        if row.in_lane {
            Place::Lane(Arc::clone(&self.apps[row.app].name))
        } else {
            Place::Time
        }
    }

    /// The index rows that an item has, or may have.
    pub(super) fn index_of(&self, row: &Row) -> Indexed {
        let customer = row.indexed.then(|| self.address(row));
        Indexed {
            identity: row.named.then_some(row.identity),
            customer: customer.and_then(|(application, customer)| Some((application, customer?))),
        }
    }

    /// Index rows that are to be written must not fall to a removal decided before: an id may be used again while the row
    /// of the one before it waits to be removed.
    pub(super) fn begin_index(&mut self) {
        self.ops.append(&mut self.deletes);
    }
}
