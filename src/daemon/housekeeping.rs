//! The loop's work of about once a second: free space, a check that items leave, and the line of status,
//! which also shows the node that the loop turns.

use super::lasting::Lasting;
use super::reports::ShardReport;
use super::shard::Shard;
use super::status::status_line;
use tidegate_amqp::LinkStatus;
use tidegate_common::clock;
use tidegate_common::progress::{DaemonPart, WayOut};
use tidegate_config::StoreKind;
use tidegate_types::event::Input;
use tidegate_types::snapshot::Counters;
use tidegate_types::{Now, Reason};

/// Checks of the publishing side within `timeouts.stuck_after`.
const LOOKS: u64 = 4;

/// Result of the last check of the publishing side.
#[derive(Clone, Copy, Debug, Default)]
struct LookOut {
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

/// What the housekeeping remembers from one round to the next.
#[derive(Debug)]
pub(super) struct Housekeeping {
    done_at_ms: u64,
    /// Free space is below the low-water mark.
    disk_low: bool,
    /// Number of items dropped at a limit, as last logged.
    logged_full: u64,
    /// The log already names a try that was dropped as a duplicate.
    logged_tries: bool,
    /// The last check of the publishing side.
    outlook: LookOut,
    /// When a connection for publishing was last up, or the last attempt to leave the store to another
    /// daemon, monotonic ms.
    cut_off_at_ms: u64,
}

impl Housekeeping {
    /// For a life that begins now, with these totals of the lives before it.
    pub(super) fn new(now: Now, totals: &Counters) -> Self {
        Housekeeping {
            done_at_ms: 0,
            disk_low: false,
            logged_full: totals.dead[Reason::Full as usize],
            logged_tries: totals.tries_dropped > 0,
            outlook: LookOut::default(),
            cut_off_at_ms: now.mono,
        }
    }

    /// Once a second: free space, progress, status. Whether it was time for it.
    pub(super) fn run(&mut self, shard: &mut Shard, lasting: &Lasting, is_stopping: bool) -> bool {
        let now = clock::now();
        if now.mono < self.done_at_ms + 1_000 {
            return false;
        }
        self.done_at_ms = now.mono;
        self.log_dropped(shard);
        self.log_dropped_tries(shard);
        let stats = shard.store.stats();
        self.tell_progress(shard, lasting, now, stats.still_ms);
        if !is_stopping {
            self.look_for_an_heir(shard, lasting, now);
        }
        if let Some(usage) = stats.usage {
            self.check_disk_space(shard, lasting, usage);
        }
        lasting.reports.send(ShardReport::Status(status_line(shard, self.disk_low)));
        true
    }

    /// A consumer that sends an item back under a wrong batch id waits for a delivery that never comes. The
    /// first case is logged, all are counted.
    fn log_dropped_tries(&mut self, shard: &Shard) {
        let dropped = shard.engine.counters().tries_dropped;
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
    fn log_dropped(&mut self, shard: &Shard) {
        let dropped = shard.engine.counters().dead[Reason::Full as usize];
        if dropped > self.logged_full {
            tracing::warn!(items = dropped - self.logged_full, "at a limit: dead-lettered (full)");
            self.logged_full = dropped;
        }
    }

    /// Stops taking requests while the disk is nearly full; waiting items still leave.
    fn check_disk_space(&mut self, shard: &mut Shard, lasting: &Lasting, usage: tidegate_store::Usage) {
        match lasting.config.store.kind {
            StoreKind::Memory => return,
            // Old data goes gradually. Tables do not shrink, so a limit on their size would not help.
            StoreKind::Postgres => return shard.store.reclaim(),
            StoreKind::Disk => {}
        }
        let percent = if self.disk_low { LOW_WATER_BACK_PERCENT } else { LOW_WATER_PERCENT };
        let scarce = usage.free < usage.total / 100 * percent;
        let limit = lasting.config.limits.disk;
        let used = if self.disk_low { usage.used.saturating_mul(10) / 9 } else { usage.used };
        let low = scarce || (limit > 0 && used >= limit);
        if low {
            // Deleted data frees its space once the store is idle.
            shard.store.reclaim();
        }
        if low != self.disk_low {
            self.disk_low = low;
            if low {
                tracing::warn!(
                    path = %lasting.config.store.path.display(),
                    free = usage.free,
                    used = usage.used,
                    "the disk is nearly full or limits.disk is reached: no requests are taken"
                );
            } else {
                tracing::info!("there is room on the disk again: requests are taken");
            }
            shard.feed(Input::StoreFull(low));
        }
    }

    /// A daemon that cannot publish has no use for the store; another daemon may have one.
    fn look_for_an_heir(&mut self, shard: &Shard, lasting: &Lasting, now: Now) {
        let Some(lease) = shard.lease.as_ref() else { return };
        let config = &lasting.config;
        // By then the daemon has tried all addresses, and the first one twice.
        let tries = config.timeouts.connect * (config.egress.endpoints.len() as u32 + 1);
        let limit_ms = (CUT_OFF_LEASES * lease.length_ms()).max(tries.as_millis() as u64);
        if shard.links[1].as_ref().is_some_and(LinkStatus::is_up) {
            self.cut_off_at_ms = now.mono;
        } else if now.mono >= self.cut_off_at_ms + limit_ms {
            // If no daemon is on standby now, the attempt is repeated after the same time.
            self.cut_off_at_ms = now.mono;
            shard.store.give_away();
        }
    }

    /// Reports the store's state and whether a due item is overlooked; the probes and the watchdog judge by
    /// that (see [`tidegate_common::progress`]).
    fn tell_progress(&mut self, shard: &Shard, lasting: &Lasting, now: Now, still_ms: Option<u64>) {
        let progress = &lasting.health.progress;
        progress.told(DaemonPart::Store, still_ms);
        progress.tell_waiting(shard.engine.sums().0);
        let pause = (progress.stuck_after_ms() / LOOKS).max(1_000);
        let LookOut { looked_at_ms, moves, since_ms } = self.outlook;
        if now.mono < looked_at_ms + pause {
            progress.told(DaemonPart::Schedule, since_ms.map(|since| now.mono.saturating_sub(since)));
            return;
        }
        let count = moves_of(shard.engine.counters());
        let link = shard.links[1].as_ref();
        let way = WayOut {
            connected: matches!(link, Some(LinkStatus::Up { .. } | LinkStatus::Blocked { .. })),
            blocked: matches!(link, Some(LinkStatus::Blocked { .. })),
            moved: count != moves,
            // Its cost grows with the number of applications, so it is evaluated only where it matters.
            overlooked: count == moves && shard.engine.is_overlooked(now),
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
