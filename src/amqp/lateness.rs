//! Distributions of durations: how late items leave, and how long confirms take. Process-lifetime, so that a
//! reconnect does not break a rate.

use hdrhistogram::Histogram;

/// Longer durations count as this long in the quantiles: 24 hours.
const LONGEST_US: u64 = 86_400_000_000;

/// Upper bounds of [`Distribution::counts`], microseconds: from what a good machine does to what a person
/// would call lost.
pub const BOUNDS_US: [u64; 20] = [
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

/// A snapshot. Durations in microseconds; all zero as long as `count` is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// Number of values recorded.
    pub count: u64,
    /// Median, within 1 %.
    pub p50_us: u64,
    /// 99th percentile, within 1 %.
    pub p99_us: u64,
    /// 99.9th percentile, within 1 %.
    pub p999_us: u64,
    /// Largest value recorded.
    pub max_us: u64,
    /// All of them together.
    pub sum_us: u64,
    /// Values up to each bound of [`BOUNDS_US`] that are above the one before it; last, those above all.
    pub counts: [u64; BOUNDS_US.len() + 1],
}

/// Records durations; about 50 KiB.
pub(super) struct Recorder {
    /// `None` only if its constant bounds were wrong; then quantiles stay 0.
    histogram: Option<Histogram<u64>>,
    count: u64,
    max_us: u64,
    sum_us: u64,
    counts: [u64; BOUNDS_US.len() + 1],
}

impl Default for Recorder {
    fn default() -> Self {
        Recorder {
            histogram: Histogram::new_with_bounds(1, LONGEST_US, 2).ok(),
            count: 0,
            max_us: 0,
            sum_us: 0,
            counts: Default::default(),
        }
    }
}

impl Recorder {
    pub(super) fn record(&mut self, us: u64) {
        if let Some(histogram) = &mut self.histogram {
            histogram.saturating_record(us.max(1));
        }
        self.count += 1;
        self.max_us = self.max_us.max(us);
        self.sum_us = self.sum_us.saturating_add(us);
        if let Some(count) = self.counts.get_mut(BOUNDS_US.partition_point(|bound| *bound < us)) {
            *count += 1;
        }
    }

    pub(super) fn snapshot(&self) -> Distribution {
        let quantile = |q: f64| match &self.histogram {
            Some(histogram) if self.count > 0 => histogram.value_at_quantile(q).min(self.max_us),
            Some(_) | None => 0,
        };
        Distribution {
            count: self.count,
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: self.max_us,
            sum_us: self.sum_us,
            counts: self.counts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_agree_with_what_was_recorded() {
        let mut recorder = Recorder::default();
        assert_eq!(recorder.snapshot(), Distribution::default());
        for us in 1..=1_000 {
            recorder.record(us);
        }
        recorder.record(20_000);
        recorder.record(u64::MAX / 4);
        let d = recorder.snapshot();
        assert_eq!((d.count, d.max_us), (1_002, u64::MAX / 4));
        assert!((495..=507).contains(&d.p50_us), "{d:?}");
        assert!((980..=1_010).contains(&d.p99_us), "{d:?}");
        assert_eq!(d.counts.iter().sum::<u64>(), d.count);
        assert_eq!((d.counts[0], d.counts[1], d.counts[3], d.counts[7]), (100, 150, 500, 1));
        assert_eq!(d.counts[20], 1, "above all");
    }

    #[test]
    fn on_time_is_not_lost() {
        let mut recorder = Recorder::default();
        recorder.record(0);
        assert_eq!((recorder.snapshot().count, recorder.snapshot().p50_us), (1, 0));
    }
}
