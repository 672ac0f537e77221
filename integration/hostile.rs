//! Hostile input against a running daemon: whatever is published, it lives on, the others flow, and each message is
//! delivered or dead with a reason; and nothing secret is ever told.

mod messages;
mod secrets;
