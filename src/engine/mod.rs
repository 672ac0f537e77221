//! The pure engine.

pub mod event;
pub mod size;
pub mod snapshot;
pub mod types;
