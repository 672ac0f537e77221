//! All tests that see tidegate from outside, as one program: the suites against the built binary and a RabbitMQ node of
//! their own (see `integration/harness`), and those of single parts through their public side.
//!
//! One program is linked once, and starts one node for all. A suite is a module: `cargo test --test integration
//! delivery::` runs one. Apart from this stand `tidy` (reads the source), `fuzz` (has its own length) and `faults` (a
//! table, not a list).
#![expect(unreachable_pub, reason = "modules of a program: `pub` says what the others use")]

mod admin;
mod backup;
mod clients;
mod commands;
mod config;
mod contract;
mod crash;
mod delivery;
mod deploy;
mod dropin;
mod fake_broker;
mod harness;
mod hostile;
mod identity;
mod isolation;
mod letters;
mod life;
mod limits;
mod list;
mod operate;
mod page;
mod postgres;
mod rate;
mod redeliver;
mod requests;
mod storefaults;
mod traps;
mod unit;
