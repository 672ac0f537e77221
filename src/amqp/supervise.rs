//! The connection loop that every end shares: next address, opening, work, failure, pause. With it the
//! helpers that it needs: waits that end with the shutdown, and a rate-limited log.

use super::backoff::Backoff;
use super::connection::{address, Session};
use super::fault::Fault;
use super::shared::Shared;
use super::topology::Note;
use super::{LinkStatus, ShutdownSignal, Side};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tidegate_common::log_limit::LogLimit;
use tidegate_config::Endpoint;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;

/// Time limit for closing a connection or channel.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// A connection that has worked for this long resets the back-off when it fails.
const MINIMUM_UPTIME: Duration = Duration::from_secs(30);
/// Most lines of the log about one subject in a minute, however often their text changes.
const MOST_LINES: u32 = 6;
/// Upper bound on distinct notes remembered; a broker has fewer ways to differ.
const MAX_NOTES: usize = 64;

/// What one end does with a connection.
pub(crate) trait ConnectionUser: Send {
    /// Which connection it uses.
    const SIDE: Side;

    /// What its failures are about in the log.
    fn subject(&self) -> &'static str {
        Self::SIDE.as_str()
    }

    /// Works until the connection fails; `Ok`: shut down.
    fn work(&mut self, session: &Arc<Session>) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Waits while there is no connection, and handles what arrives in that time. `None`: shut down.
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
pub(crate) async fn supervise<U: ConnectionUser>(
    user: &mut U,
    mut dialer: Dialer,
    shared: &Shared,
    shutdown: &ShutdownSignal,
) {
    let mut log = RateLimitedLog::default();
    loop {
        shared.moved(U::SIDE);
        let started = Instant::now();
        let Err(fault) = run_connection(user, &mut dialer, shared, shutdown).await else { break };
        if started.elapsed() >= MINIMUM_UPTIME {
            user.backoff().reset();
        }
        shared.figures().failed(U::SIDE);
        let (error, retry_in) = user.on_failure(fault);
        log.warn(user.subject(), &error, "no working connection");
        shared.link(U::SIDE, LinkStatus::Down { error, retry_in });
        let pause = shared.while_waiting(U::SIDE, tokio::time::sleep(retry_in));
        if user.while_disconnected(pause).await.is_none() {
            break;
        }
    }
    shared.rests(U::SIDE);
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
    let opening = shared.while_waiting(U::SIDE, dialer.open(&endpoint));
    let session = match user.while_disconnected(opening).await {
        Some(opened) => Arc::new(opened?),
        None => return Ok(()),
    };
    shared.set_frame_max(U::SIDE, session.frame_max());
    let result = user.work(&session).await;
    shared.while_waiting(U::SIDE, session.close(time_left(shutdown))).await;
    result
}

/// The addresses of one end, tried in turn.
pub(crate) struct Dialer {
    name: &'static str,
    endpoints: Vec<Endpoint>,
    amqp: tidegate_config::AmqpConfig,
    limit: Duration,
    attempts: usize,
}

impl Dialer {
    /// `name` shows in `rabbitmqctl list_connections`.
    pub(crate) fn new(
        name: &'static str,
        endpoints: &[Endpoint],
        amqp: &tidegate_config::AmqpConfig,
        limit: Duration,
    ) -> Self {
        Dialer { name, endpoints: endpoints.to_vec(), amqp: amqp.clone(), limit, attempts: 0 }
    }

    /// The next address.
    pub(crate) fn next(&mut self) -> Result<Endpoint, Fault> {
        let place = self.attempts % self.endpoints.len().max(1);
        self.attempts += 1;
        self.endpoints.get(place).cloned().ok_or_else(|| Fault::setup("no address is configured"))
    }

    /// Opens a connection to it.
    pub(crate) fn open(
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
pub(crate) async fn requested(shutdown: &mut ShutdownSignal) {
    let _ = shutdown.wait_for(Option::is_some).await;
}

/// The work's result, or `None` if the shutdown begins before its end. The work is then dropped.
pub(crate) async fn unless_shutdown<T>(
    shutdown: &mut ShutdownSignal,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        () = requested(shutdown) => None,
        done = work => Some(done),
    }
}

/// The end of a wait, or else an order that has come before it; `None`: the shutdown begins.
pub(crate) async fn ended_or_ordered<T, O>(
    wait: Pin<&mut impl Future<Output = T>>,
    orders: &mut UnboundedReceiver<O>,
    shutdown: &mut ShutdownSignal,
) -> Option<Result<T, O>> {
    let either = async {
        tokio::select! {
            done = wait => Ok(done),
            Some(order) = orders.recv() => Err(order),
        }
    };
    unless_shutdown(shutdown, either).await
}

/// Time limit for closing: [`CLOSE_TIMEOUT`], or what the shutdown leaves.
pub(crate) fn time_left(shutdown: &ShutdownSignal) -> Duration {
    match *shutdown.borrow() {
        Some(end) => end.saturating_duration_since(Instant::now()).min(CLOSE_TIMEOUT),
        None => CLOSE_TIMEOUT,
    }
}

/// Logs repeated events: the same text at most once a minute for each subject, and at most [`MOST_LINES`]
/// lines a minute if the text changes.
#[derive(Debug, Default)]
pub(crate) struct RateLimitedLog(BTreeMap<&'static str, LogLimit<MOST_LINES>>);

impl RateLimitedLog {
    /// `subject` is one of a closed set.
    pub(crate) fn warn(&mut self, subject: &'static str, detail: &str, message: &str) {
        let limit = self.0.entry(subject).or_default();
        match limit.admit_text(detail, Instant::now().into_std()) {
            Some(left_out) => tracing::warn!(subject, detail, left_out, "{message}"),
            None => tracing::debug!(subject, detail, "{message}"),
        }
    }
}

/// Note about a connection whose frames are smaller than configured.
pub(crate) fn frame_note(session: &Session, amqp: &tidegate_config::AmqpConfig) -> Option<Note> {
    let (agreed, asked) = (session.frame_max(), amqp.frame_max);
    let text = format!(
        "{} takes frames of {agreed} bytes at most (amqp.frame_max asks for {asked}): requests with more \
         than {} bytes of properties and headers are dead-lettered",
        session.address(),
        agreed / 2
    );
    (agreed < asked).then_some(Note { risky: false, text })
}

/// Logs each note about the broker once; gives the texts of all.
#[derive(Debug, Default)]
pub(crate) struct NoteLog(BTreeSet<String>);

impl NoteLog {
    pub(crate) fn take(&mut self, side: Side, notes: Vec<Note>) -> Vec<String> {
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
