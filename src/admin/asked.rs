//! What a client asks for beside the state: commands in its own words, and what comes back.

use crate::engine::types::{CustomerOf, Filter};
use serde_json::Value;

/// One item, as a client names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemOf {
    /// Application name; 1 to 200 bytes.
    pub application: Box<str>,
    /// The producer's id, or one that was assigned; 1 to 255 bytes.
    pub id: Box<str>,
}

/// A command. The daemon makes the engine's of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Take one item back.
    Cancel(ItemOf),
    /// Take back all items of a customer.
    CancelAll(CustomerOf),
    /// What has become of an item.
    Lookup(ItemOf),
    /// How many items a customer has.
    Count(CustomerOf),
    /// Close a customer's open window now.
    Flush(CustomerOf),
    /// One page of the items that have not ended.
    List(Filter),
    /// Hold an application's items back.
    Pause(Box<str>),
    /// Let a paused application go on.
    Resume(Box<str>),
    /// Try a parked application now.
    Retry(Box<str>),
    /// Give up all parked items of an application.
    DropParked(Box<str>),
}

/// What kind of answer it is; decides the HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It names what was asked for: 200.
    Known,
    /// There is no such thing: 404.
    Unknown,
    /// It cannot be told or done at present: 503.
    Unavailable,
}

/// The daemon's answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    /// Its kind.
    pub status: Status,
    /// The body, JSON.
    pub document: Value,
}
