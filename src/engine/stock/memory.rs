//! Between memory and store: what comes into memory, what leaves it, and what it costs there.

use super::*;

impl Stock {
    /// Takes a stored item into memory, unless it is there or has ended meanwhile. Its handle, where it came.
    pub(in crate::engine) fn restore(&mut self, mut stored: Stored, now: Now) -> Option<ItemId> {
        let seq = stored.key.seq;
        if self.items.by_seq(seq).is_some() || !self.reads.is_current(seq) {
            return None;
        }
        // Its window may have closed, and it have left memory, since the read began.
        self.reads.renew(&mut stored);
        let queue = self.queues.id(stored.queue());
        let windowed = stored.is_windowed();
        let customer = stored.customer.as_deref().filter(|_| stored.dead.is_none());
        let customer = customer.map(|name| self.customers.id(self.queues.at(queue).live(), name));
        let (place, is_dead) = (stored.place(), stored.dead.is_some());
        let item = Item::restored(stored, queue, customer);
        let closed = item.closed_early();
        self.queues.at(queue).add_restored(place);
        let id = self.insert(item);
        let later = place.due > now.wall && !is_dead;
        // Where the clock was set back the moment at which its window closed is ahead, and it stays closed.
        match customer.filter(|_| windowed && later && (!closed || mutated(Mutant::ClosedRejoins))) {
            Some(customer) if self.rejoin_window(id, customer, now) => self.add_member(id, now),
            Some(_) | None if later => {
                self.set_stage(id, Stage::Scheduled);
                self.schedule.insert(items::place_of(id), place);
            }
            Some(_) | None => {
                let window = customer.and_then(|customer| self.customers.window(customer));
                if windowed && window.is_some_and(|window| window.holds(self.items[id].key())) {
                    self.items[id].stray();
                }
                self.push_ready(id);
            }
        }
        Some(id)
    }

    /// An item leaves memory, and waits in the store alone. It is on no list but that of its open window.
    pub(super) fn evict(&mut self, id: ItemId, now: Now) {
        if self.items[id].is_orphaned() {
            return self.give_back(id);
        }
        let item = &self.items[id];
        let (queue, customer, place) = (item.queue(), item.customer(), item.place());
        let customer_row = self.customer_row(item);
        customer.into_iter().for_each(|customer| self.customers.pin(customer));
        if let (Some(customer), Stage::Windowed { pos, .. }) = (customer, item.stage()) {
            self.forget_member(customer, pos);
            self.customers.add_far(customer, now.wall + HORIZON_MS);
        }
        let Some(mut item) = self.remove(id) else { return };
        if !mutated(Mutant::EvictUntold) {
            self.watch.changed(item.identity());
        }
        if item.is_stored() {
            self.rewrite(&item, customer_row);
            self.queues.at(queue).evicted(place);
        } else {
            item.set_indexed(customer_row.is_some());
            self.write(&mut item);
            self.queues.at(queue).remove_pending();
            self.queues.at(queue).add_far(place);
        }
        customer
            .into_iter()
            .for_each(|customer| self.customers.unpin(customer, self.queues.at(queue).live()));
    }

    /// What the row of an item that leaves memory lacks: its standing, or its row under the customer.
    fn rewrite(&mut self, item: &Item, customer: Option<(Arc<str>, Arc<str>)>) {
        if item.amended() {
            let (place, none) = (self.place_in_store(item), IndexRows::default());
            let standing = Box::new(item.standing());
            let (from, to) = (place.clone(), place);
            self.journal.push(Op::Move { from, to, removed: none.clone(), written: none, standing });
            self.reads.note_rewritten(item.rewritten());
        }
        // Of an item of a former life it is not known whether it has one.
        let unsure = item.key().due < self.queues[item.queue()].former_unindexed();
        let lacks = customer.is_some() && (unsure || !item.indexed());
        if lacks && !mutated(Mutant::IndexForgotten) {
            let rows = IndexRows { identity: None, customer };
            self.journal.push_lazy(Op::Index { key: item.key(), rows });
        }
    }

    /// Items due last, all after this moment, leave memory.
    pub(in crate::engine) fn evict_furthest(&mut self, count: usize, after: u64, now: Now) -> usize {
        if !self.journal.is_durable() {
            return 0;
        }
        let most = self.thresholds().evicted;
        let items = &self.items;
        let key_of = |place| items.at(place).map_or(Key::default(), |id| items[id].place());
        let places = self.schedule.take_furthest(count.min(most), after, key_of);
        let ids: Vec<ItemId> = places.into_iter().filter_map(|place| self.items.at(place)).collect();
        for id in &ids {
            if let Stage::Windowed { pos, .. } = self.items[*id].stage() {
                self.set_stage(*id, Stage::Windowed { pos, scheduled: false });
            }
            self.evict(*id, now);
        }
        ids.len()
    }

    /// Makes room in memory for an item with this key: what is due later leaves it. False: all that is there
    /// is due sooner.
    pub(super) fn make_room(&mut self, key: Key, now: Now) -> bool {
        if self.free_rows() == 0 {
            self.evict_furthest(self.budget.rows / 16 + 1, key.due, now);
        }
        self.free_rows() > 0
    }

    /// What is to leave memory does so, a chunk a turn: what is due in queues that are held back, and what
    /// is beyond the bound. Whether more is to do.
    pub(in crate::engine) fn clear_out(&mut self, now: Now) -> bool {
        let held_back = self.evict_held_back(now);
        self.evict_beyond(now) || held_back
    }

    fn evict_held_back(&mut self, now: Now) -> bool {
        let mut left = self.thresholds().evicted;
        while left > 0 {
            let Some(queue) = self.evicting.front().copied() else { break };
            if self.queues.get(queue).is_none_or(|queue| !queue.is_held_back())
                || !self.evict_some(queue, &mut left, now)
            {
                self.evicting.pop_front();
                if self.queues.get(queue).is_some() {
                    self.queues.at(queue).live().set(Condition::Evicting, false);
                    self.queues.at(queue).look_at();
                    self.queues.at(queue).run();
                }
            }
        }
        !self.evicting.is_empty()
    }

    /// What was in batches and waits for a later time again, as after a step of the clock, does not stay
    /// beyond what reads may bring in beyond the bound of memory.
    fn evict_beyond(&mut self, now: Now) -> bool {
        let most = self.thresholds().few * (self.thresholds().reads + 1);
        let beyond = self.rows_beyond().saturating_sub(most);
        beyond > 0 && self.evict_furthest(beyond, now.wall, now) > 0 && self.rows_beyond() > most
    }

    /// Due items that wait for what has still to be read, with nothing else of their queue due, leave memory
    /// for what this queue waits for, at most so many: of its own those that come behind it, and of queues
    /// that wait for something later all. How many have.
    pub(in crate::engine) fn evict_stalled(&mut self, queue: QueueId, most: usize, now: Now) -> usize {
        if !self.journal.is_durable() {
            return 0;
        }
        let waits_for = |stock: &Stock, id: QueueId| (stock.queues[id].near_until().due, id);
        let others = self.stalled.iter().copied().filter(|id| *id != queue);
        let others = others.take(self.thresholds().ranges * 4);
        let ids: Vec<QueueId> = std::iter::once(queue).chain(others).collect();
        let mut left = most;
        for id in ids {
            let line = |stock: &Stock| {
                let line = stock.queues.get(id)?.live()?.line();
                line.has_stalled().then_some(line.is_empty())
            };
            if left > 0 && line(self) == Some(true) {
                let later = waits_for(self, id) > waits_for(self, queue);
                let bound = if later { Key::default() } else { self.queues[id].near_until() };
                self.evict_stalled_of(id, bound, &mut left, now);
            }
            if line(self).is_none() {
                self.stalled.remove(&id);
            }
        }
        most - left
    }

    /// What is stalled in a queue leaves memory, the last first, from this bound on.
    fn evict_stalled_of(&mut self, queue: QueueId, bound: Key, left: &mut usize, now: Now) {
        let mut entries = self.queues.at(queue).live().line_mut().take_stalled();
        let mut stays = Vec::new();
        while *left > 0 {
            let Some(entry) = entries.pop() else { break };
            let before = *left;
            if !self.evict_entry(entry, bound, left, now) {
                continue;
            }
            match entry {
                // Where the order in the store is not that of arrival, its first one waited for others.
                Entry::Customer(customer) if *left < before => {
                    self.customers[customer].turn = CustomerTurn::InLine;
                    self.queues.at(queue).live().line_mut().push(entry);
                    self.queues.at(queue).run();
                }
                Entry::Customer(_) | Entry::Single(_) => stays.push(entry),
            }
        }
        entries.extend(stays.into_iter().rev());
        self.queues.at(queue).live().line_mut().put_stalled(entries);
    }

    /// What is in the queue's line leaves memory, the last first. Whether anything of the line is left.
    pub(super) fn evict_some(&mut self, queue: QueueId, left: &mut usize, now: Now) -> bool {
        while *left > 0 {
            let Some(entry) = self.queues.at(queue).live().line_mut().take_last() else {
                self.stalled.remove(&queue);
                return false;
            };
            if let (true, Entry::Customer(customer)) =
                (self.evict_entry(entry, Key::default(), left, now), entry)
            {
                self.customers[customer].turn = CustomerTurn::InLine;
                self.queues.at(queue).live().line_mut().push(entry);
            }
        }
        true
    }

    /// What is due of an entry that has been taken from its line leaves memory, the last first, from this
    /// bound on: where the order in the store is not that of arrival the first may lie there, too. Whether
    /// anything of it is left.
    fn evict_entry(&mut self, entry: Entry, bound: Key, left: &mut usize, now: Now) -> bool {
        let (items, mut ids) = (&self.items, Vec::new());
        let all = mutated(Mutant::LeavingMakesRoom);
        let is_behind = |id: ItemId| all || items.get(id).is_none_or(|item| item.place() >= bound);
        match entry {
            Entry::Single(id) => ids.push(id),
            Entry::Customer(customer) => {
                if self.customers.get(customer).is_none() {
                    return false;
                }
                let ready = &mut self.customers[customer].ready;
                while ids.len() < *left {
                    let last = ready.pop_last_if(is_behind).or_else(|| ready.pop_first_if(is_behind));
                    let Some(id) = last else { break };
                    ids.push(id);
                }
            }
        }
        *left = left.saturating_sub(ids.len());
        for id in ids {
            if self.items.get(id).is_some_and(|item| item.stage() == Stage::Ready) {
                self.queues.at(self.items[id].queue()).count_ready(-1);
                self.evict(id, now);
            }
        }
        let Entry::Customer(customer) = entry else { return false };
        let is_left = !self.customers[customer].ready.is_empty();
        if !is_left {
            self.customers[customer].turn = CustomerTurn::None;
            let queue = self.customers[customer].queue;
            self.customers.release(customer, self.queues.at(queue).live());
        }
        is_left
    }

    /// The queue is held back: its due items are to leave memory, where they can.
    pub(in crate::engine) fn begin_evicting(&mut self, queue: QueueId, now: Now) {
        self.queues.at(queue).begin_hold(now.wall);
        if !self.journal.is_durable() || mutated(Mutant::ParkedStaysInMemory) {
            return;
        }
        let live = self.queues.at(queue).live();
        let holds = !live.line().is_empty() || live.line().has_stalled();
        if holds && !live.set(Condition::Evicting, true) {
            self.evicting.push_back(queue);
        }
        self.queues.at(queue).look_at();
    }

    pub(super) fn insert(&mut self, item: Item) -> ItemId {
        self.work += 1;
        self.batched += usize::from(item.is_in_batch());
        let (queue, key, customer) = (item.queue(), item.place(), item.customer());
        let id = self.items.insert(item);
        customer.into_iter().for_each(|customer| self.customers.add_row(customer, id, &mut self.items));
        self.queues.at(queue).live().may_drop(key, id);
        self.queues.at(queue).may_trim();
        id
    }

    pub(super) fn remove(&mut self, id: ItemId) -> Option<Item> {
        self.detach(&[id]);
        self.take_out(id)
    }

    /// Takes items off the lists and out of the indexes that lead to them: all items out of one, then all out
    /// of the next. What is changed lies anywhere in memory, and the processor fetches several at a time.
    pub(super) fn detach(&mut self, ids: &[ItemId]) {
        self.customers.unlink(ids, &mut self.items);
        self.items.unindex(ids);
    }

    /// The rest of a removal, after [`Stock::detach`].
    pub(super) fn take_out(&mut self, id: ItemId) -> Option<Item> {
        self.work += 1;
        let item = self.items.remove(id)?;
        self.batched -= usize::from(item.is_in_batch());
        if let Some(customer) = item.customer() {
            self.customers.remove_row(customer, self.queues.at(item.queue()).live());
        }
        self.queues.at(item.queue()).live().may_not_drop(item.place(), id);
        self.queues.at(item.queue()).may_trim();
        Some(item)
    }

    pub(super) fn set_stage(&mut self, id: ItemId, stage: Stage) {
        let was = self.items[id].is_in_batch();
        self.items[id].set_stage(stage);
        self.batched = self.batched + usize::from(self.items[id].is_in_batch()) - usize::from(was);
    }

    /// Takes an item off its list, whatever that is; what is in flight stays there.
    pub(in crate::engine) fn unlist(&mut self, id: ItemId) {
        let item = &self.items[id];
        let (key, queue, customer, weight) = (item.place(), item.queue(), item.customer(), item.weight());
        match item.stage() {
            Stage::Scheduled => self.schedule.remove(items::place_of(id), key),
            Stage::Windowed { pos, scheduled } => {
                if scheduled {
                    self.schedule.remove(items::place_of(id), key);
                }
                if let Some(customer) = customer {
                    self.forget_member(customer, pos);
                    let ops = self.journal.ops();
                    self.customers.leave(customer, self.queues.at(queue).live(), weight, false, ops);
                }
            }
            // Its entry is passed over when it is met.
            Stage::Ready => self.queues.at(queue).count_ready(-1),
            Stage::Flying(_) => return,
        }
        self.set_stage(id, Stage::Flying(0));
    }

    pub(in crate::engine) fn configure(&mut self, budget: Budget, now: Now) {
        self.budget = budget;
        self.customers.configure(&self.queues, now);
        for id in self.items.ids().collect::<Vec<_>>() {
            let (queue, key) = (self.items[id].queue(), self.items[id].place());
            let flying = matches!(self.items[id].stage(), Stage::Flying(_));
            if !flying {
                self.queues.at(queue).live().may_drop(key, id);
            }
        }
    }

    /// The wall clock went back: everything waits for its time anew.
    pub(in crate::engine) fn rebase(&mut self, now: Now) {
        let items = &self.items;
        self.schedule
            .rebase(now.wall, |place| items.at(place).map_or(Key::default(), |id| items[id].place()));
    }

    /// Rows that find room in memory, beside those that are on their way from the store.
    pub(in crate::engine) fn free_rows(&self) -> usize {
        self.budget.rows.saturating_sub(self.items.len() + self.reserved.0)
    }

    /// Rows beyond the bound of memory, those in batches apart: who hangs keeps nobody else from it with
    /// these.
    pub(in crate::engine) fn rows_beyond(&self) -> usize {
        let apart = if mutated(Mutant::BatchesCrowdOut) { 0 } else { self.batched };
        (self.items.len() + self.reserved.0).saturating_sub(self.budget.rows + apart)
    }

    /// Bytes of payloads that find room, likewise.
    pub(in crate::engine) fn free_bytes(&self) -> u64 {
        self.budget.contents.saturating_sub(self.items.content_bytes() + self.reserved.1)
    }

    /// A read takes its place in memory.
    pub(in crate::engine) fn reserve(&mut self, rows: usize, bytes: u64) {
        self.reserved = (self.reserved.0 + rows, self.reserved.1 + bytes);
    }

    /// What it has brought counts itself.
    pub(in crate::engine) fn fulfil(&mut self, rows: usize, bytes: u64) {
        self.reserved = (self.reserved.0 - rows, self.reserved.1 - bytes);
    }

    /// Decides whether the payload of an item that is being written stays in memory afterwards.
    pub(super) fn keep_content(&mut self, id: ItemId, now: Now) {
        let item = &self.items[id];
        let Residence::Stored(token) = item.residence() else { return };
        let soon = item.due() <= now.wall + KEEP_MS;
        if !soon || self.items.content_bytes() >= self.budget.contents / 4 * 3 {
            self.journal.fresh(token, id);
        }
    }

    /// A commit became durable: what waited for it is safe, and payloads may go.
    pub(in crate::engine) fn committed(&mut self, token: u64) {
        let before = self.journal.uncommitted();
        for id in self.journal.committed(token) {
            let idle = self.items.get(id).is_some_and(|item| !matches!(item.stage(), Stage::Flying(_)));
            if idle {
                self.drop_content(id);
            }
        }
        self.counters.commits += before - self.journal.uncommitted();
    }

    /// The store has the item for good: its payload can be read from there.
    fn is_readable(&self, id: ItemId) -> bool {
        match self.items[id].residence() {
            Residence::Stored(token) => self.journal.is_committed(token),
            Residence::Pending(_) | Residence::Orphaned => false,
        }
    }

    /// Lets a payload go that can be read again.
    pub(super) fn drop_content(&mut self, id: ItemId) {
        if mutated(Mutant::ContentsStay) {
            return;
        }
        if self.is_readable(id) {
            self.items.take_content(id);
        }
    }

    /// A payload has come from the store.
    pub(in crate::engine) fn set_content(&mut self, id: ItemId, content: Arc<Content>) {
        self.items.set_content(id, content);
    }

    /// The payload for a publish; one that can be read again does not stay.
    pub(in crate::engine) fn lend_content(&mut self, id: ItemId) -> Option<Arc<Content>> {
        if self.is_readable(id) {
            self.items.take_content(id)
        } else {
            self.items[id].content().cloned()
        }
    }

    /// Items whose confirm did not come in time are written now.
    pub(in crate::engine) fn store_deferred(&mut self, now: Now) {
        while let Some((at, id)) = self.deferred.front().copied() {
            let pending =
                self.items.get(id).is_some_and(|item| matches!(item.residence(), Residence::Pending(_)));
            if pending && at > now.mono {
                break;
            }
            self.deferred.pop_front();
            if pending {
                self.store_pending(id, now);
            }
        }
    }

    /// Writes an item that is in memory alone, where it stays.
    pub(super) fn store_pending(&mut self, id: ItemId, now: Now) {
        if !self.journal.is_durable() {
            return;
        }
        let (queue, key) = (self.items[id].queue(), self.items[id].place());
        let stored = self.stored_from(&self.items[id]);
        let token = self.journal.put(stored, false);
        if let Residence::Pending(tag) = self.items[id].residence() {
            self.journal.safe_with(token, tag);
        }
        self.items[id].set_stored(token);
        self.queues.at(queue).add_resident(key);
        self.queues.at(queue).remove_pending();
        self.keep_content(id, now);
    }

    pub(in crate::engine) fn deferred_until(&self) -> Option<u64> {
        self.deferred.front().map(|(at, _)| *at)
    }

    /// The broker delivers again what was not acked: what it alone keeps is orphaned. The cost is that of all
    /// items; it happens with a connection.
    pub(in crate::engine) fn orphan_pending(&mut self) -> Vec<ItemId> {
        let pending: Vec<ItemId> = self.items.ids().filter(|id| !self.items[*id].is_stored()).collect();
        for id in &pending {
            self.items[*id].orphan();
        }
        pending
    }

    #[cfg(test)]
    pub(in crate::engine) fn rows_in_batches(&self) -> usize {
        self.batched
    }

    /// Panics where an invariant is broken.
    #[cfg(test)]
    pub(in crate::engine) fn check(&self) {
        let mut resident: std::collections::BTreeMap<QueueId, (u64, u64)> = std::collections::BTreeMap::new();
        let mut seconds = std::collections::BTreeMap::<QueueId, std::collections::BTreeMap<u64, u32>>::new();
        let batched = self.items.ids().filter(|id| self.items[*id].is_in_batch()).count();
        assert_eq!(self.batched, batched, "items in batches");
        for id in self.items.ids() {
            let item = &self.items[id];
            let counts = resident.entry(item.queue()).or_default();
            if item.is_stored() {
                counts.0 += 1;
                let of_queue = seconds.entry(item.queue()).or_default();
                *of_queue.entry(item.due() / 1_000).or_default() += 1;
            } else {
                counts.1 += 1;
            }
            if let Stage::Windowed { pos, .. } = item.stage() {
                let window = item.customer().and_then(|customer| self.customers.window(customer));
                let window = window.expect("a member has an open window");
                assert_eq!(
                    window.members().get(pos as usize),
                    Some(&id),
                    "it stands where its window has it"
                );
                let known = window.far() as usize + window.members().len();
                assert_eq!(window.count() as usize, known, "members of {}", self.queues[item.queue()].name());
            }
        }
        for queue in self.queues.ids() {
            let (stored, pending) = resident.get(&queue).copied().unwrap_or_default();
            let known = &self.queues[queue];
            assert_eq!(known.resident(), stored, "resident items of queue {}", known.name());
            let due = seconds.remove(&queue).unwrap_or_default();
            let counted = known.live().map(|live| live.resident().seconds().clone()).unwrap_or_default();
            assert_eq!(counted, due, "when those are due of queue {}", known.name());
            assert_eq!(known.total() - known.stored(), pending, "pending items of queue {}", known.name());
        }
        let loading = self.queues.ids().filter_map(|id| self.queues[id].live()?.loading());
        let reserved: usize = loading.map(|loading| loading.rows).sum();
        assert_eq!(self.reserved.0, reserved, "rows that reads under way may bring");
    }
}
