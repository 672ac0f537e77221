//! One identity, (application, id), for everything: who is there, who was, and what a request with a known id comes to.
//!
//! Requests and commands are judged in the order in which they came. One whose id is not in memory, and may be in the
//! store, waits for the store's answer, and what came after it waits behind it: so arrival order stays what it was, and
//! two requests with one id meet each other. The store is asked for many at a time, ahead of their turn; an answer that
//! something has overtaken since is not believed, and asked for again.
//!
//! What is in flight has no end yet: a request that depends on it waits until its attempt has ended.

use super::event::{Found, Load, Place, Stored, Wanted};
use super::plant::{planted, Plant};
use super::slab::NIL;
use super::table::{Phase, State};
use super::types::{
    Asker, Command, Dead, Delivery, DuplicateRule, End, Ended, Identity, NewItem, Now, Reason, Rejected,
    Request, RequestBody, Target,
};
use super::{Engine, SeqHasher, DEAD};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::BuildHasherDefault;

/// Most identities asked for in one read.
const ASK: usize = 1_024;

/// Most arrivals in the line that have been asked for ahead of their turn.
const ASK_AHEAD: usize = 8_192;

/// What a rule did to a request whose id was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Dropped,
    Replaced,
    Anew,
    Rejected,
}

/// One thing that has come in and has not been judged.
#[derive(Debug)]
pub(super) enum Arrival {
    Item(Box<NewItem>, Origin),
    Rejected(Box<Rejected>, Origin),
    Command(Command, Asker),
}

/// Where an item came from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) delivery: Delivery,
    pub(super) received: u64,
    pub(super) redelivered: bool,
}

/// What is known of an arrival's identity.
#[derive(Debug)]
enum Knowledge {
    /// Nobody has asked; perhaps nobody need.
    Unasked,
    /// With the question of this number, for so many identities.
    Asked(u64, usize),
    /// The answer to that question.
    Known(u64, Vec<Found>),
}

/// The line of arrivals, and what is being asked for them.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    line: VecDeque<(Arrival, Knowledge)>,
    /// Questions put and answered so far; answers up to `void` are of no use any more.
    asked: u64,
    answered: u64,
    void: u64,
    /// So many arrivals at the head of the line have been asked for, as far as need be.
    ahead: usize,
    /// Identities whose whereabouts changed, with the last question put before; an answer to that or an earlier one may
    /// be out of date.
    touched: HashMap<Identity, u64>,
    touches: VecDeque<(u64, Identity)>,
    /// Commands that must end before anything behind them is judged.
    pub(super) held: usize,
}

impl Inbox {
    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// All questions under way are void: what has not been judged is asked for again, in order.
    fn ask_anew(&mut self) {
        self.line.iter_mut().for_each(|(_, knowledge)| *knowledge = Knowledge::Unasked);
        self.ahead = 0;
        self.void = self.asked;
        self.forget_before(u64::MAX);
    }

    /// Questions up to this one have been used up, or nobody waits for them.
    fn forget_before(&mut self, question: u64) {
        while let Some((number, identity)) = self.touches.front().copied() {
            if number >= question {
                break;
            }
            self.touches.pop_front();
            if self.touched.get(&identity) == Some(&number) {
                self.touched.remove(&identity);
            }
        }
    }
}

/// An item that has not ended: in memory, or in the store alone.
pub(super) enum Live {
    Row(u32),
    Far(Box<(Place, Stored)>),
}

/// What became of an identity, as far as anybody remembers.
pub(super) enum Whereabouts {
    Live(Live),
    Ended(Box<Ended>),
    Nowhere,
}

pub(super) type ByIdentity = HashMap<Identity, u32, BuildHasherDefault<SeqHasher>>;

/// Arrivals that wait for the end of an attempt, by the item that is in flight; and until when, monotonic.
pub(super) type Undecided = BTreeMap<Identity, VecDeque<(u64, Arrival)>>;

impl Engine {
    pub(super) fn take_requests(&mut self, requests: Vec<Request>, now: Now) {
        for request in requests {
            let Request { delivery, redelivered, received, body } = request;
            // What comes while nothing is taken goes back with the channel.
            if self.gate != super::Gate::Open || !self.ledger.is_current(delivery) {
                continue;
            }
            self.counters.received += 1;
            self.counters.redelivered += u64::from(redelivered);
            let origin = Origin { delivery, received, redelivered };
            match body {
                RequestBody::Items(items) => {
                    self.ledger.open(delivery, items.len() as u32);
                    for item in items {
                        let direct = item.identity.is_none() && self.inbox.is_empty() && self.restored;
                        if direct && !self.looks_for_oldest(&item.application, now) {
                            self.accept(item, origin, false, now);
                        } else {
                            self.arrived(Arrival::Item(Box::new(item), origin));
                        }
                    }
                }
                RequestBody::Rejected(rejected) => {
                    self.ledger.open(delivery, 1);
                    self.arrived(Arrival::Rejected(rejected, origin));
                }
                RequestBody::Command(command, reply_to) => {
                    self.ledger.open(delivery, 1);
                    self.arrived(Arrival::Command(
                        command,
                        Asker::Remote { delivery, redelivered, reply_to },
                    ));
                }
            }
        }
    }

    pub(super) fn arrived(&mut self, arrival: Arrival) {
        self.inbox.line.push_back((arrival, Knowledge::Unasked));
    }

    /// Judges what has arrived, as far as what is known allows, and asks for the rest.
    pub(super) fn judge_arrivals(&mut self, now: Now) {
        if !self.restored && !self.may_open_intake() {
            return;
        }
        while self.inbox.held == 0 {
            let Some((arrival, knowledge)) = self.inbox.line.pop_front() else { break };
            let known = match knowledge {
                Knowledge::Asked(..) => {
                    self.inbox.line.push_front((arrival, knowledge));
                    break;
                }
                Knowledge::Known(question, found) => {
                    self.inbox.forget_before(question);
                    let touched = &self.inbox.touched;
                    let overtaken = |id: &Identity| touched.get(id).is_some_and(|last| *last >= question);
                    (!self.wanted_by(&arrival).iter().any(overtaken)).then_some(found)
                }
                Knowledge::Unasked => None,
            };
            if let Some(application) = arrival.opens_item() {
                if self.looks_for_oldest(application, now) {
                    self.inbox.ask_anew();
                    self.inbox.line.push_front((arrival, Knowledge::Unasked));
                    break;
                }
            }
            if known.is_none() && !self.questions(&arrival, now).is_empty() {
                // Memory knew, when those behind it were asked for. Questions stand in the order of the line.
                self.inbox.ask_anew();
                self.inbox.line.push_front((arrival, Knowledge::Unasked));
                break;
            }
            self.inbox.ahead = self.inbox.ahead.saturating_sub(1);
            self.judge(arrival, known.unwrap_or_default(), now);
        }
        if self.inbox.line.is_empty() {
            self.inbox.forget_before(u64::MAX);
        }
        self.ask(now);
    }

    /// Asks the store for identities of arrivals in the line, in their order.
    fn ask(&mut self, now: Now) {
        if self.inbox.ahead >= self.inbox.line.len() || self.inbox.ahead >= ASK_AHEAD {
            return;
        }
        let mut line = std::mem::take(&mut self.inbox.line);
        let mut wanted: Vec<Wanted> = Vec::new();
        let question = self.inbox.asked + 1;
        for (arrival, knowledge) in line.iter_mut().skip(self.inbox.ahead) {
            if wanted.len() >= ASK || self.inbox.ahead >= ASK_AHEAD {
                break;
            }
            let mut questions = self.questions(arrival, now);
            if !questions.is_empty() {
                *knowledge = Knowledge::Asked(question, questions.len());
                wanted.append(&mut questions);
            }
            self.inbox.ahead += 1;
        }
        self.inbox.line = line;
        if !wanted.is_empty() {
            self.inbox.asked = question;
            self.cursor.begin_other();
            self.fx.loads.push(Load::Find(wanted));
        }
    }

    /// The store has answered the oldest question.
    pub(super) fn found(&mut self, found: Vec<Found>) {
        self.inbox.answered += 1;
        let answered = self.inbox.answered;
        if answered <= self.inbox.void {
            return;
        }
        let mut found = found.into_iter();
        for (_, knowledge) in &mut self.inbox.line {
            match *knowledge {
                Knowledge::Asked(question, count) if question == answered => {
                    *knowledge = Knowledge::Known(question, found.by_ref().take(count).collect());
                }
                Knowledge::Asked(..) => break,
                Knowledge::Unasked | Knowledge::Known(..) => {}
            }
        }
    }

    /// What has to be asked before this can be judged: nothing, where memory knows, or the store cannot.
    fn questions(&self, arrival: &Arrival, now: Now) -> Vec<Wanted> {
        let Some(application) = arrival.application() else { return Vec::new() };
        let wanted = self.wanted_by(arrival);
        if wanted.is_empty() || wanted.iter().any(|identity| self.row_of(*identity).is_some()) {
            return Vec::new();
        }
        let app = self.names.get(application).map(|app| &self.apps[*app]);
        let tail =
            app.map_or_else(|| self.settings.of(application).dedupe_tail, |app| app.settings.dedupe_tail);
        let in_lane =
            app.is_some_and(|app| app.lane.as_ref().is_some_and(|lane| lane.count > lane.in_memory));
        let far = self.is_durable() && (self.far() > 0 || in_lane);
        let mut out = Vec::new();
        for identity in wanted {
            let buckets =
                if identity.is_given() { self.tail.buckets_of(identity, tail, now.wall) } else { Vec::new() };
            if far || !buckets.is_empty() {
                out.push(Wanted { identity, application: application.into(), buckets });
            }
        }
        out
    }

    fn wanted_by(&self, arrival: &Arrival) -> Vec<Identity> {
        match arrival {
            Arrival::Item(item, _) => item.identity.into_iter().collect(),
            Arrival::Command(Command::Cancel(target) | Command::Lookup(target), _) => {
                target.identities().collect()
            }
            Arrival::Command(..) | Arrival::Rejected(..) => Vec::new(),
        }
    }

    /// The item of this identity in memory.
    pub(super) fn row_of(&self, identity: Identity) -> Option<u32> {
        match identity.assigned_seq() {
            None => self.by_identity.get(&identity).copied(),
            Some(seq) => {
                let id = self.by_seq.get(&seq).copied()?;
                (self.rows[id].identity == identity && self.rows[id].app != DEAD).then_some(id)
            }
        }
    }

    /// The whereabouts of an identity changed in a way that an answer under way may not show.
    pub(super) fn touch(&mut self, identity: Identity) {
        if self.inbox.ahead > 0 {
            let last = self.inbox.asked;
            self.inbox.touched.insert(identity, last);
            self.inbox.touches.push_back((last, identity));
        }
    }

    fn judge(&mut self, arrival: Arrival, found: Vec<Found>, now: Now) {
        match arrival {
            Arrival::Rejected(rejected, origin) => self.reject(*rejected, origin, now),
            Arrival::Item(item, origin) => match item.identity {
                None => self.accept(*item, origin, false, now),
                Some(identity) => self.judge_item(*item, identity, origin, found, now),
            },
            Arrival::Command(command, asker) => self.execute(command, asker, found, now),
        }
    }

    /// Where an identity of this application is, or how it ended.
    pub(super) fn whereabouts(
        &mut self,
        identity: Identity,
        app: u32,
        found: Option<Found>,
        now: Now,
    ) -> Whereabouts {
        if let Some(id) = self.row_of(identity).filter(|id| self.rows[*id].app == app) {
            if !self.rows[id].is_lost() || self.is_in_flight(id) {
                return Whereabouts::Live(Live::Row(id));
            }
            // Its request is delivered again, and nothing of it is under way.
            self.leave_flight(id);
            self.give_back_to_broker(id);
        }
        let Some(found) = found else { return Whereabouts::Nowhere };
        if let Some((place, stored)) = found.item {
            if stored.dead.is_none() && *stored.application == *self.apps[app].name {
                return Whereabouts::Live(Live::Far(Box::new((place, stored))));
            }
        }
        let tail = self.apps[app].settings.dedupe_tail;
        match found.ended {
            Some(ended) if ended.at.saturating_add(tail) > now.wall => Whereabouts::Ended(Box::new(ended)),
            Some(_) | None => Whereabouts::Nowhere,
        }
    }

    /// The contract's table of duplicates, line by line.
    fn judge_item(&mut self, item: NewItem, identity: Identity, origin: Origin, found: Vec<Found>, now: Now) {
        let app = self.app(&item.application);
        let rule = item.on_duplicate;
        match self.whereabouts(identity, app, found.into_iter().next(), now) {
            Whereabouts::Nowhere => self.accept(item, origin, false, now),
            Whereabouts::Ended(ended) => {
                let again = match (&ended.end, rule) {
                    // It is the old one coming back.
                    (End::CancelledAgain, _) => true,
                    (End::Cancelled | End::Dead(_), _) => !origin.redelivered,
                    (End::Sent(_), DuplicateRule::Replace | DuplicateRule::Latest) => !origin.redelivered,
                    (End::Sent(_), DuplicateRule::Keep | DuplicateRule::Earliest) => false,
                    (End::Sent(_), DuplicateRule::Reject) => return self.reject_duplicate(item, origin, now),
                };
                if again {
                    self.count_duplicate(rule, Verdict::Anew);
                    self.accept(item, origin, false, now);
                } else {
                    self.drop_duplicate(rule, origin);
                }
            }
            Whereabouts::Live(live) => {
                let in_flight = matches!(live, Live::Row(id) if self.is_in_flight(id));
                // The end of one whose request comes again is this one's: perhaps it has been delivered.
                let lost = matches!(live, Live::Row(id) if self.rows[id].is_lost());
                match rule {
                    _ if lost => self.wait_for_end(identity, item, origin),
                    DuplicateRule::Keep => self.drop_duplicate(rule, origin),
                    DuplicateRule::Reject => self.reject_duplicate(item, origin, now),
                    _ if in_flight => self.wait_for_end(identity, item, origin),
                    DuplicateRule::Replace => self.replace(item, live, origin, now),
                    DuplicateRule::Earliest | DuplicateRule::Latest => {
                        let (old, new) = (self.due_of(&live), self.due_if_accepted(app, &item, now));
                        let wins = if rule == DuplicateRule::Earliest { new < old } else { new > old };
                        if wins {
                            self.replace(item, live, origin, now);
                        } else {
                            self.drop_duplicate(rule, origin);
                        }
                    }
                }
            }
        }
    }

    fn wait_for_end(&mut self, identity: Identity, item: NewItem, origin: Origin) {
        let waiting = self.undecided.entry(identity).or_default();
        waiting.push_back((u64::MAX, Arrival::Item(Box::new(item), origin)));
    }

    fn due_of(&self, live: &Live) -> u64 {
        match live {
            Live::Row(id) => self.rows[*id].due,
            Live::Far(found) => found.1.key.due,
        }
    }

    fn count_duplicate(&mut self, rule: DuplicateRule, verdict: Verdict) {
        let counts = &mut self.counters.duplicates[rule as usize];
        let count = match verdict {
            Verdict::Dropped => &mut counts.dropped,
            Verdict::Replaced => &mut counts.replaced,
            Verdict::Anew => &mut counts.accepted,
            Verdict::Rejected => &mut counts.dead,
        };
        *count += 1;
    }

    fn drop_duplicate(&mut self, rule: DuplicateRule, origin: Origin) {
        self.count_duplicate(rule, Verdict::Dropped);
        // It may be the same message once more: then the one that it is dropped for must be safe before it is acked.
        if planted(Plant::DuplicateAckedTooSoon) {
            self.ledger.safe(origin.delivery);
        } else {
            self.safe_once_durable(origin.delivery);
        }
    }

    fn reject_duplicate(&mut self, item: NewItem, origin: Origin, now: Now) {
        if origin.redelivered {
            return self.drop_duplicate(DuplicateRule::Reject, origin);
        }
        self.count_duplicate(DuplicateRule::Reject, Verdict::Rejected);
        let error = "an item with this id is known, and x-on-duplicate is reject";
        let dead = Dead { reason: Reason::Duplicate, error: error.into() };
        self.reject(item.rejected(dead), origin, now);
    }

    /// The new one takes the place of the old one, in one commit. Where there is no room for the new one's window, the
    /// old one stays.
    fn replace(&mut self, item: NewItem, live: Live, origin: Origin, now: Now) {
        let rule = item.on_duplicate;
        let app = self.app(&item.application);
        if let Err(dead) = self.admit_window(app, &item, now) {
            return self.reject(item.rejected(dead), origin, now);
        }
        if matches!(live, Live::Row(id) if item.identity.and_then(|identity| self.row_of(identity)) != Some(id))
        {
            // Making room has closed its window, and it has gone to its lane: it is looked for there.
            self.inbox.ask_anew();
            return self.inbox.line.push_front((Arrival::Item(Box::new(item), origin), Knowledge::Unasked));
        }
        let gone = match live {
            Live::Row(id) => Some(id),
            Live::Far(found) => self.fetch(*found, now),
        };
        let group = gone.map_or(NIL, |id| self.rows[id].group);
        self.pin_group(group);
        if let Some(id) = gone {
            // Else a producer that replaces its item again and again would keep its customer's window open for ever.
            self.inherited = self.window_of(id);
            self.take_out(&[id]);
        }
        self.counters.replaced += 1;
        self.count_duplicate(rule, Verdict::Replaced);
        self.accept(item, origin, true, now);
        self.inherited = None;
        self.unpin_group(group);
    }

    /// Brings an item into memory that was in the store alone, to be taken out at once.
    pub(super) fn fetch(&mut self, (place, stored): (Place, Stored), now: Now) -> Option<u32> {
        let seq = stored.key.seq;
        self.fetching = true;
        match place {
            Place::Time => self.restore(stored, None, now),
            Place::Lane(name) => {
                let app = self.app(&name);
                let before = self.rows.len();
                self.restore(stored, Some(app), now);
                if self.rows.len() > before {
                    self.came_from_lane(app);
                }
            }
        }
        self.fetching = false;
        self.by_seq.get(&seq).copied()
    }

    /// Published and not settled, or on its way to the publisher.
    pub(super) fn is_in_flight(&self, id: u32) -> bool {
        let State::Flying(number) = self.rows[id].state else { return false };
        self.flights.get(&number).is_some_and(|flight| match flight.phase {
            Phase::Out { .. } | Phase::Gathering { .. } => true,
            Phase::Waiting | Phase::Suspect => false,
        })
    }

    /// Items end without having been sent: they leave every list, the store, and the broker's memory of their requests.
    /// None of them is in flight.
    pub(super) fn take_out(&mut self, ids: &[u32]) {
        debug_assert!(ids.iter().all(|id| !self.is_in_flight(*id)), "what is in flight has no end yet");
        for id in ids {
            self.leave_flight(*id);
        }
        let gone: BTreeSet<u32> = ids.iter().copied().collect();
        self.unlist(ids, |id, _| gone.contains(&id));
        for id in ids {
            self.finish(*id);
        }
    }

    /// Where an attempt has ended, what waited for that is judged, in order.
    pub(super) fn settle_undecided(&mut self, now: Now) {
        if self.undecided.is_empty() {
            self.ends.clear();
            return;
        }
        let in_flight = |id: &Identity| self.row_of(*id).is_some_and(|row| self.is_in_flight(row));
        let over: Vec<Identity> =
            self.undecided.keys().filter(|identity| !in_flight(identity)).copied().collect();
        for identity in over {
            let mut waiting = self.undecided.remove(&identity).unwrap_or_default();
            let before = self.next_seq;
            let ended =
                self.ends.iter().rev().find(|(other, _)| *other == identity).map(|(_, ended)| ended.clone());
            let found = Found { item: None, ended };
            // What has neither ended nor stayed is in its lane; and what one of them brings in, those behind it have to
            // look for like anybody else.
            while self.next_seq == before && (found.ended.is_some() || self.row_of(identity).is_some()) {
                let Some((until, arrival)) = waiting.pop_front() else { break };
                self.waited_for = Some(until);
                self.judge(arrival, vec![found.clone()], now);
                self.waited_for = None;
            }
            if !waiting.is_empty() {
                self.inbox.ask_anew();
                let first = waiting.into_iter().rev().map(|(_, arrival)| (arrival, Knowledge::Unasked));
                first.for_each(|arrival| self.inbox.line.push_front(arrival));
            }
        }
        self.ends.clear();
    }

    /// Requests whose deliveries are void come again.
    pub(super) fn forget_arrivals(&mut self) {
        let is_local = |arrival: &Arrival| matches!(arrival, Arrival::Command(_, Asker::Local(_)));
        self.inbox.line.retain(|(arrival, _)| is_local(arrival));
        self.inbox.ask_anew();
        self.undecided.retain(|_, waiting| {
            waiting.retain(|(_, arrival)| is_local(arrival));
            !waiting.is_empty()
        });
    }
}

impl Arrival {
    /// The application of what may become one item more.
    fn opens_item(&self) -> Option<&str> {
        match self {
            Arrival::Item(item, _) => Some(&item.application),
            Arrival::Command(..) | Arrival::Rejected(..) => None,
        }
    }

    fn application(&self) -> Option<&str> {
        match self {
            Arrival::Item(item, _) => Some(&item.application),
            Arrival::Command(Command::Cancel(target) | Command::Lookup(target), _) => {
                Some(&target.application)
            }
            Arrival::Command(..) | Arrival::Rejected(..) => None,
        }
    }
}

impl Target {
    /// What is looked for, in this order.
    pub(super) fn identities(&self) -> impl Iterator<Item = Identity> {
        std::iter::once(self.identity).chain(self.assigned.map(Identity::assigned))
    }
}

#[cfg(test)]
impl Engine {
    /// The head of the line, for messages of tests.
    pub(super) fn arrivals(&self) -> String {
        let Inbox { line, asked, answered, void, ahead, held, .. } = &self.inbox;
        let first = line.front();
        format!(
            "{} arrivals, asked {asked} answered {answered} void {void} ahead {ahead} held {held}: {first:?}",
            line.len()
        )
    }
}
