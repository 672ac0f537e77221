//! This node among those that share the shards of a database: its thread reports it as living in each round,
//! and tells each of its shards whether it is its turn.
//!
//! A node is reported only while it can serve: its sharder is connected to the broker, it has not just given
//! a shard away, and not failed with the only one that it tried. What a round decides is in
//! [`super::balance`]. While the database is out of reach, nothing is decided, and the shards of this node
//! end with their leases.

use super::balance::{Balance, NodeAbility, OwnShard};
use super::mailbox::{ControlEvent, Inlet, ShardOrder, ShardTurn};
use super::reports::NodeEvent;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;
use tidegate_common::clock;
use tidegate_config::StoreConfig;
use tidegate_store::{MemberView, Membership, SeenShard};

/// Longest time between two rounds.
const LONGEST_ROUND: Duration = Duration::from_secs(1);
/// For how long a shard is not tried again that could not begin or go on here, doubled each time up to a
/// limit. A node that has no other one is not reported for that time: else others would give up theirs for
/// it.
const AFTER_FAILURE: Duration = Duration::from_secs(30);
const AFTER_FAILURES: Duration = Duration::from_secs(600);
/// The same for a shard that could not be opened for a reason that may pass, such as a restart of the
/// database; and the limit while no other node could take it.
const AFTER_PASSING: Duration = Duration::from_secs(2);
const AFTER_PASSING_ALONE: Duration = Duration::from_secs(8);
/// For how long a node is not reported after one of its shards was given away, because there was no
/// connection for publishing. What nobody else takes it takes nevertheless.
const AFTER_GIVING_AWAY: Duration = Duration::from_secs(300);

/// What the shards of a node and its membership know of each other. All moments are monotonic ms.
#[derive(Debug)]
pub(super) struct SeatBoard {
    /// Whether each shard has its store open.
    held: Box<[AtomicBool]>,
    /// The node is not reported before this moment.
    unable_until: AtomicU64,
    /// Of each shard that could not begin here, or waits.
    failures: Mutex<BTreeMap<u16, SeatFailures>>,
    /// Another node is living, as of the last round.
    has_others: AtomicBool,
    /// Who has each shard, as of the last round.
    owners: Mutex<Vec<Option<String>>>,
    /// The names of this node in this process.
    names: Mutex<BTreeSet<String>>,
}

/// How a shard has failed at this node.
#[derive(Debug, Default)]
struct SeatFailures {
    /// Number of failures in a row.
    count: u32,
    /// Number of attempts in a row to open it that ended for a reason that may pass.
    passing: u32,
    /// It is not tried again before.
    until: u64,
}

/// A pause that doubles each time.
fn doubled(first: Duration, times: u32, most: Duration) -> Duration {
    (first * 2_u32.saturating_pow(times.min(10))).min(most)
}

/// Where a shard is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SeatedAt {
    /// Here, or about to be.
    Here,
    /// At another node.
    At(String),
    /// At no node, as far as is known.
    Nowhere,
}

impl SeatBoard {
    pub(super) fn new(count: u16) -> Self {
        let held = (0..count).map(|_| AtomicBool::new(false)).collect();
        let owners = Mutex::new(vec![None; usize::from(count)]);
        SeatBoard {
            held,
            unable_until: AtomicU64::new(0),
            failures: Mutex::default(),
            has_others: AtomicBool::new(false),
            owners,
            names: Mutex::default(),
        }
    }

    /// A shard has opened or closed its store.
    pub(super) fn set_held(&self, shard: u16, held: bool) {
        self.held.get(usize::from(shard)).into_iter().for_each(|seat| seat.store(held, Ordering::Release));
        if held {
            self.failures().get_mut(&shard).into_iter().for_each(|failures| failures.passing = 0);
        }
    }

    fn failures(&self) -> MutexGuard<'_, BTreeMap<u16, SeatFailures>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a shard has its store open.
    pub(super) fn holds(&self, shard: u16) -> bool {
        self.held.get(usize::from(shard)).is_some_and(|seat| seat.load(Ordering::Acquire))
    }

    /// Where this shard is.
    pub(super) fn seat(&self, shard: u16) -> SeatedAt {
        if self.holds(shard) {
            return SeatedAt::Here;
        }
        let owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = owners.get(usize::from(shard)).cloned().flatten();
        owner.map_or(SeatedAt::Nowhere, SeatedAt::At)
    }

    /// Whether this node has, or had, this name.
    pub(super) fn is_own_name(&self, name: &str) -> bool {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

    /// This node has this name from now on.
    pub(super) fn named(&self, name: &str) {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
    }

    #[cfg(test)]
    pub(super) fn set_owner(&self, shard: u16, owner: Option<&str>) {
        self.owners.lock().unwrap()[usize::from(shard)] = owner.map(str::to_owned);
    }

    /// Notes who lives, and who has which shard.
    fn note(&self, view: &MemberView) {
        self.has_others.store(view.living.iter().any(|node| *node != view.own), Ordering::Release);
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        for SeenShard { number, owner, left_ms } in &view.shards {
            // What this node had before is free for it.
            let owner = owner.clone().filter(|owner| *left_ms > 0 && *owner != view.own);
            owners.get_mut(usize::from(*number)).into_iter().for_each(|known| known.clone_from(&owner));
        }
    }

    /// A shard could not begin, or could not go on here.
    pub(super) fn failed(&self, shard: u16) {
        self.pauses(shard, |failures| {
            let pause = doubled(AFTER_FAILURE, failures.count, AFTER_FAILURES);
            failures.count = failures.count.saturating_add(1);
            pause
        });
    }

    /// A shard could not be opened here, for a reason that may pass by itself. The trouble may be this node's
    /// alone, so it tries it later each time as well.
    pub(super) fn stumbled(&self, shard: u16) {
        let has_others = self.has_others.load(Ordering::Acquire);
        let most = if has_others { AFTER_FAILURES } else { AFTER_PASSING_ALONE };
        self.pauses(shard, |failures| {
            let pause = doubled(AFTER_PASSING, failures.passing, most);
            failures.passing = failures.passing.saturating_add(1);
            pause
        });
    }

    /// A shard is not tried again for a time. A node that has no other one is not reported meanwhile.
    fn pauses(&self, shard: u16, pause: impl FnOnce(&mut SeatFailures) -> Duration) {
        let mut all = self.failures();
        let failures = all.entry(shard).or_default();
        let pause = pause(failures);
        failures.until = clock::now().mono + pause.as_millis() as u64;
        drop(all);
        if !self.held.iter().any(|seat| seat.load(Ordering::Acquire)) {
            self.rest(pause);
        }
    }

    /// A shard is not to be opened here for this time: a claim would go unused, in place of another's.
    pub(super) fn waits(&self, shard: u16, pause: Duration) {
        let mut all = self.failures();
        let failures = all.entry(shard).or_default();
        failures.until = failures.until.max(clock::now().mono + pause.as_millis() as u64);
    }

    /// A shard has lived for long enough, or has ended without a failure.
    pub(super) fn lasted(&self, shard: u16) {
        self.failures().remove(&shard);
    }

    /// Whether this shard may be tried here.
    fn may_try(&self, shard: u16, now: u64) -> bool {
        self.failures().get(&shard).is_none_or(|failures| now >= failures.until)
    }

    /// A shard was given away.
    pub(super) fn gave_away(&self) {
        self.rest(AFTER_GIVING_AWAY);
    }

    fn rest(&self, pause: Duration) {
        let until = clock::now().mono + pause.as_millis() as u64;
        self.unable_until.fetch_max(until, Ordering::AcqRel);
    }

    fn is_able(&self, now: u64) -> bool {
        now >= self.unable_until.load(Ordering::Acquire)
    }
}

/// The thread, until it is told to stop.
#[derive(Debug)]
pub(super) struct SharingNode {
    stop: SyncSender<()>,
}

impl SharingNode {
    /// Starts the thread. `store`: that of the node. `is_connected`: whether the node can reach the broker.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(super) fn start(
        store: &StoreConfig,
        inlets: Vec<Arc<Inlet>>,
        board: Arc<SeatBoard>,
        is_connected: impl Fn() -> bool + Send + 'static,
        node: Sender<NodeEvent>,
    ) -> std::io::Result<SharingNode> {
        let lease = store.database.as_ref().map_or(LONGEST_ROUND, |database| database.lease);
        let round = (lease / 3).min(LONGEST_ROUND);
        let count = u16::try_from(inlets.len()).unwrap_or(u16::MAX);
        let membership = Membership::new(store, count);
        let (stop, stopped) = sync_channel(1);
        let seats = Seats { inlets, board, node, name: String::new(), told: String::new() };
        let run = move || seats.run(membership, round, is_connected, &stopped);
        // Its waits are bounded, and it is not joined: the process may end meanwhile.
        Builder::new().name("tidegate-nodes".to_owned()).spawn(run)?;
        Ok(SharingNode { stop })
    }

    /// The node ends: others take its shards as soon as they are free.
    pub(super) fn stop(&self) {
        // A second call finds the first one waiting.
        let _ = self.stop.try_send(());
    }
}

/// The shards of this node, as its membership sees them.
struct Seats {
    inlets: Vec<Arc<Inlet>>,
    board: Arc<SeatBoard>,
    node: Sender<NodeEvent>,
    /// The name of this node, as the node was told it.
    name: String,
    /// Why the last round has failed, as logged; empty: it has not.
    told: String,
}

impl Seats {
    fn run(
        mut self,
        mut membership: Membership,
        round: Duration,
        is_connected: impl Fn() -> bool,
        stopped: &Receiver<()>,
    ) {
        let mut balance = Balance::default();
        loop {
            let ability = match (is_connected(), self.board.is_able(clock::now().mono)) {
                (false, _) => NodeAbility::None,
                (true, false) => NodeAbility::Spare,
                (true, true) => NodeAbility::Full,
            };
            match membership.round(ability == NodeAbility::Full) {
                Ok(view) => self.seen(&mut balance, &view, ability),
                Err(error) if error.is_passing() => self.unseen(&error.to_string()),
                Err(error) => {
                    // Without a node the process is ending.
                    let _ = self.node.send(NodeEvent::Unshared(Box::new(error)));
                    return;
                }
            }
            match stopped.recv_timeout(round) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return membership.leave(),
            }
        }
    }

    fn seen(&mut self, balance: &mut Balance, view: &MemberView, ability: NodeAbility) {
        if !std::mem::take(&mut self.told).is_empty() {
            tracing::info!("the database is within reach again");
        }
        self.board.note(view);
        if self.name != view.own {
            self.name.clone_from(&view.own);
            self.board.named(&view.own);
            // Without a node the process is ending.
            let _ = self.node.send(NodeEvent::Shared { key: view.key, name: view.own.clone() });
        }
        let now = clock::now().mono;
        let own = |shard| match (self.board.holds(shard), self.board.may_try(shard, now)) {
            (true, _) => OwnShard::Held,
            (false, true) => OwnShard::Possible,
            (false, false) => OwnShard::Failed,
        };
        let round = balance.decide(view, own, ability, now);
        for SeenShard { number, owner, left_ms } in &view.shards {
            if self.board.holds(*number) {
                continue;
            }
            // What is left of this node's own claim, after it has lost the shard, serves nobody.
            let turn = match owner.clone().filter(|owner| *left_ms > 0 && *owner != view.own) {
                _ if round.claims.contains(number) => ShardTurn::Claim,
                Some(owner) => ShardTurn::Taken { owner, left_ms: *left_ms },
                None => ShardTurn::Free,
            };
            self.order(*number, ShardOrder::Turn(turn));
        }
        if let Some(shard) = round.gives_up {
            tracing::info!(shard, "given up: another node has fewer shards");
            self.order(shard, ShardOrder::Release);
        }
    }

    fn unseen(&mut self, reason: &str) {
        if self.told != reason {
            tracing::warn!("the database is out of reach: {reason}");
            reason.clone_into(&mut self.told);
        }
        for shard in (0..).take(self.inlets.len()).filter(|shard| !self.board.holds(*shard)) {
            self.order(shard, ShardOrder::Turn(ShardTurn::Unknown(reason.to_owned())));
        }
    }

    fn order(&self, shard: u16, order: ShardOrder) {
        let inlet = self.inlets.get(usize::from(shard));
        inlet.into_iter().for_each(|inlet| inlet.post(ControlEvent::Order(order.clone())));
    }
}

#[cfg(test)]
mod tests {
    use super::super::mailbox::LoopEvent;
    use super::*;
    use std::collections::VecDeque;
    use std::sync::mpsc::channel;

    fn seats(count: u16) -> (Seats, Receiver<NodeEvent>) {
        let (node, events) = channel();
        let inlets = (0..count).map(|_| Arc::default()).collect();
        let board = Arc::new(SeatBoard::new(count));
        (Seats { inlets, board, node, name: String::new(), told: String::new() }, events)
    }

    fn view(owners: &[Option<&str>]) -> MemberView {
        let shard = |(number, owner): (u16, &Option<&str>)| SeenShard {
            number,
            owner: owner.map(str::to_owned),
            left_ms: if owner.is_some() { 900 } else { 0 },
        };
        let living = vec!["here".to_owned(), "there".to_owned()];
        MemberView {
            own: "here".to_owned(),
            living,
            shards: (0..).zip(owners).map(shard).collect(),
            key: [7; 32],
        }
    }

    /// The orders that a shard has received.
    fn orders(seats: &Seats, shard: usize) -> Vec<String> {
        let mut events = VecDeque::new();
        seats.inlets[shard].take(Duration::ZERO, &mut events);
        let order = |event: &LoopEvent| {
            let LoopEvent::Control(ControlEvent::Order(order)) = event else { panic!("{event:?}") };
            format!("{order:?}")
        };
        events.iter().map(order).collect()
    }

    #[test]
    fn each_shard_without_a_store_hears_whose_turn_it_is() {
        let (mut seats, events) = seats(4);
        let mut balance = Balance::default();
        seats.board.set_held(0, true);
        let seen = view(&[Some("here"), Some("there"), Some("there"), None]);
        seats.seen(&mut balance, &seen, NodeAbility::Full);
        assert_eq!(orders(&seats, 0), [""; 0], "it has its store");
        assert_eq!(orders(&seats, 1), [r#"Turn(Taken { owner: "there", left_ms: 900 })"#]);
        assert_eq!(orders(&seats, 3), ["Turn(Claim)"]);
        seats.seen(&mut balance, &seen, NodeAbility::None);
        assert_eq!(orders(&seats, 3), ["Turn(Free)"], "this node cannot serve it");
        seats.unseen("gone");
        assert_eq!(
            (orders(&seats, 0).len(), orders(&seats, 2).pop()),
            (0, Some(r#"Turn(Unknown("gone"))"#.to_owned()))
        );
        let told = events.try_recv().unwrap();
        assert!(
            matches!(&told, NodeEvent::Shared { key, name } if *key == [7; 32] && name == "here"),
            "{told:?}"
        );
        assert!(events.try_recv().is_err(), "it is told once");
        let seats = [0, 1, 3].map(|shard| seats.board.seat(shard));
        assert_eq!(seats, [SeatedAt::Here, SeatedAt::At("there".to_owned()), SeatedAt::Nowhere]);
    }

    #[test]
    fn a_shard_that_could_not_begin_is_tried_later_each_time_and_a_node_without_others_is_not_reported() {
        let board = SeatBoard::new(2);
        let now = clock::now().mono;
        assert!(board.is_able(now) && board.may_try(0, now) && !board.holds(0) && !board.holds(2));
        let later = |pause: Duration| clock::now().mono + pause.as_millis() as u64;
        board.failed(0);
        assert!(!board.is_able(later(AFTER_FAILURE / 2)) && board.is_able(later(AFTER_FAILURE)));
        assert!(
            !board.may_try(0, later(AFTER_FAILURE / 2)) && board.may_try(1, now),
            "the other one is as before"
        );
        board.failed(0);
        assert!(
            !board.is_able(later(AFTER_FAILURE)) && board.is_able(later(AFTER_FAILURE * 2)),
            "longer each time, or others would give up a shard for it each half minute"
        );
        board.lasted(0);
        board.unable_until.store(0, Ordering::Release);
        board.failed(0);
        board.set_held(1, true);
        board.failed(0);
        assert!(!board.may_try(0, later(AFTER_FAILURE)) && board.may_try(0, later(AFTER_FAILURE * 2)));
        assert!(board.is_able(later(AFTER_FAILURE)), "it has another shard");
        (0..99).for_each(|_| board.failed(0));
        assert!(board.may_try(0, later(AFTER_FAILURES)));
        board.lasted(0);
        board.failed(0);
        assert!(board.may_try(0, later(AFTER_FAILURE)), "it has worked since");
        board.waits(1, AFTER_FAILURE / 2);
        assert!(!board.may_try(1, clock::now().mono) && board.may_try(1, later(AFTER_FAILURE / 2)));
        board.waits(0, AFTER_FAILURE / 2);
        assert!(!board.may_try(0, later(AFTER_FAILURE / 2)), "the longer of both");
    }

    /// Excluded: a shard that stays closed for half a minute because its database was restarted.
    #[test]
    fn a_shard_that_could_not_be_opened_for_what_passes_is_tried_again_soon() {
        let board = SeatBoard::new(2);
        let later = |pause: Duration| clock::now().mono + pause.as_millis() as u64;
        let begun = later(Duration::ZERO);
        board.stumbled(0);
        assert!(!board.may_try(0, begun) && board.may_try(0, later(AFTER_PASSING)));
        assert!(!board.is_able(begun) && board.is_able(later(AFTER_PASSING)));
        (0..99).for_each(|_| board.stumbled(0));
        assert!(board.may_try(0, later(AFTER_PASSING_ALONE)), "no other node could take it");
        board.note(&view(&[None, None]));
        board.stumbled(0);
        assert!(!board.may_try(0, later(AFTER_FAILURES / 2)) && board.may_try(0, later(AFTER_FAILURES)));
        board.set_held(0, true);
        board.set_held(0, false);
        board.stumbled(0);
        assert!(board.may_try(0, later(AFTER_PASSING)), "it was opened since");
    }
}
