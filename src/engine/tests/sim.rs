//! Seeded worlds.
