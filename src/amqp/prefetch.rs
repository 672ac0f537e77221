//! The prefetch, bounded by memory. Where a message is suspected of ending the process, [`super::quarantine`]
//! sets it. Pure.

/// The first prefetch of a channel: the sizes of the messages in the queue are unknown.
const START: u16 = 16;
/// Growth factor of one step. The last step to the upper bound is up to twice as long, so that none is short.
const GROWTH: u16 = 4;
/// Assumed cost of a request before any has been seen, on a queue without a backlog, bytes.
const ORDINARY_COST: u64 = 4 << 10;
/// Smaller requests count as this much.
const LEAST_COST: u64 = 1 << 10;
/// Deliveries in one period of observation; the most expensive request of this period and of the one before
/// it counts.
const PERIOD: u32 = 256;

/// Keeps prefetch x most expensive recent request below a quarter of `limits.memory`, and begins small.
#[derive(Debug)]
pub(crate) struct Prefetch {
    configured: u16,
    budget: u64,
    /// Bytes of the largest body that is taken.
    max_body: u64,
    current: u16,
    in_period: u32,
    dearest_now: u64,
    dearest_before: u64,
}

impl Prefetch {
    /// `memory` (`limits.memory`) and `max_body` (`limits.max_body`) in bytes.
    pub(crate) fn new(configured: u16, memory: u64, max_body: u64) -> Self {
        let mut prefetch = Prefetch {
            configured: configured.max(1),
            budget: budget(memory),
            max_body,
            current: 1,
            in_period: 0,
            dearest_now: 0,
            dearest_before: 0,
        };
        prefetch.restart(u32::MAX);
        prefetch
    }

    pub(crate) fn current(&self) -> u16 {
        self.current
    }

    pub(crate) fn set_limits(&mut self, memory: u64, max_body: u64) {
        self.budget = budget(memory);
        self.max_body = max_body;
    }

    /// Sets the value that a quarantine demands.
    pub(crate) fn set(&mut self, prefetch: u16) -> u16 {
        self.current = prefetch;
        prefetch
    }

    /// A new channel, on a queue with this many messages ready. They may have any size, so with more than a
    /// few the prefetch begins small. With fewer, requests are assumed to cost as much as recent ones, or the
    /// ordinary cost.
    pub(crate) fn restart(&mut self, ready: u32) -> u16 {
        let fits = u16::try_from(self.budget / self.max_body.max(1)).unwrap_or(u16::MAX).max(1);
        let ordinary = u16::try_from(self.budget / ORDINARY_COST).unwrap_or(u16::MAX).max(1);
        let start = if ready <= u32::from(fits.min(START)) { ordinary } else { fits.min(START) };
        self.current = start.min(self.allowed());
        self.current
    }

    /// A delivery that costs this many bytes once it is read.
    pub(crate) fn seen(&mut self, cost: u64) {
        self.dearest_now = self.dearest_now.max(cost);
        self.in_period += 1;
        if self.in_period >= PERIOD {
            self.in_period = 0;
            self.dearest_before = self.dearest_now;
            self.dearest_now = 0;
        }
    }

    /// A smaller value, where memory demands it. A change by less than a quarter is not worth the
    /// redeliveries.
    pub(crate) fn shrink(&mut self) -> Option<u16> {
        let allowed = self.allowed();
        if u32::from(allowed) * 4 < u32::from(self.current) * 3 {
            self.current = allowed;
            return Some(allowed);
        }
        None
    }

    /// A larger value, after as many deliveries as the present one allows: at least twice the present one, or
    /// the configured one.
    pub(crate) fn grow(&mut self) -> Option<u16> {
        let allowed = self.allowed();
        let step = self.current.saturating_mul(GROWTH);
        let next = if step.saturating_mul(2) > allowed { allowed } else { step };
        if next >= self.current.saturating_mul(2) || (next == self.configured && next > self.current) {
            self.current = next;
            return Some(next);
        }
        None
    }

    /// Most deliveries that memory allows.
    pub(crate) fn allowed(&self) -> u16 {
        let dearest = self.dearest_now.max(self.dearest_before).max(LEAST_COST);
        u16::try_from(self.budget / dearest).unwrap_or(u16::MAX).clamp(1, self.configured)
    }
}

/// A quarter of the memory, less a third of that for what an earlier consumer has left unacked.
fn budget(memory: u64) -> u64 {
    memory / 6
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Feeds rounds of deliveries of one cost, each as many as the prefetch allows; returns the changes of
    /// the prefetch.
    fn fed(prefetch: &mut Prefetch, rounds: u32, cost: u64) -> Vec<u16> {
        let mut changes = Vec::new();
        for _ in 0..rounds {
            for _ in 0..prefetch.current() {
                prefetch.seen(cost);
                changes.extend(prefetch.shrink());
            }
            changes.extend(prefetch.grow());
        }
        changes
    }

    #[test]
    fn begins_small_and_is_at_the_configured_value_after_a_few_rounds() {
        let mut prefetch = Prefetch::new(10_000, 256 * MIB, 8 * MIB);
        assert_eq!(prefetch.current(), 5, "bodies of 8 MiB");
        assert_eq!(fed(&mut prefetch, 9, 1_200), [20, 80, 320, 1_280, 10_000]);
        assert_eq!(prefetch.restart(u32::MAX), 5, "another channel begins anew");
        assert_eq!(prefetch.restart(0), prefetch.allowed(), "nothing waits");
        let mut prefetch = Prefetch::new(10_000, 256 * MIB, MIB);
        assert_eq!(prefetch.current(), 16);
        assert_eq!(fed(&mut prefetch, 9, 1_200), [64, 256, 1_024, 4_096, 10_000]);
        assert_eq!(Prefetch::new(5, 256 * MIB, MIB).current(), 5);
        assert_eq!(Prefetch::new(10_000, 16 * MIB, 8 * MIB).current(), 1);
    }

    #[test]
    fn a_dear_request_counts_at_once_and_is_forgotten_after_two_periods() {
        let mut prefetch = Prefetch::new(10_000, 240 * MIB, MIB);
        fed(&mut prefetch, 9, 200);
        prefetch.seen(8 * MIB);
        assert_eq!((prefetch.shrink(), prefetch.grow()), (Some(5), None));
        for _ in 0..PERIOD {
            prefetch.seen(200);
        }
        assert_eq!(prefetch.grow(), None);
        for _ in 0..PERIOD {
            prefetch.seen(200);
        }
        assert_eq!(prefetch.grow(), Some(20));
    }

    #[test]
    fn never_above_the_bound_nor_below_one() {
        for cost in [0, 1, 300, 64 << 10, MIB, 8 * MIB, 1 << 30] {
            let mut prefetch = Prefetch::new(10_000, 256 * MIB, 8 * MIB);
            fed(&mut prefetch, 12, cost);
            let current = u64::from(prefetch.current());
            assert!(current == 1 || current * cost <= 64 * MIB, "{current} x {cost}");
        }
        assert_eq!(Prefetch::new(0, 0, 0).current(), 1);
    }

    #[test]
    fn small_changes_are_not_worth_it() {
        let mut prefetch = Prefetch::new(60_000, 256 * MIB, MIB);
        fed(&mut prefetch, 12, 10_000);
        let settled = prefetch.current();
        assert!((2_200..=4_473).contains(&settled), "{settled}");
        assert!(fed(&mut prefetch, 3, 11_000).is_empty());
        assert!(fed(&mut prefetch, 3, 7_000).is_empty(), "less than twice as much");
    }
}
