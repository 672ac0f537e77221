//! A daemon that stops gracefully, and starts again.

use super::Sim;
use tidegate_types::event::*;

/// Calls of the engine until the stop is given up.
const TURNS: u32 = 300;

impl Sim {
    /// Stops at any moment: with many items due, in flight, or not written. If the stop ends by itself, all confirmed
    /// ends are written, and all safe requests acked.
    pub(super) fn stop(&mut self) {
        self.judge();
        self.world.input(Input::Drain);
        // From now on the engine decides at once on requests that would wait for an outcome.
        self.model.few_wait = true;
        for _ in 0..TURNS {
            self.world.drain_jobs();
            self.take_acks();
            self.settle_one();
            self.judge();
            self.free_channels();
            if self.world.engine.is_idle() {
                break;
            }
            let wait = self.world.wait().unwrap_or(100).clamp(1, 100);
            self.world.advance(wait);
        }
        self.world.drain_jobs();
        self.take_acks();
        self.judge();
        if self.world.engine.is_idle() {
            self.check_stopped();
        }
        self.killed();
        self.model.few_wait = self.plan.prefetch.is_some();
    }

    fn check_stopped(&self) {
        let (model, store) = (&self.model, &self.world.store);
        let (out, jobs) = (&self.world.out, &self.world.jobs);
        assert!(out.is_empty() && jobs.is_empty(), "idle, and under way are {out:?}, {jobs:?}");
        assert!(model.flights.is_empty(), "idle, and {} are in flight", model.flights.len());
        for life in model.lives.values() {
            let stays = life.state.is_over() && store.places.contains_key(&life.seq);
            assert!(!stays, "{} is {:?}, and would leave once more after a start", life.ask, life.state);
        }
        for number in &model.open {
            let message = &model.messages[number];
            let safe = message.safe_since.is_some() && message.command.is_none();
            assert!(!safe, "{number} is safe, and is not acked before the end");
        }
    }
}
