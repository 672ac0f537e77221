//! A wall clock of a daemon's own, by libfaketime. The monotonic clock is the machine's.

use crate::daemon::Daemon;
use crate::require::lacks;
use std::fs;
use std::path::{Path, PathBuf};

/// A clock that steps.
#[derive(Debug)]
pub struct WallClock {
    file: PathBuf,
}

impl WallClock {
    /// For this daemon, at its next start, as the machine's until it is set; kept in this directory. `None` (and a line
    /// that says so) without the library.
    pub fn of(daemon: &mut Daemon, dir: &Path) -> Option<WallClock> {
        let clock = WallClock { file: dir.join("clock") };
        clock.set(0);
        fake(daemon, "FAKETIME_TIMESTAMP_FILE", &clock.file.to_string_lossy())?;
        // While one thread reads the file the others see the machine's clock: so not at each look.
        daemon.environment("FAKETIME_CACHE_DURATION", Some("1"));
        Some(clock)
    }

    /// The daemon's clock is so far ahead of the machine's from its next start on, and never steps, ms. `None` (and a
    /// line that says so) without the library.
    pub fn ahead(daemon: &mut Daemon, ahead_ms: i64) -> Option<()> {
        fake(daemon, "FAKETIME", &offset(ahead_ms))
    }

    /// A second from now it is so far ahead of the machine's, ms. Written aside and renamed.
    ///
    /// # Panics
    /// The file cannot be written.
    pub fn set(&self, ahead_ms: i64) {
        let aside = self.file.with_extension("new");
        fs::write(&aside, format!("{}\n", offset(ahead_ms))).expect("the clock's file");
        fs::rename(&aside, &self.file).expect("the clock's file");
    }
}

fn offset(ahead_ms: i64) -> String {
    let sign = if ahead_ms < 0 { '-' } else { '+' };
    format!("{sign}{}.{:03}", ahead_ms.unsigned_abs() / 1_000, ahead_ms.unsigned_abs() % 1_000)
}

fn fake(daemon: &mut Daemon, name: &str, value: &str) -> Option<()> {
    let Some(library) = library() else {
        lacks("faketime", "is not installed");
        return None;
    };
    let monotonic = [("FAKETIME_DONT_FAKE_MONOTONIC", "1"), ("DONT_FAKE_MONOTONIC", "1")];
    for (name, value) in
        [("LD_PRELOAD", &*library.to_string_lossy()), (name, value)].into_iter().chain(monotonic)
    {
        daemon.environment(name, Some(value));
    }
    Some(())
}

/// Where libfaketime lies: by architecture on Debian, plainly elsewhere.
fn library() -> Option<PathBuf> {
    let below = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let homes = below.chain([PathBuf::from("/usr/lib"), PathBuf::from("/usr/lib64")]);
    homes.map(|home| home.join("faketime/libfaketime.so.1")).find(|path| path.exists())
}
