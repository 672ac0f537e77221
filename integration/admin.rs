//! The admin port and the commands that ask it, as operators and supervisors meet them.

mod client;
mod probes;
mod starts;
mod stopping;
mod tail;
