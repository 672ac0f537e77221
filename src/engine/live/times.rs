//! Items that get another time while they wait. The row moves in the store, and keeps its payload, its
//! arrival number and its ids.

use super::*;
use crate::reads::Rewritten;
use alloc::boxed::Box;
use tidegate_types::event::Standing;

impl QueueItems<'_> {
    /// Gives an item in memory `due` as its own time. It must be on no list and in no flight. An item that is
    /// not written yet is written first, as the broker would bring it back with its old time.
    pub(super) fn reschedule(&mut self, id: ItemId, due: u64, now: Now) {
        if !self.shared.items[id].is_stored() {
            self.store_pending(id, now);
        }
        let item = &self.shared.items[id];
        let (from, removed) = (self.row(item).place(), self.row(item).index());
        let (customer, row, before) = (item.customer(), self.row(item).customer(), item.place());
        self.shared.customers.pin(customer);
        let mut item = self.remove(id);
        self.leave_as_stray(&item);
        self.shared.watch.changed(item.identity());
        item.reschedule(due);
        self.queue.remove_stored(before, true);
        self.move_to_time(item, from, removed, row, now);
        self.unpin(customer);
    }

    /// Moves the row from `from`, where its index rows are `removed`, to its new key, and puts the item where
    /// one with this due belongs. `customer`: its index row under its customer.
    fn move_to_time(
        &mut self,
        mut item: Item,
        from: Place,
        removed: IndexRows,
        customer: Option<(Arc<str>, Arc<str>)>,
        now: Now,
    ) {
        let key = item.place();
        let far = self.lies_in_store_alone(key, key.due <= now.wall, now);
        item.set(ItemFlag::Indexed, far && customer.is_some());
        let customer = customer.filter(|_| far);
        let written = IndexRows { identity: item.identity_row(), customer };
        item.set_stored(self.shared.journal.next_token());
        let (to, standing, weight) = (self.row(&item).place(), standing(&item), item.weight());
        self.shared.journal.push(Op::Move { from, to, removed, written, standing, weight });
        self.shared.reads.note_rewritten(rewritten(&item));
        if far {
            return self.queue.add_far(key, None);
        }
        self.queue.add_resident(key);
        let id = self.insert(item);
        self.shared.keep_content(id, now);
        self.enlist(id, false, now);
    }

    /// Gives an item in the store alone `due` as its own time.
    pub(super) fn reschedule_far(&mut self, stored: &Stored, due: u64) {
        self.leave_window_far(stored);
        let moved = Stored { key: Key { due, ..stored.key }, due, ..stored.clone() };
        let name = Arc::clone(self.queue.name());
        let standing = Standing {
            attempts: stored.attempts,
            last_error: stored.last_error.clone(),
            outcome_unknown: stored.outcome_unknown,
            own_time: true,
            closed_by: ClosedBy::Time,
            dead: None,
            due: None,
        };
        self.shared.journal.push(Op::Move {
            from: Place { queue: Arc::clone(&name), key: stored.key },
            to: Place { queue: Arc::clone(&name), key: moved.key },
            removed: stored.index_rows(),
            written: moved.index_rows(),
            standing: Box::new(standing),
            weight: stored.weight,
        });
        self.queue.add_far(moved.key, None);
        self.queue.remove_stored(stored.place(), false);
        self.shared.reads.note_rewritten(Rewritten {
            key: moved.key,
            due,
            attempts: stored.attempts,
            outcome_unknown: stored.outcome_unknown,
            own_time: true,
            dead: false,
        });
        self.shared.watch.changed(stored.identity());
        self.shared.retold.push((name, moved.key));
    }

    /// Makes a dead letter wait until `until`, wall clock; other dead letters go before it.
    pub(crate) fn defer_letter(&mut self, id: ItemId, until: u64, now: Now) {
        let from = self.row(&self.shared.items[id]).place();
        let mut item = self.remove(id);
        let old = item.place();
        item.defer(until);
        if item.is_stored() {
            item.set_stored(self.shared.journal.next_token());
            let (to, none) = (self.row(&item).place(), IndexRows::default());
            let (removed, written, standing) = (none.clone(), none, standing(&item));
            let weight = item.weight();
            self.shared.journal.push(Op::Move { from, to, removed, written, standing, weight });
            self.queue.remove_stored(old, true);
            self.queue.add_resident(item.place());
            self.shared.reads.note_rewritten(rewritten(&item));
        }
        let id = self.insert(item);
        self.shared.keep_content(id, now);
        self.shared.await_time(id);
    }
}
