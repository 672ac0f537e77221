//! Tests of the engine: transcripts (this input, exactly these effects), and a seeded world of a store, a broker
//! and two clocks around the real engine, with checkers after every step.

mod fake_store;
mod identity;
mod invariants;
mod limits;
mod measure;
mod sim;
mod transcripts;
mod world;

pub(super) use fake_store::FakeStore;
