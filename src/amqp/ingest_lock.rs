//! One daemon serves an ingest queue at a time: two would split windows and identities.
//!
//! The guard is a queue beside the ingest queue that only one connection can own: every broker enforces that,
//! while quorum queues let a second exclusive consumer in (seen on RabbitMQ 3.10). Where the login may not
//! declare it, the consumers of the ingest queue are counted instead: before and after each consume, and
//! every few seconds.

use super::connection::Session;
use super::fault::{Fault, FaultKind};
use super::topology::{count_queue, declare_exclusive};
use std::time::Duration;

const PREFIX: &str = "tidegate.lock.";
/// Longest name of a queue, bytes.
const MAX_NAME: usize = 255;

/// How the queue is guarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum IngestLock {
    /// By the lock queue, until the connection ends.
    Held,
    /// By counting consumers, for this reason.
    Counting(String),
}

/// Takes the lock, and checks that no other consumer has it.
///
/// # Errors
/// Another process consumes (of [`FaultKind::Setup`], with what may be the matter), or the connection fails.
pub(super) async fn acquire(
    session: &Session,
    queue: &str,
    limit: Duration,
    heartbeat: Duration,
) -> Result<IngestLock, Fault> {
    let name = lock_name(queue);
    let lock = match declare_exclusive(session, &name, limit).await {
        Ok(()) => IngestLock::Held,
        Err(fault) if fault.code == Some(405) => {
            return Err(Fault::setup(format!(
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
    check_consumers(consumers, 0, queue, heartbeat)?;
    Ok(lock)
}

/// The number of consumers must not be above `allowed`.
pub(super) fn check_consumers(
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
    Err(Fault {
        kind: FaultKind::Setup,
        ..Fault::setup(format!(
            "queue '{queue}' has {others} other consumer(s): tidegate must be the only one; {}",
            ghost(heartbeat)
        ))
    })
}

fn ghost(heartbeat: Duration) -> String {
    format!(
        "after a lost network it may be its own former connection, which the broker gives up within about {} \
         s (amqp.heartbeat)",
        heartbeat.as_secs() * 3
    )
}

/// Name of the lock queue of an ingest queue; one that would be too long ends in a hash.
pub fn lock_name(queue: &str) -> String {
    let name = format!("{PREFIX}{queue}");
    if name.len() <= MAX_NAME {
        return name;
    }
    format!("{PREFIX}{}", blake3::hash(queue.as_bytes()).to_hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_has_a_name_that_fits() {
        assert_eq!(lock_name("tidegate.ingest"), "tidegate.lock.tidegate.ingest");
        let long = [lock_name(&"q".repeat(255)), lock_name(&format!("{}r", "q".repeat(254)))];
        assert!(long.iter().all(|name| name.len() == PREFIX.len() + 64), "{long:?}");
        assert_ne!(long[0], long[1]);
    }

    #[test]
    fn others_are_named_with_the_possibility_of_a_ghost() {
        let heartbeat = Duration::from_secs(10);
        assert_eq!(check_consumers(Ok(1), 1, "q", heartbeat), Ok(()));
        let fault = check_consumers(Ok(3), 1, "q", heartbeat).unwrap_err();
        assert!(fault.text.contains("queue 'q' has 2 other consumer(s)"), "{}", fault.text);
        assert!(
            fault.text.contains("own former connection") && fault.text.contains("30 s"),
            "{}",
            fault.text
        );
    }
}
