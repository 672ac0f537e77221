//! The loop's work of about once a second: free space, the status for systemd, a check that items leave, and
//! the watchdog.

use super::life::Life;
use crate::amqp::LinkStatus;
use crate::config::StoreKind;
use crate::engine::event::Input;
use crate::engine::snapshot::Counters;
use crate::engine::types::{Now, Reason};
use crate::progress::{DaemonPart, WayOut};
use crate::{clock, store};

/// Checks of the publishing side within `timeouts.stuck_after`.
const LOOKS: u64 = 4;

/// Result of the last check of the publishing side.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LookOut {
    /// When the check was made, monotonic ms.
    looked_at_ms: u64,
    /// Number of batches handed over and settled by then.
    moves: u64,
    /// Since when the publishing side stands still, monotonic ms.
    since_ms: Option<u64>,
}

/// Number of leases without a connection for publishing, after which another daemon may take the store.
const CUT_OFF_LEASES: u64 = 3;

/// Free space, as a percentage of the file system, below which no requests are taken; they are taken again
/// from a slightly higher one.
const LOW_WATER_PERCENT: u64 = 5;
const LOW_WATER_BACK_PERCENT: u64 = 6;

impl Life<'_> {
    /// Runs once a second: free space, status, watchdog.
    pub(super) fn housekeeping(&mut self) {
        let now = clock::now();
        if now.mono < self.housekept_at_ms + 1_000 {
            return;
        }
        self.housekept_at_ms = now.mono;
        self.starts.look(now.mono);
        self.look_at_reread(now.mono);
        self.log_dropped();
        self.log_dropped_tries();
        let stats = self.shard.store.stats();
        self.tell_progress(now, stats.still_ms);
        self.look_for_an_heir(now);
        if let Some(usage) = stats.usage {
            self.check_disk_space(usage);
        }
        self.process.notify.status(&self.status_line());
        let Some(interval) = self.process.watchdog else { return };
        if now.mono < self.watchdog_fed_at_ms + interval.as_millis() as u64 / 2 {
            return;
        }
        if !self.process.progress.is_late_for(interval * 2) {
            self.watchdog_fed_at_ms = now.mono;
            self.process.notify.watchdog();
        }
    }

    /// A consumer that sends an item back under a wrong batch id waits for a delivery that never comes. The
    /// first case is logged, all are counted.
    fn log_dropped_tries(&mut self) {
        let dropped = self.shard.engine.counters().tries_dropped;
        if dropped > 0 && !std::mem::replace(&mut self.logged_tries, true) {
            tracing::warn!(
                requests = dropped,
                "a request with x-batch or x-death was dropped as a duplicate: its id is known, and its \
                 x-batch is not the batch in which the last item of that id was sent (another try must carry \
                 that, or another id); further ones are counted"
            );
        }
    }

    /// Logs items dropped at a limit, in one line for all since the last check.
    fn log_dropped(&mut self) {
        let dropped = self.shard.engine.counters().dead[Reason::Full as usize];
        if dropped > self.logged_full {
            tracing::warn!(items = dropped - self.logged_full, "at a limit: dead-lettered (full)");
            self.logged_full = dropped;
        }
    }

    /// Stops taking requests while the disk is nearly full; waiting items still leave.
    fn check_disk_space(&mut self, usage: store::Usage) {
        match self.process.config.store.kind {
            StoreKind::Memory => return,
            // Old data goes gradually. Tables do not shrink, so a limit on their size would not help.
            StoreKind::Postgres => return self.shard.store.reclaim(),
            StoreKind::Disk => {}
        }
        let percent = if self.disk_low { LOW_WATER_BACK_PERCENT } else { LOW_WATER_PERCENT };
        let scarce = usage.free < usage.total / 100 * percent;
        let limit = self.process.config.limits.disk;
        let used = if self.disk_low { usage.used.saturating_mul(10) / 9 } else { usage.used };
        let low = scarce || (limit > 0 && used >= limit);
        if low {
            // Deleted data frees its space once the store is idle.
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

    /// A daemon that cannot publish has no use for the store; another daemon may have one.
    fn look_for_an_heir(&mut self, now: Now) {
        let Some(lease) = self.shard.lease.as_ref().filter(|_| self.stop_at_ms.is_none()) else { return };
        let config = &self.process.config;
        // By then the daemon has tried all addresses, and the first one twice.
        let tries = config.timeouts.connect * (config.egress.endpoints.len() as u32 + 1);
        let limit_ms = (CUT_OFF_LEASES * lease.length_ms()).max(tries.as_millis() as u64);
        if self.shard.links[1].as_ref().is_some_and(LinkStatus::is_up) {
            self.cut_off_at_ms = now.mono;
        } else if now.mono >= self.cut_off_at_ms + limit_ms {
            // If no daemon is on standby now, the attempt is repeated after the same time.
            self.cut_off_at_ms = now.mono;
            self.shard.store.give_away();
        }
    }

    /// Reports the store's state and whether a due item is overlooked; the probes and the watchdog judge by
    /// that (see [`crate::progress`]).
    fn tell_progress(&mut self, now: Now, store_still_ms: Option<u64>) {
        let progress = &self.process.progress;
        progress.told(DaemonPart::Store, store_still_ms);
        progress.tell_waiting(self.shard.engine.sums().0);
        let pause = (progress.stuck_after_ms() / LOOKS).max(1_000);
        let LookOut { looked_at_ms, moves, since_ms } = self.outlook;
        if now.mono < looked_at_ms + pause {
            progress.told(DaemonPart::Schedule, since_ms.map(|since| now.mono.saturating_sub(since)));
            return;
        }
        let count = moves_of(self.shard.engine.counters());
        let link = self.shard.links[1].as_ref();
        let way = WayOut {
            connected: matches!(link, Some(LinkStatus::Up { .. } | LinkStatus::Blocked { .. })),
            blocked: matches!(link, Some(LinkStatus::Blocked { .. })),
            moved: count != moves,
            // Its cost grows with the number of applications, so it is evaluated only where it matters.
            overlooked: count == moves && self.shard.engine.is_overlooked(now),
        };
        let since_ms = way.stands_still().then(|| since_ms.unwrap_or(now.mono));
        progress.told(DaemonPart::Schedule, since_ms.map(|since| now.mono.saturating_sub(since)));
        self.outlook = LookOut { looked_at_ms: now.mono, moves: count, since_ms };
    }
}

/// A number that grows with each batch handed over or settled.
fn moves_of(counters: &Counters) -> u64 {
    let Counters { batches_published, batches_confirmed, returned, nacked, refused, unknown, .. } = counters;
    let settled = batches_confirmed + returned + nacked + refused + unknown + counters.dead_confirmed;
    batches_published + settled
}
