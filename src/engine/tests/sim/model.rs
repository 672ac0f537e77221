//! The reference: what has become of every single item, learned from what the engine was told and what it did. Written
//! from the contract alone, one item at a time, without any of the engine's ideas.

use super::super::world::*;
use super::again::Again;
use super::commands::Asked;
use super::retimed::Moved;
use super::windows::Windows;
use crate::engine::event::*;
use crate::engine::types::*;
use std::collections::{BTreeMap, BTreeSet};

/// Why an item may arrive once more. Each is given to the very items that it happened to, and covers one repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Excuse {
    /// It had been published, or its delete was not durable, when the process was killed.
    Killed,
    /// The connection was lost while it was in flight.
    ConnectionLost,
    /// Its confirm was overdue.
    Overdue,
    /// One queue took it and another of the same key did not.
    PartlyRefused,
    /// The broker closed the channel while it was in flight there.
    ChannelClosed,
    /// Its request was not acked when the ingest connection was lost, and had no id.
    AckLost,
    /// Likewise, and another item of its id came before it came again: an id remembers its last end alone.
    IdTaken,
}

/// One entry of a message, as its producer sees it.
pub(super) struct Ask {
    pub(super) message: usize,
    pub(super) new: NewItem,
    /// The broker closes the channel over a batch that holds it.
    pub(super) poison: bool,
    /// The same for its dead letter, while that is sent whole.
    pub(super) poison_dead: bool,
    /// It cannot be understood.
    pub(super) rejected: bool,
    pub(super) arrivals: u32,
    pub(super) letters: u32,
    pub(super) excuses: Vec<Excuse>,
    /// Its ack was lost, and a redelivery is recognised as long as its end is remembered.
    pub(super) recognised: bool,
}

/// One message of the ingest queue.
pub(super) struct Message {
    pub(super) asks: Vec<usize>,
    pub(super) command: Option<u64>,
    /// Handed over: call, monotonic moment, tag, mark.
    pub(super) delivered: Option<(usize, u64, u64, bool)>,
    /// Every part of it is safe since, monotonic.
    pub(super) safe_since: Option<u64>,
    /// What became of each entry in this delivery.
    pub(super) taken: Vec<Option<u64>>,
    pub(super) answered: bool,
    /// In this delivery.
    pub(super) acked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    Out(u64),
    Sent,
    Cancelled,
    Replaced,
    Dead(Reason),
    DeadOut(u64, Reason),
    DeadSent(Reason),
    /// The broker has the only copy.
    Forgotten,
}

impl State {
    /// It counts for `max_waiting`, and may still be sent.
    pub(super) fn is_live(self) -> bool {
        matches!(self, State::Waiting | State::Out(_))
    }

    pub(super) fn is_over(self) -> bool {
        !matches!(self, State::Waiting | State::Out(_) | State::Dead(_) | State::DeadOut(..))
    }
}

/// One item, by arrival number.
pub(super) struct Life {
    pub(super) ask: usize,
    pub(super) seq: u64,
    /// Number of the window in its key; without one, its own.
    pub(super) number: u64,
    pub(super) identity: Identity,
    pub(super) accepted_due: u64,
    pub(super) due: u64,
    pub(super) state: State,
    /// The call in which it was first seen, and the moment, monotonic.
    pub(super) accepted: usize,
    pub(super) seen: u64,
    /// The call since which it has waited without interruption.
    pub(super) waiting_since: usize,
    pub(super) put: Option<Token>,
    pub(super) durable: bool,
    /// What became of its last attempt is not known: it may have been delivered.
    pub(super) undecided: bool,
    /// The same of any attempt.
    pub(super) perhaps_sent: bool,
    /// The broker has refused it alone: it is dead, which without a store is not seen until its letter leaves.
    pub(super) refused: bool,
    /// Failed attempts: those that certainly count, and those that may.
    pub(super) attempts: (u32, u32),
    pub(super) published: Option<usize>,
    /// The batch in which it was published last.
    pub(super) batch: Option<BatchId>,
    /// It has had a window, whose number that is.
    pub(super) window: Option<usize>,
    /// Its window is that of a former life.
    pub(super) restored: bool,
    /// When it ended, UTC ms, and the call.
    pub(super) ended_at: u64,
    /// For how long its id was to be remembered when it ended.
    pub(super) tail: Option<u64>,
    pub(super) ended_call: usize,
    pub(super) deleted: bool,
    /// A cancel that was delivered again took it back, which may have been meant for one before it: that is remembered.
    pub(super) taken_again: bool,
    /// It counts as cancelled, and another of its id may have replaced it: nothing is remembered of either.
    pub(super) perhaps_replaced: bool,
    /// The delivery that it came with was acked.
    pub(super) acked: bool,
    /// Its request comes again, and its attempt has not ended.
    pub(super) orphaned: bool,
    /// Its last attempt was nacked or returned.
    pub(super) failed: bool,
    /// Another of its id was taken while it was in flight: it is sent, or replaced.
    pub(super) superseded: bool,
    /// The time of its own that a command has given it, UTC ms, and the call in which that was written.
    pub(super) retimed: Option<u64>,
    pub(super) retimed_call: usize,
    /// The last such time that an answer has told.
    pub(super) promised: Option<u64>,
}

impl Life {
    /// Where it lies, or would.
    pub(super) fn key(&self) -> Key {
        Key { due: self.due, window: self.number, seq: self.seq }
    }
}

/// What can be known of an identity at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    Nobody,
    Waiting(u64),
    Out(u64),
    Ended(u64),
}

/// Those of one id, application and customer.
pub(super) type Peers = (Option<Identity>, String, Option<String>);

pub(super) struct Flight {
    pub(super) application: String,
    pub(super) items: Vec<u64>,
    pub(super) dead: bool,
    pub(super) alone: bool,
    /// The number under which its items went first.
    pub(super) first: u64,
    /// The call in which it was published.
    pub(super) sent: usize,
    /// The same as a moment, monotonic.
    pub(super) at: u64,
    /// It may go though its application is parked: all of it was in flight when that began.
    pub(super) suspect: bool,
}

#[derive(Default)]
pub(super) struct App {
    pub(super) live: u64,
    pub(super) flights: BTreeSet<u64>,
    /// The last failed attempt: until when it may be left alone, monotonic.
    pub(super) left_alone_until: u64,
    /// The same: until when it certainly is, and the call in which that began or may have begun.
    pub(super) parked_until: u64,
    pub(super) parked_call: usize,
    /// Probes that have certainly failed since the last confirm.
    pub(super) failures: u32,
    /// The last confirm, monotonic.
    pub(super) heard: u64,
    /// It has failed since its last confirm.
    pub(super) failing: bool,
    /// The last call in which it was failing, and that of its last failure.
    pub(super) failed_call: usize,
    pub(super) failure: usize,
    /// Until then, UTC ms.
    pub(super) paused: Option<u64>,
    /// The call in which its last pause was over: a command may have been there first.
    pub(super) pause_over: usize,
    /// A pause or its end is under way: both are possible.
    pub(super) pausing: u32,
    /// The rate that a command has given it, changes of that which are under way, and what may leave at present.
    pub(super) slowed: Option<Slowed>,
    pub(super) slowing: u32,
    pub(super) credit: Option<super::paced::Credit>,
    /// What may leave of each customer, and what were left if what is sent again counted.
    pub(super) credits: BTreeMap<String, [super::paced::Credit; 2]>,
    pub(super) held: super::held::HeldBack,
    /// With nothing stored: the last call in which so many may have been taken that the oldest are given up.
    pub(super) over: usize,
}

pub(super) struct Model {
    pub(super) durable: bool,
    /// The store does its work at once.
    pub(super) prompt: bool,
    /// Commands by message whose connection went before they were answered: what they took back is deleted all the same.
    pub(super) orphaned: BTreeMap<u64, Asked>,
    /// How items ended by a cancel that were never written, by identity: an answer may tell of these very ends.
    pub(super) unwritten_ends: BTreeMap<Identity, Vec<Ended>>,
    /// Wall clock of each call.
    pub(super) walls: Vec<(usize, u64)>,
    /// Tell every call on the error output.
    pub(super) trace: bool,
    pub(super) settings: Settings,
    /// All settings of before, for what was begun under them.
    pub(super) before: Vec<Settings>,
    pub(super) asks: Vec<Ask>,
    pub(super) messages: BTreeMap<usize, Message>,
    pub(super) lives: BTreeMap<u64, Life>,
    pub(super) timeline: BTreeMap<Identity, Vec<(usize, Known)>>,
    pub(super) flights: BTreeMap<u64, Flight>,
    pub(super) apps: BTreeMap<String, App>,
    pub(super) windows: Windows,
    /// Delivered and not acked.
    pub(super) open: BTreeSet<usize>,
    /// Entries by application that went with their connection unseen, and may have been on their way out: they count
    /// until their attempts have ended.
    pub(super) given_back: BTreeMap<String, u64>,
    /// Not durable yet.
    pub(super) fresh: BTreeSet<u64>,
    /// Items by application that a commit removes behind the write that is judged: they were there then.
    pub(super) leaving: BTreeMap<String, u64>,
    /// And such as came with it and are gone before that write.
    pub(super) passed: BTreeMap<String, u64>,
    /// Commands that travel by message.
    pub(super) mailed: BTreeMap<u64, Command>,
    /// Those of them that somebody waits for.
    pub(super) replies_to: BTreeSet<u64>,
    pub(super) commands: BTreeMap<u64, Asked>,
    pub(super) answered: BTreeMap<u64, Asked>,
    pub(super) moves: Vec<Moved>,
    /// Batches that are to be sent again, by the number under which their items went first, and their own.
    pub(super) again: BTreeMap<(u64, u64), Again>,
    /// With which commit the end of a request with this id and fingerprint has been written.
    pub(super) remembered_with: BTreeMap<(Identity, u64), Token>,
    /// What has been taken of the present deliveries, by what it must keep its order with: tag, part, number.
    pub(super) taken_in: BTreeMap<Peers, Vec<(u64, usize, u64)>>,
    /// Publications by application and customer: call, wall clock, key, first of its item.
    pub(super) published: BTreeMap<(String, String), Vec<(usize, u64, Key, bool)>>,
    /// Application and customer of windows that closed sooner than planned, by the commit that is looked at; the last of
    /// their members by number.
    pub(super) closed_now: Vec<u64>,
    /// Windows that were open at some moment of this call.
    pub(super) most_windows: usize,
    pub(super) call: usize,
    /// The last call with which the engine had nothing left to do.
    pub(super) rested: usize,
    pub(super) now: Now,
    pub(super) committed: Token,
    pub(super) egress: (bool, bool),
    pub(super) generation: u32,
    /// Of these a request came again and left no trace: another took its place before it was written.
    pub(super) came_again: BTreeSet<Identity>,
    pub(super) stepped: bool,
    pub(super) stepped_back: usize,
    pub(super) set_back_at: Now,
    /// Batches that left a part of a window behind for want of room: before, and by now.
    pub(super) parts: (u64, u64),
    /// Payloads had to be read: batches wait for them.
    pub(super) contents_read: bool,
    /// The call of the last step.
    pub(super) last_step: usize,
    /// The latest that the wall clock has been in this life: what was due then may be on its way.
    pub(super) latest_wall: u64,
    pub(super) lives_begun: u32,
    /// The call in which the ingest connection was last lost.
    pub(super) ingest_lost: usize,
    pub(super) dead_left_alone_until: u64,
    /// The call of a dead letter's last failure.
    pub(super) dead_failure: usize,
    /// The call since which the disk is full; and whether it ever was.
    pub(super) full_since: Option<usize>,
    pub(super) was_full: bool,
    /// How often each batch has been published, by number: at least, at most.
    pub(super) publishes: BTreeMap<u64, (u32, u32)>,
    /// The last restart: call, and monotonic moment.
    pub(super) restarted: (usize, u64),
    /// Few deliveries may be out: most of what would wait for an outcome is decided at once.
    pub(super) few_wait: bool,
}

impl Model {
    pub(super) fn new(settings: Settings, now: Now) -> Self {
        Model {
            durable: settings.hold_max.is_none(),
            prompt: false,
            orphaned: BTreeMap::new(),
            unwritten_ends: BTreeMap::new(),
            walls: Vec::new(),
            trace: std::env::var_os("TRACE").is_some(),
            settings,
            before: vec![],
            asks: vec![],
            messages: BTreeMap::new(),
            lives: BTreeMap::new(),
            timeline: BTreeMap::new(),
            flights: BTreeMap::new(),
            apps: BTreeMap::new(),
            windows: Windows::default(),
            open: BTreeSet::new(),
            given_back: BTreeMap::new(),
            fresh: BTreeSet::new(),
            leaving: BTreeMap::new(),
            passed: BTreeMap::new(),
            mailed: BTreeMap::new(),
            replies_to: BTreeSet::new(),
            commands: BTreeMap::new(),
            answered: BTreeMap::new(),
            moves: vec![],
            again: BTreeMap::new(),
            remembered_with: BTreeMap::new(),
            taken_in: BTreeMap::new(),
            published: BTreeMap::new(),
            most_windows: 0,
            call: 0,
            rested: 0,
            now,
            committed: 0,
            egress: (false, false),
            generation: 0,
            closed_now: Vec::new(),
            came_again: BTreeSet::new(),
            stepped: false,
            stepped_back: 0,
            set_back_at: now,
            parts: (0, 0),
            contents_read: false,
            last_step: 0,
            latest_wall: now.wall,
            lives_begun: 1,
            ingest_lost: 0,
            dead_left_alone_until: 0,
            dead_failure: 0,
            full_since: None,
            was_full: false,
            publishes: BTreeMap::new(),
            restarted: (0, now.mono),
            few_wait: false,
        }
    }

    pub(super) fn app(&mut self, name: &str) -> &mut App {
        if !self.apps.contains_key(name) {
            self.apps.insert(name.into(), App::default());
        }
        self.apps.get_mut(name).expect("just made")
    }

    pub(super) fn live(&self, application: &str) -> u64 {
        self.apps.get(application).map_or(0, |app| app.live)
    }

    pub(super) fn ask_of(&self, content: &Content) -> usize {
        text(content).parse().expect("a payload of this world")
    }

    pub(super) fn application(&self, seq: u64) -> &str {
        &self.asks[self.lives[&seq].ask].new.application
    }

    pub(super) fn note(&mut self, identity: Identity, known: Known) {
        self.timeline.entry(identity).or_default().push((self.call, known));
    }

    /// Everything that was known of an identity from a call on.
    pub(super) fn known_since(&self, identity: Identity, call: usize) -> Vec<Known> {
        let Some(line) = self.timeline.get(&identity) else { return vec![Known::Nobody] };
        let before = line.iter().rev().find(|(at, _)| *at < call).map_or(Known::Nobody, |(_, known)| *known);
        let later = line.iter().filter(|(at, _)| *at >= call).map(|(_, known)| *known);
        std::iter::once(before).chain(later).collect()
    }

    pub(super) fn set(&mut self, seq: u64, state: State) {
        let call = self.call;
        let wall = self.now.wall;
        let life = self.lives.get_mut(&seq).expect("a known item");
        let before = std::mem::replace(&mut life.state, state);
        let (ask, identity) = (life.ask, life.identity);
        if matches!(state, State::Waiting) {
            life.waiting_since = call;
        }
        let known = match state {
            State::Waiting => Known::Waiting(seq),
            State::Out(_) => Known::Out(seq),
            State::Replaced | State::Forgotten => self.heir_of(seq),
            State::Dead(_) | State::DeadOut(..) | State::DeadSent(_) | State::Sent | State::Cancelled => {
                if !matches!(before, State::Dead(_) | State::DeadOut(..)) {
                    let tail = self.settings.of(&self.asks[ask].new.application).dedupe_tail;
                    let life = self.lives.get_mut(&seq).expect("there");
                    (life.ended_at, life.tail) = (wall, Some(tail));
                }
                Known::Ended(seq)
            }
        };
        let known = if self.lives[&seq].superseded { self.heir_of(seq) } else { known };
        let dead = matches!(state, State::Dead(_) | State::DeadOut(..) | State::DeadSent(_));
        if !matches!(before, State::Dead(_) | State::DeadOut(..)) || !dead {
            self.note(identity, known);
        }
        let name = self.asks[ask].new.application.clone();
        if before.is_live() && !state.is_live() {
            self.lives.get_mut(&seq).expect("there").ended_call = call;
        }
        let app = self.app(&name);
        match (before.is_live(), state.is_live()) {
            (true, false) => app.live -= 1,
            (false, true) => app.live += 1,
            _ => {}
        }
        if before.is_live() && !state.is_live() {
            self.windows.leave(seq);
        }
    }

    /// It ended before another of its id came, which has been seen first.
    pub(super) fn note_heir(&mut self, seq: u64) {
        let heir = self.heir_of(seq);
        if heir != Known::Nobody {
            self.note(self.lives[&seq].identity, heir);
        }
    }

    /// Who has the id of one that is nowhere any more: its heir may have been seen before.
    fn heir_of(&self, seq: u64) -> Known {
        let identity = self.lives[&seq].identity;
        let gone = |life: &Life| matches!(life.state, State::Replaced | State::Forgotten);
        let heir = self
            .lives
            .range(seq + 1..)
            .map(|(_, life)| life)
            .rfind(|life| life.identity == identity && identity.is_given() && !gone(life));
        // What was dead at once is remembered under its id, and has a number for an identity.
        let last = self.timeline.get(&identity).and_then(|line| line.last()).map(|(_, known)| *known);
        match (last, heir) {
            (Some(Known::Ended(last)), Some(heir)) if last > heir.seq => Known::Ended(last),
            (_, None) => Known::Nobody,
            (_, Some(heir)) => match heir.state {
                State::Out(_) => Known::Out(heir.seq),
                State::Waiting => Known::Waiting(heir.seq),
                _ => Known::Ended(heir.seq),
            },
        }
    }

    /// An item is seen for the first time.
    pub(super) fn accept(&mut self, ask: usize, key: Key, accepted_due: u64, state: State) {
        let new = &self.asks[ask].new;
        let identity = match state {
            State::Dead(_) => Identity::assigned(key.seq),
            _ => new.identity.unwrap_or(Identity::assigned(key.seq)),
        };
        let life = Life {
            ask,
            seq: key.seq,
            identity,
            accepted_due,
            due: key.due,
            number: key.window,
            state: State::Forgotten,
            accepted: self.call,
            seen: self.now.mono,
            waiting_since: self.call,
            put: None,
            durable: false,
            undecided: false,
            perhaps_sent: false,
            refused: false,
            attempts: (0, 0),
            published: None,
            batch: None,
            window: None,
            restored: false,
            ended_at: 0,
            tail: None,
            ended_call: 0,
            deleted: false,
            taken_again: false,
            perhaps_replaced: false,
            acked: false,
            orphaned: false,
            superseded: false,
            failed: false,
            retimed: None,
            retimed_call: 0,
            promised: None,
        };
        if self.is_id_taken_since(ask) {
            self.asks[ask].excuses.push(Excuse::IdTaken);
        } else if self.lives.values().any(|life| life.ask == ask) && !self.is_known_throughout(ask) {
            // The tail has been shortened since its ack was lost, be it for a while.
            let excuses = &mut self.asks[ask].excuses;
            if !excuses.contains(&Excuse::AckLost) {
                excuses.push(Excuse::AckLost);
            }
        }
        let before = self.lives.insert(key.seq, life);
        assert!(before.is_none(), "arrival number {} is given out twice", key.seq);
        self.fresh.insert(key.seq);
        let message = self.messages.get_mut(&self.asks[ask].message).expect("sent");
        assert!(message.delivered.is_some(), "taken from nowhere: {ask}");
        let handed_over = message.delivered.map(|(call, ..)| call);
        assert!(
            self.full_since.is_none() || handed_over < self.full_since,
            "{ask} was taken with the disk full"
        );
        let part = message.asks.iter().position(|a| *a == ask).expect("one of its parts");
        assert_eq!(message.taken[part], None, "taken twice from one delivery: {ask}");
        message.taken[part] = Some(key.seq);
        let tag = message.delivered.map(|(_, _, tag, _)| tag);
        if let (State::Waiting, Some(tag)) = (state, tag) {
            self.check_arrival(ask, (tag, part, key.seq));
        }
        self.set(key.seq, state);
        // That a request was dead at once is remembered under its id, if nothing else is.
        let given = self.asks[ask]
            .new
            .identity
            .filter(|_| matches!(state, State::Dead(reason) if reason != Reason::Duplicate));
        if let Some(given) = given {
            let last = self.timeline.get(&given).and_then(|line| line.last()).map(|(_, known)| *known);
            if !matches!(last, Some(Known::Waiting(_) | Known::Out(_))) {
                let application = &self.asks[ask].new.application;
                let mut all = std::iter::once(&self.settings).chain(&self.before);
                let gives_up = all.any(|whole| whole.of(application).on_full == OnFull::DropOldest);
                if state == State::Dead(Reason::Expired) || state == State::Dead(Reason::Full) && gives_up {
                    // It waited until it could leave, or another took its room, and others may have met it.
                    self.note(given, Known::Waiting(key.seq));
                }
                self.note(given, Known::Ended(key.seq));
            }
        }
    }

    /// Of its peers whatever was delivered before it has a lower number.
    fn check_arrival(&mut self, ask: usize, arrival: (u64, usize, u64)) {
        let new = &self.asks[ask].new;
        // Who has no id is told from others by its customer alone.
        let customer = new.customer.as_deref().filter(|_| new.identity.is_none()).map(str::to_string);
        let peers = (new.identity, new.application.to_string(), customer);
        let taken = self.taken_in.entry(peers).or_default();
        let (tag, part, seq) = arrival;
        let swapped = taken.iter().find(|(t, p, s)| ((*t, *p) < (tag, part)) != (*s < seq));
        assert!(swapped.is_none(), "{ask} was taken in as {arrival:?}, and {swapped:?} not in order with it");
        taken.push(arrival);
    }

    /// It has been taken in before, and another of its id has been since.
    fn is_id_taken_since(&self, ask: usize) -> bool {
        let Some(identity) = self.asks[ask].new.identity else { return false };
        let of_id = || self.lives.values().filter(|life| self.asks[life.ask].new.identity == Some(identity));
        let own = of_id().filter(|life| life.ask == ask && life.state != State::Forgotten);
        let Some(own) = own.map(|life| life.seq).max() else { return false };
        // With nothing stored one that waits has not been seen; nor has one that was replaced at once.
        let unseen = !self.durable && self.met_unseen(ask, identity) || self.met_pending(ask, identity);
        unseen || of_id().any(|life| life.ask != ask && life.seq > own)
    }
}
