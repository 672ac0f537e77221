//! What the loop does about once a second, whatever else happens: room on the disk, the line for systemd, the watchdog.

use super::{starts, Daemon};
use crate::config::StoreKind;
use crate::engine::event::Input;
use crate::engine::types::Reason;
use crate::{clock, store};

/// A part that has made no progress for longer while it had work is taken for dead: the watchdog is not fed. ms.
const STUCK_MS: u64 = 60_000;

/// Free space below which nothing is accepted, as a share of the file system; above with some distance, again.
const LOW_WATER_PERCENT: u64 = 5;
const LOW_WATER_BACK_PERCENT: u64 = 6;

impl Daemon {
    /// Once a second: room on the disk, status, watchdog.
    pub(super) fn look_after(&mut self) {
        let now = clock::now();
        if now.mono < self.looked + 1_000 {
            return;
        }
        self.looked = now.mono;
        if now.mono > self.started.mono + starts::LONG_LIFE_MS {
            self.starts.settle();
        }
        self.log_dropped();
        let stats = self.store.stats();
        self.liveness.store_oldest(stats.oldest_ms);
        if let Some(usage) = stats.usage {
            self.mind_room(usage);
        }
        self.notify.status(&self.status_line());
        let Some(interval) = self.watchdog else { return };
        if now.mono < self.fed + interval.as_millis() as u64 / 2 {
            return;
        }
        if self.is_alive(now.mono, &stats) {
            self.fed = now.mono;
            self.notify.watchdog();
        }
    }

    /// Items dropped for want of room are worth a line, and not one each.
    fn log_dropped(&mut self) {
        let dropped = self.engine.counters().dead[Reason::Full as usize];
        if dropped > self.dropped {
            tracing::warn!(items = dropped - self.dropped, "at a limit: dead-lettered (full)");
            self.dropped = dropped;
        }
    }

    /// Accepts nothing while the disk is nearly full; what is there goes on leaving.
    fn mind_room(&mut self, usage: store::Usage) {
        if self.config.store.kind == StoreKind::Memory {
            return;
        }
        let percent = if self.low { LOW_WATER_BACK_PERCENT } else { LOW_WATER_PERCENT };
        let scarce = usage.free < usage.total / 100 * percent;
        let limit = self.config.limits.disk;
        let used = if self.low { usage.used.saturating_mul(10) / 9 } else { usage.used };
        let low = scarce || (limit > 0 && used >= limit);
        if low != self.low {
            self.low = low;
            if low {
                tracing::warn!(
                    path = %self.config.store.path.display(),
                    free = usage.free,
                    used = usage.used,
                    "the disk is nearly full or limits.disk is reached: no requests are taken"
                );
            } else {
                tracing::info!("there is room on the disk again: requests are taken");
            }
            self.feed(Input::StoreFull(low));
        }
    }

    /// Whether every part that has work has made progress lately. Waiting for a broker is no work.
    fn is_alive(&self, now: u64, store: &store::thread::Stats) -> bool {
        let amqp = self.amqp.stats();
        let stuck = |since: u64| now.saturating_sub(since) > STUCK_MS;
        let dead = [
            ("ingest", stuck(amqp.ingest_progress_ms)),
            ("egress", stuck(amqp.egress_progress_ms)),
            ("store", store.oldest_ms.is_some_and(|age| age > STUCK_MS)),
        ];
        for (part, _) in dead.iter().filter(|(_, dead)| *dead) {
            tracing::error!(part, "no progress: the watchdog is not fed");
        }
        dead.iter().all(|(_, dead)| !dead)
    }
}
