//! What the loop does about once a second, whatever else happens: room on the disk, the line for systemd, the
//! watchdog.

use super::life::Life;
use super::starts;
use crate::config::StoreKind;
use crate::engine::event::Input;
use crate::engine::types::Reason;
use crate::{clock, store};

/// A part that has made no progress for longer while it had work is taken for dead, ms: the watchdog is not
/// fed. Less where systemd looks more often than every 30 s: after two of its intervals.
const STUCK_MS: u64 = 60_000;

/// Free space below which nothing is accepted, as a share of the file system; above with some distance,
/// again.
const LOW_WATER_PERCENT: u64 = 5;
const LOW_WATER_BACK_PERCENT: u64 = 6;

impl Life<'_> {
    /// Once a second: room on the disk, status, watchdog.
    pub(super) fn housekeeping(&mut self) {
        let now = clock::now();
        if now.mono < self.housekept_at_ms + 1_000 {
            return;
        }
        self.housekept_at_ms = now.mono;
        if now.mono > self.process.started.mono + starts::LONG_LIFE_MS {
            self.starts.settle();
        }
        self.log_dropped();
        let stats = self.shard.store.stats();
        self.process.liveness.store_oldest(stats.oldest_ms);
        if let Some(usage) = stats.usage {
            self.check_disk_space(usage);
        }
        self.process.notify.status(&self.status_line());
        let Some(interval) = self.process.watchdog else { return };
        if now.mono < self.watchdog_fed_at_ms + interval.as_millis() as u64 / 2 {
            return;
        }
        let limit = STUCK_MS.min(2 * interval.as_millis() as u64);
        if self.is_alive(now.mono, limit, &stats) {
            self.watchdog_fed_at_ms = now.mono;
            self.process.notify.watchdog();
        }
    }

    /// Items dropped for want of room are worth a line, and not one each.
    fn log_dropped(&mut self) {
        let dropped = self.shard.engine.counters().dead[Reason::Full as usize];
        if dropped > self.logged_full {
            tracing::warn!(items = dropped - self.logged_full, "at a limit: dead-lettered (full)");
            self.logged_full = dropped;
        }
    }

    /// Accepts nothing while the disk is nearly full; what is there goes on leaving.
    fn check_disk_space(&mut self, usage: store::Usage) {
        if self.process.config.store.kind == StoreKind::Memory {
            return;
        }
        let percent = if self.disk_low { LOW_WATER_BACK_PERCENT } else { LOW_WATER_PERCENT };
        let scarce = usage.free < usage.total / 100 * percent;
        let limit = self.process.config.limits.disk;
        let used = if self.disk_low { usage.used.saturating_mul(10) / 9 } else { usage.used };
        let low = scarce || (limit > 0 && used >= limit);
        if low {
            // What was deleted gives its room back once the store has nothing else to do.
            self.shard.store.reclaim();
        }
        if low != self.disk_low {
            self.disk_low = low;
            if low {
                tracing::warn!(
                    path = %self.process.config.store.path.display(),
                    free = usage.free,
                    used = usage.used,
                    "the disk is nearly full or limits.disk is reached: no requests are taken"
                );
            } else {
                tracing::info!("there is room on the disk again: requests are taken");
            }
            self.shard.feed(Input::StoreFull(low));
        }
    }

    /// Whether every part that has work has made progress within `limit`, ms. Waiting for a broker is no
    /// work.
    fn is_alive(&mut self, now: u64, limit: u64, store: &store::thread::StoreStats) -> bool {
        let amqp = self.shard.amqp.stats();
        let stuck = |since: u64| now.saturating_sub(since) > limit;
        let parts = [
            ("ingest", stuck(amqp.ingest_progress_ms)),
            ("egress", stuck(amqp.egress_progress_ms)),
            ("store", store.oldest_ms.is_some_and(|age| age > limit)),
        ];
        let stalled: Vec<&'static str> =
            parts.into_iter().filter(|(_, stuck)| *stuck).map(|(part, _)| part).collect();
        if stalled != self.stalled {
            if stalled.is_empty() {
                tracing::info!("all parts make progress again: the watchdog is fed");
            } else {
                tracing::error!(parts = ?stalled, limit_ms = limit, "no progress: the watchdog is not fed");
            }
            self.stalled = stalled;
        }
        self.stalled.is_empty()
    }
}
