//! Exports of the store while the daemon runs. A separate thread reads the store, beside the loop and the
//! store's threads, at the speed of the client.
//!
//! Only one export runs at a time: each keeps the data of its snapshot on the disk until it ends.

use crate::admin::{ExportFeed, ExportRefusal};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tidegate_config::StoreKind;
use tidegate_store::export::{Export, Exporter};
use tidegate_wire::item_id;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc::{channel, Sender};
use tokio::sync::{oneshot, watch, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Time limit for a client to take one chunk. The connection has its own limit for the whole answer.
const CHUNK_WITHIN: Duration = Duration::from_secs(30);

/// Runs one export at a time.
pub(super) struct Exports {
    exporter: Result<Exporter, ExportRefusal>,
    runtime: Handle,
    slot: Arc<Semaphore>,
    stop: watch::Sender<bool>,
}

impl Exports {
    pub(super) fn new(exporter: Option<Exporter>, kind: StoreKind, runtime: Handle) -> Self {
        let exporter = exporter.ok_or(ExportRefusal::NotOnDisk(match kind {
            StoreKind::Disk => "the disk store does not support exports",
            StoreKind::Memory => "store.kind is memory: there is nothing on a disk to export",
            StoreKind::Postgres => {
                "store.kind is postgres: it cannot be exported; use pg_dump to save its schema"
            }
        }));
        Exports { exporter, runtime, slot: Arc::new(Semaphore::new(1)), stop: watch::Sender::new(false) }
    }

    /// Begins an export of what is durable at about this moment, and sends its chunks or a refusal to the
    /// client, which may have disconnected.
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
                // One chunk waits while the next is read.
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

    /// Ends the running export and releases the store, waiting at most `within`. The wait uses the runtime
    /// `waits`, because the export's own runtime may be stuck.
    pub(super) fn end(&mut self, waits: &Runtime, within: Duration) {
        self.exporter = Err(ExportRefusal::NotOnDisk("the store is being closed"));
        // There may be no export that receives this.
        let _ = self.stop.send(true);
        let ended = waits.block_on(async { timeout(within, self.slot.acquire()).await.is_ok() });
        if !ended {
            tracing::warn!("an export did not end in time");
        }
    }
}

/// The receiving end of one export.
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
                    "an export was ended early by its reader or by a stop"
                );
                return;
            }
            if !more {
                tracing::info!(items = export.told().items, "the store was exported");
                return;
            }
        }
    }

    /// Breaks the answer off, since its head is already sent; the log says why.
    fn fail(&mut self, error: &str) {
        tracing::error!(error, "the store could not be exported");
        self.give(Err(io::Error::other("the store could not be read; the daemon's log says why")));
    }

    /// Whether the client took the chunk.
    fn give(&mut self, chunk: io::Result<Vec<u8>>) -> bool {
        let ExportOutlet { sender, stopped, runtime } = self;
        runtime.block_on(async {
            tokio::select! {
                sent = timeout(CHUNK_WITHIN, sender.send(chunk)) => matches!(sent, Ok(Ok(()))),
                _ = stopped.wait_for(|stopped| *stopped) => false,
            }
        })
    }
}
