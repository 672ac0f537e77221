//! Small things that everything else needs: the runtime, clocks, bounded waits.

use std::future::Future;
use std::io::Write;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::runtime::{Builder, Runtime};

/// The one runtime of this process; clients are used from plain threads through it.
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

/// The shortest wait for something that must come, whatever is asked for. One that is not needed costs nothing, and
/// other work on the machine holds anybody up for ten seconds and more.
pub(crate) const LEAST_WAIT: Duration = Duration::from_secs(60);

/// Polls `condition` until it holds; panics with `what` after `limit`, which is a minute at the least.
pub fn wait_until(what: &str, limit: Duration, condition: impl FnMut() -> bool) {
    let limit = limit.max(LEAST_WAIT);
    assert!(holds_within(limit, condition), "not within {limit:?}: {what}");
}

/// Polls `condition` until it holds; `false` if it does not within `limit`, or a minute where that is less.
pub fn holds_within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit.max(LEAST_WAIT);
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
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

/// Says something on standard error, beside the test's result.
#[expect(clippy::print_stderr, reason = "figures and seeds belong beside the test's result")]
pub fn say(line: &str) {
    eprintln!("{line}");
}

/// As [`say`], but heard when the test passes too: libtest keeps back only what the macros print.
pub(crate) fn shout(line: &str) {
    let _closed = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
