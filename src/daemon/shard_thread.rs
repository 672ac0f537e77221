//! The thread of one shard: one life of its store after the other, until a stop is ordered.
//!
//! If the store belongs to another daemon or is out of reach, the shard waits and answers queries
//! ([`super::standby`]). A store that is only lost ends a life, and the next life opens it again. The node
//! learns all of it from reports, and decides when a life may connect to the broker.

use super::guard::PartWatch;
use super::lasting::Lasting;
use super::life::{Life, OpenLife};
use super::reports::{Ending, ShardReport};
use super::standby::{self, StandbyWaits};
use super::starts::Starts;
use super::RunError;
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};
use tidegate_common::threads::thread_name;
use tidegate_store::{Loss, OpenError, Opener, ShardPlace};

/// A life of this length, longer than the longest pause after a failure, shows that the shard can live here.
const STEADY_LIFE: Duration = Duration::from_secs(1_200);

/// Starts the thread. Its last report says how it ended.
///
/// # Errors
/// If the system cannot start a thread.
pub(super) fn start(lasting: Lasting, accept_loss: bool) -> std::io::Result<()> {
    let name = thread_name("tidegate-loop", lasting.number);
    // The node does not join the thread: it may be stuck, and its last report is its last act.
    let run = move || {
        let _entered = lasting.span.clone().entered();
        run(lasting, accept_loss);
    };
    Builder::new().name(name).spawn(run).map(drop)
}

fn run(mut lasting: Lasting, accept_loss: bool) {
    let entered = lasting.runtime.handle().clone();
    let ended = {
        let _entered = entered.enter();
        live(&mut lasting, accept_loss)
    };
    // Open queries end without an answer, so that the admin port need not wait for them.
    lasting.inlet.close();
    let Lasting { runtime, outward, reports, spans, .. } = lasting;
    runtime.shutdown_timeout(Duration::from_secs(1));
    outward.shutdown_timeout(Duration::from_secs(1));
    // The last spans leave before the process ends.
    drop(spans);
    reports.end(ended);
}

/// Runs one life after the other while the store is only lost, until a stop is ordered.
fn live(lasting: &mut Lasting, accept_loss: bool) -> Result<(), RunError> {
    let place = ShardPlace { number: lasting.number, count: lasting.config.shards.count };
    let (store, memory) = (&lasting.config.store, lasting.config.limits.memory);
    let mut opener = Opener::new(store, place, memory, accept_loss)?;
    let board = lasting.board.clone();
    let set_held = |number, held| board.iter().for_each(|board| board.set_held(number, held));
    let mut waits = StandbyWaits::new(board.is_some());
    let (mut starts, mut quarantine) = (None, None);
    let ended = loop {
        let opened = open_life(lasting, &mut opener, &mut waits)?;
        let Some(mut life) = opened else { break Ok(()) };
        set_held(lasting.number, true);
        lasting.reports.send(ShardReport::Opened(life.found));
        if !life.may_serve() {
            life.give_back();
            break Ok(());
        }
        // Only now, because a start that ends before its first message says nothing about messages.
        let starts = starts.get_or_insert_with(|| {
            let (starts, most) = Starts::noted(&lasting.config.store);
            quarantine = most;
            starts
        });
        let watching = thread_name("tidegate-guard", lasting.number);
        let watch = PartWatch::start(&watching, Arc::clone(&lasting.health.progress));
        let watch = watch.map_err(RunError::Runtime)?;
        let begun = Instant::now();
        let ending = life.begin(lasting, quarantine, starts).run();
        drop(watch);
        set_held(lasting.number, false);
        if begun.elapsed() >= STEADY_LIFE {
            board.iter().for_each(|board| board.lasted(lasting.number));
        }
        let (loss, failure) = match ending {
            Ending::Stopped => break Ok(()),
            Ending::Released => {
                board.iter().for_each(|board| board.lasted(lasting.number));
                lasting.health.readiness.reset(true);
                lasting.tally.lost(Loss::GivenAway);
                waits.released();
                continue;
            }
            Ending::FailedAlone(failure) => {
                board.iter().for_each(|board| board.failed(lasting.number));
                (Loss::Database, failure)
            }
            Ending::Failed(failure) => break Err(failure.into()),
            Ending::Lost(loss, failure) => (loss, failure),
        };
        lasting.health.readiness.reset(false);
        lasting.tally.lost(loss);
        if loss == Loss::GivenAway {
            board.iter().for_each(|board| board.gave_away());
        }
        tracing::info!("opening the lost store again");
        let pause = waits.lost(begun.elapsed(), loss, standby::failure_in_state(&failure));
        board.iter().for_each(|board| board.waits(lasting.number, pause));
    };
    if let Some(starts) = &mut starts {
        starts.settle();
    }
    ended
}

/// Opens the store, and waits while it belongs to another daemon or is out of reach. `None`: a stop was
/// ordered during the wait.
fn open_life(
    lasting: &mut Lasting,
    opener: &mut Opener,
    waits: &mut StandbyWaits,
) -> Result<Option<OpenLife>, RunError> {
    loop {
        if !standby::wait(lasting, waits) {
            return Ok(None);
        }
        let opened = match Life::open(lasting, opener, waits) {
            Ok(life) => Ok(life),
            // The other shards of this node go on. What concerns all of them ends its membership.
            Err(RunError::Open(error)) if error.is_passing() || lasting.board.is_some() => Err(error),
            Err(error) => return Err(error),
        };
        // The name changes if another daemon has taken the store away.
        match opener.node() {
            Ok(name) => lasting.node = name,
            Err(error) => tracing::debug!(%error, "this daemon's name is unknown"),
        }
        let error = match opened {
            Ok(life) => {
                waits.over();
                return Ok(Some(life));
            }
            Err(error) => error,
        };
        if !matches!(error, OpenError::Claimed { .. }) {
            // Other nodes can. Where the database is out of reach for all, no attempt is ordered.
            lasting.board.iter().for_each(|board| match error.is_passing() {
                true => board.stumbled(lasting.number),
                false => board.failed(lasting.number),
            });
        }
        waits.refused(error, &lasting.config);
        lasting.health.readiness.reset(waits.is_spare());
    }
}

#[cfg(test)]
mod tests {
    use super::super::answers::ShardAnswer;
    use super::super::mailbox::{ControlEvent, LoopEvent, ShardOrder, ShardTurn};
    use super::super::members::SeatBoard;
    use super::super::reports::{NodeEvent, Reports};
    use super::*;
    use std::sync::mpsc::{channel, Receiver};
    use tidegate_common::clock;
    use tidegate_config::Config;
    use tidegate_store::thread::StoreEvent;
    use tidegate_store::StoreFailure;
    use tidegate_types::Command;
    use tokio::sync::oneshot;

    fn shard(dir: &std::path::Path) -> (Lasting, Receiver<NodeEvent>) {
        let mut config = Config::default();
        config.store.path = dir.join("store");
        config.timeouts.drain = Duration::from_secs(6);
        let (sender, events) = channel();
        let reports = Reports::new(0, sender);
        (Lasting::new((0, None), Arc::new(config), reports, None, clock::now()).unwrap(), events)
    }

    /// The next report other than a line of status.
    fn next(events: &Receiver<NodeEvent>) -> ShardReport {
        loop {
            let event = events.recv_timeout(Duration::from_secs(60)).unwrap();
            let NodeEvent::Shard(0, report) = event else { panic!("{event:?}") };
            if !matches!(report, ShardReport::Status(_) | ShardReport::Opening { .. }) {
                return report;
            }
        }
    }

    /// There is no broker: the connections keep trying while the life runs.
    #[test]
    fn a_life_ends_and_the_next_begins_over_the_same_store() {
        let dir = tempfile::tempdir().unwrap();
        let (mut lasting, events) = shard(dir.path());
        let (mut starts, _) = Starts::note(None);
        let mut opener = Opener::new(&lasting.config.store, ShardPlace::ONLY, 32 << 20, false).unwrap();
        let mut identities = Vec::new();
        lasting.tally.totals.received = 7;
        for _ in 0..2 {
            lasting.health.readiness.reset(true);
            lasting.inlet.post(ControlEvent::Order(ShardOrder::Stop));
            lasting.inlet.post(ControlEvent::Order(ShardOrder::Serve));
            let mut life = Life::open(&mut lasting, &mut opener, &StandbyWaits::new(false)).unwrap();
            assert_eq!(lasting.health.readiness.missing(), ["ingest", "egress", "topology", "consumer"]);
            identities.push(life.store_identity());
            assert!(life.may_serve(), "the orders went on into the new mailbox");
            let ending = life.begin(&mut lasting, None, &mut starts).run();
            assert!(matches!(ending, Ending::Stopped), "{ending:?}");
            assert!(
                matches!(next(&events), ShardReport::Draining { within } if within > Duration::from_secs(6))
            );
            let last = next(&events);
            assert!(matches!(last, ShardReport::Closing { last_within: Some(_), .. }), "{last:?}");
        }
        assert_eq!(identities[0], identities[1], "the second opened what the first had closed");
        let state = lasting.state();
        assert_eq!((state.snapshot.totals.received, state.store.lives, state.line.life), (7, 2, 2));
        assert!(state.snapshot.longest_turn_us > 0 && state.store.kind == "disk");
    }

    /// Excluded: "the daemon is stopping" from a node that goes on with its other shards.
    #[test]
    fn a_command_that_a_failed_shard_leaves_open_is_to_be_asked_again() {
        let dir = tempfile::tempdir().unwrap();
        let (mut lasting, _events) = shard(dir.path());
        lasting.board = Some(Arc::new(SeatBoard::new(1)));
        let (mut starts, _) = Starts::note(None);
        let mut opener = Opener::new(&lasting.config.store, ShardPlace::ONLY, 32 << 20, false).unwrap();
        let mut life = Life::open(&mut lasting, &mut opener, &StandbyWaits::new(false)).unwrap();
        let (sender, answer) = oneshot::channel();
        // One turn handles both, so the pause is not known to be durable.
        lasting.inlet.post(LoopEvent::Command(Command::Pause("shop".into(), None), sender));
        lasting.inlet.post(ControlEvent::Store(StoreEvent::Failed(StoreFailure::Panicked)));
        lasting.inlet.post(ControlEvent::Order(ShardOrder::Serve));
        assert!(life.may_serve());
        let ending = life.begin(&mut lasting, None, &mut starts).run();
        assert!(matches!(ending, Ending::FailedAlone(StoreFailure::Panicked)), "{ending:?}");
        let told = answer.blocking_recv().unwrap();
        assert!(matches!(&told, ShardAnswer::Refused(reason) if reason.ends_with("ask again")), "{told:?}");
    }

    #[test]
    fn a_shard_follows_its_orders_and_reports() {
        let dir = tempfile::tempdir().unwrap();
        let (lasting, events) = shard(dir.path());
        let (inlet, health) = (Arc::clone(&lasting.inlet), lasting.health.clone());
        start(lasting, false).unwrap();
        let ShardReport::Opened(found) = next(&events) else { panic!("not opened") };
        assert_eq!((found.queues, found.waiting), (0, 0));
        assert_eq!(health.readiness.missing(), ["ingest", "egress", "topology", "consumer"]);
        let mut config = Config::default();
        (config.timeouts.drain, config.timeouts.stuck_after) =
            (Duration::from_secs(7), Duration::from_secs(9));
        let (sender, answer) = oneshot::channel();
        inlet.post(ControlEvent::State(sender));
        inlet.post(ControlEvent::Order(ShardOrder::Configure(Arc::new(config))));
        inlet.post(ControlEvent::Order(ShardOrder::Serve));
        let state = answer.blocking_recv().unwrap();
        assert_eq!((state.line.shard, state.line.life, state.line.state.as_str()), (0, 1, "not_ready"));
        assert_eq!(state.line.owner.as_deref(), Some(&*state.node));
        assert_eq!((state.line.epoch, state.line.lease_ms), (None, None), "nobody else can take it");
        assert!(state.node.contains('/') && state.links.len() == 2, "{state:?}");
        inlet.post(ControlEvent::Order(ShardOrder::Stop));
        assert!(matches!(next(&events), ShardReport::Configured));
        let within = Duration::from_secs(7 - 5 + 15);
        assert!(matches!(next(&events), ShardReport::Draining { within: told } if told == within));
        assert_eq!(health.progress.stuck_after_ms(), 9_000);
        assert!(matches!(next(&events), ShardReport::Closing { .. }));
        assert!(matches!(next(&events), ShardReport::Ended(Ok(()))));
        let (sender, answer) = oneshot::channel();
        inlet.post(ControlEvent::State(sender));
        assert!(answer.blocking_recv().is_err(), "nobody waits for a shard that has ended");
    }

    /// Where no other node takes it, it opens the store again.
    #[test]
    fn a_store_is_left_to_another_node_without_an_end_of_the_shard() {
        let dir = tempfile::tempdir().unwrap();
        let (mut lasting, events) = shard(dir.path());
        let (inlet, health) = (Arc::clone(&lasting.inlet), lasting.health.clone());
        let board = Arc::new(SeatBoard::new(1));
        lasting.board = Some(Arc::clone(&board));
        start(lasting, false).unwrap();
        let order = |order| inlet.post(ControlEvent::Order(order));
        assert!(matches!(next(&events), ShardReport::Waits(_)), "it has to be its turn");
        for life in 0..2 {
            order(ShardOrder::Turn(ShardTurn::Claim));
            let opened = std::iter::repeat_with(|| next(&events));
            let mut opened = opened.skip_while(|report| matches!(report, ShardReport::Waits(_)));
            assert!(matches!(opened.next(), Some(ShardReport::Opened(_))), "life {life}");
            assert!(board.holds(0));
            order(ShardOrder::Serve);
            order(ShardOrder::Release);
            let closing = next(&events);
            assert!(matches!(closing, ShardReport::Closing { last_within: None, .. }), "{closing:?}");
            let ShardReport::Waits(line) = next(&events) else { panic!("it waits") };
            assert_eq!(line, "waiting for the store: given up for another node");
            assert_eq!(
                (board.holds(0), health.readiness.missing()),
                (false, vec![]),
                "it is ready to return"
            );
        }
        order(ShardOrder::Stop);
        let last = std::iter::repeat_with(|| next(&events));
        let mut last = last.skip_while(|report| !matches!(report, ShardReport::Ended(_)));
        assert!(matches!(last.next(), Some(ShardReport::Ended(Ok(())))));
    }

    #[test]
    fn a_store_that_may_not_be_served_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let (lasting, events) = shard(dir.path());
            let inlet = Arc::clone(&lasting.inlet);
            start(lasting, false).unwrap();
            assert!(matches!(next(&events), ShardReport::Opened(_)), "the lock is free again");
            inlet.post(ControlEvent::Order(ShardOrder::Withdraw));
            assert!(matches!(next(&events), ShardReport::Ended(Ok(()))));
        }
        assert!(!dir.path().join("store/STARTS").exists(), "no start that counts");
    }

    #[test]
    fn a_store_that_cannot_be_opened_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("store"), "a file").unwrap();
        let (lasting, events) = shard(dir.path());
        start(lasting, false).unwrap();
        let ended = next(&events);
        assert!(matches!(ended, ShardReport::Ended(Err(RunError::Open(_)))), "{ended:?}");
    }
}
