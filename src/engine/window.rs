//! Windows: per (application, customer), opened by the first item, closed by time, count, bytes, quiet or expiry.
//!
//! A window runs on the monotonic clock. Its members are stored under the end that was planned when it opened;
//! where it closes sooner, that moment becomes their due.

use super::event::{Load, Op, WindowRow};
use super::plant::{planted, Plant};
use super::preload::{Share, HORIZON_MS, URGENT_MS};
use super::table::{Closing, State, Window};
use super::types::{AppSettings, ClosedBy, Key, Now};
use super::Engine;
use std::sync::Arc;

/// A window closes so long before its most urgent expiry, ms: time to be sent.
pub(super) const EXPIRY_MARGIN_MS: u64 = 100;

/// By so much the two clocks may disagree on the end of a window, ms; more is a step. Their milliseconds do not turn at the
/// same moment, and one may be slewed.
const CLOCK_SLACK_MS: u64 = 5;

/// Rows of one customer fetched at a time when their window closes before they were loaded.
const GROUP_ROWS: usize = 10_000;

impl Engine {
    /// Counts a new item into its customer's window, opening one if need be; returns the window's planned end,
    /// which is the item's place in the store. An item that would take the window over its bytes closes it first.
    pub(super) fn join_window(&mut self, group: u32, weight: u64, expiry: u64, seq: u64, now: Now) -> u64 {
        let settings = Arc::clone(&self.apps[self.groups[group].app].settings);
        let overhead = self.groups[group].overhead;
        let full = self.groups[group].window.as_ref().is_some_and(|w| {
            w.count > 0 && overhead.batch + w.weight + weight + overhead.item > settings.max_bytes
        });
        if full {
            self.close_window(group, ClosedBy::Bytes, now);
        }
        if self.groups[group].window.is_none() {
            match self.inherited.filter(|(heir, _)| *heir == group) {
                Some((_, end)) => self.open_window(group, end.saturating_sub(now.wall), seq, now),
                None => self.open_window(group, window_length(&settings, now), seq, now),
            }
        }
        let Some(window) = self.groups[group].window.as_mut() else { return now.wall };
        window.count += 1;
        window.weight += weight + overhead.item;
        window.last = now.mono;
        window.expiry = window.expiry.min(expiry);
        let end = window.end;
        if window.long && !window.dirty {
            window.dirty = true;
            self.dirty_windows.push(group);
        }
        self.plan_check(group, now);
        end
    }

    /// When the customer's window ends, or the one that a new item would open, wall clock.
    pub(super) fn window_end(&self, app: u32, customer: &str, now: Now) -> u64 {
        let group = self.apps[app].groups.get(customer).map(|group| &self.groups[*group]);
        let open = group.and_then(|group| group.window.as_ref());
        open.map_or_else(|| now.wall + window_length(&self.apps[app].settings, now), |window| window.end)
    }

    /// The window that an item is a member of: group and wall-clock end.
    pub(super) fn window_of(&self, id: u32) -> Option<(u32, u64)> {
        let row = &self.rows[id];
        let State::Windowed { .. } = row.state else { return None };
        self.groups[row.group].window.as_ref().map(|window| (row.group, window.end))
    }

    fn open_window(&mut self, group: u32, length: u64, seq: u64, now: Now) {
        let window = Window {
            close: now.mono + length,
            end: now.wall + length,
            check: Key { due: now.mono + length, seq },
            last: now.mono,
            count: 0,
            weight: 0,
            expiry: u64::MAX,
            members: Vec::new(),
            far: 0,
            long: self.is_durable() && length > HORIZON_MS,
            dirty: false,
        };
        self.closing.insert(group, window.check);
        self.groups[group].window = Some(window);
        let app = self.groups[group].app;
        self.apps[app].windows += 1;
        self.open_windows += 1;
    }

    /// Moves the next look at a window forward, when it must come sooner than planned. Later ones (the quiet time
    /// starts anew with each arrival) are found out when the old moment comes, which costs nothing per item.
    pub(super) fn plan_check(&mut self, group: u32, now: Now) {
        let quiet = self.apps[self.groups[group].app].settings.quiet;
        let Some(window) = self.groups[group].window.as_mut() else { return };
        let at = window.deadline(quiet, now).0;
        if at < window.check.due {
            self.closing.remove(group, window.check);
            window.check.due = at;
            self.closing.insert(group, window.check);
        }
    }

    /// Closes the window that a new item has filled.
    pub(super) fn close_full_window(&mut self, group: u32, now: Now) {
        let settings = &self.apps[self.groups[group].app].settings;
        let (max_items, max_bytes) = (settings.max_items, settings.max_bytes);
        let batch = self.groups[group].overhead.batch;
        let Some(window) = &self.groups[group].window else { return };
        if window.count >= max_items {
            self.close_window(group, ClosedBy::Count, now);
        } else if batch + window.weight >= max_bytes {
            self.close_window(group, ClosedBy::Bytes, now);
        }
    }

    /// Looks at every window whose moment has come.
    pub(super) fn close_windows(&mut self, now: Now) {
        let mut groups = Vec::new();
        self.closing.take_due(now.mono, usize::MAX, &mut groups);
        let table = &self.groups;
        groups.sort_unstable_by_key(|id| table.get(*id).and_then(|g| g.window.as_ref()).map(|w| w.check));
        for group in groups {
            let Some(owner) = self.groups.get(group) else { continue };
            let quiet = self.apps[owner.app].settings.quiet;
            let Some(window) = self.groups[group].window.as_mut() else { continue };
            let (at, cause) = window.deadline(quiet, now);
            window.check.due = at;
            let check = window.check;
            self.closing.insert(group, check);
            if at <= now.mono {
                self.pin_group(group);
                self.close_window(group, cause, now);
                self.unpin_group(group);
            }
        }
    }

    /// Ends a window: its members are due. The caller has pinned the group.
    pub(super) fn close_window(&mut self, group: u32, cause: ClosedBy, now: Now) {
        let Some(mut window) = self.groups[group].window.take() else { return };
        self.closing.remove(group, window.check);
        let app = self.groups[group].app;
        self.apps[app].windows -= 1;
        self.open_windows -= 1;
        self.counters.windows_closed[cause as usize] += 1;
        // A window that ran to its end is due at its end.
        let to_its_end = cause == ClosedBy::Time && window.end <= now.wall + CLOCK_SLACK_MS;
        let due = if to_its_end { window.end } else { window.end.min(now.wall) };
        if window.long {
            self.delete_window(group);
        }
        if window.far > 0 {
            let upto = self.next_seq - 1;
            let far = window.far as usize;
            self.collect_far(
                group,
                Closing { upto, due, cause, again: false, late: false, far, begun: false },
                now,
            );
        }
        let rows = &self.rows;
        window.members.sort_unstable_by_key(|id| rows[*id].key.seq);
        for id in window.members {
            if let State::Windowed { scheduled: true, .. } = self.rows[id].state {
                self.schedule.remove(id, self.rows[id].key);
            }
            self.leave_window(id, due, cause);
        }
    }

    fn delete_window(&mut self, group: u32) {
        let application = Arc::clone(&self.apps[self.groups[group].app].name);
        let customer = Arc::clone(&self.groups[group].customer);
        self.ops.push(Op::DeleteWindow { application, customer });
    }

    /// A member of a closed window is due.
    pub(super) fn leave_window(&mut self, id: u32, due: u64, cause: ClosedBy) {
        let row = &mut self.rows[id];
        row.due = due;
        row.closed_by = cause;
        self.make_ready(id);
    }

    /// Members that are in the store alone are fetched through the index of their customer.
    fn collect_far(&mut self, group: u32, closing: Closing, now: Now) {
        let Some(earlier) = self.groups[group].closing.as_mut() else {
            self.groups[group].closing = Some(closing);
            let has_room = closing.far <= self.room_for_rows() && !self.is_store_overdue(now);
            if has_room && self.collecting.is_empty() {
                // At once: a command that comes behind the one that closed the window finds its members gone.
                self.begin_collecting(group);
            } else {
                self.collecting.push_back(group);
            }
            return;
        };
        // The members of an earlier window are still coming: begin again once they are all here.
        let (late, begun) = (earlier.late, earlier.begun);
        let far = earlier.far + closing.far;
        *earlier = Closing { again: begun, late, begun, far, ..closing };
        if begun {
            self.cursor.expect(Share { rows: closing.far, bytes: 0 });
        }
    }

    /// Fetches the members of closed windows, in the order in which these closed, as far as memory has room. What has been
    /// due for longer in the store goes before them, and what is due later makes room. Where nothing is on its way that
    /// could make room, or none has come for long, those of one customer come all the same.
    pub(super) fn collect_members(&mut self, now: Now) {
        while let Some(group) = self.next_to_collect(now) {
            self.begin_collecting(group);
        }
    }

    fn begin_collecting(&mut self, group: u32) {
        let Some(closing) = self.groups[group].closing.as_mut() else { return };
        closing.begun = true;
        self.cursor.expect(Share { rows: closing.far, bytes: 0 });
        let from = self.low_mark();
        self.load_group(group, from);
    }

    fn next_to_collect(&mut self, now: Now) -> Option<u32> {
        let first = self.collecting.front().copied()?;
        let (far, due) = self.groups[first].closing.map_or((0, 0), |closing| (closing.far, closing.due));
        if planted(Plant::MembersCrowdIn) {
            return self.collecting.pop_front();
        }
        if !self.is_store_overdue(now) || due < self.first_lacking().due {
            let lacking = far.saturating_sub(self.room_for_rows());
            if lacking > 0 && self.cursor.loading.is_none() {
                self.give_back_furthest(lacking, now.wall + URGENT_MS);
            }
            let within = self.rows.len() + self.cursor.coming.rows <= self.settings.budget.rows;
            if far <= self.room_for_rows() || (within && due + URGENT_MS <= now.wall) {
                return self.collecting.pop_front();
            }
        }
        if !self.is_resting() {
            return None;
        }
        let next = if self.is_store_overdue(now) { self.first_incomplete(now)? } else { first };
        self.collecting.retain(|group| *group != next);
        Some(next)
    }

    /// A customer who is held back for nothing but members that have to be fetched.
    fn first_incomplete(&self, now: Now) -> Option<u32> {
        let bar = self.bar(now);
        self.held.iter().copied().find(|group| {
            let Some(owner) = self.groups.get(*group) else { return false };
            let waits = owner.closing.is_some_and(|closing| !closing.begun);
            let oldest = owner.ready.iter().map(|id| (self.rows[*id].due, self.rows[*id].key.seq)).min();
            waits && bar.is_none_or(|bar| oldest.is_some_and(|oldest| oldest < bar))
        })
    }

    /// The members of a closed window are all here.
    pub(super) fn end_closing(&mut self, group: u32) {
        if let Some(closing) = self.groups[group].closing.take() {
            self.cursor.arrived(Share { rows: closing.far, bytes: 0 });
        }
    }

    pub(super) fn load_group(&mut self, group: u32, from: Key) {
        let application = Arc::clone(&self.apps[self.groups[group].app].name);
        let customer = Arc::clone(&self.groups[group].customer);
        self.cursor.begin_other();
        self.fx.loads.push(Load::Group { application, customer, from, max_rows: GROUP_ROWS });
    }

    /// A new item of an open window that stays in memory.
    pub(super) fn near_member(&mut self, id: u32, now: Now) {
        let (key, group) = (self.rows[id].key, self.rows[id].group);
        let scheduled = key.due > now.wall;
        if scheduled {
            self.schedule.insert(id, key);
        }
        let Some(window) = self.groups[group].window.as_mut() else { return };
        self.rows[id].state = State::Windowed { pos: window.members.len() as u32, scheduled };
        window.members.push(id);
    }

    /// A new item of an open window that is in the store alone.
    pub(super) fn far_member(&mut self, group: u32) {
        if let Some(window) = self.groups[group].window.as_mut() {
            window.far += 1;
        }
    }

    /// Takes an item off its window's list.
    pub(super) fn unlist_member(&mut self, id: u32) {
        let (group, state) = (self.rows[id].group, self.rows[id].state);
        let State::Windowed { pos, scheduled } = state else { return };
        if scheduled {
            self.schedule.remove(id, self.rows[id].key);
        }
        self.forget_member(group, pos);
    }

    /// Closes the gap in a window's list.
    pub(super) fn forget_member(&mut self, group: u32, pos: u32) {
        let Some(window) = self.groups[group].window.as_mut() else { return };
        window.members.swap_remove(pos as usize);
        if let Some(moved) = window.members.get(pos as usize).copied() {
            if let State::Windowed { pos: place, .. } = &mut self.rows[moved].state {
                *place = pos;
            }
        }
    }

    /// An item that left an open window for good no longer counts; the last one takes the window along.
    pub(super) fn uncount_member(&mut self, group: u32, weight: u32) {
        let overhead = self.groups[group].overhead;
        let Some(window) = self.groups[group].window.as_mut() else { return };
        window.count = window.count.saturating_sub(1);
        window.weight = window.weight.saturating_sub(u64::from(weight) + overhead.item);
        if window.count > 0 {
            return;
        }
        let (check, long) = (window.check, window.long);
        self.groups[group].window = None;
        self.closing.remove(group, check);
        let app = self.groups[group].app;
        if long {
            self.delete_window(group);
        }
        self.apps[app].windows -= 1;
        self.open_windows -= 1;
    }

    /// A stored member of a window has come back into memory: into the window that is open, or a new one that has
    /// at most its old time left, and at most `window`.
    pub(super) fn rejoin_window(&mut self, id: u32, now: Now) {
        let (key, group, weight, expiry) =
            (self.rows[id].key, self.rows[id].group, self.rows[id].weight, self.rows[id].expiry);
        let length = self.apps[self.groups[group].app].settings.window;
        let left = key.due.saturating_sub(now.wall).min(length);
        if self.groups[group].window.is_none() {
            self.open_window(group, left, key.seq, now);
        }
        let overhead = self.groups[group].overhead;
        let Some(window) = self.groups[group].window.as_mut() else { return };
        if window.far > 0 {
            window.far -= 1;
        } else {
            window.count += 1;
            window.weight += u64::from(weight) + overhead.item;
        }
        window.expiry = window.expiry.min(expiry);
        if now.mono + left < window.close {
            window.close = now.mono + left;
            window.end = now.wall + left;
        }
        self.near_member(id, now);
        self.plan_check(group, now);
    }

    /// Windows that were rows of their own before the restart.
    pub(super) fn restore_windows(&mut self, rows: &[WindowRow], now: Now) {
        for row in rows {
            let app = self.app(&row.application);
            let group = self.group(app, &row.customer);
            let length = self.apps[app].settings.window;
            let left = row.end.saturating_sub(now.wall).min(length);
            self.open_window(group, left, 0, now);
            if let Some(window) = self.groups[group].window.as_mut() {
                window.count = row.count;
                window.far = row.count;
                window.weight = row.weight;
                window.expiry = row.expiry.unwrap_or(u64::MAX);
                window.long = true;
            }
            self.plan_check(group, now);
        }
    }

    /// Rows of long windows that have changed go with the commit that changed them.
    pub(super) fn flush_windows(&mut self) {
        for group in std::mem::take(&mut self.dirty_windows) {
            let Some(owner) = self.groups.get(group) else { continue };
            let Some(window) = owner.window.as_ref().filter(|w| w.dirty) else { continue };
            self.ops.push(Op::PutWindow(WindowRow {
                application: Arc::clone(&self.apps[owner.app].name),
                customer: Arc::clone(&owner.customer),
                end: window.end,
                count: window.count,
                weight: window.weight,
                expiry: (window.expiry != u64::MAX).then_some(window.expiry),
            }));
            if let Some(window) = self.groups[group].window.as_mut() {
                window.dirty = false;
            }
        }
    }

    /// After a step of the wall clock, expiries lie elsewhere on the monotonic one.
    pub(super) fn recheck_expiries(&mut self, now: Now) {
        for group in self.groups.ids().collect::<Vec<_>>() {
            if self.groups[group].window.as_ref().is_some_and(|w| w.expiry != u64::MAX) {
                self.plan_check(group, now);
            }
        }
    }
}

/// How long a window lasts that opens now, ms.
fn window_length(settings: &AppSettings, now: Now) -> u64 {
    if settings.align {
        settings.window - now.wall % settings.window.max(1)
    } else {
        settings.window
    }
}

impl Window {
    /// When it must close as things stand, monotonic, and why.
    fn deadline(&self, quiet: u64, now: Now) -> (u64, ClosedBy) {
        let mut deadline = (self.close, ClosedBy::Time);
        if self.close <= now.mono && self.end > now.wall && self.end <= now.wall + CLOCK_SLACK_MS {
            // The other clock is not there yet: nothing leaves before the due that it carries.
            deadline.0 = now.mono + (self.end - now.wall);
        }
        if quiet > 0 && self.last + quiet < self.close {
            deadline = (self.last + quiet, ClosedBy::Quiet);
        }
        if self.expiry != u64::MAX {
            let left = self.expiry.saturating_sub(EXPIRY_MARGIN_MS).saturating_sub(now.wall);
            if now.mono + left < deadline.0 {
                deadline = (now.mono + left, ClosedBy::Expiry);
            }
        }
        deadline
    }
}
