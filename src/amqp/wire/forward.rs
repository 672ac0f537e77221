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
use super::message::Message;
use super::properties::{set_number, set_text, short, Basic, TooDeep};
use super::sharing::{entry, ForwardKey, Restored, Sharing, FORWARD, PROOF_BYTES};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::BasicProperties;
use std::sync::Arc;
use tidegate_config::terms::NEVER_COPIED;
use tidegate_types::{BatchId, NewItem};

/// More bytes than a frame with headers has.
const LARGEST_FRAME: usize = 1 << 20;
/// Longest header that a message keeps whose headers do not fit into a frame with the table, bytes.
const MOST_KEPT: usize = 256;

/// Headers that a copy does not carry under their own names: they route it, or the broker writes them anew.
fn is_hidden(name: &str) -> bool {
    matches!(name, "CC" | "BCC" | FORWARD) || fields::is_stamp(name)
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
    restored: Restored,
    /// Its routing key is its application: see [`Forward::keyed_application`].
    is_keyed: bool,
    again: bool,
    /// Bytes of memory that it takes, about.
    size: usize,
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
    pub(crate) parts: Vec<HomePart>,
}

/// The part of a message for one shard.
pub(crate) struct HomePart {
    shard: u16,
    /// `None`: the whole body.
    body: Option<Vec<u8>>,
    is_keyed: bool,
}

impl HomePart {
    fn whole(shard: u16) -> Self {
        HomePart { shard, body: None, is_keyed: false }
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
        for (name, value) in headers.into_iter().flatten().filter(|(name, _)| !is_hidden(name.as_str())) {
            original.insert(name.clone(), value.clone());
        }
        if let Some(AMQPValue::FieldTable(kept)) = table.inner().get(entry::HEADERS) {
            for (name, value) in kept {
                original.insert(name.clone(), value.clone());
            }
        }
        let timestamp = match table.inner().get(entry::TIMESTAMP) {
            Some(AMQPValue::Timestamp(seconds)) => Some(*seconds),
            Some(_) | None => None,
        };
        let mut properties = Basic { timestamp, ..basic }.to_transient(original);
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
        let restored =
            Restored { is_forward: true, is_part: is(entry::PART), left_out: number(entry::LEFT_OUT) };
        let names = [entry::EXCHANGE, entry::KEY].map(|name| text(name).unwrap_or_default());
        self.redelivered |= is(entry::AGAIN);
        [self.exchange, self.routing_key] = names;
        self.properties = properties;
        restored
    }

    /// The forwards of these parts.
    pub(crate) fn forwards(self, restored: Restored, body: Vec<u8>, parts: Vec<HomePart>) -> Vec<Forward> {
        let Delivered { exchange, routing_key, properties, redelivered, .. } = self;
        // Decoded headers take more than their encoding. Those that are nested too deep have no size.
        let headers = size(&properties).min(LARGEST_FRAME) * 2;
        let (properties, whole) = (Arc::new(properties), Arc::new(body));
        let forward = |HomePart { shard, body, is_keyed }| {
            let is_part = restored.is_part || body.is_some();
            let body = body.map_or_else(|| Arc::clone(&whole), Arc::new);
            Forward {
                shard,
                exchange: exchange.clone(),
                routing_key: routing_key.clone(),
                properties: Arc::clone(&properties),
                restored: Restored { is_part, ..restored },
                is_keyed,
                again: redelivered,
                size: body.len() + headers + std::mem::size_of::<Forward>(),
                body,
            }
        };
        parts.into_iter().map(forward).collect()
    }
}

impl Forward {
    /// The next copy may be a second one: the first may have arrived.
    pub fn repeats(&mut self) {
        self.again = true;
    }

    /// Its application, if that is its routing key, and a binding of the map by this key would have led it
    /// straight to its home; of an array, that of all its entries. Not of what came as a forward.
    pub fn keyed_application(&self) -> Option<&ShortString> {
        self.is_keyed.then_some(&self.routing_key)
    }

    /// Bytes of memory that it takes, about.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The message for a connection with frames of `frame_max` bytes; `copy` differs from that of all others
    /// that are not confirmed. If its headers do not fit with the
    /// table, most are left out, and its home rejects it as it would have rejected the original.
    pub fn message(&self, key: &ForwardKey, copy: u64, frame_max: u32) -> ForwardMessage {
        let fits = |properties: &BasicProperties| size(properties) <= room(frame_max);
        let is_whole = self.restored.left_out.is_none();
        let whole = is_whole.then(|| self.copy(key, copy, None, |_, _| true).ok()).flatten();
        let whole = whole.filter(|(properties, _)| fits(properties));
        let (properties, id) = whole.unwrap_or_else(|| {
            // Without the delivery mode, which is not kept. Headers that are nested too deep have no size.
            let left_out = i64::try_from(size(&self.properties) - 1).unwrap_or(-1);
            let left_out = self.restored.left_out.unwrap_or(left_out);
            let kept = |name: &str, value: &AMQPValue| {
                let names = [fields::APPLICATION, fields::CUSTOMER];
                let text = value.as_long_string().is_some_and(|text| text.as_bytes().len() <= MOST_KEPT);
                names.contains(&name) && text
            };
            self.copy(key, copy, Some(left_out), kept).unwrap_or_default()
        });
        ForwardMessage { properties, body: Arc::clone(&self.body), id }
    }

    fn copy(
        &self,
        key: &ForwardKey,
        number: u64,
        left_out: Option<i64>,
        keep: impl Fn(&str, &AMQPValue) -> bool,
    ) -> Result<(BasicProperties, BatchId), TooDeep> {
        let (mut headers, mut hidden) = (FieldTable::default(), FieldTable::default());
        for (name, value) in self.properties.headers().iter().flatten() {
            let target = match name.as_str() {
                name if !keep(name, value) => continue,
                name if is_hidden(name) => &mut hidden,
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
        set_number(&mut table, entry::COPY, number);
        let texts =
            [(entry::USER_ID, self.properties.user_id()), (entry::EXPIRATION, self.properties.expiration())];
        for (name, text) in texts {
            text.iter().for_each(|text| set_text(&mut table, name, text.as_str()));
        }
        if let Some(mode) = self.properties.delivery_mode() {
            set_number(&mut table, entry::DELIVERY_MODE, u64::from(*mode));
        }
        if let Some(seconds) = self.properties.timestamp() {
            table.insert(entry::TIMESTAMP.into(), AMQPValue::Timestamp(*seconds));
        }
        if self.restored.is_part {
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
        let sharing = self.sharing?;
        let shard = sharing.elsewhere(application)?;
        let is_keyed = self.is_keyed(sharing, application);
        Some(Elsewhere { here: Vec::new(), parts: vec![HomePart { is_keyed, ..HomePart::whole(shard) }] })
    }

    /// Whether its key is this application: see [`Forward::keyed_application`].
    fn is_keyed(&self, sharing: &Sharing, application: &str) -> bool {
        // By another key of these, it came to a shard without a fault of a binding.
        let headers = self.properties.headers().as_ref();
        let has_more_keys = || headers.is_some_and(|all| all.inner().contains_key("CC"));
        self.routing_key == application
            && !self.restored.is_forward
            && (sharing.own.is_none() || !has_more_keys())
    }

    /// Where a message goes that is not understood. A shard keeps it, so that it goes round no further.
    pub(crate) fn elsewhere_unread(&self) -> Option<Elsewhere> {
        let sharing = self.sharing.filter(|sharing| sharing.own.is_none())?;
        let application = self.application().ok().flatten();
        let shard = application.map_or(0, |application| home(&application, sharing.count));
        Some(Elsewhere { here: Vec::new(), parts: vec![HomePart::whole(shard)] })
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
                let is_keyed = items.iter().all(|item| self.is_keyed(sharing, &item.application));
                let parts = vec![HomePart { is_keyed, ..HomePart::whole(*shard) }];
                return Ok(Elsewhere { here: Vec::new(), parts });
            }
            _ => {}
        }
        let bodies = envelope::parts(body, &homes, &shards);
        let part = |(shard, body)| HomePart { body: Some(body), ..HomePart::whole(shard) };
        let parts = shards.into_iter().zip(bodies).map(part).collect();
        let here = items.into_iter().zip(&homes).filter(|(_, home)| home.is_none());
        Ok(Elsewhere { here: here.map(|(item, _)| item).collect(), parts })
    }
}
