//! What has come in and has not been judged: requests and commands, in the order in which they came.
//!
//! One whose id is not in memory, and may be in the store, waits for the store's answer, and what came after
//! it waits behind it: so arrival order stays what it was, and two requests with one id meet each other. The
//! store is asked for many at a time, ahead of their turn; a reply that is stale on arrival is discarded, and
//! the store is asked again ([`super::reads::Watch`]).
//!
//! What is in flight has no end yet: a request that depends on it waits, out of line, until its attempt has
//! ended. What came by message is unacked meanwhile, and an attempt need not end: so of what the consumer may
//! have out no more than a share waits, of all applications and of each ([`super::waits`]). Beyond it
//! requests are decided at once.
//!
//! Commands from within this process have a line of their own: they go on while requests wait for room.

mod line;

use super::core::Core;
use super::event::{Found, Load, Wanted};
use super::items::NumberMap;
use super::lookup::Lookup;
use super::mutant::{mutated, Mutant};
use super::reads::{Asked, ReadLine, Watch, Worth};
use super::types::{Asker, Command, Ended, Identity, Now};
use super::waits::{Waiter, Waits};
pub(super) use line::{Arrival, LineName};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What is known of an arrival's identities.
#[derive(Debug)]
enum Knowledge {
    /// Nothing has been asked; perhaps nothing need be.
    Unasked,
    /// These have been asked for.
    Asked(Vec<Asked>),
    /// The store's answers to the questions.
    Known(Vec<Asked>, Vec<Found>),
}

/// An arrival, and where it stands among all, in the order in which they came: numbers that stay.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) place: u64,
    pub(super) arrival: Arrival,
}

#[derive(Debug)]
struct LineEntry {
    placed: Placed,
    knowledge: Knowledge,
    /// It waits for no outcome any more.
    at_once: bool,
}

/// One line of arrivals, in order of their places: answers find their entry by it.
#[derive(Debug, Default)]
struct Line {
    entries: VecDeque<LineEntry>,
    /// Entries from the first on that have been looked at ahead of their turn.
    ahead: usize,
}

/// The next thing to be judged.
#[derive(Debug)]
pub(super) struct Next {
    pub(super) placed: Placed,
    /// What the store says, for each identity that was asked for.
    pub(super) found: Vec<(Identity, Found)>,
    /// It is decided now, whatever is in flight.
    pub(super) at_once: bool,
}

/// An entry that the store has been asked about.
#[derive(Debug)]
struct Question {
    line: LineName,
    /// Of the entry.
    place: u64,
    /// How many identities.
    count: usize,
}

/// What waits for the outcome of one identity, in order.
#[derive(Debug, Default)]
struct Waiting {
    line: VecDeque<Placed>,
    /// How many of them came by message.
    remote: usize,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    returned: Line,
    requests: Line,
    local: Line,
    /// The next one's place.
    next: u64,
    /// Finds under way, in order.
    asked: VecDeque<Vec<Question>>,
    waiting: BTreeMap<Identity, Waiting>,
    /// When commands stop waiting, monotonic.
    until: BTreeSet<(u64, Identity)>,
    /// How many wait, of whom.
    waits: Waits,
    /// What waits for these is more than may wait, or is to be decided for another reason.
    released: BTreeSet<Identity>,
    /// What came behind a cancel of its own customer, by that scan's number: it waits until the scan is
    /// through.
    behind_scans: BTreeMap<u64, Vec<Placed>>,
    /// The ids of these requests: behind which scan the last of an id stands, and how many do.
    ids_behind_scans: NumberMap<Identity, (u64, usize)>,
}

impl Arrivals {
    pub(super) fn new() -> Self {
        Arrivals::default()
    }

    fn line(&mut self, name: LineName) -> &mut Line {
        match name {
            LineName::Returned => &mut self.returned,
            LineName::Requests => &mut self.requests,
            LineName::Local => &mut self.local,
        }
    }

    pub(super) fn push(&mut self, arrival: Arrival) {
        let name = if arrival.is_local() { LineName::Local } else { LineName::Requests };
        let placed = Placed { place: self.next, arrival };
        self.next += 1;
        self.line(name).entries.push_back(LineEntry::new(placed));
    }

    /// Nothing that the broker delivered waits to be judged.
    pub(super) fn is_clear(&self) -> bool {
        self.returned.entries.is_empty() && self.requests.entries.is_empty()
    }

    /// The next arrival of a line, as far as one can see without judging it.
    pub(super) fn peek(&self, name: LineName) -> Option<&Arrival> {
        let line = match name {
            LineName::Returned => &self.returned,
            LineName::Requests => &self.requests,
            LineName::Local => &self.local,
        };
        line.entries.front().map(|entry| &entry.placed.arrival)
    }

    /// What has waited for an outcome is to be judged.
    pub(super) fn has_returned(&self) -> bool {
        [LineName::Returned, LineName::Local].into_iter().any(|name| self.peek(name).is_some())
    }

    /// Takes the next arrival off a line, if all is known that it needs. `questions`: what would have to be
    /// asked now; an arrival that has become unknown since it was looked at is asked for then.
    pub(super) fn next(
        &mut self,
        name: LineName,
        core: &mut Core,
        questions: impl Fn(&Core, &Arrival) -> Vec<Wanted>,
    ) -> Option<Next> {
        let line = self.line(name);
        let entry = line.entries.front_mut()?;
        let found = match std::mem::replace(&mut entry.knowledge, Knowledge::Unasked) {
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
                // Each question ends, whatever the first is worth.
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

    /// It goes back to the head of its line.
    pub(super) fn put_back(&mut self, name: LineName, placed: Placed, at_once: bool) {
        self.line(name).insert(LineEntry { at_once, ..LineEntry::new(placed) });
    }

    /// No entry of the message at the head of a line waits for an answer of the store, or, where there are
    /// several, has to be asked for first.
    pub(super) fn is_message_known(
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
            // An answer that is out of date by now would be asked for again in the middle of it.
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

    /// Asks the store for identities of arrivals in the lines, in their order. `held`: requests wait for
    /// room, and would be asked for again and again.
    pub(super) fn ask(
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
    pub(super) fn found(&mut self, found: Vec<Found>) {
        let Some(asked) = self.asked.pop_front() else {
            debug_assert!(false, "an answer has a question");
            return;
        };
        let mut found = found.into_iter();
        for Question { line, place, count } in asked {
            let answers: Vec<Found> = found.by_ref().take(count).collect();
            let Some(entry) = self.line(line).at(place) else { continue };
            let Knowledge::Asked(asked) = &mut entry.knowledge else { continue };
            entry.knowledge = Knowledge::Known(std::mem::take(asked), answers);
        }
    }

    // ---- waiting for an outcome ---------------------------------------------------------------------------

    /// It depends on an item that is in flight, or stands behind a command that does, and waits until that
    /// attempt has ended; a command until `until`.
    pub(super) fn await_outcome(&mut self, identity: Identity, placed: Placed) {
        let arrival = &placed.arrival;
        if let Arrival::Command { until: Some(until), .. } = arrival {
            self.until.insert((*until, identity));
        }
        let within = self.waits.begin(arrival.waiter());
        // What may not wait has been answered, where it is a command.
        if !within {
            self.released.insert(identity);
        }
        let waiting = self.waiting.entry(identity).or_default();
        waiting.remote += usize::from(!arrival.is_local());
        waiting.line.push_back(placed);
    }

    /// One more command may wait for the outcome of something.
    pub(super) fn may_wait(&self, command: &Command, asker: &Asker) -> bool {
        self.waits.may_wait(Waiter::of(command, asker))
    }

    /// So many deliveries may be out at present. Where less may wait than does, all is decided.
    pub(super) fn set_prefetch(&mut self, prefetch: u16) {
        if self.waits.set_prefetch(prefetch) {
            self.released.extend(self.waiting.keys());
        }
    }

    /// Requests that wait for an outcome and that this command is to take back are to be decided, as far as
    /// `may_be_decided` says that they can: they came before it. Whether there are any.
    pub(super) fn release_for(
        &mut self,
        command: &Command,
        may_be_decided: impl Fn(Identity) -> bool,
    ) -> bool {
        let is_meant =
            |waiting: &Waiting| waiting.line.iter().any(|placed| placed.arrival.is_meant_by(command));
        let meant =
            self.waiting.iter().filter(|(_, waiting)| is_meant(waiting)).map(|(identity, _)| *identity);
        let meant: Vec<Identity> = meant.filter(|identity| may_be_decided(*identity)).collect();
        self.released.extend(&meant);
        !meant.is_empty()
    }

    /// What waits for an outcome and is not to wait any longer is judged next, in order; the commands before
    /// the first request among it, which are given back: they came before what is decided now. What cannot be
    /// decided now waits on. `None`: there is nothing.
    pub(super) fn release(
        &mut self,
        may_be_decided: impl Fn(Identity) -> bool,
    ) -> Option<Vec<(Command, Asker)>> {
        let (mut any, mut commands) = (false, Vec::new());
        for identity in std::mem::take(&mut self.released) {
            if !self.waiting.contains_key(&identity) {
                continue;
            }
            if !may_be_decided(identity) {
                self.released.insert(identity);
                continue;
            }
            any = true;
            let (mut entries, mut behind) = (Vec::new(), false);
            for Placed { place, arrival } in self.take_waiting(identity) {
                behind |= arrival.is_item();
                match arrival {
                    Arrival::Command { command, asker: asker @ Asker::Remote { .. }, .. } if !behind => {
                        commands.push((command, asker));
                    }
                    arrival @ (Arrival::Item(..) | Arrival::Rejected(..) | Arrival::Command { .. }) => {
                        entries
                            .push(LineEntry { at_once: true, ..LineEntry::new(Placed { place, arrival }) });
                    }
                }
            }
            self.requeue(entries);
        }
        any.then_some(commands)
    }

    /// All that waits for the outcome of this identity waits no more.
    fn take_waiting(&mut self, identity: Identity) -> VecDeque<Placed> {
        let line = self.waiting.remove(&identity).unwrap_or_default().line;
        line.iter().for_each(|placed| self.waits.end(placed.arrival.waiter()));
        line
    }

    /// The scan that it has to wait for since a request with its id does: who came first is judged first,
    /// whatever their customers are. A command of this process came with no request in any order.
    pub(super) fn scan_before_its_id(&self, arrival: &Arrival) -> Option<u64> {
        let overtakes = mutated(Mutant::IdOvertakesItsFirst);
        if self.ids_behind_scans.is_empty() || arrival.is_local() || overtakes {
            return None;
        }
        let (_, identities) = arrival.subject()?;
        let of_id = |identity: Identity| self.ids_behind_scans.get(&identity).map(|(number, _)| *number);
        identities.into_iter().flatten().find_map(of_id)
    }

    /// Something that came by message waits for what becomes of the item of this identity: a request behind
    /// it is judged behind it, and not by an item that may be taken back or replaced first.
    pub(super) fn is_awaited(&self, identity: Identity) -> bool {
        self.waiting.get(&identity).is_some_and(|waiting| waiting.remote > 0)
    }

    /// It came behind a cancel of its own customer, or one with its id did: it waits until that has gone over
    /// all items.
    pub(super) fn await_scan(&mut self, number: u64, placed: Placed) {
        if let Arrival::Item(item, _) = &placed.arrival {
            if let Some(identity) = item.identity {
                let (last, count) = self.ids_behind_scans.get_or_insert_with(identity, || (number, 0));
                *last = number;
                *count += 1;
            }
        }
        self.behind_scans.entry(number).or_default().push(placed);
    }

    /// Scans that something waits for are through, where `is_through` says so: that is judged next, in
    /// order. Whether there was any.
    pub(super) fn scans_ended(&mut self, is_through: impl Fn(u64) -> bool) -> bool {
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
        let Some((_, count)) = self.ids_behind_scans.get_mut(&identity) else { return };
        *count -= 1;
        if *count == 0 {
            self.ids_behind_scans.remove(&identity);
        }
    }

    /// Something waits for an outcome.
    pub(super) fn awaits_any(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// An attempt has ended: what waited for it is judged next, in order. `ended`: how its item ended, if it
    /// did.
    pub(super) fn outcome_known(&mut self, identity: Identity, ended: Option<&Ended>, watch: &mut Watch) {
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

    /// What these waited for has happened: each goes where it came among the others. What is asked within
    /// this process waits for no room that requests need.
    fn requeue(&mut self, entries: Vec<LineEntry>) {
        for entry in entries {
            let name = if entry.placed.arrival.is_local() { LineName::Local } else { LineName::Returned };
            self.line(name).insert(entry);
        }
    }

    /// Commands whose patience has ended. What came behind them is judged next, in order.
    pub(super) fn end_waits(&mut self, now: Now) -> Vec<(Command, Asker)> {
        let mut over = Vec::new();
        while let Some((_, identity)) = self.until.first().copied().filter(|(until, _)| *until <= now.mono) {
            self.until.pop_first();
            let waiting = self.take_waiting(identity);
            let mut left = Vec::new();
            for Placed { place, arrival } in waiting {
                match arrival {
                    Arrival::Command { command, asker, until: Some(until) }
                        if until <= now.mono || mutated(Mutant::PatienceEndsForAll) =>
                    {
                        over.push((command, asker));
                    }
                    arrival @ (Arrival::Item(..) | Arrival::Rejected(..) | Arrival::Command { .. }) => {
                        left.push(LineEntry::new(Placed { place, arrival }));
                    }
                }
            }
            self.requeue(left);
        }
        over
    }

    pub(super) fn deadline(&self) -> Option<u64> {
        self.until.first().map(|(until, _)| *until)
    }

    /// What the broker delivers again is forgotten. Commands from within this process stay. The cost is that
    /// of the lines.
    pub(super) fn forget_deliveries(&mut self, watch: &mut Watch) {
        for name in [LineName::Returned, LineName::Requests] {
            let line = self.line(name);
            let gone = std::mem::take(&mut line.entries);
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
        let kept: BTreeSet<(u64, Identity)> = std::mem::take(&mut self.until);
        let mut waiting = std::mem::take(&mut self.waiting);
        self.waits.forget();
        self.released.clear();
        for (_, identity) in kept {
            for placed in waiting.remove(&identity).unwrap_or_default().line {
                if placed.arrival.is_local() {
                    self.await_outcome(identity, placed);
                }
            }
        }
    }

    /// Arrivals in line whose parts have been counted open; for tests.
    #[cfg(test)]
    pub(super) fn describe(&self) -> String {
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

    /// The applications of what came by message and waits for an outcome, one for each that waits.
    #[cfg(test)]
    pub(super) fn awaiting_by_message(&self) -> Vec<String> {
        let all = self.waiting.values().flat_map(|waiting| &waiting.line);
        let remote = all.map(|placed| &placed.arrival).filter(|arrival| !arrival.is_local());
        let remote = remote.filter_map(Arrival::subject);
        remote.map(|(application, _)| application.to_owned()).collect()
    }

    /// How many wait for the outcome of this identity, for messages of tests.
    #[cfg(test)]
    pub(super) fn awaiting(&self, identity: Identity) -> usize {
        self.waiting.get(&identity).map_or(0, |waiting| waiting.line.len())
    }
}
