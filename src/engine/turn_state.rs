//! The flags and clocks that the engine keeps between two calls.

use tidegate_types::Now;

/// A difference between the two clocks of more than this is a step of the wall clock, ms.
const STEP_MS: u64 = 1_000;
/// After a difference of more than this, in one step or in several, expiries fall at other monotonic times,
/// ms. A window closes this much too late at most, which is less than its margin before an expiry.
const DRIFT_MS: u64 = 50;

/// Steps of the wall clock since the last call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockStep {
    /// It has stepped, compared with the monotonic clock.
    pub(crate) forward: bool,
    pub(crate) backward: bool,
    /// It shows an earlier time than before, by a step or not.
    pub(crate) less: bool,
    /// The clocks differ in another way than when this was last so.
    pub(crate) drifted: bool,
}

/// The clocks at the last call, to notice steps of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clocks {
    last: Now,
    /// Both clocks when they were last found to have drifted.
    compared: Now,
}

/// See the module's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TurnState {
    pub(crate) clocks: Clocks,
    /// Set once a shutdown has begun.
    pub(crate) draining: bool,
    /// The consumer hands requests over.
    pub(crate) taking: bool,
    /// Requests wait for room.
    pub(crate) no_room: bool,
    /// Work is left that must be done at once.
    pub(crate) more: bool,
}

impl TurnState {
    /// The state of a new engine.
    pub(crate) fn new(now: Now) -> Self {
        TurnState { clocks: Clocks::new(now), draining: false, taking: false, no_room: false, more: true }
    }
}

impl Clocks {
    pub(crate) fn new(now: Now) -> Self {
        Clocks { last: now, compared: now }
    }

    /// Both clocks at the last call.
    pub(crate) fn last(&self) -> Now {
        self.last
    }

    /// Notes the time of a call.
    pub(crate) fn observe(&mut self, now: Now) -> ClockStep {
        let last = core::mem::replace(&mut self.last, now);
        debug_assert!(now.mono >= last.mono, "the monotonic clock never goes back");
        let expected_since = |then: Now| then.wall + now.mono.saturating_sub(then.mono);
        let expected = expected_since(last);
        let drifted = now.wall.abs_diff(expected_since(self.compared)) > DRIFT_MS;
        if drifted {
            self.compared = now;
        }
        ClockStep {
            forward: now.wall > expected + STEP_MS,
            backward: now.wall + STEP_MS < expected,
            less: now.wall < last.wall,
            drifted,
        }
    }
}
