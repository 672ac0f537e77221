//! Members of a customer's window: how they join, how the end of the window changes them, and how they leave
//! in a batch with other items of their customer.

use super::*;
use crate::queue::{Room, LAST};
use alloc::vec::Vec;

/// The live items of one customer of a queue.
#[derive(Debug)]
pub(crate) struct CustomerItems<'q, 's> {
    pub(super) id: CustomerId,
    pub(super) at: &'q mut QueueItems<'s>,
}

impl QueueItems<'_> {
    /// A window has closed: its members in the store alone are due at that moment.
    pub(super) fn close_far(&mut self, closed: &ClosingRow) {
        let to = Key { due: closed.due, window: closed.window, seq: 0 };
        self.shared.retold.push((Arc::clone(&closed.application), to));
        self.queue.closed_far(to);
    }

    /// Removes an item in the store alone from its window, if it was a member of an open one.
    pub(super) fn leave_window_far(&mut self, stored: &Stored) {
        let Some(customer) = stored.customer.as_deref().filter(|_| stored.is_windowed()) else { return };
        if let Some(id) = self.queue.customer(customer) {
            let expiry = stored.expiry.unwrap_or(u64::MAX);
            let member = Member { weight: stored.weight, expiry, seq: stored.key.seq };
            self.of(id).leave_unseen(stored.key, member);
        }
    }

    /// Removes a stray, which its open window counts among the members in the store alone.
    pub(super) fn leave_as_stray(&mut self, item: &Item) {
        if let Some(id) = item.customer().filter(|_| item.is(ItemFlag::Stray)) {
            self.of(id).leave_unseen(item.key(), member_of(item));
        }
    }
}

impl CustomerItems<'_, '_> {
    fn customer(&mut self) -> CustomerMut<'_> {
        self.at.customer(self.id)
    }

    /// Closes the window first if an item of this weight would take it over its bytes.
    pub(super) fn close_overflowing(&mut self, weight: u32, now: Now) {
        let (next, span) = (self.at.shared.journal.next_number(), self.at.queue.thresholds().span);
        if let Some(cause) = self.customer().would_overflow(weight, next, span) {
            self.close_window(cause, now);
        }
    }

    /// Counts a new item into the window and opens one if there is none. Returns the key under which its
    /// members are stored. `inherited`: see [`Admission`].
    pub(super) fn join_window(&mut self, member: Member, inherited: Option<u64>, now: Now) -> Key {
        let settings = Arc::clone(self.at.queue.settings());
        let mut customer = self.customer();
        if !customer.has_window() {
            let length = match inherited {
                // Bounded, in case the clock has gone back between the two.
                Some(end) => end.saturating_sub(now.wall).min(settings.window),
                None => window::length(&settings, now),
            };
            let plan = Plan { length, end: now.wall + length, long: length > HORIZON_MS, former: false };
            let shared = mutated(Mutant::WindowsShareANumber);
            let number = if shared { (member.seq & !7).max(1) } else { member.seq };
            customer.open(plan, (number, 0), now);
        }
        customer.join(member, now)
    }

    /// Lets an item that has come from the store rejoin its window, which had not ended. The window may have
    /// to be opened anew, with at most its old time left and at most `window`. Returns false if another
    /// window is open.
    pub(super) fn rejoin_window(&mut self, id: ItemId, now: Now) -> bool {
        let longest = self.at.queue.settings().window;
        let item = &self.at.shared.items[id];
        let (member, key) = (member_of(item), item.key());
        let born = self.at.shared.journal.next_number();
        let mut customer = self.customer();
        if !customer.has_window() {
            let length = key.due.saturating_sub(now.wall).min(longest);
            let plan = Plan { length, end: key.due, long: false, former: true };
            customer.open(plan, (key.window, born), now);
        }
        if !customer.holds(key) && !mutated(Mutant::RejoinsAnother) {
            return false;
        }
        customer.rejoin(member, now);
        true
    }

    /// Adds a member of the open window that stays in memory.
    pub(super) fn add_member(&mut self, id: ItemId, now: Now) {
        let SharedItems { items, customers, schedule, .. } = &mut *self.at.shared;
        let key = items[id].key();
        let scheduled = key.due > now.wall;
        if scheduled {
            schedule.insert(items::place_of(id), key);
        }
        let Some(window) = customers[self.id].window.as_mut() else {
            debug_assert!(false, "a member has an open window");
            return;
        };
        let pos = window.push_member(id);
        self.at.shared.set_stage(id, Stage::Windowed { pos, scheduled });
    }

    /// Removes a member from the window's list and closes the gap.
    pub(super) fn forget_member(&mut self, pos: u32) {
        let Some(window) = self.at.shared.customers[self.id].window.as_mut() else {
            debug_assert!(false, "a member has an open window");
            return;
        };
        if let Some(moved) = window.remove_member(pos) {
            if let Stage::Windowed { scheduled, .. } = self.at.shared.items[moved].stage() {
                self.at.shared.set_stage(moved, Stage::Windowed { pos, scheduled });
            }
        }
    }

    /// Counts out a member that ended while the window was open.
    pub(super) fn leave_window(&mut self, member: Member, was_far: bool) {
        let SharedItems { customers, journal, .. } = &mut *self.at.shared;
        customers.at(self.id, self.at.queue.active_mut()).leave(member, was_far, journal.ops());
    }

    /// Counts out the item in the store with this key, if it is a member of the window.
    fn leave_unseen(&mut self, key: Key, member: Member) {
        // The customer may have gone with its last item.
        if self.at.shared.customers.window(self.id).is_some_and(|window| window.holds(key)) {
            self.leave_window(member, true);
            self.customer().release();
        }
    }

    /// Why its window is over, if it is and has not been closed: its members may come before the items that
    /// are due.
    pub(super) fn over(&self, now: Now) -> Option<ClosedBy> {
        if self.at.shared.behind == Behind::Nothing {
            return None;
        }
        let window = self.at.shared.customers.window(self.id)?;
        let (at, cause) = window.deadline(self.at.queue.settings().quiet, now);
        (at <= now.mono).then_some(cause)
    }

    /// Closes the window: its members become due and stay so.
    pub(crate) fn close_window(&mut self, cause: ClosedBy, now: Now) {
        self.at.shared.customers.pin(Some(self.id));
        let SharedItems { customers, journal, counters, .. } = &mut *self.at.shared;
        let ended = customers.at(self.id, self.at.queue.active_mut()).end(journal.ops());
        if let Some(window) = ended {
            counters.windows_closed[cause as usize] += 1;
            self.release_members(window, cause, now);
        }
        self.customer().unpin();
    }

    fn release_members(&mut self, mut window: Window, cause: ClosedBy, now: Now) {
        let QueueItems { queue, shared } = &mut *self.at;
        let due = window.due_at_close(cause, now);
        let early = due < window.end() && shared.journal.is_durable();
        let mut members = window.take_members();
        members.sort_unstable_by_key(|member| shared.items[*member].key().seq);
        let closed = ClosingRow {
            application: Arc::clone(queue.name()),
            end: window.end(),
            window: window.place().window,
            due,
            cause,
        };
        if early && window.may_have_far() {
            queue.due_sooner(window.end(), u64::from(window.far()));
            self.at.close_far(&closed);
        }
        if early && (window.may_have_far() || !members.is_empty()) {
            self.at.shared.close_in_store(closed);
        }
        let others = self.others(&window, early && window.may_have_far());
        self.at.shared.work += (members.len() + others.len()) as u64;
        let any_other = !others.is_empty();
        for member in others.into_iter().chain(members) {
            let SharedItems { items, schedule, .. } = &mut *self.at.shared;
            let item = &mut items[member];
            let (planned, stage) = (item.place(), item.stage());
            if matches!(stage, Stage::Scheduled | Stage::Windowed { scheduled: true, .. }) {
                schedule.remove(items::place_of(member), planned);
            }
            item.close(due, cause);
            self.at.queue.note_closed(member, planned, item.place(), item.is_stored());
            if matches!(stage, Stage::Scheduled | Stage::Windowed { .. }) {
                self.at.make_ready(member, now);
            }
        }
        if any_other {
            let SharedItems { items, customers, .. } = &mut *self.at.shared;
            customers[self.id].ready.put_in_order(|item| items.get(item).map(Item::place));
        }
    }

    /// Items in memory whose keys are among those of an ended window and that are not in its list: strays,
    /// and items that came into memory while another window was open.
    fn others(&self, window: &Window, may_be: bool) -> Vec<ItemId> {
        let SharedItems { items, customers, .. } = &*self.at.shared;
        let is_other = |id: &ItemId| {
            let item = &items[*id];
            window.holds(item.key())
                && !item.is(ItemFlag::OwnTime)
                && !matches!(item.stage(), Stage::Windowed { .. })
        };
        let all = may_be.then(|| customers.items(self.id, items)).into_iter().flatten();
        all.filter(is_other).collect()
    }

    /// Takes the due items of a batch, below the bound and before the first that was passed over. `None`: it
    /// has no due items any more.
    pub(super) fn take_batch(&mut self, bound: Key, most: usize, now: Now) -> Option<Formed> {
        self.at.shared.customers.get(self.id)?;
        let passed = self.passed_from();
        let name = (passed < LAST).then(|| Arc::clone(&self.at.shared.customers[self.id].name));
        let mut formed = self.form(bound.min(passed), most, now);
        let waits = matches!(&formed, Some(Formed::Batch(taken)) if taken.is_empty()) && passed < bound;
        if waits {
            self.turn_to(CustomerTurn::Behind);
            formed = Some(Formed::Aside);
        }
        if let Some(name) = name {
            let passed = self.at.queue.passed_mut();
            match formed {
                None => passed.set_room(&name, Room::Some),
                Some(Formed::Aside) if waits => passed.set_room(&name, Room::Some),
                // Later items may find room now.
                Some(Formed::Batch(_)) if passed.room(&name) == Room::None => {
                    passed.set_room(&name, Room::Unknown);
                }
                Some(Formed::Batch(_) | Formed::TooLarge(_) | Formed::Aside) => {}
            }
        }
        formed
    }

    /// Forms a batch. A window that is cut by the bound waits for its rest, unless the batch is full or the
    /// window is to leave in parts. A batch for which a rate has no room is put back. `None`: it has no due
    /// items any more.
    fn form(&mut self, bound: Key, most: usize, now: Now) -> Option<Formed> {
        let filled = bound < LAST && bound == self.passed_from() && self.lacks_room();
        let QueueItems { queue, shared } = &mut *self.at;
        let SharedItems { items, customers, counters, .. } = &mut **shared;
        let is_ready = |id: &ItemId| items.get(*id).is_some_and(|item| item.stage() == Stage::Ready);
        let in_parts = filled || queue.active().is_some_and(|active| active.ready().is_in_parts());
        // After the clock was set back the rest waits for it, while the members here were due already.
        let waits = !in_parts && bound.due <= now.wall && !mutated(Mutant::WindowInParts);
        let settings = queue.settings();
        let (max_items, max_bytes) = settings.most_of_batch();
        let owner = &mut customers[self.id];
        let overhead = owner.overhead;
        let most = max_items.min(most).max(1);
        let mut bytes = overhead.batch;
        let (mut taken, mut is_full) = (Vec::new(), false);
        let (mut next, mut last_alone) = (None, false);
        while let Some(id) = owner.ready.first() {
            if !is_ready(&id) {
                owner.ready.pop_first();
                continue;
            }
            let (item, place) = (&items[id], items[id].place());
            if place >= bound {
                next = Some(place);
                break;
            }
            bytes += u64::from(item.weight()) + overhead.item;
            let alone = item.tries().retry > 0 && !mutated(Mutant::RetryInCompany);
            let in_company = !taken.is_empty() && (bytes > max_bytes || alone || last_alone);
            is_full = taken.len() >= most || in_company;
            last_alone = alone;
            if is_full && !mutated(Mutant::BatchUnbounded) {
                break;
            }
            taken.push(id);
            owner.ready.pop_first();
        }
        let mut is_cut = false;
        if taken.len() < most && !is_full && (waits || in_parts) {
            let whole = whole(taken.iter().map(|id| items[*id].place()), bound, next);
            if waits {
                owner.ready.put_back(taken.split_off(whole), |id| items[id].place());
            } else {
                is_cut = whole < taken.len();
            }
        }
        let size = taken.len() as u64;
        let customer_bound = settings.customer_bound();
        if size > 0 && customers.waits_until(self.id, customer_bound, size, now).is_some() {
            customers[self.id].ready.put_back(taken, |id| items[id].place());
            self.turn_to(CustomerTurn::Paced);
            return Some(Formed::Aside);
        }
        let owner = &mut customers[self.id];
        if queue.active().is_some_and(|active| active.pace().room(now.mono) < size) {
            owner.ready.put_back(taken, |id| items[id].place());
            return Some(Formed::TooLarge(size));
        }
        counters.windows_in_parts += u64::from(is_cut);
        if owner.ready.is_empty() {
            owner.turn = CustomerTurn::None;
            if taken.is_empty() {
                self.customer().release();
                return None;
            }
        } else if !taken.is_empty() {
            self.at.queue.ready_mut().push(Entry::Customer(self.id));
        }
        Some(Formed::Batch(taken))
    }
}

/// What a window counts of this item.
pub(super) fn member_of(item: &Item) -> Member {
    Member { weight: item.weight(), expiry: item.expiry(), seq: item.key().seq }
}

/// Result of forming a batch of one customer.
pub(super) enum Formed {
    /// Items that leave together. Empty: it waits for items that have still to be loaded.
    Batch(Vec<ItemId>),
    /// The rate of the queue has no room now for this many items.
    TooLarge(u64),
    /// No items for now: the customer is set aside.
    Aside,
}

/// How many of these places, due and below the bound, leave no rest of their windows behind. The rest of a
/// window is beyond the bound; or an item of the same millisecond is, `next`, behind which others of the
/// window may follow, as the order in the store is not that of arrival.
fn whole(mut places: impl ExactSizeIterator<Item = Key>, bound: Key, next: Option<Key>) -> usize {
    let all = places.len();
    let is_cut = |place: Key| {
        let rest = (place.due, place.window) == (bound.due, bound.window);
        rest || next.is_some_and(|next| next.due == place.due)
    };
    places.position(is_cut).unwrap_or(all)
}
