//! Checks of what a commit writes, and the resulting state of each item.

use super::model::*;
use super::verdicts::own_due;
use super::windows::{length, Member};
use std::collections::BTreeMap;
use tidegate_types::event::*;
use tidegate_types::*;

impl Model {
    /// `unwritten`: items that are published in the same call and may never have been written.
    pub(super) fn ops(&mut self, ops: &[Op], token: Option<Token>, unwritten: Vec<(Identity, u64)>) {
        let put = |op: &Op| match op {
            // A successor may be dead at once.
            Op::Put { item, .. }
                if item.dead.as_ref().is_none_or(|dead| dead.reason != Reason::Duplicate) =>
            {
                let ask = self.ask_of(item.content.as_ref().expect("a write carries its content"));
                self.asks[ask].new.identity.map(|given| (given, item.key.seq))
            }
            _ => None,
        };
        // A successor may be published, confirmed and gone before the commit that removes the item it replaced.
        let passed = self.lives.values().filter(|life| life.put.is_none() && life.published.is_some());
        let passed = passed.map(|life| (life.identity, life.seq));
        let successors: Vec<(Identity, u64)> =
            ops.iter().filter_map(put).chain(unwritten).chain(passed).collect();
        let remembered: BTreeMap<Identity, &Ended> = ops
            .iter()
            .filter_map(|op| match op {
                Op::Remember { identity, ended, .. } => Some((*identity, &**ended)),
                _ => None,
            })
            .collect();
        for (identity, ended) in &remembered {
            self.ended_before_it_was_seen(*identity, ended);
        }
        let ends = ends(ops);
        let closed = |op: &Op| {
            let Op::Close(row) = op else { return None };
            Some(row.window)
        };
        self.closed_now = ops.iter().filter_map(closed).collect();
        let token = token.unwrap_or(0);
        let mut fleeting: BTreeMap<String, u64> = BTreeMap::new();
        // Replaced items free their room first.
        for op in ops {
            if let Op::Delete { place, .. } = op {
                if !self.lives.contains_key(&place.key.seq) {
                    *fleeting.entry(place.queue.to_string()).or_default() += 1;
                }
                // An item that was confirmed in this call may have counted until its outcome was handled.
                let counted = |life: &Life| life.state.is_live() || life.state == State::Sent;
                if self.lives.get(&place.key.seq).is_some_and(counted) {
                    *self.leaving.entry(place.queue.to_string()).or_default() += 1;
                }
                if self.lives.contains_key(&place.key.seq) {
                    self.retimed_before(place, ops);
                    self.deleted(place, &successors, ends.get(&place.key.seq).copied());
                }
            }
        }
        let leaving = self.leaving.clone();
        for (place, op) in ops.iter().enumerate() {
            match op {
                Op::Put { item, .. } => {
                    self.died_before(item, &ops[..place]);
                    self.put(item, token);
                }
                Op::Delete { place, .. } => {
                    self.leaving.entry(place.queue.to_string()).and_modify(|n| *n = n.saturating_sub(1));
                    // An item that exists for a moment only has left its window before the next one joins that.
                    if self.lives.get(&place.key.seq).is_some_and(|life| !life.deleted) {
                        self.windows.leave(place.key.seq);
                        *self.passed.entry(place.queue.to_string()).or_default() += 1;
                    }
                }
                _ => {}
            }
        }
        self.leaving = leaving;
        self.passed.clear();
        // Such items count as well for those that made room.
        fleeting.into_iter().for_each(|(queue, n)| *self.leaving.entry(queue).or_default() += n);
        for op in ops {
            if let Op::Delete { place, .. } = op {
                let known = self.lives.get(&place.key.seq);
                let again = !known.unwrap_or_else(|| panic!("deleted what nobody knows: {place:?}")).deleted;
                if again {
                    self.retimed_before(place, ops);
                    self.deleted(place, &successors, ends.get(&place.key.seq).copied());
                    self.note_heir(place.key.seq);
                }
            }
        }
        self.moves(ops);
        self.leaving.clear();
        self.windows.forget_replaced();
        self.rows(ops, token);
    }

    /// Applies the death of an item with its id, for which it waited, from earlier in the same commit.
    fn died_before(&mut self, item: &Stored, ops: &[Op]) {
        let Some(given) = item.given.filter(|_| item.dead.is_none()) else { return };
        for op in ops {
            let Op::Move { from, to, standing, .. } = op else { continue };
            let of_id = self.lives.get(&from.key.seq).is_some_and(|life| life.identity == given);
            if of_id && standing.dead.is_some() {
                self.moved(from, to, standing);
            }
        }
    }

    /// Rows of windows and ends that a restart or a later request will read.
    fn rows(&mut self, ops: &[Op], token: Token) {
        for op in ops {
            match op {
                Op::PutWindow(row) => self.windows.check_row(row),
                Op::Remember { identity, ended, .. } => {
                    self.remembered_with.entry((*identity, ended.fingerprint)).or_insert(token);
                }
                _ => {}
            }
        }
    }

    /// An item that came and was cancelled between two writes: its id is free again, except for its own return. An
    /// earlier delivery in which it was visible, and was sent or went back to the broker, proves nothing about this end.
    fn ended_before_it_was_seen(&mut self, identity: Identity, ended: &Ended) {
        let seen = self.lives.values().any(|life| {
            let new = &self.asks[life.ask].new;
            let may_be_it = life.state.is_live() || life.state == State::Cancelled;
            may_be_it && new.identity == Some(identity) && new.fingerprint == ended.fingerprint
        });
        if !matches!(ended.end, End::Cancelled | End::CancelledAgain) || seen && self.durable {
            return;
        }
        // Without a store, the cancel of an existing item is not visible either.
        self.unwritten_ends.entry(identity).or_default().push(ended.clone());
        if !seen {
            self.note(identity, Known::Nobody);
        }
    }

    fn put(&mut self, item: &Stored, token: Token) {
        let ask = self.ask_of(item.content.as_ref().expect("a write carries its content"));
        let (seq, new) = (item.key.seq, &self.asks[ask].new);
        assert_eq!(
            item.fingerprint,
            if new.identity.is_some() && item.dead.is_none() { new.fingerprint } else { item.fingerprint }
        );
        if item.dead.is_none() {
            assert_eq!(
                (&*item.application, item.customer.as_deref()),
                (&*new.application, new.customer.as_deref())
            );
            assert_eq!(
                (item.given, item.expiry, item.weight),
                (new.identity, new.expiry, new.weight),
                "{ask}"
            );
            assert_eq!(item.own_time, new.at.is_some(), "{ask}");
        }
        match (&item.dead, self.lives.contains_key(&seq)) {
            (None, true) => {
                let life = self.lives.get_mut(&seq).expect("there");
                assert!(life.put.is_none(), "written twice: {ask}");
                life.due = item.key.due;
                if std::mem::take(&mut life.orphaned) {
                    // Its request has come again while it was in flight, and belongs to it.
                    assert!(self.is_hurried(ask), "{ask} waits for the outcome");
                    let message = self.messages.get_mut(&self.asks[ask].message).expect("there");
                    let part = message.asks.iter().position(|other| *other == ask).expect("of it");
                    message.taken[part] = Some(seq);
                    if self.lives[&seq].state == State::Forgotten {
                        // The request came before the end of its attempt was handled.
                        self.set(seq, State::Waiting);
                        self.fresh.insert(seq);
                    }
                }
            }
            (None, false) => {
                self.accepted(ask, item.key, item.accepted_due);
                self.supersede_unwritten(ask, seq);
            }
            (Some(dead), false) => {
                self.check_verdict(ask, None, dead.reason);
                self.accept(ask, item.key, item.accepted_due, State::Dead(dead.reason));
            }
            (Some(dead), true) => {
                if !matches!(self.lives[&seq].state, State::Dead(_) | State::DeadOut(..) | State::DeadSent(_))
                {
                    self.check_verdict(ask, Some(seq), dead.reason);
                    self.set(seq, State::Dead(dead.reason));
                }
            }
        }
        self.lives.get_mut(&seq).expect("there").put = Some(token);
        self.check_message(ask, token);
    }

    /// The entries of a message are written in one commit, unless one has to wait for more than the store.
    fn check_message(&self, ask: usize, token: Token) {
        let message = &self.messages[&self.asks[ask].message];
        let Some((call, .., redelivered)) = message.delivered else { return };
        // An entry that was due at once by the clock at its delivery need not be so by the clock at its write.
        if self.stepped_back > 0 && self.stepped_back >= call {
            return;
        }
        let entries: Vec<&Life> = message.taken.iter().flatten().map(|seq| &self.lives[seq]).collect();
        let own = |life: &&Life| {
            let new = &self.asks[life.ask].new;
            let app = self.settings.of(&new.application);
            let later =
                new.at.is_some_and(|at| at > life.accepted_due.min(self.now.wall)) || new.customer.is_some();
            // No other item of its id existed for which it could have waited.
            let is_own = |known: Known| matches!(known, Known::Nobody) || known == Known::Waiting(life.seq);
            let alone = |id: Identity| self.known_since(id, call).into_iter().all(is_own);
            later && new.identity.is_none_or(alone) && app.max_waiting == 0
        };
        let cancels = |asked: &super::commands::Asked| matches!(asked.command, Command::CancelAll(_));
        let free = self.before.is_empty() && self.settings.customers > 10 && !self.was_full && !redelivered;
        let answered = self.answered.values().filter(|asked| asked.answered >= call);
        let free = free && !self.commands.values().chain(answered).any(cancels);
        if free && entries.len() == message.asks.len() && entries.iter().all(own) {
            let others = entries.iter().filter_map(|life| life.put).filter(|put| *put != token);
            assert_eq!(others.count(), 0, "the entries of a message are in several commits: {ask}");
        }
    }

    /// Checks a new item: whether it may be accepted, and its due.
    pub(super) fn accepted(&mut self, ask: usize, key: Key, accepted_due: u64) {
        let new = self.asks[ask].new.clone();
        assert!(!self.asks[ask].rejected, "a rejected request was accepted");
        if let Some(identity) = new.identity {
            self.judge_accepted(ask, identity, key.due);
        }
        let settings = self.settings.of(&new.application).clone();
        let wall = self.now.wall;
        match (new.at, &new.customer) {
            (Some(at), _) => {
                let due = own_due(&settings, at, new.expiry, wall);
                // It may have been accepted some milliseconds before it is visible.
                let past = at <= key.due && key.due <= wall;
                assert!(
                    key.due == due || past || self.stepped || !self.durable,
                    "own time {at} became {}, not {due}",
                    key.due
                );
                assert!(key.due >= at.min(wall), "before its own time");
            }
            // It may have been accepted before the clock was set back.
            (None, None) => {
                assert!(key.due <= self.latest_wall || self.stepped_back > 0, "it is due at once");
            }
            (None, Some(_)) => {}
        }
        self.check_hold(ask);
        self.accept(ask, key, accepted_due, State::Waiting);
        if let (None, Some(customer), true) = (new.at, &new.customer, self.durable) {
            self.joins(&new, customer, key);
        }
    }

    /// Without a store, it may be due no later than the broker waits for its ack, with a minute for the queue.
    pub(super) fn check_hold(&self, ask: usize) {
        let (new, message) = (&self.asks[ask].new, &self.messages[&self.asks[ask].message]);
        let (Some(hold), Some(at), Some((_, mono, ..))) = (self.settings.hold_max, new.at, message.delivered)
        else {
            return;
        };
        let mut all = std::iter::once(&self.settings.defaults).chain(self.settings.applications.values());
        let flows = all.all(|app| app.max_waiting == 0) && self.settings.customers > 10 && !self.was_full;
        let sure = flows && self.before.is_empty() && !self.stepped && new.identity.is_none();
        let received = self.now.wall - (self.now.mono - mono);
        assert!(!sure || at <= received + hold + 60_000, "{ask} waits for {} ms", at - received);
    }

    fn is_of(&self, life: &Life, new: &NewItem, customer: &str) -> bool {
        let other = &self.asks[life.ask].new;
        self.is_windowed(life)
            && other.application == new.application
            && other.customer.as_deref() == Some(customer)
    }

    fn joins(&mut self, new: &NewItem, customer: &str, key: Key) {
        let former = self.lives.values().any(|life| {
            let other = &self.asks[life.ask].new;
            life.accepted_due == key.due
                && life.seq != key.seq
                && other.application == new.application
                && other.customer.as_deref() == Some(customer)
        });
        let member = Member {
            seq: key.seq,
            application: &new.application,
            customer,
            key,
            weight: new.weight,
            expiry: new.expiry,
            other_end: former || new.identity.is_some() || self.stepped || self.lives_begun > 1,
            may_flush: self.may_flush(&new.application, customer),
            unsure: self.stepped
                || self
                    .lives
                    .values()
                    .any(|life| life.restored && life.state.is_live() && self.is_of(life, new, customer)),
        };
        self.check_inherited(new, customer, key);
        let settings = self.settings.clone();
        self.windows.join(&member, &settings, self.now, self.call);
        self.recount_window(&new.application, customer);
        let life = self.lives.get_mut(&key.seq).expect("there");
        life.window = Some(0);
        let longest = length(&settings.of(&new.application).clone(), self.now.wall);
        assert!(
            key.due <= self.now.wall + longest || former || new.identity.is_some(),
            "a window longer than `window`: {key:?} of {}/{customer} at {:?}, {longest}",
            new.application,
            self.now
        );
    }

    /// An item that replaces the only member of an open window ends with that window.
    fn check_inherited(&self, new: &NewItem, customer: &str, key: Key) {
        let replaced = |life: &&Life| {
            let now = life.state == State::Replaced && life.ended_call == self.call;
            now && Some(life.identity) == new.identity && self.is_of(life, new, customer)
        };
        let Some(old) = self.lives.values().rev().find(replaced).map(|life| life.seq) else { return };
        // Another item may have come and gone in between: written, or due at once and replaced before that.
        let between = self.lives.range(old + 1..key.seq).any(|(_, life)| Some(life.identity) == new.identity);
        let ask = self.lives[&key.seq].ask;
        if between || self.follows_at_once(ask) || self.is_perhaps_taken_back(old) {
            return;
        }
        let by_time = matches!(new.on_duplicate, DuplicateRule::Earliest | DuplicateRule::Latest);
        let tied = by_time
            && self.lives[&old].due == key.due
            && !self.closed_now.contains(&self.lives[&old].number)
            && self.is_tied(old, ask)
            && !self.may_flush(&new.application, customer);
        let met = new.identity.is_some_and(|identity| self.met_pending(ask, identity));
        assert!(!tied || met, "{key:?} replaces {old}, which is due with the same window");
        let end = self
            .windows
            .end_left(old)
            .filter(|_| !self.stepped && !self.may_flush(&new.application, customer));
        assert!(
            end.is_none_or(|end| key.due <= end),
            "{key:?} replaces {old}, which was alone in a window until {end:?}"
        );
    }

    /// Whether an earlier queued request with its id was due at once, and may have been replaced before it was written.
    fn follows_at_once(&self, ask: usize) -> bool {
        let new = &self.asks[ask].new;
        let tag = |ask: usize| self.messages[&self.asks[ask].message].delivered.map(|(_, _, tag, _)| tag);
        let is_it = |(other, taken): (&usize, &Option<u64>)| {
            let its = &self.asks[*other].new;
            let at_once = its.customer.is_none() && its.at.is_none_or(|at| at <= self.now.wall);
            let before = (tag(*other), *other) < (tag(ask), ask);
            at_once && before && taken.is_none() && its.identity == new.identity
        };
        let open = self.open.iter().map(|number| &self.messages[number]);
        open.flat_map(|message| message.asks.iter().zip(&message.taken)).any(is_it)
    }

    fn deleted(&mut self, place: &Place, successors: &[(Identity, u64)], remembered: Option<&Ended>) {
        let seq = place.key.seq;
        let life = self.lives.get_mut(&seq).expect("deleted what was written");
        life.deleted = true;
        if life.window.is_some() {
            // Its window may have been closed just now, to make room for that of its successor.
            life.due = place.key.due;
        }
        let (ask, identity, state) = (life.ask, life.identity, life.state);
        match state {
            State::Sent | State::DeadSent(_) | State::Cancelled | State::Forgotten => {}
            State::Replaced => {}
            State::Waiting => {
                // A cancelled item may also have a successor, which came behind the cancel.
                let cancelled = remembered.is_some_and(|ended| {
                    let own = ended.fingerprint == self.asks[ask].new.fingerprint;
                    own && matches!(ended.end, End::Cancelled | End::CancelledAgain)
                });
                let heir = successors.iter().any(|(other, by)| *other == identity && *by > seq);
                let tail = self.settings.of(&self.asks[ask].new.application).dedupe_tail;
                if heir && !cancelled {
                    if tail == 0 {
                        self.perhaps_taken_back(seq);
                    }
                    self.windows.note_replaced(seq);
                    return self.set(seq, State::Replaced);
                }
                let forgets = identity.is_given() && tail > 0 && remembered.is_none();
                let pending = identity.is_given() && self.met_pending(ask, identity);
                if !(forgets && pending) && self.taken_back(seq) {
                    let undecided = self.lives[&seq].undecided && !self.may_be_given_up(seq);
                    assert!(!undecided, "{ask} was taken back, and may have been delivered");
                    self.set(seq, State::Cancelled);
                    self.lives.get_mut(&seq).expect("there").perhaps_replaced = pending && tail == 0;
                } else {
                    panic!(
                        "{ask} was deleted: not confirmed, not cancelled, not replaced; {:?}",
                        self.pending_commands()
                    );
                }
            }
            State::Out(_) if successors.iter().any(|(other, by)| *other == identity && *by > seq) => {
                self.lives.get_mut(&seq).expect("there").superseded = true;
                return;
            }
            State::Out(_) | State::Dead(_) | State::DeadOut(..) => {
                panic!("{ask} was deleted while {state:?}");
            }
        }
        let new = &self.asks[ask].new;
        let tail = self.settings.of(&new.application).dedupe_tail;
        let ends = matches!(self.lives[&seq].state, State::Sent | State::Cancelled);
        if ends && identity.is_given() && tail > 0 && self.before.is_empty() {
            assert!(remembered.is_some(), "{ask} ended and is not remembered in the same commit");
        }
        // Later answers will report this end.
        if let Some(ended) = remembered.filter(|ended| ends && ended.fingerprint == new.fingerprint) {
            assert!(
                self.ended_so(seq, ended),
                "{ask} is remembered as {ended:?}: {:?}",
                self.lives[&seq].attempts
            );
            let life = self.lives.get_mut(&seq).expect("there");
            let since = self.now.wall.saturating_sub(self.now.mono - life.seen);
            let then = self.stepped || (since..=self.now.wall).contains(&ended.at);
            assert!(then, "{ask} is remembered as {ended:?}, and came at {since}");
            // It may have ended before it is visible, where many items were to be cancelled.
            life.ended_at = life.ended_at.min(ended.at);
            life.taken_again = ended.end == End::CancelledAgain;
        }
    }
}

/// How each item that a commit removes is remembered: by the last entry before its removal, and after that of another
/// item with its id.
fn ends(ops: &[Op]) -> BTreeMap<u64, &Ended> {
    let (mut told, mut ends) = (BTreeMap::new(), BTreeMap::new());
    for op in ops {
        match op {
            Op::Remember { identity, ended, .. } => {
                told.insert(*identity, &**ended);
            }
            Op::Delete { place, rows } => {
                let ended = rows.identity.and_then(|identity| told.remove(&identity));
                ends.extend(ended.map(|ended| (place.key.seq, ended)));
            }
            _ => {}
        }
    }
    ends
}
