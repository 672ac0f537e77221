//! The pure translation between AMQP messages and the engine's types, as the contract defines it.
//!
//! [`request`] reads one ingest message, a push or a command; [`encode`] writes one output message or dead
//! letter. Nothing here talks to a broker, reads a clock, keeps state or panics, whatever a message contains.

mod again;
mod answer;
mod batch;
mod command;
mod copied;
mod dead;
mod dead_letter;
pub mod dead_letters;
mod envelope;
mod event;
mod fields;
mod fingerprint;
mod forward;
mod frame;
mod header_value;
mod home;
mod identity;
mod json;
mod message;
mod moved;
mod properties;
mod request;
mod sharing;
mod time;
mod trace;

pub use answer::answer;
pub use batch::{batch_id_of, encode, item_id, with_message_id, Body, Exchanges, Outgoing};
pub use dead_letter::RawLetter;
pub use envelope::text_of as envelope_text;
pub use fields::{is_moved, near_misses};
pub use forward::{Delivered, Forward, ForwardMessage};
pub use frame::fit;
pub use home::home;
pub use identity::{identity, target};
pub use json::is_embeddable;
pub use message::{plain_size, RequestLimits};
pub use moved::MovedRequest;
pub use request::{request, shared_request, Incoming, SharedRequest};
pub use sharing::{forward_id_of, ForwardKey, Sharing, PROOF_BYTES};
pub use trace::{SpanName, MOST_LINKS};

#[cfg(test)]
mod tests;
