//! What several parts of tidegate use: clocks, leases, distributions, progress, and failpoints.

pub mod clock;
pub mod distribution;
pub mod failpoint;
pub mod lease;
pub mod progress;
