//! A batch on its way out: what could be sent next, and what has been formed.

use crate::engine::ids::{ItemId, QueueId};
use crate::engine::types::Format;

/// What could be sent next.
#[derive(Debug)]
pub(in crate::engine) struct Candidate {
    /// Its number, where it has been out before.
    pub(super) number: Option<u64>,
    pub(in crate::engine) queue: QueueId,
    pub(in crate::engine) rows: Vec<ItemId>,
    pub(super) alone: bool,
    /// Its format, bytes and publishes, where it has been out before.
    pub(super) before: Option<(Format, u32)>,
    pub(super) suspect: bool,
}

/// How far a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlightState {
    /// Formed; that many payloads are still to come from the store. Holds a slot.
    Fetching { missing: usize, alone: bool },
    /// With the publisher. Holds a slot.
    Out { alone: bool },
    /// To be sent again, in its queue's list.
    Resend,
    /// To be sent again alone.
    Suspect,
}

/// A batch from the moment it is formed until it is settled for good.
#[derive(Debug)]
pub(in crate::engine) struct Flight {
    pub(in crate::engine) queue: QueueId,
    /// In order of (due, seq). Empty only while they are looked at before they are sent.
    pub(in crate::engine) rows: Vec<ItemId>,
    /// Payload bytes, against the publisher's bound.
    pub(super) bytes: u64,
    /// Fixed when it is formed: a repeat is the same message, whatever the settings have become meanwhile.
    pub(super) format: Format,
    pub(super) publishes: u32,
    pub(super) state: FlightState,
    /// When it took its slot, monotonic ms.
    pub(in crate::engine) since: u64,
    /// Its queue was given up while payloads were fetched: its members go back once these have come.
    pub(super) recalled: bool,
}

impl FlightState {
    /// It is with the publisher, or on its way there.
    pub(super) fn holds_slot(self) -> bool {
        match self {
            FlightState::Fetching { .. } | FlightState::Out { .. } => true,
            FlightState::Resend | FlightState::Suspect => false,
        }
    }
}
