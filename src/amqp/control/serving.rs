//! Serves one request of another node: reads it, and publishes the answer.

use super::{Serve, DIRECT_REPLY_TO, LONGEST_ASK, MOST_ANSWER, MOST_REQUEST};
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicPublishOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel};
use std::time::Duration;
use tokio::time::timeout;

/// How long an ack may take to be written.
const ACK_WITHIN: Duration = Duration::from_secs(5);

/// How serving a request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServeEnd {
    /// The answer was handed over, or there is none, or nobody waits for one any more.
    Done,
    /// The message was sent by no node.
    Foreign,
    /// The answer has so many bytes, and was not sent.
    TooLarge(usize),
}

/// A request as another node sends it.
struct NodeRequest {
    reply_to: ShortString,
    correlation_id: ShortString,
    /// The asker waits no longer.
    limit: Duration,
}

impl NodeRequest {
    /// `None`: no node sends such a message. An answer goes to a direct reply-to alone: anybody who may write
    /// to the exchange could name a queue.
    fn of(properties: &BasicProperties, bytes: usize) -> Option<NodeRequest> {
        let reply_to = properties.reply_to().clone().filter(|to| to.as_str().starts_with(DIRECT_REPLY_TO))?;
        let correlation_id = properties.correlation_id().clone()?;
        let limit = properties.expiration().as_ref()?.as_str().parse().ok().map(Duration::from_millis)?;
        let request = NodeRequest { reply_to, correlation_id, limit: limit.min(LONGEST_ASK) };
        (bytes <= MOST_REQUEST).then_some(request)
    }

    async fn serve(self, body: Vec<u8>, serve: &Serve, channel: &Channel) -> ServeEnd {
        let NodeRequest { reply_to, correlation_id, limit } = self;
        let work = async {
            let Some(answer) = serve(body).await else { return ServeEnd::Done };
            if answer.len() > MOST_ANSWER {
                return ServeEnd::TooLarge(answer.len());
            }
            let properties = BasicProperties::default().with_correlation_id(correlation_id);
            let options = BasicPublishOptions::default();
            // A failure closes the channel, which is noticed there; the asker's time passes.
            let _ = channel.basic_publish("".into(), reply_to, options, &answer, properties).await;
            ServeEnd::Done
        };
        timeout(limit, work).await.unwrap_or(ServeEnd::Done)
    }
}

/// Serves a delivery, and acks it.
pub(super) async fn serve_delivery(delivery: Delivery, serve: Serve, channel: Channel) -> ServeEnd {
    let Delivery { properties, data, acker, .. } = delivery;
    let end = match NodeRequest::of(&properties, data.len()) {
        Some(request) => request.serve(data, &serve, &channel).await,
        None => ServeEnd::Foreign,
    };
    // The end of its channel is noticed by the consumer.
    let _ = timeout(ACK_WITHIN, acker.ack(BasicAckOptions::default())).await;
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_no_node_sends_is_not_served() {
        let whole = || {
            BasicProperties::default()
                .with_reply_to("amq.rabbitmq.reply-to.g1h2".into())
                .with_correlation_id("7".into())
                .with_expiration("2000".into())
        };
        let request = NodeRequest::of(&whole(), MOST_REQUEST).unwrap();
        assert_eq!(request.limit, Duration::from_secs(2));
        assert!(NodeRequest::of(&whole(), MOST_REQUEST + 1).is_none());
        let long = NodeRequest::of(&whole().with_expiration("4294967295".into()), 0).unwrap();
        assert_eq!(long.limit, LONGEST_ASK);
        for foreign in [
            whole().with_reply_to("tidegate.ingest".into()),
            whole().with_expiration("soon".into()),
            BasicProperties::default().with_reply_to("amq.rabbitmq.reply-to.g1h2".into()),
        ] {
            assert!(NodeRequest::of(&foreign, 0).is_none(), "{foreign:?}");
        }
    }
}
