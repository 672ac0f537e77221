//! Whether the sharder of a daemon serves the ingest queue. Only then do its shards serve theirs.
//!
//! Two daemons that stand by for each other have different stores, and may have different keys that prove
//! forwards. So all queues belong to the one that has the ingest queue: its requests are forwarded to its
//! own shards. A connection that is lost and opened again closes no gate: each shard would open a new one as
//! well.

use super::ShutdownSignal;
use std::time::Duration;
use tokio::sync::watch::{channel, Receiver, Sender};
use tokio::time::{timeout_at, Instant};

/// How long a gate that has closed still counts as open.
const GRACE: Duration = Duration::from_secs(2);

/// Shared by the sharder and the shards of a daemon. The value is the moment at which it closed; `None`: it
/// is open.
#[derive(Clone, Debug)]
pub struct ShardGate(Sender<Option<Instant>>);

impl Default for ShardGate {
    /// A gate that is closed.
    fn default() -> Self {
        ShardGate(channel(Some(Instant::now())).0)
    }
}

/// Keeps the gate open while it exists. In a stop of the daemon it stays open: the shards end by themselves,
/// with their last acks.
pub(crate) struct OpenShardGate {
    gate: Sender<Option<Instant>>,
    shutdown: ShutdownSignal,
}

impl ShardGate {
    /// The sharder serves the ingest queue from now on.
    pub(crate) fn open(&self, shutdown: &ShutdownSignal) -> OpenShardGate {
        self.0.send_replace(None);
        OpenShardGate { gate: self.0.clone(), shutdown: shutdown.clone() }
    }

    /// For a shard.
    pub(crate) fn watch(&self) -> WatchedGate {
        WatchedGate(Some(self.0.subscribe()))
    }
}

impl Drop for OpenShardGate {
    fn drop(&mut self) {
        if self.shutdown.borrow().is_none() {
            self.gate.send_replace(Some(Instant::now()));
        }
    }
}

/// A gate as a consumer sees it; that of a daemon with one shard, or of the sharder itself, is always open.
#[derive(Default)]
pub(crate) struct WatchedGate(Option<Receiver<Option<Instant>>>);

impl WatchedGate {
    /// Waits until it is open. Safe to cancel.
    pub(crate) async fn opened(&mut self) {
        if let Some(gate) = &mut self.0 {
            // Its sender is gone only with the daemon.
            let _ = gate.wait_for(Option::is_none).await;
        }
    }

    /// Waits until it has been closed for longer than [`GRACE`]. Safe to cancel.
    pub(crate) async fn closed(&mut self) {
        let Some(gate) = &mut self.0 else { return std::future::pending().await };
        loop {
            let since = match gate.wait_for(Option::is_some).await {
                Ok(since) => since.unwrap_or_else(Instant::now),
                Err(_) => return,
            };
            if timeout_at(since + GRACE, gate.wait_for(Option::is_none)).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    /// Closed as long ago as matters.
    fn close_for_good(gate: &ShardGate) {
        gate.0.send_replace(Instant::now().checked_sub(GRACE));
    }

    #[tokio::test]
    async fn a_gate_is_open_while_the_sharder_serves_and_for_a_moment_more() {
        let (stop, signal) = channel(None);
        let gate = ShardGate::default();
        let mut shard = gate.watch();
        assert!(shard.opened().now_or_never().is_none(), "closed at first");
        close_for_good(&gate);
        shard.closed().await;
        let open = gate.open(&signal);
        shard.opened().await;
        assert!(shard.closed().now_or_never().is_none());
        drop(open);
        assert!(shard.closed().now_or_never().is_none(), "it may come back");
        let open = gate.open(&signal);
        assert!(shard.opened().now_or_never().is_some(), "it has come back");
        drop(open);
        close_for_good(&gate);
        shard.closed().await;
        let open = gate.open(&signal);
        stop.send_replace(Some(Instant::now()));
        drop(open);
        assert!(shard.opened().now_or_never().is_some(), "a stop closes no gate");
        let mut only = WatchedGate::default();
        assert!(only.opened().now_or_never().is_some() && only.closed().now_or_never().is_none());
    }
}
