//! Basics: the runtime, clocks, bounded waits.

use std::future::Future;
use std::io::Write;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::runtime::{Builder, Runtime};

/// The one runtime of this process, for use from plain threads.
pub fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a tokio runtime")
    })
}

/// Runs a future to its end on [`runtime`], from a plain thread.
pub fn block_on<F: Future>(future: F) -> F::Output {
    runtime().block_on(future)
}

/// Wall clock, UTC microseconds.
pub fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    u64::try_from(since.as_micros()).expect("a clock before the year 586,000")
}

/// Wall clock, UTC milliseconds, rounded down.
pub fn now_ms() -> u64 {
    now_us() / 1000
}

/// The minimum of every time limit for something that must happen. An unneeded margin costs nothing. Other
/// work on the machine can delay any process for ten seconds and more, and what takes some ten seconds on an
/// idle machine takes ten times as long beside busy processes.
pub(crate) const LEAST_WAIT: Duration = Duration::from_secs(180);

/// Polls `condition` until it holds; panics with `what` after `limit`, which is at least [`LEAST_WAIT`].
pub fn wait_until(what: &str, limit: Duration, condition: impl FnMut() -> bool) {
    let limit = limit.max(LEAST_WAIT);
    assert!(holds_within(limit, condition), "not within {limit:?}: {what}");
}

/// Polls `condition` until it holds; `false` if it does not within `limit`, which is at least [`LEAST_WAIT`].
pub fn holds_within(limit: Duration, condition: impl FnMut() -> bool) -> bool {
    holds_by(limit.max(LEAST_WAIT), condition)
}

/// The same with any limit, for what must not happen.
pub(crate) fn holds_by(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    let end = begun + limit;
    loop {
        let asked = Instant::now();
        if condition() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(pause_of_polls(begun.elapsed(), asked.elapsed()));
    }
}

/// Shortest and longest pause between two polls.
const POLLS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));

/// The pause after a poll that took `asked`, in a wait of `waited` so far. Asking takes a fifth of the time at
/// most, because all tests together have the processors busy, and the wait ends a twentieth later at most.
fn pause_of_polls(waited: Duration, asked: Duration) -> Duration {
    (asked * 4).max(waited / 20).clamp(POLLS.0, POLLS.1)
}

/// The `p`-th percentile (0 to 100) of a sorted list, nearest rank; 0 of an empty one.
pub fn percentile(sorted: &[i64], p: f64) -> i64 {
    if sorted.is_empty() {
        return 0;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0..=len, rounded")]
    let rank = (p / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// Prints a line on standard error, with the test's result.
#[expect(clippy::print_stderr, reason = "figures and seeds belong beside the test's result")]
pub fn say(line: &str) {
    eprintln!("{line}");
}

/// As [`say`], but shown even if the test passes: libtest captures only the output of the print macros.
pub(crate) fn shout(line: &str) {
    let _closed = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
