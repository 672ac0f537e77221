//! The unacked deliveries of one channel: how many there are, and what they cost. Pure.

use std::collections::BTreeMap;

/// Most acks with which a channel may be closed at once.
///
/// RabbitMQ's channel passes 32 commands on to a quorum queue that the queue has not applied so far. It holds
/// further acks back, and forgets them when it is closed: the messages return to the queue (seen on 3.10: 133
/// to 1,525 of 2,000). A frame may be several commands, one for each former consumer, so this is fewer.
pub(crate) const MOST_UNAPPLIED: u32 = 8;

/// What is unacked on a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnackedLoad {
    pub(crate) count: usize,
    /// Bytes, see [`super::cost`].
    pub(crate) cost: u64,
    /// Deliveries that the present consumer's prefetch allows beside these: the broker may have sent them.
    pub(crate) on_the_way: u16,
}

/// Delivery tags count from 1 without gaps within a channel. Only what is unacked is kept, however much is
/// acked behind it.
#[derive(Debug, Default)]
pub(crate) struct Unacked {
    /// The newest tag.
    newest: u64,
    /// The cost of each that is unacked, by tag, bytes.
    open: BTreeMap<u64, u64>,
    /// The sum of these.
    cost: u64,
    /// Tags up to this one were handed to consumers before the present one.
    boundary: u64,
    /// Of `open`, those of the present consumer.
    of_consumer: usize,
}

impl Unacked {
    /// A delivery has come, and costs this many bytes.
    pub(crate) fn delivered(&mut self, tag: u64, cost: u64) {
        while self.newest < tag {
            self.newest += 1;
            self.open.insert(self.newest, 0);
            self.of_consumer += 1;
        }
        self.set_cost(tag, cost);
    }

    /// What a delivery costs once it is read.
    pub(crate) fn set_cost(&mut self, tag: u64, cost: u64) {
        if let Some(known) = self.open.get_mut(&tag) {
            self.cost = self.cost - *known + cost;
            *known = cost;
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
        while let Some(covered) =
            self.open.first_key_value().map(|(tag, _)| *tag).filter(|first| *first <= tag)
        {
            self.forget(covered);
            sent = Some(covered);
            count = count.saturating_add(1);
        }
        sent.map(|sent| (sent, count))
    }

    /// A delivery is acked. False: it was before.
    fn forget(&mut self, tag: u64) -> bool {
        let Some(cost) = self.open.remove(&tag) else { return false };
        self.cost -= cost;
        self.of_consumer -= usize::from(tag > self.boundary);
        true
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// Bytes of all of them.
    pub(crate) fn cost(&self) -> u64 {
        self.cost
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
            unacked.delivered(tag, 10);
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
        assert_eq!((unacked.len(), unacked.cost()), (0, 0));
        unacked.delivered(11, 10);
        assert_eq!((unacked.ack(11, false), unacked.len()), (Some((11, 1)), 0));
    }

    #[test]
    fn sums_up_what_the_unacked_ones_cost() {
        let mut unacked = Unacked::default();
        for (tag, cost) in [(1, 100), (2, 20), (3, 3)] {
            unacked.delivered(tag, cost);
        }
        unacked.set_cost(2, 5_000);
        assert_eq!(unacked.cost(), 5_103);
        unacked.ack(1, false);
        unacked.set_cost(1, 7_000);
        assert_eq!(unacked.cost(), 5_003, "it is acked");
        unacked.ack(3, true);
        assert_eq!(unacked.cost(), 0);
    }

    #[test]
    fn knows_what_belongs_to_the_present_consumer() {
        let mut unacked = Unacked::default();
        unacked.delivered(4, 10);
        unacked.ack(1, false);
        assert_eq!((unacked.len(), unacked.of_consumer()), (3, 3));
        unacked.begin_consumer();
        unacked.delivered(6, 10);
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
        unacked.delivered(1, 10);
        for tag in 2..=100_000 {
            unacked.delivered(tag, 10);
            assert_eq!(unacked.ack(tag, false), Some((tag, 1)));
            assert_eq!((unacked.len(), unacked.cost(), unacked.of_consumer()), (1, 10, 1));
        }
        assert_eq!(unacked.ack(99_999, true), Some((1, 1)), "all others are acked");
        assert_eq!((unacked.len(), unacked.of_consumer()), (0, 0));
    }
}
