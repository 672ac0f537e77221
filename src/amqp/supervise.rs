//! The life of a connection, the same for every end: the next address, the opening, the work, the failure,
//! the pause. And what that needs: waiting with an eye on the shutdown, and logging without flooding.

use super::backoff::Backoff;
use super::connection::{address, Session};
use super::fault::Fault;
use super::shared::Shared;
use super::topology::Note;
use super::{LinkStatus, ShutdownSignal, Side};
use crate::config::{self, Endpoint};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time limit for closing a connection or channel.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Minimum time after which a connection that fails resets the back-off.
const MINIMUM_UPTIME: Duration = Duration::from_secs(30);
/// Minimum time between two equal lines of the log.
const REPEAT: Duration = Duration::from_secs(60);
/// Upper bound on distinct notes remembered; a broker does not have more ways to differ.
const MAX_NOTES: usize = 64;

/// What one end does with a connection.
pub(super) trait ConnectionUser: Send {
    /// Which connection it uses.
    const SIDE: Side;

    /// Works until the connection fails; `Ok`: shut down.
    fn work(&mut self, session: &Arc<Session>) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Waits while there is no connection, and answers what arrives meanwhile. `None`: shut down.
    fn while_disconnected<T: Send>(
        &mut self,
        wait: impl Future<Output = T> + Send,
    ) -> impl Future<Output = Option<T>> + Send;

    /// Judges a failure: the text for log and status, and the pause before the next attempt.
    fn on_failure(&mut self, fault: Fault) -> (String, Duration);

    /// Reset whenever the connection has proved itself.
    fn backoff(&mut self) -> &mut Backoff;
}

/// Opens connections, one after the other, until the shutdown.
pub(super) async fn supervise<U: ConnectionUser>(
    user: &mut U,
    mut dialer: Dialer,
    shared: &Shared,
    shutdown: &ShutdownSignal,
) {
    let mut log = RateLimitedLog::default();
    loop {
        let started = Instant::now();
        let Err(fault) = run_connection(user, &mut dialer, shared, shutdown).await else { break };
        if started.elapsed() >= MINIMUM_UPTIME {
            user.backoff().reset();
        }
        shared.failed(U::SIDE);
        let (error, retry_in) = user.on_failure(fault);
        log.warn(U::SIDE.as_str(), &error, "no working connection");
        shared.link(U::SIDE, LinkStatus::Down { error, retry_in });
        if user.while_disconnected(tokio::time::sleep(retry_in)).await.is_none() {
            break;
        }
    }
    shared.link(U::SIDE, LinkStatus::Closed);
}

/// One connection, from its opening to its end. `Ok`: shut down.
async fn run_connection<U: ConnectionUser>(
    user: &mut U,
    dialer: &mut Dialer,
    shared: &Shared,
    shutdown: &ShutdownSignal,
) -> Result<(), Fault> {
    let endpoint = dialer.next()?;
    shared.link(U::SIDE, LinkStatus::Connecting { address: address(&endpoint) });
    let session = match user.while_disconnected(dialer.open(&endpoint)).await {
        Some(opened) => Arc::new(opened?),
        None => return Ok(()),
    };
    let result = user.work(&session).await;
    session.close(time_left(shutdown)).await;
    result
}

/// The addresses of one end, tried in turn.
pub(super) struct Dialer {
    name: &'static str,
    endpoints: Vec<Endpoint>,
    amqp: config::AmqpConfig,
    limit: Duration,
    attempts: usize,
}

impl Dialer {
    /// `name` shows in `rabbitmqctl list_connections`.
    pub(super) fn new(
        name: &'static str,
        endpoints: &[Endpoint],
        amqp: &config::AmqpConfig,
        limit: Duration,
    ) -> Self {
        Dialer { name, endpoints: endpoints.to_vec(), amqp: amqp.clone(), limit, attempts: 0 }
    }

    /// The next address.
    pub(super) fn next(&mut self) -> Result<Endpoint, Fault> {
        let place = self.attempts % self.endpoints.len().max(1);
        self.attempts += 1;
        self.endpoints.get(place).cloned().ok_or_else(|| Fault::setup("no address is configured"))
    }

    /// Opens a connection to it.
    pub(super) fn open(
        &self,
        endpoint: &Endpoint,
    ) -> impl Future<Output = Result<Session, Fault>> + Send + use<> {
        let (endpoint, amqp) = (endpoint.clone(), self.amqp.clone());
        let (limit, name) = (self.limit, self.name);
        async move {
            let opening = Session::open(&endpoint, &amqp, limit, name);
            opening.await.map_err(|error| Fault::setup(error.to_string()))
        }
    }
}

/// Waits for the shutdown to begin; also ends when its sender is gone.
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

/// Time limit for closing: [`CLOSE_TIMEOUT`], or what the shutdown leaves.
pub(super) fn time_left(shutdown: &ShutdownSignal) -> Duration {
    match *shutdown.borrow() {
        Some(end) => end.saturating_duration_since(Instant::now()).min(CLOSE_TIMEOUT),
        None => CLOSE_TIMEOUT,
    }
}

/// Logs what can happen again and again at most once a minute for each subject, unless its text changes.
#[derive(Debug, Default)]
pub(super) struct RateLimitedLog(BTreeMap<&'static str, LastLine>);

#[derive(Debug)]
struct LastLine {
    text: String,
    at: Instant,
    /// Lines left out since.
    left_out: u64,
}

impl RateLimitedLog {
    /// `subject` is one of a closed set.
    pub(super) fn warn(&mut self, subject: &'static str, detail: &str, message: &str) {
        let last = self.0.get_mut(subject).filter(|last| last.text == detail && last.at.elapsed() < REPEAT);
        if let Some(last) = last {
            last.left_out += 1;
            tracing::debug!(subject, detail, "{message}");
            return;
        }
        let line = LastLine { text: detail.to_owned(), at: Instant::now(), left_out: 0 };
        let left_out = self.0.insert(subject, line).map_or(0, |last| last.left_out);
        tracing::warn!(subject, detail, left_out, "{message}");
    }
}

/// Logs each note about the broker once; gives the texts of all.
#[derive(Debug, Default)]
pub(super) struct NoteLog(BTreeSet<String>);

impl NoteLog {
    pub(super) fn take(&mut self, side: Side, notes: Vec<Note>) -> Vec<String> {
        for note in &notes {
            if self.0.len() < MAX_NOTES && self.0.insert(note.text.clone()) {
                if note.risky {
                    tracing::warn!(side = side.as_str(), "{}", note.text);
                } else {
                    tracing::info!(side = side.as_str(), "{}", note.text);
                }
            }
        }
        notes.into_iter().map(|note| note.text).collect()
    }
}
