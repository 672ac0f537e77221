//! How many deliveries to take in advance: bounded by memory in the ordinary case, one at a time where a message is
//! suspected of killing its consumers. Pure.

/// Taken for the size of a body as long as nothing is known. Small, because a change costs order: deliveries on their
/// way to a cancelled consumer come again, behind others.
const ASSUMED_BODY: u64 = 4 << 10;
/// Smaller bodies count as this much: a delivery is more than its body.
const LEAST_BODY: u64 = 1 << 10;
/// Deliveries that make one period of observation; the largest body of this period and the one before it counts.
const PERIOD: u32 = 256;

/// Keeps prefetch x largest recent body below a quarter of `limits.memory`.
#[derive(Debug)]
pub(super) struct Prefetch {
    configured: u16,
    budget: u64,
    current: u16,
    in_period: u32,
    period_ended: bool,
    largest_now: u64,
    /// `None` until one period is over.
    largest_before: Option<u64>,
}

impl Prefetch {
    /// `memory` is `limits.memory` in bytes.
    pub(super) fn new(configured: u16, memory: u64) -> Self {
        let mut prefetch = Prefetch {
            configured: configured.max(1),
            budget: memory / 4,
            current: 1,
            in_period: 0,
            period_ended: false,
            largest_now: 0,
            largest_before: None,
        };
        prefetch.current = prefetch.allowed();
        prefetch
    }

    pub(super) fn current(&self) -> u16 {
        self.current
    }

    pub(super) fn set_memory(&mut self, memory: u64) {
        self.budget = memory / 4;
    }

    /// A delivery with a body of so many bytes.
    pub(super) fn seen(&mut self, body: u64) {
        self.largest_now = self.largest_now.max(body);
        self.in_period += 1;
        if self.in_period >= PERIOD {
            self.in_period = 0;
            self.largest_before = Some(self.largest_now);
            self.largest_now = 0;
            self.period_ended = true;
        }
    }

    /// A new value, if it is worth a change: smaller at once, larger at the end of a period, when it at least doubles
    /// or reaches the configured one.
    pub(super) fn change(&mut self) -> Option<u16> {
        let allowed = self.allowed();
        let period_ended = std::mem::take(&mut self.period_ended);
        let grow = allowed >= self.current.saturating_mul(2) || allowed == self.configured;
        if allowed < self.current || (period_ended && allowed > self.current && grow) {
            self.current = allowed;
            return Some(allowed);
        }
        None
    }

    fn allowed(&self) -> u16 {
        let largest = self.largest_now.max(self.largest_before.unwrap_or(ASSUMED_BODY)).max(LEAST_BODY);
        u16::try_from(self.budget / largest).unwrap_or(u16::MAX).clamp(1, self.configured)
    }
}

/// One delivery at a time, so that a message which ends the connection (or the process) comes back alone.
///
/// With more, every neighbour of the culprit would be returned with it each time, and the queue's delivery limit would
/// send innocent ones to the dead exchange.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    on: bool,
    /// Parse errors in a row with nothing acked between.
    errors: u32,
    /// While it is on, parse errors in a row with nothing acked between. Two mean that the culprit is at the head of the
    /// queue; one may have been preceded by an ack that did not reach the broker, whose message comes first then.
    met: u32,
    acked: u32,
    /// As many deliveries as may lie before the culprit.
    depth: u32,
    /// A delivery has come that nobody had before. The broker hands out first what came back, the culprit with it: so
    /// that has passed.
    fresh: bool,
}

impl Quarantine {
    /// On from the start, after the process has died quickly several times.
    pub(super) fn started(on: bool, depth: u16) -> Self {
        Quarantine { on, depth: u32::from(depth), ..Quarantine::default() }
    }

    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    /// Parse errors in a row.
    pub(super) fn errors(&self) -> u32 {
        self.errors
    }

    /// A connection ended by a parse error, with so many deliveries taken in advance.
    pub(super) fn parse_error(&mut self, prefetch: u16) {
        self.errors = self.errors.saturating_add(1);
        if self.on {
            self.met = self.met.saturating_add(1);
        } else if self.errors >= 2 {
            *self = Quarantine {
                on: true,
                errors: self.errors,
                depth: u32::from(prefetch),
                ..Quarantine::default()
            };
        }
    }

    /// A delivery has come; whether it had been handed out before.
    pub(super) fn delivered(&mut self, redelivered: bool) {
        self.fresh |= !redelivered;
    }

    /// Deliveries were acked. True: back to normal, because the culprit was at the head and is gone, because one came
    /// that lies behind it, or because as many passed as could have lain before it.
    pub(super) fn acked(&mut self, count: u32) -> bool {
        self.errors = 0;
        self.acked = self.acked.saturating_add(count);
        let met = std::mem::take(&mut self.met);
        let over = self.on && count > 0 && (met >= 2 || self.fresh || self.acked >= self.depth);
        if over {
            *self = Quarantine::default();
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn feed(prefetch: &mut Prefetch, count: u32, body: u64) -> Vec<u16> {
        let mut changes = Vec::new();
        for _ in 0..count {
            prefetch.seen(body);
            changes.extend(prefetch.change());
        }
        changes
    }

    #[test]
    fn settles_at_the_configured_value_within_a_few_hundred_small_messages() {
        let mut prefetch = Prefetch::new(10_000, 256 * MIB);
        assert_eq!(prefetch.current(), 10_000, "64 MiB in bodies of 4 KiB, and more");
        assert!(feed(&mut prefetch, 5_000, 2_000).is_empty(), "and stays");
        let mut prefetch = Prefetch::new(10_000, 32 * MIB);
        assert_eq!(prefetch.current(), 2_048, "8 MiB in bodies of 4 KiB");
        assert_eq!(feed(&mut prefetch, 300, 200), [8_192]);
    }

    #[test]
    fn a_large_body_counts_at_once_and_is_forgotten_after_two_periods() {
        let mut prefetch = Prefetch::new(10_000, 256 * MIB);
        feed(&mut prefetch, 300, 200);
        assert_eq!(feed(&mut prefetch, 1, 8 * MIB), [8]);
        assert!(feed(&mut prefetch, 400, 200).is_empty());
        assert_eq!(feed(&mut prefetch, 200, 200), [10_000]);
    }

    #[test]
    fn never_above_the_bound_nor_below_one() {
        for body in [0, 1, 300, 64 << 10, MIB, 8 * MIB, 1 << 30] {
            let mut prefetch = Prefetch::new(10_000, 256 * MIB);
            feed(&mut prefetch, 1_000, body);
            let current = u64::from(prefetch.current());
            assert!(current == 1 || current * body <= 64 * MIB, "{current} x {body}");
        }
        assert_eq!(Prefetch::new(0, 0).current(), 1);
        assert_eq!(Prefetch::new(5, 1 << 40).current(), 5);
    }

    #[test]
    fn small_changes_are_not_worth_it() {
        let mut prefetch = Prefetch::new(60_000, 256 * MIB);
        assert_eq!(feed(&mut prefetch, 256, 10_000)[0], 6_710);
        assert!(feed(&mut prefetch, 2_560, 7_000).is_empty(), "9,586 would be less than twice as much");
    }

    #[test]
    fn two_parse_errors_in_a_row_isolate_the_culprit() {
        let mut quarantine = Quarantine::default();
        quarantine.parse_error(1_000);
        assert!(!quarantine.is_on());
        quarantine.acked(1);
        quarantine.parse_error(1_000);
        assert!(!quarantine.is_on(), "something was acked between");
        quarantine.parse_error(1_000);
        assert!(quarantine.is_on());
        // Those before it pass one by one.
        assert!(!quarantine.acked(1));
        assert!(quarantine.is_on());
        // It is met, but the last ack was lost: the one before it comes again.
        quarantine.parse_error(1);
        assert!(!quarantine.acked(1));
        // It is met until the broker takes it away; the next ack ends it.
        for _ in 0..50 {
            quarantine.parse_error(1);
        }
        assert_eq!(quarantine.errors(), 50);
        assert!(quarantine.acked(1));
        assert!(!quarantine.is_on());
    }

    #[test]
    fn a_quarantine_without_a_culprit_ends() {
        let mut quarantine = Quarantine::started(true, 3);
        assert!(!quarantine.acked(1));
        assert!(!quarantine.acked(1));
        assert!(quarantine.acked(1));
    }

    #[test]
    fn what_nobody_had_before_ends_a_quarantine_once_it_is_acked() {
        let mut quarantine = Quarantine::started(true, 10_000);
        for _ in 0..5 {
            quarantine.delivered(true);
            assert!(!quarantine.acked(1), "the culprit may be next");
        }
        quarantine.delivered(false);
        assert!(quarantine.is_on(), "it may be the culprit itself");
        assert!(quarantine.acked(1));
        assert!(!quarantine.is_on());
    }
}
