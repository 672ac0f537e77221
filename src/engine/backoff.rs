//! Back-off: how long an application stays parked before the next probe.

use tidegate_types::Retry;

/// The pause before the next try after `failures` failures in a row (from 1): `min` doubled each time, at
/// most `max`, less a random part of up to a quarter so that applications parked together do not come back
/// together (equal jitter, after M. Brooker, "Exponential backoff and jitter", 2015).
pub(crate) fn pause(retry: &Retry, failures: u32, random: u64) -> u64 {
    let doubled = retry.min.saturating_mul(1 << failures.saturating_sub(1).min(40));
    let full = doubled.min(retry.max).max(1);
    full - random % (full / 4 + 1)
}

/// SplitMix64 (Steele, Lea, Flood 2014): jitter needs no secrecy, and a replay must repeat it exactly.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_maximum_and_jitters_downward() {
        let retry = Retry { min: 1_000, max: 10_000, attempts: 0 };
        let full: Vec<u64> = (1..=6).map(|n| pause(&retry, n, 0)).collect();
        assert_eq!(full, [1_000, 2_000, 4_000, 8_000, 10_000, 10_000]);
        assert_eq!(pause(&retry, 1, 250), 750);
        assert_eq!(pause(&retry, 1, 251), 1_000);
        assert_eq!(pause(&retry, u32::MAX, 0), 10_000);
        let tiny = Retry { min: 1, max: 1, attempts: 0 };
        assert_eq!(pause(&tiny, 1, 12_345), 1);
    }
}
