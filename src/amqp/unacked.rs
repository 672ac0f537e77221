//! Counts the unacked deliveries of one channel. Pure.

use std::collections::BTreeSet;

/// Delivery tags count from 1 without gaps within a channel. Only what is unacked is kept, however much is
/// acked behind it.
#[derive(Debug, Default)]
pub(crate) struct Unacked {
    /// The newest tag.
    newest: u64,
    /// Unacked tags.
    open: BTreeSet<u64>,
    /// Tags up to this one were handed to consumers before the present one.
    boundary: u64,
    /// Of `open`, those of the present consumer.
    of_consumer: usize,
}

impl Unacked {
    pub(crate) fn delivered(&mut self, tag: u64) {
        while self.newest < tag {
            self.newest += 1;
            self.open.insert(self.newest);
            self.of_consumer += 1;
        }
    }

    /// The tag to send for this ack, and how many deliveries it covers that no earlier ack has. `None`:
    /// nothing to send.
    ///
    /// The broker closes the channel over a tag that is not unacked, even on a `multiple` ack. So an ack
    /// whose own tag was acked before is sent with the highest unacked tag below it.
    pub(crate) fn ack(&mut self, tag: u64, multiple: bool) -> Option<(u64, u32)> {
        if tag > self.newest {
            return None;
        }
        if !multiple {
            return self.forget(tag).then_some((tag, 1));
        }
        let (mut sent, mut count) = (None, 0u32);
        while let Some(covered) = self.open.first().copied().filter(|first| *first <= tag) {
            self.forget(covered);
            sent = Some(covered);
            count = count.saturating_add(1);
        }
        sent.map(|sent| (sent, count))
    }

    /// A delivery is acked. False: it was before.
    fn forget(&mut self, tag: u64) -> bool {
        let new = self.open.remove(&tag);
        self.of_consumer -= usize::from(new && tag > self.boundary);
        new
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// Deliveries from now on belong to another consumer.
    pub(crate) fn begin_consumer(&mut self) {
        self.boundary = self.newest;
        self.of_consumer = 0;
    }

    /// Unacked deliveries of the present consumer.
    pub(crate) fn of_consumer(&self) -> usize {
        self.of_consumer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_single_and_multiple_acks_in_any_order() {
        let mut unacked = Unacked::default();
        for tag in 1..=10 {
            unacked.delivered(tag);
        }
        assert_eq!(unacked.ack(3, false), Some((3, 1)));
        assert_eq!(unacked.ack(3, false), None, "known already");
        assert_eq!(unacked.ack(5, true), Some((5, 4)));
        assert_eq!(unacked.ack(2, false), None);
        assert_eq!(unacked.ack(11, true), None, "never delivered");
        assert_eq!(unacked.ack(0, true), None);
        assert_eq!(unacked.len(), 5);
        assert_eq!(unacked.ack(8, false), Some((8, 1)));
        assert_eq!(unacked.ack(8, true), Some((7, 2)), "8 is not open any more");
        assert_eq!(unacked.ack(10, true), Some((10, 2)));
        assert_eq!(unacked.len(), 0);
        unacked.delivered(11);
        assert_eq!((unacked.ack(11, false), unacked.len()), (Some((11, 1)), 0));
    }

    #[test]
    fn knows_what_belongs_to_the_present_consumer() {
        let mut unacked = Unacked::default();
        unacked.delivered(4);
        unacked.ack(1, false);
        assert_eq!((unacked.len(), unacked.of_consumer()), (3, 3));
        unacked.begin_consumer();
        unacked.delivered(6);
        assert_eq!((unacked.len(), unacked.of_consumer()), (5, 2));
        unacked.ack(3, true);
        assert_eq!((unacked.len(), unacked.of_consumer()), (3, 2));
        unacked.ack(5, true);
        assert_eq!((unacked.len(), unacked.of_consumer()), (1, 1));
        unacked.ack(6, true);
        unacked.begin_consumer();
        assert_eq!((unacked.len(), unacked.of_consumer()), (0, 0));
    }

    /// Excluded: entries of what is acked behind one unacked delivery, which grow with the throughput.
    #[test]
    fn what_is_acked_is_not_kept() {
        let mut unacked = Unacked::default();
        unacked.delivered(1);
        for tag in 2..=100_000 {
            unacked.delivered(tag);
            assert_eq!(unacked.ack(tag, false), Some((tag, 1)));
            assert_eq!((unacked.len(), unacked.open.len(), unacked.of_consumer()), (1, 1, 1));
        }
        assert_eq!(unacked.ack(99_999, true), Some((1, 1)), "all others are acked");
        assert_eq!((unacked.len(), unacked.of_consumer()), (0, 0));
    }
}
