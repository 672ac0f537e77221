//! Distributions of lateness, of confirm and commit times, and of batch sizes. They cover the whole process,
//! so that a reconnect does not break a rate.

use hdrhistogram::Histogram;

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
        let quantile = |q: f64| match &self.histogram {
            Some(histogram) if self.count > 0 => histogram.value_at_quantile(q).min(self.max),
            Some(_) | None => 0,
        };
        let bounds = self.bounds.iter().copied().map(Some).chain([None]);
        Distribution {
            count: self.count,
            p50: quantile(0.5),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: self.max,
            sum: self.sum,
            counts: bounds.zip(self.counts.iter().copied()).collect(),
        }
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
    fn on_time_is_not_lost() {
        let mut recorder = Recorder::of_durations();
        recorder.record(0);
        assert_eq!((recorder.snapshot().count, recorder.snapshot().p50), (1, 0));
    }
}
