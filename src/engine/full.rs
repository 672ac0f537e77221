//! Limits: how many items an application may have waiting, how many windows may be open, and what happens there.
//!
//! The number of an application's items is exact, over restarts too: it is kept in a row of the store that goes with
//! every commit that changes it. Memory needs no policy, it is bounded by the cursor; the disk is watched by the
//! shell, which says [`super::event::Input::StoreFull`].
//!
//! One application at its limit stops the others only where its policy is `pause`: there is one ingest queue.

use super::event::{AppRow, Op, Place, Stored};
use super::plant::{planted, Plant};
use super::table::Oldest;
use super::types::{ClosedBy, Dead, NewItem, Now, OnFull, Reason};
use super::walk::Errand;
use super::{Engine, DEAD};
use std::sync::Arc;

/// So many of an application's oldest items are remembered when they have been looked for in the store.
const OLDEST_KEPT: usize = 1_024;

/// Looked at when the oldest item is wanted; those before it are under way.
const OLDEST_LOOKED_AT: usize = 1_000;

impl Engine {
    /// Makes room for one item more, or says why there is none.
    pub(super) fn admit(&mut self, app: u32, now: Now) -> Result<(), Dead> {
        let settings = Arc::clone(&self.apps[app].settings);
        if settings.max_waiting > 0 && self.apps[app].total >= settings.max_waiting {
            let limit =
                format!("applications.{}.max_waiting = {}", self.apps[app].name, settings.max_waiting);
            self.make_way(app, settings.on_full, &limit, now)?;
        }
        Ok(())
    }

    /// Makes room for the window that a new item opens, or says why there is none.
    pub(super) fn admit_window(&mut self, app: u32, item: &NewItem, now: Now) -> Result<(), Dead> {
        let opens = item.at.is_none()
            && item.customer.as_deref().is_some_and(|customer| {
                let group = self.apps[app].groups.get(customer);
                group.is_none_or(|group| self.groups[*group].window.is_none())
            });
        if opens && self.open_windows >= self.settings.customers {
            match self.apps[app].settings.on_full {
                OnFull::Pause => self.windows_full = true,
                OnFull::FlushEarly | OnFull::DropOldest => self.close_soonest(now),
                OnFull::DropNewest => {
                    let error = format!("limits.customers = {} windows are open", self.settings.customers);
                    return Err(Dead { reason: Reason::Full, error: error.into() });
                }
            }
        }
        Ok(())
    }

    fn make_way(&mut self, app: u32, policy: OnFull, limit: &str, now: Now) -> Result<(), Dead> {
        match policy {
            OnFull::Pause => {
                self.full.insert(app);
            }
            OnFull::FlushEarly => {
                if self.full.insert(app) {
                    self.flush_windows_of(app, now);
                }
            }
            OnFull::DropOldest => {
                let Some(id) = self.take_oldest(app, now) else {
                    let error = format!("{limit} is reached, and none of them can be dropped");
                    return Err(Dead { reason: Reason::Full, error: error.into() });
                };
                self.kill(id, Reason::Full, &format!("{limit} is reached, and this was the oldest"));
            }
            OnFull::DropNewest => {
                let error = format!("{limit} is reached");
                return Err(Dead { reason: Reason::Full, error: error.into() });
            }
        }
        Ok(())
    }

    /// The item of an application that arrived first, wherever it lies, and is not under way; off its lists.
    fn take_oldest(&mut self, app: u32, now: Now) -> Option<u32> {
        let near = self.apps[app].by_age.iter().take(OLDEST_LOOKED_AT);
        let near = near.map(|(seq, id)| (*seq, *id)).find(|(_, id)| !self.is_in_flight(*id));
        let far = self.apps[app].oldest.as_ref().and_then(|oldest| oldest.rows.keys().next().copied());
        let id = match (near, far) {
            (Some((seq, id)), far) if far.is_none_or(|far| seq < far) => id,
            (_, None) => return None,
            (_, Some(seq)) => {
                let found = self.apps[app].oldest.as_mut()?.rows.remove(&seq)?;
                self.fetch(found, now)?
            }
        };
        self.leave_flight(id);
        self.unlist(&[id], |other, _| other == id);
        Some(id)
    }

    /// Whether the oldest item has to be looked for in the store before one more can be taken; if so, that has begun.
    pub(super) fn looks_for_oldest(&mut self, application: &str, now: Now) -> bool {
        let Some(app) = self.names.get(application).copied() else { return false };
        let row = &self.apps[app];
        let full = self.tracks_age(app) && row.total >= row.settings.max_waiting;
        let known = row.oldest.as_ref().is_some_and(|oldest| !oldest.rows.is_empty() || !oldest.grown);
        if !full || known || row.total <= row.rows {
            return false;
        }
        self.apps[app].oldest = Some(Oldest::default());
        self.begin_errand(Errand::Oldest(application.into()), now);
        true
    }

    /// Items of the store that may be among the oldest.
    pub(super) fn note_oldest(&mut self, app: u32, place: Place, stored: Stored) {
        let Some(oldest) = &mut self.apps[app].oldest else { return };
        if oldest.upto.is_some_and(|upto| stored.key.seq >= upto) {
            return;
        }
        oldest.rows.insert(stored.key.seq, (place, stored));
        if oldest.rows.len() > OLDEST_KEPT {
            oldest.upto = oldest.rows.pop_last().map(|(seq, _)| seq);
            oldest.grown = true;
        }
    }

    /// They have been looked for everywhere.
    pub(super) fn oldest_found(&mut self, application: &str, before: u64) {
        let Some(app) = self.names.get(application).copied() else { return };
        let Some(oldest) = &mut self.apps[app].oldest else { return };
        oldest.upto.get_or_insert(before);
    }

    /// A new item is in the store alone from the start.
    pub(super) fn gone_far(&mut self, app: u32) {
        if let Some(oldest) = &mut self.apps[app].oldest {
            oldest.grown = true;
        }
    }

    /// An item goes to being in the store alone.
    pub(super) fn leaves_memory(&mut self, id: u32) {
        let row = &self.rows[id];
        let app = row.app;
        let Some(oldest) = &mut self.apps[app].oldest else { return };
        oldest.grown = true;
        if app != DEAD {
            let stored = Stored { content: None, ..self.stored_from(&self.rows[id]) };
            self.note_oldest(app, self.place_of(&self.rows[id]), stored);
        }
    }

    /// Closes every window of an application.
    fn flush_windows_of(&mut self, app: u32, now: Now) {
        let open: Vec<u32> = self
            .groups
            .ids()
            .filter(|id| self.groups[*id].app == app && self.groups[*id].window.is_some())
            .collect();
        for group in open {
            self.flush_window(group, now);
        }
    }

    /// Closes the window that would close next, of whichever application.
    fn close_soonest(&mut self, now: Now) {
        if let Some(group) = self.closing.first() {
            self.flush_window(group, now);
        }
    }

    fn flush_window(&mut self, group: u32, now: Now) {
        self.pin_group(group);
        self.close_window(group, ClosedBy::Flush, now);
        self.unpin_group(group);
    }

    /// One item more.
    pub(super) fn count_in(&mut self, app: u32) {
        self.apps[app].total += 1;
        self.note_count(app);
    }

    /// One item less: it ended, or belongs to the dead exchange now.
    pub(super) fn count_out(&mut self, app: u32) {
        let row = &mut self.apps[app];
        row.total = row.total.saturating_sub(u64::from(!planted(Plant::CountForgotten)));
        let limit = row.settings.max_waiting;
        if !self.full.is_empty() && row.total.saturating_mul(10) < limit.saturating_mul(9) {
            self.full.remove(&app);
        }
        self.note_count(app);
    }

    pub(super) fn note_count(&mut self, app: u32) {
        if self.is_durable() && !self.apps[app].count_dirty {
            self.apps[app].count_dirty = true;
            self.dirty_counts.push(app);
        }
    }

    /// Numbers that have changed go with the commit that changed them.
    pub(super) fn flush_counts(&mut self) {
        for app in std::mem::take(&mut self.dirty_counts) {
            let row = &mut self.apps[app];
            row.count_dirty = false;
            let waiting = row.total.saturating_sub(row.unstored);
            if waiting != row.counted {
                row.counted = waiting;
                self.ops.push(Op::PutApp(AppRow {
                    application: Arc::clone(&row.name),
                    waiting,
                    paused: row.paused,
                }));
            }
        }
    }

    pub(super) fn restore_counts(&mut self, rows: &[AppRow]) {
        for row in rows {
            let app = self.app(&row.application);
            self.apps[app].total = row.waiting;
            self.apps[app].counted = row.waiting;
            self.apps[app].paused = row.paused;
        }
    }

    /// Whether no limit stands against taking requests.
    ///
    /// With nothing stored, the prefetch is the limit: closing the intake would throw away what is held, only to have
    /// it delivered again.
    pub(super) fn has_room(&mut self) -> bool {
        if !self.is_durable() {
            return true;
        }
        if self.windows_full
            && self.open_windows.saturating_mul(10) < self.settings.customers.saturating_mul(9)
        {
            self.windows_full = false;
        }
        // With nothing stored the prefetch is the bound, and a pause would give all of it back: windows and delays
        // would begin anew each time, and never end.
        let limited = self.is_durable() && (self.windows_full || !self.full.is_empty());
        !self.store_full && !limited
    }

    /// After a reload the limits are others: they are found out again by the next item.
    pub(super) fn recheck_limits(&mut self) {
        self.full.clear();
        self.windows_full = false;
        for id in self.apps.ids().collect::<Vec<_>>() {
            self.apps[id].by_age.clear();
            self.apps[id].oldest = None;
        }
        for id in self.rows.ids().collect::<Vec<_>>() {
            let row = &self.rows[id];
            let (app, seq) = (row.app, row.key.seq);
            if self.tracks_age(app) {
                self.apps[app].by_age.insert(seq, id);
            }
        }
    }

    /// Whether the order of arrival of an application's items is kept: only where the oldest may be dropped.
    pub(super) fn tracks_age(&self, app: u32) -> bool {
        let settings = &self.apps[app].settings;
        app != DEAD && settings.max_waiting > 0 && settings.on_full == OnFull::DropOldest
    }
}
