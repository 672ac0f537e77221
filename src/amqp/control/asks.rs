//! What this node has asked others: published, and not answered.
//!
//! A request keeps its place until the broker has settled it, even if nobody waits for the answer: so a
//! broker that does not answer gets no pile of them.

use super::{AskFailure, DIRECT_REPLY_TO, MOST_ANSWER};
use crate::message::{PublishMessage, TurnOutput};
use crate::publish_channel::PublishChannel;
use lapin::message::Delivery;
use lapin::types::ShortString;
use lapin::BasicProperties;
use std::collections::BTreeMap;
use tidegate_types::{BatchId, Outcome};
use tokio::sync::oneshot::Sender;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

/// A request that is about to be sent.
pub(super) struct NodeAsk {
    /// Name of the asked node.
    pub(super) node: ShortString,
    pub(super) body: Vec<u8>,
    /// The asker waits until then.
    pub(super) until: Instant,
    pub(super) answer: Sender<Result<Vec<u8>, AskFailure>>,
    pub(super) place: OwnedSemaphorePermit,
}

impl NodeAsk {
    /// Ends it without sending it.
    pub(super) fn fail(self, failure: AskFailure) {
        // The asker may have gone.
        let _ = self.answer.send(Err(failure));
    }
}

struct OpenAsk {
    /// `None`: the answer has come.
    answer: Option<Sender<Result<Vec<u8>, AskFailure>>>,
    /// The broker has taken the request.
    is_taken: bool,
    _place: OwnedSemaphorePermit,
}

impl OpenAsk {
    fn is_over(&self) -> bool {
        self.is_taken && self.answer.as_ref().is_none_or(Sender::is_closed)
    }

    fn end(&mut self, answer: Result<Vec<u8>, AskFailure>) {
        // The asker may have gone.
        let _ = self.answer.take().map(|sender| sender.send(answer));
    }
}

/// Requests by number, across connections.
pub(super) struct OpenAsks {
    /// Begins the correlation ids of this process.
    origin: u64,
    /// Number of the last one.
    last: u64,
    open: BTreeMap<u64, OpenAsk>,
}

impl Default for OpenAsks {
    fn default() -> Self {
        // Without randomness from the system the number of a connection still tells its answers apart.
        OpenAsks { origin: getrandom::u64().unwrap_or_default(), last: 0, open: BTreeMap::new() }
    }
}

impl OpenAsks {
    /// Publishes a request, unless its asker has gone.
    pub(super) fn publish(&mut self, ask: NodeAsk, exchange: &str, channel: &mut PublishChannel) {
        if let Some(message) = self.message(ask, exchange) {
            channel.publish(message);
        }
    }

    fn message(&mut self, ask: NodeAsk, exchange: &str) -> Option<PublishMessage> {
        let NodeAsk { node, body, until, answer, place } = ask;
        if answer.is_closed() {
            return None;
        }
        self.last += 1;
        let id = self.id(self.last);
        let left = until.saturating_duration_since(Instant::now()).as_millis().max(1);
        let properties = BasicProperties::default()
            .with_reply_to(DIRECT_REPLY_TO.into())
            .with_correlation_id(correlation(id).into())
            .with_expiration(left.to_string().into());
        // The configuration bounds the name.
        let exchange = ShortString::try_new(exchange).unwrap_or_default();
        self.open.insert(self.last, OpenAsk { answer: Some(answer), is_taken: false, _place: place });
        Some(PublishMessage::ask((self.last, id), (exchange, node), properties, body))
    }

    fn id(&self, number: u64) -> BatchId {
        BatchId(((u128::from(self.origin) << 64) | u128::from(number)).to_be_bytes())
    }

    /// Takes the broker's answers to publishes.
    pub(super) fn settle(&mut self, output: TurnOutput) {
        for settled in output.settled {
            let Some(open) = self.open.get_mut(&settled.number) else { continue };
            open.is_taken = true;
            match settled.outcome {
                Outcome::Confirmed(_) => {}
                Outcome::Returned(_) => open.end(Err(AskFailure::NoNode)),
                // Only what comes back has certainly not arrived.
                Outcome::Nacked
                | Outcome::Unsent
                | Outcome::Unknown
                | Outcome::Overdue
                | Outcome::Failed(_)
                | Outcome::Refused(_)
                | Outcome::Unavailable(_) => open.end(Err(AskFailure::Unanswered)),
            }
            if open.is_over() {
                self.open.remove(&settled.number);
            }
        }
    }

    /// Takes the answer of a node. One that nobody waits for is dropped.
    pub(super) fn answer(&mut self, delivery: Delivery) {
        let Delivery { properties, data, .. } = delivery;
        let number = id_of(&properties).map(|id| u128::from_be_bytes(id.0) as u64);
        let number = number.filter(|number| id_of(&properties) == Some(self.id(*number)));
        let open = number.and_then(|number| self.open.get_mut(&number).zip(Some(number)));
        let Some((open, number)) = open.filter(|_| data.len() <= MOST_ANSWER) else { return };
        open.end(Ok(data));
        if open.is_over() {
            self.open.remove(&number);
        }
    }

    /// Frees the places of those who wait no longer.
    pub(super) fn forget(&mut self) {
        self.open.retain(|_, open| !open.is_over());
    }

    /// Ends all of them: answers come only to the channel of their requests.
    pub(super) fn fail_all(&mut self) {
        for mut open in std::mem::take(&mut self.open).into_values() {
            open.end(Err(AskFailure::Unanswered));
        }
    }
}

fn correlation(id: BatchId) -> String {
    format!("{:032x}", u128::from_be_bytes(id.0))
}

/// The id of a request that has come back, or of an answer.
pub(super) fn id_of(properties: &BasicProperties) -> Option<BatchId> {
    let text = properties.correlation_id().as_ref()?.as_str();
    let number = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32)?;
    Some(BatchId(number.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::sync::oneshot::{channel, error::TryRecvError, Receiver};
    use tokio::sync::Semaphore;

    type Answered = Receiver<Result<Vec<u8>, AskFailure>>;

    /// Asks a node; the number of the request.
    fn asked(asks: &mut OpenAsks, places: &Arc<Semaphore>) -> (u64, Answered) {
        let (answer, answered) = channel();
        let place = Arc::clone(places).try_acquire_owned().unwrap();
        let until = Instant::now() + Duration::from_secs(5);
        let ask = NodeAsk { node: "a/1".into(), body: b"?".to_vec(), until, answer, place };
        let message = asks.message(ask, "tidegate.control").unwrap();
        assert_eq!(
            id_of(&BasicProperties::default().with_correlation_id(correlation(message.id).into())),
            Some(message.id)
        );
        (message.number, answered)
    }

    fn settled(number: u64, outcome: Outcome) -> TurnOutput {
        let mut output = TurnOutput::default();
        output.settle(number, outcome);
        output
    }

    #[test]
    fn only_what_comes_back_was_read_by_nobody() {
        let id = BatchId([0; 16]);
        for (outcome, failure) in [
            (Outcome::Returned("312".into()), AskFailure::NoNode),
            (Outcome::Nacked, AskFailure::Unanswered),
            (Outcome::Unknown, AskFailure::Unanswered),
        ] {
            let (mut asks, places) = (OpenAsks::default(), Arc::new(Semaphore::new(1)));
            let (number, mut answered) = asked(&mut asks, &places);
            asks.settle(settled(number, outcome));
            assert_eq!(answered.try_recv().unwrap(), Err(failure));
            assert_eq!(places.available_permits(), 1);
        }
        let (mut asks, places) = (OpenAsks::default(), Arc::new(Semaphore::new(1)));
        let (number, mut answered) = asked(&mut asks, &places);
        asks.settle(settled(number, Outcome::Confirmed(id)));
        assert_eq!(answered.try_recv(), Err(TryRecvError::Empty));
        asks.fail_all();
        assert_eq!(answered.try_recv().unwrap(), Err(AskFailure::Unanswered));
    }

    #[test]
    fn a_place_is_free_once_the_broker_has_settled_the_request_and_nobody_waits() {
        let (mut asks, places) = (OpenAsks::default(), Arc::new(Semaphore::new(2)));
        let (number, answered) = asked(&mut asks, &places);
        drop(answered);
        asks.forget();
        assert_eq!(places.available_permits(), 1, "the broker may not have read it");
        asks.settle(settled(number, Outcome::Confirmed(BatchId([0; 16]))));
        assert_eq!(places.available_permits(), 2);
        let (number, answered) = asked(&mut asks, &places);
        asks.settle(settled(number, Outcome::Confirmed(BatchId([0; 16]))));
        drop(answered);
        asks.forget();
        assert_eq!(places.available_permits(), 2);
    }

    #[test]
    fn what_nobody_waits_for_is_not_sent() {
        let (mut asks, places) = (OpenAsks::default(), Arc::new(Semaphore::new(1)));
        let (answer, _) = channel();
        let place = Arc::clone(&places).try_acquire_owned().unwrap();
        let ask = NodeAsk { node: "a/1".into(), body: Vec::new(), until: Instant::now(), answer, place };
        assert!(asks.message(ask, "tidegate.control").is_none());
        assert_eq!(places.available_permits(), 1);
    }

    #[test]
    fn only_own_correlation_ids_are_read() {
        let of = |text: &str| id_of(&BasicProperties::default().with_correlation_id(text.into()));
        assert_eq!(of("0000000000000001000000000000000a").map(|id| id.0[15]), Some(10));
        for text in ["", "a", "0000000000000001000000000000000g"] {
            assert_eq!(of(text), None, "{text}");
        }
        assert_eq!(id_of(&BasicProperties::default()), None);
    }
}
