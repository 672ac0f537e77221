//! One item in memory: what the store keeps of it, and what stands here beside that.

use super::packed::{ItemFlag, PackedResidence, PackedState};
use crate::engine::event::{Rewritten, Standing, Stored, Token};
use crate::engine::ids::{CustomerId, QueueId};
use crate::engine::mutant::{mutated, Mutant};
use crate::engine::request::AssignedId;
use crate::engine::types::{ClosedBy, Content, Dead, DuplicateRule, Identity, Key, NewItem};
use std::num::NonZeroU64;
use std::sync::Arc;

/// Where an item in memory stands on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Stage {
    /// Waits for its own time, in the schedule.
    Scheduled,
    /// Member of its customer's open window, at `pos` of its list. While `scheduled` it is in the schedule
    /// too, so that memory can be given back in order of key.
    Windowed { pos: u32, scheduled: bool },
    /// Due, in its queue.
    Ready,
    /// Member of the flight with this number.
    Flying(u64),
}

/// Where the only safe copy of an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Residence {
    /// The broker's unacked message with this tag, of the present generation.
    Pending(NonZeroU64),
    /// The broker's message, which it will deliver again: the item here is to be forgotten.
    Orphaned,
    /// The store's row, written with this commit; 0 = before this life.
    Stored(Token),
}

/// One item in memory. The payload is apart, and may be in the store alone. What is looked at when it
/// comes due stands first.
#[derive(Debug)]
#[repr(C)]
pub(in crate::engine) struct Item {
    /// The due in its key, UTC ms.
    planned: u64,
    /// Its arrival number.
    seq: u64,
    /// When it is really due: earlier than planned where its window closed sooner, UTC ms.
    due: u64,
    /// When it arrived, UTC ms.
    received: u64,
    /// UTC ms; `u64::MAX` = none.
    expiry: u64,
    identity: Identity,
    fingerprint: u64,
    queue: QueueId,
    customer: Option<CustomerId>,
    weight: u32,
    /// How far its number is from that of its window's first member: a window closes before that is too much.
    behind: u32,
    state: PackedState,
    residence: PackedResidence,
    content: Option<Arc<Content>>,
    extra: Option<Box<Extra>>,
}

/// What few items have.
#[derive(Clone, Debug, Default)]
struct Extra {
    /// Where it differs from the due in the key, UTC ms.
    accepted_due: Option<u64>,
    /// Attempts that have failed.
    attempts: u32,
    /// The outcome of one stayed unknown, and the broker has refused none since: it may have been delivered.
    outcome_unknown: bool,
    last_error: Option<Arc<str>>,
    /// It is a dead letter.
    dead: Option<Arc<Dead>>,
    /// Of a dead letter: whom it was meant for.
    meant_for: Option<Address>,
    /// Of a dead letter that nothing stores: its identity while it lived, to be remembered with its confirm.
    former_identity: Option<Identity>,
    /// Another has its place, by this rule, unless the attempt that is under way succeeds.
    superseded: Option<DuplicateRule>,
}

/// Application and customer by name.
pub(in crate::engine) type Address = (Arc<str>, Option<Arc<str>>);

/// Where an item that comes in is put, and where it came from.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Placement {
    pub(in crate::engine) key: Key,
    pub(in crate::engine) queue: QueueId,
    pub(in crate::engine) customer: Option<CustomerId>,
    /// When it arrived, UTC ms.
    pub(in crate::engine) received: u64,
    /// Of its delivery; 0 = the broker has it no more.
    pub(in crate::engine) tag: u64,
}

impl Item {
    // ---- how it comes to be -------------------------------------------------------------------------------

    /// Of a request. `own_time`: it named its due.
    pub(in crate::engine) fn arrived(new: NewItem, own_time: bool, placement: Placement) -> Self {
        let mut item = Item {
            expiry: new.expiry.unwrap_or(u64::MAX),
            identity: new.identity.unwrap_or(Identity::assigned(placement.key.seq)),
            fingerprint: new.fingerprint,
            weight: new.weight,
            content: Some(new.content),
            ..Item::bare(placement)
        };
        item.state.set(ItemFlag::OwnTime, own_time);
        item
    }

    /// Of a request that is a dead letter from the start.
    pub(in crate::engine) fn letter(
        dead: Arc<Dead>,
        meant_for: Address,
        content: Arc<Content>,
        placement: Placement,
    ) -> Self {
        let (dead, meant_for) = (Some(dead), Some(meant_for));
        let extra = Some(Box::new(Extra { dead, meant_for, ..Extra::default() }));
        // What it will cost when it leaves, and has had to be read.
        let weight = u32::try_from(content.size()).unwrap_or(u32::MAX);
        Item { weight, content: Some(content), extra, ..Item::bare(placement) }
    }

    /// As the store has kept it.
    pub(in crate::engine) fn restored(stored: Stored, queue: QueueId, customer: Option<CustomerId>) -> Self {
        let is_dead = stored.dead.is_some();
        let key = stored.key;
        let moved = stored.accepted_due != key.due;
        let tried = stored.attempts > 0 || stored.outcome_unknown || stored.last_error.is_some();
        let extra = (is_dead || tried || moved).then(|| {
            Box::new(Extra {
                accepted_due: moved.then_some(stored.accepted_due),
                attempts: stored.attempts,
                outcome_unknown: stored.outcome_unknown && !mutated(Mutant::DoubtNotRestored),
                last_error: stored.last_error,
                dead: stored.dead,
                meant_for: is_dead.then_some((stored.application, stored.customer)),
                former_identity: None,
                superseded: None,
            })
        });
        let mut item = Item {
            due: stored.due,
            expiry: stored.expiry.unwrap_or(u64::MAX),
            identity: stored.given.filter(|_| !is_dead).unwrap_or(Identity::assigned(key.seq)),
            fingerprint: stored.fingerprint,
            weight: stored.weight,
            residence: Residence::Stored(0).into(),
            content: stored.content,
            extra,
            ..Item::bare(Placement { key, queue, customer, received: stored.received, tag: 0 })
        };
        item.state.set_closed_by(stored.closed_by);
        let own_time = stored.own_time && !mutated(Mutant::OwnTimeNotRestored);
        item.state.set(ItemFlag::OwnTime, own_time);
        // Perhaps it has none; removing a row that is not there costs nothing worth knowing.
        item.state.set(ItemFlag::Indexed, customer.is_some());
        item
    }

    fn bare(placement: Placement) -> Self {
        let Placement { key, queue, customer, received, tag } = placement;
        Item {
            planned: key.due,
            seq: key.seq,
            due: key.due,
            received,
            expiry: u64::MAX,
            identity: Identity::assigned(key.seq),
            fingerprint: 0,
            queue,
            customer,
            weight: 0,
            behind: key.behind_first(),
            state: PackedState::new(Stage::Ready),
            residence: NonZeroU64::new(tag).map_or(Residence::Orphaned, Residence::Pending).into(),
            content: None,
            extra: None,
        }
    }

    // ---- what it is ---------------------------------------------------------------------------------------

    /// Its key in the store.
    pub(in crate::engine) fn key(&self) -> Key {
        Key { due: self.planned, window: self.seq - u64::from(self.behind), seq: self.seq }
    }

    /// When it is really due: earlier than its key says where its window closed sooner, UTC ms.
    pub(in crate::engine) fn due(&self) -> u64 {
        self.due
    }

    /// When it arrived, UTC ms.
    pub(in crate::engine) fn received(&self) -> u64 {
        self.received
    }

    /// UTC ms; `u64::MAX` = none.
    pub(in crate::engine) fn expiry(&self) -> u64 {
        self.expiry
    }

    pub(in crate::engine) fn identity(&self) -> Identity {
        self.identity
    }

    pub(in crate::engine) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    pub(in crate::engine) fn queue(&self) -> QueueId {
        self.queue
    }

    pub(in crate::engine) fn customer(&self) -> Option<CustomerId> {
        self.customer
    }

    pub(in crate::engine) fn weight(&self) -> u32 {
        self.weight
    }

    pub(in crate::engine) fn attempts(&self) -> u32 {
        self.extra.as_deref().map_or(0, |extra| extra.attempts)
    }

    pub(in crate::engine) fn stage(&self) -> Stage {
        self.state.stage()
    }

    /// Member of a flight: 0 is none.
    pub(in crate::engine) fn is_in_batch(&self) -> bool {
        matches!(self.stage(), Stage::Flying(number) if number > 0)
    }

    pub(in crate::engine) fn residence(&self) -> Residence {
        self.residence.into()
    }

    pub(in crate::engine) fn closed_by(&self) -> ClosedBy {
        self.state.closed_by()
    }

    /// It named its due.
    pub(in crate::engine) fn own_time(&self) -> bool {
        self.state.has(ItemFlag::OwnTime)
    }

    /// Its window is open, and it was due by the wall clock when it came into memory: it counts there as one
    /// that is in the store alone.
    pub(in crate::engine) fn is_stray(&self) -> bool {
        self.state.has(ItemFlag::Stray)
    }

    /// Its row may have a row under its customer.
    pub(in crate::engine) fn indexed(&self) -> bool {
        self.state.has(ItemFlag::Indexed)
    }

    /// The outcome of an attempt stayed unknown, and the broker has refused none since: it may have been
    /// delivered.
    pub(in crate::engine) fn outcome_unknown(&self) -> bool {
        self.extra.as_deref().is_some_and(|extra| extra.outcome_unknown)
    }

    /// Attempts and the like differ from what its row says.
    pub(in crate::engine) fn amended(&self) -> bool {
        self.state.has(ItemFlag::Amended)
    }

    /// `None`: in the store alone.
    pub(in crate::engine) fn content(&self) -> Option<&Arc<Content>> {
        self.content.as_ref()
    }

    /// Its place among what is due: by this it leaves, and by this it is held against its queue's bound.
    pub(in crate::engine) fn place(&self) -> Key {
        Key { due: self.due, ..self.key() }
    }

    pub(in crate::engine) fn is_stored(&self) -> bool {
        matches!(self.residence(), Residence::Stored(_))
    }

    pub(in crate::engine) fn is_orphaned(&self) -> bool {
        self.residence() == Residence::Orphaned
    }

    /// It is a dead letter: why.
    pub(in crate::engine) fn dead(&self) -> Option<&Arc<Dead>> {
        self.extra.as_deref()?.dead.as_ref()
    }

    pub(in crate::engine) fn is_dead(&self) -> bool {
        self.dead().is_some()
    }

    /// Of a dead letter: whom it was meant for.
    pub(in crate::engine) fn meant_for(&self) -> Option<&Address> {
        self.extra.as_deref()?.meant_for.as_ref()
    }

    /// Of a dead letter that nothing stores: its identity while it lived.
    pub(in crate::engine) fn former_identity(&self) -> Option<Identity> {
        self.extra.as_deref()?.former_identity
    }

    /// Another has its place, by this rule, unless the attempt that is under way succeeds.
    pub(in crate::engine) fn superseded(&self) -> Option<DuplicateRule> {
        self.extra.as_deref()?.superseded
    }

    pub(in crate::engine) fn accepted_due(&self) -> u64 {
        self.extra.as_deref().and_then(|extra| extra.accepted_due).unwrap_or(self.planned)
    }

    /// The id that it was assigned.
    pub(in crate::engine) fn assigned_id(&self) -> AssignedId {
        AssignedId::of(self.key(), self.accepted_due())
    }

    /// A member of a window: that closed before the end that was planned.
    pub(in crate::engine) fn closed_early(&self) -> bool {
        self.due < self.accepted_due()
    }

    /// Its key is not the one that it was accepted under.
    pub(in crate::engine) fn has_moved(&self) -> bool {
        self.extra.as_deref().is_some_and(|extra| extra.accepted_due.is_some())
    }

    pub(in crate::engine) fn last_error(&self) -> Option<Arc<str>> {
        self.extra.as_deref().and_then(|extra| extra.last_error.clone())
    }

    /// The identity row that it has in the store.
    pub(in crate::engine) fn identity_row(&self) -> Option<Identity> {
        (!self.is_dead() && (self.identity.is_given() || self.has_moved())).then_some(self.identity)
    }

    /// What may change of its row while it waits.
    pub(in crate::engine) fn standing(&self) -> Standing {
        Standing {
            attempts: self.attempts(),
            last_error: self.last_error(),
            outcome_unknown: self.outcome_unknown(),
            own_time: self.own_time(),
            closed_by: self.closed_by(),
            dead: self.dead().cloned(),
        }
    }

    /// What of that reads under way have to know.
    pub(in crate::engine) fn rewritten(&self) -> Rewritten {
        let dead = self.is_dead();
        let (attempts, outcome_unknown) = (self.attempts(), self.outcome_unknown());
        let (key, due, own_time) = (self.key(), self.due, self.own_time());
        Rewritten { key, due, attempts, outcome_unknown, own_time, dead }
    }

    /// Its row, under this address.
    pub(in crate::engine) fn to_stored(&self, (application, customer): Address) -> Stored {
        Stored {
            key: self.key(),
            due: self.due,
            accepted_due: self.accepted_due(),
            application,
            customer,
            given: self.identity.is_given().then_some(self.identity),
            fingerprint: self.fingerprint,
            received: self.received,
            own_time: self.own_time(),
            expiry: (self.expiry != u64::MAX).then_some(self.expiry),
            weight: self.weight,
            closed_by: self.closed_by(),
            attempts: self.attempts(),
            last_error: self.last_error(),
            outcome_unknown: self.outcome_unknown(),
            dead: self.dead().cloned(),
            content: self.content.clone(),
        }
    }

    // ---- what becomes of it -------------------------------------------------------------------------------

    fn extra_mut(&mut self) -> &mut Extra {
        self.extra.get_or_insert_with(Box::default)
    }

    pub(in crate::engine) fn set_stage(&mut self, stage: Stage) {
        self.state.set_stage(stage);
    }

    /// Its window has closed: it is due then.
    pub(in crate::engine) fn close(&mut self, due: u64, cause: ClosedBy) {
        self.due = due;
        self.state.set_closed_by(cause);
    }

    /// It is one from now on: see [`Item::is_stray`].
    pub(in crate::engine) fn stray(&mut self) {
        self.state.set(ItemFlag::Stray, true);
    }

    /// Its row is written with this commit, and says all.
    pub(in crate::engine) fn set_stored(&mut self, token: Token) {
        self.residence = Residence::Stored(token).into();
        self.state.set(ItemFlag::Amended, false);
    }

    /// The broker delivers its request again.
    pub(in crate::engine) fn orphan(&mut self) {
        self.residence = Residence::Orphaned.into();
    }

    /// Its request has come again, with this tag.
    pub(in crate::engine) fn adopt(&mut self, tag: u64) {
        self.residence = NonZeroU64::new(tag).map_or(Residence::Orphaned, Residence::Pending).into();
    }

    /// It is in flight, and another has its place: nothing keeps it beyond this attempt.
    pub(in crate::engine) fn supersede(&mut self, rule: DuplicateRule) {
        self.extra_mut().superseded = Some(rule);
        self.orphan();
        self.state.set(ItemFlag::Indexed, false);
    }

    /// Whether its row has, or is given, a row under its customer.
    pub(in crate::engine) fn set_indexed(&mut self, indexed: bool) {
        self.state.set(ItemFlag::Indexed, indexed);
    }

    /// It is due then, and waits for that.
    pub(in crate::engine) fn defer(&mut self, until: u64) {
        self.move_key(until);
        self.due = until;
        self.state.set_stage(Stage::Scheduled);
    }

    /// It is due at a time of its own from now on, whatever it waited for.
    pub(in crate::engine) fn reschedule(&mut self, due: u64) {
        self.move_key(due);
        self.due = due;
        if !mutated(Mutant::RescheduledKeepsItsCause) {
            self.state.set_closed_by(ClosedBy::Time);
        }
        self.state.set(ItemFlag::OwnTime, true);
    }

    fn move_key(&mut self, due: u64) {
        let accepted = self.accepted_due();
        let moved = (accepted != due).then_some(accepted);
        if moved.is_some() || self.extra.is_some() {
            self.extra_mut().accepted_due = moved;
        }
        self.planned = due;
    }

    /// An attempt has failed that counts.
    pub(in crate::engine) fn count_attempt(&mut self) {
        self.extra_mut().attempts += 1;
        self.state.set(ItemFlag::Amended, true);
    }

    pub(in crate::engine) fn set_last_error(&mut self, error: Arc<str>) {
        self.extra_mut().last_error = Some(error);
        self.state.set(ItemFlag::Amended, true);
    }

    /// It may have been delivered.
    pub(in crate::engine) fn set_outcome_unknown(&mut self) {
        self.extra_mut().outcome_unknown = true;
        self.state.set(ItemFlag::Amended, true);
    }

    /// The broker has said since that it did not take the batch that held it: as far as anybody knows it was
    /// not delivered.
    pub(in crate::engine) fn forget_outcome_unknown(&mut self) {
        if self.outcome_unknown() {
            self.extra_mut().outcome_unknown = false;
            self.state.set(ItemFlag::Amended, true);
        }
    }

    /// What this dead letter's request had for an id and a fingerprint is to be remembered with its confirm.
    pub(in crate::engine) fn set_former(&mut self, identity: Identity, fingerprint: u64) {
        self.fingerprint = fingerprint;
        self.extra_mut().former_identity = Some(identity);
    }

    /// It is a dead letter from now on, in their queue: in the order of its due, and due at once, for an item
    /// may be given up before its time.
    pub(in crate::engine) fn bury(
        &mut self,
        dead: Dead,
        meant_for: Address,
        former: Option<Identity>,
        dead_letters: QueueId,
        wall: u64,
    ) {
        self.move_key(self.due.min(wall));
        let extra = self.extra_mut();
        extra.dead = Some(Arc::new(dead));
        extra.meant_for = Some(meant_for);
        extra.former_identity = former;
        self.identity = Identity::assigned(self.seq);
        self.queue = dead_letters;
        self.customer = None;
        self.state.set_stage(Stage::Ready);
        self.due = self.planned;
        self.state.set(ItemFlag::Indexed, false);
        self.state.set(ItemFlag::Amended, false);
    }

    // ---- what the table of items counts and indexes -------------------------------------------------------

    /// A dead item is known by its arrival number alone. The identity that it had.
    pub(super) fn lose_identity(&mut self) -> Identity {
        std::mem::replace(&mut self.identity, Identity::assigned(self.seq))
    }

    pub(super) fn set_content(&mut self, content: Arc<Content>) {
        self.content = Some(content);
    }

    pub(super) fn take_content(&mut self) -> Option<Arc<Content>> {
        self.content.take()
    }
}
