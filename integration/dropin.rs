//! Drop-in replacement for a delayed exchange: producers of RabbitMQ's delayed-message-exchange plugin only
//! change the exchange name, and consumers receive the same messages.
//!
//! The cases are the examples of the plugin's documentation and of its test suite (original and fork), with
//! shorter delays; each test names its source. All use `format = "passthrough"`. Deliberate differences are
//! stated in the test: the routing key names the application, `x-delay` is passed on unchanged, nothing is
//! dropped.

mod copies;
mod delays;
mod examples;
mod tries;

use tidegate_harness::{Config, Site};

/// A site of a daemon with one shard. The suite of several shards runs `copies` too, with its own.
fn site(name: &str) -> Site<'static> {
    Site::new(name)
}

/// The configuration of all these tests.
pub(super) fn passthrough(site: &Site<'_>) -> Config {
    site.config().text("defaults.format", "passthrough")
}
