//! A small separate file system that tests fill from outside.

use crate::guard::workdir;
use crate::require::lacks;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A tmpfs, unmounted when dropped.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    filler: PathBuf,
}

impl Disk {
    /// A new one of `mib` MiB; `None`, as in [`lacks`], if nothing can be mounted.
    pub fn mount(mib: u64) -> Option<Disk> {
        Disk::mount_over(mib, &workdir("disk"))
    }

    /// Mounted over a folder, with the folder's content copied into it.
    ///
    /// # Panics
    /// If the content cannot be copied.
    pub fn mount_over(mib: u64, path: &Path) -> Option<Disk> {
        let kept = workdir("kept");
        copy(path, &kept);
        let size = format!("size={mib}m,mode=0700");
        let made =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tidegate-test"]).arg(path).output();
        if !made.as_ref().is_ok_and(|output| output.status.success()) {
            lacks("mount", &format!("cannot make a file system here (this needs root): {made:?}"));
            return None;
        }
        copy(&kept, path);
        Some(Disk { path: path.to_owned(), filler: path.join("filler") })
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file until no space is left. Space freed later is filled by the next call.
    pub fn fill(&self) {
        let mut file =
            File::options().create(true).append(true).open(&self.filler).expect("a file that fills the disk");
        for block in [1 << 20, 4096, 1] {
            let bytes = vec![1; block];
            while file.write_all(&bytes).is_ok() {}
        }
    }

    /// Frees the space again.
    pub fn make_room(&self) {
        fs::remove_file(&self.filler).expect("the file that fills the disk");
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from.join(".")).arg(to).output().expect("cp runs");
    assert!(copied.status.success(), "{copied:?}");
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily, because a hanging daemon may still have files open.
        let _unmounted = Command::new("umount").arg("-l").arg(&self.path).output();
    }
}
