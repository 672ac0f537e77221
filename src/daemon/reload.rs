//! The configuration is read again, on a thread of its own: its files may be pipes, or lie where nothing
//! answers, and the loop waits for neither.

use super::life::Life;
use super::mailbox::LoopEvent;
use crate::config::{self, Config, Faults, LoadedConfig};
use crate::engine::event::Input;
use std::sync::Arc;
use std::thread::Builder;

/// What was read, or why it does not hold.
pub(super) type ReadConfig = Box<Result<LoadedConfig, Faults>>;

/// Time behind which a read is given up, ms. Its thread stays until the system answers.
const READ_WITHIN_MS: u64 = 10_000;

/// The read that is under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Rereading {
    #[default]
    Nothing,
    /// Until this moment, monotonic ms; and whether another was asked for meanwhile.
    Until(u64, bool),
    /// It has not come back in time, and what it brings is not taken.
    GivenUp,
}

impl Life<'_> {
    /// A reload is asked for. While the read before goes on, another follows it.
    pub(super) fn reload(&mut self, now_ms: u64) {
        match &mut self.process.rereading {
            Rereading::Until(_, again) => *again = true,
            Rereading::GivenUp => tracing::error!(
                "configuration not reloaded: the read before has still not come back; the one in force stays"
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
                tracing::error!(%error, "configuration not reloaded: the system starts no thread");
                self.process.notify.ready();
            }
        }
    }

    /// It has been read: it is in force now, or the one before stays.
    pub(super) fn reread(&mut self, read: ReadConfig, now_ms: u64) {
        let again = match std::mem::take(&mut self.process.rereading) {
            Rereading::GivenUp => {
                return tracing::warn!(
                    "the configuration was read too late, and is not taken: reload once more"
                )
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
                tracing::error!("configuration not reloaded: the one before stays in force");
            }
        }
        self.process.notify.ready();
        if again {
            self.read_again(now_ms);
        }
    }

    /// Whether the read has come back in time.
    pub(super) fn look_at_reread(&mut self, now_ms: u64) {
        if matches!(self.process.rereading, Rereading::Until(until, _) if until <= now_ms) {
            self.process.rereading = Rereading::GivenUp;
            tracing::error!(
                within_ms = READ_WITHIN_MS,
                "configuration not reloaded: reading it does not come to an end (a pipe, or a file system \
                 that does not answer?); the one before stays in force"
            );
            self.process.notify.ready();
        }
    }
}
