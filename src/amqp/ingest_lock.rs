//! One daemon serves an ingest queue at a time: two would split windows and identities.
//!
//! The guard is an extra queue that only one connection can own: every broker enforces that, while quorum
//! queues admit a second exclusive consumer (seen on RabbitMQ 3.10). If the login may not declare it, the
//! daemon counts the consumers of the ingest queue instead: before and after each consume, and every few
//! seconds.
//!
//! A daemon that finds another one stands by: it keeps its connection, and checks again two to four times a
//! second. It checks by counting the consumers, which costs the broker little and leaves no line in its log.
//! Each refused attempt at the lock closes a channel, leaves a line, and uses up one of lapin's channel
//! numbers. While the daemon that has the lock does not consume, as in a long pause, only such an attempt
//! shows whether it still lives: then the checks are half as frequent, and no less, because a takeover may
//! take two seconds.

use super::blueprint::lock_name;
use super::connection::Session;
use super::fault::{Fault, FaultKind};
use super::shared::Shared;
use super::supervise::unless_shutdown;
use super::topology::{count_queue, declare_exclusive, QueueWatch};
use super::{LinkStatus, Options, ShutdownSignal, Side};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Longest pause between two checks of a daemon that stands by, ms; the shortest is half of it.
const LOOK_MS: u64 = 500;
/// The same once the lock is refused again and again although the queue has no consumer.
const VAIN_LOOK_MS: u64 = 1_000;
/// Counts of no consumer in a row after which that is so. Fewer are ordinary: the consumer of a daemon that
/// ends may be gone some moments before its lock.
const QUICK_LOOKS: u32 = 8;

/// How the queue is guarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IngestLock {
    /// By the lock queue, until the connection ends.
    Held,
    /// By counting consumers, for this reason.
    Counting(String),
}

/// Takes the lock, and checks that no other consumer has it.
///
/// # Errors
/// Another daemon serves the queue ([`FaultKind::Standby`]); a consumer that is no such daemon has the queue
/// ([`FaultKind::Setup`]); or the connection fails. The texts of the first two name the likely cause.
async fn acquire(
    session: &Session,
    queue: &str,
    limit: Duration,
    heartbeat: Duration,
) -> Result<IngestLock, Fault> {
    let name = lock_name(queue);
    let lock = match declare_exclusive(session, &name, limit).await {
        Ok(_) => IngestLock::Held,
        Err(fault) if fault.code == Some(405) => {
            return Err(Fault::standby(format!(
                "another tidegate serves queue '{queue}': it holds the lock '{name}'. This one waits; {}",
                ghost(heartbeat)
            )));
        }
        Err(fault) if fault.code == Some(403) => IngestLock::Counting(format!(
            "the login may not declare the queue '{name}', which keeps a second tidegate off the queue \
             '{queue}': its consumers are counted instead, which is weaker. Grant the configure permission \
             on '{name}'. The broker says: {}",
            fault.text
        )),
        Err(fault) => return Err(fault),
    };
    let consumers = count_queue(session, queue, limit).await.map(|counts| counts.consumers);
    check_consumers(consumers, 0, queue, heartbeat).map_err(|fault| match lock {
        // A daemon that may declare the lock would not consume without it.
        IngestLock::Held if fault.kind == FaultKind::Standby => Fault { kind: FaultKind::Setup, ..fault },
        IngestLock::Held | IngestLock::Counting(_) => fault,
    })?;
    Ok(lock)
}

/// Takes the lock of the ingest queue, and stands by while another daemon has it.
pub(crate) struct LockTaker {
    shared: Arc<Shared>,
    options: Arc<Options>,
    shutdown: ShutdownSignal,
    /// Since when another daemon serves the queue, as far as this one knows; also over lost connections.
    stands_by_since: Option<Instant>,
    pace: LookPace,
}

impl LockTaker {
    pub(crate) fn new(shared: Arc<Shared>, options: Arc<Options>, shutdown: ShutdownSignal) -> Self {
        LockTaker { shared, options, shutdown, stands_by_since: None, pace: LookPace::default() }
    }

    /// Waits for as long as another daemon serves the queue, on this connection. `outdone`: the fault that
    /// has just shown another daemon. `None`: shut down.
    ///
    /// # Errors
    /// As [`acquire`], except for another daemon.
    pub(crate) async fn take(
        &mut self,
        session: &Session,
        mut outdone: Option<Fault>,
    ) -> Result<Option<IngestLock>, Fault> {
        let options = Arc::clone(&self.options);
        let (queue, limit) = (&options.ingest.queue, options.timeouts.connect);
        loop {
            let taken = match outdone.take() {
                Some(fault) => Some(Err(fault)),
                None => {
                    let taking = acquire(session, queue, limit, options.amqp.heartbeat);
                    unless_shutdown(&mut self.shutdown, self.shared.while_waiting(Side::Ingest, taking)).await
                }
            };
            match taken {
                Some(Ok(lock)) => {
                    self.pace = LookPace::default();
                    if let Some(since) = self.stands_by_since.take() {
                        let seconds = since.elapsed().as_secs();
                        tracing::info!(queue, seconds, "no other daemon serves the queue: taking over");
                    }
                    return Ok(Some(lock));
                }
                Some(Err(fault)) if fault.kind == FaultKind::Standby => {
                    if !self.stand_by(session, fault).await? {
                        return Ok(None);
                    }
                }
                Some(Err(fault)) => return Err(fault),
                None => return Ok(None),
            }
        }
    }

    /// Waits until the queue has no consumer, so that the lock may be free. False: shut down.
    async fn stand_by(&mut self, session: &Session, fault: Fault) -> Result<bool, Fault> {
        if self.stands_by_since.is_none() {
            self.stands_by_since = Some(Instant::now());
            tracing::info!(reason = fault.text, "standing by");
        }
        self.shared.link(Side::Ingest, LinkStatus::Standby { reason: fault.text });
        let mut watch = QueueWatch::new(session, self.options.timeouts.connect);
        loop {
            self.shared.moved(Side::Ingest);
            let pause = self.pace.pause(getrandom::u32().unwrap_or(u32::MAX));
            let look = async {
                tokio::time::sleep(pause).await;
                if !session.is_connected() {
                    return Err(Fault::lost("the connection was lost"));
                }
                watch.count(&self.options.ingest.queue).await
            };
            let look = self.shared.while_waiting(Side::Ingest, look);
            let Some(counts) = unless_shutdown(&mut self.shutdown, look).await else { return Ok(false) };
            let consumers = counts?.consumers;
            self.pace.counted(consumers);
            if consumers == 0 {
                break;
            }
        }
        watch.end().await;
        Ok(true)
    }
}

/// How often a daemon that stands by checks.
#[derive(Debug, Default)]
struct LookPace {
    /// Counts of no consumer in a row, each followed by an attempt at the lock.
    vain: u32,
}

impl LookPace {
    fn counted(&mut self, consumers: u32) {
        self.vain = if consumers == 0 { self.vain.saturating_add(1) } else { 0 };
    }

    /// Jittered, so that of several daemons that wait, and of two that have seen each other, one is first.
    fn pause(&self, random: u32) -> Duration {
        let longest = if self.vain < QUICK_LOOKS { LOOK_MS } else { VAIN_LOOK_MS };
        let half = longest / 2;
        Duration::from_millis(half + half * u64::from(random) / u64::from(u32::MAX))
    }
}

/// The number of consumers must not be above `allowed`.
///
/// # Errors
/// It is ([`FaultKind::Standby`]), or it is unknown.
pub(crate) fn check_consumers(
    count: Result<u32, Fault>,
    allowed: u32,
    queue: &str,
    heartbeat: Duration,
) -> Result<(), Fault> {
    let count = count?;
    if count <= allowed {
        return Ok(());
    }
    let others = count - allowed;
    Err(Fault::standby(format!(
        "queue '{queue}' has {others} other consumer(s): tidegate must be the only one; {}",
        ghost(heartbeat)
    )))
}

fn ghost(heartbeat: Duration) -> String {
    format!(
        "after a network failure it may be its own former connection, which the broker closes within about \
         {} s (amqp.heartbeat)",
        heartbeat.as_secs() * 3
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_named_with_the_possibility_of_a_ghost() {
        let heartbeat = Duration::from_secs(10);
        assert_eq!(check_consumers(Ok(1), 1, "q", heartbeat), Ok(()));
        let fault = check_consumers(Ok(3), 1, "q", heartbeat).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Standby);
        assert!(fault.text.contains("queue 'q' has 2 other consumer(s)"), "{}", fault.text);
        assert!(
            fault.text.contains("own former connection") && fault.text.contains("30 s"),
            "{}",
            fault.text
        );
    }

    #[test]
    fn whoever_stands_by_looks_twice_to_four_times_a_second() {
        let mut pace = LookPace::default();
        let pauses = |pace: &LookPace| [0, u32::MAX].map(|random| pace.pause(random).as_millis());
        assert_eq!(pauses(&pace), [250, 500]);
        (1..QUICK_LOOKS).for_each(|_| pace.counted(0));
        assert_eq!(pauses(&pace), [250, 500], "a daemon may be ending");
        // Excluded: a closed channel and an error in the broker's log two to four times a second.
        pace.counted(0);
        assert_eq!(pauses(&pace), [500, 1_000], "the one that has the lock does not consume");
        (0..1_000).for_each(|_| pace.counted(0));
        assert_eq!(pauses(&pace), [500, 1_000], "a takeover may take two seconds");
        pace.counted(1);
        assert_eq!(pauses(&pace), [250, 500]);
    }
}
