//! Members of windows: how they join, and what their window's end makes of them.

use super::*;
use crate::engine::event::Opened;
use std::collections::BTreeSet;

impl Stock {
    /// Open windows as the former life left them.
    pub(in crate::engine) fn reopen(&mut self, opened: &Opened, now: Now) {
        self.bring_back(opened, now);
        for row in &opened.windows {
            let queue = self.queues.id(&row.application);
            let live = self.queues.at(queue).live();
            let customer = self.customers.id(live, &row.customer);
            self.customers.reopen(customer, live, row, now);
        }
    }

    /// The clock was set back before this life: members of windows that had closed are due, and those of
    /// short ones that were open wait for `window` at most. Long windows have rows, which see to their own.
    fn bring_back(&mut self, opened: &Opened, now: Now) {
        let long: BTreeSet<(&str, &str, u64)> =
            opened.windows.iter().map(|row| (&*row.application, &*row.customer, row.window)).collect();
        for row in &opened.ahead {
            if row.closed_by.is_none() && long.contains(&(&*row.application, &*row.customer, row.window)) {
                continue;
            }
            let queue = self.queues.id(&row.application);
            // No later than the next start will look, should the clock be set back once more.
            let window = self.queues.settings_of(queue).window.min(HORIZON_MS);
            let due = now.wall + if row.closed_by.is_some() { 0 } else { window };
            if due >= row.due || mutated(Mutant::AheadForgotten) {
                continue;
            }
            let closed = ClosingRow {
                application: Arc::clone(&row.application),
                end: row.end,
                window: row.window,
                due,
                cause: row.closed_by.unwrap_or(ClosedBy::Time),
            };
            self.close_far(queue, &closed);
            self.close_in_store(closed);
        }
    }

    /// The store is told that a window has closed before its end. What reads and answers under way say of its
    /// members, wherever these are now, is out of date.
    fn close_in_store(&mut self, closed: ClosingRow) {
        self.reads.note_closed(&self.watch, &closed);
        if !mutated(Mutant::ClosingForgotten) {
            self.journal.push(Op::Close(closed));
        }
    }

    /// Members of a window in the store alone are due when it closed.
    fn close_far(&mut self, queue: QueueId, closed: &ClosingRow) {
        let to = Key { due: closed.due, window: closed.window, seq: 0 };
        self.retold.push((Arc::clone(&closed.application), to));
        self.queues.at(queue).closed_far(to);
    }

    /// An item that would take its customer's window over its bytes closes it first.
    pub(super) fn close_overflowing(&mut self, id: CustomerId, weight: u32, now: Now) {
        let (next, span) = ((weight, self.journal.next_number()), self.thresholds().span);
        let live = self.queues.at(self.customers[id].queue).live();
        if let Some(cause) = self.customers.would_overflow(id, live, next, span) {
            self.close_window(id, cause, now);
        }
    }

    /// Counts a new item into its customer's window, opening one if need be; where its members lie in the
    /// store.
    pub(super) fn join_window(
        &mut self,
        id: CustomerId,
        member: Member,
        inherited: Option<u64>,
        now: Now,
    ) -> Key {
        let live = self.queues.at(self.customers[id].queue).live();
        if self.customers.window(id).is_none() {
            let settings = live.settings();
            let length = match inherited {
                // Bounded, should the clock have gone back between the two.
                Some(end) => end.saturating_sub(now.wall).min(settings.window),
                None => window::length(settings, now),
            };
            let plan = Plan { length, end: now.wall + length, long: length > HORIZON_MS, former: false };
            let shared = mutated(Mutant::WindowsShareANumber);
            let number = if shared { (member.seq & !7).max(1) } else { member.seq };
            self.customers.open(id, live, plan, number, now);
        }
        self.customers.join(id, live, member, now)
    }

    /// A stored item has come back whose window had not ended: into that window, which may have to be opened
    /// anew with at most its old time left, and at most `window`. False: another window is open.
    pub(super) fn rejoin_window(&mut self, id: ItemId, customer: CustomerId, now: Now) -> bool {
        let item = &self.items[id];
        let member = Member { weight: item.weight(), expiry: item.expiry(), seq: item.key().seq };
        let (key, live) = (item.key(), self.queues.at(item.queue()).live());
        if self.customers.window(customer).is_none() {
            let length = key.due.saturating_sub(now.wall).min(live.settings().window);
            let plan = Plan { length, end: key.due, long: false, former: true };
            self.customers.open(customer, live, plan, key.window, now);
        }
        let another = self.customers.window(customer).is_none_or(|window| !window.holds(key));
        if another && !mutated(Mutant::RejoinsAnother) {
            return false;
        }
        self.customers.rejoin(customer, live, member, now);
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
        if let Some(id) = self.queues[queue].customer(customer) {
            self.leave_unseen(id, stored.key, stored.weight);
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
        self.customers.window(id).map_or(0, |window| window.members().len())
    }

    /// Ends a customer's window: its members are due, for good.
    pub(in crate::engine) fn close_window(&mut self, id: CustomerId, cause: ClosedBy, now: Now) {
        self.customers.pin(id);
        let queue = self.customers[id].queue;
        if let Some(window) = self.customers.end(id, self.queues.at(queue).live(), self.journal.ops()) {
            self.counters.windows_closed[cause as usize] += 1;
            self.release_members(id, window, cause, now);
        }
        self.customers.unpin(id, self.queues.at(queue).live());
    }

    pub(super) fn release_members(&mut self, id: CustomerId, mut window: Window, cause: ClosedBy, now: Now) {
        let due = window.due_at_close(cause, now);
        let early = due < window.end() && self.journal.is_durable();
        let items = &self.items;
        let mut members = window.take_members();
        members.sort_unstable_by_key(|member| items[*member].key().seq);
        let queue = self.customers[id].queue;
        let closed = ClosingRow {
            application: Arc::clone(self.queues[queue].name()),
            end: window.end(),
            window: window.place().window,
            due,
            cause,
        };
        if early && window.may_have_far() {
            self.close_far(queue, &closed);
            self.queues.at(queue).due_sooner(window.end(), u64::from(window.far()));
        }
        if early && (window.may_have_far() || !members.is_empty()) {
            self.close_in_store(closed);
        }
        let others = self.others_of(id, &window, early && window.may_have_far());
        self.work += (members.len() + others.len()) as u64;
        let any_other = !others.is_empty();
        for member in others.into_iter().chain(members) {
            let item = &mut self.items[member];
            let (planned, stage) = (item.place(), item.stage());
            if matches!(stage, Stage::Scheduled | Stage::Windowed { scheduled: true, .. }) {
                self.schedule.remove(items::place_of(member), planned);
            }
            item.close(due, cause);
            let stored = item.is_stored();
            self.queues.at(queue).note_closed(member, (planned, item.place()), stored);
            if matches!(stage, Stage::Scheduled | Stage::Windowed { .. }) {
                self.make_ready(member, now);
            }
        }
        if any_other {
            let items = &self.items;
            self.customers[id].ready.put_in_order(|item| items.get(item).map(Item::place));
        }
    }

    /// An item is not among those of its open window any more, whose member it is in the store alone.
    pub(super) fn leave_as_stray(&mut self, item: &Item) {
        if let Some(id) = item.customer().filter(|_| item.is_stray()) {
            self.leave_unseen(id, item.key(), item.weight());
        }
    }

    /// What lies in the store under this key leaves the customer's window, if it is a member of that.
    fn leave_unseen(&mut self, id: CustomerId, key: Key, weight: u32) {
        if self.customers.window(id).is_some_and(|window| window.holds(key)) {
            let live = self.queues.at(self.customers[id].queue).live();
            self.customers.leave(id, live, weight, true, self.journal.ops());
            self.customers.release(id, live);
        }
    }

    /// Items in memory that lie among the members of a customer's window and are none of them: strays, and
    /// those that came into memory while another window was open.
    fn others_of(&self, id: CustomerId, window: &Window, may_be: bool) -> Vec<ItemId> {
        let is_other = |id: &ItemId| {
            let item = &self.items[*id];
            window.holds(item.key()) && !item.own_time() && !matches!(item.stage(), Stage::Windowed { .. })
        };
        let all = may_be.then(|| self.customers.items(id, &self.items)).into_iter().flatten();
        all.filter(is_other).collect()
    }

    /// Closes windows whose moment has come, in order, as many as a turn has time for. Whether these are all.
    pub(in crate::engine) fn close_ripe(&mut self, turn: Thresholds, now: Now) -> bool {
        let (ripe, all) = self.customers.take_due(&self.queues, turn, now);
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
        self.customers.flush(&self.queues, self.journal.ops());
    }

    /// After a step of the wall clock: expiries lie elsewhere, and other rows are to be loaded. The cost is
    /// that of all queues and windows.
    pub(in crate::engine) fn recheck(&mut self, now: Now) {
        for queue in self.queues.ids().collect::<Vec<_>>() {
            if let Some(live) = self.queues[queue].live() {
                self.customers.recheck(live, now);
            }
            self.queues.at(queue).look_at();
        }
    }

    /// Tells of queues of which items in the store alone got another place since the last call, and from
    /// which place on.
    pub(in crate::engine) fn tell_retold(&mut self, mut tell: impl FnMut(&str, Key)) {
        for (queue, to) in std::mem::take(&mut self.retold) {
            tell(&queue, to);
        }
    }
}
