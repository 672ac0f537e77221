//! Encodes batches as messages for lapin, collects the results of a publishing turn, and opens publishing
//! channels.

use super::connection::Session;
use super::fault::Fault;
use super::figures::Figures;
use crate::spans::{OnSpan, PublishSpan};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation};
use std::sync::Arc;
use std::time::Duration;
use tidegate_common::clock;
use tidegate_types::{Batch, BatchId, Outcome, Settled};
use tidegate_wire::{self, Body, Exchanges, ForwardMessage, Outgoing};
use tokio::time::{timeout, Instant};

/// Results of one turn: settled batches and figures, recorded together so that the hot path takes the lock
/// once a turn.
#[derive(Default)]
pub(crate) struct TurnOutput {
    pub(crate) settled: Vec<Settled>,
    late_us: Vec<u64>,
    /// How long a rate held items back.
    held_us: Vec<u64>,
    /// Items of each batch, and bytes of its body.
    sizes: Vec<(u64, u64)>,
    pub(crate) confirm_us: Vec<u64>,
}

impl TurnOutput {
    pub(crate) fn has_confirms(&self) -> bool {
        !self.confirm_us.is_empty()
    }

    pub(crate) fn settle(&mut self, number: u64, outcome: Outcome) {
        self.settled.push(Settled { number, outcome });
    }

    /// Batches that were not published at all.
    pub(crate) fn unsent(&mut self, batches: impl IntoIterator<Item = Batch>) {
        self.settled.extend(unsent(batches));
    }

    pub(crate) fn record(&self, figures: &Figures) {
        if self.late_us.is_empty() && self.confirm_us.is_empty() {
            return;
        }
        let mut figures = figures.recorders();
        self.late_us.iter().for_each(|us| figures.lateness.record(*us));
        self.held_us.iter().for_each(|us| figures.held.record(*us));
        self.confirm_us.iter().for_each(|us| figures.confirm.record(*us));
        for (items, bytes) in &self.sizes {
            figures.batch_items.record(*items);
            figures.batch_bytes.record(*bytes);
        }
    }
}

/// How long its rate held back an item that was due at `due`, ms.
fn held_ms(batch: &Batch, due: u64) -> u64 {
    batch.held.map_or(0, |[from, until]| until.saturating_sub(due.max(from)))
}

/// Lateness of an item that was due at `due`, without the time for which its rate held it back, us.
fn late_us(batch: &Batch, due: u64, now_us: u64) -> u64 {
    now_us.saturating_sub(due.saturating_add(held_ms(batch, due)).saturating_mul(1_000))
}

/// The outcomes of batches that were not published at all.
pub(crate) fn unsent(batches: impl IntoIterator<Item = Batch>) -> impl Iterator<Item = Settled> {
    batches.into_iter().map(|batch| Settled { number: batch.number, outcome: Outcome::Unsent })
}

/// Encodes batches as messages.
#[derive(Clone, Debug)]
pub(crate) struct Encoder {
    pub(crate) names: Exchanges,
    pub(crate) store_identity: u64,
    /// Bytes of the largest frame of the connection.
    pub(crate) frame_max: u32,
    /// Receives spans, if an exporter is configured.
    pub(crate) spans: Option<OnSpan>,
}

impl Encoder {
    /// Encodes a batch that is published at once. `None`: as for [`Encoder::encoded`].
    pub(crate) fn message(&self, batch: &Batch, output: &mut TurnOutput) -> Option<PublishMessage> {
        let now_us = clock::wall_us();
        let mut message = self.encoded(batch, now_us, output)?;
        message.begin(batch, now_us, output);
        Some(message)
    }

    /// Encodes a batch; [`PublishMessage::begin`] follows with its publish. `None`: the batch does not fit
    /// into the connection's frames, and is settled as refused. `now_us`: UTC.
    pub(crate) fn encoded(
        &self,
        batch: &Batch,
        now_us: u64,
        output: &mut TurnOutput,
    ) -> Option<PublishMessage> {
        let mut outgoing = tidegate_wire::encode(batch, &self.names, self.store_identity, now_us / 1_000);
        if let Err(text) = tidegate_wire::fit(&mut outgoing, batch, self.frame_max) {
            output.settle(batch.number, Outcome::Refused(text.into()));
            return None;
        }
        let Outgoing { exchange, routing_key, properties, body, id, trace } = outgoing;
        let span = self.spans.as_ref().zip(trace).and_then(|(exporter, trace)| {
            let span = PublishSpan {
                name: trace.sampled()?,
                parent: trace.parent,
                state: trace.state,
                links: trace.links,
                destination: (exchange.to_string(), routing_key.to_string()),
                batch: id.to_string(),
                items: batch.items.len() as u64,
                bytes: body.len() as u64,
                attempt: batch.attempt,
                ..PublishSpan::default()
            };
            let error = Some("no answer of the broker".to_owned());
            Some(Box::new(OpenSpan { span, error, exporter: exporter.clone() }))
        });
        Some(PublishMessage { number: batch.number, id, exchange, routing_key, properties, body, span })
    }
}

/// A message, ready for lapin.
pub(crate) struct PublishMessage {
    pub(crate) number: u64,
    pub(crate) id: BatchId,
    exchange: ShortString,
    routing_key: ShortString,
    properties: BasicProperties,
    body: Body,
    span: Option<Box<OpenSpan>>,
}

/// A span that has not ended yet.
struct OpenSpan {
    /// It has begun once it has the moment of the publish.
    span: PublishSpan,
    /// The error to report if it ended now.
    error: Option<String>,
    exporter: OnSpan,
}

impl OpenSpan {
    /// Ends the span with the answer to the publish of batch `id`.
    fn end(mut self: Box<Self>, id: BatchId, answer: &lapin::Result<Confirmation>) {
        self.error = match answer {
            // A return that names another batch does not concern this span.
            Ok(Confirmation::Ack(Some(back))) if tidegate_wire::batch_id_of(&back.properties) == Some(id) => {
                Some(format!("returned: {} {}", back.reply_code, back.reply_text))
            }
            Ok(Confirmation::Nack(_)) => Some("nacked by the broker".to_owned()),
            Ok(Confirmation::Ack(_) | Confirmation::NotRequested) => None,
            Err(error) => Some(error.to_string()),
        };
    }
}

impl Drop for OpenSpan {
    /// Exports the span, also if its publish was abandoned: its confirm was overdue, or its connection ended.
    /// Of a message that was not published there is none.
    fn drop(&mut self) {
        if self.span.begun == 0 {
            return;
        }
        let mut span = std::mem::take(&mut self.span);
        span.ended = clock::wall_us();
        span.error = self.error.take();
        (self.exporter.0)(span);
    }
}

impl PublishMessage {
    /// A forward, to the queue of its home.
    pub(crate) fn forward(number: u64, queue: ShortString, message: ForwardMessage) -> Self {
        let ForwardMessage { properties, body, id } = message;
        let (exchange, body) = (ShortString::default(), Body::Shared(body));
        PublishMessage { number, id, exchange, routing_key: queue, properties, body, span: None }
    }

    /// A request to another node.
    pub(crate) fn ask(
        (number, id): (u64, BatchId),
        (exchange, node): (ShortString, ShortString),
        properties: BasicProperties,
        body: Vec<u8>,
    ) -> Self {
        let body = Body::Built(body);
        PublishMessage { number, id, exchange, routing_key: node, properties, body, span: None }
    }

    /// It is published now, `now_us` (UTC): begins its span. If it is the first publish of its batch, records
    /// the size of that and the lateness of its items.
    pub(crate) fn begin(&mut self, batch: &Batch, now_us: u64, output: &mut TurnOutput) {
        // Retries are late for other reasons.
        if batch.dead.is_none() && batch.attempt == 1 {
            output.late_us.extend(batch.items.iter().map(|item| late_us(batch, item.due, now_us)));
            let held = batch.items.iter().map(|item| held_ms(batch, item.due));
            output.held_us.extend(held.filter(|ms| *ms > 0).map(|ms| ms.saturating_mul(1_000)));
            output.sizes.push((batch.items.len() as u64, self.body.len() as u64));
        }
        if let Some(open) = &mut self.span {
            open.span.begun = now_us;
            open.span.lateness = late_us(batch, batch.due, now_us);
        }
    }

    /// Publishes and waits for the confirm. The body is dropped once it is written: the wait takes longer.
    pub(crate) async fn publish(mut self, channel: Arc<Channel>) -> lapin::Result<Confirmation> {
        let (id, span) = (self.id, self.span.take());
        let answer = self.confirmed(channel).await;
        if let Some(span) = span {
            span.end(id, &answer);
        }
        answer
    }

    async fn confirmed(self, channel: Arc<Channel>) -> lapin::Result<Confirmation> {
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let confirm = {
            let PublishMessage { exchange, routing_key, properties, body, .. } = self;
            let channel = channel;
            channel.basic_publish(exchange, routing_key, options, &body, properties).await?
        };
        confirm.await
    }
}

/// Opens a channel with confirms. The time limit does not apply while the connection is blocked.
pub(crate) async fn confirm_channel(session: &Session, limit: Duration) -> Result<Channel, Fault> {
    let mut opening = std::pin::pin!(async {
        let channel = session.open_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    });
    loop {
        match timeout(limit, &mut opening).await {
            Ok(done) => return done,
            Err(_) if session.is_blocked() => {}
            Err(_) => return Err(Fault::timeout("opening a publishing channel", limit)),
        }
    }
}

pub(crate) fn us_since(moment: Instant) -> u64 {
    u64::try_from(moment.elapsed().as_micros()).unwrap_or(u64::MAX)
}
