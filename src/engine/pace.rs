//! Rates: how fast the items of an application may leave. A token bucket, kept as one number: the moment by
//! which all items that have left are paid for (the generic cell rate algorithm, ITU-T I.371, annex A).
//!
//! It is not stored: after a start the bucket is full, so that a start adds one burst at most.

use super::mutant::{mutated, Mutant};
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// Time units of a rate, with their names, ms.
const SPANS: [(&str, u64); 3] = [("s", 1_000), ("min", 60_000), ("h", 3_600_000)];

/// Maximum items of a rate, and of a burst: more would limit no machine, and sums stay within 64 bits.
pub const MAX_RATE: u32 = 10_000_000;

/// A number of items per time unit: `100/s`, `5/min`, `10/h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// 1 to [`MAX_RATE`].
    pub items: u32,
    /// Length of the time unit: 1,000, 60,000 or 3,600,000, ms.
    pub each_ms: u64,
}

impl Rate {
    /// `None`: the number or the time unit is not allowed.
    pub fn new(items: u32, each_ms: u64) -> Option<Self> {
        let known = SPANS.into_iter().any(|(_, ms)| ms == each_ms);
        (known && (1..=MAX_RATE).contains(&items)).then_some(Rate { items, each_ms })
    }

    /// The default burst: the items of one second, at least one.
    pub fn of_a_second(self) -> u32 {
        let items = u64::from(self.items) * 1_000 / self.each_ms;
        u32::try_from(items).unwrap_or(MAX_RATE).max(1)
    }
}

impl Display for Rate {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let name = SPANS.into_iter().find(|(_, ms)| *ms == self.each_ms).map_or("?", |(name, _)| name);
        write!(f, "{}/{name}", self.items)
    }
}

/// A text that is no rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a rate: expected a number from 1 to 10000000 followed by /s, /min or /h, such as 100/s")]
pub struct NoRate;

impl FromStr for Rate {
    type Err = NoRate;

    fn from_str(text: &str) -> Result<Self, NoRate> {
        let (items, span) = text.split_once('/').ok_or(NoRate)?;
        let (_, each_ms) = SPANS.into_iter().find(|(name, _)| *name == span).ok_or(NoRate)?;
        let digits = !items.is_empty() && items.bytes().all(|byte| byte.is_ascii_digit());
        let items = items.parse().ok().filter(|_| digits);
        items.and_then(|items| Rate::new(items, each_ms)).ok_or(NoRate)
    }
}

/// A rate and its burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The rate, over any longer time.
    pub rate: Rate,
    /// Depth of the bucket, items, 1 to [`MAX_RATE`].
    pub burst: u32,
}

impl Bound {
    /// `burst`: 0 is the items of one second.
    pub fn new(rate: Rate, burst: u32) -> Self {
        Bound { rate, burst: if burst == 0 { rate.of_a_second() } else { burst } }
    }

    /// The credit of a bucket until this moment, from the monotonic time 0 on.
    fn all_until(self, mono: u64) -> u64 {
        mono * u64::from(self.rate.items)
    }

    /// Number of items that are not paid for.
    fn owed(self, paid: u64, mono: u64) -> u64 {
        paid.saturating_sub(self.all_until(mono)).div_ceil(self.rate.each_ms)
    }

    /// Number of items that may leave.
    fn room(self, paid: u64, mono: u64) -> u64 {
        match self.owed(paid, mono) {
            0 => u64::MAX,
            owed => u64::from(self.burst).saturating_sub(owed),
        }
    }

    /// When this many items may leave. For more than the burst: when the bucket is full; the rest is owed
    /// then.
    fn free_at(self, paid: u64, items: u64) -> u64 {
        let burst = u64::from(self.burst);
        let spare = burst - items.clamp(1, burst);
        paid.saturating_sub(spare * self.rate.each_ms).div_ceil(u64::from(self.rate.items))
    }

    /// The new value of `paid` when this many items leave now.
    fn pay(self, paid: u64, items: u64, mono: u64) -> u64 {
        let items = if mutated(Mutant::BatchCountsOnce) { 1 } else { items };
        // Credit gained because waits are rounded up to whole milliseconds is kept.
        let rest = u64::from(self.rate.items) - 1;
        paid.max(self.all_until(mono).saturating_sub(rest)) + items * self.rate.each_ms
    }
}

/// See the module's page. Moments are monotonic, ms.
#[derive(Debug)]
pub(super) struct Pace {
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

/// The time during which a batch was held back, monotonic ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waited {
    pub(super) from: u64,
    pub(super) until: u64,
}

impl Pace {
    pub(super) fn new(bound: Option<Bound>) -> Self {
        Pace { bound, formed: 0, left: 0, out: 0, waits_until: None, wanted: 1, waited: false, since: 0 }
    }

    /// Changes the bound. Owed items stay owed.
    pub(super) fn set(&mut self, bound: Option<Bound>, mono: u64) {
        if self.bound == bound {
            return;
        }
        let before = std::mem::replace(&mut self.bound, bound);
        for paid in [&mut self.formed, &mut self.left] {
            let owed = before.map_or(0, |before| before.owed(*paid, mono));
            *paid = bound.map_or(0, |bound| bound.all_until(mono) + owed * bound.rate.each_ms);
        }
    }

    /// Number of items that may be formed at once. Any number if the bucket is full: the excess is owed.
    pub(super) fn room(&self, mono: u64) -> u64 {
        let bound = self.bound.filter(|_| !mutated(Mutant::RateIgnored));
        bound.map_or(u64::MAX, |bound| bound.room(self.formed.max(self.left), mono))
    }

    /// Notes that the next batch has this many items, and that there is no room for them.
    pub(super) fn want(&mut self, items: u64) {
        self.wanted = items;
    }

    /// The known number of items of the next batch.
    pub(super) fn wanted(&self) -> u64 {
        self.wanted
    }

    /// When a batch of this many items may be formed; 0: there is no bound.
    pub(super) fn ready_at(&self, items: u64) -> u64 {
        let bound = self.bound.filter(|_| !mutated(Mutant::RateIgnored));
        bound.map_or(0, |bound| bound.free_at(self.formed.max(self.left), items))
    }

    /// When a batch of this many items may be formed so that it can leave at once: formed items that still
    /// wait for payloads count as leaving now. For a customer, since a batch formed too early would make the
    /// other customers of its queue wait. 0: there is no bound.
    pub(super) fn ready_alone_at(&self, items: u64, mono: u64) -> u64 {
        let bound = self.bound.filter(|_| !mutated(Mutant::CustomerRateIgnored));
        let paid = |bound: Bound| match self.out {
            0 => self.left,
            out => bound.pay(self.left, out, mono),
        };
        bound.map_or(0, |bound| bound.free_at(paid(bound), items))
    }

    /// When a formed batch of this many items may leave.
    pub(super) fn may_leave_at(&self, items: u64) -> u64 {
        let bound = self.bound.filter(|_| !mutated(Mutant::FetchedOutrunsRate));
        bound.map_or(0, |bound| bound.free_at(self.left, items))
    }

    /// This many items are formed now. Returns the time during which they were held back, if they were.
    pub(super) fn form(&mut self, items: u64, mono: u64) -> Option<Waited> {
        let waited = std::mem::take(&mut self.waited);
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
    pub(super) fn refund(&mut self, items: u64) {
        let paid = self.bound.map_or(0, |bound| items * bound.rate.each_ms);
        self.formed = self.formed.saturating_sub(paid).max(self.left);
        self.out = self.out.saturating_sub(items);
    }

    /// This many items leave now.
    pub(super) fn leave(&mut self, items: u64, mono: u64) {
        self.left = self.bound.map_or(0, |bound| bound.pay(self.left, items, mono));
        self.out = self.out.saturating_sub(items);
    }

    /// Whether nothing is owed or waits, so that a new pace would be equal.
    pub(super) fn is_at_rest(&self, mono: u64) -> bool {
        let paid = |bound: Bound| self.formed.max(self.left) <= bound.all_until(mono);
        self.waits_until.is_none() && self.out == 0 && self.bound.is_none_or(paid)
    }

    /// When all formed items are paid for.
    pub(super) fn rests_at(&self) -> u64 {
        let paid = self.formed.max(self.left);
        self.bound.map_or(0, |bound| paid.div_ceil(u64::from(bound.rate.items)))
    }

    /// Until when the rate holds back a batch that could leave otherwise.
    pub(super) fn waits_until(&self) -> Option<u64> {
        self.waits_until
    }

    /// Sets that moment, and returns the former one.
    pub(super) fn wait(&mut self, until: Option<u64>) -> Option<u64> {
        self.waited |= until.is_some();
        std::mem::replace(&mut self.waits_until, until)
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

    #[test]
    fn rates_are_read_as_they_are_written() {
        for text in ["1/s", "100/s", "5/min", "10/h", "10000000/s"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        for text in
            ["", "100", "/s", "0/s", "-1/s", "+1/s", "1/d", "1 /s", "10000001/s", "99999999999/s", "1/s/s"]
        {
            assert_eq!(text.parse::<Rate>(), Err(NoRate), "{text}");
        }
        let of_a_second = |text: &str| text.parse::<Rate>().unwrap().of_a_second();
        assert_eq!(["100/s", "120/min", "5/min", "7200/h"].map(of_a_second), [100, 2, 1, 2]);
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
