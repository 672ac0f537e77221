//! What is due in a queue: into its line, and from there into batches.

use super::*;
use crate::engine::queue::LAST;

/// How long what has been read of a window waits for its rest where others, which do not move, fill the
/// memory, ms.
const REST_MS: u64 = 5_000;

impl QueueItems<'_> {
    pub(super) fn is_crowded(&self) -> bool {
        let ready = self.queue.active().map_or(0, |active| active.ready().items());
        let turn = self.queue.thresholds();
        // What waits for a rate needs no more than its head there.
        let paced = self.queue.paced_until().is_some();
        ready >= if paced { turn.enough } else { turn.ready.max(self.shared.budget.rows as u64 / 2) }
    }

    /// An item is due: it goes into the line, or out of memory where older ones have gone before it.
    pub(super) fn make_ready(&mut self, id: ItemId, now: Now) {
        self.shared.set_stage(id, Stage::Ready);
        let customer = self.shared.items[id].customer();
        let passed = customer.map_or(LAST, |customer| self.of(customer).passed_from());
        let item = &self.shared.items[id];
        let leaves = item.place() >= self.queue.memory_bound().min(passed) || self.is_crowded();
        if leaves && item.is_stored() && !mutated(Mutant::FarOvertaken) {
            self.evict(id, now);
        } else {
            self.push_ready(id);
        }
    }

    /// Puts a due item into the line.
    pub(in crate::engine) fn push_ready(&mut self, id: ItemId) {
        self.shared.set_stage(id, Stage::Ready);
        let (customer, place) = (self.shared.items[id].customer(), self.shared.items[id].place());
        let entry = match customer {
            None => Some(Entry::Single(id)),
            Some(customer) => self.customer(customer).push_ready(place, id),
        };
        count_due(self, customer, 1);
        if let Some(customer) = customer {
            if entry.is_some() && self.of(customer).is_held() {
                return self.of(customer).leave();
            }
            self.of(customer).leave_beyond_fill();
        }
        let turn = customer.map(|customer| self.shared.customers[customer].turn);
        if turn == Some(CustomerTurn::Stalled) && place < self.queue.near_until() {
            // What else its customer has may wait for a load; this one need not.
            self.unstall();
        }
        entry.into_iter().for_each(|entry| self.queue.ready_mut().push(entry));
        self.queue.run();
    }

    /// As many due items as the next batch takes, of one customer, in order of (due, arrival). Nothing at or
    /// above the queue's bound: older ones have still to be loaded; nor what comes behind an item that is due
    /// and still in the schedule. A window whose rest lies there waits for it.
    pub(in crate::engine) fn take_batch(&mut self, most: usize, now: Now) -> Vec<ItemId> {
        let near = if mutated(Mutant::FarOvertaken) { LAST } else { self.queue.near_until() };
        let scheduled = match self.shared.behind {
            Behind::Items(first) if !mutated(Mutant::ScheduledOvertaken) => first,
            Behind::Items(_) | Behind::Windows | Behind::Nothing => LAST,
        };
        let bound = near.min(scheduled);
        let held = loop {
            let Some(entry) = self.queue.ready_mut().take() else { return Vec::new() };
            let taken = match entry {
                Entry::Single(id) => {
                    let item = self.shared.items.get(id);
                    let Some(item) = item.filter(|item| item.stage() == Stage::Ready) else { continue };
                    if item.place() >= bound {
                        Vec::new()
                    } else {
                        vec![id]
                    }
                }
                Entry::Customer(customer) if self.of(customer).is_held() => {
                    // It was held back while it stood in line.
                    self.of(customer).leave();
                    continue;
                }
                Entry::Customer(customer) => {
                    if let Some(cause) = self.of(customer).over(now) {
                        if matches!(self.shared.behind, Behind::Items(_)) {
                            break entry;
                        }
                        self.of(customer).close_window(cause, now);
                    }
                    match self.of(customer).take_batch(bound, most, now) {
                        None | Some(Formed::Aside) => continue,
                        Some(Formed::Batch(taken)) => taken,
                        Some(Formed::TooLarge(items)) => {
                            self.queue.active_mut().pace_mut().want(items);
                            self.queue.ready_mut().put_back(entry);
                            return Vec::new();
                        }
                    }
                }
            };
            if !taken.is_empty() {
                let customer = self.shared.items[taken[0]].customer();
                count_due(self, customer, -(taken.len() as i32));
                customer.into_iter().for_each(|customer| self.of(customer).want_passed());
                self.queue.ready_mut().has_left();
                self.shared.work += taken.len() as u64;
                return taken;
            }
            if bound < near {
                break entry;
            }
            if let Entry::Customer(customer) = entry {
                self.of(customer).turn_to(CustomerTurn::Stalled);
            }
            self.queue.ready_mut().stall(entry);
            self.shared.stalled.insert(self.queue.id());
            self.queue.mark_for_loader();
        };
        // What is due has not all been taken from the schedule: the queue waits for the next turn.
        self.queue.ready_mut().put_back(held);
        self.shared.held.insert(self.queue.id());
        Vec::new()
    }

    /// More of the queue has been loaded: what waited for that stands in line again, before the others.
    pub(in crate::engine) fn unstall(&mut self) {
        self.shared.stalled.remove(&self.queue.id());
        let again = self.queue.ready_mut().unstall();
        self.shared.work += again.len() as u64;
        for entry in again {
            if let Entry::Customer(customer) = entry {
                self.of(customer).turn_to(CustomerTurn::InLine);
            }
        }
        self.queue.run();
    }

    /// There is no room for the rest of the window that the queue waits for, and nothing that could make it.
    /// Where what is here fills half of the memory, or it has been so for long, it leaves without. For how
    /// long it waits still, ms; `None`: it does not wait for that.
    pub(in crate::engine) fn leave_in_parts(&mut self, now: Now) -> Option<u64> {
        let half = self.shared.budget.rows as u64 / 2;
        let line = self.queue.ready_mut();
        if !line.has_stalled() || !line.is_empty() {
            return None;
        }
        let fills = line.items() >= half;
        let left = if fills { 0 } else { REST_MS.saturating_sub(line.lacks_room(now.mono)) };
        if left == 0 {
            self.unstall();
            self.queue.ready_mut().leave_in_parts();
        }
        Some(left)
    }

    /// An item is under way, or is not any more: what is may not be dropped.
    pub(in crate::engine) fn set_flying(&mut self, id: ItemId, flight: Option<u64>) {
        let key = self.shared.items[id].place();
        self.shared.set_stage(id, flight.map_or(Stage::Ready, Stage::Flying));
        let active = self.queue.active_mut();
        match flight {
            Some(_) => active.may_not_drop(key, id),
            None => {
                active.may_drop(key, id);
                self.queue.may_trim();
            }
        }
    }
}
