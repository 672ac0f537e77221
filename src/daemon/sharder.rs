//! The sharder of a daemon with several shards: the consumer of the ingest queue, whose requests are forwarded
//! to the queues of their homes. It has no engine and keeps nothing: a request is acked once all its parts are
//! in those queues.
//!
//! Its two ends run on a runtime of their own, and so does the task that counts what may be acked. The
//! forwarder serves the shards as well.

use super::guard::PartWatch;
use super::lasting::one_worker;
use super::starts::Starts;
use super::status::{self, note_link, LINKS};
use super::RunError;
use crate::admin::{Latch, LinkState, ShardHealth};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_amqp::{Amqp, BrokerEvent, Event, ForwardQueue, Forwarding, LinkStatus, Options};
use tidegate_common::clock;
use tidegate_config::Config;
use tidegate_engine::Ledger;
use tidegate_types::event::Intake;
use tidegate_types::RequestBody;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{timeout, MissedTickBehavior};
use tracing::Span;

/// Names of its links in the state.
const SIDES: [&str; 2] = ["sharder", "forwarder"];
/// Time for the last confirms and acks of a stop.
const END_WITHIN: Duration = Duration::from_secs(3);

/// Last state of the two links.
pub(super) type SharderLinks = Arc<Mutex<[Option<LinkStatus>; LINKS]>>;

/// A sharder at work.
pub(super) struct Sharder {
    runtime: Runtime,
    amqp: Arc<Amqp>,
    stop: watch::Sender<bool>,
    keeping: JoinHandle<()>,
    /// Ends with the sharder.
    _watch: PartWatch,
}

impl Sharder {
    /// Connects to the broker. `config`: that of the node.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(super) fn start(
        config: &Config,
        forwarding: (Forwarding, ForwardQueue),
        health: &ShardHealth,
        links: SharderLinks,
    ) -> Result<Self, RunError> {
        let runtime = one_worker("tidegate-sharder", &Span::none())?;
        let watch = PartWatch::start("tidegate-guard-sharder", Arc::clone(&health.progress));
        let watch = watch.map_err(RunError::Runtime)?;
        let (starts, quarantine) = Starts::noted(&config.store);
        health.progress.begin();
        // It has no store, and nothing for one.
        health.readiness.set(Latch::Store, true);
        let part = config.of_shard(0).limits.memory;
        let progress = Arc::clone(&health.progress);
        let options = Options { progress, memory: part, ..Options::new(config, 0, quarantine) };
        let (sender, events) = unbounded_channel();
        // Without the task the daemon is ending.
        let on_event = Arc::new(move |event| drop(sender.send(event)));
        let amqp = Arc::new(Amqp::start_sharder(runtime.handle(), options, forwarding, on_event));
        amqp.intake(Intake::Resume);
        let (stop, stopped) = watch::channel(false);
        let keeper = Keeper {
            amqp: Arc::clone(&amqp),
            ledger: Ledger::new(true),
            starts,
            health: health.clone(),
            links,
            stopped,
        };
        let keeping = runtime.spawn(keeper.keep(events));
        Ok(Sharder { runtime, amqp, stop, keeping, _watch: watch })
    }

    /// Puts a configuration into force for what is read from now on.
    pub(super) fn configure(&self, config: &Config) {
        self.amqp.reconfigure(config);
    }

    /// Takes no more requests, and lets those on their way arrive.
    pub(super) fn stop(&self) {
        self.amqp.stop_intake();
        self.stop.send_replace(true);
    }

    /// Waits for the end of the stop, on this runtime.
    pub(super) fn end(self, waits: &Runtime) {
        self.stop();
        let Sharder { runtime, keeping, .. } = self;
        let ended = async { timeout(END_WITHIN * 3, keeping).await };
        if waits.block_on(ended).is_err() {
            tracing::warn!(
                "the sharder did not end in time; what it has not forwarded is in the ingest queue"
            );
        }
        runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

/// Counts what may be acked.
struct Keeper {
    amqp: Arc<Amqp>,
    /// Acks one by one: forwards are confirmed in any order.
    ledger: Ledger,
    starts: Starts,
    health: ShardHealth,
    links: SharderLinks,
    stopped: watch::Receiver<bool>,
}

impl Keeper {
    async fn keep(mut self, mut events: UnboundedReceiver<Event>) {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stopped = self.stopped.clone();
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.hear(event),
                    None => return,
                },
                _ = second.tick() => self.starts.look(clock::now().mono),
                _ = stopped.wait_for(|stopped| *stopped) => break,
            }
        }
        self.health.progress.end();
        // What has been handed over is confirmed and acked, so that it is not forwarded twice.
        let last = async {
            while self.ledger.unacked() > 0 {
                let Some(event) = events.recv().await else { break };
                self.hear(event);
            }
        };
        // What is left is delivered again.
        let _ = timeout(END_WITHIN, last).await;
        self.amqp.shutdown(END_WITHIN).await;
        self.starts.settle();
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Requests { requests, .. } => {
                for request in requests {
                    // Whoever keeps nothing finds nothing to keep.
                    debug_assert!(matches!(&request.body, RequestBody::Elsewhere(items) if items.is_empty()));
                    self.ledger.open(request.delivery, 1);
                }
            }
            Event::Settled(_) => {}
            Event::Broker(event) => self.broker(event),
        }
    }

    fn broker(&mut self, event: BrokerEvent) {
        match event {
            BrokerEvent::IngestReady { generation } => {
                self.ledger.restart(generation);
                self.health.readiness.set(Latch::Consumer, true);
            }
            BrokerEvent::IngestLost => {
                self.ledger.restart(0);
                self.health.readiness.set(Latch::Consumer, false);
            }
            BrokerEvent::Forwarded(deliveries) => {
                deliveries.into_iter().for_each(|delivery| self.ledger.safe(delivery));
                let mut acks = Vec::new();
                self.ledger.acks(clock::now(), &mut acks);
                self.amqp.ack(acks);
            }
            BrokerEvent::Link { side, link } => {
                let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
                note_link(&mut links, side, link, &self.health.readiness);
            }
            BrokerEvent::Quarantine { width } => self.starts.quarantine(width),
            BrokerEvent::Prefetch(_)
            | BrokerEvent::EgressReady
            | BrokerEvent::EgressLost
            | BrokerEvent::EgressBlocked(_)
            | BrokerEvent::Answered(_) => {}
        }
    }
}

/// The links for the state.
pub(super) fn link_states(links: &SharderLinks) -> Vec<LinkState> {
    let links = links.lock().unwrap_or_else(PoisonError::into_inner);
    SIDES.iter().zip(&*links).map(|(side, link)| status::link_state(side, link.as_ref())).collect()
}
