//! Republishes dead letters to the ingest exchange, as requests.

use super::{raw, DeadLetterService, CLOSE_WITHIN, STEP_WITHIN};
use crate::connection::Session;
use crate::fault::Fault;
use crate::ingest_way::ensure_way;
use crate::message::confirm_channel;
use lapin::message::Delivery;
use lapin::options::BasicPublishOptions;
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation};
use tidegate_common::clock;
use tidegate_wire::dead_letters::RetryTerms;
use tokio::time::timeout;

/// Upper bounds on unconfirmed requests and on the bytes of their bodies; the first request always fits.
const CHUNK: usize = 64;
const CHUNK_BYTES: usize = 4 << 20;

/// A dead letter that is republished to the ingest exchange.
struct ReturnedRequest {
    /// Delivery tag of the dead letter, on the walk's channel.
    tag: u64,
    key: ShortString,
    properties: BasicProperties,
    body: Vec<u8>,
}

/// Publishes requests to the ingest exchange, a chunk at a time.
pub(super) struct Republisher<'d> {
    service: &'d DeadLetterService,
    terms: RetryTerms,
    open: Option<(Session, Channel)>,
    chunk: Vec<ReturnedRequest>,
    bytes: usize,
}

impl<'d> Republisher<'d> {
    pub(super) fn new(service: &'d DeadLetterService, terms: RetryTerms) -> Self {
        Republisher { service, terms, open: None, chunk: Vec::new(), bytes: 0 }
    }

    /// Adds a dead letter to the chunk. False: it cannot be sent back on these terms.
    pub(super) fn take(&mut self, delivery: &Delivery) -> bool {
        let now = clock::wall_ms_up();
        let tag = delivery.delivery_tag;
        let mark = format!("{now:x}-{tag:x}");
        let letter = raw(delivery);
        let Some(properties) = letter.sent_back(&self.terms, now, &mark) else { return false };
        self.bytes += delivery.data.len();
        let key = ShortString::try_new(letter.routing_key()).unwrap_or_default();
        let body = delivery.data.clone();
        self.chunk.push(ReturnedRequest { tag, key, properties, body });
        true
    }

    /// Requests in the chunk.
    pub(super) fn len(&self) -> usize {
        self.chunk.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.chunk.len() >= CHUNK || self.bytes >= CHUNK_BYTES
    }

    /// Publishes the chunk. Returns the tags of the dead letters whose requests are safe in the ingest queue,
    /// and the fault, if any.
    pub(super) async fn send(&mut self) -> (Vec<u64>, Result<(), Fault>) {
        let chunk = std::mem::take(&mut self.chunk);
        self.bytes = 0;
        if chunk.is_empty() {
            return (Vec::new(), Ok(()));
        }
        let exchange = &self.service.names.ingest;
        // The code is cleared: the caller would read it as one about the dead-letter queue.
        let explained = |fault: Fault| Fault {
            code: None,
            ..fault.while_doing(&format!("sending back to exchange '{exchange}'"))
        };
        let channel = match self.channel().await {
            Ok(channel) => channel,
            Err(fault) => return (Vec::new(), Err(explained(fault))),
        };
        match timeout(STEP_WITHIN, published(&channel, exchange, chunk)).await {
            Ok(Ok((confirmed, None))) => (confirmed, Ok(())),
            Ok(Ok((confirmed, Some(fault)))) => (confirmed, Err(explained(fault))),
            Ok(Err(fault)) => (Vec::new(), Err(explained(fault))),
            Err(_) => (Vec::new(), Err(explained(self.overdue()))),
        }
    }

    fn overdue(&self) -> Fault {
        match &self.open {
            Some((session, _)) if session.is_blocked() => {
                Fault::lost("the broker takes nothing at present (memory or disk alarm)")
            }
            Some(_) | None => Fault::timeout("publishing requests that are sent back", STEP_WITHIN),
        }
    }

    async fn channel(&mut self) -> Result<Channel, Fault> {
        if let Some((_, channel)) = &self.open {
            return Ok(channel.clone());
        }
        let DeadLetterService { amqp, names, .. } = self.service;
        let session = self.service.connect(&amqp.endpoints).await?;
        let ready = async {
            // Else a confirm may be that of another queue alone.
            ensure_way(&session, amqp.topology, names, STEP_WITHIN).await?;
            confirm_channel(&session, STEP_WITHIN).await
        };
        let channel = ready.await;
        let channel = match channel {
            Ok(channel) => channel,
            Err(fault) => {
                session.close(CLOSE_WITHIN).await;
                return Err(fault);
            }
        };
        self.open = Some((session, channel.clone()));
        Ok(channel)
    }

    pub(super) async fn close(self) {
        if let Some((session, _)) = self.open {
            session.close(CLOSE_WITHIN).await;
        }
    }
}

/// Publishes the whole chunk, and then waits for all confirms. Returns the safe tags, and why others are not
/// safe.
///
/// lapin reports a returned message with whichever confirm comes next. So if a message was returned, no
/// confirm of the chunk counts; if none was and all are answered, each answer belongs to its own message.
async fn published(
    channel: &Channel,
    exchange: &str,
    chunk: Vec<ReturnedRequest>,
) -> Result<(Vec<u64>, Option<Fault>), Fault> {
    let exchange = ShortString::try_new(exchange).unwrap_or_default();
    let mut open = Vec::with_capacity(chunk.len());
    for ReturnedRequest { tag, key, properties, body } in chunk {
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        open.push((tag, channel.basic_publish(exchange.clone(), key, options, &body, properties).await?));
    }
    let (mut confirmed, mut fault) = (Vec::with_capacity(open.len()), None);
    let mut returned = None;
    for (tag, confirm) in open {
        match confirm.await? {
            Confirmation::Ack(None) => confirmed.push(tag),
            Confirmation::Ack(Some(back)) | Confirmation::Nack(Some(back)) => {
                returned = Some(format!("{} {}", back.reply_code, back.reply_text));
            }
            Confirmation::Nack(None) => {
                fault = Some(Fault::lost("the ingest queue is full or has no majority (basic.nack)"));
            }
            Confirmation::NotRequested => return Err(Fault::lost("the channel does not confirm")),
        }
    }
    match returned {
        Some(text) => {
            Err(Fault::lost(format!("it routes to no queue, and the requests were returned: {text}")))
        }
        None => Ok((confirmed, fault)),
    }
}
