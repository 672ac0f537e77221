//! Faults at a broker, sorted by the reaction that each needs. No password ever enters a text here: lapin's
//! errors contain the broker's reply and I/O errors, never the URI.

use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::{Error, ErrorKind};
use std::fmt;
use std::time::Duration;

/// How long to look for the reason of an end after noticing the end. The search ends by itself once every
/// possible source has reported; on a machine with other work the sources may have to wait for their turn.
pub(crate) const CAUSE_LIMIT: Duration = Duration::from_secs(2);

/// The reaction that a fault needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// The connection or channel is gone, or an answer did not come: try again.
    Lost,
    /// A queue, an exchange or a permission is missing, or differs: try again, and name it.
    Setup,
    /// Another daemon serves the ingest queue: wait for the turn, on the same connection.
    Standby,
    /// The broker closed the channel over the content of a message: one of the unconfirmed ones is the
    /// culprit.
    Content,
    /// The same, but the whole connection was closed over it.
    ContentFatal,
    /// A frame of the broker cannot be read: the message at the head of the queue is the suspect.
    Parse,
    /// Not the cause: an operation was tried on a channel or connection that was already closing.
    AfterEnd,
}

/// A failure with its text for log and status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) text: String,
    /// AMQP reply code, when the broker gave one.
    pub(crate) code: Option<u16>,
}

impl Fault {
    pub(crate) fn lost(text: impl Into<String>) -> Self {
        Fault { kind: FaultKind::Lost, text: text.into(), code: None }
    }

    pub(crate) fn setup(text: impl Into<String>) -> Self {
        Fault { kind: FaultKind::Setup, text: text.into(), code: None }
    }

    pub(crate) fn standby(text: impl Into<String>) -> Self {
        Fault { kind: FaultKind::Standby, text: text.into(), code: None }
    }

    pub(crate) fn timeout(what: &str, limit: Duration) -> Self {
        Fault::lost(format!("no answer to {what} within {} ms", limit.as_millis()))
    }

    /// The exchange is missing, or may not be written to.
    pub(crate) fn is_unavailable(&self) -> bool {
        matches!(self.code, Some(403 | 404))
    }

    /// The broker closed one channel, and the connection goes on.
    pub(crate) fn closes_channel_only(&self) -> bool {
        matches!(self.code, Some(311..=313 | 403..=406))
    }

    /// The connection has ended over a failure within the broker. A message can bring that about: RabbitMQ
    /// ends the connection of a channel that crashes while it handles one.
    pub(crate) fn is_crash(&self) -> bool {
        self.code == Some(541)
    }

    /// The connection has ended, and one of the unconfirmed messages is, or may be, the cause.
    pub(crate) fn has_suspects(&self) -> bool {
        self.kind == FaultKind::ContentFatal || self.is_crash()
    }

    /// On a connection that has worked: the broker allows no more channels.
    pub(crate) fn is_over_limit(&self) -> bool {
        self.code == Some(530)
    }

    /// How much it reveals of the reason: nothing if it only says that the end had come already, most if
    /// there are suspects.
    fn weight(&self) -> u8 {
        match self.kind {
            FaultKind::AfterEnd => 0,
            FaultKind::Lost
            | FaultKind::Setup
            | FaultKind::Standby
            | FaultKind::Content
            | FaultKind::ContentFatal
            | FaultKind::Parse => 1 + u8::from(self.has_suspects()),
        }
    }

    /// Puts the attempted operation in front of the text, except where the connection has ended over a
    /// message, which is unrelated to it.
    pub(crate) fn while_doing(mut self, what: &str) -> Self {
        if self.kind != FaultKind::ContentFatal {
            self.text = format!("{what}: {}", self.text);
        }
        self
    }
}

/// The reason of an end, from several sources. No source ends the search: all are read, and the fault that
/// reveals most is kept.
#[derive(Debug, Default)]
pub(crate) struct EndReason(Option<Fault>);

impl EndReason {
    /// Of equal ones the first counts: a later one may be its consequence.
    pub(crate) fn hear(&mut self, fault: Fault) {
        if self.0.as_ref().is_none_or(|kept| kept.weight() < fault.weight()) {
            self.0 = Some(fault);
        }
    }

    /// The same for a result, which may be `Ok`.
    pub(crate) fn hear_of(&mut self, result: Result<(), Fault>) {
        if let Err(fault) = result {
            self.hear(fault);
        }
    }

    /// # Errors
    /// The fault that is kept.
    pub(crate) fn result(self) -> Result<(), Fault> {
        self.0.map_or(Ok(()), Err)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<&Error> for Fault {
    #[expect(clippy::wildcard_enum_match_arm, reason = "lapin's enum is non-exhaustive: the rest means lost")]
    fn from(error: &Error) -> Self {
        let (kind, text, code) = match error.kind() {
            ErrorKind::ProtocolError(e) => {
                (kind_of(e.kind()), format!("{} {}", e.get_id(), e.get_message()), Some(e.get_id()))
            }
            // The parser's own text may quote bytes of the message.
            ErrorKind::ParsingError(_) => {
                (FaultKind::Parse, "a frame of the broker cannot be parsed".to_owned(), None)
            }
            ErrorKind::SerialisationError(_) => {
                (FaultKind::ContentFatal, "a message cannot be put into AMQP frames".to_owned(), None)
            }
            ErrorKind::InvalidChannelState(..) | ErrorKind::InvalidConnectionState(_) => {
                (FaultKind::AfterEnd, error.to_string(), None)
            }
            ErrorKind::IOError(e) => (FaultKind::Lost, e.to_string(), None),
            _ => (FaultKind::Lost, error.to_string(), None),
        };
        Fault { kind, text, code }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::from(&error)
    }
}

/// Soft errors close a channel, hard ones the connection. Only 311 and 406 (soft), 501 and 502 (hard) blame a
/// message: too large, a foreign `user_id`, an invalid `expiration`, a frame or table that cannot be read.
/// Hard errors such as 320 (an operator closed the connection) or 541 (an internal error) do not; but see
/// [`Fault::is_crash`].
fn kind_of(kind: &AMQPErrorKind) -> FaultKind {
    match kind {
        AMQPErrorKind::Soft(soft) => match soft {
            AMQPSoftError::PRECONDITIONFAILED | AMQPSoftError::CONTENTTOOLARGE => FaultKind::Content,
            AMQPSoftError::ACCESSREFUSED | AMQPSoftError::NOTFOUND | AMQPSoftError::RESOURCELOCKED => {
                FaultKind::Setup
            }
            AMQPSoftError::NOCONSUMERS | AMQPSoftError::NOROUTE => FaultKind::Lost,
        },
        AMQPErrorKind::Hard(hard) => match hard.get_id() {
            501 | 502 => FaultKind::ContentFatal,
            402 | 530 => FaultKind::Setup,
            _ => FaultKind::Lost,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapin::protocol::AMQPError;

    #[test]
    fn the_reason_of_an_end_is_told_by_whoever_knows_it() {
        let fault = |kind, text: &str| Fault { kind, ..Fault::lost(text) };
        let after = || fault(FaultKind::AfterEnd, "after");
        let fatal = || fault(FaultKind::ContentFatal, "501");
        let crash = || Fault { code: Some(541), ..Fault::lost("541") };
        let table = [
            (vec![], None),
            (vec![after(), after()], Some("after")),
            (vec![after(), Fault::lost("lost"), after()], Some("lost")),
            (vec![Fault::lost("first"), Fault::setup("second")], Some("first")),
            (vec![after(), Fault::lost("lost"), fatal()], Some("501")),
            (vec![fatal(), Fault::lost("lost")], Some("501")),
            (vec![after(), Fault::lost("lost"), crash()], Some("541")),
            (vec![crash(), Fault::setup("second"), after()], Some("541")),
        ];
        for (heard, kept) in table {
            let mut reason = EndReason::default();
            heard.iter().cloned().for_each(|fault| reason.hear(fault));
            assert_eq!(reason.result().err().map(|fault| fault.text).as_deref(), kept, "{heard:?}");
        }
    }

    #[test]
    fn replies_are_sorted_by_who_is_to_blame() {
        let table = [
            (406, FaultKind::Content),
            (311, FaultKind::Content),
            (403, FaultKind::Setup),
            (404, FaultKind::Setup),
            (405, FaultKind::Setup),
            (530, FaultKind::Setup),
            (501, FaultKind::ContentFatal),
            (502, FaultKind::ContentFatal),
            (320, FaultKind::Lost),
            (541, FaultKind::Lost),
            (504, FaultKind::Lost),
        ];
        for (code, kind) in table {
            let error = AMQPError::from_id(code, "text".into()).unwrap();
            let fault = Fault::from(Error::from(ErrorKind::ProtocolError(error)));
            assert_eq!((fault.kind, fault.code), (kind, Some(code)), "{code}");
            assert_eq!(fault.has_suspects(), [501, 502, 541].contains(&code), "{code}");
            assert_eq!(fault.text, format!("{code} text"));
        }
    }
}
