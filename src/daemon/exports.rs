//! Exports of the store while the daemon runs. A separate thread reads the store, beside the loop and the
//! store's threads, at the speed of the client.
//!
//! On a disk, each shard begins its part when it is asked, and all are asked at once: so their moments lie
//! close together. One thread then reads one part after the other. In a database, the node itself reads all
//! shards, as of one moment, whichever nodes have them.
//!
//! A shard, or a node with a database, has only one export at a time: each keeps the data of its snapshot
//! until it has been read.

use crate::admin::{ExportFeed, ExportRefusal};
use futures_util::future::select_all;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tidegate_config::{Config, DatabaseConfig, StoreKind};
use tidegate_store::export::{begin_of_database, Export, Exporter};
use tidegate_store::joined::Joined;
use tidegate_store::naming::Naming;
use tidegate_store::OpenError;
use tidegate_wire::{identity, item_id, with_message_id};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc::{channel, Sender};
use tokio::sync::{oneshot, watch, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// What the form of messages says about the ids in an export.
pub(crate) const NAMING: Naming = Naming { identity_of: identity, with_id: with_message_id };

/// Time limit for a client to take one chunk. The connection has its own limit for the whole answer.
const CHUNK_WITHIN: Duration = Duration::from_secs(30);

/// The beginning of a shard's part, or why there is none.
pub(super) type Begun = Result<BegunExport, ExportRefusal>;

/// The part of one shard, or all parts from a database. Nothing of it has been read, and there is no other
/// export until it is dropped.
pub(super) struct BegunExport {
    exports: Vec<Export>,
    slot: OwnedSemaphorePermit,
    /// The shard is closing its store.
    stopped: watch::Receiver<bool>,
}

impl fmt::Debug for BegunExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let items: u64 = self.exports.iter().map(Export::items).sum();
        f.debug_struct("BegunExport").field("items", &items).finish_non_exhaustive()
    }
}

/// What is exported.
#[derive(Clone)]
enum ExportSource {
    /// The store of one shard.
    Disk(Exporter),
    /// The stores of so many shards.
    Database(DatabaseConfig, u16),
}

impl ExportSource {
    fn begin(&self) -> Result<Vec<Export>, OpenError> {
        match self {
            ExportSource::Disk(exporter) => Ok(vec![exporter.begin(item_id)?]),
            ExportSource::Database(config, count) => begin_of_database(config, *count, item_id),
        }
    }
}

/// Runs one export at a time: of a shard's store, or of all shards in a database.
pub(super) struct Exports {
    source: Result<ExportSource, ExportRefusal>,
    runtime: Handle,
    slot: Arc<Semaphore>,
    stop: watch::Sender<bool>,
}

impl Exports {
    /// Of a shard's store. `None`: it keeps no items.
    pub(super) fn of_shard(exporter: Option<Exporter>, runtime: Handle) -> Self {
        let refusal = ExportRefusal::NotOnDisk("store.kind is memory: there is nothing on a disk to export");
        Exports::new(exporter.map(ExportSource::Disk).ok_or(refusal), runtime)
    }

    /// Of all shards in the configured database; `None`: there is none.
    pub(super) fn of_database(config: &Config, runtime: Handle) -> Option<Self> {
        let database = config.store.database.clone().filter(|_| config.store.kind == StoreKind::Postgres)?;
        Some(Exports::new(Ok(ExportSource::Database(database, config.shards.count)), runtime))
    }

    fn new(source: Result<ExportSource, ExportRefusal>, runtime: Handle) -> Self {
        Exports { source, runtime, slot: Arc::new(Semaphore::new(1)), stop: watch::Sender::new(false) }
    }

    /// Begins an export of what is durable at about this moment. It or a refusal is sent to the asker, who
    /// may not wait any more.
    pub(super) fn begin(&self, reply: oneshot::Sender<Begun>) {
        let source = match &self.source {
            Ok(source) => source.clone(),
            Err(refusal) => return drop(reply.send(Err(refusal.clone()))),
        };
        let Ok(slot) = Arc::clone(&self.slot).try_acquire_owned() else {
            return drop(reply.send(Err(ExportRefusal::Busy)));
        };
        let stopped = self.stop.subscribe();
        self.runtime.spawn_blocking(move || {
            let begun = source.begin().map_err(|error| unreadable(&error));
            drop(reply.send(begun.map(|exports| BegunExport { exports, slot, stopped })));
        });
    }

    /// Ends the running export and releases the store, waiting at most `within`. The wait uses the runtime
    /// `waits`, because the export's own runtime may be stuck.
    pub(super) fn end(&mut self, waits: &Runtime, within: Duration) {
        self.source = Err(ExportRefusal::NotOnDisk("the store is being closed"));
        // There may be no export that receives this.
        let _ = self.stop.send(true);
        let ended = waits.block_on(async { timeout(within, self.slot.acquire()).await.is_ok() });
        if !ended {
            tracing::warn!("an export did not end in time");
        }
    }
}

fn unreadable(error: &dyn fmt::Display) -> ExportRefusal {
    tracing::error!(%error, "the store cannot be exported");
    ExportRefusal::Unreadable(error.to_string())
}

/// Waits for the parts of all shards, in the order of their numbers, and begins to read them. `None`: a shard
/// has ended. `runtime` gets the thread that reads.
pub(super) async fn feed(
    asked: Vec<oneshot::Receiver<Begun>>,
    runtime: Handle,
) -> Option<Result<ExportFeed, ExportRefusal>> {
    let (mut exports, mut slots, mut stopped) = (Vec::new(), Vec::new(), Vec::new());
    for answer in asked {
        match answer.await.ok()? {
            Ok(begun) => {
                exports.extend(begun.exports);
                slots.push(begun.slot);
                stopped.push(begun.stopped);
            }
            Err(refusal) => return Some(Err(refusal)),
        }
    }
    let export = match Joined::of(exports, NAMING) {
        Ok(export) => export,
        Err(error) => return Some(Err(unreadable(&error))),
    };
    // One chunk waits while the next is read.
    let (sender, feed) = channel(1);
    let outlet = ExportOutlet { sender, stopped, runtime: runtime.clone() };
    runtime.spawn_blocking(move || outlet.write(export, slots));
    Some(Ok(feed))
}

/// Writes one export for its client.
struct ExportOutlet {
    sender: Sender<io::Result<Vec<u8>>>,
    /// Of each shard. An export without one of them would not be whole.
    stopped: Vec<watch::Receiver<bool>>,
    runtime: Handle,
}

impl ExportOutlet {
    fn write(mut self, mut export: Joined, slots: Vec<OwnedSemaphorePermit>) {
        loop {
            let mut lines = Vec::new();
            let more = match export.next(&mut lines) {
                Ok(more) => more,
                Err(error) => {
                    self.fail(&error.to_string());
                    break;
                }
            };
            if !self.give(Ok(lines)) {
                tracing::info!(
                    items = export.told().items,
                    "an export was ended early by its reader or by a stop"
                );
                break;
            }
            if !more {
                tracing::info!(items = export.told().items, "the store was exported");
                break;
            }
        }
        // Only then may a shard that waits for it close its store.
        drop(export);
        drop(slots);
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
            let stopped = stopped.iter_mut().map(|shard| Box::pin(shard.wait_for(|stopped| *stopped)));
            tokio::select! {
                sent = timeout(CHUNK_WITHIN, sender.send(chunk)) => matches!(sent, Ok(Ok(()))),
                _ = select_all(stopped) => false,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::lasting::{one_worker, own_waits};
    use super::*;
    use tidegate_store::{Opener, ShardPlace};
    use tracing::Span;

    /// A new store, whose exports run there.
    fn exports(dir: &tempfile::TempDir, runtime: &Runtime) -> Exports {
        let mut config = Config::default();
        config.store.path = dir.path().join("store");
        let mut opener = Opener::new(&config.store, ShardPlace::ONLY, 32 << 20, false).unwrap();
        let opened = opener.open(1_800_000_000_000).unwrap();
        let exporter = opened.store.exporter();
        assert!(exporter.is_some());
        Exports::of_shard(exporter, runtime.handle().clone())
    }

    fn begun(exports: &Exports, runtime: &Runtime) -> Begun {
        let (sender, begun) = oneshot::channel();
        exports.begin(sender);
        runtime.block_on(begun).unwrap()
    }

    fn fed(parts: Vec<Begun>, runtime: &Runtime) -> Result<ExportFeed, ExportRefusal> {
        let asked = parts.into_iter().map(|part| {
            let (sender, asked) = oneshot::channel();
            assert!(sender.send(part).is_ok());
            asked
        });
        runtime.block_on(feed(asked.collect(), runtime.handle().clone())).unwrap()
    }

    /// All lines that are told.
    fn told(mut feed: ExportFeed, runtime: &Runtime) -> Vec<serde_json::Value> {
        let mut text = Vec::new();
        while let Some(chunk) = runtime.block_on(feed.recv()) {
            text.extend(chunk.unwrap());
        }
        let text = String::from_utf8(text).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_shard_has_one_export_at_a_time_which_ends_when_it_is_dropped_or_read() {
        let (dir, runtime) = (tempfile::tempdir().unwrap(), one_worker("export", &Span::none()).unwrap());
        let exports = exports(&dir, &runtime);
        let first = begun(&exports, &runtime);
        assert!(first.is_ok());
        assert!(matches!(begun(&exports, &runtime), Err(ExportRefusal::Busy)));
        drop(first);
        let lines = told(fed(vec![begun(&exports, &runtime)], &runtime).unwrap(), &runtime);
        assert_eq!((&lines[0]["kind"], &lines[lines.len() - 1]["kind"]), (&"store".into(), &"end".into()));
        // The thread that reads may not have ended yet.
        runtime.block_on(exports.slot.acquire()).unwrap().forget();
    }

    #[test]
    fn the_parts_of_two_shards_are_one_export() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let runtime = one_worker("export", &Span::none()).unwrap();
        let shards = dirs.each_ref().map(|dir| exports(dir, &runtime));
        let parts = shards.each_ref().map(|shard| begun(shard, &runtime));
        let lines = told(fed(parts.into(), &runtime).unwrap(), &runtime);
        assert_eq!((&lines[0]["kind"], &lines[0]["shards"]), (&"store".into(), &2.into()));
        assert_eq!(lines.iter().filter(|line| line["kind"] == "end").count(), 1, "{lines:?}");
        shards.iter().for_each(|shard| runtime.block_on(shard.slot.acquire()).unwrap().forget());
    }

    #[test]
    fn the_refusal_of_one_shard_is_that_of_all_and_frees_the_others() {
        let (dir, runtime) = (tempfile::tempdir().unwrap(), one_worker("export", &Span::none()).unwrap());
        let exports = exports(&dir, &runtime);
        let parts = vec![begun(&exports, &runtime), Err(ExportRefusal::Busy)];
        assert_eq!(fed(parts, &runtime).map(drop), Err(ExportRefusal::Busy));
        assert!(begun(&exports, &runtime).is_ok(), "the other one has let go");
    }

    #[test]
    fn a_shard_that_closes_its_store_ends_an_export_that_nobody_reads() {
        let (dir, runtime) = (tempfile::tempdir().unwrap(), one_worker("export", &Span::none()).unwrap());
        let mut exports = exports(&dir, &runtime);
        let mut feed = fed(vec![begun(&exports, &runtime)], &runtime).unwrap();
        exports.end(&own_waits().unwrap(), Duration::from_secs(60));
        assert_eq!(exports.slot.available_permits(), 1, "nothing keeps the store open");
        let mut lines = Vec::new();
        while let Some(chunk) = runtime.block_on(feed.recv()) {
            lines.extend(chunk.unwrap());
        }
        assert!(!String::from_utf8(lines).unwrap().contains("\"kind\":\"end\""), "it is not complete");
    }
}
