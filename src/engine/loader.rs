//! What comes into memory, and when: the next rows of each queue before they are due, a few at the head of
//! one that is to be probed or trimmed.
//!
//! A read takes its place in memory when it is asked for. Where memory is full, what is due later makes way
//! for what is due sooner; and where all that is there waits for what is not, a few rows more are taken.

use super::event::{Load, Range, RangeRows};
use super::ids::{ItemId, QueueId};
use super::live::{fill_of, LiveItems, HORIZON_MS};
use super::mutant::{mutated, Mutant};
use super::queue::{Condition, Loading, LAST};
use super::reads::ReadLine;
use super::types::{Key, Now};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// Items due within this time make others leave memory that are due later, ms.
const URGENT_MS: u64 = 2_000;

/// Places in memory that one read has taken.
#[derive(Clone, Copy, Debug)]
struct Share {
    bytes: u64,
    /// Beyond the bound.
    few: bool,
    /// Of what was passed over.
    back: bool,
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct Loader {
    /// Queues to be read from, by when (wall clock): in the order in which what they wait for is due.
    wanted: BTreeSet<(u64, QueueId)>,
    /// The same of those that fail, for a probe: once it is due and not before. Apart, or where memory is
    /// full they would stand behind all that is due within the next seconds.
    probes: BTreeSet<(u64, QueueId)>,
    /// Queues of which something that was passed over is to be read; and the last of which it was.
    back: BTreeSet<QueueId>,
    last_back: Option<QueueId>,
    under_way: VecDeque<Share>,
    /// When memory was short: the moment at which others have to make way.
    blocked_until: Option<u64>,
    /// What was stalled stands in line again.
    moved: bool,
    /// Nothing that is stalled can make room for anything that waits.
    exhausted: bool,
}

impl Loader {
    pub(super) fn new() -> Self {
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
        }
    }

    /// Looks again at the queues about which something has changed, and reads from those whose time has come.
    /// Whether something may leave that could not before.
    pub(super) fn advance(&mut self, live: &mut LiveItems, now: Now, loads: &mut Vec<Load>) -> bool {
        for id in live.queues.take_marked() {
            if live.queues.get(id).is_some() {
                let at = wanted_at(live, id, now);
                self.want(live, id, at);
                if is_wanted_back(live, id) {
                    self.back.insert(id);
                } else {
                    self.back.remove(&id);
                }
            }
        }
        (self.blocked_until, self.moved, self.exhausted) = (None, false, false);
        // One at a time: what is read of queues in their order waits for no more.
        if !self.under_way.iter().any(|share| share.back) {
            loads.extend(self.next_read_back(live, now));
        }
        while self.under_way.len() < live.thresholds().reads {
            let Some(load) = self.next_read(live, now) else { break };
            loads.push(load);
        }
        self.moved
    }

    /// Rows are on their way into memory, some of which may be due.
    pub(super) fn is_reading(&self) -> bool {
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
        let most = live.thresholds().ranges;
        // One that finds no room does not keep others from it.
        let due = |set: &BTreeSet<(u64, QueueId)>| -> Vec<QueueId> {
            let due = set.iter().take_while(|(at, _)| *at <= now.wall).take(most * 4);
            due.map(|(_, id)| *id).collect()
        };
        let mut due = [due(&self.wanted), due(&self.probes)].concat();
        // What is read first is there for certain: not what others that are due push out again.
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
            if ranges.len() >= most || few {
                break;
            }
            if live.queues[id].near_until() == LAST {
                // What it lacked has ended since.
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
                None if near <= now.wall && !waits => {
                    // What it has in memory moves first; then it is looked at again.
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
        let bytes = live.shared.free_bytes() / 2;
        live.shared.reserve(0, bytes);
        live.shared.reads.begin(ReadLine::Ordered);
        self.under_way.push_back(Share { bytes, few, back: false });
        Some(Load::Ranges { ranges, max_rows: live.thresholds().read, max_bytes: bytes })
    }

    /// Reads what was passed over, from its first row on of which more is wanted: of some queues, the others
    /// in their turn. Payloads are fetched once it leaves.
    fn next_read_back(&mut self, live: &mut LiveItems, now: Now) -> Option<Load> {
        let (mut ranges, mut few, mut left) = (Vec::new(), false, live.thresholds().read);
        let behind = |last: QueueId| self.back.range((Bound::Excluded(last), Bound::Unbounded));
        let mut ids: Vec<QueueId> = self.last_back.into_iter().flat_map(behind).copied().collect();
        ids.extend(self.back.iter().filter(|id| self.last_back.is_none_or(|last| **id <= last)));
        for id in ids {
            if ranges.len() >= live.thresholds().ranges || few || left == 0 {
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
            // All that is looked at is of use where there is nothing between that is not wanted.
            let useful = fill_of(live, id).saturating_mul(of as u64).try_into().unwrap_or(usize::MAX);
            let rows = rows.min(useful.max(2 * live.thresholds().few));
            // What is listed is reached: the next read begins behind it.
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

    /// How many rows of this queue find room, the first of which is due at `near`. Others make way where it
    /// is urgent.
    fn room(&mut self, live: &mut LiveItems, id: QueueId, near: u64, now: Now) -> Option<usize> {
        if live.shared.free_rows() == 0 {
            // What is to be given up is wanted now, whenever it is due.
            let ahead = if live.queues[id].is_trimming() { u64::MAX } else { URGENT_MS };
            let urgent_at = near.saturating_sub(ahead);
            if urgent_at <= now.wall {
                live.evict_furthest(live.thresholds().few * 4, near, now);
            }
            // Others make way from then on; where none can, a few come in beyond the bound once due.
            let next = [urgent_at, near].into_iter().find(|at| *at > now.wall);
            self.blocked_until = [self.blocked_until, next].into_iter().flatten().min();
        }
        if mutated(Mutant::MembersCrowdIn) {
            return Some(live.thresholds().chunk);
        }
        Some(live.shared.free_rows()).filter(|room| *room > 0)
    }

    /// What the queue has in memory waits for what it has not.
    fn is_stuck(&self, live: &LiveItems, id: QueueId) -> bool {
        live.queues[id].active().is_none_or(|active| active.ready().is_empty())
    }

    /// What is due may come in beyond the bound of memory, a little at a time, where its queue waits for it.
    /// What the queue has there comes behind it, and makes room. Whether there is some. `waits`: something
    /// does.
    fn make_room_for_few(&mut self, live: &mut LiveItems, id: QueueId, waits: bool, now: Now) -> bool {
        if !(waits || live.queues[id].is_trimming()) || self.under_way.iter().any(|share| share.few) {
            return false;
        }
        let (few, most) = (live.thresholds().few, live.thresholds().few * live.thresholds().reads);
        // The first one due is asked first, and may push out the most.
        let mut left = if self.exhausted { 0 } else { live.thresholds().evicted };
        while live.shared.rows_beyond() >= most && left > 0 {
            let evicted = live.evict_stalled(id, few.min(left), now);
            self.moved |= evicted > 0;
            self.exhausted |= evicted == 0 && waits;
            left = if evicted == 0 { 0 } else { left - evicted };
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

    /// A read has come back: what it brought, in order.
    pub(super) fn loaded(&mut self, live: &mut LiveItems, ranges: Vec<RangeRows>, now: Now) -> Vec<ItemId> {
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
            let Some(loading) = live.queues.at(id).at_work().loading_mut().as_mut() else { continue };
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

    /// When to look again without any event, wall clock.
    pub(super) fn deadline(&self, now: Now) -> Option<u64> {
        let first =
            |set: &BTreeSet<(u64, QueueId)>| set.first().map(|(at, _)| *at).filter(|at| *at > now.wall);
        [first(&self.wanted), first(&self.probes), self.blocked_until].into_iter().flatten().min()
    }
}

/// When the queue's next rows are to be read, wall clock; `u64::MAX`: not before something changes.
fn wanted_at(live: &LiveItems, id: QueueId, now: Now) -> u64 {
    let queue = &live.queues[id];
    if queue.far() == 0
        || queue.active().is_some_and(|active| active.loading().is_some() || active.is(Condition::Evicting))
    {
        return u64::MAX;
    }
    let near = queue.near_until();
    if near == LAST {
        // All that is in the store alone is held back.
        return u64::MAX;
    }
    let Some(active) = queue.active() else {
        return if queue.is_paused() { u64::MAX } else { near.due.saturating_sub(HORIZON_MS / 2) };
    };
    if active.is(Condition::Trimming) {
        let lacks_head = active.droppable().next().is_none_or(|(key, _)| key > near);
        return if lacks_head { 0 } else { u64::MAX };
    }
    if queue.is_paused() || queue.is_parked() || active.is(Condition::SlowProbe) {
        return u64::MAX;
    }
    if queue.is_failing() {
        // For a probe, once there is something to be sent.
        return if active.ready().is_empty() && active.flights().under_way() == 0 {
            near.due
        } else {
            u64::MAX
        };
    }
    if active.ready().items() >= live.thresholds().enough
        && near.due <= now.wall
        && !active.ready().is_empty()
    {
        return u64::MAX;
    }
    near.due.saturating_sub(HORIZON_MS / 2)
}

/// Whether something that was passed over is to be read now.
fn is_wanted_back(live: &LiveItems, id: QueueId) -> bool {
    let queue = &live.queues[id];
    // What lies beyond the bound waits for what lies before.
    let wanted = queue.passed().wanted().is_some_and(|(first, _)| first < queue.near_until());
    if !wanted || queue.is_paused() || queue.is_parked() {
        return false;
    }
    let Some(active) = queue.active() else { return true };
    let is_idle = active.ready().is_empty() && active.flights().under_way() == 0;
    // Of one that fails for a probe, once there is nothing else to be sent.
    !active.is(Condition::SlowProbe) && !active.is(Condition::Evicting) && (!queue.is_failing() || is_idle)
}

/// Asks for what was passed over, from there on; the place it takes is reserved.
fn begin_back(live: &mut LiveItems, id: QueueId, from: Key, room: usize) -> Range {
    let queue = &live.queues[id];
    let probe = queue.is_held_back();
    let most = if probe { live.thresholds().probe } else { live.thresholds().chunk };
    let rows = most.min(room).max(1);
    // Beyond the bound nothing has been passed over.
    let until = queue.near_until().due.saturating_add(1);
    let end = if until == u64::MAX { LAST } else { Key::at(until) };
    let name = Arc::clone(queue.name());
    live.shared.reserve(rows, 0);
    live.queues.at(id).passed_mut().begin_read((from, end), rows, probe);
    Range { queue: name, from, until, max_rows: rows }
}

/// What was passed over has come back. What it brought, in order.
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
    let Some(reading) = queue.passed().reading() else { return restored };
    // Of a queue that has been given up meanwhile it would only have to leave again.
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
        // What waited for something else of the queue waits for nothing any more.
        live.at(id).unstall();
    }
    restored
}

/// Asks for the queue's next rows; the place they take is reserved.
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
    // What is in memory already lies between.
    let rows = most.min(room).min(queue.stored().try_into().unwrap_or(usize::MAX)).max(1);
    // At the head of a queue that is given up or probed, what is there is wanted, whenever it is due.
    let until = if trimming { u64::MAX } else { (now.wall + HORIZON_MS).max(from.due.saturating_add(1)) };
    let name = Arc::clone(queue.name());
    live.shared.reserve(rows, 0);
    let loading = Loading { from, until, rows, behind: None, void: false, head };
    *live.queues.at(id).at_work().loading_mut() = Some(loading);
    Range { queue: name, from, until, max_rows: rows }
}
