//! Random moments and numbers of a test, from a seed that is printed and can be set.

use crate::util::{now_us, say};
use std::sync::OnceLock;
use std::time::Duration;

/// The seed of this run: `TIDEGATE_TEST_SEED`, otherwise from the clock.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let given = std::env::var("TIDEGATE_TEST_SEED").ok().filter(|text| !text.is_empty());
        given.map_or_else(|| now_us() % 1_000_000, |text| text.parse().expect("TIDEGATE_TEST_SEED: a number"))
    })
}

/// A separate sequence for each name and seed (xorshift64).
#[derive(Debug)]
pub struct Moments(u64);

impl Moments {
    /// From [`seed`], which is printed with the test's result.
    pub fn of(name: &str) -> Moments {
        say(&format!("{name}: TIDEGATE_TEST_SEED={} repeats this run", seed()));
        Moments::seeded(seed(), name)
    }

    /// From this seed.
    pub fn seeded(seed: u64, name: &str) -> Moments {
        // FNV-1a spreads the names; the last bit keeps the state from being zero.
        let spread = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        Moments(name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, spread) | 1)
    }

    /// A number from `from` up to, but not including, `to`.
    pub fn pick(&mut self, from: u64, to: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        from + self.0 % (to - from)
    }

    /// Sleeps for a random time, to hit a moment that no event marks.
    pub fn pause(&mut self, from_ms: u64, to_ms: u64) {
        std::thread::sleep(Duration::from_millis(self.pick(from_ms, to_ms)));
    }
}
