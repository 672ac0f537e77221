//! Faults and warnings of a configuration: place, key and a sentence.
//!
//! No sentence quotes the value of a key that may hold a secret.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The source of a setting. The order is by line, then by variable; defaults come last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Location {
    /// A line of the configuration file.
    File {
        /// Line number from 1; 0 stands for the file as a whole.
        line: usize,
        /// The path as it was given.
        path: Arc<Path>,
    },
    /// An environment variable.
    Variable(String),
    /// A built-in default.
    Default,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::File { line: 0, path } => write!(f, "{}", path.display()),
            Location::File { line, path } => write!(f, "{}:{line}", path.display()),
            Location::Variable(name) => write!(f, "{name}"),
            Location::Default => write!(f, "defaults"),
        }
    }
}

/// A fault or a warning.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Where the setting is written.
    pub place: Location,
    /// Path of the key, such as `applications.shop.window`; empty for a fault of the file as a whole.
    pub key: String,
    /// What is wrong with it, and how to correct it.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() {
            write!(f, "{}: {}", self.place, self.text)
        } else {
            write!(f, "{}: {}: {}", self.place, self.key, self.text)
        }
    }
}

/// All faults of a configuration: at least one finding, sorted by line. Prints one per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(pub(crate) Vec<Finding>);

impl Faults {
    /// The faults, sorted by line.
    pub fn iter(&self) -> std::slice::Iter<'_, Finding> {
        self.0.iter()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, fault) in self.0.iter().enumerate() {
            if n > 0 {
                writeln!(f)?;
            }
            write!(f, "{fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

/// The candidate that is closest to `word`, if it is close enough.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > 64 {
        return None; // longer than any key, and the distance is quadratic
    }
    candidates
        .into_iter()
        .map(|c| (strsim::osa_distance(word, c), c))
        // A third of the letters may be wrong; with more, any short word would resemble any other.
        .filter(|&(d, c)| d <= c.chars().count().max(3) / 3)
        .min_by_key(|&(d, _)| d)
        .map(|(_, c)| c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_is_shy() {
        let keys = ["queue", "exchange", "prefetch"];
        assert_eq!(nearest("prefech", keys), Some("prefetch"));
        assert_eq!(nearest("qeue", keys), Some("queue"));
        assert_eq!(nearest("quuee", keys), Some("queue"), "a swap is one edit");
        assert_eq!(nearest("colour", keys), None);
        assert_eq!(nearest(&"q".repeat(100_000), keys), None);
    }
}
