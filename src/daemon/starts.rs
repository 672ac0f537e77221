//! Counts starts that were not followed by a minute of life, in the state directory: a message that kills the
//! process comes back at once and would kill it again, so after several quick deaths the consumer begins with
//! one delivery at a time, and the queue's delivery limit takes the culprit away.

use std::fs;
use std::path::{Path, PathBuf};

/// Minimum uptime after which an end is not put down to the first messages, ms.
pub(super) const LONG_LIFE_MS: u64 = 60_000;

/// Quick deaths in a row after which caution pays.
const QUICK_DEATHS: u32 = 3;

#[derive(Debug)]
pub(super) struct Starts {
    path: Option<PathBuf>,
    settled: bool,
}

impl Starts {
    /// Notes this start. Returns whether it follows several quick deaths. `None`: no directory, nothing to
    /// count.
    pub(super) fn note(directory: Option<&Path>) -> (Starts, bool) {
        let Some(path) = directory.map(|dir| dir.join("STARTS")) else {
            return (Starts { path: None, settled: true }, false);
        };
        let before: u32 =
            fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let starts = Starts { path: Some(path), settled: false };
        starts.write(before.saturating_add(1));
        (starts, before >= QUICK_DEATHS)
    }

    /// This process has lived long enough, or ends as it should.
    pub(super) fn settle(&mut self) {
        if !std::mem::replace(&mut self.settled, true) {
            self.write(0);
        }
    }

    fn write(&self, count: u32) {
        let Some(path) = &self.path else { return };
        if let Err(error) = fs::write(path, format!("{count}\n")) {
            tracing::warn!(path = %path.display(), %error, "cannot note this start");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fourth_start_after_three_quick_deaths_is_cautious() {
        let dir = tempfile::tempdir().unwrap();
        let start = || Starts::note(Some(dir.path()));
        assert_eq!([start().1, start().1, start().1, start().1], [false, false, false, true]);
        start().0.settle();
        assert!(!start().1);
        assert!(!Starts::note(None).1);
    }
}
