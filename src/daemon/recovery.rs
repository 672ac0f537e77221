//! Reports while the store opens, which may take long after a crash, so that the node asks for more time.
//!
//! CPU time of the process counts as progress. While the only shard opens its store for the first time,
//! nothing else runs: a start that hangs uses none, gets no more time, and is ended by the manager's own
//! limit. Later openings are not judged so exactly, and no start depends on them.

use super::reports::{Reports, ShardReport};
use rustix::time::{clock_gettime, ClockId};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::{Duration, Instant};
use tracing::Span;

/// Interval between two checks of progress.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(10);

/// CPU time between two checks that counts as progress. A thread that only waits and checks uses far less.
const PROGRESS: Duration = Duration::from_millis(10);

/// How long the opening is a sign of life for the watchdog: each wait for a database is shorter.
const FED_FOR: Duration = Duration::from_secs(150);

/// Runs `open`, and reports after each period. After one with progress, the opening may take three more.
pub(super) fn reporting<T>(reports: &Reports, every: Duration, open: impl FnOnce() -> T) -> T {
    let (done, ended) = channel::<()>();
    let span = Span::current();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _entered = span.entered();
            let begun = Instant::now();
            let mut before = cpu_time();
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                let now = cpu_time();
                let progress = now.saturating_sub(before) >= PROGRESS;
                tracing::info!(
                    seconds = begun.elapsed().as_secs(),
                    progress,
                    "the store is still being opened"
                );
                // The limit matters in a running process whose database does not respond.
                let is_alive = begun.elapsed() < FED_FOR;
                reports.send(ShardReport::Opening { more: progress.then_some(every * 3), is_alive });
                before = now;
            }
        });
        let opened = open();
        drop(done);
        opened
    })
}

/// CPU time of all threads.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::super::reports::NodeEvent;
    use super::*;

    #[test]
    fn more_time_is_asked_for_while_work_goes_on() {
        let (sender, events) = channel();
        let reports = Reports::new(3, sender);
        let every = Duration::from_millis(50);
        let more = reporting(&reports, every, || {
            // Stays busy until more time was requested.
            let deadline = Instant::now() + Duration::from_secs(20);
            loop {
                match events.try_recv() {
                    // More time only if the machine has given this process some of its own.
                    Ok(NodeEvent::Shard(3, ShardReport::Opening { more: None, is_alive: true })) => {}
                    Ok(NodeEvent::Shard(3, ShardReport::Opening { more, is_alive: true })) => return more,
                    Ok(event) => panic!("{event:?}"),
                    Err(_) => assert!(Instant::now() < deadline, "no report came"),
                }
            }
        });
        assert_eq!(more, Some(every * 3));
    }
}
