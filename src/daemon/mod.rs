//! The daemon, which alone knows all parts. It decides nothing about items: what happens is translated into
//! the engine's inputs, and what the engine answers is carried out, in the engine's order.
//!
//! Three layers, each of which outlives the one below it:
//! - [`process`]: start-up in order, signals, the service manager, the admin port, the configuration, and
//!   what is counted ([`tally`]);
//! - [`life`]: from the opening of the store to its closing, with the one loop; one can end and the next
//!   begin within the process, with [`standby`] in between;
//! - [`shard`]: one engine, its part of the store, and its connections to one ingest queue.

mod answers;
mod commands;
mod dead_letters;
mod exports;
mod guard;
mod housekeeping;
mod life;
mod mailbox;
mod process;
mod recovery;
mod reload;
mod shard;
mod standby;
mod starts;
mod status;
mod tally;

use crate::config::Config;
use crate::logging::{self, LogFormat};
use crate::store::{self, OpenError};
use crate::{admin, amqp};
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit code beside 0 and 1: another process has the store.
const EXIT_LOCKED: u8 = 75;

/// Exit code where the store is none that this configuration may use.
const EXIT_CONFIG: u8 = 78;

/// Exit code of a stop that did not come to its end and was broken off.
const EXIT_FORCED: u8 = 70;

/// Options of `tidegate run`.
#[derive(Debug)]
pub struct RunOptions {
    /// Valid as a whole.
    pub config: Config,
    /// Where it came from; read again on SIGHUP.
    pub config_path: Option<PathBuf>,
    /// Open a store that has lost data.
    pub accept_loss: bool,
    /// Shape of the log.
    pub log_format: LogFormat,
}

/// Runs until a stop is requested. 0 after a graceful stop, 75 when another process has the store, 78 when
/// the store is none that this configuration may use, else 1. A stop that does not come to its end is broken
/// off: then the process ends here, with 70.
pub fn run(options: RunOptions) -> ExitCode {
    logging::abort_on_panic();
    if let Err(error) = logging::init(options.log_format) {
        // Another subscriber is there already: messages go to it.
        tracing::debug!(%error, "logging was set up before");
    }
    match process::run(options) {
        Ok(()) => {
            tracing::info!("stopped");
            ExitCode::SUCCESS
        }
        Err(error) => {
            tracing::error!("{error}");
            error.exit_code()
        }
    }
}

/// Why the daemon did not start, or did not stay.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("store: {0}")]
    Open(#[from] OpenError),
    #[error("store: {0}")]
    Store(#[from] store::StoreFailure),
    #[error("store: {0}")]
    Spawn(#[from] store::SpawnError),
    #[error("the runtime cannot be started: {0}")]
    Runtime(std::io::Error),
    #[error("signal handlers cannot be installed: {0}")]
    Signals(std::io::Error),
    #[error("{0}")]
    Admin(#[from] admin::ServeError),
}

impl RunError {
    fn exit_code(&self) -> ExitCode {
        match self {
            RunError::Open(OpenError::Locked { .. }) => ExitCode::from(EXIT_LOCKED),
            RunError::Open(OpenError::ForeignSchema { .. } | OpenError::HoldsDisk { .. }) => {
                ExitCode::from(EXIT_CONFIG)
            }
            RunError::Open(_)
            | RunError::Store(_)
            | RunError::Spawn(_)
            | RunError::Runtime(_)
            | RunError::Signals(_)
            | RunError::Admin(_) => ExitCode::FAILURE,
        }
    }
}

/// Neighbours in the order of start-up: what amqp tells goes where the loop sleeps.
type OnAmqp = std::sync::Arc<dyn Fn(amqp::Event) + Send + Sync>;
