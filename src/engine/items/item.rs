//! One item in memory: the fields that the store keeps, and the volatile ones.

pub(crate) use super::packed::ItemFlag;
use super::packed::{PackedResidence, PackedState};
use crate::ids::{CustomerId, QueueId};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::num::NonZeroU64;
use tidegate_types::event::{Stored, Token};
use tidegate_types::AssignedId;
use tidegate_types::{ClosedBy, Content, Dead, DuplicateRule, Identity, Key, NewItem};

/// The list that an item in memory is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Waits for its own time, in the schedule.
    Scheduled,
    /// Member of its customer's open window, at `pos` of its list. While `scheduled` it is in the schedule
    /// too, so that items can be evicted in order of key.
    Windowed { pos: u32, scheduled: bool },
    /// Due, in its queue.
    Ready,
    /// Member of the flight with this number, which is not 0.
    Flying(u64),
    /// On no list: it moves from one to another within a call.
    Detached,
}

impl Stage {
    /// Member of a flight.
    pub(crate) fn is_in_batch(self) -> bool {
        matches!(self, Stage::Flying(_))
    }
}

/// Where the only safe copy of an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residence {
    /// The broker's unacked message with this tag, of the present generation.
    Pending(NonZeroU64),
    /// The broker's message, which it will redeliver: the item here must be forgotten.
    Orphaned,
    /// The store's row, written with this commit; 0 = before this life.
    Stored(Token),
}

/// One item in memory. The payload is separate, and may be in the store only. Fields that are read when the
/// item comes due come first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Item {
    /// The due in its key, UTC ms.
    planned: u64,
    /// Its arrival number.
    seq: u64,
    /// Its actual due, UTC ms: earlier than `planned` if its window closed sooner. Of a dead letter, when it
    /// may be tried.
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
    /// Distance of its number from that of its window's first member; a window closes before this overflows.
    behind: u32,
    state: PackedState,
    residence: PackedResidence,
    pub(super) content: Option<Arc<Content>>,
    extra: Option<Box<Extra>>,
}

/// Fields that few items have.
#[derive(Clone, Debug, Default)]
struct Extra {
    /// Set if it differs from the due in the key, UTC ms.
    accepted_due: Option<u64>,
    tries: Tries,
    /// It is a dead letter.
    letter: Option<LetterFacts>,
    /// Another item takes its place, by this rule, unless the attempt under way succeeds.
    superseded: Option<DuplicateRule>,
}

/// The results of its attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tries {
    /// Failed attempts that count.
    pub(crate) attempts: u32,
    /// The outcome of an attempt is unknown, and the broker has refused none since: it may have been
    /// delivered.
    pub(crate) outcome_unknown: bool,
    pub(crate) last_error: Option<Arc<str>>,
    /// How often its consumer has sent it back; if not 0, it leaves in a batch of its own.
    pub(crate) retry: u32,
}

static UNTRIED: Tries = Tries { attempts: 0, outcome_unknown: false, last_error: None, retry: 0 };

/// Additional fields of a dead letter.
#[derive(Clone, Debug)]
pub(crate) struct LetterFacts {
    /// Reason and error of its death.
    pub(crate) dead: Arc<Dead>,
    /// The application and customer it was meant for.
    pub(crate) meant_for: Address,
    /// When the item was due, UTC ms, as known at its death.
    pub(crate) due: u64,
    /// Without a store: its former identity, which is remembered with its confirm.
    pub(crate) former: Option<Identity>,
    /// How often the broker has refused it while it stayed in memory. Its attempts stay those of the item.
    pub(crate) refusals: u32,
}

/// Application and customer by name.
pub(crate) type Address = (Arc<str>, Option<Arc<str>>);

/// Place and origin of a new item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    pub(crate) key: Key,
    pub(crate) queue: QueueId,
    pub(crate) customer: Option<CustomerId>,
    /// When it arrived, UTC ms.
    pub(crate) received: u64,
    /// Tag of its delivery; 0 = the broker no longer has it.
    pub(crate) tag: u64,
}

impl Item {
    // ---- how it comes to be -------------------------------------------------------------------------------

    /// An item of a request. `own_time`: the request named its due.
    pub(crate) fn arrived(new: NewItem, own_time: bool, placement: Placement) -> Self {
        let mut item = Item {
            expiry: new.expiry.unwrap_or(u64::MAX),
            identity: new.identity.unwrap_or(Identity::assigned(placement.key.seq)),
            fingerprint: new.fingerprint,
            weight: new.weight,
            content: Some(new.content),
            ..Item::bare(placement)
        };
        item.state.set(ItemFlag::OwnTime, own_time);
        if new.tried.retry > 0 {
            item.extra.get_or_insert_default().tries.retry = new.tried.retry;
        }
        item
    }

    /// An item of a request that is a dead letter from the start.
    pub(crate) fn dead_on_arrival(
        dead: Arc<Dead>,
        meant_for: Address,
        content: Arc<Content>,
        placement: Placement,
    ) -> Self {
        let letter = Some(LetterFacts { dead, meant_for, due: placement.key.due, former: None, refusals: 0 });
        let extra = Some(Box::new(Extra { letter, ..Extra::default() }));
        // Its size when it leaves and was read from the store before.
        let weight = u32::try_from(content.size()).unwrap_or(u32::MAX);
        Item { weight, content: Some(content), extra, ..Item::bare(placement) }
    }

    /// An item as the store has kept it.
    pub(crate) fn restored(stored: Stored, queue: QueueId, customer: Option<CustomerId>) -> Self {
        let is_dead = stored.dead.is_some();
        let key = stored.key;
        let accepted_due = (stored.accepted_due != key.due).then_some(stored.accepted_due);
        let tries = Tries {
            attempts: stored.attempts,
            outcome_unknown: stored.outcome_unknown,
            last_error: stored.last_error,
            retry: stored.retry,
        };
        let meant_for = (stored.application, stored.customer);
        let due = stored.due;
        let letter = stored.dead.map(|dead| LetterFacts { dead, meant_for, due, former: None, refusals: 0 });
        let has_extra = letter.is_some() || tries != UNTRIED || accepted_due.is_some();
        let extra = has_extra.then(|| Box::new(Extra { accepted_due, tries, letter, superseded: None }));
        let mut item = Item {
            due: if is_dead { key.due } else { due },
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
        item.state.set(ItemFlag::OwnTime, stored.own_time);
        // It may have no such row; removing a missing row costs next to nothing.
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
    pub(crate) fn key(&self) -> Key {
        Key { due: self.planned, window: self.seq - u64::from(self.behind), seq: self.seq }
    }

    /// Its actual due, UTC ms: earlier than the due in its key if its window closed sooner. Of a dead letter,
    /// when it may be tried.
    pub(crate) fn due(&self) -> u64 {
        self.due
    }

    /// When it arrived, UTC ms.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// UTC ms; `u64::MAX` = none.
    pub(crate) fn expiry(&self) -> u64 {
        self.expiry
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    pub(crate) fn queue(&self) -> QueueId {
        self.queue
    }

    pub(crate) fn customer(&self) -> Option<CustomerId> {
        self.customer
    }

    pub(crate) fn weight(&self) -> u32 {
        self.weight
    }

    pub(crate) fn stage(&self) -> Stage {
        self.state.stage()
    }

    pub(crate) fn residence(&self) -> Residence {
        self.residence.into()
    }

    pub(crate) fn closed_by(&self) -> ClosedBy {
        self.state.closed_by()
    }

    pub(crate) fn is(&self, flag: ItemFlag) -> bool {
        self.state.has(flag)
    }

    /// The results of its attempts.
    pub(crate) fn tries(&self) -> &Tries {
        self.extra.as_deref().map_or(&UNTRIED, |extra| &extra.tries)
    }

    /// Its additional fields, if it is a dead letter.
    pub(crate) fn letter(&self) -> Option<&LetterFacts> {
        self.extra.as_deref()?.letter.as_ref()
    }

    /// Its payload; `None`: it is in the store only.
    pub(crate) fn content(&self) -> Option<&Arc<Content>> {
        self.content.as_ref()
    }

    /// Its place in the order of leaving; also compared with its queue's bound in memory.
    pub(crate) fn place(&self) -> Key {
        Key { due: self.due, ..self.key() }
    }

    pub(crate) fn is_stored(&self) -> bool {
        matches!(self.residence(), Residence::Stored(_))
    }

    pub(crate) fn is_orphaned(&self) -> bool {
        self.residence() == Residence::Orphaned
    }

    /// Another item takes its place, by this rule, unless the attempt under way succeeds.
    pub(crate) fn superseded(&self) -> Option<DuplicateRule> {
        self.extra.as_deref()?.superseded
    }

    pub(crate) fn accepted_due(&self) -> u64 {
        self.extra.as_deref().and_then(|extra| extra.accepted_due).unwrap_or(self.planned)
    }

    /// The id that it was assigned.
    pub(crate) fn assigned_id(&self) -> AssignedId {
        AssignedId::of(self.key(), self.accepted_due())
    }

    /// The identity of its identity row in the store, if it has one.
    pub(crate) fn identity_row(&self) -> Option<Identity> {
        let moved = self.accepted_due() != self.planned;
        (self.letter().is_none() && (self.identity.is_given() || moved)).then_some(self.identity)
    }

    // ---- what becomes of it -------------------------------------------------------------------------------

    pub(crate) fn set_stage(&mut self, stage: Stage) {
        self.state.set_stage(stage);
    }

    /// Its window has closed: sets its due and the cause.
    pub(crate) fn close(&mut self, due: u64, cause: ClosedBy) {
        self.due = due;
        self.state.set_closed_by(cause);
    }

    /// Its row is written with this commit, and is complete.
    pub(crate) fn set_stored(&mut self, token: Token) {
        self.residence = Residence::Stored(token).into();
        self.state.set(ItemFlag::Amended, false);
    }

    /// Its only safe copy is the broker's message with this tag; `None`: it is orphaned.
    pub(crate) fn set_tag(&mut self, tag: Option<NonZeroU64>) {
        self.residence = tag.map_or(Residence::Orphaned, Residence::Pending).into();
    }

    pub(crate) fn set(&mut self, flag: ItemFlag, on: bool) {
        self.state.set(flag, on);
    }

    /// It is in flight, and another item has taken its place: it is not kept beyond this attempt.
    pub(crate) fn supersede(&mut self, rule: DuplicateRule) {
        self.extra.get_or_insert_default().superseded = Some(rule);
        self.set_tag(None);
        self.state.set(ItemFlag::Indexed, false);
    }

    /// Sets the moment at which a dead letter may be tried again, for which it waits in the schedule.
    pub(crate) fn defer(&mut self, until: u64) {
        if let Some(letter) = self.extra.as_mut().and_then(|extra| extra.letter.as_mut()) {
            letter.refusals += 1;
        }
        self.move_key(until);
        self.due = until;
        self.state.set_stage(Stage::Scheduled);
    }

    /// Sets an own time, whatever it waited for before.
    pub(crate) fn reschedule(&mut self, due: u64) {
        self.move_key(due);
        self.due = due;
        self.state.set_closed_by(ClosedBy::Time);
        self.state.set(ItemFlag::OwnTime, true);
    }

    fn move_key(&mut self, due: u64) {
        let accepted = self.accepted_due();
        let moved = (accepted != due).then_some(accepted);
        if moved.is_some() || self.extra.is_some() {
            self.extra.get_or_insert_default().accepted_due = moved;
        }
        self.planned = due;
    }

    /// Changes its tries; its row is out of date then.
    pub(crate) fn amend(&mut self, change: impl FnOnce(&mut Tries)) {
        let mut tries = self.tries().clone();
        change(&mut tries);
        if tries != *self.tries() {
            self.extra.get_or_insert_default().tries = tries;
            self.state.set(ItemFlag::Amended, true);
        }
    }

    /// Sets the id and fingerprint of this dead letter's request, to be remembered with its confirm.
    pub(crate) fn set_former(&mut self, identity: Identity, fingerprint: u64) {
        self.fingerprint = fingerprint;
        if let Some(letter) = self.extra.as_mut().and_then(|extra| extra.letter.as_mut()) {
            letter.former = Some(identity);
        }
    }

    /// Turns it into a dead letter in the dead-letter queue, ordered by its due but due at once: an item may
    /// be dead-lettered before its time.
    pub(crate) fn become_dead_letter(
        &mut self,
        dead: Dead,
        meant_for: Address,
        former: Option<Identity>,
        dead_letters: QueueId,
        wall: u64,
    ) {
        let letter = LetterFacts { dead: Arc::new(dead), meant_for, due: self.due, former, refusals: 0 };
        self.move_key(self.due.min(wall));
        self.extra.get_or_insert_default().letter = Some(letter);
        self.identity = Identity::assigned(self.seq);
        self.queue = dead_letters;
        self.customer = None;
        self.state.set_stage(Stage::Ready);
        self.due = self.planned;
        self.state.set(ItemFlag::Indexed, false);
        self.state.set(ItemFlag::Amended, false);
    }

    // ---- what the table of items counts and indexes -------------------------------------------------------

    /// Replaces the identity of a dead item by its arrival number. Returns the former identity.
    pub(super) fn lose_identity(&mut self) -> Identity {
        core::mem::replace(&mut self.identity, Identity::assigned(self.seq))
    }
}

/// The due of an item as published and reported: of a dead letter, that of the item when it died.
pub(crate) fn reported_due(item: &Item) -> u64 {
    item.letter().map_or(item.due, |letter| letter.due)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::{Handle, FIRST};

    const KEY: Key = Key { due: 5_000, window: 3, seq: 4 };

    fn restored(stored: Stored) -> Item {
        let customer = stored.customer.is_some().then(|| CustomerId::new(2, FIRST));
        Item::restored(stored, QueueId::new(1, FIRST), customer)
    }

    /// Columns: failed attempts, whether it may have been delivered, how often it was sent back, whether it
    /// has an own time, and what closed its window: as in the row, so in memory.
    /// Excluded: any of them lost or taken for another on the way from the store.
    /// Judges promises 4, 14 and 15.
    #[test]
    fn what_the_store_has_kept_of_attempts_and_times_is_restored() {
        for (attempts, outcome_unknown, retry, own_time, closed_by) in [
            (0, false, 0, false, ClosedBy::Time),
            (2, false, 0, false, ClosedBy::Flush),
            (0, true, 0, false, ClosedBy::Quiet),
            (0, false, 3, false, ClosedBy::Count),
            (0, false, 0, true, ClosedBy::Time),
            (2, true, 3, true, ClosedBy::Expiry),
        ] {
            let blank = tidegate_fake_store::blank("shop", KEY);
            let item = restored(Stored { attempts, outcome_unknown, retry, own_time, closed_by, ..blank });
            let tries = Tries { attempts, outcome_unknown, last_error: None, retry };
            assert_eq!(*item.tries(), tries);
            assert_eq!((item.is(ItemFlag::OwnTime), item.closed_by()), (own_time, closed_by), "{tries:?}");
            assert_eq!((item.key(), item.due(), item.accepted_due()), (KEY, 5_000, 5_000), "{tries:?}");
            assert!(item.is_stored() && !item.is(ItemFlag::Amended), "{tries:?}");
        }
    }

    /// Excluded: a field lost, or taken for another, on the way from the store.
    #[test]
    fn what_the_store_has_kept_of_the_request_is_restored() {
        let item = restored(Stored {
            due: 4_000,
            accepted_due: 6_000,
            customer: Some("anna".into()),
            given: Some(Identity::given([1; 16])),
            fingerprint: 7,
            received: 900,
            expiry: Some(9_000),
            weight: 30,
            last_error: Some("no route".into()),
            ..tidegate_fake_store::blank("shop", KEY)
        });
        assert_eq!((item.key(), item.due(), item.accepted_due()), (KEY, 4_000, 6_000));
        assert_eq!((item.received(), item.expiry(), item.weight()), (900, 9_000, 30));
        assert_eq!((item.identity(), item.fingerprint()), (Identity::given([1; 16]), 7));
        assert_eq!(item.tries().last_error.as_deref(), Some("no route"));
        assert_eq!((item.queue().place(), item.customer().map(CustomerId::place)), (1, Some(2)));
        assert!(item.is(ItemFlag::Indexed) && item.letter().is_none());
        let bare = restored(tidegate_fake_store::blank("shop", KEY));
        assert_eq!((bare.identity(), bare.expiry()), (Identity::assigned(4), u64::MAX));
        assert!(bare.customer().is_none() && !bare.is(ItemFlag::Indexed));
    }

    /// Each line: the event, then the due in its key, its due, its due as accepted, what closed its window,
    /// whether it has an own time, and whether its identity has a row.
    /// Excluded: a rescheduled item that still reports its former window, or that leaves at another time; an
    /// assigned id that changes, or that the store cannot find.
    /// Judges promise 15.
    #[test]
    fn what_becomes_of_the_times_of_an_item() {
        let mut item = restored(tidegate_fake_store::blank("shop", KEY));
        let id = item.assigned_id();
        for (event, until, expected) in [
            ("loaded", 0, (5_000, 5_000, 5_000, ClosedBy::Time, false, false)),
            ("closed", 4_000, (5_000, 4_000, 5_000, ClosedBy::Flush, false, false)),
            ("rescheduled", 9_000, (9_000, 9_000, 5_000, ClosedBy::Time, true, true)),
            ("rescheduled", 5_000, (5_000, 5_000, 5_000, ClosedBy::Time, true, false)),
            ("rescheduled", 2_000, (2_000, 2_000, 5_000, ClosedBy::Time, true, true)),
            ("deferred", 7_000, (7_000, 7_000, 5_000, ClosedBy::Time, true, true)),
        ] {
            match event {
                "closed" => item.close(until, ClosedBy::Flush),
                "rescheduled" => item.reschedule(until),
                "deferred" => item.defer(until),
                _ => {}
            }
            let (planned, due, accepted) = (item.key().due, item.due(), item.accepted_due());
            let (own_time, has_row) = (item.is(ItemFlag::OwnTime), item.identity_row().is_some());
            let found = (planned, due, accepted, item.closed_by(), own_time, has_row);
            assert_eq!(found, expected, "{event} {until}");
            assert_eq!(item.assigned_id(), id, "{event} {until}");
        }
        assert_eq!(item.stage(), Stage::Scheduled);
    }
}
