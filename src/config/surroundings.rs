//! What the configuration depends on outside its file.

use std::path::PathBuf;

/// What the configuration depends on outside its file.
#[derive(Default)]
pub(crate) struct Surroundings {
    /// Users other than the owner may read the file.
    pub file_exposed: bool,
    /// The directory of systemd's credentials.
    pub credentials: Option<PathBuf>,
}
