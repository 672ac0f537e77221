//! What `check` finds, one line each.

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Ok,
    /// No change is needed; the finding is information.
    Note,
    Warn,
    Fail,
}

impl Level {
    /// As the JSON output names it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warn => "warn",
            Level::Fail => "fail",
        }
    }
}

/// One result of the check.
#[derive(Debug)]
pub(super) struct CheckLine {
    pub(super) level: Level,
    pub(super) subject: &'static str,
    pub(super) text: String,
}

pub(super) fn finding(level: Level, subject: &'static str, text: impl Into<String>) -> CheckLine {
    CheckLine { level, subject, text: text.into() }
}
