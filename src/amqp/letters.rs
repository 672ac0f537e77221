//! The desk where dead letters are handled: a walk along their queue, on connections of its own.
//!
//! A queue can only be looked into by taking its messages. So the walk takes one after the other, keeps none
//! but what is asked for, and leaves all of them unacked until its end, when they go back.
//! One at a time, because nobody knows how large the next one is: a consumer's prefetch would fetch many.
//!
//! Nothing is lost half-way, whenever the process ends: what is unacked goes back by itself, a letter that is
//! sent back is acked only once its request is confirmed and has not come back, and one that is dropped is
//! acked by that order alone. The worst is a request that is sent twice, under the same id.
//!
//! One walk at a time: two would hide letters from each other. One that is to be gone on with stays open
//! between two calls, so that each letter of a queue of any length can be reached in bounded memory and time;
//! it ends when nobody goes on with it, and sooner where somebody else has something to do.

mod republisher;
mod walk;

use super::connection::Session;
use super::fault::{Fault, FaultKind};
use super::supervise::Dialer;
use super::topology::is_own_dead_queue;
use super::wire::RawLetter;
use crate::clock;
use crate::config::{self, Config, Endpoint};
use crate::letters::{LetterJob, LetterReport, LetterTask, LetterTrouble, LetterWalk, WalkCursor};
use lapin::message::Delivery;
use republisher::Republisher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{sleep, sleep_until, timeout, timeout_at, Instant};
use walk::Walk;

/// For all of a call but its end and what is under way then, and the same with what comes before it.
const CALL_WITHIN: Duration = Duration::from_secs(12);
const CALL_AND_TURN_WITHIN: Duration = Duration::from_secs(17);
/// For the job before, if there is one.
const TURN_WITHIN: Duration = Duration::from_secs(5);
/// For a connection, over all addresses.
const OPEN_WITHIN: Duration = Duration::from_secs(5);
/// For one answer of the broker.
const STEP_WITHIN: Duration = Duration::from_secs(5);
/// For the end of a channel or connection.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// Time without a call behind which a walk ends, and its letters go back.
const RESTS_WITHIN: Duration = Duration::from_secs(30);
/// The same where somebody else has something to do.
const GIVES_WAY_AFTER: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub struct DeadLetterService {
    amqp: config::AmqpConfig,
    ingest: config::IngestConfig,
    egress: config::EgressConfig,
    dead: config::DeadLetters,
    /// Who holds it has the turn; what is in it rests.
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
    /// Letters go back. What becomes of that is told to nobody: they go back with the connection in any case.
    async fn end(self) {
        let _ = self.walk.end().await;
        self.session.close(CLOSE_WITHIN).await;
    }
}

impl DeadLetterService {
    /// For the broker of this configuration. Connects when there is something to do.
    pub fn new(config: &Config) -> Self {
        DeadLetterService {
            amqp: config.amqp.clone(),
            ingest: config.ingest.clone(),
            egress: config.egress.clone(),
            dead: config.dead.clone(),
            open: Arc::default(),
        }
    }

    /// Does a job, within some 30 s: 17 s, and what is under way then. It is not to be cancelled half-way:
    /// what was sent back by then might be sent back again, and what is held goes back in its own time.
    /// `gone` says that whoever asked has gone: what has not begun does not then, and what only looks ends.
    ///
    /// # Errors
    /// Nothing was done; see [`LetterTrouble`].
    pub async fn carry_out(
        &self,
        task: &LetterTask,
        gone: &Arc<AtomicBool>,
    ) -> Result<LetterReport, LetterTrouble> {
        let Some(queue) = self.dead.queue_name() else {
            let text = "no queue of dead letters is known: dead.queue.type is \"none\", and dead.queue.name \
                        names none to look into";
            return Err(LetterTrouble::Refused(text.to_owned()));
        };
        let ready_until = Instant::now() + CALL_AND_TURN_WITHIN;
        let Some(mut open) = self.turn(&task.walk).await else {
            let text = "dead letters are being handled for somebody else: try again in a moment";
            return Err(LetterTrouble::Unavailable(text.to_owned()));
        };
        let (session, mut walk) = match (open.take(), &task.walk) {
            (Some(OpenWalk { session, walk, cursor, .. }), LetterWalk::Next(wanted)) if cursor == *wanted => {
                (session, walk)
            }
            (other, LetterWalk::Next(_)) => {
                *open = other;
                let text = "this walk has ended: nobody went on with it for a while, or the connection was \
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
                    Err(_) => Err(Fault::timeout("what comes before a look", CALL_AND_TURN_WITHIN)),
                };
                ready.map_err(|fault| trouble(queue, fault))?
            }
        };
        let (mut report, mut outcome) = if gone.load(Ordering::Relaxed) {
            (LetterReport::default(), Err(Fault::lost("whoever asked has gone: nothing was done")))
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
            self.end_unless_gone_on_with(cursor);
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

    /// The turn of whoever comes like this; `None`: others have it for longer than anybody waits.
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

    fn end_unless_gone_on_with(&self, cursor: WalkCursor) {
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

    /// At the first address that answers.
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
            // That it is another's fault than the queue's is what matters here.
            Ok(opened) => opened.map_err(|fault| Fault::lost(fault.text)),
            Err(_) => Err(Fault::timeout("connecting", OPEN_WITHIN)),
        }
    }

    async fn begin(&self, queue: &str) -> Result<(Session, Walk), Fault> {
        let session = self.connect(&self.egress.endpoints).await?;
        let begun = async {
            let own = is_own_dead_queue(&session, self.amqp.topology, &self.dead, STEP_WITHIN).await?;
            let most_returns = Some(self.dead.queue.max_looks).filter(|most| *most > 0 && !own);
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

    /// What came of it so far, and why no more.
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
        Some(404) => format!("queue '{queue}' of dead letters is not there: {}", fault.text),
        Some(403) => format!("queue '{queue}' of dead letters may not be read: {}", fault.text),
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
