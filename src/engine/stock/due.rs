//! What is due: into the lines of queues, and from them into batches.

use super::*;
use crate::engine::queue::LAST;
use crate::engine::schedule::Taken;

/// How long what has been read of a window waits for its rest where others, which do not move, fill the
/// memory, ms.
const REST_MS: u64 = 5_000;

impl Stock {
    /// Items whose time has come, at most `limit` of them. Whether these are all.
    pub(in crate::engine) fn take_due(&mut self, limit: usize, now: Now) -> bool {
        for queue in std::mem::take(&mut self.held) {
            if self.queues.get(queue).is_some() {
                self.queues.at(queue).run();
            }
        }
        let early = if mutated(Mutant::Early) { 7 } else { 0 };
        // All rows are looked at in one go, and no other work between: they lie anywhere in memory, and the
        // processor fetches several at a time.
        let (items, mut due) = (&self.items, Vec::new());
        let taken = self.schedule.take_due(now.wall + early, limit, |place| {
            due.extend(items.at(place).map(|id| (items[id].place(), id, items[id].stage())));
        });
        let key_of = |place| items.at(place).map_or(Key::default(), |id| items[id].place());
        self.behind = match taken {
            Taken::All => Behind::Windows,
            Taken::Most => self.schedule.first_key(key_of).map_or(Behind::Windows, Behind::Items),
        };
        due.sort_unstable_by_key(|(key, ..)| *key);
        self.work += due.len() as u64;
        for (_, id, stage) in due {
            match stage {
                Stage::Scheduled => self.make_ready(id, now),
                // Its window's end is a matter of the monotonic clock.
                Stage::Windowed { pos, .. } => {
                    self.set_stage(id, Stage::Windowed { pos, scheduled: false });
                }
                Stage::Ready | Stage::Flying(_) => {
                    debug_assert!(false, "what is due twice was not taken out of the schedule");
                }
            }
        }
        taken == Taken::All
    }

    /// When something in memory is due next, wall clock.
    pub(in crate::engine) fn next_due(&self) -> Option<u64> {
        self.schedule.next()
    }

    pub(super) fn is_crowded(&self, queue: QueueId) -> bool {
        let ready = self.queues[queue].live().map_or(0, |live| live.line().items());
        ready >= self.thresholds().ready.max(self.budget.rows as u64 / 2)
    }

    /// An item is due: it goes into its queue's line, or out of memory where older ones have gone before it.
    pub(in crate::engine) fn make_ready(&mut self, id: ItemId, now: Now) {
        self.set_stage(id, Stage::Ready);
        let item = &self.items[id];
        let queue = item.queue();
        let leaves = item.place() >= self.queues[queue].memory_bound() || self.is_crowded(queue);
        if leaves && item.is_stored() && !mutated(Mutant::FarOvertaken) {
            self.evict(id, now);
        } else {
            self.push_ready(id);
        }
    }

    /// Puts a due item into its queue's line.
    pub(in crate::engine) fn push_ready(&mut self, id: ItemId) {
        self.set_stage(id, Stage::Ready);
        let (queue, customer, place) =
            (self.items[id].queue(), self.items[id].customer(), self.items[id].place());
        let entry = match customer {
            None => Some(Entry::Single(id)),
            Some(customer) => self.customers.push_ready(customer, place, id),
        };
        let stalled = customer.is_some_and(|customer| self.customers[customer].turn == CustomerTurn::Stalled);
        if stalled && place < self.queues[queue].near_until() {
            // What else its customer has may wait for a load; this one need not.
            self.unstall(queue);
        }
        entry.into_iter().for_each(|entry| self.queues.at(queue).live().line_mut().push(entry));
        self.queues.at(queue).count_ready(1);
        self.queues.at(queue).run();
    }

    /// As many due items as the queue's next batch takes, of one customer, in order of (due, arrival).
    /// Nothing at or above the queue's bound: older ones have still to be loaded; nor what comes behind an
    /// item that is due and still in the schedule. A window whose rest lies there waits for it.
    pub(in crate::engine) fn take_batch(&mut self, queue: QueueId, most: usize, now: Now) -> Vec<ItemId> {
        let near = if mutated(Mutant::FarOvertaken) { LAST } else { self.queues[queue].near_until() };
        let scheduled = match self.behind {
            Behind::Items(first) if !mutated(Mutant::ScheduledOvertaken) => first,
            Behind::Items(_) | Behind::Windows | Behind::Nothing => LAST,
        };
        let bound = near.min(scheduled);
        loop {
            let Some(entry) = self.queues.at(queue).live().line_mut().take() else { return Vec::new() };
            let taken = match entry {
                Entry::Single(id) => {
                    let Some(item) = self.items.get(id).filter(|item| item.stage() == Stage::Ready) else {
                        continue;
                    };
                    if item.place() >= bound {
                        Vec::new()
                    } else {
                        vec![id]
                    }
                }
                Entry::Customer(customer) => {
                    if let Some(cause) = self.over(customer, now) {
                        if matches!(self.behind, Behind::Items(_)) {
                            return self.hold(queue, entry);
                        }
                        self.close_window(customer, cause, now);
                    }
                    let Some(taken) = self.take_of_customer(customer, bound, most, now) else { continue };
                    taken
                }
            };
            if taken.is_empty() {
                if bound < near {
                    return self.hold(queue, entry);
                }
                self.turn_to(entry, CustomerTurn::Stalled);
                self.queues.at(queue).live().line_mut().stall(entry);
                self.stalled.insert(queue);
                self.queues.at(queue).look_at();
                continue;
            }
            self.queues.at(queue).count_ready(-(taken.len() as i64));
            self.queues.at(queue).live().line_mut().has_left();
            self.work += taken.len() as u64;
            return taken;
        }
    }

    /// What is due has not all been taken from the schedule: the queue waits for the next turn.
    fn hold(&mut self, queue: QueueId, entry: Entry) -> Vec<ItemId> {
        self.queues.at(queue).live().line_mut().put_back(entry);
        self.held.insert(queue);
        Vec::new()
    }

    /// Its window is over, and has not been closed yet: what is in it may come before what is due.
    fn over(&self, customer: CustomerId, now: Now) -> Option<ClosedBy> {
        let customer = self.customers.get(customer).filter(|_| self.behind != Behind::Nothing)?;
        let quiet = self.queues.settings_of(customer.queue).quiet;
        let (at, cause) = customer.window.as_ref()?.deadline(quiet, now);
        (at <= now.mono).then_some(cause)
    }

    /// As many as a batch takes, below the bound. A window that is cut by it waits for its rest, unless the
    /// batch is full, or it is to leave in parts. `None`: nothing of theirs is due any more.
    pub(super) fn take_of_customer(
        &mut self,
        customer: CustomerId,
        bound: Key,
        most: usize,
        now: Now,
    ) -> Option<Vec<ItemId>> {
        let items = &self.items;
        let is_ready = |id: &ItemId| items.get(*id).is_some_and(|item| item.stage() == Stage::Ready);
        let owner = self.customers.get(customer)?;
        let (queue, overhead) = (owner.queue, owner.overhead);
        let in_parts = self.queues[queue].live().is_some_and(|live| live.line().is_in_parts());
        // Where the clock was set back its rest waits for it, and what is here was due.
        let waits = !in_parts && bound.due <= now.wall && !mutated(Mutant::WindowInParts);
        let settings = self.queues.settings_of(queue);
        let (max_items, max_bytes) = match settings.format {
            Format::Passthrough => (1, u64::MAX),
            Format::Json | Format::Ndjson | Format::CloudEvents => {
                (settings.max_items as usize, settings.max_bytes)
            }
        };
        let owner = &mut self.customers[customer];
        let most = max_items.min(most).max(1);
        let mut bytes = overhead.batch;
        let (mut taken, mut is_full) = (Vec::new(), false);
        let mut next = None;
        while let Some(id) = owner.ready.first() {
            if !is_ready(&id) {
                owner.ready.pop_first();
                continue;
            }
            let (item, place) = (&items[id], items[id].place());
            if place >= bound {
                next = Some(place);
                break;
            }
            bytes += u64::from(item.weight()) + overhead.item;
            is_full = taken.len() >= most || (!taken.is_empty() && bytes > max_bytes);
            if is_full && !mutated(Mutant::BatchUnbounded) {
                break;
            }
            taken.push(id);
            owner.ready.pop_first();
        }
        if taken.len() < most && !is_full && (waits || in_parts) {
            let whole = whole(taken.iter().map(|id| items[*id].place()), bound, next);
            if waits {
                owner.ready.put_back(taken.split_off(whole), |id| items[id].place());
            } else if whole < taken.len() {
                self.counters.windows_in_parts += 1;
            }
        }
        if owner.ready.is_empty() {
            owner.turn = CustomerTurn::None;
            if taken.is_empty() {
                self.customers.release(customer, self.queues.at(queue).live());
                return None;
            }
        } else if !taken.is_empty() {
            self.queues.at(queue).live().line_mut().push(Entry::Customer(customer));
        }
        Some(taken)
    }

    /// More of the queue has been loaded: what waited for that stands in line again, before the others.
    pub(in crate::engine) fn unstall(&mut self, queue: QueueId) {
        self.stalled.remove(&queue);
        let again = self.queues.at(queue).live().line_mut().unstall();
        self.work += again.len() as u64;
        again.into_iter().for_each(|entry| self.turn_to(entry, CustomerTurn::InLine));
        self.queues.at(queue).run();
    }

    /// There is no room for the rest of the window that the queue waits for, and nothing that could make it.
    /// Where what is here fills half of the memory, or it has been so for long, it leaves without. For how
    /// long it waits still, ms; `None`: it does not wait for that.
    pub(in crate::engine) fn leave_in_parts(&mut self, queue: QueueId, now: Now) -> Option<u64> {
        let line = self.queues.at(queue).live().line_mut();
        if !line.has_stalled() || !line.is_empty() {
            return None;
        }
        let fills = line.items() >= self.budget.rows as u64 / 2;
        let left = if fills { 0 } else { REST_MS.saturating_sub(line.lacks_room(now.mono)) };
        if left == 0 {
            self.unstall(queue);
            self.queues.at(queue).live().line_mut().leave_in_parts();
        }
        Some(left)
    }

    fn turn_to(&mut self, entry: Entry, turn: CustomerTurn) {
        if let Entry::Customer(customer) = entry {
            self.customers[customer].turn = turn;
        }
    }

    /// The clock went back while it was due: it waits for its time anew.
    pub(in crate::engine) fn postpone(&mut self, id: ItemId) {
        let key = self.items[id].place();
        self.set_stage(id, Stage::Scheduled);
        self.schedule.insert(items::place_of(id), key);
    }

    /// A dead letter waits until then, wall clock, and others go before it.
    pub(in crate::engine) fn defer_letter(&mut self, id: ItemId, until: u64, now: Now) {
        let from = self.place_in_store(&self.items[id]);
        let Some(mut item) = self.remove(id) else { return };
        let (queue, old) = (item.queue(), item.place());
        item.defer(until);
        if item.is_stored() {
            item.set_stored(self.journal.next_token());
            let (to, none) = (self.place_in_store(&item), IndexRows::default());
            let standing = Box::new(item.standing());
            self.journal.push(Op::Move { from, to, removed: none.clone(), written: none, standing });
            self.queues.at(queue).remove_stored(old, true);
            self.queues.at(queue).add_resident(item.place());
            self.reads.note_rewritten(item.rewritten());
        }
        let key = item.place();
        let id = self.insert(item);
        self.keep_content(id, now);
        self.schedule.insert(items::place_of(id), key);
    }

    /// Items that may be confirmed before they are written, as far as they are still there.
    pub(in crate::engine) fn deferred(&self) -> impl Iterator<Item = ItemId> + '_ {
        self.deferred.iter().map(|(_, id)| *id)
    }

    /// Changes what is known of an item, as by an attempt that has failed: that goes to the store when it
    /// leaves memory.
    pub(in crate::engine) fn amend(&mut self, id: ItemId, change: impl FnOnce(&mut Item)) {
        change(&mut self.items[id]);
    }

    /// An item is under way, or is not any more: what is may not be dropped.
    pub(in crate::engine) fn set_flying(&mut self, id: ItemId, flight: Option<u64>) {
        let (queue, key) = (self.items[id].queue(), self.items[id].place());
        self.set_stage(id, flight.map_or(Stage::Ready, Stage::Flying));
        let live = self.queues.at(queue).live();
        match flight {
            Some(_) => live.may_not_drop(key, id),
            None => {
                live.may_drop(key, id);
                self.queues.at(queue).may_trim();
            }
        }
    }
}

/// How many of these, which are due and lie below the bound, leave nothing of their windows behind. The rest
/// of one lies beyond the bound, or something of the same millisecond does, `next`, behind which others of
/// its window may come: the order in the store is not that of arrival.
fn whole(mut places: impl ExactSizeIterator<Item = Key>, bound: Key, next: Option<Key>) -> usize {
    let all = places.len();
    let is_cut = |place: Key| {
        let rest = (place.due, place.window) == (bound.due, bound.window);
        rest || next.is_some_and(|next| next.due == place.due)
    };
    places.position(is_cut).unwrap_or(all)
}
