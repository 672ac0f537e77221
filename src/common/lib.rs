//! What several parts of tidegate use: clocks, leases, distributions, progress, limits on log lines and on
//! open files, the lines of a check, names of threads, and failpoints.

pub mod check_line;
pub mod clock;
pub mod distribution;
pub mod failpoint;
pub mod lease;
pub mod log_limit;
pub mod open_files;
pub mod progress;
pub mod threads;
