//! The sharder of a daemon with several shards: the consumer of the ingest queue, whose requests are
//! forwarded to the queues of their homes. It has no engine and keeps nothing: a request is acked once all
//! its parts are in those queues.
//!
//! Its ends run on a runtime of their own, and so does the task that counts what may be acked. The
//! forwarders, one for each shard, serve the shards as well. While none of them can publish, no requests are
//! taken.

use super::guard::PartWatch;
use super::lasting::one_worker;
use super::starts::Starts;
use super::status::{link_state, map_state};
use super::RunError;
use crate::admin::{Latch, LinkState, ShardHealth, StateInput};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_amqp::{
    Amqp, BrokerEvent, Event, Figures, ForwardQueues, Forwarding, LinkStatus, Options, SharedMap,
};
use tidegate_common::clock;
use tidegate_common::progress::DaemonPart;
use tidegate_config::Config;
use tidegate_engine::Ledger;
use tidegate_types::event::Intake;
use tidegate_types::RequestBody;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{timeout, timeout_at, Instant, MissedTickBehavior};
use tracing::Span;

/// What a stop of the sharder leaves of `timeouts.drain`, as the drain of the shards does.
const OF_SHARDS: Duration = Duration::from_secs(5);
/// The longest stop of the sharder: it has the ingest queue until its end, and no other node takes requests.
const STOPS_WITHIN: Duration = Duration::from_secs(15);
/// Time for closing the connections, after the last confirms and acks.
const CLOSED_WITHIN: Duration = Duration::from_secs(3);

/// Last states of the links of a sharder.
#[derive(Debug, Default)]
pub(super) struct SharderLinks {
    consumer: Option<LinkStatus>,
    /// By shard; empty before the sharder has started.
    forwarders: Vec<Option<LinkStatus>>,
}

impl SharderLinks {
    /// The links for the state.
    pub(super) fn states(&self) -> Vec<LinkState> {
        let forwarders = self.forwarders.iter().map(|link| ("forwarder", link));
        let all = std::iter::once(("sharder", &self.consumer)).chain(forwarders);
        all.map(|(side, link)| link_state(side, link.as_ref())).collect()
    }

    /// Whether a forwarder can publish. Its broker and login are those of the consumers of this node: so the
    /// node can serve shards, also where the ingest queue itself cannot be consumed.
    fn may_forward(&self) -> bool {
        self.forwarders.iter().any(|link| matches!(link, Some(LinkStatus::Up { .. })))
    }
}

/// Whether a sharder with these links reaches its broker.
pub(super) fn is_connected(links: &Mutex<SharderLinks>) -> bool {
    locked(links).may_forward()
}

/// What the state tells of a daemon with several shards beside its shards, also before its sharder starts.
#[derive(Clone, Debug, Default)]
pub(super) struct SharderView {
    pub(super) links: Arc<Mutex<SharderLinks>>,
    /// Counters of the map, of the sharder and all shards.
    pub(super) map: Arc<SharedMap>,
    /// Figures of its ends: of its consumer, and of the forwarders.
    pub(super) figures: Arc<Figures>,
}

impl SharderView {
    /// Adds what there is to tell at this moment.
    pub(super) fn add_to(&self, state: &mut StateInput) {
        state.links.extend(locked(&self.links).states());
        state.map = Some(map_state(self.map.stats()));
        let own = self.figures.stats();
        let [(_, ingest), (_, egress)] = &mut state.traffic.connections_failed;
        *ingest += own.ingest_failures;
        *egress += own.egress_failures;
        state.traffic.parse_errors += own.parse_errors;
        state.traffic.near_miss_headers += own.near_miss_headers;
    }
}

/// What the sharder hears of its ends.
enum SharderEvent {
    Consumer(Event),
    /// The link of the forwarder of a shard has changed.
    Forwarder(u16, LinkStatus),
}

/// A sharder at work.
pub(super) struct Sharder {
    runtime: Runtime,
    amqp: Arc<Amqp>,
    stop: watch::Sender<bool>,
    keeping: JoinHandle<()>,
    /// How long a stop may take.
    stops_within: Duration,
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
        forwarding: (Forwarding, ForwardQueues),
        health: &ShardHealth,
        view: &SharderView,
    ) -> Result<Self, RunError> {
        let runtime = one_worker("tidegate-sharder", &Span::none())?;
        let watch = PartWatch::start("tidegate-guard-sharder", Arc::clone(&health.progress));
        let watch = watch.map_err(RunError::Runtime)?;
        let (starts, quarantine) = Starts::noted(&config.store);
        health.progress.begin();
        // It has no store, and nothing for one.
        health.readiness.set(Latch::Store, true);
        let (progress, figures) = (Arc::clone(&health.progress), Arc::clone(&view.figures));
        let options = Options { progress, figures, ..Options::new(&own(config), 0, quarantine) };
        let forwarders = usize::from(config.shards.count);
        let links = Arc::clone(&view.links);
        *locked(&links) = SharderLinks { consumer: None, forwarders: vec![None; forwarders] };
        let is_shared = forwarding.0.gate.is_none();
        let (sender, events) = unbounded_channel();
        let link_sender = sender.clone();
        // Without the task the daemon is ending.
        let on_event = Arc::new(move |event| drop(sender.send(SharderEvent::Consumer(event))));
        let on_link =
            Arc::new(move |shard, link| drop(link_sender.send(SharderEvent::Forwarder(shard, link))));
        let amqp = Amqp::start_sharder(runtime.handle(), options, forwarding, on_event, on_link);
        let amqp = Arc::new(amqp);
        let (stop, stopped) = watch::channel(false);
        let drain = config.timeouts.drain.saturating_sub(OF_SHARDS);
        let stops_within = drain.clamp(CLOSED_WITHIN * 2, STOPS_WITHIN);
        let keeper = Keeper {
            amqp: Arc::clone(&amqp),
            ledger: Ledger::new(false),
            starts,
            health: health.clone(),
            links,
            stopped,
            stops_within,
            takes: false,
            consumes: false,
            is_shared,
        };
        let keeping = runtime.spawn(keeper.keep(events));
        Ok(Sharder { runtime, amqp, stop, keeping, stops_within, _watch: watch })
    }

    /// Puts a configuration into force for what is read from now on.
    pub(super) fn configure(&self, config: &Config) {
        self.amqp.reconfigure(&own(config));
    }

    /// Takes no more requests, and lets those on their way arrive.
    pub(super) fn stop(&self) {
        self.amqp.stop_intake();
        self.stop.send_replace(true);
    }

    /// Waits for the end of the stop, on this runtime.
    pub(super) fn end(self, waits: &Runtime) {
        self.stop();
        let Sharder { runtime, keeping, stops_within, .. } = self;
        let ended = async { timeout(stops_within + CLOSED_WITHIN, keeping).await };
        if waits.block_on(ended).is_err() {
            tracing::warn!(
                "the sharder did not end in time; what it has not forwarded is in the ingest queue"
            );
        }
        runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

/// The configuration of the node, with the part of the memory that the sharder may use: that of a shard.
fn own(config: &Config) -> Config {
    let mut own = config.clone();
    own.limits.memory = config.of_shard(0).limits.memory;
    own
}

fn locked(links: &Mutex<SharderLinks>) -> MutexGuard<'_, SharderLinks> {
    links.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts what may be acked.
struct Keeper {
    amqp: Arc<Amqp>,
    /// Acks many at once: of thousands of single acks, a quorum queue loses some as their channel closes.
    ledger: Ledger,
    starts: Starts,
    health: ShardHealth,
    links: Arc<Mutex<SharderLinks>>,
    stopped: watch::Receiver<bool>,
    stops_within: Duration,
    /// Requests are wanted.
    takes: bool,
    /// Requests may be delivered.
    consumes: bool,
    /// Other nodes share the shards.
    is_shared: bool,
}

impl Keeper {
    async fn keep(mut self, mut events: UnboundedReceiver<SharderEvent>) {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stopped = self.stopped.clone();
        loop {
            tokio::select! {
                event = self.next(&mut events) => match event {
                    Some(event) => self.hear(event),
                    None => return,
                },
                _ = second.tick() => {
                    self.health.progress.moved(DaemonPart::Loop);
                    self.starts.look(clock::now().mono);
                }
                _ = stopped.wait_for(|stopped| *stopped) => break,
            }
        }
        let end = Instant::now() + self.stops_within;
        self.health.progress.end();
        self.set_consumer(false);
        while let Ok(event) = events.try_recv() {
            self.hear(event);
        }
        // What has been handed over is confirmed and acked, so that it is not forwarded twice.
        let last = async {
            while self.consumes || self.ledger.unacked() > 0 {
                let Some(event) = self.next(&mut events).await else { break };
                self.hear(event);
            }
        };
        // What is left is delivered again.
        let _ = timeout_at(end - CLOSED_WITHIN, last).await;
        self.amqp.shutdown(end.saturating_duration_since(Instant::now())).await;
        self.starts.settle();
    }

    /// The next event. Meanwhile, acks what the ledger holds back no longer. Safe to cancel.
    async fn next(&mut self, events: &mut UnboundedReceiver<SharderEvent>) -> Option<SharderEvent> {
        while let Some(at) = self.ledger.deadline() {
            let left = Duration::from_millis(at.saturating_sub(clock::now().mono));
            match timeout(left, events.recv()).await {
                Ok(event) => return event,
                Err(_) => self.ack(),
            }
        }
        events.recv().await
    }

    fn ack(&mut self) {
        let mut acks = Vec::new();
        self.ledger.acks(clock::now(), &mut acks);
        if !acks.is_empty() {
            self.amqp.ack(acks);
        }
    }

    fn hear(&mut self, event: SharderEvent) {
        match event {
            SharderEvent::Consumer(Event::Requests { requests, .. }) => {
                for request in requests {
                    debug_assert!(matches!(&request.body, RequestBody::Elsewhere(items) if items.is_empty()));
                    self.ledger.open(request.delivery, 1);
                }
            }
            SharderEvent::Consumer(Event::Settled(_)) => {}
            SharderEvent::Consumer(Event::Broker(event)) => self.broker(event),
            SharderEvent::Forwarder(shard, link) => {
                if let Some(known) = locked(&self.links).forwarders.get_mut(usize::from(shard)) {
                    *known = Some(link);
                }
                self.judge_links();
            }
        }
    }

    /// Takes requests while one of them can be forwarded: what is delivered and not acked would count as a
    /// failed delivery after the broker's consumer timeout.
    fn judge_links(&mut self) {
        let links = locked(&self.links);
        let is_up = |link: &Option<LinkStatus>| link.as_ref().is_some_and(LinkStatus::is_up);
        let (consumes, forwards) = (is_up(&links.consumer), links.forwarders.iter().all(is_up));
        let latches =
            [(Latch::Ingest, consumes), (Latch::Egress, forwards), (Latch::Topology, consumes && forwards)];
        latches.into_iter().for_each(|(latch, closed)| self.health.readiness.set(latch, closed));
        let takes = links.may_forward();
        drop(links);
        if takes != std::mem::replace(&mut self.takes, takes) && !*self.stopped.borrow() {
            self.amqp.intake(if takes { Intake::Resume } else { Intake::Pause });
        }
    }

    /// Keeps the latch closed while requests are taken here, or by another node (`is_spare`), and no stop was
    /// ordered.
    fn set_consumer(&self, is_spare: bool) {
        let takes = (self.consumes || is_spare) && !*self.stopped.borrow();
        self.health.readiness.set(Latch::Consumer, takes);
    }

    fn broker(&mut self, event: BrokerEvent) {
        match event {
            BrokerEvent::IngestReady { generation } => {
                self.ledger.restart(generation);
                self.consumes = true;
                self.set_consumer(false);
            }
            BrokerEvent::IngestLost => {
                self.ledger.restart(0);
                self.consumes = false;
                self.set_consumer(false);
            }
            BrokerEvent::Forwarded(deliveries) => {
                for delivery in deliveries {
                    self.ledger.safe(delivery);
                }
                self.ack();
            }
            BrokerEvent::Link { link, .. } => {
                // Another node serves the ingest queue.
                let is_spare = self.is_shared && matches!(link, LinkStatus::Standby { .. });
                self.set_consumer(is_spare);
                locked(&self.links).consumer = Some(link);
                self.judge_links();
            }
            BrokerEvent::IngestStopped => {
                self.consumes = false;
                self.set_consumer(false);
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

#[cfg(test)]
mod tests {
    use super::super::lasting::own_waits;
    use super::*;
    use tidegate_amqp::blueprint::Names;
    use tidegate_amqp::{forward_queues, ShardGate};
    use tidegate_config::{Listen, ShardsConfig};
    use tidegate_wire::{ForwardKey, Sharing};

    /// Nothing listens at this port.
    fn nowhere(dir: &tempfile::TempDir) -> Config {
        let mut config = Config { shards: ShardsConfig { count: 2 }, ..Config::default() };
        config.store.path = dir.path().to_owned();
        config.admin.listen = Listen::Off;
        config.amqp.endpoints.iter_mut().for_each(|endpoint| endpoint.port = 1);
        config
    }

    #[test]
    fn a_sharder_tells_of_its_links_and_ends_without_a_broker() {
        let dir = tempfile::tempdir().unwrap();
        let config = nowhere(&dir);
        let (sender, queues) = forward_queues(2);
        let sharing = Sharing { own: None, count: 2, key: ForwardKey::new([1; 32]) };
        let names = Arc::new(Names::of(&config));
        let (health, view) = (ShardHealth::default(), SharderView::default());
        let (gate, map) = (Some(ShardGate::default()), Arc::clone(&view.map));
        let forwarding = Forwarding { sharing, sender, gate, names, map };
        assert_eq!(locked(&view.links).states().len(), 1, "before the start");
        let sharder = Sharder::start(&config, (forwarding, queues), &health, &view).unwrap();
        let end = std::time::Instant::now() + Duration::from_secs(60);
        let told = loop {
            let states = locked(&view.links).states();
            if states.iter().all(|link| link.state == "down") || std::time::Instant::now() > end {
                break states;
            }
            std::thread::yield_now();
        };
        let sides: Vec<(&str, &str)> =
            told.iter().map(|link| (link.side.as_str(), link.state.as_str())).collect();
        assert_eq!(sides, [("sharder", "down"), ("forwarder", "down"), ("forwarder", "down")]);
        let failed = view.figures.stats();
        assert!(failed.ingest_failures >= 1 && failed.egress_failures >= 2, "{failed:?}");
        assert_eq!(health.readiness.missing(), ["ingest", "egress", "topology", "consumer"]);
        assert!(dir.path().join("STARTS").exists(), "its quick deaths are counted as well");
        sharder.configure(&config);
        sharder.end(&own_waits().unwrap());
        assert_eq!(std::fs::read_to_string(dir.path().join("STARTS")).unwrap(), "0\n");
    }

    /// Excluded: a node that takes no shard because something else consumes the ingest queue.
    #[test]
    fn a_forwarder_that_can_publish_reaches_the_broker_whatever_the_consumer_does() {
        let up = || LinkStatus::Up { address: "b:1".to_owned(), notes: Vec::new(), dead: None };
        let down = || LinkStatus::Down { error: "other consumer(s)".to_owned(), retry_in: CLOSED_WITHIN };
        let reaches = |consumer, forwarder| {
            let links = SharderLinks { consumer: Some(consumer), forwarders: vec![None, Some(forwarder)] };
            is_connected(&Mutex::new(links))
        };
        assert!(reaches(up(), up()) && reaches(down(), up()));
        assert!(!reaches(up(), down()) && !reaches(down(), down()));
        assert!(!is_connected(&Mutex::default()), "before the start");
    }

    #[test]
    fn it_may_use_the_memory_of_a_shard_also_after_a_reload() {
        let dir = tempfile::tempdir().unwrap();
        let config = nowhere(&dir);
        assert_eq!(own(&config).limits.memory, config.limits.memory / 2);
        assert_eq!(own(&config).shard_queues(), config.shard_queues(), "it declares all of them");
    }
}
