//! The process: what exists once, over all lives of the store.

use super::guard::LastResort;
use super::mailbox::{Inlet, Mailbox};
use super::reload::Reload;
use super::tally::ShardTally;
use super::{dead_letters, RunError, RunOptions};
use crate::admin::{self, Readiness, StateInput};
use crate::notify::{watchdog_interval, Notify};
use crate::telemetry::SpanExporter;
use std::sync::Arc;
use std::time::Duration;
use tidegate_amqp::DeadLetterService;
use tidegate_common::clock;
use tidegate_common::progress::ProgressMarks;
use tidegate_config::{Config, LoadedConfig};
use tidegate_types::Now;
use tokio::runtime::Runtime;

/// State that outlives a life.
pub(super) struct Lasting {
    /// Runtime for ingest, answers, the admin port and signals.
    pub(super) runtime: Runtime,
    /// Runtime for egress only: a large request never delays due items.
    pub(super) outward: Runtime,
    pub(super) config: Config,
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
    pub(super) reload: Reload,
    pub(super) tally: ShardTally,
}

/// One worker thread: with two, each event wakes both, and the second only looks for more work.
fn runtime(name: &str) -> Result<Runtime, RunError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).thread_name(name).enable_all().build().map_err(RunError::Runtime)
}

impl Lasting {
    pub(super) fn new(options: RunOptions) -> Result<Self, RunError> {
        let RunOptions { config, config_path, accept_loss, .. } = options;
        let spans = config.otlp_endpoint.as_deref().map(SpanExporter::start).transpose();
        let spans = spans.map_err(RunError::Runtime)?.map(Arc::new);
        let progress = Arc::new(ProgressMarks::new(config.timeouts.stuck_after));
        let inlet = Arc::new(Inlet::default());
        let waits = tokio::runtime::Builder::new_current_thread().enable_time().build();
        Ok(Lasting {
            spans,
            runtime: runtime("tidegate-in")?,
            outward: runtime("tidegate-out")?,
            config,
            accept_loss,
            notify: Notify::from_env(),
            readiness: Arc::new(Readiness::new()),
            last_resort: LastResort::new(Arc::clone(&progress)).map_err(RunError::Runtime)?,
            progress,
            waits: waits.map_err(RunError::Runtime)?,
            started: clock::now(),
            watchdog: watchdog_interval(),
            reload: Reload::new(config_path, Arc::clone(&inlet)),
            inlet,
            tally: ShardTally::default(),
        })
    }

    /// The state without the parts that only a life has.
    pub(super) fn state(&self) -> StateInput {
        self.tally.state(self.config.store.kind, self.started)
    }

    /// The mailbox of the life that begins.
    pub(super) fn next_mailbox(&self) -> Arc<Mailbox> {
        self.inlet.renew()
    }

    /// Opens the admin port.
    pub(super) fn serve_admin(&self) -> Result<admin::Server, RunError> {
        let inlet = Arc::clone(&self.inlet);
        let dead_letters = Arc::new(DeadLetterService::new(&self.config));
        let runtime = self.runtime.handle().clone();
        let ask = dead_letters::beside(runtime, dead_letters, move |event| inlet.post(event));
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
        let restart = tidegate_config::needs_restart(&self.config, &loaded.config);
        if !restart.is_empty() {
            tracing::warn!(keys = restart.join(", "), "changed; takes effect only after a restart");
        }
        self.config = self.config.reloaded(&loaded.config);
    }
}
