//! How far ahead the new time of dead letters may be.
//!
//! A request beyond these limits is dead. A dead letter that is sent back on such terms would return at once
//! with this reason, and its former one would be gone: the terms are refused before anything is sent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_config::{Config, StoreKind};
use tidegate_wire::dead_letters::{NewTime, RetryTerms};

/// The limits in force, ms; a reload changes them. Without a configuration there is no limit.
#[derive(Debug)]
pub struct TimeHorizon {
    /// The value of `limits.max_delay`.
    max_delay: AtomicU64,
    /// The value of `store.hold_max`, which applies to the memory store only.
    hold_max: AtomicU64,
}

impl Default for TimeHorizon {
    fn default() -> Self {
        TimeHorizon { max_delay: AtomicU64::new(u64::MAX), hold_max: AtomicU64::new(u64::MAX) }
    }
}

impl TimeHorizon {
    /// Takes over the limits of this configuration.
    pub fn configure(&self, config: &Config) {
        let hold_max = match config.store.kind {
            StoreKind::Memory => config.store.hold_max,
            StoreKind::Disk | StoreKind::Postgres => Duration::MAX,
        };
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.max_delay.store(ms(config.limits.max_delay), Ordering::Relaxed);
        self.hold_max.store(ms(hold_max), Ordering::Relaxed);
    }

    /// Why dead letters that are sent back on these terms at `now`, UTC ms, would be dead again.
    pub fn refusal(&self, terms: &RetryTerms, now: u64) -> Option<String> {
        let due = match terms.time {
            NewTime::Now => now,
            NewTime::At(at) => at.max(now),
            NewTime::After(ms) => now.saturating_add(ms),
        };
        for (name, limit) in [("limits.max_delay", &self.max_delay), ("store.hold_max", &self.hold_max)] {
            let latest = now.saturating_add(limit.load(Ordering::Relaxed));
            if due > latest {
                return Some(format!("{due} is more than {name} ahead: {latest} is the latest"));
            }
        }
        let expiry = terms.deliver_before.filter(|expiry| *expiry <= due)?;
        Some(format!("the item expires at {expiry} (x-deliver-before), which is not after {due}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000;

    fn horizon(kind: StoreKind) -> TimeHorizon {
        let mut config = Config::default();
        config.store.kind = kind;
        config.store.hold_max = Duration::from_millis(1_000);
        config.limits.max_delay = Duration::from_millis(60_000);
        let horizon = TimeHorizon::default();
        horizon.configure(&config);
        horizon
    }

    fn told(horizon: &TimeHorizon, time: NewTime, deliver_before: Option<u64>) -> String {
        horizon.refusal(&RetryTerms { time, deliver_before }, NOW).unwrap_or_default()
    }

    /// Excluded: a time that the intake refuses; one that it takes, refused here.
    #[test]
    fn a_time_beyond_a_limit_is_refused() {
        let beyond = |name: &str, at: u64, latest: u64| {
            format!("{at} is more than {name} ahead: {latest} is the latest")
        };
        let (delay, hold) = ("limits.max_delay", "store.hold_max");
        for kind in [StoreKind::Disk, StoreKind::Postgres] {
            let horizon = horizon(kind);
            for time in [
                NewTime::Now,
                NewTime::At(0),
                NewTime::At(NOW + 60_000),
                NewTime::After(0),
                NewTime::After(60_000),
            ] {
                assert_eq!(told(&horizon, time, None), "", "{time:?}");
            }
            let late = beyond(delay, NOW + 60_001, NOW + 60_000);
            assert_eq!(told(&horizon, NewTime::At(NOW + 60_001), None), late);
            assert_eq!(told(&horizon, NewTime::After(60_001), None), late);
            let never = beyond(delay, u64::MAX, NOW + 60_000);
            assert_eq!(told(&horizon, NewTime::After(u64::MAX), None), never);
            assert_eq!(told(&horizon, NewTime::At(u64::MAX), None), never);
        }
        let held = horizon(StoreKind::Memory);
        assert_eq!(told(&held, NewTime::After(1_000), None), "");
        let late = beyond(hold, NOW + 1_001, NOW + 1_000);
        assert_eq!(told(&held, NewTime::After(1_001), None), late);
        assert_eq!(told(&held, NewTime::At(NOW + 1_001), None), late);
    }

    /// Excluded: an expiry that is compared with the time alone that the client named.
    #[test]
    fn an_expiry_that_cannot_be_met_is_refused() {
        let horizon = horizon(StoreKind::Disk);
        for (time, due) in [
            (NewTime::Now, NOW),
            (NewTime::At(NOW - 5_000), NOW),
            (NewTime::At(NOW + 5_000), NOW + 5_000),
            (NewTime::After(5_000), NOW + 5_000),
        ] {
            let late = format!("the item expires at {due} (x-deliver-before), which is not after {due}");
            assert_eq!(told(&horizon, time, Some(due)), late, "{time:?}");
            assert_eq!(told(&horizon, time, Some(due + 1)), "", "{time:?}");
        }
        assert!(told(&horizon, NewTime::Now, Some(0)).contains("expires at 0 "));
    }

    #[test]
    fn without_a_configuration_there_is_no_limit_and_the_last_one_counts() {
        let horizon = TimeHorizon::default();
        assert_eq!(told(&horizon, NewTime::After(u64::MAX), None), "");
        let mut config = Config::default();
        config.limits.max_delay = Duration::from_millis(5);
        horizon.configure(&config);
        assert!(told(&horizon, NewTime::After(6), None).contains("limits.max_delay"));
        config.limits.max_delay = Duration::from_millis(6);
        horizon.configure(&config);
        assert_eq!(told(&horizon, NewTime::After(6), None), "");
    }
}
