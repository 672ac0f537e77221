//! Jittered exponential back-off without an end. Pure but for its jitter.

use std::time::Duration;

const FIRST_MS: u64 = 100;
const LONGEST_MS: u64 = 10_000;

/// The pause before the next connect.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The next pause: doubled each time, between half of it and the whole, so that clients of one broker do
    /// not come back in step.
    pub(crate) fn next(&mut self) -> Duration {
        // Without randomness from the system there is simply no jitter.
        self.next_with(getrandom::u32().unwrap_or(u32::MAX))
    }

    /// The connection has proved itself.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    fn next_with(&mut self, random: u32) -> Duration {
        let whole = (FIRST_MS << self.failures.min(10)).min(LONGEST_MS);
        self.failures = self.failures.saturating_add(1);
        Duration::from_millis(whole / 2 + whole / 2 * u64::from(random) / u64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_ten_seconds_and_starts_anew() {
        let mut backoff = Backoff::default();
        let longest: Vec<u128> = (0..9).map(|_| backoff.next_with(u32::MAX).as_millis()).collect();
        assert_eq!(longest, [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
        for _ in 0..100 {
            assert_eq!(backoff.next_with(0).as_millis(), 5_000);
        }
        backoff.reset();
        assert_eq!(backoff.next_with(0).as_millis(), 50);
    }
}
