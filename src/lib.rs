//! tidegate: timed, per-customer batching between two ends of a RabbitMQ.
//!
//! The crate is a daemon. The library exists so that tests and measurements can reach its parts from outside
//! the binary. `docs/ARCHITECTURE.md` describes the parts and the imports they are allowed.

#[macro_use]
mod failpoint;

pub mod admin;
pub mod amqp;
pub mod cli;
pub mod clock;
pub mod config;
pub mod daemon;
pub mod distribution;
pub mod engine;
pub mod lease;
pub mod letters;
pub mod logging;
pub mod notify;
pub mod progress;
pub mod signals;
pub mod store;
pub mod telemetry;
