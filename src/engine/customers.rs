//! The customers of each application, as long as anything of theirs is in memory or their window is open.

use super::ids::{CustomerId, ItemId, QueueId};
use super::items::{Item, Items};
use super::mutant::{mutated, Mutant};
use super::queue::{Entry, Queues};
use super::size::{self, Overhead};
use super::slab::{Handle, Slab};
use super::types::Key;
use super::window::Window;
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Index, IndexMut};
use std::sync::Arc;

/// Where a customer with due items stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CustomerTurn {
    /// Nowhere: none of theirs is due.
    None,
    /// In its queue's line.
    InLine,
    /// Among the stalled: older ones than its first have still to be loaded.
    Stalled,
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
    /// Items in memory, and the first of the list that runs through them.
    rows: u32,
    first: Option<ItemId>,
    /// Work under way that needs it to stay.
    pins: u32,
}

/// Customers of all queues.
#[derive(Debug)]
pub(super) struct Customers {
    table: Slab<CustomerId, Customer>,
}

impl Customers {
    pub(super) fn new() -> Self {
        Customers { table: Slab::new() }
    }

    pub(super) fn find(&self, queues: &Queues, queue: QueueId, name: &str) -> Option<CustomerId> {
        queues[queue].live()?.customer(name)
    }

    /// The customer of this name, made known if it is not.
    pub(super) fn id(&mut self, queues: &mut Queues, queue: QueueId, name: &str) -> CustomerId {
        if let Some(id) = queues.live(queue).customer(name) {
            return id;
        }
        let application = Arc::clone(queues[queue].name());
        let live = queues.live(queue);
        let name: Arc<str> = name.into();
        let id = self.table.insert(Customer {
            queue,
            overhead: size::overhead(live.settings().format, &application, Some(&name)),
            name: Arc::clone(&name),
            window: None,
            ready: ReadyItems::default(),
            turn: CustomerTurn::None,
            rows: 0,
            first: None,
            pins: 0,
        });
        live.add_customer(name, id);
        id
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn get(&self, id: CustomerId) -> Option<&Customer> {
        self.table.get(id)
    }

    /// The customer in this place of the table.
    pub(super) fn at(&self, place: u32) -> Option<CustomerId> {
        self.table.at(place)
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

    /// An item has left memory.
    pub(super) fn remove_row(&mut self, id: CustomerId, queues: &mut Queues) {
        self.table[id].rows -= 1;
        self.release(id, queues);
    }

    /// Items of the customer in memory, the last that came first.
    pub(super) fn items<'a>(&self, id: CustomerId, items: &'a Items) -> impl Iterator<Item = ItemId> + 'a {
        std::iter::successors(self.table[id].first, |item| items.sibling(*item))
    }

    /// Keeps a customer while work is under way that may take its last item away.
    pub(super) fn pin(&mut self, id: CustomerId) {
        self.table[id].pins += 1;
    }

    pub(super) fn unpin(&mut self, id: CustomerId, queues: &mut Queues) {
        self.table[id].pins -= 1;
        self.release(id, queues);
    }

    /// Forgets a customer that nothing needs any more.
    pub(super) fn release(&mut self, id: CustomerId, queues: &mut Queues) {
        let Some(customer) = self.table.get(id) else { return };
        let unused = customer.rows == 0 && customer.pins == 0 && customer.window.is_none();
        if unused && customer.turn == CustomerTurn::None {
            queues.live(customer.queue).forget_customer(&customer.name);
            self.table.remove(id);
        }
    }

    /// Batches have another overhead once the format has changed. The cost is that of all customers.
    pub(super) fn configure(&mut self, queues: &Queues) -> Vec<CustomerId> {
        let all: Vec<CustomerId> = self.table.handles().collect();
        for id in &all {
            let customer = &mut self.table[*id];
            let format = queues.settings_of(customer.queue).format;
            let application = queues[customer.queue].name();
            customer.overhead = size::overhead(format, application, Some(&customer.name));
        }
        all
    }

    /// Puts a due item behind the others of its customer; the entry that its queue's line needs, if it needs
    /// one.
    pub(super) fn push_ready(&mut self, id: CustomerId, place: Key, item: ItemId) -> Option<Entry> {
        let customer = &mut self.table[id];
        customer.ready.push(place, item);
        let joins = customer.turn == CustomerTurn::None;
        joins.then(|| {
            customer.turn = CustomerTurn::InLine;
            Entry::Customer(id)
        })
    }
}

/// Due, UTC ms, and arrival number. In the store members of a window lie together: another item of the
/// customer that is due with them may lie behind one that came later.
type ReadyPlace = (u64, u64);

/// Due items of one customer in order of (due, arrival). Most come in that order and cost nothing but their
/// place in a line; the others are kept apart, so that no number of them makes a sort in one turn.
#[derive(Debug, Default)]
pub(super) struct ReadyItems {
    in_order: VecDeque<(ReadyPlace, ItemId)>,
    late: BTreeMap<ReadyPlace, ItemId>,
}

impl ReadyItems {
    /// Adds one. Some that were added may have ended since; they stay until they are popped.
    fn push(&mut self, place: Key, item: ItemId) {
        let place = (place.due, place.seq);
        let last = self.in_order.back().map(|(last, _)| *last);
        if last.is_none_or(|last| last <= place) || mutated(Mutant::OrderForgotten) {
            self.in_order.push_back((place, item));
        } else {
            self.late.insert(place, item);
        }
    }

    /// The one that is first.
    pub(super) fn first(&self) -> Option<ItemId> {
        let late = self.late.first_key_value().map(|(place, item)| (*place, *item));
        self.in_order
            .front()
            .copied()
            .into_iter()
            .chain(late)
            .min_by_key(|(place, _)| *place)
            .map(|(_, item)| item)
    }

    pub(super) fn pop_first(&mut self) -> Option<ItemId> {
        let late = self.late.first_key_value().map(|(place, _)| *place);
        let in_order = self.in_order.front().map(|(place, _)| *place);
        if late.is_some_and(|late| in_order.is_none_or(|place| late < place)) {
            return self.late.pop_first().map(|(_, item)| item);
        }
        let first = self.in_order.pop_front();
        self.shrink();
        first.map(|(_, item)| item)
    }

    /// The first ones, in order, are the first again.
    pub(super) fn put_back(&mut self, first: Vec<ItemId>, place_of: impl Fn(ItemId) -> Key) {
        for item in first.into_iter().rev() {
            let place = place_of(item);
            self.in_order.push_front(((place.due, place.seq), item));
        }
    }

    /// Some have another place now; those without one have gone.
    pub(super) fn put_in_order(&mut self, place_of: impl Fn(ItemId) -> Option<Key>) {
        let placed = |item| place_of(item).map(|place| ((place.due, place.seq), item));
        let mut all: Vec<(ReadyPlace, ItemId)> = self.iter().filter_map(placed).collect();
        all.sort_unstable();
        (self.in_order, self.late) = (all.into(), BTreeMap::new());
    }

    pub(super) fn pop_first_if(&mut self, test: impl FnOnce(ItemId) -> bool) -> Option<ItemId> {
        self.first().filter(|first| test(*first)).and_then(|_| self.pop_first())
    }

    pub(super) fn pop_last_if(&mut self, test: impl FnOnce(ItemId) -> bool) -> Option<ItemId> {
        let late = self.late.last_key_value().map(|(place, item)| (*place, *item));
        let in_order = self.in_order.back().copied();
        let (_, last) = late.max(in_order).filter(|(_, last)| test(*last))?;
        if late > in_order {
            self.late.pop_last();
        } else {
            self.in_order.pop_back();
            self.shrink();
        }
        Some(last)
    }

    /// After a peak the line holds no memory, once it is empty.
    fn shrink(&mut self) {
        if self.in_order.is_empty() && self.in_order.capacity() > 64 {
            self.in_order = VecDeque::new();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_order.is_empty() && self.late.is_empty()
    }

    /// All of them, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = ItemId> + '_ {
        self.in_order.iter().map(|(_, item)| *item).chain(self.late.values().copied())
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

/// The place of a handle, for the schedule.
pub(super) fn place_of(id: CustomerId) -> u32 {
    id.place()
}
