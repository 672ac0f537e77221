//! Placeholder of the message mapping, just enough to compile and to run the trap tests against.

use crate::engine::types::{Batch, Content, DuplicateRule, NewItem, RequestBody};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::BasicProperties;
use std::sync::Arc;

/// One delivery.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// Exchange.
    pub exchange: &'a str,
    /// Routing key.
    pub routing_key: &'a str,
    /// Properties.
    pub properties: BasicProperties,
    /// Body.
    pub body: Vec<u8>,
    /// Wall clock at receipt, UTC ms.
    pub received: u64,
}

/// Limits of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Bytes.
    pub max_body: u64,
    /// Entries.
    pub max_envelope_items: usize,
    /// Ms.
    pub max_delay_ms: u64,
}

/// Reads a delivery.
pub fn request(incoming: Incoming<'_>, _limits: &RequestLimits) -> RequestBody {
    let content = Content { properties: Vec::new(), body: incoming.body, json: false };
    RequestBody::Items(vec![NewItem {
        application: incoming.routing_key.into(),
        customer: None,
        at: None,
        expiry: None,
        id: None,
        on_duplicate: DuplicateRule::Keep,
        weight: 100,
        content: Arc::new(content),
    }])
}

/// Names of the exchanges.
#[derive(Clone, Debug)]
pub struct Exchanges {
    /// Output.
    pub egress: ShortString,
    /// Dead letters.
    pub dead: ShortString,
}

impl Exchanges {
    /// From their names.
    pub fn new(egress: &str, dead: &str) -> Self {
        let short = |name: &str| ShortString::try_new(name).unwrap_or_default();
        Exchanges { egress: short(egress), dead: short(dead) }
    }
}

/// A payload.
#[derive(Clone, Debug)]
pub enum Body {
    /// Encoded.
    Built(Vec<u8>),
}

impl std::ops::Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let Body::Built(bytes) = self;
        bytes
    }
}

/// A message to publish.
#[derive(Debug)]
pub struct Outgoing {
    /// Exchange.
    pub exchange: ShortString,
    /// Routing key.
    pub routing_key: ShortString,
    /// Properties.
    pub properties: BasicProperties,
    /// Body.
    pub body: Body,
    /// Header `x-batch`.
    pub id: String,
}

/// Encodes a batch.
pub fn encode(batch: &Batch, names: &Exchanges, _store_identity: u64, _now_ms: u64) -> Outgoing {
    let id = format!("b{}", batch.number);
    let mut headers = FieldTable::default();
    headers.insert(ShortString::from("x-batch"), AMQPValue::LongString(LongString::from(id.as_str())));
    let body = batch.items.iter().flat_map(|i| i.content.body.iter().copied()).collect();
    Outgoing {
        exchange: if batch.dead.is_some() { names.dead.clone() } else { names.egress.clone() },
        routing_key: ShortString::try_new(&*batch.application).unwrap_or_default(),
        properties: BasicProperties::default().with_delivery_mode(2).with_headers(headers),
        body: Body::Built(body),
        id,
    }
}

/// Header `x-batch`.
pub fn batch_id_of(properties: &BasicProperties) -> Option<&str> {
    let text = properties.headers().as_ref()?.inner().get("x-batch")?.as_long_string()?;
    std::str::from_utf8(text.as_bytes()).ok()
}
