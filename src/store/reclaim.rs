//! Reclaims space on the disk: removes deleted rows from the tables, without waiting for more writes.
//!
//! The storage engine compacts after new tables are added. A full store accepts no items and adds no tables,
//! so rows deleted since would keep their space.

use super::database::{unwritable, Keyspaces};
use super::directory::Directory;
use super::keyspace::KeyspaceId;
use super::{CommitError, ReclaimJob};
use fjall::AbstractTree;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for memtables to be flushed.
const FLUSH_LIMIT: Duration = Duration::from_secs(60);
/// Interval between two checks: the storage engine offers no event to wait for.
const FLUSH_LOOK: Duration = Duration::from_millis(5);
/// Free space that a compaction must leave, in bytes.
const SPARE: u64 = 64 << 20;

/// The part that runs on a separate thread, concurrently with commits, after all memtables were rotated.
pub(crate) fn job(keyspaces: Keyspaces, directory: Arc<Directory>) -> ReclaimJob {
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

fn compact(keyspaces: &Keyspaces, id: KeyspaceId, directory: &Directory) -> Result<(), CommitError> {
    let keyspace = keyspaces.of(id);
    let before = keyspace.disk_space();
    keyspace.major_compact().map_err(|e| unwritable("compacted", directory.path(), &e))?;
    tracing::debug!(keyspace = id.name(), before, after = keyspace.disk_space(), "compacted");
    Ok(())
}
