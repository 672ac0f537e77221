//! The process: what exists once, over all lives of the store.
//!
//! The order of start-up matters. Signals come first, so that a start can be stopped. The store is next,
//! because only its owner may do anything at all. Then the admin port, so that probes can ask for readiness.
//! The broker is last, and the start does not wait for it. If the store belongs to another daemon or is out
//! of reach, the admin port answers during the wait ([`super::standby`]). A store that is only lost ends a
//! life, and the next life opens it again.

use super::guard::{LastResort, PartWatch, GRACE};
use super::life::{Ending, FoundItems, Life, OpenLife};
use super::mailbox::{LoopEvent, Mailbox};
use super::reload::Rereading;
use super::standby::StandbyWaits;
use super::starts::Starts;
use super::tally::ProcessTally;
use super::{dead_letters, RunError, RunOptions};
use crate::admin::{self, Readiness};
use crate::amqp::DeadLetterService;
use crate::clock;
use crate::config::{self, Config, LoadedConfig, StoreKind};
use crate::engine::types::Now;
use crate::notify::{watchdog_interval, Notify};
use crate::progress::ProgressMarks;
use crate::signals::{self, Signal};
use crate::store::{self, OpenError};
use crate::telemetry::SpanExporter;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// State that outlives a life.
pub(super) struct Process {
    /// Runtime for ingest, answers, the admin port and signals.
    pub(super) runtime: Runtime,
    /// Runtime for egress only: a large request never delays due items.
    pub(super) outward: Runtime,
    pub(super) config: Config,
    pub(super) config_path: Option<PathBuf>,
    pub(super) accept_loss: bool,
    pub(super) notify: Notify,
    pub(super) readiness: Arc<Readiness>,
    pub(super) progress: Arc<ProgressMarks>,
    pub(super) last_resort: LastResort,
    /// Runtime for the waits of the main thread; no other task runs on it or blocks it.
    pub(super) waits: Runtime,
    /// The exporter of spans, if configured.
    pub(super) spans: Option<Arc<SpanExporter>>,
    pub(super) started: Now,
    pub(super) watchdog: Option<Duration>,
    pub(super) inlet: Arc<Inlet>,
    /// The reload in progress. It outlives a life, because a read may hang.
    pub(super) rereading: Rereading,
    pub(super) tally: ProcessTally,
}

/// Passes signals and queries to the current life.
#[derive(Debug)]
pub(super) struct Inlet {
    /// `None`: no further life follows.
    present: Mutex<Option<Arc<Mailbox>>>,
}

impl Inlet {
    pub(super) fn post(&self, event: LoopEvent) {
        // The lock is held during the post: an event for a mailbox that is being replaced would be lost.
        if let Some(present) = &*self.lock() {
            present.post(event);
        }
    }

    /// Waits for events between two lives, `timeout` at most.
    pub(super) fn take(&self, timeout: Duration, out: &mut VecDeque<LoopEvent>) {
        let present = self.lock().clone();
        if let Some(present) = present {
            present.take(timeout, out);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Mailbox>>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends open queries without an answer, and all later ones.
    fn close(&self) {
        if let Some(last) = self.lock().take() {
            last.take(Duration::ZERO, &mut VecDeque::new());
        }
    }

    /// A new mailbox for the next life. Events that the connections and the store of the last life still send
    /// stay in the old one. Signals and queries that came between the two lives are moved.
    pub(super) fn renew(&self) -> Arc<Mailbox> {
        let new = Arc::new(Mailbox::default());
        let mut present = self.lock();
        let mut left = VecDeque::new();
        if let Some(present) = &*present {
            present.take(Duration::ZERO, &mut left);
        }
        left.into_iter().filter(LoopEvent::is_for_the_process).for_each(|event| new.post(event));
        *present = Some(Arc::clone(&new));
        new
    }
}

/// Runs until a stop is requested or the daemon cannot continue.
pub(super) fn run(options: RunOptions) -> Result<(), RunError> {
    let mut process = Process::new(options)?;
    let entered = process.runtime.handle().clone();
    let _entered = entered.enter();
    let (inlet, last_resort) = (Arc::clone(&process.inlet), process.last_resort.clone());
    let limit = process.config.timeouts.drain + GRACE;
    let on_signal = move |signal| {
        if signal == Signal::Terminate {
            // Before the loop receives the signal, since a stuck loop never does.
            last_resort.arm(limit);
        }
        inlet.post(LoopEvent::Signal(signal));
    };
    let listening = signals::listen(on_signal).map_err(RunError::Signals)?;
    let ended = process.live();
    drop(listening);
    process.runtime.shutdown_timeout(Duration::from_secs(1));
    process.outward.shutdown_timeout(Duration::from_secs(1));
    match ended? {
        Ending::Stopped => Ok(()),
        Ending::Lost(_, error) | Ending::Failed(error) => Err(error.into()),
    }
}

/// One worker thread: with two, each event wakes both, and the second only looks for more work.
fn runtime(name: &str) -> Result<Runtime, RunError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).thread_name(name).enable_all().build().map_err(RunError::Runtime)
}

impl Process {
    pub(super) fn new(options: RunOptions) -> Result<Self, RunError> {
        let RunOptions { config, config_path, accept_loss, .. } = options;
        let spans = config.otlp_endpoint.as_deref().map(SpanExporter::start).transpose();
        let spans = spans.map_err(RunError::Runtime)?.map(Arc::new);
        let progress = Arc::new(ProgressMarks::new(config.timeouts.stuck_after));
        let waits = tokio::runtime::Builder::new_current_thread().enable_time().build();
        Ok(Process {
            spans,
            runtime: runtime("tidegate-in")?,
            outward: runtime("tidegate-out")?,
            config,
            config_path,
            accept_loss,
            notify: Notify::from_env(),
            readiness: Arc::new(Readiness::new()),
            last_resort: LastResort::new(Arc::clone(&progress)).map_err(RunError::Runtime)?,
            progress,
            waits: waits.map_err(RunError::Runtime)?,
            started: clock::now(),
            watchdog: watchdog_interval(),
            inlet: Arc::new(Inlet { present: Mutex::new(Some(Arc::default())) }),
            rereading: Rereading::default(),
            tally: ProcessTally::default(),
        })
    }

    /// Runs one life after the other while the store is only lost, until a stop is requested.
    fn live(&mut self) -> Result<Ending, RunError> {
        let (store, limits) = (&self.config.store, &self.config.limits);
        let mut opener = store::Opener::new(store, limits.memory, self.accept_loss)?;
        let mut waits = StandbyWaits::default();
        let mut admin = None;
        let (mut starts, mut quarantine) = (None, None);
        let ending = loop {
            let opened = self.open_life(&mut opener, &mut waits, &mut admin)?;
            let Some(life) = opened else { break Ending::Stopped };
            if admin.is_none() {
                admin = Some(self.serve_admin()?);
            }
            // Only now, because a start that ends before its first message says nothing about messages.
            let starts = starts.get_or_insert_with(|| {
                let (starts, most) = self.note_start();
                quarantine = most;
                starts
            });
            if let Some(admin) = &admin {
                let (admin, store) = (admin.listens_at(), super::status::kind(&self.config));
                let FoundItems { queues, waiting } = life.found;
                let version = env!("CARGO_PKG_VERSION");
                tracing::info!(version, store, %admin, queues, waiting, "started");
            }
            let watch = PartWatch::start(Arc::clone(&self.progress)).map_err(RunError::Runtime)?;
            let begun = Instant::now();
            let ending = life.begin(self, quarantine, starts).run();
            drop(watch);
            let Ending::Lost(loss, failure) = ending else { break ending };
            self.readiness.reset(false);
            self.tally.lost(loss);
            tracing::warn!("the store was lost and is being reopened: {failure}");
            waits.lost(begun.elapsed(), loss, failure.to_string());
        };
        if let Some(starts) = &mut starts {
            starts.settle();
        }
        self.inlet.close();
        if let Some(admin) = admin {
            self.waits.block_on(admin.stop());
        }
        Ok(ending)
    }

    /// Records this start. After several quick deaths, returns how many deliveries may be taken at a time.
    fn note_start(&self) -> (Starts, Option<u16>) {
        let store = &self.config.store;
        let (starts, quarantine) = Starts::note((store.kind != StoreKind::Memory).then_some(&store.path));
        if let Some(most) = quarantine {
            tracing::warn!(
                most,
                "several quick deaths in a row: redelivered requests are taken one at a time at first, then \
                 more with each that passes"
            );
        }
        (starts, quarantine)
    }

    /// Opens the store, and waits while it belongs to another daemon or is out of reach. `None`: a stop was
    /// requested during the wait.
    fn open_life(
        &mut self,
        opener: &mut store::Opener,
        waits: &mut StandbyWaits,
        admin: &mut Option<admin::Server>,
    ) -> Result<Option<OpenLife>, RunError> {
        loop {
            if !self.wait(waits) {
                return Ok(None);
            }
            let error = match Life::open(self, opener) {
                Ok(life) => {
                    waits.over();
                    waits.take_kept().into_iter().for_each(|event| self.inlet.post(event));
                    return Ok(Some(life));
                }
                Err(RunError::Open(error)) if error.is_passing() => error,
                Err(error) => return Err(error),
            };
            if admin.is_none() {
                *admin = Some(self.serve_admin()?);
                self.notify.ready();
            }
            self.readiness.reset(matches!(error, OpenError::Claimed { .. }));
            waits.refused(&error, &self.config);
        }
    }

    /// The mailbox of the life that begins.
    pub(super) fn next_mailbox(&self) -> Arc<Mailbox> {
        self.inlet.renew()
    }

    fn serve_admin(&self) -> Result<admin::Server, RunError> {
        let inlet = Arc::clone(&self.inlet);
        let dead_letters = Arc::new(DeadLetterService::new(&self.config));
        let runtime = self.runtime.handle().clone();
        let ask =
            dead_letters::beside(runtime, dead_letters, move |query| inlet.post(LoopEvent::Query(query)));
        let server = self.runtime.block_on(admin::serve(
            (&self.config.admin).into(),
            Arc::clone(&self.readiness),
            Arc::clone(&self.progress),
            Arc::new(ask),
        ))?;
        Ok(server)
    }

    /// Puts this configuration into force, except for the keys that take a restart.
    pub(super) fn adopt(&mut self, loaded: LoadedConfig) {
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let restart = config::needs_restart(&self.config, &loaded.config);
        if !restart.is_empty() {
            tracing::warn!(keys = restart.join(", "), "changed; takes effect only after a restart");
        }
        self.config = self.config.reloaded(&loaded.config);
    }
}
