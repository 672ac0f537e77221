//! The channels on which a batch goes alone: who has one, whose turn is next, and who gives its own up.
//!
//! Guarantee: however many queues take what they are sent and confirm nothing, a queue that does not fail
//! finds a channel. Those that fail may have a part of the channels only; and whatever has been out for long
//! gives its channel up once another needs it, one of a failing queue first. Without need nothing is given
//! up: a queue that confirms after all has been sent its batch once.

use crate::engine::ids::QueueId;
use crate::engine::mutant::{mutated, Mutant};
use crate::engine::types::{Now, ALONE_CHANNELS};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::LATE_PROBE_MS;

/// How far a slow broker is waited for: most that a confirm counts in [`SoloChannels::patience`], ms.
const SLOW_MS: u64 = 2_000;
/// A confirm is late after this many times what confirms take at present.
const LATE_FACTOR: u64 = 4;
/// Weight of a slower confirm in what they take is one in this many.
const SLOWER_OVER: u64 = 8;

/// A flight that has a channel.
#[derive(Debug)]
struct TakenChannel {
    /// Since when it has it; once the publisher has the flight, since then. Monotonic ms.
    since: u64,
    /// The publisher has the flight. It knows nothing of one whose payloads are still fetched.
    out: bool,
    /// Of a queue that failed when it was tried last.
    failing: bool,
    bytes: u64,
    /// The publisher was told; the flight has its channel until it is settled.
    given_up: bool,
}

/// Queues whose probe waits for a channel, and the one that got the last free one: they take turns.
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

/// What cannot be sent for want of a channel, in batches.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shortage {
    /// Of queues that do not fail, of failing ones.
    pub(super) sound: usize,
    pub(super) failing: usize,
    /// One batch, of whatever queue, finds no slot because of those that are alone.
    pub(super) slot: bool,
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct SoloChannels {
    /// Most at a time: half of the publisher's slots, or all that there are.
    most: usize,
    /// By flight number.
    taken: BTreeMap<u64, TakenChannel>,
    sound: Turns,
    failing: Turns,
    /// What a confirm takes at present, ms: the fastest of late.
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

    /// Of these failing queues may have so many.
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

    /// A channel is free for a batch of a queue that fails, or does not.
    pub(super) fn has_room(&self, failing: bool) -> bool {
        if mutated(Mutant::HungBatchHindersAll) {
            return self.taken.is_empty();
        }
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

    /// The flight is handed to the publisher, if it has a channel.
    pub(super) fn launched(&mut self, number: u64, now: Now) {
        if let Some(taken) = self.taken.get_mut(&number) {
            (taken.since, taken.out) = (now.mono, true);
        }
    }

    /// Whether the flight had one.
    pub(super) fn release(&mut self, number: u64) -> bool {
        self.taken.remove(&number).is_some()
    }

    /// The connection was blocked until now: no confirm could come.
    pub(super) fn unblocked(&mut self, now: Now) {
        self.taken.values_mut().for_each(|taken| taken.since = now.mono);
    }

    /// A confirm came, of a batch that was out for so many ms. One that is fast counts at once: a single slow
    /// queue is not to lend its patience to those that are silent.
    pub(super) fn heard(&mut self, took: u64) {
        let took = took.min(SLOW_MS);
        let more = took.saturating_sub(self.usual).div_ceil(SLOWER_OVER);
        self.usual = took.min(self.usual + more);
    }

    /// How long a batch may be out before its channel is another's, if that needs it, ms.
    fn patience(&self) -> u64 {
        LATE_PROBE_MS.max(LATE_FACTOR * self.usual)
    }

    /// The queue's probe waits for a channel.
    pub(super) fn wait(&mut self, queue: QueueId, failing: bool) {
        let turns = if failing { &mut self.failing } else { &mut self.sound };
        turns.waiting.insert(queue);
    }

    /// Queues whose probes wait for one: of those that do not fail, of failing ones.
    pub(super) fn waiting(&self) -> (usize, usize) {
        (self.sound.waiting.len(), self.failing.waiting.len())
    }

    /// The queue whose turn it is, if there is a channel for it; it waits no more.
    pub(super) fn next_waiting(&mut self) -> Option<QueueId> {
        let sound = if self.has_room(false) { self.sound.next() } else { None };
        sound.or_else(|| if self.has_room(true) { self.failing.next() } else { None })
    }

    /// Flights that have a channel, and since when, monotonic.
    pub(super) fn taken(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.taken.iter().map(|(number, taken)| (*number, taken.since))
    }

    /// How many they are, and bytes of their payloads.
    pub(super) fn held(&self) -> (usize, u64) {
        (self.taken.len(), self.taken.values().map(|taken| taken.bytes).sum())
    }

    /// How many are to be given up beyond those that are already: of whatever queue, of failing ones.
    fn short(&self, wanted: Shortage) -> (usize, usize) {
        let given_up = |failing: bool| {
            let is = |taken: &&TakenChannel| taken.given_up && (taken.failing || !failing);
            self.taken.values().filter(is).count()
        };
        // Where they have their part, they take turns in it.
        let full = self.taken.values().filter(|taken| taken.failing).count() >= self.most_failing();
        let (others, failing) = if full { (0, wanted.failing) } else { (wanted.failing, 0) };
        let any = (wanted.sound + others).saturating_sub(self.free()).max(usize::from(wanted.slot));
        (any.saturating_sub(given_up(false)), failing.saturating_sub(given_up(true)))
    }

    /// Those that can be given up, in the order in which they are.
    fn givers(&self) -> Vec<(bool, u64, u64)> {
        let left = self.taken.iter().filter(|(_, taken)| !taken.given_up && taken.out);
        let mut givers: Vec<_> = left.map(|(number, taken)| (!taken.failing, taken.since, *number)).collect();
        givers.sort_unstable();
        givers
    }

    /// The flights that give their channels up now, so that what is wanted can go.
    pub(super) fn give_up(&mut self, wanted: Shortage, now: Now) -> Vec<u64> {
        let (mut any, mut failing) = self.short(wanted);
        if any + failing == 0 || mutated(Mutant::HungKeepChannels) {
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

    /// When the next one is given up, monotonic.
    pub(super) fn next_given_up(&self, wanted: Shortage) -> Option<u64> {
        let (any, failing) = self.short(wanted);
        let wants = |sound: bool| any > 0 || (failing > 0 && !sound);
        let givers = self.givers().into_iter().filter(|(sound, ..)| wants(*sound));
        givers.map(|(_, since, _)| since + self.patience()).min()
    }
}
