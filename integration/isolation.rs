//! Fault isolation: a lost connection, a smaller frame size, a missing dead-letter exchange, a dead letter
//! that is too large, a second daemon, standby daemons, large bodies at the start, a pause with a backlog,
//! replies to another virtual host, many queues that never confirm, and requests that concern such a queue.

use std::time::Duration;

/// Upper bound of lateness for an unaffected application. Tests that measure it run alone and take the best
/// of three runs.
const LATE: Duration = Duration::from_secs(1);
/// An item that waits for a queue that never confirms is later than this: its publish is given up after 30 s.
const HELD_UP: Duration = Duration::from_secs(20);

/// Judges one run by the lateness of its latest item.
fn in_time(latest: Duration) -> Result<(), String> {
    (latest < LATE).then_some(()).ok_or_else(|| format!("late by {latest:?}"))
}

mod answers;
mod dead;
mod frames;
mod intake;
mod lost;
mod second;
mod silent;
mod standby;
mod waits;
