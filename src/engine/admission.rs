//! Limits: how many items an application may have waiting, how many windows may be open, how many
//! applications there may be, and what happens there.
//!
//! An application at its limit whose policy is `pause` stops the line of requests, exactly there: nothing is
//! lost, and nothing comes in before there is room. The other policies hold nothing back. Where the oldest
//! items are to be given up, that happens at the head of the queue, in bounded steps behind the admission.

use super::ids::{ItemId, QueueId};
use super::live::{LiveItems, Timing};
use super::mutant::{mutated, Mutant};
use super::queue::Condition;
use super::types::{ClosedBy, Dead, Key, NewItem, Now, OnFull, Reason, Settings};
use std::collections::BTreeSet;
use std::ops::Bound;

/// What a limit says of a new item.
#[derive(Debug)]
pub(super) enum LimitVerdict {
    Admit,
    /// Not now: it waits in line, and the ones behind it.
    Wait,
    Dead(Dead),
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Limits {
    /// Queues over their limit whose first items are being given up, and queues whose windows are being
    /// closed.
    trimming: BTreeSet<QueueId>,
    flushing: BTreeSet<QueueId>,
    /// The first of those being trimmed that has the next turn; `None`: the first of all.
    trim_from: Option<QueueId>,
    /// Those whose first items are not in memory: looked at again once something has changed for them.
    lacking: BTreeSet<QueueId>,
    /// The disk is nearly full.
    store_full: bool,
}

impl Limits {
    /// The disk is nearly full, or is not any more.
    pub(super) fn set_store_full(&mut self, full: bool) {
        self.store_full = full;
    }

    /// The disk is nearly full: nothing is taken in.
    pub(super) fn is_store_full(&self) -> bool {
        self.store_full && !mutated(Mutant::StoreFullIgnored)
    }

    /// Whether this item may come in. `replaces`: in the place of another of its application, so that the
    /// number of items stays.
    pub(super) fn judge(
        &mut self,
        live: &LiveItems,
        settings: &Settings,
        (item, queue, timing): (&NewItem, QueueId, Timing),
        replaces: bool,
        now: Now,
    ) -> LimitVerdict {
        if let Some(dead) = beyond_hold_max(settings, timing, now) {
            return LimitVerdict::Dead(dead);
        }
        let counted = if replaces { LimitVerdict::Admit } else { self.judge_number(live, settings, queue) };
        match counted {
            LimitVerdict::Admit => judge_windows(live, settings, (item, queue, timing)),
            other @ (LimitVerdict::Wait | LimitVerdict::Dead(_)) => other,
        }
    }

    /// Of one item more: applications there may be, and items of this one.
    fn judge_number(&mut self, live: &LiveItems, settings: &Settings, queue: QueueId) -> LimitVerdict {
        let is_new = live.queues[queue].total() == 0;
        // The queue of dead letters belongs to no application.
        let waiting = live.queues[live.queues.dead_letters()].total();
        let letters = waiting > 0 && !mutated(Mutant::LettersCountAsApplication);
        let full = live.queues.occupied() - u64::from(letters) >= settings.max_applications;
        if is_new && full && !mutated(Mutant::ApplicationsUnlimited) {
            let error = format!("limits.applications = {} have something waiting", settings.max_applications);
            return LimitVerdict::Dead(Dead { reason: Reason::Full, error: error.into() });
        }
        self.judge_count(live, queue)
    }

    fn judge_count(&mut self, live: &LiveItems, queue: QueueId) -> LimitVerdict {
        let settings = live.queues.settings_of(queue);
        let (max, policy) = (settings.max_waiting, settings.on_full);
        let mut full_at = max;
        if mutated(Mutant::FullTooSoon) {
            full_at = max.div_ceil(3);
        } else if mutated(Mutant::FullTooLate) {
            full_at = max + 1;
        }
        let total = live.queues[queue].total();
        if max == 0 || total < full_at {
            return LimitVerdict::Admit;
        }
        let limit = || format!("applications.{}.max_waiting = {max} is reached", live.queues[queue].name());
        match policy {
            OnFull::Pause => LimitVerdict::Wait,
            OnFull::FlushEarly => {
                self.flushing.insert(queue);
                LimitVerdict::Wait
            }
            OnFull::DropNewest => LimitVerdict::Dead(Dead { reason: Reason::Full, error: limit().into() }),
            OnFull::DropOldest if mutated(Mutant::DropOldestDropsNewest) => {
                LimitVerdict::Dead(Dead { reason: Reason::Full, error: limit().into() })
            }
            OnFull::DropOldest => {
                self.trimming.insert(queue);
                if total < max + live.thresholds().trim_slack {
                    LimitVerdict::Admit
                } else if live.queues[queue].has_droppable() {
                    LimitVerdict::Wait
                } else {
                    let error = format!("{}, and all of it is in flight", limit());
                    LimitVerdict::Dead(Dead { reason: Reason::Full, error: error.into() })
                }
            }
        }
    }

    /// Closes windows of queues at their limit. Whether more is to do.
    pub(super) fn flush(&mut self, live: &mut LiveItems, now: Now) -> bool {
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

    /// The next items to be given up, at the heads of queues over their limit, as far as they are in memory;
    /// the loader is told where they are not. With the sentence that says why. Some queues in each turn, one
    /// after the other.
    pub(super) fn trim(&mut self, live: &mut LiveItems) -> Vec<(ItemId, String)> {
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

    /// More is to be given up than one turn does, and it is in memory.
    pub(super) fn is_trimming(&self, live: &LiveItems) -> bool {
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
            .map(|known| (live.queues.settings_of(queue).max_waiting, std::sync::Arc::clone(known.name())))
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
        // What stands at the bound itself is in memory, and the first: others may push it out whenever it has
        // been read.
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

    /// After a reload the limits are others: they are found out again by the next item.
    pub(super) fn configure(&mut self, live: &mut LiveItems) {
        let lacking = std::mem::take(&mut self.lacking);
        for queue in std::mem::take(&mut self.trimming).into_iter().chain(lacking) {
            if live.queues.get(queue).is_some() {
                live.queues.at(queue).at_work().set(Condition::Trimming, false);
                live.queues.at(queue).mark_for_loader();
            }
        }
        self.flushing.clear();
        self.trim_from = None;
    }
}

/// What counts towards a limit: a line that waits for room goes on once one of these is less.
pub(super) fn occupied(live: &LiveItems) -> [u64; 3] {
    [live.customers().open_windows(), live.queues.total(), live.queues.occupied()]
}

/// Of one window more.
fn judge_windows(
    live: &LiveItems,
    settings: &Settings,
    (item, queue, timing): (&NewItem, QueueId, Timing),
) -> LimitVerdict {
    if !lacks_window(live, settings, (item, queue, timing)) {
        return LimitVerdict::Admit;
    }
    match live.queues.settings_of(queue).on_full {
        OnFull::Pause => LimitVerdict::Wait,
        OnFull::FlushEarly | OnFull::DropOldest => LimitVerdict::Admit,
        OnFull::DropNewest => {
            let error = format!("limits.customers = {} windows are open", settings.customers);
            LimitVerdict::Dead(Dead { reason: Reason::Full, error: error.into() })
        }
    }
}

/// It would open a window, and as many are open as may be.
fn lacks_window(
    live: &LiveItems,
    settings: &Settings,
    (item, queue, timing): (&NewItem, QueueId, Timing),
) -> bool {
    if timing != Timing::Windowed || live.customers().open_windows() < settings.customers {
        return false;
    }
    let name = item.customer.as_deref();
    let customer = name.and_then(|name| live.queues[queue].customer(name));
    let opens = customer.is_none_or(|id| live.customers().window(id).is_none());
    opens && !mutated(Mutant::WindowsUnlimited)
}

/// Closes the window that makes room for the one of an item that is let in, where there is none: once what it
/// replaces is gone, which may leave memory together with a window that closes.
pub(super) fn make_room(
    live: &mut LiveItems,
    settings: &Settings,
    asked: (&NewItem, QueueId, Timing),
    now: Now,
) {
    if lacks_window(live, settings, asked) {
        if let Some(id) = live.customers().first_to_close() {
            live.close_window(id, ClosedBy::Flush, now);
        }
    }
}

/// The memory store holds nothing for longer than the broker waits for an ack.
fn beyond_hold_max(settings: &Settings, timing: Timing, now: Now) -> Option<Dead> {
    let (Some(hold_max), Timing::Own(due)) = (settings.hold_max, timing) else { return None };
    let away = due.saturating_sub(now.wall);
    (away > hold_max && !mutated(Mutant::HoldMaxIgnored)).then(|| {
        let error =
            format!("own time is {away} ms away, above store.hold_max = {hold_max} ms of the memory store");
        Dead { reason: Reason::Unsupported, error: error.into() }
    })
}
