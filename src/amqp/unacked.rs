//! Counts the unacked deliveries of one channel. Pure.

use std::collections::VecDeque;

/// Delivery tags count from 1 without gaps within a channel; acked ones are forgotten from the front.
#[derive(Debug, Default)]
pub(crate) struct Unacked {
    /// Tags up to this one are acked.
    base: u64,
    /// Whether the tags after it are.
    acked: VecDeque<bool>,
    open: usize,
    /// Tags up to this one were handed to consumers before the present one.
    boundary: u64,
    /// Of `open`, those of the present consumer.
    of_consumer: usize,
}

impl Unacked {
    pub(crate) fn delivered(&mut self, tag: u64) {
        while self.base + (self.acked.len() as u64) < tag {
            self.acked.push_back(false);
            self.open += 1;
            self.of_consumer += 1;
        }
    }

    /// The tag to send for this ack, and how many deliveries it covers that no earlier ack has. `None`:
    /// nothing to send.
    ///
    /// The broker closes the channel over a tag that is not unacked, even on a `multiple` ack. So an ack
    /// whose own tag was acked before is sent with the highest unacked tag below it.
    pub(crate) fn ack(&mut self, tag: u64, multiple: bool) -> Option<(u64, u32)> {
        let index = usize::try_from(tag.checked_sub(self.base + 1)?).ok()?;
        if index >= self.acked.len() {
            return None;
        }
        let first = if multiple { 0 } else { index };
        let last = first + self.acked.range(first..=index).rposition(|acked| !acked)?;
        let sent = self.base + 1 + last as u64;
        let (mut count, mut of_consumer) = (0, 0);
        let mut tag = self.base + first as u64;
        for acked in self.acked.range_mut(first..=last) {
            tag += 1;
            let new = usize::from(!std::mem::replace(acked, true));
            count += new;
            of_consumer += if tag > self.boundary { new } else { 0 };
        }
        while self.acked.front() == Some(&true) {
            self.acked.pop_front();
            self.base += 1;
        }
        self.open -= count;
        self.of_consumer -= of_consumer;
        Some((sent, u32::try_from(count).unwrap_or(u32::MAX)))
    }

    pub(crate) fn len(&self) -> usize {
        self.open
    }

    /// Deliveries from now on belong to another consumer.
    pub(crate) fn begin_consumer(&mut self) {
        self.boundary = self.base + self.acked.len() as u64;
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
        assert_eq!((unacked.len(), unacked.acked.len()), (0, 0));
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
}
