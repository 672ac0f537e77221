//! What is wrong or doubtful in a configuration: where, which key, and a sentence.
//!
//! No value of a key that may hold a secret is ever quoted in one.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Where a setting came from. Sorts by line, then by variable; what was written nowhere comes last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A line of the configuration file.
    File {
        /// From 1; 0 = the file as a whole.
        line: usize,
        /// As it was given.
        path: Arc<Path>,
    },
    /// An environment variable.
    Variable(String),
    /// A built-in default.
    Default,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File { line: 0, path } => write!(f, "{}", path.display()),
            Place::File { line, path } => write!(f, "{}:{line}", path.display()),
            Place::Variable(name) => write!(f, "{name}"),
            Place::Default => write!(f, "defaults"),
        }
    }
}

/// One fault or one warning.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Where the setting was written.
    pub place: Place,
    /// Path of the key, such as `applications.shop.window`; empty for a fault of the file as a whole.
    pub key: String,
    /// What is wrong with it and how to put it right.
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

/// Everything that is wrong with a configuration: at least one finding, sorted by line. Prints one a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(pub(super) Vec<Finding>);

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

/// The candidate that `word` was most likely meant to be, if one is near enough.
pub(super) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > 64 {
        return None; // nobody misspells at that length, and the distance is quadratic
    }
    candidates
        .into_iter()
        .map(|c| (distance(word, c), c))
        // A third of the letters may be wrong: more makes any short word resemble any other.
        .filter(|&(d, c)| d <= c.chars().count().max(3) / 3)
        .min_by_key(|&(d, _)| d)
        .map(|(_, c)| c)
}

/// Edits between two words: insertions, deletions, replacements, and swaps of neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits() {
        for (a, b, d) in [
            ("", "", 0),
            ("abc", "abc", 0),
            ("prefech", "prefetch", 1),
            ("prefetchh", "prefetch", 1),
            ("windwo", "window", 1),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(a, b), d, "{a} {b}");
            assert_eq!(distance(b, a), d, "{b} {a}");
        }
    }

    #[test]
    fn nearest_is_shy() {
        let keys = ["queue", "exchange", "prefetch"];
        assert_eq!(nearest("prefech", keys), Some("prefetch"));
        assert_eq!(nearest("qeue", keys), Some("queue"));
        assert_eq!(nearest("colour", keys), None);
        assert_eq!(nearest(&"q".repeat(100_000), keys), None);
    }
}
