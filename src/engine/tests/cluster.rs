//! Seeded worlds of two or three daemons over one store in a database: the real engine and the real lease in each, with
//! clocks of their own, a small model of the database ([`database`]), of the broker ([`broker`]) and of the daemon around
//! its engine ([`node`]). Daemons freeze, are cut off, stop, die and take the store over; the database loses answers and
//! commits. A judge ([`judge`]) follows every request over all of that. At the end the faults stop, and everything must
//! come out. A seed repeats its world exactly.

mod broker;
mod database;
mod judge;
mod node;

use super::builders::*;
use super::sim::{fails_quietly, number, on_all_cores, Random};
use super::world::{batch_id, T0};
use broker::{Broker, HEARTBEATS_MS};
use database::{lost, Answer, Answered, Call, Database, Work, IDLE_MS};
use judge::Judge;
use node::{Life, Node};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;
use tidegate_store::ReadError;
use tidegate_types::*;

/// Length of the lease.
const LEASE_MS: u64 = 10_000;
/// A call that waits for a locked row fails after this time (`lock_timeout`).
const LOCK_MS: u64 = 1_000;
/// When the faults and the requests stop, and how long everything may take to come out then.
const FAULTS_MS: u64 = 80_000;
const REST_MS: u64 = 150_000;

/// A planted bug. The comments where each is asked for name the code that does it right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// A commit is made although another daemon has the store: `Texts::fence` in `store/postgres/statements.rs`.
    NoFence,
    /// The fence compares the numbers of claims, and two claims have one number after a failover that lost one.
    FenceByEpoch,
    /// The lease counts from the answer to a renewal, not from its sending: `Claim::renew`, `PgStore::commit_all`.
    TrustFromAnswer,
    /// Effects are carried out after the lease: `Shard::execute`, `Life::look_at_lease`.
    EffectsAfterTrust,
    /// What was handed to the publisher is written after the lease: `EgressPublisher::publish`.
    PublisherUnchecked,
    /// A commit is reported, and its requests acked, before the database has answered: `store/thread.rs`.
    AckBeforeAnswer,
    /// A claim passes a transaction of the predecessor that is still open: `Texts::claim` locks the row.
    ClaimIgnoresTransaction,
    /// The next life goes on with the engine of the last one: `Life::open`.
    MemoryKept,
    /// A daemon that was refused still claims the store by its name: `Claim::refused` removes `NODE`.
    ClaimOwnAfterRefusal,
}

const BUGS: [Bug; 9] = [
    Bug::NoFence,
    Bug::FenceByEpoch,
    Bug::TrustFromAnswer,
    Bug::EffectsAfterTrust,
    Bug::PublisherUnchecked,
    Bug::AckBeforeAnswer,
    Bug::ClaimIgnoresTransaction,
    Bug::MemoryKept,
    Bug::ClaimOwnAfterRefusal,
];

/// A place in the daemon where it freezes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    /// Before it reads an answer of the database.
    Answer,
    /// Between the decision to publish and the publish.
    Write,
}

/// What happens to the next commit that reaches the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Twist {
    /// It is made, or not, and the connection ends before the answer.
    Unanswered { made: bool },
    /// Its COMMIT comes so much later. Its daemon dies meanwhile, or the fence is all that came in time.
    Open { ms: u64, kills: bool },
}

#[derive(Debug)]
enum Event {
    // Of a daemon.
    Tries(usize),
    Looks(u64),
    Connects(u64),
    Consumes(u64),
    Writes(u64),
    Disconnected { life: u64, connection: u64 },
    // Between a daemon and the database.
    Calls(Call),
    Answers { life: u64, sent: u64, answer: Answer },
    // Between a daemon and the broker.
    Acks(u64, Ack),
    Published { connection: u64, batch: Batch },
    Closes(u64),
    Delivered { connection: u64, delivery: (u64, bool, NewItem) },
    Settles { connection: u64, settled: Settled },
    // Of the surroundings.
    Finishes(u64),
    GivesUp(u64),
    Produces,
    Asks,
    Strikes,
    FailsOver,
}

/// Where an event happens, and what has to work for that.
struct Planned {
    event: Event,
    /// The daemon that must not be frozen.
    awake: Option<usize>,
    /// The way that must not be cut: of a daemon, to the store (0) or to the broker (1).
    way: Option<(usize, usize)>,
}

/// How often things happened, over all worlds.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    worlds: usize,
    requests: usize,
    answers: usize,
    repeats: usize,
    /// By the kinds of `Takeover`: free, expired, own.
    takeovers: [usize; 3],
    /// By the kinds of `Loss`: fenced, lease over, database, given away.
    losses: [usize; 4],
    failovers: usize,
    lost_commits: usize,
    /// Acts of a life that did not know yet that another one had the store.
    overlaps: usize,
    /// Requests that lost commits concerned, and those that never came out.
    concerned: usize,
    lost_requests: usize,
    unlocked: usize,
}

struct Cluster {
    t: u64,
    /// By time, by the time for which each was planned at first, and in the order of planning.
    events: BTreeMap<(u64, u64, u64), Planned>,
    planned: u64,
    /// When the last message of each way of each daemon arrives: to the broker, and from it.
    last: BTreeMap<(usize, bool), u64>,
    random: Random,
    bug: Option<Bug>,
    /// Every event is printed.
    traced: bool,
    settings: Settings,
    database: Database,
    broker: Broker,
    nodes: Vec<Node>,
    lives: BTreeMap<u64, Life>,
    /// Lives whose connections to the database have ended.
    cut_lives: BTreeSet<u64>,
    judge: Judge,
    twist: Option<Twist>,
    fails_over: bool,
    claims: u64,
    names: u64,
    commands: u64,
    count: Count,
}

impl Cluster {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut random = Random(seed);
        let mut pick = |n: u64| random.draw() % n;
        let nodes = 2 + pick(2);
        let apart = [0, 50, 2_000, 50_000][pick(4) as usize];
        // Two daemons of one name: a machine was copied while it ran.
        let is_copied = seed.is_multiple_of(8);
        let node = |n| {
            let name = if is_copied && n == 1 { 0 } else { n };
            Node::new(name, 960 + pick(80), pick(apart + 1) as i64 - apart as i64 / 2)
        };
        let nodes: Vec<Node> = (0..nodes).map(node).collect();
        let fails_over = seed % 4 == 1;
        let mut settings = with(|app| app.max_items = 5);
        let long = AppSettings { window: 25_000, ..AppSettings::default() };
        settings.applications.insert("long".to_owned(), std::sync::Arc::new(long));
        let mut cluster = Cluster {
            t: 0,
            events: BTreeMap::new(),
            planned: 0,
            last: BTreeMap::new(),
            random,
            bug,
            traced: std::env::var_os("TRACE").is_some(),
            settings,
            database: Database::new(fails_over, bug),
            broker: Broker::default(),
            names: nodes.len() as u64,
            nodes,
            lives: BTreeMap::new(),
            cut_lives: BTreeSet::new(),
            judge: Judge::default(),
            twist: None,
            fails_over,
            claims: 0,
            commands: 0,
            count: Count::default(),
        };
        for node in 0..cluster.nodes.len() {
            let pause = 1 + cluster.pick(500);
            cluster.of_node(node, pause, Event::Tries(node));
        }
        cluster.at(100, Event::Produces);
        cluster.at(5_000, Event::Asks);
        cluster.at(3_000, Event::Strikes);
        cluster
    }

    fn pick(&mut self, n: u64) -> u64 {
        self.random.draw() % n
    }

    // ---- what is to happen --------------------------------------------------------------------------------

    fn plan(&mut self, at: u64, planned: Planned) {
        self.planned += 1;
        self.events.insert((at, at, self.planned), planned);
    }

    /// An event of the surroundings.
    fn at(&mut self, pause: u64, event: Event) {
        self.plan(self.t + pause, Planned { event, awake: None, way: None });
    }

    /// An event of a daemon, which waits while that is frozen.
    fn of_node(&mut self, node: usize, pause: u64, event: Event) {
        self.plan(self.t + pause, Planned { event, awake: Some(node), way: None });
    }

    fn latency(&mut self) -> u64 {
        match self.pick(30) {
            0 => self.pick(400),
            _ => 1 + self.pick(4),
        }
    }

    fn send_to_store(&mut self, node: usize, event: Event) {
        let at = self.t + self.latency();
        self.plan(at, Planned { event, awake: None, way: Some((node, 0)) });
    }

    fn answer(&mut self, Call { node, life, sent, .. }: Call, answer: Answer) {
        let at = self.t + self.latency();
        let event = Event::Answers { life, sent, answer };
        self.plan(at, Planned { event, awake: Some(node), way: Some((node, 0)) });
    }

    /// Messages of one way arrive in order.
    fn in_order(&mut self, node: usize, out: bool) -> u64 {
        let at = self.t + self.latency();
        let last = self.last.entry((node, out)).or_default();
        *last = at.max(*last);
        *last
    }

    fn send_to_broker(&mut self, node: usize, event: Event) {
        let at = self.in_order(node, true);
        self.plan(at, Planned { event, awake: None, way: Some((node, 1)) });
    }

    fn send_from_broker(&mut self, node: usize, event: Event) {
        let at = self.in_order(node, false);
        self.plan(at, Planned { event, awake: Some(node), way: Some((node, 1)) });
    }

    /// Lets the next event happen, or puts it off. False: there is none before `end`.
    fn next(&mut self, end: u64) -> bool {
        let Some(first) = self.events.first_entry().filter(|first| first.key().0 <= end) else {
            return false;
        };
        let ((at, first_at, number), planned) = first.remove_entry();
        self.t = at;
        if let Some(node) = planned.awake {
            let node = &mut self.nodes[node];
            let point = match planned.event {
                Event::Answers { .. } => Some(Point::Answer),
                Event::Writes(_) => Some(Point::Write),
                _ => None,
            };
            if let Some((_, ms)) = node.freezes_at.take_if(|(at, _)| Some(*at) == point) {
                node.frozen_until = node.frozen_until.max(at + ms);
            }
        }
        let frozen = planned.awake.map_or(0, |node| self.nodes[node].frozen_until);
        let cut = planned.way.map_or(0, |(node, way)| self.nodes[node].cut_until[way]);
        if frozen.max(cut) > at {
            self.events.insert((frozen.max(cut), first_at, number), planned);
        } else {
            self.happens(planned.event);
        }
        true
    }

    fn happens(&mut self, event: Event) {
        if self.traced {
            eprintln!("{} {event:?}", self.t);
        }
        match event {
            Event::Tries(node) => self.try_claim(node),
            Event::Looks(life) => self.look(life),
            Event::Connects(life) => self.connect(life),
            Event::Consumes(life) => self.consume(life),
            Event::Writes(life) => self.write(life),
            Event::Disconnected { life, connection } => {
                if self.lives.get(&life).is_some_and(|life| life.has(connection)) {
                    self.disconnected(life);
                }
            }
            Event::Calls(call) => self.calls(call),
            Event::Answers { life, sent, answer } => self.answered(life, sent, answer),
            Event::Acks(connection, ack) => self.take_ack(connection, ack),
            Event::Published { connection, batch } => self.arrives_at_outlet(connection, &batch),
            Event::Closes(connection) | Event::GivesUp(connection) => self.end_connection(connection),
            Event::Delivered { connection, delivery } => self.delivered(connection, delivery),
            Event::Settles { connection, settled } => self.settles(connection, settled),
            Event::Finishes(number) => self.finishes(number),
            Event::Produces => self.produce(),
            Event::Asks => self.ask_something(),
            Event::Strikes => self.strike(),
            Event::FailsOver => self.fail_over(),
        }
    }

    // ---- the database -------------------------------------------------------------------------------------

    /// A call reaches the database.
    fn calls(&mut self, mut call: Call) {
        if self.cut_lives.contains(&call.life) {
            return self.answer(call, Err(lost()));
        }
        let claims = matches!(call.work, Work::Claim);
        if claims && !self.database.is_claimable(call.name, self.t) {
            let left_ms = self.database.row.expires - self.t;
            return self.answer(call, Ok(Answered::NotFree { left_ms }));
        }
        if self.database.is_locked_for(&call.work) {
            if call.waited < LOCK_MS {
                call.waited += 100;
                return self.at(100, Event::Calls(call));
            }
            if !claims {
                return self.answer(call, Err(lost()));
            }
            // Statement `unblock` ends the former owner's connection.
            self.count.unlocked += 1;
            self.roll_back();
        }
        let twist = matches!(call.work, Work::Commit(..)).then(|| self.twist.take()).flatten();
        match &call.work {
            Work::Claim => self.claimed(call),
            Work::Load(load) => {
                let loaded = self.database.store.load(load, usize::MAX);
                let is_owner = self.database.row.claim == Some(call.life);
                let answer = loaded.map(Answered::Loaded).map_err(|damage| {
                    assert!(!is_owner, "{damage}");
                    ReadError::Engine(damage).into()
                });
                self.answer(call, answer);
            }
            Work::Release => {
                self.database.release(call.life);
                self.answer(call, Ok(Answered::Released));
            }
            Work::Open(_) | Work::Renew | Work::Commit(..) => self.transaction(call, twist),
        }
    }

    fn claimed(&mut self, call: Call) {
        let former = self.database.row.claim.filter(|_| self.database.row.expires >= self.t);
        let its_node = |life: &u64| self.lives.get(life).map(|life| life.node);
        // A daemon of the same name has it, and does not know; or a claim of its dead process comes late.
        let robbed = former.filter(|life| {
            its_node(life).is_some_and(|node| node != call.node || self.nodes[node].life == Some(*life))
        });
        let from_other = robbed.as_ref().and_then(its_node).is_some_and(|node| node != call.node);
        let was_refused = self.nodes[call.node].refused == Some(call.name);
        assert!(!(from_other && was_refused), "a daemon that was refused takes the store from its owner");
        self.judge.excused.extend(robbed);
        self.judge.changes_hands(call.life);
        let claimed = self.database.claim(&call, self.t);
        let last = self.database.row.claim;
        self.answer(call, Ok(claimed));
        if self.fails_over && self.pick(3) == 0 && last.is_some() {
            let pause = 20 + self.pick(2_500);
            self.at(pause, Event::FailsOver);
        }
    }

    fn transaction(&mut self, call: Call, twist: Option<Twist>) {
        let (life, node) = (call.life, call.node);
        if let Some(Twist::Unanswered { made: false }) = twist {
            self.cut_lives.insert(life);
            return self.answer(call, Err(lost()));
        }
        if let Err(refused) = self.database.fence(&call) {
            return self.answer(call, Err(refused));
        }
        let number = self.database.begin(call, self.t);
        match twist {
            Some(Twist::Open { ms, kills }) => {
                self.at(ms.min(IDLE_MS), Event::Finishes(number));
                if kills {
                    let pause = [50, 200, 2_000][self.pick(3) as usize];
                    self.kill(node, pause);
                }
            }
            Some(Twist::Unanswered { .. }) => {
                self.cut_lives.insert(life);
                self.finishes(number);
            }
            None => self.finishes(number),
        }
    }

    fn finishes(&mut self, number: u64) {
        let Some(open) = self.database.open.take_if(|open| open.number == number) else { return };
        let Call { node, name, life, epoch, sent, waited, .. } = open.call;
        let call = Call { node, name, life, epoch, sent, waited, work: Work::Renew };
        let done = self.database.finish(open, &mut self.judge);
        let answer = if self.cut_lives.contains(&life) { Err(lost()) } else { Ok(done) };
        self.answer(call, answer);
    }

    /// The server ends the connection that has the open transaction.
    fn roll_back(&mut self) {
        let Some(open) = self.database.open.take() else { return };
        self.cut_lives.insert(open.call.life);
        self.answer(open.call, Err(lost()));
    }

    /// An asynchronous replica takes over.
    fn fail_over(&mut self) {
        if self.t > FAULTS_MS {
            return;
        }
        self.roll_back();
        let some = 1 + self.pick(6) as usize;
        let most = if self.pick(2) == 0 { some } else { self.database.since_claim() };
        let (lost_commits, touched) = self.database.fail_over(most);
        let lives: Vec<u64> = self.lives.keys().copied().collect();
        self.judge.lose(&touched, &self.database.store, &lives);
        self.count.failovers += 1;
        self.count.lost_commits += lost_commits;
        // A proxy may keep connections over a failover, but not that of an owner whom the replica knows: it would go on
        // with rows that are gone.
        self.cut_lives.extend(self.database.row.claim);
        for life in lives {
            if self.pick(2) == 0 {
                self.cut_lives.insert(life);
            }
        }
    }

    // ---- requests and faults ------------------------------------------------------------------------------

    fn produce(&mut self) {
        if self.t > FAULTS_MS {
            return;
        }
        for _ in 0..=self.pick(3) {
            self.request();
        }
        self.deliver();
        let pause = 20 + self.pick(1_200);
        self.at(pause, Event::Produces);
    }

    fn request(&mut self) {
        let things = self.judge.things.len() as u64;
        let again = self.pick(things.max(1)) as usize;
        let repeatable =
            |thing: &judge::Thing| thing.id.is_some() && !thing.cancel_asked && thing.new.expiry.is_none();
        let number = if self.pick(6) == 0 && self.judge.things.get(again).is_some_and(repeatable) {
            again
        } else {
            let application = ["a", "a", "long"][self.pick(3) as usize];
            let customer = ["", "c0", "c1", "c2"][self.pick(4) as usize];
            let mut new = item(application, customer, "");
            let (wall, delay) = (T0 + self.t, [300, 4_000, 15_000, 45_000][self.pick(4) as usize]);
            if self.pick(3) == 0 {
                new.at = Some(wall + delay);
            }
            if self.pick(8) == 0 {
                new.expiry = Some(wall + delay / 2 + self.pick(40_000));
            }
            let has_id = self.pick(3) > 0;
            self.judge.request(new, has_id)
        };
        let thing = &mut self.judge.things[number];
        thing.messages += 1;
        let new = thing.new.clone();
        self.broker.enqueue(number, new);
    }

    /// A cancel or a look-up at the owner, or at a daemon that takes itself for the owner.
    fn ask_something(&mut self) {
        if self.t > FAULTS_MS {
            return;
        }
        let node = self.pick(self.nodes.len() as u64) as usize;
        let things = self.judge.things.len() as u64;
        let late = things - (1 + self.pick(things.clamp(1, 20))).min(things);
        let cancels = self.pick(3) == 0;
        let single = self.judge.things.get(late as usize).is_some_and(|thing| thing.messages == 1);
        if single {
            self.ask(node, late as usize, cancels);
        }
        let pause = 20 + self.pick(600);
        self.at(pause, Event::Asks);
    }

    fn strike(&mut self) {
        if self.t > FAULTS_MS {
            return;
        }
        let owner = self.database.row.claim.and_then(|claim| self.lives.get(&claim)).map(|life| life.node);
        let other = self.pick(self.nodes.len() as u64) as usize;
        let node = owner.filter(|_| self.pick(4) > 0).unwrap_or(other);
        let ms = [300, 2_000, 7_000, 9_500, 12_000, 14_000, 25_000][self.pick(7) as usize];
        match self.pick(14) {
            0 => self.freeze(node, ms),
            1 | 2 => self.nodes[node].freezes_at = Some((Point::Answer, ms)),
            3 | 4 => self.nodes[node].freezes_at = Some((Point::Write, ms)),
            5 => self.cut_off(node, 0, ms),
            6 => self.cut_off(node, 1, ms),
            7 => {
                self.cut_off(node, 0, ms);
                self.cut_off(node, 1, ms);
            }
            8 => self.twist = Some(Twist::Unanswered { made: self.pick(2) == 0 }),
            9 => {
                let ms = [20, 500, 3_000, 4_500][self.pick(4) as usize];
                self.twist = Some(Twist::Open { ms, kills: self.pick(3) > 0 });
            }
            10 => self.stop(node),
            11 => {
                let pause = [50, 3_000, 15_000][self.pick(3) as usize];
                self.kill(node, pause);
            }
            12 => self.give_up(node, 0),
            _ if self.fails_over => self.fail_over(),
            _ => {
                self.nodes[node].skew = self.pick(50_000) as i64 - 25_000;
                self.judge.unordered.extend(self.nodes[node].life);
            }
        }
        let pause = 500 + self.pick(5_000);
        self.at(pause, Event::Strikes);
    }

    fn freeze(&mut self, node: usize, ms: u64) {
        let until = self.t + ms;
        self.nodes[node].frozen_until = self.nodes[node].frozen_until.max(until);
        if ms > HEARTBEATS_MS {
            self.give_up(node, HEARTBEATS_MS);
        }
    }

    fn cut_off(&mut self, node: usize, way: usize, ms: u64) {
        let until = &mut self.nodes[node].cut_until[way];
        *until = (*until).max(self.t + ms);
        if way == 1 && ms > HEARTBEATS_MS {
            self.give_up(node, HEARTBEATS_MS);
        }
    }

    /// The broker ends the connection of a daemon.
    fn give_up(&mut self, node: usize, pause: u64) {
        let its = |life: &u64| self.lives.get(life).is_some_and(|life| life.node == node);
        let connections = self.broker.connections.iter().filter(|(_, life)| its(life));
        let connections: Vec<u64> = connections.map(|(connection, _)| *connection).collect();
        connections.into_iter().for_each(|connection| self.at(pause, Event::GivesUp(connection)));
    }

    fn is_done(&self) -> bool {
        self.broker.queue.is_empty() && self.database.store.items.is_empty() && self.database.open.is_none()
    }

    /// Runs the world to its end.
    fn run(mut self) -> Count {
        while self.next(FAULTS_MS) {}
        self.t = FAULTS_MS;
        self.twist = None;
        self.nodes.iter_mut().for_each(|node| node.freezes_at = None);
        for _ in 0..REST_MS / 1_000 {
            let end = self.t + 1_000;
            while self.next(end) {}
            self.t = end;
            if self.is_done() {
                break;
            }
        }
        let left = self.broker.queue.iter().map(|message| message.thing).collect::<Vec<_>>();
        assert!(left.is_empty(), "left in the queue: {left:?}");
        self.database.store.check_empty();
        let concerned = self.judge.things.iter().filter(|thing| thing.excused).count();
        Count {
            worlds: 1,
            requests: self.judge.things.len(),
            answers: self.judge.answers,
            repeats: self.judge.repeats,
            overlaps: self.judge.overlaps,
            concerned,
            lost_requests: self.judge.check_end(),
            ..self.count
        }
    }
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Count) {
        self.worlds += other.worlds;
        self.requests += other.requests;
        self.answers += other.answers;
        self.repeats += other.repeats;
        (0..3).for_each(|nth| self.takeovers[nth] += other.takeovers[nth]);
        (0..4).for_each(|nth| self.losses[nth] += other.losses[nth]);
        self.failovers += other.failovers;
        self.overlaps += other.overlaps;
        self.lost_commits += other.lost_commits;
        self.concerned += other.concerned;
        self.lost_requests += other.lost_requests;
        self.unlocked += other.unlocked;
    }
}

/// `SEED` is the first of `CLUSTERS` worlds; a seed repeats its world exactly, and with `TRACE` every event is printed.
/// `ALL`: go on after a failure.
/// Judges promises 1, 2, 3, 4, 5, 11, 14 and 15.
#[test]
fn what_is_promised_holds_however_daemons_take_the_store_from_each_other() {
    let (first, worlds) = (number("SEED", 1), number("CLUSTERS", 300));
    let goes_on = std::env::var_os("ALL").is_some();
    let next = AtomicU64::new(first);
    let all = Mutex::new((Count::default(), BTreeSet::new()));
    on_all_cores(|| loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= first + worlds || !goes_on && !all.lock().expect("whole").1.is_empty() {
            break;
        }
        let ended = std::panic::catch_unwind(|| Cluster::new(seed, None).run());
        let mut all = all.lock().expect("whole");
        match ended {
            Ok(count) => all.0 += count,
            Err(_) => {
                eprintln!("seed {seed} (repeat with SEED={seed} CLUSTERS=1)");
                all.1.insert(seed);
            }
        }
    });
    let (count, failed) = all.into_inner().expect("whole");
    assert!(failed.is_empty(), "SEED={:?} CLUSTERS=1 repeats it", failed.first());
    println!("from seed {first}: {count:?}");
    // `Loss::GivenAway`, the last one, is not drawn.
    let [free, expired, own] = count.takeovers;
    let [fenced, over, unreachable, _] = count.losses;
    let drawn =
        [free, expired, own, fenced, over, unreachable, count.lost_commits, count.unlocked, count.repeats];
    assert!(worlds < 100 || !drawn.contains(&0), "the worlds have become tame: {count:?}");
}

/// Most worlds in which a planted bug must show.
const WORLDS: u64 = 300;

/// `BUG` names a single one.
#[test]
fn every_bug_of_a_takeover_is_found() {
    let only = std::env::var("BUG").ok();
    for bug in BUGS {
        let name = format!("{bug:?}");
        if only.as_ref().is_some_and(|only| *only != name) {
            continue;
        }
        let found = (1..=WORLDS).find(|seed| fails_quietly(|| _ = Cluster::new(*seed, Some(bug)).run()));
        println!("{name} {found:?}");
        assert!(found.is_some(), "{name} is not found by {WORLDS} worlds");
    }
}
