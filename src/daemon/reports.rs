//! What the node hears: signals, the result of a reload, and the reports of its shards, through one channel.
//!
//! A report is a fact that the node judges for itself. No shard calls the service manager, opens the admin
//! port or ends the process.

use super::RunError;
use crate::signals::Signal;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tidegate_config::{Faults, LoadedConfig};
use tidegate_store::{Loss, OpenError, StoreFailure};
use tidegate_types::event::Opened;

/// The configuration, or its faults.
pub(super) type ReadConfig = Box<Result<LoadedConfig, Faults>>;

/// All events of the node.
#[derive(Debug)]
pub(super) enum NodeEvent {
    Signal(Signal),
    /// A reload has read the configuration.
    Reread(ReadConfig),
    /// The shard of this number reports.
    Shard(u16, ShardReport),
    /// The database that several nodes share has told the key of the forwards and of what nodes ask each
    /// other, and this node has this name from now on.
    Shared {
        key: [u8; 32],
        name: String,
    },
    /// This node cannot share the shards of the database.
    Unshared(Box<OpenError>),
}

/// What a shard reports to its node.
#[derive(Debug)]
pub(super) enum ShardReport {
    /// It is still opening its store. `more`: the opening makes progress, and may take as long again.
    /// `is_alive`: so far this takes no longer than it may.
    Opening { more: Option<Duration>, is_alive: bool },
    /// It has opened its store, and connects to the broker once it is ordered to serve.
    Opened(FoundItems),
    /// It has no store, stands by or waits, and answers queries; with its line for the service manager.
    Waits(String),
    /// Its line for the service manager; once a second while it serves.
    Status(String),
    /// The configuration that it was ordered to take over is in force.
    Configured,
    /// It drains as ordered, and ends within this time.
    Draining { within: Duration },
    /// Its life ends, and closes within about this time. `last_within`: its last life, which must have ended
    /// by then.
    Closing { within: Duration, last_within: Option<Duration> },
    /// It has ended, as ordered or for this reason; nothing follows.
    Ended(Result<(), RunError>),
}

impl ShardReport {
    /// Whether the report shows that the shard's loop turns, or does what may take longer.
    pub(super) fn is_sign_of_life(&self) -> bool {
        match self {
            ShardReport::Opening { is_alive, .. } => *is_alive,
            ShardReport::Opened(_) | ShardReport::Waits(_) | ShardReport::Status(_) => true,
            ShardReport::Configured
            | ShardReport::Draining { .. }
            | ShardReport::Closing { .. }
            | ShardReport::Ended(_) => false,
        }
    }
}

/// How a life ended.
#[derive(Debug)]
pub(super) enum Ending {
    /// A stop was requested, and the store is closed.
    Stopped,
    /// It was ordered to give its store up for another node, and the store is closed.
    Released,
    /// The store is out of reach or may belong to another daemon, and no stop was requested. Data that was
    /// not durable was never acked; the next life reads what the store holds.
    Lost(Loss, StoreFailure),
    /// The store has failed for this process; the next process reads what it holds.
    Failed(StoreFailure),
    /// The same, and the other shards of this node go on. Another node may have more luck with this one.
    FailedAlone(StoreFailure),
}

/// Number of queues and items found in the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundItems {
    pub(super) queues: usize,
    pub(super) waiting: u64,
}

impl FoundItems {
    pub(super) fn of(opened: &Opened) -> Self {
        let waiting = opened.queues.iter().map(|queue| queue.count).sum();
        FoundItems { queues: opened.queues.len(), waiting }
    }
}

/// The shard's end of the channel. If it is dropped without a last report, it reports that the shard is gone.
#[derive(Debug)]
pub(super) struct Reports {
    shard: u16,
    node: Sender<NodeEvent>,
    is_over: bool,
}

impl Reports {
    pub(super) fn new(shard: u16, node: Sender<NodeEvent>) -> Self {
        Reports { shard, node, is_over: false }
    }

    pub(super) fn send(&self, report: ShardReport) {
        // Without a node the process is ending.
        let _ = self.node.send(NodeEvent::Shard(self.shard, report));
    }

    #[cfg(test)]
    pub(super) fn node(&self) -> Sender<NodeEvent> {
        self.node.clone()
    }

    /// The last report.
    pub(super) fn end(mut self, ended: Result<(), RunError>) {
        self.is_over = true;
        self.send(ShardReport::Ended(ended));
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        if !self.is_over {
            self.send(ShardReport::Ended(Err(RunError::ShardGone(self.shard))));
        }
    }
}
