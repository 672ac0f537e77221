//! One open window: its counts, when it closes and why. [`super::customers`] holds the windows of all
//! customers.

use super::ids::ItemId;
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

impl Plan {
    /// The plan of a window that a former life left open, from its row. `longest`: the present length of new
    /// windows, which it never exceeds, whatever the clock did in the meantime.
    pub(crate) fn of_former(row: &WindowRow, longest: u64, now: Now) -> Self {
        let length = row.end.saturating_sub(now.wall).min(longest);
        Plan { length, end: row.end, long: true, former: true }
    }
}

/// The facts about a member that its window needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) weight: u32,
    /// Wall clock; `u64::MAX` = none.
    pub(crate) expiry: u64,
    pub(crate) seq: u64,
}

/// Most expiries of one window that are kept apart.
const MOST_EXPIRIES: usize = 8;

/// The expiries of members, each with the number of members that have it. The last one also stands for all
/// later ones once there are too many: then it may outlive the member that had it, and the window closes too
/// soon rather than too late.
#[derive(Debug, Default)]
struct Expiries {
    /// In order of time.
    counts: Vec<(u64, u32)>,
    /// The last one stands for later ones too.
    is_coarse: bool,
}

impl Expiries {
    /// The most urgent one, wall clock; `u64::MAX` = none.
    fn first(&self) -> u64 {
        self.counts.first().map_or(u64::MAX, |(at, _)| *at)
    }

    fn add(&mut self, expiry: u64) {
        if expiry == u64::MAX {
            return;
        }
        let at = self.counts.partition_point(|(other, _)| *other < expiry);
        let is_new = self.counts.get(at).is_some_and(|(other, _)| *other != expiry);
        if is_new && self.counts.len() == MOST_EXPIRIES {
            let (_, later) = self.counts.pop().unwrap_or_default();
            self.counts.last_mut().into_iter().for_each(|(_, count)| *count += later);
            self.is_coarse = true;
        }
        let at = at.min(self.counts.len());
        let is_last = at == self.counts.len() && (self.is_coarse || at == MOST_EXPIRIES);
        match self.counts.get_mut(at) {
            Some((other, count)) if *other == expiry => *count += 1,
            Some(_) => self.counts.insert(at, (expiry, 1)),
            None if is_last => {
                self.is_coarse = true;
                self.counts.last_mut().into_iter().for_each(|(_, count)| *count += 1);
            }
            None => self.counts.push((expiry, 1)),
        }
    }

    fn remove(&mut self, expiry: u64) {
        if expiry == u64::MAX {
            return;
        }
        let Some(at) = self.counts.partition_point(|(other, _)| *other <= expiry).checked_sub(1) else {
            debug_assert!(false, "an expiry is removed once");
            return;
        };
        self.counts[at].1 -= 1;
        if self.counts[at].1 == 0 {
            self.is_coarse &= at + 1 < self.counts.len();
            self.counts.remove(at);
        }
    }
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
    /// Members with a number below this came before it was opened, as a former life, or a clock that was set
    /// back since, left them.
    born: u64,
    /// Key of its customer among the timers.
    check: Key,
    /// Monotonic moment of the last arrival.
    last: u64,
    count: u32,
    weight: u64,
    /// Expiries of the members. Those of former members count while they are in memory.
    expiries: Expiries,
    /// Former members that are counted and in the store only, and the most urgent expiry among them, wall
    /// clock; `u64::MAX` = none. Once its member has left it stays until the others have, since what they say
    /// is in the store; for ever where no row has counted them all.
    unseen: u32,
    unseen_expiry: u64,
    /// A row has counted the former members.
    all_counted: bool,
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
    /// windows that close at the same moment. `born`: the arrival number of the next item if former members
    /// may be in the store, else 0.
    pub(crate) fn new(plan: Plan, number: u64, born: u64, now: Now) -> Self {
        let close = now.mono + plan.length;
        Window {
            close,
            end: plan.end,
            number,
            former: plan.former,
            born,
            check: Key::own(close, number),
            last: now.mono,
            count: 0,
            weight: 0,
            expiries: Expiries::default(),
            unseen: 0,
            unseen_expiry: u64::MAX,
            all_counted: false,
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

    /// Whether this is the key of one of its members, which waits with the others: the wall clock may have
    /// come to the end of the window while the monotonic clock, which closes it, has not.
    pub(crate) fn still_holds(&self, key: Key, now: Now) -> bool {
        self.holds(key) && now.mono < self.close && now.wall <= self.end + CLOCK_SLACK_MS
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
        if quiet > 0 && self.last + quiet < self.close {
            deadline = (self.last + quiet, ClosedBy::Quiet);
        }
        if self.expiry() != u64::MAX {
            let left = self.expiry().saturating_sub(EXPIRY_MARGIN_MS).saturating_sub(now.wall);
            if now.mono + left < deadline.0 {
                deadline = (now.mono + left, ClosedBy::Expiry);
            }
        }
        deadline
    }

    /// Most urgent expiry, wall clock; `u64::MAX` = none.
    fn expiry(&self) -> u64 {
        self.expiries.first().min(self.unseen_expiry)
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
        self.count > 0 && bytes > max_bytes
    }

    /// The limit that it has reached.
    pub(crate) fn is_full(&self, settings: &AppSettings, overhead: Overhead) -> Option<ClosedBy> {
        if self.count >= settings.max_items {
            Some(ClosedBy::Count)
        } else if overhead.batch + self.weight >= settings.max_bytes {
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
        self.unseen = row.count;
        self.unseen_expiry = row.expiry.unwrap_or(u64::MAX);
        self.all_counted = true;
    }

    /// Counts a new item. `overhead`: bytes of an item in addition to its weight.
    pub(crate) fn join(&mut self, member: Member, overhead: u64, now: Now) {
        self.count_member(member, overhead);
        self.last = now.mono;
    }

    /// Counts a loaded item of a former life, unless the window's row included it.
    pub(crate) fn rejoin(&mut self, member: Member, overhead: u64) {
        if !self.take_far(member) {
            self.count_member(member, overhead);
        } else if self.is_former(member) {
            self.expiries.add(member.expiry);
        }
    }

    fn is_former(&self, member: Member) -> bool {
        member.seq < self.born
    }

    /// A member is in the store only no longer. False: it was not counted. Former members are not known one
    /// by one: one that was not counted takes the place of one that was.
    fn take_far(&mut self, member: Member) -> bool {
        let is_former = self.is_former(member);
        if (if is_former { self.unseen } else { self.far - self.unseen }) == 0 {
            return false;
        }
        self.far -= 1;
        self.unseen -= u32::from(is_former);
        if self.unseen == 0 && self.all_counted {
            self.unseen_expiry = u64::MAX;
        }
        true
    }

    fn count_member(&mut self, member: Member, overhead: u64) {
        self.count += 1;
        self.weight += u64::from(member.weight) + overhead;
        self.expiries.add(member.expiry);
    }

    /// A member ended. Whether it was the last one. A member of a former life that was in the store only was
    /// never counted if its window had no row.
    pub(crate) fn leave(&mut self, member: Member, overhead: u64, was_far: bool) -> bool {
        if was_far && !self.take_far(member) {
            return false;
        }
        if !(was_far && self.is_former(member)) {
            self.expiries.remove(member.expiry);
        }
        self.count = self.count.saturating_sub(1);
        self.weight = self.weight.saturating_sub(u64::from(member.weight) + overhead);
        self.count == 0
    }

    /// A member is in the store only. Whether the window needs a row from now on: it ends beyond `horizon`,
    /// wall clock, and had none.
    pub(crate) fn add_far(&mut self, member: Member, horizon: u64) -> bool {
        self.far += 1;
        if self.is_former(member) {
            self.expiries.remove(member.expiry);
            self.unseen += 1;
            self.unseen_expiry = self.unseen_expiry.min(member.expiry);
        }
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
            expiry: Some(self.expiry()).filter(|expiry| *expiry != u64::MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: u64 = u64::MAX;
    const OVERHEAD: Overhead = Overhead { batch: 10, item: 2 };

    fn at(mono: u64, wall: u64) -> Now {
        Now { wall, mono }
    }

    /// A window of one second, opened at 0 by the monotonic clock and at 10,000 by the wall clock.
    fn opened(long: bool, former: bool) -> Window {
        let plan = Plan { length: 1_000, end: 11_000, long, former };
        Window::new(plan, 7, if former { 8 } else { 7 }, at(0, 10_000))
    }

    fn member(weight: u32, expiry: u64) -> Member {
        Member { weight, expiry, seq: 7 }
    }

    /// Columns: members as (monotonic moment, expiry), `quiet`, the present moment by both clocks; then when
    /// the window closes, and why.
    /// Excluded: `quiet` ignored, or counted from the first member; expiry ignored, or later than `quiet` and
    /// still the cause; the margin before an expiry forgotten; an end before the wall clock reaches it.
    /// Judges promises 4 and 10.
    #[test]
    fn when_a_window_closes_and_why() {
        for (members, quiet, (mono, wall), expected) in [
            (&[(0, NONE)][..], 0, (0, 10_000), (1_000, ClosedBy::Time)),
            (&[(0, NONE), (900, NONE)], 0, (900, 10_900), (1_000, ClosedBy::Time)),
            (&[(0, NONE)], 300, (0, 10_000), (300, ClosedBy::Quiet)),
            (&[(0, NONE), (200, NONE)], 300, (200, 10_200), (500, ClosedBy::Quiet)),
            (&[(0, NONE), (699, NONE)], 300, (699, 10_699), (999, ClosedBy::Quiet)),
            (&[(0, NONE), (700, NONE)], 300, (700, 10_700), (1_000, ClosedBy::Time)),
            (&[(0, 10_500)], 0, (0, 10_000), (400, ClosedBy::Expiry)),
            (&[(0, 10_500)], 0, (300, 10_300), (400, ClosedBy::Expiry)),
            (&[(0, 10_500)], 0, (300, 10_100), (600, ClosedBy::Expiry)),
            (&[(0, 10_050)], 0, (0, 10_000), (0, ClosedBy::Expiry)),
            (&[(0, 11_099)], 0, (0, 10_000), (999, ClosedBy::Expiry)),
            (&[(0, 11_100)], 0, (0, 10_000), (1_000, ClosedBy::Time)),
            (&[(0, 10_900), (100, 10_300)], 0, (100, 10_100), (200, ClosedBy::Expiry)),
            (&[(0, 10_300), (100, 10_900)], 0, (100, 10_100), (200, ClosedBy::Expiry)),
            (&[(0, 10_500)], 300, (0, 10_000), (300, ClosedBy::Quiet)),
            (&[(0, 10_400)], 300, (0, 10_000), (300, ClosedBy::Quiet)),
            (&[(0, 10_399)], 300, (0, 10_000), (299, ClosedBy::Expiry)),
            (&[(0, NONE)], 0, (1_000, 10_995), (1_005, ClosedBy::Time)),
            (&[(0, NONE)], 0, (1_000, 10_994), (1_000, ClosedBy::Time)),
        ] {
            let mut window = opened(false, false);
            for (mono, expiry) in members {
                window.join(member(20, *expiry), OVERHEAD.item, at(*mono, 10_000 + mono));
            }
            let deadline = window.deadline(quiet, at(mono, wall));
            assert_eq!(deadline, expected, "{members:?}, quiet {quiet}, at {mono}, {wall}");
        }
    }

    /// Columns: weights of the members, and of one more; whether that is too much, and the limit that they
    /// have reached without it. At most three members, and 100 bytes with the overhead of all.
    /// Excluded: either limit ignored, reached one member or one byte too late, or without the overhead; a
    /// first member that does not fit.
    /// Judges promise 10.
    #[test]
    fn when_a_window_is_full() {
        let settings = AppSettings { max_items: 3, max_bytes: 100, ..AppSettings::default() };
        for (weights, more, overflows, is_full) in [
            (&[20][..], 66, false, None),
            (&[], 500, false, None),
            (&[20], 67, true, None),
            (&[20, 20], 44, false, None),
            (&[20, 20], 45, true, None),
            (&[20, 20, 20], 22, false, Some(ClosedBy::Count)),
            (&[20, 20, 20], 23, true, Some(ClosedBy::Count)),
            (&[87], 0, true, None),
            (&[88], 0, true, Some(ClosedBy::Bytes)),
            (&[500], 0, true, Some(ClosedBy::Bytes)),
            (&[42, 43], 0, true, None),
            (&[42, 44], 0, true, Some(ClosedBy::Bytes)),
            (&[42, 42, 44], 0, true, Some(ClosedBy::Count)),
        ] {
            let mut window = opened(false, false);
            for weight in weights {
                window.join(member(*weight, NONE), OVERHEAD.item, at(0, 10_000));
            }
            let found = (
                window.would_overflow(more, OVERHEAD, settings.max_bytes),
                window.is_full(&settings, OVERHEAD),
            );
            assert_eq!(found, (overflows, is_full), "{weights:?} and {more}");
        }
    }

    /// A window of a former life, whose row counted two members, and a third of which it knew nothing.
    /// Columns: the event; then whether the last member has left, the members, how many of them are in the
    /// store only, and the row: sum of weights, and most urgent expiry.
    /// Excluded: a loaded member counted again, or one never counted forgotten; an expiry lost on the way to
    /// the row; a window that outlives its last member, near or far.
    /// Judges promise 10.
    #[test]
    fn what_a_window_counts() {
        let (application, customer): (Arc<str>, Arc<str>) = ("shop".into(), "anna".into());
        let row = |count, weight, expiry| {
            let (application, customer) = (Arc::clone(&application), Arc::clone(&customer));
            WindowRow { application, customer, end: 11_000, window: 7, count, weight, expiry }
        };
        let mut window = opened(true, true);
        for (event, weight, expiry, expected) in [
            ("opened", 0, NONE, (false, 0, 0, (0, None))),
            ("its row", 50, 9_000, (false, 2, 2, (50, Some(9_000)))),
            ("loaded", 20, 8_000, (false, 2, 1, (50, Some(8_000)))),
            ("loaded", 26, NONE, (false, 2, 0, (50, Some(8_000)))),
            ("loaded", 8, NONE, (false, 3, 0, (60, Some(8_000)))),
            ("joins", 8, 7_000, (false, 4, 0, (70, Some(7_000)))),
            ("evicted", 8, NONE, (false, 4, 1, (70, Some(7_000)))),
            ("leaves", 8, 7_000, (false, 3, 1, (60, Some(8_000)))),
            ("leaves from afar", 8, NONE, (false, 2, 0, (50, Some(8_000)))),
            ("leaves from afar", 8, NONE, (false, 2, 0, (50, Some(8_000)))),
            ("leaves", 20, 8_000, (false, 1, 0, (28, None))),
            ("evicted", 26, NONE, (false, 1, 1, (28, None))),
            ("leaves from afar", 26, NONE, (true, 0, 0, (0, None))),
            ("joins", 20, NONE, (false, 1, 0, (22, None))),
            ("leaves", 20, NONE, (true, 0, 0, (0, None))),
        ] {
            let mut ends = false;
            match event {
                "its row" => window.recount(&row(2, weight.into(), Some(expiry))),
                "loaded" => window.rejoin(member(weight, expiry), OVERHEAD.item),
                "joins" => window.join(member(weight, expiry), OVERHEAD.item, at(5, 10_005)),
                "evicted" => assert!(!window.add_far(member(weight, expiry), 5_000), "it has a row"),
                "leaves" => ends = window.leave(member(weight, expiry), OVERHEAD.item, false),
                "leaves from afar" => ends = window.leave(member(weight, expiry), OVERHEAD.item, true),
                _ => {}
            }
            assert_eq!([window.mark(), window.mark()], [true, false], "{event}: it is out of date once");
            let written = window.take_dirty_row(&application, &customer);
            let (last, count, far, (bytes, urgent)) = expected;
            assert_eq!((ends, window.count(), window.far()), (last, count, far), "{event} {weight}");
            assert_eq!(written, Some(row(count, bytes, urgent)), "{event} {weight}");
        }
        assert_eq!(window.take_dirty_row(&application, &customer), None, "it is written");
    }

    /// Members are `A` with an expiry of 1,000, `B` with 2,000, and `C` with none; those of a former life are
    /// `a`, `b` and `c`, of which the row counted one each. Each event is a member that joins, leaves (`-`),
    /// leaves from the store (`~`), is evicted (`>`) or loaded (`<`).
    /// Excluded: an expiry that outlives its member; one that is forgotten while its member stays, wherever
    /// it is; one of a former life that stays when all such members have come or gone.
    /// Judges promises 4 and 10.
    #[test]
    fn an_expiry_counts_while_its_member_is_there() {
        for (story, expected) in [
            ("A B C", 1_000),
            ("A B C -A", 2_000),
            ("A B C -A -B", NONE),
            ("A B C -C", 1_000),
            ("A A B -A", 1_000),
            ("A A B -A -A", 2_000),
            ("A B >A >B ~A", 2_000),
            ("A B >A >B ~A ~B", NONE),
            ("A B >A <A -A", 2_000),
            ("A B >A >B <B ~A -B", NONE),
            ("row ~a", 1_000),
            ("row ~a ~b ~c", NONE),
            ("row <a <b <c", 1_000),
            ("row <b <c <a -a", 2_000),
            ("row <a <b <c >a >b ~a", 1_000),
            ("row <a <b <c >a ~a", 2_000),
            ("row <a <b <c -a -b A -A", NONE),
            ("row A >A ~A <a <b <c -a", 2_000),
            ("<a >a <b", 1_000),
            ("<b A >A <c <A -A", 2_000),
            ("<c A >A <b ~A", 2_000),
            ("<b ~c -b", NONE),
        ] {
            let mut window = opened(true, true);
            for event in story.split(' ') {
                let letter = event.chars().next_back().expect("a letter");
                let expiry = match letter.to_ascii_uppercase() {
                    'A' => 1_000,
                    'B' => 2_000,
                    _ => NONE,
                };
                let member =
                    Member { weight: 20, expiry, seq: if letter.is_ascii_lowercase() { 7 } else { 8 } };
                match event.chars().next() {
                    Some('r') => {
                        let (application, customer) = ("shop".into(), "anna".into());
                        let (end, expiry) = (11_000, Some(1_000));
                        let (count, weight) = (3, 66);
                        let row = WindowRow { application, customer, end, window: 7, count, weight, expiry };
                        window.recount(&row);
                    }
                    Some('-') => assert!(!window.leave(member, OVERHEAD.item, false) || window.count() == 0),
                    Some('~') => assert!(!window.leave(member, OVERHEAD.item, true) || window.count() == 0),
                    Some('>') => assert!(!window.add_far(member, 0), "it has a row"),
                    Some('<') => window.rejoin(member, OVERHEAD.item),
                    _ => window.join(member, OVERHEAD.item, at(0, 10_000)),
                }
            }
            assert_eq!(window.expiry(), expected, "{story}");
        }
    }

    /// More expiries than are kept apart join and leave in any order.
    /// Excluded: one that is later than that of a member; one that is not exact while there are few; one that
    /// stays when all have gone; memory that grows with the members.
    /// Judges promises 4, 7 and 10.
    #[test]
    fn expiries_are_never_too_late_and_exact_while_they_are_few() {
        let mut random = crate::backoff::Random(1);
        for kinds in [3, MOST_EXPIRIES as u64, 9, 200] {
            let (mut expiries, mut there) = (Expiries::default(), Vec::new());
            for step in 0..20_000 {
                let grows =
                    there.is_empty() || random.draw() % 100 < if step / 500 % 2 == 0 { 60 } else { 40 };
                if grows {
                    let expiry = 1_000 + random.draw() % kinds;
                    expiries.add(expiry);
                    there.push(expiry);
                } else {
                    let at = random.draw() as usize % there.len();
                    expiries.remove(there.swap_remove(at));
                }
                let right = there.iter().min().copied().unwrap_or(NONE);
                assert!(expiries.first() <= right, "{} of {right}", expiries.first());
                assert!(!there.is_empty() || expiries.first() == NONE);
                assert!(kinds > MOST_EXPIRIES as u64 || expiries.first() == right, "{kinds} kinds");
                assert!(expiries.counts.len() <= MOST_EXPIRIES);
            }
        }
    }

    /// Columns: the planned end, the length of new windows, the wall clock; then the length.
    /// Excluded: a window longer than new ones, after a step back of the clock; one shorter than planned.
    /// Judges promise 10.
    #[test]
    fn how_long_a_window_of_a_former_life_stays_open() {
        for (end, longest, wall, expected) in [
            (12_000, 3_000, 10_000, 2_000),
            (13_000, 3_000, 10_000, 3_000),
            (15_000, 3_000, 10_000, 3_000),
            (10_000, 3_000, 10_000, 0),
            (9_000, 3_000, 10_000, 0),
        ] {
            let (application, customer) = ("shop".into(), "anna".into());
            let row = WindowRow { application, customer, end, window: 7, count: 1, weight: 9, expiry: None };
            let plan = Plan::of_former(&row, longest, at(4, wall));
            let found = (plan.length, plan.end, plan.long, plan.former);
            assert_eq!(found, (expected, end, true, true), "{end} at {wall}");
        }
    }
}
