//! What is written down for machines to read, held against what a running daemon says.

mod http;
mod messages;
