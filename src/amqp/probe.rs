//! The probe channel: one suspected batch at a time, alone, so that a channel closed by the broker names its culprit.

use super::connection::Session;
use super::fault::{Fault, Kind};
use super::wire::Body;
use crate::engine::types::{BatchId, Outcome, Settled};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// A message, ready for lapin.
pub(super) struct Message {
    pub(super) number: u64,
    pub(super) id: BatchId,
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
    pub(super) body: Body,
}

impl Message {
    /// Publishes and waits for the confirm. Once it is written the body is let go: the wait is the longer part.
    pub(super) async fn publish(self, channel: Arc<Channel>) -> lapin::Result<Confirmation> {
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let confirm = {
            let Message { exchange, routing_key, properties, body, .. } = self;
            let channel = channel;
            channel.basic_publish(exchange, routing_key, options, &body, properties).await?
        };
        confirm.await
    }
}

/// What came of a probe.
pub(super) struct Probed {
    pub(super) settled: Settled,
    /// For the next probe, if it is still open.
    pub(super) channel: Option<Arc<Channel>>,
    /// The connection, or what all batches need, is at fault: not this batch.
    pub(super) fault: Option<Fault>,
}

/// A fresh channel with confirms.
pub(super) async fn confirm_channel(session: &Session, limit: Duration) -> Result<Channel, Fault> {
    let channel = session.channel(limit).await?;
    match timeout(limit, channel.confirm_select(ConfirmSelectOptions::default())).await {
        Ok(done) => done?,
        Err(_) => return Err(Fault::timeout("switching confirms on", limit)),
    }
    Ok(channel)
}

/// Publishes one message on a channel where nothing else is. `alone`: nothing else is unconfirmed on the whole
/// connection either, so that even its end has only one possible cause. The wait for the confirm is bounded by
/// the caller, who knows when the connection is blocked.
pub(super) async fn probe(
    session: Arc<Session>,
    channel: Option<Arc<Channel>>,
    message: Message,
    alone: bool,
    limit: Duration,
) -> Probed {
    let (number, id) = (message.number, message.id);
    let unknown = |fault| Probed {
        settled: Settled { number, outcome: Outcome::Unknown },
        channel: None,
        fault: Some(fault),
    };
    let channel = match channel.filter(|channel| channel.status().connected()) {
        Some(channel) => channel,
        None => match confirm_channel(&session, limit).await {
            Ok(channel) => Arc::new(channel),
            Err(fault) => return unknown(fault),
        },
    };
    let outcome = match message.publish(channel.clone()).await {
        Ok(Confirmation::Ack(None)) => Outcome::Confirmed(id),
        Ok(Confirmation::Ack(Some(back)) | Confirmation::Nack(Some(back))) => {
            Outcome::Returned(format!("{} {}", back.reply_code, back.reply_text).into())
        }
        Ok(Confirmation::Nack(None)) => Outcome::Nacked,
        Ok(Confirmation::NotRequested) => return unknown(Fault::lost("the channel does not confirm")),
        Err(error) => {
            let fault = Fault::from(error);
            let refused = Outcome::Refused(fault.text.as_str().into());
            return match fault.kind {
                Kind::Content => {
                    Probed { settled: Settled { number, outcome: refused }, channel: None, fault: None }
                }
                Kind::ContentFatal if alone => Probed {
                    settled: Settled { number, outcome: refused },
                    channel: None,
                    fault: Some(fault),
                },
                Kind::ContentFatal | Kind::Lost | Kind::Setup | Kind::Parse | Kind::AfterEnd => {
                    unknown(fault)
                }
            };
        }
    };
    Probed { settled: Settled { number, outcome }, channel: Some(channel), fault: None }
}
