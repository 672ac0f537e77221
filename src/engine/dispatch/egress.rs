//! The state of egress: whether it takes batches, and how many more.

use tidegate_types::Settings;

/// See the module's page.
#[derive(Debug, Default)]
pub(crate) struct Egress {
    /// As last reported.
    ready: bool,
    blocked: bool,
    /// Number of batches that hold a slot, and bytes of their payloads: of each queue its share at most.
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

    /// Whether a queue with this much in flight may have one more batch. A single one always may, however
    /// large; else the bytes of its share are the limit, so that a queue that does not confirm leaves room
    /// for others.
    pub(super) fn has_room_beside(&self, slots: usize, bytes: u64) -> bool {
        slots == 0 || bytes < self.share_bytes()
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

    /// Maximum bytes of one queue.
    fn share_bytes(&self) -> u64 {
        self.max_bytes / 4 * 3
    }

    /// A batch has a slot. `others`: bytes in flight of its queue without it.
    pub(super) fn take_slot(&mut self, bytes: u64, others: u64) {
        self.slots += 1;
        self.bytes += self.counted(bytes, others);
    }

    /// A batch gives its slot back. `others`: as for [`Egress::take_slot`].
    pub(super) fn free_slot(&mut self, bytes: u64, others: u64) {
        self.slots -= 1;
        self.bytes -= self.counted(bytes, others);
    }

    /// By how much a batch raises what counts of its queue.
    fn counted(&self, bytes: u64, others: u64) -> u64 {
        let share = self.share_bytes();
        (others + bytes).min(share) - others.min(share)
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

    /// At most three batches, or 100 bytes, of which one queue has 75. Columns: payload bytes of batches in
    /// flight, each of another queue; then whether one more fits, also behind one more.
    /// Excluded: either limit ignored, or reached one batch or one byte sooner or later; a first batch that
    /// does not fit, or that leaves no room for those of others.
    /// Judges promises 6 and 7.
    #[test]
    fn what_fits_in_flight() {
        for (batches, fits, fits_behind) in [
            (&[50][..], true, true),
            (&[], true, true),
            (&[99], true, true),
            (&[75, 24], true, false),
            (&[75, 25], false, false),
            (&[100], true, true),
            (&[500], true, true),
            (&[500, 24], true, false),
            (&[500, 25], false, false),
            (&[49, 50], true, false),
            (&[50, 50], false, false),
            (&[1, 1, 1], false, false),
        ] {
            let mut egress = Egress { ready: true, max_in_flight: 3, max_bytes: 100, ..Egress::default() };
            batches.iter().for_each(|bytes| egress.take_slot(*bytes, 0));
            let found = (egress.has_slot(), egress.has_room(), egress.has_slots_behind(1));
            assert_eq!(found, (fits, fits, fits_behind), "{batches:?}");
            batches.iter().for_each(|bytes| egress.free_slot(*bytes, 0));
            assert!(egress.has_slot() && egress.slots() == 0, "{batches:?}");
        }
    }

    /// At most 100 bytes. Columns: payload bytes of the batches of one queue in flight; then whether it may
    /// have one more, and how much counts of them.
    /// Excluded: a queue that takes all bytes, or none; counts that do not end with the batches.
    /// Judges promise 6.
    #[test]
    fn the_bytes_of_one_queue() {
        for (batches, fits, counted) in [
            (&[][..], true, 0),
            (&[74], true, 74),
            (&[75], false, 75),
            (&[500], false, 75),
            (&[40, 34], true, 74),
            (&[40, 35], false, 75),
            (&[74, 500], false, 75),
        ] {
            let mut egress = Egress { ready: true, max_in_flight: 3, max_bytes: 100, ..Egress::default() };
            let mut own = 0;
            for bytes in batches {
                egress.take_slot(*bytes, own);
                own += bytes;
            }
            assert_eq!(
                (egress.has_room_beside(batches.len(), own), egress.bytes),
                (fits, counted),
                "{batches:?}"
            );
            for bytes in batches {
                own -= bytes;
                egress.free_slot(*bytes, own);
            }
            assert_eq!((egress.slots, egress.bytes), (0, 0), "{batches:?}");
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
