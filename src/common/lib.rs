//! What several parts of tidegate use: clocks, leases, distributions, progress, limits on log lines, the
//! lines of a check, names of threads, and failpoints.

pub mod check_line;
pub mod clock;
pub mod distribution;
pub mod failpoint;
pub mod lease;
pub mod log_limit;
pub mod progress;
pub mod threads;
