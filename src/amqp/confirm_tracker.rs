//! The confirm tracker: which unconfirmed publish each answer of the broker belongs to. Pure: no clock, no
//! I/O, no lapin.
//!
//! It is more than a table because lapin does not report which message was returned. It queues every
//! `basic.return` and hands the oldest queued one to whichever confirm completes next, on a `multiple` ack in
//! hash order. So an answer reports, at best, that *some* message was returned, and the header `x-batch` of
//! that message identifies it.
//!
//! The caller collects a *round*: every answer that is ready, polled until none is left, so that with an
//! answer all that lapin completed before it are in the round or in an earlier one. Then
//! [`ConfirmTracker::judge`]:
//!
//! - The broker sends a return before the confirm of the same message, so lapin has queued it by the time it
//!   completes that confirm.
//! - An ack that carries nothing found the queue empty: a return of the message itself would have gone to a
//!   confirm completed earlier, and would be known by now. It can be judged.
//! - An ack that carries a *foreign* return may have left its own behind in the queue (returned: A, X; acked:
//!   X takes A's return, and X's own waits for A's ack). It can be judged as soon as every message whose
//!   return was seen has its own answer: each of those answers took one return off the queue after its own
//!   was put in, so if X's were still there, more answers than returns would have been taken. Until then it
//!   is held. The answers it waits for are in flight, so the wait ends with an answer or with the generation.

use std::collections::VecDeque;
use tidegate_types::{BatchId, Outcome, Settled};

/// The broker's answer to one publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BrokerAnswer {
    Ack,
    Nack,
}

/// A message that came back, as carried by some answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Returned {
    /// The id that it carries.
    pub(crate) id: Option<BatchId>,
    /// Reply code and text.
    pub(crate) text: String,
}

/// A returned message that is not in flight here: no ack can be trusted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stray;

/// Unconfirmed publishes, at most as many as the engine has slots.
#[derive(Debug, Default)]
pub(crate) struct ConfirmTracker {
    slots: Vec<Option<Unconfirmed>>,
    free: Vec<usize>,
    /// In order of publish; settled ones are skipped lazily, so that finding the oldest is cheap.
    order: VecDeque<(u64, usize)>,
    published: u64,
    /// Answered in this round, not judged.
    round: Vec<usize>,
    /// Acks that cannot be judged yet.
    held: Vec<usize>,
    /// Known to be returned, but without an answer of their own.
    returned_open: usize,
}

#[derive(Debug)]
struct Unconfirmed {
    /// As in [`tidegate_types::Batch::number`].
    number: u64,
    id: BatchId,
    /// Any monotonic unit, of the caller's choice.
    at: u64,
    serial: u64,
    answer: Option<BrokerAnswer>,
    /// Its answer carried a return.
    carried: bool,
    returned: Option<String>,
}

impl ConfirmTracker {
    /// Registers a publish; returns the slot that its answer will be reported for.
    pub(crate) fn publish(&mut self, number: u64, id: BatchId, at: u64) -> usize {
        self.published += 1;
        let serial = self.published;
        let entry = Unconfirmed { number, id, at, serial, answer: None, carried: false, returned: None };
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                self.slots.len() - 1
            }
        };
        self.slots[slot] = Some(entry);
        self.order.push_back((serial, slot));
        slot
    }

    /// Registers an answer; nothing is judged before [`ConfirmTracker::judge`].
    pub(crate) fn answer(
        &mut self,
        slot: usize,
        answer: BrokerAnswer,
        carried: Option<Returned>,
    ) -> Result<(), Stray> {
        if let Some(Some(entry)) = self.slots.get_mut(slot) {
            if entry.answer.is_none() {
                entry.answer = Some(answer);
                entry.carried = carried.is_some();
                if entry.returned.is_some() {
                    self.returned_open -= 1;
                }
                self.round.push(slot);
            }
        }
        carried.map_or(Ok(()), |returned| self.mark(returned))
    }

    /// Ends a round: settles what is certain into `settled`, and calls `confirmed_at` with the publish moment
    /// of each delivered one.
    pub(crate) fn judge(&mut self, settled: &mut Vec<Settled>, mut confirmed_at: impl FnMut(u64)) {
        let certain = self.returned_open == 0;
        let mut waiting = std::mem::take(&mut self.held);
        waiting.append(&mut self.round);
        for slot in waiting {
            let Some(entry) = self.slots[slot].take() else { continue };
            let outcome = match (entry.answer, &entry.returned) {
                (_, Some(text)) => Outcome::Returned(text.as_str().into()),
                (Some(BrokerAnswer::Nack), None) => Outcome::Nacked,
                (Some(BrokerAnswer::Ack), None) if !entry.carried || certain => Outcome::Confirmed(entry.id),
                (Some(BrokerAnswer::Ack) | None, None) => {
                    self.slots[slot] = Some(entry);
                    self.held.push(slot);
                    continue;
                }
            };
            if matches!(outcome, Outcome::Confirmed(_)) {
                confirmed_at(entry.at);
            }
            settled.push(Settled { number: entry.number, outcome });
            self.free.push(slot);
        }
        // Entries that were settled out of order must not pile up behind one that is not.
        if self.order.len() > 2 * self.len() + 64 {
            let slots = &self.slots;
            self.order.retain(|(serial, slot)| is_at(slots, *slot, *serial));
        }
    }

    /// Ends everything: all that is not settled gets `outcome`, in order of publish.
    pub(crate) fn fail(&mut self, outcome: &Outcome) -> Vec<Settled> {
        let mut entries: Vec<Unconfirmed> = self.slots.drain(..).flatten().collect();
        entries.sort_unstable_by_key(|entry| entry.serial);
        *self = ConfirmTracker::default();
        entries
            .into_iter()
            .map(|entry| {
                let outcome = match (entry.answer, entry.returned) {
                    (_, Some(text)) => Outcome::Returned(text.into()),
                    (Some(BrokerAnswer::Nack), None) => Outcome::Nacked,
                    // Acked, but its return may be on the way: not known.
                    (Some(BrokerAnswer::Ack), None) => Outcome::Unknown,
                    (None, None) => outcome.clone(),
                };
                Settled { number: entry.number, outcome }
            })
            .collect()
    }

    /// The publish moment of the oldest that is not settled.
    pub(crate) fn oldest(&mut self) -> Option<u64> {
        while let Some(&(serial, slot)) = self.order.front() {
            if let Some(Some(entry)) = self.slots.get(slot) {
                if entry.serial == serial {
                    return Some(entry.at);
                }
            }
            self.order.pop_front();
        }
        None
    }

    /// Ids of the publishes that are not settled, in no order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = BatchId> + '_ {
        self.slots.iter().flatten().map(|entry| entry.id)
    }

    /// Publishes that are not settled.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns are rare, so a search through all of them is cheaper than an index kept for each publish.
    fn mark(&mut self, returned: Returned) -> Result<(), Stray> {
        let id = returned.id.ok_or(Stray)?;
        let mut found = false;
        for entry in self.slots.iter_mut().flatten() {
            if entry.id == id {
                found = true;
                if entry.returned.is_none() {
                    entry.returned = Some(returned.text.clone());
                    if entry.answer.is_none() {
                        self.returned_open += 1;
                    }
                }
            }
        }
        if found {
            Ok(())
        } else {
            Err(Stray)
        }
    }
}

fn is_at(slots: &[Option<Unconfirmed>], slot: usize, serial: u64) -> bool {
    matches!(slots.get(slot), Some(Some(entry)) if entry.serial == serial)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A different id for each number.
    fn id(number: u64) -> BatchId {
        BatchId(u128::from(number).to_be_bytes())
    }

    /// Runs a script against batches 1 to 9 and compares what each round settles.
    ///
    /// Script: rounds are divided by `|`; in a round `3+` acks batch 3, `3-` nacks it, `3+2` acks it and
    /// carries the return of 2, `3-2` nacks and carries. Expected, per round, in any order: `3=C` confirmed,
    /// `3=R` returned, `3=N` nacked.
    fn check(script: &str, expected: &str) {
        let mut tracker = ConfirmTracker::default();
        let slots: Vec<usize> = (1..=9).map(|n| tracker.publish(n, id(n), n)).collect();
        let digit = |c: u8| usize::from(c - b'0');
        let mut seen = Vec::new();
        for round in script.split('|') {
            for word in round.split_whitespace().map(str::as_bytes) {
                let answer = if word[1] == b'+' { BrokerAnswer::Ack } else { BrokerAnswer::Nack };
                let carried = word
                    .get(2)
                    .map(|c| Returned { id: Some(id(digit(*c) as u64)), text: "312 NO_ROUTE".to_owned() });
                tracker.answer(slots[digit(word[0]) - 1], answer, carried).unwrap();
            }
            let mut settled = Vec::new();
            tracker.judge(&mut settled, |_| ());
            let mut words: Vec<String> = settled.iter().map(word).collect();
            words.sort();
            seen.push(words.join(" "));
        }
        assert_eq!(seen.join(" | "), expected, "script {script}");
    }

    fn word(settled: &Settled) -> String {
        let letter = match &settled.outcome {
            Outcome::Confirmed(delivered) => {
                assert_eq!(*delivered, id(settled.number), "under its own id");
                'C'
            }
            Outcome::Returned(_) => 'R',
            Outcome::Nacked => 'N',
            Outcome::Refused(_) => 'F',
            Outcome::Unknown => 'U',
            Outcome::Unsent => 'S',
            Outcome::Overdue => 'O',
            Outcome::Failed(_) => 'E',
            Outcome::Unavailable(_) => 'X',
        };
        format!("{}={letter}", settled.number)
    }

    /// Judges promise 2.
    #[test]
    fn judged_by_the_returned_id_not_by_the_confirm_it_rides_on() {
        // Plain answers.
        check("1+ 2+ 3-", "1=C 2=C 3=N");
        check("3+ | 1- | 2+", "3=C | 1=N | 2=C");
        // 2 returned, one multiple ack: its return rides on any of the three.
        check("1+2 2+ 3+", "1=C 2=R 3=C");
        check("3+2 2+ 1+", "1=C 2=R 3=C");
        check("2+2 1+ 3+", "1=C 2=R 3=C");
        // A return that rides on a nack.
        check("1-2 2+ 3+", "1=N 2=R 3=C");
        // Returned and nacked.
        check("1+2 2-", "1=C 2=R");
        // Two returns, each on the other's confirm.
        check("1+2 2+1", "1=R 2=R");
        // 1 carries 2's return, and 2 has no answer: 1's own return may still wait in lapin.
        check("1+2 | 2+1", " | 1=R 2=R");
        check("1+2 | 2+", " | 1=C 2=R");
        // A chain: 2 waits for 1, whose ack brings the news about 3, and so on.
        check("1+2 | 2+3 | 3+1", " | 2=R | 1=R 3=R");
        check("1+2 | 2+3 | 3+", " | 2=R | 1=C 3=R");
        // One that carries nothing is certain at once, held ones or not.
        check("1+2 3+ | 4+ | 2+", "3=C | 4=C | 1=C 2=R");
        // A nack ends the wait like an ack.
        check("1+2 | 2-", " | 1=C 2=R");
    }

    #[test]
    fn an_end_settles_all_in_order_and_trusts_no_held_ack() {
        let mut tracker = ConfirmTracker::default();
        let slots: Vec<usize> = (1..=5).map(|n| tracker.publish(n, id(n), n)).collect();
        let returned = Returned { id: Some(id(2)), text: "312 NO_ROUTE".to_owned() };
        tracker.answer(slots[0], BrokerAnswer::Ack, Some(returned)).unwrap();
        tracker.answer(slots[3], BrokerAnswer::Ack, None).unwrap();
        let mut settled = Vec::new();
        tracker.judge(&mut settled, |_| ());
        assert_eq!(settled.iter().map(word).collect::<Vec<_>>(), ["4=C"]);
        let rest = tracker.fail(&Outcome::Refused("406".into()));
        assert_eq!(rest.iter().map(word).collect::<Vec<_>>(), ["1=U", "2=R", "3=F", "5=F"]);
        assert!(tracker.is_empty());
        assert_eq!(tracker.oldest(), None);
    }

    #[test]
    fn a_return_that_is_not_ours_is_told() {
        let mut tracker = ConfirmTracker::default();
        let slot = tracker.publish(1, id(1), 0);
        let stranger = Returned { id: Some(id(9)), text: String::new() };
        assert_eq!(tracker.answer(slot, BrokerAnswer::Ack, Some(stranger)), Err(Stray));
        let slot = tracker.publish(2, id(2), 0);
        let nameless = Returned { id: None, text: String::new() };
        assert_eq!(tracker.answer(slot, BrokerAnswer::Ack, Some(nameless)), Err(Stray));
    }

    #[test]
    fn the_oldest_is_found_while_later_ones_come_and_go() {
        let mut tracker = ConfirmTracker::default();
        let first = tracker.publish(0, id(0), 7);
        for n in 1..10_000 {
            let slot = tracker.publish(n, id(n), 7 + n);
            tracker.answer(slot, BrokerAnswer::Ack, None).unwrap();
            tracker.judge(&mut Vec::new(), |_| ());
            assert_eq!(tracker.oldest(), Some(7));
        }
        assert!(tracker.order.len() < 200, "{}", tracker.order.len());
        let last = tracker.publish(10_000, id(10_000), 20_000);
        tracker.answer(first, BrokerAnswer::Ack, None).unwrap();
        tracker.judge(&mut Vec::new(), |_| ());
        assert_eq!(tracker.oldest(), Some(20_000));
        tracker.answer(last, BrokerAnswer::Ack, None).unwrap();
        tracker.judge(&mut Vec::new(), |_| ());
        assert_eq!((tracker.oldest(), tracker.len()), (None, 0));
    }

    proptest! {
        /// A model of lapin and a broker: messages are routable or not, confirmed in any order and in groups,
        /// and polled at any point. Whatever happens, an unroutable message is never judged delivered, a
        /// routable one never returned, and once all have been answered nothing is held.
        /// Judges promise 2.
        #[test]
        fn no_returned_message_is_ever_judged_delivered(
            fates in prop::collection::vec((any::<bool>(), any::<u16>(), any::<bool>()), 1..40)
        ) {
            let mut tracker = ConfirmTracker::default();
            let slots: Vec<usize> =
                (0..fates.len() as u64).map(|n| tracker.publish(n, id(n), 0)).collect();
            // Wire order: every return before its own ack, and acks in an arbitrary order; returns are sent
            // as soon as the broker has met the message, so they may run far ahead of the acks.
            let mut wire: Vec<(u32, usize, bool)> = Vec::new();
            for (n, (unroutable, when, _)) in fates.iter().enumerate() {
                let acked = u32::from(*when) + 1_000;
                if *unroutable {
                    wire.push((acked.saturating_sub(1 + u32::from(*when) % 977), n, true));
                }
                wire.push((acked, n, false));
            }
            wire.sort_by_key(|(at, n, returned)| (*at, !*returned, *n));
            let mut queue = VecDeque::new();
            let mut settled = Vec::new();
            for (_, n, returned) in wire {
                if returned {
                    queue.push_back(n);
                    continue;
                }
                let returned = |r: usize| Returned { id: Some(id(r as u64)), text: String::new() };
                let carried = queue.pop_front().map(returned);
                prop_assert_eq!(tracker.answer(slots[n], BrokerAnswer::Ack, carried), Ok(()));
                if fates[n].2 {
                    tracker.judge(&mut settled, |_| ());
                }
            }
            tracker.judge(&mut settled, |_| ());
            prop_assert_eq!(settled.len(), fates.len());
            for s in settled {
                let unroutable = fates[s.number as usize].0;
                let delivered = s.outcome == Outcome::Confirmed(id(s.number));
                prop_assert_eq!(delivered, !unroutable, "batch {}", s.number);
            }
        }
    }
}
