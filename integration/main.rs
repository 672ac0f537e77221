//! All black-box tests as one program: the suites against the built binary and a private RabbitMQ node (see
//! `integration/harness`), and tests of single parts through their public interface.
//!
//! One program links once and starts one node for all. A suite is a module: `cargo test --test integration
//! delivery::` runs one. Separate programs are `tidy` (reads the source), `fuzz` (runs for a configurable
//! time) and `faults` (prints a table).
#![expect(unreachable_pub, reason = "modules of a program: `pub` says what the others use")]

mod admin;
mod backup;
mod clients;
mod commands;
mod config;
mod contract;
mod control;
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
mod moves;
mod nodes;
mod operate;
mod page;
mod postgres;
mod rate;
mod redeliver;
mod requests;
mod shards;
mod storefaults;
mod traps;
mod unit;
