//! The store's directory: private, locked for one process, with the number of durable commits beside the
//! data. Deliberately absent: the content of the data.
//!
//! ```text
//! <store.path>/LOCK        held by the running process, its pid inside
//! <store.path>/COMMITTED   number of the last durable commit, overwritten in place
//! <store.path>/ACCEPTED    losses that were accepted, if any: first and last commit, a line each
//! <store.path>/RECOUNT     a loss was accepted, and the queues are not counted anew yet
//! <store.path>/db/         the storage engine's files
//! <store.path>/db.new/     the same while a new store is made
//! ```
//!
//! A directory with a file `SHARDS` contains no store, but one such directory for each shard: see
//! [`super::layout`].

use super::OpenError;
use rustix::fs::OFlags;
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Directories that other users can read, as logged. A shard that waits, and the membership of a node, look
/// at theirs again and again.
static OPEN_TO_OTHERS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// A directory that only this process uses while this value exists.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// The lock belongs to the open file: it ends when the file is closed, also when the process is killed.
    _lock: File,
}

impl Directory {
    /// Makes the directory if it is missing (mode 0700), and locks it.
    ///
    /// # Errors
    ///
    /// [`OpenError::Symlink`], [`OpenError::NotADirectory`], [`OpenError::Sharded`], [`OpenError::Locked`],
    /// [`OpenError::Io`].
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        let path = make(path)?;
        refuse_shards(&path)?;
        Self::enter(path)
    }

    /// Locks an existing directory. It must belong to the user that this process runs as: another user's
    /// daemon could not open files that this process makes in it.
    ///
    /// # Errors
    ///
    /// [`OpenError::Absent`], [`OpenError::Foreign`]; otherwise as [`Directory::open`].
    pub(crate) fn existing(path: &Path) -> Result<Self, OpenError> {
        let path = plain_path(path);
        let Some(found) = inspect(&path)? else { return Err(OpenError::Absent { path }) };
        let user = rustix::process::geteuid().as_raw();
        if found.uid() != user {
            return Err(OpenError::Foreign { path, owner: found.uid(), user });
        }
        refuse_shards(&path)?;
        // The lock is a separate file; it is not made where there is no store.
        if holds_data(&path)? {
            return Self::enter(path);
        }
        if file_exists(&path.join(LOCK))? {
            // Another process may be making its first store here.
            Self::enter(path.clone())?;
        }
        Err(OpenError::Absent { path })
    }

    fn enter(path: PathBuf) -> Result<Self, OpenError> {
        let lock = lock(&path.join(LOCK))?;
        Ok(Directory { path, _lock: lock })
    }

    /// The directory itself.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the storage engine's files.
    pub(crate) fn data(&self) -> PathBuf {
        self.path.join(DATA)
    }

    /// Whether the directory contains a store.
    ///
    /// # Errors
    ///
    /// [`OpenError::Damaged`] if only parts of a store are present; [`OpenError::Io`].
    pub(crate) fn holds_store(&self) -> Result<bool, OpenError> {
        holds_store(&self.data())
    }

    /// The file of accepted losses.
    pub(crate) fn accepted(&self) -> PathBuf {
        self.path.join(ACCEPTED)
    }

    /// Whether a loss of durable commits was ever accepted.
    ///
    /// # Errors
    ///
    /// [`OpenError::Io`].
    pub(crate) fn has_losses(&self) -> Result<bool, OpenError> {
        file_exists(&self.accepted())
    }

    /// The mark of a store whose queues have to be counted anew.
    pub(crate) fn recount(&self) -> PathBuf {
        self.path.join(RECOUNT)
    }

    /// Syncs the directory's entries, and its own entry in its parent.
    ///
    /// # Errors
    ///
    /// [`OpenError::Io`].
    pub(crate) fn sync(&self) -> Result<(), OpenError> {
        sync_entries(&self.path)
    }
}

/// Makes a directory if it is missing (mode 0700), and returns its path without a slash at the end.
///
/// # Errors
///
/// [`OpenError::Symlink`], [`OpenError::NotADirectory`], [`OpenError::Io`].
pub(crate) fn make(path: &Path) -> Result<PathBuf, OpenError> {
    let path = plain_path(path);
    if inspect(&path)?.is_none() {
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(&path);
        made.map_err(OpenError::io("create directory", &path))?;
    }
    Ok(path)
}

/// Whether a store can be made in this directory, which may be missing: it contains no store, and nothing
/// that belonged to a former one.
///
/// # Errors
///
/// As [`Directory::holds_store`].
pub(crate) fn is_free(path: &Path) -> Result<bool, OpenError> {
    let has = |name: &str| file_exists(&path.join(name));
    Ok(!holds_data(path)? && !has(COMMITTED)? && !has(ACCEPTED)?)
}

/// Syncs the entries of a directory, and its own entry in its parent.
///
/// # Errors
///
/// [`OpenError::Io`].
pub(crate) fn sync_entries(path: &Path) -> Result<(), OpenError> {
    let absolute = std::path::absolute(path).map_err(OpenError::io("find", path))?;
    for path in [Some(absolute.as_path()), absolute.parent()].into_iter().flatten() {
        File::open(path).and_then(|dir| dir.sync_all()).map_err(OpenError::io("sync directory", path))?;
    }
    Ok(())
}

/// Whether this directory, which may be missing, contains the storage engine's files.
///
/// # Errors
///
/// As [`Directory::holds_store`].
pub(crate) fn holds_data(path: &Path) -> Result<bool, OpenError> {
    holds_store(&path.join(DATA))
}

/// Subdirectory of the storage engine's files.
const DATA: &str = "db";
/// The lock file of the process that has the store open.
const LOCK: &str = "LOCK";
/// The file of [`Committed`]; every store that was opened has one.
const COMMITTED: &str = "COMMITTED";

/// The file of accepted losses.
const ACCEPTED: &str = "ACCEPTED";

/// The file that marks a store whose queues have to be counted anew.
const RECOUNT: &str = "RECOUNT";

/// The file of a directory that contains one store for each shard, and none itself.
pub(crate) const SHARDS: &str = "SHARDS";

/// Refuses a directory of several shards, where one store is meant.
fn refuse_shards(path: &Path) -> Result<(), OpenError> {
    match file_exists(&path.join(SHARDS))? {
        true => Err(OpenError::Sharded { path: path.to_owned() }),
        false => Ok(()),
    }
}

/// Whether there is a file or directory; a link counts as what it leads to.
///
/// # Errors
///
/// [`OpenError::Io`].
pub(crate) fn file_exists(path: &Path) -> Result<bool, OpenError> {
    path.try_exists().map_err(OpenError::io("inspect", path))
}

/// Whether the storage engine has files in `data`. The engine takes a directory without its `version` file
/// for a new one, whatever else the directory contains. So a directory that has lost this file is not opened.
fn holds_store(data: &Path) -> Result<bool, OpenError> {
    let mark = data.join("version");
    if file_exists(&mark)? {
        return Ok(true);
    }
    match fs::read_dir(data).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(false),
        Ok(false) => Err(OpenError::Damaged {
            place: mark.display().to_string(),
            error: "missing, although the directory contains files of a store".to_owned(),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(OpenError::io("inspect", data)(error)),
    }
}

/// Removes a slash at the end, which would make lstat follow a link.
pub(crate) fn plain_path(path: &Path) -> PathBuf {
    path.components().collect()
}

/// Metadata of the directory, also behind systemd's link; `None`: the path does not exist.
///
/// # Errors
///
/// [`OpenError::Symlink`], [`OpenError::NotADirectory`], [`OpenError::Io`].
pub(crate) fn inspect(path: &Path) -> Result<Option<fs::Metadata>, OpenError> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(OpenError::io("inspect", path)(error)),
    };
    let path = path.to_owned();
    if found.file_type().is_symlink() {
        if found.uid() != 0 || !is_private_link(&path) {
            return Err(OpenError::Symlink { path });
        }
        return fs::metadata(&path).map(Some).map_err(OpenError::io("inspect", &path));
    }
    if !found.is_dir() {
        return Err(OpenError::NotADirectory { path });
    }
    if is_newly_open(&path, found.permissions().mode()) {
        let message = "other users can read the store's directory; set its mode to 0700";
        tracing::warn!(path = %path.display(), "{message}");
    }
    Ok(Some(found))
}

/// Whether other users can read a directory of this mode, and could not when it was last looked at.
fn is_newly_open(path: &Path, mode: u32) -> bool {
    let mut open = OPEN_TO_OTHERS.lock().unwrap_or_else(PoisonError::into_inner);
    if mode & 0o077 != 0 {
        open.insert(path.to_owned())
    } else {
        open.remove(path);
        false
    }
}

/// systemd's `DynamicUser=` links `/var/lib/NAME` to `private/NAME`, as root. No other link is followed: a
/// user who may write the directory above could redirect it.
fn is_private_link(path: &Path) -> bool {
    let name = path.file_name().map(|name| Path::new("private").join(name));
    name.is_some() && fs::read_link(path).ok() == name
}

/// Opens a file of the store: private, never through a link, never truncated.
///
/// # Errors
///
/// [`OpenError::Io`].
pub(crate) fn own_file(path: &Path) -> Result<File, OpenError> {
    own_options().read(true).write(true).create(true).open(path).map_err(OpenError::io("open", path))
}

/// Options for a file of the store: private, never through a link, never truncated.
pub(crate) fn own_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.truncate(false).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    options
}

fn lock(path: &Path) -> Result<File, OpenError> {
    let mut file = own_file(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            // Bounded, as the file may contain anything and a pid is short.
            let pid = (&file).take(32).read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
            return Err(OpenError::Locked { pid, path: path.to_owned() });
        }
        Err(TryLockError::Error(error)) => return Err(OpenError::io("lock", path)(error)),
    }
    file.set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(OpenError::io("write to", path))?;
    Ok(file)
}

const MAGIC: &[u8; 8] = b"tidegate";
const LEN: usize = 28;

/// The number of the last durable commit, in a file separate from the data.
///
/// The storage engine ends the replay of its log at the first part that it cannot read, and takes the rest
/// for the incomplete end of a crash. If that rest had been synced, commits would be lost silently. This
/// number, which is written only after the sync, distinguishes the two cases. The number itself is not
/// synced: after a power cut it may be too old, but never too new.
#[derive(Debug)]
pub(crate) struct Committed {
    file: File,
    identity: u64,
    warned: bool,
}

impl Committed {
    /// Opens or makes the file of this store. Returns it with the number it contains, if any.
    ///
    /// # Errors
    ///
    /// [`OpenError::Io`]; [`OpenError::Damaged`] if it belongs to another store.
    pub(crate) fn open(directory: &Directory, identity: u64) -> Result<(Self, Option<u64>), OpenError> {
        let path = directory.path().join(COMMITTED);
        let file = own_file(&path)?;
        let mut bytes = Vec::with_capacity(LEN);
        (&file).take(LEN as u64).read_to_end(&mut bytes).map_err(OpenError::io("read", &path))?;
        let number = match parse(&bytes) {
            Some((owner, number)) if owner == identity => Some(number),
            Some(_) => {
                return Err(OpenError::Damaged {
                    place: path.display().to_string(),
                    error: "it belongs to another store; were files of two stores mixed?".to_owned(),
                });
            }
            None if bytes.iter().all(|b| *b == 0) => None,
            None => {
                let message = "unreadable; the log's end cannot be checked against it";
                tracing::warn!(path = %path.display(), "{message}");
                None
            }
        };
        Ok((Committed { file, identity, warned: false }, number))
    }

    /// The number in the file, for whichever store; `None`: the file has none, or is unreadable.
    ///
    /// # Errors
    ///
    /// [`OpenError::Io`].
    pub(crate) fn noted(directory: &Directory) -> Result<Option<u64>, OpenError> {
        let path = directory.path().join(COMMITTED);
        match fs::read(&path) {
            Ok(bytes) => Ok(parse(&bytes).map(|(_, number)| number)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(OpenError::io("read", &path)(error)),
        }
    }

    /// Records that commit `number` is durable.
    pub(crate) fn record(&mut self, number: u64) {
        let mut bytes = [MAGIC.as_slice(), &self.identity.to_le_bytes(), &number.to_le_bytes()].concat();
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        // A failed write loses only a check, never an item, so the store goes on.
        if let Err(error) = self.file.write_all_at(&bytes, 0) {
            if !std::mem::replace(&mut self.warned, true) {
                tracing::warn!(%error, "cannot write the number of durable commits to COMMITTED");
            }
        }
    }

    /// Syncs the number itself.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn parse(bytes: &[u8]) -> Option<(u64, u64)> {
    let (fields, crc) = bytes.split_last_chunk::<4>()?;
    let (magic, fields) = fields.split_first_chunk::<8>()?;
    let (identity, number) = fields.split_first_chunk::<8>()?;
    let whole = crc32c::crc32c_append(crc32c::crc32c(magic), fields);
    if magic != MAGIC || whole != u32::from_le_bytes(*crc) {
        return None;
    }
    Some((u64::from_le_bytes(*identity), u64::from_le_bytes(number.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_private_and_locked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new");
        let first = Directory::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        let mut slashed = path.clone().into_os_string();
        slashed.push("/");
        match Directory::open(Path::new(&slashed)) {
            Err(OpenError::Locked { pid, path: named }) => {
                assert_eq!(pid, Some(std::process::id()));
                assert_eq!(named, path.join("LOCK"));
            }
            Ok(_) | Err(_) => panic!("not refused"),
        }
        drop(first);
        Directory::open(&path).unwrap();
    }

    /// Excluded: a line each second, from a node that looks at its directory in each round.
    #[test]
    fn that_others_can_read_a_directory_is_told_when_it_begins() {
        let dir = tempfile::tempdir().unwrap();
        let is_open = || OPEN_TO_OTHERS.lock().unwrap().contains(dir.path());
        let set = |mode| {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            make(dir.path()).unwrap();
        };
        set(0o750);
        assert!(is_open() && !is_newly_open(dir.path(), 0o750), "it is told once");
        set(0o700);
        assert!(!is_open());
        assert!(is_newly_open(dir.path(), 0o750), "it was closed meanwhile");
    }

    #[test]
    fn what_is_not_there_is_not_made_where_it_must_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("none");
        assert!(matches!(Directory::existing(&path), Err(OpenError::Absent { .. })));
        assert!(!path.exists());
        let held = Directory::open(&path).unwrap();
        assert!(matches!(Directory::existing(&path), Err(OpenError::Locked { .. })));
        drop(held);
        assert!(matches!(Directory::existing(&path), Err(OpenError::Absent { .. })), "it holds no store");
        fs::create_dir(path.join(DATA)).unwrap();
        fs::write(path.join(DATA).join("version"), "").unwrap();
        Directory::existing(&path).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
            match Directory::existing(&path) {
                Err(OpenError::Foreign { owner, user, .. }) => assert_eq!((owner, user), (12_345, 0)),
                Ok(_) | Err(_) => panic!("not refused"),
            }
        }
    }

    #[test]
    fn links_and_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("real");
        fs::create_dir(&real).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(matches!(Directory::open(&link), Err(OpenError::Symlink { .. })));
        assert!(matches!(Directory::open(&link.join("")), Err(OpenError::Symlink { .. })));
        // The only exception is systemd's link.
        let private = dir.path().join("private");
        fs::create_dir_all(private.join("state")).unwrap();
        std::os::unix::fs::symlink("private/state", dir.path().join("state")).unwrap();
        assert_eq!(Directory::open(&dir.path().join("state")).is_ok(), rustix::process::geteuid().is_root());
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(matches!(Directory::open(&file), Err(OpenError::NotADirectory { .. })));
        // The lock file is not followed either.
        std::os::unix::fs::symlink(&file, real.join("LOCK")).unwrap();
        assert!(matches!(Directory::open(&real), Err(OpenError::Io { .. })));
        assert_eq!(fs::read(&file).unwrap(), b"x");
    }

    #[test]
    fn the_committed_number_is_kept_per_store() {
        let dir = tempfile::tempdir().unwrap();
        let dir = Directory::open(dir.path()).unwrap();
        let (mut committed, none) = Committed::open(&dir, 7).unwrap();
        assert_eq!(none, None);
        committed.record(41);
        committed.record(42);
        assert_eq!(Committed::open(&dir, 7).unwrap().1, Some(42));
        assert!(matches!(Committed::open(&dir, 8), Err(OpenError::Damaged { .. })));
        fs::write(dir.path().join("COMMITTED"), [0; LEN]).unwrap();
        assert_eq!(Committed::open(&dir, 7).unwrap().1, None);
    }
}
