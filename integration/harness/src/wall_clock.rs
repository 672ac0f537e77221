//! A separate wall clock for a daemon, by libfaketime. The monotonic clock stays that of the machine.

use crate::daemon::Daemon;
use crate::require::lacks;
use std::fs;
use std::path::{Path, PathBuf};

/// A clock that a test can step.
#[derive(Debug)]
pub struct WallClock {
    file: PathBuf,
}

impl WallClock {
    /// A clock for this daemon from its next start on, equal to the machine's until it is set; its file is in
    /// this directory. `None`, which is reported, without the library.
    pub fn of(daemon: &mut Daemon, dir: &Path) -> Option<WallClock> {
        let clock = WallClock { file: dir.join("clock") };
        clock.set(0);
        fake(daemon, "FAKETIME_TIMESTAMP_FILE", &clock.file.to_string_lossy())?;
        // While a thread reads the file, others see the machine's clock; so the file is not read at each
        // call.
        daemon.environment("FAKETIME_CACHE_DURATION", Some("1"));
        Some(clock)
    }

    /// From its next start on, the daemon's clock is ahead by this time (ms) and never steps. `None`, which
    /// is reported, without the library.
    pub fn ahead(daemon: &mut Daemon, ahead_ms: i64) -> Option<()> {
        fake(daemon, "FAKETIME", &offset(ahead_ms))
    }

    /// A second from now the daemon's clock is this far ahead of the machine's, ms. Written to a new file and
    /// renamed.
    ///
    /// # Panics
    /// If the file cannot be written.
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

/// The path of libfaketime: by architecture on Debian, without elsewhere.
fn library() -> Option<PathBuf> {
    let below = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let homes = below.chain([PathBuf::from("/usr/lib"), PathBuf::from("/usr/lib64")]);
    homes.map(|home| home.join("faketime/libfaketime.so.1")).find(|path| path.exists())
}
