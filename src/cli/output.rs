//! Output of the commands, and their result.
//!
//! Foreign text (names, errors, payloads) passes [`plain`] before it reaches a terminal.

use serde_json::Value;
use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, StdoutLock, Write};

/// Why a command did not complete.
#[derive(Debug)]
pub(super) enum Failure {
    /// The command failed: exit code 1.
    Failed(String),
    /// The arguments do not fit together: exit code 2.
    Usage(String),
    /// Only a part was done: exit code 3.
    Partial(String),
    /// Another process has the store: exit code 75, as for `run`.
    Locked(String),
    /// The configuration is invalid: exit code 78.
    Config(String),
    /// The reader of the output closed it (`| head`): not a failure, exit code 0.
    Closed,
}

impl Failure {
    /// A failure with this sentence.
    pub(super) fn failed(text: impl Display) -> Self {
        Failure::Failed(text.to_string())
    }

    /// The exit code of the process.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Failure::Closed => 0,
            Failure::Failed(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Partial(_) => 3,
            Failure::Locked(_) => 75,
            Failure::Config(_) => 78,
        }
    }

    /// The text for standard error.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Failure::Closed => None,
            Failure::Failed(t)
            | Failure::Usage(t)
            | Failure::Partial(t)
            | Failure::Locked(t)
            | Failure::Config(t) => Some(t),
        }
    }
}

impl From<io::Error> for Failure {
    /// The failure for an error on standard output.
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Failure::Closed
        } else {
            Failure::Failed(format!("standard output: {error}"))
        }
    }
}

/// Standard output, locked.
pub(super) struct Out(StdoutLock<'static>);

impl Out {
    /// Locks standard output.
    pub(super) fn lock() -> Self {
        Out(io::stdout().lock())
    }

    /// Prints one line and flushes it, so that the reader of a pipe sees it at once.
    pub(super) fn line(&mut self, text: impl Display) -> Result<(), Failure> {
        writeln!(self.0, "{text}")?;
        Ok(self.0.flush()?)
    }

    /// Prints an indented document.
    pub(super) fn json(&mut self, value: &Value) -> Result<(), Failure> {
        self.line(format_args!("{value:#}"))
    }

    /// Prints rows in aligned columns, without cutting cells.
    pub(super) fn table(&mut self, rows: &[Vec<String>]) -> Result<(), Failure> {
        for line in align(rows) {
            writeln!(self.0, "{line}")?;
        }
        Ok(self.0.flush()?)
    }
}

/// Prints a line on standard error. The line is lost if that is closed.
pub(super) fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

fn align(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, &w)| format!("{cell:<w$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Text that is safe for a terminal: control characters and changes of the writing direction become escapes.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
    let acts = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if acts(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_the_help() {
        let text = String::new;
        assert_eq!(Failure::Failed(text()).exit_code(), 1);
        assert_eq!(Failure::Usage(text()).exit_code(), 2);
        assert_eq!(Failure::Partial(text()).exit_code(), 3);
        assert_eq!(Failure::Locked(text()).exit_code(), 75);
        assert_eq!(Failure::Config(text()).exit_code(), 78);
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let closed = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!((closed.exit_code(), closed.text()), (0, None));
        let full = Failure::from(io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(full.exit_code(), 1);
    }

    #[test]
    fn a_name_cannot_drive_the_terminal() {
        assert_eq!(plain("\u{1b}[2Jred\n\u{202e}x\u{9b}y"), "\\u{1b}[2Jred\\n\\u{202e}x\\u{9b}y");
        assert!(matches!(plain("größe ✓"), Cow::Borrowed("größe ✓")));
    }

    #[test]
    fn columns_stand_below_one_another() {
        let row = |cells: &[&str]| cells.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        let lines = align(&[row(&["a", "bb", "c"]), row(&["äää", "b"]), row(&[])]);
        assert_eq!(lines, ["a    bb  c", "äää  b", ""]);
    }
}
