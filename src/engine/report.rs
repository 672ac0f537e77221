//! Fills in the structs of [`tidegate_types::snapshot`] with the state at one moment.

use super::health::HealthState;
use super::ids::QueueId;
use super::queue::{ActiveQueue, Queue};
use crate::core::Core;
use alloc::string::ToString;
use alloc::vec::Vec;
use tidegate_types::event::FOR_EVER;
use tidegate_types::snapshot::{Application, Deliverability, ItemCounts, Snapshot};
use tidegate_types::Now;

/// The state at this moment. The cost is proportional to the number of applications that have items, not to
/// the number of items; the full figures are computed only for the applications that are reported.
pub(crate) fn take(core: &Core, intake_paused: bool, now: Now) -> Snapshot {
    let live = &core.live;
    let queues = &live.queues;
    let dead = queues.dead_letters();
    let wanted = |id: &QueueId| {
        let queue = &queues[*id];
        queue.total() > 0
            || queue.is_paused()
            || queue.slowed().is_some()
            || queue.passed().held() > 0
            || queue.active().is_some()
    };
    let mut names: Vec<(&str, QueueId)> = Vec::new();
    let (mut parked, mut in_flight, mut oldest) = (0, 0, None::<u64>);
    for id in queues.ids().filter(|id| *id != dead).filter(wanted) {
        let queue = &queues[id];
        parked += parked_of(queue, now);
        in_flight += queue.active().map_or(0, |active| active.flights().items());
        if !queue.is_held_back() && queue.paced_until().is_none() {
            oldest = [oldest, oldest_due(core, id, now)].into_iter().flatten().min();
        }
        names.push((queue.name(), id));
    }
    let applications_total = names.len() as u64;
    if names.len() > Snapshot::MAX_APPLICATIONS {
        // The first by name; those left out need not be sorted.
        names.select_nth_unstable(Snapshot::MAX_APPLICATIONS);
        names.truncate(Snapshot::MAX_APPLICATIONS);
    }
    names.sort_unstable();
    let applications = names.into_iter().map(|(_, id)| application(core, id, now)).collect();
    Snapshot {
        items: ItemCounts {
            waiting: queues.total().saturating_sub(parked),
            in_memory: live.items().len() as u64,
            due: queues.ready_rows(),
            in_flight,
            parked,
            windows: live.customers().open_windows(),
            next_due_at: live.shared.next_due(),
            oldest_due_at: oldest,
            loaded_until_at: now.wall.saturating_add(super::live::HORIZON_MS),
            payload_bytes: live.items().content_bytes(),
        },
        in_flight_batches: core.dispatch.egress.slots() as u64,
        intake_paused,
        uncommitted: live.shared.journal.uncommitted(),
        longest_turn_us: 0,
        totals: live.shared.counters().clone(),
        applications,
        applications_total,
        dead_letters: (queues[dead].total() > 0).then(|| application(core, dead, now)),
    }
}

/// Whether an item is due that nothing holds back at this moment: its application is not held back, and waits
/// for no confirm, slot or channel. Such an item was overlooked if it stays so for long. The dead-letter
/// queue does not count. An application may wait for its turn while others are sent: the caller asks only
/// while nothing is sent. The cost is proportional to the number of applications that have items.
pub(crate) fn is_overlooked(core: &Core, now: Now) -> bool {
    let live = &core.live;
    let queues = &live.queues;
    if !core.dispatch.egress.has_room() {
        return false;
    }
    let dead = queues.dead_letters();
    let is_due = |id: QueueId| {
        let queue = &queues[id];
        let active = queue.active();
        let ready =
            active.is_some_and(|active| !active.ready().is_empty() || active.flights().under_way() > 0);
        // If memory is full, items in the store wait for items in flight or in windows, and stalled items
        // wait for them.
        ready || (queue.far() > 0 && queue.near_until().due <= now.wall && live.shared.free_rows() > 0)
    };
    let mut ids = queues.ids().filter(|id| *id != dead && queues[*id].total() > 0);
    ids.any(|id| is_due(id) && core.dispatch.could_send(live, id))
}

fn application(core: &Core, id: QueueId, now: Now) -> Application {
    let queue = &core.live.queues[id];
    let (name, delivery) = (queue.name().to_string(), delivery(queue, now));
    let (total, paused, oldest_due_at) = (queue.total(), queue.is_paused(), oldest_due(core, id, now));
    let slowed = queue.slowed();
    let rate = slowed.map(|slowed| slowed.rate).or(core.live.queues.settings_of(id).rate);
    let base = Application {
        name,
        delivery,
        total,
        paused,
        paused_until: queue.paused_until(),
        paused_customers: queue.passed().held(),
        rate: rate.filter(|_| id != core.live.queues.dead_letters()).map(|rate| rate.to_string()),
        rate_until: slowed.map(|slowed| slowed.until).filter(|until| *until < FOR_EVER),
        oldest_due_at,
        ..Application::default()
    };
    let Some(active) = queue.active() else { return Application { waiting: total, ..base } };
    let (parked, in_flight) = (parked_of(queue, now), active.flights().items());
    // Due items of a failing application count as parked.
    let due = if queue.is_failing() { 0 } else { active.ready().all_items() };
    let (held, held_until) = if paused || queue.is_failing() { (0, None) } else { held(core, active) };
    Application {
        held,
        held_until: held_until.map(|until| now.wall + until.saturating_sub(now.mono)),
        waiting: total.saturating_sub(due + in_flight + parked),
        due,
        in_flight,
        parked,
        windows: active.windows().len() as u64,
        confirmed: active.sent(),
        ..base
    }
}

/// Number of due items that a rate holds back, and when the next of them leaves, monotonic ms.
fn held(core: &Core, active: &ActiveQueue) -> (u64, Option<u64>) {
    let ready = active.ready();
    let of_queue = active.pace().waits_until().map(|until| (ready.items(), until));
    let aside = ready.aside().iter().filter_map(|id| core.live.customers().get(*id));
    let of_customers = aside.filter_map(|customer| Some((u64::from(customer.due), customer.paced_until()?)));
    of_queue.into_iter().chain(of_customers).fold((0, None), |(held, first), (items, until)| {
        (held + items, Some(first.map_or(until, |first: u64| first.min(until))))
    })
}

/// Number of parked items of a queue.
fn parked_of(queue: &Queue, now: Now) -> u64 {
    let active = queue.active().filter(|_| queue.is_failing());
    active.map_or(0, |active| due_behind(queue, active.ready().all_items(), now))
}

/// The earliest due among the items that are due and not confirmed.
fn oldest_due(core: &Core, id: QueueId, now: Now) -> Option<u64> {
    let queue = &core.live.queues[id];
    let (ready, far) = match queue.active() {
        Some(_) => (core.live.first_due(id), queue.far() > 0),
        None => (None, true),
    };
    let far = far.then(|| queue.low_of_free().due);
    ready.into_iter().chain(far).min().filter(|due| *due <= now.wall && queue.total() > 0)
}

/// Number of due items of a queue, `ready` of which are in memory.
fn due_behind(queue: &Queue, ready: u64, now: Now) -> u64 {
    ready + queue.far_due(now.wall)
}

fn delivery(queue: &Queue, now: Now) -> Deliverability {
    let Some(health) = queue.active().map(|active| active.health()) else { return Deliverability::Unproven };
    let until = match health.state() {
        HealthState::Proven { .. } => return Deliverability::Open,
        HealthState::Unproven if !health.is_failing() => return Deliverability::Unproven,
        // Nothing waits for the next try.
        HealthState::Unproven | HealthState::Parked { .. } if queue.total() == 0 => {
            return Deliverability::Unproven
        }
        HealthState::Unproven => now.mono,
        HealthState::Parked { until } => *until,
    };
    Deliverability::Parked {
        next_try_in_ms: until.saturating_sub(now.mono),
        failures: health.failures(),
        last_error: health.last_error().map(ToString::to_string).unwrap_or_default(),
    }
}
