//! Windows of the reference: when each opens, which items are in it, and when it must close.
//!
//! Judges promise 10.

use std::collections::{BTreeMap, BTreeSet};
use tidegate_fake_store::FakeStore;
use tidegate_types::event::WindowRow;
use tidegate_types::size;
use tidegate_types::*;

/// Time by which a window closes before its most urgent expiry, ms.
pub(super) const EXPIRY_MARGIN_MS: u64 = 100;

/// Most by which the milliseconds of the two clocks may differ: a window waits for both.
pub(super) const CLOCK_SLACK_MS: u64 = 5;

type Name = (String, String);

pub(super) struct Close {
    pub(super) call: usize,
    /// UTC ms.
    pub(super) due: u64,
    causes: BTreeSet<ClosedBy>,
    /// Only the opening of another window shows this close, and the clock has stepped.
    guessed: bool,
}

pub(super) struct Win {
    name: Name,
    /// Planned end, wall clock and monotonic.
    pub(super) end: u64,
    mono_end: u64,
    /// Arrival number of its first member.
    number: u64,
    pub(super) members: BTreeSet<u64>,
    weight: u64,
    expiry: u64,
    last: u64,
    pub(super) closed: Option<Close>,
    /// The contract does not define how its limits count after an event.
    pub(super) unsure: bool,
    /// That event was only that a member left it early.
    only_left: bool,
    ripe: BTreeSet<ClosedBy>,
    /// Moments at which it may have been flushed without a write since, UTC ms.
    flushes: BTreeSet<u64>,
    /// Causes by which it may close in this call.
    may_close: BTreeSet<ClosedBy>,
    ripe_at_join: u64,
}

/// A new member of a window.
pub(super) struct Member<'a> {
    pub(super) seq: u64,
    pub(super) application: &'a str,
    pub(super) customer: &'a str,
    pub(super) key: Key,
    pub(super) weight: u32,
    pub(super) expiry: Option<u64>,
    /// Its end may be inherited, or left by a former life.
    pub(super) other_end: bool,
    /// The window may have been flushed by now.
    pub(super) may_flush: bool,
    /// Other members may have joined its window unseen.
    pub(super) unsure: bool,
}

#[derive(Default)]
pub(super) struct Windows {
    pub(super) all: BTreeMap<usize, Win>,
    pub(super) open: BTreeMap<Name, usize>,
    of: BTreeMap<u64, usize>,
    next: usize,
    /// The clock has stepped: closed windows may be due at another moment.
    stepped: bool,
    /// Not all ripe windows close in this call.
    behind: bool,
    /// Number of members of open windows that are replaced in the commit that is checked.
    replaced_now: BTreeMap<Name, u64>,
    /// Windows of which a member left by the wall clock, which had been set forward: the planned end, and the end by the
    /// monotonic clock, until which they go on.
    going_on: BTreeMap<Name, (u64, u64)>,
}

pub(super) fn length(settings: &AppSettings, wall: u64) -> u64 {
    if settings.align {
        settings.window - wall % settings.window.max(1)
    } else {
        settings.window
    }
}

impl Windows {
    pub(super) fn of(&self, seq: u64) -> Option<&Win> {
        self.all.get(self.of.get(&seq)?)
    }

    /// Number of windows that are certainly open.
    pub(super) fn certain(&self) -> usize {
        let is_certain = |win: &&Win| !win.unsure && win.ripe.is_empty();
        self.open.values().map(|id| &self.all[id]).filter(is_certain).count()
    }

    /// Number of windows that a member has left by the wall clock and that are not over by the monotonic one.
    pub(super) fn going_on(&self, now: Now) -> usize {
        let goes_on = |(name, (_, mono_end)): &(&Name, &(u64, u64))| {
            now.mono <= mono_end + CLOCK_SLACK_MS && !self.open.contains_key(*name)
        };
        self.going_on.iter().filter(goes_on).count()
    }

    /// A customer of an application whose window is certainly open.
    pub(super) fn open_in(&self, application: &str) -> Option<&str> {
        let is_open = |win: &&Win| win.name.0 == application && !win.unsure && !win.members.is_empty();
        self.open.values().map(|id| &self.all[id]).find(is_open).map(|win| win.name.1.as_str())
    }

    /// An application and a customer whose window is certainly open and not about to close.
    pub(super) fn any_certain(&self) -> Option<(String, String)> {
        let is_sure = |win: &&Win| {
            let may_close = !win.ripe.is_empty() || !win.may_close.is_empty() || !win.flushes.is_empty();
            !win.unsure && !may_close && !win.members.is_empty()
        };
        self.open.values().map(|id| &self.all[id]).find(is_sure).map(|win| win.name.clone())
    }

    pub(super) fn count(&self, application: &str, customer: &str) -> usize {
        let id = self.open.get(&(application.into(), customer.into()));
        id.map_or(0, |id| self.all[id].members.len())
    }

    /// Whether the window of a customer has reached its end, or may have.
    pub(super) fn is_ripe(&self, application: &str, customer: &str) -> bool {
        let id = self.open.get(&(application.into(), customer.into()));
        id.is_some_and(|id| !self.all[id].ripe.is_empty() || !self.all[id].may_close.is_empty())
    }

    pub(super) fn is_unsure(&self, application: &str, customer: &str) -> bool {
        let id = self.open.get(&(application.into(), customer.into()));
        id.is_some_and(|id| self.all[id].unsure)
    }

    pub(super) fn doubt_all(&mut self) {
        self.stepped = true;
        self.open.values().for_each(|id| self.all.get_mut(id).expect("open").unsure = true);
    }

    /// Notes which windows must close in this call, and why. `behind`: the engine wants to be called again at once.
    pub(super) fn ripen(&mut self, settings: &Settings, behind: bool, now: Now) {
        let most = Thresholds::default();
        self.behind =
            behind && (settings.thresholds.due < most.due || settings.thresholds.windows < most.windows);
        for id in self.open.values() {
            let win = self.all.get_mut(id).expect("open");
            win.ripen(settings.of(&win.name.0), now);
        }
    }

    /// Closed windows are in a commit now; or a flush may be what closes one next.
    pub(super) fn note_flushes(
        &mut self,
        written: bool,
        call: usize,
        wall: u64,
        may_flush: impl Fn(&Name) -> bool,
    ) {
        for win in self.all.values_mut() {
            if let Some(close) = win.closed.as_mut().filter(|close| close.call == call) {
                // Requests that needed room were decided before the windows closed by time.
                if may_flush(&win.name) {
                    close.causes.insert(ClosedBy::Flush);
                }
            }
            if written {
                win.flushes.clear();
            } else if win.closed.is_none() && may_flush(&win.name) {
                win.flushes.insert(wall);
            }
        }
    }

    /// Ripe windows have closed by the end of the call, unless the engine is behind. In that case the moment of the close
    /// is not visible, and matters if it is not the planned end.
    pub(super) fn close_ripe(&mut self, call: usize, now: Now) {
        let sure = self.open.values().copied().filter(|id| !self.all[id].unsure);
        for id in sure.collect::<Vec<usize>>() {
            let win = self.all.get_mut(&id).expect("there");
            if self.behind {
                win.unsure = win.ripe.iter().chain(&win.may_close).any(|cause| *cause != ClosedBy::Time);
            } else if !win.ripe.is_empty() {
                let causes = win.ripe.clone();
                self.close(id, call, now.wall, causes);
            }
        }
    }

    /// A window was flushed. The close of a ripe one need not be written: its members keep their due.
    pub(super) fn flush_ripe(&mut self, (application, customer): (&str, &str), call: usize, now: Now) {
        let open = self.open.get(&(application.to_string(), customer.to_string())).copied();
        let Some(id) = open.filter(|id| !self.all[id].ripe.is_empty() && !self.all[id].unsure) else {
            return;
        };
        let mut causes = self.all[&id].ripe.clone();
        causes.insert(ClosedBy::Flush);
        self.close(id, call, now.wall, causes);
    }

    /// Whether it is past its end by the monotonic clock, and by the wall clock unless that was set back.
    pub(super) fn is_overripe(&self, seq: u64, now: Now) -> bool {
        let Some(win) = self.of(seq) else { return true };
        // Another member may have left it by the wall clock.
        let goes_on = |win: &Win| self.going_on.get(&win.name).is_some_and(|(end, _)| *end == win.end);
        if win.closed.is_some() && !goes_on(win) {
            return true;
        }
        now.mono > win.mono_end + CLOCK_SLACK_MS
    }

    /// Whether an item of a former life with this due waits with others: the window of its customer, opened anew since,
    /// has the same planned end, and its length follows the monotonic clock.
    pub(super) fn waits_with_others(&self, application: &str, customer: &str, due: u64, now: Now) -> bool {
        let open = self.open.get(&(application.to_string(), customer.to_string()));
        let win = open.map(|id| &self.all[id]).filter(|win| win.end == due);
        win.is_some_and(|win| now.mono <= win.mono_end + CLOCK_SLACK_MS)
    }

    fn close(&mut self, id: usize, call: usize, wall: u64, mut causes: BTreeSet<ClosedBy>) {
        let win = self.all.get_mut(&id).expect("open");
        if wall >= win.end {
            // Its members keep their key, and lose any other cause once they have left memory.
            causes.insert(ClosedBy::Time);
        }
        win.closed = Some(Close { call, due: win.end.min(wall), causes, guessed: wall == u64::MAX });
        if self.open.get(&win.name) == Some(&id) {
            self.open.remove(&win.name.clone());
        }
    }

    pub(super) fn join(&mut self, member: &Member<'_>, settings: &Settings, now: Now, call: usize) {
        let app = settings.of(member.application);
        let name = (member.application.to_string(), member.customer.to_string());
        let overhead = size::overhead(app.format, member.application, Some(member.customer));
        let weight = u64::from(member.weight) + overhead.item;
        let mut id = self.open.get(&name).copied();
        if let Some(old) = id {
            let win = self.all.get_mut(&old).expect("open");
            let passes = !win.members.is_empty() && overhead.batch + win.weight + weight > app.max_bytes;
            let same = win.number == member.key.window;
            let spans = member.key.seq - win.number > settings.thresholds.span;
            if (passes || spans) && !win.unsure {
                let cause = if passes { ClosedBy::Bytes } else { ClosedBy::Count };
                let mut causes = BTreeSet::from([cause]);
                if member.may_flush {
                    causes.insert(ClosedBy::Flush);
                }
                self.close(old, call, now.wall, causes);
                id = None;
            } else if !same {
                let mut causes = &win.ripe | &win.may_close;
                if causes.is_empty() || member.may_flush {
                    causes.insert(ClosedBy::Flush);
                }
                let may = !win.ripe.is_empty() || !win.may_close.is_empty() || win.unsure || member.may_flush;
                assert!(may, "a second window opens beside {:?} of {name:?}: {}", win.end, member.key.due);
                let unsure = win.unsure;
                // The clock had reached its end, and has been set back since.
                let wall = if self.stepped { u64::MAX } else { now.wall };
                self.close(old, call, wall, causes);
                self.all.get_mut(&old).expect("there").unsure = unsure;
                id = None;
            } else if !win.ripe.is_empty() || member.may_flush {
                // It may have closed, and another with the same end may have begun.
                win.unsure |= app.align || member.may_flush;
            }
        }
        let id = id.unwrap_or_else(|| self.open_one(name, member, app, now));
        let win = self.all.get_mut(&id).expect("open");
        win.unsure |= member.unsure;
        win.members.insert(member.seq);
        win.weight += weight;
        win.last = now.mono;
        win.expiry = win.expiry.min(member.expiry.unwrap_or(u64::MAX));
        self.of.insert(member.seq, id);
        // A window that this member makes ripe closes now or with the next millisecond.
        win.ripe_at_join = 0;
        win.ripen(app, now);
        win.may_close = std::mem::take(&mut win.ripe);
        win.ripe_at_join = if win.may_close.is_empty() { 0 } else { now.mono };
        let mut causes = BTreeSet::new();
        if win.members.len() >= app.max_items as usize {
            causes.insert(ClosedBy::Count);
        }
        if overhead.batch + win.weight >= app.max_bytes {
            causes.insert(ClosedBy::Bytes);
        }
        if !causes.is_empty() && !win.unsure {
            self.close(id, call, now.wall, causes);
        }
    }

    fn open_one(&mut self, name: Name, member: &Member<'_>, app: &AppSettings, now: Now) -> usize {
        let end = now.wall + length(app, now.wall);
        let same = member.key.due == end;
        assert!(same || member.other_end, "a window of {name:?} ends at {}, not {end}", member.key.due);
        self.next += 1;
        // Once the clocks differ, its planned end does not show when it opened.
        let parted = self.stepped && !same;
        let left = if parted { u64::MAX } else { member.key.due.saturating_sub(now.wall) };
        let left = left.min(length(app, now.wall));
        let goes_on = self.going_on.get(&name).filter(|(end, _)| *end == member.key.due);
        let mono_end = goes_on.map_or(now.mono + left, |(_, mono_end)| *mono_end);
        let win = Win::new(name.clone(), (member.key.due, member.key.window), mono_end, now.mono, !same);
        self.all.insert(self.next, win);
        self.open.insert(name, self.next);
        self.next
    }

    /// A member has an own time from now on.
    pub(super) fn part_with(&mut self, seq: u64) {
        self.leave(seq);
        self.of.remove(&seq);
    }

    /// A member has ended in any way. Its window may be gone, if the member has left it before.
    pub(super) fn leave(&mut self, seq: u64) {
        let Some(id) = self.of.get(&seq) else { return };
        let Some(win) = self.all.get_mut(id) else { return };
        win.members.remove(&seq);
        win.only_left |= win.closed.is_none() && !win.unsure;
        win.unsure |= win.closed.is_none();
        if win.members.is_empty() && win.closed.is_some() {
            self.all.remove(id);
        }
    }

    /// A member of an open window is replaced in the commit that is checked.
    pub(super) fn note_replaced(&mut self, seq: u64) {
        let Some(win) = self.of(seq).filter(|win| win.closed.is_none()) else { return };
        *self.replaced_now.entry(win.name.clone()).or_default() += 1;
    }

    pub(super) fn replaced_now(&self, application: &str, customer: &str) -> u64 {
        self.replaced_now.get(&(application.into(), customer.into())).copied().unwrap_or(0)
    }

    /// The next commit is to be checked.
    pub(super) fn forget_replaced(&mut self) {
        self.replaced_now.clear();
    }

    /// The end of an open window whose only member has just left it.
    pub(super) fn end_left(&self, seq: u64) -> Option<u64> {
        let win = self.of(seq).filter(|win| win.closed.is_none() && win.only_left)?;
        let may_be_closed = !win.ripe.is_empty() || !win.may_close.is_empty() || !win.flushes.is_empty();
        (win.members.is_empty() && !may_be_closed).then_some(win.end)
    }

    /// Whether its window is open; a member may have left it just now.
    pub(super) fn is_certainly_open(&self, seq: u64) -> bool {
        let Some(win) = self.of(seq).filter(|win| win.closed.is_none()) else { return false };
        let may_be_closed = !win.ripe.is_empty() || !win.may_close.is_empty() || !win.flushes.is_empty();
        (!win.unsure || win.only_left) && !may_be_closed
    }

    /// Checks the row of a long window that a restart reads.
    pub(super) fn check_row(&self, row: &WindowRow) {
        let name = (row.application.to_string(), row.customer.to_string());
        let Some(win) = self.open.get(&name).map(|id| &self.all[id]) else { return };
        if win.unsure || win.number != row.window {
            return;
        }
        let is = (row.count as usize, row.weight, row.expiry.unwrap_or(u64::MAX));
        assert_eq!(is, (win.members.len(), win.weight, win.expiry), "the row of the window of {name:?}");
    }

    /// A member was published, or the close was written: its window has closed at `due`. `may_flush`: it may have been
    /// flushed.
    pub(super) fn has_closed(&mut self, seq: u64, due: u64, cause: ClosedBy, may_flush: bool, call: usize) {
        let Some(id) = self.of.get(&seq).copied() else { return };
        let others = self.causes_of_same_end(id);
        let win = self.all.get_mut(&id).expect("there");
        let Some(close) = &mut win.closed else {
            let ripe = win.ripe.contains(&cause) || win.may_close.contains(&cause);
            let flushed = may_flush || cause == ClosedBy::Flush && win.flushes.contains(&due);
            let justified = win.unsure || ripe || flushed || self.stepped;
            assert!(justified, "{seq} left its window of {:?} before that closed, by {cause:?}", win.name);
            assert!(due <= win.end, "a window's due {due} after its end {}", win.end);
            let unsure = win.unsure;
            if self.stepped && cause == ClosedBy::Time {
                self.going_on.insert(win.name.clone(), (win.end, win.mono_end));
            }
            self.close(id, call, due, [cause].into());
            self.all.get_mut(&id).expect("there").unsure = unsure;
            return;
        };
        if close.call == call && may_flush && cause == ClosedBy::Flush {
            // Its time had come in this call, and requests that needed room were decided first.
            close.causes.insert(cause);
        }
        // An item that was replaced before it was written counted for a moment.
        let counted = close.causes.iter().any(|cause| matches!(cause, ClosedBy::Count | ClosedBy::Bytes));
        if close.guessed && due < close.due {
            (close.due, close.causes, close.guessed) = (due, [cause].into(), false);
        }
        if self.stepped && due == win.end && others.contains(&cause) {
            // By the wall clock, which was set back, it is not over: it left with a later window of the same end.
            close.causes.insert(cause);
        }
        let unsure = win.unsure || counted;
        if !unsure && cause == ClosedBy::Flush && win.flushes.contains(&due) {
            // Its close was written late, after another moment at which it would have closed.
            (close.due, close.causes) = (due, [cause].into());
        }
        if unsure || self.stepped {
            return assert!(due <= win.end, "a window's due {due} after its end {}", win.end);
        }
        assert_eq!(due, close.due, "{seq} of {:?}: closed by {:?}, said {cause:?}", win.name, close.causes);
    }

    /// Causes that have closed, or may close, other windows of the customer with the same planned end.
    fn causes_of_same_end(&self, id: usize) -> BTreeSet<ClosedBy> {
        let own = &self.all[&id];
        let is_other =
            |(other, win): &(&usize, &Win)| **other != id && win.name == own.name && win.end == own.end;
        let causes = |win: &Win| match &win.closed {
            Some(close) => close.causes.clone(),
            None => &win.ripe | &win.may_close,
        };
        self.all.iter().filter(is_other).flat_map(|(_, win)| causes(win)).collect()
    }

    /// The close was written. After the clock was set back, its time may have come by one clock only, and another cause
    /// closes it first.
    pub(super) fn closed_sooner(&mut self, seq: u64, due: u64, cause: ClosedBy) {
        let Some(win) = self.of.get(&seq).and_then(|id| self.all.get_mut(id)) else { return };
        if let Some(close) = win.closed.as_mut().filter(|close| self.stepped && due < close.due) {
            close.causes.insert(cause);
        }
    }

    pub(super) fn causes(&self, seq: u64) -> Option<&BTreeSet<ClosedBy>> {
        let exact = |causes: &BTreeSet<ClosedBy>| {
            !causes.iter().any(|cause| matches!(cause, ClosedBy::Count | ClosedBy::Bytes))
        };
        self.of(seq)
            .filter(|win| !win.unsure && win.closed.as_ref().is_some_and(|close| exact(&close.causes)))
            .and_then(|win| win.closed.as_ref())
            .map(|close| &close.causes)
    }

    /// Only long windows of former lives are known.
    pub(super) fn crash(&mut self, store: &FakeStore, now: Now) {
        *self = Windows { next: self.next, stepped: self.stepped, ..Windows::default() };
        for row in store.windows.values() {
            self.next += 1;
            let name = (row.application.to_string(), row.customer.to_string());
            let mono_end = now.mono + row.end.saturating_sub(now.wall);
            let win = Win {
                weight: row.weight,
                expiry: row.expiry.unwrap_or(u64::MAX),
                ..Win::new(name.clone(), (row.end, row.window), mono_end, now.mono, true)
            };
            self.all.insert(self.next, win);
            self.open.insert(name, self.next);
        }
    }

    /// Removes unsure windows without members, which prove nothing.
    pub(super) fn tidy(&mut self, now: Now) {
        let all = &self.all;
        let is_gone = |id: &usize| {
            let win = &all[id];
            win.members.is_empty() && win.unsure && now.mono > win.mono_end + CLOCK_SLACK_MS
        };
        let gone: Vec<Name> =
            self.open.iter().filter(|(_, id)| is_gone(id)).map(|(name, _)| name.clone()).collect();
        for name in gone {
            if let Some(id) = self.open.remove(&name) {
                self.all.remove(&id);
            }
        }
    }
}

impl Win {
    /// A window without members.
    fn new(name: Name, (end, number): (u64, u64), mono_end: u64, last: u64, unsure: bool) -> Self {
        Win {
            name,
            end,
            number,
            mono_end,
            members: BTreeSet::new(),
            weight: 0,
            expiry: u64::MAX,
            last,
            closed: None,
            unsure,
            only_left: false,
            ripe: BTreeSet::new(),
            flushes: BTreeSet::new(),
            may_close: BTreeSet::new(),
            ripe_at_join: 0,
        }
    }

    fn ripen(&mut self, app: &AppSettings, now: Now) {
        self.ripe.clear();
        if self.ripe_at_join == now.mono {
            return;
        }
        self.may_close.clear();
        let waits = self.end > now.wall && self.end <= now.wall + CLOCK_SLACK_MS;
        if now.mono >= self.mono_end && !waits {
            self.ripe.insert(ClosedBy::Time);
        }
        if app.quiet > 0 && now.mono >= self.last + app.quiet && self.last + app.quiet < self.mono_end {
            self.ripe.insert(ClosedBy::Quiet);
        }
        if self.expiry != u64::MAX && self.expiry.saturating_sub(EXPIRY_MARGIN_MS) <= now.wall {
            self.ripe.insert(ClosedBy::Expiry);
        }
    }
}
