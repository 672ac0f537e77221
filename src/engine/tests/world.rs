//! A store, a broker and two clocks, as far as the engine can tell: everything happens when a test says so.

use super::fake_store::FakeStore;
use crate::engine::event::*;
use crate::engine::types::*;
use crate::engine::Engine;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub(super) const CONFIRMED: Outcome = Outcome::Confirmed(BatchId([7; 16]));

pub(super) const T0: u64 = 1_800_000_000_000;

#[derive(Debug)]
pub(super) enum Job {
    Commit(Vec<Op>, Token, Marks),
    Load(Load),
}

/// An ingest message that the broker holds until it is acked.
#[derive(Clone)]
pub(super) struct Pending {
    pub(super) body: RequestBody,
    pub(super) tag: Option<u64>,
    /// It was delivered before.
    pub(super) seen: bool,
}

pub(super) struct World {
    pub(super) engine: Engine,
    pub(super) settings: Settings,
    pub(super) now: Now,
    /// What has been executed, hence is durable.
    pub(super) store: FakeStore,
    /// The same with all that was handed over, kept beside it where `follow` is set.
    pub(super) logical: FakeStore,
    pub(super) follow: bool,
    pub(super) jobs: VecDeque<Job>,
    /// Contents wanted, where they are read beside the commits (`beside`) and not in line with them.
    pub(super) reads: VecDeque<Vec<(u64, Place, Key)>>,
    pub(super) beside: bool,
    /// Published and not settled.
    pub(super) out: Vec<Batch>,
    /// Published since somebody last looked, with the moment, and whether the egress end was open.
    pub(super) fresh: Vec<(Now, bool, Batch)>,
    pub(super) egress: (bool, bool),
    /// Confirmed, in order.
    pub(super) delivered: Vec<(Now, Batch)>,
    pub(super) acks: Vec<Ack>,
    pub(super) replies: Vec<Reply>,
    pub(super) generation: u32,
    pub(super) tag: u64,
    pub(super) queue: Vec<Pending>,
    pub(super) intake_open: bool,
    /// Orders to the consumer that nobody has looked at yet.
    pub(super) orders: VecDeque<Intake>,
    pub(super) lives: u64,
}

pub(super) fn settings() -> Settings {
    Settings {
        defaults: Arc::new(AppSettings::default()),
        applications: BTreeMap::new(),
        hold_max: None,
        budget: Budget::of(64 << 20),
        customers: 1_000,
        max_in_flight: 100,
        max_in_flight_bytes: 8 << 20,
    }
}

pub(super) fn with(change: impl FnOnce(&mut AppSettings)) -> Settings {
    let mut app = AppSettings::default();
    change(&mut app);
    Settings { defaults: Arc::new(app), ..settings() }
}

/// An item; `id` doubles as its payload.
pub(super) fn item(application: &str, customer: &str, id: &str) -> NewItem {
    NewItem {
        application: application.into(),
        customer: (!customer.is_empty()).then(|| customer.into()),
        at: None,
        expiry: None,
        identity: None,
        on_duplicate: DuplicateRule::Keep,
        fingerprint: 0,
        weight: 100,
        content: Arc::new(Content { properties: vec![], body: id.as_bytes().to_vec(), json: false }),
    }
}

/// Names an item by a text, as the border would with a hash of it.
pub(super) fn identity(application: &str, id: &str) -> Identity {
    let mut hash = [0u8; 16];
    for (place, byte) in application.bytes().chain([0]).chain(id.bytes()).enumerate() {
        hash[place % 16] = hash[place % 16].wrapping_mul(31).wrapping_add(byte).rotate_left(3) ^ place as u8;
    }
    Identity::given(hash)
}

pub(super) fn with_id(id: &str, rule: DuplicateRule, item: NewItem) -> NewItem {
    NewItem { identity: Some(identity(&item.application, id)), on_duplicate: rule, ..item }
}

pub(super) fn target(application: &str, id: &str) -> Target {
    Target {
        application: application.into(),
        id: id.into(),
        identity: identity(application, id),
        assigned: None,
    }
}

pub(super) fn at(at: u64, item: NewItem) -> NewItem {
    NewItem { at: Some(at), ..item }
}

pub(super) fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

pub(super) fn name(item: &BatchItem) -> String {
    String::from_utf8_lossy(&item.content.body).into_owned()
}

/// Payloads that left, in that order, and those that are dead with their reasons.
pub(super) fn ends(w: &World) -> (Vec<String>, Vec<(String, Reason)>) {
    let (mut sent, mut dead) = (vec![], vec![]);
    for (_, batch) in &w.delivered {
        for item in &batch.items {
            match &batch.dead {
                Some(verdict) => dead.push((name(item), verdict.reason)),
                None => sent.push(name(item)),
            }
        }
    }
    (sent, dead)
}

impl World {
    /// A fresh store, both ends connected, at [`T0`].
    pub(super) fn new(settings: Settings) -> Self {
        let now = Now { wall: T0, mono: 1_000 };
        let store = FakeStore::default();
        let engine = Engine::new(settings.clone(), &store.opened(), 1, now);
        let mut world = World {
            engine,
            settings,
            now,
            logical: store.clone(),
            store,
            follow: false,
            jobs: VecDeque::new(),
            reads: VecDeque::new(),
            beside: false,
            out: vec![],
            fresh: vec![],
            egress: (false, false),
            delivered: vec![],
            acks: vec![],
            replies: vec![],
            generation: 0,
            tag: 0,
            queue: vec![],
            intake_open: false,
            orders: VecDeque::new(),
            lives: 1,
        };
        world.connect();
        world
    }

    pub(super) fn connect(&mut self) {
        self.generation += 1;
        self.tag = 0;
        self.queue.iter_mut().for_each(|p| p.tag = None);
        let generation = self.generation;
        self.input(Input::IngestReady { generation });
        self.input(Input::EgressReady);
    }

    /// kill -9 and a start: what was not executed is gone, what was not acked comes back.
    pub(super) fn crash(&mut self) {
        self.jobs.clear();
        self.reads.clear();
        self.out.clear();
        self.orders.clear();
        self.logical = self.store.clone();
        self.egress = (false, false);
        self.intake_open = false;
        self.lives += 1;
        self.engine = Engine::new(self.settings.clone(), &self.store.opened(), self.lives, self.now);
        self.connect();
    }

    /// After a start: what must be loaded before the first request is taken.
    pub(super) fn restore(&mut self) {
        for _ in 0..200 {
            self.drain_jobs();
            if self.intake_open || self.engine.snapshot(self.now).windows * 10 >= self.settings.customers * 9
            {
                return;
            }
            self.input(Input::Tick);
        }
        panic!("the intake does not open: {:?}", self.engine.snapshot(self.now));
    }

    /// A crash of an engine that does not take requests at once.
    pub(super) fn crash_paused(&mut self) {
        self.jobs.clear();
        self.out.clear();
        self.lives += 1;
        self.intake_open = false;
        self.engine = Engine::new(self.settings.clone(), &self.store.opened(), self.lives, self.now);
        self.connect();
        self.drain_jobs();
    }

    pub(super) fn input(&mut self, input: Input) {
        if let Input::EgressBlocked(blocked) = input {
            self.egress.1 = blocked;
        } else if matches!(input, Input::EgressReady) {
            self.egress = (true, false);
        } else if matches!(input, Input::EgressLost) {
            self.egress.0 = false;
        }
        let fx = self.engine.handle(input, self.now);
        if let Some((token, marks)) = fx.commit {
            if self.follow {
                self.logical.apply(fx.store.clone(), marks);
            }
            self.jobs.push_back(Job::Commit(fx.store, token, marks));
        } else {
            assert!(fx.store.is_empty(), "operations come with a commit");
        }
        for ack in &fx.acks {
            self.take_ack(*ack);
        }
        self.acks.extend(fx.acks);
        if self.follow {
            let open = self.egress == (true, false);
            self.fresh.extend(fx.publishes.iter().map(|batch| (self.now, open, batch.clone())));
        }
        self.out.extend(fx.publishes);
        for load in fx.loads {
            match load {
                Load::Contents(wanted) if self.beside => self.reads.push_back(wanted),
                load @ (Load::Time { .. }
                | Load::Lane { .. }
                | Load::Group { .. }
                | Load::Find(_)
                | Load::Walk(_)
                | Load::Contents(_)) => {
                    self.jobs.push_back(Job::Load(load));
                }
            }
        }
        self.take_replies(fx.replies);
        if let Some(intake) = fx.intake {
            self.intake_open = intake == Intake::Resume;
            self.orders.push_back(intake);
        }
    }

    /// Answers are out at once.
    fn take_replies(&mut self, replies: Vec<Reply>) {
        let remote = |reply: &Reply| match reply.asker {
            Asker::Remote { delivery, .. } => Some(delivery),
            Asker::Local(_) => None,
        };
        let out: Vec<Delivery> = replies.iter().filter_map(remote).collect();
        self.replies.extend(replies);
        if !out.is_empty() {
            self.input(Input::Answered(out));
        }
    }

    /// Asks a command of this process, and gives the answer that comes while the store does its work.
    pub(super) fn ask(&mut self, command: Command) -> Answer {
        let number = 1_000 + self.replies.len() as u64;
        self.input(Input::Commands(vec![(Asker::Local(number), command)]));
        self.drain_jobs();
        self.answer_to(number).expect("an answer")
    }

    pub(super) fn answer_to(&self, number: u64) -> Option<Answer> {
        let found = self.replies.iter().find(|reply| reply.asker == Asker::Local(number));
        found.map(|reply| reply.answer.clone())
    }

    fn take_ack(&mut self, ack: Ack) {
        if ack.delivery.generation != self.generation {
            return;
        }
        let tag = ack.delivery.tag;
        self.queue.retain(|p| !p.tag.is_some_and(|t| t == tag || (ack.multiple && t < tag)));
    }

    /// Publishes requests to the ingest queue and delivers them.
    pub(super) fn send(&mut self, items: Vec<NewItem>) {
        for item in items {
            self.queue.push(Pending { body: RequestBody::Items(vec![item]), tag: None, seen: false });
        }
        self.deliver(usize::MAX);
    }

    /// Delivers up to `count` of what waits in the ingest queue.
    pub(super) fn deliver(&mut self, count: usize) {
        let mut requests = vec![];
        for pending in self.queue.iter_mut().filter(|p| p.tag.is_none()).take(count) {
            self.tag += 1;
            pending.tag = Some(self.tag);
            requests.push(Request {
                delivery: Delivery { generation: self.generation, tag: self.tag },
                redelivered: std::mem::replace(&mut pending.seen, true),
                received: self.now.wall,
                body: pending.body.clone(),
            });
        }
        if !requests.is_empty() {
            self.input(Input::Requests(requests));
        }
    }

    /// Executes the oldest job of the store.
    pub(super) fn do_job(&mut self) -> bool {
        self.do_job_in_pieces(usize::MAX)
    }

    /// The same; a read brings at most so many rows.
    pub(super) fn do_job_in_pieces(&mut self, most: usize) -> bool {
        match self.jobs.pop_front() {
            None => false,
            Some(Job::Commit(ops, token, marks)) => {
                self.store.apply(ops, marks);
                self.input(Input::Committed(token));
                true
            }
            Some(Job::Load(load)) => {
                let loaded = self.store.load(load, most);
                self.input(Input::Loaded(loaded));
                true
            }
        }
    }

    /// Reads contents beside the commits. What is not there yet is looked for again behind all that was queued.
    pub(super) fn do_read(&mut self) -> bool {
        let Some(wanted) = self.reads.pop_front() else { return false };
        match self.store.contents(&wanted) {
            Some(found) => self.input(Input::Loaded(Loaded::Contents(found))),
            None => self.jobs.push_back(Job::Load(Load::Contents(wanted))),
        }
        true
    }

    pub(super) fn drain_jobs(&mut self) {
        for _ in 0..20_000 {
            if !self.do_job() && !self.do_read() {
                return;
            }
        }
        let last: Vec<String> = self.jobs.iter().map(|job| format!("{job:?}")).collect();
        panic!("the store is never done: {last:?} {:?}", self.engine.snapshot(self.now));
    }

    /// Settles the n-th of what is out.
    pub(super) fn settle(&mut self, nth: usize, outcome: Outcome) -> Batch {
        let batch = self.out.remove(nth);
        if matches!(outcome, Outcome::Confirmed(_)) {
            self.delivered.push((self.now, batch.clone()));
        }
        self.input(Input::Settled(vec![Settled { number: batch.number, outcome }]));
        batch
    }

    /// The first of what is out, once the store has done what that needs.
    pub(super) fn first_out(&mut self) -> Option<Batch> {
        if self.out.is_empty() {
            self.drain_jobs();
        }
        self.out.first().cloned()
    }

    pub(super) fn confirm_all(&mut self) {
        while !self.out.is_empty() {
            self.settle(0, CONFIRMED);
        }
    }

    pub(super) fn advance(&mut self, ms: u64) {
        self.now.wall += ms;
        self.now.mono += ms;
        self.input(Input::Tick);
    }

    /// Everything in its time: the store at once, the broker at once, the clock to the next deadline, until `ms`
    /// have passed.
    pub(super) fn run(&mut self, ms: u64) {
        let end = self.now.mono + ms;
        for _ in 0..100_000 {
            self.drain_jobs();
            self.confirm_all();
            self.drain_jobs();
            if !self.out.is_empty() {
                continue;
            }
            let deadline = self.engine.next_deadline();
            let wall = deadline.wall.map(|at| at.saturating_sub(self.now.wall));
            let mono = deadline.mono.map(|at| at.saturating_sub(self.now.mono));
            let wait = wall.into_iter().chain(mono).min().unwrap_or(u64::MAX);
            let left = end - self.now.mono;
            if wait > left {
                self.now.wall += left;
                self.now.mono += left;
                self.input(Input::Tick);
                return;
            }
            self.advance(wait);
        }
        panic!("the engine does not come to rest: {:?}", self.engine.next_deadline());
    }

    /// Names of delivered items, batch by batch, with the moment of delivery after [`T0`].
    pub(super) fn story(&self) -> Vec<(u64, Vec<String>)> {
        self.delivered.iter().map(|(now, b)| (now.wall - T0, b.items.iter().map(name).collect())).collect()
    }
}
