//! One open window: its counts, when it closes and why. [`super::customers`] holds the windows of all
//! customers.

use super::ids::ItemId;
use super::mutant::{mutated, Mutant};
use alloc::sync::Arc;
use alloc::vec::Vec;
use tidegate_types::event::WindowRow;
use tidegate_types::size::Overhead;
use tidegate_types::{AppSettings, ClosedBy, Key, Now};

/// A window closes this long before its most urgent expiry, ms, so that it can be sent in time.
const EXPIRY_MARGIN_MS: u64 = 100;

/// Maximum difference of the two clocks at the end of a window, ms; more is a step. Their milliseconds do not
/// change at the same moment, and one may be slewed.
const CLOCK_SLACK_MS: u64 = 5;

/// The plan of a window when it opens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Length in ms.
    pub(crate) length: u64,
    /// End by the wall clock, UTC ms.
    pub(crate) end: u64,
    /// It has a row in the store.
    pub(crate) long: bool,
    /// It was open in a former life: the store may contain members that are not counted.
    pub(crate) former: bool,
}

/// The facts about a new member that its window needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) weight: u32,
    /// Wall clock; `u64::MAX` = none.
    pub(crate) expiry: u64,
    pub(crate) seq: u64,
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Window {
    /// When it closes, monotonic ms.
    close: u64,
    /// The same moment on the wall clock, as planned when it opened: the due in its members' keys.
    end: u64,
    /// Arrival number of its first member, in the keys of all.
    number: u64,
    /// Same as [`Plan::former`].
    former: bool,
    /// Key of its customer among the timers.
    check: Key,
    /// Monotonic moment of the last arrival.
    last: u64,
    count: u32,
    weight: u64,
    /// Most urgent expiry, wall clock; `u64::MAX` = none.
    expiry: u64,
    /// Members in memory, unordered.
    members: Vec<ItemId>,
    /// Number of members that are in the store only.
    far: u32,
    /// Whether it has a row in the store, or will have.
    long: bool,
    /// Its row is out of date.
    dirty: bool,
}

/// Length of a window that opens now, ms.
pub(crate) fn length(settings: &AppSettings, now: Now) -> u64 {
    if settings.align {
        settings.window - now.wall % settings.window.max(1)
    } else {
        settings.window
    }
}

impl Window {
    /// A window that opens now, without members. `number`: arrival number of the first member; it orders
    /// windows that close at the same moment.
    pub(crate) fn new(plan: Plan, number: u64, now: Now) -> Self {
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

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The place of its members in the store: its planned end and its number.
    pub(crate) fn place(&self) -> Key {
        Key { due: self.end, window: self.number, seq: 0 }
    }

    /// Whether this is the key of one of its members.
    pub(crate) fn holds(&self, key: Key) -> bool {
        (key.due, key.window) == (self.end, self.number)
    }

    /// Whether members may be in the store only.
    pub(crate) fn may_have_far(&self) -> bool {
        self.far > 0 || self.former
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Number of members that are in the store only.
    pub(crate) fn far(&self) -> u32 {
        self.far
    }

    /// Whether it has a row in the store, or will have.
    pub(crate) fn is_long(&self) -> bool {
        self.long
    }

    // ---- when it closes -----------------------------------------------------------------------------------

    /// When it must close at present, monotonic ms, and why.
    pub(crate) fn deadline(&self, quiet: u64, now: Now) -> (u64, ClosedBy) {
        let mut deadline = (self.close, ClosedBy::Time);
        if self.close <= now.mono && self.end > now.wall && self.end <= now.wall + CLOCK_SLACK_MS {
            // The wall clock has not reached the end yet: no item leaves before its due.
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

    /// Key of its customer among the timers.
    pub(crate) fn check(&self) -> Key {
        self.check
    }

    /// Sets the next check, monotonic ms. Returns the former key.
    pub(crate) fn check_at(&mut self, at: u64) -> Key {
        let before = self.check;
        self.check.due = at;
        before
    }

    /// The due of its members if it closes now for this cause.
    pub(crate) fn due_at_close(&self, cause: ClosedBy, now: Now) -> u64 {
        let to_its_end = cause == ClosedBy::Time && self.end <= now.wall + CLOCK_SLACK_MS;
        if to_its_end {
            self.end
        } else {
            self.end.min(now.wall)
        }
    }

    /// Whether a new member of this weight would take it over its bytes.
    pub(crate) fn would_overflow(&self, weight: u32, overhead: Overhead, max_bytes: u64) -> bool {
        let bytes = overhead.batch + self.weight + u64::from(weight) + overhead.item;
        self.count > 0 && bytes > max_bytes && !mutated(Mutant::BytesIgnored)
    }

    /// The limit that it has reached.
    pub(crate) fn is_full(&self, settings: &AppSettings, overhead: Overhead) -> Option<ClosedBy> {
        if self.count >= settings.max_items && !mutated(Mutant::CountIgnored) {
            Some(ClosedBy::Count)
        } else if overhead.batch + self.weight >= settings.max_bytes && !mutated(Mutant::BytesIgnored) {
            Some(ClosedBy::Bytes)
        } else {
            None
        }
    }

    // ---- counts -------------------------------------------------------------------------------------------

    /// Sets the counts of a former life: all members are in the store only.
    pub(crate) fn recount(&mut self, row: &WindowRow) {
        self.count = row.count;
        self.far = row.count;
        self.weight = row.weight;
        self.expiry = row.expiry.unwrap_or(u64::MAX);
    }

    /// Counts a new item. `overhead`: bytes of an item in addition to its weight.
    pub(crate) fn join(&mut self, member: Member, overhead: u64, now: Now) {
        self.count_member(member, overhead);
        if !mutated(Mutant::QuietFromTheFirst) {
            self.last = now.mono;
        }
    }

    /// Counts a loaded item of a former life, unless the window's row included it.
    pub(crate) fn rejoin(&mut self, member: Member, overhead: u64) {
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

    /// A member ended. Whether it was the last one. A member of a former life that was in the store only was
    /// never counted if its window had no row.
    pub(crate) fn leave(&mut self, weight: u32, overhead: u64, was_far: bool) -> bool {
        if was_far {
            let Some(left) = self.far.checked_sub(1) else { return false };
            self.far = left;
        }
        self.count = self.count.saturating_sub(1);
        self.weight = self.weight.saturating_sub(u64::from(weight) + overhead);
        self.count == 0 && !(was_far && mutated(Mutant::EmptiedFarWindowStays))
    }

    /// A member is in the store only. Whether the window needs a row from now on: it ends beyond `horizon`,
    /// wall clock, and had none.
    pub(crate) fn add_far(&mut self, horizon: u64) -> bool {
        self.far += 1;
        let begins = self.end > horizon && !self.long;
        self.long |= begins;
        begins
    }

    // ---- its members in memory ----------------------------------------------------------------------------

    pub(crate) fn members(&self) -> &[ItemId] {
        &self.members
    }

    /// Adds a member. Returns its position in the list.
    pub(crate) fn push_member(&mut self, id: ItemId) -> u32 {
        self.members.push(id);
        (self.members.len() - 1) as u32
    }

    /// Removes a member; the last one of the list moves into the gap. Returns that one, if there is one.
    pub(crate) fn remove_member(&mut self, pos: u32) -> Option<ItemId> {
        self.members.swap_remove(pos as usize);
        self.members.get(pos as usize).copied()
    }

    /// Takes all members, when the window ends.
    pub(crate) fn take_members(&mut self) -> Vec<ItemId> {
        core::mem::take(&mut self.members)
    }

    // ---- its row ------------------------------------------------------------------------------------------

    /// Marks its row, if it has one, as out of date. Whether it was not before.
    pub(crate) fn mark(&mut self) -> bool {
        let news = self.long && !self.dirty;
        self.dirty |= news;
        news
    }

    /// Its present row, if the stored one is out of date.
    pub(crate) fn take_dirty_row(
        &mut self,
        application: &Arc<str>,
        customer: &Arc<str>,
    ) -> Option<WindowRow> {
        core::mem::take(&mut self.dirty).then(|| WindowRow {
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
