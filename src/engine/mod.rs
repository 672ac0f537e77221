//! The pure engine.

pub mod event;
pub mod snapshot;
pub mod types;
