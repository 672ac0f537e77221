//! Reclaims space on the disk: removes deleted rows from the tables, without waiting for more writes.
//!
//! The storage engine compacts after new tables are added. A full store accepts no items and adds no tables,
//! so rows deleted since would keep their space.
//!
//! A whole keyspace is compacted at once, and until that ends the storage engine makes no other compaction:
//! two of its three workers wait, and the third one flushes. So a large keyspace waits until what is written
//! meanwhile fits into the first level, as otherwise commits would wait, and fail in the end. A burst that
//! begins during the compaction is not foreseen.

use super::database::{unwritable, Keyspaces};
use super::directory::Directory;
use super::keyspace::KeyspaceId;
use super::{CommitError, ReclaimJob};
use fjall::AbstractTree;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for memtables to be flushed.
const FLUSH_LIMIT: Duration = Duration::from_secs(60);
/// Interval between two checks: the storage engine offers no event to wait for.
const FLUSH_LOOK: Duration = Duration::from_millis(5);
/// Free space that a compaction must leave, in bytes.
const SPARE: u64 = 64 << 20;
/// Tables of this size are compacted whatever is written meanwhile, in bytes: that takes seconds.
const AT_ONCE: u64 = 512 << 20;
/// Bytes of tables that a slow disk compacts in a second.
const SLOW_DISK: u64 = 32 << 20;
/// The time over which writes are measured.
const MEASURED: Duration = Duration::from_secs(2);
/// How often all memtables may be filled during a compaction. Each time makes at most one table for a
/// keyspace, and commits wait from 20 tables of the first level on.
const FILLED: u64 = 8;

/// The part that runs on a separate thread, concurrently with commits, after all memtables were rotated.
/// `written`: bytes that were written to memtables so far; `memtables`: as in `DiskBudget`.
pub(crate) fn job(
    keyspaces: Keyspaces,
    directory: Arc<Directory>,
    written: Arc<AtomicU64>,
    memtables: u64,
) -> ReclaimJob {
    Box::new(move || {
        let begun = Instant::now();
        // All before the first compaction: it may drop the newest rows, and without them no log goes.
        for id in KeyspaceId::ALL {
            while keyspaces.of(id).sealed_memtable_count() > 0 && begun.elapsed() < FLUSH_LIMIT {
                std::thread::sleep(FLUSH_LOOK);
            }
        }
        for id in KeyspaceId::ALL {
            let Some(kept) = kept_after(&keyspaces, id) else { continue };
            let size = keyspaces.of(id).disk_space();
            if size > AT_ONCE && !fits_meanwhile(size, each_second(&written), memtables) {
                tracing::debug!(keyspace = id.name(), size, "too much is written to compact");
                continue;
            }
            let free =
                rustix::fs::statvfs(directory.path()).map_or(0, |fs| fs.f_bavail.saturating_mul(fs.f_frsize));
            if free < kept.saturating_add(SPARE) {
                tracing::debug!(keyspace = id.name(), kept, free, "no room to compact");
                continue;
            }
            compact(&keyspaces, id, &directory)?;
        }
        Ok(())
    })
}

/// Bytes that a compaction would leave, approximate; `None`: it would remove less than half of the rows,
/// which is not worth the writes.
fn kept_after(keyspaces: &Keyspaces, id: KeyspaceId) -> Option<u64> {
    let tree = &keyspaces.of(id).tree;
    // Each tombstone is a row itself, and removes one more.
    let (all, gone) = (tree.approximate_len() as u64, tree.tombstone_count().saturating_mul(2));
    if gone == 0 || gone.saturating_mul(2) < all {
        return None;
    }
    let kept = all.saturating_sub(gone);
    Some(tree.disk_space() / all.max(1) * kept)
}

/// Bytes that are written in a second at present.
fn each_second(written: &AtomicU64) -> u64 {
    let before = written.load(Ordering::Relaxed);
    std::thread::sleep(MEASURED);
    written.load(Ordering::Relaxed).saturating_sub(before) / MEASURED.as_secs()
}

/// Whether the first level has room for what is written while so many bytes of tables are compacted.
fn fits_meanwhile(size: u64, each_second: u64, memtables: u64) -> bool {
    (size / SLOW_DISK).saturating_mul(each_second) <= memtables.saturating_mul(FILLED)
}

fn compact(keyspaces: &Keyspaces, id: KeyspaceId, directory: &Directory) -> Result<(), CommitError> {
    let keyspace = keyspaces.of(id);
    let before = keyspace.disk_space();
    keyspace.major_compact().map_err(|e| unwritable("compacted", directory.path(), &e))?;
    tracing::debug!(keyspace = id.name(), before, after = keyspace.disk_space(), "compacted");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Excluded: a compaction of minutes under a load that fills the first level in seconds; an idle store
    /// whose deleted rows keep their space because it is large.
    #[test]
    fn a_large_keyspace_is_compacted_when_little_is_written() {
        const MEMTABLES: u64 = 24 << 20;
        for (size, each_second, fits) in [
            (100 << 30, 0, true),
            (10 << 30, 600_000, true),
            (10 << 30, 4 << 20, false),
            (AT_ONCE + 1, 4 << 20, true),
            (u64::MAX, u64::MAX, false),
        ] {
            assert_eq!(fits_meanwhile(size, each_second, MEMTABLES), fits, "{size} {each_second}");
        }
    }
}
