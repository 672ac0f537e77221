//! Producers and consumers: a small wrapper around lapin for plain threads.

use crate::message::{Batch, Item, Push, Received};
use crate::util::{block_on, holds_by, holds_within, now_us, runtime, LEAST_WAIT};
use async_rs::Runtime;
use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicGetOptions, BasicPublishOptions, BasicQosOptions,
    BasicRejectOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Confirmation, Connection, ConnectionProperties, Consumer, ExchangeKind};
use std::collections::VecDeque;
use std::future::Future;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::time::Duration;

/// How long a call of the client or a confirm may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Bound of unconfirmed publishes in [`Client::publish_all`].
const WINDOW: usize = 1000;

fn bounded<T, F: Future<Output = lapin::Result<T>>>(what: &str, future: F) -> lapin::Result<T> {
    block_on(async {
        match tokio::time::timeout(LIMIT, future).await {
            Ok(result) => result,
            Err(_) => {
                let late = format!("{what}: no answer within {LIMIT:?}");
                Err(std::io::Error::new(std::io::ErrorKind::TimedOut, late).into())
            }
        }
    })
}

/// The broker's answer to a publish.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Confirmed and routed.
    Taken,
    /// Confirmed, but returned as unroutable.
    Returned,
    /// `basic.nack`.
    Nacked,
}

/// A connection with one channel in confirm mode.
pub struct Client {
    uri: String,
    connection: Connection,
    channel: Channel,
}

impl Client {
    /// Connects; panics on failure, because almost every test needs the connection.
    pub fn connect(uri: &str) -> Client {
        Client::try_connect(uri).unwrap_or_else(|e| panic!("cannot connect to the broker: {e}"))
    }

    /// Connects; for load that survives a restart of the broker.
    ///
    /// # Errors
    /// Errors of lapin, or a timeout.
    pub fn try_connect(uri: &str) -> lapin::Result<Client> {
        bounded("connect", async {
            let runtime = Runtime::tokio_with_handle(runtime().handle().clone());
            let properties = ConnectionProperties::default().with_connection_name("tidegate-test".into());
            let connection = Connection::connect_with_runtime(uri, properties, runtime).await?;
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok(Client { uri: uri.to_owned(), connection, channel })
        })
    }

    /// Declares a durable queue with these arguments.
    pub fn queue(&self, name: &str, arguments: FieldTable) {
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let declare = |client: &Client| {
            let declare = client.channel.queue_declare(name.into(), options, arguments.clone());
            bounded("queue.declare", declare)
        };
        // A busy node may not elect the leader of a quorum queue in time, and then closes the connection.
        let is_slow = |e: &lapin::Error| e.to_string().contains("cluster_not_formed");
        let is_quorum = matches!(arguments.inner().get("x-queue-type"),
            Some(AMQPValue::LongString(kind)) if kind.as_bytes() == b"quorum");
        let mut declared = Ok(());
        let done = !is_quorum
            || holds_within(LIMIT, || {
                declared = declare(&Client::connect(&self.uri)).map(drop);
                !declared.as_ref().is_err_and(is_slow)
            });
        if !is_quorum {
            declared = declare(self).map(drop);
        }
        assert!(done && declared.is_ok(), "cannot declare queue {name}: {declared:?}");
    }

    /// Declares a durable exchange.
    pub fn exchange(&self, name: &str, kind: ExchangeKind) {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let declare = self.channel.exchange_declare(name.into(), kind, options, FieldTable::default());
        bounded("exchange.declare", declare)
            .unwrap_or_else(|e| panic!("cannot declare exchange {name}: {e}"));
    }

    /// Binds a queue.
    pub fn bind(&self, queue: &str, exchange: &str, key: &str) {
        let bind = self.channel.queue_bind(
            queue.into(),
            exchange.into(),
            key.into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        bounded("queue.bind", bind).unwrap_or_else(|e| panic!("cannot bind {queue} to {exchange}: {e}"));
    }

    /// Removes a binding.
    pub fn unbind(&self, queue: &str, exchange: &str, key: &str) {
        let unbind =
            self.channel.queue_unbind(queue.into(), exchange.into(), key.into(), FieldTable::default());
        bounded("queue.unbind", unbind).unwrap_or_else(|e| panic!("cannot unbind {queue}: {e}"));
    }

    /// Deletes a queue.
    pub fn delete_queue(&self, name: &str) {
        let delete = self.channel.queue_delete(name.into(), QueueDeleteOptions::default());
        bounded("queue.delete", delete).unwrap_or_else(|e| panic!("cannot delete {name}: {e}"));
    }

    /// Deletes an exchange.
    pub fn delete_exchange(&self, name: &str) {
        let delete =
            self.channel.exchange_delete(name.into(), lapin::options::ExchangeDeleteOptions::default());
        bounded("exchange.delete", delete).unwrap_or_else(|e| panic!("cannot delete {name}: {e}"));
    }

    /// Waits until the queue has this many ready messages; panics with the number after `LEAST_WAIT`.
    ///
    /// The broker counts a message shortly after it is published, returned or acked. Therefore a test waits
    /// for a count and never asserts it at once.
    pub fn lies(&self, queue: &str, count: u32) {
        self.lies_by(LEAST_WAIT, queue, count);
    }

    /// The same with another limit, for a number that is not reached.
    pub fn lies_by(&self, limit: Duration, queue: &str, count: u32) {
        let mut last = None;
        let holds = || {
            last = self.depth(queue);
            last == Some(count)
        };
        if !holds_by(limit, holds) {
            panic!("{count} messages are to lie in {queue}, but: {last:?}");
        }
    }

    /// Whether a queue exists.
    pub fn has_queue(&self, name: &str) -> bool {
        self.depth(name).is_some()
    }

    /// Ready messages in a queue now; `None` if there is no such queue. Only for conditions in a wait; to
    /// assert a count use [`Client::lies`].
    pub fn depth(&self, queue: &str) -> Option<u32> {
        let asked = bounded("queue.declare", async {
            // A separate channel: the broker closes it if the queue does not exist.
            let channel = self.connection.create_channel().await?;
            let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
            let queue = channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
            let count = queue.message_count();
            channel.close(200, "".into()).await?;
            Ok(count)
        });
        asked.ok()
    }

    /// Takes up to `count` messages from a queue and requeues them, which marks them as redelivered.
    pub fn give_back(&self, queue: &str, count: usize) {
        let taken = bounded("basic.get", async {
            let channel = self.connection.create_channel().await?;
            for _ in 0..count {
                channel.basic_get(queue.into(), BasicGetOptions::default()).await?;
            }
            channel.close(200, "".into()).await
        });
        taken.unwrap_or_else(|e| panic!("cannot take from {queue}: {e}"));
    }

    /// Whether an exchange exists.
    pub fn has_exchange(&self, name: &str, kind: ExchangeKind) -> bool {
        let asked = bounded("exchange.declare", async {
            let channel = self.connection.create_channel().await?;
            let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
            channel.exchange_declare(name.into(), kind, options, FieldTable::default()).await?;
            channel.close(200, "".into()).await
        });
        asked.is_ok()
    }

    /// Publishes one message, `mandatory`, and waits for the broker's answer.
    pub fn publish(&self, push: &Push) -> Verdict {
        self.try_publish(push).unwrap_or_else(|e| panic!("publish failed: {e}"))
    }

    /// As [`Client::publish`], for load that survives faults.
    ///
    /// # Errors
    /// Errors of lapin, or a timeout; the message may have been taken.
    pub fn try_publish(&self, push: &Push) -> lapin::Result<Verdict> {
        bounded("publish", async { Ok(judge(&self.send(push).await?.await?)) })
    }

    /// Publishes many with a window of confirms; panics unless every message is taken.
    pub fn publish_all(&self, pushes: impl IntoIterator<Item = Push>) -> usize {
        let mut count = 0;
        let done: lapin::Result<()> = block_on(async {
            let mut open = VecDeque::with_capacity(WINDOW);
            for push in pushes {
                if open.len() == WINDOW {
                    settle(open.pop_front()).await?;
                }
                open.push_back(self.send(&push).await?);
                count += 1;
            }
            while let Some(confirm) = open.pop_front() {
                settle(Some(confirm)).await?;
            }
            Ok(())
        });
        done.unwrap_or_else(|e| panic!("publish failed after {count}: {e}"));
        count
    }

    /// Publishes a few with all confirms outstanding. Returns the verdicts up to the first failure of the
    /// connection.
    pub fn publish_window(&self, pushes: &[Push]) -> Vec<Verdict> {
        let mut verdicts = Vec::with_capacity(pushes.len());
        let _failed_or_late = bounded("publish", async {
            let mut open = Vec::with_capacity(pushes.len());
            let mut broken = Ok(());
            for push in pushes {
                match self.send(push).await {
                    Ok(confirm) => open.push(confirm),
                    Err(e) => {
                        broken = Err(e);
                        break;
                    }
                }
            }
            for confirm in open {
                verdicts.push(judge(&confirm.await?));
            }
            broken
        });
        verdicts
    }

    async fn send(&self, push: &Push) -> lapin::Result<lapin::PublisherConfirm> {
        let properties = push.properties.clone().with_delivery_mode(2).with_headers(push.headers.clone());
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let (exchange, key) = (push.exchange.as_str().into(), push.key.as_str().into());
        self.channel.basic_publish(exchange, key, options, &push.body, properties).await
    }

    /// Consumes a queue and acks each message on receipt.
    pub fn consume(&self, queue: &str) -> Inbox {
        self.try_consume(queue, 500).unwrap_or_else(|e| panic!("cannot consume {queue}: {e}"))
    }

    /// RabbitMQ's pseudo-queue for direct reply-to: answers arrive on the channel that published.
    pub const DIRECT_REPLY_TO: &'static str = "amq.rabbitmq.reply-to";

    /// Consumes the answers to requests published with [`Client::DIRECT_REPLY_TO`]; once per client.
    pub fn consume_direct_replies(&self) -> Inbox {
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let queue = Self::DIRECT_REPLY_TO.into();
        let consume = self.channel.basic_consume(queue, "".into(), options, FieldTable::default());
        let consumer = bounded("consume", consume);
        inbox(consumer.unwrap_or_else(|e| panic!("cannot consume direct replies: {e}")), Answer::None)
    }

    /// Consumes a queue and rejects each message on receipt: the broker dead-letters it.
    pub fn consume_and_reject(&self, queue: &str) -> Inbox {
        self.try_consume_with(queue, 500, Answer::Reject)
            .unwrap_or_else(|e| panic!("cannot consume {queue}: {e}"))
    }

    /// As [`Client::consume`], with a prefetch, for load that survives faults.
    ///
    /// # Errors
    /// Errors of lapin, or a timeout.
    pub fn try_consume(&self, queue: &str, prefetch: u16) -> lapin::Result<Inbox> {
        self.try_consume_with(queue, prefetch, Answer::Ack)
    }

    fn try_consume_with(&self, queue: &str, prefetch: u16, answer: Answer) -> lapin::Result<Inbox> {
        let consumer = bounded("consume", async {
            let channel = self.connection.create_channel().await?;
            channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
            let options = BasicConsumeOptions::default();
            channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await
        })?;
        Ok(inbox(consumer, answer))
    }
}

/// The consumer's response to each message.
#[derive(Clone, Copy, Debug)]
enum Answer {
    None,
    Ack,
    Reject,
}

/// Receives the messages of a consumer until the consumer or the inbox ends.
fn inbox(mut consumer: Consumer, answer: Answer) -> Inbox {
    let (sender, receiver) = channel();
    runtime().spawn(async move {
        while let Some(Ok(delivery)) = consumer.next().await {
            let at_us = now_us();
            let answered = match answer {
                Answer::None => true,
                Answer::Ack => delivery.acker.ack(BasicAckOptions::default()).await.is_ok(),
                Answer::Reject => delivery.acker.reject(BasicRejectOptions::default()).await.is_ok(),
            };
            let received = Received {
                at_us,
                exchange: delivery.exchange.to_string(),
                key: delivery.routing_key.to_string(),
                redelivered: delivery.redelivered,
                properties: delivery.properties,
                body: delivery.data,
            };
            if sender.send(received).is_err() || !answered {
                break;
            }
        }
    });
    Inbox { receiver }
}

fn judge(confirmation: &Confirmation) -> Verdict {
    match confirmation {
        Confirmation::Ack(None) => Verdict::Taken,
        Confirmation::Ack(Some(_)) => Verdict::Returned,
        Confirmation::Nack(_) => Verdict::Nacked,
        Confirmation::NotRequested => panic!("the channel is not in confirm mode"),
    }
}

async fn settle(confirm: Option<lapin::PublisherConfirm>) -> lapin::Result<()> {
    if let Some(confirm) = confirm {
        let verdict = tokio::time::timeout(LIMIT, confirm).await;
        let verdict = judge(&verdict.unwrap_or_else(|_| panic!("no confirm within {LIMIT:?}"))?);
        assert_eq!(verdict, Verdict::Taken, "the broker does not take a message of the test");
    }
    Ok(())
}

/// The consumer has ended, with the connection or the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended;

/// Messages of one queue, in the order of their delivery.
pub struct Inbox {
    receiver: Receiver<Received>,
}

impl Inbox {
    /// The next message; `None` if none arrives within `limit`, or the consumer has ended.
    pub fn poll(&self, limit: Duration) -> Option<Received> {
        self.receiver.recv_timeout(limit).ok()
    }

    /// As [`Inbox::poll`], but distinguishes a quiet queue (`Ok(None)`) from the end of the consumer.
    ///
    /// # Errors
    /// The consumer has ended.
    pub fn try_poll(&self, limit: Duration) -> Result<Option<Received>, Ended> {
        match self.receiver.recv_timeout(limit) {
            Ok(received) => Ok(Some(received)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Ended),
        }
    }

    /// The next message; panics if none arrives within `LEAST_WAIT`.
    pub fn next(&self) -> Received {
        self.poll(LEAST_WAIT).expect("a message in time")
    }

    /// The next batch of format `json`; panics if none arrives within `LEAST_WAIT`.
    pub fn batch(&self) -> Batch {
        self.next().batch()
    }

    /// Exactly `count` messages; panics if they do not arrive within `limit`, which is at least `LEAST_WAIT`.
    pub fn take(&self, count: usize, limit: Duration) -> Vec<Received> {
        let limit = limit.max(LEAST_WAIT);
        let end = std::time::Instant::now() + limit;
        let mut taken = Vec::new();
        while taken.len() < count {
            let left = end.saturating_duration_since(std::time::Instant::now());
            match self.poll(left) {
                Some(received) => taken.push(received),
                None => panic!("{} of {count} messages within {limit:?}", taken.len()),
            }
        }
        taken
    }

    /// Items of `json` batches until `count` have arrived; panics if they do not within `limit`, which is at
    /// least `LEAST_WAIT`.
    pub fn items(&self, count: usize, limit: Duration) -> Vec<Item> {
        let limit = limit.max(LEAST_WAIT);
        let end = std::time::Instant::now() + limit;
        let mut items = Vec::new();
        while items.len() < count {
            let left = end.saturating_duration_since(std::time::Instant::now());
            match self.poll(left) {
                Some(received) => items.extend(received.batch().items),
                None => panic!("{} of {count} items within {limit:?}", items.len()),
            }
        }
        items
    }

    /// Panics if a message arrives within `time`.
    pub fn quiet(&self, time: Duration) {
        if let Some(received) = self.poll(time) {
            panic!("nothing was to come, but: {received:?} {:?}", String::from_utf8_lossy(&received.body));
        }
    }
}
