//! A shard: one engine, its part of the store, and its connections to one ingest queue.
//!
//! What happens is an input of the engine, and what the engine answers is carried out in the order of its
//! fields. Nothing here waits.

use super::commands::PendingQueries;
use crate::amqp::{self, Amqp};
use crate::clock;
use crate::engine::event::{Effects, Input};
use crate::engine::types::Reply;
use crate::engine::Engine;
use crate::lease::Lease;
use crate::store::{self, CommitGroup};
use std::sync::Arc;
use std::time::Duration;

/// Least time between two calls for a renewal of the lease, ms: the first may be under way.
const RENEWAL_PAUSE_MS: u64 = 300;

/// See the module's page.
pub(super) struct Shard {
    pub(super) engine: Engine,
    pub(super) amqp: Amqp,
    pub(super) store: store::thread::StoreHandle,
    /// For how long the store is this daemon's; `None`: nobody can take it.
    pub(super) lease: Option<Arc<Lease>>,
    /// Random, made once in the life of a store: with the arrival number it makes assigned ids.
    pub(super) store_identity: u64,
    /// Commands of the admin port that have not been answered.
    pub(super) queries: PendingQueries,
    /// Last state of each: ingest, egress.
    pub(super) links: [Option<amqp::LinkStatus>; 2],
    /// A consumer runs.
    pub(super) consumes: bool,
    /// The engine had an input, and with it the time, in this turn.
    engine_ticked: bool,
    /// When the lease was last asked to be extended, monotonic ms.
    renewed_at_ms: u64,
    /// Nothing is done any more: the lease was over when something was to be, or the store has failed.
    is_over: bool,
    /// Nothing more is taken in: what the engine says of the intake is past.
    stopping: bool,
}

impl Shard {
    pub(super) fn new(
        engine: Engine,
        amqp: Amqp,
        store: store::thread::StoreHandle,
        lease: Option<Arc<Lease>>,
        store_identity: u64,
    ) -> Self {
        Shard {
            engine,
            amqp,
            store,
            lease,
            store_identity,
            queries: PendingQueries::default(),
            links: Default::default(),
            consumes: false,
            engine_ticked: false,
            renewed_at_ms: 0,
            is_over: false,
            stopping: false,
        }
    }

    /// Tells the engine, and does what it says.
    pub(super) fn feed(&mut self, input: Input) {
        self.engine_ticked = true;
        let effects = self.engine.handle(input, clock::now());
        self.execute(effects);
    }

    /// A turn is over: the engine hears of the time also where only questions came. Else who asks often keeps
    /// it from noticing a step of the clock.
    pub(super) fn end_turn(&mut self) {
        if !std::mem::take(&mut self.engine_ticked) {
            self.feed(Input::Tick);
            self.engine_ticked = false;
        }
    }

    /// In the order of the fields: what is published or acked depends on nothing that comes later.
    ///
    /// Nothing of it once the lease is over: the store may be another daemon's, which does it as well.
    fn execute(&mut self, effects: Effects) {
        self.is_over |= self.lease.as_ref().is_some_and(|lease| !lease.holds(clock::now().mono));
        if self.is_over {
            return;
        }
        if let Some((token, marks)) = effects.commit {
            let hurried = effects.hurried;
            self.store.commit(CommitGroup { ops: effects.store, token, marks, hurried });
        }
        if !effects.acks.is_empty() {
            self.amqp.ack(effects.acks);
        }
        if !effects.publishes.is_empty() {
            self.amqp.publish(effects.publishes);
        }
        if !effects.give_up.is_empty() {
            self.amqp.give_up(effects.give_up);
        }
        if !effects.replies.is_empty() {
            self.reply(effects.replies);
        }
        for load in effects.loads {
            self.store.load(load);
        }
        if let Some(intake) = effects.intake.filter(|_| !self.stopping) {
            self.amqp.intake(intake);
        }
    }

    /// Since the store was last known to be this daemon's, ms, where it may be another one's by now. Where it
    /// was let go of, the store itself says so.
    pub(super) fn lost_for(&self) -> Option<u64> {
        let (lease, now) = (self.lease.as_ref()?, clock::now().mono);
        ((self.is_over || !lease.holds(now)) && !lease.is_ended()).then(|| lease.age(now))
    }

    /// Nothing is done any more: the store has failed.
    pub(super) fn give_up(&mut self) {
        self.is_over = true;
    }

    /// Extends the lease, where nothing else has for some time. To be called in each turn.
    pub(super) fn renew(&mut self) {
        let Some(lease) = &self.lease else { return };
        let now = clock::now().mono;
        if lease.due_in(now) == 0 && now >= self.renewed_at_ms + RENEWAL_PAUSE_MS {
            self.renewed_at_ms = now;
            self.store.renew();
        }
    }

    /// Ends the connections, within `budget`. The last confirms come with it and are to be written, so the
    /// store is kept meanwhile.
    pub(super) async fn end_of_amqp(&self, budget: Duration) {
        let mut ending = std::pin::pin!(self.amqp.shutdown(budget));
        loop {
            if self.lease.is_some() {
                self.store.renew();
            }
            let pause = Duration::from_millis(RENEWAL_PAUSE_MS);
            if tokio::time::timeout(pause, &mut ending).await.is_ok() {
                return;
            }
        }
    }

    /// Answers of one turn.
    fn reply(&mut self, replies: Vec<Reply>) {
        let outgoing = self.queries.sort(replies, self.store_identity);
        if !outgoing.is_empty() {
            self.amqp.reply(outgoing);
        }
    }

    /// Takes nothing new, and gives out what is due.
    pub(super) fn begin_drain(&mut self) {
        self.stopping = true;
        self.amqp.stop_intake();
        self.feed(Input::Drain);
    }

    /// How long nothing is due, at most `longest`.
    pub(super) fn idle_time(&self, longest: Duration) -> Duration {
        let deadline = self.engine.next_deadline();
        let wall = deadline.wall.map(|at| at.saturating_mul(1_000).saturating_sub(clock::wall_us()));
        let mono = deadline.mono.map(|at| at.saturating_mul(1_000).saturating_sub(clock::mono_us()));
        let lease = self.lease.as_ref().map(|lease| {
            let now = clock::now().mono;
            lease.due_in(now).max((self.renewed_at_ms + RENEWAL_PAUSE_MS).saturating_sub(now)) * 1_000
        });
        let soonest = wall.into_iter().chain(mono).chain(lease).min().map(Duration::from_micros);
        soonest.unwrap_or(longest).min(longest)
    }
}
