//! The dead-letter service: a walk through the dead-letter queue, on separate connections.
//!
//! AMQP allows a look into a queue only by taking its messages. So the walk takes one after the other, keeps
//! only what is asked for, and leaves all of them unacked until its end, when they return to the queue. It
//! takes one at a time because the size of the next one is unknown: a consumer's prefetch would fetch many.
//!
//! Nothing is lost, whenever the process ends: the broker requeues what is unacked, a dead letter that is
//! sent back is acked only once its request is confirmed and was not returned, and one that is dropped is
//! acked only by that command. The worst case is a request that is sent twice, under the same id.
//!
//! There is one walk at a time: two would hide dead letters from each other. A walk that a client pages
//! through stays open between two calls, so that each dead letter of a queue of any length can be reached in
//! bounded memory and time. It ends when no call continues it for a while, and sooner if another client
//! waits.

mod republisher;
mod walk;

use super::blueprint::Names;
use super::connection::Session;
use super::fault::{Fault, FaultKind};
use super::supervise::Dialer;
use super::topology::is_own_dead_queue;
use lapin::message::Delivery;
use republisher::Republisher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tidegate_common::clock;
use tidegate_config::{Config, Endpoint};
use tidegate_wire::dead_letters::{
    LetterJob, LetterReport, LetterTask, LetterTrouble, LetterWalk, WalkCursor,
};
use tidegate_wire::RawLetter;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{sleep, sleep_until, timeout, timeout_at, Instant};
use walk::Walk;

/// Time limit of a call without its end and the step under way then, and the same with what precedes the
/// call.
const CALL_WITHIN: Duration = Duration::from_secs(12);
const CALL_AND_TURN_WITHIN: Duration = Duration::from_secs(17);
/// For the previous job, if there is one.
const TURN_WITHIN: Duration = Duration::from_secs(5);
/// For a connection, over all addresses.
const OPEN_WITHIN: Duration = Duration::from_secs(5);
/// For one answer of the broker.
const STEP_WITHIN: Duration = Duration::from_secs(5);
/// For the end of a channel or connection.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// Time without a call after which a walk ends and its dead letters return to the queue.
const RESTS_WITHIN: Duration = Duration::from_secs(30);
/// The same while another client waits.
const GIVES_WAY_AFTER: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub struct DeadLetterService {
    amqp: tidegate_config::AmqpConfig,
    names: Names,
    egress: tidegate_config::EgressConfig,
    /// The holder of the lock has the turn; a walk inside waits for its next call.
    open: Arc<Mutex<Option<OpenWalk>>>,
}

/// A walk between two calls.
#[derive(Debug)]
struct OpenWalk {
    session: Session,
    walk: Walk,
    cursor: WalkCursor,
    since: Instant,
}

impl OpenWalk {
    /// Returns the dead letters to the queue. A failure is not reported: the end of the connection returns
    /// them in any case.
    async fn end(self) {
        let _ = self.walk.end().await;
        self.session.close(CLOSE_WITHIN).await;
    }
}

impl DeadLetterService {
    /// For the broker of this configuration. Connects when there is a task.
    pub fn new(config: &Config) -> Self {
        DeadLetterService {
            amqp: config.amqp.clone(),
            names: Names::of(config),
            egress: config.egress.clone(),
            open: Arc::default(),
        }
    }

    /// Carries out a task within about 30 s: 17 s, and the step under way then. It must not be cancelled:
    /// what was sent back by then might be sent back again, and unacked dead letters would return late.
    /// `gone` is set when the client has disconnected: a task that has not begun is not started then, and a
    /// read-only one ends.
    ///
    /// # Errors
    /// Nothing was done; see [`LetterTrouble`].
    pub async fn carry_out(
        &self,
        task: &LetterTask,
        gone: &Arc<AtomicBool>,
    ) -> Result<LetterReport, LetterTrouble> {
        let Some(queue) = self.names.dead.queue_name() else {
            let text = "no dead-letter queue is configured: dead.queue.type is \"none\", and \
                        dead.queue.name is empty";
            return Err(LetterTrouble::Refused(text.to_owned()));
        };
        let ready_until = Instant::now() + CALL_AND_TURN_WITHIN;
        let Some(mut open) = self.turn(&task.walk).await else {
            let text = "another client is reading the dead-letter queue: try again in a moment";
            return Err(LetterTrouble::Unavailable(text.to_owned()));
        };
        let (session, mut walk) = match (open.take(), &task.walk) {
            (Some(OpenWalk { session, walk, cursor, .. }), LetterWalk::Next(wanted)) if cursor == *wanted => {
                (session, walk)
            }
            (other, LetterWalk::Next(_)) => {
                *open = other;
                let text = "this walk has ended: it was not continued for a while, or the connection was \
                            lost. Begin another";
                return Err(LetterTrouble::Refused(text.to_owned()));
            }
            (other, LetterWalk::Once | LetterWalk::First) => {
                let ready = async {
                    if let Some(other) = other {
                        other.end().await;
                    }
                    self.begin(queue).await
                };
                let ready = match timeout_at(ready_until, ready).await {
                    Ok(ready) => ready,
                    Err(_) => Err(Fault::timeout("opening the dead-letter queue", CALL_AND_TURN_WITHIN)),
                };
                ready.map_err(|fault| trouble(queue, fault))?
            }
        };
        let (mut report, mut outcome) = if gone.load(Ordering::Relaxed) {
            (LetterReport::default(), Err(Fault::lost("the client has disconnected: nothing was done")))
        } else {
            let until = ready_until.min(Instant::now() + CALL_WITHIN);
            self.work(&mut walk, task, until, gone).await
        };
        if outcome.is_ok() && report.count > 0 && task.job.deed().is_some() {
            outcome = walk.heard().await;
        }
        let goes_on = task.walk != LetterWalk::Once && walk.more() && !task.job.is_satisfied(&report);
        walk.tell(&mut report);
        let ended = if goes_on && outcome.is_ok() {
            let cursor = WalkCursor::of(getrandom::u64().unwrap_or_else(|_| clock::mono_us()));
            report.cursor = Some(cursor.clone());
            *open = Some(OpenWalk { session, walk, cursor: cursor.clone(), since: Instant::now() });
            self.end_unless_continued(cursor);
            Ok(())
        } else {
            let ended = walk.end().await;
            session.close(CLOSE_WITHIN).await;
            ended
        };
        let stopped = outcome.err().or_else(|| ended.err().filter(|_| report.count > 0));
        match stopped {
            None => Ok(report),
            Some(fault) if report.count == 0 && report.letters.is_empty() => Err(trouble(queue, fault)),
            Some(fault) => Ok(LetterReport { stopped: Some(fault.text), ..report }),
        }
    }

    /// Waits for the turn of a call of this kind; `None`: others keep it for longer than [`TURN_WITHIN`].
    async fn turn(&self, walk: &LetterWalk) -> Option<MutexGuard<'_, Option<OpenWalk>>> {
        let end = Instant::now() + TURN_WITHIN;
        loop {
            let open = timeout_at(end, self.open.lock()).await.ok()?;
            let rests_until = match (&*open, walk) {
                (Some(other), LetterWalk::Once | LetterWalk::First) => other.since + GIVES_WAY_AFTER,
                (Some(_) | None, _) => return Some(open),
            };
            if rests_until <= Instant::now() {
                return Some(open);
            }
            drop(open);
            if rests_until > end {
                return None;
            }
            sleep_until(rests_until).await;
        }
    }

    fn end_unless_continued(&self, cursor: WalkCursor) {
        let open = Arc::clone(&self.open);
        tokio::spawn(async move {
            sleep(RESTS_WITHIN).await;
            let mut open = open.lock().await;
            if open.as_ref().is_some_and(|open| open.cursor == cursor) {
                if let Some(open) = open.take() {
                    open.end().await;
                }
            }
        });
    }

    /// Connects to the first address that answers.
    async fn connect(&self, endpoints: &[Endpoint]) -> Result<Session, Fault> {
        let mut dialer = Dialer::new("tidegate dead letters", endpoints, &self.amqp, OPEN_WITHIN);
        let attempts = async {
            let mut last = Err(Fault::setup("no address is configured"));
            for _ in endpoints {
                let endpoint = dialer.next()?;
                last = dialer.open(&endpoint).await;
                if last.is_ok() {
                    break;
                }
            }
            last
        };
        match timeout(OPEN_WITHIN, attempts).await {
            // The kind says that this is not a fault of the queue's setup.
            Ok(opened) => opened.map_err(|fault| Fault::lost(fault.text)),
            Err(_) => Err(Fault::timeout("connecting", OPEN_WITHIN)),
        }
    }

    async fn begin(&self, queue: &str) -> Result<(Session, Walk), Fault> {
        let session = self.connect(&self.egress.endpoints).await?;
        let begun = async {
            let own = is_own_dead_queue(&session, self.amqp.topology, &self.names.dead, STEP_WITHIN).await?;
            let most_returns = Some(self.names.dead.queue.max_looks).filter(|most| *most > 0 && !own);
            Ok(Walk::new(session.channel(STEP_WITHIN).await?, queue, most_returns))
        };
        match begun.await {
            Ok(walk) => Ok((session, walk)),
            Err(fault) => {
                session.close(CLOSE_WITHIN).await;
                Err(fault)
            }
        }
    }

    /// Works on the task; returns the result so far, and why it has stopped.
    async fn work(
        &self,
        walk: &mut Walk,
        task: &LetterTask,
        until: Instant,
        gone: &Arc<AtomicBool>,
    ) -> (LetterReport, Result<(), Fault>) {
        let mut report = LetterReport::default();
        let looks = task.job.deed().is_none();
        let gone = if looks { Arc::clone(gone) } else { Arc::default() };
        walk.begin_call(until, task.walk != LetterWalk::Once, gone);
        let outcome = match &task.job {
            LetterJob::Count => walk.count(&mut report).await,
            LetterJob::List { filter, limit, whole } => walk.list(&mut report, filter, *limit, *whole).await,
            LetterJob::Drop { filter, limit } => walk.drop(&mut report, filter, *limit).await,
            LetterJob::Retry { filter, limit, terms } => {
                let mut republisher = Republisher::new(self, *terms);
                let done = walk.retry(&mut report, filter, *limit, &mut republisher).await;
                republisher.close().await;
                done
            }
        };
        (report, outcome)
    }
}

fn trouble(queue: &str, fault: Fault) -> LetterTrouble {
    let text = match fault.code {
        Some(404) => format!("dead-letter queue '{queue}' does not exist: {}", fault.text),
        Some(403) => format!("dead-letter queue '{queue}' may not be read: {}", fault.text),
        Some(_) | None => fault.text,
    };
    match fault.kind {
        FaultKind::Setup => LetterTrouble::Refused(text),
        FaultKind::Lost
        | FaultKind::Standby
        | FaultKind::Content
        | FaultKind::ContentFatal
        | FaultKind::Parse
        | FaultKind::AfterEnd => LetterTrouble::Unavailable(text),
    }
}

fn raw(delivery: &Delivery) -> RawLetter<'_> {
    let Delivery { routing_key, properties, data, .. } = delivery;
    RawLetter { routing_key: routing_key.as_str(), properties, body: data }
}
