//! One generation of consuming: a channel, its consumer, and what is unacked on it.
//!
//! The consumer may be replaced (for another prefetch); the channel may not, since delivery tags belong to
//! it.
//!
//! A prefetch belongs to a consumer: RabbitMQ applies it when the consumer is created. Quorum queues refuse a
//! limit of the whole channel, which could be changed, and several consumers on one channel would get
//! alternate messages, out of order. So another prefetch needs another consumer, and messages on the way to
//! the old one when it is cancelled are redelivered, behind others. Nothing is on the way when as much is
//! unacked as the prefetch allows: [`ConsumerChannel::is_exhausted`] is the moment to raise it, and the only
//! one at which more would help. How much a consumer may take beside what earlier ones have left unacked,
//! [`super::prefetch`] decides.

use super::fault::{Fault, FaultKind, CAUSE_LIMIT};
use super::supervise::time_left;
use super::unacked::{Unacked, UnackedLoad, MOST_UNAPPLIED};
use super::ShutdownSignal;
use futures_util::stream::{ReadyChunks, StreamExt};
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Consumer};
use std::task::Poll;
use std::time::Duration;
use tidegate_types::Ack;
use tokio::time::{timeout, Instant};

/// Upper bound on deliveries taken from lapin at once.
const CHUNK: usize = 512;
/// Time limit for the queue to apply the last acks; less if a stop leaves less.
const APPLIED_WITHIN: Duration = Duration::from_secs(10);
/// What is left of a stop then, for closing.
const CLOSED_WITHIN: Duration = Duration::from_secs(1);

/// State of a [`ConsumerChannel`] at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Running,
    /// Cancelled; deliveries on the way still arrive.
    Turning,
    /// Has no consumer, and gets another one once there is room.
    Resting,
    /// Consumes no more.
    Stopped,
}

pub(crate) struct ConsumerChannel {
    channel: Channel,
    generation: u32,
    queue: ShortString,
    limit: Duration,
    stream: Option<ReadyChunks<Consumer>>,
    mode: Mode,
    /// Consumers on this channel so far; numbers their tags.
    consumers: u32,
    prefetch: u16,
    unacked: Unacked,
    /// Acks written since the queue last answered a command.
    unapplied: u32,
}

impl ConsumerChannel {
    /// Starts consuming on a fresh channel.
    pub(crate) async fn start(
        channel: Channel,
        generation: u32,
        queue: &str,
        prefetch: u16,
        limit: Duration,
    ) -> Result<ConsumerChannel, Fault> {
        let queue = ShortString::try_new(queue)
            .map_err(|_| Fault::setup(format!("the name of queue '{queue}' is longer than 255 bytes")))?;
        let mut consumer = ConsumerChannel {
            channel,
            generation,
            queue,
            limit,
            stream: None,
            mode: Mode::Resting,
            consumers: 0,
            prefetch,
            unacked: Unacked::default(),
            unapplied: 0,
        };
        consumer.consume(prefetch).await?;
        Ok(consumer)
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Of the present or last consumer.
    pub(crate) fn prefetch(&self) -> u16 {
        self.prefetch
    }

    pub(crate) fn is_running(&self) -> bool {
        self.mode == Mode::Running
    }

    /// There is no consumer, and may be another one.
    pub(crate) fn is_resting(&self) -> bool {
        self.mode == Mode::Resting
    }

    /// Consumers on this channel so far. The broker counts a cancelled one as well while one of its
    /// deliveries is unacked.
    pub(crate) fn consumers(&self) -> u32 {
        self.consumers
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.channel.status().connected()
    }

    /// A delivery has come, and costs this many bytes.
    pub(crate) fn delivered(&mut self, tag: u64, cost: u64) {
        self.unacked.delivered(tag, cost);
    }

    /// What a delivery costs once it is read.
    pub(crate) fn set_cost(&mut self, tag: u64, cost: u64) {
        self.unacked.set_cost(tag, cost);
    }

    /// The next deliveries; `None` when the consumer has ended. Never ready while there is no consumer. Safe
    /// to cancel.
    pub(crate) async fn next(&mut self) -> Option<Vec<lapin::Result<Delivery>>> {
        match &mut self.stream {
            Some(stream) => stream.next().await,
            None => std::future::pending().await,
        }
    }

    /// The consumer has ended: by this daemon's own cancel, after which it may consume again, or by the
    /// broker's.
    pub(crate) fn ended(&mut self) -> Result<(), Fault> {
        self.stream = None;
        match self.mode {
            Mode::Running => Err(Fault::lost(format!(
                "the broker cancelled the consumer of queue '{}': it was deleted, its leader moved, or the \
                 consumer timeout has passed",
                self.queue
            ))),
            Mode::Turning => {
                self.mode = Mode::Resting;
                Ok(())
            }
            Mode::Resting | Mode::Stopped => Ok(()),
        }
    }

    /// As much is unacked as the prefetch allows, so nothing is on its way from the broker.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.mode == Mode::Running && self.unacked.of_consumer() >= usize::from(self.prefetch)
    }

    /// Number of deliveries neither acked nor returned.
    pub(crate) fn unacked(&self) -> usize {
        self.unacked.len()
    }

    pub(crate) fn load(&self) -> UnackedLoad {
        let left = usize::from(self.prefetch).saturating_sub(self.unacked.of_consumer());
        UnackedLoad {
            count: self.unacked.len(),
            cost: self.unacked.cost(),
            on_the_way: if self.is_running() { left as u16 } else { 0 },
        }
    }

    /// Cancels the consumer, so that another one can follow. Unacked deliveries stay on this channel.
    pub(crate) async fn cancel(&mut self) -> Result<(), Fault> {
        if self.mode == Mode::Running {
            self.send_cancel().await?;
            self.mode = Mode::Turning;
        }
        Ok(())
    }

    /// Stops consuming; acks still work. Deliveries on the way return to the queue when the channel closes.
    pub(crate) async fn stop(&mut self) -> Result<(), Fault> {
        if self.mode == Mode::Running {
            self.send_cancel().await?;
        }
        self.mode = Mode::Stopped;
        self.stream = None;
        Ok(())
    }

    /// Closes the channel, if it is still open: all that is unacked goes back to the queue at once. What was
    /// acked does not, unless the queue does not apply the acks within [`APPLIED_WITHIN`].
    pub(crate) async fn close(mut self, shutdown: &ShutdownSignal) -> Result<(), Fault> {
        if !self.is_connected() {
            return Ok(());
        }
        if self.unapplied > MOST_UNAPPLIED {
            let applied = timeout(time_to_apply(shutdown), self.have_acks_applied()).await;
            if !matches!(applied, Ok(Ok(()))) {
                let queue = &self.queue;
                tracing::info!("queue '{queue}' has not applied the last acks: some messages may come again");
            }
        }
        let limit = time_left(shutdown);
        match timeout(limit, self.channel.close(200, "OK".into())).await {
            Ok(done) => Ok(done?),
            Err(_) => Err(Fault::timeout("closing the consumer's channel", limit)),
        }
    }

    /// Waits until the queue has applied all acks. It answers a new consumer, and the cancel of it, once it
    /// has applied what came before; so with the second answer, the channel has passed on what it held back.
    async fn have_acks_applied(&mut self) -> Result<(), Fault> {
        self.cancel().await?;
        // Takes one message at most, which returns like those on the way.
        self.consume(1).await?;
        self.cancel().await
    }

    /// Sends acks of this generation. Returns, once they are written, how many deliveries they cover.
    pub(crate) async fn ack(&mut self, acks: &[Ack]) -> Result<u32, Fault> {
        let mut covered = 0u32;
        let mut writes = Vec::new();
        for ack in acks.iter().filter(|ack| ack.delivery.generation == self.generation) {
            let Some((tag, count)) = self.unacked.ack(ack.delivery.tag, ack.multiple) else { continue };
            covered = covered.saturating_add(count);
            self.unapplied = self.unapplied.saturating_add(1);
            let options = BasicAckOptions { multiple: ack.multiple };
            let mut write = Box::pin(self.channel.basic_ack(tag, options));
            // The first poll hands the frame over, in order; awaiting each write in turn would cost a round
            // trip to lapin's thread for each.
            match futures_util::poll!(&mut write) {
                Poll::Ready(done) => done?,
                Poll::Pending => writes.push(write),
            }
        }
        let all = async {
            for write in writes {
                write.await?;
            }
            lapin::Result::Ok(())
        };
        match timeout(self.limit, all).await {
            Ok(done) => done?,
            Err(_) => return Err(Fault::timeout("writing an ack", self.limit)),
        }
        Ok(covered)
    }

    /// Finds the reason of an end that was noticed on a closed channel: lapin reports it to the consumer.
    pub(crate) async fn cause(&mut self, fault: Fault) -> Fault {
        if fault.kind != FaultKind::AfterEnd {
            return fault;
        }
        let search = async {
            while let Some(chunk) = self.next().await {
                if let Some(error) = chunk.into_iter().find_map(Result::err) {
                    return Fault::from(error);
                }
            }
            fault.clone()
        };
        timeout(CAUSE_LIMIT, search).await.unwrap_or_else(|_| fault.clone())
    }

    /// Begins to consume: more is delivered until as much of that is unacked as the prefetch allows.
    pub(crate) async fn consume(&mut self, prefetch: u16) -> Result<(), Fault> {
        self.prefetch = prefetch;
        self.consumers += 1;
        let tag = format!("tidegate-{}-{}", self.generation, self.consumers);
        // Classic queues enforce it against consumers that do not use the lock.
        let options = BasicConsumeOptions { exclusive: true, ..BasicConsumeOptions::default() };
        let call = async {
            // Before the consumer: nothing else bounds its queue of deliveries within lapin.
            self.channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
            self.channel.basic_consume(self.queue.clone(), tag.into(), options, FieldTable::default()).await
        };
        let what = format!("consuming from queue '{}'", self.queue);
        let consumer = match timeout(self.limit, call).await {
            Ok(done) => done.map_err(|e| Fault::from(e).while_doing(&what))?,
            Err(_) => return Err(Fault::timeout(&what, self.limit)),
        };
        self.unapplied = 0;
        self.unacked.begin_consumer();
        self.stream = Some(consumer.ready_chunks(CHUNK));
        self.mode = Mode::Running;
        Ok(())
    }

    async fn send_cancel(&mut self) -> Result<(), Fault> {
        let tag = format!("tidegate-{}-{}", self.generation, self.consumers);
        match timeout(self.limit, self.channel.basic_cancel(tag.into(), BasicCancelOptions::default())).await
        {
            Ok(done) => {
                done?;
                self.unapplied = 0;
                Ok(())
            }
            Err(_) => Err(Fault::timeout("cancelling the consumer", self.limit)),
        }
    }
}

/// [`APPLIED_WITHIN`], or what the shutdown leaves for it.
fn time_to_apply(shutdown: &ShutdownSignal) -> Duration {
    let left = shutdown.borrow().map(|end| end.saturating_duration_since(Instant::now()));
    left.map_or(APPLIED_WITHIN, |left| left.saturating_sub(CLOSED_WITHIN).min(APPLIED_WITHIN))
}
