//! Reads the configuration again, on its own thread: its files may be pipes, or on a file system that does
//! not respond, and the node waits for neither.

use super::reports::NodeEvent;
use crate::notify::Notify;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::thread::Builder;
use tidegate_config::Config;

/// Time limit of a read, ms. The thread of an abandoned read remains until the system call returns.
const READ_WITHIN_MS: u64 = 10_000;

/// The read in progress.
#[derive(Clone, Copy, Debug, Default)]
enum Rereading {
    #[default]
    Nothing,
    /// It runs until this moment at most (monotonic ms); whether another reload was requested since.
    Until(u64, bool),
    /// It has not returned in time; its result will be ignored.
    GivenUp,
}

/// The reads of one process. A read outlives a life, because it may hang.
#[derive(Debug)]
pub(super) struct Reload {
    state: Rereading,
    path: Option<PathBuf>,
    node: Sender<NodeEvent>,
}

impl Reload {
    /// Of this file, or of the default one. Each result goes to the node.
    pub(super) fn new(path: Option<PathBuf>, node: Sender<NodeEvent>) -> Self {
        Reload { state: Rereading::default(), path, node }
    }

    /// Handles a request for a reload. While a read is in progress, another one follows it.
    pub(super) fn request(&mut self, notify: &Notify, now_ms: u64) {
        match &mut self.state {
            Rereading::Until(_, again) => *again = true,
            Rereading::GivenUp => {
                tracing::error!(
                    "configuration not reloaded: an earlier read has not returned yet; the old one stays in \
                     force"
                );
                // The service manager waits for both, with `Type=notify-reload`.
                notify.reloading();
                notify.ready();
            }
            Rereading::Nothing => self.begin(notify, now_ms),
        }
    }

    /// Begins to read.
    pub(super) fn begin(&mut self, notify: &Notify, now_ms: u64) {
        notify.reloading();
        let (path, node) = (self.path.clone(), self.node.clone());
        let read = move || {
            let read = Config::load(path.as_deref(), tidegate_config::environment());
            // Without a node the process is ending.
            let _ = node.send(NodeEvent::Reread(Box::new(read)));
        };
        match Builder::new().name("tidegate-reload".to_owned()).spawn(read) {
            Ok(_) => self.state = Rereading::Until(now_ms + READ_WITHIN_MS, false),
            Err(error) => {
                tracing::error!(%error, "configuration not reloaded: the system cannot start a thread");
                notify.ready();
            }
        }
    }

    /// A read has returned: whether another one is to follow it. `None`: it came too late, and its result is
    /// ignored.
    pub(super) fn returned(&mut self) -> Option<bool> {
        match std::mem::take(&mut self.state) {
            Rereading::GivenUp => {
                tracing::warn!("the configuration was read too late and is ignored; reload again");
                None
            }
            Rereading::Until(_, again) => Some(again),
            Rereading::Nothing => Some(false),
        }
    }

    /// Abandons a read that has not returned in time.
    pub(super) fn check(&mut self, notify: &Notify, now_ms: u64) {
        if matches!(self.state, Rereading::Until(until, _) if until <= now_ms) {
            self.state = Rereading::GivenUp;
            tracing::error!(
                within_ms = READ_WITHIN_MS,
                "configuration not reloaded: reading it does not end (a pipe, or a file system that does \
                 not respond?); the old one stays in force"
            );
            notify.ready();
        }
    }
}
