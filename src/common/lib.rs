//! What several parts of tidegate use: clocks, leases, distributions, progress, limits on log lines,
//! and failpoints.

pub mod clock;
pub mod distribution;
pub mod failpoint;
pub mod lease;
pub mod log_limit;
pub mod progress;
