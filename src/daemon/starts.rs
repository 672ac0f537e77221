//! Counts, in the state directory, the starts that were not followed by a minute of uptime. A message that
//! kills the process comes back at once and would kill it again. So after several quick deaths the consumer
//! begins with one delivery at a time, and the queue's delivery limit removes the culprit
//! ([`tidegate_amqp::quarantine`]). The file also contains how many deliveries at a time a process in that
//! state takes, so that the next one knows over how many it died.

use std::fs;
use std::path::{Path, PathBuf};
use tidegate_amqp::quarantine::most_after;
use tidegate_common::clock;
use tidegate_config::{StoreConfig, StoreKind};

/// Minimum uptime after which the first messages do not count as the cause of an end, ms.
const LONG_LIFE_MS: u64 = 60_000;

/// Quick deaths in a row after which the quarantine begins.
const QUICK_DEATHS: u32 = 3;

#[derive(Debug)]
pub(super) struct Starts {
    path: Option<PathBuf>,
    count: u32,
    settled: bool,
    /// When the start was recorded, monotonic ms.
    noted_ms: u64,
}

impl Starts {
    /// Records this start. After several quick deaths, returns how many deliveries it may take at a time.
    /// Without a directory, nothing is counted.
    pub(super) fn note(directory: Option<&Path>) -> (Starts, Option<u16>) {
        let Some(path) = directory.map(|dir| dir.join("STARTS")) else {
            return (Starts { path: None, count: 0, settled: true, noted_ms: 0 }, None);
        };
        let text = fs::read_to_string(&path).unwrap_or_default();
        let mut numbers = text.split_whitespace();
        let before: u32 = numbers.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let width: Option<u16> = numbers.next().and_then(|word| word.parse().ok());
        let most = (before >= QUICK_DEATHS).then(|| most_after(width));
        let noted_ms = clock::now().mono;
        let starts = Starts { path: Some(path), count: before.saturating_add(1), settled: false, noted_ms };
        starts.write(most.map(|_| 1));
        (starts, most)
    }

    /// Records a start over this store: see [`Starts::note`].
    pub(super) fn noted(store: &StoreConfig) -> (Starts, Option<u16>) {
        let (starts, quarantine) = Starts::note((store.kind != StoreKind::Memory).then_some(&store.path));
        if let Some(most) = quarantine {
            tracing::warn!(
                most,
                "several quick deaths in a row: redelivered requests are taken one at a time at first, then \
                 more with each that passes"
            );
        }
        (starts, quarantine)
    }

    /// Records how many deliveries at a time the process takes now. `None`: all requests handed out earlier
    /// have passed, and a death of this process will count as the first.
    pub(super) fn quarantine(&mut self, width: Option<u16>) {
        if self.settled {
            return;
        }
        if width.is_none() {
            self.count = 1;
        }
        self.write(width);
    }

    /// Resets the count once the uptime rules out the first messages as the cause of an end.
    pub(super) fn look(&mut self, now_ms: u64) {
        if now_ms > self.noted_ms + LONG_LIFE_MS {
            self.settle();
        }
    }

    /// The process has run long enough, or ends as it should: resets the count.
    pub(super) fn settle(&mut self) {
        if !std::mem::replace(&mut self.settled, true) {
            self.count = 0;
            self.write(None);
        }
    }

    fn write(&self, width: Option<u16>) {
        let Some(path) = &self.path else { return };
        let width = width.map_or(String::new(), |width| format!(" {width}"));
        if let Err(error) = fs::write(path, format!("{}{width}\n", self.count)) {
            tracing::warn!(path = %path.display(), %error, "cannot record this start");
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
        assert_eq!([start().1, start().1, start().1, start().1], [None, None, None, Some(u16::MAX)]);
        start().0.settle();
        assert_eq!(start().1, None);
        assert_eq!(Starts::note(None).1, None);
    }

    #[test]
    fn whoever_follows_a_death_in_quarantine_takes_fewer_and_whoever_got_through_ends_it() {
        let dir = tempfile::tempdir().unwrap();
        let start = || Starts::note(Some(dir.path()));
        (0..3).for_each(|_| drop(start()));
        let (mut starts, most) = start();
        assert_eq!(most, Some(u16::MAX));
        starts.quarantine(Some(64));
        let (mut starts, most) = start();
        assert_eq!(most, Some(8));
        starts.quarantine(Some(2));
        assert_eq!((start().1, start().1), (Some(1), Some(1)));
        start().0.quarantine(None);
        assert_eq!([start().1, start().1, start().1], [None, None, Some(u16::MAX)]);
    }
}
