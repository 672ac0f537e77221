//! Due items of a queue: into its ready queue, and from there into batches.

use super::*;
use crate::queue::LAST;
use alloc::vec::Vec;

/// How long the members of a window that have been read wait for the rest while memory is full of items that
/// cannot move, ms.
const REST_MS: u64 = 5_000;

impl QueueItems<'_> {
    pub(super) fn is_crowded(&self) -> bool {
        let ready = self.queue.active().map_or(0, |active| active.ready().items());
        let turn = self.queue.thresholds();
        // A queue that waits for its rate needs only its head in memory.
        let paced = self.queue.paced_until().is_some();
        ready >= if paced { turn.enough } else { turn.ready.max(self.shared.budget.rows as u64 / 2) }
    }

    /// Puts a due item into the ready queue, or out of memory where older ones left memory before it.
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

    /// Puts a due item into the ready queue.
    pub(crate) fn push_ready(&mut self, id: ItemId) {
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
            // Other items of its customer may wait for a load, but this one need not.
            self.unstall();
        }
        entry.into_iter().for_each(|entry| self.queue.ready_mut().push(entry));
        self.queue.run();
    }

    /// Takes the due items of the next batch, all of one customer, in order of (due, arrival). It takes none
    /// at or above the queue's bound, as older ones have still to be loaded, and none behind a due item that
    /// is still in the schedule. A window whose rest is beyond the bound waits for it.
    pub(crate) fn take_batch(&mut self, most: usize, now: Now) -> Vec<ItemId> {
        let scheduled = match self.shared.behind {
            Behind::Items(first) if !mutated(Mutant::ScheduledOvertaken) => first,
            Behind::Items(_) | Behind::Windows | Behind::Nothing => LAST,
        };
        let held = loop {
            let Some(entry) = self.queue.ready_mut().take() else { return Vec::new() };
            if let Entry::Customer(customer) = entry {
                let is_held = self.of(customer).is_held();
                let over = self.of(customer).over(now).filter(|_| !is_held);
                if over.is_some() && matches!(self.shared.behind, Behind::Items(_)) {
                    break entry;
                }
                over.into_iter().for_each(|cause| self.of(customer).close_window(cause, now));
            }
            // Members of the window may have left memory as it closed.
            let near = if mutated(Mutant::FarOvertaken) { LAST } else { self.queue.near_until() };
            let bound = near.min(scheduled);
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
                    // It was held back while it was in the ready queue.
                    self.of(customer).leave();
                    continue;
                }
                Entry::Customer(customer) => match self.of(customer).take_batch(bound, most, now) {
                    None | Some(Formed::Aside) => continue,
                    Some(Formed::Batch(taken)) => taken,
                    Some(Formed::TooLarge(items)) => {
                        self.queue.active_mut().pace_mut().want(items);
                        self.queue.ready_mut().put_back(entry);
                        return Vec::new();
                    }
                },
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
        // Due items are left in the schedule: the queue waits for the next turn.
        self.queue.ready_mut().put_back(held);
        self.shared.held.insert(self.queue.id());
        Vec::new()
    }

    /// Puts stalled entries back into the ready queue, ahead of the others, as more of the queue has been
    /// loaded.
    pub(crate) fn unstall(&mut self) {
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

    /// The rest of the window that the queue waits for has no room, and nothing can make any. Where the due
    /// items here fill half of memory, or the queue has waited `REST_MS`, they leave without the rest.
    /// Returns how long the queue still waits, ms; `None`: it does not wait for the rest of a window.
    pub(crate) fn leave_in_parts(&mut self, now: Now) -> Option<u64> {
        let half = self.shared.budget.rows as u64 / 2;
        let ready = self.queue.ready_mut();
        if !ready.has_stalled() || !ready.is_empty() {
            return None;
        }
        let fills = ready.items() >= half;
        let left = if fills { 0 } else { REST_MS.saturating_sub(ready.lacks_room(now.mono)) };
        if left == 0 {
            self.unstall();
            self.queue.ready_mut().leave_in_parts();
        }
        Some(left)
    }

    /// Sets whether an item is in flight; one that is may not be dropped.
    pub(crate) fn set_flying(&mut self, id: ItemId, flight: Option<u64>) {
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
