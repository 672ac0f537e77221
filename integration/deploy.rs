//! Installation material: the Debian package and the container files. These tests start no containers and no
//! clusters; they check the files against the binary and the repository.

mod containers;
mod package;
