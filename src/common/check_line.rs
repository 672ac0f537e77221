//! What `check` finds, one line each, whichever part of the program finds it.

/// How much a [`CheckLine`] matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// As it should be, or harmless.
    Good,
    /// To know: what follows from the set-up as it is, or what the check cannot see. It may be so on purpose.
    Note,
    /// To look at: a daemon may run as it is, but requests can be lost, late or refused, now or after another
    /// failure; or a part that it needs is missing yet, or could not be checked.
    Warning,
    /// To mend: a daemon would not start, or not serve; or acked requests depend on a setting with which they
    /// can be lost, and the configuration does not accept that.
    Fault,
}

impl Severity {
    /// Its name in the output of `check`.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Good => "ok",
            Severity::Note => "note",
            Severity::Warning => "warn",
            Severity::Fault => "fail",
        }
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckLine {
    /// How much it matters.
    pub severity: Severity,
    /// The part of the set-up that it is about: `config`, `store`, `database`, `ingest` and so on.
    pub subject: &'static str,
    /// A sentence that names the object; never a password.
    pub text: String,
}

impl CheckLine {
    /// A line about this part of the set-up.
    pub fn new(severity: Severity, subject: &'static str, text: impl Into<String>) -> Self {
        CheckLine { severity, subject, text: text.into() }
    }
}
