//! Stores on the disk that a daemon with the memory store would leave behind: nothing would send their items.

use super::keyspace::KeyspaceId;
use super::layout::places_of_stores;
use super::opening::open_present;
use super::queue_rows::{self, OfQueue};
use super::row_reads::Rows;
use super::{directory, OpenError};
use std::io;
use std::path::{Path, PathBuf};

/// A directory in `path`, or `path` itself, with a store on the disk. `None`: there is none that this user
/// may see, or the path is relative. Nothing is made, locked or opened.
pub fn left_behind(path: &Path) -> Option<PathBuf> {
    stores_in(path).into_iter().next()
}

fn stores_in(path: &Path) -> Vec<PathBuf> {
    let real = path.canonicalize().ok().filter(|_| path.is_absolute());
    let is_store =
        |path: &PathBuf| matches!(directory::holds_data(path), Ok(true) | Err(OpenError::Damaged { .. }));
    real.iter().flat_map(|path| places_of_stores(path)).filter(is_store).collect()
}

/// Checks that no items wait in the stores on the disk in `path`. A store that another process has open, or
/// that this user may not open, is no concern of this daemon.
///
/// # Errors
///
/// [`OpenError::HoldsDisk`]: items wait, or the store cannot be read.
pub(crate) fn refuse_left_behind(path: &Path) -> Result<(), OpenError> {
    for path in stores_in(path) {
        let shown = path.display();
        match count_items(&path) {
            Ok(0) => {}
            Ok(items) => {
                tracing::warn!(path = %shown, items, "items wait in a store on the disk");
                return Err(OpenError::HoldsDisk { path });
            }
            Err(error) if is_another_ones(&error) => {
                tracing::info!(path = %shown, %error, "a store on the disk is left to others");
            }
            Err(error) => {
                tracing::warn!(path = %shown, %error, "what waits in a store on the disk is unknown");
                return Err(OpenError::HoldsDisk { path });
            }
        }
    }
    Ok(())
}

/// The items of the store in `path`, by the rows of its queues.
fn count_items(path: &Path) -> Result<u64, OpenError> {
    let present = open_present(path, 0)?;
    let rows = present.keyspaces.read_all(KeyspaceId::Queues, queue_rows::read_of_queue)?;
    let count = |row: &OfQueue| match row {
        OfQueue::Queue(row) => row.count,
        OfQueue::Held(_) => 0,
    };
    Ok(rows.iter().map(count).sum())
}

fn is_another_ones(error: &OpenError) -> bool {
    matches!(error, OpenError::Locked { .. } | OpenError::Absent { .. } | OpenError::Foreign { .. })
        || matches!(error, OpenError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{config, delete, group, key, open_at, put, APP};
    use crate::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::{Duration, Instant};
    use tidegate_config::shard_path;
    use tidegate_types::event::QueueRow;

    /// Why a daemon with the memory store does not start.
    fn refusal(path: &Path) -> Option<OpenError> {
        let config = StoreConfig { kind: StoreKind::Memory, ..config(path) };
        crate::open(&config, 1 << 20, false, 0).err()
    }

    /// The directory that a refusal names.
    fn refused(path: &Path) -> PathBuf {
        // A child that another test starts may have the lock for a moment.
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            match refusal(path) {
                Some(OpenError::HoldsDisk { path }) => return path,
                Some(other) => panic!("{other}"),
                None => assert!(Instant::now() < end, "{} is not refused", path.display()),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn counted(count: u64) -> Op {
        let (queue, low) = (APP.into(), key(1, 1));
        Op::PutQueue(QueueRow { queue, count, low, paused: None, unindexed_until: 0, slowed: None })
    }

    /// Excluded: items that nothing sends any more, since the kind of the store was changed over them; a
    /// start that is refused for a store without items, or for one that another daemon has open.
    #[test]
    fn items_on_the_disk_keep_a_daemon_with_the_memory_store_from_starting() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        let [single, link, shards, broken] = ["single", "link", "shards", "broken"].map(|n| real.join(n));
        let relative = Path::new("relative");
        for path in [&*single, relative] {
            assert!(refusal(path).is_none() && left_behind(path).is_none(), "{}", path.display());
        }
        let mut store = open_at(&single).store;
        store.commit(&[group(1, vec![put(1, 1), counted(1)])]).unwrap();
        assert!(refusal(&single).is_none(), "another daemon has it open");
        store.close().unwrap();
        symlink(&single, &link).unwrap();
        for path in [&single, &link] {
            assert_eq!((refused(path), left_behind(path)), (single.clone(), Some(single.clone())));
        }
        let mut store = open_at(&single).store;
        store.commit(&[group(2, vec![delete(1, 1), counted(0)])]).unwrap();
        store.close().unwrap();
        assert!(refusal(&single).is_none(), "nothing waits");
        assert_eq!(left_behind(&single), Some(single), "what waits is not looked at");

        ShardLayout::claim(&shards, 2).unwrap();
        assert!(refusal(&shards).is_none() && left_behind(&shards).is_none());
        let mut store = open_at(&shard_path(&shards, 1)).store;
        store.commit(&[group(1, vec![put(1, 1), counted(1)])]).unwrap();
        store.close().unwrap();
        assert_eq!(refused(&shards), shards.join("shard-1"));
        fs::create_dir_all(broken.join("db")).unwrap();
        fs::write(broken.join("db/other"), "").unwrap();
        assert_eq!(refused(&broken), broken);
    }
}
