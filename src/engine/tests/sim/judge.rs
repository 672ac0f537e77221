//! Every call of the engine, judged: what it wrote, acked, published and answered, by what was true then.

use super::super::world::*;
use super::model::*;
use super::windows::{length, Member};
use crate::engine::event::*;
use crate::engine::size;
use crate::engine::types::*;
use std::collections::BTreeMap;

impl Model {
    pub(super) fn call(&mut self, call: Call) {
        self.call += 1;
        if call.now.wall + 1_000 < self.now.wall + (call.now.mono - self.now.mono) {
            (self.stepped, self.stepped_back) = (true, self.call);
            self.windows.doubt_all();
        } else if call.now.wall > self.now.wall + (call.now.mono - self.now.mono) + 1_000 {
            self.stepped = true;
            self.windows.doubt_all();
        }
        self.now = call.now;
        self.latest_wall = self.latest_wall.max(call.now.wall);
        if self.trace {
            self.tell(&call);
        }
        let settings = self.settings.clone();
        self.windows.ripen(&settings, call.now);
        self.most_windows = self.windows.open.len()
            + call.ops.iter().filter(|op| matches!(op, Op::PutClosing(_) | Op::Rekey { .. })).count();
        self.hear(call.heard);
        self.recount();
        let overdue = self.owed.iter().find(|(_, since)| call.now.mono > **since + 30_000);
        assert!(overdue.is_none(), "an item was replaced, and its successor is nowhere: {overdue:?}");
        let items = call.publishes.iter().filter(|batch| batch.dead.is_none()).flat_map(|batch| &batch.items);
        let unwritten =
            items.filter_map(|item| Some((self.asks[self.ask_of(&item.content)].new.identity?, item.seq)));
        let unwritten: Vec<(Identity, u64)> = unwritten.collect();
        self.ops(&call.ops, call.token, unwritten);
        self.recount();
        call.publishes.iter().for_each(|batch| self.publish(batch));
        self.windows.close_ripe(self.call, self.now);
        self.windows.tidy(self.now);
        self.recount();
        self.note_safe();
        call.replies.iter().for_each(|reply| self.reply(reply));
        call.acks.iter().for_each(|ack| self.ack(*ack));
        self.check_limits();
    }

    /// For whoever repeats a world to see what happens in it.
    fn tell(&self, call: &Call) {
        eprintln!(
            "{} at {} / {}: {:?}",
            self.call,
            call.now.wall as i64 - T0 as i64,
            call.now.mono,
            call.heard
        );
        call.ops.iter().for_each(|op| match op {
            Op::Put { item, indexed } => {
                let payload = item.content.as_ref().map(|content| text(content));
                eprintln!(
                    "    put {payload:?} {:?} of {}/{:?} {:?} {indexed} {:?}",
                    item.key, item.application, item.customer, item.given, item.dead
                );
            }
            op => eprintln!("    {op:?}"),
        });
        call.publishes.iter().for_each(|batch| {
            let items: Vec<(String, u64, u64)> =
                batch.items.iter().map(|i| (name(i), i.seq, i.due)).collect();
            eprintln!(
                "    publish {} of {}/{:?} alone {} {:?} by {:?} {items:?}",
                batch.number, batch.application, batch.customer, batch.alone, batch.dead, batch.closed_by
            );
        });
        call.acks.iter().for_each(|ack| eprintln!("    {ack:?}"));
        call.replies.iter().for_each(|reply| eprintln!("    {reply:?}"));
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Requests(requests) => {
                for (number, tag, redelivered) in requests {
                    let at = Some((self.call, self.now.mono, tag, redelivered));
                    let message = self.messages.get_mut(&number).expect("sent");
                    (message.delivered, message.acked) = (at, false);
                    self.open.insert(number);
                    if let Some(command) = message.command {
                        self.answered.remove(&command);
                        self.asked(command, self.mailed[&command].clone(), Some(tag));
                    }
                }
            }
            Heard::Committed(token) => {
                self.committed = token;
                let lives = &mut self.lives;
                self.fresh.retain(|seq| {
                    let life = lives.get_mut(seq).expect("there");
                    life.durable = life.put.is_some_and(|put| put <= token);
                    !life.durable && !life.state.is_over()
                });
            }
            Heard::Settled(settled) => settled.into_iter().for_each(|one| self.settled(one)),
            Heard::Commands(commands) => {
                for (asker, command) in commands {
                    if let Asker::Local(number) = asker {
                        self.asked(number, command, None);
                    }
                }
            }
            Heard::Answered(deliveries) => {
                for delivery in deliveries.iter().filter(|delivery| delivery.generation == self.generation) {
                    if let Some(number) = self.by_tag(delivery.tag) {
                        self.messages.get_mut(&number).expect("there").answered = true;
                    }
                }
            }
            Heard::IngestReady(generation) => {
                self.ingest_gone();
                self.generation = generation;
            }
            Heard::IngestLost => self.ingest_gone(),
            Heard::Egress { ready, blocked } => self.egress = (ready, blocked),
            Heard::Configure(settings) => {
                self.windows.doubt_all();
                self.before.push(std::mem::replace(&mut self.settings, *settings));
            }
            Heard::Crash | Heard::Other => {}
        }
    }

    fn settled(&mut self, settled: Settled) {
        let flight = self.flights.remove(&settled.number).expect("settled what is out");
        let confirmed = matches!(settled.outcome, Outcome::Confirmed(_));
        let (sure, may) = match &settled.outcome {
            Outcome::Nacked | Outcome::Returned(_) => (1, 1),
            Outcome::Refused(_) => (0, 1),
            _ => (0, 0),
        };
        for seq in &flight.items {
            let life = self.lives.get_mut(seq).expect("there");
            life.attempts = (life.attempts.0 + sure, life.attempts.1 + may);
            let state = match (life.state, confirmed) {
                (State::DeadOut(_, reason), true) => State::DeadSent(reason),
                (State::DeadOut(..), false) if life.orphaned => State::Forgotten,
                (State::DeadOut(_, reason), false) => State::Dead(reason),
                (_, true) => State::Sent,
                // The broker delivers it again.
                (_, false) if life.orphaned => State::Forgotten,
                (_, false) => State::Waiting,
            };
            self.set(*seq, state);
        }
        let pause = self.settings.of(&flight.application).retry.max;
        let pause = self
            .before
            .iter()
            .fold(pause, |pause, before| pause.max(before.of(&flight.application).retry.max));
        let until = self.now.mono + pause;
        let fails = match settled.outcome {
            Outcome::Nacked | Outcome::Returned(_) | Outcome::Unavailable(_) | Outcome::Overdue => true,
            // A culprit that is found may park its application as well.
            Outcome::Refused(_) => flight.alone,
            Outcome::Confirmed(_) | Outcome::Unknown | Outcome::Unsent => false,
        };
        if flight.dead {
            self.dead_left_alone_until = if fails || matches!(settled.outcome, Outcome::Refused(_)) {
                until
            } else {
                self.dead_left_alone_until
            };
        }
        let call = self.call;
        let retry = self.settings.of(&flight.application).retry;
        let least = retry.min.min(retry.max) * 3 / 4;
        let parks =
            matches!(settled.outcome, Outcome::Nacked | Outcome::Returned(_) | Outcome::Unavailable(_));
        let now = self.now.mono;
        let app = self.app(&flight.application);
        app.flights.remove(&settled.number);
        if !flight.dead && parks && app.parked_until <= now {
            app.parked_until = now + least;
        } else if !flight.dead && confirmed {
            app.parked_until = 0;
        }
        if app.failing {
            app.failed_call = call;
        }
        if !flight.dead && fails {
            (app.failing, app.left_alone_until, app.failure) = (true, until, call);
        } else if !flight.dead && confirmed && flight.alone {
            (app.failing, app.left_alone_until) = (false, 0);
        }
    }

    /// `unwritten`: what is published in the same call, and may never have been written.
    fn ops(&mut self, ops: &[Op], token: Option<Token>, unwritten: Vec<(Identity, u64)>) {
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
        // One may be published, confirmed and gone before the commit that removes what it replaced.
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
        let token = token.unwrap_or(0);
        // What is replaced makes place first.
        for op in ops {
            if let Op::Delete { place, .. } = op {
                if self.lives.get(&place.key.seq).is_some_and(|life| life.state.is_live()) {
                    *self.leaving.entry(place.queue.to_string()).or_default() += 1;
                }
                if self.lives.contains_key(&place.key.seq) {
                    self.deleted(place, &successors, &remembered);
                }
            }
        }
        let leaving = self.leaving.clone();
        for op in ops {
            match op {
                Op::Put { item, .. } => self.put(item, token),
                Op::Delete { place, .. } => {
                    self.leaving.entry(place.queue.to_string()).and_modify(|n| *n = n.saturating_sub(1));
                }
                _ => {}
            }
        }
        self.leaving = leaving;
        // And who is there for a moment only.
        for op in ops {
            if let Op::Delete { place, .. } = op {
                let known = self.lives.get(&place.key.seq);
                let again = !known.unwrap_or_else(|| panic!("deleted what nobody knows: {place:?}")).deleted;
                if again {
                    self.deleted(place, &successors, &remembered);
                }
            }
        }
        for op in ops {
            match op {
                Op::Move { from, to, standing, .. } => self.moved(from, to, standing),
                Op::Rekey { queue, end, members, .. } => {
                    for moved in members {
                        self.rekeyed(queue, *end, &moved.customer, moved.through_seq, moved.due, moved.cause);
                        let (customer, except) = (&moved.customer, &moved.except);
                        self.rekeyed_restored(queue, *end, customer, moved.through_seq, moved.due, except);
                    }
                }
                Op::PutClosing(row) => {
                    let (queue, customer) = (&row.application, &row.customer);
                    self.rekeyed_restored(queue, row.end, customer, row.through_seq, row.due, &[]);
                    self.rekeyed(
                        &row.application,
                        row.end,
                        &row.customer,
                        row.through_seq,
                        row.due,
                        row.cause,
                    );
                }
                _ => {}
            }
        }
        self.leaving.clear();
    }

    /// One that came and was taken back between two writes: its id is free again, but for its own return.
    fn ended_before_it_was_seen(&mut self, identity: Identity, ended: &Ended) {
        let seen = self.lives.values().any(|life| {
            let new = &self.asks[life.ask].new;
            new.identity == Some(identity) && new.fingerprint == ended.fingerprint
        });
        if matches!(ended.end, End::Cancelled | End::CancelledAgain) && !seen {
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
            }
            (None, false) => self.accepted(ask, item.key, item.accepted_due),
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
    }

    /// A new item: whether it may be one, and when it is due.
    fn accepted(&mut self, ask: usize, key: Key, accepted_due: u64) {
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
                // It may have been accepted some milliseconds before it is seen.
                let past = at <= key.due && key.due <= wall;
                assert!(
                    key.due == due || past || self.stepped || !self.durable,
                    "own time {at} became {}, not {due}",
                    key.due
                );
                assert!(key.due >= at.min(wall), "before its own time");
            }
            // It may have been accepted before the clock was set back.
            (None, None) => assert!(key.due <= wall || self.stepped_back > 0, "it is due at once"),
            (None, Some(_)) => {}
        }
        self.accept(ask, key, accepted_due, State::Waiting);
        if let (None, Some(customer), true) = (new.at, &new.customer, self.durable) {
            self.joins(&new, customer, key);
        }
    }

    fn is_of(&self, life: &Life, new: &NewItem, customer: &str) -> bool {
        let other = &self.asks[life.ask].new;
        other.at.is_none()
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
            key_due: key.due,
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

    fn deleted(
        &mut self,
        place: &Place,
        successors: &[(Identity, u64)],
        remembered: &BTreeMap<Identity, &Ended>,
    ) {
        let seq = place.key.seq;
        let life = self.lives.get_mut(&seq).expect("deleted what was written");
        life.deleted = true;
        let (ask, identity, state) = (life.ask, life.identity, life.state);
        match state {
            State::Sent | State::DeadSent(_) | State::Cancelled | State::Forgotten => {}
            State::Replaced => {}
            State::Waiting => {
                // One that was cancelled may have an heir as well, which came behind the cancel.
                let cancelled = remembered.get(&identity).is_some_and(|ended| {
                    let own = ended.fingerprint == self.asks[ask].new.fingerprint;
                    own && matches!(ended.end, End::Cancelled | End::CancelledAgain)
                });
                let heir = successors.iter().any(|(other, by)| *other == identity && *by > seq);
                if heir && !cancelled {
                    return self.set(seq, State::Replaced);
                }
                let tail = self.settings.of(&self.asks[ask].new.application).dedupe_tail;
                let forgets = identity.is_given() && tail > 0 && !remembered.contains_key(&identity);
                if !(forgets && self.met_pending(ask, identity)) && self.taken_back(seq) {
                    self.set(seq, State::Cancelled);
                } else {
                    // By one that may be confirmed before it is written; perhaps by its own request that came again.
                    let pending = identity.is_given() && self.met_pending(usize::MAX, identity);
                    assert!(
                        pending,
                        "{ask} was deleted: not confirmed, not cancelled, not replaced; {:?}",
                        self.pending_commands()
                    );
                    self.owed.insert(identity, self.now.mono);
                    self.ever_owed.insert(identity);
                    return self.set(seq, State::Replaced);
                }
            }
            State::Out(_) | State::Dead(_) | State::DeadOut(..) => {
                panic!("{ask} was deleted while {state:?}");
            }
        }
        let new = &self.asks[ask].new;
        let tail = self.settings.of(&new.application).dedupe_tail;
        let ends = matches!(self.lives[&seq].state, State::Sent | State::Cancelled);
        if ends && identity.is_given() && tail > 0 && self.before.is_empty() {
            assert!(
                remembered.contains_key(&identity),
                "{ask} ended and is not remembered in the same commit"
            );
        }
    }

    fn moved(&mut self, from: &Place, to: &Place, standing: &Standing) {
        let seq = from.key.seq;
        let life = &self.lives[&seq];
        let (ask, state, attempts) = (life.ask, life.state, life.attempts);
        let range = attempts.0..=attempts.1;
        assert!(
            range.contains(&standing.attempts) || life.state.is_over(),
            "{ask}: attempts {} of {range:?}",
            standing.attempts
        );
        match (&standing.dead, state) {
            (Some(_), State::Dead(_) | State::DeadOut(..) | State::DeadSent(_)) => {}
            (Some(dead), _) => {
                self.check_verdict(ask, Some(seq), dead.reason);
                if dead.reason == Reason::Full {
                    self.check_oldest(seq);
                }
                self.set(seq, State::Dead(dead.reason));
            }
            (None, State::Dead(_) | State::DeadOut(..)) => panic!("{ask} is alive again"),
            (None, _) => {
                let new = &self.asks[ask].new;
                let windowed = new.at.is_none() && new.customer.is_some();
                assert!(windowed || from.key == to.key, "an own time was moved: {from:?}, {to:?}");
                if from.key != to.key && state.is_live() {
                    self.windows_moved(seq, to.key.due, standing.closed_by);
                }
            }
        }
    }

    /// Who makes room is the one that is due first, of those that are not on their way.
    fn check_oldest(&self, seq: u64) {
        let life = &self.lives[&seq];
        let name = self.application(seq);
        let older = |other: &&Life| {
            other.state == State::Waiting
                && other.due > self.latest_wall
                && other.published.is_none()
                && other.accepted < self.call
                && other.due.max(other.accepted_due) < life.due.min(life.accepted_due)
                && self.application(other.seq) == name
        };
        let older = self.lives.values().find(older);
        assert!(older.is_none(), "{:?} is due before {:?}, which made room", older.map(|o| o.due), life.due);
    }

    fn windows_moved(&mut self, seq: u64, due: u64, cause: ClosedBy) {
        let new = self.asks[self.lives[&seq].ask].new.clone();
        let may_flush = self.may_flush(&new.application, new.customer.as_deref().unwrap_or(""));
        let call = self.call;
        self.windows.close_ripe(call, self.now);
        self.windows.has_closed(seq, due, cause, may_flush, call);
        self.lives.get_mut(&seq).expect("there").due = due;
    }

    fn rekeyed(&mut self, queue: &str, end: u64, customer: &str, through: u64, due: u64, cause: ClosedBy) {
        let members: Vec<u64> = self
            .of_customer(queue, customer)
            .filter(|life| {
                life.accepted_due == end
                    && life.seq <= through
                    && life.state == State::Waiting
                    && life.published.is_none()
            })
            .filter(|life| life.window.is_some() && !life.restored)
            .map(|life| life.seq)
            .collect();
        for seq in members {
            // Of an older window of the same end.
            if self
                .windows
                .of(seq)
                .is_some_and(|win| win.closed.as_ref().is_some_and(|close| close.due < due))
            {
                // Or it came in the call that closed that one, and a window of its own has closed now.
                let life = self.lives.get_mut(&seq).expect("there");
                life.due = life.due.min(due);
                continue;
            }
            self.windows_moved(seq, due, cause);
        }
    }

    /// The same for members that a former life left: from now on they are due when their window closed. Those of a window
    /// that had closed before are due at another moment than its planned end.
    fn rekeyed_restored(
        &mut self,
        queue: &str,
        end: u64,
        customer: &str,
        through: u64,
        due: u64,
        except: &[u64],
    ) {
        assert!(due <= end, "a window's due {due} after its end {end}");
        let is_member = |life: &&Life| {
            let windowed = self.asks[life.ask].new.at.is_none();
            let waits = life.state == State::Waiting && life.published.is_none();
            let here = life.restored && life.due == end && life.seq <= through && !except.contains(&life.seq);
            windowed && waits && here
        };
        let members = self.of_customer(queue, customer).filter(is_member).map(|life| life.seq);
        for seq in members.collect::<Vec<_>>() {
            self.lives.get_mut(&seq).expect("there").due = due;
        }
    }

    /// The contract's table, for what was accepted: some state since it was delivered must allow it.
    fn judge_accepted(&mut self, ask: usize, identity: Identity, new_due: u64) {
        let (known, redelivered, from_wall) = self.seen_by(ask, identity);
        let new = &self.asks[ask].new;
        let rule = new.on_duplicate;
        let own = new.at.is_some();
        let allowed = known.iter().any(|known| match *known {
            Known::Nobody => true,
            Known::Waiting(seq) => match rule {
                DuplicateRule::Replace => true,
                DuplicateRule::Earliest => {
                    !own || new_due < self.lives[&seq].due || self.lives[&seq].window.is_some()
                }
                DuplicateRule::Latest => {
                    !own || new_due > self.lives[&seq].due || self.lives[&seq].window.is_some()
                }
                DuplicateRule::Keep | DuplicateRule::Reject => false,
            },
            Known::Out(_) => false,
            Known::Ended(seq) => {
                let (_, may_not) = self.remembered(seq, from_wall);
                let again = redelivered && self.is_same(seq, ask);
                match self.lives[&seq].state {
                    _ if may_not => true,
                    State::Sent => matches!(rule, DuplicateRule::Replace | DuplicateRule::Latest) && !again,
                    State::Cancelled => !again || self.cancelled_again(identity),
                    _ => !again,
                }
            }
        });
        // It may have taken the place of one before it in line, which was never written.
        let replaces = !matches!(rule, DuplicateRule::Keep | DuplicateRule::Reject);
        let unseen = replaces && self.met_pending(ask, identity);
        assert!(allowed || unseen, "{ask} ({rule:?}) was accepted though its id is {known:?}");
        // In the order of arrival: nothing before it in the line with the same id is undecided.
    }

    /// A cancel that the broker had delivered before may have met another item than it was meant for.
    fn cancelled_again(&self, identity: Identity) -> bool {
        let is_it = |asked: &super::commands::Asked| {
            matches!(&asked.command, Command::Cancel(t) if t.identity == identity)
                || matches!(asked.command, Command::CancelAll(_))
        };
        self.answered.values().chain(self.commands.values()).any(|asked| !asked.local && is_it(asked))
    }

    fn is_same(&self, seq: u64, ask: usize) -> bool {
        self.asks[self.lives[&seq].ask].new.fingerprint == self.asks[ask].new.fingerprint
    }

    /// What an entry may have met since it was delivered.
    fn seen_by(&self, ask: usize, identity: Identity) -> (Vec<Known>, bool, u64) {
        let message = &self.messages[&self.asks[ask].message];
        let (call, _, _, redelivered) = message.delivered.expect("delivered");
        (self.known_since(identity, call), redelivered, 0)
    }

    /// An entry that left no trace although its message was acked.
    fn judge_dropped(&self, ask: usize) {
        let new = &self.asks[ask].new;
        let Some(identity) = new.identity else {
            assert!(!self.durable, "{ask} has no id, was acked, and is nowhere");
            let cancelled = self.may_be_cancelled(ask);
            assert!(cancelled, "{ask} was acked, never sent, and nobody cancelled it");
            return;
        };
        let (known, redelivered, _) = self.seen_by(ask, identity);
        let rule = new.on_duplicate;
        let allowed = known.iter().any(|known| match *known {
            Known::Nobody => false,
            Known::Waiting(seq) | Known::Out(seq) => {
                let other = self.asks[self.lives[&seq].ask].message;
                // Another message that the broker still has is no less safe.
                let kept = other != self.asks[ask].message && !self.messages[&other].acked;
                let safe =
                    self.lives[&seq].state.is_over() || self.lives[&seq].durable || !self.durable || kept;
                let drops = match rule {
                    DuplicateRule::Keep => true,
                    DuplicateRule::Replace => false,
                    DuplicateRule::Earliest | DuplicateRule::Latest => {
                        matches!(known, Known::Waiting(_)) && self.stays(seq, ask)
                    }
                    DuplicateRule::Reject => redelivered,
                };
                drops && safe
            }
            Known::Ended(seq) => {
                let (may, _) = self.remembered(
                    seq,
                    self.messages[&self.asks[ask].message].delivered.map_or(0, |_| self.lives[&seq].ended_at),
                );
                let again = redelivered && self.is_same(seq, ask);
                may && match self.lives[&seq].state {
                    State::Sent => match rule {
                        DuplicateRule::Keep | DuplicateRule::Earliest => true,
                        DuplicateRule::Replace | DuplicateRule::Latest => again,
                        DuplicateRule::Reject => redelivered,
                    },
                    _ => again,
                }
            }
        });
        let since = self.messages[&self.asks[ask].message].delivered.map_or(0, |(call, ..)| call);
        let unseen = self.ended_unseen(identity, since, &known)
            || self.met_pending(ask, identity)
            || self.ever_owed.contains(&identity)
            || self.lives.values().any(|life| life.identity == identity && life.state == State::Replaced)
            || !self.durable && (self.may_be_cancelled(ask) || self.met_unseen(ask, identity));
        assert!(
            allowed || unseen,
            "{ask} ({rule:?}, redelivered {redelivered}) was dropped though its id is {known:?}; {new:?}"
        );
    }

    fn stays(&self, seq: u64, ask: usize) -> bool {
        let (life, new) = (&self.lives[&seq], &self.asks[ask].new);
        let Some(at) = new.at else { return true };
        let before = life.window.is_some() || !self.before.is_empty() || self.stepped;
        let due = own_due(self.settings.of(&new.application), at, new.expiry, self.now.wall);
        match new.on_duplicate {
            DuplicateRule::Earliest => before || at >= life.due || due >= life.due,
            _ => before || at <= life.due || due <= life.due,
        }
    }

    fn pending_commands(&self) -> Vec<(&Command, Option<u64>, usize)> {
        self.commands.values().map(|asked| (&asked.command, asked.tag, asked.call)).collect()
    }

    /// With nothing stored: another of the same id that has not been published yet.
    pub(super) fn met_unseen(&self, ask: usize, identity: Identity) -> bool {
        self.asks.iter().enumerate().any(|(other, a)| other != ask && a.new.identity == Some(identity))
    }

    fn may_be_cancelled(&self, ask: usize) -> bool {
        let new = &self.asks[ask].new;
        self.commands.values().chain(self.answered.values()).any(|asked| match &asked.command {
            Command::Cancel(target) => new.identity == Some(target.identity) || new.identity.is_none(),
            Command::CancelAll(of) => {
                new.application == of.application && new.customer.as_deref() == Some(&*of.customer)
            }
            Command::DropParked(application) => new.application == *application,
            _ => false,
        })
    }

    fn check_verdict(&self, ask: usize, seq: Option<u64>, reason: Reason) {
        let asked = &self.asks[ask];
        let settings = self.settings.of(&asked.new.application);
        let life = seq.map(|seq| &self.lives[&seq]);
        let live = self.live(&asked.new.application);
        let right = match reason {
            Reason::Invalid => asked.rejected && seq.is_none(),
            // It may have died before the clock was set back.
            Reason::Expired => {
                asked.new.expiry.is_some_and(|at| self.now.wall >= at || self.stepped_back > 0)
            }
            Reason::Attempts => {
                let least =
                    std::iter::once(settings).chain(self.before.iter().map(|b| b.of(&asked.new.application)));
                let least = least.map(|s| s.retry.attempts).filter(|n| *n > 0).min();
                life.is_some_and(|life| least.is_some_and(|least| life.attempts.1 >= least))
            }
            Reason::Refused => asked.poison,
            Reason::Full => !self.durable || self.may_be_full(ask, life.is_some(), live),
            Reason::Duplicate => self.may_be_rejected(ask),
            Reason::Unsupported => {
                let hold = self.settings.hold_max.unwrap_or(u64::MAX);
                asked.new.at.is_some_and(|at| !self.durable && at.saturating_add(settings.coalesce) > hold)
            }
            Reason::TooLarge => false,
        };
        let new = &asked.new;
        assert!(right, "{ask} is dead without reason: {reason:?}, {live} live, {settings:?}; {new:?}");
    }

    fn may_be_rejected(&self, ask: usize) -> bool {
        let new = &self.asks[ask].new;
        let Some(identity) = new.identity else { return false };
        let (known, ..) = self.seen_by(ask, identity);
        let met = |known: &Known| match *known {
            Known::Nobody => false,
            Known::Waiting(_) | Known::Out(_) => true,
            Known::Ended(seq) => {
                self.lives[&seq].state == State::Sent && self.remembered(seq, self.lives[&seq].ended_at).0
            }
        };
        let seen = known.iter().any(met) || self.met_unseen(ask, identity);
        new.on_duplicate == DuplicateRule::Reject && (seen || !self.durable)
    }

    fn may_be_full(&self, ask: usize, was_accepted: bool, live: u64) -> bool {
        let new = &self.asks[ask].new;
        let all = std::iter::once(&self.settings).chain(&self.before);
        all.into_iter().any(|whole| {
            let settings = whole.of(&new.application);
            let limit = settings.max_waiting;
            let unseen = self.unseen_of(&new.application).saturating_sub(1);
            let leaving = self.leaving.get(&*new.application).copied().unwrap_or(0);
            let live = live + leaving;
            let at_limit = limit > 0 && if was_accepted { live > limit } else { live + unseen >= limit };
            let windows = new.at.is_none()
                && new.customer.is_some()
                && (whole.customers < 10
                    || self.lives_begun > 1
                    || self.most_windows.max(self.windows.open.len()) as u64 >= whole.customers);
            // With those of which something may have been taken and has not been seen.
            let has_any = |(name, app): &(&String, &App)| app.live > 0 || self.unseen_of(name) > 0;
            let names = self.apps.iter().filter(has_any).count() as u64;
            let many = live == 0 && names >= whole.max_applications;
            match settings.on_full {
                OnFull::DropNewest | OnFull::DropOldest if !self.durable => true,
                // Given up before it was ever written, because it is due before all others.
                OnFull::DropOldest if !was_accepted => {
                    let soon = new.at.is_none_or(|at| at <= self.now.wall);
                    (at_limit && soon) || many
                }
                OnFull::DropOldest => limit > 0 && live + self.unseen_of(&new.application) > limit,
                OnFull::DropNewest => !was_accepted && (at_limit || windows || many),
                OnFull::Pause | OnFull::FlushEarly => !was_accepted && many,
            }
        })
    }

    fn publish(&mut self, batch: &Batch) {
        assert_eq!(self.egress, (true, false), "published without a connection, or while it was blocked");
        assert!(!batch.items.is_empty(), "an empty batch");
        let name = batch.application.to_string();
        let mut last = None;
        let mut fresh = false;
        for item in &batch.items {
            let ask = self.ask_of(&item.content);
            assert!(last < Some((item.due, item.seq)), "order within a batch");
            last = Some((item.due, item.seq));
            if !self.lives.contains_key(&item.seq) {
                self.first_seen(ask, item, batch);
            }
            let life = &self.lives[&item.seq];
            assert_eq!(life.ask, ask, "arrival number {} stands for two items", item.seq);
            assert_eq!(item.accepted_due, life.accepted_due, "what its assigned id says");
            assert!(
                (life.attempts.0..=life.attempts.1).contains(&item.attempts) || batch.dead.is_some(),
                "{ask}: {} attempts, not {:?}",
                item.attempts,
                life.attempts
            );
            let new = &self.asks[ask].new;
            assert_eq!(
                (&*new.application, new.customer.as_deref()),
                (&*name, batch.customer.as_deref()),
                "routed elsewhere"
            );
            fresh |= life.published.is_none();
            match &batch.dead {
                Some(dead) => {
                    assert_eq!(batch.items.len(), 1, "one dead letter each");
                    if !self.durable && life.state == State::Waiting {
                        self.check_verdict(ask, Some(item.seq), dead.reason);
                        self.set(item.seq, State::Dead(dead.reason));
                    }
                    let life = &self.lives[&item.seq];
                    let State::Dead(reason) = life.state else {
                        panic!("dead letter of {ask}, which is {:?}", life.state)
                    };
                    assert_eq!(reason, dead.reason);
                    self.set(item.seq, State::DeadOut(batch.number, reason));
                    let call = self.call;
                    self.lives.get_mut(&item.seq).expect("there").published.get_or_insert(call);
                }
                None => self.publish_item(ask, item, batch),
            }
        }
        if batch.dead.is_none() {
            self.check_size(batch, fresh);
            let app = &self.apps[&name];
            assert!(!app.paused || app.pausing > 0, "published while paused");
            // A suspect has a channel of its own, and goes on being tried.
            let retried =
                self.commands.values().any(|a| matches!(&a.command, Command::Retry(of) if **of == *name));
            let parked = self.now.mono < app.parked_until && !retried;
            assert!(batch.alone || !parked, "published to {name}, which is parked");
        }
        assert_eq!(batch.due, batch.items[0].due.min(batch.due), "its earliest due");
        let flight = Flight {
            application: name.clone(),
            items: batch.items.iter().map(|item| item.seq).collect(),
            dead: batch.dead.is_some(),
            alone: batch.alone,
        };
        if !flight.dead {
            self.app(&name).flights.insert(batch.number);
        }
        assert!(self.flights.insert(batch.number, flight).is_none(), "one number, two batches");
        let most =
            self.before.iter().map(|before| before.max_in_flight).fold(self.settings.max_in_flight, Ord::max);
        assert!(self.flights.len() <= most, "{} batches in flight of {most}", self.flights.len());
    }

    /// It was never written: due at once, or nothing is stored at all.
    fn first_seen(&mut self, ask: usize, item: &BatchItem, batch: &Batch) {
        let key = Key { due: item.due, seq: item.seq };
        match &batch.dead {
            Some(dead) => {
                assert!(!self.durable, "a dead letter that was never written");
                self.check_verdict(ask, None, dead.reason);
                self.accept(ask, key, item.accepted_due, State::Dead(dead.reason));
            }
            None if self.durable => {
                assert!(item.due <= self.now.wall, "published and not yet due");
                self.accepted(ask, key, item.accepted_due);
            }
            None => self.accept(ask, key, item.accepted_due, State::Waiting),
        }
    }

    fn publish_item(&mut self, ask: usize, item: &BatchItem, batch: &Batch) {
        let (call, now) = (self.call, self.now);
        let life = &self.lives[&item.seq];
        assert_eq!(life.state, State::Waiting, "{ask} was published");
        let new = self.asks[ask].new.clone();
        assert!(!self.asks[ask].rejected, "a rejected request went out");
        let first = life.published.is_none();
        let attempts = life.attempts.0;
        if let Some(at) = new.at {
            // One that has been sent in its time may be sent again, whatever the clock says.
            let first = first && life.attempts.1 == 0;
            assert!(
                !first || now.wall >= at.min(item.due),
                "{ask} left at {}, before its own time {at}",
                now.wall
            );
            assert!(!first || now.wall >= item.due || item.due < at, "{ask} left before its due");
        }
        assert!(new.expiry.is_none_or(|at| now.wall < at), "{ask} left after its expiry");
        let settings = self.settings.of(&new.application);
        let most = std::iter::once(settings).chain(self.before.iter().map(|b| b.of(&new.application)));
        let most = most.map(|s| if s.retry.attempts == 0 { u32::MAX } else { s.retry.attempts }).max();
        assert!(most.is_none_or(|most| attempts < most), "{ask} was tried {attempts} times already");
        let windowed = new.at.is_none() && new.customer.is_some();
        if windowed && first && self.durable && !life.restored {
            self.windows.close_ripe(call, now);
            let may_flush = self.may_flush(&new.application, new.customer.as_deref().unwrap_or(""));
            self.windows.has_closed(item.seq, item.due, batch.closed_by, may_flush, call);
        }
        if windowed {
            assert!(item.due <= item.accepted_due, "a window that closed after its end");
        } else {
            assert_eq!(item.due, self.lives[&item.seq].due, "{ask}: its due");
        }
        self.lives.get_mut(&item.seq).expect("there").due = item.due;
        if let Some(customer) = &new.customer {
            self.check_order(item, &new.application, customer, windowed, first);
        }
        self.lives.get_mut(&item.seq).expect("there").published.get_or_insert(call);
        self.set(item.seq, State::Out(batch.number));
    }

    /// Nothing of its customer that comes later has left since it began to wait.
    fn check_order(
        &mut self,
        item: &BatchItem,
        application: &str,
        customer: &str,
        windowed: bool,
        first: bool,
    ) {
        let key = Key { due: item.due, seq: item.seq };
        let life = &self.lives[&item.seq];
        let closed =
            self.windows.of(item.seq).and_then(|win| win.closed.as_ref()).map_or(0, |close| close.call);
        let since = life.waiting_since.max(if windowed { closed } else { 0 });
        let unseen = !self.durable && first;
        let same_ms = |other: &Key| windowed && other.due == key.due;
        let list = self.published.entry((application.into(), customer.into())).or_default();
        for (call, other, other_first) in list.iter().rev() {
            if *call <= since || unseen {
                break;
            }
            // What was in flight when another failed may come before it.
            let overtaken = *other > key && *other_first;
            // A window's length is judged by the other clock than what overtakes it.
            let hidden = same_ms(other) || self.stepped_back > 0 || windowed && self.stepped;
            assert!(!overtaken || hidden, "{key:?} of {customer} waited when {other:?} left");
        }
        list.push((self.call, key, first));
    }

    fn check_size(&self, batch: &Batch, fresh: bool) {
        let all = std::iter::once(&self.settings).chain(&self.before);
        let fits = all.into_iter().any(|settings| {
            let app = settings.of(&batch.application);
            let overhead = size::overhead(app.format, &batch.application, batch.customer.as_deref());
            let weight =
                |item: &BatchItem| u64::from(self.asks[self.lives[&item.seq].ask].new.weight) + overhead.item;
            let bytes = overhead.batch + batch.items.iter().map(weight).sum::<u64>();
            let most = if app.format == Format::Passthrough { 1 } else { app.max_items as usize };
            batch.items.len() <= most
                && (batch.items.len() == 1 || bytes <= app.max_bytes || app.format == Format::Passthrough)
        });
        assert!(fits || !fresh, "a batch of {} items is too large", batch.items.len());
        let alone = batch.customer.is_some() || batch.items.len() == 1;
        assert!(alone, "items without customer are grouped with nobody");
        let Some(first) = batch.items.first() else { return };
        if fresh && self.durable {
            let causes: Vec<ClosedBy> =
                batch.items.iter().filter_map(|i| self.windows.causes(i.seq)).flatten().copied().collect();
            let own = batch.items.iter().any(|i| self.windows.causes(i.seq).is_none());
            let right = causes.contains(&batch.closed_by) || own;
            assert!(right, "closed by {:?}, not {causes:?}: {}", batch.closed_by, first.seq);
        }
    }

    fn reply(&mut self, reply: &Reply) {
        match &reply.asker {
            Asker::Local(number) => self.answered(*number, &reply.answer),
            // Told of a delivery that comes again: whoever asked may be told twice.
            Asker::Remote { delivery, .. } if delivery.generation != self.generation => {}
            Asker::Remote { delivery, .. } => {
                // The connection may be gone, and the command forgotten.
                let Some(number) = self.by_tag(delivery.tag) else { return };
                let command = self.messages[&number].command.expect("a command");
                self.answered(command, &reply.answer);
            }
        }
    }

    fn by_tag(&self, tag: u64) -> Option<usize> {
        let has = |number: &&usize| self.messages[number].delivered.is_some_and(|(_, _, t, _)| t == tag);
        self.open.iter().find(has).copied()
    }

    /// When the last part of a message became safe.
    pub(super) fn note_safe(&mut self) {
        let mono = self.now.mono;
        let waiting = |number: &usize| self.messages[number].safe_since.is_none();
        for number in self.open.iter().copied().filter(waiting).collect::<Vec<_>>() {
            let message = &self.messages[&number];
            let safe = message.command.is_none()
                && message.taken.iter().all(|taken| taken.is_some_and(|seq| self.is_safe(seq)));
            if safe {
                self.messages.get_mut(&number).expect("there").safe_since = Some(mono);
            }
        }
    }

    pub(super) fn is_safe(&self, seq: u64) -> bool {
        let life = &self.lives[&seq];
        life.durable || life.state.is_over()
    }

    fn ack(&mut self, ack: Ack) {
        if ack.delivery.generation != self.generation {
            return;
        }
        let covers = |number: &usize| {
            let (_, _, tag, _) = self.messages[number].delivered.expect("delivered");
            tag == ack.delivery.tag || (ack.multiple && tag < ack.delivery.tag)
        };
        for number in self.open.iter().copied().filter(covers).collect::<Vec<_>>() {
            if !self.durable {
                self.end_unseen(number);
            }
            self.end_unwritten(number);
            self.check_ack(number);
            if let Some(command) = self.messages[&number].command {
                // Nobody is told.
                let silent = self.commands.remove(&command);
                silent.into_iter().for_each(|asked| drop(self.answered.insert(command, asked)));
            }
            let message = self.messages.get_mut(&number).expect("there");
            message.acked = true;
            let taken = message.taken.clone();
            for seq in taken.into_iter().flatten() {
                self.lives.get_mut(&seq).expect("there").acked = true;
            }
            self.open.remove(&number);
        }
    }

    /// With nothing stored a cancel or a replacement is seen by the ack of what it ended.
    fn end_unseen(&mut self, number: usize) {
        let message = &self.messages[&number];
        let taken: Vec<(usize, u64)> = message
            .asks
            .iter()
            .copied()
            .zip(message.taken.clone())
            .filter_map(|(ask, seq)| Some((ask, seq?)))
            .collect();
        for (ask, seq) in taken {
            if self.lives[&seq].state == State::Waiting && self.may_have_ended_unseen(ask) {
                let cancelled = self.may_be_cancelled(ask);
                self.set(seq, if cancelled { State::Cancelled } else { State::Replaced });
            }
        }
    }

    /// With nothing stored: a command or another of its id may have ended it, and the ack waits for the rest
    /// of its message.
    pub(super) fn may_have_ended_unseen(&self, ask: usize) -> bool {
        let identity = self.asks[ask].new.identity;
        let met = || identity.is_some_and(|identity| self.met_unseen(ask, identity));
        !self.durable && (self.may_be_cancelled(ask) || met())
    }

    /// One that was published and never written leaves no delete when another takes its place; that is safe.
    fn end_unwritten(&mut self, number: usize) {
        let taken = self.messages[&number].taken.clone();
        for seq in taken.into_iter().flatten() {
            let life = &self.lives[&seq];
            let given = life.put.is_none() && life.identity.is_given();
            if given && life.state == State::Waiting && self.has_safe_heir(life) {
                self.set(seq, State::Replaced);
            }
        }
    }

    fn has_safe_heir(&self, life: &Life) -> bool {
        let is_heir = |heir: &&Life| heir.identity == life.identity && heir.seq > life.seq;
        // The broker has the request of one that is not acked.
        self.lives.values().filter(is_heir).any(|heir| self.is_safe(heir.seq) || !heir.acked)
    }

    fn check_ack(&self, number: usize) {
        let message = &self.messages[&number];
        if let Some(command) = message.command {
            let silent = !self.replies_to.contains(&command);
            assert!(
                silent || self.answered.contains_key(&command),
                "a command is acked before it was executed"
            );
            return;
        }
        for (part, ask) in message.asks.iter().enumerate() {
            match message.taken[part] {
                None => self.judge_dropped(*ask),
                Some(seq) => {
                    let life = &self.lives[&seq];
                    assert!(self.is_safe(seq), "{ask} was acked while {:?} and not durable", life.state);
                }
            }
        }
    }

    /// Items whose successor under the same id was published before the commit that deletes them.
    fn succeeded(&self, application: &str) -> u64 {
        let of_ids = || self.lives.values().filter(|life| life.identity.is_given());
        let is_heir = |heir: &Life, seq: u64| heir.seq > seq && heir.published.is_some();
        of_ids()
            .filter(|life| life.state.is_live() && self.application(life.seq) == application)
            .filter(|life| of_ids().any(|heir| heir.identity == life.identity && is_heir(heir, life.seq)))
            .count() as u64
    }

    fn check_limits(&self) {
        if !self.durable {
            return;
        }
        for (name, app) in &self.apps {
            let settings = self.settings.of(name);
            let limited = settings.max_waiting > 0 && settings.on_full != OnFull::DropOldest;
            let asked = self.commands.values().any(|a| {
                matches!(a.command, Command::Cancel(_) | Command::CancelAll(_) | Command::DropParked(_))
            });
            let over = limited && app.live > settings.max_waiting;
            if over && self.before.is_empty() && self.lives_begun == 1 && !asked {
                let waiting = app.live - self.succeeded(name);
                assert!(
                    waiting <= settings.max_waiting,
                    "{waiting} items of {name} wait, {} may",
                    settings.max_waiting
                );
            }
        }
        let open = self.windows.certain() as u64;
        assert!(open <= self.settings.customers || !self.before.is_empty(), "{open} windows are open");
        if self.before.is_empty() && self.lives_begun == 1 {
            let names = self.apps.values().filter(|app| app.live > 0).count() as u64;
            assert!(names <= self.settings.max_applications, "{names} applications have something waiting");
        }
    }
}
