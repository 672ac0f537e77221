//! The limit on the files that this process may have open.

use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use std::io;

/// Lets the process have as many files open as the system permits: the stores of many shards need more than
/// the usual 1,024.
///
/// # Errors
///
/// The system's, if it refuses. The limit stays as it is then.
pub fn raise_file_limit() -> io::Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_the_system_permits_may_be_open() {
        raise_file_limit().unwrap();
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(current, maximum);
    }
}
