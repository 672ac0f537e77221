//! What the project is installed from: the Debian package, and the files for containers. Neither containers nor clusters
//! are started here; what stands in the files is held against the binary and the repository.

mod containers;
mod package;
