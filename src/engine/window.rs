//! One open window: what it counts, when it closes and why. Windows of all customers are in
//! [`super::windows`].

use super::event::WindowRow;
use super::ids::ItemId;
use super::mutant::{mutated, Mutant};
use super::size::Overhead;
use super::types::{AppSettings, ClosedBy, Key, Now};
use std::sync::Arc;

/// A window closes this long before its most urgent expiry, ms: time to be sent.
const EXPIRY_MARGIN_MS: u64 = 100;

/// How far the two clocks may disagree on the end of a window, ms; more is a step. Their milliseconds do not
/// turn at the same moment, and one may be slewed.
const CLOCK_SLACK_MS: u64 = 5;

/// How a window is planned when it opens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Length in ms.
    pub(super) length: u64,
    /// End by the wall clock, UTC ms.
    pub(super) end: u64,
    /// It gets a row of its own in the store.
    pub(super) long: bool,
    /// It was open in a former life: members of it may be in the store that nobody has counted.
    pub(super) former: bool,
}

/// What a new member brings into its window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) weight: u32,
    /// Wall clock; `u64::MAX` = none.
    pub(super) expiry: u64,
    pub(super) seq: u64,
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct Window {
    /// When it closes, monotonic ms.
    close: u64,
    /// The same moment on the wall clock, as planned when it opened: the due in its members' keys.
    end: u64,
    /// Arrival number of its first member, in the keys of all.
    number: u64,
    /// Same as [`Plan::former`].
    former: bool,
    /// Key under which the customer stands among the timers.
    check: Key,
    /// Monotonic moment of the last arrival.
    last: u64,
    count: u32,
    weight: u64,
    /// Most urgent expiry, wall clock; `u64::MAX` = none.
    expiry: u64,
    /// Members in memory, in no order.
    members: Vec<ItemId>,
    /// Members in the store alone.
    far: u32,
    /// It has a row of its own in the store, or will have.
    long: bool,
    /// That row is out of date.
    dirty: bool,
}

/// How long a window lasts that opens now, ms.
pub(super) fn length(settings: &AppSettings, now: Now) -> u64 {
    if settings.align {
        settings.window - now.wall % settings.window.max(1)
    } else {
        settings.window
    }
}

impl Window {
    /// It opens now, without members. `number`: of the first of them; it orders it among those that close at
    /// the same moment.
    pub(super) fn new(plan: Plan, number: u64, now: Now) -> Self {
        let close = now.mono + plan.length;
        Window {
            close,
            end: plan.end,
            number,
            former: plan.former,
            check: Key::own(close, number),
            last: now.mono,
            count: 0,
            weight: 0,
            expiry: u64::MAX,
            members: Vec::new(),
            far: 0,
            long: plan.long,
            dirty: false,
        }
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Where its members lie in the store: its planned end and its number.
    pub(super) fn place(&self) -> Key {
        Key { due: self.end, window: self.number, seq: 0 }
    }

    /// This is the place of a member of it.
    pub(super) fn holds(&self, key: Key) -> bool {
        (key.due, key.window) == (self.end, self.number)
    }

    /// Members of it may be in the store that are not in memory.
    pub(super) fn may_have_far(&self) -> bool {
        self.far > 0 || self.former
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Members in the store alone.
    pub(super) fn far(&self) -> u32 {
        self.far
    }

    /// It has a row of its own in the store, or will have.
    pub(super) fn is_long(&self) -> bool {
        self.long
    }

    // ---- when it closes -----------------------------------------------------------------------------------

    /// When it must close as things stand, monotonic, and why.
    pub(super) fn deadline(&self, quiet: u64, now: Now) -> (u64, ClosedBy) {
        let mut deadline = (self.close, ClosedBy::Time);
        if self.close <= now.mono && self.end > now.wall && self.end <= now.wall + CLOCK_SLACK_MS {
            // The other clock is not there yet: nothing leaves before the due that it carries.
            deadline.0 = now.mono + (self.end - now.wall);
        }
        if quiet > 0 && self.last + quiet < self.close && !mutated(Mutant::QuietIgnored) {
            deadline = (self.last + quiet, ClosedBy::Quiet);
        }
        if self.expiry != u64::MAX && !mutated(Mutant::WindowIgnoresExpiry) {
            let left = self.expiry.saturating_sub(EXPIRY_MARGIN_MS).saturating_sub(now.wall);
            let than = if mutated(Mutant::ExpirySilencesQuiet) { self.close } else { deadline.0 };
            if now.mono + left < than {
                deadline = (now.mono + left, ClosedBy::Expiry);
            }
        }
        deadline
    }

    /// Key under which the customer stands among the timers.
    pub(super) fn check(&self) -> Key {
        self.check
    }

    /// It is looked at then, monotonic; the key that it stood under before.
    pub(super) fn check_at(&mut self, at: u64) -> Key {
        let before = self.check;
        self.check.due = at;
        before
    }

    /// The due of its members if it closes now for this cause.
    pub(super) fn due_at_close(&self, cause: ClosedBy, now: Now) -> u64 {
        let to_its_end = cause == ClosedBy::Time && self.end <= now.wall + CLOCK_SLACK_MS;
        if to_its_end {
            self.end
        } else {
            self.end.min(now.wall)
        }
    }

    /// Whether a new member of this weight would take it over its bytes.
    pub(super) fn would_overflow(&self, weight: u32, overhead: Overhead, max_bytes: u64) -> bool {
        let bytes = overhead.batch + self.weight + u64::from(weight) + overhead.item;
        self.count > 0 && bytes > max_bytes && !mutated(Mutant::BytesIgnored)
    }

    /// What it has reached.
    pub(super) fn is_full(&self, settings: &AppSettings, overhead: Overhead) -> Option<ClosedBy> {
        if self.count >= settings.max_items && !mutated(Mutant::CountIgnored) {
            Some(ClosedBy::Count)
        } else if overhead.batch + self.weight >= settings.max_bytes && !mutated(Mutant::BytesIgnored) {
            Some(ClosedBy::Bytes)
        } else {
            None
        }
    }

    // ---- who is counted -----------------------------------------------------------------------------------

    /// As a former life left it: all members are in the store alone.
    pub(super) fn recount(&mut self, row: &WindowRow) {
        self.count = row.count;
        self.far = row.count;
        self.weight = row.weight;
        self.expiry = row.expiry.unwrap_or(u64::MAX);
    }

    /// Counts a new item. `overhead`: what an item costs beside its weight.
    pub(super) fn join(&mut self, member: Member, overhead: u64, now: Now) {
        self.count_member(member, overhead);
        if !mutated(Mutant::QuietFromTheFirst) {
            self.last = now.mono;
        }
    }

    /// Counts an item of a former life that has come into memory, if its row did not.
    pub(super) fn rejoin(&mut self, member: Member, overhead: u64) {
        if self.far > 0 && !mutated(Mutant::RejoinCountsTwice) {
            self.far -= 1;
            self.expiry = self.expiry.min(member.expiry);
        } else {
            self.count_member(member, overhead);
        }
    }

    fn count_member(&mut self, member: Member, overhead: u64) {
        self.count += 1;
        self.weight += u64::from(member.weight) + overhead;
        self.expiry = self.expiry.min(member.expiry);
    }

    /// A member ended. Whether it was the last. One of a former life that was in the store alone and has not
    /// come into memory was never counted, where its window had no row.
    pub(super) fn leave(&mut self, weight: u32, overhead: u64, was_far: bool) -> bool {
        if was_far {
            let Some(left) = self.far.checked_sub(1) else { return false };
            self.far = left;
        }
        self.count = self.count.saturating_sub(1);
        self.weight = self.weight.saturating_sub(u64::from(weight) + overhead);
        self.count == 0 && !(was_far && mutated(Mutant::EmptiedFarWindowStays))
    }

    /// A member is in the store alone. Whether the window must have a row from now on: it ends beyond
    /// `horizon`, wall clock, and had none.
    pub(super) fn add_far(&mut self, horizon: u64) -> bool {
        self.far += 1;
        let begins = self.end > horizon && !self.long;
        self.long |= begins;
        begins
    }

    // ---- its members in memory ----------------------------------------------------------------------------

    pub(super) fn members(&self) -> &[ItemId] {
        &self.members
    }

    /// Its place in the list.
    pub(super) fn push_member(&mut self, id: ItemId) -> u32 {
        self.members.push(id);
        (self.members.len() - 1) as u32
    }

    /// The last of the list moves into the gap: which one, unless the last one left.
    pub(super) fn remove_member(&mut self, pos: u32) -> Option<ItemId> {
        self.members.swap_remove(pos as usize);
        self.members.get(pos as usize).copied()
    }

    /// All of them: the window is over.
    pub(super) fn take_members(&mut self) -> Vec<ItemId> {
        std::mem::take(&mut self.members)
    }

    // ---- its row ------------------------------------------------------------------------------------------

    /// What its row says is out of date, if it has one. Whether that is news.
    pub(super) fn mark(&mut self) -> bool {
        let news = self.long && !self.dirty;
        self.dirty |= news;
        news
    }

    /// Its row, if what the store has is out of date.
    pub(super) fn take_dirty_row(
        &mut self,
        application: &Arc<str>,
        customer: &Arc<str>,
    ) -> Option<WindowRow> {
        std::mem::take(&mut self.dirty).then(|| WindowRow {
            application: Arc::clone(application),
            customer: Arc::clone(customer),
            end: self.end,
            window: self.number,
            count: self.count,
            weight: self.weight,
            expiry: (self.expiry != u64::MAX && !mutated(Mutant::RowWithoutExpiry)).then_some(self.expiry),
        })
    }
}
