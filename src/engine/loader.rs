//! Decides which rows are loaded, and when: the next rows of each queue before they are due, and a few at the
//! head of a queue that is to be probed or trimmed.
//!
//! A read reserves its place in memory when it is issued. If memory is full, items due later are evicted for
//! items due sooner; and if all items in memory wait for others in the store, a few more rows are loaded.

use super::ids::{ItemId, QueueId};
use super::live::{fill_of, LiveItems, HORIZON_MS};
use super::mutant::{mutated, Mutant};
use super::queue::{Condition, Loading, LAST};
use super::reads::ReadLine;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;
use tidegate_types::event::{Load, Range, RangeRows};
use tidegate_types::{Key, Now};

/// Between two reads at a start that go up to the horizon, which moves on with the clock, ms.
const PAUSE_AT_START_MS: u64 = 500;

/// Items due within this time may evict others that are due later, ms.
const URGENT_MS: u64 = 2_000;

/// The memory that one read has reserved.
#[derive(Clone, Copy, Debug)]
struct Share {
    bytes: u64,
    /// Its rows may exceed the bound of memory.
    few: bool,
    /// It reads passed-over items.
    back: bool,
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Loader {
    /// Queues to read, by the time of the read (wall clock), which follows the due of their next rows.
    wanted: BTreeSet<(u64, QueueId)>,
    /// The same for failing queues, to probe them once an item is due. Separate, since with full memory they
    /// would wait behind all items due within the next seconds.
    probes: BTreeSet<(u64, QueueId)>,
    /// Queues with passed-over items to read, and the last one that was read.
    back: BTreeSet<QueueId>,
    last_back: Option<QueueId>,
    under_way: VecDeque<Share>,
    /// If memory was short: when to try again.
    blocked_until: Option<u64>,
    /// Stalled items have been moved, or more items are to be evicted than one turn may.
    moved: bool,
    /// No stalled items are left that could be evicted.
    exhausted: bool,
    /// How many items may still be evicted in this turn for rows to be read.
    evictable: usize,
    /// When this life began.
    opened: Now,
}

impl Loader {
    /// Nothing is read yet in the life that begins now.
    pub(crate) fn new(now: Now) -> Self {
        let (wanted, probes) = (BTreeSet::new(), BTreeSet::new());
        Loader {
            wanted,
            probes,
            back: BTreeSet::new(),
            last_back: None,
            under_way: VecDeque::new(),
            blocked_until: None,
            moved: false,
            exhausted: false,
            evictable: 0,
            opened: now,
        }
    }

    /// Checks the queues that have changed, and issues the reads that are due. Whether items may leave now
    /// that could not before, or more is to be evicted and read at once.
    pub(crate) fn advance(&mut self, live: &mut LiveItems, now: Now, loads: &mut Vec<Load>) -> bool {
        for id in live.queues.take_marked() {
            if live.queues.get(id).is_some() {
                let at = self.wanted_at(live, id, now);
                self.want(live, id, at);
                if is_wanted_back(live, id) {
                    self.back.insert(id);
                } else {
                    self.back.remove(&id);
                }
            }
        }
        (self.blocked_until, self.moved, self.exhausted) = (None, false, false);
        self.evictable = live.thresholds().evicted;
        // One at a time, so that ordinary reads wait for one such read at most.
        if !self.under_way.iter().any(|share| share.back) {
            loads.extend(self.next_read_back(live, now));
        }
        while self.under_way.len() < live.thresholds().reads {
            let Some(load) = self.next_read(live, now) else { break };
            loads.push(load);
        }
        self.moved
    }

    /// Whether rows are being loaded, some of which may be due.
    pub(crate) fn is_reading(&self) -> bool {
        !self.under_way.is_empty()
    }

    fn want(&mut self, live: &mut LiveItems, id: QueueId, at: u64) {
        let before = live.queues.at(id).wake_at(at);
        if before != u64::MAX {
            self.wanted.remove(&(before, id));
            self.probes.remove(&(before, id));
        }
        if at != u64::MAX {
            let probed = live.queues[id].is_failing() && !mutated(Mutant::ProbesBehindLater);
            let set = if probed { &mut self.probes } else { &mut self.wanted };
            set.insert((at, id));
        }
    }

    fn next_read(&mut self, live: &mut LiveItems, now: Now) -> Option<Load> {
        let (mut ranges, mut few) = (Vec::new(), false);
        let (most, free) = (live.thresholds().ranges, live.shared.free_rows());
        // A queue that finds no room must not keep others from being read.
        let due = |set: &BTreeSet<(u64, QueueId)>| -> Vec<QueueId> {
            let due = set.iter().take_while(|(at, _)| *at <= now.wall).take(most * 4);
            due.map(|(_, id)| *id).collect()
        };
        let mut due = [due(&self.wanted), due(&self.probes)].concat();
        // In order of due: else rows that are read first would be evicted for others due sooner.
        if !mutated(Mutant::LaterIsReadFirst) {
            due.sort_by_key(|id| {
                if live.queues[*id].is_trimming() {
                    0
                } else {
                    live.queues[*id].near_until().due
                }
            });
        }
        for id in due {
            if ranges.len() >= most || few || self.is_for_next_turn(live) {
                break;
            }
            if live.queues[id].near_until() == LAST {
                // The items that it lacked have ended since.
                self.want(live, id, u64::MAX);
                continue;
            }
            let near = live.queues[id].near_until().due;
            let waits = self.is_stuck(live, id) && near <= now.wall;
            let rows = match self.room(live, id, near, now) {
                Some(room) => room,
                None if self.make_room_for_few(live, id, waits, now) => {
                    few = true;
                    live.thresholds().few
                }
                None if near <= now.wall && !waits && self.evictable > 0 => {
                    // Its items in memory leave first; then it is checked again.
                    self.want(live, id, u64::MAX);
                    continue;
                }
                None => continue,
            };
            self.want(live, id, u64::MAX);
            ranges.push(begin(live, id, rows, now));
        }
        if ranges.is_empty() {
            return None;
        }
        // Where it takes most of the rows, there is no other read to leave the payloads' room for; and an
        // item without its payload costs a further read once it is due.
        let taken = free.saturating_sub(live.shared.free_rows()) as u64;
        let bytes = live.shared.free_bytes();
        let bytes = (bytes / 2).max(bytes.saturating_mul(taken) / (free as u64).max(1));
        live.shared.reserve(0, bytes);
        live.shared.reads.begin(ReadLine::Ordered);
        self.under_way.push_back(Share { bytes, few, back: false });
        Some(Load::Ranges { ranges, max_rows: live.thresholds().read, max_bytes: bytes })
    }

    /// Reads passed-over items of some queues, in rotation, each from its first wanted row on. Payloads are
    /// fetched when the items leave.
    fn next_read_back(&mut self, live: &mut LiveItems, now: Now) -> Option<Load> {
        let (mut ranges, mut few, mut left) = (Vec::new(), false, live.thresholds().read);
        let behind = |last: QueueId| self.back.range((Bound::Excluded(last), Bound::Unbounded));
        let mut ids: Vec<QueueId> = self.last_back.into_iter().flat_map(behind).copied().collect();
        ids.extend(self.back.iter().filter(|id| self.last_back.is_none_or(|last| **id <= last)));
        for id in ids {
            if ranges.len() >= live.thresholds().ranges || few || left == 0 || self.is_for_next_turn(live) {
                break;
            }
            let wanted = live
                .queues
                .get(id)
                .and_then(|queue| queue.passed().wanted().filter(|(first, _)| *first < queue.near_until()));
            let Some((from, of)) = wanted else {
                self.back.remove(&id);
                continue;
            };
            let rows = match self.room(live, id, from.due, now) {
                Some(room) => room,
                None if self.make_room_for_few(live, id, true, now) => {
                    few = true;
                    live.thresholds().few
                }
                None => continue,
            };
            self.back.remove(&id);
            self.last_back = Some(id);
            // The number of useful rows, if all rows of the range are wanted.
            let useful = fill_of(live, id).saturating_mul(of as u64).try_into().unwrap_or(usize::MAX);
            let rows = rows.min(useful.max(2 * live.thresholds().few));
            // A queue that is listed is reached within this read, and the next read continues behind it.
            left = left.saturating_sub(rows);
            ranges.push(begin_back(live, id, from, rows));
        }
        if ranges.is_empty() {
            return None;
        }
        live.shared.reads.begin(ReadLine::Ordered);
        self.under_way.push_back(Share { bytes: 0, few, back: true });
        Some(Load::Ranges { ranges, max_rows: live.thresholds().read, max_bytes: 0 })
    }

    /// Whether memory is full and this turn has evicted all that it may: the next one goes on at once.
    fn is_for_next_turn(&mut self, live: &LiveItems) -> bool {
        let is_over = self.evictable == 0 && live.shared.free_rows() == 0;
        self.moved |= is_over;
        is_over
    }

    /// Number of rows of this queue, due from `near` on, for which there is room. Evicts others if it is
    /// urgent.
    fn room(&mut self, live: &mut LiveItems, id: QueueId, near: u64, now: Now) -> Option<usize> {
        if live.shared.free_rows() == 0 {
            // Items to be dead-lettered are wanted now, whenever they are due.
            let ahead = if live.queues[id].is_trimming() { u64::MAX } else { URGENT_MS };
            let urgent_at = near.saturating_sub(ahead);
            if urgent_at <= now.wall {
                let most = (live.thresholds().few * 4).min(self.evictable);
                self.evictable -= live.evict_furthest(most, near, now);
                self.moved |= self.evictable == 0;
            }
            // Others are evicted from then on; if none can be, a few rows exceed the bound once they are due.
            let next = [urgent_at, near].into_iter().find(|at| *at > now.wall);
            self.blocked_until = [self.blocked_until, next].into_iter().flatten().min();
        }
        if mutated(Mutant::MembersCrowdIn) {
            return Some(live.thresholds().chunk);
        }
        Some(live.shared.free_rows()).filter(|room| *room > 0)
    }

    /// Whether the queue's due items in memory wait for others in the store.
    fn is_stuck(&self, live: &LiveItems, id: QueueId) -> bool {
        live.queues[id].active().is_none_or(|active| active.ready().is_empty())
    }

    /// Whether a few due rows may be loaded beyond the bound of memory, because their queue waits for them.
    /// Stalled items are evicted for them. `waits`: whether the queue waits.
    fn make_room_for_few(&mut self, live: &mut LiveItems, id: QueueId, waits: bool, now: Now) -> bool {
        if !(waits || live.queues[id].is_trimming()) || self.under_way.iter().any(|share| share.few) {
            return false;
        }
        let (few, most) = (live.thresholds().few, live.thresholds().few * live.thresholds().reads);
        // The queue with the earliest due comes first, and may evict the most.
        let mut more = !self.exhausted;
        while live.shared.rows_beyond() >= most && more && self.evictable > 0 {
            let evicted = live.evict_stalled(id, few.min(self.evictable), now);
            self.moved |= evicted > 0;
            self.exhausted |= evicted == 0 && waits;
            self.evictable -= evicted;
            more = evicted > 0;
        }
        if live.shared.rows_beyond() < most {
            return true;
        }
        let left = if waits && self.exhausted { live.at(id).leave_in_parts(now) } else { None };
        self.moved |= left == Some(0);
        let next = left.filter(|left| *left > 0).map(|left| now.wall + left);
        self.blocked_until = [self.blocked_until, next].into_iter().flatten().min();
        false
    }

    /// Takes the rows of a read. Returns the loaded items, in order.
    pub(crate) fn loaded(&mut self, live: &mut LiveItems, ranges: Vec<RangeRows>, now: Now) -> Vec<ItemId> {
        let mut restored = Vec::new();
        if self.under_way.front().is_some_and(|share| share.back) {
            self.under_way.pop_front();
            for range in ranges {
                restored.extend(loaded_back(live, range, now));
            }
            return restored;
        }
        for RangeRows { queue: name, rows, next } in ranges {
            let Some(id) = live.queues.find(&name) else {
                debug_assert!(false, "a queue that is being read stays known");
                continue;
            };
            let held = live.queues[id].is_held_back();
            let Some(loading) = live.queues.at(id).at_work().loading_mut().as_mut() else {
                debug_assert!(false, "only what is being read is loaded");
                continue;
            };
            loading.void |= held && !loading.head;
            let void = loading.void;
            if !void {
                restored.extend(rows.into_iter().filter_map(|stored| live.restore(stored, false, now)));
            }
            let next = if mutated(Mutant::NearUntilOffByOne) {
                next.map(|key| Key { seq: key.seq + 1, ..key })
            } else {
                next
            };
            if let Some(loading) = live.queues.at(id).loaded(next) {
                let kept = void && mutated(Mutant::VoidReadKeepsItsPlace);
                live.shared.fulfil(if kept { 0 } else { loading.rows }, 0);
            }
            live.at(id).unstall();
            live.queues.at(id).may_trim();
            live.queues.at(id).mark_for_loader();
        }
        if let Some(share) = self.under_way.pop_front() {
            live.shared.fulfil(0, share.bytes);
        }
        restored
    }

    /// Rows are wanted for which there is no memory.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked_until.is_some()
    }

    /// When the queue's next rows must be read, wall clock; `u64::MAX`: not before something changes.
    fn wanted_at(&self, live: &LiveItems, id: QueueId, now: Now) -> u64 {
        let queue = &live.queues[id];
        if queue.far() == 0
            || queue
                .active()
                .is_some_and(|active| active.loading().is_some() || active.is(Condition::Evicting))
        {
            return u64::MAX;
        }
        let near = queue.near_until();
        if near == LAST {
            // All items that are in the store only are passed over.
            return u64::MAX;
        }
        let Some(active) = queue.active() else {
            return if queue.is_paused() { u64::MAX } else { self.read_at(near.due, now) };
        };
        if active.is(Condition::Trimming) {
            let lacks_head = active.droppable().next().is_none_or(|(key, _)| key > near);
            return if lacks_head { 0 } else { u64::MAX };
        }
        if queue.is_paused() || queue.is_parked() || active.is(Condition::SlowProbe) {
            return u64::MAX;
        }
        if queue.is_failing() {
            // For a probe, once an item is due.
            return if active.ready().is_empty() && active.flights().under_way() == 0 {
                near.due
            } else {
                u64::MAX
            };
        }
        // A queue from which much leaves at a time needs as much again in memory when that has left.
        let enough = active.flights().items().min(live.thresholds().ready / 2).max(live.thresholds().enough);
        if active.ready().items() >= enough && near.due <= now.wall && !active.ready().is_empty() {
            return u64::MAX;
        }
        self.read_at(near.due, now)
    }

    /// When rows with this due are read in time, wall clock. A window whose row a former life did not write,
    /// as it was short, is known by its members alone, and they say when it has to close: those are read at
    /// once.
    fn read_at(&self, due: u64, now: Now) -> u64 {
        let opened = self.opened;
        // A clock that was set back since would find a new end of the horizon with each read.
        let lately = now.mono <= opened.mono + HORIZON_MS;
        let is_former = lately && due <= opened.wall.saturating_add(HORIZON_MS);
        due.saturating_sub(if is_former { HORIZON_MS - PAUSE_AT_START_MS } else { HORIZON_MS / 2 })
    }

    /// When to check again without an event, wall clock.
    pub(crate) fn deadline(&self, now: Now) -> Option<u64> {
        let first =
            |set: &BTreeSet<(u64, QueueId)>| set.first().map(|(at, _)| *at).filter(|at| *at > now.wall);
        [first(&self.wanted), first(&self.probes), self.blocked_until].into_iter().flatten().min()
    }
}

/// Whether passed-over items must be read now.
fn is_wanted_back(live: &LiveItems, id: QueueId) -> bool {
    let queue = &live.queues[id];
    // Items at or above `near_until` wait for those below it.
    let wanted = queue.passed().wanted().is_some_and(|(first, _)| first < queue.near_until());
    if !wanted || queue.is_paused() || queue.is_parked() {
        return false;
    }
    let Some(active) = queue.active() else { return true };
    let is_idle = active.ready().is_empty() && active.flights().under_way() == 0;
    // Of a failing queue only for a probe, if there is nothing else to send.
    !active.is(Condition::SlowProbe) && !active.is(Condition::Evicting) && (!queue.is_failing() || is_idle)
}

/// Begins a read of passed-over items from this key on, and reserves memory for it.
fn begin_back(live: &mut LiveItems, id: QueueId, from: Key, room: usize) -> Range {
    let queue = &live.queues[id];
    let probe = queue.is_held_back();
    let most = if probe { live.thresholds().probe } else { live.thresholds().chunk };
    let rows = most.min(room).max(1);
    // Items at or above `near_until` have not been passed over.
    let until = queue.near_until().due.saturating_add(1);
    let end = if until == u64::MAX { LAST } else { Key::at(until) };
    let name = Arc::clone(queue.name());
    live.shared.reserve(rows, 0);
    live.queues.at(id).passed_mut().begin_read((from, end), rows, probe);
    Range { queue: name, from, until, max_rows: rows }
}

/// Takes the rows of a read of passed-over items. Returns the loaded items, in order.
fn loaded_back(
    live: &mut LiveItems,
    RangeRows { queue: name, rows, next }: RangeRows,
    now: Now,
) -> Vec<ItemId> {
    let mut restored = Vec::new();
    let Some(id) = live.queues.find(&name) else {
        debug_assert!(false, "a queue that is being read stays known");
        return restored;
    };
    let queue = &live.queues[id];
    let Some(reading) = queue.passed().reading() else {
        debug_assert!(false, "only what is being read is loaded");
        return restored;
    };
    // Items of a queue that is held back since would only be evicted again.
    let void = queue.is_held_back() && !reading.probe;
    if !void {
        let near = queue.near_until();
        let rows = rows.into_iter().filter(|stored| stored.place() < near);
        restored.extend(rows.filter_map(|stored| live.restore(stored, true, now)));
    }
    let near = live.queues[id].near_until();
    if let Some((read, customers)) = live.queues.at(id).passed_mut().end_read(next, void, near) {
        live.shared.fulfil(read.rows, 0);
        for customer in customers {
            let known = live.queues[id].customer(&customer);
            known.into_iter().for_each(|known| live.at(id).of(known).call_behind());
        }
    }
    if live.queues[id].near_until() == LAST {
        // Nothing else is missing from memory: stalled items may leave.
        live.at(id).unstall();
    }
    restored
}

/// Begins a read of the queue's next rows, and reserves memory for it.
fn begin(live: &mut LiveItems, id: QueueId, room: usize, now: Now) -> Range {
    let queue = &live.queues[id];
    let from = queue.near_until();
    let trimming = live.queues[id].is_trimming();
    let head = trimming || queue.is_held_back();
    let most = match (trimming, head) {
        (true, _) => live.thresholds().trim_read,
        (false, true) => live.thresholds().probe,
        (false, false) => live.thresholds().chunk,
    };
    // Rows of items that are in memory already lie between them.
    let rows = most.min(room).min(queue.stored().try_into().unwrap_or(usize::MAX)).max(1);
    // At the head of a queue that is trimmed or probed, rows are wanted whenever they are due.
    let until = if trimming { u64::MAX } else { (now.wall + HORIZON_MS).max(from.due.saturating_add(1)) };
    let name = Arc::clone(queue.name());
    live.shared.reserve(rows, 0);
    let loading = Loading { from, until, rows, behind: None, void: false, head };
    *live.queues.at(id).at_work().loading_mut() = Some(loading);
    Range { queue: name, from, until, max_rows: rows }
}
