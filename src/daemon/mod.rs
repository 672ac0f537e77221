//! The daemon, which alone knows all parts. It decides nothing about items: it translates events into the
//! engine's inputs and carries out the engine's effects in their order.
//!
//! Four layers, each of which outlives the one below it:
//! - [`node`]: what exists once, on the main thread: signals, the service manager, the admin port, the
//!   configuration. It gives orders to its shards ([`mailbox`]) and hears their [`reports`];
//! - [`shard_thread`]: the thread of a shard, and what it keeps over all lives of its store ([`lasting`],
//!   [`tally`]);
//! - [`life`]: from the opening of the store to its closing, with the one loop; one can end and the next
//!   begin within the process, with [`standby`] in between;
//! - [`shard`]: one engine, its part of the store, and its connections to one ingest queue.

mod answers;
mod balance;
mod commands;
mod dead_letters;
mod exports;
mod guard;
mod housekeeping;
mod joined;
mod lasting;
mod life;
mod mailbox;
mod members;
mod node;
mod others;
mod part;
mod queries;
mod recovery;
mod reload;
mod reports;
mod shard;
mod shard_thread;
mod sharder;
mod standby;
mod starts;
mod status;
mod tally;

pub(crate) use exports::NAMING;

use crate::admin;
use crate::logging::{self, LogFormat};
use std::path::PathBuf;
use std::process::ExitCode;
use tidegate_config::Config;
use tidegate_store::OpenError;

/// Exit code: another process has the store.
const EXIT_LOCKED: u8 = 75;

/// Exit code: this configuration may not use the store, or nothing may before someone has mended it.
const EXIT_CONFIG: u8 = 78;

/// Exit code: the stop did not complete and was aborted.
const EXIT_FORCED: u8 = 70;

/// Options of `tidegate run`.
#[derive(Debug)]
pub struct RunOptions {
    /// The valid configuration.
    pub config: Config,
    /// Its file, which SIGHUP reads again.
    pub config_path: Option<PathBuf>,
    /// Open a store that has lost data.
    pub accept_loss: bool,
    /// Format of the log.
    pub log_format: LogFormat,
}

/// Runs until a stop is requested. Returns 0 after a graceful stop, 75 when another process has the store, 78
/// when this configuration may not use the store or its import was interrupted, else 1. A stop that does not
/// complete in time is aborted: the process then ends within this call, with 70.
pub fn run(options: RunOptions) -> ExitCode {
    logging::abort_on_panic();
    if let Err(error) = logging::init(options.log_format) {
        // Another subscriber is set up and receives the messages.
        tracing::debug!(%error, "logging was already set up");
    }
    let code = match node::run(options) {
        Ok(()) => {
            tracing::info!("stopped");
            ExitCode::SUCCESS
        }
        Err(error) => {
            tracing::error!("{error}");
            error.exit_code()
        }
    };
    logging::finish();
    code
}

/// Why the daemon did not start, or did not stay.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("store: {0}")]
    Open(#[from] OpenError),
    #[error("store: {0}")]
    Store(#[from] tidegate_store::StoreFailure),
    #[error("store: {0}")]
    Spawn(#[from] tidegate_store::SpawnError),
    #[error("the runtime cannot be started: {0}")]
    Runtime(std::io::Error),
    #[error("signal handlers cannot be installed: {0}")]
    Signals(std::io::Error),
    #[error("{0}")]
    Admin(#[from] admin::ServeError),
    #[error("shard {0} has ended without a report")]
    ShardGone(u16),
}

impl RunError {
    fn exit_code(&self) -> ExitCode {
        match self {
            RunError::Open(OpenError::Locked { .. }) => ExitCode::from(EXIT_LOCKED),
            RunError::Open(
                OpenError::ForeignSchema { .. }
                | OpenError::OtherShards { .. }
                | OpenError::HoldsDisk { .. }
                | OpenError::OtherCount { .. }
                | OpenError::Undivided { .. }
                | OpenError::BadLayout { .. }
                | OpenError::LostShard { .. }
                | OpenError::Sharded { .. }
                | OpenError::Symlink { .. }
                | OpenError::NotADirectory { .. }
                | OpenError::Incomplete { .. }
                | OpenError::Newer { .. }
                | OpenError::Older { .. },
            ) => ExitCode::from(EXIT_CONFIG),
            RunError::Open(_)
            | RunError::Store(_)
            | RunError::Spawn(_)
            | RunError::Runtime(_)
            | RunError::Signals(_)
            | RunError::Admin(_)
            | RunError::ShardGone(_) => ExitCode::FAILURE,
        }
    }
}

/// The callback that puts events of the connections into the mailbox.
type OnAmqp = std::sync::Arc<dyn Fn(tidegate_amqp::Event) + Send + Sync>;

#[cfg(test)]
mod tests {
    use super::*;

    /// systemd starts the daemon again after any other code, and it would meet the same store without end.
    #[test]
    fn what_no_restart_mends_is_a_fault_of_the_set_up() {
        for error in [OpenError::Newer { found: 9, known: 5 }, OpenError::Older { found: 4 }] {
            assert_eq!(RunError::Open(error).exit_code(), ExitCode::from(EXIT_CONFIG));
        }
        for refused in [
            |path| OpenError::Symlink { path },
            |path| OpenError::NotADirectory { path },
            |path| OpenError::Incomplete { path },
        ] {
            assert_eq!(RunError::Open(refused("/srv".into())).exit_code(), ExitCode::from(EXIT_CONFIG));
        }
        let damaged = OpenError::Damaged { place: "a row".to_owned(), error: "no record".to_owned() };
        assert_eq!(RunError::Open(damaged).exit_code(), ExitCode::FAILURE);
    }
}
