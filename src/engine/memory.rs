//! What is in memory: applications, customers and items, made known when they are first met, and forgotten when nothing
//! needs them any more.

use super::slab::NIL;
use super::table::{App, Group, Road, Row};
use super::{size, Engine, DEAD, IDLE_APPS};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

impl Engine {
    /// The application of this name, made known if it is not.
    pub(super) fn app(&mut self, name: &str) -> u32 {
        if let Some(id) = self.names.get(name) {
            return *id;
        }
        if self.apps.len() > self.forget_at {
            self.forget_idle_apps();
            // However many are busy, each is looked at a bounded number of times for each that is new.
            self.forget_at = IDLE_APPS.max(self.apps.len() * 2);
        }
        let name: Arc<str> = name.into();
        let settings = self.settings.of(&name).clone();
        let id = self.apps.insert(App {
            overhead: size::overhead(settings.format, &name, None),
            name: name.clone(),
            settings,
            groups: HashMap::new(),
            ready: VecDeque::new(),
            ready_rows: 0,
            resend: VecDeque::new(),
            outbox: VecDeque::new(),
            slots: 0,
            flying: 0,
            suspects: 0,
            road: Road::Unproven,
            allowance: 1,
            failures: 0,
            lane: None,
            early: 0,
            paused: false,
            parking: false,
            queued: false,
            rows: 0,
            windows: 0,
            total: 0,
            unstored: 0,
            counted: 0,
            count_dirty: false,
            by_age: BTreeMap::new(),
            oldest: None,
            sent: 0,
        });
        self.names.insert(name, id);
        id
    }

    pub(super) fn forget_idle_apps(&mut self) {
        for id in self.apps.ids().collect::<Vec<_>>() {
            let app = &self.apps[id];
            // Groups: the members of a closed window may still be on their way.
            let idle = app.total == 0
                && app.rows == 0
                && !app.count_dirty
                && !app.paused
                && app.windows == 0
                && app.groups.is_empty()
                && app.lane.is_none()
                && !app.queued
                && !app.parking;
            if id != DEAD && idle && !matches!(app.road, Road::Parked { .. }) {
                self.names.remove(&app.name);
                self.apps.remove(id);
            }
        }
    }

    /// The group of this customer, made known if it is not.
    pub(super) fn group(&mut self, app: u32, customer: &str) -> u32 {
        if let Some(id) = self.apps[app].groups.get(customer) {
            return *id;
        }
        let customer: Arc<str> = customer.into();
        let owner = &self.apps[app];
        let id = self.groups.insert(Group {
            app,
            overhead: size::overhead(owner.settings.format, &owner.name, Some(&customer)),
            customer: customer.clone(),
            window: None,
            closing: None,
            ready: VecDeque::new(),
            unsorted: false,
            queued: false,
            held: false,
            rows: 0,
        });
        self.apps[app].groups.insert(customer, id);
        id
    }

    /// Keeps a group while work on it is under way that may take its last row away.
    pub(super) fn pin_group(&mut self, id: u32) {
        if id != NIL {
            self.groups[id].rows += 1;
        }
    }

    pub(super) fn unpin_group(&mut self, id: u32) {
        if id != NIL {
            self.groups[id].rows -= 1;
            self.release_group(id);
        }
    }

    /// Forgets a group that nothing needs any more.
    pub(super) fn release_group(&mut self, id: u32) {
        if id == NIL {
            return;
        }
        let Some(group) = self.groups.get(id) else { return };
        if group.rows == 0 && group.window.is_none() && group.closing.is_none() && !group.queued {
            self.apps[group.app].groups.remove(&group.customer);
            self.groups.remove(id);
        }
    }

    /// Takes an item into memory.
    pub(super) fn insert_row(&mut self, row: Row) -> u32 {
        if let Some(content) = &row.content {
            self.content_bytes += content.size();
        }
        self.apps[row.app].rows += 1;
        if row.group != NIL {
            self.groups[row.group].rows += 1;
        }
        if row.stored && !row.in_lane {
            self.stored_in_memory += 1;
            *self.seconds.entry(row.key.due / 1_000).or_default() += 1;
        }
        if !row.stored {
            self.apps[row.app].unstored += 1;
        }
        let (seq, app, identity) = (row.key.seq, row.app, row.identity);
        let id = self.rows.insert(row);
        self.by_seq.insert(seq, id);
        if identity.is_given() {
            self.by_identity.insert(identity, id);
        }
        if self.tracks_age(app) {
            self.apps[app].by_age.insert(seq, id);
            if let Some(oldest) = &mut self.apps[app].oldest {
                oldest.rows.remove(&seq);
            }
        }
        id
    }

    /// Lets an item go out of memory. The caller has taken it off every list, and says what the store must do.
    pub(super) fn remove_row(&mut self, id: u32) -> Option<Row> {
        let row = self.rows.remove(id)?;
        self.by_seq.remove(&row.key.seq);
        if row.identity.is_given() {
            self.by_identity.remove(&row.identity);
        }
        if let Some(content) = &row.content {
            self.content_bytes -= content.size();
        }
        self.apps[row.app].rows -= 1;
        self.apps[row.app].by_age.remove(&row.key.seq);
        if !row.stored {
            self.apps[row.app].unstored -= 1;
            self.note_count(row.app);
        }
        if row.group != NIL {
            self.groups[row.group].rows -= 1;
            self.release_group(row.group);
        }
        if row.stored && !row.in_lane {
            self.stored_in_memory -= 1;
            self.leave_second(row.key.due);
        }
        Some(row)
    }

    pub(super) fn leave_second(&mut self, due: u64) {
        let second = due / 1_000;
        if let Some(count) = self.seconds.get_mut(&second) {
            *count -= 1;
            if *count == 0 {
                self.seconds.remove(&second);
            }
        }
    }

    pub(super) fn drop_content(&mut self, id: u32) {
        let row = &mut self.rows[id];
        if row.stored && row.token <= self.committed {
            if let Some(content) = row.content.take() {
                self.content_bytes -= content.size();
            }
        }
    }
}
