//! Asks the service manager for more time while the store opens, which may take long after a crash.
//!
//! CPU time of the process counts as progress, since nothing else runs at this point. A start that hangs uses
//! none, gets no more time, and is ended by the manager's own limit.

use crate::notify::Notify;
use rustix::time::{clock_gettime, ClockId};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Interval between two checks of progress.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(10);

/// CPU time between two checks that counts as progress. A thread that only waits and checks uses far less.
const PROGRESS: Duration = Duration::from_millis(10);

/// How long the watchdog is notified during the opening: each wait for a database is shorter.
const FED_FOR: Duration = Duration::from_secs(150);

/// Runs `open`. Asks for three more periods of `every` after each period with progress.
pub(super) fn extending_timeout<T>(notify: &Notify, every: Duration, open: impl FnOnce() -> T) -> T {
    let (done, ended) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
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
                if progress {
                    notify.extend_timeout(every * 3);
                }
                // This matters in a running process whose database does not respond.
                if begun.elapsed() < FED_FOR {
                    notify.watchdog();
                }
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
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn more_time_is_asked_for_while_work_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let notify = Notify::to(path.as_os_str()).unwrap();
        let every = Duration::from_millis(50);
        let asked = extending_timeout(&notify, every, || {
            // Stays busy until more time was requested.
            let deadline = Instant::now() + Duration::from_secs(20);
            manager.set_nonblocking(true).unwrap();
            let mut bytes = [0; 128];
            loop {
                match manager.recv(&mut bytes) {
                    // Comes each time; more time only if the machine has given this process some of its own.
                    Ok(n) if bytes[..n] == *b"WATCHDOG=1\n" => {}
                    Ok(n) => return String::from_utf8(bytes[..n].to_vec()).unwrap(),
                    Err(_) => assert!(Instant::now() < deadline, "no message came"),
                }
            }
        });
        assert_eq!(asked, "EXTEND_TIMEOUT_USEC=150000\n");
    }
}
