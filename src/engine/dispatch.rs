//! Dispatch: forms batches of due items and hands them to the publisher.
//!
//! A queue with something to send is in the run queue, and sends one batch each time it is taken, so that a
//! large backlog of one delays no other. Every batch takes a slot of the publisher; none is formed without a
//! free slot. The first batch of an unproven or failing queue is sent alone, on one of a few separate
//! channels, so that its outcome affects no other batch. The same holds for a batch that was unconfirmed on a
//! channel that the broker closed.
//!
//! Guarantee: a batch whose outcome is unknown is sent again with the same members, hence under the same
//! batch id; receivers drop the repeat by item id. [`crate::core`] decides what an outcome means.

mod channels;
mod egress;
mod flight;
mod given_up;
mod paced;
mod pauses;

use super::ids::{ItemId, QueueId};
use super::items::{reported_due, Stage};
use super::live::LiveItems;
use super::mutant::{mutated, Mutant};
use super::pace::Waited;
use super::queue::{Condition, QueueFlights};
use alloc::collections::{BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use tidegate_types::event::Load;
use tidegate_types::{Batch, BatchItem, Content, Now, Settings};

use channels::SoloChannels;
pub(crate) use egress::Egress;
use flight::FlightState;
pub(crate) use flight::{Candidate, Flight, Flights};
use paced::PacedQueues;
pub(crate) use pauses::shorten_backoffs;

/// A formed batch gives its slot back if its rate would hold it back for longer than this, ms.
const LONG_HOLD_MS: u64 = 1_000;

/// A probe that is unconfirmed for longer than this is slow, ms: due items of its queue are evicted from
/// memory, and other queues may take its channel.
const LATE_PROBE_MS: u64 = 500;

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Dispatch {
    pub(crate) egress: Egress,
    pub(crate) flights: Flights,
    /// Flights to be sent alone, in order.
    suspects: VecDeque<u64>,
    channels: SoloChannels,
    /// Queues in back-off, by its end, monotonic ms.
    backoffs: BTreeSet<(u64, QueueId)>,
    /// Batches that wait for their rates.
    pub(crate) paced: PacedQueues,
    /// Arrival numbers of items whose payloads must be read from the store.
    lacking: Vec<u64>,
}

impl Dispatch {
    pub(crate) fn new(settings: &Settings) -> Self {
        let mut dispatch = Dispatch {
            egress: Egress::default(),
            flights: Flights::new(),
            suspects: VecDeque::new(),
            channels: SoloChannels::new(),
            backoffs: BTreeSet::new(),
            paced: PacedQueues::default(),
            lacking: Vec::new(),
        };
        dispatch.configure(settings);
        dispatch
    }

    pub(crate) fn configure(&mut self, settings: &Settings) {
        self.egress.configure(settings);
        self.channels.configure(settings.max_in_flight);
    }

    pub(crate) fn set_blocked(&mut self, blocked: bool, now: Now) {
        self.egress.set_blocked(blocked);
        if !blocked {
            self.channels.unblocked(now);
        }
    }

    /// Whether an item of this queue that is due at once will probably be confirmed before it has to be
    /// written: a small one is sent at once; large ones have been in time so far, however many wait.
    pub(crate) fn is_free_for(&self, live: &LiveItems, queue: QueueId, large: bool) -> bool {
        let queue = &live.queues[queue];
        let Some(active) = queue.active() else { return false };
        self.egress.is_open()
            && !queue.is_held_back()
            && !active.health().needs_probe()
            && active.pace().waits_until().is_none()
            && active.flights().first_to_resend().is_none()
            && active.flights().suspects() == 0
            && match large {
                true => !active.is(Condition::Lagging),
                false => self.egress.has_slots_behind(active.ready().len()),
            }
    }

    /// Whether no reported cause holds back a batch of this queue: the queue is not held back by a pause or
    /// its rate, nothing of it is at the broker, and there is a slot and, if needed, a channel. Whether
    /// egress is open does not count.
    pub(crate) fn could_send(&self, live: &LiveItems, id: QueueId) -> bool {
        let queue = &live.queues[id];
        if queue.is_held_back() || queue.paced_until().is_some() || !self.egress.has_room() {
            return false;
        }
        let Some(active) = queue.active() else { return true };
        let flights = active.flights();
        let alone = active.health().needs_probe() || flights.suspects() > 0;
        !active.is(Condition::Moving)
            && flights.slots() == flights.fetching().count()
            && (!alone || self.channels.has_room(queue.is_failing()))
    }

    fn may_send(&self, live: &LiveItems, id: QueueId, now: Now) -> bool {
        let queue = &live.queues[id];
        let Some(active) = queue.active() else {
            debug_assert!(false, "a queue is active in its turn");
            return false;
        };
        (!queue.is_paused() || mutated(Mutant::PausedIsPublished))
            && (active.flights().suspects() == 0 || mutated(Mutant::SuspectsOvertaken))
            && !active.flights().has_recalled()
            && !active.is(Condition::Moving)
            && active.health().may_send(active.flights().slots(), self.egress.share(), now.mono)
            && self.egress.has_room_beside(active.flights().slots(), active.flights().bytes())
    }

    /// The next batch that may be sent: a suspect, a repeat, or a new one. `None`: no slot, or nothing to
    /// send.
    pub(crate) fn next(&mut self, live: &mut LiveItems, now: Now) -> Option<Candidate> {
        if !self.egress.has_slot() {
            return None;
        }
        if let Some(candidate) = self.next_suspect(live) {
            return Some(candidate);
        }
        self.call_for_channel(live);
        loop {
            while let Some(queue) = live.queues.next_to_run() {
                if let Some(candidate) = self.next_in_line(live, queue, now) {
                    return Some(candidate);
                }
            }
            // The queue that got the channel may have nothing to send any more.
            if !self.call_for_channel(live) {
                return None;
            }
        }
    }

    fn next_in_line(&mut self, live: &mut LiveItems, queue: QueueId, now: Now) -> Option<Candidate> {
        let active = live.queues.at(queue).at_work();
        if active.flights().slots() == 0 {
            active.health_mut().rest(now.mono);
        }
        if !self.may_send(live, queue, now) {
            return None;
        }
        if self.paces(live, queue, now) {
            return None;
        }
        let health = live.queues.at(queue).at_work().health();
        let (alone, failing) = (health.needs_probe(), health.is_failing());
        if alone && !self.channels.has_room(failing) {
            self.channels.wait(queue, failing);
            return None;
        }
        let candidate = self.next_of(live, queue, alone, now);
        if candidate.is_none() {
            live.queues.at(queue).mark_for_loader();
            if live.queues.at(queue).at_work().pace().wanted() > 1 {
                // The next batch is larger than the rate allows now.
                self.paces(live, queue, now);
            }
        }
        candidate
    }

    /// Puts the next queue that waits for a channel into the run queue. False: there is none, or no channel.
    fn call_for_channel(&mut self, live: &mut LiveItems) -> bool {
        let Some(queue) = self.channels.next_waiting() else { return false };
        if live.queues.get(queue).is_some() {
            live.queues.at(queue).run();
        }
        true
    }

    /// Suspects that may be sent, by their place in the list and queue: the queue is not paused and has no
    /// batch on a separate channel. Else a queue that never confirms would take all channels, and suspects of
    /// other queues would wait for its confirms.
    fn waiting_suspects<'a>(&'a self, live: &'a LiveItems) -> impl Iterator<Item = (usize, QueueId)> + 'a {
        let queue_of = |number: u64| self.flights.get(number).map(|flight| flight.queue);
        let taken = self.channels.taken().filter(|_| !self.suspects.is_empty());
        let busy: BTreeSet<QueueId> = taken.filter_map(|(number, _)| queue_of(number)).collect();
        let of = move |(place, number): (usize, &u64)| Some((place, queue_of(*number)?));
        self.suspects.iter().enumerate().filter_map(of).filter(move |(_, queue)| {
            !busy.contains(queue) && (!live.queues[*queue].is_paused() || mutated(Mutant::PausedSuspectsGo))
        })
    }

    fn next_suspect(&mut self, live: &mut LiveItems) -> Option<Candidate> {
        let rooms = [false, true].map(|failing| self.channels.has_room(failing));
        if self.suspects.is_empty() || rooms == [false, false] {
            return None;
        }
        let has_room = |queue: QueueId| rooms[usize::from(live.queues[queue].is_failing())];
        let (place, _) = self.waiting_suspects(live).find(|(_, queue)| has_room(*queue))?;
        let number = self.suspects.remove(place)?;
        let candidate = self.again(number, true)?;
        Some(Candidate { suspect: true, ..candidate })
    }

    fn again(&mut self, number: u64, alone: bool) -> Option<Candidate> {
        let flight = self.flights.get_mut(number)?;
        Some(Candidate {
            number: Some(number),
            queue: flight.queue,
            rows: core::mem::take(&mut flight.rows),
            alone,
            before: Some((flight.format, flight.publishes)),
            suspect: false,
        })
    }

    fn next_of(&mut self, live: &mut LiveItems, queue: QueueId, alone: bool, now: Now) -> Option<Candidate> {
        let later =
            mutated(Mutant::NewOvertakesFailed) && !live.queues.at(queue).at_work().ready().is_empty();
        while let Some(number) =
            live.queues.at(queue).at_work().flights_mut().take_to_resend().filter(|_| !later)
        {
            if let Some(candidate) = self.again(number, alone) {
                return Some(candidate);
            }
        }
        let most = if live.queues[queue].is_failing() { live.thresholds().probe } else { usize::MAX };
        let rows = live.at(queue).take_batch(most, now);
        let new = Candidate { number: None, queue, rows, alone, before: None, suspect: false };
        (!new.rows.is_empty()).then_some(new)
    }

    /// Drops a candidate of which nothing may be sent.
    pub(crate) fn drop_candidate(&mut self, live: &mut LiveItems, candidate: &Candidate) {
        candidate.number.into_iter().for_each(|number| {
            self.flights.end(number);
        });
        if candidate.suspect && !mutated(Mutant::DroppedSuspectCounts) {
            live.queues.at(candidate.queue).at_work().flights_mut().remove_suspects(1);
        }
        live.queues.at(candidate.queue).requeue();
    }

    /// Gives a candidate a slot, and publishes it, or first fetches the payloads that it lacks. Later batches
    /// of the same queue wait behind one that fetches, to keep their order.
    pub(crate) fn send(
        &mut self,
        live: &mut LiveItems,
        candidate: Candidate,
        now: Now,
        out: &mut Vec<Batch>,
    ) {
        let Candidate { number, queue, rows, alone, before, suspect } = candidate;
        let number = number.unwrap_or_else(|| self.flights.number(rows.len()));
        let (mut bytes, mut lacking) = (0, Vec::new());
        for id in &rows {
            live.home_of(*id).set_flying(*id, Some(number));
            let item = &live.items()[*id];
            bytes += item.content().map_or(u64::from(item.weight()), |content| content.size());
            if item.content().is_none() {
                lacking.push(item.key().seq);
            }
        }
        let settings_format = live.queues.settings_of(queue).format;
        let (format, publishes) = before.unwrap_or((settings_format, 0));
        let state = FlightState::Fetching { missing: lacking.len(), alone };
        let (count, since) = (rows.len() as u64, now.mono);
        // By the wall clock, as dues are: lateness after this time is not caused by the rate.
        let wall = |mono: u64| now.wall.saturating_sub(now.mono.saturating_sub(mono));
        let customer = live.items()[rows[0]].customer();
        let of_queue = live.queues.at(queue).at_work().pace_mut().form(count, now.mono);
        let bound = live.queues.settings_of(queue).customer_bound();
        let of_customer = customer.and_then(|id| live.shared.customers.form(id, bound, count, now));
        let forgotten = live.shared.customers.look_at_debts(now.mono);
        live.shared.counters_mut().rates_forgotten += forgotten;
        let held = of_queue
            .into_iter()
            .chain(of_customer)
            .reduce(|one, other| Waited { from: one.from.min(other.from), until: one.until.max(other.until) })
            .map(|waited| [wall(waited.from), wall(waited.until)]);
        let flight =
            Flight { queue, customer, rows, bytes, format, publishes, state, since, held, recalled: false };
        self.flights.insert(number, flight);
        self.egress.take_slot(bytes, live.queues.at(queue).at_work().flights().bytes());
        if alone {
            self.channels.take(number, live.queues[queue].is_failing(), bytes, now);
        }
        let queue_flights = live.queues.at(queue).at_work().flights_mut();
        queue_flights.add_items(count);
        queue_flights.take_slot(bytes);
        queue_flights.remove_suspects(usize::from(suspect));
        let behind = queue_flights.first_fetching().is_some() && !mutated(Mutant::FetchingOvertaken);
        let waits = !lacking.is_empty() || behind;
        if waits {
            // Repeats go before new batches, in the order in which they were formed; suspects go first.
            let flights = &self.flights;
            let is_alone = |other: u64| {
                let state = flights.get(other).map(|flight| flight.state);
                matches!(state, Some(FlightState::Fetching { alone: true, .. }))
            };
            queue_flights.fetch(number, |other| is_alone(other) || (!suspect && other < number));
            self.lacking.append(&mut lacking);
        } else {
            self.launch(live, number, now, out);
        }
        live.queues.at(queue).run();
    }

    /// The read for the payloads that flights wait for.
    pub(crate) fn take_lacking(&mut self, live: &LiveItems) -> Option<Load> {
        if self.lacking.is_empty() {
            return None;
        }
        let lacking = core::mem::take(&mut self.lacking);
        let place = |seq: u64| Some((seq, live.row(&live.items()[live.items().by_seq(seq)?]).place()));
        Some(Load::Contents(lacking.into_iter().filter_map(place).collect()))
    }

    /// Takes loaded payloads. Returns the queues whose flights may be complete now.
    pub(crate) fn content_loaded(
        &mut self,
        live: &mut LiveItems,
        contents: Vec<(u64, Arc<Content>)>,
    ) -> BTreeSet<QueueId> {
        let mut queues = BTreeSet::new();
        for (seq, content) in contents {
            let Some(id) = live.items().by_seq(seq) else { continue };
            if live.items()[id].content().is_some() {
                continue;
            }
            let Stage::Flying(number) = live.items()[id].stage() else { continue };
            let Some(flight) = self.flights.get_mut(number) else { continue };
            let FlightState::Fetching { missing, .. } = &mut flight.state else { continue };
            *missing = missing.saturating_sub(1);
            queues.insert(flight.queue);
            live.shared.set_content(id, content);
        }
        queues
    }

    /// The first flight of the queue, if its payloads are complete: its number and members. The caller checks
    /// the members again, since time has passed, and launches or withdraws the flight.
    pub(crate) fn next_fetched(
        &mut self,
        live: &mut LiveItems,
        queue: QueueId,
        now: Now,
    ) -> Option<(u64, Vec<ItemId>)> {
        let number = live.queues.at(queue).at_work().flights().first_fetching()?;
        let Some(flight) = self.flights.get_mut(number) else {
            live.queues.at(queue).at_work().flights_mut().fetched(false);
            return self.next_fetched(live, queue, now);
        };
        let FlightState::Fetching { missing: 0, alone } = flight.state else { return None };
        let pace = live.queues.at(queue).at_work().pace();
        let leaves_at = pace.may_leave_at(flight.rows.len() as u64);
        let new = flight.publishes == 0;
        if new && leaves_at > now.mono + LONG_HOLD_MS {
            // Its rate was lowered since it was formed: others need its slot.
            let was_recalled = core::mem::replace(&mut flight.recalled, true);
            live.queues.at(queue).at_work().flights_mut().fetched(was_recalled);
            return Some((number, core::mem::take(&mut flight.rows)));
        }
        if leaves_at > now.mono && !alone && !flight.recalled {
            // Batches before it left late, since they waited for their payloads too.
            self.paced.wait_to_leave(queue, leaves_at);
            return None;
        }
        live.queues.at(queue).at_work().flights_mut().fetched(flight.recalled);
        Some((number, core::mem::take(&mut flight.rows)))
    }

    /// Launches the flight with the members that are left after that check, or sets it back if egress has
    /// closed since.
    pub(crate) fn launch_fetched(
        &mut self,
        live: &mut LiveItems,
        number: u64,
        rows: Vec<ItemId>,
        now: Now,
        out: &mut Vec<Batch>,
    ) {
        let Some(flight) = self.flights.get_mut(number) else { return };
        let (queue, left) = (flight.queue, rows.len() as u64);
        let FlightState::Fetching { alone, .. } = flight.state else {
            debug_assert!(false, "a flight is launched once");
            return;
        };
        flight.rows = rows;
        // Batches that have failed since go before it.
        let known = &live.queues[queue];
        let before = |flights: &QueueFlights| {
            flights.suspects() > 0 || flights.first_to_resend().is_some_and(|first| first < number)
        };
        let behind = !mutated(Mutant::FetchedOvertakesFailed)
            && !alone
            && known.active().is_some_and(|active| before(active.flights()));
        if left > 0 && self.egress.is_open() && !known.is_paused() && !behind {
            self.launch(live, number, now, out);
        } else {
            self.flights.refund(live, number, left);
            self.free_slot(live, number, left);
            if left == 0 {
                self.flights.end(number);
            } else {
                self.try_again(live, number, alone);
            }
        }
        live.queues.at(queue).requeue();
    }

    /// Ends a flight whose payloads were fetched; the caller returns its members to the queue.
    pub(crate) fn withdraw(&mut self, live: &mut LiveItems, number: u64, rows: u64) {
        self.flights.refund(live, number, rows);
        self.free_slot(live, number, rows);
        self.flights.end(number);
    }

    /// Hands a flight to the publisher.
    fn launch(&mut self, live: &mut LiveItems, number: u64, now: Now, out: &mut Vec<Batch>) {
        let Some(flight) = self.flights.get_mut(number) else { return };
        let FlightState::Fetching { alone, .. } = flight.state else {
            debug_assert!(false, "a flight is launched once");
            return;
        };
        flight.publishes += 1;
        flight.state = FlightState::Out { alone };
        self.channels.launched(number, now);
        let queue = flight.queue;
        let count = flight.rows.len() as u64;
        live.queues.at(queue).at_work().pace_mut().leave(count, now.mono);
        live.shared.customers.leave(flight.customer, count, now.mono);
        let mut items = Vec::with_capacity(flight.rows.len());
        let mut attempt = flight.publishes;
        for id in &flight.rows {
            let content = live.shared.lend_content(*id);
            let item = &live.items()[*id];
            attempt = attempt.max(if mutated(Mutant::AttemptAnew) { 0 } else { item.tries().attempts + 1 });
            debug_assert!(content.is_some(), "a batch is published whole");
            items.push(BatchItem {
                seq: item.key().seq,
                window: item.key().window,
                accepted_due: item.accepted_due(),
                due: reported_due(item),
                received: item.received(),
                attempts: item.tries().attempts,
                retry: item.tries().retry,
                content: content.unwrap_or_default(),
            });
        }
        live.shared.counters_mut().batches_published += 1;
        let first = &live.items()[flight.rows[0]];
        let dead = first.letter().map(|letter| Arc::clone(&letter.dead));
        let (application, customer) = live.row(first).address();
        out.push(Batch {
            number,
            application,
            customer,
            dead,
            format: flight.format,
            closed_by: first.closed_by(),
            attempt,
            due: items[0].due,
            held: flight.held,
            alone,
            items,
        });
    }

    /// The publish of a flight has ended: frees its slot. Returns whether it was alone. Each publish ends
    /// once; `None`: this one had ended.
    pub(crate) fn landed(&mut self, live: &mut LiveItems, number: u64) -> Option<bool> {
        let flight = self.flights.get(number)?;
        let FlightState::Out { alone } = flight.state else { return None };
        let (queue, count) = (flight.queue, flight.rows.len() as u64);
        self.free_slot(live, number, count);
        live.queues.at(queue).requeue();
        Some(alone)
    }

    fn free_slot(&mut self, live: &mut LiveItems, number: u64, rows: u64) {
        let Some(flight) = self.flights.get(number) else {
            debug_assert!(false, "a flight does not end before its slot is free");
            return;
        };
        let (queue, bytes, was_alone) = (flight.queue, flight.bytes, self.channels.release(number));
        let active = live.queues.at(queue).at_work();
        active.flights_mut().remove_items(rows);
        active.flights_mut().free_slot(bytes);
        self.egress.free_slot(bytes, active.flights().bytes());
        if active.flights().slots() == 0 && active.ready().is_empty() {
            active.set(Condition::Lagging, false);
        }
        if was_alone && !mutated(Mutant::HindranceStays) && active.set(Condition::SlowProbe, false) {
            live.at(queue).unstall();
        }
    }

    /// Sends a flight again unchanged. It is sent alone if it was alone and its queue is sound, or if other
    /// suspects of its queue wait: the order among them stays.
    pub(crate) fn try_again(&mut self, live: &mut LiveItems, number: u64, alone: bool) {
        let Some(queue) = self.flights.get(number).map(|flight| flight.queue) else {
            debug_assert!(false, "a flight that has ended is not sent again");
            return;
        };
        let active = live.queues.at(queue).at_work();
        let first = alone && !active.health().needs_probe();
        if first || active.flights().suspects() > 0 && !mutated(Mutant::SuspectsOvertakeRepeats) {
            self.suspect(live, number, first);
        } else {
            self.send_again(live, number);
        }
    }

    /// Sends a flight again unchanged, before new batches of its queue.
    fn send_again(&mut self, live: &mut LiveItems, number: u64) {
        let Some(flight) = self.flights.get_mut(number) else { return };
        flight.state = FlightState::Resend;
        live.queues.at(flight.queue).at_work().flights_mut().resend(number);
        let queue = flight.queue;
        live.queues.at(queue).requeue();
    }

    /// Adds a flight to the suspects, which are sent alone.
    pub(crate) fn suspect(&mut self, live: &mut LiveItems, number: u64, first: bool) {
        let Some(flight) = self.flights.get_mut(number) else { return };
        flight.state = FlightState::Suspect;
        live.queues.at(flight.queue).at_work().flights_mut().add_suspect();
        if first {
            self.suspects.push_front(number);
        } else {
            let at = self.suspects.partition_point(|other| *other < number);
            self.suspects.insert(at, number);
        }
    }

    /// The broker refuses one of its members: splits the flight and sends both halves alone. False: it has
    /// only one member.
    pub(crate) fn split(&mut self, live: &mut LiveItems, number: u64) -> bool {
        let Some(flight) = self.flights.get_mut(number).filter(|flight| flight.rows.len() > 1) else {
            return false;
        };
        let rows = flight.rows.split_off(flight.rows.len() / 2);
        flight.bytes /= 2;
        let half = Flight { rows, state: FlightState::Suspect, ..*flight };
        let later = if mutated(Mutant::HalfGoesLast) { 1 << 32 } else { 0 };
        let other = number + flight.rows.len() as u64 + later;
        half.rows.iter().for_each(|id| live.home_of(*id).set_flying(*id, Some(other)));
        self.flights.insert(other, half);
        self.suspect(live, other, true);
        self.suspect(live, number, true);
        true
    }

    /// Removes an item that ends from its flight, which waits for its next try. The flight ends with its last
    /// item.
    pub(crate) fn leave(&mut self, live: &mut LiveItems, id: ItemId) {
        let Stage::Flying(number) = live.items()[id].stage() else { return };
        let Some(flight) = self.flights.get_mut(number) else { return };
        debug_assert!(!flight.state.holds_slot(), "what is in flight has no end yet");
        flight.rows.retain(|other| *other != id);
        if !flight.rows.is_empty() {
            return;
        }
        let (queue, state) = (flight.queue, flight.state);
        self.flights.end(number);
        let flights = live.queues.at(queue).at_work().flights_mut();
        match state {
            FlightState::Suspect => {
                flights.remove_suspects(usize::from(!mutated(Mutant::EmptiedSuspectCounts)));
                self.suspects.retain(|other| *other != number);
            }
            FlightState::Resend => flights.forget_resend(number),
            FlightState::Fetching { .. } | FlightState::Out { .. } => {}
        }
        live.queues.at(queue).requeue();
    }

    /// Nothing is in flight or waits for a slot. Items of a paused application do not count: they leave only
    /// after a resume.
    pub(crate) fn is_idle(&self, live: &LiveItems) -> bool {
        // A broker that takes nothing more still confirms what it has taken.
        let waits = || live.queues.is_anything_running() || self.waiting_suspects(live).next().is_some();
        self.egress.slots() == 0 && !(self.egress.is_open() && waits())
    }
}
