//! Rates: how fast the items of an application may leave. A token bucket, kept as one number: the moment by
//! which all items that have left are paid for (the generic cell rate algorithm, ITU-T I.371, annex A).
//!
//! It is not stored: after a start the bucket is full, so that a start adds one burst at most.

use tidegate_types::rate::Bound;

/// What a bucket of this size and rate lets through.
trait TokenBucket: Copy {
    /// The credit of a bucket until this moment, from the monotonic time 0 on.
    fn all_until(self, mono: u64) -> u64;

    /// Number of items that are not paid for.
    fn owed(self, paid: u64, mono: u64) -> u64;

    /// Number of items that may leave.
    fn room(self, paid: u64, mono: u64) -> u64;

    /// When this many items may leave. For more than the burst: when the bucket is full; the rest is owed
    /// then.
    fn free_at(self, paid: u64, items: u64) -> u64;

    /// The new value of `paid` when this many items leave now.
    fn pay(self, paid: u64, items: u64, mono: u64) -> u64;
}

impl TokenBucket for Bound {
    fn all_until(self, mono: u64) -> u64 {
        mono * u64::from(self.rate.items)
    }

    fn owed(self, paid: u64, mono: u64) -> u64 {
        paid.saturating_sub(self.all_until(mono)).div_ceil(self.rate.each_ms)
    }

    fn room(self, paid: u64, mono: u64) -> u64 {
        match self.owed(paid, mono) {
            0 => u64::MAX,
            owed => u64::from(self.burst).saturating_sub(owed),
        }
    }

    fn free_at(self, paid: u64, items: u64) -> u64 {
        let burst = u64::from(self.burst);
        let spare = burst - items.clamp(1, burst);
        paid.saturating_sub(spare * self.rate.each_ms).div_ceil(u64::from(self.rate.items))
    }

    fn pay(self, paid: u64, items: u64, mono: u64) -> u64 {
        // Credit gained because waits are rounded up to whole milliseconds is kept.
        let rest = u64::from(self.rate.items) - 1;
        paid.max(self.all_until(mono).saturating_sub(rest)) + items * self.rate.each_ms
    }
}

/// See the module's page. Moments are monotonic, ms.
#[derive(Debug)]
pub(crate) struct Pace {
    bound: Option<Bound>,
    /// The moments, times the items of the rate, at which all formed items, and all items that have left, are
    /// paid for. They differ by the items that wait for payloads.
    formed: u64,
    left: u64,
    /// Number of items that have been formed and have not left.
    out: u64,
    /// No batch is formed before this moment, at which the queue is checked again.
    waits_until: Option<u64>,
    /// Number of items of the next batch, if it was too large to leave; else 1.
    wanted: u64,
    /// The next batch has waited for the rate.
    waited: bool,
    /// Since when batches have had to wait without interruption.
    since: u64,
}

/// What is owed under a bound: the moment, times the items of its rate, at which all is paid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Debt {
    bound: Bound,
    paid: u64,
}

impl Debt {
    /// Whether a pace without it would be equal.
    pub(crate) fn is_paid(self, mono: u64) -> bool {
        self.paid <= self.bound.all_until(mono)
    }
}

/// The time during which a batch was held back, monotonic ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waited {
    pub(crate) from: u64,
    pub(crate) until: u64,
}

impl Pace {
    pub(crate) fn new(bound: Option<Bound>) -> Self {
        Pace { bound, formed: 0, left: 0, out: 0, waits_until: None, wanted: 1, waited: false, since: 0 }
    }

    /// Changes the bound. Owed items stay owed.
    pub(crate) fn set(&mut self, bound: Option<Bound>, mono: u64) {
        if self.bound == bound {
            return;
        }
        let before = core::mem::replace(&mut self.bound, bound);
        for paid in [&mut self.formed, &mut self.left] {
            let owed = before.map_or(0, |before| before.owed(*paid, mono));
            *paid = bound.map_or(0, |bound| bound.all_until(mono) + owed * bound.rate.each_ms);
        }
    }

    /// Number of items that may be formed at once. Any number if the bucket is full: the excess is owed.
    pub(crate) fn room(&self, mono: u64) -> u64 {
        self.bound.map_or(u64::MAX, |bound| bound.room(self.formed.max(self.left), mono))
    }

    /// Notes that the next batch has this many items, and that there is no room for them.
    pub(crate) fn want(&mut self, items: u64) {
        self.wanted = items;
    }

    /// The known number of items of the next batch.
    pub(crate) fn wanted(&self) -> u64 {
        self.wanted
    }

    /// When a batch of this many items may be formed; 0: there is no bound.
    pub(crate) fn ready_at(&self, items: u64) -> u64 {
        self.bound.map_or(0, |bound| bound.free_at(self.formed.max(self.left), items))
    }

    /// When a batch of this many items may be formed so that it can leave at once: formed items that still
    /// wait for payloads count as leaving now. For a customer, since a batch formed too early would make the
    /// other customers of its queue wait. 0: there is no bound.
    pub(crate) fn ready_alone_at(&self, items: u64, mono: u64) -> u64 {
        let paid = |bound: Bound| match self.out {
            0 => self.left,
            out => bound.pay(self.left, out, mono),
        };
        self.bound.map_or(0, |bound| bound.free_at(paid(bound), items))
    }

    /// When a formed batch of this many items may leave.
    pub(crate) fn may_leave_at(&self, items: u64) -> u64 {
        self.bound.map_or(0, |bound| bound.free_at(self.left, items))
    }

    /// This many items are formed now. Returns the time during which they were held back, if they were.
    pub(crate) fn form(&mut self, items: u64, mono: u64) -> Option<Waited> {
        let waited = core::mem::take(&mut self.waited);
        self.wanted = 1;
        let waited = waited.then(|| Waited { from: self.since, until: self.ready_at(items).min(mono) });
        if waited.is_none() {
            // The next batch has not waited before now.
            self.since = mono;
        }
        self.formed = self.bound.map_or(0, |bound| bound.pay(self.formed, items, mono));
        self.out += items;
        waited
    }

    /// This many formed items do not leave. Items that have left are not refunded.
    pub(crate) fn refund(&mut self, items: u64) {
        let paid = self.bound.map_or(0, |bound| items * bound.rate.each_ms);
        self.formed = self.formed.saturating_sub(paid).max(self.left);
        self.out = self.out.saturating_sub(items);
    }

    /// This many items leave now.
    pub(crate) fn leave(&mut self, items: u64, mono: u64) {
        self.left = self.bound.map_or(0, |bound| bound.pay(self.left, items, mono));
        self.out = self.out.saturating_sub(items);
    }

    /// What is owed for items that have left; `None`: there is no bound.
    pub(crate) fn debt(&self) -> Option<Debt> {
        self.bound.map(|bound| Debt { bound, paid: self.left })
    }

    /// A pace that begins with a debt.
    pub(crate) fn owing(Debt { bound, paid }: Debt) -> Self {
        Pace { formed: paid, left: paid, ..Pace::new(Some(bound)) }
    }

    /// Whether nothing is owed or waits, so that a new pace would be equal.
    pub(crate) fn is_at_rest(&self, mono: u64) -> bool {
        let paid = |bound: Bound| self.formed.max(self.left) <= bound.all_until(mono);
        self.waits_until.is_none() && self.out == 0 && self.bound.is_none_or(paid)
    }

    /// Until when the rate holds back a batch that could leave otherwise.
    pub(crate) fn waits_until(&self) -> Option<u64> {
        self.waits_until
    }

    /// Sets that moment, and returns the former one.
    pub(crate) fn wait(&mut self, until: Option<u64>) -> Option<u64> {
        self.waited |= until.is_some();
        core::mem::replace(&mut self.waits_until, until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Pace {
        fn go(&mut self, items: u64, mono: u64) {
            self.form(items, mono);
            self.leave(items, mono);
        }
    }

    fn pace(rate: &str, burst: u32) -> Pace {
        Pace::new(Some(Bound::new(rate.parse().unwrap(), burst)))
    }

    /// One item each 100 ms, and no burst. Each line: the event, with its number of items; then when one
    /// more item may be formed, may be formed so that it leaves at once, and may leave if it is formed.
    /// Excluded: any of the three that knows no bound; a batch that counts as one item; a customer's next
    /// batch formed while the last waits for its payloads; items that leave together after such a wait; a
    /// refund of what has left.
    /// Judges promise 15.
    #[test]
    fn when_one_more_item_may_be_formed_and_leave() {
        let mut pace = pace("10/s", 1);
        for (event, items, at, expected) in [
            ("start", 0, 1_000, [0, 0, 0]),
            ("form", 1, 1_000, [1_100, 1_100, 0]),
            ("form", 1, 1_100, [1_200, 1_300, 0]),
            ("leave", 1, 1_250, [1_350, 1_450, 1_350]),
            ("leave", 1, 1_350, [1_450, 1_450, 1_450]),
            ("form", 1, 1_450, [1_550, 1_550, 1_450]),
            ("refund", 1, 1_450, [1_450, 1_450, 1_450]),
            ("refund", 1, 1_450, [1_450, 1_450, 1_450]),
            ("form", 3, 2_000, [2_300, 2_300, 1_450]),
            ("leave", 3, 2_000, [2_300, 2_300, 2_300]),
        ] {
            match event {
                "form" => drop(pace.form(items, at)),
                "leave" => pace.leave(items, at),
                "refund" => pace.refund(items),
                _ => {}
            }
            let found = [pace.ready_at(1), pace.ready_alone_at(1, at), pace.may_leave_at(1)];
            assert_eq!(found, expected, "{event} {items} at {at}");
            assert_eq!(pace.room(at) > 0, found[0] <= at, "{event} {items} at {at}");
        }
        let free = Pace::new(None);
        let found = [free.room(0), free.ready_at(9), free.ready_alone_at(9, 0), free.may_leave_at(9)];
        assert_eq!(found, [u64::MAX, 0, 0, 0]);
    }

    /// After the first burst, items leave exactly at the rate, at even distances.
    #[test]
    fn what_leaves_is_exact() {
        let mut pace = pace("100/s", 10);
        let (mut mono, mut left) = (50_000, Vec::new());
        while left.len() < 1_010 {
            mono = mono.max(pace.ready_at(1));
            pace.go(1, mono);
            left.push(mono);
        }
        assert_eq!(left[9], 50_000, "a burst");
        assert_eq!(left[10], 50_010);
        assert_eq!(left[1_009], 60_000, "a thousand behind it");
        for (rate, mono) in [("3/s", 51_000), ("7/min", 75_715), ("1/h", 10_850_000)] {
            let mut pace = self::pace(rate, 1);
            let mut now = 50_000;
            for _ in 0..4 {
                now = now.max(pace.ready_at(1));
                pace.go(1, now);
            }
            assert!((mono - 1..=mono).contains(&now), "{rate}: {now}");
        }
    }

    #[test]
    fn a_batch_counts_its_items_and_one_beyond_the_burst_is_owed() {
        let mut pace = pace("10/s", 20);
        pace.go(15, 1_000);
        assert_eq!([1, 5, 6, 20].map(|items| pace.ready_at(items)), [600, 1_000, 1_100, 2_500]);
        assert_eq!(pace.ready_at(500), 2_500);
        assert_eq!([599, 600, 1_000, 2_499, 2_500].map(|mono| pace.room(mono)), [0, 1, 5, 19, u64::MAX]);
        pace.go(500, 2_500);
        assert_eq!(pace.ready_at(1), 2_500 + 50_000 - 1_900);
        assert!(!pace.is_at_rest(52_499) && pace.is_at_rest(52_500));
    }

    /// Items that waited for their payloads do not leave together.
    #[test]
    fn what_was_formed_in_time_and_leaves_later_is_spread_anew() {
        let mut pace = pace("10/s", 1);
        for mono in [1_000, 1_100, 1_200] {
            assert!(pace.ready_at(1) <= mono);
            pace.form(1, mono);
        }
        pace.leave(1, 1_250);
        assert_eq!((pace.may_leave_at(1), pace.ready_at(1)), (1_350, 1_350));
        pace.leave(1, 1_350);
        assert_eq!((pace.may_leave_at(1), pace.ready_at(1)), (1_450, 1_450));
    }

    #[test]
    fn what_is_owed_stays_owed_when_the_rate_changes() {
        let mut pace = pace("10/s", 10);
        pace.go(30, 1_000);
        pace.set(Some(Bound::new("100/s".parse().unwrap(), 10)), 1_000);
        assert_eq!(pace.ready_at(1), 1_000 + 300 - 90);
        pace.set(None, 1_100);
        assert_eq!((pace.ready_at(1), pace.is_at_rest(1_100)), (0, true));
        pace.set(Some(Bound::new("1/s".parse().unwrap(), 0)), 1_100);
        assert_eq!(pace.ready_at(1), 1_100, "a full bucket");
    }
}
