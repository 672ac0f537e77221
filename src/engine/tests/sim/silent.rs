//! Far more queues that never confirm than channels, and a check that other applications arrive.

use super::super::world::*;
use super::Sim;

/// Applications in a world of silent ones, and how many of them confirm.
pub(super) const MANY: u64 = 80;
const SOUND: usize = 4;

/// Time for which a silent queue may keep its channel though another needs it, ms: four times the time of confirms, of
/// which two seconds count.
const PATIENCE_MS: u64 = 8_000;

/// Time for everything else, ms.
const LATE_MS: u64 = 2_000;

impl Sim {
    pub(super) fn silence(&mut self) {
        self.hanging = self.apps.iter().skip(SOUND).cloned().collect();
    }

    /// Items of a new application arrive, whichever queues hang.
    pub(super) fn others_arrive(&mut self) {
        self.clear_the_way();
        let app = format!("o{}", self.world.sent);
        let began = self.world.now.mono;
        let late = LATE_MS + PATIENCE_MS * MANY / self.model.most_alone() as u64;
        let first = self.model.asks.len();
        let items = 3;
        (0..items).for_each(|_| {
            let now = Some(self.world.now.wall);
            self.request_of(&app, "", now, None);
        });
        self.hand_over_all();
        self.judge();
        let budget = self.world.settings.budget;
        // Queues that fall silent under load may hold all of few slots.
        let roomy = budget.rows >= 10_000 && self.world.settings.max_in_flight >= 100;
        let taken = self.model.apps.get(&app).is_some_and(|known| known.live == items);
        if !roomy || !taken {
            return;
        }
        while self.world.now.mono < began + late {
            self.world.drain_jobs();
            self.judge();
            self.free_channels();
            while let Some(nth) = self.world.out.iter().position(|(_, batch)| !self.hangs(batch)) {
                let batch = self.world.out[nth].1.clone();
                if self.would_take(&batch) {
                    self.receive(&batch);
                    self.world.settle(nth, CONFIRMED);
                } else {
                    self.settle(nth);
                }
                self.world.drain_jobs();
                self.judge();
            }
            if self.model.asks[first..].iter().all(|ask| ask.arrivals > 0) {
                return;
            }
            let wait = self.world.wait().unwrap_or(100).clamp(1, 500);
            self.world.advance(wait);
        }
        self.judge();
        let silent = self.hanging.len();
        let engine = self.world.engine.describe();
        panic!("{app} waits for {late} ms beside {silent} silent ones; {engine}");
    }
}
