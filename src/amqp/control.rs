//! The nodes of a database ask each other, on a connection of its own, so that no request disturbs a batch.
//!
//! A request goes to the direct exchange of the nodes, with the name of the asked one as routing key. Each
//! node has an exclusive queue there, which ends with its connection. So a request that the broker returns
//! was read by nobody, and may be sent again ([`AskFailure::NoNode`]). One that is lost or late may have been
//! executed ([`AskFailure::Unanswered`]). Answers come by direct reply-to, to the channel of their requests.
//!
//! The broker drops a request that has waited as long as its asker does. It counts from the arrival, which is
//! late if the broker has blocked the connection meanwhile.
//!
//! Deliberately absent: the meaning of requests, and the proof that one comes from a node.
//!
//! Bounds: [`MOST_OPEN`] requests of this node, [`MOST_SERVED`] of others at a time, [`MOST_REQUEST`] and
//! [`MOST_ANSWER`] bytes of a body, and a time limit for each.

mod asks;
mod serving;

use self::asks::{id_of, NodeAsk, OpenAsks};
use self::serving::{serve_delivery, ServeEnd};
use super::backoff::Backoff;
use super::connection::Session;
use super::end_tasks;
use super::fault::Fault;
use super::message::{confirm_channel, TurnOutput};
use super::publish_channel::PublishChannel;
use super::shared::Shared;
use super::supervise::{
    ended_or_ordered, requested, supervise, ConnectionUser, Dialer, NoteLog, RateLimitedLog,
};
use super::topology::{bind_control, prepare_control, unbind_control, Note};
use super::{BrokerEvent, Event, LinkStatus, Options, ShutdownSignal, Side};
use futures_util::future::BoxFuture;
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Consumer};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_types::Outcome;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver, UnboundedSender};
use tokio::sync::{oneshot, watch, Semaphore};
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::{timeout, timeout_at, Instant, MissedTickBehavior};

/// Most requests of this node that are not answered.
const MOST_OPEN: usize = 256;
/// Most requests of other nodes that are served at a time.
const MOST_SERVED: u16 = 64;
/// Longest body of a request, and of an answer, bytes.
const MOST_REQUEST: usize = 1 << 20;
const MOST_ANSWER: usize = 8 << 20;
/// Longest wait for an answer, whatever limit is given.
const LONGEST_ASK: Duration = Duration::from_secs(300);
/// Accuracy of the confirm time-out.
const CHECK: Duration = Duration::from_millis(250);
/// Time without a request after which a node that ends has all that was sent to it.
const CALM: Duration = Duration::from_millis(50);
/// Name that stands for the asking channel.
const DIRECT_REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// Answers a request of another node: the body of the request to the body of the answer; `None`: no answer.
/// It is dropped once the asker waits no longer.
pub type Serve = Arc<dyn Fn(Vec<u8>) -> BoxFuture<'static, Option<Vec<u8>>> + Send + Sync>;

/// Why a node was not asked, or has not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskFailure {
    /// The broker has returned the request: no node has this name at present.
    NoNode,
    /// It was not sent, for this reason.
    Unsent(String),
    /// No answer came in time; the request may have been executed.
    Unanswered,
}

/// Why nothing can be sent at present; `None`: it can.
#[derive(Clone, Debug)]
struct DownReason(Arc<Mutex<Option<String>>>);

impl DownReason {
    fn set(&self, reason: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps the reason of the last failure while there is another attempt.
    fn follow(&self, link: LinkStatus) {
        match link {
            LinkStatus::Connecting { .. } => {}
            LinkStatus::Up { .. } | LinkStatus::Paused { .. } | LinkStatus::Standby { .. } => self.set(None),
            LinkStatus::Blocked { .. } => self.set(Some(BLOCKED.to_owned())),
            LinkStatus::Down { error, .. } => self.set(Some(error)),
            LinkStatus::Closed => self.set(Some(ENDING.to_owned())),
        }
    }
}

/// The reason after the shutdown has begun.
const ENDING: &str = "this node is shutting down";
/// The reason while the broker reads nothing from the connection.
const BLOCKED: &str = "the broker takes nothing at present: it has a memory or disk alarm";

/// The connection by which the nodes of a database ask each other.
pub struct ControlLink {
    asks: UnboundedSender<NodeAsk>,
    places: Arc<Semaphore>,
    down: DownReason,
    node: watch::Sender<String>,
    shutdown: watch::Sender<Option<Instant>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl ControlLink {
    /// Starts it on this runtime, which must be as for [`Amqp::start`](super::Amqp::start): it connects, and
    /// connects again after each loss, until the shutdown. Others ask this node by the name `node`; `serve`
    /// is called on the runtime, and must not block.
    pub fn start(
        runtime: &Handle,
        options: Options,
        exchange: String,
        node: String,
        serve: Serve,
    ) -> ControlLink {
        let down = DownReason(Arc::new(Mutex::new(Some("there is no connection yet".to_owned()))));
        let followed = down.clone();
        let on_event = move |event| {
            if let Event::Broker(BrokerEvent::Link { link, .. }) = event {
                followed.follow(link);
            }
        };
        // Marks and figures of its own: those of the ends say whether requests and batches move.
        let shared = Arc::new(Shared::new(Arc::new(on_event), Arc::default(), Arc::default()));
        let (asks, orders) = unbounded_channel();
        let (node, own_name) = watch::channel(node);
        let (shutdown, signal) = watch::channel(None);
        let control = ControlNode {
            shared,
            options: Arc::new(options),
            exchange,
            serve,
            orders,
            node: own_name,
            down: down.clone(),
            shutdown: signal,
            open: OpenAsks::default(),
            backoff: Backoff::default(),
            notes: NoteLog::default(),
            log: RateLimitedLog::default(),
        };
        let task = Mutex::new(Some(runtime.spawn(control.run())));
        let places = Arc::new(Semaphore::new(MOST_OPEN));
        ControlLink { asks, places, down, node, shutdown, task }
    }

    /// The node has another name from now on: its queue is bound by this one as well.
    pub fn rename(&self, node: String) {
        self.node.send_if_modified(|name| {
            let is_other = *name != node;
            *name = node;
            is_other
        });
    }

    /// Asks another node, within `limit`, which counts up to 5 minutes. Safe to cancel: what was not sent by
    /// then is not sent.
    ///
    /// # Errors
    /// [`AskFailure`]. A body of more than 1 MiB is not sent, nor is anything while there is no connection;
    /// [`MOST_OPEN`] requests may be open, and others wait for a place.
    pub async fn ask(&self, node: &str, body: Vec<u8>, limit: Duration) -> Result<Vec<u8>, AskFailure> {
        if body.len() > MOST_REQUEST {
            let text = format!("the request has {} bytes, and {MOST_REQUEST} are possible", body.len());
            return Err(AskFailure::Unsent(text));
        }
        // No queue is bound by a longer name.
        let node = ShortString::try_new(node).map_err(|_| AskFailure::NoNode)?;
        self.down.get().map_or(Ok(()), |reason| Err(AskFailure::Unsent(reason)))?;
        let until = Instant::now() + limit.min(LONGEST_ASK);
        let place = timeout_at(until, Arc::clone(&self.places).acquire_owned()).await;
        let Ok(Ok(place)) = place else {
            let text = format!("{MOST_OPEN} requests to nodes wait for their answers");
            return Err(AskFailure::Unsent(text));
        };
        let (answer, answered) = oneshot::channel();
        let sent = self.asks.send(NodeAsk { node, body, until, answer, place });
        sent.map_err(|_| AskFailure::Unsent(ENDING.to_owned()))?;
        match timeout_at(until, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(AskFailure::Unanswered),
        }
    }

    /// Answers what others have asked within half of this time, while whatever they ask then is returned to
    /// them, and closes the connection within all of it. Must be awaited before the runtime ends.
    pub async fn shutdown(&self, budget: Duration) {
        let end = Instant::now() + budget;
        self.shutdown.send_replace(Some(end));
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        end_tasks(task, end).await;
    }
}

/// The task of a [`ControlLink`], across connections.
struct ControlNode {
    shared: Arc<Shared>,
    options: Arc<Options>,
    exchange: String,
    serve: Serve,
    /// Each has a place, so there are few.
    orders: UnboundedReceiver<NodeAsk>,
    node: watch::Receiver<String>,
    down: DownReason,
    shutdown: ShutdownSignal,
    open: OpenAsks,
    backoff: Backoff,
    notes: NoteLog,
    log: RateLimitedLog,
}

/// What a connection consists of.
struct ControlChannels {
    /// This node's queue, and the names that it is bound by.
    queue: String,
    bound: Vec<String>,
    /// What others ask.
    requests: Consumer,
    /// Where answers to them are published.
    answering: Channel,
    /// Answers to what this node asks on the channel `asking`.
    answers: Consumer,
    asking: Channel,
    notes: Vec<Note>,
}

impl ControlChannels {
    async fn open(
        session: &Session,
        options: &Options,
        (exchange, node): (&str, &str),
    ) -> Result<ControlChannels, Fault> {
        let limit = options.timeouts.connect;
        let asking = confirm_channel(session, limit).await?;
        let answers = consume(&asking, DIRECT_REPLY_TO, true, limit).await?;
        let answering = session.channel(limit).await?;
        // Last: whoever asks this node is answered from then on.
        let (queue, notes) = prepare_control(session, options.amqp.topology, (exchange, node), limit).await?;
        let requests = consume(&session.channel(limit).await?, &queue, false, limit).await?;
        Ok(ControlChannels {
            queue,
            bound: vec![node.to_owned()],
            requests,
            answering,
            answers,
            asking,
            notes,
        })
    }
}

async fn consume(channel: &Channel, queue: &str, no_ack: bool, limit: Duration) -> Result<Consumer, Fault> {
    let name = ShortString::try_new(queue).unwrap_or_default();
    let call = async {
        if !no_ack {
            channel.basic_qos(MOST_SERVED, BasicQosOptions::default()).await?;
        }
        let options = BasicConsumeOptions { no_ack, ..BasicConsumeOptions::default() };
        channel.basic_consume(name, "".into(), options, FieldTable::default()).await
    };
    let what = format!("consuming from queue '{queue}'");
    match timeout(limit, call).await {
        Ok(done) => done.map_err(|error| Fault::from(error).while_doing(&what)),
        Err(_) => Err(Fault::timeout(&what, limit)),
    }
}

/// The next delivery of a consumer that does not end by itself.
async fn next(consumer: &mut Consumer, whose: &str) -> Result<Delivery, Fault> {
    match consumer.next().await {
        Some(delivered) => Ok(delivered?),
        None => Err(Fault::lost(format!("the broker cancelled the consumer of {whose}"))),
    }
}

impl ControlNode {
    /// Ends with the shutdown only.
    async fn run(mut self) {
        let (shared, shutdown) = (Arc::clone(&self.shared), self.shutdown.clone());
        let Options { amqp, timeouts, .. } = &*self.options;
        let dialer = Dialer::new("tidegate control", &amqp.endpoints, amqp, timeouts.connect);
        supervise(&mut self, dialer, &shared, &shutdown).await;
        self.orders.close();
        while let Ok(ask) = self.orders.try_recv() {
            ask.fail(AskFailure::Unsent(ENDING.to_owned()));
        }
    }

    /// Publishes a request, unless nothing can be sent.
    fn take(&mut self, ask: NodeAsk, channel: &mut PublishChannel) {
        match self.down.get() {
            Some(reason) => ask.fail(AskFailure::Unsent(reason)),
            None => self.open.publish(ask, &self.exchange, channel),
        }
    }

    /// Takes the end of a request of another node.
    fn served(&mut self, end: Result<ServeEnd, JoinError>) {
        let (detail, message) = match end {
            Ok(ServeEnd::Done) => return,
            Ok(ServeEnd::Foreign) => (String::new(), "a message to this node is none of another node's"),
            Ok(ServeEnd::TooLarge(bytes)) => {
                (format!("{bytes} bytes"), "an answer to another node is longer than 8 MiB, and is not sent")
            }
            Err(error) => (error.to_string(), "a request of another node could not be served"),
        };
        self.log.warn(CONTROL, &detail, message);
    }

    async fn converse(
        &mut self,
        session: &Session,
        channel: &mut PublishChannel,
        channels: &mut ControlChannels,
    ) -> Result<(), Fault> {
        let mut events = Box::pin(session.connection().events_listener());
        let mut check = tokio::time::interval(CHECK);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut serving, mut closing): (JoinSet<ServeEnd>, Option<Instant>) = (JoinSet::new(), None);
        let (mut was_blocked, mut unblocked_at, mut calm_at) = (false, Instant::now(), Instant::now());
        loop {
            let ControlChannels { requests, answers, answering, .. } = channels;
            let is_open = closing.is_none();
            tokio::select! {
                () = requested(&mut self.shutdown), if is_open => {
                    self.down.set(Some(ENDING.to_owned()));
                    let end = self.shutdown.borrow().unwrap_or_else(Instant::now);
                    let half = end.saturating_duration_since(Instant::now()) / 2;
                    closing = Some(Instant::now() + half);
                    let (queue, ways) = (&channels.queue, (&*self.exchange, &*channels.bound));
                    // Without it, what comes now is not answered.
                    let _ = timeout(half, unbind_control(session, queue, ways, half)).await;
                    calm_at = Instant::now() + CALM;
                }
                () = tokio::time::sleep_until(calm_at), if !is_open && calm_at > Instant::now() => {}
                () = channel.woken() => {}
                // The status of the connection shows everything.
                Some(_) = events.next() => {}
                _ = check.tick() => self.open.forget(),
                answer = next(answers, "answers of other nodes") => self.open.answer(answer?),
                request = next(requests, "requests of other nodes") => {
                    calm_at = Instant::now() + CALM;
                    serving.spawn(serve_delivery(request?, Arc::clone(&self.serve), answering.clone()));
                }
                Some(end) = serving.join_next() => self.served(end),
                Ok(()) = self.node.changed(), if is_open => {
                    let name = self.node.borrow_and_update().clone();
                    let limit = self.options.timeouts.connect;
                    bind_control(session, &channels.queue, (&self.exchange, &name), limit).await?;
                    if !channels.bound.contains(&name) {
                        channels.bound.push(name);
                    }
                }
                Some(ask) = self.orders.recv(), if is_open => self.take(ask, channel),
            }
            let mut output = TurnOutput::default();
            let collected = channel.collect(&mut output);
            self.open.settle(output);
            collected?;
            let blocked = session.is_blocked();
            if blocked != std::mem::replace(&mut was_blocked, blocked) && closing.is_none() {
                unblocked_at = Instant::now();
                self.down.set(blocked.then(|| BLOCKED.to_owned()));
            }
            let limit = self.options.timeouts.confirm;
            let waits = |since: Instant| since.max(unblocked_at).elapsed() >= limit;
            if !blocked && channel.oldest().is_some_and(waits) {
                return Err(Fault::timeout("the confirm of a request to another node", limit));
            }
            if !channels.answering.status().connected() && session.is_connected() {
                return Err(Fault::setup(
                    "the channel for answers to other nodes was closed: the login needs the write permission \
                     on amq.default",
                ));
            }
            let now = Instant::now();
            if closing.is_some_and(|end| end <= now || serving.is_empty() && calm_at <= now) {
                return Ok(());
            }
        }
    }
}

/// What the log says these events are about.
const CONTROL: &str = "control";

impl ConnectionUser for ControlNode {
    /// The login that it uses.
    const SIDE: Side = Side::Ingest;

    fn subject(&self) -> &'static str {
        CONTROL
    }

    async fn work(&mut self, session: &Arc<Session>) -> Result<(), Fault> {
        let node = self.node.borrow_and_update().clone();
        let (options, exchange) = (Arc::clone(&self.options), self.exchange.clone());
        let opening = ControlChannels::open(session, &options, (&exchange, &node));
        let mut channels = match self.while_disconnected(opening).await {
            Some(opened) => opened?,
            None => return Ok(()),
        };
        let notes = self.notes.take(Self::SIDE, std::mem::take(&mut channels.notes));
        let address = session.address().to_owned();
        self.shared.link(Self::SIDE, LinkStatus::Up { address, notes, dead: None });
        let mut channel = PublishChannel::new(channels.asking.clone(), id_of);
        let result = self.converse(session, &mut channel, &mut channels).await;
        // Closing may take its time, and nothing is sent any more.
        if let Err(fault) = &result {
            self.down.set(Some(fault.text.clone()));
        }
        let mut output = TurnOutput::default();
        // The session closes the channel with itself.
        drop(channel.end(&Outcome::Unknown, &mut output));
        self.open.settle(output);
        self.open.fail_all();
        result
    }

    /// Refuses what is asked meanwhile.
    async fn while_disconnected<T: Send>(&mut self, wait: impl Future<Output = T> + Send) -> Option<T> {
        let mut wait = std::pin::pin!(wait);
        let mut shutdown = self.shutdown.clone();
        loop {
            match ended_or_ordered(wait.as_mut(), &mut self.orders, &mut shutdown).await? {
                Ok(done) => return Some(done),
                Err(ask) => ask.fail(AskFailure::Unsent(self.down.get().unwrap_or_default())),
            }
        }
    }

    fn on_failure(&mut self, fault: Fault) -> (String, Duration) {
        let advice = match fault.code {
            Some(403) => "; `tidegate topology print` shows the rights that nodes need to ask each other",
            Some(404) => {
                "; nodes need it to ask each other: make it (`tidegate topology print` shows how), or set \
                 amqp.topology = \"declare\""
            }
            Some(_) | None => "",
        };
        (format!("{}{advice}", fault.text), self.backoff.next())
    }

    fn backoff(&mut self) -> &mut Backoff {
        &mut self.backoff
    }
}
