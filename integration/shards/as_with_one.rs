//! What a request carries arrives as with one shard, and what is wrong with it is told as with one: the same
//! tests, on sites whose daemons have several shards.
#![expect(clippy::duplicate_mod, reason = "the same tests for one shard and for several")]

use super::site;

#[path = "../dropin/copies.rs"]
mod copies;
#[path = "../requests/envelope.rs"]
mod envelope;
#[path = "../requests/fields.rs"]
mod fields;
#[path = "../requests/formats.rs"]
mod formats;
#[path = "../requests/passed_on.rs"]
mod passed_on;
#[path = "../requests/rejected.rs"]
mod rejected;
