//! Whether a queue can be delivered to: a circuit breaker, pure.
//!
//! One probe at a time tries a queue that is unproven or has failed. Its confirm opens the queue, and the
//! allowed number of batches in flight grows with each further confirm.

use super::backoff::{self, Random};
use alloc::sync::Arc;
use tidegate_types::Retry;

/// How long a confirm proves that a queue can be delivered to, ms. After a longer rest the next batch is sent
/// alone: a queue that was removed since costs one returned batch, not many.
const PROOF_MS: u64 = 5_000;

/// Maximum number of batches in flight to a silent queue. RabbitMQ blocks a channel with more than 32
/// publishes (`quorum_commands_soft_limit`) that wait for a quorum queue without majority, and then the whole
/// connection, which carries the batches of all applications. Half of that, since two applications may be
/// bound to one queue.
pub(crate) const UNANSWERED: usize = 16;
/// A queue is silent when no confirm has come for this many times its usual confirm time.
const SILENCE_FACTOR: u64 = 4;
/// Bounds of that time, ms: the lower one, because a turn of either loop may take as long; the upper one,
/// because a longer usual time means nothing.
const SILENCE_MIN_MS: u64 = 50;
const SILENCE_MAX_MS: u64 = 2_000;
/// A new confirm enters the usual time with the weight one in this many, as in the round-trip estimate of TCP
/// (RFC 6298).
const USUAL_OVER: u64 = 8;

/// State of the circuit breaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HealthState {
    /// No batch was confirmed lately: a probe must be sent.
    Unproven,
    /// A batch was confirmed lately, at this monotonic moment.
    Proven { at: u64 },
    /// A delivery failed: the next probe is sent at `until` (monotonic ms).
    Parked { until: u64 },
}

/// See the module's page.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    state: HealthState,
    /// Failed probes in a row, and the error text of the last.
    failures: u32,
    last_error: Option<Arc<str>>,
    /// Maximum number of batches in flight.
    allowance: usize,
    /// The usual confirm time, ms times [`USUAL_OVER`].
    usual: u64,
}

impl Health {
    pub(crate) fn new() -> Self {
        Health { state: HealthState::Unproven, failures: 0, last_error: None, allowance: 1, usual: 0 }
    }

    pub(crate) fn state(&self) -> &HealthState {
        &self.state
    }

    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    pub(crate) fn last_error(&self) -> Option<&Arc<str>> {
        self.last_error.as_ref()
    }

    /// The last try failed, and none has succeeded since.
    pub(crate) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// Batches are sent one at a time, each alone on its channel.
    pub(crate) fn needs_probe(&self) -> bool {
        self.state == HealthState::Unproven
    }

    /// Whether one more batch may be sent. `under_way`: batches in flight; `share`: maximum for one queue.
    pub(crate) fn may_send(&self, under_way: usize, share: usize, now_mono: u64) -> bool {
        match self.state {
            HealthState::Unproven => under_way == 0,
            HealthState::Proven { at } => {
                let usual = SILENCE_FACTOR * self.usual / USUAL_OVER;
                let silent = now_mono > at + usual.clamp(SILENCE_MIN_MS, SILENCE_MAX_MS);
                let most = if silent { UNANSWERED } else { usize::MAX };
                under_way < self.allowance.min(share).min(most)
            }
            HealthState::Parked { .. } => false,
        }
    }

    /// A batch that took its slot at `since` was confirmed. While parked, a late confirm of an older batch
    /// proves nothing: the probe decides.
    pub(crate) fn confirmed(&mut self, since: u64, now_mono: u64, share: usize) {
        match self.state {
            HealthState::Parked { .. } => return,
            HealthState::Proven { .. } => self.allowance = (self.allowance * 2).min(share.max(1)),
            // After a rest without a failure the allowance is what it was before.
            HealthState::Unproven => self.allowance = self.allowance.max(2).min(share.max(1)),
        }
        self.failures = 0;
        self.last_error = None;
        self.usual = self.usual - self.usual / USUAL_OVER + now_mono.saturating_sub(since);
        self.state = HealthState::Proven { at: now_mono };
    }

    /// A batch failed. Returns the end of the back-off, if it begins now.
    pub(crate) fn failed(
        &mut self,
        error: &str,
        retry: &Retry,
        random: &mut Random,
        now_mono: u64,
    ) -> Option<u64> {
        let draw = random.draw();
        self.allowance = 1;
        if matches!(self.state, HealthState::Parked { .. }) {
            return None;
        }
        self.failures = self.failures.saturating_add(1);
        self.last_error = Some(error.into());
        let until = now_mono + backoff::pause(retry, self.failures, draw);
        self.state = HealthState::Parked { until };
        Some(until)
    }

    /// The channel was lost, so that the state is unknown.
    pub(crate) fn doubt(&mut self) {
        if matches!(self.state, HealthState::Proven { .. }) {
            self.state = HealthState::Unproven;
            self.allowance = 1;
        }
    }

    /// Called with nothing in flight: an old proof expires. The next batch is sent alone then, and its
    /// confirm restores the former allowance.
    pub(crate) fn rest(&mut self, now_mono: u64) {
        let over = matches!(self.state, HealthState::Proven { at } if now_mono > at + PROOF_MS);
        if over {
            self.state = HealthState::Unproven;
        }
    }

    /// The back-off that lasts until `until` ends at `sooner`. False: there is no back-off with this end.
    pub(crate) fn shorten_pause(&mut self, until: u64, sooner: u64) -> bool {
        let lasts = self.state == HealthState::Parked { until };
        if lasts {
            self.state = HealthState::Parked { until: sooner };
        }
        lasts
    }

    /// The back-off has ended, by time or by a command. False: there is no back-off with this end.
    pub(crate) fn end_pause(&mut self, until: u64) -> bool {
        let ends = self.state == HealthState::Parked { until };
        if ends {
            self.state = HealthState::Unproven;
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: Retry = Retry { min: 1_000, max: 300_000, attempts: 0 };

    /// Each line: the event, then whether a first, a second and a third batch may be in flight at the same
    /// time, and the failures in a row.
    /// Excluded: a parked queue that is sent to, or that a late confirm opens; failures that a confirm does
    /// not reset; a proof that a rest does not end, or after which the allowance begins anew.
    /// Judges promise 6.
    #[test]
    fn a_drawn_table() {
        let mut health = Health::new();
        let mut random = Random(1);
        let mut story = Vec::new();
        let mut until = 0;
        for (at, event) in [
            (0, "start"),
            (1, "ok"),
            (2, "ok"),
            (3, "fail"),
            (4, "ok"),
            (5, "fail"),
            (6, "end"),
            (7, "ok"),
            (8, "ok"),
            (9_000, "rest"),
            (9_000, "ok"),
            (19_000, "rest"),
            (19_001, "fail"),
            (19_002, "end"),
            (19_003, "fail"),
        ] {
            match event {
                "ok" => health.confirmed(at, at, 3),
                "fail" => until = health.failed("no route", &RETRY, &mut random, at).unwrap_or(until),
                "end" => assert!(health.end_pause(until)),
                "rest" => health.rest(at),
                _ => {}
            }
            let may: String = (0..3).map(|n| if health.may_send(n, 3, at) { 'x' } else { '.' }).collect();
            story.push(format!("{event:5} {may} {}", health.failures()));
        }
        assert_eq!(
            story,
            [
                "start x.. 0",
                "ok    xx. 0",
                "ok    xxx 0",
                "fail  ... 1",
                "ok    ... 1",
                "fail  ... 1",
                "end   x.. 1",
                "ok    xx. 0",
                "ok    xxx 0",
                "rest  x.. 0",
                "ok    xxx 0",
                "rest  x.. 0",
                "fail  ... 1",
                "end   x.. 1",
                "fail  ... 2",
            ]
        );
        assert!(!health.end_pause(until + 1), "another pause");
    }

    /// Each line: the event, and when a back-off that it begins ends, ms later. With pauses of one to three
    /// milliseconds there is no jitter.
    /// Excluded: back-offs that stay as long as the first, or do not begin anew after a confirm; a back-off
    /// that a straggler's failure prolongs.
    /// Judges promise 6.
    #[test]
    fn each_back_off_is_twice_as_long_as_the_one_before() {
        let retry = Retry { min: 1, max: 3, attempts: 0 };
        let (mut health, mut random, mut until) = (Health::new(), Random(1), 0);
        for (at, event, expected) in [
            (100, "fail", Some(1)),
            (100, "fail", None),
            (101, "end", None),
            (102, "fail", Some(2)),
            (104, "end", None),
            (105, "fail", Some(3)),
            (108, "end", None),
            (109, "fail", Some(3)),
            (112, "end", None),
            (113, "ok", None),
            (114, "fail", Some(1)),
            (114, "ok", None),
            (115, "end", None),
            (116, "fail", Some(2)),
        ] {
            let mut begun = None;
            match event {
                "ok" => health.confirmed(at, at, 3),
                "fail" => begun = health.failed("no route", &retry, &mut random, at),
                _ => assert!(health.end_pause(until), "{event} {at}"),
            }
            until = begun.unwrap_or(until);
            assert_eq!(begun.map(|end| end - at), expected, "{event} {at}");
        }
    }

    /// Number of batches that may be in flight, by the time since the last confirm and the usual confirm
    /// time.
    /// Excluded: a silent queue that gets as many as another; a silence that a slow queue is blamed for, or
    /// that a confirm does not end.
    /// Judges promise 6.
    #[test]
    fn in_silence_only_few_go_unanswered() {
        for (takes, silent_after) in [(0, 50), (5, 50), (100, 400), (10_000, 2_000)] {
            let mut health = Health::new();
            for n in 0..100 {
                health.confirmed(n * 20_000, n * 20_000 + takes, 750);
            }
            let last = 99 * 20_000 + takes;
            let most = |health: &Health, now| (0..=750).find(|n| !health.may_send(*n, 750, now)).unwrap_or(0);
            assert_eq!(most(&health, last), 750, "{takes}");
            assert_eq!(most(&health, last + silent_after * 9 / 10), 750, "{takes}");
            assert_eq!(most(&health, last + silent_after + 1), UNANSWERED, "{takes}");
            health.confirmed(last, last + 5_000, 750);
            assert_eq!(most(&health, last + 5_000), 750, "{takes}: a confirm ends it");
        }
    }
}
