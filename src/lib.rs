//! tidegate: timed, per-customer batching between two ends of a RabbitMQ.
//!
//! The crate is a daemon. The library exists so that tests and measurements can reach its parts from outside
//! the binary. `docs/ARCHITECTURE.md` describes the parts and the imports they are allowed.

pub mod admin;
pub mod cli;
pub mod daemon;
pub mod logging;
pub mod notify;
pub mod signals;
pub mod telemetry;
