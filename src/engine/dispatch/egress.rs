//! The state of egress: whether it takes batches, and how many more.

use crate::mutant::{mutated, Mutant};
use tidegate_types::Settings;

/// See the module's page.
#[derive(Debug, Default)]
pub(crate) struct Egress {
    /// As last reported.
    ready: bool,
    blocked: bool,
    /// Number of batches that hold a slot, and bytes of their payloads.
    slots: usize,
    bytes: u64,
    max_in_flight: usize,
    max_bytes: u64,
}

impl Egress {
    pub(super) fn configure(&mut self, settings: &Settings) {
        self.max_in_flight = settings.max_in_flight;
        self.max_bytes = settings.max_in_flight_bytes;
    }

    /// A new connection is not blocked.
    pub(crate) fn set_ready(&mut self, ready: bool) {
        self.ready = ready;
        self.blocked &= mutated(Mutant::BlockedForEver);
    }

    pub(super) fn set_blocked(&mut self, blocked: bool) {
        self.blocked = blocked;
    }

    pub(crate) fn is_open(&self) -> bool {
        self.ready && !self.blocked
    }

    /// Batches that hold a slot.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Whether a batch may be sent now. The first one always fits, however large.
    pub(super) fn has_slot(&self) -> bool {
        self.is_open() && self.has_room()
    }

    /// Whether a slot is free, also while egress is not open.
    pub(crate) fn has_room(&self) -> bool {
        self.slots < self.max_in_flight
            && (self.slots == 0 || self.bytes < self.max_bytes || mutated(Mutant::BytesIgnoredInFlight))
    }

    /// Whether this many batches or bytes are at least half of what may be in flight.
    pub(super) fn is_mostly(&self, slots: usize, bytes: u64) -> bool {
        slots * 2 > self.max_in_flight || bytes * 2 >= self.max_bytes
    }

    /// Whether a slot is free after this many more batches.
    pub(super) fn has_slots_behind(&self, batches: usize) -> bool {
        self.slots + batches < self.max_in_flight
    }

    /// Maximum number of slots for one queue: a batch of another finds a free slot within one confirm time.
    pub(crate) fn share(&self) -> usize {
        if mutated(Mutant::OneTakesAllSlots) {
            return self.max_in_flight;
        }
        (self.max_in_flight * 3 / 4).max(1)
    }

    pub(super) fn take_slot(&mut self, bytes: u64) {
        self.slots += 1;
        self.bytes += bytes;
    }

    pub(super) fn free_slot(&mut self, bytes: u64) {
        self.slots -= 1;
        self.bytes -= bytes;
    }
}
