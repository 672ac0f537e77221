//! Exports of the store while the daemon runs: read on a thread of their own, beside the loop and the store's
//! threads, and given out as fast as whoever asked reads.
//!
//! One at a time: each keeps on the disk what it sees, for as long as it takes.

use crate::admin::{ExportFeed, ExportRefusal};
use crate::amqp::wire::item_id;
use crate::config::StoreKind;
use crate::store::export::{Export, Exporter};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc::{channel, Sender};
use tokio::sync::{oneshot, watch, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// How long a reader may take for one helping. The connection has a bound on its whole life beside.
const HELPING_WITHIN: Duration = Duration::from_secs(30);

/// See the module.
pub(super) struct Exports {
    exporter: Result<Exporter, ExportRefusal>,
    runtime: Handle,
    slot: Arc<Semaphore>,
    stop: watch::Sender<bool>,
}

impl Exports {
    pub(super) fn new(exporter: Option<Exporter>, kind: StoreKind, runtime: Handle) -> Self {
        let exporter = exporter.ok_or(ExportRefusal::NotOnDisk(match kind {
            StoreKind::Disk => "the store on the disk gives no exports",
            StoreKind::Memory => "store.kind is memory: there is nothing on a disk to export",
            StoreKind::Postgres => {
                "store.kind is postgres: there is no export of it yet; pg_dump saves its schema"
            }
        }));
        Exports { exporter, runtime, slot: Arc::new(Semaphore::new(1)), stop: watch::Sender::new(false) }
    }

    /// Begins one, of what is durable at about this moment, and has it told to whoever asked, who may have
    /// gone.
    pub(super) fn begin(&self, reply: oneshot::Sender<Result<ExportFeed, ExportRefusal>>) {
        let exporter = match &self.exporter {
            Ok(exporter) => exporter.clone(),
            Err(refusal) => return drop(reply.send(Err(refusal.clone()))),
        };
        let Ok(slot) = Arc::clone(&self.slot).try_acquire_owned() else {
            return drop(reply.send(Err(ExportRefusal::Busy)));
        };
        let (stopped, runtime) = (self.stop.subscribe(), self.runtime.clone());
        self.runtime.spawn_blocking(move || match exporter.begin(item_id) {
            Ok(export) => {
                // One helping waits while the next is made.
                let (sender, feed) = channel(1);
                if reply.send(Ok(feed)).is_ok() {
                    ExportOutlet { sender, stopped, runtime }.write(export, slot);
                }
            }
            Err(error) => {
                tracing::error!(%error, "the store cannot be exported");
                drop(reply.send(Err(ExportRefusal::Unreadable(error.to_string()))));
            }
        });
    }

    /// Ends the one that is under way, and lets go of the store; waits for that no longer than `within`.
    /// On `waits`: its own runtime may stand still.
    pub(super) fn end(&mut self, waits: &Runtime, within: Duration) {
        self.exporter = Err(ExportRefusal::NotOnDisk("the store is being closed"));
        // Nobody may be listening.
        let _ = self.stop.send(true);
        let ended = waits.block_on(async { timeout(within, self.slot.acquire()).await.is_ok() });
        if !ended {
            tracing::warn!("an export did not end in time");
        }
    }
}

/// Where one export goes.
struct ExportOutlet {
    sender: Sender<io::Result<Vec<u8>>>,
    stopped: watch::Receiver<bool>,
    runtime: Handle,
}

impl ExportOutlet {
    fn write(mut self, mut export: Export, _slot: OwnedSemaphorePermit) {
        loop {
            let mut lines = Vec::new();
            let more = match export.next(&mut lines) {
                Ok(more) => more,
                Err(error) => return self.fail(&error.to_string()),
            };
            if !self.give(Ok(lines)) {
                tracing::info!(
                    items = export.told().items,
                    "an export was broken off by its reader or a stop"
                );
                return;
            }
            if !more {
                tracing::info!(items = export.told().items, "the store was exported");
                return;
            }
        }
    }

    /// The reader sees the answer break off, since its head is out by then; the log says why.
    fn fail(&mut self, error: &str) {
        tracing::error!(error, "the store could not be exported");
        self.give(Err(io::Error::other("the store could not be read; the daemon's log says why")));
    }

    /// Whether it was taken.
    fn give(&mut self, helping: io::Result<Vec<u8>>) -> bool {
        let ExportOutlet { sender, stopped, runtime } = self;
        runtime.block_on(async {
            tokio::select! {
                sent = timeout(HELPING_WITHIN, sender.send(helping)) => matches!(sent, Ok(Ok(()))),
                _ = stopped.wait_for(|stopped| *stopped) => false,
            }
        })
    }
}
