//! Commands that go over many items: all of a customer, all parked ones, a page of a list.
//!
//! Each goes over memory at once and over the store in bounded steps, between which everything else goes on: the daemon
//! never waits for it. What a step brings is judged by what memory knows then: an item that came into memory meanwhile is
//! met there, and one that ended meanwhile is passed over. Items that arrived after the command are not its own.

use super::event::{Along, Load, Place, Stored, Walk};
use super::table::State;
use super::types::{Answer, Asker, Command, CustomerOf, End, Filter, Key, Listed, Now, Stage};
use super::{Engine, DEAD};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Rows of one step.
const STEP_ROWS: usize = 1_000;
/// Rows looked at in one step: some milliseconds of reading, in which commits wait.
const STEP_LOOKED_AT: usize = 4_000;
/// Steps that one page of a list may take; then it comes as it is, and says where to go on.
const LIST_STEPS: u32 = 100;
/// Walks at one time.
const WALKS: usize = 64;
/// How long a walk waits for the outcome of items in flight, ms.
const OUTCOME_MS: u64 = super::command::OUTCOME_MS;

/// What a command asks that goes over many items.
#[derive(Clone, Debug)]
pub(super) enum Errand {
    CancelAll(CustomerOf),
    Count(CustomerOf),
    List(Filter),
    DropParked(Box<str>),
    /// Nobody's command: an application is at its limit, and drops what arrived first.
    Oldest(Box<str>),
}

/// One command on its way.
#[derive(Debug)]
pub(super) struct Task {
    errand: Errand,
    /// Who asked what; nobody where the engine asked itself.
    command: Option<(Asker, Command)>,
    /// Items from this arrival number on came later.
    before: u64,
    /// What came behind it waits until the store has been gone over.
    holds: bool,
    /// What is still to be gone along, the last one first.
    left: Vec<Along>,
    steps: u32,
    count: u64,
    /// Items in flight, by arrival number, and until when their outcome is waited for.
    in_flight: BTreeSet<u64>,
    until: u64,
    tally: Tally,
    page: Vec<Listed>,
    /// Items of a list that have no row in the store, in order of key, the last one first.
    unstored: Vec<Listed>,
}

#[derive(Debug, Default)]
struct Tally {
    seen: BTreeSet<u64>,
    by_stage: [u64; 3],
    next_due: Option<u64>,
}

impl Engine {
    /// What the engine wants to know itself; arrivals wait for it.
    pub(super) fn begin_errand(&mut self, errand: Errand, now: Now) {
        self.begin_task(errand, None, true, now);
    }

    pub(super) fn begin_walk(&mut self, errand: Errand, command: Command, asker: Asker, now: Now) {
        if self.tasks.len() >= WALKS {
            return self.reply(
                asker,
                Some(command),
                Answer::Unavailable("too many commands of this kind at one time"),
            );
        }
        // What a producer sends behind its own command is judged after it.
        let holds = matches!((&errand, &asker), (Errand::CancelAll(_), Asker::Remote { .. }));
        self.begin_task(errand, Some((asker, command)), holds, now);
    }

    fn begin_task(&mut self, mut errand: Errand, command: Option<(Asker, Command)>, holds: bool, now: Now) {
        let number = self.next_task;
        self.next_task += 1;
        if let Errand::List(filter) = &mut errand {
            self.narrow(filter);
        }
        self.inbox.held += usize::from(holds);
        let mut task = Task {
            holds,
            left: self.ways(&errand),
            errand,
            command,
            before: self.next_seq,
            steps: 0,
            count: 0,
            in_flight: BTreeSet::new(),
            until: now.mono + OUTCOME_MS,
            tally: Tally::default(),
            page: Vec::new(),
            unstored: Vec::new(),
        };
        self.walk_memory(&mut task, now);
        self.go_on(number, task, None, now);
    }

    /// What is in flight is in memory: its keys say where in the store it can be.
    fn narrow(&self, filter: &mut Filter) {
        if filter.state != Some(Stage::InFlight) || !self.is_durable() {
            return;
        }
        let keys = || self.rows.ids().filter(|id| self.is_in_flight(*id)).map(|id| self.rows[id].key);
        filter.from = filter.from.max(keys().min().unwrap_or(Key { due: u64::MAX, seq: u64::MAX }));
        let end = keys().max().map_or(0, |key| key.due.saturating_add(1));
        filter.until = Some(filter.until.map_or(end, |until| until.min(end)));
    }

    /// What of the store has to be looked at: nothing, where memory holds all.
    fn ways(&self, errand: &Errand) -> Vec<Along> {
        if !self.is_durable() {
            return Vec::new();
        }
        let lane_of = |application: &str| {
            let app = self.names.get(application)?;
            self.apps[*app].lane.as_ref().filter(|lane| lane.count > lane.in_memory)
        };
        match errand {
            Errand::CancelAll(of) | Errand::Count(of) => {
                let mut ways = Vec::new();
                if lane_of(&of.application).is_some() {
                    ways.push(Along::Lane);
                }
                if self.far() > 0 {
                    ways.push(Along::Customer);
                }
                ways
            }
            Errand::DropParked(application) => {
                let parked = self.names.get(&**application).is_some_and(|app| self.is_parked(*app));
                lane_of(application).filter(|_| parked).map(|_| Along::Lane).into_iter().collect()
            }
            Errand::Oldest(_) => vec![Along::All],
            Errand::List(filter) => match filter.state {
                Some(Stage::Parked) => vec![Along::Lane],
                Some(Stage::Waiting | Stage::InFlight) | None => vec![Along::All],
            },
        }
    }

    /// The command's items in memory.
    fn walk_memory(&mut self, task: &mut Task, now: Now) {
        match task.errand.clone() {
            Errand::CancelAll(of) => {
                let ids = self.rows_of_customer(&of);
                self.cancel_some(task, ids, now);
            }
            Errand::DropParked(application) => {
                let Some(app) = self.names.get(&*application).copied() else { return };
                if !self.is_parked(app) {
                    return;
                }
                let parked = |id: &u32| {
                    let row = &self.rows[*id];
                    let due = matches!(row.state, State::Ready | State::Flying(_));
                    row.app == app && (row.in_lane || due)
                };
                let ids = self.rows.ids().filter(parked).collect();
                self.cancel_some(task, ids, now);
            }
            Errand::Count(of) => {
                for id in self.rows_of_customer(&of) {
                    let listed = self.listed(id);
                    task.tally.add(&listed);
                }
            }
            Errand::List(filter) => {
                let unstored: Vec<u32> = if self.is_durable() {
                    self.deferred
                        .iter()
                        .filter(|(_, id, seq)| self.by_seq.get(seq) == Some(id))
                        .map(|d| d.1)
                        .collect()
                } else {
                    self.rows.ids().collect()
                };
                let wanted = |id: &u32| !self.rows[*id].stored && self.rows[*id].app != DEAD;
                let rows = unstored.into_iter().filter(wanted);
                let listed = rows.map(|id| self.listed(id)).filter(|item| filter.takes(item));
                task.unstored = listed.collect();
                task.unstored.sort_unstable_by_key(|item| std::cmp::Reverse(item.key));
            }
            Errand::Oldest(_) => {}
        }
    }

    fn rows_of_customer(&self, of: &CustomerOf) -> Vec<u32> {
        let Some(app) = self.names.get(&*of.application) else { return Vec::new() };
        let Some(group) = self.apps[*app].groups.get(&*of.customer).copied() else { return Vec::new() };
        self.rows.ids().filter(|id| self.rows[*id].group == group).collect()
    }

    /// Takes back what can be; what is in flight is noted, to be looked at again when its attempt has ended.
    fn cancel_some(&mut self, task: &mut Task, ids: Vec<u32>, now: Now) {
        let mine = ids.into_iter().filter(|id| self.rows[*id].key.seq < task.before);
        let (busy, free): (Vec<u32>, Vec<u32>) =
            mine.partition(|id| self.is_in_flight(*id) || self.rows[*id].unsure);
        task.in_flight.extend(busy.iter().map(|id| self.rows[*id].key.seq));
        task.count += free.len() as u64;
        let end = task.command.as_ref().map_or(End::Cancelled, |(asker, _)| asker.end_of_cancel());
        self.cancel_rows(&free, &end, now);
    }

    /// The next step, the wait for what is in flight, or the answer.
    fn go_on(&mut self, number: u64, mut task: Task, next: Option<Key>, now: Now) {
        if let Some(walk) = self.next_step(number, &mut task, next) {
            self.cursor.begin_other();
            self.fx.loads.push(Load::Walk(walk));
            self.tasks.insert(number, task);
            return;
        }
        self.inbox.held -= usize::from(std::mem::take(&mut task.holds));
        if task.in_flight.is_empty() || task.until <= now.mono {
            self.end_task(task, None);
        } else {
            self.tasks.insert(number, task);
        }
    }

    fn next_step(&self, number: u64, task: &mut Task, next: Option<Key>) -> Option<Walk> {
        let along = *task.left.last()?;
        task.steps += 1;
        let start = Key::default();
        let (application, customer, from, until): (Option<Arc<str>>, Option<Arc<str>>, Key, u64) =
            match &task.errand {
                Errand::CancelAll(of) | Errand::Count(of) => {
                    let from = if along == Along::Customer { self.low_mark() } else { start };
                    (Some((&*of.application).into()), Some((&*of.customer).into()), from, u64::MAX)
                }
                Errand::DropParked(application) | Errand::Oldest(application) => {
                    (Some((&**application).into()), None, start, u64::MAX)
                }
                Errand::List(filter) => {
                    // Below the low mark there is nothing but tombstones, in the time index; a lane has its own.
                    let until = filter.until.unwrap_or(u64::MAX);
                    (filter.application.clone(), filter.customer.clone(), filter.from, until)
                }
            };
        let from = next.unwrap_or(from);
        let low = self.low_mark();
        let max_rows = match &task.errand {
            Errand::List(filter) if filter.state.is_none() => (filter.limit - task.page.len()).min(STEP_ROWS),
            Errand::List(_)
            | Errand::CancelAll(_)
            | Errand::Count(_)
            | Errand::DropParked(_)
            | Errand::Oldest(_) => STEP_ROWS,
        };
        Some(Walk {
            number,
            along,
            from,
            low,
            until,
            application,
            customer,
            max_rows,
            max_looked_at: STEP_LOOKED_AT,
        })
    }

    /// A step has come back.
    pub(super) fn walked(&mut self, number: u64, rows: Vec<(Place, Stored)>, next: Option<Key>, now: Now) {
        let Some(mut task) = self.tasks.remove(&number) else { return };
        let mut cancel = Vec::new();
        let rest = next;
        for (place, stored) in rows {
            let seq = stored.key.seq;
            let known = self.by_seq.get(&seq).copied();
            let lane = match &place {
                Place::Time => None,
                Place::Lane(name) => self.names.get(name).copied(),
            };
            if known.is_none() && !self.cursor.is_current(seq, lane) {
                continue;
            }
            match &task.errand {
                Errand::CancelAll(_) | Errand::DropParked(_) if seq < task.before => {
                    cancel.extend(known.or_else(|| self.fetch((place, stored), now)));
                }
                Errand::Count(_) | Errand::List(_) => {
                    let listed = match known {
                        Some(id) if self.rows[id].app == DEAD => continue,
                        Some(id) => Listed { properties: stored.content, ..self.listed(id) },
                        None => self.listed_far(&place, stored),
                    };
                    task.take(listed);
                }
                Errand::Oldest(application) if known.is_none() => {
                    let app = self.names.get(&**application).copied();
                    app.into_iter().for_each(|app| {
                        self.note_oldest(app, place.clone(), Stored { content: None, ..stored.clone() });
                    });
                }
                Errand::CancelAll(_) | Errand::DropParked(_) | Errand::Oldest(_) => {}
            }
        }
        cancel.sort_unstable();
        cancel.dedup();
        self.cancel_some(&mut task, cancel, now);
        if rest.is_none() {
            task.left.pop();
        }
        if let Errand::List(filter) = &task.errand {
            let full = task.page.len() >= filter.limit;
            if full || task.left.is_empty() || task.steps >= LIST_STEPS {
                return self.end_task(task, rest);
            }
        }
        self.go_on(number, task, rest, now);
    }

    /// Attempts may have ended that a walk waits for, or its patience has.
    pub(super) fn settle_tasks(&mut self, now: Now) {
        let waiting = self.tasks.iter().filter(|(_, task)| task.left.is_empty());
        for number in waiting.map(|(number, _)| *number).collect::<Vec<_>>() {
            let Some(mut task) = self.tasks.remove(&number) else { continue };
            let over = task.until <= now.mono;
            let mut ended = Vec::new();
            for seq in std::mem::take(&mut task.in_flight) {
                match self.by_seq.get(&seq).copied() {
                    // Sent, or dead.
                    None => {}
                    Some(id) if self.rows[id].app == DEAD => {}
                    Some(id) if self.is_in_flight(id) || self.rows[id].unsure => {
                        task.in_flight.insert(seq);
                    }
                    Some(id) => ended.push(id),
                }
            }
            self.cancel_some(&mut task, ended, now);
            if over || task.in_flight.is_empty() {
                self.end_task(task, None);
            } else {
                self.tasks.insert(number, task);
            }
        }
    }

    /// When the first walk loses its patience, monotonic.
    pub(super) fn task_deadline(&self) -> Option<u64> {
        self.tasks.values().filter(|task| task.left.is_empty()).map(|task| task.until).min()
    }

    fn end_task(&mut self, mut task: Task, next: Option<Key>) {
        self.inbox.held -= usize::from(task.holds);
        let answer = match &task.errand {
            Errand::Oldest(application) => return self.oldest_found(application, task.before),
            Errand::Count(_) => {
                let [waiting, in_flight, parked] = task.tally.by_stage;
                Answer::Counted { waiting, in_flight, parked, next_due: task.tally.next_due }
            }
            Errand::List(filter) => {
                let limit = filter.limit;
                let next = task.cut(limit, next);
                Answer::Listed { items: std::mem::take(&mut task.page), next }
            }
            Errand::CancelAll(_) | Errand::DropParked(_) => {
                Answer::Cancelled { count: task.count, in_flight: task.in_flight.len() as u64 }
            }
        };
        if let Some((asker, command)) = task.command {
            self.reply(asker, Some(command), answer);
        }
    }
}

impl Task {
    fn take(&mut self, item: Listed) {
        if let Errand::List(filter) = &self.errand {
            if filter.takes(&item) {
                self.page.push(item);
            }
        } else if item.key.seq < self.before {
            self.tally.add(&item);
        }
    }

    /// Puts the items that have no row in the store in their places, and cuts the page; gives the first key left out.
    fn cut(&mut self, limit: usize, next: Option<Key>) -> Option<Key> {
        let reached = |item: &Listed| next.is_none_or(|next| item.key < next);
        self.page.extend(self.unstored.drain(..).filter(reached));
        self.page.sort_unstable_by_key(|item| item.key);
        self.page.dedup_by_key(|item| item.key);
        if self.page.len() <= limit {
            return next;
        }
        let first_left_out = self.page[limit].key;
        self.page.truncate(limit);
        Some(first_left_out)
    }
}

impl Tally {
    fn add(&mut self, item: &Listed) {
        if self.seen.insert(item.key.seq) {
            self.by_stage[item.stage as usize] += 1;
            self.next_due = Some(self.next_due.map_or(item.due, |due| due.min(item.due)));
        }
    }
}

impl Filter {
    fn takes(&self, item: &Listed) -> bool {
        self.application.as_ref().is_none_or(|name| *name == item.application)
            && self.customer.as_ref().is_none_or(|name| Some(name) == item.customer.as_ref())
            && self.state.is_none_or(|stage| stage == item.stage)
            && item.key >= self.from
            && self.until.is_none_or(|until| item.key.due < until)
    }
}
