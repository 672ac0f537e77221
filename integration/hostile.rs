//! Hostile input against a running daemon: it survives every message, other messages flow, and each message
//! is delivered or dead-lettered with a reason. No secret appears in any output.

mod messages;
mod secrets;
