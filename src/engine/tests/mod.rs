//! Tests of the engine: transcripts (this input, exactly these effects), and a seeded world of a store, a broker
//! and two clocks around the real engine, with a reference that judges every call.

mod fake_store;
mod sim;
mod world;
