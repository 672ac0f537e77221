//! Distributions of lateness, of confirm and commit times, and of batch sizes. They cover the whole process,
//! so that a reconnect does not break a rate.

use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// Values above this one (24 hours in microseconds) count as it in the quantiles.
const LARGEST: u64 = 86_400_000_000;

/// Upper bounds for durations in microseconds, from a fast machine's values to 10 minutes.
const DURATIONS_US: &[u64] = &[
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
    600_000_000,
];

/// Upper bounds for the number of items in a batch.
const ITEMS: &[u64] = &[1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000];

/// Upper bounds for the length of a body, bytes.
const BYTES: &[u64] = &[256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// A snapshot. Every field is 0 while `count` is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// Number of values recorded.
    pub count: u64,
    /// Median, within 1 %.
    pub p50: u64,
    /// 99th percentile, within 1 %.
    pub p99: u64,
    /// 99.9th percentile, within 1 %.
    pub p999: u64,
    /// Largest value recorded.
    pub max: u64,
    /// Sum of all values.
    pub sum: u64,
    /// Number of values above the previous bound and up to this one; `None`: above all bounds.
    pub counts: Vec<(Option<u64>, u64)>,
    /// Number of values by the largest value of their narrow bucket, in order: the quantiles come from these.
    pub narrow: Vec<(u64, u64)>,
}

impl Distribution {
    /// The distribution of the values of all of these. Quantiles cannot be added, so they are taken anew from
    /// the buckets.
    pub fn merged<'d>(all: impl IntoIterator<Item = &'d Distribution>) -> Distribution {
        let mut all = all.into_iter();
        let mut merged = all.next().cloned().unwrap_or_default();
        for Distribution { count, p50: _, p99: _, p999: _, max, sum, counts, narrow } in all {
            merged.count += count;
            merged.max = merged.max.max(*max);
            merged.sum = merged.sum.saturating_add(*sum);
            merged.counts = added(&merged.counts, counts, |bound| bound.unwrap_or(u64::MAX));
            merged.narrow = added(&merged.narrow, narrow, |value| *value);
        }
        merged.find_quantiles();
        merged
    }

    fn find_quantiles(&mut self) {
        let recorded: u64 = self.narrow.iter().map(|(_, count)| count).sum();
        let quantile = |q: f64| {
            let target = ((q * recorded as f64).ceil() as u64).max(1);
            let mut seen = 0;
            let found = self.narrow.iter().find(|(_, count)| {
                seen += count;
                seen >= target
            });
            found.map_or(0, |(value, _)| *value).min(self.max)
        };
        (self.p50, self.p99, self.p999) = (quantile(0.5), quantile(0.99), quantile(0.999));
    }
}

/// Counts by key of both lists, in the order of `place`.
fn added<K: Copy>(one: &[(K, u64)], other: &[(K, u64)], place: impl Fn(&K) -> u64) -> Vec<(K, u64)> {
    let mut sums = BTreeMap::new();
    for (key, count) in one.iter().chain(other) {
        sums.entry(place(key)).or_insert((*key, 0)).1 += count;
    }
    sums.into_values().collect()
}

/// Records values; about 50 KiB.
#[derive(Debug)]
pub struct Recorder {
    /// `None` only if the constant bounds are invalid; the quantiles then stay 0.
    histogram: Option<Histogram<u64>>,
    count: u64,
    max: u64,
    sum: u64,
    bounds: &'static [u64],
    counts: Vec<u64>,
}

impl Recorder {
    /// For durations in microseconds.
    pub fn of_durations() -> Self {
        Recorder::within(DURATIONS_US)
    }

    /// For numbers of items in a batch.
    pub fn of_items() -> Self {
        Recorder::within(ITEMS)
    }

    /// For body lengths in bytes.
    pub fn of_bytes() -> Self {
        Recorder::within(BYTES)
    }

    fn within(bounds: &'static [u64]) -> Self {
        Recorder {
            histogram: Histogram::new_with_bounds(1, LARGEST, 2).ok(),
            count: 0,
            max: 0,
            sum: 0,
            bounds,
            counts: vec![0; bounds.len() + 1],
        }
    }

    /// Counts one value.
    pub fn record(&mut self, value: u64) {
        if let Some(histogram) = &mut self.histogram {
            histogram.saturating_record(value.max(1));
        }
        self.count += 1;
        self.max = self.max.max(value);
        self.sum = self.sum.saturating_add(value);
        if let Some(count) = self.counts.get_mut(self.bounds.partition_point(|bound| *bound < value)) {
            *count += 1;
        }
    }

    /// The values counted so far.
    pub fn snapshot(&self) -> Distribution {
        let bounds = self.bounds.iter().copied().map(Some).chain([None]);
        let narrow = self.histogram.iter().flat_map(Histogram::iter_recorded);
        let narrow = narrow.map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value()));
        let mut snapshot = Distribution {
            count: self.count,
            max: self.max,
            sum: self.sum,
            counts: bounds.zip(self.counts.iter().copied()).collect(),
            narrow: narrow.collect(),
            ..Distribution::default()
        };
        snapshot.find_quantiles();
        snapshot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_agree_with_what_was_recorded() {
        let mut recorder = Recorder::of_durations();
        let empty = recorder.snapshot();
        assert!(empty.counts.iter().all(|(_, count)| *count == 0));
        assert_eq!(Distribution { counts: Vec::new(), ..empty }, Distribution::default());
        for us in 1..=1_000 {
            recorder.record(us);
        }
        recorder.record(20_000);
        recorder.record(u64::MAX / 4);
        let d = recorder.snapshot();
        assert_eq!((d.count, d.max), (1_002, u64::MAX / 4));
        assert!((495..=507).contains(&d.p50), "{d:?}");
        assert!((980..=1_010).contains(&d.p99), "{d:?}");
        let counts: Vec<u64> = d.counts.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts.iter().sum::<u64>(), d.count);
        assert_eq!((counts[0], counts[1], counts[3], counts[7]), (100, 150, 500, 1));
        assert_eq!(d.counts[20], (None, 1), "above all");
    }

    #[test]
    fn quantiles_are_those_of_the_histogram() {
        let mut recorder = Recorder::of_durations();
        for n in 0..5_000_u64 {
            recorder.record(n * n * 7 % 900_001);
        }
        let d = recorder.snapshot();
        let histogram = recorder.histogram.as_ref().unwrap();
        let want = [0.5, 0.99, 0.999].map(|q| histogram.value_at_quantile(q).min(d.max));
        assert_eq!([d.p50, d.p99, d.p999], want);
        assert_eq!(Distribution::merged([&d]), d, "one alone is unchanged");
    }

    /// A fast shard with many values and a slow one with few: no mean of their quantiles is right.
    #[test]
    fn merged_is_as_if_one_had_recorded_all() {
        let [mut fast, mut slow, mut all] = [(); 3].map(|()| Recorder::of_durations());
        for n in 0..10_000 {
            fast.record(100 + n % 50);
            all.record(100 + n % 50);
        }
        for n in 0..90 {
            slow.record(2_000_000 + n * 1_000);
            all.record(2_000_000 + n * 1_000);
        }
        let merged = Distribution::merged([&fast.snapshot(), &slow.snapshot()]);
        assert_eq!(merged, all.snapshot());
        assert!(merged.p99 < 200 && merged.p999 > 2_000_000, "{merged:?}");
        let empty = Recorder::of_durations().snapshot();
        assert_eq!(Distribution::merged([&empty, &all.snapshot()]), all.snapshot());
        assert_eq!(Distribution::merged([]), Distribution::default());
        assert_eq!(Distribution::merged([&Distribution::default(), &all.snapshot()]), all.snapshot());
    }

    #[test]
    fn on_time_is_not_lost() {
        let mut recorder = Recorder::of_durations();
        recorder.record(0);
        assert_eq!((recorder.snapshot().count, recorder.snapshot().p50), (1, 0));
    }
}
