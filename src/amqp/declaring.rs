//! One queue with at-least-once dead-lettering is declared at a time, whatever the number of shards.
//!
//! RabbitMQ gives a new quorum queue five seconds to elect its leader. If many are declared at once on a busy
//! broker, that is too short. The worker of at-least-once dead-lettering, which starts with the leader, then
//! fails twice in a row; its supervisor allows one failure, and ends for good. Until the broker is restarted,
//! no quorum queue with such dead-lettering can be declared or consumed from (seen on 3.10).

use std::future::Future;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

static DECLARING: Semaphore = Semaphore::const_new(1);
/// How long one waits for its turn. Short, since a queue that does not answer must stop no other.
const TURN_WITHIN: Duration = Duration::from_millis(500);

/// Declares a queue once no other one is being declared, or after [`TURN_WITHIN`].
pub(crate) async fn in_turn<T>(declaring: impl Future<Output = T>) -> T {
    let _turn = timeout(TURN_WITHIN, DECLARING.acquire()).await;
    declaring.await
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join_all;
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::task::yield_now;

    #[tokio::test]
    async fn queues_are_declared_one_by_one_and_a_broker_that_hangs_stops_no_other() {
        let declared = AtomicUsize::new(0);
        let declare = || {
            in_turn(async {
                let others = declared.fetch_add(1, Ordering::Relaxed);
                yield_now().await;
                (others, declared.load(Ordering::Relaxed))
            })
        };
        let seen = join_all((0..50).map(|_| declare())).await;
        assert_eq!(seen, (0..50).map(|n| (n, n + 1)).collect::<Vec<_>>());
        let hanging = tokio::spawn(in_turn(pending::<()>()));
        yield_now().await;
        assert_eq!(in_turn(async { 7 }).await, 7);
        assert!(!hanging.is_finished());
        hanging.abort();
    }
}
