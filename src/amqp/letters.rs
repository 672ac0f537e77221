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
//! One job at a time: two walks would hide letters from each other.

use super::connection::Session;
use super::fault::{Fault, FaultKind};
use super::message::confirm_channel;
use super::supervise::Dialer;
use super::topology::is_own_dead_queue;
use super::wire::RawLetter;
use crate::clock;
use crate::config::{self, Config, Endpoint};
use crate::letters::{
    Letter, LetterFilter, LetterGroup, LetterJob, LetterReport, LetterTrouble, RetryTerms, FULL_PAGE,
    MOST_LOOKED_AT,
};
use lapin::message::{BasicGetMessage, Delivery};
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicNackOptions, BasicPublishOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{timeout, Instant};

/// For all of a walk but what is under way at its end; the admin port waits for longer.
const WALK_WITHIN: Duration = Duration::from_secs(12);
/// For the job before, if there is one.
const TURN_WITHIN: Duration = Duration::from_secs(5);
/// For a connection, over all addresses.
const OPEN_WITHIN: Duration = Duration::from_secs(5);
/// For one answer of the broker.
const STEP_WITHIN: Duration = Duration::from_secs(5);
/// For the end of a channel or connection.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// Requests that are published and not confirmed, and bytes of their bodies; the first always fits.
const CHUNK: usize = 64;
const CHUNK_BYTES: usize = 4 << 20;
/// Letters of a quorum queue that come back in the order in which they were taken, if all are given back at
/// once: RabbitMQ keeps more of them in a map without one.
const KEEPS_ORDER: usize = 32;
/// Returns after which a letter of a queue of unknown making is not touched: a quorum queue of RabbitMQ 4.0
/// to 4.2 drops after 20, unless it was declared otherwise.
const MOST_RETURNS: u64 = 10;

/// See the module.
#[derive(Debug)]
pub struct LetterDesk {
    amqp: config::AmqpConfig,
    ingest: config::IngestConfig,
    egress: config::EgressConfig,
    dead: config::DeadLetters,
    turn: Semaphore,
}

impl LetterDesk {
    /// For the broker of this configuration. Connects when there is something to do.
    pub fn new(config: &Config) -> Self {
        LetterDesk {
            amqp: config.amqp.clone(),
            ingest: config.ingest.clone(),
            egress: config.egress.clone(),
            dead: config.dead.clone(),
            turn: Semaphore::new(1),
        }
    }

    /// Does a job, within some 30 s. It is not to be cancelled half-way: what was sent back by then might be
    /// sent back again.
    ///
    /// # Errors
    /// Nothing was done; see [`LetterTrouble`].
    pub async fn carry_out(&self, job: &LetterJob) -> Result<LetterReport, LetterTrouble> {
        let Some(queue) = self.dead.queue_name() else {
            let text = "no queue of dead letters is known: dead.queue.type is \"none\", and dead.queue.name \
                        names none to look into";
            return Err(LetterTrouble::Refused(text.to_owned()));
        };
        let Ok(Ok(_turn)) = timeout(TURN_WITHIN, self.turn.acquire()).await else {
            let text = "dead letters are being handled for somebody else: try again in a moment";
            return Err(LetterTrouble::Unavailable(text.to_owned()));
        };
        let session = self.open(&self.egress.endpoints).await.map_err(|fault| trouble(queue, fault))?;
        let done = self.work(&session, queue, job).await;
        session.close(CLOSE_WITHIN).await;
        done
    }

    /// At the first address that answers.
    async fn open(&self, endpoints: &[Endpoint]) -> Result<Session, Fault> {
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

    async fn work(
        &self,
        session: &Session,
        queue: &str,
        job: &LetterJob,
    ) -> Result<LetterReport, LetterTrouble> {
        let begun = async {
            let own = is_own_dead_queue(session, self.amqp.topology, &self.dead, STEP_WITHIN).await?;
            Ok(Walk::new(session.channel(STEP_WITHIN).await?, queue, own))
        };
        let mut walk = begun.await.map_err(|fault| trouble(queue, fault))?;
        let mut report = LetterReport::default();
        let outcome = match job {
            LetterJob::Count => walk.count(&mut report).await,
            LetterJob::List { filter, limit, whole } => walk.list(&mut report, filter, *limit, *whole).await,
            LetterJob::Drop { filter, limit } => walk.drop(&mut report, filter, *limit).await,
            LetterJob::Retry { filter, limit, terms } => {
                let mut post = Post::new(self, *terms);
                let done = walk.retry(&mut report, filter, *limit, &mut post).await;
                post.close().await;
                done
            }
        };
        let ended = walk.end().await;
        report.more |= walk.more();
        (report.depth, report.looked_at) = (walk.depth, walk.looked_at);
        let stopped = outcome.err().or_else(|| ended.err().filter(|_| report.count > 0));
        match stopped {
            None => Ok(report),
            Some(fault) if report.count == 0 && report.letters.is_empty() => Err(trouble(queue, fault)),
            Some(fault) => Ok(LetterReport { stopped: Some(fault.text), ..report }),
        }
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

/// The letters of a queue, from its head on, as many as there were at the beginning.
struct Walk {
    channel: Channel,
    queue: ShortString,
    /// Looking at letters is known not to use them up.
    own: bool,
    until: Instant,
    depth: usize,
    looked_at: usize,
    /// There is none behind the last one.
    at_end: bool,
}

impl Walk {
    fn new(channel: Channel, queue: &str, own: bool) -> Self {
        Walk {
            channel,
            // The configuration refuses longer names than fit.
            queue: ShortString::try_new(queue).unwrap_or_default(),
            own,
            until: Instant::now() + WALK_WITHIN,
            depth: 0,
            looked_at: 0,
            at_end: false,
        }
    }

    fn more(&self) -> bool {
        !self.at_end && self.looked_at < self.depth
    }

    /// The next one; `None`: that was the last one, or enough.
    async fn next(&mut self) -> Result<Option<Delivery>, Fault> {
        let first = self.looked_at == 0;
        if !first && !self.more() || self.looked_at >= MOST_LOOKED_AT {
            return Ok(None);
        }
        // Not an end like another: fewer were looked at than was promised.
        if Instant::now() >= self.until {
            return Err(Fault::lost(format!(
                "the broker is slow: {} letters were looked at in {} s",
                self.looked_at,
                WALK_WITHIN.as_secs()
            )));
        }
        let taking = self.channel.basic_get(self.queue.clone(), BasicGetOptions::default());
        let taken = match timeout(STEP_WITHIN, taking).await {
            Ok(Ok(taken)) => taken,
            Ok(Err(error)) => return Err(self.explained(Fault::from(error))),
            Err(_) => return Err(Fault::timeout("taking a letter from its queue", STEP_WITHIN)),
        };
        let Some(BasicGetMessage { delivery, message_count }) = taken else {
            self.at_end = true;
            return Ok(None);
        };
        if first {
            self.depth = message_count as usize + 1;
        }
        self.looked_at += 1;
        let returns = raw(&delivery).returns();
        if !self.own && returns >= MOST_RETURNS {
            return Err(Fault::setup(format!(
                "letters of queue '{}' have been returned {returns} times, and it was not declared as \
                 [dead.queue] says: its delivery limit may drop them at the next look. Describe it there, or \
                 let tidegate declare another",
                self.queue.as_str()
            )));
        }
        Ok(Some(delivery))
    }

    fn explained(&self, fault: Fault) -> Fault {
        if fault.kind != FaultKind::Parse {
            return fault;
        }
        let text = format!(
            "the letter behind the first {} holds text that is no UTF-8 where AMQP wants some, and cannot be \
             read here: take it off its queue with RabbitMQ's management page",
            self.looked_at
        );
        Fault { text, ..fault }
    }

    async fn count(&mut self, report: &mut LetterReport) -> Result<(), Fault> {
        let mut groups: BTreeMap<(Box<str>, Box<str>), usize> = BTreeMap::new();
        let mut outcome = Ok(());
        loop {
            match self.next().await {
                Ok(Some(delivery)) => {
                    let Letter { reason, application, .. } = raw(&delivery).read(false);
                    *groups.entry((reason, application)).or_default() += 1;
                    report.count += 1;
                }
                Ok(None) => break,
                Err(fault) => {
                    outcome = Err(fault);
                    break;
                }
            }
        }
        let group = |((reason, application), count)| LetterGroup { reason, application, count };
        report.groups = groups.into_iter().map(group).collect();
        outcome
    }

    async fn list(
        &mut self,
        report: &mut LetterReport,
        filter: &LetterFilter,
        limit: usize,
        whole: bool,
    ) -> Result<(), Fault> {
        let (mut bytes, mut full) = (0, false);
        while let Some(delivery) = self.next().await? {
            let letter = raw(&delivery);
            let summary = letter.read(false);
            if !filter.takes(&summary) {
                continue;
            }
            if full {
                report.more = true;
                continue;
            }
            bytes += if whole { letter.body.len() } else { 0 };
            report.letters.push(if whole { letter.read(true) } else { summary });
            full = report.letters.len() >= limit || bytes >= FULL_PAGE;
            // A short queue is walked to its end: what comes back together keeps its order.
            if full && self.depth > KEEPS_ORDER {
                break;
            }
        }
        Ok(())
    }

    async fn drop(
        &mut self,
        report: &mut LetterReport,
        filter: &LetterFilter,
        limit: usize,
    ) -> Result<(), Fault> {
        while report.count < limit {
            let Some(delivery) = self.next().await? else { break };
            if filter.takes(&raw(&delivery).read(false)) {
                self.take_away(delivery.delivery_tag).await?;
                report.count += 1;
            }
        }
        Ok(())
    }

    async fn retry(
        &mut self,
        report: &mut LetterReport,
        filter: &LetterFilter,
        limit: usize,
        post: &mut Post<'_>,
    ) -> Result<(), Fault> {
        loop {
            let found = if report.count + post.chunk.len() < limit { self.next().await } else { Ok(None) };
            if let Ok(Some(delivery)) = &found {
                if filter.takes(&raw(delivery).read(false)) && !post.take(delivery) {
                    report.kept += 1;
                }
            }
            let over = !matches!(found, Ok(Some(_)));
            if over || post.is_full() {
                let (confirmed, outcome) = post.send().await;
                failpoint!("letters-confirmed", if !confirmed.is_empty());
                for tag in confirmed {
                    self.take_away(tag).await?;
                    report.count += 1;
                }
                outcome?;
            }
            if over {
                return found.map(drop);
            }
        }
    }

    async fn take_away(&self, tag: u64) -> Result<(), Fault> {
        match timeout(STEP_WITHIN, self.channel.basic_ack(tag, BasicAckOptions::default())).await {
            Ok(done) => Ok(done?),
            Err(_) => Err(Fault::timeout("taking a letter away", STEP_WITHIN)),
        }
    }

    /// Puts what is left back, and waits until the broker has heard of all that was taken away.
    async fn end(&self) -> Result<(), Fault> {
        if !self.channel.status().connected() {
            return Ok(());
        }
        let ending = async {
            let options = BasicNackOptions { multiple: true, requeue: true };
            if self.looked_at > 0 {
                self.channel.basic_nack(0, options).await?;
            }
            self.channel.close(200, "OK".into()).await
        };
        match timeout(CLOSE_WITHIN, ending).await {
            Ok(done) => Ok(done?),
            Err(_) => Err(Fault::timeout("the last letters' acks: they may still be there", CLOSE_WITHIN)),
        }
    }
}

/// A letter on its way back to the ingest exchange.
struct ReturnedRequest {
    /// Of the letter, on the walk's channel.
    tag: u64,
    key: ShortString,
    properties: BasicProperties,
    body: Vec<u8>,
}

/// Requests that are published to the ingest exchange, some at a time.
struct Post<'d> {
    desk: &'d LetterDesk,
    terms: RetryTerms,
    open: Option<(Session, Channel)>,
    chunk: Vec<ReturnedRequest>,
    bytes: usize,
}

impl<'d> Post<'d> {
    fn new(desk: &'d LetterDesk, terms: RetryTerms) -> Self {
        Post { desk, terms, open: None, chunk: Vec::new(), bytes: 0 }
    }

    /// False: it cannot go with these terms.
    fn take(&mut self, delivery: &Delivery) -> bool {
        let now = clock::wall_ms_up();
        let tag = delivery.delivery_tag;
        let mark = format!("{now:x}-{tag:x}");
        let Some(properties) = raw(delivery).sent_back(&self.terms, now, &mark) else { return false };
        self.bytes += delivery.data.len();
        let (key, body) = (delivery.routing_key.clone(), delivery.data.clone());
        self.chunk.push(ReturnedRequest { tag, key, properties, body });
        true
    }

    fn is_full(&self) -> bool {
        self.chunk.len() >= CHUNK || self.bytes >= CHUNK_BYTES
    }

    /// Publishes what was taken; the tags of those that are safe in the ingest queue, and what went wrong.
    async fn send(&mut self) -> (Vec<u64>, Result<(), Fault>) {
        let chunk = std::mem::take(&mut self.chunk);
        self.bytes = 0;
        if chunk.is_empty() {
            return (Vec::new(), Ok(()));
        }
        let exchange = &self.desk.ingest.exchange;
        // Its code would say something of the queue of dead letters.
        let explained = |fault: Fault| Fault {
            code: None,
            ..fault.while_doing(&format!("sending back to exchange '{exchange}'"))
        };
        let channel = match self.channel().await {
            Ok(channel) => channel,
            Err(fault) => return (Vec::new(), Err(explained(fault))),
        };
        match timeout(STEP_WITHIN, published(&channel, exchange, chunk)).await {
            Ok(Ok((confirmed, None))) => (confirmed, Ok(())),
            Ok(Ok((confirmed, Some(fault)))) => (confirmed, Err(explained(fault))),
            Ok(Err(fault)) => (Vec::new(), Err(explained(fault))),
            Err(_) => (Vec::new(), Err(explained(self.overdue()))),
        }
    }

    fn overdue(&self) -> Fault {
        match &self.open {
            Some((session, _)) if session.is_blocked() => {
                Fault::lost("the broker takes nothing at present (memory or disk alarm)")
            }
            Some(_) | None => Fault::timeout("requests that were sent back", STEP_WITHIN),
        }
    }

    async fn channel(&mut self) -> Result<Channel, Fault> {
        if let Some((_, channel)) = &self.open {
            return Ok(channel.clone());
        }
        let session = self.desk.open(&self.desk.amqp.endpoints).await?;
        let channel = confirm_channel(&session, STEP_WITHIN).await?;
        self.open = Some((session, channel.clone()));
        Ok(channel)
    }

    async fn close(self) {
        if let Some((session, _)) = self.open {
            session.close(CLOSE_WITHIN).await;
        }
    }
}

/// Publishes them all, and then waits for all: which tags are safe, and why others are not.
///
/// lapin tells of a returned message with whichever confirm comes next. So where one came back, none of them
/// counts; where none did and all have been answered, each answer is its own.
async fn published(
    channel: &Channel,
    exchange: &str,
    chunk: Vec<ReturnedRequest>,
) -> Result<(Vec<u64>, Option<Fault>), Fault> {
    let exchange = ShortString::try_new(exchange).unwrap_or_default();
    let mut open = Vec::with_capacity(chunk.len());
    for ReturnedRequest { tag, key, properties, body } in chunk {
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        open.push((tag, channel.basic_publish(exchange.clone(), key, options, &body, properties).await?));
    }
    let (mut confirmed, mut fault) = (Vec::with_capacity(open.len()), None);
    let mut returned = None;
    for (tag, confirm) in open {
        match confirm.await? {
            Confirmation::Ack(None) => confirmed.push(tag),
            Confirmation::Ack(Some(back)) | Confirmation::Nack(Some(back)) => {
                returned = Some(format!("{} {}", back.reply_code, back.reply_text));
            }
            Confirmation::Nack(None) => {
                fault = Some(Fault::lost("the ingest queue is full or without its majority (basic.nack)"));
            }
            Confirmation::NotRequested => return Err(Fault::lost("the channel does not confirm")),
        }
    }
    match returned {
        Some(text) => {
            Err(Fault::lost(format!("it has no queue to put requests into: they came back, {text}")))
        }
        None => Ok((confirmed, fault)),
    }
}
