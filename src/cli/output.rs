//! Output of the commands, and their result.
//!
//! Foreign text (names, errors, payloads) passes [`plain`] before it reaches a terminal, and JSON with such
//! text passes [`inert`].

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
}

impl Failure {
    /// A failure with this sentence.
    pub(super) fn failed(text: impl Display) -> Self {
        Failure::Failed(text.to_string())
    }

    /// The exit code of the process.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Failure::Failed(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Partial(_) => 3,
            Failure::Locked(_) => 75,
            Failure::Config(_) => 78,
        }
    }

    /// The text for standard error.
    pub(super) fn text(&self) -> &str {
        match self {
            Failure::Failed(t)
            | Failure::Usage(t)
            | Failure::Partial(t)
            | Failure::Locked(t)
            | Failure::Config(t) => t,
        }
    }
}

impl From<io::Error> for Failure {
    /// The failure for an error on standard output, of a command whose output is what it is for: an export.
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Failure::Partial("the reader closed standard output before all was written".to_owned())
        } else {
            Failure::Failed(format!("standard output: {error}"))
        }
    }
}

/// Standard output, locked.
///
/// A reader that closes it (`| head`) ends the printing and not the command: what is printed from then on is
/// lost, and the exit code is that of what was done.
pub(super) struct Out<W: Write = StdoutLock<'static>> {
    to: W,
    is_closed: bool,
}

impl Out {
    /// Locks standard output.
    pub(super) fn lock() -> Self {
        Out { to: io::stdout().lock(), is_closed: false }
    }
}

impl<W: Write> Out<W> {
    /// Prints one line and flushes it, so that the reader of a pipe sees it at once.
    pub(super) fn line(&mut self, text: impl Display) -> Result<(), Failure> {
        self.put(|to| writeln!(to, "{text}"))
    }

    /// Prints an indented document.
    pub(super) fn json(&mut self, value: &Value) -> Result<(), Failure> {
        self.line(inert(&format!("{value:#}")))
    }

    /// Prints rows in aligned columns, without cutting cells.
    pub(super) fn table(&mut self, rows: &[Vec<String>]) -> Result<(), Failure> {
        self.put(|to| align(rows).iter().try_for_each(|line| writeln!(to, "{line}")))
    }

    /// Prints a text as it is.
    pub(super) fn text(&mut self, text: &[u8]) -> Result<(), Failure> {
        self.put(|to| to.write_all(text))
    }

    /// Whether the reader has closed it: a command that prints as long as it is read ends then.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// For a command whose output is what it is for: partial if the reader has closed it.
    pub(super) fn all_written(&self) -> Result<(), Failure> {
        if self.is_closed {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        }
        Ok(())
    }

    fn put(&mut self, print: impl FnOnce(&mut W) -> io::Result<()>) -> Result<(), Failure> {
        if self.is_closed {
            return Ok(());
        }
        match print(&mut self.to).and_then(|()| self.to.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.is_closed = true,
            printed => printed?,
        }
        Ok(())
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

/// Whether a terminal acts on this character: a control character, or a change of the writing direction.
fn acts(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Text that is safe for a terminal: control characters and changes of the writing direction become escapes.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
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

/// The same JSON, safe for a terminal: control characters and changes of the writing direction, which stand
/// in strings alone, become escapes of JSON. Those below the space stay: JSON has them as white space alone.
pub(super) fn inert(json: &str) -> Cow<'_, str> {
    const DELETE: u8 = 0x7f;
    let is_meant = |c: char| c > ' ' && acts(c);
    if json.bytes().all(|byte| byte < DELETE) || !json.contains(is_meant) {
        return Cow::Borrowed(json);
    }
    let mut shown = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if is_meant(c) {
            shown.push_str(&format!("\\u{:04x}", u32::from(c)));
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

    /// A reader that has closed the pipe, or a full disk.
    struct Broken(io::ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_pipe_ends_the_printing_and_makes_only_an_export_partial() {
        let mut out = Out { to: Broken(io::ErrorKind::BrokenPipe), is_closed: false };
        assert!(out.all_written().is_ok());
        out.line("lost").unwrap();
        out.table(&[vec!["lost".to_owned()]]).unwrap();
        assert!(out.is_closed());
        assert_eq!(out.all_written().unwrap_err().exit_code(), 3);
        let mut out = Out { to: Broken(io::ErrorKind::StorageFull), is_closed: false };
        assert_eq!(out.line("lost").unwrap_err().exit_code(), 1);
        assert!(!out.is_closed());
    }

    #[test]
    fn a_name_cannot_drive_the_terminal() {
        assert_eq!(plain("\u{1b}[2Jred\n\u{202e}x\u{9b}y"), "\\u{1b}[2Jred\\n\\u{202e}x\\u{9b}y");
        assert!(matches!(plain("größe ✓"), Cow::Borrowed("größe ✓")));
    }

    #[test]
    fn json_cannot_drive_the_terminal_and_stays_the_same() {
        let value = serde_json::json!({ "error\u{7f}": "\u{9b}2J\u{202e}x\u{2069}\n", "größe": "✓" });
        let mut out = Out { to: Vec::new(), is_closed: false };
        out.json(&value).unwrap();
        let shown = String::from_utf8(out.to).unwrap();
        assert!(shown.lines().count() == 4 && !shown.contains(|c: char| c != '\n' && acts(c)), "{shown:?}");
        assert!(shown.contains(r#""error\u007f": "\u009b2J\u202ex\u2069\n""#), "{shown}");
        assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), value);
        assert!(matches!(inert("{\n\t\"größe\": \"✓\"}"), Cow::Borrowed("{\n\t\"größe\": \"✓\"}")));
    }

    #[test]
    fn columns_stand_below_one_another() {
        let row = |cells: &[&str]| cells.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        let lines = align(&[row(&["a", "bb", "c"]), row(&["äää", "b"]), row(&[])]);
        assert_eq!(lines, ["a    bb  c", "äää  b", ""]);
    }
}
