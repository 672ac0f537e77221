//! The channels for batches that are sent alone: which flight has one, which queue is next, and which flight
//! gives its channel up.
//!
//! Guarantee: however many queues take batches and confirm nothing, a queue that does not fail finds a
//! channel. Failing queues may have a part of the channels only; and a flight that is unconfirmed for long
//! gives its channel up once another needs it, flights of failing queues first. No channel is given up here
//! without need, as a queue that confirms late has received its batch once; the publisher does so after ten
//! times `timeouts.confirm`.

use crate::ids::QueueId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Bound;
use tidegate_types::{Now, ALONE_CHANNELS};

use super::LATE_PROBE_MS;

/// Upper bound of a confirm time in [`SoloChannels::patience`], ms: limits the wait for a slow broker.
const SLOW_MS: u64 = 2_000;
/// A confirm is late after this many times the usual confirm time.
const LATE_FACTOR: u64 = 4;
/// A slower confirm enters the usual confirm time with the weight one in this many.
const SLOWER_OVER: u64 = 8;

/// A flight that has a channel.
#[derive(Debug)]
struct TakenChannel {
    /// Since when it has the channel, or, once launched, since when the publisher has the flight. Monotonic
    /// ms.
    since: u64,
    /// The publisher has the flight; false while payloads are fetched.
    out: bool,
    /// The last try of its queue failed.
    failing: bool,
    bytes: u64,
    /// The publisher has the order to give it up; the flight keeps its channel until it is settled.
    given_up: bool,
}

/// Queues whose probes wait for a channel, and the queue that got the last one: they take turns.
#[derive(Debug, Default)]
struct Turns {
    waiting: BTreeSet<QueueId>,
    last: Option<QueueId>,
}

impl Turns {
    fn next(&mut self) -> Option<QueueId> {
        let next = self.last.and_then(|last| {
            let behind = (Bound::Excluded(last), Bound::Unbounded);
            self.waiting.range(behind).next().copied()
        });
        let queue = next.or_else(|| self.waiting.first().copied())?;
        self.waiting.remove(&queue);
        self.last = Some(queue);
        Some(queue)
    }
}

/// Numbers of batches that cannot be sent for lack of a channel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shortage {
    /// Batches of queues that do not fail.
    pub(super) sound: usize,
    pub(super) failing: usize,
    /// A batch of any queue finds no slot because of the batches that are alone.
    pub(super) slot: bool,
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct SoloChannels {
    /// Maximum number in use: half of the publisher's slots, and at most [`ALONE_CHANNELS`].
    most: usize,
    /// By flight number.
    taken: BTreeMap<u64, TakenChannel>,
    sound: Turns,
    failing: Turns,
    /// The usual confirm time, ms: follows the fastest recent ones.
    usual: u64,
}

impl SoloChannels {
    pub(super) fn new() -> Self {
        SoloChannels {
            most: 1,
            taken: BTreeMap::new(),
            sound: Turns::default(),
            failing: Turns::default(),
            usual: 0,
        }
    }

    /// `slots`: of the publisher.
    pub(super) fn configure(&mut self, slots: usize) {
        self.most = (slots / 2).clamp(1, ALONE_CHANNELS);
    }

    /// Maximum number of channels for failing queues.
    fn most_failing(&self) -> usize {
        (self.most * 3 / 4).max(1)
    }

    fn free(&self) -> usize {
        self.most.saturating_sub(self.taken.len())
    }

    fn free_for_failing(&self) -> usize {
        let failing = self.taken.values().filter(|taken| taken.failing).count();
        self.most_failing().saturating_sub(failing).min(self.free())
    }

    /// Whether a channel is free for a batch of a queue, by whether the queue fails.
    pub(super) fn has_room(&self, failing: bool) -> bool {
        if failing {
            self.free_for_failing() > 0
        } else {
            self.free() > 0
        }
    }

    pub(super) fn take(&mut self, number: u64, failing: bool, bytes: u64, now: Now) {
        self.taken
            .insert(number, TakenChannel { since: now.mono, out: false, failing, bytes, given_up: false });
    }

    /// The flight was handed to the publisher.
    pub(super) fn launched(&mut self, number: u64, now: Now) {
        if let Some(taken) = self.taken.get_mut(&number) {
            (taken.since, taken.out) = (now.mono, true);
        }
    }

    /// Frees the channel of a flight. Whether it had one.
    pub(super) fn release(&mut self, number: u64) -> bool {
        self.taken.remove(&number).is_some()
    }

    /// The connection was blocked until now, so that no confirm could come: times count from now.
    pub(super) fn unblocked(&mut self, now: Now) {
        self.taken.values_mut().for_each(|taken| taken.since = now.mono);
    }

    /// A confirm came after `took` ms. A fast one counts at once: a single slow queue must not extend the
    /// patience with silent ones.
    pub(super) fn heard(&mut self, took: u64) {
        let took = took.min(SLOW_MS);
        let more = took.saturating_sub(self.usual).div_ceil(SLOWER_OVER);
        self.usual = took.min(self.usual + more);
    }

    /// How long a batch may be unconfirmed before it must give up a channel that another needs, ms.
    fn patience(&self) -> u64 {
        LATE_PROBE_MS.max(LATE_FACTOR * self.usual)
    }

    /// The queue's probe waits for a channel.
    pub(super) fn wait(&mut self, queue: QueueId, failing: bool) {
        let turns = if failing { &mut self.failing } else { &mut self.sound };
        turns.waiting.insert(queue);
    }

    /// Numbers of queues whose probes wait for a channel: sound ones, failing ones.
    pub(super) fn waiting(&self) -> (usize, usize) {
        (self.sound.waiting.len(), self.failing.waiting.len())
    }

    /// Takes the queue whose turn it is, if there is a channel for it.
    pub(super) fn next_waiting(&mut self) -> Option<QueueId> {
        let sound = if self.has_room(false) { self.sound.next() } else { None };
        sound.or_else(|| if self.has_room(true) { self.failing.next() } else { None })
    }

    /// Flights that have a channel, and since when, monotonic ms.
    pub(super) fn taken(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.taken.iter().map(|(number, taken)| (*number, taken.since))
    }

    /// Number of these flights, and bytes of their payloads.
    pub(super) fn held(&self) -> (usize, u64) {
        (self.taken.len(), self.taken.values().map(|taken| taken.bytes).sum())
    }

    /// How many more channels must be given up: by flights of any queue, by flights of failing ones.
    fn short(&self, wanted: Shortage) -> (usize, usize) {
        let given_up = |failing: bool| {
            let is = |taken: &&TakenChannel| taken.given_up && (taken.failing || !failing);
            self.taken.values().filter(is).count()
        };
        // Failing queues that use their full part take turns within it.
        let full = self.taken.values().filter(|taken| taken.failing).count() >= self.most_failing();
        let (others, failing) = if full { (0, wanted.failing) } else { (wanted.failing, 0) };
        let any = (wanted.sound + others).saturating_sub(self.free()).max(usize::from(wanted.slot));
        (any.saturating_sub(given_up(false)), failing.saturating_sub(given_up(true)))
    }

    /// Flights that can give up their channels, in this order.
    fn givers(&self) -> Vec<(bool, u64, u64)> {
        let left = self.taken.iter().filter(|(_, taken)| !taken.given_up && taken.out);
        let mut givers: Vec<_> = left.map(|(number, taken)| (!taken.failing, taken.since, *number)).collect();
        givers.sort_unstable();
        givers
    }

    /// The flights that give up their channels now, so that the waiting batches can be sent.
    pub(super) fn give_up(&mut self, wanted: Shortage, now: Now) -> Vec<u64> {
        let (mut any, mut failing) = self.short(wanted);
        if any + failing == 0 {
            return Vec::new();
        }
        let patience = self.patience();
        let mut given_up = Vec::new();
        for (sound, since, number) in self.givers() {
            if since + patience > now.mono || any + failing == 0 {
                continue;
            }
            if !sound && failing > 0 {
                failing -= 1;
            } else if any > 0 {
                any -= 1;
            } else {
                continue;
            }
            self.taken.entry(number).and_modify(|taken| taken.given_up = true);
            given_up.push(number);
        }
        given_up
    }

    /// When the next channel is given up, monotonic ms.
    pub(super) fn next_given_up(&self, wanted: Shortage) -> Option<u64> {
        let (any, failing) = self.short(wanted);
        let wants = |sound: bool| any > 0 || (failing > 0 && !sound);
        let givers = self.givers().into_iter().filter(|(sound, ..)| wants(*sound));
        givers.map(|(_, since, _)| since + self.patience()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(mono: u64) -> Now {
        Now { wall: 0, mono }
    }

    /// Channels of a publisher with this many slots. Flights are numbered from 1 on; each is given by whether
    /// its queue fails, and since when the publisher has it.
    fn taken(slots: usize, flights: &[(bool, Option<u64>)]) -> SoloChannels {
        let mut channels = SoloChannels::new();
        channels.configure(slots);
        for (number, (failing, since)) in (1..).zip(flights) {
            channels.take(number, *failing, 10, at(0));
            since.iter().for_each(|since| channels.launched(number, at(*since)));
        }
        channels
    }

    /// Columns: the publisher's slots, of which half are channels, and whether the queue of each flight that
    /// has one fails; then whether there is one more for a queue that does not fail, and for one that does.
    /// Excluded: one hung batch that hinders all others; failing queues that take all channels; more channels
    /// than there are.
    /// Judges promise 6.
    #[test]
    fn for_which_queues_a_channel_is_free() {
        for (slots, failing, expected) in [
            (8, &[false][..], [true, true]),
            (8, &[], [true, true]),
            (8, &[true], [true, true]),
            (8, &[true, true], [true, true]),
            (8, &[true, true, true], [true, false]),
            (8, &[false, false, false], [true, true]),
            (8, &[true, true, true, false], [false, false]),
            (8, &[false, false, false, false], [false, false]),
            (1, &[], [true, true]),
            (1, &[true], [false, false]),
        ] {
            let flights: Vec<_> = failing.iter().map(|failing| (*failing, Some(0))).collect();
            let channels = taken(slots, &flights);
            assert_eq!([false, true].map(|fails| channels.has_room(fails)), expected, "{slots} {failing:?}");
        }
    }

    /// All four channels are taken, or the three that failing queues may have. Columns: the flights, as
    /// above; the batches that lack a channel: of sound queues, of failing ones, and whether a slot is
    /// lacking; how long the patience with the first flights is over, ms; then the flights that give theirs
    /// up.
    /// Excluded: a hung flight that keeps its channel; one given up without need, before its time, twice, or
    /// before the publisher has it; that of a sound queue given up before that of a failing one, or for one
    /// that fails and only has to wait for its turn.
    /// Judges promise 6.
    #[test]
    fn which_flights_give_up_their_channels() {
        let (sound, fails, young, fetching) =
            ((false, Some(0)), (true, Some(0)), (false, Some(3)), (false, None));
        let full = [sound, sound, fails, young];
        for (flights, (sound, failing, slot), over, expected) in [
            (&full[..], (1, 0, false), 3, &[3][..]),
            (&full, (0, 0, false), 3, &[]),
            (&full, (2, 0, false), 3, &[3, 1]),
            (&full, (9, 0, false), 3, &[3, 1, 2, 4]),
            (&full, (9, 0, false), 2, &[3, 1, 2]),
            (&full, (0, 1, false), 3, &[3]),
            (&full, (0, 0, true), 3, &[3]),
            (&[sound, fetching, sound, fetching], (9, 0, false), 3, &[1, 3]),
            (&[fails, fails, fails], (0, 1, false), 0, &[1]),
            (&[fails, fails, fails, sound], (0, 9, false), 0, &[1, 2, 3]),
        ] {
            let mut channels = taken(8, flights);
            let wanted = Shortage { sound, failing, slot };
            let mut give_up = |mono| channels.give_up(wanted, at(mono));
            assert!(give_up(LATE_PROBE_MS - 1).is_empty(), "{wanted:?}: too soon");
            assert_eq!(give_up(LATE_PROBE_MS + over), expected, "{wanted:?} {flights:?}");
            assert!(give_up(LATE_PROBE_MS + over).is_empty(), "{wanted:?}: once");
        }
    }
}
