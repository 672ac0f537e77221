//! The daemon: start-up in order, the one loop that owns the engine, shutdown in phases.
//!
//! It alone knows all parts. It decides nothing about items: what happens is translated into the engine's inputs,
//! and what the engine answers is carried out, in the engine's order.

mod answers;
mod commands;
mod mailbox;
mod recovery;
mod starts;
mod status;
mod upkeep;

use crate::amqp::{self, Amqp};
use crate::config::{self, Config, StoreKind};
use crate::engine::event::{Effects, Input, Intake};
use crate::engine::types::{Asker, Command, Request, Settled};
use crate::engine::Engine;
use crate::logging::{self, LogFormat};
use crate::notify::{watchdog_interval, Notify};
use crate::signals::{self, Signal};
use crate::store::{self, thread::Event as StoreEvent, Commit, OpenError};
use crate::{admin, clock};
use admin::{Latch, Liveness, Readiness};
use commands::Open;
use mailbox::{Event, Mailbox};
use starts::Starts;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// The wall clock is looked at this often at least, so that neither a step nor a suspend is slept over.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Of the shutdown budget, what closing needs.
const CLOSING: Duration = Duration::from_secs(5);

/// Exit codes beside 0 and 1.
const EXIT_LOCKED: u8 = 75;

/// What `tidegate run` was told.
#[derive(Debug)]
pub struct RunOptions {
    /// Checked.
    pub config: Config,
    /// Where it came from; read again on SIGHUP.
    pub config_path: Option<PathBuf>,
    /// Open a store that has lost data.
    pub accept_loss: bool,
    /// Shape of the log.
    pub log_format: LogFormat,
}

/// Runs until it is told to stop. 0 after a graceful stop, 75 when another process has the store, else 1.
pub fn run(options: RunOptions) -> ExitCode {
    logging::abort_on_panic();
    if let Err(error) = logging::init(options.log_format) {
        // Another subscriber is there already: messages go to it.
        tracing::debug!(%error, "logging was set up before");
    }
    match start(options) {
        Ok(code) => code,
        Err(error) => {
            tracing::error!("{error}");
            error.exit_code()
        }
    }
}

/// Why the daemon did not start, or did not stay.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("store: {0}")]
    Open(#[from] OpenError),
    #[error("store: {0}")]
    Store(#[from] store::Failure),
    #[error("store: {0}")]
    Spawn(#[from] store::SpawnError),
    #[error("the runtime cannot be started: {0}")]
    Runtime(std::io::Error),
    #[error("signal handlers cannot be installed: {0}")]
    Signals(std::io::Error),
    #[error("{0}")]
    Admin(#[from] admin::ServeError),
}

impl RunError {
    fn exit_code(&self) -> ExitCode {
        match self {
            RunError::Open(OpenError::Locked { .. }) => ExitCode::from(EXIT_LOCKED),
            RunError::Open(_)
            | RunError::Store(_)
            | RunError::Spawn(_)
            | RunError::Runtime(_)
            | RunError::Signals(_)
            | RunError::Admin(_) => ExitCode::FAILURE,
        }
    }
}

/// The order matters: signals first, so that a start can be ended; the store next, because only its owner may do
/// anything at all; the admin port, so that readiness can be asked for; the broker last, and without waiting for it.
fn start(options: RunOptions) -> Result<ExitCode, RunError> {
    let notify = Notify::from_env();
    let config = options.config;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("tidegate-io")
        .enable_all()
        .build()
        .map_err(RunError::Runtime)?;
    let mailbox = Arc::new(Mailbox::default());
    let post = |mailbox: &Arc<Mailbox>| {
        let mailbox = Arc::clone(mailbox);
        move |event| mailbox.post(event)
    };
    let entered = runtime.enter();
    let signal = post(&mailbox);
    let listening = signals::listen(move |s| signal(Event::Signal(s))).map_err(RunError::Signals)?;

    let opened = recovery::attended(&notify, recovery::CHECK_EVERY, || {
        store::open(&config.store, config.limits.memory, options.accept_loss)
    })?;
    let on_store = post(&mailbox);
    let handle = store::thread::spawn(
        opened.store,
        store::thread::Limits::of(config.limits.memory),
        Arc::new(move |e| on_store(Event::Store(e))),
    )?;
    let seed = getrandom::u64().unwrap_or(opened.identity);
    let engine = Engine::new(config.engine_settings(), &opened.opened, seed, clock::now());

    let readiness = Arc::new(Readiness::new());
    let liveness = Arc::new(Liveness::default());
    readiness.set(Latch::Store, true);
    let ask = post(&mailbox);
    let admin = runtime.block_on(admin::serve(
        (&config.admin).into(),
        Arc::clone(&readiness),
        Arc::clone(&liveness),
        Arc::new(move |query| ask(Event::Query(query))),
    ))?;
    // Only now: a start that ends before it has seen a message says nothing about messages.
    let directory = (config.store.kind == StoreKind::Disk).then_some(config.store.path.as_path());
    let (starts, quarantine) = Starts::note(directory);
    if quarantine {
        tracing::warn!(
            "several quick deaths in a row: requests that were handed out before are taken one at a time"
        );
    }
    let on_amqp = post(&mailbox);
    let amqp_options = amqp::Options::new(&config, opened.identity, quarantine);
    let amqp = Amqp::start(runtime.handle(), amqp_options, Arc::new(move |e| on_amqp(Event::Amqp(e))));
    // Until the engine says otherwise.
    amqp.intake(Intake::Pause);
    notify.ready();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        store = status::kind(&config),
        admin = %admin.local_addr(),
        queues = opened.opened.queues.len(),
        waiting = opened.opened.queues.iter().map(|queue| queue.count).sum::<u64>(),
        "started"
    );

    let started = clock::now();
    let mut daemon = Daemon {
        engine,
        amqp,
        store: handle,
        mailbox,
        readiness,
        liveness,
        notify,
        starts,
        links: Default::default(),
        open: Open::default(),
        store_identity: opened.identity,
        config,
        config_path: options.config_path,
        started,
        watchdog: watchdog_interval(),
        told: false,
        longest_turn_us: 0,
        fed: started.mono,
        looked: 0,
        low: false,
        dropped: 0,
        stop: None,
        failed: None,
    };
    daemon.run();
    daemon.close(&runtime);
    daemon.turn_away();
    runtime.block_on(admin.stop());
    drop(listening);
    drop(entered);
    let failed = daemon.failed.take();
    runtime.shutdown_timeout(Duration::from_secs(1));
    match failed {
        Some(error) => Err(error.into()),
        None => {
            tracing::info!("stopped");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What one turn brought, as far as it goes to the engine many at a time; in the order in which it goes.
#[derive(Default)]
struct Turn {
    settled: Vec<Settled>,
    commands: Vec<(Asker, Command)>,
    requests: Vec<Request>,
}

/// What the loop owns.
struct Daemon {
    engine: Engine,
    amqp: Amqp,
    store: store::thread::Handle,
    mailbox: Arc<Mailbox>,
    readiness: Arc<Readiness>,
    liveness: Arc<Liveness>,
    notify: Notify,
    starts: Starts,
    /// Ingest, egress.
    links: [Option<amqp::Link>; 2],
    /// Commands of the admin port.
    open: Open,
    /// For assigned ids.
    store_identity: u64,
    config: Config,
    config_path: Option<PathBuf>,
    started: crate::engine::types::Now,
    watchdog: Option<Duration>,
    /// The engine was told something, and with it the time, in this turn.
    told: bool,
    /// Longest turn of the loop so far, sleep apart.
    longest_turn_us: u64,
    /// When the watchdog was fed, monotonic ms.
    fed: u64,
    /// When the parts were last looked at, monotonic ms.
    looked: u64,
    /// Free space is below the low-water mark.
    low: bool,
    /// Items dropped for want of room, as last logged.
    dropped: u64,
    /// Monotonic end of the drain, once a stop was asked for.
    stop: Option<u64>,
    failed: Option<store::Failure>,
}

impl Daemon {
    /// The loop. One turn: sleep until something happens or is due, let the engine judge, do what it says.
    fn run(&mut self) {
        let mut events = Vec::new();
        self.feed(Input::Tick);
        while self.failed.is_none() && !self.is_over() {
            self.mailbox.take(self.sleep(), &mut events);
            let begun = clock::mono_us();
            self.told = false;
            self.turn(&mut events);
            if !self.told {
                // Also after questions alone: else who asks often keeps it from noticing a step of the clock.
                self.feed(Input::Tick);
            }
            self.look_after();
            self.liveness.turned();
            self.longest_turn_us = self.longest_turn_us.max(clock::mono_us().saturating_sub(begun));
        }
    }

    /// How long nothing is due.
    fn sleep(&self) -> Duration {
        let deadline = self.engine.next_deadline();
        let wall = deadline.wall.map(|at| (at * 1_000).saturating_sub(clock::wall_us()));
        let mono = deadline.mono.map(|at| (at * 1_000).saturating_sub(clock::mono_us()));
        let soonest = wall.into_iter().chain(mono).min().map(Duration::from_micros);
        soonest.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP)
    }

    /// Everything of one turn. Neighbouring events of one kind go to the engine as one input.
    fn turn(&mut self, events: &mut Vec<Event>) {
        failpoint!("turn");
        let mut turn = Turn::default();
        for event in events.drain(..) {
            match event {
                Event::Amqp(amqp::Event::Requests(chunk)) if turn.requests.is_empty() => {
                    turn.requests = chunk;
                }
                Event::Amqp(amqp::Event::Requests(chunk)) => turn.requests.extend(chunk),
                Event::Amqp(amqp::Event::Settled(chunk)) => turn.settled.extend(chunk),
                Event::Query(admin::Query::Command(asked, sender)) => {
                    turn.commands.extend(self.open.admit(asked, sender, self.store_identity));
                }
                event @ (Event::Amqp(_) | Event::Store(_) | Event::Signal(_) | Event::Query(_)) => {
                    self.work_off(&mut turn);
                    self.other(event);
                }
            }
        }
        self.work_off(&mut turn);
    }

    fn work_off(&mut self, turn: &mut Turn) {
        let Turn { settled, commands, requests } = std::mem::take(turn);
        if !settled.is_empty() {
            self.feed(Input::Settled(settled));
        }
        if !commands.is_empty() {
            self.feed(Input::Commands(commands));
        }
        if !requests.is_empty() {
            self.feed(Input::Requests(requests));
        }
    }

    fn other(&mut self, event: Event) {
        match event {
            Event::Amqp(event) => self.broker(event),
            Event::Store(StoreEvent::Committed(token)) => self.feed(Input::Committed(token)),
            Event::Store(StoreEvent::Loaded(loaded)) => self.feed(Input::Loaded(loaded)),
            Event::Store(StoreEvent::Failed(error)) => {
                // What is not durable was never acked; a start of its own finds out what is there.
                tracing::error!(%error, "the store has failed: stopping");
                self.readiness.set(Latch::Store, false);
                self.failed = Some(error);
            }
            Event::Signal(Signal::Terminate) => self.begin_stop(),
            Event::Signal(Signal::Reload) => self.reload(),
            Event::Query(admin::Query::State(reply)) => {
                // Whoever asked may have gone.
                let _ = reply.send(self.state());
            }
            Event::Query(admin::Query::Command(asked, sender)) => {
                if let Some(command) = self.open.admit(asked, sender, self.store_identity) {
                    self.feed(Input::Commands(vec![command]));
                }
            }
        }
    }

    fn broker(&mut self, event: amqp::Event) {
        match event {
            amqp::Event::IngestReady { generation } => {
                self.readiness.set(Latch::Consumer, true);
                self.feed(Input::IngestReady { generation });
            }
            amqp::Event::IngestLost => {
                self.readiness.set(Latch::Consumer, false);
                self.feed(Input::IngestLost);
            }
            amqp::Event::EgressReady => self.feed(Input::EgressReady),
            amqp::Event::EgressLost => self.feed(Input::EgressLost),
            amqp::Event::EgressBlocked(blocked) => self.feed(Input::EgressBlocked(blocked)),
            amqp::Event::Link { side, link } => self.link(side, link),
            amqp::Event::Requests(requests) => self.feed(Input::Requests(requests)),
            amqp::Event::Settled(settled) => self.feed(Input::Settled(settled)),
            amqp::Event::Answered(deliveries) => self.feed(Input::Answered(deliveries)),
        }
    }

    fn feed(&mut self, input: Input) {
        self.told = true;
        let effects = self.engine.handle(input, clock::now());
        self.carry_out(effects);
    }

    /// In the order of the fields: what is published or acked depends on nothing that comes later.
    fn carry_out(&mut self, effects: Effects) {
        if let Some((token, marks)) = effects.commit {
            self.store.commit(Commit { ops: effects.store, token, marks });
        }
        if !effects.acks.is_empty() {
            self.amqp.ack(effects.acks);
        }
        if !effects.publishes.is_empty() {
            self.amqp.publish(effects.publishes);
        }
        if !effects.replies.is_empty() {
            self.reply(effects.replies);
        }
        for load in effects.loads {
            self.store.load(load);
        }
        if let Some(intake) = effects.intake {
            if self.stop.is_none() {
                self.amqp.intake(intake);
            }
        }
    }

    fn begin_stop(&mut self) {
        if self.stop.is_some() {
            return;
        }
        let budget = self.config.timeouts.drain.saturating_sub(CLOSING).max(Duration::from_millis(100));
        tracing::info!(budget_ms = budget.as_millis() as u64, "stopping: what is due goes out first");
        self.notify.stopping();
        // The whole of it, whatever the unit's TimeoutStopSec says.
        self.notify.extend_timeout(budget + CLOSING * 3);
        self.stop = Some(clock::now().mono + budget.as_millis() as u64);
        self.amqp.stop_intake();
        self.feed(Input::Drain);
    }

    /// Draining is over: nothing is due or under way, or the budget is spent.
    fn is_over(&self) -> bool {
        self.stop.is_some_and(|end| self.engine.is_idle() || clock::now().mono >= end)
    }

    /// Confirms are awaited, connections and store closed, each within bounds; says what was left.
    fn close(&mut self, runtime: &tokio::runtime::Runtime) {
        let budget = if self.failed.is_some() { Duration::from_secs(2) } else { CLOSING };
        self.notify.extend_timeout(budget * 2);
        let left = self.engine.snapshot(clock::now());
        runtime.block_on(self.amqp.shutdown(budget));
        let mut events = Vec::new();
        self.mailbox.take(Duration::ZERO, &mut events);
        if self.failed.is_none() {
            // The last confirms save a repeat after the next start.
            self.turn(&mut events);
            self.feed(Input::Drain);
        }
        // Nothing is decided any more: whoever waits is told at once, and not by the end of the wait.
        self.open.abandon();
        if let Err(error) = self.store.close(budget) {
            tracing::error!(%error, "the store was not closed in time; every acked item is in its log");
        }
        self.starts.settle();
        tracing::info!(
            waiting = left.items.waiting,
            parked = left.items.parked,
            in_flight = left.items.in_flight,
            "closed; what waits stays in the store"
        );
    }

    /// Queries that came after the last turn: dropped, which tells whoever asked.
    fn turn_away(&self) {
        self.mailbox.take(Duration::ZERO, &mut Vec::new());
    }

    fn reload(&mut self) {
        self.notify.reloading();
        match Config::load(self.config_path.as_deref(), config::environment()) {
            Ok(loaded) => {
                for warning in &loaded.warnings {
                    tracing::warn!("{warning}");
                }
                let restart = config::needs_restart(&self.config, &loaded.config);
                if !restart.is_empty() {
                    tracing::warn!(keys = restart.join(", "), "changed, and in effect only after a restart");
                }
                self.config = self.config.reloaded(&loaded.config);
                self.feed(Input::Configure(Box::new(self.config.engine_settings())));
                self.amqp.reconfigure(amqp::request_limits(&self.config.limits), self.config.limits.memory);
                tracing::info!("configuration reloaded");
            }
            Err(faults) => {
                for fault in faults.iter() {
                    tracing::error!("{fault}");
                }
                tracing::error!("configuration not reloaded: the one before stays in force");
            }
        }
        self.notify.ready();
    }
}
