//! daemon.

use crate::config::Config;
use std::path::PathBuf;
use std::process::ExitCode;

/// What `tidegate run` was told.
#[derive(Debug)]
pub struct RunOptions {
    /// Checked.
    pub config: Config,
    /// Where it came from; read again on SIGHUP.
    pub config_path: Option<PathBuf>,
    /// Open a store that has lost data.
    pub accept_loss: bool,
}

/// Runs until it is told to stop.
pub fn run(_options: RunOptions) -> ExitCode {
    ExitCode::FAILURE
}
