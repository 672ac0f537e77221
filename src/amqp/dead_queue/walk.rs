//! A walk through the dead-letter queue, in one call or several.

use super::{raw, republisher::Republisher, CLOSE_WITHIN, STEP_WITHIN};
use crate::fault::{Fault, FaultKind};
use crate::unacked::MOST_UNAPPLIED;
use lapin::message::{BasicGetMessage, Delivery};
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicNackOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::Channel;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tidegate_wire::dead_letters::{
    Letter, LetterFilter, LetterGroup, LetterReport, FULL_PAGE, MOST_LOOKED_AT, MOST_OF_A_CALL,
};
use tokio::time::{timeout, Instant};

/// Time limits for returning dead letters to the queue: for each one, and in total. The end of the connection
/// returns them in any case.
const GIVE_BACK_WITHIN: Duration = Duration::from_micros(200);
const GIVE_ALL_BACK_WITHIN: Duration = Duration::from_secs(6);
/// Most dead letters that a quorum queue restores in order if all are returned at once: RabbitMQ keeps more
/// than that in an unordered map.
const KEEPS_ORDER: usize = 32;
/// A walk over the messages of the queue, from its head, as many as there were at the beginning.
#[derive(Debug)]
pub(super) struct Walk {
    channel: Channel,
    queue: ShortString,
    /// Number of returns at which the walk stops in front of a dead letter; `None`: the queue's delivery
    /// limit is known to be out of reach.
    most_returns: Option<u64>,
    depth: usize,
    looked_at: usize,
    /// Acks written since the queue last answered.
    unapplied: u32,
    /// Bounds of the present call: the last dead letter by number, the start, and the deadline.
    call_ends: (usize, Instant, Instant),
    /// Another call may continue the walk.
    goes_on: bool,
    /// Set when the client of a read-only call has disconnected.
    gone: Arc<AtomicBool>,
    /// The queue has no further message.
    at_end: bool,
}

impl Walk {
    pub(super) fn new(channel: Channel, queue: &str, most_returns: Option<u64>) -> Self {
        Walk {
            channel,
            // The configuration refuses names that do not fit.
            queue: ShortString::try_new(queue).unwrap_or_default(),
            most_returns,
            depth: 0,
            looked_at: 0,
            unapplied: 0,
            call_ends: (0, Instant::now(), Instant::now()),
            goes_on: false,
            gone: Arc::default(),
            at_end: false,
        }
    }

    /// Dead letters remain that the walk has not looked at.
    pub(super) fn more(&self) -> bool {
        !self.at_end && self.looked_at < self.depth
    }

    /// Adds the walk's progress to the report.
    pub(super) fn tell(&self, report: &mut LetterReport) {
        report.more |= self.more();
        (report.depth, report.looked_at) = (self.depth, self.looked_at);
    }

    /// Begins a call, which takes no dead letter from `until` on, except for the walk's first. `goes_on`:
    /// another call may follow. The call ends when `gone` is set.
    pub(super) fn begin_call(&mut self, until: Instant, goes_on: bool, gone: Arc<AtomicBool>) {
        (self.goes_on, self.gone) = (goes_on, gone);
        self.call_ends = (self.looked_at + MOST_LOOKED_AT, Instant::now(), until);
    }

    /// Takes the next dead letter; `None`: there is no further one, or the call has reached its bound.
    async fn next(&mut self) -> Result<Option<Delivery>, Fault> {
        let first = self.looked_at == 0;
        let (most, begun, until) = self.call_ends;
        if !first && !self.more() || self.looked_at >= most {
            return Ok(None);
        }
        if self.gone.load(Ordering::Relaxed) {
            return Err(Fault::lost("the client has disconnected"));
        }
        let late = !first && Instant::now() >= until;
        if late && self.goes_on {
            return Ok(None);
        }
        // A fault, and no ordinary end: the call has looked at fewer dead letters than it promises.
        if late {
            return Err(Fault::lost(format!(
                "the broker is slow: {} dead letters were read in {} s",
                self.looked_at + MOST_LOOKED_AT - most,
                (until - begun).as_secs()
            )));
        }
        let taking = self.channel.basic_get(self.queue.clone(), BasicGetOptions::default());
        // The broker first requeues what the previous walk has returned: a classic queue of RabbitMQ 3 needs
        // seconds for some thousand messages, and four times as long for twice as many.
        let within = if first { STEP_WITHIN.max(until - Instant::now()) } else { STEP_WITHIN };
        let taken = match timeout(within, taking).await {
            Ok(Ok(taken)) => taken,
            Ok(Err(error)) => return Err(self.explained(Fault::from(error))),
            Err(_) => return Err(Fault::timeout("taking a dead letter from its queue", within)),
        };
        let Some(BasicGetMessage { delivery, message_count }) = taken else {
            self.at_end = true;
            return Ok(None);
        };
        self.unapplied = 0;
        if first {
            self.depth = message_count as usize + 1;
        }
        self.looked_at += 1;
        let returns = raw(&delivery).returns();
        if self.most_returns.is_some_and(|most| returns >= most) {
            return Err(Fault::setup(format!(
                "dead letters of queue '{}' have been returned {returns} times, and the queue may differ \
                 from [dead.queue]: its delivery limit may drop them at the next look. Describe it there and \
                 let tidegate declare it; or, if it has no delivery limit, set dead.queue.max_looks = 0",
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
            "the dead letter after the first {} contains text that is not UTF-8 where AMQP requires it, and \
             cannot be read here: remove it from its queue with RabbitMQ's management page",
            self.looked_at
        );
        Fault { text, ..fault }
    }

    pub(super) async fn count(&mut self, report: &mut LetterReport) -> Result<(), Fault> {
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

    pub(super) async fn list(
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
            let shown = if whole { letter.read(true) } else { summary };
            bytes += json_length(&shown);
            report.letters.push(shown);
            let enough = report.letters.len() >= limit;
            full = enough || bytes >= FULL_PAGE;
            // A short queue is walked to its end: messages that are returned together keep their order.
            if full && (self.depth > KEEPS_ORDER || self.goes_on && !enough) {
                break;
            }
        }
        Ok(())
    }

    pub(super) async fn drop(
        &mut self,
        report: &mut LetterReport,
        filter: &LetterFilter,
        limit: usize,
    ) -> Result<(), Fault> {
        while report.count < limit.min(MOST_OF_A_CALL) {
            let Some(delivery) = self.next().await? else { break };
            if filter.takes(&raw(&delivery).read(false)) {
                self.take_away(delivery.delivery_tag).await?;
                report.count += 1;
            }
        }
        Ok(())
    }

    pub(super) async fn retry(
        &mut self,
        report: &mut LetterReport,
        filter: &LetterFilter,
        limit: usize,
        republisher: &mut Republisher<'_>,
    ) -> Result<(), Fault> {
        loop {
            let room = report.count + republisher.len() < limit.min(MOST_OF_A_CALL);
            let found = if room { self.next().await } else { Ok(None) };
            if let Ok(Some(delivery)) = &found {
                if filter.takes(&raw(delivery).read(false)) && !republisher.take(delivery) {
                    report.kept += 1;
                }
            }
            let over = !matches!(found, Ok(Some(_)));
            if over || republisher.is_full() {
                let (confirmed, outcome) = republisher.send().await;
                tidegate_common::failpoint!("letters-confirmed", if !confirmed.is_empty());
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

    /// Waits until the broker has processed the acks sent so far: it answers in order.
    pub(super) async fn heard(&self) -> Result<(), Fault> {
        match timeout(STEP_WITHIN, self.passive_declare()).await {
            Ok(done) => Ok(done?),
            Err(_) => Err(Fault::timeout("removing dead letters (they may still be queued)", STEP_WITHIN)),
        }
    }

    async fn passive_declare(&self) -> lapin::Result<()> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(self.queue.clone(), options, FieldTable::default()).await.map(drop)
    }

    async fn take_away(&mut self, tag: u64) -> Result<(), Fault> {
        self.unapplied += 1;
        match timeout(STEP_WITHIN, self.channel.basic_ack(tag, BasicAckOptions::default())).await {
            Ok(done) => Ok(done?),
            Err(_) => Err(Fault::timeout("removing a dead letter", STEP_WITHIN)),
        }
    }

    /// Returns the remaining dead letters to the queue, and waits until the broker has processed all acks.
    ///
    /// # Errors
    /// It has not: what was to be removed may still be queued.
    pub(super) async fn end(&self) -> Result<(), Fault> {
        if !self.channel.status().connected() {
            return Ok(());
        }
        let unapplied = self.unapplied > MOST_UNAPPLIED;
        let applying = async {
            // The queue hands a message out once it has applied the acks before; when the channel answers
            // again, it has passed on those that it held back.
            self.channel.basic_get(self.queue.clone(), BasicGetOptions::default()).await?;
            self.passive_declare().await
        };
        if unapplied {
            match timeout(STEP_WITHIN, applying).await {
                Ok(done) => done?,
                Err(_) => {
                    let what = "removing dead letters (they may still be queued)";
                    return Err(Fault::timeout(what, STEP_WITHIN));
                }
            }
        }
        // What is still held returns to the queue with the connection in any case.
        let ending = async {
            let options = BasicNackOptions { multiple: true, requeue: true };
            if self.looked_at > 0 {
                self.channel.basic_nack(0, options).await?;
            }
            self.channel.close(200, "OK".into()).await
        };
        let all = GIVE_BACK_WITHIN * u32::try_from(self.looked_at).unwrap_or(u32::MAX);
        let _ = timeout(CLOSE_WITHIN + all.min(GIVE_ALL_BACK_WITHIN), ending).await;
        Ok(())
    }
}

/// Bytes of a dead letter in an answer.
fn json_length(letter: &Letter) -> usize {
    /// Counts what is written to it.
    struct Length(usize);
    impl io::Write for Length {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut length = Length(0);
    // JSON has a form for every field of a dead letter.
    let _ = serde_json::to_writer(&mut length, letter);
    length.0
}
