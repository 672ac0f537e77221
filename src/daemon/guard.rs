//! What stands beside everything else, on threads that wait for nobody: one that says which part stands
//! still, and one that ends a process whose stop does not come to its end.

use super::EXIT_FORCED;
use crate::progress::{DaemonPart, ProgressMarks};
use signal_hook::low_level;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How often the parts are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Beyond `timeouts.drain`, until a stop that is not over is broken off. With the default of 20 s less than
/// the 30 s that Kubernetes gives.
pub(super) const GRACE: Duration = Duration::from_secs(8);
/// For the last line of the log: whoever reads it may have stopped reading.
const LAST_LINE_WITHIN: Duration = Duration::from_secs(1);
/// Little is done on these threads.
const STACK: usize = 512 << 10;

/// Says in the log which part begins to stand still, and which moves again. Dropped, it ends.
#[derive(Debug)]
pub(super) struct PartWatch(#[expect(dead_code, reason = "its drop is heard")] Sender<()>);

impl PartWatch {
    /// # Errors
    /// The system starts no thread.
    pub(super) fn start(progress: Arc<ProgressMarks>) -> std::io::Result<PartWatch> {
        let (sender, ended) = channel();
        small_thread("tidegate-guard", move || watch(&progress, &ended))?;
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
                    "stuck: it has something to do and comes no further; not ready, and after as long \
                     again not live"
                ),
                StuckLine::Ends(part) => tracing::info!(part = part.as_str(), "not stuck any more"),
            }
        }
    }
}

/// What is to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StuckLine {
    Begins(DaemonPart, u64),
    Ends(DaemonPart),
}

/// What has been said. A part is named at the second look in a row: after a process was frozen as a whole,
/// the first finds everybody late.
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

/// Ends the process by force, once, where its stop does not come to its end. That is safe at any moment:
/// correctness never depends on a graceful stop.
///
/// Its thread waits from the beginning: when it is needed the system may start none.
#[derive(Clone, Debug)]
pub(super) struct LastResort(Sender<Duration>);

impl LastResort {
    /// # Errors
    /// The system starts no thread.
    pub(super) fn new(progress: Arc<ProgressMarks>) -> std::io::Result<LastResort> {
        let (sender, orders) = channel::<Duration>();
        small_thread("tidegate-end", move || {
            let Ok(limit) = orders.recv() else { return };
            let end = Instant::now() + limit;
            // Further orders change nothing; without anybody to give one it is over.
            loop {
                match orders.recv_timeout(end.saturating_duration_since(Instant::now())) {
                    Ok(_) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => break,
                }
            }
            last_line(progress, limit);
            low_level::exit(EXIT_FORCED.into());
        })?;
        Ok(LastResort(sender))
    }

    /// The process ends after `limit` at the latest, with [`EXIT_FORCED`], unless this and all its clones are
    /// dropped before. Only the first call counts.
    pub(super) fn arm(&self, limit: Duration) {
        // Its thread ends with the process, or when nobody has this any more.
        let _ = self.0.send(limit);
    }
}

/// On another thread: the end waits for nobody who holds the log.
fn last_line(progress: Arc<ProgressMarks>, limit: Duration) {
    let (said, heard) = channel::<()>();
    let speak = move || {
        let _said = said;
        tracing::error!(
            after_ms = limit.as_millis() as u64,
            stuck = ?progress.stillest(),
            waiting = progress.waiting(),
            "the stop did not come to its end and is broken off; what waits stays in the store, and what was \
             in flight is sent again after the next start"
        );
    };
    if small_thread("tidegate-last", speak).is_ok() {
        // Nothing is ever sent: it ends when the line is written.
        let _ = heard.recv_timeout(LAST_LINE_WITHIN);
    }
}

fn small_thread(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    // It is not waited for.
    Builder::new().name(name.to_owned()).stack_size(STACK).spawn(run).map(drop)
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
