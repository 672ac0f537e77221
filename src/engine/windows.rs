//! Windows: for each customer, opened by the first item, closed by time, count, bytes, quiet, expiry or a
//! flush.
//!
//! A window runs on the monotonic clock. Its members are stored under the end that was planned when it
//! opened, and stay there; where it closes sooner the store is told when they are due.
//!
//! Here is when windows close, and what is written of them. What happens to their members is the stock's
//! business.

use super::customers::{self, Customers};
use super::event::{Op, WindowRow};
use super::ids::{CustomerId, QueueId};
use super::mutant::{mutated, Mutant};
use super::queue::Queues;
use super::schedule::{Schedule, Taken};
use super::thresholds::Thresholds;
use super::types::{ClosedBy, Key, Now};
use super::window::{Member, Plan, Window};
use std::sync::Arc;

/// Windows of all applications.
#[derive(Debug)]
pub(super) struct Windows {
    timers: Schedule,
    open: u64,
    /// Windows whose row is out of date.
    dirty: Vec<CustomerId>,
}

impl Windows {
    pub(super) fn new(now: Now) -> Self {
        Windows { timers: Schedule::new(now.mono), open: 0, dirty: Vec::new() }
    }

    /// Number of open windows.
    pub(super) fn open_count(&self) -> u64 {
        self.open
    }

    /// When the next window may have to close, monotonic.
    pub(super) fn next(&self) -> Option<u64> {
        self.timers.next()
    }

    /// Opens the customer's window, which has none, for `length` ms, and with this planned end (wall clock).
    /// `long`: it is kept in a row of its own.
    pub(super) fn open(
        &mut self,
        customers: &mut Customers,
        queues: &mut Queues,
        id: CustomerId,
        plan: Plan,
        number: u64,
        now: Now,
    ) {
        let customer = &mut customers[id];
        debug_assert!(customer.window.is_none(), "a customer has one window at a time");
        let window = customer.window.insert(Window::new(plan, number, now));
        self.timers.insert(customers::place_of(id), window.check());
        self.open += 1;
        queues.live(customer.queue).window_opened(id);
    }

    /// A window as a former life left it.
    pub(super) fn reopen(
        &mut self,
        customers: &mut Customers,
        queues: &mut Queues,
        id: CustomerId,
        row: &WindowRow,
        now: Now,
    ) {
        let longest = queues.settings_of(customers[id].queue).window;
        let bound = if mutated(Mutant::ReopenedUnbounded) { u64::MAX } else { longest };
        let length = row.end.saturating_sub(now.wall).min(bound);
        let plan = Plan { length, end: row.end, long: true, former: true };
        self.open(customers, queues, id, plan, row.window, now);
        if let Some(window) = customers[id].window.as_mut() {
            window.recount(row);
        }
        self.plan_check(customers, queues, id, now);
    }

    /// What the window would be beyond with a new member of this weight and number: then it closes first.
    pub(super) fn would_overflow(
        customers: &Customers,
        queues: &Queues,
        id: CustomerId,
        (weight, seq): (u32, u64),
    ) -> Option<ClosedBy> {
        let customer = &customers[id];
        let window = customer.window.as_ref()?;
        let max_bytes = queues.settings_of(customer.queue).max_bytes;
        if window.would_overflow(weight, customer.overhead, max_bytes) {
            return Some(ClosedBy::Bytes);
        }
        (seq - window.place().window > queues.thresholds().span).then_some(ClosedBy::Count)
    }

    /// Counts a new item into the customer's open window; where its members lie in the store.
    pub(super) fn join(
        &mut self,
        customers: &mut Customers,
        queues: &Queues,
        id: CustomerId,
        member: Member,
        now: Now,
    ) -> Key {
        let item_overhead = customers[id].overhead.item;
        let Some(window) = customers[id].window.as_mut() else { return Key::own(now.wall, member.seq) };
        window.join(member, item_overhead, now);
        let place = window.place();
        self.mark(customers, id);
        self.plan_check(customers, queues, id, now);
        place
    }

    /// A stored item of a former life has come into memory: it is counted now, if its window did not know of
    /// it.
    pub(super) fn rejoin(
        &mut self,
        customers: &mut Customers,
        queues: &Queues,
        id: CustomerId,
        member: Member,
        now: Now,
    ) {
        let item_overhead = customers[id].overhead.item;
        let Some(window) = customers[id].window.as_mut() else { return };
        window.rejoin(member, item_overhead);
        self.plan_check(customers, queues, id, now);
    }

    /// A member is in the store alone. Seen from `now` its key may lie so far ahead that a restart would not
    /// look at it in time: then the window gets a row.
    pub(super) fn add_far(&mut self, customers: &mut Customers, id: CustomerId, horizon: u64) {
        let Some(window) = customers[id].window.as_mut() else { return };
        if window.add_far(horizon) {
            self.mark(customers, id);
        }
    }

    /// A member ended while its window was open. The last one takes the window along: then true.
    pub(super) fn leave(
        &mut self,
        customers: &mut Customers,
        queues: &mut Queues,
        id: CustomerId,
        weight: u32,
        was_far: bool,
        ops: &mut Vec<Op>,
    ) {
        let item_overhead = customers[id].overhead.item;
        let Some(window) = customers[id].window.as_mut() else { return };
        if window.leave(weight, item_overhead, was_far) {
            self.end(customers, queues, id, ops);
        } else if !mutated(Mutant::RowNotRenewed) {
            self.mark(customers, id);
        }
    }

    fn mark(&mut self, customers: &mut Customers, id: CustomerId) {
        if customers[id].window.as_mut().is_some_and(Window::mark) {
            self.dirty.push(id);
        }
    }

    /// Moves the next look at a window forward, when it must come sooner than planned. Later ones (the quiet
    /// time begins anew with each arrival) are found out when the old moment comes, which costs nothing per
    /// item.
    pub(super) fn plan_check(
        &mut self,
        customers: &mut Customers,
        queues: &Queues,
        id: CustomerId,
        now: Now,
    ) {
        let quiet = queues.settings_of(customers[id].queue).quiet;
        let Some(window) = customers[id].window.as_mut() else { return };
        let at = window.deadline(quiet, now).0;
        if at < window.check().due {
            let place = customers::place_of(id);
            self.timers.remove(place, window.check_at(at));
            self.timers.insert(place, window.check());
        }
    }

    /// What the window that a new item has just joined has reached.
    pub(super) fn is_full(customers: &Customers, queues: &Queues, id: CustomerId) -> Option<ClosedBy> {
        let customer = &customers[id];
        let settings = queues.settings_of(customer.queue);
        customer.window.as_ref()?.is_full(settings, customer.overhead)
    }

    /// Windows that must close now, in order of their moment, as many as a turn has time for; and whether
    /// these are all.
    pub(super) fn take_due(
        &mut self,
        customers: &mut Customers,
        queues: &Queues,
        turn: Thresholds,
        now: Now,
    ) -> (Vec<(CustomerId, ClosedBy)>, bool) {
        let (mut places, mut members, mut all) = (Vec::new(), 0, false);
        // What the turn has no time for keeps its timer: put back, it would stand behind this moment.
        while !all && places.len() < turn.windows && members < turn.due {
            let taken = self.timers.take_due(now.mono, 1, |place| {
                let window = customers.at(place).and_then(|id| customers[id].window.as_ref());
                members += window.map_or(0, |window| window.members().len());
                places.push(place);
            });
            all = taken == Taken::All;
        }
        let mut due = Vec::new();
        for place in places {
            let Some(id) = customers.at(place) else { continue };
            let quiet = queues.settings_of(customers[id].queue).quiet;
            let Some(window) = customers[id].window.as_mut() else { continue };
            let (at, cause) = window.deadline(quiet, now);
            let was = window.check_at(at.max(now.mono));
            self.timers.insert(customers::place_of(id), window.check());
            if at <= now.mono {
                due.push((was, id, cause));
            }
        }
        due.sort_unstable_by_key(|(check, ..)| *check);
        (due.into_iter().map(|(_, id, cause)| (id, cause)).collect(), all)
    }

    /// The customer whose window closes next.
    pub(super) fn first(&self, customers: &Customers) -> Option<CustomerId> {
        customers.at(self.timers.first()?)
    }

    /// The window is over; what it was.
    pub(super) fn end(
        &mut self,
        customers: &mut Customers,
        queues: &mut Queues,
        id: CustomerId,
        ops: &mut Vec<Op>,
    ) -> Option<Window> {
        let customer = &mut customers[id];
        let window = customer.window.take()?;
        self.timers.remove(customers::place_of(id), window.check());
        self.open -= 1;
        queues.live(customer.queue).window_ended(id);
        if window.is_long() && !mutated(Mutant::WindowRowStays) {
            ops.push(Op::DeleteWindow {
                application: Arc::clone(queues[customer.queue].name()),
                customer: Arc::clone(&customer.name),
            });
        }
        Some(window)
    }

    /// Rows of long windows that have changed.
    pub(super) fn flush(&mut self, customers: &mut Customers, queues: &Queues, ops: &mut Vec<Op>) {
        for id in std::mem::take(&mut self.dirty) {
            let Some(customer) = customers.get(id) else { continue };
            let (queue, name) = (customer.queue, Arc::clone(&customer.name));
            let row = customers[id]
                .window
                .as_mut()
                .and_then(|window| window.take_dirty_row(queues[queue].name(), &name));
            ops.extend(row.map(Op::PutWindow));
        }
    }

    /// After a step of the wall clock, expiries lie elsewhere on the monotonic one. The cost is that of all
    /// windows of these queues.
    pub(super) fn recheck(&mut self, customers: &mut Customers, queues: &Queues, ids: &[QueueId], now: Now) {
        for queue in ids {
            let open: Vec<CustomerId> = queues[*queue]
                .live()
                .map(|live| live.windows().iter().copied().collect())
                .unwrap_or_default();
            for id in open {
                self.plan_check(customers, queues, id, now);
            }
        }
    }
}
