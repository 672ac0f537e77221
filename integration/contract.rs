//! The machine-readable documents, checked against the answers of a running daemon.

mod http;
mod messages;
