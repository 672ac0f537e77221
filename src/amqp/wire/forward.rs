//! Requests on their way between the queues of one daemon.
//!
//! Where a daemon has several shards, each request has to come to the home of its application. What arrives
//! elsewhere is published again, to the queue of its home by the default exchange. On that way a message
//! cannot keep everything: the routing key is the queue's name, the broker refuses a foreign `user_id`,
//! routes `CC` and `BCC` a second time, begins an `expiration` anew, and does not mark the copy as
//! redelivered. So a table in the header `x-tidegate-forward` carries these. The home restores the message
//! before anything of it is read: mark, fingerprint and dead letter are those of the original.
//!
//! The table counts only with a keyed hash over itself, the id and the body. Without it, whoever may write to
//! the default exchange could make up a `user_id`.

use super::envelope;
use super::fields;
use super::frame::{room, size};
use super::header_value::{header_value, HeaderValue};
use super::home::home;
use super::message::{too_deep, Message};
use super::properties::{put_named, set_number, set_text, short, Basic, TooDeep};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::BasicProperties;
use std::sync::Arc;
use tidegate_config::terms::NEVER_COPIED;
use tidegate_types::{BatchId, Dead, NewItem};

/// Header with the table.
pub(crate) const FORWARD: &str = "x-tidegate-forward";
/// Bytes of the keyed hash.
const PROOF_BYTES: usize = 32;
/// Longest header that a message keeps whose headers do not fit into a frame with the table, bytes.
const MOST_KEPT: usize = 256;

/// Entries of the table.
mod entry {
    pub(super) const EXCHANGE: &str = "exchange";
    pub(super) const KEY: &str = "key";
    /// Whether the original was redelivered, or this copy may be a second one.
    pub(super) const AGAIN: &str = "again";
    pub(super) const USER_ID: &str = "user_id";
    pub(super) const EXPIRATION: &str = "expiration";
    pub(super) const DELIVERY_MODE: &str = "delivery_mode";
    /// Headers of the original that the copy cannot carry under their own names.
    pub(super) const HEADERS: &str = "headers";
    /// The body is a part of the original's array.
    pub(super) const PART: &str = "part";
    /// Bytes of the properties, where headers had to be left out; -1: they are nested too deep.
    pub(super) const LEFT_OUT: &str = "left_out";
    pub(super) const PROOF: &str = "proof";
}

/// The secret of one daemon, by which it recognizes its own forwards.
#[derive(Clone)]
pub struct ForwardKey([u8; PROOF_BYTES]);

impl ForwardKey {
    /// Of random bytes.
    pub fn new(bytes: [u8; PROOF_BYTES]) -> Self {
        ForwardKey(bytes)
    }

    /// The hash that proves a table of this message.
    fn proof(&self, table: &FieldTable, id: Option<&str>, body: &[u8]) -> Result<blake3::Hash, TooDeep> {
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
    /// Proves forwards.
    pub key: ForwardKey,
}

impl Sharing {
    /// Where an application has its home; `None`: here.
    fn elsewhere(&self, application: &str) -> Option<u16> {
        Some(home(application, self.count)).filter(|home| Some(*home) != self.own)
    }
}

/// A message as it was delivered.
#[derive(Clone, Debug)]
pub struct Delivered {
    /// Exchange it was published to; empty is the default one.
    pub exchange: ShortString,
    /// Routing key it was published with.
    pub routing_key: ShortString,
    /// Properties, with headers.
    pub properties: BasicProperties,
    /// Payload of the delivery.
    pub body: Vec<u8>,
    /// The broker's mark.
    pub redelivered: bool,
    /// Wall clock at receipt, UTC ms, rounded up.
    pub received: u64,
}

/// A message, or a part of one, for another shard.
#[derive(Clone, Debug)]
pub struct Forward {
    /// The shard that is its home.
    pub shard: u16,
    exchange: ShortString,
    routing_key: ShortString,
    properties: Arc<BasicProperties>,
    body: Arc<Vec<u8>>,
    is_part: bool,
    again: bool,
}

/// A forward, ready to be published to the queue of its home.
#[derive(Clone, Debug)]
pub struct ForwardMessage {
    /// With the table.
    pub properties: BasicProperties,
    /// Payload of the message.
    pub body: Arc<Vec<u8>>,
    /// Identifies it if the broker returns it.
    pub id: BatchId,
}

/// What a message means elsewhere.
pub(crate) struct Elsewhere {
    pub(crate) here: Vec<NewItem>,
    pub(crate) parts: Vec<ForwardPart>,
}

/// The part of a message for one shard.
pub(crate) struct ForwardPart {
    shard: u16,
    /// `None`: the whole body.
    body: Option<Vec<u8>>,
}

/// What the table adds to a message that it has restored.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Restored {
    /// The body is a part of the original's array: entries that are `null` are elsewhere.
    pub(crate) is_part: bool,
    /// Headers were left out; bytes of the properties, or -1.
    left_out: Option<i64>,
}

impl Restored {
    /// # Errors
    /// The message was too large for a forward: it is rejected, as its shard would have rejected it.
    pub(crate) fn check(self, message: &Message<'_>) -> Result<(), Dead> {
        match self.left_out {
            None => Ok(()),
            Some(bytes) => match usize::try_from(bytes) {
                Ok(bytes) => Err(message.too_large(bytes)),
                Err(_) => Err(too_deep()),
            },
        }
    }
}

impl Delivered {
    /// Restores the original of a forward. Any other message stays as it is, with a table that proves nothing
    /// among its headers.
    pub(crate) fn restore(&mut self, key: &ForwardKey) -> Restored {
        let headers = self.properties.headers().as_ref();
        let Some(AMQPValue::FieldTable(table)) = headers.and_then(|headers| headers.inner().get(FORWARD))
        else {
            return Restored::default();
        };
        let basic = Basic::of(&self.properties);
        let proof = table.inner().get(entry::PROOF).and_then(AMQPValue::as_long_string);
        let proof = proof.and_then(|proof| <[u8; PROOF_BYTES]>::try_from(proof.as_bytes()).ok());
        // The comparison of hashes takes the same time for all.
        let expected = key.proof(table, basic.message_id, &self.body).ok();
        if proof.is_none() || proof.map(blake3::Hash::from_bytes) != expected {
            return Restored::default();
        }
        let text = |name: &str| {
            let value = table.inner().get(name).and_then(AMQPValue::as_long_string)?;
            std::str::from_utf8(value.as_bytes()).ok().map(short)
        };
        let mut original = FieldTable::default();
        for (name, value) in headers.into_iter().flatten().filter(|(name, _)| name.as_str() != FORWARD) {
            original.insert(name.clone(), value.clone());
        }
        if let Some(AMQPValue::FieldTable(kept)) = table.inner().get(entry::HEADERS) {
            for (name, value) in kept {
                original.insert(name.clone(), value.clone());
            }
        }
        let mut properties = basic.to_transient(original);
        if let Some(user_id) = text(entry::USER_ID) {
            properties = properties.with_user_id(user_id);
        }
        if let Some(expiration) = text(entry::EXPIRATION) {
            properties = properties.with_expiration(expiration);
        }
        let number = |name: &str| match table.inner().get(name).map(header_value) {
            Some(HeaderValue::Integer(number)) => Some(number),
            Some(_) | None => None,
        };
        if let Some(mode) = number(entry::DELIVERY_MODE).and_then(|mode| u8::try_from(mode).ok()) {
            properties = properties.with_delivery_mode(mode);
        }
        let is = |name: &str| table.inner().get(name) == Some(&AMQPValue::Boolean(true));
        let restored = Restored { is_part: is(entry::PART), left_out: number(entry::LEFT_OUT) };
        let names = [entry::EXCHANGE, entry::KEY].map(|name| text(name).unwrap_or_default());
        self.redelivered |= is(entry::AGAIN);
        [self.exchange, self.routing_key] = names;
        self.properties = properties;
        restored
    }

    /// The forwards of these parts.
    pub(crate) fn forwards(self, restored: Restored, body: Vec<u8>, parts: Vec<ForwardPart>) -> Vec<Forward> {
        let Delivered { exchange, routing_key, properties, redelivered, .. } = self;
        let (properties, whole) = (Arc::new(properties), Arc::new(body));
        let forward = |ForwardPart { shard, body }| Forward {
            shard,
            exchange: exchange.clone(),
            routing_key: routing_key.clone(),
            properties: Arc::clone(&properties),
            is_part: restored.is_part || body.is_some(),
            body: body.map_or_else(|| Arc::clone(&whole), Arc::new),
            again: redelivered,
        };
        parts.into_iter().map(forward).collect()
    }
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

impl Forward {
    /// The next copy may be a second one: the first may have arrived.
    pub fn repeats(&mut self) {
        self.again = true;
    }

    /// Bytes of the body.
    pub fn bytes(&self) -> usize {
        self.body.len()
    }

    /// The message for a connection with frames of `frame_max` bytes. If its headers do not fit with the
    /// table, most are left out, and its home rejects it as it would have rejected the original.
    pub fn message(&self, key: &ForwardKey, frame_max: u32) -> ForwardMessage {
        let fits = |properties: &BasicProperties| size(properties) <= room(frame_max);
        let whole = self.copy(key, None, |_, _| true);
        let whole = whole.ok().filter(|(properties, _)| fits(properties));
        let (properties, id) = whole.unwrap_or_else(|| {
            // Without the delivery mode, which is not kept. Headers that are nested too deep have no size.
            let left_out = i64::try_from(size(&self.properties) - 1).unwrap_or(-1);
            let kept = |name: &str, value: &AMQPValue| {
                let names = [fields::APPLICATION, fields::CUSTOMER];
                let text = value.as_long_string().is_some_and(|text| text.as_bytes().len() <= MOST_KEPT);
                names.contains(&name) && text
            };
            self.copy(key, Some(left_out), kept).unwrap_or_default()
        });
        ForwardMessage { properties, body: Arc::clone(&self.body), id }
    }

    fn copy(
        &self,
        key: &ForwardKey,
        left_out: Option<i64>,
        keep: impl Fn(&str, &AMQPValue) -> bool,
    ) -> Result<(BasicProperties, BatchId), TooDeep> {
        let (mut headers, mut hidden) = (FieldTable::default(), FieldTable::default());
        for (name, value) in self.properties.headers().iter().flatten() {
            let target = match name.as_str() {
                name if !keep(name, value) => continue,
                "CC" | "BCC" | FORWARD => &mut hidden,
                // The broker's counts of another queue.
                name if NEVER_COPIED.contains(&name) => continue,
                _ => &mut headers,
            };
            target.insert(name.clone(), value.clone());
        }
        let mut table = FieldTable::default();
        set_text(&mut table, entry::EXCHANGE, self.exchange.as_str());
        set_text(&mut table, entry::KEY, self.routing_key.as_str());
        table.insert(entry::AGAIN.into(), AMQPValue::Boolean(self.again));
        let texts =
            [(entry::USER_ID, self.properties.user_id()), (entry::EXPIRATION, self.properties.expiration())];
        for (name, text) in texts {
            text.iter().for_each(|text| set_text(&mut table, name, text.as_str()));
        }
        if let Some(mode) = self.properties.delivery_mode() {
            set_number(&mut table, entry::DELIVERY_MODE, u64::from(*mode));
        }
        if self.is_part {
            table.insert(entry::PART.into(), AMQPValue::Boolean(true));
        }
        if !hidden.inner().is_empty() {
            table.insert(entry::HEADERS.into(), AMQPValue::FieldTable(hidden));
        }
        if let Some(bytes) = left_out {
            table.insert(entry::LEFT_OUT.into(), AMQPValue::LongLongInt(bytes));
        }
        let basic = Basic::of(&self.properties);
        let proof = *key.proof(&table, basic.message_id, &self.body)?.as_bytes();
        table.insert(entry::PROOF.into(), AMQPValue::LongString(LongString::from(&proof[..])));
        headers.insert(FORWARD.into(), AMQPValue::FieldTable(table));
        let id = proof.first_chunk().copied().map(BatchId).unwrap_or_default();
        Ok((basic.to_amqp(headers), id))
    }
}

impl Message<'_> {
    /// Where the whole message goes, if its application has its home elsewhere.
    pub(crate) fn elsewhere(&self, application: &str) -> Option<Elsewhere> {
        let shard = self.sharing?.elsewhere(application)?;
        Some(Elsewhere { here: Vec::new(), parts: vec![ForwardPart { shard, body: None }] })
    }

    /// Where a message goes that is not understood. A shard keeps it, so that it goes round no further.
    pub(crate) fn elsewhere_unread(&self) -> Option<Elsewhere> {
        let sharing = self.sharing.filter(|sharing| sharing.own.is_none())?;
        let application = self.application().ok().flatten();
        let shard = application.map_or(0, |application| home(&application, sharing.count));
        Some(Elsewhere { here: Vec::new(), parts: vec![ForwardPart { shard, body: None }] })
    }

    /// Divides the items of an envelope among their homes.
    ///
    /// # Errors
    /// The items, if all of them stay here.
    pub(crate) fn divided(&self, items: Vec<NewItem>, body: &[u8]) -> Result<Elsewhere, Vec<NewItem>> {
        let Some(sharing) = self.sharing else { return Err(items) };
        let homes: Vec<Option<u16>> = items.iter().map(|item| sharing.elsewhere(&item.application)).collect();
        let mut shards: Vec<u16> = homes.iter().copied().flatten().collect();
        shards.sort_unstable();
        shards.dedup();
        let stays = homes.contains(&None);
        match &shards[..] {
            [] => return Err(items),
            [shard] if !stays => {
                let parts = vec![ForwardPart { shard: *shard, body: None }];
                return Ok(Elsewhere { here: Vec::new(), parts });
            }
            _ => {}
        }
        let part = |shard: u16| ForwardPart { shard, body: Some(envelope::part(body, &homes, shard)) };
        let parts = shards.into_iter().map(part).collect();
        let here = items.into_iter().zip(&homes).filter(|(_, home)| home.is_none());
        Ok(Elsewhere { here: here.map(|(item, _)| item).collect(), parts })
    }
}
