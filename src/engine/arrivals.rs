//! Requests and commands that have come in and have not been judged, in order of arrival.
//!
//! A request whose id is not in memory, and may be in the store, waits for the store's answer, and later
//! arrivals wait behind it: this keeps the order of arrival, and two requests with one id see each other. The
//! store is asked for many ids at a time, ahead of their turn; a reply that is stale on arrival is discarded,
//! and the store is asked again ([`super::reads::Watch`]).
//!
//! A request that depends on an item in flight waits, outside the lines, until that attempt has ended.
//! Arrivals by message stay unacked during that time, and an attempt need not end: so only a share of the
//! prefetch may wait, for all applications together and for each ([`super::waits`]). Beyond that share, and
//! after [`REQUEST_MS`], requests are decided without the outcome.
//!
//! Local commands have a separate line: they proceed while requests wait for room.

mod line;

use super::items::NumberMap;
use super::lookup::Lookup;
use super::mutant::{mutated, Mutant};
use super::reads::{Asked, ReadLine, Watch, Worth};
use super::waits::{Waiter, Waits};
use crate::core::Core;
use crate::live::Origin;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
pub(crate) use line::{Arrival, LineName};
use tidegate_types::event::{Found, Load, Wanted};
use tidegate_types::{Asker, Command, Ended, Identity, NewItem, Now};

/// How long a request waits for an outcome, ms: far below the broker's consumer timeout (30 minutes), after
/// which the broker would take back all that is unacked.
pub(crate) const REQUEST_MS: u64 = 300_000;

/// Number of waiting identities that cost a cancel as much time as it takes to judge another arrival.
const AS_ONE: usize = 64;

/// What the store has reported about an arrival's identities.
#[derive(Debug)]
enum Knowledge {
    /// The store has not been asked, and may not have to be.
    Unasked,
    /// The store has been asked, and has not answered.
    Asked(Vec<Asked>),
    /// The store has answered.
    Known(Vec<Asked>, Vec<Found>),
}

/// An arrival, and its number in the order of all arrivals, which it keeps.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) place: u64,
    /// When its wait for an outcome ends, monotonic ms, once it has begun one.
    pub(crate) until: Option<u64>,
    pub(crate) arrival: Arrival,
}

#[derive(Debug)]
struct LineEntry {
    placed: Placed,
    knowledge: Knowledge,
    /// It is decided without a wait for an outcome.
    at_once: bool,
}

/// One line of arrivals, in order of their places, by which answers find their entries.
#[derive(Debug, Default)]
struct Line {
    entries: VecDeque<LineEntry>,
    /// Number of entries, from the first on, that have been examined ahead of their turn.
    ahead: usize,
}

/// The next arrival to be judged.
#[derive(Debug)]
pub(crate) struct Next {
    pub(crate) placed: Placed,
    /// The store's answer for each identity that was asked for.
    pub(crate) found: Vec<(Identity, Found)>,
    /// It is decided now, even if an item of its id is in flight.
    pub(crate) at_once: bool,
}

/// An entry that the store has been asked about.
#[derive(Debug)]
struct Question {
    line: LineName,
    /// Place of the entry.
    place: u64,
    /// Number of its identities.
    count: usize,
}

/// Arrivals that wait for the outcome of one identity, in order.
#[derive(Debug, Default)]
struct Waiting {
    line: VecDeque<Placed>,
    /// Number of them that came by message.
    remote: usize,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    returned: Line,
    requests: Line,
    local: Line,
    /// Place of the next arrival.
    next: u64,
    /// Finds under way, in order.
    asked: VecDeque<Vec<Question>>,
    waiting: BTreeMap<Identity, Waiting>,
    /// When waits end, monotonic ms.
    until: BTreeSet<(u64, Identity)>,
    /// Counts of those that wait.
    waits: Waits,
    /// Identities whose waiting arrivals must be decided: too many wait, or one has waited for too long, or
    /// there is another reason.
    released: BTreeSet<Identity>,
    /// Arrivals that came after a cancel of their customer, by the number of that scan; they wait until the
    /// scan has finished.
    behind_scans: BTreeMap<u64, Vec<Placed>>,
    /// Place of the entry for which there was no room when its message was looked at last.
    lacking: Option<u64>,
    /// The ids of these requests: the scan that the last request of an id waits for, and how many wait.
    ids_behind_scans: NumberMap<Identity, (u64, usize)>,
}

impl Arrivals {
    pub(crate) fn new() -> Self {
        Arrivals::default()
    }

    fn line(&mut self, name: LineName) -> &mut Line {
        match name {
            LineName::Returned => &mut self.returned,
            LineName::Requests => &mut self.requests,
            LineName::Local => &mut self.local,
        }
    }

    pub(crate) fn push(&mut self, arrival: Arrival) {
        let name = if arrival.is_local() { LineName::Local } else { LineName::Requests };
        let placed = Placed { place: self.next, until: None, arrival };
        self.next += 1;
        self.line(name).entries.push_back(LineEntry::new(placed));
    }

    /// No arrival from the broker waits to be judged.
    pub(crate) fn is_clear(&self) -> bool {
        self.returned.entries.is_empty() && self.requests.entries.is_empty()
    }

    /// The next arrival of a line, which stays there.
    pub(crate) fn peek(&self, name: LineName) -> Option<&Arrival> {
        let line = match name {
            LineName::Returned => &self.returned,
            LineName::Requests => &self.requests,
            LineName::Local => &self.local,
        };
        line.entries.front().map(|entry| &entry.placed.arrival)
    }

    /// Whether arrivals that waited for an outcome, or local ones, are to be judged.
    pub(crate) fn has_returned(&self) -> bool {
        [LineName::Returned, LineName::Local].into_iter().any(|name| self.peek(name).is_some())
    }

    /// Takes the next arrival off a line, if all facts that it needs are known. `questions`: what would have
    /// to be asked now; if an answer has become stale, the arrival is asked for again.
    pub(crate) fn next(
        &mut self,
        name: LineName,
        core: &mut Core,
        questions: impl Fn(&Core, &Arrival) -> Vec<Wanted>,
    ) -> Option<Next> {
        let line = self.line(name);
        let entry = line.entries.front_mut()?;
        let found = match core::mem::replace(&mut entry.knowledge, Knowledge::Unasked) {
            Knowledge::Asked(asked) => {
                entry.knowledge = Knowledge::Asked(asked);
                return None;
            }
            Knowledge::Known(asked, found) => {
                let watch = &mut core.live.shared.watch;
                let worth = asked.into_iter().zip(found).map(|(one, found)| match watch.end(one) {
                    Worth::True => Some((one.identity, found)),
                    Worth::Nothing if mutated(Mutant::AnswersFromThePast) => Some((one.identity, found)),
                    Worth::Row(row) => Some((one.identity, Found { item: Some(*row), ended: None })),
                    Worth::Nothing => None,
                });
                // Each question must end, also if the first answer is stale.
                worth.collect::<Vec<_>>().into_iter().collect::<Option<Vec<_>>>()
            }
            Knowledge::Unasked => None,
        };
        if found.is_none() && !questions(core, &entry.placed.arrival).is_empty() {
            line.ahead = 0;
            return None;
        }
        let entry = line.entries.pop_front()?;
        line.ahead = line.ahead.saturating_sub(1);
        let LineEntry { placed, at_once, .. } = entry;
        Some(Next { placed, found: found.unwrap_or_default(), at_once })
    }

    /// Returns an arrival to its line.
    pub(crate) fn put_back(&mut self, name: LineName, placed: Placed, at_once: bool) {
        self.line(name).insert(LineEntry { at_once, ..LineEntry::new(placed) });
    }

    /// Whether no entry of the message at the head of a line waits for an answer of the store or, if the
    /// message has several entries, has to be asked for first.
    pub(crate) fn is_message_known(
        &mut self,
        name: LineName,
        core: &mut Core,
        questions: impl Fn(&Core, &Arrival) -> Vec<Wanted>,
    ) -> bool {
        let line = self.line(name);
        let Some(delivery) = line.entries.front().and_then(|entry| entry.placed.arrival.delivery()) else {
            return true;
        };
        let own = |entry: &&LineEntry| entry.placed.arrival.delivery() == Some(delivery);
        let several = line.entries.get(1).as_ref().is_some_and(own);
        let whole = several && !mutated(Mutant::StaleSplitsMessage);
        if whole {
            // A stale answer would be asked for again in the middle of the message.
            for entry in line.entries.iter_mut().take_while(|entry| own(&&**entry)) {
                entry.forget_if_stale(&mut core.live.shared.watch);
            }
        }
        let lacks = |entry: &LineEntry| match &entry.knowledge {
            Knowledge::Asked(_) => true,
            Knowledge::Unasked => several && !questions(core, &entry.placed.arrival).is_empty(),
            Knowledge::Known(..) => false,
        };
        if let Some(entry) = line.entries.iter().take_while(own).find(|entry| lacks(entry)) {
            if matches!(entry.knowledge, Knowledge::Unasked) {
                line.ahead = 0;
            }
            return false;
        }
        if whole {
            for entry in line.entries.iter_mut().take_while(|entry| own(&&**entry)) {
                entry.keep_knowledge(&mut core.live.shared.watch);
            }
        }
        true
    }

    /// Whether the next request has come with others, and `lacks` holds for one of them; what the store has
    /// told of its id is passed to it.
    pub(crate) fn needs_room(
        &mut self,
        mut lacks: impl FnMut(&NewItem, Origin, Option<&Found>) -> bool,
    ) -> bool {
        let head = self.peek(LineName::Requests).and_then(Arrival::delivery);
        let mut lacks = |entry: &LineEntry| {
            let Arrival::Item(item, origin) = &entry.placed.arrival else { return false };
            let found = if let Knowledge::Known(_, found) = &entry.knowledge { found.first() } else { None };
            let own = origin.several && Some(origin.delivery) == head;
            own && lacks(item, *origin, found)
        };
        // The one that lacked room at the last look comes first: each turn looks again.
        if self.lacking.and_then(|place| self.requests.at(place)).is_some_and(|entry| lacks(entry)) {
            return true;
        }
        let own = |entry: &&LineEntry| entry.placed.arrival.delivery() == head;
        let found = self.requests.entries.iter().take_while(own).find(|entry| lacks(entry));
        self.lacking = found.map(|entry| entry.placed.place);
        self.lacking.is_some()
    }

    /// Asks the store for identities of arrivals in the lines, in order. `held`: requests wait for room, and
    /// would be asked for repeatedly.
    pub(crate) fn ask(
        &mut self,
        core: &mut Core,
        held: bool,
        questions: impl Fn(&Core, &Arrival) -> Vec<Wanted>,
    ) -> Option<Load> {
        let (mut wanted, mut asked) = (Vec::new(), Vec::new());
        let (most, most_ahead) = (core.live.thresholds().asked, core.live.thresholds().asked_ahead);
        for name in [LineName::Returned, LineName::Requests, LineName::Local] {
            if held && name != LineName::Local {
                continue;
            }
            let line = self.line(name);
            let ahead = line.ahead;
            // A message is judged as a whole.
            let head = line.entries.front().and_then(|entry| entry.placed.arrival.delivery());
            for (index, entry) in line.entries.iter_mut().enumerate().skip(ahead) {
                let arrival = &entry.placed.arrival;
                let of_head = head.is_some() && arrival.delivery() == head;
                let beyond = index >= most_ahead && (!of_head || mutated(Mutant::LongMessageUnasked));
                if wanted.len() >= most || beyond {
                    break;
                }
                line.ahead = index + 1;
                if !matches!(entry.knowledge, Knowledge::Unasked) {
                    continue;
                }
                let mut questions = questions(core, arrival);
                if questions.is_empty() {
                    continue;
                }
                let begun: Vec<Asked> =
                    questions.iter().map(|wanted| core.live.shared.watch.begin(wanted.identity)).collect();
                let (place, count) = (entry.placed.place, questions.len());
                asked.push(Question { line: name, place, count });
                entry.knowledge = Knowledge::Asked(begun);
                wanted.append(&mut questions);
            }
        }
        if wanted.is_empty() {
            return None;
        }
        self.asked.push_back(asked);
        core.live.shared.reads.begin(ReadLine::Ordered);
        Some(Load::Find(wanted))
    }

    /// The store has answered the oldest question.
    pub(crate) fn found(&mut self, found: Vec<Found>) {
        let Some(asked) = self.asked.pop_front() else {
            debug_assert!(false, "an answer has a question");
            return;
        };
        let mut found = found.into_iter();
        for Question { line, place, count } in asked {
            let answers: Vec<Found> = found.by_ref().take(count).collect();
            // It may have been forgotten since, with its delivery.
            let Some(entry) = self.line(line).at(place) else { continue };
            let Knowledge::Asked(asked) = &mut entry.knowledge else {
                debug_assert!(false, "an entry that was asked for waits for the answer");
                continue;
            };
            entry.knowledge = Knowledge::Known(core::mem::take(asked), answers);
        }
    }

    // ---- waiting for an outcome ---------------------------------------------------------------------------

    /// The arrival depends on an item in flight, or came after a command that does, and waits until that
    /// attempt has ended, at most until its `until`.
    pub(crate) fn await_outcome(&mut self, identity: Identity, placed: Placed) {
        self.until.extend(placed.until.map(|until| (until, identity)));
        self.add_waiting(identity, placed);
    }

    fn add_waiting(&mut self, identity: Identity, placed: Placed) {
        let within = self.waits.begin(placed.arrival.waiter());
        // A command that may not wait has been answered already.
        if !within {
            self.released.insert(identity);
        }
        let waiting = self.waiting.entry(identity).or_default();
        waiting.remote += usize::from(!placed.arrival.is_local());
        waiting.line.push_back(placed);
    }

    /// Whether one more command of this caller may wait for an outcome.
    pub(crate) fn may_wait(&self, command: &Command, asker: &Asker) -> bool {
        self.waits.may_wait(Waiter::of(command, asker))
    }

    /// Half of the prefetch; without limit before it is known.
    pub(crate) fn half_of_prefetch(&self) -> usize {
        self.waits.share(2)
    }

    /// Sets the prefetch. If more arrivals wait than now may, all are decided.
    pub(crate) fn set_prefetch(&mut self, prefetch: u16) {
        if self.waits.set_prefetch(prefetch) {
            self.released.extend(self.waiting.keys());
        }
    }

    /// Its part of the arrivals that one turn judges: a cancel goes over all that wait for outcomes.
    pub(crate) fn cost(&self, arrival: &Arrival) -> usize {
        match arrival {
            Arrival::Command { command, .. } if line::cancels(command) => 1 + self.waiting.len() / AS_ONE,
            Arrival::Command { .. } | Arrival::Item(..) | Arrival::Rejected(..) => 1,
        }
    }

    /// Releases requests that wait for an outcome and that this later command cancels, as far as
    /// `may_be_decided` allows. Whether there are any.
    pub(crate) fn release_for(
        &mut self,
        command: &Command,
        may_be_decided: impl Fn(Identity) -> bool,
    ) -> bool {
        if !line::cancels(command) {
            return false;
        }
        let is_meant =
            |waiting: &Waiting| waiting.line.iter().any(|placed| placed.arrival.is_meant_by(command));
        let meant =
            self.waiting.iter().filter(|(_, waiting)| is_meant(waiting)).map(|(identity, _)| *identity);
        let meant: Vec<Identity> = meant.filter(|identity| may_be_decided(*identity)).collect();
        self.released.extend(&meant);
        !meant.is_empty()
    }

    /// Ends the waits of released identities: their arrivals are judged next, in order. Returns the remote
    /// commands before the first request among them, to be answered now. Arrivals that cannot be decided now
    /// wait on. `None`: nothing was released.
    pub(crate) fn release(
        &mut self,
        may_be_decided: impl Fn(Identity) -> bool,
    ) -> Option<Vec<(Command, Asker)>> {
        let (mut any, mut commands) = (false, Vec::new());
        for identity in core::mem::take(&mut self.released) {
            if !self.waiting.contains_key(&identity) {
                continue;
            }
            if !may_be_decided(identity) {
                self.released.insert(identity);
                continue;
            }
            any = true;
            let (mut entries, mut behind) = (Vec::new(), false);
            for Placed { place, until, arrival } in self.take_waiting(identity) {
                behind |= arrival.is_item();
                match arrival {
                    Arrival::Command { command, asker: asker @ Asker::Remote { .. } } if !behind => {
                        commands.push((command, asker));
                    }
                    arrival @ (Arrival::Item(..) | Arrival::Rejected(..) | Arrival::Command { .. }) => {
                        let placed = Placed { place, until, arrival };
                        entries.push(LineEntry { at_once: true, ..LineEntry::new(placed) });
                    }
                }
            }
            self.requeue(entries);
        }
        any.then_some(commands)
    }

    /// Takes all arrivals that wait for the outcome of this identity.
    fn take_waiting(&mut self, identity: Identity) -> VecDeque<Placed> {
        let line = self.waiting.remove(&identity).unwrap_or_default().line;
        for placed in &line {
            self.waits.end(placed.arrival.waiter());
            placed.until.into_iter().for_each(|until| {
                self.until.remove(&(until, identity));
            });
        }
        line
    }

    /// The scan that the arrival has to wait for because an earlier request with its id does: requests of one
    /// id are judged in order, whatever their customers are. Local commands have no order among requests.
    pub(crate) fn scan_before_its_id(&self, arrival: &Arrival) -> Option<u64> {
        let overtakes = mutated(Mutant::IdOvertakesItsFirst);
        if self.ids_behind_scans.is_empty() || arrival.is_local() || overtakes {
            return None;
        }
        let (_, identities) = arrival.subject()?;
        let of_id = |identity: Identity| self.ids_behind_scans.get(&identity).map(|(number, _)| *number);
        identities.into_iter().flatten().find_map(of_id)
    }

    /// Whether an arrival by message waits for the outcome of this identity: a later request is judged after
    /// it, since the item may be cancelled or replaced before.
    pub(crate) fn is_awaited(&self, identity: Identity) -> bool {
        self.waiting.get(&identity).is_some_and(|waiting| waiting.remote > 0)
    }

    /// The arrival came after a cancel of its customer, or an arrival of its id did: it waits until that scan
    /// has covered all items.
    pub(crate) fn await_scan(&mut self, number: u64, placed: Placed) {
        if let Arrival::Item(item, _) = &placed.arrival {
            if let Some(identity) = item.identity {
                let (last, count) = self.ids_behind_scans.get_or_insert_with(identity, || (number, 0));
                *last = number;
                *count += 1;
            }
        }
        self.behind_scans.entry(number).or_default().push(placed);
    }

    /// Ends the waits for scans that have finished, by `is_through`: their arrivals are judged next, in
    /// order. Whether there were any.
    pub(crate) fn scans_ended(&mut self, is_through: impl Fn(u64) -> bool) -> bool {
        let through: Vec<u64> =
            self.behind_scans.keys().copied().filter(|number| is_through(*number)).collect();
        let any = !through.is_empty();
        let mut ended = Vec::new();
        for number in through {
            for placed in self.behind_scans.remove(&number).unwrap_or_default() {
                self.leave_scan(&placed.arrival);
                ended.push(LineEntry::new(placed));
            }
        }
        self.requeue(ended);
        any
    }

    fn leave_scan(&mut self, arrival: &Arrival) {
        let Arrival::Item(item, _) = arrival else { return };
        let Some(identity) = item.identity else { return };
        let Some((_, count)) = self.ids_behind_scans.get_mut(&identity) else {
            debug_assert!(false, "the ids of requests behind scans are counted");
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.ids_behind_scans.remove(&identity);
        }
    }

    /// Whether any arrival waits for an outcome.
    pub(crate) fn awaits_any(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// An attempt has ended: arrivals that waited for it are judged next, in order. `ended`: how its item
    /// ended, if it did.
    pub(crate) fn outcome_known(&mut self, identity: Identity, ended: Option<&Ended>, watch: &mut Watch) {
        let waiting = self.take_waiting(identity);
        let entries = waiting.into_iter().map(|placed| {
            let subject = placed.arrival.subject().map(|(_, identities)| identities).unwrap_or_default();
            let knowledge = match ended {
                Some(ended) if subject.contains(&Some(identity)) => {
                    let found = |asked: Identity| Found {
                        item: None,
                        ended: (asked == identity).then(|| ended.clone()),
                    };
                    let identities: Vec<Identity> = subject.into_iter().flatten().collect();
                    let answers = identities.iter().map(|asked| found(*asked)).collect();
                    let begun = identities.into_iter().map(|asked| watch.begin(asked)).collect();
                    Knowledge::Known(begun, answers)
                }
                None | Some(_) => Knowledge::Unasked,
            };
            LineEntry { placed, knowledge, at_once: false }
        });
        let entries = entries.collect();
        self.requeue(entries);
    }

    /// Returns entries that have waited to the lines, each by its place. Local commands return to their own
    /// line, where they do not wait for room.
    fn requeue(&mut self, entries: Vec<LineEntry>) {
        for entry in entries {
            let name = if entry.placed.arrival.is_local() { LineName::Local } else { LineName::Returned };
            self.line(name).insert(entry);
        }
    }

    /// Ends the waits whose time limit has passed. Takes the commands among them, to be answered; arrivals
    /// after these are judged next, in order. Requests are released.
    pub(crate) fn end_waits(&mut self, now: Now) -> Vec<(Command, Asker)> {
        let mut over = Vec::new();
        while let Some((_, identity)) = self.until.first().copied().filter(|(until, _)| *until <= now.mono) {
            self.until.pop_first();
            let (mut left, mut is_released) = (VecDeque::new(), false);
            for Placed { place, until, arrival } in self.take_waiting(identity) {
                let is_over = until.is_some_and(|until| until <= now.mono);
                match arrival {
                    Arrival::Command { command, asker }
                        if is_over || (until.is_some() && mutated(Mutant::PatienceEndsForAll)) =>
                    {
                        over.push((command, asker));
                    }
                    arrival @ (Arrival::Item(..) | Arrival::Rejected(..) | Arrival::Command { .. }) => {
                        is_released |= is_over;
                        left.push_back(Placed { place, until, arrival });
                    }
                }
            }
            if is_released {
                self.released.insert(identity);
                for placed in left {
                    // Of those that are over, only the release is left.
                    if placed.until.is_none_or(|until| until <= now.mono) {
                        self.add_waiting(identity, placed);
                    } else {
                        self.await_outcome(identity, placed);
                    }
                }
            } else {
                self.requeue(left.into_iter().map(LineEntry::new).collect());
            }
        }
        over
    }

    pub(crate) fn deadline(&self) -> Option<u64> {
        self.until.first().map(|(until, _)| *until)
    }

    /// Forgets what the broker redelivers. Local commands stay. The cost is proportional to the length of the
    /// lines.
    pub(crate) fn forget_deliveries(&mut self, watch: &mut Watch) {
        for name in [LineName::Returned, LineName::Requests] {
            let line = self.line(name);
            let gone = core::mem::take(&mut line.entries);
            line.ahead = 0;
            for entry in gone {
                if let Knowledge::Asked(asked) | Knowledge::Known(asked, _) = &entry.knowledge {
                    asked.iter().for_each(|one| {
                        watch.end(*one);
                    });
                }
            }
        }
        for waiting in self.behind_scans.values_mut() {
            waiting.retain(|placed| placed.arrival.is_local() || mutated(Mutant::BehindScanKept));
        }
        self.ids_behind_scans = Lookup::new();
        let waiting = core::mem::take(&mut self.waiting);
        self.until.clear();
        self.waits.forget();
        self.released.clear();
        for (identity, Waiting { line, .. }) in waiting {
            for placed in line.into_iter().filter(|placed| placed.arrival.is_local()) {
                self.await_outcome(identity, placed);
            }
        }
    }

    /// The state of the lines, for messages of tests.
    #[cfg(test)]
    pub(crate) fn describe(&self) -> String {
        format!(
            "{} returned, {} requests, {} local, {} waiting, behind scans {:?}; first {:?}; first local {:?}",
            self.returned.entries.len(),
            self.requests.entries.len(),
            self.local.entries.len(),
            self.waiting.values().map(|waiting| waiting.line.len()).sum::<usize>(),
            self.behind_scans.iter().map(|(scan, waiting)| (scan, waiting.len())).collect::<Vec<_>>(),
            self.requests.entries.front(),
            self.local.entries.front()
        )
    }

    /// The application of each arrival by message that waits for an outcome.
    #[cfg(test)]
    pub(crate) fn awaiting_by_message(&self) -> Vec<String> {
        let all = self.waiting.values().flat_map(|waiting| &waiting.line);
        let remote = all.map(|placed| &placed.arrival).filter(|arrival| !arrival.is_local());
        let remote = remote.filter_map(Arrival::subject);
        remote.map(|(application, _)| application.to_owned()).collect()
    }

    /// Number of ends of waits that are kept, and number of arrivals that wait.
    #[cfg(test)]
    pub(crate) fn ends_of_waits(&self) -> (usize, usize) {
        (self.until.len(), self.waiting.values().map(|waiting| waiting.line.len()).sum())
    }

    /// Number of arrivals that wait for the outcome of this identity, for messages of tests.
    #[cfg(test)]
    pub(crate) fn awaiting(&self, identity: Identity) -> usize {
        self.waiting.get(&identity).map_or(0, |waiting| waiting.line.len())
    }
}
