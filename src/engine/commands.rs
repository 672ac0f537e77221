//! Execution of commands about one item, one customer or one application. Commands that cover many items are
//! in [`super::scans`].
//!
//! An answer leaves only once all changes before it are durable: a crash cannot make it untrue. Commands
//! about an item in flight wait for its outcome, within a time limit.

use super::health::HealthState;
use super::ids::QueueId;
use super::judge;
use super::mutant::{mutated, Mutant};
use super::scans::{end_of_cancel, Scans};
use crate::core::{listed, Core, ItemLocation, LiveItem};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use tidegate_types::event::{Found, Slowed, FOR_EVER};
use tidegate_types::{
    Answer, Asker, AssignedId, ClosedBy, Command, CustomerOf, End, Ended, Identity, Moment, Now, Rate,
    Settings, Target,
};

/// The result of executing a command.
#[derive(Debug)]
pub(crate) enum Executed {
    Answer(Answer),
    /// The command depends on the item of this identity, whose outcome is not known yet.
    Await(Identity),
    /// The command covers many items.
    Scan,
}

/// Executes a command, in its turn.
pub(crate) fn execute(
    core: &mut Core,
    scans: &mut Scans,
    settings: &Settings,
    command: &Command,
    asker: &Asker,
    found: Vec<(Identity, Found)>,
    now: Now,
) -> Executed {
    match command {
        Command::Cancel(target) => cancel(core, scans, target, end_of_cancel(asker), found, now),
        Command::Reschedule(target, due) => reschedule(core, scans, settings, target, *due, found, now),
        Command::Lookup(target) => Executed::Answer(look_up(core, scans, target, found, now)),
        Command::Flush(of) => Executed::Answer(Answer::Flushed(flush(core, of, now))),
        Command::Pause(application, end) => Executed::Answer(pause(core, settings, application, *end, now)),
        Command::Resume(application) => Executed::Answer(resume(core, application)),
        Command::PauseCustomer(of, end) => Executed::Answer(pause_customer(core, settings, of, *end, now)),
        Command::ResumeCustomer(of) => {
            let queue = core.live.queues.find(&of.application);
            let changed = queue.is_some_and(|queue| core.live.let_go(queue, &of.customer));
            Executed::Answer(Answer::Done { changed })
        }
        Command::Slow(application, rate, end) => {
            Executed::Answer(slow(core, settings, application, *rate, *end, now))
        }
        Command::Retry(application) => Executed::Answer(retry(core, application)),
        Command::CancelAll(_)
        | Command::CancelSelected(_)
        | Command::Count(_)
        | Command::CountSelected(_)
        | Command::List(_)
        | Command::TimelineQuery(_)
        | Command::FlushAll(_)
        | Command::DropParked(_) => Executed::Scan,
    }
}

/// The first of the target's identities whose item has not ended; else the first whose end is remembered.
fn find(
    core: &mut Core,
    scans: &mut Scans,
    target: &Target,
    found: Vec<(Identity, Found)>,
    now: Now,
) -> (Identity, ItemLocation) {
    let known = found.iter().any(|(_, found)| found.item.is_some() || found.ended.is_some());
    let queue = core.live.queues.find(&target.application);
    // The store's answer may contain an item of an application that has nothing in memory.
    let Some(queue) = queue.or_else(|| known.then(|| core.live.queues.id(&target.application))) else {
        return (target.identity, ItemLocation::Nowhere);
    };
    let mut found = found;
    let mut over = None;
    for identity in target.identities().into_iter().flatten() {
        let place = found.iter().position(|(asked, _)| *asked == identity);
        let found = place.map(|place| found.swap_remove(place).1);
        match core.location(identity, queue, found, now) {
            ItemLocation::Nowhere => {}
            ItemLocation::Live(live) if !is_named(core, target, identity, &live) => {}
            live @ ItemLocation::Live(_) => return (identity, scans.claim(core, live, now)),
            ended @ ItemLocation::Ended(_) => over = over.or(Some((identity, ended))),
        }
    }
    over.unwrap_or((target.identity, ItemLocation::Nowhere))
}

/// An assigned id must contain the item's due and window as well: one with another due or window was never
/// assigned.
fn is_named(core: &Core, target: &Target, identity: Identity, live: &LiveItem) -> bool {
    let assigned = match live {
        LiveItem::Resident(id) => core.live.items()[*id].assigned_id(),
        LiveItem::Far(stored) => AssignedId::of(stored.key, stored.accepted_due),
    };
    identity.is_given() || target.assigned == Some(assigned)
}

fn cancel(
    core: &mut Core,
    scans: &mut Scans,
    target: &Target,
    end: End,
    found: Vec<(Identity, Found)>,
    now: Now,
) -> Executed {
    let (identity, location) = find(core, scans, target, found, now);
    match location {
        ItemLocation::Nowhere => return Executed::Answer(dead_or_unknown(core, target)),
        ItemLocation::Ended(ended) => return Executed::Answer(Answer::Ended(ended)),
        _ if mutated(Mutant::CancelAnswersOnly) => {}
        ItemLocation::Live(LiveItem::Resident(id)) if core.is_undecided(id) => {
            return Executed::Await(identity)
        }
        ItemLocation::Live(LiveItem::Resident(id)) => core.cancel(id, end, now),
        ItemLocation::Live(LiveItem::Far(stored)) if stored.outcome_unknown => {
            return Executed::Await(identity)
        }
        ItemLocation::Live(LiveItem::Far(stored)) => core.cancel_far(&stored, end, now),
    }
    Executed::Answer(Answer::Cancelled { count: 1, in_flight: 0 })
}

/// Sets another due. An item that is in flight, or may have been delivered, keeps its own.
fn reschedule(
    core: &mut Core,
    scans: &mut Scans,
    settings: &Settings,
    target: &Target,
    due: Moment,
    found: Vec<(Identity, Found)>,
    now: Now,
) -> Executed {
    if settings.hold_max.is_some() {
        // Only the broker has the request, and would redeliver it with its old time.
        let why = "store.kind is memory: an item keeps the time of its request";
        return Executed::Answer(Answer::Unavailable(why));
    }
    let (identity, location) = find(core, scans, target, found, now);
    let live = match location {
        ItemLocation::Nowhere => return Executed::Answer(dead_or_unknown(core, target)),
        ItemLocation::Ended(ended) => return Executed::Answer(Answer::Ended(ended)),
        ItemLocation::Live(live) => live,
    };
    let (undecided, before, expiry) = match &live {
        LiveItem::Resident(id) => {
            let item = &core.live.items()[*id];
            let expiry = (item.expiry() != u64::MAX).then_some(item.expiry());
            (core.is_undecided(*id), item.due(), expiry)
        }
        LiveItem::Far(stored) => (stored.outcome_unknown, stored.due, stored.expiry),
    };
    if undecided {
        return Executed::Await(identity);
    }
    let due = match new_due(settings, &target.application, due, expiry, now) {
        Ok(due) => due,
        Err(text) => return Executed::Answer(Answer::Rejected(text.into())),
    };
    let (key, before_due) = match live {
        LiveItem::Resident(id) => {
            let item = &core.live.items()[id];
            let had = (item.key(), item.due());
            core.reschedule(id, due, now);
            had
        }
        LiveItem::Far(stored) => {
            core.live.reschedule_far(&stored, due);
            (stored.key, stored.due)
        }
    };
    scans.retimed(&target.application, key, before_due);
    Executed::Answer(Answer::Rescheduled { due, before })
}

/// Converts to UTC ms, and checks `limits.max_delay`.
fn moment(settings: &Settings, named: Moment, now: Now) -> Result<u64, String> {
    // The clock's reading is rounded down: a delay counts from the next whole millisecond.
    let (at, up) = match named {
        Moment::At(at) => (at, 0),
        Moment::After(delay) => (now.wall.saturating_add(delay), 1),
    };
    let latest = now.wall.saturating_add(settings.max_delay);
    if at > latest {
        return Err(format!("{at} is more than limits.max_delay ahead: {latest} is the latest"));
    }
    Ok(at.saturating_add(up))
}

/// The due for this moment, by the same rules as for a request of this application.
fn new_due(
    settings: &Settings,
    application: &str,
    due: Moment,
    expiry: Option<u64>,
    now: Now,
) -> Result<u64, String> {
    let at = moment(settings, due, now)?;
    let beyond = u64::from(mutated(Mutant::RescheduledToItsExpiry));
    if let Some(expiry) = expiry.filter(|expiry| at.max(now.wall) >= expiry.saturating_add(beyond)) {
        return Err(format!("the item expires at {expiry} (x-deliver-before), which is not after {at}"));
    }
    Ok(judge::own_due(settings.of(application), at, expiry, now))
}

fn look_up(
    core: &mut Core,
    scans: &mut Scans,
    target: &Target,
    found: Vec<(Identity, Found)>,
    now: Now,
) -> Answer {
    if mutated(Mutant::LookupUnknown) {
        return Answer::Unknown;
    }
    match find(core, scans, target, found, now).1 {
        ItemLocation::Nowhere => dead_or_unknown(core, target),
        ItemLocation::Ended(ended) => Answer::Ended(ended),
        ItemLocation::Live(LiveItem::Resident(id)) => Answer::Found(Box::new(listed::near(core, id))),
        ItemLocation::Live(LiveItem::Far(stored)) => Answer::Found(Box::new(listed::far(core, *stored, now))),
    }
}

/// An item without an id that is dead is found by its arrival number while its dead letter is in memory.
fn dead_or_unknown(core: &Core, target: &Target) -> Answer {
    let Some(assigned) = target.assigned else { return Answer::Unknown };
    let item = core.live.items().by_seq(assigned.seq).map(|id| &core.live.items()[id]);
    let Some(item) = item.filter(|item| item.letter().is_some() && item.assigned_id() == assigned) else {
        return Answer::Unknown;
    };
    let dead = item.letter().map(|letter| letter.dead.clone());
    let (application, customer) = core.live.row(item).address();
    match dead {
        Some(dead) if *application == *target.application => Answer::Ended(Box::new(Ended {
            end: End::Dead(dead),
            at: item.received(),
            due: item.due(),
            attempts: item.tries().attempts,
            fingerprint: item.fingerprint(),
            customer,
        })),
        Some(_) | None => Answer::Unknown,
    }
}

/// Closes the customer's open window. Returns the number of its items.
fn flush(core: &mut Core, of: &CustomerOf, now: Now) -> u64 {
    let queue = core.live.queues.find(&of.application);
    let customer = queue.and_then(|queue| core.live.queues[queue].customer(&of.customer));
    let Some(id) = customer else { return 0 };
    let Some(window) = core.live.customers().window(id) else { return 0 };
    let count = u64::from(window.count());
    if !mutated(Mutant::FlushDoesNothing) {
        core.live.close_window(id, ClosedBy::Flush, now);
    }
    count + u64::from(mutated(Mutant::FlushCountsOneMore))
}

fn pause(core: &mut Core, settings: &Settings, application: &str, end: Option<Moment>, now: Now) -> Answer {
    let until = match end_of("pause", settings, end, now) {
        Ok(until) => until,
        Err(text) => return Answer::Rejected(text.into()),
    };
    let queues = &mut core.live.queues;
    let is_new = queues.find(application).is_none_or(|queue| !queues[queue].is_paused());
    if is_new && queues.find(application).is_none() && queues.paused() >= settings.max_applications {
        return Answer::Unavailable("as many applications are paused as limits.applications allows");
    }
    let queue = queues.id(application);
    let changed = queues.at(queue).set_paused(Some(until.unwrap_or(FOR_EVER)));
    if changed && !mutated(Mutant::PauseUnhurried) {
        core.live.shared.journal.hurry();
    }
    if is_new {
        core.live.begin_evicting(queue, now);
    }
    Answer::Until { until, changed }
}

/// The end of a pause or rate, UTC ms; `None`: only a command ends it.
fn end_of(what: &str, settings: &Settings, end: Option<Moment>, now: Now) -> Result<Option<u64>, String> {
    match end.map(|end| moment(settings, end, now)) {
        Some(Ok(at)) if at <= now.wall => Err(format!("the {what} is to end at {at}, which has passed")),
        Some(at) => at.map(Some),
        None => Ok(None),
    }
}

/// Holds back the items of one customer.
fn pause_customer(
    core: &mut Core,
    settings: &Settings,
    of: &CustomerOf,
    end: Option<Moment>,
    now: Now,
) -> Answer {
    let until = match end_of("pause", settings, end, now) {
        Ok(until) => until,
        Err(text) => return Answer::Rejected(text.into()),
    };
    let queue = core.live.queues.find(&of.application);
    let is_new =
        queue.is_none_or(|queue| core.live.queues[queue].passed().held_until(&of.customer).is_none());
    let queues = &core.live.queues;
    if is_new && queues.held() >= settings.customers {
        return Answer::Unavailable("as many customers are paused as limits.customers allows");
    }
    let queue = core.live.queues.id(&of.application);
    let ends = until.unwrap_or(FOR_EVER);
    let before = core.live.hold(queue, &of.customer, ends);
    core.dispatch.paced.recheck(queue);
    Answer::Until { until, changed: before != Some(ends) }
}

/// Sets a temporary rate of an application until `end`, or restores the configured one.
fn slow(
    core: &mut Core,
    settings: &Settings,
    application: &str,
    rate: Option<Rate>,
    end: Option<Moment>,
    now: Now,
) -> Answer {
    let Some(rate) = rate else {
        let queue = core.live.queues.find(application);
        let changed = queue.is_some_and(|queue| core.live.queues.at(queue).set_slowed(None));
        queue.into_iter().for_each(|queue| core.dispatch.paced.recheck(queue));
        if changed {
            core.live.shared.journal.hurry();
        }
        return Answer::Done { changed };
    };
    let until = match end_of("rate", settings, end, now) {
        Ok(until) => until,
        Err(text) => return Answer::Rejected(text.into()),
    };
    let queues = &mut core.live.queues;
    if queues.find(application).is_none() && queues.slowed() >= settings.max_applications {
        return Answer::Unavailable("as many applications have such rates as limits.applications allows");
    }
    let queue = queues.id(application);
    let slowed = Slowed { rate, until: until.unwrap_or(FOR_EVER) };
    let changed = queues.at(queue).set_slowed(Some(slowed));
    core.dispatch.paced.recheck(queue);
    if changed {
        core.live.shared.journal.hurry();
    }
    Answer::Until { until, changed }
}

fn resume(core: &mut Core, application: &str) -> Answer {
    let Some(queue) = core.live.queues.find(application) else { return Answer::Done { changed: false } };
    if !core.live.queues.at(queue).set_paused(None) {
        return Answer::Done { changed: false };
    }
    if !mutated(Mutant::PauseUnhurried) {
        core.live.shared.journal.hurry();
    }
    core.resume(queue);
    Answer::Done { changed: true }
}

/// Sends the next probe of a parked application now. Nothing changes if there is nothing to send, or may be
/// sent.
fn retry(core: &mut Core, application: &str) -> Answer {
    let queues = &core.live.queues;
    let known = queues.find(application).filter(|id| queues[*id].total() > 0 && !queues[*id].is_paused());
    let parked = known.and_then(|id| until(core, id).map(|until| (id, until)));
    let Some((queue, until)) = parked else { return Answer::Done { changed: false } };
    core.dispatch.retry_now(&mut core.live, queue, until);
    Answer::Done { changed: true }
}

fn until(core: &Core, queue: QueueId) -> Option<u64> {
    match core.live.queues[queue].active()?.health().state() {
        HealthState::Parked { until } => Some(*until),
        HealthState::Unproven | HealthState::Proven { .. } => None,
    }
}
