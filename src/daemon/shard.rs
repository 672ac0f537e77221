//! A shard: one engine, its part of the store, and its connections to one ingest queue.
//!
//! Each event is an input of the engine; the engine's effects are carried out in the order of their fields.
//! Nothing here waits.

use super::commands::PendingQueries;
use super::mailbox::Patience;
use std::sync::Arc;
use std::time::Duration;
use tidegate_amqp::Amqp;
use tidegate_common::clock;
use tidegate_common::lease::Lease;
use tidegate_engine::Engine;
use tidegate_store::CommitGroup;
use tidegate_types::event::{Effects, Input};
use tidegate_types::Reply;

/// Number of links: one for each [`tidegate_amqp::Side`].
pub(super) const LINKS: usize = 2;

/// Least time between two renewals of the lease, ms: the first may be in progress.
const RENEWAL_PAUSE_MS: u64 = 300;

/// The state of one shard.
pub(super) struct Shard {
    pub(super) engine: Engine,
    pub(super) amqp: Amqp,
    pub(super) store: tidegate_store::thread::StoreHandle,
    /// How long the store belongs to this daemon; `None`: no other daemon can take it.
    pub(super) lease: Option<Arc<Lease>>,
    /// Number of this node's claim of the store; `None`: no other daemon can take it.
    pub(super) epoch: Option<u64>,
    /// Random, created once with the store. Together with the arrival number it forms assigned ids.
    pub(super) store_identity: u64,
    /// Unanswered commands of the admin port.
    pub(super) queries: PendingQueries,
    /// Last state of the ingest and the egress connection.
    pub(super) links: [Option<tidegate_amqp::LinkStatus>; LINKS],
    /// A consumer is running.
    pub(super) consumes: bool,
    /// The engine had an input in this turn, and with it the time.
    engine_ticked: bool,
    /// When a renewal of the lease was last requested, monotonic ms.
    renewed_at_ms: u64,
    /// No effect is carried out any more: the lease had run out, or the store has failed.
    is_over: bool,
    /// Intake has ended; the engine's further orders about it are ignored.
    stopping: bool,
}

impl Shard {
    pub(super) fn new(
        engine: Engine,
        amqp: Amqp,
        store: tidegate_store::thread::StoreHandle,
        (lease, epoch): (Option<Arc<Lease>>, Option<u64>),
        store_identity: u64,
    ) -> Self {
        Shard {
            engine,
            amqp,
            store,
            lease,
            epoch,
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

    /// Gives the engine an input and carries out its effects.
    pub(super) fn feed(&mut self, input: Input) {
        self.engine_ticked = true;
        let effects = self.engine.handle(input, clock::now());
        self.execute(effects);
    }

    /// Ends a turn. A turn of queries only still gives the engine the time; otherwise frequent queries would
    /// keep it from noticing a step of the clock.
    pub(super) fn end_turn(&mut self) {
        if !std::mem::take(&mut self.engine_ticked) {
            self.feed(Input::Tick);
            self.engine_ticked = false;
        }
    }

    /// Carries out the effects in the order of the fields: a publish or an ack depends on nothing that comes
    /// later.
    ///
    /// Does nothing once the lease has run out: another daemon may have the store and do the same work.
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

    /// Time since the store was last known to belong to this daemon, ms; `None` while it does. A store that
    /// was released reports that itself.
    pub(super) fn lost_for(&self) -> Option<u64> {
        let (lease, now) = (self.lease.as_ref()?, clock::now().mono);
        ((self.is_over || !lease.holds(now)) && !lease.is_ended()).then(|| lease.age(now))
    }

    /// Carries out no effect any more: the store has failed.
    pub(super) fn give_up(&mut self) {
        self.is_over = true;
    }

    /// Requests a renewal of the lease when it is due, in each turn.
    pub(super) fn renew(&mut self) {
        let Some(lease) = &self.lease else { return };
        let now = clock::now().mono;
        if lease.due_in(now) == 0 && now >= self.renewed_at_ms + RENEWAL_PAUSE_MS {
            self.renewed_at_ms = now;
            self.store.renew();
        }
    }

    /// Ends the connections within `budget`. Their last confirms have to be written, so the lease is renewed
    /// during the wait.
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

    /// Sends the answers of one turn.
    fn reply(&mut self, replies: Vec<Reply>) {
        let outgoing = self.queries.sort(replies, self.store_identity);
        if !outgoing.is_empty() {
            self.amqp.reply(outgoing);
        }
    }

    /// Stops intake, and lets due items leave.
    pub(super) fn begin_drain(&mut self) {
        self.stopping = true;
        self.amqp.stop_intake();
        self.feed(Input::Drain);
    }

    /// Whether events that may wait for others end the loop's sleep.
    pub(super) fn patience(&self) -> Patience {
        if self.engine.waits_for_events() {
            Patience::None
        } else {
            Patience::Lingers
        }
    }

    /// Time until something is due, at most `longest`.
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
