//! What a shard keeps from one life of its store to the next, and while it has no store.

use super::mailbox::{Inlet, Mailbox};
use super::members::SeatBoard;
use super::reports::{Reports, ShardReport};
use super::tally::ShardTally;
use super::RunError;
use crate::admin::{NodeFacts, NodeHealth, ShardHealth, ShardLine, ShardState};
use crate::logging::shard_span;
use crate::telemetry::SpanExporter;
use std::cell::RefCell;
use std::sync::Arc;
use tidegate_amqp::Forwarding;
use tidegate_common::clock;
use tidegate_common::progress::ProgressMarks;
use tidegate_common::threads::thread_name;
use tidegate_config::Config;
use tidegate_types::Now;
use tokio::runtime::Runtime;
use tracing::span::EnteredSpan;
use tracing::Span;

/// State of a shard that outlives a life.
pub(super) struct Lasting {
    /// Number of the shard, from 0.
    pub(super) number: u16,
    /// How it passes requests on to other shards; `None`: there are none.
    pub(super) forwarding: Option<Forwarding>,
    /// Present if other nodes share the shards of its database.
    pub(super) board: Option<Arc<SeatBoard>>,
    /// Its threads are in this span, see [`shard_span`].
    pub(super) span: Span,
    /// Runtime for ingest, answers and exports.
    pub(super) runtime: Runtime,
    /// Runtime for egress only: a large request never delays due items.
    pub(super) outward: Runtime,
    /// Runtime for the waits of the shard's thread; no other task runs on it or blocks it.
    pub(super) waits: Runtime,
    /// The configuration of the last order.
    pub(super) config: Arc<Config>,
    pub(super) health: ShardHealth,
    pub(super) inlet: Arc<Inlet>,
    pub(super) reports: Reports,
    /// The exporter of spans, if configured.
    pub(super) spans: Option<Arc<SpanExporter>>,
    pub(super) tally: ShardTally,
    /// The name of this node, as its store knows it; empty before the first attempt to open it.
    pub(super) node: String,
    /// Start of the process.
    started: Now,
}

thread_local! {
    /// The span that a thread of a runtime is in from its start to its end.
    static ENTERED: RefCell<Option<EnteredSpan>> = const { RefCell::new(None) };
}

/// One worker thread: with two, each event wakes both, and the second only looks for more work. All threads
/// of the runtime are in this span.
pub(super) fn one_worker(name: &str, span: &Span) -> Result<Runtime, RunError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).thread_name(name).enable_all();
    if !span.is_none() {
        let span = span.clone();
        builder.on_thread_start(move || ENTERED.set(Some(span.clone().entered())));
        builder.on_thread_stop(|| drop(ENTERED.take()));
    }
    builder.build().map_err(RunError::Runtime)
}

/// A runtime for waits of the calling thread.
pub(super) fn own_waits() -> Result<Runtime, RunError> {
    tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(RunError::Runtime)
}

/// The facts at this moment, of a process that was started then.
pub(super) fn facts_at_present(started: Now) -> NodeFacts {
    NodeFacts { version: env!("CARGO_PKG_VERSION"), started, now: clock::now() }
}

impl Lasting {
    /// `config`: that of the shard.
    pub(super) fn new(
        (number, forwarding): (u16, Option<Forwarding>),
        config: Arc<Config>,
        reports: Reports,
        spans: Option<Arc<SpanExporter>>,
        started: Now,
    ) -> Result<Self, RunError> {
        let progress = Arc::new(ProgressMarks::new(config.timeouts.stuck_after));
        let health = ShardHealth { progress, ..ShardHealth::default() };
        health.horizon.configure(&config);
        let span = shard_span(number, config.shards.count);
        Ok(Lasting {
            number,
            forwarding,
            board: None,
            runtime: one_worker(&thread_name("tidegate-in", number), &span)?,
            outward: one_worker(&thread_name("tidegate-out", number), &span)?,
            span,
            waits: own_waits()?,
            config,
            health,
            inlet: Arc::default(),
            reports,
            spans,
            tally: ShardTally::default(),
            node: String::new(),
            started,
        })
    }

    /// Puts a configuration into force, for this life and the next ones.
    pub(super) fn configure(&mut self, config: Arc<Config>) {
        self.health.progress.configure(config.timeouts.stuck_after);
        self.health.horizon.configure(&config);
        self.config = config;
        self.reports.send(ShardReport::Configured);
    }

    /// The state without the parts that only a life has.
    pub(super) fn state(&self) -> ShardState {
        let line =
            ShardLine { shard: self.number, queue: self.config.ingest.queue.clone(), ..ShardLine::default() };
        let state = ShardState { line, node: self.node.clone(), ..ShardState::default() };
        self.tally.state(self.config.store.kind, state)
    }

    /// Completes the state with its word.
    pub(super) fn judged(&self, state: ShardState) -> ShardState {
        state.judged(&facts_at_present(self.started), &NodeHealth::of(vec![self.health.clone()]))
    }

    /// The mailbox of the life that begins.
    pub(super) fn next_mailbox(&self) -> Arc<Mailbox> {
        self.inlet.renew()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::{init, LogFormat};
    use std::process::Command;

    /// Excluded: a task, a task that it starts, or a blocking call of a shard whose lines do not name it.
    #[test]
    fn all_that_runs_for_a_shard_names_it_in_the_log() {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "daemon::lasting::tests::child_logs", "--ignored", "--nocapture"])
            .env_remove("JOURNAL_STREAM")
            .env_remove(crate::logging::FILTER_VARIABLE)
            .output()
            .unwrap();
        let log = String::from_utf8(child.stderr).unwrap();
        let lines: Vec<&str> = log.lines().filter_map(|line| line.split_once("INFO ")).map(|l| l.1).collect();
        let x = "tidegate::x:";
        let want =
            ["task", "inner", "blocking", "outward"].map(|text| format!("shard{{number=2}}: {x} {text}"));
        assert_eq!(lines[..4], want, "{log}");
        assert_eq!(lines[4..], [format!("{x} admin"), format!("{x} loop")], "{log}");
    }

    #[test]
    #[ignore = "run as a process of its own by `all_that_runs_for_a_shard_names_it_in_the_log`"]
    fn child_logs() {
        init(LogFormat::Text).unwrap();
        let log = |text: &'static str| tracing::info!(target: "tidegate::x", "{text}");
        let span = shard_span(2, 3);
        let (inward, outward) = (one_worker("in", &span).unwrap(), one_worker("out", &span).unwrap());
        let task = inward.spawn(async move {
            log("task");
            tokio::spawn(async move { log("inner") }).await.unwrap();
            tokio::task::spawn_blocking(move || log("blocking")).await.unwrap();
        });
        inward.block_on(task).unwrap();
        inward.block_on(outward.spawn(async move { log("outward") })).unwrap();
        let admin = one_worker("admin", &Span::none()).unwrap();
        admin.block_on(admin.spawn(async move { log("admin") })).unwrap();
        log("loop");
    }
}
