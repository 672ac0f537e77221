//! Two threads that wait for no other part: one logs which part is stuck, the other ends a process whose stop
//! does not complete.

use super::EXIT_FORCED;
use crate::admin::NodeHealth;
use crate::logging;
use signal_hook::low_level;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};
use tidegate_common::progress::{DaemonPart, ProgressMarks};
use tracing::Span;

/// Interval between two checks of the parts.
const LOOK: Duration = Duration::from_secs(1);
/// Time after `timeouts.drain` until an incomplete stop is aborted. With the default of 20 s the sum is below
/// the 30 s that Kubernetes allows.
pub(super) const GRACE: Duration = Duration::from_secs(8);
/// Time limit for the last line of the log, whose reader may have stopped reading.
const LAST_LINE_WITHIN: Duration = Duration::from_secs(2);
/// These threads do little.
const STACK: usize = 512 << 10;

/// Logs which part becomes stuck and which moves again. Ends when dropped.
#[derive(Debug)]
pub(super) struct PartWatch(#[expect(dead_code, reason = "its drop is heard")] Sender<()>);

impl PartWatch {
    /// # Errors
    /// If the system cannot start a thread.
    pub(super) fn start(name: &str, progress: Arc<ProgressMarks>) -> std::io::Result<PartWatch> {
        let (sender, ended) = channel();
        small_thread(name, move || watch(&progress, &ended))?;
        Ok(PartWatch(sender))
    }
}

fn watch(progress: &ProgressMarks, ended: &Receiver<()>) {
    let mut lines = StuckLines::default();
    while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        progress.look();
        let stuck = progress.verdict().stuck;
        if progress.is_over() {
            return;
        }
        for line in lines.of(&stuck) {
            let stuck_after_ms = progress.stuck_after_ms();
            match line {
                StuckLine::Begins(part, still_ms) => tracing::error!(
                    part = part.as_str(),
                    still_ms,
                    stuck_after_ms,
                    "stuck: this part has work and makes no progress; the daemon is not ready, and not live \
                     after as long again"
                ),
                StuckLine::Ends(part) => tracing::info!(part = part.as_str(), "not stuck any more"),
            }
        }
    }
}

/// A line to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StuckLine {
    Begins(DaemonPart, u64),
    Ends(DaemonPart),
}

/// The parts that were logged as stuck. A part is logged at its second check in a row: after the whole
/// process was frozen, the first check finds every part late.
#[derive(Debug, Default)]
struct StuckLines {
    seen: Vec<DaemonPart>,
    said: Vec<DaemonPart>,
}

impl StuckLines {
    fn of(&mut self, stuck: &[(DaemonPart, u64)]) -> Vec<StuckLine> {
        let mut lines = Vec::new();
        self.said.retain(|part| {
            let goes_on = stuck.iter().any(|(stuck, _)| stuck == part);
            if !goes_on {
                lines.push(StuckLine::Ends(*part));
            }
            goes_on
        });
        for (part, still_ms) in stuck {
            if self.seen.contains(part) && !self.said.contains(part) {
                self.said.push(*part);
                lines.push(StuckLine::Begins(*part, *still_ms));
            }
        }
        self.seen = stuck.iter().map(|(part, _)| *part).collect();
        lines
    }
}

/// Ends a process by force if its stop does not complete. That is safe at any moment: correctness never
/// depends on a graceful stop.
///
/// The thread waits from the beginning, because the system may be unable to start one later.
#[derive(Clone, Debug)]
pub(super) struct LastResort(Sender<Duration>);

impl LastResort {
    /// # Errors
    /// If the system cannot start a thread.
    pub(super) fn new(health: Arc<NodeHealth>) -> std::io::Result<LastResort> {
        let (sender, orders) = channel::<Duration>();
        small_thread("tidegate-end", move || {
            let Ok(limit) = orders.recv() else { return };
            let end = Instant::now() + limit;
            // Further orders change nothing; the thread ends when all senders are dropped.
            loop {
                match orders.recv_timeout(end.saturating_duration_since(Instant::now())) {
                    Ok(_) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => break,
                }
            }
            last_line(health, limit);
            low_level::exit(EXIT_FORCED.into());
        })?;
        Ok(LastResort(sender))
    }

    /// Ends the process after `limit` at the latest, with [`EXIT_FORCED`], unless this and all its clones are
    /// dropped first. Only the first call counts.
    pub(super) fn arm(&self, limit: Duration) {
        // The thread ends with the process, or when all clones are dropped.
        let _ = self.0.send(limit);
    }
}

/// Runs on another thread, so that a blocked log does not delay the end.
fn last_line(health: Arc<NodeHealth>, limit: Duration) {
    let (said, heard) = channel::<()>();
    let speak = move || {
        let _said = said;
        tracing::error!(
            after_ms = limit.as_millis() as u64,
            stuck = ?health.stillest(),
            waiting = health.waiting(),
            "the stop did not complete in time and is aborted; waiting items stay in the store, and items in \
             flight are sent again after the next start"
        );
        logging::finish();
    };
    if small_thread("tidegate-last", speak).is_ok() {
        // Nothing is ever sent: the wait ends when the line is written.
        let _ = heard.recv_timeout(LAST_LINE_WITHIN);
    }
}

fn small_thread(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    // Its lines are those of the part that starts it.
    let span = Span::current();
    // No other thread waits for this one.
    Builder::new().name(name.to_owned()).stack_size(STACK).spawn(move || span.in_scope(run)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_one_line_at_its_begin_and_one_at_its_end() {
        let mut lines = StuckLines::default();
        let (egress, store) = (DaemonPart::Egress, DaemonPart::Store);
        assert_eq!(lines.of(&[(egress, 30_100)]), [], "it may have been the whole process");
        assert_eq!(lines.of(&[(egress, 31_100)]), [StuckLine::Begins(egress, 31_100)]);
        assert_eq!(lines.of(&[(egress, 32_100), (store, 30_000)]), []);
        assert_eq!(lines.of(&[(egress, 33_100), (store, 31_000)]), [StuckLine::Begins(store, 31_000)]);
        assert_eq!(lines.of(&[(store, 32_000)]), [StuckLine::Ends(egress)]);
        assert_eq!(lines.of(&[]), [StuckLine::Ends(store)]);
        assert_eq!(lines.of(&[(egress, 30_000)]), []);
        assert_eq!(lines.of(&[]), [], "never said to begin");
    }
}
