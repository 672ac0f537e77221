//! The customers of each application, as long as anything of theirs is in memory or their window is open; and
//! their windows: opened by the first item, closed by time, count, bytes, quiet, expiry or a flush.
//!
//! A window runs on the monotonic clock. Its members are stored under the end that was planned when it
//! opened, and stay there; where it closes sooner the store is told when they are due.
//!
//! Here is when windows close, and what is written of them. What happens to their members is the stock's
//! business.

use super::event::{Op, WindowRow};
use super::ids::{CustomerId, ItemId, QueueId};
use super::items::{Item, Items};
use super::mutant::{mutated, Mutant};
use super::pace::{Bound, Pace, Waited};
use super::queue::{ActiveQueue, Entry, Queues};
use super::ready::ReadyItems;
use super::schedule::{Schedule, Taken};
use super::size::{self, Overhead};
use super::slab::{Handle, Slab};
use super::thresholds::Thresholds;
use super::types::{ClosedBy, Key, Now};
use super::window::{Member, Plan, Window};
use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

/// While something that was formed has not left, a customer without anything due is looked at so often, ms.
const PACE_LOOK_MS: u64 = 1_000;

/// Where a customer with due items stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CustomerTurn {
    /// Nowhere: none of theirs is due.
    None,
    /// In its queue's line.
    InLine,
    /// Among the stalled: older ones than its first have still to be loaded.
    Stalled,
    /// Among those that are held back: what is due of it leaves memory.
    Leaving,
    /// It waits until its rate lets its next batch go.
    Paced,
    /// It waits for what was passed over of it.
    Behind,
}

impl CustomerTurn {
    /// Its turn comes by something else than its queue's line.
    pub(super) fn is_aside(self) -> bool {
        match self {
            CustomerTurn::None | CustomerTurn::InLine | CustomerTurn::Stalled => false,
            CustomerTurn::Leaving | CustomerTurn::Paced | CustomerTurn::Behind => true,
        }
    }
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct Customer {
    pub(super) queue: QueueId,
    pub(super) name: Arc<str>,
    pub(super) overhead: Overhead,
    pub(super) window: Option<Window>,
    pub(super) ready: ReadyItems,
    pub(super) turn: CustomerTurn,
    /// Items that are due and in no batch.
    pub(super) due: u32,
    /// Some of them are to leave memory: it stands in the list for that.
    pub(super) is_leaving: bool,
    /// How fast they leave, where that is bounded and something has left lately.
    pace: Option<Box<Pace>>,
    /// When that is looked at, monotonic.
    looked_at: u64,
    /// Items in memory, and the first of the list that runs through them.
    rows: u32,
    first: Option<ItemId>,
    /// Work under way that needs it to stay.
    pins: u32,
}

impl Customer {
    /// Until when its rate holds back what is due of it, monotonic.
    pub(super) fn paced_until(&self) -> Option<u64> {
        self.pace.as_ref()?.waits_until().filter(|_| self.turn == CustomerTurn::Paced)
    }
}

/// Customers of all queues.
#[derive(Debug)]
pub(super) struct Customers {
    table: Slab<CustomerId, Customer>,
    /// When windows are looked at, by the place of their customer; monotonic clock.
    timers: Schedule,
    /// When those are looked at that have a pace, monotonic: what waits for it, or that it is at rest.
    paced: BTreeSet<(u64, CustomerId)>,
    /// How many wait for their rate, or for what was passed over of them.
    waiting: u64,
    open_windows: u64,
    /// Customers whose window's row is out of date.
    dirty: Vec<CustomerId>,
}

impl Customers {
    pub(super) fn new(now: Now) -> Self {
        Customers {
            table: Slab::new(),
            timers: Schedule::new(now.mono),
            paced: BTreeSet::new(),
            waiting: 0,
            open_windows: 0,
            dirty: Vec::new(),
        }
    }

    /// The customer of this name, made known if it is not.
    pub(super) fn id(&mut self, active: &mut ActiveQueue, name: &str) -> CustomerId {
        if let Some(id) = active.customer(name) {
            return id;
        }
        let name: Arc<str> = name.into();
        let id = self.table.insert(Customer {
            queue: active.id(),
            overhead: size::overhead(active.settings().format, active.name(), Some(&name)),
            name: Arc::clone(&name),
            window: None,
            ready: ReadyItems::default(),
            turn: CustomerTurn::None,
            due: 0,
            is_leaving: false,
            pace: None,
            looked_at: 0,
            rows: 0,
            first: None,
            pins: 0,
        });
        active.add_customer(name, id);
        id
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn get(&self, id: CustomerId) -> Option<&Customer> {
        self.table.get(id)
    }

    /// The open window of a customer that is known.
    pub(super) fn window(&self, id: CustomerId) -> Option<&Window> {
        self.table.get(id)?.window.as_ref()
    }

    /// Where an item with a time of its own lies: by itself, or, due when its customer's window ends, amid
    /// the members of that, for they leave in the order in which they came. `span`: as far as the numbers of
    /// these may lie apart.
    pub(super) fn own_key(&self, customer: Option<CustomerId>, due: u64, seq: u64, span: u64) -> Key {
        let window = customer.and_then(|id| self.window(id));
        let near = |place: &Key| place.due == due && seq - place.window <= span;
        window.map(Window::place).filter(near).map_or(Key::own(due, seq), |place| Key { seq, ..place })
    }

    /// Keeps a customer while work is under way that may take its last item away.
    pub(super) fn pin(&mut self, customer: Option<CustomerId>) {
        customer.into_iter().for_each(|id| self.table[id].pins += 1);
    }

    /// An item has come into memory.
    pub(super) fn add_row(&mut self, id: CustomerId, item: ItemId, items: &mut Items) {
        let customer = &mut self.table[id];
        items.link(item, customer.first.replace(item));
        customer.rows += 1;
    }

    /// Items are about to leave memory: they are not in their customers' lists any more.
    pub(super) fn unlink(&mut self, leaving: &[ItemId], items: &mut Items) {
        for item in leaving {
            let Some(id) = items.get(*item).and_then(Item::customer) else { continue };
            if let Some(first) = items.unlink(*item) {
                self.table[id].first = first;
            }
        }
    }

    /// A customer to be changed; `live` is that of its queue.
    pub(super) fn at<'c>(&'c mut self, id: CustomerId, active: &'c mut ActiveQueue) -> CustomerMut<'c> {
        debug_assert_eq!(self.table[id].queue, active.id(), "a customer is of one queue");
        CustomerMut { id, customers: self, active }
    }

    /// Items of the customer in memory, the last that came first.
    pub(super) fn items<'a>(&self, id: CustomerId, items: &'a Items) -> impl Iterator<Item = ItemId> + 'a {
        std::iter::successors(self.table[id].first, |item| items.sibling(*item))
    }

    /// Batches have another overhead once the format has changed; a shorter quiet time holds for the open
    /// windows too. The cost is that of all customers.
    pub(super) fn configure(&mut self, queues: &Queues, now: Now) {
        for id in self.table.handles().collect::<Vec<_>>() {
            let customer = &mut self.table[id];
            let Some(active) = queues[customer.queue].active() else { continue };
            customer.overhead = size::overhead(active.settings().format, active.name(), Some(&customer.name));
            let quiet = active.settings().quiet;
            self.plan_check(id, quiet, now);
        }
    }

    // ---- rates --------------------------------------------------------------------------------------------

    /// Customers that wait for their rate, or for what was passed over of them.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting
    }

    /// One of them stands elsewhere.
    pub(super) fn count_waiting(&mut self, before: CustomerTurn, now: CustomerTurn) {
        let waits = |turn| u64::from(matches!(turn, CustomerTurn::Paced | CustomerTurn::Behind));
        self.waiting = self.waiting + waits(now) - waits(before);
    }

    /// The next with a pace whose moment has come. What it waited for may leave; or it is at rest, or is
    /// looked at again later.
    pub(super) fn take_paced(&mut self, now: Now) -> Option<CustomerId> {
        let (at, id) = self.paced.first().copied().filter(|(at, _)| *at <= now.mono)?;
        self.paced.remove(&(at, id));
        let pace = &mut self.table[id].pace;
        if pace.as_mut().is_some_and(|pace| {
            pace.wait(None);
            pace.is_at_rest(now.mono)
        }) {
            *pace = None;
        } else {
            self.look_at_pace(id, None, now);
        }
        Some(id)
    }

    /// When it waits for that, or else rests.
    fn look_at_pace(&mut self, id: CustomerId, waits: Option<u64>, now: Now) {
        let Some(pace) = self.table[id].pace.as_mut() else { return };
        // What is out is looked for once in a while.
        let at = waits.unwrap_or(pace.rests_at().max(now.mono + PACE_LOOK_MS));
        self.look_at_pace_at(id, at);
    }

    fn look_at_pace_at(&mut self, id: CustomerId, at: u64) {
        let before = std::mem::replace(&mut self.table[id].looked_at, at);
        self.paced.remove(&(before, id));
        self.paced.insert((at, id));
    }

    /// How fast its items leave, where something bounds that.
    fn pace(&mut self, id: CustomerId, bound: Option<Bound>, mono: u64) -> Option<&mut Pace> {
        let customer = &mut self.table[id];
        if bound.is_none() {
            if customer.pace.take().is_some() {
                self.paced.remove(&(customer.looked_at, id));
            }
            return None;
        }
        let pace = customer.pace.get_or_insert_with(|| Box::new(Pace::new(bound)));
        pace.set(bound, mono);
        Some(pace)
    }

    /// Until when a batch of so many of its items has to wait, monotonic; `None`: it may leave.
    pub(super) fn waits_until(
        &mut self,
        id: CustomerId,
        bound: Option<Bound>,
        items: u64,
        now: Now,
    ) -> Option<u64> {
        let pace = self.pace(id, bound, now.mono)?;
        let until = Some(pace.ready_alone_at(items, now.mono)).filter(|at| *at > now.mono);
        pace.wait(until);
        self.look_at_pace(id, until, now);
        until
    }

    /// So many of its items are formed to a batch. For how long its rate held them back, if it did.
    pub(super) fn form(
        &mut self,
        id: CustomerId,
        bound: Option<Bound>,
        items: u64,
        now: Now,
    ) -> Option<Waited> {
        let waited = self.pace(id, bound, now.mono)?.form(items, now.mono);
        // Something else of it may go again while this waits: that is looked at when it was to be.
        if self.table[id].turn != CustomerTurn::Paced {
            self.look_at_pace(id, None, now);
        }
        waited
    }

    /// So many that were formed leave now.
    pub(super) fn leave(&mut self, id: Option<CustomerId>, items: u64, mono: u64) {
        let pace = id.and_then(|id| self.table.get_mut(id)?.pace.as_mut());
        pace.into_iter().for_each(|pace| pace.leave(items, mono));
    }

    /// So many that were formed do not leave after all: what waits may go sooner.
    pub(super) fn refund(&mut self, id: Option<CustomerId>, items: u64) {
        let Some(id) = id.filter(|_| items > 0) else { return };
        let Some(pace) = self.table.get_mut(id).and_then(|customer| customer.pace.as_mut()) else { return };
        pace.refund(items);
        if self.table[id].turn == CustomerTurn::Paced {
            self.look_at_pace_at(id, 0);
        }
    }

    // ---- windows ------------------------------------------------------------------------------------------

    /// Number of open windows.
    pub(super) fn open_windows(&self) -> u64 {
        self.open_windows
    }

    /// When the next window may have to close, or a rate may let something go, monotonic.
    pub(super) fn next_look(&self) -> Option<u64> {
        let paced = self.paced.first().map(|(at, _)| *at);
        self.timers.next().into_iter().chain(paced).min()
    }

    /// The customer whose window closes next.
    pub(super) fn first_to_close(&self) -> Option<CustomerId> {
        self.table.at(self.timers.first()?)
    }

    /// Windows that must close now, in order of their moment, as many as a turn has time for; and whether
    /// these are all.
    pub(super) fn take_due(
        &mut self,
        queues: &Queues,
        turn: Thresholds,
        now: Now,
    ) -> (Vec<(CustomerId, ClosedBy)>, bool) {
        let (mut ids, mut members, mut all) = (Vec::new(), 0, false);
        // What the turn has no time for keeps its timer: put back, it would stand behind this moment.
        while !all && ids.len() < turn.windows && members < turn.due {
            let table = &self.table;
            let taken = self.timers.take_due(now.mono, 1, |place| {
                let Some(id) = table.at(place) else { return };
                members += table[id].window.as_ref().map_or(0, |window| window.members().len());
                ids.push(id);
            });
            all = taken == Taken::All;
        }
        let mut due = Vec::new();
        for id in ids {
            let quiet = queues.settings_of(self.table[id].queue).quiet;
            let Some(window) = self.table[id].window.as_mut() else { continue };
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

    /// Rows of long windows that have changed.
    pub(super) fn flush(&mut self, queues: &Queues, ops: &mut Vec<Op>) {
        for id in std::mem::take(&mut self.dirty) {
            let Some(Customer { queue, name, window, .. }) = self.table.get_mut(id) else { continue };
            let row = window.as_mut().and_then(|window| window.take_dirty_row(queues[*queue].name(), name));
            ops.extend(row.map(Op::PutWindow));
        }
    }

    /// After a step of the wall clock, expiries lie elsewhere on the monotonic one. The cost is that of all
    /// windows of this queue.
    pub(super) fn recheck(&mut self, active: &ActiveQueue, now: Now) {
        for id in active.windows() {
            self.plan_check(*id, active.settings().quiet, now);
        }
    }

    fn mark(&mut self, id: CustomerId) {
        if self.table[id].window.as_mut().is_some_and(Window::mark) {
            self.dirty.push(id);
        }
    }

    /// Moves the next look at a window forward, when it must come sooner than planned. Later ones (the quiet
    /// time begins anew with each arrival) are found out when the old moment comes, which costs nothing per
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

/// A customer that is changed, with what its queue and the timers of all windows have to know of it.
#[derive(Debug)]
pub(super) struct CustomerMut<'c> {
    id: CustomerId,
    customers: &'c mut Customers,
    active: &'c mut ActiveQueue,
}

impl CustomerMut<'_> {
    fn this(&mut self) -> &mut Customer {
        &mut self.customers.table[self.id]
    }

    /// The other half of [`Customers::pin`].
    pub(super) fn unpin(&mut self) {
        self.this().pins -= 1;
        self.release();
    }

    /// An item has left memory.
    pub(super) fn remove_row(&mut self) {
        self.this().rows -= 1;
        self.release();
    }

    /// Forgets it where nothing needs it any more.
    pub(super) fn release(&mut self) {
        let customer = &self.customers.table[self.id];
        let unused =
            customer.rows == 0 && customer.pins == 0 && customer.window.is_none() && customer.pace.is_none();
        if unused && customer.turn == CustomerTurn::None {
            self.active.forget_customer(&customer.name);
            self.customers.table.remove(self.id);
        }
    }

    /// Puts a due item behind its others; the entry that the queue's line needs, if it needs one.
    pub(super) fn push_ready(&mut self, place: Key, item: ItemId) -> Option<Entry> {
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

    pub(super) fn has_window(&self) -> bool {
        self.customers.table[self.id].window.is_some()
    }

    /// What lies under this key in the store is a member of its window.
    pub(super) fn holds(&self, key: Key) -> bool {
        self.customers.table[self.id].window.as_ref().is_some_and(|window| window.holds(key))
    }

    /// Opens its window, where it has none. `number`: of its first member.
    pub(super) fn open(&mut self, plan: Plan, number: u64, now: Now) {
        let customer = &mut self.customers.table[self.id];
        debug_assert!(customer.window.is_none(), "a customer has one window at a time");
        let window = customer.window.insert(Window::new(plan, number, now));
        self.customers.timers.insert(self.id.place(), window.check());
        self.customers.open_windows += 1;
        self.active.window_opened(self.id);
    }

    /// A window as a former life left it.
    pub(super) fn reopen(&mut self, row: &WindowRow, now: Now) {
        let longest = self.active.settings().window;
        let bound = if mutated(Mutant::ReopenedUnbounded) { u64::MAX } else { longest };
        let length = row.end.saturating_sub(now.wall).min(bound);
        let plan = Plan { length, end: row.end, long: true, former: true };
        self.open(plan, row.window, now);
        if let Some(window) = self.this().window.as_mut() {
            window.recount(row);
        }
        self.plan_check(now);
    }

    /// What the window would be beyond with a new member of this weight and number: then it closes first.
    /// `span`: as far as the numbers of its members may lie apart.
    pub(super) fn would_overflow(&self, (weight, seq): (u32, u64), span: u64) -> Option<ClosedBy> {
        let customer = &self.customers.table[self.id];
        let window = customer.window.as_ref()?;
        if window.would_overflow(weight, customer.overhead, self.active.settings().max_bytes) {
            return Some(ClosedBy::Bytes);
        }
        (seq - window.place().window > span).then_some(ClosedBy::Count)
    }

    /// Counts a new item into the open window; where its members lie in the store.
    pub(super) fn join(&mut self, member: Member, now: Now) -> Key {
        let customer = self.this();
        let Some(window) = customer.window.as_mut() else { return Key::own(now.wall, member.seq) };
        window.join(member, customer.overhead.item, now);
        let place = window.place();
        self.customers.mark(self.id);
        self.plan_check(now);
        place
    }

    /// A stored item of a former life has come into memory: it is counted now, if its window did not know of
    /// it.
    pub(super) fn rejoin(&mut self, member: Member, now: Now) {
        let customer = self.this();
        let Some(window) = customer.window.as_mut() else { return };
        window.rejoin(member, customer.overhead.item);
        self.plan_check(now);
    }

    /// A member is in the store alone. Seen from `now` its key may lie so far ahead that a restart would not
    /// look at it in time: then the window gets a row.
    pub(super) fn add_far(&mut self, horizon: u64) {
        let Some(window) = self.this().window.as_mut() else { return };
        if window.add_far(horizon) {
            self.customers.mark(self.id);
        }
    }

    /// A member ended while its window was open. The last one takes the window along.
    pub(super) fn leave(&mut self, weight: u32, was_far: bool, ops: &mut Vec<Op>) {
        let customer = self.this();
        let Some(window) = customer.window.as_mut() else { return };
        if window.leave(weight, customer.overhead.item, was_far) {
            self.end(ops);
        } else if !mutated(Mutant::RowNotRenewed) {
            self.customers.mark(self.id);
        }
    }

    /// What the window that a new item has just joined has reached.
    pub(super) fn is_full(&self) -> Option<ClosedBy> {
        let customer = &self.customers.table[self.id];
        customer.window.as_ref()?.is_full(self.active.settings(), customer.overhead)
    }

    /// The window is over; what it was.
    pub(super) fn end(&mut self, ops: &mut Vec<Op>) -> Option<Window> {
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
