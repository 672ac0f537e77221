//! Items that get another time while they wait: the row moves in the store, and keeps its payload, its
//! arrival number and its ids.

use super::*;
use crate::engine::event::{Rewritten, Standing};

impl Stock {
    /// An item in memory is due then, at a time of its own. It is on no list, and in no flight. One that is
    /// not written yet is written first: the broker would bring it back with its old time.
    pub(in crate::engine) fn reschedule(&mut self, id: ItemId, due: u64, now: Now) {
        if !self.items[id].is_stored() {
            self.store_pending(id, now);
        }
        let (from, removed) = (self.place_in_store(&self.items[id]), self.index_rows(&self.items[id]));
        let (customer, row) = (self.items[id].customer(), self.customer_row(&self.items[id]));
        let (queue, before) = (self.items[id].queue(), self.items[id].place());
        customer.into_iter().for_each(|customer| self.customers.pin(customer));
        if let Some(mut item) = self.remove(id) {
            self.leave_as_stray(&item);
            self.watch.changed(item.identity());
            item.reschedule(due);
            self.move_to_time(item, before, (from, removed), row, now);
        }
        customer
            .into_iter()
            .for_each(|customer| self.customers.unpin(customer, self.queues.at(queue).live()));
    }

    /// The row is written under its new key; then the item goes where one belongs that is due then.
    fn move_to_time(
        &mut self,
        mut item: Item,
        before: Key,
        (from, removed): (Place, IndexRows),
        customer: Option<(Arc<str>, Arc<str>)>,
        now: Now,
    ) {
        let (queue, key) = (item.queue(), item.place());
        let far = self.lies_in_store_alone(queue, key, key.due <= now.wall, now);
        item.set_indexed(far && customer.is_some());
        let customer = customer.filter(|_| far);
        let written = IndexRows { identity: item.identity_row(), customer };
        item.set_stored(self.journal.next_token());
        let (to, standing) = (self.place_in_store(&item), Box::new(item.standing()));
        self.journal.push(Op::Move { from, to, removed, written, standing });
        self.reads.note_rewritten(item.rewritten());
        if far {
            self.queues.at(queue).add_far(key);
            self.queues.at(queue).remove_stored(before, true);
            return;
        }
        self.queues.at(queue).add_resident(key);
        self.queues.at(queue).remove_stored(before, true);
        let id = self.insert(item);
        self.keep_content(id, now);
        self.enlist(id, false, now);
    }

    /// An item in the store alone is due then, at a time of its own. It stays there: what is due soon is read
    /// as any other.
    pub(in crate::engine) fn reschedule_far(&mut self, stored: &Stored, due: u64) {
        let Some(queue) = self.queues.find(stored.queue()) else { return };
        self.leave_window_far(queue, stored);
        let moved = Stored { key: Key { due, ..stored.key }, due, ..stored.clone() };
        let name = Arc::clone(self.queues[queue].name());
        let standing = Standing {
            attempts: stored.attempts,
            last_error: stored.last_error.clone(),
            outcome_unknown: stored.outcome_unknown,
            own_time: true,
            closed_by: ClosedBy::Time,
            dead: None,
        };
        self.journal.push(Op::Move {
            from: Place { queue: Arc::clone(&name), key: stored.key },
            to: Place { queue: Arc::clone(&name), key: moved.key },
            removed: stored.index_rows(),
            written: moved.index_rows(),
            standing: Box::new(standing),
        });
        self.queues.at(queue).add_far(moved.key);
        self.queues.at(queue).remove_stored(stored.place(), false);
        self.reads.note_rewritten(Rewritten {
            key: moved.key,
            due,
            attempts: stored.attempts,
            outcome_unknown: stored.outcome_unknown,
            own_time: true,
            dead: false,
        });
        self.watch.changed(stored.identity());
        self.retold.push((name, moved.key));
    }
}
