//! Tests of the engine: transcripts (this input, exactly these effects), stories (what was sent, what arrived and
//! when), and simulated worlds with a seed: a store, a broker and two clocks around the real engine, with a reference
//! model that checks every call.

#![expect(
    clippy::wildcard_enum_match_arm,
    clippy::type_complexity,
    reason = "a test names what it judges; the rest is the model's"
)]

mod asked;
mod bounded;
mod builders;
mod cancels;
mod check;
mod clocks;
mod cluster;
mod customer_rates;
mod held;
mod identity;
mod inspect;
mod letters;
mod limits;
mod measure;
mod patience;
mod rates;
mod reload;
mod repeats;
mod reschedule;
mod selected;
mod silent;
mod sim;
mod stale;
mod state;
mod stops;
mod stories;
mod timeline;
mod transcripts;
mod tries;
pub(crate) mod twin;
mod waits;
mod whole;
mod world;
