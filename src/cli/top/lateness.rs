//! Lateness of the items that left between two queries, from the histogram of `/metrics`; the state document
//! covers only the whole run of the daemon. Pure.

/// Prefix of the lines of the histogram.
const BUCKET: &str = "tidegate_publish_lateness_seconds_bucket{le=\"";

/// Number of items that left no later than each upper bound in microseconds; the last has no bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LatenessBuckets(Vec<(Option<u64>, u64)>);

/// Upper bounds of the quantiles in microseconds; `None`: above the largest bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LatenessNow {
    pub(super) p50_us: Option<u64>,
    pub(super) p99_us: Option<u64>,
}

impl LatenessBuckets {
    /// Reads the text of `/metrics`; `None` without the histogram.
    pub(super) fn read(text: &str) -> Option<Self> {
        let one = |line: &str| {
            let (bound, count) = line.strip_prefix(BUCKET)?.split_once("\"} ")?;
            // An exemplar may follow the number.
            let count = count.split_whitespace().next()?.parse().ok()?;
            let bound = match bound {
                "+Inf" => None,
                seconds => Some((seconds.parse::<f64>().ok()? * 1e6).round() as u64),
            };
            Some((bound, count))
        };
        let buckets: Vec<_> = text.lines().filter_map(one).collect();
        (!buckets.is_empty()).then_some(LatenessBuckets(buckets))
    }

    /// Quantiles of the items that left since `before`; `None` if there are none, or `before` is from another
    /// run.
    pub(super) fn since(&self, before: &Self) -> Option<LatenessNow> {
        if self.0.len() != before.0.len() {
            return None;
        }
        let pairs = self.0.iter().zip(&before.0);
        let left: Option<Vec<_>> =
            pairs.map(|(now, then)| Some((now.0, now.1.checked_sub(then.1)?))).collect();
        let left = left?;
        let all = left.last().map(|(_, count)| *count).filter(|all| *all > 0)?;
        let bound = |hundredths: u64| {
            // For a single item, both quantiles are its value.
            let wanted = (all.saturating_mul(hundredths)).div_ceil(100);
            left.iter().find(|(_, count)| *count >= wanted).and_then(|(bound, _)| *bound)
        };
        Some(LatenessNow { p50_us: bound(50), p99_us: bound(99) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(counts: [u64; 3]) -> LatenessBuckets {
        let [a, b, c] = counts;
        let text = format!(
            "# TYPE tidegate_publish_lateness_seconds histogram\n\
             tidegate_publish_lateness_seconds_sum 1.5\n\
             {BUCKET}0.001\"}} {a}\n{BUCKET}2.5\"}} {b}\n{BUCKET}+Inf\"}} {c}\n"
        );
        LatenessBuckets::read(&text).expect("a histogram")
    }

    #[test]
    fn quantiles_are_of_what_has_left_in_between() {
        let before = buckets([1_000, 1_000, 1_000]);
        let now = |counts| buckets(counts).since(&before).map(|now| (now.p50_us, now.p99_us));
        assert_eq!(now([1_000, 1_000, 1_000]), None);
        assert_eq!(now([1_001, 1_001, 1_001]), Some((Some(1_000), Some(1_000))));
        assert_eq!(now([1_098, 1_100, 1_100]), Some((Some(1_000), Some(2_500_000))));
        assert_eq!(now([1_099, 1_100, 1_100]), Some((Some(1_000), Some(1_000))));
        assert_eq!(now([1_000, 1_000, 1_005]), Some((None, None)));
        assert_eq!(now([3, 3, 3]), None, "another run");
        assert_eq!(LatenessBuckets::read("tidegate_received_total 5\n"), None);
    }
}
