//! State after a kill or a lost connection, and the repeats that these excuse.

use super::model::*;
use tidegate_fake_store::FakeStore;
use tidegate_types::*;

impl Life {
    /// Whether this end is its own: its request may have been accepted, and have ended, more than once.
    fn may_have_ended(&self, ended: &Ended) -> bool {
        let then = self.state != State::Sent || ended.at == self.ended_at;
        then && (self.window.is_some() || ended.due == self.due || ended.due == self.accepted_due)
    }
}

impl Model {
    /// After a kill the content of the store counts, and must be true.
    pub(super) fn crash(&mut self, store: &FakeStore, now: Now) {
        self.call += 1;
        self.now = now;
        self.latest_wall = now.wall;
        self.lives_begun += 1;
        (self.full_since, self.restarted) = (None, (self.call, now.mono));
        (self.egress, self.committed) = ((false, false), 0);
        self.orphaned.clear();
        self.fresh.clear();
        self.given_back.clear();
        let is_stored = |identity: &Identity, ended: &Ended| {
            store.ended.iter().any(|((_, known), stored)| known == identity && stored == ended)
        };
        self.unwritten_ends.iter_mut().for_each(|(id, ends)| ends.retain(|ended| is_stored(id, ended)));
        // Items in the store decide the state of an identity.
        let (there, gone): (Vec<u64>, Vec<u64>) =
            self.lives.keys().partition(|seq| store.places.contains_key(seq));
        gone.into_iter().chain(there).for_each(|seq| self.crash_one(seq, store));
        self.flights.clear();
        self.publishes.clear();
        self.windows.crash(store, now);
        for (name, app) in &mut self.apps {
            app.flights.clear();
            // An answered pause is durable, and only a command pauses, or resumes before its end.
            let paused = store.queues.get(name.as_str()).and_then(|row| row.paused);
            let sure = self.durable && app.pausing == 0;
            let not_over = |paused: Option<u64>| paused.filter(|until| *until > self.latest_wall);
            assert!(
                !sure || not_over(paused) == not_over(app.paused),
                "{name} was paused: {:?}, now {paused:?}",
                app.paused
            );
            (app.failing, app.left_alone_until, app.pausing, app.paused) = (false, 0, 0, paused);
            (app.parked_until, app.failures) = (0, 0);
        }
        self.restore_held(store);
        for name in self.apps.keys().cloned().collect::<Vec<_>>() {
            self.restore_rate(&name, store.queues.get(name.as_str()).and_then(|row| row.slowed));
        }
        self.dead_left_alone_until = 0;
        self.forget_deliveries();
        self.commands.clear();
        self.moves.clear();
        self.again.clear();
        self.published.clear();
        self.remembered_with.clear();
    }

    fn crash_one(&mut self, seq: u64, store: &FakeStore) {
        let life = &self.lives[&seq];
        let stored = store.places.get(&seq).map(|place| &store.items[&(place.queue.clone(), place.key)]);
        let (state, ask, published) = (life.state, life.ask, life.published.is_some());
        let message = &self.messages[&self.asks[ask].message];
        let acked = life.acked;
        let comes_again = !message.acked && message.taken.contains(&Some(seq));
        let Some(item) = stored else {
            if !state.is_over() && life.superseded {
                self.set(seq, State::Replaced);
            } else if !state.is_over() {
                assert!(!acked, "lost: {ask} was acked, was {state:?}, and is not in the store");
                self.set(seq, State::Forgotten);
                self.recall(self.lives[&seq].identity, store);
                self.recall_rejected(seq, store);
            }
            if published && (comes_again || !acked) {
                self.asks[ask].excuses.push(Excuse::Killed);
            }
            let (identity, was_put) = (self.lives[&seq].identity, self.lives[&seq].durable);
            let fingerprint = self.asks[ask].new.fingerprint;
            let of_id = || store.ended.iter().filter(|((_, known), _)| *known == identity);
            let last = self.timeline.get(&identity).and_then(|line| line.last()).map(|(_, known)| *known);
            let is_its =
                |ended: &Ended| ended.fingerprint == fingerprint && self.lives[&seq].may_have_ended(ended);
            let own = of_id().any(|(_, ended)| is_its(ended)) || last != Some(Known::Ended(seq));
            if state.is_over() && !was_put && (of_id().next().is_none() || !own) {
                // It came and ended between two syncs: the known end is that of an earlier item with its id.
                self.note(identity, Known::Nobody);
                self.recall(identity, store);
            }
            // Its end is remembered in the commit that deleted it.
            if state.is_over() && self.lives[&seq].durable && self.durable {
                self.check_remembered(seq, store);
            }
            return;
        };
        let dead = item.dead.as_ref().map(|dead| dead.reason);
        let due = item.due;
        let attempts = item.attempts;
        let new = &self.asks[ask].new;
        let retimed =
            (item.own_time && (new.at.is_none() || item.key.due != item.accepted_due)).then_some(due);
        let promised = self.lives[&seq].promised;
        // Of several later moves, the first ones may be durable.
        let kept = promised.is_none_or(|promised| promised == due) || self.was_moved_to(seq, due);
        assert!(kept || dead.is_some(), "{ask} was said to be due at {promised:?}, and is due at {due}");
        match (state, dead) {
            (State::Cancelled | State::Replaced, None) => {
                let told = self.answered.values().any(|asked| asked.took.contains(&seq));
                assert!(!told, "{ask} was said to be cancelled, and is there after a restart");
            }
            (State::Dead(_) | State::DeadOut(..) | State::DeadSent(_), _) => {}
            _ => {}
        }
        if published {
            self.asks[ask].excuses.push(Excuse::Killed);
        }
        if comes_again && !self.is_known(ask) {
            self.asks[ask].excuses.push(Excuse::AckLost);
        }
        if state.is_over() {
            self.undo_end(seq);
        }
        let was_dead = matches!(state, State::Dead(_) | State::DeadOut(..) | State::DeadSent(_));
        let died_at = self.lives[&seq].ended_at;
        let state = dead.map_or(State::Waiting, State::Dead);
        self.lives.get_mut(&seq).expect("there").superseded = false;
        self.set(seq, state);
        let life = self.lives.get_mut(&seq).expect("there");
        if was_dead && dead.is_some() {
            // It died before the restart, at the moment that the store has.
            life.ended_at = died_at;
        }
        assert!(attempts <= life.attempts.1, "attempts out of nowhere: {attempts}");
        life.attempts = (attempts, attempts);
        (life.due, life.durable, life.put, life.restored, life.deleted) = (due, true, Some(0), true, false);
        (life.published, life.undecided) = (None, item.outcome_unknown);
        (life.retimed, life.promised) = (retimed, promised.and(retimed));
    }

    /// Restores the item that had an id before one that a crash has undone: the store has its end.
    fn recall(&mut self, identity: Identity, store: &FakeStore) {
        let of_id = store.ended.iter().filter(|((_, known), _)| *known == identity);
        let ended = of_id.max_by_key(|(_, ended)| ended.at);
        let Some(((_, _), ended)) = ended else { return };
        let is_it = |life: &&Life| {
            let new = &self.asks[life.ask].new;
            let dead = matches!(life.state, State::Dead(_) | State::DeadOut(..) | State::DeadSent(_));
            // A dead item no longer has the id, though it is remembered under it.
            let gone = matches!(life.state, State::Forgotten | State::Replaced);
            let its = life.identity == identity && life.state.is_over() && !gone;
            let its = its && (dead || life.may_have_ended(ended));
            (its || dead && new.identity == Some(identity)) && new.fingerprint == ended.fingerprint
        };
        if let Some(seq) = self.lives.values().rev().find(is_it).map(|life| life.seq) {
            self.note(identity, Known::Ended(seq));
        }
    }

    /// A request that was dead from the start had the last end of its id: that is again the end of the item before it.
    fn recall_rejected(&mut self, seq: u64, store: &FakeStore) {
        let Some(given) = self.asks[self.lives[&seq].ask].new.identity else { return };
        let last = self.timeline.get(&given).and_then(|line| line.last()).map(|(_, known)| *known);
        if self.lives[&seq].identity.is_given() || last != Some(Known::Ended(seq)) {
            return;
        }
        self.note(given, Known::Nobody);
        self.recall(given, store);
    }

    fn undo_end(&mut self, seq: u64) {
        let life = self.lives.get_mut(&seq).expect("there");
        life.state = State::Forgotten;
    }

    fn check_remembered(&self, seq: u64, store: &FakeStore) {
        let life = &self.lives[&seq];
        let ask = &self.asks[life.ask];
        let Some(identity) = ask.new.identity.filter(|_| life.identity.is_given()) else { return };
        let (_, may_not) = self.remembered(seq, self.now.wall);
        let another = matches!(life.state, State::Replaced | State::Forgotten) || life.superseded;
        if may_not || another || !life.deleted {
            return;
        }
        let known = store.ended.keys().any(|(_, known)| *known == identity)
            || store.identities.contains_key(&identity);
        assert!(known, "the end of {} is not remembered: {:?}", life.ask, life.state);
    }

    /// Whether a redelivery of it is recognised.
    pub(super) fn is_known(&self, ask: usize) -> bool {
        let new = &self.asks[ask].new;
        let rule = new.on_duplicate;
        // Its immediate death is not remembered while another item of its id lives.
        let refused = self.lives.values().any(|life| life.ask == ask && !life.identity.is_given());
        rule != DuplicateRule::Reject
            && !refused
            && new.identity.is_some()
            && self.settings.of(&new.application).dedupe_tail >= 600_000
            && self
                .lives
                .values()
                .filter(|life| life.ask == ask)
                .all(|life| life.tail.is_none_or(|tail| tail >= 600_000))
    }

    /// Whether a redelivery of it is recognised, and would have been under all earlier settings.
    pub(super) fn is_known_throughout(&self, ask: usize) -> bool {
        let name = &self.asks[ask].new.application;
        self.is_known(ask) && self.before.iter().all(|whole| whole.of(name).dedupe_tail >= 600_000)
    }

    /// These messages are still with the broker, and their acks were lost with the connection.
    pub(super) fn redelivered(&mut self, numbers: &[usize], killed: bool) {
        let forgets = killed && !self.durable;
        for number in numbers {
            let message = self.messages.get_mut(number).expect("sent");
            (message.delivered, message.safe_since, message.answered) = (None, None, false);
            message.forwarded = message.forwarded.map(|_| false);
            message.taken.iter_mut().for_each(|taken| *taken = None);
            let acked = std::mem::take(&mut message.acked);
            for ask in message.asks.clone() {
                let known = !forgets && self.is_known(ask);
                let asked = &mut self.asks[ask];
                // Without a store, its end was lost with the process.
                let forgotten = forgets && std::mem::take(&mut asked.recognised);
                if acked && !known || forgotten {
                    asked.excuses.push(Excuse::AckLost);
                }
                asked.recognised |= acked && known;
            }
        }
    }

    fn forget_deliveries(&mut self) {
        self.taken_in.clear();
        for number in std::mem::take(&mut self.open) {
            let message = self.messages.get_mut(&number).expect("there");
            message.delivered = None;
            message.safe_since = None;
            message.answered = false;
            message.forwarded = message.forwarded.map(|_| false);
            message.taken.iter_mut().for_each(|taken| *taken = None);
        }
    }

    /// Counts entries that are due at once: they are published before they are visible.
    fn note_given_back(&mut self) {
        let open = self.open.iter().map(|number| &self.messages[number]);
        let unseen = open.flat_map(|message| message.asks.iter().zip(&message.taken));
        let unseen = unseen.filter(|(_, taken)| taken.is_none()).map(|(ask, _)| &self.asks[*ask].new);
        let at_once = |new: &&NewItem| new.customer.is_none() && new.at.is_none_or(|at| at <= self.now.wall);
        for application in unseen.filter(at_once).map(|new| new.application.to_string()) {
            *self.given_back.entry(application).or_default() += 1;
        }
    }

    /// Only the broker has this item: if an ended item had its id before, that end counts again.
    pub(super) fn give_back(&mut self, seq: u64) {
        self.set(seq, State::Forgotten);
        let identity = self.lives[&seq].identity;
        let is_it = |known: &Known| matches!(known, Known::Waiting(own) | Known::Out(own) if *own == seq);
        let mut line = self.timeline[&identity].iter().rev().map(|(_, known)| *known);
        let now = line.next();
        let before = line.find(|known| !is_it(known));
        if let (Some(Known::Nobody), Some(Known::Ended(other))) = (now, before) {
            self.note(identity, Known::Ended(other));
        }
    }

    /// The ingest connection is lost: messages that were not acked come again.
    pub(super) fn ingest_gone(&mut self) {
        self.ingest_lost = self.call;
        self.note_given_back();
        let open = self.open.iter().map(|number| &self.messages[number]);
        let taken: Vec<u64> = open.flat_map(|message| message.taken.iter().flatten().copied()).collect();
        for seq in taken {
            let life = &self.lives[&seq];
            let ask = life.ask;
            // Without a store, its death is remembered once its dead letter has been confirmed.
            let letter_out = !self.durable && matches!(life.state, State::DeadOut(..));
            if letter_out || !self.is_known(ask) {
                self.asks[ask].excuses.push(Excuse::AckLost);
            }
            let kept = life.put.is_some() || !matches!(life.state, State::Waiting | State::Dead(_));
            if !kept {
                self.give_back(seq);
            } else if self.lives[&seq].put.is_none() {
                self.lives.get_mut(&seq).expect("there").orphaned = true;
            }
        }
        self.forget_deliveries();
        let (kept, gone) = std::mem::take(&mut self.commands).into_iter().partition(|(_, asked)| asked.local);
        self.commands = kept;
        self.orphaned.extend(gone);
    }
}
