//! The two AMQP ends: one connection consumes requests, another publishes batches. A third one, opened on
//! first use, carries the answers to commands (`replies`). By a fourth one, the nodes of a database ask each
//! other (`control`).
//!
//! Each end is a supervisor task that opens a connection, works until the first error of any kind, drops the
//! connection with everything on it, and begins again with a new generation after a jittered back-off,
//! indefinitely. lapin's own recovery is off: a delivery tag or a confirm is valid only within the channel it
//! came from, and the generation makes that visible.
//!
//! Deliberately absent: the meaning of requests and batches (`wire`), the decision which of them to ack,
//! publish or retry (the engine), and any change to an existing object on the broker (`topology` only
//! creates; the command of `adopt` takes bindings away, and deletes the exchanges of several shards).
//!
//! Bounds: the prefetch bounds deliveries, the engine's slots bound publishes, and a time limit bounds every
//! wait for the broker.

mod adopt;
mod alone;
mod backoff;
pub mod blueprint;
mod channels;
mod confirm_tracker;
mod confirms;
mod connection;
mod consumer;
mod consumer_channel;
mod control;
mod cost;
mod dead_queue;
mod declaring;
mod fault;
mod figures;
mod forwarder;
mod gate;
mod ingest_lock;
mod ingest_way;
mod inspect;
mod liveness;
mod mapper;
mod message;
mod prefetch;
mod publish_channel;
mod publisher;
pub mod quarantine;
mod reopening;
mod replies;
mod rights;
mod shared;
mod shared_map;
mod spans;
mod supervise;
mod suspects;
mod topology;
mod unacked;

pub use adopt::adopt;
pub use blueprint::lock_name;
pub use connection::{address, connect, is_exposed, ConnectError};
pub use control::{AskFailure, ControlLink, Serve};
pub use dead_queue::DeadLetterService;
pub use figures::{Figures, Stats};
pub use forwarder::{forward_queues, ForwardQueues, ForwardSender};
pub use gate::ShardGate;
pub use ingest_way::lead_to_ingest;
pub use inspect::inspect;
pub use replies::OutgoingReply;
pub use shared_map::{MapStats, SharedMap};
pub use spans::{OnSpan, PublishSpan};

use replies::{Handed, Replies};
use shared::Shared;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_common::lease::Lease;
use tidegate_common::progress::ProgressMarks;
use tidegate_config::Config;
use tidegate_types::event::Intake;
use tidegate_types::{Ack, Batch, Delivery, Request, Settled};
use tidegate_wire::RequestLimits;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Events from the broker for the daemon's loop.
#[derive(Debug)]
pub enum Event {
    /// Parsed deliveries, in the order of their tags.
    Requests {
        /// At least one of them.
        requests: Vec<Request>,
        /// The broker sends more of them, and none is due within [`FAR_MS`]: they may wait for others.
        may_wait: bool,
    },
    /// Outcomes of publishes.
    Settled(Vec<Settled>),
    /// Everything that comes one at a time.
    Broker(BrokerEvent),
}

/// A request whose items are all due later than this after its receipt may wait for others before it is
/// judged, ms. Several times as long as that wait.
pub const FAR_MS: u64 = 50;

/// What happens to the connections and on them, but for deliveries and outcomes.
#[derive(Debug)]
pub enum BrokerEvent {
    /// A new consumer runs; [`BrokerEvent::IngestLost`] ended the one before it.
    IngestReady {
        /// Number of the consumer's channel within this process, from 1.
        generation: u32,
    },
    /// The prefetch has changed: this many deliveries may be unacked from now on.
    Prefetch(u16),
    /// The consumer's channel is gone; the broker redelivers what was not acked.
    IngestLost,
    /// As ordered, nothing is delivered any more; acks are still sent.
    IngestStopped,
    /// Batches can be published.
    EgressReady,
    /// Batches cannot be published. All batches handed over so far have been settled; one that is handed over
    /// before the loop has read this event is settled as [`tidegate_types::Outcome::Unsent`] right
    /// after it.
    EgressLost,
    /// The broker blocks the publishing connection (true), or accepts messages again (false).
    EgressBlocked(bool),
    /// The answers to these commands were sent or given up.
    Answered(Vec<Delivery>),
    /// What these deliveries contained for other shards is in the queues of those.
    Forwarded(Vec<Delivery>),
    /// The quarantine that follows quick deaths takes this many deliveries at a time from now on; `None`: it
    /// has ended.
    Quarantine {
        /// Deliveries at a time.
        width: Option<u16>,
    },
    /// For status and readiness; sent when it changes.
    Link {
        /// Connection that changed.
        side: Side,
        /// State it is in now.
        link: LinkStatus,
    },
}

impl From<BrokerEvent> for Event {
    fn from(event: BrokerEvent) -> Self {
        Event::Broker(event)
    }
}

/// Which of the two connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Connection that consumes requests.
    Ingest,
    /// Connection that publishes batches.
    Egress,
}

impl Side {
    /// `ingest` or `egress`.
    pub fn as_str(self) -> &'static str {
        match self {
            Side::Ingest => "ingest",
            Side::Egress => "egress",
        }
    }
}

/// State of one end. Texts name queue, exchange, user or permission; never a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkStatus {
    /// Connecting: from the name look-up to the handshake, then the topology.
    Connecting {
        /// Host and port.
        address: String,
    },
    /// Connected and in use.
    Up {
        /// Host and port.
        address: String,
        /// Differences between the objects on the broker and the configuration; the objects are used as they
        /// are.
        notes: Vec<String>,
        /// Why dead letters cannot be published; everything else goes on.
        dead: Option<String>,
    },
    /// Connected, and deliberately not taking requests: the intake is paused, or stopped.
    Paused {
        /// Host and port.
        address: String,
    },
    /// Connected, and waiting for its turn: another daemon serves the ingest queue.
    Standby {
        /// How that is known, and the likely cause if no other daemon runs.
        reason: String,
    },
    /// Connected, but the broker accepts no messages (memory or disk alarm).
    Blocked {
        /// The broker's reason.
        reason: String,
    },
    /// No connection, or one that cannot be used.
    Down {
        /// Text of the failure, without secrets.
        error: String,
        /// Pause before the next attempt.
        retry_in: Duration,
    },
    /// Ended by a shutdown.
    Closed,
}

impl LinkStatus {
    /// Connected, and the objects in use exist on the broker.
    pub fn is_up(&self) -> bool {
        match self {
            LinkStatus::Up { .. }
            | LinkStatus::Paused { .. }
            | LinkStatus::Standby { .. }
            | LinkStatus::Blocked { .. } => true,
            LinkStatus::Connecting { .. } | LinkStatus::Down { .. } | LinkStatus::Closed => false,
        }
    }
}

/// Everything the two ends need to know.
#[derive(Clone, Debug)]
pub struct Options {
    /// Section `[amqp]` of the configuration.
    pub amqp: tidegate_config::AmqpConfig,
    /// Section `[ingest]` of the configuration.
    pub ingest: tidegate_config::IngestConfig,
    /// The objects on the broker: those of the node, or those of a shard alone.
    pub names: blueprint::Names,
    /// Section `[egress]` of the configuration.
    pub egress: tidegate_config::EgressConfig,
    /// Section `[dead]` of the configuration.
    pub dead: tidegate_config::DeadLetters,
    /// Limits of one request.
    pub limits: RequestLimits,
    /// How requests are read, by application.
    pub readings: Arc<tidegate_config::Readings>,
    /// Receives spans, if an exporter is configured.
    pub spans: Option<OnSpan>,
    /// Where both ends record their progress.
    pub progress: Arc<ProgressMarks>,
    /// Counters of both ends, which outlive these connections.
    pub figures: Arc<Figures>,
    /// Lease on the store: nothing is published once it has run out. `None`: the store needs no lease.
    pub lease: Option<Arc<Lease>>,
    /// `limits.memory`, bytes: a quarter of it bounds what is unacked.
    pub memory: u64,
    /// Section `[timeouts]` of the configuration.
    pub timeouts: tidegate_config::Timeouts,
    /// Part of the ids that this store assigns.
    pub store_identity: u64,
    /// How requests come to their homes; `None`: there is one shard.
    pub forwarding: Option<Forwarding>,
    /// Set after several quick deaths of the process, since a message may be the cause: the consumer takes
    /// one delivery at a time at first and this many at most, until the redelivered requests have passed.
    pub quarantine: Option<u16>,
    /// How long deliveries may be held while the intake is paused; less than the broker's consumer timeout
    /// (30 min unless configured otherwise).
    pub held_limit: Duration,
    /// How long an answer to a command may take, from its hand-over to its confirm. The command is acked only
    /// then, and others wait behind it.
    pub answer_limit: Duration,
}

/// How a consumer passes requests on to other shards.
#[derive(Clone, Debug)]
pub struct Forwarding {
    /// Which requests have their home where.
    pub sharing: tidegate_wire::Sharing,
    /// The way to the forwarders.
    pub sender: ForwardSender,
    /// Whether the sharder serves the ingest queue, where its daemon alone serves the shards.
    pub gate: Option<ShardGate>,
    /// The objects on the broker that the whole daemon uses.
    pub names: Arc<blueprint::Names>,
    /// What the whole daemon knows of the map.
    pub map: Arc<SharedMap>,
}

impl Forwarding {
    /// The gate, unless it is the sharder's own.
    fn gate_of_shard(&self) -> gate::WatchedGate {
        self.gate.as_ref().filter(|_| self.sharing.own.is_some()).map(ShardGate::watch).unwrap_or_default()
    }
}

/// How long a task may take to notice that it is aborted.
const ABORT_WITHIN: Duration = Duration::from_millis(500);

/// Default of [`Options::held_limit`].
const HELD_LIMIT: Duration = Duration::from_secs(25 * 60);

/// Default of [`Options::answer_limit`].
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

impl Options {
    /// From the checked configuration.
    pub fn new(config: &Config, store_identity: u64, quarantine: Option<u16>) -> Self {
        Options {
            amqp: config.amqp.clone(),
            ingest: config.ingest.clone(),
            names: blueprint::Names::of(config),
            egress: config.egress.clone(),
            dead: config.dead.clone(),
            limits: request_limits(config),
            readings: Arc::clone(&config.readings),
            spans: None,
            progress: Arc::default(),
            figures: Arc::default(),
            lease: None,
            memory: config.limits.memory,
            timeouts: config.timeouts,
            store_identity,
            forwarding: None,
            quarantine,
            held_limit: HELD_LIMIT,
            answer_limit: ANSWER_LIMIT,
        }
    }
}

/// The limits of one request.
pub fn request_limits(config: &Config) -> RequestLimits {
    let limits = &config.limits;
    RequestLimits {
        max_body: limits.max_body,
        max_envelope_items: limits.max_envelope_items,
        max_delay_ms: u64::try_from(limits.max_delay.as_millis()).unwrap_or(u64::MAX),
        frame_max: config.amqp.frame_max,
    }
}

/// Orders to the consumer, in order.
#[derive(Debug)]
enum IngestOrder {
    Acks(Vec<Ack>),
    Intake(Intake),
    Configure { limits: RequestLimits, readings: Arc<tidegate_config::Readings>, memory: u64 },
    Stop,
}

/// Work for the publisher.
#[derive(Default)]
struct Handover {
    batches: Vec<Batch>,
    /// Numbers of batches that were handed over before.
    give_up: Vec<u64>,
}

/// Waits for the ends of tasks whose shutdown has begun, and aborts those that outlast it.
async fn end_tasks(tasks: impl IntoIterator<Item = JoinHandle<()>>, end: Instant) {
    for mut task in tasks {
        if tokio::time::timeout_at(end, &mut task).await.is_err() {
            tracing::warn!("a connection could not be closed in time and is abandoned");
            task.abort();
            // The abort takes effect at the task's next step, if there is one; its socket is shut down with
            // it.
            let _ = tokio::time::timeout(ABORT_WITHIN, task).await;
        }
    }
}

/// `None` until the shutdown begins, then its deadline.
type ShutdownSignal = watch::Receiver<Option<Instant>>;

/// Handle of both ends. Its orders may be given from any thread and never block.
pub struct Amqp {
    shared: Arc<Shared>,
    ingest: mpsc::UnboundedSender<IngestOrder>,
    egress: mpsc::UnboundedSender<Handover>,
    replies: mpsc::UnboundedSender<Handed>,
    shutdown: watch::Sender<Option<Instant>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Amqp {
    /// Starts the ends: ingest and answers on the first runtime, egress on the second, which may be the same
    /// one. `on_event` is called from their threads and must not block.
    ///
    /// The runtimes must have timers and I/O enabled and own worker threads, and `RUST_MIN_STACK` must be set
    /// before the call: lapin parses nested headers by recursion on its own thread.
    pub fn start(
        (inward, outward): (&Handle, &Handle),
        options: Options,
        on_event: Arc<dyn Fn(Event) + Send + Sync>,
    ) -> Amqp {
        for endpoint in options.amqp.endpoints.iter().chain(&options.egress.endpoints) {
            if is_exposed(endpoint) {
                tracing::warn!(
                    address = %address(endpoint),
                    "passwords and messages go to this broker unencrypted; amqps:// would protect them"
                );
            }
        }
        let (shared, options) = Shared::of(options, on_event);
        let (ingest, ingest_orders) = mpsc::unbounded_channel();
        let (egress, egress_orders) = mpsc::unbounded_channel();
        let (replies, reply_orders) = mpsc::unbounded_channel();
        let (shutdown, signal) = watch::channel(None);
        let consumer = consumer::Ingest::new(shared.clone(), options.clone(), ingest_orders, signal.clone());
        let publisher =
            publisher::EgressPublisher::new(shared.clone(), options.clone(), egress_orders, signal.clone());
        let replies_out = Replies::new(shared.clone(), options, reply_orders, signal);
        let tasks = vec![
            inward.spawn(consumer.run()),
            outward.spawn(publisher.run()),
            inward.spawn(replies_out.run()),
        ];
        Amqp { shared, ingest, egress, replies, shutdown, tasks: Mutex::new(tasks) }
    }

    /// Starts the ends of a sharder: the consumer of the ingest queue, which keeps nothing, and the
    /// forwarders of all consumers of this daemon, whose requests come from `queues`. `on_event` is called
    /// for the consumer, and `on_link` for the connection of the forwarder of a shard.
    pub fn start_sharder(
        runtime: &Handle,
        options: Options,
        (forwarding, queues): (Forwarding, ForwardQueues),
        on_event: Arc<dyn Fn(Event) + Send + Sync>,
        on_link: Arc<dyn Fn(u16, LinkStatus) + Send + Sync>,
    ) -> Amqp {
        let (key, map) = (forwarding.sharing.key.clone(), Arc::clone(&forwarding.map));
        let names = Arc::clone(&forwarding.names);
        let options = Options { forwarding: Some(forwarding), ..options };
        let (shared, options) = Shared::of(options, on_event);
        let (ingest, ingest_orders) = mpsc::unbounded_channel();
        let ((egress, _), (replies, _)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let (shutdown, signal) = watch::channel(None);
        let consumer = consumer::Ingest::new(shared.clone(), options.clone(), ingest_orders, signal.clone());
        let mut tasks = vec![runtime.spawn(consumer.run())];
        for ((shard, parts), queue) in queues.by_shard().zip(&options.names.shards) {
            let on_link = Arc::clone(&on_link);
            let on_event = move |event| {
                if let Event::Broker(BrokerEvent::Link { link, .. }) = event {
                    on_link(shard, link);
                }
            };
            // All of them run on one thread, so one mark shows whether it moves.
            let (progress, figures) = (Arc::clone(&options.progress), Arc::clone(&options.figures));
            let own = Arc::new(Shared::new(Arc::new(on_event), progress, figures));
            let (options, signal) = (options.clone(), signal.clone());
            let mapper = mapper::Mapper::new(Arc::clone(&map), Arc::clone(&names), shard);
            let way = (key.clone(), mapper);
            let forwarder = forwarder::Forwarder::new(own, options, way, (queue, parts), signal);
            tasks.push(runtime.spawn(forwarder.run()));
        }
        Amqp { shared, ingest, egress, replies, shutdown, tasks: Mutex::new(tasks) }
    }

    /// Acks deliveries of the ingest queue. Acks of an old generation are dropped.
    pub fn ack(&self, acks: Vec<Ack>) {
        self.order(IngestOrder::Acks(acks));
    }

    /// Hands batches to the publisher, in order. Each is settled exactly once by [`Event::Settled`].
    pub fn publish(&self, batches: Vec<Batch>) {
        self.hand_over(Handover { batches, give_up: Vec::new() });
    }

    /// Gives up batches that were published alone, by number, to free their channels. A batch that is not
    /// settled yet is settled as [`Outcome::Overdue`](tidegate_types::Outcome::Overdue), or as unsent
    /// if it was not published.
    pub fn give_up(&self, numbers: Vec<u64>) {
        self.hand_over(Handover { batches: Vec::new(), give_up: numbers });
    }

    fn hand_over(&self, handover: Handover) {
        self.shared.handed(handover.batches.len());
        // After the shutdown no loop is left that would read the outcomes.
        let _ = self.egress.send(handover);
    }

    /// Hands over answers to commands. Each is reported exactly once by [`BrokerEvent::Answered`], soon after
    /// [`Options::answer_limit`] at the latest, whether or not it could be sent.
    pub fn reply(&self, replies: Vec<OutgoingReply>) {
        // After the shutdown no loop is left that waits for it.
        let _ = self.replies.send((Instant::now(), replies));
    }

    /// Holds deliveries back, or forwards them again. The intake begins paused: the first [`Intake::Resume`]
    /// starts the consumer.
    pub fn intake(&self, intake: Intake) {
        self.order(IngestOrder::Intake(intake));
    }

    /// Applies a reload to requests that are read from now on.
    pub fn reconfigure(&self, config: &Config) {
        let limits = request_limits(config);
        let (readings, memory) = (Arc::clone(&config.readings), config.limits.memory);
        self.order(IngestOrder::Configure { limits, readings, memory });
    }

    /// Stops consuming for good; acks are still sent. Unread deliveries return to the queue when the
    /// connection closes.
    pub fn stop_intake(&self) {
        self.order(IngestOrder::Stop);
    }

    /// The present prefetch: most deliveries that may be unacked.
    pub fn prefetch(&self) -> u32 {
        self.shared.prefetch()
    }

    /// [`Options::figures`] at this moment.
    pub fn stats(&self) -> Stats {
        self.shared.figures().stats()
    }

    /// Waits for outstanding confirms for at most half of the budget, closes the connections, and ends their
    /// tasks. A task that outlasts the budget is aborted; one that does not end even then is left to the end
    /// of its runtime or of the process. Must be awaited before the runtimes end, and on another one: theirs
    /// may be stuck.
    pub async fn shutdown(&self, budget: Duration) {
        let end = Instant::now() + budget;
        self.shutdown.send_replace(Some(end));
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        end_tasks(tasks, end).await;
    }

    fn order(&self, order: IngestOrder) {
        // After the shutdown there is nothing left to order.
        let _ = self.ingest.send(order);
    }
}
