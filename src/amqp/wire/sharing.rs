//! How the requests of a daemon are shared out among its shards, and the table by which a forwarded one is
//! known: its entries, and the key that proves it. [`super::forward`] writes and reads it.

use super::fields;
use super::home::home;
use super::properties::{put_named, TooDeep};
use lapin::types::{AMQPValue, FieldTable};
use lapin::BasicProperties;
use tidegate_types::BatchId;

/// Header with the table.
pub(crate) const FORWARD: &str = "x-tidegate-forward";
/// Bytes of the keyed hash.
pub const PROOF_BYTES: usize = 32;
/// Entries of the table.
pub(crate) mod entry {
    pub(crate) const EXCHANGE: &str = "exchange";
    pub(crate) const KEY: &str = "key";
    /// Whether the original was redelivered, or this copy may be a second one.
    pub(crate) const AGAIN: &str = "again";
    /// Number of the copy: equal requests have different proofs, by which a returned one is known.
    pub(crate) const COPY: &str = "copy";
    pub(crate) const USER_ID: &str = "user_id";
    pub(crate) const EXPIRATION: &str = "expiration";
    /// A broker may write it as well.
    pub(crate) const TIMESTAMP: &str = "timestamp";
    pub(crate) const DELIVERY_MODE: &str = "delivery_mode";
    /// Headers of the original that the copy cannot carry under their own names.
    pub(crate) const HEADERS: &str = "headers";
    /// The body is a part of the original's array.
    pub(crate) const PART: &str = "part";
    /// Bytes of the properties, where headers had to be left out; -1: they are nested too deep.
    pub(crate) const LEFT_OUT: &str = "left_out";
    pub(crate) const PROOF: &str = "proof";
}

/// The secret of one daemon, by which it recognizes its own forwards.
#[derive(Clone)]
pub struct ForwardKey([u8; PROOF_BYTES]);

impl ForwardKey {
    /// Of random bytes.
    pub fn new(bytes: [u8; PROOF_BYTES]) -> Self {
        ForwardKey(bytes)
    }

    /// The hash that proves these bytes, which nodes send each other for this purpose.
    pub fn prove(&self, purpose: &str, bytes: &[u8]) -> [u8; PROOF_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in [purpose.as_bytes(), bytes] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        *hasher.finalize().as_bytes()
    }

    /// Whether this is that hash; takes the same time for all.
    pub fn proves(&self, purpose: &str, bytes: &[u8], proof: [u8; PROOF_BYTES]) -> bool {
        blake3::Hash::from_bytes(self.prove(purpose, bytes)) == blake3::Hash::from_bytes(proof)
    }

    /// The hash that proves a table of this message.
    pub(crate) fn proof(
        &self,
        table: &FieldTable,
        id: Option<&str>,
        body: &[u8],
    ) -> Result<blake3::Hash, TooDeep> {
        let mut entries = Vec::new();
        for (name, value) in table.into_iter().filter(|(name, _)| name.as_str() != entry::PROOF) {
            put_named(&mut entries, name.as_str(), value)?;
        }
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in [&*entries, id.unwrap_or_default().as_bytes(), body] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Ok(hasher.finalize())
    }
}

impl std::fmt::Debug for ForwardKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("ForwardKey(..)")
    }
}

/// How the requests of a daemon are shared out among its shards, as one of its consumers sees it.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// The shard that consumes; `None`: the sharder, which keeps nothing.
    pub own: Option<u16>,
    /// Number of shards.
    pub count: u16,
    /// Proves the tables of forwards.
    pub key: ForwardKey,
}

impl Sharing {
    /// Where an application has its home; `None`: here.
    pub(crate) fn elsewhere(&self, application: &str) -> Option<u16> {
        Some(home(application, self.count)).filter(|home| Some(*home) != self.own)
    }
}

/// What the table adds to a message that it has restored.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Restored {
    /// It came as a forward, so by none of the map's bindings.
    pub(crate) is_forward: bool,
    /// The body is a part of the original's array: entries that are `null` are elsewhere.
    pub(crate) is_part: bool,
    /// Headers were left out; bytes of the properties, or -1.
    pub(crate) left_out: Option<i64>,
}

/// The exchange and the routing key of a forward's original, whoever has made the table: for people who look
/// at a dead letter, and for sending it back, which anybody could do who can make it up.
pub(crate) fn origin(properties: &BasicProperties) -> Option<(String, String)> {
    let Some(AMQPValue::FieldTable(table)) = properties.headers().as_ref()?.inner().get(FORWARD) else {
        return None;
    };
    let text = |name: &str| fields::text(name, table.inner().get(name), usize::MAX).ok();
    let text = |name: &str| text(name).map(|text| text.unwrap_or_default().into_owned());
    Some((text(entry::EXCHANGE)?, text(entry::KEY)?))
}

/// The id of a forward that the broker has returned.
pub fn forward_id_of(properties: &BasicProperties) -> Option<BatchId> {
    let AMQPValue::FieldTable(table) = properties.headers().as_ref()?.inner().get(FORWARD)? else {
        return None;
    };
    let proof = table.inner().get(entry::PROOF)?.as_long_string()?;
    proof.as_bytes().first_chunk().copied().map(BatchId)
}
