//! Decides about an arrival: whether the store must be asked first, and whether it is admitted, dropped,
//! replaces another item, or waits.

use super::admission::{self, Applicant, LimitVerdict, Limits};
use super::arrivals::Arrival;
use super::duplicates::{self, Fingerprints, Known, Verdict};
use super::ids::{ItemId, QueueId};
use super::items::{ItemFlag, Stage};
use super::live::{Admission, Origin, Timing};
use super::mutant::{mutated, Mutant};
use super::scans::Scans;
use super::window;
use crate::core::{Core, ItemLocation, LiveItem};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use tidegate_types::event::{Found, Wanted};
use tidegate_types::{
    Answer, AppSettings, Asker, AssignedId, Command, Dead, Delivery, DuplicateRule, End, Ended, Identity,
    NewItem, Now, Reason, Rejected, Reply, Settings,
};

/// The decision about a request.
#[derive(Debug)]
pub(crate) enum Decision {
    Done,
    /// It waits for the outcome of the item of this identity.
    Await(Identity, Box<NewItem>),
    /// There is no room for it now: it returns to its queue of arrivals.
    NoRoom(Box<NewItem>),
}

/// A request in its turn.
#[derive(Debug)]
struct Submission {
    item: Box<NewItem>,
    /// The queue of its application.
    queue: QueueId,
    origin: Origin,
}

/// What a decision needs beside the core.
pub(crate) struct Decider<'a> {
    settings: &'a Settings,
    limits: &'a mut Limits,
    scans: &'a mut Scans,
    how: Hurry,
}

/// What must not be deferred.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hurry {
    /// Nothing is deferred, since a shutdown has begun.
    pub(crate) draining: bool,
    /// This one waits for no outcome.
    pub(crate) at_once: bool,
}

/// The look-ups needed before an arrival can be judged: none if memory has the answer, or the store cannot
/// have one.
pub(crate) fn questions(core: &Core, settings: &Settings, arrival: &Arrival, now: Now) -> Vec<Wanted> {
    let Some((application, identities)) = arrival.subject() else { return Vec::new() };
    if identities == [None, None] {
        return Vec::new();
    }
    let queue = core.live.queues.find(application);
    // An item of the first identity that has not ended is the one meant. An assigned id may belong to an item
    // of another application, which must not be visible here.
    let is_its = |id: &ItemId| Some(core.live.items()[*id].queue()) == queue;
    let known = |identity: Identity| core.live.items().by_identity(identity).filter(is_its).is_some();
    if identities.into_iter().flatten().next().is_some_and(known) {
        return Vec::new();
    }
    let tail =
        queue.map_or(settings.of(application), |queue| core.live.queues.settings_of(queue)).dedupe_tail;
    let far = queue.is_some_and(|queue| core.live.queues[queue].far() > 0);
    let assigned = match arrival {
        Arrival::Command {
            command: Command::Cancel(target) | Command::Lookup(target) | Command::Reschedule(target, _),
            ..
        } => target.assigned,
        Arrival::Command { .. } | Arrival::Item(..) | Arrival::Rejected(..) => None,
    };
    let mut out = Vec::new();
    for identity in identities.into_iter().flatten() {
        let given = identity.is_given();
        let buckets = if given { core.recent.buckets_of(identity, tail, now.wall) } else { Vec::new() };
        if far || !buckets.is_empty() {
            let key = assigned.filter(|_| !given).map(AssignedId::key);
            out.push(Wanted { identity, application: application.into(), key, buckets });
        }
    }
    out
}

/// The kind of a new item's due.
fn timing(settings: &AppSettings, item: &NewItem, now: Now) -> Timing {
    match (item.at, &item.customer) {
        (Some(at), _) => Timing::Own(own_due(settings, at, item.expiry, now)),
        (None, Some(_)) => Timing::Windowed,
        (None, None) => Timing::Immediate,
    }
}

/// An own time, rounded as configured; a past time becomes the present. Rounding never passes an expiry.
pub(crate) fn own_due(settings: &AppSettings, at: u64, expiry: Option<u64>, now: Now) -> u64 {
    let step = settings.coalesce;
    if at <= now.wall {
        return now.wall;
    }
    if step == 0 {
        return at;
    }
    let rounded = at.div_ceil(step).saturating_mul(step);
    if expiry.is_some_and(|expiry| rounded >= expiry) {
        at
    } else {
        rounded
    }
}

/// Whether there is no room at present for this request if it came alone. `found`: what the store has told of
/// its id. One that would be dropped or rejected needs none.
pub(crate) fn lacks_room(
    core: &mut Core,
    limits: &mut Limits,
    settings: &Settings,
    (item, origin, found): (&NewItem, Origin, Option<&Found>),
    now: Now,
) -> bool {
    if item.over.is_some() {
        return false;
    }
    let is_resident = item.identity.and_then(|identity| core.live.items().by_identity(identity)).is_some();
    let replaces = is_resident || found.is_some_and(|found| found.item.is_some());
    if replaces && matches!(item.on_duplicate, DuplicateRule::Keep | DuplicateRule::Reject) {
        return false;
    }
    if let Some(ended) = found.and_then(|found| found.ended.as_ref()).filter(|_| !replaces) {
        let prints = Fingerprints { new: item.fingerprint, old: 0 };
        let known = Known::Ended(ended);
        let verdict =
            duplicates::judge(item.on_duplicate, known, origin.redelivered, prints, item.tried.batch);
        if !matches!(verdict, Verdict::Anew) {
            return false;
        }
    }
    let queue = core.live.queues.id(&item.application);
    let timing = timing(core.live.queues.settings_of(queue), item, now);
    let received = origin.received;
    let applicant = Applicant { item, queue, timing, received, replaces, let_in: false };
    limits.lacks_room(&core.live, settings, applicant, now)
}

impl<'a> Decider<'a> {
    pub(crate) fn new(
        settings: &'a Settings,
        limits: &'a mut Limits,
        scans: &'a mut Scans,
        how: Hurry,
    ) -> Self {
        Decider { settings, limits, scans, how }
    }

    /// Judges a request, in its turn.
    pub(crate) fn item(
        &mut self,
        core: &mut Core,
        item: Box<NewItem>,
        origin: Origin,
        found: Vec<(Identity, Found)>,
        now: Now,
    ) -> Decision {
        let queue = core.live.queues.id(&item.application);
        let new = Submission { item, queue, origin };
        let Some(identity) = new.item.identity else { return self.admit(core, new, now) };
        // Its consumer may have received the first item before the confirm came.
        let first = new.item.tried.first.filter(|first| core.is_out(*first, queue) && !self.how.at_once);
        if let Some(first) = first {
            return Decision::Await(first, new.item);
        }
        let found = found.into_iter().next().map(|(_, found)| found);
        let location = core.location(identity, queue, found, now);
        let location = self.scans.claim(core, location, now);
        if self.scans.may_take_back(core, &location, self.how.at_once) {
            return Decision::Await(identity, new.item);
        }
        match location {
            ItemLocation::Nowhere => self.admit(core, new, now),
            ItemLocation::Ended(ended) => self.known(core, new, Known::Ended(&ended), 0, None, now),
            ItemLocation::Live(live) => {
                let (known, old) = self.known_live(core, &new, &live, now);
                self.known(core, new, known, old, Some(live), now)
            }
        }
    }

    /// What is known of a request with the id of this item, and the fingerprint of the item.
    fn known_live(&self, core: &Core, new: &Submission, live: &LiveItem, now: Now) -> (Known<'static>, u64) {
        let (item, queue) = (&new.item, new.queue);
        let (due, old) = match live {
            LiveItem::Resident(id) => {
                let resident = &core.live.items()[*id];
                if resident.is_orphaned() {
                    return (Known::Undecided { orphaned: true }, resident.fingerprint());
                }
                if core.is_in_flight(*id) && !mutated(Mutant::InFlightIsReplaced) {
                    return (Known::Undecided { orphaned: false }, resident.fingerprint());
                }
                (resident.due(), resident.fingerprint())
            }
            LiveItem::Far(stored) => (stored.due, stored.fingerprint),
        };
        let settings = core.live.queues.settings_of(queue);
        let new_due = match timing(settings, item, now) {
            Timing::Own(due) => due,
            Timing::Immediate => now.wall,
            Timing::Windowed => {
                let name = item.customer.as_deref();
                let customer = name.and_then(|name| core.live.queues[queue].customer(name));
                let window = customer.and_then(|id| core.live.customers().window(id));
                window
                    .filter(|_| !mutated(Mutant::NewDueIgnoresWindow))
                    .map_or_else(|| now.wall + window::length(settings, now), |window| window.end())
            }
        };
        (Known::Waiting { due, new_due }, old)
    }

    /// Decides about a request whose id is known. `live`: the item with that id, if it has not ended; `old`:
    /// its fingerprint.
    fn known(
        &mut self,
        core: &mut Core,
        new: Submission,
        known: Known<'_>,
        old: u64,
        live: Option<LiveItem>,
        now: Now,
    ) -> Decision {
        let (item, origin) = (&new.item, new.origin);
        let (rule, tried) = (item.on_duplicate, item.tried);
        let prints = Fingerprints { new: item.fingerprint, old };
        let verdict = match duplicates::judge(rule, known, origin.redelivered, prints, tried.batch) {
            _ if mutated(Mutant::RulesDoKeep) => Verdict::Drop,
            // The waiting item must not be dead-lettered with it.
            Verdict::Replace if item.over.is_some() => Verdict::Drop,
            verdict @ (Verdict::Drop
            | Verdict::Replace
            | Verdict::Anew
            | Verdict::Reject
            | Verdict::Await) => verdict,
        };
        match verdict {
            Verdict::Drop => {
                let before = if let Known::Ended(ended) = known { ended.fingerprint } else { old };
                let comes_back = origin.redelivered && before == item.fingerprint;
                core.live.shared.counters_mut().tries_dropped += u64::from(tried.sent_back && !comes_back);
                drop_duplicate(core, rule, origin)
            }
            Verdict::Reject => {
                core.live.shared.counters_mut().duplicates[rule as usize].dead += 1;
                let error = "an item with this id is known, and x-on-duplicate is reject";
                let dead = Dead { reason: Reason::Duplicate, error: error.into() };
                reject(core, new.item.rejected(dead), origin, now);
                Decision::Done
            }
            Verdict::Anew => {
                let judged = self.admit(core, new, now);
                core.live.shared.counters_mut().duplicates[rule as usize].accepted +=
                    u64::from(matches!(judged, Decision::Done));
                judged
            }
            Verdict::Await => match (item.identity, live) {
                (Some(identity), Some(LiveItem::Resident(id)))
                    if self.how.at_once && core.may_be_superseded(identity) =>
                {
                    self.decide(core, new, id, old, now)
                }
                (Some(identity), _) => Decision::Await(identity, new.item),
                (None, _) => {
                    debug_assert!(false, "a request whose id is known has an id");
                    Decision::NoRoom(new.item)
                }
            },
            Verdict::Replace => match live {
                Some(live) => {
                    let comes_back = origin.redelivered && old == item.fingerprint;
                    if comes_back && has_new_time(core, item, &live) {
                        return drop_duplicate(core, rule, origin);
                    }
                    self.replace(core, new, live, comes_back, now)
                }
                None => {
                    debug_assert!(false, "only an item that has not ended is replaced");
                    self.admit(core, new, now)
                }
            },
        }
    }

    /// Decides without the end of the attempt, so that nothing is lost: the new request is taken, and the old
    /// item, which may still be delivered, is not tried again. If either end of the attempt admits the new
    /// one, a wait would change nothing. A request with rule `earliest` is dropped, since the item in flight
    /// is due before it. `old`: the fingerprint of the old item.
    fn decide(&mut self, core: &mut Core, new: Submission, id: ItemId, old: u64, now: Now) -> Decision {
        let (item, origin) = (&new.item, new.origin);
        let rule = item.on_duplicate;
        let orphaned = core.live.items()[id].is_orphaned();
        let comes_back = origin.redelivered && old == item.fingerprint;
        let earliest = rule == DuplicateRule::Earliest && item.tried.batch.is_none();
        if orphaned && comes_back {
            core.live.home_of(id).adopt(id, origin, now);
            return Decision::Done;
        }
        if !orphaned && (comes_back || earliest) {
            return drop_duplicate(core, rule, origin);
        }
        if let Some(dead) = item.over.as_deref().cloned() {
            // The consumer has had the last try, which is in flight only until its confirm comes.
            reject(core, new.item.rejected(dead), origin, now);
            return Decision::Done;
        }
        self.replace(core, new, LiveItem::Resident(id), false, now)
    }

    /// Replaces the old item by the new one in one commit. If there is no room for the new one's window, the
    /// old one stays. `comes_back`: the new one is a redelivery of the old one.
    fn replace(
        &mut self,
        core: &mut Core,
        new: Submission,
        live: LiveItem,
        comes_back: bool,
        now: Now,
    ) -> Decision {
        let Submission { item, queue, origin } = new;
        let rule = item.on_duplicate;
        let timing = timing(core.live.queues.settings_of(queue), &item, now);
        let received = origin.received;
        let let_in = origin.several;
        let applicant = Applicant { item: &item, queue, timing, received, replaces: true, let_in };
        match self.limits.judge(&core.live, self.settings, applicant, now) {
            LimitVerdict::Admit => {}
            LimitVerdict::Wait => return Decision::NoRoom(item),
            // It is accepted already: one request would end both as sent and as dead.
            LimitVerdict::Dead(_) if comes_back => return drop_duplicate(core, rule, origin),
            LimitVerdict::Dead(dead) => {
                reject(core, item.rejected(dead), origin, now);
                return Decision::Done;
            }
        }
        core.live.shared.counters_mut().tries_taken += u64::from(item.tried.retry > 0 && !comes_back);
        let inherited = inherited_window(core, &item, &live, now);
        match &live {
            // It is counted as replaced or sent when its attempt has ended.
            LiveItem::Resident(id) if core.is_in_flight(*id) && !mutated(Mutant::InFlightIsReplaced) => {
                core.supersede(*id, rule);
            }
            LiveItem::Resident(id) => {
                core.end_unsent(*id);
                core.live.shared.counters_mut().count_replaced(rule);
            }
            LiveItem::Far(stored) => {
                core.live.finish_far(stored);
                core.live.shared.counters_mut().count_replaced(rule);
            }
        }
        // Not deferred: else the old item would be deleted before the new one is written, and only the broker
        // would have it.
        let may_defer = mutated(Mutant::HeirIsDeferred) && self.may_defer(core, &item, queue);
        admission::make_room(&mut core.live, self.settings, applicant, now);
        core.live.admit(*item, Admission { queue, origin, timing, inherited, may_defer }, now);
        Decision::Done
    }

    /// Admits a request whose id is unknown, if the limits allow it.
    fn admit(&mut self, core: &mut Core, new: Submission, now: Now) -> Decision {
        let Submission { item, queue, origin } = new;
        if let Some(dead) = item.over.as_deref().cloned() {
            refuse(core, *item, dead, origin, now);
            return Decision::Done;
        }
        let timing = timing(core.live.queues.settings_of(queue), &item, now);
        let received = origin.received;
        let let_in = origin.several;
        let applicant = Applicant { item: &item, queue, timing, received, replaces: false, let_in };
        match self.limits.judge(&core.live, self.settings, applicant, now) {
            LimitVerdict::Admit => {
                core.live.shared.counters_mut().tries_taken += u64::from(item.tried.retry > 0);
                let may_defer = self.may_defer(core, &item, queue);
                admission::make_room(&mut core.live, self.settings, applicant, now);
                let admission = Admission { queue, origin, timing, inherited: None, may_defer };
                core.live.admit(*item, admission, now);
                Decision::Done
            }
            LimitVerdict::Wait => Decision::NoRoom(item),
            LimitVerdict::Dead(dead) => {
                refuse(core, *item, dead, origin, now);
                Decision::Done
            }
        }
    }

    /// Whether its write may be deferred: its batch may be confirmed before.
    fn may_defer(&self, core: &Core, item: &NewItem, queue: QueueId) -> bool {
        let large = core.live.thresholds().is_large(&item.content);
        item.customer.is_none() && !self.how.draining && core.dispatch.is_free_for(&core.live, queue, large)
    }
}

/// Whether the waiting item was rescheduled after its request, which this one repeats: the later time stays.
fn has_new_time(core: &Core, request: &NewItem, live: &LiveItem) -> bool {
    let (own_time, due, accepted_due) = match live {
        LiveItem::Resident(id) => {
            let item = &core.live.items()[*id];
            (item.is(ItemFlag::OwnTime), item.key().due, item.accepted_due())
        }
        LiveItem::Far(stored) => (stored.own_time, stored.key.due, stored.accepted_due),
    };
    own_time && (due != accepted_due || request.at.is_none())
}

/// The planned end of the window that a replaced item leaves. Else a producer that replaces its item
/// repeatedly would keep its customer's window open indefinitely.
fn inherited_window(core: &Core, item: &NewItem, live: &LiveItem, now: Now) -> Option<u64> {
    let customer = item.customer.as_deref().filter(|_| !mutated(Mutant::WindowNotInherited))?;
    match live {
        LiveItem::Resident(id) => {
            let old = &core.live.items()[*id];
            let same = old.customer().filter(|id| *core.live.customers()[*id].name == *customer)?;
            matches!(old.stage(), Stage::Windowed { .. })
                .then(|| core.live.customers().window(same).map(|window| window.end()))
                .flatten()
        }
        LiveItem::Far(stored) => {
            let same = stored.is_windowed() && stored.customer.as_deref() == Some(customer);
            (same && stored.due > now.wall).then_some(stored.due)
        }
    }
}

/// Drops the request; the known item stays.
fn drop_duplicate(core: &mut Core, rule: DuplicateRule, origin: Origin) -> Decision {
    core.live.shared.counters_mut().duplicates[rule as usize].dropped += 1;
    // It may be a redelivery: the item for which it is dropped must be safe first.
    if mutated(Mutant::DuplicateAckedTooSoon) {
        core.live.shared.journal.safe(origin.delivery);
    } else {
        core.live.shared.journal.safe_once_durable(origin.delivery);
    }
    Decision::Done
}

/// Dead-letters a request for which there is no room, and remembers its id as that of a dead item.
fn refuse(core: &mut Core, item: NewItem, dead: Dead, origin: Origin, now: Now) {
    let (identity, fingerprint) = (item.identity, item.fingerprint);
    let application: Arc<str> = (&*item.application).into();
    let ended = Ended {
        end: End::Dead(Arc::new(dead.clone())),
        at: now.wall,
        due: item.at.unwrap_or(now.wall),
        attempts: 0,
        fingerprint,
        customer: item.customer.as_deref().map(Arc::from),
    };
    let letter = reject(core, item.rejected(dead), origin, now);
    if let Some(identity) = identity.filter(|_| !mutated(Mutant::RefusedIdForgotten)) {
        let queue = core.live.queues.id(&application);
        core.remember_dead(queue, identity, letter, ended);
    }
}

/// Turns a request that was not understood, or cannot be taken, into a dead letter. Returns the arrival
/// number of that.
pub(crate) fn reject(core: &mut Core, rejected: Rejected, origin: Origin, now: Now) -> u64 {
    core.live.shared.counters_mut().rejected += 1;
    core.live.shared.counters_mut().dead[rejected.dead.reason as usize] += 1;
    let answer = rejected.reply_to.is_some().then(|| Answer::Rejected(rejected.dead.error.clone()));
    let application: Arc<str> = rejected.application.map_or_else(|| "".into(), Arc::from);
    let meant_for = (application, rejected.customer.map(Arc::from));
    let letter = core.live.admit_dead(rejected.dead, meant_for, rejected.content, origin, now);
    if let (Some(reply_to), Some(answer)) = (rejected.reply_to, answer) {
        // The dead letter acks the delivery, so the answer acks nothing.
        let delivery = Delivery { generation: 0, tag: 0 };
        let asker = Asker::Remote { delivery, redelivered: false, reply_to: Some(reply_to) };
        core.live.shared.journal.reply(Reply { asker, command: None, answer });
    }
    letter
}

/// The rules by which the counters are ordered.
const _: () = assert!(DuplicateRule::Reject as usize == 4);

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns: `coalesce`, the time, the expiry; then the due. The present moment is 10,000.
    /// Excluded: rounding down, or of what is a multiple already; rounding up to an expiry or beyond it, or
    /// none for any expiry; a due in the past.
    /// Judges promise 4.
    #[test]
    fn when_an_item_with_an_own_time_is_due() {
        for (coalesce, at, expiry, expected) in [
            (0, 12_345, None, 12_345),
            (1_000, 12_345, None, 13_000),
            (1_000, 12_001, None, 13_000),
            (1_000, 13_000, None, 13_000),
            (1_000, 12_345, Some(13_001), 13_000),
            (1_000, 12_345, Some(13_000), 12_345),
            (1_000, 12_345, Some(12_346), 12_345),
            (0, 10_000, None, 10_000),
            (0, 9_999, None, 10_000),
            (1_000, 9_001, None, 10_000),
            (3_000, 10_000, None, 10_000),
            (3_000, 10_001, None, 12_000),
            (3_000, 10_001, Some(11_000), 10_001),
            (1_000, u64::MAX, None, u64::MAX),
        ] {
            let settings = AppSettings { coalesce, ..AppSettings::default() };
            let due = own_due(&settings, at, expiry, Now { wall: 10_000, mono: 0 });
            assert_eq!(due, expected, "{at} by {coalesce}, {expiry:?}");
        }
    }
}
