//! What has come in and has not been judged: requests and commands, in the order in which they came.
//!
//! One whose id is not in memory, and may be in the store, waits for the store's answer, and what came after
//! it waits behind it: so arrival order stays what it was, and two requests with one id meet each other. The
//! store is asked for many at a time, ahead of their turn; an answer that something has overtaken since is
//! not believed, and asked for again ([`super::reads::Watch`]).
//!
//! What is in flight has no end yet: a request that depends on it waits, out of line, until its attempt has
//! ended. Commands from within this process have a line of their own: they go on while requests wait for
//! room.

use super::core::Core;
use super::event::{Found, Load, Wanted};
use super::items::NumberMap;
use super::lookup::Lookup;
use super::mutant::{mutated, Mutant};
use super::reads::{Asked, Watch};
use super::stock::Origin;
use super::types::{Asker, Command, Delivery, Ended, Identity, NewItem, Now, Rejected};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most identities asked for in one read.
const ASK: usize = 1_024;

/// Most arrivals in a line that have been asked for ahead of their turn.
const ASK_AHEAD: usize = 8_192;

/// One thing that has come in and has not been judged.
#[derive(Debug)]
pub(super) enum Arrival {
    Item(Box<NewItem>, Origin),
    Rejected(Box<Rejected>, Origin),
    /// `until`: it has been waiting for an outcome, and does so no longer than this, monotonic.
    Command {
        command: Command,
        asker: Asker,
        until: Option<u64>,
    },
}

impl Arrival {
    /// Whom it is about: application and identities, in the order in which they are looked for.
    pub(super) fn subject(&self) -> Option<(&str, [Option<Identity>; 2])> {
        match self {
            Arrival::Item(item, _) => Some((&item.application, [item.identity, None])),
            Arrival::Command {
                command: Command::Cancel(target) | Command::Lookup(target) | Command::Reschedule(target, _),
                ..
            } => Some((&target.application, target.identities())),
            Arrival::Command { .. } | Arrival::Rejected(..) => None,
        }
    }

    /// The message that it came with, of which there may be other entries.
    pub(super) fn delivery(&self) -> Option<Delivery> {
        match self {
            Arrival::Item(_, origin) | Arrival::Rejected(_, origin) => Some(origin.delivery),
            Arrival::Command { .. } => None,
        }
    }

    /// The customer whose items it adds to or is about.
    pub(super) fn customer(&self) -> Option<(&str, &str)> {
        match self {
            Arrival::Item(item, _) => Some((&item.application, item.customer.as_deref()?)),
            Arrival::Command {
                command: Command::Flush(of) | Command::CancelAll(of) | Command::Count(of),
                ..
            } => Some((&of.application, &of.customer)),
            Arrival::Command { .. } | Arrival::Rejected(..) => None,
        }
    }

    fn is_local(&self) -> bool {
        matches!(self, Arrival::Command { asker: Asker::Local(_), .. })
    }
}

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

#[derive(Debug)]
struct LineEntry {
    arrival: Arrival,
    knowledge: Knowledge,
}

impl LineEntry {
    /// That nothing has to be asked is an answer as well, and true until its identity changes: what the
    /// entries before it do to others of its application is no reason to ask.
    fn keep_knowledge(&mut self, watch: &mut Watch) {
        let (Knowledge::Unasked, Arrival::Item(item, _)) = (&self.knowledge, &self.arrival) else { return };
        if let Some(identity) = item.identity {
            self.knowledge = Knowledge::Known(vec![watch.begin(identity)], vec![Found::default()]);
        }
    }

    /// Answers that are not true any more are none.
    fn forget_if_stale(&mut self, watch: &mut Watch) {
        let Knowledge::Known(asked, _) = &self.knowledge else { return };
        if asked.iter().any(|one| !watch.is_fresh(one)) {
            asked.iter().for_each(|one| {
                watch.end(*one);
            });
            self.knowledge = Knowledge::Unasked;
        }
    }
}

/// One line of arrivals. Each entry has a number that stays: answers find their entry by it.
#[derive(Debug)]
struct Line {
    entries: VecDeque<LineEntry>,
    /// Number of the first entry.
    first: u64,
    /// Entries from the first on that have been looked at ahead of their turn.
    ahead: usize,
}

impl Default for Line {
    /// Empty; there are numbers for as many before its beginning as behind it.
    fn default() -> Self {
        Line { entries: VecDeque::new(), first: 1 << 63, ahead: 0 }
    }
}

impl Line {
    fn push_front(&mut self, entry: LineEntry) {
        self.first -= u64::from(!mutated(Mutant::AnswersShifted));
        self.ahead = 0;
        self.entries.push_front(entry);
    }
}

/// Names one of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineName {
    /// What waited for an outcome; it goes before what comes in.
    Returned,
    Requests,
    Local,
}

/// The next thing to be judged.
#[derive(Debug)]
pub(super) struct Next {
    pub(super) arrival: Arrival,
    /// What the store says, for each identity that was asked for.
    pub(super) found: Vec<(Identity, Found)>,
}

/// An entry that the store has been asked about.
#[derive(Debug)]
struct Question {
    line: LineName,
    /// Of the entry.
    place: u64,
    /// How many identities.
    count: usize,
    /// Of the first of them. Places are given out anew, to what comes to the head of a line, also while the
    /// store reads for what a lost connection took away.
    number: u64,
}

/// What waits for the outcome of one identity, in order.
#[derive(Debug, Default)]
struct Waiting {
    line: VecDeque<Arrival>,
    /// How many of them came by message.
    remote: usize,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    returned: Line,
    requests: Line,
    local: Line,
    /// Finds under way, in order.
    asked: VecDeque<Vec<Question>>,
    waiting: NumberMap<Identity, Waiting>,
    /// When commands stop waiting, monotonic.
    until: BTreeSet<(u64, Identity)>,
    waiting_count: usize,
    /// What came behind a cancel of its own customer, by that scan's number: it waits until the scan is
    /// through.
    behind_scans: BTreeMap<u64, VecDeque<Arrival>>,
    /// The ids of these requests: behind which scan the last of an id stands, and how many do.
    ids_behind_scans: NumberMap<Identity, (u64, usize)>,
}

impl Arrivals {
    pub(super) fn new() -> Self {
        Arrivals { waiting: Lookup::new(), ..Arrivals::default() }
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
        self.line(name).entries.push_back(LineEntry { arrival, knowledge: Knowledge::Unasked });
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
        line.entries.front().map(|entry| &entry.arrival)
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
                let mut fresh = true;
                for one in &asked {
                    fresh &= core.stock_mut().watch_mut().end(*one) || mutated(Mutant::AnswersFromThePast);
                }
                fresh.then(|| asked.into_iter().map(|one| one.identity).zip(found).collect::<Vec<_>>())
            }
            Knowledge::Unasked => None,
        };
        if found.is_none() && !questions(core, &entry.arrival).is_empty() {
            line.ahead = 0;
            return None;
        }
        let entry = line.entries.pop_front()?;
        line.first += 1;
        line.ahead = line.ahead.saturating_sub(1);
        Some(Next { arrival: entry.arrival, found: found.unwrap_or_default() })
    }

    /// It goes back to the head of its line.
    pub(super) fn put_back(&mut self, name: LineName, arrival: Arrival) {
        self.line(name).push_front(LineEntry { arrival, knowledge: Knowledge::Unasked });
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
        let Some(delivery) = line.entries.front().and_then(|entry| entry.arrival.delivery()) else {
            return true;
        };
        let own = |entry: &&LineEntry| entry.arrival.delivery() == Some(delivery);
        let several = line.entries.get(1).as_ref().is_some_and(own);
        let whole = several && !mutated(Mutant::StaleSplitsMessage);
        if whole {
            // An answer that is out of date by now would be asked for again in the middle of it.
            for entry in line.entries.iter_mut().take_while(|entry| own(&&**entry)) {
                entry.forget_if_stale(core.stock_mut().watch_mut());
            }
        }
        let lacks = |entry: &LineEntry| match &entry.knowledge {
            Knowledge::Asked(_) => true,
            Knowledge::Unasked => several && !questions(core, &entry.arrival).is_empty(),
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
                entry.keep_knowledge(core.stock_mut().watch_mut());
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
        for name in [LineName::Returned, LineName::Requests, LineName::Local] {
            if held && name != LineName::Local {
                continue;
            }
            let line = self.line(name);
            let (first, ahead) = (line.first, line.ahead);
            // A message is judged as a whole.
            let head = line.entries.front().and_then(|entry| entry.arrival.delivery());
            for (place, entry) in line.entries.iter_mut().enumerate().skip(ahead) {
                let beyond = place >= ASK_AHEAD && (head.is_none() || entry.arrival.delivery() != head);
                if wanted.len() >= ASK || beyond {
                    break;
                }
                line.ahead = place + 1;
                if !matches!(entry.knowledge, Knowledge::Unasked) {
                    continue;
                }
                let mut questions = questions(core, &entry.arrival);
                if questions.is_empty() {
                    continue;
                }
                let begun: Vec<Asked> = questions
                    .iter()
                    .map(|wanted| core.stock_mut().watch_mut().begin(wanted.identity))
                    .collect();
                let number = begun.first().map_or(0, Asked::number);
                let (place, count) = (first + place as u64, questions.len());
                asked.push(Question { line: name, place, count, number });
                entry.knowledge = Knowledge::Asked(begun);
                wanted.append(&mut questions);
            }
        }
        if wanted.is_empty() {
            return None;
        }
        self.asked.push_back(asked);
        core.stock_mut().reads_mut().begin();
        Some(Load::Find(wanted))
    }

    /// The store has answered the oldest question.
    pub(super) fn found(&mut self, found: Vec<Found>) {
        let Some(asked) = self.asked.pop_front() else {
            debug_assert!(false, "an answer has a question");
            return;
        };
        let mut found = found.into_iter();
        for Question { line, place, count, number } in asked {
            let answers: Vec<Found> = found.by_ref().take(count).collect();
            let line = self.line(line);
            let place = place.checked_sub(line.first).map(|place| place as usize);
            let Some(entry) = place.and_then(|place| line.entries.get_mut(place)) else { continue };
            let Knowledge::Asked(asked) = &mut entry.knowledge else { continue };
            let its = asked.first().is_some_and(|first| first.number() == number);
            if its || mutated(Mutant::OldAnswersMatch) {
                entry.knowledge = Knowledge::Known(std::mem::take(asked), answers);
            }
        }
    }

    // ---- waiting for an outcome ---------------------------------------------------------------------------

    /// It depends on an item that is in flight, or stands behind a command that does, and waits until that
    /// attempt has ended; a command until `until`.
    pub(super) fn await_outcome(&mut self, identity: Identity, arrival: Arrival) {
        if let Arrival::Command { until: Some(until), .. } = &arrival {
            self.until.insert((*until, identity));
        }
        self.waiting_count += 1;
        let waiting = self.waiting.get_or_insert_with(identity, Waiting::default);
        waiting.remote += usize::from(!arrival.is_local());
        waiting.line.push_back(arrival);
    }

    /// The scan that it has to wait for since a request with its id does: who came first is judged first,
    /// whatever their customers are. A command of this process came with no request in any order.
    pub(super) fn scan_before_its_id(&self, arrival: &Arrival) -> Option<u64> {
        if self.ids_behind_scans.is_empty() || arrival.is_local() {
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
    pub(super) fn await_scan(&mut self, number: u64, arrival: Arrival) {
        if let Arrival::Item(item, _) = &arrival {
            if let Some(identity) = item.identity {
                let (last, count) = self.ids_behind_scans.get_or_insert_with(identity, || (number, 0));
                *last = number;
                *count += 1;
            }
        }
        self.behind_scans.entry(number).or_default().push_back(arrival);
    }

    /// Scans that something waits for are through, where `is_through` says so: that is judged next, in
    /// order. Whether there was any.
    pub(super) fn scans_ended(&mut self, is_through: impl Fn(u64) -> bool) -> bool {
        let through: Vec<u64> =
            self.behind_scans.keys().copied().filter(|number| is_through(*number)).collect();
        let any = !through.is_empty();
        let mut ended = Vec::new();
        for number in through {
            let mut waited = self.behind_scans.remove(&number).unwrap_or_default();
            if mutated(Mutant::BehindScanReversed) {
                waited.make_contiguous().reverse();
            }
            for arrival in waited {
                self.leave_scan(&arrival);
                ended.push(LineEntry { arrival, knowledge: Knowledge::Unasked });
            }
        }
        self.give_back(ended);
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
        self.waiting_count > 0
    }

    /// An attempt has ended: what waited for it is judged next, in order. `ended`: how its item ended, if it
    /// did.
    pub(super) fn outcome_known(&mut self, identity: Identity, ended: Option<&Ended>, watch: &mut Watch) {
        let Some(Waiting { line: mut waiting, .. }) = self.waiting.remove(&identity) else { return };
        self.waiting_count -= waiting.len();
        if mutated(Mutant::AwaitersReversed) {
            waiting.make_contiguous().reverse();
        }
        let entries = waiting.into_iter().map(|arrival| {
            let knowledge = match ended {
                None => Knowledge::Unasked,
                Some(ended) => {
                    let found = |asked: Identity| Found {
                        item: None,
                        ended: (asked == identity).then(|| ended.clone()),
                    };
                    let subject = arrival.subject().map(|(_, identities)| identities).unwrap_or_default();
                    let identities: Vec<Identity> = subject.into_iter().flatten().collect();
                    let answers = identities.iter().map(|asked| found(*asked)).collect();
                    let begun = identities.into_iter().map(|asked| watch.begin(asked)).collect();
                    Knowledge::Known(begun, answers)
                }
            };
            LineEntry { arrival, knowledge }
        });
        let entries = entries.collect();
        self.give_back(entries);
    }

    /// What these waited for has happened. They came before whatever else of their ids is in line. What is
    /// asked within this process waits for no room that requests need.
    fn give_back(&mut self, entries: Vec<LineEntry>) {
        for entry in entries.into_iter().rev() {
            let name = if entry.arrival.is_local() { LineName::Local } else { LineName::Returned };
            self.line(name).push_front(entry);
        }
    }

    /// Commands whose patience has ended. What came behind them is judged next, in order.
    pub(super) fn end_waits(&mut self, now: Now) -> Vec<(Command, Asker)> {
        let mut over = Vec::new();
        while let Some((_, identity)) = self.until.first().copied().filter(|(until, _)| *until <= now.mono) {
            self.until.pop_first();
            let waiting = self.waiting.remove(&identity).unwrap_or_default().line;
            self.waiting_count -= waiting.len();
            let mut left = Vec::new();
            for arrival in waiting {
                match arrival {
                    Arrival::Command { command, asker, until: Some(until) } if until <= now.mono => {
                        over.push((command, asker));
                    }
                    arrival @ (Arrival::Item(..) | Arrival::Rejected(..) | Arrival::Command { .. }) => {
                        left.push(LineEntry { arrival, knowledge: Knowledge::Unasked });
                    }
                }
            }
            self.give_back(left);
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
            line.first += if mutated(Mutant::OldAnswersMatch) { 0 } else { gone.len() as u64 };
            line.ahead = 0;
            for entry in gone {
                if let Knowledge::Asked(asked) | Knowledge::Known(asked, _) = &entry.knowledge {
                    asked.iter().for_each(|one| {
                        watch.end(*one);
                    });
                }
                if entry.arrival.is_local() {
                    self.push(entry.arrival);
                }
            }
        }
        for waiting in self.behind_scans.values_mut() {
            waiting.retain(|arrival| arrival.is_local() || mutated(Mutant::BehindScanKept));
        }
        self.ids_behind_scans = Lookup::new();
        let kept: BTreeSet<(u64, Identity)> = std::mem::take(&mut self.until);
        let mut waiting = std::mem::take(&mut self.waiting);
        self.waiting_count = 0;
        for (_, identity) in kept {
            for arrival in waiting.remove(&identity).unwrap_or_default().line {
                if arrival.is_local() {
                    self.await_outcome(identity, arrival);
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
            self.waiting_count,
            self.behind_scans.iter().map(|(scan, waiting)| (scan, waiting.len())).collect::<Vec<_>>(),
            self.requests.entries.front(),
            self.local.entries.front()
        )
    }

    /// How many wait for the outcome of this identity, for messages of tests.
    #[cfg(test)]
    pub(super) fn awaiting(&self, identity: Identity) -> usize {
        self.waiting.get(&identity).map_or(0, |waiting| waiting.line.len())
    }
}
