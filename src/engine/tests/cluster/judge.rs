//! What must hold however the store changes hands. The judge follows requests, not items: each has a number, which is its
//! payload.

use super::super::builders::*;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_fake_store::FakeStore;
use tidegate_types::event::*;
use tidegate_types::*;

/// What the database says of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Absent,
    Waiting,
    Sent,
    Cancelled,
    Dead,
}

/// The last publish of an item.
struct Written {
    life: u64,
    /// A fault has hidden its outcome from those that come later.
    faulted: bool,
    /// The database knows that it has ended.
    durable: bool,
}

/// A request, with all its copies if it has an id.
pub(super) struct Thing {
    pub(super) new: NewItem,
    pub(super) id: Option<String>,
    pub(super) messages: usize,
    /// Copies that came out, as an item or as a dead letter.
    arrivals: usize,
    pub(super) cancel_asked: bool,
    /// A cancel was answered.
    cancelled: bool,
    /// A lost commit concerned it: it may be lost or repeated.
    pub(super) excused: bool,
    /// Deliveries that came again without an id: each may have become another item.
    again: usize,
    /// Its items that were published: by arrival number, or one for all copies of an id.
    written: BTreeMap<u64, Written>,
    /// Lives that have published it.
    by: BTreeSet<u64>,
    /// The life that has put it into the store, and the step.
    put: (u64, u64),
    /// What the database said of its id, from which step on.
    known: Vec<(u64, Known)>,
}

impl Thing {
    /// The key of its items in `written`.
    fn key(&self, seq: u64) -> u64 {
        if self.id.is_some() {
            0
        } else {
            seq
        }
    }
}

/// A place of an item that a life has published, with the step and the wall clock.
struct Left {
    place: Key,
    step: u64,
    wall: u64,
}

#[derive(Default)]
pub(super) struct Judge {
    pub(super) step: u64,
    pub(super) things: Vec<Thing>,
    by_id: BTreeMap<Identity, usize>,
    /// Lives that may act though another has the store: their claims or leases were lost with commits, or another daemon
    /// has taken their name. Only the fence stops them.
    pub(super) excused: BTreeSet<u64>,
    /// Lives whose clock has stepped: the ends of their windows are times of the former clock.
    pub(super) unordered: BTreeSet<u64>,
    /// Commands under way: request and step.
    asked: BTreeMap<u64, (usize, u64)>,
    /// What each life has published of each customer.
    left: BTreeMap<(u64, Box<str>), Vec<Left>>,
    /// Numbers of answered commands, of repeats, and of acts that only a fault excuses.
    pub(super) answers: usize,
    pub(super) repeats: usize,
    pub(super) overlaps: usize,
}

/// The request that an item came from.
fn number(content: &Content) -> usize {
    text(content).parse().expect("a number")
}

impl Judge {
    /// A new request, with an id or without one. Returns its number.
    pub(super) fn request(&mut self, new: NewItem, has_id: bool) -> usize {
        let thing = self.things.len();
        let id = has_id.then(|| format!("id{thing}"));
        let new = NewItem { content: item("", "", &thing.to_string()).content, ..new };
        let new = match &id {
            Some(id) => with_id(id, DuplicateRule::Keep, new),
            None => new,
        };
        self.by_id.extend(new.identity.map(|identity| (identity, thing)));
        self.things.push(Thing {
            new,
            id,
            messages: 0,
            arrivals: 0,
            cancel_asked: false,
            cancelled: false,
            excused: false,
            again: 0,
            written: BTreeMap::new(),
            by: BTreeSet::new(),
            put: (0, 0),
            known: vec![(0, Known::Absent)],
        });
        thing
    }

    /// The broker delivers a message again.
    pub(super) fn comes_again(&mut self, thing: usize) {
        let thing = &mut self.things[thing];
        thing.again += usize::from(thing.id.is_none());
    }

    // ---- the database -------------------------------------------------------------------------------------

    /// Only the owner commits.
    pub(super) fn check_commit(&self, life: u64, claim: Option<u64>) {
        assert_eq!(Some(life), claim, "a life commits that does not have the store");
    }

    /// The requests that these operations concern.
    pub(super) fn touched(&self, store: &FakeStore, ops: &[Op]) -> BTreeSet<usize> {
        let at = |place: &Place| {
            let stored = store.items.get(&(place.queue.clone(), place.key));
            stored.and_then(|stored| stored.content.as_ref()).map(|content| number(content))
        };
        let one = |op: &Op| match op {
            Op::Put { item, .. } => item.content.as_ref().map(|content| number(content)),
            Op::Delete { place, .. } | Op::Move { from: place, .. } => at(place),
            Op::Remember { identity, .. } => self.by_id.get(identity).copied(),
            _ => None,
        };
        ops.iter().filter_map(one).collect()
    }

    /// A commit becomes durable.
    pub(super) fn commits(&mut self, store: &mut FakeStore, ops: Vec<Op>, marks: Marks) {
        let touched = self.touched(store, &ops);
        for op in &ops {
            let seq = match op {
                Op::Remember { ended, .. } if matches!(ended.end, End::Sent(_)) => 0,
                Op::Delete { place, .. } => place.key.seq,
                _ => continue,
            };
            for number in self.touched(store, std::slice::from_ref(op)) {
                let thing = &mut self.things[number];
                let may = thing.arrivals > 0 || thing.cancel_asked || thing.excused;
                assert!(may, "{number} is deleted, and has not come out");
                let key = thing.key(seq);
                thing.written.insert(key, Written { life: 0, faulted: false, durable: true });
            }
        }
        store.apply(ops, marks);
        self.note_known(store, &touched);
    }

    fn note_known(&mut self, store: &FakeStore, touched: &BTreeSet<usize>) {
        for number in touched {
            let thing = &mut self.things[*number];
            let Some(identity) = thing.new.identity else { continue };
            let of_end = |ended: &Ended| match ended.end {
                End::Sent(_) => Known::Sent,
                End::Cancelled | End::CancelledAgain => Known::Cancelled,
                End::Dead(_) => Known::Dead,
            };
            let ended = || store.ended.iter().filter(|((_, id), _)| *id == identity);
            let known = match store.identities.contains_key(&identity) {
                true => Known::Waiting,
                false => ended().map(|(_, ended)| of_end(ended)).next_back().unwrap_or(Known::Absent),
            };
            if thing.known.last().is_none_or(|(_, last)| *last != known) {
                thing.known.push((self.step, known));
            }
        }
    }

    /// Commits are lost that concerned these requests. `lives`: all that have begun.
    pub(super) fn lose(&mut self, touched: &BTreeSet<usize>, store: &FakeStore, lives: &[u64]) {
        touched.iter().for_each(|number| self.things[*number].excused = true);
        self.excused.extend(lives);
        self.note_known(store, touched);
    }

    // ---- what lives do ------------------------------------------------------------------------------------

    /// A life acts on the content of the store.
    pub(super) fn acts(&mut self, life: u64, claim: Option<u64>, what: &str) {
        let alone = claim.is_none() || claim == Some(life);
        self.overlaps += usize::from(!alone);
        assert!(
            alone || self.excused.contains(&life),
            "life {life} {what}, and the store is that of {claim:?}"
        );
    }

    /// A life hands over a commit: it knows these items from now on.
    pub(super) fn puts(&mut self, life: u64, ops: &[Op]) {
        for op in ops {
            if let Op::Put { item, .. } = op {
                let thing = number(item.content.as_ref().expect("a content"));
                self.things[thing].put = (life, self.step);
            }
        }
    }

    /// A life decides to send a batch: not early by its clock, and in order of its customer, as far as it knows it.
    pub(super) fn sends(&mut self, life: u64, batch: &Batch, wall: u64) {
        if batch.dead.is_some() {
            return;
        }
        for item in &batch.items {
            let (number, thing) = (number(&item.content), &self.things[number(&item.content)]);
            // What was tried in its time may be tried again whatever the clock says.
            let is_first = !thing.by.contains(&life);
            let early = thing.new.at.filter(|at| is_first && *at > wall);
            assert!(early.is_none(), "{number} leaves early: {early:?}, at {wall}");
        }
        let Some(customer) = &batch.customer else {
            batch.items.iter().for_each(|item| self.things[number(&item.content)].by.extend([life]));
            return;
        };
        let name = (life, format!("{} {customer}", batch.application).into_boxed_str());
        let (things, step) = (&mut self.things, self.step);
        let is_ordered = !self.unordered.contains(&life);
        let left = self.left.entry(name).or_default();
        let mut fresh = vec![];
        for item in &batch.items {
            let thing = &mut things[number(&item.content)];
            let first = thing.by.insert(life) && thing.again == 0 && !thing.excused && is_ordered;
            let place = Key { due: item.due, window: item.window, seq: item.seq };
            let since = if thing.put.0 == life { thing.put.1 } else { 0 };
            // Of one due, the members of a window stay together.
            let is_behind = |left: &Left| match left.place.due == item.due {
                true => left.place.window > item.window && left.place.seq > item.seq,
                false => left.place.due > item.due,
            };
            let overtakes = |left: &&Left| is_behind(left) && since < left.step && item.due < left.wall;
            if let Some(late) = left.iter().find(overtakes).filter(|_| first) {
                panic!("{place:?} of {customer} leaves after {:?}, by life {life}", late.place);
            }
            fresh.push(Left { place, step, wall });
        }
        left.extend(fresh);
    }

    /// A life writes a batch to its connection.
    pub(super) fn writes(&mut self, life: u64, batch: &Batch) {
        if self.excused.contains(&life) {
            return;
        }
        for item in &batch.items {
            let number = number(&item.content);
            let thing = &mut self.things[number];
            if thing.excused {
                continue;
            }
            assert!(!thing.cancelled, "{number} is published after its cancel was answered");
            let key = thing.key(item.seq);
            match thing.written.get(&key) {
                Some(written) => {
                    let may = written.faulted && !written.durable;
                    assert!(may, "{number} is published twice, and there was no fault");
                    self.repeats += 1;
                }
                None => assert!(thing.written.len() <= thing.again, "{number} has become two items"),
            }
            thing.written.insert(key, Written { life, faulted: false, durable: false });
        }
    }

    /// The outcome of a batch is unknown to its life.
    pub(super) fn hides(&mut self, batch: &Batch) {
        for item in &batch.items {
            let thing = &mut self.things[number(&item.content)];
            let key = thing.key(item.seq);
            thing.written.get_mut(&key).into_iter().for_each(|written| written.faulted = true);
        }
    }

    /// A life ends: what it had not written of its publishes is unknown to the next one.
    pub(super) fn ends(&mut self, life: u64) {
        let written = self.things.iter_mut().flat_map(|thing| thing.written.values_mut());
        written.filter(|written| written.life == life).for_each(|written| written.faulted = true);
    }

    /// A life claims the store: what the others published is unknown to it, unless the database has the outcome.
    pub(super) fn changes_hands(&mut self, to: u64) {
        let written = self.things.iter_mut().flat_map(|thing| thing.written.values_mut());
        written.filter(|written| written.life != to).for_each(|written| written.faulted = true);
    }

    pub(super) fn arrives(&mut self, batch: &Batch) {
        batch.items.iter().for_each(|item| self.things[number(&item.content)].arrivals += 1);
    }

    /// A message is acked: its item is in the store, has come out, or was cancelled. Or the broker has another copy, for
    /// which this one was dropped.
    pub(super) fn acked(&self, thing: usize, has_another: bool, store: &FakeStore) {
        let known = &self.things[thing];
        let is_its = |stored: &Stored| stored.content.as_ref().is_some_and(|c| number(c) == thing);
        let safe = has_another || known.arrivals > 0 || known.cancel_asked || known.excused;
        assert!(safe || store.items.values().any(is_its), "{thing} is acked, and is nowhere");
    }

    // ---- commands -----------------------------------------------------------------------------------------

    pub(super) fn asks(&mut self, command: u64, thing: usize, cancels: bool) {
        self.things[thing].cancel_asked |= cancels;
        self.asked.insert(command, (thing, self.step));
    }

    /// An answer was true at a moment between question and answer, by what was durable.
    pub(super) fn answers(&mut self, life: u64, reply: &Reply) {
        let Asker::Local(command) = reply.asker else { return };
        let (number, since) = self.asked.remove(&command).expect("asked");
        self.answers += 1;
        let thing = &mut self.things[number];
        if thing.excused || self.excused.contains(&life) {
            return;
        }
        // An item that is due at once may be published before it is written.
        let hurried = thing.new.customer.is_none();
        let last = thing.known.len() - 1;
        let until = |nth: usize| thing.known.get(nth + 1).map_or(u64::MAX, |(step, _)| *step);
        let was = |wanted: Known| {
            let mut all = thing.known.iter().enumerate();
            all.any(|(nth, (_, known))| *known == wanted && until(nth) >= since)
        };
        let fits = match &reply.answer {
            Answer::Unknown => was(Known::Absent),
            Answer::Found(_) | Answer::InFlight => hurried || was(Known::Waiting),
            Answer::Cancelled { .. } => thing.known[last].1 == Known::Cancelled,
            Answer::Ended(ended) => match ended.end {
                End::Sent(_) => was(Known::Sent),
                End::Cancelled | End::CancelledAgain => was(Known::Cancelled),
                End::Dead(_) => was(Known::Dead),
            },
            other => panic!("{other:?}"),
        };
        assert!(fits, "{number} since step {since}: {:?}, {:?}", reply.answer, thing.known);
        thing.cancelled |= matches!(reply.answer, Answer::Cancelled { .. });
    }

    // ---- the end ------------------------------------------------------------------------------------------

    /// Everything has come out, or was cancelled, or was lost with commits. Returns the number of the lost.
    pub(super) fn check_end(&self) -> usize {
        let missing = |thing: &&Thing| thing.messages > 0 && thing.arrivals == 0 && !thing.cancel_asked;
        for (number, thing) in self.things.iter().enumerate().filter(|(_, thing)| missing(thing)) {
            assert!(thing.excused, "{number} has not come out: {:?}", thing.new);
        }
        self.things.iter().filter(missing).count()
    }
}
