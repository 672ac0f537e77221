//! Reads the configuration again, on its own thread: its files may be pipes, or on a file system that does
//! not respond, and the loop waits for neither.

use super::life::Life;
use super::mailbox::LoopEvent;
use crate::config::{self, Config, Faults, LoadedConfig};
use crate::engine::event::Input;
use std::sync::Arc;
use std::thread::Builder;

/// The configuration, or its faults.
pub(super) type ReadConfig = Box<Result<LoadedConfig, Faults>>;

/// Time limit of a read, ms. The thread of an abandoned read remains until the system call returns.
const READ_WITHIN_MS: u64 = 10_000;

/// The read in progress.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Rereading {
    #[default]
    Nothing,
    /// It runs until this moment at most (monotonic ms); whether another reload was requested since.
    Until(u64, bool),
    /// It has not returned in time; its result will be ignored.
    GivenUp,
}

impl Life<'_> {
    /// Handles a request for a reload. While a read is in progress, another one follows it.
    pub(super) fn reload(&mut self, now_ms: u64) {
        match &mut self.process.rereading {
            Rereading::Until(_, again) => *again = true,
            Rereading::GivenUp => tracing::error!(
                "configuration not reloaded: an earlier read has not returned yet; the old one stays in force"
            ),
            Rereading::Nothing => self.read_again(now_ms),
        }
    }

    fn read_again(&mut self, now_ms: u64) {
        self.process.notify.reloading();
        let (path, inlet) = (self.process.config_path.clone(), Arc::clone(&self.process.inlet));
        let read = move || {
            let read = Config::load(path.as_deref(), config::environment());
            inlet.post(LoopEvent::Reread(Box::new(read)));
        };
        match Builder::new().name("tidegate-reload".to_owned()).spawn(read) {
            Ok(_) => self.process.rereading = Rereading::Until(now_ms + READ_WITHIN_MS, false),
            Err(error) => {
                tracing::error!(%error, "configuration not reloaded: the system cannot start a thread");
                self.process.notify.ready();
            }
        }
    }

    /// Takes the result of a read: the new configuration takes effect, or the old one stays in force.
    pub(super) fn reread(&mut self, read: ReadConfig, now_ms: u64) {
        let again = match std::mem::take(&mut self.process.rereading) {
            Rereading::GivenUp => {
                return tracing::warn!("the configuration was read too late and is ignored; reload again")
            }
            Rereading::Until(_, again) => again,
            Rereading::Nothing => false,
        };
        match *read {
            Ok(loaded) => {
                self.process.adopt(loaded);
                let config = &self.process.config;
                self.process.progress.configure(config.timeouts.stuck_after);
                let settings = Box::new(config.engine_settings());
                self.shard.feed(Input::Configure(settings));
                self.shard.amqp.reconfigure(&self.process.config);
                tracing::info!("configuration reloaded");
            }
            Err(faults) => {
                for fault in faults.iter() {
                    tracing::error!("{fault}");
                }
                tracing::error!("configuration not reloaded: the old one stays in force");
            }
        }
        self.process.notify.ready();
        if again {
            self.read_again(now_ms);
        }
    }

    /// Abandons a read that has not returned in time.
    pub(super) fn look_at_reread(&mut self, now_ms: u64) {
        if matches!(self.process.rereading, Rereading::Until(until, _) if until <= now_ms) {
            self.process.rereading = Rereading::GivenUp;
            tracing::error!(
                within_ms = READ_WITHIN_MS,
                "configuration not reloaded: reading it does not end (a pipe, or a file system that does \
                 not respond?); the old one stays in force"
            );
            self.process.notify.ready();
        }
    }
}
