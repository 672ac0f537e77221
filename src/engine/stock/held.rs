//! Customers that are held back: what is due of them leaves memory, and stands in no line.

use super::*;
use crate::engine::event::HeldRow;

impl Stock {
    /// What is due of customers that are held back leaves memory.
    pub(super) fn evict_leaving(&mut self, left: &mut usize, now: Now) -> bool {
        let mut stays = Vec::new();
        while *left > 0 {
            let Some((queue, customer)) = self.shared.leaving.pop_front() else { break };
            let known = self.shared.customers.get(customer);
            if known.is_none_or(|known| known.turn != CustomerTurn::Leaving) {
                continue;
            }
            // Where the first items are to be given up they stay for that.
            if self.queues[queue].is_trimming() {
                stays.push((queue, customer));
            } else if self.at(queue).clear_out(left, now).one(Entry::Customer(customer)) {
                self.shared.leaving.push_front((queue, customer));
            }
        }
        let more = *left == 0 && !self.shared.leaving.is_empty();
        self.shared.leaving.extend(stays);
        more
    }

    /// The customer of this name is held back until then, UTC ms. Until when it was before, if it was.
    pub(in crate::engine) fn hold(&mut self, queue: QueueId, customer: &str, until: u64) -> Option<u64> {
        let customer: Arc<str> = customer.into();
        let before = self.queues.at(queue).hold(&customer, until);
        self.write_held(queue, customer, Some(until));
        before
    }

    /// It goes on. Whether it was held back.
    pub(in crate::engine) fn let_go(&mut self, queue: QueueId, customer: &str) -> bool {
        let id = self.queues[queue].customer(customer);
        if !self.queues.at(queue).let_go(customer) {
            return false;
        }
        if let Some(id) = id.filter(|id| self.shared.customers[*id].turn == CustomerTurn::Leaving) {
            let entry = Entry::Customer(id);
            self.shared.customers.turn_to(entry, CustomerTurn::InLine);
            self.queues.at(queue).line_mut().push(entry);
            self.queues.at(queue).run();
        }
        self.write_held(queue, customer.into(), None);
        true
    }

    /// The item's customer is held back.
    pub(in crate::engine) fn is_held(&self, id: ItemId) -> bool {
        let item = &self.items()[id];
        let held = self.queues[item.queue()].held();
        let name = item.customer().and_then(|customer| self.customers().get(customer)).map(|of| &of.name);
        held.len() > 0 && name.is_some_and(|name| held.until(name).is_some())
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

/// What is due of a customer that is held back leaves memory, where there is a store.
pub(super) fn leave(at: &mut QueueStock<'_>, customer: CustomerId) {
    at.shared.customers.turn_to(Entry::Customer(customer), CustomerTurn::Leaving);
    if at.shared.journal.is_durable() {
        at.shared.leaving.push_back((at.queue.id(), customer));
    }
}

/// The name of a customer whose items are held back.
pub(super) fn name(at: &QueueStock<'_>, customer: Option<CustomerId>) -> Option<Arc<str>> {
    if at.queue.held().len() == 0 || mutated(Mutant::HeldIsPublished) {
        return None;
    }
    let name = &at.shared.customers.get(customer?)?.name;
    at.queue.held().until(name).map(|_| Arc::clone(name))
}
