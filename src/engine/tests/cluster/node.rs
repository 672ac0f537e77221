//! A daemon: its clocks, and its lives around the real engine and the real lease. It does what `daemon/life.rs`,
//! `daemon/shard.rs`, `store/thread.rs` and `amqp/publisher.rs` do with effects and with the end of a lease.

use super::database::{Answer, Answered, Call, Work};
use super::{Bug, Cluster, Event, Point, LEASE_MS};
use crate::{Engine, Seeds};
use std::collections::VecDeque;
use tidegate_common::lease::Lease;
use tidegate_store::{Loss, OpenError, StoreFailure};
use tidegate_types::event::*;
use tidegate_types::*;

/// Least time between two renewals, and pause between two attempts to claim, ms; see `Shard::renew`, `StandbyWaits`.
const RENEWAL_PAUSE_MS: u64 = 300;
const TRY_MS: u64 = 1_000;
/// Time for due items to leave at a stop.
const DRAIN_MS: u64 = 8_000;

/// A machine with one daemon.
pub(super) struct Node {
    /// The name in its file `NODE`.
    pub(super) name: u64,
    /// Speed of its clocks, in thousandths.
    pub(super) rate: u64,
    /// The distance of its wall clock from the database's, ms.
    pub(super) skew: i64,
    pub(super) frozen_until: u64,
    /// It freezes at this point, for so long.
    pub(super) freezes_at: Option<(Point, u64)>,
    /// Until when the ways to the store and to the broker are cut.
    pub(super) cut_until: [u64; 2],
    pub(super) life: Option<u64>,
    /// The last claim of its process.
    last_claim: u64,
    /// The name under which it was refused as a former owner since its last claim.
    pub(super) refused: Option<u64>,
    /// The engine of its last life, where that bug is planted.
    kept: Option<Engine>,
}

impl Node {
    pub(super) fn new(name: u64, rate: u64, skew: i64) -> Self {
        Node {
            name,
            rate,
            skew,
            frozen_until: 0,
            freezes_at: None,
            cut_until: [0, 0],
            life: None,
            last_claim: 0,
            refused: None,
            kept: None,
        }
    }

    pub(super) fn now(&self, t: u64) -> Now {
        let passed = t * self.rate / 1_000;
        let wall = (super::T0 + passed).checked_add_signed(self.skew).expect("a moment");
        Now { wall, mono: 1_000 + passed }
    }

    /// The time in which its clocks advance so far.
    fn real(&self, ms: u64) -> u64 {
        (ms * 1_000).div_ceil(self.rate)
    }
}

enum Job {
    Commit(Vec<Op>, Token, Marks),
    Load(Load),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Claims,
    Opens,
    Serves,
    /// A stop was requested; until when items may leave.
    Drains(u64),
    /// Only the store's thread still works, on what was handed over; then it releases the store.
    Ends,
}

/// A life, by the number of its claim.
pub(super) struct Life {
    pub(super) node: usize,
    epoch: u64,
    phase: Phase,
    lease: Lease,
    engine: Option<Engine>,
    jobs: VecDeque<Job>,
    calls: bool,
    wants_renewal: bool,
    renewed_at: u64,
    /// Handed to the publisher, and written.
    handed: VecDeque<Batch>,
    out: Vec<Batch>,
    connection: Option<u64>,
    generation: u32,
    takes: bool,
    looks_at: u64,
}

impl Life {
    pub(super) fn takes_requests(&self) -> bool {
        self.takes && self.phase == Phase::Serves
    }

    pub(super) fn has(&self, connection: u64) -> bool {
        self.connection == Some(connection)
    }
}

impl Cluster {
    fn now_of(&self, node: usize) -> Now {
        self.nodes[node].now(self.t)
    }

    // ---- the claim ----------------------------------------------------------------------------------------

    /// A daemon without a store tries to claim it.
    pub(super) fn try_claim(&mut self, node: usize) {
        if self.nodes[node].life.is_some() {
            return;
        }
        if self.nodes[node].cut_until[0] > self.t {
            return self.of_node(node, TRY_MS, Event::Tries(node));
        }
        self.claims += 1;
        let (token, sent) = (self.claims, self.now_of(node).mono);
        self.nodes[node].life = Some(token);
        let life = Life {
            node,
            epoch: 0,
            phase: Phase::Claims,
            lease: Lease::new(LEASE_MS, sent),
            engine: None,
            jobs: VecDeque::new(),
            calls: true,
            wants_renewal: false,
            renewed_at: sent,
            handed: VecDeque::new(),
            out: vec![],
            connection: None,
            generation: 0,
            takes: false,
            looks_at: u64::MAX,
        };
        self.lives.insert(token, life);
        self.send(token, Work::Claim);
    }

    fn send(&mut self, token: u64, work: Work) {
        let (node, epoch) = (self.lives[&token].node, self.lives[&token].epoch);
        let (name, sent) = (self.nodes[node].name, self.now_of(node).mono);
        let call = Call { node, name, life: token, epoch, sent, waited: 0, work };
        self.send_to_store(node, Event::Calls(call));
    }

    /// An answer of the database reaches the store's thread.
    pub(super) fn answered(&mut self, token: u64, sent: u64, answer: Answer) {
        let Some(life) = self.lives.get_mut(&token) else { return };
        life.calls = false;
        let answered = match answer {
            Ok(answered) => answered,
            Err(failure) => return self.fails(token, failure),
        };
        // `Claim::renew` and `commit_all` take the moment before they send.
        let late = self.bug == Some(Bug::TrustFromAnswer);
        let sent = if late { self.nodes[life.node].now(self.t).mono } else { sent };
        if matches!(answered, Answered::Opened(_) | Answered::Renewed | Answered::Committed(_)) {
            life.lease.renewed(sent);
        }
        match answered {
            Answered::Claimed { epoch, takeover } => {
                (life.epoch, life.phase, life.calls) = (epoch, Phase::Opens, true);
                let node = life.node;
                self.count.takeovers[takeover as usize] += 1;
                self.nodes[node].refused = None;
                self.nodes[node].last_claim = token;
                let wall = self.now_of(node).wall;
                self.send(token, Work::Open(wall));
            }
            Answered::NotFree { left_ms } => {
                let error = OpenError::Claimed { owner: String::new(), left_ms };
                assert!(error.is_passing());
                self.leaves(token, TRY_MS);
            }
            Answered::Opened(opened) => self.begin(token, &opened),
            Answered::Renewed => {}
            Answered::Loaded(loaded) => self.feed(token, Input::Loaded(loaded)),
            Answered::Committed(number) => {
                if self.bug != Some(Bug::AckBeforeAnswer) {
                    self.feed(token, Input::Committed(number));
                }
            }
            Answered::Released => drop(self.lives.remove(&token)),
        }
        self.call(token);
    }

    fn begin(&mut self, token: u64, opened: &Opened) {
        let node = self.lives[&token].node;
        let now = self.now_of(node);
        let seeds = Seeds { jitter: token, names: token };
        // `Life::open` makes an engine for what the store holds.
        let kept = self.nodes[node].kept.take();
        let engine = kept.unwrap_or_else(|| Engine::new(self.settings.clone(), opened, seeds, now));
        let Some(life) = self.lives.get_mut(&token) else { return };
        (life.engine, life.phase) = (Some(engine), Phase::Serves);
        self.of_node(node, 1, Event::Connects(token));
        self.feed(token, Input::Tick);
    }

    /// The node has no life any more, and tries again later.
    fn leaves(&mut self, token: u64, pause: u64) {
        let Some(life) = self.lives.remove(&token) else { return };
        if self.nodes[life.node].life == Some(token) {
            self.nodes[life.node].life = None;
            self.of_node(life.node, pause, Event::Tries(life.node));
        }
    }

    // ---- how a life ends ----------------------------------------------------------------------------------

    /// The store's thread has failed.
    fn fails(&mut self, token: u64, failure: StoreFailure) {
        let life = &self.lives[&token];
        let node = life.node;
        let loss = failure.loss();
        // The loop looks at the lease before it hears of a failure.
        let is_over = life.engine.is_some() && !life.lease.holds(self.now_of(node).mono);
        if let (Phase::Claims | Phase::Opens, StoreFailure::Commit(error)) = (life.phase, failure) {
            assert!(OpenError::from(error).is_passing(), "the daemon would end");
        } else if loss.is_none() && !is_over && life.phase != Phase::Ends {
            // Rows that it needs are gone: only where another daemon has its name.
            assert!(self.judge.excused.contains(&token), "the process would end");
            return self.kill(node, TRY_MS);
        }
        self.count.losses[loss.map_or(0, |loss| loss as usize)] += 1;
        // As `Claim::refused`: the refusal of an earlier life says nothing.
        if loss == Some(Loss::Fenced) && self.nodes[node].last_claim == token {
            self.nodes[node].refused = Some(self.nodes[node].name);
            if self.bug != Some(Bug::ClaimOwnAfterRefusal) {
                self.names += 1;
                self.nodes[node].name = self.names;
            }
        }
        self.close(token);
        let pause = 100 + self.pick(300);
        self.leaves(token, pause);
    }

    /// Whether the lease still holds. Ends the life otherwise; see `Life::look_at_lease`.
    fn trusts(&mut self, token: u64) -> bool {
        let Some(life) = self.lives.get(&token) else { return false };
        if life.engine.is_none() {
            return false;
        }
        let mono = self.now_of(life.node).mono;
        if life.lease.holds(mono) || self.bug == Some(Bug::EffectsAfterTrust) {
            return true;
        }
        let loss = StoreFailure::LeaseOver { age_ms: life.lease.age(mono) }.loss();
        self.count.losses[loss.map_or(0, |loss| loss as usize)] += 1;
        self.end(token, 100);
        false
    }

    /// The loop ends; the store's thread finishes what it was given, and releases the store.
    fn end(&mut self, token: u64, pause: u64) {
        self.close(token);
        let Some(life) = self.lives.get_mut(&token) else { return };
        life.phase = Phase::Ends;
        let node = life.node;
        self.nodes[node].life = None;
        self.of_node(node, pause, Event::Tries(node));
        self.call(token);
    }

    /// The engine and the connections end.
    fn close(&mut self, token: u64) {
        let Some(life) = self.lives.get_mut(&token) else { return };
        let (engine, connection, node) = (life.engine.take(), life.connection.take(), life.node);
        let (out, handed) = (std::mem::take(&mut life.out), std::mem::take(&mut life.handed));
        self.judge.ends(token);
        if let Some(mut engine) = engine.filter(|_| self.bug == Some(Bug::MemoryKept)) {
            let unknown = |batch: Batch| Settled { number: batch.number, outcome: Outcome::Unknown };
            let settled = out.into_iter().chain(handed).map(unknown).collect();
            for input in [Input::Settled(settled), Input::EgressLost, Input::IngestLost] {
                engine.handle(input, self.nodes[node].now(self.t));
            }
            self.nodes[node].kept = Some(engine);
        }
        connection.into_iter().for_each(|connection| self.send_to_broker(node, Event::Closes(connection)));
    }

    /// kill -9: what was sent is on its way.
    pub(super) fn kill(&mut self, node: usize, pause: u64) {
        let its: Vec<u64> =
            self.lives.iter().filter(|(_, life)| life.node == node).map(|(token, _)| *token).collect();
        for token in its {
            self.close(token);
            self.lives.remove(&token);
        }
        (self.nodes[node].life, self.nodes[node].kept) = (None, None);
        self.of_node(node, pause, Event::Tries(node));
    }

    /// SIGTERM: what is due leaves first.
    pub(super) fn stop(&mut self, node: usize) {
        let Some(token) = self.nodes[node].life else { return };
        let until = self.t + DRAIN_MS;
        let Some(life) = self.lives.get_mut(&token).filter(|life| life.phase == Phase::Serves) else {
            return self.kill(node, TRY_MS);
        };
        life.phase = Phase::Drains(until);
        self.feed(token, Input::Drain);
    }

    fn finish_stop(&mut self, token: u64) {
        self.disconnected(token);
        self.feed(token, Input::Drain);
        let pause = [200, 3_000, 20_000][self.pick(3) as usize];
        self.end(token, pause);
    }

    // ---- the loop -----------------------------------------------------------------------------------------

    /// A turn without an event.
    pub(super) fn look(&mut self, token: u64) {
        let Some(life) = self.lives.get_mut(&token) else { return };
        life.looks_at = u64::MAX;
        let mono = self.nodes[life.node].now(self.t).mono;
        if life.lease.due_in(mono) == 0 && mono >= life.renewed_at + RENEWAL_PAUSE_MS {
            (life.renewed_at, life.wants_renewal) = (mono, true);
            self.call(token);
        }
        self.feed(token, Input::Tick);
        let Some(life) = self.lives.get(&token) else { return };
        let (Phase::Drains(until), Some(engine)) = (life.phase, &life.engine) else { return };
        if engine.is_idle() || until <= self.t {
            self.finish_stop(token);
        }
    }

    /// Gives the engine an input, and carries out the effects; see `Shard::feed`.
    pub(super) fn feed(&mut self, token: u64, input: Input) {
        if !self.trusts(token) {
            return;
        }
        self.judge.step += 1;
        let Some(life) = self.lives.get_mut(&token) else { return };
        let Some(engine) = life.engine.as_mut() else { return };
        let now = self.nodes[life.node].now(self.t);
        let fx = engine.handle(input, now);
        self.execute(token, fx, now);
        self.call(token);
        self.schedule(token);
    }

    fn execute(&mut self, token: u64, fx: Effects, now: Now) {
        let Some(life) = self.lives.get_mut(&token) else { return };
        let (node, claim) = (life.node, self.database.row.claim);
        if let Some((number, marks)) = fx.commit {
            self.judge.puts(token, &fx.store);
            life.jobs.push_back(Job::Commit(fx.store, number, marks));
        }
        if !(fx.acks.is_empty() && fx.replies.is_empty()) {
            self.judge.acts(token, claim, "acks or answers");
        }
        for batch in fx.publishes {
            self.judge.sends(token, &batch, now.wall);
            life.handed.push_back(batch);
        }
        life.jobs.extend(fx.loads.into_iter().map(Job::Load));
        let changes = fx.intake.map(|intake| life.takes = intake == Intake::Resume).is_some();
        let (connection, hands) = (life.connection, !life.handed.is_empty());
        for ack in fx.acks {
            connection.into_iter().for_each(|to| self.send_to_broker(node, Event::Acks(to, ack)));
        }
        fx.replies.iter().for_each(|reply| self.judge.answers(token, reply));
        if hands {
            let pause = self.pick(4);
            self.of_node(node, pause, Event::Writes(token));
        }
        if changes {
            self.of_node(node, 0, Event::Consumes(token));
        }
        for number in fx.give_up {
            let settled = Settled { number, outcome: Outcome::Overdue };
            connection.into_iter().for_each(|to| self.settles(to, settled.clone()));
        }
    }

    /// Plans the next look: at the engine's deadline, at the renewal, or in a second.
    fn schedule(&mut self, token: u64) {
        let Some(life) = self.lives.get_mut(&token) else { return };
        let (Some(engine), node) = (&life.engine, &self.nodes[life.node]) else { return };
        let (now, deadline) = (node.now(self.t), engine.next_deadline());
        let wall = deadline.wall.map(|at| at.saturating_sub(now.wall));
        let pause = (life.renewed_at + RENEWAL_PAUSE_MS).saturating_sub(now.mono);
        let lease = life.lease.due_in(now.mono).max(pause);
        let mono = deadline.mono.map(|at| at.saturating_sub(now.mono));
        let wait = wall.into_iter().chain(mono).chain([lease, 1_000]).min().map_or(0, |ms| node.real(ms));
        if self.t + wait < life.looks_at {
            life.looks_at = self.t + wait;
            let node = life.node;
            self.of_node(node, wait, Event::Looks(token));
        }
    }

    // ---- the store's thread -------------------------------------------------------------------------------

    /// Sends the next call, if none is under way: neighbouring commits together.
    pub(super) fn call(&mut self, token: u64) {
        let Some(life) = self.lives.get_mut(&token).filter(|life| !life.calls) else { return };
        let work = if std::mem::take(&mut life.wants_renewal) {
            Work::Renew
        } else {
            match life.jobs.pop_front() {
                Some(Job::Load(load)) => Work::Load(load),
                Some(Job::Commit(ops, number, marks)) => {
                    let (mut groups, mut last) = (vec![(ops, marks)], number);
                    while let Some(Job::Commit(..)) = life.jobs.front() {
                        let Some(Job::Commit(ops, number, marks)) = life.jobs.pop_front() else { break };
                        groups.push((ops, marks));
                        last = number;
                    }
                    Work::Commit(groups, last)
                }
                None if life.phase == Phase::Ends => {
                    life.lease.end();
                    Work::Release
                }
                None => return,
            }
        };
        life.calls = true;
        let early = match &work {
            Work::Commit(_, last) => Some(*last).filter(|_| self.bug == Some(Bug::AckBeforeAnswer)),
            _ => None,
        };
        self.send(token, work);
        // `store/thread.rs` reports a commit once the store has returned.
        early.into_iter().for_each(|last| self.feed(token, Input::Committed(last)));
    }

    // ---- the connections to the broker --------------------------------------------------------------------

    pub(super) fn connect(&mut self, token: u64) {
        let Some(life) = self.lives.get(&token).filter(|life| life.connection.is_none()) else { return };
        let node = life.node;
        if self.nodes[node].cut_until[1] > self.t {
            return self.of_node(node, TRY_MS, Event::Connects(token));
        }
        let connection = self.broker.connect(token);
        self.lives.entry(token).and_modify(|life| life.connection = Some(connection));
        self.feed(token, Input::EgressReady);
        self.consume(token);
    }

    /// Becomes the consumer, or tries again; see `amqp/ingest_lock.rs`.
    pub(super) fn consume(&mut self, token: u64) {
        let Some(life) = self.lives.get_mut(&token).filter(|life| life.takes_requests()) else { return };
        let Some(connection) = life.connection else { return };
        if self.broker.consumer == Some(connection) {
            return self.deliver();
        }
        if self.nodes[life.node].cut_until[1] > self.t || !self.broker.consume(connection) {
            let node = life.node;
            return self.of_node(node, 500, Event::Consumes(token));
        }
        life.generation += 1;
        let generation = life.generation;
        self.feed(token, Input::IngestReady { generation });
        self.deliver();
    }

    pub(super) fn delivered(&mut self, connection: u64, (tag, redelivered, item): (u64, bool, NewItem)) {
        let its = self.lives.iter().find(|(_, life)| life.connection == Some(connection));
        let Some((token, life)) = its.map(|(token, life)| (*token, life)) else { return };
        let delivery = Delivery { generation: life.generation, tag };
        let (received, body) = (self.now_of(life.node).wall, RequestBody::Items(vec![item]));
        self.feed(token, Input::Requests(vec![Request { delivery, redelivered, received, body }]));
    }

    /// The publisher writes what was handed to it; see `EgressPublisher::publish`.
    pub(super) fn write(&mut self, token: u64) {
        if self.bug != Some(Bug::PublisherUnchecked) && !self.trusts(token) {
            return;
        }
        let Some(life) = self.lives.get_mut(&token) else { return };
        let (batches, node) = (std::mem::take(&mut life.handed), life.node);
        let mut unsent = vec![];
        for batch in batches {
            let Some(life) = self.lives.get_mut(&token) else { return };
            let Some(connection) = life.connection else {
                unsent.push(Settled { number: batch.number, outcome: Outcome::Unsent });
                continue;
            };
            life.out.push(batch.clone());
            self.judge.acts(token, self.database.row.claim, "publishes");
            self.judge.writes(token, &batch);
            self.send_to_broker(node, Event::Published { connection, batch });
        }
        if !unsent.is_empty() {
            self.feed(token, Input::Settled(unsent));
        }
    }

    /// The outcome of a batch reaches the life that has the connection.
    pub(super) fn settles(&mut self, connection: u64, settled: Settled) {
        let its = self.lives.iter_mut().find(|(_, life)| life.connection == Some(connection));
        let Some((token, life)) = its.map(|(token, life)| (*token, life)) else { return };
        let Some(at) = life.out.iter().position(|batch| batch.number == settled.number) else { return };
        let batch = life.out.remove(at);
        if settled.outcome == Outcome::Overdue {
            self.judge.hides(&batch);
        }
        self.feed(token, Input::Settled(vec![settled]));
    }

    /// The connection has ended: all outcomes are unknown.
    pub(super) fn disconnected(&mut self, token: u64) {
        let Some(life) = self.lives.get_mut(&token).filter(|life| life.connection.is_some()) else { return };
        let node = life.node;
        let connection = life.connection.take();
        let settle = |batch: &Batch, outcome| Settled { number: batch.number, outcome };
        let (out, handed) = (std::mem::take(&mut life.out), std::mem::take(&mut life.handed));
        out.iter().for_each(|batch| self.judge.hides(batch));
        let unknown = out.iter().map(|batch| settle(batch, Outcome::Unknown));
        let settled: Vec<Settled> =
            unknown.chain(handed.iter().map(|batch| settle(batch, Outcome::Unsent))).collect();
        connection.into_iter().for_each(|connection| self.send_to_broker(node, Event::Closes(connection)));
        if !settled.is_empty() {
            self.feed(token, Input::Settled(settled));
        }
        self.feed(token, Input::EgressLost);
        self.feed(token, Input::IngestLost);
        self.of_node(node, 300, Event::Connects(token));
    }

    /// A command by HTTP: a look-up, or a cancel.
    pub(super) fn ask(&mut self, node: usize, thing: usize, cancels: bool) {
        let Some(token) = self.nodes[node].life else { return };
        let serves = self.lives.get(&token).is_some_and(|life| life.phase == Phase::Serves);
        let asked = &self.judge.things[thing];
        let Some(id) = asked.id.as_ref().filter(|_| serves) else { return };
        let target = super::target(&asked.new.application, id);
        let command = if cancels { Command::Cancel(target) } else { Command::Lookup(target) };
        self.commands += 1;
        if self.trusts(token) {
            self.judge.asks(self.commands, thing, cancels);
            self.feed(token, Input::Commands(vec![(Asker::Local(self.commands), command)]));
        }
    }
}
