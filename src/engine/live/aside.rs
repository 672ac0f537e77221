//! Customers that are set aside, as they are held back, wait for their rate, or wait for items that were
//! passed over. Also how many due items of one customer memory holds.

use super::*;
use crate::queue::{Room, LAST};
use alloc::vec::Vec;
use tidegate_types::event::HeldRow;

impl LiveItems {
    /// Moves out of memory the due items of customers that are held back, and of other customers those beyond
    /// their fill. Returns whether more is left to do.
    pub(super) fn evict_leaving(&mut self, left: &mut usize, now: Now) -> bool {
        let mut stays = Vec::new();
        while *left > 0 {
            let Some((queue, customer)) = self.shared.leaving.pop_front() else { break };
            if self.customers().get(customer).is_none() {
                // Its last items have ended since.
                continue;
            }
            // The first items of a queue that trims are to be given up, so they stay in memory.
            if self.queues[queue].is_trimming() {
                stays.push((queue, customer));
            } else if self.at(queue).of(customer).evict_excess(left, now) {
                self.shared.leaving.push_front((queue, customer));
            }
        }
        let more = *left == 0 && !self.shared.leaving.is_empty();
        self.shared.leaving.extend(stays);
        more
    }

    /// Holds the customer of this name back until `until`, UTC ms. Returns until when it was held back
    /// before, if it was.
    pub(crate) fn hold(&mut self, queue: QueueId, customer: &str, until: u64) -> Option<u64> {
        let customer: Arc<str> = customer.into();
        let before = self.queues.at(queue).hold(&customer, until);
        let id = self.queues[queue].customer(&customer);
        id.into_iter().for_each(|id| self.at(queue).of(id).call());
        self.write_held(queue, customer, Some(until));
        before
    }

    /// Ends the hold of a customer. Returns whether it was held back.
    pub(crate) fn let_go(&mut self, queue: QueueId, customer: &str) -> bool {
        let id = self.queues[queue].customer(customer);
        if !self.queues.at(queue).let_go(customer) {
            return false;
        }
        id.into_iter().for_each(|id| self.at(queue).of(id).call());
        self.write_held(queue, customer.into(), None);
        true
    }

    /// Whether the item's customer is held back.
    pub(crate) fn is_held(&self, id: ItemId) -> bool {
        let item = &self.items()[id];
        let passed = self.queues[item.queue()].passed();
        let name = item.customer().and_then(|customer| self.customers().get(customer)).map(|of| &of.name);
        passed.held() > 0 && name.is_some_and(|name| passed.held_until(name).is_some())
    }

    /// Puts all customers that are set aside back into the ready queue, as their conditions have changed.
    pub(crate) fn call_all(&mut self, queue: QueueId) {
        let aside = self.queues[queue].active().map(|active| active.ready().aside().clone());
        aside.into_iter().flatten().for_each(|id| self.at(queue).of(id).call());
    }

    fn write_held(&mut self, queue: QueueId, customer: Arc<str>, until: Option<u64>) {
        let application = Arc::clone(self.queues[queue].name());
        let forgotten = until.is_some() && mutated(Mutant::HeldForgotten);
        if self.shared.journal.is_durable() && !forgotten {
            self.shared.journal.push(Op::PutHeld(HeldRow { application, customer, until }));
        }
        self.shared.journal.hurry();
    }
}

#[cfg(test)]
impl LiveItems {
    /// Each customer that waits for items that were passed over gets them: they are wanted, or are being
    /// read.
    pub(super) fn check_behind(&self) {
        for queue in self.queues.ids() {
            let (passed, active) = (self.queues[queue].passed(), self.queues[queue].active());
            let aside = active.into_iter().flat_map(|active| active.ready().aside());
            for customer in
                aside.map(|id| &self.customers()[*id]).filter(|of| of.turn == CustomerTurn::Behind)
            {
                let is_read = passed.room(&customer.name) == Room::Some || passed.reading().is_some();
                assert!(is_read, "{} waits for what nobody reads: {passed:?}", customer.name);
            }
        }
    }
}

/// Puts customers whose rate has room by now back into the ready queue, as many as a call has time for.
pub(super) fn call_paced(live: &mut LiveItems, now: Now) {
    for _ in 0..live.thresholds().due {
        let Some(id) = live.shared.customers.take_paced(now) else { break };
        let queue = live.customers()[id].queue;
        match live.customers()[id].turn {
            CustomerTurn::Paced => live.at(queue).of(id).call(),
            CustomerTurn::None
            | CustomerTurn::InLine
            | CustomerTurn::Stalled
            | CustomerTurn::Leaving
            | CustomerTurn::Behind => {}
        }
    }
}

/// Passes over a stored item that has been read and is due, where its customer is held back, memory has its
/// fill of that customer, or earlier items of it were passed over. Returns whether it did. `back`: the read
/// is one of items that were passed over.
pub(super) fn passes_over(
    live: &mut LiveItems,
    queue: QueueId,
    stored: &Stored,
    back: bool,
    now: Now,
) -> bool {
    let (known, place) = (&live.queues[queue], stored.place());
    let name = stored.customer.as_deref().filter(|_| known.may_pass_over(place, back, now.wall));
    let Some(name) = name.filter(|_| stored.dead.is_none()) else { return false };
    let passed = known.passed();
    let is_held = passed.held_until(name).is_some() && !mutated(Mutant::HeldIsPublished);
    let is_behind = if back { passed.is_behind(name, place) } else { place >= passed.first(name) };
    let id = known.customer(name).filter(|_| !is_held && !is_behind);
    let filled = id.is_some_and(|id| live.at(queue).of(id).is_filled_before(place));
    if is_held || is_behind || filled {
        live.queues.at(queue).pass_over(name, place);
    }
    // A customer waits for its first item that was passed over, so that one is read first.
    if filled && back {
        live.queues.at(queue).passed_mut().set_room(name, Room::None);
    }
    is_held || is_behind || filled
}

/// Counts due items of a customer, or of no customer, in or out.
pub(super) fn count_due(at: &mut QueueItems<'_>, customer: Option<CustomerId>, change: i32) {
    let aside = customer.is_some_and(|id| {
        let customer = &mut at.shared.customers[id];
        customer.due = customer.due.saturating_add_signed(change);
        customer.turn.is_aside()
    });
    at.queue.count_ready(change.into(), aside);
}

/// How many due items memory holds of a customer of this application once items of it were passed over.
/// Further ones are read back when half of these have left.
pub(crate) fn fill_of(live: &LiveItems, queue: QueueId) -> u64 {
    fill(live.queues.settings_of(queue), live.thresholds(), &live.shared)
}

fn fill(settings: &AppSettings, turn: &Thresholds, shared: &SharedItems) -> u64 {
    let share = shared.budget.rows as u64 / 4;
    let fill = match settings.customer_bound() {
        Some(_) => batch_of(settings, turn).min(share / shared.customers.waiting().max(1)),
        None => share.min(turn.ready),
    };
    fill.max(1)
}

/// A full batch of this application, but no fewer than a few items.
fn batch_of(settings: &AppSettings, turn: &Thresholds) -> u64 {
    turn.few.max(settings.most_of_batch().0) as u64
}

impl CustomerItems<'_, '_> {
    fn known(&self) -> &Customer {
        &self.at.shared.customers[self.id]
    }

    /// Changes where the customer waits, with the counts that depend on it.
    pub(super) fn turn_to(&mut self, turn: CustomerTurn) {
        let customer = &mut self.at.shared.customers[self.id];
        let before = core::mem::replace(&mut customer.turn, turn);
        if before.is_aside() != turn.is_aside() {
            self.at.queue.ready_mut().set_aside(self.id, i64::from(customer.due), turn.is_aside());
        }
        self.at.shared.customers.count_waiting(before, turn);
        if turn == CustomerTurn::Paced {
            self.leave_beyond_fill();
        }
    }

    /// Puts it back into the ready queue if it is set aside.
    pub(super) fn call(&mut self) {
        if self.at.shared.customers.get(self.id).is_some_and(|customer| customer.turn.is_aside()) {
            self.turn_to(CustomerTurn::InLine);
            self.at.queue.ready_mut().push(Entry::Customer(self.id));
            self.at.queue.run();
        }
    }

    /// Puts it back into the ready queue if it waits for its rate: its next batch has changed.
    pub(super) fn call_paced(&mut self) {
        if self.at.shared.customers.get(self.id).is_some_and(|known| known.turn == CustomerTurn::Paced) {
            self.call();
        }
    }

    /// Puts it back into the ready queue if it waits for items that were passed over: more of them have been
    /// read.
    pub(crate) fn call_behind(&mut self) {
        if self.at.shared.customers.get(self.id).is_some_and(|known| known.turn == CustomerTurn::Behind) {
            self.call();
        }
    }

    // ---- what leaves memory -------------------------------------------------------------------------------

    /// It is held back: its due items leave memory, where there is a store.
    pub(super) fn leave(&mut self) {
        self.turn_to(CustomerTurn::Leaving);
        self.list_leaving();
    }

    /// Its due items beyond its fill are to leave memory.
    pub(super) fn leave_beyond_fill(&mut self) {
        if self.fill().is_some_and(|fill| u64::from(self.known().due) > fill) {
            self.list_leaving();
        }
    }

    fn list_leaving(&mut self) {
        let SharedItems { customers, leaving, journal, .. } = &mut *self.at.shared;
        let listed = core::mem::replace(&mut customers[self.id].is_leaving, true);
        if !listed && journal.is_durable() {
            leaving.push_back((self.at.queue.id(), self.id));
        }
    }

    /// Moves its due items beyond its fill out of memory, the last first; all of them where it is held back.
    /// At most `left`, which is counted down. Returns whether there are more.
    fn evict_excess(&mut self, left: &mut usize, now: Now) -> bool {
        let id = self.id;
        let is_held = self.known().turn == CustomerTurn::Leaving;
        let fill = if is_held { Some(0) } else { self.fill() };
        let excess = fill.map_or(0, |fill| (self.known().due as usize).saturating_sub(fill as usize));
        let SharedItems { items, customers, .. } = &mut *self.at.shared;
        customers.pin(Some(id));
        let name = Arc::clone(&customers[id].name);
        let place_of =
            |item| items.get(item).filter(|item| item.stage() == Stage::Ready).map(|item| item.place());
        let last = customers[id].ready.pop_last(excess.min(*left), place_of);
        *left -= last.len();
        let more = last.len() < excess;
        for item in last {
            self.at.queue.pass_over(&name, self.at.shared.items[item].place());
            count_due(self.at, Some(id), -1);
            self.at.evict(item, now);
        }
        self.at.shared.customers[id].is_leaving = more;
        if is_held && self.known().ready.is_empty() {
            self.turn_to(CustomerTurn::None);
        }
        self.at.customer(id).unpin();
        more
    }

    // ---- what is passed over ------------------------------------------------------------------------------

    /// How many of its due items memory holds at most, where anything bounds them. As long as it does not
    /// wait, that is what may leave at once: a batch or its burst, whichever is larger.
    pub(super) fn fill(&self) -> Option<u64> {
        let QueueItems { queue, shared } = &*self.at;
        let (settings, turn) = (queue.settings(), queue.thresholds());
        let bound = settings.customer_bound();
        let fill = if self.known().turn == CustomerTurn::Paced || self.is_passed() {
            fill(settings, turn, shared)
        } else {
            batch_of(settings, turn).max(bound?.burst.into())
        };
        Some(fill).filter(|_| !mutated(Mutant::FillIgnored))
    }

    /// Whether memory has its fill of it, and an item at this place would come last.
    fn is_filled_before(&self, place: Key) -> bool {
        let due = u64::from(self.known().due);
        let place_of = |item| self.at.shared.items.get(item).map(Item::place);
        due > 0
            && self.fill().is_some_and(|fill| due >= fill)
            && self.known().ready.ends_before(place, place_of)
    }

    /// Whether more of its items that were passed over were read and found no room.
    pub(super) fn lacks_room(&self) -> bool {
        self.at.queue.passed().room(&self.known().name) == Room::None
    }

    /// Whether any of its items are passed over.
    fn is_passed(&self) -> bool {
        self.at.queue.passed().first(&self.known().name) < LAST
    }

    /// The first place of its items that were passed over: none at or behind it leaves before those have been
    /// read.
    pub(super) fn passed_from(&self) -> Key {
        if mutated(Mutant::PassedOvertaken) {
            return LAST;
        }
        self.at.queue.passed().first(&self.known().name)
    }

    /// Whether it is held back.
    pub(super) fn is_held(&self) -> bool {
        let passed = self.at.queue.passed();
        passed.held() > 0
            && !mutated(Mutant::HeldIsPublished)
            && self.at.shared.customers.get(self.id).is_some_and(|of| passed.held_until(&of.name).is_some())
    }

    /// Its name, if an item of it that leaves memory counts as passed over: others of its due items are, or
    /// it is held back.
    pub(super) fn passed(&self, place: Key, now: Now) -> Option<Arc<str>> {
        if self.at.queue.passed().is_empty() || place.due > now.wall {
            return None;
        }
        (self.is_held() || self.is_passed()).then(|| Arc::clone(&self.known().name))
    }

    /// The same for a new item, which does not come into memory where earlier ones are not there or memory
    /// has its fill.
    pub(super) fn passes(&self, place: Key) -> Option<Arc<str>> {
        let passes = self.is_held() || place >= self.passed_from() || self.is_filled_before(place);
        passes.then(|| Arc::clone(&self.known().name))
    }

    /// Asks for more of its items that were passed over, once memory has less than half of its fill.
    pub(super) fn want_passed(&mut self) {
        if self.at.queue.passed().is_empty() || !self.is_passed() {
            return;
        }
        if self.fill().is_none_or(|fill| u64::from(self.known().due) * 2 < fill) {
            let name = Arc::clone(&self.known().name);
            self.at.queue.passed_mut().set_room(&name, Room::Some);
        }
    }
}
