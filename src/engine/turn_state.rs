//! Where the engine stands between two calls.

use super::types::Now;

/// A difference between the two clocks of more than this is a step of the wall clock, ms.
const STEP_MS: u64 = 1_000;

/// What the wall clock has done since the last call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockStep {
    /// It has stepped, seen from the monotonic clock.
    pub(super) forward: bool,
    pub(super) backward: bool,
    /// It shows less than before, be it by a step or not.
    pub(super) less: bool,
}

/// Both clocks, to notice steps of the one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clocks {
    last: Now,
}

/// See the module's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TurnState {
    pub(super) clocks: Clocks,
    /// Set once a shutdown has begun.
    pub(super) draining: bool,
    /// The consumer has been told to hand over.
    pub(super) taking: bool,
    /// The line of requests has stopped for want of room.
    pub(super) no_room: bool,
    /// More is to be done at once than one turn does.
    pub(super) more: bool,
}

impl TurnState {
    /// At its beginning.
    pub(super) fn new(now: Now) -> Self {
        TurnState { clocks: Clocks::new(now), draining: false, taking: false, no_room: false, more: true }
    }
}

impl Clocks {
    pub(super) fn new(now: Now) -> Self {
        Clocks { last: now }
    }

    /// Both at the last call.
    pub(super) fn last(&self) -> Now {
        self.last
    }

    /// Notes the time of a call.
    pub(super) fn observe(&mut self, now: Now) -> ClockStep {
        let last = std::mem::replace(&mut self.last, now);
        debug_assert!(now.mono >= last.mono, "the monotonic clock never goes back");
        let expected = last.wall + now.mono.saturating_sub(last.mono);
        ClockStep {
            forward: now.wall > expected + STEP_MS,
            backward: now.wall + STEP_MS < expected,
            less: now.wall < last.wall,
        }
    }
}
