//! The customers of each application that have items in memory or an open window; and their windows, which
//! the first item opens and which close by time, count, bytes, quiet, expiry or a flush.
//!
//! A window runs on the monotonic clock. Its members are stored under the end that was planned when it
//! opened, and stay there; if it closes sooner, the store records when they are due.
//!
//! This module decides when windows close and what is written of them. [`super::live`] handles their members.

use super::debts::Debts;
use super::ids::{CustomerId, ItemId, QueueId};
use super::items::Items;
use super::mutant::{mutated, Mutant};
use super::pace::{Pace, Waited};
use super::queue::{ActiveQueue, Entry, Queues};
use super::ready::ReadyItems;
use super::schedule::{Schedule, Taken};
use super::slab::{Handle, Slab};
use super::window::{Member, Plan, Window};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};
use tidegate_types::event::{Op, WindowRow};
use tidegate_types::rate::Bound;
use tidegate_types::size::{self, Overhead};
use tidegate_types::Thresholds;
use tidegate_types::{ClosedBy, Key, Now};

/// The list that a customer with due items is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CustomerTurn {
    /// On none: it has no due items.
    None,
    /// In its queue's ready queue.
    InLine,
    /// Stalled: items older than its first due one must still be loaded.
    Stalled,
    /// Held back: its due items are evicted from memory.
    Leaving,
    /// It waits until its rate allows the next batch.
    Paced,
    /// It waits for its passed-over items to be loaded.
    Behind,
}

impl CustomerTurn {
    /// Whether it is on a list other than the ready queue and the stalled ones.
    pub(crate) fn is_aside(self) -> bool {
        match self {
            CustomerTurn::None | CustomerTurn::InLine | CustomerTurn::Stalled => false,
            CustomerTurn::Leaving | CustomerTurn::Paced | CustomerTurn::Behind => true,
        }
    }
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Customer {
    pub(crate) queue: QueueId,
    pub(crate) name: Arc<str>,
    pub(crate) overhead: Overhead,
    pub(crate) window: Option<Window>,
    pub(crate) ready: ReadyItems,
    pub(crate) turn: CustomerTurn,
    /// Number of items that are due and in no batch.
    pub(crate) due: u32,
    /// It is in the list of customers with items to be evicted.
    pub(crate) is_leaving: bool,
    /// Its pace, if its rate is bounded and something has left.
    pace: Option<Box<Pace>>,
    /// When a batch that waits for its rate is tried again, monotonic ms.
    tried_at: u64,
    /// Number of items in memory, and the head of the list of them.
    rows: u32,
    first: Option<ItemId>,
    /// Number of operations under way that need the customer to stay.
    pins: u32,
}

impl Customer {
    /// Until when its rate holds back its due items, monotonic ms.
    pub(crate) fn paced_until(&self) -> Option<u64> {
        self.pace.as_ref()?.waits_until().filter(|_| self.turn == CustomerTurn::Paced)
    }
}

/// Customers of all queues.
#[derive(Debug)]
pub(crate) struct Customers {
    table: Slab<CustomerId, Customer>,
    /// Checks of windows, by the place of their customer; monotonic clock.
    timers: Schedule,
    /// Customers whose next batch waits for their rate, with the monotonic moment at which it may leave, ms.
    paced: BTreeSet<(u64, CustomerId)>,
    /// What customers without a row owe.
    debts: Debts,
    /// Number of customers that wait for their rate, or for passed-over items.
    waiting: u64,
    open_windows: u64,
    /// Customers with a window whose row is out of date.
    dirty: Vec<CustomerId>,
}

impl Customers {
    /// No customers. `rows`: number of items that fit in memory.
    pub(crate) fn new(rows: usize, now: Now) -> Self {
        Customers {
            table: Slab::new(),
            timers: Schedule::new(now.mono),
            paced: BTreeSet::new(),
            debts: Debts::new(rows),
            waiting: 0,
            open_windows: 0,
            dirty: Vec::new(),
        }
    }

    /// The customer of this name; adds it if it is unknown.
    pub(crate) fn id(&mut self, active: &mut ActiveQueue, name: &str) -> CustomerId {
        if let Some(id) = active.customer(name) {
            return id;
        }
        let name: Arc<str> = name.into();
        let debt = self.debts.take(active.name(), &name);
        let id = self.table.insert(Customer {
            queue: active.id(),
            overhead: size::overhead(active.settings().format, active.name(), Some(&name)),
            name: Arc::clone(&name),
            window: None,
            ready: ReadyItems::default(),
            turn: CustomerTurn::None,
            due: 0,
            is_leaving: false,
            pace: debt.map(|debt| Box::new(Pace::owing(debt))),
            tried_at: 0,
            rows: 0,
            first: None,
            pins: 0,
        });
        active.add_customer(name, id);
        id
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Number of customers that owe and have no row.
    #[cfg(test)]
    pub(crate) fn debts(&self) -> usize {
        self.debts.len()
    }

    pub(crate) fn get(&self, id: CustomerId) -> Option<&Customer> {
        self.table.get(id)
    }

    /// The open window of a customer.
    pub(crate) fn window(&self, id: CustomerId) -> Option<&Window> {
        self.table.get(id)?.window.as_ref()
    }

    /// The key of an item with an own time. If it is due when its customer's window ends, its key lies among
    /// the members of that window, since these leave in order of arrival. `span`: maximum distance of the
    /// members' numbers.
    pub(crate) fn own_key(&self, customer: Option<CustomerId>, due: u64, seq: u64, span: u64) -> Key {
        let window = customer.and_then(|id| self.window(id));
        let near = |place: &Key| place.due == due && seq.saturating_sub(place.window) <= span;
        window.map(Window::place).filter(near).map_or(Key::own(due, seq), |place| Key { seq, ..place })
    }

    /// Keeps a customer during an operation that may remove its last item.
    pub(crate) fn pin(&mut self, customer: Option<CustomerId>) {
        customer.into_iter().for_each(|id| self.table[id].pins += 1);
    }

    /// Adds an item that has come into memory.
    pub(crate) fn add_row(&mut self, id: CustomerId, item: ItemId, items: &mut Items) {
        let customer = &mut self.table[id];
        items.link(item, customer.first.replace(item));
        customer.rows += 1;
    }

    /// Removes items that are about to leave memory from their customers' lists.
    pub(crate) fn unlink(&mut self, leaving: &[ItemId], items: &mut Items) {
        for item in leaving {
            let Some(id) = items[*item].customer() else { continue };
            if let Some(first) = items.unlink(*item) {
                self.table[id].first = first;
            }
        }
    }

    /// Mutable access to a customer; `active` is the part of its queue.
    pub(crate) fn at<'c>(&'c mut self, id: CustomerId, active: &'c mut ActiveQueue) -> CustomerMut<'c> {
        debug_assert_eq!(self.table[id].queue, active.id(), "a customer is of one queue");
        CustomerMut { id, customers: self, active }
    }

    /// Items of the customer in memory, the newest first.
    pub(crate) fn items<'a>(&self, id: CustomerId, items: &'a Items) -> impl Iterator<Item = ItemId> + 'a {
        core::iter::successors(self.table[id].first, |item| items.sibling(*item))
    }

    /// Recomputes overheads for a changed format, and applies a shorter quiet time to open windows. The cost
    /// is proportional to the number of customers. `rows`: as in [`Customers::new`].
    pub(crate) fn configure(&mut self, queues: &Queues, rows: usize, now: Now) {
        self.debts.configure(rows);
        for id in self.table.handles().collect::<Vec<_>>() {
            let customer = &mut self.table[id];
            let Some(active) = queues[customer.queue].active() else {
                debug_assert!(false, "a queue with customers is active");
                continue;
            };
            customer.overhead = size::overhead(active.settings().format, active.name(), Some(&customer.name));
            let quiet = active.settings().quiet;
            self.plan_check(id, quiet, now);
        }
    }

    // ---- rates --------------------------------------------------------------------------------------------

    /// Number of customers that wait for their rate, or for passed-over items.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Adjusts that number after a change of a customer's list.
    pub(crate) fn count_waiting(&mut self, before: CustomerTurn, now: CustomerTurn) {
        let waits = |turn| u64::from(matches!(turn, CustomerTurn::Paced | CustomerTurn::Behind));
        self.waiting = self.waiting + waits(now) - waits(before);
    }

    /// Takes the next customer whose rate has room by now for the batch that waits for it.
    pub(crate) fn take_paced(&mut self, now: Now) -> Option<CustomerId> {
        let (_, id) = self.paced.first().filter(|(at, _)| *at <= now.mono)?;
        let id = *id;
        self.try_at(id, None);
        if let Some(pace) = &mut self.table[id].pace {
            pace.wait(None);
        }
        Some(id)
    }

    /// Sets when its next batch, which waits for its rate, is tried again; `None`: none waits.
    fn try_at(&mut self, id: CustomerId, at: Option<u64>) {
        let customer = &mut self.table[id];
        self.paced.remove(&(customer.tried_at, id));
        if let Some(at) = at {
            customer.tried_at = at;
            self.paced.insert((at, id));
        }
    }

    /// The pace of a customer, if `bound` is set.
    fn pace(&mut self, id: CustomerId, bound: Option<Bound>, mono: u64) -> Option<&mut Pace> {
        if bound.is_none() {
            self.table[id].pace = None;
            self.try_at(id, None);
            return None;
        }
        let pace = self.table[id].pace.get_or_insert_with(|| Box::new(Pace::new(bound)));
        pace.set(bound, mono);
        Some(pace)
    }

    /// Until when a batch of this many items has to wait, monotonic ms; `None`: it may leave.
    pub(crate) fn waits_until(
        &mut self,
        id: CustomerId,
        bound: Option<Bound>,
        items: u64,
        now: Now,
    ) -> Option<u64> {
        let pace = self.pace(id, bound, now.mono)?;
        let until = Some(pace.ready_alone_at(items, now.mono)).filter(|at| *at > now.mono);
        pace.wait(until);
        self.try_at(id, until);
        until
    }

    /// A batch of this many items is formed. Returns for how long its rate held them back, if it did.
    pub(crate) fn form(
        &mut self,
        id: CustomerId,
        bound: Option<Bound>,
        items: u64,
        now: Now,
    ) -> Option<Waited> {
        self.pace(id, bound, now.mono)?.form(items, now.mono)
    }

    /// Drops some debts that are paid, once for each batch. Returns how many customers may leave sooner than
    /// their rates allow, since memory has no room for what they owe.
    pub(crate) fn look_at_debts(&mut self, mono: u64) -> u64 {
        self.debts.look(mono)
    }

    /// This many formed items leave now.
    pub(crate) fn leave(&mut self, id: Option<CustomerId>, items: u64, mono: u64) {
        let pace = id.and_then(|id| self.table.get_mut(id)?.pace.as_mut());
        pace.into_iter().for_each(|pace| pace.leave(items, mono));
    }

    /// This many formed items do not leave: waiting ones may leave sooner.
    pub(crate) fn refund(&mut self, id: Option<CustomerId>, items: u64) {
        let Some(id) = id.filter(|_| items > 0) else { return };
        let Some(pace) = self.table.get_mut(id).and_then(|customer| customer.pace.as_mut()) else { return };
        pace.refund(items);
        if self.table[id].turn == CustomerTurn::Paced {
            self.try_at(id, Some(0));
        }
    }

    // ---- windows ------------------------------------------------------------------------------------------

    /// Number of open windows.
    pub(crate) fn open_windows(&self) -> u64 {
        self.open_windows
    }

    /// When the next window may have to close, or a rate may allow a batch, monotonic ms.
    pub(crate) fn next_look(&self) -> Option<u64> {
        let paced = self.paced.first().map(|(at, _)| *at);
        self.timers.next().into_iter().chain(paced).min()
    }

    /// The customer whose window closes next.
    pub(crate) fn first_to_close(&self) -> Option<CustomerId> {
        self.table.at(self.timers.first()?)
    }

    /// Windows that must close now, in order of time, up to the limits of a turn; and whether these are all.
    pub(crate) fn take_due(
        &mut self,
        queues: &Queues,
        turn: Thresholds,
        now: Now,
    ) -> (Vec<(CustomerId, ClosedBy)>, bool) {
        let (mut ids, mut members, mut all) = (Vec::new(), 0, false);
        // Windows beyond the limits keep their timers: inserted again, they would come after this moment.
        while !all && ids.len() < turn.windows && members < turn.due {
            let table = &self.table;
            let taken = self.timers.take_due(now.mono, 1, |place| {
                let Some(id) = table.at(place) else {
                    debug_assert!(false, "a customer stays as long as it has a timer");
                    return;
                };
                members += table[id].window.as_ref().map_or(0, |window| window.members().len());
                ids.push(id);
            });
            all = taken == Taken::All;
        }
        let mut due = Vec::new();
        for id in ids {
            let quiet = queues.settings_of(self.table[id].queue).quiet;
            let Some(window) = self.table[id].window.as_mut() else {
                debug_assert!(false, "a timer ends with its window");
                continue;
            };
            let (at, cause) = window.deadline(quiet, now);
            let was = window.check_at(at.max(now.mono));
            self.timers.insert(id.place(), window.check());
            if at <= now.mono {
                due.push((was, id, cause));
            }
        }
        due.sort_unstable_by_key(|(check, ..)| *check);
        (due.into_iter().map(|(_, id, cause)| (id, cause)).collect(), all)
    }

    /// Adds the changed rows of long windows to `ops`.
    pub(crate) fn flush(&mut self, queues: &Queues, ops: &mut Vec<Op>) {
        for id in core::mem::take(&mut self.dirty) {
            // It may have gone since, with its window.
            let Some(Customer { queue, name, window, .. }) = self.table.get_mut(id) else { continue };
            let row = window.as_mut().and_then(|window| window.take_dirty_row(queues[*queue].name(), name));
            ops.extend(row.map(Op::PutWindow));
        }
    }

    /// After a step of the wall clock, expiries fall on other monotonic times. The cost is proportional to
    /// the number of windows of this queue.
    pub(crate) fn recheck(&mut self, active: &ActiveQueue, now: Now) {
        for id in active.windows() {
            self.plan_check(*id, active.settings().quiet, now);
        }
    }

    fn mark(&mut self, id: CustomerId) {
        if self.table[id].window.as_mut().is_some_and(Window::mark) {
            self.dirty.push(id);
        }
    }

    /// Moves the next check of a window forward if it must come sooner than planned. Later checks (the quiet
    /// time begins anew with each arrival) are computed when the old time comes, which costs nothing per
    /// item.
    fn plan_check(&mut self, id: CustomerId, quiet: u64, now: Now) {
        let Some(window) = self.table[id].window.as_mut() else { return };
        let at = window.deadline(quiet, now).0;
        if at < window.check().due {
            self.timers.remove(id.place(), window.check_at(at));
            self.timers.insert(id.place(), window.check());
        }
    }
}

/// Mutable access to a customer, together with its queue and the timers of all windows.
#[derive(Debug)]
pub(crate) struct CustomerMut<'c> {
    id: CustomerId,
    customers: &'c mut Customers,
    active: &'c mut ActiveQueue,
}

impl CustomerMut<'_> {
    fn this(&mut self) -> &mut Customer {
        &mut self.customers.table[self.id]
    }

    /// Reverts one [`Customers::pin`].
    pub(crate) fn unpin(&mut self) {
        self.this().pins -= 1;
        self.release();
    }

    /// Counts an item that has left memory.
    pub(crate) fn remove_row(&mut self) {
        self.this().rows -= 1;
        self.release();
    }

    /// Removes the customer if nothing needs it any more. What it owes its rate is kept.
    pub(crate) fn release(&mut self) {
        let customer = &self.customers.table[self.id];
        let unused = customer.rows == 0 && customer.pins == 0 && customer.window.is_none();
        if !unused || customer.turn != CustomerTurn::None {
            return;
        }
        self.active.forget_customer(&customer.name);
        self.customers.try_at(self.id, None);
        let Some(gone) = self.customers.table.remove(self.id) else { return };
        if let Some(debt) = gone.pace.and_then(|pace| pace.debt()) {
            self.customers.debts.note((Arc::clone(self.active.name()), gone.name), debt);
        }
    }

    /// Adds a due item. Returns the entry to add to the ready queue, if the customer is on no list.
    pub(crate) fn push_ready(&mut self, place: Key, item: ItemId) -> Option<Entry> {
        let id = self.id;
        let customer = self.this();
        customer.ready.push(place, item);
        let joins = customer.turn == CustomerTurn::None;
        joins.then(|| {
            customer.turn = CustomerTurn::InLine;
            Entry::Customer(id)
        })
    }

    // ---- its window ---------------------------------------------------------------------------------------

    pub(crate) fn has_window(&self) -> bool {
        self.customers.table[self.id].window.is_some()
    }

    /// Whether an item with this key in the store is a member of its window.
    pub(crate) fn holds(&self, key: Key) -> bool {
        self.customers.table[self.id].window.as_ref().is_some_and(|window| window.holds(key))
    }

    /// Opens its window; it must have none. `number`: arrival number of the first member; `born`: as for
    /// [`Window::new`].
    pub(crate) fn open(&mut self, plan: Plan, (number, born): (u64, u64), now: Now) {
        let customer = &mut self.customers.table[self.id];
        debug_assert!(customer.window.is_none(), "a customer has one window at a time");
        let window = customer.window.insert(Window::new(plan, number, born, now));
        self.customers.timers.insert(self.id.place(), window.check());
        self.customers.open_windows += 1;
        self.active.window_opened(self.id);
    }

    /// Opens a window as a former life left it. `born`: as in [`CustomerMut::open`].
    pub(crate) fn reopen(&mut self, row: &WindowRow, born: u64, now: Now) {
        let plan = Plan::of_former(row, self.active.settings().window, now);
        self.open(plan, (row.window, born), now);
        if let Some(window) = self.this().window.as_mut() {
            window.recount(row);
        }
        self.plan_check(now);
    }

    /// The limit that the window would exceed with a new member of this weight and arrival number; the window
    /// closes first then. `span`: maximum distance of its members' numbers.
    pub(crate) fn would_overflow(&self, weight: u32, seq: u64, span: u64) -> Option<ClosedBy> {
        let customer = &self.customers.table[self.id];
        let window = customer.window.as_ref()?;
        if window.would_overflow(weight, customer.overhead, self.active.settings().max_bytes) {
            return Some(ClosedBy::Bytes);
        }
        (seq.saturating_sub(window.place().window) > span).then_some(ClosedBy::Count)
    }

    /// Counts a new item into the open window. Returns the place of its members in the store.
    pub(crate) fn join(&mut self, member: Member, now: Now) -> Key {
        let customer = self.this();
        let Some(window) = customer.window.as_mut() else {
            debug_assert!(false, "an item joins an open window");
            return Key::own(now.wall, member.seq);
        };
        window.join(member, customer.overhead.item, now);
        let place = window.place();
        self.customers.mark(self.id);
        self.plan_check(now);
        place
    }

    /// A stored item of a former life was loaded: it is counted now, unless the window's row included it.
    pub(crate) fn rejoin(&mut self, member: Member, now: Now) {
        let customer = self.this();
        let Some(window) = customer.window.as_mut() else {
            debug_assert!(false, "an item rejoins an open window");
            return;
        };
        window.rejoin(member, customer.overhead.item);
        self.plan_check(now);
    }

    /// A member is in the store only. If its key is beyond `horizon`, a restart would not read it in time, so
    /// the window gets a row.
    pub(crate) fn add_far(&mut self, member: Member, horizon: u64) {
        let Some(window) = self.this().window.as_mut() else {
            debug_assert!(false, "a member has an open window");
            return;
        };
        if window.add_far(member, horizon) {
            self.customers.mark(self.id);
        }
    }

    /// A member ended while its window was open. The window ends with its last member.
    pub(crate) fn leave(&mut self, member: Member, was_far: bool, ops: &mut Vec<Op>) {
        let customer = self.this();
        let Some(window) = customer.window.as_mut() else {
            debug_assert!(false, "a member has an open window");
            return;
        };
        if window.leave(member, customer.overhead.item, was_far) {
            self.end(ops);
        } else if !mutated(Mutant::RowNotRenewed) {
            self.customers.mark(self.id);
        }
    }

    /// The limit that the window has reached with its newest member.
    pub(crate) fn is_full(&self) -> Option<ClosedBy> {
        let customer = &self.customers.table[self.id];
        customer.window.as_ref()?.is_full(self.active.settings(), customer.overhead)
    }

    /// Ends the window and returns it.
    pub(crate) fn end(&mut self, ops: &mut Vec<Op>) -> Option<Window> {
        let customer = &mut self.customers.table[self.id];
        let window = customer.window.take()?;
        self.customers.timers.remove(self.id.place(), window.check());
        self.customers.open_windows -= 1;
        self.active.window_ended(self.id);
        if window.is_long() && !mutated(Mutant::WindowRowStays) {
            let (application, customer) = (Arc::clone(self.active.name()), Arc::clone(&customer.name));
            ops.push(Op::DeleteWindow { application, customer });
        }
        Some(window)
    }

    fn plan_check(&mut self, now: Now) {
        self.customers.plan_check(self.id, self.active.settings().quiet, now);
    }
}

impl Index<CustomerId> for Customers {
    type Output = Customer;
    fn index(&self, id: CustomerId) -> &Customer {
        &self.table[id]
    }
}

impl IndexMut<CustomerId> for Customers {
    fn index_mut(&mut self, id: CustomerId) -> &mut Customer {
        &mut self.table[id]
    }
}
