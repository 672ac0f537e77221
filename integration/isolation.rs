//! Trouble stays where it is: a lost connection, frames that shrink, a dead exchange, a letter too large, a second daemon,
//! daemons that stand by, large bodies at the start, a pause with a backlog, answers to another virtual host, many queues
//! that keep silent, what waits for such a queue.

use std::time::Duration;

/// Nobody is later than this. That is measured by tests that run alone, each the best of three whole stories.
const LATE: Duration = Duration::from_secs(1);
/// Who waits for what hangs is later than this: it is given up after 30 s.
const HELD_UP: Duration = Duration::from_secs(20);

/// Judges a story by how late its latest item was.
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
