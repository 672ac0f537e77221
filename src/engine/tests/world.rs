//! A store, a broker and two clocks, as the engine sees them: everything happens when a test says so.

pub(super) use super::builders::*;
use crate::{Engine, Seeds};
use std::collections::VecDeque;
use tidegate_fake_store::FakeStore;
use tidegate_fake_store::Twin;
use tidegate_types::event::*;
use tidegate_types::*;

pub(super) const CONFIRMED: Outcome = Outcome::Confirmed(BatchId([7; 16]));

/// Substitute for a hash over the members of a batch: the same members give the same id. A batch that is sent back and
/// leaves under its former id has that id in its properties.
pub(super) fn batch_id(batch: &Batch) -> BatchId {
    if let Ok(same) = batch.items[0].content.properties.as_slice().try_into() {
        return BatchId(same);
    }
    let number = batch.items.iter().fold(batch.items.len() as u128, |hash, item| {
        (hash ^ u128::from(item.seq)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    });
    BatchId(number.to_be_bytes())
}

/// Configured time limit of a confirm.
pub(super) const CONFIRM_MS: u64 = 30_000;

pub(super) const T0: u64 = 1_800_000_000_000;

#[derive(Debug)]
pub(super) enum Job {
    Commit(Vec<Op>, Token, Marks),
    /// With its answer before the commits that were handed over and not executed, where they do not concern it.
    Load(Load, Option<Loaded>),
}

/// An ingest message that the broker holds until it is acked.
#[derive(Clone)]
pub(super) struct Pending {
    /// Number of the message among all ever published.
    pub(super) number: usize,
    pub(super) body: RequestBody,
    /// Tag of its delivery, if it has been handed over.
    pub(super) tag: Option<u64>,
    /// It was delivered before.
    pub(super) seen: bool,
}

/// An input of the engine, as far as the reference needs it.
#[derive(Debug)]
pub(super) enum Heard {
    /// Messages by number, with tag and mark.
    Requests(Vec<(usize, u64, bool)>),
    Committed(Token),
    Settled(Vec<Settled>),
    Commands(Vec<(Asker, Command)>),
    Left(Vec<u64>),
    Answered(Vec<Delivery>),
    Forwarded(Vec<Delivery>),
    IngestReady(u32),
    IngestLost,
    Egress {
        ready: bool,
        blocked: bool,
    },
    Configure(Box<Settings>),
    StoreFull(bool),
    /// The process was killed; what follows is another engine's.
    Crash,
    Other,
}

/// One call of the engine.
pub(super) struct Call {
    pub(super) now: Now,
    pub(super) heard: Heard,
    pub(super) ops: Vec<Op>,
    pub(super) token: Option<Token>,
    pub(super) acks: Vec<Ack>,
    pub(super) publishes: Vec<Batch>,
    pub(super) replies: Vec<Reply>,
    /// The engine wants to be called again at once.
    pub(super) behind: bool,
}

impl Call {
    fn of(now: Now, heard: Heard, fx: &Effects, behind: bool) -> Self {
        let (ops, token) = (fx.store.clone(), fx.commit.map(|(token, _)| token));
        let (acks, publishes, replies) = (fx.acks.clone(), fx.publishes.clone(), fx.replies.clone());
        Call { now, heard, ops, token, acks, publishes, replies, behind }
    }
}

pub(super) struct World {
    pub(super) engine: Engine,
    pub(super) settings: Settings,
    pub(super) now: Now,
    /// All executed, hence durable, operations.
    pub(super) store: FakeStore,
    /// A real store beside it, where a test needs one.
    pub(super) twin: Option<Twin>,
    pub(super) jobs: VecDeque<Job>,
    /// The last moment at which the store was behind with its earlier work, monotonic.
    pub(super) stalled: u64,
    /// Payloads had to be read, and batches wait for them.
    pub(super) contents_read: bool,
    /// Contents and steps of scans that have been read and not yet handed back.
    pub(super) late: VecDeque<Loaded>,
    /// Answers to reads of contents and to steps of scans come at any time.
    pub(super) beside: bool,
    /// Published and not settled, with the monotonic moment.
    pub(super) out: Vec<(u64, Batch)>,
    /// Numbers of batches that are to give up their channels and have not been settled for that.
    pub(super) given_up: Vec<u64>,
    pub(super) egress: (bool, bool),
    /// Confirmed batches, in order.
    pub(super) delivered: Vec<(Now, Batch)>,
    pub(super) acks: Vec<Ack>,
    /// Acks on their way to the broker; `None` where they arrive at once.
    pub(super) acks_out: Option<VecDeque<Ack>>,
    pub(super) replies: Vec<Reply>,
    /// Answers by message that the broker has not confirmed; `None` where it confirms at once.
    pub(super) answers_out: Option<Vec<Delivery>>,
    /// Messages with parts for other shards that are not safe there; `None` where they are at once.
    pub(super) forwards_out: Option<Vec<Delivery>>,
    pub(super) generation: u32,
    pub(super) consuming: bool,
    pub(super) tag: u64,
    pub(super) queue: Vec<Pending>,
    pub(super) sent: usize,
    pub(super) intake_open: bool,
    pub(super) lives: u64,
    /// The prefetch that every engine of this world gets.
    pub(super) prefetch: Option<u16>,
    /// All calls, if a test records them.
    pub(super) log: Option<Vec<Call>>,
    /// The cost of all calls.
    pub(super) meter: Meter,
}

/// The cost of calls, in counts and not in time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meter {
    pub(super) calls: u64,
    pub(super) ops: u64,
    /// Rows touched in memory.
    pub(super) rows: u64,
    /// Maxima of one call: operations, publishes, rows touched.
    pub(super) most: (usize, usize, u64),
    /// Most content bytes that one commit moves.
    pub(super) most_moved: u64,
}

impl Meter {
    fn note(&mut self, fx: &Effects, rows: u64) {
        self.calls += 1;
        self.ops += fx.store.len() as u64;
        self.rows += rows;
        let (ops, publishes, most) = self.most;
        self.most = (ops.max(fx.store.len()), publishes.max(fx.publishes.len()), most.max(rows));
        let moved =
            fx.store.iter().map(|op| if let Op::Move { weight, .. } = op { u64::from(*weight) } else { 0 });
        self.most_moved = self.most_moved.max(moved.sum());
    }
}

impl World {
    /// A fresh store, with both connections up, at [`T0`].
    pub(super) fn new(settings: Settings) -> Self {
        let mut world = World::unconnected(settings);
        world.connect();
        world
    }

    /// A fresh store and an engine without a connection.
    pub(super) fn unconnected(settings: Settings) -> Self {
        let now = Now { wall: T0, mono: 1_000 };
        let store = FakeStore::default();
        World {
            engine: Engine::new(
                settings.clone(),
                &store.opened(now.wall),
                Seeds { jitter: 1, names: 1 },
                now,
            ),
            settings,
            now,
            store,
            twin: None,
            jobs: VecDeque::new(),
            stalled: 0,
            late: VecDeque::new(),
            beside: false,
            contents_read: false,
            out: vec![],
            given_up: vec![],
            egress: (false, false),
            delivered: vec![],
            acks: vec![],
            acks_out: None,
            replies: vec![],
            answers_out: None,
            forwards_out: None,
            generation: 0,
            consuming: false,
            tag: 0,
            queue: vec![],
            sent: 0,
            intake_open: false,
            lives: 1,
            prefetch: None,
            log: None,
            meter: Meter::default(),
        }
    }

    /// Connects both ends, and lets the store do all its work before the first request.
    pub(super) fn connect(&mut self) {
        self.input(Input::EgressReady);
        self.drain_jobs();
        self.consume();
    }

    /// Starts a consumer, if requests are wanted: what was handed over before will be redelivered.
    pub(super) fn consume(&mut self) {
        if self.consuming || !self.intake_open {
            return;
        }
        self.consuming = true;
        self.generation += 1;
        self.tag = 0;
        self.queue.iter_mut().for_each(|p| p.tag = None);
        let generation = self.generation;
        self.tell_prefetch(self.prefetch);
        self.input(Input::IngestReady { generation });
    }

    /// Sets the prefetch for this engine and later ones.
    pub(super) fn tell_prefetch(&mut self, prefetch: Option<u16>) {
        self.prefetch = prefetch;
        prefetch.into_iter().for_each(|prefetch| self.input(Input::Prefetch(prefetch)));
    }

    /// Loses the ingest connection, and the acks on their way.
    pub(super) fn lose_ingest(&mut self) {
        if let Some(acks) = &mut self.acks_out {
            acks.clear();
        }
        self.forwards_out.iter_mut().for_each(Vec::clear);
        if std::mem::take(&mut self.consuming) {
            self.input(Input::IngestLost);
        }
        self.queue.iter_mut().for_each(|p| p.tag = None);
    }

    /// kill -9: work that was not executed is gone, messages that were not acked will come back. No connection is up yet.
    pub(super) fn kill(&mut self) {
        self.jobs.clear();
        self.twin.iter_mut().for_each(|twin| twin.reopen(&self.store, self.now.wall));
        self.late.clear();
        (self.out, self.given_up) = (vec![], vec![]);
        self.egress = (false, false);
        (self.intake_open, self.consuming) = (false, false);
        self.acks_out.iter_mut().for_each(VecDeque::clear);
        self.answers_out.iter_mut().for_each(Vec::clear);
        self.forwards_out.iter_mut().for_each(Vec::clear);
        self.queue.iter_mut().for_each(|p| p.tag = None);
        self.lives += 1;
        let seeds = Seeds { jitter: self.lives, names: self.lives };
        self.engine = Engine::new(self.settings.clone(), &self.store.opened(self.now.wall), seeds, self.now);
        if let Some(log) = &mut self.log {
            log.push(Call::of(self.now, Heard::Crash, &Effects::default(), false));
        }
    }

    /// Kills the engine and connects the next one.
    pub(super) fn crash(&mut self) {
        self.kill();
        self.connect();
    }

    fn heard(&self, input: &Input) -> Heard {
        match input {
            Input::Requests(requests) => {
                let number =
                    |tag| self.queue.iter().find(|p| p.tag == Some(tag)).map_or(usize::MAX, |p| p.number);
                let one = |r: &Request| (number(r.delivery.tag), r.delivery.tag, r.redelivered);
                Heard::Requests(requests.iter().map(one).collect())
            }
            Input::Committed(token) => Heard::Committed(*token),
            Input::Settled(settled) => Heard::Settled(settled.clone()),
            Input::Commands(commands) => Heard::Commands(commands.clone()),
            Input::Left(numbers) => Heard::Left(numbers.clone()),
            Input::Answered(deliveries) => Heard::Answered(deliveries.clone()),
            Input::Forwarded(deliveries) => Heard::Forwarded(deliveries.clone()),
            Input::IngestReady { generation } => Heard::IngestReady(*generation),
            Input::IngestLost => Heard::IngestLost,
            Input::EgressReady | Input::EgressLost | Input::EgressBlocked(_) => {
                Heard::Egress { ready: self.egress.0, blocked: self.egress.1 }
            }
            Input::Configure(settings) => Heard::Configure(settings.clone()),
            Input::StoreFull(full) => Heard::StoreFull(*full),
            Input::Loaded(_) | Input::Prefetch(_) | Input::Drain | Input::Tick => Heard::Other,
        }
    }

    /// Calls the engine once and carries out all its effects.
    pub(super) fn input(&mut self, input: Input) {
        match &input {
            Input::EgressBlocked(blocked) => self.egress.1 = *blocked,
            Input::EgressReady => self.egress = (true, false),
            Input::EgressLost => self.egress.0 = false,
            Input::Settled(settled) => self.given_up.retain(|one| !settled.iter().any(|s| s.number == *one)),
            _ => {}
        }
        let heard = self.log.is_some().then(|| self.heard(&input));
        let before = self.engine.work();
        let fx = self.engine.handle(input, self.now);
        self.meter.note(&fx, self.engine.work() - before);
        let (ends, waiting) = self.engine.ends_of_waits();
        assert!(ends <= waiting, "{ends} ends of waits are kept for {waiting} that wait");
        if let (Some(heard), Some(log)) = (heard, &mut self.log) {
            log.push(Call::of(self.now, heard, &fx, self.engine.is_behind()));
        }
        match fx.commit {
            Some((token, marks)) => self.jobs.push_back(Job::Commit(fx.store, token, marks)),
            None => assert!(fx.store.is_empty(), "operations come with a commit"),
        }
        for ack in fx.acks {
            self.acks.push(ack);
            match &mut self.acks_out {
                Some(out) => out.push_back(ack),
                None => self.take_ack(ack),
            }
        }
        self.out.extend(fx.publishes.into_iter().map(|batch| (self.now.mono, batch)));
        self.given_up.extend(fx.give_up);
        self.contents_read |= fx.loads.iter().any(|load| matches!(load, Load::Contents(_)));
        for load in fx.loads {
            let before = self.answer_before(&load);
            self.jobs.push_back(Job::Load(load, before));
        }
        if let Some(intake) = fx.intake {
            let open = intake == Intake::Resume;
            assert_ne!(open, self.intake_open, "an order to the consumer that changes nothing");
            self.intake_open = open;
        }
        self.take_replies(fx.replies);
    }

    fn take_replies(&mut self, replies: Vec<Reply>) {
        let remote = |reply: &Reply| match reply.asker {
            Asker::Remote { delivery, .. } => Some(delivery),
            Asker::Local(_) => None,
        };
        let out: Vec<Delivery> = replies.iter().filter_map(remote).collect();
        self.replies.extend(replies);
        match &mut self.answers_out {
            Some(waiting) => waiting.extend(out),
            None if out.is_empty() => {}
            None => self.input(Input::Answered(out)),
        }
    }

    /// Runs a command from within the process and returns the answer that comes while the store works.
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

    pub(super) fn take_ack(&mut self, ack: Ack) {
        if ack.delivery.generation != self.generation {
            return;
        }
        let tag = ack.delivery.tag;
        self.queue.retain(|p| !p.tag.is_some_and(|t| t == tag || (ack.multiple && t < tag)));
    }

    /// Publishes a message to the ingest queue. Returns its number.
    pub(super) fn enqueue(&mut self, body: RequestBody) -> usize {
        self.sent += 1;
        self.queue.push(Pending { number: self.sent, body, tag: None, seen: false });
        self.sent
    }

    /// Publishes requests to the ingest queue and delivers them.
    pub(super) fn send(&mut self, items: Vec<NewItem>) {
        for item in items {
            self.enqueue(RequestBody::Items(vec![item]));
        }
        self.deliver(usize::MAX);
    }

    /// Sends these requests as the entries of one message.
    pub(super) fn send_together(&mut self, items: Vec<NewItem>) {
        self.enqueue(RequestBody::Items(items));
        self.deliver(usize::MAX);
    }

    /// Delivers up to `count` messages of the ingest queue, if requests are wanted.
    pub(super) fn deliver(&mut self, count: usize) {
        self.consume();
        if self.intake_open {
            self.hand_over(count);
        }
    }

    /// The same, wanted or not: they were on their way when the intake was paused.
    pub(super) fn hand_over(&mut self, count: usize) {
        if !self.consuming {
            return;
        }
        let (mut requests, mut forwards) = (vec![], vec![]);
        for pending in self.queue.iter_mut().filter(|p| p.tag.is_none()).take(count) {
            self.tag += 1;
            pending.tag = Some(self.tag);
            let delivery = Delivery { generation: self.generation, tag: self.tag };
            if matches!(pending.body, RequestBody::Elsewhere(_)) {
                forwards.push(delivery);
            }
            requests.push(Request {
                delivery,
                redelivered: std::mem::replace(&mut pending.seen, true),
                received: self.now.wall,
                body: pending.body.clone(),
            });
        }
        if !requests.is_empty() {
            self.input(Input::Requests(requests));
        }
        match &mut self.forwards_out {
            Some(out) => out.extend(forwards),
            None if forwards.is_empty() => {}
            None => self.input(Input::Forwarded(forwards)),
        }
    }

    /// Executes the oldest job of the store.
    pub(super) fn do_job(&mut self) -> bool {
        self.do_job_in_pieces(usize::MAX)
    }

    /// The same; a read returns at most `most` rows of each range.
    pub(super) fn do_job_in_pieces(&mut self, most: usize) -> bool {
        match self.jobs.pop_front() {
            None => false,
            Some(Job::Commit(ops, token, marks)) => {
                self.apply(ops, token, marks);
                self.input(Input::Committed(token));
                true
            }
            Some(Job::Load(load, before)) => {
                if let Some(before) = before {
                    assert_eq!(Ok(before), self.peek(&load), "what a commit does not concern: {load:?}");
                }
                let is_beside = self.beside && matches!(load, Load::Contents(_) | Load::Scan(_));
                let loaded = self.load(load, most);
                if is_beside {
                    self.late.push_back(loaded);
                } else {
                    self.input(Input::Loaded(loaded));
                }
                true
            }
        }
    }

    fn apply(&mut self, ops: Vec<Op>, token: Token, marks: Marks) {
        if let Some(twin) = &mut self.twin {
            twin.commit(vec![(ops.clone(), token, marks)]);
        }
        self.store.apply(ops, marks);
    }

    fn load(&mut self, load: Load, most: usize) -> Loaded {
        if let Some(twin) = &mut self.twin {
            twin.load(&load, &mut self.store);
        }
        self.store.load(&load, most).unwrap_or_else(|damage| panic!("{damage}"))
    }

    /// The answer to a read of queues before the commits that have not been executed, if none of them concerns it,
    /// as a store may give it.
    fn answer_before(&mut self, load: &Load) -> Option<Loaded> {
        let Load::Ranges { ranges, .. } = load else { return None };
        let is_apart = |job: &Job| match job {
            Job::Commit(ops, ..) => !Footprint::of(ops).concerns(ranges),
            Job::Load(..) => false,
        };
        let passes = self.beside && self.jobs.iter().all(is_apart);
        passes.then(|| self.peek(load).expect("no damage"))
    }

    /// Executes a read that does not count as work.
    fn peek(&mut self, load: &Load) -> Result<Loaded, String> {
        let before = self.store.looked_at;
        let loaded = self.store.load(load, usize::MAX);
        self.store.looked_at = before;
        loaded
    }

    /// Executes the leading commits together, and reports them as one.
    pub(super) fn do_commits_as_one(&mut self, most: usize) {
        let mut last = None;
        for _ in 0..most {
            match self.jobs.pop_front() {
                Some(Job::Commit(ops, token, marks)) => {
                    self.apply(ops, token, marks);
                    last = Some(token);
                }
                Some(load) => {
                    self.jobs.push_front(load);
                    break;
                }
                None => break,
            }
        }
        last.into_iter().for_each(|token| self.input(Input::Committed(token)));
    }

    /// Answers a look-up of identities, or a read of queues, after commits that were handed over behind it.
    pub(super) fn do_read_late(&mut self, commits: usize) {
        let Some(Job::Load(Load::Find(_) | Load::Ranges { .. }, _)) = self.jobs.front() else { return };
        let Some(Job::Load(load, _)) = self.jobs.pop_front() else { return };
        self.do_commits_as_one(commits);
        self.jobs.push_front(Job::Load(load, None));
        self.do_job();
    }

    /// Makes the leading commits durable without a report.
    pub(super) fn sync_unreported(&mut self, most: usize) {
        for _ in 0..most {
            match self.jobs.pop_front() {
                Some(Job::Commit(ops, token, marks)) => self.apply(ops, token, marks),
                Some(Job::Load(..)) => {}
                None => break,
            }
        }
        // A bucket begins apart from the rest of its commit. A real store cannot be stopped there.
        let next = self.jobs.iter().filter(|_| self.twin.is_none()).find_map(|job| match job {
            Job::Commit(ops, ..) => Some(ops),
            Job::Load(..) => None,
        });
        for op in next.into_iter().flatten() {
            if let Op::BeginBucket(row) = op {
                self.store.begin_bucket(*row);
            }
        }
    }

    /// Returns the result of a read beside the others.
    pub(super) fn do_late(&mut self) -> bool {
        let Some(loaded) = self.late.pop_front() else { return false };
        self.input(Input::Loaded(loaded));
        true
    }

    pub(super) fn drain_jobs(&mut self) {
        for _ in 0..50_000 {
            if !self.do_job() && !self.do_late() {
                return;
            }
        }
        let last: Vec<String> = self.jobs.iter().map(|job| format!("{job:?}")).collect();
        panic!("the store is never done: {last:?}; {}", self.engine.describe());
    }

    /// Settles the n-th batch in flight.
    pub(super) fn settle(&mut self, nth: usize, outcome: Outcome) -> Batch {
        let (_, batch) = self.out.remove(nth);
        let outcome = match outcome {
            Outcome::Confirmed(_) if self.log.is_some() => Outcome::Confirmed(batch_id(&batch)),
            outcome => outcome,
        };
        if matches!(outcome, Outcome::Confirmed(_)) && self.log.is_none() {
            self.delivered.push((self.now, batch.clone()));
        }
        self.input(Input::Settled(vec![Settled { number: batch.number, outcome }]));
        batch
    }

    /// Lets batches give up their channels as ordered, unless they have been settled.
    pub(super) fn settle_given_up(&mut self) {
        for number in std::mem::take(&mut self.given_up) {
            if let Some(nth) = self.out.iter().position(|(_, batch)| batch.number == number) {
                self.settle(nth, Outcome::Overdue);
            }
        }
    }

    /// The first batch in flight, after the store has done the work that it needs.
    pub(super) fn first_out(&mut self) -> Option<Batch> {
        if self.out.is_empty() {
            self.drain_jobs();
        }
        self.out.first().map(|(_, batch)| batch.clone())
    }

    pub(super) fn confirm_all(&mut self) {
        while !self.out.is_empty() {
            self.settle(0, CONFIRMED);
        }
    }

    /// Lets time pass without a call.
    pub(super) fn pass(&mut self, ms: u64) {
        self.now.wall += ms;
        self.now.mono += ms;
        if !self.jobs.is_empty() {
            self.stalled = self.now.mono;
        }
    }

    pub(super) fn advance(&mut self, ms: u64) {
        self.pass(ms);
        self.input(Input::Tick);
    }

    /// Time until the engine wants to be called again, ms.
    pub(super) fn wait(&self) -> Option<u64> {
        let deadline = self.engine.next_deadline();
        assert!(deadline.wall.is_none_or(|at| at < u64::MAX / 1_000), "what has no end is no deadline");
        let mono = deadline.mono.map(|at| at.saturating_sub(self.now.mono));
        deadline.wall.map(|at| at.saturating_sub(self.now.wall)).into_iter().chain(mono).min()
    }

    /// Runs the world for `ms`: the store and the broker act at once, and the clock moves to the next deadline.
    pub(super) fn run(&mut self, ms: u64) {
        let end = self.now.mono + ms;
        for _ in 0..100_000 {
            self.drain_jobs();
            self.confirm_all();
            self.drain_jobs();
            if !self.out.is_empty() {
                continue;
            }
            let left = end - self.now.mono;
            match self.wait() {
                Some(wait) if wait <= left => self.advance(wait),
                _ => return self.advance(left),
            }
        }
        panic!("the engine does not come to rest: {:?}", self.engine.next_deadline());
    }

    /// Names of delivered items, batch by batch, with the moment of delivery after [`T0`].
    pub(super) fn story(&self) -> Vec<(u64, Vec<String>)> {
        self.delivered.iter().map(|(now, b)| (now.wall - T0, b.items.iter().map(name).collect())).collect()
    }
}
