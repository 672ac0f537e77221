//! Members of windows: how they join, and what their window's end makes of them.

use super::*;
use crate::engine::event::Opened;
use crate::engine::windows;
use std::collections::{BTreeMap, BTreeSet};

impl Stock {
    /// Windows as the former life left them: open ones go on, and closed ones stay closed.
    pub(in crate::engine) fn reopen(&mut self, opened: &Opened, now: Now) {
        let mut closed: BTreeMap<(Arc<str>, u64), Vec<RekeyMembers>> = BTreeMap::new();
        for row in &opened.closings {
            let members = RekeyMembers {
                customer: Arc::clone(&row.customer),
                through_seq: row.through_seq,
                // Where the clock was set back they are due all the same.
                due: row.due.min(now.wall),
                cause: row.cause,
                except: Vec::new(),
            };
            closed.entry((Arc::clone(&row.application), row.end)).or_default().push(members);
            self.journal.push(windows::delete_closing(row));
        }
        for ((queue, end), mut members) in closed {
            // Of two windows of one customer with the same planned end, the one that closed first is looked
            // at first.
            members.sort_by_key(|one| one.through_seq);
            let id = self.queues.id(&queue);
            let first = members.iter().map(|one| one.due).min().unwrap_or(end);
            self.queues.rekeyed(id, Key { due: first, seq: 0 });
            if !mutated(Mutant::RestartForgetsClosings) {
                self.journal.push(Op::Rekey { queue, end, members, indexed: false });
            }
        }
        self.bring_back(opened, now);
        if !opened.queues.is_empty() {
            self.former_until = now.wall + HORIZON_MS;
        }
        for row in &opened.windows {
            let queue = self.queues.id(&row.application);
            let customer = self.customers.id(&mut self.queues, queue, &row.customer);
            self.windows.reopen(&mut self.customers, &mut self.queues, customer, row, now);
        }
    }

    /// The clock was set back before this life: members of windows that had closed are due, and those of
    /// short ones that were open wait for `window` at most. Long windows have rows, which see to their own.
    fn bring_back(&mut self, opened: &Opened, now: Now) {
        let long: BTreeSet<(&str, &str, u64)> =
            opened.windows.iter().map(|row| (&*row.application, &*row.customer, row.end)).collect();
        for row in &opened.ahead {
            if row.closed_by.is_none() && long.contains(&(&*row.application, &*row.customer, row.due)) {
                continue;
            }
            let queue = self.queues.id(&row.application);
            // No later than the next start will look, should the clock be set back once more.
            let window = self.queues.settings_of(queue).window.min(HORIZON_MS);
            let due = now.wall + if row.closed_by.is_some() { 0 } else { window };
            if due >= row.due || mutated(Mutant::AheadForgotten) {
                continue;
            }
            let members = RekeyMembers {
                customer: Arc::clone(&row.customer),
                through_seq: self.journal.next_number().saturating_sub(1),
                due,
                cause: row.closed_by.unwrap_or(ClosedBy::Time),
                except: Vec::new(),
            };
            self.queues.rekeyed(queue, Key { due, seq: 0 });
            let (queue, end) = (Arc::clone(&row.application), row.due);
            self.journal.push(Op::Rekey { queue, end, members: vec![members], indexed: false });
        }
    }

    /// An item that would take its customer's window over its bytes closes it first.
    pub(super) fn close_overflowing(&mut self, id: CustomerId, weight: u32, now: Now) {
        if Windows::would_overflow(&self.customers, &self.queues, id, weight) {
            self.close_window(id, ClosedBy::Bytes, now);
        }
    }

    /// Counts a new item into its customer's window, opening one if need be; the planned end, which is the
    /// due in its key.
    pub(super) fn join_window(
        &mut self,
        id: CustomerId,
        member: Member,
        inherited: Option<u64>,
        now: Now,
    ) -> u64 {
        if self.customers[id].window.is_none() {
            let settings = self.queues.settings_of(self.customers[id].queue);
            let length = match inherited {
                // Bounded, should the clock have gone back between the two.
                Some(end) => end.saturating_sub(now.wall).min(settings.window),
                None => window::length(settings, now),
            };
            let plan = Plan { length, end: now.wall + length, long: length > HORIZON_MS };
            self.windows.open(&mut self.customers, &mut self.queues, id, plan, member.seq, now);
        }
        self.windows.join(&mut self.customers, &self.queues, id, member, now)
    }

    /// A stored item has come back whose window had not ended: into that window, which may have to be opened
    /// anew with at most its old time left, and at most `window`. False: another window is open.
    pub(super) fn rejoin_window(&mut self, id: ItemId, customer: CustomerId, now: Now) -> bool {
        let item = &self.items[id];
        let member = Member { weight: item.weight(), expiry: item.expiry(), seq: item.key().seq };
        let end = item.key().due;
        if self.customers[customer].window.is_none() {
            let longest = self.queues.settings_of(self.customers[customer].queue).window;
            let length = end.saturating_sub(now.wall).min(longest);
            let plan = Plan { length, end, long: false };
            self.windows.open(&mut self.customers, &mut self.queues, customer, plan, member.seq, now);
        }
        let another = self.customers[customer].window.as_ref().is_none_or(|window| window.end() != end);
        if another && !mutated(Mutant::RejoinsAnother) {
            return false;
        }
        self.windows.rejoin(&mut self.customers, &self.queues, customer, member, now);
        true
    }

    /// A member of an open window that stays in memory.
    pub(super) fn add_member(&mut self, id: ItemId, now: Now) {
        let (key, customer) = (self.items[id].key(), self.items[id].customer());
        let scheduled = key.due > now.wall;
        if scheduled {
            self.schedule.insert(items::place_of(id), key);
        }
        let window = customer.and_then(|customer| self.customers[customer].window.as_mut());
        let Some(window) = window else {
            debug_assert!(false, "a member has an open window");
            return;
        };
        let pos = window.push_member(id);
        self.set_stage(id, Stage::Windowed { pos, scheduled });
    }

    /// An item in the store alone is no member any more, if it was one of an open window.
    pub(super) fn leave_window_far(&mut self, queue: QueueId, stored: &Stored) {
        let Some(customer) = stored.customer.as_deref().filter(|_| stored.is_windowed()) else { return };
        let Some(id) = self.customers.find(&self.queues, queue, customer) else { return };
        let window = self.customers[id].window.as_ref();
        if window.is_some_and(|window| window.end() == stored.key.due) {
            let ops = self.journal.ops();
            self.windows.leave(&mut self.customers, &mut self.queues, id, stored.weight, true, ops);
            self.customers.release(id, &mut self.queues);
        }
    }

    /// Closes the gap in a window's list.
    pub(super) fn forget_member(&mut self, customer: CustomerId, pos: u32) {
        let Some(window) = self.customers[customer].window.as_mut() else { return };
        if let Some(moved) = window.remove_member(pos) {
            if let Stage::Windowed { scheduled, .. } = self.items[moved].stage() {
                self.set_stage(moved, Stage::Windowed { pos, scheduled });
            }
        }
    }

    /// Members in memory of a customer's window.
    pub(in crate::engine) fn members_of(&self, id: CustomerId) -> usize {
        let window = self.customers.get(id).and_then(|customer| customer.window.as_ref());
        window.map_or(0, |window| window.members().len())
    }

    /// Ends a customer's window: its members are due, for good.
    pub(in crate::engine) fn close_window(&mut self, id: CustomerId, cause: ClosedBy, now: Now) {
        self.customers.pin(id);
        let ops = self.journal.ops();
        if let Some(window) = self.windows.end(&mut self.customers, &mut self.queues, id, ops) {
            self.counters.windows_closed[cause as usize] += 1;
            self.release_members(id, window, cause, now);
        }
        self.customers.unpin(id, &mut self.queues);
    }

    pub(super) fn release_members(&mut self, id: CustomerId, mut window: Window, cause: ClosedBy, now: Now) {
        let due = window.due_at_close(cause, now);
        let early = due < window.end() && self.journal.is_durable();
        let items = &self.items;
        let mut members = window.take_members();
        members.sort_unstable_by_key(|member| items[*member].key().seq);
        let through_seq = self.journal.next_number().saturating_sub(1);
        let queue = self.customers[id].queue;
        if early && (window.far() > 0 || self.may_have_unread(queue, window.end())) {
            self.rekey_far_members(id, &window, due, cause, through_seq);
        }
        let closing = (early && !members.is_empty() && !mutated(Mutant::ClosingForgotten)).then(|| {
            let row = ClosingRow {
                application: Arc::clone(self.queues[queue].name()),
                customer: Arc::clone(&self.customers[id].name),
                end: window.end(),
                through_seq,
                due,
                cause,
            };
            let members = members.len() as u32;
            let ops = self.journal.ops();
            self.windows.begin_closing(row, members, ops)
        });
        self.work += members.len() as u64;
        for member in members {
            let item = &mut self.items[member];
            if let Stage::Windowed { scheduled: true, .. } = item.stage() {
                self.schedule.remove(items::place_of(member), item.key());
            }
            item.close(due, cause, closing);
            self.make_ready(member, now);
        }
    }

    /// Whether former lives may have left members of a short window with this end that have not been read.
    fn may_have_unread(&self, queue: QueueId, end: u64) -> bool {
        end <= self.former_until && self.queues[queue].near_until().due <= end
    }

    pub(super) fn rekey_far_members(
        &mut self,
        id: CustomerId,
        window: &Window,
        due: u64,
        cause: ClosedBy,
        through_seq: u64,
    ) {
        let queue = self.customers[id].queue;
        let name = Arc::clone(self.queues[queue].name());
        // Members of an earlier window with the same planned end may still be in memory under that key.
        let keys = self.customers.items(id, &self.items).map(|member| self.items[member].key());
        let mut except: Vec<u64> = keys.filter(|key| key.due == window.end()).map(|key| key.seq).collect();
        except.sort_unstable();
        let members =
            RekeyMembers { customer: Arc::clone(&self.customers[id].name), through_seq, due, cause, except };
        self.reads.note_rekey(&self.watch, &name, window.end(), &members);
        if !mutated(Mutant::RekeyForgotten) {
            let (end, members) = (window.end(), vec![members]);
            // Those that a former life had in memory may lack their customer row.
            let indexed = end >= self.queues[queue].former_unindexed();
            self.journal.push(Op::Rekey { queue: name, end, members, indexed });
        }
        // Members of former lives may be among them.
        let to = Key { due, seq: 0 };
        if !mutated(Mutant::RekeysUntold) {
            self.rekeys.push((Arc::clone(self.queues[queue].name()), to));
        }
        self.queues.rekeyed(queue, to);
        self.queues.due_sooner(queue, window.end(), u64::from(window.far()));
    }

    /// Closes windows whose moment has come, in order, as many as a turn has time for. Whether these are all.
    pub(in crate::engine) fn close_ripe(&mut self, turn: Thresholds, now: Now) -> bool {
        let (ripe, all) = self.windows.take_due(&mut self.customers, &self.queues, turn, now);
        for (customer, cause) in ripe {
            self.close_window(customer, cause, now);
        }
        if all {
            self.behind = Behind::Nothing;
        }
        all
    }

    /// Hands over the rows of windows that have changed.
    pub(in crate::engine) fn flush_windows(&mut self) {
        let ops = self.journal.ops();
        self.windows.flush(&mut self.customers, &self.queues, ops);
    }

    /// After a step of the wall clock: expiries lie elsewhere, and other rows are to be loaded. The cost is
    /// that of all queues and windows.
    pub(in crate::engine) fn recheck(&mut self, now: Now) {
        let queues: Vec<_> = self.queues.ids().collect();
        self.windows.recheck(&mut self.customers, &self.queues, &queues, now);
        queues.into_iter().for_each(|queue| self.queues.look_at(queue));
    }

    /// Tells of queues whose items got other keys in the store since the last call, and from which key on.
    pub(in crate::engine) fn tell_rekeys(&mut self, mut tell: impl FnMut(&str, Key)) {
        for (queue, to) in std::mem::take(&mut self.rekeys) {
            tell(&queue, to);
        }
    }
}
