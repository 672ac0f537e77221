//! What a shard keeps on this machine: a locked directory, and the name of its node.
//!
//! ```text
//! <store.path>/NODE           which node this is, see [`crate::node`]
//! <store.path>/LOCK           of the only shard
//! <store.path>/shard-0/LOCK   of the first shard of several; and so on
//! ```
//!
//! All shards of a node have one name. A process claims a shard's store only while it has the shard's lock,
//! so two processes with the same directory, and so the same name, never claim the same one.

use crate::directory::{self, Directory};
use crate::layout::refuse_disk_store;
use crate::{node, OpenError, ShardPlace};
use std::path::{Path, PathBuf};

/// See the module.
pub(super) struct ShardHome {
    place: ShardPlace,
    /// Directory with the name.
    node: PathBuf,
    /// Locked while this value exists.
    _directory: Directory,
}

impl ShardHome {
    /// Makes the shard's directory `path` if it is missing, and locks it. With several shards, the node's
    /// directory is the one above.
    ///
    /// # Errors
    ///
    /// [`OpenError::HoldsDisk`], [`OpenError::Symlink`], [`OpenError::NotADirectory`], [`OpenError::Locked`],
    /// [`OpenError::Io`].
    pub(super) fn open(path: &Path, place: ShardPlace) -> Result<Self, OpenError> {
        let above = path.parent().filter(|_| !place.is_only());
        let node = above.unwrap_or(path);
        refuse_disk_store(node)?;
        if let Some(above) = above {
            directory::make(above)?;
        }
        Ok(ShardHome { place, node: node.to_owned(), _directory: Directory::open(path)? })
    }

    /// Which of how many shards this is.
    pub(super) fn place(&self) -> ShardPlace {
        self.place
    }

    /// The present name of the node.
    ///
    /// # Errors
    ///
    /// [`OpenError::Io`], [`OpenError::Random`].
    pub(super) fn name(&self) -> Result<String, OpenError> {
        node::name_in(&self.node)
    }

    /// Gives this name up. If the node has another one already, that stays.
    ///
    /// # Errors
    ///
    /// [`OpenError::Io`].
    pub(super) fn forget(&self, name: &str) -> Result<(), OpenError> {
        node::forget(&self.node, name)
    }
}
