//! Room on the disk given back: what was deleted goes from the tables, without waiting for more to be
//! written.
//!
//! The storage engine compacts when tables have been added. In a store that takes nothing, because it is
//! full, none are, and what has been deleted since would stay where it is.

use super::database::{unwritable, Keyspaces};
use super::directory::Directory;
use super::keyspace::KeyspaceId;
use super::{CommitError, ReclaimJob};
use fjall::AbstractTree;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for what is on its way from memory to tables.
const FLUSH_LIMIT: Duration = Duration::from_secs(60);
/// The storage engine offers nothing that could be waited for instead.
const FLUSH_LOOK: Duration = Duration::from_millis(5);
/// Free space that is left untouched, bytes.
const SPARE: u64 = 64 << 20;

/// The part that runs beside commits, on a thread of its own, once what was in memory is on its way to
/// tables.
pub(super) fn job(keyspaces: Keyspaces, directory: Arc<Directory>) -> ReclaimJob {
    Box::new(move || {
        let begun = Instant::now();
        for id in KeyspaceId::ALL {
            let keyspace = keyspaces.of(id);
            while keyspace.sealed_memtable_count() > 0 && begun.elapsed() < FLUSH_LIMIT {
                std::thread::sleep(FLUSH_LOOK);
            }
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

/// Bytes that a compaction would leave, about; `None`: less than a half would go, which is not worth the
/// writing.
fn kept_after(keyspaces: &Keyspaces, id: KeyspaceId) -> Option<u64> {
    let tree = &keyspaces.of(id).tree;
    // Each deletion is a row itself, and takes one more with it.
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
