//! The reference model: the state of every single item, derived from the inputs and effects of the engine. It is written
//! from the contract alone, one item at a time, without any of the engine's ideas.

use super::super::world::*;
use super::again::Again;
use super::commands::Asked;
use super::retimed::Moved;
use super::windows::Windows;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_types::event::*;
use tidegate_types::*;

/// Why an item may arrive once more. An excuse is given to exactly the items concerned, and covers one repeat.
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
    /// Its request had no id and was not acked when the ingest connection was lost.
    AckLost,
    /// Likewise with an id, and another item with that id came before it came again: an id remembers its last end only.
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
    /// The request is invalid.
    pub(super) rejected: bool,
    pub(super) arrivals: u32,
    pub(super) letters: u32,
    pub(super) excuses: Vec<Excuse>,
    /// Its ack was lost, and a redelivery is recognised as long as the end is remembered.
    pub(super) recognised: bool,
}

/// One message of the ingest queue.
pub(super) struct Message {
    pub(super) asks: Vec<usize>,
    pub(super) command: Option<u64>,
    /// Its delivery: call, monotonic moment, tag, redelivered flag.
    pub(super) delivered: Option<(usize, u64, u64, bool)>,
    /// The moment since which every part of it is safe, monotonic.
    pub(super) safe_since: Option<u64>,
    /// The item of each entry in this delivery, by arrival number.
    pub(super) taken: Vec<Option<u64>>,
    pub(super) answered: bool,
    /// Whether its parts for other shards are safe there in this delivery; `None`: it has none.
    pub(super) forwarded: Option<bool>,
    /// Whether it was acked in this delivery.
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
    /// Only the broker has it.
    Forgotten,
}

impl State {
    /// Whether it counts for `max_waiting` and may still be sent.
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
    /// What its dead letter has said of that.
    pub(super) letter_due: Option<u64>,
    pub(super) state: State,
    /// The call in which it was first seen, and its moment, monotonic.
    pub(super) accepted: usize,
    pub(super) seen: u64,
    /// The call since which it has waited without interruption.
    pub(super) waiting_since: usize,
    pub(super) put: Option<Token>,
    pub(super) durable: bool,
    /// The outcome of its last attempt is not known: it may have been delivered.
    pub(super) undecided: bool,
    /// The same of any attempt.
    pub(super) perhaps_sent: bool,
    /// The broker has refused it alone, so it is dead. Without a store this is not visible until its dead letter leaves.
    pub(super) refused: bool,
    /// Failed attempts: those that certainly count, and those that may.
    pub(super) attempts: (u32, u32),
    pub(super) published: Option<usize>,
    /// The batch in which it was published last.
    pub(super) batch: Option<BatchId>,
    /// The number of its window, if it has had one.
    pub(super) window: Option<usize>,
    /// Its window belongs to a former life.
    pub(super) restored: bool,
    /// When it ended, UTC ms.
    pub(super) ended_at: u64,
    /// For how long its id was to be remembered when it ended.
    pub(super) tail: Option<u64>,
    pub(super) ended_call: usize,
    pub(super) deleted: bool,
    /// A redelivered cancel ended it, which may have been meant for an item before it: that is remembered.
    pub(super) taken_again: bool,
    /// It counts as cancelled, but another item of its id may have replaced it: no end is remembered of either.
    pub(super) perhaps_replaced: bool,
    /// Its delivery was acked.
    pub(super) acked: bool,
    /// Its request comes again, and its attempt has not ended.
    pub(super) orphaned: bool,
    /// Its last attempt was nacked or returned.
    pub(super) failed: bool,
    /// Another item of its id was admitted while it was in flight: it ends as sent or as replaced.
    pub(super) superseded: bool,
    /// The own time that a command has given it, UTC ms, and the call in which that was written.
    pub(super) retimed: Option<u64>,
    pub(super) retimed_call: usize,
    /// The last such time that an answer has reported.
    pub(super) promised: Option<u64>,
}

impl Life {
    /// Its place in the store, if it is there.
    pub(super) fn key(&self) -> Key {
        Key { due: self.due, window: self.number, seq: self.seq }
    }
}

/// State of an identity at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    Nobody,
    Waiting(u64),
    Out(u64),
    Ended(u64),
}

/// Requests of one id, application and customer.
pub(super) type Peers = (Option<Identity>, String, Option<String>);

pub(super) struct Flight {
    pub(super) application: String,
    pub(super) items: Vec<u64>,
    pub(super) dead: bool,
    pub(super) alone: bool,
    /// The number under which its items were sent first.
    pub(super) first: u64,
    /// The call in which it was published.
    pub(super) sent: usize,
    /// The moment of that call, monotonic.
    pub(super) at: u64,
    /// It may be sent though its application is parked: all of it was in flight when that began.
    pub(super) suspect: bool,
}

#[derive(Default)]
pub(super) struct App {
    pub(super) live: u64,
    pub(super) flights: BTreeSet<u64>,
    /// Until when the application may be left alone after its last failed attempt, monotonic.
    pub(super) left_alone_until: u64,
    /// Until when it certainly is left alone, and the call in which that began or may have begun.
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
    /// The end of its pause, UTC ms.
    pub(super) paused: Option<u64>,
    /// The call in which its last pause ended: a command may have been first.
    pub(super) pause_over: usize,
    /// Number of pauses and resumes under way: both states are possible.
    pub(super) pausing: u32,
    /// Its temporary rate, changes of it that are under way, and the items that may leave at present.
    pub(super) slowed: Option<Slowed>,
    pub(super) slowing: u32,
    pub(super) credit: Option<super::paced::Credit>,
    /// The items of each customer that may leave, and the number if batches that are sent again counted as well.
    pub(super) credits: BTreeMap<String, [super::paced::Credit; 2]>,
    pub(super) held: super::held::HeldBack,
    /// Without a store: the last call in which enough items may have been admitted that the oldest are given up.
    pub(super) over: usize,
}

pub(super) struct Model {
    pub(super) durable: bool,
    /// The store executes its work at once.
    pub(super) prompt: bool,
    /// Commands by message whose connection was lost before they were answered: the items that they cancelled are deleted
    /// all the same.
    pub(super) orphaned: BTreeMap<u64, Asked>,
    /// Ends of items that were cancelled and never written, by identity: an answer may report exactly these ends.
    pub(super) unwritten_ends: BTreeMap<Identity, Vec<Ended>>,
    /// Wall clock of each call.
    pub(super) walls: Vec<(usize, u64)>,
    /// Whether every call is printed to the error output.
    pub(super) trace: bool,
    pub(super) settings: Settings,
    /// All earlier settings, for work that was begun under them.
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
    /// Entries by application that were lost with their connection, unseen, and may have been on their way out: they
    /// count until their attempts have ended.
    pub(super) given_back: BTreeMap<String, u64>,
    /// Items that are not durable yet.
    pub(super) fresh: BTreeSet<u64>,
    /// Items by application that a commit removes behind the write that is checked: they existed then.
    pub(super) leaving: BTreeMap<String, u64>,
    /// Items by application that came with the commit and are gone before that write.
    pub(super) passed: BTreeMap<String, u64>,
    /// Commands that travel by message.
    pub(super) mailed: BTreeMap<u64, Command>,
    /// Those of them whose clients wait for an answer.
    pub(super) replies_to: BTreeSet<u64>,
    pub(super) commands: BTreeMap<u64, Asked>,
    pub(super) answered: BTreeMap<u64, Asked>,
    pub(super) moves: Vec<Moved>,
    /// Batches that are to be sent again, by the number under which their items were sent first, and by their own.
    pub(super) again: BTreeMap<(u64, u64), Again>,
    /// The commit with which the end of a request with this id and fingerprint was written.
    pub(super) remembered_with: BTreeMap<(Identity, u64), Token>,
    /// Items admitted from the present deliveries, by the peers with which they keep their order: tag, part, number.
    pub(super) taken_in: BTreeMap<Peers, Vec<(u64, usize, u64)>>,
    /// Publications by application and customer: call, wall clock, key, first of its item.
    pub(super) published: BTreeMap<(String, String), Vec<(usize, u64, Key, bool)>>,
    /// Numbers of windows that closed sooner than planned in the commit that is checked.
    pub(super) closed_now: Vec<u64>,
    /// Most windows that were open at any moment of this call.
    pub(super) most_windows: usize,
    pub(super) call: usize,
    /// The last call with which the engine had nothing left to do.
    pub(super) rested: usize,
    pub(super) now: Now,
    pub(super) committed: Token,
    pub(super) egress: (bool, bool),
    pub(super) generation: u32,
    /// Identities of which a request came again and left no trace: another replaced it before it was written.
    pub(super) came_again: BTreeSet<Identity>,
    pub(super) stepped: bool,
    pub(super) stepped_back: usize,
    pub(super) set_back_at: Now,
    /// Batches that left a part of a window behind for lack of room: before this call, and by now.
    pub(super) parts: (u64, u64),
    /// What customers owed their rates and was forgotten for lack of room, by now.
    pub(super) rates_forgotten: u64,
    /// Payloads had to be read, and batches wait for them.
    pub(super) contents_read: bool,
    /// The call of the last step.
    pub(super) last_step: usize,
    /// The latest time that the wall clock has shown in this life: items that were due then may be on their way.
    pub(super) latest_wall: u64,
    pub(super) lives_begun: u32,
    /// The call in which the ingest connection was last lost.
    pub(super) ingest_lost: usize,
    pub(super) dead_left_alone_until: u64,
    /// The call of the last failure of a dead letter.
    pub(super) dead_failure: usize,
    /// The call since which the disk is full, and whether it ever was.
    pub(super) full_since: Option<usize>,
    pub(super) was_full: bool,
    /// How often each batch has been published, by number: at least, and at most.
    pub(super) publishes: BTreeMap<u64, (u32, u32)>,
    /// The last restart: call, and monotonic moment.
    pub(super) restarted: (usize, u64),
    /// The prefetch is small: the engine decides at once on most requests that would wait for an outcome.
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
            rates_forgotten: 0,
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

    /// All states of an identity from a call on, and the one before it.
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

    /// It ended before another item of its id came, which was seen first.
    pub(super) fn note_heir(&mut self, seq: u64) {
        let heir = self.heir_of(seq);
        if heir != Known::Nobody {
            self.note(self.lives[&seq].identity, heir);
        }
    }

    /// Who has the id of an item that no longer exists: its successor may have been seen before.
    fn heir_of(&self, seq: u64) -> Known {
        let identity = self.lives[&seq].identity;
        let gone = |life: &Life| matches!(life.state, State::Replaced | State::Forgotten);
        let heir = self
            .lives
            .range(seq + 1..)
            .map(|(_, life)| life)
            .rfind(|life| life.identity == identity && identity.is_given() && !gone(life));
        // A request that was dead at once is remembered under its id, and has its number as identity.
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

    /// Records an item that is seen for the first time.
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
            letter_due: None,
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
            // The tail was shortened since its ack was lost, perhaps for a while only.
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
        // The death of such a request is remembered under its id, if no other end is.
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
                    // It waited until it could leave, or another took its room, so other requests may have met it.
                    self.note(given, Known::Waiting(key.seq));
                }
                self.note(given, Known::Ended(key.seq));
            }
        }
    }

    /// Among its peers, everything that was delivered before it must have a lower number.
    fn check_arrival(&mut self, ask: usize, arrival: (u64, usize, u64)) {
        let new = &self.asks[ask].new;
        // Only the customer tells items without an id apart.
        let customer = new.customer.as_deref().filter(|_| new.identity.is_none()).map(str::to_string);
        let peers = (new.identity, new.application.to_string(), customer);
        let taken = self.taken_in.entry(peers).or_default();
        let (tag, part, seq) = arrival;
        let swapped = taken.iter().find(|(t, p, s)| ((*t, *p) < (tag, part)) != (*s < seq));
        assert!(swapped.is_none(), "{ask} was taken in as {arrival:?}, and {swapped:?} not in order with it");
        taken.push(arrival);
    }

    /// Whether it was admitted before, and another item of its id has been since.
    fn is_id_taken_since(&self, ask: usize) -> bool {
        let Some(identity) = self.asks[ask].new.identity else { return false };
        let of_id = || self.lives.values().filter(|life| self.asks[life.ask].new.identity == Some(identity));
        let own = of_id().filter(|life| life.ask == ask && life.state != State::Forgotten);
        let Some(own) = own.map(|life| life.seq).max() else { return false };
        // Without a store, an item that waits is not visible, nor is one that was replaced at once.
        let unseen = !self.durable && self.met_unseen(ask, identity) || self.met_pending(ask, identity);
        unseen || of_id().any(|life| life.ask != ask && life.seq > own)
    }
}
