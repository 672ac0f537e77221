//! The only reader of clocks. Every other module is given the time.
//!
//! The monotonic clock is `CLOCK_BOOTTIME`, which continues while the machine sleeps. With
//! `std::time::Instant`, which stops then, a window would outlive a suspend.

use rustix::time::{clock_gettime, ClockId, Timespec};
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_types::Now;

/// Both clocks at one moment, milliseconds rounded down.
pub fn now() -> Now {
    Now { wall: wall_us() / 1_000, mono: boot_ns() / 1_000_000 }
}

/// Wall clock, UTC microseconds since the epoch; 0 for a clock set before it.
pub fn wall_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64)
}

/// Monotonic clock in microseconds; [`Now::mono`] is this, rounded down to milliseconds.
pub fn mono_us() -> u64 {
    boot_ns() / 1_000
}

/// Wall clock, UTC milliseconds since the epoch, rounded down.
pub fn wall_ms() -> u64 {
    wall_us() / 1_000
}

/// Wall clock, UTC milliseconds since the epoch, rounded up. Delays count from this value, so that no item
/// leaves early.
pub fn wall_ms_up() -> u64 {
    wall_us().div_ceil(1_000)
}

fn boot_ns() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
    tv_sec as u64 * 1_000_000_000 + tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_run_forward_together() {
        let first = now();
        // The thread may lose the processor between the reads of the two clocks.
        loop {
            let later = now();
            if later.mono >= first.mono + 3 && later.wall >= first.wall + 3 {
                break;
            }
            assert!(later.mono < first.mono + 60_000, "{first:?} {later:?}");
            std::hint::spin_loop();
        }
        assert!(first.wall > 1_700_000_000_000, "a wall clock in UTC ms: {first:?}");
    }
}
