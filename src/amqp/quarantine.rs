//! Takes few deliveries at a time while a message is suspected of ending the connection or the process, so
//! that few others are returned with it. Pure.
//!
//! With more, every neighbour of the culprit would be returned with it each time, and the queue's delivery
//! limit would send innocent messages to the dead exchange.
//!
//! After parse errors the consumer takes one delivery at a time. After quick deaths of the process, which may
//! have any cause, it takes one at first, and twice as many whenever all of the last ones have passed. If the
//! process dies over some of them, the next process takes an eighth of these at most, down to one
//! ([`most_after`]). So an innocent message is returned with the culprit a few times at most, however many
//! there are.

/// Divisor of the number of deliveries over which a process has died, for the next process.
const NARROWER: u16 = 8;

/// Most deliveries at a time for a process that follows quick deaths. `width`: how many the process before it
/// took when it died, if that one was in quarantine too.
pub fn most_after(width: Option<u16>) -> u16 {
    width.map_or(u16::MAX, |width| (width / NARROWER).max(1))
}

/// See the module's page.
#[derive(Debug, Default)]
pub struct Quarantine {
    on: bool,
    /// Most deliveries at a time after deaths of the process. `None`: parse errors are the cause.
    most: Option<u16>,
    /// Deliveries at a time at present, and how many were acked since that number was set.
    width: u16,
    passed: u32,
    /// Parse errors in a row: no culprit is known to have passed between.
    errors: u32,
    /// Parse errors in a row during the quarantine, with nothing acked between. Two mean that the culprit is
    /// at the head of the queue. With one, the ack before it may not have reached the broker, and then the
    /// acked message comes first.
    met: u32,
    acked: u32,
    /// Most deliveries that may precede the culprit.
    depth: u32,
    /// Deliveries that arrived on this channel, and how many of them are acked.
    handed: u32,
    answered: u32,
    /// Number of the first of them that was not redelivered. The broker delivers first what was returned, the
    /// culprit with it: once all are acked up to this one, the culprit has passed.
    fresh: Option<u32>,
}

impl Quarantine {
    /// On from the start if the process has died quickly several times; `most`: most deliveries at a time
    /// (`None`: no such deaths). `depth`: most deliveries that an earlier process may have had.
    pub fn started(most: Option<u16>, depth: u16) -> Self {
        Quarantine { on: most.is_some(), most, depth: u32::from(depth), ..Quarantine::default() }
    }

    /// Whether it limits the deliveries at present.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// The cause is deaths of the process, and not parse errors.
    pub fn follows_deaths(&self) -> bool {
        self.on && self.most.is_some()
    }

    /// Deliveries at a time, at present.
    pub fn width(&self) -> u16 {
        self.width.max(1)
    }

    /// Parse errors in a row.
    pub fn errors(&self) -> u32 {
        self.errors
    }

    /// A new channel: the broker redelivers what it delivered on the previous one. Returns the width.
    pub fn restart(&mut self) -> u16 {
        (self.width, self.passed) = (1, 0);
        (self.handed, self.answered, self.fresh) = (0, 0, None);
        self.width()
    }

    /// A larger width, once as many have passed as the present one allows; `allowed`: most by memory.
    pub fn widen(&mut self, allowed: u16) -> Option<u16> {
        let wider = self.width().saturating_mul(2);
        let passed = self.passed >= u32::from(self.width());
        let most = self.most.unwrap_or(1).min(allowed);
        (self.on && passed && wider <= most).then(|| {
            (self.width, self.passed) = (wider, 0);
            wider
        })
    }

    /// A connection ended by a parse error, at this prefetch.
    pub fn parse_error(&mut self, prefetch: u16) {
        self.errors = self.errors.saturating_add(1);
        if self.on {
            self.met = self.met.saturating_add(1);
            // A single message is the cause, so deliveries are taken one at a time.
            self.most = self.most.map(|_| 1);
        } else if self.errors >= 2 {
            *self = Quarantine {
                on: true,
                errors: self.errors,
                depth: u32::from(prefetch),
                ..Quarantine::default()
            };
        }
    }

    /// A delivery has arrived; `redelivered`: it was delivered before.
    pub fn delivered(&mut self, redelivered: bool) {
        self.handed = self.handed.saturating_add(1);
        if !redelivered && self.fresh.is_none() {
            self.fresh = Some(self.handed);
        }
    }

    /// Deliveries were acked. True: the quarantine ends, because the culprit was at the head and is gone,
    /// because a delivery behind it has passed, or because as many passed as could precede it.
    ///
    /// What was redelivered comes before the culprit, so its acks alone end no row of parse errors: with a
    /// store that acks late, some of them come between any two.
    pub fn acked(&mut self, count: u32) -> bool {
        self.acked = self.acked.saturating_add(count);
        self.passed = self.passed.saturating_add(count);
        self.answered = self.answered.saturating_add(count);
        let met = std::mem::take(&mut self.met);
        let behind = self.fresh.is_some_and(|fresh| self.answered >= fresh);
        if behind {
            self.errors = 0;
        }
        let over = self.on && count > 0 && (met >= 2 || behind || self.acked >= self.depth);
        if over {
            *self = Quarantine::default();
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn two_parse_errors_in_a_row_isolate_the_culprit() {
        let mut quarantine = Quarantine::default();
        quarantine.parse_error(1_000);
        assert!(!quarantine.is_on());
        quarantine.restart();
        quarantine.delivered(false);
        quarantine.acked(1);
        quarantine.parse_error(1_000);
        assert!(!quarantine.is_on(), "something behind the culprit was acked between");
        quarantine.restart();
        quarantine.parse_error(1_000);
        assert!(quarantine.is_on());
        // Those before it pass one by one.
        assert!(!quarantine.acked(1));
        assert!(quarantine.is_on());
        // It is met, but the last ack was lost: the one before it comes again.
        quarantine.parse_error(1);
        assert!(!quarantine.acked(1));
        // It is met until the broker takes it away; the next ack ends it.
        for _ in 0..50 {
            quarantine.parse_error(1);
        }
        assert_eq!(quarantine.errors(), 53);
        assert!(quarantine.acked(1));
        assert!(!quarantine.is_on());
    }

    /// A store in memory acks a request when it has left: of what the broker returns with the culprit, some
    /// leaves before the culprit comes again, and the rest is returned once more.
    /// Excluded: acks that hide that the culprit keeps coming back, until the queue's delivery limit takes
    /// all that waits; a quarantine that goes on without the culprit.
    #[test]
    fn acks_of_what_comes_again_do_not_hide_the_culprit() {
        const LIMIT: u32 = 50;
        let (mut quarantine, mut most_returned) = (Quarantine::default(), 0);
        // Whether it is the culprit, and how often it was returned.
        let mut queue: VecDeque<(bool, u32)> = (0..200).map(|_| (false, 0)).chain([(true, 0)]).collect();
        while queue.iter().any(|(culprit, _)| *culprit) {
            let width = quarantine.restart();
            let prefetch = if quarantine.is_on() { width } else { 1_000 };
            if prefetch > 1 {
                let before = queue.len() - 1;
                queue.iter().take(before).for_each(|(_, returned)| quarantine.delivered(*returned > 0));
                // A few are due.
                queue.drain(..3.min(before));
                assert!(!quarantine.acked(3));
                queue.iter_mut().for_each(|(_, returned)| *returned += 1);
            } else {
                while !queue[0].0 {
                    let (_, returned) = queue.pop_front().unwrap();
                    quarantine.delivered(returned > 0);
                    assert!(!quarantine.acked(1), "the culprit is behind it");
                }
                queue[0].1 += 1;
            }
            let innocent = queue.iter().filter(|(culprit, _)| !culprit).map(|(_, returned)| *returned);
            most_returned = innocent.max().unwrap_or(0).max(most_returned);
            queue.retain(|(_, returned)| *returned < LIMIT);
            quarantine.parse_error(prefetch);
        }
        assert_eq!(most_returned, 2);
        quarantine.restart();
        quarantine.delivered(false);
        assert!(quarantine.acked(1), "the culprit is gone");
        assert!(!quarantine.is_on() && quarantine.errors() == 0);
    }

    #[test]
    fn a_quarantine_without_a_culprit_ends() {
        let mut quarantine = Quarantine::started(Some(1), 3);
        assert!(!quarantine.acked(1));
        assert!(!quarantine.acked(1));
        assert!(quarantine.acked(1));
    }

    #[test]
    fn what_nobody_had_before_ends_a_quarantine_once_it_is_acked() {
        let mut quarantine = Quarantine::started(Some(1), 10_000);
        for _ in 0..5 {
            quarantine.delivered(true);
            assert!(!quarantine.acked(1), "the culprit may be next");
        }
        quarantine.delivered(false);
        assert!(quarantine.is_on(), "it may be the culprit itself");
        assert!(quarantine.acked(1));
        assert!(!quarantine.is_on());
    }

    #[test]
    fn what_lies_before_the_first_new_one_has_to_pass() {
        let mut quarantine = Quarantine::started(Some(u16::MAX), 10_000);
        quarantine.delivered(true);
        assert!(!quarantine.acked(1));
        assert_eq!(quarantine.widen(100), Some(2));
        quarantine.delivered(true);
        quarantine.delivered(false);
        assert!(!quarantine.acked(1), "the second of them is not acked");
        assert!(quarantine.acked(1));
    }

    #[test]
    fn it_widens_as_far_as_memory_and_the_death_before_allow() {
        let widths = |most: u16, allowed: u16| -> Vec<u16> {
            let mut quarantine = Quarantine::started(Some(most), u16::MAX);
            let mut widths = Vec::new();
            for _ in 0..20 {
                assert!(!quarantine.acked(u32::from(quarantine.width())));
                widths.extend(quarantine.widen(allowed));
            }
            widths
        };
        assert_eq!(widths(u16::MAX, 100), [2, 4, 8, 16, 32, 64]);
        assert_eq!(widths(10, 100), [2, 4, 8]);
        assert!(widths(1, 100).is_empty());
        let mut quarantine = Quarantine::started(Some(u16::MAX), 10_000);
        quarantine.acked(1);
        assert_eq!((quarantine.widen(100), quarantine.widen(100)), (Some(2), None), "two have to pass first");
        assert_eq!((quarantine.restart(), quarantine.width()), (1, 1), "another channel begins anew");
    }

    /// Runs one process in quarantine over a queue: each message is (whether it is the culprit, which ends
    /// the process; how often it was returned). Returns how many deliveries the process took at a time when
    /// it ended; `None`: it got through.
    fn live(queue: &mut Vec<(bool, u32)>, most: u16, prefetch: u16) -> Option<u16> {
        let mut quarantine = Quarantine::started(Some(most), prefetch);
        loop {
            let width = usize::from(quarantine.width()).min(queue.len());
            if queue[..width].iter().any(|(culprit, _)| *culprit) {
                // Nothing of what came with it had been acked: the worst case.
                queue[..width].iter_mut().for_each(|(_, returned)| *returned += 1);
                return Some(quarantine.width());
            }
            queue[..width].iter().for_each(|(_, returned)| quarantine.delivered(*returned > 0));
            queue.drain(..width);
            if width == 0 || quarantine.acked(width as u32) {
                return None;
            }
            quarantine.widen(prefetch);
        }
    }

    proptest! {
        #[test]
        fn the_culprit_is_found_before_its_neighbours_are_given_up(
            prefetch in 1..20_000u16, place in any::<prop::sample::Index>(),
        ) {
            // Three quick deaths have returned all of them three times.
            let mut queue = vec![(false, 3); usize::from(prefetch)];
            queue[place.index(usize::from(prefetch))].0 = true;
            // Twenty is RabbitMQ's own limit; tidegate's queues have more.
            let mut width = None;
            for _ in 3..20 {
                width = live(&mut queue, most_after(width), prefetch);
                prop_assert!(width.is_some(), "nobody gets past it");
                let innocent = queue.iter().filter(|(culprit, _)| !culprit).map(|(_, returned)| *returned);
                prop_assert!(innocent.max().unwrap_or(0) <= 9);
            }
            prop_assert_eq!(queue.iter().map(|(_, returned)| *returned).max(), Some(20));
            queue.retain(|(culprit, _)| !culprit);
            prop_assert_eq!(live(&mut queue, most_after(width), prefetch), None);
        }
    }
}
