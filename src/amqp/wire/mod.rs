//! The pure translation between AMQP messages and the engine's types, as the contract words it.
//!
//! [`request`] reads one ingest message, [`encode`] writes one output message or dead letter. Nothing here talks to
//! a broker, reads a clock, keeps state or panics, whatever a message holds. Commands (`tidegate.cancel`, `lookup`,
//! `flush`) are recognised and refused as `unsupported`: executing them is not part of this release.

mod batch;
mod dead;
mod envelope;
mod fields;
mod json;
mod properties;
mod request;
mod time;

pub use batch::{batch_id_of, encode, Body, Exchanges, Outgoing};
pub use json::is_embeddable;
pub use request::{request, Incoming, RequestLimits};

#[cfg(test)]
mod tests;
