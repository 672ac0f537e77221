//! The admin port and the commands that ask it, as operators and supervisors meet them.

mod audit;
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
