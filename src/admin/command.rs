//! The commands of clients and their answers.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegate_types::Command;

/// An item, as a client names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ItemOf {
    /// Application name; 1 to 200 bytes.
    pub application: Box<str>,
    /// The producer's id or an assigned one; 1 to 255 bytes.
    pub id: Box<str>,
}

/// A command whose item is named by a client. The daemon translates the name for the engine.
pub type CommandRequest = Command<ItemOf>;

/// The kind of an answer, which decides the HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// It contains what was requested: 200.
    Known,
    /// The target does not exist: 404.
    Unknown,
    /// The present state rules the command out; the document gives the reason: 409.
    Refused,
    /// The command cannot be answered or carried out at present: 503.
    Unavailable,
}

/// The daemon's answer to a command.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandResponse {
    /// Decides the HTTP status.
    pub status: Status,
    /// The JSON body.
    pub document: Value,
}
