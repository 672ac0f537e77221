//! Limits on waiting items of an application, open windows and applications, and what happens at a limit.
//!
//! A request for an application at its limit whose policy is `pause` stops the intake at that request:
//! nothing is lost, and nothing comes in before there is room. `flush-early` and `drop-oldest` stop it only
//! while room is being made, `drop-newest` never. `drop-oldest` dead-letters items at the head of the queue,
//! in bounded steps after the admission.

use super::ids::{ItemId, QueueId};
use super::live::{LiveItems, Timing};
use super::mutant::{mutated, Mutant};
use super::queue::Condition;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;
use tidegate_types::{AppSettings, ClosedBy, Dead, Key, NewItem, Now, OnFull, Reason, Settings};

/// The decision of the limits on a new item.
#[derive(Debug)]
pub(crate) enum LimitVerdict {
    Admit,
    /// Not now: it waits, and later requests wait behind it.
    Wait,
    Dead(Dead),
}

/// A request that asks to become an item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Applicant<'a> {
    pub(crate) item: &'a NewItem,
    /// The queue of its application.
    pub(crate) queue: QueueId,
    pub(crate) timing: Timing,
    /// When its request arrived, UTC ms.
    pub(crate) received: u64,
    /// It replaces another item of its application, so that the number of items does not grow.
    pub(crate) replaces: bool,
    /// It came with others, for each of which there was room: none of them waits.
    pub(crate) let_in: bool,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// Queues over their limit whose first items are being dead-lettered, and queues whose windows are being
    /// closed.
    trimming: BTreeSet<QueueId>,
    flushing: BTreeSet<QueueId>,
    /// The queue to be trimmed next; `None`: the first one.
    trim_from: Option<QueueId>,
    /// Queues to be trimmed whose first items are not in memory: checked again once this changes.
    lacking: BTreeSet<QueueId>,
    /// The disk is nearly full.
    store_full: bool,
    /// What the first request of those that wait lacks.
    shortage: Option<MissingRoom>,
    /// Requests that waited for room have gone back to the broker: while there is none, they would only be
    /// returned again, and each return counts towards the queue's delivery limit. With the time from which
    /// they are taken nevertheless, monotonic ms: the one that waited may not be there any more.
    kept_out: Option<(MissingRoom, u64)>,
    /// How often they were taken without room.
    lapses: u32,
    /// Applications that drop their oldest and had more than they may when their limits were set, each with
    /// how many it has had at least since: it does not get more.
    surplus: BTreeMap<QueueId, u64>,
}

/// For how long requests that have gone back are kept out at first, and at most, ms. It doubles each time, so
/// that they do not reach a delivery limit of 50 within a month.
const KEPT_OUT_MS: u64 = 3_600_000;
const KEPT_OUT_MOST_MS: u64 = 24 * KEPT_OUT_MS;

/// Room that a request waits for.
#[derive(Clone, Debug)]
enum MissingRoom {
    /// Its application has as many items as it may have.
    Items(Arc<str>),
    /// As many windows are open as may be.
    Windows,
}

impl Limits {
    /// Sets whether the disk is nearly full.
    pub(crate) fn set_store_full(&mut self, full: bool) {
        self.store_full = full;
    }

    /// Whether nothing is taken in, because the disk is nearly full.
    pub(crate) fn is_store_full(&self) -> bool {
        self.store_full && !mutated(Mutant::StoreFullIgnored)
    }

    /// Whether this request may be admitted.
    pub(crate) fn judge(
        &mut self,
        live: &LiveItems,
        settings: &Settings,
        applicant: Applicant<'_>,
        now: Now,
    ) -> LimitVerdict {
        let Applicant { timing, received, .. } = applicant;
        if let Some(dead) = beyond_hold_max(settings.hold_max, timing, received, now) {
            return LimitVerdict::Dead(dead);
        }
        let counted = if applicant.replaces {
            LimitVerdict::Admit
        } else {
            self.judge_number(live, settings, applicant.queue)
        };
        let (verdict, shortage) = match counted {
            LimitVerdict::Admit => (judge_windows(live, settings, applicant), MissingRoom::Windows),
            other @ (LimitVerdict::Wait | LimitVerdict::Dead(_)) => {
                (other, MissingRoom::Items(Arc::clone(live.queues[applicant.queue].name())))
            }
        };
        match verdict {
            LimitVerdict::Wait if applicant.let_in => return LimitVerdict::Admit,
            LimitVerdict::Wait => self.shortage = Some(shortage),
            LimitVerdict::Admit | LimitVerdict::Dead(_) => {}
        }
        verdict
    }

    /// Whether this request would have to wait. If so, room is made where the policy says so; otherwise
    /// nothing changes.
    pub(crate) fn lacks_room(
        &mut self,
        live: &LiveItems,
        settings: &Settings,
        applicant: Applicant<'_>,
        now: Now,
    ) -> bool {
        let waits = |verdict| matches!(verdict, LimitVerdict::Wait);
        let number = !applicant.replaces && waits(self.one_more(live, applicant.queue));
        (number || waits(judge_windows(live, settings, applicant)))
            && waits(self.judge(live, settings, applicant, now))
    }

    /// A request was decided about: none waits before it.
    pub(crate) fn goes_on(&mut self) {
        (self.shortage, self.lapses) = (None, 0);
    }

    /// Requests that wait go back to the broker.
    pub(crate) fn keep_out(&mut self, now: Now) {
        let pause = KEPT_OUT_MS.saturating_mul(1 << self.lapses.min(5)).min(KEPT_OUT_MOST_MS);
        self.kept_out = self.shortage.take().map(|missing| (missing, now.mono + pause));
    }

    /// Whether the request that went back for want of room would still find none.
    pub(crate) fn keeps_out(&mut self, live: &LiveItems, settings: &Settings, now: Now) -> bool {
        let Some((missing, until)) = &self.kept_out else { return false };
        let lacks = match missing {
            MissingRoom::Items(name) => {
                let queue = live.queues.find(name);
                queue.is_some_and(|queue| matches!(self.one_more(live, queue), LimitVerdict::Wait))
            }
            MissingRoom::Windows => live.customers().open_windows() >= settings.customers,
        };
        let lapses = lacks && now.mono >= *until;
        self.lapses += u32::from(lapses);
        if !lacks || lapses {
            self.kept_out = None;
        }
        self.kept_out.is_some()
    }

    /// Whether one more item exceeds the number of applications, or of items of this one.
    fn judge_number(&mut self, live: &LiveItems, settings: &Settings, queue: QueueId) -> LimitVerdict {
        let is_new = live.queues[queue].total() == 0;
        let letters = live.queues[live.queues.dead_letters()].total() > 0;
        let occupied = live.queues.occupied();
        match judge_applications(is_new, occupied, letters, settings.max_applications) {
            LimitVerdict::Admit => self.judge_count(live, queue),
            other @ (LimitVerdict::Wait | LimitVerdict::Dead(_)) => other,
        }
    }

    fn judge_count(&mut self, live: &LiveItems, queue: QueueId) -> LimitVerdict {
        let (known, settings) = (&live.queues[queue], live.queues.settings_of(queue));
        if let Some(most) = self.surplus.get_mut(&queue) {
            *most = known.total().min(*most);
            if *most <= settings.max_waiting {
                self.surplus.remove(&queue);
            }
        }
        if is_full(settings, known.total()) {
            match settings.on_full {
                OnFull::FlushEarly => drop(self.flushing.insert(queue)),
                OnFull::DropOldest => drop(self.trimming.insert(queue)),
                OnFull::Pause | OnFull::DropNewest => {}
            }
        }
        self.one_more(live, queue)
    }

    /// Decides about one more item of this application.
    fn one_more(&self, live: &LiveItems, queue: QueueId) -> LimitVerdict {
        let (known, settings) = (&live.queues[queue], live.queues.settings_of(queue));
        let surplus = self.surplus.get(&queue).map_or(0, |most| most.saturating_sub(settings.max_waiting));
        let slack = live.thresholds().trim_slack + surplus;
        judge_waiting(settings, known.name(), known.total(), slack, || known.has_droppable())
    }

    /// Notes which applications have more than they may, as their limits may be lower than when the items
    /// came. One that drops its oldest has time until those are gone: else its next request would stop the
    /// intake of all. Costs time proportional to the number of applications.
    pub(crate) fn note_surplus(&mut self, live: &LiveItems) {
        let has_more = |id: &QueueId| {
            let settings = live.queues.settings_of(*id);
            settings.on_full == OnFull::DropOldest && is_full(settings, live.queues[*id].total())
        };
        let found = live.queues.ids().filter(has_more).map(|id| (id, live.queues[id].total()));
        self.surplus = found.collect();
    }

    /// Closes windows of queues at their limit. Whether there is more to do.
    pub(crate) fn flush(&mut self, live: &mut LiveItems, now: Now) -> bool {
        let (mut windows, mut rows) = (0, 0);
        let most = (live.thresholds().flushed_windows, live.thresholds().flushed);
        while let Some(queue) = self.flushing.first().copied() {
            if windows >= most.0 || rows >= most.1 {
                return true;
            }
            let active = live.queues.get(queue).and_then(|queue| queue.active());
            let first = active.and_then(|active| active.windows().first().copied());
            let Some(id) = first.filter(|_| !mutated(Mutant::FlushEarlyFlushesNothing)) else {
                self.flushing.remove(&queue);
                continue;
            };
            windows += 1;
            rows += live.customers().window(id).map_or(0, |window| window.members().len());
            live.close_window(id, ClosedBy::Flush, now);
        }
        false
    }

    /// The next items to be dead-lettered at the heads of queues over their limit, with the error sentence of
    /// each. Items that are not in memory are requested from the loader. Each turn handles some queues, in
    /// rotation.
    pub(crate) fn trim(&mut self, live: &mut LiveItems) -> Vec<(ItemId, String)> {
        for queue in live.queues.take_to_trim() {
            if self.lacking.remove(&queue) {
                self.trimming.insert(queue);
            }
        }
        let mut victims = Vec::new();
        let from = self.trim_from.take().map_or(Bound::Unbounded, Bound::Included);
        let queues = self.trimming.range((from, Bound::Unbounded)).copied();
        let (most, most_queues) = (live.thresholds().trimmed, live.thresholds().trimmed_queues);
        for (nth, queue) in queues.take(most_queues + 1).collect::<Vec<_>>().into_iter().enumerate() {
            if nth == most_queues || victims.len() >= most {
                self.trim_from = Some(queue);
                break;
            }
            self.trim_one(live, queue, &mut victims);
        }
        victims
    }

    /// Whether more items in memory must be dead-lettered than one turn does.
    pub(crate) fn is_trimming(&self, live: &LiveItems) -> bool {
        self.trimming.len() > live.thresholds().trimmed_queues
            || self.trimming.iter().any(|queue| {
                live.queues.get(*queue).is_some_and(|known| {
                    let over = known.total() > live.queues.settings_of(*queue).max_waiting;
                    let near = known.near_until_of_all();
                    let first = known.active().and_then(|live| live.droppable().next());
                    over && first.is_some_and(|(key, _)| key <= near)
                })
            })
    }

    fn trim_one(&mut self, live: &mut LiveItems, queue: QueueId, victims: &mut Vec<(ItemId, String)>) {
        live.shared.count_work(1);
        let Some((max, name)) = live
            .queues
            .get(queue)
            .map(|known| (live.queues.settings_of(queue).max_waiting, Arc::clone(known.name())))
        else {
            self.trimming.remove(&queue);
            return;
        };
        let over = live.queues[queue].total().saturating_sub(max);
        let over = if mutated(Mutant::DropOldestKillsTwo) && over > 0 { over + 1 } else { over };
        if over == 0 || max == 0 {
            self.trimming.remove(&queue);
            if live.queues.at(queue).at_work().set(Condition::Trimming, false) {
                live.queues.at(queue).mark_for_loader();
                live.queues.at(queue).run();
            }
            return;
        }
        // An item at the bound itself is in memory and the first; other items might evict it whenever it is
        // read again.
        let bound = live.queues[queue].near_until_of_all();
        let most = live.thresholds().trimmed.saturating_sub(victims.len());
        let active = live.queues.at(queue).at_work();
        let most = most.min(over as usize);
        let reached = |key: Key| key < bound || key == bound && !mutated(Mutant::FirstIsNotReached);
        let first = active.droppable().take_while(|(key, _)| reached(*key)).take(most);
        let sentence = format!("applications.{name}.max_waiting = {max} is reached, and this was due first");
        let before = victims.len();
        victims.extend(first.map(|(_, id)| (id, sentence.clone())));
        let lacking = victims.len() - before < most;
        if !active.set(Condition::Trimming, lacking) && lacking {
            live.queues.at(queue).read_passed();
            live.call_all(queue);
        }
        if lacking {
            self.trimming.remove(&queue);
            self.lacking.insert(queue);
        }
        live.queues.at(queue).mark_for_loader();
    }

    /// The first items of this queue, which were to be dead-lettered, are left for another turn.
    pub(crate) fn trim_again(&mut self, queue: QueueId) {
        self.lacking.remove(&queue);
        self.trimming.insert(queue);
    }

    /// Drops this state after a reload, as limits may have changed: the next items find out again.
    pub(crate) fn configure(&mut self, live: &mut LiveItems) {
        let lacking = core::mem::take(&mut self.lacking);
        for queue in core::mem::take(&mut self.trimming).into_iter().chain(lacking) {
            if live.queues.get(queue).is_some() {
                live.queues.at(queue).at_work().set(Condition::Trimming, false);
                live.queues.at(queue).mark_for_loader();
            }
        }
        self.flushing.clear();
        self.trim_from = None;
        self.kept_out = None;
    }
}

/// Decides about an item of an application that is new if `is_new`. `occupied`: number of queues with items;
/// `letters`: one of them is the dead-letter queue, which belongs to no application.
fn judge_applications(is_new: bool, occupied: u64, letters: bool, max: u64) -> LimitVerdict {
    if !is_new || occupied - u64::from(letters) < max {
        return LimitVerdict::Admit;
    }
    let error = format!("limits.applications = {max} is reached");
    LimitVerdict::Dead(Dead { reason: Reason::Full, error: error.into() })
}

/// Whether an application with this many items is at its limit.
fn is_full(settings: &AppSettings, total: u64) -> bool {
    settings.max_waiting > 0 && total >= settings.max_waiting
}

/// Decides about one more item of an application that has `total`. `slack`: how many it may have beyond its
/// limit while its first items are dead-lettered; `has_droppable`: not all of them are in flight.
fn judge_waiting(
    settings: &AppSettings,
    name: &str,
    total: u64,
    slack: u64,
    has_droppable: impl FnOnce() -> bool,
) -> LimitVerdict {
    if !is_full(settings, total) {
        return LimitVerdict::Admit;
    }
    let limit = || format!("applications.{name}.max_waiting = {} is reached", settings.max_waiting);
    match settings.on_full {
        OnFull::Pause | OnFull::FlushEarly => LimitVerdict::Wait,
        OnFull::DropOldest if total < settings.max_waiting + slack => LimitVerdict::Admit,
        OnFull::DropOldest if has_droppable() => LimitVerdict::Wait,
        OnFull::DropOldest => {
            let error = format!("{}, and all items are in flight", limit());
            LimitVerdict::Dead(Dead { reason: Reason::Full, error: error.into() })
        }
        OnFull::DropNewest => LimitVerdict::Dead(Dead { reason: Reason::Full, error: limit().into() }),
    }
}

/// Amounts that count towards limits: requests that wait for room are judged again once one of these falls.
pub(crate) fn occupied(live: &LiveItems) -> [u64; 3] {
    [live.customers().open_windows(), live.queues.total(), live.queues.occupied()]
}

/// Whether one more window exceeds the limit.
fn judge_windows(live: &LiveItems, settings: &Settings, applicant: Applicant<'_>) -> LimitVerdict {
    if !lacks_window(live, settings, applicant) {
        return LimitVerdict::Admit;
    }
    match live.queues.settings_of(applicant.queue).on_full {
        OnFull::Pause => LimitVerdict::Wait,
        OnFull::FlushEarly | OnFull::DropOldest => LimitVerdict::Admit,
        OnFull::DropNewest => {
            let error = format!("limits.customers = {} windows are open", settings.customers);
            LimitVerdict::Dead(Dead { reason: Reason::Full, error: error.into() })
        }
    }
}

/// Whether the item would open a window while the maximum number is open.
fn lacks_window(live: &LiveItems, settings: &Settings, applicant: Applicant<'_>) -> bool {
    if applicant.timing != Timing::Windowed || live.customers().open_windows() < settings.customers {
        return false;
    }
    let name = applicant.item.customer.as_deref();
    let customer = name.and_then(|name| live.queues[applicant.queue].customer(name));
    let opens = customer.is_none_or(|id| live.customers().window(id).is_none());
    opens && !mutated(Mutant::WindowsUnlimited)
}

/// Closes a window if an admitted item lacks room for its own. Called after the item that it replaces is
/// gone, since that may have been a member of the window that closes.
pub(crate) fn make_room(live: &mut LiveItems, settings: &Settings, applicant: Applicant<'_>, now: Now) {
    // With `pause` only an entry that was let in with others can lack one: no window of others makes way.
    let makes_way = live.queues.settings_of(applicant.queue).on_full != OnFull::Pause;
    if makes_way && lacks_window(live, settings, applicant) {
        if let Some(id) = live.customers().first_to_close() {
            live.close_window(id, ClosedBy::Flush, now);
        }
    }
}

/// The memory store holds no item for longer than the broker waits for an ack, which it does from the
/// receipt: the request may have waited for room since. What is due already leaves at once.
fn beyond_hold_max(hold_max: Option<u64>, timing: Timing, received: u64, now: Now) -> Option<Dead> {
    let (Some(hold_max), Timing::Own(due)) = (hold_max, timing) else { return None };
    // The receipt is rounded up. Anything later is from before the clock was set back.
    let from = received.min(now.wall.saturating_add(1));
    let away = due.saturating_sub(from);
    (due > now.wall && away > hold_max).then(|| {
        let error =
            format!("own time is {away} ms away, above store.hold_max = {hold_max} ms of the memory store");
        Dead { reason: Reason::Unsupported, error: error.into() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(verdict: LimitVerdict) -> String {
        match verdict {
            LimitVerdict::Admit => "taken".into(),
            LimitVerdict::Wait => "waits".into(),
            LimitVerdict::Dead(dead) => format!("{:?}: {}", dead.reason, dead.error),
        }
    }

    /// Columns: the policy, the limit, the items that there are, and whether all are in flight. Up to two
    /// items more are taken while the first ones are dead-lettered.
    /// Excluded: an application that is full one item sooner or later; a policy that acts as another; an item
    /// dead-lettered at once where the first ones are to go, or one that waits for items in flight.
    /// Judges promises 8 and 12.
    #[test]
    fn what_becomes_of_one_more_item() {
        let full = "Full: applications.shop.max_waiting = 5 is reached";
        let in_flight = "Full: applications.shop.max_waiting = 5 is reached, and all items are in flight";
        for (on_full, max_waiting, total, all_in_flight, expected) in [
            (OnFull::Pause, 0, 100, false, "taken"),
            (OnFull::Pause, 5, 0, false, "taken"),
            (OnFull::Pause, 5, 4, false, "taken"),
            (OnFull::Pause, 5, 5, false, "waits"),
            (OnFull::FlushEarly, 5, 4, false, "taken"),
            (OnFull::FlushEarly, 5, 5, false, "waits"),
            (OnFull::DropNewest, 0, 100, false, "taken"),
            (OnFull::DropNewest, 5, 4, false, "taken"),
            (OnFull::DropNewest, 5, 5, false, full),
            (OnFull::DropOldest, 5, 4, false, "taken"),
            (OnFull::DropOldest, 5, 5, false, "taken"),
            (OnFull::DropOldest, 5, 6, true, "taken"),
            (OnFull::DropOldest, 5, 7, false, "waits"),
            (OnFull::DropOldest, 5, 7, true, in_flight),
        ] {
            let settings = AppSettings { on_full, max_waiting, ..AppSettings::default() };
            let verdict = judge_waiting(&settings, "shop", total, 2, || !all_in_flight);
            assert_eq!(told(verdict), expected, "{on_full:?}: {total} of {max_waiting}");
        }
    }

    /// Columns: whether the application has no items yet, the queues that have, and whether the dead letters
    /// are among these. At most three applications.
    /// Excluded: any number of applications; dead letters that count as one; a limit on applications that
    /// have items already.
    /// Judges promise 7.
    #[test]
    fn what_becomes_of_one_more_application() {
        let full = "Full: limits.applications = 3 is reached";
        for (is_new, occupied, letters, expected) in [
            (true, 0, false, "taken"),
            (true, 2, false, "taken"),
            (true, 3, false, full),
            (true, 3, true, "taken"),
            (true, 4, true, full),
            (false, 3, false, "taken"),
            (false, 4, true, "taken"),
        ] {
            let verdict = judge_applications(is_new, occupied, letters, 3);
            assert_eq!(told(verdict), expected, "{is_new} {occupied} {letters}");
        }
    }

    /// Columns: `store.hold_max`, when the request came, and when the item is due; it is 10,000 now.
    /// Excluded: `hold_max` ignored, or reached one millisecond sooner; one that applies to windows, or
    /// counts from the decision; a receipt in the future that makes the time shorter; an item dead that is
    /// due.
    /// Judges promise 12.
    #[test]
    fn how_long_the_memory_store_holds_an_item() {
        let far = "own time is 60001 ms away, above store.hold_max = 60000 ms of the memory store";
        for (hold_max, received, timing, expected) in [
            (Some(60_000), 10_000, Timing::Own(70_000), None),
            (Some(60_000), 10_000, Timing::Own(70_001), Some(far)),
            (Some(60_000), 10_001, Timing::Own(70_001), None),
            (Some(60_000), 4_000, Timing::Own(64_000), None),
            (Some(60_000), 4_000, Timing::Own(64_001), Some(far)),
            (Some(60_000), 90_000, Timing::Own(70_002), Some(far)),
            (Some(60_000), 10_000, Timing::Own(9_000), None),
            (Some(5_000), 4_000, Timing::Own(10_000), None),
            (Some(0), 10_000, Timing::Own(10_000), None),
            (Some(0), 10_000, Timing::Windowed, None),
            (Some(0), 10_000, Timing::Immediate, None),
            (None, 10_000, Timing::Own(u64::MAX), None),
        ] {
            let dead = beyond_hold_max(hold_max, timing, received, Now { wall: 10_000, mono: 0 });
            assert!(dead.as_ref().is_none_or(|dead| dead.reason == Reason::Unsupported));
            assert_eq!(dead.map(|dead| dead.error.to_string()).as_deref(), expected, "{received} {timing:?}");
        }
    }
}
