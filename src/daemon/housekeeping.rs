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
use tidegate_store::Usage;
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

/// Whether the disk has room for further requests. Each cause ends by its own measure: one that has passed is
/// not held by a figure that only the other one would have made wrong.
#[derive(Clone, Copy, Debug, Default)]
struct DiskRoom {
    /// Free space fell below [`LOW_WATER_PERCENT`] and has not been back at [`LOW_WATER_BACK_PERCENT`].
    scarce: bool,
    /// The store reached `limits.disk` and has not been below nine tenths of it.
    full: bool,
}

impl DiskRoom {
    /// Takes a new measurement; `limit` is `limits.disk` in bytes, 0: none.
    fn look(&mut self, usage: Usage, limit: u64) {
        let percent = if self.scarce { LOW_WATER_BACK_PERCENT } else { LOW_WATER_PERCENT };
        self.scarce = usage.free < usage.total / 100 * percent;
        let used = if self.full { usage.used.saturating_mul(10) / 9 } else { usage.used };
        self.full = limit > 0 && used >= limit;
    }

    /// No requests are to be taken.
    fn is_low(self) -> bool {
        self.scarce || self.full
    }
}

/// What the housekeeping remembers from one round to the next.
#[derive(Debug)]
pub(super) struct Housekeeping {
    done_at_ms: u64,
    disk: DiskRoom,
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
            disk: DiskRoom::default(),
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
        lasting.reports.send(ShardReport::Status(status_line(shard, self.disk.is_low())));
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
    fn check_disk_space(&mut self, shard: &mut Shard, lasting: &Lasting, usage: Usage) {
        let (limit, is_database) = match lasting.config.store.kind {
            StoreKind::Memory => return,
            // Tables do not shrink, so a limit on their size would not help.
            StoreKind::Postgres => (0, true),
            StoreKind::Disk => (lasting.config.limits.disk, false),
        };
        let was_low = self.disk.is_low();
        self.disk.look(usage, limit);
        let low = self.disk.is_low();
        if low || is_database {
            // Deleted data frees its space once the store is idle; that of a database goes gradually.
            shard.store.reclaim();
        }
        if low != was_low {
            if low && is_database {
                tracing::warn!("the database has no room for what was taken last: no requests are taken");
            } else if low {
                tracing::warn!(
                    path = %lasting.config.store.path.display(),
                    free = usage.free,
                    used = usage.used,
                    "the disk is nearly full or limits.disk is reached: no requests are taken"
                );
            } else {
                tracing::info!("there is room again: requests are taken");
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk of 1,000 bytes and a limit of 900. Each line: the bytes that are free and those of the store;
    /// then whether requests are taken.
    /// Excluded: intake that one cause stopped and the other's measure keeps closed; a cause that ends where
    /// it began; a limit of 0.
    /// Judges promise 7.
    #[test]
    fn each_shortage_of_the_disk_ends_by_its_own_measure() {
        let mut room = DiskRoom::default();
        for (free, used, taken) in [
            (100, 850, true),
            (49, 850, false),
            (55, 850, false),
            (60, 850, true),
            (60, 900, false),
            (60, 850, false),
            (55, 809, true),
            (49, 900, false),
            (60, 850, false),
            (60, 800, true),
        ] {
            room.look(Usage { used, free, total: 1_000 }, 900);
            assert_eq!(!room.is_low(), taken, "{free} free, {used} used");
        }
        room.look(Usage { used: u64::MAX, free: 60, total: 1_000 }, 0);
        assert!(!room.is_low(), "no limit");
    }
}
