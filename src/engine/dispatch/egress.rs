//! The state of egress: whether it takes batches, and how many more.

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
        self.blocked = false;
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
        self.slots < self.max_in_flight && (self.slots == 0 || self.bytes < self.max_bytes)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Each line: the report, then whether batches may be sent.
    /// Excluded: a connection that is blocked because the one before it was; a block or a loss unnoticed.
    /// Judges promise 3.
    #[test]
    fn when_egress_is_open() {
        let mut egress = Egress { max_in_flight: 1, ..Egress::default() };
        for (report, expected) in [
            ("start", false),
            ("ready", true),
            ("blocked", false),
            ("unblocked", true),
            ("blocked", false),
            ("lost", false),
            ("ready", true),
            ("lost", false),
            ("blocked", false),
            ("ready", true),
        ] {
            match report {
                "ready" => egress.set_ready(true),
                "lost" => egress.set_ready(false),
                "blocked" => egress.set_blocked(true),
                "unblocked" => egress.set_blocked(false),
                _ => {}
            }
            assert_eq!((egress.is_open(), egress.has_slot()), (expected, expected), "{report}");
            assert!(egress.has_room(), "{report}: nothing is in flight");
        }
    }

    /// At most three batches, or 100 bytes. Columns: payload bytes of each batch in flight; then whether one
    /// more fits, also behind one more.
    /// Excluded: either limit ignored, or reached one batch or one byte sooner or later; a first batch that
    /// does not fit.
    /// Judges promise 7.
    #[test]
    fn what_fits_in_flight() {
        for (batches, fits, fits_behind) in [
            (&[50][..], true, true),
            (&[], true, true),
            (&[99], true, true),
            (&[100], false, true),
            (&[500], false, true),
            (&[49, 50], true, false),
            (&[50, 50], false, false),
            (&[1, 1, 1], false, false),
        ] {
            let mut egress = Egress { ready: true, max_in_flight: 3, max_bytes: 100, ..Egress::default() };
            batches.iter().for_each(|bytes| egress.take_slot(*bytes));
            let found = (egress.has_slot(), egress.has_room(), egress.has_slots_behind(1));
            assert_eq!(found, (fits, fits, fits_behind), "{batches:?}");
            batches.iter().for_each(|bytes| egress.free_slot(*bytes));
            assert!(egress.has_slot() && egress.slots() == 0, "{batches:?}");
        }
    }

    /// Excluded: a queue that may take all slots, or none.
    /// Judges promise 6.
    #[test]
    fn the_share_of_one_queue() {
        let share = |max_in_flight| Egress { max_in_flight, ..Egress::default() }.share();
        assert_eq!([1, 2, 3, 4, 5, 8, 1_000].map(share), [1, 1, 2, 3, 3, 6, 750]);
    }
}
