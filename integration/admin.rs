//! The admin port and its client commands, as operators and supervisors use them.

pub mod audit;
mod client;
mod metrics;
mod probes;
mod socket;
mod starts;
mod stopping;
mod stuck;
mod tail;
mod tokens;
mod top;
