//! Reads one ingest message as one request: the contract's table of fields, line by line.

use super::again::Comeback;
use super::command;
use super::copied::Choices;
use super::envelope;
use super::event;
use super::fields::{self, Fields};
use super::fingerprint::Fingerprint;
use super::forward::{Delivered, Elsewhere, Forward};
use super::message::{item, too_deep, Message, RequestLimits, Terms};
use super::properties::{Basic, TooDeep};
use super::sharing::{Restored, Sharing};
use lapin::BasicProperties;
use std::sync::Arc;
use tidegate_config::terms::MAX_NAME;
use tidegate_config::Readings;
use tidegate_types::{Content, Dead, Reason, Rejected, RequestBody};

/// An ingest message, as it was delivered.
#[derive(Clone, Debug)]
pub struct Incoming<'a> {
    /// Exchange it was published to; empty is the default one.
    pub exchange: &'a str,
    /// Routing key it was published with.
    pub routing_key: &'a str,
    /// Properties, with headers.
    pub properties: BasicProperties,
    /// Payload of the delivery.
    pub body: Vec<u8>,
    /// Wall clock at receipt, UTC ms, rounded up: delays count from then.
    pub received: u64,
}

/// An ingest message of a daemon with several shards, as it was read.
#[derive(Clone, Debug)]
pub struct SharedRequest {
    /// What it means here.
    pub body: RequestBody,
    /// The mark of the original, if it was forwarded.
    pub redelivered: bool,
    /// What of it goes to other shards; empty unless the body is [`RequestBody::Elsewhere`].
    pub forwards: Vec<Forward>,
}

/// Reads one ingest message. Whatever it contains, it becomes items, a command, or a rejection that carries
/// the whole message. `readings` determine what of it goes into its entries of batches, and from when a delay
/// counts; `store_identity`, which ids this store assigns.
pub fn request(
    parts: Incoming<'_>,
    limits: &RequestLimits,
    readings: &Readings,
    store_identity: u64,
) -> RequestBody {
    let Incoming { exchange, routing_key, properties, mut body, received } = parts;
    let message = Message {
        basic: Basic::of(&properties),
        fields: Fields::gather(properties.headers().as_ref()),
        properties: &properties,
        routing_key: if exchange.is_empty() { "" } else { routing_key },
        received,
        limits,
        readings,
        store_identity,
        sharing: None,
        restored: Restored::default(),
    };
    match message.meaning(&mut body) {
        Meaning::Here(body) => body,
        Meaning::Elsewhere(Elsewhere { here, .. }) => RequestBody::Elsewhere(here),
    }
}

/// Reads one ingest message of a daemon with several shards: as [`request`], and what has its home in another
/// shard becomes forwards. The original of a forward is restored first.
pub fn shared_request(
    mut delivered: Delivered,
    limits: &RequestLimits,
    readings: &Readings,
    store_identity: u64,
    sharing: &Sharing,
) -> SharedRequest {
    let restored = delivered.restore(&sharing.key);
    let mut body = std::mem::take(&mut delivered.body);
    let message = Message {
        basic: Basic::of(&delivered.properties),
        fields: Fields::gather(delivered.properties.headers().as_ref()),
        properties: &delivered.properties,
        routing_key: if delivered.exchange.as_str().is_empty() { "" } else { delivered.routing_key.as_str() },
        received: delivered.received,
        limits,
        readings,
        store_identity,
        sharing: Some(sharing),
        restored,
    };
    let (meaning, redelivered) = (message.meaning(&mut body), delivered.redelivered);
    match meaning {
        Meaning::Here(body) => SharedRequest { body, redelivered, forwards: Vec::new() },
        Meaning::Elsewhere(Elsewhere { here, parts }) => SharedRequest {
            body: RequestBody::Elsewhere(here),
            redelivered,
            forwards: delivered.forwards(restored, body, parts),
        },
    }
}

/// What a message means.
enum Meaning {
    Here(RequestBody),
    Elsewhere(Elsewhere),
}

impl Message<'_> {
    /// Takes the body, unless it goes elsewhere as a whole or in parts.
    fn meaning(&self, body: &mut Vec<u8>) -> Meaning {
        match self.read(body) {
            Ok(meaning) => meaning,
            Err(dead) => match self.elsewhere_unread() {
                Some(elsewhere) => Meaning::Elsewhere(elsewhere),
                None => {
                    let rejected = self.rejected(dead, std::mem::take(body));
                    Meaning::Here(RequestBody::Rejected(Box::new(rejected)))
                }
            },
        }
    }

    /// Takes the body only once no check can fail any more.
    fn read(&self, body: &mut Vec<u8>) -> Result<Meaning, Dead> {
        self.check_restored()?;
        let batch = self.returned_batch();
        let most = if batch.is_some() { self.most_of_a_batch() } else { self.limits.max_body };
        if body.len() as u64 > most {
            let max_body = self.limits.max_body;
            let bytes = body.len();
            let text = match batch {
                None => format!("the body has {bytes} bytes, more than limits.max_body ({max_body})"),
                Some(_) => format!("the batch has {bytes} bytes, more than a returned one may have ({most})"),
            };
            return Err(fields::verdict(Reason::TooLarge, text));
        }
        let here = |body| Ok(Meaning::Here(body));
        if let Some(batch) = batch {
            if let Some(elsewhere) = self.elsewhere(&self.required_application()?) {
                return Ok(Meaning::Elsewhere(elsewhere));
            }
            return here(RequestBody::Items(vec![self.whole_batch(batch, body)?]));
        }
        if let Some(verb) = command::verb(self.basic.kind)? {
            let command = command::read(verb, self, body)?;
            if let Some(elsewhere) =
                command.application(|item| &item.application).and_then(|name| self.elsewhere(name))
            {
                return Ok(Meaning::Elsewhere(elsewhere));
            }
            return here(RequestBody::Command(command, command::reply_to(self)));
        }
        if self.is_envelope() {
            return match self.divided(envelope::items(self, body)?, body) {
                Ok(elsewhere) => Ok(Meaning::Elsewhere(elsewhere)),
                Err(items) => here(RequestBody::Items(items)),
            };
        }
        let application: Box<str> = self.required_application()?.into();
        if let Some(elsewhere) = self.elsewhere(&application) {
            return Ok(Meaning::Elsewhere(elsewhere));
        }
        let customer = self.customer()?.map(Into::into);
        let comeback = self.comeback(&application);
        let wished = match &comeback {
            Some(_) if self.fields.died => None,
            Some(_) | None => self.own_time(&application)?,
        };
        let expiry = self.expiry()?;
        let name = fields::ON_DUPLICATE;
        let rule = fields::text(name, self.fields.on_duplicate, MAX_NAME)?;
        let on_duplicate = fields::duplicate_rule(name, rule.as_deref())?;
        let keep = self.kept_headers(&application);
        let properties = self.checked_properties(|name, _| keep(name))?;
        let fingerprint = match self.basic.message_id {
            None => 0,
            Some(_) => {
                let sent = Fingerprint::of_message(self, &properties, &application, keep);
                let mut sent = sent.map_err(|TooDeep| too_deep())?;
                sent.part(body);
                sent.finish()
            }
        };
        let event = if self.fields.event { event::cost(table_of(&properties)) } else { 0 };
        let at = Comeback::due(comeback.as_ref(), wished);
        let (tried, over) = Comeback::apply(comeback.as_ref(), self.tried(self.basic.message_id));
        here(RequestBody::Items(vec![item(
            &self.basic,
            Terms { application, customer, at, expiry, on_duplicate, fingerprint, tried, over, event },
            properties,
            std::mem::take(body),
            &mut Choices::new(self.readings, self.fields.traced),
        )]))
    }

    fn rejected(&self, dead: Dead, body: Vec<u8>) -> Rejected {
        let named = if self.is_envelope() && body.len() as u64 <= self.limits.max_body {
            envelope::names(&body)
        } else {
            envelope::EnvelopeNames {
                customer: self.customer().ok().flatten().map(Into::into),
                application: None,
            }
        };
        let application = named.application.or_else(|| self.application().ok().flatten().map(Into::into));
        // A dead letter is never embedded, so its body is not checked.
        let content = Content { properties: self.dead_properties(), body, json: false };
        // The producer of an item may have set `reply_to` for the consumers; the sender of a command waits
        // for tidegate.
        let reply_to = self.basic.kind.filter(|kind| command::is_reserved(kind)).and(command::reply_to(self));
        Rejected { application, customer: named.customer, dead, content: Arc::new(content), reply_to }
    }
}

/// The header table of stored properties.
fn table_of(properties: &[u8]) -> &[u8] {
    Basic::parse(properties).map_or(&[], |(_, table)| table)
}
