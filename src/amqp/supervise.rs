//! Small things that both supervisors need: waiting with an eye on the shutdown, and logging without flooding.

use super::topology::Note;
use super::{ShutdownSignal, Side};
use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;
use tokio::time::Instant;

/// For the good-bye to the broker.
const GOODBYE: Duration = Duration::from_secs(2);
/// The same failure is logged once in this time.
const REPEAT: Duration = Duration::from_secs(60);
/// Distinct notes remembered; a broker does not have more ways to differ.
const MAX_NOTES: usize = 64;

/// Waits for the shutdown to begin; also ends when nobody is left to order it.
pub(super) async fn requested(shutdown: &mut ShutdownSignal) {
    let _ = shutdown.wait_for(Option::is_some).await;
}

/// The work's result, or `None` if the shutdown begins before its end. The work is then dropped.
pub(super) async fn unless_shutdown<T>(
    shutdown: &mut ShutdownSignal,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        () = requested(shutdown) => None,
        done = work => Some(done),
    }
}

/// How long a good-bye may take: two seconds, or what the shutdown leaves.
pub(super) fn time_left(shutdown: &ShutdownSignal) -> Duration {
    match *shutdown.borrow() {
        Some(end) => end.saturating_duration_since(Instant::now()).min(GOODBYE),
        None => GOODBYE,
    }
}

/// Logs failures and notes once, not at each of countless attempts.
#[derive(Debug)]
pub(super) struct Notices {
    side: Side,
    last_failure: Option<(String, Instant)>,
    notes: BTreeSet<String>,
}

impl Notices {
    pub(super) fn new(side: Side) -> Self {
        Notices { side, last_failure: None, notes: BTreeSet::new() }
    }

    pub(super) fn failure(&mut self, error: &str, retry_in: Duration) {
        let side = self.side.as_str();
        let retry_ms = u64::try_from(retry_in.as_millis()).unwrap_or(u64::MAX);
        match &self.last_failure {
            Some((text, at)) if text == error && at.elapsed() < REPEAT => {
                tracing::debug!(side, error, retry_ms, "still no working connection");
            }
            Some(_) | None => {
                tracing::warn!(side, error, retry_ms, "no working connection");
                self.last_failure = Some((error.to_owned(), Instant::now()));
            }
        }
    }

    /// Logs new notes; gives the texts.
    pub(super) fn take(&mut self, notes: Vec<Note>) -> Vec<String> {
        for note in &notes {
            if self.notes.len() < MAX_NOTES && self.notes.insert(note.text.clone()) {
                if note.risky {
                    tracing::warn!(side = self.side.as_str(), "{}", note.text);
                } else {
                    tracing::info!(side = self.side.as_str(), "{}", note.text);
                }
            }
        }
        notes.into_iter().map(|note| note.text).collect()
    }
}
