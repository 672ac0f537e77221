//! What a shard does without a store: it waits, and answers queries with the reason.
//!
//! It takes no requests and sends nothing, since it has no engine and no connection to a broker.

use super::answers::ShardAnswer;
use super::lasting::Lasting;
use super::mailbox::{answer, ControlEvent, LoopEvent, ShardOrder, ShardTurn};
use super::reports::ShardReport;
use crate::admin::{ExportRefusal, LinkState, ShardLine, ShardState};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tidegate_config::Config;
use tidegate_store::{Loss, OpenError, ReadError, StoreFailure};
use tokio::sync::oneshot::Sender;

/// Longest time between two attempts to open the store, and so the gap after a stop of its owner.
const LONGEST_TRY: Duration = Duration::from_secs(1);
/// Pause after a short life, doubled with each one in a row. Each life takes requests, and the broker
/// dead-letters a request after some fifty returns. That must not happen soon where a store can be opened but
/// takes no commits.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Pause after this daemon left the store to another one, which needs time to take it.
const HEIR_FIRST: Duration = Duration::from_secs(3);
/// A life of this length, here or at another node, says nothing about the next one.
const LONG_LIFE: Duration = Duration::from_secs(10);

/// The reason before the first attempt has ended, and in a turn.
const OPENING: &str = "the store is being opened";

/// A failure of the store in words for the state, which names no customer.
pub(super) fn failure_in_state(failure: &StoreFailure) -> String {
    if let StoreFailure::Read(ReadError::Damaged { error, .. }) = failure {
        return damage_in_state(error);
    }
    failure.to_string()
}

/// Damage without its row, whose key may contain a customer.
fn damage_in_state(error: &str) -> String {
    format!("the store is damaged: {error}; the log names the place")
}

/// Why and until when the shard waits.
#[derive(Debug, Default)]
pub(super) struct StandbyWaits {
    until: Option<Instant>,
    /// Why there is no store.
    reason: String,
    /// The other daemon that has it, and the rest of its lease at the last attempt, ms.
    owner: Option<(String, u64)>,
    /// What was last logged of it; empty: that this daemon stands by.
    told: Option<String>,
    /// Number of short lives in a row.
    short: u32,
    /// It opens its store in its turn only, and it is its turn. `None`: it opens its store at any time.
    turn: Option<bool>,
    /// With turns: the database is out of reach, or was not asked yet.
    is_unknown: bool,
    /// With turns: why the shard could not begin or go on here, until it can or lives at another node.
    failure: Option<String>,
    /// With turns: since when somebody has it.
    taken_at: Option<Instant>,
    /// With turns: the claim has been renewed since. That of one that has failed at once is not.
    is_renewed: bool,
}

impl StandbyWaits {
    /// `has_turns`: several nodes share the shards.
    pub(super) fn new(has_turns: bool) -> Self {
        let reason = if has_turns { "the database has not been asked yet" } else { OPENING };
        let turn = has_turns.then_some(false);
        StandbyWaits { turn, is_unknown: has_turns, reason: reason.to_owned(), ..StandbyWaits::default() }
    }

    /// Another node is to have the shard.
    pub(super) fn released(&mut self) {
        (self.owner, self.reason) = (None, "given up for another node".to_owned());
    }

    /// Whether nothing is wrong here: another daemon has the store, or may have it. What a shard could not do
    /// here counts until it is open, or has lived at another node for a while: one that nobody can open is
    /// claimed again and again, for a moment each time.
    pub(super) fn is_spare(&self) -> bool {
        match self.turn {
            Some(_) => !self.is_unknown && self.failure.is_none(),
            None => self.owner.is_some(),
        }
    }

    /// Hears whose turn it is.
    fn hear(&mut self, turn: ShardTurn) {
        if let ShardTurn::Taken { owner, left_ms } = &turn {
            self.taken_at.get_or_insert_with(Instant::now);
            self.is_renewed |=
                self.owner.as_ref().is_some_and(|(name, left)| name == owner && left_ms > left);
        } else {
            (self.taken_at, self.is_renewed) = (None, false);
        }
        if self.is_renewed && self.taken_at.is_some_and(|at| at.elapsed() >= LONG_LIFE) {
            self.failure = None;
        }
        let waits = self.until.is_some_and(|until| Instant::now() < until);
        self.turn = Some(false);
        self.is_unknown = matches!(turn, ShardTurn::Unknown(_));
        self.owner = None;
        self.reason = match turn {
            ShardTurn::Claim if waits => return,
            ShardTurn::Claim => {
                self.turn = Some(true);
                OPENING.to_owned()
            }
            ShardTurn::Taken { owner, left_ms } => {
                let error = OpenError::Claimed { owner: owner.clone(), left_ms };
                self.owner = Some((owner, left_ms));
                error.to_string()
            }
            ShardTurn::Free => match &self.failure {
                Some(failure) => format!("{failure}; another node may take it, and it is tried again here"),
                None => "nobody has the store at present, and it is another node's turn".to_owned(),
            },
            ShardTurn::Unknown(reason) => reason,
        };
    }

    /// Whether the store may be opened now.
    fn is_due(&self) -> bool {
        self.turn.unwrap_or(true) && self.until.is_none_or(|until| Instant::now() >= until)
    }

    /// The life that ended had lost its store. Returns for how long it is not opened here.
    pub(super) fn lost(&mut self, lived: Duration, loss: Loss, reason: String) -> Duration {
        self.short = if lived >= LONG_LIFE { 0 } else { self.short.saturating_add(1) };
        let pause = match loss {
            Loss::GivenAway => HEIR_FIRST,
            Loss::Fenced | Loss::LeaseOver | Loss::Database => {
                FIRST_PAUSE * 2_u32.saturating_pow(self.short.min(10))
            }
        };
        let pause = pause.min(LONGEST_PAUSE);
        self.failure = Some(reason.clone());
        (self.until, self.reason, self.owner) = (Some(Instant::now() + pause), reason, None);
        pause
    }

    /// The store could not be opened.
    pub(super) fn refused(&mut self, error: OpenError, config: &Config) {
        let text = error.to_string();
        self.reason =
            if let OpenError::Damaged { error, .. } = &error { damage_in_state(error) } else { text.clone() };
        // The remaining time of the other daemon's lease, and the difference of clocks, vary with each try.
        let told = if let OpenError::Claimed { .. } = error {
            String::new()
        } else if let OpenError::ClockApart { place, .. } = &error {
            format!("clock: {place}")
        } else {
            text.clone()
        };
        self.owner = None;
        if let OpenError::Claimed { owner, left_ms } = error {
            self.owner = Some((owner, left_ms));
        } else {
            self.failure = Some(self.reason.clone());
        }
        if self.told.replace(told.clone()) != Some(told) {
            if self.owner.is_some() {
                tracing::info!("standing by: {text}");
            } else {
                tracing::warn!("waiting for the store: {text}");
            }
        }
        let lease = config.store.database.as_ref().map_or(LONGEST_TRY, |database| database.lease);
        self.until = Some(Instant::now() + (lease / 3).min(LONGEST_TRY));
        self.turn = self.turn.map(|_| false);
    }

    /// The store is open.
    pub(super) fn over(&mut self) {
        (self.until, self.told, self.failure, self.taken_at) = (None, None, None, None);
        self.is_renewed = false;
        self.turn = self.turn.map(|_| false);
    }
}

/// Waits until the next attempt is due, and answers queries. False: a stop was ordered.
pub(super) fn wait(lasting: &mut Lasting, waits: &mut StandbyWaits) -> bool {
    if waits.is_due() {
        return true;
    }
    let mut events = VecDeque::new();
    loop {
        let state = if waits.owner.is_some() { "standing by" } else { "waiting for the store" };
        lasting.reports.send(ShardReport::Waits(format!("{state}: {}", waits.reason)));
        let left = waits.until.filter(|_| waits.turn.is_none());
        let left = left.map_or(LONGEST_TRY, |until| until.saturating_duration_since(Instant::now()));
        lasting.inlet.take(left.min(LONGEST_TRY), &mut events);
        while let Some(event) = events.pop_front() {
            if !handle(lasting, waits, event) {
                return false;
            }
        }
        if waits.is_due() {
            return true;
        }
    }
}

/// False: a stop was ordered.
fn handle(lasting: &mut Lasting, waits: &mut StandbyWaits, event: LoopEvent) -> bool {
    match event {
        LoopEvent::Control(ControlEvent::Order(ShardOrder::Stop | ShardOrder::Withdraw)) => {
            lasting.reports.send(ShardReport::Draining { within: Duration::ZERO });
            tracing::info!("stopping: there is nothing to finish");
            return false;
        }
        LoopEvent::Control(ControlEvent::Order(ShardOrder::Configure(config))) => lasting.configure(config),
        LoopEvent::Control(ControlEvent::Order(ShardOrder::Share(forwarding))) => {
            lasting.forwarding = Some(*forwarding);
        }
        LoopEvent::Control(ControlEvent::Order(ShardOrder::Turn(turn))) => {
            waits.hear(turn);
            lasting.health.readiness.reset(waits.is_spare());
        }
        LoopEvent::Control(ControlEvent::State(reply)) => answer(reply, || state(lasting, waits)),
        LoopEvent::Control(ControlEvent::Export(reply)) => {
            answer(reply, || Err(ExportRefusal::NotOnDisk("there is no store open at present")));
        }
        LoopEvent::Command(_, reply) => refuse(waits, reply),
        // Events of the life that has ended.
        LoopEvent::Control(
            ControlEvent::Broker(_)
            | ControlEvent::Store(_)
            | ControlEvent::Opened
            | ControlEvent::Order(ShardOrder::Serve | ShardOrder::Release),
        )
        | LoopEvent::Requests { .. }
        | LoopEvent::Settled(_) => {}
    }
    true
}

fn refuse(waits: &StandbyWaits, reply: Sender<ShardAnswer>) {
    let error = if waits.owner.is_some() {
        format!("this daemon stands by: {}; ask that one", waits.reason)
    } else {
        format!("there is no store at present, ask again: {}", waits.reason)
    };
    // The client may have disconnected.
    drop(reply.send(ShardAnswer::Refused(error)));
}

/// The state without a store.
pub(super) fn state(lasting: &Lasting, waits: &StandbyWaits) -> ShardState {
    let [_, _, _, standby, _, waiting, _, _] = LinkState::STATES;
    let link = |side: &str| LinkState {
        side: side.to_owned(),
        state: if waits.owner.is_some() { standby } else { waiting }.to_owned(),
        detail: waits.reason.clone(),
        notes: Vec::new(),
    };
    let base = lasting.state();
    let (owner, lease_ms) = waits.owner.clone().unzip();
    // A shard that is another node's has no connections here.
    let is_elsewhere = waits.turn.is_some() && !waits.is_unknown;
    let reason = (is_elsewhere && owner.is_none()).then(|| waits.reason.clone());
    let line = ShardLine { owner, lease_ms, reason, ..base.line };
    let links = if is_elsewhere { Vec::new() } else { vec![link("ingest"), link("egress")] };
    let mut state = lasting.judged(ShardState { line, links, ..base });
    if is_elsewhere {
        (if waits.owner.is_some() { standby } else { waiting }).clone_into(&mut state.line.state);
    }
    state
}

#[cfg(test)]
mod tests {
    use super::super::reports::{NodeEvent, Reports};
    use super::*;
    use std::sync::mpsc::channel;
    use std::sync::Arc;
    use tidegate_common::clock;
    use tokio::sync::oneshot;

    #[test]
    fn the_reason_is_told_before_the_wait_and_orders_are_followed_within_it() {
        let (sender, events) = channel();
        let config = Arc::new(Config::default());
        let mut lasting =
            Lasting::new((0, None), Arc::clone(&config), Reports::new(0, sender), None, clock::now())
                .unwrap();
        lasting.node = "here/1".to_owned();
        lasting.health.readiness.reset(true);
        let mut waits = StandbyWaits::default();
        waits.refused(OpenError::Claimed { owner: "there/2".to_owned(), left_ms: 700 }, &config);
        let mut changed = Config::default();
        changed.ingest.queue = "other".to_owned();
        let (sender, answer) = oneshot::channel();
        lasting.inlet.post(ControlEvent::Order(ShardOrder::Configure(Arc::new(changed))));
        lasting.inlet.post(ControlEvent::State(sender));
        lasting.inlet.post(ControlEvent::Order(ShardOrder::Stop));
        assert!(!wait(&mut lasting, &mut waits), "stopped");
        let line = "standing by: the store belongs to there/2; its lease ends in 1 s unless renewed";
        let told = events.try_recv().unwrap();
        assert!(matches!(&told, NodeEvent::Shard(0, ShardReport::Waits(told)) if told == line), "{told:?}");
        let told = events.try_recv().unwrap();
        assert!(matches!(told, NodeEvent::Shard(0, ShardReport::Configured)), "{told:?}");
        let told = events.try_recv().unwrap();
        let NodeEvent::Shard(0, ShardReport::Draining { within }) = told else { panic!("{told:?}") };
        assert!(within.is_zero(), "there is nothing to finish");
        let ShardState { line, node, links, .. } = answer.blocking_recv().unwrap();
        let want = ShardLine {
            state: "standby".to_owned(),
            owner: Some("there/2".to_owned()),
            lease_ms: Some(700),
            queue: "other".to_owned(),
            ..ShardLine::default()
        };
        assert_eq!((line, node.as_str(), links.len()), (want, "here/1", 2));
    }

    #[test]
    fn where_shards_have_turns_a_store_is_opened_in_its_turn_and_after_the_pause() {
        let claimed = |waits: &mut StandbyWaits| {
            waits.hear(ShardTurn::Claim);
            waits.is_due()
        };
        assert!(StandbyWaits::default().is_due(), "without turns at any time");
        let mut waits = StandbyWaits::new(true);
        assert!(!waits.is_due(), "nobody has said whose turn it is");
        waits.hear(ShardTurn::Taken { owner: "there/2".to_owned(), left_ms: 700 });
        assert_eq!((waits.owner.as_ref().map(|(_, left)| *left), waits.is_due()), (Some(700), false));
        assert!(claimed(&mut waits) && waits.owner.is_none());
        waits.over();
        assert!(!waits.is_due(), "one turn is one opening");
        assert!(claimed(&mut waits));
        waits.hear(ShardTurn::Free);
        assert!(!waits.is_due(), "it has passed");
        waits.lost(Duration::ZERO, Loss::GivenAway, "cut off".to_owned());
        assert!(!claimed(&mut waits), "it was given away a moment ago");
        waits.hear(ShardTurn::Unknown("no database".to_owned()));
        assert_eq!((waits.reason.as_str(), waits.is_due()), ("no database", false));
        let mut waits = StandbyWaits::new(true);
        assert!(claimed(&mut waits));
        waits.refused(OpenError::Claimed { owner: "there/2".to_owned(), left_ms: 700 }, &Config::default());
        assert!(!waits.is_due(), "another node was faster");
    }

    /// The state has readers who may not see customers.
    #[test]
    fn the_reason_names_no_damaged_row() {
        let mut waits = StandbyWaits::new(true);
        let (row, error) = ("`ann`".to_owned(), "no record".to_owned());
        waits.refused(OpenError::Damaged { place: row.clone(), error: error.clone() }, &Config::default());
        let failure = ReadError::Damaged { keyspace: "customers", key: row, error };
        let want = "the store is damaged: no record; the log names the place";
        assert_eq!((waits.reason.as_str(), &*failure_in_state(&failure.into())), (want, want));
        assert_eq!(failure_in_state(&StoreFailure::Panicked), StoreFailure::Panicked.to_string());
    }

    /// Excluded: a node that is ready every second although a shard that it could not open has no owner.
    #[test]
    fn a_shard_that_failed_here_is_not_ready_and_tells_why_until_it_lives_somewhere() {
        let (sender, _events) = channel();
        let config = Arc::new(Config::default());
        let reports = Reports::new(2, sender);
        let mut lasting = Lasting::new((2, None), Arc::clone(&config), reports, None, clock::now()).unwrap();
        let mut waits = StandbyWaits::new(true);
        let mut seen = |waits: &mut StandbyWaits, turn| {
            let order = ShardOrder::Turn(turn);
            assert!(handle(&mut lasting, waits, LoopEvent::Control(ControlEvent::Order(order))));
            let line = state(&lasting, waits).line;
            (lasting.health.readiness.missing().is_empty(), line.reason)
        };
        let taken = |left_ms| ShardTurn::Taken { owner: "there/2".to_owned(), left_ms };
        let (is_ready, reason) = seen(&mut waits, ShardTurn::Free);
        assert!(is_ready && reason.is_some_and(|reason| reason.starts_with("nobody has the store")));
        assert_eq!(seen(&mut waits, taken(700)), (true, None));
        waits.hear(ShardTurn::Claim);
        let error = "too many connections".to_owned();
        waits.refused(OpenError::Database { place: "db".to_owned(), error }, &config);
        for _ in 0..2 {
            let (is_ready, reason) = seen(&mut waits, ShardTurn::Free);
            assert!(!is_ready && reason.is_some_and(|reason| reason.contains("too many connections")));
            let (is_ready, reason) = seen(&mut waits, taken(900));
            assert_eq!((is_ready, reason), (false, None), "another node has just claimed it");
        }
        waits.taken_at = Instant::now().checked_sub(LONG_LIFE);
        assert_eq!(seen(&mut waits, taken(100)), (false, None), "it has failed there too");
        assert_eq!(seen(&mut waits, taken(900)), (true, None), "it lives there");
        assert!(seen(&mut waits, ShardTurn::Free).0, "and when that node ends, nothing is wrong here");
        waits.lost(Duration::ZERO, Loss::Database, "no such table".to_owned());
        assert!(!seen(&mut waits, ShardTurn::Free).0);
        waits.over();
        assert!(waits.is_spare(), "it could be opened");
        let mut alone = StandbyWaits::new(false);
        assert!(!alone.is_spare());
        alone.refused(OpenError::Claimed { owner: "there/2".to_owned(), left_ms: 700 }, &config);
        assert!(alone.is_spare(), "another daemon has the only store");
    }
}
