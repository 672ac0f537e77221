//! From requests to items: which kind each is, when it is due, whether it stays in memory, and what is written.

use super::event::{Indexed, Intake, Op, Place, Stored};
use super::identity::Origin;
use super::plant::{planted, Plant};
use super::slab::NIL;
use super::table::{Extra, Ready, Road, Row, State};
use super::types::{
    Answer, Asker, ClosedBy, Content, Dead, Delivery, End, Ended, Identity, Key, NewItem, Now, Reason,
    Rejected,
};
use super::{Engine, Gate, DEAD};
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::Arc;

/// What is due at once may be confirmed before it is stored; it is stored when it was not, after this time, ms.
const DEFER_MS: u64 = 20;

/// Payloads due within this time stay in memory as long as there is room for them, ms.
const KEEP_MS: u64 = 30_000;

/// The kind of an item, with what decides its due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Own(u64),
    Windowed,
    Immediate,
}

impl Engine {
    /// Opens or closes the intake; it closes once what was taken is safe.
    pub(super) fn move_gate(&mut self, open: bool) {
        self.gate = match (self.gate, open) {
            (Gate::Closed, true) => {
                self.fx.intake = Some(Intake::Resume);
                Gate::Open
            }
            (Gate::Open, false) => Gate::Closing,
            // A change of mind comes too late: deliveries have been passed over.
            (gate, _) => gate,
        };
        if self.gate == Gate::Closing && self.ledger.is_settled() {
            self.fx.intake = Some(Intake::Pause);
            self.gate = Gate::Closed;
            // Some of this generation have been passed over: nothing of it may be taken, or acked, from now on.
            self.ledger.restart(0);
        }
    }

    /// Makes an item of a request whose id nobody has. `replaces`: it takes the place of one, so the number of items
    /// stays.
    pub(super) fn accept(&mut self, item: NewItem, origin: Origin, replaces: bool, now: Now) {
        let app = self.app(&item.application);
        let kind = match self.judge_kind(app, &item, replaces, now) {
            Ok(kind) => kind,
            Err(dead) => return self.refuse(app, item, dead, origin, now),
        };
        self.counters.accepted += 1;
        let group = match &item.customer {
            Some(customer) => self.group(app, customer),
            None => NIL,
        };
        self.pin_group(group);
        self.count_in(app);
        let seq = self.next_seq;
        self.next_seq += 1;
        let due = match kind {
            Kind::Own(due) => due,
            Kind::Immediate => now.wall,
            Kind::Windowed => {
                self.join_window(group, u64::from(item.weight), item.expiry.unwrap_or(u64::MAX), seq, now)
            }
        };
        let row = Row {
            key: Key { due, seq },
            due,
            received: origin.received,
            expiry: item.expiry.unwrap_or(u64::MAX),
            identity: item.identity.unwrap_or(Identity::assigned(seq)),
            app,
            group,
            weight: item.weight,
            attempts: 0,
            token: 0,
            state: State::Ready,
            closed_by: ClosedBy::Time,
            own_time: matches!(kind, Kind::Own(_)),
            stored: false,
            in_lane: false,
            indexed: false,
            named: false,
            unsure: false,
            content: Some(item.content),
            tag: NonZeroU64::new(origin.delivery.tag),
            extra: None,
        };
        self.place(row, kind, now);
        if kind == Kind::Windowed {
            self.close_full_window(group, now);
        }
        self.unpin_group(group);
    }

    /// What kind of item this becomes, or why it cannot be taken.
    fn judge_kind(&mut self, app: u32, item: &NewItem, replaces: bool, now: Now) -> Result<Kind, Dead> {
        let kind = match (item.at, &item.customer) {
            (Some(at), _) => Kind::Own(self.own_due(app, at, item.expiry, now)),
            (None, Some(_)) => Kind::Windowed,
            (None, None) => Kind::Immediate,
        };
        if let (Some(hold_max), Kind::Own(due)) = (self.settings.hold_max, kind) {
            if due > now.wall.saturating_add(hold_max) {
                let error = format!(
                    "own time is {} ms away, above store.hold_max = {hold_max} ms of the memory store",
                    due - now.wall
                );
                return Err(Dead { reason: Reason::Unsupported, error: error.into() });
            }
        }
        if !replaces {
            self.admit(app, now)?;
            self.admit_window(app, item, now)?;
        }
        Ok(kind)
    }

    /// When an item would be due if it were accepted now.
    pub(super) fn due_if_accepted(&self, app: u32, item: &NewItem, now: Now) -> u64 {
        match (item.at, item.customer.as_deref()) {
            (Some(at), _) => self.own_due(app, at, item.expiry, now),
            (None, Some(customer)) => self.window_end(app, customer, now),
            (None, None) => now.wall,
        }
    }

    /// There is no room for it: it is dead, and its id remembered as that of a dead item.
    fn refuse(&mut self, app: u32, item: NewItem, dead: Dead, origin: Origin, now: Now) {
        let identity = item.identity;
        let ended = Ended {
            end: End::Dead(Arc::new(dead.clone())),
            at: now.wall,
            due: item.at.unwrap_or(now.wall),
            attempts: 0,
            customer: item.customer.as_deref().map(Arc::from),
        };
        let seq = self.next_seq;
        self.reject(item.rejected(dead), origin, now);
        if let Some(identity) = identity {
            self.remember_dead(app, identity, seq, ended, now);
        }
    }

    /// That an id is dead is remembered with the commit that makes its dead letter safe, and never sooner: the request
    /// would be taken for the old one coming back. With nothing stored that is the letter's confirm.
    pub(super) fn remember_dead(&mut self, app: u32, identity: Identity, seq: u64, ended: Ended, now: Now) {
        let row = self.by_seq.get(&seq).copied().filter(|_| identity.is_given());
        match row {
            Some(id) if !self.is_durable() && !planted(Plant::DeadTooSoon) => {
                self.rows[id].extra.get_or_insert_with(Box::default).was = Some(identity);
            }
            row => {
                if !planted(Plant::DeadTooSoon) {
                    row.into_iter().for_each(|id| self.store_row(id));
                }
                self.remember(app, identity, ended, now);
            }
        }
    }

    /// An own time, rounded as configured; the past is now. Rounding never passes an expiry.
    fn own_due(&self, app: u32, at: u64, expiry: Option<u64>, now: Now) -> u64 {
        if at <= now.wall {
            return now.wall;
        }
        let step = self.apps[app].settings.coalesce;
        if step == 0 {
            return at;
        }
        let rounded = at.div_ceil(step).saturating_mul(step);
        if expiry.is_some_and(|expiry| rounded >= expiry) {
            return at;
        }
        rounded
    }

    /// Decides where a new item lives, writes it if anything is written, and puts it on its list.
    fn place(&mut self, mut row: Row, kind: Kind, now: Now) {
        if !self.is_durable() {
            let id = self.insert_row(row);
            self.enlist(id, kind, now);
            return;
        }
        let due_now = row.key.due <= now.wall && kind != Kind::Windowed;
        if due_now && self.waits_in_lane(row.app) {
            let item = self.stored_from(&row);
            let delivery = self.take_delivery(&mut row);
            self.put_in_lane(row.app, item, delivery);
            return;
        }
        if due_now && self.may_defer(&row) {
            let at = now.mono + DEFER_MS;
            let seq = row.key.seq;
            let id = self.insert_row(row);
            self.deferred.push_back((at, id, seq));
            self.enlist(id, kind, now);
            return;
        }
        self.make_room(row.key);
        let below = row.key < self.cursor.until;
        let stays = below || self.cursor.loading.is_some();
        row.indexed = !below && row.group != NIL;
        row.named = !below && row.app != DEAD;
        if below && !planted(Plant::BareMarkForgotten) {
            self.bare_until = self.bare_until.max(row.key.due + 1);
        }
        self.write_row(&mut row);
        if !stays {
            self.touch(row.identity);
            self.gone_far(row.app);
            self.cursor.far_min = self.cursor.far_min.min(row.key);
            if kind == Kind::Windowed {
                self.far_member(row.group);
            }
            return;
        }
        let id = self.insert_row(row);
        self.keep_content(id, now);
        self.enlist(id, kind, now);
    }

    /// Decides whether the payload of an item that is being written stays in memory afterwards.
    fn keep_content(&mut self, id: u32, now: Now) {
        let row = &self.rows[id];
        let soon = row.key.due <= now.wall + KEEP_MS;
        if !soon || self.content_bytes >= self.settings.budget.contents / 4 * 3 {
            self.fresh.push_back((row.token, id, row.key.seq));
        }
    }

    fn enlist(&mut self, id: u32, kind: Kind, now: Now) {
        match kind {
            Kind::Windowed => self.near_member(id, now),
            Kind::Own(due) if due > now.wall => {
                self.rows[id].state = State::Scheduled;
                self.schedule.insert(id, self.rows[id].key);
            }
            Kind::Own(_) | Kind::Immediate => self.make_ready(id),
        }
    }

    /// Whether an item that is due at once may go out before it is written: only where its confirm can be expected
    /// at once, or the write would merely come later.
    fn may_defer(&self, row: &Row) -> bool {
        let app = &self.apps[row.app];
        row.group == NIL
            && self.egress.ready
            && !self.egress.blocked
            && !self.draining
            && matches!(app.road, Road::Open { .. })
            && app.resend.is_empty()
            && self.slots + (app.ready.len()) < self.settings.max_in_flight
            && self.cursor.until.due > row.key.due
    }

    /// Items whose confirm did not come in time are written now.
    pub(super) fn store_deferred(&mut self, now: Now) {
        while let Some((at, id, seq)) = self.deferred.front().copied() {
            let alive =
                self.by_seq.get(&seq) == Some(&id) && !self.rows[id].stored && self.rows[id].tag.is_some();
            if alive && at > now.mono {
                break;
            }
            self.deferred.pop_front();
            if alive {
                self.store_row(id);
            }
        }
    }

    /// Writes an item that is in memory alone.
    pub(super) fn store_row(&mut self, id: u32) {
        if !self.is_durable() || self.rows[id].stored {
            return;
        }
        let stored = self.stored_of(id);
        let token = self.next_token();
        let app = self.rows[id].app;
        self.apps[app].unstored -= 1;
        self.note_count(app);
        let row = &mut self.rows[id];
        row.stored = true;
        row.token = token;
        if let Some(tag) = row.tag.take() {
            self.awaiting.push_back((token, self.ledger.delivery(tag)));
        }
        self.bare_until = self.bare_until.max(row.key.due + 1);
        self.stored += 1;
        self.stored_in_memory += 1;
        *self.seconds.entry(row.key.due / 1_000).or_default() += 1;
        self.ops.push(Op::Put { place: Place::Time, item: Box::new(stored), indexed: Indexed::default() });
        self.keep_content(id, self.last);
    }

    /// Writes a new item to the time index.
    fn write_row(&mut self, row: &mut Row) {
        row.stored = true;
        row.token = self.next_token();
        if let Some(delivery) = self.take_delivery(row) {
            if planted(Plant::AckBeforeCommit) {
                self.ledger.safe(delivery);
            } else {
                self.awaiting.push_back((row.token, delivery));
            }
        }
        self.stored += 1;
        let item = Box::new(self.stored_from(row));
        let indexed = self.index_of(row);
        if row.named {
            self.begin_index();
        }
        self.ops.push(Op::Put { place: Place::Time, item, indexed });
    }

    /// The delivery that an item's end would ack; from now on something else does.
    pub(super) fn take_delivery(&self, row: &mut Row) -> Option<Delivery> {
        row.tag.take().map(|tag| self.ledger.delivery(tag))
    }

    fn stored_of(&self, id: u32) -> Stored {
        self.stored_from(&self.rows[id])
    }

    pub(super) fn stored_from(&self, row: &Row) -> Stored {
        let extra = row.extra.as_deref();
        let (application, customer) = self.address(row);
        Stored {
            key: row.key,
            application,
            customer,
            given: row.identity.is_given().then_some(row.identity),
            received: row.received,
            own_time: row.own_time,
            expiry: (row.expiry != u64::MAX).then_some(row.expiry),
            weight: row.weight,
            attempts: row.attempts,
            last_error: extra.and_then(|e| e.last_error.clone()),
            dead: extra.and_then(|e| e.dead.clone()),
            content: row.content.clone(),
        }
    }

    /// Application and customer by name; of a dead item, those that it was meant for.
    pub(super) fn address(&self, row: &Row) -> (Arc<str>, Option<Arc<str>>) {
        if let Some(Extra { application: Some(application), customer, .. }) = row.extra.as_deref() {
            return (application.clone(), customer.clone());
        }
        let customer = (row.group != NIL).then(|| self.groups[row.group].customer.clone());
        (self.apps[row.app].name.clone(), customer)
    }

    /// A request that was not understood, or cannot be taken, becomes a dead item of its own.
    pub(super) fn reject(&mut self, rejected: Rejected, origin: Origin, now: Now) {
        self.counters.rejected += 1;
        self.count_dead(rejected.dead.reason);
        self.count_in(DEAD);
        let answer = rejected.reply_to.is_some().then(|| Answer::Rejected(rejected.dead.error.clone()));
        let seq = self.next_seq;
        self.next_seq += 1;
        let extra = Extra {
            dead: Some(Arc::new(rejected.dead)),
            application: Some(rejected.application.map_or_else(|| "".into(), Arc::from)),
            customer: rejected.customer.map(Arc::from),
            last_error: None,
            was: None,
        };
        let row = dead_row(Key { due: now.wall, seq }, origin, rejected.content, extra);
        self.place(row, Kind::Immediate, now);
        if let (Some(reply_to), Some(answer)) = (rejected.reply_to, answer) {
            // The dead letter has the delivery in its care: the answer acks nothing.
            let asker = Asker::Remote {
                delivery: Delivery { generation: 0, tag: 0 },
                redelivered: false,
                reply_to: Some(reply_to),
            };
            self.reply(asker, None, answer);
        }
    }

    pub(super) fn count_dead(&mut self, reason: Reason) {
        self.counters.dead[reason as usize] += 1;
    }

    /// The broker will deliver again whatever was not acked: items whose only copy that is, are forgotten, or they
    /// would be there twice.
    pub(super) fn ingest_lost(&mut self) {
        self.ledger.restart(0);
        self.awaiting.clear();
        self.forget_arrivals();
        let lost: Vec<u32> = self.rows.ids().filter(|id| !self.rows[*id].stored).collect();
        for id in &lost {
            self.rows[*id].tag = None;
        }
        self.unlist(&lost, |_, row| row.is_lost());
        for id in lost {
            if !self.is_in_flight(id) {
                self.leave_flight(id);
                self.give_back_to_broker(id);
            }
        }
    }

    /// Takes items off their lists: each queue is gone through once, however many of them it holds. `is_gone` says the
    /// same of a single one.
    pub(super) fn unlist(&mut self, gone: &[u32], is_gone: impl Fn(u32, &Row) -> bool) {
        let (mut groups, mut apps) = (BTreeSet::new(), BTreeSet::new());
        for id in gone.iter().copied() {
            let row = &self.rows[id];
            let (app, group, weight) = (row.app, row.group, row.weight);
            match row.state {
                State::Scheduled if row.in_lane => {
                    self.early.remove(&(row.key, id));
                    self.apps[app].early -= 1;
                    self.hungry.insert(app);
                }
                State::Scheduled => self.schedule.remove(id, row.key),
                State::Windowed { .. } => {
                    self.unlist_member(id);
                    self.uncount_member(group, weight);
                }
                State::Ready => {
                    self.apps[app].ready_rows -= 1;
                    self.ready_rows -= 1;
                    apps.insert(app);
                    if group != NIL {
                        groups.insert(group);
                    }
                }
                State::Flying(_) => {}
            }
        }
        let rows = &self.rows;
        for group in groups {
            let owner = &mut self.groups[group];
            owner.ready.retain(|id| !is_gone(*id, &rows[*id]));
            owner.queued = !owner.ready.is_empty();
            owner.held &= owner.queued;
        }
        for app in apps {
            let groups = &self.groups;
            self.apps[app].ready.retain(|entry| match entry {
                Ready::Single(id) => !is_gone(*id, &rows[*id]),
                Ready::Group(group) => groups[*group].queued,
            });
            if self.apps[app].lane.is_some() {
                self.hungry.insert(app);
            }
        }
    }

    /// Forgets an item that the broker delivers again. It is on no list.
    pub(super) fn give_back_to_broker(&mut self, id: u32) {
        if let Some(row) = self.remove_row(id) {
            self.count_out(row.app);
            self.counters.given_back += 1;
        }
    }
}

fn dead_row(key: Key, origin: Origin, content: Arc<Content>, extra: Extra) -> Row {
    Row {
        key,
        due: key.due,
        received: origin.received,
        expiry: u64::MAX,
        identity: Identity::assigned(key.seq),
        app: DEAD,
        group: NIL,
        weight: 0,
        attempts: 0,
        token: 0,
        state: State::Ready,
        closed_by: ClosedBy::Time,
        own_time: false,
        stored: false,
        in_lane: false,
        indexed: false,
        named: false,
        unsure: false,
        content: Some(content),
        tag: NonZeroU64::new(origin.delivery.tag),
        extra: Some(Box::new(extra)),
    }
}
