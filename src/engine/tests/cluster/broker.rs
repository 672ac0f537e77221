//! The broker: one ingest queue, which one connection at a time consumes, and one outlet.

use super::{Cluster, Event};
use std::collections::BTreeMap;
use tidegate_types::*;

/// Most deliveries that are not acked.
const PREFETCH: usize = 30;

/// Time after which the broker gives up a connection of which nothing comes, ms.
pub(super) const HEARTBEATS_MS: u64 = 20_000;

/// A message of the ingest queue.
pub(super) struct Message {
    pub(super) thing: usize,
    pub(super) body: NewItem,
    /// Tag of its delivery to the present consumer.
    tag: Option<u64>,
    /// It was delivered before.
    seen: bool,
}

#[derive(Default)]
pub(super) struct Broker {
    pub(super) queue: Vec<Message>,
    /// Connections that the broker knows, and the life that has each.
    pub(super) connections: BTreeMap<u64, u64>,
    /// The connection that has the exclusive lock queue, and consumes.
    pub(super) consumer: Option<u64>,
    tag: u64,
    made: u64,
}

impl Broker {
    /// Makes a connection for a life.
    pub(super) fn connect(&mut self, life: u64) -> u64 {
        self.made += 1;
        self.connections.insert(self.made, life);
        self.made
    }

    pub(super) fn enqueue(&mut self, thing: usize, body: NewItem) {
        self.queue.push(Message { thing, body, tag: None, seen: false });
    }

    /// Makes this connection the consumer, if there is none.
    pub(super) fn consume(&mut self, connection: u64) -> bool {
        if self.consumer.is_some() || !self.connections.contains_key(&connection) {
            return false;
        }
        (self.consumer, self.tag) = (Some(connection), 0);
        true
    }

    /// A connection ends: what its consumer has not acked is delivered again.
    fn end(&mut self, connection: u64) -> Option<u64> {
        if self.consumer == Some(connection) {
            self.consumer = None;
            self.queue.iter_mut().for_each(|message| message.tag = None);
        }
        self.connections.remove(&connection)
    }
}

impl Cluster {
    /// Hands messages to the consumer, as far as it may have more.
    pub(super) fn deliver(&mut self) {
        let Some(connection) = self.broker.consumer else { return };
        let Some(life) = self.broker.connections.get(&connection).copied() else { return };
        if !self.lives.get(&life).is_some_and(|life| life.takes_requests()) {
            return;
        }
        let node = self.lives[&life].node;
        let unacked = self.broker.queue.iter().filter(|message| message.tag.is_some()).count();
        let mut handed = vec![];
        let Broker { queue, tag, .. } = &mut self.broker;
        let waiting = queue.iter_mut().filter(|message| message.tag.is_none());
        for message in waiting.take(PREFETCH.saturating_sub(unacked)) {
            *tag += 1;
            message.tag = Some(*tag);
            let again = std::mem::replace(&mut message.seen, true);
            if again {
                self.judge.comes_again(message.thing);
            }
            handed.push((*tag, again, message.body.clone()));
        }
        for delivery in handed {
            self.send_from_broker(node, Event::Delivered { connection, delivery });
        }
    }

    pub(super) fn take_ack(&mut self, connection: u64, ack: Ack) {
        if self.broker.consumer != Some(connection) {
            return;
        }
        let tag = ack.delivery.tag;
        let is_acked =
            |message: &Message| message.tag.is_some_and(|its| its == tag || (ack.multiple && its < tag));
        let (acked, left) = std::mem::take(&mut self.broker.queue).into_iter().partition(is_acked);
        self.broker.queue = left;
        let acked: Vec<Message> = acked;
        for Message { thing, .. } in acked {
            let has_another = self.broker.queue.iter().any(|message| message.thing == thing);
            self.judge.acked(thing, has_another, &self.database.store);
        }
        self.deliver();
    }

    /// A batch has come to the outlet: it counts, and is confirmed.
    pub(super) fn arrives_at_outlet(&mut self, connection: u64, batch: &Batch) {
        let Some(life) = self.broker.connections.get(&connection).copied() else { return };
        self.judge.arrives(batch);
        let settled = Settled { number: batch.number, outcome: Outcome::Confirmed(super::batch_id(batch)) };
        let Some(node) = self.lives.get(&life).map(|life| life.node) else { return };
        self.send_from_broker(node, Event::Settles { connection, settled });
    }

    /// The broker ends a connection, or hears of its end.
    pub(super) fn end_connection(&mut self, connection: u64) {
        let Some(life) = self.broker.end(connection) else { return };
        if let Some(node) = self.lives.get(&life).map(|life| life.node) {
            self.of_node(node, 1, Event::Disconnected { life, connection });
        }
    }
}
