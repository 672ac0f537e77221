//! What a client asks for beside the state: commands in its own words, and what comes back.

use crate::engine::types::Command;
use serde_json::Value;

/// One item, as a client names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemOf {
    /// Application name; 1 to 200 bytes.
    pub application: Box<str>,
    /// The producer's id, or one that was assigned; 1 to 255 bytes.
    pub id: Box<str>,
}

/// A command whose item is named by a client. The daemon knows the engine's name of it.
pub type CommandRequest = Command<ItemOf>;

/// What kind of answer it is; decides the HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It names what was requested: 200.
    Known,
    /// There is no such thing: 404.
    Unknown,
    /// It is understood, and not done as things stand; the document says why: 409.
    Refused,
    /// It cannot be answered or done at present: 503.
    Unavailable,
}

/// The daemon's answer.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandResponse {
    /// Gives the HTTP status.
    pub status: Status,
    /// The body, JSON.
    pub document: Value,
}
