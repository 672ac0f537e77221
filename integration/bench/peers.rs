//! The peers that tidegate is compared with: the minimum for each job, with the same client library.

use crate::book::{run, Run};
use crate::load::{quorum, wait_for_depth, Batch};
use futures_util::StreamExt;
use std::time::{Duration, Instant};
use tidegate_harness::lapin::message::Delivery;
use tidegate_harness::lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
};
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, Consumer, PublisherConfirm,
};
use tidegate_harness::{block_on, Client, Node};

/// Bound of a publisher's unconfirmed messages.
const WINDOW: usize = 1000;
const PREFETCH: u16 = 2000;

/// The figures of a rate and its time.
pub fn per_second(count: u64, time: Duration) -> Run {
    let seconds = time.as_secs_f64();
    run([("per_second", count as f64 / seconds), ("seconds", seconds)])
}

async fn connect(uri: &str) -> Connection {
    let runtime = async_rs::Runtime::tokio_current();
    let connecting = Connection::connect_with_runtime(uri, ConnectionProperties::default(), runtime);
    connecting.await.expect("a connection")
}

async fn publishing(connection: &Connection) -> Channel {
    let channel = connection.create_channel().await.expect("a channel");
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirm.select");
    channel
}

async fn consumer(connection: &Connection, queue: &str) -> Consumer {
    let channel = connection.create_channel().await.expect("a channel");
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await.expect("basic.qos");
    let options = BasicConsumeOptions::default();
    channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await.expect("a consumer")
}

/// Consumes a quorum queue and only acks.
pub fn bare(node: &Node, count: u64) -> Run {
    const QUEUE: &str = "bench.bare";
    let client = Client::connect(node.uri());
    client.queue(QUEUE, quorum());
    Batch::into(QUEUE, count).publish(node, |_| Vec::new());
    let time = block_on(async {
        let connection = connect(node.uri()).await;
        let start = Instant::now();
        let mut deliveries = consumer(&connection, QUEUE).await;
        for n in 1..=count {
            let delivery = deliveries.next().await.expect("a delivery").expect("a delivery");
            if n % 200 == 0 || n == count {
                delivery.acker.ack(BasicAckOptions { multiple: true }).await.expect("basic.ack");
            }
        }
        start.elapsed()
    });
    client.delete_queue(QUEUE);
    per_second(count, time)
}

/// A bridge without a store and without logic: consume, publish, ack once the publish is confirmed.
pub fn naive(node: &Node, count: u64, size: usize, output: FieldTable) -> Run {
    const FROM: &str = "bench.from";
    const TO: &str = "bench.to";
    let client = Client::connect(node.uri());
    client.queue(FROM, quorum());
    client.queue(TO, output);
    Batch::into(FROM, count).size(size).publish(node, |_| Vec::new());
    let time = block_on(async {
        let (from, to) = (connect(node.uri()).await, connect(node.uri()).await);
        let channel = publishing(&to).await;
        let (sender, mut open) = tokio::sync::mpsc::channel::<(PublisherConfirm, Delivery)>(WINDOW);
        let start = Instant::now();
        let mut deliveries = consumer(&from, FROM).await;
        let acks = tokio::spawn(async move {
            while let Some((confirm, delivery)) = open.recv().await {
                assert!(confirm.await.expect("a confirm").is_ack(), "nacked");
                delivery.acker.ack(BasicAckOptions::default()).await.expect("basic.ack");
            }
        });
        for _ in 0..count {
            let delivery = deliveries.next().await.expect("a delivery").expect("a delivery");
            let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let properties = delivery.properties.clone();
            let publish = channel.basic_publish("".into(), TO.into(), options, &delivery.data, properties);
            let confirm = publish.await.expect("basic.publish");
            assert!(sender.send((confirm, delivery)).await.is_ok(), "the acking task lives");
        }
        drop(sender);
        acks.await.expect("the acking task");
        start.elapsed()
    });
    client.delete_queue(FROM);
    client.delete_queue(TO);
    per_second(count, time)
}

/// Publishes messages of these sizes with confirms into a queue. Returns the time until all are confirmed.
pub fn publisher(node: &Node, sizes: &[usize]) -> Duration {
    const QUEUE: &str = "bench.published";
    let client = Client::connect(node.uri());
    client.queue(QUEUE, FieldTable::default());
    let largest = sizes.iter().copied().max().unwrap_or(0);
    let body = vec![b'x'; largest];
    let time = block_on(async {
        let connection = connect(node.uri()).await;
        let channel = publishing(&connection).await;
        let (sender, mut open) = tokio::sync::mpsc::channel::<PublisherConfirm>(WINDOW);
        let start = Instant::now();
        let confirms = tokio::spawn(async move {
            while let Some(confirm) = open.recv().await {
                assert!(confirm.await.expect("a confirm").is_ack(), "nacked");
            }
        });
        for size in sizes {
            let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let properties = BasicProperties::default().with_delivery_mode(2);
            let publish = channel.basic_publish("".into(), QUEUE.into(), options, &body[..*size], properties);
            let confirm = publish.await.expect("basic.publish");
            assert!(sender.send(confirm).await.is_ok(), "the task of the confirms lives");
        }
        drop(sender);
        confirms.await.expect("the task of the confirms");
        start.elapsed()
    });
    wait_for_depth(&client, QUEUE, sizes.len() as u64);
    client.delete_queue(QUEUE);
    time
}
