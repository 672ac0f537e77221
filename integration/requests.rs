//! Requests: headers, own times, envelopes, formats, commands; and malformed requests.

mod envelope;
mod fields;
mod formats;
mod lines;
mod passed_on;
mod rejected;

use tidegate_harness::Site;

/// A site of a daemon with one shard. The suite of several shards runs some of these modules too, with its own.
fn site(name: &str) -> Site<'static> {
    Site::new(name)
}
