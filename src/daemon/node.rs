//! The node: what exists once in the process, whatever number of shards it has. Runs on the main thread.
//!
//! The order of start-up matters. Signals come first, so that a start can be stopped. The store is next,
//! because only its owner may do anything at all. Then the admin port, so that probes can ask for readiness.
//! The broker is last, and the start does not wait for it. If the store belongs to another daemon or is out
//! of reach, the admin port answers during the wait.
//!
//! The node orders, and its shards report ([`super::reports`]). It never waits for a shard, so it hears of
//! all of them. A shard that fails ends the process.

use super::exports::Exports;
use super::guard::{LastResort, GRACE};
use super::lasting::{one_worker, own_waits, Lasting};
use super::mailbox::{ControlEvent, Inlet, ShardOrder};
use super::members::{SeatBoard, SharingNode};
use super::others::{self, AskNode, OtherNodes};
use super::queries::QueryDesk;
use super::reload::Reload;
use super::reports::{FoundItems, NodeEvent, ReadConfig, Reports, ShardReport};
use super::sharder::{Sharder, SharderView};
use super::{shard_thread, sharder, RunError, RunOptions};
use crate::admin::{self, NodeHealth, ShardHealth};
use crate::notify::{watchdog_interval, Notify};
use crate::signals::{self, Signal};
use crate::telemetry::SpanExporter;
use futures_util::FutureExt as _;
use std::path::PathBuf;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::time::Duration;
use tidegate_amqp::blueprint::Names;
use tidegate_amqp::{
    forward_queues, ControlLink, DeadLetterService, ForwardQueues, ForwardSender, Forwarding, Options,
    ShardGate,
};
use tidegate_common::clock;
use tidegate_common::open_files::raise_file_limit;
use tidegate_common::progress::ProgressMarks;
use tidegate_config::{Config, LoadedConfig, StoreKind};
use tidegate_store::ShardLayout;
use tidegate_types::Now;
use tidegate_wire::{ForwardKey, Sharing};
use tokio::runtime::Runtime;
use tracing::Span;

/// Time for the end of the connection to other nodes.
const CONTROL_CLOSING: Duration = Duration::from_secs(1);
/// Longest time between two looks at a reload.
const LOOK: Duration = Duration::from_secs(1);

/// Runs until a stop is requested or the daemon cannot continue.
pub(super) fn run(options: RunOptions) -> Result<(), RunError> {
    let RunOptions { config, config_path, accept_loss, log_format: _ } = options;
    let (config, started) = (Arc::new(config), clock::now());
    let spans = config.otlp_endpoint.as_deref().map(SpanExporter::start).transpose();
    let spans = spans.map_err(RunError::Runtime)?.map(Arc::new);
    let (sender, events) = channel();
    let sharding = Sharding::of(&config)?;
    if sharding.is_some() {
        if let Err(error) = raise_file_limit() {
            tracing::warn!(%error, "the number of open files cannot be raised");
        }
    }
    let board = sharding.as_ref().and_then(|sharding| sharding.board.clone());
    let shards = (0..config.shards.count).map(|number| {
        let reports = Reports::new(number, sender.clone());
        let forwarding = sharding.as_ref().and_then(|sharding| sharding.forwarding(Some(number)));
        let own = Arc::new(config.of_shard(number));
        let mut lasting = Lasting::new((number, forwarding), own, reports, spans.clone(), started)?;
        lasting.board.clone_from(&board);
        Ok::<_, RunError>(lasting)
    });
    let shards = shards.collect::<Result<Vec<_>, _>>()?;
    let mut node = DaemonNode::new(config, (config_path, sender.clone()), &shards, sharding, started)?;
    if let Err(error) = node.join(sender.clone()) {
        node.fail(RunError::Runtime(error));
    }
    let (last_resort, limit) = (node.last_resort.clone(), node.config.timeouts.drain + GRACE);
    let on_signal = move |signal| {
        if signal == Signal::Terminate {
            // Before the node receives the signal, since a stuck part never does.
            last_resort.arm(limit);
        }
        // Without a node the process is ending.
        let _ = sender.send(NodeEvent::Signal(signal));
    };
    let listening = signals::listen(on_signal).map_err(RunError::Signals)?;
    for shard in shards {
        if let Err(error) = shard_thread::start(shard, accept_loss) {
            node.fail(RunError::Runtime(error));
        }
    }
    let ended = node.live(&events);
    drop(listening);
    node.runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

/// What several shards have in common before the sharder starts.
struct Sharding {
    count: u16,
    /// Proves forwards; `None`: the database that several nodes share has not told it yet.
    key: Option<ForwardKey>,
    sender: ForwardSender,
    /// Present if this daemon alone serves the shards.
    gate: Option<ShardGate>,
    /// Present if other nodes share the shards.
    board: Option<Arc<SeatBoard>>,
    others: Option<Arc<OtherNodes>>,
    names: Arc<Names>,
    /// What the state tells of the sharder.
    view: SharderView,
    /// Where the forwarders take requests from; taken at their start.
    queues: Option<ForwardQueues>,
    health: ShardHealth,
}

impl Sharding {
    /// `None`: there is one shard.
    ///
    /// # Errors
    /// The directory of the store belongs to another number of shards, or cannot be used.
    fn of(config: &Config) -> Result<Option<Self>, RunError> {
        let count = config.shards.count;
        let key = match config.store.kind {
            StoreKind::Disk => match ShardLayout::claim(&config.store.path, count)? {
                Some(ShardLayout { key, .. }) => Some(ForwardKey::new(key)),
                None => return Ok(None),
            },
            StoreKind::Postgres if count > 1 => None,
            StoreKind::Postgres | StoreKind::Memory => return Ok(None),
        };
        let (sender, queues) = forward_queues(count);
        let progress = Arc::new(ProgressMarks::new(config.timeouts.stuck_after));
        let board = key.is_none().then(|| Arc::new(SeatBoard::new(count)));
        Ok(Some(Sharding {
            count,
            gate: key.is_some().then(ShardGate::default),
            others: board.clone().map(|board| Arc::new(OtherNodes::new(board))),
            board,
            key,
            sender,
            names: Arc::new(Names::of(config)),
            view: SharderView::default(),
            queues: Some(queues),
            health: ShardHealth { progress, ..ShardHealth::default() },
        }))
    }

    /// How this shard passes requests on, or the sharder, if the key is known.
    fn forwarding(&self, own: Option<u16>) -> Option<Forwarding> {
        let sharing = Sharing { own, count: self.count, key: self.key.clone()? };
        Some(Forwarding {
            sharing,
            sender: self.sender.clone(),
            gate: self.gate.clone(),
            names: Arc::clone(&self.names),
            map: Arc::clone(&self.view.map),
        })
    }
}

/// See the module.
struct DaemonNode {
    /// As last loaded.
    config: Arc<Config>,
    started: Now,
    notify: Notify,
    watchdog: Option<Duration>,
    /// When the watchdog was last notified, monotonic ms.
    watchdog_fed_at_ms: u64,
    reload: Reload,
    last_resort: LastResort,
    /// Runtime for the admin port and the actions on dead letters.
    runtime: Runtime,
    /// Runtime for the waits of the main thread.
    waits: Runtime,
    health: Arc<NodeHealth>,
    /// The shards, by their numbers.
    shards: Vec<ShardSeat>,
    /// Present if there are several.
    sharding: Option<Sharding>,
    /// Runs from the end of the start.
    sharder: Option<Sharder>,
    /// Runs if other nodes share the shards.
    members: Option<SharingNode>,
    /// The connection to the other nodes, once their key is known.
    control: Option<Arc<ControlLink>>,
    admin: Option<admin::Server>,
    /// Why the daemon cannot start, or cannot go on.
    failure: Option<RunError>,
    /// A reload was requested before the start was complete.
    reload_waits: bool,
    /// A stop has been ordered.
    stopping: bool,
    /// The shards take over a configuration; whether another reload follows.
    adopting: Option<bool>,
}

/// What the node knows of a shard, from its reports.
#[derive(Debug)]
struct ShardSeat {
    number: u16,
    inlet: Arc<Inlet>,
    /// Its line for the service manager.
    status: String,
    /// What it found at its last opening.
    found: Option<FoundItems>,
    /// It has opened its store, or waited for it, at least once.
    has_come: bool,
    /// It has shown a sign of life since the watchdog was last notified.
    is_turning: bool,
    has_ended: bool,
    /// It has been ordered to take over a configuration, and has not reported that it has.
    owes_configuration: bool,
}

impl DaemonNode {
    /// `reread`: the file that a reload reads, and where the result goes.
    fn new(
        config: Arc<Config>,
        reread: (Option<PathBuf>, Sender<NodeEvent>),
        shards: &[Lasting],
        sharding: Option<Sharding>,
        started: Now,
    ) -> Result<Self, RunError> {
        let health = shards.iter().map(|shard| shard.health.clone());
        let health = health.chain(sharding.iter().map(|sharding| sharding.health.clone()));
        let health = Arc::new(NodeHealth::of(health.collect()));
        let seat = |shard: &Lasting| ShardSeat {
            number: shard.number,
            inlet: Arc::clone(&shard.inlet),
            status: String::new(),
            found: None,
            has_come: false,
            is_turning: false,
            has_ended: false,
            owes_configuration: false,
        };
        Ok(DaemonNode {
            config,
            started,
            notify: Notify::from_env(),
            watchdog: watchdog_interval(),
            watchdog_fed_at_ms: started.mono,
            reload: Reload::new(reread.0, reread.1),
            last_resort: LastResort::new(Arc::clone(&health)).map_err(RunError::Runtime)?,
            runtime: one_worker("tidegate-admin", &Span::none())?,
            waits: own_waits()?,
            health,
            shards: shards.iter().map(seat).collect(),
            sharding,
            sharder: None,
            members: None,
            control: None,
            admin: None,
            failure: None,
            reload_waits: false,
            stopping: false,
            adopting: None,
        })
    }

    /// Handles events until every shard has ended.
    fn live(&mut self, events: &Receiver<NodeEvent>) -> Result<(), RunError> {
        while !self.shards.iter().all(|shard| shard.has_ended) {
            match events.recv_timeout(LOOK) {
                Ok(event) => self.handle(event),
                Err(RecvTimeoutError::Timeout) => {}
                // The reload keeps a sender.
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.reload.check(&self.notify, clock::now().mono);
        }
        if let Some(sharder) = self.sharder.take() {
            sharder.end(&self.waits);
        }
        if let Some(admin) = self.admin.take() {
            self.waits.block_on(admin.stop());
        }
        if let Some(control) = self.control.take() {
            self.waits.block_on(control.shutdown(CONTROL_CLOSING));
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    fn handle(&mut self, event: NodeEvent) {
        match event {
            NodeEvent::Signal(Signal::Terminate) => self.stop(&ShardOrder::Stop),
            // The service manager would take the end of a reload for the end of the start.
            NodeEvent::Signal(Signal::Reload) if !self.has_started() => self.reload_waits = true,
            NodeEvent::Signal(Signal::Reload) => self.reload.request(&self.notify, clock::now().mono),
            NodeEvent::Reread(read) => self.reread(read),
            NodeEvent::Shared { key, name } => self.share(key, name),
            NodeEvent::Unshared(error) => self.fail((*error).into()),
            NodeEvent::Shard(number, report) => {
                if let Some(place) = self.shards.iter().position(|shard| shard.number == number) {
                    self.hear(place, report);
                }
            }
        }
    }

    /// Begins to share the shards with other nodes, if there may be some.
    fn join(&mut self, node: Sender<NodeEvent>) -> std::io::Result<()> {
        let Some(Sharding { board: Some(board), view, .. }) = &self.sharding else { return Ok(()) };
        let inlets = self.shards.iter().map(|shard| Arc::clone(&shard.inlet)).collect();
        let links = Arc::clone(&view.links);
        let is_connected = move || sharder::is_connected(&links);
        let board = Arc::clone(board);
        self.members = Some(SharingNode::start(&self.config.store, inlets, board, is_connected, node)?);
        Ok(())
    }

    /// The database has told the key of the forwards, and this node has this name.
    fn share(&mut self, key: [u8; 32], name: String) {
        let Some(sharding) = &mut self.sharding else { return };
        let key = ForwardKey::new(key);
        if let Some(control) = &self.control {
            control.rename(name);
            return;
        }
        if let (Some(others), Some(board)) = (&sharding.others, &sharding.board) {
            let inlets = self.shards.iter().map(|shard| Arc::clone(&shard.inlet)).collect();
            let serve = others::serve(key.clone(), Arc::clone(board), inlets);
            let (exchange, options) = (self.config.control_exchange(), Options::new(&self.config, 0, None));
            let control = ControlLink::start(self.runtime.handle(), options, exchange, name, serve);
            let control = Arc::new(control);
            let link = Arc::clone(&control);
            let ask: AskNode = Box::new(move |node, question, limit| {
                let link = Arc::clone(&link);
                async move { link.ask(&node, question, limit).await }.boxed()
            });
            others.connect(key.clone(), ask);
            self.control = Some(control);
        }
        sharding.key = Some(key);
        for shard in &self.shards {
            let forwarding = sharding.forwarding(Some(shard.number)).map(Box::new);
            let share = forwarding.map(|forwarding| ControlEvent::Order(ShardOrder::Share(forwarding)));
            share.into_iter().for_each(|share| shard.inlet.post(share));
        }
        if self.has_started() {
            self.start_sharder();
        }
    }

    /// Gives an order to all shards, and ends the sharder.
    fn stop(&mut self, order: &ShardOrder) {
        self.members.iter().for_each(SharingNode::stop);
        self.shards.iter().for_each(|shard| shard.inlet.post(ControlEvent::Order(order.clone())));
        self.stopping = true;
        self.sharder.iter().for_each(Sharder::stop);
    }

    /// Handles a report of the shard at this place of the list.
    fn hear(&mut self, place: usize, report: ShardReport) {
        let Some(shard) = self.shards.get_mut(place) else { return };
        let is_alive = report.is_sign_of_life();
        shard.is_turning |= is_alive;
        match report {
            ShardReport::Opening { more, .. } => {
                more.into_iter().for_each(|more| self.notify.extend_timeout(more))
            }
            ShardReport::Opened(found) => {
                let inlet = Arc::clone(&shard.inlet);
                shard.found = Some(found);
                if self.is_answering() {
                    self.tell_start();
                    self.come(place, true);
                    inlet.post(ControlEvent::Order(ShardOrder::Serve));
                }
            }
            ShardReport::Waits(line) => {
                shard.status = line;
                if self.is_answering() {
                    self.come(place, false);
                    self.tell_status();
                }
            }
            ShardReport::Status(line) => {
                shard.status = line;
                self.tell_status();
            }
            ShardReport::Draining { within } => {
                self.notify.stopping();
                if !within.is_zero() {
                    // The whole time is requested, independently of the unit's TimeoutStopSec.
                    self.notify.extend_timeout(within);
                }
            }
            ShardReport::Closing { within, last_within } => {
                last_within.into_iter().for_each(|limit| self.last_resort.arm(limit));
                self.notify.extend_timeout(within);
            }
            ShardReport::Configured => {
                shard.owes_configuration = false;
                self.end_reload();
            }
            ShardReport::Ended(ended) => {
                (shard.has_ended, shard.owes_configuration) = (true, false);
                self.end_reload();
                ended.err().into_iter().for_each(|error| self.fail(error));
            }
        }
        if is_alive {
            self.feed_watchdog(clock::now());
        }
    }

    /// Ends the daemon for this reason, unless it has another one: it does not go on without a part of the
    /// items.
    fn fail(&mut self, error: RunError) {
        self.failure.get_or_insert(error);
        self.last_resort.arm(self.config.timeouts.drain + GRACE);
        self.stop(&ShardOrder::Withdraw);
    }

    /// Whether the admin port answers, which it does from the first time that a shard has opened its store or
    /// waits for it. If it cannot, or a shard has failed, no further one may serve.
    fn is_answering(&mut self) -> bool {
        if self.admin.is_none() && self.failure.is_none() {
            match self.serve_admin() {
                Ok(admin) => self.admin = Some(admin),
                Err(error) => self.fail(error.into()),
            }
        }
        self.failure.is_none()
    }

    fn desk(&self) -> QueryDesk {
        QueryDesk {
            runtime: self.runtime.handle().clone(),
            dead_letters: Arc::new(DeadLetterService::new(&self.config)),
            shards: self.shards.iter().map(|shard| Arc::clone(&shard.inlet)).collect(),
            others: self.sharding.as_ref().and_then(|sharding| sharding.others.clone()),
            sharder: self.sharding.as_ref().map(|sharding| sharding.view.clone()),
            database: Exports::of_database(&self.config, self.runtime.handle().clone()),
            started: self.started,
        }
    }

    fn serve_admin(&self) -> Result<admin::Server, admin::ServeError> {
        let desk = self.desk();
        let ask = move |query| desk.ask(query);
        let options = (&self.config.admin).into();
        self.runtime.block_on(admin::serve(options, Arc::clone(&self.health), Arc::new(ask)))
    }

    /// Tells what was found once every shard has opened its store, and at each further opening.
    fn tell_start(&self) {
        let Some(admin) = &self.admin else { return };
        let (admin, store) = (admin.listens_at(), self.config.store.kind.as_str());
        let found: Option<Vec<FoundItems>> = self.shards.iter().map(|shard| shard.found).collect();
        let Some(found) = found else { return };
        let queues: usize = found.iter().map(|found| found.queues).sum();
        let waiting: u64 = found.iter().map(|found| found.waiting).sum();
        let version = env!("CARGO_PKG_VERSION");
        tracing::info!(version, store, %admin, queues, waiting, "started");
    }

    /// The start is complete when each shard has opened its store or waits for it. Each opening is told
    /// again.
    fn come(&mut self, place: usize, is_open: bool) {
        let had_started = self.has_started();
        self.shards.get_mut(place).into_iter().for_each(|shard| shard.has_come = true);
        if self.has_started() && (is_open || !had_started) {
            self.notify.ready();
        }
        if self.has_started() {
            self.start_sharder();
        }
        if self.has_started() && std::mem::take(&mut self.reload_waits) {
            self.reload.request(&self.notify, clock::now().mono);
        }
    }

    /// Starts the sharder, once.
    fn start_sharder(&mut self) {
        let Some(sharding) = self.sharding.as_mut().filter(|_| !self.stopping) else { return };
        let Some(forwarding) = sharding.forwarding(None) else { return };
        let Some(queues) = sharding.queues.take() else { return };
        match Sharder::start(&self.config, (forwarding, queues), &sharding.health, &sharding.view) {
            Ok(sharder) => self.sharder = Some(sharder),
            Err(error) => self.fail(error),
        }
    }

    /// Whether each shard has opened its store or waited for it at least once.
    fn has_started(&self) -> bool {
        self.shards.iter().all(|shard| shard.has_come)
    }

    fn tell_status(&self) {
        let lines = self.shards.iter().map(|shard| shard.status.as_str()).filter(|line| !line.is_empty());
        self.notify.status(&lines.collect::<Vec<_>>().join("; "));
    }

    /// Notifies the watchdog while the loop of each shard turns, and none of its parts is late. It is called
    /// at a sign of life alone: an older one, kept until half of the interval is over, would hide for that
    /// long that a loop stands still.
    fn feed_watchdog(&mut self, now: Now) {
        let Some(interval) = self.watchdog else { return };
        let is_due = now.mono >= self.watchdog_fed_at_ms + interval.as_millis() as u64 / 2;
        let mut living = self.shards.iter().filter(|shard| !shard.has_ended);
        if is_due && living.all(|shard| shard.is_turning) && !self.health.is_late_for(interval * 2) {
            self.watchdog_fed_at_ms = now.mono;
            self.shards.iter_mut().for_each(|shard| shard.is_turning = false);
            self.notify.watchdog();
        }
    }

    /// The result of a reload: the new configuration takes effect, or the old one stays in force.
    fn reread(&mut self, read: ReadConfig) {
        let Some(again) = self.reload.returned() else { return };
        match *read {
            Ok(loaded) => {
                self.adopt(loaded);
                self.shards.iter_mut().for_each(|shard| shard.owes_configuration = !shard.has_ended);
                self.configure();
                self.adopting = Some(again);
                self.end_reload();
            }
            Err(faults) => {
                for fault in faults.iter() {
                    tracing::error!("{fault}");
                }
                tracing::error!("configuration not reloaded: the old one stays in force");
                self.reloaded(again);
            }
        }
    }

    /// Orders each shard to take over its part of the configuration.
    fn configure(&self) {
        for shard in &self.shards {
            let own = Arc::new(self.config.of_shard(shard.number));
            shard.inlet.post(ControlEvent::Order(ShardOrder::Configure(own)));
        }
        self.sharder.iter().for_each(|sharder| sharder.configure(&self.config));
        if let Some(Sharding { health, .. }) = &self.sharding {
            health.progress.configure(self.config.timeouts.stuck_after);
        }
    }

    /// Ends the reload once its configuration is in force in each shard.
    fn end_reload(&mut self) {
        if self.shards.iter().any(|shard| shard.owes_configuration) {
            return;
        }
        if let Some(again) = self.adopting.take() {
            tracing::info!("configuration reloaded");
            self.reloaded(again);
        }
    }

    fn reloaded(&mut self, again: bool) {
        self.notify.ready();
        if again {
            self.reload.begin(&self.notify, clock::now().mono);
        }
    }

    /// Puts this configuration into force, except for the keys that take a restart.
    fn adopt(&mut self, loaded: LoadedConfig) {
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let restart = tidegate_config::needs_restart(&self.config, &loaded.config);
        if !restart.is_empty() {
            tracing::warn!(keys = restart.join(", "), "changed; takes effect only after a restart");
        }
        self.config = Arc::new(self.config.reloaded(&loaded.config));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::{Query, StateScope};
    use serde_json::json;
    use std::os::unix::net::UnixDatagram;
    use tidegate_config::Listen;
    use tidegate_types::{Command, Filter, TimelineQuery};
    use tokio::sync::oneshot;

    fn node(count: u16, config: Config) -> (DaemonNode, Vec<Lasting>, Receiver<NodeEvent>) {
        let (sender, events) = channel();
        let (config, started) = (Arc::new(config), clock::now());
        let lasting = |number| {
            let reports = Reports::new(number, sender.clone());
            Lasting::new((number, None), Arc::clone(&config), reports, None, started).unwrap()
        };
        let shards: Vec<Lasting> = (0..count).map(lasting).collect();
        let node = DaemonNode::new(config, (None, sender.clone()), &shards, None, started).unwrap();
        (node, shards, events)
    }

    fn quiet() -> Config {
        let mut config = Config::default();
        config.admin.listen = Listen::Off;
        config
    }

    /// A service manager for the node.
    fn manager(node: &mut DaemonNode, dir: &std::path::Path) -> UnixDatagram {
        let path = dir.join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        node.notify = Notify::to(path.as_os_str()).unwrap();
        manager
    }

    /// The first lines of what it was told; of a reload the rest is the moment.
    fn told(manager: &UnixDatagram) -> Vec<String> {
        let mut bytes = [0; 256];
        let texts = std::iter::from_fn(|| manager.recv(&mut bytes).ok().map(|n| bytes[..n].to_vec()));
        texts.map(|text| String::from_utf8(text).unwrap().lines().next().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_shard_that_ends_without_a_word_ends_the_node_with_its_name() {
        let (mut node, shards, events) = node(2, quiet());
        let inlet = Arc::clone(&shards[0].inlet);
        let mut shards = shards.into_iter();
        let (first, second) = (shards.next().unwrap(), shards.next().unwrap());
        let other = std::thread::spawn(move || {
            let mut taken = std::collections::VecDeque::new();
            while taken.is_empty() {
                inlet.take(LOOK, &mut taken);
            }
            // It ends as ordered, with the other one.
            first.reports.end(Ok(()));
        });
        drop(second);
        let error = node.live(&events).unwrap_err();
        assert_eq!(error.to_string(), "shard 1 has ended without a report");
        other.join().unwrap();
    }

    #[test]
    fn no_shard_serves_behind_an_admin_port_that_does_not_open() {
        let dir = tempfile::tempdir().unwrap();
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut config = Config::default();
        config.admin.listen = taken.local_addr().unwrap().into();
        config.store.path = dir.path().join("store");
        let (mut node, shards, events) = node(1, config);
        for shard in shards {
            shard_thread::start(shard, false).unwrap();
        }
        let error = node.live(&events).unwrap_err();
        assert!(matches!(error, RunError::Admin(_)), "{error}");
        assert!(!dir.path().join("store/STARTS").exists(), "no life has begun");
    }

    /// There is no broker: the connections keep trying while the shards run.
    #[test]
    fn two_shards_with_their_own_stores_answer_as_one() {
        let dir = tempfile::tempdir().unwrap();
        let (mut node, mut shards, events) = node(2, quiet());
        for shard in &mut shards {
            let mut config = quiet();
            config.store.path = dir.path().join(format!("shard-{}", shard.number));
            shard.config = Arc::new(config);
        }
        for shard in shards {
            shard_thread::start(shard, false).unwrap();
        }
        let desk = node.desk();
        let ask = |request| {
            let (sender, answer) = oneshot::channel();
            desk.ask(Query::Command(request, sender));
            answer
        };
        let list = ask(Command::List(Filter { limit: 5, ..Filter::default() }));
        let query = TimelineQuery { application: None, at: None, each_ms: 60_000, stretches: 2 };
        let timeline = ask(Command::TimelineQuery(query));
        while !node.has_started() {
            node.handle(events.recv_timeout(Duration::from_secs(60)).unwrap());
        }
        let (sender, state) = oneshot::channel();
        desk.ask(Query::State(StateScope::Node, sender));
        assert_eq!(list.blocking_recv().unwrap().document, json!({ "items": [], "next": null }));
        let timeline = timeline.blocking_recv().unwrap().document;
        assert_eq!((&timeline["counts"], &timeline["counted_until"]), (&json!([0, 0]), &json!(null)));
        let state = state.blocking_recv().unwrap();
        assert_eq!(
            state.shards.iter().map(|line| (line.shard, line.life)).collect::<Vec<_>>(),
            [(0, 1), (1, 1)]
        );
        node.handle(NodeEvent::Signal(Signal::Terminate));
        assert!(node.live(&events).is_ok());
    }

    #[test]
    fn a_reload_waits_for_the_start_and_for_each_shard() {
        let dir = tempfile::tempdir().unwrap();
        let (mut node, shards, events) = node(2, quiet());
        let manager = manager(&mut node, dir.path());
        let told = || told(&manager);
        let file = dir.path().join("config.toml");
        std::fs::write(&file, "[timeouts]\nstuck_after = \"41s\"\n").unwrap();
        node.reload = Reload::new(Some(file), shards[0].reports.node());
        let nothing: [&str; 0] = [];
        node.handle(NodeEvent::Signal(Signal::Reload));
        node.hear(0, ShardReport::Waits("waiting".to_owned()));
        assert_eq!(told(), ["STATUS=waiting"], "the start is not complete");
        node.hear(1, ShardReport::Waits("waiting".to_owned()));
        assert_eq!(told(), ["READY=1", "RELOADING=1", "STATUS=waiting; waiting"]);
        let read = events.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(matches!(read, NodeEvent::Reread(_)), "{read:?}");
        node.handle(read);
        assert_eq!(node.config.timeouts.stuck_after, Duration::from_secs(41));
        node.hear(0, ShardReport::Configured);
        assert_eq!(told(), nothing, "one of two has it in force");
        node.hear(1, ShardReport::Configured);
        assert_eq!(told(), ["READY=1"]);
    }

    #[test]
    fn the_service_manager_hears_of_all_shards() {
        let dir = tempfile::tempdir().unwrap();
        let (mut node, _shards, _events) = node(2, quiet());
        let manager = manager(&mut node, dir.path());
        let told = || told(&manager);
        node.watchdog = Some(Duration::from_secs(4));
        let started = node.started.mono;
        let at = |ms| Now { wall: 0, mono: started + ms };
        let nothing: [&str; 0] = [];
        node.hear(0, ShardReport::Opened(FoundItems { queues: 0, waiting: 0 }));
        assert_eq!(told(), nothing, "one of two has come");
        node.hear(1, ShardReport::Waits("standing by: there".to_owned()));
        assert_eq!(told(), ["READY=1", "STATUS=standing by: there"]);
        node.hear(0, ShardReport::Status("3 waiting".to_owned()));
        assert_eq!(told(), ["STATUS=3 waiting; standing by: there"]);
        node.feed_watchdog(at(1_999));
        assert_eq!(told(), nothing, "not due");
        node.feed_watchdog(at(2_000));
        assert_eq!(told(), ["WATCHDOG=1"]);
        node.hear(0, ShardReport::Status("3 waiting".to_owned()));
        node.feed_watchdog(at(9_000));
        assert_eq!(told(), nothing, "the loop of the other one does not turn");
        node.hear(1, ShardReport::Opening { more: Some(Duration::from_secs(30)), is_alive: false });
        node.feed_watchdog(at(9_000));
        assert_eq!(told(), ["EXTEND_TIMEOUT_USEC=30000000"]);
        node.hear(1, ShardReport::Opening { more: None, is_alive: true });
        node.feed_watchdog(at(9_000));
        assert_eq!(told(), ["WATCHDOG=1"]);
        node.hear(1, ShardReport::Opened(FoundItems { queues: 0, waiting: 0 }));
        assert_eq!(told(), ["READY=1"], "each opening is told");
        node.hear(0, ShardReport::Draining { within: Duration::from_secs(7) });
        assert_eq!(told(), ["STOPPING=1", "EXTEND_TIMEOUT_USEC=7000000"]);
    }
}
