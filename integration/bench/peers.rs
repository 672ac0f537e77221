//! The peers that tidegate is compared with: the minimum for each job, with the same client library.

use crate::book::{run, Cpu, Run};
use crate::load::{quorum, wait_for_depth, Batch};
use futures_util::future::join_all;
use futures_util::StreamExt;
use std::time::{Duration, Instant};
use tidegate_harness::lapin::message::Delivery;
use tidegate_harness::lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
};
use tidegate_harness::lapin::types::{AMQPValue, FieldTable};
use tidegate_harness::lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, Consumer, ExchangeKind, PublisherConfirm,
};
use tidegate_harness::{block_on, text, Client, Node};

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
    drain(node, 1, count)
}

/// Consumes `queues` quorum queues together, each on a connection of its own, and only acks. Of `count`
/// messages each queue has an equal part.
pub fn drain(node: &Node, queues: u16, count: u64) -> Run {
    let client = Client::connect(node.uri());
    let names: Vec<String> = (0..queues).map(|n| format!("bench.bare.{n}")).collect();
    let each = count / u64::from(queues);
    for name in &names {
        client.queue(name, quorum());
        Batch::into(name, each).publish(node, |_| Vec::new());
    }
    let (time, used) = block_on(async {
        let connecting = names.iter().map(|name| async { (connect(node.uri()).await, name.clone()) });
        let connections = join_all(connecting).await;
        let (start, before) = (Instant::now(), Cpu::of(node, None));
        let drains: Vec<_> =
            connections.into_iter().map(|(to, queue)| tokio::spawn(acked(to, queue, each))).collect();
        join_all(drains).await.into_iter().for_each(|drain| drain.expect("a drain"));
        (start.elapsed(), Cpu::of(node, None).since(before))
    });
    names.iter().for_each(|name| client.delete_queue(name));
    let mut run = per_second(each * u64::from(queues), time);
    run.extend(used.cores(time));
    run.insert("broker_cpu_us".to_owned(), used.broker_us as f64 / (each * u64::from(queues)) as f64);
    run
}

async fn acked(connection: Connection, queue: String, count: u64) {
    let mut deliveries = consumer(&connection, &queue).await;
    for n in 1..=count {
        let delivery = deliveries.next().await.expect("a delivery").expect("a delivery");
        if n % 200 == 0 || n == count {
            delivery.acker.ack(BasicAckOptions { multiple: true }).await.expect("basic.ack");
        }
    }
}

/// A bridge without a store and without logic: consume, publish, ack once the publish is confirmed. The fields
/// say what it does beyond the least.
#[derive(Clone, Copy, Debug)]
pub struct Bridge {
    /// Number of deliveries that one ack answers.
    acks_of: u64,
    /// Asks the broker to return what no queue takes.
    mandatory: bool,
    /// Adds an id and the three headers that tidegate adds.
    marks: bool,
    /// Publishes to a direct exchange, not to the default one.
    direct: bool,
}

impl Bridge {
    /// The least that loses nothing while its queues exist: the peer of `passthrough`.
    pub const TUNED: Bridge = Bridge { acks_of: 200, mandatory: false, marks: false, direct: false };
    /// As the examples of client libraries have it.
    pub const NAIVE: Bridge = Bridge { acks_of: 1, mandatory: true, ..Bridge::TUNED };
    pub const MANDATORY: Bridge = Bridge { mandatory: true, ..Bridge::TUNED };
    pub const MARKED: Bridge = Bridge { marks: true, ..Bridge::TUNED };
    pub const DIRECT: Bridge = Bridge { direct: true, ..Bridge::TUNED };
    /// Sends the broker what tidegate sends it.
    pub const ALIKE: Bridge = Bridge { mandatory: true, marks: true, direct: true, ..Bridge::TUNED };

    /// Moves `count` messages of `size` bytes from a quorum queue to one with these arguments.
    pub fn run(self, node: &Node, count: u64, size: usize, output: FieldTable) -> Run {
        const FROM: &str = "bench.from";
        const TO: &str = "bench.to";
        const OUT: &str = "bench.out";
        let client = Client::connect(node.uri());
        client.queue(FROM, quorum());
        client.queue(TO, output);
        client.exchange(OUT, ExchangeKind::Direct);
        client.bind(TO, OUT, TO);
        Batch::into(FROM, count).size(size).publish(node, |_| Vec::new());
        let begun = node.cpu_us();
        let time = block_on(self.moves((FROM, if self.direct { OUT } else { "" }, TO), node.uri(), count));
        let cpu_us = node.cpu_us() - begun;
        client.delete_queue(FROM);
        client.delete_queue(TO);
        let mut run = per_second(count, time);
        run.insert("broker_cpu_us".to_owned(), cpu_us as f64 / count as f64);
        run
    }

    async fn moves(self, (from, exchange, to): (&str, &str, &str), uri: &str, count: u64) -> Duration {
        let (consuming, publishing_to) = (connect(uri).await, connect(uri).await);
        let channel = publishing(&publishing_to).await;
        let (sender, mut open) = tokio::sync::mpsc::channel::<(PublisherConfirm, Delivery)>(WINDOW);
        let start = Instant::now();
        let mut deliveries = consumer(&consuming, from).await;
        let acks = tokio::spawn(async move {
            let mut confirmed = 0;
            while let Some((confirm, delivery)) = open.recv().await {
                assert!(confirm.await.expect("a confirm").is_ack(), "nacked");
                confirmed += 1;
                if confirmed % self.acks_of == 0 || confirmed == count {
                    let options = BasicAckOptions { multiple: self.acks_of > 1 };
                    delivery.acker.ack(options).await.expect("basic.ack");
                }
            }
        });
        let options = BasicPublishOptions { mandatory: self.mandatory, ..BasicPublishOptions::default() };
        for n in 0..count {
            let delivery = deliveries.next().await.expect("a delivery").expect("a delivery");
            let properties = if self.marks { marked(&delivery, n) } else { delivery.properties.clone() };
            let publish =
                channel.basic_publish(exchange.into(), to.into(), options, &delivery.data, properties);
            let confirm = publish.await.expect("basic.publish");
            assert!(sender.send((confirm, delivery)).await.is_ok(), "the acking task lives");
        }
        drop(sender);
        acks.await.expect("the acking task");
        start.elapsed()
    }
}

/// The properties of `passthrough`: those of the delivery, an id, and `x-due`, `x-attempt` and `x-batch`.
fn marked(delivery: &Delivery, n: u64) -> BasicProperties {
    let mut headers = delivery.properties.headers().clone().unwrap_or_default();
    headers.insert("x-due".into(), AMQPValue::LongLongInt(1_700_000_000_000));
    headers.insert("x-attempt".into(), AMQPValue::LongLongInt(1));
    headers.insert("x-batch".into(), text(&format!("{n:016x}-{n:016x}")));
    let id = format!("{n:032x}");
    delivery.properties.clone().with_headers(headers).with_message_id(id.as_str().into())
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
