//! What a look at the broker finds, one line each.

use super::Side;

/// How much an [`Inspected`] matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be, or harmless.
    Good,
    /// It works, but requests can be lost.
    Warning,
    /// It does not work. A missing queue or exchange is no fault in mode `declare`, which creates it.
    Fault,
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspected {
    /// The end it was found at.
    pub side: Side,
    /// How much it matters.
    pub severity: Severity,
    /// A sentence that names the queue, exchange, address or permission.
    pub text: String,
}
