//! Progress of a long operation: one line on standard error if that is a terminal. It uses no colours, and so
//! respects `NO_COLOR`.

use indicatif::style::TemplateError;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::io::IsTerminal;

/// Rows, share, rate and remaining time.
const KNOWN: &str = "{msg} {pos}/{len} ({percent}%) {rate} {eta}";
/// The form for an unknown total.
const UNKNOWN: &str = "{msg} {pos} {rate}";
/// Most lines written in a second.
const PER_SECOND: u8 = 5;

/// A progress line on a terminal.
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// Shows nothing yet, and nothing at all without a terminal.
    pub(super) fn new() -> Self {
        let shown = std::io::stderr().is_terminal();
        let target =
            if shown { ProgressDrawTarget::stderr_with_hz(PER_SECOND) } else { ProgressDrawTarget::hidden() };
        Progress(ProgressBar::with_draw_target(None, target))
    }

    /// Shows that `done` of `total` are done; `None`: the total is unknown.
    pub(super) fn at(&self, what: &str, done: u64, total: Option<u64>) {
        if self.0.message() != what {
            self.0.set_message(what.to_owned());
        }
        if self.0.length() != total {
            // Both templates are valid; a test checks that.
            let style = style(if total.is_some() { KNOWN } else { UNKNOWN });
            style.into_iter().for_each(|style| self.0.set_style(style));
            match total {
                Some(total) => self.0.set_length(total),
                None => self.0.unset_length(),
            }
        }
        self.0.set_position(done);
    }

    /// Prints other output without disturbing the line.
    pub(super) fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }
}

fn style(template: &str) -> Result<ProgressStyle, TemplateError> {
    let rate = |state: &ProgressState, out: &mut dyn Write| {
        // A failed write leaves a part of the line out.
        let _ = write!(out, "{:.0}/s", state.per_sec());
    };
    Ok(ProgressStyle::with_template(template)?.with_key("rate", rate))
}

impl Drop for Progress {
    /// Removes the line, whatever the result of the command.
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_shown() {
        for template in [KNOWN, UNKNOWN] {
            style(template).unwrap();
        }
        let progress = Progress::new();
        progress.at("items", 3, Some(10));
        progress.at("items", 4, None);
        assert_eq!((progress.0.position(), progress.0.length()), (4, None));
        assert_eq!(progress.aside(|| 7), 7);
    }
}
