//! Recognizes a request that is delivered again: a short hash over all that its producer sent.
//!
//! The hash leaves out what a broker adds on the way, and what tidegate computes (the moment of receipt, a
//! due that follows from it). A collision (2^-64 for two requests of one id) would drop a request that is
//! marked redelivered and whose id has ended; it has no other effect. A deliberate collision gains nothing,
//! since both requests belong to the producer that names the id: the hash need only be quick (XXH3). A
//! request without an id has no fingerprint.

use super::fields::{is_moved, is_stamp};
use super::message::Message;
use super::properties::{put_headers, Basic, TooDeep};
use lapin::types::AMQPValue;
use xxhash_rust::xxh3::Xxh3;

/// Headers that a broker writes. Those that contain the delivery count are never stored either.
const BROKER_HEADERS: [&str; 3] = ["x-death", "x-delivery-count", "x-acquired-count"];
/// Prefixes of such headers (`x-first-death-queue`, `x-last-death-reason` and so on).
const BROKER_PREFIXES: [&str; 2] = ["x-first-death-", "x-last-death-"];

/// An unfinished hash. Every part is hashed with its length, so that no two sequences of parts are alike.
pub(crate) struct Fingerprint(Xxh3);

impl Fingerprint {
    pub(crate) fn new() -> Self {
        Fingerprint(Xxh3::new())
    }

    /// Starts a hash over all of a message but its body. `stored` is the stored form of all its properties.
    /// `application`: as it was understood, since the routing key may name it.
    ///
    /// `keep`: the headers that `stored` contains.
    ///
    /// # Errors
    /// [`TooDeep`], for headers nested too deep.
    pub(crate) fn of_message(
        message: &Message<'_>,
        stored: &[u8],
        application: &str,
        keep: impl Fn(&str) -> bool,
    ) -> Result<Self, TooDeep> {
        let mut fingerprint = Fingerprint::new();
        let properties = message.properties;
        // A broker may write these anew into each copy of a moved item.
        let moved = is_moved(properties);
        let basic = if moved { Basic { timestamp: None, ..message.basic } } else { message.basic };
        let marked =
            moved || properties.headers().iter().flatten().any(|(name, _)| is_of_broker(name.as_str()));
        if marked {
            let sent =
                |name: &str, _: &AMQPValue| !is_of_broker(name) && keep(name) && !(moved && is_stamp(name));
            let kept = basic.write(|out| put_headers(out, properties, sent))?;
            fingerprint.part(&kept);
        } else {
            fingerprint.part(stored);
        }
        // Not stored, but sent by the producer.
        fingerprint.text(properties.expiration().as_ref().map(|text| text.as_str()));
        fingerprint.text(properties.user_id().as_ref().map(|text| text.as_str()));
        fingerprint.part(properties.delivery_mode().as_ref().map(std::slice::from_ref).unwrap_or_default());
        fingerprint.part(application.as_bytes());
        Ok(fingerprint)
    }

    pub(crate) fn part(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    /// Absent differs from empty.
    pub(crate) fn text(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.part(text.as_bytes()),
            None => {
                self.0.update(&u64::MAX.to_le_bytes());
            }
        }
    }

    /// A copy of the hash so far, for another entry.
    pub(crate) fn branch(&self) -> Self {
        Fingerprint(self.0.clone())
    }

    /// The hash, complete with the body.
    pub(crate) fn finish(self) -> u64 {
        self.0.digest()
    }
}

/// A header that a broker has written.
pub(crate) fn is_of_broker(name: &str) -> bool {
    BROKER_HEADERS.contains(&name) || BROKER_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}
