//! The name of this daemon, by which it recognises itself as the owner of a store, and people recognise it.
//!
//! It consists of the machine's name and a random one, which a file in the daemon's directory keeps over
//! restarts. The file contains the time of the machine's boot and its own inode, so that a copy of it is a
//! different daemon.

use super::directory::own_file;
use super::OpenError;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use tidegate_common::clock;
use tidegate_types::Now;

/// Length of a random name and of a claim, in bytes.
pub(crate) const RANDOM: usize = 16;
/// Tolerance of the boot time, as the clocks may compute it differently at different times.
const SAME_BOOT_MS: u64 = 120_000;

/// Held while a file of a name is read, written or removed: the shards of a node have one file, and their
/// threads no lock of its directory.
static NAMES: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());
/// How often a name was given up in this process.
static GIVEN_UP: AtomicU64 = AtomicU64::new(0);

/// Random bytes, for a name or a claim.
pub(crate) fn random() -> Result<[u8; RANDOM], OpenError> {
    let mut bytes = [0; RANDOM];
    getrandom::fill(&mut bytes).map_err(|e| OpenError::Random(e.to_string()))?;
    Ok(bytes)
}

/// The file of the name in this directory.
pub(crate) fn file_in(directory: &Path) -> PathBuf {
    directory.join("NODE")
}

/// The name of a daemon that has no directory, for this process.
pub(crate) fn name_of_process() -> Result<String, OpenError> {
    Ok(on_this_machine(&new_name()?))
}

/// The name of the daemon of this directory, in which this process has a lock. Threads that find no name at
/// the same time get the same one, and it stays the same in this process until it is forgotten: clocks may
/// step, and the machine may get another name.
pub(crate) fn name_in(directory: &Path) -> Result<String, OpenError> {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(name) = names.get(directory) {
        return Ok(name.clone());
    }
    let path = file_in(directory);
    let mut file = own_file(&path)?;
    let text = read(&file, &path)?;
    // A service may have no access to the kernel's own boot id.
    let Now { wall, mono } = clock::now();
    let booted = wall.saturating_sub(mono);
    let inode = file.metadata().map_err(OpenError::io("inspect", &path))?.ino();
    let known: Vec<&str> = text.split_whitespace().collect();
    let is_same = |at: &str, place: &str| {
        let at = at.parse::<u64>().ok().filter(|at| at.abs_diff(booted) <= SAME_BOOT_MS);
        at.is_some() && place.parse() == Ok(inode)
    };
    let name = match known[..] {
        [name, at, place] if is_same(at, place) => name.to_owned(),
        _ => {
            let name = new_name()?;
            let line = format!("{name} {booted} {inode}\n");
            let written = file.set_len(0).and_then(|()| write_at_start(&mut file, line.as_bytes()));
            written.and_then(|()| file.sync_all()).map_err(OpenError::io("write to", &path))?;
            name
        }
    };
    let name = on_this_machine(&name);
    names.insert(directory.to_owned(), name.clone());
    Ok(name)
}

/// How often a name was given up in this process: while it stays the same, so does each name.
pub(crate) fn given_up() -> u64 {
    GIVEN_UP.load(Ordering::Acquire)
}

/// Forgets this name, if it is that of the directory, so that the next one is another.
pub(crate) fn forget(directory: &Path, name: &str) -> Result<(), OpenError> {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if names.get(directory).is_none_or(|known| known != name) {
        return Ok(());
    }
    match fs::remove_file(file_in(directory)) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(OpenError::io("remove", &file_in(directory))(error)),
    }
    names.remove(directory);
    GIVEN_UP.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

/// The text of a file of a name.
fn read(file: &File, path: &Path) -> Result<String, OpenError> {
    let mut text = Vec::new();
    // Bounded, as the file may contain anything and the text is short.
    file.take(256).read_to_end(&mut text).map_err(OpenError::io("read", path))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn new_name() -> Result<String, OpenError> {
    Ok(random()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn on_this_machine(name: &str) -> String {
    format!("{}/{name}", rustix::system::uname().nodename().to_string_lossy())
}

fn write_at_start(file: &mut File, bytes: &[u8]) -> std::io::Result<()> {
    file.write_all_at(bytes, 0)?;
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_keeps_its_name_and_a_copy_has_another() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let name = name_in(dir.path()).unwrap();
        assert_eq!(name_in(dir.path()).unwrap(), name);
        std::fs::copy(file_in(dir.path()), file_in(other.path())).unwrap();
        assert_ne!(name_in(other.path()).unwrap(), name);
        forget(dir.path(), &name_in(other.path()).unwrap()).unwrap();
        assert_eq!(name_in(dir.path()).unwrap(), name, "another name was meant");
        forget(dir.path(), &name).unwrap();
        forget(dir.path(), &name).unwrap();
        assert_ne!(name_in(dir.path()).unwrap(), name, "forgotten");
        let machine = name.split('/').next();
        assert_eq!(name_of_process().unwrap().split('/').next(), machine);
    }

    /// Some of them remove the name that all had before.
    #[test]
    fn threads_that_ask_for_a_name_at_once_have_the_same_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut former = String::new();
        for _ in 0..20 {
            let names: Vec<String> = std::thread::scope(|scope| {
                let ask = || {
                    forget(dir.path(), &former).unwrap();
                    name_in(dir.path()).unwrap()
                };
                let all: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
                all.into_iter().map(|one| one.join().unwrap()).collect()
            });
            assert!(names.iter().all(|name| *name == names[0]), "{names:?}");
            assert_ne!(names[0], former);
            former.clone_from(&names[0]);
        }
    }
}
